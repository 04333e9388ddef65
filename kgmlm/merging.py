"""Candidates from both sides merged to triples, and how likely these are true.

A calibration at one true triple for one false one is of no use for the best of millions. So probabilities are
fitted to what the same queries, types and K list while validation is hidden. Of the true triples among these,
validation has a share; the others are in further splits, or nobody knows them. This is learning from positive
and unlabeled triples: a triple is in validation with probability ``labeled * q``, where q is that of being
true and ``labeled`` is the share of validation (Elkan and Noto, 2008).

Shapes: n triples, 2 sides (tail, head), F features of a side, S signals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from kgmlm.kg import BoolArray, FloatArray, IntArray

FEATURES = ("score", "log_softmax", "log_rank", "margin")
SIDES = ("tail", "head")  # the tail as an answer of (head, relation, ?), and the head
EVIDENCE = ("both", "tail", "head")  # on which sides a triple is among the best
LEAST = 20  # true triples that a fit of its own needs; with fewer it is that of all evidence
_LEANING = 2.0  # true triples of the average that join those of a relation
MOST = 2_000_000  # triples that are fitted to: all true ones, and others at random
REPORTED = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


@dataclass(frozen=True, eq=False)
class Merged:
    """Triples of one relation, each once, sorted by head and tail.

    Attributes:
        triples: ``(n, 3)``.
        values: ``(n, 2, F + S)``: features and what signals add, NaN at sides that do not have the triple.
    """

    triples: IntArray
    values: FloatArray

    def __len__(self) -> int:
        return len(self.triples)

    @property
    def evidence(self) -> IntArray:
        """On which sides each triple is: an index into :data:`EVIDENCE`."""
        there = ~np.isnan(self.values[:, :, 0])
        return np.where(there.all(1), 0, np.where(there[:, 0], 1, 2))

    def __getitem__(self, rows: BoolArray | IntArray) -> Merged:
        return Merged(self.triples[rows], self.values[rows])


def merged(rows: pa.Table, member: str, columns: Sequence[str]) -> Merged:
    """The triples of some rows of a relation that are in one of the two sets.

    Args:
        rows: of a part, as :meth:`~kgmlm.completing.Completer.part` makes them.
        member: "hidden" or "open".
        columns: features and signals.
    """
    rows = rows.filter(rows.column(member))
    triples = np.stack([_ints(rows, name) for name in ("head", "relation", "tail")], axis=1)
    order = np.lexsort([triples[:, 2], triples[:, 0], triples[:, 1]])
    new = np.ones(len(order), np.bool_)
    new[1:] = (np.diff(triples[order], axis=0) != 0).any(1)
    place = np.empty(len(order), np.int64)
    place[order] = np.cumsum(new) - 1
    values = np.full((int(new.sum()), 2, len(columns)), np.nan)
    side = np.where(rows.column("of_tail").to_numpy(), 0, 1)
    for i, name in enumerate(columns):
        values[place, side, i] = rows.column(name).to_numpy()
    return Merged(triples[order[new]], values)


def _ints(rows: pa.Table, name: str) -> IntArray:
    found: IntArray = rows.column(name).to_numpy().astype(np.int64)
    return found


def by_relation(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The rows of all parts, a relation at a time; parts are ordered by relation."""
    waiting: list[pa.Table] = []
    for part in parts:
        relations = part.column("relation").to_numpy()
        starts = np.flatnonzero(np.diff(relations)) + 1
        for start, end in zip([0, *starts], [*starts, len(relations)], strict=True):
            if start == end:
                continue
            piece = part.slice(start, end - start)
            if waiting and waiting[0].column("relation")[0] != piece.column("relation")[0]:
                yield pa.concat_tables(waiting)
                waiting = []
            waiting.append(piece)
    if waiting:
        yield pa.concat_tables(waiting)


