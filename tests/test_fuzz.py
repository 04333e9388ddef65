"""Damaged inputs of each kind, the same in every run of the tests; `make soak` tries thousands of others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import Cli, refused
from fuzzing import KINDS, Fuzzer

EACH = 15  # inputs of each kind: 405 in all


@pytest.fixture(scope="module")
def fuzzer(toy_run: Path, toy_vector_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Fuzzer:
    return Fuzzer(toy_run, toy_vector_run, tmp_path_factory.mktemp("fuzz"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_input_loads_right_or_is_refused_in_a_sentence(fuzzer: Fuzzer, kind: str) -> None:
    loaded = 0
    for number in range(EACH):
        try:
            loaded += fuzzer.attempt(kind, number)
        except Exception as error:
            error.add_note(f"the input is {kind} {number}")
            raise
    assert loaded < EACH, "nothing was damaged"


@pytest.mark.slow
def test_an_undamaged_input_of_each_kind_loads(fuzzer: Fuzzer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the property would hold of a loader that refuses everything."""
    import fuzzing

    def same(random: object, data: bytes) -> bytes:
        return data

    changes = [name for name in vars(fuzzing) if name.startswith("changed_")]
    for name in changes:
        monkeypatch.setattr(fuzzing, name, same)
    monkeypatch.setattr(fuzzing, "damaged", same)
    monkeypatch.setattr(fuzzing, "KINDS", fuzzing.kinds())
    for kind in KINDS:
        assert kind == "set" or fuzzer.attempt(kind, 0), kind


@pytest.mark.slow
def test_commands_refuse_damaged_inputs(cli: Cli, toy_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.tsv").write_text("a\tr\tb\n")
    (folder / "card.toml").write_text('name = "x"\ntitle = ["\\u001b[31m", 1]')
    refused(cli("data", "check", folder), "is not a valid card: 'title'")
    (folder / "train.tsv").write_bytes(b"a\tr\n" * 2 + b"\x00" * 10_000)
    refused(
        cli("train", "--dataset", folder, "--model", "scratch", "--output", tmp_path / "new"), "train.tsv:1"
    )
    odd = cli("train", "--output", tmp_path / "new", "--dataset", "toy", "--model", "scratch",
              "--set", "text.a\nb\u202e=1")  # fmt: skip
    refused(odd, r"unknown key 'text.a\nb\u202e'")
    shutil.copytree(toy_run, tmp_path / "run")
    record = json.loads((toy_run / "run.json").read_text("utf-8"))
    (tmp_path / "run" / "run.json").write_text(json.dumps({**record, "span_length": float("nan")}))
    refused(
        cli("rank", tmp_path / "run", "--head", "france", "--relation", "capital"), "'span_length' is nan"
    )
