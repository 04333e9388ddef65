"""Whether probabilities come true: expected against found in test, which is hidden.

    OMP_NUM_THREADS=1 python eval/answers.py NAME=GRAPH ... [--runs runs] [--sample 20000] [--output FILE]

GRAPH is a built-in dataset, a folder, or "services" or "synthetic" (eval/benchmarks/graphs.py). A run of the
preset "quick" with MiniLM is trained in the folder RUNS, or taken from there, and `kgmlm complete` lists what
the graph lacks, training and validation known. Counted are the 10, 50 and 200 most probable triples, those
with a probability of .5 or more, and all with .01 or more. Where test has dates, its first triples by date
are the hidden set, as many as validation has; else probabilities are scaled to the size of test. Intervals
are of 95 % for all rows of a run together (Bonferroni), if triples were found independently. Rows replace
those of the same name.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import store
import typer
from benchmarks.graphs import main as synthetic
from benchmarks.graphs import services
from scipy.stats import norm

import kgmlm
from kgmlm.core.arrays import IntArray
from kgmlm.graphs.queries import triple_keys
from kgmlm.runs import provenance

BEST = (10, 50, 200)
LIKELY, LISTED = 0.5, 0.01
SYNTHETIC = {"entities": 2000, "triples_": 10_000, "held_out": 500, "seed": 0}


def run_of(name: str, source: str, runs: Path) -> kgmlm.Run:
    """The run of a graph: trained now, or there."""
    made = {"services": services, "synthetic": partial(synthetic, **SYNTHETIC)}
    if source in made and not (runs / f"{name}-graph").exists():
        made[source](runs / f"{name}-graph")
    path = runs / name
    if not (path / "run.json").is_file():
        graph = str(runs / f"{name}-graph") if source in made else source
        kgmlm.train(graph, "minilm", path, preset="quick", progress=False)
    return kgmlm.open_run(path, device="cpu")


def hidden_of(run: kgmlm.Run, source: str) -> tuple[IntArray, bool]:
    """Keys of the hidden triples, and whether they are the first ones by date."""
    graph = run.graph
    size = len(graph.entities), len(graph.relations)
    known = np.concatenate([triple_keys(graph.splits[split], *size) for split in ("train", "valid")])
    file = Path(source) / "test.tsv"
    if not file.is_file() or "date" not in pd.read_csv(file, sep="\t", nrows=0).columns:
        return np.setdiff1d(triple_keys(graph.splits["test"], *size), known), False
    rows = pd.read_csv(file, sep="\t", dtype=str).sort_values("date", kind="stable")
    entities, relations = graph.entities.index, graph.relations.index
    ids = [
        (entities[h], relations[r], entities[t])
        for h, r, t in rows[["head", "relation", "tail"]].itertuples(index=False)
    ]
    keys = triple_keys(np.array(ids), *size)
    keys = keys[~np.isin(keys, known)]
    return keys[: len(graph.splits["valid"])], True


def rows_of(name: str, source: str, runs: Path, sample: int) -> list[dict[str, Any]]:
    """A row for each number of triples, one for those with .5 or more, and one for all that are listed."""
    run = run_of(name, source, runs)
    graph = run.graph
    made = kgmlm.complete(
        run, runs / f"{name}.parquet", known=["train", "valid"], min_probability=LISTED, sample=sample,
        progress=False,
    )  # fmt: skip
    table = pd.read_parquet(runs / f"{name}.parquet")
    entities, relations = graph.entities.index, graph.relations.index
    size = len(graph.entities), len(graph.relations)
    ends = table["head"].map(entities), table["relation"].map(relations), table["tail"].map(entities)
    keys, p = triple_keys(np.stack(ends, 1).astype(np.int64), *size), table["probability"].to_numpy()
    hidden, dated = hidden_of(run, source)
    hit = np.isin(keys, hidden)
    if not dated:
        valid = triple_keys(graph.splits["valid"], *size)
        valid = np.setdiff1d(valid, triple_keys(graph.splits["train"], *size))
        p = np.minimum(1.0, p * len(hidden) / len(valid))  # of a hidden set of the size of test
    shown = {**{f"{n} best": n for n in BEST}, f"p >= {LIKELY:g}": int((p >= LIKELY).sum()), "all": len(p)}
    width = norm.ppf(1 - 0.025 / len(shown))
    rows = []
    for what, n in shown.items():
        expected, half = float(p[:n].sum()), float(width * np.sqrt((p[:n] * (1 - p[:n])).sum()))
        found = int(hit[:n].sum())
        rows.append({
            "run": name, "graph": graph.name, "validation": graph.validation, "queries": made["queries"],
            "hidden": len(hidden), "what": what, "triples": min(n, len(p)), "expected": round(expected, 1),
            "found": found, "half": round(half, 1), "within": bool(abs(found - expected) <= half + 0.5),
        })  # fmt: skip
    return rows


def main(
    graphs: list[str],
    runs: Path = Path("runs"),
    sample: Annotated[int, typer.Option(help="Ask a seeded sample of so many queries; 0 is all.")] = 20000,
    output: Path | None = Path("eval/answers.json"),
) -> None:
    """Measure, and print a line each."""
    for given in graphs:
        name, _, source = given.partition("=")
        rows = rows_of(name, source or name, runs, sample)
        for row in rows:
            print(row, flush=True)
        about = {"command": provenance.command_line(), "versions": provenance.versions()}
        store.replace_rows(output, [{**row, **about} for row in rows], "run")


if __name__ == "__main__":
    typer.run(main)
