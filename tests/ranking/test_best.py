"""The best of a first stage, taken and raised, by torch and by NumPy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from kgmlm.core.arrays import highest, numpy
from kgmlm.ranking.second_stage import Best

KINDS = (np.asarray, torch.from_numpy)


@pytest.mark.parametrize("kind", KINDS)
def test_ties_at_the_edge_are_left_alone(kind: Callable[[Any], Any]) -> None:
    scores_BN = kind(np.array([[4, 3, 3, 3, 1], [1, 1, 1, 1, 1], [5, 4, 3, 2, 1]], np.float32))
    none = kind(np.zeros((3, 5), np.bool_))
    for best in (Best.of(scores_BN, k, none).first(2) for k in (2, 4, 9)):
        assert best.chosen_BK.tolist() == [[True, False], [False, False], [True, True]]
        assert best.columns_BK[2].tolist() == [0, 1]
    whole = Best.of(scores_BN, 9, none)
    assert whole.chosen_BK.all()
    assert whole.first(5).chosen_BK.all()
    read = np.array([[2, 9], [1, 2], [3, 1]], np.float32)
    gain = best.reranked(scores_BN, read, 0.5) - scores_BN
    assert gain.tolist() == [[0.0] * 5, [0.0] * 5, [1.0, 0, 0, 0, 0]]


@pytest.mark.parametrize("k", [1, 7, 40, 41])
def test_both_kinds_agree(k: int) -> None:
    rng = np.random.default_rng(k)
    scores_BN = rng.normal(size=(9, 40)).astype(np.float32)
    passed_BN = rng.random((9, 40)) < 0.2
    passed_BN[3] = True
    read_BK = rng.normal(size=(9, min(k, 40))).astype(np.float32)
    found = []
    for kind in KINDS:
        given = scores_BN.copy()
        with warnings.catch_warnings(action="error"):
            best = Best.of(kind(given), k, kind(passed_BN))
            raised = numpy(best.reranked(kind(given), read_BK, 2.0))
        assert raised.dtype == np.float32
        np.testing.assert_array_equal(given, scores_BN, "scores are not changed in place")
        found.append((best.columns_BK[best.chosen_BK], raised))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-6)
    np.testing.assert_array_equal(found[0][1][3], scores_BN[3])
    assert (found[0][1] >= scores_BN).all()


def test_the_highest_of_rows_are_those_of_torch() -> None:
    array_BN = np.random.default_rng(0).normal(size=(5, 30))
    for k in (1, 4, 30):
        values_BK, columns_BK = highest(array_BN, k)
        theirs = torch.from_numpy(array_BN).topk(k, dim=1)
        np.testing.assert_array_equal(values_BK, theirs.values)
        np.testing.assert_array_equal(columns_BK, theirs.indices)
