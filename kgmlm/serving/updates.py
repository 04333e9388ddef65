"""New entities that people add to the run itself: an update in a process of its own."""

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
from fastapi import FastAPI, HTTPException

from kgmlm.core import files
from kgmlm.core.errors import RunError
from kgmlm.core.tables import ENDS
from kgmlm.serving import schema
from kgmlm.serving.schema import NewEntity
from kgmlm.serving.session import Session, check_known

REFUSED = (
    "entities are added to the run only where it is a folder that this service may write; one that other "
    "machines can ask is started with --writable"
)
AT_WORK = "another update is at work; try again when it has ended"
CHANGED = "the run's folder has changed since it was opened"
IDLE = 10  # how much other processes go before an update, from 0 to 19
Row = dict[str, Any]
Status = Literal["none", "updating", "updated", "failed"]


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
        self._state: Row = {"status": "none", "why": "", "labels": []}
        self._lock = threading.Lock()

    def begin(self, entities: Sequence[NewEntity]) -> Row:
        """Start to add entities, with their triples; returns :meth:`state`.

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
            command = [sys.executable, "-m", "kgmlm", "update", str(self.run.resolve()), "--quiet"]
            command += _written(entities, Path(self._given.name))
            threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}  # people's questions go first
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                    text=True, env=os.environ | threads,
                )  # fmt: skip
                os.setpriority(os.PRIO_PROCESS, self._process.pid, IDLE)
            except OSError as error:
                raise RunError(f"no process can be started: {error.strerror}") from None
            self._state = {"status": "updating", "why": "", "labels": [e.label or e.name for e in entities]}
            return dict(self._state)

    @property
    def possible(self) -> bool:
        """Return whether the run may be updated now, but for an update that is at work."""
        return self.run is not None and self.is_current()

    def state(self) -> Row:
        """The latest update: its ``status``, ``why`` it has failed, the ``labels`` that it adds."""
        with self._lock:
            return dict(self._look())

    def _look(self) -> Row:
        process = self._process
        if process is not None and process.poll() is not None:
            said = (process.communicate()[1] or "").strip() or "the work was ended"
            done = process.returncode == 0
            why = "" if done else self._plain(said.splitlines()[-1].removeprefix("kgmlm: "))
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
    """Write entities and their triples as files; the options of `kgmlm update` that name these."""
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
    found = ["--entities", str(folder / "entities.parquet")]
    if triples:
        columns = dict(zip(ENDS, (list(x) for x in zip(*triples, strict=True)), strict=True))
        files.write_parquet(folder / "triples.parquet", pa.table(columns))
        found += ["--triples", str(folder / "triples.parquet")]
    return found


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
    def update(body: schema.AddRequest) -> Any:
        """Add entities and their triples to the run on disk, as `kgmlm update` does, in a process of its own.
        With `--watch` the service answers by the updated run when it is written."""
        check_known(session.run.graph, body.entities)
        try:
            return updates.begin(body.entities)
        except PermissionError as error:
            raise HTTPException(403, str(error)) from None

    @app.get("/update", response_model=schema.UpdateResponse)
    def updated() -> Any:
        """The state of the latest update that this process has begun."""
        return updates.state()
