"""``kgmlm pack`` and ``kgmlm unpack``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kgmlm.cli.options import BatchSize, Device, Quiet, RunArgument
from kgmlm.terminal import handled


@handled
def pack(
    run: RunArgument,
    output: Annotated[
        Path | None,
        typer.Option(help="The file to write; by default RUN.kgmlm beside the run.", show_default=False),
    ] = None,
    no_kge: Annotated[
        bool, typer.Option("--no-kge", help="Leave out graph embeddings; other weights stay as they are.")
    ] = False,
    no_onnx: Annotated[
        bool, typer.Option("--no-onnx", help="Leave out what ONNX Runtime needs to rank without torch.")
    ] = False,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Fit probabilities to what the pack scores and keep them in it; RUN may then be a pack.",
        ),
    ] = False,
    device: Device = None,
    batch_size: BatchSize = 64,
    quiet: Quiet = False,
) -> None:
    """Pack a run into one file, with int8 weights, that every command opens like the run.

    A run's own probabilities are left out, since rounded weights score a little differently.
    """
    from kgmlm.jobs.packing import pack as job
    from kgmlm.watching import Bars

    made = job(
        run, output, kge=not no_kge, onnx=not no_onnx, calibrate=calibrate, batch_size=batch_size,
        device=device, progress=Bars(quiet),
    )  # fmt: skip
    print(f"{made}: {made.stat().st_size / 2**20:.1f} MiB")


@handled
def unpack(
    pack: Annotated[Path, typer.Argument(help="A file that `kgmlm pack` wrote.", show_default=False)],
    output: Annotated[Path, typer.Option(help="The run folder to write.", show_default=False)],
) -> None:
    """Make a run folder of a pack, to tune it or to train beside it."""
    from kgmlm.jobs.packing import unpack as job

    print(job(pack, output).path)
