"""Entities' vectors read by several processes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from signal_tests import SignalTests
from worlds import together

from kgmlm.core.arrays import Floats
from kgmlm.core.config import VectorSettings
from kgmlm.core.errors import RunError
from kgmlm.core.processes import ALONE, ProcessGroup
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.ranking.ranker import Ranker
from kgmlm.signals.vector import Vector, read_together


class TestVector(SignalTests):
    kind = Vector


def test_all_processes_have_the_vectors_that_each_has_read(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgmlm.signals.vector.ROUND", 3)
    asked = np.arange(1, len(toy.entities), 2)

    def job(world: ProcessGroup) -> Floats:
        vectors = make_ranker(vector=VectorSettings(enabled=True)).vectors
        assert vectors is not None
        vectors.read(ids=asked[:2])
        done: list[int] = []
        read_together(vectors, 4, done.append, asked)
        assert sum(done) == len(asked) - 2, "what is known is not read again"
        assert vectors.unread == len(toy.entities) - len(asked), "what is not asked for is not read"
        return vectors.of(asked)

    alone = job(ALONE)
    for size in (2, 40):
        for item in together(size, job):
            np.testing.assert_allclose(item, alone, atol=1e-5)


def test_processes_with_other_entities_are_refused(make_ranker: Callable[..., Ranker]) -> None:
    def job(world: ProcessGroup) -> None:
        vectors = make_ranker(vector=VectorSettings(enabled=True)).vectors
        assert vectors is not None
        read_together(vectors, ids=np.arange(3 + world.rank))

    with pytest.raises(RunError, match="the processes have different entities"):
        together(2, job)
