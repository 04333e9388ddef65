"""Vectors of texts: names first and descriptions as far as a time goes, in parts that outlive a kill."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from kgmlm.core.arrays import Floats
from kgmlm.core.config import BiencoderSettings
from kgmlm.core.errors import RunError
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.signals import text_vectors
from kgmlm.signals.biencoder import CUT, Biencoder
from kgmlm.signals.text_vectors import ENDED, EncoderSource, Read, read_texts, texts_of
from kgmlm.text.encoder import TextEncoder
from kgmlm.text.vector_cache import VectorCache

BATCH = 8  # texts that the clock of a test counts as a second


@pytest.fixture
def settings(tiny_encoder: str) -> BiencoderSettings:
    return BiencoderSettings(encoder=tiny_encoder, dimension=8, steps=3, precision="fp32")


@pytest.fixture
def source(toy: KnowledgeGraph, settings: BiencoderSettings) -> EncoderSource:
    return Biencoder.source(toy, settings)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that the encoder has read, a second for each batch of eight."""
    texts_read, whole, now = list[str](), TextEncoder.read, [0.0]

    def reading(
        self: TextEncoder, texts: Sequence[str], batch_size: int = 64, *args: Any, **options: Any
    ) -> Any:
        for rows, vectors_BD in whole(self, texts, BATCH, *args, **options):
            texts_read.extend(texts[row] for row in rows)
            now[0] += 1
            yield rows, vectors_BD

    monkeypatch.setattr(TextEncoder, "read", reading)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return texts_read


def all_of(source: EncoderSource, read: Read) -> Floats:
    vectors_ND = np.zeros((len(source.entities), source.width), np.float32)
    for ids, vectors_BD in read(np.arange(len(vectors_ND))):
        vectors_ND[ids] = vectors_BD
    return vectors_ND


def described(graph: KnowledgeGraph) -> list[bool]:
    return [bool(text) for text in graph.entities.model_descriptions.to_pylist()]


def test_all_texts_are_read_where_no_time_is_given(
    toy: KnowledgeGraph, source: EncoderSource, read: list[str]
) -> None:
    vectors = read_texts(toy, source)
    assert sorted(read) == sorted(texts_of(toy.entities))
    assert not len(vectors.cut)
    expected_ND = all_of(source, source.read)
    np.testing.assert_allclose(vectors.vectors_ND, expected_ND, atol=1e-3)


@pytest.mark.parametrize("seconds", [0.5, 2.5, 4.5, 1000.0])
def test_names_come_first_and_then_descriptions(
    toy: KnowledgeGraph, source: EncoderSource, read: list[str], tmp_path: Path, seconds: float
) -> None:
    names, texts = toy.entities.column("surface"), texts_of(toy.entities)
    by_name_ND, by_text_ND = (all_of(source, x) for x in (source.read_names, source.read))
    read.clear()
    vectors = read_texts(toy, source, tmp_path / "kept", seconds=seconds)
    count = len(names)
    names_read, texts_read = Counter(read[:count]), Counter(read[count:])
    assert not texts_read or names_read == Counter(names), "a description before all names"
    assert set(texts_read) <= {text for text, messages in zip(texts, described(toy), strict=True) if messages}
    for entity, (name, text) in enumerate(zip(names, texts, strict=True)):
        rows_D = [np.zeros_like(by_name_ND[entity])]  # what may be known of it
        rows_D += [by_name_ND[entity]] if names_read[name] else []
        rows_D += [by_text_ND[entity]] if texts_read[text] else []
        if names.count(name) == 1:  # else the list does not say which of them was read
            np.testing.assert_allclose(vectors.vectors_ND[entity], rows_D[-1], atol=1e-3)
            whole = bool(texts_read[text] if described(toy)[entity] else names_read[name])
            assert (entity in vectors.cut) != whole
    assert bool(len(vectors.cut)) == (seconds < 1000)


def test_entities_of_many_triples_are_read_first(
    toy: KnowledgeGraph, source: EncoderSource, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_vectors, "PART", BATCH)
    vectors = read_texts(toy, source, seconds=1.5)
    degree_N = toy.context.degree_N
    known = np.flatnonzero(vectors.vectors_ND.any(1))
    unknown = np.setdiff1d(np.arange(len(degree_N)), known)
    assert len(known)
    assert len(unknown)
    assert degree_N[known].min() >= degree_N[unknown].max()


def test_what_was_cut_is_not_read_again_in_the_same_training_but_in_the_next(
    toy: KnowledgeGraph, settings: BiencoderSettings, source: EncoderSource, read: list[str], tmp_path: Path
) -> None:
    kept, file = tmp_path / "kept", tmp_path / "biencoder.safetensors"
    read_texts(toy, source, kept, seconds=1000)
    read.clear()
    assert not len(Biencoder.fit(toy, settings, kept=kept).cut)
    assert sorted(read) == sorted(relation.name for relation in toy.relations)
    vectors = read_texts(toy, source, kept, seconds=0.5)
    read.clear()
    signal = Biencoder.fit(toy, settings, kept=kept)
    assert sorted(read) == sorted(relation.name for relation in toy.relations)
    assert not kept.exists()
    assert signal.cut.tolist() == vectors.cut.tolist() != []
    signal.save(file)
    assert load_file(file)[CUT].tolist() == vectors.cut.tolist()
    opened = Biencoder.open(file, toy)
    assert opened.cut.tolist() == vectors.cut.tolist()
    Biencoder.keep_texts(file, toy, kept)
    assert not kept.exists(), "these are not the vectors of all texts"
    Biencoder.fit(toy, settings).save(file)
    assert CUT not in load_file(file)
    Biencoder.keep_texts(file, toy, kept)
    read.clear()
    assert not len(read_texts(toy, source, kept).cut)
    assert not read


