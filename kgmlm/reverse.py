"""Asking back: the best candidates of a first stage, each asked in turn for the entity of its query.

Of ``(h, r, ?)`` each of the K best, t, is asked ``(?, r, t)``: the more probable h is there, the more t
gains. So a triple is scored from both of its sides. Nothing is trained; a candidate costs what a query costs.

Shapes: B queries, K candidates of each, N entities, P pairs of a query and a candidate, D distinct queries of
these.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kgmlm.arrays import Array, highest, logsumexp, numpy
from kgmlm.best import Floats, best_of
from kgmlm.filters import Groups
from kgmlm.first_stage import FirstStage
from kgmlm.kg import BoolArray, IntArray, Queries
from kgmlm.mixture import BEST, Use
from kgmlm.pool import Pool

FLOOR = -30.0  # the least log-probability: what cannot answer would hide all differences of the rest


def reranked(
    first: FirstStage,
    use: Use,
    queries: Queries,
    scores_BN: Array,
    pool: Pool,
    batch_size: int = 64,
    advance: Callable[[int, int], None] = lambda n, total: None,
    free_B: BoolArray | None = None,
) -> Array:
    """First-stage scores with what asking back adds to the best of each query; all of them stay ahead of the
    rest.

    Args:
        use: how many of the best, and how much that counts.
        advance: called with how many of how many distinct queries have just been asked back.
        free_B: as of :func:`asked_back`.
    """
    if not use.k:
        return scores_BN
    best, ids_BK = best_of(first.context, queries, scores_BN, use.k, pool)
    back_BK = asked_back(first, queries, best.to_read(ids_BK), batch_size, advance, free_B)
    return best.reranked(scores_BN, back_BK, use.weight)


def asked_back(
    first: FirstStage,
    queries: Queries,
    ids_BK: IntArray,
    batch_size: int = 64,
    advance: Callable[[int, int], None] = lambda n, total: None,
    free_B: BoolArray | None = None,
) -> Floats:
    """How probable the entity of each query is as the answer of its candidates ``(B, K)``; 0 where an id is
    -1.

    A logarithm of the softmax over the best answers of each candidate, known ones included, on the scale of
    the scores. Between temperatures of .25 and 4 validation saw no difference (eval/LOG.md), so it is 1; one
    signal alone has that of training.

    Args:
        advance: as of :func:`reranked`.
        free_B: queries whose candidates are asked without constraints on what can answer; None is no query.
    """
    row_P, column_P = np.nonzero(ids_BK >= 0)
    asked = queries[row_P]
    free_P = np.zeros(len(row_P), np.bool_) if free_B is None else free_B[row_P]
    back = Queries(ids_BK[row_P, column_P], asked.relation_B, ~asked.tail_B)
    groups = Groups.of(first.context.answers.keys(back))
    distinct = back[groups.first]
    single = len(first.mixture.signals) == 1
    temperature = first.reader.settings.training.temperature if single else 1.0
    back_BK = np.zeros(ids_BK.shape, np.float32)
    for rows, _, said in first.said(distinct, None, batch_size):
        all_dN = first.mixture.combine(said, distinct[rows])
        at_p, of_p = groups.take(rows)
        for free in np.unique(free_P[at_p]).tolist():
            scores_dN = all_dN if free else first.possible.applied(all_dN, distinct[rows])
            best_dK, _ = highest(scores_dN, min(BEST, scores_dN.shape[1]))
            whole_d = logsumexp(numpy(best_dK) / temperature)
            mine = free_P[at_p] == free
            at_m, of_m = at_p[mine], of_p[mine]
            found_m = numpy(scores_dN[of_m, asked.entity_B[at_m]]) / temperature - whole_d[of_m]
            back_BK[row_P[at_m], column_P[at_m]] = temperature * np.maximum(found_m, FLOOR)
        advance(len(rows), len(distinct))
    return back_BK
