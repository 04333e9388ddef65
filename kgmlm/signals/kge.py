"""A KGE model beside the text: ComplEx embeddings (Trouillon et al., 2016) as one more signal.

It knows entities by their training triples alone and nothing of their texts. What it has never seen it is
neutral about: such a candidate gets the mean over the entities that it knows, such a query scores all alike.

Shapes: B queries, N entities of a graph, S entities seen in training, R relations, D real numbers an entity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from kgmlm.core import files
from kgmlm.core.arrays import Array, Device, IntArray, at, complex_product, like, numpy, where
from kgmlm.core.config import KGESettings, Settings
from kgmlm.core.errors import RunError, first_line
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.signals.base import Pool
from kgmlm.text.reader import Reader, Reading

if TYPE_CHECKING:
    from kgmlm.signals.kge_training import Embeddings


@dataclass(frozen=True, eq=False)
class KGE:
    """ComplEx embeddings over a graph.

    Attributes:
        entities_SD: real parts, then imaginary parts.
        relations_RD: rows 2r for (head, r, ?) and 2r + 1, the reciprocal relation, for (?, r, tail).
        rows_N: where each entity of the graph is in ``entities_SD``; -1 where training has not seen it.
        relation_rows: which relation each relation of the graph is; -1 where training has not seen it.
    """

    name: ClassVar[str] = "kge"
    title: ClassVar[str] = "KGE model"
    about: ClassVar[str] = "embeddings learned from the links of the graph alone (ComplEx)"
    reads: ClassVar[bool] = False
    file: ClassVar[str] = "signals/kge.safetensors"

    entities_SD: Array
    relations_RD: Array
    rows_N: Array
    relation_rows: IntArray

    def over(self, reader: Reader | None, entity_rows: IntArray, relation_rows: IntArray) -> KGE:
        """A copy for another graph.

        Args:
            reader: not needed; no text is read.
            entity_rows: which entity of this graph each entity of the other is; -1 for none.
            relation_rows: the same for relations.
        """
        mine = np.append(numpy(self.rows_N), -1)
        relations = np.append(self.relation_rows, -1)
        rows_N = like(mine[entity_rows], self.rows_N)
        return replace(self, rows_N=rows_N, relation_rows=relations[relation_rows])

    def grown(self, graph: KnowledgeGraph, settings: Settings) -> KGE:
        """With embeddings of what is new in training; the others stay as they are."""
        from kgmlm.signals.kge_training import fit_new

        fitted = fit_new(self._embeddings(), self.relation_rows, graph, settings.kge)
        return KGE(*fitted, relation_rows(graph))

    @classmethod
    def fresh(cls, reader: Reader) -> None:
        """It does not come with the model: it is trained beside it."""

    @classmethod
    def fit(
        cls,
        graph: KnowledgeGraph,
        settings: KGESettings,
        advance: Callable[[int, int], None] = lambda n, total: None,
        device: Device = None,
        kept: Path | None = None,
    ) -> KGE:
        """Train on a graph's training triples; arguments as of :func:`.kge_training.train_complex`."""
        from kgmlm.signals.kge_training import train_complex

        return cls(*train_complex(graph, settings, advance, device, kept), relation_rows(graph))

    def _embeddings(self) -> Embeddings:
        """The embeddings as tensors of their own, on the CPU."""
        from kgmlm.signals.kge_training import Embeddings

        parts = (np.ascontiguousarray(numpy(x)) for x in (self.entities_SD, self.relations_RD, self.rows_N))
        return Embeddings(*(at("cpu", part) for part in parts))

    def save(self, path: Path) -> None:
        """Write the embeddings as safetensors."""
        tensors = {"entities": self.entities_SD, "relations": self.relations_RD, "rows": self.rows_N}
        files.write_tensors(path, {k: np.ascontiguousarray(numpy(v)) for k, v in tensors.items()})

    @classmethod
    def open(cls, path: Path, graph: KnowledgeGraph, reader: Reader | None = None) -> KGE:
        """Open what :meth:`save` wrote for a graph, on the reader's device; without a reader as NumPy arrays.

        Raises:
            RunError: when the file is damaged or of another graph.
        """
        from safetensors.numpy import load_file

        try:
            t = load_file(path)
            found = cls(t["entities"], t["relations"], t["rows"], relation_rows(graph))
            floats, rows = (found.entities_SD, found.relations_RD), found.rows_N
            if any(x.dtype != np.float32 or x.ndim != 2 for x in floats):
                raise ValueError("its embeddings are not rows of float32")
            if floats[0].shape[1] != floats[1].shape[1] or floats[0].shape[1] % 2:
                raise ValueError("its entities and relations are not of the same width")
            known = rows.dtype == np.int64 and rows.ndim == 1
            if not known or not ((rows >= -1) & (rows < len(floats[0]))).all():
                raise ValueError("it names entities that it does not have")
        except Exception as error:
            why = first_line(error)
            raise RunError(f"{path} cannot be read: {why}") from None
        if (len(rows), len(floats[1])) != (len(graph.entities), 2 * len(graph.relations)):
            raise RunError(f"{path} is of another graph; `kgmlm tune RUN --add kge` makes another")
        return found if reader is None else found.to(reader.model.device)

    def to(self, device: Device) -> KGE:
        """A copy on a device."""
        names = ("entities_SD", "relations_RD", "rows_N")
        return replace(self, **{name: at(device, getattr(self, name)) for name in names})

    def score(self, reading: Reading, pool: Pool) -> Array:
        """Scores ``(B, N)`` or ``(B, K)``; those of a query whose entity or relation is unknown are 0."""
        query_BD, known_B = self._queries(reading.queries)
        mean_B = query_BD @ self._mean_D
        rows = self.rows_N if pool.ids is None else self.rows_N[like(pool.filled, self.rows_N)]
        if rows.ndim == 1 and 2 * len(rows) < len(self.entities_SD):
            known_BN = query_BD @ self.entities_SD[rows].T
        elif rows.ndim == 1:
            known_BN = (query_BD @ self.entities_SD.T)[:, rows]
        else:
            known_BN = (self.entities_SD[rows] @ query_BD[:, :, None])[:, :, 0]
        return where(known_B[:, None], where(rows < 0, mean_B[:, None], known_BN), 0.0)

    @cached_property
    def _mean_D(self) -> Array:
        return self.entities_SD.mean(0)

    def _queries(self, queries: Queries) -> tuple[Array, Array]:
        """The factors ``(B, D)`` of an answer's embedding, and which queries are known."""
        entity_B = self.rows_N[like(queries.entity_B, self.rows_N)]
        relation_B = like(self.relation_rows[queries.relation_B], self.rows_N)
        side_B = like(queries.side_B, self.rows_N)
        product_BD = complex_product(self.entities_SD[entity_B], self.relations_RD[2 * relation_B + side_B])
        return product_BD, (entity_B >= 0) & (relation_B >= 0)


def relation_rows(graph: KnowledgeGraph) -> IntArray:
    """The row of each relation, -1 where training has no triple of it."""
    numbers = np.arange(len(graph.relations))
    return np.where(np.isin(numbers, graph.splits["train"][:, 1]), numbers, -1)
