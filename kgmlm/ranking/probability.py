"""The probability of a triple, by how a run ranks each of its ends.

A triple is asked for from both sides, and each end is compared with all others that could answer. A logistic
regression turns the scores, ranks and margins of both sides to log odds, so a triple has one probability,
from whichever side it is asked. It is fitted to validation (:mod:`kgmlm.prediction.calibration`).

Shapes: n triples, B queries, N entities, 2 sides (tail, head), F features of a side, R relations, E states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from kgmlm.core.arrays import BoolArray, FloatArray, Floats, IntArray, highest, logsumexp
from kgmlm.core.digests import StrictModel
from kgmlm.graphs.graph import Validation
from kgmlm.graphs.queries import FilterIndex, Groups, Queries, both_sides
from kgmlm.ranking.constraints import MISSED
from kgmlm.ranking.ranker import MAX_SCORES, Ranker, Scorer
from kgmlm.ranking.trees import Trees

# For each side. Three describe the rank: wrong answers that a run ranks high are rarest at the first rank and
# far behind, which a straight line cannot express.
FEATURES = ("score", "log_softmax", "margin", "log_rank", "log_rank_squared", "reciprocal_rank")
SIDES = ("tail", "head")  # the tail as an answer of (head, relation, ?), and the head
# of a query: known triples answer it, or only have its entity, or not even that
STATES = ("answered", "unanswered", "new")


def temperature_of(scorer: Scorer) -> float:
    """The divisor that turns scores into logits: a run's as in training, 1 for other scorers."""
    return scorer.reader.settings.training.temperature if isinstance(scorer, Ranker) else 1.0


