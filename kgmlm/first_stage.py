"""The first stage of ranking: what signals say of candidates, mixed and constrained. Knows no answers.

Shapes: B queries, N candidates.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from kgmlm.arrays import Array, at
from kgmlm.config import Settings
from kgmlm.constraints import Constraint, Possible
from kgmlm.graph import ContextGraph
from kgmlm.kg import BoolArray, IntArray, Queries
from kgmlm.mixture import Mixture
from kgmlm.pool import Pool, Reading
from kgmlm.reader import EntityVectors, Reader
from kgmlm.signals import SIGNALS, Aided, Signal, rows_of
from kgmlm.signals.likelihood import Likelihood
from kgmlm.signals.vector import Vector
from kgmlm.states import TextModel
from kgmlm.tokenization import SpanTokenizer
from kgmlm.vocabulary import Vocabulary

MAX_SCORES = 2**25  # scores held at once: 128 MB
Said = Mapping[str, Array]  # by signal, (B, N)


class FirstStage:
    """Signals of a reader, and how they are mixed.

    Attributes:
        reader: texts to states.
        signals: those that there are, by name.
        mixture: how much each counts.
        possible: which candidates can answer at all; learned from the context's training triples.
    """

    def __init__(
        self, reader: Reader, signals: Mapping[str, Signal], mixture: Mixture, possible: Possible
    ) -> None:
        self.reader = reader
        self.signals = dict(signals)
        self.mixture = mixture
        self.possible = possible

    @classmethod
    def fresh(
        cls,
        context: ContextGraph,
        tokenizer: SpanTokenizer,
        model: TextModel,
        settings: Settings,
        vocabulary: Vocabulary,
    ) -> Self:
        """One that ranks by the text as its settings say, each signal as confident as in training."""
        reader = Reader(context, tokenizer, model, settings, vocabulary)
        signals = {name: found for name, kind in SIGNALS.items() if (found := kind.fresh(reader))}
        relations = len(context.relations)
        mixture = Mixture.even({name: unit(name, settings) for name in signals}, relations)
        return cls(reader, signals, mixture, Possible.learn(context.train, relations))

    @property
    def context(self) -> ContextGraph:
        """Texts and training triples."""
        return self.reader.context

    @property
    def likelihood(self) -> Likelihood:
        """The signal that there always is."""
        found = self.signals["likelihood"]
        assert isinstance(found, Likelihood)
        return found

    @property
    def vectors(self) -> EntityVectors | None:
        """The vectors of entities, where there are any."""
        found = self.signals.get("vector")
        return found.vectors if isinstance(found, Vector) else None

    @property
    def truncated_N(self) -> BoolArray:
        """Which entities' names are longer than the span, and cut to it."""
        return self.reader.names.truncated_N

    def but(self, **parts: Any) -> Self:
        """The same with other parts, such as ``mixture`` or ``reranking``."""
        twin = copy.copy(self)
        vars(twin).update(parts)
        return twin

    def with_signal(self, signal: Signal) -> Self:
        """The same with one signal more, or another one of its name; the mixture says how much it counts."""
        return self.but(signals={**self.signals, signal.name: signal})._aided()

    def _aided(self) -> Self:
        """The same where all that could know entities' vectors does."""
        vectors = self.vectors
        if vectors is None:
            return self
        signals = {n: s.aided(vectors) if isinstance(s, Aided) else s for n, s in self.signals.items()}
        return self.but(signals=signals, possible=self.possible.aided(vectors.array))

    def over(self, context: ContextGraph) -> Self:
        """The same over another graph."""
        entity_rows, relation_rows = rows_of(context, self.context)
        reader = self.reader.over(context)
        return self.but(
            reader=reader,
            signals={
                n: signal.over(reader, entity_rows, relation_rows) for n, signal in self.signals.items()
            },
            mixture=self.mixture.over(relation_rows),
            possible=self.possible.over(relation_rows, context),
        )._aided()

    def unconstrained(self) -> Self:
        """The same without constraints on what can answer."""
        return self.but(possible=Possible.anything(len(self.context.relations)))

    def allowing_self(self) -> Self:
        """The same where a query's own entity always may answer."""
        return self.but(possible=self.possible.allowing_self())

    def constrained(self, *further: Constraint) -> Self:
        """The same with further constraints on what can answer, of the ranker's graph."""
        return self.but(possible=self.possible.met(*further))._aided()

    @property
    def unread(self) -> int:
        """How many entities' texts are still to be read for vectors that count."""
        return self.vectors.unread if self.vectors is not None and "vector" in self.mixture.signals else 0

    def pool(self, entity_ids: IntArray | None = None) -> Pool:
        """Candidates of the context; None is all."""
        return Pool(len(self.context.entities), entity_ids)

    def said(
        self,
        queries: Queries,
        pool: Pool | None = None,
        batch_size: int = 64,
        advance: Callable[[int], None] = lambda n: None,
        *,
        by: tuple[str, ...] | None = None,
    ) -> Iterator[tuple[IntArray, Reading, Said]]:
        """What signals say of candidates: (rows of ``queries``, their reading, scores by signal).

        Args:
            by: which signals; None is those that count.
        """
        pool = pool or self.pool()
        asked = {name: self.signals[name] for name in by or self.mixture.signals if name in self.signals}
        text = any(signal.reads for signal in asked.values())
        size = max(1, min(batch_size, MAX_SCORES // max(1, pool.width)))
        for rows, reading in self.reader.readings(queries, size, advance, text=text):
            yield rows, reading, {name: self.says(name, reading, pool) for name in asked}

    def says(self, name: str, reading: Reading, pool: Pool) -> Array:
        """What one signal says of candidates, ``(B, N)`` or ``(B, K)``, on the model's device."""
        model = self.reader.model
        with model.inference():
            return at(model.device, self.signals[name].score(reading, pool))

    def combined(
        self, queries: Queries, said: Said, pool: Pool | None = None, mixture: Mixture | None = None
    ) -> Array:
        """The first stage: the weighted sum ``(B, N)``, with :data:`~kgmlm.constraints.IMPOSSIBLE` for what
        cannot answer.

        Args:
            mixture: other weights than the ranker's.
        """
        ids = None if pool is None else pool.ids
        return self.possible.applied((mixture or self.mixture).combine(said, queries), queries, ids)


def unit(name: str, settings: Settings) -> float:
    """The weight at which a signal of the text is as confident as in training, the likelihood's being 1.

    There each is divided by its temperature.
    """
    return settings.training.temperature / settings.vector.temperature if name == "vector" else 1.0
