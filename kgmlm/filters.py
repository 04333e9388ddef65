"""Known answers of queries: grouped by query, and looked up by it; triples, each once.

Shapes: B queries, n triples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kgmlm.kg import IntArray, Queries, Query, both_sides

_WIDEST = 2**63  # what integers of 64 bits are below
_SCANNED = 16  # queries whose answers are looked for without sorting all triples
_LINKED = 256  # where triples are kept by entity


@dataclass(frozen=True)
class GroupedAnswers:
    """The true answers of B queries: those of query i are ``ids[offsets[i]:offsets[i + 1]]``."""

    offsets: IntArray
    ids: IntArray

    def take(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """The answers of some queries as (position in ``rows``, answer id) pairs."""
        counts = self.offsets[rows + 1] - self.offsets[rows]
        positions = np.repeat(np.arange(len(rows)), counts)
        within = np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)
        return positions, self.ids[np.repeat(self.offsets[rows], counts) + within]


@dataclass(frozen=True, eq=False)
class Links:
    """Triples by entity, as a large graph keeps them: those of e are ``rows[offsets[e]:offsets[e + 1]]``.

    Attributes:
        offsets: one more than there are entities with triples.
        rows: (relation, whether the other entity is the tail, the other entity); each triple twice, once per
            entity, duplicates left out.
        of: the triples; links are of no others.
    """

    offsets: IntArray
    rows: IntArray
    of: IntArray

    @classmethod
    def made(cls, triples: IntArray, entities: int) -> Links:
        """Of triples ``(n, 3)`` among so many entities."""
        queries, others = both_sides(distinct_triples(triples))
        order = np.argsort(queries.entity_B, kind="stable")
        counts = np.bincount(queries.entity_B, minlength=entities)
        rows = np.stack([queries.relation_B, queries.tail_B, others], axis=1)[order]
        return cls(np.concatenate([[0], np.cumsum(counts)]), rows, triples)

    def at(self, entity: int) -> IntArray:
        """The rows ``(E, 3)`` of an entity."""
        if entity >= len(self.offsets) - 1:
            return np.zeros((0, 3), np.int64)
        return self.rows[self.offsets[entity] : self.offsets[entity + 1]].astype(np.int64)

    def answers(self, query: Query) -> IntArray:
        """What answers a query."""
        rows = self.at(query.entity)
        found: IntArray = rows[(rows[:, 0] == query.relation) & (rows[:, 1] == (query.target == "tail")), 2]
        return found


def distinct_triples(triples: IntArray) -> IntArray:
    """Triples ``(n, 3)`` sorted by head, relation and tail, each once.

    >>> distinct_triples(np.array([[1, 0, 2], [0, 5, 1], [1, 0, 2]])).tolist()
    [[0, 5, 1], [1, 0, 2]]
    """
    triples = triples.reshape(-1, 3)
    h, r, t = triples.T
    relations, entities = (int(x.max(initial=0)) + 1 for x in (r, t))
    if int(h.max(initial=0) + 1) * relations * entities >= _WIDEST or (triples < 0).any():
        return np.unique(triples, axis=0)
    keys = _distinct((h * relations + r) * entities + t)
    pairs, tails = np.divmod(keys, entities)
    return np.stack([*np.divmod(pairs, relations), tails], axis=1)


def repeated(triples: IntArray) -> int:
    """How many triples are there again: each counts once in training and in splitting."""
    return len(triples) - len(distinct_triples(triples))


def _distinct(keys: IntArray) -> IntArray:
    """Sorted integers, each once; several times as fast as sorting rows."""
    keys = np.sort(keys)
    return keys[np.diff(keys, prepend=-1) != 0] if len(keys) else keys


def grouped(keys: IntArray, answers: IntArray, count: int) -> tuple[IntArray, IntArray, IntArray]:
    """Distinct keys, where the answers of each begin, and all answers, sorted, each once per key.

    Args:
        count: answers are below it.
    """
    if int(keys.max(initial=0) + 1) * count < _WIDEST:
        keys, answers = np.divmod(_distinct(keys * count + answers), max(1, count))
    else:
        keys, answers = np.unique(np.stack([keys, answers], axis=1), axis=0).T
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[starts], np.append(starts, len(keys)).astype(np.int64), answers


class FilterIndex:
    """Known answers of any query, looked up by ``(target, relation, entity)``.

    It is sorted when it is first asked about more than a few queries.

    Args:
        triples: (n, 3) known triples, duplicates allowed; in parts, one below the other.
        num_entities: N; ids are below it.
        links: those of one of the parts, if there are any: a few queries are looked up there.
    """

    def __init__(
        self, triples: IntArray | Sequence[IntArray], num_entities: int, links: Links | None = None
    ) -> None:
        self.num_entities = num_entities
        parts = [triples] if isinstance(triples, np.ndarray) else triples
        self._parts = [part.reshape(-1, 3) for part in parts]
        self._links = links
        self._scanned = [
            p for p, given in zip(self._parts, parts, strict=True) if not (links and given is links.of)
        ]

    @cached_property
    def _sorted(self) -> tuple[IntArray, GroupedAnswers]:
        whole = self._parts[0] if len(self._parts) == 1 else [np.zeros((0, 3), np.int64), *self._parts]
        queries, answers = both_sides(whole if isinstance(whole, np.ndarray) else np.concatenate(whole))
        keys, offsets, ids = grouped(self.keys(queries), answers, self.num_entities)
        return keys, GroupedAnswers(offsets, ids)

    def keys(self, queries: Queries) -> IntArray:
        """One integer per query; equal queries have equal keys."""
        return (queries.relation_B * 2 + queries.tail_B) * self.num_entities + queries.entity_B

    def queries(self, keys: IntArray) -> Queries:
        """The queries that have these keys."""
        sides, entity_B = np.divmod(keys, self.num_entities)
        return Queries(entity_B, sides // 2, (sides % 2).astype(np.bool_))

    def lookup(self, queries: Queries) -> tuple[IntArray, IntArray]:
        """All known answers of B queries as (row in the batch, entity id) pairs."""
        few = _SCANNED if self._links is None else _LINKED
        if len(queries) <= few and "_sorted" not in vars(self):
            return self._scan(queries)
        known, answers = self._sorted
        keys = self.keys(queries)
        at = np.minimum(np.searchsorted(known, keys), max(len(known) - 1, 0))
        found = np.flatnonzero(known[at] == keys) if len(known) else np.zeros(0, np.int64)
        rows, ids = answers.take(at[found])
        return found[rows], ids

    def _scan(self, queries: Queries) -> tuple[IntArray, IntArray]:
        """The same for a few queries, without sorting anything."""
        found = []
        for query in queries:
            answers = [np.zeros(0, np.int64)] if self._links is None else [self._links.answers(query)]
            for h, r, t in (part.T for part in self._scanned):
                asked, other = (h, t) if query.target == "tail" else (t, h)
                answers.append(other[(asked == query.entity) & (r == query.relation)])
            found.append(np.unique(np.concatenate(answers)))
        rows = np.repeat(np.arange(len(found)), [len(ids) for ids in found])
        return rows, np.concatenate([np.zeros(0, np.int64), *found])
