"""Calibration: probabilities of triples, fitted to validation and kept with the run.

A logistic regression (:mod:`kgmlm.ranking.probability`) tells validation's triples from others that are
drawn (:mod:`kgmlm.prediction.drawing`). It knows how rarely each was drawn, as in a case-control study
(Prentice and Pyke, 1979), and that validation is a part of what is true: a triple is in validation with
probability ``labeled * q``, where q is that of being true and ``labeled`` is the share of validation (Elkan
and Noto, 2008).

Shapes: n triples, 2 sides (tail, head), F features of a side, R relations, E states.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from kgmlm.core import files
from kgmlm.core.arrays import BoolArray, FloatArray, IntArray
from kgmlm.core.errors import NoProbabilitiesError
from kgmlm.core.progress import Watcher, quiet_transformers
from kgmlm.evaluation.metrics import measured
from kgmlm.graphs.queries import parts_of_pairs
from kgmlm.prediction.drawing import TINY, TRIPLES, Sample, draw_sample
from kgmlm.ranking.probability import (
    STATES,
    UNSCALED,
    AskedTriples,
    Calibration,
    Regression,
    beta_calibrated,
    expit,
    left,
    plain,
)
from kgmlm.runs.entity_vectors import read_vectors
from kgmlm.runs.folder import PROBABILITIES, RunFolder
from kgmlm.runs.opened import constraints_of, tuned_ranker
from kgmlm.runs.options import RankingOptions
from kgmlm.runs.provenance import command_line
from kgmlm.runs.writing import remove_file, replacing

LACKING = 1.0  # true triples outside training and validation, per validation triple, as if test was hidden
PRIOR_COUNT = 100  # triples of the average relation that join a relation's own where scales are fitted
PRIOR_BALANCE = 20  # the same where a relation's balance is fitted
STRENGTH = 2.0  # of the regularization
# L2 penalty of each part of the log odds: 1 / v for a prior variance v. A relation or pair of states of which
# validation has little stays close to the average one.
PENALTIES = {
    "intercept": 0.0,
    "of_pair": 1.0,
    "of_relation": 1.0,
    "of_both": 1.0,
    "weights": 1.0,
    "weights_of_pair": 1.0,
    "weights_of_relation": 3.0,
    "density": 1.0,
}
MIN_SLOPE = 1e-3  # of what scales log odds
REPORTED = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
silent = Watcher()


def fit_regression(sample: Sample, relations: int, labeled: float) -> Regression:
    """Fit log odds of being true to a sample, of whose true triples validation has the share ``labeled``."""
    from scipy.optimize import minimize

    asked, labels, offsets = sample.asked, sample.labels, sample.offsets
    mean, deviation = _scales(asked, relations)
    pairs, columns = len(STATES) ** 2, mean.shape[1]
    unfitted = Regression(
        mean, deviation, np.zeros((relations + 1, pairs)), np.zeros((pairs, columns)), np.zeros_like(mean)
    )
    density = sample.density[asked.relations]
    design, penalties = _design(unfitted.scaled(asked), asked.pairs, asked.relations, relations, density)

    def loss(at: FloatArray) -> tuple[float, FloatArray]:
        true = expit(design @ at)
        in_valid = labeled * true
        drawn = np.log(np.maximum(in_valid, TINY) / (1 - in_valid)) + offsets  # as triples were drawn
        likelihood = np.where(labels, -np.logaddexp(0, -drawn), -np.logaddexp(0, drawn))
        slope = (labels - expit(drawn)) * (1 - true) / (1 - in_valid)
        value = 0.5 * float(penalties @ at**2) - float(likelihood.sum())
        return value, penalties * at - design.T @ slope

    begin = np.zeros(design.shape[1])
    share = min(0.9, float(sample.weights[labels].sum() / sample.weights.sum()) / labeled)
    begin[0] = np.log(share / (1 - share))
    at = minimize(loss, begin, jac=True, method="L-BFGS-B", options={"maxiter": 1000}).x
    sizes = (1, pairs, relations, relations * pairs, columns, pairs * columns, relations * columns)
    parts = np.split(at, np.cumsum(sizes))
    intercept, of_pair, of_relation, of_both, weights, weights_of_pair, weights_of_relation, by_density = (
        parts
    )
    of_relation = of_relation + sample.density @ by_density
    intercepts = intercept + of_pair + np.append(of_relation, 0.0)[:, None]
    intercepts[:-1] += of_both.reshape(relations, pairs)
    return Regression(
        mean,
        deviation,
        intercepts,
        weights + weights_of_pair.reshape(pairs, columns),
        np.concatenate([weights_of_relation.reshape(relations, columns), np.zeros((1, columns))]),
    )


def _design(
    scaled: FloatArray, pair: IntArray, relation: IntArray, relations: int, density: FloatArray
) -> tuple[Any, FloatArray]:
    """The design matrix, a sparse one, and the penalty of each of its columns."""
    from scipy import sparse

    n, pairs, columns = len(scaled), len(STATES) ** 2, scaled.shape[1]
    ones = np.ones((n, 1))
    blocks = (  # values, where they begin, how many columns there are
        (ones, np.zeros(n, np.int64), 1),
        (ones, pair, pairs),
        (ones, relation, relations),
        (ones, relation * pairs + pair, relations * pairs),
        (scaled, np.zeros(n, np.int64), columns),
        (scaled, pair * columns, pairs * columns),
        (scaled, relation * columns, relations * columns),
        (density, np.zeros(n, np.int64), density.shape[1]),
    )
    parts = []
    for values, first, width in blocks:
        wide = values.shape[1]
        where = (np.repeat(np.arange(n), wide), (first[:, None] + np.arange(wide)).ravel())
        parts.append(sparse.csr_matrix((values.ravel(), where), (n, width)))
    penalties = np.repeat(list(PENALTIES.values()), [width for *_, width in blocks])
    return sparse.hstack(parts, format="csr"), STRENGTH * penalties


def _scales(asked: AskedTriples, relations: int) -> tuple[FloatArray, FloatArray]:
    """The mean and deviation of each feature in each relation ``(R + 1, 2F)``, shrunk toward those of all."""
    flat, which = asked.features.reshape(len(asked), -1), asked.relations
    average, variance = flat.mean(0), flat.var(0)
    count = np.bincount(which, minlength=relations + 1)[:, None] + PRIOR_COUNT

    def sums(columns: FloatArray) -> FloatArray:
        return np.stack([np.bincount(which, column, relations + 1) for column in columns.T], axis=1)

    mean = (sums(flat) + PRIOR_COUNT * average) / count
    own = (sums((flat - mean[which]) ** 2) + PRIOR_COUNT * variance) / count
    return mean, np.where(own > 1e-12, np.sqrt(own), 1.0)


@dataclass(frozen=True, eq=False)
class LabeledList:
    """A list of triples of which half are true.

    Attributes:
        log_odds: ``(n,)`` of being in the hidden set.
        relations, labels: ``(n,)``.
        weights: ``(n,)``; those of true triples add up to a half, and so do those of false ones.
        folds: ``(n,)`` in which of four parts each is, by its pair of entities.
    """

    log_odds: FloatArray
    relations: IntArray
    labels: BoolArray
    weights: FloatArray
    folds: IntArray

    def __getitem__(self, rows: BoolArray) -> LabeledList:
        return LabeledList(**{name: values[rows] for name, values in vars(self).items()})

    @classmethod
    def of(cls, sample: Sample, log_odds: FloatArray, of_false: FloatArray | None) -> LabeledList:
        """From a sample: its false triples, or those of the graph's files.

        Args:
            log_odds: ``(n,)`` of the sample's triples, each by a fit to other triples.
            of_false: the same for the false triples of the files.
        """
        labels, relations = sample.labels, sample.asked.relations
        true_weights = labels * (0.5 / labels.sum())
        if sample.false is None or of_false is None:
            rows = labels | (sample.false_weights > 0)
            weights = true_weights + sample.false_weights
            return cls(log_odds, relations, labels, weights, sample.folds)[rows]
        triples, asked = sample.false
        count = len(triples)
        true = cls(log_odds, relations, labels, true_weights, sample.folds)[labels]
        folds = parts_of_pairs(triples[:, 0], triples[:, 2], 4)
        false = cls(of_false, asked.relations, np.zeros(count, np.bool_), np.full(count, 0.5 / count), folds)
        return cls(*(np.concatenate([vars(x)[name] for x in (true, false)]) for name in vars(true)))


def fit_balance(triples: LabeledList, relations: int) -> FloatArray:
    """The shift of each relation's log odds ``(R + 1,)`` that suits a list of which half is true.

    With it, true and false triples have a probability of .5 on average. The shift of a relation is shrunk
    toward that of all relations.
    """
    from scipy.optimize import brentq

    def balance(some: LabeledList, low: float, high: float) -> float | None:
        false = some.weights * ~some.labels
        if not some.labels.any() or not false.any():
            return None

        def excess(move: float) -> float:
            half = expit(some.log_odds + move)
            return float(half[some.labels].mean() + np.average(half, weights=false)) - 1

        return low if excess(low) > 0 else high if excess(high) < 0 else float(brentq(excess, low, high))

    of_all = balance(triples, -50.0, 50.0) or 0.0
    balances = np.full(relations + 1, of_all)
    for relation in np.unique(triples.relations[triples.labels]).tolist():
        some = triples[triples.relations == relation]
        if (own := balance(some, of_all - 5, of_all + 5)) is not None:
            count = int(some.labels.sum())
            balances[relation] = (count * own + PRIOR_BALANCE * of_all) / (count + PRIOR_BALANCE)
    return balances


def fit_scale(log_odds: FloatArray, sample: Sample, labeled: float) -> FloatArray:
    """The scale (:func:`~kgmlm.ranking.probability.beta_calibrated`) that makes log odds of others come true.

    However many true triples look true, the next one that looks so may be false: each counts as false by a
    small part, as proposed by Platt (1999).

    Args:
        log_odds: ``(n,)`` of triples that they were not fitted to.
    """
    from scipy.optimize import minimize

    labels, weights = sample.labels, sample.weights / sample.weights[sample.labels].sum()
    parts = np.stack([np.ones_like(log_odds), -np.logaddexp(0, -log_odds), np.logaddexp(0, log_odds)], 1)
    doubt = labels / (labels.sum() + 2)

    def loss(at: FloatArray) -> tuple[float, FloatArray]:
        true = expit(parts @ at)
        in_valid, false = np.maximum(labeled * true, TINY), np.maximum(1 - true, TINY)
        of_true = (1 - doubt) * np.log(in_valid) + doubt * np.log(false)
        likelihood = weights * np.where(labels, of_true, np.log1p(-in_valid))
        slope_of_false = -in_valid * (1 - true) / (1 - in_valid)
        slope = weights * np.where(labels, (1 - doubt) * (1 - true) - doubt * true, slope_of_false)
        return -float(likelihood.sum()), -(parts.T @ slope)

    bounds = [(None, None), (MIN_SLOPE, None), (MIN_SLOPE, None)]  # the order of triples stays
    scale: FloatArray = minimize(loss, np.array(UNSCALED), jac=True, method="L-BFGS-B", bounds=bounds).x
    return scale


def fit(
    sample: Sample, relations: int, validation: int, lacking: float
) -> tuple[Calibration, dict[str, Any]]:
    """Fit probabilities to a sample, and measure them on each quarter of it by a fit to the others.

    Args:
        validation: how many triples it has that training lacks.
    """
    labeled, count = 1 / (1 + lacking), len(sample.labels)
    # 1. log odds of each quarter by the others, and what makes them come true
    log_odds = np.empty(count)
    for fold in range(4):
        own = sample.folds == fold
        log_odds[own] = fit_regression(sample[~own], relations, labeled).log_odds(sample.asked[own])
    scale = fit_scale(log_odds, sample, labeled)
    regression = replace(fit_regression(sample, relations, labeled), scale=scale)
    # 2. how many triples that gives
    true = np.empty(count)
    for fold in range(4):
        own = sample.folds == fold
        others = fit_scale(log_odds[~own], sample[~own], labeled)
        true[own] = expit(beta_calibrated(log_odds[own], others))
    # 3. and how well it decides in a list of which half is true
    odds = _logit(left(expit(beta_calibrated(log_odds, scale)), lacking))
    of_false = None
    if sample.false is not None:
        of_false = _logit(left(expit(regression.log_odds(sample.false[1])), lacking))
    triples = LabeledList.of(sample, odds, of_false)
    half = np.empty(len(triples.labels))
    for fold in range(4):
        own = triples.folds == fold
        balance = fit_balance(triples[~own], relations)
        half[own] = expit(triples.log_odds[own] + balance[triples.relations[own]])
    figures = {
        "triples": int(sample.labels.sum()),
        "held_out": held_out(sample, left(true, lacking), labeled * true),
        "half": measured(triples.labels, half, triples.weights),
    }

    def table(values: FloatArray) -> Any:
        rows = np.round(values, 6).tolist()
        return tuple(rows if values.ndim == 1 else map(tuple, rows))

    tables = {name: table(values) for name, values in vars(regression).items()}
    made = Calibration(
        lacking=float(lacking),
        validation=validation,
        new=round(float(sample.weights[sample.labels & sample.asked.has_new].sum())),
        **tables,
        balance=tuple(np.round(fit_balance(triples, relations), 4).tolist()),
        chosen_for={},
        chosen_by={},
    )
    return made, figures


def _logit(probabilities: FloatArray) -> FloatArray:
    tiny = np.clip(probabilities, 1e-15, 1 - 1e-15)
    log_odds: FloatArray = np.log(tiny / (1 - tiny))
    return log_odds


def held_out(sample: Sample, probabilities: FloatArray, labeled: FloatArray) -> list[dict[str, float]]:
    """For each probability, how many triples have it or more, how many of them validation should have, and
    how many it has.

    Args:
        labeled: the probability ``(n,)`` of each triple to be in validation.
    """
    rows = []
    for least in REPORTED:
        some = probabilities >= least
        weights = sample.weights[some]
        rows.append(
            {
                "probability": least,
                "candidates": round(float(weights.sum())),
                "expected": round(float((weights * labeled[some]).sum()), 1),
                "validation": round(float(weights[sample.labels[some]].sum())),
            }
        )
    return rows


def fitted(
    run: RunFolder,
    *,
    most: int = TRIPLES,
    lacking: float = LACKING,
    seed: int = 0,
    batch_size: int = 64,
    device: str | None = None,
    watch: Watcher = silent,
) -> Calibration:
    """Fit probabilities to a run's validation triples; ``chosen_by["valid"]`` has their figures there.

    Args:
        most: so many validation triples, and queries of each state; 0 is all.
        lacking: how many true triples neither training nor validation has, per validation triple.

    Raises:
        NoProbabilitiesError: when there are no validation triples, or too few.
    """
    graph = run.graph
    if not graph.has("valid"):
        raise NoProbabilitiesError(
            f"{run.path} has no validation triples to fit probabilities to; `kgmlm data split --random` "
            "makes some before training"
        )
    quiet_transformers()
    ranker = plain(tuned_ranker(run, device))
    (typed,) = constraints_of(run, RankingOptions(typed=True), graph)
    with watch:
        read_vectors(ranker, watch, batch_size)
        sample = draw_sample(
            ranker, graph, typed.askable, most=most, seed=seed, batch_size=batch_size, advance=watch
        )
        validation = round(float(sample.labels.sum()) / sample.drawn)
        made, figures = fit(sample, len(graph.relations), validation, lacking)
    by = {
        "command": command_line(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "valid": figures,
    }
    return made.model_copy(update={"chosen_for": run.scored_by, "chosen_by": by})


def save_calibration(run: RunFolder, calibration: Calibration) -> None:
    """Keep with a run what was fitted to it."""
    with replacing(run.path, PROBABILITIES) as temporary:
        files.write_json(temporary, calibration.model_dump(mode="json"))


def drop_calibration(run: RunFolder) -> None:
    """Remove the probabilities of a run, if it has any."""
    remove_file(run.path, PROBABILITIES)
