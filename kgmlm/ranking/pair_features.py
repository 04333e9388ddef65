"""Features of a query and each of its best candidates, which trees (:mod:`.trees`) are fitted to.

Three groups: the scores of the signals, their ranks and distances to the best; what the training triples say
(degrees, common neighbors, walks of two and three steps, answers of similar entities); and what ComplEx and
the rules say when they are asked in further ways. None names an entity or a relation, so they are the same on
another graph.

Shapes: B queries, K candidates of each query's own, P pairs of both, N entities, F features, S signals, R
relations, D real numbers an entity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from kgmlm.core.arrays import BoolArray, Floats, IntArray, complex_product
from kgmlm.graphs.graph import ContextGraph
from kgmlm.graphs.queries import Queries, distinct_triples
from kgmlm.ranking.ranker import FirstStage, Mixture, Ranker
from kgmlm.ranking.second_stage import Best
from kgmlm.signals.kge import KGE
from kgmlm.signals.rules import Rules

MAX_LINKS = 4096  # links of an entity that are followed; those of hubs are thinned evenly
HELD = 2**24  # numbers of one kind about all entities that are held at once: 64 MB
COMPARED = 512  # entities that stand for all where ComplEx is asked in reverse

GRAPH = (
    "degree of the candidate",
    "degree of the query's entity",
    "known answers of the query",
    "answers the relation",
    "share of its triples",
    "common neighbors",
    "Adamic-Adar",
    "walks of two steps",
    "walks of three steps",
    "answers of similar entities",
    "most similar entity with it",
)
KGE_FEATURES = ("kge: reversed", "kge: relation of the pair")
RULE_FEATURES = ("rules: best", "rules: second", "rules: number")
SCORES = ("score: log-probability", "score: rank", "score: distance to the best", "score: second stages")


def group_of(feature: str) -> str:
    """The group of a feature: a signal, "graph", or "scores before" for the sum of all signals.

    >>> group_of("rules: best"), group_of("common neighbors"), group_of("score: rank")
    ('rules', 'graph', 'scores before')
    """
    group = "graph" if feature in GRAPH else feature.partition(":")[0]
    return "scores before" if group == "score" else group


class CandidateScores(NamedTuple):
    """Scores of the K best candidates of B queries.

    Attributes:
        ids_BK: which; -1 where there is none.
        scores_BK: by the stages before.
        signal_scores: of each signal ``(B, K)``, not weighed.
    """

    ids_BK: IntArray
    scores_BK: Floats
    signal_scores: Mapping[str, Floats]

    @classmethod
    def of(cls, first: FirstStage, best: Best, ids_BK: IntArray) -> CandidateScores:
        """The scores of the best candidates by all signals that count.

        Args:
            ids_BK: of these; -1 where there is none.
        """
        signal_scores = {
            name: np.take_along_axis(scores_BN, best.columns_BK, 1)
            for name, scores_BN in first.signal_scores.items()
        }
        return cls(ids_BK, best.scores_BK, signal_scores)

    @classmethod
    def blank(cls, names: Sequence[str], shape: tuple[int, int]) -> CandidateScores:
        """Zeros for so many queries and candidates, to be filled by :meth:`put`."""
        signal_scores = {name: np.zeros(shape, np.float32) for name in names}
        return cls(np.full(shape, -1), np.zeros(shape, np.float32), signal_scores)

    def put(self, rows: IntArray, other: CandidateScores) -> None:
        """Write the scores of the candidates of some queries."""
        self.ids_BK[rows] = other.ids_BK
        self.scores_BK[rows] = np.where(other.there_BK, other.scores_BK, 0)
        for name, of_BK in self.signal_scores.items():
            of_BK[rows] = other.signal_scores[name]

    def take(self, rows: IntArray) -> CandidateScores:
        """The scores of some of the queries."""
        signal_scores = {name: of_BK[rows] for name, of_BK in self.signal_scores.items()}
        return CandidateScores(self.ids_BK[rows], self.scores_BK[rows], signal_scores)

    def combined(self, mixture: Mixture, queries: Queries) -> Floats:
        """The first stage: the weighted sum of the signals ``(B, K)``."""
        parts = (mixture.of(name, queries)[:, None] * of_BK for name, of_BK in self.signal_scores.items())
        total_BK: Floats = sum(parts, np.zeros(self.ids_BK.shape, np.float32))
        return total_BK

    @property
    def there_BK(self) -> BoolArray:
        """Which candidates there are."""
        return self.ids_BK >= 0


class PairFeatures:
    """Features of pairs, by the training triples and the signals of a ranker.

    Args:
        before: features of an earlier ranker, whose counts of the same graph are taken over.

    Attributes:
        signals: those that count, whose scores are features.
    """

    def __init__(self, ranker: Ranker, before: PairFeatures | None = None) -> None:
        self.context = ranker.context
        self.signals = tuple(name for name in ranker.mixture.signals if name in ranker.signals)
        self._by = {name: ranker.signals[name] for name in self.signals}
        kge, rules = self._by.get(KGE.name), self._by.get(Rules.name)
        self.kge = _Reversed.of(kge) if isinstance(kge, KGE) else None
        self.rules = rules if isinstance(rules, Rules) else None
        same = before is not None and before.context is self.context
        self.links: _Around = before.links if before and same else _Around(self.context)

    def fits(self, ranker: Ranker) -> bool:
        """Return whether these are the features of a ranker."""
        names = tuple(name for name in ranker.mixture.signals if name in ranker.signals)
        same = names == self.signals and all(ranker.signals[name] is self._by[name] for name in names)
        return same and self.context is ranker.context

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the F features."""
        of_signals = (
            f"{name}{what}" for name in self.signals for what in ("", ": rank", ": distance to the best")
        )
        return (*SCORES, *of_signals, *self.known_names)

    @property
    def known_names(self) -> tuple[str, ...]:
        """The names of the features that do not depend on the weights of signals."""
        return (*GRAPH, *(KGE_FEATURES if self.kge else ()), *(RULE_FEATURES if self.rules else ()))

    def of(self, queries: Queries, candidates: CandidateScores, mixture: Mixture) -> Floats:
        """The features ``(B, K, F)``; any finite value where there is no candidate."""
        known_BKF = self.known(queries, candidates.ids_BK)
        return np.concatenate([self.of_scores(queries, candidates, mixture), known_BKF], 2)

    def of_scores(self, queries: Queries, candidates: CandidateScores, mixture: Mixture) -> Floats:
        """The features that depend on the weights of signals."""
        there_BK = candidates.there_BK
        scores_BK = np.where(there_BK, candidates.scores_BK, -np.inf)
        best_B1 = np.maximum(scores_BK.max(1, keepdims=True), np.finfo(np.float32).min)
        behind_BK = np.where(there_BK, candidates.scores_BK - best_B1, 0)
        total_B1 = np.where(there_BK, np.exp(behind_BK), 0).sum(1, keepdims=True)
        columns = [
            behind_BK - np.log(np.maximum(total_B1, 1e-9)),
            _ranks(scores_BK),
            behind_BK,
            np.where(there_BK, candidates.scores_BK - candidates.combined(mixture, queries), 0),
        ]
        for name in self.signals:
            weighed_BK = mixture.of(name, queries)[:, None] * candidates.signal_scores[name]
            part_BK = np.where(there_BK, weighed_BK, -np.inf)
            best_B1 = np.maximum(part_BK.max(1, keepdims=True), np.finfo(np.float32).min)
            columns += [
                candidates.signal_scores[name],
                _ranks(part_BK),
                np.where(there_BK, weighed_BK - best_B1, 0),
            ]
        return np.stack(columns, 2).astype(np.float32)

    def known(self, queries: Queries, ids_BK: IntArray) -> Floats:
        """The features that do not depend on the weights of signals."""
        filled_BK = np.maximum(ids_BK, 0)
        parts = [self.links.of(queries, filled_BK)]
        if self.kge:
            parts.append(self.kge.features(queries, filled_BK))
        if self.rules:
            evidence_BK5 = np.moveaxis(self.rules.evidence(queries, filled_BK), 0, 2)
            number_BK = (evidence_BK5 > 0).sum(2)
            parts.append(np.stack([evidence_BK5[..., 0], evidence_BK5[..., 1], number_BK], 2))
        return np.concatenate(parts, 2).astype(np.float32)


