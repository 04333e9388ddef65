from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from conftest import Cli, refused, without_digests

from kgmlm.core import digests
from kgmlm.core.config import KGESettings
from kgmlm.core.errors import RunError
from kgmlm.runs.folder import RunFolder
from kgmlm.runs.opened import lend, open_folder, tuned_ranker, untuned_ranker
from kgmlm.runs.tuned import MIXTURE, TunedWeights
from kgmlm.runs.writing import save_model, save_signal, save_tuned, write_record
from kgmlm.signals.kge import KGE
from kgmlm.signals.vector import Vector


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
    open_folder(toy_vector_run, verify=True)


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
                tuned_ranker(open_folder(run), "cpu")
            assert "\n" not in str(caught.value)
            shutil.copy(whole / name, run / name)
    tuned_ranker(open_folder(run, verify=True), "cpu")


def test_changed_contents_are_found_when_asked_for(toy_vector_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_vector_run, run)
    for name in ("model/model.safetensors", Vector.file, "graph/triples.arrow", "config.toml"):
        before = (run / name).read_bytes()
        changed(run / name)
        with pytest.raises(RunError):
            open_folder(run, verify=True)
        (run / name).write_bytes(before)
    changed(run / "model" / "model.safetensors")
    tuned_ranker(open_folder(run), "cpu")  # its size has not changed
    with pytest.raises(RunError, match=r"model\.safetensors has other contents than were written; restore"):
        open_folder(run, verify=True)


def test_a_run_without_digests_opens_but_cannot_be_verified(toy_run: Path, tmp_path: Path) -> None:
    shutil.copytree(toy_run, tmp_path / "run")
    run = without_digests(tmp_path / "run")
    opened = open_folder(run)
    opened = save_model(opened, tuned_ranker(opened, "cpu"))
    with pytest.raises(RunError, match=r"cannot be verified: its run\.json has no digests"):
        open_folder(run, verify=True)


def test_the_command_verifies(cli: Cli, toy_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    rank = ("rank", run, "--head", "france", "--relation", "capital", "-k", "1", "--verify")
    assert cli(*rank).returncode == 0
    changed(run / "model" / "model.safetensors")
    for command in (rank, ("evaluate", run, "--verify")):
        refused(cli(*command), "model.safetensors has other contents than were written")


@pytest.fixture
def fused(toy_run: Path, tmp_path: Path) -> tuple[RunFolder, KGE]:
    shutil.copytree(toy_run, tmp_path / "run")
    run = open_folder(tmp_path / "run")
    kge = KGE.fit(run.graph, KGESettings(dimension=4, epochs=1))
    run = save_signal(run, kge, minutes=1)
    run = save_tuned(run, TunedWeights(run.tuned.mixture.evenly("kge", 1.0)))
    return run, kge


def test_a_file_that_is_replaced_by_itself_is_checked(fused: tuple[RunFolder, KGE]) -> None:
    run, kge = fused
    open_folder(run.path, verify=True)
    changed(run.path / KGE.file)
    with pytest.raises(RunError, match=r"kge\.safetensors has other contents"):
        open_folder(run.path, verify=True)
    (run.path / KGE.file).unlink()
    for act in (
        lambda: tuned_ranker(open_folder(run.path), "cpu"),
        lambda: lend(open_folder(run.path), "kge", run.graph),
    ):
        with pytest.raises(RunError, match=r"kge\.safetensors is missing.*--add kge --overwrite"):
            act()
    run = save_signal(run, kge)
    open_folder(run.path, verify=True)


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("moment", [2, 3, 4])
def test_a_kill_while_a_file_is_replaced_leaves_a_good_run(
    fused: tuple[RunFolder, KGE], monkeypatch: pytest.MonkeyPatch, first: bool, moment: int
) -> None:
    """Before its digest is known, between that and its replacement, and before the old digest goes."""
    run, _ = fused
    if first:
        (run.path / KGE.file).unlink()
        run = write_record(run, files={k: v for k, v in run.record["files"].items() if k != KGE.file})
    other = KGE.fit(run.graph, KGESettings(dimension=8, epochs=1))

    class Killed(BaseException):
        pass

    changes: list[str] = []
    replaced = os.replace

    def replace(source: Path, target: Path) -> None:
        changes.append(Path(target).name)
        if len(changes) == moment:
            raise Killed
        replaced(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(Killed):
        run = save_signal(run, other)
    monkeypatch.undo()
    assert changes == ["kge.safetensors", "run.json", "kge.safetensors", "run.json"][:moment]
    opened = open_folder(run.path, verify=True)
    untuned_ranker(opened, "cpu")
    opened = save_signal(opened, other)
    assert len(open_folder(run.path, verify=True).record["files"][KGE.file]) == 1


def test_what_was_chosen_is_replaced_with_its_digest(toy_vector_run: Path, tmp_path: Path) -> None:
    shutil.copytree(toy_vector_run, tmp_path / "run")
    run = open_folder(tmp_path / "run")
    run = save_tuned(run, TunedWeights(run.tuned.mixture.evenly("vector", 0.125)))
    again = tuned_ranker(open_folder(run.path, verify=True), "cpu")
    assert again.mixture.averages["vector"] == 0.125
    (run.path / MIXTURE).write_text("{}")
    with pytest.raises(RunError, match=r"mixture\.json has 2 bytes instead"):
        tuned_ranker(open_folder(run.path), "cpu")