@pytest.mark.parametrize("seconds", [None, 1000.0])
def test_reading_that_was_stopped_continues(
    toy: KnowledgeGraph,
    source: EncoderSource,
    read: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float | None,
) -> None:
    monkeypatch.setattr(text_vectors, "PART", BATCH)
    expected_ND = read_texts(toy, source).vectors_ND
    read.clear()
    kept, again = tmp_path / "kept", list[int]()

    def stops(n: int, total: int) -> None:
        again.append(n)
        if len(again) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_texts(toy, source, kept, stops, seconds)
    read.clear()
    vectors = read_texts(toy, source, kept, seconds=seconds)
    asked = len(toy.entities) + (sum(described(toy)) if seconds else 0)
    assert len(read) == asked - 2 * BATCH, "two parts were kept"
    np.testing.assert_allclose(vectors.vectors_ND, expected_ND, atol=1e-3)


@pytest.mark.parametrize("seconds", [None, 1000.0])
def test_texts_that_another_run_has_read_are_taken_from_the_cache(
    toy: KnowledgeGraph, source: EncoderSource, read: list[str], tmp_path: Path, seconds: float | None
) -> None:
    cached = replace(source, cache=VectorCache(tmp_path / "vectors.sqlite"))
    expected_ND = read_texts(toy, source).vectors_ND
    ids = np.arange(0, len(toy.entities), 2)
    for _ in cached.read(ids):
        pass
    read.clear()
    vectors = read_texts(toy, cached, tmp_path / "kept", seconds=seconds)
    names, texts = toy.entities.column("surface"), texts_of(toy.entities)
    unread = [i for i in range(len(texts)) if texts[i] not in {texts[j] for j in ids}]
    expected = [texts[i] for i in unread if not (seconds and texts[i] == names[i])]
    expected += [names[i] for i in unread] if seconds else []
    assert sorted(read) == sorted(expected)
    assert not len(vectors.cut)
    np.testing.assert_allclose(vectors.vectors_ND, expected_ND, atol=1e-3)
    for path in (tmp_path / "kept", tmp_path / "other"):  # what was kept for the training, and another run
        read.clear()
        again = read_texts(toy, cached, path, seconds=seconds)
        assert not read
        np.testing.assert_array_equal(again.vectors_ND, vectors.vectors_ND)


def test_reading_that_was_stopped_continues_from_the_cache(
    toy: KnowledgeGraph, source: EncoderSource, read: list[str], tmp_path: Path
) -> None:
    cached = replace(source, cache=VectorCache(tmp_path / "vectors.sqlite"))

    def stops(n: int, total: int) -> None:
        if len(read) >= 3 * BATCH:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_texts(toy, cached, tmp_path / "kept", stops)
    before = list(read)
    read_texts(toy, cached, tmp_path / "kept")
    assert sorted(read) == sorted(texts_of(toy.entities))
    assert len(before) == 3 * BATCH


def test_progress_counts_up_to_what_is_expected(
    toy: KnowledgeGraph, source: EncoderSource, read: list[str]
) -> None:
    for seconds in (None, 1000.0):
        counts = list[int]()
        totals = list[int]()

        def note(n: int, total: int, counts: list[int] = counts, totals: list[int] = totals) -> None:
            counts.append(n)
            totals.append(total)

        read_texts(toy, source, None, note, seconds)
        assert sum(counts) == totals[-1]


@pytest.mark.parametrize("name", ["texts-000000.npy", ENDED])
def test_a_damaged_file_is_named(
    toy: KnowledgeGraph, source: EncoderSource, tmp_path: Path, name: str
) -> None:
    read_texts(toy, source, tmp_path / "kept")
    (tmp_path / "kept" / name).write_bytes(b"damaged")
    with pytest.raises(RunError, match=f"{name} is damaged; remove it"):
        read_texts(toy, source, tmp_path / "kept")


def test_a_signal_that_cuts_texts_of_no_entity_is_refused(
    toy: KnowledgeGraph, settings: BiencoderSettings, tmp_path: Path
) -> None:
    file = tmp_path / "biencoder.safetensors"
    Biencoder.fit(toy, settings).save(file)
    tensors = load_file(file)
    for wrong in (np.array([len(toy.entities)]), np.array([-1]), np.array([0.5])):
        save_file({**tensors, CUT: wrong}, file)
        with pytest.raises(RunError, match="cannot be read"):
            Biencoder.open(file, toy)
