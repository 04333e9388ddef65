"""Attributes of entities as words of their descriptions."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kgmlm.core.errors import DataError
from kgmlm.graphs.attributes import TOKENS, attribute_text, words_of_value
from kgmlm.graphs.cards import cards_folder
from kgmlm.graphs.datasets import load_graph
from kgmlm.graphs.graph import KnowledgeGraph

HEADER = "entity\tattribute\tvalue\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(cards_folder() / "toy", tmp_path / "mygraph")


def with_attributes(folder: Path, rows: str) -> KnowledgeGraph:
    (folder / "attributes.tsv").write_text(HEADER + rows)
    return load_graph(folder)


def test_descriptions_begin_with_attributes(folder: Path) -> None:
    rows = (
        "france\tfounded_in\t+0843-08-10T00:00:00Z\nfrance\tinhabitants\t68000000.0\n"
        "paris\tmayor since\t2014\n"
    )
    graph = with_attributes(folder, rows)
    france = graph.entities[graph.entities.find("france") or 0]
    assert france.description == "founded in 0843-08-10; inhabitants 68000000. country in western Europe"
    assert graph.notes["entities with attributes"] == 2
    assert "attributes.tsv" in graph.sources
    plain = load_graph("toy")
    others = [i for i, label in enumerate(plain.entities.column("label")) if label not in ("france", "paris")]
    before, after = (g.entities.column("description") for g in (plain, graph))
    assert [before[i] for i in others] == [after[i] for i in others]


def test_there_is_room_for_some(folder: Path) -> None:
    result = attribute_text([(f"attribute {i}", str(i)) for i in range(20)])
    assert len(result.replace(";", " ;").split()) <= TOKENS
    assert result.startswith("attribute 0 0; attribute 1 1; ")
    dates = attribute_text([(f"attribute {i}", "+1998-04-01T00:00:00Z") for i in range(20)])
    assert 1 <= dates.count("1998-04-01") < result.count("attribute"), "a date is several tokens"


def test_what_is_too_long_is_left_out(folder: Path) -> None:
    graph = with_attributes(
        folder, f"france\tmotto\t{'very ' * TOKENS}long\nfrance\tarea\t551\nparis\tmotto\t{'x ' * TOKENS}\n"
    )
    france, paris = (graph.entities[graph.entities.find(label) or 0] for label in ("france", "paris"))
    assert france.description == "area 551. country in western Europe"
    assert (
        paris.description
        == load_graph("toy").entities[load_graph("toy").entities.find("paris") or 0].description
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [("+1", "1"), ("-3.50", "-3.5"), ("2.0", "2"), ("0.5", "0.5"), ("100", "100"), ("1e5", "1e5"),
     ("2001-02-03", "2001-02-03"), ("-0044-03-15T00:00:00Z", "-0044-03-15"), ("12:30", "12:30"),
     ("a  b", "a b")],
)  # fmt: skip
def test_values_as_people_write_them(value: str, words: str) -> None:
    assert words_of_value(value) == words


def test_parquet_and_gaps(folder: Path) -> None:
    table = pa.table({"entity": ["france", "nowhere"], "attribute": ["area", "area"], "value": ["551", "1"]})
    pq.write_table(table, folder / "attributes.parquet")
    graph = load_graph(folder)
    assert graph.notes["attributes of unknown entities"] == 1
    assert graph.entities[graph.entities.find("france") or 0].description.startswith("area 551. ")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty; its first line must name the columns: entity, attribute, value"),
        ("entity\tvalue\nfrance\t1\n", "has no column 'attribute'"),
        (f"{HEADER}france\tarea\t\n", "attributes.tsv:2: the value is empty"),
        (f"{HEADER}france\tarea\n", "attributes.tsv:2: expected 3 columns, found 2"),
        (f"{HEADER}atlantis\tarea\t1\n", "no entity has the label 'atlantis'"),
    ],
)
def test_wrong_tables_are_refused(folder: Path, text: str, why: str) -> None:
    (folder / "attributes.tsv").write_text(text)
    with pytest.raises(DataError, match=re.escape(why)):
        load_graph(folder)
