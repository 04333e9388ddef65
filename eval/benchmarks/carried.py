"""What carries over to further graphs, after minutes of a core and by the default.

    OMP_NUM_THREADS=1 python eval/benchmarks/carried.py GRAPH [--minutes 15] [--only WHO] [--folder FOLDER]
    python eval/benchmarks/carried.py --folder FOLDER     # collects: JSON, the table of eval/MEASURED.md

kgmlm is `kgmlm train` with MiniLM: by `--minutes`, or with `--minutes 0` by its default preset. Beside it
PyKEEN's ComplEx (`rivals.py`) has as much CPU time. Each is asked for test once. Ranks are filtered by all
splits, realistic, of both sides, and of all test triples. A state says whether training has the entity that
is asked about and the answer, and of which of them it has the half-link: the entity with the relation on
that side. Where a graph has false triples, kgmlm also classifies those of test among the true ones.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from foresight import STATES, Bench, cpu_seconds, interval, model_named
from rivals import trainings

sys.path.insert(0, str(Path(__file__).parents[1]))
import store

import kgmlm
from kgmlm.core.arrays import FloatArray
from kgmlm.evaluation.task import RankingTask
from kgmlm.ranking.ranker import PlainScorer
from kgmlm.runs.opened import tuned_ranker

GRAPHS = ("fb15k237-n", "kg20c", "wn18rr-v1", "fb237-v1", "umls")
HERE = Path(__file__).parent
OUTPUT, DOCS = HERE / "carried.json", HERE.parent / "MEASURED.md"
HALVES = ("both half-links", "the query's", "the answer's", "neither")
PYKEEN = "PyKEEN ComplEx"


class Carried(Bench):
    """Measures on a graph by its name."""

    def __init__(self, name: str, folder: Path, minutes: float) -> None:
        super().__init__(name, Path(name), folder, "test")
        self.minutes, self.run = minutes, self.folder / f"run-{minutes:g}"
        task = RankingTask.of(self.graph, self.protocol)
        train, n = self.graph.splits["train"], len(self.graph.entities)
        # An entity with a relation on a side: as heads, then as tails.
        links = np.unique(
            np.concatenate([2 * train[:, 1] * n + train[:, 0], (2 * train[:, 1] + 1) * n + train[:, 2]])
        )
        kind_B = 2 * task.queries.relation_B
        query_B = (kind_B + ~self.tail_B) * n + task.queries.entity_B
        answer_B = (kind_B + self.tail_B) * n + task.answers
        self.half_B = 2 * ~np.isin(query_B, links) + ~np.isin(answer_B, links)

    def named(self, who: str) -> str:
        """A row's name: who, and for how long."""
        return f"{who}, {f'{self.minutes:g} minutes' if self.minutes else 'default'}"

    def figures(self, ranks_B: FloatArray) -> dict[str, Any]:
        """Also Hits@1, and MRR by half-links with the number of ranks."""
        halves = {
            name: [round(float(ranks_B[self.half_B == at].mean()), 4), int((self.half_B == at).sum())]
            for at, name in enumerate(HALVES)
            if (self.half_B == at).any()
        }
        return {
            **super().figures(ranks_B),
            "hits_at_1": round(float((ranks_B == 1).mean()), 4),
            "halves": halves,
        }

    def ours(self) -> None:
        """Train a run, rank test, and classify its false triples."""
        if not (self.run / "run.json").is_file():
            began = time.monotonic(), cpu_seconds()
            how: dict[str, Any] = {"minutes": self.minutes} if self.minutes else {}
            kgmlm.train(self.name, "minilm", self.run, progress=False, **how)
            taken = {"wall": round(time.monotonic() - began[0]), "cpu": round(cpu_seconds() - began[1])}
            self._taken_file.write_text(json.dumps(taken), "utf-8")
        run = kgmlm.open_run(self.run, device="cpu")
        ranker = tuned_ranker(run.folder)
        valid = {stage: round(of["mrr"], 4) for stage, of in run.folder.tuned.by["valid"].items()}
        about = {"seconds": self.taken, "valid": valid, "spent": run.folder.record.get("spent", {})}
        if "test" in self.graph.negatives:
            about["classified"] = self._classified(run)
        self.keep(self.named("kgmlm"), ranker, **about)

    def _classified(self, run: Any) -> dict[str, float]:
        """Classify the true and the false triples of test."""
        graph = self.graph
        triples = [(*triple, "1") for triple in graph.labeled(graph.splits["test"])]
        triples += [(*triple, "-1") for triple in graph.labeled(graph.negatives["test"])]
        file = self.folder / "classified.tsv"
        file.write_text("".join("\t".join(row) + "\n" for row in triples), "utf-8")
        measured = kgmlm.classify(run, file, progress=False).measured or {}
        return {key: round(float(measured[key]), 4) for key in ("accuracy", "auc", "brier")}

    @property
    def _taken_file(self) -> Path:
        return self.folder / f"taken-{self.minutes:g}.json"

    @property
    def taken(self) -> dict[str, int]:
        """Seconds of kgmlm's training."""
        taken: dict[str, int] = json.loads(self._taken_file.read_text("utf-8"))
        return taken

    def pykeen(self) -> None:
        """Train PyKEEN's ComplEx for as much CPU time, and rank by it."""

        def snapshot(at: float, scorer: PlainScorer) -> None:
            self.keep(self.named(PYKEEN), scorer, minutes=round(at, 2))

        trainings(PYKEEN, model_named("minilm"))(self.graph, [self.taken["cpu"] / 120], snapshot)


