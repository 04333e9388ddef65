"""Who watches long work."""

from __future__ import annotations

import sys
import time
import types
from typing import Any

import pytest

from kgmlm.core.progress import Bars, Calls, NotebookBars, Watcher, expected, watcher_of


def work(watch: Watcher) -> None:
    """A training with a validation, as jobs report it."""
    with watch:
        watch("reading entities", 3, 3)
        watch.start(10, 2)
        watch.step(3, 2.0)
        watch.step(4, 1.0)
        watch("validating", 4, 8)
        watch("validating", 4, 8)
        watch.validated(0.25, 0.5)
    watch.tell("done")


def test_a_log_file_gets_a_line_per_validation(capsys: pytest.CaptureFixture[str]) -> None:
    work(Bars())
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "step 4/10  loss 1.950  valid MRR 0.2500  best 0.5000" in printed.err
    assert "done" in printed.err


def test_a_log_file_gets_a_line_per_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Bars() as watch:
        watch.start(10, 0)
        for step in range(1, 10):
            now += 25.0
            watch.step(step, 2.0)
        watch("validating", 2, 8)
        now += 60.0
        watch("validating", 2, 8)
    lines = [line for line in capsys.readouterr().err.splitlines() if "━" not in line]
    rows = [line.split("  left")[0] for line in lines]
    steps = [f"training {step}/10  loss 2.000" for step in (3, 6, 9)]
    assert [line for line in rows if line] == [*steps, "validating 4/8"]


def test_a_training_may_be_expected_to_end_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    with Bars() as watch:
        watch.start(1000, 0)
        watch.step(3, 2.0)
        watch.expect(7)
        watch.validated(0.25, 0.5)
    assert "step 3/7  loss" in capsys.readouterr().err
    heard: list[tuple[str, int, int]] = []
    calls = Calls(lambda *given: heard.append(given))
    calls.start(1000, 0)
    calls.expect(7)
    calls.step(3, 2.0)
    assert heard[-1] == ("training", 3, 7)


def test_what_ends_by_the_clock_is_expected_by_its_pace() -> None:
    began = time.monotonic() - 5.0
    assert expected(10, began, None, 100) == 100
    assert 18 <= expected(10, began, 10.0, 100) <= 20
    assert expected(10, began, 1e6, 100) == 100, "no more than there is"
    assert expected(10, began, 1.0, 100) == 10, "no less than is done"


def test_quiet_bars_only_say_what_is_worth_knowing(capsys: pytest.CaptureFixture[str]) -> None:
    watch = Bars(quiet=True)
    with watch:
        watch("reading entities", 3, 3)
    watch.note("three of three")
    watch.tell("done")
    assert capsys.readouterr().err == "done\n"


def test_nobody_hears_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    work(watcher_of(False))
    assert capsys.readouterr() == ("", "")


def test_a_function_is_told_how_much_was_just_done() -> None:
    heard: list[tuple[str, int, int]] = []
    watch = watcher_of(lambda *messages: heard.append(messages))
    assert isinstance(watch, Calls)
    work(watch)
    done: dict[str, int] = {}
    for what, n, _ in heard:
        done[what] = done.get(what, 0) + n
    assert done == {"reading entities": 3, "training": 4, "validating": 8}
    assert {total for what, _, total in heard if what == "training"} == {10}


def test_a_bar_goes_when_its_phase_is_done_and_another_is_there() -> None:
    watch = Bars()
    with watch:
        watch.start(10, 0)
        watch("validating", 1, 2)
        assert list(watch._tasks) == ["training", "validating"]
        watch("validating", 1, 2)
        assert list(watch._tasks) == ["training"]


def test_a_phase_that_is_done_again_starts_again() -> None:
    watch = Bars()
    with watch:
        for done in (3, 5, 1):
            watch("validating", done, 8)
        assert watch._progress is not None
        assert watch._progress.tasks[0].completed == 1
        watch("validating", 7, 8)
        watch("validating", 0, 8)
        assert watch._progress.tasks[0].completed == 8, "nothing more was done"


@pytest.mark.parametrize(("place", "widgets"), [("tqdm.notebook.tqdm", True), ("tqdm.tqdm", None)])
def test_a_notebook_has_bars_of_its_own(monkeypatch: pytest.MonkeyPatch, place: str, widgets: object) -> None:
    class ZMQInteractiveShell:
        pass

    class Bar:
        def __init__(self, desc: str, total: int, initial: int = 0) -> None:
            self.n, self.total, self.desc, self.closed = initial, total, desc, False
            bars.append(self)

        def update(self, n: int) -> None:
            self.n += n

        def set_postfix(self, **values: Any) -> None:
            self.shown = values

        def close(self) -> None:
            self.closed = True

    bars: list[Bar] = []
    shell = types.ModuleType("IPython")
    shell.get_ipython = ZMQInteractiveShell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", shell)
    watch = watcher_of(True)
    assert isinstance(watch, NotebookBars)
    monkeypatch.setattr(place, Bar)
    monkeypatch.setattr("kgmlm.core.progress.find_spec", lambda name: widgets)
    work(watch)
    assert [(bar.desc, bar.n, bar.closed) for bar in bars] == [
        ("reading entities", 3, True), ("training", 4, True), ("validating", 8, True),
    ]  # fmt: skip


def test_elsewhere_bars_are_rich() -> None:
    assert isinstance(watcher_of(True), Bars)
    own = Watcher()
    assert watcher_of(own) is own
