"""Tables on disk, read and written strictly: TSV, CSV, Parquet, gzip; atomic writes.

Labels survive byte for byte: TSV has no quoting, nothing is ever read as missing. Knows nothing of graphs.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kgmlm.kg import DataError, RunError

SUFFIXES = (".tsv", ".txt", ".csv", ".parquet", ".tsv.gz", ".txt.gz", ".csv.gz")
Rows = list[list[str]]
_SPANNED = 50  # lines that the end of a quoted field is looked for in
STALE = 3600  # seconds after which nobody is writing a temporary file any more
# Beside a file or folder: half-written; whole, and about to take its place; whole, and about to make room.
_PART, _NEW, _OLD = ".kgmlm-part", ".kgmlm-new", ".kgmlm-old"


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_table(folder: Path, stem: str) -> Path | None:
    """The one file ``stem`` with a known suffix in a folder, or None.

    Raises:
        DataError: when two files claim the same table.
    """
    found = [p for s in SUFFIXES if (p := folder / f"{stem}{s}").is_file()]
    if len(found) > 1:
        raise DataError(f"{folder} has both {found[0].name} and {found[1].name}; keep one")
    return found[0] if found else None


def read_bytes(path: Path) -> bytes:
    """A file's bytes, ungzipped by its suffix."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


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
        return parse_rows(read_bytes(path), str(path), 3, separator_of(path))
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
    write_atomic(path, "".join("\t".join(row) + "\n" for row in rows), follow=True)


def _is_stream(path: Path) -> bool:
    """Whether something is there that is neither a file nor a folder, such as a pipe or a device."""
    return path.exists() and not path.is_file() and not path.is_dir()


def check_writable(path: Path) -> None:
    """See, before long work, whether a file can be written there when it is done.

    Raises:
        DataError: when a folder has its name, or the folder that it would be in is read-only.
    """
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a file")
    if _is_stream(path):
        return
    folder = next(p for p in path.resolve().parents if p.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise DataError(
            f"{path} cannot be written: {folder} is {'read-only' if folder.is_dir() else 'a file'}"
        )


@contextmanager
def atomic_file(path: Path, *, follow: bool = False) -> Iterator[Path]:
    """A path to write to, which takes the name ``path`` when the block ends well, and vanishes when not.

    The file's mode follows the umask, whatever wrote it.

    Args:
        follow: for paths that users give. A link is followed, and a pipe or a device is written into when all
            is there. By default, for what is inside a run, both are replaced.

    Raises:
        OSError: naming ``path`` when it cannot be written.
    """
    if follow and _is_stream(path):
        with tempfile.TemporaryDirectory() as elsewhere:
            yield Path(elsewhere) / path.name
            with (Path(elsewhere) / path.name).open("rb") as source, path.open("wb") as stream:
                shutil.copyfileobj(source, stream)
        return
    target = path.resolve() if follow else path
    folder = None  # some writers make temporary files of their own beside what they write
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target, older=STALE)
        folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=_prefix(target), suffix=_PART))
        yield folder / target.name
        (folder / target.name).chmod(0o666 & ~_umask())
        os.replace(folder / target.name, target)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def write_atomic(path: Path, data: str | bytes, *, follow: bool = False) -> None:
    """Write a file so that it is there whole or not at all; ``follow`` as of :func:`atomic_file`."""
    with atomic_file(path, follow=follow) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


def write_json(path: Path, value: Any, *, follow: bool = False) -> None:
    """Write indented JSON atomically; ``follow`` as of :func:`atomic_file`."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n", follow=follow)


def write_parquet(path: Path, table: pa.Table, *, follow: bool = False) -> None:
    """Write an Arrow table atomically; ``follow`` as of :func:`atomic_file`."""
    import pyarrow.parquet as pq

    with atomic_file(path, follow=follow) as temporary:
        pq.write_table(table, temporary)


def write_tensors(path: Path, tensors: dict[str, Any], metadata: dict[str, str] | None = None) -> None:
    """Write safetensors atomically; a full disk is an ``OSError`` whichever library met it."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with atomic_file(path) as temporary:
        try:
            save_file(tensors, temporary, metadata=metadata)
        except SafetensorError as error:
            raise OSError(f"{path} cannot be written: {error}") from None


