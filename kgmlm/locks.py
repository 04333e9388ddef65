"""One writer per run: a lock file beside the run folder, gone when its holder is.

Reading needs no lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from kgmlm.kg import RunError


def lock_file(path: Path) -> Path:
    """Where the lock of a folder is: beside it, since the folder may be replaced or not be there yet."""
    target = path.resolve()
    above = next(p for p in target.parents if p.exists())
    # A run that is mounted alone, below a folder where nothing can be written, has its lock inside.
    inside = above == target.parent and target.is_dir() and not os.access(above, os.W_OK)
    return target / ".kgmlm-lock" if inside else target.parent / f".{target.name}.kgmlm-lock"


@contextmanager
def locked(path: Path, what: str, *, waiting: bool = False) -> Iterator[None]:
    """Be the only one that writes a folder.

    Args:
        what: what is being done, for the sentence that others get.
        waiting: wait until nobody else has the lock.

    Raises:
        RunError: when another process has the lock.
    """
    from filelock import FileLock, Timeout

    file = lock_file(path)
    made = [p for p in (file.parent, *file.parent.parents) if not p.exists()]
    lock = FileLock(file)
    try:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=-1 if waiting else 0)
        except Timeout:
            if not file.exists():  # nobody has it: it cannot be made
                raise RunError(f"{path} cannot be written: no lock can be made in {file.parent}") from None
            raise RunError(
                f"{path} is in use by another kgmlm process{_held_by(file)}; wait for it, or choose another "
                "folder"
            ) from None
        except OSError as error:
            raise RunError(f"{path} cannot be written: {file.parent}: {error.strerror}") from None
        try:
            file.write_text(f"{what}, since {datetime.now().astimezone():%Y-%m-%d %H:%M}\n", "utf-8")
            yield
        finally:
            # Before it is released: whoever opened this file meanwhile sees that it is gone, and tries again.
            file.unlink(missing_ok=True)
            lock.release()
    finally:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()  # made for the lock, and nothing else came


def _held_by(file: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        if held := file.read_text("utf-8").strip():
            return f" ({held})"
    return ""
