"""Vectors of the texts of a graph's entities, read once by an encoder that is never trained.

They are kept in a cache that all runs share, or else in parts, each a file, so that reading that was
interrupted continues. Where there is a time for
it, names come first, since they are short, and descriptions as far as the time goes.

Shapes: B texts of a batch, N entities, D width.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kgmlm.core import files
from kgmlm.core.arrays import Floats, HostTable, IntArray, Table
from kgmlm.core.errors import RunError
from kgmlm.core.machine import reduced
from kgmlm.core.processes import sharing
from kgmlm.core.progress import expected
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.text.encoder import TextEncoder
from kgmlm.text.vector_cache import VectorCache

Read = Callable[[IntArray], Iterator[tuple[IntArray, Floats]]]
PART = 2**12  # entities whose text vectors are one file until all are read
ENDED = "ended.npz"  # the vectors of a reading that has ended, in its folder


def texts_of(entities: EntityTable) -> list[str]:
    """The texts of entities, as the encoder reads them.

    >>> texts_of(EntityTable(["q1", "q2"], ["Paris", "Rome"], ["a capital", ""]))
    ['Paris. a capital', 'Rome']
    """
    columns = zip(entities.column("surface"), entities.model_descriptions.to_pylist(), strict=True)
    return [f"{surface}. {description}" if description else surface for surface, description in columns]


def read_all(
    encoder: TextEncoder, texts: Sequence[str], device: str | None = None, precision: str = "auto"
) -> Floats:
    """Unit vectors ``(N, D)`` of texts, in their order; ``device`` and ``precision`` as of the encoder."""
    vectors_ND = np.zeros((len(texts), encoder.width), np.float32)
    for rows, vectors_BD in encoder.read(texts, device=device, precision=precision):
        vectors_ND[rows] = vectors_BD
    return vectors_ND


@dataclass(frozen=True, eq=False)
class EncoderSource:
    """The texts of a graph's entities as an encoder reads them: a source of entity vectors."""

    entities: EntityTable
    encoder: TextEncoder
    precision: str = "fp32"  # so that a text's vector does not depend on its batch
    device: str | None = None  # where the encoder reads; None is the CPU
    cache: VectorCache | None = None  # of texts that other runs have read

    @property
    def width(self) -> int:
        """Return D."""
        return self.encoder.width

    def read(self, ids: IntArray, batch_size: int = 64) -> Iterator[tuple[IntArray, Floats]]:
        """Read the vectors of some entities: (ids, unit vectors)."""
        return self._read(ids, texts_of(self.entities.take(ids)), batch_size)

    def read_names(self, ids: IntArray, batch_size: int = 64) -> Iterator[tuple[IntArray, Floats]]:
        """Read the names of some entities alone."""
        return self._read(ids, self.entities.take(ids).column("surface"), batch_size)

    def _read(
        self, ids: IntArray, texts: Sequence[str], batch_size: int
    ) -> Iterator[tuple[IntArray, Floats]]:
        left = np.arange(len(ids))
        if self.cache is not None:
            rows, vectors_HD = self.cache.get(self._cached_as, texts, self.width)
            yield ids[rows], vectors_HD
            left = np.setdiff1d(left, rows)
        unread = [texts[row] for row in left.tolist()]
        for rows, vectors_BD in self.encoder.read(unread, batch_size, self.device, self.precision):
            self.keep([unread[row] for row in rows.tolist()], vectors_BD)
            yield ids[left[rows]], vectors_BD

    def keep(self, texts: Sequence[str], vectors_ND: Floats) -> None:
        """Put the vectors of texts into the cache, if there is one."""
        if self.cache is not None:
            self.cache.put(self._cached_as, texts, vectors_ND)

    @property
    def cached(self) -> tuple[IntArray, Floats]:
        """Ids and vectors of the entities whose texts are in the cache."""
        if self.cache is None:
            return np.zeros(0, np.int64), np.zeros((0, self.width), np.float32)
        return self.cache.get(self._cached_as, texts_of(self.entities), self.width)

    @cached_property
    def _cached_as(self) -> str:
        """What the vector of a text depends on beside the text."""
        low = reduced(self.precision, (self.device or "cpu").startswith("cuda"))
        return f"{self.encoder.digest} {'bf16' if low else 'fp32'}"

    def table(self, rows_ND: Floats) -> Table:
        """Vectors where they are."""
        return HostTable(rows_ND)

    def known_by(self) -> dict[str, Any]:
        """What tells these vectors from those of other texts and encoders."""
        digest = sha256()
        columns = {
            "surface": self.entities.table.column("surface"),
            "description": self.entities.model_descriptions,
        }
        for batch in pa.table(columns).to_batches(PART):
            for column in batch.columns:
                digest.update("\0".join(column.to_pylist()).encode(errors="surrogatepass"))
        return {"encoder": self.encoder.digest, "entities": digest.hexdigest(), "size": PART}


class TextVectors(NamedTuple):
    """The text vectors of all entities of a graph.

    Attributes:
        vectors_ND: unit vectors, float16; 0 where not even the name was read.
        cut: ids of entities whose text was not read as a whole.
    """

    vectors_ND: npt.NDArray[Any]
    cut: IntArray


