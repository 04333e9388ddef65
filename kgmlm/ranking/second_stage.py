"""The second stage: the best candidates scored again, by reverse scoring or by a cross-encoder.

Reverse scoring asks each of the K best candidates t of ``(h, r, ?)`` in turn ``(?, r, t)``: the more probable
h is there, the more t gains. So a triple is scored from both of its sides. Nothing is trained; a candidate
costs what a query costs.

The cross-encoder (``kgmlm rerank``) reads query and candidate together, a forward pass each: the query's hole
is filled with the candidate, its description and its own training triples, and at one mask behind it the
masked LM says how much more likely "yes" is than "no".

Shapes: B queries, N candidates, K of them the best, P pairs of a query and a candidate, D distinct queries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import numpy.typing as npt

from kgmlm.core.arrays import (
    Array,
    BoolArray,
    IntArray,
    check_finite,
    highest,
    like,
    logsumexp,
    numpy,
    put,
    where,
)
from kgmlm.core.config import RerankingSettings, Settings
from kgmlm.core.errors import ModelError
from kgmlm.graphs.graph import ContextGraph
from kgmlm.graphs.queries import Groups, Queries, Query
from kgmlm.ranking.constraints import MISSED
from kgmlm.ranking.ranker import BEST, Ranker, Use
from kgmlm.signals.base import Pool
from kgmlm.text.linearization import answer_text, linearize, neighborhood
from kgmlm.text.reader import Reader, Reading, SpanOutput, padded
from kgmlm.text.tokenization import Encoded, SpanTokenizer

if TYPE_CHECKING:
    import torch

    from kgmlm.text.torch_model import SpanModel


Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Best:
    """The K best columns of each of B rows of scores, best first, of those that are not passed over.

    Attributes:
        columns_BK: which.
        scores_BK: their scores; minus infinity where there are fewer than K.
        left_B1: the best score that is left out; minus infinity where none is.
        passed_BN: what was passed over, where the scores are.
    """

    columns_BK: IntArray
    scores_BK: Floats
    left_B1: Floats
    passed_BN: Array

    @classmethod
    def of(cls, scores_BN: Array, k: int, passed_BN: Array) -> Best:
        """The best of scores ``(B, N)``; fewer than ``k`` columns where N is."""
        open_BN = where(passed_BN, -np.inf, scores_BN)
        values_BK, columns_BK = map(numpy, highest(open_BN, min(k + 1, open_BN.shape[1])))
        left_B1 = np.full((len(values_BK), 1), -np.inf, np.float32)
        return cls(columns_BK, values_BK, left_B1, passed_BN).first(k)

    def first(self, k: int) -> Best:
        """The ``k`` best of them."""
        if k >= self.columns_BK.shape[1]:
            return self
        left_B1 = self.scores_BK[:, k : k + 1]
        return Best(self.columns_BK[:, :k], self.scores_BK[:, :k], left_B1, self.passed_BN)

    @property
    def chosen_BK(self) -> BoolArray:
        """Return which are to be reranked: not those that tie with the best one left out, since which of them
        came first would be chance.
        """
        return self.scores_BK > self.left_B1

    def to_read(self, ids_BK: IntArray) -> IntArray:
        """Ids of the columns, -1 where one is not to be reranked."""
        return np.where(self.chosen_BK, ids_BK, -1)

    def reranked(self, scores_BN: Array, read_BK: Floats, weight: float) -> Array:
        """Scores with what reading adds to the chosen: 0 for the worst read, so that all stay ahead of the
        rest. What was passed over on the way to them gains as much as the best read, and keeps its lead.
        """
        chosen_BK = self.chosen_BK
        last_B1, least_B1 = (
            np.where(chosen_BK, of_BK, np.inf).min(1, keepdims=True).astype(np.float32)
            for of_BK in (self.scores_BK, read_BK)
        )
        gain_BK = np.where(chosen_BK, weight * (read_BK - least_B1), 0).astype(np.float32)
        rows_B1 = np.arange(len(gain_BK))[:, None]
        at = (like(rows_B1, scores_BN), like(self.columns_BK, scores_BN))
        raised_BN = put(scores_BN, at, scores_BN[at] + like(gain_BK, scores_BN))
        leading_BN = self.passed_BN & (scores_BN >= like(last_B1, scores_BN))
        return where(leading_BN, raised_BN + like(gain_BK.max(1, keepdims=True), scores_BN), raised_BN)


def best_of(
    context: ContextGraph, queries: Queries, scores_BN: Array, k: int, pool: Pool
) -> tuple[Best, IntArray]:
    """The K best candidates of each query, and their ids ``(B, K)``, -1 where there are fewer.

    They are taken before anything is filtered. Only what training triples answer already is passed over,
    which tells nothing of the answers that are asked for.
    """
    passed_BN = like(_answered(context, queries, pool), scores_BN) | (scores_BN <= MISSED)
    best = Best.of(scores_BN, k, passed_BN)
    ids_BK = best.columns_BK
    if pool.ids is not None:
        ids_BK = np.take_along_axis(pool.ids, ids_BK, 1) if pool.own else pool.ids[ids_BK]
    return best, np.where(np.isfinite(best.scores_BK), ids_BK, -1)


def _answered(context: ContextGraph, queries: Queries, pool: Pool) -> BoolArray:
    """Return which of the candidates ``(B, N)`` answer their query in training already."""
    rows, ids = context.answers.lookup(queries)
    if pool.own:
        keys_BN = np.arange(len(queries))[:, None] * pool.count + pool.filled
        return np.isin(keys_BN, rows * pool.count + ids) & pool.there
    if pool.ids is not None:
        column_N = np.full(pool.count, -1)
        column_N[pool.ids] = np.arange(pool.width)
        rows, ids = rows[column_N[ids] >= 0], column_N[ids][column_N[ids] >= 0]
    answered_BN = np.zeros((len(queries), pool.width), np.bool_)
    answered_BN[rows, ids] = True
    return answered_BN


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
        self._words = np.array([yes, no])
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
        """A copy for another graph."""
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
        import torch

        weight_VD, bias_V = self.model.decoder
        words = torch.from_numpy(self._words).to(weight_VD.device)
        (yes_D, no_D), (yes, no) = weight_VD[words].float(), bias_V[words].float()
        scores_P: torch.Tensor = span.hidden_BLD[:, 0] @ (yes_D - no_D) + (yes - no)
        return scores_P

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
        import torch

        self.model.eval()
        row_P, column_P = np.nonzero(ids_BK >= 0)
        scores_BK = torch.zeros(ids_BK.shape, device=self.model.device)
        for start in range(0, len(row_P), _ENCODED):
            row_p, column_p = row_P[start : start + _ENCODED], column_P[start : start + _ENCODED]
            own, first = np.unique(row_p, return_index=True)
            told = self.encode(queries[own], np.split(ids_BK[row_p, column_p], first[1:]))
            pairs = [pair for row in told for pair in row]
            for at, batch in padded(self.tokenizer, pairs, batch_size, self.model.device):
                with torch.inference_mode():
                    scores_BK[row_p[at], column_p[at]] = self.read(self.model(batch))
                advance(len(at))
        return scores_BK


def filled(asked: Encoded, answer: list[int]) -> Encoded:
    """A query's tokens with a candidate's before the hole."""
    ids, start = asked.input_ids, asked.span_start
    return replace(asked, input_ids=[*ids[:start], *answer, *ids[start:]], span_start=start + len(answer))


@dataclass(frozen=True, eq=False)
class Used:
    """The use of a second stage, and copies of the stage.

    Attributes:
        use: how many of the best candidates it scores, and how much that counts.
    """

    use: Use

    def used(self, use: Use) -> Self:
        """A copy that is used otherwise."""
        return replace(self, use=use)

    def over(self, context: ContextGraph) -> Self:
        """A copy for another graph."""
        return self

    def reduce(self, enabled: bool) -> None:
        """Compute in bf16, or in float32 again."""
        return  # the run's own model computes


class _OfTheBest(Used, ABC):
    """A second stage that scores the K best candidates, and adds that to their scores."""

    def reranked(
        self,
        ranker: Ranker,
        queries: Queries,
        scores_BN: Array,
        pool: Pool,
        batch_size: int = 64,
        advance: Callable[[int, int], None] = lambda n, total: None,
        free_B: BoolArray | None = None,
        reading: Reading | None = None,
    ) -> Array:
        """See :class:`~kgmlm.ranking.ranker.SecondStage`."""
        if not self.use.k:
            return scores_BN
        best, ids_BK = best_of(ranker.context, queries, scores_BN, self.use.k, pool)
        found_BK = self.score(ranker, queries, best.to_read(ids_BK), batch_size, advance, free_B)
        return best.reranked(scores_BN, found_BK, self.use.weight)

    @abstractmethod
    def score(
        self,
        ranker: Ranker,
        queries: Queries,
        ids_BK: IntArray,
        batch_size: int = 64,
        advance: Callable[[int, int], None] = lambda n, total: None,
        free_B: BoolArray | None = None,
    ) -> Floats:
        """Scores ``(B, K)`` of candidates, on the scale of the first stage's; anything where an id is -1."""


