from __future__ import annotations

from collections.abc import Callable

import pytest

from kgmlm.cards import read_card
from kgmlm.checks import ceiling, check_graph, name_groups
from kgmlm.datasets import TextColumns, build_graph
from kgmlm.kg import EntityTable, KnowledgeGraph, both_sides

Real = Callable[[str], KnowledgeGraph]


def test_the_toy_graph_is_what_it_was_made_to_be(toy: KnowledgeGraph) -> None:
    report = check_graph(toy, read_card("toy").counts)
    assert report["unseen"] == 3
    assert report["collisions"] == {"bare": 2, "surface": 2}
    assert report["unseen_triples"] == {"valid": 0, "test": 4}
    assert report["mismatches"] == {}


def test_the_ceiling_is_the_one_of_counting_by_hand(toy: KnowledgeGraph) -> None:
    groups = name_groups(toy.entities.column("name"))
    known = set(map(tuple, toy.all_triples.tolist()))
    total = 0.0
    queries, answers = both_sides(toy.splits["test"])
    for query, answer in zip(queries, answers, strict=True):
        ties = 0
        for other in range(len(toy.entities)):
            triple = (
                (query.entity, query.relation, other)
                if query.target == "tail"
                else (other, query.relation, query.entity)
            )
            ties += other != answer and groups[other] == groups[answer] and triple not in known
        total += 1 / (1 + ties / 2)
    assert ceiling(toy, groups, "test")["mrr"] == pytest.approx(total / len(queries))


def test_wn18rr_facts(real: Real) -> None:
    report = check_graph(real("wn18rr"))
    assert report["unseen"] == 384
    assert report["unseen_triples"] == {"valid": 210, "test": 210}
    assert report["collisions"] == {"bare": 12873, "surface": 0}
    assert round(report["ceiling"]["bare"]["mrr"], 3) == 0.800
    assert round(report["ceiling"]["bare"]["hits_at_1"], 3) == 0.616
    assert report["leakage"]["test"]["mirrored"] == 1086


def test_fb15k237_facts(real: Real) -> None:
    report = check_graph(real("fb15k237"))
    assert report["collisions"]["bare"] == 499
    assert report["leakage"]["test"]["mirrored"] == 0
    assert report["unseen_triples"] == {"valid": 9, "test": 28}


def test_what_is_odd_is_found() -> None:
    rows = [
        ["a", "likes", "b"],
        ["a", "likes", "b"],
        ["c", "likes", "d"],
        ["b", "liked_by", "a"],
        ["d", "liked_by", "c"],
    ]
    graph = build_graph(
        "odd",
        {"train": rows, "test": [["a", "likes", "b"], ["d", "likes", "c"], ["x", "likes", "a"]]},
        TextColumns(names={"a": "Ann", "b": "Ann"}),
    )
    report = check_graph(graph)
    assert report["duplicates"] == {"train": 1, "test": 0}
    assert report["shared"] == {"train+test": 1}
    assert report["leakage"]["test"] == {"mirrored": 1, "inverse": 1, "parallel": 1}
    assert report["overlapping_relations"]["inverse"] == [
        {"relations": ["liked_by", "likes"], "pairs": 2, "share": 1.0}
    ]
    assert report["unseen"] == 1
    assert report["without_name"] == 3
    assert EntityTable(["old_oak", "b", "c"], ["old oak", "Ann", "c"]).unnamed == 2
    assert "mismatches" not in report
