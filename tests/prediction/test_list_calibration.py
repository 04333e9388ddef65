"""Candidate lists: which queries are drawn, and what is fitted to them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from doubles import Hears

import kgmlm
from kgmlm.core.arrays import BoolArray
from kgmlm.core.config import TextSettings, VectorSettings
from kgmlm.core.errors import RunError
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import FilterIndex, Query, both_sides
from kgmlm.prediction import list_calibration
from kgmlm.prediction.list_calibration import drawn, fit_lists
from kgmlm.ranking.likely import TrueTriples
from kgmlm.ranking.predictor import Predictor
from kgmlm.ranking.ranker import Ranker, Use
from kgmlm.ranking.retrieval import Retrieval
from kgmlm.runs.index import build_index
from kgmlm.runs.opened import open_folder
from kgmlm.runs.writing import save_tuned


def askable(graph: KnowledgeGraph, *which: int) -> list_calibration.Askable:
    """Some entities can be asked for any relation and side."""
    found = np.zeros(len(graph.entities), np.bool_)
    found[list(which) or slice(None)] = True

    def of(relation: int, tails: bool) -> BoolArray:
        return found

    return of


def kinds(graph: KnowledgeGraph) -> tuple[set[int], set[int]]:
    """Keys of the queries that validation answers, and of those that training does."""
    index = FilterIndex(graph.splits["train"], len(graph.entities))
    valid = graph.splits["valid"]
    return (
        set(index.keys(both_sides(valid[~index.has(valid)])[0]).tolist()),
        set(index.keys(both_sides(graph.splits["train"])[0]).tolist()),
    )


def test_all_queries_are_drawn_where_there_are_few(toy: KnowledgeGraph) -> None:
    queries, weights, each = drawn(toy, askable(toy, 0, 1, 2), 0)
    keys = FilterIndex(toy.splits["train"], len(toy.entities)).keys(queries).tolist()
    answered, seen = kinds(toy)
    assert len(set(keys)) == len(keys)
    assert answered | seen <= set(keys)
    assert len(keys) - len(answered | seen) <= 3 * 2 * len(toy.relations)
    others = queries[np.array([key not in answered | seen for key in keys])]
    assert set(others.entity_B.tolist()) <= {0, 1, 2}
    assert set(weights.tolist()) == {1.0}
    assert each == 1


@pytest.mark.parametrize("most", [1, 3, 8])
def test_a_sample_stands_for_all_of_its_kind(toy: KnowledgeGraph, most: int) -> None:
    whole = drawn(toy, askable(toy), 0).queries
    index = FilterIndex(toy.splits["train"], len(toy.entities))
    answered, seen = kinds(toy)
    queries, weights, each = drawn(toy, askable(toy), most, seed=1)
    assert weights[0] == 1
    keys, all_keys = index.keys(queries).tolist(), index.keys(whole).tolist()
    assert len(set(keys)) == len(keys) < len(all_keys)

    def kind(key: int) -> int:
        return 0 if key in answered else 1 if key in seen else 2

    for which in range(3):
        of_kind = each * sum(w for key, w in zip(keys, weights.tolist(), strict=True) if kind(key) == which)
        assert of_kind == pytest.approx(sum(kind(key) == which for key in all_keys))


def test_a_share_of_the_entities_stands_for_a_large_graph(
    toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_calibration, "MOST_ENTITIES", 5)
    queries, weights, _ = drawn(toy, askable(toy), 0)
    answered, seen = kinds(toy)
    keys = FilterIndex(toy.splits["train"], len(toy.entities)).keys(queries).tolist()
    others = np.array([key not in answered | seen for key in keys])
    assert len(set(queries.entity_B[others].tolist())) <= 5
    assert set(weights[others].tolist()) == {len(toy.entities) / 5}


def test_as_many_true_triples_are_expected_as_there_are(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]
) -> None:
    found = fit_lists(make_ranker(), toy, drawn(toy, askable(toy), 0))
    (all_rows,) = [row for row in found.valid["held out"] if row["probability"] == 0.1][:1]
    assert found.valid["queries"] > found.valid["true"] > 0
    assert found.stages == {}
    assert len(found.mean) == len(toy.relations) + 1
    assert all_rows["candidates"] >= all_rows["validation"]
    assert found.truth == TrueTriples.hidden(found.validation, 1.0)


def test_nothing_is_fitted_to_what_training_has(toy: KnowledgeGraph) -> None:
    known = replace(toy, splits={**toy.splits, "valid": toy.splits["train"][:5]})
    with pytest.raises(RunError, match="validation triples that training has not"):
        drawn(known, askable(toy))


@pytest.fixture
def calibrated(toy_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("kgmlm.prediction.calibration.LEAST", 2)  # the toy graph has few validation triples
    path = shutil.copytree(toy_run, tmp_path / "run")
    before = kgmlm.open_run(path, device="cpu").rank(head="France", relation="capital", k=3)
    assert before["probability"].isna().all()
    figures = kgmlm.calibrate(path, progress=False)
    assert figures["lists"][0]["stages"] == []
    return path


def test_a_calibrated_run_says_how_probable_its_answers_are(calibrated: Path) -> None:
    run = kgmlm.open_run(calibrated, device="cpu")
    after = run.rank([("France", "capital", None), (None, "capital", "paris")], k=100)
    new = after[~after["probability"].isna()]
    assert len(new)
    for _, of_query in new.groupby(new["head"].fillna("")):
        assert (of_query["probability"].diff().dropna() <= 0).all()
    answers = FilterIndex(
        np.concatenate([run.graph.splits[split] for split in ("train", "valid")]), len(run.graph.entities)
    )
    resolver, index = run.resolver, run.graph.entities.index
    for row in after.to_dict("records"):
        head, tail = (row["entity"] if pd.isna(row[side]) else row[side] for side in ("head", "tail"))
        triple = np.array([[index[head], resolver.relation(row["relation"]), index[tail]]])
        none_is_fitted = bool(answers.has(triple)[0]) or not run.graph.seen_N[triple[0, [0, 2]]].all()
        assert bool(np.isnan(row["probability"])) == none_is_fitted
    assert (
        kgmlm.open_run(calibrated, device="cpu", scores="likelihood")
        .rank(head="France", relation="capital")["probability"]
        .isna()
        .all()
    ), "not of other scores"


def test_probabilities_of_earlier_weights_are_not_shown(calibrated: Path) -> None:
    assert open_folder(calibrated).lists
    file = calibrated / "model/probabilities.json"
    kept = json.loads(file.read_text())
    kept["chosen_for"]["likelihood"] = "another"
    file.write_text(json.dumps(kept))
    assert open_folder(calibrated).lists == ()
    kept["lists"] = [{"stages": 3}]
    file.write_text(json.dumps(kept))
    with pytest.raises(RunError, match="is damaged"):
        open_folder(calibrated).lists  # noqa: B018


def test_how_many_queries_a_sample_stands_for_does_not_change_the_fit(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]
) -> None:
    asked, ranker = drawn(toy, askable(toy), 0), make_ranker()
    one, ten = (fit_lists(ranker, toy, asked._replace(each=each)) for each in (1.0, 10.0))
    assert one.model_copy(update={"valid": {}}) == ten.model_copy(update={"valid": {}})
    assert ten.valid["candidates"] == pytest.approx(10 * one.valid["candidates"], rel=1e-3)


def test_an_index_that_finds_all_changes_nothing(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]
) -> None:
    pytest.importorskip("faiss")
    ranker = make_ranker(TextSettings(max_length=40), VectorSettings(enabled=True))
    asked, retrieval = drawn(toy, askable(toy), 0), Retrieval(build_index(ranker, toy), len(toy.entities))
    whole, found = (fit_lists(ranker, toy, asked, retrieval=index) for index in (None, retrieval))
    assert (whole.retrieve, found.retrieve) == (0, len(toy.entities))
    queries = [Query(e, r, "tail") for e in range(4) for r in range(2)]
    either = (Predictor(toy, ranker, index, lists) for index, lists in ((None, whole), (retrieval, found)))
    exact, indexed = ([p for _, of in one.predict(queries, 5) for p in of] for one in either)
    assert [p.id for p in indexed] == [p.id for p in exact]
    assert any(p.probability is not None for p in exact)
    for one, other in zip(indexed, exact, strict=True):
        assert (one.probability or 0) == pytest.approx(other.probability or 0, rel=0.02)


def test_an_entity_that_training_lacks_is_not_checked(calibrated: Path) -> None:
    new = pd.DataFrame([("atlantis", "Atlantis")], columns=["label", "name"])
    given = [("atlantis", "located_in", "Europe")]
    predictor = kgmlm.open_run(calibrated, device="cpu").with_entities(new, given).predictor
    query = predictor.resolver.query("capital", "atlantis", None)
    ((_, answers),) = predictor.predict([query], 3)
    assert all(p.probability is None and not p.checked for p in answers)
    assert answers[0].as_json()["checked"] is False


def test_each_way_of_ranking_has_its_own_probabilities(
    toy_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgmlm.prediction.calibration.LEAST", 2)  # the toy graph has few validation triples
    path = shutil.copytree(toy_run, tmp_path / "run")
    folder = open_folder(path)
    folder = save_tuned(folder, replace(folder.tuned, uses={"reverse": Use(5, 1.0)}))
    figures = kgmlm.calibrate(path, progress=False)
    assert [row["stages"] for row in figures["lists"]] == [[], ["reverse"]]

    def found(**options: Any) -> Any:
        return kgmlm.open_run(path, device="cpu", **options).predictor.lists

    assert found().stages == {"reverse": (5, 1.0)}
    assert found(rerank=0).stages == {}
    assert found(rerank=3) is None, "nothing is fitted to that"
    assert found(scores="likelihood") is None
    folder = open_folder(path)
    folder = save_tuned(folder, replace(folder.tuned, uses={"reverse": Use(4, 1.0)}))
    assert found() is None
    heard = Hears()
    kgmlm.open_run(path, device="cpu").rank(head="France", relation="capital", k=1, progress=heard)
    assert any("kgmlm calibrate" in line for line in heard.told)


def test_where_nothing_is_lacking_no_answer_is_probable(calibrated: Path) -> None:
    assert kgmlm.calibrate(calibrated, lacking=0, progress=False)["lists"] == []
    assert open_folder(calibrated).lists == ()