def blocks_of(count: int, size: int) -> Iterator[IntArray]:
    """The rows of ``count`` queries, at most ``size`` at a time."""
    for start in range(0, count, max(1, size)):
        yield np.arange(start, min(start + max(1, size), count))


def _ranks(scores_BK: Floats) -> Floats:
    """Logarithms of ranks, the best being 0; equal scores have the same."""
    better_BK = (scores_BK[:, None, :] > scores_BK[:, :, None]).sum(2)
    ranks_BK: Floats = np.log2(1 + better_BK).astype(np.float32)
    return ranks_BK


class _Around:
    """Features by the training triples alone."""

    def __init__(self, context: ContextGraph) -> None:
        self.context = context

    @cached_property
    def _triples(self) -> IntArray:
        return distinct_triples(self.context.train)

    @cached_property
    def _neighbors(self) -> sp.csr_array:
        """Links between entities ``(N, N)``, without self-loops, those of hubs thinned."""
        count = len(self.context.entities)
        h, _, t = self._triples.T
        h, t = h[h != t], t[h != t]
        where = (np.concatenate([h, t]), np.concatenate([t, h]))
        links = sp.csr_array((np.ones(2 * len(h), np.float32), where), (count, count))
        links.sum_duplicates()
        links.data[:] = 1
        return _thinned(links)

    @cached_property
    def _degree_N(self) -> Floats:
        degree_N: Floats = np.maximum(1, np.diff(self._neighbors.indptr)).astype(np.float32)
        return degree_N

    @cached_property
    def _steps(self) -> sp.csr_array:
        """The chance of each step of a walk that goes to all neighbors with equal chance ``(N, N)``."""
        steps_NN: sp.csr_array = sp.diags_array(1 / self._degree_N) @ self._neighbors
        return sp.csr_array(steps_NN)

    @cached_property
    def _fillers(self) -> sp.csr_array:
        """For each side of a relation and each answer, the entities with that answer ``(2R * N, N)``."""
        count, kinds = len(self.context.entities), 2 * len(self.context.relations)
        h, r, t = self._triples.T
        rows = np.concatenate([2 * r * count + t, (2 * r + 1) * count + h])
        ones, columns = np.ones(len(rows), np.float32), np.concatenate([h, t])
        return sp.csr_array((ones, (rows, columns)), (kinds * count, count))

    @cached_property
    def _thin_fillers(self) -> sp.csr_array:
        return _thinned(self._fillers)

    @cached_property
    def _traits(self) -> sp.csr_array:
        """The queries that entities answer, as unit vectors ``(N, 2R * N)``; rare answers weigh more."""
        fillers = self._thin_fillers
        often = np.diff(self._fillers.indptr)
        rare = sp.diags_array((1 / np.log(2 + often)).astype(np.float32))
        traits = sp.csr_array((rare @ fillers).T)
        length_N = np.sqrt(np.maximum(1e-9, traits.multiply(traits).sum(1)))
        return sp.csr_array(sp.diags_array((1 / length_N).astype(np.float32)) @ traits)

    @cached_property
    def _trait_columns(self) -> sp.csr_array:
        return sp.csr_array(self._traits.T)

    def of(self, queries: Queries, ids_BK: IntArray) -> Floats:
        """Features ``(B, K, F)`` of candidates that are there."""
        size = max(1, HELD // max(1, len(self.context.entities)))
        parts = [
            self._of_some(queries[start : start + size], ids_BK[start : start + size])
            for start in range(0, len(queries), size)
        ]
        return np.concatenate(parts) if parts else np.zeros((*ids_BK.shape, len(GRAPH)), np.float32)

    def _of_some(self, queries: Queries, ids_BK: IntArray) -> Floats:
        count, entity_B = len(self.context.entities), queries.entity_B
        degree_N, answering = self._degree_N, queries.kind_B[:, None] * count + ids_BK
        indptr = self._fillers.indptr
        often_BK = (indptr[answering + 1] - indptr[answering]).astype(np.float32)
        rows, _ = self.context.answers.lookup(queries)
        known_B = np.bincount(rows, minlength=len(queries))
        triples_N = self.context.degree_N
        one_BN = self._neighbors[entity_B].toarray()
        first = self._steps[entity_B]
        two_BN = first.toarray() / degree_N
        three_BN = (first @ self._steps).toarray() / degree_N
        around = (one_BN, one_BN / np.log(1 + degree_N), two_BN, three_BN)
        common, adamic, two, three = _summed(self._neighbors, ids_BK, around)
        alike_BN = (self._traits[entity_B] @ self._trait_columns).toarray()
        alike_BN[np.arange(len(queries)), entity_B] = 0
        (similar,) = _summed(self._thin_fillers, answering, (alike_BN,))
        most = _largest(self._thin_fillers, answering, alike_BN)
        wide = ids_BK.shape
        values = (
            np.log1p(triples_N[ids_BK]),
            np.broadcast_to(np.log1p(triples_N[entity_B])[:, None], wide),
            np.broadcast_to(np.log1p(known_B)[:, None], wide),
            np.log1p(often_BK),
            often_BK / np.maximum(1, triples_N[ids_BK]),
            np.log1p(common),
            np.log1p(adamic),
            np.log(1e-6 + two),
            np.log(1e-6 + three),
            np.log1p(similar),
            most,
        )
        return np.stack(values, 2).astype(np.float32)


def _thinned(matrix: sp.csr_array, most: int = MAX_LINKS) -> sp.csr_array:
    """A matrix whose rows keep at most ``most`` entries, evenly spaced in longer rows."""
    counts = np.diff(matrix.indptr)
    if counts.max(initial=0) <= most:
        return matrix
    place = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], counts)
    count = np.repeat(counts, counts)
    kept = (count <= most) | ((place * most) // count != ((place - 1) * most) // count)
    row = np.repeat(np.arange(matrix.shape[0]), counts)[kept]
    return sp.csr_array((matrix.data[kept], (row, matrix.indices[kept])), matrix.shape)


class _Gathered(NamedTuple):
    """The entries of rows of a sparse matrix: which pair each is of, which entity, and where pairs begin."""

    pair: IntArray
    entity: IntArray
    starts: IntArray
    some_P: BoolArray


def _gathered(matrix: sp.csr_array, rows_BK: IntArray) -> _Gathered:
    rows_P = rows_BK.ravel()
    begin_P, end_P = matrix.indptr[rows_P].astype(np.int64), matrix.indptr[rows_P + 1].astype(np.int64)
    count_P = end_P - begin_P
    pair = np.repeat(np.arange(len(rows_P)), count_P)
    before_P = np.cumsum(count_P) - count_P
    entity = matrix.indices[np.arange(len(pair)) + np.repeat(begin_P - before_P, count_P)]
    some_P = count_P > 0
    return _Gathered(pair, entity, before_P[some_P], some_P)


def _summed(matrix: sp.csr_array, rows_BK: IntArray, of: tuple[Floats, ...]) -> list[Floats]:
    """Sums of each query's values of entities ``(B, N)`` over the entities in the rows of a matrix."""
    at = _gathered(matrix, rows_BK)
    query = at.pair // rows_BK.shape[1]
    sums = []
    for values_BN in of:
        sums_P = np.zeros(rows_BK.size, np.float32)
        if len(at.starts):
            sums_P[at.some_P] = np.add.reduceat(values_BN[query, at.entity], at.starts)
        sums.append(sums_P.reshape(rows_BK.shape))
    return sums


def _largest(matrix: sp.csr_array, rows_BK: IntArray, values_BN: Floats) -> Floats:
    """Like :func:`_summed`, but the largest value instead of the sum; 0 for empty rows."""
    at = _gathered(matrix, rows_BK)
    found_P = np.zeros(rows_BK.size, np.float32)
    if len(at.starts):
        query = at.pair // rows_BK.shape[1]
        found_P[at.some_P] = np.maximum.reduceat(values_BN[query, at.entity], at.starts)
    return found_P.reshape(rows_BK.shape)


class _Reversed(NamedTuple):
    """ComplEx asked from the candidate's side, and for the relation of both.

    Attributes:
        compared_MD: the embeddings of some entities, which stand for all.
    """

    entities_SD: Floats
    relations_RD: Floats
    rows_N: IntArray
    relation_rows: IntArray
    compared_MD: Floats

    @classmethod
    def of(cls, kge: KGE) -> _Reversed:
        """By the embeddings of a signal."""
        entities_SD = kge.entities_SD
        compared = np.unique(np.linspace(0, len(entities_SD) - 1, COMPARED).astype(np.int64))
        return cls(entities_SD, kge.relations_RD, kge.rows_N, kge.relation_rows, entities_SD[compared])

    def features(self, queries: Queries, ids_BK: IntArray) -> Floats:
        """``(B, K, 2)``: log-probabilities of the query's entity given candidate and relation, and of the
        relation given both entities; 0 where ComplEx does not know all three.
        """
        width = ids_BK.shape[1]
        entity_B, relation_B = self.rows_N[queries.entity_B], self.relation_rows[queries.relation_B]
        candidate_P = self.rows_N[ids_BK.ravel()]
        known_P = np.repeat((entity_B >= 0) & (relation_B >= 0), width) & (candidate_P >= 0)
        side_P = np.repeat(queries.side_B, width)[known_P]
        relation_P, entity_P = (np.repeat(x, width)[known_P] for x in (relation_B, entity_B))
        one_PD, other_PD = self.entities_SD[entity_P], self.entities_SD[candidate_P[known_P]]
        back_PD = complex_product(other_PD, self.relations_RD[2 * relation_P + 1 - side_P])
        features = np.zeros((ids_BK.size, 2), np.float32)
        among_PM = back_PD @ self.compared_MD.T
        own_P = (back_PD * one_PD).sum(1)
        features[known_P, 0] = own_P - np.logaddexp(own_P, _logsumexp(among_PM))
        real, imaginary = np.split(other_PD, 2, 1)
        pair_PD = complex_product(one_PD, np.concatenate([real, -imaginary], 1))
        half = pair_PD.shape[1] // 2
        pair_PD[:, half:] *= -1
        for side in (0, 1):
            rows = np.flatnonzero(side_P == side)
            scores_PR = pair_PD[rows] @ self.relations_RD[side::2].T
            own = scores_PR[np.arange(len(rows)), relation_P[rows]]
            at = np.flatnonzero(known_P)[rows]
            features[at, 1] = own - _logsumexp(scores_PR)
        return features.reshape(*ids_BK.shape, 2)


def _logsumexp(scores_PM: Floats) -> Floats:
    """Logarithm of the sum of exponentials of each row."""
    most_P1 = scores_PM.max(1, keepdims=True)
    total_P: Floats = np.log(np.exp(scores_PM - most_P1).sum(1)) + most_P1[:, 0]
    return total_P
