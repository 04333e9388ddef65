"""The probabilities of a run: fitted on its validation triples, kept with it, refused when it has changed.

What is told apart is validation triples from corrupted ones, or from those that the graph's files say are
false. All are scored by the run's own weights. These were chosen on validation, too, but weights chosen on
half of the sample give scores of another scale, and what is fitted to those is wrong for the run's.

Shapes: n triples, R relations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from kgmlm import digests, files
from kgmlm.arrays import spreads
from kgmlm.calibration import FEATURES, FITTED_AT, SIDES, Calibration, Examples, fit
from kgmlm.chosen import WEIGHTS, fingerprints, of_weights
from kgmlm.filters import FilterIndex, distinct_triples
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import BoolArray, DataError, FloatArray, IntArray, RunError, first_line
from kgmlm.plausibility import KINDS_OF_NEGATIVES, Negatives, features
from kgmlm.provenance import command
from kgmlm.ranker import Ranker
from kgmlm.reliability import measured, reweighted
from kgmlm.runs import PROBABILITIES, RunFolder
from kgmlm.scorer import Scorer
from kgmlm.upkeep import RERANKER
from kgmlm.watching import Advance, Watcher, quiet_transformers

FILE = PROBABILITIES
TRIPLES = 1000  # validation triples that are enough
MISSING = (
    1.0  # true triples that nobody has, per validation triple: as many, as where a test set is kept back
)

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
    """

    triples: IntArray
    labels: BoolArray
    groups: IntArray
    kinds: IntArray
    weights: FloatArray

    def __getitem__(self, rows: BoolArray) -> Sample:
        return Sample(**{name: values[rows] for name, values in vars(self).items()})

    @property
    def halves(self) -> BoolArray:
        """In which half each is; a true triple and its negatives are in the same."""
        odd: BoolArray = self.groups % 2 == 1
        return odd

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
        true = _some(_new(graph.triples(split), answers), most, rng)
        every = [graph.splits[s] for s in dict.fromkeys(("train", "valid", split)) if s in graph.splits]
        if split in graph.negatives:
            false = _some(_new(graph.negatives[split], FilterIndex(every, len(graph.entities))), most, rng)
            of, kinds = np.arange(len(false)), np.full(len(false), -1)
        else:
            true_ones = graph.splits["train"] if blind else np.concatenate(every)
            draws = Negatives(true_ones, graph.splits["train"], len(graph.entities), seed)
            false, of, kinds = draws.draw(true, scorer, batch_size, partial(advance, "drawing negatives"))
        return cls(
            np.concatenate([true, false]),
            np.arange(len(true) + len(false)) < len(true),
            np.concatenate([np.arange(len(true)), of]),
            np.concatenate([np.full(len(true), -1), kinds]),
            np.ones(len(true) + len(false)),
        )


def _new(triples: IntArray, known: FilterIndex) -> IntArray:
    """Distinct triples that training has not."""
    triples = distinct_triples(triples)
    return triples[~known.has(triples)]


def _some(triples: IntArray, most: int, rng: np.random.Generator) -> IntArray:
    if not most or most >= len(triples):
        return triples
    return triples[np.sort(rng.choice(len(triples), most, replace=False))]


def temperature_of(scorer: Scorer) -> float:
    """What scores are divided by to be logits: a run's as in training, others as they are."""
    return scorer.reader.settings.training.temperature if isinstance(scorer, Ranker) else 1.0


