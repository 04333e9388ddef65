"""How good a graph's completion is after so many minutes, beside what a user would train instead.

    python eval/benchmarks/minutes.py wn18rr --model MODEL --minutes 5,15,60 [--only kgmlm] [--folder FOLDER]
    python eval/benchmarks/minutes.py --folder FOLDER     # collects: JSON, plot, the table of the docs

kgmlm is `kgmlm train --minutes M` on two cores, one run per time. Its rivals (`rivals.py`) train once, in one
thread, for the longest time but 60 minutes, and are measured after each: so many minutes of two cores are
twice as many of one thread. Validation of kgmlm is that of its weights, each half of the triples by those of
the other; that of rivals is of the same number of triples. The test is asked once, at the end; the record
has how far kgmlm was ahead of a rival that was measured in the same folder, paired by triple, with 95 %
intervals.

The graph "services" is made up: 400 triples of services, teams, people and incidents with names, types and a
line of description (`graphs.py`).
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from graphs import services
from rivals import RIVALS, trainings

sys.path.insert(0, str(Path(__file__).parents[1]))
import store

import kgmlm
from kgmlm.core.config import Protocol
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.ranking.ranker import PlainScorer
from kgmlm.runs import provenance
from kgmlm.runs.opened import tuned_ranker

GRAPHS = ("wn18rr", "fb15k237", "wn18rr-v1", "umls", "services")
WHO = ("kgmlm", *RIVALS)
HERE = Path(__file__).parent
OUTPUT, DOCS = HERE / "minutes.json", HERE.parent / "MEASURED.md"
LONG = 60  # minutes from which on rivals are not trained
VALIDATED, TESTED = 1000, 5000  # triples at most, drawn by seed 0


def reciprocal(scorer: Any, graph: KnowledgeGraph, split: str, most: int) -> np.ndarray[Any, Any]:
    """Reciprocal ranks of a split's queries, all heads and then all tails."""
    found = evaluate(scorer, graph, Protocol(split=split, max_triples=most))
    return 1 / found.ranks.of_type("realistic")


def interval(difference_B: np.ndarray[Any, Any]) -> list[float]:
    """The mean difference of reciprocal ranks, and half of its 95 % interval, over triples."""
    by_triple = difference_B.reshape(2, -1).mean(0)
    half = 1.96 * by_triple.std(ddof=1) / np.sqrt(len(by_triple))
    return [round(float(by_triple.mean()), 4), round(float(half), 4)]


class Bench:
    """Measures on a graph, and keeps rows and reciprocal ranks in a folder."""

    def __init__(self, name: str, graph: KnowledgeGraph, folder: Path) -> None:
        self.name, self.graph, self.folder = name, graph, folder

    def keep(
        self, who: str, minutes: float, valid: float, test_B: np.ndarray[Any, Any], **about: Any
    ) -> None:
        """A row, and its ranks for comparisons."""
        row = {"graph": self.name, "who": who, "minutes": minutes, "valid": round(valid, 4)}
        row |= {"test": round(float(test_B.mean()), 4), **about}
        row |= {"versions": provenance.versions(), "hardware": provenance.hardware()}
        file = self.folder / f"{self.name} {who} {minutes:g}"
        np.save(file.with_name(f"{file.name}.npy"), test_B.astype(np.float32))
        file.with_name(f"{file.name}.json").write_text(json.dumps(row), "utf-8")
        print(row, flush=True)

    def kgmlm(self, model: str, minutes: float, seed: int) -> None:
        """Train kgmlm for a time."""
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            run = kgmlm.train(
                self.graph,
                model,
                Path(folder) / "run",
                minutes=minutes,
                progress=False,
                settings={"training.seed": seed},
            )
            taken = (time.monotonic() - began) / 60
            chosen = run.folder.tuned.by["valid"]
            test_B = reciprocal(tuned_ranker(run.folder), run.folder.graph, "test", TESTED)
            alone = {stage: round(of["mrr"], 4) for stage, of in chosen.items()}
            self.keep(
                "kgmlm", minutes, list(chosen.values())[-1]["mrr"], test_B, taken=round(taken, 2), seed=seed,
                stages=alone, spent=run.folder.record["spent"], steps=run.folder.record["step"],
            )  # fmt: skip

    def rival(self, who: str, model: str, minutes: list[float]) -> None:
        """Train a rival once, and measure it after each time."""
        began, found = time.monotonic(), list[tuple[float, float, Any]]()

        def snapshot(at: float, scorer: PlainScorer) -> None:
            valid = float(reciprocal(scorer, self.graph, "valid", VALIDATED).mean())
            found.append((at, valid, reciprocal(scorer, self.graph, "test", TESTED)))
            print(f"{self.name} {who} {at:g}: validation {valid:.4f}", flush=True)

        about = trainings(who, model)(self.graph, minutes, snapshot)
        about["wall_minutes"] = round((time.monotonic() - began) / 60, 1)
        for at, valid, test_B in found:
            self.keep(who, at, valid, test_B, how=about)


