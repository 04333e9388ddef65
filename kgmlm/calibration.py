"""From features of triples to the probability that they are true: fitted, saved as JSON, read.

A logistic regression adds up the features, with an offset of each relation that leans on 0, the average;
Platt's sigmoid or isotonic regression then makes of the sum a probability. It holds for the share of true
triples that it was fitted at; :func:`shifted` converts it to another. Knows nothing of graphs, models or how
features are made (:mod:`kgmlm.plausibility`).

Shapes: n triples, 2 sides (tail, head), F features of a side, R relations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from scipy.special import expit, logit

from kgmlm import files
from kgmlm.arrays import spreads
from kgmlm.kg import BoolArray, FloatArray, IntArray, RunError
from kgmlm.reliability import log_loss, reweighted

# Of each side. Three are of the rank: wrong answers that a run ranks high are rarest at the first rank and
# far behind, which no straight line says.
FEATURES = ("score", "log_softmax", "margin", "log_rank", "log_rank_squared", "reciprocal_rank")
SIDES = ("tail", "head")  # the tail as the answer of (head, relation, ?), and the head
FITTED_AT = 0.5  # the share of true triples
LEANING = 10.0  # how strongly offsets of relations lean on the average: as of so many triples, by and large
THRESHOLD_LEANING = 50  # triples of the average that join those of a relation
LEAST = 20  # triples of each class, or there is nothing to fit

_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Probability = Annotated[float, Field(ge=0, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Calibrator(_Strict):
    """From a sum of features to a probability: a sigmoid, or steps with straight lines between them.

    Attributes:
        kind: "platt" or "isotonic".
        x, y: of "platt" the slope and the intercept as (a,) and (b,); of "isotonic" the corners.
        lowest, highest: what probabilities are kept within: finitely many triples prove nothing certain.
    """

    kind: Literal["platt", "isotonic"]
    x: tuple[_Finite, ...] = Field(min_length=1)
    y: tuple[_Finite, ...] = Field(min_length=1)
    lowest: _Probability
    highest: _Probability

    @classmethod
    def fit(
        cls, kind: Literal["platt", "isotonic"], sums: FloatArray, labels: BoolArray, weights: FloatArray
    ) -> Calibrator:
        """Fit scikit-learn's to sums of features that none of these triples had a say in."""
        from sklearn.isotonic import IsotonicRegression
        from sklearn.linear_model import LogisticRegression

        positives, negatives = int(labels.sum()), int((~labels).sum())
        x: tuple[float, ...]
        y: tuple[float, ...]
        if kind == "platt":
            found = LogisticRegression().fit(sums[:, None], labels, sample_weight=weights)
            # Its mild penalty keeps the slope finite where few triples are told apart without an error.
            x, y = (float(found.coef_[0, 0]),), (float(found.intercept_[0]),)
            if x[0] < 0:  # never against the sum: then it says nothing
                x, y = (0.0,), (float(logit(np.average(labels, weights=weights))),)
        else:
            steps = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
            steps.fit(sums, labels, sample_weight=weights)
            x, y = (tuple(map(float, v)) for v in (steps.X_thresholds_, steps.y_thresholds_))
        return cls(kind=kind, x=x, y=y, lowest=1 / (negatives + 2), highest=1 - 1 / (positives + 2))

    def probability(self, sums: FloatArray) -> FloatArray:
        """Of sums of features, of any shape."""
        if self.kind == "platt":
            found: FloatArray = expit(self.x[0] * sums + self.y[0])
        else:
            found = np.interp(sums, self.x, self.y)
        return np.clip(found, self.lowest, self.highest)


