"""Validation among a sample of entities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from kgmlm.core.config import Protocol, VectorSettings
from kgmlm.evaluation.task import RankingTask
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Columns
from kgmlm.ranking.ranker import Ranker
from kgmlm.training import weights
from kgmlm.training.weights import weigh


def test_validation_in_training_reads_the_sample_and_no_other_text(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]
) -> None:
    ranker = make_ranker(vector=VectorSettings(enabled=True))
    assert ranker.vectors is not None
    protocol = Protocol(split="valid", max_triples=3)
    contest = RankingTask.of(toy, protocol, 4)
    assert contest.ids is not None
    assert set(contest.answers.tolist()) <= set(contest.ids.tolist())
    assert contest.width < len(toy.entities)
    mixture, by_stage = weigh(ranker, toy, protocol, among=4)
    figures = by_stage["text"]
    assert figures["candidates"] == contest.width
    assert len(toy.entities) - ranker.vectors.unread == contest.width
    assert {"likelihood", "vector"} == set(mixture.signals)
    whole = weigh(ranker, toy, protocol)[1]["text"]
    assert "candidates" not in whole
    assert figures["mrr_vector"] >= whole["mrr_vector"], "fewer compete"


@pytest.mark.parametrize("vector", [VectorSettings(), VectorSettings(enabled=True)])
def test_a_sample_that_leaves_none_out_ranks_as_all_entities_do(
    toy: KnowledgeGraph,
    make_ranker: Callable[..., Ranker],
    vector: VectorSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranker, protocol = make_ranker(vector=vector), Protocol(split="valid")
    whole = weigh(ranker, toy, protocol)[1]["text"]
    members = np.arange(len(toy.entities))
    asked = RankingTask.of(toy, protocol)
    assert RankingTask.of(toy, protocol, len(members)).ids is None
    everyone = replace(asked, columns=Columns(members))
    monkeypatch.setattr(weights, "validation_task", lambda *of: everyone)
    sampled = weigh(ranker, toy, protocol, among=1)[1]["text"]
    assert sampled.pop("candidates") == len(members)
    assert sampled == pytest.approx(whole)


def test_ranks_in_a_sample_are_those_of_its_columns(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]
) -> None:
    """Against a loop over the scores of all entities."""
    ranker, protocol = make_ranker(), Protocol(split="valid")
    figures = weigh(ranker, toy, protocol, among=6)[1]["text"]
    contest = RankingTask.of(toy, protocol, 6)
    assert contest.ids is not None
    queries, answers = toy.queries("valid")
    known = {split: set(map(tuple, toy.splits[split].tolist())) for split in ("train", "valid")}
    reciprocal = []
    scores_BN = np.zeros((len(queries), len(toy.entities)), np.float32)
    for rows, part_bN in ranker.rank(queries):
        scores_BN[rows] = part_bN
    for query, answer, scores_N in zip(queries, answers.tolist(), scores_BN.tolist(), strict=True):
        better = ties = 0
        for other in contest.ids.tolist():
            ends = (query.entity, other) if query.target == "tail" else (other, query.entity)
            triple = (ends[0], query.relation, ends[1])
            if other == answer or any(triple in item for item in known.values()):
                continue
            better += scores_N[other] > scores_N[answer]
            ties += scores_N[other] == scores_N[answer]
        reciprocal.append(1 / (1 + better + ties / 2))
    assert figures["mrr"] == pytest.approx(np.mean(reciprocal))
