"""Suggestions: uncertain questions, many of a kind, spread over relations and entities, none judged yet."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from conftest import Cli

import kgmlm
import kgmlm.prediction.listing
from kgmlm.core.errors import DataError, QueryError
from kgmlm.core.tables import read_triples, rows_of
from kgmlm.prediction.suggest import teaching
from kgmlm.runs.feedback import Judgment, add_judgments


def facts(*rows: tuple[str, str, str, float]) -> pa.Table:
    columns = zip(("head", "relation", "tail", "probability"), zip(*rows, strict=True), strict=True)
    return pa.table(dict(columns))


def test_the_most_uncertain_comes_first() -> None:
    table = facts(("a", "r", "b", 0.99), ("c", "r", "d", 0.5), ("e", "r", "f", 0.1))
    assert teaching(table, 3).tolist() == [1, 2, 0]


def test_many_alike_come_before_one() -> None:
    rows = [(f"h{n}", "many", f"t{n}", 0.3) for n in range(9)]
    assert teaching(facts(("a", "one", "b", 0.31), *rows), 1).tolist() != [0]


def test_questions_are_spread() -> None:
    alike = [("hub", "r", f"t{n}", 0.5) for n in range(4)]
    table = facts(*alike, ("a", "r", "b", 0.4), ("c", "s", "d", 0.2))
    chosen = teaching(table, 6).tolist()
    assert sorted(chosen) == list(range(6)), "each once"
    assert chosen[:2] == [0, 4], "another entity goes before the same"
    assert chosen[2] == 5, "and another relation"


def test_what_was_judged_is_not_asked_again() -> None:
    table = facts(("a", "r", "b", 0.5), ("c", "r", "d", 0.4))
    assert teaching(table, 2, {("a", "r", "b")}).tolist() == [1]
    assert teaching(table, 2, {("a", "r", "b"), ("c", "r", "d")}).tolist() == []


@pytest.fixture(scope="module")
def run(toy_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = shutil.copytree(toy_run, tmp_path_factory.mktemp("runs") / "run")
    kgmlm.tune(made, add=["rules", "types"], progress=False)
    return made


def test_a_run_suggests_what_its_graph_lacks(run: Path, tmp_path: Path) -> None:
    found = kgmlm.suggest(run, 5, output=tmp_path / "asked.tsv", progress=False)
    assert len(found) == 5
    assert list(found) == [
        "head",
        "relation",
        "tail",
        "head_name",
        "relation_name",
        "tail_name",
        "probability",
    ]
    triples = list(found[["head", "relation", "tail"]].itertuples(index=False, name=None))
    assert [tuple(row) for row in rows_of(read_triples(tmp_path / "asked.tsv"))] == triples
    graph = kgmlm.open_run(run).graph
    known = set(graph.labeled(np.concatenate([graph.triples("train"), graph.triples("valid")])))
    assert not known & set(triples)
    said = dict(zip(("head", "relation", "tail"), triples[0], strict=True))
    add_judgments(run / "feedback.jsonl", Judgment.model_validate({**said, "label": 0}))
    again = kgmlm.suggest(run, 500, progress=False)
    assert triples[0] not in set(again[["head", "relation", "tail"]].itertuples(index=False, name=None))
    one = kgmlm.suggest(run, 3, relations="borders", progress=False)
    assert set(one["relation"]) == {"borders"}
    with pytest.raises(QueryError, match="nothing"):
        kgmlm.suggest(run, relations="nothing", progress=False)


def test_a_pack_suggests_and_is_not_written(run: Path, tmp_path: Path) -> None:
    pack = kgmlm.pack(run, tmp_path / "packed.kgmlm", progress=False)
    before = sorted(path.name for path in tmp_path.iterdir())
    assert len(kgmlm.suggest(pack, 2, progress=False)) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_what_was_rejected_is_never_listed_again(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    (row,) = kgmlm.suggest(copy, 1, progress=False).to_dict("records")
    triple = (row["head"], row["relation"], row["tail"])
    kgmlm.update(copy, false=[triple], progress=False)
    made = kgmlm.complete(copy, tmp_path / "all.parquet", min_probability=0, progress=False)
    table, _ = kgmlm.prediction.listing.read_list(tmp_path / "all.parquet")
    listed = zip(*(table.column(end).to_pylist() for end in ("head", "relation", "tail")), strict=True)
    assert made["listed"] == len(table)
    assert triple not in set(listed)


def test_a_graph_without_validation_has_no_suggestions(tmp_path: Path) -> None:
    train = [("a", "r", "b"), ("b", "r", "c"), ("c", "r", "a"), ("a", "r", "c")]
    small = {"layers": 1, "hidden_size": 16, "heads": 2}
    options = {"max_steps": 1, "holdout": False, "scratch": small, "onnx": False}
    made = kgmlm.train(train, "scratch", tmp_path / "run", progress=False, **options)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="valid"):
        kgmlm.suggest(made, progress=False)


def test_the_command(run: Path, cli: Cli, tmp_path: Path) -> None:
    done = cli("suggest", run, "-k", "3", "--relation", "borders", "--json", "-q")
    assert done.returncode == 0, done.stderr
    assert {row["relation"] for row in json.loads(done.stdout)} == {"borders"}
    done = cli("suggest", run, "-k", "1", "--output", tmp_path / "one.tsv")
    assert "1 question that would teach most" in done.stdout
    assert len(read_triples(tmp_path / "one.tsv")) == 1
