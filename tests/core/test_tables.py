from __future__ import annotations

from pathlib import Path

import pytest

from kgmlm.core import tables
from kgmlm.core.errors import DataError


def test_two_files_for_one_table_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").touch()
    (tmp_path / "train.csv").touch()
    with pytest.raises(DataError, match="keep one"):
        tables.find_table(tmp_path, "train")


@pytest.mark.parametrize("what", ["a link to nothing", "no file"])
def test_a_table_that_is_no_file_is_not_overlooked(tmp_path: Path, what: str) -> None:
    path = tmp_path / "valid.tsv"
    if what == "no file":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match=f"valid.tsv is {what}"):
        tables.find_table(tmp_path, "valid")


def test_a_tab_in_a_label_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="tab"):
        tables.write_tsv(tmp_path / "t.tsv", [["a\tb"]])


@pytest.mark.parametrize(
    ("name", "encoding", "why"),
    [
        ("a", "utf-16", "not UTF-8"),
        ("a", "utf-16-le", "NUL, as in UTF-16"),
        ("caf\u00e9", "cp1252", "not UTF-8"),
    ],
)
def test_another_encoding_is_named_and_never_read_as_labels(name: str, encoding: str, why: str) -> None:
    data = f"{name}\tr\tb\nc\tr\td\n".encode(encoding)
    with pytest.raises(DataError, match=f"^train.tsv:1: .*{why}.*; save the file as UTF-8"):
        list(tables.parse_lines(data, "train.tsv"))
