from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from kgmlm.core.errors import DataError
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Query


def test_queries_carry_no_answer(toy: KnowledgeGraph) -> None:
    queries, answers = toy.queries("test")
    n = len(toy.triples("test"))
    assert len(queries) == len(answers) == 2 * n
    h, r, t = toy.triples("test")[0]
    assert queries[0] == Query(int(t), int(r), "head")
    assert queries[n] == Query(int(h), int(r), "tail")
    assert (answers[0], answers[n]) == (h, t)


def test_context_has_training_triples_only(toy: KnowledgeGraph) -> None:
    assert {f.name for f in fields(toy.context)} == {"entities", "relations", "train", "kept"}
    assert toy.context.kept is None
    assert toy.context.links.of is toy.splits["train"]
    assert toy.context.train is toy.splits["train"]


def test_unique_queries_hold_all_and_only_the_training_answers(toy: KnowledgeGraph) -> None:
    queries, answers = toy.unique_queries("train")
    expected: dict[Query, set[int]] = {}
    for query, answer in zip(*toy.queries("train"), strict=True):
        expected.setdefault(query, set()).add(int(answer))
    assert len(queries) == len(expected)
    positions, ids = answers.take(np.arange(len(queries)))
    results: dict[Query, set[int]] = {}
    for position, answer in zip(positions, ids, strict=True):
        results.setdefault(queries[position], set()).add(int(answer))
    assert results == expected


def test_a_missing_split_says_what_makes_it(toy: KnowledgeGraph) -> None:
    with pytest.raises(DataError, match="kgmlm data split"):
        replace(toy, splits={"train": toy.splits["train"]}).triples("valid")
    with pytest.raises(DataError, match=r"has no split 'dev' \(it has: train, valid, test\)$"):
        toy.triples("dev")


def test_a_graph_prints_its_sizes_and_shows_its_first_triples(toy: KnowledgeGraph) -> None:
    assert repr(toy) == "<graph toy: 31 entities, 5 relations; train 45, valid 4, test 8>"
    page = toy._repr_html_()
    assert page.count("<tr>") == 6
    assert "<td>France</td><td>has the capital</td><td>Paris</td>" in page
    odd = KnowledgeGraph.from_triples([("<b>", "r", "x\x1b[31m")])
    assert "<b>" not in odd._repr_html_()
    assert "\x1b" not in repr(odd) + odd._repr_html_()
