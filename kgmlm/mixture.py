"""How much each signal counts in a score: one weight per signal, relation and side.

Shapes: S signals, R relations, B queries, N candidates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kgmlm.kg import IntArray, ModelError, Queries
from kgmlm.metrics import check_finite

LIMIT = 1e30  # scores are smaller: what a shortlist misses and what cannot answer rank below


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

    tables: Mapping[str, torch.Tensor]
    averages: Mapping[str, float]

    @classmethod
    def even(cls, weights: Mapping[str, float], relations: int) -> Mixture:
        """The same weights for all of so many relations."""
        return cls({name: torch.full((relations, 2), float(w)) for name, w in weights.items()}, dict(weights))

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals that count for any relation, or would for a new one."""
        return tuple(n for n, table_R2 in self.tables.items() if self.averages[n] or bool(table_R2.any()))

    @property
    def relations(self) -> int:
        """Of how many relations there are weights."""
        return len(next(iter(self.tables.values())))

    def weighed(self, name: str, table_R2: torch.Tensor, average: float) -> Mixture:
        """The same with other weights of a signal, or with one signal more."""
        return Mixture({**self.tables, name: table_R2.float()}, {**self.averages, name: average})

    def evenly(self, name: str, weight: float) -> Mixture:
        """The same with one weight of a signal for all relations."""
        return self.weighed(name, torch.full((self.relations, 2), float(weight)), weight)

    def only(self, name: str) -> Mixture:
        """One signal alone, as it is."""
        return Mixture.even({name: 1.0}, self.relations)

    def without(self, *names: str) -> Mixture:
        """All signals but some."""
        left = [name for name in self.tables if name not in names]
        return Mixture({n: self.tables[n] for n in left}, {n: self.averages[n] for n in left})

    def over(self, relation_rows: IntArray) -> Mixture:
        """The same for another graph, whose relation i is relation ``relation_rows[i]`` here, or -1."""
        rows = torch.from_numpy(relation_rows)
        tables = {
            name: torch.cat([table_R2, torch.full((1, 2), float(self.averages[name]))])[rows]
            for name, table_R2 in self.tables.items()
        }
        return Mixture(tables, self.averages)

    def of(self, name: str, queries: Queries) -> torch.Tensor:
        """The weights ``(B,)`` of a signal; 0 of one that it does not have."""
        if name not in self.tables:
            return torch.zeros(len(queries))
        return self.tables[name][torch.from_numpy(queries.relation_B), torch.from_numpy(queries.side_B)]

    def combine(self, said: Mapping[str, torch.Tensor], queries: Queries) -> torch.Tensor:
        """The weighted sum ``(B, N)`` of what signals say of the candidates of B queries.

        Args:
            said: of each signal that counts, ``(B, N)``; others are passed over.

        Raises:
            ModelError: when a score is not finite.
        """
        terms = []
        for name, said_BN in said.items():
            weight_B = self.of(name, queries)
            if bool((weight_B == 1).all()):
                terms.append(said_BN)
            elif bool(weight_B.any()):
                terms.append(weight_B[:, None].to(said_BN.device) * said_BN)
        if not terms:
            if not said:
                raise ModelError("no signal says anything of these candidates")
            return torch.zeros_like(next(iter(said.values())))
        scores_BN = sum(terms[1:], terms[0])
        check_finite(scores_BN, LIMIT)
        return scores_BN
