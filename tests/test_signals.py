"""The contract of signals, and one more of them in ten lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
import torch

from kgmlm import signals
from kgmlm.config import Protocol, StructureSettings, VectorSettings
from kgmlm.embedding import train_structure
from kgmlm.evaluation import evaluate
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import EntityTable, IntArray, Query
from kgmlm.pool import Pool, Reading
from kgmlm.prediction import Predictor
from kgmlm.ranker import Ranker
from kgmlm.reader import Reader
from kgmlm.signals import SIGNALS, Signal
from kgmlm.tuning import weigh_signal


@pytest.fixture
def whole(make_ranker: Callable[..., Ranker], toy: KnowledgeGraph) -> Ranker:
    """A ranker that has every signal."""
    ranker = make_ranker(vector=VectorSettings(enabled=True))
    ranker.signals["structure"] = train_structure(toy, StructureSettings(dimension=4, epochs=1))
    ranker.mixture = ranker.mixture.evenly("structure", 0.5)
    return ranker


def reading_of(ranker: Ranker, toy: KnowledgeGraph) -> Reading:
    queries, _ = toy.queries("test")
    return Reading(queries, ranker.reader.read)


@pytest.mark.parametrize("name", SIGNALS)
class TestEverySignal:
    def test_it_is_one(self, whole: Ranker, name: str) -> None:
        assert isinstance(whole.signals[name], Signal)
        assert whole.signals[name].name == name

    def test_all_ways_of_scoring_a_candidate_agree(
        self, whole: Ranker, toy: KnowledgeGraph, name: str
    ) -> None:
        signal, reading = whole.signals[name], reading_of(whole, toy)
        with torch.inference_mode():
            all_BN = signal.score(reading, whole.pool())
            some = np.array([5, 0, 17])
            torch.testing.assert_close(signal.score(reading, whole.pool(some)), all_BN[:, some])
            own = np.random.default_rng(0).integers(-1, len(toy.entities), (len(reading.queries), 6))
            pool = whole.pool(own)
            found_BK = signal.score(reading, pool)
            expected_BK = all_BN.gather(1, torch.from_numpy(pool.filled))
        assert found_BK.isfinite().all()
        there = torch.from_numpy(pool.there)
        torch.testing.assert_close(found_BK[there], expected_BK[there], atol=1e-5, rtol=1e-5)

    def test_over_a_wider_graph_it_says_the_same(self, whole: Ranker, toy: KnowledgeGraph, name: str) -> None:
        wider = whole.over(toy.extended(EntityTable(["q1"], ["Atlantis"])).context)
        reading = reading_of(whole, toy)
        with torch.inference_mode():
            before = whole.signals[name].score(reading, whole.pool())
            after = wider.signals[name].score(reading_of(wider, toy), wider.pool())
        torch.testing.assert_close(after[:, :-1], before, atol=1e-5, rtol=1e-5)
        assert after[:, -1].isfinite().all()

    def test_it_reads_text_only_if_it_says_so(self, whole: Ranker, toy: KnowledgeGraph, name: str) -> None:
        signal = whole.signals[name]
        reading = Reading(toy.queries("test")[0])
        if signal.reads:
            with pytest.raises(AssertionError, match="without a model"):
                signal.score(reading, whole.pool())
        else:
            signal.score(reading, whole.pool())


class Longest:
    """Long names first: a signal in ten lines."""

    name: ClassVar[str] = "longest"
    reads: ClassVar[bool] = False

    def __init__(self, reader: Reader) -> None:
        surfaces = reader.context.entities.column("surface")
        self.lengths_N = torch.tensor([float(len(x)) for x in surfaces])

    def score(self, reading: Reading, pool: Pool) -> torch.Tensor:
        found = self.lengths_N[torch.from_numpy(pool.filled)]
        return found if pool.own else found.expand(len(reading.queries), -1).clone()

    def over(self, reader: Reader, entity_rows: IntArray, relation_rows: IntArray) -> Longest:
        return Longest(reader)


def test_one_more_signal_is_ranked_weighed_explained_and_evaluated(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(signals.SIGNALS, "longest", Longest)
    ranker = make_ranker()
    ranker.signals["longest"] = Longest(ranker.reader)
    ranker.mixture = ranker.mixture.evenly("longest", 100.0)
    longest = max(toy.entities.column("surface"), key=len)
    query = Query(toy.entities.index["usa"], toy.relations.index["located_in"], "tail")
    ((_, found),) = Predictor(toy, ranker).predict([query], k=3, explain=True)
    assert len(found[0].name) == len(longest)
    assert found[0].parts is not None
    assert found[0].parts["longest"] == (100.0, float(len(longest)))
    assert json.dumps(found[0].as_json())
    chosen, figures = weigh_signal(ranker, "longest", toy, Protocol(split="valid"))
    assert figures["mrr"] >= figures["mrr_text"]
    assert chosen.tables["longest"].shape == (len(toy.relations), 2)
    plain = evaluate(ranker.but(mixture=ranker.mixture.without("longest")), toy, Protocol())
    mixed = evaluate(ranker, toy, Protocol())
    assert plain.report["metrics"] != mixed.report["metrics"]
    wider = Predictor(toy, ranker).with_entities(EntityTable(["q1"], ["A" * 99]))
    assert wider.rank(head="usa", relation="located_in", k=1)["tail_label"].tolist() == ["q1"]
