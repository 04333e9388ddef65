"""Entity vectors as a signal: the cosine of the query's vector and a candidate's.

Both are read by the same model at one mask. Each entity's text is read once; several processes share the
reading.

Shapes: B queries, N entities or candidates, K of each query's own, D width.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from kgmlm.core import files
from kgmlm.core.arrays import Floats, IntArray, Table, products_of_own
from kgmlm.core.errors import RunError
from kgmlm.core.machine import bound_memory
from kgmlm.core.processes import sharing
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.signals.base import Pool, Signal
from kgmlm.text.reader import Reader, Reading

_TEXTS = 8192  # entity texts tokenized at once


class VectorSource(Protocol):
    """Reads the vectors of a graph's entities from their texts.

    Attributes:
        entities: of the graph.
    """

    @property
    def entities(self) -> EntityTable:
        """The entities of the graph."""

    @property
    def width(self) -> int:
        """Return D."""

    def read(self, ids: IntArray, batch_size: int) -> Iterator[tuple[IntArray, Floats]]:
        """Yield (some of the ids, their unit vectors) until all are read."""

    def table(self, rows_ND: Floats) -> Table:
        """Vectors placed where they are compared with others."""


class ReaderSource:
    """Entity texts as the masked LM of a run reads them, at a mask behind each.

    Attributes:
        residuals: adds to entity vectors ``(E, D)`` what training has learned beside the texts; None if it
            learns nothing beside them. Saved vectors include it.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.residuals: Callable[[IntArray, Floats], Floats] | None = None

    @property
    def entities(self) -> EntityTable:
        """The entities of the reader's graph."""
        return self.reader.context.entities

    @property
    def width(self) -> int:
        """Return D."""
        return self.reader.model.width

    def read(self, ids: IntArray, batch_size: int) -> Iterator[tuple[IntArray, Floats]]:
        """Read entities: one forward pass for each batch."""
        for start in range(0, len(ids), _TEXTS):
            part = ids[start : start + _TEXTS]
            for rows, batch in self.reader.padded(self.reader.encode_entities(part), batch_size):
                vectors_BD = self.reader.model.states(batch).vector_BD
                assert vectors_BD is not None
                if self.residuals is not None:
                    vectors_BD = self.residuals(part[rows], vectors_BD)
                yield part[rows], vectors_BD
                bound_memory()

    def table(self, rows_ND: Floats) -> Table:
        """Vectors placed where the model computes."""
        return self.reader.model.table(rows_ND)


