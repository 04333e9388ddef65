"""Second stages chosen on validation: how many of the best candidates each scores, and how much that counts.

Each half of the queries is measured by what the other half chose. How much a stage counts is fitted by the
likelihood of validation's answers (:mod:`kgmlm.training.weights`), how many it scores is chosen by MRR.

Shapes: d distinct queries; D all distinct queries, S those of this process; K candidates; B queries with an
answer each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from kgmlm.core.arrays import BoolArray, FloatArray, Floats, IntArray
from kgmlm.core.config import Protocol
from kgmlm.core.processes import sharing
from kgmlm.core.progress import Advance
from kgmlm.evaluation.task import RankingTask
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.ranker import Mixture, Ranker, StageWeight
from kgmlm.ranking.second_stage import ReverseScoring, best_of
from kgmlm.runs.tuned import REVERSE, SECOND
from kgmlm.training.candidate_lists import CandidateLists, ReadCandidates, read_lists
from kgmlm.training.states import helpful_weight, measured_weight
from kgmlm.training.weights import silent, validation_task, weigh

SIZES_TRIED = (5, 10, 20, 50, 100)  # how many of the best, as many as there are settings for
WEIGHTS_TRIED = tuple(2 ** (i / 2) for i in range(-6, 5))  # 1: as much as the first stage


def choose_reverse(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Advance = silent,
    candidates: int | None = None,
    batch_size: int = 64,
) -> tuple[StageWeight, dict[str, float]]:
    """Choose how many of the best are scored in reverse and how much that counts; none is a choice.

    The weight is the one, of those tried, that makes the answers most likely; the number is chosen by MRR.
    Where what each half of the queries chose does not help the other half, nothing is scored in reverse.

    Args:
        candidates: how many are tried at most; None is as many as the settings of the run say.

    Raises:
        ConfigError: when the protocol asks or filters test triples.

    Returns:
        The choice, and ``mrr``, ``hits_at_1`` and ``hits_at_10`` with it (each half of the queries by what
        was chosen on the other, weights of signals included), ``k`` and ``weight``, ``mrr_first`` without
        the stage, and ``held``, the share of answers that the most candidates hold.
    """
    first, task = ranker.unreranked(), validation_task(graph, protocol)
    most = min(candidates or ranker.reader.settings.reverse.candidates, len(graph.entities))
    back_DK = _all_reverse_scores(first, task, most, partial(advance, "reverse scoring"), batch_size)
    progress = partial(advance, "validating")

    def read(queries: Queries, rows: IntArray, ids_dK: IntArray) -> Floats:
        return back_DK[rows, :, None]

    return _choose_use(first, task, progress, most, WEIGHTS_TRIED, read, batch_size)


def _all_reverse_scores(
    ranker: Ranker, task: RankingTask, most: int, advance: Callable[[int, int], None], batch_size: int
) -> Floats:
    """Reverse scores of the best candidates ``(D, K)`` of all distinct queries at once, so that those
    that share a candidate ask it once. Of several processes each has its own share of the queries.
    """
    share = task.share(sharing())
    queries = task.distinct[share]
    ids_SK = np.full((len(share), most), -1)
    for rows, first in ranker.first_stage(queries, batch_size=batch_size):
        best, ids_dK = best_of(ranker.context, first, most)
        ids_SK[rows] = best.to_read(ids_dK)
    back_DK = np.zeros((len(task.groups), most), np.float32)
    back_DK[share] = ReverseScoring(StageWeight(most, 1.0)).score(
        ranker, queries, ids_SK, batch_size, advance
    )
    return back_DK


def _choose_use(
    ranker: Ranker,
    task: RankingTask,
    advance: Callable[[int, int], None],
    most: int,
    weights: Sequence[float],
    read: ReadCandidates,
    batch_size: int,
) -> tuple[StageWeight, dict[str, float]]:
    """Choose how a second stage is used.

    Args:
        most: candidates that are tried at most.
        read: reads one number of each candidate.
    """
    lists, asks = read_lists(ranker, task, most, read, 1, advance, batch_size, sharing())
    read_DK, most = lists.read_DKF[:, :, 0], lists.read_DKF.shape[1]
    sizes = sorted({k for k in SIZES_TRIED if k < most} | {most})
    chosen = {k: lists.first(k) for k in sizes}
    never = StageWeight(0, 0.0)

    states_B = lists.states_of(asks)

    def reciprocal(by: CandidateLists, stage_weight: StageWeight) -> FloatArray:
        if not stage_weight.k:
            return by.reciprocal(asks, by.scores_DK)
        return by.reciprocal(
            asks, by.with_weight(stage_weight, read_DK, chosen[stage_weight.k]), chosen[stage_weight.k]
        )

    def choose(by: CandidateLists, of_B: BoolArray) -> StageWeight:
        fits = by.ratio(asks, read_DK, of_B)
        near = min(weights, key=lambda weight: abs(math.log(weight / fits)))
        stage_weights = [never, *(measured_weight(StageWeight(k, near), states_B) for k in sizes)]
        return max(stage_weights, key=lambda stage_weight: float(reciprocal(by, stage_weight)[of_B].mean()))

    first_B, crossed_B = asks.reciprocal_B.copy(), asks.reciprocal_B.copy()
    halves = asks.halves()
    if halves is None:
        return never, asks.figures(first_B, crossed_B, never)
    for of_B in halves:
        by_half = lists.weighed(lists.weights_of(asks, of_B))
        first_B[~of_B] = reciprocal(by_half, never)[~of_B]
        crossed_B[~of_B] = reciprocal(by_half, choose(by_half, of_B))[~of_B]
    stage_weight = choose(lists, np.ones(len(first_B), np.bool_))
    stage_weight = helpful_weight(stage_weight, crossed_B - first_B, states_B) if stage_weight.k else never
    return stage_weight, asks.figures(
        first_B, asks.helped(first_B, crossed_B, states_B, stage_weight), stage_weight
    )


class Tuned(NamedTuple):
    """All that validation chose for a ranker.

    Attributes:
        stage_weights: of reverse scoring, where that was to be chosen.
        figures: of each stage on validation, by its name.
    """

    mixture: Mixture
    stage_weights: dict[str, StageWeight]
    figures: dict[str, dict[str, float]]


def tune(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Advance = silent,
    *,
    begin: str = "",
    second: Protocol | None = None,
    candidates: int | None = None,
    batch_size: int = 64,
) -> Tuned:
    """Choose all weights of a ranker: those of its signals at once, then the weights of its second stages.

    Each stage is chosen after those before it. Trees are not chosen here (:mod:`kgmlm.training.trees`).

    Args:
        protocol: on which triples of the run's own graph.
        begin: the second stage to begin with; the weights of the signals and those of the stages before it
            stay.
        second: the triples for choosing second stages, at a query per candidate; None takes the same ones.
        candidates: as of :func:`choose_reverse`.

    Raises:
        ConfigError: when a protocol asks or filters test triples.
    """
    mixture, figures = ranker.mixture, dict[str, dict[str, float]]()
    if not begin:
        mixture, figures = weigh(ranker, graph, protocol, advance, batch_size)
    first, few = ranker.replace(mixture=mixture, stages={}), second or protocol
    choices = {REVERSE: choose_reverse}
    stage_weights: dict[str, StageWeight] = {}
    for name in [name for name in SECOND if name in ranker.stages]:
        stage = ranker.stages[name]
        stage_weights[name] = stage.stage_weight
        if not begin or SECOND.index(name) >= SECOND.index(begin):
            stage_weights[name], figures[name] = choices[name](
                first.with_stage(stage), graph, few, advance, candidates, batch_size
            )
        first = first.with_stage(stage.with_weight(stage_weights[name]))
    return Tuned(mixture, stage_weights, figures)
