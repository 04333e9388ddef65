"""The probability of candidates, by how a run scores and ranks them.

Completion and candidate lists use the same kind of logistic regression (:class:`Likely`), each fitted to
its own candidates (:mod:`kgmlm.prediction.merged`, :mod:`kgmlm.prediction.list_calibration`).

Shapes: n candidates, B queries, N entities or C candidates of each query, 2 sides (tail, head), F features of
a side, R relations, E kinds of evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from kgmlm.core.arrays import BoolArray, FloatArray, Floats, IntArray, highest, logsumexp
from kgmlm.core.digests import StrictModel
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.constraints import MISSED
from kgmlm.ranking.ranker import MAX_SCORES, Ranker, Scorer

FEATURES = ("score", "log_softmax", "log_rank", "margin")
SIDES = ("tail", "head")  # the tail as an answer of (head, relation, ?), and the head
NEW, TAIL, HEAD = (
    0,
    1,
    2,
)  # evidence of a candidate list: training lacks the query, or has it and asks this side


def temperature_of(scorer: Scorer) -> float:
    """The divisor that makes logits of scores: a run's as in training, others' 1."""
    return scorer.reader.settings.training.temperature if isinstance(scorer, Ranker) else 1.0


def compared(
    scores_BN: Floats, others_BN: Floats, rows: IntArray, ids: IntArray, temperature: float = 1.0
) -> dict[str, FloatArray]:
    """Compare candidates of queries with the others that compete.

    Args:
        scores_BN: of B queries.
        others_BN: the same, minus infinity where an entity does not compete.
        rows, ids: (n,) which candidates of which queries.
        temperature: scores divided by it are logits.

    Returns:
        By name ``(n,)``, float64: the ``score``; its ``log_softmax``; its realistic ``rank``; and its
        ``margin`` above the best other candidate, 0 where nobody else competes.
    """
    own_n1 = scores_BN[rows, ids][:, None]
    score_n = own_n1[:, 0].astype(np.float64)
    among_n = np.isfinite(others_BN[rows, ids])
    above_n, equal_n = (np.empty(len(rows), np.int64) for _ in range(2))
    step = max(1, MAX_SCORES // others_BN.shape[1])
    for start in range(0, len(rows), step):
        some = slice(start, start + step)
        rivals_bN = others_BN[rows[some]]
        above_n[some] = (rivals_bN > own_n1[some]).sum(1)
        equal_n[some] = (rivals_bN == own_n1[some]).sum(1)
    best_BK = highest(others_BN, min(2, others_BN.shape[1]))[0].astype(np.float64)
    first_n, second_n = best_BK[rows, 0], best_BK[rows, -1]
    rival_n = np.where(among_n & (above_n == 0) & (equal_n == 1), second_n, first_n)
    rival_n = np.where(np.isfinite(rival_n), rival_n, score_n)
    with np.errstate(invalid="ignore", divide="ignore"):  # where nobody competes
        total_B = logsumexp(others_BN.astype(np.float64) / temperature)
    logit_n, total_n = score_n / temperature, np.where(np.isfinite(first_n), total_B[rows], -np.inf)
    total_n = np.where(among_n, total_n, np.logaddexp(total_n, logit_n))
    return {
        "score": score_n,
        "log_softmax": np.minimum(logit_n - total_n, 0.0),
        "rank": 1 + above_n + (equal_n - among_n) / 2,
        "margin": score_n - rival_n,
    }


def expit(odds: FloatArray) -> FloatArray:
    """Log odds to probabilities; SciPy's needs an import that costs more than a query."""
    found: FloatArray = 0.5 * (1 + np.tanh(0.5 * odds))
    return found


@dataclass(frozen=True)
class TrueTriples:
    """The true triples beyond those of training, in numbers.

    Attributes:
        validation: how many validation has, one or more.
        known: how many are in the splits that are never listed, which may include validation.
        all: how many there are: those of validation and of the known splits, and those that the graph lacks.
            The last are taken to be so many times validation's, since nobody can count them.
    """

    validation: int
    known: int
    all: float

    @classmethod
    def hidden(cls, validation: int, lacking: float) -> TrueTriples:
        """Validation, which is known, and a hidden set ``lacking`` times as large."""
        return cls(validation, validation, (1 + lacking) * validation)

    @property
    def labeled(self) -> float:
        """The share of validation."""
        return self.validation / self.all

    def left(self, q: FloatArray) -> FloatArray:
        """Turn probabilities of being true into those given that no known split has the triple."""
        share = self.known / self.all
        found: FloatArray = q * (1 - share) / (1 - q * share)
        return found