@dataclass(frozen=True, eq=False)
class CrossEncoding(_OfTheBest):
    """Candidates read together with their query by a cross-encoder (``kgmlm rerank``).

    Attributes:
        unit: the weight at which vectors are as confident as the likelihood; the cross-encoder's scores are
            put on the scale of each query's scores by it.
    """

    name: ClassVar[str] = "reranking"
    reranker: Reranker
    unit: float

    def over(self, context: ContextGraph) -> Self:
        """A copy for another graph."""
        return replace(self, reranker=self.reranker.over(context))

    def reduce(self, enabled: bool) -> None:
        """Compute in bf16, or in float32 again."""
        self.reranker.model.reduce(enabled)

    def score(
        self,
        ranker: Ranker,
        queries: Queries,
        ids_BK: IntArray,
        batch_size: int = 64,
        advance: Callable[[int, int], None] = lambda n, total: None,
        free_B: BoolArray | None = None,
    ) -> Floats:
        """Log odds of "yes", on the scale of each query's scores.

        Where a relation weighs the text more than the average does, its scores are as much larger, and one
        weight of reranking has to mean the same for all.

        Args:
            batch_size: pairs of a query and a candidate that are read at once.
        """
        read_BK: Floats = numpy(self.reranker.score(queries, ids_BK, batch_size))
        check_finite(read_BK)
        mixture = ranker.mixture
        if not {"likelihood", "vector"} <= set(mixture.signals):
            return read_BK
        likelihood_B, vector_B = (mixture.of(name, queries) for name in ("likelihood", "vector"))
        average = self.unit * mixture.averages["likelihood"] + mixture.averages["vector"]
        scale_B = (self.unit * likelihood_B + vector_B) / average
        scaled_BK: Floats = scale_B.astype(np.float32)[:, None] * read_BK
        return scaled_BK


