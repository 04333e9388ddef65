"""Files and folders that are written completely or not at all, and recovered after a kill; a run's lock.

A run has one writer: it holds a lock file beside the run folder, which is gone when the process ends. Reading
needs no lock.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import tempfile
import time
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kgmlm.core.errors import DataError, KgmlmError, RunError

UNPACKED, RATIO = 2**28, 200  # bytes, or times its size, that a packed file may unpack to
_ROWS = 2**16  # of a Parquet file at one time
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors of a full disk, a quota and a limit
STALE = 3600  # seconds after which nobody is writing a temporary file that another machine began

# Beside a file or folder: half-written; whole, and about to take its place; whole, and about to make room.
_PART, _NEW, _OLD = ".kgmlm-part", ".kgmlm-new", ".kgmlm-old"
_DTYPES = {"F32": np.float32, "F16": np.float16, "I32": np.int32, "I64": np.int64}  # of safetensors
_WIDTHS = {"BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "F16": 2, "I32": 4, "F32": 4, "I64": 8, "F64": 8}


def read_bytes(path: Path) -> bytes:
    """A file's bytes, ungzipped by its suffix."""
    try:
        if path.suffix != ".gz":
            return path.read_bytes()
        most = max(UNPACKED, RATIO * path.stat().st_size)
        with gzip.open(path) as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise DataError(f"{path} cannot be read: it unpacks to more than {RATIO} times its size")
        return data
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def parse_json(text: str | bytes) -> Any:
    """A value of JSON; nesting that is too deep is a ``ValueError``, as every other fault is."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_parquet(path: Path, columns: Collection[str] | None = None) -> pa.Table:
    """Columns of a Parquet file, as their types are in it; all columns by default.

    Text is read coded and counted before it is spelled out, so that a small file cannot fill the memory.

    Raises:
        OSError, pa.ArrowException: when the file cannot be read.
        ValueError: when it would unpack to more than its size allows, or has a column twice.
    """
    import pyarrow.parquet as pq

    most = max(UNPACKED, RATIO * path.stat().st_size)
    plain = pq.ParquetFile(path)
    schema: pa.Schema = plain.schema_arrow
    wanted = [name for name in schema.names if columns is None or name in columns]
    if twice := [name for name in wanted if wanted.count(name) > 1]:
        raise ValueError(f"it has {wanted.count(twice[0])} columns '{twice[0]}'")
    schema = pa.schema([schema.field(i) for i, n in enumerate(schema.names) if n in wanted], schema.metadata)
    texts = [field.name for field in schema if _is_text(field.type)]
    batches, size = [], sum(plain.metadata.row_group(i).total_byte_size for i in range(plain.num_row_groups))
    if size <= most:
        size = 0
        for batch in pq.ParquetFile(path, read_dictionary=texts).iter_batches(_ROWS, columns=wanted):
            size += len(batch) + sum(_spelled_out(column) for column in batch.columns)
            if size > most:
                break
            batches.append(batch)
    if size > most:
        raise ValueError(f"it unpacks to more than {RATIO} times its size")
    return pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _spelled_out(column: pa.Array) -> int:
    """Bytes of a column, of a coded one without its code."""
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    lengths = pc.binary_length(column.dictionary) if _is_text(column.type.value_type) else None
    return 0 if lengths is None else pc.sum(lengths.take(column.indices).cast(pa.int64())).as_py() or 0


def _is_stream(path: Path) -> bool:
    """Return whether something is there that is neither a file nor a folder, such as a pipe or a device."""
    return path.exists() and not path.is_file() and not path.is_dir()


def check_writable(path: Path) -> None:
    """See, before long work, whether a file can be written there when it is done.

    Raises:
        DataError: when a folder has its name, the folder that it would be in is read-only, or its name is not
            Unicode.
    """
    _check_name(path)
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a file")
    if _is_stream(path):
        return
    folder = next(p for p in path.resolve().parents if p.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise DataError(
            f"{path} cannot be written: {folder} is {'read-only' if folder.is_dir() else 'a file'}"
        )


def _check_name(path: Path) -> None:
    """Refuse a name that records could not hold."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise DataError(f"{path} is not a name in UTF-8; choose another one") from None


def cache_folder() -> Path:
    """The folder of downloads, of opened packs and of vectors of texts: ``$KGMLM_CACHE``, or ``kgmlm`` in the
    platform's cache folder.
    """
    import pooch

    return Path(os.environ.get("KGMLM_CACHE") or pooch.os_cache("kgmlm"))


def as_path(given: Any, what: str, error: type[KgmlmError] = DataError) -> Path:
    """A path that somebody gave.

    Args:
        what: how errors call it, such as "the output".
        error: their kind.

    Raises:
        KgmlmError: of that kind, when it is none.
    """
    try:
        path = Path(given)
        os.fsencode(path)
    except TypeError:
        raise error(f"{what} is a path, not {_article(type(given).__name__)}") from None
    except ValueError:
        raise error(f"{what} is {given!r:.80}, which no file can be named") from None
    if "\0" in str(path):
        raise error(f"{what} is {given!r:.80}, which no file can be named")
    return path


