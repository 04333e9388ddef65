from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from kgmlm.core.errors import DataError
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.prediction.listing import Listed, diverse, measured, read_list, write_list
from kgmlm.ranking.probability import FEATURES


def some(graph: KnowledgeGraph, count: int = 40) -> Listed:
    """A list whose every second triple is a test triple, as long as there are some."""
    test = graph.splits["test"]
    rng = np.random.default_rng(1)
    triples = rng.integers(0, 5, (count, 3))
    triples[::2][: len(test)] = test
    features = rng.normal(size=(count, 2, len(FEATURES)))
    features[::3, 0] = np.nan
    return Listed(triples, features, np.linspace(0.99, 0.05, count))


def test_a_list_is_read_as_it_was_written(toy: KnowledgeGraph, tmp_path: Path) -> None:
    best = some(toy)
    write_list(tmp_path / "x", toy, best, {"a": ["é", 1]}, lambda triple: f"for {triple}")
    table, manifest = read_list(tmp_path / "x")
    assert manifest == {"a": ["é", 1]}
    labels = [tuple(row[name] for name in ("head", "relation", "tail")) for row in table.to_pylist()]
    assert labels == toy.labeled(best.triples)
    assert table.column("probability").to_pylist() == best.probability.tolist()
    for row, triple, values in zip(table.to_pylist(), best.triples, best.features, strict=True):
        assert row["head_name"] == toy.entities[triple[0]].surface
        assert row["relation_name"] == toy.relations[triple[1]].name
        if np.isnan(values[0, 0]):
            assert row["tail_score"] is row["tail_rank"] is None
        else:
            assert row["tail_score"] == np.float32(values[0, 0])
        assert row["head_rank"] == pytest.approx(np.exp(values[1, FEATURES.index("log_rank")]), abs=0.06)
        assert row["because"] == f"for {tuple(triple.tolist())}"


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

    write_list(tmp_path / "list", toy, some(toy), {})
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

    write_list(tmp_path / "list", toy, some(toy), {})
    table, _ = read_list(tmp_path / "list")
    pq.write_table(table.replace_schema_metadata(about and {b"kgmlm": about}), tmp_path / "list")
    with pytest.raises(DataError, match="no list of new triples"):
        read_list(tmp_path / "list")


def test_columns_of_other_names_and_types_are_refused(toy: KnowledgeGraph, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    write_list(tmp_path / "list", toy, some(toy), {})
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
    true = np.array([tuple(t) in hidden for t in best.triples.tolist()])
    report = measured(best, toy, "test", np.arange(len(toy.relations)))
    assert (report["found"], report["triples"]) == (true.sum(), len(hidden))
    for row in report["by_probability"]:
        rows = best.probability >= row["probability"]
        assert (row["listed"], row["true"]) == (rows.sum(), true[rows].sum())
        assert row["precision"] == (pytest.approx(true[rows].mean()) if rows.any() else None)
        assert row["expected"] == (pytest.approx(best.probability[rows].mean()) if rows.any() else None)
    assert [row["listed"] for row in report["best"]] == [10, 40, 40]
    assert report["best"][1]["recall"] == pytest.approx(true.sum() / len(hidden))
    relations = [toy.relations.index[row["relation"]] for row in report["by_relation"]]
    assert relations == sorted(set(best.triples[:, 1].tolist()))
    for relation, row in zip(relations, report["by_relation"], strict=True):
        rows = best.triples[:, 1] == relation
        assert (row["listed"], row["true"]) == (rows.sum(), true[rows].sum())
        assert row["expected"] == pytest.approx(best.probability[rows].mean())
    one = measured(best, toy, "test", np.array([0]))
    assert one["triples"] == (toy.splits["test"][:, 1] == 0).sum()
    with pytest.raises(DataError, match="no split 'dev'"):
        measured(best, toy, "dev", np.array([0]))


def test_the_diversity_of_a_list_is_counted(toy: KnowledgeGraph) -> None:
    triples = np.array([(0, 0, t) for t in range(1, 9)] + [(9, 1, 10), (11, 1, 12)])
    best = Listed(triples, np.zeros((10, 2, len(FEATURES))), np.full(10, 0.5))
    values = measured(best, toy, "test", np.arange(len(toy.relations)))["diversity"]
    assert (values["listed"], values["heads"], values["tails"]) == (10, 3, 10)
    assert [(row["entity"], row["listed"]) for row in values["frequent"]] == [(toy.entities[0].label, 8)]


def test_a_diverse_list_spreads_entities_out() -> None:
    triples = np.array([(0, 0, t) for t in range(1, 251)] + [(2 * i, 1, 2 * i + 1) for i in range(300, 500)])
    probability = np.linspace(0.9, 0.1, len(triples))
    best = diverse(Listed(triples, np.zeros((len(triples), 2, len(FEATURES))), probability))
    for start in range(0, 200, 100):
        assert (best.triples[start : start + 100, 0] == 0).sum() == 5
    np.testing.assert_array_equal(np.sort(best.probability), np.sort(probability))
    rare = best.triples[:, 0] != 0
    assert (np.diff(best.probability[rare]) < 0).all(), "otherwise the order stays"
    assert (np.diff(best.probability[~rare]) < 0).all()


def test_an_empty_list_is_diverse() -> None:
    none = Listed(np.zeros((0, 3), np.int64), np.zeros((0, 2, len(FEATURES))), np.zeros(0))
    assert len(diverse(none)) == 0
