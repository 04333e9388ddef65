"""What ranking by ONNX Runtime costs beside torch: cold commands, warm queries, an environment without torch.

    kgmlm unpack models/wn18rr.kgmlm --output runs/wn18rr
    kgmlm tune runs/wn18rr --drop reverse    (not for slim_asked_back.json)
    kgmlm onnx runs/wn18rr
    python eval/benchmarks/slim.py runs/wn18rr --output eval/benchmarks/slim.json [--environment]

Cold: CPU seconds (user and system) of `kgmlm rank` in its own process, the median of five in turns. Warm:
milliseconds of one query after another in one process, in turns. With ``--environment`` a fresh virtual
environment is made as the Dockerfile does it, and measured; in it a pack of the run is served and asked.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import kgmlm
from kgmlm.core import files
from kgmlm.runs.provenance import versions

ROOT = Path(__file__).parents[2]
RUNTIMES = ("torch", "onnx")
QUERIES = 50  # of the warm ones


def asked(run: Path) -> list[tuple[str | None, str, str | None]]:
    """Some test queries, tails and heads in turns."""
    graph = kgmlm.open_run(run).graph
    rows = graph.labeled(graph.splits["test"][:: max(1, len(graph.splits["test"]) // QUERIES)][:QUERIES])
    return [(h, r, None) if i % 2 else (None, r, t) for i, (h, r, t) in enumerate(rows)]


def cold(run: Path, runtime: str, query: tuple[str | None, str, str | None]) -> tuple[float, float]:
    """CPU seconds and wall seconds of a command."""
    sides = [x for name, label in zip(("--head", "--relation", "--tail"), query, strict=True) if label
             for x in (name, label)]  # fmt: skip
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [
        sys.executable,
        "-m",
        "kgmlm",
        "rank",
        str(run),
        *sides,
        "--runtime",
        runtime,
        "--json",
        "-q",
    ]
    subprocess.run(command, check=True, capture_output=True)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - started
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, wall


def warm(run: Path, queries: list[tuple[str | None, str, str | None]]) -> dict[str, Any]:
    """Milliseconds of single queries, and how far scores are apart."""
    opened = {r: kgmlm.open_run(run, runtime=r, device="cpu") for r in RUNTIMES}  # type: ignore[arg-type]
    spent: dict[str, list[float]] = {r: [] for r in RUNTIMES}
    apart, same = 0.0, 0
    for head, relation, tail in queries:
        tables = {}
        for name, each in opened.items():
            started = time.perf_counter()
            tables[name] = each.rank(head=head, relation=relation, tail=tail, k=10)
            spent[name].append(1e3 * (time.perf_counter() - started))
        scores = [table["score"].to_numpy() for table in tables.values()]
        apart = max(apart, float(np.abs(scores[0] - scores[1]).max()))
        labels = [table.filter(regex="_label").to_numpy().tolist() for table in tables.values()]
        same += labels[0] == labels[1]
    return {
        "queries": len(queries),
        "milliseconds": {name: round(median(values[1:]), 2) for name, values in spent.items()},
        "greatest_difference_of_scores": apart,
        "same_top_ten": same,
    }


def environment(run: Path) -> dict[str, Any]:
    """A fresh virtual environment that serves a pack of the run, as the Dockerfile has it."""
    with tempfile.TemporaryDirectory() as folder:
        home, pack = Path(folder) / "venv", Path(folder) / "run.kgmlm"
        kgmlm.pack(run, pack, progress=False)
        venv.create(home, with_pip=True)
        pip = [str(home / "bin/python"), "-m", "pip", "install", "--no-compile", "-q"]
        wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", folder, str(ROOT)]
        subprocess.run(wheel, check=True)
        needed = ["-r", str(ROOT / "docker/requirements.txt"), "-c", str(ROOT / "constraints.txt")]
        subprocess.run([*pip, *needed], check=True)
        subprocess.run([*pip, "--no-deps", *map(str, Path(folder).glob("*.whl"))], check=True)
        for tests in sorted(home.rglob("tests")):
            subprocess.run(["rm", "-r", str(tests)], check=False)
        sizes = [p.stat().st_size for p in home.rglob("*") if p.is_file() and not p.is_symlink()
                 and "__pycache__" not in p.parts]  # fmt: skip
        own = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"KGMLM_CACHE": folder}
        return {"megabytes": round(sum(sizes) / 1e6), "answer": _served(home, pack, own)}


def _served(home: Path, pack: Path, own: dict[str, str]) -> Any:
    """The first answer of a pack that is served in an environment."""
    head, relation, _ = next(q for q in asked(pack) if q[0] is not None)
    command = [str(home / "bin/kgmlm"), "serve", str(pack), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=own) as served:
        try:
            assert served.stderr is not None
            line = next((x for x in served.stderr if "is served at" in x), "")
            address = line.split("is served at ")[1].split(";")[0]
            body = json.dumps({"queries": [{"head": head, "relation": relation}], "k": 1}).encode()
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{address}/rank", body, headers)
            with urllib.request.urlopen(request, timeout=60) as answered:
                return json.loads(answered.read())
        finally:
            served.terminate()


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--environment", action="store_true")
    given = parser.parse_args()
    queries = asked(given.run)
    turns = [{r: cold(given.run, r, queries[i]) for r in RUNTIMES} for i in range(5)]
    found: dict[str, Any] = {
        "cold": {
            r: {
                "cpu_seconds": round(median(t[r][0] for t in turns), 2),
                "wall_seconds": round(median(t[r][1] for t in turns), 2),
            }
            for r in RUNTIMES
        },
        "warm": warm(given.run, queries),
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
        "load": round(os.getloadavg()[0], 1),
        "machine": platform.machine(),
        "versions": versions(),
    }
    if given.environment:
        found["environment"] = environment(given.run)
    files.write_json(given.output, found)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
