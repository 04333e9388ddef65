"""Unseen entities: candidates that no training triple has, for a query whose entity has some.

Most answers that are asked for later are entities that came later, as older facts are in training already.
Rules, types and embeddings say nothing of them, and rank them behind all others. How much this signal counts
is a weight by relation and side: fitted where validation asks about such answers, and else neutral
(:mod:`kgmlm.training.states`).

Of a query about an unseen entity it says nothing: most of its answers are entities that training has.

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
    """Which candidates have no training triple, for queries whose entity has one."""

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
        """1 for unseen candidates of queries about entities that training has, else 0, ``(B, N)`` or
        ``(B, K)``.
        """
        unseen_N = self.context.unseen_N
        known_B1 = ~unseen_N[reading.queries.entity_B][:, None]
        unseen_BN = unseen_N[pool.filled] if pool.own else unseen_N[pool.filled][None]
        scores_BN: Floats = (unseen_BN & known_B1).astype(np.float32)
        return scores_BN