@dataclass(frozen=True, eq=False)
class Scale:
    """Features of each relation and side brought to mean 0 and deviation 1.

    A run weighs its signals by relation and side, so scores of two relations have different units.

    Attributes:
        mean, deviation: ``(R, 2, F)``; shrunk toward those of all relations where candidates are few.
    """

    mean: FloatArray
    deviation: FloatArray

    def __call__(self, features: FloatArray, relations: IntArray) -> tuple[FloatArray, FloatArray]:
        """Scale features ``(n, 2, F)`` to those of both sides ``(n, 2F)``, 0 where a side does not have the
        triple; and ``(n, F)`` those of the side that has the larger softmax.
        """
        scaled = np.nan_to_num((features - self.mean[relations]) / self.deviation[relations])
        softmax = np.nan_to_num(features[:, :, FEATURES.index("log_softmax")], nan=-np.inf)
        both = scaled.reshape(len(scaled), len(SIDES) * len(FEATURES))  # of no triple, too
        return both, scaled[np.arange(len(scaled)), softmax.argmax(1)]


@dataclass(frozen=True, eq=False)
class Effects:
    """The terms of log odds, with E kinds of evidence.

    Attributes:
        sides: ``(E, 2F)`` of each kind of evidence, what the features of both sides count.
        better: ``(R, F)`` of each relation, what the features of the better side count beside that.
        intercepts: ``(R, E)``.
    """

    sides: FloatArray
    better: FloatArray
    intercepts: FloatArray

    def __call__(
        self, sides: FloatArray, better: FloatArray, evidence: IntArray, relations: IntArray
    ) -> FloatArray:
        """The log odds of triples ``(n,)`` by their scaled features."""
        found: FloatArray = self.intercepts[relations, evidence] + np.einsum(
            "nf,nf->n", better, self.better[relations]
        )
        for kind, weights in enumerate(self.sides):
            rows = evidence == kind
            found[rows] += sides[rows] @ weights
        return found


@dataclass(frozen=True, eq=False)
class Likely:
    """The probability that a candidate is true, known or not.

    Attributes:
        scale: what features go through before they are weighed.
        effects: what they count.
    """

    scale: Scale
    effects: Effects

    def __call__(self, evidence: IntArray, features: FloatArray, relations: IntArray) -> FloatArray:
        """The probabilities of triples ``(n,)``."""
        found: FloatArray = expit(self.effects(*self.scale(features, relations), evidence, relations))
        return found

    def as_json(self) -> dict[str, Any]:
        """The values that are kept."""
        return {
            name: {key: np.round(values, 5).tolist() for key, values in vars(part).items()}
            for name, part in (("scale", self.scale), ("effects", self.effects))
        }


_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Table = tuple[tuple[_Finite, ...], ...]


