"""What each signal of a run adds: alone, in pairs, and all together; and what masks do to the whole.

    OMP_NUM_THREADS=1 python eval/combinations.py RUN ... [--max-triples 500] [--output FILE]

Signals are the text (likelihood and vectors), KGE, rules, types and the bi-encoder. What a run lacks is left
out, but for rules and types, which are learned here in seconds. The weights of each combination are chosen on
a sample of validation as by `kgmlm tune`, and measured on one of test; each text is read once. There is no
reranking. The record is eval/combinations.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import store
import typer

from kgmlm.core.arrays import Floats
from kgmlm.core.config import Protocol
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.ranking.constraints import Constraint, Functional, Typed
from kgmlm.ranking.ranker import Mixture, Ranker
from kgmlm.runs import provenance
from kgmlm.runs.opened import open_folder, untuned_ranker
from kgmlm.signals.rules import Rules
from kgmlm.signals.types import Types
from kgmlm.text.reader import Reading
from kgmlm.training.weights import TEXT, weigh

BESIDE = ("kge", "rules", "types", "biencoder")  # in the order in which they are weighed
METRICS = {"mrr": "mrr", "hits_at_1": "both.realistic.hits_at_1", "hits_at_10": "both.realistic.hits_at_10"}


class Remembering(Ranker):
    """A ranker whose signals say everything once."""

    remembered: dict[str, dict[bytes, Floats]]

    def signal_scores(
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
                    known[key] = self.signals[name].score(reading, self.pool())
                said[name] = known[key]
            yield rows, reading, said
            if advance is not None:
                advance(len(rows))


def opened(path: Path) -> Remembering:
    """A run's ranker, with rules and types in any case."""
    run = open_folder(path)
    untuned = untuned_ranker(run)
    ranker = Remembering(untuned.reader, {}, untuned.mixture, untuned.possible)
    ranker.remembered = {}
    signals = dict(untuned.signals)
    signals.setdefault("rules", Rules.fit(run.graph, run.settings.rules))
    signals.setdefault("types", Types.fit(run.graph, run.settings.types))
    for signal in signals.values():
        ranker = ranker.with_signal(signal)
    return ranker


def of_run(path: Path, count: int) -> Iterator[dict[str, Any]]:
    """A row per combination, and per mask of the largest one."""
    graph, ranker = open_folder(path).graph, opened(path)
    valid, test = (Protocol(split=split, max_triples=count, seed=0) for split in ("valid", "test"))
    parts = ("text", *(name for name in BESIDE if name in ranker.signals))
    tuned: dict[tuple[str, ...], tuple[Mixture, float]] = {}
    for names in (names for size in range(1, len(parts) + 1) for names in combinations(parts, size)):
        if len(names) > 1 or names == ("text",):
            here = {n: x for n, x in ranker.signals.items() if n in names or ("text" in names and n in TEXT)}
            mixture, figures = weigh(ranker.replace(signals=here), graph, valid)
            tuned[names] = mixture, figures[[*figures][-1]]["mrr"]
        else:
            alone = ranker.by(names[0])
            tuned[names] = alone.mixture, evaluate(alone, graph, valid).report["metrics"]["mrr"]
        weighed = ranker.replace(mixture=tuned[names][0])
        ways: dict[str, Ranker] = {"": weighed}
        if names == parts:
            types = ranker.signals["types"]
            assert isinstance(types, Types)
            masks: dict[str, Constraint] = {
                "typed": Typed(types.types),
                "functional": Functional.learn(graph.context),
            }
            ways |= {mask: weighed.constrained(by) for mask, by in masks.items()}
        for mask, by in ways.items():
            report = evaluate(by, graph, test).report
            yield {
                "run": path.name.removesuffix(path.suffix),
                "dataset": graph.name,
                "signals": " + ".join(names),
                "mask": mask,
                "triples": report["triples"],
                "valid_mrr": None if mask else round(tuned[names][1], 5),
                **{name: round(report["metrics"][key], 5) for name, key in METRICS.items()},
                "constraints": report.get("constraints"),
            }


def main(
    runs: Annotated[list[Path], typer.Argument()], max_triples: int = 500, output: Path | None = None
) -> None:
    """Measure, and print a line each; rows of the output are replaced by run."""
    rows = []
    for path in runs:
        for row in of_run(path, max_triples):
            figures = [row[key] for key in ("valid_mrr", *METRICS)]
            print(row["run"], row["signals"], row["mask"], *figures, flush=True)
            how = {"versions": provenance.versions(), "hardware": provenance.hardware()}
            rows.append({**row, **how, "command": provenance.command_line()})
    store.replace_rows(output, rows, "run")


if __name__ == "__main__":
    typer.run(main)
