from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from families import FAMILIES, build
from signal_tests import SignalTests

from kgmlm.core.arrays import Floats, HostTable, IntArray, top
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.ranking.ranker import Ranker
from kgmlm.signals.likelihood import Likelihood, mean_of_names, mean_of_own_names
from kgmlm.signals.likelihood_training import (
    TensorTable,
    entity_loss,
    left_out,
    score_candidates,
    token_loss,
)
from kgmlm.text import reader as reader_module
from kgmlm.text.linearization import Linearization, Segment
from kgmlm.text.reader import PairTable, States, log_probabilities
from kgmlm.text.tokenization import Candidates, SpanTokenizer
from kgmlm.text.torch_model import (
    DeviceTable,
    SpanModel,
    SpanOutput,
    log_probabilities_by_torch,
    span_model,
)

CPU = torch.device("cpu")

NAMES = ["Georgia", "New York", "New York City", "disease or syndrome", "virus", "virus", "Paris, in France"]


class TestLikelihood(SignalTests):
    kind = Likelihood


def brute_force(mlm: object, tokenizer: object, text: str, names: list[str], span: int, *,
                end: bool, allowed: list[int] | None) -> list[float]:  # fmt: skip
    """An independent loop: one full forward, Python arithmetic, no code of the package."""
    ids = tokenizer(f"{text} " + " ".join([tokenizer.mask_token] * span))["input_ids"]  # type: ignore[operator, attr-defined]
    logits = mlm(torch.tensor([ids])).logits[0].double()  # type: ignore[operator]
    start = ids.index(tokenizer.mask_token_id)  # type: ignore[attr-defined]
    scores = []
    for name in names:
        whole = tokenizer(f"{text} {name}", add_special_tokens=False)["input_ids"]  # type: ignore[operator]
        tokens = whole[len(tokenizer(text, add_special_tokens=False)["input_ids"]) :]  # type: ignore[operator]
        tokens = (tokens + ([tokenizer.sep_token_id] if end else []))[:span]  # type: ignore[attr-defined]
        value = 0.0
        for i, token in enumerate(tokens):
            row = logits[start + i]
            among = row if allowed is None else row[allowed]
            value += float(row[token]) - math.log(sum(math.exp(float(x)) for x in among))
        scores.append(value / len(tokens))
    return scores


