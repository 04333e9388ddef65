"""The explorer's questions: search as you type, an entity with its triples, a query explained.

Search finds beginnings in a sorted list. For the rest, texts are bags of pairs of neighboring bytes: those
that share most with what was typed, by the Dice coefficient, are compared with it letter by letter
(RapidFuzz).

Shapes: n texts, T pairs of bytes in all texts, N entities, S = 2R sides of R relations, F facts (a
side and the other entity there).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from rapidfuzz import fuzz

from kgmlm.core.arrays import Floats, IntArray
from kgmlm.core.errors import QueryError
from kgmlm.graphs.cards import Card, card_names, read_card
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import Edge, KnowledgeGraph
from kgmlm.graphs.names import Resolver
from kgmlm.graphs.queries import Queries, Query, distinct_triples
from kgmlm.ranking.constraints import MISSED
from kgmlm.ranking.predictor import Prediction, Predictor
from kgmlm.serving.schema import LONGEST_DESCRIPTION, LONGEST_NAME
from kgmlm.signals.types import fills
from kgmlm.text.linearization import linearize, neighborhood

COMPARED = 200  # texts that are compared letter by letter
MIN_MATCH = 60.0  # of 100, for a text that does not begin as what was typed
SCANNED = 2_000_000  # pairs that are counted for one search; the rarest go first
_PAIRS = 2**16


class Hit(NamedTuple):
    """An entity, and how well it matches, from 0 to 100."""

    entity: int
    match: float


class Search:
    """Texts of entities, indexed.

    Args:
        first: the id of the first entity of the table.
    """

    def __init__(self, entities: EntityTable, first: int = 0) -> None:
        texts: list[str] = []
        owners: list[int] = []
        columns = zip(*(entities.column(c) for c in ("name", "surface", "label")), strict=True)
        aliases = entities.aliases
        further = repeat([]) if aliases is None else aliases.to_pylist()
        for entity, (row, more) in enumerate(zip(columns, further, strict=False), first):
            for text in dict.fromkeys(plain for x in (*row, *more) if (plain := _plain(x))):
                texts.append(text)
                owners.append(entity)
        order = sorted(range(len(texts)), key=texts.__getitem__)  # equal texts stay in the order of ids
        self.texts = [texts[i] for i in order]
        self.owners = np.array([owners[i] for i in order], np.int64)
        self.offsets, self.postings, self.sizes = _index(self.texts)

    def find(self, typed: str, k: int) -> list[Hit]:
        """The k best entities for what was typed: exact matches, those whose label, name or alias begins with
        it (the shortest first), then those that are similar to it.
        """
        typed = _plain(typed)
        best: dict[int, float] = {}
        for row in self._beginning(typed, k):
            best.setdefault(int(self.owners[row]), 100.0)
        if len(best) < k:
            likes = sorted(
                ((match, -len(self.texts[row]), -row) for row, match in self._like(typed)), reverse=True
            )
            for match, _, row in likes:
                best.setdefault(int(self.owners[-row]), round(match, 1))
        return [Hit(*pair) for pair in list(best.items())[:k]]

    def _beginning(self, typed: str, k: int) -> list[int]:
        """Rows of texts that begin so, shortest first; of very many those that come first."""
        start = bisect_left(self.texts, typed)
        stop = bisect_left(self.texts, typed + chr(0x10FFFF), start)
        rows = range(start, min(stop, start + 100 * k))
        return sorted(rows, key=lambda row: (len(self.texts[row]), row))[: 3 * k]

    def _like(self, typed: str) -> list[tuple[int, float]]:
        """Rows of texts that share most pairs of bytes, with how alike they are letter by letter."""
        pairs = np.unique(_pairs(typed.encode()))
        lengths = self.offsets[pairs + 1] - self.offsets[pairs]
        pairs = pairs[np.argsort(lengths, kind="stable")]
        scanned = np.cumsum(np.sort(lengths, kind="stable"))
        used = pairs[: max(1, int(np.searchsorted(scanned, SCANNED, "right")))]
        parts = [self.postings[self.offsets[p] : self.offsets[p + 1]] for p in used]
        if not any(len(part) for part in parts):
            return []
        shared = np.zeros(len(self.texts), np.uint16)
        for part in parts:  # a text has each pair once, so no index repeats
            shared[part] += 1
        rows = np.flatnonzero(shared >= max(1, int(shared.max()) // 2))
        # As if each text ended where the typed one ends: the user may still be typing.
        sizes = np.minimum(self.sizes[rows], len(pairs) + 2)
        dice = 2 * shared[rows] / (sizes + len(pairs))
        if len(rows) > COMPARED:
            rows = rows[np.argpartition(-dice, COMPARED)[:COMPARED]]
        scored = ((int(row), _alike(typed, self.texts[row])) for row in rows)
        return [(row, match) for row, match in scored if match >= MIN_MATCH]


def _alike(typed: str, text: str) -> float:
    """How similar the whole text, its beginning, or one of its words is, from 0 to 99."""
    ratio = max(fuzz.ratio(typed, text), 0.95 * fuzz.ratio(typed, text[: len(typed)]))
    if len(text) > len(typed):
        ratio = max(ratio, 0.9 * fuzz.partial_ratio(typed, text))
    return min(99.0, float(ratio))


def _plain(text: str) -> str:
    return " ".join(text.casefold().replace("_", " ").split())


def _pairs(text: bytes) -> IntArray:
    """Codes of pairs of neighboring bytes, the beginning of the text counting as one."""
    bytes_n = np.frombuffer(b"\0" + text, np.uint8).astype(np.int64)
    pairs: IntArray = bytes_n[:-1] * 256 + bytes_n[1:]
    return pairs


def _index(texts: Sequence[str]) -> tuple[IntArray, IntArray, IntArray]:
    """Return which texts have each pair (offsets into postings), and how many pairs each text has.

    Texts are taken a block at a time, so that codes and rows of all are never held at once unsorted.
    """
    blocks = [_block(texts[start : start + 100_000], start) for start in range(0, len(texts), 100_000)]
    counts = np.sum([c for c, _, _ in blocks], axis=0) if blocks else np.zeros(_PAIRS, np.int64)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    postings = np.empty(offsets[-1], np.int32)
    at = offsets[:-1].copy()
    for counts_p, rows, _ in blocks:  # each block is sorted by pair: copied behind what is there of each
        starts = np.repeat(at - np.concatenate([[0], np.cumsum(counts_p)[:-1]]), counts_p)
        postings[starts + np.arange(len(rows))] = rows
        at += counts_p
    sizes = np.concatenate([s for _, _, s in blocks]) if blocks else np.zeros(0, np.int64)
    return offsets, postings, sizes


def _block(texts: Sequence[str], first: int) -> tuple[IntArray, IntArray, IntArray]:
    """Counts by pair, rows sorted by pair, and pairs by text, of some texts."""
    encoded = [text.encode() for text in texts]
    lengths = np.array([len(x) for x in encoded], np.int64)
    joined = np.frombuffer(b"\0" + b"\0".join(encoded), np.uint8).astype(np.int64)
    rows = np.repeat(np.arange(len(texts)), lengths + 1)  # the zero before a text is its own
    codes = joined[:-1] * 256 + joined[1:]
    inside = rows[:-1] == rows[1:]
    keys = np.unique(codes[inside] * len(texts) + rows[:-1][inside])
    pairs, rows = np.divmod(keys, max(1, len(texts)))
    counts = np.bincount(pairs, minlength=_PAIRS)
    return counts, (rows + first).astype(np.int32), np.bincount(rows, minlength=len(texts))


NEAR = 4  # triples of each kind that are shown
ANSWERS = range(2, 9)  # that an example has
TYPES = 200  # that a new entity can be given by choosing
NEW = 3  # entities that are proposed to be asked about
TYPING = frozenset({"isa", "is a", "type", "rdf:type", "instance of", "hypernym"})  # names of relations
Row = dict[str, Any]


class Example(NamedTuple):
    """A query to begin with, by labels: the tails of a head."""

    head: str
    relation: str


class Explorer:
    """A graph to browse.

    Args:
        type_relation: the label of a relation whose tails are types of its heads; if it is empty, a relation
            with a name in ``TYPING`` is used.
    """

    def __init__(self, graph: KnowledgeGraph, type_relation: str = "") -> None:
        self.graph = graph
        self.type_relation = type_relation

    @cached_property
    def sides_NS(self) -> sp.csr_array:
        """How often each entity fills each side of each relation in training."""
        graph = self.graph
        return fills(graph.splits["train"], len(graph.entities), len(graph.relations))

    @cached_property
    def _facts_NF(self) -> sp.csr_array:
        """Which facts each entity has in training."""
        h, r, t = distinct_triples(self.graph.splits["train"]).T
        count = len(self.graph.entities)
        fact = np.concatenate([2 * r * count + h, (2 * r + 1) * count + t])
        known, column = np.unique(fact, return_inverse=True)
        rows = np.concatenate([t, h])
        ones = np.ones(len(rows), np.float32)
        return sp.csr_array((ones, (rows, column)), shape=(count, len(known)))

    @cached_property
    def _facts_FN(self) -> sp.csr_array:
        return sp.csr_array(self._facts_NF.T)

    @cached_property
    def _sizes_N(self) -> IntArray:
        """How many facts each entity has."""
        sizes_N: IntArray = np.diff(self._facts_NF.indptr)
        return sizes_N

    @cached_property
    def _filled_NS(self) -> sp.csr_array:
        """Which sides of relations each entity fills."""
        return sp.csr_array(self.sides_NS > 0).astype(np.float32)

    def usual(self, entity: int | None, side: str) -> list[tuple[int, float, int]]:
        """All relations, starting with those that entities like this one have: (relation, share of what such
        entities have, the entity's own training triples).

        Entities are alike as far as they fill the same sides of relations. An entity's own relations come
        first; if nothing is known about it, the order is by frequency.

        Args:
            entity: None, or an entity that the graph lacks, stands for any.
            side: the entity's side of the relation, "head" or "tail".
        """
        relations = len(self.graph.relations)
        at = 2 * np.arange(relations) + (side == "head")
        counts_S = self.sides_NS.sum(0)
        own_S = np.zeros(2 * relations)
        if entity is not None and entity < self.sides_NS.shape[0]:
            own_S = self.sides_NS[[entity]].toarray()[0]
        if own_S.any():
            filled_NS = self._filled_NS
            width_N = np.maximum(np.diff(filled_NS.indptr), 1)
            like_N = filled_NS @ (own_S > 0) / np.sqrt(width_N * (own_S > 0).sum())
            counts_S = (like_N**4) @ filled_NS  # so that those that are most alike say most
        share_R = counts_S[at] / max(float(counts_S[at].sum()), 1e-9)
        order = np.lexsort((-share_R, own_S[at] == 0))
        return [(int(r), float(share_R[r]), int(own_S[at][r])) for r in order]

    def _shared_N(self, entity: int) -> Floats:
        """Return how many facts each entity shares with this one."""
        count = len(self.graph.entities)
        if entity >= count:
            return np.zeros(count, np.float32)
        shared: Floats = np.asarray((self._facts_NF[[entity]] @ self._facts_FN).toarray()[0], np.float32)
        return shared

    def near(self, query: Query, candidate: int) -> dict[str, list[Row]]:
        """Training triples that are like an answer.

        Returns:
            ``same_answer``: entities with the same answer by the same relation, sorted by how many facts they
            share with the query's; ``same_question``: other answers to the query, sorted by how many facts
            they share with this one. Each says how many facts are ``shared``, and ``of`` how many.
        """
        train = self.graph.splits["train"]
        train = distinct_triples(train[train[:, 1] == query.relation])
        asked, given = (train[:, 2], train[:, 0]) if query.target == "tail" else (train[:, 0], train[:, 2])
        others = given[(asked == candidate) & (given != query.entity)]
        answers = asked[(given == query.entity) & (asked != candidate)]
        return {
            "same_answer": self._nearest(query.entity, others),
            "same_question": self._nearest(candidate, answers),
        }

    def _nearest(self, entity: int, others: IntArray) -> list[Row]:
        """Return some of these entities, those that share most facts with one first."""
        shared = self._shared_N(entity)[others]
        order = np.lexsort((others, self._sizes_N[others], -shared))[:NEAR]
        has = int(self._sizes_N[entity]) if entity < len(self._sizes_N) else 0
        return [self.named(int(others[i])) | {"shared": int(shared[i]), "of": has} for i in order.tolist()]

    def named(self, entity: int) -> Row:
        """Label and name of an entity."""
        read = self.graph.entities[entity]
        return {"label": read.label, "name": read.surface}

    @cached_property
    def _types(self) -> dict[int, list[str]]:
        """Types of entities by a relation that gives them."""
        labels = [r.label for r in self.graph.relations]
        names = [r.name.casefold() for r in self.graph.relations]
        asked = [i for i, label in enumerate(labels) if label == self.type_relation]
        asked = asked or [i for i, name in enumerate(names) if name in TYPING]
        types: dict[int, list[str]] = {}
        for relation in asked[:1]:
            train = self.graph.splits["train"]
            for h, _, t in distinct_triples(train[train[:, 1] == relation]).tolist():
                types.setdefault(h, []).append(self.graph.entities[t].surface)
        return types

    def types(self, entity: int, given: tuple[str, ...]) -> list[str]:
        """The types of an entity: those that it is given, and those by a relation for that."""
        return list(dict.fromkeys([*given, *self._types.get(entity, [])]))

    @cached_property
    def frequent_types(self) -> list[str]:
        """The types that entities are given, the most frequent first."""
        given = self.graph.entities.types or []
        return [name for name, _ in Counter(name for types in given for name in types).most_common(TYPES)]

    @cached_property
    def example(self) -> Example | None:
        """A query to begin with: that of the dataset's card, or the first of :meth:`beginnings`; None without
        training triples.
        """
        graph = self.graph
        if self._card is not None and (chosen := self._card.example):
            try:
                query = Resolver(graph).query(chosen["relation"], chosen["head"], None)
            except QueryError:  # another graph of that name
                pass
            else:
                return Example(graph.entities[query.entity].label, graph.relations[query.relation].label)
        for entity, relation in self.beginnings(None, "head", 1):
            return Example(graph.entities[entity].label, graph.relations[relation].label)
        return None

    @cached_property
    def _card(self) -> Card | None:
        return read_card(self.graph.name) if self.graph.name in card_names() else None

    def beginnings(self, relation: int | None, side: str, k: int) -> list[tuple[int, int]]:
        """Queries to begin with, as (entity, relation): entities that have a few answers first, and of these
        those with the most facts.

        Args:
            relation: the one that is asked; None takes one query of each, the most frequent relations first.
            side: of the entity, "head" or "tail".
        """
        train, count = distinct_triples(self.graph.splits["train"]), len(self.graph.entities)
        if relation is not None:
            train = train[train[:, 1] == relation]
        keys = train[:, 1] * count + train[:, 0 if side == "head" else 2]
        known, answers = np.unique(keys, return_counts=True)
        relations, entities = np.divmod(known, max(1, count))
        few = np.isin(answers, ANSWERS)
        order = np.lexsort((entities, -self._sizes_N[entities], ~few, relations))
        relations, entities = relations[order], entities[order]
        if relation is None:
            of, first = np.unique(relations, return_index=True)
            first = first[np.lexsort((of, -np.bincount(train[:, 1])[of]))]
            relations, entities = relations[first], entities[first]
        return list(zip(entities[:k].tolist(), relations[:k].tolist(), strict=True))

    @cached_property
    def heads_R(self) -> dict[int, int]:
        """For each relation that training has, a head to begin with."""
        heads = self.beginnings(None, "head", len(self.graph.relations))
        return {relation: entity for entity, relation in heads}

    @cached_property
    def what_ifs(self) -> list[Row]:
        """Three entities that the graph does not have, with the relation to ask: those of the dataset's card,
        or twins of the graph's entities, with their texts.
        """
        graph = self.graph
        labels = {label for r in graph.relations for label in (r.label, r.name)}
        if self._card is not None and (chosen := self._card.what_if):
            rows = [what.model_dump() | {"triples": []} for what in chosen if what.relation in labels]
            if rows:
                return rows[:NEW]
        examples: dict[int, Row] = {}
        firsts = self.beginnings(None, "head", len(graph.relations))
        more = (pair for _, relation in firsts for pair in self.beginnings(relation, "head", NEW))
        for entity, relation in chain(firsts, more):
            if len(examples) == NEW:
                break
            if entity in examples:
                continue
            of = graph.entities[entity]
            examples[entity] = {
                "name": f"another {of.surface}"[:LONGEST_NAME],
                "description": of.description[:LONGEST_DESCRIPTION],
                "types": list(of.types),
                "relation": graph.relations[relation].label,
                "triples": [] if of.description else self._examples_of(entity, relation),
            }
        return list(examples.values())

    def _examples_of(self, entity: int, asked: int) -> list[Row]:
        """Two triples of an entity by other relations than the asked one."""
        graph, train = self.graph, distinct_triples(self.graph.splits["train"])
        own = train[(train[:, 1] != asked) & (train[:, [0, 2]] == entity).any(1)]
        rows: list[Row] = []
        for h, r, t in own[:2].tolist():
            side, other = ("tail", t) if h == entity else ("head", h)
            rows.append({"relation": graph.relations[r].label, side: graph.entities[other].label})
        return rows


ADDED = "added"  # in place of a split, for triples that came with added entities


class Pages:
    """The triples of a graph by their entities.

    Args:
        graph: the run's; what is added later is given with each question.
    """

    def __init__(self, graph: KnowledgeGraph) -> None:
        self.graph = graph

    @cached_property
    def counts_R(self) -> IntArray:
        """Triples of each relation, in all splits."""
        return np.bincount(self.graph.all_triples[:, 1], minlength=len(self.graph.relations))

    @cached_property
    def _places(self) -> tuple[IntArray, IntArray]:
        """The places of each entity's triples among all: offsets, and rows in order."""
        triples = self.graph.all_triples
        loops = triples[:, 0] == triples[:, 2]
        owners = np.concatenate([triples[:, 0], triples[~loops, 2]])
        rows = np.concatenate([np.arange(len(triples)), np.flatnonzero(~loops)])
        order = np.lexsort((rows, owners))
        counts = np.bincount(owners, minlength=len(self.graph.entities))
        return np.concatenate([[0], np.cumsum(counts)]), rows[order]

    def page(self, graph: KnowledgeGraph, label: str, offset: int, limit: int) -> Row | None:
        """An entity and some of its triples, those of training first, those that were added last; None where
        there is no such label.

        Args:
            graph: this one, or one with further entities and training triples.
        """
        entity = graph.entities.find(label)
        if entity is None:
            return None
        offsets, rows = self._places
        places = (
            rows[offsets[entity] : offsets[entity + 1]] if entity < len(self.graph.entities) else rows[:0]
        )
        added = graph.splits["train"][len(self.graph.splits["train"]) :]
        added = added[(added[:, [0, 2]] == entity).any(1)]
        ends = np.cumsum([len(triples) for triples in self.graph.splits.values()])
        splits = [*self.graph.splits, ADDED]
        of = np.append(np.searchsorted(ends, places, "right"), np.full(len(added), len(ends)))
        triples = np.concatenate([self.graph.all_triples[places], added])
        shown = slice(offset, offset + limit)
        read = graph.entities[entity]
        return {
            "label": read.label,
            "name": read.surface,
            "description": read.description,
            "types": list(read.types),
            "aliases": list(read.aliases),
            "total": len(triples),
            "offset": offset,
            "triples": [
                {
                    "head": named(graph, h),
                    "relation": named_relation(graph, r),
                    "tail": named(graph, t),
                    "split": splits[split],
                }
                for (h, r, t), split in zip(triples[shown].tolist(), of[shown].tolist(), strict=True)
            ],
        }


def shown(predictor: Predictor, query: Query, k: int, novel: bool, also: IntArray) -> Row:
    """All that the page shows of a query.

    Args:
        novel: leave out answers that the graph has.
        also: ids of entities to explain wherever they rank.

    Returns:
        As :class:`~kgmlm.serving.schema.ExploreResponse`; entities and answers have their ``id``, too.
    """
    ((_, predictions),) = predictor.predict([query], k, novel=novel, explain=True)
    graph = predictor.graph
    return {
        "entity": _described(graph, query.entity),
        "relation": named_relation(graph, query.relation),
        "target": query.target,
        "reading": _reading(predictor, query) if predictor.ranker.reader.settings.trains_text else None,
        "usual": predictor.usual(query),
        "entities": len(graph.entities),
        "predictions": _rows(graph, predictions),
        "also": _rows(graph, predictor.placed(query, also, novel=novel)),
    }


def _rows(graph: KnowledgeGraph, predictions: Sequence[Prediction]) -> list[Row]:
    return [p.as_json() | _described(graph, p.id) | {"possible": p.score > MISSED} for p in predictions]


def _described(graph: KnowledgeGraph, entity: int) -> Row:
    read = graph.entities[entity]
    return {
        "id": entity,
        "label": read.label,
        "name": read.surface,
        "description": read.description,
        "types": read.types,
    }


def named(graph: KnowledgeGraph, entity: int) -> Row:
    """An entity's label and name."""
    read = graph.entities[entity]
    return {"label": read.label, "name": read.surface}


def named_relation(graph: KnowledgeGraph, relation: int) -> Row:
    """A relation's label and name."""
    read = graph.relations[relation]
    return {"label": read.label, "name": read.name}


def edge_rows(graph: KnowledgeGraph, edges: Sequence[Edge]) -> list[Row]:
    """Triples as one of their entities has them."""
    return [
        {
            "relation": named_relation(graph, edge.relation),
            "target": edge.target,
            "entity": named(graph, edge.other),
        }
        for edge in edges
    ]


def _reading(predictor: Predictor, query: Query) -> Row:
    """The text around the hole, cut as the model reads it, and the neighbors that it tells."""
    reader, graph = predictor.ranker.reader, predictor.graph
    text, settings = reader.settings.text, reader.settings
    (whole,) = linearize(reader.context, Queries.of([query]), text)
    span = reader.vocabulary.span_length
    (encoded,) = reader.tokenizer.encode_queries(
        [whole], span, text.max_length, vector=settings.vector.enabled
    )
    mask = str(reader.tokenizer.tokenizer.mask_token)
    tokens = reader.tokenizer.render(whole, encoded)
    hole = " ".join([mask] * (span + encoded.vector))
    before, _, after = tokens.rpartition(hole) if not whole.after else tokens.partition(hole)
    edges = neighborhood(reader.context, query, text.neighbors) if text.neighbors else []
    return {
        "before": before.strip(),
        "after": after.strip(),
        "hole": span,
        "cut": encoded.cut,
        "neighbors": edge_rows(graph, edges),
    }