class EntityVectors:
    """Unit vectors of a graph's entities, each read once, when it is first asked for.

    Those that were saved, of the first M entities, stay where they are, such as in a file that is mapped into
    memory; those that are read beside them are below them.
    """

    def __init__(self, source: VectorSource) -> None:
        self.source = source
        self.forget()

    def forget(self) -> None:
        """Read all entities again: the model has changed."""
        self._saved_MD: Floats | None = None
        self._own_KD: Floats | None = None  # of the entities from M on
        self._tables: list[Table] | None = None  # of both
        self._read_N = np.zeros(len(self.source.entities), np.bool_)

    def for_graph(self, source: VectorSource) -> EntityVectors:
        """The vectors of another graph's entities; those read of the same label and text are taken over."""
        twin = EntityVectors(source)
        if self._read_N.any():
            rows_N = source.entities.rows_in(self.source.entities)
            rows_N[rows_N >= 0] = np.where(self._read_N, np.arange(len(self._read_N)), -1)[
                rows_N[rows_N >= 0]
            ]
            saved_MD = self._own_KD if self._saved_MD is None and self._read_N.all() else self._saved_MD
            twin._take(rows_N, saved_MD, self.of)
        return twin

    @property
    def all(self) -> Floats:
        """Vectors ``(N, D)`` of all entities; those not read yet are read now."""
        pieces = self._pieces()
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _pieces(self) -> list[Floats]:
        """:attr:`all`, one below the other."""
        self.read()
        pieces = [piece for piece in (self._saved_MD, self._own_KD) if piece is not None and len(piece)]
        return pieces or [self._none()]

    def cosines(self, vector_BD: Floats) -> Floats:
        """Cosines ``(B, N)`` of unit vectors and those of all entities, computed where these are."""
        if self._tables is None or self.unread:
            self._tables = [self.source.table(piece) for piece in self._pieces()]
        parts = [table.products(vector_BD) for table in self._tables]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)

    def adopt(self, entities: EntityTable, vectors_MD: Floats) -> None:
        """Take over the vectors of M entities that this model has read: those of the same label and text.

        They are not copied where the graph's first M entities are these.
        """
        known = self.source.entities
        rows_N = np.arange(len(known)) if entities is known else known.rows_in(entities)
        self._take(rows_N, vectors_MD, vectors_MD.__getitem__)

    def _take(self, rows_N: IntArray, saved_MD: Floats | None, of: Callable[[IntArray], Floats]) -> None:
        """Take over vectors by their rows, -1 for none: those of the first M entities as they are saved."""
        count = 0 if saved_MD is None else len(saved_MD)
        begins = len(rows_N) >= count and bool((rows_N[:count] == np.arange(count)).all())
        self._saved_MD, self._own_KD, self._read_N = (saved_MD if begins else None), None, rows_N >= 0
        self._tables = None
        read_rows = np.flatnonzero(self._read_N[self._first :]) + self._first
        if len(read_rows):
            self._write(read_rows, of(rows_N[read_rows]))

    @property
    def _first(self) -> int:
        """The first entity whose vector is not among those that were saved."""
        return 0 if self._saved_MD is None else len(self._saved_MD)

    def _none(self) -> Floats:
        """Zeros ``(K, D)``, which take no memory until they are written."""
        return np.zeros((len(self._read_N) - self._first, self.source.width), np.float32)

    def _write(self, ids: IntArray, vectors_ED: Floats) -> None:
        if self._own_KD is None:
            self._own_KD = self._none()
        self._own_KD[ids - self._first] = vectors_ED
        self._tables = None

    def of(self, ids: IntArray) -> Floats:
        """Vectors of some entities, of the shape of ``ids`` and D; those not read yet are read now."""
        if not self._read_N[ids].all():
            self.read(ids=np.unique(ids))
        if self._saved_MD is None or self._own_KD is None:
            vectors_ND = self._own_KD if self._saved_MD is None else self._saved_MD
            assert vectors_ND is not None
            return vectors_ND[ids]
        below = ids.ravel() >= self._first
        old, new = ids.ravel()[~below], ids.ravel()[below] - self._first
        vectors_ED = np.empty((ids.size, self._own_KD.shape[1]), np.float32)
        vectors_ED[~below], vectors_ED[below] = self._saved_MD[old], self._own_KD[new]
        return vectors_ED.reshape(*ids.shape, vectors_ED.shape[1])

    def missing(self, ids: IntArray | None = None) -> IntArray:
        """Return which entities, of some or of all, have no vector yet."""
        return np.flatnonzero(~self._read_N) if ids is None else ids[~self._read_N[ids]]

    def put(self, ids: IntArray, vectors_MD: Floats) -> None:
        """Take over the vectors of M entities that another process has read."""
        self._write(ids, vectors_MD)
        self._read_N[ids] = True

    @property
    def unread(self) -> int:
        """How many entities' texts :meth:`read` would read."""
        return self.unread_of(None)

    def unread_of(self, ids: IntArray | None) -> int:
        """Count the unread ones among some distinct entities; None is all."""
        return len(self.missing(ids))

    def read(
        self,
        batch_size: int = 64,
        advance: Callable[[int], None] = lambda n: None,
        ids: IntArray | None = None,
    ) -> None:
        """Read the vectors of entities that have none yet: one forward pass each.

        Args:
            advance: called with the number of entities done, for progress bars.
            ids: which entities, all different; None is all.
        """
        missing = self.missing(ids)
        if not len(missing):
            return
        if self._own_KD is None:
            self._own_KD = self._none()
        for some, vectors_BD in self.source.read(missing, batch_size):
            self._write(some, vectors_BD)
            self._read_N[some] = True
            advance(len(some))

    def in_parts(
        self,
        folder: Path,
        of: object,
        size: int,
        batch_size: int = 64,
        advance: Callable[[int, int], None] = lambda n, total: None,
    ) -> list[Path]:
        """Read all vectors, and write them into a folder in parts of ``size``; existing parts are not read.

        No more than a part is in memory, and none afterwards. Processes that share the work take turns.

        Args:
            of: what identifies the vectors, as JSON; parts of other vectors are removed.
            advance: called with (entities just read, all of them).

        Returns:
            The files of all parts, in order.
        """
        about, world = folder / "about.json", sharing()
        if world.main:
            if folder.is_dir() and _parsed(about) != of:
                shutil.rmtree(folder)
            folder.mkdir(exist_ok=True)
            files.write_json(about, of)
        world.wait()
        count, parts = len(self.source.entities), []
        for part, start in enumerate(range(0, count, size)):
            ids = np.arange(start, min(start + size, count))
            path = folder / f"part-{part:06}.npy"
            if not path.is_file() and part % world.size == world.rank:
                self.read(batch_size, lambda n: advance(n, count), ids)
                with files.atomic_file(path) as temporary, temporary.open("wb") as file:
                    np.save(file, self.of(ids))
                self.forget()
            else:
                advance(len(ids), count)
            parts.append(path)
        world.wait()
        return parts


