"""``kgmlm feedback``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kgmlm.cli.options import FolderArgument, Json
from kgmlm.terminal import handled, print_json, tell


@handled
def feedback(
    run: FolderArgument,
    output: Annotated[Path, typer.Option(help="The TSV file to write.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Write the answers that were accepted (1) and rejected (0) in the page of `kgmlm serve`, as triples.

    The file has head, relation, tail and that label: `kgmlm classify` reads it, and datasets do.
    """
    from kgmlm.jobs.feedback import feedback as job
    from kgmlm.kg import counted

    done = job(run, output)
    if done["damaged"]:
        tell(f"{counted(done['damaged'], 'line')} of {run / 'feedback.jsonl'} cannot be read")
    if as_json:
        print_json(done)
    else:
        print(f"{output}: {done['accepted']:,} accepted, {done['rejected']:,} rejected")
