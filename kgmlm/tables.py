"""Tables on disk, read and written strictly: TSV, CSV, Parquet, gzip.

Labels survive byte for byte: TSV has no quoting, nothing is ever read as missing. Knows nothing of graphs.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from kgmlm import files
from kgmlm.kg import DataError

csv.field_size_limit(2**31 - 1)  # descriptions may be longer than Python's default allows
SUFFIXES = (".tsv", ".txt", ".csv", ".parquet", ".tsv.gz", ".txt.gz", ".csv.gz")
_SPANNED = 50  # lines that the end of a quoted field is looked for in


def find_table(folder: Path, stem: str) -> Path | None:
    """The one file ``stem`` with a known suffix in a folder, or None.

    Raises:
        DataError: when two files claim the same table, or it is no file.
    """
    found = [p for s in SUFFIXES if os.path.lexists(p := folder / f"{stem}{s}")]
    if len(found) > 1:
        raise DataError(f"{folder} has both {found[0].name} and {found[1].name}; keep one")
    if found and not found[0].is_file():
        broken = found[0].is_symlink() and not found[0].exists()
        raise DataError(f"{found[0]} is {'a link to nothing' if broken else 'no file'}")
    return found[0] if found else None


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


_SEPARATORS = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "bars"}


def wrong_count(fields: Sequence[str], expected: int, separator: str) -> str:
    """Say what is wrong with a line that has another number of fields, and how to mend it."""
    kind = "tab" if separator == "\t" else "comma"
    line = separator.join(fields)
    if separator == "," and _csv_fields(line)[1]:
        return "a quoted field does not end in this line; write it on one line"
    found = f"found {len(fields)}" if len(fields) > 1 else f"found no {kind}"
    message = f"expected {expected} {kind}-separated columns, {found}"
    for other, name in _SEPARATORS.items():
        count = line.count(other)
        if other != separator and (count == expected - 1 or (len(fields) == 1 and count >= expected - 1)):
            call = f", or name the file .{_NAMED[other]}" if other in _NAMED else ""
            return f"{message}; it has {name}: write {kind}s{call}"
    if len(fields) > expected:
        return f"{message}: keep head, relation and tail alone" if expected == len(TRIPLE) else message
    return message


TRIPLE = ("head", "relation", "tail")
_NAMED = {"\t": "tsv", ",": "csv"}


def parse_rows(data: bytes, origin: str, columns: int, separator: str = "\t") -> Iterator[list[str]]:
    """Rows of exactly ``columns`` non-empty fields, such as triples.

    Raises:
        DataError: naming the file and the line, for a wrong number of fields, an empty one, or an empty file.
    """
    number = 0
    for number, fields in parse_lines(data, origin, separator):
        if fields == [""]:
            raise DataError(f"{origin}:{number}: the line is blank")
        if len(fields) != columns:
            raise DataError(f"{origin}:{number}: {wrong_count(fields, columns, separator)}")
        if "" in fields:
            raise DataError(f"{origin}:{number}: column {fields.index('') + 1} is empty")
        yield fields
    if not number:
        raise DataError(f"{origin} is empty")


def separator_of(path: Path) -> str:
    """What separates the columns of a text file, by its suffix."""
    return "," if ".csv" in path.suffixes[-2:] else "\t"


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


def truths(labels: Sequence[str], origin: str, first: int = 1) -> list[bool]:
    """What a column of labels says: 1 is true, and either -1 or 0 is false.

    Args:
        first: the line of the first label.

    Raises:
        DataError: naming the line, for anything else, or where both -1 and 0 are used.
    """
    false = next((label for label in labels if label != "1"), "0")
    for number, label in enumerate(labels, first):
        if label not in ("1", "-1", "0"):
            raise DataError(
                f"{origin}:{number}: the label is '{label}'; it must be 1 (true), or -1 or 0 (false)"
            )
        if label not in ("1", false):
            raise DataError(
                f"{origin}:{number}: the label is '{label}', but {false} stood for false before; use one"
            )
    return [label == "1" for label in labels]


def fits_tsv(field: str) -> bool:
    """Whether TSV can hold a field: it has no tab or line break, and no byte order mark in front."""
    return not ("\t" in field or "\n" in field or field.endswith("\r") or field.startswith("\ufeff"))


def write_tsv(path: Path, rows: Sequence[Sequence[str]]) -> None:
    """Write rows without quoting.

    Raises:
        DataError: when TSV cannot hold a field.
    """
    for row in rows:
        for field in row:
            if not fits_tsv(field):
                raise DataError(
                    f"{field!r} has a tab, a line break or a byte order mark, which a TSV file cannot hold"
                )
    files.write_atomic(path, "".join("\t".join(row) + "\n" for row in rows), follow=True)
