"""From a protocol to ranks: which triples are evaluated, which entities compete, filtered ranks.

A :class:`Scope` puts the evaluated graph beside what the run was trained on: an entity is unseen when the
*run* was not trained on it, and a leak is refused before anything is scored. Every triple of the split is
kept. Scores come from the ranker, which knows training's answers alone; the others meet scores only here, in
the filter and in the ranks.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from kgmlm.core.arrays import BoolArray, IntArray
from kgmlm.core.config import Protocol, is_expected
from kgmlm.core.errors import ConfigError, DataError, counted
from kgmlm.core.processes import World, sharing
from kgmlm.core.progress import Watcher
from kgmlm.core.workers import Make, Opened, Tick, Work, Workers, piece_size
from kgmlm.evaluation.metrics import Ranks, rank_answers, write_ranks
from kgmlm.evaluation.results import (
    about_candidates,
    about_constraints,
    about_own_entity,
    about_relations,
    about_retrieval,
    breakdown,
    brief,
    metrics_of,
)
from kgmlm.graphs.graph import EntityTable, KnowledgeGraph
from kgmlm.graphs.queries import SPLITS, FilterIndex, Groups, Queries, both_sides
from kgmlm.ranking.constraints import MISSED
from kgmlm.ranking.ranker import MAX_SCORES, Scorer
from kgmlm.ranking.retrieval import Retrieval, scores_of

if TYPE_CHECKING:
    pass

WHOLE = (0, 1, 2)  # head, relation and tail of a triple


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
        """The graph that the model was trained on; what ``earlier`` graphs have was seen, too."""
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
        """How many of some triples of the graph a split of the graphs has that the model was trained on."""
        return int(self._held(triples, split, WHOLE).sum())

    def half_links(self, triples: IntArray) -> BoolArray:
        """Whether training has (head, relation) and (relation, tail) of some triples ``(T, 2)``."""
        return np.stack([self._held(triples, "train", half) for half in ((0, 1), (1, 2))], 1)

    def _held(self, triples: IntArray, split: str, columns: tuple[int, ...]) -> BoolArray:
        held_T = held(self.graph.labels(triples), self.earlier, split, columns)
        if not self.other and split in self.graph.splits:
            held_T |= _has(self.graph, split, triples, columns)
        return held_T

    def members(self, protocol: Protocol) -> BoolArray:
        """Which entities are candidates under a protocol."""
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
    """Which labels are among others."""
    found: BoolArray = np.asarray(pc.is_in(labels, others.combine_chunks()), np.bool_)
    return found


def _seen(entities: EntityTable, graphs: Sequence[KnowledgeGraph]) -> BoolArray:
    """Which entities training triples of some graphs have, by label."""
    seen_N = np.zeros(len(entities), np.bool_)
    for graph in graphs:
        trained = graph.entities.table.column("label").filter(pa.array(graph.seen_N))
        seen_N |= _among(entities.table.column("label"), trained)
    return seen_N


def held(
    triples: pa.Table, graphs: Sequence[KnowledgeGraph], split: str, columns: tuple[int, ...] = WHOLE
) -> BoolArray:
    """Which of some triples, given by labels, a split of one of the graphs has, by some of their columns."""
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
        there = np.flatnonzero((asked[:, list(columns)] >= 0).all(1))
        held_T[there] |= _has(graph, split, asked[there], columns)
    return held_T


def _has(graph: KnowledgeGraph, split: str, triples: IntArray, columns: tuple[int, ...] = WHOLE) -> BoolArray:
    """Which of some triples a split of a graph has, by some of their columns, the relation among these."""
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
    found: BoolArray = np.isin(keys[0], keys[1])
    return found


def within(triples: IntArray, member_N: BoolArray, protocol: Protocol) -> IntArray:
    """The triples whose entities are candidates.

    Raises:
        DataError: when there is none.
    """
    triples = triples[member_N[triples[:, [0, 2]]].all(1)]
    if not len(triples):
        raise DataError(f"the split '{protocol.split}' has no triple to evaluate under this protocol")
    return triples


Scores = npt.NDArray[np.float32]
_COMPARED = 2**22  # scores compared at once: 16 MB


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Ranks of both queries of each evaluated triple (all heads, then all tails), and the report.

    Attributes:
        triples: (n, 3) ids; row i of the 2n ranks belongs to triple ``i % n``.
        ranks: among the protocol's candidates.
        scores_B: the answers' scores.
        report: a JSON-ready object.
    """

    graph: KnowledgeGraph
    triples: IntArray
    tail_B: BoolArray
    ranks: Ranks
    scores_B: torch.Tensor
    report: Mapping[str, Any]

    def write_ranks(self, path: Path, made_by: str = "", *, follow: bool = False) -> None:
        """Per-query ranks as Parquet, keyed by labels, whole or not at all.

        Args:
            path: a link is followed, and a pipe or a device written into, if ``follow`` says so.
            made_by: says of which scores of a run they are.
        """
        scores_B = self.scores_B.numpy()
        write_ranks(path, self.graph, self.triples, self.tail_B, self.ranks, scores_B, made_by, follow=follow)


