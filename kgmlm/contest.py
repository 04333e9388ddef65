"""Queries of a run's own graph and who competes to answer them: all entities, or a sample with the answers.

A sample does for choosing: ranks in it are better than among all, for every way of scoring.

Shapes: N entities, M that compete, B queries, d distinct queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from kgmlm.config import Protocol
from kgmlm.evaluation import Asked, View
from kgmlm.first_stage import MAX_SCORES
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import BoolArray, IntArray
from kgmlm.objectives.sampling import Columns
from kgmlm.scope import Scope, within


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
