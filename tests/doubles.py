"""Doubles: a ranker that reads nothing, for tests of what becomes of scores; a watcher that remembers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from kgmlm.core.arrays import Floats, IntArray
from kgmlm.core.config import Protocol
from kgmlm.core.progress import Watcher
from kgmlm.evaluation.evaluator import Evaluation, evaluate
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.ranker import FirstStage, PlainScorer, Ranker
from kgmlm.ranking.second_stage import RescoringStage
from kgmlm.signals.base import Pool
from kgmlm.text.reader import Reading


class Hears(Watcher):
    """Keeps what is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def tell(self, message: str) -> None:
        self.told.append(message)


class FakeRanker(PlainScorer):
    """A double: scores are a function of the query and the entity alone, with ties on purpose."""

    def __init__(self, n: int, kind: str) -> None:
        super().__init__(n, 300)
        self.n, self.kind = n, kind

    def score(self, queries: Queries) -> Floats:
        if self.kind == "constant":
            return np.zeros((len(queries), self.n), np.float32)
        seed = queries.entity_B * 7919 + queries.relation_B * 104729 + queries.tail_B
        ids = np.arange(self.n)
        scores_BN: Floats = ((seed[:, None] * 31 + ids * ids * 17) % 11).astype(np.float32)
        return scores_BN

    def rank(
        self,
        queries: Queries,
        entity_ids: IntArray | None = None,
        batch_size: int = 64,
        advance: Callable[[int], None] = lambda n: None,
    ) -> Iterator[tuple[IntArray, Floats]]:
        order = np.random.default_rng(0).permutation(len(queries))
        for start in range(0, len(order), 13):
            rows = order[start : start + 13]
            yield rows, self.score(queries[rows])
            advance(len(rows))


def fake(graph: KnowledgeGraph) -> FakeRanker:
    return FakeRanker(len(graph.entities), "tied")


def run(graph: KnowledgeGraph, kind: str = "tied", **protocol: Any) -> Evaluation:
    return evaluate(FakeRanker(len(graph.entities), kind), graph, Protocol.model_validate(protocol))


def arbitrary(queries: Queries, ids_BK: IntArray) -> Floats:
    """Some number for each pair of a query and a candidate, always the same."""
    of_query_B1 = (7 * queries.entity_B + 13 * queries.relation_B + queries.tail_B)[:, None]
    numbers: Floats = np.sin(1e3 * (of_query_B1 + 0.37 * ids_BK)).astype(np.float32)
    return numbers


def scored(queries: Queries, scores_BN: Floats, pool: Pool | None = None) -> FirstStage:
    """A first stage with given scores, of no signal."""
    return FirstStage(queries, pool or Pool(scores_BN.shape[1]), scores_BN, {}, Reading(queries))


@dataclass(frozen=True, eq=False)
class FixedStage(RescoringStage):
    """A second stage whose scores are a function of query and candidate, not of the text model.

    Attributes:
        scores_of: scores ``(B, K)`` of candidates ``(B, K)``.
    """

    name: ClassVar[str] = "fixed"
    scores_of: Callable[[Queries, IntArray], Floats] = arbitrary

    def score(
        self,
        ranker: Ranker,
        queries: Queries,
        ids_BK: IntArray,
        batch_size: int = 64,
        advance: Callable[[int, int], None] = lambda n, total: None,
    ) -> Floats:
        return self.scores_of(queries, ids_BK).astype(np.float32)
