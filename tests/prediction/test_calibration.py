"""Calibration: what is drawn and how likely it was, what is fitted to it, and one number everywhere."""

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
from doubles import FakeRanker, Hears

import kgmlm
from kgmlm.core.arrays import BoolArray
from kgmlm.core.errors import ConfigError, NoProbabilitiesError, RunError
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import FilterIndex, both_sides, distinct_triples
from kgmlm.prediction import drawing
from kgmlm.prediction.calibration import (
    LabeledList,
    fit,
    fit_balance,
    fit_regression,
    fitted,
    save_calibration,
)
from kgmlm.prediction.drawing import Askable, Sample, draw_queries, draw_sample, rates
from kgmlm.prediction.listing import read_list
from kgmlm.ranking.probability import FEATURES, SIDES, STATES, AskedTriples, expit, states_of
from kgmlm.ranking.ranker import Ranker, StageWeight
from kgmlm.runs.opened import open_folder
from kgmlm.runs.writing import save_tuned

RELATIONS = 3


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "MIN_TRIPLES", 2)  # the toy graph has few validation triples


def askable(graph: KnowledgeGraph, *which: int) -> Askable:
    """Some entities can be asked for any relation and side."""
    mask = np.zeros(len(graph.entities), np.bool_)
    mask[list(which) or slice(None)] = True

    def of(relation: int, tails: bool) -> BoolArray:
        return mask

    return of


def valid_of(graph: KnowledgeGraph) -> np.ndarray:
    valid = distinct_triples(graph.splits["valid"])
    return valid[~graph.context.answers.has(valid)]


def test_all_questions_are_drawn_where_there_are_few(toy: KnowledgeGraph) -> None:
    valid = valid_of(toy)
    drawn_queries = draw_queries(toy, valid, valid, askable(toy, 0, 1, 2), 0)
    index = FilterIndex(toy.splits["train"], len(toy.entities))
    keys = index.keys(drawn_queries.queries).tolist()
    answered = {key for split in ("train", "valid") for key in index.keys(both_sides(toy.splits[split])[0])}
    assert len(set(keys)) == len(keys)
    assert answered <= set(keys)
    others = drawn_queries.queries[np.array([key not in answered for key in keys])]
    assert set(others.entity_B.tolist()) <= {0, 1, 2}
    states = states_of(drawn_queries.queries, toy.context.answers, toy.seen_N)
    none = np.zeros(len(keys), np.bool_)
    assert drawn_queries.chances(drawn_queries.queries, states, index, none)[0].tolist() == [1.0] * len(keys)


@pytest.mark.parametrize("most", [1, 3, 8])
def test_a_question_is_drawn_as_often_as_its_chance_says(toy: KnowledgeGraph, most: int) -> None:
    valid = valid_of(toy)
    index, can = FilterIndex(toy.splits["train"], len(toy.entities)), askable(toy, *range(0, 20, 2))
    whole = draw_queries(toy, valid, valid, can, 0).queries
    states, none = states_of(whole, index, toy.seen_N), np.zeros(len(whole), np.bool_)
    drawn, expected = np.zeros(len(whole)), np.zeros(len(whole))
    keys, times = index.keys(whole), 200
    for seed in range(times):
        rng = np.random.default_rng([7, seed])
        own = valid[rng.choice(len(valid), min(most, len(valid)), replace=False)]
        drawn_queries = draw_queries(toy, own, valid, can, most, seed)
        drawn += np.isin(keys, index.keys(drawn_queries.queries))
        expected += drawn_queries.chances(whole, states, index, none)[0]
    # a question with two of few validation triples is drawn a little more often than of a long split
    answered, counts = np.unique(index.keys(both_sides(valid)[0]), return_counts=True)
    several = np.isin(keys, answered[counts > 1])
    for some in (~several & (states == state) for state in range(len(STATES))):
        error = 5 * np.sqrt(times / 4 / max(1, some.sum())) + 1e-9
        assert abs(drawn[some].mean() - expected[some].mean()) < error if some.any() else True