def _article(noun: str) -> str:
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


def check_new_folder(folder: Path) -> None:
    """See, before long work, that a folder can be written there.

    Raises:
        DataError: when something is there already, or its name is not Unicode.
    """
    _check_name(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} exists and is not empty; choose another --output")


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
        _sweep(target)
        folder = _half_written(target)
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


def disk_error(error: Exception, path: Path) -> OSError:
    """The system error behind a library's own message about a file that it could not write."""
    for number in NO_ROOM:
        if f"os error {number})" in str(error) or os.strerror(number) in str(error):
            return OSError(number, os.strerror(number), str(path))
    return OSError(f"{path} cannot be written: {error}")


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


def write_arrow(path: Path, table: pa.Table) -> None:
    """Write an Arrow table atomically as an IPC file of one batch, which can be mapped into memory."""
    with atomic_file(path) as temporary, pa.ipc.new_file(str(temporary), table.schema) as writer:
        writer.write_table(table.combine_chunks())


def write_tensors(path: Path, tensors: dict[str, Any], metadata: dict[str, str] | None = None) -> None:
    """Write safetensors atomically; a full disk is an ``OSError`` whichever library met it.

    Args:
        tensors: all NumPy arrays, or all tensors of torch.
    """
    from safetensors import SafetensorError

    kind = "numpy" if all(isinstance(x, np.ndarray) for x in tensors.values()) else "torch"
    save_file = import_module(f"safetensors.{kind}").save_file  # torch takes seconds to import
    with atomic_file(path) as temporary:
        try:
            save_file(tensors, temporary, metadata=metadata)
        except SafetensorError as error:
            raise disk_error(error, path) from None


def tensors_header(tensors: Mapping[str, tuple[str, Sequence[int]]]) -> bytes:
    """The header of a safetensors file, for tensors that are written behind it one after the other.

    Args:
        tensors: dtype, as safetensors names it, and shape of each tensor, in the order of the file.
    """
    about: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (kind, shape) in tensors.items():
        end = at + _WIDTHS[kind] * prod(shape)
        about[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    header = json.dumps(about).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header


def map_tensor(path: Path, name: str) -> npt.NDArray[Any]:
    """A tensor of a file of safetensors, mapped into memory: what is looked at is read, and what is written
    to it stays in memory.

    Raises:
        OSError, SafetensorError, ValueError, KeyError: when the file cannot be read, or has no such tensor.
    """
    from safetensors import safe_open

    with safe_open(path, "numpy") as opened:  # which looks whether the file is whole
        kind = opened.get_slice(name).get_dtype()
    if kind not in _DTYPES:
        raise ValueError(f"its {name} are of type {kind}")
    dtype = _DTYPES[kind]
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        about = json.loads(file.read(size))[name]
    begin, end = about["data_offsets"]
    if begin == end:
        return np.zeros(about["shape"], dtype)
    return np.asarray(np.memmap(path, dtype, "c", 8 + size + begin, tuple(about["shape"])))


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
        raise RunError(f"{folder} is a link, but a run must have its own folders: remove it")


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
    with _beside(target) as temporary:
        yield temporary
        move_folder(temporary, target)


def move_folder(folder: Path, path: Path) -> None:
    """Give a folder another name in the same place; an older folder of that name is replaced at once."""
    if os.path.lexists(path):
        os.replace(folder, _sibling(path, _NEW))
        _settle(path)
    else:
        os.replace(folder, path)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """As :func:`atomic_folder` for a path that users give: it replaces nothing but an empty folder, and what
    others made there meanwhile stays.

    Raises:
        DataError: when something is there, before the block or after it.
    """
    check_new_folder(path)
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    with _beside(target) as temporary:
        yield temporary
        check_new_folder(path)
        os.replace(temporary, target)


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A temporary folder beside another one; what is left of it at the end is removed."""
    _sweep(target)
    temporary = _half_written(target)
    temporary.chmod(0o777 & ~_umask())
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def is_unsettled(path: Path) -> bool:
    """Return whether replacing this folder was cut short, so that :func:`recover` is needed."""
    return any(os.path.lexists(_sibling(path, suffix)) for suffix in (_NEW, _OLD))


def recover(path: Path) -> None:
    """End what a kill cut short: a whole new folder takes its place, half-written ones are removed.

    For those who alone write there, such as the holder of a lock.
    """
    _settle(path)
    _sweep(path, writers=False)


def recover_in(folder: Path) -> None:
    """:func:`recover` all files and folders of a folder."""
    for name in _unfinished(folder):
        recover(folder / name)


def sweep_in(folder: Path) -> None:
    """Remove what killed processes left half-written in a folder that others may be writing to."""
    for name in _unfinished(folder):
        _sweep(folder / name)


def _unfinished(folder: Path) -> set[str]:
    """Names of the files and folders of a folder that temporary ones are for."""
    return {temporary["name"] for temporary in map(_temporary, _listed(folder)) if temporary}


def _listed(folder: Path) -> list[str]:
    """Names in a folder; a link to one is not followed."""
    return [p.name for p in folder.iterdir()] if folder.is_dir() and not folder.is_symlink() else []


def is_temporary(path: Path) -> bool:
    """Return whether a file or folder is being written, or was when its process was killed."""
    return _temporary(path.name) is not None


def _temporary(name: str) -> re.Match[str] | None:
    """The pattern of temporary names, with the ``name`` of the file."""
    whole = f"{re.escape(_NEW)}|{re.escape(_OLD)}"
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


def _half_written(path: Path) -> Path:
    """A new folder to write a file or folder in, whose name says which process writes."""
    prefix = f"{_prefix(path)}{_machine()}_{os.getpid()}_"
    return Path(tempfile.mkdtemp(dir=path.parent, prefix=prefix, suffix=_PART))


def _machine() -> str:
    """A digest of the host and, on Linux, of the namespace in which process ids are unique (a container)."""
    name = platform.node()
    with suppress(OSError):
        name += f" {Path('/proc/self/ns/pid').readlink()}"
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def _sweep(path: Path, *, writers: bool = True) -> None:
    """Remove what is half-written of a file or folder.

    Args:
        writers: others may be writing: what a live process of this machine has is left alone, and what nobody
            is known to write is left for an hour.
    """
    ours = re.compile(rf"{re.escape(_prefix(path))}\w+{re.escape(_PART)}")
    for name in filter(ours.fullmatch, _listed(path.parent)):
        with suppress(OSError):
            if not writers or _is_abandoned(path.parent / name):
                _remove(path.parent / name, path)


def _is_abandoned(temporary: Path) -> bool:
    """Return whether nobody writes a temporary folder any more: its process on this machine has ended, or
    nobody on another machine has changed it for an hour.
    """
    import psutil

    writer = re.search(rf"\.([0-9a-f]{{8}})_(\d+)_\w+{re.escape(_PART)}$", temporary.name)
    if writer and writer[1] == _machine():
        return not psutil.pid_exists(int(writer[2]))
    return time.time() - temporary.lstat().st_mtime >= STALE


def _sibling(path: Path, suffix: str) -> Path:
    return path.with_name(f".{path.name}{suffix}")


def _prefix(path: Path) -> str:
    """The beginning of temporary names of a file or folder; short enough for every file system."""
    return f".{os.fsencode(path.name)[:200].decode(errors='ignore')}."


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder, without links and without what vanishes meanwhile."""
    size = 0
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root) / name
            with suppress(OSError):
                size += 0 if path.is_symlink() else path.stat().st_size
    return size


