"""The best of a first stage, taken and raised."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from kgmlm.core.arrays import highest
from kgmlm.ranking.second_stage import Best


def test_ties_at_the_edge_are_left_alone() -> None:
    scores_BN = np.array([[4, 3, 3, 3, 1], [1, 1, 1, 1, 1], [5, 4, 3, 2, 1]], np.float32)
    none = np.zeros((3, 5), np.bool_)
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
def test_the_best_gain_by_what_was_read_of_them(k: int) -> None:
    rng = np.random.default_rng(k)
    scores_BN = rng.normal(size=(9, 40)).astype(np.float32)
    passed_BN = rng.random((9, 40)) < 0.2
    passed_BN[3] = True
    read_BK = rng.normal(size=(9, min(k, 40))).astype(np.float32)
    given = scores_BN.copy()
    with warnings.catch_warnings(action="error"):
        best = Best.of(given, k, passed_BN)
        raised = best.reranked(given, read_BK, 2.0)
    assert raised.dtype == np.float32
    np.testing.assert_array_equal(given, scores_BN, "scores are not changed in place")
    np.testing.assert_array_equal(raised[3], scores_BN[3])
    for b in (b for b in range(9) if b != 3):
        open_N = np.where(passed_BN[b], -np.inf, scores_BN[b])
        taken = [int(i) for i in np.argsort(-open_N) if np.isfinite(open_N[i])][:k]
        assert best.columns_BK[b][best.chosen_BK[b]].tolist() == taken
        gain = 2 * (read_BK[b, : len(taken)] - read_BK[b, : len(taken)].min())
        np.testing.assert_allclose(raised[b, taken], scores_BN[b, taken] + gain, rtol=1e-6)
        leading = passed_BN[b] & (scores_BN[b] >= scores_BN[b, taken].min())
        np.testing.assert_allclose(raised[b, leading], scores_BN[b, leading] + gain.max(), rtol=1e-6)
        rest = ~leading & ~np.isin(np.arange(40), taken)
        np.testing.assert_array_equal(raised[b, rest], scores_BN[b, rest])


@pytest.mark.parametrize("count", [1, 5, 30, 1000])
@pytest.mark.parametrize("k", [1, 4, 30])
def test_the_highest_of_rows_are_those_of_a_sort(count: int, k: int) -> None:
    rng = np.random.default_rng(count)
    spread, tied = rng.normal(size=(5, count)), rng.integers(0, 3, (5, count))
    for array_BN in (spread.astype(np.float32), tied.astype(np.float32)):
        values_BK, columns_BK = highest(array_BN, k)
        np.testing.assert_array_equal(values_BK, -np.sort(-array_BN, 1)[:, :k])
        np.testing.assert_array_equal(np.take_along_axis(array_BN, columns_BK, 1), values_BK)
        assert all(len(set(row)) == len(row) for row in columns_BK.tolist())
