"""Tables on disk, read and written strictly: TSV, CSV, Parquet, gzip; line by line, and as Arrow columns.

Labels survive byte for byte: TSV has no quoting, nothing is ever read as missing. Plain files are read by
Arrow; whatever it reads otherwise than we do (quotes, blank lines, faults) is read again line by line, with
errors that name the line. No row is a Python object for longer than its batch.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgmlm.core import files
from kgmlm.core.arrays import BoolArray
from kgmlm.core.errors import DataError, first_line

csv.field_size_limit(2**31 - 1)  # descriptions may be longer than Python's default allows

SUFFIXES = (".tsv", ".txt", ".csv", ".parquet", ".tsv.gz", ".txt.gz", ".csv.gz")
_SPANNED = 50  # lines that the end of a quoted field is looked for in


def find_table(folder: Path, stem: str) -> Path | None:
    """The one file ``stem`` with a known suffix in a folder, or None.

    Raises:
        DataError: when two files claim the same table, or it is no file.
    """
    files = [p for s in SUFFIXES if os.path.lexists(p := folder / f"{stem}{s}")]
    if len(files) > 1:
        raise DataError(f"{folder} has both {files[0].name} and {files[1].name}; keep one")
    if files and not files[0].is_file():
        broken = files[0].is_symlink() and not files[0].exists()
        raise DataError(f"{files[0]} is {'a link to nothing' if broken else 'no file'}")
    return files[0] if files else None


class CsvFile:
    """A text file for :func:`csv.writer`, which ends lines in a line feed and quotes carriage returns.

    Python's writer quotes what its line terminator has; by ``\\n`` alone, a carriage return within a field
    would end a line for whoever reads the file.
    """

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def write(self, line: str) -> int:
        """A line that ends as the writer ends lines by default."""
        return self.file.write(line.removesuffix("\r\n") + "\n")


_FORMULA = re.compile(r"[=+\-@\t\r\n\uFF1D\uFF0B\uFF0D\uFF20]")
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?")


def for_spreadsheet(cell: Any) -> Any:
    """A cell of CSV that no spreadsheet takes for a formula; numbers stay.

    >>> for_spreadsheet("=1+1"), for_spreadsheet("-5.2"), for_spreadsheet("the = sign"), for_spreadsheet(-5.2)
    ("'=1+1", '-5.2', 'the = sign', -5.2)
    """
    if not isinstance(cell, str) or not _FORMULA.match(cell) or _NUMBER.fullmatch(cell):
        return cell
    return f"'{cell}"


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
        """Return the fields of the next line."""
        if self.open:
            self.open.append(line)
            whole, unfinished = _csv_fields("\n".join(self.open))
            if whole is not None:
                raise DataError(
                    f"{self.origin}:{self.began}: a quoted field ends in line {number}; write it on one line"
                )
            if not unfinished or len(self.open) == _SPANNED:
                self.open.clear()
        cells, unfinished = _csv_fields(line)
        if unfinished and not self.open:
            self.began, self.open = number, [line]
        return line.split(",") if cells is None else cells


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
        if "\0" in content:
            raise DataError(
                f"{origin}:{number}: a character is NUL, as in UTF-16 read as UTF-8; save the file as UTF-8"
            )
        content = content.removesuffix("\n").removesuffix("\r")
        fields = content.split(separator) if separator == "\t" else csv_lines.fields(number, content)
        if not content:
            blank.append((number, [""]))
            continue
        yield from blank
        blank.clear()
        yield number, fields


_SEPARATORS = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "bars"}


def named_rows(
    path: Path, needed: str, check: Callable[[Sequence[str]], None]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the place of each line of a small table, and its fields by the columns that the first line names.

    Args:
        needed: the columns that there must be, for the sentence about an empty file.
        check: raises where these are not the columns that there must be.

    Raises:
        DataError: for an empty file, a column that is there twice or is no text, or a line of another length.
    """
    if path.suffix == ".parquet":
        try:
            table = files.read_parquet(path)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise DataError(f"{path} cannot be read as Parquet: {first_line(error)}") from None
        check(table.column_names)
        texts = [_texts(path, name, table.column(name)) for name in table.column_names]
        columns = [pc.fill_null(column, "").to_pylist() for column in texts]
        for number, row in enumerate(zip(*columns, strict=True)):
            yield f"{path}: row {number}", dict(zip(table.column_names, row, strict=True))
        return
    data = files.read_bytes(path)
    tabs = b"\t" in data.partition(b"\n")[0] or path.name.removesuffix(".gz").endswith(".tsv")
    lines = list(parse_lines(data, str(path), "\t" if tabs else ","))
    if not lines:
        raise DataError(f"{path} is empty; its first line must name the columns: {needed}")
    header = lines[0][1]
    if twice := [name for name in header if header.count(name) > 1]:
        raise DataError(f"{path}: the column '{twice[0]}' is there twice; keep one")
    check(header)
    for number, fields in lines[1:]:
        if len(fields) != len(header):
            raise DataError(f"{path}:{number}: expected {len(header)} columns, found {len(fields)}")
        yield f"{path}:{number}", dict(zip(header, fields, strict=True))


