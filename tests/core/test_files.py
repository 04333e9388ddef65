from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from kgmlm.core import files
from kgmlm.core.errors import DataError


def test_an_atomic_folder_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with files.atomic_folder(target) as folder:
        (folder / "x").write_text("old")

    def broken() -> None:
        with files.atomic_folder(target) as folder:
            (folder / "x").write_text("new")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        broken()
    assert (target / "x").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_what_others_made_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "new"
    target.mkdir()
    with files.new_folder(target) as folder:
        (folder / "x").touch()
    assert [p.name for p in target.iterdir()] == ["x"], "an empty folder is"
    other = tmp_path / "other"
    with pytest.raises(DataError, match="exists and is not empty"), files.new_folder(other):  # noqa: PT012
        other.mkdir()
        (other / "precious").touch()
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["new", "other", "precious", "x"]


def test_names_that_no_record_could_hold_are_refused(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"\xff.csv")
    for check in (files.check_writable, files.check_new_folder):
        with pytest.raises(DataError, match="not a name in UTF-8"):
            check(odd)
    files.write_atomic(odd, "x")
    assert odd.read_text() == "x"
    assert files.size_of(tmp_path) == 1


def test_links_are_followed_and_pipes_written_into(tmp_path: Path) -> None:
    real, link, pipe = (tmp_path / name for name in ("real", "link", "pipe"))
    real.write_text("old")
    link.symlink_to(real)
    files.write_atomic(link, "new", follow=True)
    assert link.is_symlink()
    assert real.read_text() == "new"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    files.write_atomic(pipe, "through", follow=True)
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert pipe.is_fifo()


def test_where_nothing_can_be_written_is_said_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.check_writable(tmp_path / "new" / "deep" / "a.json")
    assert not (tmp_path / "new").exists()
    with pytest.raises(DataError, match="is a folder"):
        files.check_writable(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="is a file"):
        files.check_writable(tmp_path / "file" / "a.json")
    with pytest.raises(OSError, match=r"a\.json'$"):
        files.write_atomic(tmp_path / "file" / "a.json", "")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(DataError, match="is read-only"):
        files.check_writable(tmp_path / "a.json")
    os.mkfifo(tmp_path / "pipe")
    files.check_writable(tmp_path / "pipe")


def test_an_atomic_file_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        files.write_json(tmp_path / "a.json", {1: object()})
    assert list(tmp_path.iterdir()) == []


def test_a_link_inside_a_run_is_replaced_and_its_target_left(tmp_path: Path) -> None:
    outside, link = tmp_path / "outside", tmp_path / "run" / "link"
    outside.write_text("old")
    link.parent.mkdir()
    link.symlink_to(outside)
    files.write_json(link, {})
    assert not link.is_symlink()
    assert outside.read_text() == "old"