def safe_name(name: str) -> str:
    """A name as one component of a path; one that had to be changed ends in a digest and stays distinct.

    >>> safe_name("fb237-v1-ind.test"), safe_name("../x")
    ('fb237-v1-ind.test', '-x-d6b96a97')
    """
    plain = re.sub(r"[^\w.,+=@ -]", "-", name).lstrip(". ").encode()[:160].decode(errors="ignore")
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return plain if plain and plain == name else f"{plain}-{digest}"


def refuse_link(folder: Path) -> None:
    """See that a folder of a run is not a link, so that nothing outside of the run is written or removed.

    Raises:
        RunError: when it is one.
    """
    if folder.is_symlink():
        raise RunError(f"{folder} is a link; a run's folders are its own: remove the link")


@contextmanager
def atomic_folder(path: Path, *, follow: bool = False) -> Iterator[Path]:
    """A temporary folder that takes the name ``path`` when the block ends well, and vanishes when not.

    An older folder of that name is replaced only at the end; where that is cut short, :func:`recover` ends
    it.

    Args:
        follow: for paths that users give: where ``path`` is a link, replace what it leads to.
    """
    target = path.resolve() if follow else path
    target.parent.mkdir(parents=True, exist_ok=True)
    _settle(target)
    _sweep(target, older=STALE)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=_prefix(target), suffix=_PART))
    temporary.chmod(0o777 & ~_umask())
    try:
        yield temporary
        if os.path.lexists(target):
            os.replace(temporary, _sibling(target, _NEW))
            _settle(target)
        else:
            os.replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def unsettled(folder: Path) -> bool:
    """Whether replacing something in this folder was cut short, so that :func:`recover_in` is needed."""
    return any(found and found["whole"] for found in map(_temporary, _listed(folder)))


def is_unsettled(path: Path) -> bool:
    """Whether replacing this folder was cut short, so that :func:`recover` is needed."""
    return any(os.path.lexists(_sibling(path, suffix)) for suffix in (_NEW, _OLD))


def recover(path: Path) -> None:
    """End what a kill cut short: a whole new folder takes its place, half-written ones are removed.

    For those who alone write there, such as the holder of a lock.
    """
    _settle(path)
    _sweep(path)


def recover_in(folder: Path) -> None:
    """:func:`recover` all files and folders of a folder."""
    for name in {found["name"] for found in map(_temporary, _listed(folder)) if found}:
        recover(folder / name)


def _listed(folder: Path) -> list[str]:
    """Names in a folder; a link to one is not followed."""
    return [p.name for p in folder.iterdir()] if folder.is_dir() and not folder.is_symlink() else []


def _temporary(name: str) -> re.Match[str] | None:
    """Of a temporary name the ``name`` that it is for, and whether it is ``whole``."""
    whole = f"(?P<whole>{re.escape(_NEW)}|{re.escape(_OLD)})"
    return re.fullmatch(rf"\.(?P<name>.+?)({whole}|\.\w+{re.escape(_PART)})", name)


def _settle(path: Path) -> None:
    """Put the new folder in the place of the old one, or the old one back; one of them is always whole."""
    new, old = _sibling(path, _NEW), _sibling(path, _OLD)
    if new.is_dir():
        if os.path.lexists(path):
            _remove(old, path)
            os.replace(path, old)
        os.replace(new, path)
    elif os.path.lexists(old) and not os.path.lexists(path):
        os.replace(old, path)
    _remove(old, path)


def _remove(path: Path, of: Path) -> None:
    """Remove what is temporary of a folder; when it is half removed it counts as half-written."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    if not path.name.endswith(_PART):
        path = path.rename(path.with_name(f"{_prefix(of)}{secrets.token_hex(4)}{_PART}"))
    shutil.rmtree(path, ignore_errors=True)


def _sweep(path: Path, older: float = 0.0) -> None:
    """Remove what is half-written of a file or folder, where nobody has touched it for so many seconds."""
    ours = re.compile(rf"{re.escape(_prefix(path))}\w+{re.escape(_PART)}")
    for name in filter(ours.fullmatch, _listed(path.parent)):
        with suppress(OSError):
            if time.time() - (path.parent / name).lstat().st_mtime >= older:
                _remove(path.parent / name, path)


def _sibling(path: Path, suffix: str) -> Path:
    return path.with_name(f".{path.name}{suffix}")


def _prefix(path: Path) -> str:
    """How temporary names of a file or folder begin; short enough for every file system."""
    return f".{path.name.encode()[:200].decode(errors='ignore')}."


def follow_umask(folder: Path) -> None:
    """Give all files of a folder the mode that new files have, whatever wrote them."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(0o666 & ~_umask())


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
