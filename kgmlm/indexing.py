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
from kgmlm.retrieval import (
    FLAT_BELOW,
    KINDS,
    Kind,
    Reduction,
    Retriever,
    entity_parts,
    fingerprint,
    likelihood_parts,
)
from kgmlm.runs import RunFolder
from kgmlm.shortlisting import Retrieval, shortlist

STATES = 512  # training queries that a reduction is fitted on
SAMPLE = 200  # other training queries that recall is measured on
SHORTLIST = 100  # reranked, when recall is measured
DIMENSIONS = 64  # a token, where names are held in fewer dimensions than the decoder's
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


def check_kind(kind: str) -> Kind:
    """A kind of index by name.

    Raises:
        ConfigError: when there is none of that name.
    """
    for known in KINDS:
        if kind == known:
            return known
    raise ConfigError(f"an index is of kind {' or '.join(KINDS)}, not '{kind}'")


def build_index(
    ranker: Ranker,
    graph: KnowledgeGraph,
    kind: Kind,
    *,
    factory: str = "auto",
    dimensions: int | None = None,
    target: float = 0.99,
    seed: int = 0,
    advance: Callable[[int, int], None] = lambda n, total: None,
) -> Retriever:
    """Index all entities of a ranker's context.

    Where the work is shared (:func:`kgmlm.processes.sharing`), each process reads some of the entities, and
    makes some parts of a likelihood index. The main process gets the index; what the others get has its
    record alone.

    Args:
        factory: a FAISS factory string, or "auto".
        dimensions: a token, of a likelihood index; None chooses, 0 is all: then a flat search is exact.
        target: the recall@10 at which search effort is high enough.
        advance: called with (entities just added, entities in all).

    Raises:
        ConfigError: when FAISS is missing or cannot make the factory, or the run has no entity vectors.
    """
    faiss = require_faiss()
    started = time.monotonic()
    count = len(ranker.context.entities)
    states, sample = _queries(graph, seed)
    ids = np.arange(count)
    done = _counted(advance, count)
    reduction, world = None, sharing()
    if kind == "entity":
        if ranker.vectors is None:
            raise ConfigError("the run has no entity vectors; train with --set vector.enabled=true")
        read_together(ranker.vectors)
        if not world.main:
            return Retriever(kind, [], None, world.from_main())
        parts = entity_parts(ranker.vectors.array(), ids, factory, seed, done)
        why = [_why(factory, parts)]
    else:
        if dimensions is None:
            dimensions = 0 if factory in ("auto", "Flat") and count < FLAT_BELOW else DIMENSIONS
        reduction = world.from_main(_reduction(ranker, states, dimensions) if world.main else None)
        parts = _likelihood_parts(ranker, ids, reduction, factory, seed, done)
        if not world.main:
            return Retriever(kind, [], None, world.from_main())
        kept = f"{dimensions} dimensions a token keep {reduction.kept:.1%} of the logits' energy"
        why = [_why(factory, parts), kept if dimensions else "all dimensions: a flat search is exact"]
    record: dict[str, Any] = {
        "factory": factory,
        "dimensions": dimensions,
        "effort": EFFORTS[-1],
        "entities": count,
        "seed": seed,
        "faiss": faiss.__version__,
        "looked_at": min(LOOKED_AT, count),
        "fingerprint": _fingerprint(ranker, kind, count, min(LOOKED_AT, count)),
    }
    retriever = Retriever(kind, parts, reduction, record)
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
    """Write the index into the run folder, in place of an older one of its kind; its record has its size."""
    (run.path / "index").mkdir(exist_ok=True)
    return retriever.save(run.path / "index" / retriever.kind)


