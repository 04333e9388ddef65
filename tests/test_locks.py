from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import TINY_SETTINGS, Cli, refused

from kgmlm.kg import RunError
from kgmlm.locks import lock_file, locked
from kgmlm.runs import ENDED, open_run, writing


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
        "import sys, time\nfrom pathlib import Path\nfrom kgmlm.locks import locked\n"
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


def test_a_run_mounted_alone_has_its_lock_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    run.mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) == run)
    assert lock_file(run).parent == run
    assert lock_file(tmp_path / "new").parent == tmp_path


def test_a_rescorer_is_written_under_the_lock_of_its_run(toy_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    shutil.copytree(toy_run, run / "rescorer")
    with writing(run, "rescore"), pytest.raises(RunError, match="in use"), writing(run / "rescorer", "train"):
        pass


def test_every_command_that_writes_a_run_asks_for_the_lock(cli: Cli, toy_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    train = ("train", "--dataset", "toy", "--model", "scratch", *TINY_SETTINGS)
    with writing(run, "weigh"):
        for command in ("fuse", "weigh", "rescore", "index"):
            refused(cli(command, run), "in use by another kgmlm process (weigh, since ")
        refused(cli(*train, "--output", run, "--overwrite"), "in use by another")
        done = cli("rank", run, "--head", "france", "--relation", "capital", "-k", "1")
        assert done.returncode == 0, "reading needs no lock"
    with writing(tmp_path / "new", "train"):
        refused(cli(*train, "--output", tmp_path / "new"), "in use by another")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("suffix", ["new", "old"])
def test_a_reader_finds_the_model_that_a_kill_has_hidden(toy_run: Path, tmp_path: Path, suffix: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    (run / "model").rename(run / f".model.kgmlm-{suffix}")
    with writing(tmp_path / "another", "train"):
        open_run(run).ranker("cpu")
    assert not list(run.glob(".*"))
    run.rename(tmp_path / f".run.kgmlm-{suffix}")
    open_run(run).ranker("cpu")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_reader_touches_nothing_that_is_being_written(toy_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    with writing(run, "train"):
        (run / "model").rename(run / ".model.kgmlm-old")
        open_run(run)
        assert (run / ".model.kgmlm-old").is_dir()


def test_a_writer_removes_what_a_kill_has_left(toy_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    left = ("checkpoints/step-00000009/model", ".model.4k2_x9ab", "checkpoints/.step-00000009.ab.kgmlm-part",
            "index/.entity.ab.kgmlm-part", "rescorer/.model.ab.kgmlm-part",
            ".structure.safetensors.ab.kgmlm-part",
            "model/.entity_vectors.safetensors.ab.kgmlm-part")  # fmt: skip
    for name in left:
        (run / name).mkdir(parents=True)
    shutil.copy(run / "run.json", run / "rescorer" / "run.json")
    (tmp_path / ".run.ab.kgmlm-part").mkdir()
    others = tmp_path / ".run.old"
    others.mkdir()
    assert open_run(run).record["status"] in ENDED
    with writing(run, "weigh"):
        pass
    assert not (run / "checkpoints").exists()
    assert not list(run.rglob(".*"))
    assert sorted(p.name for p in tmp_path.iterdir()) == [".run.old", "run"]


@pytest.mark.slow
def test_a_training_killed_at_any_moment_leaves_no_litter(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    base = ("train", "--dataset", "toy", "--model", "scratch", "--output", run, "-q", *TINY_SETTINGS,
            "--set", "training.epochs=40", "--set", "training.eval_every=0.5",
            "--set", "training.checkpoint_minutes=0.001")  # fmt: skip
    process = subprocess.Popen([sys.executable, "-m", "kgmlm.cli", *map(str, base)])
    deadline = time.monotonic() + 120
    while not (run / "model").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = cli("train", "--output", run, "--resume", "-q")
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob(".*"))
    assert not (run / "checkpoints").exists()