def collected(folder: Path) -> list[dict[str, Any]]:
    """The rows of the record and of a folder, of rivals with how far kgmlm is ahead."""
    known = {(row["graph"], row["who"]): row for row in store.rows(OUTPUT)}
    for path in folder.glob("*/test *.json"):
        row = json.loads(path.read_text("utf-8"))
        own = path.with_name(f"test {row['who'].replace(PYKEEN, 'kgmlm')}.npy")
        if not row["who"].startswith("kgmlm") and own.is_file():
            ahead = np.load(own) - np.load(path.with_suffix(".npy"))
            row["ahead"] = interval(ahead, np.ones_like(ahead))
        known[row["graph"], row["who"]] = row
    return sorted(known.values(), key=lambda row: (GRAPHS.index(row["graph"]), row["who"]))


def table(rows: list[dict[str, Any]]) -> str:
    """Figures of each graph, and MRR by what training has."""
    columns = ("MRR", "Hits@1", "Hits@10", "tail", "head", "kgmlm ahead", STATES[0], *STATES[1:], *HALVES)
    lines = [f"| | | {' | '.join(columns)} |", "|---" * (2 + len(columns)) + "|"]
    for row in rows:
        cells = [row["graph"], row["who"]]
        cells += [f"{row[key]:.3f}" for key in ("mrr", "hits_at_1", "hits_at_10", "tail", "head")]
        cells.append("{:+.3f} ± {:.3f}".format(*row["ahead"]) if "ahead" in row else "")
        for names, of in ((STATES, row["states"]), (HALVES, row["halves"])):
            cells += [f"{of[name][0]:.3f} ({of[name][1]:,})" if name in of else "" for name in names]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(
    graph: Annotated[str | None, typer.Argument(help="None collects what the folder has.")] = None,
    minutes: Annotated[float, typer.Option(help="0 is the default preset, without a time limit.")] = 15,
    only: str = "kgmlm,complex",
    folder: Annotated[Path, typer.Option(help="Where runs, ranks and rows go.")] = Path("carried"),
) -> None:
    """Train and measure, and print a line each."""
    if graph is None:
        rows = collected(folder)
        store.write_rows(OUTPUT, rows)
        marks = "<!-- carried: python eval/benchmarks/carried.py -->", "<!-- end of carried -->"
        store.replace_between(DOCS, *marks, table(rows))
        return
    (folder / graph).mkdir(parents=True, exist_ok=True)
    bench = Carried(graph, folder, minutes)
    for who in only.split(","):
        {"kgmlm": bench.ours, "complex": bench.pykeen}[who]()


if __name__ == "__main__":
    typer.run(main)
