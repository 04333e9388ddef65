"""What :mod:`kgmlm.scoring` does for ranking, in NumPy: names' log-likelihoods from states.

Shapes: B queries, N candidates, K of each query's own, L span, V vocabulary, P distinct pairs.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kgmlm.arrays import logits, logsumexp
from kgmlm.kg import IntArray
from kgmlm.pairs import Normalization, PairTable
from kgmlm.states import SpanOutput, TextModel
from kgmlm.tokenization import Candidates

Floats = npt.NDArray[np.float32]
_LOGITS = 2**25  # logits held at once: 128 MB
_GATHERED = 2**24  # floats gathered at once: 64 MB


def candidate_scores(
    model: TextModel,
    span: SpanOutput,
    softmax_tokens: IntArray | None,
    table: PairTable,
    normalization: Normalization = "mean",
) -> Floats:
    """Scores ``(B, N)`` of all candidates.

    Args:
        softmax_tokens: what the softmax runs over; None is the whole vocabulary.
    """
    scores_BN = np.empty((len(span.hidden_BLD), len(table)), np.float32)
    for rows, log_probs_bP in _pairs(model, span, softmax_tokens, table):
        for row, log_probs_P in zip(rows, log_probs_bP, strict=True):
            scores_BN[row] = _gathered(log_probs_P, table, normalization)
    return scores_BN


def _pairs(
    model: TextModel, span: SpanOutput, softmax_tokens: IntArray | None, table: PairTable
) -> list[tuple[IntArray, Floats]]:
    """``log p_i(t)`` of every pair, ``(b, P)``, for some rows of the batch at a time."""
    weight_VD, bias_V = model.decoder
    count, length, width = span.hidden_BLD.shape
    step = max(1, _LOGITS // max(1, length * len(weight_VD)))
    found = []
    for rows in np.split(np.arange(count), range(step, count, step)):
        logits_bLV = logits(span.hidden_BLD[rows].reshape(-1, width), weight_VD, bias_V)
        logits_bLV = logits_bLV.reshape(len(rows), length, -1)
        parts = [
            logits_bLV[:, i, table.tokens_P[begin:end]]
            for i, (begin, end) in enumerate(pairwise(table.starts))
        ]
        log_z_bL = logsumexp(logits_bLV if softmax_tokens is None else logits_bLV[..., softmax_tokens])
        shifted = [part - log_z_bL[:, i, None] for i, part in enumerate(parts)]
        found.append((rows, np.concatenate([*shifted, np.zeros((len(rows), 0), np.float32)], 1)))
    return found


def _gathered(log_probs_P: Floats, table: PairTable, normalization: Normalization) -> Floats:
    """Scores of one query: names of one length at a time."""
    groups, places = table.columns
    parts = []
    for length, columns in enumerate(groups):
        if not length:
            parts.append(np.zeros(len(table) - sum(len(c[0]) for c in groups[1:]), np.float32))
            continue
        total = log_probs_P[columns[0]]
        for pairs in columns[1:]:
            total += log_probs_P[pairs]
        parts.append(total / np.float32(length) if normalization == "mean" else total)
    found: Floats = np.concatenate(parts)[places]
    return found


def score_shortlist(
    model: TextModel,
    span: SpanOutput,
    log_normalizer_BL: Floats,
    candidates: Candidates,
    ids_BK: IntArray,
    normalization: Normalization = "mean",
) -> Floats:
    """Scores ``(B, K)`` of K candidates of each query's own."""
    weight_VD, bias_V = model.decoder
    k = ids_BK.shape[1]
    chosen = candidates.take(ids_BK.ravel())
    lengths = chosen.lengths_N
    query = np.repeat(np.repeat(np.arange(len(ids_BK)), k), lengths)
    position = np.arange(len(chosen.token_ids)) - np.repeat(chosen.offsets[:-1], lengths)
    tokens = chosen.token_ids
    values = np.empty(len(tokens), np.float32)
    step = max(1, _GATHERED // weight_VD.shape[1])
    for start in range(0, len(tokens), step):
        some = slice(start, start + step)
        q, p, t = query[some], position[some], tokens[some]
        products = np.einsum("td,td->t", weight_VD[t], span.hidden_BLD[q, p])
        values[some] = products + bias_V[t] - log_normalizer_BL[q, p]
    sums: Floats = np.add.reduceat(np.append(values, np.float32(0)), chosen.offsets[:-1])
    sums[lengths == 0] = 0
    if normalization == "mean":
        sums /= np.maximum(lengths, 1).astype(np.float32)
    return sums.reshape(len(ids_BK), k)


def token_log_probs(
    model: TextModel, span: SpanOutput, softmax_tokens: IntArray | None, candidates: Candidates
) -> list[list[list[float]]]:
    """For B queries and few candidates, the log-likelihood of each token: ``[b][n][i]``, for explanations."""
    table = PairTable.of(candidates, None)
    bounds = candidates.offsets.tolist()
    rows = [log_P for _, part in _pairs(model, span, softmax_tokens, table) for log_P in part]
    return [[row[table.pairs[a:b]].tolist() for a, b in pairwise(bounds)] for row in rows]