@dataclass(frozen=True, eq=False)
class Conditional(_OfTheBest):
    """Names of candidates read token by token by the run's own model (``kgmlm tune --add conditional``)."""

    name: ClassVar[str] = "conditional"

    def score(
        self,
        ranker: Ranker,
        queries: Queries,
        ids_BK: IntArray,
        batch_size: int = 64,
        advance: Callable[[int, int], None] = lambda n, total: None,
        free_B: BoolArray | None = None,
    ) -> Floats:
        """Mean log-likelihoods of the tokens of names, each given those before it, on the likelihood's scale.

        See :mod:`kgmlm.text.spelling`.
        """
        import torch

        from kgmlm.text.spelling import Spelled, spelled_log_probs, spelled_scores

        reader, found_BK = ranker.reader, np.zeros(ids_BK.shape, np.float32)
        span, tokens = reader.vocabulary.span_length, ranker.likelihood.softmax_tokens
        width = max(1, min(NAMES, ids_BK.shape[1]))
        size = max(1, SPELLED // (2 * width * span) ** 2)
        encoded = reader.encode(queries)
        for rows, batch in reader.padded(encoded, min(size, batch_size)):
            for start in range(0, ids_BK.shape[1], width):
                columns = slice(start, start + width)
                names = Spelled.of(reader.names, ids_BK[rows, columns], span).to(reader.model.device)
                with torch.inference_mode():
                    output = reader.model(batch, names=names.behind(batch))
                    log_probs_bKL = spelled_log_probs(reader.model, output, names, tokens)
                    scores_bK = spelled_scores(log_probs_bKL, names, reader.settings.scoring.normalization)
                found_BK[rows, columns] = numpy(scores_bK)
            advance(len(rows), len(queries))
        return found_BK


NAMES = 32  # that stand behind a text at once
SPELLED = 2**24  # cells of masks of attention that are held at once
FLOOR = -30.0  # the least log-probability: what cannot answer would hide all differences of the rest


@dataclass(frozen=True, eq=False)
class ReverseScoring(_OfTheBest):
    """Candidates asked in turn for the entity of their query (``kgmlm tune --add reverse``)."""

    name: ClassVar[str] = "reverse"

    def score(
        self,
        ranker: Ranker,
        queries: Queries,
        ids_BK: IntArray,
        batch_size: int = 64,
        advance: Callable[[int, int], None] = lambda n, total: None,
        free_B: BoolArray | None = None,
    ) -> Floats:
        """Log-probability of each query's entity as the answer of its candidates; 0 where an id is -1.

        A logarithm of the softmax over the best answers of each candidate, known ones included, on the scale
        of the scores. Between temperatures of .25 and 4 validation saw no difference (eval/LOG.md), so it is
        1; one signal alone has that of training.
        """
        row_P, column_P = np.nonzero(ids_BK >= 0)
        asked = queries[row_P]
        free_P = np.zeros(len(row_P), np.bool_) if free_B is None else free_B[row_P]
        back = Queries(ids_BK[row_P, column_P], asked.relation_B, ~asked.tail_B)
        groups = Groups.of(ranker.context.answers.keys(back))
        distinct = back[groups.first]
        single = len(ranker.mixture.signals) == 1
        temperature = ranker.reader.settings.training.temperature if single else 1.0
        back_BK = np.zeros(ids_BK.shape, np.float32)
        for rows, _, said in ranker.signal_scores(distinct, None, batch_size):
            all_dN = ranker.mixture.combine(said, distinct[rows])
            at_p, of_p = groups.take(rows)
            for free in np.unique(free_P[at_p]).tolist():
                scores_dN = all_dN if free else ranker.possible.applied(all_dN, distinct[rows])
                best_dK, _ = highest(scores_dN, min(BEST, scores_dN.shape[1]))
                whole_d = logsumexp(numpy(best_dK) / temperature)
                mine = free_P[at_p] == free
                at_m, of_m = at_p[mine], of_p[mine]
                found_m = numpy(scores_dN[of_m, asked.entity_B[at_m]]) / temperature - whole_d[of_m]
                back_BK[row_P[at_m], column_P[at_m]] = temperature * np.maximum(found_m, FLOOR)
            advance(len(rows), len(distinct))
        return back_BK