def follow_umask(folder: Path) -> None:
    """Give all files of a folder the mode that new files have, whatever wrote them."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(0o666 & ~_umask())


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def lock_file(path: Path) -> Path:
    """The lock of a folder: beside it, since the folder may be replaced or not be there yet."""
    target = path.resolve()
    above = next(p for p in target.parents if p.exists())
    # A run that is mounted alone, below a folder where nothing can be written, has its lock inside.
    inside = above == target.parent and target.is_dir() and not os.access(above, os.W_OK)
    return target / ".kgmlm-lock" if inside else target.parent / f".{target.name}.kgmlm-lock"


@contextmanager
def locked(path: Path, what: str, *, waiting: bool = False) -> Iterator[None]:
    """Be the only one that writes a folder.

    Args:
        what: what is being done, for the sentence that others get.
        waiting: wait until nobody else has the lock.

    Raises:
        RunError: when another process has the lock.
    """
    from filelock import FileLock, Timeout

    file = lock_file(path)
    made = [p for p in (file.parent, *file.parent.parents) if not p.exists()]
    lock = FileLock(file)
    try:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=-1 if waiting else 0)
        except Timeout:
            if not file.exists():  # nobody has it: it cannot be made
                raise RunError(f"{path} cannot be written: no lock can be made in {file.parent}") from None
            raise RunError(
                f"{path} is in use by another kgmlm process{_held_by(file)}; wait for it, or choose another "
                "folder"
            ) from None
        except OSError as error:
            raise RunError(f"{path} cannot be written: {file.parent}: {error.strerror}") from None
        try:
            file.write_text(f"{what}, since {datetime.now().astimezone():%Y-%m-%d %H:%M}\n", "utf-8")
            yield
        finally:
            # Before it is released: whoever opened this file meanwhile sees that it is gone, and tries again.
            file.unlink(missing_ok=True)
            lock.release()
    finally:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()  # made for the lock, and nothing else came


def _held_by(file: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        if held := file.read_text("utf-8").strip():
            return f" ({held})"
    return ""
