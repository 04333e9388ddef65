"""How many of the best a second stage scores and how much that counts, chosen on validation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from doubles import FixedStage

from kgmlm.core.arrays import Floats, IntArray
from kgmlm.core.config import Protocol
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import FilterIndex, Queries
from kgmlm.ranking.ranker import Ranker, StageWeight
from kgmlm.ranking.trees import odd_pairs
from kgmlm.training import second_stages
from kgmlm.training.weights import validation_task


@pytest.fixture
def ranker(staged_ranker: Ranker) -> Ranker:
    return staged_ranker


def answers_of(graph: KnowledgeGraph, queries: Queries, ids_BK: IntArray) -> Floats:
    """1 for each candidate that is an answer of validation."""
    answers = FilterIndex([graph.splits["valid"]], len(graph.entities))
    rows, ids = answers.lookup(queries)
    keys_BK = np.arange(len(queries))[:, None] * len(graph.entities) + ids_BK
    return np.isin(keys_BK, rows * len(graph.entities) + ids).astype(np.float32)


def choose(ranker: Ranker, graph: KnowledgeGraph) -> tuple[StageWeight, dict[str, float]]:
    stage = ranker.stages[FixedStage.name]
    assert isinstance(stage, FixedStage)

    def read(queries: Queries, rows: IntArray, ids_dK: IntArray) -> Floats:
        return stage.score(ranker, queries, ids_dK)[:, :, None]

    task, first = validation_task(graph, Protocol(split="valid")), ranker.without_stage(stage.name)
    weights = [0.25 * weight for weight in second_stages.WEIGHTS_TRIED]
    return second_stages._choose_use(first, task, lambda n, total: None, 10, weights, read, 64)


def test_the_weight_goes_by_how_much_the_scores_say(ranker: Ranker, toy: KnowledgeGraph) -> None:
    twice = np.repeat(toy.splits["valid"], 2, axis=0)  # so that both halves ask the same
    toy = replace(toy, splits={**toy.splits, "valid": twice})
    stage_weights = []
    for scale in (4.0, 16.0):

        def hint(queries: Queries, ids_BK: IntArray, scale: float = scale) -> Floats:
            noise = np.random.default_rng(0).normal(size=ids_BK.shape)
            return (scale * (noise + 2.0 * answers_of(toy, queries, ids_BK))).astype(np.float32)

        stage_weights.append(choose(ranker.with_stage(FixedStage(StageWeight(5, 2.0), hint)), toy)[0])
    assert stage_weights[0].k == stage_weights[1].k > 0
    assert stage_weights[0].weight == pytest.approx(4 * stage_weights[1].weight)


def test_what_helps_one_half_of_validation_alone_is_not_used(ranker: Ranker, toy: KnowledgeGraph) -> None:
    """It knows the answers of one half of the queries, and puts those of the others last."""

    def fickle(queries: Queries, ids_BK: IntArray) -> Floats:
        right = answers_of(toy, queries, ids_BK)
        return np.where(odd_pairs(queries, ids_BK), -right, right).astype(np.float32)

    stage_weight, figures = choose(ranker.with_stage(FixedStage(StageWeight(5, 2.0), fickle)), toy)
    assert (stage_weight.k, stage_weight.weight, figures["mrr"]) == (0, 0.0, figures["mrr_first"])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_validation_chooses_how_many_and_how_much(ranker: Ranker, toy: KnowledgeGraph, sign: float) -> None:
    protocol = Protocol(split="valid")
    # By one signal, so that halves have the same weights.
    ranker = ranker.replace(mixture=ranker.mixture.only("likelihood"), stages={})
    before = evaluate(ranker, toy, protocol).report["metrics"]["mrr"]
    stage = FixedStage(
        StageWeight(0, 0.0), lambda queries, ids_BK: np.float32(sign) * answers_of(toy, queries, ids_BK)
    )
    stage_weight, figures = choose(ranker.with_stage(stage), toy)
    assert figures["mrr_first"] == pytest.approx(before)
    after = evaluate(ranker.with_stage(stage.with_weight(stage_weight)), toy, protocol).report["metrics"]
    assert after["mrr"] == pytest.approx(figures["mrr"], abs=0.05)
    if sign < 0:
        assert (stage_weight.k, figures["mrr"]) == (0, figures["mrr_first"])
    else:
        assert stage_weight.k == 10
        assert figures["mrr"] > before
        assert figures["hits_at_1"] <= figures["held"], "what the first stage misses stays missed"
    assert not ranker.by("likelihood").reranks
