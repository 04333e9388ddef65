"""The options of a report."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kgmlm.core.options import ProgressOptions, about, option
from kgmlm.runs.options import DeviceOptions

if TYPE_CHECKING:
    from kgmlm.runs.run import Run


@dataclass(frozen=True, kw_only=True)
class ReportOptions(DeviceOptions, ProgressOptions):
    """Options of :func:`kgmlm.report`."""

    output: str | Path = field(
        default="report.html", kw_only=False, metadata=about("The HTML file to write.", command=Path)
    )
    ranks: str | Path | None = option(
        None,
        "Ranks that `evaluate` wrote for this run. By default, the stored ones if the run has not changed "
        "since; else the run is evaluated.",
        command=Path,
        is_input=True,
    )
    split: str | None = option(None, "The split whose triples to ask; by default test, else valid.")
    max_triples: int | None = option(None, "Ask only this many triples, a seeded sample.", at_least=1)
    compare: Run | str | Path | None = option(
        None, "Another run on the same graph, shown beside it.", command=Path
    )
