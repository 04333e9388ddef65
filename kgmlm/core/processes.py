"""Process groups: several processes that do one job together, as ``torchrun`` starts them.

Each process does its share, and all gather the results. The launcher says in the environment which process
this is; they join through accelerate's state.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from kgmlm.core.arrays import IntArray
from kgmlm.core.errors import ConfigError, RunError
from kgmlm.core.machine import only_cpu

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup as Gloo
    from torch.distributed import Work

Value = TypeVar("Value")
Numbers = TypeVar("Numbers", bound=npt.NDArray[Any])
TIMEOUT = timedelta(days=1)  # one process may train a signal, or build an index, while the others wait
PATIENCE = timedelta(seconds=5)  # with a launcher that no longer answers
WAITS = (0.001, 0.05)  # seconds between two looks at whether the others have come: at first, and at most


def count_processes() -> int:
    """Return how many processes do this job together, as the launcher says."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def in_several_processes() -> bool:
    """Return whether this is one of several processes that do a job together."""
    return count_processes() > 1


def main_process() -> bool:
    """Return whether this is the one process that writes and speaks for all."""
    return int(os.environ.get("RANK", "0")) == 0


def check_main_guard() -> None:
    """Refuse a job in a worker process that is still importing the script of its parent.

    A script without ``if __name__ == "__main__":`` would do all its work again in each worker, and train over
    the run that it has just made.

    Raises:
        RunError: saying what the script lacks.
    """
    # multiprocessing's own sign, while it prepares a worker
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RunError(
            "this script starts worker processes, each of which imports it first: put what it does under "
            '`if __name__ == "__main__":`'
        )


class ProcessGroup:
    """The processes that do a job together; this class is one process alone.

    Attributes:
        rank: the number of this process; 0 is the main one.
        size: how many there are.
    """

    rank = 0
    size = 1

    @property
    def main(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def share(self, costs: IntArray) -> IntArray:
        """Return which pieces of work this process does, in ascending order.

        The pieces are dealt out from the most expensive to the cheapest, so the shares depend on nothing but
        ``costs``, and two of them differ by the cost of one piece at most.

        Args:
            costs: of each piece, in any unit.
        """
        dearest = np.argsort(-costs, kind="stable")
        return np.sort(dearest[self.rank :: self.size])

    def gathered(self, value: Value) -> list[Value]:
        """Gather the values of all processes, by rank. All must call it, and wait here for the last one.

        Raises:
            RunError: when another process has ended.
        """
        return [value]

    def filled(self, array: Numbers, mine: IntArray) -> Numbers:
        """An array of which this process knows ``[..., mine]``, with what the others know written into it."""
        for at, values in self.gathered((mine, array[..., mine])):
            array[..., at] = values
        return array

    def from_main(self, value: Value | None = None) -> Value:
        """Return the main process's value in all processes; the others' values are ignored."""
        return cast("Value", self.gathered(value if self.main else None)[0])

    def wait(self) -> None:
        """Wait until all processes are here."""
        self.gathered(None)

    def agree(self, value: object, what: str) -> None:
        """See that all processes have the same value.

        Args:
            what: it is, as in "the processes have different triples".

        Raises:
            RunError: when they differ, as on machines that do not share their files.
        """
        if any(other != value for other in self.gathered(value)):
            raise RunError(f"the processes have different {what}; all need the same files at the same paths")


ALONE = ProcessGroup()
_sharing: ContextVar[ProcessGroup] = ContextVar("sharing", default=ALONE)


def sharing() -> ProcessGroup:
    """The processes that share the work that is done here; outside of :func:`shared_by` this one alone."""
    return _sharing.get()


@contextmanager
def shared_by(world: ProcessGroup) -> Iterator[ProcessGroup]:
    """Inside, work is shared by these processes: each of them must do the same calls."""
    token = _sharing.set(world)
    try:
        yield world
    finally:
        _sharing.reset(token)


class _Joined(ProcessGroup):
    """One of several processes, which exchange pickled values over gloo, on machines with GPUs, too."""

    def __init__(self, group: Gloo | None, rank: int, size: int) -> None:
        self.group, self.rank, self.size = group, rank, size

    def gathered(self, value: Value) -> list[Value]:
        import torch
        from torch.distributed import all_gather

        mine = torch.frombuffer(bytearray(pickle.dumps(value, protocol=5)), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        own = torch.tensor([len(mine)])
        self._wait(lambda: all_gather(sizes, own, group=self.group, async_op=True))
        most = max(int(size) for size in sizes)
        padded = torch.zeros(most, dtype=torch.uint8)
        padded[: len(mine)] = mine
        parts = [torch.zeros(most, dtype=torch.uint8) for _ in range(self.size)]
        self._wait(lambda: all_gather(parts, padded, group=self.group, async_op=True))
        return [pickle.loads(part[:n].numpy().data) for part, n in zip(parts, sizes, strict=True)]

    def _wait(self, begin: Any) -> None:
        """Wait for an exchange in such a way that Python's signal handlers run meanwhile."""
        try:
            work: Work = begin()
            pause, most = WAITS
            while not work.is_completed():
                time.sleep(pause)
                pause = min(2 * pause, most)
            work.wait()
        except RuntimeError:
            raise _lost(self.size) from None


def _lost(size: int | str) -> RunError:
    return RunError(
        f"another of the {size} processes has ended or cannot be reached; that process says why, unless "
        "the system killed it, perhaps for lack of memory"
    )


def join(device: str | None = None) -> ProcessGroup:
    """The processes that this one was started with; alone, where the environment names no others.

    All processes must call it. On machines with GPUs each takes one of its own, by its local rank.

    Args:
        device: "cpu" leaves GPUs unused.

    Raises:
        ConfigError: when one GPU is named for all processes.
        RunError: when another one has ended already.
    """
    if not in_several_processes():
        return ALONE
    if device is not None and ":" in device:
        raise ConfigError(
            f"each process takes a GPU of its own, so --device {device} does not go with several processes; "
            "leave it out, or take cuda or cpu"
        )
    return _joined(device == "cpu" or only_cpu())


@cache
def _joined(cpu: bool) -> ProcessGroup:
    from accelerate import PartialState
    from torch.distributed import get_backend, new_group

    try:
        state = PartialState(cpu=cpu, timeout=TIMEOUT)
        group = None if get_backend() == "gloo" else new_group(backend="gloo", timeout=TIMEOUT)
    except RuntimeError:
        raise _lost(os.environ["WORLD_SIZE"]) from None
    return _Joined(group, state.process_index, state.num_processes)


def speaks() -> bool:
    """Return whether this process says why all of them end: the first one that asks does.

    The launcher ends the others when one has failed, and they fail when they wait for it, so that there is
    one sentence rather than one for each process.
    """
    if not in_several_processes():
        return True
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher's must not cut the sentence short
    try:
        from torch.distributed.rendezvous import rendezvous

        store, _, _ = next(rendezvous("env://", timeout=PATIENCE))
        return bool(store.add("kgmlm/spoken", 1) == 1)
    except (ImportError, RuntimeError, ValueError):  # no launcher to ask
        return True
