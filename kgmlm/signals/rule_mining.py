"""Rules mined from training triples, and path rules grounded in a graph, by sparse products.

A directed relation is a relation read from its head (2r) or from its tail (2r + 1). Rules that answer the
same and begin alike share the work (a prefix tree). Paths visit no entity twice, so no prediction rests on
the triple that it predicts.

Shapes: N entities, S directed relations, K pairs of entity and directed relation with triples, M rules, T
sampled triples.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from kgmlm.core.arrays import BoolArray, Floats, IntArray, distinct
from kgmlm.core.config import RuleSettings
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.signals.rule_set import LONGEST, NONE, ConstantRules, PathRules, RuleSet, confidence

STEP_BATCH = 2**22  # path steps expanded together
TABLE = 2**26  # pairs of entity and directed relation that a table has a place for


def expanded(counts: IntArray) -> tuple[IntArray, IntArray]:
    """Expand ranges of the given lengths: the range that each place belongs to, and its offset within.

    >>> [x.tolist() for x in expanded(np.array([2, 0, 1]))]
    [[0, 0, 2], [0, 1, 0]]
    """
    of = np.repeat(np.arange(len(counts)), counts)
    return of, np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)


def blocks(costs: IntArray, most: int) -> Iterator[slice]:
    """Group neighbors whose costs sum to at most ``most``; one that alone costs more is a group of its own.

    >>> [(x.start, x.stop) for x in blocks(np.array([2, 2, 9, 1]), 4)]
    [(0, 2), (2, 3), (3, 4)]
    """
    total = np.append(0, np.cumsum(costs))
    start = 0
    while start < len(costs):
        end = max(start + 1, int(np.searchsorted(total, total[start] + most, "right")) - 1)
        yield slice(start, end)
        start = end


class Adjacency:
    """The training triples of a graph, read from both ends; self-loops are left out.

    Args:
        train: (n, 3) triples.
        entities, relations: how many there are.
    """

    def __init__(self, train: IntArray, entities: int, relations: int) -> None:
        self.entities, self.directed = entities, 2 * relations
        h, r, t = train[train[:, 0] != train[:, 2]].T
        pairs = np.concatenate(
            [(h * self.directed + 2 * r) * entities + t, (t * self.directed + 2 * r + 1) * entities + h]
        )
        pairs = distinct(pairs)
        keys = pairs // max(1, entities)
        self.others = pairs - keys * entities
        first = np.append(True, keys[1:] != keys[:-1])[: len(keys)]
        begins = np.flatnonzero(first)
        self.keys, self.offsets = keys[begins], np.append(begins, len(keys))
        ones = np.ones(len(keys), np.float32)
        self.matrix = sp.csr_array((ones, self.others, self.offsets), (len(self.keys), entities))

    @cached_property
    def _table(self) -> np.ndarray:
        table = np.full(self.entities * self.directed, -1, np.int32)
        table[self.keys] = np.arange(len(self.keys))
        return table

    def rows(self, entities: IntArray, relations: IntArray) -> IntArray:
        """Return which row of ``matrix`` has the answers of some entities and directed relations; -1 for
        none.
        """
        keys = entities * self.directed + relations
        if self.entities * self.directed <= TABLE:
            rows_of_keys: IntArray = self._table[keys].astype(np.int64)
            return rows_of_keys
        if not len(self.keys):
            return np.full(len(keys), -1)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[at] == keys, at, -1)

    @cached_property
    def _by_relation(self) -> tuple[IntArray, IntArray]:
        """Rows of ``matrix`` in the order of their directed relations, and where each relation begins."""
        relation = self.keys % self.directed
        begins = np.searchsorted(np.sort(relation), np.arange(self.directed + 1))
        return np.argsort(relation, kind="stable"), begins

    def rows_of(self, relation: int) -> IntArray:
        """Return which rows of ``matrix`` have the answers of a directed relation."""
        order, begins = self._by_relation
        return order[begins[relation] : begins[relation + 1]]

    @cached_property
    def counts(self) -> IntArray:
        """How many answers each row has."""
        return np.diff(self.offsets)

    @cached_property
    def _pairs(self) -> IntArray:
        pairs: IntArray = np.repeat(np.arange(len(self.keys)), self.counts) * self.entities + self.others
        return pairs

    def has(self, rows: IntArray, others: IntArray) -> BoolArray:
        """Return whether each of some rows has an entity among its answers; row -1 has none."""
        if not len(self._pairs):
            return np.zeros(len(rows), np.bool_)
        keys = rows * self.entities + others
        at = np.minimum(np.searchsorted(self._pairs, keys), len(self._pairs) - 1)
        mask: BoolArray = self._pairs[at] == keys
        return mask

    @cached_property
    def relation_of(self) -> IntArray:
        """The directed relation of each of ``others``."""
        return np.repeat(self.keys % self.directed, self.counts)

    @cached_property
    def begins(self) -> IntArray:
        """The first row of each entity, ``(N + 1,)``."""
        return np.searchsorted(self.keys, np.arange(self.entities + 1) * self.directed)


class Tree:
    """Path bodies as prefix trees.

    Args:
        root_M: the tree that each of M bodies is in.
        bodies_M3: directed relations to walk along, -1 behind the last.
        roots, directed: how many trees and directed relations there are.
    """

    def __init__(self, root_M: IntArray, bodies_M3: IntArray, roots: int, directed: int) -> None:
        node_M = root_M.copy()
        parents, relations, rules = [np.full(roots, -1)], [np.full(roots, -1)], [np.full(roots, -1)]
        count = roots
        for step in range(bodies_M3.shape[1]):
            on = np.flatnonzero(bodies_M3[:, step] >= 0)
            keys, at = np.unique(node_M[on] * directed + bodies_M3[on, step], return_inverse=True)
            node_M[on] = count + at
            parents.append(keys // directed)
            relations.append(keys % directed)
            rule = np.full(len(keys), -1)
            last = on if step + 1 == bodies_M3.shape[1] else on[bodies_M3[on, step + 1] < 0]
            rule[node_M[last] - count] = last
            rules.append(rule)
            count += len(keys)
        self.relation, self.rule = np.concatenate(relations), np.concatenate(rules)
        parent = np.concatenate(parents)
        self.children = np.argsort(parent, kind="stable")[roots:]
        self.offsets = np.searchsorted(parent[self.children], np.arange(count + 1))

    def below(self, nodes: IntArray) -> tuple[IntArray, IntArray]:
        """The children of some nodes, as (place in ``nodes``, child) pairs."""
        of, within = expanded(self.offsets[nodes + 1] - self.offsets[nodes])
        return of, self.children[self.offsets[nodes][of] + within]


class Reached(NamedTuple):
    """Predictions of rules: per row a query, a node of the tree, and the entities that the path reaches."""

    query: IntArray
    node: IntArray
    reached: sp.csr_array


@dataclass(frozen=True, eq=False)
class Frontier:
    """The ends of paths after ``steps`` steps; ``before`` are those a step earlier."""

    query: IntArray
    node: IntArray
    at: sp.csr_array
    before: Frontier | None = None
    row_before: IntArray | None = None


def ground(links: Adjacency, tree: Tree, entity_B: IntArray, root_B: IntArray) -> Iterator[Reached]:
    """Ground rules for B queries: yield what they predict.

    Args:
        entity_B, root_B: the entity of each query, and the tree of its rules.
    """
    query, node = tree.below(root_B)
    rows = links.rows(entity_B[query], tree.relation[node])
    on = rows >= 0
    query, node = query[on], node[on]
    yield from _further(links, tree, entity_B, Frontier(query, node, links.matrix[rows[on]]))


def _without(matrix: sp.csr_array, columns: IntArray) -> sp.csr_array:
    """The rows, each without one column."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    keep = matrix.indices != columns[rows]
    if keep.all():
        return matrix
    offsets = np.append(0, np.cumsum(np.bincount(rows[keep], minlength=matrix.shape[0])))
    return sp.csr_array((matrix.data[keep], matrix.indices[keep], offsets), matrix.shape)


