"""``kgmlm serve``."""

from __future__ import annotations

from typing import Annotated

import typer

from kgmlm.cli.options import (
    MOST,
    AllowSelf,
    BatchSize,
    Device,
    Effort,
    Functional,
    Precision,
    Quiet,
    Rerank,
    Retrieve,
    RunArgument,
    RuntimeOption,
    Scores,
    Typed,
)
from kgmlm.terminal import handled, tell

Window = Annotated[
    float,
    typer.Option(min=0, max=1000, help="Milliseconds that the first query of a batch waits for others."),
]

Writable = Annotated[
    bool,
    typer.Option(
        "--writable",
        help="Let clients add entities, which are kept until the process ends; with --no-token, write "
        "everybody's judgments to the run, too.",
    ),
]


@handled
def serve(
    run: RunArgument,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where it listens; 0 takes a free port.")
    ] = 8000,
    host: Annotated[
        str, typer.Option(help="By default only this machine can ask; others need --token or --no-token.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(
            envvar="KGMLM_TOKEN",
            help="What clients must send ('Authorization: Bearer TOKEN'); better set as KGMLM_TOKEN.",
            show_default=False,
            show_envvar=False,
        ),
    ] = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Let everybody in who reaches the address.")
    ] = False,
    writable: Writable = False,
    batch_size: BatchSize = 64,
    window: Window = 5.0,
    queue: Annotated[
        int, typer.Option(min=1, max=MOST, help="Queries that may wait; more are answered 503.")
    ] = 1024,
    scores: Scores = "all",
    allow_self: AllowSelf = False,
    typed: Typed = False,
    functional: Functional = False,
    rerank: Rerank = None,
    retrieve: Retrieve = None,
    effort: Effort = None,
    precision: Precision = "fp32",
    device: Device = None,
    runtime: RuntimeOption = "auto",
    log: Annotated[bool, typer.Option("--log", help="Print each request.")] = False,
    quiet: Quiet = False,
) -> None:
    """Serve a run as a JSON API until Ctrl-C or SIGTERM: /rank, /explain, /classify, /entities and more.

    /docs describes it. Queries that come at the same time share forward passes.
    """
    from kgmlm.jobs.serving import serve as job
    from kgmlm.run import open_run
    from kgmlm.watching import Bars

    opened = open_run(
        run,
        scores=scores,
        allow_self=allow_self,
        typed=typed,
        functional=functional,
        rerank=rerank,
        retrieve=retrieve,
        effort=effort,
        precision=precision,
        device=device,
        runtime=runtime,
    )
    job(
        opened,
        host=host,
        port=port,
        token=token,
        no_token=no_token,
        writable=writable,
        batch_size=batch_size,
        window=window / 1000,
        queue=queue,
        log=log,
        progress=Bars(quiet),
        ready=lambda url: tell(f"{run} is served at {url}; {url}/docs describes it; Ctrl-C ends it"),
    )
