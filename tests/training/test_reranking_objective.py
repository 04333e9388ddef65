from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from kgmlm.core.arrays import IntArray
from kgmlm.core.config import RerankingSettings, TextSettings, VectorSettings
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.ranking.ranker import Ranker
from kgmlm.training.objectives.reranking import RerankingStream, pair_loss
from kgmlm.training.objectives.streams import Task

SMALL = RerankingSettings(candidates=10, negatives=3, max_length=24, neighbors=2)


@pytest.fixture
def stream(make_ranker: Callable[..., Ranker], toy: KnowledgeGraph) -> RerankingStream:
    first = make_ranker(TextSettings(max_length=40, neighbors=3), VectorSettings(enabled=True))
    settings = first.reader.settings.model_copy(update={"reranking": SMALL}).for_reranking()
    reader = Ranker.fresh(
        first.context, first.reader.tokenizer, first.reader.model, settings, first.reader.vocabulary
    )
    training = settings.training.model_copy(update={"batch_size": 16, "epochs": 2})
    return RerankingStream(Task(reader, toy, training, first=first))


def test_wrong_answers_are_wrong_seen_and_hard(stream: RerankingStream, toy: KnowledgeGraph) -> None:
    rows = np.arange(len(stream.queries))
    drawn = stream._wrong(rows, np.random.default_rng(0))
    scores = dict[int, torch.Tensor]()
    for at, scores_bS in stream.first.rank(stream.queries, stream.entities):
        scores |= {int(i): s for i, s in zip(at, scores_bS, strict=True)}
    for row, wrong in zip(rows, drawn, strict=True):
        true = stream.answers.take(np.array([row]))[1]
        assert len(wrong) == len(set(wrong.tolist())) == SMALL.negatives
        assert toy.seen_N[wrong].all()
        assert not np.isin(wrong, true).any()
        order = stream.entities[scores[int(row)].argsort(descending=True, stable=True).numpy()]
        leading = order[~np.isin(order, true)][: SMALL.candidates]
        assert np.isin(wrong, leading).all()


def test_a_batch_has_as_many_queries_as_their_pairs_have_room(stream: RerankingStream) -> None:
    batch = next(stream.from_position(0))
    assert batch.counts_B.tolist() == [1 + SMALL.negatives] * 4
    assert len(batch.pairs.input_ids_BT) == 16


def test_the_loss_is_a_softmax_over_each_querys_candidates() -> None:
    scores = torch.tensor([2.0, 1.0, 0.5, 3.0, 0.0, 7.0], requires_grad=True)
    counts: IntArray = np.array([3, 2, 1])
    expected = -(scores[:3].log_softmax(0)[0] + scores[3:5].log_softmax(0)[0] + 0) / 3
    loss = pair_loss(scores, counts)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert scores.grad[5] == 0