# --- how likely triples are true ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Examples:
    """Triples of which it is counted whether they are true.

    Attributes:
        evidence: ``(n,)`` index into :data:`EVIDENCE`.
        features: ``(n, 2, F)``.
        relations: ``(n,)``.
        labels: ``(n,)``.
        weights: ``(n,)`` how many triples each stands for.
        folds: ``(n,)`` in which of four parts each is, at random.
    """

    evidence: IntArray
    features: FloatArray
    relations: IntArray
    labels: BoolArray
    weights: FloatArray
    folds: IntArray

    @classmethod
    def of(cls, found: Merged, labels: BoolArray, keys: IntArray, share: float) -> Examples:
        """All true triples and, by their ``keys``, a share of the others."""
        draw = _mixed(keys)
        kept = labels | (draw < share)
        weights = np.where(labels, 1.0, 1 / share)
        folds = (draw * 2**20).astype(np.int64) % 4
        features = found.values[:, :, : len(FEATURES)]
        return cls(found.evidence, features, found.triples[:, 1], labels, weights, folds)[kept]

    @classmethod
    def joined(cls, several: Sequence[Examples]) -> Examples:
        """All of several."""
        return cls(**{name: np.concatenate([vars(x)[name] for x in several]) for name in vars(several[0])})

    def __getitem__(self, rows: BoolArray) -> Examples:
        return Examples(**{name: values[rows] for name, values in vars(self).items()})


def _mixed(keys: IntArray) -> FloatArray:
    """A number in [0, 1) of each key, as good as random (splitmix64)."""
    z = keys.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: FloatArray = ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / 2**53
    return found


@dataclass(frozen=True)
class Truth:
    """How many true triples there are beyond those of training.

    Attributes:
        validation: how many validation has, one or more.
        known: how many splits have that are never listed, validation among them if it is one.
        all: how many there are: those of validation and of the known splits, and those that the graph lacks.
            The last are taken to be so many times validation's, since nobody can count them.
    """

    validation: int
    known: int
    all: float

    @property
    def labeled(self) -> float:
        """The share of validation."""
        return self.validation / self.all

    def left(self, q: FloatArray) -> FloatArray:
        """From probabilities of being true to those of triples that no known split has."""
        share = self.known / self.all
        found: FloatArray = q * (1 - share) / (1 - q * share)
        return found


@dataclass(frozen=True)
class Line:
    """Log odds as a weighted sum of columns."""

    mean: FloatArray
    scale: FloatArray
    weights: FloatArray
    intercept: float

    def __call__(self, columns: FloatArray) -> FloatArray:
        """Of rows ``(n, C)``."""
        found: FloatArray = (columns - self.mean) / self.scale @ self.weights + self.intercept
        return found


@dataclass(frozen=True, eq=False)
class Likely:
    """The probability that a candidate is true, known or not.

    Attributes:
        prior: the share of validation triples among all candidates.
        labeled: the share of validation among true ones.
        offsets: of each relation, the logarithm of how much its odds differ from those of all.
        lines: by evidence; one that goes by the better side has fewer columns than "both" has otherwise.
    """

    prior: float
    labeled: float
    offsets: FloatArray
    lines: Mapping[str, Line]

    @classmethod
    def fit(cls, examples: Examples, relations: int, labeled: float) -> Likely:
        """Fit to examples; ``relations`` is how many there are."""
        prior = _share(examples)
        offsets = _offsets(examples, relations, prior)
        # An example has a part in the offset of its own relation; that of the other half has not.
        own = np.empty(len(examples.labels))
        for half in (0, 1):
            rows = examples.folds // 2 == half
            other = _offsets(examples[~rows], relations, prior)
            own[rows] = other[examples.relations[rows]]
        lines: dict[str, Line] = {}
        better = np.column_stack([_better(examples.features), own])
        for number, name in enumerate(EVIDENCE):
            rows = examples.evidence == number
            line = _line(_columns(examples.features[rows], name, own[rows]), examples[rows], labeled)
            line = line or _line(better, examples, labeled)
            lines[name] = line or _softmax_line(better, examples, labeled)
        return cls(prior, labeled, offsets, lines)

    def __call__(self, evidence: IntArray, features: FloatArray, relations: IntArray) -> FloatArray:
        """The probabilities of triples ``(n,)``."""
        own = self.offsets[relations]
        odds = np.empty(len(evidence))
        for number, name in enumerate(EVIDENCE):
            line, rows = self.lines[name], evidence == number
            columns = _columns(features[rows], name, own[rows])
            if columns.shape[1] != len(line.mean):
                columns = np.column_stack([_better(features[rows]), own[rows]])
            odds[rows] = line(columns)
        return _sigmoid(odds)

    def as_json(self) -> dict[str, Any]:
        """What is kept of it."""
        lines = {
            name: {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in vars(line).items()}
            for name, line in self.lines.items()
        }
        return {"prior": self.prior, "labeled": self.labeled, "lines": lines}


