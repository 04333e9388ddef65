"""What scores candidates: signals, each a file here and a line in :data:`SIGNALS`.

A signal says of each candidate of a query how likely it answers, on a scale of its own. A
:class:`~kgmlm.mixture.Mixture` says how much that counts, for each relation and side; the sum ranks.

Shapes: B queries, N candidates that they share, K of each query's own.
"""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import torch

from kgmlm.graph import ContextGraph
from kgmlm.kg import IntArray
from kgmlm.pool import Pool, Reading
from kgmlm.reader import Reader
from kgmlm.signals.likelihood import Likelihood
from kgmlm.signals.structure import Structure
from kgmlm.signals.vector import Vector


@runtime_checkable
class Signal(Protocol):
    """What a signal is asked.

    Attributes:
        name: in tables of weights, in reports and in explanations.
        reads: whether it needs the states of the query's text: else it costs no forward pass.
    """

    name: ClassVar[str]
    reads: ClassVar[bool]

    def score(self, reading: Reading, pool: Pool) -> torch.Tensor:
        """Scores ``(B, N)`` or ``(B, K)``, float32; of places without a candidate anything finite."""

    def over(self, reader: Reader, entity_rows: IntArray, relation_rows: IntArray) -> Signal:
        """The same for another graph.

        Args:
            reader: reads that graph.
            entity_rows, relation_rows: which entity or relation of this graph each of the other's is, or -1.
        """


SIGNALS: dict[str, type[Signal]] = {s.name: s for s in (Likelihood, Vector, Structure)}


def rows_of(context: ContextGraph, before: ContextGraph) -> tuple[IntArray, IntArray]:
    """Which entity and which relation of one graph each of another's is; -1 for none."""
    mine = before.relations.index
    relation_rows = np.array([mine.get(r.label, -1) for r in context.relations], np.int64)
    return context.entities.rows_in(before.entities), relation_rows
