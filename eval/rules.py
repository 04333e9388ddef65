"""What mined rules alone reach, through the same evaluation as a trained run, and what they cost.

    OMP_NUM_THREADS=1 python eval/rules.py [DATASET[:GRAPH] ...] [--set KEY=VALUE] [--output eval/rules.json]

DATASET:GRAPH mines the training triples of one graph and evaluates on another, whose training triples are
context and whose entities are the candidates.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import store
import typer

from kgmlm.core.arrays import Floats
from kgmlm.core.config import Protocol, load_settings
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.evaluation.task import Scope
from kgmlm.graphs.datasets import load_graph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.constraints import Possible
from kgmlm.ranking.ranker import PlainScorer
from kgmlm.runs import provenance
from kgmlm.signals import rows_of
from kgmlm.signals.base import Pool
from kgmlm.signals.rules import Applied, Rules
from kgmlm.text.reader import Reading

DATASETS = ("wn18rr", "fb15k237", "wn18rr-v1:wn18rr-v1-ind", "fb237-v1:fb237-v1-ind")
SHOWN = ("inverse_harmonic_mean_rank", "hits_at_1", "hits_at_10")


class Scored(PlainScorer):
    """Rules, constrained as a run's ranker is."""

    def __init__(self, rules: Rules, possible: Possible) -> None:
        super().__init__(rules.applied.entities, rules.applied.relations)
        self.rules, self.constrained = rules, possible
        self.possible = possible
        self.pool = Pool(self.entities)

    def score(self, queries: Queries) -> Floats:
        """As the rules say."""
        return self.possible.applied(self.rules.score(Reading(queries), self.pool), queries)


def measured(name: str, split: str, settings: list[str]) -> dict[str, object]:
    """A row of the record: mine, evaluate, and the CPU seconds of both."""
    trained_on, _, other = name.partition(":")
    trained = load_graph(trained_on)
    own = load_settings(None, settings).rules
    started = time.process_time()
    rules = Rules.fit(trained, own)
    mined = time.process_time()
    possible = Possible.learn(trained.splits["train"], len(trained.relations))
    protocol = Protocol(split=split, candidates="graph" if other else "all")
    scope = Scope.of(trained)
    if other:
        scope = Scope.inductive(trained, load_graph(other), protocol)
        context = scope.graph.context
        rows = rows_of(context, trained.context)
        sizes = len(context.entities), len(context.relations)
        rules = replace(rules, applied=Applied(rules.applied.rules.for_graph(*rows), context.train, *sizes))
        possible = possible.for_graph(rows[1])
    begun = time.process_time()
    report = evaluate(Scored(rules, possible), scope, protocol).report
    return {
        "dataset": name,
        "split": split,
        "settings": own.model_dump(mode="json"),
        "rules": {
            "paths": len(rules.applied.rules.paths),
            "with constants": len(rules.applied.rules.constants),
        },
        "cpu_seconds": {
            "mining": round(mined - started, 1),
            "evaluating": round(time.process_time() - begun, 1),
        },
        "metrics": {k: v for k, v in report["metrics"].items() if ".realistic." in k},
    }


def main(
    datasets: Annotated[list[str] | None, typer.Argument()] = None,
    split: str = "test",
    set_: Annotated[list[str] | None, typer.Option("--set")] = None,
    output: Path | None = None,
) -> None:
    """Mine and evaluate, and print a line each; rows of the output are replaced by name and split."""
    rows = []
    for name in datasets or DATASETS:
        row = measured(name, split, set_ or [])
        rows.append(
            {
                **row,
                "versions": provenance.versions(),
                "hardware": provenance.hardware(),
                "command": provenance.command_line(),
            }
        )
        shown = [f"{row['metrics'][f'both.realistic.{k}']:.4f}" for k in SHOWN]
        print(name, split, *shown, row["rules"], row["cpu_seconds"], flush=True)
    store.replace_rows(output, rows, "dataset", "split")


if __name__ == "__main__":
    typer.run(main)
