"""Arrays of NumPy, in which everything is ranked: types, and what more than one package does with them.

Losses and training loops are torch's. Between the two stands the text model (:mod:`kgmlm.text.reader`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from kgmlm.core.errors import ModelError

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]  # scores, vectors; the suffix of a name says the shape
_Float = TypeVar("_Float", np.float32, np.float64)
CONSTANT = 1e-6  # of a column's mean, below which its spread is rounding
_BLOCK = 1024  # scores of which only the best is looked at first


class Table(Protocol):
    """Rows of numbers ``(N, D)``, kept where a model computes: in memory, in a file, or on a GPU."""

    def products(self, queries_BD: Floats) -> Floats:
        """The inner products ``(B, N)`` of queries and rows."""


@dataclass(frozen=True, eq=False)
class HostTable:
    """Rows in memory, or in a file that is mapped into it."""

    rows_ND: Floats

    def products(self, queries_BD: Floats) -> Floats:
        """See :class:`Table`."""
        scores_BN: Floats = queries_BD @ self.rows_ND.T
        return scores_BN


def products_of_own(queries_BD: Floats, rows_BKD: Floats) -> Floats:
    """The inner products ``(B, K)`` of each query and rows of its own.

    >>> products_of_own(np.ones((1, 2), np.float32), np.ones((1, 3, 2), np.float32)).tolist()
    [[2.0, 2.0, 2.0]]
    """
    scores_BK: Floats = np.matmul(rows_BKD, queries_BD[:, :, None])[:, :, 0]
    return scores_BK


def highest(array_BN: npt.NDArray[_Float], k: int) -> tuple[npt.NDArray[_Float], IntArray]:
    """The k highest of each row, best first, and their columns, both ``(B, K)``; in no set order where equal.

    >>> highest(np.array([[1.0, 3.0, 2.0]]), 2)[1].tolist()
    [[1, 2]]
    """
    count = array_BN.shape[1]
    columns_BK = np.broadcast_to(np.arange(count), array_BN.shape)
    if 0 < k < count // 4:
        # The k highest are in the k of W blocks that have the highest maxima; block w is column w, w + W, ...
        blocks = math.isqrt(count * k)
        deep = count // blocks
        maxima_BW = array_BN[:, : deep * blocks].reshape(-1, deep, blocks).max(1)
        near_BK = np.argpartition(maxima_BW, blocks - k, axis=1)[:, blocks - k :]
        inside_BM = (near_BK[:, None, :] + blocks * np.arange(deep)[:, None]).reshape(len(array_BN), -1)
        columns_BK = np.concatenate([inside_BM, columns_BK[:, deep * blocks :]], 1)
    values_BK = np.take_along_axis(array_BN, columns_BK, 1)
    if k < values_BK.shape[1]:
        best_BK = np.argpartition(values_BK, values_BK.shape[1] - k, axis=1)[:, values_BK.shape[1] - k :]
        columns_BK = np.take_along_axis(columns_BK, best_BK, 1)
        values_BK = np.take_along_axis(values_BK, best_BK, 1)
    order_BK = np.argsort(-values_BK, axis=1, kind="stable")
    return np.take_along_axis(values_BK, order_BK, 1), np.take_along_axis(columns_BK, order_BK, 1)


def complex_product(a: Floats, b: Floats) -> Floats:
    """Products of complex numbers ``(..., D)`` given as D / 2 real and then D / 2 imaginary parts."""
    (a_real, a_imaginary), (b_real, b_imaginary) = (np.split(x, 2, -1) for x in (a, b))
    real = a_real * b_real - a_imaginary * b_imaginary
    product: Floats = np.concatenate([real, a_real * b_imaginary + a_imaginary * b_real], -1)
    return product


def unit(vectors_ND: Floats) -> Floats:
    """Vectors of length 1; those of length 0 stay as they are.

    >>> unit(np.array([[0.0, 2.0], [0.0, 0.0]], np.float32)).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    length_N1 = np.sqrt((vectors_ND * vectors_ND).sum(-1, keepdims=True))
    of_unit_length: Floats = vectors_ND / np.maximum(length_N1, np.float32(1e-12))
    return of_unit_length


