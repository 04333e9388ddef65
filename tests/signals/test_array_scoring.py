"""NumPy ranks as torch does: by whole tables, by shortlists, and token by token."""

from __future__ import annotations

from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kgmlm.core.arrays import at, numpy
from kgmlm.signals import likelihood, likelihood_torch
from kgmlm.text.reader import PairTable, SpanOutput
from kgmlm.text.tokenization import Candidates

RNG = np.random.default_rng(0)
HIDDEN, WEIGHT, BIAS = (RNG.normal(size=s).astype(np.float32) for s in ((5, 4, 8), (50, 8), (50,)))
LENGTHS = RNG.integers(0, 5, 40)
NAMES = Candidates(
    RNG.integers(0, 20, LENGTHS.sum()), np.concatenate([[0], np.cumsum(LENGTHS)]), np.zeros(40, np.bool_)
)
TOKENS = np.arange(0, 30, 2)
WAYS = [(tokens, normalization) for tokens in (None, TOKENS) for normalization in ("mean", "sum")]


def model(device: str | None) -> Any:
    return SimpleNamespace(decoder=(at(device, WEIGHT), at(device, BIAS)), device=device)


def of_both(name: str, *arguments: Any) -> tuple[Any, Any]:
    """What a function of torch and its twin in NumPy say of the same arrays."""
    found = []
    for module, device in ((likelihood_torch, "cpu"), (likelihood, None)):
        given = [at(device, x) if isinstance(x, np.ndarray) else x for x in arguments]
        table = [PairTable.of(x, device) if x is NAMES and name != "token_log_probs" else x for x in given]
        span = SpanOutput(at(device, HIDDEN))
        with torch.no_grad():
            found.append(getattr(module, name)(model(device), span, *table))
    return found[0], found[1]


@pytest.mark.parametrize(("tokens", "normalization"), WAYS)
def test_all_candidates_score_as_by_torch(
    tokens: Any, normalization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torchs, numpys = of_both("candidate_scores", tokens, NAMES, normalization)
    np.testing.assert_allclose(numpys, numpy(torchs), atol=1e-5)
    assert numpys.dtype == np.float32
    monkeypatch.setattr(likelihood, "_LOGITS", 1)  # one query at a time
    again = of_both("candidate_scores", tokens, NAMES, normalization)[1]
    np.testing.assert_allclose(again, numpys, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("normalization", ["mean", "sum"])
@pytest.mark.parametrize("step", [1, 2**24])
def test_shortlists_score_as_by_torch(normalization: Any, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likelihood, "_GATHERED", step)
    ids_BK, log_z_BL = RNG.integers(0, 40, (5, 7)), RNG.normal(size=(5, 4)).astype(np.float32)
    expected = likelihood_torch.score_shortlist(
        model("cpu"), SpanOutput(torch.from_numpy(HIDDEN)), torch.from_numpy(log_z_BL), NAMES, ids_BK,
        normalization,
    )  # fmt: skip
    found = likelihood.score_shortlist(
        model(None), SpanOutput(HIDDEN), log_z_BL, NAMES, ids_BK, normalization
    )
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


def test_tokens_are_explained_as_by_torch() -> None:
    for tokens in (None, TOKENS):
        torchs, numpys = of_both("token_log_probs", tokens, NAMES)
        for row, other in zip(torchs, numpys, strict=True):
            assert [len(bag) for bag in other] == LENGTHS.tolist()
            np.testing.assert_allclose([*chain(*other)], [*chain(*row)], atol=1e-5)