@pytest.mark.parametrize("allowed", [None, [5, 9, 11, 40]])
@pytest.mark.parametrize("end", [False, True])
@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "electra"])
def test_scores_equal_a_brute_force_loop(family: str, end: bool, allowed: list[int] | None) -> None:
    mlm, hf_tokenizer = build(family)
    tokenizer, model = SpanTokenizer(hf_tokenizer), SpanModel(mlm)
    candidates = tokenizer.candidates(NAMES, 5, end)
    text = "virus | causes |"
    batch = tokenizer.collate(tokenizer.encode_queries([Linearization((Segment(text),))], 5, 64))
    table = PairTable.of(candidates)
    among = None if allowed is None else np.array(allowed)
    log_probs_1P = model.log_probabilities(model.states(batch), table, among)
    (scores,) = mean_of_names(log_probs_1P, table)
    with torch.no_grad():
        tokens = None if allowed is None else torch.tensor(allowed)
        (trained,) = score_candidates(
            model,
            model(batch),
            tokens,
            TensorTable.of(table, CPU),
        )
        expected = brute_force(mlm, hf_tokenizer, text, NAMES, 5, end=end, allowed=allowed)
    np.testing.assert_allclose(scores, expected, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(trained.numpy(), expected, atol=1e-5, rtol=1e-5)
    assert scores.dtype == np.float32


def test_training_and_ranking_score_alike(tiny_model: SpanModel) -> None:
    rng = np.random.default_rng(0)
    lengths = np.array([3, 1, 0, 6, 3, 2, 0, 1])
    tokens = rng.integers(5, 40, lengths.sum())
    names = Candidates(tokens, np.concatenate([[0], lengths.cumsum()]), lengths > 9)
    table = PairTable.of(names)
    hidden = rng.standard_normal((5, 6, tiny_model.width), np.float32)
    span = SpanOutput(torch.from_numpy(hidden))
    trained = score_candidates(tiny_model, span, None, TensorTable.of(table, CPU))
    assert trained.requires_grad
    by_model = mean_of_names(tiny_model.log_probabilities(States(hidden), table), table)
    np.testing.assert_allclose(by_model, trained.detach().numpy(), atol=1e-5, rtol=1e-5)
    none = PairTable.of(names.take(np.zeros(0, np.int64)))
    assert mean_of_names(tiny_model.log_probabilities(States(hidden), none), none).shape == (5, 0)


@pytest.mark.parametrize("count", [1, 1000, 1025, 50_000])
@pytest.mark.parametrize("k", [0, 1, 7, 40])
def test_the_best_are_those_of_a_stable_sort(count: int, k: int) -> None:
    for levels in (3, 10_000):
        scores_N = np.random.default_rng(k).integers(0, levels, count).astype(np.float32)
        assert top(scores_N, k) == np.argsort(-scores_N, kind="stable")[:k].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_those_of_the_pass_for_gradients(family: str) -> None:
    """States and scores, of whatever family."""
    mlm, hf_tokenizer = build(family)
    tokenizer, model = SpanTokenizer(hf_tokenizer), SpanModel(mlm)
    candidates = tokenizer.candidates(NAMES, 5, end_of_name=False)
    texts = [Linearization((Segment(t),)) for t in ("virus | causes |", "Georgia |")]
    batch = tokenizer.collate(tokenizer.encode_queries(texts, 5, 64, vector=True))
    model.set_dropout(0.0)
    model.train()
    table, span = PairTable.of(candidates), model(batch)
    trained = score_candidates(model, span, None, TensorTable.of(table, CPU))
    assert trained.requires_grad
    assert span.vector_BD is not None
    states = model.states(batch)
    assert states.vector_BD is not None
    scores = mean_of_names(model.log_probabilities(states, table), table)
    pairs = ((states.hidden_BLD, span.hidden_BLD), (states.vector_BD, span.vector_BD), (scores, trained))
    for answer, with_gradients in pairs:
        np.testing.assert_allclose(answer, with_gradients.detach().numpy(), rtol=1e-5, atol=1e-5)


def test_equal_names_tie_exactly(make_ranker: Callable[..., Ranker], toy: KnowledgeGraph) -> None:
    ranker = make_ranker()
    two = [toy.entities.index[x] for x in ("georgia_country", "georgia_state")]
    for _, scores in ranker.rank(toy.queries("test")[0]):
        assert np.array_equal(scores[:, two[0]], scores[:, two[1]])


def test_scores_of_some_candidates_are_those_of_all(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    ranker = make_ranker()
    queries, _ = toy.queries("test")
    ids = np.array([7, 2, 2, 19])
    everything, some = (np.zeros((len(queries), n), np.float32) for n in (len(toy.entities), 4))
    for rows, scores in ranker.rank(queries):
        everything[rows] = scores
    for rows, scores in ranker.rank(queries, ids, batch_size=3):
        some[rows] = scores
    np.testing.assert_allclose(some, everything[:, ids], atol=1e-5, rtol=1e-5)


def test_an_entity_softmax_prefers_all_true_answers_alike() -> None:
    scores = torch.zeros(1, 4, requires_grad=True)
    loss = entity_loss(scores, (torch.tensor([0, 0]), torch.tensor([1, 3])), 0.5)
    assert loss.item() == pytest.approx(math.log(4))
    loss.backward()
    assert scores.grad is not None
    assert scores.grad[0, 1] == scores.grad[0, 3] < 0 < scores.grad[0, 0]


def test_the_entity_loss_weighs_queries_alike() -> None:
    scores = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    rows, columns = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 2, 4])
    log_p = (scores / 0.25).log_softmax(1)
    expected = -(log_p[0, :3].mean() + log_p[1, 4]) / 2
    torch.testing.assert_close(entity_loss(scores, (rows, columns), 0.25), expected)


