"""Whether the probabilities of ranked answers come true: expected against found in test, which is hidden.

    OMP_NUM_THREADS=1 python eval/answers.py RUN ... [--queries 20000] [--output eval/answers.json]

Asked is what `kgmlm calibrate` draws from, in full or a sample of it: all queries that training answers, and
those that it does not where the types of the entity fit. Test is no part of how queries are drawn. Answers
that training or validation has are left out, and the others counted: the 10, 50 and 200 most probable, and
those with a probability of .5 or more. Intervals are of 95 % for all rows of a run together (Bonferroni), if
triples were found independently. A run needs probabilities; rows replace those of the same run.
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
from kgmlm.runs import record
from kgmlm.runs.opened import constraints_of
from kgmlm.runs.options import RankingOptions

BEST = (10, 50, 200)
LEAST = 0.5
K = 10  # answers of each query


def answers(run: kgmlm.Run, most: int, seed: int) -> tuple[IntArray, np.ndarray[Any, Any], int]:
    """The triples that a run lists ``(n, 3)``, each once, with its probability; and how many queries it had.

    A triple that both of its queries list has the higher of their probabilities.
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
    asked, found = list(queries), dict[tuple[int, int, int], float]()
    for at, best in run.predictor.predict(asked, K):
        query = asked[at]
        for p in best:
            h, t = (query.entity, p.id) if query.target == "tail" else (p.id, query.entity)
            if p.probability is not None:
                triple = (h, query.relation, t)
                found[triple] = max(found.get(triple, 0.0), p.probability)
    triples = np.array([*found], np.int64).reshape(-1, 3)
    new = ~FilterIndex(graph.splits["valid"], count).has(triples)
    return triples[new], np.array([*found.values()])[new], len(asked)


def rows_of(path: Path, most: int, seed: int) -> list[dict[str, Any]]:
    """A row for each number of answers, and one for those with a probability of .5 or more."""
    run = kgmlm.open_run(path, device="cpu")
    graph = run.graph
    triples, probability, asked = answers(run, most, seed)
    order = np.argsort(-probability, kind="stable")
    keys = triple_keys(triples[order], len(graph.entities), len(graph.relations))
    hit = np.isin(keys, triple_keys(graph.splits["test"], len(graph.entities), len(graph.relations)))
    p = probability[order]
    shown = {**{f"{n} best": n for n in BEST}, f"p >= {LEAST:g}": int((p >= LEAST).sum()), "all": len(p)}
    width = norm.ppf(1 - 0.025 / len(shown))
    rows = []
    for what, n in shown.items():
        expected, half = p[:n].sum(), width * np.sqrt((p[:n] * (1 - p[:n])).sum())
        row = {
            "run": path.name,
            "graph": graph.name,
            "queries": asked,
            "what": what,
            "answers": min(n, len(p)),
        }
        row |= {"expected": round(float(expected), 1), "found": int(hit[:n].sum())}
        rows.append(
            row | {"half": round(float(half), 1), "within": bool(abs(hit[:n].sum() - expected) <= half + 0.5)}
        )
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
        if output is not None:
            about = {"command": record.command_line(), "versions": record.versions()}
            before = [row for row in store.rows(output) if row["run"] != path.name]
            store.write_rows(output, [*before, *({**row, **about} for row in rows)])


if __name__ == "__main__":
    typer.run(main)
