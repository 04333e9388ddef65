"""Tables of a report: what is shown in a cell, and what it is sorted by. Long names are cut short."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

MOST_ROWS = 500  # of a table that has a row per relation
LONGEST = 90  # characters of a name; beyond, it is cut
# What each signal says, in words.
SIGNALS = {
    "likelihood": "how likely the language model finds the name of an entity in the gap",
    "vector": "how near the text of an entity is to the question, as vectors that the language model makes",
    "kge": "embeddings learned from the links of the graph alone (ComplEx)",
    "rules": "paths through the graph that often go with the relation",
    "types": "what kinds of entities stand at this side of the relation",
}


@dataclass(frozen=True)
class Cell:
    """What is shown, and what a column is sorted by where that is a number; numbers are at the ``right``."""

    text: str
    key: float | None = None
    right: bool = False

    @property
    def number(self) -> bool:
        """Whether it stands at the right."""
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
        kept = tuple(tuple(row) for row in rows[:MOST_ROWS])
        return cls(caption, tuple(columns), kept, sortable, len(rows) - len(kept))


def number(value: float | None, digits: int = 3) -> Cell:
    """A number with so many digits behind the point, or a dash.

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
