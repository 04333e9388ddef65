"""Dates of triples: what texts say, and splits by date and by version."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import kgmlm
from kgmlm.core.errors import ConfigError, DataError
from kgmlm.core.progress import Watcher
from kgmlm.graphs.datasets import read_dated, read_folder
from kgmlm.graphs.dates import dates_of, period
from kgmlm.graphs.splits import DatedTriples


class Hears(Watcher):
    """Keeps what is told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def tell(self, message: str) -> None:
        self.heard.append(message)

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join(self.heard)


@pytest.mark.parametrize(
    ("text", "begin", "seconds"),
    [
        ("2023", "2023-01-01", 365 * 86400),
        ("2024", "2024-01-01", 366 * 86400),
        ("2023-12", "2023-12-01", 31 * 86400),
        ("2023-05-17", "2023-05-17", 86400),
        ("20230517", "2023-05-17", 86400),
        ("2023-05-17 10:20", "2023-05-17T10:20", 1),
        ("2023-05-17T10:20:30.5Z", "2023-05-17T10:20:30", 1),
        ("2023-05-17T10:20:30+02:00", "2023-05-17T08:20:30", 1),
        ("1684281600", "2023-05-17", 1),
        ("1684281600.25", "2023-05-17", 1),
        ("1684281600000", "2023-05-17", 1),
        ("999999999", "2001-09-09T01:46:39", 1),
        (" 2023 ", "2023-01-01", 365 * 86400),
        ("2023.0", "2023-01-01", 365 * 86400),
    ],
)
def test_a_date_is_a_time_from_its_beginning_to_its_end(text: str, begin: str, seconds: int) -> None:
    result = period(text)
    assert result is not None
    assert result.begin == np.datetime64(begin, "s")
    assert (result.end - result.begin).astype(int) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "May 2023", "2023-13", "2023-02-30", "17.5.2023", "12", "202305", "0000", "٢٠٢٣", "-5", "1e9"],
)
def test_what_is_no_date_is_none(text: str) -> None:
    assert period(text) is None


def test_a_wrong_date_is_named_with_its_line() -> None:
    texts = pa.chunked_array([["2023", ""], [None, "soon"]])
    with pytest.raises(DataError, match=r"x\.tsv:5: 'soon'"):
        dates_of(texts, "x.tsv:", 2)
    assert np.isnat(dates_of(texts.slice(0, 3), "x:")).tolist() == [False, True, True]


def test_a_triple_has_the_earliest_of_its_dates() -> None:
    triples = np.array([[1, 0, 2], [0, 0, 1], [1, 0, 2], [0, 0, 1]])
    dates = np.array(["2024-01-01", "NaT", "2023-01-01", "2022-01-01"], "M8[s]")
    result = DatedTriples.of(triples, dates)
    assert result.triples.tolist() == [[0, 0, 1], [1, 0, 2]]
    assert result.dates.astype(str).tolist() == ["2022-01-01T00:00:00", "2023-01-01T00:00:00"]


def chain(folder: Path, header: str, dates: list[str], name: str = "triples.tsv") -> Path:
    """A folder whose triples link neighbors, each with its date."""
    folder.mkdir()
    rows = [f"e{i % 7}\tr{i % 2}\te{(i * 3 + 1) % 7}\t{date}" for i, date in enumerate(dates)]
    (folder / name).write_text("\n".join(([header] if header else []) + rows) + "\n", "utf-8")
    return folder


YEARS = [str(2010 + i) for i in range(14)]


@pytest.mark.parametrize(
    ("header", "name", "column"),
    [
        ("head\trelation\ttail\tcreated", "triples.tsv", None),
        ("head\trelation\ttail\tdate", "train.tsv", None),
        ("Source\tRelation\tTarget\tDate", "train.tsv", None),
        ("head\trelation\ttail\tfirst seen", "train.tsv", "first seen"),
        ("", "train.tsv", "4"),
    ],
)
def test_triples_are_split_by_date(tmp_path: Path, header: str, name: str, column: str | None) -> None:
    source = chain(tmp_path / "g", header, YEARS, name)
    heard = Hears()
    made = kgmlm.data.split(
        source, tmp_path / "new", after="2020", until="2022", date_column=column, valid=0.3, progress=heard
    )
    graph, dates = read_dated(made.path, dates="date")
    years = {split: sorted(of.astype("M8[Y]").astype(str).tolist()) for split, of in dates.items()}
    assert years["test"] == ["2021", "2022"]
    assert max(years["train"]) < min(years["valid"])
    assert max(years["valid"]) == "2020"
    assert len(years["valid"]) == 3
    assert made.later == 1
    assert "1 later triple left out" in heard.text
    assert graph.validation == "newest"
    assert kgmlm.data.check(made.path).mismatches == {}


