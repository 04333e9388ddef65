"""Similar entities and similar answers: nearest neighbors by the text vectors of the bi-encoder's encoder.

Curators describe alike what they link alike. For an entity without training triples, the triples of the
entities with the most similar descriptions often say more than a trained head; and later answers of a query
are often described like the answers that it has.

Shapes: B queries, N entities or candidates that queries share, K candidates of each query's own, M answers,
D width of the text vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from kgmlm.core.arrays import Floats, IntArray, highest
from kgmlm.core.errors import RunError
from kgmlm.graphs.graph import ContextGraph, KnowledgeGraph
from kgmlm.graphs.queries import Queries, Query
from kgmlm.signals.base import CountedSignal, OtherGraphError, Pool, spoken
from kgmlm.text.reader import Reader, Reading

NEIGHBORS = 100  # entities with the most similar texts whose triples count
SHARPNESS = 20  # a neighbor counts e times less for each twentieth that its cosine is lower than the best
SMALLEST = 1e-3  # share of the neighbors below which an answer counts as none
ANSWERS = 100  # known answers of a query that candidates are compared with, evenly spaced if there are more
NEAREST = 3  # of these, the most similar, whose cosines are averaged
QUERY_BATCH = 64  # queries compared with all entities in one product


class Similar(CountedSignal):
    """A signal from the text vectors that a run's bi-encoder has."""

    needs: ClassVar[str] = "biencoder"

    def __init__(self, context: ContextGraph, texts_ND: Callable[[], Floats] | None = None) -> None:
        super().__init__(context)
        self._texts_ND = texts_ND

    def with_texts(self, texts_ND: Callable[[], Floats]) -> Self:
        """Take the bi-encoder's text vectors ``(N, D)`` of all entities."""
        return type(self)(self.context, texts_ND)

    @cached_property
    def texts_ND(self) -> Floats:
        """Unit vectors of the texts of all entities; 0 where a text was not read.

        Raises:
            RunError: when the run has no bi-encoder.
        """
        if self._texts_ND is None:
            raise RunError(f"{self.title} are known by the texts of a bi-encoder, and there is none")
        return self._texts_ND()

    def tensors(self) -> Mapping[str, npt.NDArray[Any]]:
        """The number of training triples; the graph says which these are."""
        return {"triples": np.array([len(self.context.train)], np.int64)}

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, npt.NDArray[Any]], graph: KnowledgeGraph, reader: Reader | None
    ) -> Self:
        """See :class:`~kgmlm.signals.base.Signal`."""
        (triples,) = tensors["triples"].tolist()
        if triples != len(graph.context.train):
            raise OtherGraphError
        return cls(graph.context)

    def _sentence(self, context: ContextGraph, triple: tuple[int, int, int], other: int, own: int) -> str:
        """A training triple, and how similar the texts of two entities are."""
        a, b = context.surfaces[other], context.surfaces[own]
        cosine = float(self.texts_ND[other] @ self.texts_ND[own])
        return f"{spoken(context, [triple])} (the texts of {a} and {b} have a cosine of {cosine:.2f})"


