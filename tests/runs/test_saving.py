from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import without_digests
from safetensors.torch import load_file, save_file

from kgmlm.core.errors import RunError
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.ranking.ranker import Ranker
from kgmlm.runs.models import NAMES, save_model_files
from kgmlm.runs.opened import open_folder, tuned_ranker
from kgmlm.signals.vector import Vector
from kgmlm.text.tokenization import SpanTokenizer


@pytest.mark.parametrize("vectors", [b"x", None])
def test_damaged_entity_vectors_are_one_sentence(
    toy_vector_run: Path, tmp_path: Path, vectors: bytes | None
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(toy_vector_run, copy)
    without_digests(copy)
    path = copy / "model" / "entity_vectors.safetensors"
    if vectors is None:
        save_file({"vectors": torch.zeros(3, 32)}, path)
    else:
        path.write_bytes(vectors)
    message = "cannot be read" if vectors else r"shape \(3, 32\)"
    with pytest.raises(RunError, match=message) as caught:
        tuned_ranker(open_folder(copy), "cpu")
    assert "\n" not in str(caught.value)


def test_vectors_of_another_type_or_against_the_settings_are_refused(
    toy_vector_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_vector_run, run)
    without_digests(run)
    path = run / Vector.file
    whole = path.read_bytes()
    save_file({"vectors": load_file(path)["vectors"].double()}, path)
    with pytest.raises(RunError, match=r"cannot be read: its vectors are (not float32|of type F64)"):
        tuned_ranker(open_folder(run), "cpu")
    path.write_bytes(whole)
    config = run / "config.toml"
    config.write_text(config.read_text().replace("enabled = true", "enabled = false"))
    with pytest.raises(RunError, match=r"settings of the run have vector\.enabled = false"):
        tuned_ranker(open_folder(run), "cpu")


def test_a_tokenizer_that_cannot_be_written_is_an_os_error(
    make_ranker: Callable[..., Ranker], tmp_path: Path
) -> None:
    """Its library has an error of its own for a full disk, and for a folder in the way."""
    (tmp_path / "model" / "tokenizer.json").mkdir(parents=True)
    ranker = make_ranker()
    with pytest.raises(OSError, match="cannot be written"):
        save_model_files(ranker.reader.model, ranker.reader.tokenizer, tmp_path / "model")


def test_a_run_keeps_the_tokens_of_its_names(
    toy: KnowledgeGraph, toy_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tuned_ranker(open_folder(toy_run))
    made = expected.reader.tokenizer.candidates(
        toy.entities.column("surface"), expected.reader.vocabulary.span_length, False
    )
    monkeypatch.setattr(SpanTokenizer, "candidates", lambda *args: pytest.fail("tokenized again"))
    result = tuned_ranker(open_folder(toy_run)).reader.names
    for name in ("token_ids", "offsets", "truncated_N"):
        assert np.array_equal(getattr(result, name), getattr(made, name))
    monkeypatch.undo()
    older = tmp_path / "older"  # an older version kept none
    shutil.copytree(toy_run, older)
    without_digests(older)
    (older / NAMES).unlink()
    assert np.array_equal(tuned_ranker(open_folder(older)).reader.names.token_ids, made.token_ids)


@pytest.mark.parametrize(
    "damage",
    [
        lambda t: t | {"tokens": t["tokens"] + 10**6},
        lambda t: t | {"tokens": t["tokens"] - 10**6},
        lambda t: t | {"offsets": t["offsets"][:-1]},
        lambda t: t | {"offsets": t["offsets"].flip(0)},
        lambda t: {"tokens": t["tokens"]},
    ],
)
def test_damaged_tokens_of_names_are_a_sentence(
    toy_run: Path, tmp_path: Path, damage: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    without_digests(run)
    save_file(damage(load_file(run / NAMES)), run / NAMES)
    with pytest.raises(RunError, match="name_tokens"):
        tuned_ranker(open_folder(run))