def compared(
    scores_BN: Floats, others_BN: Floats, rows: IntArray, ids: IntArray, temperature: float = 1.0
) -> FloatArray:
    """Compare candidates of queries with the others that compete.

    Args:
        scores_BN: of B queries.
        others_BN: the same, minus infinity where an entity does not compete.
        rows, ids: (n,) which candidates of which queries.
        temperature: scores divided by it are logits.

    Returns:
        :data:`FEATURES` ``(n, F)``: the score; its log-softmax; its margin above the best other candidate, 0
        where nobody else competes; and its realistic rank in three ways.
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
    log_softmax_n = np.minimum(logit_n - total_n, 0.0)
    rank_n = np.maximum(1.0, 1 + above_n + (equal_n - among_n) / 2)
    log_rank_n = np.log(rank_n)
    return np.stack(
        [score_n, log_softmax_n, score_n - rival_n, log_rank_n, log_rank_n**2, 1 / rank_n], axis=1
    )


def competing(scores_BN: Floats, taken: tuple[IntArray, IntArray]) -> tuple[Floats, Floats]:
    """Scores for comparing candidates, and the same with minus infinity for those that do not compete.

    A candidate that cannot answer scores as low as the worst that can, but does not compete; neither do
    answers that training has.

    Args:
        taken: these, as (row, id) pairs.
    """
    impossible_BN = scores_BN <= MISSED
    worst_B1 = np.min(scores_BN, 1, keepdims=True, initial=np.inf, where=~impossible_BN)
    scores_BN = np.where(impossible_BN, np.where(np.isfinite(worst_B1), worst_B1, 0), scores_BN)
    others_BN = np.where(impossible_BN, np.float32(-np.inf), scores_BN)
    others_BN[taken] = -np.inf
    return scores_BN, others_BN


@dataclass(frozen=True, eq=False)
class AskedTriples:
    """The features and states of triples, as a run gives them from both sides.

    Attributes:
        features: ``(n, 2, F)``.
        states: ``(n, 2)``, an index into :data:`STATES` of each side's query.
        relations: ``(n,)``.
    """

    features: FloatArray
    states: IntArray
    relations: IntArray

    def __len__(self) -> int:
        return len(self.relations)

    def __getitem__(self, rows: BoolArray | IntArray) -> AskedTriples:
        return AskedTriples(self.features[rows], self.states[rows], self.relations[rows])

    @classmethod
    def unasked(cls, n: int) -> AskedTriples:
        """Of n triples that were not asked for: all features are NaN."""
        features = np.full((n, len(SIDES), len(FEATURES)), np.nan)
        return cls(features, np.zeros((n, len(SIDES)), np.int64), np.zeros(n, np.int64))

    def replaced(self, rows: BoolArray, asked: AskedTriples) -> AskedTriples:
        """A copy with other features, states and relations in some rows."""
        parts = {name: values.copy() for name, values in vars(self).items()}
        for name, values in parts.items():
            values[rows] = vars(asked)[name]
        return AskedTriples(**parts)

    @classmethod
    def joined(cls, *parts: AskedTriples) -> AskedTriples:
        """Several behind each other."""
        return cls(*(np.concatenate([vars(p)[name] for p in parts]) for name in vars(parts[0])))

    @property
    def pairs(self) -> IntArray:
        """The states of both sides as one number below E * E, ``(n,)``."""
        return len(STATES) * self.states[:, 0] + self.states[:, 1]

    @property
    def has_new(self) -> BoolArray:
        """Which triples have an entity that training lacks, ``(n,)``."""
        mask: BoolArray = (self.states == STATES.index("new")).any(1)
        return mask


def states_of(queries: Queries, known: FilterIndex, seen_N: BoolArray) -> IntArray:
    """The state of each query, ``(B,)``.

    Args:
        known: what known triples answer.
        seen_N: the entities that these have; further ones are new.
    """
    answered_B = np.zeros(len(queries), np.bool_)
    answered_B[known.lookup(queries)[0]] = True
    seen_B = np.append(seen_N, False)[np.minimum(queries.entity_B, len(seen_N))]
    return np.where(~seen_B, STATES.index("new"), np.where(answered_B, 0, STATES.index("unanswered")))


def compare_answers(
    scorer: Scorer,
    queries: Queries,
    answers: IntArray,
    known: FilterIndex,
    batch_size: int = 64,
    advance: Callable[[int, int], None] = lambda n, total: None,
) -> FloatArray:
    """The features ``(B, F)`` of one answer of each query; each distinct query is scored once.

    An answer is compared with all candidates but those that training gives. Whether it is itself one of these
    changes nothing.

    Args:
        answers: ``(B,)``.
        known: what training answers.
        advance: called with (queries just scored, queries in all).
    """
    features = np.empty((len(queries), len(FEATURES)))
    groups = Groups.of(known.keys(queries))
    distinct = queries[groups.first]
    for rows, scores_bN in scorer.rank(distinct, batch_size=batch_size):
        at, row = groups.take(rows)
        scores_bN, others_bN = competing(scores_bN, known.lookup(distinct[rows]))
        features[at] = compared(scores_bN, others_bN, row, answers[at], temperature_of(scorer))
        advance(len(rows), len(distinct))
    return features


def ask(
    scorer: Scorer,
    triples: IntArray,
    known: FilterIndex,
    seen_N: BoolArray,
    batch_size: int = 64,
    advance: Callable[[int, int], None] = lambda n, total: None,
) -> AskedTriples:
    """Ask for triples ``(n, 3)`` from both sides; arguments as of :func:`compare_answers` and
    :func:`states_of`.
    """
    queries, answers = both_sides(triples)  # all heads, then all tails
    features = compare_answers(scorer, queries, answers, known, batch_size, advance)
    states = states_of(queries, known, seen_N)
    n = len(triples)
    return AskedTriples(
        np.stack([features[n:], features[:n]], axis=1),
        np.stack([states[n:], states[:n]], axis=1),
        triples[:, 1],
    )


def expit(odds: FloatArray) -> FloatArray:
    """Log odds to probabilities; SciPy's needs an import that costs more than a query."""
    probabilities: FloatArray = 0.5 * (1 + np.tanh(0.5 * odds))
    return probabilities


