"""What path rules predict, against a walk along every path."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgmlm.core.arrays import IntArray
from kgmlm.signals import rule_mining
from kgmlm.signals.rule_mining import Adjacency, Tree, ground

ENTITIES, RELATIONS = 7, 2
DIRECTED = 2 * RELATIONS
Edges = set[tuple[int, int, int]]

entity, relation = st.integers(0, ENTITIES - 1), st.integers(0, RELATIONS - 1)
graphs = st.lists(st.tuples(entity, relation, entity), min_size=1, max_size=30)
bodies = st.lists(st.lists(st.integers(0, DIRECTED - 1), min_size=1, max_size=3), min_size=1, max_size=12)


def directed_edges(triples: list[tuple[int, int, int]]) -> Edges:
    """Triples from both ends, without self-loops."""
    return {e for h, r, t in triples if h != t for e in ((h, 2 * r, t), (t, 2 * r + 1, h))}


def ends(edges: Edges, start: int, body: list[int]) -> set[int]:
    """Where a path may lead that visits nothing twice."""
    paths: list[tuple[int, ...]] = [(start,)]
    for step in body:
        paths = [(*p, y) for p in paths for x, s, y in edges if x == p[-1] and s == step and y not in p]
    return {p[-1] for p in paths}


def padded(chosen: list[list[int]]) -> IntArray:
    return np.array([[*b, *[-1] * (3 - len(b))] for b in chosen], np.int64)


@settings(deadline=None, max_examples=150)
@given(graphs, bodies, st.lists(entity, min_size=1, max_size=4), st.sampled_from([1, 2**22]))
def test_paths_lead_where_a_walk_leads(
    triples: list[tuple[int, int, int]], chosen: list[list[int]], starts: list[int], most: int
) -> None:
    edges = directed_edges(triples)
    links = Adjacency(np.array(triples), ENTITIES, RELATIONS)
    tree = Tree(np.zeros(len(chosen), np.int64), padded(chosen), 1, DIRECTED)
    starts = [triples[0][0], *starts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rule_mining, "STEP_BATCH", most)
        results = {
            (int(query[i]), int(node[i]), int(y))
            for query, node, reached in ground(links, tree, np.array(starts), np.zeros_like(starts))
            for i in range(len(query))
            for y in reached[[i]].indices
        }
    distinct = {tuple(b): b for b in chosen}.values()
    expected = {(i, tuple(b), y) for i, x in enumerate(starts) for b in distinct for y in ends(edges, x, b)}
    assert {(i, tuple(chosen[tree.rule[node]]), y) for i, node, y in results} == expected


def test_a_path_says_how_often_it_leads_somewhere() -> None:
    links = Adjacency(np.array([[0, 0, 1], [0, 0, 2], [1, 1, 3], [2, 1, 3], [2, 1, 4], [2, 1, 2]]), 5, 2)
    tree = Tree(np.zeros(1, np.int64), padded([[0, 2]]), 1, 4)
    (values,) = ground(links, tree, np.array([0]), np.array([0]))
    assert values.reached.toarray().tolist() == [[0, 0, 0, 2, 1]]


def test_links_are_found_with_a_table_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    triples = np.array([[0, 0, 1], [0, 1, 1], [3, 1, 0]])
    asked = np.repeat(np.arange(4), 4), np.tile(np.arange(4), 4)
    table = Adjacency(triples, 4, 2).rows(*asked)
    monkeypatch.setattr(rule_mining, "TABLE", 0)
    assert Adjacency(triples, 4, 2).rows(*asked).tolist() == table.tolist()
    assert (table >= 0).sum() == 6
    assert Adjacency(triples[:0], 4, 2).rows(*asked).tolist() == [-1] * 16


def test_many_pairs_do_not_overflow() -> None:
    """Pairs of a link and an entity are more than 32 bits hold."""
    count = 60_000
    chain = np.arange(count)
    links = Adjacency(np.stack([chain, np.zeros_like(chain), (chain + 1) % count], 1), count, 1)
    rows = links.rows(chain, np.zeros_like(chain))
    assert links.has(rows, (chain + 1) % count).all()
    assert not links.has(rows, (chain + 2) % count).any()
    assert not links.has(np.full(3, -1), np.arange(3)).any()