class ListCalibration(StrictModel):
    """Probabilities of the candidates of single queries, as a run ranks them.

    A probability is the share of such candidates that a further hidden set would have, ``lacking`` times as
    large as validation. A test split of that size is such a set.

    Attributes:
        stages: the second stages that the scores went through: how many candidates, and the weight.
        retrieve: how many candidates an index finds; 0 where all are scored.
        lacking: how large the hidden set is, in times of validation.
        validation: how many triples it has that training has not.
        mean, deviation: of the features of each relation, those of the tail side first; the last row is of a
            relation that the run does not know.
        sides, better, intercepts: as of :class:`Effects`.
        valid: the figures on validation, cross-fitted.
    """

    stages: dict[str, tuple[int, _Finite]]
    retrieve: Annotated[int, Field(ge=0)] = 0
    lacking: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    validation: Annotated[int, Field(ge=1)]
    mean: _Table
    deviation: _Table
    sides: _Table
    better: _Table
    intercepts: _Table
    valid: dict[str, Any]

    @model_validator(mode="after")
    def _fits(self) -> ListCalibration:
        """Refuse tables whose sizes do not go together."""
        rows, columns = len(self.mean), len(SIDES) * len(FEATURES)
        shapes = {"mean": (rows, columns), "deviation": (rows, columns), "sides": (3, columns),
                  "better": (rows, len(FEATURES)), "intercepts": (rows, 3)}  # fmt: skip
        for name, (high, wide) in shapes.items():
            table = getattr(self, name)
            if not rows or len(table) != high or any(len(row) != wide for row in table):
                raise ValueError(f"{name} has not {high} rows of {wide} numbers")
        if any(x <= 0 for row in self.deviation for x in row):
            raise ValueError("a deviation is not above 0")
        return self

    @classmethod
    def of(
        cls,
        likely: Likely,
        validation: int,
        lacking: float,
        stages: Mapping[str, tuple[int, float]],
        valid: Mapping[str, Any],
        retrieve: int = 0,
    ) -> ListCalibration:
        """Keep what was fitted."""

        def table(values: FloatArray) -> _Table:
            rows = np.round(values.reshape(len(values), -1), 6).tolist()
            return tuple(tuple(row) for row in rows)

        return cls(
            stages={name: (int(k), float(weight)) for name, (k, weight) in stages.items()},
            retrieve=retrieve, lacking=float(lacking), validation=validation,
            mean=table(likely.scale.mean), deviation=table(np.maximum(likely.scale.deviation, 1e-6)),
            sides=table(likely.effects.sides), better=table(likely.effects.better),
            intercepts=table(likely.effects.intercepts), valid=dict(valid),
        )  # fmt: skip

    @cached_property
    def truth(self) -> TrueTriples:
        """The true triples beyond those of training."""
        return TrueTriples.hidden(self.validation, self.lacking)

    @cached_property
    def likely(self) -> Likely:
        """The regression."""
        shape = (len(self.mean), len(SIDES), len(FEATURES))
        scale = Scale(np.array(self.mean).reshape(shape), np.array(self.deviation).reshape(shape))
        effects = Effects(np.array(self.sides), np.array(self.better), np.array(self.intercepts))
        return Likely(scale, effects)

    def probabilities(
        self,
        asked: Queries,
        scores_BC: Floats,
        taken: tuple[IntArray, IntArray],
        rows: IntArray,
        columns: IntArray,
        temperature: float = 1.0,
    ) -> FloatArray:
        """The probabilities of candidates ``(n,)``, NaN where training has the triple or none can be.

        Within a query, no candidate is more probable than one before it.

        Args:
            asked: B queries.
            scores_BC: of all candidates that compete.
            taken: which of them training gives as answers, as (row, column) pairs.
            rows, columns: (n,) which candidates of which queries; those of a query one after the other, best
                first.
            temperature: scores divided by it are logits.
        """
        relations = np.where(asked.relation_B < len(self.mean) - 1, asked.relation_B, len(self.mean) - 1)
        features, evidence, open_n = list_features(asked, scores_BC, taken, rows, columns, temperature)
        found = np.full(len(rows), np.nan)
        q_n = self.likely(evidence[open_n], features[open_n], relations[rows[open_n]])
        found[open_n] = falling(self.truth.left(q_n), rows[open_n])
        return found

    @property
    def hidden(self) -> str:
        """The size of the hidden set, in words."""
        if self.lacking == 1:
            return "as large as validation"
        return f"{self.lacking:g} times as large as validation"


def list_features(
    asked: Queries,
    scores_BC: Floats,
    taken: tuple[IntArray, IntArray],
    rows: IntArray,
    columns: IntArray,
    temperature: float = 1.0,
) -> tuple[FloatArray, IntArray, BoolArray]:
    """The features of candidates in the lists of queries; arguments as of
    :meth:`ListCalibration.probabilities`.

    Returns:
        Features ``(n, 2, F)``, NaN at the side that is not asked; the evidence ``(n,)``; and which candidates
        can answer and are not in training.
    """
    taken_BC = np.zeros(scores_BC.shape, np.bool_)
    taken_BC[taken] = True
    out_BC = taken_BC | (scores_BC <= MISSED)
    others_BC = np.where(out_BC, np.float32(-np.inf), scores_BC)
    found = compared(scores_BC, others_BC, rows, columns, temperature)
    found["log_rank"] = np.log(np.maximum(found.pop("rank"), 1.0))
    features = np.full((len(rows), len(SIDES), len(FEATURES)), np.nan)
    tail_n = asked.tail_B[rows]
    side_n = np.where(tail_n, SIDES.index("tail"), SIDES.index("head"))
    features[np.arange(len(rows)), side_n] = np.stack([found[name] for name in FEATURES], 1)
    is_new_B = np.ones(len(asked), np.bool_)
    is_new_B[taken[0]] = False
    evidence = np.where(is_new_B[rows], NEW, np.where(tail_n, TAIL, HEAD))
    return features, evidence, ~out_BC[rows, columns]


def columns_of(ids_BC: IntArray | None, rows: IntArray, ids: IntArray) -> tuple[IntArray, IntArray]:
    """Where candidates stand, as (row, column) pairs; those that an index has not found are left out.

    Args:
        ids_BC: as of :func:`~kgmlm.ranking.retrieval.lists_of`.
    """
    if ids_BC is None:
        return rows, ids
    hit_nC = ids_BC[rows] == ids[:, None]
    there_n = hit_nC.any(1)
    return rows[there_n], hit_nC.argmax(1)[there_n]


def falling(values: FloatArray, rows: IntArray) -> FloatArray:
    """Values ``(n,)`` of lists, in each of which none is larger than one before it.

    Args:
        rows: (n,) of which list each is; those of a list stand together, the best first.
    """
    found = values.copy()
    for own in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows)) + 1):
        found[own] = np.minimum.accumulate(values[own])
    return found
