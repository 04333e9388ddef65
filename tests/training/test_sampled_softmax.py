"""A step's candidates stand for all entities."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kgmlm.graphs.queries import Columns, GroupedAnswers
from kgmlm.training.objectives import streams
from kgmlm.training.objectives.streams import Drawing, Recent, Sampled

KNOWN = GroupedAnswers(np.array([0, 2, 3, 9]), np.array([1, 4, 7, 0, 2, 3, 5, 8, 9]))


def test_a_sum_over_candidates_is_that_over_all_entities_on_average() -> None:
    rng, values, always = np.random.default_rng(0), np.arange(1.0, 41.0) ** 2, np.array([3, 39])
    sums = []
    for _ in range(4000):
        result = Sampled.of(always, rng.choice(40, 10, replace=False), 40)
        sums.append((np.exp(result.log_weight_M) * values[result.columns.ids_M]).sum())
        assert np.exp(result.log_weight_M).sum() == pytest.approx(40)
    deviation = np.std(sums) / np.sqrt(len(sums))
    assert abs(np.mean(sums) - values.sum()) < 4 * deviation
    assert deviation < 0.01 * values.sum()


def test_nothing_is_sampled_where_all_are_scored_anyway() -> None:
    values = Sampled.of(np.arange(5), np.array([1, 2]), 5)
    assert values.columns.ids_M.tolist() == [0, 1, 2, 3, 4]
    assert not values.log_weight_M.any()


@pytest.mark.parametrize("hub", [1, 4096])
def test_answers_are_found_among_candidates_whoever_is_looked_up(
    monkeypatch: pytest.MonkeyPatch, hub: int
) -> None:
    monkeypatch.setattr("kgmlm.graphs.queries._HUB", hub)
    rows = np.array([2, 0, 1, 2])
    for ids in ([5, 4, 3, 6, 1], [9], [6]):
        columns = Columns(np.array(ids))
        results = {(int(b), ids[c]) for b, c in zip(*columns.answers(KNOWN, rows), strict=True)}
        positions, answers = KNOWN.take(rows)
        expected = set(zip(positions.tolist(), answers.tolist(), strict=True))
        assert results == {(b, e) for b, e in expected if e in ids}


def test_of_a_hub_some_answers_are_drawn_and_of_others_all_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "ANSWERS", 3)
    drawing = Drawing(np.arange(10), 6)
    drawn = set()
    for seed in range(30):
        values = drawing.draw(KNOWN, np.arange(3), np.random.default_rng(seed))
        assert {1, 4, 7} <= set(values.answers.tolist())
        of_hub = set(values.answers.tolist()) - {1, 4, 7}
        assert len(of_hub) == 3
        drawn |= of_hub
        assert len(set(values.others.tolist())) == len(values.others) == 3
    assert drawn == {0, 2, 3, 5, 8, 9}


def test_recent_entities_are_kept_once_and_refused_when_they_are_of_another_graph() -> None:
    recent = Recent(3, 10)
    assert recent.joined(np.array([4, 2])).tolist() == [4, 2]
    assert recent.joined(np.array([7, 4])).tolist() == [7, 4, 2]
    assert recent.joined(np.array([1])).tolist() == [1, 7, 4, 2]
    assert recent.joined(np.array([0])).tolist() == [0, 1, 7, 4], "the oldest is forgotten"
    for wrong in (torch.tensor([10]), torch.tensor([-1]), torch.tensor([[1]]), torch.tensor([1.0])):
        with pytest.raises(ValueError, match="not those of the graph"):
            recent.restored(wrong)
