"""Types as a signal: how probable it is that an entity fills the asked side of a relation once more.

A relation r has two sides: its range (side 2r), filled by its tails, and its domain (side 2r + 1), filled by
its heads. An entity's features are the sides that it fills in training and the types that it is
given. Which features go together is learned from a run's training triples (:class:`Affinity`) and applied to
the entities of that graph or of another (:class:`EntityTypes`). An entity that training has not seen is
scored by its given types, or else by those of the nearest seen entities, where the run has vectors; failing
that, it scores like any other.

Shapes: N entities, R relations, S = 2R sides, T given types, F = S + T features, U sides that are asked, C
bins of counts; B queries, K candidates of each query's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from kgmlm.core.arrays import BoolArray, Floats, IntArray, top
from kgmlm.core.config import Settings, TypeSettings
from kgmlm.core.errors import RunError
from kgmlm.graphs.graph import ContextGraph, KnowledgeGraph
from kgmlm.graphs.queries import Queries, distinct_triples
from kgmlm.signals.base import OtherGraphError, Pool, TrainableSignal
from kgmlm.text.reader import Reader, Reading

SOURCES = ("seen", "given", "nearest", "none")  # of an entity's types
NONE = -1
SMOOTHING = 1e-4  # of shares in an affinity
BINS = 32  # of how often an entity fills a side: 0, 1, 2 and 3, 4 to 7, ...
MIN_RATE = 1e-9
DOUBT = 0.01  # share of the new fillers of a side that could be any entity
# Fraction of a relation's training heads (tails) that `--typed` may wrongly reject, estimated leave-one-out
MISSED = 0.001
NEIGHBORS = 10  # seen entities, the nearest by vectors, whose types an entity without any has
KEPT = 2**25  # scores of sides that are kept: 128 MB
ENTITY_BATCH = 256  # entities whose neighbors are searched together
PAIRS = 2**31  # of entities without types and seen ones that are compared at most: less than a minute
AMONG = 2**16  # entities that these are looked for among at once


def fills(triples: IntArray, entities: int, relations: int) -> sp.csr_array:
    """Return how many distinct triples each entity fills each side in, ``(N, S)``.

    >>> fills(np.array([[0, 0, 1], [0, 0, 2]]), 3, 1).toarray().astype(int).tolist()
    [[0, 2], [1, 0], [1, 0]]
    """
    h, r, t = distinct_triples(triples).T
    where = (np.concatenate([t, h]), np.concatenate([2 * r, 2 * r + 1]))
    fills_NF = sp.csr_array((np.ones(2 * len(h), np.float32), where), (entities, 2 * relations))
    fills_NF.sum_duplicates()
    return fills_NF


def _binary(counts: sp.csr_array) -> sp.csr_array:
    return sp.csr_array((np.ones_like(counts.data), counts.indices, counts.indptr), counts.shape)


def _given(context: ContextGraph, relations: IntArray) -> tuple[IntArray, list[str]]:
    """(entity, type) pairs: of the table of entities, and of the training triples of relations of types."""
    pairs = [(i, label) for i, labels in enumerate(context.entities.types or ()) for label in labels]
    if len(relations):
        labels = context.entities.column("label")
        asked = context.train[np.isin(context.train[:, 1], relations)]
        pairs += [(h, labels[t]) for h, t in asked[:, [0, 2]].tolist()]
    return np.array([i for i, _ in pairs], np.int64), [label for _, label in pairs]


def _bins(count: Floats) -> IntArray:
    """0 for 0, 1 for 1, 2 for 2 and 3, 3 for 4 to 7, and so on."""
    bins: IntArray = np.where(count < 1, 0, 1 + np.log2(np.maximum(count, 1))).astype(np.int64)
    return np.minimum(bins, BINS - 1)


def _rates(counts_NS: sp.csr_array, seen: int) -> Floats:
    """Return how many more triples to expect, by how often an entity fills a side already ``(S, C)``.

    By Good-Turing estimation (Good, 1953): each triple is withheld in turn and counts for entities that have
    as many as are left. So a country that has its capital is not expected to get another, while hubs grow.
    """
    by_side = sp.csc_array(counts_NS)
    count, sides = by_side.data, by_side.shape[1]
    side = np.repeat(np.arange(sides), np.diff(by_side.indptr))
    events_SC, entities_SC = np.zeros((2, sides, BINS))
    np.add.at(events_SC, (side, _bins(count - 1)), count)
    np.add.at(entities_SC, (side, _bins(count)), 1)
    entities_SC[:, 0] = seen - np.diff(by_side.indptr)
    usual_C = np.append(0.0, 1.5 * 2.0 ** np.arange(BINS - 1))  # as often again, for one entity
    rates: Floats = ((events_SC + usual_C) / (entities_SC + 1)).astype(np.float32)
    return rates


@dataclass(frozen=True, eq=False)
class Affinity:
    """Which features go together in a run's training triples.

    Attributes:
        labels: the T types that training entities are given.
        type_relation: the number of the relation whose tails are types of its heads; -1 for none.
        together_SF: how many entities fill a side and have a feature.
        having_F: how many have a feature.
        triples_S: distinct triples of each side.
        entities: how many entities training has.
        least_S: the fit that all but a few of the training entities on a side reach by their other features;
            at most 0, the fit of an arbitrary entity.
        rates_SC: how many more triples to expect, by how often an entity fills a side already, in bins.
    """

    labels: tuple[str, ...]
    type_relation: int
    together_SF: sp.csr_array
    having_F: IntArray
    triples_S: IntArray
    entities: int
    least_S: Floats
    rates_SC: Floats

    @classmethod
    def learn(
        cls,
        context: ContextGraph,
        type_relation: int = NONE,
        missed: float = 0.0,
        advance: Callable[[int, int], None] = lambda n, total: None,
    ) -> Affinity:
        """From training triples.

        Args:
            type_relation: a relation whose tails are types of its heads.
            missed: share of the training entities of a side that may fit worse than its least.
            advance: called with (sides that were just done, all sides).
        """
        relations = len(context.relations)
        counts_NS = fills(context.train, len(context.entities), relations)
        seen_N = np.diff(counts_NS.indptr) > 0
        entity, label = _given(context, np.array([r for r in [type_relation] if r >= 0], np.int64))
        labels = tuple(sorted({x for i, x in zip(entity.tolist(), label, strict=True) if seen_N[i]}))
        width = 2 * relations + len(labels)
        learned = cls(
            labels,
            type_relation,
            sp.csr_array((2 * relations, width), dtype=np.float32),
            np.zeros(width, np.int64),
            np.asarray(counts_NS.sum(0)).astype(np.int64),
            int(seen_N.sum()),
            np.zeros(2 * relations, np.float32),
            _rates(counts_NS, int(seen_N.sum())),
        )
        has_NF = learned.features(context, np.arange(relations), counts_NS)[seen_N]
        filled_SN = sp.csr_array(_binary(counts_NS)[seen_N].T)
        learned = replace(
            learned,
            together_SF=sp.csr_array(filled_SN @ has_NF),
            having_F=np.asarray(has_NF.sum(0)).astype(np.int64),
        )
        for side in range(2 * relations):
            fillers = filled_SN.indices[filled_SN.indptr[side] : filled_SN.indptr[side + 1]]
            if len(fillers):
                fit, _ = learned.fit(has_NF[fillers], side, withheld=1)
                learned.least_S[side] = min(0.0, np.sort(fit)[int(missed * len(fit))])
            advance(1, 2 * relations)
        return learned

    @property
    def sides(self) -> int:
        """S."""
        return len(self.triples_S)

    def features(
        self, context: ContextGraph, relation_rows: IntArray, counts_NS: sp.csr_array
    ) -> sp.csr_array:
        """Return which features the entities of a graph have, ``(N, F)``.

        Args:
            relation_rows: which relation each of the graph's is here, or -1.
            counts_NS: which sides its entities fill.
        """
        number = {label: i for i, label in enumerate(self.labels)}
        of_types = np.flatnonzero((relation_rows == self.type_relation) & (relation_rows >= 0))
        entity, label = _given(context, of_types)
        known = np.array([number.get(x, NONE) for x in label], np.int64)
        pairs = np.unique(np.stack([entity, known], axis=1)[known >= 0], axis=0)
        shape = (len(context.entities), len(self.labels))
        types_NT = sp.csr_array((np.ones(len(pairs), np.float32), (pairs[:, 0], pairs[:, 1])), shape)
        return sp.csr_array(sp.hstack([_binary(counts_NS), types_NT]))

    def silent(self, side: int) -> BoolArray:
        """Features ``(F,)`` that say nothing of a side: itself, and the types if its relation gives them."""
        silent_F = np.zeros(len(self.having_F), np.bool_)
        silent_F[side] = True
        if side // 2 == self.type_relation:
            silent_F[self.sides :] = True
        return silent_F

    def together(self, side: int) -> Floats:
        """Return how many entities fill a side and have each feature ``(F,)``; 0 of silent ones."""
        row_F: Floats = self.together_SF[[side]].toarray()[0]
        row_F[self.silent(side)] = 0
        return row_F

    def fit(self, has_NF: sp.csr_array, side: int, withheld: int = 0) -> tuple[Floats, BoolArray]:
        """How well entities fit a side by their features, and which of them have a feature that counts.

        The fit is the mean of ``log P(side | feature) / P(side)`` over their features and one more that says
        nothing, so that one odd feature alone counts less than many.

        Args:
            withheld: 1 leaves one entity that fills the side out of all counts, as if it were the one asked.
        """
        silent_F = self.silent(side)
        counts_F = np.maximum(self.together(side) - np.float32(withheld), 0)
        share_F = counts_F / np.maximum(self.having_F - withheld, 1)
        before = (self.having_F[side] - withheld) / max(self.entities - withheld, 1)
        lift_F = np.log((share_F + SMOOTHING) / (before + SMOOTHING)).astype(np.float32)
        lift_F[silent_F] = 0
        weight_N = has_NF @ (~silent_F).astype(np.float32)
        return has_NF @ lift_F / (weight_N + 1), weight_N > 0

    def backing(self, side: int, having_F: IntArray) -> Floats:
        """Return how likely an entity with a feature is to fill a side, ``(F,)``, so that entities sum to 1
        for sides that they fill, and to 1 for types that they have.

        Args:
            having_F: how many entities of the graph that is asked have each feature.
        """
        row_F: Floats = self.together(side)
        for part in (slice(self.sides), slice(self.sides, None)):
            row_F[part] /= np.float32(max(float(row_F[part].sum()), 1.0))
        row_F /= np.maximum(having_F, 1).astype(np.float32)
        return row_F


class _Known(NamedTuple):
    """The features that are known of the entities of a graph.

    Attributes:
        counts_NS: in how many training triples they fill each side.
        has_NF: their features; fractions where they are the mean of others.
        source_N: where their types are from, as places in :data:`SOURCES`.
    """

    counts_NS: sp.csr_array
    has_NF: sp.csr_array
    source_N: IntArray


def _nearest(vectors_ND: Floats, ids_B: IntArray, among: IntArray, k: int) -> IntArray:
    """Places ``(B, k)`` of the k nearest of some entities to each of B; few vectors are read at once."""
    places_BM: IntArray = np.zeros((len(ids_B), 0), np.int64)
    cosines_BM: Floats = np.zeros((len(ids_B), 0), np.float32)
    for start in range(0, len(among), AMONG):
        part = among[start : start + AMONG]
        places_BP = np.broadcast_to(np.arange(start, start + len(part)), (len(ids_B), len(part)))
        places_BM = np.concatenate([places_BM, places_BP], 1)
        cosines_BM = np.concatenate([cosines_BM, vectors_ND[ids_B] @ vectors_ND[part].T], 1)
        best = np.array([top(row, k) for row in cosines_BM])
        places_BM = np.take_along_axis(places_BM, best, 1)
        cosines_BM = np.take_along_axis(cosines_BM, best, 1)
    return places_BM


@dataclass(frozen=True, eq=False)
class EntityTypes:
    """Types of the entities of a graph: what they fill, what they are given, or what their nearest have.

    Attributes:
        affinity: what was learned of types.
        relation_rows: which relation of ``affinity`` each of the graph's is, or -1.
        own: what the graph's training triples and its table of entities say.
        neighbors: how many of the nearest seen entities lend theirs to one of which nothing is known.
        vectors_ND: gives vectors of unit length; None where there are none.
    """

    affinity: Affinity
    relation_rows: IntArray
    own: _Known
    neighbors: int
    vectors_ND: Callable[[], Floats] | None = None
    _kept: dict[int, Floats] = field(default_factory=dict)

    @classmethod
    def of(
        cls, affinity: Affinity, context: ContextGraph, neighbors: int, relation_rows: IntArray | None = None
    ) -> EntityTypes:
        """Types as a graph's training triples and its table of entities have them.

        Args:
            relation_rows: which relation of ``affinity`` each of the graph's is, or -1; None: the same.
        """
        rows = np.arange(len(context.relations)) if relation_rows is None else relation_rows
        relation_T = rows[context.train[:, 1]]
        train = np.stack([context.train[:, 0], relation_T, context.train[:, 2]], axis=1)[relation_T >= 0]
        counts_NS = fills(train, len(context.entities), affinity.sides // 2)
        has_NF = affinity.features(context, rows, counts_NS)
        seen_N, known_N = np.diff(counts_NS.indptr) > 0, np.diff(has_NF.indptr) > 0
        source_N = np.where(seen_N, 0, np.where(known_N, 1, SOURCES.index("none")))
        return cls(affinity, rows, _Known(counts_NS, has_NF, source_N), neighbors)

    def for_graph(self, context: ContextGraph, relation_rows: IntArray) -> EntityTypes:
        """Apply what was learned to the entities of another graph.

        Args:
            relation_rows: which relation of this graph each of the other's is, or -1.
        """
        rows = np.append(self.relation_rows, NONE)[relation_rows]
        return EntityTypes.of(self.affinity, context, self.neighbors, rows)

    def with_vectors(self, vectors_ND: Callable[[], Floats]) -> EntityTypes:
        """A copy for entities that have vectors, asked for only if one needs the types of others."""
        return replace(self, vectors_ND=vectors_ND, _kept={})

    @cached_property
    def known(self) -> _Known:
        """The features of entities, or those lent to entities that have none."""
        without, seen = (np.flatnonzero(self.own.source_N == SOURCES.index(s)) for s in ("none", "seen"))
        if self.vectors_ND is None or not len(without) or not len(seen):
            return self.own
        if len(without) * len(seen) > PAIRS:  # a sample has neighbors that are nearly as near
            fewer = max(PAIRS // len(without), self.neighbors)
            seen = np.sort(np.random.default_rng(0).choice(seen, min(fewer, len(seen)), replace=False))
        vectors, k = self.vectors_ND(), min(self.neighbors, len(seen))
        parts = [without[i : i + ENTITY_BATCH] for i in range(0, len(without), ENTITY_BATCH)]
        near = np.concatenate([_nearest(vectors, part, seen, k) for part in parts])
        counts_NS, has_NF, source_N = self.own
        where = (np.repeat(without, k), seen[near].ravel())
        lent = sp.csr_array((np.full(near.size, 1 / k, np.float32), where), (len(source_N), len(source_N)))
        lent_NF = sp.csr_array(lent @ has_NF)  # of those who have none, and 0 of the others
        source_N = source_N.copy()
        source_N[without] = SOURCES.index("nearest")
        return _Known(counts_NS, sp.csr_array(has_NF + lent_NF), source_N)

    def __len__(self) -> int:
        return len(self.own.source_N)

    def sources(self) -> dict[str, int]:
        """Count the entities by the source of their types."""
        return {name: int((self.known.source_N == i).sum()) for i, name in enumerate(SOURCES)}

    def sides_of(self, queries: Queries) -> IntArray:
        """The side that answers of each query fill; -1 for relations that training has not."""
        relation_B = self.relation_rows[queries.relation_B]
        side_B: IntArray = np.where(relation_B < 0, NONE, 2 * relation_B + queries.side_B)
        return side_B

    @cached_property
    def _seen_N(self) -> BoolArray:
        seen_N: BoolArray = self.own.source_N == SOURCES.index("seen")
        return seen_N

    @cached_property
    def having_F(self) -> IntArray:
        """How many seen entities of the graph have each feature; further entities change nothing."""
        return np.asarray(self.known.has_NF[self._seen_N].sum(0)).astype(np.int64)

    @cached_property
    def _kinds_N(self) -> Floats:
        """How many kinds of features each entity has: sides, types."""
        parts = (self.known.has_NF[:, : self.affinity.sides], self.known.has_NF[:, self.affinity.sides :])
        kinds_N: Floats = np.sum(
            [np.diff(sp.csr_array(p).indptr) > 0 for p in parts], axis=0, dtype=np.float32
        )
        return kinds_N

    @cached_property
    def _by_side(self) -> sp.csc_array:
        return sp.csc_array(self.known.counts_NS)

    def _count(self, side: int) -> Floats:
        """In how many triples each entity fills a side ``(N,)``."""
        count_N = np.zeros(len(self.known.source_N), np.float32)
        at = slice(self._by_side.indptr[side], self._by_side.indptr[side + 1])
        count_N[self._by_side.indices[at]] = self._by_side.data[at]
        return count_N

    def _by_features(self, side: int) -> Floats:
        """Return how likely each entity is to fill a side, judging by its other features ``(N,)``."""
        affinity, has_NF = self.affinity, self.known.has_NF
        by_N: Floats = has_NF @ affinity.backing(side, self.having_F) / np.maximum(self._kinds_N, 1)
        lent = np.flatnonzero(self.known.source_N == SOURCES.index("nearest"))
        if len(lent):  # for these, the share of the nearest that fill the side counts, too
            direct = has_NF[lent][:, [side]].toarray()[:, 0] / max(int(self.having_F[side]), 1)
            by_N[lent] = (by_N[lent] + direct) / 2
        return by_N

    def _rate(self, side: int) -> Floats:
        """Expected number of further triples of a side for each entity, ``(N,)``.

        Entities that have none share, by their features, what :func:`_rates` expects of all of them; if all
        training entities fill the side already, another entity counts like any of them. An unseen one is not
        expected to have more than those that fill the side on average, or more than any of those that share.
        """
        count_N, by_N = self._count(side), self._by_features(side)
        filled_N = self.affinity.rates_SC[side][_bins(count_N)]
        new_N = (count_N == 0) & self._seen_N
        if new_N.any():
            alike = 1 / int(new_N.sum())
            total = max(float(by_N[new_N].sum()), MIN_RATE)
            share_N = by_N * np.float32((1 - DOUBT) / total) + DOUBT * alike
            share_N = np.where(self._kinds_N > 0, share_N, alike).astype(np.float32)
            first_N = (count_N == 1).sum() * share_N
            average = count_N.sum() / max(int((count_N > 0).sum()), 1)
            first_N = np.minimum(first_N, max(average, float(first_N[new_N].max())))
        else:
            mean = filled_N[self._seen_N].mean() if self._seen_N.any() else 0
            first_N = np.full(len(count_N), mean, np.float32)
        rate_N: Floats = np.where(count_N == 0, first_N, filled_N)
        return rate_N

    def row(self, side: int) -> Floats:
        """Return how many more triples of a side to expect of each entity ``(N,)``, as logarithms; made once
        while there is room to keep them.

        It follows from how often an entity fills the side already, and where it does not, from its other
        features. 0 throughout for the side -1.
        """
        if side < 0:
            return np.zeros(len(self.own.source_N), np.float32)
        if side not in self._kept:
            if (len(self._kept) + 1) * len(self.own.source_N) > KEPT:
                self._kept.clear()
            self._kept[side] = np.log(self._rate(side) + MIN_RATE).astype(np.float32)
        return self._kept[side]

    def fitting(self, side: int) -> BoolArray:
        """Return which entities can fill a side ``(N,)``: those that do, those that fit no worse than its
        least, and those of which nothing is known.
        """
        fit_N, known_N = self.affinity.fit(self.known.has_NF, side)
        fitting_N: BoolArray = (self._count(side) > 0) | ~known_N | (fit_N >= self.affinity.least_S[side])
        return fitting_N


def _labels(text: str) -> tuple[str, ...]:
    """The labels of types in a file: JSON, or lines in older ones."""
    return tuple(json.loads(text) if text.startswith('["') else text.split("\n"))


@dataclass(frozen=True, eq=False)
class Types(TrainableSignal):
    """Types over a graph.

    Attributes:
        types: of its entities.
    """

    name: ClassVar[str] = "types"
    title: ClassVar[str] = "types"
    about: ClassVar[str] = "what kinds of entities stand at this side of the relation"
    file: ClassVar[str] = "signals/types.safetensors"
    transductive: ClassVar[bool] = True

    types: EntityTypes

    @staticmethod
    def check(graph: KnowledgeGraph, settings: TypeSettings) -> None:
        """See, before long work, that a graph has the relation that tells types.

        Raises:
            RunError: when it has none of that name.
        """
        if settings.relation and settings.relation not in graph.relations.index:
            raise RunError(f"types.relation: the graph has no relation '{settings.relation}'")

    @classmethod
    def fit(
        cls,
        graph: KnowledgeGraph,
        settings: TypeSettings,
        advance: Callable[[int, int], None] = lambda n, total: None,
        device: str | None = None,
        kept: Path | None = None,
    ) -> Types:
        """Count a graph's training triples.

        Raises:
            RunError: when there is no relation of the name that ``settings.relation`` gives.
        """
        cls.check(graph, settings)
        relation = graph.relations.index.get(settings.relation, NONE)
        affinity = Affinity.learn(graph.context, relation, MISSED, advance)
        return cls(EntityTypes.of(affinity, graph.context, NEIGHBORS))

    def for_graph(self, reader: Reader, entity_rows: IntArray, relation_rows: IntArray) -> Types:
        """A copy for the training triples and given types of another graph."""
        return Types(self.types.for_graph(reader.context, relation_rows))

    def updated(self, graph: KnowledgeGraph, settings: Settings) -> Types:
        """Counted again, by the training triples of a graph that has grown."""
        return Types.fit(graph, settings.types)

    def with_vectors(self, vectors_ND: Callable[[], Floats]) -> Types:
        """A copy in which entities without types have those of the nearest seen ones."""
        return Types(self.types.with_vectors(vectors_ND))

    def tensors(self) -> Mapping[str, npt.NDArray[Any]]:
        """What was counted."""
        a = self.types.affinity
        together = sp.csr_array(a.together_SF)
        return {
            "together": together.data.astype(np.int64),
            "features": together.indices.astype(np.int64),
            "begins": together.indptr.astype(np.int64),
            "having": a.having_F,
            "triples": a.triples_S,
            "least": a.least_S.astype(np.float64),  # which packs keep as it is
            "rates": a.rates_SC.astype(np.float64),
            "labels": np.frombuffer(json.dumps(a.labels).encode(), np.uint8).copy(),
            "sizes": np.array([a.entities, a.type_relation, len(a.labels), self.types.neighbors]),
        }

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, npt.NDArray[Any]], graph: KnowledgeGraph, reader: Reader | None
    ) -> Types:
        """See :class:`~kgmlm.signals.base.Signal`."""
        entities, relation, count, neighbors = tensors["sizes"].tolist()
        labels = _labels(tensors["labels"].tobytes().decode()) if count else ()
        shape = (len(tensors["triples"]), len(tensors["having"]))
        data = tensors["together"].astype(np.float32)
        together = sp.csr_array((data, tensors["features"], tensors["begins"]), shape=shape)
        together.check_format()
        sizes = (len(tensors["least"]), len(labels), len(tensors["having"]))
        if sizes != (shape[0], count, shape[0] + count) or not -1 <= relation < shape[0] // 2:
            raise ValueError("the sizes of its parts do not match")
        if tensors["rates"].shape != (shape[0], BINS):
            raise ValueError("it has rates of another kind")
        numbers = np.concatenate([tensors["least"], tensors["rates"].ravel()])
        if not np.isfinite(numbers).all() or (tensors["rates"] < 0).any() or neighbors < 1:
            raise ValueError("it has impossible numbers")
        counts = tensors["having"], tensors["triples"], entities
        floats = (tensors[name].astype(np.float32) for name in ("least", "rates"))
        affinity = Affinity(labels, relation, together, *counts, *floats)
        if affinity.sides != 2 * len(graph.relations) or entities != int(graph.seen_N.sum()):
            raise OtherGraphError
        return cls(EntityTypes.of(affinity, graph.context, neighbors))

    def score(self, reading: Reading, pool: Pool) -> Floats:
        """Scores ``(B, N)`` or ``(B, K)``."""
        queries = reading.queries
        side_B = self.types.sides_of(queries)
        scores = np.zeros((len(queries), pool.width), np.float32)
        for side in np.unique(side_B).tolist():
            at, row_N = np.flatnonzero(side_B == side), self.types.row(side)
            if pool.ids is None:
                scores[at] = row_N
            else:
                scores[at] = row_N[pool.filled[at] if pool.own else pool.filled]
        return scores
