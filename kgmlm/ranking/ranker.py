"""Both stages of ranking: signal scores mixed by their weights and constrained, then the second stages.

Queries and candidates in, scores out: a ranker knows no answers but training's. :class:`Scorer` is the
protocol of all that evaluation scores by.

Shapes: S signals, R relations, B queries, N candidates.
"""

from __future__ import annotations

import copy
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from kgmlm.core.arrays import BoolArray, Floats, IntArray, check_finite
from kgmlm.core.config import Settings
from kgmlm.core.errors import ConfigError, ModelError
from kgmlm.graphs.graph import ContextGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.constraints import Constraint, Possible
from kgmlm.signals import SIGNALS, check_scores, is_beside, rows_of
from kgmlm.signals.base import Pool, Signal
from kgmlm.signals.biencoder import Biencoder
from kgmlm.signals.likelihood import Likelihood
from kgmlm.signals.vector import EntityVectors, Vector
from kgmlm.text.reader import Reader, Reading, TextModel
from kgmlm.text.tokenization import SpanTokenizer, Vocabulary

MAX_SCORES = 2**25  # scores held at once: 128 MB
LIMIT = 1e30  # scores stay under it, so that constraints.MISSED and IMPOSSIBLE rank below them
BEST = 64  # largest scores that a softmax goes over; the others have next to no share of it
SignalScores = Mapping[str, Floats]  # by signal, (B, N)


# What training knows of a query's entity and of a candidate: 2 where it has no triple of the entity, and 1
# more where it has none of the candidate.
STATES = 4


@dataclass(frozen=True)
class StageWeight:
    """The use of a second stage: its scores of the ``k`` best count ``weight`` times.

    Attributes:
        states: the states whose candidates it moves; others keep their places among these.
    """

    k: int
    weight: float
    states: tuple[bool, ...] = (True,) * STATES

    def stays(self, queries: Queries, ids_BK: IntArray, unseen_N: BoolArray) -> BoolArray:
        """The mask ``(B, K)`` of candidates that keep their places.

        Args:
            ids_BK: -1 where there is no candidate.
        """
        unseen_BK = unseen_N[np.maximum(ids_BK, 0)]
        states_BK = 2 * unseen_N[queries.entity_B][:, None] + unseen_BK
        stays_BK: BoolArray = ~np.array(self.states)[states_BK] & (ids_BK >= 0)
        return stays_BK


