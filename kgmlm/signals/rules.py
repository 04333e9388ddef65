"""Rules as a signal: what the best rules that predict a candidate say of it.

Rules hold for the triples of whatever graph is asked, so they hold on an unseen graph; rules with constants where it
has the constants. What no rule predicts scores 0, or a trifle for how often training has it as an answer.

Shapes: B queries, N entities, S directed relations, M rules, K candidates of each query's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch

from kgmlm import files
from kgmlm.config import RuleSettings
from kgmlm.graph import KnowledgeGraph
from kgmlm.grounding import Links, Tree, blocks, expanded, ground
from kgmlm.kg import IntArray, Queries, Query, RunError
from kgmlm.mining import mine
from kgmlm.pool import Pool, Reading
from kgmlm.reader import Reader
from kgmlm.rules import NONE, UNSEEN, ConstantRules, PathRules, RuleFile, RuleSet, confidence

Floats = npt.NDArray[np.float32]
BEST = 5  # rules that count for a candidate
CELLS = 2**22  # scores that are made at once
DISCOUNTS = {"maximum": 1e-3, "discounted": 0.6, "noisy-or": 1.0}  # each rule against the one before it
FREQUENCY = 1e-4  # weight of a rule without a body: less than any other rule
SUREST = 0.9999


class Reason(NamedTuple):
    """Why a candidate scores: a rule and what it rests on.

    Attributes:
        path, constant: which rule of its kind it is; the other is -1.
        confidence: of the rule.
        triples: training triples (head, relation, tail) that make its body true.
    """

    path: int
    constant: int
    confidence: float
    triples: tuple[tuple[int, int, int], ...]


class _Said(NamedTuple):
    """Predictions: of each a query, an entity, the rule's evidence, and which rule (paths come first)."""

    query: IntArray
    entity: IntArray
    evidence: Floats
    rule: IntArray


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
class Rules:
    """Rules over a graph.

    Attributes:
        rules: what was mined, or read from a file.
        train: the triples that rules hold for.
        entities, relations: how many the graph has.
        discount: what each further rule counts against the one before it.
        device: of scores.
    """

    name: ClassVar[str] = "rules"
    reads: ClassVar[bool] = False
    file: ClassVar[str] = "signals/rules.safetensors"

    rules: RuleSet
    train: IntArray
    entities: int
    relations: int
    discount: float = DISCOUNTS["discounted"]
    device: torch.device | None = None

    @classmethod
    def fresh(cls, reader: Reader) -> None:
        """It does not come with the model: it is mined beside it."""

    @classmethod
    def fit(
        cls,
        graph: KnowledgeGraph,
        settings: RuleSettings,
        advance: Callable[[int, int], None] = lambda n, total: None,
        device: torch.device | None = None,
    ) -> Rules:
        """Mine a graph's training triples, or read the rules of ``settings.file``.

        Raises:
            DataError: when that file cannot be read.
            RunError: when there are no rules.
        """
        if settings.file:
            rules, _ = RuleFile(graph.entities, graph.relations).read(Path(settings.file))
        else:
            rules = mine(graph, settings, advance)
        if not rules:
            raise RunError(f"there are no rules {'in ' + settings.file if settings.file else 'to be found'}")
        return cls.over_graph(rules, graph, DISCOUNTS[settings.aggregation], device)

    @classmethod
    def over_graph(
        cls, rules: RuleSet, graph: KnowledgeGraph, discount: float, device: torch.device | None = None
    ) -> Rules:
        """Rules over the training triples of their own graph."""
        return cls(rules, graph.splits["train"], len(graph.entities), len(graph.relations), discount, device)

    def over(self, reader: Reader, entity_rows: IntArray, relation_rows: IntArray) -> Rules:
        """The same for the training triples of another graph."""
        context = reader.context
        return replace(
            self,
            rules=self.rules.over(entity_rows, relation_rows),
            train=context.train,
            entities=len(context.entities),
            relations=len(context.relations),
            device=reader.model.device,
        )

    def save(self, path: Path) -> None:
        """Write the rules as safetensors."""
        kinds = zip(("path", "constant"), self.rules, strict=True)
        tensors = {
            f"{kind}.{name}": torch.from_numpy(np.ascontiguousarray(value, np.int32))
            for kind, rules in kinds
            for name, value in vars(rules).items()
        }
        sizes = torch.tensor([self.entities, self.relations])
        discount = torch.tensor([self.discount], dtype=torch.float64)
        files.write_tensors(path, {**tensors, "sizes": sizes, "discount": discount})

    @classmethod
    def open(cls, path: Path, graph: KnowledgeGraph, reader: Reader | None = None) -> Rules:
        """What :meth:`save` wrote for a graph.

        Raises:
            RunError: when the file is damaged or of another graph.
        """
        from safetensors.numpy import load_file

        sizes = (len(graph.entities), len(graph.relations))
        try:
            t = load_file(path)
            found = tuple(t.pop("sizes").tolist())
            discount = float(t.pop("discount")[0])
            of = {kind: {k.split(".")[1]: v.astype(np.int64) for k, v in t.items() if k.startswith(kind)} for kind in ("path", "constant")}
            rules = RuleSet(PathRules(**of["path"]), ConstantRules(**of["constant"]))
            if found == sizes:
                rules.check(*sizes)
        except Exception as error:
            why = (str(error).splitlines() or [type(error).__name__])[0]
            raise RunError(f"{path} cannot be read: {why}") from None
        if found != sizes:
            raise RunError(f"{path} is of another graph; `kgmlm tune RUN --add rules` makes another")
        return cls.over_graph(rules, graph, discount, None if reader is None else reader.model.device)

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
        keys = self._body_key(c.relation, c.value, c.asked)
        return _Index.of(keys, np.flatnonzero(c.relation != NONE))

    def _body_key(self, relation: IntArray, value: IntArray, asked: IntArray) -> IntArray:
        directed = 2 * self.relations
        return ((value + 1) * directed + relation) * directed + asked

    @cached_property
    def _by_head(self) -> _Index:
        c = self.rules.constants
        return _Index.of(c.answer * 2 * self.relations + c.asked, np.flatnonzero(c.relation != NONE))

    @cached_property
    def _frequencies(self) -> tuple[sp.csr_array, npt.NDArray[np.float64]]:
        """How often each entity answers a directed relation ``(S, N)``, and how many triples that has."""
        c, directed = self.rules.constants, 2 * self.relations
        on = np.flatnonzero(c.relation == NONE)
        counts = sp.csr_array((c.correct[on].astype(np.float32), (c.asked[on], c.answer[on])), (directed, self.entities))
        totals = np.zeros(directed)
        totals[c.asked[on]] = c.predicted[on]
        return counts, totals

    def score(self, reading: Reading, pool: Pool) -> torch.Tensor:
        """Scores ``(B, N)`` or ``(B, K)``."""
        return self._scores(reading.queries, pool, None)

    def score_withheld(self, queries: Queries, answer_B: IntArray, pool: Pool) -> torch.Tensor:
        """The same as if of each query one triple, its own with this answer, were not in training.

        It supports no path, and no rule counts it as a right prediction. (That it may have helped rules to predict
        other pairs stays counted.)
        """
        return self._scores(queries, pool, answer_B)

    def _scores(self, queries: Queries, pool: Pool, answer_B: IntArray | None) -> torch.Tensor:
        out = np.zeros((len(queries), pool.width), np.float32)
        for part in blocks(np.full(len(queries), self.entities), CELLS):
            asked = queries[part]
            answers = None if answer_B is None else answer_B[part]
            scores_bN = self._of_block(asked, answers)
            if pool.ids is None:
                out[part] = scores_bN
            else:
                ids = pool.filled[part] if pool.own else np.broadcast_to(pool.filled, (len(asked), pool.width))
                out[part] = np.take_along_axis(scores_bN, ids, 1)
        found = torch.from_numpy(out)
        return found if self.device is None else found.to(self.device)

    def _of_block(self, queries: Queries, answer_B: IntArray | None) -> Floats:
        """Scores ``(B, N)`` of all entities."""
        best = _Best(len(queries) * self.entities)
        for said in self._said(queries, answer_B):
            best.add(said.query * self.entities + said.entity, said.evidence)
        scores = best.table[-1]
        for row in best.table[-2::-1]:
            scores = scores * np.float32(self.discount) + row
        scores_BN = scores.reshape(len(queries), self.entities)
        counts, totals = self._frequencies
        asked_B = _asked(queries)
        often_BN, of_B = counts[asked_B].toarray(), totals[asked_B]
        if answer_B is not None:
            at = np.flatnonzero(answer_B >= 0)
            often_BN[at, answer_B[at]] -= 1
            of_B = of_B - (answer_B >= 0)
        share_B = (FREQUENCY / (np.maximum(of_B, 0) + UNSEEN)).astype(np.float32)
        total: Floats = scores_BN + np.maximum(often_BN, 0) * share_B[:, None]
        return total

    def _said(self, queries: Queries, answer_B: IntArray | None) -> Iterator[_Said]:
        """All predictions of all rules that have a body; nothing predicts the query's own entity."""
        if answer_B is None:
            answer_B = np.full(len(queries), NONE)
        yield from self._by_paths(queries, answer_B)
        for said in (*self._by_values(queries, answer_B), self._by_answers(queries, answer_B)):
            on = said.entity != queries.entity_B[said.query]
            yield _Said(*(x[on] for x in said))

    def _evidence(self, rules: PathRules | ConstantRules, rule: IntArray, without: npt.NDArray[np.bool_]) -> Floats:
        """How much each of some rules says; ``without`` one right prediction where that is withheld."""
        sure = confidence(rules.predicted[rule], rules.correct[rule] - without)
        return -np.log1p(-np.minimum(sure, np.float32(SUREST)))

    def _by_paths(self, queries: Queries, answer_B: IntArray) -> Iterator[_Said]:
        tree, rule_of = self._tree
        asked_B = _asked(queries)
        for query, node, reached in ground(
            self.links, tree, queries.entity_B, asked_B, (asked_B, answer_B)
        ):
            line = np.repeat(np.arange(len(query)), np.diff(reached.indptr))
            rule = rule_of[tree.rule[node]]
            without = np.zeros(len(query), np.bool_)
            without[line[reached.indices == answer_B[query][line]]] = True
            evidence = self._evidence(self.rules.paths, rule, without)
            yield _Said(query[line], reached.indices.astype(np.int64), evidence[line], rule[line])

    def _by_values(self, queries: Queries, answer_B: IntArray) -> Iterator[_Said]:
        """Rules with constants whose body holds for the query's entity."""
        links, c, asked_B = self.links, self.rules.constants, _asked(queries)
        begin = links.begins[queries.entity_B]
        query, within = expanded(links.begins[queries.entity_B + 1] - begin)
        row = begin[query] + within
        relation = links.keys[row] % links.directed
        bodies = [(query, relation, np.full(len(row), NONE))]
        of, within = expanded(links.counts[row])
        value = links.others[links.offsets[row][of] + within]
        on = (relation[of] != asked_B[query[of]]) | (value != answer_B[query[of]])
        bodies.append((query[of][on], relation[of][on], value[on]))
        for of_query, linked, to in bodies:
            at, rule = self._by_body.find(self._body_key(linked, to, asked_B[of_query]))
            by, entity = of_query[at], c.answer[rule]
            evidence = self._evidence(c, rule, entity == answer_B[by])
            yield _Said(by, entity, evidence, rule + len(self.rules.paths))

    def _by_answers(self, queries: Queries, answer_B: IntArray) -> _Said:
        """Rules with constants whose answer the query's entity is: whatever their body holds for."""
        c, directed = self.rules.constants, 2 * self.relations
        query, rule = self._by_head.find(queries.entity_B * directed + (_asked(queries) ^ 1))
        holder, begin, count = self._holders(c.relation[rule], c.value[rule])
        of, within = expanded(count)
        entity = holder[begin[of] + within]
        without = np.zeros(len(rule), np.bool_)
        without[of[entity == answer_B[query][of]]] = True
        evidence = self._evidence(c, rule, without)
        return _Said(query[of], entity, evidence[of], rule[of] + len(self.rules.paths))

    def _holders(self, relation: IntArray, value: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Who bodies of rules with constants hold for: places in an array, and how many from there."""
        links = self.links
        any_, order = value == NONE, self._of_relation
        row = links.rows(np.maximum(value, 0), relation ^ 1)
        begin, count = links.offsets[row], np.where(row >= 0, links.offsets[row + 1] - links.offsets[row], 0)
        starts = np.searchsorted(order[1], [relation, relation + 1])
        return (
            np.concatenate([links.others, order[0]]),
            np.where(any_, len(links.others) + starts[0], begin),
            np.where(any_, starts[1] - starts[0], count),
        )

    @cached_property
    def _of_relation(self) -> tuple[IntArray, IntArray]:
        """Entities that have a directed relation, and which, sorted by that."""
        entity, relation = np.divmod(self.links.keys, self.links.directed)
        order = np.argsort(relation, kind="stable")
        return entity[order], relation[order]

    def reasons(self, query: Query, candidate: int, most: int = BEST) -> list[Reason]:
        """The best rules that predict a candidate of a query, each with one way in which its body is true."""
        asked = Queries.of([query])
        said = [
            (-float(evidence), int(rule))
            for found in self._said(asked, None)
            for evidence, rule in zip(
                *(x[found.entity == candidate] for x in (found.evidence, found.rule)), strict=True
            )
        ]
        return [self._reason(rule, query, candidate) for _, rule in sorted(set(said))[:most]]

    def _reason(self, rule: int, query: Query, candidate: int) -> Reason:
        paths, constants = self.rules
        head, tail = (query.entity, candidate) if query.target == "tail" else (candidate, query.entity)
        if rule < len(paths):
            sure = confidence(paths.predicted[[rule]], paths.correct[[rule]])
            body = [int(s) for s in paths.body[rule] if s != NONE]
            nodes = [head, *self._between(head, tail, body), tail]
            steps = zip(body, nodes, nodes[1:], strict=True)
            return Reason(rule, NONE, float(sure[0]), tuple(_triple(*step) for step in steps))
        rule -= len(paths)
        sure = confidence(constants.predicted[[rule]], constants.correct[[rule]])
        relation, value = int(constants.relation[rule]), int(constants.value[rule])
        who = tail if constants.asked[rule] % 2 else head
        if value == NONE:
            value = int(self._answers(who, relation)[0])
        return Reason(NONE, rule, float(sure[0]), (_triple(relation, who, value),))

    def _answers(self, entity: int, relation: int) -> IntArray:
        row = int(self.links.rows(np.array([entity]), np.array([relation]))[0])
        none = np.zeros(0, np.int64)
        return none if row < 0 else self.links.others[self.links.offsets[row] : self.links.offsets[row + 1]]

    def _between(self, start: int, end: int, body: list[int]) -> list[int]:
        """The entities between the ends of a path, one such path."""
        if len(body) == 1:
            return []
        if len(body) == 2:
            both = np.intersect1d(self._answers(start, body[0]), self._answers(end, body[1] ^ 1))
            return [int(x) for x in both if x not in (start, end)][:1]
        for first in self._answers(start, body[0]).tolist():
            rest = [] if first == end else self._between(first, end, body[1:])
            if rest and rest[0] != start:
                return [first, *rest]
        return []


class _Index(NamedTuple):
    """Rules by a key."""

    keys: IntArray
    rules: IntArray

    @classmethod
    def of(cls, key_M: IntArray, which: IntArray) -> _Index:
        order = which[np.argsort(key_M[which], kind="stable")]
        return cls(key_M[order], order)

    def find(self, keys: IntArray) -> tuple[IntArray, IntArray]:
        """The rules of some keys, as (place in ``keys``, rule) pairs."""
        begin = np.searchsorted(self.keys, keys)
        of, within = expanded(np.searchsorted(self.keys, keys, "right") - begin)
        return of, self.rules[begin[of] + within]


def _asked(queries: Queries) -> IntArray:
    """The directed relation that each query asks of its entity."""
    return 2 * queries.relation_B + queries.side_B


def _triple(directed: int, start: int, end: int) -> tuple[int, int, int]:
    """A step along a directed relation as a triple."""
    return (end, directed // 2, start) if directed % 2 else (start, directed // 2, end)