def read_texts(
    graph: KnowledgeGraph,
    source: EncoderSource,
    kept: Path | None = None,
    advance: Callable[[int, int], None] = lambda n, total: None,
    seconds: float | None = None,
) -> TextVectors:
    """Read the texts of all entities.

    Entities with most training triples come first: they are asked about, and are answers, most often.
    Processes share the reading inside :func:`~kgmlm.core.processes.shared_by`; all must see the folder.

    Args:
        kept: a folder for what is read, from which the next call continues.
        advance: called with (texts just read, all that are expected).
        seconds: read for this time: the names of all entities, then the texts of those with a description.
            None reads all texts, however long it takes.
    """
    if kept is not None:
        _prepare(kept, source)
        if (kept / ENDED).is_file():
            return _ended(kept / ENDED)
    count = len(graph.entities)
    ids_N = np.argsort(-graph.context.degree_N, kind="stable")
    parts = kept if source.cache is None or sharing().size > 1 else None  # a cache keeps what is read, too
    if seconds is None:
        reading = _Reading(source, parts, advance, count)
        reading.read("texts", ids_N, source.read)
    else:
        described_N = pc.not_equal(source.entities.model_descriptions, "").to_numpy().astype(np.bool_)
        # 1) What other runs have read.
        cached, cached_HD = source.cached
        unread = ids_N[~np.isin(ids_N, cached)]
        described = unread[described_N[unread]]
        reading = _Reading(source, parts, advance, count + len(described), seconds)
        if len(cached):
            reading.take(cached, cached_HD)
        # 2) Names, which are all that there is of entities without a description.
        in_time = reading.read("names", unread, source.read_names)
        reading.whole_N[described] = False
        # 3) Names with descriptions, in place of the names alone.
        if in_time:
            reading.read("described", described, source.read)
    if kept is not None and (parts is None or seconds is not None):
        keep(kept, source, reading.vectors)
    return reading.vectors


class _Reading:
    """What was read so far.

    Attributes:
        vectors_ND: of texts, or of names alone; 0 where neither was read.
        whole_N: the mask of entities whose text was read.
    """

    def __init__(
        self,
        source: EncoderSource,
        kept: Path | None,
        advance: Callable[[int, int], None],
        total: int,
        seconds: float | None = None,
    ) -> None:
        self.source, self.kept, self.advance, self.total = source, kept, advance, total
        self.seconds, self.began, self.done = seconds, time.monotonic(), 0
        count = len(source.entities)
        self.vectors_ND = np.zeros((count, source.width), np.float32)
        self.whole_N = np.zeros(count, np.bool_)

    @property
    def vectors(self) -> TextVectors:
        """The vectors as a signal has them."""
        return TextVectors(self.vectors_ND.astype(np.float16), np.flatnonzero(~self.whole_N))

    def read(self, kind: str, ids_N: IntArray, read: Read) -> bool:
        """Read entities in parts, each a file; return whether the time was enough for all."""
        world, files_of = sharing(), dict[int, Path]()
        for part, start in enumerate(range(0, len(ids_N), PART)):
            some = ids_N[start : start + PART]
            path = None if self.kept is None else self.kept / f"{kind}-{part:06}.npy"
            if path is not None and path.is_file():
                self.take(some, _part(path))
            elif part % world.size != world.rank:
                assert path is not None, "processes share a folder"
                files_of[start] = path
            elif self._late or not self._read_part(some, read):
                return False
            elif path is not None:
                with files.atomic_file(path) as temporary, temporary.open("wb") as file:
                    np.save(file, self.vectors_ND[some])
        world.wait()
        for start, path in files_of.items():
            self.take(ids_N[start : start + PART], _part(path))
        return True

    def _read_part(self, ids: IntArray, read: Read) -> bool:
        left = len(ids)
        for some, vectors_BD in read(ids):
            self.take(some, vectors_BD)
            left -= len(some)
            if self._late:
                break
        return not left

    @property
    def _late(self) -> bool:
        return self.seconds is not None and time.monotonic() - self.began > self.seconds

    def take(self, ids: IntArray, vectors_BD: Floats) -> None:
        """Take the vectors of some entities."""
        self.vectors_ND[ids], self.whole_N[ids] = vectors_BD, True
        self.done += len(ids)
        self.advance(len(ids), expected(self.done, self.began, self.seconds, self.total))


def keep(kept: Path, source: EncoderSource, vectors: TextVectors) -> None:
    """Lay vectors where :func:`read_texts` finds them."""
    _prepare(kept, source)
    with files.atomic_file(kept / ENDED) as temporary, temporary.open("wb") as file:
        np.savez(file, vectors=vectors.vectors_ND, cut=vectors.cut)


def _ended(path: Path) -> TextVectors:
    with _readable(path), np.load(path) as arrays:
        return TextVectors(arrays["vectors"], arrays["cut"])


def _part(path: Path) -> Floats:
    with _readable(path):
        vectors_BD: Floats = np.load(path)
    return vectors_BD


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Report a file that cannot be read inside it as damaged.

    Raises:
        RunError: naming the file.
    """
    try:
        yield
    except (OSError, ValueError, EOFError, KeyError, BadZipFile):
        raise RunError(f"{path} is damaged; remove it, and the same command makes it again") from None


def _prepare(kept: Path, source: EncoderSource) -> None:
    """Make the folder of a reading; one of other texts, or of another encoder, is removed before."""
    about, of, world = kept / "about.json", source.known_by(), sharing()
    if world.main:
        if kept.is_dir() and _parsed(about) != of:
            shutil.rmtree(kept)
        kept.mkdir(exist_ok=True)
        files.write_json(about, of)
    world.wait()


def _parsed(path: Path) -> object:
    """A file of JSON; None where it is not there or damaged."""
    try:
        return files.parse_json(path.read_bytes())
    except (OSError, ValueError):
        return None