@dataclass(frozen=True, eq=False)
class Mixture:
    """The weights of the signals that a score is the sum of.

    Attributes:
        tables: for each signal its weights ``(R, 2)``: of relation r for tails, then heads.
        averages: for each signal the best single weight, used for relations that the run does not know.
        damping: of some signals, by how much the weights that were fitted are multiplied.
        of_unseen: other weights for queries about entities that training has no triple of; None is the same.
        unseen_N: which entities these are; None where nobody has said yet.

    >>> even = Mixture.even({"likelihood": 1.0, "vector": 5.0}, relations=2)
    >>> even.only("vector").signals
    ('vector',)
    """

    tables: Mapping[str, Floats]
    averages: Mapping[str, float]
    damping: Mapping[str, float] = field(default_factory=dict)
    of_unseen: Mixture | None = None
    unseen_N: BoolArray | None = None

    @classmethod
    def even(cls, weights: Mapping[str, float], relations: int) -> Mixture:
        """One weight per signal, for all of so many relations."""
        return cls({name: _evenly(w, relations) for name, w in weights.items()}, dict(weights))

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals that have a weight other than 0, for some relation or for a new one."""
        further = self.of_unseen.signals if self.of_unseen else ()
        return tuple(
            name
            for name, table_R2 in self.tables.items()
            if self.averages[name] or bool(table_R2.any()) or name in further
        )

    @property
    def differing(self) -> tuple[str, ...]:
        """The signals that have other weights for queries about unseen entities."""
        if self.of_unseen is None:
            return ()
        own, further, zero = self.tables, self.of_unseen.tables, _evenly(0.0, self.relations)
        names = dict.fromkeys([*own, *further])
        return tuple(n for n in names if not np.array_equal(own.get(n, zero), further.get(n, zero)))

    @property
    def relations(self) -> int:
        """The number of relations that there are weights of."""
        return len(next(iter(self.tables.values())))

    def weighed(self, name: str, weights_R2: npt.ArrayLike, average: float) -> Mixture:
        """A copy with other weights of a signal, or with one signal more."""
        table_R2 = np.asarray(weights_R2, np.float32)
        tables, averages = {**self.tables, name: table_R2}, {**self.averages, name: average}
        return replace(self, tables=tables, averages=averages)

    def damped(self, damping: Mapping[str, float]) -> Mixture:
        """Multiply the weights of some signals by a factor each."""
        factors = {name: damping.get(name, 1.0) for name in self.tables}
        tables = {name: np.float32(factors[name]) * table_R2 for name, table_R2 in self.tables.items()}
        averages = {name: factors[name] * average for name, average in self.averages.items()}
        kept = {name: f for name, f in factors.items() if f != 1}
        return replace(self, tables=tables, averages=averages, damping=kept)

    def evenly(self, name: str, weight: float) -> Mixture:
        """A copy with one weight of a signal for all relations."""
        return self.weighed(name, _evenly(weight, self.relations), weight)

    def only(self, name: str) -> Mixture:
        """One signal alone, as it is."""
        return Mixture.even({name: 1.0}, self.relations)

    def without(self, *names: str) -> Mixture:
        """All signals but some."""
        left = [name for name in self.tables if name not in names]
        tables, averages = {n: self.tables[n] for n in left}, {n: self.averages[n] for n in left}
        damping = {n: factor for n, factor in self.damping.items() if n in left}
        further = self.of_unseen.without(*names) if self.of_unseen else None
        return replace(self, tables=tables, averages=averages, damping=damping, of_unseen=further)

    def opened(self, name: str, parts: Mixture) -> Mixture:
        """A copy in which a weighted sum of signals is replaced by the signals."""
        rest = self.without(name)
        tables = {n: self.tables[name] * table_R2 for n, table_R2 in parts.tables.items()}
        averages = {n: self.averages[name] * average for n, average in parts.averages.items()}
        return Mixture({**tables, **rest.tables}, {**averages, **rest.averages})

    def for_graph(self, relation_rows: IntArray) -> Mixture:
        """A copy for another graph, whose relation i is relation ``relation_rows[i]`` here, or -1."""
        tables = {
            name: np.concatenate([table_R2, _evenly(self.averages[name], 1)])[relation_rows]
            for name, table_R2 in self.tables.items()
        }
        further = self.of_unseen.for_graph(relation_rows) if self.of_unseen else None
        return replace(self, tables=tables, of_unseen=further, unseen_N=None)

    def for_entities(self, context: ContextGraph) -> Mixture:
        """Tell the weights which entities of a graph are unseen."""
        return replace(self, unseen_N=context.unseen_N) if self.of_unseen else self

    def of(self, name: str, queries: Queries) -> Floats:
        """The weights ``(B,)`` of a signal; 0 of one that it does not have."""
        if name not in self.tables:
            return np.zeros(len(queries), np.float32)
        weight_B = self.tables[name][queries.relation_B, queries.side_B]
        if self.of_unseen is None:
            return weight_B
        assert self.unseen_N is not None, "the weights do not know which entities are unseen"
        return np.where(self.unseen_N[queries.entity_B], self.of_unseen.of(name, queries), weight_B)

    def combine(self, signal_scores: SignalScores, queries: Queries) -> Floats:
        """The weighted sum ``(B, N)`` of the scores of signals for the candidates of B queries, a new array.

        Args:
            signal_scores: those of signals without a weight are passed over.

        Raises:
            ModelError: when a score is not finite.
        """
        if not signal_scores:
            raise ModelError("no signal says anything of these candidates")
        total_BN = np.zeros_like(next(iter(signal_scores.values())))
        for name, scores_BN in signal_scores.items():
            weight_B = self.of(name, queries)
            if weight_B.any():
                total_BN += scores_BN if (weight_B == 1).all() else weight_B[:, None] * scores_BN
        check_finite(total_BN, LIMIT)
        return total_BN


def _evenly(weight: float, relations: int) -> Floats:
    """One weight ``(R, 2)`` for so many relations."""
    return np.full((relations, 2), weight, np.float32)


@dataclass(frozen=True, eq=False)
class FirstStage:
    """Queries whose candidates have scores, as second stages take and return it.

    Attributes:
        queries: B.
        pool: their candidates.
        scores_BN: of the first stage, with constraints, or after those second stages that it went through.
        signal_scores: of each signal that counts ``(B, N)``, not weighed.
        reading: the states of the queries.
    """

    queries: Queries
    pool: Pool
    scores_BN: Floats
    signal_scores: SignalScores
    reading: Reading

    def with_scores(self, scores_BN: Floats) -> FirstStage:
        """A copy with other scores."""
        return replace(self, scores_BN=scores_BN)

    @classmethod
    def joined(cls, parts: Sequence[FirstStage]) -> FirstStage:
        """Several batches of the same pool, one after the other."""
        sizes = np.cumsum([0, *(len(part.queries) for part in parts)])
        rows = [np.arange(*bounds) for bounds in itertools.pairwise(sizes)]
        reading = Reading.joined([(at, part.reading) for at, part in zip(rows, parts, strict=True)])
        return cls(
            reading.queries,
            parts[0].pool,
            np.concatenate([part.scores_BN for part in parts]),
            {
                name: np.concatenate([part.signal_scores[name] for part in parts])
                for name in parts[0].signal_scores
            },
            reading,
        )


class SecondStage(Protocol):
    """Scores the best candidates of the first stage again; see :mod:`kgmlm.ranking.second_stage`.

    Attributes:
        name: in records and reports.
    """

    name: ClassVar[str]

    @property
    def stage_weight(self) -> StageWeight:
        """The number of candidates that it scores, and how much that counts."""

    def reranked(
        self,
        ranker: Ranker,
        first: FirstStage,
        batch_size: int = 64,
        advance: Callable[[int, int], None] = lambda n, total: None,
    ) -> FirstStage:
        """Add the scores of this stage to the best candidates of each query; these stay ahead of the rest.

        Args:
            ranker: the one whose first stage gave the scores.
            advance: called with (distinct queries just scored, all of them).
        """

    def with_weight(self, stage_weight: StageWeight) -> SecondStage:
        """A copy that is used otherwise."""


class Ranker:
    """Scores every candidate of a query: signals mixed and constrained, then the second stages.

    Attributes:
        reader: texts to states.
        signals: those that there are, by name.
        mixture: how much each counts.
        possible: which candidates can answer at all; learned from the context's training triples.
        stages: second stages by name, in their order.
    """

    def __init__(
        self,
        reader: Reader,
        signals: Mapping[str, Signal],
        mixture: Mixture,
        possible: Possible,
        stages: Mapping[str, SecondStage] | None = None,
    ) -> None:
        self.reader = reader
        self.signals = dict(signals)
        self.mixture = mixture
        self.possible = possible
        self.stages = dict(stages or {})

    @classmethod
    def initial(
        cls,
        context: ContextGraph,
        tokenizer: SpanTokenizer,
        model: TextModel,
        settings: Settings,
        vocabulary: Vocabulary,
    ) -> Self:
        """A ranker by the text model alone, each of its signals weighed as in training."""
        reader = Reader(context, tokenizer, model, settings, vocabulary)
        signals = {name: signal for name, kind in SIGNALS.items() if (signal := kind.initial(reader))}
        relations = len(context.relations)
        mixture = Mixture.even({name: unit(name, settings) for name in signals}, relations)
        return cls(reader, signals, mixture, Possible.learn(context.train, relations))

    @property
    def context(self) -> ContextGraph:
        """Texts and training triples."""
        return self.reader.context

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood signal, which every ranker has."""
        likelihood = self.signals["likelihood"]
        assert isinstance(likelihood, Likelihood)
        return likelihood

    @property
    def vectors(self) -> EntityVectors | None:
        """The vectors of entities, where there are any."""
        signal = self.signals.get("vector")
        return signal.vectors if isinstance(signal, Vector) else None

    @property
    def truncated_N(self) -> BoolArray:
        """Which entities' names are read and longer than the span, and so cut to it."""
        if not self.reader.settings.trains_text:
            return np.zeros(len(self.context.entities), np.bool_)
        return self.reader.names.truncated_N

    def replace(self, **parts: Any) -> Self:
        """A copy with other parts, such as ``mixture``."""
        twin = copy.copy(self)
        vars(twin).update(parts)
        return twin

    def weighed_by(self, mixture: Mixture) -> Self:
        """A copy with the weights that a run keeps."""
        return self.replace(mixture=mixture.for_entities(self.context))

    def with_signal(self, signal: Signal) -> Self:
        """A copy with one signal more, or another one of its name; the mixture says how much it counts."""
        return self.replace(signals={**self.signals, signal.name: signal})._with_vectors()

    def _with_vectors(self) -> Self:
        """Hand signals the entity vectors and the bi-encoder's text vectors, and constraints the former."""
        signals, vectors = self.signals, self.vectors
        if vectors is not None:
            signals = {name: signal.with_vectors(lambda: vectors.all) for name, signal in signals.items()}
        biencoder = signals.get(Biencoder.name)
        if isinstance(biencoder, Biencoder):
            signals = {name: s.with_texts(lambda: biencoder.texts_ND) for name, s in signals.items()}
        return self.replace(signals=signals).constrained()

    def for_graph(self, context: ContextGraph) -> Self:
        """A copy for another graph."""
        entity_rows, relation_rows = rows_of(context, self.context)
        reader = self.reader.for_graph(context)
        return self.replace(
            reader=reader,
            signals={
                n: signal.for_graph(reader, entity_rows, relation_rows) for n, signal in self.signals.items()
            },
            mixture=self.mixture.for_graph(relation_rows).for_entities(context),
            possible=self.possible.for_graph(relation_rows, context),
            stages=self.stages,
        )._with_vectors()

    def unconstrained(self) -> Self:
        """A copy without constraints on what can answer."""
        return self.replace(possible=Possible.anything(len(self.context.relations)))

    def allowing_self(self) -> Self:
        """A copy in which a query's own entity may answer."""
        return self.replace(possible=self.possible.allowing_self())

    def constrained(self, *further: Constraint) -> Self:
        """A copy with further constraints on what can answer, of the ranker's graph."""
        possible, vectors = self.possible.met(*further), self.vectors
        if vectors is not None:
            possible = possible.with_vectors(lambda: vectors.all)
        return self.replace(possible=possible)

    @property
    def counted_vectors(self) -> list[EntityVectors]:
        """The entity vectors that the signals with a weight are computed from."""
        counted = (s for name, s in self.signals.items() if name in self.mixture.signals)
        return [s.vectors for s in counted if isinstance(s, Vector | Biencoder)]

    def pool(self, entity_ids: IntArray | None = None) -> Pool:
        """Candidates of the context; None is all."""
        return Pool(len(self.context.entities), entity_ids)

    def signal_scores(
        self,
        queries: Queries,
        pool: Pool | None = None,
        batch_size: int = 64,
        advance: Callable[[int], None] = lambda n: None,
        *,
        by: tuple[str, ...] | None = None,
    ) -> Iterator[tuple[IntArray, Reading, SignalScores]]:
        """Yield the signal scores of candidates: (rows of ``queries``, their reading, scores by signal).

        Args:
            by: which signals; None is those that count.
        """
        pool = pool or self.pool()
        asked = {name: self.signals[name] for name in by or self.mixture.signals if name in self.signals}
        text = self.reads(asked)
        size = max(1, min(batch_size, MAX_SCORES // max(1, pool.width)))
        for rows, reading in self.reader.readings(queries, size, advance, text=text):
            yield rows, reading, {name: signal.score(reading, pool) for name, signal in asked.items()}

    def reads(self, names: Iterable[str] | None = None) -> bool:
        """Return whether any of some signals reads a query's text; None is those that count."""
        return any(self.signals[n].reads for n in names or self.mixture.signals if n in self.signals)

    def combined(
        self,
        queries: Queries,
        signal_scores: SignalScores,
        pool: Pool | None = None,
        mixture: Mixture | None = None,
    ) -> Floats:
        """The scores of the first stage: the weighted sum ``(B, N)``, with ``constraints.IMPOSSIBLE`` for
        what cannot answer.

        Args:
            mixture: other weights than the ranker's.
        """
        scores_BN = (mixture or self.mixture).combine(signal_scores, queries)
        return self.possible.applied(scores_BN, queries, None if pool is None else pool.ids)

    @property
    def reranks(self) -> bool:
        """Whether there is a second stage."""
        return bool(self.stages)

    @property
    def stage_weights(self) -> dict[str, StageWeight]:
        """The use of each second stage, by name."""
        return {name: stage.stage_weight for name, stage in self.stages.items()}

    def with_stage(self, stage: SecondStage) -> Self:
        """A copy with one second stage more, the last, or another one of its name."""
        return self.replace(stages={**self.stages, stage.name: stage})

    def without_stage(self, name: str) -> Self:
        """A copy without a second stage."""
        return self.replace(stages={other: stage for other, stage in self.stages.items() if other != name})

    def unreranked(self) -> Self:
        """The first stage alone."""
        return self.replace(stages={})

    def by(self, scores: str) -> Self:
        """A copy that ranks by "all" signals, by the "text" (without what is trained beside it), or by one
        signal alone, which is not reranked.

        Raises:
            ConfigError: when there are no such scores, or the run has no such signal.
        """
        check_scores(scores)
        if scores in ("text", "likelihood") and not self.reader.settings.trains_text:
            raise ConfigError(
                f"the run's masked LM is not trained (training.epochs is 0), so nothing is ranked by {scores}"
            )
        if scores in SIGNALS and scores not in self.signals:
            makes = (
                "train with --set vector.enabled=true"
                if scores == "vector"
                else f"`kgmlm tune RUN --add {scores}` trains one"
            )
            raise ConfigError(f"the run has no {SIGNALS[scores].title}; {makes}")
        if scores in SIGNALS:
            return self.replace(mixture=self.mixture.only(scores), stages={})
        if scores == "all":
            return self
        others = [name for name in self.mixture.tables if is_beside(name)]
        return self.replace(mixture=self.mixture.without(*others)).without_stage("trees")  # fitted to all

    def reduce(self, enabled: bool = True) -> None:
        """Encode in bf16, or in float32 again."""
        self.reader.model.reduce(enabled)

    def reranked(
        self,
        first: FirstStage,
        batch_size: int = 64,
        advance: Callable[[int, int], None] = lambda n, total: None,
    ) -> FirstStage:
        """The scores after all second stages; arguments as of :meth:`SecondStage.reranked`."""
        for stage in self.stages.values():
            first = stage.reranked(self, first, batch_size, advance)
        return first

    def rank(
        self,
        queries: Queries,
        entity_ids: IntArray | None = None,
        batch_size: int = 64,
        advance: Callable[[int], None] = lambda n: None,
    ) -> Iterator[tuple[IntArray, Floats]]:
        """Score B queries against candidates, in batches and in no set order.

        Args:
            entity_ids: candidates; None is every entity.
            advance: called with the number of queries done, for progress bars.

        Yields:
            (rows of ``queries``, scores ``(b, N)``).
        """
        for rows, ranked in self.ranked(queries, self.pool(entity_ids), batch_size, advance):
            yield rows, ranked.scores_BN

    def ranked(
        self,
        queries: Queries,
        pool: Pool | None = None,
        batch_size: int = 64,
        advance: Callable[[int], None] = lambda n: None,
    ) -> Iterator[tuple[IntArray, FirstStage]]:
        """As :meth:`rank`, with all that second stages go by: (rows of ``queries``, these after all stages).

        For reverse scoring, many queries of one relation come at once, as they share candidates.
        """
        pool = pool or self.pool()
        if "reverse" not in self.stages:
            for rows, first in self.first_stage(queries, pool, batch_size, advance):
                yield rows, self.reranked(first, batch_size)
            return
        order = np.lexsort((queries.side_B, queries.relation_B))
        size = max(1, MAX_SCORES // 2 // max(1, pool.width))
        for start in range(0, len(order), size):
            part = order[start : start + size]
            batches = list(self.first_stage(queries[part], pool, batch_size))
            rows = part[np.concatenate([within for within, _ in batches])]
            progress = _QueryProgress(len(rows), advance)
            yield (
                rows,
                self.reranked(FirstStage.joined([first for _, first in batches]), batch_size, progress),
            )
            progress.end()

    def first_stage(
        self,
        queries: Queries,
        pool: Pool | None = None,
        batch_size: int = 64,
        advance: Callable[[int], None] = lambda n: None,
    ) -> Iterator[tuple[IntArray, FirstStage]]:
        """Score queries by the first stage, in batches: (rows of ``queries``, these with their scores)."""
        pool = pool or self.pool()
        for rows, reading, signal_scores in self.signal_scores(queries, pool, batch_size, advance):
            scores_bN = self.combined(queries[rows], signal_scores, pool)
            yield rows, FirstStage(queries[rows], pool, scores_bN, signal_scores, reading)


class _QueryProgress:
    """Turns progress over the candidates of some queries into progress over these queries."""

    def __init__(self, count: int, advance: Callable[[int], None]) -> None:
        self.count, self.advance, self.asked, self.reported = count, advance, 0, 0

    def __call__(self, n: int, total: int) -> None:
        """Report ``n`` more of ``total`` candidates as done."""
        self.asked += n
        self._report(self.count * self.asked // total)

    def end(self) -> None:
        """All are."""
        self._report(self.count)

    def _report(self, reached: int) -> None:
        if reached > self.reported:
            self.advance(reached - self.reported)
            self.reported = reached


class Scorer(Protocol):
    """Scores all entities as answers of queries, in batches and in no set order.

    Attributes:
        possible: which candidates can answer at all.
    """

    possible: Possible

    @property
    def truncated_N(self) -> BoolArray:
        """Which entities are known by a part of their name only."""

    def unconstrained(self) -> Scorer:
        """A copy without constraints on what can answer."""

    def allowing_self(self) -> Scorer:
        """A copy in which a query's own entity may answer."""

    def rank(
        self,
        queries: Queries,
        entity_ids: IntArray | None = None,
        batch_size: int = 64,
        advance: Callable[[int], None] = lambda n: None,
    ) -> Iterator[tuple[IntArray, Floats]]:
        """(rows of ``queries``, scores ``(b, N)``), float32 and finite."""


class PlainScorer(ABC):
    """A scorer by a function of the queries: no text, no constraints. Only :meth:`score` is missing.

    Example:
        >>> class Alike(PlainScorer):
        ...     def score(self, queries):
        ...         return np.zeros((len(queries), self.entities), np.float32)
    """

    def __init__(self, entities: int, relations: int) -> None:
        self.entities = entities
        self.possible = Possible.anything(relations)
        self.truncated_N: BoolArray = np.zeros(entities, np.bool_)

    @abstractmethod
    def score(self, queries: Queries) -> Floats:
        """Scores ``(B, N)``."""

    def unconstrained(self) -> PlainScorer:
        """Return the scorer: there are no constraints."""
        return self

    def allowing_self(self) -> PlainScorer:
        """As :meth:`unconstrained`: a plain scorer has no constraints at all."""
        return self.unconstrained()

    def rank(
        self,
        queries: Queries,
        entity_ids: IntArray | None = None,
        batch_size: int = 64,
        advance: Callable[[int], None] = lambda n: None,
    ) -> Iterator[tuple[IntArray, Floats]]:
        """As :meth:`Scorer.rank`."""
        for start in range(0, len(queries), batch_size):
            rows = np.arange(start, min(start + batch_size, len(queries)))
            scores_bN = self.score(queries[rows])
            yield rows, scores_bN if entity_ids is None else scores_bN[:, entity_ids]
            advance(len(rows))


def unit(name: str, settings: Settings) -> float:
    """The weight at which a signal of the text is as confident as in training, the likelihood's being 1.

    There each is divided by its temperature. The likelihood of a masked LM that is not trained weighs 0.
    """
    if name == "likelihood" and not settings.trains_text:
        return 0.0
    return settings.training.temperature / settings.vector.temperature if name == "vector" else 1.0
