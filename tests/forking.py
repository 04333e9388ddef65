"""Runs the command as a process of its own, forked from one that has imported the large libraries before.

A start then costs a tenth of what imports cost. Nothing of kgmlm is imported before the fork, so the command
itself begins as it always does; what a start imports is tested with a process from nothing.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

HEAVY = (
    "torch", "torch.utils.data", "pandas", "pyarrow.parquet", "pyarrow.csv", "accelerate",
    "safetensors.torch",
    "transformers.models.auto.modeling_auto", "transformers.models.bert.modeling_bert", "rich.progress",
    "transformers.models.auto.tokenization_auto", "transformers.tokenization_utils_tokenizers", "typer",
)  # fmt: skip


class Forker:
    """Starts commands, one at a time, from one warm process."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.socket, theirs = socket.socketpair()
        self.server = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()]
        )
        theirs.close()
        self.file = self.socket.makefile("rw")

    def run(
        self, arguments: list[str], cwd: Path | None, environment: dict[str, str], timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """What ``subprocess.run`` would give of ``python -m kgmlm.cli``.

        Raises:
            TimeoutError: when it takes longer than that.
        """
        paths = [Path(self.folder.name) / name for name in ("out", "err")]
        asked = {
            "arguments": arguments,
            "cwd": str(cwd or Path.cwd()),
            "environment": environment,
            "paths": [str(p) for p in paths],
            "timeout": int(timeout),
        }
        self.file.write(json.dumps(asked) + "\n")
        self.file.flush()
        code = json.loads(self.file.readline())
        out, err = (p.read_text("utf-8") for p in paths)
        if code == -signal.SIGALRM:
            raise TimeoutError(f"{arguments} took more than {timeout} s: {err}")
        return subprocess.CompletedProcess(["kgmlm", *arguments], code, out, err)

    def close(self) -> None:
        """End the warm process."""
        self.file.close()
        self.socket.close()
        self.server.terminate()
        self.server.wait()
        self.folder.cleanup()


def serve(connection: socket.socket) -> None:
    """Fork a child for each command that is asked for, and answer with its exit code."""
    import importlib

    for name in HEAVY:
        importlib.import_module(name)
    file = connection.makefile("rw")
    for line in file:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            _run(asked)
        _, status = os.waitpid(child, 0)
        file.write(json.dumps(os.waitstatus_to_exitcode(status)) + "\n")
        file.flush()


def _run(asked: dict[str, Any]) -> None:
    """Become the command; never returns."""
    signal.alarm(asked["timeout"])
    for target, (path, flags) in enumerate(
        [("/dev/null", os.O_RDONLY), *((p, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for p in asked["paths"])]
    ):
        os.dup2(os.open(path, flags), target)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["cwd"])
    sys.path[0] = ""
    sys.argv = ["kgmlm", *asked["arguments"]]
    code = 0
    try:
        runpy.run_module("kgmlm.cli", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
