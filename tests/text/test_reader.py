from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kgmlm.core.config import VectorSettings
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.ranking.ranker import Ranker
from kgmlm.signals.vector import EntityVectors, ReaderSource, Vector
from kgmlm.text.torch_model import span_model


def test_readings_cover_all_queries_in_any_batches(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    reader, (queries, _) = make_ranker().reader, toy.queries("train")
    whole = reader.read(queries).hidden_BLD
    for size in (7, 1000):
        seen = []
        for rows, reading in reader.readings(queries, size):
            seen.extend(rows.tolist())
            np.testing.assert_allclose(reading.states.hidden_BLD, whole[rows], atol=1e-5, rtol=1e-5)
        assert sorted(seen) == list(range(len(queries)))


def test_no_text_is_read_before_it_is_asked_for(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    reader, (queries, _) = make_ranker().reader, toy.queries("test")
    calls: list[int] = []
    span_model(reader.model).register_forward_hook(lambda *args: calls.append(1))
    readings = [reading for _, reading in reader.readings(queries, 3, text=False)]
    assert not calls
    assert sum(len(reading.queries) for reading in readings) == len(queries)
    assert np.isfinite(readings[0].states.hidden_BLD).all()
    assert len(calls) == 1


def test_vectors_are_read_once_until_they_are_forgotten(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    vectors = make_ranker(vector=VectorSettings(enabled=True)).vectors
    assert vectors is not None
    done: list[int] = []
    vectors.read(advance=done.append)
    assert sum(done) == len(toy.entities)
    first = vectors.all
    assert vectors.unread == 0
    vectors.forget()
    assert vectors.unread == len(toy.entities)
    np.testing.assert_array_equal(vectors.all, first)
    assert np.isclose(np.linalg.norm(first, axis=1), 1).all()


def test_saved_vectors_stay_where_they_are_beside_those_of_further_entities(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, tmp_path: Path
) -> None:
    fresh = make_ranker(vector=VectorSettings(enabled=True))
    assert fresh.vectors is not None
    Vector(fresh.vectors).save(tmp_path / "vectors")
    ranker = fresh.with_signal(Vector.open(tmp_path / "vectors", toy, fresh.reader))
    once = toy.extended(EntityTable(["q1", "q2"], ["Atlantis", "Thule"], ["a lost city", ""]))
    twice = once.extended(EntityTable(["q3"], ["Avalon"]))
    for graph in (once, twice):
        ranker = ranker.for_graph(graph.context)
        vectors = ranker.vectors
        assert vectors is not None
        assert 0 < vectors.unread < 3
        some = np.array([[len(toy.entities), 3], [0, len(graph.entities) - 1]])
        expected = EntityVectors(ReaderSource(ranker.reader)).all  # all read together
        np.testing.assert_allclose(vectors.of(some), expected[some], atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(vectors.all, expected, atol=1e-5, rtol=1e-5)
        asked = expected[:2]
        np.testing.assert_allclose(vectors.cosines(asked), asked @ expected.T, atol=1e-5, rtol=1e-5)


def test_an_opened_file_of_vectors_is_mapped_and_never_written(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, tmp_path: Path
) -> None:
    ranker = make_ranker(vector=VectorSettings(enabled=True))
    assert ranker.vectors is not None
    file = tmp_path / "vectors"
    Vector(ranker.vectors).save(file)
    before = file.read_bytes()
    opened = Vector.open(file, toy, ranker.reader).vectors.all
    if sys.platform == "linux":
        assert str(file) in Path("/proc/self/maps").read_text("utf-8")
    opened[0] = 0
    assert file.read_bytes() == before
