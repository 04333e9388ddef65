"""Background work of a service: looking for new facts, and adding entities to the run itself.

Each is a process of its own, at low priority, so that people's questions go first.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from fastapi import FastAPI, HTTPException

from kgmlm.core import files
from kgmlm.core.errors import RunError
from kgmlm.core.tables import ENDS
from kgmlm.prediction.new_facts import (
    FILE,
    FIRST,
    QUERIES,
    SMALL,
    NewFacts,
    clear,
    clear_parts,
    command,
    progress,
)
from kgmlm.runs.run import Run
from kgmlm.serving import schema
from kgmlm.serving.schema import NewEntity
from kgmlm.serving.session import Session, check_written

REFUSED = (
    "entities are added to the run only where it is a folder that this service may write; one that other "
    "machines can ask is started with --writable"
)
AT_WORK = "another update is at work; try again when it has ended"
CHANGED = "the run's folder has changed since it was opened"
IDLE = 10  # the niceness of these processes, from 0 to 19
Row = dict[str, Any]


def _started(command: Sequence[str]) -> subprocess.Popen[str]:
    """A process at low priority and on one thread, whose errors are read.

    Raises:
        RunError: when it cannot be started.
    """
    threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=os.environ | threads,
        )  # fmt: skip
        os.setpriority(os.PRIO_PROCESS, process.pid, IDLE)
    except OSError as error:
        raise RunError(f"no process can be started: {error.strerror}") from None
    return process


def _last_words(process: subprocess.Popen[str]) -> str:
    """Why a process has failed."""
    message = (process.communicate()[1] or "").strip() or "the work was ended"
    return message.splitlines()[-1].removeprefix("kgmlm: ")


class FactFinder:
    """The most probable triples that a run's graph lacks; the first question for them begins the work.

    Of larger graphs a first sample of queries is asked, whose facts are shown until the list is made.

    Args:
        keep: whether the list is kept in the run's folder, for the next service; else it lives as long as
            this one.
        is_current: whether the run's folder is as it was opened.
    """

    def __init__(self, run: Run, keep: bool, is_current: Callable[[], bool]) -> None:
        self.run, self.is_current = run, is_current
        self._own = None if keep else tempfile.TemporaryDirectory(prefix="kgmlm-")
        self.file = (run.folder.path if self._own is None else Path(self._own.name)) / FILE
        self._spare = tempfile.TemporaryDirectory(prefix="kgmlm-")
        first = (Path(self._spare.name) / FILE, FIRST)
        small = len(run.graph.splits["train"]) <= SMALL
        self._steps = [(self.file, QUERIES)] if small else [first, (self.file, QUERIES)]
        self._process: subprocess.Popen[str] | None = None
        self._found: NewFacts | None = None
        self._status: Literal["new", "looking", "ready", "none"] = "new"
        self._why = ""
        self._lock = threading.Lock()

    def page(self, relation: str | None, offset: int, limit: int) -> Row:
        """Some of the facts, best first, as labels, names, probability and reason; or why there are none yet.

        Args:
            relation: the label of the one whose facts are asked for; None is all.
        """
        with self._lock:
            self._look()
            status, page = self._status, self._found
            done = progress(self._steps[0][0]) if status == "looking" else 1.0
        if page is None:
            nothing: Row = {"asked": 0, "hidden": None, "total": 0, "relations": [], "facts": []}
            return {"status": status, "progress": done, "why": self._why, **nothing}
        counts = pc.value_counts(page.table.column("relation")).to_pylist()
        chosen = page.table
        if relation is not None:
            chosen = chosen.filter(pc.equal(chosen.column("relation"), relation))
        return {
            "status": status,
            "progress": done,
            "why": "",
            "asked": page.asked,
            "hidden": page.hidden,
            "total": len(chosen),
            "relations": sorted(
                ({"label": c["values"], "facts": c["counts"]} for c in counts),
                key=lambda row: (-row["facts"], row["label"]),
            ),
            "facts": chosen.slice(offset, limit).to_pylist(),
        }

    def close(self) -> None:
        """End the work, and forget what is not kept."""
        with self._lock:
            self._status, self._why = "none", self._why or "the service is ending"
            if self._process is not None:
                self._process.kill()
                self._process.communicate()
                self._process = None
            for folder in filter(None, (self._own, self._spare)):
                folder.cleanup()

    def _look(self) -> None:
        """Check how far the work is, and start it if it has not begun."""
        if self._status == "new":
            self._found = NewFacts.read(self.run, self.file)  # another service has kept it
            if self._found is not None:
                clear_parts(self.file)
                self._status = "ready"
            else:
                self._begin()
        elif self._process is not None and self._process.poll() is not None:
            process, self._process = self._process, None
            file = self._steps.pop(0)[0]
            made, error = NewFacts.read(self.run, file), _last_words(process)
            clear_parts(file)
            if made is None:
                self._end(error)
            elif self._steps:
                self._found = made
                self._begin()
            else:
                self._found, self._status = made, "ready"

    def _begin(self) -> None:
        """Start the next process, after removing what is left from another state of the run."""
        if not self.is_current():
            self._end(CHANGED)
            return
        file, sample = self._steps[0]
        clear(file)
        try:
            self._process = _started(command(self.run, file, sample))
            self._status = "looking"
        except RunError as error:
            self._end(str(error))

    def _end(self, why: str) -> None:
        """Look no further; facts of the first sample stay."""
        self._status, self._why = "none" if self._found is None else "ready", why


class Updates:
    """The latest update of a run that this service began.

    Args:
        run: the run's folder; None where it is not written.
        is_current: whether the run's folder is as it was opened.
    """

    def __init__(self, run: Path | None, is_current: Callable[[], bool]) -> None:
        self.run, self.is_current = run, is_current
        self._process: subprocess.Popen[str] | None = None
        self._given: tempfile.TemporaryDirectory[str] | None = None
        self._state: Row = {"status": "none", "why": "", "labels": [], "alike": []}
        self._lock = threading.Lock()

    def begin(self, entities: Sequence[NewEntity], alike: Sequence[dict[str, str]], match_names: bool) -> Row:
        """Start to add entities, with their triples; returns :meth:`state`.

        Args:
            alike: the new labels that are nearly alike to known ones.
            match_names: as of :func:`kgmlm.update`.

        Raises:
            PermissionError: where the run is not written.
            RunError: when an update is at work, or the run has changed.
        """
        if self.run is None:
            raise PermissionError(REFUSED)
        with self._lock:
            if self._look()["status"] == "updating":
                raise RunError(AT_WORK)
            if not self.is_current():
                raise RunError(CHANGED)
            self._given = tempfile.TemporaryDirectory(prefix="kgmlm-")
            update = [sys.executable, "-m", "kgmlm", "update", str(self.run.resolve()), "--quiet"]
            update += ["--match-names"] * match_names
            self._process = _started([*update, *_written(entities, Path(self._given.name))])
            labels = [e.label or e.name for e in entities]
            self._state = {"status": "updating", "why": "", "labels": labels, "alike": list(alike)}
            return dict(self._state)

    @property
    def possible(self) -> bool:
        """Whether the run may be updated now, but for an update that is at work."""
        return self.run is not None and self.is_current()

    def state(self) -> Row:
        """The latest update: its ``status``, ``why`` it has failed, the ``labels`` that it adds."""
        with self._lock:
            return dict(self._look())

    def _look(self) -> Row:
        process = self._process
        if process is not None and process.poll() is not None:
            done, message = process.returncode == 0, _last_words(process)
            why = "" if done else self._plain(message)
            self._state = {**self._state, "status": "updated" if done else "failed", "why": why}
            self._end()
        return self._state

    def _plain(self, sentence: str) -> str:
        """A sentence without paths of this machine."""
        assert self.run is not None
        assert self._given is not None
        path = str(self.run.resolve())
        return sentence.replace(f"{self._given.name}/", "").replace(path, Path(path).name)

    def _end(self) -> None:
        self._process = None
        if self._given is not None:
            self._given.cleanup()
            self._given = None

    def close(self) -> None:
        """End the work: an update that is ended has changed nothing."""
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()
                self._process.communicate()
            self._end()


def _written(entities: Sequence[NewEntity], folder: Path) -> list[str]:
    """Write entities and their triples as files; return the options of `kgmlm update` that name them."""
    texts = {
        "label": [e.label or e.name for e in entities],
        "name": [e.name for e in entities],
        "description": [e.description for e in entities],
        "types": ["|".join(e.types) for e in entities],
    }
    triples = [
        (label, given.relation, given.tail) if given.tail is not None else (given.head, given.relation, label)
        for label, entity in zip(texts["label"], entities, strict=True)
        for given in entity.triples
    ]
    files.write_parquet(folder / "entities.parquet", pa.table(texts))
    options = ["--entities", str(folder / "entities.parquet")]
    if triples:
        columns = dict(zip(ENDS, (list(x) for x in zip(*triples, strict=True)), strict=True))
        files.write_parquet(folder / "triples.parquet", pa.table(columns))
        options += ["--triples", str(folder / "triples.parquet")]
    return options


def add_updates(app: FastAPI, session: Session, updates: Updates) -> None:
    """Add the paths by which entities are added to the run itself."""

    @app.post(
        "/update",
        status_code=202,
        response_model=schema.UpdateResponse,
        responses={
            403: {"model": schema.Problem, "description": REFUSED},
            409: {"model": schema.Problem, "description": f"{AT_WORK}; or {CHANGED}."},
        },
    )
    def update(body: schema.UpdateRequest) -> Any:
        """Add entities and their triples to the run on disk, as `kgmlm update` does, in a process of its own.
        The other ends of triples are labels, or exactly names. With `--watch` the service answers by the
        updated run when it is written."""
        alike = check_written(session.run.graph, body.entities, body.match_names)
        try:
            return updates.begin(body.entities, alike, body.match_names)
        except PermissionError as error:
            raise HTTPException(403, str(error)) from None

    @app.get("/update", response_model=schema.UpdateResponse)
    def updated() -> Any:
        """The state of the latest update that this process has begun."""
        return updates.state()
