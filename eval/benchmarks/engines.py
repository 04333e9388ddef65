"""How fast a completion or an evaluation scores in one process, and by two workers of Ray.

    OMP_NUM_THREADS=1 python eval/benchmarks/engines.py RUN [--part-size 64] [--repeats 3] [--output FILE]
    OMP_NUM_THREADS=1 python eval/benchmarks/engines.py RUN --evaluate test [--max-triples 300] ...

Each scores all queries of the run's graph, or with --evaluate ranks a split. The rate is that between the
first part and the last, of the fastest repeat, with --evaluate of the median one; until the first part, the
engine starts and each worker opens the run. What is lost is by how much the rate falls short of the one
process's, times the workers: other programs on the machine count as lost, too.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

import kgmlm
from kgmlm.runs import provenance

ENGINES: dict[str, int | None] = {"1 process": None, "Ray, 2 workers": 2}  # workers of Ray


def evaluated(run: Path, workers: int | None, split: str, triples: int | None) -> dict[str, float]:
    """Seconds until the first piece and in all, and ranks per second from the first piece on."""
    at: list[tuple[float, int]] = []

    def told(what: str, n: int, total: int) -> None:
        if what.startswith("evaluating"):
            at.append((time.monotonic(), n))

    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        kgmlm.evaluate(
            run, split=split, max_triples=triples, ray="local" if workers else None, workers=workers,
            device="cpu", progress=told, ranks=Path(folder) / "ranks.parquet",
        )  # fmt: skip
    whole = time.monotonic() - began
    rate = sum(n for _, n in at[1:]) / (at[-1][0] - at[0][0])
    return {"start_s": round(at[0][0] - began, 1), "ranks_per_second": round(rate, 1), "s": round(whole, 1)}


def timed(run: Path, workers: int | None, part_size: int) -> dict[str, float]:
    """Seconds until the first part, and queries per second from then on."""
    at: list[tuple[float, int]] = []

    def told(what: str, n: int, total: int) -> None:
        if what == "asking queries":
            at.append((time.monotonic(), n))

    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        kgmlm.complete(
            run, Path(folder) / "new.parquet", ray="local" if workers else None, workers=workers,
            part_size=part_size,
            shard="1/1", device="cpu", progress=told,
        )  # fmt: skip
    first = at[0][0]
    rate = sum(n for _, n in at[1:]) / (at[-1][0] - first)
    return {"start_s": round(first - began, 1), "queries_per_second": round(rate, 1)}


def main(
    run: Path,
    part_size: Annotated[int, typer.Option(min=1)] = 64,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    evaluate: str | None = None,
    max_triples: int | None = None,
    output: Path | None = None,
) -> None:
    """Measure and print one JSON object."""
    key = "queries_per_second" if evaluate is None else "ranks_per_second"
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ENGINES}
    for _ in range(repeats):  # in turn, so that what else the machine does falls on all
        for name, workers in ENGINES.items():
            found[name].append(
                timed(run, workers, part_size)
                if evaluate is None
                else evaluated(run, workers, evaluate, max_triples)
            )
    of_each = {name: sorted(rows, key=lambda row: row[key]) for name, rows in found.items()}
    rows = {name: many[-1 if evaluate is None else len(many) // 2] for name, many in of_each.items()}
    alone = rows["1 process"][key]
    for name, workers in ENGINES.items():
        rows[name]["lost"] = round(1 - rows[name][key] / ((workers or 1) * alone), 3)
    record = {
        "run": run.stem,
        **(
            {"part_size": part_size}
            if evaluate is None
            else {"evaluate": evaluate, "max_triples": max_triples}
        ),
        "repeats": repeats,
        "cores": os.cpu_count(),
        "load_average": [round(x, 1) for x in os.getloadavg()],
        "engines": rows,
        "hardware": provenance.hardware(),
        "versions": provenance.versions(),
        "command": provenance.command_line(),
    }
    text = json.dumps(record, indent=2)
    print(text)
    if output is not None:
        output.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    typer.run(main)
