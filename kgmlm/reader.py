"""Texts to states: the only place where context, text, tokens and model meet, and the only padding loop.

Shapes: B queries, E entities, N entities of the graph, D decoder width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kgmlm.arrays import Array, Device, at, cosines, joined, like, numpy
from kgmlm.config import Settings
from kgmlm.graph import ContextGraph
from kgmlm.kg import EntityTable, IntArray, ModelError, Queries
from kgmlm.linearization import Linearization, entity_text, get_template, linearize
from kgmlm.machine import bound_memory, keep_memory
from kgmlm.pool import Reading
from kgmlm.states import SpanOutput, TextModel
from kgmlm.tokenization import Candidates, Encoded, MaskedBatch, SpanTokenizer
from kgmlm.vocabulary import Vocabulary

if TYPE_CHECKING:
    from kgmlm.modeling import Residuals

_TEXTS = 8192  # entity texts tokenized at once
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
        if settings.training.objective == "rerank":
            together = settings.text.max_length + settings.reranking.max_length
            lengths["text.max_length and reranking.max_length together are"] = together
        for key, length in lengths.items():
            if limit is not None and length > limit:
                raise ModelError(
                    f"{key} {length}: more than the model's {limit} positions; give it less with --set"
                )

    def over(self, context: ContextGraph) -> Reader:
        """The same over other entities; names that are known are not tokenized again."""
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


class EntityVectors:
    """Unit vectors of entities of a reader's graph, each read once, when it is first asked for.

    Those that were saved, of the first M entities, stay where they are, such as in a file that is mapped into
    memory; those that are read beside them are below them.

    Attributes:
        residuals: added to the vectors read from entities' texts while they are trained; saved vectors have
            them in.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.residuals: Residuals | None = None
        self.forget()

    def forget(self) -> None:
        """Read all entities again: the model has changed."""
        self._saved_MD: Array | None = None
        self._own_KD: Array | None = None  # of the entities from M on
        self._read_N = np.zeros(len(self.reader.context.entities), np.bool_)

    def over(self, reader: Reader) -> EntityVectors:
        """Those of another graph's entities; what is read of the same label and text is taken over."""
        twin = EntityVectors(reader)
        if self._read_N.all() and len(self._read_N):
            saved_MD = self._own_KD if self._saved_MD is None else self._saved_MD
            twin._take(self.reader.context.entities, saved_MD, self.of)
        return twin

    @property
    def all(self) -> Array:
        """Vectors ``(N, D)`` of all entities; those not read yet are read now."""
        pieces = self._pieces()
        return pieces[0] if len(pieces) == 1 else joined(pieces)

    def _pieces(self) -> list[Array]:
        """:attr:`all`, one below the other."""
        self.read()
        pieces = [piece for piece in (self._saved_MD, self._own_KD) if piece is not None and len(piece)]
        return pieces or [self._none()]

    def array(self) -> npt.NDArray[np.float32]:
        """:attr:`all` for NumPy."""
        return numpy(self.all)

    def cosines(self, vector_BD: Array) -> Array:
        """Cosines ``(B, N)`` of unit vectors and those of all entities, read where they are."""
        found = [cosines(vector_BD, piece) for piece in self._pieces()]
        return found[0] if len(found) == 1 else joined(found, 1)

    def adopt(self, entities: EntityTable, vectors_MD: Array) -> None:
        """Take over the vectors of M entities that this model has read: those of the same label and text.

        They are not copied where the graph's first M entities are these.
        """
        vectors_MD = at(self.reader.model.device, vectors_MD)
        self._take(entities, vectors_MD, lambda rows: vectors_MD[like(rows, vectors_MD)])

    def _take(self, entities: EntityTable, saved_MD: Array, of: Callable[[IntArray], Array]) -> None:
        known = self.reader.context.entities
        rows_N = np.arange(len(known)) if entities is known else known.rows_in(entities)
        count = len(saved_MD)
        begins = len(known) >= count and bool((rows_N[:count] == np.arange(count)).all())
        self._saved_MD, self._own_KD, self._read_N = (saved_MD if begins else None), None, rows_N >= 0
        there = np.flatnonzero(self._read_N[self._first :]) + self._first
        if len(there):
            self._write(there, of(rows_N[there]))

    @property
    def _first(self) -> int:
        """The first entity whose vector is not among those that were saved."""
        return 0 if self._saved_MD is None else len(self._saved_MD)

    def _none(self) -> Array:
        """Zeros ``(K, D)``; NumPy's take no memory until they are written."""
        shape = (len(self._read_N) - self._first, self.reader.model.decoder[0].shape[1])
        return at(self.reader.model.device, np.zeros(shape, np.float32))

    def _write(self, ids: IntArray, vectors_ED: Array) -> None:
        if self._own_KD is None:
            self._own_KD = self._none()
        self._own_KD[like(ids - self._first, self._own_KD)] = vectors_ED

    def of(self, ids: IntArray) -> Array:
        """Vectors of some entities, of the shape of ``ids`` and D; those not read yet are read now."""
        if not self._read_N[ids].all():
            self.read(ids=np.unique(ids))
        if self._saved_MD is None or self._own_KD is None:
            vectors_ND = self._own_KD if self._saved_MD is None else self._saved_MD
            assert vectors_ND is not None
            return vectors_ND[like(ids, vectors_ND)]
        below = ids.ravel() >= self._first
        old, new = ids.ravel()[~below], ids.ravel()[below] - self._first
        found = joined([self._saved_MD[like(old, self._saved_MD)], self._own_KD[like(new, self._own_KD)]])
        places = np.argsort(np.argsort(below, kind="stable"), kind="stable").reshape(ids.shape)
        return found[like(places, found)]

    def missing(self, ids: IntArray | None = None) -> IntArray:
        """Which entities, of some or of all, have no vector yet."""
        return np.flatnonzero(~self._read_N) if ids is None else ids[~self._read_N[ids]]

    def put(self, ids: IntArray, vectors_MD: npt.NDArray[np.float32]) -> None:
        """Take over the vectors of M entities that another process has read."""
        self._write(ids, at(self.reader.model.device, vectors_MD))
        self._read_N[ids] = True

    @property
    def unread(self) -> int:
        """How many entities' texts :meth:`read` would read."""
        return self.unread_of(None)

    def unread_of(self, ids: IntArray | None) -> int:
        """The same of some entities that all differ; None is all."""
        return len(self.missing(ids))

    def read(
        self,
        batch_size: int = 64,
        advance: Callable[[int], None] = lambda n: None,
        ids: IntArray | None = None,
    ) -> None:
        """Read the vectors of entities that have none yet: one forward pass each.

        Args:
            advance: called with the number of entities done, for progress bars.
            ids: which entities, all different; None is all.
        """
        model = self.reader.model
        model.eval()
        missing = self.missing(ids)
        if self._own_KD is None and len(missing):
            self._own_KD = self._none()
        for start in range(0, len(missing), _TEXTS):
            part = missing[start : start + _TEXTS]
            for rows, batch in self.reader.padded(self.reader.encode_entities(part), batch_size):
                with model.inference():
                    vectors = model(batch).vector_BD
                    if self.residuals is not None:
                        vectors = self.residuals(at(model.device, part[rows]), vectors)
                    self._write(part[rows], vectors)
                bound_memory()
                advance(len(rows))
            self._read_N[part] = True
