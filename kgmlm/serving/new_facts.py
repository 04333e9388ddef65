"""The new facts of the start page: a run of `kgmlm complete` in a process of its own, kept with the run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from kgmlm.core.errors import KgmlmError
from kgmlm.prediction.complete import made_of
from kgmlm.prediction.listing import read_list
from kgmlm.runs.run import Run

FILE = "new-facts.parquet"
QUERIES = 2000  # of larger graphs: a sample, some half a minute of a core
LEAST = 0.01  # the least probability that is listed
ENOUGH = 10  # facts of which it says something how many came true
TEST = "test"
IDLE = 10  # how much other processes go before this one, from 0 to 19
Row = dict[str, Any]
Status = Literal["ready", "looking", "none"]


class NewFacts:
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
        self._table: pa.Table | None = None
        self._asked = 0  # queries
        self._hidden: Row | None = None
        self._why = ""
        self._lock = threading.Lock()

    def page(self, relation: str | None, offset: int, limit: int) -> Row:
        """Some of the facts, best first, as labels, names, probability and reason; or why there are none yet.

        Args:
            relation: the label of the one whose facts are asked for; None is all.
        """
        with self._lock:
            status = self._look()
            table = self._table
        if table is None:
            nothing: Row = {"asked": 0, "hidden": None, "total": 0, "relations": [], "facts": []}
            return {"status": status, "why": self._why, **nothing}
        counts = pc.value_counts(table.column("relation")).to_pylist()
        chosen = table if relation is None else table.filter(pc.equal(table.column("relation"), relation))
        return {
            "status": status,
            "why": "",
            "asked": self._asked,
            "hidden": self._hidden,
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
        if self._table is not None:
            return "ready"
        if self._why:
            return "none"
        if self._process is None:
            if self._read():
                return "ready"
            self._begin()
        elif self._process.poll() is not None:
            said = (self._process.communicate()[1] or "").strip()
            self._process = None
            if not self._read():
                self._why = said.splitlines()[-1].removeprefix("Error: ") if said else "the work was ended"
        return "none" if self._why else "looking"

    def _read(self) -> bool:
        """Take the list that is there, if it is of this run as it is."""
        with suppress(KgmlmError, OSError):
            table, manifest = read_list(self.file)
            asked = (made_of(self.run.folder), self.run.options.scores, list(self._known))
            if tuple(manifest.get(key) for key in ("run", "scores", "known")) == asked:
                self._table, self._asked = table, int(manifest["queries"])
                self._hidden = _worth_telling(manifest.get("report"))
        return self._table is not None

    @property
    def _known(self) -> tuple[str, ...]:
        """The splits that are never listed: what a test split has may be found."""
        return tuple(split for split in self.run.graph.splits if split != TEST)

    def _begin(self) -> None:
        """Start `kgmlm complete`, after what it left of another state of the run is gone."""
        if not self.is_current():
            self._why = "the run's folder has changed since it was opened"
            return
        shutil.rmtree(f"{self.file}.parts", ignore_errors=True)
        self.file.unlink(missing_ok=True)
        scores, signals = self.run.options.scores, self.run.folder.tuned.mixture.signals
        more = ["--explain"] if scores == "all" and "rules" in signals else []
        if TEST in self.run.graph.splits:
            more += ["--known", ",".join(self._known), "--report", TEST]
        command = [
            *(sys.executable, "-m", "kgmlm", "complete", str(self.run.path.resolve())),
            *("--output", str(self.file), "--min-probability", str(LEAST), "--sample", str(QUERIES)),
            *("--functional", "--scores", scores, "--quiet", *more),
        ]
        threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}  # people's questions go first
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                text=True, env=os.environ | threads,
            )  # fmt: skip
            os.setpriority(os.PRIO_PROCESS, self._process.pid, IDLE)
        except OSError as error:
            self._why = f"no process can be started: {error.strerror}"


def _worth_telling(report: Row | None) -> Row | None:
    """How many of the most probable facts the test split has, of as few as say something."""
    rows = [] if report is None else report["by probability"]
    return next((row for row in reversed(rows) if row["listed"] >= ENOUGH), None)
