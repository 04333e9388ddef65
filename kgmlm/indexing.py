"""Build, tune, save and open the FAISS index of a run.

What is chosen automatically is chosen by how many entities there are and by recall, measured on training
queries against exact scoring, and the record says so.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from kgmlm.arrays import cosines, numpy
from kgmlm.faiss_parts import Part, require_faiss, unwrapped
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import ConfigError, IntArray, Queries, RunError
from kgmlm.pool import Reading
from kgmlm.processes import sharing
from kgmlm.ranker import Ranker
from kgmlm.reading import read_together
from kgmlm.retrieval import FOLDER, Retriever, entity_part, fingerprint
from kgmlm.runs import RunFolder
from kgmlm.shortlisting import Retrieval, shortlist

NO_VECTORS = "the run has no entity vectors to index; train with --set vector.enabled=true"
SAMPLE = 200  # training queries that recall is measured on
SHORTLIST = 100  # reranked, when recall is measured
_TIED = 1e-4  # scores that close are equal
EFFORTS = tuple(2**i for i in range(13))
LOOKED_AT = 4096  # entities by whose vectors an index and a run are compared
TIMED = 5  # queries by which exact scoring is timed
BLOCK = 2**14  # entities whose vectors are scored at once
T = TypeVar("T")


class _Try(NamedTuple):
    """How well a search of some effort is, and how fast for one query, with exact scores of what it found."""

    effort: int
    recall_at_10: float
    ms_a_query: float


class _Tuning(NamedTuple):
    """Efforts tried, the last of them chosen, and what exact scoring takes."""

    tried: list[_Try]
    exact_ms_a_query: float


def build_index(
    ranker: Ranker,
    graph: KnowledgeGraph,
    *,
    factory: str = "auto",
    target: float = 0.99,
    seed: int = 0,
    advance: Callable[[int, int], None] = lambda n, total: None,
) -> Retriever:
    """Index the vectors of all entities of a ranker's context.

    Where the work is shared (:func:`kgmlm.processes.sharing`), each process reads some of the entities. The
    main process gets the index; what the others get has its record alone.

    Args:
        factory: a FAISS factory string, or "auto".
        target: the recall@10 at which search effort is high enough.
        advance: called with (entities just added, entities in all).

    Raises:
        ConfigError: when FAISS is missing or cannot make the factory, or the run has no entity vectors.
    """
    faiss = require_faiss()
    started = time.monotonic()
    count = len(ranker.context.entities)
    if ranker.vectors is None:
        raise ConfigError(NO_VECTORS)
    ids, world = np.arange(count), sharing()
    read_together(ranker.vectors)
    if not world.main:
        return Retriever(Part(0, ids[:0], None), world.from_main())
    part = entity_part(ranker.vectors.array(), ids, factory, seed, _counted(advance, count))
    sample = _queries(graph, seed)
    why = [_why(factory, part)]
    record: dict[str, Any] = {
        "factory": factory,
        "effort": EFFORTS[-1],
        "entities": count,
        "seed": seed,
        "faiss": faiss.__version__,
        "looked_at": min(LOOKED_AT, count),
        "fingerprint": _fingerprint(ranker, count, min(LOOKED_AT, count)),
    }
    retriever = Retriever(part, record)
    tuning = _tuned(ranker, retriever, sample, target)
    best = tuning.tried[-1]
    less = "".join(f", {t.effort} only {t.recall_at_10:.3f}" for t in tuning.tried[-2:-1])
    why.append(f"an effort of {best.effort} has recall@10 {best.recall_at_10:.3f}{less}")
    why.append(f"{best.ms_a_query:.2f} ms per query, {tuning.exact_ms_a_query:.2f} ms by exact scoring")
    record |= {
        **best._asdict(),
        "target": target,
        "exact_ms_a_query": tuning.exact_ms_a_query,
        "tried": [t._asdict() for t in tuning.tried],
        "queries": len(sample),
        "shortlist": min(SHORTLIST, count),
        "seconds": round(time.monotonic() - started, 2),
        "why": "; ".join(why),
    }
    return replace(retriever, record=world.from_main(record))


def save_index(run: RunFolder, retriever: Retriever) -> Retriever:
    """Write the index into the run folder, in place of an older one; its record has its size."""
    (run.path / FOLDER).parent.mkdir(exist_ok=True)
    return retriever.save(run.path / FOLDER)


def open_index(run: RunFolder, ranker: Ranker) -> Retriever:
    """The saved index of a run; entities that the ranker has beyond the run's own are added to it.

    Raises:
        RunError: when there is none, it is damaged, or it was made of another model or other entities.
    """
    if ranker.vectors is None:
        raise RunError(f"{run.path}: {NO_VECTORS}")
    retriever = Retriever.load(run.path / FOLDER)
    own, record, part = len(run.graph.entities), retriever.record, retriever.part
    fits = not (part.ids >= own).any() and part.width == ranker.reader.model.decoder[0].shape[1]
    now = _fingerprint(ranker, own, record.get("looked_at", own))
    if (record.get("entities"), record.get("fingerprint")) != (own, now) or not fits:
        raise RunError(
            f"{run.path / FOLDER} was made of another model or other entities than the run has now; build it "
            f"again with `kgmlm index {run.path}`"
        )
    if ranker.reader.model.device.type == "cuda":
        retriever = retriever.on_gpu()
    new = np.arange(own, len(ranker.context.entities))
    return added(ranker, retriever, new) if len(new) else retriever


def open_retrieval(
    run: RunFolder, ranker: Ranker, k: int | None, effort: int | None = None
) -> Retrieval | None:
    """Shortlists of k entities by the run's index; None without a k.

    Raises:
        ConfigError: when an effort is given without a k.
        RunError: as :func:`open_index` says.
    """
    if k is None:
        if effort is not None:
            raise ConfigError("an effort goes with how many entities to retrieve (--retrieve)")
        return None
    return Retrieval(open_index(run, ranker), k, effort)


def added(ranker: Ranker, retriever: Retriever, ids: IntArray) -> Retriever:
    """The index with further entities of the ranker's context; nothing is rebuilt."""
    assert ranker.vectors is not None
    part = entity_part(numpy(ranker.vectors.of(ids)), np.arange(len(ids)), "Flat")
    return retriever.with_added(replace(part, ids=ids))


