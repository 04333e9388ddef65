"""Shortlists: what an index finds, scored exactly.

Shapes: B queries, K candidates of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from kgmlm.arrays import numpy
from kgmlm.constraints import MISSED
from kgmlm.kg import IntArray, Queries
from kgmlm.metrics import check_finite
from kgmlm.pool import Pool, Reading
from kgmlm.ranker import Ranker
from kgmlm.retrieval import Retriever
from kgmlm.scorer import Scorer

MORE = 100  # entities that an index is asked for beyond a shortlist
LOOKED_AT = 1000  # those whose vectors are compared, where the index has but codes of them


class Retrieval(NamedTuple):
    """An index, how many entities it is asked for, and how hard it tries (None: as hard as when built)."""

    retriever: Retriever
    k: int
    effort: int | None = None


@torch.inference_mode()
def shortlist(
    ranker: Ranker, reading: Reading, retrieval: Retrieval, batch_size: int = 64
) -> tuple[IntArray, torch.Tensor]:
    """The K best that an index finds, scored exactly: ids and scores ``(B, K)``, best first.

    The index is asked for some more, since its own scores are approximate. It finds by one signal; the others
    and a reranker only score what it found. Equal scores keep the order of their ids. Where there are fewer
    than K, ids are -1 and scores :data:`~kgmlm.constraints.MISSED`.

    Args:
        batch_size: pairs that a reranker reads at once.
    """
    queries = reading.queries
    ids_BK = _found(ranker, reading, retrieval)
    ids_BK[ranker.possible.forbidden(queries, ids_BK)] = -1  # what cannot answer takes no place
    pool = Pool(len(ranker.context.entities), ids_BK)
    mixture = ranker.mixture
    said = {n: ranker.says(n, reading, pool) for n in ranker.signals if n in mixture.signals}
    scores_BK = mixture.combine(said, queries)
    scores_BK[torch.from_numpy(~pool.there).to(scores_BK.device)] = MISSED
    ids_BK, scores_BK = _taken(ids_BK, scores_BK, _order(ids_BK, scores_BK)[:, : retrieval.k])
    if not ranker.reranks:
        return ids_BK, scores_BK
    scores_BK = ranker.reranked(queries, scores_BK, Pool(pool.count, ids_BK), batch_size)
    return _taken(ids_BK, scores_BK, _order(ids_BK, scores_BK))


def _found(ranker: Ranker, reading: Reading, retrieval: Retrieval) -> IntArray:
    """Ids ``(B, K)`` that an index finds, -1 where it finds fewer."""
    retriever, vector_BD = retrieval.retriever, reading.span.vector_BD
    assert vector_BD is not None
    check_finite(vector_BD)
    asked_BD = numpy(vector_BD)
    count = max(1, len(ranker.context.entities))
    most = min(retrieval.k + MORE, count)
    if retriever.exact:
        return retriever.search(asked_BD, most, retrieval.effort).ids_BK
    ids_BM = retriever.search(asked_BD, min(max(LOOKED_AT, most), count), retrieval.effort).ids_BK
    pool = Pool(count, ids_BM)
    cosines_BM = numpy(ranker.says("vector", reading, pool))
    cosines_BM[~pool.there] = -np.inf
    return np.take_along_axis(ids_BM, np.argsort(-cosines_BM, 1, kind="stable")[:, :most], 1)


def _order(ids_BK: IntArray, scores_BK: torch.Tensor) -> IntArray:
    """Best first, equal scores by id."""
    return np.lexsort((ids_BK, -scores_BK.cpu().numpy()))


def _taken(ids_BK: IntArray, scores_BK: torch.Tensor, order: IntArray) -> tuple[IntArray, torch.Tensor]:
    """Ids and scores in an order of each row's own."""
    return np.take_along_axis(ids_BK, order, 1), scores_BK.gather(
        1, torch.from_numpy(order).to(scores_BK.device)
    )


def retrieve_and_rank(
    ranker: Ranker,
    queries: Queries,
    retrieval: Retrieval,
    batch_size: int = 64,
    advance: Callable[[int], None] = lambda n: None,
) -> Iterator[tuple[IntArray, torch.Tensor, torch.Tensor]]:
    """Scores by shortlist and exactly, from the same forward passes, to compare the two.

    Yields:
        (rows, scores ``(b, N)`` in which all that the shortlist lacks is
        :data:`~kgmlm.constraints.MISSED`, exact scores).
    """
    for rows, reading, said in ranker.said(queries, None, batch_size, advance):
        asked = queries[rows]
        exact_BN = ranker.reranked(asked, ranker.combined(asked, said), None, batch_size)
        ids_BK, scores_BK = shortlist(ranker, reading, retrieval, batch_size)
        scores_BN = torch.full_like(exact_BN, MISSED)
        found = torch.from_numpy(ids_BK >= 0).to(exact_BN.device)
        ids = torch.from_numpy(ids_BK).to(exact_BN.device)
        where = found.nonzero()[:, 0]
        scores_BN[where, ids[found]] = scores_BK[found]
        yield rows, ranker.possible.applied(scores_BN, asked), exact_BN


def scores_of(
    ranker: Scorer,
    queries: Queries,
    retrieval: Retrieval | None,
    others: bool,
    batch_size: int,
) -> Iterator[tuple[IntArray, torch.Tensor, torch.Tensor]]:
    """Scores of all entities, by shortlist where there is one.

    Yields:
        (rows, scores ``(b, N)``, if asked for other scores of the same queries: beside those by shortlist the
        exact ones, else those without constraints on what can answer).
    """
    if retrieval is not None:
        assert isinstance(ranker, Ranker)
        yield from retrieve_and_rank(ranker, queries, retrieval, batch_size)
        return
    if others and ranker.possible.constrained_B(queries).any():
        yield from ranker.rank_both(queries, batch_size)
        return
    for rows, scores_BN in ranker.rank(queries, batch_size=batch_size):
        yield rows, scores_BN, scores_BN
