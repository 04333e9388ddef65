"""Whether the probabilities of ranked answers come true: expected against found in test, which is hidden.

    kgmlm train --dataset GRAPH --model MINILM --preset quick --output runs/quick-GRAPH
    OMP_NUM_THREADS=1 python eval/answers.py runs/quick-GRAPH ... [--queries 20000] [--output FILE]

Asked is what `kgmlm calibrate` draws from, in full or a sample of it: all queries that training answers, and
those that it does not where the types of the entity fit. Test is no part of how queries are drawn. Answers
that training or validation has are left out, and the others counted: the 10, 50 and 200 most probable, and
those with a probability of .5 or more. A triple counts in each of its two lists that has it. Probabilities
are scaled to the size of test. Intervals are of 95 % for all rows of a run together (Bonferroni), if triples
were found independently. A run needs probabilities; rows replace those of the same run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import store
import typer
from scipy.stats import norm

import kgmlm
from kgmlm.core.arrays import IntArray
from kgmlm.graphs.queries import FilterIndex, triple_keys
from kgmlm.prediction.candidates import asked_queries, sampled, seen_queries
from kgmlm.runs import provenance
from kgmlm.runs.opened import constraints_of
from kgmlm.runs.options import RankingOptions

BEST = (10, 50, 200)
LEAST = 0.5
K = 10  # answers of each query


def answers(run: kgmlm.Run, most: int, seed: int) -> tuple[IntArray, np.ndarray[Any, Any], int]:
    """The answers of a run's lists, as triples ``(n, 3)``, with their probabilities; and how many queries it
    had.
    """
    graph = run.graph
    train, count, relations = graph.splits["train"], len(graph.entities), np.arange(len(graph.relations))
    (typed,) = constraints_of(run.folder, RankingOptions(typed=True), graph)
    index = FilterIndex(train, count)
    keys = [
        index.keys(seen_queries(train, count, relations)),
        index.keys(asked_queries(train, count, relations, typed.askable, everyone=True)),
    ]
    queries = sampled(index.queries(np.unique(np.concatenate(keys))), most or count**2, seed)
    asked, triples, probabilities = list(queries), [], []
    for at, best in run.predictor.predict(asked, K):
        query = asked[at]
        for p in best:
            if p.probability is not None:
                h, t = (query.entity, p.id) if query.target == "tail" else (p.id, query.entity)
                triples.append((h, query.relation, t))
                probabilities.append(p.probability)
    return np.array(triples, np.int64).reshape(-1, 3), np.array(probabilities), len(asked)


def rows_of(path: Path, most: int, seed: int) -> list[dict[str, Any]]:
    """A row for each number of answers, and one for those with a probability of .5 or more."""
    run = kgmlm.open_run(path, device="cpu")
    graph = run.graph
    triples, probability, asked = answers(run, most, seed)
    order = np.argsort(-probability, kind="stable")
    size = len(graph.entities), len(graph.relations)
    keys, p = triple_keys(triples[order], *size), probability[order]
    known = np.concatenate([triple_keys(graph.splits[split], *size) for split in ("train", "valid")])
    new = np.setdiff1d(triple_keys(graph.splits["test"], *size), known)
    hit = np.isin(keys, new)
    valid = np.setdiff1d(triple_keys(graph.splits["valid"], *size), triple_keys(graph.splits["train"], *size))
    p = np.minimum(1.0, p * len(new) / len(valid))  # of a hidden set of the size of test
    shown = {**{f"{n} best": n for n in BEST}, f"p >= {LEAST:g}": int((p >= LEAST).sum()), "all": len(p)}
    width = norm.ppf(1 - 0.025 / len(shown))
    rows = []
    for what, n in shown.items():
        spread = np.bincount(np.unique(keys[:n], return_inverse=True)[1], np.sqrt(p[:n] * (1 - p[:n])))
        expected, half = float(p[:n].sum()), float(width * np.sqrt((spread**2).sum()))
        found = int(hit[:n].sum())
        row = {
            "run": path.name,
            "graph": graph.name,
            "queries": asked,
            "what": what,
            "answers": min(n, len(p)),
        }
        row |= {"expected": round(expected, 1), "found": found, "half": round(half, 1)}
        rows.append(row | {"within": bool(abs(found - expected) <= half + 0.5)})
    return rows


def main(
    runs: list[Path],
    queries: Annotated[int, typer.Option(help="A seeded sample of so many; 0 is all.")] = 20000,
    seed: int = 0,
    output: Path | None = None,
) -> None:
    """Measure, and print a line each."""
    for path in runs:
        rows = rows_of(path, queries, seed)
        for row in rows:
            print(row, flush=True)
        about = {"command": provenance.command_line(), "versions": provenance.versions()}
        store.replace_rows(output, [{**row, **about} for row in rows], "run")


if __name__ == "__main__":
    typer.run(main)
