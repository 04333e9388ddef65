"""``kgmlm train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from kgmlm.cli.options import MOST, Dataset, Decay, MaxSteps, Quiet, SkipHeader
from kgmlm.terminal import INPUT, handled


@handled
def train(
    output: Annotated[Path, typer.Option(help="The run folder to write.", show_default=False)],
    dataset: Dataset = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A masked LM by path or hub name, or `scratch` for a small BERT trained on the graph."
        ),
    ] = None,
    preset: Annotated[
        Literal["quick", "balanced", "best", "zero-shot", "plain"] | None,
        typer.Option(
            help="Stages and settings that suit the graph: quick (text, rules, types), balanced (with KGE), "
            "best (longer, asks back, with a reranker), zero-shot (for unseen entities: "
            "without KGE, asks back, with a reranker); plain: text by the settings "
            "as they are. By default balanced, or plain with --config or an objective.",
            show_default=False,
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            max=MOST,
            help="Time for all stages; a few steps are timed first, and epochs chosen to fit.",
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings as TOML."), INPUT] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE: change one setting, such as training.epochs=5."),
    ] = None,
    max_steps: MaxSteps = None,
    decay: Decay = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an older run.")] = False,
    tracker: Annotated[str | None, typer.Option(help="An accelerate tracker, such as tensorboard.")] = None,
    skip_header: SkipHeader = False,
    quiet: Quiet = False,
) -> None:
    """Train a masked LM to rank the entities of a graph.

    Ctrl-C saves a checkpoint and stops (exit code 130, SIGTERM 143); --resume continues, to the same losses.
    """
    from kgmlm.jobs.training import train as job
    from kgmlm.watching import Bars

    job(
        dataset,
        model,
        output,
        preset=preset,
        minutes=minutes,
        config=config,
        set_=set_ or [],
        max_steps=max_steps,
        decay=decay,
        resume=resume,
        overwrite=overwrite,
        tracker=tracker,
        skip_header=skip_header,
        progress=Bars(quiet),
    )
