"""From features to probabilities: right on data that is made to be, monotone, and told apart from damage."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.special import expit

from kgmlm.core.arrays import FloatArray
from kgmlm.core.errors import RunError
from kgmlm.evaluation.metrics import binned
from kgmlm.prediction.calibration import Calibration, Calibrator, Examples, fit, shifted
from kgmlm.prediction.features import FEATURES

F = len(FEATURES)


def made(count: int, seed: int = 0, relations: int = 4, apart: float = 0.0) -> tuple[Examples, FloatArray]:
    """Examples whose log odds are a sum of features and an offset of the relation; their probabilities."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, 2, F))
    relation = rng.integers(0, relations, count)
    odds = features.reshape(count, -1) @ np.linspace(-1, 1, 2 * F) + apart * (relation - (relations - 1) / 2)
    probabilities = expit(odds)
    labels = rng.random(count) < probabilities
    return Examples(features, relation, labels, np.ones(count), np.arange(count) % 2 == 1), probabilities


def test_known_probabilities_are_found() -> None:
    examples, _ = made(4000, apart=1.0)
    found, held = fit(examples, 4, of={}, by={})
    fresh, true = made(8000, seed=1, apart=1.0)
    probabilities = found.probability(fresh.features, fresh.relations)
    assert np.abs(probabilities - true).mean() < 0.03
    assert binned(fresh.labels, probabilities, np.ones(8000)).error < 0.025
    assert binned(examples.labels, held, np.ones(4000)).error < 0.035
    offsets = np.array(found.model.offsets)
    assert offsets - offsets.mean() == pytest.approx([-1.5, -0.5, 0.5, 1.5], abs=0.3)


def test_a_relation_with_few_triples_leans_on_the_average() -> None:
    examples, _ = made(2000, relations=2, apart=4.0)
    few = (examples.relations == 0) | (np.arange(2000) < 12)
    offsets = [np.array(fit(x, 3, of={}, by={})[0].model.offsets) for x in (examples, examples[few])]
    assert abs(offsets[1][1]) < abs(offsets[0][1]) / 2
    assert offsets[0][2] == 0, "no triple at all: the average"
    found, _ = fit(examples, 3, of={}, by={})
    new = found.probability(examples.features, np.full(2000, -1))
    assert (new == found.probability(examples.features, np.full(2000, 2))).all(), "so is a new relation"


@given(
    st.lists(st.floats(0.001, 0.999), min_size=1, max_size=9),
    st.floats(0.001, 0.999),
    st.floats(0.001, 0.999),
)
def test_probabilities_grow_with_the_prior_and_keep_their_order(
    values: list[float], one: float, other: float
) -> None:
    probabilities = np.sort(values)
    low, high = (shifted(probabilities, prior) for prior in sorted((one, other)))
    assert (low <= high + 1e-12).all()
    assert (np.diff(low) >= -1e-12).all()
    assert shifted(low, 0.5, min(one, other)) == pytest.approx(probabilities), "and back again"


def test_the_prior_is_right_where_the_share_of_true_triples_is_another() -> None:
    examples, _ = made(6000)
    found, _ = fit(examples, 4, of={}, by={})
    fresh, _ = made(40_000, seed=1)
    kept = ~fresh.labels | (np.random.default_rng(2).random(40_000) < 0.05)
    rare = fresh[kept]
    prior = float(rare.labels.mean())
    assert prior < 0.06
    ones = np.ones(len(rare.labels))
    error = binned(rare.labels, found.probability(rare.features, rare.relations, prior=prior), ones).error
    assert error < 0.01
    assert binned(rare.labels, found.probability(rare.features, rare.relations), ones).error > 0.2


@pytest.mark.parametrize("kind", ["platt", "isotonic"])
def test_calibrators_are_monotone_and_never_certain(kind: str) -> None:
    rng = np.random.default_rng(0)
    sums = rng.normal(size=400)
    for labels in (sums + rng.normal(size=400) > 0, sums < 0):  # the second: against the sum
        found = Calibrator.fit(kind, sums, labels, np.ones(400))  # type: ignore[arg-type]
        probabilities = found.probability(np.linspace(-9, 9, 500))
        assert (np.diff(probabilities) >= 0).all()
        assert probabilities.min() > 0
        assert probabilities.max() < 1


def test_a_sum_that_says_nothing_gives_the_share() -> None:
    labels = np.arange(400) % 4 == 0
    found = Calibrator.fit("platt", np.where(labels, 2.5, 3.5), labels, np.where(labels, 3.0, 1.0))
    assert found.x == (0.0,)
    assert found.probability(np.array([-5.0, 3.0, 9.0])) == pytest.approx(0.5)


def test_a_feature_that_is_constant_moves_nothing() -> None:
    examples, _ = made(400)
    examples.features[:, 0, 0] = 0.1
    found, _ = fit(examples, 4, of={}, by={})
    moved = examples.features.copy()
    moved[:, 0, 0] = 0.1001
    before, after = (found.probability(x, examples.relations) for x in (examples.features, moved))
    assert after == pytest.approx(before, abs=1e-3)


def test_a_threshold_of_a_relation_is_chosen_where_there_are_triples_for_it() -> None:
    examples, true = made(3000, relations=2)
    always = examples.relations == 1
    examples.labels[always] = true[always] > 0.1  # in relation 1 even improbable triples are true
    found, _ = fit(examples, 3, of={}, by={})
    assert found.thresholds[2] == 0.5
    of = np.array([0, 1, 2, -1])
    least = np.array([found.thresholds[0], found.thresholds[1], 0.5, 0.5])
    assert found.decided(least, of, by_relation=True).all()
    assert not found.decided(least - 1e-6, of, by_relation=True).any()
    assert found.decided(np.full(4, 0.5), of).all()


def test_a_label_that_says_nothing_gives_the_share() -> None:
    examples, _ = made(2000)
    examples.labels[:] = np.random.default_rng(3).random(2000) < 0.25
    found, _ = fit(examples, 4, of={}, by={})
    probabilities = found.probability(examples.features, examples.relations)
    assert np.abs(probabilities - 0.5).mean() < 0.1, "at equal shares"


def test_too_few_triples_are_one_sentence() -> None:
    examples, _ = made(30)
    with pytest.raises(RunError, match="at least 20 validation triples of each class"):
        fit(examples, 4, of={}, by={})


def test_it_is_saved_to_the_last_digit_and_damage_is_noticed() -> None:
    found, _ = fit(made(500)[0], 4, of={"likelihood": "0"}, by={"command": "kgmlm calibrate"})
    assert Calibration.of_json(found.model_dump_json().encode()) == found
    values = json.loads(found.model_dump_json())
    earlier = {k: v for k, v in values.items() if k != "model"}
    earlier["models"] = {"both": values["model"], "tail": {}, "head": {}}  # as today's packs have it
    assert Calibration.of_json(json.dumps(earlier).encode()) == found
    values["model"]["scale"][0] = 0.0
    with pytest.raises(ValidationError):
        Calibration.of_json(json.dumps(values).encode())
