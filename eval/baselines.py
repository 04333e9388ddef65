"""What rules without any learning reach, through the same evaluation as a trained run.

    python eval/baselines.py [DATASET ...] [--output eval/baselines.json]

- constant: every entity scores the same, which gives chance.
- frequency: how often an entity answers the query's relation on that side in training.
- mirror: entities that training has the mirrored triple of, (answer, relation, entity), before all others.
- mirror, then frequency: both, the mirror first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from store import write_rows

from kgmlm.core.arrays import Floats
from kgmlm.core.config import Protocol
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.graphs.datasets import load_graph
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import FilterIndex, Queries
from kgmlm.ranking.ranker import PlainScorer
from kgmlm.runs import provenance

RULES = ("constant", "frequency", "mirror", "mirror, then frequency")


class Rule(PlainScorer):
    """Scores by a rule on training triples alone."""

    def __init__(self, graph: KnowledgeGraph, rule: str) -> None:
        super().__init__(len(graph.entities), len(graph.relations))
        self.rule = rule
        self.train = FilterIndex(graph.splits["train"], self.entities)
        heads, relations, tails = np.unique(graph.splits["train"], axis=0).T
        self.answers = np.zeros((2, len(graph.relations), self.entities), np.float32)
        np.add.at(self.answers, (0, relations, heads), 1)
        np.add.at(self.answers, (1, relations, tails), 1)

    def score(self, queries: Queries) -> Floats:
        """As the rule says."""
        scores_BN = np.zeros((len(queries), self.entities), np.float32)
        if "frequency" in self.rule:
            scores_BN += self.answers[queries.tail_B.astype(int), queries.relation_B]
        if "mirror" in self.rule:
            scores_BN[self.train.lookup(Queries(queries.entity_B, queries.relation_B, ~queries.tail_B))] += (
                1e6
            )
        return scores_BN


def main(
    datasets: Annotated[list[str] | None, typer.Argument()] = None,
    split: str = "test",
    output: Path | None = None,
) -> None:
    """Evaluate all rules on some datasets and print a line each."""
    rows = []
    for name in datasets or ["wn18rr", "fb15k237"]:
        graph = load_graph(name)
        for rule in RULES:
            ranker = Rule(graph, rule)
            report = evaluate(ranker, graph, Protocol(split=split)).report
            metrics = {k: v for k, v in report["metrics"].items() if ".realistic." in k}
            rows.append({"dataset": name, "split": split, "rule": rule, "metrics": metrics})
            shown = [metrics[f"both.realistic.{k}"] for k in ("inverse_harmonic_mean_rank", "hits_at_10")]
            print(f"{name}  {rule}  MRR {shown[0]:.4f}  Hits@10 {shown[1]:.4f}", flush=True)
    if output is not None:
        write_rows(output, rows, versions=provenance.versions(), command=provenance.command_line())


if __name__ == "__main__":
    typer.run(main)
