"""Requests that come at the same time share forward passes: a bounded queue, and one thread that works.

Waiting tasks are taken together: as many as fit a batch, as soon as the worker is free, but not before the
oldest has waited for the window. A busy worker needs no window: tasks that come meanwhile wait anyway.

A large request comes in parts, each of which queues when the one before it is done. So the work of others
comes between them, and the work of a client that has left ends with the current part. Metrics count both.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

Task = TypeVar("Task")
Result = TypeVar("Result")
Work = Callable[[Sequence[Task]], Sequence["Result | Exception"]]


class FullError(Exception):
    """Too much is waiting; ``after`` is the number of seconds after which to try again."""

    def __init__(self, after: int) -> None:
        super().__init__(f"too many requests wait; try again in {after} s")
        self.after = after


class ClosedError(Exception):
    """The service ends, and takes nothing new."""


@dataclass(eq=False)
class _Waiting(Generic[Task, Result]):
    task: Task
    size: int
    came: float
    answer: asyncio.Future[Result] = field(repr=False)


@dataclass(frozen=True)
class Seen:
    """Callbacks for batches and for requests that were not served; by default they do nothing."""

    batch: Callable[[int, float], None] = lambda size, seconds: None
    dropped: Callable[[], None] = lambda: None
    refused: Callable[[], None] = lambda: None


class Batcher(Generic[Task, Result]):
    """Gathers tasks of concurrent requests and works on them together, in one thread.

    Args:
        work: tasks to as many results; an exception in place of a result is raised to its request alone.
        most: the largest sum of sizes per batch; a larger task is a batch of its own.
        window: seconds that the first task waits for others.
        bound: the largest sum of sizes that may wait.
        seen: callbacks that count.
    """

    def __init__(
        self,
        work: Work[Task, Result],
        *,
        most: int = 64,
        window: float = 0.005,
        bound: int = 1024,
        seen: Seen | None = None,
    ) -> None:
        self.work, self.most, self.window, self.bound = work, most, window, bound
        self.seen = seen or Seen()
        self.waiting: deque[_Waiting[Task, Result]] = deque()
        self.size = 0  # of all that waits
        self._open = 0  # requests that are not answered yet
        self._working: list[_Waiting[Task, Result]] = []
        self._lasted = 0.0  # seconds per unit of size, of late
        self._came = asyncio.Event()
        self._closing = self._cut = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kgmlm-model")
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to work, if it has not yet; in a running event loop."""
        if self._loop is None:
            self._loop = asyncio.create_task(self._run())

    def end(self, grace: float) -> None:
        """Take nothing new, and give open requests ``grace`` more seconds; in a running event loop."""
        self._closing = True
        self._came.set()
        asyncio.get_running_loop().call_later(grace, self._cut_off)

    def _cut_off(self) -> None:
        """Refuse what is not answered yet."""
        self._cut = True
        for one in (*self.waiting, *self._working):
            if not one.answer.done():
                one.answer.set_exception(ClosedError())
        self.waiting.clear()
        self.size = 0

    async def close(self) -> None:
        """Take nothing new, and finish what is open."""
        self._closing = True
        self._came.set()
        if self._loop is not None:
            await self._loop
        self._thread.shutdown()

    async def ask(self, task: Task, size: int = 1) -> Result:
        """The result of a task, as :meth:`ask_in_parts` of one part."""
        (result,) = await self.ask_in_parts([(task, size)])
        return result

    async def ask_in_parts(self, parts: Sequence[tuple[Task, int]]) -> list[Result]:
        """The results of a request's parts, (task, size) each. If cancelled meanwhile, it leaves the queue.

        Raises:
            FullError: when too much waits already.
            ClosedError: when the service ends.
            Exception: what ``work`` has for a task in place of a result.
        """
        if self._closing:
            raise ClosedError
        if self.size + parts[0][1] > self.bound and self.waiting:
            self.seen.refused()
            raise FullError(max(1, round(self.size * self._lasted)))
        self._open += 1
        try:
            return [await self._result(task, size) for task, size in parts]
        except asyncio.CancelledError:
            self.seen.dropped()
            raise
        finally:
            self._open -= 1
            self._came.set()

    async def _result(self, task: Task, size: int) -> Result:
        if self._cut:
            raise ClosedError
        loop = asyncio.get_running_loop()
        mine = _Waiting[Task, Result](task, size, loop.time(), loop.create_future())
        self.waiting.append(mine)
        self.size += size
        self._came.set()
        try:
            return await mine.answer
        except asyncio.CancelledError:
            if mine in self.waiting:
                self.waiting.remove(mine)
                self.size -= size
            raise

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self.waiting:
                if self._closing and not self._open:
                    return
                self._came.clear()
                await self._came.wait()
            await self._gather(loop)
            batch = self._take()
            if not batch:
                continue
            self._working, began = batch, loop.time()
            results = await loop.run_in_executor(self._thread, self._worked, [w.task for w in batch])
            lasted, size = loop.time() - began, sum(w.size for w in batch)
            self._lasted = lasted / size
            self.seen.batch(size, lasted)
            for one, result in zip(batch, results, strict=True):
                if one.answer.done():
                    continue  # who asked has gone
                if isinstance(result, Exception):
                    one.answer.set_exception(result)
                else:
                    one.answer.set_result(result)

    async def _gather(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait until the window of the oldest has passed, or a batch is full."""
        while self.waiting and self.size < self.most and not self._closing:
            left = self.waiting[0].came + self.window - loop.time()
            if left <= 0:
                return
            self._came.clear()
            try:
                await asyncio.wait_for(self._came.wait(), left)
            except TimeoutError:
                return

    def _take(self) -> list[_Waiting[Task, Result]]:
        taken: list[_Waiting[Task, Result]] = []
        size = 0
        while self.waiting and (not taken or size + self.waiting[0].size <= self.most):
            one = self.waiting.popleft()
            size += one.size
            taken.append(one)
        self.size -= size
        return taken

    def _worked(self, tasks: list[Task]) -> Sequence[Any]:
        try:
            return self.work(tasks)
        except Exception as error:
            return [error] * len(tasks)


class Metrics:
    """Metrics for Prometheus, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        kept: dict[str, Any] = {"registry": self.registry, "namespace": "kgmlm"}
        seconds = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
        sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256)
        self.requests = Counter("requests", "Requests answered.", ["path", "status"], **kept)
        self.seconds = Histogram(
            "request_seconds", "Seconds from request to answer.", ["path"], buckets=seconds, **kept
        )
        self.batches = Histogram("batch_queries", "Queries per batch.", buckets=sizes, **kept)
        self.working = Histogram("batch_seconds", "Seconds of work per batch.", buckets=seconds, **kept)
        self.dropped = Counter("dropped", "Requests whose client left before the answer.", **kept)
        self.refused = Counter("refused", "Requests refused because too many waited.", **kept)
        self.waiting = Gauge("waiting_queries", "Queries that wait.", **kept)

    @property
    def seen(self) -> Seen:
        """The callbacks for a batcher."""
        return Seen(self._batch, self.dropped.inc, self.refused.inc)

    def _batch(self, size: int, seconds: float) -> None:
        self.batches.observe(size)
        self.working.observe(seconds)

    def text(self) -> bytes:
        """In the format that Prometheus reads."""
        text: bytes = generate_latest(self.registry)
        return text
