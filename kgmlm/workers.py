"""Numbered pieces of work: made in this process, in several, or by the workers of a Ray cluster.

Knows nothing of what is made. A worker may end in the midst of a piece, which another then begins again: so
what makes a piece must leave the same behind however often it is begun.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from typing import Any, Literal, Protocol

from kgmlm.kg import ConfigError, RunError
from kgmlm.watching import Watcher

Engine = Literal["local", "ray"]
PATIENCE = 20.0  # seconds that a cluster has to answer
SLOW = 60.0  # seconds after which it is said that no worker begins
STORE = 80 * 2**20  # bytes of the object store of a cluster on this machine, near the least that Ray takes
FEWER = "the same command continues, best with fewer --workers"


class Work(Protocol):
    """What pieces are of; it is sent to each worker, and begun once there."""

    def begin(self, watch: Watcher) -> Callable[[int], int]:
        """Open what all pieces need; gives what makes a piece, and says how large it was."""


def check_engine(engine: str, address: str | None) -> None:
    """Refuse, before anything is opened, what cannot be.

    Raises:
        ConfigError: for an unknown engine, one that is not installed, or an address of none.
    """
    if engine not in ("local", "ray"):
        raise ConfigError(f"an engine is local or ray, not {engine}")
    if engine == "ray" and find_spec("ray") is None:
        raise ConfigError("--engine ray needs Ray; pip install 'kgmlm[ray]' installs it")
    if address is not None and engine != "ray":
        raise ConfigError("--address is of a Ray cluster, so it goes with --engine ray")
    if address is not None:
        _host_and_port(address)


def made_here(work: Work, numbers: Sequence[int], watch: Watcher) -> Generator[int]:
    """Make pieces in this process; yields the size of each."""
    make = work.begin(watch)
    for number in numbers:
        yield make(number)


_make: Callable[[int], int] | None = None  # of a worker process


def _begin(work: Work, threads: int) -> None:
    import torch

    global _make
    torch.set_num_threads(threads)
    _make = work.begin(Watcher())


def _made(number: int) -> int:
    assert _make is not None
    return _make(number)


def made_in_processes(work: Work, numbers: Sequence[int], workers: int) -> Generator[int]:
    """Make pieces in processes of their own, which share this one's threads; yields the size of each.

    Raises:
        RunError: when a process ends that was not told to.
    """
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    import torch

    count = min(workers, len(numbers))
    threads = max(1, torch.get_num_threads() // count)
    pool = ProcessPoolExecutor(count, get_context("spawn"), _begin, (work, threads))
    try:
        for future in as_completed([pool.submit(_made, number) for number in numbers]):
            yield future.result()
    except BrokenProcessPool:
        raise RunError(f"a worker process ended, perhaps for lack of memory; {FEWER}") from None
    finally:
        pool.shutdown(cancel_futures=True)


def made_on_ray(
    work: Work,
    numbers: Sequence[int],
    workers: int,
    watch: Watcher,
    *,
    address: str | None = None,
    gpus: int = 0,
) -> Generator[int]:
    """Make pieces by Ray's workers, each of one CPU; yields the size of each.

    A piece whose worker has ended is made by another one.

    Args:
        workers: at most so many; fewer while the cluster has no more to give.
        address: HOST:PORT of a cluster that this machine is a node of; None is the one that this process has
            joined, or else one of this machine alone, which ends with the work.
        gpus: of each worker.

    Raises:
        RunError: when no cluster answers, or workers end again and again.
    """
    count = min(workers, len(numbers))
    # Ray prints on stdout which workers have died.
    with redirect_stdout(sys.stderr), _cluster(address, count):
        crew = _Crew(work, numbers, count, watch, gpus)
        try:
            yield from crew.made()
        finally:
            crew.dismiss()


class _Worker:
    """A process of a cluster that makes pieces."""

    def begin(self, work: Work) -> None:
        self.make = work.begin(Watcher())

    def made(self, number: int) -> int:
        return self.make(number)


class _Crew:
    """Workers of a cluster, and who of them makes what."""

    def __init__(self, work: Work, numbers: Sequence[int], workers: int, watch: Watcher, gpus: int) -> None:
        import ray

        self.watch = watch
        self.worker = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0)(_Worker)
        self.work = ray.put(work)
        self.left = len(numbers)
        self.waiting = deque(numbers)
        self.busy: dict[Any, tuple[Any, int | None]] = {}  # by what each will say; None: it begins
        self.idle: list[Any] = []
        self.lost = 0  # one after the other
        for _ in range(workers):
            self._hire()

    def _hire(self) -> None:
        worker: Any = self.worker.remote()
        self.busy[worker.begin.remote(self.work)] = (worker, None)

    def _occupy(self, worker: Any) -> None:
        if self.waiting:
            number = self.waiting.popleft()
            self.busy[worker.made.remote(number)] = (worker, number)
        else:
            self.idle.append(worker)

    def made(self) -> Generator[int]:
        """Sizes of pieces, as they are made."""
        import ray

        told = False
        most = len(self.busy) + 1
        while self.left:
            done, _ = ray.wait(list(self.busy), timeout=None if told else SLOW)
            if not done:
                if not told and all(number is None for _, number in self.busy.values()):
                    self.watch.tell("no worker has begun yet; perhaps the cluster has no CPU or GPU left")
                    told = True
                continue
            worker, number = self.busy.pop(done[0])
            try:
                size = ray.get(done[0])
            except ray.exceptions.RayTaskError as error:
                raise _cause(error) from None
            except ray.exceptions.RayError as error:
                self._replace(number, most, error)
                continue
            self._occupy(worker)
            if number is not None:
                self.left, self.lost = self.left - 1, 0
                yield size

    def dismiss(self) -> None:
        """End all workers, whatever they do."""
        import ray

        for worker in (*self.idle, *(worker for worker, _ in self.busy.values())):
            ray.kill(worker)

    def _replace(self, number: int | None, most: int, error: Exception) -> None:
        """Have somebody else do what a worker that has ended was to do."""
        self.lost += 1
        if self.lost > most:
            why = str(error).strip().splitlines()[0]
            raise RunError(f"{self.lost} workers ended one after the other ({why}); {FEWER}") from None
        if number is not None:
            self.waiting.appendleft(number)
        if self.idle and self.waiting:
            self._occupy(self.idle.pop())
        else:
            self._hire()


def _cause(error: Any) -> Exception:
    """What was raised in a worker, or that kgmlm is not there."""
    if "failed to import" in str(error) or "No module named 'kgmlm" in str(error):
        return RunError("the nodes of the Ray cluster cannot import kgmlm; install the same version on all")
    cause: Exception = error if error.cause is None else error.cause
    return cause


@contextmanager
def _cluster(address: str | None, cpus: int) -> Iterator[None]:
    """Be part of a Ray cluster, without its logs and with this process's own way to end."""
    import ray

    if address is None and ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told
    own: dict[str, Any] = {"num_cpus": cpus, "object_store_memory": STORE, "include_dashboard": False}
    if address is not None:
        _check_answers(address)
    main = threading.current_thread() is threading.main_thread()
    at_end = signal.getsignal(signal.SIGTERM)
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        ray.init(
            address=address or "local", log_to_driver=False, logging_level=logging.ERROR,
            **(own if address is None else {}),
        )  # fmt: skip
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        why = (str(error).strip().splitlines() or ["?"])[0]
        where = "on this machine" if address is None else f"at {address}"
        raise RunError(f"Ray cannot be used {where}: {why}") from None
    finally:
        if main:
            signal.signal(signal.SIGTERM, at_end)  # ray.init takes it
    try:
        yield
    finally:
        ray.shutdown()
        logger.setLevel(level)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ConfigError(f"the address of a Ray cluster is given as HOST:PORT, not '{address}'")
    return host.strip("[]"), int(port)


def _check_answers(address: str) -> None:
    """See that a cluster answers; ``ray.init`` would ask for minutes and end the process.

    Raises:
        RunError: when none does.
    """
    try:
        socket.create_connection(_host_and_port(address), timeout=PATIENCE / 2).close()
    except OSError as error:
        raise RunError(f"no Ray cluster answers at {address}: {error.strerror or error}") from None
    ask = "from ray.scripts.scripts import main; main()"
    try:
        done = subprocess.run(
            [sys.executable, "-c", ask, "health-check", "--address", address],
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise RunError(f"no Ray cluster answers at {address}: what is there is none, or busy") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["?"])[-1].removeprefix("ray.exceptions.")
        raise RunError(f"no Ray cluster answers at {address}: {last}")
