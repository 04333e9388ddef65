"""Weights of signals by likelihood, against what made the data and against all candidates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from kgmlm.core.config import Protocol, VectorSettings
from kgmlm.core.progress import Watcher
from kgmlm.evaluation.task import RankingTask
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.ranker import Ranker
from kgmlm.training import weights as weights_module
from kgmlm.training.weights import ValidationSample


def simulated(weights: list[list[float]], count: int = 3000, seed: int = 0) -> ValidationSample:
    """Queries for tails of relations, whose answers are drawn by a softmax under given weights."""
    rng = np.random.default_rng(seed)
    relation_B = rng.integers(len(weights), size=count)
    scores_BCS = rng.normal(size=(count, 20, len(weights[0]))) * [1.0, 7.0, 0.1][: len(weights[0])]
    logits_BC = np.einsum("bcs,bs->bc", scores_BCS, np.array(weights)[relation_B])
    answers = (logits_BC + rng.gumbel(size=logits_BC.shape)).argmax(1)
    rows = np.arange(count)
    scores_BCS[rows, 0], scores_BCS[rows, answers] = scores_BCS[rows, answers], scores_BCS[rows, 0].copy()
    queries = Queries(np.zeros(count, np.int64), relation_B, np.ones(count, np.bool_))
    names = ("likelihood", "vector", "kge")[: len(weights[0])]
    there_BC = np.ones((count, 20), np.bool_)
    scores = scores_BCS.astype(np.float32)
    unseen_N = np.zeros(count + 1, np.bool_)
    return ValidationSample(names, queries, rows + 1, scores, there_BC, len(weights) + 1, unseen_N, 0.25)


def everything(sample: ValidationSample) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.ones(len(sample.queries), np.bool_)


def test_the_weights_that_made_the_answers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores are divided by .25 in training, so weights are a quarter of those of log-likelihoods."""
    sample = simulated([[1.0, 0.1, 20.0], [2.0, 0.4, 5.0]])
    monkeypatch.setattr(weights_module, "SHRINKAGE", 1e-3)
    monkeypatch.setattr(weights_module, "REGULARIZATION", 1e-3)
    mixture = sample.fitted(sample.names, everything(sample))
    match = np.stack([mixture.tables[name][:2, 0] for name in sample.names], 1)
    assert 4 * match == pytest.approx(np.array([[1.0, 0.1, 20.0], [2.0, 0.4, 5.0]]), rel=0.15)
    for name in sample.names:
        assert mixture.tables[name][2].tolist() == pytest.approx([mixture.averages[name]] * 2), "never asked"
        assert mixture.tables[name][0, 1] == pytest.approx(mixture.averages[name]), "nor are heads"
    few = sample.fitted(("likelihood", "kge"), everything(sample), by_relation=False)
    assert few.signals == ("likelihood", "kge")
    assert np.ptp(few.tables["kge"]) == 0


def test_a_signal_that_says_nothing_gets_next_to_no_weight() -> None:
    mixture = (sample := simulated([[1.0, 0.0, 10.0]])).fitted(("likelihood", "vector"), everything(sample))
    spread = sample.scores_BCS[:, :, 1].std()
    assert mixture.averages["vector"] * spread < 0.2 * mixture.averages["likelihood"]


def test_a_signal_that_says_the_same_of_all_gets_no_weight_but_for_rounding() -> None:
    """Summed in single precision, a constant seems to vary; a weight over that would be a thousand."""
    sample = simulated([[1.0, 0.0]])
    sample.scores_BCS[:, :, 1] = -2.6390572
    mixture = sample.fitted(sample.names, everything(sample))
    assert mixture.averages["vector"] == pytest.approx(0.25, abs=1e-3)


def test_few_queries_leave_weights_near_those_under_which_signals_vary_alike() -> None:
    sample = simulated([[1.0, 0.0, 10.0]])
    none = sample.fitted(sample.names, np.zeros(3000, np.bool_))
    assert set(none.averages.values()) == {0.25}, "nothing is known of how they vary"
    one = sample.fitted(sample.names, np.arange(3000) == 5)
    parts = [one.averages[n] * sample.scores_BCS[5, :, s].std() for s, n in enumerate(sample.names)]
    assert max(parts) < 4 * min(parts)


