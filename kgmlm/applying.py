"""Rules held against a graph: all that they say of queries, and on which triples that rests.

Shapes: B queries, N entities, S directed relations, M rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from kgmlm.grounding import Links, Tree, expanded, ground
from kgmlm.kg import BoolArray, IntArray, Queries, Query
from kgmlm.rules import NONE, ConstantRules, Floats, PathRules, RuleSet, confidence

SUREST = 0.9999  # the confidence of what is always right


class Reason(NamedTuple):
    """Why a candidate scores: a rule and what it rests on.

    Attributes:
        path, constant: which rule of its kind it is; the other is -1.
        predicted, correct: how often the rule predicts, and how often rightly.
        triples: training triples (head, relation, tail) that make its body true.
    """

    path: int
    constant: int
    predicted: int
    correct: int
    triples: tuple[tuple[int, int, int], ...]


class Said(NamedTuple):
    """Predictions: of each a query, an entity, the rule's evidence, and which rule (paths come first)."""

    query: IntArray
    entity: IntArray
    evidence: Floats
    rule: IntArray


@dataclass(frozen=True, eq=False)
class Applied:
    """Rules and the triples that they hold for.

    Attributes:
        train: (n, 3) triples.
        entities, relations: how many there are.
    """

    rules: RuleSet
    train: IntArray
    entities: int
    relations: int

    @cached_property
    def links(self) -> Links:
        """The triples that rules hold for, read from both ends."""
        return Links(self.train, self.entities, self.relations)

    @cached_property
    def _tree(self) -> tuple[Tree, IntArray]:
        """The bodies of path rules, for tails and for heads, and the rule of each."""
        p, directed = self.rules.paths, 2 * self.relations
        both = np.concatenate([p.body, p.backward])
        asked = np.concatenate([2 * p.relation, 2 * p.relation + 1])
        return Tree(asked, both, directed, directed), np.tile(np.arange(len(p)), 2)

    @cached_property
    def _by_body(self) -> _Index:
        c = self.rules.constants
        return _Index.of(self._body_key(c.relation, c.value, c.asked))

    def _body_key(self, relation: IntArray, value: IntArray, asked: IntArray) -> IntArray:
        directed = 2 * self.relations
        return ((value + 1) * directed + relation) * directed + asked

    @cached_property
    def _by_head(self) -> _Index:
        c = self.rules.constants
        return _Index.of(c.answer * 2 * self.relations + c.asked)

    @cached_property
    def frequencies(self) -> sp.csr_array:
        """How often each entity answers each directed relation in the triples, ``(S, N)``."""
        links = self.links
        entity, relation = np.divmod(links.keys, links.directed)
        counts = links.counts.astype(np.float32)
        return sp.csr_array((counts, (relation ^ 1, entity)), (links.directed, self.entities))

    def said(self, queries: Queries) -> Iterator[Said]:
        """All predictions of all rules; nothing predicts the query's own entity."""
        yield from self._by_paths(queries)
        for said in (*self._by_values(queries), self._by_answers(queries)):
            on = said.entity != queries.entity_B[said.query]
            yield Said(*(x[on] for x in said))

    def _evidence(self, rules: PathRules | ConstantRules, rule: IntArray) -> Floats:
        """Evidence of rules: the negative logarithm of one minus their confidence."""
        sure = confidence(rules.predicted[rule], rules.correct[rule])
        return -np.log1p(-np.minimum(sure, np.float32(SUREST)))

    def _by_paths(self, queries: Queries) -> Iterator[Said]:
        tree, rule_of = self._tree
        for query, node, reached in ground(self.links, tree, queries.entity_B, asked_of(queries)):
            line = np.repeat(np.arange(len(query)), np.diff(reached.indptr))
            rule = rule_of[tree.rule[node]]
            evidence = self._evidence(self.rules.paths, rule)
            yield Said(query[line], reached.indices.astype(np.int64), evidence[line], rule[line])

    def _by_values(self, queries: Queries) -> Iterator[Said]:
        """Rules with constants whose body holds for the query's entity."""
        links, c, asked_B = self.links, self.rules.constants, asked_of(queries)
        begin = links.begins[queries.entity_B]
        query, within = expanded(links.begins[queries.entity_B + 1] - begin)
        row = begin[query] + within
        relation = links.keys[row] % links.directed
        bodies = [(query, relation, np.full(len(row), NONE))]
        of, within = expanded(links.counts[row])
        value = links.others[links.offsets[row][of] + within]
        bodies.append((query[of], relation[of], value))
        for of_query, linked, to in bodies:
            at, rule = self._by_body.find(self._body_key(linked, to, asked_B[of_query]))
            by, entity = of_query[at], c.answer[rule]
            yield Said(by, entity, self._evidence(c, rule), rule + len(self.rules.paths))

    def _by_answers(self, queries: Queries) -> Said:
        """Rules with constants whose answer the query's entity is: whatever their body holds for."""
        c, directed = self.rules.constants, 2 * self.relations
        query, rule = self._by_head.find(queries.entity_B * directed + (asked_of(queries) ^ 1))
        any_, begin, count = self._holders(c.relation[rule], c.value[rule])
        of, within = expanded(count)
        place, every = begin[of] + within, any_[of]
        entity = np.empty(len(of), np.int64)
        entity[every], entity[~every] = self._of_relation[0][place[every]], self.links.others[place[~every]]
        evidence = self._evidence(c, rule)
        return Said(query[of], entity, evidence[of], rule[of] + len(self.rules.paths))

    def _holders(self, relation: IntArray, value: IntArray) -> tuple[BoolArray, IntArray, IntArray]:
        """Who bodies of rules with constants hold for: whether all that have the relation, or those linked to
        the value; from which place of these, and how many.
        """
        links = self.links
        any_ = value == NONE
        row = links.rows(np.maximum(value, 0), relation ^ 1)
        begin, count = links.offsets[row], np.where(row >= 0, links.offsets[row + 1] - links.offsets[row], 0)
        starts = np.searchsorted(self._of_relation[1], [relation, relation + 1])
        return any_, np.where(any_, starts[0], begin), np.where(any_, starts[1] - starts[0], count)

    @cached_property
    def _of_relation(self) -> tuple[IntArray, IntArray]:
        """Entities that have a directed relation, and which, sorted by that."""
        entity, relation = np.divmod(self.links.keys, self.links.directed)
        order = np.argsort(relation, kind="stable")
        return entity[order], relation[order]

    def reasons(self, query: Query, candidate: int, most: int = 3) -> list[Reason]:
        """The best rules that predict a candidate of a query, each with one way in which its body is true."""
        asked = Queries.of([query])
        said = [
            (-float(evidence), int(rule))
            for found in self.said(asked)
            for evidence, rule in zip(
                *(x[found.entity == candidate] for x in (found.evidence, found.rule)), strict=True
            )
        ]
        return [self._reason(rule, query, candidate) for _, rule in sorted(set(said))[:most]]

    def _reason(self, rule: int, query: Query, candidate: int) -> Reason:
        paths, constants = self.rules
        head, tail = (query.entity, candidate) if query.target == "tail" else (candidate, query.entity)
        if rule < len(paths):
            body = [int(s) for s in paths.body[rule] if s != NONE]
            nodes = [head, *self._between(head, tail, body), tail]
            triples = tuple(_triple(*step) for step in zip(body, nodes[:-1], nodes[1:], strict=True))
            return Reason(rule, NONE, int(paths.predicted[rule]), int(paths.correct[rule]), triples)
        rule -= len(paths)
        relation, value = int(constants.relation[rule]), int(constants.value[rule])
        who = tail if constants.asked[rule] % 2 else head
        if value == NONE:
            value = int(self._answers(who, relation)[0])
        counts = int(constants.predicted[rule]), int(constants.correct[rule])
        return Reason(NONE, rule, *counts, (_triple(relation, who, value),))

    def _answers(self, entity: int, relation: int) -> IntArray:
        row = int(self.links.rows(np.array([entity]), np.array([relation]))[0])
        none = np.zeros(0, np.int64)
        return none if row < 0 else self.links.others[self.links.offsets[row] : self.links.offsets[row + 1]]

    def _between(self, start: int, end: int, body: list[int], been: tuple[int, ...] = ()) -> list[int]:
        """The entities between the ends of a path, one such path, none of them where it has been."""
        been = (*been, start, end)
        if len(body) == 2:
            both = np.intersect1d(self._answers(start, body[0]), self._answers(end, body[1] ^ 1))
            return [int(x) for x in both[~np.isin(both, been)][:1]]
        for first in self._answers(start, body[0]).tolist() if len(body) > 2 else ():
            rest = [] if first in been else self._between(first, end, body[1:], been)
            if rest:
                return [first, *rest]
        return []


class _Index(NamedTuple):
    """Rules by a key."""

    keys: IntArray
    rules: IntArray

    @classmethod
    def of(cls, key_M: IntArray) -> _Index:
        order = np.argsort(key_M, kind="stable")
        return cls(key_M[order], order)

    def find(self, keys: IntArray) -> tuple[IntArray, IntArray]:
        """The rules of some keys, as (place in ``keys``, rule) pairs."""
        begin = np.searchsorted(self.keys, keys)
        of, within = expanded(np.searchsorted(self.keys, keys, "right") - begin)
        return of, self.rules[begin[of] + within]


def asked_of(queries: Queries) -> IntArray:
    """The directed relation that each query asks of its entity."""
    return 2 * queries.relation_B + queries.side_B


def _triple(directed: int, start: int, end: int) -> tuple[int, int, int]:
    """A step along a directed relation as a triple."""
    return (end, directed // 2, start) if directed % 2 else (start, directed // 2, end)
