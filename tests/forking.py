"""Runs the command as a process of its own, forked from one that has imported the large libraries before.

A start then costs a tenth of what imports cost. Nothing of kgmlm is imported before the fork, so the command
itself begins as it always does; what a start imports is tested with a process from nothing. Commands may also
start together, as `torchrun` starts them, without a process of its own.
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


Started = tuple[list[str], dict[str, str]]  # arguments, or "-c" and a program; the environment


def ranks(count: int) -> list[dict[str, str]]:
    """The environments of processes that do a job together on this machine, on CPUs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    of_all = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count),
              "LOCAL_WORLD_SIZE": str(count), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}  # fmt: skip
    return [{**of_all, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


class Forker:
    """Starts commands from one warm process, and waits for them."""

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
        """Return the result of ``python -m kgmlm``, as ``subprocess.run`` has it.

        Raises:
            TimeoutError: when it takes longer than that.
        """
        return self.run_together([(arguments, environment)], cwd, timeout)[0]

    def run_together(
        self, started: list[Started], cwd: Path | None = None, timeout: float = 300
    ) -> list[subprocess.CompletedProcess[str]]:
        """The same of several that run at the same time."""
        folder = Path(self.folder.name)
        paths = [[str(folder / f"{kind}-{n}") for kind in ("out", "err")] for n in range(len(started))]
        asked = [
            {
                "arguments": arguments,
                "cwd": str(cwd or Path.cwd()),
                "environment": environment,
                "paths": mine,
                "timeout": int(timeout),
            }
            for (arguments, environment), mine in zip(started, paths, strict=True)
        ]
        self.file.write(json.dumps(asked) + "\n")
        self.file.flush()
        done = []
        codes = json.loads(self.file.readline())
        for (arguments, _), code, mine in zip(started, codes, paths, strict=True):
            out, err = (Path(p).read_text("utf-8") for p in mine)
            if code == -signal.SIGALRM:
                raise TimeoutError(f"{arguments} took more than {timeout} s: {err}")
            done.append(subprocess.CompletedProcess(["kgmlm", *arguments], code, out, err))
        return done

    def close(self) -> None:
        """End the warm process."""
        self.file.close()
        self.socket.close()
        self.server.terminate()
        self.server.wait()
        self.folder.cleanup()


def serve(connection: socket.socket) -> None:
    """Fork children for the commands that are asked for, and answer with their exit codes."""
    import importlib

    for name in HEAVY:
        importlib.import_module(name)
    file = connection.makefile("rw")
    for line in file:
        children = []
        for asked in json.loads(line):
            children.append(os.fork())
            if not children[-1]:
                _run(asked)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        file.write(json.dumps(codes) + "\n")
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
        if asked["arguments"][0] == "-c":
            exec(asked["arguments"][1], {"__name__": "__main__"})
        else:
            runpy.run_module("kgmlm", run_name="__main__", alter_sys=True)
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
