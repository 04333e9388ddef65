"""Runs of format 1; that they rank as before is for test_golden."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from conftest import Cli, refused
from safetensors.torch import load_file, save_file
from trainings import TINY, losses

import kgmlm
from kgmlm import digests
from kgmlm.conversion import convert_run
from kgmlm.kg import RunError
from kgmlm.mixture import Use
from kgmlm.runs import MIXTURE, open_run

OLD = Path(__file__).parent / "golden" / "old-run"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "old"))


def rewritten(run: Path, **values: object) -> None:
    record = json.loads((run / "run.json").read_text("utf-8"))
    (run / "run.json").write_text(json.dumps({**record, **values}), "utf-8")


def test_the_command_converts_a_run_with_all_that_it_has(cli: Cli, old: Path) -> None:
    refused(cli("rank", old, "--relation", "capital", "--head", "france"), f"kgmlm convert {old}")
    done = cli("convert", old)
    assert "is of format 2 now (finished, step 300)" in done.stdout, done.stderr
    run = open_run(old, verify=True)
    assert run.chosen.use == Use(5, 0.2)
    assert set(run.chosen.of) == {"likelihood", "vector", "kge", "reranker"}
    assert run.record["signals"]["kge"]["settings"]["dimension"] == 8
    assert run.settings.vector.residual_rate == 0.02
    assert open_run(old / "reranker", verify=True).settings.training.objective == "rerank"
    there = {p.relative_to(old).as_posix() for p in old.rglob("*")}
    assert not there & {"structure.safetensors", "rescorer"}
    assert list(load_file(old / "model" / "entity_vectors.safetensors")) == ["vectors"]
    refused(cli("convert", old), "not a run of an older format")
    refused(cli("convert", old.parent), "no run folder")


def test_what_was_marked_as_chosen_for_other_scores_is_left_to_tune(old: Path) -> None:
    structure = json.loads((old / "run.json").read_text("utf-8"))["structure"]
    rewritten(old, structure={**structure, "outdated": True}, rescoring=None)
    convert_run(old)
    with pytest.raises(RunError, match="not chosen for the kge and reranker"):
        open_run(old).ranker("cpu")
    open_run(old).ranker("cpu", scores="text", rerank=False)


def test_a_run_without_weights_by_relation_or_names_is_converted(old: Path) -> None:
    expected = open_names(old)
    (old / "graph" / "name_tokens.safetensors").unlink()
    path = old / "model" / "entity_vectors.safetensors"
    vectors = load_file(path)["vectors"]
    save_file({"vectors": vectors}, path, metadata={"likelihood": "0.0", "vector": "1.0"})
    for manifest in old.rglob("kgmlm.json"):
        manifest.unlink()
    rewritten(old, files=None)
    convert_run(old)
    ranker = open_run(old, verify=True).ranker("cpu")
    assert ranker.mixture.averages["likelihood"] == 0
    assert "likelihood" not in ranker.mixture.signals
    assert torch.equal(open_names(old), expected)


def open_names(run: Path) -> torch.Tensor:
    return load_file(run / "graph" / "name_tokens.safetensors")["tokens"]


def test_what_is_damaged_stays_as_it_was(old: Path) -> None:
    (old / "structure.safetensors").write_bytes(b"x")
    before = {p.relative_to(old): p.read_bytes() for p in old.rglob("*") if p.is_file()}
    with pytest.raises(RunError, match="cannot be converted") as caught:
        convert_run(old)
    assert "\n" not in str(caught.value)
    assert {p.relative_to(old): p.read_bytes() for p in old.rglob("*") if p.is_file()} == before
    assert [p.name for p in old.parent.iterdir()] == [old.name]


@pytest.mark.slow
def test_an_interrupted_training_goes_on_to_the_same_losses(tmp_path: Path) -> None:
    """A run of today, stopped midway and put back into the older format."""
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    vectors = {"enabled": True, "residual_rate": 0.01}
    for run, steps in ((whole, 9), (parted, 5)):
        kgmlm.train("toy", "scratch", run, max_steps=steps, vector=vectors, progress=False, **TINY)
    config = parted / "config.toml"
    text = config.read_text("utf-8").replace("residual_rate", "offset_rate").replace("[kge]", "[structure]")
    text = text.replace("[reranking]", "[rescoring]").replace("distillation", "teaching")
    config.write_text(text, "utf-8")
    (checkpoint,) = (parted / "checkpoints").iterdir()
    state = load_file(checkpoint / "state.safetensors")
    assert "0.residuals" in state
    state["0.offsets"] = state.pop("0.residuals")
    save_file(state, checkpoint / "state.safetensors")
    digests.write_manifest(checkpoint)
    file = parted / "model" / "entity_vectors.safetensors"
    save_file(load_file(file), file, metadata={"likelihood": "1.0", "vector": "5.0"})
    (parted / MIXTURE).unlink()
    digests.write_manifest(parted / "model")
    rewritten(parted, format=1, files=None)
    convert_run(parted)
    kgmlm.train(output=parted, resume=True, max_steps=9, progress=False)
    assert losses(parted) == losses(whole)
    assert len(losses(whole)) == 9