def test_the_newest_share_keeps_triples_of_a_day_together(tmp_path: Path) -> None:
    dates = ["2020-01-01"] * 6 + ["2021-01-01"] * 5 + ["2022-01-01"] * 3
    source = chain(tmp_path / "g", "head\trelation\ttail\tdate", dates)
    made = kgmlm.data.split(source, tmp_path / "new", newest=0.1, valid="newest", progress=False)
    assert (made.counts.train, made.counts.valid, made.counts.test) == (6, 5, 3)
    with pytest.raises(DataError, match="fewer than two dates; --valid entities"):
        kgmlm.data.split(source, tmp_path / "x", after="2020", progress=False)
    with pytest.raises(DataError, match="2020-01-01 to 2022-01-01"):
        kgmlm.data.split(source, tmp_path / "x", after="2030", progress=False)
    with pytest.raises(DataError, match="no earlier triples"):
        kgmlm.data.split(source, tmp_path / "x", after="2010", progress=False)
    assert not (tmp_path / "x").exists()


def test_what_has_no_date_stays_in_training(tmp_path: Path) -> None:
    source = chain(tmp_path / "g", "head\trelation\ttail\tdate", ["", *YEARS[1:]])
    heard = Hears()
    made = kgmlm.data.split(source, tmp_path / "new", newest=0.2, progress=heard)
    assert "1 triple without a date stays in training" in heard.text
    graph, dates = read_dated(made.path, dates="date")
    assert np.isnat(dates["train"]).sum() == 1
    assert len(graph.all_triples) == 14


def test_a_table_with_dates_is_split_without_a_folder(tmp_path: Path) -> None:
    rows = [(f"e{i % 5}", "r", f"e{(i + 1 + i // 5) % 5}", 2010 + i) for i in range(10)]
    frame = pd.DataFrame(rows, columns=["head", "relation", "tail", "time"])
    frame.to_csv(tmp_path / "edges.csv", index=False)
    frame.to_parquet(tmp_path / "edges.parquet")
    folders: list[Path] = []
    for source in (frame, tmp_path / "edges.csv", tmp_path / "edges.parquet"):
        folders.append(tmp_path / f"new{len(folders)}")
        kgmlm.data.split(source, folders[-1], after="2017", progress=False)
    tests = [(folder / "test.tsv").read_text() for folder in folders]
    assert tests[0] == tests[1] == tests[2]
    assert "2018-01-01" in tests[0]


def test_dates_that_are_not_there_are_a_sentence(tmp_path: Path) -> None:
    source = chain(tmp_path / "g", "head\trelation\ttail\tweight", YEARS)
    with pytest.raises(DataError, match="no column date, created or time"):
        kgmlm.data.split(source, tmp_path / "x", newest=0.1, progress=False)
    with pytest.raises(DataError, match=r"has no column 'date' \(it has: head, relation, tail, weight\)"):
        kgmlm.data.split(source, tmp_path / "x", newest=0.1, date_column="date", progress=False)
    with pytest.raises(DataError, match="'toy'"):
        kgmlm.data.split("toy", tmp_path / "x", newest=0.1, progress=False)
    with pytest.raises(DataError, match="--after is 'soon'"):
        kgmlm.data.split(
            chain(tmp_path / "d", "head\trelation\ttail\tdate", YEARS), tmp_path / "x", after="soon"
        )


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"random": True, "newest": 0.1},
        {"newest": 0.1, "after": "2023"},
        {"newest": 0.1, "until": "2023"},
        {"newest": 0.1, "test": 0.1},
        {"random": True, "valid": "newest"},
        {"random": True, "date_column": "x"},
        {"after": "2023", "valid": "oldest"},
        {"versions": ("toy", "toy")},
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        kgmlm.data.split("toy", tmp_path / "x", progress=False, **wrong)  # type: ignore[arg-type]


