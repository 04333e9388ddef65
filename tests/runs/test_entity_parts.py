"""A graph whose training reads few entities: sampled validation, and all entities in parts at the end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import vectors_of
from doubles import Hears
from trainings import TINY, VECTORS, Validation, arguments, go, settings

import kgmlm
from kgmlm.core.arrays import IntArray
from kgmlm.core.config import Protocol
from kgmlm.core.errors import ConfigError, RunError
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.runs import entity_vectors
from kgmlm.runs.entity_vectors import PARTS_FOLDER, read_entities
from kgmlm.runs.models import open_text
from kgmlm.runs.opened import open_folder, tuned_ranker, untuned_ranker
from kgmlm.runs.writing import save_tuned
from kgmlm.signals import vector as vector_module
from kgmlm.training.start import start_run
from kgmlm.training.tune import unfinished
from kgmlm.training.weights import weigh

FEW: dict[str, Any] = {**TINY, "eval_candidates": 5, "vector": {"enabled": True, "max_length": 24}}


@pytest.fixture
def unread(toy: KnowledgeGraph, tmp_path: Path) -> Path:
    """A run whose training has left all entities to be read."""
    go(tmp_path / "run", toy, *VECTORS, "training.eval_candidates=5", validate=Validation(0.1, 0.2, 0.3))
    return tmp_path / "run"


def test_a_run_whose_entities_are_unread_says_what_reads_them(unread: Path) -> None:
    run = open_folder(unread, verify=True)
    assert run.vectors_unread
    assert unfinished(run)
    with pytest.raises(RunError, match="not read yet; `kgmlm tune"):
        tuned_ranker(run)


def test_who_is_killed_in_the_midst_of_reading_goes_on_there(
    unread: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, total = open_folder(unread), len(open_folder(unread).graph.entities)

    class Killed(Exception):
        pass

    read: list[int] = []

    def kill(n: int, of: int) -> None:
        read.append(n)
        if sum(read) >= 10:
            raise Killed

    with pytest.raises(Killed):
        read_entities(run, "cpu", batch_size=4, advance=kill, size=8)
    assert [p.name for p in sorted((unread / PARTS_FOLDER).glob("*.npy"))] == ["part-000000.npy"]
    made: list[int] = []

    plain = vector_module.ReaderSource.read

    def counting(source: vector_module.ReaderSource, ids: IntArray, batch_size: int) -> Any:
        made.append(len(ids))
        return plain(source, ids, batch_size)

    monkeypatch.setattr(vector_module.ReaderSource, "read", counting)
    run = read_entities(run, "cpu", size=8)
    assert sum(made) == total - 8, "what was there is not read again"
    assert not (unread / PARTS_FOLDER).exists()
    assert not run.vectors_unread
    assert unfinished(run), "weights were chosen for no vectors"
    fresh = open_text(run, "cpu")
    run = save_tuned(run, replace(run.tuned, by={"command": "kgmlm tune"}))
    opened = tuned_ranker(open_folder(unread, verify=True), "cpu")
    np.testing.assert_allclose(vectors_of(opened), vectors_of(fresh), atol=1e-5, rtol=1e-5)
    assert not unfinished(run)


@pytest.mark.parametrize("about", [b"{}", b'{"model": "x", "size": 8}', b"["])
def test_parts_of_another_model_are_read_again(unread: Path, about: bytes) -> None:
    (unread / PARTS_FOLDER).mkdir()
    (unread / PARTS_FOLDER / "about.json").write_bytes(about)
    np.save(unread / PARTS_FOLDER / "part-000000.npy", np.zeros((8, 32), np.float32))
    read_entities(open_folder(unread), "cpu", size=8)
    run = open_folder(unread)
    run = save_tuned(run, run.tuned)
    assert np.linalg.norm(vectors_of(tuned_ranker(run, "cpu"))[:8], axis=1).min() > 0.9


def test_a_damaged_part_is_named(unread: Path) -> None:
    run = open_folder(unread)

    def cut(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_entities(run, "cpu", advance=cut, size=8)
    (unread / PARTS_FOLDER / "part-000001.npy").write_bytes(b"nothing")
    with pytest.raises(RunError, match=r"part-000001\.npy is damaged; remove it"):
        read_entities(run, "cpu", size=8)


def test_residuals_need_all_entities(toy: KnowledgeGraph, tmp_path: Path) -> None:
    chosen = settings(*VECTORS, "vector.residual_rate=0.1", "training.eval_candidates=5")
    with pytest.raises(ConfigError, match=r"set it to 0, or training\.eval_candidates to 0"):
        start_run(tmp_path / "run", toy, "scratch", chosen)


@pytest.mark.slow
def test_a_run_without_vectors_is_measured_among_all_too(tmp_path: Path) -> None:
    run = kgmlm.train(
        "toy", "scratch", tmp_path / "run", progress=False, **arguments(epochs=1, eval_candidates=5, **TINY)
    )
    result = run.folder.tuned.by["valid"]["text"]["mrr"]
    _, figures = weigh(untuned_ranker(run.folder, "cpu"), run.folder.graph, Protocol(split="valid"))
    assert run.folder.record["best_valid_mrr"] == result == pytest.approx(figures["text"]["mrr"])


@pytest.mark.slow
def test_the_command_measures_among_all_at_the_end_and_resumes_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Power(Exception):
        pass

    def cut(*arguments: Any, **named: Any) -> None:
        raise Power

    with monkeypatch.context() as patched:
        patched.setattr(entity_vectors, "_join", cut)
        with pytest.raises(Power):
            kgmlm.train("toy", "scratch", tmp_path / "run", **arguments(epochs=2, **FEW), progress=False)
    run = open_folder(tmp_path / "run")
    assert (run.record["status"], run.vectors_unread) == ("finished", True)
    sampled = run.record["best_valid_mrr"]
    done = kgmlm.train(output=tmp_path / "run", resume=True, progress=False)
    assert not unfinished(done.folder)
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert all("valid_candidates" in row for row in rows if "valid_mrr" in row)
    assert done.folder.record["best_valid_mrr"] < sampled, "more compete"
    heard = Hears()
    kgmlm.train(output=tmp_path / "run", resume=True, progress=heard)
    assert heard.told[-1].endswith("nothing to resume")
