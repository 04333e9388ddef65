from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from conftest import Cli, refused, without_digests

from kgmlm import digests
from kgmlm.config import StructureSettings
from kgmlm.embedding import train_structure
from kgmlm.kg import RunError
from kgmlm.runs import STRUCTURE, VECTORS, Run, open_run
from kgmlm.signals.structure import Structure


def changed(path: Path) -> None:
    """One bit in the midst of a file: its length stays."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def test_every_file_that_a_run_needs_has_a_digest(toy_vector_run: Path) -> None:
    record = json.loads((toy_vector_run / "run.json").read_text())
    kept = set(record["files"]) | {
        f"model/{name}" for name in digests.read_manifest(toy_vector_run / "model") or ()
    }
    there = {p.relative_to(toy_vector_run).as_posix() for p in toy_vector_run.rglob("*") if p.is_file()}
    assert there - kept == {"run.json", "metrics.jsonl", "model/kgmlm.json"}
    assert kept <= there
    open_run(toy_vector_run, verify=True)


def test_a_cut_or_missing_file_is_named_on_opening(toy_vector_run: Path, tmp_path: Path) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    shutil.copytree(toy_vector_run, whole)
    shutil.copytree(whole, run)
    names = [
        p.relative_to(run)
        for p in run.rglob("*")
        if p.is_file() and p.name not in ("run.json", "metrics.jsonl")
    ]
    assert Path("model/tokenizer_config.json") in names
    for name in names:
        for damage in (
            lambda p: p.write_bytes(b""),
            lambda p: p.write_bytes(p.read_bytes()[:-9]),
            Path.unlink,
        ):
            damage(run / name)
            with pytest.raises(RunError, match=rf"{name} (has|is missing|is damaged)") as caught:
                open_run(run).ranker("cpu")
            assert "\n" not in str(caught.value)
            shutil.copy(whole / name, run / name)
    open_run(run, verify=True).ranker("cpu")


def test_changed_contents_are_found_when_asked_for(toy_vector_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_vector_run, run)
    for name in ("model/model.safetensors", f"model/{VECTORS}", "graph/triples.parquet", "config.toml"):
        before = (run / name).read_bytes()
        changed(run / name)
        with pytest.raises(RunError):
            open_run(run, verify=True)
        (run / name).write_bytes(before)
    changed(run / "model" / "model.safetensors")
    open_run(run).ranker("cpu")  # its size has not changed
    with pytest.raises(RunError, match=r"model\.safetensors has other contents than were written; restore"):
        open_run(run, verify=True)


def test_a_run_without_digests_opens_but_cannot_be_verified(toy_run: Path, tmp_path: Path) -> None:
    shutil.copytree(toy_run, tmp_path / "run")
    run = without_digests(tmp_path / "run")
    opened = open_run(run)
    opened.save_model(opened.ranker("cpu"))
    with pytest.raises(RunError, match="cannot be verified: an older kgmlm wrote it"):
        open_run(run, verify=True)


def test_the_command_verifies(cli: Cli, toy_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    rank = ("rank", run, "--head", "france", "--relation", "capital", "-k", "1", "--verify")
    assert cli(*rank).returncode == 0
    changed(run / "model" / "model.safetensors")
    for command in (rank, ("evaluate", run, "--verify")):
        refused(cli(*command), "model.safetensors has other contents than were written")


@pytest.fixture
def fused(toy_run: Path, tmp_path: Path) -> tuple[Run, Structure]:
    shutil.copytree(toy_run, tmp_path / "run")
    run = open_run(tmp_path / "run")
    structure = train_structure(run.graph, StructureSettings(dimension=4, epochs=1))
    return run.save_structure(structure, torch.ones(len(run.graph.relations), 2), minutes=1), structure


def test_a_file_that_is_replaced_by_itself_is_checked(fused: tuple[Run, Structure]) -> None:
    run, structure = fused
    open_run(run.path, verify=True)
    changed(run.path / STRUCTURE)
    with pytest.raises(RunError, match=r"structure\.safetensors has other contents"):
        open_run(run.path, verify=True)
    (run.path / STRUCTURE).unlink()
    for act in (
        lambda: open_run(run.path).ranker("cpu"),
        lambda: open_run(run.path).lend_structure(run.graph),
    ):
        with pytest.raises(RunError, match=r"structure\.safetensors is missing.*kgmlm fuse .*--overwrite"):
            act()
    run.save_structure(structure, torch.ones(len(run.graph.relations), 2))
    open_run(run.path, verify=True)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("moment", [1, 2, 3])
def test_a_kill_while_a_file_is_replaced_leaves_a_good_run(
    fused: tuple[Run, Structure], monkeypatch: pytest.MonkeyPatch, first: bool, moment: int
) -> None:
    """Before its digest is known, between that and its replacement, and before the old digest goes."""
    run, _ = fused
    if first:
        (run.path / STRUCTURE).unlink()
        run.update(files={k: v for k, v in run.record["files"].items() if k != STRUCTURE})
    other = train_structure(run.graph, StructureSettings(dimension=8, epochs=1))
    weights_R2 = torch.ones(len(run.graph.relations), 2)

    class Killed(BaseException):
        pass

    changes: list[str] = []
    replaced = os.replace

    def replace(source: Path, target: Path) -> None:
        if Path(target).parent == run.path:
            changes.append(Path(target).name)
            if len(changes) == 1 + moment:  # the first leaves out a rescoring
                raise Killed
        replaced(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(Killed):
        run.save_structure(other, weights_R2)
    monkeypatch.undo()
    assert changes[1:] == ["run.json", STRUCTURE, "run.json"][:moment]
    opened = open_run(run.path, verify=True)
    opened.ranker("cpu")
    opened.save_structure(other, weights_R2)
    assert len(open_run(run.path, verify=True).record["files"][STRUCTURE]) == 1


def test_weights_of_vectors_are_replaced_with_their_digest(toy_vector_run: Path, tmp_path: Path) -> None:
    shutil.copytree(toy_vector_run, tmp_path / "run")
    run = open_run(tmp_path / "run")
    ranker = run.ranker("cpu")
    ranker.mixture = ranker.mixture.evenly("vector", 0.125)
    run.save_weights(ranker, command="weigh")
    again = open_run(run.path, verify=True).ranker("cpu")
    assert again.mixture.averages["vector"] == 0.125
