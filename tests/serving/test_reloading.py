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


def test_new_probabilities_are_noticed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgmlm.prediction.calibration.LEAST", 2)  # the toy graph has few validation triples
    told: list[str] = []
    app = Reloading(service(run), lambda: service(run), told.append, seconds=0.05)
    body = {"triples": [{"head": "france", "relation": "capital", "tail": "paris"}]}
    with TestClient(app, "http://127.0.0.1") as client:
        assert client.post("/classify", json=body).status_code == 409
        kgmlm.calibrate(run, progress=False)
        assert until(lambda: client.post("/classify", json=body).status_code == 200)


def test_judgments_are_kept_after_an_update(run: Path) -> None:
    with TestClient(service(run), "http://127.0.0.1") as client:
        kgmlm.update(run, NEW, progress=False)
        judged = {"head": "france", "relation": "capital", "tail": "paris", "label": 1}
        assert client.post("/feedback", json=judged).status_code == 201
    assert (run / "feedback.jsonl").read_text().count("\n") == 1


def test_the_server_can_end_while_a_run_is_opened(run: Path) -> None:
    opening, go_on = threading.Event(), threading.Event()

    def slow() -> object:
        opening.set()
        go_on.wait(60)
        return service(run)

    app = Reloading(service(run), slow, lambda said: None, seconds=0.05)  # type: ignore[arg-type]
    with TestClient(app, "http://127.0.0.1"):
        kgmlm.update(run, NEW, progress=False)
        assert opening.wait(60)
    go_on.set()  # the server has ended before


@pytest.mark.parametrize("error", [RunError("it is damaged"), MemoryError("two models do not fit")])
def test_a_run_that_cannot_be_opened_is_served_as_it_was(run: Path, error: Exception) -> None:
    told: list[str] = []

    def fails() -> object:
        raise error

    app = Reloading(service(run), fails, told.append, seconds=0.05)  # type: ignore[arg-type]
    with TestClient(app, "http://127.0.0.1") as client:
        kgmlm.update(run, NEW, progress=False)
        assert until(lambda: bool(told))
        time.sleep(0.3)
        body = {"queries": [{"head": "France", "relation": "capital"}], "k": 1}
        assert client.post("/rank", json=body).status_code == 200
    assert told == ["the run has changed and cannot be opened, so the old one is served: " + str(error)]
