"""Queries and candidates in, final scores out; knows no answers but those of training.

The only place where context, text, tokens, model and scoring meet.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch

from kgmlm.config import Settings
from kgmlm.constraints import Possible
from kgmlm.graph import ContextGraph
from kgmlm.kg import BoolArray, ConfigError, EntityTable, IntArray, ModelError, Queries
from kgmlm.linearization import Linearization, entity_text, get_template, linearize
from kgmlm.machine import keep_memory
from kgmlm.metrics import check_finite
from kgmlm.modeling import Offsets, SpanModel, SpanOutput
from kgmlm.rescoring import Best, Rescorer
from kgmlm.retrieval import Retriever, entity_queries, likelihood_queries
from kgmlm.scoring import (
    Normalization,
    PairTable,
    rank_candidates,
    score_candidates,
    score_shortlist,
    score_vectors,
    token_log_probs,
)
from kgmlm.structure import Structure
from kgmlm.tokenization import Candidates, Encoded, MaskedBatch, SpanTokenizer
from kgmlm.vocabulary import Vocabulary

HELD = 2**25  # scores held at once: 128 MB
MISSED = -1e30  # the score of what a shortlist lacks: finite, and below any other
SCORES = ("all", "text", "likelihood", "vector", "structure")  # what a run may be asked to rank by
MORE = 100  # entities that an index is asked for beyond a shortlist
_TEXTS = 8192  # entity texts tokenized at once


class Weights(NamedTuple):
    """A score is ``likelihood * mean log-likelihood + vector * cosine + structure * structural score``."""

    likelihood: float = 1.0
    vector: float = 0.0
    structure: float = 0.0


class Parts(NamedTuple):
    """What a score is made of, each ``(b, N)``; None where its weight is 0.

    Vectors and structure have what they count for the query's relation and side in them.
    """

    likelihood_BN: torch.Tensor | None
    vector_BN: torch.Tensor | None
    structure_BN: torch.Tensor | None = None

    def score(self, weights: Weights) -> torch.Tensor:
        """The weighted sum.

        Raises:
            ModelError: when a score is not finite.
        """
        terms = [
            part if weight == 1 else weight * part
            for weight, part in zip(weights, self, strict=True)
            if part is not None and weight
        ]
        scores_BN = sum(terms[1:], terms[0])
        check_finite(scores_BN, -MISSED)
        return scores_BN


class Retrieval(NamedTuple):
    """An index, how many entities it is asked for, and how hard it tries (None: as hard as when built)."""

    retriever: Retriever
    k: int
    effort: int | None = None


class Ranker:
    """Scores every candidate of a query from one forward pass.

    With entity vectors (``settings.vector``), an entity's text is read once, when it is first scored.

    Args:
        context: texts and training triples.
        vocabulary: span length and softmax tokens, frozen with the run.

    Attributes:
        weights: of likelihood, vectors and structure in a score; 1, 0 and 0 in a run without the others.
        factors_R2: beside the likelihood the weight of vectors is multiplied by it, for tails of relation r,
            then heads; None multiplies by nothing.
        structure: a structural model of the context's entities, where the run has one.
        rescorer: reads the best candidates again, where the run has one.
        possible: which candidates can answer at all; learned from the context's training triples.
        offsets: added to the vectors read from the context's entities while they are trained; vectors that
            were saved have them in.
    """

    def __init__(
        self,
        context: ContextGraph,
        tokenizer: SpanTokenizer,
        model: SpanModel,
        settings: Settings,
        vocabulary: Vocabulary,
    ) -> None:
        self.context = context
        self.tokenizer = tokenizer
        self.model = model
        self.settings = settings
        self.vocabulary = vocabulary
        self.weights = self.default_weights(settings)
        self.factors_R2: torch.Tensor | None = None
        self.offsets: Offsets | None = None
        self.structure: Structure | None = None
        self.rescorer: Rescorer | None = None
        self.possible = Possible.learn(context.train, len(context.relations))
        get_template(settings.text.template)  # a name that there is
        self._vectors_ND: torch.Tensor | None = None
        self._read_N = np.zeros(0, np.bool_)
        limit = model.positions
        lengths = {"text.max_length": settings.text.max_length}
        if settings.vector.enabled:
            lengths["vector.max_length"] = settings.vector.max_length
        if settings.training.objective == "rescore":
            together = settings.text.max_length + settings.rescoring.max_length
            lengths["text.max_length and rescoring.max_length together are"] = together
        for key, length in lengths.items():
            if limit is not None and length > limit:
                raise ModelError(
                    f"{key} {length}: more than the model's {limit} positions; give it less with --set"
                )

    @staticmethod
    def default_weights(settings: Settings) -> Weights:
        """Both as confident as in training, where each is divided by its temperature."""
        if not settings.vector.enabled:
            return Weights()
        return Weights(1.0, settings.training.temperature / settings.vector.temperature)

    def over(self, context: ContextGraph) -> Ranker:
        """The same model over other entities; vectors of entities that it has read are kept."""
        twin = Ranker(context, self.tokenizer, self.model, self.settings, self.vocabulary)
        twin.weights = self.weights
        mine = self.context.relations.index
        relation_rows = np.array([mine.get(r.label, -1) for r in context.relations], np.int64)
        twin.possible = self.possible.over(relation_rows)
        if self.factors_R2 is not None:
            known_R = torch.from_numpy(relation_rows >= 0)
            twin.factors_R2 = torch.ones(len(relation_rows), 2)
            twin.factors_R2[known_R] = self.factors_R2[torch.from_numpy(relation_rows)[known_R]]
        if self.structure is not None:
            rows_N = context.entities.rows_in(self.context.entities)
            twin.structure = self.structure.over(rows_N, relation_rows)
        if self.rescorer is not None:
            twin.rescorer = self.rescorer.over(context)
        if self._vectors_ND is not None and self._read_N.all():
            twin.adopt(self.context.entities, self._vectors_ND)
        if "candidates" in vars(self):
            twin.adopt_names(self._renamed(context))
        return twin

    def _renamed(self, context: ContextGraph) -> Candidates:
        """The tokens of the entities of another context; of those that this one has they are known."""
        rows_N = context.entities.rows_in(self.context.entities)
        new = np.flatnonzero(rows_N < 0)
        rows_N[new] = len(self.candidates) + np.arange(len(new))
        surfaces = context.entities.table.column("surface").take(pa.array(new))
        return self.candidates.joined(self._tokens_of(surfaces)).take(rows_N)

    def _tokens_of(self, surfaces: pa.ChunkedArray) -> Candidates:
        return self.tokenizer.candidates(
            surfaces, self.vocabulary.span_length, self.settings.scoring.end_of_name
        )

    @cached_property
    def candidates(self) -> Candidates:
        """Tokens of all entities of the context."""
        return self._tokens_of(self.context.entities.table.column("surface"))

    def adopt_names(self, names: Candidates) -> None:
        """Take over the tokens of all entities of the context instead of making them."""
        vars(self)["candidates"] = names

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

    def normalizer(self, span: SpanOutput) -> torch.Tensor:
        """``log Z_BL`` over the vocabulary or the run's frozen tokens."""
        return self.model.log_normalizer(span, self._softmax_tokens)

    def scores(
        self, span: SpanOutput, table: PairTable, normalization: Normalization | None = None
    ) -> torch.Tensor:
        """Scores ``(B, N)`` under the run's settings; differentiable where gradients are enabled."""
        normalization = normalization or self.settings.scoring.normalization
        if torch.is_grad_enabled():
            return score_candidates(self.model, span, self._softmax_tokens, table, normalization)
        return rank_candidates(self.model, span, self._softmax_tokens, table, normalization)

    def use(self, scores: str) -> None:
        """Rank by "all" that the run has, by its "text" (without structure), or by one part alone.

        One part alone is not rescored.

        Raises:
            ConfigError: when it is none of :data:`SCORES`, or a part is asked of a run without it.
        """
        if scores not in SCORES:
            raise ConfigError(f"scores are {', '.join(SCORES[:-1])} or {SCORES[-1]}, not '{scores}'")
        if scores == "vector" and not self.settings.vector.enabled:
            raise ConfigError("the run has no entity vectors; train with --set vector.enabled=true")
        if scores == "structure" and self.structure is None:
            raise ConfigError("the run has no structural model; `kgmlm fuse` trains one")
        if scores not in ("all", "text"):
            self.rescorer = None
        if scores == "text":
            self.weights = self.weights._replace(structure=0.0)
        elif scores == "structure":
            self.weights = Weights(0.0, 0.0, 1.0)
        elif scores != "all":
            self.weights = Weights() if scores == "likelihood" else Weights(0.0, 1.0)

    def unconstrained(self) -> Ranker:
        """The same ranker without constraints on what can answer: a query's own entity always may."""
        twin = copy.copy(self)
        twin.possible = Possible.anything(len(self.context.relations))
        return twin

    def reduce(self, enabled: bool = True) -> None:
        """Encode in bf16, the rescorer too, or in float32 again."""
        self.model.reduce(enabled)
        if self.rescorer is not None:
            self.rescorer.model.reduce(enabled)

    @property
    def vectors(self) -> torch.Tensor:
        """Unit vectors ``(N, D)`` of all entities; those not read yet are read now."""
        self.read_entities()
        assert self._vectors_ND is not None
        return self._vectors_ND

    def adopt(self, entities: EntityTable, vectors_MD: torch.Tensor) -> None:
        """Take over the vectors of M entities that this model has read: those of the same label and text."""
        known = self.context.entities
        vectors_ND = vectors_MD.to(self.model.device)
        read_N = np.ones(len(known), np.bool_)
        if entities is not known:
            rows_N = known.rows_in(entities)
            read_N = rows_N >= 0
            there, rows = (torch.from_numpy(x) for x in (np.flatnonzero(read_N), rows_N[read_N]))
            adopted_ND = self._no_vectors()
            adopted_ND[there.to(adopted_ND.device)] = vectors_ND[rows.to(vectors_ND.device)]
            vectors_ND = adopted_ND
        self._vectors_ND, self._read_N = vectors_ND, read_N

    def _no_vectors(self) -> torch.Tensor:
        """Zeros ``(N, D)``; NumPy's take no memory until they are written."""
        shape = (len(self.context.entities), self.model.decoder[0].shape[1])
        return torch.from_numpy(np.zeros(shape, np.float32)).to(self.model.device)

    def forget_vectors(self) -> None:
        """Read all entities anew: the weights have changed."""
        self._vectors_ND, self._read_N = None, np.zeros(0, np.bool_)

    def unread(self) -> int:
        """How many entities' texts :meth:`read_entities` would read."""
        if not self.settings.vector.enabled or not self.weights.vector:
            return 0
        return len(self.context.entities) - int(self._read_N.sum())

    @torch.inference_mode()
    def read_entities(self, batch_size: int = 64, advance: Callable[[int], None] = lambda n: None) -> None:
        """Read the vectors of all entities that have none yet: one forward pass each.

        Args:
            advance: called with the number of entities done, for progress bars.
        """
        self.model.eval()
        count = len(self.context.entities)
        if not len(self._read_N):
            self._read_N = np.zeros(count, np.bool_)
        device = self.model.device
        if self._vectors_ND is None:
            self._vectors_ND = self._no_vectors()
        missing = np.flatnonzero(~self._read_N)
        for start in range(0, len(missing), _TEXTS):
            part = missing[start : start + _TEXTS]
            for rows, batch in self._padded(self.encode_entities(part), batch_size):
                ids = torch.from_numpy(part[rows]).to(device)
                vectors = self.model(batch).vector_BD
                self._vectors_ND[ids] = vectors if self.offsets is None else self.offsets(ids, vectors)
                advance(len(rows))
        self._read_N[:] = True

    def _padded(self, encoded: Sequence[Encoded], batch_size: int) -> Iterator[tuple[IntArray, MaskedBatch]]:
        """Padded batches with their rows, long texts first so that memory peaks at once."""
        order = np.argsort([-len(e.input_ids) for e in encoded], kind="stable")
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            batch = self.tokenizer.collate([encoded[i] for i in rows])
            yield rows, batch.to(self.model.device)

    @torch.inference_mode()
    def states(
        self, queries: Queries, batch_size: int = 64, advance: Callable[[int], None] = lambda n: None
    ) -> Iterator[tuple[IntArray, SpanOutput]]:
        """The forward passes alone: (rows of ``queries``, states), in batches and in no set order."""
        self.model.eval()
        keep_memory()
        for start in range(0, len(queries), 64 * batch_size):  # bounds what is encoded at once
            encoded = self.encode(queries[start : start + 64 * batch_size])
            for rows, batch in self._padded(encoded, batch_size):
                yield rows + start, self.model(batch)
                advance(len(rows))

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
        for rows, parts in self.parts(queries, entity_ids, batch_size, advance):
            yield rows, self.final(queries[rows], parts, entity_ids, batch_size)

    def rank_both(
        self, queries: Queries, batch_size: int = 64, advance: Callable[[int], None] = lambda n: None
    ) -> Iterator[tuple[IntArray, torch.Tensor, torch.Tensor]]:
        """As :meth:`rank` of all entities, and beside the scores those without constraints on what can
        answer, from the same forward passes.
        """
        for rows, parts in self.parts(queries, None, batch_size, advance):
            scores_bN = self.final(queries[rows], parts, None, batch_size)
            yield rows, scores_bN, self._freed(queries[rows], parts, scores_bN, batch_size)

    def combined(
        self,
        queries: Queries,
        parts: Parts,
        entity_ids: IntArray | None = None,
        weights: Weights | None = None,
    ) -> torch.Tensor:
        """The weighted sum of parts ``(B, N)``, with :data:`~kgmlm.constraints.IMPOSSIBLE` for what cannot
        answer.

        Args:
            entity_ids: candidates, ``(N,)`` or a row of each query's own, ``(B, N)``; None is all.
            weights: other weights than the ranker's.
        """
        return self.possible.applied(parts.score(weights or self.weights), queries, entity_ids)

    def final(
        self, queries: Queries, parts: Parts, entity_ids: IntArray | None = None, batch_size: int = 64
    ) -> torch.Tensor:
        """Final scores ``(B, N)`` from parts: combined, then rescored where the run has a rescorer."""
        scores_BN = self.combined(queries, parts, entity_ids)
        return self.rescored(queries, scores_BN, entity_ids, batch_size)

    def _freed(
        self, queries: Queries, parts: Parts, scores_BN: torch.Tensor, batch_size: int = 64
    ) -> torch.Tensor:
        """The final scores of all entities if every entity could answer.

        Args:
            scores_BN: what :meth:`final` gives; most of it stays.
        """
        own = np.flatnonzero(self.possible.own_B(queries))
        if not len(own):
            return scores_BN
        rows = torch.from_numpy(own).to(scores_BN.device)
        free_bN = parts.score(self.weights)[rows]
        if self.rescorer is not None:  # the own entity may take a place among the best
            free_bN = self.rescored(queries[own], free_bN, None, batch_size)
        return scores_BN.index_put((rows,), free_bN)

    def rescored(
        self,
        queries: Queries,
        scores_BN: torch.Tensor,
        entity_ids: IntArray | None = None,
        batch_size: int = 64,
    ) -> torch.Tensor:
        """First-stage scores with what the rescorer adds to the best of each query; all of them stay ahead
        of the rest.

        Args:
            entity_ids: candidates, ``(N,)`` or a row of each query's own, ``(B, N)``; None is all.
            batch_size: pairs of a query and a candidate that are read at once.
        """
        if self.rescorer is None or not self.rescorer.use.k:
            return scores_BN
        best, ids_BK = self.best(queries, scores_BN, self.rescorer.use.k, entity_ids)
        read_BK = self.read(queries, best.to_read(ids_BK), batch_size).to(scores_BN.device)
        return best.rescored(scores_BN, read_BK, self.rescorer.use.weight)

    def read(self, queries: Queries, ids_BK: IntArray, batch_size: int = 64) -> torch.Tensor:
        """What the rescorer says of the candidates ``(B, K)``, on the scale of each query's scores.

        Where a relation weighs vectors more than the average does, its scores are as much larger, and one
        weight of rescoring has to mean the same for all.
        """
        assert self.rescorer is not None
        read_BK = self.rescorer.score(queries, ids_BK, batch_size)
        check_finite(read_BK)
        if self.factors_R2 is None or not self.weights.likelihood:
            return read_BK
        average = self.weights.vector / self.default_weights(self.settings).vector
        scale_B = (1 + average * self._factor(queries)) / (1 + average)
        return scale_B[:, None].to(read_BK.device) * read_BK

    def best(
        self, queries: Queries, scores_BN: torch.Tensor, k: int, entity_ids: IntArray | None = None
    ) -> tuple[Best, IntArray]:
        """The K best candidates of each query, and their ids ``(B, K)``, -1 where there are fewer.

        They are taken before anything is filtered. Only what training triples answer already is passed over,
        which tells nothing of the answers that are asked for.

        Args:
            entity_ids: as in :meth:`rescored`.
        """
        answered_BN = self._answered(queries, scores_BN.shape[1], entity_ids)
        passed_BN = torch.from_numpy(answered_BN).to(scores_BN.device) | (scores_BN <= MISSED)
        best = Best.of(scores_BN, k, passed_BN)
        ids_BK = best.columns_BK.cpu().numpy()
        if entity_ids is not None:
            ids_BK = entity_ids[ids_BK] if entity_ids.ndim == 1 else np.take_along_axis(entity_ids, ids_BK, 1)
        return best, np.where(best.scores_BK.isfinite().cpu().numpy(), ids_BK, -1)

    def _answered(self, queries: Queries, width: int, entity_ids: IntArray | None) -> BoolArray:
        """Which of the candidates ``(B, N)`` answer their query in training already."""
        rows, ids = self.context.answers.lookup(queries)
        count = len(self.context.entities)
        if entity_ids is not None and entity_ids.ndim == 2:
            keys_BN = np.arange(len(queries))[:, None] * count + entity_ids
            return np.isin(keys_BN, rows * count + ids) & (entity_ids >= 0)
        if entity_ids is not None:
            column_N = np.full(count, -1)
            column_N[entity_ids] = np.arange(width)
            rows, ids = rows[column_N[ids] >= 0], column_N[ids][column_N[ids] >= 0]
        answered_BN = np.zeros((len(queries), width), np.bool_)
        answered_BN[rows, ids] = True
        return answered_BN

    def retrieve_and_rank(
        self,
        queries: Queries,
        retrieval: Retrieval,
        batch_size: int = 64,
        advance: Callable[[int], None] = lambda n: None,
    ) -> Iterator[tuple[IntArray, torch.Tensor, torch.Tensor]]:
        """As :meth:`rank`, by shortlist and exactly from the same forward passes, to compare the two.

        Yields:
            (rows, scores ``(b, N)`` in which all that the shortlist lacks is :data:`MISSED`, exact scores).
        """
        for rows, span, parts in self.scored(queries, None, batch_size, advance):
            exact_BN = self.final(queries[rows], parts, None, batch_size)
            ids_BK, scores_BK = self.shortlist(span, retrieval, queries[rows], batch_size)
            scores_BN = torch.full_like(exact_BN, MISSED)
            found = torch.from_numpy(ids_BK >= 0).to(exact_BN.device)
            ids = torch.from_numpy(ids_BK).to(exact_BN.device)
            where = found.nonzero()[:, 0]
            scores_BN[where, ids[found]] = scores_BK[found]
            yield rows, self.possible.applied(scores_BN, queries[rows]), exact_BN

    @torch.inference_mode()
    def shortlist(
        self,
        span: SpanOutput,
        retrieval: Retrieval,
        queries: Queries | None = None,
        batch_size: int = 64,
    ) -> tuple[IntArray, torch.Tensor]:
        """The K best that an index finds, rescored exactly: ids and scores ``(B, K)``, best first.

        The index is asked for some more, since its own scores are approximate. The text finds them; a
        structural model and a rescorer only score what it found. Equal scores keep the order of their ids.
        Where there are fewer than K, ids are -1 and scores :data:`MISSED`.

        Args:
            queries: what was asked, which weights of relations and a structural model have to know.
            batch_size: pairs that a rescorer reads at once.
        """
        normalization = self.settings.scoring.normalization
        retriever = retrieval.retriever
        if self.weights.likelihood or retriever.kind == "likelihood":
            normalizer_BL = self.normalizer(span)
        if retriever.kind == "entity":
            assert span.vector_BD is not None
            check_finite(span.vector_BD)
            asked = entity_queries(span.vector_BD)
        else:
            assert retriever.reduction is not None
            check_finite(normalizer_BL)
            asked = likelihood_queries(span.hidden_BLD, normalizer_BL, retriever.reduction, normalization)
        most = min(retrieval.k + MORE, max(1, len(self.context.entities)))
        ids_BK = retriever.search(*asked, most, retrieval.effort).ids_BK
        if queries is not None:  # what cannot answer takes no place
            ids_BK[self.possible.forbidden(queries, ids_BK)] = -1
        some_BK = np.maximum(ids_BK, 0)
        likelihood_BK = vector_BK = structure_BK = None
        if self.weights.likelihood:
            likelihood_BK = score_shortlist(
                self.model, span, normalizer_BL, self.candidates, some_BK, normalization
            )
        if self.weights.vector:
            assert span.vector_BD is not None
            chosen_BKD = self.vectors[torch.from_numpy(some_BK).to(self.model.device)]
            vector_BK = self._factored((chosen_BKD @ span.vector_BD[:, :, None])[:, :, 0], queries)
        if self.weights.structure and self.structure is not None:
            assert queries is not None
            structure_BK = self.structure.score(queries, some_BK)
        scores_BK = Parts(likelihood_BK, vector_BK, structure_BK).score(self.weights)
        scores_BK[torch.from_numpy(ids_BK < 0).to(scores_BK.device)] = MISSED
        order = np.lexsort((ids_BK, -scores_BK.cpu().numpy()))[:, : retrieval.k]
        ids_BK, scores_BK = _taken(ids_BK, scores_BK, order)
        if self.rescorer is None:
            return ids_BK, scores_BK
        assert queries is not None
        scores_BK = self.rescored(queries, scores_BK, ids_BK, batch_size)
        return _taken(ids_BK, scores_BK, np.lexsort((ids_BK, -scores_BK.cpu().numpy())))

    def parts(
        self,
        queries: Queries,
        entity_ids: IntArray | None = None,
        batch_size: int = 64,
        advance: Callable[[int], None] = lambda n: None,
    ) -> Iterator[tuple[IntArray, Parts]]:
        """As :meth:`rank`, with what each score is made of; a part whose weight is 0 is left out."""
        if self.weights.likelihood or self.weights.vector or self.structure is None:
            for rows, _, parts in self.scored(queries, entity_ids, batch_size, advance):
                yield rows, parts
            return
        batch_size = self._bounded(batch_size, entity_ids)
        for start in range(0, len(queries), batch_size):  # structure alone reads no text
            rows = np.arange(start, min(start + batch_size, len(queries)))
            yield rows, Parts(None, None, self.structure.score(queries[rows], entity_ids))
            advance(len(rows))

    @torch.inference_mode()
    def scored(
        self,
        queries: Queries,
        entity_ids: IntArray | None = None,
        batch_size: int = 64,
        advance: Callable[[int], None] = lambda n: None,
    ) -> Iterator[tuple[IntArray, SpanOutput, Parts]]:
        """As :meth:`parts`, with the states that the scores come from."""
        score = self.scorer(entity_ids)
        for rows, span in self.states(queries, self._bounded(batch_size, entity_ids), advance):
            yield rows, span, score(span, queries[rows])

    def _bounded(self, batch_size: int, entity_ids: IntArray | None) -> int:
        """As many queries at once, or as few as their scores leave space for."""
        count = len(self.context.entities) if entity_ids is None else len(entity_ids)
        return max(1, min(batch_size, HELD // max(1, count)))

    def scorer(self, entity_ids: IntArray | None = None) -> Callable[..., Parts]:
        """What scores states, and the queries that they are of, exactly, with its tables laid out.

        The queries must be known where weights differ by relation, and to a structural model.
        """
        table = vectors_ND = None
        if self.weights.likelihood:
            table = self._all if entity_ids is None else self.table(entity_ids)
        if self.weights.vector:
            vectors_ND = self.vectors if entity_ids is None else self.vectors[torch.from_numpy(entity_ids)]

        structure = self.structure if self.weights.structure else None

        def score(span: SpanOutput, queries: Queries | None = None) -> Parts:
            cosines_BN = structure_BN = None
            if structure is not None:
                assert queries is not None
                structure_BN = structure.score(queries, entity_ids)
            if vectors_ND is not None:
                assert span.vector_BD is not None
                cosines_BN = self._factored(score_vectors(span.vector_BD, vectors_ND), queries)
            return Parts(None if table is None else self.scores(span, table), cosines_BN, structure_BN)

        return score

    def _factored(self, cosines_BN: torch.Tensor, queries: Queries | None) -> torch.Tensor:
        """Cosines times what they count for their query; alone they count as they are."""
        if self.factors_R2 is None or not self.weights.likelihood:
            return cosines_BN
        assert queries is not None
        return self._factor(queries)[:, None].to(cosines_BN.device) * cosines_BN

    def _factor(self, queries: Queries) -> torch.Tensor:
        """Of each query what the weight of vectors is multiplied by, ``(B,)``."""
        assert self.factors_R2 is not None
        side_B = torch.from_numpy(1 - queries.tail_B.astype(np.int64))
        return self.factors_R2[torch.from_numpy(queries.relation_B), side_B]

    @torch.inference_mode()
    def explain(self, queries: Queries, entity_ids: IntArray) -> list[list[list[float]]]:
        """Log-likelihood of each token of some candidates under each query: ``[b][n][i]``."""
        self.model.eval()
        batch = self.tokenizer.collate(self.encode(queries)).to(self.model.device)
        span = self.model(batch)
        return token_log_probs(self.model, span, self._softmax_tokens, self.candidates.take(entity_ids))

    def unweighted(self, query: Queries, entity_ids: IntArray) -> dict[str, tuple[float, list[float]]]:
        """What entity vectors and a structural model say of candidates of one query, and what that counts.

        Returns:
            Weight and values of "vector" and "structure", of those that the ranker ranks by.
        """
        plain = copy.copy(self)
        plain.factors_R2 = None
        weights = self.weights
        vector, structure = weights.vector, weights.structure
        if self.factors_R2 is not None and weights.likelihood:
            vector *= float(self._factor(query))
        if self.structure is not None:
            plain.structure = self.structure.weighted(torch.ones_like(self.structure.weights_R2))
            side = 1 - query.tail_B.astype(np.int64)
            row = self.structure.relation_rows[query.relation_B]
            structure *= float(self.structure.weights_R2[row, side]) if row >= 0 else 0.0
        ((_, parts),) = plain.parts(query, entity_ids)
        told = {"vector": (vector, parts.vector_BN), "structure": (structure, parts.structure_BN)}
        return {
            name: (weight, part_BN[0].tolist())
            for name, (weight, part_BN) in told.items()
            if part_BN is not None
        }


def _taken(ids_BK: IntArray, scores_BK: torch.Tensor, order: IntArray) -> tuple[IntArray, torch.Tensor]:
    """Ids and scores in an order of each row's own."""
    return np.take_along_axis(ids_BK, order, 1), scores_BK.gather(
        1, torch.from_numpy(order).to(scores_BK.device)
    )
