"""What entity types reach alone, and as a mask, without any text; and what they cost.

    OMP_NUM_THREADS=1 python eval/entity_types.py [DATASET ...] [--split valid] [--output FILE]

The record is eval/entity_types.json. Beside other signals eval/combinations.py measures types.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import store
import typer

from kgmlm.core.arrays import Floats
from kgmlm.core.config import Protocol, TypeSettings
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.graphs.datasets import load_graph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.constraints import Constraint, Functional, Possible, Typed
from kgmlm.ranking.ranker import PlainScorer
from kgmlm.runs import provenance
from kgmlm.signals.base import Pool
from kgmlm.signals.types import Types
from kgmlm.text.reader import Reading

DATASETS = ("wn18rr", "fb15k237", "wn18rr-v1", "fb237-v1")
KEYS = ("mrr", "both.realistic.hits_at_1", "both.realistic.hits_at_10")


class Scored(PlainScorer):
    """Types alone, constrained as a run's ranker is."""

    def __init__(self, types: Types, possible: Possible, relations: int) -> None:
        super().__init__(len(types.types), relations)
        self.types, self.possible, self.pool = types, possible, Pool(len(types.types))

    def score(self, queries: Queries) -> Floats:
        """As the types say."""
        return self.possible.applied(self.types.score(Reading(queries), self.pool), queries)

    def unconstrained(self) -> Scored:
        """Without constraints."""
        relations = len(self.possible.loop_free_R)
        return Scored(self.types, Possible.anything(relations), relations)


def of_dataset(name: str, split: str) -> Iterator[dict[str, Any]]:
    """Types alone, and what masks forbid."""
    graph = load_graph(name)
    started = time.process_time()
    types = Types.fit(graph, TypeSettings())
    counted = time.process_time() - started
    plain = Possible.learn(graph.splits["train"], len(graph.relations))
    masks: dict[str, Constraint] = {
        "typed": Typed(types.types),
        "functional": Functional.learn(graph.context),
    }
    for rung, possible in {
        "types": plain,
        "types, typed": plain.met(masks["typed"]),
        "types, functional": plain.met(masks["functional"]),
    }.items():
        started = time.process_time()
        scorer = Scored(types, possible, len(graph.relations))
        report = evaluate(scorer, graph, Protocol(split=split)).report
        yield {
            "dataset": name,
            "split": split,
            "rung": rung,
            "triples": report["triples"],
            **{key.split(".")[-1]: report["metrics"][key] for key in KEYS},
            "constraints": report.get("constraints"),
            "types_from": types.types.sources(),
            "cpu_seconds": {
                "counting": round(counted, 1),
                "evaluating": round(time.process_time() - started, 1),
            },
        }


def main(
    datasets: Annotated[list[str] | None, typer.Argument()] = None,
    split: str = "test",
    output: Path | None = None,
) -> None:
    """Measure, and print a line each; rows of the output are replaced by dataset, split and rung."""
    rows = []
    for name in datasets or DATASETS:
        for row in of_dataset(name, split):
            shown = [f"{row[key.split('.')[-1]]:.4f}" for key in KEYS]
            print(name, split, row["rung"], *shown, row["constraints"], flush=True)
            how = {"versions": provenance.versions(), "hardware": provenance.hardware()}
            rows.append({**row, **how, "command": provenance.command_line()})
    store.replace_rows(output, rows, "dataset", "split", "rung")


if __name__ == "__main__":
    typer.run(main)
