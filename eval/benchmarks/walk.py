"""The way of a run through the files of kgmlm, from a command to its answer: how often it changes files.

Counted are the functions that are given the run: its path or a file in its folder, its folder as it was read,
or the opened run. Each counts once, where it is first called, so that loops do not count. A *stay* is a row
of them in one file.

    python eval/benchmarks/walk.py rank runs/demo --head "Astrid Lindgren" --relation "worked in"
    python eval/benchmarks/walk.py evaluate runs/demo -q
    python eval/benchmarks/walk.py train --output runs/walked --dataset toy --model scratch --preset plain -q

With ``PYTHONPATH`` naming another checkout, the way through that one is counted.
"""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections import Counter
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import kgmlm

ROOT = Path(kgmlm.__file__).parent
CARRIERS = ("Run", "RunFolder", "OpenedRun", "EvaluationWork", "Predicting")  # by name: any checkout has them


def given_the_run(value: Any, path: Path) -> bool:
    """Return whether an argument is a run in some form."""
    if isinstance(value, str | Path):
        return Path(value).absolute().is_relative_to(path)
    return type(value).__name__ in CARRIERS


def first_calls(work: Callable[[], object], path: Path) -> list[tuple[str, str]]:
    """(file, function) of all functions that are given the run, in the order of their first calls."""
    calls: dict[tuple[str, str], None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(ROOT)):
            return
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if any(given_the_run(frame.f_locals.get(name), path) for name in arguments):
            calls.setdefault((str(Path(code.co_filename).relative_to(ROOT)), code.co_qualname))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(calls)


def main() -> None:
    """Walk a command of kgmlm, whose run is the first argument or its output, and print each stay."""
    from kgmlm.cli.app import app

    def work() -> None:
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
            app(sys.argv[1:])

    run = sys.argv[sys.argv.index("--output") + 1] if sys.argv[1] == "train" else sys.argv[2]
    calls = first_calls(work, Path(run).absolute())
    walked = [(file, list(stay)) for file, stay in groupby(calls, key=lambda call: call[0])]
    for number, (file, stay) in enumerate(walked, 1):
        print(f"{number:3}  {file:28} {', '.join(function for _, function in stay)}")
    files = Counter(file for file, _ in walked)
    often = ", ".join(f"{file} {count}" for file, count in files.most_common(3))
    print(f"{len(walked)} stays in {len(files)} files, {len(calls)} functions; most often {often}")


if __name__ == "__main__":
    main()
