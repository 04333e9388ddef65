"""The tests that every signal passes: a test class of its own inherits :class:`SignalTests`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from kgmlm.core.config import VectorSettings
from kgmlm.core.errors import RunError
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.ranking.ranker import Ranker
from kgmlm.signals.base import Signal, TrainableSignal
from kgmlm.text.reader import Reading


class SignalTests:
    """A signal over the toy graph, beside a random text model with entity vectors.

    Attributes:
        kind: the signal.
    """

    kind: ClassVar[type[Signal]]

    def settings(self, encoder: str) -> Any:
        """Settings by which it is trained in no time; None where it has none.

        Args:
            encoder: the folder of a random text encoder.
        """
        return None

    def fitted(self, graph: KnowledgeGraph, encoder: str) -> TrainableSignal:
        """The signal, trained on a graph."""
        assert issubclass(self.kind, TrainableSignal)
        return self.kind.fit(graph, self.settings(encoder))

    @pytest.fixture
    def ranker(self, make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, tiny_encoder: str) -> Ranker:
        ranker = make_ranker(vector=VectorSettings(enabled=True))
        if not issubclass(self.kind, TrainableSignal):
            return ranker
        ranker = ranker.with_signal(self.fitted(toy, tiny_encoder))
        return ranker.replace(mixture=ranker.mixture.evenly(self.kind.name, 0.5))

    @pytest.fixture
    def signal(self, ranker: Ranker) -> Signal:
        signal = ranker.signals[self.kind.name]
        assert type(signal) is self.kind
        return signal

    @pytest.fixture
    def reading(self, ranker: Ranker, toy: KnowledgeGraph) -> Reading:
        return Reading(toy.queries("test")[0], ranker.reader.read)

    def test_it_says_what_it_is_and_where_it_is_kept(self) -> None:
        kind = self.kind
        assert kind.title
        assert kind.about
        trained = issubclass(kind, TrainableSignal)
        assert kind.file.startswith(f"signals/{kind.name}.safetensors" if trained else "model/")

    def test_all_ways_of_scoring_a_candidate_agree(
        self, ranker: Ranker, signal: Signal, reading: Reading, toy: KnowledgeGraph
    ) -> None:
        all_BN, some = signal.score(reading, ranker.pool()), np.array([5, 0, 17])
        some_BN = signal.score(reading, ranker.pool(some))
        np.testing.assert_allclose(some_BN, all_BN[:, some], atol=1e-5, rtol=1e-5)
        own = np.random.default_rng(0).integers(-1, len(toy.entities), (len(reading.queries), 6))
        pool = ranker.pool(own)
        own_BK, expected_BK = signal.score(reading, pool), np.take_along_axis(all_BN, pool.filled, 1)
        assert all(x.dtype == np.float32 and np.isfinite(x).all() for x in (all_BN, some_BN, own_BK))
        np.testing.assert_allclose(own_BK[pool.there], expected_BK[pool.there], atol=1e-5, rtol=1e-5)

    def test_scores_of_a_wider_graph_are_those_of_before(
        self, ranker: Ranker, signal: Signal, reading: Reading, toy: KnowledgeGraph
    ) -> None:
        before_BN = signal.score(reading, ranker.pool())
        wider = ranker.for_graph(toy.extended(EntityTable(["q1"], ["Atlantis"])).context)
        again = Reading(reading.queries, wider.reader.read)
        after_BN = wider.signals[signal.name].score(again, wider.pool())
        np.testing.assert_allclose(after_BN[:, :-1], before_BN, atol=1e-5, rtol=1e-5)
        assert np.isfinite(after_BN[:, -1]).all()

    def test_what_is_saved_is_opened_and_a_damaged_file_is_refused(
        self, ranker: Ranker, signal: Signal, reading: Reading, toy: KnowledgeGraph, tmp_path: Path
    ) -> None:
        path = tmp_path / self.kind.file
        path.parent.mkdir(parents=True)
        before_BN = signal.score(reading, ranker.pool())
        signal.save(path)
        opened = ranker.with_signal(self.kind.open(path, toy, ranker.reader)).signals[signal.name]
        np.testing.assert_array_equal(opened.score(reading, ranker.pool()), before_BN)
        if path.exists():  # it has more to keep than the model's weights
            path.write_bytes(path.read_bytes()[:-1])
            with pytest.raises(RunError, match="cannot be read"):
                self.kind.open(path, toy, ranker.reader)

    def test_it_knows_no_answers(
        self, ranker: Ranker, signal: Signal, reading: Reading, toy: KnowledgeGraph, tiny_encoder: str
    ) -> None:
        """Its scores follow from the training triples alone: other splits may say what they like."""
        bare = replace(toy, splits={"train": toy.splits["train"]})
        if issubclass(self.kind, TrainableSignal):
            other = ranker.with_signal(self.fitted(bare, tiny_encoder))
        else:
            other = ranker.for_graph(bare.context)
        found_BN = other.signals[signal.name].score(reading, ranker.pool())
        np.testing.assert_allclose(found_BN, signal.score(reading, ranker.pool()), rtol=1e-5, atol=1e-6)

    def test_it_reads_text_only_if_it_says_so(
        self, ranker: Ranker, signal: Signal, toy: KnowledgeGraph
    ) -> None:
        unread = Reading(toy.queries("test")[0])
        if self.kind.reads:
            with pytest.raises(AssertionError, match="without a model"):
                signal.score(unread, ranker.pool())
        else:
            signal.score(unread, ranker.pool())
