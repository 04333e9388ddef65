"""Triples, queries and new entities as Python users hold them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from kgmlm.core.errors import DataError, QueryError
from kgmlm.graphs.given import labeled_entities, labeled_queries, labeled_triples

ROWS = [("France", "borders", "Spain"), ("NA", "", "1")]


@pytest.mark.parametrize(
    "given",
    [
        ROWS,
        [list(row) for row in ROWS],
        iter(ROWS),
        np.array(ROWS),
        pd.DataFrame(ROWS, columns=["head", "relation", "tail"]),
        pd.DataFrame(ROWS, columns=["subject", "predicate", "object"]),
        pd.DataFrame([(t, "x", h, r) for h, r, t in ROWS], columns=["tail", "more", "head", "relation"]),
        pd.DataFrame(ROWS, columns=["head", "relation", "tail"], dtype="string"),
    ],
)
def test_triples_may_be_lists_arrays_and_tables(given: Any) -> None:
    assert labeled_triples(given) == ROWS


@pytest.mark.parametrize("blank", [None, float("nan"), pd.NaT, pd.NA])
def test_what_is_asked_is_blank(blank: Any) -> None:
    frame = pd.DataFrame({"relation": ["borders"], "head": ["France"], "tail": [blank]})
    assert (
        labeled_queries(frame)
        == labeled_queries([("France", "borders", blank)])
        == [("France", "borders", None)]
    )
    with pytest.raises(QueryError, match="triple 1 has no tail"):
        labeled_triples(frame)
    with pytest.raises(QueryError, match="triple 1 has no tail"):
        labeled_triples(frame.convert_dtypes())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("France", r"triples are a list of \(head, relation, tail\), not 'France'"),
        (3, "not 3"),
        ({"head": "France"}, "not {'head'"),
        (("France", "borders", "Spain"), "but triple 1 is 'France'"),
        ([ROWS[0], ("France", "borders")], r"triple 2 is not \(head, relation, tail\): it has 2 parts"),
        ([(1, "borders", "Spain")], "the head of triple 1 is 1, which is no label or name"),
        ([("France", None, "Spain")], "the relation of triple 1 is None"),
        ([(np.ones(2), "borders", "Spain")], "the head of triple 1 is array"),
        (pa.table({"head": ["France"]}), "a list or a pandas DataFrame, not a Table"),
        (pd.DataFrame({"head": ["France"]}), r"columns head, relation and tail, not \['head'\]"),
    ],
)
def test_what_is_no_triple_is_one_sentence(given: Any, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        labeled_triples(given)


def test_new_entities_may_be_a_table() -> None:
    frame = pd.DataFrame(
        {"name": ["Atlantis", pd.NA], "label": ["atl", "el_dorado"], "types": [["island", "city"], None]}
    )
    table = labeled_entities(frame)
    assert table.column("label") == ["atl", "el_dorado"]
    assert table.column("name") == ["Atlantis", "el dorado"], "as from a file"
    assert table.column("description") == ["", ""]
    assert table.table.column("types").to_pylist() == ["island|city", ""]
    for types in (np.array(["island", "city"], object), ("island", "city")):  # Parquet's lists are arrays
        found = labeled_entities(pd.DataFrame({"label": ["a"], "types": [types]}))
        assert found.table.column("types").to_pylist() == ["island|city"]
    found = labeled_entities(pd.DataFrame({"label": ["a"], "types": [frozenset("ba")]}))
    assert found.table.column("types").to_pylist() == ["a|b"]
    with pytest.raises(QueryError, match=r"column label, not \['name'\]"):
        labeled_entities(frame[["name"]])
    with pytest.raises(QueryError, match="new entity 2 has no label"):
        labeled_entities(pd.DataFrame({"label": ["a", None]}))
    with pytest.raises(QueryError, match="not a Table"):
        labeled_entities(pa.table({"label": ["a"]}))
    with pytest.raises(DataError, match="twice"):
        labeled_entities(pd.DataFrame({"label": ["a", "a"]}))
