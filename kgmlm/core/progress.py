"""Progress of long work: rich bars in a terminal, tqdm's in a notebook, a function, or nothing.

Heavy imports live inside the functions.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kgmlm.core.processes import main_process

if TYPE_CHECKING:
    from rich.progress import Progress, Task, TaskID

Advance = Callable[[str, int, int], None]  # what is being done, how many just were, how many there are
LOGGED = 60.0  # seconds between lines in a log file


def expected(done: int, began: float, seconds: float | None, most: int) -> int:
    """Estimate the total of work that ends by the clock from its pace so far.

    Args:
        done: units that are done.
        began: by the monotonic clock.
        seconds: the time of the work; None has no limit.
        most: units that there are.

    >>> expected(10, time.monotonic() - 5, None, 100)
    100
    """
    if seconds is None:
        return most
    passed = max(time.monotonic() - began, 1e-9)
    return max(done, min(most, round(done * seconds / passed)))


class Watcher(AbstractContextManager["Watcher"]):
    """Watches long work; this one says nothing. Used as a context, bars are shown inside it.

    Call it with (what is being done, how many just were, how many there are).
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def __call__(self, what: str, n: int, total: int) -> None:
        """``n`` more of ``total`` are done."""

    def tell(self, message: str) -> None:
        """Show a message that matters, in quiet mode, too."""

    def note(self, message: str) -> None:
        """Show how work goes, but not in quiet mode."""
        self.tell(message)

    def start(self, total: int, done: int) -> None:
        """Training begins at step ``done`` of ``total``."""

    def expect(self, total: int) -> None:
        """Training now seems to take so many steps in all."""

    def step(self, step: int, loss: float) -> None:
        """An optimizer step is done."""

    def validated(self, mrr: float, best: float) -> None:
        """A validation is done."""


class Calls(Watcher):
    """Passes on what is done to a function of (what, how many just were, how many there are)."""

    def __init__(self, advance: Advance) -> None:
        self.advance = advance
        self.total = self.done = 0

    def __call__(self, what: str, n: int, total: int) -> None:
        """Pass it on."""
        self.advance(what, n, total)

    def start(self, total: int, done: int) -> None:
        """Count training steps as a phase like any other."""
        self.total, self.done = total, 0
        self.step(done, 0.0)

    def expect(self, total: int) -> None:
        """Count to another total."""
        self.total = total

    def step(self, step: int, loss: float) -> None:
        """Pass on the steps since the last one."""
        self.advance("training", step - self.done, self.total)
        self.done = step