def test_a_table_whose_header_has_further_columns_is_read_by_names(tmp_path: Path) -> None:
    folder = chain(tmp_path / "g", "tail\trelation\thead\tweight", YEARS, "train.tsv")
    graph = read_folder(folder)
    assert graph.labeled(graph.splits["train"])[0] == ("e1", "r0", "e0")
    assert [*graph.unread] == ["the column 'weight' of train.tsv"]
    (folder / "train.tsv").write_text("head\trelation\ttail\tdate\na\tr\tb\n", "utf-8")
    with pytest.raises(DataError, match=r"train\.tsv:2: expected 4"):
        read_folder(folder)
    (folder / "train.tsv").write_text("head\trelation\ttail\tdate\na\tr\t\t2023\n", "utf-8")
    with pytest.raises(DataError, match=r"train\.tsv:2: column 3 is empty"):
        read_folder(folder)
    (folder / "train.tsv").write_text("head\trelation\ttail\tdate\n", "utf-8")
    with pytest.raises(DataError, match="no triples below its header"):
        read_folder(folder)


OLD = """
@prefix : <http://x/> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
:a :r :b, :c . :b :r :c . :c :r :a . :d :r :a, :b . :a rdfs:label "A" . :b rdfs:label "B" .
:d rdfs:label "Old D" . :e :r :a, :b, :c . :f :r :e, :a, :b . :c :r :d, :e . _:x :r :a .
:old :r :a . :old rdfs:label "moved" .
"""
NEW = """
@prefix : <http://x/> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
:a :r :b, :c . :b :r :c . :c :r :a . :d :r :a, :b . :a rdfs:label "A" . :b rdfs:label "B" .
:d rdfs:label "New D" . :e :r :a, :b, :c . :f :r :e, :a . :c :r :d, :e . _:y :r :a .
:new :r :a . :new rdfs:label "moved" . :a :s :g . :g rdfs:label "G" .
"""


def test_two_versions_are_compared_exactly(tmp_path: Path) -> None:
    for name, text in (("old", OLD), ("new", NEW)):
        (tmp_path / f"{name}.ttl").write_text(text, "utf-8")
    heard = Hears()
    versions = (tmp_path / "old.ttl", tmp_path / "new.ttl")
    made = kgmlm.data.split(None, tmp_path / "out", versions=versions, valid="random", progress=heard)
    graph = read_folder(made.path)
    test = {row[0][9:] + row[1][9:] + row[2][9:] for row in graph.labeled(graph.splits["test"])}
    assert test == {"newra", "asg"}
    assert made.new["test"].relations == 1
    assert [row[0][9:] + row[2][9:] for row in made.removed] == ["fb", "olda"]
    assert [(x.name, x.old[9:], x.new[9:]) for x in made.renamed] == [("moved", "old", "new")]
    old = graph.entities.find("http://x/d")
    assert old is not None
    assert graph.entities[old].name == "Old D", "texts are the older ones where there are two"
    assert "moved (http://x/old, then http://x/new)" in heard.text
    assert graph.validation == "random"
    assert {"fb", "olda"} <= {
        row[0][9:] + row[2][9:] for s in ("train", "valid") for row in graph.labeled(graph.splits[s])
    }, "what was removed stays"
    with pytest.raises(DataError, match="adds no triple"):
        kgmlm.data.split(None, tmp_path / "x", versions=(versions[1], versions[1]), progress=False)


def test_versions_of_dated_folders_are_validated_on_the_newest(tmp_path: Path) -> None:
    old = chain(tmp_path / "old", "head\trelation\ttail\tdate", YEARS)
    new = chain(tmp_path / "new", "head\trelation\ttail\tdate", YEARS)
    with (new / "triples.tsv").open("a", encoding="utf-8") as file:
        file.write("e9\tr0\te1\t2026\n")
    made = kgmlm.data.split(None, tmp_path / "out", versions=(old, new), progress=False)
    graph, dates = read_dated(made.path, dates="date")
    assert graph.validation == "newest"
    assert dates["valid"].min() > dates["train"].max()
    assert graph.labeled(graph.splits["test"]) == [("e9", "r0", "e1")]
    assert made.new["test"].head == 1


def test_false_triples_of_versions_are_said_to_be_left_out(tmp_path: Path) -> None:
    old = chain(tmp_path / "old", "head\trelation\ttail\tdate", YEARS)
    new = chain(tmp_path / "new", "head\trelation\ttail\tlabel", ["1"] * 13 + ["-1"])
    with (new / "triples.tsv").open("a", encoding="utf-8") as file:
        file.write("e9\tr0\te1\t1\n")
    heard = Hears()
    kgmlm.data.split(None, tmp_path / "out", versions=(old, new), progress=heard)
    assert "1 false triple left out" in heard.text
