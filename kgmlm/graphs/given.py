"""Triples, queries and entities as Python users pass them: lists, arrays, DataFrames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kgmlm.core.errors import DataError, QueryError
from kgmlm.core.files import as_path
from kgmlm.core.tables import ENDS, header_columns, read_triples, rows_of
from kgmlm.graphs.entities import LISTS, TEXT_COLUMNS, EntityTable, completed

if TYPE_CHECKING:
    import pandas as pd

AnyArray = npt.NDArray[Any]
Triples: TypeAlias = "Iterable[tuple[str, str, str]] | AnyArray | pd.DataFrame"
AskedQueries: TypeAlias = "Iterable[tuple[str | None, str, str | None]] | pd.DataFrame"


def labeled_triples(triples: Triples) -> list[tuple[str, str, str]]:
    """Triples as a list.

    Args:
        triples: (head, relation, tail) by labels or names: an iterable, an array ``(n, 3)``, or a DataFrame
            with columns of these names (or with three columns).

    Raises:
        QueryError: naming the first that is no such triple.

    >>> labeled_triples([("France", "borders", "Spain")])
    [('France', 'borders', 'Spain')]
    """
    found = []
    for n, (head, relation, tail) in enumerate(labeled_queries(triples, "triples"), 1):
        if head is None or tail is None:
            raise QueryError(f"triple {n} has no {'head' if head is None else 'tail'}")
        found.append((head, relation, tail))
    return found


class GivenTriples(NamedTuple):
    """Triples as they were given, by labels or names.

    Attributes:
        rows: (head, relation, tail).
        where: how an error names the place of a triple, before its number.
        start: the number of the first.
    """

    rows: Sequence[tuple[str, str, str]]
    where: str = "triple "
    start: int = 1

    @classmethod
    def of(cls, triples: Triples | str | Path) -> GivenTriples:
        """Triples from Python, or of a file with or without a header.

        Raises:
            DataError: when the file cannot be read.
            QueryError: naming the first that is no triple.
        """
        if not isinstance(triples, str | Path):
            return cls(labeled_triples(triples))
        path = as_path(triples, "the file of triples")
        rows = [(head, relation, tail) for head, relation, tail in rows_of(read_triples(path))]
        has_header = path.suffix != ".parquet" and header_columns(rows[0]) == [0, 1, 2]
        return cls(rows[has_header:], f"{path}:", 1 + has_header)

    def numbered(self) -> Iterator[tuple[str, tuple[str, str, str]]]:
        """Yield each triple with its place, as errors name it."""
        for number, row in enumerate(self.rows, self.start):
            yield f"{self.where}{number}", row


def labeled_queries(
    queries: AskedQueries | Triples, what: str = "queries"
) -> list[tuple[str | None, str, str | None]]:
    """Queries as a list, like triples of which the head or the tail is None (or NaN)."""
    one = what.removesuffix("s") if what == "triples" else "query"
    given: Any = queries
    rows: Any = _rows_of_table(given, what) if hasattr(given, "columns") else given
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise QueryError(f"{what} are a list of (head, relation, tail), not {queries!r:.80}")
    found: list[tuple[str | None, str, str | None]] = []
    for n, row in enumerate(rows, 1):
        if isinstance(row, str | bytes | Mapping) or not isinstance(row, Iterable):
            raise QueryError(f"{what} are a list of (head, relation, tail), but {one} {n} is {row!r:.80}")
        values = [None if is_missing(value) else value for value in row]
        if len(values) != len(ENDS):
            raise QueryError(f"{one} {n} is not (head, relation, tail): it has {len(values)} parts")
        for end, value in zip(ENDS, values, strict=True):
            if not isinstance(value, str) and (value is not None or end == "relation"):
                raise QueryError(f"the {end} of {one} {n} is {value!r:.80}, which is no label or name")
        found.append((values[0], str(values[1]), values[2]))
    return found


def is_missing(value: Any) -> bool:
    """Return whether it is None, NaN, or what pandas has for nothing."""
    if value is None or isinstance(value, str):
        return value is None
    import pandas as pd

    return bool(pd.api.types.is_scalar(value) and pd.isna(value))


def _rows_of_table(table: pd.DataFrame, what: str) -> Sequence[Sequence[Any]]:
    """The rows of a DataFrame."""
    if not hasattr(table, "itertuples"):
        raise QueryError(f"{what} are a list or a pandas DataFrame, not a {type(table).__name__}")
    columns = [str(column) for column in table.columns]
    if set(ENDS) <= set(columns):
        table = table[[table.columns[columns.index(end)] for end in ENDS]]
    elif len(columns) != len(ENDS):
        raise QueryError(f"{what} are a table with the columns head, relation and tail, not {columns}")
    return list(table.itertuples(index=False, name=None))


def is_pykeens(source: Any) -> bool:
    """Return whether something is like a ``TriplesFactory`` or a ``Dataset`` of PyKEEN."""
    if hasattr(source, "columns"):  # a DataFrame, whatever its columns are called
        return False
    return hasattr(getattr(source, "training", source), "mapped_triples")


def texts_by_label(given: Any, what: str) -> dict[str, str]:
    """Texts by label, a mapping or a Series, without those that are missing.

    Raises:
        DataError: when it is no mapping, or a text is none.
    """
    if given is None:
        return {}
    if not hasattr(given, "items"):
        raise DataError(f"{what} are a mapping from label to text, not {type(given).__name__}")
    found = {label: text for label, text in given.items() if not is_missing(text)}
    for label, text in found.items():
        if not isinstance(label, str):
            raise DataError(f"{what}: {label!r:.80} is no label; a Series is indexed by label")
        if not isinstance(text, str):
            raise DataError(f"{what}: '{label}' has {text!r:.80}, which is no text")
    return found


def labeled_entities(frame: pd.DataFrame) -> EntityTable:
    """New entities of a DataFrame: the column ``label`` and, if there, name, description, surface, types
    and aliases.

    Raises:
        QueryError: without labels.
    """
    if not hasattr(frame, "itertuples"):
        raise QueryError(f"new entities are a pandas DataFrame, not a {type(frame).__name__}")
    given = {str(column): frame[column] for column in frame.columns}
    if "label" not in given:
        raise QueryError(f"new entities are a table with the column label, not {[*given]}")
    texts = {
        name: [_text(value) for value in given[name]] for name in (*TEXT_COLUMNS, *LISTS) if name in given
    }
    if "" in texts["label"]:
        raise QueryError(f"new entity {texts['label'].index('') + 1} has no label")
    columns: dict[str, list[str]] = {name: [""] * len(texts["label"]) for name in TEXT_COLUMNS}
    columns.update(texts)
    table = pa.table({name: pa.array(column, pa.large_string()) for name, column in columns.items()})
    return EntityTable.of(completed(table))


def _text(value: Any) -> str:
    """A cell as the file of entities would have it; several types or aliases are divided by ``|``."""
    if isinstance(value, list | tuple | Set | np.ndarray):  # Parquet's lists come as arrays
        return "|".join(map(str, sorted(value) if isinstance(value, Set) else value))
    return "" if is_missing(value) else str(value)
