"""Retrieval: a FAISS index of entity vectors proposes candidates, which the ranker scores exactly.

The vectors are those of the signal `vector`, or the bi-encoder's where the run has no others.

FAISS is optional: it is imported where an index is used.

Shapes: B queries, K shortlist, N entities, D or w width of a vector.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kgmlm.core import digests, files
from kgmlm.core.arrays import Floats, IntArray, check_finite
from kgmlm.core.errors import ConfigError, RunError, first_line, quoted
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.constraints import MISSED
from kgmlm.ranking.ranker import FirstStage, Ranker, Scorer
from kgmlm.signals.base import Pool
from kgmlm.signals.biencoder import Biencoder
from kgmlm.text.reader import Reading

BUILDS = ("faiss-cpu", "faiss-gpu", "faiss-gpu-cu11", "faiss-gpu-cu12")
_CHUNK = 2**25  # floats of entity vectors made at once: 128 MB
_POINTS = 40  # training vectors a cell of an inverted file; FAISS wants 39
_TRAINING = 2**26  # floats of training vectors at most: 256 MB


@cache
def _installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True


def require_faiss() -> Any:
    """The ``faiss`` module.

    Raises:
        ConfigError: when it is not installed, or twice: its builds share one name and overwrite each other.
    """
    builds = [name for name in BUILDS if _installed(name)]
    if len(builds) > 1:
        both = " and ".join(builds)
        raise ConfigError(f"{both} are both installed and overwrite each other; remove all but one")
    try:
        import faiss
    except ImportError as error:
        raise ConfigError(
            f"an index needs FAISS ({error}): pip install '.[cpu]', or '.[gpu]' for a GPU, not both"
        ) from None
    return faiss


def cause(error: RuntimeError) -> str:
    """The complaint of FAISS, without its place in FAISS's source."""
    last = str(error).strip().splitlines()[-1]
    return re.sub(r"^.*(\.cpp:\d+|failed): ", "", last)[:160]


@dataclass
class Part:
    """One FAISS index over vectors of the same width, and the entities that they belong to.

    ``index`` is None where there are no vectors.
    """

    width: int
    ids: IntArray
    index: Any


def cells_of(count: int) -> int:
    """The number of cells that an index of so many vectors has; 0 is none: it is searched exhaustively.

    In cells, a vector is held as one bit per dimension of its difference to the cell's center and two floats
    (RaBitQ: Gao and Long, 2024): no codebook to train, about 70 bytes for 384 dimensions, and faster than
    codes of as many bytes at the same recall.
    """
    return 0 if count < FLAT_BELOW else 2 ** round(math.log2(2 * math.sqrt(count)))


