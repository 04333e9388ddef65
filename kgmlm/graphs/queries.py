"""Queries and their known answers: answers grouped by query, the filter, distinct triples.

A query has no answer field, so what scores it cannot see the answer.

Shapes: B queries, n triples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, overload

import numpy as np

from kgmlm.core.arrays import BoolArray, IntArray

Target = Literal["head", "tail"]
TARGETS: tuple[Target, Target] = ("head", "tail")
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Query:
    """``(entity, relation, ?)`` for target "tail", ``(?, relation, entity)`` for "head".

    There is no answer here: what scores a query cannot see it.
    """

    entity: int
    relation: int
    target: Target


@dataclass(frozen=True)
class Queries:
    """B queries as parallel arrays: ``entity_B``, ``relation_B`` and ``tail_B`` (target is the tail)."""

    entity_B: IntArray
    relation_B: IntArray
    tail_B: BoolArray

    @property
    def side_B(self) -> IntArray:
        """The column of each query in tables by relation and side: 0 for tails, 1 for heads."""
        return 1 - self.tail_B.astype(np.int64)

    @property
    def kind_B(self) -> IntArray:
        """The kind of edge that answers each query: 2r for tails of relation r, 2r + 1 for heads."""
        return 2 * self.relation_B + self.side_B

    def __len__(self) -> int:
        return len(self.entity_B)

    def __iter__(self) -> Iterator[Query]:
        return (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, key: int | np.integer) -> Query: ...
    @overload
    def __getitem__(self, key: slice | IntArray | BoolArray) -> Queries: ...
    def __getitem__(self, key: int | np.integer | slice | IntArray | BoolArray) -> Query | Queries:
        if isinstance(key, (int, np.integer)):
            target: Target = "tail" if self.tail_B[key] else "head"
            return Query(int(self.entity_B[key]), int(self.relation_B[key]), target)
        return Queries(self.entity_B[key], self.relation_B[key], self.tail_B[key])

    def triples(self, answers: IntArray) -> IntArray:
        """The triples ``(B, 3)`` that an answer of each query makes."""
        head_B = np.where(self.tail_B, self.entity_B, answers)
        return np.stack([head_B, self.relation_B, np.where(self.tail_B, answers, self.entity_B)], 1)

    @classmethod
    def of(cls, queries: Sequence[Query]) -> Queries:
        """Gather single queries into arrays."""
        return cls(
            np.array([q.entity for q in queries], np.int64),
            np.array([q.relation for q in queries], np.int64),
            np.array([q.target == "tail" for q in queries], np.bool_),
        )


def both_sides(triples: IntArray) -> tuple[Queries, IntArray]:
    """Every triple asked twice: first all head queries, then all tail queries, with their answers.

    Args:
        triples: (n, 3) ids in head, relation, tail order.

    Returns:
        2n queries and their 2n answers.
    """
    h, r, t = triples.T
    queries = Queries(
        np.concatenate([t, h]), np.concatenate([r, r]), np.repeat(np.array([False, True]), len(triples))
    )
    return queries, np.concatenate([h, t])


_WIDEST = 2**63  # signed 64-bit integers are below this
_SCANNED = 16  # queries whose answers are looked for without sorting all triples
_LINKED = 4096  # where triples are kept by entity


@dataclass(frozen=True)
class GroupedAnswers:
    """The true answers of B queries: those of query i are ``ids[offsets[i]:offsets[i + 1]]``."""

    offsets: IntArray
    ids: IntArray

    def take(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """The answers of some queries as (position in ``rows``, answer id) pairs."""
        positions, places = self.places(rows)
        return positions, self.ids[places]

    def places(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """The answers of some queries as (position in ``rows``, place in ``ids``) pairs."""
        counts = self.offsets[rows + 1] - self.offsets[rows]
        positions = np.repeat(np.arange(len(rows)), counts)
        within = np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)
        return positions, np.repeat(self.offsets[rows], counts) + within


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of equal queries: those of group g are ``members[offsets[g]:offsets[g + 1]]``.

    Attributes:
        first: a query of each group.
    """

    first: IntArray
    members: IntArray
    offsets: IntArray

    @classmethod
    def of(cls, keys: IntArray) -> Groups:
        """Group queries by their keys (:meth:`FilterIndex.keys`)."""
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        members = np.argsort(inverse, kind="stable")
        return cls(first, members, np.searchsorted(inverse[members], np.arange(len(first) + 1)))

    def __len__(self) -> int:
        return len(self.first)

    @property
    def sizes(self) -> IntArray:
        """Queries per group."""
        return np.diff(self.offsets)

    def take(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """The queries of some groups, and for each which of these groups it belongs to."""
        groups = [self.members[self.offsets[r] : self.offsets[r + 1]] for r in rows]
        members = np.concatenate([self.members[:0], *groups])
        return members, np.repeat(np.arange(len(rows)), self.sizes[rows])


@dataclass(frozen=True, eq=False)
class Links:
    """Triples by entity, as a large graph keeps them: those of e are ``rows[offsets[e]:offsets[e + 1]]``.

    Attributes:
        offsets: one more than there are entities with triples.
        rows: (relation, whether the other entity is the tail, the other entity); each triple twice, once per
            entity, duplicates left out.
        of: the triples that the links were made from.
    """

    offsets: IntArray
    rows: IntArray
    of: IntArray

    @classmethod
    def made(cls, triples: IntArray, entities: int) -> Links:
        """Link triples ``(n, 3)`` to their entities, ``entities`` in number.

        Triples that have an entity as tail come first, then those that have it as head, both sorted.
        """
        distinct = distinct_triples(triples)
        h, r, t = distinct.T
        heads_N, tails_N = (np.bincount(ids, minlength=entities) for ids in (h, t))
        offsets = np.concatenate([[0], np.cumsum(heads_N + tails_N)])
        rows = np.empty((2 * len(distinct), 3), np.int32 if entities < 2**31 else np.int64)
        sides = (
            (False, h, offsets[:-1], tails_N, np.argsort(t, kind="stable")),
            (True, t, offsets[:-1] + tails_N, heads_N, slice(None)),
        )
        for tail, others, first_N, counts_N, order in sides:
            places = np.arange(len(distinct))
            places += np.repeat(first_N - (np.cumsum(counts_N) - counts_N), counts_N)
            rows[places, 0], rows[places, 1], rows[places, 2] = r[order], tail, others[order]
        return cls(offsets, rows, triples)

    def at(self, entity: int) -> IntArray:
        """The rows ``(E, 3)`` of an entity."""
        if entity >= len(self.offsets) - 1:
            return np.zeros((0, 3), np.int64)
        return self.rows[self.offsets[entity] : self.offsets[entity + 1]].astype(np.int64)

    def edges(self, entities_B: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """The edges of B entities: which of them each is of, its kind, and the entity at its other end.

        Kinds are as of :attr:`Queries.kind_B`: 2r where the other entity is the tail, 2r + 1 where the head.
        """
        last = len(self.offsets) - 1
        begin_B, end_B = (self.offsets[np.minimum(entities_B + i, last)] for i in (0, 1))
        count_B = end_B - begin_B
        row_E = np.repeat(np.arange(len(entities_B)), count_B)
        place_E = np.arange(len(row_E)) + np.repeat(begin_B - (np.cumsum(count_B) - count_B), count_B)
        relation_E, tail_E, other_E = self.rows[place_E].astype(np.int64).T
        return row_E, 2 * relation_E + (1 - tail_E), other_E

    def answers(self, query: Query) -> IntArray:
        """The answers of a query."""
        rows = self.at(query.entity)
        ids: IntArray = rows[(rows[:, 0] == query.relation) & (rows[:, 1] == (query.target == "tail")), 2]
        return ids


def triple_keys(triples: IntArray, entities: int, relations: int) -> IntArray:
    """One integer per triple; equal triples have equal keys, which sort by relation, head and tail."""
    assert relations * entities * entities < 2**63, "ids of triples do not fit into 64 bits"
    h, r, t = triples.reshape(-1, 3).T
    keys: IntArray = (r * entities + h) * entities + t
    return keys


def parts_of_pairs(heads: IntArray, tails: IntArray, parts: int = 2) -> IntArray:
    """The part, out of ``parts``, that each unordered pair of entities falls into, as if at random.

    What is fitted to one part of the validation triples is measured on the others. Both questions of a
    triple, and all triples of a pair, are in one part, so that nothing learned of a pair is measured on it.

    >>> parts_of_pairs(np.array([1, 2, 4]), np.array([2, 1, 5])).tolist()
    [1, 1, 0]
    """
    low, high = (np.asarray(of(heads, tails)).astype(np.uint64) for of in (np.minimum, np.maximum))
    mixed = (low * np.uint64(0x9E3779B97F4A7C15)) ^ (high + np.uint64(0xD1B54A32D192ED03))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    part: IntArray = ((mixed ^ (mixed >> np.uint64(31))) % np.uint64(parts)).astype(np.int64)
    return part


def distinct_triples(triples: IntArray) -> IntArray:
    """Triples ``(n, 3)`` sorted by head, relation and tail, each once.

    >>> distinct_triples(np.array([[1, 0, 2], [0, 5, 1], [1, 0, 2]])).tolist()
    [[0, 5, 1], [1, 0, 2]]
    """
    triples = triples.reshape(-1, 3)
    packed = _packed(triples)
    if packed is None:
        return np.unique(triples, axis=0)
    keys, relations, entities = packed
    triples_T3 = np.empty((len(keys), 3), np.int64)
    np.remainder(keys, entities, out=triples_T3[:, 2])
    keys //= entities
    np.remainder(keys, relations, out=triples_T3[:, 1])
    np.floor_divide(keys, relations, out=triples_T3[:, 0])
    return triples_T3


def _packed(triples: IntArray) -> tuple[IntArray, int, int] | None:
    """Distinct triples as sorted integers ``(h * relations + r) * entities + t``, with the two factors; None
    where 64 bits do not hold them.
    """
    h, r, t = triples.T
    relations, entities = (int(x.max(initial=0)) + 1 for x in (r, t))
    if int(h.max(initial=0) + 1) * relations * entities >= _WIDEST or triples.min(initial=0) < 0:
        return None
    keys = h * relations
    keys += r
    keys *= entities
    keys += t
    return _distinct(keys), relations, entities


def repeated(triples: IntArray) -> int:
    """Return how many triples are duplicates: each counts once in training and in splitting."""
    packed = _packed(triples.reshape(-1, 3))
    return len(triples) - len(distinct_triples(triples) if packed is None else packed[0])


def _first_of(keys: IntArray) -> BoolArray:
    """Return the places in sorted integers at which another one begins."""
    first = np.ones(len(keys), np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    return first


def _distinct(keys: IntArray) -> IntArray:
    """Integers, each once, sorted in place; several times as fast as sorting rows."""
    keys.sort()
    first = _first_of(keys)
    return keys if first.all() else keys[first]


def answered(parts: Sequence[IntArray], entities: int) -> tuple[IntArray, GroupedAnswers]:
    """The distinct queries of triples, as sorted keys of a :class:`FilterIndex`, and the answers of each,
    sorted, each once.

    For large graphs, little more than the result is in memory at any time.

    Args:
        parts: triples ``(n, 3)``, one part below the other, whose ids are below ``entities``.
    """
    relations = max((int(part[:, 1].max(initial=-1)) + 1 for part in parts), default=0)
    if 2 * relations * entities**2 < _WIDEST:
        pairs = _distinct(_answers_of(parts, entities))
        ids = np.remainder(pairs, max(1, entities))
        pairs //= max(1, entities)
    else:
        queries, answers = both_sides(np.concatenate(parts))
        keys = FilterIndex([], entities).keys(queries)
        pairs, ids = np.unique(np.stack([keys, answers], axis=1), axis=0).T
    starts = np.flatnonzero(_first_of(pairs))
    return pairs[starts], GroupedAnswers(np.append(starts, len(pairs)).astype(np.int64), ids)


def _answers_of(parts: Sequence[IntArray], entities: int) -> IntArray:
    """Both queries of each triple and what answers them, as integers: the query's key times the number of
    entities, plus the answer.
    """
    packed = np.empty(2 * sum(map(len, parts)), np.int64)
    end = 0
    for part in parts:
        h, r, t = part.T
        for tail, entity, answer in ((0, t, h), (1, h, t)):
            keys = packed[end : end + len(part)]
            end += len(part)
            np.multiply(r, 2, out=keys)
            keys += tail
            for ids in (entity, answer):
                keys *= entities
                keys += ids
    return packed


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
        return answered(self._parts, self.num_entities)

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
        matches = np.flatnonzero(known[at] == keys) if len(known) else np.zeros(0, np.int64)
        rows, ids = answers.take(at[matches])
        return matches[rows], ids

    def has(self, triples: IntArray) -> BoolArray:
        """Return which triples ``(n, 3)`` are known. The answers of a query are looked up once, however often
        it is asked.
        """
        queries = Queries(triples[:, 0], triples[:, 1], np.ones(len(triples), np.bool_))
        _, first, query = np.unique(self.keys(queries), return_index=True, return_inverse=True)
        rows, ids = self.lookup(queries[first])
        mask: BoolArray = np.isin(query * self.num_entities + triples[:, 2], rows * self.num_entities + ids)
        return mask

    def _scan(self, queries: Queries) -> tuple[IntArray, IntArray]:
        """Look up a few queries without sorting anything."""
        parts = []
        for query in queries:
            answers = [np.zeros(0, np.int64)] if self._links is None else [self._links.answers(query)]
            for h, r, t in (part.T for part in self._scanned):
                asked, other = (h, t) if query.target == "tail" else (t, h)
                answers.append(other[(asked == query.entity) & (r == query.relation)])
            parts.append(np.unique(np.concatenate(answers)))
        rows = np.repeat(np.arange(len(parts)), [len(ids) for ids in parts])
        return rows, np.concatenate([np.zeros(0, np.int64), *parts])


_HUB = 4096  # with more answers than this, candidates are looked up among the answers, not vice versa


class Columns:
    """The columns of entities among M candidates, which all differ."""

    def __init__(self, ids_M: IntArray) -> None:
        self.ids_M = ids_M
        self._order = np.argsort(ids_M, kind="stable")
        self._sorted = ids_M[self._order]

    def __len__(self) -> int:
        return len(self.ids_M)

    def of(self, entity_ids: IntArray) -> IntArray:
        """The column of each entity, -1 for those that are no candidates.

        >>> Columns(np.array([7, 3])).of(np.array([3, 4, 7])).tolist()
        [1, -1, 0]
        """
        if not len(self):
            return np.full(len(entity_ids), -1)
        at = np.minimum(np.searchsorted(self._sorted, entity_ids), len(self) - 1)
        return np.where(self._sorted[at] == entity_ids, self._order[at], -1)

    def answers(self, known: GroupedAnswers, rows: IntArray) -> tuple[IntArray, IntArray]:
        """The answers of B queries that are candidates, as (position in ``rows``, column) pairs.

        A hub with a million answers costs no more than its candidates.
        """
        hub_B = known.offsets[rows + 1] - known.offsets[rows] > max(_HUB, len(self))
        few = np.flatnonzero(~hub_B)
        positions, ids = known.take(rows[few])
        columns = self.of(ids)
        is_candidate = columns >= 0
        pairs = [(few[positions[is_candidate]], columns[is_candidate])]
        for b in np.flatnonzero(hub_B):
            of_A = known.ids[known.offsets[rows[b]] : known.offsets[rows[b] + 1]]
            at = np.minimum(np.searchsorted(of_A, self._sorted), len(of_A) - 1)
            columns = self._order[of_A[at] == self._sorted]
            pairs.append((np.full(len(columns), b), columns))
        return np.concatenate([b for b, _ in pairs]), np.concatenate([c for _, c in pairs])
