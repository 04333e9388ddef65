"""Attributes of entities, such as numbers and dates, which become words of their descriptions.

A dataset folder may have a table ``attributes`` with the columns entity, attribute and value. The text models
and the bi-encoder read what it says at the beginning of an entity's description, where it is not cut off.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgmlm.core.errors import DataError
from kgmlm.core.tables import named_rows
from kgmlm.graphs.entities import EntityTable, humanize, text_array

COLUMNS = ("entity", "attribute", "value")
TOKENS = 24  # of all attributes of an entity: more than a third of a text of 64 tokens
_TOKEN = re.compile(r"\d{1,3}|[^\W\d_]{1,8}|[^\w\s]|_")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
_TIME = re.compile(r"\+?(-?\d{4,})(-\d\d)?(-\d\d)?(T.*)?Z?")


def words_of_value(value: str) -> str:
    """A value as people write it: a plain number, a date without its time.

    >>> words_of_value("+250"), words_of_value("3.500"), words_of_value("+1998-04-01T00:00:00Z")
    ('250', '3.5', '1998-04-01')
    >>> words_of_value("1998-00-00T00:00:00Z"), words_of_value(" very  large ")
    ('1998', 'very large')
    """
    value = " ".join(value.split())
    if _NUMBER.fullmatch(value):
        plain = value.removeprefix("+")
        return plain.rstrip("0").rstrip(".") if "." in plain else plain
    if time := _TIME.fullmatch(value):
        year, month, day, _ = time.groups(default="")
        return year + (month if month != "-00" else "") + (day if month != "-00" and day != "-00" else "")
    return value


def _tokens(text: str) -> int:
    """About as many tokens as tokenizers of subwords make of a text: long numbers are several.

    >>> _tokens("employees 250"), _tokens("born 1998-04-01")
    (3, 7)
    """
    return len(_TOKEN.findall(text))


def attribute_text(attributes: Iterable[tuple[str, str]]) -> str:
    """Attributes and values of an entity in words, as many as :data:`TOKENS` have room for.

    >>> attribute_text([("founded_in", "1998"), ("employees", "+250")])
    'founded in 1998; employees 250'
    """
    parts, left = list[str](), TOKENS
    for attribute, value in attributes:
        part = f"{humanize(attribute)} {words_of_value(value)}"
        if (count := _tokens(part) + 1) <= left:
            parts.append(part)
            left -= count
    return "; ".join(parts)


def read_attributes(path: Path) -> dict[str, list[tuple[str, str]]]:
    """The attributes of each entity, by its label, in the order of the table.

    Raises:
        DataError: for a table without these columns, or an empty cell.
    """
    values: dict[str, list[tuple[str, str]]] = {}

    def check(header: Sequence[str]) -> None:
        if missing := [name for name in COLUMNS if name not in header]:
            raise DataError(f"{path} has no column '{missing[0]}'; its columns are {', '.join(COLUMNS)}")

    for where, row in named_rows(path, ", ".join(COLUMNS), check):
        if empty := [name for name in COLUMNS if not row[name].strip()]:
            raise DataError(f"{where}: the {empty[0]} is empty")
        values.setdefault(row["entity"], []).append((row["attribute"], row["value"]))
    return values


def described(entities: EntityTable, attributes: Mapping[str, list[tuple[str, str]]]) -> EntityTable:
    """Entities whose descriptions begin with what their attributes say.

    Raises:
        DataError: when attributes are given, and no entity has any.
    """
    rows = [(row, of) for label, of in attributes.items() if (row := entities.find(label)) is not None]
    if attributes and not rows:
        raise DataError(f"no entity has the label '{next(iter(attributes))}' or any other with attributes")
    table = entities.table
    at = table.column_names.index("description")
    old = table.column("description")
    new = []
    for row, of in rows:
        before = old[row].as_py()
        new.append(". ".join(text for text in (attribute_text(of), before) if text))
    mask = np.zeros(len(entities), np.bool_)
    mask[[row for row, _ in rows]] = True
    order = np.argsort([row for row, _ in rows])
    values = text_array([new[i] for i in order])
    column = pc.replace_with_mask(old.combine_chunks(), pa.array(mask), values.cast(old.type))
    return EntityTable.of(table.set_column(at, "description", pa.chunked_array([column])), check=False)