def _further(links: Adjacency, tree: Tree, entity_B: IntArray, now: Frontier) -> Iterator[Reached]:
    """Yield the entities that are reached here, and by further steps."""
    leaf = np.flatnonzero(tree.rule[now.node] >= 0)
    if len(leaf) == len(now.node):
        yield Reached(now.query, now.node, now.at)
    elif len(leaf):
        yield Reached(now.query[leaf], now.node[leaf], now.at[leaf])
    row, child = tree.below(now.node)
    if not len(row):
        return
    sizes = np.diff(now.at.indptr)[row]
    for items in blocks(sizes, STEP_BATCH):
        item, within = expanded(sizes[items])
        item += items.start
        place = now.at.indptr[row[item]] + within
        column = links.rows(now.at.indices[place].astype(np.int64), tree.relation[child[item]])
        on = column >= 0
        item, place, column = item[on], place[on], column[on]
        some, offsets = np.unique(item, return_index=True)
        offsets = np.append(offsets, len(item))
        costs = np.add.reduceat(links.counts[column], offsets[:-1]) if len(some) else some
        for part in blocks(costs, STEP_BATCH):
            ends = offsets[part.start : part.stop + 1]
            steps = slice(ends[0], ends[-1])
            taken = (now.at.data[place[steps]], column[steps], ends - ends[0])
            reached = sp.csr_array(taken, (len(ends) - 1, len(links.keys))) @ links.matrix
            before, node = row[some[part]], child[some[part]]
            query = now.query[before]
            reached = _without(reached, entity_B[query])
            if now.before is not None:
                reached = _without_returns(links, tree, now, before, node, reached, entity_B)
            yield from _further(links, tree, entity_B, Frontier(query, node, reached, now, before))


