"""``kgmlm info``: a run on one screen."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from kgmlm.core import files
from kgmlm.core.errors import DataError, RunError, counted
from kgmlm.core.machine import installed
from kgmlm.evaluation.metrics import Ranks, read_ranks
from kgmlm.runs.folder import RunFolder
from kgmlm.runs.opened import open_folder
from kgmlm.runs.provenance import ancestors
from kgmlm.runs.run import Run, path_of
from kgmlm.runs.tuned import MIXTURE


@dataclass(frozen=True)
class Info:
    """A run, described.

    Attributes:
        graph: its name, and how many entities, relations and triples it has.
        model: what training began with, the span in tokens, the objective and the text settings.
        signals: the average weight of each that counts, and how each one beside the model was made.
        reverse: how many of the best are scored in reverse, and how much that counts; None where none are.
        trained: status, step, minutes and command; earlier runs, latest first.
        validation: the best MRR in training, and the figures that the weights were chosen by.
        probabilities: when and by which command they were fitted, to how many validation triples, and their
            figures by two-fold cross-fitting (``ece``, ``auc``, ...); only ``refused``,
            a sentence, where they are damaged or of other scores; None where there are none.
        updates: what `kgmlm update` has added and removed, oldest first.
        ranks: MRR and Hits@10 of each kept file of ranks; damaged files have none.
        bytes: on disk.
    """

    path: str
    graph: Mapping[str, Any]
    model: Mapping[str, Any]
    signals: Mapping[str, Any]
    reverse: Mapping[str, Any] | None
    trees: Mapping[str, Any] | None
    trained: Mapping[str, Any]
    validation: Mapping[str, Any]
    probabilities: Mapping[str, Any] | None
    updates: Sequence[Mapping[str, Any]]
    ranks: Mapping[str, Mapping[str, float]]
    bytes: int

    def as_json(self) -> dict[str, Any]:
        """The object that ``kgmlm info --json`` prints."""
        return asdict(self)

    def lines(self) -> dict[str, list[str]]:
        """The description for people, by heading."""
        g, m, t = self.graph, self.model, self.trained
        lines = {
            "graph": [f"{g['name']}: {g['entities']:,} entities, {g['relations']:,} relations; "
                      + ", ".join(f"{split} {n:,}" for split, n in g["triples"].items())],
            "model": [f"{m['began_with']}, " + (
                f"span of {m['span_length']} tokens, objective {m['objective']}, {m['neighbors']} neighbors"
                if m["trained"] else "as it came; the masked LM is not trained")],
            "signals": [f"{name}: weight {of['weight']:.3g}" for name, of in self.signals.items()],
            "trained": [f"{t['status']}, {t['minutes']:.1f} minutes"
                        + (f", {t['step']:,} steps of the masked LM" if m["trained"] else ""), t["command"]],
        }  # fmt: skip
        lines["trained"] += [f"before: {older['dataset']}: {older['command']}" for older in t["earlier"]]
        for what, stage in (
            ("scored in reverse", self.reverse),
            ("trees", self.trees),
        ):
            if stage is not None:
                used = f"the {stage['k']} best, weight {stage['weight']:g}{_asked_about(stage.get('states'))}"
                lines[what] = [used if stage["k"] else "not used: no weight improved validation"]
        best = self.validation["best_mrr"]
        lines["validation"] = [] if best is None else [f"best MRR in training {best:.4f}"]
        lines["validation"] += [
            f"with {stage}: MRR {figures['mrr']:.4f}"
            for stage, figures in self.validation["chosen"].items()
            if figures and figures.get("k") != 0
        ]
        lines["validation"] = lines["validation"] or ["none"]
        lines["probabilities"] = [self._probability_note()]
        if self.probabilities and "stands_for" in self.probabilities:
            lines["probabilities"].append(self.probabilities["stands_for"])
        if self.updates:
            lines["updates"] = [
                f"{datetime.fromisoformat(of['at']):%Y-%m-%d %H:%M}: {counted(of['entities'], 'entity')}, "
                f"{counted(of['relations'], 'relation')} and {counted(of['added'], 'triple')} added, "
                f"{of['removed']:,} removed"
                for of in self.updates
            ]
        lines["ranks"] = [
            f"{name}: "
            + (
                f"MRR {rank_figures['mrr']:.4f}, Hits@10 {rank_figures['hits_at_10']:.4f}"
                if rank_figures
                else "damaged"
            )
            for name, rank_figures in self.ranks.items()
        ] or ["none; `kgmlm evaluate` makes them"]
        lines["on disk"] = [f"{self.bytes / 2**20:.1f} MiB in {self.path}"]
        return lines

    def __repr__(self) -> str:
        return f"<info of {self.path}: {self.graph['name']}, {', '.join(self.signals) or 'no signals'}>"

    def _probability_note(self) -> str:
        p = self.probabilities
        if p is None:
            return "none; `kgmlm calibrate` fits them"
        if "refused" in p:
            return f"refused: {p['refused']}"
        when = "" if p["fitted"] is None else f"fitted {datetime.fromisoformat(p['fitted']):%Y-%m-%d %H:%M} "
        note = "".join(
            f"; with {row['probability']:.0%} or more {row['expected']:,.0f} were expected, "
            f"{row['validation']:,} are there"
            for row in p["held_out"][:1]
        )
        return f"{when}to {p['triples'] or 0:,} triples of validation{note}"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{key}</th><td>{'<br>'.join(map(html.escape, lines))}</td></tr>"
            for key, lines in self.lines().items()
        )
        return f"<table>{rows}</table>"


def info(run: Run | str | Path) -> Info:
    """Describe a run: graph, model, signals and their weights, training, last metrics, size.

    No model is loaded.

    Raises:
        RunError: when it is no run, or damaged.
    """
    folder = open_folder(path_of(run))
    path, record, settings, graph = folder.path, folder.record, folder.settings, folder.graph
    chosen: dict[str, Any] = {"signals": {}, "chosen_by": {}}
    if (path / MIXTURE).is_file():
        _ = folder.tuned  # says so where it is damaged
        chosen = files.parse_json((path / MIXTURE).read_bytes())
    made = record.get("signals", {})
    signals = {
        name: {"weight": of["average"], "by_relation": of["weights"] is not None} | {"made": made.get(name)}
        for name, of in chosen["signals"].items()
    }
    keys, spent = ("dataset", "model", "command", "minutes"), record.get("spent", {})
    return Info(
        path=str(path),
        graph={
            "name": graph.name,
            "entities": len(graph.entities),
            "relations": len(graph.relations),
            "triples": {split: len(triples) for split, triples in graph.splits.items()},
        },
        model={
            "began_with": record["model"],
            "trained": settings.trains_text,
            "span_length": record["span_length"],
            "objective": settings.training.objective,
            "neighbors": settings.text.neighbors,
        },
        signals=signals,
        reverse=chosen.get("reverse"),
        trees=chosen.get("trees"),
        trained={
            **{key: record.get(key) for key in ("status", "command", "versions", "hardware")},
            "step": record.get("step", 0),
            "minutes": sum(spent.values()) / 60 if spent else record.get("minutes", 0),
            "earlier": [{key: older.get(key) for key in keys} for _, older in ancestors(record)],
        },
        validation={
            "best_mrr": record.get("best_valid_mrr"),
            "chosen": chosen["chosen_by"].get("valid", {}),
        },
        probabilities=_probabilities(folder),
        updates=record.get("updates", []),
        ranks=_ranks(path),
        bytes=files.size_of(path),
    )


SHOWN = 0.25  # the probability of which `info` says whether it came true


def _probabilities(folder: RunFolder) -> dict[str, Any] | None:
    """Describe a run's probabilities: what they were fitted to, and how well they come true."""
    try:
        calibration = folder.calibration
    except RunError as error:
        return {"refused": str(error)}
    if calibration is None:
        return None
    by, valid = calibration.chosen_by, calibration.chosen_by.get("valid")
    valid = valid if isinstance(valid, dict) else {}  # nobody checks what a file says of itself
    rows = valid.get("held_out")
    rows = rows if isinstance(rows, list) else []
    keys = ("probability", "expected", "validation")
    numbers = [{key: _number(row.get(key)) for key in keys} for row in rows if isinstance(row, dict)]
    half = valid.get("half")
    half = half if isinstance(half, dict) else {}
    return {
        "fitted": _time(by.get("at")),
        "command": by["command"] if isinstance(by.get("command"), str) else None,
        "triples": _number(valid.get("triples")),
        "lacking": calibration.lacking,
        "stands_for": calibration.stands_for(folder.graph.validation),
        "held_out": [row for row in numbers if row["probability"] == SHOWN and None not in row.values()],
        "half": {key: _number(half.get(key)) for key in ("accuracy", "auc", "brier", "log_loss", "ece")},
    }


def _time(value: Any) -> str | None:
    try:
        return datetime.fromisoformat(value).isoformat()
    except (TypeError, ValueError):
        return None


def _number(value: Any) -> float | None:
    return value if type(value) in (int, float) and math.isfinite(value) else None


def _ranks(path: Path) -> dict[str, dict[str, float]]:
    """MRR and Hits@10 of the files of ranks in a run."""
    ranks: dict[str, dict[str, float]] = {}
    if not installed("pandas"):  # an installation for ranking alone
        return ranks
    for file in sorted((path / "ranks").glob("*.parquet")):
        try:
            table = read_ranks(file)
        except DataError:
            ranks[file.stem] = {}
            continue
        columns = (table[c].to_numpy() for c in ("optimistic", "pessimistic", "candidates"))
        realistic = Ranks(*columns).of_type("realistic")
        ranks[file.stem] = {
            "mrr": float((1 / realistic).mean()),
            "hits_at_10": float((realistic <= 10).mean()),
        }
    return ranks


def _asked_about(states: Sequence[bool] | None) -> str:
    """Which queries a second stage is used for, where not for all."""
    if states is None or (any(states[:2]) and any(states[2:])):
        return ""
    return ", of queries about " + ("known" if any(states[:2]) else "new") + " entities"
