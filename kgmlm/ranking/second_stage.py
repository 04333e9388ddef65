"""Second stages: the best candidates scored again, in reverse.

Reverse scoring asks each of the K best candidates t of ``(h, r, ?)`` in turn ``(?, r, t)``: the more probable
h is there, the more t gains. So a triple is scored from both of its sides. Nothing is trained; a candidate
costs what a query costs.

Shapes: B queries, N candidates, K of them the best, P pairs of a query and a candidate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from kgmlm.core.arrays import BoolArray, Floats, IntArray, highest, logsumexp
from kgmlm.graphs.graph import ContextGraph
from kgmlm.graphs.queries import Groups, Queries
from kgmlm.ranking.constraints import MISSED
from kgmlm.ranking.ranker import BEST, FirstStage, Ranker, StageWeight
from kgmlm.signals.base import Pool


@dataclass(frozen=True, eq=False)
class Best:
    """The K best columns of each of B rows of scores, best first, of those that are not passed over.

    Attributes:
        columns_BK: which.
        scores_BK: their scores; minus infinity where there are fewer than K.
        left_B1: the best score that is left out; minus infinity where none is.
        passed_BN: what was passed over.
    """

    columns_BK: IntArray
    scores_BK: Floats
    left_B1: Floats
    passed_BN: BoolArray

    @classmethod
    def of(cls, scores_BN: Floats, k: int, passed_BN: BoolArray) -> Best:
        """The best of scores ``(B, N)``; fewer than ``k`` columns where N is."""
        open_BN = np.where(passed_BN, np.float32(-np.inf), scores_BN)
        values_BK, columns_BK = highest(open_BN, min(k + 1, open_BN.shape[1]))
        left_B1 = np.full((len(values_BK), 1), -np.inf, np.float32)
        return cls(columns_BK, values_BK, left_B1, passed_BN).first(k)

    def first(self, k: int) -> Best:
        """The ``k`` best of them."""
        if k >= self.columns_BK.shape[1]:
            return self
        left_B1 = self.scores_BK[:, k : k + 1]
        return Best(self.columns_BK[:, :k], self.scores_BK[:, :k], left_B1, self.passed_BN)

    @property
    def chosen_BK(self) -> BoolArray:
        """Which are to be reranked: not those that tie with the best one left out, since which of them
        came first would be chance.
        """
        return self.scores_BK > self.left_B1

    def to_read(self, ids_BK: IntArray) -> IntArray:
        """Ids of the columns, -1 where one is not to be reranked."""
        return np.where(self.chosen_BK, ids_BK, -1)

    def with_places(self, read_BK: Floats, weight: float, stays_BK: BoolArray) -> Floats:
        """Change scores that a stage has read so that some candidates keep their places among the others."""
        there_BK = self.chosen_BK
        if not (stays_BK & there_BK).any() or not weight > 0:
            return read_BK
        before_BK = np.where(there_BK, self.scores_BK, np.float32(-np.inf))
        after_BK = np.where(there_BK, self.scores_BK + np.float32(weight) * read_BK, before_BK)
        placed_BK = in_place(before_BK, after_BK, stays_BK & there_BK)
        moved_BK = np.subtract(placed_BK, before_BK, out=np.zeros_like(placed_BK), where=there_BK)
        return (moved_BK / weight).astype(np.float32)

    def reranked(self, scores_BN: Floats, read_BK: Floats, weight: float) -> Floats:
        """Add the stage's scores to the chosen candidates: 0 for the worst, so that all stay ahead of the
        rest. Candidates that were passed over on the way gain as much as the best, and keep their lead.
        """
        chosen_BK = self.chosen_BK
        last_B1, least_B1 = (
            np.where(chosen_BK, of_BK, np.inf).min(1, keepdims=True).astype(np.float32)
            for of_BK in (self.scores_BK, read_BK)
        )
        gain_BK = np.where(chosen_BK, weight * (read_BK - least_B1), 0).astype(np.float32)
        rows_B1 = np.arange(len(gain_BK))[:, None]
        raised_BN = scores_BN.copy()
        raised_BN[rows_B1, self.columns_BK] += gain_BK
        leading_BN = self.passed_BN & (scores_BN >= last_B1)
        np.add(raised_BN, gain_BK.max(1, keepdims=True), out=raised_BN, where=leading_BN)
        return raised_BN


def in_place(before_BK: Floats, after_BK: Floats, stays_BK: BoolArray) -> Floats:
    """Sort candidates by ``after``, while some keep their places among the others; returns scores.

    Args:
        before_BK: minus infinity where there is no candidate.

    >>> before, after = np.array([[4.0, 3.0, 2.0]], np.float32), np.array([[4.0, 9.0, 8.0]], np.float32)
    >>> in_place(before, after, np.array([[True, False, False]])).argsort(1).tolist()
    [[2, 1, 0]]
    """
    # 1) Sort by the scores before, and count the moving candidates ahead of each
    order_BK = np.argsort(-before_BK, 1, kind="stable")
    stays_BK = np.take_along_axis(stays_BK, order_BK, 1)
    after_BK = np.take_along_axis(after_BK, order_BK, 1)
    moves_BK = ~stays_BK & np.isfinite(after_BK)
    ahead_BK = np.cumsum(moves_BK, 1)
    # 2) The scores of the moving candidates just above and just below
    moved_BK = -np.sort(-np.where(moves_BK, after_BK, -np.inf), 1)
    wide_BK = np.pad(moved_BK, ((0, 0), (1, 1)), constant_values=-np.inf)
    above_BK, below_BK = (np.take_along_axis(wide_BK, ahead_BK + at, 1) for at in (0, 1))
    above_BK = np.where(np.isfinite(above_BK), above_BK, np.where(np.isfinite(below_BK), below_BK + 1, 1.0))
    below_BK = np.where(np.isfinite(below_BK), below_BK, above_BK - 1)
    # 3) Spread the staying candidates evenly between these two, in their own order
    place_BK = np.cumsum(stays_BK, 1)
    same_BK = (ahead_BK[:, :, None] == ahead_BK[:, None, :]) & stays_BK[:, None, :]
    earlier_BK = (same_BK & (place_BK[:, None, :] <= place_BK[:, :, None])).sum(2)
    share_BK = earlier_BK / (same_BK.sum(2) + 1)
    placed_BK = np.where(stays_BK, above_BK - share_BK * (above_BK - below_BK), after_BK)
    scores_BK = np.empty_like(before_BK)
    np.put_along_axis(scores_BK, order_BK, placed_BK.astype(before_BK.dtype), 1)
    return scores_BK


def best_of(context: ContextGraph, first: FirstStage, k: int) -> tuple[Best, IntArray]:
    """The K best candidates of each query, and their ids ``(B, K)``, -1 where there are fewer.

    They are taken before anything is filtered. Only answers that training already has are passed over,
    which reveals nothing about the answers that are asked for.
    """
    pool, passed_BN = first.pool, _answered(context, first.queries, first.pool)
    passed_BN |= first.scores_BN <= MISSED
    best = Best.of(first.scores_BN, k, passed_BN)
    ids_BK = best.columns_BK
    if pool.ids is not None:
        ids_BK = np.take_along_axis(pool.ids, ids_BK, 1) if pool.own else pool.ids[ids_BK]
    return best, np.where(np.isfinite(best.scores_BK), ids_BK, -1)


def _answered(context: ContextGraph, queries: Queries, pool: Pool) -> BoolArray:
    """Return which of the candidates ``(B, N)`` answer their query in training already."""
    rows, ids = context.answers.lookup(queries)
    if pool.own:
        keys_BN = np.arange(len(queries))[:, None] * pool.count + pool.filled
        return np.isin(keys_BN, rows * pool.count + ids) & pool.there
    if pool.ids is not None:
        column_N = np.full(pool.count, -1)
        column_N[pool.ids] = np.arange(pool.width)
        rows, ids = rows[column_N[ids] >= 0], column_N[ids][column_N[ids] >= 0]
    answered_BN = np.zeros((len(queries), pool.width), np.bool_)
    answered_BN[rows, ids] = True
    return answered_BN


@dataclass(frozen=True, eq=False)
class Used:
    """How a second stage is used.

    Attributes:
        stage_weight: how many of the best candidates it scores, and how much that counts.
    """

    stage_weight: StageWeight

    def with_weight(self, stage_weight: StageWeight) -> Self:
        """A copy with another weight."""
        return replace(self, stage_weight=stage_weight)


class RescoringStage(Used, ABC):
    """A second stage that scores the K best candidates, and adds that to their scores."""

    def reranked(
        self,
        ranker: Ranker,
        first: FirstStage,
        batch_size: int = 64,
        advance: Callable[[int, int], None] = lambda n, total: None,
    ) -> FirstStage:
        """See :class:`~kgmlm.ranking.ranker.SecondStage`."""
        if not self.stage_weight.k:
            return first
        best, ids_BK = best_of(ranker.context, first, self.stage_weight.k)
        ids_BK = best.to_read(ids_BK)
        stays_BK = self.stage_weight.stays(first.queries, ids_BK, ranker.context.unseen_N)
        # A query without a moving candidate is not read
        moves_B1 = ((ids_BK >= 0) & ~stays_BK).any(1, keepdims=True)
        ids_BK = np.where(moves_B1, ids_BK, -1)
        scores_BK = np.where(moves_B1, self.score(ranker, first.queries, ids_BK, batch_size, advance), 0)
        scores_BK = best.with_places(
            scores_BK.astype(np.float32), self.stage_weight.weight, stays_BK & moves_B1
        )
        return first.with_scores(best.reranked(first.scores_BN, scores_BK, self.stage_weight.weight))

    @abstractmethod
    def score(
        self,
        ranker: Ranker,
        queries: Queries,
        ids_BK: IntArray,
        batch_size: int = 64,
        advance: Callable[[int, int], None] = lambda n, total: None,
    ) -> Floats:
        """Scores ``(B, K)`` of candidates, on the scale of the first stage's; anything where an id is -1."""


