"""Each command once in a process of its own; what commands do and print is tested in this process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from conftest import TINY_SETTINGS, Cli, refused

from kgmlm.cli.app import app
from kgmlm.runs.opened import open_folder

ASK = ("--head", "france", "--relation", "capital")
TRAIN = (
    "train",
    "--dataset",
    "toy",
    "--model",
    "scratch",
    "--output",
    "new",
    "--max-steps",
    "1",
    *TINY_SETTINGS,
)
JUDGED = {"paris": 1, "rome": 0}
# What is typed, and a part of what is printed.
CASES: dict[tuple[str, ...], str] = {
    TRAIN: "max steps at step 1",
    ("evaluate", "run"): "toy test",
    ("rank", "run", *ASK, "-k", "2"): "(France, has the capital, ?)",
    ("tune", "run"): "text: validation MRR",
    ("index", "vectors"): "index of 31 entities",
    ("update", "run", "--triples", "triples.tsv"): "new: 0 entities, 0 relations, 1 triple",
    ("info", "run"): "steps of the masked LM",
    ("compare", "run", "run"): "95 % interval",
    ("report", "run", "--max-triples", "2"): "the report is in report.html",
    ("linearize", "run", *ASK): "France. country in western Europe",
    ("rules", "run"): "rules",
    ("calibrate", "larger"): "log-loss",
    ("classify", "larger", "triples.tsv"): "probability",
    ("similar", "vectors", "France"): "most similar to France",
    ("embeddings", "vectors", "--output", "entities.parquet"): "31 embeddings by vector",
    ("serve", "run", "--port", "0"): "run is served at http://127.0.0.1:",
    ("feedback", "run", "--output", "judged.tsv"): "1 accepted, 1 rejected",
    ("complete", "run", "--output", "new.parquet"): "the best answers of",
    ("export", "new.parquet", "--output", "new.nt"): "triples as ntriples",
    ("config",): "[training]",
    ("pack", "run", "--output", "packed.kgmlm"): "packed.kgmlm",
    ("push", "run", "ada/toy", "-q"): "HF_HUB_OFFLINE is set",
    ("unpack", "run.kgmlm", "--output", "new"): "new",
    ("onnx", "run"): "encoder.onnx",
    ("data", "list"): "wn18rr",
    ("data", "prepare", "toy"): "toy: ready",
    ("data", "check", "toy"): "as expected",
    ("data", "show", "toy"): "capital",
    ("data", "split", "toy", "--entities", "0.1", "--output", "new"): "with a new end",
    ("data", "import", "triples.nt", "--output", "new"): "1 triple of 2 entities and 1 relation",
}


def paths(command: Any, words: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The words of each command."""
    below = getattr(command, "commands", None)
    return (
        [words] if below is None else [p for name, sub in below.items() for p in paths(sub, (*words, name))]
    )


def test_each_command_has_a_case() -> None:
    started = [next(p for p in paths(typer.main.get_command(app)) if case[: len(p)] == p) for case in CASES]
    assert sorted(started) == sorted(paths(typer.main.get_command(app)))


def terminated(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command that runs until SIGTERM, which comes when it serves."""
    with subprocess.Popen(
        [sys.executable, "-m", "kgmlm", *arguments, "-q"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd,
    ) as started:  # fmt: skip
        assert started.stderr is not None
        message = ""
        while "is served" not in message and started.poll() is None:
            message += started.stderr.readline()
        started.terminate()
        out, err = started.communicate(timeout=60)
    return subprocess.CompletedProcess(arguments, started.returncode, out, message + err)


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case[:2]))
def test_a_command_works(
    command: Cli, cli: Cli, toy_run: Path, toy_vector_run: Path, tmp_path: Path, case: tuple[str, ...]
) -> None:
    if "run" in case or "run.kgmlm" in case or case[0] == "export":
        shutil.copytree(toy_run, tmp_path / "run")
    if "vectors" in case:
        shutil.copytree(toy_vector_run, tmp_path / "vectors")
    if case[0] == "rules":
        assert cli("tune", tmp_path / "run", "--add", "rules", "-q").returncode == 0
    if case[0] == "compare":
        assert cli("evaluate", tmp_path / "run", "-q").returncode == 0
    if "larger" in case:
        trained = (*TRAIN[:2], "europe", *TRAIN[3:6], tmp_path / "larger", *TRAIN[7:])
        assert cli(*trained).returncode == 0
    if case[0] == "export":
        assert cli("complete", tmp_path / "run", "--output", tmp_path / "new.parquet", "-q").returncode == 0
    if case[0] == "feedback":
        rows = [{"head": "france", "relation": "capital", "tail": t, "label": x} for t, x in JUDGED.items()]
        (tmp_path / "run" / "feedback.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "triples.tsv").write_text("Italy\tborders\tFrance\n")
    (tmp_path / "triples.nt").write_text("<http://a> <http://p> <http://b> .\n")
    if "run.kgmlm" in case:
        assert cli("pack", tmp_path / "run").returncode == 0
    done = terminated(*case, cwd=tmp_path) if case[0] == "serve" else command(*case, cwd=tmp_path)
    assert done.returncode == (2 if case[0] == "push" else 0), done.stderr  # test_push.py has a Hub
    assert CASES[case] in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    if case is TRAIN:
        assert str(open_folder(tmp_path / "new").record["command"]).startswith("kgmlm train --dataset toy ")


def test_a_mistake_is_one_sentence_and_exit_code_2(command: Cli, tmp_path: Path) -> None:
    refused(command("evaluate", tmp_path / "none"), "does not exist")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["config"], ["data", "list", "--json"]], ids=" ".join)
def test_a_reader_that_leaves_is_no_mistake(arguments: list[str]) -> None:
    """As `kgmlm config | true`, with more to print than fits a buffer, and with less."""
    with subprocess.Popen(
        [sys.executable, "-m", "kgmlm", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as started:
        assert started.stdout is not None
        started.stdout.close()
        assert started.wait(60) == 0
        assert started.stderr is not None
        assert started.stderr.read() == b""
