"""Constraints on which entities can answer a query, learned from a run's training triples.

Always excluded: a query's own entity, in a relation that links no entity to itself in training; text models
like to copy what they are asked about. Excluded on request: entities whose types do not fit (:class:`Typed`),
second answers where a relation has one (:class:`Functional`), entities that training links to the query's
entity by another triple (:class:`Unlinked`), and entities that are not on a given list (:class:`Listed`).

Shapes: B queries, N candidates, R relations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import scipy.sparse as sp

from kgmlm.core.arrays import BoolArray, Floats, IntArray
from kgmlm.core.errors import DataError, QueryError
from kgmlm.core.tables import named_rows
from kgmlm.graphs.graph import ContextGraph, KnowledgeGraph
from kgmlm.graphs.names import Resolver
from kgmlm.graphs.queries import TARGETS, Queries, Target, distinct_triples
from kgmlm.signals.linked import Linked
from kgmlm.signals.types import KEPT, EntityTypes, fills

MANY_TRIPLES = 10_000  # triples of a relation from which on they are not searched for repeats
# Training triples that a relation needs before it forbids anything; fixed beforehand, not tuned
MIN_TRIPLES = 20
# Training triples of a graph without self-loops in which rarer relations have none either
MIN_GRAPH_TRIPLES = 100
EXCEPTIONS = 0.01  # share of entities that may have several answers in a relation that has one; fixed, too
MISSED = -1e30  # the score of what a shortlist lacks: finite, and below any other
IMPOSSIBLE = -2e30  # the score of what cannot answer: finite, below what a shortlist misses


class Constraint(Protocol):
    """A constraint on which entities can answer, and on which can be asked about.

    Attributes:
        name: in reports and in names of files.
    """

    name: ClassVar[str]

    def allowed(self, queries: Queries) -> BoolArray:
        """Return which entities can answer each query, ``(B, N)``."""

    def askable(self, relation: int, tails: bool) -> BoolArray:
        """Return which entities can be asked for tails (or else heads) of a relation, ``(N,)``."""

    def for_graph(self, context: ContextGraph, relation_rows: IntArray) -> Constraint:
        """A copy for the entities and training triples of another graph."""

    def with_vectors(self, vectors_ND: Callable[[], Floats]) -> Constraint:
        """A copy for entities that have vectors."""

    def learned(self) -> Mapping[str, Any]:
        """The constraint's part of a report."""


@dataclass(frozen=True, eq=False)
class Typed:
    """Entities answer where their types fit.

    A side (a relation's tails, or heads) takes the entities that fill it in training, those whose other sides
    and given types go together with it as well as those of its own entities, and those of which nothing is
    known. A relation with fewer than :data:`MIN_TRIPLES` training triples takes all.
    """

    name: ClassVar[str] = "typed"

    types: EntityTypes
    _kept: dict[int, BoolArray] = field(default_factory=dict)

    def _fitting(self, side: int) -> BoolArray:
        if side < 0 or self.types.affinity.triples_S[side] < MIN_TRIPLES:
            return np.ones(len(self.types), np.bool_)
        if side not in self._kept:
            if (len(self._kept) + 1) * len(self.types) > 4 * KEPT:  # these have a byte each, scores four
                self._kept.clear()
            self._kept[side] = self.types.fitting(side)
        return self._kept[side]

    def allowed(self, queries: Queries) -> BoolArray:
        """See :class:`Constraint`."""
        sides, at = np.unique(self.types.sides_of(queries), return_inverse=True)
        rows = [self._fitting(side) for side in sides.tolist()]
        return np.stack(rows)[at] if rows else np.zeros((0, len(self.types)), np.bool_)

    def askable(self, relation: int, tails: bool) -> BoolArray:
        """See :class:`Constraint`: who is asked for tails fills the heads' side."""
        row = int(self.types.relation_rows[relation])
        return self._fitting(2 * row + tails if row >= 0 else -1)

    def for_graph(self, context: ContextGraph, relation_rows: IntArray) -> Typed:
        """See :class:`Constraint`."""
        return Typed(self.types.for_graph(context, relation_rows))

    def with_vectors(self, vectors_ND: Callable[[], Floats]) -> Typed:
        """See :class:`Constraint`."""
        return Typed(self.types.with_vectors(vectors_ND))

    def learned(self) -> Mapping[str, Any]:
        """See :class:`Constraint`."""
        return {"types_from": self.types.sources()}