def test_a_sum_of_signals_is_a_signal() -> None:
    sample = simulated([[1.0, 0.1, 20.0], [2.0, 0.4, 5.0]])
    parts = sample.fitted(("likelihood", "vector"), everything(sample))
    more = sample.summed("text", parts)
    expected = sum(
        parts.of(name, sample.queries)[:, None] * sample.scores_BCS[:, :, s]
        for s, name in enumerate(("likelihood", "vector"))
    )
    assert more.names == (*sample.names, "text")
    assert more.scores_BCS[:, :, 3] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_slopes_are_those_of_the_likelihood(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = simulated([[1.0, 0.1], [2.0, 0.4]], count=40)
    sample.there_BC[::3, 12:] = False
    costs = []

    def minimize(cost: Callable[..., tuple[float, np.ndarray]], start: np.ndarray, **_: object) -> object:
        at = np.random.default_rng(0).normal(size=start.shape) / 3
        costs.append((cost(at)[1], approx_fprime(at, lambda x: cost(x)[0], 1e-4)))
        return type("Found", (), {"x": start})

    monkeypatch.setattr("scipy.optimize.minimize", minimize)
    sample.fitted(sample.names, everything(sample))
    sample.fitted(sample.names, everything(sample), by_relation=False)
    assert [len(slopes) for slopes, _ in costs] == [6, 2]
    for slopes, differences in costs:
        assert slopes == pytest.approx(differences, rel=0.02, abs=0.05)


def test_candidates_are_the_best_of_each_signal_and_no_known_answer(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a loop over the scores of all entities."""
    monkeypatch.setattr(weights_module, "BEST", 2)
    ranker, protocol = make_ranker(vector=VectorSettings(enabled=True)), Protocol(split="valid")
    contest = RankingTask.of(toy, protocol)
    names = ("likelihood", "vector")
    sample = ValidationSample.drawn(ranker, contest, names, Watcher())
    queries, answers = contest.queries, contest.answers
    rows, known = toy.known(protocol.filter).lookup(queries)
    values = {name: np.zeros((len(queries), len(toy.entities)), np.float32) for name in names}
    for at, _, says in ranker.signal_scores(queries, by=names):
        for name in names:
            values[name][at] = says[name]
    for b in range(len(queries)):
        allowed = set(range(len(toy.entities))) - set(known[rows == b].tolist())
        zeros = np.zeros((1, len(toy.entities)), np.float32)
        allowed -= set(np.flatnonzero(ranker.possible.applied(zeros, queries[b : b + 1])[0] < 0).tolist())
        best = {e for n in names for _, e in sorted((-values[n][b, e].item(), e) for e in allowed)[:2]}
        expected = [[values[n][b, e].item() for n in names] for e in [answers[b], *sorted(best)]]
        there = sample.there_BC[b]
        assert sample.scores_BCS[b][there] == pytest.approx(np.array(expected), rel=1e-4, abs=1e-5)


def test_an_impossible_answer_has_no_say(toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]) -> None:
    """What is never put first by any weights cannot be what they are chosen by."""
    ranker = make_ranker(vector=VectorSettings(enabled=True))
    own = toy.splits["valid"].copy()
    own[0, 2] = own[0, 0]
    looped = replace(toy, splits={**toy.splits, "valid": own})
    plenty = np.full(len(toy.relations), True)
    ranker = ranker.replace(possible=replace(ranker.possible, loop_free_R=plenty))
    sample = ValidationSample.drawn(
        ranker, RankingTask.of(looped, Protocol(split="valid")), ("vector",), Watcher()
    )
    heads = len(own)
    assert not sample.there_BC[[0, heads]].any()
    assert sample.there_BC[:, 0].sum() == 2 * heads - 2
