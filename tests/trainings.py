"""Short trainings on the toy graph."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kgmlm.core.config import Settings, load_settings
from kgmlm.core.options import described
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.ranking.ranker import Mixture, Ranker
from kgmlm.training.loop import Outcome, train
from kgmlm.training.options import TrainOptions
from kgmlm.training.start import start_run

BASE = [
    "scratch.hidden_size=32", "scratch.heads=2", "scratch.vocabulary=400", "scratch.dropout=0.1",
    "training.batch_size=8", "training.epochs=6", "training.eval_every=2",
]  # fmt: skip

# Arguments of kgmlm.train for the same.
TINY: dict[str, Any] = {
    "preset": "plain", "onnx": False, "batch_size": 16,
    "scratch": {"hidden_size": 32, "heads": 2, "vocabulary": 400},
}  # fmt: skip


def arguments(**given: Any) -> dict[str, Any]:
    """Arguments of kgmlm.train: its options, and what is none among its settings."""
    options = {option.name for option in described(TrainOptions)}
    sections = {name: value for name, value in given.items() if name not in options}
    named = {
        name if name in Settings.model_fields or "." in name else f"training.{name}": value
        for name, value in sections.items()
    }
    return {name: value for name, value in given.items() if name in options} | {"settings": named}


VECTORS = ("vector.enabled=true", "vector.max_length=24", "vector.memory=12")


def settings(*more: str) -> Settings:
    return load_settings(None, [*BASE, *more])


def losses(run: Path) -> list[float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


class Validation:
    """Figures given in advance."""

    def __init__(self, *values: float) -> None:
        self.values = list(values)

    def __call__(self, ranker: Ranker) -> tuple[Mixture, Mapping[str, float]]:
        return ranker.mixture, {"mrr": self.values.pop(0) if self.values else 0.0}


def go(path: Path, toy: KnowledgeGraph, *more: str, **options: Any) -> Outcome:
    run, ranker = start_run(path, toy, "scratch", settings(*more))
    return train(run, ranker, **options)