def wrong_count(fields: Sequence[str], expected: int, separator: str) -> str:
    """Say what is wrong with a line that has another number of fields, and how to mend it."""
    kind = "tab" if separator == "\t" else "comma"
    line = separator.join(fields)
    if separator == "," and _csv_fields(line)[1]:
        return "a quoted field does not end in this line; write it on one line"
    counted_cells = f"found {len(fields)}" if len(fields) > 1 else f"found no {kind}"
    message = f"expected {expected} {kind}-separated columns, {counted_cells}"
    for other, name in _SEPARATORS.items():
        count = line.count(other)
        if other != separator and (count == expected - 1 or (len(fields) == 1 and count >= expected - 1)):
            call = f", or name the file .{_NAMED[other]}" if other in _NAMED else ""
            return f"{message}; it has {name}: write {kind}s{call}"
    if separator == "\t" and len(fields) == 1:
        if re.match(r"(<[^<>]+>|_:\S+)\s+<[^<>]+>\s", line):
            return f"{message}; it looks like N-Triples, which `kgmlm data import --format ntriples` reads"
        if len(line.split(" ")) == expected:
            return (
                f"{message}, but {expected} with single blanks between them: write tabs, or read the file by "
                f"`kgmlm data import --columns 1,2,3 --separator ' '`"
            )
    if len(fields) > expected:
        return f"{message}: keep head, relation and tail alone" if expected == len(TRIPLE) else message
    return message


TRIPLE = ("head", "relation", "tail")
_NAMED = {"\t": "tsv", ",": "csv"}


def parse_rows(
    data: bytes, origin: str, columns: int, separator: str = "\t", filled: Sequence[int] | None = None
) -> Iterator[list[str]]:
    """Rows of exactly ``columns`` fields, such as triples.

    Args:
        filled: the fields that may not be empty, by default all.

    Raises:
        DataError: naming the file and the line, for a wrong number of fields, an empty one, or an empty file.
    """
    number = 0
    for number, fields in parse_lines(data, origin, separator):
        if fields == [""]:
            raise DataError(f"{origin}:{number}: the line is blank")
        if len(fields) != columns:
            raise DataError(f"{origin}:{number}: {wrong_count(fields, columns, separator)}")
        for i in range(columns) if filled is None else filled:
            if not fields[i]:
                raise DataError(f"{origin}:{number}: column {i + 1} is empty")
        yield fields
    if not number:
        raise DataError(f"{origin} is empty")


def separator_of(path: Path) -> str:
    """Return the separator of columns in a text file, by its suffix."""
    return "," if ".csv" in path.suffixes[-2:] else "\t"


_HEADERS = (
    {"head", "h", "subject", "subj", "s", "source", "src", "from", "start", "node1", "node 1", "entity1"},
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
        "label",
        "relation type",
    },
    {
        "tail",
        "t",
        "object",
        "obj",
        "o",
        "target",
        "dst",
        "destination",
        "to",
        "end",
        "node2",
        "node 2",
        "entity2",
    },
)


def header_columns(row: Sequence[str]) -> list[int] | None:
    """Return which of head, relation and tail each field of a header names; None of a triple."""
    words = [" ".join(re.findall(r"[a-z0-9]+", field.casefold())) for field in row[:3]]
    words = [re.sub(r" (id|label|name|entity|uri)$", "", word) for word in words]
    named = [next((i for i, names in enumerate(_HEADERS) if word in names), -1) for word in words]
    return named if sorted(named) == [0, 1, 2] else None


