"""Names token by token: what do the partially autoregressive loss, and the stage that it trains for, gain?

    OMP_NUM_THREADS=1 python eval/autoregressive.py umls --model scratch --output eval/autoregressive.json
    OMP_NUM_THREADS=1 python eval/autoregressive.py wn18rr-v1 fb237-v1 --model MODEL [--seeds 3]

Of each graph and seed a text model is trained with each weight of the loss (--weights) and ranks by the
likelihood alone; then `kgmlm tune --add conditional` chooses on validation how names are read token by token.
Rows have validation MRR without and with the stage (each half of the triples by what the other half chose),
test MRR of both, and milliseconds per query, none where validation chose not to. Rows are added to the JSON;
rows that are there are not made again.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import store
import typer

import kgmlm
from kgmlm.runs import provenance

RECIPES = Path(__file__).parent / "recipes"
TEXT: dict[str, Any] = {
    "text": {"neighbors": 4, "max_length": 64},
    "scoring": {"end_of_name": True},
    "training": {"batch_size": 64, "dropout": 0.0, "eval_triples": 1000, "learning_rate": 3e-4},
}  # of a pretrained model


def on_test(path: Path, rerank: int | None) -> tuple[float, float]:
    """Test MRR, and milliseconds per query."""
    run, started = kgmlm.open_run(path, rerank=rerank), time.monotonic()
    metrics = kgmlm.evaluate(run, progress=False).metrics
    taken = time.monotonic() - started
    queries = 2 * len(run.graph.splits["test"])
    return round(metrics["both.realistic.inverse_harmonic_mean_rank"], 5), round(1000 * taken / queries, 2)


def measured(graph: str, model: str, seed: int, weight: float, epochs: float) -> dict[str, Any]:
    """A row of the record."""
    with tempfile.TemporaryDirectory() as temporary:
        path, cpu = Path(temporary) / "run", time.process_time()
        training = {"autoregressive": weight, "seed": seed}
        if model == "scratch":
            how: dict[str, Any] = {
                "config": RECIPES / "umls-scratch.toml",
                "settings": {"training": training},
            }
        else:
            whole = TEXT["training"] | training | {"epochs": epochs, "eval_every": epochs}
            sections = TEXT | {"training": whole}
            how = {"preset": "plain", "settings": sections}
        run = kgmlm.train(graph, model, path, progress=False, onnx=False, calibrate=False, **how)
        cpu = time.process_time() - cpu
        found = kgmlm.tune(path, add="conditional", progress=False)["conditional"]
        first = on_test(path, 0)
        second = on_test(path, None) if found["k"] else (first[0], None)
        return {
            "graph": graph,
            "model": store.short_name(model),
            "seed": seed,
            "weight": weight,
            "steps": run.folder.record["step"],
            "cpu_minutes": round(cpu / 60, 2),
            "valid": round(found["mrr_first"], 5),
            "valid_conditional": round(found["mrr"], 5),
            "k": found["k"],
            "weight_of_stage": round(found["weight"], 4),
            "test": first[0],
            "test_conditional": second[0],
            "ms": first[1],
            "ms_conditional": second[1],
            "versions": provenance.versions(),
            "hardware": provenance.hardware(),
        }


def main(
    graphs: Annotated[list[str], typer.Argument()],
    model: str = "scratch",
    seeds: int = 3,
    weights: str = "0,0.5",
    epochs: float = 3.0,
    output: Path | None = None,
) -> None:
    """Train and measure, and print a line each."""
    rows = store.rows(output)
    there = {(row["graph"], row["seed"], row["weight"]) for row in rows}
    for graph in graphs:
        for seed in range(seeds):
            for weight in map(float, weights.split(",")):
                if (graph, seed, weight) in there:
                    continue
                row = measured(graph, model, seed, weight, epochs)
                print({k: v for k, v in row.items() if k not in ("versions", "hardware")}, flush=True)
                rows.append(row)
                if output is not None:
                    store.write_rows(output, rows)


if __name__ == "__main__":
    typer.run(main)
