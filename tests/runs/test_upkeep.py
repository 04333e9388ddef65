from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import kgmlm
from kgmlm.core.arrays import Floats
from kgmlm.core.errors import RunError
from kgmlm.graphs.queries import Queries, Query
from kgmlm.ranking.ranker import Ranker
from kgmlm.runs.folder import ENDED, RunFolder, read_as_one
from kgmlm.runs.opened import open_folder, open_ranker, tuned_ranker, untuned_ranker
from kgmlm.runs.options import RankingOptions
from kgmlm.runs.writing import check_output, check_result, save_model, writing
from kgmlm.text.torch_model import SpanModel, load_model, span_model


@pytest.mark.parametrize("own", ["run.json", "config.toml", "model/model.safetensors", "graph/new.json"])
def test_results_never_replace_a_runs_own_files(toy_run: Path, tmp_path: Path, own: str) -> None:
    (tmp_path / "link").symlink_to(toy_run)
    for path in (toy_run / own, tmp_path / "link" / own):
        with pytest.raises(RunError, match="belongs to the run"):
            check_result(path)
    check_result(toy_run / "test.json")
    check_result(tmp_path / "new" / own)


@pytest.mark.parametrize("suffix", ["new", "old"])
def test_a_reader_names_the_command_that_finds_what_a_kill_has_hidden(
    toy_run: Path, tmp_path: Path, suffix: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    for hidden in (run / "model", run):
        temporary = hidden.with_name(f".{hidden.name}.kgmlm-{suffix}")
        hidden.rename(temporary)
        with pytest.raises(RunError, match=r"was being replaced .*--resume` puts it in order"):
            tuned_ranker(open_folder(run), "cpu")
        assert temporary.is_dir(), "a reader repairs nothing"
        kgmlm.train(output=run, resume=True, progress=False)
        tuned_ranker(open_folder(run), "cpu")
        assert not list(run.rglob(".*"))
        assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_reader_touches_nothing_that_is_being_written(toy_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    with writing(run, "train"):
        (run / "model").rename(run / ".model.kgmlm-old")
        open_folder(run)
        assert (run / ".model.kgmlm-old").is_dir()


@pytest.fixture
def another(toy_run: Path, tmp_path: Path) -> Path:
    """A model that the run is trained further to, with weights of its own."""
    run = tmp_path / "another"
    shutil.copytree(toy_run, run)
    opened = open_folder(run)
    ranker = untuned_ranker(opened, "cpu")
    with torch.no_grad():
        for weight in span_model(ranker.reader.model).parameters():
            weight.mul_(1.01)
    opened = save_model(opened, ranker.replace(mixture=ranker.mixture.evenly("likelihood", 0.5)))
    return run


def scores(ranker: Ranker) -> Floats:
    (best,) = [part for _, part in ranker.rank(Queries.of([Query(0, 0, "tail")]))]
    return best


@pytest.mark.parametrize("moment", ["before the weights", "between the renames"])
def test_a_reader_meanwhile_a_model_is_replaced_has_one_of_both(
    toy_run: Path, another: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It has read the old model when weights and model are replaced, or finds none for a moment."""
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    expected = scores(tuned_ranker(open_folder(another), "cpu"))
    assert not np.array_equal(scores(tuned_ranker(open_folder(run), "cpu")), expected)
    reads = []

    def replace(folder: Path) -> SpanModel:
        reads.append(folder)
        model = load_model(folder)
        if len(reads) == 1 and moment == "before the weights":
            (run / "model").rename(tmp_path / "before")
            shutil.copytree(another / "model", run / "model")
        return model

    def wait(seconds: float) -> None:
        (run / ".model.kgmlm-new").rename(run / "model")

    monkeypatch.setattr("kgmlm.text.torch_model.load_model", replace)
    monkeypatch.setattr(
        "kgmlm.runs.folder.time.sleep", wait if moment == "between the renames" else time.sleep
    )
    with writing(run, "train"):
        opened = open_folder(run)
        if moment == "between the renames":
            shutil.copytree(another / "model", run / ".model.kgmlm-new")
            (run / "model").rename(run / ".model.kgmlm-old")
        options = RankingOptions(device="cpu", runtime="torch")
        assert np.array_equal(scores(open_ranker(opened, options, opened.graph)), expected)
    assert len(reads) == (2 if moment == "before the weights" else 1)


def test_a_reader_gives_up_on_a_run_that_changes_all_the_time(toy_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    numbers = iter(range(99))

    def read(now: RunFolder) -> None:
        (now.model_folder / f"{next(numbers)}").touch()

    with pytest.raises(RunError, match="changes as often as it is read"):
        read_as_one(open_folder(run), read)


def test_a_writer_removes_what_a_kill_has_left(toy_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    left = ("checkpoints/step-00000009/model", "checkpoints/.step-00000009.ab.kgmlm-part",
            "index/.entity.ab.kgmlm-part",
            "signals/.kge.safetensors.ab.kgmlm-part",
            "model/.entity_vectors.safetensors.ab.kgmlm-part")  # fmt: skip
    for name in left:
        (run / name).mkdir(parents=True)
    (tmp_path / ".run.ab.kgmlm-part").mkdir()
    others = tmp_path / ".run.old"
    others.mkdir()
    assert open_folder(run).record["status"] in ENDED
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
