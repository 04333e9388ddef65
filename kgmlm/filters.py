"""Known answers of queries: grouped by query, and looked up by it; triples, each once.

Shapes: B queries, n triples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kgmlm.kg import IntArray, Queries, both_sides

_WIDEST = 2**63  # what integers of 64 bits are below
_SCANNED = 16  # queries whose answers are looked for without sorting all triples


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
        triples: (n, 3) known triples, duplicates allowed.
        num_entities: N; ids are below it.
    """

    def __init__(self, triples: IntArray, num_entities: int) -> None:
        self.num_entities = num_entities
        self._triples = triples.reshape(-1, 3)

    @cached_property
    def _sorted(self) -> tuple[IntArray, GroupedAnswers]:
        queries, answers = both_sides(self._triples)
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
        if len(queries) <= _SCANNED and "_sorted" not in vars(self):
            return self._scan(queries)
        known, answers = self._sorted
        keys = self.keys(queries)
        at = np.minimum(np.searchsorted(known, keys), max(len(known) - 1, 0))
        found = np.flatnonzero(known[at] == keys) if len(known) else np.zeros(0, np.int64)
        rows, ids = answers.take(at[found])
        return found[rows], ids

    def _scan(self, queries: Queries) -> tuple[IntArray, IntArray]:
        """The same for a few queries, without sorting anything."""
        h, r, t = self._triples.T
        found = []
        for query in queries:
            asked, answers = (h, t) if query.target == "tail" else (t, h)
            found.append(np.unique(answers[(asked == query.entity) & (r == query.relation)]))
        rows = np.repeat(np.arange(len(found)), [len(ids) for ids in found])
        return rows, np.concatenate([np.zeros(0, np.int64), *found])