def _sigmoid(odds: FloatArray) -> FloatArray:
    found: FloatArray = 0.5 * (1 + np.tanh(odds / 2))
    return found


def _share(examples: Examples) -> float:
    """The share of true triples, never 0 nor 1."""
    true = float(examples.weights[examples.labels].sum())
    return (true + 0.5) / (float(examples.weights.sum()) + 1)


def _offsets(examples: Examples, relations: int, prior: float) -> FloatArray:
    """Of each relation, the difference of its log odds from those of all; few triples lean on none."""
    counts = [
        np.bincount(examples.relations, examples.weights * rows, minlength=relations) + _LEANING * share
        for rows, share in ((examples.labels, 1.0), (~examples.labels, (1 - prior) / prior))
    ]
    found: FloatArray = np.log(counts[0] / counts[1]) - np.log(prior / (1 - prior))
    return found


def _columns(features: FloatArray, evidence: str, offsets: FloatArray) -> FloatArray:
    """What the probability of some evidence goes by."""
    sides = {"both": [0, 1], "tail": [0], "head": [1]}[evidence]
    return np.column_stack([features[:, sides].reshape(len(features), len(sides) * len(FEATURES)), offsets])


def _better(features: FloatArray) -> FloatArray:
    """The features of the side that has the larger softmax, ``(n, F)``."""
    softmax = np.nan_to_num(features[:, :, FEATURES.index("log_softmax")], nan=-np.inf)
    found: FloatArray = features[np.arange(len(features)), softmax.argmax(1)]
    return found


def _line(columns: FloatArray, examples: Examples, labeled: float) -> Line | None:
    """Logistic regression of which a share is labeled; None with too few true triples or too few others."""
    from scipy.optimize import minimize

    labels, weights = examples.labels, examples.weights
    if min(labels.sum(), (~labels).sum()) < LEAST:
        return None
    mean, scale = columns.mean(0), columns.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    design = np.column_stack([(columns - mean) / scale, np.ones(len(columns))])

    def loss(at: FloatArray) -> tuple[float, FloatArray]:
        odds = design @ at
        true = _sigmoid(odds)
        missed = 1 - labeled * true
        likelihood = np.where(labels, -np.logaddexp(0, -odds), np.log(missed))
        slope = np.where(labels, 1 - true, -labeled * true * (1 - true) / missed)
        leaning = np.append(at[:-1], 0.0)  # the intercept is free
        value = -float(weights @ likelihood) + 0.5 * float(leaning @ leaning)
        return value, leaning - design.T @ (weights * slope)

    begin = np.zeros(design.shape[1])
    share = min(_share(examples) / labeled, 0.9)
    begin[-1] = np.log(share / (1 - share))
    found = minimize(loss, begin, jac=True, method="L-BFGS-B", options={"maxiter": 500}).x
    return Line(mean, scale, found[:-1], float(found[-1]))


def _softmax_line(columns: FloatArray, examples: Examples, labeled: float) -> Line:
    """Log odds as far above the log-softmax as makes the expected number of true triples what it is."""
    from scipy.optimize import brentq

    weights = np.zeros(columns.shape[1])
    weights[FEATURES.index("log_softmax")] = 1.0
    share, softmax = min(_share(examples) / labeled, 0.9), columns @ weights
    counts = examples.weights / max(1.0, float(examples.weights.sum()))

    def missing(intercept: float) -> float:
        return float((counts * _sigmoid(softmax + intercept)).sum()) - share

    intercept = brentq(missing, -1e4, 1e4) if len(softmax) else 0.0
    return Line(np.zeros_like(weights), np.ones_like(weights), weights, float(intercept))


def held_out(examples: Examples, relations: int, truth: Truth) -> list[dict[str, float]]:
    """For each probability, how many candidates have it or more, how many of them validation should have, and
    how many it has; each quarter by what was fitted to the others.
    """
    found = np.empty(len(examples.labels))
    for quarter in range(4):
        own = examples.folds == quarter
        likely = Likely.fit(examples[~own], relations, truth.labeled)
        found[own] = likely(examples.evidence[own], examples.features[own], examples.relations[own])
    rows = []
    for least in REPORTED:
        some = truth.left(found) >= least
        weights = examples.weights[some]
        rows.append(
            {
                "probability": least,
                "candidates": round(float(weights.sum())),
                "expected": round(truth.labeled * float((weights * found[some]).sum()), 1),
                "validation": round(float(weights[examples.labels[some]].sum())),
            }
        )
    return rows
