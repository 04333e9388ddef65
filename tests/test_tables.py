from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgmlm import tables
from kgmlm.kg import DataError

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
        columns = zip(("head", "relation", "tail"), map(list, zip(*rows, strict=True)), strict=True)
        pq.write_table(pa.table(dict(columns)), path)
    else:
        data = "".join("\t".join(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(data) if suffix.endswith(".gz") else data)
    assert tables.read_triples(path) == rows


def test_csv_reads_quotes_where_they_pair_and_keeps_them_where_not(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text('"Obama, Barack",r,"say ""hi"""\n"x,r,NA\n', "utf-8")
    assert tables.read_triples(path) == [["Obama, Barack", "r", 'say "hi"'], ['"x', "r", "NA"]]
    path.write_text('"x,r,y\n"z,r,NA\n' + "a,r,b\n" * 99 + 'c,r,"d\n', "utf-8")
    assert len(tables.read_triples(path)) == 102


def test_a_csv_field_of_several_lines_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text('a,r,b\na,r,"New\n\nYork, NY"\n', "utf-8")
    with pytest.raises(DataError, match=r"train\.csv:2: a quoted field ends in line 4; write it on one line"):
        tables.read_triples(path)
    path.write_text('"x,r,y\na,r,"New\nYork",r,NY\n', "utf-8")  # the first quote is a literal one
    with pytest.raises(DataError, match=r"train\.csv:2: a quoted field ends in line 3"):
        tables.read_triples(path)


label = st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"]), min_size=1)


@given(st.lists(st.tuples(label, label, label), min_size=1))
def test_what_write_tsv_writes_comes_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, ...]]
) -> None:
    path = tmp_path_factory.mktemp("tsv") / "t.tsv"
    rows = [("first", "r", "second"), *rows]  # a byte-order mark can stand at the start of a file only
    tables.write_tsv(path, rows)
    assert tables.read_triples(path) == [list(row) for row in rows]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"a\tr\tb\na\tr\n", r"t\.tsv:2: expected 3 tab-separated columns, found 2"),
        (b"a\tr\tb\tc\n", r"t\.tsv:1: expected 3 tab-separated columns, found 4"),
        (b"a\tr\tb\n\na\tr\tb\n", r"t\.tsv:2: expected 3"),
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
    assert tables.read_triples(path) == [["a", "r", "b"], ["c", "r", "d"]]


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
    assert tables.read_texts(path, ("label", "name"), ("description",)) == {
        "label": ["a"], "name": ["Anna"], "description": [""],
    }  # fmt: skip


def test_two_files_for_one_table_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").touch()
    (tmp_path / "train.csv").touch()
    with pytest.raises(DataError, match="keep one"):
        tables.find_table(tmp_path, "train")


def test_a_tab_in_a_label_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="tab"):
        tables.write_tsv(tmp_path / "t.tsv", [["a\tb"]])


def test_parquet_text_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    latin = pa.array([b"caf\xe9"]).view(pa.string())
    path = tmp_path / "train.parquet"
    pq.write_table(pa.table({"head": latin, "relation": ["r"], "tail": ["t"]}), path)
    with pytest.raises(DataError, match=r"cannot be read as Parquet: .*UTF8"):
        tables.read_triples(path)
    pq.write_table(pa.table({"label": latin, "name": ["x"]}), path)
    with pytest.raises(DataError, match=r"cannot be read as Parquet: .*UTF8"):
        tables.read_texts(path, ("label", "name"), ())
