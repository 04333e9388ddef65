from __future__ import annotations

import numpy as np
import pytest

from kgmlm.core.arrays import Floats
from kgmlm.ranking.retrieval import Part, build_part, flat_part

pytest.importorskip("faiss")


def part_of(vectors: Floats, cells: int = 0) -> Part:
    ids = np.arange(len(vectors)) + 100
    return build_part(ids, vectors.shape[1], lambda rows: vectors[rows], cells, 0, lambda n: None)


def some_vectors(n: int, width: int = 32) -> Floats:
    return np.random.default_rng(0).standard_normal((n, width), dtype=np.float32)


def test_parts_are_joined_in_a_flat_one() -> None:
    vectors = some_vectors(6)
    part = part_of(vectors)
    joined = flat_part(32, [part, Part(32, np.arange(6), part.index)])
    assert joined.ids.tolist() == [*range(100, 106), *range(6)]
    np.testing.assert_array_equal(joined.index.reconstruct_n(0, 12), np.concatenate([vectors, vectors]))
