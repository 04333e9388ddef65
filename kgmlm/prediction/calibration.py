"""Calibration: the probability that a triple is true, fitted on validation and kept with the run.

A logistic regression adds up the features, with an offset per relation that is shrunk to 0, the average;
Platt's sigmoid or isotonic regression then turns the sum into a probability. It holds for the share of true
triples that it was fitted at; :func:`shifted` converts it to another. Validation triples are told apart from
corrupted ones, or from those that the graph's files say are false. All are scored by the run's own weights.
These were chosen on validation, too, but weights chosen on half of the sample give scores of another scale,
and a calibration fitted to those is wrong for the run's. It is refused when the run has changed.

Shapes: n triples, 2 sides (tail, head), F features of a side, R relations.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, ValidationError
from scipy.special import expit, logit

from kgmlm.core import digests, files
from kgmlm.core.arrays import BoolArray, FloatArray, IntArray, some_of, spreads
from kgmlm.core.errors import DataError, RunError, first_line, quoted
from kgmlm.core.progress import Advance, Watcher, quiet_transformers
from kgmlm.evaluation.metrics import log_loss, measured, reweighted
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import FilterIndex, distinct_triples, parts_of_pairs
from kgmlm.prediction.features import FEATURES, KINDS_OF_NEGATIVES, Negatives, features
from kgmlm.prediction.list_calibration import QUERIES, drawn, fit_lists
from kgmlm.ranking.likely import ListCalibration, temperature_of
from kgmlm.ranking.ranker import Ranker, Scorer
from kgmlm.ranking.trees import Trees
from kgmlm.runs.folder import PROBABILITIES, RunFolder
from kgmlm.runs.opened import constraints_of, open_retrieval, second_stage, tuned_ranker, with_stages
from kgmlm.runs.options import RankingOptions
from kgmlm.runs.provenance import command_line
from kgmlm.runs.tuned import TREES
from kgmlm.runs.writing import remove_file, replacing

SIDES = ("tail", "head")  # the tail as the answer of (head, relation, ?), and the head
FITTED_AT = 0.5  # share of true triples that probabilities are fitted at
REGULARIZATION = 10.0  # L2 penalty of the offsets of relations, about as strong as ten average triples
THRESHOLD_REGULARIZATION = 50  # average triples added to a relation's own, which shrinks its threshold
LEAST = 20  # triples of each class, or there is nothing to fit
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Probability = Annotated[float, Field(ge=0, le=1)]


class Calibrator(digests.StrictModel):
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
        """The probability of sums of features, of any shape."""
        if self.kind == "platt":
            found: FloatArray = expit(self.x[0] * sums + self.y[0])
        else:
            found = np.interp(sums, self.x, self.y)
        return np.clip(found, self.lowest, self.highest)


class Model(digests.StrictModel):
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
        """The contributions of the features ``(n, F)`` to the sum, ``(n, F)``."""
        found: FloatArray = (features - np.array(self.mean)) / np.array(self.scale) * np.array(self.weights)
        return found

    def offset(self, relations: IntArray) -> FloatArray:
        """The offsets of relations ``(n,)``; 0, the average, of unknown ones (-1, or beyond)."""
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
        """A copy in which positives and negatives weigh the same, a triple 1 on average."""
        weights = reweighted(self.labels, self.weights, FITTED_AT) * len(self.labels)
        return Examples(self.features, self.relations, self.labels, weights, self.halves)


class Calibration(digests.StrictModel):
    """The probabilities of a run, as they were fitted.

    Attributes:
        model: of the sum of features, and of the probability.
        thresholds: of each relation, the probability from which on most of its validation triples are true.
        chosen_for: what the run was when it was fitted.
        chosen_by: the command, what it was fitted on, and its figures.
        lists: of candidate lists, by the first stage alone and with the second stages that the run has.
    """

    model: Model
    thresholds: tuple[_Probability, ...]
    chosen_for: dict[str, str]
    chosen_by: dict[str, Any]
    lists: tuple[ListCalibration, ...] = ()

    @classmethod
    def of_json(cls, data: bytes) -> Calibration:
        """Read a saved calibration. Packs may also have models of one side each, which are dropped.

        Raises:
            ValueError: when it is damaged.
        """
        values = digests.without_retired(files.parse_json(data))
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
        """Return which probabilities, at any prior, are enough to call a triple true: .5, or each relation's
        own.
        """
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
    # A smaller column needs a larger coefficient, which the penalty keeps small: offsets shrink toward 0.
    small = 1 / np.sqrt(REGULARIZATION)
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
    """The threshold of each relation with the best accuracy, shrunk toward that of all relations."""
    tried = np.linspace(0.05, 0.95, 19)
    right = ((probabilities[None] >= tried[:, None]) == examples.labels) * examples.weights
    average = right.sum(1) / examples.weights.sum()
    found = np.full(relations, FITTED_AT)
    for relation in np.unique(examples.relations):
        own = right[:, examples.relations == relation].sum(1) + THRESHOLD_REGULARIZATION * average
        best = np.flatnonzero(own >= own.max() - 1e-9)
        found[relation] = tried[best[np.abs(tried[best] - FITTED_AT).argmin()]]  # the most usual of equals
    return found


FILE = PROBABILITIES
TRIPLES = 1000  # validation triples that are enough
LACKING = 1.0  # true triples outside training and validation, per validation triple, as if test was hidden
silent = Watcher()


@dataclass(frozen=True, eq=False)
class Sample:
    """Triples of a split, and others that are taken to be false.

    Attributes:
        triples: ``(n, 3)``, those that are true first.
        labels: ``(n,)``.
        groups: ``(n,)`` of which true triple each is.
        kinds: ``(n,)`` index of the kind of negative, -1 for true triples and for known negatives.
        weights: ``(n,)`` how much each counts.
        halves: ``(n,)`` in which half each is, by its pair of entities; drawn negatives are where their true
            triple is.
    """

    triples: IntArray
    labels: BoolArray
    groups: IntArray
    kinds: IntArray
    weights: FloatArray
    halves: BoolArray

    def __getitem__(self, rows: BoolArray) -> Sample:
        return Sample(**{name: values[rows] for name, values in vars(self).items()})

    @classmethod
    def of(
        cls,
        graph: KnowledgeGraph,
        split: str,
        scorer: Scorer,
        *,
        most: int = TRIPLES,
        seed: int = 0,
        blind: bool = False,
        batch_size: int = 64,
        advance: Advance = silent,
    ) -> Sample:
        """A seeded sample of the triples of a split that training has not, and their negatives.

        These are those that the split's file says are false, or else three corruptions of each triple; no
        triple of training, of validation, or of the split is among them.

        Args:
            most: so many true triples; 0 is all.
            blind: corruptions may be triples of validation or of the split.

        Raises:
            DataError: when the graph has no such split.
        """
        rng = np.random.default_rng(seed)
        answers = FilterIndex(graph.splits["train"], len(graph.entities))
        true = some_of(_new(graph.triples(split), answers), most, rng)
        every = [graph.splits[s] for s in dict.fromkeys(("train", "valid", split)) if s in graph.splits]
        if split in graph.negatives:
            false = some_of(_new(graph.negatives[split], FilterIndex(every, len(graph.entities))), most, rng)
            of, kinds = np.arange(len(false)), np.full(len(false), -1)
        else:
            true_ones = graph.splits["train"] if blind else np.concatenate(every)
            draws = Negatives(true_ones, graph.splits["train"], len(graph.entities), seed)
            false, of, kinds = draws.draw(true, scorer, batch_size, partial(advance, "drawing negatives"))
        own = parts_of_pairs(false[:, 0], false[:, 2]) == 1
        odd = parts_of_pairs(true[:, 0], true[:, 2]) == 1
        return cls(
            np.concatenate([true, false]),
            np.arange(len(true) + len(false)) < len(true),
            np.concatenate([np.arange(len(true)), of]),
            np.concatenate([np.full(len(true), -1), kinds]),
            np.ones(len(true) + len(false)),
            np.concatenate([odd, own if split in graph.negatives else odd[of]]),
        )


def _new(triples: IntArray, known: FilterIndex) -> IntArray:
    """Distinct triples that training has not."""
    triples = distinct_triples(triples)
    return triples[~known.has(triples)]


def calibrate(
    scorer: Scorer,
    graph: KnowledgeGraph,
    *,
    most: int = TRIPLES,
    lacking: float = LACKING,
    seed: int = 0,
    batch_size: int = 64,
    advance: Advance = silent,
) -> tuple[Calibration, Sample, FloatArray]:
    """Fit probabilities to a run's validation triples.

    Args:
        scorer: of the run's own graph; second stages take no part.
        most: so many validation triples; 0 is all.
        lacking: how many true triples neither training nor validation has, per validation triple.

    Raises:
        RunError: when there are too few to fit anything.
        DataError: when there are none.

    Returns:
        The calibration; what it was fitted to; and of each of these triples the probability by what was
        fitted to the other half.
    """
    scorer = scorer.unreranked() if isinstance(scorer, Ranker) else scorer
    sample = Sample.of(
        graph, "valid", scorer, most=most, seed=seed, blind=True, batch_size=batch_size, advance=advance
    )
    found = _features(scorer, sample, graph, batch_size, partial(advance, "scoring validation"))
    hit = ~sample.labels & FilterIndex(graph.splits["valid"], len(graph.entities)).has(sample.triples)
    sample.weights[:] = _trusted(found, sample, hit, lacking)
    sample, found = sample[~hit], found[~hit]
    examples = Examples(found, sample.triples[:, 1], sample.labels, sample.weights, sample.halves)
    calibration, held = fit(examples, len(graph.relations), of={}, by={})
    return calibration, sample, held


def _trusted(found: FloatArray, sample: Sample, hit: BoolArray, lacking: float) -> FloatArray:
    """The weights of negatives, given that some of them are true triples that nobody has.

    Negatives are drawn blind to validation. Some hit validation triples; the others hit missing triples as
    often, and with the same features, if as many are missing. So what makes a hit likely (a logistic
    regression of hits against the rest) makes a negative unlikely. Kinds keep their shares.

    Args:
        found: the features.
        hit: which negatives are validation triples.
    """
    from sklearn.linear_model import LogisticRegression

    weights, drawn = np.ones(len(hit)), ~sample.labels
    if not hit.any() or not lacking:
        return weights
    if hit[drawn].all():
        raise RunError("there are no false triples to learn from: each that was drawn is a validation triple")
    columns = found.reshape(len(found), -1)
    columns = (columns - columns[drawn].mean(0)) / spreads(columns[drawn])
    model = LogisticRegression(max_iter=1000).fit(columns[drawn], hit[drawn])
    odds = np.exp(model.decision_function(columns[drawn]))
    weights[drawn] = np.clip(1 - lacking * odds, 0.0, 1.0)
    for kind in np.unique(sample.kinds[drawn]):
        own = drawn & ~hit & (sample.kinds == kind)
        weights[own] *= own.sum() / max(weights[own].sum(), 1.0)
    if not weights[drawn & ~hit].any():
        raise RunError(f"no negative counts with {lacking:g} missing triples per validation triple")
    return weights


def figures(calibration: Calibration, sample: Sample, held: FloatArray) -> dict[str, Any]:
    """The figures of probabilities on validation, by two-fold cross-fitting; positives and
    negatives weigh the same.
    """
    return {**_figures(sample, held), "calibrator": calibration.model.calibrator.kind}


def _figures(sample: Sample, probabilities: FloatArray) -> dict[str, Any]:
    weights = reweighted(sample.labels, sample.weights, FITTED_AT)
    return {
        **measured(sample.labels, probabilities, weights, groups=sample.groups),
        "negatives_by": list(KINDS_OF_NEGATIVES) if (sample.kinds >= 0).any() else "the graph's files",
    }


def _features(
    scorer: Scorer,
    sample: Sample,
    graph: KnowledgeGraph,
    batch_size: int,
    advance: Callable[[int, int], None],
) -> FloatArray:
    """The features of a sample's triples."""
    return features(
        scorer,
        sample.triples,
        graph.context.answers,
        temperature=temperature_of(scorer),
        batch_size=batch_size,
        advance=advance,
    )


