"""The cosine of the query's vector and a candidate's, both read by the same model at one mask.

Shapes: B queries, N candidates, K of each query's own, D width.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from kgmlm import files
from kgmlm.arrays import Array, cosines, numpy
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import IntArray, RunError, first_line
from kgmlm.pool import Pool, Reading
from kgmlm.reader import EntityVectors, Reader


class Vector:
    """Scores entities by the vectors that are read from their texts."""

    name: ClassVar[str] = "vector"
    reads: ClassVar[bool] = True
    file: ClassVar[str] = "model/entity_vectors.safetensors"

    def __init__(self, vectors: EntityVectors) -> None:
        self.vectors = vectors

    @classmethod
    def fresh(cls, reader: Reader) -> Vector | None:
        """Vectors that are still to be read, where the settings want them."""
        return cls(EntityVectors(reader)) if reader.settings.vector.enabled else None

    def save(self, path: Path) -> None:
        """Write the vectors of all entities, in order; those that are missing are read."""
        files.write_tensors(path, {"vectors": np.ascontiguousarray(numpy(self.vectors.all))})

    @classmethod
    def open(cls, path: Path, graph: KnowledgeGraph, reader: Reader) -> Vector:
        """The vectors of a run's own entities, mapped into memory.

        Raises:
            RunError: when the file is damaged or of another graph or model.
        """
        if not reader.settings.vector.enabled:
            raise RunError(f"{path} is there, yet the settings of the run have vector.enabled = false")
        try:
            vectors_ND = files.map_tensor(path, "vectors")
            if vectors_ND.dtype != np.float32:
                raise ValueError("its vectors are not float32")
        except Exception as error:
            why = first_line(error)
            raise RunError(f"{path} cannot be read: {why}") from None
        expected = (len(graph.entities), reader.model.decoder[0].shape[1])
        if vectors_ND.shape != expected:
            raise RunError(f"{path} has vectors of shape {vectors_ND.shape}; the run needs {expected}")
        vectors = EntityVectors(reader)
        vectors.adopt(graph.entities, vectors_ND)
        return cls(vectors)

    def over(self, reader: Reader, entity_rows: IntArray, relation_rows: IntArray) -> Vector:
        """The same for another graph; vectors of entities that it has read are kept."""
        return Vector(self.vectors.over(reader))

    def score(self, reading: Reading, pool: Pool) -> Array:
        """Cosines ``(B, N)`` or ``(B, K)``."""
        vector_BD = reading.span.vector_BD
        assert vector_BD is not None
        if pool.ids is None:
            return self.vectors.cosines(vector_BD)
        chosen = self.vectors.of(pool.filled)
        return (chosen @ vector_BD[:, :, None])[:, :, 0] if pool.own else cosines(vector_BD, chosen)
