"""The structure of a model as a file: each family that packs, any sizes, no weights in it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from families import FAMILIES, build
from transformers import BertConfig, ElectraConfig, RobertaConfig, XLMRobertaConfig

from kgmlm.core.errors import ConfigError, ModelError
from kgmlm.sharing import onnx
from kgmlm.sharing.onnx import TOLERANCE, export
from kgmlm.text.onnx_model import ONNX_FILE
from kgmlm.text.torch_model import SpanModel

SHAPE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96,
         "max_position_embeddings": 80}  # fmt: skip
CONFIGS = {
    "bert": BertConfig,
    "roberta": RobertaConfig,
    "electra": partial(ElectraConfig, embedding_size=32),
    "xlm-roberta": XLMRobertaConfig,
}


def saved(model: SpanModel, folder: Path) -> Path:
    model.save(folder)
    return folder


@pytest.mark.parametrize("family", CONFIGS)
def test_each_family_computes_the_same(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, family, (FAMILIES[family][0], partial(CONFIGS[family], **SHAPE)))
    model = SpanModel(build(family)[0])
    folder = saved(model, tmp_path)
    assert export(model, folder, folder / ONNX_FILE) <= TOLERANCE
    size = (folder / ONNX_FILE).stat().st_size
    assert size < 100_000, "weights are elsewhere"
    before = (folder / ONNX_FILE).read_bytes()
    export(model, folder, folder / ONNX_FILE)
    assert (folder / ONNX_FILE).read_bytes() == before, "the same model, the same file"


def test_what_cannot_be_exported_says_so(
    tiny_model: SpanModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = SpanModel(build("deberta-v2")[0])
    with pytest.raises(ModelError, match="cannot be exported; these families can: bert"):
        export(other, saved(other, tmp_path / "other"), tmp_path / ONNX_FILE)
    folder = saved(tiny_model, tmp_path / "model")
    with monkeypatch.context() as patched:
        patched.setattr(onnx, "installed", lambda name: name != "onnx")
        with pytest.raises(ConfigError, match="needs onnx: pip install onnx"):
            export(tiny_model, folder, tmp_path / ONNX_FILE)
    wider = SpanModel(build("roberta")[0])
    with pytest.raises(ModelError, match="has no tensor"):
        export(wider, folder, tmp_path / ONNX_FILE)
    monkeypatch.setattr(onnx, "TOLERANCE", -1.0)
    with pytest.raises(ModelError, match="other states than torch"):
        export(tiny_model, folder, tmp_path / ONNX_FILE)