def truths(labels: Sequence[str], where: str, first: int = 1) -> list[bool]:
    """Read a column of labels: 1 is true, and either -1 or 0 is false.

    Args:
        where: how an error names the place of a label, before its number.
        first: the number (or line) of the first label.

    Raises:
        DataError: naming the place, for anything else, or where both -1 and 0 are used.
    """
    false = next((label for label in labels if label != "1"), "0")
    for number, label in enumerate(labels, first):
        if label not in ("1", "-1", "0"):
            kinds = "it must be 1 (true), or -1 or 0 (false); or leave the column out"
            raise DataError(f"{where}{number}: the label is '{label}'; {kinds}")
        if label not in ("1", false):
            raise DataError(
                f"{where}{number}: the label is '{label}', but {false} stood for false before; use one"
            )
    return [label == "1" for label in labels]


def fits_tsv(field: str) -> bool:
    """Return whether TSV can hold a field: no tab, line break or NUL, and no byte order mark in front."""
    return not (any(c in field for c in "\t\n\0") or field.endswith("\r") or field.startswith("\ufeff"))


def write_tsv(path: Path, rows: Sequence[Sequence[str]]) -> None:
    """Write rows without quoting.

    Raises:
        DataError: when TSV cannot hold a field.
    """
    for row in rows:
        for field in row:
            if not fits_tsv(field):
                what = "a tab, a line break, a NUL or a byte order mark"
                raise DataError(f"{field!r} has {what}, which a TSV file cannot hold")
    files.write_atomic(path, "".join("\t".join(row) + "\n" for row in rows), follow=True)


ENDS = ("head", "relation", "tail")
LABEL = "label"  # the fourth column of triples of which some are false
_BATCH = 10_000  # rows that are Python strings at one time
_WRITTEN = 2**20  # rows that are text at one time
_BLOCK = 2**24  # bytes that Arrow reads at one time
CODED = pa.dictionary(pa.int32(), pa.string())


DATES = ("date", "created", "time")  # columns of triples that say when each was made


def is_date_column(name: str) -> bool:
    """Return whether a column is called "date", "created" or "time", in upper or lower case."""
    return name.strip().casefold() in DATES


class TripleTable(NamedTuple):
    """The triples of a file.

    Attributes:
        columns: ``head``, ``relation``, ``tail`` of coded labels; ``label`` and dates, if there are any.
        first: the line, or the row, of the first triple.
        named: whether the file names its columns.
        unread: its other columns.
    """

    columns: pa.Table
    first: int
    named: bool
    unread: Sequence[str]

    def without_first(self) -> TripleTable:
        """The triples without the first line, which is a header in words of its own."""
        return self._replace(columns=self.columns.slice(1), first=self.first + 1)


def read_triples(path: Path, *, labeled: bool = False, dates: str | None = None) -> TripleTable:
    """The triples of a TSV, CSV or Parquet file.

    Parquet names its columns. In TSV and CSV the first line does if it has more columns than head, relation
    and tail, such as ``head relation tail date``; else there is no header, and the columns are these three.
    TSV has no quoting, CSV fields may be quoted.

    Args:
        labeled: there may be a column ``label``, the fourth one where there is no header;
            :func:`truths_of` reads what it says.
        dates: the column of dates, by its name or, without a header, by its number from 1.

    Raises:
        DataError: naming file and line, for a wrong number of fields, an empty one, or an empty file.
    """
    if path.suffix != ".parquet":
        data, origin = files.read_bytes(path), str(path)
        return triples_in(data, origin, separator_of(path), labeled=labeled, dates=dates)
    optional = [*([LABEL] if labeled else []), *([dates] if dates else [])]
    table = _read_parquet(path, ENDS, optional)
    if not len(table):
        raise DataError(f"{path} is empty")
    for name, column in zip(table.column_names, table.columns, strict=True):
        empty = pc.index(pc.equal(pc.fill_null(column, ""), ""), True).as_py()
        if empty >= 0 and name != dates:
            raise DataError(f"{path}: row {empty + 1} has an empty or missing value")
    unread = [x for x in columns_of(path) if x not in (*ENDS, LABEL, *optional) and not is_date_column(x)]
    return TripleTable(_coded(table), 1, True, unread)


