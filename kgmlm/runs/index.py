"""Build and tune the FAISS index of a run's entity vectors.

The number of cells depends on the number of entities; the number visited depends on recall, measured on
training queries against exact scoring.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from kgmlm.core.arrays import Floats, highest
from kgmlm.core.options import takes
from kgmlm.core.processes import join, shared_by, sharing
from kgmlm.core.progress import quiet_transformers, watcher_of
from kgmlm.core.results import Outcome
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.ranker import Ranker
from kgmlm.ranking.retrieval import (
    FINGERPRINTED,
    FOLDER,
    Part,
    Retrieval,
    Retriever,
    Searched,
    cells_of,
    entity_part,
    require_faiss,
    searched,
    shortlist,
    vectors_fingerprint,
)
from kgmlm.runs.opened import open_folder, tuned_ranker
from kgmlm.runs.options import IndexOptions
from kgmlm.runs.run import Run, path_of, writes_run
from kgmlm.signals.vector import read_together
from kgmlm.text.reader import Reading

SAMPLE = 200  # training queries that recall is measured on
SHORTLIST = 100  # entities scored per query, when recall is measured and in runs whose recipe indexes
_TIED = 1e-4  # scores that close are equal
RECALL = 0.99  # recall@10 against exact scoring from which on no more cells are visited
TIMED = 5  # queries by which exact scoring is timed
BLOCK = 2**14  # entities whose vectors are scored at once
T = TypeVar("T")


class _Try(NamedTuple):
    """Recall and milliseconds per query of a search in some cells, its shortlist scored exactly."""

    visited: int
    recall_at_10: float
    ms_a_query: float


class _Tuning(NamedTuple):
    """Numbers of cells tried, the last of them chosen, and what exact scoring takes."""

    tried: list[_Try]
    exact_ms_a_query: float


def build_index(
    ranker: Ranker,
    graph: KnowledgeGraph,
    *,
    cells: int | None = None,
    seed: int = 0,
    advance: Callable[[int, int], None] = lambda n, total: None,
) -> Retriever:
    """Index the vectors of all entities of a ranker's context.

    Where the work is shared (:mod:`kgmlm.core.processes`), each process reads some of the entities. The
    main process gets the index; the others get only its record.

    Args:
        cells: as of :func:`~kgmlm.ranking.retrieval.cells_of`; None goes by the number of entities.
        advance: called with (entities just added, entities in all).

    Raises:
        ConfigError: when FAISS is missing, or the run has no entity vectors.
    """
    faiss = require_faiss()
    started = time.monotonic()
    count = len(ranker.context.entities)
    by = searched(ranker)
    ids, world = np.arange(count), sharing()
    if ranker.vectors is not None:
        read_together(ranker.vectors)
    if not world.main:
        return Retriever(Part(0, ids[:0], None), world.from_main())
    vectors_ND = by.of(ids) if ranker.vectors is None else ranker.vectors.all
    cells = cells_of(count) if cells is None else cells
    part = entity_part(vectors_ND, ids, cells, seed, _counted(advance, count))
    sample = _queries(graph, seed)
    record: dict[str, Any] = {
        "signal": by.name,
        "cells": cells,
        "visited": max(1, cells),
        "entities": count,
        "seed": seed,
        "faiss": faiss.__version__,
        "looked_at": min(FINGERPRINTED, count),
        "fingerprint": vectors_fingerprint(ranker, count, min(FINGERPRINTED, count)),
    }
    retriever = Retriever(part, record)
    tuning = _tuned(ranker, retriever, sample)
    best = tuning.tried[-1]
    how = f"{best.visited:,} of {cells:,} cells are visited" if cells else "all are searched"
    less = "".join(f", {t.visited:,} only {t.recall_at_10:.3f}" for t in tuning.tried[-2:-1])
    record |= {
        **best._asdict(),
        "exact_ms_a_query": tuning.exact_ms_a_query,
        "tried": [t._asdict() for t in tuning.tried],
        "queries": len(sample),
        "shortlist": min(SHORTLIST, count),
        "seconds": round(time.monotonic() - started, 2),
        "why": f"{how}, with recall@10 {best.recall_at_10:.3f}{less}; {best.ms_a_query:.2f} ms per query, "
        f"{tuning.exact_ms_a_query:.2f} ms by exact scoring",
    }
    return replace(retriever, record=world.from_main(record))


def _counted(advance: Callable[[int, int], None], total: int) -> Callable[[int], None]:
    return lambda n: advance(n, total)


def _queries(graph: KnowledgeGraph, seed: int) -> Queries:
    """Training queries to measure recall on."""
    queries, _ = graph.unique_queries("train")
    rows = np.random.default_rng(seed).permutation(len(queries))
    return queries[rows[: min(SAMPLE, max(1, len(rows) // 2))]]


def _tuned(ranker: Ranker, retriever: Retriever, queries: Queries) -> _Tuning:
    """Visit one cell and twice as many each time, until shortlists have a recall@10 of :data:`RECALL`.

    How many that takes differs by graph, from a 32nd of the cells to half of them.
    """
    by = searched(ranker)
    alone = ranker.by(by.name).unconstrained()
    count = len(ranker.context.entities)
    k, top = min(SHORTLIST, count), min(10, count)
    (name,), every = alone.mixture.signals, alone.pool()
    read = ranker.vectors is not None
    readings = [reading for _, reading in alone.reader.readings(queries, 1, text=read)]
    singly = [_timed(alone.signals[name].score, reading, every) for reading in readings[:TIMED]]
    least_Q1 = _tenth(by, readings, count, top)
    tried: list[_Try] = []
    cells = max(1, retriever.record["cells"])
    for visited in (2**i for i in range(cells.bit_length())):  # cells are a power of two
        retrieval = Retrieval(retriever, k, visited)
        made = [_timed(shortlist, alone, reading, retrieval) for reading in readings]
        found_QK = np.concatenate([scores_BK[:, :top] for (_, scores_BK), _ in made])
        hits = int((found_QK > least_Q1 - _TIED).sum())  # whichever of equals it found
        tried.append(_Try(visited, hits / (top * len(queries)), _median_ms(made)))
        if tried[-1].recall_at_10 >= RECALL:
            break
    return _Tuning(tried, _median_ms(singly))


def _timed(work: Callable[..., T], *given: Any) -> tuple[T, float]:
    """Call a function; its result, and the seconds that it took."""
    started = time.perf_counter()
    return work(*given), time.perf_counter() - started


def _median_ms(timed: list[tuple[T, float]]) -> float:
    return round(1e3 * statistics.median(seconds for _, seconds in timed), 3)


def _tenth(by: Searched, readings: list[Reading], count: int, top: int) -> Floats:
    """The worst of the ``top`` best exact scores ``(Q, 1)``; entity vectors are gone through once."""
    vector_QD = np.concatenate([by.asked(reading) for reading in readings])
    best_QM = vector_QD[:, :0]
    for start in range(0, count, BLOCK):
        block_ND = by.of(np.arange(start, min(start + BLOCK, count)))
        best_QM = np.concatenate([best_QM, vector_QD @ block_ND.T], 1)
        best_QM, _ = highest(best_QM, min(top, best_QM.shape[1]))
    return best_QM[:, -1:]


@writes_run
@takes(IndexOptions)
def index(run: Run | str | Path, options: IndexOptions) -> Outcome:
    """Index a run's entity vectors; ``open_run(..., retrieve=100)`` then scores only what the index finds.

    Several processes (``torchrun``) share the reading of entities.

    Returns:
        The record of the index: entities, bytes, seconds, recall, latency, and ``why`` it was built so.

    Raises:
        ConfigError: when the run has neither entity vectors nor a bi-encoder.
    """
    world = join(options.device)
    folder = open_folder(path_of(run))
    quiet_transformers()
    ranker = tuned_ranker(folder, options.device, rerank=False)
    with watcher_of(options.progress) as watch, shared_by(world):
        world.agree(folder.scores_digest, "weights")
        made = build_index(
            ranker,
            folder.graph,
            advance=lambda n, total: watch("indexing", n, total),
        )
    return Outcome(world.from_main(made.save(folder.path / FOLDER).record if world.main else None))
