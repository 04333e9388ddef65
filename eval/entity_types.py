"""What entity types reach: alone, beside each other signal of a run, and as a mask; and what they cost.

    OMP_NUM_THREADS=1 python eval/entity_types.py [DATASET ...] [--split valid] [--output FILE]
    OMP_NUM_THREADS=1 python eval/entity_types.py --run RUN [--max-triples 500] [--output FILE]

A dataset is counted and ranked without any text. A run is asked on a seeded sample of validation, on which
weights are chosen as by `kgmlm tune`, and of test, on which they are measured; each text is read once. Rungs
are the run's text, and beside it each other signal (rules are mined here), all without and with types.
The record is eval/entity_types.json.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import store
import torch
import typer

from kgmlm import provenance
from kgmlm.config import Protocol, TypeSettings
from kgmlm.constraints import Constraint, Functional, Possible, Typed
from kgmlm.datasets import load_graph
from kgmlm.evaluation import evaluate
from kgmlm.kg import Queries
from kgmlm.mixture import Mixture
from kgmlm.pool import Pool, Reading
from kgmlm.ranker import Ranker
from kgmlm.runs import open_run
from kgmlm.scorer import PlainScorer
from kgmlm.signals.rules import Rules
from kgmlm.signals.types import Types
from kgmlm.tuning import weigh_signal, weigh_text

DATASETS = ("wn18rr", "fb15k237", "wn18rr-v1", "fb237-v1")
KEYS = ("mrr", "both.realistic.hits_at_1", "both.realistic.hits_at_10")


class Scored(PlainScorer):
    """Types alone, constrained as a run's ranker is."""

    def __init__(self, types: Types, possible: Possible, relations: int) -> None:
        super().__init__(len(types.types), relations)
        self.types, self.possible, self.pool = types, possible, Pool(len(types.types))

    def score(self, queries: Queries) -> torch.Tensor:
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


class Remembering(Ranker):
    """A ranker whose signals say everything once."""

    remembered: dict[str, dict[bytes, torch.Tensor]]

    def said(
        self, queries: Any, pool: Any = None, batch_size: int = 64, advance: Any = None, *, by: Any = None
    ) -> Any:
        """As of any ranker of all entities, from memory where it can."""
        names = [n for n in by or self.mixture.signals if n in self.signals]
        for start in range(0, len(queries), batch_size):
            rows = np.arange(start, min(start + batch_size, len(queries)))
            asked = queries[rows]
            key = asked.entity_B.tobytes() + asked.relation_B.tobytes() + asked.tail_B.tobytes()
            reading, said = Reading(asked, self.reader.read), {}
            for name in names:
                known = self.remembered.setdefault(name, {})
                if key not in known:
                    with torch.inference_mode():
                        known[key] = self.signals[name].score(reading, self.pool())
                said[name] = known[key]
            yield rows, reading, said
            if advance is not None:
                advance(len(rows))


def of_run(path: Path, count: int) -> Iterator[dict[str, Any]]:
    """Each other signal without and with types: weights by validation, measured on validation and test."""
    run = open_run(path)
    graph, untuned = run.graph, run.untuned()
    ranker = Remembering(untuned.reader, {}, untuned.mixture, untuned.possible)
    ranker.remembered = {}
    for signal in (
        *untuned.signals.values(),
        Rules.fit(graph, run.settings.rules),
        Types.fit(graph, run.settings.types),
    ):
        ranker = ranker.with_signal(signal)
    valid, test = (Protocol(split=split, max_triples=count, seed=0) for split in ("valid", "test"))
    text, figures = weigh_text(ranker, graph, valid)
    others = [name for name in ("kge", "rules") if name in ranker.signals]
    sets: list[tuple[str, ...]] = [
        (),
        *((name,) for name in others),
        *([tuple(others)] if len(others) > 1 else []),
    ]
    mixtures: dict[tuple[str, ...], tuple[Mixture, dict[str, float]]] = {(): (text, figures)}
    masks = (Typed(run_types(ranker)), Functional.learn(graph.context))
    for names in [w for s in sets for w in (s, (*s, "types"))]:
        if names:
            before = mixtures[names[:-1]][0]
            mixtures[names] = weigh_signal(ranker.but(mixture=before), names[-1], graph, valid)
        mixture, found = mixtures[names]
        rung = " + ".join(("text", *names))
        tuned = ranker.but(mixture=mixture)
        ways = {"": tuned}
        if names == sets[-1] or not names:
            ways |= {", typed": tuned.constrained(masks[0]), ", functional": tuned.constrained(masks[1])}
        for way, by in ways.items():
            report = evaluate(by, graph, test).report
            yield {
                "run": path.stem,
                "dataset": graph.name,
                "split": "test",
                "rung": rung + way,
                "triples": report["triples"],
                **{key.split(".")[-1]: report["metrics"][key] for key in KEYS},
                "valid_mrr": None if way else found["mrr"],
                "weight": mixture.averages.get("types"),
                "constraints": report.get("constraints"),
            }


def run_types(ranker: Ranker) -> Any:
    """The types that a ranker's signal knows."""
    signal = ranker.signals["types"]
    assert isinstance(signal, Types)
    return signal.types


def main(
    datasets: Annotated[list[str] | None, typer.Argument()] = None,
    split: str = "test",
    run: Annotated[list[Path] | None, typer.Option()] = None,
    max_triples: int = 500,
    output: Path | None = None,
) -> None:
    """Measure, and print a line each; rows of the output are replaced by run, dataset, split and rung."""
    rows = []
    parts = [partial(of_run, path, max_triples) for path in run or ()]
    parts += [partial(of_dataset, name, split) for name in datasets or (() if run else DATASETS)]
    for part in parts:
        for row in part():
            shown = [f"{row[key.split('.')[-1]]:.4f}" for key in KEYS]
            print(
                row.get("run", row["dataset"]),
                row["split"],
                row["rung"],
                *shown,
                row.get("valid_mrr"),
                row["constraints"],
                flush=True,
            )
            how = {"versions": provenance.versions(), "hardware": provenance.hardware()}
            rows.append({**row, **how, "command": provenance.command()})
    if output is not None:
        before = json.loads(output.read_text("utf-8"))["rows"] if output.exists() else []
        keys = ("run", "dataset", "split", "rung")
        new = {tuple(r.get(k) for k in keys) for r in rows}
        kept = [r for r in before if tuple(r.get(k) for k in keys) not in new]
        store.write_rows(output, [*kept, *rows])


if __name__ == "__main__":
    typer.run(main)