@dataclass(frozen=True, eq=False)
class Functional:
    """Forbids further answers in relations that have one answer per entity.

    A relation has one tail for each head when it has :data:`MIN_TRIPLES` heads or more in training and at
    most :data:`EXCEPTIONS` of them have several tails; likewise one head for each tail. Then a query that
    training answers has no further answer, and an entity that has its own answers no other query.

    Attributes:
        one_R2: whether relation r has one tail for each head, or (column 1) one head for each tail.
        exceptions_R2: the number of entities that have several answers in training nevertheless.
        context: the graph whose training triples count as answers.
    """

    name: ClassVar[str] = "functional"

    one_R2: BoolArray
    exceptions_R2: IntArray
    context: ContextGraph

    @classmethod
    def learn(cls, context: ContextGraph) -> Functional:
        """From training triples."""
        counts_NS = fills(context.train, len(context.entities), len(context.relations))
        having_S = np.diff(sp.csc_array(counts_NS).indptr)
        several_S = np.diff(sp.csc_array(counts_NS > 1).indptr)
        one_S = (having_S >= MIN_TRIPLES) & (several_S <= EXCEPTIONS * having_S)
        by_head = np.arange(len(one_S)).reshape(-1, 2)[:, ::-1]  # a head's tails are counted where heads fill
        return cls(one_S[by_head], several_S[by_head].astype(np.int64), context)

    @cached_property
    def _fills(self) -> sp.csr_array:
        """In how many triples entities fill sides, ``(S, N)``."""
        counts_NS = fills(self.context.train, len(self.context.entities), len(self.context.relations))
        return sp.csr_array(counts_NS.T)

    def _filled(self, side: int) -> BoolArray:
        filled_N = np.zeros(len(self.context.entities), np.bool_)
        begin, end = self._fills.indptr[side : side + 2]
        filled_N[self._fills.indices[begin:end]] = True
        return filled_N

    def allowed(self, queries: Queries) -> BoolArray:
        """See :class:`Constraint`; training's answers stay allowed."""
        allowed_BN = np.ones((len(queries), len(self.context.entities)), np.bool_)
        asked_B = 2 * queries.relation_B + queries.side_B
        for side in np.unique(asked_B).tolist():
            relation, heads = divmod(side, 2)
            rows = np.flatnonzero(asked_B == side)
            if self.one_R2[relation, 1 - heads]:  # candidates that have theirs
                allowed_BN[rows] = ~self._filled(side)
            if self.one_R2[relation, heads]:  # queries that have theirs
                allowed_BN[rows[self._filled(side ^ 1)[queries.entity_B[rows]]]] = False
        allowed_BN[self.context.answers.lookup(queries)] = True
        return allowed_BN

    def askable(self, relation: int, tails: bool) -> BoolArray:
        """See :class:`Constraint`: who has its only answer need not be asked."""
        side = 0 if tails else 1
        if self.one_R2[relation, side]:
            return ~self._filled(2 * relation + 1 - side)
        return np.ones(len(self.context.entities), np.bool_)

    def for_graph(self, context: ContextGraph, relation_rows: IntArray) -> Functional:
        """See :class:`Constraint`: the run's relations, filled by the graph's training triples."""
        one_R2 = np.append(self.one_R2, [[False, False]], axis=0)[relation_rows]
        exceptions_R2 = np.append(self.exceptions_R2, [[0, 0]], axis=0)[relation_rows]
        return Functional(one_R2, exceptions_R2, context)

    def with_vectors(self, vectors_ND: Callable[[], Floats]) -> Functional:
        """See :class:`Constraint`: it needs none."""
        return self

    def learned(self) -> Mapping[str, Any]:
        """See :class:`Constraint`."""
        return {
            "one_tail": int(self.one_R2[:, 0].sum()),
            "one_head": int(self.one_R2[:, 1].sum()),
            "exceptions": int(self.exceptions_R2[self.one_R2].sum()),
        }


@dataclass(frozen=True, eq=False)
class Unlinked:
    """Forbids pairs of entities that training links by another triple, in either direction."""

    name: ClassVar[str] = "unlinked"

    linked: Linked

    def allowed(self, queries: Queries) -> BoolArray:
        """See :class:`Constraint`; training's answers stay allowed."""
        allowed_BN: BoolArray = self.linked.of_all(queries) == 0
        allowed_BN[self.linked.context.answers.lookup(queries)] = True
        return allowed_BN

    def askable(self, relation: int, tails: bool) -> BoolArray:
        """See :class:`Constraint`: anybody can be asked."""
        return np.ones(len(self.linked.context.entities), np.bool_)

    def for_graph(self, context: ContextGraph, relation_rows: IntArray) -> Unlinked:
        """See :class:`Constraint`."""
        return Unlinked(Linked(context))

    def with_vectors(self, vectors_ND: Callable[[], Floats]) -> Unlinked:
        """See :class:`Constraint`: it needs none."""
        return self

    def learned(self) -> Mapping[str, Any]:
        """See :class:`Constraint`."""
        return {"linked_pairs": self.linked.pairs}


