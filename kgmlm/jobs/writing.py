"""One job at a time writes a run, and one process of several speaks for all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from kgmlm.files import as_path
from kgmlm.kg import RunError
from kgmlm.packs import SUFFIX, find_pack, is_unpacked
from kgmlm.processes import main_process
from kgmlm.run import Run, path_of
from kgmlm.upkeep import writing

Job = TypeVar("Job", bound=Callable[..., Any])


def writes_run(job: Job) -> Job:
    """For jobs that write the run that is their first argument: nobody else writes it meanwhile.

    Of several processes the main one holds the lock for all. A :class:`Run` is opened again after it.
    """

    @wraps(job)
    def wrapper(run: Any, *args: Any, **kwargs: Any) -> Any:
        path = path_of(run)
        if find_pack(path) is not None or is_unpacked(path):
            how = f"`kgmlm unpack {path} --output RUN` makes a run of it"
            if job.__name__ == "calibrate":
                how = f"`kgmlm pack {path} --calibrate --output NEW{SUFFIX}` writes a pack with probabilities"
            raise RunError(f"{path} is a pack, which is not written to; {how}")
        with writing(path, job.__name__) if main_process() else nullcontext():
            done = job(run, *args, **kwargs)
        if isinstance(run, Run):
            run.reopen()
        return done

    return wrapper  # type: ignore[return-value]


def path_if(given: str | Path | None, what: str) -> Path | None:
    """A path, where one is given; ``what`` as of :func:`~kgmlm.files.as_path`."""
    return None if given is None else as_path(given, what)
