"""Pieces that workers make, and a process that has a Ray cluster of one node make them.

It is a process of its own, since Ray reads its token when it is imported, and keeps threads.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgmlm.kg import DataError, KgmlmError
from kgmlm.watching import Watcher

LISTED: dict[str, Any] = {"known": ["valid"], "min_probability": 0.0, "part_size": 10}


@dataclass(frozen=True)
class Files:
    """A file per piece; on the first try, pieces may end their process or refuse.

    Attributes:
        ending: the pieces in whose midst the process ends: once, or always.
    """

    folder: Path
    ending: tuple[int, ...] = ()
    always: bool = False
    refused: tuple[int, ...] = ()

    def begin(self, watch: Watcher) -> Callable[[int], int]:
        (self.folder / f"begun-{os.getpid()}").touch()

        def make(number: int) -> int:
            tried = self.folder / f"tried-{number}"
            if number in self.ending and (self.always or not tried.exists()):
                tried.touch()
                os._exit(9)
            if number in self.refused:
                raise DataError(f"{number} cannot be made")
            with (self.folder / f"made-{number}").open("a") as file:
                file.write("x")
            return number * 10

        return make

    def made(self) -> dict[str, str]:
        return {p.name: p.read_text() for p in self.folder.glob("made-*")}


def main() -> None:
    """Make pieces in a folder and a list of a run; writes what came of it to found.json."""
    import ray

    import kgmlm
    from kgmlm.workers import STORE, made_on_ray

    folder, run = map(Path, sys.argv[1:])
    ray.init(
        address="local", num_cpus=2, object_store_memory=STORE, include_dashboard=False, log_to_driver=False,
        logging_level=logging.ERROR,
    )  # fmt: skip

    def error(work: Files, count: int) -> list[str]:
        work.folder.mkdir()
        try:
            list(made_on_ray(work, range(count), 1, Watcher()))
        except KgmlmError as error:
            return [type(error).__name__, str(error)]
        return []

    lost = Files(folder / "lost", ending=(2, 5))
    lost.folder.mkdir()
    found: dict[str, Any] = {"sizes": sorted(made_on_ray(lost, range(7), 2, Watcher()))}
    found["refused"] = error(Files(folder / "refused", refused=(1,)), 3)
    found["ending"] = error(Files(folder / "ending", ending=(0,), always=True), 2)
    asked: list[int] = []

    def told(what: str, n: int, total: int) -> None:
        if what == "asking queries":
            asked.append(n)

    made = kgmlm.complete(run, folder / "there", engine="ray", workers=2, progress=told, **LISTED)
    found |= {"asked": sum(asked), "queries": made["queries"]}
    ray.shutdown()
    (folder / "found.json").write_text(json.dumps(found))