def open_index(run: RunFolder, ranker: Ranker, kind: Kind) -> Retriever:
    """The saved index of a run; entities that the ranker has beyond the run's own are added to it.

    Raises:
        RunError: when there is none, it is damaged, or it was made of another model or other entities.
    """
    retriever = Retriever.load(run.path / "index" / kind)
    own = len(run.graph.entities)
    record = retriever.record
    made_of = retriever.kind, record.get("entities"), record.get("fingerprint")
    now = _fingerprint(ranker, kind, own, record.get("looked_at", own))
    if made_of != (kind, own, now) or not _fits(retriever, ranker, own):
        raise RunError(
            f"{run.path / 'index' / kind} was made of another model or other entities than the run has now; "
            f"build it again with `kgmlm index {run.path} --kind {kind}`"
        )
    if kind == "likelihood" and retriever.reduction is None:
        retriever = replace(retriever, reduction=Reduction.none(*ranker.reader.model.decoder))
    if ranker.reader.model.device.type == "cuda":
        retriever = retriever.on_gpu()
    new = np.arange(own, len(ranker.context.entities))
    return added(ranker, retriever, new) if len(new) else retriever


def _fits(retriever: Retriever, ranker: Ranker, entities: int) -> bool:
    """Whether an index finds entities that there are, by queries of the widths that it will be asked."""
    if any((part.ids >= entities).any() for part in retriever.parts):
        return False
    count, width = ranker.reader.model.decoder[0].shape
    widths = [part.width for part in retriever.parts]
    if retriever.kind == "entity":
        return widths == [width]
    dimensions = width + 1
    if (reduction := retriever.reduction) is not None:
        dimensions = reduction.state_Dd.shape[1]
        if reduction.state_Dd.shape[0] != width + 1 or reduction.tokens_Vd.shape != (count, dimensions):
            return False
    return widths == [dimensions * k for k in range(1, ranker.reader.vocabulary.span_length + 1)]


def default_kind(run: RunFolder) -> Kind:
    """The kind of index that a run has; an entity index where it has both.

    Raises:
        RunError: when it has none.
    """
    for kind in reversed(KINDS):
        if (run.path / "index" / kind).is_dir():
            return kind
    raise RunError(f"{run.path} has no index; `kgmlm index {run.path}` makes one")


def open_retrieval(
    run: RunFolder, ranker: Ranker, k: int | None, kind: str | None = None, effort: int | None = None
) -> Retrieval | None:
    """Shortlists of k entities by the run's index of some kind (None: the one it has); None without a k.

    Raises:
        ConfigError: when a kind or an effort is given without a k, or there is no such kind.
        RunError: as :func:`open_index` says.
    """
    if k is None:
        if kind is not None or effort is not None:
            raise ConfigError("an index and its effort go with how many entities to retrieve (--retrieve)")
        return None
    chosen = default_kind(run) if kind is None else check_kind(kind)
    return Retrieval(open_index(run, ranker, chosen), k, effort)


def added(ranker: Ranker, retriever: Retriever, ids: IntArray) -> Retriever:
    """The index with further entities of the ranker's context; nothing is rebuilt."""
    if retriever.kind == "entity":
        assert ranker.vectors is not None
        (part,) = entity_parts(numpy(ranker.vectors.of(ids)), np.arange(len(ids)), "Flat")
        return retriever.with_parts([replace(part, ids=ids)])
    assert retriever.reduction is not None
    return retriever.with_parts(
        _likelihood_parts(ranker, ids, retriever.reduction, "Flat", 0, lambda n: None)
    )


def _counted(advance: Callable[[int, int], None], total: int) -> Callable[[int], None]:
    return lambda n: advance(n, total)