def triples_in(
    data: bytes, origin: str, separator: str = "\t", *, labeled: bool = False, dates: str | None = None
) -> TripleTable:
    """The triples of a text file, as :func:`read_triples` returns them.

    Args:
        origin: how errors name the file.
    """
    first = next(parse_lines(data, origin, separator), (0, []))[1]
    header = triple_header(first)
    if header is not None:
        known = (*ENDS, LABEL, dates)
        names, unread = header, [x for x in header if x not in known and not is_date_column(x)]
        _check_columns(Path(origin), header, ENDS, [LABEL, *([dates] if dates else [])])
    else:
        names, unread = [*ENDS], []
        if dates is not None and dates.isdecimal() and len(ENDS) < int(dates) <= len(first):
            names += [*map(str, range(len(ENDS) + 1, len(first) + 1))]
        elif labeled and len(first) == len(ENDS) + 1:
            names.append(LABEL)
    optional = [name for name in ((LABEL,) if labeled else ()) if name in names]
    wanted = [*ENDS, *optional, *([dates] if dates in names else [])]
    table = _plain(data, separator, names, CODED, wanted=wanted, header=header is not None)
    if table is None or any(_has(table.column(name), "") for name in (*ENDS, *optional)):
        rows = parse_rows(data, origin, len(names), separator, [names.index(x) for x in (*ENDS, *optional)])
        at = [names.index(name) for name in wanted]
        rows = ([row[i] for i in at] for row in islice(rows, int(header is not None), None))
        table = _coded(_batched(rows, pa.schema([(name, pa.string()) for name in wanted])))
        if not len(table):
            raise DataError(f"{origin} has no triples below its header")
    return TripleTable(table, 1 + (header is not None), header is not None, unread)


def triple_header(first: Sequence[str]) -> list[str] | None:
    """The names of columns that the first line of a file of triples gives; None where it is a triple.

    It is a header if it has more than three fields and the first three name head, relation and tail; a line
    that could be a triple, or a triple with its label, is not.

    >>> triple_header(["subject", "relation", "object", "created"])
    ['head', 'relation', 'tail', 'created']
    >>> triple_header(["head", "relation", "tail"]), triple_header(["head", "relation", "tail", "1"])
    (None, None)
    """
    named = header_columns(first)
    if named is None or len(first) == len(ENDS) or first[len(ENDS)] in ("1", "0", "-1"):
        return None
    return [*(ENDS[i] for i in named), *first[len(ENDS) :]]


def triples_of(rows: Iterable[Sequence[str]]) -> pa.Table:
    """Rows of head, relation and tail as coded columns."""
    schema = pa.schema([(name, pa.large_string()) for name in ENDS])
    return _coded(_batched((list(row) for row in rows), schema))