def build_part(
    ids: IntArray,
    width: int,
    make: Callable[[IntArray], Floats],
    cells: int,
    seed: int,
    advance: Callable[[int], None],
) -> Part:
    """A FAISS index of some entities, whose vectors are made a chunk at a time.

    Args:
        make: rows of ``ids`` to vectors.
        cells: as of :func:`cells_of`.
    """
    faiss = require_faiss()
    if not len(ids):
        return Part(width, ids, None)
    kind = f"IVF{cells},RaBitQ" if cells else "Flat"
    index = faiss.index_factory(width, kind, faiss.METRIC_INNER_PRODUCT)
    if not index.is_trained:
        size = min(len(ids), max(_POINTS * cells, 2**14), _TRAINING // width)
        rng = np.random.default_rng(seed)
        index.train(make(np.sort(rng.choice(len(ids), size, replace=False))))
    step = max(1, _CHUNK // (4 * width))
    for start in range(0, len(ids), step):
        rows = np.arange(start, min(start + step, len(ids)))
        index.add(make(rows))
        advance(len(rows))
    return Part(width, ids, index)


def search_part(part: Part, query_Bw: Floats, k: int, visited: int) -> tuple[IntArray, Floats]:
    """Ids and scores of one part; what FAISS did not find is -1 and -inf.

    Args:
        visited: cells that are visited; a part without cells has no choice.
    """
    faiss = require_faiss()
    cells = getattr(faiss.downcast_index(part.index), "nlist", 0)
    params = faiss.SearchParametersIVF(nprobe=min(visited, cells)) if cells else None
    scores, rows = part.index.search(np.ascontiguousarray(query_Bw), min(len(part.ids), k), params=params)
    ids = np.where(rows >= 0, part.ids[np.maximum(rows, 0)], -1)
    return ids, np.where(ids >= 0, scores, -np.inf).astype(np.float32)


def flat_part(width: int, parts: Sequence[Part]) -> Part:
    """One flat part of all vectors of others."""
    index = require_faiss().IndexFlatIP(width)
    for part in parts:
        index.add(part.index.reconstruct_n(0, len(part.ids)))
    return Part(width, np.concatenate([part.ids for part in parts]), index)


def read_index(faiss: Any, path: Path) -> Any:
    """Memory-mapped where FAISS can do that for the kind of index, else read."""
    for flag in (faiss.IO_FLAG_MMAP_IFC, faiss.IO_FLAG_MMAP):
        try:
            return faiss.read_index(str(path), flag)
        except RuntimeError:
            continue
    return faiss.read_index(str(path))


FOLDER = "index/entity"  # of a run
FORMAT = 2
FLAT_BELOW = 50_000  # entities: an exact search of so few is quick


class Shortlist(NamedTuple):
    """The K best of an index for each of B queries; where there are fewer, ids are -1 and scores -inf."""

    ids_BK: IntArray
    scores_BK: Floats


@dataclass
class Retriever:
    """An index of entity vectors, with entities added since it was built.

    What is built never changes: added entities stand beside it in a list that is searched exhaustively.

    Attributes:
        part: as it was built.
        record: cells and how many are visited, FAISS version, fingerprint, and what was measured.
        added: entities added since.
    """

    part: Part
    record: Mapping[str, Any]
    added: Part | None = None

    def __len__(self) -> int:
        return sum(len(part.ids) for part in (self.part, self.added) if part is not None)

    @property
    def exact(self) -> bool:
        """Whether it searches all vectors as they are, so that what it finds need not be checked
        again.
        """
        return not self.record["cells"]

    def search(self, vector_BD: Floats, k: int, visited: int | None = None) -> Shortlist:
        """The k best entities of B queries.

        Args:
            visited: cells visited by this search alone; None is the index's own number.

        Raises:
            ConfigError: when k is not positive, or a query is not finite.
        """
        if k < 1:
            raise ConfigError(f"a shortlist has 1 entity or more, not {k}")
        if not np.isfinite(vector_BD).all():
            raise ConfigError("a query's vector is not finite")
        visited = int(self.record["visited"]) if visited is None else visited
        count = len(vector_BD)
        ids, scores = [np.full((count, k), -1)], [np.full((count, k), -np.inf, np.float32)]
        for part in (self.part, self.added):
            if part is not None and part.index is not None:
                nearest = search_part(part, vector_BD, k, visited)
                ids.insert(-1, nearest[0])
                scores.insert(-1, nearest[1])
        ids_BM, scores_BM = np.concatenate(ids, 1), np.concatenate(scores, 1)
        best = np.argsort(-scores_BM, axis=1, kind="stable")[:, :k]
        rows = np.arange(count)[:, None]
        return Shortlist(ids_BM[rows, best], scores_BM[rows, best])

    def with_added(self, more: Part) -> Retriever:
        """This index with further entities, in a flat part; nothing is rebuilt.

        Raises:
            ConfigError: when an entity is in the index already.
        """
        olds = [] if self.added is None else [self.added]
        repeated = np.intersect1d(more.ids, np.concatenate([part.ids for part in (self.part, *olds)]))
        if len(repeated):
            raise ConfigError(f"entity {repeated[0]} is in the index already")
        return self if more.index is None else replace(self, added=flat_part(more.width, [*olds, more]))

    def updated(self, folder: Path, more: IntArray, vectors_MD: Floats, fingerprint: str) -> Retriever:
        """This index as it was saved in a folder, with further entities of a run that has grown.

        What finds the vectors, such as the centers of cells, stays as it was trained.

        Args:
            more, vectors_MD: ids and vectors of the further entities.
            fingerprint: as of :func:`fingerprint`, of the run that has grown.
        """
        ids, index = np.concatenate([self.part.ids, more]), self.part.index
        if len(more):
            index = require_faiss().read_index(str(folder / "part-0.faiss"))  # mapped ones take no more
            index.add(np.ascontiguousarray(vectors_MD, np.float32))
        record = {**self.record, "entities": len(ids), "fingerprint": fingerprint}
        return Retriever(Part(self.part.width, ids, index), record)

    def on_gpu(self) -> Retriever:
        """This index on all GPUs that FAISS has; one in cells stays, since FAISS has RaBitQ on CPUs only.

        Raises:
            ConfigError: when a GPU cannot take it, such as for its memory.
        """
        faiss = require_faiss()
        if not self.exact or self.part.index is None or not getattr(faiss, "get_num_gpus", int)():
            return self
        try:
            moved = faiss.index_cpu_to_all_gpus(self.part.index)
        except RuntimeError as error:
            raise ConfigError(f"FAISS cannot search this index on a GPU: {cause(error)}") from None
        return replace(self, part=replace(self.part, index=moved))

    def save(self, folder: Path) -> Retriever:
        """Write the index as a folder, whole or not at all; what is returned has its ``bytes`` on record.

        Raises:
            RunError: when entities were added since: what is saved belongs to a run's own graph.
        """
        faiss = require_faiss()
        if self.added is not None:
            raise RunError("an index with added entities is not saved; build it again")
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
            raise RunError(f"{run} has no index; `kgmlm index {quoted(run)}` makes one")
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
            counts = (record["format"], record["visited"], record["cells"] + 1, *known)
            if not all(type(n) is int and n >= 1 for n in counts):
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
    cells: int,
    seed: int = 0,
    advance: Callable[[int], None] = lambda n: None,
) -> Part:
    """A FAISS index of the vectors of some entities.

    Args:
        cells: as of :func:`cells_of`.

    Raises:
        ConfigError: when a vector is not finite.
    """

    def make(rows: IntArray) -> Floats:
        vectors = np.ascontiguousarray(vectors_ND[rows])
        if not np.isfinite(vectors).all():
            raise ConfigError("an entity's vector is not finite")
        return vectors

    return build_part(ids, vectors_ND.shape[1], make, cells, seed, advance)


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


MORE = 100  # entities that an index is asked for beyond a shortlist
LOOKED_AT = 1000  # entities whose exact vectors are compared, where the index is approximate


class Searched(NamedTuple):
    """The signal by whose vectors an index finds.

    Attributes:
        of: from ids of entities to their unit vectors.
        asked: from a reading to the unit vectors of its queries.
    """

    name: str
    width: int
    of: Callable[[IntArray], Floats]
    asked: Callable[[Reading], Floats]


NOT_SEARCHED = (
    "the run has no entity vectors to index, and no bi-encoder; train with --set vector.enabled=true, or "
    "`kgmlm tune RUN --add biencoder`"
)


def searched(ranker: Ranker) -> Searched:
    """The signal that an index of a ranker's entities is made of.

    Raises:
        ConfigError: when the run has no entity vectors.
    """
    vectors, biencoder = ranker.vectors, ranker.signals.get(Biencoder.name)

    def of_span(reading: Reading) -> Floats:
        vector_BD = reading.states.vector_BD
        assert vector_BD is not None
        check_finite(vector_BD)
        return vector_BD

    if vectors is not None:
        return Searched("vector", vectors.source.width, vectors.of, of_span)
    if isinstance(biencoder, Biencoder):
        return Searched(biencoder.name, biencoder.width, biencoder.vectors_of, biencoder.asked)
    raise ConfigError(NOT_SEARCHED)


class Retrieval(NamedTuple):
    """An index, how many entities it is asked for, and in how many cells (None: as many as when built)."""

    retriever: Retriever
    k: int
    visited: int | None = None


def shortlist(
    ranker: Ranker, reading: Reading, retrieval: Retrieval, batch_size: int = 64
) -> tuple[IntArray, Floats]:
    """The K best that an index finds, scored exactly: ids and scores ``(B, K)``, best first.

    The index is asked for some more, since its own scores are approximate. It finds by one signal; the others
    and the second stages only score what it found. Equal scores keep the order of their ids. Where there are
    fewer than K, ids are -1 and scores :data:`~kgmlm.ranking.constraints.MISSED`.

    Args:
        batch_size: queries that are read at once.
    """
    queries = reading.queries
    ids_BK = _found(ranker, reading, retrieval)
    ids_BK[ranker.possible.forbidden(queries, ids_BK)] = -1  # what cannot answer takes no place
    pool = Pool(len(ranker.context.entities), ids_BK)
    counting = [name for name in ranker.mixture.signals if name in ranker.signals]
    signal_scores = {name: ranker.signals[name].score(reading, pool) for name in counting}
    scores_BK = ranker.mixture.combine(signal_scores, queries)
    scores_BK[~pool.there] = MISSED
    order_BK = _order(ids_BK, scores_BK)[:, : retrieval.k]
    ids_BK, scores_BK = np.take_along_axis(ids_BK, order_BK, 1), np.take_along_axis(scores_BK, order_BK, 1)
    if not ranker.reranks:
        return ids_BK, scores_BK
    signal_scores = {name: np.take_along_axis(x, order_BK, 1) for name, x in signal_scores.items()}
    first = FirstStage(queries, Pool(pool.count, ids_BK), scores_BK, signal_scores, reading)
    scores_BK = ranker.reranked(first, batch_size).scores_BN
    order_BK = _order(ids_BK, scores_BK)
    return np.take_along_axis(ids_BK, order_BK, 1), np.take_along_axis(scores_BK, order_BK, 1)


def _found(ranker: Ranker, reading: Reading, retrieval: Retrieval) -> IntArray:
    """Ids ``(B, K)`` that an index finds, -1 where it finds fewer."""
    retriever, by = retrieval.retriever, searched(ranker)
    asked_BD = by.asked(reading)
    count = max(1, len(ranker.context.entities))
    most = min(retrieval.k + MORE, count)
    if retriever.exact:
        return retriever.search(asked_BD, most, retrieval.visited).ids_BK
    ids_BM = retriever.search(asked_BD, min(max(LOOKED_AT, most), count), retrieval.visited).ids_BK
    pool = Pool(count, ids_BM)
    cosines_BM = ranker.signals[by.name].score(reading, pool)
    cosines_BM[~pool.there] = -np.inf
    return np.take_along_axis(ids_BM, np.argsort(-cosines_BM, 1, kind="stable")[:, :most], 1)


def _order(ids_BK: IntArray, scores_BK: Floats) -> IntArray:
    """Best first, equal scores by id."""
    return np.lexsort((ids_BK, -scores_BK))


def lists_of(
    ranker: Ranker,
    queries: Queries,
    retrieval: Retrieval | None,
    batch_size: int = 64,
    advance: Callable[[int], None] = lambda n: None,
) -> Iterator[tuple[IntArray, Floats, IntArray | None]]:
    """The candidates of queries and their scores, batch by batch.

    Yields:
        (rows, scores ``(b, C)``, ids ``(b, C)`` of what the index finds; None where all entities are scored).
    """
    if retrieval is None:
        for rows, scores_bN in ranker.rank(queries, batch_size=batch_size, advance=advance):
            yield rows, scores_bN, None
        return
    for rows, reading in ranker.reader.readings(queries, batch_size, advance, text=ranker.reads()):
        ids_bC, scores_bC = shortlist(ranker, reading, retrieval, batch_size)
        yield rows, scores_bC, ids_bC


def scores_of(
    ranker: Scorer, queries: Queries, retrieval: Retrieval | None, batch_size: int
) -> Iterator[tuple[IntArray, Floats]]:
    """Scores of all entities, by shortlist where there is an index.

    Yields:
        (rows, scores ``(b, N)``, in which all that a shortlist lacks is
        :data:`~kgmlm.ranking.constraints.MISSED`).
    """
    if retrieval is None:
        yield from ranker.rank(queries, batch_size=batch_size)
        return
    assert isinstance(ranker, Ranker)
    for rows, scores_bC, ids_bC in lists_of(ranker, queries, retrieval, batch_size):
        assert ids_bC is not None
        scores_bN = np.full((len(rows), len(ranker.context.entities)), MISSED, np.float32)
        at, columns = np.nonzero(ids_bC >= 0)
        scores_bN[at, ids_bC[at, columns]] = scores_bC[at, columns]
        yield rows, ranker.possible.applied(scores_bN, queries[rows])


def added(ranker: Ranker, retriever: Retriever, ids: IntArray) -> Retriever:
    """The index with further entities of the ranker's context; nothing is rebuilt."""
    part = entity_part(searched(ranker).of(ids), np.arange(len(ids)), 0)
    return retriever.with_added(replace(part, ids=ids))


FINGERPRINTED = 4096  # entities by whose vectors an index and a run are compared


def vectors_fingerprint(ranker: Ranker, count: int, looked_at: int) -> str:
    """A digest of the vectors that an index of the first ``count`` entities is made from.

    Args:
        looked_at: how many of these vectors, evenly spaced: with another model, all would differ.
    """
    rows = np.linspace(0, max(0, count - 1), looked_at).round().astype(np.int64)
    return fingerprint(searched(ranker).of(rows))


def open_index(run: Path, ranker: Ranker, count: int) -> Retriever:
    """The saved index of a run; entities that the ranker has beyond the run's own are added to it.

    Args:
        run: its folder.
        count: the number of entities of the run's own graph.

    Raises:
        RunError: when there is none, it is damaged, or it was made of another model or other entities.
    """
    by, retriever = searched(ranker), Retriever.load(run / FOLDER)
    record, part = retriever.record, retriever.part
    fits = not (part.ids >= count).any() and part.width == by.width
    now = vectors_fingerprint(ranker, count, record.get("looked_at", count))
    if (record.get("entities"), record.get("fingerprint")) != (count, now) or not fits:
        raise RunError(
            f"{run / FOLDER} was made of another model or other entities than the run has now; build it "
            f"again with `kgmlm index {quoted(run)}`"
        )
    if ranker.reader.model.gpu is not None:
        retriever = retriever.on_gpu()
    new = np.arange(count, len(ranker.context.entities))
    return added(ranker, retriever, new) if len(new) else retriever
