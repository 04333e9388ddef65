from __future__ import annotations

import numpy as np

from kgmlm.core import arrays

ROWS = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


def test_products_of_complex_numbers() -> None:
    product = arrays.complex_product(ROWS, ROWS[::-1])
    expected = (ROWS[:, :2] + 1j * ROWS[:, 2:]) * (ROWS[::-1, :2] + 1j * ROWS[::-1, 2:])
    np.testing.assert_allclose(product, np.concatenate([expected.real, expected.imag], 1), rtol=1e-5)


def test_rows_are_multiplied_by_all_queries_or_by_one_of_their_own() -> None:
    every_BN = arrays.HostTable(ROWS).products(ROWS[:2])
    np.testing.assert_allclose(every_BN, ROWS[:2] @ ROWS.T, rtol=1e-5)
    own = np.array([[2, 0], [1, 1]])
    own_BK = arrays.products_of_own(ROWS[:2], ROWS[own])
    np.testing.assert_allclose(own_BK, np.take_along_axis(every_BN, own, 1), rtol=1e-5)


def test_exponentials_that_do_not_fit_are_summed() -> None:
    values = np.array([[1000.0, 1000.0], [-1000.0, -1000.0]], np.float32)
    np.testing.assert_allclose(arrays.logsumexp(values), np.array([1000, -1000]) + np.log(2), rtol=1e-6)
