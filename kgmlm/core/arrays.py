"""Arrays where a model computes: torch tensors on a device, or NumPy arrays where there is no torch.

Scoring is written once for both. A device of None stands for NumPy; torch is imported inside functions, where
there are tensors.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from kgmlm.core.errors import ModelError

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
Array = Any  # a tensor or a NumPy array; the suffix of its name says its shape
_Float = TypeVar("_Float", np.float32, np.float64)
Device = Any  # a torch.device or its name; None is NumPy
CONSTANT = 1e-6  # of a column's mean, below which its spread is rounding
_BLOCK = 1024  # scores of which only the best is looked at first


def numpy(array: Array) -> npt.NDArray[Any]:
    """An array of either kind as NumPy's."""
    if isinstance(array, np.ndarray):
        return array
    found: npt.NDArray[Any] = array.detach().cpu().numpy()
    return found


def at(device: Device, array: Array) -> Array:
    """An array of either kind on a device.

    >>> at(None, np.ones(2)).tolist()
    [1.0, 1.0]
    """
    if device is None:
        return numpy(array)
    if not isinstance(array, np.ndarray):
        return array.to(device)
    import torch

    return torch.from_numpy(array).to(device)


def like(array: Array, other: Array) -> Array:
    """An array of either kind where another one is."""
    return at(None if isinstance(other, np.ndarray) else other.device, array)


def where(condition: Array, one: Array, other: Array) -> Array:
    """Elements of one where a condition holds, else of the other."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, one, other)
    import torch

    return torch.where(condition, one, other)


def put(array: Array, places: Any, values: Array) -> Array:
    """A copy with other values at some places: a mask, or indexes of each axis."""
    whole = places if isinstance(places, tuple) else (places,)
    changed = array.copy() if isinstance(array, np.ndarray) else array.clone()
    changed[tuple(like(place, array) for place in whole)] = values
    return changed


def highest(array_BN: Array, k: int) -> tuple[Array, Array]:
    """The k highest of each row, best first, and their columns, both ``(B, K)``; in no set order where equal.

    >>> highest(np.array([[1.0, 3.0, 2.0]]), 2)[1].tolist()
    [[1, 2]]
    """
    if not isinstance(array_BN, np.ndarray):
        values_BK, columns_BK = array_BN.topk(k, dim=1)
        return values_BK, columns_BK
    count = array_BN.shape[1]
    if k < count:
        columns_BK = np.argpartition(array_BN, count - k, axis=1)[:, count - k :]
    else:
        columns_BK = np.broadcast_to(np.arange(count), array_BN.shape)
    values_BK = np.take_along_axis(array_BN, columns_BK, 1)
    order_BK = np.argsort(-values_BK, axis=1, kind="stable")
    return np.take_along_axis(values_BK, order_BK, 1), np.take_along_axis(columns_BK, order_BK, 1)


def joined(parts: list[Array], axis: int = 0) -> Array:
    """Arrays of one kind behind each other."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts, axis)
    import torch

    return torch.cat(parts, axis)


def complex_product(a: Array, b: Array) -> Array:
    """Products of complex numbers ``(..., D)`` given as D / 2 real and then D / 2 imaginary parts."""
    (a_real, a_imaginary), (b_real, b_imaginary) = (
        np.split(x, 2, -1) if isinstance(x, np.ndarray) else x.chunk(2, -1) for x in (a, b)
    )
    real = a_real * b_real - a_imaginary * b_imaginary
    return joined([real, a_real * b_imaginary + a_imaginary * b_real], -1)


def cosines(one_BD: Array, other_ND: Array) -> Array:
    """Cosines ``(B, N)`` of unit vectors."""
    return one_BD @ other_ND.T


def top(scores_N: Array, k: int) -> list[int]:
    """The k best, equal scores in order of their ids; sorts no more than it must."""
    scores_N = numpy(scores_N)
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
    found = np.sort(values)
    first: IntArray = found[np.append(True, found[1:] != found[:-1])] if len(found) else found
    return first


def some_of(values: IntArray, most: int, rng: np.random.Generator) -> IntArray:
    """Draw some rows, each once, in their order; all where ``most`` is 0 or there are no more."""
    if not most or most >= len(values):
        return values
    found: IntArray = values[np.sort(rng.choice(len(values), most, replace=False))]
    return found


def logits(
    rows_RD: npt.NDArray[np.float32], weight_VD: npt.NDArray[np.float32], bias_V: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
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
    found: npt.NDArray[_Float] = np.log(np.exp(values, out=values).sum(-1)) + highest[..., 0]
    return found


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
