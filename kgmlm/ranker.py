"""Queries and candidates in, scores out: a first stage, and a reranker of its best. Knows no answers.

Shapes: B queries, N candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Self

import numpy as np

from kgmlm.arrays import Array, like, put
from kgmlm.constraints import Possible
from kgmlm.first_stage import FirstStage, Said
from kgmlm.graph import ContextGraph
from kgmlm.kg import ConfigError, IntArray, Queries
from kgmlm.mixture import Mixture
from kgmlm.pool import Pool
from kgmlm.reader import Reader
from kgmlm.signals import SIGNALS, Signal, beside

if TYPE_CHECKING:
    from kgmlm.reranking import Reranking

LONG = {
    "vector": "entity vectors",
    "kge": "KGE model",
    "rules": "rules",
    "types": "types",
}  # what people call signals


class Ranker(FirstStage):
    """Scores every candidate of a query.

    Attributes:
        reranking: the second stage, where there is one.
    """

    def __init__(
        self,
        reader: Reader,
        signals: Mapping[str, Signal],
        mixture: Mixture,
        possible: Possible,
        reranking: Reranking | None = None,
    ) -> None:
        super().__init__(reader, signals, mixture, possible)
        self.reranking = reranking

    def over(self, context: ContextGraph) -> Self:
        """The same over another graph."""
        reranking = None if self.reranking is None else self.reranking.over(context)
        return super().over(context).but(reranking=reranking)

    def by(self, scores: str) -> Self:
        """One that ranks by "all" that there is, by the "text" (without what is trained beside it), or by one
        signal alone, which is not reranked.

        Raises:
            ConfigError: when there are no such scores, or the run has no such signal.
        """
        check_scores(scores)
        if scores in SIGNALS and scores not in self.signals:
            makes = (
                "train with --set vector.enabled=true"
                if scores == "vector"
                else f"`kgmlm tune RUN --add {scores}` trains one"
            )
            raise ConfigError(f"the run has no {LONG.get(scores, scores)}; {makes}")
        if scores in SIGNALS:
            return self.but(mixture=self.mixture.only(scores), reranking=None)
        return self if scores == "all" else self.but(mixture=self.mixture.without(*beside()))

    def reduce(self, enabled: bool = True) -> None:
        """Encode in bf16, the reranker too, or in float32 again."""
        self.reader.model.reduce(enabled)
        if self.reranking is not None:
            self.reranking.reranker.model.reduce(enabled)

    def reranked(
        self, queries: Queries, scores_BN: Array, pool: Pool | None = None, batch_size: int = 64
    ) -> Array:
        """The second stage, where there is one."""
        if self.reranking is None:
            return scores_BN
        return self.reranking.reranked(queries, scores_BN, pool or self.pool(), self.mixture, batch_size)

    def rank(
        self,
        queries: Queries,
        entity_ids: IntArray | None = None,
        batch_size: int = 64,
        advance: Callable[[int], None] = lambda n: None,
    ) -> Iterator[tuple[IntArray, Array]]:
        """Score B queries against candidates, in batches and in no set order.

        Args:
            entity_ids: candidates; None is every entity.
            advance: called with the number of queries done, for progress bars.

        Yields:
            (rows of ``queries``, scores ``(b, N)``), float32 on the model's device.
        """
        pool = self.pool(entity_ids)
        for rows, _, said in self.said(queries, pool, batch_size, advance):
            scores_bN = self.combined(queries[rows], said, pool)
            yield rows, self.reranked(queries[rows], scores_bN, pool, batch_size)

    def rank_both(
        self, queries: Queries, batch_size: int = 64, advance: Callable[[int], None] = lambda n: None
    ) -> Iterator[tuple[IntArray, Array, Array]]:
        """As :meth:`rank` of all entities, and beside the scores those without constraints on what can
        answer, from the same forward passes.
        """
        for rows, _, said in self.said(queries, None, batch_size, advance):
            asked = queries[rows]
            scores_bN = self.reranked(asked, self.combined(asked, said), None, batch_size)
            yield rows, scores_bN, self._freed(asked, said, scores_bN, batch_size)

    def _freed(self, queries: Queries, said: Said, scores_BN: Array, batch_size: int) -> Array:
        """The final scores of all entities if every entity could answer; many of them stay."""
        constrained = np.flatnonzero(self.possible.constrained_B(queries))
        if not len(constrained):
            return scores_BN
        if self.reranking is None:
            return self.mixture.combine(said, queries)
        free_bN = self.mixture.combine(said, queries)[like(constrained, scores_BN)]
        # What cannot answer may take a place among the best.
        return put(scores_BN, constrained, self.reranked(queries[constrained], free_bN, None, batch_size))


def check_scores(scores: str) -> None:
    """See that a run may be asked for these.

    Raises:
        ConfigError: listing those that there are.
    """
    if scores not in (known := ("all", "text", *SIGNALS)):
        raise ConfigError(f"scores are {', '.join(known[:-1])} or {known[-1]}, not '{scores}'")
