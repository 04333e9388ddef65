from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kgmlm.core.arrays import BoolArray, Floats, IntArray
from kgmlm.core.config import (
    KGESettings,
    Protocol,
    TypeSettings,
    VectorSettings,
)
from kgmlm.core.errors import ConfigError
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.ranker import Ranker, StageWeight
from kgmlm.ranking.second_stage import ReverseScoring
from kgmlm.signals.base import Pool
from kgmlm.signals.kge import KGE
from kgmlm.signals.types import Types
from kgmlm.text.reader import Reading
from kgmlm.training.second_stages import choose_reverse, tune
from kgmlm.training.weights import TEXT, weigh


def rivals(graph: KnowledgeGraph) -> KnowledgeGraph:
    """The graph with test triples that would filter every wrong answer of validation."""
    h, r, _ = graph.splits["valid"].T
    everything = np.arange(len(graph.entities))
    tails = [(a, b, c) for a, b in zip(h, r, strict=True) for c in everything]
    return replace(graph, splits={**graph.splits, "test": np.array(tails, np.int64)})


@pytest.mark.slow
@pytest.mark.parametrize("what", ["text", "vectors", "kge", "reverse"])
def test_no_choice_depends_on_test_triples(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, what: str
) -> None:
    protocol = Protocol(split="valid")
    rows: list[tuple[object, object]] = []
    for graph in (toy, rivals(toy)):
        ranker = make_ranker(vector=VectorSettings(enabled=what == "vectors"))
        if what == "kge":
            ranker = ranker.with_signal(KGE.fit(toy, KGESettings(dimension=8, epochs=1)))
        if what == "reverse":
            rows.append(choose_reverse(ranker, graph, protocol))
        else:
            mixture, figures = weigh(ranker, graph, protocol)
            rows.append((figures, {name: table.tolist() for name, table in mixture.tables.items()}))
    assert rows[0] == rows[1]
    choose: Any = choose_reverse if what == "reverse" else weigh
    with pytest.raises(ConfigError, match="must not know the test triples"):
        choose(ranker, toy, Protocol(split="valid", filter=("train", "test")))
    with pytest.raises(ConfigError, match="must not know the test triples"):
        choose(ranker, toy, Protocol())


def oracle(graph: KnowledgeGraph, split: str, relations: list[int]) -> KGE:
    """A KGE model that knows the answers of some relations and is wrong about the others."""
    count = len(graph.entities)

    class Oracle(KGE):
        def score(self, reading: Reading, pool: Pool) -> Floats:
            values = np.zeros((len(reading.queries), count), np.float32)
            for b, query in enumerate(reading.queries):
                h, r, t = graph.splits[split].T
                known, answers = (h, t) if query.target == "tail" else (t, h)
                sign = 1.0 if query.relation in relations else -1.0
                mine = answers[(known == query.entity) & (r == query.relation)]
                values[b, mine] = sign
            return values[:, pool.filled]

    return Oracle(*np.zeros((2, 0, 2), np.float32), *np.zeros((2, 0), np.int64))


def alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deal triples to halves in turn."""

    def in_turn(queries: Queries, answers: IntArray) -> BoolArray:
        odd_B: BoolArray = np.arange(len(answers)) % 2 == 1
        return odd_B

    monkeypatch.setattr("kgmlm.training.weights.odd_answers", in_turn)
    monkeypatch.setattr("kgmlm.training.candidate_lists.odd_answers", in_turn)


def test_a_relation_gets_the_weight_that_validation_asks_for(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing draws weights to those of all: the toy graph has few queries per relation."""
    monkeypatch.setattr("kgmlm.training.weights.SHRINKAGE", 0.01)
    alternate(monkeypatch)
    twice = np.repeat(toy.splits["valid"], 2, axis=0)  # so that both halves ask the same
    toy = replace(toy, splits={**toy.splits, "valid": twice})
    asked = np.unique(toy.splits["valid"][:, 1]).tolist()
    good, bad = asked[: len(asked) // 2], asked[len(asked) // 2 :]
    ranker = make_ranker(vector=VectorSettings(enabled=True)).with_signal(oracle(toy, "valid", good))
    mixture, figures = weigh(ranker, toy, Protocol(split="valid"))
    assert "kge" not in ranker.mixture.tables, "choosing changes nothing"
    weights = mixture.tables["kge"]
    assert weights[good].min() > 100 * weights[bad].max()
    result = figures["kge"]
    assert result["mrr_text"] == figures["text"]["mrr"]
    assert result["mrr"] > result["mrr_one_weight"] > result["mrr_text"]
    after = evaluate(ranker.replace(mixture=mixture), toy, Protocol(split="valid")).report["metrics"]
    assert after["mrr"] == pytest.approx(result["mrr"], abs=0.02)


@pytest.mark.parametrize("signal", ["vector", "kge"])
def test_a_rarely_asked_relation_leans_on_the_others(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, signal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranker = make_ranker(vector=VectorSettings(enabled=True))
    relations = np.unique(toy.splits["valid"][:, 1]).tolist()
    ranker = ranker.with_signal(oracle(toy, "valid", relations[:-1]))
    apart, measured = [], []
    for shrink in (1e6, 0.01):
        monkeypatch.setattr("kgmlm.training.weights.SHRINKAGE", shrink)
        mixture, figures = weigh(ranker, toy, Protocol(split="valid"))
        weights = mixture.tables[signal][relations]
        apart.append(weights.max() / weights.min())
        measured.append(figures["text"])
        for stage in figures.values():
            assert (stage["mrr"] == pytest.approx(stage["mrr_one_weight"], abs=1e-3)) or shrink < 1
    assert apart[0] == pytest.approx(1, abs=1e-3)
    assert apart[1] > 1.5
    assert measured[0]["mrr_vector"] == measured[1]["mrr_vector"], "alone, no weights count"


def test_a_relation_that_validation_does_not_ask_about_has_the_average(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    asked = toy.splits["valid"][:, 1]
    some = replace(toy, splits={**toy.splits, "valid": toy.splits["valid"][asked == asked[0]]})
    mixture, figures = weigh(make_ranker(vector=VectorSettings(enabled=True)), some, Protocol(split="valid"))
    others = np.delete(np.arange(len(toy.relations)), asked[0])
    assert (mixture.tables["vector"][others] == np.float32(mixture.averages["vector"])).all()
    assert figures["text"]["weight_vector"] == mixture.averages["vector"]


def test_no_triple_is_measured_by_weights_that_were_fitted_on_it(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgmlm.training.weights.SHRINKAGE", 0.01)  # so that each half chooses for itself
    more = {**toy.splits, "valid": np.concatenate([toy.splits["train"][:20], toy.splits["valid"]])}
    graph = replace(toy, splits=more)
    ranker = make_ranker(vector=VectorSettings(enabled=True)).with_signal(Types.fit(graph, TypeSettings()))
    ranker = ranker.with_signal(oracle(graph, "valid", np.unique(more["valid"][:, 1])[::2].tolist()))
    mixture, _, figures = tune(ranker, graph, Protocol(split="valid"))
    assert list(figures) == ["text", "kge", "types"]
    assert figures["types"]["mrr_text"] == figures["kge"]["mrr"]
    fitted = evaluate(ranker.replace(mixture=mixture), graph, Protocol(split="valid")).report["metrics"][
        "mrr"
    ]
    assert figures["types"]["mrr"] < fitted, "on the triples that the weights were chosen on"


def test_all_is_tuned_in_turn_and_nothing_is_changed(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    alternate(monkeypatch)
    relations = np.unique(toy.splits["valid"][:, 1]).tolist()
    ranker = make_ranker(vector=VectorSettings(enabled=True)).with_signal(oracle(toy, "valid", relations))
    ranker = ranker.with_stage(ReverseScoring(StageWeight(0, 0.0)))
    before = (ranker.mixture, dict(ranker.stages), dict(ranker.signals))
    mixture, stage_weights, figures = tune(ranker, toy, Protocol(split="valid"))
    assert (ranker.mixture, dict(ranker.stages), dict(ranker.signals)) == before
    assert list(figures) == ["text", "kge", "reverse"]
    assert figures["kge"]["mrr"] > figures["text"]["mrr"]
    assert figures["kge"]["mrr_kge"] > 0.9
    alone, of_text = weigh(
        ranker.replace(signals={n: ranker.signals[n] for n in TEXT}), toy, Protocol(split="valid")
    )
    assert of_text["text"] == pytest.approx(figures["text"], rel=1e-4)
    ratios = (m.tables["vector"] / m.tables["likelihood"] for m in (alone, mixture))
    assert next(ratios) == pytest.approx(next(ratios), rel=1e-3), "the text ranks as without the others"
    assert mixture.signals[-1] == "kge"
    stage_weight = stage_weights["reverse"]
    assert (stage_weight.k, stage_weight.weight) == (figures["reverse"]["k"], figures["reverse"]["weight"])
    first = evaluate(ranker.replace(mixture=mixture).unreranked(), toy, Protocol(split="valid"))
    assert first.report["metrics"]["mrr"] == pytest.approx(figures["reverse"]["mrr_first"])
