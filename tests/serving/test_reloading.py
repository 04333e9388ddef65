"""A service that opens its run again when that has changed."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import kgmlm
from kgmlm.core.errors import RunError
from kgmlm.serving.serve import Reloading, service

ASKED = {"queries": [{"head": "Iceland", "relation": "located_in"}], "k": 1}
NEW = [("Iceland", "located_in", "europe")]


@pytest.fixture
def run(toy_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(toy_run, tmp_path / "run")


def until(holds: Callable[[], bool]) -> bool:
    """Wait for something that another thread does; a minute is long enough for any machine."""
    for _ in range(600):
        if holds():
            return True
        time.sleep(0.1)
    return False


def test_an_updated_run_is_answered_from_and_no_request_is_dropped(run: Path) -> None:
    told: list[str] = []
    app = Reloading(service(run), lambda: service(run), told.append, seconds=0.05)
    codes: list[int] = []
    with TestClient(app, "http://127.0.0.1") as client:
        assert client.post("/rank", json=ASKED).status_code == 422
        stop = threading.Event()

        def ask() -> None:
            while not stop.is_set():
                body = {"queries": [{"head": "France", "relation": "capital"}], "k": 1}
                codes.append(client.post("/rank", json=body).status_code)

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            kgmlm.update(run, NEW, progress=False)
            assert until(lambda: client.post("/rank", json=ASKED).status_code == 200)
        finally:
            stop.set()
            asking.join()
    assert set(codes) == {200}
    assert told == ["the run has changed and is open again"]


def test_a_run_that_cannot_be_opened_is_served_as_it_was(run: Path) -> None:
    told: list[str] = []

    def fails() -> object:
        raise RunError("it is damaged")

    app = Reloading(service(run), fails, told.append, seconds=0.05)  # type: ignore[arg-type]
    with TestClient(app, "http://127.0.0.1") as client:
        kgmlm.update(run, NEW, progress=False)
        assert until(lambda: bool(told))
        time.sleep(0.3)
        body = {"queries": [{"head": "France", "relation": "capital"}], "k": 1}
        assert client.post("/rank", json=body).status_code == 200
    assert told == ["the run has changed and cannot be opened, so the old one is served: it is damaged"]
