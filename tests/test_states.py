"""A model has all that a reader asks of one."""

from __future__ import annotations

from kgmlm.modeling import SpanModel
from kgmlm.states import TextModel


def test_a_model_has_what_a_reader_asks_for() -> None:
    assert {name for name in vars(TextModel) if not name.startswith("_")} <= set(dir(SpanModel))
