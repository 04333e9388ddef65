from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kgmlm.core.arrays import Floats, highest
from kgmlm.core.config import VectorSettings
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking import retrieval
from kgmlm.ranking.constraints import MISSED, Possible
from kgmlm.ranking.ranker import Ranker
from kgmlm.ranking.retrieval import Retrieval, Shortlist, shortlist
from kgmlm.runs.index import build_index
from kgmlm.text.reader import Reading

pytest.importorskip("faiss")


def test_what_cannot_answer_takes_no_place_and_fewer_are_marked(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    ranker = make_ranker(vector=VectorSettings(enabled=True))
    index = build_index(ranker, toy)
    ranker = ranker.replace(possible=Possible(np.ones(len(toy.relations), np.bool_)))
    queries, _ = toy.queries("test")
    count = len(toy.entities)
    for rows, reading in ranker.reader.readings(queries):
        ids_BK, scores_BK = shortlist(ranker, reading, Retrieval(index, count))
        own = ids_BK == queries[rows].entity_B[:, None]
        assert not own.any()
        assert ((ids_BK < 0).sum(1) == 1).all()
        assert (scores_BK[ids_BK < 0] == MISSED).all()
        assert (np.diff(scores_BK, axis=1) <= 0).all()


@pytest.fixture
def whole(make_ranker: Callable[..., Ranker], toy: KnowledgeGraph) -> tuple[Ranker, Queries, Reading, Floats]:
    """A ranker that has read some queries, and its scores."""
    ranker = make_ranker(vector=VectorSettings(enabled=True)).unconstrained()
    queries, _ = toy.queries("test")
    ((rows, reading, signal_scores),) = ranker.signal_scores(queries)
    return ranker, queries[rows], reading, ranker.combined(queries[rows], signal_scores)


class Backwards:
    """An index whose own scores are as wrong as can be: it finds the worst entities first."""

    exact = False

    def __init__(self, order_BN: np.ndarray[Any, Any]) -> None:
        self.order_BN = order_BN

    def search(self, vector_BD: Any, k: int, visited: int | None = None) -> Shortlist:
        ids_BK = self.order_BN[:, :k].copy()
        return Shortlist(ids_BK, np.zeros(ids_BK.shape, np.float32))


def test_more_is_asked_of_the_index_than_the_shortlist_holds(
    whole: tuple[Ranker, Queries, Reading, Floats],
) -> None:
    """The index errs; within what it is asked for beyond K, the exact scores set that right."""
    ranker, queries, reading, exact_BN = whole
    index: Any = Backwards(exact_BN.argsort(1))
    ids_BK, scores_BK = shortlist(ranker, reading, Retrieval(index, 3))
    assert ids_BK.shape == (len(queries), 3)
    np.testing.assert_allclose(scores_BK, highest(exact_BN, 3)[0], atol=1e-5, rtol=1e-5)


def test_vectors_are_compared_again_where_an_index_has_but_codes_of_them(
    whole: tuple[Ranker, Queries, Reading, Floats], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrieval, "MORE", 0)
    ranker, _, reading, _ = whole
    ranker = ranker.by("vector")
    exact_BN = ranker.signals["vector"].score(reading, ranker.pool())
    index: Any = Backwards(exact_BN.argsort(1))
    _, scores_BK = shortlist(ranker, reading, Retrieval(index, 3))
    np.testing.assert_allclose(scores_BK, highest(exact_BN, 3)[0], atol=1e-5, rtol=1e-5)
    index.exact = True
    _, scores_BK = shortlist(ranker, reading, Retrieval(index, 3))
    assert (scores_BK[:, 0] < exact_BN.max(1)).all(), "what it gives is taken as the best"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(seed=st.integers(0, 999), weight=st.sampled_from([0.0, 1.0, 7.0]), more=st.integers(0, 9))
def test_a_shortlist_of_all_is_the_full_ranking_whatever_the_index_thinks(
    whole: tuple[Ranker, Queries, Reading, Floats], seed: int, weight: float, more: int
) -> None:
    ranker, queries, reading, _ = whole
    ranker = ranker.replace(mixture=ranker.mixture.evenly("vector", weight))
    count = len(ranker.context.entities)
    order_BN = np.random.default_rng(seed).permuted(np.tile(np.arange(count), (len(queries), 1)), axis=1)
    index: Any = Backwards(order_BN)
    ids_BK, scores_BK = shortlist(ranker, reading, Retrieval(index, count + more))
    pool = ranker.pool()
    signal_scores = {n: ranker.signals[n].score(reading, pool) for n in ranker.mixture.signals}
    exact_BN = ranker.combined(queries, signal_scores)
    expected_BN = -np.sort(-exact_BN, 1)
    np.testing.assert_allclose(scores_BK, expected_BN, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(exact_BN, ids_BK, 1), expected_BN, atol=1e-5, rtol=1e-5)
    assert (np.sort(ids_BK, axis=1) == np.arange(count)).all()
