"""Tables on disk, read and written strictly: TSV, CSV, Parquet, gzip.

Labels survive byte for byte: TSV has no quoting, nothing is ever read as missing. Knows nothing of graphs.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kgmlm import files
from kgmlm.kg import DataError

SUFFIXES = (".tsv", ".txt", ".csv", ".parquet", ".tsv.gz", ".txt.gz", ".csv.gz")
Rows = list[list[str]]
_SPANNED = 50  # lines that the end of a quoted field is looked for in


def find_table(folder: Path, stem: str) -> Path | None:
    """The one file ``stem`` with a known suffix in a folder, or None.

    Raises:
        DataError: when two files claim the same table.
    """
    found = [p for s in SUFFIXES if (p := folder / f"{stem}{s}").is_file()]
    if len(found) > 1:
        raise DataError(f"{folder} has both {found[0].name} and {found[1].name}; keep one")
    return found[0] if found else None


def _csv_fields(text: str) -> tuple[list[str] | None, bool]:
    """One CSV record, or None; and whether the text ends within quotes."""
    if '"' not in text:
        return text.split(","), False
    try:
        return next(csv.reader([text], strict=True)), False
    except csv.Error as error:
        return None, "end of data" in str(error)


class _CsvLines:
    """CSV records line by line; a line whose quotes do not pair is taken literally.

    A quoted field that spans lines is refused: taken literally, it would make rows that nobody wrote.
    """

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.began = 0
        self.open: list[str] = []

    def fields(self, number: int, line: str) -> list[str]:
        """Those of the next line."""
        if self.open:
            self.open.append(line)
            whole, unfinished = _csv_fields("\n".join(self.open))
            if whole is not None:
                raise DataError(
                    f"{self.origin}:{self.began}: a quoted field ends in line {number}; write it on one line"
                )
            if not unfinished or len(self.open) == _SPANNED:
                self.open.clear()
        found, unfinished = _csv_fields(line)
        if unfinished and not self.open:
            self.began, self.open = number, [line]
        return line.split(",") if found is None else found


def parse_lines(
    data: bytes | Iterable[bytes], origin: str, separator: str = "\t"
) -> Iterator[tuple[int, list[str]]]:
    """(line number, fields) of each line of UTF-8 text; only ``\\n`` and ``\\r\\n`` end a line."""
    lines = io.BytesIO(data) if isinstance(data, bytes) else data
    csv_lines = _CsvLines(origin)
    blank: list[tuple[int, list[str]]] = []  # lines that count only if another follows
    for number, ended in enumerate(lines, 1):
        try:
            content = ended.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{origin}:{number}: not UTF-8 text ({error.reason}); save the file as UTF-8"
            ) from None
        content = content.removesuffix("\n").removesuffix("\r")
        fields = content.split(separator) if separator == "\t" else csv_lines.fields(number, content)
        if not content:
            blank.append((number, [""]))
            continue
        yield from blank
        blank.clear()
        yield number, fields


def parse_rows(data: bytes, origin: str, columns: int, separator: str = "\t") -> Rows:
    """Rows of exactly ``columns`` non-empty fields, such as triples.

    Raises:
        DataError: naming the file and the line, for a wrong number of fields, an empty one, or an empty file.
    """
    kind = "tab" if separator == "\t" else "comma"
    rows: Rows = []
    for number, fields in parse_lines(data, origin, separator):
        if len(fields) != columns:
            raise DataError(
                f"{origin}:{number}: expected {columns} {kind}-separated columns, found {len(fields)}"
            )
        if "" in fields:
            raise DataError(f"{origin}:{number}: column {fields.index('') + 1} is empty")
        rows.append(fields)
    if not rows:
        raise DataError(f"{origin} is empty")
    return rows


def separator_of(path: Path) -> str:
    """What separates the columns of a text file, by its suffix."""
    return "," if ".csv" in path.suffixes[-2:] else "\t"


def _check_columns(path: Path, names: Sequence[str]) -> None:
    """Refuse a header that names a column twice: which of the two was meant?"""
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"{path}: the column '{name}' is there twice; keep one")


def _read_parquet(path: Path) -> Any:
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
        table.validate(full=True)  # text that is no UTF-8
        return table.cast(pa.schema([(name, pa.large_string()) for name in table.column_names]))
    except (OSError, pa.ArrowException) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path} cannot be read as Parquet: {why}") from None


def read_triples(path: Path) -> Rows:
    """The (head, relation, tail) labels of a TSV, CSV or Parquet file.

    TSV and CSV have no header. TSV has no quoting at all; CSV fields may be quoted. Parquet has columns
    ``head``, ``relation``, ``tail``.
    """
    if path.suffix != ".parquet":
        return parse_rows(files.read_bytes(path), str(path), 3, separator_of(path))
    table = _read_parquet(path)
    missing = [c for c in ("head", "relation", "tail") if c not in table.column_names]
    if missing:
        raise DataError(f"{path}: column '{missing[0]}' is missing (it has: {', '.join(table.column_names)})")
    columns = [table.column(c).to_pylist() for c in ("head", "relation", "tail")]
    rows = [list(row) for row in zip(*columns, strict=True)]
    if not rows:
        raise DataError(f"{path} is empty")
    for number, row in enumerate(rows, 1):
        if not all(row):
            raise DataError(f"{path}: row {number} has an empty or missing value")
    return rows


_HEADERS = (
    {"head", "h", "subject", "subj", "s", "source", "src", "from", "start"},
    {
        "relation",
        "relationship",
        "rel",
        "r",
        "predicate",
        "pred",
        "p",
        "property",
        "edge",
        "edge type",
        "type",
    },
    {"tail", "t", "object", "obj", "o", "target", "dst", "destination", "to", "end"},
)


def header_columns(row: Sequence[str]) -> list[int] | None:
    """Which of head, relation and tail each field of a header names; None where the row is a triple."""
    words = [" ".join(re.findall(r"[a-z0-9]+", field.casefold())) for field in row[:3]]
    words = [re.sub(r" (id|label|name|entity|uri)$", "", word) for word in words]
    named = [next((i for i, names in enumerate(_HEADERS) if word in names), -1) for word in words]
    return named if sorted(named) == [0, 1, 2] else None


def _texts(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line or row number, fields) of a table with a header, the header first."""
    if path.suffix != ".parquet":
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                yield from parse_lines(file, str(path), separator_of(path))
        except FileNotFoundError:
            raise DataError(f"there is no file {path}") from None
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path} cannot be read: {error}") from None
        return
    table = _read_parquet(path)
    yield 0, list(table.column_names)
    rows = (
        zip(*(column.to_pylist() for column in batch.columns), strict=True) for batch in table.to_batches()
    )
    for number, row in enumerate(chain.from_iterable(rows), 1):
        yield number, [x or "" for x in row]


