"""Messages that name a command: the command exists, and works in the state in which it was named."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import TINY_SETTINGS, Cli
from test_readme import check_command

import kgmlm
from kgmlm.core.errors import KgmlmError

ROOT = Path(kgmlm.__file__).parent
HOLE = "HOLE"  # stands for what a message fills in


def messages() -> Iterator[tuple[str, str]]:
    """(file, text) of each string of the program that is no docstring; what it fills in is a hole."""
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docs = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
        }
        joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
        skipped = docs | {id(part) for node in joined for part in node.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                yield (
                    path.name,
                    "".join(
                        str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values
                    ),
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
                yield path.name, node.value


def named(text: str) -> list[list[str]]:
    """The words of the commands that a text names."""
    return [shlex.split(command)[1:] for command in re.findall(r"`(kgmlm [^`]+)`", text)]


ADVICE = sorted({(file, shlex.join(words)) for file, text in messages() for words in named(text)})


def test_messages_name_commands() -> None:
    assert len(ADVICE) > 60


@pytest.mark.parametrize(("file", "command"), ADVICE)
def test_every_command_of_a_message_exists(file: str, command: str) -> None:
    words = shlex.split(command)
    if HOLE not in words[0]:
        check_command([word for word in words if not word.startswith(HOLE)])


# How a state is made, and the call whose message names a command.
STATES: dict[str, Callable[[Path, Path], object]] = {
    "a signal that a run lacks": lambda run, tmp: kgmlm.open_run(run, scores="linked").rank(
        "france", "capital"
    ),
    "rules that a run lacks": lambda run, tmp: kgmlm.open_run(run).rules("capital"),
    "an index that a run lacks": lambda run, tmp: kgmlm.open_run(run, retrieve=5).rank("france", "capital"),
    "ranks that are not there": lambda run, tmp: kgmlm.compare(run, run),
    "a list that is none": lambda run, tmp: kgmlm.export(run / "run.json", tmp / "b.nt"),
    "a dataset instead of a run": lambda run, tmp: kgmlm.open_run(_dataset(tmp)),
    "a run that is not there": lambda run, tmp: kgmlm.open_run(tmp / "nothing"),
    "a split that is missing": lambda run, tmp: kgmlm.load_graph(_dataset(tmp)).triples("test"),
    "triples with blanks between": lambda run, tmp: kgmlm.load_graph(_blanks(tmp)),
    "N-Triples in a dataset": lambda run, tmp: kgmlm.load_graph(_ntriples(tmp)),
    "a run that is interrupted": lambda run, tmp: kgmlm.update(_interrupted(tmp)),
}


def _dataset(folder: Path) -> Path:
    rows = [f"e{i}\tr\te{j}" for i in range(8) for j in range(8) if i != j]
    (folder / "mygraph").mkdir(exist_ok=True)
    (folder / "mygraph" / "train.tsv").write_text("\n".join(rows))
    return folder / "mygraph"


def _blanks(folder: Path) -> Path:
    (folder / "train.txt").write_text("a r b\nb r c\n")
    return folder


def _ntriples(folder: Path) -> Path:
    (folder / "train.txt").write_text("<http://e.org/a> <http://e.org/r> <http://e.org/b> .\n" * 2)
    return folder


def _interrupted(folder: Path) -> Path:
    given = [x for x in TINY_SETTINGS[3:] if x != "--set"]
    run = kgmlm.train(
        "toy", model="scratch", output=folder / "run", preset="plain", max_steps=1, progress=False,
        settings=given, onnx=False,
    )  # fmt: skip
    record = run.path / "run.json"
    record.write_text(record.read_text().replace('"max steps"', '"interrupted"'))
    return run.path


@pytest.mark.slow
@pytest.mark.parametrize("state", STATES)
def test_the_command_of_a_message_works_where_it_is_given(
    state: str, toy_vector_run: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(toy_vector_run, tmp_path / "its run")
    with pytest.raises(KgmlmError) as error:
        STATES[state](run, tmp_path)
    commands = named(str(error.value))
    assert commands, str(error.value)
    for words in commands:
        filled = [{"RUN": str(run), "DATASET": "toy", "FOLDER": "drawn"}.get(word, word) for word in words]
        if filled[:2] == ["data", "split"] and "--output" not in filled:
            filled += [str(tmp_path / "mygraph"), "--output", "drawn"]
        if filled[:2] == ["data", "import"]:
            filled += [str(tmp_path / "train.txt"), "--output", "read"]
        if filled[0] == "complete":
            filled += [str(run), "--output", "new.parquet"]
        if filled[0] == "train" and "minilm" in filled:
            filled[filled.index("minilm")] = "scratch"
            filled += [*TINY_SETTINGS, "--max-steps", "1"]
        done = cli(*filled)
        assert done.returncode == 0, (filled, done.stderr)
