from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgmlm.core.arrays import Floats
from kgmlm.core.errors import ModelError
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.ranker import Mixture

TAIL, HEAD = (Queries(np.array([0]), np.array([1]), np.array([tail])) for tail in (True, False))


def floats(rows: list[list[float]]) -> Floats:
    return np.array(rows, np.float32)


def mixture() -> Mixture:
    return Mixture.even({"likelihood": 1.0}, 2).weighed("vector", [[1, 2], [3, 4]], 2.5)


def test_weights_go_by_relation_and_side() -> None:
    signal_scores = {"likelihood": floats([[1, 2]]), "vector": floats([[10, 0]])}
    assert mixture().combine(signal_scores, TAIL).tolist() == [[31.0, 2.0]]
    assert mixture().combine(signal_scores, HEAD).tolist() == [[41.0, 2.0]]
    assert mixture().of("kge", TAIL).tolist() == [0.0]


WEIGHTS = st.lists(st.integers(-4, 4).map(lambda n: n / 2), min_size=3, max_size=3)


@given(WEIGHTS, WEIGHTS, st.integers(0, 99))
def test_a_mixture_is_linear_in_its_weights(some: list[float], others: list[float], seed: int) -> None:
    rng = np.random.default_rng(seed)
    signal_scores = {name: rng.standard_normal((5, 4), np.float32) for name in "abc"}
    queries = Queries(np.arange(5), np.array([0, 1, 2, 1, 0]), np.array([True, False, True, True, False]))
    tables = {name: rng.standard_normal((3, 2), np.float32) for name in "abc"}

    def mixed(weights: list[float]) -> Floats:
        scaled = {name: np.float32(w) * tables[name] for name, w in zip("abc", weights, strict=True)}
        return Mixture(scaled, dict(zip("abc", weights, strict=True))).combine(signal_scores, queries)

    together = mixed([a + b for a, b in zip(some, others, strict=True)])
    np.testing.assert_allclose(together, mixed(some) + mixed(others), atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(mixed([3 * a for a in some]), 3 * mixed(some), atol=1e-5, rtol=1e-5)


@given(st.permutations("abc"), st.integers(0, 99))
def test_queries_and_candidates_are_mixed_each_alone(order: list[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    signal_scores = {name: rng.standard_normal((4, 6), np.float32) for name in order}
    tables = {name: rng.standard_normal((2, 2), np.float32) for name in "abc"}
    made = Mixture(tables, dict.fromkeys("abc", 1.0))
    queries = Queries(np.arange(4), np.array([0, 1, 0, 1]), np.array([True, True, False, False]))
    whole_BN = made.combine(signal_scores, queries)
    rows, columns = np.array([2, 0]), np.array([5, 1, 1])
    part = made.combine({n: s[rows][:, columns] for n, s in signal_scores.items()}, queries[rows])
    np.testing.assert_allclose(part, whole_BN[rows][:, columns], atol=1e-5, rtol=1e-5)


def test_parts_of_a_mixture() -> None:
    both = mixture()
    assert both.signals == ("likelihood", "vector")
    assert both.only("vector").signals == ("vector",)
    assert both.only("vector").of("vector", HEAD).tolist() == [1.0]
    assert both.without("likelihood").of("vector", HEAD).tolist() == [4.0]
    assert both.evenly("vector", 0.0).signals == ("likelihood",)
    assert both.signals == ("likelihood", "vector")


def test_a_relation_that_is_new_has_the_average() -> None:
    other = mixture().for_graph(np.array([1, -1]))
    assert other.tables["vector"].tolist() == [[3.0, 4.0], [2.5, 2.5]]
    assert other.tables["likelihood"].tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_one_weight_for_all_is_that_of_new_relations_too() -> None:
    new = np.array([-1, 0])
    evened = mixture().evenly("vector", 7.0)
    assert evened.tables["vector"].tolist() == [[7.0, 7.0], [7.0, 7.0]]
    assert evened.for_graph(new).tables["vector"].tolist() == [[7.0, 7.0], [7.0, 7.0]]
    assert mixture().without("likelihood").for_graph(new).tables["vector"].tolist() == [
        [2.5, 2.5],
        [1.0, 2.0],
    ]
    again = mixture().for_graph(new).for_graph(new)
    assert again.tables["vector"].tolist() == [[2.5, 2.5], [2.5, 2.5]]
    assert again.signals == ("likelihood", "vector")


@pytest.mark.parametrize("weight", [1.0, 2.0, -1.0])
def test_a_weight_multiplies(weight: float) -> None:
    signal_scores = {"vector": floats([[10.0, 3.0]])}
    match = Mixture.even({"vector": weight}, 2).combine(signal_scores, TAIL)
    assert match.tolist() == [[10.0 * weight, 3.0 * weight]]


def test_what_counts_nothing_ranks_nothing(toy: KnowledgeGraph) -> None:
    nothing = Mixture.even({"vector": 0.0}, 2)
    assert nothing.combine({"vector": floats([[1.0, 2.0]])}, TAIL).tolist() == [[0.0, 0.0]]
    with pytest.raises(ModelError, match=r"^no signal says anything of these candidates$"):
        nothing.combine({}, TAIL)


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -1e31])
def test_scores_that_would_vanish_from_a_ranking_are_refused(score: float, toy: KnowledgeGraph) -> None:
    """What a shortlist lacks has a finite score below all others, and is left out of answers."""
    mixture = Mixture.even({"likelihood": 1.0}, len(toy.relations))
    with pytest.raises(ModelError, match="scores are not finite"):
        mixture.combine({"likelihood": floats([[0.0, score]])}, toy.queries("test")[0][:1])


def test_a_signal_is_replaced_by_what_it_is_the_sum_of() -> None:
    parts = Mixture.even({"likelihood": 2.0, "vector": 3.0}, 2).weighed("vector", [[3, 4], [5, 6]], 3.0)
    whole = Mixture.even({"text": 0.5, "kge": 7.0}, 2).opened("text", parts)
    assert whole.signals == ("likelihood", "vector", "kge")
    assert whole.tables["vector"].tolist() == [[1.5, 2.0], [2.5, 3.0]]
    assert whole.averages == {"likelihood": 1.0, "vector": 1.5, "kge": 7.0}