class Model(_Strict):
    """From the features of a triple to a probability.

    Attributes:
        mean, scale, weights: of each feature, the tail's first, which adds ``weight * (x - mean) / scale``.
        intercept: of the sum.
        offsets: of each relation.
    """

    mean: tuple[_Finite, ...]
    scale: tuple[Annotated[_Finite, Field(gt=0)], ...]
    weights: tuple[_Finite, ...]
    intercept: _Finite
    offsets: tuple[_Finite, ...]
    calibrator: Calibrator

    def parts(self, features: FloatArray) -> FloatArray:
        """What each of the features ``(n, F)`` adds to the sum, ``(n, F)``."""
        found: FloatArray = (features - np.array(self.mean)) / np.array(self.scale) * np.array(self.weights)
        return found

    def offset(self, relations: IntArray) -> FloatArray:
        """Of relations ``(n,)``; 0, the average, of those that are not known (-1, or beyond)."""
        known: FloatArray = np.append(self.offsets, 0.0)
        found: FloatArray = known[np.where((relations >= 0) & (relations < len(self.offsets)), relations, -1)]
        return found

    def sums(self, features: FloatArray, relations: IntArray) -> FloatArray:
        """The sum of what features add, ``(n,)``."""
        found: FloatArray = self.intercept + self.parts(features).sum(1) + self.offset(relations)
        return found


@dataclass(frozen=True, eq=False)
class Examples:
    """Triples that are known to be true or taken to be false.

    Attributes:
        features: ``(n, 2, F)``.
        relations: ``(n,)``.
        labels: ``(n,)`` whether each is true.
        weights: ``(n,)`` how much each counts.
        halves: ``(n,)`` bool, in which half each is; a positive and its negatives are in the same.
    """

    features: FloatArray
    relations: IntArray
    labels: BoolArray
    weights: FloatArray
    halves: BoolArray

    def __getitem__(self, rows: BoolArray) -> Examples:
        return Examples(**{name: values[rows] for name, values in vars(self).items()})

    def balanced(self) -> Examples:
        """The same with positives and negatives weighing the same, a triple 1 on average."""
        weights = reweighted(self.labels, self.weights, FITTED_AT) * len(self.labels)
        return Examples(self.features, self.relations, self.labels, weights, self.halves)


class Calibration(_Strict):
    """What a run's probabilities go by.

    Attributes:
        model: of the sum of features, and of the probability.
        thresholds: of each relation, the probability from which on most of its validation triples are true.
        chosen_for: what the run was when it was fitted.
        chosen_by: the command, what it was fitted on, and its figures.
    """

    model: Model
    thresholds: tuple[_Probability, ...]
    chosen_for: dict[str, str]
    chosen_by: dict[str, Any]

    @classmethod
    def of_json(cls, data: bytes) -> Calibration:
        """Read a saved calibration. Packs may also have models of one side each, which are dropped.

        Raises:
            ValueError: when it is damaged.
        """
        values = files.parse_json(data)
        if isinstance(values, dict) and isinstance(values.get("models"), dict):
            values["model"] = values.pop("models").get("both")
        return cls.model_validate_json(json.dumps(values))

    def probability(
        self,
        features: FloatArray,
        relations: IntArray,
        *,
        prior: float = FITTED_AT,
    ) -> FloatArray:
        """The probability that triples are true, ``(n,)``.

        Args:
            features: ``(n, 2, F)``.
            relations: ``(n,)``, -1 for one that the run does not know.
            prior: the share of true triples among those that are asked about.
        """
        sums = self.model.sums(features.reshape(len(features), -1), relations)
        return shifted(self.model.calibrator.probability(sums), prior)

    def decided(self, probabilities: FloatArray, relations: IntArray, by_relation: bool = False) -> BoolArray:
        """Which probabilities, at any prior, are enough to call a triple true: .5, or each relation's own."""
        least = np.full(len(probabilities), FITTED_AT)
        if by_relation:
            known = np.append(self.thresholds, FITTED_AT)
            least = known[np.where((relations >= 0) & (relations < len(self.thresholds)), relations, -1)]
        found: BoolArray = probabilities >= least
        return found


def shifted(probabilities: FloatArray, prior: float, fitted_at: float = FITTED_AT) -> FloatArray:
    """Probabilities at one share of true triples as they are at another (Saerens et al., 2002).

    What triples look like given that they are true, or that they are not, is taken to stay the same.

    >>> shifted(np.array([0.5, 0.9]), 0.01).round(4).tolist()
    [0.01, 0.0833]
    """
    ratio = prior / (1 - prior) * (1 - fitted_at) / fitted_at
    found: FloatArray = ratio * probabilities / (1 - probabilities + ratio * probabilities)
    return found


