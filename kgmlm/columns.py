"""Tables of text as Arrow columns: triples and texts, from TSV, CSV and Parquet files.

Plain files are read by Arrow; whatever it does not take as we do (quotes, blank lines, faults) is read again
line by line, with errors that name the line. No row is ever a Python object for longer than its batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgmlm import files
from kgmlm.kg import BoolArray, DataError, first_line
from kgmlm.tables import header_columns, parse_lines, parse_rows, separator_of, truths, wrong_count

ENDS = ("head", "relation", "tail")
LABEL = "label"  # the fourth column of triples of which some are false
_BATCH = 10_000  # rows that are Python strings at one time
_WRITTEN = 2**20  # rows that are text at one time
_BLOCK = 2**24  # bytes that Arrow reads at one time
CODED = pa.dictionary(pa.int32(), pa.string())


def read_triples(path: Path, *, labeled: bool = False) -> pa.Table:
    """The triples of a TSV, CSV or Parquet file: columns ``head``, ``relation``, ``tail`` of coded labels.

    TSV and CSV have no header; TSV has no quoting, CSV fields may be quoted. Parquet names its columns.

    Args:
        labeled: there may be a fourth column, ``label``; :func:`truths_of` reads what it says.

    Raises:
        DataError: naming file and line, for a wrong number of fields, an empty one, or an empty file.
    """
    if path.suffix != ".parquet":
        return triples_in(files.read_bytes(path), str(path), separator_of(path), labeled=labeled)
    table = _read_parquet(path, ENDS, [LABEL] if labeled else [])
    if not len(table):
        raise DataError(f"{path} is empty")
    for column in table.columns:
        if (at := pc.index(pc.equal(pc.fill_null(column, ""), ""), True).as_py()) >= 0:
            raise DataError(f"{path}: row {at + 1} has an empty or missing value")
    return _coded(table)


def triples_in(data: bytes, origin: str, separator: str = "\t", *, labeled: bool = False) -> pa.Table:
    """The triples of a text file, as :func:`read_triples` returns them.

    Args:
        origin: how errors name the file.
    """
    first = next(parse_lines(data, origin, separator), (0, []))[1]
    names = (*ENDS, LABEL) if labeled and len(first) == 4 else ENDS
    table = _plain(data, separator, names, CODED)
    if table is not None and not any(_has(column, "") for column in table.columns):
        return table
    rows = parse_rows(data, origin, len(names), separator)
    return _coded(_batched(rows, pa.schema([(name, pa.string()) for name in names])))


def triples_of(rows: Iterable[Sequence[str]]) -> pa.Table:
    """Rows of head, relation and tail as coded columns."""
    schema = pa.schema([(name, pa.large_string()) for name in ENDS])
    return _coded(_batched((list(row) for row in rows), schema))


def rows_of(table: pa.Table) -> list[list[str]]:
    """A small table as Python's strings, row by row."""
    return [list(row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]


def truths_of(table: pa.Table, origin: str, first: int = 1) -> BoolArray | None:
    """Which triples are true where a column says so: 1 is true, and either -1 or 0 is false.

    Args:
        first: the line of the first triple.

    Raises:
        DataError: naming the line, for anything else, or where both -1 and 0 are used.
    """
    if LABEL not in table.column_names:
        return None
    column = table.column(LABEL).cast(pa.string())
    if not set(column.unique().to_pylist()) <= {"1", "0"}:
        return np.array(truths(column.to_pylist(), origin, first), np.bool_)
    true: BoolArray = pc.equal(column, "1").to_numpy()
    return true


def _coded(table: pa.Table) -> pa.Table:
    columns = [column.cast(pa.string()).dictionary_encode() for column in table.columns]
    return pa.table(dict(zip(table.column_names, columns, strict=True)))


def _has(column: pa.ChunkedArray, text: str) -> bool:
    """Whether a coded column has a text."""
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

    if (b'"' in data and separator != "\t") or (b"\r" in data and re.search(rb"\r(?!\n)", data)):
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
    """Those columns of a Parquet file, as text; optional ones where they are there."""
    import pyarrow.parquet as pq

    try:
        wanted = _check_columns(path, pq.read_schema(path).names, required, optional)
        table = files.read_parquet(path, wanted).select(wanted)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read as Parquet: {first_line(error)}") from None
    columns = []
    for name, column in zip(wanted, table.columns, strict=True):
        try:
            column.validate(full=True)  # text that is no UTF-8
            columns.append(column.cast(pa.large_string()))
        except pa.ArrowException as error:
            raise DataError(f"{path}: the column '{name}' is no text: {first_line(error)}") from None
    return pa.Table.from_arrays(columns, wanted)


def _check_columns(
    path: Path, header: Sequence[str], required: Sequence[str], optional: Sequence[str]
) -> list[str]:
    """The columns of a header that are wanted, in its order.

    Raises:
        DataError: when one is missing, or there twice: which of the two was meant?
    """
    there = [name for name in header if name in required or name in optional]
    for name in there:
        if there.count(name) > 1:
            raise DataError(f"{path}: the column '{name}' is there twice; keep one")
    for name in required:
        if name not in there:
            raise DataError(f"{path}: column '{name}' is missing (it has: {', '.join(header)})")
    return there


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
    there = _check_columns(path, header, required, optional)
    if isinstance(data, bytes):
        found = _plain(data, separator_of(path), header, pa.large_string(), wanted=there, header=True)
    else:
        found = pa.table({c: pc.fill_null(data.column(c), "") for c in there})
    if found is None or pc.any(pc.equal(found.column("label"), "")).as_py():
        found = _strictly(path, data, header, there)
    _check_labels(path, data, found.column("label"), taken)
    empty = pa.chunked_array([pa.nulls(len(found), pa.large_string()).fill_null("")])
    return pa.table({c: found.column(c) if c in there else empty for c in (*required, *optional)})


def _strictly(path: Path, data: bytes | pa.Table, header: list[str], wanted: Sequence[str]) -> pa.Table:
    """The same line by line."""
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
    if taken is not None and (found := pc.index(pc.is_in(labels, taken), True).as_py()) >= 0:
        number = next(islice(_lines(path, data), found + 1, None))[0]
        raise DataError(f"{path}:{number}: label '{labels[found]}' exists in the graph already")


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
    """Whether TSV can hold all texts of a column, as :func:`~kgmlm.tables.fits_tsv` of one."""
    return not pc.any(pc.match_substring_regex(column, "[\t\n]|\r$|^\ufeff")).as_py()


def _tsv_lines(batch: pa.RecordBatch) -> memoryview:
    texts = [column.cast(pa.large_string()) for column in batch.columns]
    joined = pc.binary_join_element_wise(*texts, pa.scalar("\t", pa.large_string()))
    end, tab = (pa.scalar(x, pa.large_string()) for x in ("", "\n"))
    lines = pc.binary_join_element_wise(joined, end, tab)
    _, offsets, data = lines.buffers()
    first, last = np.frombuffer(offsets, np.int64)[[lines.offset, lines.offset + len(lines)]]
    return memoryview(data)[first:last]
