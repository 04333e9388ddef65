"""The best candidates of a first stage, and its scores with what a second stage adds to them; by torch or
NumPy.

Shapes: B queries, N candidates, K of them the best.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kgmlm.arrays import Array, highest, like, numpy, put, where
from kgmlm.constraints import MISSED
from kgmlm.graph import ContextGraph
from kgmlm.kg import BoolArray, IntArray, Queries
from kgmlm.pool import Pool

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Best:
    """The K best columns of each of B rows of scores, best first, of those that are not passed over.

    Attributes:
        columns_BK: which.
        scores_BK: their scores; minus infinity where there are fewer than K.
        left_B1: the best score that is left out; minus infinity where none is.
        passed_BN: what was passed over, where the scores are.
    """

    columns_BK: IntArray
    scores_BK: Floats
    left_B1: Floats
    passed_BN: Array

    @classmethod
    def of(cls, scores_BN: Array, k: int, passed_BN: Array) -> Best:
        """Those of scores ``(B, N)``; fewer than ``k`` columns where N is."""
        open_BN = where(passed_BN, -np.inf, scores_BN)
        values_BK, columns_BK = map(numpy, highest(open_BN, min(k + 1, open_BN.shape[1])))
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
        """Which are to be reranked: not those that tie with the best one left out, since which of them came
        first would be chance.
        """
        return self.scores_BK > self.left_B1

    def to_read(self, ids_BK: IntArray) -> IntArray:
        """Ids of the columns, -1 where one is not to be reranked."""
        return np.where(self.chosen_BK, ids_BK, -1)

    def reranked(self, scores_BN: Array, read_BK: Floats, weight: float) -> Array:
        """Scores with what reading adds to the chosen: 0 for the worst read, so that all stay ahead of the
        rest. What was passed over on the way to them gains as much as the best read, and keeps its lead.
        """
        chosen_BK = self.chosen_BK
        last_B1, least_B1 = (
            np.where(chosen_BK, of_BK, np.inf).min(1, keepdims=True).astype(np.float32)
            for of_BK in (self.scores_BK, read_BK)
        )
        gain_BK = np.where(chosen_BK, weight * (read_BK - least_B1), 0).astype(np.float32)
        rows_B1 = np.arange(len(gain_BK))[:, None]
        at = (like(rows_B1, scores_BN), like(self.columns_BK, scores_BN))
        raised_BN = put(scores_BN, at, scores_BN[at] + like(gain_BK, scores_BN))
        leading_BN = self.passed_BN & (scores_BN >= like(last_B1, scores_BN))
        return where(leading_BN, raised_BN + like(gain_BK.max(1, keepdims=True), scores_BN), raised_BN)


def best_of(
    context: ContextGraph, queries: Queries, scores_BN: Array, k: int, pool: Pool
) -> tuple[Best, IntArray]:
    """The K best candidates of each query, and their ids ``(B, K)``, -1 where there are fewer.

    They are taken before anything is filtered. Only what training triples answer already is passed over,
    which tells nothing of the answers that are asked for.
    """
    passed_BN = like(_answered(context, queries, pool), scores_BN) | (scores_BN <= MISSED)
    best = Best.of(scores_BN, k, passed_BN)
    ids_BK = best.columns_BK
    if pool.ids is not None:
        ids_BK = np.take_along_axis(pool.ids, ids_BK, 1) if pool.own else pool.ids[ids_BK]
    return best, np.where(np.isfinite(best.scores_BK), ids_BK, -1)


def _answered(context: ContextGraph, queries: Queries, pool: Pool) -> BoolArray:
    """Which of the candidates ``(B, N)`` answer their query in training already."""
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