def _queries(graph: KnowledgeGraph, seed: int) -> tuple[Queries, Queries]:
    """Training queries to fit a reduction on, and others to measure recall on."""
    queries, _ = graph.unique_queries("train")
    rows = np.random.default_rng(seed).permutation(len(queries))
    share = min(SAMPLE, max(1, len(rows) // 2))
    return queries[rows[share : share + STATES]], queries[rows[:share]]


def _reduction(ranker: Ranker, queries: Queries, dimensions: int) -> Reduction:
    weight_VD, bias_V = ranker.reader.model.decoder
    if not dimensions or dimensions > weight_VD.shape[1]:
        return Reduction.none(weight_VD, bias_V)
    readings = ranker.reader.readings(queries)
    states = torch.cat([reading.span.hidden_BLD.flatten(0, 1).cpu() for _, reading in readings])
    counts = np.bincount(ranker.reader.names.token_ids, minlength=len(weight_VD))
    return Reduction.of(weight_VD, bias_V, states, counts, dimensions)


def _likelihood_parts(
    ranker: Ranker,
    ids: IntArray,
    reduction: Reduction,
    factory: str,
    seed: int,
    advance: Callable[[int], None],
) -> list[Part]:
    """Parts by length of name, each made by one of the processes that share the work, and known to all."""
    reader, world = ranker.reader, sharing()
    length, normalization = reader.vocabulary.span_length, reader.settings.scoring.normalization
    lengths = reader.names.lengths_N[ids]
    share = world.share(np.bincount(lengths, minlength=length + 1)[1:] * np.arange(1, length + 1))
    own = ids[np.isin(lengths, share + 1)]  # the other parts stay empty
    made = likelihood_parts(reader.names, own, reduction, length, normalization, factory, seed, advance)
    of_all = [made] if world.size == 1 else world.gathered([made[i] for i in share])
    advance(len(ids) - len(own))
    return sorted((part for of_one in of_all for part in of_one), key=lambda part: part.width)


def _why(factory: str, parts: list[Part]) -> str:
    faiss = require_faiss()
    made = [p for p in parts if p.index is not None]
    exhaustive = sum(isinstance(faiss.downcast_index(p.index), faiss.IndexFlat) for p in made)
    asked = "chosen automatically" if factory == "auto" else f"asked for: {factory}"
    return (
        f"{asked}; {exhaustive} of {len(made)} parts are searched exhaustively, "
        f"the largest has {max((len(p.ids) for p in made), default=0):,} entities"
    )


def _fingerprint(ranker: Ranker, kind: Kind, count: int, looked_at: int) -> str:
    """Of what an index of the first ``count`` entities is made from.

    Args:
        looked_at: so many of these entities' vectors, evenly spaced: of another model all are different.
    """
    if kind == "entity":
        assert ranker.vectors is not None
        rows = np.linspace(0, max(0, count - 1), looked_at).round().astype(np.int64)
        return fingerprint(numpy(ranker.vectors.of(rows)))
    weight_VD, bias_V = (x.detach().cpu().numpy() for x in ranker.reader.model.decoder)
    names = ranker.reader.names
    offsets = names.offsets[: count + 1]
    return fingerprint(weight_VD, bias_V, names.token_ids[: offsets[-1]], offsets)


@torch.inference_mode()
def _tuned(ranker: Ranker, retriever: Retriever, queries: Queries, target: float) -> _Tuning:
    """Try efforts, each twice the one before, until reranked shortlists have the target's recall@10."""
    alone = ranker.by("vector" if retriever.kind == "entity" else "likelihood").unconstrained()
    count = len(ranker.context.entities)
    k, top = min(SHORTLIST, count), min(10, count)
    (name,), every = alone.mixture.signals, alone.pool()
    readings = [reading for _, reading in alone.reader.readings(queries, 1)]
    singly = [_timed(alone.says, name, reading, every) for reading in readings[:TIMED]]
    least_Q1 = _tenth(alone, retriever.kind, readings, top)
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


def _tenth(alone: Ranker, kind: Kind, readings: list[Reading], top: int) -> torch.Tensor:
    """The worst of the ``top`` best exact scores ``(Q, 1)``; entity vectors are gone through once."""
    if kind == "likelihood":
        scored = (alone.likelihood.score(reading, alone.pool()) for reading in readings)
        return torch.cat([scores_BN.topk(top).values[:, -1:] for scores_BN in scored])
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
    faiss = require_faiss()
    for part in retriever.parts:
        if part.index is None:
            continue
        index = unwrapped(part.index)
        if isinstance(index, faiss.IndexHNSW) or effort < getattr(index, "nlist", 0):
            return False
    return True
