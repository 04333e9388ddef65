from __future__ import annotations

import numpy as np
import pytest

from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.signals.base import Pool
from kgmlm.text.reader import Reading, States


def test_a_pool_is_of_all_of_some_or_of_each_querys_own() -> None:
    everyone, some = Pool(5), Pool(5, np.array([3, 1]))
    own = Pool(5, np.array([[3, 1, -1], [0, -1, -1]]))
    assert [p.width for p in (everyone, some, own)] == [5, 2, 3]
    assert [p.own for p in (everyone, some, own)] == [False, False, True]
    assert own.there.tolist() == [[True, True, False], [True, False, False]]
    assert (own.filled >= 0).all()
    assert everyone.filled.tolist() == [0, 1, 2, 3, 4]


def test_queries_are_read_once_and_only_when_asked(toy: KnowledgeGraph) -> None:
    calls: list[int] = []

    def read(queries: Queries) -> States:
        calls.append(len(queries))
        return States(np.zeros((len(queries), 1, 1), np.float32))

    queries, _ = toy.queries("test")
    reading = Reading(queries, read)
    assert not calls
    assert reading.states is reading.states
    assert calls == [len(queries)]
    with pytest.raises(AssertionError, match="without a model"):
        _ = Reading(toy.queries("test")[0]).states
