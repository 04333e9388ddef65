"""Candidates from both sides merged to triples, and how likely these are true.

A calibration at one true triple for one false one is of no use for the best of millions. So probabilities are
fitted to what the same queries, types and K list while validation is hidden. Of the true triples among these,
validation has a share; the others are in further splits, or nobody knows them. This is learning from positive
and unlabeled triples: a triple is in validation with probability ``labeled * q``, where q is that of being
true and ``labeled`` is the share of validation (Elkan and Noto, 2008).

Shapes: n triples, 2 sides (tail, head), F features of a side, S signals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from kgmlm.core.arrays import BoolArray, FloatArray, IntArray
from kgmlm.graphs.queries import parts_of_pairs
from kgmlm.ranking.likely import FEATURES, SIDES, Effects, Likely, Scale, TrueTriples, expit

EVIDENCE = ("both", "tail", "head")  # on which sides a triple is among the best
LEAST = 20  # true triples that a fit needs; with fewer probabilities go by the softmax alone
TINY = 1e-12  # what a probability is at least in a logarithm
_ALIKE = 100  # candidates of the average relation that join those of a relation where scales are fitted
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
        rows: of a part, as :meth:`~kgmlm.prediction.candidates.Completer.part` makes them.
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
        evidence: ``(n,)`` index into :data:`EVIDENCE`; of lists, of as many kinds, NEW, TAIL or HEAD.
        features: ``(n, 2, F)``.
        relations: ``(n,)``.
        labels: ``(n,)``.
        weights: ``(n,)`` how many triples each stands for.
        folds: ``(n,)`` in which of four parts each is, by its pair of entities.
        offsets: ``(n,)`` logarithms of how much rarer false ones were drawn than true ones, where they were;
            weights are then 1.
    """

    evidence: IntArray
    features: FloatArray
    relations: IntArray
    labels: BoolArray
    weights: FloatArray
    folds: IntArray
    offsets: FloatArray

    @classmethod
    def of(cls, found: Merged, labels: BoolArray, keys: IntArray, share: float) -> Examples:
        """All true triples and, by their ``keys``, a share of the others."""
        draw = _mixed(keys)
        kept = labels | (draw < share)
        weights = np.where(labels, 1.0, 1 / share)
        folds = parts_of_pairs(found.triples[:, 0], found.triples[:, 2], 4)
        features = found.values[:, :, : len(FEATURES)]
        offsets = np.zeros(len(labels))
        return cls(found.evidence, features, found.triples[:, 1], labels, weights, folds, offsets)[kept]

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


def scales(examples: Examples, relations: int) -> Scale:
    """Fit the scales of each of so many relations to its candidates, shrunk toward those of all relations."""
    shape = (relations, len(SIDES), len(FEATURES))
    mean, deviation = np.zeros(shape), np.ones(shape)
    for side in range(len(SIDES)):
        there = ~np.isnan(examples.features[:, side, 0])
        if not there.any():
            continue
        which, weights = examples.relations[there], examples.weights[there]
        count = np.bincount(which, weights, relations) + _ALIKE
        for feature, column in enumerate(examples.features[there, side].T):
            average = np.average(column, weights=weights)
            variance = np.average((column - average) ** 2, weights=weights)
            own = (np.bincount(which, weights * column, relations) + _ALIKE * average) / count
            squares = np.bincount(which, weights * (column - own[which]) ** 2, relations)
            own_variance = (squares + _ALIKE * variance) / count
            mean[:, side, feature] = own
            deviation[:, side, feature] = np.where(own_variance > 0, np.sqrt(own_variance), 1.0)
    return Scale(mean, deviation)


def fit_likely(examples: Examples, relations: int, labeled: float, strength: float = 1.0) -> Likely:
    """Fit the probability that a candidate is true, known or not.

    Args:
        relations: how many there are.
        labeled: the share of validation among true triples.
        strength: of the regularization, in times of that of a completion.
    """
    if min(examples.labels.sum(), (~examples.labels).sum()) < LEAST:
        shape = (relations, len(SIDES), len(FEATURES))
        scale = Scale(np.zeros(shape), np.ones(shape))
        _, better = scale(examples.features, examples.relations)
        return Likely(scale, _by_softmax(better, examples, relations, labeled))
    scale = scales(examples, relations)
    scaled = scale(examples.features, examples.relations)
    return Likely(scale, _effects(*scaled, examples, relations, labeled, strength))


def share_of(examples: Examples) -> float:
    """The share of true triples, never 0 nor 1."""
    true = float(examples.weights[examples.labels].sum())
    return (true + 0.5) / (float(examples.weights.sum()) + 1)


# L2 penalty of each part of the log odds: 1 / v for a prior variance v. A relation of which validation has
# little stays close to the average one.
_REGULARIZATIONS = {
    "intercept": 0.0,
    "of_evidence": 1.0,
    "of_relation": 1.0,
    "of_both": 1.0,
    "sides": 1.0,
    "better": 1.0,
    "better_of_relation": 3.0,
}