def calibrate(
    scorer: Scorer,
    graph: KnowledgeGraph,
    *,
    most: int = TRIPLES,
    missing: float = MISSING,
    seed: int = 0,
    batch_size: int = 64,
    advance: Advance = silent,
) -> tuple[Calibration, Sample, FloatArray]:
    """Fit probabilities to a run's validation triples.

    Args:
        scorer: of the run's own graph; a reranker takes no part.
        most: so many validation triples; 0 is all.
        missing: how many true triples neither training nor validation has, per validation triple.

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
    sample.weights[:] = _trusted(found, sample, hit, missing)
    sample, found = sample[~hit], found[~hit]
    examples = Examples(found, sample.triples[:, 1], sample.labels, sample.weights, sample.halves)
    calibration, held = fit(examples, len(graph.relations), of={}, by={})
    return calibration, sample, held


def _trusted(found: FloatArray, sample: Sample, hit: BoolArray, missing: float) -> FloatArray:
    """How much each negative counts, given that some of them are true triples that nobody has.

    Negatives are drawn blind to validation. Some hit validation triples; the others hit missing triples as
    often, and with the same features, if as many are missing. So what makes a hit likely (a logistic
    regression of hits against the rest) makes a negative unlikely. Kinds keep their shares.

    Args:
        found: the features.
        hit: which negatives are validation triples.
    """
    from sklearn.linear_model import LogisticRegression

    weights, drawn = np.ones(len(hit)), ~sample.labels
    if not hit.any() or not missing:
        return weights
    if hit[drawn].all():
        raise RunError("there are no false triples to learn from: each that was drawn is a validation triple")
    columns = found.reshape(len(found), -1)
    columns = (columns - columns[drawn].mean(0)) / spreads(columns[drawn])
    model = LogisticRegression(max_iter=1000).fit(columns[drawn], hit[drawn])
    odds = np.exp(model.decision_function(columns[drawn]))
    weights[drawn] = np.clip(1 - missing * odds, 0.0, 1.0)
    for kind in np.unique(sample.kinds[drawn]):
        own = drawn & ~hit & (sample.kinds == kind)
        weights[own] *= own.sum() / max(weights[own].sum(), 1.0)
    if not weights[drawn & ~hit].any():
        raise RunError(f"no negative counts with {missing:g} missing triples per validation triple")
    return weights


def figures(calibration: Calibration, sample: Sample, held: FloatArray) -> dict[str, Any]:
    """What validation says of probabilities, each triple by what was fitted to the other half; positives and
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
    """What probabilities go by, of the triples of a sample."""
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
    missing: float = MISSING,
    seed: int = 0,
    precision: str = "fp32",
    batch_size: int = 64,
    device: str | None = None,
    watch: Watcher = silent,
) -> tuple[Calibration, dict[str, Any]]:
    """What is fitted to a run's validation triples, as of what the run is now, and its figures there.

    Args:
        most, missing, seed: as of :func:`calibrate`.
        precision: "fp32" or "bf16".

    Raises:
        RunError: when there are no validation triples, or too few.
    """
    if not run.graph.has("valid"):
        raise RunError(
            f"{run.path} has no validation triples to fit probabilities to; `kgmlm data split --random` "
            "makes some before training"
        )
    quiet_transformers()
    ranker = run.ranker(device, rerank=False)
    ranker.reduce(precision == "bf16")
    with watch:
        found, sample, held = calibrate(
            ranker, run.graph, most=most, missing=missing, seed=seed, batch_size=batch_size, advance=watch
        )
    valid = figures(found, sample, held)
    by = {
        "command": command(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "precision": precision,
        "seed": seed,
        "missing": missing,
        "valid": valid,
    }
    return found.model_copy(update={"chosen_for": fingerprint(run.path), "chosen_by": by}), valid


def fingerprint(run: Path) -> dict[str, str]:
    """What probabilities go by: the signals of a run, their weights, not its reranker."""
    signals = {name: sha for name, sha in fingerprints(run).items() if name != RERANKER}
    return {**signals, WEIGHTS: of_weights(run)}


def save(run: RunFolder, calibration: Calibration) -> None:
    """Keep with a run what was fitted to it."""
    folder = run.model_folder
    keep = partial(digests.write_manifest, folder)
    with digests.replacing(run.path / FILE, digests.read_manifest(folder), keep) as temporary:
        files.write_json(temporary, calibration.model_dump(mode="json"))


def read(run: RunFolder) -> Calibration | None:
    """What :func:`save` wrote; None where there is nothing.

    Raises:
        RunError: when it is damaged, or the run has changed since.
    """
    path = run.path / FILE
    if not path.is_file():
        return None
    again = f"`kgmlm calibrate {run.path}` makes it again"
    try:
        found = Calibration.of_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))[:60]
        raise RunError(f"{path} is damaged: '{key}': {first['msg']}; {again}") from None
    except ValueError as error:
        raise RunError(f"{path} is damaged: {first_line(error)}; {again}") from None
    if not _fits(found, len(run.graph.relations)):
        raise RunError(f"{path} is damaged: its parts do not fit together; {again}")
    now = fingerprint(run.path)
    if stale := sorted(x for x in {*now, *found.chosen_for} if now.get(x) != found.chosen_for.get(x)):
        raise RunError(
            f"{run.path}: its probabilities were not fitted for the {' and '.join(stale)} that it has now; "
            f"`kgmlm calibrate {run.path}` fits them again"
        )
    return found


def _fits(found: Calibration, relations: int) -> bool:
    """Whether all parts have the lengths that they must have."""
    model, columns = found.model, len(SIDES) * len(FEATURES)
    lengths = {len(x) for x in (model.mean, model.scale, model.weights)}
    x, y = model.calibrator.x, model.calibrator.y
    ordered = len(x) == len(y) and all(a < b for a, b in pairwise(x))
    fits = len(model.offsets) == len(found.thresholds) == relations
    return lengths == {columns} and fits and ordered
