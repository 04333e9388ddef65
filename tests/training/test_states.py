"""States: choices on validation that harm none of them, and neutral weights where it asks about none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kgmlm.core.arrays import FloatArray
from kgmlm.core.config import RuleSettings, VectorSettings
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.ranker import Ranker, StageWeight
from kgmlm.signals.rules import Rules
from kgmlm.signals.unseen import Unseen
from kgmlm.text.reader import Reading
from kgmlm.training.states import (
    best_way,
    harms,
    helpful_weight,
    measured_weight,
    neutral_weights,
    states_of,
)


def test_states_are_of_both_ends() -> None:
    triples = [("a", "r", "b"), ("c", "r", "b")]
    graph = KnowledgeGraph.from_triples(triples, valid=[("x", "r", "b"), ("y", "r", "z")])
    at = graph.entities.index
    ends = [("a", "b"), ("b", "x"), ("x", "b"), ("y", "z")]
    entities, answers = (np.array([at[pair[i]] for pair in ends]) for i in (0, 1))
    queries = Queries(entities, np.zeros(4, np.int64), np.ones(4, np.bool_))
    assert states_of(queries, answers, graph.context.unseen_N).tolist() == [0, 1, 2, 3]


def ranks(*by_state: tuple[float, int]) -> FloatArray:
    return np.concatenate([np.full(count, value) for value, count in by_state])


def test_a_gain_that_costs_a_state_is_not_taken() -> None:
    rng = np.random.default_rng(0)
    states_B = np.repeat([0, 1], 200)
    noise_B = rng.normal(scale=0.01, size=400)
    first_B = ranks((0.5, 200), (0.1, 200))
    greedy_B, modest_B = ranks((0.3, 200), (0.9, 200)) + noise_B, ranks((0.5, 200), (0.4, 200)) + noise_B
    assert harms(greedy_B - first_B, states_B)
    assert not harms(modest_B - first_B, states_B)
    odd_B = np.arange(400) % 2 == 0
    ways = {"first": first_B, "greedy": greedy_B, "modest": modest_B}
    name, crossed_B = best_way(ways, states_B, odd_B, harmless=True)
    assert name == "modest"
    assert np.array_equal(crossed_B, modest_B)
    assert best_way({"first": first_B, "greedy": greedy_B}, states_B, odd_B, harmless=True)[0] == "first"


def test_a_state_counts_the_same_however_often_validation_asks_about_it() -> None:
    states_B = np.repeat([2, 3], [360, 40])
    odd_B, noise_B = np.arange(400) % 2 == 0, np.random.default_rng(0).normal(size=400)
    first_B = ranks((0.5, 360), (0.2, 40))
    rare_B = first_B + ranks((-0.01, 360), (0.05, 40)) + 0.5 * noise_B * (states_B == 2)
    assert rare_B.mean() < first_B.mean()
    assert best_way({"first": first_B, "rare": rare_B}, states_B, odd_B, harmless=False)[0] == "rare"


def test_a_stage_is_used_for_the_queries_that_it_helps() -> None:
    states_B = np.repeat([0, 1, 2, 3], [30, 30, 30, 5])
    use = measured_weight(StageWeight(20, 1.0), states_B)
    assert use.states == (True, True, True, False), "of the last there are too few"
    gain_B = ranks((0.1, 30), (0.0, 30), (-0.1, 30), (0.0, 5))
    assert helpful_weight(use, gain_B, states_B).states == (True, True, False, False)
    assert helpful_weight(use, -gain_B, states_B).states == (False, False, True, False)
    harmful_B = ranks((0.5, 30), (-0.1, 30), (0.0, 30), (0.0, 5))
    assert helpful_weight(use, harmful_B, states_B) == StageWeight(0, 0.0), "one state pays for the other"
    few_B = np.zeros(6, np.int64)
    assert measured_weight(StageWeight(20, 1.0), few_B).states[0], "the state that is asked about most counts"


def test_where_validation_asks_about_none_an_unseen_candidate_stands_where_its_text_says(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    rules = Rules.fit(toy, RuleSettings())
    ranker = make_ranker(vector=VectorSettings(enabled=True)).with_signal(rules)
    ranker = ranker.with_signal(Unseen.fit(toy))
    mixture = ranker.mixture.evenly("rules", 2.0)
    queries = toy.queries("train")[0]
    neutral = neutral_weights(ranker, toy, queries, mixture)
    # Rules give something to some of the best by text, and nothing to an entity that nobody has seen.
    assert 0 < neutral.averages["unseen"] <= 2.0 * rules.score(Reading(queries, None), ranker.pool()).max()
    assert neutral.tables["unseen"].shape == (len(toy.relations), 2)
    assert neutral.averages["rules"] == 2.0
    assert not neutral_weights(ranker, toy, queries, mixture.only("rules")).averages["unseen"], "no text"
    assert not neutral_weights(ranker, toy, queries, mixture.without("rules")).averages["unseen"]
