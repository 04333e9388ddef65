"""The command that trains a structural model beside a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import Cli, refused

from kgmlm.runs import STRUCTURE, open_run


def test_a_run_is_fused_by_the_command(cli: Cli, toy_vector_run: Path, toy_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_vector_run, run)
    refused(cli("evaluate", run, "--scores", "structure"), "no structural model", "kgmlm fuse")
    refused(cli("fuse", run, "--from", run), "no structural model")
    settings = ("--set", "structure.dimension=8", "--set", "structure.batch_size=16")
    done = cli("fuse", run, *settings, "--json", "-q")
    assert done.returncode == 0, done.stderr
    valid = json.loads(done.stdout)
    refused(cli("fuse", run, *settings), "has a structural model already", f"--from {run}", "--overwrite")
    refused(cli("fuse", run, "--overwrite", "--set", "vector.enabled=true"), "not by vector.enabled")
    record = json.loads((run / "run.json").read_text("utf-8"))
    assert record["structure"]["valid"] == valid
    assert record["structure"]["settings"]["dimension"] == 8
    assert "kgmlm fuse" in record["structure"]["command"]
    reports = {}
    for scores in ("all", "text", "structure"):
        done = cli("evaluate", run, "--split", "valid", "--scores", scores, "--json", "-q")
        assert done.returncode == 0, done.stderr
        reports[scores] = json.loads(done.stdout)
    assert reports["all"]["metrics"]["mrr"] == pytest.approx(valid["mrr"])
    assert reports["text"]["metrics"]["mrr"] == pytest.approx(valid["mrr_text"])
    assert reports["structure"]["metrics"]["mrr"] != pytest.approx(valid["mrr_text"])
    assert reports["structure"]["metrics"]["mrr"] == pytest.approx(valid["mrr_structure"])
    assert reports["text"]["structure"] is None
    assert reports["all"]["structure"]["settings"]["dimension"] == 8
    base = ("rank", run, "--relation", "capital", "--head", "france", "--json", "-k", "3")
    (row, *_) = [json.loads(x) for x in cli(*base, "--explain").stdout.splitlines()]
    assert {"vector", "structure"} <= row["parts"].keys()
    assert "; structure " in cli(*base[:-3], "--explain").stdout
    other = tmp_path / "other"
    shutil.copytree(toy_run, other)
    (other / STRUCTURE).write_bytes(b"")
    refused(cli("fuse", other, "--from", run), "already", "--overwrite")
    done = cli("fuse", other, "--from", run, "--overwrite")
    assert "validation MRR" in done.stdout, done.stderr
    assert open_run(other).record["structure"]["settings"] == record["structure"]["settings"]
    (other / STRUCTURE).write_bytes(b"")
    refused(cli("rank", other, *base[2:]), STRUCTURE, "has 0 bytes instead of", "kgmlm fuse")
