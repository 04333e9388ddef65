"""Work on a Ray cluster of two nodes, of which workers and a node are killed: part of `make soak`.

Both nodes are on this machine, at 127.0.0.2 and 127.0.0.3. Lists, and ranks of an evaluation, must be those
of one process, byte for byte.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

from conftest import TINY_SETTINGS  # noqa: E402
from raying import PATIENCE, children, nodes, stop, until  # noqa: E402

Killing = Callable[[list["subprocess.Popen[bytes]"]], str]


def a_worker(begun: list[subprocess.Popen[bytes]]) -> str:
    """Kill one of the processes that make parts."""
    pid = next(pid for pid, name in children(begun[1].pid).items() if name.startswith("ray::_Worker"))
    os.kill(pid, signal.SIGKILL)
    return f"worker {pid}"


def a_node(begun: list[subprocess.Popen[bytes]]) -> str:
    """Kill the second node with its worker."""
    stop(begun[1])
    return "a node"


def listed(run: Path, output: Path, *options: str) -> subprocess.Popen[bytes]:
    """Begin to list the triples of a run."""
    asked = ("--part-size", "2", "--typed", "--min-probability", "0", "--known", "valid", "--device", "cpu")
    command = [sys.executable, "-m", "kgmlm", "complete", str(run), "--output", str(output), "-q"]
    return subprocess.Popen([*command, *asked, *options], stderr=subprocess.PIPE)


def check(run: Path, folder: Path, killing: Killing, port: int) -> str:
    """Kill something midway; what was, or what is wrong."""
    here, there = folder / "here", folder / "there"
    if listed(run, here).wait():
        raise SystemExit("one process lists nothing")
    with nodes(folder, port) as begun:
        address = ("--ray", f"127.0.0.2:{port}", "--workers", "2")
        with listed(run, there, *address) as process:
            parts = there.with_name("there.parts")
            ready = ("ray::_Worker",)
            until(lambda: process.poll() is not None or (len(list(parts.glob("part-*"))) >= 10
                  and any(name.startswith(ready) for name in children(begun[1].pid).values())))  # fmt: skip
            if process.poll() is not None:
                raise SystemExit(f"it ended before: {process.communicate()[1].decode()}")
            made = len(list(parts.glob("part-*")))
            what = killing(begun)
            _, message = process.communicate(timeout=PATIENCE)
            if process.returncode:
                raise SystemExit(f"{what} was killed, and: {message.decode()}")
    total = len(list(parts.glob("part-*")))
    if here.read_bytes() != there.read_bytes():
        raise SystemExit(f"{what} was killed after {made} parts, and the list is another")
    return f"{what} was killed after {made} of {total} parts: the same"


def evaluated(run: Path, ranks: Path, *options: str) -> subprocess.Popen[bytes]:
    """Begin to evaluate a run."""
    asked = ("--split", "train", "--batch-size", "1", "--device", "cpu", "--ranks", str(ranks), "-q")
    command = [sys.executable, "-m", "kgmlm", "evaluate", str(run), *asked, *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def check_evaluation(run: Path, folder: Path, killing: Killing, port: int) -> str:
    """Kill something while an evaluation ranks, or its workers begin; what was, or what is wrong."""
    here, there = folder / "here.parquet", folder / "there.parquet"
    if evaluated(run, here).wait():
        raise SystemExit("one process evaluates nothing")
    with nodes(folder, port) as begun:
        address = ("--ray", f"127.0.0.2:{port}", "--workers", "2")
        with evaluated(run, there, *address) as process:
            ready = "ray::_Worker"
            until(
                lambda: (
                    process.poll() is not None
                    or any(name.startswith(ready) for name in children(begun[1].pid).values())
                )
            )
            if process.poll() is not None:
                raise SystemExit(f"it ended before: {process.communicate()[1].decode()}")
            what = killing(begun)
            _, message = process.communicate(timeout=PATIENCE)
            if process.returncode:
                raise SystemExit(f"{what} was killed, and: {message.decode()}")
    if here.read_bytes() != there.read_bytes():
        raise SystemExit(f"{what} was killed during an evaluation, and the ranks are others")
    return f"{what} was killed during an evaluation: the same ranks"


def main() -> None:
    """Kill a worker, then a node, in a completion and in an evaluation."""
    if find_spec("ray") is None:
        print("Ray is not installed: no cluster was tried")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the nodes end with it
    os.environ |= {
        "PYTHONPATH": str(TESTS.parent), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="kgmlm-ray-") as name:
        run = Path(name) / "run"
        train = (
            "train",
            "--dataset",
            "toy",
            "--model",
            "scratch",
            "-q",
            *TINY_SETTINGS,
            "--output",
            str(run),
        )
        subprocess.run([sys.executable, "-m", "kgmlm", *train, "--max-steps", "20"], check=True)
        checks = [(how, killing) for how in (check, check_evaluation) for killing in (a_worker, a_node)]
        for i, (how, killing) in enumerate(checks):
            folder = Path(name) / str(i)
            folder.mkdir()
            print(how(run, folder, killing, 26379 + i), flush=True)


if __name__ == "__main__":
    main()
