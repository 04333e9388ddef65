"""What validation chose for a run: how much each signal counts, and how much is reranked.

One file, ``model/mixture.json``, has it all, with the digests of the signals that it was chosen for: with
others it is not used.

Shapes: R relations.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kgmlm import digests, files
from kgmlm.digests import RESTORE
from kgmlm.kg import RunError
from kgmlm.mixture import Mixture, Use, Weights
from kgmlm.records import accepted, read_record
from kgmlm.signals import SIGNALS
from kgmlm.upkeep import RERANKER, has_reranker

REVERSE = "reverse"  # asking back, beside the names of signals
WEIGHTS = "weights"  # beside the names of signals, where something goes by the weights, too

_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Sha = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Signal(_Strict):
    average: _Finite
    weights: list[Annotated[list[_Finite], Field(min_length=2, max_length=2)]] | None


class _Use(_Strict):
    k: int = Field(ge=0)
    weight: _Finite


class _File(_Strict):
    signals: dict[str, _Signal] = Field(min_length=1)
    reranking: _Use | None
    reverse: _Use | None = None
    chosen_for: dict[str, _Sha]
    chosen_by: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Chosen:
    """Weights of a run's signals, and for which signals they were chosen.

    Attributes:
        mixture: how much each signal counts.
        use: how many are reranked, and how much that counts; None where nothing was chosen yet.
        of: what :func:`fingerprints` were then.
        by: the command that chose, and its figures on validation.
        reverse: how many are asked back, and how much that counts; None where it was not asked for.
    """

    mixture: Mixture
    use: Use | None = None
    of: Mapping[str, str] = field(default_factory=dict)
    by: Mapping[str, Any] = field(default_factory=dict)
    reverse: Use | None = None

    @property
    def asked_back(self) -> Use | None:
        """How the best are asked back, where any are."""
        return self.reverse if self.reverse and self.reverse.k else None

    def save(self, path: Path) -> None:
        """Write them as JSON: for each signal one weight where all are alike, else ``(R, 2)``."""
        signals = {}
        for name, table_R2 in self.mixture.tables.items():
            average = float(self.mixture.averages[name])
            alike = bool((table_R2 == np.float32(average)).all())
            signals[name] = {"average": average, "weights": None if alike else table_R2.tolist()}
        uses = {name: use and asdict(use) for name, use in (("reranking", self.use), (REVERSE, self.reverse))}
        values = {"signals": signals, **uses, "chosen_for": dict(self.of)}
        files.write_json(path, values | {"chosen_by": dict(self.by)})

    @classmethod
    def open(cls, path: Path, relations: int) -> Chosen:
        """What :meth:`save` wrote.

        Args:
            relations: how many the run has.

        Raises:
            RunError: when the file is missing, damaged or of another graph.
        """
        try:
            found = _File.model_validate_json(path.read_bytes())
        except OSError:
            raise RunError(f"{path} is missing; {RESTORE}") from None
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))[:60]
            raise RunError(f"{path} is damaged: '{key}': {first['msg']}; {RESTORE}") from None
        tables = {
            name: np.repeat(_float32([[signal.average] * 2]), relations, 0)
            if signal.weights is None
            else _float32(signal.weights).reshape(-1, 2)
            for name, signal in found.signals.items()
        }
        averages = {name: signal.average for name, signal in found.signals.items()}
        if any(len(table_R2) != relations for table_R2 in tables.values()):
            raise RunError(f"{path} is of another graph: the run has {relations:,} relations; {RESTORE}")
        if not all(np.isfinite(table_R2).all() for table_R2 in tables.values()):
            raise RunError(f"{path} is damaged: a weight is too large; {RESTORE}")
        use, reverse = (
            None if of is None else Use(of.k, of.weight) for of in (found.reranking, found.reverse)
        )
        return cls(Mixture(tables, averages), use, found.chosen_for, found.chosen_by, reverse)

    def check(self, now: Mapping[str, str], run: Path, but: Iterable[str] = ()) -> None:
        """See that these were chosen for the signals that a run has now, but for those that are not asked.

        Raises:
            RunError: naming the others.
        """
        # A reranker that is not used may be gone: it is trained further.
        known = {name for name in self.of if name != RERANKER or self.use is not None}
        names = sorted({*now, *known} - set(but))
        if stale := [name for name in names if now.get(name) != self.of.get(name)]:
            raise RunError(
                f"{run}: its weights were not chosen for the {' and '.join(stale)} that it has now; "
                f"`kgmlm tune {run}` chooses them"
            )


def _float32(values: list[list[float]]) -> Weights:
    """Numbers as float32; those that are too large are infinite."""
    with np.errstate(over="ignore"):
        return np.array(values, np.float32)


def text_fingerprint(run: Path) -> str:
    """SHA-256 of the model that an index is made of."""
    found = fingerprints(run)
    return found.get("vector") or found.get("likelihood", "")


def of_weights(run: Path) -> str:
    """SHA-256 of the weights of a run's signals, whichever command chose them."""
    signals = files.parse_json((run / "model" / "mixture.json").read_bytes())["signals"]
    return hashlib.sha256(json.dumps(signals, sort_keys=True).encode()).hexdigest()


def fingerprints(run: Path) -> dict[str, str]:
    """SHA-256 of what each signal of a run knows, and of its reranker once that is trained, by name."""
    model = digests.read_manifest(run / "model") or {}
    known = {f"model/{k}": v for k, v in model.items()} | (accepted(read_record(run)) or {})
    there = {name: kind.file for name, kind in SIGNALS.items() if (run / kind.file).is_file()}
    found = {name: digests.sha(known, file, run) for name, file in there.items()}
    if has_reranker(run):
        folder = run / RERANKER / "model"
        found[RERANKER] = digests.sha(digests.read_manifest(folder) or {}, "model.safetensors", folder)
    return found
