"""Pieces that workers make, and a process that has a Ray cluster of two nodes make them.

It is a process of its own, since Ray reads its token when it is imported, and keeps threads.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgmlm.core.errors import DataError, KgmlmError
from kgmlm.core.progress import Watcher
from kgmlm.core.workers import Make, T, Tick, Work, made_here

EVALUATED: dict[str, Any] = {"split": "train", "batch_size": 4, "by_relation": True}
ASKED = [("france", "capital", None), (None, "capital", "paris"), ("rome", "located_in", None)] * 3
LISTED: dict[str, Any] = {"known": ["valid"], "min_probability": 0.0, "part_size": 10}


def _node() -> str:
    """The address of the node that this process is on; empty without a cluster."""
    ray = sys.modules.get("ray")
    return str(ray.util.get_node_ip_address()) if ray is not None and ray.is_initialized() else ""


@dataclass(frozen=True)
class Files:
    """A file per piece; on the first try, pieces may end their process or refuse.

    Attributes:
        ending: the pieces in whose midst the process ends: once, or always.
        mistaken: whether no process can begin.
    """

    folder: Path
    ending: tuple[int, ...] = ()
    always: bool = False
    refused: tuple[int, ...] = ()
    mistaken: bool = False

    on_gpu = False

    def size(self, number: int) -> int:
        return number + 1

    def sent(self) -> Files:
        return self

    def begin(self, watch: Watcher) -> Make[int]:
        if self.mistaken:
            raise DataError("nothing can be made")
        (self.folder / f"begun-{os.getpid()}-{_node()}").touch()

        def make(number: int, advance: Tick) -> int:
            tried = self.folder / f"tried-{number}"
            if number in self.ending and (self.always or not tried.exists()):
                tried.touch()
                os._exit(9)
            if number in self.refused:
                raise DataError(f"{number} cannot be made")
            with (self.folder / f"made-{number}").open("a") as file:
                file.write("x")
            advance(self.size(number))
            return number * 10

        return make

    def made(self) -> dict[str, str]:
        return {p.name: p.read_text() for p in self.folder.glob("made-*")}


def sent_here(
    work: Work[T],
    numbers: Sequence[int],
    workers: int,
    watch: Watcher,
    advance: Tick,
    address: str | None = None,
) -> Generator[T]:
    """What a worker is sent is opened here."""
    assert workers == 2
    return made_here(pickle.loads(pickle.dumps(work.sent())), numbers, watch, advance)


PATIENCE = 300.0  # seconds
RAY = ("-c", "from ray.scripts.scripts import main; main()", "start", "--block", "--num-cpus", "1",
       "--object-store-memory", str(80 * 2**20), "--disable-usage-stats")  # fmt: skip


def children(of: int) -> dict[int, str]:
    """The processes below a process, with their command lines."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True)
    rows = [line.split(None, 2) for line in listed.stdout.splitlines()]
    results: dict[int, str] = {}
    below = {of}
    while below:
        new = {int(row[0]): row[2] for row in rows if int(row[1]) in below and len(row) > 2}
        results |= new
        below = set(new)
    return results


def stop(node: subprocess.Popen[bytes]) -> None:
    """End a node and all that it has begun, at once."""
    for pid in (*children(node.pid), node.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    node.wait()


@contextmanager
def nodes(
    folder: Path, port: int, environment: Mapping[str, str] | None = None
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two nodes of a cluster, at 127.0.0.2 and 127.0.0.3; the first one is its head.

    Ray's own files are in a folder of a short name: the path of a socket has at most 107 bytes.
    """
    begun: list[subprocess.Popen[bytes]] = []
    own = Path(tempfile.mkdtemp(prefix="ray-"))
    head = ("--head", "--node-ip-address", "127.0.0.2", "--port", str(port), "--include-dashboard", "false",
            "--temp-dir", str(own))  # fmt: skip
    other = ("--address", f"127.0.0.2:{port}", "--node-ip-address", "127.0.0.3")
    try:
        for which in (head, other):
            with (folder / f"node-{len(begun)}.log").open("wb") as log:
                begun.append(
                    subprocess.Popen([sys.executable, *RAY, *which], stdout=log, stderr=log, env=environment)
                )
            until(lambda: _started(folder, begun))
        yield begun
    finally:
        for node in reversed(begun):
            stop(node)
        shutil.rmtree(own, ignore_errors=True)


def _started(folder: Path, begun: list[subprocess.Popen[bytes]]) -> bool:
    """Return whether the node that was started last takes work."""
    log = log_of(folder, len(begun) - 1)
    assert begun[-1].poll() is None, log
    return "Ray runtime started" in log


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


def report_of(found: Any) -> dict[str, Any]:
    """A report but for what differs by who has made it."""
    return {k: v for k, v in found.values.items() if k not in ("seconds", "processes", "command")}


def main() -> None:
    """Make pieces in a folder and a list of a run; writes what came of it to found.json."""
    import ray

    import kgmlm
    from kgmlm.core.workers import made_on_ray

    folder, run = map(Path, sys.argv[1:3])
    ray.init(address=sys.argv[3], log_to_driver=False, logging_level=logging.ERROR)

    def error(work: Files, count: int) -> list[str]:
        work.folder.mkdir()
        try:
            list(made_on_ray(work, range(count), 1, Watcher()))
        except KgmlmError as error:
            return [type(error).__name__, str(error)]
        return []

    lost = Files(folder / "lost", ending=(2, 5))
    lost.folder.mkdir()
    results: dict[str, Any] = {"sizes": sorted(made_on_ray(lost, range(7), 2, Watcher()))}
    results["refused"] = error(Files(folder / "refused", refused=(1,)), 3)
    results["ending"] = error(Files(folder / "ending", ending=(0,), always=True), 2)
    asked: list[int] = []

    def told(what: str, n: int, total: int) -> None:
        if what == "asking queries":
            asked.append(n)

    made = kgmlm.complete(run, folder / "there", ray="local", workers=2, progress=told, **LISTED)
    results |= {"asked": sum(asked), "queries": made["queries"]}
    by_ray: dict[str, Any] = {"ray": "local", "workers": 2, "progress": False}
    results["report"] = report_of(kgmlm.evaluate(run, device="cpu", **by_ray, **EVALUATED))
    results["ranked"] = kgmlm.open_run(run, device="cpu").rank(ASKED, k=3, **by_ray).to_dict("records")
    ray.shutdown()
    (folder / "found.json").write_text(json.dumps(results))
