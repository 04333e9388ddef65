"""Figures of probabilities: against scikit-learn, by hand, and on data whose probabilities are right."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics

from kgmlm.core.arrays import BoolArray, FloatArray
from kgmlm.evaluation.metrics import BINS, binned, brier, log_loss, measured


def drawn(count: int, seed: int = 0) -> tuple[BoolArray, FloatArray]:
    """Probabilities that are right by construction."""
    rng = np.random.default_rng(seed)
    probabilities = rng.beta(0.5, 0.5, count)
    return rng.random(count) < probabilities, probabilities


def test_figures_are_those_of_scikit_learn() -> None:
    labels, probabilities = drawn(500)
    weights = np.random.default_rng(1).random(500) + 0.1
    figures = measured(labels, probabilities, weights, draws=0)
    asked = {"sample_weight": weights}
    assert figures["brier"] == pytest.approx(metrics.brier_score_loss(labels, probabilities, **asked))
    assert figures["log_loss"] == pytest.approx(metrics.log_loss(labels, probabilities, **asked))
    assert figures["auc"] == pytest.approx(metrics.roc_auc_score(labels, probabilities, **asked))
    assert figures["accuracy"] == pytest.approx(metrics.accuracy_score(labels, probabilities >= 0.5, **asked))
    precision = metrics.average_precision_score(labels, probabilities, **asked)
    assert figures["average_precision"] == pytest.approx(precision)
    assert (figures["positives"], figures["negatives"]) == (labels.sum(), 500 - labels.sum())
    assert measured(np.array([True]), np.array([0.5]), np.ones(1), draws=0)["accuracy"] == 1.0


def test_a_weight_is_worth_as_many_triples() -> None:
    labels, probabilities = drawn(60)
    times = np.random.default_rng(2).integers(1, 5, 60)
    one = measured(labels, probabilities, times.astype(float), draws=0)
    ones = np.ones(int(times.sum()))
    many = measured(np.repeat(labels, times), np.repeat(probabilities, times), ones, draws=0)
    for key in ("accuracy", "auc", "average_precision", "brier", "log_loss", "ece"):
        assert one[key] == pytest.approx(many[key]), key


def test_right_probabilities_have_a_small_error_and_wrong_ones_a_large_one() -> None:
    labels, probabilities = drawn(20_000)
    ones = np.ones(len(labels))
    assert binned(labels, probabilities, ones).error < 0.01
    assert binned(labels, probabilities**3, ones).error > 0.1
    result = measured(labels, probabilities, ones, draws=50)
    low, high = result["ece_95"]
    assert 0 < low < high < 0.02
    assert result["ece_95"] == measured(labels, probabilities, ones, draws=50, seed=0)["ece_95"]
    assert result["ece_95"] != measured(labels, probabilities, ones, draws=50, seed=1)["ece_95"]


def test_the_interval_holds_ninety_five_percent_of_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgmlm.evaluation.metrics._bootstrap", lambda *given: np.linspace(0, 1, 1001))
    labels, probabilities = drawn(20)
    assert measured(labels, probabilities, np.ones(20))["ece_95"] == pytest.approx([0.025, 0.975])


def test_bins_have_the_same_mass_and_equal_probabilities_share_one() -> None:
    labels, probabilities = drawn(1500)
    values = binned(labels, probabilities, np.ones(1500))
    assert values.mass_K == pytest.approx(np.full(BINS, 1 / BINS))
    assert (np.diff(values.predicted_K) > 0).all()
    uneven = binned(np.array([True, False]), np.array([0.1, 0.2]), np.array([5.0, 1.0]), bins=2)
    assert uneven.predicted_K == pytest.approx([0.1, 0.2])  # the middles of their masses are 2.5 and 5.5 of 6
    assert uneven.mass_K == pytest.approx([5 / 6, 1 / 6])
    alike = binned(np.array([True, False, False, False]), np.full(4, 0.25), np.ones(4))
    assert (alike.predicted_K.tolist(), alike.observed_K.tolist(), alike.error) == ([0.25], [0.25], 0.0)
    assert binned(np.array([True]), np.array([1.0]), np.ones(1)).mass_K.tolist() == [1.0]


def test_one_class_alone_has_no_auc_and_certainty_has_a_finite_loss() -> None:
    labels, ones = np.array([True, True]), np.ones(2)
    assert "auc" not in measured(labels, np.array([0.5, 1.0]), ones, draws=0)
    assert log_loss(labels, np.array([0.0, 1.0]), ones) < 100
    assert brier(labels, np.array([0.0, 1.0]), ones) == 0.5