UNSCALED = (0.0, 1.0, 1.0)  # leaves log odds as they are


def beta_calibrated(log_odds: FloatArray, scale: FloatArray) -> FloatArray:
    """Log odds ``a + b log p - c log(1 - p)`` of probabilities p: beta calibration (Kull, Silva Filho and
    Flach, 2017).

    The most and the least probable can so be moved by different amounts, which Platt's sigmoid cannot do.

    Args:
        log_odds: ``(n,)`` of p.
        scale: a, b and c.
    """
    intercept, below, above = scale
    with np.errstate(invalid="ignore"):  # no number of what nobody asked for
        scaled: FloatArray = (
            intercept - below * np.logaddexp(0.0, -log_odds) + above * np.logaddexp(0.0, log_odds)
        )
    return scaled


@dataclass(frozen=True, eq=False)
class Regression:
    """Log odds that a triple is true: a sum of effects of its features, states and relation.

    Features are brought to mean 0 and deviation 1 by relation, since a run weighs its signals by relation and
    side, so scores of two relations have different units. The last row of each table by relation is that of a
    relation which the run does not know.

    Attributes:
        mean, deviation: ``(R + 1, 2F)``.
        intercepts: ``(R + 1, E * E)`` of each relation and pair of states.
        weights: ``(E * E, 2F)`` of features, for each pair of states.
        of_relation: ``(R + 1, 2F)`` what each relation adds to these weights.
        scale: ``(3,)`` turns the sum into calibrated log odds, as of :func:`beta_calibrated`.
    """

    mean: FloatArray
    deviation: FloatArray
    intercepts: FloatArray
    weights: FloatArray
    of_relation: FloatArray
    scale: FloatArray = field(default_factory=lambda: np.array(UNSCALED))

    def scaled(self, asked: AskedTriples) -> FloatArray:
        """The features ``(n, 2F)`` of both sides, the tail's first, in units of their relation."""
        flat = asked.features.reshape(len(asked), self.mean.shape[1])
        scaled: FloatArray = (flat - self.mean[asked.relations]) / self.deviation[asked.relations]
        return scaled

    def parts(self, asked: AskedTriples) -> tuple[FloatArray, FloatArray]:
        """The intercepts ``(n,)``, and what each feature adds to the log odds ``(n, 2F)``."""
        weights = self.weights[asked.pairs] + self.of_relation[asked.relations]
        return self.intercepts[asked.relations, asked.pairs], weights * self.scaled(asked)

    def log_odds(self, asked: AskedTriples) -> FloatArray:
        """The log odds ``(n,)``."""
        intercepts, added = self.parts(asked)
        return beta_calibrated(intercepts + added.sum(1), self.scale)


_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Table = tuple[tuple[_Finite, ...], ...]


