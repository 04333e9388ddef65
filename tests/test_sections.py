"""Bounds of settings that no single section states."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from kgmlm.sections import LARGEST, MOST, RuleSettings, ScratchSettings, TrainingSettings


def test_what_32_bits_cannot_hold_is_refused() -> None:
    assert ScratchSettings(vocabulary=MOST).vocabulary == MOST
    with pytest.raises(ValidationError, match="at most"):
        ScratchSettings(vocabulary=MOST + 1)
    with pytest.raises(ValidationError, match="at most"):
        TrainingSettings(temperature=2 * LARGEST)
    assert TrainingSettings(clip=float("inf")).model_dump(mode="json")["clip"] == "inf"
    with pytest.raises(ValidationError):
        TrainingSettings(temperature=float("inf"))


@pytest.mark.parametrize(
    "wrong", [{"length": 4}, {"length": 0}, {"support": 0}, {"seconds": 0.0}, {"depth": 1}]
)
def test_settings_of_rules_have_bounds(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        RuleSettings.model_validate(wrong)
    assert RuleSettings(length=3).length == 3
    assert RuleSettings().length == "auto"