def test_a_share_of_the_entities_stands_for_a_large_graph(
    toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "MAX_ENTITIES", 5)
    valid = valid_of(toy)
    drawn_queries = draw_queries(toy, valid, valid, askable(toy), 0)
    assert drawn_queries.share_SE[:, STATES.index("unanswered")].max() <= 5 / len(toy.entities) + 1e-9


def test_weights_of_drawn_triples_add_up_to_all(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is drawn stands for each triple that a question can list, no matter how few are drawn."""
    monkeypatch.setattr(drawing, "TOP", 5)
    ranker, count = make_ranker(), len(toy.entities)
    whole = draw_sample(ranker, toy, askable(toy), most=0)
    possible = 0
    for r in range(len(toy.relations)):
        for h in range(count):
            for t in range(count):
                own = ranker.possible.loop_free_R[r] and h == t
                possible += not own and not toy.context.answers.has(np.array([[h, r, t]]))[0]
    sums = []
    for seed in range(20):
        sample = draw_sample(ranker, toy, askable(toy), most=3, seed=seed)
        assert sample.weights[sample.labels].sum() == pytest.approx(whole.labels.sum())
        sums.append(sample.weights[~sample.labels].sum() + whole.labels.sum())
    assert np.mean(sums) == pytest.approx(possible, rel=0.3)


def test_no_known_triple_is_drawn(toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]) -> None:
    sample = draw_sample(make_ranker(), toy, askable(toy), most=4)
    false = sample.triples[~sample.labels]
    for split in ("train", "valid"):
        assert not FilterIndex(toy.splits[split], len(toy.entities)).has(false).any()
    assert sample.labels.sum() == 4
    assert FilterIndex(toy.splits["valid"], len(toy.entities)).has(sample.triples[sample.labels]).all()
    assert len(distinct_triples(sample.triples)) == len(sample.triples)


def test_a_question_that_training_answers_in_full_lists_nothing(toy: KnowledgeGraph) -> None:
    count = len(toy.entities)
    every = np.array([(0, 0, t) for t in range(count)])
    full = replace(toy, splits={**toy.splits, "train": np.concatenate([toy.splits["train"], every])})
    sample = draw_sample(FakeRanker(count, "tied"), full, askable(full), most=0)
    assert not ((sample.triples[:, 0] == 0) & (sample.triples[:, 1] == 0)).any()


def test_better_candidates_are_drawn_more_often() -> None:
    softmax, rank = np.array([0.5, 0.1, 0.1, 0.0]), np.array([1.0, 2.0, 3.0, 5000.0])
    rate = rates(softmax, rank, 10_000, 1.0)
    assert (np.diff(rate) < 0).all()
    assert rates(softmax, rank, 10_000, 1e6).tolist() == [1.0] * 4


def test_nothing_is_fitted_to_what_training_has(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]
) -> None:
    known = replace(toy, splits={**toy.splits, "valid": toy.splits["train"][:5]})
    with pytest.raises(NoProbabilitiesError, match="validation triples that training has not"):
        draw_sample(make_ranker(), known, askable(known))


def made(seed: int, n: int = 40_000, slope: float = 2.0) -> tuple[Sample, np.ndarray]:
    """Triples whose probability of being true is known: half of the true ones are in validation, and of the
    others few are drawn.
    """
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, len(SIDES), len(FEATURES)))
    states, relations = rng.integers(0, 2, (n, 2)), rng.integers(0, RELATIONS, n)
    true = expit(slope * features[:, 0, 0] + features[:, 1, 2] - 4 + states[:, 0] + 0.5 * relations)
    labels = rng.random(n) < 0.5 * true
    chances = np.where(features[:, 0, 0] > 1, 0.5, 0.05)
    kept = labels | (rng.random(n) < chances)
    asked = AskedTriples(features, states, relations)[kept]
    triples = np.stack([np.arange(n), relations, np.arange(n)[::-1]], 1)[kept]
    sample = Sample(
        triples, asked, labels[kept], chances[kept], chances[kept], np.ones(kept.sum(), np.bool_), 1.0,
        np.zeros((RELATIONS, 3)),
    )  # fmt: skip
    return sample, true[kept]


def test_known_probabilities_are_found_again() -> None:
    sample, true = made(0)
    result = expit(fit_regression(sample, RELATIONS, 0.5).log_odds(sample.asked))
    weights = sample.weights
    assert np.average(np.abs(result - true), weights=weights) < 0.05
    for least in (0.1, 0.5, 0.8):
        some = true >= least
        assert np.average(result[some], weights=weights[some]) == pytest.approx(
            np.average(true[some], weights=weights[some]), rel=0.1
        )


def test_as_many_triples_are_expected_as_there_are() -> None:
    sample, _ = made(1)
    fitted_to, figures = fit(sample, RELATIONS, 100, 1.0)
    for row in figures["held_out"][:3]:
        assert row["expected"] == pytest.approx(row["validation"], rel=0.15)
    assert figures["half"]["accuracy"] > 0.7
    assert figures["triples"] == sample.labels.sum()
    assert fitted_to.validation == 100
    assert not fitted_to.knows_new


def test_in_a_list_of_which_half_is_true_the_average_is_a_half() -> None:
    sample, _ = made(2)
    log_odds = fit_regression(sample, RELATIONS, 0.5).log_odds(sample.asked)
    triples = LabeledList.of(sample, log_odds, None)
    half = expit(triples.log_odds + fit_balance(triples, RELATIONS)[triples.relations])
    for labels in (triples.labels, ~triples.labels):
        assert triples.weights[labels].sum() == pytest.approx(0.5)
    assert np.average(half, weights=triples.weights) == pytest.approx(0.5, abs=0.02)


def test_what_files_say_is_false_is_taken_for_false() -> None:
    sample, _ = made(3)
    triples = np.array([(1, 0, 2), (3, 1, 4), (5, 2, 6)])
    of_files = LabeledList.of(
        replace(sample, false=(triples, sample.asked[np.arange(3)])), np.zeros(len(sample.labels)), np.ones(3)
    )
    assert (~of_files.labels).sum() == 3
    assert of_files.log_odds[~of_files.labels].tolist() == [1, 1, 1]
    assert of_files.weights.sum() == pytest.approx(1)


# --- one number -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def calibrated(toy_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = shutil.copytree(toy_run, tmp_path_factory.mktemp("calibrated") / "run")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(drawing, "MIN_TRIPLES", 2)
        before = kgmlm.open_run(path, device="cpu").rank(head="France", relation="capital", k=3)
        assert before["probability"].isna().all()
        figures = kgmlm.calibrate(path, progress=False)
    assert figures["triples"] >= 2
    return path


def test_a_fact_has_one_probability(calibrated: Path, tmp_path: Path) -> None:
    """The list, both questions, other options of ranking, and classification give the same number."""
    file = tmp_path / "new.parquet"
    kgmlm.complete(calibrated, file, min_probability=0.0, known=["train", "valid"], progress=False)
    rows = read_list(file)[0].to_pylist()[:10]
    assert len(rows) == 10
    run = kgmlm.open_run(calibrated, device="cpu")
    typed = kgmlm.open_run(calibrated, device="cpu", functional=True, rerank=0)
    given = kgmlm.classify(run, [(x["head"], x["relation"], x["tail"]) for x in rows], progress=False)
    for row, classified in zip(rows, given.as_json(), strict=True):
        numbers = [row["probability"], classified["probability"]]
        for opened, side in ((run, "tail"), (run, "head"), (typed, "tail")):
            ends = {end: row[end] for end in ("head", "tail") if end != side}
            table = opened.rank(**ends, relation=row["relation"], k=1000)
            numbers += table[table[f"{side}_label"] == row[side]]["probability"].tolist()
        assert len(numbers) >= 4
        assert numbers == pytest.approx([numbers[0]] * len(numbers), abs=1e-5)


def test_known_triples_and_new_entities_have_none(calibrated: Path) -> None:
    run = kgmlm.open_run(calibrated, device="cpu")
    table = run.rank([("France", "capital", None), (None, "capital", "paris")], k=100)
    answers = FilterIndex(
        np.concatenate([run.graph.splits[split] for split in ("train", "valid")]), len(run.graph.entities)
    )
    index, resolver = run.graph.entities.index, run.resolver
    for row in table.to_dict("records"):
        head, tail = (row["entity"] if pd.isna(row[side]) else row[side] for side in ("head", "tail"))
        triple = np.array([[index[head], resolver.relation(row["relation"]), index[tail]]])
        has_none = bool(answers.has(triple)[0]) or not run.graph.seen_N[triple[0, [0, 2]]].all()
        assert bool(np.isnan(row["probability"])) == has_none
    for options in ({"scores": "likelihood"}, {"probabilities": False}):
        other = kgmlm.open_run(calibrated, device="cpu", **options)
        assert other.rank(head="France", relation="capital")["probability"].isna().all()
    new = pd.DataFrame([("atlantis", "Atlantis")], columns=["label", "name"])
    predictor = run.with_entities(new, [("atlantis", "located_in", "Europe")]).predictor
    ((_, answered),) = predictor.predict([predictor.resolver.query("capital", "atlantis", None)], 3)
    assert all(p.probability is None and not p.checked for p in answered)
    assert answered[0].as_json()["checked"] is False


def test_probabilities_of_another_state_are_refused(calibrated: Path, tmp_path: Path) -> None:
    path = shutil.copytree(calibrated, tmp_path / "run")
    assert open_folder(path).calibration is not None
    file = path / "model/probabilities.json"
    whole = file.read_bytes()
    kept = json.loads(whole)
    for change, words in (
        ({"chosen_for": {**kept["chosen_for"], "likelihood": "another"}}, "fitted for the likelihood"),
        ({"lacking": -1}, "damaged"),
        ({"mean": kept["mean"][1:]}, "damaged"),
        ({"further": 1}, "damaged"),
    ):
        file.write_text(json.dumps({**kept, **change}))
        with pytest.raises(RunError, match=words) as error:
            assert open_folder(path).calibration
        assert "kgmlm calibrate" in str(error.value)
    file.write_bytes(b"{")
    with pytest.raises(RunError, match="damaged"):
        assert open_folder(path).calibration
    file.write_bytes(whole)
    folder = open_folder(path)
    folder = save_tuned(folder, replace(folder.tuned, stage_weights={"trees": StageWeight(0, 0.0)}))
    with pytest.raises(RunError, match="fitted for the"):
        assert folder.calibration
    heard = Hears()
    table = kgmlm.open_run(path, device="cpu", rerank=0).rank(
        head="France", relation="capital", k=1, progress=heard
    )
    assert table["probability"].isna().all()
    assert any("kgmlm calibrate" in line for line in heard.told)


def test_a_calibration_is_read_as_it_was_saved(calibrated: Path) -> None:
    folder = open_folder(calibrated)
    one = fitted(folder, most=3, lacking=2.0)
    save_calibration(folder, one)
    again = open_folder(calibrated).calibration
    assert again == one
    assert again is not None
    assert again.lacking == 2
    kgmlm.calibrate(calibrated, progress=False)


def test_too_little_validation_is_said(toy_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "MIN_TRIPLES", 1000)
    with pytest.raises(NoProbabilitiesError, match="at least 1000 validation triples"):
        fitted(open_folder(toy_run))


@pytest.mark.parametrize("lacking", [0, -1, float("inf")])
def test_the_hidden_set_has_a_size(calibrated: Path, lacking: Any) -> None:
    with pytest.raises(ConfigError, match="--lacking is a number above 0"):
        kgmlm.calibrate(calibrated, lacking=lacking, progress=False)
