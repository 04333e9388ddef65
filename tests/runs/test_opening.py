"""A run's model, opened."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import without_digests

from kgmlm.core.errors import ModelError, RunError
from kgmlm.runs.opened import open_folder, tuned_ranker


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(toy_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    without_digests(run)
    path = run / "model" / "tokenizer.json"
    tokenizer = json.loads(path.read_text("utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.__getitem__)] = 100_000
    path.write_text(json.dumps(tokenizer), "utf-8")
    with pytest.raises(ModelError, match="has a token 100000, its model 400"):
        tuned_ranker(open_folder(run), "cpu")


def test_a_device_that_holds_no_data_is_refused(toy_run: Path) -> None:
    with pytest.raises(RunError, match="the device 'meta' cannot be used"):
        tuned_ranker(open_folder(toy_run), "meta")
