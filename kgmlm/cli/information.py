"""``kgmlm info``."""

from __future__ import annotations

from kgmlm.cli.options import Json, RunArgument
from kgmlm.terminal import handled, print_json


@handled
def info(run: RunArgument, as_json: Json = False) -> None:
    """Say what a run is: graph, model, signals and their weights, training, last metrics, size."""
    from kgmlm.jobs.information import info as job

    found = job(run)
    if as_json:
        print_json(found.as_json())
        return
    lines = found.lines()
    width = max(map(len, lines))
    for heading, told in lines.items():
        for number, line in enumerate(told):
            print(f"{'' if number else heading:<{width}}  {line}")
