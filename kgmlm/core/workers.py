"""Numbered tasks: done in this process, or by the workers of a Ray cluster.

This module does not know what the tasks are. A worker may die in the middle of a task, which another then
starts again, so a task must give the same result however often it is started.
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
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Generic, Protocol, TypeVar

from kgmlm.core.arrays import IntArray
from kgmlm.core.errors import ConfigError, RunError, first_line
from kgmlm.core.processes import check_main_guard, in_several_processes, sharing
from kgmlm.core.progress import Watcher

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Tick = Callable[[int], None]  # so much more of the work is done
Make = Callable[[int, Tick], T]  # a piece by its number; what it comes to
LOCAL = "local"  # Ray on this machine alone
PATIENCE = 20.0  # seconds that a cluster has to answer
SLOW = 60.0  # seconds after which it is said that no worker begins
STORE = 80 * 2**20  # bytes of the object store of a cluster on this machine, near the least that Ray takes
FEWER = "try again with fewer --workers"
PIECES = (
    16  # of small work, so that workers end at about the same time; also how many batches a piece has at most
)


def piece_size(count: int, batch_size: int) -> int:
    """The queries of a task, whoever does it, so that batches, and so scores, are the same.

    >>> piece_size(1000, 64), piece_size(5400, 64), piece_size(100_000, 64)
    (64, 384, 1024)
    """
    return batch_size * min(PIECES, max(1, -(-count // (PIECES * batch_size))))


class Work(Protocol[T_co]):
    """Work in numbered tasks; it is sent to each worker, and begun once there."""

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU is asked for by name."""

    def size(self, number: int) -> int:
        """The cost of a task, in the unit of progress."""

    def begin(self, watch: Watcher) -> Make[T_co]:
        """Open what all pieces need; return the function that makes a piece and reports its progress."""

    def sent(self) -> Work[T_co]:
        """Copy the work with nothing open, to be pickled for machines with other working folders and GPUs."""


@dataclass(frozen=True, eq=False)
class Opened(Generic[T]):
    """Work that this process has opened already, and so does itself.

    Attributes:
        sizes: of the pieces.
        make: what makes them.
    """

    sizes: IntArray
    make: Make[T]
    on_gpu: bool = False

    def size(self, number: int) -> int:
        """The cost of a task."""
        return int(self.sizes[number])

    def begin(self, watch: Watcher) -> Make[T]:
        """Return the function that does tasks."""
        return self.make

    def sent(self) -> Work[T]:
        """Nothing that is open is sent."""
        raise AssertionError("workers need work that they can open")


@dataclass(frozen=True)
class Workers:
    """Who does the work of an evaluation, a completion, or the ranking of many queries.

    Results are the same, whoever does the work.

    Attributes:
        ray: None is this process. "local" starts Ray on this machine; HOST:PORT is a cluster that this
            machine is a node of. Workers are Ray's actors, each with the model in memory and one CPU, and
            with one GPU where the device is "cuda". All need the run, and what is written, at the same paths.
        workers: how many of Ray's workers; None is as many as this machine has CPUs.

    Raises:
        ConfigError: when Ray is not installed, the address is none, there are workers without Ray, or this is
            one of several processes.
        RunError: in a process that is still importing its parent's script.
    """

    ray: str | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        check_main_guard()
        if self.ray is None and self.workers is not None:
            raise ConfigError("--workers go with --ray: `local` starts them here, HOST:PORT in a cluster")
        if self.ray is None:
            return
        if find_spec("ray") is None:
            raise ConfigError("--ray needs Ray; pip install 'kgmlm[ray]' installs it")
        if self.ray != LOCAL:
            _host_and_port(self.ray)
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"there is at least one worker, not {self.workers}")
        if in_several_processes():
            raise ConfigError("several processes (torchrun) share the work already; leave out --ray")

    @property
    def here(self) -> bool:
        """Whether this process makes pieces itself, with the others that share its work."""
        return self.ray is None

    @property
    def count(self) -> int:
        """The number of processes that make pieces for this one."""
        return 1 if self.here else self.workers or os.cpu_count() or 1

    def made(
        self, work: Work[T], numbers: Sequence[int], watch: Watcher, advance: Tick = lambda n: None
    ) -> Generator[T]:
        """Make pieces; yields what each comes to, in any order.

        Args:
            numbers: of the pieces; where several processes share the work (:mod:`kgmlm.core.processes`),
                of those that this one makes. Each gets the pieces of all.
            advance: called as pieces are made here, or by a worker.
        """
        if self.here:
            return made_here(work, numbers, watch, advance)
        address = None if self.ray == LOCAL else self.ray
        return made_on_ray(work, numbers, self.count, watch, advance, address=address)