_CHUNK = 10_000  # rows that are Python strings at one time


def read_text_table(
    path: Path, required: Sequence[str], optional: Sequence[str], taken: Any = None
) -> pa.Table:
    """Named columns of a table with a header as Arrow strings; optional ones that are absent are empty.

    Args:
        taken: an Arrow array of labels that may not occur.

    Raises:
        DataError: for a missing column, a ragged line, an empty, a repeated or a taken label.
    """
    lines = _texts(path)
    header = next(lines, (0, []))[1]
    if not header:
        raise DataError(f"{path} is empty; its first line must name the columns: {', '.join(required)}")
    _check_columns(path, [c for c in header if c in (*required, *optional)])
    missing = [c for c in required if c not in header]
    if missing:
        raise DataError(
            f"{path}: column '{missing[0]}' is missing (the first line names: {', '.join(header)})"
        )
    names = (*required, *optional)
    where = [header.index(c) if c in header else None for c in names]
    at = header.index("label")
    schema = pa.schema([(c, pa.large_string()) for c in names])
    batches: list[pa.RecordBatch] = []
    rows: list[list[str]] = []

    def flush() -> None:
        columns = [[row[i] for row in rows] if i is not None else [""] * len(rows) for i in where]
        batches.append(pa.record_batch(columns, schema=schema))
        rows.clear()

    for number, fields in lines:
        if len(fields) != len(header):
            raise DataError(f"{path}:{number}: expected {len(header)} columns, found {len(fields)}")
        if not fields[at]:
            raise DataError(f"{path}:{number}: the label is empty")
        rows.append(fields)
        if len(rows) == _CHUNK:
            flush()
    flush()
    table = pa.Table.from_batches(batches, schema)
    labels = table.column("label")
    if len(labels) > pc.count_distinct(labels).as_py():
        seen: dict[str, int] = {}
        for (number, _), label in zip(islice(_texts(path), 1, None), labels.to_pylist(), strict=True):
            if label in seen:
                raise DataError(f"{path}:{number}: label '{label}' stands already on line {seen[label]}")
            seen[label] = number
    if taken is not None and (found := pc.index(pc.is_in(labels, taken), True).as_py()) >= 0:
        number = next(islice(_texts(path), found + 1, None))[0]
        raise DataError(f"{path}:{number}: label '{labels[found]}' exists in the graph already")
    return table


def read_texts(path: Path, required: Sequence[str], optional: Sequence[str]) -> dict[str, list[str]]:
    """The columns of :func:`read_text_table` as lists."""
    columns: dict[str, list[str]] = read_text_table(path, required, optional).to_pydict()
    return columns


def fits_tsv(field: str) -> bool:
    """Whether TSV can hold a field: it has neither a tab nor a line break."""
    return not ("\t" in field or "\n" in field or field.endswith("\r"))


def write_tsv(path: Path, rows: Sequence[Sequence[str]]) -> None:
    """Write rows without quoting.

    Raises:
        DataError: when a field has a tab or a line break, which TSV cannot hold.
    """
    for row in rows:
        for field in row:
            if not fits_tsv(field):
                raise DataError(f"{field!r} has a tab or a line break, which a TSV file cannot hold")
    files.write_atomic(path, "".join("\t".join(row) + "\n" for row in rows), follow=True)
