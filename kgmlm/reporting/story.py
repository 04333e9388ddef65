"""What a run was trained on, and how: its record and its log as tables and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kgmlm import files
from kgmlm.kg import counted
from kgmlm.provenance import ancestors
from kgmlm.records import read_record
from kgmlm.reporting.charts import Chart, Series, line_chart
from kgmlm.reporting.tables import SIGNALS, Cell, Table, clipped, number
from kgmlm.runs import RunFolder
from kgmlm.upkeep import RERANKER, has_reranker

_POINTS = 120  # of a curve of losses


def facts(run: RunFolder) -> list[tuple[str, list[str]]]:
    """The graph, the model, the preset and its reasons, hardware, versions and command, by heading."""
    graph, record, settings = run.graph, run.record, run.settings
    splits = ", ".join(f"{len(t):,} {name}" for name, t in graph.splits.items())
    entities, relations = counted(len(graph.entities), "entity"), counted(len(graph.relations), "relation")
    model = {True: "the model of the run before it", False: str(record["model"])}[
        bool(record.get("began_from"))
    ]
    model = "a small BERT with random weights (scratch)" if record["model"] == "scratch" else model
    found = [
        ("Graph", [f"{clipped(graph.name)}: {entities}, {relations}", f"{splits} triples"]),
        ("Model", [
            f"began with {model}",
            f"names of up to {counted(record['span_length'], 'token')}, texts of up to "
            f"{settings.text.max_length}, {counted(settings.text.neighbors, 'neighbor')} told with an entity",
        ]),
        ("Preset", _preset(run)),
        ("Ended", [f"{record['status']} at step {record['step']:,}"]),
        ("Command", [str(record.get("command") or "not recorded")]),
        ("Hardware", [_hardware(record)]),
        ("Versions", [", ".join(f"{k} {v}" for k, v in (record.get("versions") or {}).items())]),
    ]  # fmt: skip
    lineage = [
        f"{older.get('dataset')}, {float(older.get('minutes') or 0):.1f} minutes: {older.get('command')}"
        for _, older in ancestors(record)
    ]
    return [*found, ("Before it", lineage or ["nothing: it began from no other run"])]


def _preset(run: RunFolder) -> list[str]:
    """The preset with its stages, and its reasons as ``config.toml`` has them above the settings."""
    if not run.record.get("recipe"):
        return ["none: the settings are those that were given"]
    notes = []
    for line in (run.path / "config.toml").read_text("utf-8").splitlines():
        if not line.startswith("# "):
            break
        notes.append(line.removeprefix("# ").removeprefix("preset "))
    return notes


def _hardware(record: Mapping[str, Any]) -> str:
    found = record.get("hardware") or {}
    threads = found.get("threads")
    parts = [found.get("gpu"), found.get("machine"), None if threads is None else counted(threads, "thread")]
    return ", ".join(str(part) for part in parts if part) or "not recorded"


def stages(run: RunFolder) -> Table:
    """A row per part that was trained, with the minutes that it took."""
    record = run.record
    rows = []
    rows.append(("text model", record))
    rows += [(f"{name}: {SIGNALS.get(name, '')}", how) for name, how in record.get("signals", {}).items()]
    if has_reranker(run.path):
        rows.append(("reranker, which reads the best answers again", read_record(run.path / RERANKER)))
    cells = [
        (Cell(what), number((how or {}).get("minutes"), 1), Cell(_hardware(how or {}))) for what, how in rows
    ]
    total = sum(float((how or {}).get("minutes") or 0) for _, how in rows)
    if len(rows) > 1:
        cells.append((Cell("together"), number(total, 1), Cell("")))
    return Table.of("What was trained, and how long", ("part", "minutes", "on"), cells)


def minutes(run: RunFolder) -> float:
    """How long all parts of a run took."""
    return stages(run).rows[-1][1].key or 0.0


def curves(run: RunFolder) -> list[Chart]:
    """Loss and validation MRR by step, of the text model and of a reranker; none where no log is left."""
    found = []
    for name, folder in (("text model", run.path), ("reranker", run.path / RERANKER)):
        rows = _log(folder / "metrics.jsonl")
        losses = [(row["step"], row["loss"]) for row in rows if _numbers(row, "step", "loss")]
        if losses:
            found.append(_loss_chart(name, losses))
        # By one weight for all relations: chosen for each relation on few triples, it is flattered.
        valid = [{"valid": row.get("valid_mrr_one_weight", row.get("valid_mrr")), **row} for row in rows]
        valid = [row for row in valid if _numbers(row, "step", "valid")]
        if valid:
            found.append(_validation_chart(name, valid))
    return found


def _log(path: Path) -> list[dict[str, Any]]:
    """The rows of a log; what a kill has cut is passed over."""
    rows = []
    for line in path.read_text("utf-8", errors="replace").splitlines() if path.is_file() else []:
        try:
            row = files.parse_json(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _numbers(row: Mapping[str, Any], *keys: str) -> bool:
    return all(isinstance(row.get(key), (int, float)) for key in keys)


def _loss_chart(name: str, losses: Sequence[tuple[float, float]]) -> Chart:
    size = -(-len(losses) // _POINTS)
    parts = [losses[i : i + size] for i in range(0, len(losses), size)]
    points = [(part[-1][0], sum(loss for _, loss in part) / len(part)) for part in parts]
    shown = points[:: max(1, len(points) // 15)]
    each = "each step" if size == 1 else f"means of {size} steps"
    table = Table.of(
        f"Loss of the {name}", ("step", "loss"), [(number(step, 0), number(loss)) for step, loss in shown]
    )
    description = f"From {points[0][1]:.3f} to {points[-1][1]:.3f} in {losses[-1][0]:,} steps ({each})."
    return line_chart(
        f"Loss of the {name}", description, [Series("loss", points)], table,
        labels=("optimizer step", f"loss, {each}"),
    )  # fmt: skip


def _validation_chart(name: str, rows: Sequence[Mapping[str, Any]]) -> Chart:
    points = [(row["step"], row["valid"]) for row in rows]
    best = max(points, key=lambda point: point[1])
    timed = [row.get("minutes") for row in rows]
    cells = [
        (number(step, 0), number(minutes, 2), number(mrr))
        for (step, mrr), minutes in zip(points, timed, strict=True)
    ]
    table = Table.of(f"Validation of the {name}", ("step", "minutes", "MRR"), cells)
    description = f"Best at step {best[0]:,} with an MRR of {best[1]:.3f}, of {len(points)} validations."
    return line_chart(
        f"Validation of the {name}", description, [Series("MRR", points)], table,
        labels=("optimizer step", "validation MRR"),
    )  # fmt: skip
