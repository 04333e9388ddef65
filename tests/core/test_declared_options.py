from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import typer
from typer.testing import CliRunner

import kgmlm
from kgmlm.cli.common import command
from kgmlm.core.errors import ConfigError
from kgmlm.core.options import Options, about, described, option, takes, takes_all


@dataclass(frozen=True, kw_only=True)
class Slow(Options):
    batch_size: int = option(64, "Queries per forward pass.", at_least=1, at_most=1000)


@dataclass(frozen=True, kw_only=True)
class Asking(Slow):
    """What the job below takes."""

    words: str = field(kw_only=False, metadata=about("What is said.", is_argument=True))
    share: float | None = option(None, "A share; see --batch-size.", above=0, at_most=1)
    kind: Literal["plain", "loud"] = option("plain", "How it is said.")
    polite: bool = option(True, "Say please.")
    names: Sequence[str] = option((), "To whom.", "--name", "-n", command=list[str])
    hidden: Any = option(None, "In Python alone.", command=None, python="Such as a function.")


@takes(Asking)
def job(run: str, options: Asking) -> tuple[str, Asking]:
    """Do a job.

    Returns:
        What it was given.
    """
    return run, options


def test_a_function_takes_its_options_as_keywords() -> None:
    run, asked = job("a", "hello", kind="loud")
    assert (run, asked.words, asked.kind, asked.batch_size) == ("a", "hello", "loud", 64)
    assert asked.given == {"words", "kind"}
    assert list(inspect.signature(job).parameters) == [
        "run", "words", "share", "kind", "polite", "names", "hidden", "batch_size",
    ]  # fmt: skip
    assert takes_all(Slow)(lambda options: options.batch_size)(batch_size=3) == 3


def test_the_docstring_has_each_option_before_what_is_returned() -> None:
    text = inspect.getdoc(job)
    assert text is not None
    lines = text.splitlines()
    assert (
        lines.index("Args:") < lines.index("    share: A share; see `batch_size`.") < lines.index("Returns:")
    )
    assert "    hidden: In Python alone. Such as a function." in lines


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "shy"}, "--kind is plain or loud, not 'shy'"),
        ({"batch_size": 0}, "--batch-size is a whole number from 1 on, not 0"),
        ({"batch_size": 2.0}, "--batch-size is a whole number from 1 on, not 2.0"),
        ({"batch_size": True}, "--batch-size is a whole number from 1 on, not True"),
        ({"batch_size": 1001}, "--batch-size is a number from 1 to 1,000, not 1001"),
        ({"share": 0}, "--share is a number above 0, 1 at most, not 0"),
        ({"share": float("nan")}, "--share is a number above 0, 1 at most, not nan"),
        ({"share": "half"}, "--share is a number above 0, 1 at most, not 'half'"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_the_options_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        job("a", "hello", **given)


def test_an_unknown_keyword_is_a_type_error_that_names_the_nearest() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'kinds'; did you mean 'kind'"):
        job("a", "hello", kinds="loud")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing a required argument: 'words'"):
        job("a")  # type: ignore[call-arg]


def commanded(*arguments: str) -> tuple[int, str, dict[str, Any]]:
    """The exit code, what is printed, and what the command got."""
    got: dict[str, Any] = {}

    @command(Asking)
    def say(**given: Any) -> None:
        """Say it."""
        got.update(given)

    app = typer.Typer(rich_markup_mode=None)
    app.command()(say)
    done = CliRunner().invoke(app, arguments)
    return done.exit_code, done.output, got


def test_a_command_has_the_same_options() -> None:
    code, _, got = commanded("hello", "--kind", "loud", "--no-polite", "-n", "Ada", "--name", "Bo")
    assert code == 0
    assert got == {
        "words": "hello", "share": None, "kind": "loud", "polite": False, "names": ["Ada", "Bo"],
        "batch_size": 64,
    }  # fmt: skip
    assert commanded("hello")[2]["names"] == ()
    assert commanded("hello", "--batch-size", "0")[0] == 2
    code, printed, _ = commanded("--help")
    assert code == 0
    for shown in ("To whom.", "--no-polite", "Queries per forward pass."):
        assert shown in printed
    assert "hidden" not in printed


def public() -> list[tuple[str, Callable[..., Any]]]:
    """The public functions, with the methods of a run."""
    functions = [(name, getattr(kgmlm, name)) for name in kgmlm.__all__]
    return [(name, x) for name, x in functions if inspect.isfunction(x)]


@pytest.mark.parametrize(("name", "function"), public())
def test_every_public_function_documents_each_of_its_arguments(
    name: str, function: Callable[..., Any]
) -> None:
    text = inspect.getdoc(function) or ""
    for argument in inspect.signature(function).parameters:
        if argument not in ("run", "path", "head", "relation", "tail", "dataset", "triples", "output"):
            assert f"{argument}" in text, (name, argument)


def test_methods_of_a_run_are_the_functions_of_their_names(toy_run: Path) -> None:
    run = kgmlm.open_run(toy_run)
    assert inspect.signature(run.evaluate) == inspect.signature(kgmlm.evaluate).replace(
        parameters=list(inspect.signature(kgmlm.evaluate).parameters.values())[1:]
    )
    assert run.complete.__doc__ == kgmlm.complete.__doc__
    assert kgmlm.Run.evaluate is kgmlm.evaluate


def test_an_option_is_declared_once_with_its_flag() -> None:
    flags = {declared.name: declared.flag for declared in described(Asking)}
    assert flags["names"] == "--name"
    assert flags["batch_size"] == "--batch-size"
