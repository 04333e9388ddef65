"""One FAISS index over the vectors of some entities: made, searched, joined and read.

Knows neither what the vectors are nor what is made of what it finds. FAISS is optional: it is imported where
an index is used.

Shapes: B queries, w width of a vector.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kgmlm.kg import BoolArray, ConfigError, IntArray

Floats = npt.NDArray[np.float32]
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
    """What FAISS complains of, without where in its source."""
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


def unwrapped(index: Any) -> Any:
    """The index behind a transform, as its own class."""
    faiss = require_faiss()
    index = faiss.downcast_index(index)
    return unwrapped(index.index) if isinstance(index, faiss.IndexPreTransform) else index


def search_parameters(index: Any, effort: int) -> Any:
    """Settings of one search, which leave the index as it is: cells to visit, or the width of a graph search.

    An index that searches exhaustively has none.
    """
    faiss = require_faiss()
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        inner = search_parameters(index.index, effort)
        return None if inner is None else faiss.SearchParametersPreTransform(index_params=inner)
    if isinstance(index, faiss.IndexIVFPQ):
        return faiss.IVFPQSearchParameters(nprobe=min(effort, index.nlist))
    if isinstance(index, (faiss.IndexIVF, getattr(faiss, "GpuIndexIVF", faiss.IndexIVF))):
        return faiss.SearchParametersIVF(nprobe=min(effort, index.nlist))
    if isinstance(index, faiss.IndexHNSW):
        return faiss.SearchParametersHNSW(efSearch=max(effort, 1))
    return None


def fitting_factory(factory: str, count: int) -> str:
    """A factory string as it can be made of few vectors: cells and codes need points."""
    pieces = []
    for piece in factory.split(","):
        if piece.startswith("IVF") and piece[3:].isdigit():
            cells = min(int(piece[3:]), max(1, count // 39))
            piece = f"IVF{cells}"
        pieces.append(piece)
    quantized = any(p.startswith(("PQ", "OPQ")) for p in pieces)
    return "Flat" if count < 256 or (quantized and count < 10_000) else ",".join(pieces)


def build_part(
    ids: IntArray,
    width: int,
    make: Callable[[IntArray], Floats],
    factory: str,
    seed: int,
    advance: Callable[[int], None],
) -> Part:
    """A FAISS index of some entities, whose vectors are made a chunk at a time.

    Args:
        make: rows of ``ids`` to vectors.

    Raises:
        ConfigError: when FAISS cannot make the factory string for this width.
    """
    faiss = require_faiss()
    if not len(ids):
        return Part(width, ids, None)
    wanted = fitting_factory(factory, len(ids))
    try:
        faiss.index_factory(width, factory)  # a mistake in it must not hide behind few entities
        index = faiss.index_factory(width, wanted, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise ConfigError(f"FAISS cannot make '{factory}' of {width} dimensions: {cause(error)}") from None
    if not index.is_trained:
        cells = getattr(unwrapped(index), "nlist", 0)
        size = min(len(ids), max(_POINTS * cells, 2**14), _TRAINING // width)
        rng = np.random.default_rng(seed)
        try:
            index.train(make(np.sort(rng.choice(len(ids), size, replace=False))))
        except RuntimeError as error:
            raise ConfigError(f"FAISS cannot train '{wanted}' on {size:,} vectors: {cause(error)}") from None
    step = max(1, _CHUNK // (4 * width))
    for start in range(0, len(ids), step):
        rows = np.arange(start, min(start + step, len(ids)))
        index.add(make(rows))
        advance(len(rows))
    return Part(width, ids, index)


def search_part(
    part: Part, query_Bw: Floats, k: int, effort: int, hidden: frozenset[int]
) -> tuple[IntArray, Floats]:
    """Ids and scores of one part; what FAISS did not find, or is hidden, is -1 and -inf."""
    wanted = min(len(part.ids), k + len(hidden))
    scores, rows = part.index.search(
        np.ascontiguousarray(query_Bw), wanted, params=search_parameters(part.index, effort)
    )
    ids = np.where(rows >= 0, part.ids[np.maximum(rows, 0)], -1)
    if hidden:
        ids[np.isin(ids, list(hidden))] = -1
    return ids, np.where(ids >= 0, scores, -np.inf).astype(np.float32)


def flat_part(width: int, pieces: Sequence[tuple[Part, BoolArray]]) -> Part:
    """One flat part of what is kept of others."""
    faiss = require_faiss()
    ids = np.concatenate([np.zeros(0, np.int64), *(part.ids[keep] for part, keep in pieces)])
    if not len(ids):
        return Part(width, ids, None)
    index = faiss.IndexFlatIP(width)
    for part, keep in pieces:
        index.add(part.index.reconstruct_n(0, len(part.ids))[keep])
    return Part(width, ids, index)


def read_index(faiss: Any, path: Path) -> Any:
    """Memory-mapped where FAISS can do that for the kind of index, else read."""
    for flag in (faiss.IO_FLAG_MMAP_IFC, faiss.IO_FLAG_MMAP):
        try:
            return faiss.read_index(str(path), flag)
        except RuntimeError:
            continue
    return faiss.read_index(str(path))
