from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import torch
from families import FAMILIES, build

from kgmlm.core.config import ScratchSettings
from kgmlm.core.errors import ModelError
from kgmlm.text.linearization import Linearization, Segment
from kgmlm.text.tokenization import MaskedBatch, SpanTokenizer, load_tokenizer
from kgmlm.text.torch_model import SpanModel, bf16_fault, create_model, load_model


def batch_of(tokenizer: SpanTokenizer) -> MaskedBatch:
    texts = ["virus | causes |", "New York is a city in the United States | located in |", "Georgia |"]
    return tokenizer.collate(tokenizer.encode_queries([Linearization((Segment(t),)) for t in texts], 3, 64))


def tensors_of(batch: MaskedBatch) -> dict[str, torch.Tensor]:
    """The arguments of the library's own forward pass."""
    arrays = {"input_ids": batch.input_ids_BT, "attention_mask": batch.attention_mask_BT}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_at_the_span_is_the_full_forward_at_the_span(family: str) -> None:
    mlm, tokenizer = build(family)
    batch = batch_of(SpanTokenizer(tokenizer))
    with torch.no_grad():
        full_BTV = mlm(**tensors_of(batch)).logits
        model = SpanModel(mlm)
        span = model(batch)
        weight, bias = model.decoder
        ours_BLV = span.hidden_BLD @ weight.T + bias
        log_z = model.log_normalizer(span.hidden_BLD.flatten(0, 1)).view(span.hidden_BLD.shape[:2])
    for b, start in enumerate(batch.span_start_B):
        expected = full_BTV[b, start : start + 3]
        torch.testing.assert_close(ours_BLV[b], expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(log_z[b], expected.logsumexp(-1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_ordinary_forward_is_untouched(family: str) -> None:
    mlm, tokenizer = build(family)
    batch = batch_of(SpanTokenizer(tokenizer))
    arguments = tensors_of(batch)
    with torch.no_grad():
        before = mlm(**arguments).logits
        SpanModel(mlm)(batch)
        assert torch.equal(mlm(**arguments).logits, before)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_may_be_as_long_as_the_model_says(family: str) -> None:
    mlm, tokenizer = build(family)
    model = SpanModel(mlm)
    assert model.positions is not None
    ids = torch.full((1, model.positions), tokenizer.mask_token_id)
    with torch.no_grad():
        assert mlm(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.isfinite().all()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_trains_all_that_it_uses(family: str) -> None:
    mlm, tokenizer = build(family)
    model = SpanModel(mlm)
    span = model(batch_of(SpanTokenizer(tokenizer)))
    model.log_normalizer(span.hidden_BLD.flatten(0, 1)).sum().backward()
    weight, _ = model.decoder
    assert weight.grad is not None
    assert weight.grad.abs().sum() > 0
    encoder = [p for n, p in mlm.base_model.named_parameters() if "layer" in n and p.grad is not None]
    assert any(p.grad.abs().sum() > 0 for p in encoder)


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_and_loaded_gives_the_same(family: str, tmp_path: Path) -> None:
    mlm, tokenizer = build(family)
    model = SpanModel(mlm)
    batch = batch_of(SpanTokenizer(tokenizer))
    model.save(tmp_path)
    loaded = load_model(tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded(batch).hidden_BLD, model(batch).hidden_BLD)


def test_normalizing_in_chunks_is_normalizing_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    mlm, tokenizer = build("bert")
    model, batch = SpanModel(mlm), batch_of(SpanTokenizer(tokenizer))
    with torch.no_grad():
        hidden_RD = model(batch).hidden_BLD.flatten(0, 1)
        whole = model.log_normalizer(hidden_RD)
        monkeypatch.setattr("kgmlm.text.torch_model._LOGITS", 1)
        torch.testing.assert_close(model.log_normalizer(hidden_RD), whole)
        some = model.log_normalizer(hidden_RD, torch.tensor([3, 5]))
        weight, bias = model.decoder
        logits = hidden_RD @ weight[[3, 5]].T + bias[[3, 5]]
        torch.testing.assert_close(some, logits.logsumexp(-1))


def test_a_sentence_encoder_gets_a_head_near_the_identity(minilm: Path) -> None:
    first, again, other = (load_model(minilm, seed=s).mlm for s in (0, 0, 1))
    dense = first.cls.predictions.transform.dense
    identity = torch.eye(dense.weight.shape[0])
    assert (dense.weight - identity).abs().max() < 0.02
    assert torch.equal(dense.weight, again.cls.predictions.transform.dense.weight)
    assert not torch.equal(dense.weight, other.cls.predictions.transform.dense.weight)
    assert (first.cls.predictions.transform.LayerNorm.weight == 1).all()
    assert first.get_output_embeddings().weight is first.get_input_embeddings().weight


def test_an_encoder_without_its_weights_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    mlm, _ = build("bert")
    mlm.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file(
        {k: v for k, v in weights.items() if "layer.1" not in k},
        tmp_path / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(ModelError, match="lacks weights of the encoder"):
        load_model(tmp_path)


@pytest.mark.parametrize("layers", [0, 1])
def test_a_config_with_fewer_layers_than_the_weights_is_refused(tmp_path: Path, layers: int) -> None:
    mlm, _ = build("bert")
    mlm.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    with pytest.raises(ModelError, match=r"has more layers than its config\.json says"):
        load_model(tmp_path)


@pytest.mark.parametrize("layers", [10**6, "2"])
def test_a_config_that_cannot_be_right_is_refused(tmp_path: Path, layers: int | str) -> None:
    mlm, _ = build("bert")
    mlm.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    with pytest.raises(ModelError, match=r"can be loaded from '.*': (its config\.json asks|.*num_hidden)"):
        load_model(tmp_path)


@pytest.mark.parametrize("what", ["empty", "garbage", "causal", "absent"])
def test_what_is_no_masked_lm_is_one_sentence(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "model"
    if what != "absent":
        folder.mkdir()
    if what == "garbage":
        mlm, _ = build("bert")
        mlm.save_pretrained(folder)
        (folder / "model.safetensors").write_bytes(b"garbage")
    if what == "causal":
        (folder / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ModelError, match="no masked language model can be loaded") as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ModelError, match="multiple"):
        create_model(100, 0, ScratchSettings(hidden_size=30, heads=4), 64, 0)


def test_code_that_comes_with_a_model_is_not_run(
    toy_tokenizer: SpanTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is typed: nothing asks."""
    toy_tokenizer.tokenizer.save_pretrained(tmp_path)
    (tmp_path / "theirs.py").write_text("raise SystemExit('a stranger has run code')")
    names = {
        "AutoConfig": "theirs.C",
        "AutoModelForMaskedLM": "theirs.M",
        "AutoTokenizer": ["theirs.T", None],
    }
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "theirs", "auto_map": names}))
    monkeypatch.setattr("builtins.input", lambda *args: "y")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\ny\n"))
    with pytest.raises(ModelError, match="code of its own, which kgmlm does not run"):
        load_model(tmp_path)
    tokenizer = tmp_path / "tokenizer_config.json"
    tokenizer.write_text(json.dumps({"tokenizer_class": "Theirs", "auto_map": names}))
    with pytest.raises(ModelError, match="code of its own, which kgmlm does not run"):
        load_tokenizer(tmp_path)


class Float16Alone(torch.nn.Module):
    """A model with a constant that bf16 cannot hold, as DeBERTa's first version has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor]:
        states = self.layer(torch.nn.functional.one_hot(input_ids, 4).float())
        return (states.masked_fill(~attention_mask.bool()[..., None], torch.finfo(torch.float32).min),)


def test_what_fails_in_bf16_is_said_and_changes_nothing(tiny_model: SpanModel) -> None:
    before = torch.random.get_rng_state()
    assert bf16_fault(tiny_model.mlm) == ""
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in tiny_model.parameters())
    model = Float16Alone()
    assert "overflow" in bf16_fault(model)