@pytest.mark.parametrize("follow", [True, False])
def test_a_table_that_cannot_be_written_leaves_the_older_one(tmp_path: Path, follow: bool) -> None:
    path = tmp_path / "ranks.parquet"
    files.write_parquet(path, pa.table({"a": [1]}), follow=follow)
    before = path.read_bytes()

    def broken() -> None:
        with files.atomic_file(path, follow=follow) as temporary:
            temporary.write_bytes(b"PAR1")
            raise OSError(28, "No space left on device", str(temporary))

    with pytest.raises(OSError, match=r"ranks\.parquet'$"):
        broken()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_table_goes_through_a_pipe_or_not_at_all(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    files.write_parquet(pipe, pa.table({"a": [1]}), follow=True)
    assert os.read(reader, 10**5)[:4] == b"PAR1"

    def broken() -> None:
        with files.atomic_file(pipe, follow=True):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        broken()
    os.close(reader)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_modes_follow_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        files.write_tensors(tmp_path / "a.safetensors", {"a": torch.zeros(2)})
        files.write_json(tmp_path / "a.json", {})
        with files.atomic_folder(tmp_path / "folder"):
            pass
    finally:
        os.umask(before)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
    assert modes == {"a.safetensors": 0o666 & ~umask, "a.json": 0o666 & ~umask, "folder": 0o777 & ~umask}


class Killed(BaseException):
    """What a test stops a program with, at a moment when no handler runs."""


def killed_at(step: int, monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> bool:
    """Do something as if a kill came before the n-th change of a name; whether it came."""
    calls, dead = [0], [False]

    def counting(original: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            calls[0] += 1
            if dead[0] or calls[0] == step:
                dead[0] = True
                raise Killed
            return original(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for module, name in ((os, "replace"), (os, "unlink"), (os, "rmdir"), (Path, "rename")):
            patch.setattr(module, name, counting(getattr(module, name)))
        with suppress(Killed):
            act()
    return dead[0]


def test_a_folder_survives_a_kill_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "model"

    def write(text: str) -> None:
        with files.atomic_folder(target) as folder:
            (folder / "x").write_text(text)
            (folder / "y").write_text(text)

    step, came = 0, True
    while came:
        step += 1
        files.recover(target)
        write("old")
        came = killed_at(step, monkeypatch, lambda: write("new"))
        files.recover(target)
        texts = {(target / name).read_text() for name in ("x", "y")}
        assert texts in ({"old"}, {"new"}), "whole, the one or the other"
        assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert texts == {"new"}
    assert step > 3


def test_an_old_folder_comes_back_and_a_new_one_goes_forward(tmp_path: Path) -> None:
    for name, expected in ((".model.kgmlm-new", "there"), (".model.kgmlm-old", "there")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text(expected)
        assert files.is_unsettled(tmp_path / "model")
        files.recover_in(tmp_path)
        assert (tmp_path / "model" / "x").read_text() == expected
        assert [p.name for p in tmp_path.iterdir()] == ["model"]
        shutil.rmtree(tmp_path / "model")


def test_what_is_half_written_is_removed_and_what_others_write_is_not(tmp_path: Path) -> None:
    half, others, own = (tmp_path / f".{x}.kgmlm-part" for x in ("model.abc", "model.v2.abc", "model"))
    for path in (half, others, own):
        path.mkdir()
    with files.atomic_folder(tmp_path / "model"):
        pass
    assert half.is_dir(), "somebody may be writing it"
    long_ago = time.time() - 2 * files.STALE
    os.utime(half, (long_ago, long_ago))
    with files.atomic_folder(tmp_path / "model"):
        pass
    assert not half.exists()
    assert others.is_dir()
    assert own.is_dir()


KILLED = """
import os, sys
from pathlib import Path
from kgmlm.core import files
with files.atomic_file(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    os._exit(9)
"""


def test_what_a_killed_process_was_writing_is_removed_at_once(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        assert subprocess.run([sys.executable, "-c", KILLED, tmp_path / name], check=False).returncode == 9
    assert [p.suffix for p in tmp_path.iterdir()] == [".kgmlm-part", ".kgmlm-part"]
    files.write_atomic(tmp_path / "a.json", "whole")
    with files.atomic_file(tmp_path / "c.json") as own:
        own.write_text("whole")
        files.sweep_in(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "c.json"]


def test_a_folder_behind_a_link_is_replaced_and_not_the_link(tmp_path: Path) -> None:
    real, link = tmp_path / "disk" / "run", tmp_path / "run"
    for there in (False, True):  # a link may lead to nothing yet
        link.unlink(missing_ok=True)
        link.symlink_to(real)
        assert real.exists() is there
        with files.atomic_folder(link, follow=True) as folder:
            (folder / "x").write_text(str(there))
        assert link.is_symlink()
        assert (real / "x").read_text() == str(there)
    with files.atomic_folder(link) as folder:
        (folder / "x").write_text("own")
    assert not link.is_symlink()
    assert (real / "x").read_text() == "True"


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "", "nan", b"\xff"])
def test_json_that_cannot_be_read_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"nested too deeply|Expecting value|can't decode"):
        files.parse_json(text)


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    codes = pa.DictionaryArray.from_arrays(pa.array([1, 0, None], pa.int8()), pa.array(["x", "y"]))
    lists = pa.array([[1], [], [2, 3]], pa.list_(pa.field("element", pa.int32())))
    texts = pa.array(["é", None, ""], pa.large_string())
    written = pa.table({"codes": codes, "lists": lists, "texts": texts}).replace_schema_metadata({"a": "b"})
    files.write_parquet(tmp_path / "t.parquet", written)
    assert files.read_parquet(tmp_path / "t.parquet").equals(written, check_metadata=True)
    assert files.read_parquet(tmp_path / "t.parquet", ["texts"]).column_names == ["texts"]
    files.write_parquet(tmp_path / "none.parquet", written.slice(0, 0))
    assert files.read_parquet(tmp_path / "none.parquet").schema == written.schema
