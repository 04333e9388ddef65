"""Whatever computes a model has all that a reader asks of one."""

from __future__ import annotations

import pytest

from kgmlm.text.onnx_model import OnnxModel
from kgmlm.text.reader import TextModel
from kgmlm.text.torch_model import SpanModel


@pytest.mark.parametrize("kind", [SpanModel, OnnxModel])
def test_each_model_has_what_a_reader_asks_for(kind: type) -> None:
    made = {"decoder", "positions", "tokens"}  # of one of them attributes, given when it is made
    asked = {name for name in vars(TextModel) if not name.startswith("_")} - made
    assert asked == {"device", "eval", "inference", "log_normalizer", "reduce"}
    assert all(hasattr(kind, name) for name in asked)
