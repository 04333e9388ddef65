"""Unseen entities: which candidates are unseen, and what validation chooses of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from signal_tests import SignalTests

import kgmlm
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.ranker import Mixture
from kgmlm.runs.opened import open_folder, tuned_ranker
from kgmlm.signals.base import Pool
from kgmlm.signals.unseen import Unseen
from kgmlm.text.reader import Reading
from kgmlm.training.weights import ValidationSample, fitted_weights, refitted

TRAIN = [("a", "r", "b"), ("c", "r", "b"), ("d", "s", "a")]


class TestUnseen(SignalTests):
    kind = Unseen


@pytest.fixture
def graph() -> KnowledgeGraph:
    return KnowledgeGraph.from_triples(TRAIN, valid=[("x", "r", "b"), ("y", "s", "z")])


def test_unseen_candidates_stand_out(graph: KnowledgeGraph) -> None:
    at, signal = graph.entities.index, Unseen(graph.context)
    queries = Queries(np.array([at["b"], at["x"]]), np.array([0, 0]), np.array([False, True]))
    scores_BN = signal.score(Reading(queries, None), Pool(len(at)))
    for scores_N in scores_BN:
        assert {label for label, i in at.items() if scores_N[i]} == {"x", "y", "z"}
    own = np.array([[at["y"], at["a"]], [at["b"], at["z"]]])
    assert signal.score(Reading(queries, None), Pool(len(at), own)).tolist() == [[1, 0], [0, 1]]


def sample_of(share: float, count: int = 600) -> ValidationSample:
    """Half of the queries are about unseen entities, which the text ranks well; of those about known ones, a
    share has an unseen answer, which the text ranks badly.
    """
    rng = np.random.default_rng(0)
    unseen_N = np.arange(2 * count) >= count
    entities = np.where(np.arange(count) % 2 == 0, np.arange(count), count + np.arange(count))
    new_BC = rng.random((count, 10)) < 0.3
    new_BC[:, 0] = rng.random(count) < share
    text_BC = rng.normal(size=(count, 10)) - 2.0 * new_BC
    text_BC[:, 0] += 1.0
    scores_BCS = np.stack([text_BC, new_BC], 2).astype(np.float32)
    queries = Queries(entities, np.zeros(count, np.int64), np.ones(count, np.bool_))
    answers, there_BC = np.arange(count), np.ones((count, 10), np.bool_)
    names = ("biencoder", Unseen.name)
    return ValidationSample(names, queries, answers, scores_BCS, there_BC, 1, unseen_N, 1.0)


def test_its_weight_is_fitted_to_known_entities_and_leaves_others_as_they_were() -> None:
    sample = sample_of(0.8)
    every_B = np.ones(len(sample.queries), np.bool_)
    weights = fitted_weights(sample, sample.names, every_B)
    assert weights.averages[Unseen.name] > 0
    assert weights.of_unseen is not None
    alone = fitted_weights(sample, ["biencoder"], every_B)
    unseen_B = sample.unseen_N[sample.queries.entity_B]
    assert np.array_equal(
        weights.of("biencoder", sample.queries)[unseen_B], alone.of("biencoder", sample.queries)[unseen_B]
    )
    assert not weights.of(Unseen.name, sample.queries)[unseen_B].any()
    assert fitted_weights(sample_of(0.02), sample.names, every_B).averages[Unseen.name] < 0


def test_fitted_again_neutral_weights_stay() -> None:
    """Both those of all queries, and those of queries about unseen entities."""
    sample = sample_of(0.8)
    every_B = np.ones(len(sample.queries), np.bool_)
    even = Mixture.even({"biencoder": 1.0, Unseen.name: 0.7}, 1)
    known_only = replace(even, of_unseen=even.evenly(Unseen.name, 0.0), unseen_N=sample.unseen_N)
    fitted = fitted_weights(sample, sample.names, every_B)
    assert fitted.of_unseen is not None
    of_both = replace(fitted, of_unseen=fitted.of_unseen.evenly(Unseen.name, 0.3))
    for before in (known_only, of_both):
        again = refitted(sample, sample.names, every_B, before)
        assert again.of_unseen is not None
        assert before.of_unseen is not None
        assert again.of_unseen.averages[Unseen.name] == before.of_unseen.averages[Unseen.name]
        assert again.averages["biencoder"] != 1.0
    assert refitted(sample, sample.names, every_B, known_only).averages[Unseen.name] == 0.7
    assert refitted(sample, sample.names, every_B, of_both).averages == fitted.averages


def test_weights_say_by_which_entities_they_differ() -> None:
    mixture = replace(
        Mixture.even({"rules": 1.0, "unseen": 2.0}, 1),
        of_unseen=Mixture.even({"rules": 3.0, "kge": 1.0}, 1),
        unseen_N=np.array([False, True]),
    )
    queries = Queries(np.array([0, 1]), np.zeros(2, np.int64), np.ones(2, np.bool_))
    assert mixture.of("rules", queries).tolist() == [1, 3]
    assert mixture.of("unseen", queries).tolist() == [2, 0]
    assert mixture.without("rules").of_unseen.signals == ("kge",)  # type: ignore[union-attr]
    assert mixture.differing == ("rules", "unseen", "kge")
    assert replace(mixture, of_unseen=None).differing == ()
    other = mixture.for_graph(np.array([-1, 0]))
    assert other.relations == 2
    assert other.unseen_N is None, "of the other graph they are still to be told"
    damped = mixture.damped({"unseen": 0.5})
    assert damped.of("unseen", queries).tolist() == [1, 0]
    assert damped.damping == {"unseen": 0.5}


def test_a_run_has_it_added_and_dropped(tmp_path: Path, toy: KnowledgeGraph, toy_run: Path) -> None:
    import shutil

    path: Any = shutil.copytree(toy_run, tmp_path / "run")
    kgmlm.tune(path, add=["rules", "unseen"], progress=False)
    folder = open_folder(path)
    mixture, ranker = folder.tuned.mixture, tuned_ranker(folder)
    assert Unseen.name in mixture.tables
    further = mixture.of_unseen
    assert further is not None, "queries about unseen entities have no weight of unseen candidates"
    assert not further.averages[Unseen.name]
    assert further.averages["rules"] == mixture.averages["rules"], "no validation triple has one new entity"
    assert ranker.mixture.unseen_N is not None
    kgmlm.evaluate(path, progress=False)
    kgmlm.tune(path, drop="unseen", progress=False)
    assert open_folder(path).tuned.mixture.of_unseen is None
