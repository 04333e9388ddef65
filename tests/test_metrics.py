from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgmlm.kg import ModelError
from kgmlm.metrics import Ranks, flat_metrics, headline, rank_answers, summarize


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
    st.data(),
)
def test_ranks_agree_with_counting_by_hand(scores: list[int], data: st.DataObject) -> None:
    answer = data.draw(st.integers(0, len(scores) - 1))
    known = data.draw(st.sets(st.integers(0, len(scores) - 1)))
    columns = torch.tensor(sorted(known), dtype=torch.long)
    ranks = rank_answers(
        torch.tensor([scores], dtype=torch.float32),
        torch.tensor([answer]),
        (torch.zeros(len(columns), dtype=torch.long), columns),
    )
    rivals = [s for i, s in enumerate(scores) if i != answer and i not in known]
    higher, equal = sum(s > scores[answer] for s in rivals), sum(s == scores[answer] for s in rivals)
    assert ranks.optimistic_B[0] == higher + 1
    assert ranks.pessimistic_B[0] == higher + equal + 1
    assert ranks.of_type("realistic")[0] == higher + 1 + equal / 2
    assert ranks.candidates_B[0] == len(rivals) + 1


def test_a_constant_scorer_gets_chance() -> None:
    n = 101
    ranks = rank_answers(torch.zeros(50, n), torch.arange(50))
    assert summarize(ranks)["inverse_harmonic_mean_rank"] == pytest.approx(1 / 51)
    assert summarize(ranks)["adjusted_arithmetic_mean_rank_index"] == pytest.approx(0)
    assert summarize(ranks)["hits_at_10"] == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_scores_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(ModelError, match="finite"):
        rank_answers(torch.tensor([[0.0, bad]]), torch.tensor([0]))


def test_scores_are_left_as_they_were() -> None:
    scores = torch.randn(3, 7)
    before = scores.clone()
    rank_answers(scores, torch.tensor([0, 1, 2]), (torch.tensor([0, 1]), torch.tensor([3, 4])))
    assert torch.equal(scores, before)


def test_impossible_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="1 <="):
        Ranks(np.array([0]), np.array([1]), np.array([2]))


def test_an_empty_side_has_a_count_and_no_metric() -> None:
    ones = np.array([1, 1])
    flat = flat_metrics(Ranks(ones, ones, ones), np.array([True, True]))
    assert flat["head.realistic.count"] == 0
    assert "head.realistic.inverse_harmonic_mean_rank" not in flat
    assert headline(flat) == 1
