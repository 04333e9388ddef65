"""Path rules held against a graph: what they predict of many queries at once, by sparse products.

A directed relation is a relation read from its head (2r) or from its tail (2r + 1). Rules that answer the
same and begin alike share the work (a prefix tree). Paths visit no entity twice, so no prediction rests on
the triple that it predicts.

Shapes: B queries, N entities, S directed relations, K pairs of entity and directed relation with triples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from kgmlm.filters import distinct_triples
from kgmlm.kg import BoolArray, IntArray

MOST = 2**22  # steps of paths that are taken at once
TABLE = 2**26  # pairs of entity and directed relation that a table has a place for


def expanded(counts: IntArray) -> tuple[IntArray, IntArray]:
    """Of ranges of so many places each: which range every place is of, and where it is within.

    >>> [x.tolist() for x in expanded(np.array([2, 0, 1]))]
    [[0, 0, 2], [0, 1, 0]]
    """
    of = np.repeat(np.arange(len(counts)), counts)
    return of, np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)


def blocks(costs: IntArray, most: int) -> Iterator[slice]:
    """Neighbors together, at most so costly unless one alone is more.

    >>> [(x.start, x.stop) for x in blocks(np.array([2, 2, 9, 1]), 4)]
    [(0, 2), (2, 3), (3, 4)]
    """
    total = np.append(0, np.cumsum(costs))
    start = 0
    while start < len(costs):
        end = max(start + 1, int(np.searchsorted(total, total[start] + most, "right")) - 1)
        yield slice(start, end)
        start = end


class Links:
    """The training triples of a graph, read from both ends; self-loops are left out.

    Args:
        train: (n, 3) triples.
        entities, relations: how many there are.
    """

    def __init__(self, train: IntArray, entities: int, relations: int) -> None:
        self.entities, self.directed = entities, 2 * relations
        triples = distinct_triples(train)
        h, r, t = triples[triples[:, 0] != triples[:, 2]].T
        keys = np.concatenate([h * self.directed + 2 * r, t * self.directed + 2 * r + 1])
        others = np.concatenate([t, h])
        order = np.lexsort((others, keys))
        self.keys, begins = np.unique(keys[order], return_index=True)
        self.offsets = np.append(begins, len(keys))
        self.others = others[order]
        ones = np.ones(len(keys), np.float32)
        self.matrix = sp.csr_array((ones, self.others, self.offsets), (len(self.keys), entities))

    @cached_property
    def _table(self) -> np.ndarray:
        table = np.full(self.entities * self.directed, -1, np.int32)
        table[self.keys] = np.arange(len(self.keys))
        return table

    def rows(self, entities: IntArray, relations: IntArray) -> IntArray:
        """Which row of ``matrix`` has the answers of some entities and directed relations; -1 for none."""
        keys = entities * self.directed + relations
        if self.entities * self.directed <= TABLE:
            found: IntArray = self._table[keys].astype(np.int64)
            return found
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
        """Which rows of ``matrix`` have the answers of a directed relation."""
        order, begins = self._by_relation
        return order[begins[relation] : begins[relation + 1]]

    @cached_property
    def counts(self) -> IntArray:
        """How many answers each row has."""
        return np.diff(self.offsets)

    @cached_property
    def _pairs(self) -> IntArray:
        found: IntArray = np.repeat(np.arange(len(self.keys)), self.counts) * self.entities + self.others
        return found

    def has(self, rows: IntArray, others: IntArray) -> BoolArray:
        """Whether each of some rows has an entity among its answers; row -1 has none."""
        if not len(self._pairs):
            return np.zeros(len(rows), np.bool_)
        keys = rows * self.entities + others
        at = np.minimum(np.searchsorted(self._pairs, keys), len(self._pairs) - 1)
        found: BoolArray = self._pairs[at] == keys
        return found

    @cached_property
    def relation_of(self) -> IntArray:
        """The directed relation of each of ``others``."""
        return np.repeat(self.keys % self.directed, self.counts)

    @cached_property
    def begins(self) -> IntArray:
        """Where the rows of each entity begin, ``(N + 1,)``."""
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


class Found(NamedTuple):
    """What rules predict: of each row a query, a node of the tree, and the entities that the path reaches."""

    query: IntArray
    node: IntArray
    reached: sp.csr_array


@dataclass(frozen=True, eq=False)
class Frontier:
    """Where paths have got to; ``steps`` they have taken, ``before`` is where they were a step earlier."""

    query: IntArray
    node: IntArray
    at: sp.csr_array
    before: Frontier | None = None
    row_before: IntArray | None = None


def ground(links: Links, tree: Tree, entity_B: IntArray, root_B: IntArray) -> Iterator[Found]:
    """What rules predict of B queries.

    Args:
        entity_B, root_B: the entity of each query, and the tree of its rules.
    """
    query, node = tree.below(root_B)
    rows = links.rows(entity_B[query], tree.relation[node])
    on = rows >= 0
    query, node = query[on], node[on]
    yield from _further(links, tree, entity_B, Frontier(query, node, links.matrix[rows[on]]))


def _without(matrix: sp.csr_array, columns: IntArray) -> sp.csr_array:
    """The same rows, each without one column."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    keep = matrix.indices != columns[rows]
    if keep.all():
        return matrix
    offsets = np.append(0, np.cumsum(np.bincount(rows[keep], minlength=matrix.shape[0])))
    return sp.csr_array((matrix.data[keep], matrix.indices[keep], offsets), matrix.shape)