class Calibration(StrictModel):
    """The probabilities of a run's triples, as they were fitted to validation.

    A probability is the share of such triples that a further hidden set would have, ``lacking`` times as
    large as validation.

    Attributes:
        lacking: the size of the hidden set as a multiple of validation.
        validation: how many triples it has that training does not have.
        new: how many of these have an entity that training lacks.
        mean, deviation, intercepts, weights, of_relation, scale: as of :class:`Regression`.
        balance: ``(R + 1,)`` of each relation, what moves log odds to those of a list in which half of the
            triples are true.
        chosen_for: what the run was when this was fitted.
        chosen_by: the command, and figures on validation, cross-fitted.
    """

    lacking: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    validation: Annotated[int, Field(ge=1)]
    new: Annotated[int, Field(ge=0)]
    mean: _Table
    deviation: _Table
    intercepts: _Table
    weights: _Table
    of_relation: _Table
    scale: tuple[_Finite, _Finite, _Finite] = UNSCALED
    balance: tuple[_Finite, ...]
    chosen_for: dict[str, str]
    chosen_by: dict[str, Any]

    @model_validator(mode="after")
    def _fits(self) -> Calibration:
        """Refuse tables whose sizes do not go together."""
        rows, columns, pairs = len(self.mean), len(SIDES) * len(FEATURES), len(STATES) ** 2
        shapes = {"mean": (rows, columns), "deviation": (rows, columns), "intercepts": (rows, pairs),
                  "weights": (pairs, columns), "of_relation": (rows, columns)}  # fmt: skip
        for name, (high, wide) in shapes.items():
            table = getattr(self, name)
            if not rows or len(table) != high or any(len(row) != wide for row in table):
                raise ValueError(f"{name} does not have {high} rows of {wide} numbers")
        if len(self.balance) != rows:
            raise ValueError(f"balance does not have {rows} numbers")
        if any(x <= 0 for row in self.deviation for x in row):
            raise ValueError("a deviation is not above 0")
        return self

    @cached_property
    def regression(self) -> Regression:
        """The regression."""
        tables = ("mean", "deviation", "intercepts", "weights", "of_relation", "scale")
        return Regression(*(np.array(getattr(self, name)) for name in tables))

    @property
    def knows_new(self) -> bool:
        """Whether validation had enough entities that training lacks."""
        return self.new >= MIN_NEW

    def stands_for(self, validation: Validation | None) -> str:
        """What a probability of 20 % stands for, as a sentence.

        Args:
            validation: what the graph's validation triples were drawn by.
        """
        count = round(self.lacking * self.validation)
        if validation == "newest":
            facts = f"the next {count:,} facts"
        else:
            size = "as" if self.lacking == 1 else f"{self.lacking:g} times as"
            facts = f"{count:,} hidden facts, {size} many as validation has"
        return f"of 100 such triples with 20 %, expect 20 among {facts}"


MIN_NEW = 20  # validation triples of new entities from which on such entities have probabilities


def left(true: FloatArray, lacking: float) -> FloatArray:
    """Turn probabilities of being true into those of being in the hidden set, given that validation has not
    the triple.

    The true triples beyond training are those of validation and ``lacking`` times as many.

    >>> left(np.array([0.5]), 1.0).round(3).tolist()
    [0.333]
    """
    known = 1 / (1 + lacking)
    hidden: FloatArray = true * (1 - known) / (1 - true * known)
    return hidden


