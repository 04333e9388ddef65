"""How many requests per second `kgmlm serve` answers, and how fast, with batches and one query at a time.

    pip install 'kgmlm[serve,load]'
    OMP_NUM_THREADS=1 python eval/benchmarks/serving.py RUN [--clients 1,8,64] [--seconds 20] [--output FILE]

Clients (locust) ask queries of the run's graph on this machine, each as soon as it is answered. Both ways are
measured in turn, several rounds, and the median is told. The record is eval/benchmarks/serving.json.
"""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import psutil
import typer

from kgmlm import open_run
from kgmlm.runs import provenance

WAYS = {"batches": (), "one at a time": ("--batch-size", "1", "--window", "0")}
COLUMNS = {"p50_ms": "50%", "p95_ms": "95%", "p99_ms": "99%"}
KEPT = 2000  # queries to draw from


@contextmanager
def served(run: Path, *options: str) -> Iterator[tuple[str, psutil.Process]]:
    """The URL of a serving process on a free port of this machine, and the process."""
    command = [sys.executable, "-m", "kgmlm", "serve", str(run), "--port", "0", "-q", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if url := re.search(r"http://127\.0\.0\.1:\d+", line):
                break
        else:
            raise SystemExit(said)
        yield url[0], psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def queries_of(run: Path, path: Path) -> None:
    """Write queries of both sides of the run's validation triples, as requests have them."""
    graph = open_run(run).graph
    split = "valid" if "valid" in graph.splits else "train"
    with path.open("w", encoding="utf-8") as file:
        for head, relation, tail in graph.labeled(graph.splits[split])[: KEPT // 2]:
            for known in ({"head": head}, {"tail": tail}):
                file.write(json.dumps(known | {"relation": relation}) + "\n")


def loaded(url: str, queries: Path, clients: int, seconds: int) -> dict[str, float]:
    """What so many clients get in so many seconds."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "locust", "-f", str(Path(__file__).with_name("asking.py"))),
            *("--headless", "--only-summary", "--host", url, "--users", str(clients)),
            *("--spawn-rate", str(clients), "--run-time", f"{seconds}s", "--csv", f"{folder}/found"),
        ]
        environment = {**os.environ, "KGMLM_QUERIES": str(queries)}
        subprocess.run(command, env=environment, check=True, capture_output=True)
        with open(f"{folder}/found_stats.csv", newline="", encoding="utf-8") as file:
            row = next(row for row in csv.DictReader(file) if row["Name"] == "Aggregated")
    if int(row["Failure Count"]):
        raise SystemExit(f"{row['Failure Count']} of {row['Request Count']} requests failed")
    found = {key: float(row[column]) for key, column in COLUMNS.items()}
    return {"requests_per_second": round(float(row["Requests/s"]), 2), **found}


def main(
    run: Path,
    clients: str = "1,8,64",
    seconds: Annotated[int, typer.Option(min=1, max=600)] = 20,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    runtime: str = "auto",
    output: Path | None = None,
) -> None:
    """Measure both ways in turn, and print a line each."""
    numbers = [int(number) for number in clients.split(",")]
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        queries = Path(folder) / "queries.jsonl"
        queries_of(run, queries)
        for _ in range(rounds):
            for way, options in WAYS.items():
                with served(run, "--runtime", runtime, *options) as (url, process):
                    loaded(url, queries, 1, 2)
                    for number in numbers:
                        got = loaded(url, queries, number, seconds)
                        got["memory_mib"] = round(process.memory_info().rss / 2**20)
                        found.setdefault((way, number), []).append(got)
                        print(way, number, got, flush=True)
    rows: list[dict[str, Any]] = [
        {"way": way, "clients": number, **{key: median(r[key] for r in of) for key in of[0]}}
        for (way, number), of in found.items()
    ]
    record = {
        "run": run.name,
        "runtime": runtime,
        "seconds": seconds,
        "rounds": rounds,
        "rows": rows,
        "versions": provenance.versions(),
        "hardware": provenance.hardware(),
        "command": provenance.command_line(),
    }
    print(json.dumps(record, indent=1))
    if output is not None:
        output.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    typer.run(main)
