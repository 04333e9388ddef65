"""Vectors of texts in the cache: what was kept comes back, and nothing that is wrong stops a run."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from kgmlm.core.arrays import Floats
from kgmlm.text import vector_cache
from kgmlm.text.vector_cache import VectorCache

TEXTS = ["Paris. a capital", "Rome", "", "\ud800 half a surrogate", "Paris\0a capital"]


@pytest.fixture
def cache(tmp_path: Path) -> VectorCache:
    return VectorCache(tmp_path / "new" / "vectors.sqlite")


def vectors(count: int, width: int = 4) -> Floats:
    return np.random.default_rng(count).standard_normal((count, width)).astype(np.float16).astype(np.float32)


def test_what_was_kept_comes_back(cache: VectorCache) -> None:
    kept_ND = vectors(len(TEXTS))
    assert not len(cache.get("a", TEXTS, 4)[0])
    cache.put("a", TEXTS, kept_ND)
    rows, vectors_HD = cache.get("a", ["unknown", *TEXTS, "Rome"], 4)
    expected = dict(enumerate([*kept_ND, kept_ND[1]], 1))
    assert sorted(rows.tolist()) == sorted(expected)
    for row, vector_D in zip(rows.tolist(), vectors_HD, strict=True):
        np.testing.assert_array_equal(vector_D, expected[row])


def test_another_encoder_and_another_width_have_vectors_of_their_own(cache: VectorCache) -> None:
    cache.put("a", TEXTS, vectors(len(TEXTS)))
    for encoder, width in (("b", 4), ("a", 8)):
        rows, vectors_HD = cache.get(encoder, TEXTS, width)
        assert len(rows) == 0
        assert vectors_HD.shape == (0, width)


def test_many_texts_are_asked_for_in_parts(cache: VectorCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_cache, "_AT_ONCE", 7)
    texts = [str(i) for i in range(50)]
    cache.put("a", texts[::2], vectors(25))
    assert sorted(cache.get("a", texts, 4)[0].tolist()) == list(range(0, 50, 2))


def test_a_full_cache_loses_what_was_not_asked_for_longest(
    cache: VectorCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(vector_cache, "MOST", 2**18)
    asked = [f"asked {i}" for i in range(50)]
    cache.put("a", asked, vectors(50, 256))
    for day in range(20):
        now[0] = day * 86_400.0
        cache.put("a", [f"{day} {i}" for i in range(50)], vectors(50, 256))
        assert len(cache.get("a", asked, 256)[0]) == 50
        assert cache.path.stat().st_size < 2 * 2**18
    assert not len(cache.get("a", [f"0 {i}" for i in range(50)], 256)[0])
    assert len(cache.get("a", [f"19 {i}" for i in range(50)], 256)[0]) == 50


def _other_format(path: Path) -> None:
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize("damage", ["text", "cut", "format"])
def test_a_damaged_cache_is_begun_again(cache: VectorCache, damage: str) -> None:
    cache.put("a", TEXTS, vectors(len(TEXTS)))
    data = cache.path.read_bytes()
    if damage == "format":
        _other_format(cache.path)
    else:
        cache.path.write_bytes(b"no database" * 1000 if damage == "text" else data[: len(data) // 2])
    assert not len(cache.get("a", TEXTS, 4)[0])
    cache.put("a", TEXTS, vectors(len(TEXTS)))
    assert len(cache.get("a", TEXTS, 4)[0]) == len(TEXTS)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_where_it_cannot_be_written_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_cache, "cache_folder", lambda: tmp_path)
    tmp_path.chmod(0o500)
    assert VectorCache.shared() is None
    tmp_path.chmod(0o700)
    assert VectorCache.shared() is not None


def test_a_file_in_the_place_of_the_folder_means_no_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setattr(vector_cache, "cache_folder", lambda: tmp_path / "file")
    assert VectorCache.shared() is None
    VectorCache(tmp_path / "file" / "x.sqlite").put("a", TEXTS, vectors(len(TEXTS)))


def test_threads_write_at_the_same_time(cache: VectorCache) -> None:
    texts = [[f"{thread} {i}" for i in range(100)] for thread in range(4)]

    def write(own: list[str]) -> None:
        for at in range(0, 100, 10):
            cache.put("a", own[at : at + 10], vectors(10))

    threads = [threading.Thread(target=write, args=(own,)) for own in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(cache.get("a", own, 4)[0]) == 100 for own in texts)
