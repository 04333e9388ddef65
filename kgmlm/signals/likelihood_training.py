"""Gradients of the mean token log-likelihood of every candidate, and the objectives on these scores.

The scores are those of :mod:`kgmlm.signals.likelihood`, from one forward pass.

Shapes: B queries, N candidates, L span, D decoder width, P distinct (position, token) pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from kgmlm.text.reader import PairTable
from kgmlm.text.torch_model import SpanModel, SpanOutput


@dataclass(frozen=True, eq=False)
class TensorTable:
    """A :class:`~kgmlm.text.reader.PairTable` as tensors.

    Attributes:
        position_P, tokens_P: of each pair.
        pairs, offsets: as of the table.
    """

    position_P: torch.Tensor
    tokens_P: torch.Tensor
    pairs: torch.Tensor
    offsets: torch.Tensor

    @classmethod
    def of(cls, table: PairTable, device: torch.device) -> TensorTable:
        """The table on a device."""
        tokens, pairs, offsets = (
            torch.from_numpy(x).to(device) for x in (table.tokens_P, table.pairs, table.offsets)
        )
        starts = torch.tensor(table.starts, device=device)
        positions = torch.arange(len(starts) - 1, device=device).repeat_interleave(starts.diff())
        return cls(positions, tokens, pairs, offsets)


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
        ctx.weights_VR = weights_VR  # not saved by autograd, which would not let backward overwrite it
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
    model: SpanModel, span: SpanOutput, softmax_tokens: torch.Tensor | None, table: TensorTable
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
    log_probs_PB: torch.Tensor = _PairLogProbs.apply(  # type: ignore[no-untyped-call]
        hidden_DR,
        weight_VD.float(),
        bias_V.float(),
        outside,
        tokens_P * length + table.position_P,
        table.position_P,
        count,
    )
    return log_probs_PB


def score_candidates(
    model: SpanModel,
    span: SpanOutput,
    softmax_tokens: torch.Tensor | None,
    table: TensorTable,
) -> torch.Tensor:
    """Scores ``(B, N)`` of all candidates, differentiable, finite float32.

    Args:
        softmax_tokens: what ``Z`` sums over; None is the whole vocabulary.
    """
    log_probs_PB = pair_log_probs(model, span, softmax_tokens, table)
    scores_NB: torch.Tensor = nn.functional.embedding_bag(
        table.pairs, log_probs_PB, table.offsets, mode="mean", include_last_offset=True
    )
    return scores_NB.T


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
