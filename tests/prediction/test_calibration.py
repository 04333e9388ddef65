"""Probabilities of a run: what they are fitted to, and by which weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from doubles import FakeRanker

from kgmlm.core.arrays import Floats
from kgmlm.core.config import VectorSettings
from kgmlm.core.errors import DataError, RunError
from kgmlm.evaluation.metrics import binned, reweighted
from kgmlm.graphs.entities import EntityTable, RelationTable
from kgmlm.graphs.graph import KnowledgeGraph, build_graph
from kgmlm.graphs.queries import FilterIndex, Queries
from kgmlm.prediction.calibration import Examples, Sample, calibrate, figures, fit
from kgmlm.prediction.features import KINDS_OF_NEGATIVES, features
from kgmlm.ranking.likely import temperature_of
from kgmlm.ranking.ranker import Ranker


@pytest.fixture
def more(toy: KnowledgeGraph) -> KnowledgeGraph:
    """The toy graph with enough validation triples to fit something."""
    train = toy.splits["train"]
    moved = np.arange(len(train)) % 2 == 1
    splits = {
        **toy.splits,
        "train": train[~moved],
        "valid": np.concatenate([toy.splits["valid"], train[moved]]),
    }
    return replace(toy, splits=splits)


def test_a_sample_is_new_to_training_and_halves_keep_negatives_with_their_triple(
    more: KnowledgeGraph,
) -> None:
    repeated = {**more.splits, "valid": np.concatenate([more.splits["valid"], more.splits["train"][:5]])}
    graph = replace(more, splits=repeated)
    scorer = FakeRanker(len(graph.entities), "tied")
    sample = Sample.of(graph, "valid", scorer, most=0)
    assert not graph.context.answers.has(sample.triples).any()
    true = sample.triples[sample.labels]
    assert len(true) == len(np.unique(true, axis=0)) == len(np.unique(more.splits["valid"], axis=0))
    valid = set(map(tuple, repeated["valid"].tolist()))
    assert [tuple(t) in valid for t in sample.triples.tolist()] == sample.labels.tolist()
    for group in np.unique(sample.groups):
        assert len(set(sample.halves[sample.groups == group].tolist())) == 1
    few = Sample.of(graph, "valid", scorer, most=7)
    assert few.labels.sum() == 7
    with pytest.raises(DataError, match="no split 'dev'"):
        Sample.of(graph, "dev", scorer)


def test_negatives_of_the_files_go_before_corrupted_ones(more: KnowledgeGraph) -> None:
    false = np.array([[0, 0, 1], [1, 0, 2], [0, 0, 1], more.splits["train"][0]])
    graph = replace(more, negatives={"valid": false})
    sample = Sample.of(graph, "valid", FakeRanker(len(graph.entities), "tied"), most=0)
    assert sample.triples[~sample.labels].tolist() == [[0, 0, 1], [1, 0, 2]]
    assert (sample.kinds == -1).all()


def test_a_triple_that_is_true_elsewhere_is_no_negative(more: KnowledgeGraph) -> None:
    true = [more.splits[split][:3] for split in ("train", "valid", "test")]
    graph = replace(more, negatives={"test": np.concatenate([[[0, 0, 1]], *true])})
    sample = Sample.of(graph, "test", FakeRanker(len(graph.entities), "tied"), most=0)
    assert sample.triples[~sample.labels].tolist() == [[0, 0, 1]]


def test_more_missing_triples_than_negatives_are_refused() -> None:
    graph = dense(0)
    with pytest.raises(RunError, match=r"no negative counts with 1e\+09 missing"):
        calibrate(Knowing(graph), graph, lacking=1e9)


def test_a_graph_whose_corruptions_are_all_true_is_refused() -> None:
    """Every pair of entities has the relation: whatever is drawn is a triple of validation."""
    pairs = [(f"e{h}", "r", f"e{t}") for h in range(14) for t in range(14)]
    order = np.random.default_rng(0).permutation(len(pairs))
    splits = {"train": [pairs[i] for i in order[:130]], "valid": [pairs[i] for i in order[130:]]}
    graph = build_graph("whole", splits)
    with pytest.raises(RunError, match="each that was drawn is a validation triple"):
        calibrate(FakeRanker(len(graph.entities), "tied"), graph)


def test_it_is_fitted_to_what_the_run_says_without_second_stages(
    more: KnowledgeGraph, make_ranker: Callable[..., Ranker]
) -> None:
    ranker = make_ranker(vector=VectorSettings(enabled=True)).for_graph(more.context)
    calibration, sample, held = calibrate(ranker, more, lacking=0)
    assert (sample.weights == 1).all()
    answers = more.context.answers
    found = features(ranker, sample.triples, answers, temperature=temperature_of(ranker))
    examples = Examples(found, sample.triples[:, 1], sample.labels, np.ones(len(held)), sample.halves)
    again, held_again = fit(examples, len(more.relations), of={}, by={})
    assert held == pytest.approx(held_again, abs=1e-3)
    assert again.model.calibrator.kind == calibration.model.calibrator.kind
    told = figures(calibration, sample, held)
    assert told["negatives_by"] == list(KINDS_OF_NEGATIVES)
    assert 0 < told["ece"] < 0.5
    assert ((held > 0) & (held < 1)).all()


class Knowing(FakeRanker):
    """Scores what is true high, and the rest by chance."""

    def __init__(self, graph: KnowledgeGraph) -> None:
        super().__init__(len(graph.entities), "tied")
        self.true = set(map(tuple, graph.all_triples.tolist()))

    def score(self, queries: Queries) -> Floats:
        scores = super().score(queries) / np.float32(10)
        for b, query in enumerate(queries):
            for e in range(self.n):
                triple = (query.entity, query.relation, e)
                if (triple if query.target == "tail" else triple[::-1]) in self.true:
                    scores[b, e] += 2
        return scores


def dense(seed: int) -> KnowledgeGraph:
    """A graph in which many corruptions of a validation triple are test triples."""
    rng = np.random.default_rng(seed)
    every = np.array([(h, r, t) for h in range(40) for r in range(2) for t in range(40)])
    true = every[rng.random(len(every)) < 0.25]
    rng.shuffle(true)
    parts = np.array_split(true, [len(true) // 2, len(true) * 3 // 4])
    splits = dict(zip(("train", "valid", "test"), parts, strict=True))
    entities = EntityTable([f"e{i}" for i in range(40)])
    return KnowledgeGraph("dense", entities, RelationTable(["r", "s"]), splits, {})


def test_missing_triples_among_negatives_are_told_by_what_hits_validation() -> None:
    graph = dense(0)
    scorer = Knowing(graph)
    test = set(map(tuple, graph.splits["test"].tolist()))
    errors = {}
    for missing in (0.0, 1.0):
        calibration, sample, _ = calibrate(scorer, graph, lacking=missing)
        assert not FilterIndex(graph.splits["valid"], 40).has(sample.triples[~sample.labels]).any()
        hidden = np.array([tuple(t) in test for t in sample.triples.tolist()])
        assert hidden.sum() > 30, "there are some"
        if missing:
            assert sample.weights[hidden].mean() < 0.5 * sample.weights[~hidden].mean()
        asked = Sample.of(graph, "test", scorer, seed=1)
        found = features(scorer, asked.triples, graph.context.answers)
        says = calibration.probability(found, asked.triples[:, 1])
        weights = reweighted(asked.labels, asked.weights, 0.5)
        errors[missing] = binned(asked.labels, says, weights).error
    assert errors[1.0] < errors[0.0] / 2


def test_a_scorer_that_knows_the_truth_is_believed(more: KnowledgeGraph) -> None:
    more = replace(more, splits={s: more.splits[s] for s in ("train", "valid")})  # all that is true is known
    calibration, sample, held = calibrate(Knowing(more), more, lacking=0)
    found = figures(calibration, sample, held)
    assert found["auc"] > 0.99
    assert found["accuracy"] > 0.9
    unknowing, other, says = calibrate(FakeRanker(len(more.entities), "constant"), more, lacking=0)
    assert figures(unknowing, other, says)["auc"] < 0.75


def test_nothing_to_fit_to_is_one_sentence(toy: KnowledgeGraph) -> None:
    few = replace(toy, splits={**toy.splits, "valid": toy.splits["valid"][:3]})
    with pytest.raises(RunError, match="at least 20 validation triples of each class"):
        calibrate(FakeRanker(len(toy.entities), "tied"), few)


def test_known_triples_are_those_of_the_index(toy: KnowledgeGraph) -> None:
    triples = np.concatenate([toy.triples("valid"), toy.triples("train")])
    known = toy.context.answers.has(triples)
    train = set(map(tuple, toy.triples("train").tolist()))
    assert known.tolist() == [tuple(t) in train for t in triples.tolist()]
    assert not toy.context.answers.has(triples[:0]).any()
    hub = np.array([(0, 0, t) for t in range(30)] + [(1, 0, 2)])
    index = FilterIndex(hub[::2], 31)
    assert index.has(hub).tolist() == [i % 2 == 0 for i in range(31)]
