"""Validation: its candidates, and its triples ranked by several ways of scoring.

Candidates are all entities, or a sample with the answers. A sample does for choosing: ranks in it are better
than among all, for every way of scoring. Each half of the triples is measured by what the other half chose
(two-fold cross-fitting).

Shapes: N entities, M that compete; B queries, all heads and then all tails; d distinct queries; W ways of
scoring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from kgmlm.core.arrays import BoolArray, FloatArray, IntArray
from kgmlm.core.config import Protocol
from kgmlm.core.errors import ConfigError
from kgmlm.core.processes import sharing
from kgmlm.evaluation.evaluator import Asked, Scope, View, within
from kgmlm.evaluation.metrics import Ranks
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.ranker import MAX_SCORES, Ranker, Said
from kgmlm.training.objectives.streams import Columns


@dataclass(frozen=True, eq=False)
class Contest:
    """Both queries of each asked triple, and who competes.

    Attributes:
        member_N: which entities are candidates under the protocol.
        columns: a sample of the candidates; None is all entities.
    """

    triples: IntArray
    asked: Asked
    member_N: BoolArray
    columns: Columns | None

    @classmethod
    def of(cls, graph: KnowledgeGraph, protocol: Protocol, among: int = 0) -> Contest:
        """What a protocol asks.

        Args:
            among: how many entities to draw by the protocol's seed, beside all that answer a query; 0 is all.

        Raises:
            DataError: when there is nothing to ask.
        """
        scope = Scope.of(graph)
        member_N = scope.members(protocol)
        triples = within(scope.sampled(protocol), member_N, protocol)
        asked = Asked.of(triples, graph, protocol)
        members = np.flatnonzero(member_N)
        if not among or among >= len(members):
            return cls(triples, asked, member_N, None)
        drawn = np.random.default_rng(protocol.seed).choice(members, among, replace=False)
        return cls(triples, asked, member_N, Columns(np.union1d(asked.answers, drawn)))

    @property
    def ids(self) -> IntArray | None:
        """The entities to score; None is all."""
        return None if self.columns is None else self.columns.ids_M

    @property
    def width(self) -> int:
        """How many entities are scored per query."""
        return len(self.member_N) if self.columns is None else len(self.columns)

    def view(self) -> View:
        """Where ranks come in."""
        if self.columns is None:
            return View.of(self.member_N, self.triples)
        everyone, count = np.arange(len(self.columns)), 2 * len(self.triples)
        return View(everyone, everyone, np.ones(count, np.bool_), np.zeros((3, count), np.int64))

    def groups(self, rows: IntArray) -> Iterator[Group]:
        """The queries of some distinct ones, some at a time."""
        for at, group in self.asked.in_parts(rows, MAX_SCORES // self.width):
            answers, known = self.asked.answers[at], self.asked.known.lookup(self.asked.queries[at])
            if self.columns is not None:
                columns = self.columns.of(known[1])
                known = known[0][columns >= 0], columns[columns >= 0]
                answers = self.columns.of(answers)
            yield Group(at, group, answers, known)


@dataclass(frozen=True, eq=False)
class Group:
    """Some queries, by the columns of their answers and of all known answers among what is scored.

    Attributes:
        at: the queries.
        group: which of the distinct queries each is.
        known: (row, column) pairs.
    """

    at: IntArray
    group: IntArray
    answers: IntArray
    known: tuple[IntArray, IntArray]

    def rank(self, view: View, scores_dN: torch.Tensor) -> None:
        """Rank them in a view by the scores of the distinct queries."""
        view.rank(scores_dN, self.group, self.at, self.answers, self.known)


def check_choice(protocol: Protocol) -> None:
    """Refuse to choose anything by what is kept for the test.

    Raises:
        ConfigError: when test triples are asked or filtered.
    """
    if "test" in (protocol.split, *protocol.filter):
        raise ConfigError("what is chosen on validation must not know the test triples: leave 'test' out")


def contest_of(graph: KnowledgeGraph, protocol: Protocol, among: int = 0) -> Contest:
    """What is asked to choose by.

    Raises:
        ConfigError: when test triples are asked or filtered.
    """
    check_choice(protocol)
    return Contest.of(graph, protocol, among)


def ranked_by(
    ranker: Ranker,
    contest: Contest,
    count: int,
    score: Callable[[Queries, IntArray, Said], Iterable[torch.Tensor]],
    advance: Callable[[int, int], None],
    batch_size: int = 64,
    by: tuple[str, ...] | None = None,
) -> tuple[Asked, list[Ranks]]:
    """Both queries of each triple of the run's own graph, and their ranks by several ways of scoring.

    All from the same forward passes, each query in one of the processes that share the work.

    Args:
        count: how many ways there are.
        score: scores ``(d, N)`` by each, of some of the distinct queries, their rows, and what signals say.
        by: which signals are asked; None is those that count.
    """
    views = [contest.view() for _ in range(count)]
    asked, world = contest.asked, sharing()
    share = asked.share(world)
    distinct, pool = asked.distinct[share], ranker.pool(contest.ids)
    for own, _, said in ranker.said(distinct, pool, batch_size=batch_size, by=by):
        rows = share[own]
        groups = list(contest.groups(rows))
        for view, scores_dN in zip(views, score(distinct[own], rows, said), strict=True):
            for group in groups:
                group.rank(view, scores_dN)
        advance(len(rows), len(distinct))
    for view in views:
        world.filled(view.ranks_3B, asked.groups.take(share)[0])
    return asked, [view.result() for view in views]


def crossed(by_odd_B: FloatArray, by_even_B: FloatArray) -> FloatArray:
    """Of the odd triples what the even ones chose, and the other way round."""
    return np.where(odd(len(by_odd_B)), by_even_B, by_odd_B)


def halved(reciprocal_WB: FloatArray, choose: Callable[[BoolArray], int]) -> FloatArray:
    """Reciprocal ranks ``(B,)``, those of each half of the triples by the way that the other half chooses; of
    a single triple by the first way, which nothing chose.

    Args:
        choose: a way, by some of the queries.
    """
    odd_B = odd(reciprocal_WB.shape[1])
    by_odd, by_even = (choose(odd_B), choose(~odd_B)) if odd_B.any() else (0, 0)
    return crossed(reciprocal_WB[by_odd], reciprocal_WB[by_even])


def odd(count: int) -> BoolArray:
    """Which of so many queries, all heads and then all tails, are of every other triple."""
    return np.tile(np.arange(count // 2) % 2 == 1, 2)


def figures_of(reciprocal_B: FloatArray) -> dict[str, float]:
    """``mrr``, ``hits_at_1`` and ``hits_at_10`` of reciprocal ranks."""
    return {
        "mrr": float(reciprocal_B.mean()),
        "hits_at_1": float((reciprocal_B >= 1).mean()),
        "hits_at_10": float((reciprocal_B >= 0.1).mean()),
    }
