"""What ranks owe to half-links: (head, relation) and (relation, tail) that training has, or has not.

    python eval/half_links.py wn18rr-25 fb15k237-23 --output eval/half_links.json

Reads the ranks that are kept of some records. The query's half is its entity with the relation, the answer's
half the answer with it. An unseen entity has none (arXiv 2606.18001 reports zero-shot results so).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import store
import typer

import kgmlm
from kgmlm.evaluation.metrics import read_ranks

HALVES = ("head", "relation"), ("relation", "tail")
SLICES = {"both": (True, True), "query": (True, False), "answer": (False, True), "neither": (False, False)}


def measured(record: str) -> list[dict[str, Any]]:
    """A row for each slice of a record: which halves training has."""
    name = record.rsplit("-", 1)[0]
    graph = kgmlm.load_graph(name)
    train = graph.labels(graph.splits["train"]).to_pandas()
    ranks = read_ranks(store.RANKS / f"{record}.parquet")
    links = [pd.MultiIndex.from_frame(train[list(half)].drop_duplicates()) for half in HALVES]
    halves = zip(HALVES, links, strict=True)
    has_head, has_tail = (pd.MultiIndex.from_frame(ranks[list(half)]).isin(known) for half, known in halves)
    tail_B = (ranks["target"] == "tail").to_numpy()
    has_query, has_answer = np.where(tail_B, has_head, has_tail), np.where(tail_B, has_tail, has_head)
    realistic_B = (ranks["optimistic"] + ranks["pessimistic"]).to_numpy() / 2
    rows = []
    for what, (query, answer) in SLICES.items():
        of = realistic_B[(has_query == query) & (has_answer == answer)]
        figures = {"mrr": (1 / of).mean(), "hits_at_1": (of <= 1).mean(), "hits_at_10": (of <= 10).mean()}
        rounded = {key: round(float(value), 4) for key, value in figures.items()} if len(of) else {}
        rows.append({"record": record, "in training": what, "ranks": len(of), **rounded})
    return rows


def main(records: Annotated[list[str], typer.Argument()], output: Path | None = None) -> None:
    """Measure, and print a line for each slice; rows of the output are replaced by record."""
    rows = [row for record in records for row in measured(record)]
    for row in rows:
        print(*row.values())
    store.replace_rows(output, rows, "record")


if __name__ == "__main__":
    typer.run(main)
