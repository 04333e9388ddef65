"""Texts and triples of a run on disk, as they are written and as files of older runs have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kgmlm.core.errors import RunError
from kgmlm.graphs import storage
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries, both_sides
from kgmlm.graphs.storage import portable, read_graph, write_graph


def column(table: pa.Table, name: str, values: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, values)


def replaced(name: str, row: int, value: Any) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        values = table.column(name).to_pylist()
        values[row] = value
        return column(table, name, pa.array(values))

    return change


def cast(name: str, kind: pa.DataType) -> Callable[[pa.Table], pa.Table]:
    return lambda table: column(table, name, table.column(name).cast(kind))


GRAPH: dict[str, tuple[str, Callable[[pa.Table], pa.Table], str]] = {
    "ids as text": ("triples", cast("head", pa.string()), "the column 'head' is of type string"),
    "ids as floats": ("triples", cast("tail", pa.float64()), "the column 'tail' is of type double"),
    "an id too high": ("triples", replaced("tail", 3, 31), "tail 31 is not one of 31"),
    "an id below 0": ("triples", replaced("head", 3, -1), "head -1 is not one of 31"),
    "a huge id": (
        "triples", lambda t: column(t, "head", pa.array([2**63] * len(t), pa.uint64())), "the column 'head'",
    ),
    "a relation too high": ("triples", replaced("relation", 0, 5), "relation 5 is not one of 5"),
    "no id": ("triples", replaced("head", 3, None), "the column 'head' is without a value in some rows"),
    "no split": ("triples", replaced("split", 3, None), "the column 'split' is without a value"),
    "no tails": ("triples", lambda t: t.drop_columns("tail"), "0 columns 'tail'"),
    "heads twice": ("triples", lambda t: t.append_column("head", t.column("head")), "2 columns 'head'"),
    "no training": ("triples", lambda t: t.slice(len(t) - 2), "no training triples"),
    "nothing": ("triples", lambda t: t.slice(0, 0), "no training triples"),
    "a label twice": ("entities", lambda t: column(t, "label", pa.array(["x"] * len(t))), "occurs twice"),
    "no surface": ("entities", lambda t: t.drop_columns("surface"), "0 columns 'surface'"),
    "a label missing": ("entities", replaced("label", 0, None), "the column 'label' is without"),
    "labels as numbers": (
        "entities", lambda t: column(t, "label", pa.array(range(len(t)))), "'label' is of type int64",
    ),
    "a relation twice": ("relations", lambda t: pa.concat_tables([t, t]), "relation label occurs twice"),
    "fewer relations": ("relations", lambda t: t.slice(1), "is not one of 4"),
}  # fmt: skip


def rewritten(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """An Arrow file, changed."""
    table = change(pa.ipc.open_file(path.read_bytes()).read_all())
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


@pytest.fixture
def arrow(toy: KnowledgeGraph, tmp_path: Path) -> Path:
    """A folder of today's files."""
    write_graph(toy, tmp_path / "graph")
    return tmp_path / "graph"


@pytest.fixture
def parquet(toy: KnowledgeGraph, tmp_path: Path) -> Path:
    """A folder of the files of older runs and of packs."""
    for name, table in portable(toy).items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    return tmp_path


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_a_graph_comes_back(toy: KnowledgeGraph, form: str, request: pytest.FixtureRequest) -> None:
    again = read_graph(request.getfixturevalue(form), "toy", toy.sources)
    assert again.entities.table.equals(toy.entities.table)
    assert list(again.relations) == list(toy.relations)
    assert again.splits.keys() == toy.splits.keys()
    assert all(np.array_equal(again.splits[x], toy.splits[x]) for x in toy.splits)


def test_surfaces_that_are_the_names_are_written_once(toy: KnowledgeGraph, tmp_path: Path) -> None:
    write_graph(toy, tmp_path / "graph")
    kept = pa.ipc.open_file(tmp_path / "graph" / "entities.arrow").read_all()
    same = toy.entities.column("surface") == toy.entities.column("name")
    assert ("surface" in kept.column_names) != same


def test_triples_are_mapped_not_copied(arrow: Path, toy: KnowledgeGraph) -> None:
    before = pa.total_allocated_bytes()
    again = read_graph(arrow, "toy", {})
    assert pa.total_allocated_bytes() - before < again.all_triples.nbytes
    assert all(part.base is not None for part in again.splits.values())


@pytest.mark.parametrize("case", GRAPH)
def test_parquet_that_cannot_be_right_is_one_sentence(parquet: Path, case: str) -> None:
    name, change, message = GRAPH[case]
    path = parquet / f"{name}.parquet"
    pq.write_table(change(pq.ParquetFile(path).read()), path)
    with pytest.raises(RunError) as result:
        read_graph(parquet, "toy", {})
    assert message in str(result.value)
    assert "parquet is damaged" in str(result.value)


def triple(row: int, place: int, value: int | None) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        values = table.column("triple").to_pylist()
        values[row][place] = value
        return column(table, "triple", pa.array(values, pa.list_(pa.int64(), 3)))

    return change


def splits(text: bytes | None) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.replace_schema_metadata(None if text is None else {b"splits": text})


