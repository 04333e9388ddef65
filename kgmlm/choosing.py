"""How validation chooses a second stage: how many of the best it takes, and how much it counts.

The weight is fitted as those of signals are (:mod:`kgmlm.weighing`): reciprocal ranks are steps, and what
they choose on a few hundred triples is mostly chance (eval/LOG.md).

Shapes: d distinct queries, b queries with an answer each; N candidates, K of them the best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from kgmlm.best import Best, Floats, best_of
from kgmlm.config import Protocol
from kgmlm.contest import Contest
from kgmlm.first_stage import Said
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import BoolArray, ConfigError, IntArray, Queries
from kgmlm.mixture import Use
from kgmlm.processes import sharing
from kgmlm.ranker import Ranker
from kgmlm.reverse import asked_back
from kgmlm.validating import contest_of, figures_of, halved, ranked_by
from kgmlm.watching import Advance, Watcher
from kgmlm.weighing import Sample

SIZES_TRIED = (5, 10, 20, 50, 100)  # how many of the best, as many as there are settings for
WEIGHTS_TRIED = tuple(2 ** (i / 2) for i in range(-6, 5))  # 1: as much as the first stage
STAGES = ("first", "second")

silent = Watcher()


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
        ranker: where it asks back, that comes first.
        candidates: how many are tried at most; None is as many as the reranker's settings say.

    Raises:
        ConfigError: when the protocol asks or filters test triples, or there is no reranker.

    Returns:
        The choice, and ``mrr``, ``hits_at_1`` and ``hits_at_10`` with it (each half of the triples by what
        was chosen on the other; the weights of the signals stay), ``k`` and ``weight``, ``mrr_first`` without
        reranking, and ``held``, the share of answers that the most candidates hold.
    """
    reranking = ranker.reranking
    if reranking is None:
        raise ConfigError("the ranker has no reranker to weigh")
    most = candidates or reranking.reranker.reranking.candidates
    confident = ranker.reader.settings.training.temperature  # both as in training
    weights = [confident * x for x in WEIGHTS_TRIED]
    told = partial(advance, "reranking")

    def read(queries: Queries, rows: IntArray, ids_dK: IntArray) -> Floats:
        return reranking.read(queries, ids_dK, ranker.mixture, batch_size)

    return _choose_use(ranker, contest_of(graph, protocol), told, most, weights, read, batch_size)


def choose_reverse(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Advance = silent,
    candidates: int | None = None,
    batch_size: int = 64,
) -> tuple[Use, dict[str, float]]:
    """The same of asking back.

    Args:
        candidates: None is as many as the settings of the run say.
    """
    first, contest = ranker.unreranked(), contest_of(graph, protocol)
    most = min(candidates or ranker.reader.settings.reranking.candidates, len(graph.entities))
    back_DK = _all_asked_back(first, contest, most, partial(advance, "asking back"), batch_size)
    told = partial(advance, "validating")

    def read(queries: Queries, rows: IntArray, ids_dK: IntArray) -> Floats:
        return back_DK[rows]

    return _choose_use(first, contest, told, most, WEIGHTS_TRIED, read, batch_size)


def _all_asked_back(
    ranker: Ranker, contest: Contest, most: int, advance: Callable[[int, int], None], batch_size: int
) -> Floats:
    """What asking back says of the best candidates ``(D, K)`` of all distinct queries at once, so that those
    that share a candidate ask it once. Of several processes each has its own share of the queries.
    """
    share = contest.asked.share(sharing())
    queries = contest.asked.distinct[share]
    ids_SK = np.full((len(share), most), -1)
    for rows, _, said in ranker.said(queries, batch_size=batch_size):
        asked = queries[rows]
        best, ids_dK = best_of(ranker.context, asked, ranker.combined(asked, said), most, ranker.pool())
        ids_SK[rows] = best.to_read(ids_dK)
    back_DK = np.zeros((len(contest.asked.groups), most), np.float32)
    back_DK[share] = asked_back(ranker, queries, ids_SK, batch_size, advance)
    return back_DK


def _choose_use(
    ranker: Ranker,
    contest: Contest,
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
    most = min(most, len(contest.member_N))
    sizes = sorted({k for k in SIZES_TRIED if k < most} | {most})
    tried = [Use(0, 0.0), *(Use(k, weight) for k in sizes for weight in weights)]
    found: list[_Part] = []
    first = ranker.but(reranking=None)

    def score(queries: Queries, rows: IntArray, said: Said) -> Iterator[torch.Tensor]:
        scores_dN = first.reranked(queries, ranker.combined(queries, said), batch_size=batch_size)
        best, ids_dK = best_of(ranker.context, queries, scores_dN, most, ranker.pool())
        read_dK = read(queries, rows, best.to_read(ids_dK))
        found.extend(_parts(contest, rows, best, ids_dK, read_dK))
        yield scores_dN
        for use in tried[1:]:
            yield best.first(use.k).reranked(scores_dN, read_dK[:, : use.k], use.weight)

    asked, ranks = ranked_by(ranker, contest, len(tried), score, advance, batch_size)
    parts = [part for of_one in sharing().gathered(found) for part in of_one]
    sample = Sample.joined(STAGES, asked.queries, [p[:3] for p in parts], len(ranker.context.relations))
    held = sum(int(part.held_b.sum()) for part in parts) / len(asked.queries)
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
    use = tried[choose(np.ones(len(asked.queries), np.bool_))]
    if crossed_B.mean() <= mean_W[0]:
        use, crossed_B = tried[0], reciprocal_WB[0]
    return use, {
        **figures_of(crossed_B),
        "k": use.k,
        "weight": use.weight,
        "mrr_first": float(mean_W[0]),
        "held": held,
    }


class _Part(NamedTuple):
    """Of some queries what both stages say of the candidates ``(b, 1 + K, 2)``, as :class:`Sample` has it.

    Attributes:
        at: which queries.
        held_b: whether the answer is one of the K best.
    """

    at: IntArray
    scores_bCS: Floats
    there_bC: BoolArray
    held_b: BoolArray


def _parts(
    contest: Contest, rows: IntArray, best: Best, ids_dK: IntArray, read_dK: Floats
) -> Iterator[_Part]:
    """What both stages say of the best candidates of some distinct queries, for each of their answers."""
    said_dKS, count = np.stack([best.scores_BK, read_dK], 2), len(contest.member_N)
    for group in contest.groups(rows):
        ids_bK, said_bKS = ids_dK[group.group], said_dKS[group.group]
        own_bK = ids_bK == group.answers[:, None]
        chosen_bK = best.chosen_BK[group.group]
        known = group.known[0] * count + group.known[1]
        others_bK = chosen_bK & ~own_bK & contest.member_N[ids_bK]
        others_bK &= ~np.isin(np.arange(len(ids_bK))[:, None] * count + ids_bK, known)
        there_bC = np.concatenate([(own_bK & chosen_bK).any(1, keepdims=True), others_bK], 1)
        answer_b1S = np.where(own_bK[..., None], said_bKS, 0).sum(1, keepdims=True)
        scores_bCS = np.where(there_bC[..., None], np.concatenate([answer_b1S, said_bKS], 1), 0)
        yield _Part(group.at, scores_bCS.astype(np.float32), there_bC, own_bK.any(1))
