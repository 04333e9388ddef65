"""Second stages chosen on validation: how many of the best candidates each scores, and how much that counts.

Each half of the triples is measured by what the other half chose. How much a stage counts is fitted by the
likelihood of validation's answers (:mod:`kgmlm.training.weights`), how many it scores is chosen by MRR.

Shapes: d distinct queries, b queries with an answer each; D all distinct queries, S those of this process; K
candidates, C of them and the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from kgmlm.core.arrays import BoolArray, IntArray
from kgmlm.core.config import Protocol
from kgmlm.core.errors import ConfigError
from kgmlm.core.processes import sharing
from kgmlm.core.progress import Advance
from kgmlm.evaluation.task import RankingTask
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.ranker import Mixture, Ranker, SignalScores, Use
from kgmlm.ranking.second_stage import Best, Conditional, CrossEncoding, Floats, ReverseScoring, best_of
from kgmlm.runs.record import CONDITIONAL, RERANKING, REVERSE, SECOND
from kgmlm.signals.base import REJECTED
from kgmlm.training.weights import (
    ValidationSample,
    figures_of,
    halved,
    ranked_by,
    silent,
    validation_task,
    weigh,
)

SIZES_TRIED = (5, 10, 20, 50, 100)  # how many of the best, as many as there are settings for
WEIGHTS_TRIED = tuple(2 ** (i / 2) for i in range(-6, 5))  # 1: as much as the first stage
STAGES = ("first", "second")


def choose_reranking(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Advance = silent,
    candidates: int | None = None,
    batch_size: int = 64,
) -> tuple[Use, dict[str, float]]:
    """Choose how many of the best are read again and how much that counts; not reranking is a choice.

    Of the weights that are tried it is the one by which the answers are most likely; how many is chosen by
    MRR. Where what each half of the triples chose is no better for the other half, nothing is reranked.

    Args:
        ranker: where it scores in reverse, that comes first.
        candidates: how many are tried at most; None is as many as the reranker's settings say.

    Raises:
        ConfigError: when the protocol asks or filters test triples, or there is no reranker.

    Returns:
        The choice, and ``mrr``, ``hits_at_1`` and ``hits_at_10`` with it (each half of the triples by what
        was chosen on the other; the weights of the signals stay), ``k`` and ``weight``, ``mrr_first`` without
        reranking, and ``held``, the share of answers that the most candidates hold.
    """
    stage = ranker.stages.get(CrossEncoding.name)
    if not isinstance(stage, CrossEncoding):
        raise ConfigError("the ranker has no reranker to weigh")
    most = candidates or stage.reranker.reranking.candidates
    task = validation_task(graph, protocol)
    return _choose_reading(ranker, task, stage, partial(advance, "reranking"), most, batch_size)


def choose_conditional(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Advance = silent,
    candidates: int | None = None,
    batch_size: int = 64,
) -> tuple[Use, dict[str, float]]:
    """Choose how many of the best are read token by token and how much that counts, as
    :func:`choose_reranking` does.

    Args:
        candidates: None is as many as the settings of the run say.
    """
    most = candidates or ranker.reader.settings.reranking.candidates
    task, stage = validation_task(graph, protocol), Conditional(Use(0, 0.0))
    return _choose_reading(ranker, task, stage, partial(advance, "reading names"), most, batch_size)


def _choose_reading(
    ranker: Ranker,
    task: RankingTask,
    stage: CrossEncoding | Conditional,
    advance: Callable[[int, int], None],
    most: int,
    batch_size: int,
) -> tuple[Use, dict[str, float]]:
    """Choose the use of a stage that reads candidates, after the stages that come before it."""
    confident = ranker.reader.settings.training.temperature  # both as in training
    weights = [confident * x for x in WEIGHTS_TRIED]

    def read(queries: Queries, rows: IntArray, ids_dK: IntArray) -> Floats:
        return stage.score(ranker, queries, ids_dK, batch_size)

    first = ranker.without_stage(stage.name)
    return _choose_use(first, task, advance, most, weights, read, batch_size)


def choose_reverse(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Advance = silent,
    candidates: int | None = None,
    batch_size: int = 64,
) -> tuple[Use, dict[str, float]]:
    """Choose how many of the best are scored in reverse and how much that counts.

    Args:
        candidates: None is as many as the settings of the run say.
    """
    first, task = ranker.unreranked(), validation_task(graph, protocol)
    most = min(candidates or ranker.reader.settings.reranking.candidates, len(graph.entities))
    back_DK = _all_reverse_scores(first, task, most, partial(advance, "reverse scoring"), batch_size)
    told = partial(advance, "validating")

    def read(queries: Queries, rows: IntArray, ids_dK: IntArray) -> Floats:
        return back_DK[rows]

    return _choose_use(first, task, told, most, WEIGHTS_TRIED, read, batch_size)


def _all_reverse_scores(
    ranker: Ranker, task: RankingTask, most: int, advance: Callable[[int, int], None], batch_size: int
) -> Floats:
    """Reverse scores of the best candidates ``(D, K)`` of all distinct queries at once, so that those
    that share a candidate ask it once. Of several processes each has its own share of the queries.
    """
    share = task.share(sharing())
    queries = task.distinct[share]
    ids_SK = np.full((len(share), most), -1)
    for rows, _, said in ranker.signal_scores(queries, batch_size=batch_size):
        asked = queries[rows]
        best, ids_dK = best_of(ranker.context, asked, ranker.combined(asked, said), most, ranker.pool())
        ids_SK[rows] = best.to_read(ids_dK)
    back_DK = np.zeros((len(task.groups), most), np.float32)
    back_DK[share] = ReverseScoring(Use(most, 1.0)).score(ranker, queries, ids_SK, batch_size, advance)
    return back_DK


def _choose_use(
    ranker: Ranker,
    task: RankingTask,
    advance: Callable[[int, int], None],
    most: int,
    weights: Sequence[float],
    read: Callable[[Queries, IntArray, IntArray], Floats],
    batch_size: int,
) -> tuple[Use, dict[str, float]]:
    """Choose how a second stage is used.

    Args:
        most: candidates that are tried at most.
        read: what it says of candidates ``(d, K)`` of some queries, and which of all these are.
    """
    most = min(most, len(task.member_N))
    sizes = sorted({k for k in SIZES_TRIED if k < most} | {most})
    tried = [Use(0, 0.0), *(Use(k, weight) for k in sizes for weight in weights)]
    found: list[_Both] = []

    def score(queries: Queries, rows: IntArray, said: SignalScores) -> Iterator[torch.Tensor]:
        scores_dN = ranker.reranked(queries, ranker.combined(queries, said), batch_size=batch_size)
        best, ids_dK = best_of(ranker.context, queries, scores_dN, most, ranker.pool())
        read_dK = read(queries, rows, best.to_read(ids_dK))
        found.extend(_parts(task, rows, best, ids_dK, read_dK))
        yield scores_dN
        for use in tried[1:]:
            yield best.first(use.k).reranked(scores_dN, read_dK[:, : use.k], use.weight)

    ranks = ranked_by(ranker, task, len(tried), score, advance, batch_size)
    parts = [part for of_one in sharing().gathered(found) for part in of_one]
    sample = ValidationSample.joined(
        STAGES, task.queries, [p[:3] for p in parts], len(ranker.context.relations)
    )
    held = sum(int(part.held_b.sum()) for part in parts) / len(task.queries)
    reciprocal_WB = np.stack([1 / r.of_type("realistic") for r in ranks])

    def choose(of_B: BoolArray) -> int:
        fitted = sample.fitted(STAGES, of_B, by_relation=False).averages
        fits = fitted["second"] / fitted["first"]
        near = min(weights, key=lambda weight: abs(math.log(weight / fits)))
        mean_W = reciprocal_WB[:, of_B].mean(1)
        return max(
            (w for w, use in enumerate(tried) if use.weight in (0, near)), key=lambda w: float(mean_W[w])
        )

    mean_W, crossed_B = reciprocal_WB.mean(1), halved(reciprocal_WB, choose)
    use = tried[choose(np.ones(len(task.queries), np.bool_))]
    if crossed_B.mean() <= mean_W[0]:
        use, crossed_B = tried[0], reciprocal_WB[0]
    return use, {
        **figures_of(crossed_B),
        "k": use.k,
        "weight": use.weight,
        "mrr_first": float(mean_W[0]),
        "held": held,
    }


class _Both(NamedTuple):
    """Scores of both stages for the candidates ``(b, 1 + K, 2)`` of some queries, and for how many entities
    each stands, as :class:`~kgmlm.training.weights.ValidationSample` has them.

    Attributes:
        at: which queries.
        held_b: whether the answer is one of the K best.
    """

    at: IntArray
    scores_bCS: Floats
    stands_bC: Floats
    held_b: BoolArray


def _parts(
    task: RankingTask, rows: IntArray, best: Best, ids_dK: IntArray, read_dK: Floats
) -> Iterator[_Both]:
    """Yield scores of both stages for the best candidates of some distinct queries, for each of their
    answers.
    """
    said_dKS, count = np.stack([best.scores_BK, read_dK], 2), len(task.member_N)
    for part in task.parts(rows):
        ids_bK, said_bKS = ids_dK[part.group], said_dKS[part.group]
        own_bK = ids_bK == part.answers[:, None]
        chosen_bK = best.chosen_BK[part.group]
        place_bK = np.arange(len(ids_bK))[:, None] * count + ids_bK
        others_bK = chosen_bK & ~own_bK & task.member_N[ids_bK]
        others_bK &= ~np.isin(place_bK, part.known[0] * count + part.known[1])
        there_bC = np.concatenate([(own_bK & chosen_bK).any(1, keepdims=True), others_bK], 1)
        answer_b1S = np.where(own_bK[..., None], said_bKS, 0).sum(1, keepdims=True)
        scores_bCS = np.where(there_bC[..., None], np.concatenate([answer_b1S, said_bKS], 1), 0)
        wrong_bK = np.isin(place_bK, part.rejected[0] * count + part.rejected[1])
        stands_bC = there_bC * np.float32(1)
        stands_bC[:, 1:][wrong_bK] *= REJECTED
        yield _Both(part.at, scores_bCS.astype(np.float32), stands_bC, own_bK.any(1))


class Tuned(NamedTuple):
    """All that validation chose for a ranker.

    Attributes:
        uses: of reverse scoring and of names token by token, where these were to be chosen, and of the
            reranker, where there is one.
        figures: of each stage on validation, by its name.
    """

    mixture: Mixture
    uses: dict[str, Use]
    figures: dict[str, dict[str, float]]


def tune(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Advance = silent,
    *,
    begin: str = "",
    reranking: Protocol | None = None,
    candidates: int | None = None,
    batch_size: int = 64,
) -> Tuned:
    """Choose all weights of a ranker: those of its signals at once, then the uses of its second stages.

    Each stage is chosen after those before it. Trees are not chosen here (:mod:`kgmlm.training.trees`).

    Args:
        protocol: on which triples of the run's own graph.
        begin: the second stage to begin with; the weights of the signals and the uses of the stages before it
            stay.
        reranking: on which triples second stages are chosen, at a forward pass per candidate; None is all of
            the same.
        candidates: as of :func:`choose_reranking`.

    Raises:
        ConfigError: when a protocol asks or filters test triples.
    """
    mixture, figures = ranker.mixture, dict[str, dict[str, float]]()
    if not begin:
        mixture, figures = weigh(ranker, graph, protocol, advance, batch_size)
    first, few = ranker.but(mixture=mixture, stages={}), reranking or protocol
    choices = {REVERSE: choose_reverse, CONDITIONAL: choose_conditional, RERANKING: choose_reranking}
    uses: dict[str, Use] = {}
    for name in [name for name in SECOND if name in ranker.stages]:
        stage = ranker.stages[name]
        uses[name] = stage.use
        if not begin or SECOND.index(name) >= SECOND.index(begin):
            uses[name], figures[name] = choices[name](
                first.with_stage(stage), graph, few, advance, candidates, batch_size
            )
        first = first.with_stage(stage.used(uses[name]))
    return Tuned(mixture, uses, figures)