def made_here(
    work: Work[T], numbers: Sequence[int], watch: Watcher, advance: Tick = lambda n: None
) -> Generator[T]:
    """Make pieces in this process; the processes that share the work make some each, and all get all."""
    make = work.begin(watch)
    pieces = [make(number, advance) for number in numbers]
    for of_one in sharing().gathered(pieces):
        yield from of_one


def made_on_ray(
    work: Work[T],
    numbers: Sequence[int],
    workers: int,
    watch: Watcher,
    advance: Tick = lambda n: None,
    *,
    address: str | None = None,
) -> Generator[T]:
    """Make pieces by Ray's workers, each of one CPU, and of one GPU where the work asks for it by name.

    A piece whose worker has ended is made by another one.

    Args:
        workers: at most so many; fewer while the cluster has no more to give.
        address: HOST:PORT of a cluster that this machine is a node of; None is the one that this process has
            joined, or else one of this machine alone, which ends with the work.

    Raises:
        RunError: when no cluster answers, or workers end again and again.
    """
    if not numbers:
        return
    count = min(workers, len(numbers))
    # Ray prints on stdout which workers have died.
    with redirect_stdout(sys.stderr), _cluster(address, count):
        crew = _Actors(work.sent(), numbers, count, watch)
        try:
            for number, piece in crew.made():
                advance(work.size(number))
                yield piece
        finally:
            crew.dismiss()


class _Worker:
    """A process of a cluster that makes pieces."""

    def begin(self, work: Work[Any]) -> None:
        self.make = work.begin(Watcher())

    def made(self, number: int) -> Any:
        return self.make(number, lambda n: None)


class _Actors(Generic[T]):
    """Workers of a cluster, and who of them makes what."""

    def __init__(self, work: Work[T], numbers: Sequence[int], workers: int, watch: Watcher) -> None:
        import ray

        self.watch = watch
        self.worker = ray.remote(num_cpus=1, num_gpus=int(work.on_gpu), max_restarts=0)(_Worker)
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

    def made(self) -> Generator[tuple[int, T]]:
        """Numbers of pieces, and what they come to, as they are made."""
        import ray

        is_warned = False
        most = len(self.busy) + 1
        while self.left:
            done, _ = ray.wait(list(self.busy), timeout=None if is_warned else SLOW)
            if not done:
                if not is_warned and all(number is None for _, number in self.busy.values()):
                    self.watch.tell("no worker has begun yet; perhaps the cluster has no CPU or GPU left")
                    is_warned = True
                continue
            worker, number = self.busy.pop(done[0])
            try:
                piece = ray.get(done[0])
            except ray.exceptions.RayTaskError as error:
                raise _cause(error) from None
            except ray.exceptions.RayError as error:
                self._replace(number, most, error)
                continue
            self._occupy(worker)
            if number is not None:
                self.left, self.lost = self.left - 1, 0
                yield number, piece

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
    """The error that was raised in a worker, or that kgmlm is not installed there."""
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
        why = first_line(error)
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
        raise RunError(f"no Ray cluster answers at {address}: what listens is busy, or not Ray") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["?"])[-1].removeprefix("ray.exceptions.")
        raise RunError(f"no Ray cluster answers at {address}: {last}")
