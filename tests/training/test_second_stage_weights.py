"""How many of the best are reranked and how much that counts, chosen on validation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kgmlm.core.config import Protocol
from kgmlm.core.errors import ConfigError
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.ranking.ranker import Ranker
from kgmlm.ranking.second_stage import CrossEncoding, Reranker
from kgmlm.ranking.trees import odd_pairs
from kgmlm.training.second_stages import choose_reranking


@pytest.fixture
def ranker(reranking_ranker: Ranker) -> Ranker:
    return reranking_ranker


class Oracle(Reranker):
    """Knows the answers of a split, or the opposite of them."""

    graph: KnowledgeGraph
    sign: float

    def score(self, queries, ids_BK, batch_size=64, advance=lambda n: None):  # type: ignore[no-untyped-def]
        found = torch.zeros(ids_BK.shape)
        h, r, t = self.graph.splits["valid"].T
        for b, query in enumerate(queries):
            known, answers = (h, t) if query.target == "tail" else (t, h)
            mine = answers[(known == query.entity) & (r == query.relation)]
            found[b] = torch.from_numpy(self.sign * np.isin(ids_BK[b], mine))
        return found


class Fickle(Oracle):
    """Knows the answers of one half of the queries, and puts those of the others last."""

    def score(self, queries, ids_BK, batch_size=64, advance=lambda n: None):  # type: ignore[no-untyped-def]
        found = super().score(queries, ids_BK)  # type: ignore[no-untyped-call]
        return torch.where(torch.from_numpy(odd_pairs(queries, np.asarray(ids_BK))), -found, found)


class Hint(Reranker):
    """Says something of each candidate, and somewhat more of the answers of validation."""

    graph: KnowledgeGraph
    scale: float

    def score(self, queries, ids_BK, batch_size=64, advance=lambda n: None):  # type: ignore[no-untyped-def]
        h, r, t = self.graph.splits["valid"].T
        found = np.random.default_rng(0).normal(size=ids_BK.shape)
        for b, query in enumerate(queries):
            known, answers = (h, t) if query.target == "tail" else (t, h)
            mine = answers[(known == query.entity) & (r == query.relation)]
            found[b] += 2.0 * np.isin(ids_BK[b], mine)
        return torch.from_numpy(self.scale * found).float()


def test_the_weight_goes_by_how_much_the_scores_say(ranker: Ranker, toy: KnowledgeGraph) -> None:
    twice = np.repeat(toy.splits["valid"], 2, axis=0)  # so that both halves ask the same
    toy = replace(toy, splits={**toy.splits, "valid": twice})
    made = ranker.stages["reranking"]
    assert isinstance(made, CrossEncoding)
    of, uses = made.reranker, []
    for scale in (4.0, 16.0):
        hint = Hint(of.context, of.tokenizer, of.model, of.settings)
        hint.graph, hint.scale = toy, scale
        ranker.stages["reranking"] = replace(made, reranker=hint)
        uses.append(choose_reranking(ranker, toy, Protocol(split="valid"))[0])
    assert uses[0].k == uses[1].k > 0
    assert uses[0].weight == pytest.approx(4 * uses[1].weight)


def test_what_helps_one_half_of_validation_alone_is_not_used(ranker: Ranker, toy: KnowledgeGraph) -> None:
    made = ranker.stages["reranking"]
    assert isinstance(made, CrossEncoding)
    of = made.reranker
    fickle = Fickle(of.context, of.tokenizer, of.model, of.settings)
    fickle.graph, fickle.sign = toy, 1.0
    ranker.stages["reranking"] = replace(made, reranker=fickle)
    use, found = choose_reranking(ranker, toy, Protocol(split="valid"))
    assert (use.k, use.weight, found["mrr"]) == (0, 0.0, found["mrr_first"])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_validation_chooses_how_many_and_how_much(ranker: Ranker, toy: KnowledgeGraph, sign: float) -> None:
    protocol = Protocol(split="valid")
    ranker = ranker.replace(mixture=ranker.mixture.only("likelihood"))  # so that halves have the same weights
    reranking = ranker.stages.pop("reranking")
    assert isinstance(reranking, CrossEncoding)
    before = evaluate(ranker, toy, protocol).report["metrics"]["mrr"]
    with pytest.raises(ConfigError, match="no reranker"):
        choose_reranking(ranker, toy, protocol)
    made = reranking.reranker
    oracle = Oracle(made.context, made.tokenizer, made.model, made.settings)
    oracle.graph, oracle.sign = toy, sign
    ranker.stages["reranking"] = replace(reranking, reranker=oracle)
    use, found = choose_reranking(ranker, toy, protocol)
    ranker.stages["reranking"] = replace(reranking, reranker=oracle, use=use)
    assert found["mrr_first"] == pytest.approx(before)
    after = evaluate(ranker, toy, protocol).report["metrics"]
    assert after["mrr"] == pytest.approx(found["mrr"], abs=0.05)
    if sign < 0:
        assert (use.k, found["mrr"]) == (0, found["mrr_first"])
    else:
        assert use.k == reranking.reranker.reranking.candidates
        assert found["mrr"] > before
        assert found["hits_at_1"] <= found["held"], "what the first stage misses stays missed"
    assert not ranker.by("likelihood").reranks