def collected(folder: Path) -> list[dict[str, Any]]:
    """The rows of the record and of a folder; of rivals with how far kgmlm is ahead of them."""
    known = {(row["graph"], row["who"], row["minutes"]): row for row in store.rows(OUTPUT)}
    for path in folder.glob("*.json"):
        row = json.loads(path.read_text("utf-8"))
        known[row["graph"], row["who"], row["minutes"]] = row
    rows = list(known.values())
    rows.sort(key=lambda row: (GRAPHS.index(row["graph"]), WHO.index(row["who"]), row["minutes"]))
    for row in rows:
        test_B, own = (
            folder / f"{row['graph']} {who} {row['minutes']:g}.npy" for who in (row["who"], "kgmlm")
        )
        if row["who"] != "kgmlm" and own.is_file() and test_B.is_file():
            row["kgmlm_ahead"] = interval(np.load(own) - np.load(test_B))
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Test MRR by graph, minutes and model."""
    lines = ["| | minutes | " + " | ".join(WHO) + " |", "|---" * (len(WHO) + 2) + "|"]
    for graph in GRAPHS:
        for minutes in sorted({row["minutes"] for row in rows if row["graph"] == graph}):
            cells = []
            for who in WHO:
                at = (graph, minutes, who)
                row = next((x for x in rows if (x["graph"], x["minutes"], x["who"]) == at), None)
                cells.append("" if row is None else f"{row['test']:.3f}")
            lines.append(f"| {graph} | {minutes:g} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Validation MRR by minutes, a graph each."""
    plots = store.pyplot()

    graphs = [graph for graph in GRAPHS if any(row["graph"] == graph for row in rows)]
    figure, axes = plots.subplots(1, len(graphs), figsize=(2.6 * len(graphs), 3.2), squeeze=False)
    for graph, axis in zip(graphs, axes[0], strict=True):
        for who in WHO:
            points = [
                (row["minutes"], row["valid"]) for row in rows if (row["graph"], row["who"]) == (graph, who)
            ]
            if points:
                axis.plot(*zip(*points, strict=True), "o-", label=who)
        ticks = sorted({row["minutes"] for row in rows if row["graph"] == graph})
        axis.set(title=graph, xlabel="minutes, two cores", xscale="log", xticks=ticks)
        axis.set_xticklabels([f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
        axis.grid(visible=True, alpha=0.3)
    axes[0][0].set_ylabel("validation MRR")
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    store.save_figure(figure, path)


def main(
    graph: Annotated[str | None, typer.Argument(help="None collects what the folder has.")] = None,
    model: Annotated[str, typer.Option(help="The pretrained model, of kgmlm and of SimKGC.")] = "",
    minutes: str = "5,15",
    only: str = ",".join(WHO),
    seed: int = 0,
    folder: Annotated[Path, typer.Option(help="Where rows and ranks are kept.")] = Path("minutes"),
) -> None:
    """Train and measure, and print a line each."""
    if graph is None:
        rows = collected(folder)
        store.write_rows(OUTPUT, rows)
        draw(rows, HERE.parents[1] / "docs" / "images" / "minutes.svg")
        marks = "<!-- minutes: python eval/benchmarks/minutes.py -->", "<!-- end of minutes -->"
        store.replace_between(DOCS, *marks, table(rows))
        return
    folder.mkdir(exist_ok=True)
    times = [float(m) for m in minutes.split(",")]
    with tempfile.TemporaryDirectory() as made:
        if graph == "services":
            services(Path(made) / graph)
        loaded = kgmlm.load_graph(Path(made) / graph if graph == "services" else graph)
        bench = Bench(graph, loaded, folder)
        for who in only.split(","):
            if who != "kgmlm":
                bench.rival(who, model, [m for m in times if m < LONG])
                continue
            for at in times:
                bench.kgmlm(model, at, seed)


if __name__ == "__main__":
    typer.run(main)
