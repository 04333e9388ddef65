from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import TINY_SETTINGS, Cli, refused
from filelock import FileLock, Timeout

from kgmlm.core.errors import RunError
from kgmlm.core.files import lock_file, locked
from kgmlm.core.progress import Bars


def test_one_writes_and_the_second_gets_a_sentence(tmp_path: Path) -> None:
    run, link = tmp_path / "deep" / "run", tmp_path / "link"
    link.symlink_to(run)
    with locked(run, "train"):
        for path in (run, link):
            with (
                pytest.raises(RunError, match=r"in use by another kgmlm process \(train, since 20.*wait"),
                locked(path, "fuse"),
            ):
                pass
        with locked(tmp_path / "deep" / "run2", "train"):
            pass
        assert not run.exists()
    assert [p.name for p in tmp_path.iterdir()] == ["link"], "no litter, nor the folder made for the lock"
    with locked(run, "train"):
        run.mkdir()
    assert [p.name for p in run.parent.iterdir()] == ["run"]


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom kgmlm.core.files import locked\n"
        "with locked(Path(sys.argv[1]), 'train'):\n    print('held', flush=True)\n    time.sleep(99)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(RunError, match="in use"), locked(tmp_path / "run", "fuse"):
        pass
    holder.kill()
    holder.communicate()
    assert lock_file(tmp_path / "run").exists()
    with locked(tmp_path / "run", "fuse"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_where_no_lock_can_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"run cannot be written: "), locked(tmp_path / "file" / "run", "fuse"):
        pass


def test_a_lock_that_nobody_has_and_nobody_can_make_is_no_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def acquire(lock: FileLock, timeout: float) -> None:
        raise Timeout(lock.lock_file)

    monkeypatch.setattr(FileLock, "acquire", acquire)
    with pytest.raises(RunError, match="new cannot be written: no lock"), locked(tmp_path / "new", "train"):
        pass


def test_a_run_mounted_alone_has_its_lock_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    run.mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) == run)
    assert lock_file(run).parent == run
    assert lock_file(tmp_path / "new").parent == tmp_path


def test_every_command_that_writes_a_run_asks_for_the_lock(cli: Cli, toy_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    train = ("train", "--dataset", "toy", "--model", "scratch", *TINY_SETTINGS)
    with locked(run, "tune"):
        for command in ("tune", "index"):
            refused(cli(command, run), "in use by another kgmlm process (tune, since ")
        refused(cli(*train, "--output", run, "--overwrite"), "in use by another")
        done = cli("rank", run, "--head", "france", "--relation", "capital", "-k", "1")
        assert done.returncode == 0, "reading needs no lock"
    with locked(tmp_path / "new", "train"):
        refused(cli(*train, "--output", tmp_path / "new"), "in use by another")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


@pytest.fixture
def heeds_sigint() -> Iterator[None]:
    """A shell has SIGINT ignored for what it starts in the background, such as these tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("heeds_sigint")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_run_is_tuned_leaves_nothing(
    cli: Cli, toy_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    reached = []
    added = ("tune", run, "--add", "kge", "--set", "kge.dimension=8")
    for at, locked_run, command in (
        ("training kge", run, added),
        ("validating", run, ("tune", run)),
    ):

        def send(bars: Bars, what: str, *count: int, at: str = at, locked_run: Path = locked_run) -> None:
            if what == at:
                reached.append(lock_file(locked_run).exists())
                os.kill(os.getpid(), number)

        monkeypatch.setattr(Bars, "__call__", send)
        done = cli(*command)
        assert done.returncode == 128 + number, done.stderr
        assert done.stderr.endswith("kgmlm: interrupted\n")
    assert reached == [True] * 2
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


@pytest.mark.slow
def test_a_training_killed_at_any_moment_leaves_no_litter(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    base = ("train", "--dataset", "toy", "--model", "scratch", "--output", run, "-q", *TINY_SETTINGS,
            "--set", "training.epochs=40", "--set", "training.eval_every=0.5",
            "--set", "training.checkpoint_minutes=0.001")  # fmt: skip
    process = subprocess.Popen([sys.executable, "-m", "kgmlm", *map(str, base)])
    deadline = time.monotonic() + 120
    while not (run / "model").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = cli("train", "--output", run, "--resume", "-q")
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob(".*"))
    assert not (run / "checkpoints").exists()
