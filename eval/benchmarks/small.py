"""The lists of small graphs: of the ten best new triples, how many are in the part that was left out?

    OMP_NUM_THREADS=1 python eval/benchmarks/small.py GRAPH ... [--seeds 5] [--code FOLDER] [--name today]
        [--output eval/small.json]

GRAPH is a built-in dataset or a folder. Of all its triples, 150, 200, 250, 300 and 400 are drawn (a size for
each seed) as training triples; types and texts of their entities are kept. The triples between these entities
that were left out are what a list can get right. A run is trained by the preset "quick" with MiniLM, and
`kgmlm complete` makes the list by its defaults. With --code another checkout does both.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import typer

import kgmlm
from kgmlm.core.tables import write_table

SIZES = (150, 200, 250, 300, 400)
BEST = 10


def drawn(graph: kgmlm.KnowledgeGraph, size: int, seed: int, folder: Path) -> set[tuple[str, ...]]:
    """Write a dataset folder of so many triples; returns the triples that were left out."""
    triples = np.unique(graph.all_triples, axis=0)
    rng = np.random.default_rng(seed)
    kept = rng.permutation(len(triples))[: min(size, len(triples) * 2 // 3)]
    train, others = triples[np.sort(kept)], np.delete(triples, kept, axis=0)
    ids = np.unique(train[:, [0, 2]])
    others = others[np.isin(others[:, [0, 2]], ids).all(1) & np.isin(others[:, 1], train[:, 1])]
    folder.mkdir()
    write_table(folder / "train", graph.labels(train), header=False)
    write_table(folder / "entities", graph.entities.take(ids).table)
    relations = [graph.relations[int(r)] for r in np.unique(train[:, 1])]
    names = {"label": [r.label for r in relations], "name": [r.name for r in relations]}
    write_table(folder / "relations", pa.table(names))
    return set(graph.labeled(others))


def measured(graph: kgmlm.KnowledgeGraph, seed: int, code: Path | None) -> dict[str, Any]:
    """Train on a part of a graph, and count what the list gets right."""
    environment = dict(os.environ) | ({} if code is None else {"PYTHONPATH": str(code)})

    def run(*arguments: object) -> str:
        command = [sys.executable, "-m", "kgmlm", *map(str, arguments), "--quiet"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd="/")
        return "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        left_out = drawn(graph, SIZES[seed % len(SIZES)], seed, folder / "graph")
        began = time.monotonic()
        error = run("train", "--dataset", folder / "graph", "--model", "minilm", "--preset", "quick",
                    "--output", folder / "run")  # fmt: skip
        trained = time.monotonic()
        new = folder / "new.csv"
        error = error or run("complete", folder / "run", "--output", new)
        ended = time.monotonic()
        with new.open(encoding="utf-8", newline="") if new.is_file() else open(os.devnull) as file:
            listed = [(row["head"], row["relation"], row["tail"]) for row in csv.DictReader(file)]
        return {
            "triples": SIZES[seed % len(SIZES)], "left_out": len(left_out), "listed": len(listed),
            "right": sum(row in left_out for row in listed[:BEST]), "error": error,
            "train_seconds": round(trained - began, 1), "complete_seconds": round(ended - trained, 1),
        }  # fmt: skip


def main(
    graphs: list[str],
    seeds: Annotated[int, typer.Option()] = 5,
    code: Annotated[Path | None, typer.Option(help="Another checkout.")] = None,
    name: Annotated[str, typer.Option(help="What the code is called in the record.")] = "today",
    output: Annotated[Path | None, typer.Option()] = None,
) -> None:
    """Measure, print, and add rows to a record."""
    rows = json.loads(output.read_text())["rows"] if output is not None and output.is_file() else []
    for dataset in graphs:
        graph = kgmlm.load_graph(dataset)
        for seed in range(seeds):
            row = {"graph": Path(dataset).name, "seed": seed, "code": name, **measured(graph, seed, code)}
            print(json.dumps(row), flush=True)
            same = [row[key] for key in ("graph", "seed", "code")]
            rows = [x for x in rows if [x[key] for key in ("graph", "seed", "code")] != same] + [row]
            if output is not None:
                output.write_text('{"rows": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]}\n")


if __name__ == "__main__":
    typer.run(main)
