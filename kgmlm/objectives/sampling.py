"""Which entities the softmax of a step goes over, where training has too many to score all of them.

What is always scored of a step: answers of its queries, the queries' own entities and recent answers. All
others are represented by a sample of them, drawn without replacement, each standing for as many as were not
drawn. So a sum over the candidates is an unbiased estimate of the sum over all entities (importance weights
of sampled softmax; Bengio and Senecal, 2003; here of a stratified sample, whose probabilities are exact).

Shapes: B queries, S entities seen in training, M candidates of a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kgmlm.filters import GroupedAnswers
from kgmlm.kg import FloatArray, IntArray

ANSWERS = 64  # of a query that are always candidates; of hubs so many are drawn
RECENT = 2  # one of so many candidates is a recent answer
_HUB = 4096  # answers of a query from which on its candidates are looked up among them, not they among those


class Columns:
    """Where entities stand among M candidates, which all differ."""

    def __init__(self, ids_M: IntArray) -> None:
        self.ids_M = ids_M
        self._order = np.argsort(ids_M, kind="stable")
        self._sorted = ids_M[self._order]

    def __len__(self) -> int:
        return len(self.ids_M)

    def of(self, entity_ids: IntArray) -> IntArray:
        """The column of each entity, -1 for those that are no candidates.

        >>> Columns(np.array([7, 3])).of(np.array([3, 4, 7])).tolist()
        [1, -1, 0]
        """
        if not len(self):
            return np.full(len(entity_ids), -1)
        at = np.minimum(np.searchsorted(self._sorted, entity_ids), len(self) - 1)
        return np.where(self._sorted[at] == entity_ids, self._order[at], -1)

    def answers(self, known: GroupedAnswers, rows: IntArray) -> tuple[IntArray, IntArray]:
        """The answers of B queries that are candidates, as (position in ``rows``, column) pairs.

        A hub with a million answers costs no more than its candidates.
        """
        hub_B = known.offsets[rows + 1] - known.offsets[rows] > max(_HUB, len(self))
        few = np.flatnonzero(~hub_B)
        positions, ids = known.take(rows[few])
        columns = self.of(ids)
        there = columns >= 0
        found = [(few[positions[there]], columns[there])]
        for b in np.flatnonzero(hub_B):
            of_A = known.ids[known.offsets[rows[b]] : known.offsets[rows[b] + 1]]
            at = np.minimum(np.searchsorted(of_A, self._sorted), len(of_A) - 1)
            columns = self._order[of_A[at] == self._sorted]
            found.append((np.full(len(columns), b), columns))
        return np.concatenate([b for b, _ in found]), np.concatenate([c for _, c in found])


class Recent:
    """The latest entities of some kind, newest first, each once.

    Args:
        size: how many are kept.
        entities: of the graph.
    """

    def __init__(self, size: int, entities: int) -> None:
        self.size, self.entities = size, entities
        self.ids_M: IntArray = np.zeros(0, np.int64)

    def others(self, entity_ids: IntArray) -> IntArray:
        """Places of the remembered entities that are not among those given."""
        return np.flatnonzero(Columns(entity_ids).of(self.ids_M) < 0)

    def joined(self, entity_ids: IntArray) -> IntArray:
        """Entities that all differ, then those remembered beside them; they are remembered from now on."""
        ids_M = np.concatenate([entity_ids, self.ids_M[self.others(entity_ids)]])
        self.ids_M = ids_M[: self.size]
        return ids_M

    def restored(self, ids_M: torch.Tensor) -> None:
        """Go back to what a checkpoint kept.

        Raises:
            ValueError: when these are not entities of the graph.
        """
        fits = (ids_M.ndim, ids_M.dtype) == (1, torch.int64)
        if not fits or ((ids_M < 0) | (ids_M >= self.entities)).any():
            raise ValueError("the remembered entities are not those of the graph")
        self.ids_M = ids_M.numpy()


@dataclass(frozen=True)
class Drawn:
    """What is drawn for a batch.

    Attributes:
        answers: of its queries, at most :data:`ANSWERS` of each.
        others: of all seen entities, each at most once.
    """

    answers: IntArray
    others: IntArray


class Drawing:
    """Draws candidates of batches.

    Args:
        seen: the entities that training triples have; no other is ever a negative.
        candidates: how many a step scores beside answers and entities of its own queries.
    """

    def __init__(self, seen: IntArray, candidates: int) -> None:
        self.seen = seen
        self.recent = candidates // RECENT
        self.count = min(candidates - self.recent, len(seen))

    def draw(self, known: GroupedAnswers, rows: IntArray, rng: np.random.Generator) -> Drawn:
        """Candidates for some queries."""
        first, end = known.offsets[rows], known.offsets[rows + 1]
        few = end - first <= ANSWERS
        _, answers = known.take(rows[few])
        of_hubs = [
            known.ids[a + rng.choice(b - a, ANSWERS, replace=False)]
            for a, b in zip(first[~few], end[~few], strict=True)
        ]
        others = self.seen[rng.choice(len(self.seen), self.count, replace=False)]
        return Drawn(np.unique(np.concatenate([answers, *of_hubs])), others)


@dataclass(frozen=True)
class Sampled:
    """The candidates of a step.

    Attributes:
        columns: those that are always scored, then the others that were drawn.
        log_weight_M: the logarithm of how many entities each stands for.
    """

    columns: Columns
    log_weight_M: FloatArray

    @classmethod
    def of(cls, always: IntArray, drawn: IntArray, seen: int) -> Sampled:
        """Of what is always scored and a sample of all seen entities.

        >>> found = Sampled.of(np.array([4, 5]), np.array([5, 6, 9]), 10)
        >>> found.columns.ids_M.tolist(), np.exp(found.log_weight_M).tolist()
        ([4, 5, 6, 9], [1.0, 1.0, 4.0, 4.0])
        """
        others = drawn[Columns(always).of(drawn) < 0]
        each = np.log((seen - len(always)) / len(others)) if len(others) else 0.0
        log_weight_M = np.repeat([0.0, each], [len(always), len(others)])
        return cls(Columns(np.concatenate([always, others])), log_weight_M)
