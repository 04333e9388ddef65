"""The tuned weights of a run's signals and second stages: ``model/mixture.json``.

They come with digests of the signals that they were chosen for, and are not used with others.

Shapes: R relations.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, ValidationError

from kgmlm.core import digests, files
from kgmlm.core.arrays import Floats
from kgmlm.core.digests import RESTORE
from kgmlm.core.errors import RunError, first_line, quoted
from kgmlm.ranking.ranker import STATES, Mixture, StageWeight

MIXTURE = "model/mixture.json"

# Second stages, in their order.
REVERSE, TREES = SECOND = ("reverse", "trees")
TREES_FILE = "model/trees.safetensors"
WEIGHTS = "weights"  # beside the names of signals, where something goes by the weights, too
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Sha = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Weights(digests.StrictModel):
    average: _Finite
    weights: list[Annotated[list[_Finite], Field(min_length=2, max_length=2)]] | None


class _Signal(_Weights):
    damping: _Finite = 1.0
    of_unseen: _Weights | None = None


class _Use(digests.StrictModel):
    k: int = Field(ge=0)
    weight: _Finite
    states: tuple[bool, ...] = Field((True,) * STATES, min_length=STATES, max_length=STATES)


class _File(digests.StrictModel):
    signals: dict[str, _Signal] = Field(min_length=1)
    reverse: _Use | None = None
    trees: _Use | None = None
    chosen_for: dict[str, _Sha]
    chosen_by: dict[str, Any]


@dataclass(frozen=True, eq=False)
class TunedWeights:
    """Weights of a run's signals, and for which signals they were chosen.

    Attributes:
        mixture: how much each signal counts.
        stage_weights: for each second stage that was chosen or asked for, how many candidates it scores (0
            where that was no better) and how much that counts.
        of: what :attr:`~kgmlm.runs.folder.RunFolder.fingerprints` were then.
        by: the command that chose, and its figures on validation.
    """

    mixture: Mixture
    stage_weights: Mapping[str, StageWeight] = field(default_factory=dict)
    of: Mapping[str, str] = field(default_factory=dict)
    by: Mapping[str, Any] = field(default_factory=dict)

    @property
    def active(self) -> dict[str, StageWeight]:
        """The second stages that score any candidates, in their order."""
        return {
            name: self.stage_weights[name]
            for name in SECOND
            if name in self.stage_weights and self.stage_weights[name].k
        }

    def save(self, path: Path) -> None:
        """Write them as JSON: for each signal one weight where all are alike, else ``(R, 2)``."""
        mixture = self.mixture
        signals = _written(mixture)
        for name, factor in mixture.damping.items():
            signals[name]["damping"] = factor
        for name, weights in (_written(mixture.of_unseen) if mixture.of_unseen else {}).items():
            signals[name]["of_unseen"] = weights
        stage_weights = {
            name: asdict(self.stage_weights[name]) if name in self.stage_weights else None for name in SECOND
        }
        values = {"signals": signals, **stage_weights, "chosen_for": dict(self.of)}
        files.write_json(path, values | {"chosen_by": dict(self.by)})

    @classmethod
    def parse(cls, data: bytes | None, path: Path, relations: int) -> TunedWeights:
        """Read the weights that :meth:`save` wrote.

        Args:
            data: the contents of the file; None where there is none.
            path: of the file, for errors.
            relations: how many the run has.

        Raises:
            RunError: when the file is missing, damaged or of another graph.
        """
        if data is None:
            raise RunError(f"{path} is missing; {RESTORE}")
        try:
            values = digests.without_retired(files.parse_json(data))
            file = _File.model_validate_json(json.dumps(values))
        except ValueError as error:
            why = digests.fault(error) if isinstance(error, ValidationError) else first_line(error)
            raise RunError(f"{path} is damaged: {why}; {RESTORE}") from None
        mixture = _read(file.signals, relations)
        damping = {name: signal.damping for name, signal in file.signals.items() if signal.damping != 1}
        unseen = {name: of for name, signal in file.signals.items() if (of := signal.of_unseen) is not None}
        of_unseen = _read(unseen, relations) if unseen else None
        every = [*mixture.tables.values(), *(of_unseen.tables.values() if of_unseen else ())]
        if any(len(table_R2) != relations for table_R2 in every):
            raise RunError(f"{path} is of another graph: the run has {relations:,} relations; {RESTORE}")
        if not all(np.isfinite(table_R2).all() for table_R2 in every):
            raise RunError(f"{path} is damaged: a weight is too large; {RESTORE}")
        chosen = {name: stage_weight for name in SECOND if (stage_weight := getattr(file, name)) is not None}
        stage_weights = {name: StageWeight(of.k, of.weight, of.states) for name, of in chosen.items()}
        mixture = replace(mixture, damping=damping, of_unseen=of_unseen)
        return cls(mixture, stage_weights, file.chosen_for, file.chosen_by)

    def check(self, now: Mapping[str, str], run: Path, but: Iterable[str] = ()) -> None:
        """See that these were chosen for the signals that a run has now, but for those that are not asked.

        Raises:
            RunError: naming the others.
        """
        names = sorted({*now, *self.of} - set(but))
        if stale := [name for name in names if now.get(name) != self.of.get(name)]:
            raise RunError(
                f"{run}: its weights were not chosen for the {' and '.join(stale)} that it has now; "
                f"`kgmlm tune {quoted(run)}` chooses them"
            )


def _written(mixture: Mixture) -> dict[str, dict[str, Any]]:
    """The weights of each signal as the file has them."""
    signals = {}
    for name, table_R2 in mixture.tables.items():
        average = float(mixture.averages[name])
        alike = bool((table_R2 == np.float32(average)).all())
        signals[name] = {"average": average, "weights": None if alike else table_R2.tolist()}
    return signals


def _read(signals: Mapping[str, _Weights], relations: int) -> Mixture:
    """The weights that a file has of signals."""
    tables = {
        name: np.repeat(_float32([[signal.average] * 2]), relations, 0)
        if signal.weights is None
        else _float32(signal.weights).reshape(-1, 2)
        for name, signal in signals.items()
    }
    return Mixture(tables, {name: signal.average for name, signal in signals.items()})


def _float32(values: list[list[float]]) -> Floats:
    """Numbers as float32; those that are too large are infinite."""
    with np.errstate(over="ignore"):
        return np.array(values, np.float32)
