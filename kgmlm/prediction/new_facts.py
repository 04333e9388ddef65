"""The list of new facts that a run keeps for its page and its report, as `kgmlm complete` makes it."""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from kgmlm.core import files
from kgmlm.core.errors import KgmlmError
from kgmlm.core.progress import Watcher
from kgmlm.prediction.candidates import MANIFEST
from kgmlm.prediction.complete import complete, made_of
from kgmlm.prediction.listing import read_list
from kgmlm.runs.run import Run

FILE = "new-facts.parquet"  # in the run
QUERIES = 2000  # sampled from larger graphs: about half a minute on one core
FIRST = 200  # queries of a first sample, which people see meanwhile
PART = 100  # queries between updates of progress
SMALL = 5000  # training triples up to which a graph needs no first sample
MIN_PROBABILITY = 0.01  # the least probability that is listed
ENOUGH = 10  # facts needed for the share that came true to mean anything
TEST = "test"  # the split that the list knows nothing of, to see how many came true
Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class NewFacts:
    """The most probable triples that a run's graph lacks.

    Attributes:
        table: as :func:`~kgmlm.prediction.listing.read_list` reads it, best first.
        asked: queries whose answers they are.
        hidden: of those from a probability on, how many the test split has; None where there is none.
        report: the list beside the test split (:func:`~kgmlm.prediction.listing.measured`), if there is one.
    """

    table: pa.Table
    asked: int
    hidden: Row | None
    report: Row | None

    @classmethod
    def read(cls, run: Run, file: Path) -> NewFacts | None:
        """The list that is kept, if it is there and of the run as it is."""
        with suppress(KgmlmError, OSError):
            table, manifest = read_list(file)
            asked = (made_of(run.folder), run.options.scores, list(_known(run)))
            if tuple(manifest.get(key) for key in ("run", "scores", "known")) == asked:
                rows = (manifest.get("report") or {"by_probability": []})["by_probability"]
                hidden = next((row for row in reversed(rows) if row["listed"] >= ENOUGH), None)
                return cls(table, int(manifest["queries"]), hidden, manifest.get("report"))
        return None

    @classmethod
    def of(cls, run: Run, file: Path, watch: Watcher) -> NewFacts | None:
        """The list that is kept, or a new one.

        Raises:
            DataError: when the graph has no validation triples, which probabilities are estimated by.
            RunError: when another process is at work on it.
        """
        if (kept := cls.read(run, file)) is not None:
            return kept
        clear(file)
        complete(run.folder.path, file, progress=watch, **_keywords(run))
        clear_parts(file)
        return cls.read(run, file)


def clear(file: Path) -> None:
    """Remove a list, and its parts, which may be of another state of the run."""
    clear_parts(file)
    file.unlink(missing_ok=True)


def clear_parts(file: Path) -> None:
    """Remove the parts that a list was made of."""
    shutil.rmtree(f"{file}.parts", ignore_errors=True)


def progress(file: Path) -> float:
    """The share of the questions asked so far, for a list that a process is making."""
    folder = Path(f"{file}.parts")
    with suppress(OSError, ValueError, KeyError, TypeError):
        queries = int(files.parse_json((folder / MANIFEST).read_bytes())["queries"])
        return min(1.0, PART * len(list(folder.glob("part-*.parquet"))) / max(1, queries))
    return 0.0


def command(run: Run, file: Path, sample: int = QUERIES) -> list[str]:
    """The command that makes the list in a process of its own."""
    given = _keywords(run)
    return [
        *(sys.executable, "-m", "kgmlm", "complete", str(run.path.resolve()), "--output", str(file)),
        *("--min-probability", str(MIN_PROBABILITY), "--sample", str(sample)),
        *("--part-size", str(PART), "--quiet"),
        *("--known", ",".join(given["known"]), "--scores", run.options.scores),
        "--explain",
        *(["--report", TEST] if given["report"] else []),
    ]


def _known(run: Run) -> tuple[str, ...]:
    """The splits that are never listed."""
    return tuple(split for split in run.graph.splits if split != TEST)


def _keywords(run: Run) -> dict[str, Any]:
    """Keywords of :func:`~kgmlm.prediction.complete.complete` for the list."""
    return {
        "scores": run.options.scores,
        "precision": run.options.precision,
        "device": run.options.device,
        "min_probability": MIN_PROBABILITY,
        "sample": QUERIES,
        "typed": True,
        "functional": True,
        "explain": True,
        "known": list(_known(run)),
        "report": TEST if TEST in run.graph.splits else None,
    }