ARROW: dict[str, tuple[str, Callable[[pa.Table], pa.Table], str]] = {
    "an id too high": ("triples", triple(3, 2, 31), "tail 31 is not one of 31"),
    "an id below 0": ("triples", triple(3, 0, -1), "head -1 is not one of 31"),
    "an id missing": ("triples", triple(3, 0, None), "a column has gaps"),
    "a relation too high": ("triples", triple(0, 1, 5), "relation 5 is not one of 5"),
    "ids of another type": (
        "triples", lambda t: column(t, "triple", pa.array([[1, 2, 3]] * len(t))), "a column is of type list",
    ),
    "no counts": ("triples", splits(None), "its counts of splits"),
    "counts that are none": ("triples", splits(b"[]"), "its counts of splits"),
    "no numbers": ("triples", splits(b'{"train": "x"}'), "its counts of splits"),
    "other counts": ("triples", splits(b'{"train": 3}'), "the splits have 3 triples of"),
    "no training": ("triples", lambda t: t.slice(0, 0).replace_schema_metadata({b"splits": b"{}"}), "no tra"),
    "triples twice": ("triples", lambda t: t.append_column("triple", t.column(0)), "2 columns 'triple'"),
    "fewer": ("triples", lambda t: t.slice(1), "its counts of splits"),
    "a label twice": ("entities", lambda t: column(t, "label", pa.array(["x"] * len(t))), "occurs twice"),
    "no name": ("entities", lambda t: t.drop_columns("name"), "0 columns 'name'"),
    "a relation twice": ("relations", lambda t: pa.concat_tables([t, t]), "relation label occurs twice"),
}  # fmt: skip


@pytest.mark.parametrize("case", ARROW)
def test_arrow_that_cannot_be_right_is_one_sentence(arrow: Path, case: str) -> None:
    name, change, message = ARROW[case]
    rewritten(arrow / f"{name}.arrow", change)
    with pytest.raises(RunError) as result:
        read_graph(arrow, "toy", {})
    assert message in str(result.value)
    assert "arrow is damaged" in str(result.value)


@pytest.mark.parametrize("name", ["entities", "relations", "triples"])
@pytest.mark.parametrize("form", ["arrow", "parquet"])
@pytest.mark.parametrize("data", [None, b"", b"PAR1", b"ARROW1" + b"\xff" * 99])
def test_a_file_that_is_none_is_one_sentence(
    name: str, form: str, data: bytes | None, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(form)
    path = folder / f"{name}.{form}"
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)
    with pytest.raises(RunError, match=rf"{name}\.\w+ is (missing|damaged)"):
        read_graph(folder, "toy", {})


def test_a_cut_file_is_one_sentence(arrow: Path) -> None:
    for path in sorted(arrow.glob("*.arrow")):
        whole = path.read_bytes()
        for end in range(0, len(whole), len(whole) // 7):
            path.unlink()
            path.write_bytes(whole[:end])
            with pytest.raises(RunError, match=f"{path.name} is damaged"):
                read_graph(arrow, "toy", {})
        path.unlink()
        path.write_bytes(whole)
    read_graph(arrow, "toy", {})


@pytest.fixture
def linked(toy: KnowledgeGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a graph that keeps its triples by entity, as large ones do."""
    monkeypatch.setattr(storage, "LINKED", 1)
    write_graph(toy, tmp_path / "graph")
    return tmp_path / "graph"


def test_triples_by_entity_come_back(toy: KnowledgeGraph, linked: Path) -> None:
    again = read_graph(linked, "toy", {})
    assert again.links is not None
    queries, _ = both_sides(again.all_triples)
    for entity in range(len(toy.entities)):
        assert again.context.edges(entity) == toy.context.edges(entity)
    for query in queries:
        one = Queries.of([query])
        for of in ("filter_index", "answers"):
            mine, theirs = (
                getattr(g if of == "filter_index" else g.context, of).lookup(one)[1] for g in (again, toy)
            )
            assert mine.tolist() == theirs.tolist()
    assert again.context.degree_N.tolist() == toy.context.degree_N.tolist()


@pytest.mark.parametrize("name", ["links", "link_offsets"])
def test_cut_links_are_one_sentence(linked: Path, name: str) -> None:
    path = linked / f"{name}.arrow"
    whole = path.read_bytes()
    for end in range(0, len(whole), len(whole) // 7):
        path.unlink()
        path.write_bytes(whole[:end])
        with pytest.raises(RunError, match=f"{name}.arrow is damaged"):
            read_graph(linked, "toy", {})


def test_new_entities_have_no_links_and_other_triples_none_of_these(linked: Path) -> None:
    graph = read_graph(linked, "toy", {})
    more = graph.extended(EntityTable(["new"]))
    assert more.context.edges(len(graph.entities)) == []
    assert more.context.degree_N[-1] == 0
    fewer = replace(graph, splits={"train": graph.splits["train"][:1]})
    assert fewer.context.kept is None
    assert fewer.context.degree_N.sum() == 2


@pytest.mark.parametrize("name", ["links", "link_offsets"])
def test_links_of_another_graph_are_one_sentence(linked: Path, name: str) -> None:
    rewritten(linked / f"{name}.arrow", lambda table: table.slice(1))
    with pytest.raises(RunError, match="not of the training triples"):
        read_graph(linked, "toy", {})
