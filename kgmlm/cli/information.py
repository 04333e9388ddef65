"""``kgmlm info``."""

from __future__ import annotations

from kgmlm.cli.options import Json, RunArgument
from kgmlm.terminal import handled, print_json, print_lines


@handled
def info(run: RunArgument, as_json: Json = False) -> None:
    """Say what a run is: graph, model, signals and their weights, training, last metrics, size."""
    from kgmlm.jobs.information import info as job

    found = job(run)
    if as_json:
        print_json(found.as_json())
    else:
        print_lines(found.lines())
