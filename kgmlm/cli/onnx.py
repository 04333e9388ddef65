"""``kgmlm onnx``."""

from __future__ import annotations

from kgmlm.cli.options import RunArgument
from kgmlm.terminal import handled


@handled
def onnx(run: RunArgument) -> None:
    """Make a run ready for ONNX Runtime: then it ranks and is served without torch, and starts in less time.

    Written is the structure of its model, not its weights; once both give the same scores.
    """
    from kgmlm.jobs.onnx import onnx as job

    made = job(run)
    print(f"{made}: {made.stat().st_size / 2**10:.0f} KiB")
