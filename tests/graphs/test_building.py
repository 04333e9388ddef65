"""Labeled triples to a graph: what is done by columns is what would be done row by row."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgmlm.core.errors import DataError, QueryError
from kgmlm.core.tables import triples_of
from kgmlm.graphs.datasets import load_graph
from kgmlm.graphs.entities import completed, humanize, humanized
from kgmlm.graphs.graph import KnowledgeGraph, TextColumns, build_graph
from kgmlm.graphs.graph import _numbered as numbered

label = st.text(st.sampled_from("abé_ \u00a0\x1c"), min_size=1, max_size=3)
rows = st.lists(st.tuples(label, label, label), max_size=8)


@given(rows, rows, rows, st.lists(label, max_size=3), st.dictionaries(label, label, max_size=4))
def test_ids_follow_the_sorted_labels(
    train: list[tuple[str, str, str]],
    test: list[tuple[str, str, str]],
    false: list[tuple[str, str, str]],
    extra: list[str],
    names: dict[str, str],
) -> None:
    splits = {"train": train, "test": triples_of(test)}
    graph = build_graph(
        "drawn",
        splits,
        TextColumns(names=names, relations=names),
        extra_entities=extra,
        negatives={"test": false},
    )
    every = [*train, *test, *false]
    labels = sorted({x for h, _, t in every for x in (h, t)} | set(extra))
    assert graph.entities.column("label") == labels
    assert [r.label for r in graph.relations] == sorted({r for _, r, _ in every})

    def name(of: str) -> str:
        given = names.get(of, "")
        return given if given.strip() else humanize(of)

    assert graph.entities.column("name") == [name(x) for x in labels]
    assert graph.labeled(graph.splits["train"]) == train
    assert graph.labeled(graph.splits["test"]) == test
    assert graph.labeled(graph.negatives["test"]) == false


def test_labels_that_were_sliced_away_are_no_entities() -> None:
    table = triples_of([("head", "relation", "tail"), ("a", "r", "b")])
    graph = build_graph("sliced", {"train": table.slice(1)})
    assert graph.entities.column("label") == ["a", "b"]
    assert [r.label for r in graph.relations] == ["r"]


def test_entities_of_a_table_are_candidates_with_their_texts() -> None:
    texts = {"label": ["z", "a"], "name": ["Zoe", " "], "description": ["who", ""], "surface": ["", ""]}
    table = pa.table(texts, pa.schema([(name, pa.large_string()) for name in texts]))
    graph = build_graph(
        "told",
        {"train": [("a", "r", "b_c")]},
        TextColumns(columns=table),
        extra_entities=table.column("label"),
    )
    assert [e.surface for e in map(graph.entities.__getitem__, range(3))] == ["a", "b c", "Zoe"]
    assert graph.entities[2].description == "who"


def test_names_of_blanks_are_none() -> None:
    columns = {"label": ["a"], "name": ["A"], "description": [""], "surface": [" \t"]}
    table = pa.table(columns, pa.schema([(name, pa.large_string()) for name in columns]))
    texts = TextColumns(columns=table, relations={"is_a": "  "})
    graph = build_graph("blank", {"train": [("a", "is_a", "b")]}, texts)
    assert (graph.entities[0].surface, graph.relations[0].name) == ("A", "is a")


def test_a_graph_without_training_triples_is_refused() -> None:
    with pytest.raises(DataError, match="'none' has no training triples"):
        build_graph("none", {"test": [("a", "r", "b")]})


@given(st.lists(label))
def test_a_column_of_labels_becomes_words_as_each_does(labels: list[str]) -> None:
    column = pa.chunked_array([pa.array(labels, pa.large_string())])
    assert humanized(column).to_pylist() == [humanize(x) for x in labels]


def test_surfaces_are_completed_one_by_one() -> None:
    columns = {"label": ["a_b", "c"], "name": ["", "C"], "surface": ["", "C the first"]}
    table = pa.table(columns, pa.schema([(name, pa.large_string()) for name in columns]))
    assert completed(table).to_pydict() == columns | {"name": ["a b", "C"], "surface": ["a b", "C the first"]}


@pytest.mark.parametrize("most", [3, 6])
def test_more_than_ids_of_32_bits_can_number_is_one_sentence(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entities, or the bytes of their labels, under a bound that a test can reach."""
    triples = {"train": [("aa", "r", "bb"), ("bb", "r", "cc")]}
    monkeypatch.setattr("kgmlm.graphs.graph.MAX_ENTITIES", most)
    if most < 6:
        with pytest.raises(DataError, match="more than 3 entities, or labels of as many bytes"):
            build_graph("g", triples)
    else:
        assert len(build_graph("g", triples).entities) == 3


