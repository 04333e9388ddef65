"""Both stages of ranking: queries and candidates in, scores out; the protocol of all scorers.

Shapes: B queries, N candidates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from kgmlm.core.arrays import Array, BoolArray, IntArray, joined, like, put
from kgmlm.core.errors import ConfigError
from kgmlm.graphs.graph import ContextGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.constraints import Possible
from kgmlm.ranking.first_stage import MAX_SCORES, FirstStage, Mixture, Use
from kgmlm.signals import SIGNALS, beside
from kgmlm.signals.base import Pool, Signal
from kgmlm.text.reader import Reader

if TYPE_CHECKING:
    from kgmlm.ranking.second_stage import Reranking

LONG = {
    "vector": "entity vectors",
    "kge": "KGE model",
    "rules": "rules",
    "types": "types",
}  # what people call signals


class Ranker(FirstStage):
    """Scores every candidate of a query.

    Attributes:
        reranking: a second model that reads the best again, where there is one.
        reverse: how many of the best are asked back before that, where any are, and how much that counts.
    """

    def __init__(
        self,
        reader: Reader,
        signals: Mapping[str, Signal],
        mixture: Mixture,
        possible: Possible,
        reranking: Reranking | None = None,
        reverse: Use | None = None,
    ) -> None:
        super().__init__(reader, signals, mixture, possible)
        self.reranking = reranking
        self.reverse = reverse

    @property
    def reranks(self) -> bool:
        """Whether there is a second stage."""
        return self.reranking is not None or self.reverse is not None

    def unreranked(self) -> Self:
        """The first stage alone."""
        return self.but(reranking=None, reverse=None)

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
            return self.but(mixture=self.mixture.only(scores)).unreranked()
        return self if scores == "all" else self.but(mixture=self.mixture.without(*beside()))

    def reduce(self, enabled: bool = True) -> None:
        """Encode in bf16, the reranker too, or in float32 again."""
        self.reader.model.reduce(enabled)
        if self.reranking is not None:
            self.reranking.reranker.model.reduce(enabled)

    def reranked(
        self,
        queries: Queries,
        scores_BN: Array,
        pool: Pool | None = None,
        batch_size: int = 64,
        advance: Callable[[int, int], None] = lambda n, total: None,
        free_B: BoolArray | None = None,
    ) -> Array:
        """The second stage, where there is one: the best are asked back, then read again.

        Args:
            advance: called with how many of how many distinct queries have just been asked back.
            free_B: queries whose scores have no constraints on what can answer; None is no query.
        """
        pool = pool or self.pool()
        if self.reverse is not None:
            from kgmlm.ranking.second_stage import reranked

            scores_BN = reranked(self, self.reverse, queries, scores_BN, pool, batch_size, advance, free_B)
        if self.reranking is None:
            return scores_BN
        return self.reranking.reranked(queries, scores_BN, pool, self.mixture, batch_size)

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
        for rows, scores_bN, _, back in self._first(queries, pool, batch_size, advance):
            yield rows, self.reranked(queries[rows], scores_bN, pool, batch_size, back)

    def rank_both(
        self, queries: Queries, batch_size: int = 64, advance: Callable[[int], None] = lambda n: None
    ) -> Iterator[tuple[IntArray, Array, Array]]:
        """As :meth:`rank` of all entities, and beside the scores those without constraints on what can
        answer, from the same forward passes.
        """
        pool = self.pool()
        for rows, scores_bN, free_bN, back in self._first(queries, pool, batch_size, advance):
            if not self.reranks:
                yield rows, scores_bN, free_bN
                continue
            # What cannot answer may take a place among the best.
            constrained = np.flatnonzero(self.possible.constrained_B(queries[rows]))
            twice = np.concatenate([np.arange(len(rows)), constrained])
            if len(constrained):
                scores_bN = joined([scores_bN, free_bN[like(constrained, free_bN)]])
            free_B = np.arange(len(twice)) >= len(rows)
            found = self.reranked(queries[rows[twice]], scores_bN, pool, batch_size, back, free_B)
            own_bN, freed = found[: len(rows)], found[len(rows) :]
            yield rows, own_bN, put(own_bN, constrained, freed) if len(constrained) else own_bN

    def _first(
        self, queries: Queries, pool: Pool, batch_size: int, advance: Callable[[int], None]
    ) -> Iterator[tuple[IntArray, Array, Array, Callable[[int, int], None]]]:
        """Rows of queries, their scores by the first stage, those without constraints, and what is to be told
        of asking back.

        Queries that are asked back come many at once, those of a relation together: they share candidates.
        """
        if self.reverse is None:
            for rows, _, said in self.said(queries, pool, batch_size, advance):
                asked = queries[rows]
                free_bN = self.mixture.combine(said, asked)
                yield rows, self.possible.applied(free_bN, asked, pool.ids), free_bN, lambda n, total: None
            return
        order = np.lexsort((queries.side_B, queries.relation_B))
        size = max(1, MAX_SCORES // 2 // max(1, pool.width))
        for start in range(0, len(order), size):
            part = order[start : start + size]
            found = [
                (rows, self.mixture.combine(said, queries[part[rows]]))
                for rows, _, said in self.said(queries[part], pool, batch_size)
            ]
            rows = part[np.concatenate([at for at, _ in found])]
            free_bN = joined([scores_bN for _, scores_bN in found])
            told = _Shared(len(rows), advance)
            yield rows, self.possible.applied(free_bN, queries[rows], pool.ids), free_bN, told
            told.end()


class _Shared:
    """Tells of some queries as done, as far as their candidates are."""

    def __init__(self, count: int, advance: Callable[[int], None]) -> None:
        self.count, self.advance, self.asked, self.told = count, advance, 0, 0

    def __call__(self, n: int, total: int) -> None:
        """So many more of so many candidates are done."""
        self.asked += n
        self._tell(self.count * self.asked // total)

    def end(self) -> None:
        """All are."""
        self._tell(self.count)

    def _tell(self, reached: int) -> None:
        if reached > self.told:
            self.advance(reached - self.told)
            self.told = reached


def check_scores(scores: str) -> None:
    """See that a run may be asked for these.

    Raises:
        ConfigError: listing those that there are.
    """
    if scores not in (known := ("all", "text", *SIGNALS)):
        raise ConfigError(f"scores are {', '.join(known[:-1])} or {known[-1]}, not '{scores}'")


class Scorer(Protocol):
    """Scores all entities as answers of queries, in batches and in no set order.

    Attributes:
        possible: which candidates can answer at all.
    """

    possible: Possible

    @property
    def truncated_N(self) -> BoolArray:
        """Which entities are known by a part of their name only."""

    def unconstrained(self) -> Scorer:
        """The same without constraints on what can answer."""

    def allowing_self(self) -> Scorer:
        """The same where a query's own entity may answer."""

    def rank(
        self,
        queries: Queries,
        entity_ids: IntArray | None = None,
        batch_size: int = 64,
        advance: Callable[[int], None] = lambda n: None,
    ) -> Iterator[tuple[IntArray, Array]]:
        """(rows of ``queries``, scores ``(b, N)``), float32 and finite."""

    def rank_both(
        self, queries: Queries, batch_size: int = 64, advance: Callable[[int], None] = lambda n: None
    ) -> Iterator[tuple[IntArray, Array, Array]]:
        """As :meth:`rank`, and beside the scores those without constraints."""


