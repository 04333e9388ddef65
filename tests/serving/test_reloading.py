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
    """Wait for something that another thread or process does: minutes, where a machine is busy."""
    for _ in range(3000):
        if holds():
            return True
        time.sleep(0.1)
    return False


def test_an_updated_run_is_answered_from_and_no_request_is_dropped(run: Path) -> None:
    rows: list[str] = []
    app = Reloading(service(run), lambda: service(run), rows.append, seconds=0.05)
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
    assert rows == ["the run has changed and is open again"]


def test_new_probabilities_are_noticed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgmlm.prediction.drawing.MIN_TRIPLES", 2)  # the toy graph has few
    rows: list[str] = []
    app = Reloading(service(run), lambda: service(run), rows.append, seconds=0.05)
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

    app = Reloading(service(run), slow, lambda message: None, seconds=0.05)  # type: ignore[arg-type]
    with TestClient(app, "http://127.0.0.1"):
        kgmlm.update(run, NEW, progress=False)
        assert opening.wait(60)
    go_on.set()  # the server has ended before


@pytest.mark.parametrize("error", [RunError("it is damaged"), MemoryError("two models do not fit")])
def test_a_run_that_cannot_be_opened_is_served_as_it_was(run: Path, error: Exception) -> None:
    rows: list[str] = []

    def fails() -> object:
        raise error

    app = Reloading(service(run), fails, rows.append, seconds=0.05)  # type: ignore[arg-type]
    with TestClient(app, "http://127.0.0.1") as client:
        kgmlm.update(run, NEW, progress=False)
        assert until(lambda: bool(rows))
        time.sleep(0.3)
        body = {"queries": [{"head": "France", "relation": "capital"}], "k": 1}
        assert client.post("/rank", json=body).status_code == 200
    assert rows == ["the run has changed and cannot be opened, so the old one is served: " + str(error)]


def added(client: TestClient, **entity: object) -> dict[str, object]:
    """Add an entity to the run, and wait for the end of the update."""
    begun = client.post("/update", json={"entities": [entity]})
    assert begun.status_code == 202, begun.text
    assert begun.json()["status"] == "updating"
    assert until(lambda: client.get("/update").json()["status"] != "updating")
    return dict(client.get("/update").json())


def test_an_entity_is_added_to_the_run_itself(run: Path) -> None:
    rows: list[str] = []
    app = Reloading(service(run), lambda: service(run), rows.append, seconds=0.05)
    triples = [{"relation": "located_in", "tail": "europe"}, {"relation": "borders", "head": "france"}]
    with TestClient(app, "http://127.0.0.1") as client:
        assert client.get("/update").json() == {"status": "none", "why": "", "labels": [], "alike": []}
        begun = client.post(
            "/update",
            json={"entities": [{"name": "Iceland", "description": "an island", "triples": triples}]},
        )
        assert begun.status_code == 202
        assert client.post("/update", json={"entities": [{"name": "Xanadu"}]}).status_code == 409
        assert until(lambda: client.post("/rank", json=ASKED).status_code == 200)
    graph = kgmlm.open_run(run).graph
    assert graph.has_labels("Iceland", "located_in", "europe")
    assert ("france", "borders", "Iceland") in graph.labeled(graph.triples("train"))
    assert graph.entities.column("description")[-1] == "an island"


def test_an_update_that_fails_says_why(run: Path) -> None:
    with TestClient(service(run), "http://127.0.0.1") as client:
        result = added(client, name="France", label="france")
        assert result["status"] == "failed"
        assert "france" in str(result["why"])
        assert str(run.parent) not in str(result["why"])
        assert "/tmp" not in str(result["why"])
        kgmlm.update(run, NEW, progress=False)
        assert client.post("/update", json={"entities": [{"name": "Xanadu"}]}).status_code == 409


def test_an_unknown_relation_or_entity_is_refused(run: Path) -> None:
    with TestClient(service(run), "http://127.0.0.1") as client:
        for given in ({"relation": "bordrs", "tail": "france"}, {"relation": "borders", "tail": "frnce"}):
            entities = [{"name": "Xanadu", "triples": [given]}]
            assert client.post("/update", json={"entities": entities}).status_code == 422
    assert len(kgmlm.open_run(run).graph.entities) == len(kgmlm.load_graph("toy").entities)


def test_others_update_only_a_writable_service(run: Path) -> None:
    for writable in (False, True):
        app = service(run, token="secret", any_host=True, writable=writable)
        with TestClient(app, "http://127.0.0.1", headers={"Authorization": "Bearer secret"}) as client:
            assert client.get("/info").json()["updating"] == writable
            answer = client.post("/update", json={"entities": [{"name": "Xanadu"}]})
            assert answer.status_code == (202 if writable else 403)


def test_a_pack_is_not_updated(run: Path, tmp_path: Path) -> None:
    pack = kgmlm.pack(run, tmp_path / "packed.kgmlm", progress=False)
    with TestClient(service(pack), "http://127.0.0.1") as client:
        assert client.post("/update", json={"entities": [{"name": "Xanadu"}]}).status_code == 403


def test_an_update_that_is_ended_has_changed_nothing(run: Path) -> None:
    before = (run / "run.json").read_bytes()
    with TestClient(service(run), "http://127.0.0.1") as client:
        assert client.post("/update", json={"entities": [{"name": "Xanadu"}]}).status_code == 202
    assert (run / "run.json").read_bytes() == before
    kgmlm.open_run(run).rank("france", "capital", k=1)


def test_an_update_takes_names_exactly(run: Path) -> None:
    triples = [{"relation": "located_in", "tail": "EUROPE"}]
    with TestClient(service(run), "http://127.0.0.1") as client:
        body = {"entities": [{"name": "FRANCE", "triples": triples}]}
        refused = client.post("/update", json=body)
        assert refused.status_code == 422
        assert "'europe' is nearly alike" in refused.text
        begun = client.post("/update", json={**body, "match_names": True})
        assert begun.json()["alike"] == [{"new": "FRANCE", "known": "france"}]
        assert until(lambda: client.get("/update").json()["status"] != "updating")
        assert client.get("/update").json()["status"] == "updated"
    graph = kgmlm.open_run(run).graph
    assert graph.has_labels("FRANCE", "located_in", "europe")
    assert graph.entities.find("EUROPE") is None
