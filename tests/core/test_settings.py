"""Bounds of settings that no single section states."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from kgmlm.core.config import (
    ALL,
    MAX_FLOAT,
    MAX_INTEGER,
    SAMPLED,
    VALIDATED,
    RuleSettings,
    ScratchSettings,
    TrainingSettings,
)


def test_what_32_bits_cannot_hold_is_refused() -> None:
    assert ScratchSettings(vocabulary=MAX_INTEGER).vocabulary == MAX_INTEGER
    with pytest.raises(ValidationError, match="at most"):
        ScratchSettings(vocabulary=MAX_INTEGER + 1)
    with pytest.raises(ValidationError, match="at most"):
        TrainingSettings(temperature=2 * MAX_FLOAT)
    assert TrainingSettings(eval_every=float("inf")).model_dump(mode="json")["eval_every"] == "inf"
    with pytest.raises(ValidationError):
        TrainingSettings(temperature=float("inf"))


def test_of_many_entities_a_sample_is_taken_and_of_few_all_are() -> None:
    for chosen, few, many in (("auto", 0, SAMPLED), (0, 0, 0), (300, 300, 300)):
        settings = TrainingSettings.model_validate({"candidates": chosen})
        assert (settings.sampled(ALL), settings.sampled(ALL + 1)) == (few, many)
    for chosen, few, many in (("auto", 0, VALIDATED), (0, 0, 0), (300, 300, 300)):
        settings = TrainingSettings.model_validate({"eval_candidates": chosen})
        assert (settings.validated(ALL), settings.validated(ALL + 1)) == (few, many)
    assert TrainingSettings(candidates=300, eval_candidates=300).sampled(300) == 0
    with pytest.raises(ValidationError):
        TrainingSettings.model_validate({"candidates": -1})


@pytest.mark.parametrize(
    "wrong", [{"length": 4}, {"length": 0}, {"support": 0}, {"seconds": 0.0}, {"depth": 1}]
)
def test_settings_of_rules_have_bounds(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        RuleSettings.model_validate(wrong)
    assert RuleSettings(length=3).length == 3
    assert RuleSettings().length == "auto"
