"""What jobs that train share: settings by name, and a training that is watched."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgmlm import files, runs
from kgmlm.config import Settings, load_settings
from kgmlm.digests import RESTORE
from kgmlm.kg import RunError, first_line
from kgmlm.processes import count_processes
from kgmlm.recipes import given_settings
from kgmlm.sections import MOST
from kgmlm.watching import Watcher

if TYPE_CHECKING:
    from kgmlm.ranker import Ranker
    from kgmlm.training import Outcome


class Interrupted(KeyboardInterrupt):
    """A signal has interrupted training; a checkpoint is saved.

    Attributes:
        signal: its number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by signal {number}")
        self.signal = number


@dataclass(frozen=True)
class Given:
    """Settings that were given, in a file or one by one.

    Attributes:
        settings: with the defaults of all others.
        values: only what was given, by section.
        assignments: those given one by one, as "KEY=VALUE".
    """

    settings: Settings
    values: Mapping[str, Any]
    assignments: tuple[str, ...]
    file: Path | None

    @classmethod
    def of(cls, file: Path | None, assignments: Sequence[str]) -> Given:
        """Read them.

        Raises:
            ConfigError: for an unknown key, a value out of range, or a file that is no TOML.
        """
        settings = load_settings(file, assignments)
        return cls(settings, given_settings(file, assignments), tuple(assignments), file)

    @property
    def plain(self) -> bool:
        """Whether they say what a recipe would choose: all settings, or the objective."""
        return self.file is not None or "objective" in self.values.get("training", {})

    @property
    def max_steps(self) -> int | None:
        """Where to stop, where that is given."""
        return self.settings.training.max_steps

    def fits(self, settings: Settings) -> bool:
        """Whether settings have what is given; where training stops may be another place."""
        have = settings.model_dump()
        mine = self.settings.model_dump()
        return all(
            mine[section][key] == have[section][key]
            for section, values in self.values.items()
            for key in values
            if (section, key) != ("training", "max_steps")
        )


def as_assignments(settings: Mapping[str, Any]) -> list[str]:
    """Settings given by name as "KEY=VALUE".

    >>> as_assignments({"epochs": 5, "vector": {"enabled": True}})
    ['vector.enabled=true', 'training.epochs=5']
    """
    sections = {k: v for k, v in settings.items() if isinstance(v, Mapping)}
    plain = {k: v for k, v in settings.items() if k not in sections}
    sections["training"] = {**plain, **sections.get("training", {})}
    return [
        f"{section}.{key}={json.dumps(value, default=_plain, ensure_ascii=False)}"
        for section, values in sections.items()
        for key, value in values.items()
        if value is not None  # as by default
    ]


def _plain(value: Any) -> Any:
    """A number of NumPy's, or a path, as JSON has it."""
    return value.item() if hasattr(value, "item") else str(value)


def settings_of(section: str, given: Sequence[str], others: bool = False) -> list[str]:
    """Those of the KEY=VALUE settings that are of a section; or of others."""
    keys = [setting.partition("=")[0].strip() for setting in given]
    return [key for key in keys if key.startswith(f"{section}.") != others]


def check_end(decay: float | None, resume: bool, overwrite: bool) -> None:
    """Refuse what says in two ways, or in no way, where a training begins and ends."""
    if resume and overwrite:
        raise RunError("--resume and --overwrite exclude each other")
    if decay is not None and not resume:
        raise RunError("--decay ends a training that is resumed; a new one ends after training.epochs")
    if decay is not None and not (isinstance(decay, int | float) and 0 <= decay <= MOST):
        raise RunError(f"--decay takes a number of epochs from 0 on, not {decay}")


def ends_by_decay(run: runs.RunFolder, decay: float | None) -> bool:
    """Whether a run is to end by a decay, which now or an earlier resumption has asked for."""
    from kgmlm.checkpoints import latest_checkpoint, read_state

    checkpoint = latest_checkpoint(run.path)
    if decay is not None or checkpoint is None:
        return decay is not None
    try:
        return read_state(checkpoint).decay_from >= 0
    except (OSError, ValueError) as error:
        raise RunError(f"{checkpoint} cannot be read: {first_line(error)}; {RESTORE}") from None


@contextmanager
def keeping(run: Path, name: str, watch: Watcher) -> Iterator[Path | None]:
    """Where the state of a signal's unfinished training is kept: beside its run, which may not be there yet.

    Where nothing can be written there, nothing is kept. When training is interrupted, it is said.
    """
    target = run.resolve()
    kept = target.parent / f".{target.name}.{name}-unfinished"
    if not os.access(kept.parent, os.W_OK):
        yield None
        return
    files.recover(kept)
    try:
        yield kept
    except KeyboardInterrupt:
        if kept.exists():
            watch.tell(f"the training of {name} is kept in {kept}, and the next one continues from there")
        raise


def train_watched(
    run: runs.RunFolder, ranker: Ranker, validation: Any, further: str, watch: Watcher, **options: Any
) -> Outcome:
    """Train while somebody watches, and say how it ended; ``further`` is the command that continues.

    Raises:
        Interrupted: when a signal stopped it.
    """
    from kgmlm.training import train as train_run

    if (count := count_processes()) > 1:
        size = run.settings.training.batch_size
        watch.tell(
            f"{count} processes read {size} samples each per batch, {count * size:,} together; neither "
            "training.batch_size nor training.learning_rate is scaled with their number"
        )
    with watch:
        outcome = train_run(run, ranker, validation, reporter=watch, **options)
    best = "" if outcome.best_mrr is None else f", best validation MRR {outcome.best_mrr:.4f}"
    watch.tell(
        f"{outcome.status} at step {outcome.step} after {outcome.minutes:.1f} minutes{best}; "
        f"the run is in {run.path}"
    )
    if outcome.status == "max steps":
        watch.tell(f"train further with: {further} --max-steps N")
    if outcome.signal is not None:
        watch.tell(f"continue with: {further}")
        raise Interrupted(outcome.signal)
    return outcome
