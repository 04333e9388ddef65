"""The start page's new facts, looked for by a process of its own."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Literal

import pyarrow.compute as pc

from kgmlm.prediction.new_facts import FILE, NewFacts, clear, clear_parts, command
from kgmlm.prediction.suggest import teaching
from kgmlm.runs.feedback import Labels
from kgmlm.runs.run import Run

QUESTIONS = 200  # that are chosen at most to be judged
IDLE = 10  # how much other processes go before this one, from 0 to 19
Row = dict[str, Any]
Status = Literal["ready", "looking", "none"]


class FactFinder:
    """The most probable triples that a run's graph lacks; the first question for them begins the work.

    Args:
        keep: whether the list is kept in the run's folder, for the next service; else it lives as long as
            this one.
        is_current: whether the run's folder is as it was opened.
    """

    def __init__(self, run: Run, keep: bool, is_current: Callable[[], bool]) -> None:
        self.run, self.is_current = run, is_current
        self._own = None if keep else tempfile.TemporaryDirectory(prefix="kgmlm-")
        self.file = (run.folder.path if self._own is None else Path(self._own.name)) / FILE
        self._process: subprocess.Popen[str] | None = None
        self._found: NewFacts | None = None
        self._why = ""
        self._lock = threading.Lock()

    def page(
        self, relation: str | None, offset: int, limit: int, judged: Collection[Labels] | None = None
    ) -> Row:
        """Some of the facts, best first, as labels, names, probability and reason; or why there are none yet.

        Args:
            relation: the label of the one whose facts are asked for; None is all.
            judged: put first what would teach most if it were judged, without what is judged already.
        """
        with self._lock:
            status, found = self._look(), self._found
        if found is None:
            nothing: Row = {"asked": 0, "hidden": None, "total": 0, "relations": [], "facts": []}
            return {"status": status, "why": self._why, **nothing}
        counts = pc.value_counts(found.table.column("relation")).to_pylist()
        chosen = found.table
        if relation is not None:
            chosen = chosen.filter(pc.equal(chosen.column("relation"), relation))
        if judged is not None:
            chosen = chosen.take(teaching(chosen, min(len(chosen), QUESTIONS), judged))
        return {
            "status": status,
            "why": "",
            "asked": found.asked,
            "hidden": found.hidden,
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
            self._why = self._why or "the service is ending"
            if self._process is not None:
                self._process.kill()
                self._process.communicate()
                self._process = None
            if self._own is not None:
                self._own.cleanup()

    def _look(self) -> Status:
        """See how far the work is, and begin it where it has not begun."""
        if self._process is not None and self._process.poll() is None:
            return "looking"
        if self._found is None and not self._why:
            self._found = NewFacts.read(self.run, self.file)
            if self._found is not None:
                clear_parts(self.file)
        if self._found is None and not self._why and self._process is not None:
            said = (self._process.communicate()[1] or "").strip() or "the work was ended"
            self._why, self._process = said.splitlines()[-1].removeprefix("kgmlm: "), None
        if self._found is None and not self._why:
            self._begin()
        return "ready" if self._found is not None else "none" if self._why else "looking"

    def _begin(self) -> None:
        """Start the process, after what it left of another state of the run is gone."""
        if not self.is_current():
            self._why = "the run's folder has changed since it was opened"
            return
        threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}  # people's questions go first
        clear(self.file)
        try:
            self._process = subprocess.Popen(
                command(self.run, self.file), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, text=True, env=os.environ | threads,
            )  # fmt: skip
            os.setpriority(os.PRIO_PROCESS, self._process.pid, IDLE)
        except OSError as error:
            self._why = f"no process can be started: {error.strerror}"
