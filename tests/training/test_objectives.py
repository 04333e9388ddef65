from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import singledispatch
from typing import Any, get_args

import numpy as np
import pytest
import torch

from kgmlm.core.config import TextSettings, TrainingSettings, VectorSettings
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.ranking.ranker import Ranker
from kgmlm.text.tokenization import MaskedBatch
from kgmlm.text.torch_model import span_model
from kgmlm.training.objectives import OBJECTIVES, objective
from kgmlm.training.objectives.entity import RankingStream, TrainingBatch
from kgmlm.training.objectives.streams import Task

REGISTRY = OBJECTIVES
SAMPLED = [*((name, {}) for name in REGISTRY), ("entity", {"candidates": 8})]
VECTOR = VectorSettings(
    enabled=True, residual_rate=0.01
)  # a memory and residuals, where an objective has them


def training(**values: object) -> TrainingSettings:
    return TrainingSettings.model_validate({"batch_size": 8, "epochs": 6, **values})


def test_the_stream_has_every_query_once_an_epoch(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]
) -> None:
    stream = RankingStream(Task(make_ranker(), toy, training(epochs=2)))
    rows = [b.rows.tolist() for b in stream.from_position(0)]
    assert len(rows) == 2 * stream.per_epoch
    for epoch in (rows[: stream.per_epoch], rows[stream.per_epoch :]):
        assert sorted(i for batch in epoch for i in batch) == list(range(len(stream.queries)))
    assert rows[: stream.per_epoch] != rows[stream.per_epoch :]
    for position in (1, stream.per_epoch - 1, stream.per_epoch, stream.per_epoch + 3):
        assert [b.rows.tolist() for b in stream.from_position(position)] == rows[position:]


def test_the_stream_has_every_triple_twice_an_epoch_where_triples_are_asked(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]
) -> None:
    stream = RankingStream(Task(make_ranker(), toy, training(epochs=1, samples="triples")))
    rows = [b.rows.tolist() for b in stream.from_position(0)]
    assert len(rows) == stream.per_epoch
    assert len(stream) == 2 * len(np.unique(toy.triples("train"), axis=0)) > len(stream.queries)
    times = np.bincount([i for batch in rows for i in batch], minlength=len(stream.queries))
    assert times.tolist() == np.diff(stream.answers.offsets).tolist()
    assert [b.rows.tolist() for b in stream.from_position(3)] == rows[3:]


@pytest.mark.parametrize(("size", "world"), [(8, 2), (4, 4), (2, 8), (1, 50)])
def test_processes_read_the_batches_of_one_together(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker], size: int, world: int
) -> None:
    """With as many samples in all of them; where a batch has fewer than processes, some count nothing."""
    ranker = make_ranker(vector=VECTOR)
    given = training(epochs=2, batch_size=size * world, candidates=6)
    alone = RankingStream(Task(ranker, toy, given))
    shared = given.model_copy(update={"batch_size": size})
    parts = [RankingStream(Task(ranker, toy, shared, (r, world))) for r in range(world)]
    shares = zip(*(part.weighed(1) for part in parts), strict=True)
    for (batch, _), of_all in zip(alone.weighed(1), shares, strict=True):
        rows = [i for b, weight in of_all if weight for i in b.rows.tolist()]
        assert sorted(rows) == sorted(batch.rows.tolist())
        weights = [weight / world / len(b.rows) for b, weight in of_all if weight]
        assert weights == pytest.approx([1 / len(rows)] * len(weights)), "each sample counts alike"
        for other, _ in of_all:
            assert other.entity_ids.tolist() == batch.entity_ids.tolist()
            assert other.all_rows.tolist() == batch.all_rows.tolist()
            assert other.drawn is not None
            assert batch.drawn is not None
            assert other.drawn.others.tolist() == batch.drawn.others.tolist()
        texts = sum(len(p.span_start_B) for b, _ in of_all for p in b.entities)
        assert texts == max(len(batch.entity_ids), world)


@pytest.fixture
def task_of(toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]) -> Callable[..., Task]:
    """A task for any objective."""

    def make(name: str, vector: VectorSettings = VECTOR, **values: object) -> Task:
        ranker = make_ranker(TextSettings(max_length=40, neighbors=3), vector)
        return Task(ranker, toy, training(objective=name, epochs=2, **values))

    return make


def parts(batch: Any) -> Iterator[torch.Tensor]:
    """All tensors of a batch."""
    if is_dataclass(batch):
        batch = tuple(vars(batch).values())
    if isinstance(batch, tuple):
        for part in batch:
            yield from parts(part)
    elif batch is not None:
        yield torch.as_tensor(batch)


def same(some: Any, others: Any) -> bool:
    """Whether two batches are alike to the last bit."""
    return all(torch.equal(a, b) for a, b in zip(parts(some), parts(others), strict=True))


def test_settings_name_exactly_the_objectives_that_there_are() -> None:
    assert get_args(TrainingSettings.model_fields["objective"].annotation) == tuple(OBJECTIVES)


