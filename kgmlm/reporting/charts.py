"""Tables and charts of a report, as data for the page's template, and those of a run's training.

A drawing is as wide as a phone, so that its text can be read there; wider pages have several side by side.
Every drawing comes with a table, too, for readers who cannot see it.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kgmlm.core import files
from kgmlm.core.errors import counted
from kgmlm.runs.folder import RunFolder
from kgmlm.runs.provenance import ancestors
from kgmlm.signals import SIGNALS

MAX_ROWS = 500  # of a table that has a row per relation
LONGEST = 90  # characters of a name; beyond, it is cut


def about(signal: str) -> str:
    """Say what the scores of a signal mean; "" for a signal that kgmlm no longer has."""
    kind = SIGNALS.get(signal)
    return kind.about if kind else ""


@dataclass(frozen=True)
class Cell:
    """A cell: its text, and the number that its column is sorted by, if any; numbers, and cells marked
    ``right``, are aligned right.
    """

    text: str
    key: float | None = None
    right: bool = False

    @property
    def number(self) -> bool:
        """Whether it is aligned right."""
        return self.right or self.key is not None or self.text == "–"


@dataclass(frozen=True)
class Table:
    """Rows under columns.

    Attributes:
        caption: what it shows.
        columns: their names.
        rows: the first cell of each names it.
        sortable: whether a click on a column sorts.
        left_out: how many rows more there are.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    sortable: bool = False
    left_out: int = 0

    @classmethod
    def of(
        cls, caption: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, sortable: bool = False
    ) -> Table:
        """With as many rows as a page can hold."""
        kept = tuple(tuple(row) for row in rows[:MAX_ROWS])
        return cls(caption, tuple(columns), kept, sortable, len(rows) - len(kept))


def number(value: float | None, digits: int = 3) -> Cell:
    """A number with ``digits`` decimal places, or a dash.

    >>> number(1234.5, 1).text, number(None).text
    ('1,234.5', '–')
    """
    if value is None or not math.isfinite(value):
        return Cell("–")
    shown = f"{value:,.{digits}f}"
    return Cell(shown.replace("-", "−"), float(value))


def weight(value: float) -> Cell:
    """A weight, which may be large or small, with as many digits as it needs.

    >>> weight(160.0).text, weight(0.0625).text
    ('160', '0.0625')
    """
    return Cell(f"{value:.3g}".replace("-", "−"), value)


def percent(share: float | None) -> Cell:
    """A share as percents.

    >>> percent(0.1234).text
    '12.3 %'
    """
    return Cell("–") if share is None else Cell(f"{100 * share:.1f} %", share)


def clipped(text: str, most: int = LONGEST) -> str:
    """A text of a graph without control characters, on one line, cut where it is long.

    >>> clipped("a\\tb\\x00" + "c" * 9, most=6)
    'a b cc…'
    """
    most_read = text[: 4 * most]
    plain = "".join(" " if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") else c for c in most_read)
    plain = " ".join(plain.split())
    cut = plain if len(plain) <= most else plain[:most].rstrip()
    return f"{cut}…" if cut != plain or len(text) > len(most_read) else cut


WIDTH, HEIGHT = 360, 230
LEFT, RIGHT, TOP, BOTTOM = 44.0, 350.0, 26.0, 192.0  # of what is between the axes
Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A line through places, in the color of a series, with dots or not."""

    series: int
    points: tuple[Point, ...]
    dots: tuple[tuple[float, float, float], ...] = ()  # each with its radius


@dataclass(frozen=True)
class Bar:
    """A rectangle in the color of a series."""

    series: int
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Chart:
    """A drawing and its table.

    Attributes:
        title, description: what it shows; and what can be seen, for readers who cannot see it.
        x_label, y_label: of the axes.
        x_ticks, y_ticks: places and their labels.
        legend: of each series; none where there is but one.
        reference: a thin line from place to place, such as where two are equal.
        left: where the drawing begins beside the labels at the left.
    """

    title: str
    description: str
    table: Table
    x_label: str = ""
    y_label: str = ""
    x_ticks: tuple[tuple[float, str], ...] = ()
    y_ticks: tuple[tuple[float, str], ...] = ()
    legend: tuple[str, ...] = ()
    lines: tuple[Line, ...] = ()
    bars: tuple[Bar, ...] = ()
    reference: tuple[float, float, float, float] | None = None
    left: float = LEFT
    width: int = WIDTH
    height: int = HEIGHT
    right: float = RIGHT
    top: float = TOP
    bottom: float = BOTTOM


@dataclass(frozen=True)
class Series:
    """Numbers of one line: ``(x, y)`` in order; ``sizes`` of its dots, from 0 to 1."""

    name: str
    points: Sequence[Point]
    sizes: Sequence[float] = field(default=())


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers from one not above ``low`` to one not below ``high``.

    >>> ticks(0, 0.93), ticks(3, 3)
    ([0.0, 0.25, 0.5, 0.75, 1.0], [3.0, 3.2, 3.4, 3.6, 3.8])
    """
    if high - low <= 1e-9 * max(1.0, abs(low), abs(high)):
        high = low + max(abs(low), 1e-6) / 4 if low else 0.25
    power = 10.0 ** math.floor(math.log10((high - low) / about))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if (high - low) / (m * power) <= about)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def _labels(values: Sequence[float]) -> list[str]:
    """Labels of numbers, with as few digits as tell them apart."""
    digits = next(d for d in range(7) if d == 6 or all(abs(round(v, d) - v) < 1e-9 for v in values))
    return [f"{v:,.{digits}f}".replace("-", "−") for v in values]


