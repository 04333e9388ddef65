"""A run's folder kept in order: its checkpoints, who writes it, and what a kill has left of it."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from kgmlm import files
from kgmlm.kg import KgmlmError, RunError
from kgmlm.locks import locked
from kgmlm.processes import check_main_guard
from kgmlm.records import read_record

ENDED = ("finished", "stopped early")
TRAINED = (*ENDED, "max steps")  # as far as was asked
RERANKER = "reranker"
TRIES = 40  # of a reader whose run is being changed, for two seconds
T = TypeVar("T")
_HELD: set[tuple[Path, int]] = set()  # runs that this process writes, by thread


def checkpoints(path: Path) -> list[Path]:
    """The checkpoints of a run, oldest first; what else is in the folder is not its own.

    Raises:
        RunError: when the folder is a link.
    """
    folder = path / "checkpoints"
    files.refuse_link(folder)
    own = (p for p in folder.glob("step-*") if re.fullmatch(r"step-\d+", p.name))
    return sorted((p for p in own if p.is_dir() and not p.is_symlink()), key=_step)


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def discard_checkpoints(path: Path, but: str = "") -> None:
    """Remove the resumable states of a run, all but one, and nothing else."""
    for folder in checkpoints(path):
        if folder.name != but:
            shutil.rmtree(folder, ignore_errors=True)
    if not but:
        with suppress(OSError):  # not there, or with something in it that is not a checkpoint
            (path / "checkpoints").rmdir()


_OWN = {
    "run.json", "config.toml", "metrics.jsonl", "feedback.jsonl", "graph", "model",
    "signals", "checkpoints", "index", "reranker",
}  # fmt: skip


def check_result(path: Path) -> None:
    """See, before long work, that results can be written there, and that it is no file of a run's own.

    Raises:
        DataError: when it cannot be written.
        RunError: when a run has its own files there.
    """
    files.check_writable(path)
    whole = path.resolve()
    for folder in whole.parents:
        if (folder / "run.json").is_file() and whole.relative_to(folder).parts[0] in _OWN:
            raise RunError(f"{path} belongs to the run {folder}; choose another --output")


def is_blank(path: Path) -> bool:
    """Whether a run was laid and has learned nothing, as when its training was refused."""
    laid = {"run.json", "config.toml", "graph", "checkpoints", "metrics.jsonl", "logs"}
    if not (path / "run.json").is_file() or not {p.name for p in path.iterdir()} <= laid:
        return False
    try:
        started = read_record(path)["status"] == "started"
    except RunError:
        return False
    there = set((path / "checkpoints").iterdir()) if (path / "checkpoints").is_dir() else set()
    return started and all(p in checkpoints(path) and not _step(p) for p in there)


def has_reranker(path: Path) -> bool:
    """Whether a reranker of this run has been trained, as far as was asked."""
    folder = path / RERANKER
    return (folder / "model" / "config.json").is_file() and read_record(folder)["status"] in TRAINED


@contextmanager
def writing(path: Path, what: str) -> Iterator[None]:
    """Be the only one that writes a run, and put in order what a kill has left of it.

    Args:
        path: where it is, or will be.
        what: what is being done, for the sentence that others get.

    Raises:
        RunError: when another process writes it, or this one is a worker that is still importing its parent's
            script.
    """
    check_main_guard()
    key = (_owner(path), threading.get_ident())
    if key in _HELD:  # a job that another job of this thread does
        yield
        return
    with locked(key[0], what):
        _HELD.add(key)
        try:
            _put_in_order(path.resolve())
            yield
        finally:
            _HELD.discard(key)


def _owner(path: Path) -> Path:
    """The run that a run is part of, or itself: a reranker is written under its run's lock."""
    path = path.resolve()
    part = path.name == RERANKER and (path.parent / "run.json").is_file()
    return path.parent if part else path


def _put_in_order(path: Path) -> None:
    files.recover(path)
    try:
        ended = read_record(path)["status"] in ENDED
    except RunError:  # no run, or one that says nothing that could be relied on
        return
    for folder in (path, path / "model", path / "signals", path / "index", path / "checkpoints"):
        files.recover_in(folder)
    if ended and not (path / "checkpoints").is_symlink():
        discard_checkpoints(path)
    if (path / RERANKER).is_dir() and not (path / RERANKER).is_symlink():
        _put_in_order(path / RERANKER)


def leave_out(path: Path, stage: str) -> None:
    """Take a stage out of a run's recipe, so that `kgmlm train --resume` does not do it again."""
    record = read_record(path)
    recipe = record.get("recipe") or {"stages": []}
    if stage in recipe["stages"]:
        left = [other for other in recipe["stages"] if other != stage]
        files.write_json(path / "run.json", {**record, "recipe": {**recipe, "stages": left}})


def recover(path: Path) -> None:
    """Before reading: end what a kill cut short, where nobody writes and this process may."""
    path = path.resolve()
    inside = (path, path / "index", path / RERANKER, path / "checkpoints")
    if files.is_unsettled(path) or any(map(files.unsettled, inside)):
        with suppress(RunError, OSError), writing(path, "opening"):
            pass


def steady(path: Path, read: Callable[[], T]) -> T:
    """What is read of a run, all of it as it was at one time.

    Readers take no lock, and a writer may replace the model, a signal or the weights while they read: then
    they read again.

    Raises:
        RunError: when it changes as often as it is read.
    """
    for left in reversed(range(TRIES)):
        before = _state(path)
        try:
            found = read()
        except (KgmlmError, OSError):
            if not left or (_state(path) == before and not files.unsettled(path)):
                raise
        else:
            if _state(path) == before:
                return found
        time.sleep(0.05)
    raise RunError(f"{path} changes as often as it is read; try again when what writes it has ended")


def _state(path: Path) -> list[tuple[str, int, int]]:
    """Which files a run scores by; one that is replaced is another."""
    parts = (path / "model", path / "signals", path / RERANKER / "model")
    there = [file for part in parts for file in (part, *part.glob("*"))]
    found = []
    for file in sorted(there):
        with suppress(OSError):
            stat = file.stat()
            found.append((str(file), stat.st_ino, stat.st_mtime_ns))
    return found


def check_output(path: Path, overwrite: bool) -> None:
    """Refuse to write over what is not a run, or, unless asked to, over a run that has learned something.

    Raises:
        RunError: saying which option to use.
    """
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not (path / "run.json").is_file():
        raise RunError(f"{path} exists and is not a run; choose another --output")
    if not overwrite and not is_blank(path):
        raise RunError(f"{path} is a run already; use --resume to continue, --overwrite to start again")
