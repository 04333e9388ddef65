"""``kgmlm convert``."""

from __future__ import annotations

from kgmlm.cli.options import FolderArgument
from kgmlm.terminal import handled


@handled
def convert(run: FolderArgument) -> None:
    """Convert a run folder that an older kgmlm wrote, in its place, with its reranker and checkpoints.

    It ranks as before, and an interrupted training can be continued.
    """
    from kgmlm.conversion import convert_run, converted
    from kgmlm.upkeep import writing

    with writing(run, "convert"):
        convert_run(run)
    print(converted(run))
