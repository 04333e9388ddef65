"""Which queries are asked of a graph that is to be completed.

Shapes: B queries, n triples, N entities.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kgmlm.filters import FilterIndex
from kgmlm.kg import BoolArray, IntArray, Queries, both_sides


def seen_queries(train: IntArray, entities: int, relations: IntArray) -> Queries:
    """Each (entity, relation, side) that some training triple has, by relation, then side (heads first), then
    entity.

    Args:
        train: training triples ``(n, 3)``.
        entities: N.
        relations: ids of those that are asked about.

    >>> found = seen_queries(np.array([[0, 1, 2], [0, 1, 3]]), 4, np.array([0, 1]))
    >>> [(q.entity, q.target) for q in found]
    [(2, 'head'), (3, 'head'), (0, 'tail')]
    """
    index = FilterIndex(train, entities)
    queries, _ = both_sides(train[np.isin(train[:, 1], relations)])
    return index.queries(np.unique(index.keys(queries)))


def triple_keys(triples: IntArray, entities: int, relations: int) -> IntArray:
    """One integer per triple; equal triples have equal keys, which sort by relation, head and tail."""
    assert relations * entities * entities < 2**63, "ids of triples do not fit into 64 bits"
    h, r, t = triples.reshape(-1, 3).T
    keys: IntArray = (r * entities + h) * entities + t
    return keys


def asked_queries(
    train: IntArray,
    entities: int,
    relations: IntArray,
    askable: Callable[[int, bool], BoolArray],
    everyone: bool = False,
) -> Queries:
    """Those of :func:`seen_queries` that can be asked, in the same order.

    Args:
        askable: of a relation, which entities ``(N,)`` can be asked for tails (or else heads).
        everyone: ask all entities that can be, whether training has the query or not.
    """
    seen = seen_queries(train, entities, relations)
    slots = 2 * seen.relation_B + seen.tail_B
    found = [seen[:0]]
    for relation in relations.tolist():
        for tails in (False, True):
            ids = np.flatnonzero(askable(relation, tails))
            if not everyone:
                start, stop = np.searchsorted(slots, (2 * relation + tails, 2 * relation + tails + 1))
                ids = np.intersect1d(ids, seen.entity_B[start:stop])
            found.append(Queries(ids, np.full(len(ids), relation), np.full(len(ids), tails)))
    return Queries(
        *(np.concatenate([getattr(q, x) for q in found]) for x in ("entity_B", "relation_B", "tail_B"))
    )


def sampled(queries: Queries, count: int, seed: int = 0) -> Queries:
    """A seeded sample of queries in their order: of each relation and side its share, and at least one.

    Args:
        count: how many, about; all of them where there are no more.
    """
    if count >= len(queries):
        return queries
    rng = np.random.default_rng(seed)
    kinds = 2 * queries.relation_B + queries.tail_B
    rows = []
    for kind in np.unique(kinds):
        own = np.flatnonzero(kinds == kind)
        rows.append(rng.choice(own, max(1, round(count * len(own) / len(queries))), replace=False))
    return queries[np.sort(np.concatenate(rows))]