def _scale(low: float, high: float, start: float, end: float, value: float) -> float:
    return round(start + (value - low) / (high - low) * (end - start), 1)


def _marks(
    values: Sequence[float], span: tuple[float, float], start: float, end: float
) -> tuple[tuple[float, str], ...]:
    """The ticks of an axis: where each value stands, and its label."""
    return tuple((_scale(*span, start, end, v), t) for v, t in zip(values, _labels(values), strict=True))


def line_chart(
    title: str,
    description: str,
    series: Sequence[Series],
    table: Table,
    *,
    labels: tuple[str, str],
    unit: bool = False,
) -> Chart:
    """Lines over two axes, which begin at zero.

    Args:
        labels: of the axes.
        unit: both axes run from 0 to 1, and the diagonal is drawn.
    """
    xs = [x for s in series for x, _ in s.points]
    ys = [y for s in series for _, y in s.points]
    last = 1.0 if unit else max(1.0, *xs)
    x_values = [0.0, 0.25, 0.5, 0.75, 1.0] if unit else [x for x in ticks(0, last) if x <= last]
    y_values = x_values if unit else ticks(min(0, *ys), max(ys))
    x_span, y_span = (0.0, last), (y_values[0], y_values[-1])

    def place(x: float, y: float) -> Point:
        return _scale(*x_span, LEFT, RIGHT, x), _scale(*y_span, BOTTOM, TOP, y)

    lines = []
    for number, each in enumerate(series):
        points = tuple(place(x, y) for x, y in each.points)
        few = len(points) <= 30
        sizes = each.sizes or [0.3 if few else 0.0] * len(points)
        dots = tuple(
            (x, y, round(9 * math.sqrt(size), 1)) for (x, y), size in zip(points, sizes, strict=True)
        )
        dots = (
            tuple(dot for dot in dots if dot[2])
            if each.sizes
            else tuple((x, y, 2.5) for x, y, r in dots if r)
        )
        lines.append(Line(number, points, dots))
    return Chart(
        title,
        description,
        table,
        *labels,
        x_ticks=_marks(x_values, x_span, LEFT, RIGHT),
        y_ticks=_marks(y_values, y_span, BOTTOM, TOP),
        legend=tuple(s.name for s in series) if len(series) > 1 else (),
        lines=tuple(lines),
        reference=(LEFT, BOTTOM, RIGHT, TOP) if unit else None,
    )


def bar_chart(
    title: str,
    description: str,
    names: Sequence[str],
    series: Sequence[tuple[str, Sequence[float]]],
    table: Table,
    *,
    labels: tuple[str, str],
) -> Chart:
    """Upright bars, side by side for each name; heights are shares or scores, from zero."""
    y_values = ticks(0, max(max(values) for _, values in series) or 1.0)
    y_span = (0.0, y_values[-1])
    room = (RIGHT - LEFT) / len(names)
    wide = round(min(28.0, 0.76 * room / len(series)), 1)
    bars, middles = [], []
    for i in range(len(names)):
        middle = LEFT + room * (i + 0.5)
        middles.append(round(middle, 1))
        for number, (_, values) in enumerate(series):
            y = _scale(*y_span, BOTTOM, TOP, values[i])
            x = round(middle + (number - len(series) / 2) * wide, 1)
            bars.append(Bar(number, x, y, round(wide - 1, 1), round(BOTTOM - y, 1)))
    return Chart(
        title,
        description,
        table,
        *labels,
        x_ticks=tuple(zip(middles, names, strict=True)),
        y_ticks=_marks(y_values, y_span, BOTTOM, TOP),
        legend=tuple(name for name, _ in series) if len(series) > 1 else (),
        bars=tuple(bars),
    )


@dataclass(frozen=True)
class Interval:
    """A value with an interval around it, and the series that it is of."""

    name: str
    value: float
    low: float
    high: float
    series: int = 0


