"""On a GPU the numbers are those of the CPU, and training resumes. Skipped where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Cli
from trainings import go, losses

from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.runs.opened import open_folder, tuned_ranker
from kgmlm.training.loop import train
from kgmlm.training.start import resume_run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

VECTORS = ("vector.enabled=true", "vector.memory=64", "vector.residual_rate=0.01", "training.precision=fp32")
PLAIN = ("scratch.dropout=0.0", *VECTORS)


def test_training_loses_as_on_the_cpu(toy: KnowledgeGraph, tmp_path: Path) -> None:
    for device in ("cpu", "cuda"):
        go(tmp_path / device, toy, *PLAIN, max_steps=6, device=device)
    assert losses(tmp_path / "cuda") == pytest.approx(losses(tmp_path / "cpu"), rel=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_stopped_run_resumes(toy: KnowledgeGraph, tmp_path: Path, precision: str) -> None:
    more = (*VECTORS, f"training.precision={precision}")
    go(tmp_path / "whole", toy, *more, device="cuda")
    go(tmp_path / "run", toy, *more, max_steps=7, device="cuda")
    train(*resume_run(tmp_path / "run", "cuda"), resume=True, device="cuda")
    rel = 1e-3 if precision == "fp32" else 0.1  # sums on a GPU have no order
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "whole"), rel=rel)


def test_scores_are_those_of_the_cpu(toy: KnowledgeGraph, tmp_path: Path) -> None:
    go(tmp_path / "run", toy, *PLAIN, device="cuda")
    run = open_folder(tmp_path / "run")
    queries, _ = toy.queries("test")
    scores = {}
    for device in ("cpu", "cuda"):
        ((at, scores_BN),) = tuned_ranker(run, device).rank(queries)
        scores[device] = scores_BN[at.argsort()]
    np.testing.assert_allclose(scores["cuda"], scores["cpu"], rtol=1e-4, atol=1e-4)


def test_the_commands_agree(toy_vector_run: Path, cli: Cli, tmp_path: Path) -> None:
    rows = []
    for device in ("cpu", "cuda"):
        output = tmp_path / f"{device}.json"
        done = cli("evaluate", toy_vector_run, "--device", device, "--output", output)
        assert done.returncode == 0, done.stderr
        rows.append(json.loads(output.read_text())["metrics"]["mrr"])
    assert rows[0] == pytest.approx(rows[1], abs=0.01)