def _counted(advance: Callable[[int, int], None], total: int) -> Callable[[int], None]:
    return lambda n: advance(n, total)


def _queries(graph: KnowledgeGraph, seed: int) -> Queries:
    """Training queries to measure recall on."""
    queries, _ = graph.unique_queries("train")
    rows = np.random.default_rng(seed).permutation(len(queries))
    return queries[rows[: min(SAMPLE, max(1, len(rows) // 2))]]


def _why(factory: str, part: Part) -> str:
    faiss = require_faiss()
    flat = part.index is None or isinstance(faiss.downcast_index(part.index), faiss.IndexFlat)
    asked = "chosen automatically" if factory == "auto" else f"asked for: {factory}"
    return f"{asked}; {len(part.ids):,} entities are searched {'exhaustively' if flat else 'approximately'}"


def _fingerprint(ranker: Ranker, count: int, looked_at: int) -> str:
    """Of what an index of the first ``count`` entities is made from.

    Args:
        looked_at: so many of these entities' vectors, evenly spaced: of another model all are different.
    """
    assert ranker.vectors is not None
    rows = np.linspace(0, max(0, count - 1), looked_at).round().astype(np.int64)
    return fingerprint(numpy(ranker.vectors.of(rows)))


@torch.inference_mode()
def _tuned(ranker: Ranker, retriever: Retriever, queries: Queries, target: float) -> _Tuning:
    """Try efforts, each twice the one before, until reranked shortlists have the target's recall@10."""
    alone = ranker.by("vector").unconstrained()
    count = len(ranker.context.entities)
    k, top = min(SHORTLIST, count), min(10, count)
    (name,), every = alone.mixture.signals, alone.pool()
    readings = [reading for _, reading in alone.reader.readings(queries, 1)]
    singly = [_timed(alone.says, name, reading, every) for reading in readings[:TIMED]]
    least_Q1 = _tenth(alone, readings, top)
    tried: list[_Try] = []
    for effort in EFFORTS:
        retrieval = Retrieval(retriever, k, effort)
        made = [_timed(shortlist, alone, reading, retrieval) for reading in readings]
        found_QK = torch.cat([scores_BK[:, :top] for (_, scores_BK), _ in made])
        hits = int((found_QK > least_Q1 - _TIED).sum())  # whichever of equals it found
        tried.append(_Try(effort, hits / (top * len(queries)), _median_ms(made)))
        if tried[-1].recall_at_10 >= target or _exhausted(retriever, effort):
            break
    return _Tuning(tried, _median_ms(singly))


def _timed(work: Callable[..., T], *given: Any) -> tuple[T, float]:
    """What something makes, and in how many seconds."""
    started = time.perf_counter()
    return work(*given), time.perf_counter() - started


def _median_ms(timed: list[tuple[T, float]]) -> float:
    return round(1e3 * statistics.median(seconds for _, seconds in timed), 3)


def _tenth(alone: Ranker, readings: list[Reading], top: int) -> torch.Tensor:
    """The worst of the ``top`` best exact scores ``(Q, 1)``; entity vectors are gone through once."""
    assert alone.vectors is not None
    vectors = [reading.span.vector_BD for reading in readings]
    vector_QD = torch.cat([vector_BD for vector_BD in vectors if vector_BD is not None])
    best_QM = vector_QD[:, :0]
    count = len(alone.context.entities)
    for start in range(0, count, BLOCK):
        block_ND = alone.vectors.of(np.arange(start, min(start + BLOCK, count)))
        best_QM = torch.cat([best_QM, cosines(vector_QD, block_ND)], 1)
        best_QM = best_QM.topk(min(top, best_QM.shape[1])).values
    return best_QM[:, -1:]


def _exhausted(retriever: Retriever, effort: int) -> bool:
    """Whether more effort would find no more."""
    if retriever.part.index is None:
        return True
    index = unwrapped(retriever.part.index)
    return not (isinstance(index, require_faiss().IndexHNSW) or effort < getattr(index, "nlist", 0))
