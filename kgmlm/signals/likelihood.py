"""The mean token log-likelihood of a candidate's name in the query's hole (MLMLM; Clouatre et al., 2021).

Shapes: B queries, N candidates, L span.
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from kgmlm.arrays import Array, at
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import IntArray
from kgmlm.pairs import Normalization, PairTable
from kgmlm.pool import Pool, Reading
from kgmlm.reader import Reader
from kgmlm.states import SpanOutput


class Likelihood:
    """Scores names by their tokens' log-likelihoods, all of them from one forward pass."""

    name: ClassVar[str] = "likelihood"
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
        """The same for another graph."""
        return Likelihood(reader)

    @property
    def _scoring(self) -> ModuleType:
        """What turns states into likelihoods where the model computes."""
        return import_module("kgmlm.array_scoring" if self.reader.model.device is None else "kgmlm.scoring")

    @cached_property
    def _all(self) -> PairTable:
        return self.table(None)

    @cached_property
    def softmax_tokens(self) -> Array | None:
        """What the softmax runs over, on the model's device; None is the whole vocabulary."""
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
