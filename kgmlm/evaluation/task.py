"""Ranking tasks: the graph that is evaluated, the queries of its triples, who competes, and the ranks.

A :class:`Scope` puts the evaluated graph beside what the run was trained on: an entity is unseen when the
*run* was not trained on it, and a leak is refused before anything is scored. A :class:`RankingTask` has both
queries of each triple that a protocol asks, for evaluation and for validation alike.

Shapes: N entities, M candidates, T triples, B = 2T queries (T where a protocol asks one side), d distinct
queries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgmlm.core.arrays import BoolArray, Floats, IntArray
from kgmlm.core.config import Protocol, is_expected
from kgmlm.core.errors import ConfigError, DataError, counted
from kgmlm.core.processes import ProcessGroup
from kgmlm.evaluation.metrics import Ranks, rank_answers
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import (
    SPLITS,
    Columns,
    FilterIndex,
    Groups,
    Queries,
    both_sides,
)
from kgmlm.ranking.ranker import MAX_SCORES

WHOLE = (0, 1, 2)  # head, relation and tail of a triple
_COMPARED = 2**22  # scores compared at once: 16 MB


@dataclass(frozen=True, eq=False)
class Scope:
    """A graph to evaluate on, and what a model was trained on.

    Attributes:
        graph: texts of the candidates, triples to ask, known answers.
        seen_N: which entities the model's training triples have.
        own_N: which entities belong to the evaluated graph; others are further candidates.
        other: whether it is not the graph that the model was trained on.
        earlier: other graphs than this that the model was trained on.
    """

    graph: KnowledgeGraph
    seen_N: BoolArray
    own_N: BoolArray
    other: bool = False
    earlier: Sequence[KnowledgeGraph] = ()

    @classmethod
    def of(cls, graph: KnowledgeGraph, earlier: Sequence[KnowledgeGraph] = ()) -> Scope:
        """The graph that the model was trained on; entities of ``earlier`` graphs count as seen, too."""
        seen_N = graph.seen_N | _seen(graph.entities, earlier) if earlier else graph.seen_N
        return cls(graph, seen_N, np.ones(len(graph.entities), np.bool_), earlier=earlier)

    @classmethod
    def inductive(
        cls,
        trained: KnowledgeGraph,
        graph: KnowledgeGraph,
        protocol: Protocol,
        *,
        earlier: Sequence[KnowledgeGraph] = (),
        allow_seen_entities: bool = False,
        allow_new_relations: bool = False,
    ) -> Scope:
        """Another graph than the one that the model was trained on; entities and relations meet by label.

        Args:
            earlier: further graphs that the model was trained on before.
            allow_seen_entities: evaluate though training triples have some of the graph's entities; the
                breakdown tells them apart.
            allow_new_relations: read relations that training has not from their names.

        Raises:
            DataError: when the model was trained on an evaluated triple, on an entity that would count as
                unseen, or not on a relation.
        """
        train = trained.splits["train"]
        known_relations = {trained.relations[r].label for r in np.unique(train[:, 1])}
        asked = graph.triples(protocol.split)
        new = sorted({graph.relations[r].label for r in np.unique(asked[:, 1])} - known_relations)
        if new and not allow_new_relations:
            others = f" nor on {counted(len(new) - 1, 'other')}" if len(new) > 1 else ""
            raise DataError(
                f"the run was not trained on the relation '{new[0]}' of '{graph.name}'{others}; "
                "--allow-new-relations reads them from their names"
            )
        _, first = np.unique(asked, axis=0, return_index=True)
        evaluated = asked[np.sort(first)]
        shared = evaluated[held(graph.labels(evaluated), (trained, *earlier), "train")]
        if len(shared):
            raise DataError(
                f"the run was trained on {len(shared):,} of the {len(evaluated):,} {protocol.split} triples "
                f"of '{graph.name}', such as ({', '.join(graph.labeled(shared[:1])[0])}); "
                "evaluate a run of another graph"
            )
        own = len(graph.entities)
        overlap = np.flatnonzero(_seen(graph.entities, [trained, *earlier]))
        if len(overlap) and not allow_seen_entities:
            raise DataError(
                f"the run was trained on {len(overlap):,} of the {own:,} entities of '{graph.name}', "
                f"which would count as unseen, such as '{graph.entities[int(overlap[0])].label}'; "
                "--allow-seen-entities tells them apart instead"
            )
        if protocol.candidates in ("all", "train"):
            further_N = ~_among(trained.entities.table.column("label"), graph.entities.table.column("label"))
            graph = graph.extended(trained.entities.take(np.flatnonzero(further_N)))
        seen_N = _seen(graph.entities, [trained, *earlier])
        own_N = np.arange(len(graph.entities)) < own
        return cls(graph, seen_N, own_N, other=True, earlier=(trained, *earlier))

    def known(self, triples: IntArray, split: str) -> int:
        """Return how many of these triples are in a split of the graphs that the model was trained on."""
        return int(self._held(triples, split, WHOLE).sum())

    def half_links(self, triples: IntArray) -> BoolArray:
        """Return whether training has (head, relation) and (relation, tail) of some triples ``(T, 2)``."""
        return np.stack([self._held(triples, "train", half) for half in ((0, 1), (1, 2))], 1)

    def _held(self, triples: IntArray, split: str, columns: tuple[int, ...]) -> BoolArray:
        held_T = held(self.graph.labels(triples), self.earlier, split, columns)
        if not self.other and split in self.graph.splits:
            held_T |= _has(self.graph, split, triples, columns)
        return held_T

    def members(self, protocol: Protocol) -> BoolArray:
        """Return which entities are candidates under a protocol."""
        if protocol.candidates == "train":
            return self.seen_N
        if protocol.candidates == "graph":
            return self.own_N
        member_N = np.ones_like(self.seen_N)
        if protocol.candidates == "split":
            member_N[:] = False
            member_N[self.graph.triples(protocol.split)[:, [0, 2]].ravel()] = True
        return member_N

    def sampled(self, protocol: Protocol) -> IntArray:
        """The triples that a protocol asks, before those outside its candidates are left out."""
        triples = self.graph.triples(protocol.split)
        if protocol.triples != "all":
            new = ~self.seen_N[triples[:, [0, 2]]].all(1)
            triples = triples[new if protocol.triples == "unseen" else ~new]
        if not protocol.max_triples or protocol.max_triples >= len(triples):
            return triples
        rng = np.random.default_rng(protocol.seed)
        return triples[np.sort(rng.choice(len(triples), protocol.max_triples, replace=False))]


def _among(labels: pa.ChunkedArray, others: pa.ChunkedArray) -> BoolArray:
    """Return which labels are among others."""
    is_among: BoolArray = np.asarray(pc.is_in(labels, others.combine_chunks()), np.bool_)
    return is_among


def _seen(entities: EntityTable, graphs: Sequence[KnowledgeGraph]) -> BoolArray:
    """Return which entities training triples of some graphs have, by label."""
    seen_N = np.zeros(len(entities), np.bool_)
    for graph in graphs:
        trained = graph.entities.table.column("label").filter(pa.array(graph.seen_N))
        seen_N |= _among(entities.table.column("label"), trained)
    return seen_N


def held(
    triples: pa.Table, graphs: Sequence[KnowledgeGraph], split: str, columns: tuple[int, ...] = WHOLE
) -> BoolArray:
    """Return which of these triples, given by labels, agree in some columns with a triple in a split of
    one of the graphs.
    """
    held_T = np.zeros(len(triples), np.bool_)
    for graph in (g for g in graphs if split in g.splits):
        relations = pa.chunked_array([pa.array([r.label for r in graph.relations], pa.large_string())])
        ids = [
            pc.fill_null(pc.index_in(triples.column(name), labels.combine_chunks()), -1).to_numpy()
            for name, labels in (
                ("head", graph.entities.table.column("label")),
                ("relation", relations),
                ("tail", graph.entities.table.column("label")),
            )
        ]
        asked = np.stack(ids, axis=1).astype(np.int64)
        known_rows = np.flatnonzero((asked[:, list(columns)] >= 0).all(1))
        held_T[known_rows] |= _has(graph, split, asked[known_rows], columns)
    return held_T


def _has(graph: KnowledgeGraph, split: str, triples: IntArray, columns: tuple[int, ...] = WHOLE) -> BoolArray:
    """Return which of these triples agree in some columns, including the relation, with a triple in a
    split of a graph.
    """
    count, every = len(graph.entities), graph.splits[split]
    ends = [column for column in columns if column != 1]
    near_N = np.zeros(count, np.bool_)  # most triples have other entities
    near_N[triples[:, ends[0]]] = True
    keys = []
    for some in (triples, every[near_N[every[:, ends[0]]]]):
        key = some[:, 1]
        for end in ends:
            key = key * count + some[:, end]
        keys.append(key)
    mask: BoolArray = np.isin(keys[0], keys[1])
    return mask


class Part(NamedTuple):
    """Queries of a task that are ranked together.

    Attributes:
        at: which queries.
        group: the place of each among the distinct queries that are scored.
        answers: the column of each one's answer among what is scored.
        known: known answers as (position in ``at``, column) pairs.
    """

    at: IntArray
    group: IntArray
    answers: IntArray
    known: tuple[IntArray, IntArray]


@dataclass(frozen=True, eq=False)
class RankingTask:
    """The queries of each evaluated triple, and who competes; each distinct query is scored once.

    Attributes:
        sampled: the triples that the protocol asks, some of which may lie outside its candidates.
        triples: the others, which are evaluated.
        queries: all heads, then all tails; one of these where the protocol asks one side.
        answers: of each.
        groups: which queries are equal.
        known: the filter.
        member_N: which entities are candidates under the protocol.
        columns: a sample of the candidates, which alone are scored; None is all entities.
    """

    sampled: IntArray
    triples: IntArray
    queries: Queries
    answers: IntArray
    groups: Groups
    known: FilterIndex
    member_N: BoolArray
    columns: Columns | None = None

    @classmethod
    def of(cls, graph: KnowledgeGraph | Scope, protocol: Protocol, among: int = 0) -> RankingTask:
        """The task of a protocol.

        Args:
            among: how many entities to draw by the protocol's seed, beside all that answer a query; 0 is all.

        Raises:
            DataError: when there is nothing to ask.
            ConfigError: when the filter names an unknown split.
        """
        if unknown := set(protocol.filter) - set(SPLITS):
            raise ConfigError(
                f"the filter names an unknown split '{unknown.pop()}' (there are: {', '.join(SPLITS)})"
            )
        scope = graph if isinstance(graph, Scope) else Scope.of(graph)
        member_N, sampled = scope.members(protocol), scope.sampled(protocol)
        triples = sampled[member_N[sampled[:, [0, 2]]].all(1)]
        if not len(triples):
            raise DataError(f"the split '{protocol.split}' has no triple to evaluate under this protocol")
        queries, answers = both_sides(triples)
        if protocol.side != "both":
            asked_B = queries.tail_B == (protocol.side == "tail")
            queries, answers = queries[asked_B], answers[asked_B]
        known = scope.graph.known(protocol.filter)
        groups, members, columns = Groups.of(known.keys(queries)), np.flatnonzero(member_N), None
        if among and among < len(members):
            drawn = np.random.default_rng(protocol.seed).choice(members, among, replace=False)
            columns = Columns(np.union1d(answers, drawn))
        return cls(sampled, triples, queries, answers, groups, known, member_N, columns)

    @property
    def sides(self) -> int:
        """How many queries each triple has."""
        return len(self.queries) // len(self.triples)

    @property
    def distinct(self) -> Queries:
        """The distinct queries."""
        return self.queries[self.groups.first]

    @property
    def digest(self) -> str:
        """A digest of the queries and answers: all who share the work must have the same."""
        queries = self.queries
        digest = hashlib.sha256()
        for column in (queries.entity_B, queries.relation_B, queries.tail_B, self.answers):
            digest.update(np.ascontiguousarray(column).data)
        return digest.hexdigest()

    @property
    def ids(self) -> IntArray | None:
        """The entities to score; None is all."""
        return None if self.columns is None else self.columns.ids_M

    @property
    def width(self) -> int:
        """How many entities are scored per query."""
        return len(self.member_N) if self.columns is None else len(self.columns)

    def share(self, world: ProcessGroup) -> IntArray:
        """The groups that this process asks, so that each process ranks about as many answers.

        Raises:
            RunError: when the processes were asked different queries.
        """
        world.agree(self.digest, "triples")
        return world.share(self.groups.sizes)

    def view(self) -> View:
        """An empty view, to be filled with ranks among the candidates."""
        if self.columns is None:
            return View.of(self.member_N, self.triples, sides=self.sides)
        everyone, count = np.arange(len(self.columns)), len(self.queries)
        return View(everyone, everyone, np.ones(count, np.bool_), np.zeros((3, count), np.int64))

    def parts(self, rows: IntArray) -> Iterator[Part]:
        """The queries of some distinct ones, in parts: a distinct query of a hub may stand for thousands."""
        every, group = self.groups.take(rows)
        most = max(1, MAX_SCORES // self.width)
        for start in range(0, len(every), most):
            at = every[start : start + most]
            answers, known = self.answers[at], self._places(*self.known.lookup(self.queries[at]))
            if self.columns is not None:
                answers = self.columns.of(answers)
            yield Part(at, group[start : start + most], answers, known)

    def _places(self, rows: IntArray, ids: IntArray) -> tuple[IntArray, IntArray]:
        """Entities that rows have as columns of what is scored, without those that are not."""
        if self.columns is None:
            return rows, ids
        columns = self.columns.of(ids)
        return rows[columns >= 0], columns[columns >= 0]


@dataclass(frozen=True, eq=False)
class View:
    """A set of candidates, the queries that can be asked of it, and their ranks as they come in.

    Attributes:
        ids: the candidates.
        column_N: column of each entity among them, -1 for the others.
        asked_B: queries whose whole triple lies in the set.
        ranks_3B: optimistic, pessimistic, candidates.
    """

    ids: IntArray
    column_N: IntArray
    asked_B: BoolArray
    ranks_3B: IntArray

    @classmethod
    def of(
        cls, member_N: BoolArray, triples: IntArray, among_T: BoolArray | None = None, sides: int = 2
    ) -> View:
        """An empty view of the candidates ``member_N``, and of the queries of triples that lie among them."""
        ids = np.flatnonzero(member_N)
        column_N = np.full(len(member_N), -1)
        column_N[ids] = np.arange(len(ids))
        asked_T = member_N[triples[:, [0, 2]]].all(1)
        asked_B = np.tile(asked_T if among_T is None else asked_T & among_T, sides)
        return cls(ids, column_N, asked_B, np.zeros((3, len(asked_B)), np.int64))

    def rank(self, scores_dN: Floats, part: Part) -> None:
        """Rank queries by the scores of the distinct ones, a few of them at a time."""
        asked = np.flatnonzero(self.asked_B[part.at])
        step = max(1, _COMPARED // scores_dN.shape[1])
        for start in range(0, len(asked), step):
            self._rank(scores_dN, part, asked[start : start + step])

    def _rank(self, scores_dN: Floats, part: Part, some: IntArray) -> None:
        """Rank some of the queries of a part, all of which are asked."""
        scores_bN = scores_dN[part.group[some]]
        if len(self.ids) < len(self.column_N):
            scores_bN = scores_bN[:, self.ids]
        row_of = np.full(len(part.at), -1)
        row_of[some] = np.arange(len(some))
        rows, columns = row_of[part.known[0]], self.column_N[part.known[1]]
        use = (rows >= 0) & (columns >= 0)
        ranks = rank_answers(scores_bN, self.column_N[part.answers[some]], (rows[use], columns[use]))
        self.ranks_3B[:, part.at[some]] = ranks.optimistic_B, ranks.pessimistic_B, ranks.candidates_B

    def result(self) -> Ranks:
        """Ranks of the queries that were asked."""
        return Ranks(*self.ranks_3B[:, self.asked_B])


def _kept_by_pykeen(graph: KnowledgeGraph, triples: IntArray) -> BoolArray:
    """Return which triples PyKEEN would evaluate if all their entities were trained: each once, with trained
    relations.
    """
    kept_T = np.zeros(len(triples), np.bool_)
    kept_T[np.unique(triples, axis=0, return_index=True)[1]] = True
    kept_T &= np.isin(triples[:, 1], graph.splits["train"][:, 1])
    return kept_T


@dataclass(frozen=True, eq=False)
class _Drawn(View):
    """A view that ranks each query among its own few candidates.

    Attributes:
        own_B: the entity of each query.
        first_B: for each query, the first one with the same answer, so that duplicate triples get the same
            negatives.
        protocol: says how many negatives, how they are drawn, and by which seed.
    """

    own_B: IntArray
    first_B: IntArray
    protocol: Protocol

    def rank(self, scores_dN: Floats, part: Part) -> None:
        at, answers, (rows, ids) = part.at, part.answers, part.known
        bounds = np.searchsorted(rows, np.arange(len(at) + 1))  # a filter index answers row by row
        for b in np.flatnonzero(self.asked_B[at]):
            seeds = [self.protocol.seed, int(self.first_B[at[b]])]  # whatever the batches
            rng = np.random.default_rng(seeds)
            drawn = self._negatives(rng, ids[bounds[b] : bounds[b + 1]], answers[b], self.own_B[at[b]])
            few = np.append(drawn, answers[b])
            ranks = rank_answers(scores_dN[part.group[b], few][None], np.array([len(drawn)]))
            self.ranks_3B[:, at[b]] = [
                int(x[0]) for x in (ranks.optimistic_B, ranks.pessimistic_B, ranks.candidates_B)
            ]

    def _negatives(
        self, rng: np.random.Generator, known: IntArray, answer: np.int64, own: np.int64
    ) -> IntArray:
        count = self.protocol.negatives
        if self.protocol.negatives_by == "grail":
            allowed = self.ids[~np.isin(self.ids, np.append(known, own))]
            return rng.choice(allowed, count) if len(allowed) else allowed
        taken = np.append(known, answer)
        drawn = rng.choice(self.ids, min(len(self.ids), count + len(taken)), replace=False)
        return drawn[~np.isin(drawn, taken)][:count]


def main_view(task: RankingTask, protocol: Protocol) -> View:
    """The view that a protocol ranks in: all its candidates, or negatives that are drawn from them.

    Raises:
        ConfigError: when more negatives are to be drawn than there are.
    """
    main = task.view()
    if protocol.negatives and protocol.negatives_by == "drawing" and protocol.negatives >= len(main.ids):
        raise ConfigError(
            f"{protocol.negatives:,} negatives cannot be drawn from {len(main.ids):,} candidates, one of "
            "which is the answer; ask for fewer, or for 0 to rank among all"
        )
    if protocol.negatives and not is_expected(protocol):
        same = np.stack([task.known.keys(task.queries), task.answers])
        _, first, where = np.unique(same, axis=1, return_index=True, return_inverse=True)
        own_B, first_B = task.queries.entity_B, first[where.reshape(-1)]
        return _Drawn(**vars(main), own_B=own_B, first_B=first_B, protocol=protocol)
    return main


def comparable_view(scope: Scope, triples: IntArray, protocol: Protocol) -> View | None:
    """The view that PyKEEN would rank in, on the run's own graph, where a protocol asks for it."""
    graph = scope.graph
    if not protocol.pykeen or protocol.negatives or scope.other or not graph.seen_N.any():
        return None
    sides = 2 if protocol.side == "both" else 1
    return View.of(graph.seen_N, triples, _kept_by_pykeen(graph, triples), sides)