def _without_returns(
    links: Adjacency,
    tree: Tree,
    now: Frontier,
    row: IntArray,
    node: IntArray,
    reached: sp.csr_array,
    entity_B: IntArray,
) -> sp.csr_array:
    """The paths without those whose third step goes back to where the first one ended."""
    first, of_first = now.before, now.row_before
    assert first is not None
    assert of_first is not None
    begin, end = first.at.indptr[of_first[row]], first.at.indptr[of_first[row] + 1]
    at, within = expanded(end - begin)
    between = first.at.indices[begin[at] + within].astype(np.int64)
    reached_rows = links.rows(between, tree.relation[now.node[row]][at])
    back = links.rows(between, tree.relation[node][at] ^ 1)
    on = np.flatnonzero((reached_rows >= 0) & (back >= 0))
    at, between, reached_rows, back = at[on], between[on], reached_rows[on], back[on]
    times = links.counts[reached_rows].astype(np.float32)
    other = np.flatnonzero(reached_rows != back)
    if len(other):
        times[other] = links.matrix[reached_rows[other]].multiply(links.matrix[back[other]]).sum(1)
    x = entity_B[now.query[row][at]]
    times -= links.has(reached_rows, x) & links.has(back, x)
    returns = sp.csr_array((times, (at, between)), reached.shape)
    left = sp.csr_array(reached - returns)
    left.eliminate_zeros()
    return left


SAMPLED = 20_000  # triples of a relation whose ends are looked at for paths between them
SEEN = 2  # the least number of these that a body of several steps must connect
STARTS = 2_000  # entities from which a path is counted
EDGES = 500  # of a hub, drawn by chance
LONG_EDGES = 30  # the same for paths of three steps
DENSE = 20  # links of an entity on average, above which paths of three steps are left out
MIN_CONFIDENCE = 1e-3  # the least confidence of a rule
PER_LINK = 5  # rules that are kept of those with the same body for the same relation, and ...
PER_ANSWER = 10  # ... of those with the same head; whatever is kept for either stays
PRODUCT_BATCH = 2**24  # steps counted in one sparse product
Random = np.random.Generator