def interval_chart(
    title: str, description: str, intervals: Sequence[Interval], table: Table, *, label: str
) -> Chart:
    """Values with their intervals, one below the other, beside a line at zero."""
    left, step = 104.0, 20.0
    bottom = TOP + step * len(intervals)
    values = ticks(min(0.0, *(i.low for i in intervals)), max(0.0, *(i.high for i in intervals)))
    span = (values[0], values[-1])
    lines, y_ticks = [], []
    for row, each in enumerate(intervals):
        y = TOP + step * (row + 0.5)
        low, high, value = (_scale(*span, left, RIGHT, v) for v in (each.low, each.high, each.value))
        lines.append(Line(each.series, ((low, y), (high, y)), ((value, y, 3.5),)))
        y_ticks.append((y, each.name))
    zero = _scale(*span, left, RIGHT, 0.0)
    return Chart(
        title,
        description,
        table,
        x_label=label,
        x_ticks=_marks(values, span, left, RIGHT),
        y_ticks=tuple(y_ticks),
        lines=tuple(lines),
        reference=(zero, TOP, zero, bottom),
        left=left,
        bottom=bottom,
        height=int(bottom + HEIGHT - BOTTOM),
    )


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
    rows = [
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
    return [*rows, ("Before it", lineage or ["nothing: it began from no other run"])]


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
    hardware = record.get("hardware") or {}
    threads = hardware.get("threads")
    parts = [
        hardware.get("gpu"),
        hardware.get("machine"),
        None if threads is None else counted(threads, "thread"),
    ]
    return ", ".join(str(part) for part in parts if part) or "not recorded"


def stages(run: RunFolder) -> Table:
    """A row per part that was trained, with the minutes that it took."""
    record = run.record
    rows = []
    rows.append(("text model", record))
    rows += [(f"{name}: {about(name)}", how) for name, how in record.get("signals", {}).items()]
    cells = [
        (Cell(what), number((how or {}).get("minutes"), 1), Cell(_hardware(how or {}))) for what, how in rows
    ]
    total = sum(float((how or {}).get("minutes") or 0) for _, how in rows)
    if len(rows) > 1:
        cells.append((Cell("together"), number(total, 1), Cell("")))
    return Table.of("What was trained, and how long", ("part", "minutes", "on"), cells)


def minutes(run: RunFolder) -> float:
    """The minutes that all parts of a run took."""
    return stages(run).rows[-1][1].key or 0.0


def curves(run: RunFolder) -> list[Chart]:
    """Loss and validation MRR of the text model by step; none where no log is left."""
    curves, rows = [], _log(run.path / "metrics.jsonl")
    losses = [(row["step"], row["loss"]) for row in rows if _numbers(row, "step", "loss")]
    if losses:
        curves.append(_loss_chart(losses))
    # With one weight for all relations: weights chosen per relation, on few triples, flatter the MRR.
    valid = [{"valid": row.get("valid_mrr_one_weight", row.get("valid_mrr")), **row} for row in rows]
    valid = [row for row in valid if _numbers(row, "step", "valid")]
    if valid:
        curves.append(_validation_chart(valid))
    return curves


def _log(path: Path) -> list[dict[str, Any]]:
    """The rows of a log; lines that a kill cut off are skipped."""
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


def _loss_chart(losses: Sequence[tuple[float, float]]) -> Chart:
    size = -(-len(losses) // _POINTS)
    parts = [losses[i : i + size] for i in range(0, len(losses), size)]
    points = [(part[-1][0], sum(loss for _, loss in part) / len(part)) for part in parts]
    shown = points[:: max(1, len(points) // 15)]
    each = "each step" if size == 1 else f"means of {size} steps"
    table = Table.of(
        "Loss of the text model", ("step", "loss"), [(number(step, 0), number(loss)) for step, loss in shown]
    )
    description = f"From {points[0][1]:.3f} to {points[-1][1]:.3f} in {losses[-1][0]:,} steps ({each})."
    return line_chart(
        "Loss of the text model", description, [Series("loss", points)], table,
        labels=("optimizer step", f"loss, {each}"),
    )  # fmt: skip


def _validation_chart(rows: Sequence[Mapping[str, Any]]) -> Chart:
    points = [(row["step"], row["valid"]) for row in rows]
    best = max(points, key=lambda point: point[1])
    timed = [row.get("minutes") for row in rows]
    cells = [
        (number(step, 0), number(minutes, 2), number(mrr))
        for (step, mrr), minutes in zip(points, timed, strict=True)
    ]
    table = Table.of("Validation of the text model", ("step", "minutes", "MRR"), cells)
    description = f"Best at step {best[0]:,} with an MRR of {best[1]:.3f}, of {len(points)} validations."
    return line_chart(
        "Validation of the text model", description, [Series("MRR", points)], table,
        labels=("optimizer step", "validation MRR"),
    )  # fmt: skip
