"""The table at the end of a training, and the commands that it names."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doubles import Hears
from trainings import TINY, arguments

import kgmlm
from kgmlm.core.config import Protocol
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.graphs.graph import KnowledgeGraph, Validation
from kgmlm.graphs.queries import Queries
from kgmlm.graphs.splits import New
from kgmlm.runs.opened import open_folder
from kgmlm.runs.writing import write_record
from kgmlm.training.summary import COUNTING, Counting, Figure, counted, following, stood_for, summary

FIGURES = {
    "text": {
        "mrr": 0.31,
        "half": 0.02,
        "mrr_likelihood": 0.3,
        "half_likelihood": 0.03,
        "mrr_vector": 0.2,
        "half_vector": 0.04,
    },
    "kge": {"mrr": 0.35, "half": 0.02, "mrr_kge": 0.25, "half_kge": 0.05, "mrr_text": 0.31},
    "types": {"mrr": 0.4, "half": 0.021, "mrr_types": 0.1, "half_types": 0.06, "mrr_text": 0.35},
    "linked": {"mrr": 0.4, "half": 0.021, "mrr_linked": 0.01, "half_linked": 0.001, "mrr_text": 0.4},
    "reverse": {"mrr": 0.42, "k": 10},
}


def test_a_table_has_all_signals_each_alone_and_counting() -> None:
    head, *rows = summary(FIGURES, 1234, Figure(COUNTING, 0.15, 0.01))
    assert head == "validation MRR of 1,234 triples, with 95 % intervals:"
    assert [row.split(maxsplit=4 if row.split()[0] == "counting" else -1) for row in rows] == [
        ["all", "signals", "0.400", "±", "0.021"],
        ["likelihood", "0.300", "±", "0.030"],
        ["kge", "0.250", "±", "0.050"],
        ["vector", "0.200", "±", "0.040"],
        ["types", "0.100", "±", "0.060"],
        ["counting", "answers", "in", "training", "0.150 ± 0.010"],
    ]
    assert len({len(row) for row in rows}) == 1, "figures stand below each other"


@pytest.mark.parametrize(("counting", "weak"), [(0.309, False), (0.31, True), (0.5, True)])
def test_a_text_that_is_no_better_than_counting_is_told(counting: float, weak: bool) -> None:
    assert ("no better than counting" in summary(FIGURES, 100, Figure(COUNTING, counting, None))[-1]) == weak


def test_one_signal_is_a_table_too() -> None:
    rows = summary({"rules": {"mrr": 0.2, "half": 0.1}}, 10, Figure(COUNTING, 0.3, 0.1))
    assert [row.split()[0] for row in rows[1:]] == ["all", "rules", "counting"]
    assert "no better" not in rows[-1], "there is no masked LM"


def test_counting_goes_by_training_alone(toy: KnowledgeGraph) -> None:
    scores_BN = Counting(toy).score(Queries(np.array([0, 0]), np.array([1, 1]), np.array([True, False])))
    train = np.unique(toy.splits["train"], axis=0)
    train = train[train[:, 1] == 1]
    for row, column in ((0, 2), (1, 0)):
        expected = np.bincount(train[:, column], minlength=len(toy.entities))
        assert scores_BN[row].tolist() == expected.tolist()
    evaluation = evaluate(Counting(toy), toy, Protocol(split="valid"))
    assert counted(toy).mrr == pytest.approx((1 / evaluation.ranks.of_type("realistic")).mean())


@pytest.mark.parametrize(
    ("drawn", "middle"),
    [
        (None, ""),
        ("newest", ", the newest before test"),
        ("entities", ", drawn by entities that training has not"),
    ],
)
def test_it_is_said_what_validation_stood_for(
    toy: KnowledgeGraph, drawn: Validation | None, middle: str
) -> None:
    valid = toy.splits["valid"]
    known = stood_for(replace(toy, validation=drawn))
    assert known == f"validation was {len(valid):,} triples{middle}: all between known entities"
    gone = (toy.splits["train"][:, [0, 2]] == valid[0, 0]).any(1)
    new = replace(toy, splits={**toy.splits, "train": toy.splits["train"][~gone]}, validation=drawn)
    of = New.of(new, "valid")
    assert stood_for(new).endswith(
        f"{of.known:,} between known entities, {of.one + of.both:,} with a new one"
    )
    assert of.one + of.both > 0


def test_the_next_commands_name_what_there_is(toy_run: Path) -> None:
    run = open_folder(toy_run)
    rank, completing, evaluating = following(run)
    assert shlex.split(completing)[:3] == ["kgmlm", "complete", str(run.path)]
    words = shlex.split(rank)
    assert words[:3] == ["next:", "kgmlm", "rank"]
    entity = words[words.index("--head") + 1]
    graph = run.graph
    h = int(graph.splits["valid"][0, 0])
    assert entity in (graph.entities[h].surface, graph.entities[h].label)
    assert shlex.split(evaluating)[:3] == ["kgmlm", "evaluate", str(run.path)]
    vars(run)["graph"] = replace(graph, splits={k: v for k, v in graph.splits.items() if k != "test"})
    assert following(run)[-1].endswith("--split valid")


def test_a_graph_without_validation_has_some_held_out(
    toy: KnowledgeGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgmlm.prediction.drawing.MIN_TRIPLES", 2)  # there are few
    alone, heard = replace(toy, splits={"train": toy.splits["train"]}), Hears()
    small = {key: value for key, value in TINY.items() if key != "preset"}
    given: dict[str, Any] = {**small, "epochs": 2, "preset": "quick", "progress": heard}
    run = kgmlm.train(alone, "scratch", tmp_path / "run", **arguments(**given))
    held = len(run.graph.splits["valid"])
    assert held == round(0.25 * len(toy.splits["train"])), "of a small graph more than a tenth"
    assert (
        f"no validation triples: {held:,} of {len(alone.splits['train']):,} training triples" in heard.told[1]
    )
    assert open_folder(run.path).calibration is not None, "probabilities are fitted"
    assert any(line.startswith(f"validation MRR of {held:,} triples") for line in heard.told)
    assert f"validation was {held:,} triples, drawn at random: all between known entities" in heard.told
    assert heard.told[-3].startswith(f"next: kgmlm rank {run.path} --head ")
    bare = kgmlm.train(alone, "scratch", tmp_path / "bare", **arguments(**given), holdout=False)
    assert not bare.graph.has("valid")
    assert bare.folder.record["recipe"]["stages"] == ["text"]


def test_probabilities_are_left_out_where_asked_and_fitted_when_resumed(
    toy: KnowledgeGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgmlm.prediction.drawing.MIN_TRIPLES", 2)  # there are few
    small = {key: value for key, value in TINY.items() if key != "preset"}
    given: dict[str, Any] = {**small, "epochs": 1, "preset": "quick", "progress": False}
    run = kgmlm.train(toy, "scratch", tmp_path / "run", **arguments(**given), calibrate=False)
    assert "calibration" not in run.folder.record["recipe"]["stages"]
    file = run.path / "model" / "probabilities.json"
    assert not file.exists()
    recipe = run.folder.record["recipe"]
    write_record(run.folder, recipe={**recipe, "stages": [*recipe["stages"], "calibration"]})
    kgmlm.train(output=run.path, resume=True, progress=False)
    assert file.exists()
    made = file.stat().st_mtime_ns
    heard = Hears()
    kgmlm.train(output=run.path, resume=True, progress=heard)
    assert heard.told[-1].endswith("nothing to resume")
    assert file.stat().st_mtime_ns == made


def test_held_out_triples_of_a_small_graph_are_given_back_to_answers_alone(
    toy: KnowledgeGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgmlm.prediction.drawing.MIN_TRIPLES", 2)  # there are few
    alone = replace(toy, splits={"train": toy.splits["train"]})
    small = {key: value for key, value in TINY.items() if key != "preset"}
    given: dict[str, Any] = {**small, "epochs": 2, "preset": "quick", "progress": False}
    run = kgmlm.train(alone, "scratch", tmp_path / "run", **arguments(**given))
    assert run.folder.record["given_back"] is True
    own, answers = run.graph, run.predictor.graph
    held = own.labeled(own.triples("valid"))
    assert not set(held) & set(own.labeled(own.triples("train")))
    assert set(held) <= set(answers.labeled(answers.triples("train")))
    assert run.predictor.ranker.context.train.shape == answers.triples("train").shape
    before = open_folder(run.path).tuned
    report = kgmlm.evaluate(run.path, split="valid", progress=False).metrics["both.realistic.count"]
    assert report == 2 * len(held), "what is measured on them asks them"
    kgmlm.tune(run.path, progress=False)
    after = open_folder(run.path).tuned
    for name, table in before.mixture.tables.items():
        assert after.mixture.tables[name] == pytest.approx(table, rel=1e-3), "weights are fitted without them"
    listed = kgmlm.complete(run.path, tmp_path / "new.parquet", progress=False)
    assert not {tuple(row[end] for end in ("head", "relation", "tail")) for row in listed["best"]} & set(held)


def test_validation_of_files_is_never_given_back(toy: KnowledgeGraph, tmp_path: Path) -> None:
    run = kgmlm.train(
        toy, "scratch", tmp_path / "run", **arguments(**{**TINY, "epochs": 1, "progress": False})
    )
    assert not run.folder.record.get("given_back")
    assert len(run.predictor.graph.triples("train")) == len(toy.triples("train"))
