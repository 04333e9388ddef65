"""The packs in models/: whole, small enough, described, and ready to be asked."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from conftest import Cli

from kgmlm.runs.packs import read_card

MODELS = Path(__file__).parent.parent / "models"
PACKS = sorted(MODELS.glob("*.kgmlm"))


@pytest.mark.parametrize("path", PACKS, ids=lambda path: path.stem)
def test_a_pack_is_small_and_described(path: Path) -> None:
    assert path.stat().st_size < 90_000_000
    assert read_card(path)["dataset"] == path.stem
    assert f"`{path.name}`" in (MODELS / "README.md").read_text("utf-8")
    with zipfile.ZipFile(path) as archive:
        records = [archive.read(name).decode() for name in archive.namelist() if name.endswith("run.json")]
    for record in map(json.loads, records):
        assert not any(word.startswith("/") for word in [*record["command"].split(), record["model"]])


@pytest.mark.slow
def test_a_pack_answers_by_its_name(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KGMLM_CACHE", str(tmp_path))
    monkeypatch.setenv("KGMLM_MODELS", str(MODELS))
    done = cli(
        "rank", "wn18rr", "--head", "guitar", "--relation", "hypernym", "-k", "3", "--rerank", "0", "--json"
    )
    assert done.returncode == 0, done.stderr
    parsed = [json.loads(line) for line in done.stdout.splitlines()]
    assert [parsed[0]["name"], len(parsed)] == ["stringed instrument noun", 3]
