from __future__ import annotations

import numpy as np
import pytest

from kgmlm.core.errors import ConfigError
from kgmlm.ranking.retrieval import Floats, Part, build_part, fitting_factory, flat_part

pytest.importorskip("faiss")


def part_of(vectors: Floats, factory: str = "Flat") -> Part:
    ids = np.arange(len(vectors)) + 100
    return build_part(ids, vectors.shape[1], lambda rows: vectors[rows], factory, 0, lambda n: None)


def some_vectors(n: int, width: int = 32) -> Floats:
    return np.random.default_rng(0).standard_normal((n, width), dtype=np.float32)


def test_few_vectors_are_searched_exhaustively_whatever_was_asked_for() -> None:
    assert fitting_factory("IVF4096,PQ64", 200) == "Flat"
    assert fitting_factory("IVF4096,SQ8", 39_000) == "IVF1000,SQ8"


@pytest.mark.parametrize("factory", ["Flatt", "IVF16,PQ7", "IVF16,PQ7x99"])
def test_a_factory_that_faiss_cannot_make_is_one_sentence(factory: str) -> None:
    with pytest.raises(ConfigError, match="FAISS cannot") as caught:
        part_of(some_vectors(20_000), factory)
    assert "\n" not in str(caught.value)


def test_parts_are_joined_in_a_flat_one() -> None:
    vectors = some_vectors(6)
    part = part_of(vectors)
    joined = flat_part(32, [part, Part(32, np.arange(6), part.index)])
    assert joined.ids.tolist() == [*range(100, 106), *range(6)]
    np.testing.assert_array_equal(joined.index.reconstruct_n(0, 12), np.concatenate([vectors, vectors]))
