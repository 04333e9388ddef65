"""Lists of the best candidates of validation: their ranks, and halves measured by what the other chose."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kgmlm.core.arrays import Floats, IntArray
from kgmlm.core.config import Protocol, VectorSettings
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.ranker import Ranker
from kgmlm.training import second_stages
from kgmlm.training.candidate_lists import CandidateLists, ListQueries, read_lists
from kgmlm.training.weights import validation_task

VALID = Protocol(split="valid")


@pytest.fixture
def ranker(make_ranker: Callable[..., Ranker]) -> Ranker:
    return make_ranker(vector=VectorSettings(enabled=True))


def noise(queries: Queries, rows: IntArray, ids_dK: IntArray) -> Floats:
    """Numbers that have nothing to do with answers, the same for the same query."""
    keys = zip(queries.entity_B, queries.kind_B, strict=True)
    rows_dK = [np.random.default_rng([int(x) for x in key]).normal(size=ids_dK.shape[1]) for key in keys]
    return np.stack(rows_dK)[:, :, None].astype(np.float32)


def lists_of(ranker: Ranker, graph: KnowledgeGraph, most: int = 8) -> tuple[CandidateLists, ListQueries]:
    return read_lists(ranker, validation_task(graph, VALID), most, noise, 1, lambda n, of: None)


def test_ranks_by_lists_are_those_of_an_evaluation(ranker: Ranker, toy: KnowledgeGraph) -> None:
    report = evaluate(ranker, toy, VALID)
    for most in (1, 5, len(toy.entities)):
        lists, asks = lists_of(ranker, toy, most)
        found_B = lists.reciprocal(asks, lists.scores_DK)
        assert found_B == pytest.approx(1 / report.ranks.of_type("realistic"))
        there_DK = lists.candidates.there_BK
        steps = np.diff(lists.scores_DK)[there_DK[:, 1:]]
        assert (steps <= 0).all(), "best first"
        assert (there_DK[:, :-1] >= there_DK[:, 1:]).all()
        assert not (lists.asked_DK & lists.wrong_DK).any()


def test_those_ahead_stay_ahead(ranker: Ranker, toy: KnowledgeGraph) -> None:
    lists, asks = lists_of(ranker, toy)
    ahead_DK = lists.first(3)
    assert (ahead_DK.sum(1) <= 3).all()
    lowered_DK = np.where(ahead_DK, lists.scores_DK - 1e3, lists.scores_DK)
    assert lists.reciprocal(asks, lowered_DK, ahead_DK) == pytest.approx(asks.reciprocal_B)
    assert not np.allclose(lists.reciprocal(asks, lowered_DK), asks.reciprocal_B)


def test_none_that_ties_with_the_next_is_read(ranker: Ranker, toy: KnowledgeGraph) -> None:
    lists, _ = lists_of(ranker, toy)
    lists.scores_DK[0, 2:4] = lists.scores_DK[0, 1]
    assert lists.first(3)[0].sum() == 1
    assert (lists.first(99) == lists.candidates.there_BK).all()


def test_weights_of_a_half_depend_on_that_half_alone(ranker: Ranker, toy: KnowledgeGraph) -> None:
    lists, asks = lists_of(ranker, toy)
    odd_B = asks.odd_B
    of_odd_D = np.isin(np.arange(len(lists.queries)), asks.list_B[odd_B])
    before = lists.weights_of(asks, odd_B)
    for scores_DK in lists.candidates.signal_scores.values():
        scores_DK[~of_odd_D] *= -1
    after = lists.weights_of(asks, odd_B)
    for name, table_R2 in before.tables.items():
        assert after.tables[name] == pytest.approx(table_R2)
    by_odd, by_even = (lists.weighed(lists.weights_of(asks, of_B)) for of_B in (odd_B, ~odd_B))
    assert not np.allclose(by_odd.scores_DK, by_even.scores_DK)
    assert lists.weighed(lists.mixture).scores_DK == pytest.approx(lists.scores_DK)


def test_what_has_no_merit_is_not_used(
    ranker: Ranker, toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figure of a choice is by halves: what looks good on one alone does not count."""
    task = validation_task(toy, VALID)
    chosen = []
    for way in range(4):

        def read(queries: Queries, rows: IntArray, ids_dK: IntArray, way: int = way) -> Floats:
            return np.roll(noise(queries, rows, ids_dK), way, 1)

        stage_weight, figures = second_stages._choose_use(
            ranker, task, lambda n, of: None, 8, second_stages.WEIGHTS_TRIED, read, 64
        )
        assert figures["mrr"] >= figures["mrr_first"]
        assert (stage_weight.k == 0) == (figures["mrr"] == figures["mrr_first"])
        chosen.append(stage_weight.k)
    assert 0 in chosen
