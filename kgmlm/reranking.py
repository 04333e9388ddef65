"""The second stage: the best candidates of any first stage, read again together with their query.

Shapes: B queries, N candidates, K of them read again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from kgmlm.arrays import like
from kgmlm.constraints import MISSED
from kgmlm.graph import ContextGraph
from kgmlm.kg import BoolArray, IntArray, Queries
from kgmlm.metrics import check_finite
from kgmlm.mixture import Mixture, Use
from kgmlm.pool import Pool
from kgmlm.reranker import Best, Reranker


@dataclass(frozen=True, eq=False)
class Reranking:
    """A reranker and how it is used.

    Attributes:
        use: how many of the best it reads again, and how much that counts.
        unit: the weight at which vectors are as confident as the likelihood; what the reranker says is put on
            the scale of each query's scores by it.
    """

    reranker: Reranker
    use: Use
    unit: float

    def over(self, context: ContextGraph) -> Reranking:
        """The same over another graph."""
        return replace(self, reranker=self.reranker.over(context))

    def reranked(
        self, queries: Queries, scores_BN: torch.Tensor, pool: Pool, mixture: Mixture, batch_size: int = 64
    ) -> torch.Tensor:
        """First-stage scores with what reading adds to the best of each query; all of them stay ahead of the
        rest.

        Args:
            batch_size: pairs of a query and a candidate that are read at once.
        """
        if not self.use.k:
            return scores_BN
        best, ids_BK = best_of(self.reranker.context, queries, scores_BN, self.use.k, pool)
        read_BK = self.read(queries, best.to_read(ids_BK), mixture, batch_size).to(scores_BN.device)
        return best.reranked(scores_BN, read_BK, self.use.weight)

    def read(
        self, queries: Queries, ids_BK: IntArray, mixture: Mixture, batch_size: int = 64
    ) -> torch.Tensor:
        """What the reranker says of the candidates ``(B, K)``, on the scale of each query's scores.

        Where a relation weighs the text more than the average does, its scores are as much larger, and one
        weight of reranking has to mean the same for all.
        """
        read_BK = self.reranker.score(queries, ids_BK, batch_size)
        check_finite(read_BK)
        if not {"likelihood", "vector"} <= set(mixture.signals):
            return read_BK
        likelihood_B, vector_B = (mixture.of(name, queries) for name in ("likelihood", "vector"))
        average = self.unit * mixture.averages["likelihood"] + mixture.averages["vector"]
        scale_B = (self.unit * likelihood_B + vector_B) / average
        scaled_BK: torch.Tensor = like(scale_B.astype(np.float32)[:, None], read_BK) * read_BK
        return scaled_BK


def best_of(
    context: ContextGraph, queries: Queries, scores_BN: torch.Tensor, k: int, pool: Pool
) -> tuple[Best, IntArray]:
    """The K best candidates of each query, and their ids ``(B, K)``, -1 where there are fewer.

    They are taken before anything is filtered. Only what training triples answer already is passed over,
    which tells nothing of the answers that are asked for.
    """
    answered_BN = _answered(context, queries, pool)
    passed_BN = torch.from_numpy(answered_BN).to(scores_BN.device) | (scores_BN <= MISSED)
    best = Best.of(scores_BN, k, passed_BN)
    ids_BK = best.columns_BK.cpu().numpy()
    if pool.ids is not None:
        ids_BK = np.take_along_axis(pool.ids, ids_BK, 1) if pool.own else pool.ids[ids_BK]
    return best, np.where(best.scores_BK.isfinite().cpu().numpy(), ids_BK, -1)


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
