from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kgmlm.core.config import load_settings
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.runs.provenance import began_from, model_address, past_graphs
from kgmlm.runs.writing import write_record
from kgmlm.training.start import start_run


def test_a_model_is_recorded_by_a_path_that_holds_anywhere(
    toy: KnowledgeGraph, toy_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "base").symlink_to(toy_run)
    monkeypatch.chdir(tmp_path)
    settings = load_settings(None, ["training.epochs=1"])
    run, _ = start_run(tmp_path / "run", toy, "base/model", settings)
    assert run.record["model"] == str(toy_run / "model")
    run = write_record(run, command="another")
    monkeypatch.chdir("/")
    (graph,), gone = past_graphs(run)
    assert graph.same(toy)
    assert gone == []
    assert [model_address(x) for x in ("scratch", "bert-base-uncased")] == ["scratch", "bert-base-uncased"]


def test_what_a_run_began_from_is_its_own_past_alone(
    toy_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "base"
    shutil.copytree(toy_run, base)
    checkpoint = base / "checkpoints" / "step-00000001" / "model"
    shutil.copytree(base / "model", checkpoint)
    expected = began_from(str(base / "model"))
    assert expected is not None
    assert began_from(str(checkpoint)) == expected
    monkeypatch.chdir(base)
    assert began_from("model") == expected
    assert began_from("scratch") is began_from("bert-base-uncased") is None, "the folder here is no ancestor"


def test_a_run_records_what_it_needs_to_be_repeated(toy_run: Path) -> None:
    record = json.loads((toy_run / "run.json").read_text())
    assert record["dataset"] == "toy"
    assert all(len(v) == 64 for v in record["sources"].values())
    assert {"torch", "transformers", "kgmlm", "python"} <= record["versions"].keys()
    assert record["status"] == "finished"
    assert record["span_length"] >= 1
    assert "train --dataset toy --model scratch" in record["command"]
    assert record["hardware"]["threads"] >= 1
    assert (toy_run / "config.toml").read_text().count("[") >= 4