@dataclass(frozen=True, eq=False)
class TripleClassifier:
    """Says how probable triples are.

    Attributes:
        ranker: the run's first stage and its trees, without constraints that users asked for.
        calibration: what was fitted to it.
        rows: ``(R,)`` of each relation of the graph its row in the calibration's tables.
        seen_N: the entities that the run was trained on; further ones are new.
        validation: ``(n, 3)`` what is known beside training.
    """

    ranker: Ranker
    calibration: Calibration
    rows: IntArray
    seen_N: BoolArray
    validation: IntArray

    @classmethod
    def of(
        cls,
        ranker: Ranker,
        calibration: Calibration,
        rows: IntArray | None,
        seen_N: BoolArray,
        validation: IntArray,
    ) -> TripleClassifier:
        """By the scores that :func:`plain` gives of a ranker.

        Args:
            rows: of each relation of the ranker's graph its number in the run, or -1; None: it is the same.
        """
        count = len(calibration.mean) - 1
        rows = np.arange(len(ranker.context.relations)) if rows is None else rows
        rows = np.where((rows >= 0) & (rows < count), rows, count)
        return cls(plain(ranker), calibration, rows, seen_N, validation)

    def without_validation(self) -> TripleClassifier:
        """A copy whose states go by training alone, to judge validation triples themselves."""
        return replace(self, validation=self.validation[:0])

    @cached_property
    def _validation(self) -> FilterIndex:
        return FilterIndex(self.validation, len(self.ranker.context.entities))

    @cached_property
    def _degree_N(self) -> IntArray:
        """How many validation triples each entity has."""
        return np.bincount(self.validation[:, [0, 2]].ravel(), minlength=len(self.ranker.context.entities))

    def with_signals(self, ranker: Ranker) -> TripleClassifier:
        """A copy over the graph of a ranker of the same run, which may have further entities."""
        twin = self.ranker.replace(reader=ranker.reader, signals=ranker.signals)
        return replace(self, ranker=twin)

    def ask(
        self,
        triples: IntArray,
        batch_size: int = 64,
        advance: Callable[[int, int], None] = lambda n, total: None,
    ) -> AskedTriples:
        """Ask for triples from both sides."""
        known = self.ranker.context.answers
        asked = ask(self.ranker, triples, known, self.seen_N, batch_size, advance)
        return replace(asked, states=self.states(triples), relations=self.rows[asked.relations])

    def states(self, triples: IntArray) -> IntArray:
        """The states ``(n, 2)`` of the queries of both sides, by training and by validation.

        Once an entity has a fact, a further one of the same relation is less likely than the first was. A
        validation triple does not count for itself.
        """
        queries, answers = both_sides(triples)
        states_B = states_of(queries, self.ranker.context.answers, self.seen_N)
        rows, ids = self._validation.lookup(queries)
        is_own = ids == answers[rows]
        others_B = self._degree_N[queries.entity_B] - np.bincount(rows[is_own], minlength=len(queries))
        states_B[(states_B == STATES.index("new")) & (others_B > 0)] = STATES.index("unanswered")
        states_B[rows[~is_own]] = STATES.index("answered")
        of_heads, of_tails = np.split(states_B, 2)
        return np.stack([of_tails, of_heads], 1)

    def probabilities(self, asked: AskedTriples) -> FloatArray:
        """The probabilities ``(n,)``; NaN of new entities where validation had too few of these."""
        true = expit(self.calibration.regression.log_odds(asked))
        probabilities = left(true, self.calibration.lacking)
        if not self.calibration.knows_new:
            probabilities = np.where(asked.has_new, np.nan, probabilities)
        return probabilities

    def in_list(self, asked: AskedTriples, prior: float = 0.5) -> FloatArray:
        """The probabilities ``(n,)`` in a list of which a share, ``prior``, is true; see :func:`moved`.

        Those of new entities are as good as validation allows.
        """
        true = expit(self.calibration.regression.log_odds(asked))
        return moved(left(true, self.calibration.lacking), self.balance(asked), prior)

    def balance(self, asked: AskedTriples) -> FloatArray:
        """The shift of each triple's log odds to those in a list of which half is true ``(n,)``."""
        return np.array(self.calibration.balance)[asked.relations]


def moved(probabilities: FloatArray, balance: FloatArray, prior: float) -> FloatArray:
    """Probabilities with other log odds: moved by ``balance`` and to the share of true triples in a list.

    >>> moved(np.array([0.02]), np.array([4.0]), 0.5).round(3).tolist()
    [0.527]
    """
    tiny = np.clip(probabilities, 1e-15, 1 - 1e-15)
    return expit(np.log(tiny / (1 - tiny)) + balance + np.log(prior / (1 - prior)))


def plain(ranker: Ranker, constrained: bool = False) -> Ranker:
    """A ranker by its first stage, and by its trees where these are its only second stage.

    Other second stages read each candidate, and trees after them were fitted to their scores. Each half of
    the pairs of entities is ranked by the trees of the other half, so that validation is ranked as new
    triples are.

    Args:
        constrained: keep the constraints that were asked for.
    """
    active = {name: stage for name, stage in ranker.stages.items() if stage.stage_weight.k}
    stages = {name: stage.of_unseen() for name, stage in active.items() if isinstance(stage, Trees)}
    possible = ranker.possible if constrained else ranker.possible.without_further()
    return ranker.replace(stages=stages if len(active) == 1 else {}, possible=possible)