class Bars(Watcher):
    """Rich bars on stderr, with time left; a log file gets a line per validation and one per minute instead.

    Args:
        quiet: show no bars and no notes; messages of :meth:`tell` still appear.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._training: TaskID | None = None
        self._average: float | None = None
        self._loss = "-"
        self._logged = 0.0

    def __enter__(self) -> Self:
        self._logged = time.monotonic()
        self._progress = self._new()
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
        self._progress, self._tasks, self._training = None, {}, None

    def _new(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        # Narrow enough for a terminal of 80 columns with all that training shows.
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(10),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=self.quiet,
        )

    def __call__(self, what: str, n: int, total: int) -> None:
        """Show a bar for what is being done, until all of it is."""
        if self._progress is None:
            return
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total, figures="")
        task = self._tasks[what]
        if n and self._task(task).finished:
            self._progress.reset(task, total=total)  # the same again
        self._progress.update(task, advance=n, total=total)
        self._log(task)
        if self._task(task).finished and len(self._tasks) > 1:
            self._progress.remove_task(self._tasks.pop(what))

    def _task(self, of: TaskID) -> Task:
        assert self._progress is not None
        return self._progress.tasks[self._progress.task_ids.index(of)]

    def _log(self, of: TaskID) -> None:
        """A line now and then where no bar is seen."""
        assert self._progress is not None
        now = time.monotonic()
        if self.quiet or self._progress.console.is_terminal or now < self._logged + LOGGED:
            return
        self._logged = now
        task = self._task(of)
        left = "" if task.time_remaining is None else f"  left {timedelta(seconds=int(task.time_remaining))}"
        figures = f"  {task.fields['figures']}" if task.fields["figures"] else ""
        self.tell(f"{task.description} {task.completed:.0f}/{task.total:.0f}{figures}{left}")

    def tell(self, message: str) -> None:
        """A line on stderr."""
        print(message, file=sys.stderr)

    def note(self, message: str) -> None:
        """A line on stderr, unless it is to be quiet."""
        if not self.quiet:
            self.tell(message)

    def start(self, total: int, done: int) -> None:
        """Lay the bar of training."""
        self._average, self._loss, self._mrr = None, "-", ""
        if self._progress is not None:
            self._training = self._progress.add_task("training", total=total, completed=done, figures="")
            self._tasks["training"] = self._training

    def expect(self, total: int) -> None:
        """Lay the bar to another total."""
        if self._progress is not None and self._training is not None:
            self._progress.update(self._training, total=total)

    def step(self, step: int, loss: float) -> None:
        """Move on; the loss shown is a running average."""
        self._average = loss if self._average is None else 0.95 * self._average + 0.05 * loss
        self._loss = f"{self._average:.3f}"
        self._show(completed=step)
        if self._training is not None:
            self._log(self._training)

    def validated(self, mrr: float, best: float) -> None:
        """Show the newest and the best validation MRR."""
        self._mrr = f" MRR {mrr:.3f} (best {best:.3f})"
        self._show()
        if (
            self._progress is not None
            and self._training is not None
            and not self._progress.console.is_terminal
        ):
            task = self._task(self._training)
            self.tell(
                f"step {task.completed:.0f}/{task.total:.0f}  loss {self._loss}  "
                f"valid MRR {mrr:.4f}  best {best:.4f}"
            )

    _mrr = ""

    def _show(self, **values: Any) -> None:
        if self._progress is not None and self._training is not None:
            self._progress.update(self._training, figures=f"loss {self._loss}{self._mrr}", **values)


class NotebookBars(Watcher):
    """tqdm's bars for notebooks, one per phase: widgets, or text where ipywidgets is not installed."""

    def __init__(self) -> None:
        self._bars: dict[str, Any] = {}
        self._mrr: dict[str, str] = {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for bar in self._bars.values():
            bar.close()
        self._bars = {}

    def _bar(self, what: str, total: int, done: int = 0) -> Any:
        if find_spec("ipywidgets"):
            from tqdm.notebook import tqdm  # type: ignore[import-untyped]
        else:
            from tqdm import tqdm  # type: ignore[import-untyped]

        if what not in self._bars:
            self._bars[what] = tqdm(desc=what, total=total, initial=done)
        return self._bars[what]

    def __call__(self, what: str, n: int, total: int) -> None:
        """Move on the bar of what is being done."""
        bar = self._bar(what, total)
        bar.total = total
        bar.update(n)
        if bar.n >= total:
            self._bars.pop(what).close()

    def tell(self, message: str) -> None:
        """A line below the cell."""
        print(message)

    def start(self, total: int, done: int) -> None:
        """Lay the bar of training."""
        self._mrr = {}
        self._bar("training", total, done)

    def expect(self, total: int) -> None:
        """Lay the bar to another total."""
        self._bars["training"].total = total

    def step(self, step: int, loss: float) -> None:
        """Move on."""
        bar = self._bars["training"]
        bar.update(step - bar.n)
        bar.set_postfix(loss=f"{loss:.3f}", **self._mrr, refresh=False)

    def validated(self, mrr: float, best: float) -> None:
        """Show the newest and the best validation MRR."""
        self._mrr = {"MRR": f"{mrr:.3f}", "best": f"{best:.3f}"}


def watcher_of(progress: bool | Watcher | Advance = True) -> Watcher:
    """Return the watcher that ``progress`` stands for.

    Args:
        progress: True for bars that suit the environment, False for none, a function of (what is being
            done, how many just were, how many there are), or a watcher. If several processes do a job
            together, only the main one is watched.
    """
    if not main_process():
        return Watcher()
    if isinstance(progress, Watcher):
        return progress
    if callable(progress):
        return Calls(progress)
    if not progress:
        return Watcher()
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    return NotebookBars() if type(shell).__name__ == "ZMQInteractiveShell" else Bars()


def quiet_transformers() -> None:
    """Silence the loading bars and advice of transformers."""
    quiet_environment()
    try:
        from transformers.utils import logging
    except ImportError:  # an installation for ranking alone
        return
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def quiet_environment() -> None:
    """Set the environment variables that silence libraries, which read them when they are imported."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # stack traces of C++ where a process has ended
