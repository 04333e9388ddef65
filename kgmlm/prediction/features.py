"""Triple features: what a run's scores say of given triples; and triples that are taken to be false.

Every triple goes through the same function, true or not: it is asked for from both sides, and compared with
all candidates but those that training triples give as answers. Whether it is itself one of these changes
nothing.

Shapes: n triples, B queries, N entities, m asked (query, candidate) pairs, F features of a side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np

from kgmlm.core.arrays import BoolArray, FloatArray, Floats, IntArray
from kgmlm.graphs.queries import FilterIndex, Groups, Queries, both_sides
from kgmlm.ranking.constraints import MISSED
from kgmlm.ranking.likely import compared
from kgmlm.ranking.ranker import Scorer

# Of each side. Three are of the rank: wrong answers that a run ranks high are rarest at the first rank and
# far behind, which no straight line says.
FEATURES = ("score", "log_softmax", "margin", "log_rank", "log_rank_squared", "reciprocal_rank")
KINDS_OF_NEGATIVES = ("uniform", "typed", "hard")
HARD = 20  # the best wrong candidates that hard negatives are drawn from
_TRIES = 20  # draws of each negative before it is left out: everything may be true


def side_features(
    scores_BN: Floats,
    rows: IntArray,
    ids: IntArray,
    known: tuple[IntArray, IntArray],
    temperature: float = 1.0,
) -> FloatArray:
    """The features of candidates of queries, from the scores of all entities.

    Args:
        scores_BN: of B queries.
        rows, ids: (m,) which candidates of which queries.
        known: answers of the queries in training, as (row, id) pairs, which do not compete.
        temperature: scores divided by it are logits.

    Returns:
        ``(m, F)``, in the order of :data:`FEATURES`; score and margin are in units of the temperature. What
        cannot answer is as good as the worst that can.
    """
    possible_BN = scores_BN > MISSED
    worst_B1 = np.min(scores_BN, 1, keepdims=True, initial=np.inf, where=possible_BN)
    scores_BN = np.where(possible_BN, scores_BN, np.where(np.isfinite(worst_B1), worst_B1, 0))
    others_BN = scores_BN.copy()
    others_BN[known] = -np.inf
    found = compared(scores_BN, others_BN, rows, ids, temperature)
    log_rank_n = np.log(found["rank"])
    columns = {
        "score": found["score"] / temperature,
        "log_softmax": found["log_softmax"],
        "margin": found["margin"] / temperature,
        "log_rank": log_rank_n,
        "log_rank_squared": log_rank_n**2,
        "reciprocal_rank": 1 / found["rank"],
    }
    return np.stack([columns[name] for name in FEATURES], axis=1)


def features(
    scorer: Scorer,
    triples: IntArray,
    known: FilterIndex,
    *,
    temperature: float = 1.0,
    batch_size: int = 64,
    advance: Callable[[int, int], None] = lambda n, total: None,
) -> FloatArray:
    """The features of triples from both sides, ``(n, 2, F)``: of the tail, then of the head.

    Each distinct query is scored once.

    Args:
        known: what training triples answer.
        temperature: as of :func:`side_features`.
        advance: called with (queries just scored, queries in all).
    """
    found = np.empty((len(triples), 2, len(FEATURES)))
    queries, answers = both_sides(triples)  # all heads, then all tails
    for rows, at, scores_bN, asked in _scored(scorer, queries, known, batch_size, advance):
        which = found.reshape(-1, len(FEATURES))
        place = np.where(at < len(triples), 2 * at + 1, 2 * (at - len(triples)))
        which[place] = side_features(scores_bN, rows, answers[at], known.lookup(asked), temperature)
    return found


def _scored(
    scorer: Scorer,
    queries: Queries,
    index: FilterIndex,
    batch_size: int,
    advance: Callable[[int, int], None],
) -> Iterator[tuple[IntArray, IntArray, Floats, Queries]]:
    """Each distinct query scored once: (row in the batch of some queries, their numbers, scores of the batch,
    its distinct queries).
    """
    groups = Groups.of(index.keys(queries))
    distinct = queries[groups.first]
    for rows, scores_bN in scorer.rank(distinct, batch_size=batch_size):
        at, row = groups.take(rows)
        yield row, at, scores_bN, distinct[rows]
        advance(len(rows), len(distinct))


class Negatives:
    """Draws triples that are taken to be false: one side of a triple is replaced.

    Three of each: by any entity, by one that training triples have on that side of the relation, and by one
    that a scorer ranks high. Triples of any given split are never drawn.

    Args:
        known: the triples that are not drawn, ``(n, 3)``.
        train: training triples, which say what a relation's sides have.
        entities: N.
    """

    def __init__(self, known: IntArray, train: IntArray, entities: int, seed: int = 0) -> None:
        self.known = FilterIndex(known, entities)
        self.train, self.entities, self.seed = train, entities, seed

    def draw(
        self,
        triples: IntArray,
        scorer: Scorer,
        batch_size: int = 64,
        advance: Callable[[int, int], None] = lambda n, total: None,
    ) -> tuple[IntArray, IntArray, IntArray]:
        """One negative of each kind for every triple, where there is one.

        Returns:
            The negatives ``(m, 3)``, of which triple each is, and of which kind (an index into
            :data:`KINDS_OF_NEGATIVES`).
        """
        rng = np.random.default_rng(self.seed)
        tail_B = rng.random(len(triples)) < 0.5  # the side that is replaced
        queries, answers = both_sides(triples)
        which = np.arange(len(triples)) + np.where(tail_B, len(triples), 0)
        asked, true = queries[which], answers[which]
        taken = _Taken(self.known, asked, true)

        @cache
        def typed(relation: int, column: int) -> IntArray:
            there: IntArray = np.unique(self.train[self.train[:, 1] == relation][:, column])
            return there

        every = np.arange(self.entities)
        drawn = np.full((len(KINDS_OF_NEGATIVES), len(triples)), -1)
        for b, query in enumerate(asked):
            never = taken[b]
            drawn[0, b] = self._one(rng, every, never)
            of_type = typed(query.relation, 2 if query.target == "tail" else 0)
            drawn[1, b] = self._one(rng, of_type if len(of_type) else every, never)
        for rows, at, scores_bN, _ in _scored(scorer, asked, self.known, batch_size, advance):
            for row, b in zip(rows, at, strict=True):
                own = np.random.default_rng([self.seed, int(b)])  # whatever the batches
                drawn[2, b] = _high(own, scores_bN[row], taken[b])
        return self._replaced(triples, tail_B, drawn)

    @staticmethod
    def _one(rng: np.random.Generator, among: IntArray, never: IntArray) -> int:
        for entity in rng.choice(among, _TRIES):
            if entity not in never:
                return int(entity)
        return -1

    @staticmethod
    def _replaced(
        triples: IntArray, tail_B: BoolArray, drawn: IntArray
    ) -> tuple[IntArray, IntArray, IntArray]:
        kind, of = np.nonzero(drawn >= 0)
        found = triples[of].copy()
        found[np.arange(len(of)), np.where(tail_B[of], 2, 0)] = drawn[kind, of]
        return found, of, kind


def _high(rng: np.random.Generator, scores_N: Floats, never: IntArray) -> int:
    """One of the best candidates that may be drawn and can answer, or -1."""
    possible = scores_N > MISSED
    possible[never] = False
    left = np.flatnonzero(possible)
    if not len(left):
        return -1
    count = min(HARD, len(left))
    best = left[np.argpartition(-scores_N[left], count - 1)[:count]]
    return int(rng.choice(best))


class _Taken:
    """The entities that may not be drawn for a query: known answers, once for equal queries, and its own."""

    def __init__(self, known: FilterIndex, queries: Queries, true: IntArray) -> None:
        _, first, self.which = np.unique(known.keys(queries), return_index=True, return_inverse=True)
        rows, self.ids = known.lookup(queries[first])
        self.bounds, self.true = np.searchsorted(rows, np.arange(len(first) + 1)), true

    def __getitem__(self, b: int) -> IntArray:
        start, end = self.bounds[self.which[b] :][:2]
        return np.append(self.ids[start:end], self.true[b])
