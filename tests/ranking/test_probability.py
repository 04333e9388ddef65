"""The probability of a triple: what it is compared with, from both sides, and what is made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from doubles import FakeRanker
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kgmlm.core.arrays import FloatArray, IntArray
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import FilterIndex, Queries, Query
from kgmlm.ranking.constraints import IMPOSSIBLE
from kgmlm.ranking.probability import (
    FEATURES,
    SIDES,
    STATES,
    UNSCALED,
    AskedTriples,
    Calibration,
    Regression,
    TripleClassifier,
    ask,
    beta_calibrated,
    compared,
    competing,
    expit,
    left,
    moved,
    states_of,
)
from kgmlm.ranking.ranker import Ranker

RELATIONS = 3
NOTHING = np.zeros((0, 3), np.int64)


def regression(seed: int = 0) -> Regression:
    rng = np.random.default_rng(seed)
    columns, pairs = len(SIDES) * len(FEATURES), len(STATES) ** 2
    return Regression(
        rng.normal(size=(RELATIONS + 1, columns)),
        0.5 + rng.random((RELATIONS + 1, columns)),
        rng.normal(size=(RELATIONS + 1, pairs)),
        rng.normal(size=(pairs, columns)),
        rng.normal(size=(RELATIONS + 1, columns)),
    )


def calibration(**change: Any) -> Calibration:
    tables = {
        name: tuple(values.tolist() if values.ndim == 1 else map(tuple, values.tolist()))
        for name, values in vars(regression()).items()
    }
    values = {
        "lacking": 1.0, "validation": 40, "new": 0, "balance": (1.0, 2.0, 3.0, 4.0), "chosen_for": {},
        "chosen_by": {}, **tables,
    }  # fmt: skip
    return Calibration.model_validate({**values, **change})


def features_by_hand(scores: list[float], others: list[int], candidate: int) -> FloatArray:
    """What is said of a candidate beside others, one by one."""
    rest = [scores[i] for i in others if i != candidate]
    own = scores[candidate]
    rank = 1 + sum(x > own for x in rest) + sum(x == own for x in rest) / 2
    total = np.log(sum(np.exp(x) for x in [*rest, own]))
    return np.array(
        [own, own - total, own - max(rest, default=own), np.log(rank), np.log(rank) ** 2, 1 / rank]
    )


@given(seed=st.integers(0, 10**6), count=st.integers(1, 9))
def test_a_candidate_is_compared_with_all_others_that_compete(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    scores_1N = rng.integers(-3, 3, (1, count)).astype(np.float32)
    taken = np.flatnonzero(rng.random(count) < 0.3)
    kept, others_1N = competing(scores_1N, (np.zeros(len(taken), np.int64), taken))
    ids = np.arange(count)
    comparison = compared(kept, others_1N, np.zeros(count, np.int64), ids)
    others = [i for i in ids.tolist() if i not in taken]
    for i in ids.tolist():
        by_hand = features_by_hand(scores_1N[0].tolist(), others, i)
        np.testing.assert_allclose(comparison[i], by_hand, atol=1e-5)


def test_what_cannot_answer_competes_with_nobody_and_is_as_good_as_the_worst() -> None:
    scores_1N = np.array([[2.0, IMPOSSIBLE, 1.0]], np.float32)
    none = (np.zeros(0, np.int64), np.zeros(0, np.int64))
    kept, others = competing(scores_1N, none)
    assert kept.tolist() == [[2.0, 1.0, 1.0]]
    assert others.tolist() == [[2.0, -np.inf, 1.0]]


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_a_triple_is_asked_for_from_both_sides(toy: KnowledgeGraph, batch_size: int) -> None:
    scorer, train = FakeRanker(len(toy.entities), "tied"), toy.splits["train"]
    known = FilterIndex(train, len(toy.entities))
    triples = np.concatenate([toy.splits["test"], train[:3]])
    asked = ask(scorer, triples, known, toy.seen_N, batch_size)
    for n, (h, r, t) in enumerate(triples.tolist()):
        for side, (query, candidate) in enumerate(((Query(h, r, "tail"), t), (Query(t, r, "head"), h))):
            queries = Queries.of([query])
            (scores,) = scorer.score(queries).tolist()
            answers = set(known.lookup(queries)[1].tolist())
            others = [i for i in range(len(scores)) if i not in answers]
            by_hand = features_by_hand(scores, others, candidate)
            np.testing.assert_allclose(asked.features[n, side], by_hand, atol=1e-4)
            state = "answered" if answers else "unanswered" if toy.seen_N[query.entity] else "new"
            assert STATES[asked.states[n, side]] == state
    assert asked.relations.tolist() == triples[:, 1].tolist()


def test_entities_beyond_those_of_training_are_new(toy: KnowledgeGraph) -> None:
    count = len(toy.entities)
    known = FilterIndex(toy.splits["train"], count + 1)
    queries = Queries.of([Query(count, 0, "tail"), Query(int(toy.splits["train"][0, 0]), 0, "head")])
    assert STATES[states_of(queries, known, toy.seen_N)[0]] == "new"
    assert STATES[states_of(queries, known, np.zeros(count, np.bool_))[1]] == "new"


def some_asked(n: int = 20, seed: int = 1) -> AskedTriples:
    rng = np.random.default_rng(seed)
    return AskedTriples(
        rng.normal(size=(n, len(SIDES), len(FEATURES))), rng.integers(0, len(STATES), (n, 2)),
        rng.integers(0, RELATIONS + 1, n),
    )  # fmt: skip


def test_log_odds_are_the_sum_of_their_parts() -> None:
    asked, fitted = some_asked(), regression()
    intercepts, added = fitted.parts(asked)
    np.testing.assert_allclose(fitted.log_odds(asked), intercepts + added.sum(1))
    for n in range(len(asked)):
        r, e = asked.relations[n], asked.pairs[n]
        x = (asked.features[n].ravel() - fitted.mean[r]) / fitted.deviation[r]
        by_hand = fitted.intercepts[r, e] + x @ (fitted.weights[e] + fitted.of_relation[r])
        assert fitted.log_odds(asked)[n] == pytest.approx(by_hand)


def test_beta_calibration_moves_the_likely_and_the_unlikely_apart() -> None:
    odds = np.array([-6.0, -1.0, 0.0, 1.0, 6.0])
    np.testing.assert_allclose(beta_calibrated(odds, np.array(UNSCALED)), odds, atol=1e-12)
    p = expit(odds)
    np.testing.assert_allclose(
        beta_calibrated(odds, np.array([0.5, 2.0, 0.25])), 0.5 + 2 * np.log(p) - 0.25 * np.log(1 - p)
    )
    humble = beta_calibrated(odds, np.array([0.0, 1.0, 0.01]))
    assert (np.diff(humble) > 0).all(), "the order stays"
    assert humble[0] == pytest.approx(odds[0], abs=0.01)
    assert humble[-1] < 0.1, "none is more probable than a half"


def test_parts_of_triples_are_joined_and_replaced() -> None:
    one, other = some_asked(3), some_asked(2, seed=5)
    joined = AskedTriples.joined(one, other)
    assert len(joined) == 5
    rows = np.array([True, False, True, False, False])
    put = AskedTriples.unasked(5).replaced(rows, other)
    np.testing.assert_array_equal(put[rows].features, other.features)
    assert np.isnan(put[~rows].features).all()


@given(true=st.floats(0.001, 0.999), lacking=st.floats(0.1, 10))
def test_what_validation_lacks_is_less_probable_than_what_is_true(true: float, lacking: float) -> None:
    """By counting: of many such triples validation takes its share of the true ones away."""
    of_validation = true / (1 + lacking)
    expected = (true - of_validation) / (1 - of_validation)
    assert left(np.array([true]), lacking)[0] == pytest.approx(expected)


def test_a_prior_moves_odds() -> None:
    at_half = moved(np.array([0.2, 0.7]), np.array([1.0, 1.0]), 0.5)
    rare = moved(np.array([0.2, 0.7]), np.array([1.0, 1.0]), 0.01)
    np.testing.assert_allclose(rare / (1 - rare), at_half / (1 - at_half) / 99)


def test_a_calibration_says_what_it_stands_for() -> None:
    assert "expect 20 among the next 40 facts" in calibration().stands_for("newest")
    assert "40 hidden facts, as many as validation has" in calibration().stands_for("random")
    assert "80 hidden facts, 2 times as many" in calibration(lacking=2.0).stands_for(None)


@pytest.mark.parametrize(
    "change",
    [
        {"lacking": 0.0}, {"validation": 0}, {"deviation": ((0.0,) * 12,) * 4}, {"balance": (1.0,)},
        {"mean": ()}, {"weights": ((1.0,) * 12,) * 8}, {"intercepts": ((float("nan"),) * 9,) * 4},
        {"further": 1},
    ],
)  # fmt: skip
def test_tables_that_do_not_fit_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        calibration(**change)


def test_new_entities_have_a_probability_where_validation_had_some(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]
) -> None:
    seen_N = toy.seen_N.copy()
    seen_N[4] = False
    rows = np.zeros(len(toy.relations), np.int64)
    triples = np.array([(4, 0, 9), (1, 0, 9)])
    for count, is_number in ((0, False), (20, True)):
        fitted = calibration(new=count)
        classifier = TripleClassifier.of(make_ranker(), fitted, rows, seen_N, NOTHING)
        asked = classifier.ask(triples)
        assert asked.has_new.tolist() == [True, False]
        assert np.isfinite(classifier.probabilities(asked)).tolist() == [is_number, True]


def test_what_validation_answers_is_answered(toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]) -> None:
    """Once a fact is known, another one of the same entity and relation is less likely than the first was."""
    train = [(1, 0, 9), (2, 0, 9), (3, 1, 8)]
    graph = replace(toy, splits={"train": np.array(train)})
    validation = np.array([(5, 0, 9), (3, 0, 8)])
    classifier = TripleClassifier.of(
        make_ranker().for_graph(graph.context),
        calibration(new=20),
        np.zeros(len(toy.relations), np.int64),
        graph.seen_N,
        validation,
    )
    asked = np.array([(5, 0, 8), (5, 1, 9), (5, 0, 9), (3, 0, 9), (6, 0, 4)])

    def named(states: IntArray) -> list[tuple[str, ...]]:
        return [tuple(STATES[state] for state in of_both) for of_both in states.tolist()]

    expected = [
        ("answered", "answered"),
        ("unanswered", "unanswered"),
        ("new", "answered"),  # nothing else of 5 is known; training has other heads of 9
        ("answered", "answered"),
        ("new", "new"),
    ]
    assert named(classifier.states(asked)) == expected
    assert named(classifier.ask(asked).states) == expected
    nobody = classifier.without_validation()
    assert named(nobody.states(asked))[:4] == [
        ("new", "unanswered"),
        ("new", "unanswered"),
        ("new", "answered"),
        ("unanswered", "answered"),
    ]


def test_a_relation_that_the_run_does_not_know_is_an_average_one(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]
) -> None:
    ranker = make_ranker()
    triples = np.array([(1, 0, 9)])
    rows = (np.full(len(toy.relations), row) for row in (-1, RELATIONS + 7))
    one, other = (TripleClassifier.of(ranker, calibration(), row, toy.seen_N, NOTHING) for row in rows)
    assert one.ask(triples).relations.tolist() == [RELATIONS] == other.ask(triples).relations.tolist()
    assert one.probabilities(one.ask(triples)) == other.probabilities(other.ask(triples))
