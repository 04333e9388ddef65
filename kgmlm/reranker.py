"""Reranking of the best candidates: query and candidate read together, a forward pass each.

A query's hole is filled with a candidate, its description and its own training triples; at one mask behind
it the masked LM says how much more likely "yes" is than "no". Reading the two together sees what one pass a
query cannot, at many times its cost, so only the K best of a first stage are read.

Shapes: B queries, K candidates of each, N entities, P pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from kgmlm.config import RerankingSettings, Settings
from kgmlm.graph import ContextGraph
from kgmlm.kg import IntArray, ModelError, Queries, Query
from kgmlm.linearization import answer_text, linearize, neighborhood
from kgmlm.modeling import SpanModel
from kgmlm.reader import Reader, padded
from kgmlm.states import SpanOutput
from kgmlm.tokenization import Encoded, SpanTokenizer

WORDS = ("yes", "no")
_CACHED = 200_000  # candidates' tokens that are kept
_ENCODED = 2**16  # pairs whose tokens are there at once: 64 MB


class Reranker:
    """Scores pairs of a query and a candidate by a masked LM that reads both.

    Args:
        settings: of the reranker's own run.

    Raises:
        ModelError: when the tokenizer writes "yes" and "no" alike.
    """

    def __init__(
        self,
        context: ContextGraph,
        tokenizer: SpanTokenizer,
        model: SpanModel,
        settings: Settings,
    ) -> None:
        self.context = context
        self.tokenizer = tokenizer
        self.model = model
        self.settings = settings
        yes, no = (ids[-1] for ids in tokenizer.encode_words(WORDS))
        if yes == no:
            raise ModelError("the tokenizer cannot tell 'yes' from 'no', which reranking is read from")
        self._words = torch.tensor([yes, no])
        self._answers: dict[Query, list[int]] = {}

    @classmethod
    def of(cls, reader: Reader) -> Reranker:
        """One with the model of a reader."""
        return cls(reader.context, reader.tokenizer, reader.model, reader.settings)

    @property
    def reranking(self) -> RerankingSettings:
        """The settings of reranking."""
        return self.settings.reranking

    def over(self, context: ContextGraph) -> Reranker:
        """The same over another graph."""
        return Reranker(context, self.tokenizer, self.model, self.settings)

    def encode(
        self, queries: Queries, ids: Sequence[IntArray], rng: np.random.Generator | None = None
    ) -> list[list[Encoded]]:
        """The tokens of B queries, each with each of its candidates.

        Args:
            ids: the candidates of each query.
            rng: in training, draws which neighbors are left out.
        """
        text = self.settings.text
        asked = self.tokenizer.encode_queries(linearize(self.context, queries, text, rng), 1, text.max_length)
        # As the candidate is asked for in turn: its triples that answer this are withheld like the query's.
        turned = [
            [Query(i, q.relation, "tail" if q.target == "head" else "head") for i in row]
            for q, row in zip(queries, (row.tolist() for row in ids), strict=True)
        ]
        told = self._tell([q for row in turned for q in row], rng)
        return [[filled(whole, told[q]) for q in row] for whole, row in zip(asked, turned, strict=True)]

    def _tell(self, turned: Sequence[Query], rng: np.random.Generator | None) -> dict[Query, list[int]]:
        """The tokens of each distinct candidate; kept, unless they are drawn."""
        known = self._answers if rng is None else {}
        if len(known) > _CACHED:
            known.clear()
        text, settings = self.settings.text, self.reranking
        new = [q for q in dict.fromkeys(turned) if q not in known]
        written = [
            answer_text(
                self.context,
                q.entity,
                text.descriptions,
                neighborhood(self.context, q, settings.neighbors, text.neighbor_dropout, rng)
                if settings.neighbors
                else (),
            )
            for q in new
        ]
        first, last = len(self.tokenizer.prefix), len(self.tokenizer.suffix)
        for q, encoded in zip(
            new, self.tokenizer.encode_queries(written, 0, settings.max_length + first + last), strict=True
        ):
            known[q] = encoded.input_ids[first : len(encoded.input_ids) - last]
        return known

    def read(self, span: SpanOutput) -> torch.Tensor:
        """Scores ``(P,)`` of P pairs from their states: the log odds of "yes" against "no"."""
        weight_VD, bias_V = self.model.decoder
        words = self._words.to(weight_VD.device)
        (yes_D, no_D), (yes, no) = weight_VD[words].float(), bias_V[words].float()
        scores_P: torch.Tensor = span.hidden_BLD[:, 0] @ (yes_D - no_D) + (yes - no)
        return scores_P

    @torch.inference_mode()
    def score(
        self,
        queries: Queries,
        ids_BK: IntArray,
        batch_size: int = 64,
        advance: Callable[[int], None] = lambda n: None,
    ) -> torch.Tensor:
        """Scores ``(B, K)`` of the candidates ``ids_BK``, float32 on the model's device; 0 where an id is -1.

        Args:
            advance: called with the number of pairs done.
        """
        self.model.eval()
        row_P, column_P = np.nonzero(ids_BK >= 0)
        scores_BK = torch.zeros(ids_BK.shape, device=self.model.device)
        for start in range(0, len(row_P), _ENCODED):
            row_p, column_p = row_P[start : start + _ENCODED], column_P[start : start + _ENCODED]
            own, first = np.unique(row_p, return_index=True)
            told = self.encode(queries[own], np.split(ids_BK[row_p, column_p], first[1:]))
            pairs = [pair for row in told for pair in row]
            for at, batch in padded(self.tokenizer, pairs, batch_size, self.model.device):
                scores_BK[row_p[at], column_p[at]] = self.read(self.model(batch))
                advance(len(at))
        return scores_BK


def filled(asked: Encoded, answer: list[int]) -> Encoded:
    """A query's tokens with a candidate's before the hole."""
    ids, start = asked.input_ids, asked.span_start
    return replace(asked, input_ids=[*ids[:start], *answer, *ids[start:]], span_start=start + len(answer))
