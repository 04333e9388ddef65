"""Types as a signal: how probable each entity fills the asked side of a relation once more.

Types are what training shows of them: the sides of relations that an entity fills, and the types that it is
given. An entity that training has not seen goes by its given types, else by what the seen entities nearest to
it have, where the run has vectors; else it scores as any.

Shapes: B queries, N entities, K candidates of each query's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp

from kgmlm import files
from kgmlm.arrays import Device
from kgmlm.config import TypeSettings
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import IntArray, RunError, first_line
from kgmlm.pool import Pool, Reading
from kgmlm.reader import EntityVectors, Reader
from kgmlm.slots import BINS, NONE, Affinity, EntityTypes, Floats


def _labels(text: str) -> tuple[str, ...]:
    """The labels of types in a file: JSON, or lines in older ones."""
    return tuple(json.loads(text) if text.startswith('["') else text.split("\n"))


@dataclass(frozen=True, eq=False)
class Types:
    """Types over a graph.

    Attributes:
        types: of its entities.
    """

    name: ClassVar[str] = "types"
    reads: ClassVar[bool] = False
    file: ClassVar[str] = "signals/types.safetensors"

    types: EntityTypes

    @classmethod
    def fresh(cls, reader: Reader) -> None:
        """It does not come with the model: it is counted beside it."""

    @staticmethod
    def check(graph: KnowledgeGraph, settings: TypeSettings) -> None:
        """See, before long work, that a graph has the relation that tells types.

        Raises:
            RunError: when it has none of that name.
        """
        if settings.relation and settings.relation not in graph.relations.index:
            raise RunError(f"types.relation: the graph has no relation '{settings.relation}'")

    @classmethod
    def fit(
        cls,
        graph: KnowledgeGraph,
        settings: TypeSettings,
        advance: Callable[[int, int], None] = lambda n, total: None,
        device: Device = None,
        kept: Path | None = None,
    ) -> Types:
        """Count a graph's training triples.

        Raises:
            RunError: when there is no relation of the name that ``settings.relation`` gives.
        """
        cls.check(graph, settings)
        relation = graph.relations.index.get(settings.relation, NONE)
        affinity = Affinity.learn(graph.context, relation, settings.missed, advance)
        return cls(EntityTypes.of(affinity, graph.context, settings.neighbors))

    def over(self, reader: Reader, entity_rows: IntArray, relation_rows: IntArray) -> Types:
        """The same for the training triples and given types of another graph."""
        return Types(self.types.over(reader.context, relation_rows))

    def aided(self, vectors: EntityVectors) -> Types:
        """The same where entities of which nothing is known have the types of the nearest seen ones."""
        return Types(self.types.aided(vectors.array))

    def save(self, path: Path) -> None:
        """Write what was counted as safetensors."""
        a = self.types.affinity
        together = sp.csr_array(a.together_SF)
        tensors: dict[str, Any] = {
            "together": together.data.astype(np.int64),
            "features": together.indices.astype(np.int64),
            "begins": together.indptr.astype(np.int64),
            "having": a.having_F,
            "triples": a.triples_S,
            "least": a.least_S.astype(np.float64),  # which packs keep as it is
            "rates": a.rates_SC.astype(np.float64),
            "labels": np.frombuffer(json.dumps(a.labels).encode(), np.uint8).copy(),
            "sizes": np.array([a.entities, a.type_relation, len(a.labels), self.types.neighbors]),
        }
        files.write_tensors(path, {k: np.ascontiguousarray(v) for k, v in tensors.items()})

    @classmethod
    def open(cls, path: Path, graph: KnowledgeGraph, reader: Reader | None = None) -> Types:
        """What :meth:`save` wrote for a graph.

        Raises:
            RunError: when the file is damaged or of another graph.
        """
        from safetensors.numpy import load_file

        try:
            t = load_file(path)
            entities, relation, count, neighbors = t["sizes"].tolist()
            labels = _labels(t["labels"].tobytes().decode()) if count else ()
            shape = (len(t["triples"]), len(t["having"]))
            together = sp.csr_array(
                (t["together"].astype(np.float32), t["features"], t["begins"]), shape=shape
            )
            together.check_format()
            sizes = (len(t["least"]), len(labels), len(t["having"]))
            if sizes != (shape[0], count, shape[0] + count) or not -1 <= relation < shape[0] // 2:
                raise ValueError("its parts are not of one size")
            if t["rates"].shape != (shape[0], BINS):
                raise ValueError("it has rates of another kind")
            numbers = np.concatenate([t["least"], t["rates"].ravel()])
            if not np.isfinite(numbers).all() or (t["rates"] < 0).any() or neighbors < 1:
                raise ValueError("it has numbers that cannot be")
            counts = t["having"], t["triples"], entities
            floats = (t[name].astype(np.float32) for name in ("least", "rates"))
            affinity = Affinity(labels, relation, together, *counts, *floats)
        except Exception as error:
            why = first_line(error)
            raise RunError(f"{path} cannot be read: {why}") from None
        if affinity.slots != 2 * len(graph.relations) or entities != int(graph.seen_N.sum()):
            raise RunError(f"{path} is of another graph; `kgmlm tune RUN --add types` makes another")
        return cls(EntityTypes.of(affinity, graph.context, neighbors))

    def score(self, reading: Reading, pool: Pool) -> Floats:
        """Scores ``(B, N)`` or ``(B, K)``."""
        queries = reading.queries
        slot_B = self.types.slots_of(queries)
        found = np.zeros((len(queries), pool.width), np.float32)
        for slot in np.unique(slot_B).tolist():
            at, row_N = np.flatnonzero(slot_B == slot), self.types.row(slot)
            if pool.ids is None:
                found[at] = row_N
            else:
                found[at] = row_N[pool.filled[at] if pool.own else pool.filled]
        return found
