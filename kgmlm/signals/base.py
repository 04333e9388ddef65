"""The protocol of a signal, and what it scores: a pool of candidates.

Shapes: B queries, N candidates that they share, K candidates of each query's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from kgmlm.core.arrays import BoolArray, Floats, IntArray
from kgmlm.core.config import Settings
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Query
from kgmlm.text.reader import Reader, Reading


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
        """Return how many candidates a query has at most."""
        return self.count if self.ids is None else self.ids.shape[-1]

    @property
    def own(self) -> bool:
        """Return whether each query has candidates of its own."""
        return self.ids is not None and self.ids.ndim == 2

    @cached_property
    def there(self) -> BoolArray:
        """The mask of candidates that are there: the shape of ``ids``."""
        return np.ones(self.count, np.bool_) if self.ids is None else self.ids >= 0

    @cached_property
    def filled(self) -> IntArray:
        """``ids`` with 0 in the places of ``-1``; mask what is scored there by :attr:`there`."""
        return np.arange(self.count) if self.ids is None else np.maximum(self.ids, 0)


class Reason(NamedTuple):
    """Why a candidate scores: a rule and what it rests on.

    Attributes:
        path, constant: the number of the path rule, or of the rule with constants; the other is -1.
        predicted, correct: how often the rule predicts, and how often rightly.
        triples: training triples (head, relation, tail) that make its body true.
    """

    path: int
    constant: int
    predicted: int
    correct: int
    triples: tuple[tuple[int, int, int], ...]


@runtime_checkable
class Signal(Protocol):
    """The protocol of a signal.

    Attributes:
        name: in tables of weights, in reports and in explanations; of its section of the settings, if it has
            one.
        title: its name in sentences such as "the run has no PyKEEN model".
        about: what its scores say, to readers of a report.
        reads: whether it needs the states of the query's text: else it costs no forward pass.
        file: where a run keeps it, below the run's folder: ``signals/NAME.safetensors``, or in ``model/``
            where it comes with the model.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    reads: ClassVar[bool]
    file: ClassVar[str]

    def score(self, reading: Reading, pool: Pool) -> Floats:
        """Float32 scores of shape ``(B, N)`` or ``(B, K)``. Padding may hold any finite value."""

    def over(self, reader: Reader, entity_rows: IntArray, relation_rows: IntArray) -> Signal:
        """A copy for another graph.

        Args:
            reader: reads that graph.
            entity_rows, relation_rows: which entity or relation of this graph each of the other's is, or -1.
        """

    @classmethod
    def fresh(cls, reader: Reader) -> Signal | None:
        """The signal that comes with a reader's model; None for a signal that is trained separately."""

    def save(self, path: Path) -> None:
        """Write what it knows beside the model's weights."""

    @classmethod
    def open(cls, path: Path, graph: KnowledgeGraph, reader: Reader) -> Signal:
        """Open what :meth:`save` wrote in a run of a graph.

        Raises:
            RunError: when the file is damaged, or of another graph or model.
        """


@runtime_checkable
class Growing(Protocol):
    """A signal that learns of triples that are added to its graph without being trained again."""

    def grown(self, graph: KnowledgeGraph, settings: Settings) -> Signal:
        """The signal of a graph that has grown: after :meth:`Signal.over`, counted again, or with embeddings
        of what is new.

        Args:
            settings: of the run.
        """


@runtime_checkable
class Reasoned(Protocol):
    """A signal that can say why a candidate scores."""

    def reasons(self, query: Query, candidate: int) -> list[Reason]:
        """The best rules that predict a candidate, best first, each with triples that it rests on."""
