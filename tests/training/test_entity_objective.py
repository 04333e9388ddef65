from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from kgmlm.core.arrays import IntArray
from kgmlm.core.config import TrainingSettings, VectorSettings
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.ranking.constraints import Possible
from kgmlm.ranking.ranker import Ranker
from kgmlm.signals.likelihood_training import TensorTable
from kgmlm.text.torch_model import span_model
from kgmlm.training.objectives.entity import EntityLosses, Memory, RankingLosses, RankingStream, TokenLosses
from kgmlm.training.objectives.streams import Task


def test_entities_unseen_in_training_are_no_negatives(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]
) -> None:
    task = Task(make_ranker(), toy, TrainingSettings(batch_size=8))
    seen = np.flatnonzero(toy.seen_N).tolist()
    assert EntityLosses(task, RankingStream(task)).columns.ids_M.tolist() == seen


def test_every_step_reads_an_answer_of_each_query(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]
) -> None:
    ranker = make_ranker(vector=VectorSettings(enabled=True))
    stream = RankingStream(Task(ranker, toy, TrainingSettings(batch_size=8, epochs=2)))
    read = []
    for batch in stream.from_position(0):
        positions, answers = stream.answers.take(batch.rows)
        answered = positions[np.isin(answers, batch.entity_ids)]
        assert set(answered.tolist()) == set(range(len(batch.rows)))
        assert sum(len(part.span_start_B) for part in batch.entities) == len(batch.entity_ids)
        read.append(batch.entity_ids.tolist())
    again = [b.entity_ids.tolist() for b in stream.from_position(1)]
    assert again == read[1:], "a function of seed and position"


def test_the_memory_keeps_the_newest_vector_of_each_entity() -> None:
    memory = Memory(4, 10, 2, torch.device("cpu"))
    first, second = torch.arange(6.0).view(3, 2), -torch.arange(4.0).view(2, 2)
    memory.joined(np.array([1, 2, 3]), first)
    columns, vectors = memory.joined(np.array([3, 5]), second)
    np.testing.assert_array_equal(columns.ids_M, [3, 5, 1, 2])
    assert columns.of(np.arange(10)).tolist() == [-1, 2, 3, 0, -1, 1, -1, -1, -1, -1]
    torch.testing.assert_close(vectors, torch.cat([second, first[:2]]))
    vectors = memory.joined(np.array([7]), first[:1]).vectors_MD
    assert len(vectors) == 5
    columns, vectors = memory.joined(np.array([8]), first[:1])
    assert len(vectors) == 5, "the oldest is forgotten"
    assert columns.of(np.array([2])) == -1


@pytest.mark.parametrize(
    "vector",
    [VectorSettings(), VectorSettings(enabled=True), VectorSettings(enabled=True, residual_rate=0.01)],
)
def test_an_own_entity_that_is_left_out_has_no_share_of_any_softmax(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker], vector: VectorSettings
) -> None:
    """Changing the scores of own entities alone changes the loss only where they are negatives."""
    ranker = make_ranker(vector=vector)
    ranker.possible = Possible(np.ones(len(toy.relations), np.bool_))
    task = Task(ranker, toy, TrainingSettings(batch_size=8))
    stream = RankingStream(task)
    made = EntityLosses(task, stream)
    rows = np.arange(len(stream.queries))
    answers = made.answers.take(rows)
    at = (torch.from_numpy(answers[0]), torch.from_numpy(made.columns.of(answers[1])))
    scores = torch.randn(len(rows), len(made.columns), generator=torch.Generator().manual_seed(0))
    own = (rows, made.columns.of(stream.queries.entity_B))
    moved = scores.clone()
    moved[own] += 3
    left = made._left_out(rows, made.columns)
    without, moved_without, among, moved_among = (
        made._loss(x, at, 0.25, out).item() for out in (left, None) for x in (scores, moved)
    )
    assert torch.isfinite(made(made.model, next(stream.from_position(0))))
    assert without == moved_without
    assert among != moved_among
    assert without < among


@pytest.mark.parametrize("kind", [EntityLosses, TokenLosses])
def test_the_vectors_loss_is_added_to_that_of_the_likelihood(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker], kind: type[RankingLosses]
) -> None:
    task = Task(make_ranker(vector=VectorSettings(enabled=True)), toy, TrainingSettings(batch_size=8))
    stream = RankingStream(task)
    made = kind(task, stream)
    with torch.no_grad():
        batch = next(stream.from_position(0))
        both = made(made.model, batch).item()
        likelihood = made._likelihood(made.model(batch.queries), batch).item()
    assert both > likelihood + 0.1


def task(toy: KnowledgeGraph, ranker: Ranker, **values: object) -> Task:
    """A training whose relations forbid no query's own entity, or all do."""
    chosen = TrainingSettings.model_validate({"batch_size": 8, "epochs": 2, **values})
    ranker.possible = Possible(np.ones(len(toy.relations), np.bool_))
    return Task(ranker, toy, chosen)


def test_a_sample_of_all_entities_loses_what_all_entities_lose(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]
) -> None:
    """The rule of own entities included."""
    ranker = make_ranker()
    whole = task(toy, ranker)
    stream = RankingStream(whole)
    assert stream.drawing is None
    losses = EntityLosses(whole, stream)
    sampling = task(toy, ranker, candidates=6)
    some = RankingStream(sampling)
    assert some.drawing is not None
    some.drawing.count = len(some.drawing.seen)
    sampled = EntityLosses(sampling, some)
    model = span_model(ranker.reader.model)
    for one, other in zip(stream.from_position(0), some.from_position(0), strict=True):
        rows = []
        for loss, batch in ((losses, one), (sampled, other)):
            model.zero_grad()
            value = loss(model, batch)
            value.backward()
            rows.append([value.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
        for a, b in zip(*rows, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_negatives_are_seen_entities_and_answers_are_no_negatives(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranker = make_ranker()
    sampling = task(toy, ranker, candidates=8)
    stream = RankingStream(sampling)
    losses = EntityLosses(sampling, stream)
    seen, scored = set(np.flatnonzero(toy.seen_N).tolist()), list[list[int]]()
    table = losses._table

    def counting(ids: IntArray) -> TensorTable:
        scored.append(ids.tolist())
        return table(ids)

    monkeypatch.setattr(losses, "_table", counting)
    assert losses.recent is not None
    for batch in stream.from_position(0):
        assert batch.drawn is not None
        assert len(set(batch.drawn.others.tolist())) == len(batch.drawn.others) == 4
        assert torch.isfinite(losses(losses.model, batch))
        ids = scored[-1]
        assert len(ids) == len(set(ids)), "each is scored once"
        assert set(ids) <= seen
        _, answers = stream.answers.take(batch.rows)
        assert set(answers.tolist()) <= set(ids)
        assert set(stream.queries.entity_B[batch.rows].tolist()) <= set(ids)
        assert set(losses.recent.ids_M.tolist()) <= set(ids), "recent answers are scored again"
    assert len(losses.recent.ids_M) == 4
