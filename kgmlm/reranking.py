"""The second stage: the best candidates of any first stage, read again together with their query.

Shapes: B queries, N candidates, K of them read again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kgmlm.arrays import Array, numpy
from kgmlm.best import Floats, best_of
from kgmlm.graph import ContextGraph
from kgmlm.kg import IntArray, Queries
from kgmlm.metrics import check_finite
from kgmlm.mixture import Mixture, Use
from kgmlm.pool import Pool
from kgmlm.reranker import Reranker


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
        self, queries: Queries, scores_BN: Array, pool: Pool, mixture: Mixture, batch_size: int = 64
    ) -> Array:
        """First-stage scores with what reading adds to the best of each query; all of them stay ahead of the
        rest.

        Args:
            batch_size: pairs of a query and a candidate that are read at once.
        """
        if not self.use.k:
            return scores_BN
        best, ids_BK = best_of(self.reranker.context, queries, scores_BN, self.use.k, pool)
        read_BK = self.read(queries, best.to_read(ids_BK), mixture, batch_size)
        return best.reranked(scores_BN, read_BK, self.use.weight)

    def read(self, queries: Queries, ids_BK: IntArray, mixture: Mixture, batch_size: int = 64) -> Floats:
        """What the reranker says of the candidates ``(B, K)``, on the scale of each query's scores.

        Where a relation weighs the text more than the average does, its scores are as much larger, and one
        weight of reranking has to mean the same for all.
        """
        read_BK: Floats = numpy(self.reranker.score(queries, ids_BK, batch_size))
        check_finite(read_BK)
        if not {"likelihood", "vector"} <= set(mixture.signals):
            return read_BK
        likelihood_B, vector_B = (mixture.of(name, queries) for name in ("likelihood", "vector"))
        average = self.unit * mixture.averages["likelihood"] + mixture.averages["vector"]
        scale_B = (self.unit * likelihood_B + vector_B) / average
        scaled_BK: Floats = scale_B.astype(np.float32)[:, None] * read_BK
        return scaled_BK