def _effects(
    sides: FloatArray, better: FloatArray, examples: Examples, relations: int, labeled: float, strength: float
) -> Effects:
    """Logistic regression of which a share is labeled, with effects of relations that shrink toward 0.

    Args:
        sides, better: scaled features.
    """
    from scipy.optimize import minimize

    labels, weights, relation = examples.labels, examples.weights, examples.relations
    kinds, columns = len(EVIDENCE), better.shape[1]
    shapes = {
        "intercept": (1, 1),
        "of_evidence": (1, kinds),
        "of_relation": (relations, 1),
        "of_both": (relations, kinds),
        "sides": (kinds, 2 * columns),
        "better": (1, columns),
        "better_of_relation": (relations, columns),
    }
    ends = np.cumsum([0, *(a * b for a, b in shapes.values())])
    leaning = strength * np.repeat(list(_REGULARIZATIONS.values()), np.diff(ends))
    cells = relation * kinds + examples.evidence
    rows = [np.flatnonzero(examples.evidence == kind) for kind in range(kinds)]

    def effects(at: FloatArray) -> Effects:
        x = {
            name: at[start:end].reshape(shape)
            for (name, shape), start, end in zip(shapes.items(), ends, ends[1:], strict=False)
        }
        intercepts = x["intercept"] + x["of_evidence"] + x["of_relation"] + x["of_both"]
        return Effects(x["sides"], x["better"] + x["better_of_relation"], intercepts)

    def loss(at: FloatArray) -> tuple[float, FloatArray]:
        true = expit(effects(at)(sides, better, examples.evidence, relation))
        hit, missed = np.maximum(labeled * true, TINY), 1 - labeled * true
        drawn = np.log(hit / missed) + examples.offsets  # log odds of a label, as they were drawn
        likelihood = np.where(labels, -np.logaddexp(0, -drawn), -np.logaddexp(0, drawn))
        slope = weights * (labels - expit(drawn)) * (1 - true) / missed
        of_both = np.bincount(cells, slope, relations * kinds).reshape(relations, kinds)
        of_sides = np.stack([sides[some].T @ slope[some] for some in rows])
        own = np.stack([np.bincount(relation, slope * column, relations) for column in better.T], axis=1)
        gradient = np.concatenate(
            [
                [slope.sum()],
                of_both.sum(0),
                of_both.sum(1),
                of_both.ravel(),
                of_sides.ravel(),
                own.sum(0),
                own.ravel(),
            ]
        )
        return -float(weights @ likelihood) + 0.5 * float(leaning @ at**2), leaning * at - gradient

    begin = np.zeros(ends[-1])
    rare = np.where(labels, 1.0, np.exp(examples.offsets))
    share = min(share_of(replace(examples, weights=weights * rare)) / labeled, 0.9)
    begin[0] = np.log(share / (1 - share))
    return effects(minimize(loss, begin, jac=True, method="L-BFGS-B", options={"maxiter": 1000}).x)


def _by_softmax(better: FloatArray, examples: Examples, relations: int, labeled: float) -> Effects:
    """Log odds as far above the log-softmax as makes the expected number of true triples what it is."""
    from scipy.optimize import brentq

    weights = np.zeros(len(FEATURES))
    weights[FEATURES.index("log_softmax")] = 1.0
    softmax, each = better @ weights, np.where(examples.labels, 1.0, np.exp(examples.offsets))
    of_all = replace(examples, weights=examples.weights * each)
    share = min(share_of(of_all) / labeled, 0.9)
    counts = of_all.weights / max(1.0, float(of_all.weights.sum()))

    def missing(intercept: float) -> float:
        return float((counts * expit(softmax + intercept)).sum()) - share

    intercept = float(brentq(missing, -1e4, 1e4)) if len(softmax) else 0.0
    return Effects(
        np.zeros((len(EVIDENCE), 2 * len(FEATURES))),
        np.tile(weights, (relations, 1)),
        np.full((relations, len(EVIDENCE)), intercept),
    )


def by_others(examples: Examples, relations: int, truth: TrueTriples, strength: float = 1.0) -> FloatArray:
    """The probability of each example ``(n,)`` by what was fitted to the three other quarters."""
    found = np.empty(len(examples.labels))
    for quarter in range(4):
        own = examples.folds == quarter
        likely = fit_likely(examples[~own], relations, truth.labeled, strength)
        found[own] = likely(examples.evidence[own], examples.features[own], examples.relations[own])
    return found


def held_out(examples: Examples, found: FloatArray, truth: TrueTriples) -> list[dict[str, float]]:
    """For each probability, how many candidates have it or more, how many of them validation should have, and
    how many it has.

    Args:
        found: as of :func:`by_others`.
    """
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