@pytest.mark.parametrize(("name", "values"), SAMPLED)
def test_a_stream_is_a_function_of_seed_and_position(
    task_of: Callable[..., Task], name: str, values: dict[str, int]
) -> None:
    stream = OBJECTIVES[name].stream(task_of(name, seed=3, **values))
    whole = list(stream.from_position(0))
    assert len(whole) == 2 * stream.per_epoch
    assert not same(whole[0], whole[1])
    assert not same(whole[0], whole[stream.per_epoch])
    again = OBJECTIVES[name].stream(task_of(name, seed=3, **values))
    for position in (1, stream.per_epoch - 1, stream.per_epoch, stream.per_epoch + 3):
        rest = list(again.from_position(position))
        assert all(same(a, b) for a, b in zip(whole[position:], rest, strict=True))
    other = OBJECTIVES[name].stream(task_of(name, seed=4, **values))
    assert not same(next(other.from_position(0)), whole[0])


@pytest.mark.parametrize("name", REGISTRY)
def test_a_loss_is_finite_and_so_are_its_gradients(task_of: Callable[..., Task], name: str) -> None:
    task = task_of(name)
    stream = OBJECTIVES[name].stream(task)
    losses = OBJECTIVES[name].losses(task, stream)
    loss = losses(span_model(task.ranker.reader.model), next(stream.from_position(0)))
    assert loss.ndim == 0
    assert loss.isfinite()
    loss.backward()
    gradients = [p.grad for p in span_model(task.ranker.reader.model).parameters() if p.grad is not None]
    assert gradients
    assert all(g.isfinite().all() for g in gradients)
    assert any(g.any() for g in gradients)


@pytest.mark.parametrize(("name", "values"), SAMPLED)
def test_a_loss_goes_on_from_its_state(
    task_of: Callable[..., Task], name: str, values: dict[str, int]
) -> None:
    kind, task, twin = OBJECTIVES[name], task_of(name, **values), task_of(name, **values)
    stream = kind.stream(task)
    losses, restored = (kind.losses(t, kind.stream(t)) for t in (task, twin))
    first, second = list(stream.from_position(0))[:2]
    losses(span_model(task.ranker.reader.model), first)
    if losses.residuals is not None:
        for parameter in losses.residuals.parameters():
            torch.nn.init.normal_(parameter)
    kept = {key: tensor.clone() for key, tensor in losses.state().items()}
    expected = losses(span_model(task.ranker.reader.model), second)
    restored.restore(kept)
    assert restored.state().keys() == kept.keys()
    assert all(torch.equal(tensor, kept[key]) for key, tensor in restored.state().items())
    assert torch.equal(restored(span_model(twin.ranker.reader.model), second), expected)
    assert all(torch.equal(tensor, losses.state()[key]) for key, tensor in restored.state().items())


@singledispatch
def split(batch: Any) -> list[tuple[Any, int]]:
    """A batch in two, and how many things each half's loss is a mean over."""
    raise NotImplementedError(f"say here how a {type(batch).__name__} is split")


@split.register
def _(batch: TrainingBatch) -> list[tuple[Any, int]]:
    q, result = batch.queries, []
    for part in np.array_split(np.arange(len(batch.rows)), 2):
        texts = MaskedBatch(
            q.input_ids_BT[part], q.attention_mask_BT[part], q.span_start_B[part], q.span_length, q.vector
        )
        result.append((TrainingBatch(batch.rows[part], batch.rows, texts, batch.rows[:0], ()), len(part)))
    return result


@pytest.mark.parametrize("name", REGISTRY)
def test_a_loss_is_the_mean_over_a_batch_however_it_is_split(task_of: Callable[..., Task], name: str) -> None:
    """Without entity vectors, which are each other's negatives: of all queries or pairs alike."""
    task = task_of(name, VectorSettings())
    model = span_model(task.ranker.reader.model)
    stream = OBJECTIVES[name].stream(task)
    losses = OBJECTIVES[name].losses(task, stream)
    for batch, _ in zip(stream.from_position(0), range(4), strict=False):
        model.zero_grad()
        whole = losses(model, batch)
        whole.backward()
        expected = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        halves = split(batch)
        total = sum(count for _, count in halves)
        result = sum(losses(model, half) * count / total for half, count in halves)
        assert isinstance(result, torch.Tensor)
        result.backward()
        torch.testing.assert_close(result, whole, atol=1e-5, rtol=1e-5)
        assert expected
        for key, parameter in model.named_parameters():
            if key in expected:
                torch.testing.assert_close(parameter.grad, expected[key], atol=1e-5, rtol=1e-4)


def test_a_run_has_the_objective_of_its_settings(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]
) -> None:
    ranker = make_ranker()
    rows = []
    for name in ("entity", "token"):
        stream, losses = objective(ranker, toy, training(objective=name), (0, 1))
        rows.append(losses(span_model(ranker.reader.model), next(stream.from_position(0))).item())
    assert rows[0] != rows[1]
