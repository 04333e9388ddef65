"""Pieces that workers make, and a process that has a Ray cluster of one node make them.

It is a process of its own, since Ray reads its token when it is imported, and keeps threads.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgmlm.kg import DataError, KgmlmError
from kgmlm.watching import Watcher
from kgmlm.workers import Advance, Make, T, Work, made_here

EVALUATED: dict[str, Any] = {"split": "train", "batch_size": 4, "by_relation": True}
ASKED = [("france", "capital", None), (None, "capital", "paris"), ("rome", "located_in", None)] * 3
LISTED: dict[str, Any] = {"known": ["valid"], "min_probability": 0.0, "part_size": 10}


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

    def sent(self, far: bool) -> Files:
        return self

    def begin(self, watch: Watcher) -> Make[int]:
        if self.mistaken:
            raise DataError("nothing can be made")
        (self.folder / f"begun-{os.getpid()}").touch()

        def make(number: int, advance: Advance) -> int:
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
    work: Work[T], numbers: Sequence[int], workers: int, watch: Watcher, advance: Advance
) -> Generator[T]:
    """What a process is sent is opened here."""
    assert workers == 2
    return made_here(pickle.loads(pickle.dumps(work.sent(far=True))), numbers, watch, advance)


def report_of(found: Any) -> dict[str, Any]:
    """A report but for what differs by who has made it."""
    return {k: v for k, v in found.values.items() if k not in ("seconds", "processes", "command")}


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
    by_ray: dict[str, Any] = {"engine": "ray", "workers": 2, "progress": False}
    found["report"] = report_of(kgmlm.evaluate(run, device="cpu", **by_ray, **EVALUATED))
    found["ranked"] = kgmlm.open_run(run, device="cpu").rank(ASKED, k=3, **by_ray).to_dict("records")
    ray.shutdown()
    (folder / "found.json").write_text(json.dumps(found))
