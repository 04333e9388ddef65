from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from kgmlm.config import VectorSettings
from kgmlm.graph import KnowledgeGraph
from kgmlm.ranker import Ranker


def test_readings_cover_all_queries_in_any_batches(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    reader, (queries, _) = make_ranker().reader, toy.queries("train")
    whole = reader.read(queries).hidden_BLD
    for size in (7, 1000):
        seen = []
        for rows, reading in reader.readings(queries, size):
            seen.extend(rows.tolist())
            torch.testing.assert_close(reading.span.hidden_BLD, whole[rows], atol=1e-5, rtol=1e-5)
        assert sorted(seen) == list(range(len(queries)))


def test_no_text_is_read_before_it_is_asked_for(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    reader, (queries, _) = make_ranker().reader, toy.queries("test")
    calls: list[int] = []
    reader.model.register_forward_hook(lambda *args: calls.append(1))
    readings = [reading for _, reading in reader.readings(queries, 3, text=False)]
    assert not calls
    assert sum(len(reading.queries) for reading in readings) == len(queries)
    assert readings[0].span.hidden_BLD.isfinite().all()
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
    torch.testing.assert_close(vectors.all, first)
    assert np.isclose(first.norm(dim=1).numpy(), 1).all()