def measured_on(
    calibration: Calibration,
    scorer: Scorer,
    graph: KnowledgeGraph,
    split: str,
    relations: IntArray,
    *,
    most: int = TRIPLES,
    seed: int = 0,
    batch_size: int = 64,
    advance: Advance = silent,
) -> dict[str, Any]:
    """Figures of probabilities on a sample of a split that they were not fitted to, with fresh negatives.

    No negative is in training, in validation or in the split. Positives and negatives weigh the same.

    Args:
        scorer: over the graph, which may be another than the run's.
        relations: ``(R,)`` the number that each relation of the graph has in the calibration, or -1.

    Raises:
        DataError: when the split is not there, or training has all of its triples.
    """
    scorer = scorer.unreranked() if isinstance(scorer, Ranker) else scorer
    sample = Sample.of(graph, split, scorer, most=most, seed=seed, batch_size=batch_size, advance=advance)
    if not (sample.labels.any() and (~sample.labels).any()):
        raise DataError(f"{split} of '{graph.name}' has no triple that training has not")
    found = _features(scorer, sample, graph, batch_size, partial(advance, f"scoring {split}"))
    held = calibration.probability(found, relations[sample.triples[:, 1]])
    return {"graph": graph.name, "split": split, **_figures(sample, held)}


def fitted(
    run: RunFolder,
    *,
    most: int = TRIPLES,
    lacking: float = LACKING,
    seed: int = 0,
    precision: str = "fp32",
    batch_size: int = 64,
    device: str | None = None,
    lists: bool = True,
    watch: Watcher = silent,
) -> tuple[Calibration, dict[str, Any]]:
    """Fit probabilities to a run's validation triples; the calibration, and its figures there.

    Args:
        most, lacking, seed: as of :func:`calibrate`.
        precision: "fp32" or "bf16".
        lists: fit the probabilities of ranked answers, too.

    Raises:
        RunError: when there are no validation triples, or too few.
    """
    if not run.graph.has("valid"):
        raise RunError(
            f"{run.path} has no validation triples to fit probabilities to; `kgmlm data split --random` "
            "makes some before training"
        )
    quiet_transformers()
    ranker = tuned_ranker(run, device, rerank=False).unreranked()
    ranker.reduce(precision == "bf16")
    with watch:
        found, sample, held = calibrate(
            ranker, run.graph, most=most, lacking=lacking, seed=seed, batch_size=batch_size, advance=watch
        )
        found_lists: tuple[ListCalibration, ...] = ()
        if lists and lacking:
            found_lists = _lists(run, ranker, most, watch, lacking=lacking, seed=seed, batch_size=batch_size)
    valid = figures(found, sample, held)
    by = {
        "command": command_line(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "precision": precision,
        "seed": seed,
        "lacking": lacking,
        "valid": valid,
    }
    return found.model_copy(
        update={"chosen_for": run.scored_by, "chosen_by": by, "lists": found_lists}
    ), valid


def _lists(
    run: RunFolder, ranker: Ranker, most: int, watch: Watcher, **options: Any
) -> tuple[ListCalibration, ...]:
    """The probabilities of candidate lists, by the first stage alone and with the run's second stages; of
    what the index finds, where the run ranks so by default.

    Args:
        ranker: the first stage.
        most: queries that validation answers; 0 is many.
    """
    (typed,) = constraints_of(run, RankingOptions(typed=True), run.graph)
    asked = drawn(run.graph, typed.askable, most or 10 * QUERIES, options.pop("seed"))
    retrieval = open_retrieval(run, ranker, run.shortlist)
    options |= {"retrieval": retrieval}
    found = [fit_lists(ranker, run.graph, asked, advance=partial(watch, "ranking validation"), **options)]
    uses = run.tuned.active
    whole = with_stages(run, ranker, uses)
    if TREES in uses:  # of which validation is asked as new queries will be
        trees = second_stage(run, TREES, uses[TREES])
        assert isinstance(trees, Trees)
        whole = whole.with_stage(trees.of_unseen())
    if uses:
        advance = partial(watch, "reranking validation")
        found.append(fit_lists(whole, run.graph, asked, advance=advance, **options))
    return tuple(found)


def save_calibration(run: RunFolder, calibration: Calibration) -> None:
    """Keep with a run what was fitted to it."""
    with replacing(run.path, FILE) as temporary:
        files.write_json(temporary, calibration.model_dump(mode="json"))


def drop_calibration(run: RunFolder) -> None:
    """Remove the probabilities of a run, if it has any."""
    remove_file(run.path, FILE)


def read_calibration(run: RunFolder) -> Calibration | None:
    """Read the calibration that :func:`save_calibration` wrote; None where there is none.

    Raises:
        RunError: when it is damaged, or the run has changed since.
    """
    path = run.path / FILE
    if FILE not in run.contents:
        return None
    again = f"`kgmlm calibrate {quoted(run.path)}` makes it again"
    try:
        found = Calibration.of_json(run.contents[FILE])
    except ValidationError as error:
        raise RunError(f"{path} is damaged: {digests.fault(error)}; {again}") from None
    except ValueError as error:
        raise RunError(f"{path} is damaged: {first_line(error)}; {again}") from None
    if not _fits(found, len(run.graph.relations)):
        raise RunError(f"{path} is damaged: its parts do not fit together; {again}")
    now = run.scored_by
    if stale := sorted(x for x in {*now, *found.chosen_for} if now.get(x) != found.chosen_for.get(x)):
        raise RunError(
            f"{run.path}: its probabilities were not fitted for the {' and '.join(stale)} that it has now; "
            f"`kgmlm calibrate {quoted(run.path)}` fits them again"
        )
    return found


def _fits(found: Calibration, relations: int) -> bool:
    """Return whether all parts have the lengths that they must have."""
    model, columns = found.model, len(SIDES) * len(FEATURES)
    lengths = {len(x) for x in (model.mean, model.scale, model.weights)}
    x, y = model.calibrator.x, model.calibrator.y
    ordered = len(x) == len(y) and all(a < b for a, b in pairwise(x))
    fits = len(model.offsets) == len(found.thresholds) == relations
    return lengths == {columns} and fits and ordered
