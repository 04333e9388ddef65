"""A softmax over a sample of entities against one over all of them: the same training, measured among all.

    OMP_NUM_THREADS=1 python eval/sampled.py GRAPH --model MODEL [--candidates 0,512] [--seeds 1]
        [--steps 300] [--output eval/sampled.json]

The text model of the preset "quick" is trained for so many steps and validated once; candidates 0 are all
entities. Rows are added to the JSON; rows that are there are not made again. Test is not looked at. The row
that is not "corrected" was made with one line of objectives/streams.py changed: each drawn entity
stands for itself alone.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import store
import typer

import kgmlm
from kgmlm.core.config import dump_settings
from kgmlm.runs import record
from kgmlm.training.recipes import Shape, recipe_of


def measured(graph: str, model: str, candidates: int, seed: int, steps: int) -> dict[str, Any]:
    """A row of the record."""
    loaded = kgmlm.load_graph(graph)
    settings = recipe_of("quick", loaded, scratch=False).settings
    training = settings.training
    asked = 2 * len(loaded.splits["train"]) if training.samples == "triples" else Shape.of(loaded).queries
    epochs = steps * training.batch_size / asked
    changed = {"candidates": candidates, "seed": seed, "epochs": epochs, "eval_every": epochs}
    settings = settings.model_copy(update={"training": training.model_copy(update=changed)})
    with tempfile.TemporaryDirectory() as temporary:
        config = Path(temporary) / "config.toml"
        config.write_text(dump_settings(settings), "utf-8")
        cpu = time.process_time()
        run = kgmlm.train(graph, model, Path(temporary) / "run", config=config, progress=False)
        folder = run.folder
        lines = (folder.path / "metrics.jsonl").read_text("utf-8").splitlines()
        told = list(map(json.loads, lines))
        losses = [line["loss"] for line in told if "loss" in line]
        valid = next(line for line in reversed(told) if "valid_mrr" in line)
        return {
            "graph": graph,
            "model": Path(model).parent.name if "/" in model else model,
            "candidates": candidates,
            "corrected": True,
            "seed": seed,
            "steps": folder.record["step"],
            "valid": {key[6:]: round(value, 5) for key, value in valid.items() if key[:6] == "valid_"},
            "loss": round(sum(losses[-50:]) / len(losses[-50:]), 4),
            "cpu_minutes": round((time.process_time() - cpu) / 60, 2),
            "versions": record.versions(),
            "hardware": record.hardware(),
        }


def main(
    graph: Annotated[str, typer.Argument()],
    model: Annotated[str, typer.Option()],
    candidates: str = "0,512",
    seeds: int = 1,
    steps: int = 300,
    output: Path | None = None,
) -> None:
    """Train and measure, and print a line each."""
    rows = store.rows(output)
    short = Path(model).parent.name if "/" in model else model
    there = {(r["graph"], r["model"], r["candidates"], r["seed"]) for r in rows}
    for seed in range(seeds):
        for count in map(int, candidates.split(",")):
            if (graph, short, count, seed) in there:
                continue
            row = measured(graph, model, count, seed, steps)
            print(graph, count, seed, row["valid"], row["loss"], row["cpu_minutes"], "min", flush=True)
            rows.append(row)
            if output is not None:
                store.write_rows(output, rows)


if __name__ == "__main__":
    typer.run(main)
