from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from doubles import FakeRanker, run

from kgmlm.core.config import Protocol
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.graphs.graph import KnowledgeGraph


def test_the_breakdown_counts_every_rank_once(toy: KnowledgeGraph) -> None:
    parts = run(toy).report["breakdown"]["unseen_position"]
    total = sum(parts[k]["count"] for k in ("neither", "head", "tail", "both"))
    assert total == 2 * len(toy.splits["test"])
    assert [parts[k]["count"] for k in ("neither", "head", "tail", "both", "any")] == [8, 4, 0, 4, 8]
    roles = run(toy).report["breakdown"]["unseen_role"]
    assert roles["known"]["count"] == roles["answer"]["count"] == 2


def test_half_links_are_those_that_training_triples_have(toy: KnowledgeGraph) -> None:
    """Against a loop over all training triples."""
    result = run(toy)
    parts = result.report["breakdown"]["unseen_half_link"]
    train = {tuple(x) for x in toy.splits["train"].tolist()}
    heads, tails = {(h, r) for h, r, _ in train}, {(r, t) for _, r, t in train}
    expected = dict.fromkeys(("answer", "query", "both", "neither"), 0)
    for h, r, t in toy.splits["test"].tolist():
        for query, answer in (((h, r) in heads, (r, t) in tails), ((r, t) in tails, (h, r) in heads)):
            new = {(True, True): "neither", (True, False): "answer", (False, True): "query"}
            expected[new.get((query, answer), "both")] += 1
    assert {name: part["count"] for name, part in parts.items()} == expected
    assert sum(count > 0 for count in expected.values()) >= 3
    whole = sum(part["mrr"] * part["count"] for part in parts.values() if part["count"])
    assert whole / len(result.ranks) == pytest.approx(result.report["metrics"]["mrr"])


def test_relations_are_reported_apart(toy: KnowledgeGraph) -> None:
    ranker = FakeRanker(len(toy.entities), "tied")
    relations = evaluate(ranker, toy, Protocol(), by_relation=True).report["relations"]
    assert relations["capital"]["both"]["count"] == 4
    assert sum(r["tail"]["count"] for r in relations.values()) == len(toy.splits["test"])


def test_expected_hits_are_the_mean_over_many_draws(real: Callable[[str], KnowledgeGraph]) -> None:
    """The closed form draws with replacement; on ranks far from the ends the two agree."""
    graph = real("umls")
    expected = run(graph, negatives=9, negatives_by="expectation", filter=("train",)).report["metrics"]
    figures = ("count", "hits_at_1", "hits_at_3", "hits_at_5", "hits_at_10")
    assert set(expected) == {f"{side}.expected.{m}" for side in ("head", "tail", "both") for m in figures}
    ranks = run(graph, filter=("train",)).ranks
    rng = np.random.default_rng(0)
    share = (ranks.pessimistic_B - 1) / (ranks.candidates_B - 1)
    for k in (1, 3, 5):
        above = rng.binomial(9, share[:, None], size=(len(share), 400))
        assert expected[f"both.expected.hits_at_{k}"] == pytest.approx((above < k).mean(), abs=0.01)
    assert expected["both.expected.hits_at_10"] == 1.0
