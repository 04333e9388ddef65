"""``kgmlm onnx``."""

from __future__ import annotations

from kgmlm.cli.options import FolderArgument
from kgmlm.terminal import handled


@handled
def onnx(run: FolderArgument) -> None:
    """Make a run ready for ONNX Runtime: then it ranks and is served without torch, and starts in less time.

    It writes the structure of the model, not its weights, if torch and ONNX Runtime give the same scores.
    """
    from kgmlm.jobs.onnx import onnx as job

    made = job(run)
    print(f"{made}: {made.stat().st_size / 2**10:.0f} KiB")
