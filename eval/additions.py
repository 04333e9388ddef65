"""What linked pairs and trees change on graphs of GraIL: a run with and without them, paired by triple.

    OMP_NUM_THREADS=1 python eval/additions.py GRAPH ... [--model minilm] [--preset quick] [--seeds 3]

A run is trained, and its test triples and those of the graph with unseen entities are ranked: without linked
pairs, with them, and with trees, too. Weights are chosen on validation. The record is eval/additions.json.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import store
import typer

import kgmlm
from kgmlm.evaluation.compare import compare_ranks
from kgmlm.evaluation.metrics import read_ranks
from kgmlm.runs import provenance

RECORD = Path(__file__).with_name("additions.json")


def ranks_of(run: Path, graph: str | None, to: Path) -> Any:
    """The ranks of test triples of a run's graph, or of another one."""
    kgmlm.evaluate(run, graph=graph, ranks=to, progress=False)
    return read_ranks(to)


def row_of(name: str, model: str, preset: Any, seed: int, folder: Path) -> dict[str, Any]:
    """MRR by stages, and the paired differences from one to the next."""
    full = folder / "linked"
    seeds: dict[str, Any] = {section: {"seed": seed} for section in ("training", "biencoder", "kge", "rules")}
    cpu, started = time.process_time(), time.monotonic()
    kgmlm.train(name, model, full, preset=preset, progress=False, settings=seeds)
    spent = {"seconds": round(time.monotonic() - started), "cpu_seconds": round(time.process_time() - cpu)}
    without, trees = folder / "without", folder / "trees"
    shutil.copytree(full, without)
    kgmlm.tune(without, drop="linked", progress=False)
    shutil.copytree(full, trees)
    kgmlm.tune(trees, add="trees", progress=False)
    row: dict[str, Any] = {"graph": name, "model": model, "preset": preset, "seed": seed, **spent}
    for kind, graph in (("test", None), ("unseen", f"{name}-ind")):
        ranks = [
            ranks_of(run, graph, folder / f"{run.name}-{kind}.parquet") for run in (without, full, trees)
        ]
        for of, one, other in (("linked", ranks[0], ranks[1]), ("trees", ranks[1], ranks[2])):
            found = next(d for d in compare_ranks(one, other) if d.metric == "mrr")
            row |= {f"{kind} without {of}": round(found.a, 5), f"{kind} with {of}": round(found.b, 5)}
            row[f"{kind} {of}"] = [round(x, 5) for x in (found.difference, found.low, found.high)]
    return row | {"versions": provenance.versions(), "hardware": provenance.hardware()}


def main(
    graphs: Annotated[list[str], typer.Argument()],
    model: str = "minilm",
    preset: str = "quick",
    seeds: int = 3,
    output: Path = RECORD,
) -> None:
    """Measure graphs and seeds that are not there yet."""
    rows = store.rows(output)
    there = {(row["graph"], row["preset"], row["seed"]) for row in rows}
    for name in graphs:
        for seed in range(seeds):
            if (name, preset, seed) not in there:
                with tempfile.TemporaryDirectory() as folder:
                    rows.append(row_of(name, model, preset, seed, Path(folder)))
                store.write_rows(output, rows)
                print(rows[-1], flush=True)


if __name__ == "__main__":
    typer.run(main)
