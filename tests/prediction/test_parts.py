from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from kgmlm.core.errors import ConfigError, DataError, RunError
from kgmlm.prediction.candidates import MANIFEST, Parts, Shard


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "1/0", "a/b", "-1/2", "1/2/3", "", "1.0/2"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="3/16"):
        Shard.parse(text)


def test_shards_share_all_parts(tmp_path: Path) -> None:
    parts = Parts.open(tmp_path / "p", 10, {"a": 1})
    shared = [parts.missing(Shard.parse(f"{i}/4")) for i in range(1, 5)]
    assert sorted(n for share in shared for n in share) == list(range(10)) == parts.missing()
    parts.write(5, pa.table({"x": [1, 2]}))
    assert parts.missing(Shard.parse("2/4")) == [1, 9]


def test_parts_are_read_in_order_and_missing_ones_are_named(tmp_path: Path) -> None:
    parts = Parts.open(tmp_path / "p", 3, {"a": 1})
    for number in (2, 0):
        parts.write(number, pa.table({"x": [number]}))
    with pytest.raises(DataError, match=r"part-0000001\.parquet is missing"):
        list(parts.read())
    parts.write(1, pa.table({"x": [1]}))
    assert [t.column("x").to_pylist() for t in parts.read()] == [[0], [1], [2]]
    parts.path(0).write_bytes(b"")
    with pytest.raises(DataError, match=r"part-0000000\.parquet is damaged; remove it"):
        list(parts.read())
    parts.write(0, pa.table({"x": [0]}))
    parts.path(1).write_bytes(parts.path(1).read_bytes()[:-9])
    with pytest.raises(DataError, match=r"part-0000001\.parquet is damaged; remove it"):
        list(parts.read())


def test_the_same_work_goes_on_and_other_work_is_refused(tmp_path: Path) -> None:
    Parts.open(tmp_path / "p", 3, {"top": 5, "known": ("train",)}).write(0, pa.table({"x": [1]}))
    assert Parts.open(tmp_path / "p", 3, {"top": 5, "known": ["train"]}).missing() == [1, 2]
    with pytest.raises(RunError, match=r"other settings \(run, top\)"):
        Parts.open(tmp_path / "p", 3, {"top": 6, "known": ["train"], "run": "x"})
    for damaged in ("{", "[]"):
        (tmp_path / "p" / MANIFEST).write_text(damaged)
        with pytest.raises(RunError, match="remove"):
            Parts.open(tmp_path / "p", 3, {"top": 5})
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / f".{MANIFEST}.x1y2z3.kgmlm-part").write_text("{")
    assert Parts.open(tmp_path / "new", 1, {"top": 5}).missing() == [0], "another shard was writing it"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("x")
    with pytest.raises(RunError, match="has no parts"):
        Parts.open(tmp_path / "other", 3, {"top": 5})
    with pytest.raises(RunError, match="has no parts"):
        Parts.open(tmp_path / "other" / "mine.txt", 3, {"top": 5})
    assert [p.name for p in (tmp_path / "other").iterdir()] == ["mine.txt"]
