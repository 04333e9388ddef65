"""Rules as a signal: the best rules that predict a candidate, and the triples that they rest on.

Rules apply to the triples of whatever graph is asked, so they apply to an unseen graph; rules with constants
do if it has the constants. A candidate that no rule predicts scores 0, or a trifle for how often it answers
in training.

Shapes: B queries, N entities, S directed relations, M rules, K candidates of each query's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from kgmlm.core.arrays import BoolArray, Floats, IntArray
from kgmlm.core.config import RuleSettings, Settings
from kgmlm.core.errors import NoRulesError
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries, Query
from kgmlm.signals.base import OtherGraphError, Pool, Reason, TrainableSignal
from kgmlm.signals.rule_mining import Adjacency, Tree, blocks, expanded, ground, mine, recounted
from kgmlm.signals.rule_set import (
    NONE,
    UNSEEN,
    ConstantRules,
    PathRules,
    RuleFile,
    RuleSet,
    confidence,
)
from kgmlm.text.reader import Reader, Reading

QUICK = 100_000  # training triples that are mined in seconds
SUREST = 0.9999  # the confidence of what is always right


class Predictions(NamedTuple):
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
    def links(self) -> Adjacency:
        """The triples that rules hold for, read from both ends."""
        return Adjacency(self.train, self.entities, self.relations)

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

    def predictions(self, queries: Queries) -> Iterator[Predictions]:
        """All predictions of all rules; nothing predicts the query's own entity."""
        yield from self._by_paths(queries)
        for prediction in (*self._by_values(queries), self._by_answers(queries)):
            on = prediction.entity != queries.entity_B[prediction.query]
            yield Predictions(*(x[on] for x in prediction))

    def _evidence(self, rules: PathRules | ConstantRules, rule: IntArray) -> Floats:
        """Evidence of rules: the negative logarithm of one minus their confidence."""
        sure = confidence(rules.predicted[rule], rules.correct[rule])
        return -np.log1p(-np.minimum(sure, np.float32(SUREST)))

    def _by_paths(self, queries: Queries) -> Iterator[Predictions]:
        tree, rule_of = self._tree
        for query, node, reached in ground(self.links, tree, queries.entity_B, asked_of(queries)):
            line = np.repeat(np.arange(len(query)), np.diff(reached.indptr))
            rule = rule_of[tree.rule[node]]
            evidence = self._evidence(self.rules.paths, rule)
            yield Predictions(query[line], reached.indices.astype(np.int64), evidence[line], rule[line])

    def _by_values(self, queries: Queries) -> Iterator[Predictions]:
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
            yield Predictions(by, entity, self._evidence(c, rule), rule + len(self.rules.paths))

    def _by_answers(self, queries: Queries) -> Predictions:
        """Rules with constants whose answer is the query's entity; they predict all that their body fits."""
        c, directed = self.rules.constants, 2 * self.relations
        query, rule = self._by_head.find(queries.entity_B * directed + (asked_of(queries) ^ 1))
        any_, begin, count = self._holders(c.relation[rule], c.value[rule])
        of, within = expanded(count)
        place, every = begin[of] + within, any_[of]
        entity = np.empty(len(of), np.int64)
        entity[every], entity[~every] = self._of_relation[0][place[every]], self.links.others[place[~every]]
        evidence = self._evidence(c, rule)
        return Predictions(query[of], entity, evidence[of], rule[of] + len(self.rules.paths))

    def _holders(self, relation: IntArray, value: IntArray) -> tuple[BoolArray, IntArray, IntArray]:
        """The entities that bodies of rules with constants hold for: all that have the relation, or those
        linked to the value. Return which of the two, the first place among them, and how many.
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
        sentences = [
            (-float(evidence), int(rule))
            for prediction in self.predictions(asked)
            for evidence, rule in zip(
                *(x[prediction.entity == candidate] for x in (prediction.evidence, prediction.rule)),
                strict=True,
            )
        ]
        return [self._reason(rule, query, candidate) for _, rule in sorted(set(sentences))[:most]]

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
        """The entities between the ends of one such path, which visits none twice."""
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


SCALE = 4.0  # of scores, so that weights of other signals suit them
BEST = 5  # rules that count for a candidate
CELLS = 2**22  # scores that are made at once
KINDS = ("path", "constant")
DISCOUNT = 0.7  # what each further rule counts against the one before it: between the best alone and noisy-or
FREQUENCY = 1e-4  # weight of how often an entity answers: less than any rule


class _Best:
    """The strongest evidence for each cell of a table, best first."""

    def __init__(self, cells: int) -> None:
        self.table = np.zeros((BEST, cells), np.float32)
        self._last = np.empty(cells, np.int32)

    def add(self, cell: IntArray, evidence: Floats) -> None:
        """More evidence; a cell may come often."""
        order = np.argsort(evidence, kind="stable")
        cell, evidence = cell[order], evidence[order]
        for _ in range(BEST):
            if not len(cell):
                return
            place = np.arange(len(cell), dtype=np.int32)
            self._last[cell] = place  # of equal cells the last one, which is the strongest, stays
            best = self._last[cell] == place
            self._insert(cell[best], evidence[best])
            cell, evidence = cell[~best], evidence[~best]

    def _insert(self, cell: IntArray, evidence: Floats) -> None:
        """One piece of evidence for each of some different cells."""
        for row in self.table:
            before = row[cell]
            row[cell] = np.maximum(before, evidence)
            evidence = np.minimum(before, evidence)
            on = evidence > 0
            cell, evidence = cell[on], evidence[on]
            if not len(cell):
                return


@dataclass(frozen=True, eq=False)
class Rules(TrainableSignal):
    """Rules over a graph.

    Attributes:
        applied: what was mined, or read from a file, and the triples that it holds for.
        discount: what each further rule counts against the one before it.
    """

    name: ClassVar[str] = "rules"
    title: ClassVar[str] = "rules"
    about: ClassVar[str] = "paths through the graph that often go with the relation"
    file: ClassVar[str] = "signals/rules.safetensors"
    transductive: ClassVar[bool] = True

    applied: Applied
    discount: float = DISCOUNT

    @classmethod
    def fit(
        cls,
        graph: KnowledgeGraph,
        settings: RuleSettings,
        advance: Callable[[int, int], None] = lambda n, total: None,
        device: str | None = None,
        kept: Path | None = None,
    ) -> Rules:
        """Mine a graph's training triples, or read the rules of ``settings.file``.

        Raises:
            DataError: when that file cannot be read.
            NoRulesError: when there are no rules.
        """
        rules = cls.check(graph, settings) or mine(graph, settings, advance)
        if not rules:
            raise NoRulesError("no rules were found in the training triples")
        return cls.over_graph(rules, graph, DISCOUNT)

    @staticmethod
    def check(graph: KnowledgeGraph, settings: RuleSettings) -> RuleSet | None:
        """The rules of a file that settings name; None where they are to be mined.

        Raises:
            DataError: when the file cannot be read.
            NoRulesError: when it has none about the graph.
        """
        if not settings.file:
            return None
        rules, _ = RuleFile(graph.entities, graph.relations).read(Path(settings.file))
        if not rules:
            raise NoRulesError(f"no rules were found in {settings.file}")
        return rules

    @classmethod
    def over_graph(cls, rules: RuleSet, graph: KnowledgeGraph, discount: float) -> Rules:
        """Rules over the training triples of their own graph."""
        applied = Applied(rules, graph.splits["train"], len(graph.entities), len(graph.relations))
        return cls(applied, discount)

    def for_graph(self, reader: Reader, entity_rows: IntArray, relation_rows: IntArray) -> Rules:
        """A copy for the training triples of another graph."""
        context = reader.context
        rules = self.applied.rules.for_graph(entity_rows, relation_rows)
        applied = Applied(rules, context.train, len(context.entities), len(context.relations))
        return replace(self, applied=applied)

    def updated(self, graph: KnowledgeGraph, settings: Settings) -> Rules:
        """Mine a graph that has grown, or, where that would take long, count again what the rules predict.

        Rules of a file keep the counts that they came with.
        """
        if settings.rules.file:
            return self
        if len(graph.splits["train"]) <= QUICK and (rules := mine(graph, settings.rules)):
            return replace(self, applied=replace(self.applied, rules=rules))
        applied, seed = self.applied, settings.rules.seed
        return replace(self, applied=replace(applied, rules=recounted(applied.rules, applied.links, seed)))

    def tensors(self) -> Mapping[str, npt.NDArray[Any]]:
        """The rules, the sizes of their graph, and the discount in thousandths."""
        rules = {
            f"{kind}.{name}": value.astype(np.int32)
            for kind, of_kind in zip(KINDS, self.applied.rules, strict=True)
            for name, value in vars(of_kind).items()
        }
        sizes = np.array([self.applied.entities, self.applied.relations])
        return {**rules, "sizes": sizes, "discount": np.array([round(1000 * self.discount)])}

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, npt.NDArray[Any]], graph: KnowledgeGraph, reader: Reader | None
    ) -> Rules:
        """See :class:`~kgmlm.signals.base.Signal`."""
        path, constant = (
            {name.split(".")[1]: x.astype(np.int64) for name, x in tensors.items() if name.startswith(kind)}
            for kind in ("path", "constant")
        )
        rules = RuleSet(PathRules(**path), ConstantRules(**constant))
        discount, sizes = float(tensors["discount"][0]) / 1000, tuple(tensors["sizes"].tolist())
        if sizes != (len(graph.entities), len(graph.relations)):
            raise OtherGraphError
        rules.check(*sizes)
        return cls.over_graph(rules, graph, discount)

    def score(self, reading: Reading, pool: Pool) -> Floats:
        """Scores ``(B, N)`` or ``(B, K)``."""
        queries = reading.queries
        out = np.zeros((len(queries), pool.width), np.float32)
        width = pool.width if pool.own else self.applied.entities
        for part in blocks(np.full(len(queries), width), CELLS):
            if pool.own:
                out[part] = self._of_own(queries[part], pool.filled[part])
            else:
                scores_bN = self._of_all(queries[part])
                out[part] = scores_bN if pool.ids is None else scores_bN[:, pool.filled]
        return out

    def _of_all(self, queries: Queries) -> Floats:
        """Scores ``(B, N)`` of all entities."""
        best = _Best(len(queries) * self.applied.entities)
        for prediction in self.applied.predictions(queries):
            best.add(prediction.query * self.applied.entities + prediction.entity, prediction.evidence)
        often_BN = self.applied.frequencies[asked_of(queries)].toarray()
        return self._scored(best, often_BN, often_BN.sum(1, keepdims=True))

    def evidence(self, queries: Queries, ids_BK: IntArray) -> Floats:
        """The evidence of the best rules that predict each query's own candidates ``(BEST, B, K)``.

        The best come first; 0 where there are fewer.
        """
        parts = []
        for part in blocks(np.full(len(queries), ids_BK.shape[1]), CELLS):
            _, cell_bK, best = self._best_of_own(queries[part], ids_BK[part])
            parts.append(best.table[:, cell_bK])
        return np.concatenate(parts, 1) if parts else np.zeros((BEST, *ids_BK.shape), np.float32)

    def _of_own(self, queries: Queries, ids_BK: IntArray) -> Floats:
        """Scores ``(B, K)`` of each query's own candidates, with no table of all entities."""
        cells, cell_BK, best = self._best_of_own(queries, ids_BK)
        often_BN = self.applied.frequencies[asked_of(queries)]
        row, entity = np.divmod(cells, self.applied.entities)
        often, all_B = often_BN[row, entity], often_BN.sum(1)
        return self._scored(best, often, all_B[row])[cell_BK]

    def _best_of_own(self, queries: Queries, ids_BK: IntArray) -> tuple[IntArray, IntArray, _Best]:
        """Distinct pairs of queries and own candidates, the pair of each candidate, and the best rules."""
        rows, entities = np.arange(len(queries)), self.applied.entities
        cells, cell_BK = np.unique(rows[:, None] * entities + ids_BK, return_inverse=True)
        best = _Best(len(cells))
        for prediction in self.applied.predictions(queries):
            cell = prediction.query * entities + prediction.entity
            at = np.minimum(np.searchsorted(cells, cell), len(cells) - 1)
            on = cells[at] == cell
            best.add(at[on], prediction.evidence[on])
        return cells, cell_BK, best

    def _scored(self, best: _Best, often: Floats, of: Floats) -> Floats:
        """Scores from the best rules and, with little weight, from each entity's share of all answers."""
        scores = best.table[-1]
        for row in best.table[-2::-1]:
            scores = scores * np.float32(self.discount) + row
        evidence = scores.reshape(often.shape) + np.float32(FREQUENCY) * often / (of + UNSEEN)
        out: Floats = np.float32(SCALE) * np.sqrt(evidence)  # adds up better with log-likelihoods
        return out

    def reasons(self, query: Query, candidate: int, most: int = 3) -> list[Reason]:
        """The best rules that predict a candidate, as :meth:`Applied.reasons` has them."""
        return self.applied.reasons(query, candidate, most)
