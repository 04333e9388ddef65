"""Mean token log-likelihood of every candidate from one forward pass; the objectives on the same scores.

``score(e) = 1/k * sum_i log p_i(token_i(e))`` (Clouatre et al., 2021, MLMLM). Entities share tokens, so
log-probabilities are made once a distinct (position, token) pair and then averaged over bags of pairs.

Shapes: B queries, N candidates, L span, D decoder width, P distinct (position, token) pairs.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.autograd.function import once_differentiable

from kgmlm.core.arrays import IntArray
from kgmlm.text.reader import Normalization, PairTable, SpanOutput
from kgmlm.text.tokenization import Candidates
from kgmlm.text.torch_model import SpanModel, logits

_LOGITS = 2**25  # logits held at once: 128 MB
_GATHERED = 2**24  # floats gathered at once: 64 MB


class _PairLogProbs(torch.autograd.Function):
    """Log-probabilities of pairs whose gradient is made in the buffer of the logits.

    That buffer is the largest thing in a step (vocabulary times positions times queries). Autograd would keep
    the logits, and make the softmax, the gradient of what is looked up and their sum beside it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_DR: torch.Tensor,
        weight_VD: torch.Tensor,
        bias_V: torch.Tensor,
        outside: torch.Tensor | None,
        rows_P: torch.Tensor,
        position_P: torch.Tensor,
        count: int,
    ) -> torch.Tensor:
        """``(P, B)``.

        Args:
            outside: rows of the decoder that the softmax leaves out.
            rows_P: token times span plus position of each pair, all different.
            count: B.
        """
        logits_VR = torch.addmm(bias_V[:, None], weight_VD, hidden_DR)
        pairs_PB = logits_VR.view(-1, count)[rows_P]
        if outside is not None:
            logits_VR[outside] = -torch.inf
        highest_R = logits_VR.amax(0)
        weights_VR = logits_VR.sub_(highest_R).exp_()
        total_R = weights_VR.sum(0)
        ctx.weights_VR = weights_VR  # not saved by autograd, which would refuse that backward overwrites it
        ctx.save_for_backward(hidden_DR, weight_VD, total_R, rows_P, position_P)
        log_z_LB = (highest_R + total_R.log()).view(-1, count)
        return pairs_PB.sub_(log_z_LB[position_P])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_PB: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of states, weight and bias."""
        hidden_DR, weight_VD, total_R, rows_P, position_P = ctx.saved_tensors
        grad_VR, ctx.weights_VR = ctx.weights_VR, None
        count = grad_PB.shape[1]
        moved_LB = grad_PB.new_zeros(len(total_R) // count, count).index_add_(0, position_P, grad_PB)
        grad_VR.mul_(-moved_LB.flatten() / total_R)
        grad_VR.view(-1, count).index_add_(0, rows_P, grad_PB)
        return (weight_VD.T @ grad_VR, grad_VR @ hidden_DR.T, grad_VR.sum(1), None, None, None, None)


def pair_log_probs(
    model: SpanModel, span: SpanOutput, softmax_tokens: torch.Tensor | None, table: PairTable
) -> torch.Tensor:
    """``log p_i(t)`` of every pair as contiguous rows: ``(P, B)``, float32.

    Logits of all tokens are made once, for the normalizer and for the pairs, with the batch innermost: what
    is looked up, and added up in the backward pass, are rows. Differentiable once.
    """
    weight_VD, bias_V = model.decoder
    tokens_P, outside = table.tokens_P, None
    if softmax_tokens is not None:
        used = torch.unique(torch.cat([softmax_tokens, tokens_P]))
        weight_VD, bias_V = weight_VD[used], bias_V[used]
        tokens_P = torch.searchsorted(used, tokens_P)
        outside = torch.isin(used, softmax_tokens, assume_unique=True, invert=True).nonzero()[:, 0]
    count, length, width = span.hidden_BLD.shape
    hidden_DR = span.hidden_BLD.permute(2, 1, 0).reshape(width, length * count)
    starts = torch.tensor(table.starts, device=tokens_P.device)
    position_P = torch.arange(len(starts) - 1, device=starts.device).repeat_interleave(starts.diff())
    log_probs_PB: torch.Tensor = _PairLogProbs.apply(  # type: ignore[no-untyped-call]
        hidden_DR,
        weight_VD.float(),
        bias_V.float(),
        outside,
        tokens_P * length + position_P,
        position_P,
        count,
    )
    return log_probs_PB


def score_candidates(
    model: SpanModel,
    span: SpanOutput,
    softmax_tokens: torch.Tensor | None,
    table: PairTable,
    normalization: Normalization = "mean",
) -> torch.Tensor:
    """Scores ``(B, N)`` of all candidates, differentiable, finite float32.

    Args:
        softmax_tokens: what ``Z`` sums over; None is the whole vocabulary.
        normalization: "mean" over a name's tokens, or their "sum".
    """
    return _bags(pair_log_probs(model, span, softmax_tokens, table), table, normalization).T


def rank_candidates(
    model: SpanModel,
    span: SpanOutput,
    softmax_tokens: torch.Tensor | None,
    table: PairTable,
    normalization: Normalization = "mean",
) -> torch.Tensor:
    """The scores of :func:`score_candidates` without gradients, from one pass over the decoder's rows.

    Args:
        softmax_tokens: what ``Z`` sums over; None is the whole vocabulary.
    """
    weight_VD, bias_V = (x.float() for x in model.decoder)
    count, length, _ = span.hidden_BLD.shape
    scores_BN: torch.Tensor = span.hidden_BLD.new_empty(count, len(table))
    step = max(1, _LOGITS // (length * len(weight_VD)))
    for hidden_bLD, scores_bN in zip(span.hidden_BLD.split(step), scores_BN.split(step), strict=True):
        logits_bLV = logits(hidden_bLD.flatten(0, 1), weight_VD, bias_V).unflatten(0, (-1, length))
        among_bLV = logits_bLV if softmax_tokens is None else logits_bLV[..., softmax_tokens]
        log_z_bL = among_bLV.logsumexp(2)
        log_probs_bP = torch.cat(
            [
                logits_bLV[:, i].index_select(1, table.tokens_P[a:b]) - log_z_bL[:, i, None]
                for i, (a, b) in enumerate(pairwise(table.starts))
            ]
            or [logits_bLV[:, 0, :0]],
            1,
        )
        if log_probs_bP.is_cuda:
            scores_bN.copy_(_bags(log_probs_bP.T.contiguous(), table, normalization).T)
            continue
        for log_probs_P, scores_N in zip(log_probs_bP, scores_bN, strict=True):
            _gather(log_probs_P, table, normalization, scores_N)
    return scores_BN


def candidate_scores(
    model: SpanModel,
    span: SpanOutput,
    softmax_tokens: torch.Tensor | None,
    table: PairTable,
    normalization: Normalization = "mean",
) -> torch.Tensor:
    """Scores ``(B, N)``, differentiable where gradients are enabled."""
    score = score_candidates if torch.is_grad_enabled() else rank_candidates
    return score(model, span, softmax_tokens, table, normalization)


def _bags(log_probs_PB: torch.Tensor, table: PairTable, normalization: Normalization) -> torch.Tensor:
    """Scores ``(N, B)``."""
    return nn.functional.embedding_bag(
        table.pairs, log_probs_PB, table.offsets, mode=normalization, include_last_offset=True
    )


def _gather(
    log_probs_P: torch.Tensor, table: PairTable, normalization: Normalization, scores_N: torch.Tensor
) -> None:
    """Scores of one query: names of one length at a time, far faster on a CPU than bags of one column."""
    groups, places = table.columns
    parts = []
    for length, columns in enumerate(groups):
        if not length:
            parts.append(log_probs_P.new_zeros(len(table) - sum(len(c[0]) for c in groups[1:])))
            continue
        total = log_probs_P.index_select(0, columns[0])
        for pairs in columns[1:]:
            total += log_probs_P.index_select(0, pairs)
        parts.append(total.div_(length) if normalization == "mean" else total)
    torch.index_select(torch.cat(parts), 0, places, out=scores_N)


def score_shortlist(
    model: SpanModel,
    span: SpanOutput,
    log_normalizer_BL: torch.Tensor,
    candidates: Candidates,
    ids_BK: IntArray,
    normalization: Normalization = "mean",
) -> torch.Tensor:
    """Scores ``(B, K)`` of K candidates of each query's own, the same as :func:`score_candidates` gives."""
    weight_VD, bias_V = model.decoder
    device = weight_VD.device
    k = ids_BK.shape[1]
    chosen = candidates.take(ids_BK.ravel())
    lengths = chosen.lengths_N
    query = torch.from_numpy(np.repeat(np.repeat(np.arange(len(ids_BK)), k), lengths)).to(device)
    within = np.arange(len(chosen.token_ids)) - np.repeat(chosen.offsets[:-1], lengths)
    position, tokens = (torch.from_numpy(x).to(device) for x in (within, chosen.token_ids))
    step = max(1, _GATHERED // weight_VD.shape[1])
    parts = [
        (weight_VD[t].float() * span.hidden_BLD[q, p]).sum(1) + bias_V[t].float() - log_normalizer_BL[q, p]
        for q, p, t in zip(query.split(step), position.split(step), tokens.split(step), strict=True)
    ]
    bags = nn.functional.embedding_bag(
        torch.arange(len(tokens), device=device),
        torch.cat(parts)[:, None],
        torch.from_numpy(chosen.offsets).to(device),
        mode=normalization,
        include_last_offset=True,
    )
    return bags.view(len(ids_BK), k)


def token_log_probs(
    model: SpanModel, span: SpanOutput, softmax_tokens: torch.Tensor | None, candidates: Candidates
) -> list[list[list[float]]]:
    """For B queries and few candidates, the log-likelihood of each token: ``[b][n][i]``, for explanations."""
    table = PairTable.of(candidates, span.hidden_BLD.device)
    values_PB = pair_log_probs(model, span, softmax_tokens, table)[table.pairs].T.tolist()
    bounds = candidates.offsets.tolist()
    return [[row[a:b] for a, b in pairwise(bounds)] for row in values_PB]


def entity_loss(
    scores_BN: torch.Tensor,
    answers: tuple[torch.Tensor, torch.Tensor],
    temperature: float,
    log_weight_BN: torch.Tensor | None = None,
) -> torch.Tensor:
    """Cross-entropy of a softmax over entities, all true answers of a query as equal targets.

    Args:
        scores_BN: scores of the *training* entities; no other entity may be a negative.
        answers: (row, column) of every true answer; each row has one at least.
        temperature: scores are divided by it.
        log_weight_BN: of a sample of entities, the logarithm of how many each stands for in the softmax.
    """
    rows, columns = answers
    scaled_BN = scores_BN / temperature
    if log_weight_BN is None:
        log_probs_BN = scaled_BN.log_softmax(1)
    else:
        log_probs_BN = scaled_BN - (scaled_BN + log_weight_BN).logsumexp(1, keepdim=True)
    counts_B = torch.bincount(rows, minlength=len(scores_BN))
    return -(1 / counts_B[rows] * log_probs_BN[rows, columns]).sum() / len(scores_BN)


def left_out(scores_BN: torch.Tensor, at: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Scores whose (row, column) pairs have no share of a softmax; differentiable in the others."""
    # Finite, also when divided by a temperature: zero times infinity is no number.
    return scores_BN.index_put(at, scores_BN.new_tensor(-1e30))


def token_loss(scores_BN: torch.Tensor, answers: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The paper's objective: cross-entropy of the gold tokens.

    Averaged over the tokens of a name, then the answers of a query, then the queries.

    Args:
        scores_BN: *mean* log-likelihoods of the candidates that the answers point into.
    """
    rows, columns = answers
    counts_B = torch.bincount(rows, minlength=len(scores_BN))
    return -(1 / counts_B[rows] * scores_BN[rows, columns]).sum() / len(scores_BN)
