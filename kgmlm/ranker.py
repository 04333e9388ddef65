"""Queries and candidates in, scores out: signals, mixed, constrained and reranked. Knows no answers.

Shapes: B queries, N candidates.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from kgmlm.config import Settings
from kgmlm.constraints import Possible
from kgmlm.graph import ContextGraph
from kgmlm.kg import BoolArray, ConfigError, IntArray, Queries
from kgmlm.mixture import Mixture
from kgmlm.modeling import SpanModel
from kgmlm.pool import Pool, Reading
from kgmlm.reader import EntityVectors, Reader
from kgmlm.reranking import Reranking
from kgmlm.signals import SIGNALS, Signal, beside, rows_of
from kgmlm.signals.likelihood import Likelihood
from kgmlm.signals.vector import Vector
from kgmlm.tokenization import SpanTokenizer
from kgmlm.vocabulary import Vocabulary

MAX_SCORES = 2**25  # scores held at once: 128 MB
LONG = {"vector": "entity vectors", "kge": "KGE model"}  # what people call signals
Said = Mapping[str, torch.Tensor]  # by signal, (B, N)


class Ranker:
    """Scores every candidate of a query by a mixture of signals.

    Attributes:
        reader: texts to states.
        signals: those that there are, by name.
        mixture: how much each counts.
        possible: which candidates can answer at all; learned from the context's training triples.
        reranking: the second stage, where there is one.
    """

    def __init__(
        self,
        reader: Reader,
        signals: Mapping[str, Signal],
        mixture: Mixture,
        possible: Possible,
        reranking: Reranking | None = None,
    ) -> None:
        self.reader = reader
        self.signals = dict(signals)
        self.mixture = mixture
        self.possible = possible
        self.reranking = reranking

    @classmethod
    def fresh(
        cls,
        context: ContextGraph,
        tokenizer: SpanTokenizer,
        model: SpanModel,
        settings: Settings,
        vocabulary: Vocabulary,
    ) -> Ranker:
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

    def but(self, **parts: Any) -> Ranker:
        """The same with other parts, such as ``mixture`` or ``reranking``."""
        twin = copy.copy(self)
        vars(twin).update(parts)
        return twin

    def with_signal(self, signal: Signal) -> Ranker:
        """The same with one signal more, or another one of its name; the mixture says how much it counts."""
        return self.but(signals={**self.signals, signal.name: signal})

    def over(self, context: ContextGraph) -> Ranker:
        """The same over another graph."""
        entity_rows, relation_rows = rows_of(context, self.context)
        reader = self.reader.over(context)
        return Ranker(
            reader,
            {name: signal.over(reader, entity_rows, relation_rows) for name, signal in self.signals.items()},
            self.mixture.over(relation_rows),
            self.possible.over(relation_rows),
            None if self.reranking is None else self.reranking.over(context),
        )

    def by(self, scores: str) -> Ranker:
        """One that ranks by "all" that there is, by the "text" (without what is trained beside it), or by one
        signal alone, which is not reranked.

        Raises:
            ConfigError: when there are no such scores, or the run has no such signal.
        """
        check_scores(scores)
        if scores in SIGNALS and scores not in self.signals:
            makes = (
                "train with --set vector.enabled=true"
                if scores == "vector"
                else f"`kgmlm tune RUN --add {scores}` trains one"
            )
            raise ConfigError(f"the run has no {LONG.get(scores, scores)}; {makes}")
        if scores in SIGNALS:
            return self.but(mixture=self.mixture.only(scores), reranking=None)
        return self if scores == "all" else self.but(mixture=self.mixture.without(*beside()))

    def unconstrained(self) -> Ranker:
        """The same without constraints on what can answer: a query's own entity always may."""
        return self.but(possible=Possible.anything(len(self.context.relations)))

    def reduce(self, enabled: bool = True) -> None:
        """Encode in bf16, the reranker too, or in float32 again."""
        self.reader.model.reduce(enabled)
        if self.reranking is not None:
            self.reranking.reranker.model.reduce(enabled)

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
            with torch.inference_mode():
                said = {name: signal.score(reading, pool) for name, signal in asked.items()}
            yield rows, reading, said

    def combined(
        self, queries: Queries, said: Said, pool: Pool | None = None, mixture: Mixture | None = None
    ) -> torch.Tensor:
        """The first stage: the weighted sum ``(B, N)``, with :data:`~kgmlm.constraints.IMPOSSIBLE` for what
        cannot answer.

        Args:
            mixture: other weights than the ranker's.
        """
        ids = None if pool is None else pool.ids
        return self.possible.applied((mixture or self.mixture).combine(said, queries), queries, ids)

    def reranked(
        self, queries: Queries, scores_BN: torch.Tensor, pool: Pool | None = None, batch_size: int = 64
    ) -> torch.Tensor:
        """The second stage, where there is one."""
        if self.reranking is None:
            return scores_BN
        return self.reranking.reranked(queries, scores_BN, pool or self.pool(), self.mixture, batch_size)

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
        pool = self.pool(entity_ids)
        for rows, _, said in self.said(queries, pool, batch_size, advance):
            scores_bN = self.combined(queries[rows], said, pool)
            yield rows, self.reranked(queries[rows], scores_bN, pool, batch_size)

    def rank_both(
        self, queries: Queries, batch_size: int = 64, advance: Callable[[int], None] = lambda n: None
    ) -> Iterator[tuple[IntArray, torch.Tensor, torch.Tensor]]:
        """As :meth:`rank` of all entities, and beside the scores those without constraints on what can
        answer, from the same forward passes.
        """
        for rows, _, said in self.said(queries, None, batch_size, advance):
            asked = queries[rows]
            scores_bN = self.reranked(asked, self.combined(asked, said), None, batch_size)
            yield rows, scores_bN, self._freed(asked, said, scores_bN, batch_size)

    def _freed(self, queries: Queries, said: Said, scores_BN: torch.Tensor, batch_size: int) -> torch.Tensor:
        """The final scores of all entities if every entity could answer; most of them stay."""
        own = np.flatnonzero(self.possible.own_B(queries))
        if not len(own):
            return scores_BN
        rows = torch.from_numpy(own).to(scores_BN.device)
        free_bN = self.mixture.combine(said, queries)[rows]
        # The own entity may take a place among the best.
        return scores_BN.index_put((rows,), self.reranked(queries[own], free_bN, None, batch_size))


def unit(name: str, settings: Settings) -> float:
    """The weight at which a signal of the text is as confident as in training, the likelihood's being 1.

    There each is divided by its temperature.
    """
    return settings.training.temperature / settings.vector.temperature if name == "vector" else 1.0


def check_scores(scores: str) -> None:
    """See that a run may be asked for these.

    Raises:
        ConfigError: listing those that there are.
    """
    if scores not in (known := ("all", "text", *SIGNALS)):
        raise ConfigError(f"scores are {', '.join(known[:-1])} or {known[-1]}, not '{scores}'")
