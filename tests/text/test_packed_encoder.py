"""The packed encoder against the families' own code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from families import FAMILIES, build

from kgmlm.text import torch_model
from kgmlm.text.linearization import Linearization, Segment
from kgmlm.text.tokenization import MaskedBatch, SpanTokenizer
from kgmlm.text.torch_model import SpanModel

PACKED = [family for family in FAMILIES if build(family)[0].config.model_type in torch_model.FAMILIES]
TEXTS = (
    ["virus | causes |", "New York is a city in the United States | located in |", "Georgia |"],
    ["Georgia.", "France."],
    ["country in western Europe. 東京"],
)


def batches(tokenizer: Any) -> list[MaskedBatch]:
    """Queries, then entity texts in two batches, one of which needs no padding."""
    spans = SpanTokenizer(tokenizer)
    return [
        spans.collate(
            spans.encode_queries([Linearization((Segment(t),)) for t in texts], span, 64, vector=True)
        )
        for texts, span in zip(TEXTS, (3, 0, 0), strict=True)
    ]


def both_ways(family: str) -> tuple[Iterator[SpanModel], Any]:
    """One model, encoding first by the family's own code and then packed; and its tokenizer."""
    mlm, tokenizer = build(family)
    model = SpanModel(mlm)

    def ways() -> Iterator[SpanModel]:
        packed, model._packed = model._packed, None
        yield model
        model._packed = packed
        model.zero_grad()
        yield model

    return ways(), tokenizer


def test_most_families_are_packed() -> None:
    assert set(PACKED) == {"bert", "macbert", "roberta", "electra", "xlm-roberta"}
    assert not SpanModel(build("deberta-v2")[0]).packs


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", PACKED)
def test_states_and_gradients_are_those_of_the_family(family: str, attention: str) -> None:
    values: list[tuple[Any, dict[str, torch.Tensor]]] = []
    ways, tokenizer = both_ways(family)
    for model in ways:
        assert model.packs == bool(values)
        model.attend(attention)
        queries, *entities = batches(tokenizer)
        span = model(queries, entities)
        assert span.vector_BD is not None
        assert span.entities_ED is not None
        loss = (span.hidden_BLD**2).sum() + (span.vector_BD @ span.entities_ED.T).exp().sum()
        loss.backward()
        grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        values.append((span, grads))
    (one, of_one), (other, of_other) = values
    for name in ("hidden_BLD", "vector_BD", "entities_ED"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), atol=1e-5, rtol=1e-5)
    assert {n for n, g in of_one.items() if g.any()} == {n for n, g in of_other.items() if g.any()}
    for name, grad in of_one.items():
        torch.testing.assert_close(grad, of_other[name], atol=1e-4, rtol=1e-4, msg=name)


def test_dropout_drops_in_training_alone() -> None:
    mlm, tokenizer = build("bert")
    model = SpanModel(mlm)
    queries, *_ = batches(tokenizer)
    for attention in ("sdpa", "eager"):
        model.attend(attention)
        for dropout, same in ((0.5, False), (0.0, True)):
            model.set_dropout(dropout)
            model.train()
            assert torch.equal(model(queries).hidden_BLD, model(queries).hidden_BLD) == same
            model.eval()
            assert torch.equal(model(queries).hidden_BLD, model(queries).hidden_BLD)


def test_a_failure_leaves_the_model_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    mlm, tokenizer = build("roberta")
    model = SpanModel(mlm)
    queries, *_ = batches(tokenizer)
    expected = model(queries).hidden_BLD
    ids_BT, mask_BT = (torch.from_numpy(x) for x in (queries.input_ids_BT, queries.attention_mask_BT))
    arguments = {"input_ids": ids_BT, "attention_mask": mask_BT}
    whole = model.mlm(**arguments).logits
    with monkeypatch.context() as patch:
        patch.setattr(type(model.mlm.lm_head), "forward", lambda *a: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(queries)
    assert torch.equal(model(queries).hidden_BLD, expected)
    assert torch.equal(model.mlm(**arguments).logits, whole)