def mine(
    graph: KnowledgeGraph, settings: RuleSettings, advance: Callable[[int, int], None] = lambda n, total: None
) -> RuleSet:
    """Rules over a graph.

    Args:
        advance: called with (steps that were just done, all steps).

    Paths of at most two steps come first, then rules with constants, then longer paths, while there is time.
    """
    started = time.process_time()
    relations = len(graph.relations)
    links = Adjacency(graph.splits["train"], len(graph.entities), relations)
    dense = len(links.others) > DENSE * int(graph.seen_N.sum())
    longest = settings.length if settings.length != "auto" else 2 if dense else LONGEST
    total = relations * (2 if longest == LONGEST else 1) + 1
    paths = []
    for relation in range(relations):
        paths.append(_paths(links, relation, min(longest, 2), settings.seed))
        advance(1, total)
    constants = _constants(links, settings.support) if settings.constants else RuleSet.empty().constants
    advance(1, total)
    if longest == LONGEST:
        for relation in range(relations):
            if time.process_time() - started < settings.seconds:
                paths.append(_paths(links, relation, LONGEST, settings.seed))
            advance(1, total)
    mined = RuleSet.empty().paths
    for more in paths:
        mined = mined.joined(more)
    return RuleSet(mined, constants)


def recounted(rules: RuleSet, links: Adjacency, seed: int) -> RuleSet:
    """Count again what rules predict, and how often rightly, in other triples."""
    paths, counted = rules.paths, RuleSet.empty().paths
    order = np.argsort(paths.relation, kind="stable")
    for of_relation in np.split(order, np.flatnonzero(np.diff(paths.relation[order])) + 1):
        if len(of_relation):
            relation = int(paths.relation[of_relation[0]])
            rng = np.random.default_rng([seed, relation])
            counted = counted.joined(_counted(links, relation, paths.body[of_relation], rng))
    return RuleSet(counted, _recounted_constants(rules.constants, links))


def _recounted_constants(rules: ConstantRules, links: Adjacency) -> ConstantRules:
    """Rules with constants: for how many entities a body holds, and how many of these have the answer."""
    entity, linked = np.divmod(links.keys, links.directed)
    ones = np.ones(len(links.keys), np.float32)
    some = sp.csr_array((ones, (linked, entity)), (links.directed, links.entities))
    holds = sp.csr_array(sp.vstack([links.matrix, some], format="csr"))
    answered = links.rows(rules.answer, rules.asked ^ 1)
    body = links.rows(np.maximum(rules.value, 0), rules.relation ^ 1)
    body = np.where(rules.value == NONE, len(links.keys) + rules.relation, body)
    size = np.where(body >= 0, np.diff(holds.indptr)[body], 0)
    correct = np.zeros(len(rules), np.int64)
    on = np.flatnonzero((body >= 0) & (answered >= 0))
    for part in blocks(size[on], STEP_BATCH):
        both = holds[body[on[part]]].multiply(links.matrix[answered[on[part]]])
        correct[on[part]] = np.asarray(both.sum(1)).ravel().astype(np.int64)
    return replace(rules, predicted=size.astype(np.int64), correct=correct)