def rows_of(table: pa.Table) -> list[list[str]]:
    """A small table as Python's strings, row by row."""
    return [list(row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]


def truths_of(table: pa.Table, origin: str, first: int = 1) -> BoolArray | None:
    """Return which triples are true where a column says so: 1 is true, and either -1 or 0 is false.

    Args:
        first: the line of the first triple.

    Raises:
        DataError: naming the line, for anything else, or where both -1 and 0 are used.
    """
    if LABEL not in table.column_names:
        return None
    column = table.column(LABEL).cast(pa.string())
    if not set(column.unique().to_pylist()) <= {"1", "0"}:
        return np.array(truths(column.to_pylist(), f"{origin}:", first), np.bool_)
    true: BoolArray = pc.equal(column, "1").to_numpy()
    return true


def _coded(table: pa.Table) -> pa.Table:
    columns = [column.cast(pa.string()).dictionary_encode() for column in table.columns]
    return pa.table(dict(zip(table.column_names, columns, strict=True)))


def _has(column: pa.ChunkedArray, text: str) -> bool:
    """Return whether a coded column has a text."""
    return any(pc.index(chunk.dictionary, text).as_py() >= 0 for chunk in column.chunks)


def _plain(
    data: bytes,
    separator: str,
    names: Sequence[str],
    kind: pa.DataType,
    *,
    wanted: Sequence[str] | None = None,
    header: bool = False,
) -> pa.Table | None:
    """Columns as Arrow reads them; None where it may read a file differently from :func:`parse_lines`."""
    import pyarrow.csv as csv

    quoted = b'"' in data and separator != "\t"
    if quoted or b"\0" in data or (b"\r" in data and re.search(rb"\r(?!\n)", data)):
        return None
    read = csv.ReadOptions(column_names=list(names), skip_rows=int(header), block_size=_BLOCK)
    parse = csv.ParseOptions(
        delimiter=separator, quote_char=False, double_quote=False, escape_char=False, ignore_empty_lines=False
    )
    wanted = list(names if wanted is None else wanted)
    convert = csv.ConvertOptions(
        column_types=dict.fromkeys(wanted, kind), include_columns=wanted, null_values=[], check_utf8=True
    )
    try:
        table = csv.read_csv(pa.BufferReader(data), read, parse, convert)
    except (pa.ArrowException, ValueError):
        return None
    return table if len(table) else None


def _batched(rows: Iterator[list[str]], schema: pa.Schema) -> pa.Table:
    """Rows as columns, a batch at a time."""
    batches = []
    while batch := list(islice(rows, _BATCH)):
        columns = [list(column) for column in zip(*batch, strict=True)]
        batches.append(pa.record_batch(columns, schema=schema))
    return pa.Table.from_batches(batches, schema)


def _read_parquet(path: Path, required: Sequence[str], optional: Sequence[str] = ()) -> pa.Table:
    """Read columns of a Parquet file as text, optional ones where they are there."""
    import pyarrow.parquet as pq

    try:
        wanted = _check_columns(path, pq.read_schema(path).names, required, optional)
        table = files.read_parquet(path, wanted).select(wanted)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read as Parquet: {first_line(error)}") from None
    columns = []
    for name, column in zip(wanted, table.columns, strict=True):
        columns.append(_texts(path, name, _whole_numbers(column) if name == LABEL else column))
    return pa.Table.from_arrays(columns, wanted)


def _texts(path: Path, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of a Parquet file as text.

    Raises:
        DataError: when it is none: no UTF-8, or lists.
    """
    try:
        column.validate(full=True)  # text that is no UTF-8
        return column.cast(pa.large_string())
    except pa.ArrowException as error:
        raise DataError(f"{path}: the column '{name}' is no text: {first_line(error)}") from None


def _whole_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of truths or of whole numbers as integers, any other as it is."""
    try:
        if pa.types.is_boolean(column.type) or pa.types.is_floating(column.type):
            return column.cast(pa.int64())
    except pa.ArrowInvalid:  # 0.5
        pass
    return column


def _check_columns(
    path: Path, header: Sequence[str], required: Sequence[str], optional: Sequence[str]
) -> list[str]:
    """The columns of a header that are wanted, in its order.

    Raises:
        DataError: when one is missing, or there twice: which of the two was meant?
    """
    known = [name for name in header if name in required or name in optional]
    for name in known:
        if known.count(name) > 1:
            raise DataError(f"{path}: the column '{name}' is there twice; keep one")
    for name in required:
        if name not in known:
            raise DataError(f"{path}: column '{name}' is missing (it has: {', '.join(header)})")
    return known


def _lines(path: Path, data: bytes | pa.Table) -> Iterator[tuple[int, list[str]]]:
    """(line or row number, fields) of a table with a header, the header first."""
    if isinstance(data, bytes):
        yield from parse_lines(data, str(path), separator_of(path))
        return
    yield 0, list(data.column_names)
    rows = (
        zip(*(column.to_pylist() for column in batch.columns), strict=True) for batch in data.to_batches()
    )
    for number, row in enumerate(chain.from_iterable(rows), 1):
        yield number, [x or "" for x in row]


def read_labels(path: Path, names: Collection[str]) -> list[str] | None:
    """The labels of a file that has one on each line and no header; None of any other file.

    Args:
        names: of columns: one of them in the first line is a header.

    Raises:
        DataError: for a blank line, a label that is there twice, or an empty file.
    """
    if path.suffix == ".parquet":
        return None
    lines = list(parse_lines(files.read_bytes(path), str(path), separator_of(path)))
    header = {*names, "entity", "entities", "relation", "id", "uri", "iri", "node"}
    if (
        not lines
        or lines[0][1][0].strip().casefold() in header
        or any(len(fields) != 1 for _, fields in lines)
    ):
        return None
    first: dict[str, int] = {}
    for number, (label,) in lines:
        if not label:
            raise DataError(f"{path}:{number}: the line is blank")
        if label in first:
            raise DataError(f"{path}:{number}: label '{label}' stands already on line {first[label]}")
        first[label] = number
    return list(first)


def columns_of(path: Path) -> list[str]:
    """The names of the columns of a table with a header."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return list(pq.read_schema(path).names)
    return next(parse_lines(files.read_bytes(path), str(path), separator_of(path)), (0, []))[1]


def read_texts(path: Path, required: Sequence[str], optional: Sequence[str], taken: Any = None) -> pa.Table:
    """Named columns of a table with a header as Arrow strings; optional ones that are absent are empty.

    Args:
        taken: an Arrow array of labels that may not occur.

    Raises:
        DataError: for a missing column, a ragged line, an empty, a repeated or a taken label.
    """
    if path.suffix == ".parquet":
        data: bytes | pa.Table = _read_parquet(path, required, optional)
    else:
        data = files.read_bytes(path)
    header = next(_lines(path, data), (0, []))[1]
    if not header:
        raise DataError(f"{path} is empty; its first line must name the columns: {', '.join(required)}")
    columns = _check_columns(path, header, required, optional)
    if isinstance(data, bytes):
        table = _plain(data, separator_of(path), header, pa.large_string(), wanted=columns, header=True)
    else:
        table = pa.table({c: pc.fill_null(data.column(c), "") for c in columns})
    if table is None or pc.any(pc.equal(table.column("label"), "")).as_py():
        table = _strictly(path, data, header, columns)
    _check_labels(path, data, table.column("label"), taken)
    empty = pa.chunked_array([pa.nulls(len(table), pa.large_string()).fill_null("")])
    return pa.table({c: table.column(c) if c in columns else empty for c in (*required, *optional)})


def _strictly(path: Path, data: bytes | pa.Table, header: list[str], wanted: Sequence[str]) -> pa.Table:
    """Read the table line by line."""
    where, at = [header.index(c) for c in wanted], header.index("label")

    def rows() -> Iterator[list[str]]:
        for number, fields in islice(_lines(path, data), 1, None):
            if len(fields) != len(header):
                why = f"expected {len(header)} columns, found {len(fields)}"
                if not isinstance(data, pa.Table) and separator_of(path) == ",":
                    why = wrong_count(fields, len(header), ",")
                raise DataError(f"{path}:{number}: {why}")
            if not fields[at]:
                raise DataError(f"{path}:{number}: the label is empty")
            yield [fields[i] for i in where]

    return _batched(rows(), pa.schema([(c, pa.large_string()) for c in wanted]))


def _check_labels(path: Path, data: bytes | pa.Table, labels: pa.ChunkedArray, taken: Any) -> None:
    """Refuse labels that repeat, or are taken."""
    if len(labels) > pc.count_distinct(labels).as_py():
        seen: dict[str, int] = {}
        for (number, _), label in zip(islice(_lines(path, data), 1, None), labels.to_pylist(), strict=True):
            if label in seen:
                raise DataError(f"{path}:{number}: label '{label}' stands already on line {seen[label]}")
            seen[label] = number
    if taken is not None and (taken_at := pc.index(pc.is_in(labels, taken), True).as_py()) >= 0:
        number = next(islice(_lines(path, data), taken_at + 1, None))[0]
        raise DataError(f"{path}:{number}: label '{labels[taken_at]}' exists in the graph already")


def write_table(path: Path, table: pa.Table, *, header: bool = True) -> None:
    """Write texts as TSV, or as Parquet where one has what TSV cannot hold; ``path`` is without its suffix.

    Triples are TSV without a header; one that looks like a header is safe in Parquet.
    """
    plain = header or not len(table) or header_columns(rows_of(table.slice(0, 1))[0]) is None
    if not plain or not all(_fits_tsv(column) for column in table.columns):
        files.write_parquet(path.with_name(f"{path.name}.parquet"), table, follow=True)
        return
    target = path.with_name(f"{path.name}.tsv")
    with files.atomic_file(target, follow=True) as temporary, temporary.open("wb") as file:
        file.write("\t".join(table.column_names).encode() + b"\n" if header else b"")
        for batch in table.to_batches(max_chunksize=_WRITTEN):
            file.write(_tsv_lines(batch))


def _fits_tsv(column: pa.ChunkedArray) -> bool:
    """Return whether TSV can hold all texts of a column, as :func:`~kgmlm.core.tables.fits_tsv` of one."""
    return not pc.any(pc.match_substring_regex(column, r"[\t\n\x00]|\r$|^\x{feff}")).as_py()


def _tsv_lines(batch: pa.RecordBatch) -> memoryview:
    texts = [column.cast(pa.large_string()) for column in batch.columns]
    joined = pc.binary_join_element_wise(*texts, pa.scalar("\t", pa.large_string()))
    end, tab = (pa.scalar(x, pa.large_string()) for x in ("", "\n"))
    lines = pc.binary_join_element_wise(joined, end, tab)
    _, offsets, data = lines.buffers()
    first, last = np.frombuffer(offsets, np.int64)[[lines.offset, lines.offset + len(lines)]]
    return memoryview(data)[first:last]
