"""Pieces of work, made here, in processes and by Ray."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli, refused
from raying import LISTED, Files

import kgmlm
from kgmlm import workers
from kgmlm.kg import ConfigError, DataError
from kgmlm.watching import Watcher
from kgmlm.workers import check_engine, made_here, made_in_processes


@pytest.mark.slow
def test_pieces_are_made_here_and_in_processes(tmp_path: Path) -> None:
    work = Files(tmp_path)
    assert list(made_here(work, [3, 1], Watcher())) == [30, 10]
    assert sorted(made_in_processes(work, [4, 5, 6], 2)) == [40, 50, 60]
    assert work.made() == {f"made-{n}": "x" for n in (1, 3, 4, 5, 6)}
    with pytest.raises(DataError, match="7 cannot be made"):
        list(made_in_processes(Files(tmp_path, refused=(7,)), [7, 8], 2))


def test_what_no_engine_can_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="local or ray, not spark"):
        check_engine("spark", None)
    with pytest.raises(ConfigError, match="goes with --engine ray"):
        check_engine("local", "here:1")
    monkeypatch.setattr(workers, "find_spec", lambda name: object())
    check_engine("ray", "10.0.0.1:6379")
    check_engine("ray", "[::1]:6379")
    for address in ("here", "here:", ":1", "here:0", "here:99999", "here:x", "ray://here:10001"):
        with pytest.raises(ConfigError, match="is given as HOST:PORT"):
            check_engine("ray", address)
    monkeypatch.setattr(workers, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'kgmlm\[ray\]'"):
        check_engine("ray", None)


def test_an_address_where_no_cluster_is_is_a_sentence(
    cli: Cli, toy_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_spec("ray") is None:
        pytest.skip("the engine is installed by kgmlm[ray]")
    monkeypatch.setattr(workers, "PATIENCE", 5.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        asked = (
            "complete",
            toy_run,
            "--output",
            tmp_path / "new",
            "-q",
            "--known",
            "valid",
            "--engine",
            "ray",
        )
        refused(cli(*asked, "--address", f"127.0.0.1:{port}"), f"no Ray cluster answers at 127.0.0.1:{port}")
    refused(cli(*asked, "--address", f"127.0.0.1:{port}"), "refused")
    assert not (tmp_path / "new").exists()


@pytest.fixture(scope="module")
def said(toy_run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """What came of work on a cluster of one node, which a process of its own had begun; and where."""
    if find_spec("ray") is None:
        pytest.skip("the engine is installed by kgmlm[ray]")
    folder = tmp_path_factory.mktemp("ray")
    here = Path(__file__).parent
    environment = {
        **os.environ, "PYTHONPATH": f"{here}:{here.parent}", "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", "import raying; raying.main()", folder, toy_run],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found, folder


@pytest.mark.slow
def test_ray_lists_what_one_process_does(
    said: tuple[dict[str, Any], Path], toy_run: Path, tmp_path: Path
) -> None:
    found, folder = said
    here = kgmlm.complete(toy_run, tmp_path / "here", device="cpu", **LISTED, progress=False)
    assert (tmp_path / "here").read_bytes() == (folder / "there").read_bytes()
    assert found["asked"] == found["queries"] == here["queries"]


@pytest.mark.slow
def test_what_rays_workers_lose_others_make(said: tuple[dict[str, Any], Path]) -> None:
    found, folder = said
    assert found["sizes"] == [n * 10 for n in range(7)]
    work = Files(folder / "lost")
    assert work.made() == {f"made-{n}": "x" for n in range(7)}, "nothing is lost, nothing made twice"
    assert 2 < len(list(work.folder.glob("begun-*"))) <= 4, "two, and those in their place"


@pytest.mark.slow
def test_what_is_raised_in_rays_workers_is_raised_here(said: tuple[dict[str, Any], Path]) -> None:
    found, _ = said
    assert found["refused"] == ["DataError", "1 cannot be made"]
    kind, why = found["ending"]
    assert kind == "RunError"
    assert re.match(r"\d workers ended one after the other .*; the same command continues", why)
