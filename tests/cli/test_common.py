from __future__ import annotations

import errno
import io
import os
import signal
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import typer

from kgmlm.cli.common import command
from kgmlm.cli.printing import print_lines, print_metrics, print_table
from kgmlm.core.arrays import Floats
from kgmlm.core.config import Protocol
from kgmlm.core.errors import DataError
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.ranker import PlainScorer


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (DataError("the file is odd"), 2, "kgmlm: the file is odd"),
        (
            OSError(errno.ENOSPC, "No space left", "model.safetensors"),
            2,
            "no room left to write model.safetensors",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "x"), 2, "kgmlm: x: permission denied"),
        (FileExistsError(errno.EEXIST, "File exists", "a", None, "b"), 2, "kgmlm: a, b: file exists"),
        (OSError("the checkpoint cannot be written"), 2, "kgmlm: the checkpoint cannot be written"),
        (KeyboardInterrupt(), 130, "kgmlm: interrupted"),
    ],
)
def test_what_users_can_cause_is_one_sentence(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, message: str
) -> None:
    @command()
    def failing() -> None:
        raise error

    with pytest.raises(typer.Exit) as caught:
        failing()
    assert caught.value.exit_code == code
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1


def test_sigterm_interrupts_like_ctrl_c(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    tidied = []

    @command()
    def failing() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        finally:
            tidied.append(signal.getsignal(signal.SIGTERM))

    with pytest.raises(typer.Exit) as caught:
        failing()
    assert caught.value.exit_code == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "kgmlm: interrupted\n"
    assert tidied == [signal.SIG_DFL], "a second one ends the process"
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_a_terminal_cannot_show_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown, encoding="latin-1"))

    @command()
    def failing() -> None:
        print("caf\u00e9 \u65e5")

    failing()
    assert shown.getvalue() == b"caf\xe9 \\u65e5\n"


def test_a_mistake_of_ours_is_not_hidden() -> None:
    @command()
    def failing() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()


class Constant(PlainScorer):
    """Scores everything the same."""

    def score(self, queries: Queries) -> Floats:
        return np.zeros((len(queries), self.entities), np.float32)


def constant(graph: KnowledgeGraph) -> Constant:
    return Constant(len(graph.entities), len(graph.relations))


@pytest.mark.parametrize(
    ("protocol", "title"),
    [
        (Protocol(), "realistic, all entities"),
        (Protocol(candidates="train"), "training entities"),
        (Protocol(candidates="split"), "the split's entities"),
        (Protocol(negatives=9), "9 drawn negatives of all entities"),
        (Protocol(negatives=9, negatives_by="grail"), "9 negatives of all entities, drawn as GraIL does"),
        (Protocol(negatives=9, negatives_by="expectation"), "expected, 9 expected negatives"),
    ],
)
def test_a_table_says_which_candidates_its_figures_are_of(
    toy: KnowledgeGraph, capsys: pytest.CaptureFixture[str], protocol: Protocol, title: str
) -> None:
    print_metrics(evaluate(constant(toy), toy, protocol))
    printed = " ".join(capsys.readouterr().out.split())
    assert title in printed
    for side in ("tail", "head", "both"):
        assert side in printed


def test_what_a_graph_has_does_not_color_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines({"odd": ["\x1b[31mred\x07"]})
    print_table("odd", pd.DataFrame({"name": ["\x1b[31mred"]}))
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert shown.count(r"\x1b[31mred") == 2


def test_a_name_with_brackets_is_no_markup(toy: KnowledgeGraph, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("[/x]", "[red]graph"):
        print_metrics(evaluate(constant(toy), replace(toy, name=name), Protocol()))
        assert f"{name} test" in capsys.readouterr().out
