from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from kgmlm.config import StructureSettings, TrainingSettings, VectorSettings
from kgmlm.constraints import Possible
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import ConfigError
from kgmlm.objectives import BatchStream, Losses, MaskedLosses, Memory, TextStream, objective
from kgmlm.ranker import Ranker
from kgmlm.structure import train_structure


def training(**values: object) -> TrainingSettings:
    return TrainingSettings.model_validate({"batch_size": 8, "epochs": 6, **values})


def test_entities_unseen_in_training_are_no_negatives(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]
) -> None:
    ranker = make_ranker()
    stream = BatchStream(ranker, toy, training(), (0, 1))
    assert Losses(ranker, toy, training(), stream).entities.tolist() == np.flatnonzero(toy.seen_N).tolist()


def test_the_stream_has_every_query_once_an_epoch(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]
) -> None:
    stream = BatchStream(make_ranker(), toy, training(epochs=2), (0, 1))
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
    stream = BatchStream(make_ranker(), toy, training(epochs=1, samples="triples"), (0, 1))
    rows = [b.rows.tolist() for b in stream.from_position(0)]
    assert len(rows) == stream.per_epoch
    assert len(stream) == 2 * len(np.unique(toy.triples("train"), axis=0)) > len(stream.queries)
    times = np.bincount([i for batch in rows for i in batch], minlength=len(stream.queries))
    assert times.tolist() == np.diff(stream.answers.offsets).tolist()
    assert [b.rows.tolist() for b in stream.from_position(3)] == rows[3:]


def test_processes_share_the_stream(toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]) -> None:
    ranker = make_ranker()
    parts = [BatchStream(ranker, toy, training(epochs=1), (r, 3)) for r in range(3)]
    rows = [[b.rows.tolist() for b in part.from_position(0)] for part in parts]
    assert len({len(r) for r in rows}) == 1, "every process has as many batches"
    flat = [i for part in rows for batch in part for i in batch]
    assert len(flat) == len(set(flat))


def test_every_step_reads_an_answer_of_each_query(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]
) -> None:
    ranker = make_ranker(vector=VectorSettings(enabled=True))
    stream = BatchStream(ranker, toy, training(epochs=2), (0, 1))
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
    column_N, ids_M, vectors = memory.joined(np.array([3, 5]), second)
    np.testing.assert_array_equal(ids_M, [3, 5, 1, 2])
    assert column_N.tolist() == [-1, 2, 3, 0, -1, 1, -1, -1, -1, -1]
    torch.testing.assert_close(vectors, torch.cat([second, first[:2]]))
    vectors = memory.joined(np.array([7]), first[:1]).vectors_MD
    assert len(vectors) == 5
    vectors = memory.joined(np.array([8]), first[:1]).vectors_MD
    assert len(vectors) == 5, "the oldest is forgotten"
    assert column_N[2] == -1


def test_each_objective_has_its_stream_and_loss(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]
) -> None:
    ranker = make_ranker()
    stream, losses = objective(ranker, toy, training(objective="masked"), (0, 1))
    assert isinstance(stream, TextStream)
    assert isinstance(losses, MaskedLosses)
    assert losses.state() == {}
    found = []
    for name in ("entity", "token"):
        stream, losses = objective(ranker, toy, training(objective=name), (0, 1))
        found.append(losses(ranker.model, next(stream.from_position(0))).item())
    assert found[0] != found[1]
    with pytest.raises(ConfigError, match="kgmlm rescore"):
        objective(ranker, toy, training(objective="rescore"), (0, 1))


@pytest.mark.parametrize(
    "vector", [VectorSettings(), VectorSettings(enabled=True), VectorSettings(enabled=True, offset_rate=0.01)]
)
@pytest.mark.parametrize("teaching", [0.0, 1.0])
def test_an_own_entity_that_is_left_out_has_no_share_of_any_softmax(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker], vector: VectorSettings, teaching: float
) -> None:
    """Changing the scores of own entities alone changes the loss where they are negatives, else not."""
    losses = {}
    for own_entity in ("negative", "left out"):
        ranker = make_ranker(vector=vector)
        ranker.possible = Possible(np.ones(len(toy.relations), np.bool_))
        chosen = training(own_entity=own_entity, teaching=teaching)
        stream = BatchStream(ranker, toy, chosen, (0, 1))
        teacher = train_structure(toy, StructureSettings(dimension=4, epochs=1)) if teaching else None
        made = Losses(ranker, toy, chosen, stream, teacher)
        rows = np.arange(len(stream.queries))
        answers = made.answers.take(rows)
        at = (torch.from_numpy(answers[0]), torch.from_numpy(made._column_N[answers[1]]))
        scores = torch.randn(len(rows), len(made.entities), generator=torch.Generator().manual_seed(0))
        own = (rows, made._column_N[stream.queries.entity_B])
        moved = scores.clone()
        moved[own] += 3
        taught = made._taught(rows, made.entities)
        left = made._left_out(rows, made._column_N)
        losses[own_entity] = [made._loss(x, taught, at, 0.25, left).item() for x in (scores, moved)]
        batch = next(stream.from_position(0))
        assert torch.isfinite(made(ranker.model, batch))
    assert losses["negative"][0] != losses["negative"][1]
    assert losses["left out"][0] == losses["left out"][1]
    assert losses["left out"][0] < losses["negative"][0]
