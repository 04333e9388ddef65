from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import without_digests

from kgmlm.core.errors import ModelError, RunError
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.storage import read_graph, write_graph
from kgmlm.ranking.ranker import StageWeight
from kgmlm.runs.opened import open_folder, tuned_ranker
from kgmlm.runs.provenance import began_from, past_graphs
from kgmlm.runs.writing import save_model, save_tuned, write_record
from kgmlm.signals.vector import Vector
from kgmlm.text.tokenization import load_tokenizer
from kgmlm.text.torch_model import load_model


def test_a_graph_survives_the_run_folder(toy: KnowledgeGraph, tmp_path: Path) -> None:
    write_graph(toy, tmp_path / "graph")
    copy = read_graph(tmp_path / "graph", "toy", {})
    assert list(copy.splits) == list(toy.splits)
    for split in toy.splits:
        assert np.array_equal(copy.splits[split], toy.splits[split])
        assert copy.labeled(copy.splits[split]) == toy.labeled(toy.splits[split])
    assert copy.entities.table.equals(toy.entities.table)


def test_a_moved_run_works(toy_run: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere" / "copy"
    shutil.copytree(toy_run, moved)
    run = open_folder(moved)
    text = "".join(p.read_text("utf-8", "ignore") for p in moved.rglob("*") if p.suffix in (".json", ".toml"))
    assert run.record["command"].count(str(toy_run)) == text.count(str(toy_run)) == 1, (
        "a record, not a path to use"
    )
    assert len(tuned_ranker(run, "cpu").reader.names) == len(run.graph.entities)


def test_a_new_model_has_no_second_stage_that_was_chosen_for_the_old_one(
    toy_run: Path, tmp_path: Path
) -> None:
    shutil.copytree(toy_run, tmp_path / "run")
    run = open_folder(tmp_path / "run")
    run = save_tuned(run, replace(run.tuned, stage_weights={"reverse": StageWeight(3, 1.0)}))
    assert run.tuned.stage_weights["reverse"] == StageWeight(3, 1.0)
    scores_digest = run.scores_digest
    run = save_model(run, tuned_ranker(run, "cpu", rerank=False))
    assert "reverse" not in open_folder(run.path).tuned.stage_weights
    assert run.scores_digest != scores_digest


def test_the_past_of_a_run_is_read_where_it_still_is(
    toy_run: Path, toy_vector_run: Path, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    shutil.copytree(toy_run, base)
    shutil.copytree(toy_run, tmp_path / "run")
    run = open_folder(tmp_path / "run")
    assert past_graphs(run) == ([], [])
    run = write_record(run, command="another")
    model = str(base / "model")
    run = write_record(run, model=model, began_from=began_from(model))
    (graph,), gone = past_graphs(run)
    assert graph.same(run.graph)
    assert gone == []
    shutil.rmtree(base)
    assert past_graphs(run) == ([], []), "the run has the triples of the built-in dataset, too"
    shutil.copytree(toy_vector_run, base)
    run = write_record(run, dataset="mine")
    assert past_graphs(run) == ([], ["toy"]), "another run is there now"
    shutil.rmtree(base)
    shutil.copytree(toy_run, base)
    assert len(past_graphs(run)[0]) == 1
    (base / "graph" / "triples.arrow").write_bytes(b"PAR1")
    assert past_graphs(run) == ([], ["toy"]), "what cannot be read cannot be checked"


def test_what_a_model_needs_is_missed(toy_vector_run: Path, tmp_path: Path) -> None:
    shutil.copytree(toy_vector_run, tmp_path / "run")
    run = open_folder(tmp_path / "run")
    with pytest.raises(ModelError, match="is a run; its model is"):
        load_tokenizer(run.path)
    with pytest.raises(ModelError, match="is a run; its model is"):
        load_model(run.path)
    vectors = run.path / Vector.file
    vectors.rename(tmp_path / "vectors")
    with pytest.raises(RunError, match=r"vectors.*is missing"):
        tuned_ranker(run, "cpu")
    (tmp_path / "vectors").rename(vectors)
    tuned_ranker(run, "cpu")
    for path in run.model_folder.glob("*token*"):
        path.unlink()
    with pytest.raises(RunError, match=r"token.* is missing; restore it"):
        tuned_ranker(run, "cpu")
    run = open_folder(without_digests(run.path))
    with pytest.raises(ModelError, match="has no tokenizer"):
        tuned_ranker(run, "cpu")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: shutil.rmtree(p), "does not exist"),
        (lambda p: (p / "run.json").unlink(), "is not a run folder"),
        (lambda p: (p / "run.json").write_text("{"), "is damaged"),
        (lambda p: (p / "run.json").write_text("{}"), "is damaged"),
        (lambda p: (p / "graph" / "triples.arrow").unlink(), r"triples\.arrow is missing"),
        (
            lambda p: (p / "graph" / "entities.arrow").write_bytes(b"x"),
            r"has 1 byte instead of the [\d,]+ ",
        ),
    ],
)
def test_a_damaged_run_is_one_sentence(toy_run: Path, tmp_path: Path, damage: object, message: str) -> None:
    copy = tmp_path / "run"
    shutil.copytree(toy_run, copy)
    damage(copy)  # type: ignore[operator]
    with pytest.raises(RunError, match=message) as caught:
        open_folder(copy)
    assert "\n" not in str(caught.value)


def test_a_newer_format_is_refused(toy_run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(toy_run, copy)
    record = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps({**record, "format": 99}))
    with pytest.raises(RunError, match="newer kgmlm"):
        open_folder(copy)


def test_a_run_without_a_model_says_how_to_go_on(toy_run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(toy_run, copy, ignore=shutil.ignore_patterns("model"))
    with pytest.raises(RunError, match="--resume"):
        tuned_ranker(open_folder(copy))


def test_a_file_is_no_run(tmp_path: Path) -> None:
    file = tmp_path / "renamed.zip"
    file.write_bytes(b"PK")
    with pytest.raises(
        RunError, match=r"renamed\.zip is a file, but no pack by its name, which would end in \.kgmlm"
    ):
        open_folder(file)
    with pytest.raises(RunError, match="the run is a path, not an int"):
        open_folder(3)  # type: ignore[arg-type]
