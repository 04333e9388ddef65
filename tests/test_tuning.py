from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from kgmlm.config import (
    KGESettings,
    Protocol,
    RerankingSettings,
    TextSettings,
    TypeSettings,
    VectorSettings,
)
from kgmlm.evaluation import evaluate
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import ConfigError
from kgmlm.mixture import Use
from kgmlm.pool import Pool, Reading
from kgmlm.ranker import Ranker
from kgmlm.reranker import Reranker
from kgmlm.reranking import Reranking
from kgmlm.signals.kge import KGE
from kgmlm.signals.types import Types
from kgmlm.tuning import _measured, choose_reranking, tune, weigh_signal, weigh_text


def weigh_kge(ranker: Ranker, graph: KnowledgeGraph, protocol: Protocol) -> object:
    return weigh_signal(ranker, "kge", graph, protocol)


def rivals(graph: KnowledgeGraph) -> KnowledgeGraph:
    """The graph with test triples that would filter every wrong answer of validation."""
    h, r, _ = graph.splits["valid"].T
    everything = np.arange(len(graph.entities))
    tails = [(a, b, c) for a, b in zip(h, r, strict=True) for c in everything]
    return replace(graph, splits={**graph.splits, "test": np.array(tails, np.int64)})


@pytest.mark.slow
@pytest.mark.parametrize("what", ["text", "vectors", "kge", "reranking"])
def test_no_choice_depends_on_test_triples(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, what: str
) -> None:
    protocol = Protocol(split="valid")
    found: list[tuple[object, object]] = []
    for graph in (toy, rivals(toy)):
        ranker = make_ranker(vector=VectorSettings(enabled=what == "vectors"))
        if what == "kge":
            ranker.signals["kge"] = KGE.fit(toy, KGESettings(dimension=8, epochs=1))
            mixture, figures = weigh_signal(ranker, "kge", graph, protocol)
            found.append((figures, mixture.tables["kge"].tolist()))
        elif what == "reranking":
            small = {"reranking": RerankingSettings(candidates=5, max_length=8)}
            settings = ranker.reader.settings.model_copy(update=small | {"text": TextSettings(max_length=40)})
            reader = ranker.reader
            reranker = Reranker(ranker.context, reader.tokenizer, reader.model, settings)
            ranker.reranking = Reranking(reranker, Use(0, 0.0), 1.0)
            found.append(choose_reranking(ranker, graph, protocol))
        else:
            mixture, figures = weigh_text(ranker, graph, protocol)
            found.append((figures, {name: table.tolist() for name, table in mixture.tables.items()}))
    assert found[0] == found[1]
    choosers: dict[str, Any] = {"kge": weigh_kge, "reranking": choose_reranking}
    choose = choosers.get(what, weigh_text)
    with pytest.raises(ConfigError, match="must not know the test triples"):
        choose(ranker, toy, Protocol(split="valid", filter=("train", "test")))
    with pytest.raises(ConfigError, match="must not know the test triples"):
        choose(ranker, toy, Protocol())


