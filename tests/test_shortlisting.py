from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from kgmlm.config import VectorSettings
from kgmlm.constraints import MISSED, Possible
from kgmlm.graph import KnowledgeGraph
from kgmlm.indexing import build_index
from kgmlm.ranker import Ranker
from kgmlm.retrieval import Shortlist
from kgmlm.shortlisting import Retrieval, shortlist

pytest.importorskip("faiss")


def test_what_cannot_answer_takes_no_place_and_fewer_are_marked(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    ranker = make_ranker(vector=VectorSettings(enabled=True))
    index = build_index(ranker, toy, "entity")
    ranker = ranker.but(possible=Possible(np.ones(len(toy.relations), np.bool_)))
    queries, _ = toy.queries("test")
    count = len(toy.entities)
    for rows, reading in ranker.reader.readings(queries):
        ids_BK, scores_BK = shortlist(ranker, reading, Retrieval(index, count))
        own = ids_BK == queries[rows].entity_B[:, None]
        assert not own.any()
        assert ((ids_BK < 0).sum(1) == 1).all()
        assert (scores_BK[torch.from_numpy(ids_BK < 0)] == MISSED).all()
        assert (scores_BK.diff(dim=1) <= 0).all()


class Backwards:
    """An index whose own scores are as wrong as can be: it finds the worst entities first."""

    kind = "entity"

    def __init__(self, order_BN: np.ndarray[Any, Any]) -> None:
        self.order_BN = order_BN

    def search(self, queries: Any, constants: Any, k: int, effort: int | None = None) -> Shortlist:
        ids_BK = self.order_BN[:, :k].copy()
        return Shortlist(ids_BK, np.zeros(ids_BK.shape, np.float32))


def test_more_is_asked_of_the_index_than_the_shortlist_holds(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    """The index errs; within what it is asked for beyond K, the exact scores set that right."""
    ranker = make_ranker(vector=VectorSettings(enabled=True)).unconstrained()
    queries, _ = toy.queries("test")
    for rows, reading, said in ranker.said(queries):
        exact_BN = ranker.combined(queries[rows], said)
        worst_first = exact_BN.argsort(1).numpy()
        index: Any = Backwards(worst_first)
        ids_BK, scores_BK = shortlist(ranker, reading, Retrieval(index, 3))
        best = exact_BN.topk(3)
        torch.testing.assert_close(scores_BK, best.values, atol=1e-5, rtol=1e-5)
        assert ids_BK.shape == (len(rows), 3)
