"""What evaluation asks of whatever scores: a run's ranker, a rule, a baseline of your own.

Shapes: B queries, N entities.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from kgmlm.arrays import Array, like
from kgmlm.constraints import Possible
from kgmlm.kg import BoolArray, IntArray, Queries


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
