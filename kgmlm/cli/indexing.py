"""``kgmlm index``."""

from __future__ import annotations

from typing import Annotated

import typer

from kgmlm.cli.options import Device, FolderArgument, Json, Quiet
from kgmlm.terminal import handled, print_json, tell


@handled
def index(
    run: FolderArgument,
    factory: Annotated[str, typer.Option(help='A FAISS factory string such as "IVF4096,PQ64".')] = "auto",
    recall: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Search hard enough for this recall@10 against exact scoring."),
    ] = 0.99,
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Index a run's entity vectors with FAISS; `rank` and `evaluate` with --retrieve then score only a few.

    How hard it searches is measured on training queries, and so is whether it is quicker than exact scoring.
    """
    from kgmlm.jobs.indexing import index as job
    from kgmlm.watching import Bars

    record = job(
        run,
        factory=factory,
        recall=recall,
        device=device,
        progress=Bars(quiet),
    )
    if as_json:
        print_json(record)
        return
    print(
        f"index of {record['entities']:,} entities: {record['bytes'] / 2**20:.1f} MiB, "
        f"{record['seconds']:.1f} s, recall@10 {record['recall_at_10']:.3f} (effort {record['effort']})"
    )
    tell(record["why"])
    if record["ms_a_query"] > record["exact_ms_a_query"]:
        tell("exact scoring is quicker among so many entities: leave --retrieve out")
    if record["recall_at_10"] < recall:
        tell(f"recall@10 stays under {recall}; a finer --factory finds more")
