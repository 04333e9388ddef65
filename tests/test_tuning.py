from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from kgmlm.config import (
    Protocol,
    RescoringSettings,
    StructureSettings,
    TextSettings,
    VectorSettings,
)
from kgmlm.embedding import train_structure
from kgmlm.evaluation import evaluate
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import ConfigError
from kgmlm.pool import Pool, Reading
from kgmlm.ranker import Ranker
from kgmlm.reranking import Reranking
from kgmlm.rescoring import Rescorer, Use
from kgmlm.signals.structure import Structure
from kgmlm.tuning import choose_rescoring, validate, weigh_signal


def weigh_structure(ranker: Ranker, graph: KnowledgeGraph, protocol: Protocol) -> object:
    return weigh_signal(ranker, "structure", graph, protocol)


def rivals(graph: KnowledgeGraph) -> KnowledgeGraph:
    """The graph with test triples that would filter every wrong answer of validation."""
    h, r, _ = graph.splits["valid"].T
    everything = np.arange(len(graph.entities))
    tails = [(a, b, c) for a, b in zip(h, r, strict=True) for c in everything]
    return replace(graph, splits={**graph.splits, "test": np.array(tails, np.int64)})


@pytest.mark.parametrize("what", ["validate", "vectors", "structure", "rescoring"])
def test_no_choice_depends_on_test_triples(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, what: str
) -> None:
    protocol = Protocol(split="valid")
    found: list[tuple[object, object]] = []
    for graph in (toy, rivals(toy)):
        ranker = make_ranker(vector=VectorSettings(enabled=what == "vectors"))
        if what == "structure":
            ranker.signals["structure"] = train_structure(toy, StructureSettings(dimension=8, epochs=1))
            mixture, figures = weigh_signal(ranker, "structure", graph, protocol)
            found.append((figures, mixture.tables["structure"].tolist()))
        elif what == "rescoring":
            small = {"rescoring": RescoringSettings(candidates=5, max_length=8)}
            settings = ranker.reader.settings.model_copy(update=small | {"text": TextSettings(max_length=40)})
            reader = ranker.reader
            rescorer = Rescorer(ranker.context, reader.tokenizer, reader.model, settings)
            ranker.reranking = Reranking(rescorer, Use(0, 0.0), 1.0)
            found.append(choose_rescoring(ranker, graph, protocol))
        else:
            mixture, figures = validate(ranker, graph, protocol)
            found.append((figures, {name: table.tolist() for name, table in mixture.tables.items()}))
    assert found[0] == found[1]
    choosers: dict[str, Any] = {"structure": weigh_structure, "rescoring": choose_rescoring}
    choose = choosers.get(what, validate)
    with pytest.raises(ConfigError, match="must not know the test triples"):
        choose(ranker, toy, Protocol(split="valid", filter=("train", "test")))
    with pytest.raises(ConfigError, match="must not know the test triples"):
        choose(ranker, toy, Protocol())


def oracle(graph: KnowledgeGraph, split: str, relations: list[int]) -> Structure:
    """A structural model that knows the answers of some relations and is wrong about the others."""
    count = len(graph.entities)

    class Oracle(Structure):
        def score(self, reading: Reading, pool: Pool) -> torch.Tensor:
            found = torch.zeros(len(reading.queries), count)
            for b, query in enumerate(reading.queries):
                h, r, t = graph.splits[split].T
                known, answers = (h, t) if query.target == "tail" else (t, h)
                sign = 1.0 if query.relation in relations else -1.0
                mine = answers[(known == query.entity) & (r == query.relation)]
                found[b, mine] = sign
            return found

    return Oracle(torch.zeros(0, 2), torch.zeros(0, 2), torch.zeros(0), np.zeros(0, np.int64))


def test_a_relation_gets_the_weight_that_validation_asks_for(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PRIOR is taken away: the toy graph has few queries a relation."""
    monkeypatch.setattr("kgmlm.tuning.PRIOR", 0.01)
    ranker = make_ranker(vector=VectorSettings(enabled=True))
    before = evaluate(ranker, toy, Protocol(split="valid")).report["metrics"]["mrr"]
    asked = np.unique(toy.splits["valid"][:, 1]).tolist()
    good, bad = asked[: len(asked) // 2], asked[len(asked) // 2 :]
    assert good
    assert bad
    ranker.signals["structure"] = oracle(toy, "valid", good)
    with pytest.raises(ConfigError, match="no signal 'structure'"):
        weigh_signal(make_ranker(), "structure", toy, Protocol(split="valid"))
    ranker.mixture, found = weigh_signal(ranker, "structure", toy, Protocol(split="valid"))
    weights = ranker.mixture.tables["structure"]
    assert (weights[good] > 0).all()
    assert (weights[bad] == 0).all()
    assert found["mrr_text"] == pytest.approx(before)
    assert found["mrr"] > found["mrr_one_weight"] >= before
    after = evaluate(ranker, toy, Protocol(split="valid")).report["metrics"]
    assert after["mrr"] == pytest.approx(found["mrr"])
    assert after["both.realistic.hits_at_10"] == pytest.approx(found["hits_at_10"])
    ranker = ranker.by("text")
    assert evaluate(ranker, toy, Protocol(split="valid")).report["metrics"]["mrr"] == pytest.approx(before)


def test_a_rarely_asked_relation_leans_on_the_others(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    ranker = make_ranker()
    relations = np.unique(toy.splits["valid"][:, 1]).tolist()
    ranker.signals["structure"] = oracle(toy, "valid", relations[:-1])
    mixture, _ = weigh_signal(ranker, "structure", toy, Protocol(split="valid"))
    assert len(set(mixture.tables["structure"][relations].ravel().tolist())) == 1


def test_vectors_get_the_weights_that_validation_asks_for(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranker, found = make_ranker(vector=VectorSettings(enabled=True)), []
    for prior in (1e6, 0.01):
        monkeypatch.setattr("kgmlm.tuning.PRIOR", prior)
        ranker.mixture, metrics = validate(ranker, toy, Protocol(split="valid"))
        found.append(metrics)
        assert ranker.mixture.signals == ("likelihood", "vector")
        weights = set(ranker.mixture.tables["vector"].ravel().tolist())
        assert (len(weights) > 1) == (prior < 1), "much of the average or little"
        after = evaluate(ranker, toy, Protocol(split="valid")).report["metrics"]
        assert after["mrr"] == pytest.approx(found[-1]["mrr"])
    assert found[0]["mrr"] == pytest.approx(found[0]["mrr_one_weight"])
    assert found[1]["mrr"] > found[1]["mrr_one_weight"] == found[0]["mrr_one_weight"]
