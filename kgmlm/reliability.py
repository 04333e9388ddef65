"""How good probabilities are: whether they come true as often as they say, and whether they tell apart.

Every function takes labels, probabilities and weights of n triples. Weights say how often each triple stands
for others like it, so that a few negatives can stand for the 99 that there are per positive.

Shapes: n triples, K bins.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kgmlm.kg import BoolArray, FloatArray, IntArray

BINS = 15  # of equal mass
DRAWS = 1000  # of the bootstrap
_SMALLEST = 1e-12  # what a probability is at least in a logarithm


@dataclass(frozen=True)
class Bins:
    """A reliability diagram: probabilities in order, cut into bins of equal mass.

    Attributes:
        predicted_K: mean probability of each bin.
        observed_K: share of positives in each bin.
        mass_K: weight of each bin; all together 1.
    """

    predicted_K: FloatArray
    observed_K: FloatArray
    mass_K: FloatArray

    @property
    def error(self) -> float:
        """The expected calibration error: the mean distance of the two (Naeini et al., 2015)."""
        return float((self.mass_K * np.abs(self.predicted_K - self.observed_K)).sum())

    def as_json(self) -> dict[str, list[float]]:
        """For a file of JSON."""
        return {name: np.round(values, 6).tolist() for name, values in asdict(self).items()}


def binned(labels: BoolArray, probabilities: FloatArray, weights: FloatArray, bins: int = BINS) -> Bins:
    """Bins of equal mass. Equal probabilities share a bin, so there may be fewer; a heavy one is a bin alone.

    >>> found = binned(np.array([False, True]), np.array([0.25, 0.75]), np.ones(2), bins=2)
    >>> found.predicted_K.tolist(), found.observed_K.tolist(), found.error
    ([0.25, 0.75], [0.0, 1.0], 0.25)
    """
    return _binned(np.unique(probabilities, return_inverse=True)[1], labels, probabilities, weights, bins)


def _binned(
    which: IntArray, labels: BoolArray, probabilities: FloatArray, weights: FloatArray, bins: int = BINS
) -> Bins:
    """:func:`binned` of probabilities whose order is known: ``which`` is the number of each value."""
    mass = np.bincount(which, weights)
    middle = (np.cumsum(mass) - mass / 2) / mass.sum()
    at = np.minimum((middle * bins).astype(np.int64), bins - 1)[which]
    mass_K, predicted_K, observed_K = (
        np.bincount(at, weights * x, bins) for x in (np.ones_like(weights), probabilities, labels)
    )
    there = mass_K > 0
    mass_K = mass_K[there]
    return Bins(predicted_K[there] / mass_K, observed_K[there] / mass_K, mass_K / mass_K.sum())


def brier(labels: BoolArray, probabilities: FloatArray, weights: FloatArray) -> float:
    """The mean squared distance of probability and truth (Brier, 1950)."""
    return float(np.average((probabilities - labels) ** 2, weights=weights))


def log_loss(labels: BoolArray, probabilities: FloatArray, weights: FloatArray) -> float:
    """The mean negative log-likelihood of the truth, in nats."""
    right = np.where(labels, probabilities, 1 - probabilities)
    return float(np.average(-np.log(np.maximum(right, _SMALLEST)), weights=weights))


def reweighted(labels: BoolArray, weights: FloatArray, share: float) -> FloatArray:
    """Weights by which positives are a share of all; each class keeps the proportions within it."""
    positive, negative = weights[labels].sum(), weights[~labels].sum()
    found: FloatArray = weights * np.where(labels, share / positive, (1 - share) / negative)
    return found


def measured(
    labels: BoolArray,
    probabilities: FloatArray,
    weights: FloatArray,
    *,
    groups: np.ndarray[Any, Any] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[str, Any]:
    """All figures of probabilities: how well they decide, rank, and come true.

    Args:
        groups: (n,) what is drawn together in the bootstrap, such as a positive with its negatives; None
            draws triples one by one.
        draws: of the bootstrap; 0 is none.

    Returns:
        ``accuracy`` (of deciding at .5), ``auc``, ``average_precision``, ``brier``, ``log_loss``, ``ece`` and
        its ``ece_95`` (a percentile interval; it is wide and lies too high where triples are few, since
        chance only adds to a distance), and the counts.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    found: dict[str, Any] = {
        "positives": int(labels.sum()),
        "negatives": int((~labels).sum()),
        "accuracy": float(np.average((probabilities >= 0.5) == labels, weights=weights)),
        "brier": brier(labels, probabilities, weights),
        "log_loss": log_loss(labels, probabilities, weights),
        "ece": binned(labels, probabilities, weights).error,
    }
    if labels.any() and not labels.all():
        found["auc"] = float(roc_auc_score(labels, probabilities, sample_weight=weights))
        precision = average_precision_score(labels, probabilities, sample_weight=weights)
        found["average_precision"] = float(precision)
    if draws:
        drawn = _bootstrap(labels, probabilities, weights, groups, draws, seed)
        found["ece_95"] = [float(x) for x in np.percentile(drawn, [2.5, 97.5])]
    return found


def _bootstrap(
    labels: BoolArray,
    probabilities: FloatArray,
    weights: FloatArray,
    groups: np.ndarray[Any, Any] | None,
    draws: int,
    seed: int,
) -> FloatArray:
    """ECE of samples of groups with replacement, each as often as it was drawn."""
    number = np.arange(len(labels)) if groups is None else np.unique(groups, return_inverse=True)[1]
    count = int(number.max()) + 1
    rng = np.random.default_rng(seed)
    which = np.unique(probabilities, return_inverse=True)[1]
    found = np.empty(draws)
    for draw in range(draws):
        times = np.bincount(rng.integers(0, count, count), minlength=count)[number]
        found[draw] = _binned(which, labels, probabilities, weights * times).error
    return found
