"""Rules held against a graph: what they say of single queries, and on which triples that rests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from test_rule_mining import graph_of
from test_rules import TOWNS, read

from kgmlm.graphs.queries import Queries, Query


def test_each_rule_says_once_of_each_candidate_what_its_counts_make_of_it(tmp_path: Path) -> None:
    applied = read(
        TOWNS, tmp_path, "18\t10\t.5\tin(X,Y) <= near(X,A), in(A,Y)", "8\t5\t1\tin(X,rhone) <= near(X,A)"
    ).applied
    e, r = TOWNS.entities.index, TOWNS.relations.index
    asked = Queries.of([Query(e["pau"], r["in"], "tail"), Query(e["rhone"], r["in"], "head")])
    results = {
        (int(q), int(y), int(rule)): float(evidence)
        for item in applied.predictions(asked)
        for q, y, evidence, rule in zip(*item, strict=True)
    }
    half = np.float32(-np.log(0.5))
    assert results == {
        (0, e["france"], 0): half,
        (0, e["rhone"], 1): half,
        (1, e["pau"], 1): half,
        (1, e["lyon"], 1): half,
    }


def test_reasons_say_which_rules_and_which_triples(tmp_path: Path) -> None:
    applied = read(
        TOWNS, tmp_path,
        "30\t20\t.7\tin(X,Y) <= in(X,A), in(A,Y)",
        "10\t2\t.2\tin(X,Y) <= near(X,A), in(A,Y)",
        "10\t1\t.1\tin(X,france) <= near(X,vienne)",
        "20\t1\t.1\tin(X,france) <= near(X,A)",
    ).applied  # fmt: skip
    e, r = TOWNS.entities.index, TOWNS.relations.index

    def reasons_of(
        query: Query, candidate: str, most: int = 9
    ) -> list[tuple[int, list[tuple[str, str, str]]]]:
        reasons = applied.reasons(query, e[candidate], most)
        return [(x.predicted, TOWNS.labeled(np.array(x.triples))) for x in reasons]

    expected = [
        (30, [("lyon", "in", "rhone"), ("rhone", "in", "france")]),
        (10, [("lyon", "near", "vienne"), ("vienne", "in", "france")]),
        (10, [("lyon", "near", "vienne")]),
        (20, [("lyon", "near", "vienne")]),
    ]
    assert reasons_of(Query(e["lyon"], r["in"], "tail"), "france") == expected
    assert reasons_of(Query(e["france"], r["in"], "head"), "lyon") == expected
    assert reasons_of(Query(e["lyon"], r["in"], "tail"), "france", 1) == expected[:1]
    assert reasons_of(Query(e["lyon"], r["in"], "tail"), "pau") == []


def test_a_reason_of_three_steps_visits_nothing_twice(tmp_path: Path) -> None:
    graph = graph_of("a in p\na in q\nb in p\nc in q\nc speaks l\na speaks l")
    applied = read(graph, tmp_path, "9\t8\t.9\tspeaks(X,Y) <= in(X,A), in(B,A), speaks(B,Y)").applied
    e, r = graph.entities.index, graph.relations.index
    (reason,) = applied.reasons(Query(e["a"], r["speaks"], "tail"), e["l"])
    assert graph.labeled(np.array(reason.triples)) == [
        ("a", "in", "q"),
        ("c", "in", "q"),
        ("c", "speaks", "l"),
    ]
