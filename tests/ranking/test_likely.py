"""Probabilities of candidate lists, as they are applied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kgmlm.graphs.queries import Queries
from kgmlm.ranking.constraints import MISSED
from kgmlm.ranking.likely import FEATURES, SIDES, Effects, Likely, ListCalibration, Scale, TrueTriples, expit

RELATIONS = 3  # and the average one


def calibration(lacking: float = 1.0, **change: Any) -> ListCalibration:
    rng = np.random.default_rng(0)
    shape = (RELATIONS + 1, len(SIDES), len(FEATURES))
    scale = Scale(rng.normal(size=shape), 0.5 + rng.random(shape))
    effects = Effects(
        rng.normal(size=(3, len(SIDES) * len(FEATURES))),
        rng.normal(size=(RELATIONS + 1, len(FEATURES))),
        rng.normal(size=(RELATIONS + 1, 3)),
    )
    made = ListCalibration.of(Likely(scale, effects), 40, lacking, {"reverse": (5, 0.5)}, {"queries": 7})
    return made.model_copy(update=change) if change else made


def asked(*queries: tuple[int, int, bool]) -> Queries:
    entity, relation, tail = zip(*queries, strict=True)
    return Queries(np.array(entity), np.array(relation), np.array(tail))


@given(
    seed=st.integers(0, 10**6),
    count=st.integers(2, 12),
    relation=st.integers(0, RELATIONS + 2),
    tail=st.booleans(),
)
def test_probabilities_fall_within_a_list_and_training_has_none(
    seed: int, count: int, relation: int, tail: bool
) -> None:
    rng = np.random.default_rng(seed)
    scores_BC = rng.normal(size=(2, count)).astype(np.float32)
    scores_BC[1, 0] = MISSED
    queries = asked((0, relation, tail), (1, 0, not tail))
    taken = (np.array([0]), np.array([int(rng.integers(count))]))
    order = np.argsort(-scores_BC, axis=1, kind="stable")
    rows, columns = np.repeat([0, 1], count), order.ravel()
    found = calibration().probabilities(queries, scores_BC, taken, rows, columns)
    never = {(0, int(taken[1][0])), (1, 0)}  # known, and impossible
    assert np.isnan(found).tolist() == [
        pair in never for pair in zip(rows.tolist(), columns.tolist(), strict=True)
    ]
    for row in (0, 1):
        own = found[(rows == row) & ~np.isnan(found)]
        assert ((own >= 0) & (own <= 1)).all()
        assert (np.diff(own) <= 0).all()


def test_a_query_without_answers_is_another_kind_than_one_with_some() -> None:
    scores_BC = np.tile(np.array([3.0, 2.0, 1.0, 0.0], np.float32), (2, 1))
    queries = asked((0, 1, True), (0, 1, True))
    rows, columns = np.array([0, 1]), np.array([1, 1])
    nothing = (np.zeros(0, np.int64), np.zeros(0, np.int64))
    alike = calibration().probabilities(queries, scores_BC, nothing, rows, columns)
    assert alike[0] == pytest.approx(alike[1])
    other = calibration().probabilities(queries, scores_BC, (np.array([1]), np.array([3])), rows, columns)
    assert other[0] == pytest.approx(alike[0])
    assert abs(other[1] - other[0]) > 1e-3


def test_an_unknown_relation_is_an_average_one() -> None:
    scores_BC = np.array([[1.0, 0.5], [1.0, 0.5]], np.float32)
    nothing = (np.zeros(0, np.int64), np.zeros(0, np.int64))
    queries = asked((0, RELATIONS, True), (0, RELATIONS + 7, True))
    found = calibration().probabilities(queries, scores_BC, nothing, np.array([0, 1]), np.array([0, 0]))
    assert found[0] == pytest.approx(found[1])


def test_a_calibration_is_as_it_was_when_it_is_read_again() -> None:
    made = calibration()
    again = ListCalibration.model_validate_json(made.model_dump_json())
    assert again == made
    assert again.stages == {"reverse": (5, 0.5)}
    assert again.truth == TrueTriples(40, 40, 80.0)
    assert (calibration().hidden, calibration(2.5).hidden) == (
        "as large as validation",
        "2.5 times as large as validation",
    )


@pytest.mark.parametrize(
    "change",
    [
        {"mean": ((0.0,) * 8,) * 3},
        {"sides": ((0.0,) * 8,) * 2},
        {"intercepts": ((0.0,) * 4,) * 4},
        {"deviation": ((0.0,) * 8,) * 4},
        {"mean": (), "deviation": (), "better": (), "intercepts": ()},
        {"lacking": 0.0},
        {"validation": 0},
    ],
)
def test_what_does_not_fit_together_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ListCalibration.model_validate({**calibration().model_dump(), **change})


def test_a_larger_hidden_set_has_more() -> None:
    q = np.array([0.01, 0.3, 0.9])
    shares = [TrueTriples.hidden(40, lacking).left(q) for lacking in (0.5, 1.0, 4.0)]
    assert (shares[0] < shares[1]).all()
    assert (shares[1] < shares[2]).all()
    assert (shares[2] < q).all()


@given(st.floats(-1000, 1000))
def test_log_odds_become_probabilities(odds: float) -> None:
    from scipy.special import expit as by_scipy

    assert expit(np.array([odds]))[0] == pytest.approx(by_scipy(odds), abs=1e-12)
