"""The relation of a head and a tail: calibrated scores of both sides against a masked relation span.

    OMP_NUM_THREADS=1 python eval/relations.py RUN [--pairs 500] [--split test] [--output eval/relations.json]

"calibrated" is what `kgmlm rank --head H --tail T` does. "masked" reads ``head | ___ | tail`` once and
scores the names of all relations in the hole by the mean log-likelihood of their tokens; the model has
only ever filled holes with entities, so this is zero-shot. "masked, prior removed" takes away what the
names score where neither head nor tail is told; "frequency" is how often training has the relation.
"both" adds the masked score to the log odds, weighed as is best on the other half of the pairs. Ranks
are realistic, filtered by all splits.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import store
import typer

import kgmlm
from kgmlm.core.arrays import FloatArray, IntArray
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.prediction.calibration import fitted, read_calibration, temperature_of
from kgmlm.prediction.features import features
from kgmlm.ranking.ranker import Ranker
from kgmlm.runs import provenance
from kgmlm.runs.opened import open_ranker
from kgmlm.signals.likelihood import mean_of_names
from kgmlm.text.linearization import Linearization, Segment
from kgmlm.text.reader import PairTable

SEED = 1
WEIGHTS = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


def texts(graph: KnowledgeGraph, pairs: IntArray, descriptions: bool) -> list[Linearization]:
    """Each head, the hole, each tail: with descriptions, as the plain template has them."""

    def told(entity: int) -> tuple[Segment, ...]:
        read = graph.entities[entity]
        text = read.description if descriptions else ""
        return Segment(f"{read.surface}." if text else read.surface, cut=1), Segment(text, cut=3)

    return [
        Linearization((*told(head), Segment("|")), (Segment("|"), *told(tail)))
        for head, _, tail in pairs.tolist()
    ]


def masked(ranker: Ranker, graph: KnowledgeGraph, written: list[Linearization]) -> FloatArray:
    """The mean log-likelihood of each relation's name in the hole of each text, ``(n, R)``.

    The span is as long as the longest name needs, the softmax is over the whole vocabulary.
    """
    reader = ranker.reader
    tokenizer, settings = reader.tokenizer, reader.settings
    names = [relation.name for relation in graph.relations]
    longest = int(tokenizer.candidates(names, None, settings.scoring.end_of_name).lengths_N.max())
    span = min(longest, settings.text.max_length // 2)
    table = PairTable.of(tokenizer.candidates(names, span, settings.scoring.end_of_name))
    encoded = tokenizer.encode_queries(
        written, span, settings.text.max_length, vector=settings.vector.enabled
    )
    found = np.empty((len(written), len(names)))
    for rows, batch in reader.padded(encoded, 32):
        log_probs_BP = reader.model.log_probabilities(reader.model.states(batch), table)
        found[rows] = mean_of_names(log_probs_BP, table)
    return found


def ranked(says: FloatArray, true: IntArray, other: np.ndarray[Any, Any]) -> FloatArray:
    """Realistic ranks of the true relations, ``(n,)``; other true ones are left out."""
    rows = np.arange(len(true))
    own = says[rows, true][:, None]
    values = np.where(other, -np.inf, says)
    ranks: FloatArray = 1 + (values > own).sum(1) + ((values == own).sum(1) - 1) / 2
    return ranks


def row(name: str, split: str, count: int) -> dict[str, Any]:
    """The figures of a run."""
    run = kgmlm.open_run(name, rerank=0)
    graph = run.graph
    ranker = open_ranker(run.folder, run.options, graph)
    calibration = read_calibration(run.folder) or fitted(run.folder)[0]
    triples, relations = graph.triples(split), len(graph.relations)
    rng = np.random.default_rng(SEED)
    chosen = triples[np.sort(rng.choice(len(triples), min(count, len(triples)), replace=False))]
    every = np.repeat(chosen, relations, axis=0)
    every[:, 1] = np.tile(np.arange(relations), len(chosen))
    known = set(map(tuple, graph.all_triples.tolist()))
    other = np.array([t in known for t in map(tuple, every.tolist())]).reshape(-1, relations)
    true = chosen[:, 1]
    other[np.arange(len(chosen)), true] = False
    seconds = {}
    began = time.monotonic()
    found = features(ranker, every, graph.context.answers, temperature=temperature_of(ranker))
    calibrated = calibration.probability(found, every[:, 1]).reshape(-1, relations)
    seconds["calibrated"] = round(time.monotonic() - began, 1)
    began = time.monotonic()
    span = masked(ranker, graph, texts(graph, chosen, ranker.reader.settings.text.descriptions))
    seconds["masked"] = round(time.monotonic() - began, 1)
    nothing = masked(ranker, graph, [Linearization((Segment("|"),), (Segment("|"),))])
    frequency = np.bincount(graph.splits["train"][:, 1], minlength=relations).astype(float)
    odds = np.log(calibrated) - np.log1p(-calibrated)
    says = {
        "calibrated": calibrated,
        "masked": span,
        "masked, prior removed": span - nothing,
        "frequency": np.tile(frequency, (len(chosen), 1)),
    }
    ranks = {what: ranked(values, true, other) for what, values in says.items()}
    tried = {w: ranked(odds + w * span, true, other) for w in WEIGHTS}
    halves = np.arange(len(chosen)) % 2 == 1
    best = [max(WEIGHTS, key=lambda w: float((1 / tried[w][half]).mean())) for half in (halves, ~halves)]
    ranks["both"] = np.where(halves, tried[best[1]], tried[best[0]])
    return {
        "run": Path(name).stem,
        "graph": graph.name,
        "split": split,
        "pairs": len(chosen),
        "relations": relations,
        "figures": {
            what: {"mrr": float((1 / rank).mean()), "hits_at_1": float((rank <= 1).mean())}
            for what, rank in ranks.items()
        },
        "weights": best,
        "seconds": seconds,
        "command": provenance.command_line(),
        "hardware": provenance.hardware(),
        "versions": provenance.versions(),
    }


def main(
    runs: list[str],
    pairs: Annotated[int, typer.Option(help="A seeded sample of so many triples.")] = 500,
    split: str = "test",
    output: Path = Path("eval/relations.json"),
) -> None:
    """Measure, and add rows to the record."""
    for name in runs:
        new = row(name, split, pairs)
        store.replace_rows(output, [new], "run", "graph", "split")
        print(new["graph"], split, json.dumps(new["figures"]), new["weights"], new["seconds"], flush=True)


if __name__ == "__main__":
    typer.run(main)
