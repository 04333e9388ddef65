"""Halves of validation, each measured by what the other chose."""

from __future__ import annotations

import numpy as np

from kgmlm.training.weights import halved


def test_a_single_triple_chooses_nothing() -> None:
    reciprocal_WB = np.array([[0.5, 0.5], [1.0, 1.0]])
    assert halved(reciprocal_WB, lambda of_B: 1).tolist() == [0.5, 0.5]


def test_no_triple_is_measured_by_what_was_chosen_on_it() -> None:
    """Of many ways without any merit the best one looks good on what it was chosen on, and nowhere else."""
    noise_WB = np.random.default_rng(0).random((200, 40))
    measured_B = halved(noise_WB, lambda of_B: int(noise_WB[:, of_B].mean(1).argmax()))
    assert noise_WB.mean(1).max() > 0.6
    assert abs(measured_B.mean() - 0.5) < 0.08
    odd_B = np.tile(np.arange(20) % 2 == 1, 2)  # both queries of a triple are on one side
    for own_B in (odd_B, ~odd_B):
        assert (measured_B[own_B] == noise_WB[noise_WB[:, ~own_B].mean(1).argmax(), own_B]).all()