class PlainScorer(ABC):
    """A scorer by a function of the queries: no text, no constraints. Only :meth:`score` is missing.

    Example:
        >>> class Alike(PlainScorer):
        ...     def score(self, queries):
        ...         return torch.zeros(len(queries), self.entities)
    """

    def __init__(self, entities: int, relations: int) -> None:
        self.entities = entities
        self.possible = Possible.anything(relations)
        self.truncated_N: BoolArray = np.zeros(entities, np.bool_)

    @abstractmethod
    def score(self, queries: Queries) -> Array:
        """Scores ``(B, N)``."""

    def unconstrained(self) -> PlainScorer:
        """The same: there are no constraints."""
        return self

    def allowing_self(self) -> PlainScorer:
        """As :meth:`unconstrained`, where there are no others."""
        return self.unconstrained()

    def rank(
        self,
        queries: Queries,
        entity_ids: IntArray | None = None,
        batch_size: int = 64,
        advance: Callable[[int], None] = lambda n: None,
    ) -> Iterator[tuple[IntArray, Array]]:
        """As :meth:`Scorer.rank`."""
        for start in range(0, len(queries), batch_size):
            rows = np.arange(start, min(start + batch_size, len(queries)))
            scores_bN = self.score(queries[rows])
            yield rows, scores_bN if entity_ids is None else scores_bN[:, like(entity_ids, scores_bN)]
            advance(len(rows))

    def rank_both(
        self, queries: Queries, batch_size: int = 64, advance: Callable[[int], None] = lambda n: None
    ) -> Iterator[tuple[IntArray, Array, Array]]:
        """As :meth:`Scorer.rank_both`."""
        for rows, scores_bN in self.rank(queries, None, batch_size, advance):
            yield rows, scores_bN, scores_bN
