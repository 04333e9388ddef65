"""Triples, queries and entities as Python users pass them: lists, arrays, DataFrames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kgmlm.core.arrays import BoolArray
from kgmlm.core.errors import DataError, QueryError
from kgmlm.core.files import as_path
from kgmlm.core.tables import (
    ENDS,
    LABEL,
    TripleTable,
    header_columns,
    is_date_column,
    read_triples,
    rows_of,
    truths,
    truths_of,
)
from kgmlm.graphs.entities import LISTS, TEXT_COLUMNS, EntityTable, completed

if TYPE_CHECKING:
    import pandas as pd

AnyArray = npt.NDArray[Any]
Triples: TypeAlias = "Iterable[tuple[str, str, str]] | AnyArray | pd.DataFrame"
AskedQueries: TypeAlias = "Iterable[tuple[str | None, str, str | None]] | pd.DataFrame"


def labeled_triples(triples: Triples) -> list[tuple[str, str, str]]:
    """Triples as a list.

    Args:
        triples: (head, relation, tail) by labels or names: an iterable, an array or tensor ``(n, 3)``, or a
            DataFrame with columns of these names (or with three columns). Integers are labels, as in files.

    Raises:
        QueryError: naming the first that is no such triple.

    >>> labeled_triples([("France", "borders", "Spain"), (0, 0, 1)])
    [('France', 'borders', 'Spain'), ('0', '0', '1')]
    """
    rows = []
    for n, (head, relation, tail) in enumerate(labeled_queries(triples, "triples"), 1):
        if head is None or tail is None:
            raise QueryError(f"triple {n} has no {'head' if head is None else 'tail'}")
        rows.append((head, relation, tail))
    return rows


class GivenTriples(NamedTuple):
    """Triples as they were given, by labels or names.

    Attributes:
        rows: (head, relation, tail).
        where: how an error names the place of a triple, before its number.
        start: the number of the first.
        true: ``(n,)`` which of them are true, where a column ``label`` says so; None where all are.
        unread: the columns that are not read.
        numbers: of each row, where they do not follow one another.
    """

    rows: Sequence[tuple[str, str, str]]
    where: str = "triple "
    start: int = 1
    true: BoolArray | None = None
    unread: Sequence[str] = ()
    numbers: Sequence[int] | None = None

    @classmethod
    def of(cls, triples: Triples | str | Path, *, skip_header: bool = False) -> GivenTriples:
        """Triples from Python, or of a file with or without a header.

        Args:
            skip_header: leave out the first line of a TSV or CSV file, whatever it says.

        Raises:
            DataError: when the file cannot be read, or a label is neither 1 nor one of -1 and 0.
            QueryError: naming the first that is no triple.
        """
        if not isinstance(triples, str | Path):
            true, unread = _further_columns(triples)
            return cls(labeled_triples(triples), true=true, unread=unread)
        path = as_path(triples, "the file of triples")
        table = read_triples(path, labeled=True)
        if not table.named:
            first = rows_of(table.columns.select(ENDS).slice(0, 1))[0]
            if skip_header or header_columns(first) == [0, 1, 2]:
                table = table.without_first()
        return cls.of_table(table, str(path), truths_of(table.columns, str(path), table.first))

    @classmethod
    def of_table(cls, table: TripleTable, origin: str, true: BoolArray | None) -> GivenTriples:
        """Triples as a file has them.

        Args:
            origin: how errors name the file.
        """
        rows = [(head, relation, tail) for head, relation, tail in rows_of(table.columns.select(ENDS))]
        return cls(rows, f"{origin}:", table.first, true, table.unread)

    def numbered(self) -> Iterator[tuple[str, tuple[str, str, str]]]:
        """Yield each triple with its place, as errors name it."""
        numbers = self.numbers or range(self.start, self.start + len(self.rows))
        for number, row in zip(numbers, self.rows, strict=True):
            yield f"{self.where}{number}", row

    def divided(self) -> tuple[GivenTriples, GivenTriples]:
        """The triples that are true, and those that are false."""
        if self.true is None:
            return self, self._replace(rows=())
        return self._some(self.true), self._some(~self.true)

    def _some(self, of_n: BoolArray) -> GivenTriples:
        """Some of the triples, with their numbers."""
        at = np.flatnonzero(of_n).tolist()
        numbers = [self.start + n for n in at]
        return self._replace(rows=[self.rows[n] for n in at], true=None, numbers=numbers)

    def unread_notes(self) -> Iterator[str]:
        """Yield a sentence on the columns that are not read, if there are any."""
        if self.unread:
            named = ", ".join(f"'{name}'" for name in self.unread)
            yield f"not read: the {'column' if len(self.unread) == 1 else 'columns'} {named} of the triples"


def _further_columns(triples: Any) -> tuple[BoolArray | None, list[str]]:
    """Read which triples of a DataFrame are true by its column ``label``, and its columns that are not read.

    Raises:
        DataError: for a label that is neither 1 nor one of -1 and 0.
    """
    if not hasattr(triples, "columns"):
        return None, []
    columns = [str(column) for column in triples.columns]
    if not set(ENDS) <= set(columns):
        return None, []
    unread = [name for name in columns if name not in (*ENDS, LABEL) and not is_date_column(name)]
    if columns.count(LABEL) > 1:
        raise DataError(f"the column '{LABEL}' of the triples is there twice; keep one")
    if LABEL not in columns:
        return None, unread
    labels = [_label_of_truth(value) for value in triples[triples.columns[columns.index(LABEL)]]]
    return np.array(truths(labels, "triple "), np.bool_), unread


def _label_of_truth(value: Any) -> str:
    """A label of truth as files have it: 1.0 and True are "1".

    >>> _label_of_truth(True), _label_of_truth(-1.0), _label_of_truth("0")
    ('1', '-1', '0')
    """
    if isinstance(value, bool | np.bool_ | int | np.integer) or (
        isinstance(value, float | np.floating) and float(value).is_integer()
    ):
        return str(int(value))
    return "" if is_missing(value) else str(value)


def labeled_queries(
    queries: AskedQueries | Triples, what: str = "queries"
) -> list[tuple[str | None, str, str | None]]:
    """Queries as a list, like triples of which the head or the tail is None (or NaN)."""
    one = what.removesuffix("s") if what == "triples" else "query"
    given: Any = queries
    rows: Any = _rows_of_table(given, what) if hasattr(given, "columns") else given
    if hasattr(rows, "shape") and hasattr(rows, "tolist"):  # an array or a tensor, on whatever device
        rows = rows.tolist()
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise QueryError(f"{what} are a list of (head, relation, tail), not {queries!r:.80}")
    labeled: list[tuple[str | None, str, str | None]] = []
    for n, row in enumerate(rows, 1):
        if isinstance(row, str | bytes | Mapping) or not isinstance(row, Iterable):
            raise QueryError(f"{what} are a list of (head, relation, tail), but {one} {n} is {row!r:.80}")
        values = [as_label(value) for value in row]
        if len(values) != len(ENDS):
            raise QueryError(f"{one} {n} is not (head, relation, tail): it has {len(values)} parts")
        for end, value in zip(ENDS, values, strict=True):
            if not isinstance(value, str) and (value is not None or end == "relation"):
                raise QueryError(
                    f"the {end} of {one} {n} is {value!r:.80}, which is no label or name (`.astype(str)` "
                    "makes labels of a column)"
                )
        labeled.append((values[0], str(values[1]), values[2]))
    return labeled


def as_label(value: Any) -> Any:
    """An integer as the label that it is in files; None for what is missing; anything else as it is.

    >>> as_label(7), as_label(np.int64(7)), as_label(float("nan")), as_label(True)
    ('7', '7', None, True)
    """
    if isinstance(value, str):
        return value
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(int(value))
    return None if is_missing(value) else value


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
    texts = {label: text for label, text in given.items() if not is_missing(text)}
    for label, text in texts.items():
        if not isinstance(label, str):
            raise DataError(f"{what}: {label!r:.80} is no label; a Series is indexed by label")
        if not isinstance(text, str):
            raise DataError(f"{what}: '{label}' has {text!r:.80}, which is no text")
    return texts


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
