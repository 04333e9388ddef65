"""Validation triples ranked by several ways of scoring at once, each half by what the other half chose.

Shapes: B queries, all heads and then all tails; d distinct queries; N candidates; W ways of scoring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch

from kgmlm.config import Protocol
from kgmlm.contest import Contest
from kgmlm.evaluation import Asked
from kgmlm.first_stage import Said
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import BoolArray, ConfigError, FloatArray, IntArray, Queries
from kgmlm.metrics import Ranks
from kgmlm.processes import sharing
from kgmlm.ranker import Ranker


def check_choice(protocol: Protocol) -> None:
    """Refuse to choose anything by what is kept for the test.

    Raises:
        ConfigError: when test triples are asked or filtered.
    """
    if "test" in (protocol.split, *protocol.filter):
        raise ConfigError("what is chosen on validation must not know the test triples: leave 'test' out")


def contest_of(graph: KnowledgeGraph, protocol: Protocol, among: int = 0) -> Contest:
    """What is asked to choose by.

    Raises:
        ConfigError: when test triples are asked or filtered.
    """
    check_choice(protocol)
    return Contest.of(graph, protocol, among)


def ranked_by(
    ranker: Ranker,
    contest: Contest,
    count: int,
    score: Callable[[Queries, IntArray, Said], Iterable[torch.Tensor]],
    advance: Callable[[int, int], None],
    batch_size: int = 64,
    by: tuple[str, ...] | None = None,
) -> tuple[Asked, list[Ranks]]:
    """Both queries of each triple of the run's own graph, and their ranks by several ways of scoring.

    All from the same forward passes, each query in one of the processes that share the work.

    Args:
        count: how many ways there are.
        score: scores ``(d, N)`` by each, of some of the distinct queries, their rows, and what signals say.
        by: which signals are asked; None is those that count.
    """
    views = [contest.view() for _ in range(count)]
    asked, world = contest.asked, sharing()
    share = asked.share(world)
    distinct, pool = asked.distinct[share], ranker.pool(contest.ids)
    for own, _, said in ranker.said(distinct, pool, batch_size=batch_size, by=by):
        rows = share[own]
        groups = list(contest.groups(rows))
        for view, scores_dN in zip(views, score(distinct[own], rows, said), strict=True):
            for group in groups:
                group.rank(view, scores_dN)
        advance(len(rows), len(distinct))
    for view in views:
        world.filled(view.ranks_3B, asked.groups.take(share)[0])
    return asked, [view.result() for view in views]


def crossed(by_odd_B: FloatArray, by_even_B: FloatArray) -> FloatArray:
    """Of the odd triples what the even ones chose, and the other way round."""
    return np.where(odd(len(by_odd_B)), by_even_B, by_odd_B)


def halved(reciprocal_WB: FloatArray, choose: Callable[[BoolArray], int]) -> FloatArray:
    """Reciprocal ranks ``(B,)``, those of each half of the triples by the way that the other half chooses; of
    a single triple by the first way, which nothing chose.

    Args:
        choose: a way, by some of the queries.
    """
    odd_B = odd(reciprocal_WB.shape[1])
    by_odd, by_even = (choose(odd_B), choose(~odd_B)) if odd_B.any() else (0, 0)
    return crossed(reciprocal_WB[by_odd], reciprocal_WB[by_even])


def odd(count: int) -> BoolArray:
    """Which of so many queries, all heads and then all tails, are of every other triple."""
    return np.tile(np.arange(count // 2) % 2 == 1, 2)


def figures_of(reciprocal_B: FloatArray) -> dict[str, float]:
    """``mrr``, ``hits_at_1`` and ``hits_at_10`` of reciprocal ranks."""
    return {
        "mrr": float(reciprocal_B.mean()),
        "hits_at_1": float((reciprocal_B >= 1).mean()),
        "hits_at_10": float((reciprocal_B >= 0.1).mean()),
    }
