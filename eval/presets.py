"""Presets against runs tuned by hand, on small graphs: is what a preset chooses near the best?

    OMP_NUM_THREADS=1 python eval/presets.py GRAPH ... --model MODEL [--splits 5] [--seeds 3]
        [--variants balanced,long] [--unseen] [--output eval/presets.json]

Each variant changes one thing of the preset "balanced". With --splits a graph is split again at random, so
often, since one small validation set says little; with --unseen the graph of its name and "-ind", whose
entities training has not, is ranked, too. Rows are added to the JSON; rows that are there are not made again.
Test is measured of presets alone.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, get_args

import store
import typer

import kgmlm
from kgmlm.core.config import Settings
from kgmlm.runs import provenance
from kgmlm.training.recipes import PRESETS, Preset, recipe_of

# Beside "balanced": settings by section; a number of "times" is of the preset's own epochs.
VARIANTS: dict[str, dict[str, Any]] = {
    "twice as long": {"times": 2},
    "four times as long": {"times": 4},
    "8 neighbors": {"text": {"neighbors": 8, "max_length": 96}},
    "a third of the learning rate": {"training": {"learning_rate": 1e-4}},
    "twice the learning rate": {"training": {"learning_rate": 6e-4}},
    "100 epochs of KGE": {"kge": {"epochs": 100}},
    "the other samples": {"other": ("training", "samples", ("queries", "triples"))},
    "the other penalty": {"other": ("kge", "penalty", ("entities", "triples"))},
    "no vectors": {"vector": {"enabled": False}},
}


def preset_of(variant: str) -> Preset:
    """The preset that a variant is, or changes."""
    return next((preset for preset in get_args(Preset) if preset == variant), "balanced")


def given(variant: str, chosen: Settings) -> dict[str, dict[str, Any]]:
    """What is set beside the preset, by section."""
    change = dict(VARIANTS.get(variant, {}))
    times = change.pop("times", None)
    if times:
        change["training"] = {"epochs": chosen.training.epochs * times}
    if "other" in change:
        section, key, values = change.pop("other")
        now = getattr(getattr(chosen, section), key)
        change[section] = {key: next(value for value in values if value != now)}
    return change


def graph_of(name: str, split: int | None, folder: Path) -> str | Path:
    """A graph; or the triples of all its splits, split again."""
    if split is None:
        return name
    whole, again = folder / "whole", folder / "split"
    graph = kgmlm.load_graph(name)
    whole.mkdir()
    triples = [row for part in graph.splits.values() for row in graph.labeled(part)]
    (whole / "train.tsv").write_text("".join("\t".join(row) + "\n" for row in triples), "utf-8")
    kgmlm.data.split(whole, again, random=True, seed=split)
    return again


def on_test(run: kgmlm.Run, graph: str | None = None) -> dict[str, float]:
    """MRR and Hits of all test triples of a run's graph, or of another one."""
    metrics = kgmlm.evaluate(run, graph=graph, progress=False).metrics
    of = {"mrr": "inverse_harmonic_mean_rank", "hits_at_1": "hits_at_1", "hits_at_10": "hits_at_10"}
    return {key: round(metrics[f"both.realistic.{name}"], 5) for key, name in of.items()}


def measured(
    name: str, split: int | None, seed: int, variant: str, model: str, unseen: bool, runs: Path | None
) -> dict[str, Any]:
    """A row of the record."""
    kept = None if runs is None else runs / "-".join(str(x) for x in (name, split, seed, variant))
    with tempfile.TemporaryDirectory() as temporary:
        graph = graph_of(name, split, Path(temporary))
        chosen = recipe_of(preset_of(variant), kgmlm.load_graph(graph), model == "scratch").settings
        sections: dict[str, Any] = given(variant, chosen)
        if seed:
            for section in ("training", "biencoder", "kge", "rules"):
                sections[section] = {**sections.get(section, {}), "seed": seed}
        cpu, started = time.process_time(), time.monotonic()
        run = kgmlm.train(
            graph, model, kept or Path(temporary) / "run", preset=preset_of(variant), progress=False,
            settings=sections,
        )  # fmt: skip
        row = {
            "graph": name,
            "split": split,
            "seed": seed,
            "model": store.short_name(model),
            "variant": variant,
            "set": sections,
            "steps": run.folder.record["step"],
            "minutes": round((time.monotonic() - started) / 60, 2),
            "cpu_minutes": round((time.process_time() - cpu) / 60, 2),
            "valid": {
                stage: {key: round(value, 5) for key, value in found.items() if key in ("mrr", "hits_at_10")}
                for stage, found in run.folder.tuned.by["valid"].items()
            },
        }
        if variant in PRESETS:
            row["test"] = on_test(run)
            if unseen:
                row["test_unseen"] = on_test(run, f"{name}-ind")
        return row | {"versions": provenance.versions(), "hardware": provenance.hardware()}


def main(
    graphs: Annotated[list[str], typer.Argument()],
    model: str = "scratch",
    splits: int = 0,
    seeds: int = 1,
    variants: str = ",".join([*PRESETS[:-1], *VARIANTS]),
    unseen: bool = False,
    runs: Annotated[Path | None, typer.Option(help="A folder in which the trained runs stay.")] = None,
    output: Path | None = None,
) -> None:
    """Train and measure, and print a line each."""
    rows = store.rows(output)
    asked = [
        (name, split, seed, variant)
        for name in graphs
        for split in (range(splits) if splits else [None])
        for seed in range(seeds)
        for variant in variants.split(",")
    ]
    short = store.short_name(model)
    there = {(r["graph"], r["split"], r.get("seed", 0), r["variant"], r["model"]) for r in rows}
    for name, split, seed, variant in asked:
        if (name, split, seed, variant, short) in there:
            continue
        row = measured(name, split, seed, variant, model, unseen, runs)
        shown = {stage: f"{found['mrr']:.4f}" for stage, found in row["valid"].items()}
        figures = (shown, row.get("test", ""), row.get("test_unseen", ""))
        print(name, split, seed, variant, *figures, row["cpu_minutes"], "min", flush=True)
        rows.append(row)
        if output is not None:
            store.write_rows(output, rows)


if __name__ == "__main__":
    typer.run(main)