def _parsed(path: Path) -> object:
    """A file of JSON; None where it is not there or damaged."""
    try:
        return files.parse_json(path.read_bytes())
    except (OSError, ValueError):
        return None


ROUND = 2**14  # entities that a process reads before all gather what they have read


def read_together(
    vectors: EntityVectors,
    batch_size: int = 64,
    advance: Callable[[int], None] = lambda n: None,
    ids: IntArray | None = None,
) -> None:
    """As :meth:`EntityVectors.read`; where the work is shared, each process reads its share.

    Args:
        advance: called with the number of entities done, by whichever process.
        ids: which entities, all different; None is all.
    """
    world = sharing()
    if world.size == 1:
        vectors.read(batch_size, advance, ids)
        return
    missing = vectors.missing(ids)
    world.agree(sha256(missing.data).hexdigest(), "entities")
    for start in range(0, len(missing), world.size * ROUND):
        part = missing[start : start + world.size * ROUND]
        mine = part[world.rank :: world.size]
        vectors.read(batch_size, advance, mine)
        known = vectors.of(mine)
        for rank, (others, read) in enumerate(world.gathered((mine, known))):
            if rank != world.rank:
                vectors.put(others, read)
        advance(len(part) - len(mine))


class Vector(Signal):
    """Scores entities by the vectors that are read from their texts."""

    name: ClassVar[str] = "vector"
    title: ClassVar[str] = "entity vectors"
    about: ClassVar[str] = (
        "how near the text of an entity is to the question, as vectors that the language model makes"
    )
    reads: ClassVar[bool] = True
    file: ClassVar[str] = "model/entity_vectors.safetensors"

    def __init__(self, vectors: EntityVectors) -> None:
        self.vectors = vectors

    @classmethod
    def initial(cls, reader: Reader) -> Vector | None:
        """Vectors that are still to be read, where the settings want them."""
        return cls(EntityVectors(ReaderSource(reader))) if reader.settings.vector.enabled else None

    def tensors(self) -> Mapping[str, npt.NDArray[Any]]:
        """The vectors of all entities, in order; those that are missing are read."""
        return {"vectors": self.vectors.all}

    @classmethod
    def open(cls, path: Path, graph: KnowledgeGraph, reader: Reader | None = None) -> Vector:
        """The vectors of a run's own entities, mapped into memory.

        Raises:
            RunError: when the file is damaged or of another graph or model.
        """
        assert reader is not None, "they are the model's"
        if not reader.settings.vector.enabled:
            raise RunError(f"{path} is there, yet the settings of the run have vector.enabled = false")
        with cls.reading(path):
            vectors_ND = files.map_tensor(path, "vectors")
            if vectors_ND.dtype != np.float32:
                raise ValueError("its vectors are not float32")
        expected = (len(graph.entities), reader.model.width)
        if vectors_ND.shape != expected:
            raise RunError(f"{path} has vectors of shape {vectors_ND.shape}; the run needs {expected}")
        vectors = EntityVectors(ReaderSource(reader))
        vectors.adopt(graph.entities, vectors_ND)
        return cls(vectors)

    def for_graph(self, reader: Reader, entity_rows: IntArray, relation_rows: IntArray) -> Vector:
        """A copy for another graph; vectors of entities that it has read are kept."""
        return Vector(self.vectors.for_graph(ReaderSource(reader)))

    def score(self, reading: Reading, pool: Pool) -> Floats:
        """Cosines ``(B, N)`` or ``(B, K)``."""
        vector_BD = reading.states.vector_BD
        assert vector_BD is not None
        if pool.ids is None:
            return self.vectors.cosines(vector_BD)
        chosen = self.vectors.of(pool.filled)
        return products_of_own(vector_BD, chosen) if pool.own else vector_BD @ chosen.T
