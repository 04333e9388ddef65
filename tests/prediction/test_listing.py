from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from kgmlm.core.errors import DataError
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.prediction.listing import Listed, measured, read_list, write_list
from kgmlm.prediction.merged import Merged
from kgmlm.ranking.likely import FEATURES

SIGNALS = ("likelihood",)


def some(graph: KnowledgeGraph, count: int = 40) -> Listed:
    """A list whose every second triple is a test triple, as long as there are some."""
    test = graph.splits["test"]
    rng = np.random.default_rng(1)
    triples = rng.integers(0, 5, (count, 3))
    triples[::2][: len(test)] = test
    values = rng.normal(size=(count, 2, len(FEATURES) + 1))
    values[::3, 0] = np.nan
    return Listed(Merged(triples, values), np.linspace(0.99, 0.05, count))


def test_a_list_is_read_as_it_was_written(toy: KnowledgeGraph, tmp_path: Path) -> None:
    best = some(toy)
    write_list(tmp_path / "x", toy, best, SIGNALS, {"a": ["é", 1]}, lambda triple, side: f"{side} {triple}")
    table, manifest = read_list(tmp_path / "x")
    assert manifest == {"a": ["é", 1]}
    labels = [tuple(row[name] for name in ("head", "relation", "tail")) for row in table.to_pylist()]
    assert labels == toy.labeled(best.found.triples)
    assert table.column("probability").to_pylist() == best.probability.tolist()
    for row, triple, values in zip(table.to_pylist(), best.found.triples, best.found.values, strict=True):
        assert row["head_name"] == toy.entities[triple[0]].surface
        assert row["relation_name"] == toy.relations[triple[1]].name
        if np.isnan(values[0, 0]):
            assert row["tail_score"] is row["tail_rank"] is row["tail_likelihood"] is None
        else:
            assert row["tail_score"] == np.float32(values[0, 0])
            assert row["tail_likelihood"] == np.float32(values[0, -1])
        assert row["head_rank"] == pytest.approx(np.exp(values[1, 2]), abs=0.06)
        assert row["because"] == f"{'head' if np.isnan(values[0, 0]) else 'tail'} {triple}"


def test_what_is_no_list_is_refused(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    with pytest.raises(DataError, match="no file"):
        read_list(tmp_path / "missing")
    (tmp_path / "text").write_text("x")
    with pytest.raises(DataError, match="Parquet"):
        read_list(tmp_path / "text")
    pq.write_table(pa.table({"head": ["a"]}), tmp_path / "other")
    with pytest.raises(DataError, match="no list of new triples"):
        read_list(tmp_path / "other")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("probability", 7.5), ("probability", float("inf")), ("probability", float("nan")),
        ("probability", None), ("probability", -0.1), ("head", None), ("tail", ""), ("tail_name", None),
        ("tail_score", float("inf")),
    ],
)  # fmt: skip
def test_a_damaged_value_is_named(toy: KnowledgeGraph, tmp_path: Path, column: str, value: object) -> None:
    import pyarrow.parquet as pq

    write_list(tmp_path / "list", toy, some(toy), SIGNALS, {})
    table, _ = read_list(tmp_path / "list")
    at = table.column_names.index(column)
    changed = [value, *table.column(column).to_pylist()[1:]]
    damaged = table.set_column(at, table.schema.field(at), pa.array(changed, table.schema.field(at).type))
    pq.write_table(damaged, tmp_path / "list")
    with pytest.raises(DataError, match=r"no list of new triples: .*(probability|')"):
        read_list(tmp_path / "list")


@pytest.mark.parametrize("about", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, None])
def test_a_manifest_that_is_none_is_refused(toy: KnowledgeGraph, tmp_path: Path, about: bytes | None) -> None:
    import pyarrow.parquet as pq

    write_list(tmp_path / "list", toy, some(toy), SIGNALS, {})
    table, _ = read_list(tmp_path / "list")
    pq.write_table(table.replace_schema_metadata(about and {b"kgmlm": about}), tmp_path / "list")
    with pytest.raises(DataError, match="no list of new triples"):
        read_list(tmp_path / "list")


def test_columns_of_other_names_and_types_are_refused(toy: KnowledgeGraph, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    write_list(tmp_path / "list", toy, some(toy), SIGNALS, {})
    table, _ = read_list(tmp_path / "list")
    without = table.drop_columns(["head_name"])
    further = table.append_column("more", table.column("head"))
    other = table.set_column(6, "probability", table.column("probability").cast(pa.string()))
    for damaged in (without, further, other):
        pq.write_table(damaged.replace_schema_metadata(table.schema.metadata), tmp_path / "list")
        with pytest.raises(DataError, match="no list of new triples: it"):
            read_list(tmp_path / "list")


def test_a_hidden_split_measures_precision(toy: KnowledgeGraph) -> None:
    best = some(toy)
    hidden = {tuple(t) for t in toy.splits["test"].tolist()}
    true = np.array([tuple(t) in hidden for t in best.found.triples.tolist()])
    report = measured(best, toy, "test", np.arange(len(toy.relations)))
    assert (report["found"], report["triples"]) == (true.sum(), len(hidden))
    for row in report["by probability"]:
        rows = best.probability >= row["probability"]
        assert (row["listed"], row["true"]) == (rows.sum(), true[rows].sum())
        assert row["precision"] == (pytest.approx(true[rows].mean()) if rows.any() else None)
        assert row["expected"] == (pytest.approx(best.probability[rows].mean()) if rows.any() else None)
    assert [row["listed"] for row in report["best"]] == [40, 40]
    relations = [toy.relations.index[row["relation"]] for row in report["by relation"]]
    assert relations == sorted(set(best.found.triples[:, 1].tolist()))
    for relation, row in zip(relations, report["by relation"], strict=True):
        rows = best.found.triples[:, 1] == relation
        assert (row["listed"], row["true"]) == (rows.sum(), true[rows].sum())
        assert row["expected"] == pytest.approx(best.probability[rows].mean())
    one = measured(best, toy, "test", np.array([0]))
    assert one["triples"] == (toy.splits["test"][:, 1] == 0).sum()
    with pytest.raises(DataError, match="no split 'dev'"):
        measured(best, toy, "dev", np.array([0]))
