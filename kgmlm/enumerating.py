"""Which queries are asked of a graph that is to be completed, and what may answer them.

Shapes: B queries, n triples, N entities, R relations.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kgmlm.filters import FilterIndex, GroupedAnswers, grouped
from kgmlm.kg import BoolArray, IntArray, Queries, both_sides


def seen_queries(train: IntArray, entities: int, relations: IntArray) -> Queries:
    """Each (entity, relation, side) that some training triple has, by relation, then side (heads first), then
    entity.

    Args:
        train: training triples ``(n, 3)``.
        entities: N.
        relations: ids of those that are asked about.

    >>> found = seen_queries(np.array([[0, 1, 2], [0, 1, 3]]), 4, np.array([0, 1]))
    >>> [(q.entity, q.target) for q in found]
    [(2, 'head'), (3, 'head'), (0, 'tail')]
    """
    index = FilterIndex(train, entities)
    queries, _ = both_sides(train[np.isin(train[:, 1], relations)])
    return index.queries(np.unique(index.keys(queries)))


def triple_keys(triples: IntArray, entities: int, relations: int) -> IntArray:
    """One integer per triple; equal triples have equal keys, which sort by relation, head and tail."""
    assert relations * entities * entities < 2**63, "ids of triples do not fit into 64 bits"
    h, r, t = triples.reshape(-1, 3).T
    keys: IntArray = (r * entities + h) * entities + t
    return keys


@dataclass(frozen=True, eq=False)
class Slots:
    """Which entities training triples have at each side of each relation.

    Attributes:
        train: training triples ``(n, 3)``.
        entities: N.
        relations: R.
    """

    train: IntArray
    entities: int
    relations: int

    @cached_property
    def _answers(self) -> GroupedAnswers:
        queries, answers = both_sides(self.train)
        keys, offsets, ids = grouped(queries.relation_B * 2 + queries.tail_B, answers, self.entities)
        counts = np.zeros(2 * self.relations, np.int64)
        counts[keys] = np.diff(offsets)
        return GroupedAnswers(np.concatenate([[0], np.cumsum(counts)]), ids)

    def fits(self, queries: Queries) -> BoolArray:
        """Which entities are of the kind that answers B queries: ``(B, N)``."""
        rows, ids = self._answers.take(queries.relation_B * 2 + queries.tail_B)
        found = np.zeros((len(queries), self.entities), np.bool_)
        found[rows, ids] = True
        return found
