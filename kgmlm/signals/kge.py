"""A KGE model beside the text: ComplEx embeddings (Trouillon et al., 2016) as one more signal.

It knows entities by their training triples alone and nothing of their texts. It is neutral
about what it has never seen: such a candidate gets the mean over known entities, and such a query scores all
candidates alike.

Shapes: B queries, N entities of a graph, S entities seen in training, R relations, D real numbers an entity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from kgmlm.core.arrays import (
    BoolArray,
    Floats,
    HostTable,
    IntArray,
    Table,
    complex_product,
    products_of_own,
)
from kgmlm.core.config import KGESettings, Settings
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.signals.base import OtherGraphError, Pool, TrainableSignal
from kgmlm.text.reader import Reader, Reading


@dataclass(frozen=True, eq=False)
class KGE(TrainableSignal):
    """ComplEx embeddings over a graph.

    Attributes:
        entities_SD: real parts, then imaginary parts.
        relations_RD: rows 2r for (head, r, ?) and 2r + 1, the reciprocal relation, for (?, r, tail).
        rows_N: where each entity of the graph is in ``entities_SD``; -1 where training has not seen it.
        relation_rows: which relation each relation of the graph is; -1 where training has not seen it.
        table: the embeddings of entities where the text model computes; None is where they are.
    """

    name: ClassVar[str] = "kge"
    title: ClassVar[str] = "KGE model"
    about: ClassVar[str] = "embeddings learned from the links of the graph alone (ComplEx)"
    file: ClassVar[str] = "signals/kge.safetensors"
    transductive: ClassVar[bool] = True

    entities_SD: Floats
    relations_RD: Floats
    rows_N: IntArray
    relation_rows: IntArray
    table: Table | None = None

    def for_graph(self, reader: Reader | None, entity_rows: IntArray, relation_rows: IntArray) -> KGE:
        """A copy for another graph; no text is read."""
        entities, relations = np.append(self.rows_N, -1), np.append(self.relation_rows, -1)
        return replace(self, rows_N=entities[entity_rows], relation_rows=relations[relation_rows])

    def updated(self, graph: KnowledgeGraph, settings: Settings) -> KGE:
        """With embeddings of what is new in training; the others stay as they are."""
        from kgmlm.signals.kge_training import Embeddings, fit_new

        known = Embeddings(self.entities_SD, self.relations_RD, self.rows_N)
        fitted = fit_new(known, self.relation_rows, graph, settings.kge)
        return KGE(*fitted, relation_rows(graph))

    @classmethod
    def fit(
        cls,
        graph: KnowledgeGraph,
        settings: KGESettings,
        advance: Callable[[int, int], None] = lambda n, total: None,
        device: str | None = None,
        kept: Path | None = None,
    ) -> KGE:
        """Train on a graph's training triples; arguments as of :func:`.kge_training.train_complex`."""
        from kgmlm.signals.kge_training import train_complex

        return cls(*train_complex(graph, settings, advance, device, kept), relation_rows(graph))

    def tensors(self) -> Mapping[str, npt.NDArray[Any]]:
        """The embeddings, and whose they are."""
        return {"entities": self.entities_SD, "relations": self.relations_RD, "rows": self.rows_N}

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, npt.NDArray[Any]], graph: KnowledgeGraph, reader: Reader | None
    ) -> KGE:
        """See :class:`~kgmlm.signals.base.Signal`."""
        entities_SD, relations_RD, rows_N = (tensors[name] for name in ("entities", "relations", "rows"))
        if any(x.dtype != np.float32 or x.ndim != 2 for x in (entities_SD, relations_RD)):
            raise ValueError("its embeddings are not rows of float32")
        if entities_SD.shape[1] != relations_RD.shape[1] or entities_SD.shape[1] % 2:
            raise ValueError("its entities and relations are not of the same width")
        known = rows_N.dtype == np.int64 and rows_N.ndim == 1
        if not known or not ((rows_N >= -1) & (rows_N < len(entities_SD))).all():
            raise ValueError("it names entities that it does not have")
        if (len(rows_N), len(relations_RD)) != (len(graph.entities), 2 * len(graph.relations)):
            raise OtherGraphError
        table = None if reader is None else reader.model.table(entities_SD)
        return cls(entities_SD, relations_RD, rows_N, relation_rows(graph), table)

    def score(self, reading: Reading, pool: Pool) -> Floats:
        """Scores ``(B, N)`` or ``(B, K)``; those of a query whose entity or relation is unknown are 0."""
        query_BD, known_B = self._queries(reading.queries)
        rows = self.rows_N if pool.ids is None else self.rows_N[pool.filled]
        # 1) of entities that training has seen
        if rows.ndim == 2:
            scores = products_of_own(query_BD, self.entities_SD[rows])
        elif 2 * len(rows) < len(self.entities_SD):
            scores = query_BD @ self.entities_SD[rows].T
        else:
            scores = (self.table or HostTable(self.entities_SD)).products(query_BD)[:, rows]
        # 2) the others have the mean of these, and queries that are not known 0 for all
        mean_B1 = (query_BD @ self._mean_D)[:, None]
        np.copyto(scores, mean_B1, where=rows < 0)
        scores[~known_B] = 0
        return scores

    @cached_property
    def _mean_D(self) -> Floats:
        mean_D: Floats = self.entities_SD.mean(0)
        return mean_D

    def _queries(self, queries: Queries) -> tuple[Floats, BoolArray]:
        """The factors ``(B, D)`` of an answer's embedding, and which queries are known."""
        entity_B, relation_B = self.rows_N[queries.entity_B], self.relation_rows[queries.relation_B]
        relation_BD = self.relations_RD[2 * relation_B + queries.side_B]
        product_BD = complex_product(self.entities_SD[entity_B], relation_BD)
        return product_BD, (entity_B >= 0) & (relation_B >= 0)


def relation_rows(graph: KnowledgeGraph) -> IntArray:
    """The row of each relation, -1 where training has no triple of it."""
    numbers = np.arange(len(graph.relations))
    return np.where(np.isin(numbers, graph.splits["train"][:, 1]), numbers, -1)
