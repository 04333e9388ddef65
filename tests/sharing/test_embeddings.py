"""Embeddings of a run, as arrays and files, and the entities that are most alike."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import Cli, refused
from safetensors import safe_open

import kgmlm
from kgmlm.core.errors import ConfigError, QueryError
from kgmlm.graphs.entities import EntityTable
from kgmlm.sharing.embeddings import WRITERS, Embeddings
from kgmlm.sharing.options import Embedded
from kgmlm.signals.biencoder import CANDIDATES, Biencoder

REGISTRY = WRITERS


@pytest.fixture(scope="module")
def run(toy_vector_run: Path, tiny_encoder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with embeddings of all kinds."""
    path = shutil.copytree(toy_vector_run, tmp_path_factory.mktemp("runs") / "embedded")
    settings: dict[str, Any] = {
        "kge": {"dimension": 8, "epochs": 5},
        "biencoder": {"encoder": tiny_encoder, "steps": 5, "dimension": 16},
    }
    kgmlm.tune(path, add=["kge", "biencoder"], progress=False, settings=settings)
    return path


@pytest.mark.parametrize(("of", "width"), [("biencoder", 16), ("vector", 32), ("kge", 16)])
def test_each_signal_gives_a_row_per_entity_that_it_knows(run: Path, of: str, width: int) -> None:
    opened = kgmlm.open_run(run, device="cpu")
    result = opened.embeddings(of, progress=False)
    seen = opened.graph.seen_N
    labels = opened.graph.entities.column("label")
    known = [label for label, there in zip(labels, seen, strict=True) if there or of != "kge"]
    assert (result.of, result.labels) == (of, known)
    assert result.vectors.shape == (len(known), width)
    assert result.vectors.dtype == np.float32
    if of != "kge":
        np.testing.assert_allclose(np.linalg.norm(result.vectors, axis=1), 1, atol=1e-3)


def test_the_score_of_complex_comes_from_its_embeddings(run: Path) -> None:
    opened = kgmlm.open_run(run, device="cpu", scores="kge")
    entities = opened.embeddings("kge", progress=False)
    relations = opened.embeddings("kge", relations=True, progress=False)
    best = opened.rank([("france", "capital", None)], k=3)
    assert relations.labels[len(relations) // 2 :] == [
        f"{x} (inverse)" for x in relations.labels[: len(relations) // 2]
    ]

    def complex_of(result: Embeddings, label: str) -> Any:
        real, imaginary = np.split(result.vectors[result.labels.index(label)], 2)
        return real + 1j * imaginary

    h, r = complex_of(entities, "france"), complex_of(relations, "capital")
    for label, score in zip(best["entity"], best["score"], strict=True):
        by_hand = (h * r * complex_of(entities, label).conj()).real.sum()
        assert by_hand == pytest.approx(score, abs=1e-3)


def read(path: Path, names: list[str]) -> tuple[Any, Any, Any]:
    """Labels, names and vectors of a file; word2vec's format has no names."""
    if path.suffix == ".parquet":
        table = pd.read_parquet(path)
        return table["label"], table["name"], np.stack(list(table["vector"]))
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["labels"], arrays["names"], arrays["vectors"]
    first, *lines = path.read_text("utf-8").splitlines()
    rows = [line.split(" ") for line in lines]
    assert first == f"{len(rows)} {len(rows[0]) - 1}"
    return [row[0] for row in rows], names, np.array([row[1:] for row in rows], np.float32)


@pytest.mark.parametrize("suffix", sorted(WRITERS))
def test_a_file_has_them_all(run: Path, tmp_path: Path, cli: Cli, suffix: str) -> None:
    path = tmp_path / f"entities{suffix}"
    done = cli("embeddings", run, "--of", "kge", "--output", path, "-q")
    assert done.returncode == 0, done.stderr
    result = kgmlm.embeddings(run, "kge", progress=False)
    assert f"{len(result)} embeddings by kge, 16 numbers each" in done.stdout
    labels, names, vectors = read(path, result.names)
    assert list(labels) == result.labels
    assert list(names) == result.names
    np.testing.assert_allclose(vectors, result.vectors, rtol=1e-5, atol=1e-6)


def test_a_label_with_spaces_is_a_word_of_word2vec(tmp_path: Path) -> None:
    values = Embeddings("kge", ["New York", " "], ["", ""], np.zeros((2, 2), np.float32))
    lines = values.save(tmp_path / "a.txt").read_text().splitlines()
    assert lines == ["2 2", "New_York 0 0", "_ 0 0"]


@pytest.mark.parametrize("of", ["biencoder", "vector", "kge"])
def test_the_most_similar_have_the_highest_cosine(
    run: Path, of: Embedded, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgmlm.sharing.embeddings.ENTITY_BATCH", 7)
    result = kgmlm.embeddings(run, of, progress=False)
    unit = result.vectors / np.linalg.norm(result.vectors, axis=1, keepdims=True)
    at = result.labels.index("france")
    cosines = np.delete(unit @ unit[at], at)
    best = kgmlm.similar(run, "France", k=4, of=of)
    assert list(best.columns) == ["entity", "name", "cosine"]
    np.testing.assert_allclose(best["cosine"], np.sort(cosines)[::-1][:4], atol=1e-5)
    assert "france" not in set(best["entity"])
    done = cli("similar", run, "france", "-k", "4", "--of", of, "--json")
    assert [row["entity"] for row in json.loads(done.stdout)] == list(best["entity"])
    assert "most similar to france" in cli("similar", run, "france", "--of", of).stdout


def test_an_entity_that_was_added_has_one_by_its_text(run: Path) -> None:
    opened = kgmlm.open_run(run, device="cpu").with_entities(EntityTable(["x"], ["Wales"], ["a country"]))
    assert len(opened.similar("Wales", 3)) == 3
    with pytest.raises(QueryError, match="has no embedding by kge"):
        opened.similar("Wales", 3, of="kge")
    assert "x" in opened.embeddings("vector", progress=False).labels


def test_a_pack_has_no_candidates_and_an_unpacked_run_has_them(run: Path, tmp_path: Path) -> None:
    pack = kgmlm.pack(run, tmp_path / "run.kgmlm", onnx=False, progress=False)
    with zipfile.ZipFile(pack) as archive:
        (tmp_path / "packed").write_bytes(archive.read(Biencoder.file))
    with safe_open(tmp_path / "packed", "numpy") as file:
        assert not [name for name in file.keys() if name.startswith(CANDIDATES)]  # noqa: SIM118
    unpacked = kgmlm.unpack(pack, tmp_path / "new")
    with safe_open(unpacked.path / Biencoder.file, "numpy") as file:
        kept = file.get_tensor(CANDIDATES)
    np.testing.assert_array_equal(unpacked.embeddings("biencoder", progress=False).vectors, kept)
    before = kgmlm.embeddings(run, "biencoder", progress=False).vectors
    assert (before * kept).sum(1).min() > 0.99


def test_what_is_not_there_is_told(run: Path, toy_run: Path, tmp_path: Path, cli: Cli) -> None:
    with pytest.raises(ConfigError, match=r"the run has no embeddings$"):
        kgmlm.embeddings(toy_run, progress=False)
    with pytest.raises(ConfigError, match="--of is biencoder or vector or kge, not 'types'"):
        kgmlm.embeddings(run, "types", progress=False)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="has no embeddings of relations by vector"):
        kgmlm.embeddings(run, "vector", relations=True, progress=False)
    refused(cli("similar", run, "atlantis"), "atlantis")
    refused(cli("embeddings", run, "--output", tmp_path / "a.csv", "-q"), "ends in .parquet, .npz, .txt")
