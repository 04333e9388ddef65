"""What the page asks beside ranks: which relations an entity usually has, triples near an answer, an example.

It goes by the graph alone, no model.

Shapes: N entities, S = 2R slots (sides of R relations), F facts (a slot and the other entity there).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from kgmlm.cards import card_names, read_card
from kgmlm.filters import distinct_triples
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import IntArray, Query, QueryError
from kgmlm.resolver import Resolver
from kgmlm.slots import Floats, fills

NEAR = 4  # triples of each kind that are told
ANSWERS = range(2, 9)  # that an example has
TYPING = frozenset({"isa", "is a", "type", "rdf:type", "instance of", "hypernym"})  # names of relations

Row = dict[str, Any]


class Example(NamedTuple):
    """A query to begin with, by labels: the tails of a head."""

    head: str
    relation: str


class Explorer:
    """A graph as somebody walks through it.

    Args:
        type_relation: the label of a relation whose tails are types of its heads; where it is empty, one
            that is called so is taken.
    """

    def __init__(self, graph: KnowledgeGraph, type_relation: str = "") -> None:
        self.graph = graph
        self.type_relation = type_relation

    @cached_property
    def slots_NS(self) -> sp.csr_array:
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
        return sp.csr_array(self.slots_NS > 0).astype(np.float32)

    def usual(self, entity: int | None, side: str) -> list[tuple[int, float, int]]:
        """All relations, those first that entities like this one have: (relation, share of what such
        entities have, the entity's own training triples).

        Entities are alike as far as they fill the same sides of relations. What an entity has counts first;
        where nothing is known of it, what is frequent does.

        Args:
            entity: None, or one that the graph has not, is any.
            side: which one it has in the relation, "head" or "tail".
        """
        relations = len(self.graph.relations)
        at = 2 * np.arange(relations) + (side == "head")
        counts_S = self.slots_NS.sum(0)
        own_S = np.zeros(2 * relations)
        if entity is not None and entity < self.slots_NS.shape[0]:
            own_S = self.slots_NS[[entity]].toarray()[0]
        if own_S.any():
            filled_NS = self._filled_NS
            width_N = np.maximum(np.diff(filled_NS.indptr), 1)
            like_N = filled_NS @ (own_S > 0) / np.sqrt(width_N * (own_S > 0).sum())
            counts_S = (like_N**4) @ filled_NS  # so that those that are most alike say most
        share_R = counts_S[at] / max(float(counts_S[at].sum()), 1e-9)
        order = np.lexsort((-share_R, own_S[at] == 0))
        return [(int(r), float(share_R[r]), int(own_S[at][r])) for r in order]

    def _shared_N(self, entity: int) -> Floats:
        """How many facts each entity shares with this one."""
        count = len(self.graph.entities)
        if entity >= count:
            return np.zeros(count, np.float32)
        shared: Floats = np.asarray((self._facts_NF[[entity]] @ self._facts_FN).toarray()[0], np.float32)
        return shared

    def near(self, query: Query, candidate: int) -> dict[str, list[Row]]:
        """Training triples that are like an answer.

        Returns:
            ``same_answer``: of the asked relation with the same answer, those first whose entity shares most
            facts with the query's; ``same_question``: other answers of the query, those first that share most
            facts with this one. Each with how many facts are ``shared``, ``of`` those of what it is like.
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
        """Some of these entities, those first that share most facts with one."""
        shared = self._shared_N(entity)[others]
        order = np.lexsort((others, self._sizes_N[others], -shared))[:NEAR]
        has = int(self._sizes_N[entity]) if entity < len(self._sizes_N) else 0
        return [self.named(int(others[i])) | {"shared": int(shared[i]), "of": has} for i in order.tolist()]

    def named(self, entity: int) -> Row:
        """Label and name of an entity."""
        found = self.graph.entities[entity]
        return {"label": found.label, "name": found.surface}

    @cached_property
    def _types(self) -> dict[int, list[str]]:
        """Types of entities by a relation that gives them."""
        labels = [r.label for r in self.graph.relations]
        names = [r.name.casefold() for r in self.graph.relations]
        asked = [i for i, label in enumerate(labels) if label == self.type_relation]
        asked = asked or [i for i, name in enumerate(names) if name in TYPING]
        found: dict[int, list[str]] = {}
        for relation in asked[:1]:
            train = self.graph.splits["train"]
            for h, _, t in distinct_triples(train[train[:, 1] == relation]).tolist():
                found.setdefault(h, []).append(self.graph.entities[t].surface)
        return found

    def types(self, entity: int, given: tuple[str, ...]) -> list[str]:
        """What an entity is: the types that it is given, and those by a relation for that."""
        return list(dict.fromkeys([*given, *self._types.get(entity, [])]))

    @cached_property
    def example(self) -> Example | None:
        """A query to begin with: that of the dataset's card; else, of the most frequent relation, the head
        with the most training triples among those with a few answers. None without training triples.
        """
        graph = self.graph
        if graph.name in card_names() and (chosen := read_card(graph.name).example):
            try:
                query = Resolver(graph).query(chosen["relation"], chosen["head"], None)
            except QueryError:  # another graph of that name
                pass
            else:
                return Example(graph.entities[query.entity].label, graph.relations[query.relation].label)
        train = distinct_triples(graph.splits["train"])
        if not len(train):
            return None
        relation = int(np.bincount(train[:, 1]).argmax())
        heads, answers = np.unique(train[train[:, 1] == relation, 0], return_counts=True)
        few = np.isin(answers, ANSWERS)
        heads = heads[few] if few.any() else heads
        head = int(heads[np.argmax(self._sizes_N[heads])])
        return Example(graph.entities[head].label, graph.relations[relation].label)
