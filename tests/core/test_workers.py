"""Pieces of work, made here and by Ray."""

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
from raying import ASKED, EVALUATED, LISTED, Files, nodes, report_of

import kgmlm
from kgmlm.core import workers
from kgmlm.core.errors import ConfigError, DataError
from kgmlm.core.progress import Watcher
from kgmlm.core.workers import Workers, made_here


def test_pieces_are_made_here(tmp_path: Path) -> None:
    work, done = Files(tmp_path), list[int]()
    assert list(made_here(work, [3, 1], Watcher(), done.append)) == [30, 10]
    assert done == [4, 2], "the sizes of the pieces"
    assert work.made() == {"made-1": "x", "made-3": "x"}
    with pytest.raises(DataError, match="7 cannot be made"):
        list(made_here(Files(tmp_path, refused=(7,)), [7, 8], Watcher()))


def test_who_cannot_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="--workers go with --ray"):
        Workers(workers=2)
    monkeypatch.setattr(workers, "find_spec", lambda name: object())
    assert Workers("local", 3).count == 3
    assert Workers("local").count >= 1
    Workers("10.0.0.1:6379")
    Workers("[::1]:6379")
    with pytest.raises(ConfigError, match="at least one worker"):
        Workers("local", 0)
    for address in ("here", "here:", ":1", "here:0", "here:99999", "here:x", "ray://here:10001"):
        with pytest.raises(ConfigError, match="is given as HOST:PORT"):
            Workers(address)
    with monkeypatch.context() as patched:
        patched.setenv("WORLD_SIZE", "2")
        with pytest.raises(ConfigError, match="share the work already"):
            Workers("local")
    monkeypatch.setattr(workers, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'kgmlm\[ray\]'"):
        Workers("local")


def test_an_address_where_no_cluster_is_is_a_sentence(
    cli: Cli, toy_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_spec("ray") is None:
        pytest.skip("the engine is installed by kgmlm[ray]")
    monkeypatch.setattr(workers, "PATIENCE", 5.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        asked = ("complete", toy_run, "--output", tmp_path / "new", "-q", "--known", "valid")
        refused(cli(*asked, "--ray", f"127.0.0.1:{port}"), f"no Ray cluster answers at 127.0.0.1:{port}")
    refused(cli(*asked, "--ray", f"127.0.0.1:{port}"), "refused")
    assert not (tmp_path / "new").exists()


@pytest.fixture(scope="module")
def by_ray(toy_run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """What came of work on a cluster of two nodes, by a process of its own; and where."""
    if find_spec("ray") is None:
        pytest.skip("the engine is installed by kgmlm[ray]")
    folder = tmp_path_factory.mktemp("ray")
    here = Path(__file__).parent.parent
    environment = {
        **os.environ, "PYTHONPATH": f"{here}:{here.parent}", "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }  # fmt: skip
    with socket.create_server(("127.0.0.2", 0)) as free:
        port = free.getsockname()[1]
    with nodes(folder, port, environment):
        done = subprocess.run(
            [sys.executable, "-c", "import raying; raying.main()", folder, toy_run, f"127.0.0.2:{port}"],
            env=environment, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    parsed: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return parsed, folder


@pytest.mark.slow
def test_ray_lists_what_one_process_does(
    by_ray: tuple[dict[str, Any], Path], toy_run: Path, tmp_path: Path
) -> None:
    result, folder = by_ray
    here = kgmlm.complete(toy_run, tmp_path / "here", device="cpu", **LISTED, progress=False)
    assert (tmp_path / "here").read_bytes() == (folder / "there").read_bytes()
    assert result["asked"] == result["queries"] == here["queries"]


@pytest.mark.slow
def test_ray_evaluates_and_ranks_as_one_process_does(
    by_ray: tuple[dict[str, Any], Path], toy_run: Path
) -> None:
    result, _ = by_ray
    alone = report_of(kgmlm.evaluate(toy_run, device="cpu", progress=False, **EVALUATED))
    assert result["report"] == json.loads(json.dumps(alone))
    ranked = kgmlm.open_run(toy_run, device="cpu").rank(ASKED, k=3).to_dict("records")
    assert result["ranked"] == json.loads(json.dumps(ranked))


@pytest.mark.slow
def test_what_rays_workers_lose_others_make(by_ray: tuple[dict[str, Any], Path]) -> None:
    result, folder = by_ray
    assert result["sizes"] == [n * 10 for n in range(7)]
    work = Files(folder / "lost")
    assert work.made() == {f"made-{n}": "x" for n in range(7)}, "nothing is lost, nothing made twice"
    begun = [p.name.rpartition("-")[2] for p in work.folder.glob("begun-*")]
    assert 2 < len(begun) <= 4, "two, and those in their place"
    assert set(begun) == {"127.0.0.2", "127.0.0.3"}


@pytest.mark.slow
def test_what_is_raised_in_rays_workers_is_raised_here(by_ray: tuple[dict[str, Any], Path]) -> None:
    result, _ = by_ray
    assert result["refused"] == ["DataError", "1 cannot be made"]
    kind, why = result["ending"]
    assert kind == "RunError"
    assert re.match(r"\d workers ended one after the other .*; try again with fewer --workers", why)