def oracle(graph: KnowledgeGraph, split: str, relations: list[int]) -> KGE:
    """A KGE model that knows the answers of some relations and is wrong about the others."""
    count = len(graph.entities)

    class Oracle(KGE):
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
    twice = np.repeat(toy.splits["valid"], 2, axis=0)  # so that both halves ask the same
    toy = replace(toy, splits={**toy.splits, "valid": twice})
    ranker = make_ranker(vector=VectorSettings(enabled=True))
    before = evaluate(ranker, toy, Protocol(split="valid")).report["metrics"]["mrr"]
    asked = np.unique(toy.splits["valid"][:, 1]).tolist()
    good, bad = asked[: len(asked) // 2], asked[len(asked) // 2 :]
    assert good
    assert bad
    ranker.signals["kge"] = oracle(toy, "valid", good)
    with pytest.raises(ConfigError, match="no signal 'kge'"):
        weigh_signal(make_ranker(), "kge", toy, Protocol(split="valid"))
    mixture, found = weigh_signal(ranker, "kge", toy, Protocol(split="valid"))
    assert "kge" not in ranker.mixture.tables, "choosing changes nothing"
    weights = mixture.tables["kge"]
    assert (weights[good] > 0).all()
    assert (weights[bad] == 0).all()
    assert found["mrr_text"] == pytest.approx(before)
    ranker = ranker.but(mixture=mixture)
    after = evaluate(ranker, toy, Protocol(split="valid")).report["metrics"]["mrr"]
    assert after > found["mrr_one_weight"] >= before
    assert after == pytest.approx(found["mrr"])
    ranker = ranker.by("text")
    assert evaluate(ranker, toy, Protocol(split="valid")).report["metrics"]["mrr"] == pytest.approx(before)


def test_a_rarely_asked_relation_leans_on_the_others(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    ranker = make_ranker()
    relations = np.unique(toy.splits["valid"][:, 1]).tolist()
    ranker.signals["kge"] = oracle(toy, "valid", relations[:-1])
    mixture, _ = weigh_signal(ranker, "kge", toy, Protocol(split="valid"))
    assert len(set(mixture.tables["kge"][relations].ravel().tolist())) == 1


def test_vectors_get_the_weights_that_validation_asks_for(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranker, found = make_ranker(vector=VectorSettings(enabled=True)), []
    for prior in (1e6, 0.01):
        monkeypatch.setattr("kgmlm.tuning.PRIOR", prior)
        mixture, metrics = weigh_text(ranker, toy, Protocol(split="valid"))
        assert mixture.signals == ("likelihood", "vector")
        weights = set(mixture.tables["vector"].ravel().tolist())
        assert (len(weights) > 1) == (prior < 1), "much of the average or little"
        after = evaluate(ranker.but(mixture=mixture), toy, Protocol(split="valid")).report["metrics"]
        found.append((after["mrr"], metrics))
    (even, by_average), (fitted, _) = found
    assert by_average["mrr"] == pytest.approx(by_average["mrr_one_weight"])
    assert fitted > even, "on the triples that they were chosen on"


def test_no_triple_is_measured_by_what_was_chosen_on_it() -> None:
    """Of many ways without any merit the best one looks good on what it was chosen on, and nowhere else."""
    noise_WB = np.random.default_rng(0).random((200, 40))
    asked = []

    def choose(of_B: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        asked.append(of_B)
        return np.full(40, noise_WB[:, of_B].mean(1).argmax())

    measured_B = _measured(noise_WB, choose)
    assert noise_WB.mean(1).max() > 0.6
    assert abs(measured_B.mean() - 0.5) < 0.08
    assert (asked[0] ^ asked[1]).all()
    assert (asked[0][:20] == asked[0][20:]).all(), "both queries of a triple are on one side"


def test_no_triple_is_measured_by_weights_of_any_signal_that_were_chosen_on_it(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a signal, what is measured is what was measured before it was there."""
    monkeypatch.setattr("kgmlm.tuning.PRIOR", 0.01)  # so that each half chooses for itself
    more = {**toy.splits, "valid": np.concatenate([toy.splits["train"][:20], toy.splits["valid"]])}
    graph = replace(toy, splits=more)
    ranker = make_ranker(vector=VectorSettings(enabled=True)).with_signal(Types.fit(graph, TypeSettings()))
    ranker = ranker.with_signal(oracle(graph, "valid", np.unique(more["valid"][:, 1])[::2].tolist()))
    mixture, _, figures = tune(ranker, graph, Protocol(split="valid"))
    assert list(figures) == ["text", "kge", "types"]
    assert figures["kge"]["mrr_text"] == pytest.approx(figures["text"]["mrr"])
    assert figures["types"]["mrr_text"] == pytest.approx(figures["kge"]["mrr"])
    fitted = evaluate(ranker.but(mixture=mixture), graph, Protocol(split="valid")).report["metrics"]["mrr"]
    assert figures["types"]["mrr"] < fitted, "on the triples that the weights were chosen on"


def test_all_is_tuned_in_turn_and_nothing_is_changed(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    relations = np.unique(toy.splits["valid"][:, 1]).tolist()
    ranker = make_ranker(vector=VectorSettings(enabled=True)).with_signal(oracle(toy, "valid", relations))
    small = {"reranking": RerankingSettings(candidates=5, max_length=8), "text": TextSettings(max_length=40)}
    reader = ranker.reader
    settings = reader.settings.model_copy(update=small)
    reranker = Reranker(ranker.context, reader.tokenizer, reader.model, settings)
    ranker = ranker.but(reranking=Reranking(reranker, Use(0, 0.0), 1.0))
    before = (ranker.mixture, ranker.reranking, dict(ranker.signals))
    mixture, use, figures = tune(ranker, toy, Protocol(split="valid"))
    assert (ranker.mixture, ranker.reranking, dict(ranker.signals)) == before
    assert list(figures) == ["text", "kge", "reranking"]
    assert figures["kge"]["mrr"] > figures["text"]["mrr"]
    assert figures["kge"]["mrr_kge"] > 0.9
    assert mixture.signals[-1] == "kge"
    assert use is not None
    assert (use.k, use.weight) == (figures["reranking"]["k"], figures["reranking"]["weight"])
    first = evaluate(ranker.but(mixture=mixture, reranking=None), toy, Protocol(split="valid"))
    assert first.report["metrics"]["mrr"] == pytest.approx(figures["reranking"]["mrr_first"])
