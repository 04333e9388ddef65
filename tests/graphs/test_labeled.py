"""Triples, queries and new entities as Python users hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import kgmlm
from kgmlm.core.errors import DataError, QueryError
from kgmlm.graphs.given import GivenTriples, labeled_entities, labeled_queries, labeled_triples

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
        ([(1.5, "borders", "Spain")], r"the head of triple 1 is 1.5, which is no label or name .*astype"),
        ([(True, "borders", "Spain")], "the head of triple 1 is True"),
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
        result = labeled_entities(pd.DataFrame({"label": ["a"], "types": [types]}))
        assert result.table.column("types").to_pylist() == ["island|city"]
    result = labeled_entities(pd.DataFrame({"label": ["a"], "types": [frozenset("ba")]}))
    assert result.table.column("types").to_pylist() == ["a|b"]
    with pytest.raises(QueryError, match=r"column label, not \['name'\]"):
        labeled_entities(frame[["name"]])
    with pytest.raises(QueryError, match="new entity 2 has no label"):
        labeled_entities(pd.DataFrame({"label": ["a", None]}))
    with pytest.raises(QueryError, match="not a Table"):
        labeled_entities(pa.table({"label": ["a"]}))
    with pytest.raises(DataError, match="twice"):
        labeled_entities(pd.DataFrame({"label": ["a", "a"]}))


def test_integers_are_labels_as_in_files() -> None:
    expected = [("0", "0", "1"), ("1", "1", "2")]
    rows = [(0, 0, 1), (1, 1, 2)]
    frame = pd.DataFrame(rows, columns=["head", "relation", "tail"])
    kinds: list[Any] = [rows, np.array(rows), torch.tensor(rows), frame, np.array(rows, np.uint8)]
    for given in kinds:
        assert labeled_triples(given) == expected
        assert sum(kgmlm.data.check(given).values["triples"].values()) == 2


@pytest.mark.parametrize("true", [1, 1.0, "1", True])
def test_a_column_of_truths_means_what_it_means_in_files(true: Any, tmp_path: Path) -> None:
    rows = [("a", "r", "b"), ("b", "r", "c"), ("c", "r", "a"), ("a", "s", "c")]
    frame = pd.DataFrame(rows, columns=["head", "relation", "tail"])
    false = type(true)(0)  # 0, 0.0, "0", False
    frame = frame.assign(label=[true, false, false, true], source="x")
    frame.to_parquet(tmp_path / "train.parquet")
    for given, of in ((frame, "train"), (tmp_path, "train.parquet")):
        checked = kgmlm.data.check(given).values
        assert (checked["triples"], checked["false"]) == ({"train": 2}, {"train": 2})
        assert list(checked["unread"]) == [f"the column 'source' of {of}"]
    of_file = GivenTriples.of(tmp_path / "train.parquet")
    for triples in (of_file, GivenTriples.of(frame)):
        true, false = triples.divided()
        assert ([*true.rows], [*false.rows]) == ([rows[0], rows[3]], rows[1:3])
        assert [where.rpartition(triples.where)[2] for where, _ in false.numbered()] == ["2", "3"]
    assert of_file.unread == GivenTriples.of(frame).unread == ["source"]


def test_a_wrong_truth_is_named() -> None:
    frame = pd.DataFrame(
        [("a", "r", "b", 1), ("b", "r", "c", 0.5)], columns=["head", "relation", "tail", "label"]
    )
    with pytest.raises(DataError, match=r"triple 2: the label is '0\.5'"):
        GivenTriples.of(frame)