FLOOR = -30.0  # the least log-probability; else impossible answers would hide all other differences


@dataclass(frozen=True, eq=False)
class ReverseScoring(RescoringStage):
    """Candidates asked in turn for the entity of their query (``kgmlm tune --add reverse``)."""

    name: ClassVar[str] = "reverse"

    def score(
        self,
        ranker: Ranker,
        queries: Queries,
        ids_BK: IntArray,
        batch_size: int = 64,
        advance: Callable[[int, int], None] = lambda n, total: None,
    ) -> Floats:
        """Log-probability of each query's entity as the answer of its candidates; 0 where an id is -1.

        The log-softmax over the best answers of each candidate, known ones included, on the scale of the
        scores. Validation saw no difference between temperatures of .25 and 4 (eval/LOG.md), so it is 1; one
        signal alone uses that of training.
        """
        row_P, column_P = np.nonzero(ids_BK >= 0)
        asked = queries[row_P]
        back = Queries(ids_BK[row_P, column_P], asked.relation_B, ~asked.tail_B)
        groups = Groups.of(ranker.context.answers.keys(back))
        distinct = back[groups.first]
        single = len(ranker.mixture.signals) == 1
        temperature = ranker.reader.settings.training.temperature if single else 1.0
        back_BK = np.zeros(ids_BK.shape, np.float32)
        for rows, first in ranker.first_stage(distinct, None, batch_size):
            scores_dN = first.scores_BN
            best_dK, _ = highest(scores_dN, min(BEST, scores_dN.shape[1]))
            log_total_d = logsumexp(best_dK / temperature)
            at_p, of_p = groups.take(rows)
            log_probs_p = scores_dN[of_p, asked.entity_B[at_p]] / temperature - log_total_d[of_p]
            back_BK[row_P[at_p], column_P[at_p]] = temperature * np.maximum(log_probs_p, FLOOR)
            advance(len(rows), len(distinct))
        return back_BK