def top(scores_N: npt.NDArray[np.floating[Any]], k: int) -> list[int]:
    """The k best, equal scores in order of their ids; sorts no more than it must."""
    k = min(max(k, 0), len(scores_N))
    if not k:
        return []
    blocks = len(scores_N) // _BLOCK
    whole = blocks * _BLOCK if blocks >= k else 0
    ids_M = np.arange(whole, len(scores_N))
    if whole:  # the k best are in blocks whose best is not worse than the k-th best of these
        bests = scores_N[:whole].reshape(blocks, _BLOCK).max(1)
        near = np.flatnonzero(bests >= np.partition(bests, -k)[-k])
        ids_M = np.concatenate([(near[:, None] * _BLOCK + np.arange(_BLOCK)).ravel(), ids_M])
    values_M = scores_N[ids_M]
    eligible = values_M >= np.partition(values_M, -k)[-k]
    best = np.argsort(-values_M[eligible], kind="stable")[:k]
    ids: list[int] = ids_M[eligible][best].tolist()
    return ids


def distinct(values: IntArray) -> IntArray:
    """Distinct integers in ascending order; ``np.unique``, which hashes them, takes ten times as long.

    >>> distinct(np.array([3, 1, 3]))
    array([1, 3])
    """
    ordered = np.sort(values)
    first: IntArray = ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered
    return first


def some_of(values: IntArray, most: int, rng: np.random.Generator) -> IntArray:
    """Draw some rows, each once, in their order; all where ``most`` is 0 or there are no more."""
    if not most or most >= len(values):
        return values
    drawn: IntArray = values[np.sort(rng.choice(len(values), most, replace=False))]
    return drawn


def logits(rows_RD: Floats, weight_VD: Floats, bias_V: Floats) -> Floats:
    """Logits ``(R, V)`` of R states; of few, the product with the weights first takes half the time.

    >>> logits(np.ones((1, 2), np.float32), np.eye(2, dtype=np.float32), np.ones(2, np.float32)).tolist()
    [[2.0, 2.0]]
    """
    logits_RV = np.ascontiguousarray((weight_VD @ rows_RD.T).T)
    logits_RV += bias_V
    return logits_RV


def logsumexp(values: npt.NDArray[_Float]) -> npt.NDArray[_Float]:
    """Logarithms of summed exponentials over the last axis of a NumPy array, which is overwritten.

    >>> logsumexp(np.zeros((1, 1), np.float32)).tolist()
    [0.0]
    """
    highest = values.max(-1, keepdims=True)
    values -= highest
    total: npt.NDArray[_Float] = np.log(np.exp(values, out=values).sum(-1)) + highest[..., 0]
    return total


def spreads(values_TC: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    """The standard deviation of each column; 1 where it is constant, but for rounding.

    >>> spreads(np.array([[0.1, 1.0], [0.1, 3.0], [0.1, 2.0]])).round(3).tolist()
    [1.0, 0.816]
    """
    spread_C = np.ones(values_TC.shape[1])
    for c, values_T in enumerate(values_TC.T if len(values_TC) else ()):
        exact_T = values_T.astype(np.float64)
        spread = float(exact_T.std())
        if spread > CONSTANT * max(1.0, abs(float(exact_T.mean()))):
            spread_C[c] = spread
    return spread_C


def check_finite(scores: npt.NDArray[np.floating[Any]], below: float = math.inf) -> None:
    """Refuse scores that nothing can be ranked by.

    Args:
        below: what they must be below, whatever their sign.

    Raises:
        ModelError: when one is not finite (a NaN would vanish from a ranking, or make an MRR above 1).
    """
    # By the extremes, which are NaN if a score is: a mask of all scores would take a second matrix.
    if 0 not in scores.shape and not -below < float(scores.min()) <= float(scores.max()) < below:
        raise ModelError("the model's scores are not finite; lower training.learning_rate and train it again")
