"""What is to be scored: queries with their states, and their candidates.

Shapes: B queries, N candidates that they share, K candidates of each query's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kgmlm.kg import BoolArray, IntArray, Queries
from kgmlm.states import SpanOutput


@dataclass(frozen=True, eq=False)
class Pool:
    """The candidates of some queries.

    Attributes:
        count: how many entities the graph has.
        ids: None for all of them, ``(N,)`` for some, or ``(B, K)`` for each query's own, -1 where a query has
            fewer than K.
    """

    count: int
    ids: IntArray | None = None

    @property
    def width(self) -> int:
        """How many candidates a query has at most."""
        return self.count if self.ids is None else self.ids.shape[-1]

    @property
    def own(self) -> bool:
        """Whether each query has candidates of its own."""
        return self.ids is not None and self.ids.ndim == 2

    @cached_property
    def there(self) -> BoolArray:
        """Where there is a candidate: the shape of ``ids``."""
        return np.ones(self.count, np.bool_) if self.ids is None else self.ids >= 0

    @cached_property
    def filled(self) -> IntArray:
        """``ids`` with some entity where a query has fewer candidates, to be masked by ``there``."""
        return np.arange(self.count) if self.ids is None else np.maximum(self.ids, 0)


class Reading:
    """Queries, and their states as the model reads them when a signal first asks.

    Args:
        read: the forward pass; None where no signal reads text.
    """

    def __init__(
        self,
        queries: Queries,
        read: Callable[[Queries], SpanOutput] | None = None,
        span: SpanOutput | None = None,
    ) -> None:
        self.queries = queries
        self._read = read
        if span is not None:
            vars(self)["span"] = span

    @cached_property
    def span(self) -> SpanOutput:
        """States at the hole and behind it."""
        assert self._read is not None, "queries without a model to read them"
        return self._read(self.queries)
