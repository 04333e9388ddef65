"""What `kgmlm train --minutes` reaches in a time, on a quiet machine and beside busy processes.

    python eval/benchmarks/deadlines.py wn18rr --model MODEL [--minutes 2,3,5,8,15] [--busy 0,2]
    python eval/benchmarks/deadlines.py --folder FOLDER     # collects: JSON and the table of the docs

Each time is a run of its own. Its validation MRR is of the same triples for all, filtered by train and
validation; weights are chosen on some of these, as in every run. The interval is a 95 % interval over triples
of the difference to the run of the next shorter time. Busy processes multiply matrices in one thread each.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

sys.path.insert(0, str(Path(__file__).parents[1]))
import store
from minutes import interval, reciprocal

import kgmlm
from kgmlm.runs import provenance
from kgmlm.runs.opened import tuned_ranker

HERE = Path(__file__).parent
OUTPUT, DOCS = HERE / "deadlines.json", HERE.parent / "MEASURED.md"
VALIDATED = 1000  # triples, drawn by seed 0


def _multiply() -> None:
    matrix = np.random.default_rng(0).standard_normal((512, 512), np.float32)
    while True:
        matrix = np.tanh(matrix @ matrix)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep some processes busy, each with one thread."""
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    before = {name: os.environ.get(name) for name in threads}
    os.environ.update(threads)  # read by the processes when they import NumPy
    processes = [multiprocessing.get_context("spawn").Process(target=_multiply) for _ in range(count)]
    for process in processes:
        process.start()
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def measure(graph: str, model: str, minutes: float, beside: int, folder: Path) -> None:
    """Train for a time, beside so many busy processes, and keep the validation ranks."""
    loaded = kgmlm.load_graph(graph)
    path = folder / f"{graph} {beside} {minutes:g}"
    with busy(beside):
        began = time.monotonic()
        run = kgmlm.train(loaded, model, path / "run", minutes=minutes, progress=False, overwrite=True)
        taken = (time.monotonic() - began) / 60
    valid_B = reciprocal(tuned_ranker(run.folder), run.folder.graph, "valid", VALIDATED)
    record = run.folder.record
    row: dict[str, Any] = {"graph": graph, "busy": beside, "minutes": minutes, "taken": round(taken, 2)}
    row |= {"valid": round(float(valid_B.mean()), 4), "spent": record["spent"]}
    row["texts_cut"] = record["signals"].get("biencoder", {}).get("texts_cut", 0)
    row["stages"] = record["recipe"]["stages"]
    row |= {"versions": provenance.versions(), "hardware": provenance.hardware()}
    np.save(path / "valid.npy", valid_B.astype(np.float32))
    (path / "row.json").write_text(json.dumps(row), "utf-8")
    print({key: x for key, x in row.items() if key not in ("versions", "hardware")}, flush=True)


def collected(folder: Path) -> list[dict[str, Any]]:
    """All rows of a folder, each with how far it is ahead of the next shorter time."""
    rows = [json.loads(path.read_text("utf-8")) for path in folder.glob("*/row.json")]
    rows.sort(key=lambda row: (row["graph"], row["busy"], row["minutes"]))
    for shorter, row in pairwise(rows):
        if (shorter["graph"], shorter["busy"]) == (row["graph"], row["busy"]):
            one, two = (
                np.load(folder / f"{x['graph']} {x['busy']} {x['minutes']:g}" / "valid.npy")
                for x in (shorter, row)
            )
            row["gained"] = interval(two - one)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Validation MRR by minutes."""
    lines = [
        "| graph | minutes | busy | taken | validation MRR | gained by the time | texts cut |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        gained = "" if "gained" not in row else f"{row['gained'][0]:+.3f} ± {row['gained'][1]:.3f}"
        cells = (
            row["graph"],
            f"{row['minutes']:g}",
            row["busy"],
            row["taken"],
            f"{row['valid']:.3f}",
            gained,
        )
        lines.append("| " + " | ".join(map(str, (*cells, f"{row['texts_cut']:,}"))) + " |")
    return "\n".join(lines)


def main(
    graph: Annotated[str | None, typer.Argument(help="None collects what the folder has.")] = None,
    model: Annotated[str, typer.Option(help="The pretrained model.")] = "minilm",
    minutes: str = "2,3,5,8,15",
    beside: Annotated[str, typer.Option("--busy", help="How many busy processes.")] = "0,2",
    folder: Annotated[Path, typer.Option(help="Where runs and ranks are kept.")] = Path("deadlines"),
) -> None:
    """Train and measure, and print a line each."""
    if graph is None:
        rows = collected(folder)
        store.write_rows(OUTPUT, rows)
        marks = "<!-- deadlines: python eval/benchmarks/deadlines.py -->", "<!-- end of deadlines -->"
        store.replace_between(DOCS, *marks, table(rows))
        return
    folder.mkdir(exist_ok=True)
    for processes in map(int, beside.split(",")):
        for at in map(float, minutes.split(",")):
            measure(graph, model, at, processes, folder)


if __name__ == "__main__":
    typer.run(main)