class SimilarEntities(Similar):
    """What the entities whose texts are most like that of the query's entity have as answers.

    The score is ``log(1 + s / SMALLEST)`` of the share s of the :data:`NEIGHBORS` nearest entities with a
    training triple that training answers with the candidate, each weighed by its cosine.
    """

    name: ClassVar[str] = "similar_entities"
    title: ClassVar[str] = "similar entities"
    about: ClassVar[str] = "what entities with similar texts have"
    file: ClassVar[str] = "signals/similar_entities.safetensors"
    transductive: ClassVar[bool] = True

    def score(self, reading: Reading, pool: Pool) -> Floats:
        """Scores ``(B, N)`` or ``(B, K)``, 0 for candidates that no neighbor has."""
        queries = reading.queries
        starts = range(0, len(queries), QUERY_BATCH)
        parts = [self._shares(queries[start : start + QUERY_BATCH]) for start in starts]
        shares_BN = np.concatenate([np.zeros((0, pool.count), np.float32), *parts])
        if pool.own:
            shares_BN = np.take_along_axis(shares_BN, pool.filled, 1)
        elif pool.ids is not None:
            shares_BN = shares_BN[:, pool.filled]
        scores: Floats = np.log1p(shares_BN / np.float32(SMALLEST))
        return scores

    def _shares(self, queries: Queries) -> Floats:
        """The share of the neighbors that has each entity as answer ``(B, N)``."""
        shares_BN = np.zeros((len(queries), len(self.context.entities)), np.float32)
        cosine_BK, near_BK = self.neighbors(queries.entity_B)
        if not near_BK.shape[1]:
            return shares_BN
        # 1) How much each neighbor counts.
        weight_BK = np.exp(SHARPNESS * (cosine_BK - cosine_BK.max(1, keepdims=True)))
        weight_BK /= weight_BK.sum(1, keepdims=True)
        # 2) The answers of the same question about each neighbor.
        row_BK = np.broadcast_to(np.arange(len(queries))[:, None], near_BK.shape)
        row_E = row_BK.ravel()
        asked = Queries(near_BK.ravel(), queries.relation_B[row_E], queries.tail_B[row_E])
        at_A, answer_A = self.context.answers.lookup(asked)
        np.add.at(shares_BN, (row_E[at_A], answer_A), weight_BK.ravel()[at_A])
        return shares_BN

    def neighbors(self, entities_B: IntArray) -> tuple[Floats, IntArray]:
        """The cosines and ids ``(B, K)`` of the entities with training triples whose texts are most similar,
        best first, without the entity itself.
        """
        unseen_N = self.context.unseen_N
        cosine_BN = self.texts_ND[entities_B] @ self.texts_ND.T
        cosine_BN[:, unseen_N] = -np.inf
        cosine_BN[np.arange(len(entities_B)), entities_B] = -np.inf
        return highest(cosine_BN, min(NEIGHBORS, max(0, int((~unseen_N).sum()) - 1)))

    def because(self, context: ContextGraph, query: Query, candidate: int, weight: float) -> tuple[str, ...]:
        """The most similar entity that has the candidate as answer."""
        back = Query(candidate, query.relation, "head" if query.target == "tail" else "tail")
        (near_K,) = self.neighbors(np.array([query.entity]))[1]
        having = near_K[np.isin(near_K, self.context.links.answers(back))].tolist()
        if not having:
            return ()
        head, tail = (having[0], candidate) if query.target == "tail" else (candidate, having[0])
        return (self._sentence(context, (head, query.relation, tail), having[0], query.entity),)


class SimilarAnswers(Similar):
    """How much the text of a candidate is like those of the answers that training gives to the query.

    The score is the mean of the :data:`NEAREST` highest cosines, the candidate itself left out; 0 where
    training has no other answer.
    """

    name: ClassVar[str] = "similar_answers"
    title: ClassVar[str] = "similar answers"
    about: ClassVar[str] = "how similar its text is to known answers; weights may be negative"
    file: ClassVar[str] = "signals/similar_answers.safetensors"
    signed: ClassVar[bool] = True

    def score(self, reading: Reading, pool: Pool) -> Floats:
        """Mean cosines ``(B, N)`` or ``(B, K)``."""
        scores = np.zeros((len(reading.queries), pool.width), np.float32)
        ids, texts_ND = pool.filled, self.texts_ND
        if pool.ids is not None and not pool.own:
            texts_ND = texts_ND[ids]
        for row, answers in self._known(reading.queries):
            if pool.own:
                scores[row] = self._likeness(self.texts_ND[ids[row]], ids[row], answers)
            else:
                scores[row] = self._likeness(texts_ND, ids, answers)
        return scores

    def _known(self, queries: Queries) -> Iterator[tuple[int, IntArray]]:
        """The rows of queries with answers in training, and these answers, or a sample if there are many."""
        row_A, answer_A = self.context.answers.lookup(queries)
        order = np.argsort(row_A, kind="stable")
        rows, begins = np.unique(row_A[order], return_index=True)
        for row, answers in zip(rows.tolist(), np.split(answer_A[order], begins[1:]), strict=False):
            some = np.linspace(0, len(answers) - 1, min(ANSWERS, len(answers))).astype(np.int64)
            yield row, answers[some]

    def _likeness(self, texts_ND: Floats, ids: IntArray, answers: IntArray) -> Floats:
        """The mean of the highest cosines of some entities ``(N,)`` and answers."""
        cosine_NM = texts_ND @ self.texts_ND[answers].T
        cosine_NM[ids[:, None] == answers] = -np.inf
        least = max(0, len(answers) - NEAREST)
        best_NK = np.partition(cosine_NM, least, axis=1)[:, least:]
        other_NK = np.isfinite(best_NK)  # but the candidate itself
        likeness_N: Floats = np.where(other_NK, best_NK, 0).sum(1) / np.maximum(other_NK.sum(1), 1)
        return likeness_N

    def because(self, context: ContextGraph, query: Query, candidate: int, weight: float) -> tuple[str, ...]:
        """The known answer that the candidate is most like, where likeness speaks for it."""
        known = next((answers for _, answers in self._known(Queries.of([query]))), np.zeros(0, np.int64))
        known = known[known != candidate]
        if weight <= 0 or not len(known):
            return ()
        best = int(known[(self.texts_ND[known] @ self.texts_ND[candidate]).argmax()])
        head, tail = (query.entity, best) if query.target == "tail" else (best, query.entity)
        return (self._sentence(context, (head, query.relation, tail), best, candidate),)
