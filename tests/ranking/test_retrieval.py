from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kgmlm.core.errors import ConfigError, RunError
from kgmlm.ranking.retrieval import FOLDER, Part, Retriever, _write, cells_of, entity_part

faiss = pytest.importorskip("faiss")


def test_an_index_that_cannot_be_written_is_no_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot be written"):
        _write(faiss, faiss.IndexFlatL2(2), tmp_path / "nowhere" / "part-0.faiss")


def entity_index(vectors: np.ndarray[Any, Any], cells: int = 0) -> Retriever:
    part = entity_part(vectors, np.arange(len(vectors)), cells)
    return Retriever(part, {"visited": 4096, "cells": cells})


def unit_vectors(n: int, width: int = 32, seed: int = 0) -> np.ndarray[Any, Any]:
    vectors = np.random.default_rng(seed).standard_normal((n, width), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def test_more_is_asked_than_there_is() -> None:
    vectors = unit_vectors(3)
    match = entity_index(vectors).search(vectors[:2], 10)
    assert match.ids_BK.shape == match.scores_BK.shape == (2, 10)
    assert sorted(match.ids_BK[0, :3].tolist()) == [0, 1, 2]
    assert (match.ids_BK[:, 3:] == -1).all(), "FAISS's own -1 is not the last entity"
    assert np.isneginf(match.scores_BK[:, 3:]).all()


def test_an_empty_index_finds_nothing() -> None:
    match = entity_index(np.zeros((0, 32), np.float32)).search(unit_vectors(2), 4)
    assert (match.ids_BK == -1).all()
    assert len(entity_index(np.zeros((0, 32), np.float32))) == 0


def test_what_is_not_finite_is_refused() -> None:
    vectors = unit_vectors(300)
    vectors[7, 3] = np.nan
    with pytest.raises(ConfigError, match="entity's vector is not finite"):
        entity_index(vectors)
    index = entity_index(unit_vectors(300))
    with pytest.raises(ConfigError, match="query's vector is not finite"):
        index.search(vectors[7:8], 3)
    with pytest.raises(ConfigError, match="not 0"):
        index.search(vectors[:1], 0)


def test_equal_vectors_are_all_found() -> None:
    vectors = np.repeat(unit_vectors(100), 3, axis=0)
    match = entity_index(vectors).search(vectors[30:31], 3)
    assert sorted(match.ids_BK[0].tolist()) == [30, 31, 32]
    assert np.ptp(match.scores_BK[0]) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("cells", [0, 32])
def test_cells_are_visited_for_one_search_only(cells: int) -> None:
    vectors, queries = unit_vectors(20_000), unit_vectors(50, seed=1)
    index = entity_index(vectors, cells)
    exact = np.argsort(-(queries @ vectors.T), axis=1)[:, :10]

    def recall(visited: int) -> float:
        ids = index.search(queries, 300 if cells else 10, visited).ids_BK
        return float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(ids, exact, strict=True)]))

    first, all_of_them, again = recall(1), recall(4096), recall(1)
    assert first == again
    assert all_of_them > first if cells else all_of_them == first > 0.9


@pytest.mark.parametrize("cells", [0, 16])
def test_entities_are_added_without_a_rebuild(tmp_path: Path, cells: int) -> None:
    vectors, new = unit_vectors(2000), unit_vectors(3, seed=9)
    index = entity_index(vectors, cells)
    ids = np.array([5000, 5001, 5002])

    def part(rows: list[int]) -> Part:
        made = entity_part(new[rows], np.arange(len(rows)), 0)
        return Part(made.width, ids[rows], made.index)

    def best(current: Retriever) -> list[int]:
        ids_BK: list[int] = current.search(new, 1).ids_BK[:, 0].tolist()
        return ids_BK

    wider = index.with_added(part([0, 1])).with_added(part([2]))
    assert len(wider) == 2003
    assert best(wider) == [5000, 5001, 5002]
    assert len(index) == 2000, "what was built has not changed"
    with pytest.raises(ConfigError, match="entity 5002 is in the index already"):
        wider.with_added(part([2]))
    with pytest.raises(ConfigError, match="entity 7 is in"):
        index.with_added(Part(32, np.array([7]), part([0]).index))
    with pytest.raises(RunError, match="build it again"):
        wider.save(tmp_path / FOLDER)


@pytest.mark.parametrize("cells", [0, 16])
def test_saved_and_loaded_finds_the_same(tmp_path: Path, cells: int) -> None:
    index = entity_index(unit_vectors(2000), cells)
    index.save(tmp_path / FOLDER)
    loaded = Retriever.load(tmp_path / FOLDER)
    queries = unit_vectors(20, seed=3)
    before, after = index.search(queries, 7), loaded.search(queries, 7)
    assert np.array_equal(before.ids_BK, after.ids_BK)
    np.testing.assert_allclose(before.scores_BK, after.scores_BK)


@pytest.mark.parametrize("damaged", ["index.json", "part-0.faiss", "ids-0.npy"])
def test_a_damaged_index_is_one_sentence(tmp_path: Path, damaged: str) -> None:
    entity_index(unit_vectors(300)).save(tmp_path / FOLDER)
    path = tmp_path / FOLDER / damaged
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(RunError, match="damaged") as caught:
        Retriever.load(tmp_path / FOLDER)
    assert "\n" not in str(caught.value)
    with pytest.raises(RunError, match="has no index; `kgmlm index"):
        Retriever.load(tmp_path / "none" / FOLDER)


def test_few_vectors_are_searched_exhaustively_and_many_are_not() -> None:
    assert [cells_of(count) for count in (1000, 49_999, 50_000, 1_000_000, 5_000_000)] == [
        0,
        0,
        512,
        2048,
        4096,
    ]


def test_what_has_no_gpu_version_stays_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(index: object) -> object:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1, raising=False)
    monkeypatch.setattr(faiss, "index_cpu_to_all_gpus", full, raising=False)
    index = entity_index(unit_vectors(2000), 16)
    assert index.on_gpu() is index
    with pytest.raises(ConfigError, match=r"on a GPU: .*out of memory"):
        entity_index(unit_vectors(2000)).on_gpu()


@pytest.mark.parametrize("cells", [0, 16])
def test_an_index_can_move_to_a_gpu(cells: int) -> None:
    if not getattr(faiss, "get_num_gpus", int)():
        pytest.skip("this FAISS has no GPU")
    index, queries = entity_index(unit_vectors(2000), cells), unit_vectors(20, seed=3)
    moved = index.on_gpu()
    assert np.array_equal(moved.search(queries, 7).ids_BK, index.search(queries, 7).ids_BK)
