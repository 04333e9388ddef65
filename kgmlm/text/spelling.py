"""Names token by token: each token of a name is guessed from the text and the tokens before it.

The mean token log-likelihood guesses the tokens of a hole independently of each other. Here they are guessed
by the chain rule, as in the partially autoregressive half of UniLM-v2 (Bao et al., 2020). Behind a text
stand, for each of K names, its tokens and as many masks, all at the positions of the hole. A token sees the
text and the tokens of its name up to itself; a mask sees the text, the tokens before its own, and itself.
They do not see the masks of the text, and it sees none of them: its states are those of a plain forward pass.

Shapes: B texts, T tokens, K names of each, L span, D width of the decoder's input, S = T + 2KL.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kgmlm.core.arrays import Floats, IntArray
from kgmlm.text.tokenization import Candidates, MaskedBatch
from kgmlm.text.torch_model import SpanBatch, SpanModel, SpanOutput, positions_of


@dataclass(frozen=True)
class Spelled:
    """The tokens of K names for each of B texts.

    Attributes:
        tokens_BKL: padded with 0.
        there_BKL: which are tokens.
    """

    tokens_BKL: torch.Tensor
    there_BKL: torch.Tensor

    @classmethod
    def of(cls, names: Candidates, ids_BK: IntArray, span: int) -> Spelled:
        """The names of candidates; an id of -1 has no tokens."""
        chosen = names.take(np.maximum(ids_BK, 0).ravel())
        lengths = chosen.lengths_N
        name = np.repeat(np.arange(len(chosen)), lengths)
        within = np.arange(len(chosen.token_ids)) - np.repeat(chosen.offsets[:-1], lengths)
        tokens = np.zeros((len(chosen), span), np.int64)
        mask = np.zeros(tokens.shape, np.bool_)
        tokens[name, within], mask[name, within] = chosen.token_ids, True
        mask[ids_BK.ravel() < 0] = False
        shape = (*ids_BK.shape, span)
        return cls(torch.from_numpy(tokens.reshape(shape)), torch.from_numpy(mask.reshape(shape)))

    def to(self, device: torch.device) -> Spelled:
        """The names on a device."""
        return Spelled(self.tokens_BKL.to(device), self.there_BKL.to(device))

    def behind(self, batch: MaskedBatch) -> SpanBatch:
        """A batch with these names behind its texts; the masks of the names are read after the hole."""
        texts, length = batch.input_ids_BT.shape
        k, span = self.tokens_BKL.shape[1:]
        device = self.tokens_BKL.device
        read, after_B1 = positions_of(batch, device), torch.from_numpy(batch.span_start_B).to(device)[:, None]
        width = k * span
        masks_BM = read.input_ids_BT.gather(1, after_B1).expand(texts, width)
        ids_BS = torch.cat([read.input_ids_BT, self.tokens_BKL.reshape(texts, width), masks_BM], 1)
        within_M = torch.arange(span, device=device).repeat(k)
        places_BM = after_B1 + within_M
        columns_T = torch.arange(length, device=device)
        positions_BS = torch.cat([columns_T.expand(texts, length), places_BM, places_BM], 1)
        of_text_BT = read.attention_mask_BT.bool()
        hole_BT = (columns_T >= after_B1) & (columns_T < after_B1 + batch.span_length + batch.vector)
        names_M = torch.arange(k, device=device).repeat_interleave(span)
        same_MM = names_M[:, None] == names_M
        before_MM = same_MM & (within_M[:, None] > within_M)
        own_MM = torch.eye(width, dtype=torch.bool, device=device)
        there_B1M = self.there_BKL.reshape(texts, 1, width)
        whole = length + 2 * width
        allowed_BSS = torch.zeros(texts, whole, whole, dtype=torch.bool, device=device)
        tokens, masks = slice(length, length + width), slice(length + width, None)
        allowed_BSS[:, :length, :length] = of_text_BT[:, None]
        allowed_BSS[:, length:, :length] = (of_text_BT & ~hole_BT)[:, None]
        allowed_BSS[:, tokens, tokens] = (before_MM & there_B1M) | own_MM
        allowed_BSS[:, masks, tokens] = before_MM & there_B1M
        allowed_BSS[:, masks, masks] = own_MM
        asked_M = torch.arange(length + width, whole, device=device)
        columns = torch.cat([read.columns, asked_M.expand(texts, width)], 1)
        rows = torch.arange(texts, device=device)[:, None].expand_as(columns)
        attention_BS = torch.ones_like(ids_BS)
        return SpanBatch(ids_BS, attention_BS, rows, columns, positions_BS, allowed_BSS)


def spelled_log_probs(
    model: SpanModel, span: SpanOutput, names: Spelled, softmax_tokens: torch.Tensor | None
) -> torch.Tensor:
    """``log p(token i | text, tokens before it)`` of names ``(B, K, L)``, differentiable; 0 behind an end.

    Args:
        softmax_tokens: what the normalizer sums over; None is the whole vocabulary.
    """
    assert span.names_BMD is not None
    weight_VD, bias_V = model.decoder
    states_BKLD = span.names_BMD.unflatten(1, names.tokens_BKL.shape[1:])
    rows_RD, tokens_R = states_BKLD[names.there_BKL], names.tokens_BKL[names.there_BKL]
    normalizer_R = model.log_normalizer(rows_RD, softmax_tokens)
    own_R = (weight_VD[tokens_R].float() * rows_RD).sum(1) + bias_V[tokens_R].float()
    found_BKL = states_BKLD.new_zeros(names.there_BKL.shape)
    log_probs: torch.Tensor = found_BKL.index_put((names.there_BKL,), own_R - normalizer_R)
    return log_probs


def spelled_scores(log_probs_BKL: torch.Tensor, names: Spelled) -> torch.Tensor:
    """Scores ``(B, K)`` of names: the mean of their tokens' log-probabilities; 0 of missing names."""
    return log_probs_BKL.sum(2) / names.there_BKL.sum(2).clamp_min(1)


@torch.inference_mode()
def read_names(
    model: SpanModel,
    batch: MaskedBatch,
    names: Candidates,
    ids_BK: IntArray,
    softmax_tokens: IntArray | None,
) -> Floats:
    """Scores ``(B, K)`` of K candidates of each text, read token by token; 0 where an id is -1.

    Args:
        names: of all candidates.
        softmax_tokens: what the normalizer sums over; None is the whole vocabulary.
    """
    model.eval()
    spelled = Spelled.of(names, ids_BK, batch.span_length).to(model.device)
    tokens = None if softmax_tokens is None else torch.from_numpy(softmax_tokens).to(model.device)
    log_probs_BKL = spelled_log_probs(model, model(batch, names=spelled.behind(batch)), spelled, tokens)
    scores_BK: Floats = spelled_scores(log_probs_BKL, spelled).cpu().numpy()
    return scores_BK