def _paths(links: Adjacency, relation: int, steps: int, seed: int) -> PathRules:
    """The path rules of a relation: those of three steps, or all shorter ones."""
    rng = np.random.default_rng([seed, relation, steps])
    row = links.rows_of(2 * relation)
    of, within = expanded(links.counts[row])
    x, y = links.keys[row][of] // links.directed, links.others[links.offsets[row][of] + within]
    if not len(x):
        return RuleSet.empty().paths
    chosen = rng.permutation(len(x))[:SAMPLED]
    x, y = x[chosen], y[chosen]
    paths = list(
        _long(links, x, y, rng) if steps == LONGEST else _short(links, x, y, 2 * relation, steps, rng)
    )
    codes, triples = (np.concatenate(column) for column in zip(*paths, strict=True))
    base = links.directed + 1
    # The number of distinct triples in which each body was seen.
    codes, places = np.unique(codes, return_inverse=True)
    counts = np.bincount(np.unique(places * len(x) + triples) // len(x), minlength=len(codes))
    bodies = np.stack([codes // base**2, codes // base % base, codes % base], 1) - 1
    often = np.flatnonzero((counts >= SEEN) | (bodies[:, 1] < 0))
    rules = _counted(links, relation, bodies[often], rng)
    return rules.take((rules.correct >= 1) & (confidence(rules.predicted, rules.correct) >= MIN_CONFIDENCE))


def _edges(
    links: Adjacency, entities: IntArray, most: int, rng: Random
) -> tuple[IntArray, IntArray, IntArray]:
    """The links of some entities, at most so many of each, as (place in ``entities``, relation, other)."""
    begin = links.offsets[links.begins]
    counts = begin[entities + 1] - begin[entities]
    of, place = expanded(np.minimum(counts, most))
    drawn = (rng.random(len(of)) * counts[of]).astype(np.int64)
    place = begin[entities][of] + np.where(counts[of] > most, drawn, place)
    return of, links.relation_of[place], links.others[place]


def _meeting(left: IntArray, right: IntArray) -> tuple[IntArray, IntArray]:
    """Pairs of places where two arrays are equal."""
    order = np.argsort(right, kind="stable")
    begin = np.searchsorted(right[order], left)
    of, within = expanded(np.searchsorted(right[order], left, "right") - begin)
    return of, order[begin[of] + within]


Seen = tuple[IntArray, IntArray]  # of bodies: their codes, and the triples that they lead through


def _code(links: Adjacency, *steps: IntArray) -> IntArray:
    """One integer for each body."""
    base = links.directed + 1
    code = np.zeros_like(steps[0])
    for step in steps:
        code = code * base + step + 1
    code *= base ** (LONGEST - len(steps))
    return code


def _short(links: Adjacency, x: IntArray, y: IntArray, asked: int, steps: int, rng: Random) -> Iterator[Seen]:
    """Bodies of one and two steps that lead from x to y."""
    for part in blocks(np.ones_like(x), 4096):
        of1, s1, a = _edges(links, x[part], EDGES, rng)
        direct = (a == y[part][of1]) & (s1 != asked)
        yield _code(links, s1[direct]), of1[direct] + part.start
        if steps > 1:
            of2, s2, b = _edges(links, y[part], EDGES, rng)
            left, right = _meeting(of1 * links.entities + a, of2 * links.entities + b)
            yield _code(links, s1[left], s2[right] ^ 1), of1[left] + part.start


def _long(links: Adjacency, x: IntArray, y: IntArray, rng: Random) -> Iterator[Seen]:
    """Bodies of three steps that lead from x to y and visit nothing twice."""
    for part in blocks(np.ones_like(x), 512):
        of1, s1, a = _edges(links, x[part], LONG_EDGES, rng)
        of3, s3, c = _edges(links, y[part], EDGES, rng)
        away, back = a != y[part][of1], c != x[part][of3]
        of1, s1, a, of3, s3, c = of1[away], s1[away], a[away], of3[back], s3[back], c[back]
        of2, s2, b = _edges(links, a, LONG_EDGES, rng)
        on = (b != x[part][of1[of2]]) & (b != y[part][of1[of2]])
        of2, s2, b = of2[on], s2[on], b[on]
        left, right = _meeting(of1[of2] * links.entities + b, of3 * links.entities + c)
        yield _code(links, s1[of2[left]], s2[left], s3[right] ^ 1), of1[of2[left]] + part.start


def _counted(links: Adjacency, relation: int, bodies: IntArray, rng: Random) -> PathRules:
    """Bodies with what they predict from a sample of the entities that their first step leads from."""
    first, root = np.unique(bodies[:, 0], return_inverse=True)
    tree = Tree(root, bodies, len(first), links.directed)
    predicted, correct = np.zeros(len(bodies), np.int64), np.zeros(len(bodies), np.int64)
    of_relation = [links.rows_of(s) for s in first.tolist()]
    rows = [rng.permutation(r)[:STARTS] if len(r) > STARTS else r for r in of_relation]
    entity = links.keys[np.concatenate([*rows, np.zeros(0, np.int64)])] // links.directed
    of = np.repeat(np.arange(len(first)), [len(r) for r in rows])
    answers = links.rows(entity, np.full(len(entity), 2 * relation))
    for part in blocks(np.ones_like(of), 2048):
        for query, node, reached in ground(links, tree, entity[part], of[part]):
            line = np.repeat(np.arange(len(query)), np.diff(reached.indptr))
            right = links.has(answers[part][query][line], reached.indices)
            rule = tree.rule[node]
            np.add.at(predicted, rule, np.diff(reached.indptr))
            np.add.at(correct, rule, np.bincount(line[right], minlength=len(query)))
    return PathRules(predicted, correct, np.full(len(bodies), relation), bodies)


def _constants(links: Adjacency, support: int) -> ConstantRules:
    """Rules with constants: how many of the entities that a body holds for have the same answer.

    The entities with an answer are one row of ``links.matrix``, and those that a body holds for are another.
    """
    rows, entities = links.matrix.shape
    holder, linked = np.divmod(links.keys, links.directed)
    ones = np.ones(rows, np.float32)
    some = sp.csr_array((ones, (holder, linked)), (entities, links.directed))
    holds = sp.csr_array(sp.hstack([links.matrix.T, some], format="csr"))
    size = np.asarray(holds.sum(0)).astype(np.int64)
    if not rows:
        return RuleSet.empty().constants
    costs = np.asarray(links.matrix @ np.asarray(holds.sum(1))).astype(np.int64)  # whose sums are exact
    # A body with a given d is a row of d, by which d is reached; "any" is s itself.
    relation = np.concatenate([linked ^ 1, np.arange(links.directed)])
    value = np.concatenate([holder, np.full(links.directed, NONE)])
    kept: list[list[IntArray]] = []
    for part in blocks(costs, PRODUCT_BATCH):
        both = sp.csr_array(links.matrix[part] @ holds)
        row = np.repeat(np.arange(part.start, part.stop), np.diff(both.indptr))
        body, correct = both.indices.astype(np.int64), both.data.astype(np.int64)
        asked = linked[row] ^ 1
        own = (relation[body] == asked) & ((value[body] == holder[row]) | (value[body] == NONE))
        on = (correct >= support) & ~own & (confidence(size[body], correct) >= MIN_CONFIDENCE)
        kept.append([x[on] for x in (correct, row, body)])
    correct, row, body = (np.concatenate(column) for column in zip(*kept, strict=True))
    asked = linked[row] ^ 1
    rules = ConstantRules(size[body], correct, asked, holder[row], relation[body], value[body])
    sure = confidence(rules.predicted, rules.correct)
    best = _best(body * links.directed + asked, sure, PER_LINK) | _best(row, sure, PER_ANSWER)
    return rules.take(best)


def _best(group: IntArray, sure: Floats, most: int) -> BoolArray:
    """Return which are among the best of their group."""
    order = np.lexsort((-sure, group))
    _, counts = np.unique(group[order], return_counts=True)
    best = np.zeros(len(group), np.bool_)
    best[order[expanded(counts)[1] < most]] = True
    return best