def test_labels_that_arrow_cannot_hold_together_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def unified(column: pa.ChunkedArray) -> pa.ChunkedArray:
        raise pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes")

    class Column:
        num_chunks, unify_dictionaries = 1, unified

    monkeypatch.setattr(pa, "chunked_array", lambda *of: Column())
    with pytest.raises(DataError, match="shorten the labels"):
        numbered([])


def test_a_graph_is_made_of_triples_in_memory() -> None:
    rows = [("a_1", "born_in", "b"), ("c", "born_in", "b")]
    frame = pd.DataFrame({"tail": ["b", "b"], "head": ["a_1", "c"], "relation": ["born_in"] * 2})
    for triples in (rows, np.array(rows), frame, iter(rows)):
        graph = KnowledgeGraph.from_triples(triples, valid=[("b", "born_in", "a_1")], names={"b": "Bonn"},
                                            descriptions={"c": "a person"})  # fmt: skip
        assert graph.entities.column("name") == ["a 1", "Bonn", "c"]
        assert graph.entities.column("description") == ["", "", "a person"]
        assert [r.name for r in graph.relations] == ["born in"]
        assert graph.labeled(graph.splits["train"]) == rows
        assert graph.labeled(graph.splits["valid"]) == [("b", "born_in", "a_1")]
        assert not graph.has("test")
    table = pd.DataFrame({"label": ["b", "d"], "name": ["Bonn", "Dora"], "types": ["city", "person|poet"]})
    graph = KnowledgeGraph.from_triples(rows, entities=table, relation_names={"born_in": "was born in"})
    assert graph.entities.column("label") == ["a_1", "b", "c", "d"]
    assert graph.entities[3].types == ("person", "poet")
    assert graph.named(graph.splits["train"])[0] == ("a 1", "was born in", "Bonn")


def test_triples_in_memory_that_are_none_are_one_sentence() -> None:
    with pytest.raises(DataError, match="has no training triples"):
        KnowledgeGraph.from_triples([])
    with pytest.raises(QueryError, match=r"triple 1 is not \(head, relation, tail\)"):
        KnowledgeGraph.from_triples([("a", "r")])  # type: ignore[list-item]
    with pytest.raises(DataError, match="descriptions: 'a' has 3, which is no text"):
        KnowledgeGraph.from_triples([("a", "r", "b")], descriptions={"a": 3})  # type: ignore[dict-item]
    with pytest.raises(DataError, match="names: 0 is no label; a Series is indexed by label"):
        KnowledgeGraph.from_triples([("a", "r", "b")], names=pd.Series(["A", "B"]))
    with pytest.raises(DataError, match="is no label: it cannot be written in UTF-8"):
        KnowledgeGraph.from_triples([("a", "r", "b\ud800")])
    for empty in (("", "r", "b"), ("a", "", "b"), ("a", "r", "")):
        with pytest.raises(DataError, match="triple 2 of train has an empty label"):
            KnowledgeGraph.from_triples([("a", "r", "b"), empty])
    odd = pd.DataFrame([("a", "r", "b", 1)], columns=["head", "relation", "tail", "training"])
    assert len(load_graph(odd).triples("train")) == 1, "a column of PyKEEN's name is a column"
    with pytest.raises(DataError, match="either a table of entities, or names"):
        KnowledgeGraph.from_triples([("a", "r", "b")], names={}, entities=pd.DataFrame({"label": ["a"]}))