def test_the_token_loss_is_cross_entropy_on_the_gold_span(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    ranker = make_ranker()
    queries, answers = toy.queries("train")
    queries, answers = queries[:4], answers[:4]
    batch = ranker.reader.tokenizer.collate(ranker.reader.encode(queries))
    table = TensorTable.of(PairTable.of(ranker.reader.names.take(answers)), CPU)
    model = span_model(ranker.reader.model)
    with torch.no_grad():
        ids_BT, mask_BT = (torch.from_numpy(x) for x in (batch.input_ids_BT, batch.attention_mask_BT))
        full = model.mlm(input_ids=ids_BT, attention_mask=mask_BT).logits
        expected = []
        for b, answer in enumerate(answers):
            gold = torch.from_numpy(ranker.reader.names.tokens(answer))
            at = batch.span_start_B[b] + torch.arange(len(gold))
            expected.append(torch.nn.functional.cross_entropy(full[b, at], gold))
        scores = score_candidates(model, model(batch), None, table)
        loss = token_loss(scores, (torch.arange(4), torch.arange(4)))
    torch.testing.assert_close(loss, torch.stack(expected).mean(), atol=1e-5, rtol=1e-5)


def test_a_shortlist_has_the_scores_of_all_candidates(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    ranker = make_ranker(end_of_name=True)
    queries, _ = toy.queries("test")
    ids = np.random.default_rng(0).integers(0, len(toy.entities), (len(queries), 7))
    for rows, first in ranker.first_stage(queries):
        few = ranker.likelihood.score(first.reading, ranker.pool(ids[rows]))
        expected = np.take_along_axis(first.signal_scores["likelihood"], ids[rows], 1)
        np.testing.assert_allclose(few, expected, atol=1e-5, rtol=1e-5)


class Decoder:
    """What scoring knows of a model: rows and biases, one for each token."""

    def __init__(self, tokens: int = 40, width: int = 6) -> None:
        generator = torch.Generator().manual_seed(1)
        self.decoder = (
            torch.randn(tokens, width, generator=generator).requires_grad_(),
            torch.randn(tokens, generator=generator).requires_grad_(),
        )


NAME_TOKENS = [[7], [3, 7], [7, 7, 1], [], [3], [9, 1]]


def names_of(tokens: list[list[int]]) -> Candidates:
    lengths = np.array([len(x) for x in tokens], np.int64)
    flat = np.array([t for name in tokens for t in name], np.int64)
    return Candidates(flat, np.concatenate([[0], lengths.cumsum()]), np.zeros(len(tokens), np.bool_))


def arrays_of(decoder: Any) -> tuple[Floats, Floats]:
    """Its weight and bias for NumPy."""
    weight, bias = (x.detach().numpy() for x in decoder.decoder)
    return weight, bias


def ranked(
    decoder: Any,
    hidden_BLD: torch.Tensor,
    tokens: IntArray | None,
    table: PairTable,
) -> Floats:
    """Scores as ranking makes them."""
    log_probs_BP = log_probabilities(arrays_of(decoder), States(hidden_BLD.numpy()), table, tokens)
    return mean_of_names(log_probs_BP, table)


def hidden_states(queries: int = 3, span: int = 4, width: int = 6) -> torch.Tensor:
    return torch.randn(queries, span, width, generator=torch.Generator().manual_seed(2))


def plainly(decoder: Any, hidden_BLD: torch.Tensor, allowed: list[int] | None) -> torch.Tensor:
    """The scores of the names by the formula, as autograd differentiates it."""
    weight, bias = decoder.decoder
    logits = hidden_BLD @ weight.T + bias
    among = logits if allowed is None else logits[..., allowed]
    log_probs = logits - among.logsumexp(2, keepdim=True)
    columns = []
    for name in NAME_TOKENS:
        parts = [log_probs[:, i, t] for i, t in enumerate(name)]
        columns.append(sum(parts[1:], parts[0]) / len(parts) if parts else torch.zeros(len(hidden_BLD)))
    return torch.stack(columns, 1)


@pytest.mark.parametrize("allowed", [None, [1, 3, 5, 20]])
def test_gradients_are_those_of_the_formula(allowed: list[int] | None) -> None:
    weights = torch.randn(3, len(NAME_TOKENS), generator=torch.Generator().manual_seed(3))
    tokens = None if allowed is None else torch.tensor(allowed)
    rows = []
    for by_formula in (False, True):
        model: Any = Decoder()
        hidden = hidden_states().requires_grad_()
        if by_formula:
            scores_BN = plainly(model, hidden, allowed)
        else:
            table = TensorTable.of(PairTable.of(names_of(NAME_TOKENS)), CPU)
            scores_BN = score_candidates(model, SpanOutput(hidden), tokens, table)
        (scores_BN * weights).sum().backward()
        rows.append((scores_BN.detach(), hidden.grad, *(x.grad for x in model.decoder)))
    for ours, theirs in zip(*rows, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
        assert theirs is not None
        assert theirs.abs().max() > 0.1


def test_queries_with_far_larger_logits_leave_the_others_finite() -> None:
    model: Any = Decoder()
    hidden = hidden_states()
    hidden[1] *= 100
    model.decoder[1].data[:] = 0
    table = PairTable.of(names_of(NAME_TOKENS))
    with torch.no_grad():
        expected = plainly(model, hidden, None)
        trained = score_candidates(model, SpanOutput(hidden), None, TensorTable.of(table, CPU))
    torch.testing.assert_close(trained, expected, atol=1e-3, rtol=1e-4)
    np.testing.assert_allclose(ranked(model, hidden, None, table), expected.numpy(), atol=1e-3, rtol=1e-4)


@torch.no_grad()
def test_a_shortlist_has_the_scores_of_the_formula() -> None:
    model: Any = Decoder()
    hidden, ids = hidden_states(), np.array([[1, 4, 5], [2, 0, 2], [5, 1, 0]])
    expected = plainly(model, hidden, None).gather(1, torch.from_numpy(ids))
    table = PairTable.of(names_of(NAME_TOKENS).take(ids.ravel()))
    log_probs_BP = log_probabilities(arrays_of(model), States(hidden.numpy()), table, None)
    np.testing.assert_allclose(mean_of_own_names(log_probs_BP, table), expected.numpy(), atol=1e-5, rtol=1e-5)
    empty = PairTable.of(names_of([]))
    assert mean_of_own_names(log_probs_BP[:, :0], empty).shape == (3, 0)


@pytest.mark.parametrize("allowed", [None, [1, 3, 5, 20]])
@pytest.mark.parametrize("at_once", [1, 2**25])
def test_a_gpu_gives_the_log_probabilities_of_the_cpu(
    allowed: list[int] | None, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the code of a GPU, which computes anywhere."""
    for module in ("reader", "torch_model"):
        monkeypatch.setattr(f"kgmlm.text.{module}._LOGITS", at_once)
    model: Any = Decoder()
    states, table = States(hidden_states().numpy()), PairTable.of(names_of(NAME_TOKENS))
    tokens = None if allowed is None else np.array(allowed)
    weight, bias = (x.detach() for x in model.decoder)
    theirs = log_probabilities_by_torch((weight, bias), states, table, tokens)
    ours = reader_module.log_probabilities(arrays_of(model), states, table, tokens)
    np.testing.assert_allclose(theirs, ours, atol=1e-5, rtol=1e-5)
    rows, queries = (np.random.default_rng(n).standard_normal((n, 6), np.float32) for n in (9, 4))
    products = DeviceTable(torch.from_numpy(rows)).products(queries)
    np.testing.assert_allclose(products, HostTable(rows).products(queries), atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("tokens", [[[3], [7], [3]], [], [[0], [0, 0], [0]]])
def test_the_shortest_spans_are_scored(tokens: list[list[int]]) -> None:
    model: Any = Decoder()
    table = PairTable.of(names_of(tokens))
    hidden = hidden_states(span=max(1, max(map(len, tokens), default=0)))
    log_probs = (hidden @ model.decoder[0].T + model.decoder[1]).log_softmax(2)
    means = [torch.stack([log_probs[:, i, t] for i, t in enumerate(x)]).mean(0) for x in tokens]
    expected = torch.stack(means, 1) if means else torch.zeros(len(hidden), 0)
    trained = score_candidates(model, SpanOutput(hidden), None, TensorTable.of(table, CPU))
    torch.testing.assert_close(trained, expected, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(ranked(model, hidden, None, table), expected.numpy(), atol=1e-5, rtol=1e-5)


def test_an_explanation_is_of_the_softmax_that_ranks(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    for softmax in ("vocabulary", "entities"):
        ranker, ids = make_ranker(softmax=softmax), np.array([3, 0, 7])
        reading = ranker.reader.reading(toy.queries("test")[0])
        means = [[np.mean(tokens) for tokens in row] for row in ranker.likelihood.explain(reading, ids)]
        scores = ranker.likelihood.score(reading, ranker.pool(ids))
        np.testing.assert_allclose(means, scores, atol=1e-5, rtol=1e-5)


def test_the_token_loss_weighs_queries_alike() -> None:
    scores = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    rows, columns = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 2, 4])
    expected = -(scores[0, :3].mean() + scores[1, 4]) / 2
    torch.testing.assert_close(token_loss(scores, (rows, columns)), expected)


def test_a_table_of_a_million_names_would_hold_four_bytes_for_a_token() -> None:
    table = PairTable.of(names_of(NAME_TOKENS))
    assert table.pairs.dtype == table.offsets.dtype == np.int32
    assert len(table) == len(NAME_TOKENS)


def test_what_is_left_out_has_no_share_of_a_softmax_and_no_gradient() -> None:
    scores = torch.randn(2, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    left = left_out(scores, (torch.tensor([0, 1]), torch.tensor([2, 0])))
    for temperature in (1.0, 0.05):
        shares = (left / temperature).softmax(1)
        assert shares[0, 2] == shares[1, 0] == 0
        torch.testing.assert_close(shares[0, [0, 1, 3]], (scores[0, [0, 1, 3]] / temperature).softmax(0))
    entity_loss(left, (torch.tensor([0, 1]), torch.tensor([1, 3])), 0.25).backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert ((scores.grad == 0) == torch.tensor([[0, 0, 1, 0], [1, 0, 0, 0]])).all()
