"""Queries and candidates in, final scores out; knows no answers.

The only place where context, text, tokens, model and scoring meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from kgmlm.config import ScoringSettings, TextSettings
from kgmlm.kg import BoolArray, ContextGraph, Edge, IntArray, ModelError, Queries
from kgmlm.linearization import Linearization, get_template, neighborhood
from kgmlm.modeling import SpanModel, SpanOutput
from kgmlm.scoring import PairTable, score_candidates, token_log_probs
from kgmlm.tokenization import Candidates, Encoded, MaskedBatch, SpanTokenizer, auto_span_length

_SCORES = 2**25  # scores held at once: 128 MB


@dataclass(frozen=True)
class Vocabulary:
    """What is fixed by the training entities and frozen with a run.

    Attributes:
        span_length: masks in the hole.
        softmax_tokens: sorted token ids that the softmax runs over; None is the whole vocabulary.
    """

    span_length: int
    softmax_tokens: IntArray | None

    @classmethod
    def fit(
        cls, tokenizer: SpanTokenizer, surfaces: Sequence[str], seen_N: BoolArray, scoring: ScoringSettings
    ) -> Vocabulary:
        """Fix the span length and the softmax's tokens from the entities seen in training."""
        seen = [s for s, is_seen in zip(surfaces, seen_N, strict=True) if is_seen]
        names = tokenizer.candidates(seen, None, scoring.end_of_name)
        length = scoring.span_length
        span = auto_span_length(names.lengths_N) if length == "auto" else int(length)
        if span < 1:
            raise ModelError(f"scoring.span_length must be 1 or more, not {span}")
        if scoring.softmax == "vocabulary":
            return cls(span, None)
        fitting = tokenizer.candidates(seen, span, scoring.end_of_name)
        return cls(span, np.unique(fitting.token_ids))


class Ranker:
    """Scores every candidate of a query from one forward pass.

    Args:
        context: texts and training triples.
        vocabulary: span length and softmax tokens, frozen with the run.
    """

    def __init__(
        self,
        context: ContextGraph,
        tokenizer: SpanTokenizer,
        model: SpanModel,
        text: TextSettings,
        scoring: ScoringSettings,
        vocabulary: Vocabulary,
    ) -> None:
        self.context = context
        self.tokenizer = tokenizer
        self.model = model
        self.text = text
        self.scoring = scoring
        self.vocabulary = vocabulary
        self._template = get_template(text.template)
        limit = getattr(model.mlm.config, "max_position_embeddings", None)
        if limit is not None and text.max_length > limit:
            raise ModelError(f"text.max_length {text.max_length} exceeds the model's {limit} positions")

    @cached_property
    def candidates(self) -> Candidates:
        """Tokens of all entities of the context."""
        return self.tokenizer.candidates(
            self.context.entities.table.column("surface"),
            self.vocabulary.span_length,
            self.scoring.end_of_name,
        )

    @cached_property
    def _all(self) -> PairTable:
        return self.table(None)

    @cached_property
    def _softmax_tokens(self) -> torch.Tensor | None:
        tokens = self.vocabulary.softmax_tokens
        return None if tokens is None else torch.from_numpy(tokens).to(self.model.device)

    def table(self, entity_ids: IntArray | None) -> PairTable:
        """A scoring table of some entities (None: all), on the model's device."""
        chosen = self.candidates if entity_ids is None else self.candidates.take(entity_ids)
        return PairTable.of(chosen, self.model.device)

    def linearize(self, queries: Queries, rng: np.random.Generator | None = None) -> list[Linearization]:
        """The text of B queries.

        Args:
            rng: in training, draws which neighbors are left out.
        """
        text = self.text
        told: list[list[Edge]] = [[] for _ in range(len(queries))]
        if text.neighbors:
            told = [
                neighborhood(self.context, q, text.neighbors, text.neighbor_dropout, rng) for q in queries
            ]
        return [
            self._template(self.context, q, text.descriptions, edges)
            for q, edges in zip(queries, told, strict=True)
        ]

    def encode(self, queries: Queries, rng: np.random.Generator | None = None) -> list[Encoded]:
        """The tokens of B queries, cut to ``text.max_length``; ``rng`` as in :meth:`linearize`."""
        return self.tokenizer.encode_queries(
            self.linearize(queries, rng), self.vocabulary.span_length, self.text.max_length
        )

    def normalizer(self, span: SpanOutput) -> torch.Tensor:
        """``log Z_BL`` over the vocabulary or the run's frozen tokens."""
        return self.model.log_normalizer(span, self._softmax_tokens)

    def scores(self, span: SpanOutput, table: PairTable) -> torch.Tensor:
        """Scores ``(B, N)`` under the run's settings; differentiable."""
        return score_candidates(self.model, span, self.normalizer(span), table, self.scoring.normalization)

    def batches(self, queries: Queries, batch_size: int) -> Iterator[tuple[IntArray, MaskedBatch]]:
        """Padded batches with their rows, long queries first so that memory peaks at once."""
        encoded = self.encode(queries)
        order = np.argsort([-len(e.input_ids) for e in encoded], kind="stable")
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            batch = self.tokenizer.collate([encoded[i] for i in rows])
            yield rows, batch.to(self.model.device)

    @torch.inference_mode()
    def rank(
        self,
        queries: Queries,
        entity_ids: IntArray | None = None,
        batch_size: int = 64,
        advance: Callable[[int], None] = lambda n: None,
    ) -> Iterator[tuple[IntArray, torch.Tensor]]:
        """Score B queries against candidates, in batches and in no set order.

        Args:
            entity_ids: candidates; None is every entity.
            advance: called with the number of queries done, for progress bars.

        Yields:
            (rows of ``queries``, scores ``(b, N)``), float32 on the model's device.
        """
        self.model.eval()
        table = self._all if entity_ids is None else self.table(entity_ids)
        batch_size = max(1, min(batch_size, _SCORES // max(1, len(table))))
        for start in range(0, len(queries), 64 * batch_size):  # bounds what is encoded at once
            part = queries[start : start + 64 * batch_size]
            for rows, batch in self.batches(part, batch_size):
                yield rows + start, self.scores(self.model(batch), table)
                advance(len(rows))

    @torch.inference_mode()
    def explain(self, queries: Queries, entity_ids: IntArray) -> list[list[list[float]]]:
        """Log-likelihood of each token of some candidates under each query: ``[b][n][i]``."""
        self.model.eval()
        batch = self.tokenizer.collate(self.encode(queries)).to(self.model.device)
        span = self.model(batch)
        return token_log_probs(self.model, span, self.normalizer(span), self.candidates.take(entity_ids))
