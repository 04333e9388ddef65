"""What scores candidates: signals, each a file here and a line in :data:`SIGNALS`.

A signal says of each candidate of a query how likely it answers, on a scale of its own. A
:class:`~kgmlm.mixture.Mixture` says how much that counts, for each relation and side; the sum ranks.

Shapes: B queries, N candidates that they share, K of each query's own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast, runtime_checkable

import numpy as np

from kgmlm.applying import Reason
from kgmlm.arrays import Array, Device
from kgmlm.graph import ContextGraph, KnowledgeGraph
from kgmlm.kg import IntArray, Query
from kgmlm.pool import Pool, Reading
from kgmlm.reader import EntityVectors, Reader
from kgmlm.signals.kge import KGE
from kgmlm.signals.likelihood import Likelihood
from kgmlm.signals.rules import Rules
from kgmlm.signals.types import Types
from kgmlm.signals.vector import Vector


@runtime_checkable
class Signal(Protocol):
    """What a signal is asked.

    Attributes:
        name: in tables of weights, in reports and in explanations; of its section of the settings, if it has
            one.
        reads: whether it needs the states of the query's text: else it costs no forward pass.
        file: where a run keeps it, below the run's folder; in ``model/`` where it comes with the model.
    """

    name: ClassVar[str]
    reads: ClassVar[bool]
    file: ClassVar[str]

    def score(self, reading: Reading, pool: Pool) -> Array:
        """Scores ``(B, N)`` or ``(B, K)``, float32; of places without a candidate anything finite.

        They are on the model's device where the signal computes there, else NumPy's.
        """

    def over(self, reader: Reader, entity_rows: IntArray, relation_rows: IntArray) -> Signal:
        """The same for another graph.

        Args:
            reader: reads that graph.
            entity_rows, relation_rows: which entity or relation of this graph each of the other's is, or -1.
        """

    @classmethod
    def fresh(cls, reader: Reader) -> Signal | None:
        """The signal of a reader's model, where it comes with that; None of one that is trained beside."""

    def save(self, path: Path) -> None:
        """Write what it knows beside the model's weights."""

    @classmethod
    def open(cls, path: Path, graph: KnowledgeGraph, reader: Reader) -> Signal:
        """What :meth:`save` wrote in a run of a graph.

        Raises:
            RunError: when the file is damaged, or of another graph or model.
        """


@runtime_checkable
class Reasoned(Protocol):
    """A signal that can say why a candidate scores."""

    def reasons(self, query: Query, candidate: int) -> list[Reason]:
        """The best rules that predict a candidate, best first, each with triples that it rests on."""


@runtime_checkable
class Aided(Protocol):
    """A signal that knows more where a run has entity vectors."""

    def aided(self, vectors: EntityVectors) -> Signal:
        """The same with the vectors of all entities, which it reads when it needs them."""


class Beside(Signal, Protocol):
    """A signal that is trained beside the text model, by `kgmlm tune RUN --add NAME`."""

    @classmethod
    def open(cls, path: Path, graph: KnowledgeGraph, reader: Reader | None = None) -> Signal:
        """As of any signal; it needs no reader."""

    @classmethod
    def fit(
        cls,
        graph: KnowledgeGraph,
        settings: Any,
        advance: Callable[[int, int], None] = lambda n, total: None,
        device: Device = None,
        kept: Path | None = None,
    ) -> Signal:
        """Train on the training triples alone.

        Args:
            settings: the section of the settings that has its name; None where there is none.
            advance: called with (steps that were just done, all steps).
            kept: a file for the state of unfinished training, from which the next call continues; what takes
                seconds needs none.
        """


SIGNALS: dict[str, type[Signal]] = {s.name: s for s in (Likelihood, Vector, KGE, Rules, Types)}


def beside() -> dict[str, type[Beside]]:
    """The signals that are trained beside the text model, by name."""
    return {name: cast(type[Beside], kind) for name, kind in SIGNALS.items() if hasattr(kind, "fit")}


def rows_of(context: ContextGraph, before: ContextGraph) -> tuple[IntArray, IntArray]:
    """Which entity and which relation of one graph each of another's is; -1 for none."""
    mine = before.relations.index
    relation_rows = np.array([mine.get(r.label, -1) for r in context.relations], np.int64)
    return context.entities.rows_in(before.entities), relation_rows
