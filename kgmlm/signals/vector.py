"""The cosine of the query's vector and a candidate's, both read by the same model at one mask.

Shapes: B queries, N candidates, K of each query's own, D width.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from kgmlm.kg import IntArray
from kgmlm.pool import Pool, Reading
from kgmlm.reader import EntityVectors, Reader
from kgmlm.scoring import score_vectors


class Vector:
    """Scores entities by the vectors that are read from their texts."""

    name: ClassVar[str] = "vector"
    reads: ClassVar[bool] = True

    def __init__(self, vectors: EntityVectors) -> None:
        self.vectors = vectors

    def over(self, reader: Reader, entity_rows: IntArray, relation_rows: IntArray) -> Vector:
        """The same for another graph; vectors of entities that it has read are kept."""
        return Vector(self.vectors.over(reader))

    def score(self, reading: Reading, pool: Pool) -> torch.Tensor:
        """Cosines ``(B, N)`` or ``(B, K)``."""
        vector_BD, vectors_ND = reading.span.vector_BD, self.vectors.all
        assert vector_BD is not None
        if pool.ids is None:
            return score_vectors(vector_BD, vectors_ND)
        chosen = vectors_ND[torch.from_numpy(pool.filled).to(vectors_ND.device)]
        return (chosen @ vector_BD[:, :, None])[:, :, 0] if pool.own else score_vectors(vector_BD, chosen)
