"""Which entities can answer a query at all, learned from a run's training triples.

The first such constraint is the query's own entity: text models like to copy what they are asked about. In a
relation that links no entity to itself in training, the own entity is no answer.

Shapes: B queries, N candidates, R relations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kgmlm.filters import distinct_triples
from kgmlm.kg import BoolArray, IntArray, Queries

LEAST = 20  # training triples that a relation needs before it forbids anything; fixed beforehand, not tuned
MISSED = -1e30  # the score of what a shortlist lacks: finite, and below any other
IMPOSSIBLE = -2e30  # the score of what cannot answer: finite, below what a shortlist misses


@dataclass(frozen=True, eq=False)
class Possible:
    """Which candidates can answer.

    Attributes:
        loop_free_R: relations of the graph whose queries their own entity cannot answer.
    """

    loop_free_R: BoolArray

    @classmethod
    def learn(cls, train: IntArray, relations: int) -> Possible:
        """From training triples ``(n, 3)`` over so many relations.

        A relation is loop-free when it has :data:`LEAST` distinct training triples or more and none of them
        is a self-loop. A relation without triples forbids nothing.

        >>> chain = np.array([[i, 0, i + 1] for i in range(20)])
        >>> Possible.learn(chain, 2).loop_free_R.tolist()
        [True, False]
        """
        triples = distinct_triples(train)
        counts_R = np.bincount(triples[:, 1], minlength=relations)
        loops_R = np.bincount(triples[triples[:, 0] == triples[:, 2], 1], minlength=relations)
        return cls((counts_R >= LEAST) & (loops_R == 0))

    @classmethod
    def anything(cls, relations: int) -> Possible:
        """No constraint at all."""
        return cls(np.zeros(relations, np.bool_))

    def over(self, relation_rows: IntArray) -> Possible:
        """The same for another graph, whose relation i is relation ``relation_rows[i]`` here, or -1."""
        return Possible(np.append(self.loop_free_R, False)[relation_rows])

    def own_B(self, queries: Queries) -> BoolArray:
        """Which of B queries cannot be answered by their own entity."""
        return self.loop_free_R[queries.relation_B]

    def forbidden(self, queries: Queries, entity_ids: IntArray | None = None) -> tuple[IntArray, IntArray]:
        """The candidates that cannot answer, as (row, column) pairs.

        Args:
            entity_ids: candidates, ``(N,)`` or a row for each query, ``(B, N)``; None is every entity.
        """
        rows = np.flatnonzero(self.own_B(queries))
        own = queries.entity_B[rows]
        if entity_ids is None:
            return rows, own
        candidates = entity_ids[rows] if entity_ids.ndim == 2 else entity_ids[None]
        at, columns = np.nonzero(candidates == own[:, None])
        return rows[at], columns

    def applied(
        self, scores_BN: torch.Tensor, queries: Queries, entity_ids: IntArray | None = None
    ) -> torch.Tensor:
        """Scores in which what cannot answer has :data:`IMPOSSIBLE`; the others are unchanged."""
        rows, columns = self.forbidden(queries, entity_ids)
        if not len(rows):
            return scores_BN
        at = tuple(torch.from_numpy(x).to(scores_BN.device) for x in (rows, columns))
        return scores_BN.index_put(at, scores_BN.new_tensor(IMPOSSIBLE))
