"""Unseen entities: candidates that no training triple has.

Most answers that are asked for later are entities that came later, as older facts are in training already.
Rules, types and embeddings say nothing of them, and rank them behind all others. How much this signal counts
is a weight by relation and side: fitted where validation asks about such answers, and else neutral
(:mod:`kgmlm.training.states`). Queries about unseen entities have weights of their own, since training has
most of their answers.

Shapes: B queries, N candidates that they share, K candidates of each query's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from kgmlm.core.arrays import Floats
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.signals.base import CountedSignal, OtherGraphError, Pool
from kgmlm.text.reader import Reader, Reading


class Unseen(CountedSignal):
    """Which candidates have no training triple."""

    name: ClassVar[str] = "unseen"
    title: ClassVar[str] = "unseen entities"
    about: ClassVar[str] = "whether training has no triple of the candidate; weights may be negative"
    file: ClassVar[str] = "signals/unseen.safetensors"
    signed: ClassVar[bool] = True

    def tensors(self) -> Mapping[str, npt.NDArray[Any]]:
        """The number of entities with a training triple; the graph says which these are."""
        return {"seen": np.array([(~self.context.unseen_N).sum()], np.int64)}

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, npt.NDArray[Any]], graph: KnowledgeGraph, reader: Reader | None
    ) -> Unseen:
        """See :class:`~kgmlm.signals.base.Signal`."""
        unseen, (seen,) = cls(graph.context), tensors["seen"].tolist()
        if seen != (~graph.context.unseen_N).sum():
            raise OtherGraphError
        return unseen

    def score(self, reading: Reading, pool: Pool) -> Floats:
        """1 for unseen candidates, else 0, ``(B, N)`` or ``(B, K)``."""
        unseen_N = self.context.unseen_N.astype(np.float32)
        if pool.own:
            return unseen_N[pool.filled]
        return np.tile(unseen_N[pool.filled], (len(reading.queries), 1))