@dataclass(frozen=True, eq=False)
class Listed:
    """Only entities of a list answer: of a relation and side, of a relation, or of any.

    Attributes:
        labels: of the entities that answer, by the label of the relation ("" for any that has no list of its
            own) and the side that is asked.
        context: the graph that is asked.
    """

    name: ClassVar[str] = "candidates"

    labels: Mapping[tuple[str, Target], frozenset[str]]
    context: ContextGraph
    _kept: dict[tuple[str, Target], BoolArray] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, graph: KnowledgeGraph) -> Listed:
        """A table with the column entity, by label or name, and, if you like, relation and side.

        An empty relation is any, an empty side is both.

        Raises:
            DataError: when the file is no such table.
            QueryError: naming the first line with an unknown entity, relation or side.
        """

        def check(header: Sequence[str]) -> None:
            more = set(header) - {"entity", "relation", "side"}
            if "entity" not in header or more:
                wrong = "has no column entity" if "entity" not in header else f"has a column '{min(more)}'"
                raise DataError(f"{path} {wrong}; its columns are entity and, if you like, relation and side")

        rows = named_rows(path, "entity", check)
        find, by_side = Resolver(graph), defaultdict[tuple[str, Target], set[str]](set)
        for where, row in rows:
            try:
                label = graph.entities[find.entity(row["entity"])].label
                relation = row.get("relation", "")
                of = graph.relations[find.relation(relation)].label if relation else ""
                side = row.get("side", "")
                if side not in ("", *TARGETS):
                    raise QueryError(f"a side is head or tail, not '{side}'")
            except QueryError as error:
                raise QueryError(f"{where}: {error}") from None
            for target in TARGETS:
                if side in ("", target):
                    by_side[of, target].add(label)
        if not by_side:
            raise DataError(f"{path} lists no entity below its first line, which names the columns")
        return cls({key: frozenset(labels) for key, labels in by_side.items()}, graph.context)

    def _allowed(self, relation: int, target: Target) -> BoolArray:
        """The entities that answer one side of a relation ``(N,)``."""
        key = (self.context.relations[relation].label, target)
        key = key if key in self.labels else ("", target)
        if key not in self.labels:
            return np.ones(len(self.context.entities), np.bool_)
        if key not in self._kept:
            find, allowed_N = self.context.entities.find, np.zeros(len(self.context.entities), np.bool_)
            allowed_N[[i for label in self.labels[key] if (i := find(label)) is not None]] = True
            self._kept[key] = allowed_N
        return self._kept[key]

    def allowed(self, queries: Queries) -> BoolArray:
        """See :class:`Constraint`."""
        sides, at = np.unique(2 * queries.relation_B + queries.side_B, return_inverse=True)
        rows = [self._allowed(side // 2, "head" if side % 2 else "tail") for side in sides.tolist()]
        return np.stack(rows)[at] if rows else np.zeros((0, len(self.context.entities)), np.bool_)

    def askable(self, relation: int, tails: bool) -> BoolArray:
        """See :class:`Constraint`: anybody can be asked."""
        return np.ones(len(self.context.entities), np.bool_)

    def for_graph(self, context: ContextGraph, relation_rows: IntArray) -> Listed:
        """See :class:`Constraint`: the entities and relations of the same labels."""
        return Listed(self.labels, context)

    def with_vectors(self, vectors_ND: Callable[[], Floats]) -> Listed:
        """See :class:`Constraint`: it needs none."""
        return self

    def learned(self) -> Mapping[str, Any]:
        """See :class:`Constraint`."""
        return {"lists": len(self.labels), "listed": len(frozenset[str]().union(*self.labels.values()))}


@dataclass(frozen=True, eq=False)
class Possible:
    """The candidates that can answer.

    Attributes:
        loop_free_R: relations of the graph whose queries their own entity cannot answer.
        further: what else they must meet.
    """

    loop_free_R: BoolArray
    further: tuple[Constraint, ...] = ()

    @classmethod
    def learn(cls, train: IntArray, relations: int) -> Possible:
        """From training triples ``(n, 3)`` over so many relations.

        A relation is loop-free when it has :data:`MIN_TRIPLES` distinct training triples or more and none of
        them is a self-loop; where a graph of :data:`MIN_GRAPH_TRIPLES` triples has no self-loop at all, all
        relations are. Where a relation has :data:`MANY_TRIPLES`, repeats are not looked for.

        >>> chain = np.array([[i, 0, i + 1] for i in range(20)])
        >>> Possible.learn(chain, 2).loop_free_R.tolist()
        [True, False]
        >>> Possible.learn(np.array([[i, i % 9, i + 1] for i in range(100)]), 10).loop_free_R.all()
        np.True_
        """
        h, r, t = train.T
        loops_R = np.bincount(r[h == t], minlength=relations)
        plenty_R = np.bincount(r, minlength=relations) >= MANY_TRIPLES
        distinct = distinct_triples(train[~plenty_R[r]])
        counts_R = np.bincount(distinct[:, 1], minlength=relations)
        if not loops_R.any() and (plenty_R.any() or counts_R.sum() >= MIN_GRAPH_TRIPLES):
            return cls(np.ones(relations, np.bool_))
        return cls((plenty_R | (counts_R >= MIN_TRIPLES)) & (loops_R == 0))

    @classmethod
    def anything(cls, relations: int) -> Possible:
        """No constraint at all."""
        return cls(np.zeros(relations, np.bool_))

    def allowing_self(self) -> Possible:
        """A copy in which each query's own entity may answer."""
        return replace(self, loop_free_R=np.zeros_like(self.loop_free_R))

    def without_further(self) -> Possible:
        """A copy that only constrains whether a query's own entity may answer."""
        return replace(self, further=())

    def met(self, *further: Constraint) -> Possible:
        """A copy with further constraints."""
        return replace(self, further=(*self.further, *further))

    def for_graph(self, relation_rows: IntArray, context: ContextGraph | None = None) -> Possible:
        """A copy for another graph, whose relation i is relation ``relation_rows[i]`` here, or -1.

        Args:
            context: that graph, which further constraints look at.
        """
        further: tuple[Constraint, ...] = ()
        if self.further:
            assert context is not None, "these constraints know entities"
            further = tuple(c.for_graph(context, relation_rows) for c in self.further)
        return Possible(np.append(self.loop_free_R, False)[relation_rows], further)

    def with_vectors(self, vectors_ND: Callable[[], Floats]) -> Possible:
        """A copy for entities that have vectors."""
        return replace(self, further=tuple(c.with_vectors(vectors_ND) for c in self.further))

    def own_B(self, queries: Queries) -> BoolArray:
        """Return which of B queries cannot be answered by their own entity."""
        return self.loop_free_R[queries.relation_B]

    def allowed(self, queries: Queries) -> BoolArray:
        """Return which entities can answer each query, ``(B, N)``, for all constraints that know entities.

        Raises:
            ValueError: when there is none.
        """
        allowed_BN: BoolArray = np.logical_and.reduce([c.allowed(queries) for c in self.further])
        rows = np.flatnonzero(self.own_B(queries))
        allowed_BN[rows, queries.entity_B[rows]] = False
        return allowed_BN

    def askable(self, relation: int, tails: bool, entities: int) -> BoolArray:
        """Return which of so many entities can be asked for tails (or else heads) of a relation, ``(N,)``."""
        found_N = np.ones(entities, np.bool_)
        for constraint in self.further:
            found_N &= constraint.askable(relation, tails)
        return found_N

    def forbidden(self, queries: Queries, entity_ids: IntArray | None = None) -> tuple[IntArray, IntArray]:
        """The candidates that cannot answer, as (row, column) pairs.

        Args:
            entity_ids: candidates, ``(N,)`` or a row for each query, ``(B, N)``; None is every entity.
        """
        if self.further:
            rows, columns = np.nonzero(~self._among(self.allowed(queries), entity_ids))
            return rows, columns
        rows = np.flatnonzero(self.own_B(queries))
        own = queries.entity_B[rows]
        if entity_ids is None:
            return rows, own
        candidates = entity_ids[rows] if entity_ids.ndim == 2 else entity_ids[None]
        at, columns = np.nonzero(candidates == own[:, None])
        return rows[at], columns

    @staticmethod
    def _among(allowed_BN: BoolArray, entity_ids: IntArray | None) -> BoolArray:
        """Columns of some candidates; a place without one, -1, is allowed."""
        if entity_ids is None:
            return allowed_BN
        if entity_ids.ndim == 1:
            return allowed_BN[:, entity_ids]
        return np.take_along_axis(allowed_BN, np.maximum(entity_ids, 0), 1) | (entity_ids < 0)

    def applied(self, scores_BN: Floats, queries: Queries, entity_ids: IntArray | None = None) -> Floats:
        """A copy of scores in which what cannot answer has :data:`IMPOSSIBLE`."""
        if self.further:
            allowed_BN = self._among(self.allowed(queries), entity_ids)
            return np.where(allowed_BN, scores_BN, np.float32(IMPOSSIBLE))
        scores_BN = scores_BN.copy()
        scores_BN[self.forbidden(queries, entity_ids)] = IMPOSSIBLE
        return scores_BN
