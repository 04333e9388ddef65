from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kgmlm.core import tables
from kgmlm.core.errors import DataError
from kgmlm.graphs.graph import build_graph

STRANGE = [
    "NA",
    "null",
    "None",
    "nan",
    "00001740",
    '"x',
    '"y"',
    "#c",
    " lead",
    "東京",
    "a\u2028b",
    "a\x0bb",
    "1e5",
    "true",
]


@pytest.mark.parametrize("suffix", [".tsv", ".txt", ".tsv.gz", ".parquet"])
def test_strange_labels_survive_byte_for_byte(tmp_path: Path, suffix: str) -> None:
    rows = [[label, "r", label] for label in STRANGE]
    path = tmp_path / f"train{suffix}"
    if suffix == ".parquet":
        named = zip(("head", "relation", "tail"), map(list, zip(*rows, strict=True)), strict=True)
        pq.write_table(pa.table(dict(named)), path)
    else:
        data = "".join("\t".join(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(data) if suffix.endswith(".gz") else data)
    assert tables.rows_of(tables.read_triples(path).columns) == rows


def test_csv_reads_quotes_where_they_pair_and_keeps_them_where_not(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text('"Obama, Barack",r,"say ""hi"""\n"x,r,NA\n', "utf-8")
    assert tables.rows_of(tables.read_triples(path).columns) == [
        ["Obama, Barack", "r", 'say "hi"'],
        ['"x', "r", "NA"],
    ]
    path.write_text('"x,r,y\n"z,r,NA\n' + "a,r,b\n" * 99 + 'c,r,"d\n', "utf-8")
    assert len(tables.read_triples(path).columns) == 102


def test_a_csv_field_of_several_lines_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text('a,r,b\na,r,"New\n\nYork, NY"\n', "utf-8")
    with pytest.raises(DataError, match=r"train\.csv:2: a quoted field ends in line 4; write it on one line"):
        tables.read_triples(path)
    path.write_text('"x,r,y\na,r,"New\nYork",r,NY\n', "utf-8")  # the first quote is a literal one
    with pytest.raises(DataError, match=r"train\.csv:2: a quoted field ends in line 3"):
        tables.read_triples(path)


label = st.text(st.characters(exclude_characters="\t\n\r\x00", exclude_categories=["Cs"]), min_size=1).filter(
    tables.fits_tsv
)


@given(st.lists(st.tuples(label, label, label), min_size=1))
def test_what_write_tsv_writes_comes_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, ...]]
) -> None:
    path = tmp_path_factory.mktemp("tsv") / "t.tsv"
    tables.write_tsv(path, rows)
    assert tables.rows_of(tables.read_triples(path).columns) == [list(row) for row in rows]


@pytest.mark.parametrize("odd", ["\ufeff", "\ufeffa", "a\tb", "a\nb", "\0", "a\r"])
def test_what_tsv_cannot_hold_is_not_written(tmp_path: Path, odd: str) -> None:
    with pytest.raises(DataError, match="which a TSV file cannot hold"):
        tables.write_tsv(tmp_path / "t.tsv", [("a", "r", odd)])
    assert not (tmp_path / "t.tsv").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"a\tr\tb\na\tr\n", r"t\.tsv:2: expected 3 tab-separated columns, found 2"),
        (b"a\tr\tb\tc\n", r"t\.tsv:1: expected 3 tab-separated columns, found 4"),
        (b"a\tr\tb\n\na\tr\tb\n", r"t\.tsv:2: the line is blank"),
        (b"a\t\tb\n", r"t\.tsv:1: column 2 is empty"),
        (b"a\tr\tb\n\xff\tr\tb\n", r"t\.tsv:2: not UTF-8"),
    ],
)
def test_a_malformed_file_is_named_with_its_line(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "t.tsv"
    path.write_bytes(data)
    with pytest.raises(DataError, match=message):
        tables.read_triples(path)


def test_windows_line_ends_and_byte_order_marks_are_no_part_of_a_label(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_bytes("\ufeffa\tr\tb\r\nc\tr\td\r\n".encode())
    assert tables.rows_of(tables.read_triples(path).columns) == [["a", "r", "b"], ["c", "r", "d"]]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("t.tsv.gz", b"not gzip"),
        ("t.tsv.gz", gzip.compress(b"a\tr\tb\n", mtime=0)[:10] + b"\xff" * 9),
        ("t.parquet", b"not parquet"),
        ("none.tsv", None),
    ],
)
def test_an_unreadable_file_is_one_sentence(tmp_path: Path, name: str, data: bytes | None) -> None:
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(DataError, match=name):
        tables.read_triples(path)


@pytest.mark.parametrize("kind", ["text", "text of one code", "numbers"])
def test_a_small_file_that_fills_the_memory_is_refused(kind: str, tmp_path: Path) -> None:
    if kind.startswith("text"):
        codes = pa.array(np.zeros(300, np.int32))
        column: Any = pa.DictionaryArray.from_arrays(codes, pa.array(["x" * 1_000_000]))
    else:
        column = pa.array(np.zeros(12_000_000, np.int64))
    path = tmp_path / "t.parquet"
    table = pa.table(dict.fromkeys(["head", "relation", "tail"], column))
    pq.write_table(table, path, compression="zstd", store_schema=kind == "text of one code")
    assert path.stat().st_size < 2**21
    with pytest.raises(DataError, match="unpacks to more than 200 times its size"):
        tables.read_triples(path)