@dataclass(frozen=True, eq=False)
class Asked:
    """Both queries of each evaluated triple, grouped so that each distinct query is scored once.

    Attributes:
        queries: all heads, then all tails.
        answers: of each.
        groups: which of them are equal.
        known: the filter.
    """

    queries: Queries
    answers: IntArray
    groups: Groups
    known: FilterIndex

    @classmethod
    def of(cls, triples: IntArray, graph: KnowledgeGraph, protocol: Protocol) -> Asked:
        """Of some triples of a graph, whose splits are the protocol's filter."""
        queries, answers = both_sides(triples)
        index = graph.known(protocol.filter)
        return cls(queries, answers, Groups.of(index.keys(queries)), index)

    @property
    def distinct(self) -> Queries:
        """The distinct queries."""
        return self.queries[self.groups.first]

    @property
    def digest(self) -> str:
        """Of what is asked: who does a share of the work must ask the same."""
        queries = self.queries
        digest = hashlib.sha256()
        for column in (queries.entity_B, queries.relation_B, queries.tail_B, self.answers):
            digest.update(np.ascontiguousarray(column).data)
        return digest.hexdigest()

    def share(self, world: World) -> IntArray:
        """The groups that this process asks, so that each process ranks about as many answers.

        Raises:
            RunError: when the processes were asked different queries.
        """
        world.agree(self.digest, "triples")
        return world.share(self.groups.sizes)

    def in_parts(self, rows: IntArray, most: int) -> Iterator[tuple[IntArray, IntArray]]:
        """As :meth:`Groups.take`, some queries at a time: a hub may be asked about in thousands of them."""
        at, group = self.groups.take(rows)
        most = max(1, most)
        for start in range(0, len(at), most):
            yield at[start : start + most], group[start : start + most]


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
    def of(cls, member_N: BoolArray, triples: IntArray, among_T: BoolArray | None = None) -> View:
        """Of the queries of all triples, or of those ``among`` them that are marked."""
        ids = np.flatnonzero(member_N)
        column_N = np.full(len(member_N), -1)
        column_N[ids] = np.arange(len(ids))
        asked_T = member_N[triples[:, [0, 2]]].all(1)
        asked_B = np.tile(asked_T if among_T is None else asked_T & among_T, 2)
        return cls(ids, column_N, asked_B, np.zeros((3, len(asked_B)), np.int64))

    def rank(
        self, scores_dN: torch.Tensor, group: IntArray, at: IntArray, answers: IntArray,
        known: tuple[IntArray, IntArray],
    ) -> None:  # fmt: skip
        """Rank the queries ``at`` by scores of all entities, a few of them at a time.

        Args:
            scores_dN: of the distinct queries.
            group: which of these each query is.
            known: known answers as (position in ``at``, entity id) pairs.
        """
        asked = np.flatnonzero(self.asked_B[at])
        step = max(1, _COMPARED // scores_dN.shape[1])
        for start in range(0, len(asked), step):
            self._rank(scores_dN, group, at, answers, known, asked[start : start + step])

    def _rank(
        self,
        scores_dN: torch.Tensor,
        group: IntArray,
        at: IntArray,
        answers: IntArray,
        known: tuple[IntArray, IntArray],
        part: IntArray,
    ) -> None:
        """Rank a part of the queries ``at``, all of which are asked."""
        device = scores_dN.device
        scores_bN = scores_dN[torch.from_numpy(group[part]).to(device)]
        if len(self.ids) < len(self.column_N):
            scores_bN = scores_bN[:, torch.from_numpy(self.ids).to(device)]
        row_of = np.full(len(at), -1)
        row_of[part] = np.arange(len(part))
        rows, columns = row_of[known[0]], self.column_N[known[1]]
        use = (rows >= 0) & (columns >= 0)
        ranks = rank_answers(
            scores_bN,
            torch.from_numpy(self.column_N[answers[part]]).to(device),
            (torch.from_numpy(rows[use]).to(device), torch.from_numpy(columns[use]).to(device)),
        )
        self.ranks_3B[:, at[part]] = ranks.optimistic_B, ranks.pessimistic_B, ranks.candidates_B

    def result(self) -> Ranks:
        """Ranks of the queries that were asked."""
        return Ranks(*self.ranks_3B[:, self.asked_B])


def _kept_by_pykeen(graph: KnowledgeGraph, triples: IntArray) -> BoolArray:
    """Which triples PyKEEN evaluates, were all their entities trained: each once, of trained relations."""
    kept_T = np.zeros(len(triples), np.bool_)
    kept_T[np.unique(triples, axis=0, return_index=True)[1]] = True
    kept_T &= np.isin(triples[:, 1], graph.splits["train"][:, 1])
    return kept_T


@dataclass(frozen=True, eq=False)
class _Drawn(View):
    """A view that ranks each query among its own few candidates.

    Attributes:
        own_B: the entity of each query.
        first_B: of each query the first that has the same answer: triples that are there twice have the same
            negatives.
        protocol: says how many negatives, how they are drawn, and by which seed.
    """

    own_B: IntArray
    first_B: IntArray
    protocol: Protocol

    def rank(
        self, scores_dN: torch.Tensor, group: IntArray, at: IntArray, answers: IntArray,
        known: tuple[IntArray, IntArray],
    ) -> None:  # fmt: skip
        rows, ids = known
        bounds = np.searchsorted(rows, np.arange(len(at) + 1))  # a filter index answers row by row
        for b in np.flatnonzero(self.asked_B[at]):
            seeds = [self.protocol.seed, int(self.first_B[at[b]])]  # whatever the batches
            rng = np.random.default_rng(seeds)
            drawn = self._negatives(rng, ids[bounds[b] : bounds[b + 1]], answers[b], self.own_B[at[b]])
            few = torch.from_numpy(np.append(drawn, answers[b])).to(scores_dN.device)
            ranks = rank_answers(
                scores_dN[group[b], few][None], torch.tensor([len(drawn)], device=few.device)
            )
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


class Found(NamedTuple):
    """What a piece of an evaluation comes to: of its ranks optimistic, pessimistic and candidates, ``(3, b)``
    in the main view and, where there is one, in the other; and the answers' scores.
    """

    number: int
    ranks_3b: IntArray
    other_3b: IntArray | None
    scores_b: Scores


@dataclass(frozen=True, eq=False)
class Ranking:
    """An evaluation under way: what is asked, among whom, and the ranks as they come in, piece by piece.

    A piece is some of the distinct queries. The same scope and protocol have the same pieces wherever they
    are made.

    Attributes:
        sampled: the triples that the protocol asks, some of which may lie outside its candidates.
        main: where the protocol ranks.
        comparable: where PyKEEN would rank, if that can be said.
        other: where those queries are ranked by other scores: exact ones beside those by an index, else those
            without constraints on what can answer.
        scores_B: the answers' scores.
        piece: distinct queries of a piece.
    """

    scope: Scope
    protocol: Protocol
    sampled: IntArray
    triples: IntArray
    asked: Asked
    main: View
    comparable: View | None
    other: View | None
    scores_B: Scores
    batch_size: int
    piece: int

    @classmethod
    def of(
        cls, graph: KnowledgeGraph | Scope, protocol: Protocol, by_index: bool, batch_size: int
    ) -> Ranking:
        """Of a graph and a protocol.

        Raises:
            DataError: when the split is absent or has no triple to evaluate.
            ConfigError: when the filter names an unknown split, or more negatives are to be drawn than there
                are.
        """
        _check_filter(protocol)
        scope = graph if isinstance(graph, Scope) else Scope.of(graph)
        member_N = scope.members(protocol)
        sampled = scope.sampled(protocol)
        triples = within(sampled, member_N, protocol)
        asked = Asked.of(triples, scope.graph, protocol)
        if by_index and protocol.negatives:
            raise ConfigError("an index is evaluated among all candidates, not among negatives")
        main = _main_view(member_N, triples, asked, protocol)
        comparable = None if by_index else _comparable(scope, triples, protocol)
        other = View.of(member_N, triples) if by_index else comparable
        scores_B = np.zeros(len(asked.queries), np.float32)
        piece = piece_size(len(asked.groups), batch_size)
        return cls(
            scope, protocol, sampled, triples, asked, main, comparable, other, scores_B, batch_size, piece
        )

    @property
    def sizes(self) -> IntArray:
        """How many ranks each piece has."""
        starts = np.arange(0, len(self.asked.groups), self.piece)
        return np.add.reduceat(self.asked.groups.sizes, starts)

    def _groups(self, number: int) -> IntArray:
        """The distinct queries of a piece."""
        return np.arange(number * self.piece, min((number + 1) * self.piece, len(self.asked.groups)))

    def maker(self, ranker: Scorer, retrieval: Retrieval | None) -> Make[Found]:
        """What makes pieces by a ranker's scores."""
        ranker = ranker.allowing_self() if self.protocol.allow_self else ranker
        return lambda number, advance: self._made(number, ranker, retrieval, advance)

    def _made(self, number: int, ranker: Scorer, retrieval: Retrieval | None, advance: Tick) -> Found:
        asked, groups = self.asked, self._groups(number)
        both, distinct = self.other is not None, asked.distinct[groups]
        for rows, scores_dN, other_dN in scores_of(ranker, distinct, retrieval, both, self.batch_size):
            for at, group in asked.in_parts(groups[rows], MAX_SCORES // scores_dN.shape[1]):
                answers = asked.answers[at]
                places = (torch.from_numpy(x).to(scores_dN.device) for x in (group, answers))
                self.scores_B[at] = scores_dN[tuple(places)].cpu().numpy()
                known = asked.known.lookup(asked.queries[at])
                self.main.rank(scores_dN, group, at, answers, known)
                if self.other is not None:
                    self.other.rank(other_dN, group, at, answers, known)
                advance(len(at))
        at, _ = asked.groups.take(groups)
        other_3b = None if self.other is None else self.other.ranks_3B[:, at]
        return Found(number, self.main.ranks_3B[:, at], other_3b, self.scores_B[at])

    def fill(self, found: Found) -> None:
        """Take in what a piece has come to, wherever it was made."""
        at, _ = self.asked.groups.take(self._groups(found.number))
        self.main.ranks_3B[:, at], self.scores_B[at] = found.ranks_3b, found.scores_b
        if self.other is not None and found.other_3b is not None:
            self.other.ranks_3B[:, at] = found.other_3b


def evaluate(
    ranker: Scorer,
    graph: KnowledgeGraph | Scope,
    protocol: Protocol,
    *,
    retrieval: Retrieval | None = None,
    batch_size: int = 64,
    by_relation: bool = False,
    advance: Callable[[int, int], None] = lambda n, total: None,
    crew: Workers | None = None,
    sent: Callable[[Ranking], Work[Found]] | None = None,
    watch: Watcher | None = None,
) -> Evaluation:
    """Rank the answers of a split's triples on both sides.

    A query that several triples share is encoded once. What cannot answer (``ranker.possible``) stays a
    candidate and ranks last, also where a triple says that it does; such triples are counted. On the run's
    own graph, ranks among training entities alone and without constraints are taken from the same
    forward passes: what PyKEEN would report, which drops triples with unseen entities or relations and asks
    duplicates once. Where the work is shared (:mod:`kgmlm.core.processes`), each process asks some of the
    distinct queries, and all get the same evaluation.

    Args:
        ranker: a run's, or any other scorer of the graph's entities.
        graph: the run's own graph, or a :class:`Scope` of another.
        retrieval: rank what an index finds before anything is filtered; an answer that it misses ranks
            behind all that it finds, level with the rest. The report compares with exact ranking.
        by_relation: report the metrics of each relation, too.
        advance: called with (ranks just done, ranks in all); of several processes, with this one's share.
        crew, sent: workers that rank, and what they are sent; the ranker then scores nothing here.
        watch: told when workers are lost.

    Raises:
        DataError: when the split is absent or has no triple to evaluate.
        ConfigError: when the filter names an unknown split, or more negatives are to be drawn than there are.
    """
    ranking = Ranking.of(graph, protocol, retrieval is not None, batch_size)
    started = time.monotonic()
    crew, world, sizes = crew or Workers(), sharing(), ranking.sizes
    world.agree(ranking.asked.digest, "triples")
    mine = world.share(sizes)
    total = int(sizes[mine].sum())
    work = Opened(sizes, ranking.maker(ranker, retrieval)) if sent is None else sent(ranking)
    for found in crew.made(work, mine.tolist(), watch or Watcher(), lambda n: advance(n, total)):
        ranking.fill(found)
    seconds = round(time.monotonic() - started, 2)
    report = report_of(ranking, ranker, retrieval, by_relation, seconds, world.size * crew.workers)
    scores_B, tail_B = torch.from_numpy(ranking.scores_B), ranking.asked.queries.tail_B
    return Evaluation(ranking.scope.graph, ranking.triples, tail_B, ranking.main.result(), scores_B, report)


def _check_filter(protocol: Protocol) -> None:
    if unknown := set(protocol.filter) - set(SPLITS):
        raise ConfigError(
            f"the filter names an unknown split '{unknown.pop()}' (there are: {', '.join(SPLITS)})"
        )


def _main_view(member_N: BoolArray, triples: IntArray, asked: Asked, protocol: Protocol) -> View:
    """Where a protocol ranks: among all its candidates, or among negatives that are drawn from them.

    Raises:
        ConfigError: when more negatives are to be drawn than there are.
    """
    main = View.of(member_N, triples)
    if protocol.negatives and protocol.negatives_by == "drawing" and protocol.negatives >= len(main.ids):
        raise ConfigError(
            f"{protocol.negatives:,} negatives cannot be drawn from {len(main.ids):,} candidates, one of "
            "which is the answer; ask for fewer, or for 0 to rank among all"
        )
    if protocol.negatives and not is_expected(protocol):
        same = np.stack([asked.known.keys(asked.queries), asked.answers])
        _, first, where = np.unique(same, axis=1, return_index=True, return_inverse=True)
        own_B, first_B = asked.queries.entity_B, first[where.reshape(-1)]
        return _Drawn(**vars(main), own_B=own_B, first_B=first_B, protocol=protocol)
    return main


def _comparable(scope: Scope, triples: IntArray, protocol: Protocol) -> View | None:
    """Where PyKEEN would rank, on the run's own graph."""
    graph = scope.graph
    if protocol.negatives or scope.other or not graph.seen_N.any():
        return None
    return View.of(graph.seen_N, triples, _kept_by_pykeen(graph, triples))


def report_of(
    ranking: Ranking,
    ranker: Scorer,
    retrieval: Retrieval | None,
    by_relation: bool,
    seconds: float,
    processes: int,
) -> dict[str, Any]:
    """What the ranks of an evaluation come to.

    Args:
        ranker, retrieval, by_relation: those of the evaluation.
        seconds, processes: how long how many have ranked.
    """
    ranker = ranker.allowing_self() if ranking.protocol.allow_self else ranker
    scope, protocol, triples, asked = ranking.scope, ranking.protocol, ranking.triples, ranking.asked
    graph, main, comparable = scope.graph, ranking.main, ranking.comparable
    ranks, tail_B, figures = main.result(), asked.queries.tail_B, brief(protocol)
    texts, truncated_N = graph.entities.among(main.ids), ranker.truncated_N[main.ids]
    report = {
        "dataset": graph.name,
        "split": protocol.split,
        "triples": len(triples),
        "triples_left_out": len(ranking.sampled) - len(triples),
        "triples_trained": scope.known(triples, "train"),
        "triples_validated": scope.known(triples, "valid"),
        "queries": len(asked.groups),
        "seconds": seconds,
        "processes": processes,
        "candidates": about_candidates(texts, truncated_N, ranks, protocol),
        "own_entity": about_own_entity(ranker.possible, asked.queries, asked.answers),
        "protocol": protocol.model_dump(mode="json"),
        "metrics": metrics_of(ranks, tail_B, protocol),
        "breakdown": breakdown(ranks, triples, tail_B, scope.seen_N, scope.half_links(triples), figures),
    }
    if ranker.possible.further:
        report["constraints"] = about_constraints(
            ranker.possible, asked.queries, asked.answers, main.column_N >= 0
        )
    if comparable is not None:
        report["pykeen_comparable"] = {
            "candidates": len(comparable.ids),
            "metrics": metrics_of(comparable.result(), tail_B[comparable.asked_B], protocol),
        }
    if retrieval is not None:
        assert ranking.other is not None
        found_B = ranking.scores_B > MISSED
        report["retrieval"] = about_retrieval(retrieval, ranks, ranking.other.result(), found_B, tail_B)
    if by_relation:
        report["relations"] = about_relations(ranks, asked.queries, graph.relations, figures)
    return report
