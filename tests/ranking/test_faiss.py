from __future__ import annotations

import numpy as np
import pytest

from kgmlm.core.errors import ConfigError
from kgmlm.ranking.retrieval import Floats, Part, build_part, fitting_factory, flat_part, search_part

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


def test_what_is_hidden_is_not_found_and_leaves_its_place_to_others() -> None:
    vectors = some_vectors(300)
    best = 100 + np.argsort(-(vectors @ vectors[7]))
    ids, scores = search_part(part_of(vectors), vectors[7:8], 2, 1, frozenset({int(best[0])}))
    assert ids[0].tolist() == [-1, *best[1:3]]
    assert np.isneginf(scores[0, 0])
    assert np.isfinite(scores[0, 1:]).all()


def test_pieces_of_parts_are_one_flat_part() -> None:
    vectors = some_vectors(6)
    part = part_of(vectors)
    joined = flat_part(32, [(part, np.arange(6) < 2), (part, np.arange(6) == 5)])
    assert joined.ids.tolist() == [100, 101, 105]
    np.testing.assert_array_equal(joined.index.reconstruct_n(0, 3), vectors[[0, 1, 5]])
    assert flat_part(32, [(part, np.zeros(6, np.bool_))]).index is None
