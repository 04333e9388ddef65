"""How much each signal counts in a score: one weight per signal, relation and side.

Shapes: S signals, R relations, B queries, N candidates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kgmlm.arrays import Array, like
from kgmlm.kg import IntArray, ModelError, Queries
from kgmlm.metrics import check_finite

LIMIT = 1e30  # scores are smaller: what a shortlist misses and what cannot answer rank below
BEST = 64  # of a softmax over scores; the others have next to no share of it
Weights = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Use:
    """How a second stage is used: for the ``k`` best of the first, by ``weight`` times what it says."""

    k: int
    weight: float


@dataclass(frozen=True, eq=False)
class Mixture:
    """The weights of the signals that a score is the sum of.

    Attributes:
        tables: for each signal its weights ``(R, 2)``: of relation r for tails, then heads.
        averages: for each signal the best single weight, which a relation has that the run does not know.

    >>> even = Mixture.even({"likelihood": 1.0, "vector": 5.0}, relations=2)
    >>> even.only("vector").signals
    ('vector',)
    """

    tables: Mapping[str, Weights]
    averages: Mapping[str, float]

    @classmethod
    def even(cls, weights: Mapping[str, float], relations: int) -> Mixture:
        """The same weights for all of so many relations."""
        return cls({name: _evenly(w, relations) for name, w in weights.items()}, dict(weights))

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals that count for any relation, or would for a new one."""
        return tuple(n for n, table_R2 in self.tables.items() if self.averages[n] or bool(table_R2.any()))

    @property
    def relations(self) -> int:
        """Of how many relations there are weights."""
        return len(next(iter(self.tables.values())))

    def weighed(self, name: str, table_R2: Array, average: float) -> Mixture:
        """The same with other weights of a signal, or with one signal more."""
        table_R2 = np.asarray(table_R2, np.float32)
        return Mixture({**self.tables, name: table_R2}, {**self.averages, name: average})

    def evenly(self, name: str, weight: float) -> Mixture:
        """The same with one weight of a signal for all relations."""
        return self.weighed(name, _evenly(weight, self.relations), weight)

    def only(self, name: str) -> Mixture:
        """One signal alone, as it is."""
        return Mixture.even({name: 1.0}, self.relations)

    def without(self, *names: str) -> Mixture:
        """All signals but some."""
        left = [name for name in self.tables if name not in names]
        return Mixture({n: self.tables[n] for n in left}, {n: self.averages[n] for n in left})

    def opened(self, name: str, parts: Mixture) -> Mixture:
        """The same with the signals that one is the weighted sum of, in its place."""
        rest = self.without(name)
        tables = {n: self.tables[name] * table_R2 for n, table_R2 in parts.tables.items()}
        averages = {n: self.averages[name] * average for n, average in parts.averages.items()}
        return Mixture({**tables, **rest.tables}, {**averages, **rest.averages})

    def over(self, relation_rows: IntArray) -> Mixture:
        """The same for another graph, whose relation i is relation ``relation_rows[i]`` here, or -1."""
        tables = {
            name: np.concatenate([table_R2, _evenly(self.averages[name], 1)])[relation_rows]
            for name, table_R2 in self.tables.items()
        }
        return Mixture(tables, self.averages)

    def of(self, name: str, queries: Queries) -> Weights:
        """The weights ``(B,)`` of a signal; 0 of one that it does not have."""
        if name not in self.tables:
            return np.zeros(len(queries), np.float32)
        return self.tables[name][queries.relation_B, queries.side_B]

    def combine(self, said: Mapping[str, Array], queries: Queries) -> Array:
        """The weighted sum ``(B, N)`` of what signals say of the candidates of B queries.

        Args:
            said: of each signal that counts, ``(B, N)``, all on one device; others are passed over.

        Raises:
            ModelError: when a score is not finite.
        """
        terms = []
        for name, said_BN in said.items():
            weight_B = self.of(name, queries)
            if (weight_B == 1).all():
                terms.append(said_BN)
            elif weight_B.any():
                terms.append(like(weight_B[:, None], said_BN) * said_BN)
        if not terms:
            if not said:
                raise ModelError("no signal says anything of these candidates")
            some = next(iter(said.values()))
            return like(np.zeros(tuple(some.shape), np.float32), some)
        scores_BN = sum(terms[1:], terms[0])
        check_finite(scores_BN, LIMIT)
        return scores_BN


def _evenly(weight: float, relations: int) -> Weights:
    """One weight ``(R, 2)`` for so many relations."""
    return np.full((relations, 2), weight, np.float32)
