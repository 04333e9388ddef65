"""Training of the KGE model, and its loss."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kgmlm.core.arrays import IntArray
from kgmlm.core.config import KGESettings
from kgmlm.core.errors import RunError
from kgmlm.graphs.entities import RelationTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.signals import kge_training
from kgmlm.signals.base import Pool
from kgmlm.signals.kge import KGE
from kgmlm.signals.kge_training import _among, kge_loss
from kgmlm.text.reader import Reading

SMALL = KGESettings(dimension=8, epochs=30, batch_size=16, precision="fp32")


@pytest.fixture(scope="module")
def kge(toy: KnowledgeGraph) -> KGE:
    return KGE.fit(toy, SMALL)


def better(kge: KGE, queries: Queries, answers: IntArray) -> IntArray:
    """How many entities score higher than the answer of each query."""
    scores_BN = kge.score(Reading(queries), Pool(len(kge.rows_N)))
    higher_B: IntArray = (scores_BN > np.take_along_axis(scores_BN, answers[:, None], 1)).sum(1)
    return higher_B


@pytest.mark.slow
def test_training_learns_the_triples_and_is_repeatable(toy: KnowledgeGraph, kge: KGE) -> None:
    counted: list[int] = []
    again = KGE.fit(toy, SMALL, lambda n, total: counted.append(total))
    steps = 30 * math.ceil(len(toy.unique_queries("train")[0]) / SMALL.batch_size)
    assert counted == [steps] * steps
    assert np.array_equal(again.entities_SD, kge.entities_SD)
    assert better(kge, *toy.queries("train")).mean() < 3 < len(toy.entities) / 5


class Stopped(KeyboardInterrupt):
    """Somebody has interrupted."""


def stopped(toy: KnowledgeGraph, settings: KGESettings, kept: Path, after: int) -> None:
    """Train for some steps and be interrupted."""
    done: list[int] = []

    def advance(n: int, total: int) -> None:
        done.append(n)
        if len(done) > after:
            raise Stopped

    with pytest.raises(Stopped):
        KGE.fit(toy, settings, advance, kept=kept)


@pytest.mark.slow
def test_training_that_was_interrupted_continues_to_the_same(
    toy: KnowledgeGraph, kge: KGE, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kge_training, "KEPT_EVERY", 0.0)
    monkeypatch.setattr(kge_training, "KEPT_SHARE", 0.0)
    kept = tmp_path / "kept"
    stopped(toy, SMALL.model_copy(update={"epochs": 500}), kept, 100)  # how long it was to be is no matter
    heard: list[int] = []
    again = KGE.fit(toy, SMALL, lambda n, total: heard.append(n), kept=kept)
    assert heard[0] == 100
    assert np.array_equal(again.entities_SD, kge.entities_SD)
    assert np.array_equal(again.relations_RD, kge.relations_RD)
    assert not kept.exists()


def test_training_goes_on_where_nothing_can_be_kept(
    toy: KnowledgeGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kge_training, "KEPT_EVERY", 0.0)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kge_training, "write_tensors", full)
    few = SMALL.model_copy(update={"max_steps": 3})
    assert len(KGE.fit(toy, few, kept=tmp_path / "kept").entities_SD)


def test_only_the_same_training_continues(
    toy: KnowledgeGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kge_training, "KEPT_EVERY", 0.0)
    monkeypatch.setattr(kge_training, "KEPT_SHARE", 0.0)
    kept, begun = tmp_path / "kept", SMALL.model_copy(update={"epochs": 2})
    fewer = replace(toy, splits={"train": toy.splits["train"][:-1]})

    def first(graph: KnowledgeGraph, settings: KGESettings) -> int:
        heard: list[int] = []
        stopped(toy, begun, kept, 5)
        KGE.fit(graph, settings, lambda n, total: heard.append(n), kept=kept)
        return heard[0]

    assert first(toy, begun) == 5
    assert first(toy, begun.model_copy(update={"learning_rate": 0.2})) == 1
    assert first(fewer, begun) == 1
    assert first(toy, begun.model_copy(update={"max_steps": 3})) == 1
    stopped(toy, begun, kept, 5)
    before = kept.read_bytes()
    KGE.fit(toy, begun.model_copy(update={"max_steps": 3}), kept=kept)
    assert kept.read_bytes() == before, "what is further is not lost by training less"
    kept.unlink()
    more = replace(toy, relations=RelationTable([*(relation.label for relation in toy.relations), "new"]))
    assert first(more, begun) == 1
    stopped(toy, begun, kept, 5)
    kept.write_bytes(kept.read_bytes()[:-100])
    heard: list[int] = []
    KGE.fit(toy, begun, lambda n, total: heard.append(n), kept=kept)
    assert heard[0] == 1


@pytest.mark.parametrize("penalty", ["triples", "entities"])
def test_the_loss_is_that_of_each_triple_alone(penalty: str) -> None:
    from pykeen.nn.modules import ComplExInteraction

    torch.manual_seed(0)
    entities, relations = torch.randn(5, 6), torch.randn(2, 6)
    triples = [(0, 1, 3), (0, 1, 4), (2, 0, 2)]
    e, r = (torch.complex(*x.chunk(2, 1)) for x in (entities, relations))
    expected = 0.0
    for head, relation, tail in triples:
        scores_S = ComplExInteraction()(h=e[head], r=r[relation], t=e)
        cubes = sum(float(x.abs().pow(3).sum()) for x in (e[head], r[relation], e[tail]))
        if penalty == "entities":
            cubes = sum(float(x.abs().pow(3).sum()) for x in (entities[head], relations[relation]))
        expected += 0.5 * (float(-scores_S.log_softmax(0)[tail]) + 0.3 * cubes) / 2
    if penalty == "entities":
        expected += 0.3 * float(entities.abs().pow(3).sum(1).mean())
    result = kge_loss(
        entities,
        relations,
        torch.tensor([[0, 1], [2, 0]]),
        torch.tensor([3, 4, 2]),
        torch.tensor([0, 0, 1]),
        torch.full((3,), 0.5),
        KGESettings.model_validate({"regularization": 0.3, "penalty": penalty, "precision": "fp32"}),
    )
    assert float(result) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("penalty", ["triples", "entities"])
def test_a_sample_of_all_entities_has_the_loss_of_all(penalty: str) -> None:
    generator = torch.Generator().manual_seed(0)
    entities, relations = (torch.randn(n, 6, generator=generator).requires_grad_() for n in (7, 4))
    asked, answers, rows = torch.tensor([[0, 1], [2, 0]]), torch.tensor([3, 4, 2]), torch.tensor([0, 0, 1])
    settings = KGESettings.model_validate({"penalty": penalty, "relation_weight": 1.0, "precision": "fp32"})
    whole = kge_loss(entities, relations, asked, answers, rows, torch.ones(3), settings)
    ids, sample, some, at = _among(torch.tensor([6, 0, 1, 5, 2]), asked, answers, 7)
    assert sorted(ids[sample.rows_C].tolist()) == list(range(7))
    assert not sample.log_weight_C.any()
    table = torch.nn.functional.embedding(ids, entities, sparse=True)
    values = kge_loss(table, relations, some, at, rows, torch.ones(3), settings, sample)
    assert float(values.detach()) == pytest.approx(float(whole.detach()), rel=1e-5)
    one, two = (torch.autograd.grad(loss, entities)[0] for loss in (whole, values))
    torch.testing.assert_close(two.to_dense(), one)
    few = _among(torch.tensor([6]), asked, answers, 7)[1]
    assert few.log_weight_C.exp().tolist() == pytest.approx([1, 1, 1, 4]), "it stands for all but the answers"


@pytest.mark.slow
def test_a_sample_teaches_what_all_entities_do(toy: KnowledgeGraph, tmp_path: Path) -> None:
    sampled = SMALL.model_copy(update={"candidates": 8})
    figures = KGE.fit(toy, sampled)
    assert better(figures, *toy.queries("train")).mean() < 3
    again = KGE.fit(toy, sampled)
    assert np.array_equal(figures.entities_SD, again.entities_SD)


def test_the_relation_is_predicted_from_both_entities() -> None:
    generator = torch.Generator().manual_seed(0)
    entities, relations = (torch.randn(n, 6, generator=generator) for n in (5, 4))

    def complex_(x: torch.Tensor) -> torch.Tensor:
        return torch.complex(x[..., :3], x[..., 3:])

    asked, answers, rows = torch.tensor([[0, 1], [2, 0]]), torch.tensor([3, 4, 2]), torch.tensor([0, 0, 1])
    expected = 0.0
    for answer, row in zip(answers, rows, strict=True):
        entity, relation = asked[row]
        scores = (complex_(entities)[entity] * complex_(relations) * complex_(entities)[answer].conj()).real
        expected += float(scores.sum(1).logsumexp(0) - scores.sum(1)[relation]) / 2
    with_it, without = (
        kge_loss(
            entities,
            relations,
            asked,
            answers,
            rows,
            torch.ones(3),
            KGESettings(relation_weight=weight, precision="fp32"),
        )
        for weight in (4.0, 0.0)
    )
    assert float(with_it - without) == pytest.approx(4 * expected, rel=1e-4)


@pytest.mark.slow
def test_queries_may_count_alike(toy: KnowledgeGraph, kge: KGE) -> None:
    by_queries = KGE.fit(toy, SMALL.model_copy(update={"samples": "queries", "penalty": "entities"}))
    assert not np.array_equal(by_queries.entities_SD, kge.entities_SD)
    assert better(by_queries, *toy.queries("train")).mean() < 3


@pytest.mark.parametrize("weight", [0.0, 4.0])
def test_products_in_bf16_are_near_those_in_fp32(weight: float) -> None:
    generator = torch.Generator().manual_seed(0)
    tables = [torch.randn(n, 16, generator=generator).requires_grad_() for n in (50, 6)]
    asked, answers, rows = torch.tensor([[0, 1], [2, 0]]), torch.tensor([3, 4, 2]), torch.tensor([0, 0, 1])
    losses, slopes = [], []
    for precision in ("fp32", "bf16"):
        settings = KGESettings.model_validate({"relation_weight": weight, "precision": precision})
        loss = kge_loss(tables[0], tables[1], asked, answers, rows, torch.ones(3), settings)
        losses.append(loss.item())
        slopes.append(torch.cat([x.flatten() for x in torch.autograd.grad(loss, tables)]))
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
    assert torch.nn.functional.cosine_similarity(slopes[0], slopes[1], dim=0) > 0.999


def test_a_loss_that_is_no_number_is_an_error(toy: KnowledgeGraph) -> None:
    with pytest.raises(RunError, match="learning_rate"):
        KGE.fit(toy, SMALL.model_copy(update={"learning_rate": 1e30}))
    once = {"learning_rate": 1e30, "epochs": 1, "batch_size": 1000}  # before any loss tells
    with pytest.raises(RunError, match=r"has diverged; lower kge\.learning_rate"):
        KGE.fit(toy, SMALL.model_copy(update=once))


@pytest.mark.slow
def test_shuffled_triples_teach_nothing(toy: KnowledgeGraph, kge: KGE) -> None:
    shuffled = toy.splits["train"].copy()
    shuffled[:, 2] = np.random.default_rng(0).integers(0, len(toy.entities), len(shuffled))
    queries, answers = toy.queries("train")
    tail = queries.tail_B
    chance = KGE.fit(replace(toy, splits={"train": shuffled}), SMALL)
    mrrs = [(1 / (1 + better(x, queries[tail], answers[tail]))).mean() for x in (kge, chance)]
    assert mrrs[1] < 0.6 * mrrs[0]
