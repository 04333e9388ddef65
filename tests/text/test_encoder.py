"""The frozen text encoder: pooling as the encoder's folder says it, saved as tensors, read in any batches."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from transformers import AutoModel

from kgmlm.core.arrays import Floats
from kgmlm.core.errors import ModelError
from kgmlm.runs.onnx import export_encoder
from kgmlm.text import encoder as encoder_module
from kgmlm.text.encoder import Pooling, TextEncoder

TEXTS = ["Paris", "Paris. the capital of France", "", "a river " * 40]


def vectors(encoder: TextEncoder, texts: list[str], batch_size: int = 64) -> Floats:
    values = np.full((len(texts), encoder.width), np.nan, np.float32)
    for rows, vectors_BD in encoder.read(texts, batch_size, precision="fp32"):
        values[rows] = vectors_BD
    return values


def folder_of(encoder: str, path: Path, pooling: dict[str, object]) -> str:
    """The encoder as a folder of sentence-transformers."""
    shutil.copytree(encoder, path)
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return str(path)


def test_a_text_is_read_alike_in_any_batch(tiny_encoder: str) -> None:
    encoder = TextEncoder.load(tiny_encoder, 32)
    together, alone = vectors(encoder, TEXTS), vectors(encoder, TEXTS, batch_size=1)
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    assert np.isfinite(together).all()


@pytest.mark.parametrize(
    ("said", "pooled"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, lambda x: x.mean(0)),
        ({"pooling_mode_cls_token": True}, lambda x: x[0]),
        ({"pooling_mode_max_tokens": True}, lambda x: x.amax(0)),
        ({"pooling_mode": "lasttoken"}, lambda x: x[-1]),
        ({}, lambda x: x.mean(0)),
    ],
)
def test_an_encoder_pools_as_its_folder_says(
    tiny_encoder: str, tmp_path: Path, said: dict[str, object], pooled: object
) -> None:
    encoder = TextEncoder.load(folder_of(tiny_encoder, tmp_path / "encoder", said), 32)
    model = AutoModel.from_pretrained(tiny_encoder).eval()
    (result,) = vectors(encoder, ["Paris. a city"])
    ids = torch.tensor([encoder._tokenizer.encode("Paris. a city").ids])
    with torch.inference_mode():
        (states_TD,) = model(input_ids=ids).last_hidden_state
    assert callable(pooled)
    expected = torch.nn.functional.normalize(pooled(states_TD), dim=0)
    np.testing.assert_allclose(result, expected.numpy(), atol=1e-5)


@pytest.mark.parametrize(
    "said",
    [
        {"pooling_mode_weightedmean_tokens": True},
        {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
        {"pooling_mode": "attention"},
    ],
)
def test_another_pooling_is_refused(tiny_encoder: str, tmp_path: Path, said: dict[str, object]) -> None:
    folder = folder_of(tiny_encoder, tmp_path / "encoder", said)
    with pytest.raises(ModelError, match=r"its pooling '.*' is none of mean, cls, max, lasttoken"):
        TextEncoder.load(folder, 32)


def test_an_encoder_that_is_saved_as_tensors_reads_the_same(tiny_encoder: str, tmp_path: Path) -> None:
    encoder = TextEncoder.load(tiny_encoder, 32)
    tensors = encoder.as_tensors()
    asked: list[str] = []

    def read(name: str) -> Floats:
        asked.append(name)
        return tensors[name]

    opened = TextEncoder.of_tensors(list(tensors), read)
    assert not any(name.startswith("encoder.") for name in asked), "weights wait for the first text"
    np.testing.assert_array_equal(vectors(opened, TEXTS), vectors(encoder, TEXTS))
    assert opened.digest == encoder.digest
    assert TextEncoder.load(tiny_encoder, 16).digest != encoder.digest
    lost = {k: v for k, v in tensors.items() if "attention" not in k}
    broken = TextEncoder.of_tensors(list(lost), lost.__getitem__)
    with pytest.raises(ModelError, match="cannot be used"):
        vectors(broken, ["Paris"])


def test_what_is_no_encoder_is_one_sentence(tmp_path: Path, tiny_encoder: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="no text encoder can be loaded from"):
        TextEncoder.load(str(tmp_path / "empty"), 32)
    shutil.copytree(tiny_encoder, tmp_path / "bare")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "bare" / name).unlink()
    with pytest.raises(ModelError, match="has no tokenizer"):
        TextEncoder.load(str(tmp_path / "bare"), 32)


def test_what_is_read_without_torch_is_one_sentence(
    tiny_encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = TextEncoder.load(tiny_encoder, 32).as_tensors()
    encoder = TextEncoder.of_tensors(list(tensors), tensors.__getitem__)
    monkeypatch.setattr(encoder_module, "installed", lambda package: package != "torch")
    assert list(encoder.read([])) == []
    with pytest.raises(ModelError, match="with torch, which is not installed, or with ONNX Runtime"):
        vectors(encoder, ["Paris"])


@pytest.mark.parametrize("pooling", get_args(Pooling))
def test_onnx_runtime_reads_the_same_vectors_without_torch(
    tiny_encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pooling: Pooling
) -> None:
    encoder = replace(TextEncoder.load(tiny_encoder, 32), pooling=pooling)
    texts = ["Paris. the capital of France", "x", "Rome", "a longer text of some more words than these"]
    expected = vectors(encoder, texts)
    export_encoder(encoder, tmp_path / "encoder.onnx")
    monkeypatch.setattr(encoder_module, "installed", lambda package: package != "torch")
    by_onnx = encoder.by_onnx(tmp_path / "encoder.onnx")
    np.testing.assert_allclose(vectors(by_onnx, texts), expected, atol=1e-4)
    other = replace(by_onnx, config={**encoder.config, "hidden_act": "relu"})
    with pytest.raises(ModelError, match="the structure of another model; `kgmlm onnx` makes it again"):
        vectors(other, texts)
