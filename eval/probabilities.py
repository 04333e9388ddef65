"""How good probabilities are: runs on their own test triples and on unseen graphs, and PyKEEN's ComplEx.

    OMP_NUM_THREADS=1 python eval/probabilities.py RUN[:GRAPH] ... [--triples 1000] [--complex EPOCHS]
        [--dimension 100] [--relations 200] [--output eval/probabilities.json]

A run is calibrated on a sample of its validation triples, and measured on a sample of the test triples of its
own graph, or of another GRAPH that it has never seen. --complex trains PyKEEN's ComplEx on the run's graph
and puts that through the same functions instead of the run. --relations ranks the relations of so many test
pairs. Rows are added to the JSON, of which the diagram (the same name, .svg) is drawn.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import store
import typer
from pykeen_complex import PyKEENComplEx

import kgmlm
from kgmlm.core.arrays import FloatArray, IntArray
from kgmlm.core.config import Protocol
from kgmlm.evaluation.metrics import binned, measured, reweighted
from kgmlm.evaluation.task import Scope
from kgmlm.graphs.datasets import load_graph
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.prediction.calibration import Calibration, Sample, calibrate, figures, shifted, temperature_of
from kgmlm.prediction.features import FEATURES, KINDS_OF_NEGATIVES, features
from kgmlm.ranking.ranker import Scorer
from kgmlm.runs import provenance
from kgmlm.runs.opened import open_ranker

SHARES = {"1:1": 0.5, "1:99": 0.01}
SHOWN = ("accuracy", "auc", "average_precision", "brier", "log_loss", "ece")
SEED = 1  # of the test sample; that of validation is 0


def scored(scorer: Scorer, graph: KnowledgeGraph, triples: IntArray) -> FloatArray:
    """Features of triples of a graph."""
    return features(scorer, triples, graph.context.answers, temperature=temperature_of(scorer))


def tested(
    scorer: Scorer, graph: KnowledgeGraph, relations: IntArray, calibration: Calibration, most: int
) -> dict[str, Any]:
    """Figures on test triples, calibrated and as the scores say themselves, and what the diagram shows.

    Args:
        relations: the number that each relation of the graph has in the calibration, or -1.
    """
    sample = Sample.of(graph, "test", scorer, most=most, seed=SEED)
    found = scored(scorer, graph, sample.triples)
    half = calibration.probability(found, relations[sample.triples[:, 1]])
    raw = np.exp(found[:, :, FEATURES.index("log_softmax")]).mean(1)  # the softmax of the two queries
    ones = np.ones(len(half))
    rows: dict[str, Any] = {}
    for name, share in SHARES.items():
        weights = reweighted(sample.labels, ones, share)
        rows[name] = {
            "calibrated": measured(sample.labels, shifted(half, share), weights, groups=sample.groups),
            "softmax": measured(sample.labels, shifted(raw, share), weights, groups=sample.groups),
        }
    weights = reweighted(sample.labels, ones, 0.5)
    kinds = {}
    for kind, name in enumerate(KINDS_OF_NEGATIVES):
        own = sample.labels | (sample.kinds == kind)
        kinds[name] = measured(
            sample.labels[own], half[own], reweighted(sample.labels[own], ones[own], 0.5), draws=0
        )
    diagram = {
        what: binned(sample.labels, p, weights).as_json()
        for what, p in (("calibrated", half), ("softmax", raw))
    }
    return {"shares": rows, "by_negatives": kinds, "diagram": diagram}


def ranked_relations(
    scorer: Scorer, graph: KnowledgeGraph, calibration: Calibration, count: int
) -> dict[str, float]:
    """Filtered realistic ranks of the relations of test pairs, by probability and by mean softmax."""
    relations = len(graph.relations)
    test = graph.triples("test")
    rng = np.random.default_rng(SEED)
    chosen = test[np.sort(rng.choice(len(test), min(count, len(test)), replace=False))]
    triples = np.repeat(chosen, relations, axis=0)
    triples[:, 1] = np.tile(np.arange(relations), len(chosen))
    found = scored(scorer, graph, triples)
    true = set(map(tuple, graph.all_triples.tolist()))
    other = np.array([t in true for t in map(tuple, triples.tolist())]).reshape(-1, relations)
    rows = np.arange(len(chosen))
    other[rows, chosen[:, 1]] = False
    frequency = np.bincount(graph.splits["train"][:, 1], minlength=relations).astype(float)
    says = {
        "probability": calibration.probability(found, triples[:, 1]).reshape(-1, relations),
        "softmax": np.exp(found[:, :, FEATURES.index("log_softmax")]).mean(1).reshape(-1, relations),
        "frequency in training": np.tile(frequency, (len(chosen), 1)),
    }
    result: dict[str, Any] = {"pairs": len(chosen)}
    for name, values in says.items():
        values = np.where(other, -1.0, values)
        own = values[rows, chosen[:, 1]][:, None]
        rank = 1 + (values > own).sum(1) + ((values == own).sum(1) - 1) / 2
        result[name] = {"mrr": float((1 / rank).mean()), "hits_at_1": float((rank <= 1).mean())}
    return result


def row(name: str, triples: int, epochs: int, dimension: int, relations: int) -> dict[str, Any]:
    """The row of a run.

    Args:
        epochs: most of PyKEEN's ComplEx, which is measured instead of the run; 0 measures the run.
        dimension: of ComplEx.
    """
    run_name, _, other = name.partition(":")
    run = kgmlm.open_run(run_name, rerank=0)
    graph = asked = run.graph
    scorer: Scorer = open_ranker(run.folder, run.options, graph)
    more: dict[str, Any] = {}
    if epochs:
        scorer = embeddings = PyKEENComplEx(graph, epochs, triples, dimension)
        more["complex"] = embeddings.about
    started = time.monotonic()
    calibration, sample, held = calibrate(scorer, graph, most=triples)
    valid = figures(calibration, sample, held)
    numbers = np.arange(len(graph.relations))
    if other:
        asked = Scope.inductive(graph, load_graph(other), Protocol(candidates="graph")).graph
        numbers = np.array([graph.relations.index.get(r.label, -1) for r in asked.relations])
        scorer = open_ranker(run.folder, run.options, asked)
    test = tested(scorer, asked, numbers, calibration, triples)
    if relations:
        more["relations"] = ranked_relations(scorer, asked, calibration, relations)
    return {
        "run": Path(run_name).name,
        "trained_on": graph.name,
        "graph": asked.name,
        "system": "PyKEEN's ComplEx" if epochs else "run",
        "valid": valid,
        "test": test,
        **more,
        "weights": calibration.model.weights,
        "seconds": round(time.monotonic() - started, 1),
        "command": " ".join(
            ["python eval/probabilities.py", name, f"--triples {triples}"]
            + [f"--complex {epochs} --dimension {dimension}"] * bool(epochs)
            + [f"--relations {relations}"] * bool(relations)
        ),
        "hardware": provenance.hardware(),
        "versions": provenance.versions(),
    }


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Reliability diagrams, one of each row."""
    plots = store.pyplot()

    columns = min(3, len(rows))
    lines = -(-len(rows) // columns)
    figure, axes = plots.subplots(lines, columns, figsize=(3.4 * columns, 3.6 * lines), squeeze=False)
    for axis in axes.flat[len(rows) :]:
        axis.axis("off")
    for axis, found in zip(axes.flat, rows, strict=False):
        axis.plot([0, 1], [0, 1], color="0.7", linewidth=1)
        for what, marker in (("softmax", "x"), ("calibrated", "o")):
            bins = found["test"]["diagram"][what]
            error = found["test"]["shares"]["1:1"][what]["ece"]
            axis.plot(
                bins["predicted_K"], bins["observed_K"], marker=marker, label=f"{what}, ECE {error:.3f}"
            )
        title = found["graph"] if found["system"] == "run" else f"{found['graph']}, {found['system']}"
        axis.set(title=title, xlabel="probability", ylabel="share of true triples", xlim=(0, 1), ylim=(0, 1))
        axis.legend(fontsize=7)
    figure.tight_layout()
    store.save_figure(figure, path)


def main(
    runs: list[str],
    triples: Annotated[int, typer.Option(help="Of validation and of test, a seeded sample each.")] = 1000,
    epochs: Annotated[
        int, typer.Option("--complex", help="PyKEEN's ComplEx, for so many epochs at most, instead of it.")
    ] = 0,
    dimension: Annotated[int, typer.Option(help="Of ComplEx.")] = 100,
    relations: Annotated[int, typer.Option(help="Rank the relations of so many test pairs.")] = 0,
    output: Path = Path("eval/probabilities.json"),
) -> None:
    """Measure, add rows to the record, and draw it."""
    for name in runs:
        new = row(name, triples, epochs, dimension, relations)
        rows = json.loads(output.read_text("utf-8")) if output.is_file() else []
        keys = ("run", "graph", "system")
        rows = [found for found in rows if any(found[k] != new[k] for k in keys)] + [new]
        output.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n", "utf-8")  # a line per row
        draw(rows, output.with_suffix(".svg"))
        for share, by in new["test"]["shares"].items():
            for what, m in by.items():
                told = ", ".join(f"{k} {m[k]:.4f}" for k in SHOWN)
                low, high = m["ece_95"]
                whose = f"{new['graph']}, {new['system']}, {share}, {what}"
                print(f"{whose}: {told} ({low:.4f} to {high:.4f})")
        print({k: round(v["auc"], 4) for k, v in new["test"]["by_negatives"].items()})
        print(new.get("complex", ""), new.get("relations", ""), flush=True)


if __name__ == "__main__":
    typer.run(main)
