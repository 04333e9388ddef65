"""Charts of a report: numbers to places in a small drawing, which the page's template makes SVG of.

A drawing is as wide as a telephone, so that its text can be read there; wider pages have several side by
side. What is drawn is a table, too, for those who do not see it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from kgmlm.reporting.tables import Table

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
        title, description: what it shows; and what is to be seen, for those who do not see it.
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
    """As few digits as tell them apart."""
    digits = next(d for d in range(7) if d == 6 or all(abs(round(v, d) - v) < 1e-9 for v in values))
    return [f"{v:,.{digits}f}".replace("-", "−") for v in values]


def _scale(low: float, high: float, start: float, end: float, value: float) -> float:
    return round(start + (value - low) / (high - low) * (end - start), 1)


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
        unit: both axes are from 0 to 1, and where they are equal a line is drawn.
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
        x_ticks=tuple(
            (_scale(*x_span, LEFT, RIGHT, v), t) for v, t in zip(x_values, _labels(x_values), strict=True)
        ),
        y_ticks=tuple(
            (_scale(*y_span, BOTTOM, TOP, v), t) for v, t in zip(y_values, _labels(y_values), strict=True)
        ),
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
        y_ticks=tuple(
            (_scale(*y_span, BOTTOM, TOP, v), t) for v, t in zip(y_values, _labels(y_values), strict=True)
        ),
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
        x_ticks=tuple(
            (_scale(*span, left, RIGHT, v), t) for v, t in zip(values, _labels(values), strict=True)
        ),
        y_ticks=tuple(y_ticks),
        lines=tuple(lines),
        reference=(zero, TOP, zero, bottom),
        left=left,
        bottom=bottom,
        height=int(bottom + HEIGHT - BOTTOM),
    )
