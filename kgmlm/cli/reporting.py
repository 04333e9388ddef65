"""``kgmlm report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kgmlm.cli.options import MOST, BatchSize, Device, Quiet, RunArgument
from kgmlm.terminal import INPUT, handled


@handled
def report(
    run: RunArgument,
    output: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    ranks: Annotated[
        Path | None,
        typer.Option(
            help="Ranks that `evaluate` wrote for this run; by default those that it has kept, if the run is "
            "still the same, else the run is evaluated.",
            show_default=False,
        ),
        INPUT,
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Whose triples to ask; by default test, else valid.", show_default=False),
    ] = None,
    max_triples: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Ask only this many triples, a seeded sample.")
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(help="Another run on the same graph, shown beside it.", show_default=False)
    ] = None,
    batch_size: BatchSize = 64,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Write a report of a run as one HTML file: curves, metrics, calibration, weights, questions, audit."""
    from kgmlm.jobs.reporting import report as job
    from kgmlm.watching import Bars

    made = job(
        run,
        output,
        ranks=ranks,
        split=split,
        max_triples=max_triples,
        compare=compare,
        batch_size=batch_size,
        device=device,
        progress=Bars(quiet),
    )
    print(f"the report is in {made} ({made.stat().st_size / 1000:,.0f} kB); open it in a browser")
