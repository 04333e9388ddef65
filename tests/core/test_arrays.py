"""Arrays of both kinds: what is written once for torch and NumPy computes the same with either."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kgmlm.core import arrays

ROWS = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


def test_an_array_goes_where_it_is_asked_for() -> None:
    tensor = arrays.at("cpu", ROWS)
    assert isinstance(tensor, torch.Tensor)
    assert arrays.at(None, ROWS) is ROWS
    assert arrays.at("cpu", tensor) is tensor
    assert isinstance(arrays.like(ROWS, tensor), torch.Tensor)
    assert isinstance(arrays.like(tensor, ROWS), np.ndarray)
    assert np.array_equal(arrays.numpy(torch.tensor([1.0], requires_grad=True)), [1.0])


@pytest.mark.parametrize("device", [None, "cpu"])
def test_both_kinds_compute_the_same(device: str | None) -> None:
    one, other = arrays.at(device, ROWS), arrays.at(device, ROWS[::-1].copy())
    assert np.array_equal(arrays.numpy(arrays.where(one > 0, one, 0.0)), np.maximum(ROWS, 0))
    changed = arrays.put(one, (np.array([0, 2]), np.array([1, 3])), 9.0)
    assert arrays.numpy(changed)[[0, 2], [1, 3]].tolist() == [9.0, 9.0]
    assert np.array_equal(arrays.numpy(one), ROWS), "a copy is changed"
    assert (arrays.numpy(arrays.put(one, ROWS > 0, 0.0)) <= 0).all()
    product = arrays.numpy(arrays.complex_product(one, other))
    expected = (ROWS[:, :2] + 1j * ROWS[:, 2:]) * (ROWS[::-1, :2] + 1j * ROWS[::-1, 2:])
    np.testing.assert_allclose(product, np.concatenate([expected.real, expected.imag], 1), rtol=1e-5)
    np.testing.assert_allclose(arrays.numpy(arrays.cosines(one, other)), ROWS @ ROWS[::-1].T, rtol=1e-5)


def test_exponentials_that_do_not_fit_are_summed() -> None:
    values = np.array([[1000.0, 1000.0], [-1000.0, -1000.0]], np.float32)
    np.testing.assert_allclose(arrays.logsumexp(values), np.array([1000, -1000]) + np.log(2), rtol=1e-6)
