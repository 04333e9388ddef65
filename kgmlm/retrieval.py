"""Query vectors to a shortlist of entities, through a FAISS index of entity vectors; scores nothing for good.

Shortlists are reranked exactly by the ranker.

Shapes: B queries, K shortlist, N entities, D width of a vector.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kgmlm import digests, files
from kgmlm.faiss_parts import (
    Floats,
    Part,
    build_part,
    cause,
    flat_part,
    read_index,
    require_faiss,
    search_part,
    unwrapped,
)
from kgmlm.kg import ConfigError, IntArray, RunError, first_line

FOLDER = "index/entity"  # of a run
FORMAT = 1
FLAT_BELOW = 50_000  # entities: an exact search of so few is quick


class Shortlist(NamedTuple):
    """The K best of an index for each of B queries; where there are fewer, ids are -1 and scores -inf."""

    ids_BK: IntArray
    scores_BK: Floats


def automatic_factory(count: int) -> str:
    """A FAISS factory string for so many vectors, inner product.

    Few are searched exhaustively. More go into cells, held as one bit per dimension of their difference to
    the cell's center and two floats (RaBitQ: Gao and Long, 2024): no codebook to train, about 70 bytes for
    384 dimensions, and faster than codes of as many bytes at the same recall.
    """
    return "Flat" if count < FLAT_BELOW else f"IVF{2 ** round(math.log2(2 * math.sqrt(count)))},RaBitQ"


@dataclass
class Retriever:
    """An index of entity vectors, with entities added and removed since it was built.

    What is built never changes: added entities stand beside it in a list that is searched exhaustively, and
    removed ones are skipped, so any factory can do both.

    Attributes:
        part: as it was built.
        record: factory, effort, FAISS version, fingerprint, and what was measured.
        added: entities added since.
        removed: ids that the index was built with and does not find any more.
    """

    part: Part
    record: Mapping[str, Any]
    added: Part | None = None
    removed: frozenset[int] = frozenset()

    def __len__(self) -> int:
        added = 0 if self.added is None else len(self.added.ids)
        return len(self.part.ids) + added - len(self.removed)

    @property
    def exact(self) -> bool:
        """Whether it finds by vectors as they are, among all, so that nothing is to be looked at again."""
        faiss = require_faiss()
        return self.part.index is None or isinstance(faiss.downcast_index(self.part.index), faiss.IndexFlat)

    @property
    def effort(self) -> int:
        """Cells visited, or width of a graph search, unless a search sets another."""
        return int(self.record["effort"])

    def search(self, vector_BD: Floats, k: int, effort: int | None = None) -> Shortlist:
        """The k best entities of B queries.

        Args:
            effort: of this search alone; None is the index's own.

        Raises:
            ConfigError: when k is not positive, or a query is not finite.
        """
        if k < 1:
            raise ConfigError(f"a shortlist has 1 entity or more, not {k}")
        if not np.isfinite(vector_BD).all():
            raise ConfigError("a query's vector is not finite")
        tried = self.effort if effort is None else effort
        count = len(vector_BD)
        ids, scores = [np.full((count, k), -1)], [np.full((count, k), -np.inf, np.float32)]
        for part, hidden in ((self.part, self.removed), (self.added, frozenset[int]())):
            if part is not None and part.index is not None:
                found = search_part(part, vector_BD, k, tried, hidden)
                ids.insert(-1, found[0])
                scores.insert(-1, found[1])
        ids_BM, scores_BM = np.concatenate(ids, 1), np.concatenate(scores, 1)
        best = np.argsort(-scores_BM, axis=1, kind="stable")[:, :k]
        rows = np.arange(count)[:, None]
        return Shortlist(ids_BM[rows, best], scores_BM[rows, best])

    def without(self, ids: IntArray) -> Retriever:
        """This index with some entities removed; nothing is rebuilt."""
        added = self.added
        if added is not None and added.index is not None:
            added = flat_part(added.width, [(added, ~np.isin(added.ids, ids))])
        built = self.part.ids[np.isin(self.part.ids, ids)]
        return replace(self, added=added, removed=self.removed | set(built.tolist()))

    def with_added(self, more: Part) -> Retriever:
        """This index with further entities, in a flat part; nothing is rebuilt.

        Raises:
            ConfigError: when an entity is in the index already; it can be removed, then added again.
        """
        olds = [part for part in (self.added, more) if part is not None and part.index is not None]
        there = set(self.part.ids[np.isin(self.part.ids, more.ids)].tolist()) - self.removed
        if self.added is not None:
            there |= set(self.added.ids[np.isin(self.added.ids, more.ids)].tolist())
        if there:
            raise ConfigError(f"entity {min(there)} is in the index already")
        whole = [(part, np.ones(len(part.ids), np.bool_)) for part in olds]
        return replace(self, added=flat_part(more.width, whole))

    def on_gpu(self) -> Retriever:
        """This index on all GPUs that FAISS has; what FAISS has on CPUs only (RaBitQ, graphs) stays.

        Raises:
            ConfigError: when a GPU cannot take it for another reason, such as its memory.
        """
        faiss = require_faiss()
        if self.part.index is None or not getattr(faiss, "get_num_gpus", int)():
            return self

        inner = unwrapped(self.part.index)
        if isinstance(inner, faiss.IndexIVF):
            inner.nprobe = min(self.effort, inner.nlist)  # copies on several GPUs take no parameters
        try:
            moved = faiss.index_cpu_to_all_gpus(self.part.index)
        except RuntimeError as error:
            if "not implemented" in str(error):
                return self
            raise ConfigError(f"FAISS cannot search this index on a GPU: {cause(error)}") from None
        return replace(self, part=replace(self.part, index=moved))

    def save(self, folder: Path) -> Retriever:
        """Write the index as a folder, whole or not at all; what is returned has its ``bytes`` on record.

        Raises:
            RunError: when entities were added or removed since: what is saved belongs to a run's own graph.
        """
        faiss = require_faiss()
        if self.added is not None or self.removed:
            raise RunError("an index with added or removed entities is not saved; build it again")
        with files.atomic_folder(folder) as temporary:
            np.save(temporary / "ids-0.npy", self.part.ids)
            if self.part.index is not None:
                _write(faiss, self.part.index, temporary / "part-0.faiss")
            size = sum(path.stat().st_size for path in temporary.iterdir())
            record = {**self.record, "format": FORMAT, "bytes": size}
            files.write_json(temporary / "index.json", record)
            digests.write_manifest(temporary)
        return replace(self, record=record)

    @classmethod
    def load(cls, folder: Path) -> Retriever:
        """Open a saved index; vectors stay on disk until they are searched, where FAISS can.

        Raises:
            RunError: when it is missing or damaged.
            ConfigError: when FAISS is not installed.
        """
        run = folder.parent.parent
        if not (folder / "index.json").is_file():
            raise RunError(f"{run} has no index; `kgmlm index {run}` makes one")
        faiss = require_faiss()
        digests.check_folder(folder, remedy="build it again with `kgmlm index`")
        try:
            record = files.parse_json((folder / "index.json").read_bytes())
            if record["format"] > FORMAT:
                raise RunError(f"{folder} was written by a newer kgmlm; build it again with `kgmlm index`")
            ids = np.load(folder / "ids-0.npy", mmap_mode="r")
            if ids.ndim != 1 or ids.dtype != np.int64 or (ids < 0).any() or not len(ids):
                raise ValueError("it has no list of entities")
            index = read_index(faiss, folder / "part-0.faiss")
            if index.ntotal != len(ids):
                raise ValueError(f"it has {index.ntotal} vectors for {len(ids)} entities")
            known = [record.get(name, 1) for name in ("entities", "looked_at")]
            if not all(type(n) is int and n >= 1 for n in (record["format"], record["effort"], *known)):
                raise ValueError("its record is not that of an index")
        except RunError:
            raise
        except Exception as error:  # whatever damaged files make the libraries raise
            why = first_line(error)[:120]
            raise RunError(f"{folder} is damaged ({why}); build it again with `kgmlm index`") from None
        return cls(Part(int(index.d), ids, index), record)


def entity_part(
    vectors_ND: Floats,
    ids: IntArray,
    factory: str,
    seed: int = 0,
    advance: Callable[[int], None] = lambda n: None,
) -> Part:
    """A FAISS index of the vectors of some entities.

    Raises:
        ConfigError: when a vector is not finite.
    """

    def make(rows: IntArray) -> Floats:
        vectors = np.ascontiguousarray(vectors_ND[rows])
        if not np.isfinite(vectors).all():
            raise ConfigError("an entity's vector is not finite")
        return vectors

    chosen = automatic_factory(len(ids)) if factory == "auto" else factory
    return build_part(ids, vectors_ND.shape[1], make, chosen, seed, advance)


def fingerprint(*arrays: npt.NDArray[Any]) -> str:
    """A checksum of what an index was made from."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(str((array.dtype, array.shape)).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _write(faiss: Any, index: Any, path: Path) -> None:
    """Write an index of FAISS, which says with a RuntimeError of its own that a disk is full."""
    try:
        faiss.write_index(index, str(path))
    except RuntimeError as error:
        raise files.disk_error(RuntimeError(cause(error)), path) from None