def test_parquet_may_have_other_columns_of_any_kind(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    ends = {"head": ["a"], "relation": ["r"], "tail": ["b"]}
    other = {"source": [["x", "y"]], "hash": [b"\xff"]}
    pq.write_table(pa.table({**ends, **other}), path)
    assert tables.rows_of(tables.read_triples(path).columns) == [["a", "r", "b"]]
    pq.write_table(pa.table({"label": ["a"], "name": ["A"], **other}), path)
    assert tables.rows_of(tables.read_texts(path, ["label"], ["name"])) == [["a", "A"]]
    pq.write_table(pa.table({**ends, "tail": [["b"]]}), path)
    with pytest.raises(DataError, match="column 'tail' is no text"):
        tables.read_triples(path)


def test_parquet_without_a_column_names_it(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"head": ["a"], "tail": ["b"]}), path)
    with pytest.raises(DataError, match="column 'relation' is missing"):
        tables.read_triples(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name\nx\n", "column 'label' is missing"),
        ("label\tname\na\n", ":2: expected 2 columns, found 1"),
        ("label\tname\na\tA\na\tB\n", ":3: label 'a' stands already on line 2"),
        ("label\tname\n\tA\n", ":2: the label is empty"),
        ("label\tname\tname\na\tA\tB\n", "column 'name' is there twice"),
        ("", "is empty"),
    ],
)
def test_a_malformed_text_table_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "entities.tsv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        tables.read_texts(path, ("label", "name"), ("description",))


def test_optional_columns_come_back_empty_and_order_is_free(tmp_path: Path) -> None:
    path = tmp_path / "entities.tsv"
    path.write_text("name\tlabel\nAnna\ta\n")
    assert tables.read_texts(path, ("label", "name"), ("description",)).to_pydict() == {
        "label": ["a"], "name": ["Anna"], "description": [""],
    }  # fmt: skip


def test_parquet_text_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    latin = pa.array([b"caf\xe9"]).view(pa.string())
    path = tmp_path / "train.parquet"
    pq.write_table(pa.table({"head": latin, "relation": ["r"], "tail": ["t"]}), path)
    with pytest.raises(DataError, match=r"column 'head' is no text: .*UTF8"):
        tables.read_triples(path)
    pq.write_table(pa.table({"label": latin, "name": ["x"]}), path)
    with pytest.raises(DataError, match=r"column 'label' is no text: .*UTF8"):
        tables.read_texts(path, ("label", "name"), ())


field = st.text(st.sampled_from('ab\t\r"\x00é ,_'), max_size=3)


@given(st.lists(st.lists(field, min_size=2, max_size=4), max_size=4), st.sampled_from(["\n", "\r\n"]))
@example(rows=[["a", "r", "\x00"]], end="\n")
def test_arrow_reads_a_file_as_it_is_read_line_by_line(rows: list[list[str]], end: str) -> None:
    data = "".join("\t".join(row) + end for row in [["a", "r", "b"], *rows]).encode()
    assert _read(lambda: tables.rows_of(tables.triples_in(data, "x").columns)) == _read(
        lambda: list(tables.parse_rows(data, "x", 3))
    )


def _read(read: Callable[[], list[list[str]]]) -> list[list[str]] | str:
    """What is read, or the error."""
    try:
        return read()
    except DataError as error:
        return str(error)


@pytest.mark.parametrize("text", ["a\tr\tb\n" * 3, "a\tr\tb\r\n", 'é\tr\t"b\n'])
def test_plain_files_are_left_to_arrow(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "parse_rows", None)
    assert tables.triples_in(text.encode(), "x").columns.num_columns == 3


def test_no_row_is_a_python_object(tmp_path: Path) -> None:
    """Lists of strings would take some 300 bytes per triple."""
    count = 200_000
    path = tmp_path / "train.tsv"
    path.write_text("".join(f"e{i % 5000}\tr{i % 7}\te{i * 7 % 5000}\n" for i in range(count)))
    tracemalloc.start()
    try:
        graph = build_graph("large", {"train": tables.read_triples(path).columns})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(graph.triples("train")) == count
    assert peak < 150 * count


@given(st.lists(st.tuples(label, st.text(st.characters(exclude_categories=["Cs"]))), min_size=1, max_size=4))
def test_a_written_table_comes_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("written") / "entities"
    unique = dict(rows)
    table = pa.table({"label": list(unique), "name": list(unique.values())})
    tables.write_table(path, table)
    (written,) = path.parent.iterdir()  # TSV, or Parquet where a text has what TSV cannot hold
    again = tables.read_texts(written, ("label", "name"), ())
    assert again.to_pydict() == table.to_pydict()


@pytest.mark.parametrize("odd", ["a\tb", "a\nb", "a\r", "\ufeffa", "a\x00"])
def test_what_tsv_cannot_hold_is_written_as_parquet(tmp_path: Path, odd: str) -> None:
    tables.write_table(tmp_path / "entities", pa.table({"label": ["x"], "name": [odd]}))
    again = tables.read_texts(tmp_path / "entities.parquet", ("label", "name"), ())
    assert again.to_pydict() == {"label": ["x"], "name": [odd]}


@pytest.mark.parametrize("odd", [[["x"]], [{"a": 1}], [b"caf\xe9"]])
def test_a_column_of_parquet_that_is_no_text_is_named(tmp_path: Path, odd: list[Any]) -> None:
    path = tmp_path / "queries.parquet"
    pq.write_table(pa.table({"head": odd, "relation": ["r"], "tail": ["t"]}), path)
    with pytest.raises(DataError, match=r"queries\.parquet: the column 'head' is no text"):
        list(tables.named_rows(path, "head", lambda header: None))


def test_a_table_that_is_no_parquet_or_has_a_column_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "queries.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"queries\.parquet cannot be read as Parquet"):
        list(tables.named_rows(path, "head", lambda header: None))
    pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * 2, ["head", "head"]), path)
    with pytest.raises(
        DataError, match=r"queries\.parquet cannot be read as Parquet: it has 2 columns 'head'"
    ):
        list(tables.named_rows(path, "head", lambda header: None))
