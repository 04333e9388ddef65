from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kgmlm.kg import RunError
from kgmlm.runs import open_run
from kgmlm.upkeep import ENDED, check_output, writing


def test_a_reranker_is_written_under_the_lock_of_its_run(toy_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    shutil.copytree(toy_run, run / "reranker")

    def write() -> None:
        with writing(run / "reranker", "train"):
            pass

    with writing(run, "rerank"), ThreadPoolExecutor() as others:
        write()  # a job that this one does
        with pytest.raises(RunError, match="in use"):
            others.submit(write).result()


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
    left = ("checkpoints/step-00000009/model", "checkpoints/.step-00000009.ab.kgmlm-part",
            "index/.entity.ab.kgmlm-part", "reranker/.model.ab.kgmlm-part",
            "signals/.kge.safetensors.ab.kgmlm-part",
            "model/.entity_vectors.safetensors.ab.kgmlm-part")  # fmt: skip
    for name in left:
        (run / name).mkdir(parents=True)
    shutil.copy(run / "run.json", run / "reranker" / "run.json")
    (tmp_path / ".run.ab.kgmlm-part").mkdir()
    others = tmp_path / ".run.old"
    others.mkdir()
    assert open_run(run).record["status"] in ENDED
    with writing(run, "tune"):
        pass
    assert not (run / "checkpoints").exists()
    assert not list(run.rglob(".*"))
    assert sorted(p.name for p in tmp_path.iterdir()) == [".run.old", "run"]


def test_nothing_is_overwritten_unasked(toy_run: Path, tmp_path: Path) -> None:
    check_output(tmp_path, overwrite=False)
    with pytest.raises(RunError, match="--overwrite"):
        check_output(toy_run, overwrite=False)
    check_output(toy_run, overwrite=True)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunError, match="is not a run"):
        check_output(tmp_path, overwrite=True)
