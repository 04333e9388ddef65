"""Texts to states: the only place where context, text, tokens and model meet, and the only padding loop.

Names of all candidates are one table of distinct (position, token) pairs, which scoring averages over.

Shapes: B queries, E entities, N candidates or entities of the graph, L span, D width of the decoder's input,
V vocabulary, P distinct (position, token) pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa

from kgmlm.core.arrays import Array, Device, IntArray, joined, like, numpy
from kgmlm.core.arrays import at as on
from kgmlm.core.config import Settings
from kgmlm.core.errors import ModelError
from kgmlm.core.machine import bound_memory, keep_memory
from kgmlm.graphs.graph import ContextGraph
from kgmlm.graphs.queries import Queries
from kgmlm.text.linearization import Linearization, entity_text, get_template, linearize
from kgmlm.text.tokenization import Candidates, Encoded, MaskedBatch, SpanTokenizer, Vocabulary


@dataclass(frozen=True)
class SpanOutput:
    """States that enter the decoder, float32.

    Attributes:
        hidden_BLD: at the span positions.
        vector_BD: at the mask behind the span, of length 1; None where there is no such mask.
        entities_ED: the vectors of the entities that were read beside the queries, if any were.
        names_BMD: at the masks of names that were read token by token, if any were.
    """

    hidden_BLD: Array
    vector_BD: Array | None = None
    entities_ED: Array | None = None
    names_BMD: Array | None = None

    def take(self, rows: IntArray) -> SpanOutput:
        """The states of some queries."""
        at = like(rows, self.hidden_BLD)
        return SpanOutput(self.hidden_BLD[at], None if self.vector_BD is None else self.vector_BD[at])

    @classmethod
    def joined(cls, parts: Sequence[SpanOutput]) -> SpanOutput:
        """The states of several batches behind each other."""
        vectors = [part.vector_BD for part in parts if part.vector_BD is not None]
        hidden_BLD = joined([part.hidden_BLD for part in parts])
        return cls(hidden_BLD, joined(vectors) if len(vectors) == len(parts) else None)


class TextModel(Protocol):
    """A masked LM that answers at the span only, whatever computes it."""

    @property
    def device(self) -> Device:
        """The device of its arrays; None for NumPy's."""

    @property
    def positions(self) -> int | None:
        """Return how many tokens a text may have; None where the model sets no limit."""

    @property
    def tokens(self) -> int:
        """Return how many tokens it can read."""

    @property
    def decoder(self) -> tuple[Array, Array]:
        """Decoder weight (V, D) and bias (V,)."""

    def __call__(self, batch: MaskedBatch) -> SpanOutput:
        """The states of a batch."""

    def eval(self) -> Any:
        """Switch off what only training does."""

    def inference(self) -> AbstractContextManager[Any]:
        """In it nothing is kept for gradients."""

    def log_normalizer(self, span: SpanOutput, tokens: Array | None = None) -> Array:
        """``log Z_BL`` over the vocabulary, or over ``tokens`` only."""

    def reduce(self, enabled: bool = True) -> None:
        """Encode in bf16, where that is possible."""


Normalization = Literal["mean", "sum"]


