"""A graph that grows: how good is a run after `kgmlm update`, beside one that is trained from nothing?

    python eval/growing.py wn18rr-v1 fb237-v1 --model MODEL --output eval/growing.json
    python eval/growing.py wn18rr fb15k237 --model MODEL --minutes 60 --output eval/growing.json

A tenth of the entities, drawn by the seed, is held out: the run is trained without them. Of their training
triples half are given to `kgmlm update` in five batches, and the other half is asked, both sides, among all
entities and filtered. Validation has no triple of a held-out entity. Rows have the MRR of what is asked after
the updates, after one more minute in which the run is trained on, and after a training on all that was given;
the MRR of the test triples of other entities; and the seconds of each update. Rows are added to the JSON;
rows that are there are not made again.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import store
import typer

import kgmlm
from kgmlm.core.arrays import BoolArray, IntArray
from kgmlm.core.config import Protocol
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.evaluation.metrics import half_interval
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.runs import record

BATCHES = 5
FURTHER = 1.0  # minutes
Triples = list[tuple[str, str, str]]


class Growth(NamedTuple):
    """A graph without some of its entities, and what is known of these.

    Attributes:
        base: without them, and without their triples in any split.
        entities: their texts.
        given: their training triples, in batches.
        asked: the others.
    """

    base: KnowledgeGraph
    entities: EntityTable
    given: list[Triples]
    asked: Triples


def without(graph: KnowledgeGraph, held_N: BoolArray) -> KnowledgeGraph:
    """A graph without some entities."""
    left = np.flatnonzero(~held_N)
    row_N = np.full(len(held_N), -1)
    row_N[left] = np.arange(len(left))
    splits = {}
    for split, rows in graph.splits.items():
        kept = rows[~(held_N[rows[:, 0]] | held_N[rows[:, 2]])]
        splits[split] = np.stack([row_N[kept[:, 0]], kept[:, 1], row_N[kept[:, 2]]], 1)
    return replace(graph, entities=graph.entities.take(left), splits=splits, negatives={}, links=None)


def grown(graph: KnowledgeGraph, seed: int) -> Growth:
    """Hold out a tenth of the entities that training has."""
    rng = np.random.default_rng(seed)
    seen = np.flatnonzero(graph.seen_N)
    held_N = np.zeros(len(graph.entities), np.bool_)
    held_N[rng.choice(seen, len(seen) // 10, replace=False)] = True
    train = graph.triples("train")
    mine = train[held_N[train[:, 0]] | held_N[train[:, 2]]]
    mine = mine[rng.permutation(len(mine))]
    given, asked = mine[: len(mine) // 2], mine[len(mine) // 2 :]
    batches = [graph.labeled(part) for part in np.array_split(given, BATCHES)]
    table = graph.entities.take(np.flatnonzero(held_N))
    return Growth(without(graph, held_N), table, batches, graph.labeled(asked))


def ids_of(graph: KnowledgeGraph, triples: Triples) -> IntArray:
    """The ids of triples whose entities a graph has all."""
    find, relations = graph.entities.find, graph.relations.index
    rows = [(find(h), relations[r], find(t)) for h, r, t in triples]
    return np.array([row for row in rows if None not in row], np.int64).reshape(-1, 3)


def reciprocal(run: kgmlm.Run, triples: IntArray, known: IntArray, most: int) -> np.ndarray[Any, Any]:
    """Reciprocal ranks of triples, all heads and then all tails; other known ones are no answers."""
    graph = run.folder.graph
    asked = replace(graph, splits={"train": graph.triples("train"), "valid": known, "test": triples})
    protocol = Protocol(split="test", max_triples=most)
    return 1 / evaluate(run.folder.ranker(), asked, protocol).ranks.of_type("realistic")


def figures(run: kgmlm.Run, growth: Growth, whole: KnowledgeGraph, most: int) -> dict[str, float]:
    """MRR of what is asked of held-out entities, and of the test triples of others."""
    graph = run.folder.graph
    known = ids_of(graph, whole.labeled(whole.all_triples))
    found = {}
    for name, triples in (
        ("asked", ids_of(graph, growth.asked)),
        ("others", ids_of(graph, growth.base.labeled(growth.base.triples("test")))),
    ):
        rank_B = reciprocal(run, triples, known, most)
        found[name] = round(float(rank_B.mean()), 5)
        found[f"half_{name}"] = round(half_interval(rank_B), 5)
    return found


def measured(
    name: str, model: str, seed: int, how: dict[str, Any], most: int, folder: Path
) -> dict[str, Any]:
    """A row of the record."""
    whole = kgmlm.load_graph(name)
    growth = grown(whole, seed)
    began = time.monotonic()
    run = kgmlm.train(growth.base, model, folder / "base", progress=False, seed=seed, **how)
    base = {"others": figures_of_others(run, growth, whole, most), "minutes": minutes_since(began)}
    seconds, table = [], growth.entities
    for batch in growth.given:
        labels = {label for h, _, t in batch for label in (h, t)}
        new = [i for i, label in enumerate(table.column("label")) if label in labels]
        some, table = (
            table.take(np.array(new, np.int64)),
            table.take(np.setdiff1d(np.arange(len(table)), new)),
        )
        done = kgmlm.update(run, batch, entities=some if len(new) else None, progress=False)
        seconds.append(done["seconds"])
    updated = figures(run, growth, whole, most)
    began, on = time.monotonic(), folder / "on"
    kgmlm.update(run, minutes=FURTHER, output=on, progress=False)
    taken = minutes_since(began)
    trained_on = figures(kgmlm.open_run(on), growth, whole, most) | {"minutes": taken}
    began = time.monotonic()
    graph = run.folder.graph
    nothing = kgmlm.train(graph, model, folder / "nothing", progress=False, seed=seed, **how)
    taken = minutes_since(began)
    trained = figures(nothing, growth, whole, most) | {"minutes": taken}
    return {
        "graph": name,
        "model": store.short_name(model),
        "seed": seed,
        "how": how,
        "most": most,
        "held_out": len(growth.entities),
        "given": sum(map(len, growth.given)),
        "asked": len(ids_of(graph, growth.asked)),
        "base": base,
        "updated": updated | {"seconds": seconds},
        "trained_on": trained_on,
        "from_nothing": trained,
        "versions": record.versions(),
        "hardware": record.hardware(),
    }


def figures_of_others(run: kgmlm.Run, growth: Growth, whole: KnowledgeGraph, most: int) -> float:
    """MRR of the test triples of entities that were not held out, before any update."""
    graph = run.folder.graph
    known = ids_of(graph, whole.labeled(whole.all_triples))
    return round(float(reciprocal(run, growth.base.triples("test"), known, most).mean()), 5)


def minutes_since(began: float) -> float:
    """Minutes, rounded."""
    return round((time.monotonic() - began) / 60, 2)


def main(
    graphs: Annotated[list[str], typer.Argument()],
    model: str = "scratch",
    seed: int = 0,
    preset: str = "quick",
    minutes: Annotated[float | None, typer.Option(help="Of both trainings; else by the preset.")] = None,
    most: Annotated[int, typer.Option(help="Triples that are asked at most, drawn by chance.")] = 3000,
    output: Path | None = None,
) -> None:
    """Train, update and measure, and print a line each."""
    rows = store.rows(output)
    how: dict[str, Any] = {"preset": preset} if minutes is None else {"minutes": minutes}
    there = {(row["graph"], row["seed"], str(row["how"])) for row in rows}
    for name in graphs:
        if (name, seed, str(how)) in there:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            row = measured(name, model, seed, how, most, Path(temporary))
        print({key: value for key, value in row.items() if key not in ("versions", "hardware")}, flush=True)
        rows.append(row)
        if output is not None:
            store.write_rows(output, rows)


if __name__ == "__main__":
    typer.run(main)
