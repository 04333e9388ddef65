"""Processes that do a job together, as threads that take turns: models are not made for several."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, BrokenBarrierError, Lock
from typing import Any, TypeVar

from kgmlm.core.errors import RunError
from kgmlm.core.processes import ProcessGroup, shared_by

T = TypeVar("T")


class Threaded(ProcessGroup):
    """One of several; what the others give comes pickled, as from a process."""

    def __init__(self, rank: int, barrier: Barrier, turn: Lock, given: list[bytes]) -> None:
        self.rank, self.size = rank, len(given)
        self.barrier, self.turn, self.given = barrier, turn, given

    def gathered(self, value: Any) -> list[Any]:
        self.given[self.rank] = pickle.dumps(value)
        self.turn.release()
        try:
            self.barrier.wait(60)
            rows = [pickle.loads(value) for value in self.given]
            self.barrier.wait(60)
        except BrokenBarrierError:
            raise RunError("another process has ended") from None
        finally:
            self.turn.acquire()
        return rows


def together(size: int, job: Callable[[ProcessGroup], T]) -> list[T]:
    """What the job comes to in each of so many processes; the first error is raised when all have ended."""
    barrier, turn, given = Barrier(size), Lock(), [b""] * size
    errors: list[Exception] = []

    def one(rank: int) -> list[T]:
        with turn:
            try:
                with shared_by(Threaded(rank, barrier, turn, given)) as world:
                    return [job(world)]
            except Exception as error:
                errors.append(error)
                barrier.abort()
                return []

    with ThreadPoolExecutor(size) as pool:
        rows = [result for of_one in pool.map(one, range(size)) for result in of_one]
    if errors:
        raise errors[0]
    return rows
