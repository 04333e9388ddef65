from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import TINY_SETTINGS, Cli, refused
from safetensors.numpy import load_file
from trainings import go, settings

from kgmlm.core.errors import ConfigError, RunError
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.ranking.ranker import Ranker
from kgmlm.runs.opened import open_folder
from kgmlm.runs.writing import write_record
from kgmlm.training.loop import train
from kgmlm.training.objectives import Task, stream_of
from kgmlm.training.start import resume_run, start_run


def test_what_cannot_be_resumed_says_why(toy: KnowledgeGraph, tmp_path: Path) -> None:
    start_run(tmp_path / "run", toy, "scratch", settings())
    (tmp_path / "run" / "checkpoints" / "step-00000050").mkdir(parents=True)
    with pytest.raises(RunError, match="step-00000050 is damaged; start the run again with --overwrite"):
        resume_run(tmp_path / "run")
    go(tmp_path / "done", toy, "training.epochs=1")
    with pytest.raises(RunError, match="finished already"):
        resume_run(tmp_path / "done")


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(
    toy: KnowledgeGraph, tmp_path: Path
) -> None:
    few = settings("training.epochs=2")
    run, ranker = start_run(tmp_path / "whole", toy, "scratch", few)
    train(run, ranker)
    start_run(tmp_path / "killed", toy, "scratch", few)
    killed, ranker = resume_run(tmp_path / "killed")
    write_record(killed, status="started")
    train(killed, ranker, resume=True)
    whole, begun_again = (
        load_file(tmp_path / name / "model/model.safetensors") for name in ("whole", "killed")
    )
    assert whole.keys() == begun_again.keys()
    assert all(np.array_equal(whole[name], begun_again[name]) for name in whole)


def test_what_cannot_be_trained_lays_no_run(cli: Cli, toy: KnowledgeGraph, tmp_path: Path) -> None:
    base = ("train", "--dataset", "toy", "--model", "scratch", "--output", tmp_path / "run", *TINY_SETTINGS)
    refused(cli(*base, "--tracker", "nothing"), "no tracker 'nothing'")
    refused(cli(*base, "--set", "scoring.span_length=60"), "raise text.max_length")
    assert not (tmp_path / "run").exists()
    surfaces = toy.entities.column("surface")
    surfaces[int(toy.splits["train"][0, 0])] = "a name without an end " * 40
    labels = toy.entities.column("label")
    long = replace(toy, entities=EntityTable(labels, surfaces=surfaces))
    _, ranker = start_run(tmp_path / "run", long, "scratch", settings())
    assert ranker.reader.vocabulary.span_length == 32, "half of a query at most"


def test_more_accumulation_than_batches_is_refused(toy: KnowledgeGraph, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.accumulation 99: training has only \d+ batches"):
        go(tmp_path / "run", toy, "training.epochs=1", "training.accumulation=99")
    assert list(tmp_path.iterdir()) == [], "refused before anything is laid"


@pytest.mark.parametrize("objective", ["entity", "token"])
def test_more_processes_than_samples_are_refused(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker], objective: str
) -> None:
    many = settings("training.batch_size=9999", f"training.objective={objective}").training
    with pytest.raises(ConfigError, match=r"an epoch has only \d+ samples for 9999 processes"):
        stream_of(Task(make_ranker(), toy, many, (0, 9999)))
    assert stream_of(Task(make_ranker(), toy, many, (0, 2))).per_epoch == 1


def test_a_training_that_was_refused_is_not_in_the_way(toy: KnowledgeGraph, tmp_path: Path) -> None:
    bad = ("training.learning_rate=1e30", "training.warmup=0")
    path = tmp_path / "run"
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"lower training\.learning_rate"):
            go(path, toy, *bad)
    start_run(path, toy, "scratch", settings())  # laid, and killed before its first checkpoint
    assert go(path, toy, max_steps=3).status == "max steps"
    with pytest.raises(RunError, match="is a run already"):
        go(path, toy)


@pytest.mark.parametrize("keep", ["notes.txt", "checkpoints/mine", "checkpoints/step-1"])
def test_what_holds_more_than_a_refused_training_is_not_replaced(
    toy: KnowledgeGraph, tmp_path: Path, keep: str
) -> None:
    path = tmp_path / "run"
    start_run(path, toy, "scratch", settings())
    kept = path / keep
    kept.mkdir(parents=True)
    with pytest.raises(RunError, match="is a run already"):
        start_run(path, toy, "scratch", settings())
    assert kept.is_dir()


def test_an_output_that_is_a_link_stays_one(toy: KnowledgeGraph, tmp_path: Path) -> None:
    link, disk = tmp_path / "run", tmp_path / "disk"
    disk.mkdir()
    link.symlink_to(disk / "run")
    go(link, toy, "training.epochs=1")
    run, ranker = start_run(link, toy, "scratch", settings("training.epochs=1"), overwrite=True)
    train(run, ranker)
    assert link.is_symlink()
    assert open_folder(disk / "run").record["status"] == "finished"
    assert [p.name for p in disk.iterdir()] == ["run"]
