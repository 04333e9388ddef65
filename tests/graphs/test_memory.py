from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from conftest import Cli, refused

from kgmlm.core.errors import DataError
from kgmlm.core.files import write_parquet
from kgmlm.core.machine import MEMORY, Memory
from kgmlm.core.tables import triples_of
from kgmlm.graphs import storage
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.storage import CHECKING, check_dataset

ROWS = [(f"entity/{i}", f"relation/{i % 7}", f"entity/{i * 7 % 500}") for i in range(500)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dataset folder, of a size that something is said of."""
    monkeypatch.setattr(storage, "SMALL", 0)
    (tmp_path / "graph").mkdir()
    lines = "".join("\t".join(row) + "\n" for row in ROWS)
    (tmp_path / "graph" / "train.tsv").write_text(lines)
    return tmp_path / "graph"


def test_what_cannot_fit_is_refused_before_anything_is_read(cli: Cli, folder: Path, tmp_path: Path) -> None:
    (folder / "train.tsv").write_text("not a triple\n" * 1000)  # reading it would say so
    train = ("train", "--dataset", folder, "--model", "scratch", "--output", tmp_path / "run")
    for command in (train, ("data", "check", folder)):
        refused(cli(*command, **{MEMORY: "0.1"}), f"{folder} takes about", "there are 0.1", f"{MEMORY}=")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_that_cannot_fit_is_not_evaluated(
    cli: Cli, toy_run: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(cli("evaluate", toy_run, **{MEMORY: "0.5"}), f"{toy_run} takes about", "there are 0.5")
    refused(cli("evaluate", toy_run, "--graph", folder, **{MEMORY: "0.1"}), f"{folder} takes about")
    monkeypatch.setattr(storage, "SMALL", 2**30)
    assert cli("evaluate", toy_run, **{MEMORY: "0.5"}).returncode == 0, "small graphs fit anywhere"


def test_what_may_not_fit_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "memory", lambda: Memory(total=2**40, free=2**27))
    rows: list[str] = []
    check_dataset(folder, CHECKING, rows.append)
    assert len(rows) == 1
    assert "0.1 GiB are free" in rows[0]
    monkeypatch.setattr(storage, "memory", lambda: Memory(total=2**40, free=2**39))
    check_dataset(folder, CHECKING, rows.append)
    monkeypatch.setattr(storage, "memory", lambda: None)
    check_dataset(folder, CHECKING, rows.append)
    assert len(rows) == 1


def test_what_the_refusal_names_is_enough(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEMORY, "0.01")
    with pytest.raises(DataError) as result:
        check_dataset(folder, CHECKING, print)
    monkeypatch.setenv(MEMORY, str(result.value).split(f"{MEMORY}=")[1].split()[0])
    check_dataset(folder, CHECKING, pytest.fail)


def test_the_size_of_a_dataset_goes_by_its_files_or_its_card(folder: Path, toy: KnowledgeGraph) -> None:
    plain = folder / "train.tsv"
    text = storage._text_of(folder)
    assert text == plain.stat().st_size
    data = plain.read_bytes()
    plain.unlink()
    (folder / "train.tsv.gz").write_bytes(gzip.compress(data))
    assert text / 3 < storage._text_of(folder) < 3 * text
    (folder / "train.tsv.gz").unlink()
    write_parquet(folder / "train.parquet", triples_of(ROWS))
    assert storage._text_of(folder) == storage.TRIPLE_BYTES * len(ROWS)
    (folder / "train.parquet").write_bytes(b"PAR1")
    assert storage._text_of(folder) == 0, "reading it says what is wrong"
    triples = sum(map(len, toy.splits.values()))
    assert storage._text_of("toy") == storage.TRIPLE_BYTES * triples + storage.ENTITY_BYTES * len(
        toy.entities
    )
    assert storage._text_of("nothing") == 0