def fit(
    examples: Examples, relations: int, *, of: Mapping[str, str], by: Mapping[str, Any]
) -> tuple[Calibration, FloatArray]:
    """Fit everything to examples; what is reported of it is measured on halves in turn.

    Args:
        relations: R.

    Raises:
        RunError: when one of the classes has too few triples in a half.

    Returns:
        The calibration, and of each example the probability by what was fitted to the other half.
    """
    counts = examples.weights > 0
    for half in (False, True):
        labels = examples.labels[(examples.halves == half) & counts]
        if min(labels.sum(), (~labels).sum()) < LEAST / 2:
            raise RunError(f"probabilities need at least {LEAST} validation triples of each class")
    examples = examples.balanced()
    model, held = _fitted(examples, relations)
    thresholds = _thresholds(examples, held, relations)
    found = Calibration(
        model=model, thresholds=tuple(thresholds.tolist()), chosen_for=dict(of), chosen_by=dict(by)
    )
    return found, held


def _fitted(examples: Examples, relations: int) -> tuple[Model, FloatArray]:
    """A model, and the examples' probabilities, each by what the other half gave.

    The calibrator with the smaller log-loss on halves in turn is fitted to the sums of all examples, each by
    the logistic regression of the other half.
    """
    sums = np.empty(len(examples.labels))
    for half in (False, True):
        own = examples.halves == half
        model = _regression(examples[~own], relations)
        sums[own] = model.sums(_columns(examples[own]), examples.relations[own])
    tried: dict[Literal["platt", "isotonic"], FloatArray] = {}
    for kind in ("platt", "isotonic"):
        tried[kind] = np.empty_like(sums)
        for half in (False, True):
            own = examples.halves == half
            other = Calibrator.fit(kind, sums[~own], examples.labels[~own], examples.weights[~own])
            tried[kind][own] = other.probability(sums[own])
    best = min(tried, key=lambda kind: log_loss(examples.labels, tried[kind], examples.weights))
    calibrator = Calibrator.fit(best, sums, examples.labels, examples.weights)
    return _regression(examples, relations, calibrator), tried[best]


def _columns(examples: Examples) -> FloatArray:
    return examples.features.reshape(len(examples.labels), -1)


_PLAIN = Calibrator(kind="platt", x=(1.0,), y=(0.0,), lowest=0.0, highest=1.0)


def _regression(examples: Examples, relations: int, calibrator: Calibrator = _PLAIN) -> Model:
    """Logistic regression on features and on which relation it is."""
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression

    columns = _columns(examples)
    mean, scale = columns.mean(0), spreads(columns)
    count = len(columns)
    # A smaller column takes a larger coefficient, which costs more: so offsets lean on 0.
    small = 1 / np.sqrt(LEANING)
    which = sparse.csr_matrix(
        (np.full(count, small), (np.arange(count), examples.relations)), (count, relations)
    )
    design = sparse.hstack([sparse.csr_matrix((columns - mean) / scale), which], format="csr")
    found = LogisticRegression(C=1.0, max_iter=1000).fit(
        design, examples.labels, sample_weight=examples.weights
    )
    weights = found.coef_[0]
    return Model(
        mean=tuple(mean.tolist()),
        scale=tuple(scale.tolist()),
        weights=tuple(weights[: columns.shape[1]].tolist()),
        intercept=float(found.intercept_[0]),
        offsets=tuple((small * weights[columns.shape[1] :]).tolist()),
        calibrator=calibrator,
    )


def _thresholds(examples: Examples, probabilities: FloatArray, relations: int) -> FloatArray:
    """For each relation the threshold that decides best; few triples lean on what is best for all."""
    tried = np.linspace(0.05, 0.95, 19)
    right = ((probabilities[None] >= tried[:, None]) == examples.labels) * examples.weights
    average = right.sum(1) / examples.weights.sum()
    found = np.full(relations, FITTED_AT)
    for relation in np.unique(examples.relations):
        own = right[:, examples.relations == relation].sum(1) + THRESHOLD_LEANING * average
        best = np.flatnonzero(own >= own.max() - 1e-9)
        found[relation] = tried[best[np.abs(tried[best] - FITTED_AT).argmin()]]  # the most usual of equals
    return found
