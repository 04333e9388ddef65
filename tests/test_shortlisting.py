from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from kgmlm.config import VectorSettings
from kgmlm.constraints import MISSED, Possible
from kgmlm.graph import KnowledgeGraph
from kgmlm.indexing import build_index
from kgmlm.ranker import Ranker
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
