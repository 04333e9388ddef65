"""Scores to tie-aware ranks to metrics, under PyKEEN's names.

Knows nothing of models or text. Ranks follow PyKEEN: optimistic counts the candidates that score
strictly higher, pessimistic those that score at least as high, realistic is their mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from kgmlm.arrays import Array
from kgmlm.kg import BoolArray, IntArray, ModelError

if TYPE_CHECKING:
    import torch

RankType = Literal["optimistic", "realistic", "pessimistic"]
RANK_TYPES: tuple[RankType, ...] = ("optimistic", "realistic", "pessimistic")
HITS_AT = (1, 3, 5, 10)
Side = Literal["head", "tail", "both"]
SIDES: tuple[Side, ...] = ("head", "tail", "both")


@dataclass(frozen=True)
class Ranks:
    """Ranks of B answers, one-based, with the number of candidates that each was ranked among."""

    optimistic_B: IntArray
    pessimistic_B: IntArray
    candidates_B: IntArray

    def __post_init__(self) -> None:
        o, p, n = self.optimistic_B, self.pessimistic_B, self.candidates_B
        if (o < 1).any() or (p < o).any() or (n < p).any():
            raise ValueError("ranks must satisfy 1 <= optimistic <= pessimistic <= candidates")

    def __len__(self) -> int:
        return len(self.optimistic_B)

    def __getitem__(self, key: BoolArray | IntArray | slice) -> Ranks:
        return Ranks(self.optimistic_B[key], self.pessimistic_B[key], self.candidates_B[key])

    def of_type(self, rank_type: RankType) -> npt.NDArray[np.float64]:
        """The ranks as float64; realistic is the mean of the other two.

        >>> Ranks(np.array([2]), np.array([4]), np.array([5])).of_type("realistic").item()
        3.0
        """
        if rank_type == "optimistic":
            return self.optimistic_B.astype(np.float64)
        if rank_type == "pessimistic":
            return self.pessimistic_B.astype(np.float64)
        return (self.optimistic_B + self.pessimistic_B) / 2.0

    @classmethod
    def concatenate(cls, parts: list[Ranks]) -> Ranks:
        """Join ranks in order."""
        empty = [Ranks(*(np.zeros(0, np.int64) for _ in range(3)))]
        parts = parts or empty
        return cls(
            np.concatenate([p.optimistic_B for p in parts]),
            np.concatenate([p.pessimistic_B for p in parts]),
            np.concatenate([p.candidates_B for p in parts]),
        )


def check_finite(scores: Array, below: float = math.inf) -> None:
    """Refuse scores that nothing can be ranked by.

    Args:
        below: what they must be below, whatever their sign.

    Raises:
        ModelError: when one is not finite (a NaN would vanish from a ranking, or make an MRR above 1).
    """
    # By the extremes, which are NaN if a score is: a mask of all scores would take a second matrix.
    if 0 not in scores.shape and not -below < float(scores.min()) <= float(scores.max()) < below:
        raise ModelError("the model's scores are not finite; lower training.learning_rate and train it again")


def rank_answers(
    scores_BN: torch.Tensor,
    answers_B: torch.Tensor,
    known: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> Ranks:
    """Rank each answer among N candidates, the other known answers filtered out.

    Args:
        scores_BN: finite float32 scores, higher is better; not modified.
        answers_B: column of the true answer of each row.
        known: (rows, columns) of known answers; the row's own answer stays a candidate.

    Raises:
        ModelError: when a score is not finite.

    >>> import torch
    >>> r = rank_answers(torch.tensor([[0.9, 0.5, 0.5, 0.5, 0.1]]), torch.tensor([1]))
    >>> r.optimistic_B.item(), r.pessimistic_B.item(), r.candidates_B.item()
    (2, 4, 5)
    """
    import torch

    check_finite(scores_BN)
    b, n = scores_BN.shape
    true_B1 = scores_BN.gather(1, answers_B[:, None])
    higher_B = (scores_BN > true_B1).sum(1)
    at_least_B = (scores_BN >= true_B1).sum(1)
    candidates_B = torch.full((b,), n, device=scores_BN.device)
    if known is not None:
        rows, columns = known
        others = columns != answers_B[rows]
        rows, columns = rows[others], columns[others]
        known_scores, true = scores_BN[rows, columns], true_B1[rows, 0]
        higher_B = higher_B - torch.bincount(rows[known_scores > true], minlength=b)
        at_least_B = at_least_B - torch.bincount(rows[known_scores >= true], minlength=b)
        candidates_B = candidates_B - torch.bincount(rows, minlength=b)
    return Ranks(*(x.cpu().numpy() for x in (higher_B + 1, at_least_B, candidates_B)))


def summarize(ranks: Ranks, rank_type: RankType = "realistic") -> dict[str, float]:
    """Metrics of one set of ranks under PyKEEN's names; an empty set has only its count.

    MR is ``arithmetic_mean_rank``, MRR ``inverse_harmonic_mean_rank``. The adjusted metrics
    (Berrendorf et al., 2020) compare with uniformly random ranks and are given for realistic ranks only.

    >>> m = summarize(Ranks(np.array([1, 2]), np.array([1, 2]), np.array([3, 3])))
    >>> m["inverse_harmonic_mean_rank"], m["hits_at_1"], m["count"]
    (0.75, 0.5, 2.0)
    """
    result = {"count": float(len(ranks))}
    if not len(ranks):
        return result
    r = ranks.of_type(rank_type)
    result["inverse_harmonic_mean_rank"] = float((1 / r).mean())
    result["arithmetic_mean_rank"] = float(r.mean())
    result["median_rank"] = float(np.median(r))
    for k in HITS_AT:
        result[f"hits_at_{k}"] = float((r <= k).mean())
    if rank_type == "realistic":
        expected = float((ranks.candidates_B + 1).mean() / 2)
        result["adjusted_arithmetic_mean_rank"] = float(r.mean() / expected)
        index = float(1 - (r.mean() - 1) / (expected - 1)) if expected > 1 else 0.0  # as PyKEEN has it
        result["adjusted_arithmetic_mean_rank_index"] = index
    return result


def expected_hits(ranks: Ranks, negatives: int, k: int) -> float:
    """Mean chance that the answer is among the best k of itself and so many random negatives.

    The closed form of NBFNet (Zhu et al., 2021): with f the share of all negatives that score at least as
    high (pessimistic), ``sum over i < k of C(negatives, i) f^i (1 - f)^(negatives - i)``.

    >>> round(expected_hits(Ranks(np.array([1]), np.array([2]), np.array([3])), negatives=2, k=1), 4)
    0.25
    """
    others = np.maximum(ranks.candidates_B - 1, 1)
    f_B = (ranks.pessimistic_B - 1) / others
    terms = [
        float(math.comb(negatives, i)) * f_B**i * (1 - f_B) ** (negatives - i)
        for i in range(min(k, negatives + 1))
    ]
    return float(np.sum(terms, axis=0).mean())


def sides(ranks: Ranks, tail_B: BoolArray) -> Iterator[tuple[str, Ranks]]:
    """Head, tail and both (all queries together, as PyKEEN and the papers average)."""
    yield "head", ranks[~tail_B]
    yield "tail", ranks[tail_B]
    yield "both", ranks


def flat_metrics(ranks: Ranks, tail_B: BoolArray) -> dict[str, float]:
    """All metrics as ``side.rank_type.metric``, sorted by key.

    >>> m = flat_metrics(Ranks(*(np.array([1, 2]) for _ in range(3))), np.array([False, True]))
    >>> m["tail.realistic.inverse_harmonic_mean_rank"]
    0.5
    """
    flat = {
        f"{side}.{rank_type}.{metric}": value
        for side, part in sides(ranks, tail_B)
        for rank_type in RANK_TYPES
        for metric, value in summarize(part, rank_type).items()
    }
    return dict(sorted(flat.items()))


def headline(metrics: Mapping[str, float]) -> float:
    """Filtered both-side realistic MRR out of :func:`flat_metrics`."""
    return metrics["both.realistic.inverse_harmonic_mean_rank"]
