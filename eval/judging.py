r"""Learning from judgments: how much better is a run after a simulated expert has answered its questions?

    python eval/judging.py umls fb237-v1 wn18rr-v1 --model MODEL --output eval/judging.json
    python eval/judging.py umls fb237-v1 --model MODEL --minutes 0.5 --seeds 5 --judged 200 \
        --output eval/judging.json

Test triples are split by a seed into two halves. The expert accepts what the first half has, and rejects all
else; the second half alone is measured, and is never asked about. Asked are the new facts that the run lists,
in three orders: as `kgmlm suggest` chooses, by chance, and the most probable first. After 50, 100 and 200
judgments the run is updated by them, without training, or with so many minutes of it; the run before is then
trained on for as long. Rows have, for each order and number, means over the
seeds of: the MRR of the second half (both sides, all entities, filtered by all known triples), the difference
to the run before and to the order by chance with half of its paired 95 % interval, and the Brier score of the
probabilities of the second half and as many corrupted triples. Rejected triples are in no filter.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa
import store
import typer

import kgmlm
from kgmlm.core.arrays import IntArray
from kgmlm.core.config import Protocol
from kgmlm.core.progress import Watcher
from kgmlm.core.tables import ENDS
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import FilterIndex
from kgmlm.prediction.new_facts import NewFacts
from kgmlm.prediction.suggest import teaching
from kgmlm.runs import record

JUDGED = [50, 100, 200]
Labels = tuple[str, str, str]


def orders(facts: pa.Table, hidden: set[Labels], rng: np.random.Generator) -> dict[str, list[Labels]]:
    """The questions in each order, none of what is hidden."""
    labels = list(zip(*(facts.column(end).to_pylist() for end in ENDS), strict=True))
    asked = [row for row, triple in enumerate(labels) if triple not in hidden]
    rows = {
        "suggested": teaching(facts, max(JUDGED), hidden).tolist(),
        "chance": rng.permutation(asked).tolist(),
        "probable": asked,  # as they are listed
    }
    return {name: [labels[row] for row in of[: max(JUDGED)]] for name, of in rows.items()}


def corrupted(graph: KnowledgeGraph, triples: IntArray, rng: np.random.Generator) -> IntArray:
    """Each triple with another head or tail, so that no split has it."""
    known, false = FilterIndex(graph.all_triples, len(graph.entities)), triples.copy()
    left = np.arange(len(triples))
    while len(left):
        end = rng.choice([0, 2], len(left))
        false[left] = triples[left]
        false[left, end] = rng.integers(0, len(graph.entities), len(left))
        left = left[known.has(false[left])]
    return false


def figures(run: kgmlm.Run, whole: KnowledgeGraph, scored: IntArray, false: IntArray) -> dict[str, Any]:
    """Reciprocal ranks of what is measured, and the Brier score of its probabilities."""
    graph = run.folder.graph
    asked = replace(
        graph, splits={"train": graph.triples("train"), "valid": whole.all_triples, "test": scored}
    )
    ranks = evaluate(run.folder.ranker(), asked, Protocol(split="test")).ranks
    probability = [
        kgmlm.classify(run, whole.labeled(part), progress=False).probabilities for part in (scored, false)
    ]
    brier = np.concatenate([(1 - probability[0]) ** 2, probability[1] ** 2]).mean()
    return {"reciprocal": 1 / ranks.of_type("realistic"), "brier": float(brier)}


class How(NamedTuple):
    """Minutes of training on, and the numbers of judgments."""

    minutes: float | None
    judged: tuple[int, ...]


def judged(
    base: kgmlm.Run,
    whole: KnowledgeGraph,
    facts: pa.Table,
    seed: int,
    folder: Path,
    how: How,
) -> Iterator[dict[str, Any]]:
    """The figures of a seed: of the run before, then of each order and number."""
    rng = np.random.default_rng(seed)
    test = whole.triples("test")[rng.permutation(len(whole.triples("test")))]
    expert = set(whole.labeled(test[: len(test) // 2]))
    scored = test[len(test) // 2 :]
    false = corrupted(whole, scored, rng)
    before = base
    if how.minutes is not None:
        kgmlm.update(base, minutes=how.minutes, output=folder / "none", progress=False)
        before = kgmlm.open_run(folder / "none")
    yield {"order": "none", "judged": 0, "accepted": 0, **figures(before, whole, scored, false)}
    shutil.rmtree(folder / "none", ignore_errors=True)
    for name, asked in orders(facts, set(whole.labeled(scored)), rng).items():
        for count in how.judged:
            accepted = [triple for triple in asked[:count] if triple in expert]
            rejected = [triple for triple in asked[:count] if triple not in expert]
            path = folder / f"{name}-{count}"
            kgmlm.update(base, accepted, false=rejected, minutes=how.minutes, output=path, progress=False)
            found = figures(kgmlm.open_run(path), whole, scored, false)
            shutil.rmtree(path)
            yield {"order": name, "judged": len(asked[:count]), "accepted": len(accepted), **found}


def paired(differences: list[float]) -> list[float]:
    """The mean of differences, and half of its 95 % interval over seeds."""
    half = 1.96 * np.std(differences, ddof=1) / np.sqrt(len(differences))
    return [round(float(np.mean(differences)), 5), round(float(half), 5)]


def measured(name: str, model: str, seeds: int, folder: Path, how: How) -> list[dict[str, Any]]:
    """The rows of a graph."""
    whole = kgmlm.load_graph(name)
    base = kgmlm.train(whole, model, folder / "base", preset="quick", progress=False)
    facts = NewFacts.of(base, folder / "facts.parquet", Watcher())
    assert facts is not None
    found = [list(judged(base, whole, facts.table, seed, folder, how)) for seed in range(seeds)]
    rows = []
    mrr = np.array([[row["reciprocal"].mean() for row in of] for of in found])
    brier = np.array([[row["brier"] for row in of] for of in found])
    for at, row in enumerate(found[0]):
        chance = next(
            i for i, other in enumerate(found[0])
            if (other["order"], other["judged"]) == ("chance" if at else "none", row["judged"])
        )  # fmt: skip
        rows.append(
            {
                "graph": name,
                "order": row["order"],
                "judged": row["judged"],
                "accepted": round(float(np.mean([of[at]["accepted"] for of in found])), 1),
                "mrr": round(float(mrr[:, at].mean()), 5),
                "gain": paired(list(mrr[:, at] - mrr[:, 0])),
                "over_chance": paired(list(mrr[:, at] - mrr[:, chance])),
                "brier": round(float(brier[:, at].mean()), 5),
                "brier_change": paired(list(brier[:, at] - brier[:, 0])),
            }
        )
    about: dict[str, Any] = {"model": store.short_name(model)}
    about |= {"seeds": seeds, "minutes": how.minutes, "facts": len(facts.table)}
    return [row | about | {"versions": record.versions(), "hardware": record.hardware()} for row in rows]


def main(
    graphs: Annotated[list[str], typer.Argument()],
    model: str = "scratch",
    seeds: int = 10,
    minutes: float | None = None,
    judged: list[int] = JUDGED,
    output: Path | None = None,
) -> None:
    """Train, judge, update and measure, and print a line each."""
    rows = store.rows(output)
    for name in graphs:
        if (name, minutes) in {(row["graph"], row.get("minutes")) for row in rows}:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            made = measured(name, model, seeds, Path(temporary), How(minutes, tuple(judged)))
        for row in made:
            print({k: v for k, v in row.items() if k not in ("versions", "hardware")}, flush=True)
        rows += made
        if output is not None:
            store.write_rows(output, rows)


if __name__ == "__main__":
    typer.run(main)