@dataclass(frozen=True)
class PairTable:
    """Candidates as bags of rows of a table of distinct (position, token) pairs, sorted by position.

    Attributes:
        tokens_P: token of each pair.
        starts: pairs of position i are ``starts[i]:starts[i + 1]``.
        pairs: pair of each token of each candidate, flat.
        offsets: candidate n owns ``pairs[offsets[n]:offsets[n + 1]]``.
    """

    tokens_P: Array
    starts: tuple[int, ...]
    pairs: Array
    offsets: Array

    @classmethod
    def of(cls, candidates: Candidates, device: Device = "cpu") -> PairTable:
        """Find the distinct pairs of a candidate table: by marking them, which is cheaper than sorting.

        Args:
            device: where the table is; None is NumPy.
        """
        token_ids = candidates.token_ids
        lengths = candidates.lengths_N
        span, base = (int(x.max(initial=-1)) + 1 for x in (lengths - 1, token_ids))
        keys = np.arange(len(token_ids), dtype=np.int32) - np.repeat(
            candidates.offsets[:-1].astype(np.int32), lengths
        )
        keys *= base
        keys += token_ids.astype(np.int32)
        used = np.zeros(span * base, np.bool_)
        used[keys] = True
        distinct = np.flatnonzero(used)
        row_of = np.cumsum(used, dtype=np.int32) - 1
        starts = np.searchsorted(distinct, np.arange(span + 1) * base)
        return cls(
            on(device, distinct % max(base, 1)),
            tuple(starts.tolist()),
            on(device, row_of[keys]),
            on(device, candidates.offsets.astype(np.int32)),
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def columns(self) -> tuple[list[tuple[Array, ...]], Array]:
        """The pairs by length: for names of 0, 1, 2, ... tokens the pairs at each position, and the place of
        each candidate among the names so grouped.
        """
        offsets, pairs = numpy(self.offsets), numpy(self.pairs)
        lengths = np.diff(offsets)
        order = np.argsort(lengths, kind="stable")
        places = np.empty(len(order), np.int32)
        places[order] = np.arange(len(order), dtype=np.int32)
        groups = []
        bounds = np.searchsorted(lengths[order], np.arange(lengths.max(initial=0) + 2))
        for length, (start, end) in enumerate(pairwise(bounds.tolist())):
            firsts = offsets[order[start:end]]
            groups.append(tuple(like(pairs[firsts + i], self.pairs) for i in range(length)))
        return groups, like(places, self.pairs)


class Reading:
    """Queries, and their states as the model reads them when a signal first asks.

    Args:
        read: the forward pass; None where no signal reads text.
    """

    def __init__(
        self,
        queries: Queries,
        read: Callable[[Queries], SpanOutput] | None = None,
        span: SpanOutput | None = None,
    ) -> None:
        self.queries = queries
        self._read = read
        if span is not None:
            vars(self)["span"] = span

    @cached_property
    def span(self) -> SpanOutput:
        """States at the hole and behind it."""
        assert self._read is not None, "queries without a model to read them"
        return self._read(self.queries)

    def take(self, rows: IntArray) -> Reading:
        """Some of the queries, with their states where these were read."""
        span = vars(self).get("span")
        return Reading(self.queries[rows], self._read, span and span.take(rows))

    @classmethod
    def joined(cls, parts: Sequence[tuple[IntArray, Reading]]) -> Reading:
        """Readings of some queries each (rows, reading), as one of all, in their order."""
        if len(parts) == 1 and (np.diff(parts[0][0]) > 0).all():
            return parts[0][1]
        order = np.argsort(np.concatenate([rows for rows, _ in parts]))
        queries = Queries(
            *(
                np.concatenate([getattr(reading.queries, name) for _, reading in parts])[order]
                for name in ("entity_B", "relation_B", "tail_B")
            )
        )
        spans = [vars(reading).get("span") for _, reading in parts]
        read = [span for span in spans if span is not None]
        whole = SpanOutput.joined(read).take(order) if len(read) == len(spans) else None
        return cls(queries, parts[0][1]._read, whole)


_BATCHES = 64  # batches of queries tokenized at once


def padded(
    tokenizer: SpanTokenizer, encoded: Sequence[Encoded], batch_size: int, device: Device
) -> Iterator[tuple[IntArray, MaskedBatch]]:
    """Padded batches with their rows, long texts first so that memory peaks at once."""
    order = np.argsort([-len(e.input_ids) for e in encoded], kind="stable")
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        yield rows, tokenizer.collate([encoded[i] for i in rows]).to(device)


class Reader:
    """Reads queries and entities of a graph with a masked LM.

    Args:
        context: texts and training triples.
        vocabulary: span length and softmax tokens, frozen with the run.

    Raises:
        ModelError: when texts are to be longer than the model has positions.
    """

    def __init__(
        self,
        context: ContextGraph,
        tokenizer: SpanTokenizer,
        model: TextModel,
        settings: Settings,
        vocabulary: Vocabulary,
    ) -> None:
        self.context = context
        self.tokenizer = tokenizer
        self.model: Any = model  # a SpanModel where it is trained
        self.settings = settings
        self.vocabulary = vocabulary
        get_template(settings.text.template)  # a name that there is
        limit = model.positions
        lengths = {"text.max_length": settings.text.max_length}
        if settings.vector.enabled:
            lengths["vector.max_length"] = settings.vector.max_length
        for key, length in lengths.items():
            if limit is not None and length > limit:
                raise ModelError(
                    f"{key} {length}: more than the model's {limit} positions; give it less with --set"
                )

    def over(self, context: ContextGraph) -> Reader:
        """A copy over other entities; names that are known are not tokenized again."""
        twin = Reader(context, self.tokenizer, self.model, self.settings, self.vocabulary)
        if "names" in vars(self):
            twin.adopt_names(self._renamed(context))
        return twin

    def _renamed(self, context: ContextGraph) -> Candidates:
        rows_N = context.entities.rows_in(self.context.entities)
        new = np.flatnonzero(rows_N < 0)
        rows_N[new] = len(self.names) + np.arange(len(new))
        surfaces = context.entities.table.column("surface").take(pa.array(new))
        return self.names.joined(self._tokens_of(surfaces)).take(rows_N)

    def _tokens_of(self, surfaces: pa.ChunkedArray) -> Candidates:
        return self.tokenizer.candidates(
            surfaces, self.vocabulary.span_length, self.settings.scoring.end_of_name
        )

    @cached_property
    def names(self) -> Candidates:
        """The tokens of all entities of the context."""
        return self._tokens_of(self.context.entities.table.column("surface"))

    def adopt_names(self, names: Candidates) -> None:
        """Take over the tokens of all entities of the context instead of making them."""
        vars(self)["names"] = names

    def linearize(self, queries: Queries, rng: np.random.Generator | None = None) -> list[Linearization]:
        """The text of B queries.

        Args:
            rng: in training, draws which neighbors are left out.
        """
        return linearize(self.context, queries, self.settings.text, rng)

    def encode(self, queries: Queries, rng: np.random.Generator | None = None) -> list[Encoded]:
        """The tokens of B queries, cut to ``text.max_length``; ``rng`` as in :meth:`linearize`."""
        return self.tokenizer.encode_queries(
            self.linearize(queries, rng),
            self.vocabulary.span_length,
            self.settings.text.max_length,
            vector=self.settings.vector.enabled,
        )

    def encode_entities(self, entity_ids: IntArray) -> list[Encoded]:
        """The tokens that vectors of entities are read from, cut to ``vector.max_length``."""
        descriptions = self.settings.text.descriptions
        texts = [entity_text(self.context, i, descriptions) for i in entity_ids.tolist()]
        return self.tokenizer.encode_queries(texts, 0, self.settings.vector.max_length, vector=True)

    def padded(self, encoded: Sequence[Encoded], batch_size: int) -> Iterator[tuple[IntArray, MaskedBatch]]:
        """Texts as :func:`padded` batches them."""
        return padded(self.tokenizer, encoded, batch_size, self.model.device)

    def _states(self, batch: MaskedBatch) -> SpanOutput:
        with self.model.inference():
            states: SpanOutput = self.model(batch)
        return states

    def read(self, queries: Queries) -> SpanOutput:
        """The states of B queries in one batch, in their order."""
        self.model.eval()
        return self._states(self.tokenizer.collate(self.encode(queries)).to(self.model.device))

    def reading(self, queries: Queries, batch_size: int = 64, *, text: bool = True) -> Reading:
        """Queries with their states in their order, as one; ``text`` as of :meth:`readings`."""
        return Reading.joined(list(self.readings(queries, batch_size, text=text)))

    def readings(
        self,
        queries: Queries,
        batch_size: int = 64,
        advance: Callable[[int], None] = lambda n: None,
        *,
        text: bool = True,
    ) -> Iterator[tuple[IntArray, Reading]]:
        """Queries in batches and in no set order: (rows of ``queries``, reading).

        Args:
            advance: called with the number of queries done, for progress bars.
            text: False makes no forward pass before it is asked for one.
        """
        if not text:
            for start in range(0, len(queries), batch_size):
                rows = np.arange(start, min(start + batch_size, len(queries)))
                yield rows, Reading(queries[rows], self.read)
                advance(len(rows))
            return
        self.model.eval()
        keep_memory()
        for start in range(0, len(queries), _BATCHES * batch_size):  # bounds what is encoded at once
            encoded = self.encode(queries[start : start + _BATCHES * batch_size])
            for rows, batch in self.padded(encoded, batch_size):
                yield rows + start, Reading(queries[rows + start], span=self._states(batch))
                bound_memory()
                advance(len(rows))
