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
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

from conftest import TINY_SETTINGS  # noqa: E402

PATIENCE = 300.0  # seconds
RAY = ("-c", "from ray.scripts.scripts import main; main()", "start", "--block", "--num-cpus", "1",
       "--object-store-memory", str(80 * 2**20), "--disable-usage-stats")  # fmt: skip
Killing = Callable[[list["subprocess.Popen[bytes]"]], str]


def children(of: int) -> dict[int, str]:
    """The processes below a process, with their command lines."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True)
    rows = [line.split(None, 2) for line in listed.stdout.splitlines()]
    found: dict[int, str] = {}
    below = {of}
    while below:
        new = {int(row[0]): row[2] for row in rows if int(row[1]) in below and len(row) > 2}
        found |= new
        below = set(new)
    return found


def stop(node: subprocess.Popen[bytes]) -> None:
    """End a node and all that it has begun, at once."""
    for pid in (*children(node.pid), node.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    node.wait()


@contextmanager
def nodes(folder: Path, port: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two nodes of a cluster; the first one is its head."""
    begun: list[subprocess.Popen[bytes]] = []
    head = ("--head", "--node-ip-address", "127.0.0.2", "--port", str(port), "--include-dashboard", "false",
            "--temp-dir", str(folder))  # fmt: skip
    other = ("--address", f"127.0.0.2:{port}", "--node-ip-address", "127.0.0.3")
    try:
        for which in (head, other):
            with (folder / f"node-{len(begun)}.log").open("wb") as log:
                begun.append(subprocess.Popen([sys.executable, *RAY, *which], stdout=log, stderr=log))
            until(lambda: "Ray runtime started" in log_of(folder, len(begun) - 1))
        yield begun
    finally:
        for node in reversed(begun):
            stop(node)


def log_of(folder: Path, number: int) -> str:
    return (folder / f"node-{number}.log").read_text("utf-8", "replace")


def until(true: Callable[[], bool]) -> None:
    """Wait for something.

    Raises:
        TimeoutError: when it does not come.
    """
    end = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > end:
            raise TimeoutError("it takes too long")
        time.sleep(0.02)


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
    command = [sys.executable, "-m", "kgmlm.cli", "complete", str(run), "--output", str(output), "-q"]
    return subprocess.Popen([*command, *asked, *options], stderr=subprocess.PIPE)


def check(run: Path, folder: Path, killing: Killing, port: int) -> str:
    """Kill something midway; what was, or what is wrong."""
    here, there = folder / "here", folder / "there"
    if listed(run, here).wait():
        raise SystemExit("one process lists nothing")
    with nodes(folder, port) as begun:
        address = ("--engine", "ray", "--workers", "2", "--address", f"127.0.0.2:{port}")
        with listed(run, there, *address) as process:
            parts = there.with_name("there.parts")
            ready = ("ray::_Worker",)
            until(lambda: process.poll() is not None or (len(list(parts.glob("part-*"))) >= 10
                  and any(name.startswith(ready) for name in children(begun[1].pid).values())))  # fmt: skip
            if process.poll() is not None:
                raise SystemExit(f"it ended before: {process.communicate()[1].decode()}")
            made = len(list(parts.glob("part-*")))
            what = killing(begun)
            _, said = process.communicate(timeout=PATIENCE)
            if process.returncode:
                raise SystemExit(f"{what} was killed, and: {said.decode()}")
    total = len(list(parts.glob("part-*")))
    if here.read_bytes() != there.read_bytes():
        raise SystemExit(f"{what} was killed after {made} parts, and the list is another")
    return f"{what} was killed after {made} of {total} parts: the same"


def evaluated(run: Path, ranks: Path, *options: str) -> subprocess.Popen[bytes]:
    """Begin to evaluate a run."""
    asked = ("--split", "train", "--batch-size", "1", "--device", "cpu", "--ranks", str(ranks), "-q")
    command = [sys.executable, "-m", "kgmlm.cli", "evaluate", str(run), *asked, *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def check_evaluation(run: Path, folder: Path, killing: Killing, port: int) -> str:
    """Kill something while an evaluation ranks, or its workers begin; what was, or what is wrong."""
    here, there = folder / "here.parquet", folder / "there.parquet"
    if evaluated(run, here).wait():
        raise SystemExit("one process evaluates nothing")
    with nodes(folder, port) as begun:
        address = ("--engine", "ray", "--workers", "2", "--address", f"127.0.0.2:{port}")
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
            _, said = process.communicate(timeout=PATIENCE)
            if process.returncode:
                raise SystemExit(f"{what} was killed, and: {said.decode()}")
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
        subprocess.run([sys.executable, "-m", "kgmlm.cli", *train, "--max-steps", "20"], check=True)
        checks = [(how, killing) for how in (check, check_evaluation) for killing in (a_worker, a_node)]
        for i, (how, killing) in enumerate(checks):
            folder = Path(name) / str(i)
            folder.mkdir()
            print(how(run, folder, killing, 26379 + i), flush=True)


if __name__ == "__main__":
    main()
