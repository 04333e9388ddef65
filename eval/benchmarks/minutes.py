"""How good a graph's completion is after so many minutes, beside what a user would train instead.

    python eval/benchmarks/minutes.py wn18rr --model MODEL --minutes 5,15,60 [--only kgmlm] [--output FILE]

kgmlm is `kgmlm train --minutes M` on two cores, one run per time. Its rivals (`rivals.py`) train once, in one
thread, for the longest time but 60 minutes, and are measured after each: so many minutes of two cores are
twice as many of one thread. Validation of kgmlm is that of its weights, each half of the triples by those of
the other; that of rivals is of the same number of triples. The test is asked once, at the end, and the
differences to kgmlm are of its triples, paired, with 95 % intervals.

The graph "services" is made up: 400 triples of services, teams, people and incidents with names, types and a
line of description (`graphs.py`).
"""

from __future__ import annotations

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
from store import rows, write_rows

import kgmlm
from kgmlm.core.config import Protocol
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.ranking.ranker import PlainScorer
from kgmlm.runs import record

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
    """The rows of a graph, and the ranks that they are compared by."""

    def __init__(self, name: str, graph: KnowledgeGraph, ranks: Path) -> None:
        self.name, self.graph, self.ranks = name, graph, ranks
        self.rows: list[dict[str, Any]] = []

    def keep(
        self, who: str, minutes: float, valid: float, test_B: np.ndarray[Any, Any], **about: Any
    ) -> None:
        """A row, and its ranks for comparisons."""
        file = self.ranks / f"{self.name} {who} {minutes:g}.npy"
        np.save(file, test_B.astype(np.float32))
        row = {"graph": self.name, "who": who, "minutes": minutes, "valid": round(valid, 4)}
        row |= {"test": round(float(test_B.mean()), 4), **about}
        own = self.ranks / f"{self.name} kgmlm {minutes:g}.npy"
        if who != "kgmlm" and own.is_file():
            row["kgmlm_ahead"] = interval(np.load(own) - test_B)
        self.rows.append(row)
        print(row, flush=True)

    def kgmlm(self, model: str, minutes: float, seed: int) -> None:
        """Train kgmlm for a time."""
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            run = kgmlm.train(
                self.graph, model, Path(folder) / "run", minutes=minutes, progress=False, seed=seed
            )
            taken = (time.monotonic() - began) / 60
            chosen = run.folder.tuned.by["valid"]
            test_B = reciprocal(run.folder.ranker(), run.folder.graph, "test", TESTED)
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


def main(
    graph: str,
    model: Annotated[str, typer.Option(help="The pretrained model, of kgmlm and of SimKGC.")],
    minutes: str = "5,15",
    only: str = ",".join(["kgmlm", *RIVALS]),
    seed: int = 0,
    ranks: Annotated[Path, typer.Option(help="A folder for ranks, for comparisons.")] = Path("minutes-ranks"),
    output: Path | None = None,
) -> None:
    """Train and measure, and print a line each."""
    ranks.mkdir(exist_ok=True)
    times = [float(m) for m in minutes.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        if graph == "services":
            services(Path(folder) / graph)
        loaded = kgmlm.load_graph(Path(folder) / graph if graph == "services" else graph)
        bench = Bench(graph, loaded, ranks)
        for who in only.split(","):
            if who != "kgmlm":
                bench.rival(who, model, [m for m in times if m < LONG])
                continue
            for at in times:
                bench.kgmlm(model, at, seed)
    if output is not None:
        key = ("graph", "who", "minutes", "seed")
        new = {tuple(row.get(k) for k in key): row for row in bench.rows}
        old = {tuple(row.get(k) for k in key): row for row in rows(output)}
        about = {"versions": record.versions(), "hardware": record.hardware()}
        write_rows(output, list({**old, **new}.values()), **about)


if __name__ == "__main__":
    typer.run(main)
