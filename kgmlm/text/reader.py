"""Texts to states: the only place where context, text, tokens and model meet, and the only padding loop.

The text model is the boundary between NumPy and the backend (:class:`TextModel`): texts go in as batches of
tokens, states and log-probabilities come out as NumPy arrays. Names of all candidates are one table of
distinct (position, token) pairs, which scoring averages over.

Shapes: B queries, N candidates or entities of the graph, L span, D width of the decoder's input, V
vocabulary, P distinct (position, token) pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kgmlm.core.arrays import Floats, IntArray, Table, logits, logsumexp
from kgmlm.core.config import Settings
from kgmlm.core.errors import ModelError
from kgmlm.core.machine import bound_memory, keep_memory
from kgmlm.graphs.graph import ContextGraph
from kgmlm.graphs.queries import Queries
from kgmlm.text.linearization import Linearization, entity_text, get_template, linearize
from kgmlm.text.tokenization import Candidates, Encoded, MaskedBatch, SpanTokenizer, Vocabulary

Int32s = npt.NDArray[np.int32]
_LOGITS = 2**25  # logits held at once: 128 MB


@dataclass(frozen=True, eq=False)
class States:
    """States of B texts that enter the decoder.

    Attributes:
        hidden_BLD: at the span positions.
        vector_BD: at the mask behind the span, of length 1; None where there is no such mask.
    """

    hidden_BLD: Floats
    vector_BD: Floats | None = None

    def take(self, rows: IntArray) -> States:
        """The states of some texts."""
        return States(self.hidden_BLD[rows], None if self.vector_BD is None else self.vector_BD[rows])

    @classmethod
    def joined(cls, parts: Sequence[States]) -> States:
        """The states of several batches behind each other."""
        vectors = [part.vector_BD for part in parts if part.vector_BD is not None]
        hidden_BLD = np.concatenate([part.hidden_BLD for part in parts])
        return cls(hidden_BLD, np.concatenate(vectors) if len(vectors) == len(parts) else None)


@dataclass(frozen=True, eq=False)
class PairTable:
    """Candidates as bags of rows of a table of distinct (position, token) pairs, sorted by position.

    Attributes:
        tokens_P: token of each pair.
        starts: pairs of position i are ``starts[i]:starts[i + 1]``.
        pairs: pair of each token of each candidate, flat.
        offsets: candidate n owns ``pairs[offsets[n]:offsets[n + 1]]``.
    """

    tokens_P: IntArray
    starts: tuple[int, ...]
    pairs: Int32s
    offsets: Int32s

    @classmethod
    def of(cls, candidates: Candidates) -> PairTable:
        """Find the distinct pairs of a candidate table: by marking them, which is cheaper than sorting."""
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
        offsets = candidates.offsets.astype(np.int32)
        return cls(distinct % max(base, 1), tuple(starts.tolist()), row_of[keys], offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def columns(self) -> tuple[list[tuple[Int32s, ...]], Int32s]:
        """The pairs by length: for names of 0, 1, 2, ... tokens the pairs at each position, and the place of
        each candidate among the names so grouped.
        """
        offsets, pairs = self.offsets, self.pairs
        lengths = np.diff(offsets)
        order = np.argsort(lengths, kind="stable")
        places = np.empty(len(order), np.int32)
        places[order] = np.arange(len(order), dtype=np.int32)
        groups = []
        bounds = np.searchsorted(lengths[order], np.arange(lengths.max(initial=0) + 2))
        for length, (start, end) in enumerate(pairwise(bounds.tolist())):
            firsts = offsets[order[start:end]]
            groups.append(tuple(pairs[firsts + i] for i in range(length)))
        return groups, places


class TextModel(Protocol):
    """A masked LM that answers at the span only, whatever computes it: NumPy arrays in and out."""

    @property
    def gpu(self) -> str | None:
        """The GPU that it computes on, such as "cuda:0"; None on a CPU."""

    @property
    def positions(self) -> int | None:
        """How many tokens a text may have; None where the model sets no limit."""

    @property
    def tokens(self) -> int:
        """How many tokens it can read."""

    @property
    def width(self) -> int:
        """Return D."""

    def states(self, batch: MaskedBatch) -> States:
        """The states of a batch of texts, by one forward pass without gradients."""

    def log_probabilities(
        self, states: States, pairs: PairTable, softmax_tokens: IntArray | None = None
    ) -> Floats:
        """``log p_i(t)`` of every (position i, token t) pair under each query, ``(B, P)``.

        Args:
            softmax_tokens: what the softmax runs over; None is the whole vocabulary.
        """

    def table(self, rows_ND: Floats) -> Table:
        """Rows, such as entity vectors, placed where the model computes."""

    def reduce(self, enabled: bool = True) -> None:
        """Encode in bf16, where that is possible."""


def log_probabilities(
    decoder: tuple[Floats, Floats], states: States, pairs: PairTable, softmax_tokens: IntArray | None
) -> Floats:
    """:meth:`TextModel.log_probabilities` on a CPU.

    Args:
        decoder: weight ``(V, D)`` and bias ``(V,)``.
    """
    weight_VD, bias_V = decoder
    count, length, width = states.hidden_BLD.shape
    log_probs_BP = np.empty((count, len(pairs.tokens_P)), np.float32)
    step = max(1, _LOGITS // max(1, length * len(weight_VD)))
    for start in range(0, count, step):
        some = slice(start, start + step)
        # 1) logits of all tokens at all positions
        logits_bLV = logits(states.hidden_BLD[some].reshape(-1, width), weight_VD, bias_V)
        logits_bLV = logits_bLV.reshape(-1, length, len(weight_VD))
        # 2) those of the pairs
        for i, (begin, end) in enumerate(pairwise(pairs.starts)):
            log_probs_BP[some, begin:end] = logits_bLV[:, i, pairs.tokens_P[begin:end]]
        # 3) less the logarithm of the sum over the softmax, which overwrites the logits
        log_z_bL = logsumexp(logits_bLV if softmax_tokens is None else logits_bLV[..., softmax_tokens])
        for i, (begin, end) in enumerate(pairwise(pairs.starts)):
            log_probs_BP[some, begin:end] -= log_z_bL[:, i, None]
    return log_probs_BP


class Reading:
    """Queries, and their states as the model reads them when a signal first asks.

    Args:
        read: the forward pass; None where no signal reads text.
    """

    def __init__(
        self,
        queries: Queries,
        read: Callable[[Queries], States] | None = None,
        states: States | None = None,
    ) -> None:
        self.queries = queries
        self._read = read
        if states is not None:
            vars(self)["states"] = states

    @cached_property
    def states(self) -> States:
        """States at the hole and behind it."""
        assert self._read is not None, "queries without a model to read them"
        return self._read(self.queries)

    def take(self, rows: IntArray) -> Reading:
        """Some of the queries, with their states where these were read."""
        states = vars(self).get("states")
        return Reading(self.queries[rows], self._read, states and states.take(rows))

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
        states = [vars(reading).get("states") for _, reading in parts]
        read = [part for part in states if part is not None]
        whole = States.joined(read).take(order) if len(read) == len(states) else None
        return cls(queries, parts[0][1]._read, whole)


_BATCHES = 64  # batches of queries tokenized at once


def padded(
    tokenizer: SpanTokenizer, encoded: Sequence[Encoded], batch_size: int
) -> Iterator[tuple[IntArray, MaskedBatch]]:
    """Padded batches with their rows, long texts first so that memory peaks at once."""
    order = np.argsort([-len(e.input_ids) for e in encoded], kind="stable")
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        yield rows, tokenizer.collate([encoded[i] for i in rows])


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
        self.model = model  # a SpanModel where it is trained
        self.settings = settings
        self.vocabulary = vocabulary
        get_template(settings.text.template)  # raises for an unknown name
        limit = model.positions
        lengths = {"text.max_length": settings.text.max_length}
        if settings.vector.enabled:
            lengths["vector.max_length"] = settings.vector.max_length
        for key, length in lengths.items():
            if limit is not None and length > limit:
                raise ModelError(
                    f"{key} {length}: more than the model's {limit} positions; give it less with --set"
                )

    def for_graph(self, context: ContextGraph) -> Reader:
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
        texts = [entity_text(self.context, i) for i in entity_ids.tolist()]
        return self.tokenizer.encode_queries(texts, 0, self.settings.vector.max_length, vector=True)

    def padded(self, encoded: Sequence[Encoded], batch_size: int) -> Iterator[tuple[IntArray, MaskedBatch]]:
        """Texts as :func:`padded` batches them."""
        return padded(self.tokenizer, encoded, batch_size)

    def read(self, queries: Queries) -> States:
        """The states of B queries in one batch, in their order."""
        return self.model.states(self.tokenizer.collate(self.encode(queries)))

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
        keep_memory()
        for start in range(0, len(queries), _BATCHES * batch_size):  # bounds what is encoded at once
            encoded = self.encode(queries[start : start + _BATCHES * batch_size])
            for rows, batch in self.padded(encoded, batch_size):
                yield rows + start, Reading(queries[rows + start], states=self.model.states(batch))
                bound_memory()
                advance(len(rows))
