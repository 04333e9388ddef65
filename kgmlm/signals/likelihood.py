"""The mean token log-likelihood of a candidate's name in the query's hole (MLMLM; Clouatre et al., 2021).

In NumPy here; :mod:`kgmlm.signals.likelihood_torch` computes the same with torch, and its gradients.

Shapes: B queries, N candidates, K of each query's own, L span, V vocabulary, P distinct pairs.
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from kgmlm.core.arrays import Array, IntArray, at, logits, logsumexp
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.signals.base import Pool
from kgmlm.text.reader import Normalization, PairTable, Reader, Reading, SpanOutput, TextModel
from kgmlm.text.tokenization import Candidates

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


class Likelihood:
    """Scores names by their tokens' log-likelihoods, all of them from one forward pass."""

    name: ClassVar[str] = "likelihood"
    title: ClassVar[str] = "likelihood"
    about: ClassVar[str] = "how likely the language model finds the name of an entity in the gap"
    reads: ClassVar[bool] = True
    file: ClassVar[str] = "model/model.safetensors"

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._latest: tuple[Pool, PairTable] | None = None
        self._normalized: tuple[SpanOutput, Array] | None = None

    @classmethod
    def fresh(cls, reader: Reader) -> Likelihood:
        """The likelihood under the reader's model."""
        return cls(reader)

    def save(self, path: Path) -> None:
        """The weights of the model are all that it needs."""

    @classmethod
    def open(cls, path: Path, graph: KnowledgeGraph, reader: Reader) -> Likelihood:
        """The likelihood under the reader's model."""
        return cls(reader)

    def over(self, reader: Reader, entity_rows: IntArray, relation_rows: IntArray) -> Likelihood:
        """A copy for another graph."""
        return Likelihood(reader)

    @property
    def _scoring(self) -> ModuleType:
        """The module that turns states into likelihoods where the model computes."""
        return import_module(__name__ if self.reader.model.device is None else f"{__name__}_torch")

    @cached_property
    def _all(self) -> PairTable:
        return self.table(None)

    @cached_property
    def softmax_tokens(self) -> Array | None:
        """The tokens of the softmax, on the model's device; None is the whole vocabulary."""
        tokens = self.reader.vocabulary.softmax_tokens
        return None if tokens is None else at(self.reader.model.device, tokens)

    def table(self, entity_ids: IntArray | None) -> PairTable:
        """A scoring table of some entities (None: all), on the model's device."""
        names = self.reader.names
        return PairTable.of(names if entity_ids is None else names.take(entity_ids), self.reader.model.device)

    def normalizer(self, span: SpanOutput) -> Array:
        """``log Z_BL`` over the vocabulary or the run's frozen tokens; of the latest states it is kept."""
        latest = self._normalized
        if latest is None or latest[0] is not span:
            latest = self._normalized = span, self.reader.model.log_normalizer(span, self.softmax_tokens)
        return latest[1]

    def scores(self, span: SpanOutput, table: PairTable, normalization: Normalization | None = None) -> Array:
        """Scores ``(B, N)`` under the run's settings; differentiable where gradients are enabled."""
        normalization = normalization or self.reader.settings.scoring.normalization
        found: Array = self._scoring.candidate_scores(
            self.reader.model, span, self.softmax_tokens, table, normalization
        )
        return found

    def score(self, reading: Reading, pool: Pool) -> Array:
        """Scores ``(B, N)`` or ``(B, K)``."""
        if pool.own:
            reader, span = self.reader, reading.span
            normalization = reader.settings.scoring.normalization
            found: Array = self._scoring.score_shortlist(
                reader.model, span, self.normalizer(span), reader.names, pool.filled, normalization
            )
            return found
        if pool.ids is None:
            return self.scores(reading.span, self._all)
        if self._latest is None or self._latest[0] is not pool:
            self._latest = (pool, self.table(pool.ids))
        return self.scores(reading.span, self._latest[1])

    def explain(self, reading: Reading, entity_ids: IntArray) -> list[list[list[float]]]:
        """Log-likelihood of each token of some candidates under each query: ``[b][n][i]``."""
        names = self.reader.names.take(entity_ids)
        model = self.reader.model
        with model.inference():
            found: list[list[list[float]]] = self._scoring.token_log_probs(
                model, reading.span, self.softmax_tokens, names
            )
        return found
