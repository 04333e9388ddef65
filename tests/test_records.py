from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import without_digests

from kgmlm.kg import KgmlmError
from kgmlm.runs import open_run

RECORD: dict[str, tuple[Any, str]] = {
    "span_length": (0, "'span_length' is 0"),
    "span_length ": (-3, "'span_length' is -3"),
    "span_length  ": ("4", "'span_length' is '4'"),
    "span_length   ": (10**30, "'span_length' is"),
    "span_length    ": (64, "'span_length' is 64, a text has 64 tokens"),
    "softmax_tokens": ([], "'softmax_tokens' is"),
    "softmax_tokens ": ([3, 2], "must increase"),
    "softmax_tokens  ": ([-1], "'softmax_tokens.0' is -1"),
    "softmax_tokens   ": ("all", "'softmax_tokens' is 'all'"),
    "format": ("1", "'format' is '1'"),
    "format ": (0, "'format' is 0"),
    "status": ("done", "'status' is 'done'"),
    "sources": ([], "'sources' is"),
    "dataset": (None, "'dataset' is None"),
    "signals": ({"kge": 7}, "'signals.kge' is 7"),
    "began_from": ({"dataset": "toy"}, "'began_from.model' is missing"),
    "files": ({"config.toml": [{"size": "x"}]}, "'files.config.toml' is"),
}


@pytest.fixture
def run(toy_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(toy_run, tmp_path / "run")
    return tmp_path / "run"


def sentence(run: Path) -> str:
    with pytest.raises(KgmlmError) as caught:
        open_run(run).ranker("cpu")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("case", RECORD)
def test_a_record_that_cannot_be_right_is_one_sentence(run: Path, case: str) -> None:
    value, message = RECORD[case]
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, case.strip(): value}))
    found = sentence(run)
    assert message in found
    assert "run.json is damaged" in found


@pytest.mark.parametrize(
    "missing", ["format", "span_length", "softmax_tokens", "status", "dataset", "sources", "model"]
)
def test_a_record_that_lacks_something_is_one_sentence(run: Path, missing: str) -> None:
    record = json.loads((run / "run.json").read_text())
    del record[missing]
    (run / "run.json").write_text(json.dumps(record))
    assert f"'{missing}' is missing" in sentence(run)


@pytest.mark.parametrize("text", ["", "[]", "7", "{" * 10, "[" * 100_000, '{"a": ' * 100_000, "\ud800"])
def test_a_record_that_is_none_is_one_sentence(run: Path, text: str) -> None:
    (run / "run.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    assert "run.json is damaged" in sentence(run)


def test_softmax_tokens_that_the_model_lacks_are_one_sentence(run: Path) -> None:
    open_run(run).update(softmax_tokens=[5, 10**6])
    assert "'softmax_tokens' has 1000000, the model only" in sentence(run)


@pytest.mark.parametrize("keep", [0, 1, 40, 300])
def test_cut_settings_are_no_defaults(run: Path, keep: int) -> None:
    path = run / "config.toml"
    path.write_text(path.read_text()[:keep])
    assert "config.toml has " in sentence(run)
    without_digests(run)
    assert "config.toml" in sentence(run)


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


@pytest.mark.parametrize("case", GRAPH)
def test_a_graph_that_cannot_be_right_is_one_sentence(run: Path, case: str) -> None:
    name, change, message = GRAPH[case]
    path = without_digests(run) / "graph" / f"{name}.parquet"
    pq.write_table(change(pq.ParquetFile(path).read()), path)
    found = sentence(run)
    assert message in found
    assert "parquet is damaged" in found


@pytest.mark.parametrize("name", ["entities", "relations", "triples"])
@pytest.mark.parametrize("data", [None, b"", b"PAR1", b"PAR1" + b"\xff" * 99 + b"PAR1"])
def test_a_graph_that_is_none_is_one_sentence(run: Path, name: str, data: bytes | None) -> None:
    path = without_digests(run) / "graph" / f"{name}.parquet"
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)
    assert f"{name}.parquet is " in sentence(run)
