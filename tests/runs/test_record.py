from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import without_digests

from kgmlm.core.errors import KgmlmError
from kgmlm.runs.opened import open_folder, tuned_ranker
from kgmlm.runs.writing import write_record

RECIPE = {"preset": "best", "stages": ["text"]}
RECORD: dict[str, tuple[Any, str]] = {
    "span_length": (0, "'span_length' is 0"),
    "span_length ": (-3, "'span_length' is -3"),
    "span_length  ": ("4", "'span_length' is '4'"),
    "span_length   ": (10**30, "'span_length' is"),
    "span_length    ": (64, "'span_length' is 64, a text has 64 tokens"),
    "softmax_tokens": ([], "'softmax_tokens' is"),
    "softmax_tokens ": ([3, 2], "must increase"),
    "softmax_tokens  ": ([-1], "'softmax_tokens.0' is -1"),
    "softmax_tokens   ": ("all", "'softmax_tokens' is 'all'"),
    "format": ("1", "'format' is '1'"),
    "format ": (0, "'format' is 0"),
    "status": ("done", "'status' is 'done'"),
    "sources": ([], "'sources' is"),
    "dataset": (None, "'dataset' is None"),
    "signals": ({"kge": 7}, "'signals.kge' is 7"),
    "began_from": ({"dataset": "toy"}, "'began_from.model' is missing"),
    "recipe": ({**RECIPE, "seconds": -1}, "'recipe.seconds' is -1"),
    "recipe ": ({**RECIPE, "timed": None}, "'recipe.timed' is None"),
    "spent": ({"kge": -1.0}, "'spent.kge' is -1"),
    "files": ({"config.toml": [{"size": "x"}]}, "'files.config.toml' is"),
}


@pytest.fixture
def run(toy_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(toy_run, tmp_path / "run")
    return tmp_path / "run"


def sentence(run: Path) -> str:
    with pytest.raises(KgmlmError) as caught:
        tuned_ranker(open_folder(run), "cpu")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("case", RECORD)
def test_a_record_that_cannot_be_right_is_one_sentence(run: Path, case: str) -> None:
    value, message = RECORD[case]
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, case.strip(): value}))
    result = sentence(run)
    assert message in result
    assert "run.json is damaged" in result


@pytest.mark.parametrize(
    "missing", ["format", "span_length", "softmax_tokens", "status", "dataset", "sources", "model"]
)
def test_a_record_that_lacks_something_is_one_sentence(run: Path, missing: str) -> None:
    record = json.loads((run / "run.json").read_text())
    del record[missing]
    (run / "run.json").write_text(json.dumps(record))
    assert f"'{missing}' is missing" in sentence(run)


@pytest.mark.parametrize("text", ["", "[]", "7", "{" * 10, "[" * 100_000, '{"a": ' * 100_000, "\ud800"])
def test_a_record_that_is_none_is_one_sentence(run: Path, text: str) -> None:
    (run / "run.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    assert "run.json is damaged" in sentence(run)


def test_softmax_tokens_that_the_model_lacks_are_one_sentence(run: Path) -> None:
    write_record(open_folder(run), softmax_tokens=[5, 10**6])
    assert "'softmax_tokens' has 1000000, the model only" in sentence(run)


@pytest.mark.parametrize("keep", [0, 1, 40, 300])
def test_cut_settings_are_no_defaults(run: Path, keep: int) -> None:
    path = run / "config.toml"
    path.write_text(path.read_text()[:keep])
    assert "config.toml has " in sentence(run)
    without_digests(run)
    assert "config.toml" in sentence(run)
