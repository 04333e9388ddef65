from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from trainings import Validation, go, losses, settings

from kgmlm.core.progress import Watcher
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.training.loop import Plan, end_within, rate_factor, train
from kgmlm.training.objectives import Task, stream_of
from kgmlm.training.start import State, resume_run


def rates(run: Path) -> list[float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["learning_rate"] for row in rows if "loss" in row]


@pytest.mark.slow
def test_a_constant_rate_may_be_ended_from_any_checkpoint(toy: KnowledgeGraph, tmp_path: Path) -> None:
    """Long training goes on at a constant rate; copies of it are ended, each by a short decay."""
    constant = ("training.schedule=constant", "training.warmup=0.05", "training.learning_rate=0.01")
    long = tmp_path / "long"
    assert go(long, toy, *constant, max_steps=9).status == "max steps"
    for name in ("ended", "in parts"):
        shutil.copytree(long, tmp_path / name)
    run, ranker = resume_run(long)
    assert train(run, ranker, resume=True).status == "finished"
    warmup = round(0.05 * len(rates(long)))
    assert rates(long)[warmup:] == [0.01] * (len(rates(long)) - warmup)
    run, ranker = resume_run(tmp_path / "ended")
    outcome = train(run, ranker, decay=1.5, resume=True)
    assert outcome.status == "finished"
    steps = outcome.step - 9
    assert 1 < steps < len(rates(long)) - 9
    assert losses(tmp_path / "ended")[:10] == losses(long)[:10]
    expected = [0.01 * (steps - i) / steps for i in range(steps)]
    assert rates(tmp_path / "ended")[9:] == pytest.approx(expected)
    # Once a run is ending it ends as it began to, whatever interrupts it and however it is asked again.
    for stop, decay in ((11, 1.5), (12, None), (None, 7.0)):
        run, ranker = resume_run(tmp_path / "in parts")
        train(run, ranker, max_steps=stop, decay=decay, resume=True)
    assert losses(tmp_path / "in parts") == losses(tmp_path / "ended")


def test_the_rate_of_an_ending_falls_from_where_it_was() -> None:
    training = settings("training.warmup=0", "training.epochs=10").training
    state = State(step=1000)
    end_within(2.5, training, 400, state)
    assert (state.decay_from, state.decay_steps, state.decay_factor) == (1000, 1000, 0.75)
    factor = rate_factor(training, 4000, state)
    assert [factor(step) for step in (1000, 1500, 2000)] == [0.75, 0.375, 0.0]


def test_a_kill_does_not_forget_that_a_run_was_asked_to_end(toy: KnowledgeGraph, tmp_path: Path) -> None:
    class Kills(Watcher):
        def step(self, step: int, loss: float) -> None:
            raise MemoryError

    go(tmp_path / "run", toy, max_steps=4)
    run, ranker = resume_run(tmp_path / "run")
    with pytest.raises(MemoryError):
        train(run, ranker, decay=1.0, resume=True, reporter=Kills())
    per_epoch = stream_of(Task(ranker, toy, run.settings.training, (0, 1))).per_epoch
    assert train(*resume_run(tmp_path / "run"), resume=True).step == 4 + per_epoch
    assert rates(tmp_path / "run")[-1] < rates(tmp_path / "run")[4] / 2


@pytest.mark.parametrize(("per_epoch", "last"), [(1357, [453, 906]), (1000, [334, 668]), (299, [100, 200])])
def test_no_validation_comes_a_step_before_the_last(per_epoch: int, last: list[int]) -> None:
    training = settings("training.epochs=1", f"training.eval_every={1 / 3}").training
    plan = Plan.of(training, per_epoch, State(), None)
    assert [step for step in range(1, per_epoch) if plan.validates(step)] == last
    whole = Plan.of(settings("training.epochs=3", "training.eval_every=1").training, per_epoch, State(), None)
    assert whole.every == per_epoch


def test_an_ending_may_go_beyond_the_epochs(toy: KnowledgeGraph, tmp_path: Path) -> None:
    go(tmp_path / "run", toy, "training.epochs=2", "training.schedule=constant", max_steps=4)
    run, ranker = resume_run(tmp_path / "run")
    per_epoch = stream_of(Task(ranker, toy, run.settings.training, (0, 1))).per_epoch
    assert train(run, ranker, decay=3.0, resume=True).step == 4 + 3 * per_epoch


def test_the_linear_schedule_is_what_it_was() -> None:
    from transformers import get_linear_schedule_with_warmup

    for warmup, total in ((0.1, 50), (0.0, 7), (1.0, 5), (0.5, 1)):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        schedule = get_linear_schedule_with_warmup(optimizer, round(warmup * total), total)
        factor = rate_factor(settings(f"training.warmup={warmup}").training, total, State())
        for step in range(total + 1):
            assert factor(step) == pytest.approx(schedule.get_last_lr()[0])
            optimizer.step()
            schedule.step()


def test_the_warm_up_is_a_share_of_all_steps(toy: KnowledgeGraph, tmp_path: Path) -> None:
    """In a real training, the rate rises for so many steps, by equal parts, and falls for the others."""
    go(tmp_path / "run", toy, "training.warmup=0.25", "training.epochs=2", "training.learning_rate=0.01")
    result = rates(tmp_path / "run")
    rising = round(len(result) / 4)
    assert rising > 1
    assert result[:rising] == pytest.approx([0.01 * i / rising for i in range(rising)])
    falling = len(result) - rising
    assert result[rising:] == pytest.approx([0.01 * (falling - i) / falling for i in range(falling)])


@pytest.mark.slow
def test_validation_comes_every_so_many_epochs_or_parts_of_one(toy: KnowledgeGraph, tmp_path: Path) -> None:
    for every, epochs, times in (("0.5", 2, 4), ("2", 4, 2), ("inf", 2, 1), ("1e30", 2, 1)):
        asked = Validation(*([0.1] * 9))
        path = tmp_path / every
        go(path, toy, f"training.eval_every={every}", f"training.epochs={epochs}", validate=asked)
        assert 9 - len(asked.values) == times