def _further(links: Links, tree: Tree, entity_B: IntArray, now: Frontier) -> Iterator[Found]:
    """What is reached here, and by further steps."""
    leaf = np.flatnonzero(tree.rule[now.node] >= 0)
    if len(leaf) == len(now.node):
        yield Found(now.query, now.node, now.at)
    elif len(leaf):
        yield Found(now.query[leaf], now.node[leaf], now.at[leaf])
    row, child = tree.below(now.node)
    if not len(row):
        return
    sizes = np.diff(now.at.indptr)[row]
    for items in blocks(sizes, MOST):
        item, within = expanded(sizes[items])
        item += items.start
        place = now.at.indptr[row[item]] + within
        column = links.rows(now.at.indices[place].astype(np.int64), tree.relation[child[item]])
        on = column >= 0
        item, place, column = item[on], place[on], column[on]
        some, offsets = np.unique(item, return_index=True)
        offsets = np.append(offsets, len(item))
        costs = np.add.reduceat(links.counts[column], offsets[:-1]) if len(some) else some
        for part in blocks(costs, MOST):
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
    links: Links,
    tree: Tree,
    now: Frontier,
    row: IntArray,
    node: IntArray,
    reached: sp.csr_array,
    entity_B: IntArray,
) -> sp.csr_array:
    """The same without paths whose third step goes back to where the first one ended."""
    first, of_first = now.before, now.row_before
    assert first is not None
    assert of_first is not None
    begin, end = first.at.indptr[of_first[row]], first.at.indptr[of_first[row] + 1]
    at, within = expanded(end - begin)
    between = first.at.indices[begin[at] + within].astype(np.int64)
    there = links.rows(between, tree.relation[now.node[row]][at])
    back = links.rows(between, tree.relation[node][at] ^ 1)
    on = np.flatnonzero((there >= 0) & (back >= 0))
    at, between, there, back = at[on], between[on], there[on], back[on]
    times = links.counts[there].astype(np.float32)
    other = np.flatnonzero(there != back)
    if len(other):
        times[other] = links.matrix[there[other]].multiply(links.matrix[back[other]]).sum(1)
    x = entity_B[now.query[row][at]]
    times -= links.has(there, x) & links.has(back, x)
    returns = sp.csr_array((times, (at, between)), reached.shape)
    left = sp.csr_array(reached - returns)
    left.eliminate_zeros()
    return left
