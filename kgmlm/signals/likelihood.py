"""The mean token log-likelihood of a candidate's name in the query's hole (MLMLM; Clouatre et al., 2021).

``score(e) = 1/k * sum_i log p_i(token_i(e))``. Entities share tokens, so log-probabilities are computed once
per distinct (position, token) pair and then averaged over the pairs of each name. Its gradients are made by
:mod:`kgmlm.signals.likelihood_training`.

Shapes: B queries, N candidates, K of each query's own, L span, P distinct pairs, T tokens of all names.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np

from kgmlm.core.arrays import Floats, IntArray
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.signals.base import Pool, Signal
from kgmlm.text.reader import PairTable, Reader, Reading, States


def mean_of_names(log_probs_BP: Floats, table: PairTable) -> Floats:
    """Scores ``(B, N)`` of candidates that all queries share: names of one length at a time."""
    groups, places_N = table.columns
    scores_BN = np.empty((len(log_probs_BP), len(table)), np.float32)
    for log_probs_P, scores_N in zip(log_probs_BP, scores_BN, strict=True):
        parts = []
        for length, columns in enumerate(groups):
            if not length:
                parts.append(np.zeros(len(table) - sum(len(c[0]) for c in groups[1:]), np.float32))
                continue
            total = log_probs_P[columns[0]]
            for pairs in columns[1:]:
                total += log_probs_P[pairs]
            parts.append(total / np.float32(length))
        np.take(np.concatenate(parts), places_N, out=scores_N)
    return scores_BN


def mean_of_own_names(log_probs_BP: Floats, table: PairTable) -> Floats:
    """Scores ``(B, K)`` of K candidates of each query's own.

    Args:
        table: of the ``B * K`` candidates, those of a query one after the other.
    """
    count, lengths = len(table) // max(1, len(log_probs_BP)), np.diff(table.offsets)
    of_query = np.repeat(np.arange(len(log_probs_BP)), count)
    values_T = log_probs_BP[np.repeat(of_query, lengths), table.pairs]
    sums: Floats = np.add.reduceat(np.append(values_T, np.float32(0)), table.offsets[:-1])
    sums[lengths == 0] = 0
    sums /= np.maximum(lengths, 1).astype(np.float32)
    return sums.reshape(len(log_probs_BP), count)


class Likelihood(Signal):
    """Scores names by their tokens' log-likelihoods, all of them from one forward pass."""

    name: ClassVar[str] = "likelihood"
    title: ClassVar[str] = "likelihood"
    about: ClassVar[str] = "how likely the language model finds the name of an entity in the gap"
    reads: ClassVar[bool] = True
    file: ClassVar[str] = "model/model.safetensors"

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._latest: tuple[Pool, PairTable] | None = None

    @classmethod
    def initial(cls, reader: Reader) -> Likelihood:
        """The likelihood under the reader's model."""
        return cls(reader)

    def save(self, path: Path) -> None:
        """The weights of the model are all that it needs."""

    @classmethod
    def open(cls, path: Path, graph: KnowledgeGraph, reader: Reader | None = None) -> Likelihood:
        """The likelihood under the reader's model."""
        assert reader is not None, "it is the model's"
        return cls(reader)

    def for_graph(self, reader: Reader, entity_rows: IntArray, relation_rows: IntArray) -> Likelihood:
        """A copy for another graph."""
        return Likelihood(reader)

    @cached_property
    def _all(self) -> PairTable:
        return PairTable.of(self.reader.names)

    def _log_probabilities(self, states: States, table: PairTable) -> Floats:
        """``log p_i(t)`` of the pairs of a table under the run's softmax, ``(B, P)``."""
        reader = self.reader
        return reader.model.log_probabilities(states, table, reader.vocabulary.softmax_tokens)

    def score(self, reading: Reading, pool: Pool) -> Floats:
        """Scores ``(B, N)`` or ``(B, K)``."""
        if pool.own:
            table = PairTable.of(self.reader.names.take(pool.filled.ravel()))
            return mean_of_own_names(self._log_probabilities(reading.states, table), table)
        table = self._all if pool.ids is None else self._of(pool)
        return mean_of_names(self._log_probabilities(reading.states, table), table)

    def _of(self, pool: Pool) -> PairTable:
        """The table of candidates that all queries share; that of the latest pool is kept."""
        if self._latest is None or self._latest[0] is not pool:
            self._latest = (pool, PairTable.of(self.reader.names.take(pool.filled)))
        return self._latest[1]

    def explain(self, reading: Reading, entity_ids: IntArray) -> list[list[list[float]]]:
        """Log-likelihood of each token of some candidates under each query: ``[b][n][i]``."""
        table = PairTable.of(self.reader.names.take(entity_ids))
        log_probs_BT = self._log_probabilities(reading.states, table)[:, table.pairs]
        bounds = table.offsets.tolist()
        return [[row[a:b].tolist() for a, b in pairwise(bounds)] for row in log_probs_BT]
