"""What is beside a run's model: signals that are added or dropped, and the reranker of another run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgmlm import files, runs
from kgmlm.chosen import REVERSE
from kgmlm.config import Settings, load_settings
from kgmlm.jobs.running import keeping, settings_of
from kgmlm.kg import RunError
from kgmlm.run import Run, path_of
from kgmlm.upkeep import RERANKER, has_reranker, leave_out
from kgmlm.watching import Watcher

if TYPE_CHECKING:
    from kgmlm.signals import Signal


@dataclass(frozen=True)
class Addition:
    """What is to be added beside a run's model: a signal, or the reranker of another run.

    Attributes:
        source: a run to take it from, instead of training it.
        config, given: settings by which it is trained; by default those of the run.
        overwrite: whether it replaces an older one.
        marks: what else is recorded of it.
    """

    name: str
    source: Run | str | Path | None = None
    config: Path | None = None
    given: Sequence[str] = ()
    overwrite: bool = False
    marks: Mapping[str, Any] = field(default_factory=dict)

    def check(self, run: runs.RunFolder) -> None:
        """Refuse what cannot be added to a run, before anything of it is changed."""
        from kgmlm.signals import beside

        if self.name not in (*beside(), RERANKER):
            raise RunError(
                f"there is no signal '{self.name}' to add; there are "
                f"{', '.join([*beside(), RERANKER, REVERSE])}"
            )
        if self.source is None and self.name == RERANKER:
            raise RunError(
                f"`kgmlm rerank {run.path}` trains a reranker; --add reranker takes one --from another run"
            )
        if self.source is not None and (self.config or self.given):
            raise RunError("--from trains nothing; --config and --set go without it")
        if self.source is not None:
            giver = runs.open_run(path_of(self.source))
            if giver.path.resolve() == run.path.resolve() and self.overwrite:
                raise RunError(f"{run.path} cannot lend {self.name} to itself; --from names another run")
            if self.name != RERANKER:
                giver.lend(self.name, run.graph)
            elif not has_reranker(giver.path):
                raise RunError(
                    f"{giver.path} has no trained reranker; `kgmlm rerank {giver.path}` trains one"
                )
            elif not giver.graph.same(run.graph):
                raise RunError(f"{giver.path} is a run of another graph than {run.path}")
        if foreign := settings_of(self.name, self.given, others=True):
            raise RunError(
                f"--add {self.name} goes by the settings of {self.name} alone, not by {foreign[0]}"
            )
        file = run.path / (RERANKER if self.name == RERANKER else beside()[self.name].file)
        if file.exists() and not self.overwrite:
            kind = "reranker" if self.name == RERANKER else f"signal '{self.name}'"
            raise RunError(f"{run.path} has a {kind} already; --overwrite replaces it")
        if self.name != RERANKER:
            files.check_writable(file)
        self.settings(run)

    def settings(self, run: runs.RunFolder) -> Settings:
        """By which it is trained."""
        return load_settings(self.config or run.path / "config.toml", self.given, of_run=not self.config)


def as_names(given: str | Sequence[str] | None) -> list[str]:
    """One name, several, or none; each once."""
    return list(dict.fromkeys([given] if isinstance(given, str) else given or ()))


def shared_out(names: Sequence[str], given: Sequence[str]) -> dict[str, list[str]]:
    """The KEY=VALUE settings of each signal that is to be added; what is of none of them is left to all."""
    sections = [setting.partition(".")[0].strip() for setting in given]
    return {
        name: [
            s for s, section in zip(given, sections, strict=True) if section == name or section not in names
        ]
        for name in names
    }


def asks_back(run: runs.RunFolder, adding: Sequence[str], dropping: Sequence[str]) -> bool:
    """Whether a run is to ask its best candidates back: it was added, or it is there and not dropped.

    Raises:
        RunError: when it is to be dropped and is not there.
    """
    there = (run.path / runs.MIXTURE).is_file() and run.chosen.reverse is not None
    if REVERSE in dropping and not there:
        raise RunError(f"{run.path} does not ask back; there is no '{REVERSE}' to drop")
    return REVERSE in adding or (there and REVERSE not in dropping)


def check_parts(run: runs.RunFolder, names: Sequence[str]) -> None:
    """Refuse to drop what a run has not beside its model, before anything is dropped."""
    from kgmlm.signals import beside

    for name in names:
        if name == REVERSE:
            continue
        if name == RERANKER and (run.path / name).is_dir():
            files.refuse_link(run.path / name)
        elif name not in beside():
            there = ", ".join([*beside(), RERANKER, REVERSE])
            raise RunError(f"{run.path} has no '{name}' beside its model to drop (there may be {there})")
        elif not run.has_signal(name):
            raise RunError(f"{run.path} has no signal '{name}'")


def drop_part(run: runs.RunFolder, name: str) -> None:
    """Remove a signal that is beside the model, or the reranker, where there is one."""
    if name == RERANKER:
        shutil.rmtree(run.path / name)
    elif name != REVERSE:  # which has no file
        run.drop_signal(name)
    leave_out(run.path, name)


def take_reranker(run: runs.RunFolder, source: Run | str | Path) -> None:
    """Copy the reranker of another run."""
    files.refuse_link(run.path / RERANKER)
    with files.atomic_folder(run.path / RERANKER) as folder:
        shutil.copytree(runs.open_run(path_of(source)).path / RERANKER, folder, dirs_exist_ok=True)


def add_signal(run: runs.RunFolder, added: Addition, device: str | None, watch: Watcher) -> None:
    """Train a signal beside a run's model, or take it from another run, and keep it.

    It counts nothing until :func:`kgmlm.jobs.tuning.choose` has chosen how much.
    """
    from kgmlm.opening import device_of
    from kgmlm.starting import fit_signal

    made: tuple[Signal, dict[str, Any]]
    if added.source is not None:
        made = runs.open_run(path_of(added.source)).lend(added.name, run.graph)
    else:
        with watch:
            bar = partial(watch, f"training {added.name}")
            with keeping(run.path, added.name, watch) as kept:
                made = fit_signal(added.name, run.graph, added.settings(run), bar, device_of(device), kept)
    run.save_signal(made[0], **made[1], **added.marks)
