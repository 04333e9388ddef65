"""The first stage of ranking: signal scores, mixed by their weights and constrained. Knows no answers.

Shapes: S signals, R relations, B queries, N candidates.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from kgmlm.core.arrays import Array, BoolArray, IntArray, at, check_finite, like
from kgmlm.core.config import Settings
from kgmlm.core.errors import ModelError
from kgmlm.graphs.graph import ContextGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.constraints import Constraint, Possible
from kgmlm.signals import SIGNALS, rows_of
from kgmlm.signals.base import Pool, Signal
from kgmlm.signals.likelihood import Likelihood
from kgmlm.signals.vector import Aided, EntityVectors, Vector
from kgmlm.text.reader import Reader, Reading, TextModel
from kgmlm.text.tokenization import SpanTokenizer, Vocabulary

LIMIT = 1e30  # scores are smaller: what a shortlist misses and what cannot answer rank below
BEST = 64  # of a softmax over scores; the others have next to no share of it
Weights = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Use:
    """How a second stage is used: for the ``k`` best of the first, by ``weight`` times what it says."""

    k: int
    weight: float


@dataclass(frozen=True, eq=False)
class Mixture:
    """The weights of the signals that a score is the sum of.

    Attributes:
        tables: for each signal its weights ``(R, 2)``: of relation r for tails, then heads.
        averages: for each signal the best single weight, which a relation has that the run does not know.

    >>> even = Mixture.even({"likelihood": 1.0, "vector": 5.0}, relations=2)
    >>> even.only("vector").signals
    ('vector',)
    """

    tables: Mapping[str, Weights]
    averages: Mapping[str, float]

    @classmethod
    def even(cls, weights: Mapping[str, float], relations: int) -> Mixture:
        """The same weights for all of so many relations."""
        return cls({name: _evenly(w, relations) for name, w in weights.items()}, dict(weights))

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals that count for any relation, or would for a new one."""
        return tuple(n for n, table_R2 in self.tables.items() if self.averages[n] or bool(table_R2.any()))

    @property
    def relations(self) -> int:
        """Of how many relations there are weights."""
        return len(next(iter(self.tables.values())))

    def weighed(self, name: str, table_R2: Array, average: float) -> Mixture:
        """The same with other weights of a signal, or with one signal more."""
        table_R2 = np.asarray(table_R2, np.float32)
        return Mixture({**self.tables, name: table_R2}, {**self.averages, name: average})

    def evenly(self, name: str, weight: float) -> Mixture:
        """The same with one weight of a signal for all relations."""
        return self.weighed(name, _evenly(weight, self.relations), weight)

    def only(self, name: str) -> Mixture:
        """One signal alone, as it is."""
        return Mixture.even({name: 1.0}, self.relations)

    def without(self, *names: str) -> Mixture:
        """All signals but some."""
        left = [name for name in self.tables if name not in names]
        return Mixture({n: self.tables[n] for n in left}, {n: self.averages[n] for n in left})

    def opened(self, name: str, parts: Mixture) -> Mixture:
        """The same with the signals that one is the weighted sum of, in its place."""
        rest = self.without(name)
        tables = {n: self.tables[name] * table_R2 for n, table_R2 in parts.tables.items()}
        averages = {n: self.averages[name] * average for n, average in parts.averages.items()}
        return Mixture({**tables, **rest.tables}, {**averages, **rest.averages})

    def over(self, relation_rows: IntArray) -> Mixture:
        """The same for another graph, whose relation i is relation ``relation_rows[i]`` here, or -1."""
        tables = {
            name: np.concatenate([table_R2, _evenly(self.averages[name], 1)])[relation_rows]
            for name, table_R2 in self.tables.items()
        }
        return Mixture(tables, self.averages)

    def of(self, name: str, queries: Queries) -> Weights:
        """The weights ``(B,)`` of a signal; 0 of one that it does not have."""
        if name not in self.tables:
            return np.zeros(len(queries), np.float32)
        return self.tables[name][queries.relation_B, queries.side_B]

    def combine(self, said: Mapping[str, Array], queries: Queries) -> Array:
        """The weighted sum ``(B, N)`` of what signals say of the candidates of B queries.

        Args:
            said: of each signal that counts, ``(B, N)``, all on one device; others are passed over.

        Raises:
            ModelError: when a score is not finite.
        """
        terms = []
        for name, said_BN in said.items():
            weight_B = self.of(name, queries)
            if (weight_B == 1).all():
                terms.append(said_BN)
            elif weight_B.any():
                terms.append(like(weight_B[:, None], said_BN) * said_BN)
        if not terms:
            if not said:
                raise ModelError("no signal says anything of these candidates")
            some = next(iter(said.values()))
            return like(np.zeros(tuple(some.shape), np.float32), some)
        scores_BN = sum(terms[1:], terms[0])
        check_finite(scores_BN, LIMIT)
        return scores_BN


def _evenly(weight: float, relations: int) -> Weights:
    """One weight ``(R, 2)`` for so many relations."""
    return np.full((relations, 2), weight, np.float32)


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
        """The first stage: the weighted sum ``(B, N)``, with ``constraints.IMPOSSIBLE`` for what
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
