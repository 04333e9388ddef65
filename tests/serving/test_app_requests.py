"""The service: every path, wrong requests, shared batches, tokens, and one real process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pandas as pd
import pytest
from browsing import served
from conftest import Cli, refused
from fastapi import FastAPI
from starlette.testclient import TestClient

import kgmlm
from kgmlm.core.errors import ConfigError, QueryError
from kgmlm.core.progress import Bars, Watcher
from kgmlm.graphs.entities import EntityTable
from kgmlm.runs.folder import RunFolder
from kgmlm.runs.run import Run
from kgmlm.serving import schema
from kgmlm.serving.app import Options, create_app, is_loopback
from kgmlm.serving.batching import Batcher, ClosedError, FullError, Seen
from kgmlm.serving.explore import Search
from kgmlm.serving.serve import address, bound, serve, service
from kgmlm.serving.session import ClassifyTask, Own, RankTask, Session

HOME = "http://127.0.0.1"
CAPITAL = {"head": "France", "relation": "capital"}
HOSTILE = "<img src=x onerror=alert(1)>\u202e\x00</script>"


def client_of(app: FastAPI, **options: Any) -> TestClient:
    return TestClient(app, HOME, **options)


@pytest.fixture(scope="module")
def calibrated(toy_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = shutil.copytree(toy_run, tmp_path_factory.mktemp("served") / "toy")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("kgmlm.prediction.drawing.MIN_TRIPLES", 2)  # the toy graph has few
        kgmlm.calibrate(run, progress=False)
    return run


@pytest.fixture(scope="module")
def run(calibrated: Path) -> Run:
    return kgmlm.open_run(calibrated, device="cpu")


@pytest.fixture(scope="module")
def client(run: Run) -> Iterator[TestClient]:
    with client_of(service(run)) as made:
        yield made


def told(response: httpx2.Response) -> str:
    """The one sentence of an answer that says what is wrong."""
    body = response.json()
    assert list(body) == ["error"]
    assert "\n" not in body["error"]
    assert "Traceback" not in body["error"]
    sentence: str = body["error"]
    return sentence


def test_ranks_are_those_of_the_run(client: TestClient, run: Run) -> None:
    asked = [("France", "capital", None), (None, "capital", "paris"), ("usa", "located_in", None)]
    queries = [{name: x for name, x in zip(("head", "relation", "tail"), q, strict=True) if x} for q in asked]
    parsed = client.post("/rank", json={"queries": queries, "k": 4}).json()["results"]
    expected = run.rank(asked, k=4)
    rows = [
        {key: answer[key] for key in ("head", "relation", "tail")} | p
        for answer in parsed
        for p in answer["predictions"]
    ]
    table = pd.DataFrame(rows)[list(expected.columns)]
    pd.testing.assert_frame_equal(table, expected, check_dtype=False, rtol=1e-5)
    novel = client.post("/rank", json={"queries": [CAPITAL], "novel": True, "k": 100}).json()["results"][0]
    assert not any(p["known"] for p in novel["predictions"])


def test_explanations_are_those_of_the_run(client: TestClient, run: Run) -> None:
    (answer,) = client.post("/explain", json={"queries": [CAPITAL], "k": 3}).json()["results"]
    expected = run.explain(head="France", relation="capital", k=3)
    for p, row in zip(answer["predictions"], expected.to_dict("records"), strict=True):
        assert p["entity"] == row["entity"]
        assert sum(part["adds"] for part in p["parts"].values()) == pytest.approx(p["score"], abs=1e-5)
        assert [t["text"] for t in p["tokens"]] == [text for text, _ in row["tokens"]]


def test_probabilities_are_those_of_classify(client: TestClient, run: Run) -> None:
    known = run.graph.labeled(run.graph.splits["train"][:1])[0]
    triples = [("France", "capital", "berlin"), known]
    body = {"triples": [dict(zip(("head", "relation", "tail"), t, strict=True)) for t in triples]}
    classified = client.post("/classify", json=body | {"prior": 0.1, "explain": True}).json()["results"]
    expected = kgmlm.classify(run, triples, prior=0.1, progress=False).as_json(explain=True)
    assert classified[0]["probability"] == pytest.approx(expected[0]["probability"], rel=1e-4)
    assert classified[0]["parts"].keys() == expected[0]["parts"].keys()
    assert classified[1].items() <= expected[1].items()
    assert classified[1]["known"]
    assert classified[1]["probability"] is None


def test_a_run_without_probabilities_says_so(toy_run: Path) -> None:
    with client_of(service(toy_run)) as client:
        body = {"triples": [{"head": "France", "relation": "capital", "tail": "berlin"}]}
        answer = client.post("/classify", json=body)
        assert answer.status_code == 409
        assert "kgmlm calibrate" in told(answer)
        assert client.get("/info").json()["stands_for"] is None


def test_probabilities_of_other_scores_are_not_served(
    calibrated: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(RunFolder, "scored_by", {"likelihood": "another"})
    with client_of(service(calibrated, progress=Bars(quiet=True))) as client:
        assert f"kgmlm calibrate {calibrated}" in capsys.readouterr().err
        body = {"triples": [{"head": "France", "relation": "capital", "tail": "berlin"}]}
        answer = client.post("/classify", json=body)
        assert answer.status_code == 409
        assert str(calibrated) not in told(answer)


def test_a_service_answers_within_another_application(run: Run) -> None:
    outer = FastAPI()
    outer.mount("/kg", service(run, token="secret"))
    inner = {"Authorization": "Bearer secret"}
    with client_of(outer) as client:
        body = {"queries": [CAPITAL], "k": 1}
        assert client.post("/kg/rank", json=body).status_code == 401
        assert client.post("/kg/rank", json=body, headers=inner).json()["results"][0]
        assert client.get("/kg/healthz").status_code == 200
        page = client.get("/kg/")
        assert page.status_code == 200
        assert "'self'" in page.headers["content-security-policy"]
        assert '"/page' not in page.text
        assert "'self'" in client.get("/kg/page/main.js").headers["content-security-policy"]


@pytest.mark.parametrize("k", [3.0, True, "3", 2.5, 0, None])
@pytest.mark.parametrize("path", ["/rank", "/explain"])
def test_k_is_an_integer(client: TestClient, path: str, k: object) -> None:
    assert client.post(path, json={"queries": [CAPITAL], "k": 3}).status_code == 200
    assert client.post(path, json={"queries": [CAPITAL], "k": k}).status_code == 422


def test_each_address_of_the_machine_itself_is_its_name(run: Run) -> None:
    for host, status in (("127.0.1.1:80", 200), ("[::1]:80", 200), ("x.org", 400), ("10.0.0.1", 400)):
        with TestClient(service(run), f"http://{host}") as client:
            assert client.get("/healthz").status_code == status


def test_what_is_served_is_told_without_paths(client: TestClient, run: Run) -> None:
    parsed = client.get("/info").json()
    assert parsed["graph"] == kgmlm.info(run).graph
    assert parsed["run"] == "toy"
    assert "of 100 such triples with 20 %" in parsed["stands_for"]
    assert parsed["limits"]["k"] == schema.MAX_K
    assert str(run.path.parent) not in json.dumps(parsed)
    assert "--model" not in json.dumps(parsed), "no command lines"
    assert "hardware" not in json.dumps(parsed)
    assert client.get("/healthz").json() == {"status": "ok"}
    relations = client.get("/relations").json()["results"]
    assert [r["label"] for r in relations] == [r.label for r in run.graph.relations]
    assert sum(r["triples"] for r in relations) == len(run.graph.all_triples)


def test_entities_come_with_their_triples_page_by_page(client: TestClient, run: Run) -> None:
    france = run.graph.entities.index["france"]
    expected = [
        (*labels, split)
        for split, triples in run.graph.splits.items()
        for ids, labels in zip(triples.tolist(), run.graph.labeled(triples), strict=True)
        if france in (ids[0], ids[2])
    ]
    assert len(expected) > 3
    pages = [
        client.get("/entity/france", params={"offset": at, "limit": 2}).json()
        for at in range(0, len(expected) + 2, 2)
    ]
    rows = [
        (*(t[key]["label"] for key in ("head", "relation", "tail")), t["split"])
        for page in pages
        for t in page["triples"]
    ]
    assert rows == expected
    assert {page["total"] for page in pages} == {len(expected)}
    assert client.get("/entity/France").status_code == 404
    assert "'a/b?c'" in told(client.get("/entity/a%2Fb%3Fc"))


def test_entities_come_with_those_that_are_most_similar(client: TestClient, toy_vector_run: Path) -> None:
    run = kgmlm.open_run(toy_vector_run, device="cpu")
    with client_of(service(run)) as asked:
        parsed = asked.get("/similar", params={"entity": "france", "k": 3}).json()["results"]
        expected = run.similar("france", 3)
        assert [row["label"] for row in parsed] == list(expected["entity"])
        assert [row["cosine"] for row in parsed] == pytest.approx(list(expected["cosine"]), abs=1e-5)
        done = asked.get("/similar", params={"entity": "atlantis"})
        assert (done.status_code, done.json()["error"]) == (422, "no entity has the label 'atlantis'")
    assert client.get("/similar", params={"entity": "france"}).json() == {"results": []}, "without embeddings"


def test_entities_are_found_as_they_are_typed(client: TestClient) -> None:
    def labels(q: str) -> list[str]:
        return [e["label"] for e in client.get("/entities", params={"q": q, "k": 3}).json()["results"]]

    assert labels("FRA")[0] == labels("frnace")[0] == labels("Farnce")[0] == "france"
    assert labels("qqqqqqqq") == []


JUDGED = {"head": "france", "relation": "capital", "tail": "paris", "label": 1}


def moved(run: Path, other: Path) -> None:
    run.rename(run.with_name("moved"))


def replaced(run: Path, other: Path) -> None:
    moved(run, other)
    shutil.copytree(other, run)


def overwritten(run: Path, other: Path) -> None:
    shutil.copytree(other, run, dirs_exist_ok=True)  # file by file, as `cp -r` does


def tuned(run: Path, other: Path) -> None:
    kgmlm.tune(run, add="types", progress=False)


@pytest.mark.parametrize(
    ("happens", "folder", "status"),
    [
        (moved, "gone", 409),
        (replaced, "changed", 409),
        (overwritten, "changed", 409),
        (tuned, "changed", 201),
    ],
)
@pytest.mark.parametrize("options", [{}, {"allow_self": True}], ids=["plain", "allow-self"])
def test_a_run_that_changes_or_vanishes_is_served_as_it_was(
    calibrated: Path,
    toy_vector_run: Path,
    tmp_path: Path,
    happens: Callable[[Path, Path], None],
    folder: str,
    status: int,
    options: dict[str, Any],
) -> None:
    run = shutil.copytree(calibrated, tmp_path / "run")
    triples = [CAPITAL | {"tail": "berlin"}]
    new = [{"name": "Atlantis", "description": "a lost island"}]
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/rank", {"queries": [CAPITAL], "entities": new}),
        ("/explain", {"queries": [CAPITAL]}),
        ("/classify", {"triples": triples}),
        ("/explore", CAPITAL | {"also": ["berlin"]}),
        ("/near", CAPITAL | {"answer": "berlin"}),
    ]
    read = ("/entity/france", "/entities?q=fra", "/relations?entity=france", "/healthz")
    served = kgmlm.open_run(run, device="cpu", **options)
    apps = [service(served) for _ in range(2)]  # the second is asked for the first time when it has happened
    with client_of(apps[0]) as client, client_of(apps[1]) as late:
        before = [client.post(path, json=body).json() for path, body in asked]
        before += [client.get(path).json() for path in read]
        parsed = client.get("/info").json()
        assert (parsed["folder"], parsed["judging"], parsed["updating"]) == ("as opened", True, True)
        happens(run, toy_vector_run)
        files = set(tmp_path.rglob("*"))
        for asker in (client, late):
            after = [asker.post(path, json=body) for path, body in asked] + [asker.get(path) for path in read]
            assert [answer.status_code for answer in after] == [200] * 9
            assert [answer.json() for answer in after] == before
            told_now = {"folder": folder, "judging": status == 201, "updating": False}
            assert asker.get("/info").json() == parsed | told_now
            assert asker.get("/feedback", params={"entity": "france"}).json() == {"results": []}
        assert client.post("/update", json={"entities": new}).status_code == 409
        answer = client.post("/feedback", json=JUDGED)
        assert answer.status_code == status, answer.text
        if status == 409:
            assert "no longer where this service has opened it" in told(answer)
            assert set(tmp_path.rglob("*")) == files, "nothing is written where another run is, or none"


def test_a_judgment_that_cannot_be_written_is_told_without_paths(calibrated: Path, tmp_path: Path) -> None:
    run = shutil.copytree(calibrated, tmp_path / "run")
    with client_of(service(run)) as client:
        (run / "feedback.jsonl").mkdir()
        answer = client.post("/feedback", json=JUDGED)
        assert answer.status_code == 409
        assert "cannot be written now" in told(answer)
        assert str(tmp_path) not in answer.text


def test_a_run_that_was_trained_further_is_opened_again_before_it_is_served(
    calibrated: Path, tmp_path: Path
) -> None:
    run = kgmlm.open_run(shutil.copytree(calibrated, tmp_path / "run"), device="cpu")
    run.open(Watcher())
    kgmlm.tune(run.path, add="types", progress=False)
    with client_of(service(run)) as client:
        info = client.get("/info").json()
        assert info["folder"] == "as opened"
        (parsed,) = client.post("/explain", json={"queries": [CAPITAL], "k": 1}).json()["results"]
        assert "types" in parsed["predictions"][0]["parts"]


def test_the_description_is_complete_and_docs_need_no_other_host(client: TestClient) -> None:
    described = client.get("/openapi.json").json()
    paths = {"/rank", "/explain", "/classify", "/entities", "/relations", "/entity/{label}", "/info",
             "/healthz", "/metrics", "/explore", "/near", "/similar", "/missing", "/feedback",
             "/new-facts", "/update"}  # fmt: skip
    assert set(described["paths"]) == paths
    assert "HTTPValidationError" not in json.dumps(described)
    page = client.get("/docs")
    links = re.findall(r"""(?:src|href)=["']([^"']+)""", page.text)
    assert len(links) >= 3
    for link in links:
        assert client.get(link).status_code == 200, link
    assert "//" not in "".join(links)


def test_docs_behind_a_proxy_that_takes_a_path_off(run: Run) -> None:
    with served(service(run), "/kg") as url, httpx2.Client(base_url=url) as client:
        page = client.get("/docs")
        links = re.findall(r"""(?:src|href)=["']([^"']+)""", page.text)
        assert len(links) >= 3
        assert "/kg/openapi.json" in page.text
        for link in links:
            assert link.startswith("/kg/")
            assert client.get(link.removeprefix("/kg")).status_code == 200, link
        assert client.get("/").status_code == client.get("/openapi.json").status_code == 200
    for path in ("kg", "//kg", "/k g", "/kg?", "http://kg"):
        with pytest.raises(ConfigError, match="the root path is a path such as /kg"):
            serve(run, port=0, root_path=path)


def test_metrics_count(client: TestClient) -> None:
    before, after = (
        float(re.findall(r'requests_total\{path="/relations",status="200"\} (\S+)', text)[0])
        for text in ((client.get("/relations"), client.get("/metrics").text)[1] for _ in range(2))
    )
    assert after == before + 1
    text = client.get("/metrics").text
    assert "kgmlm_batch_queries_count" in text
    assert "kgmlm_waiting_queries 0.0" in text


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        ("/rank", {"queries": [{"head": "Frnace", "relation": "capital"}]}, "did you mean 'France'"),
        ("/rank", {"queries": [{"head": "France", "relation": "capitol"}]}, "did you mean 'capital'"),
        ("/rank", {"queries": [{"relation": "capital"}]}, "give either a head"),
        ("/rank", {"queries": [CAPITAL | {"tail": "paris"}]}, "give either a head"),
        ("/rank", {"queries": []}, "queries"),
        ("/rank", {"queries": [CAPITAL] * 257}, "queries"),
        ("/rank", {"queries": [CAPITAL], "k": 0}, "k: "),
        ("/rank", {"queries": [CAPITAL], "k": 1001}, "k: "),
        ("/rank", {"queries": [CAPITAL], "k": "many"}, "k: "),
        ("/rank", {"queries": [CAPITAL], "kk": 3}, "kk: "),
        ("/rank", {"queries": [{"head": "x" * 1001, "relation": "capital"}]}, "queries.0.head: "),
        ("/rank", {"queries": [{"head": "\x00" * 9, "relation": "capital"}]}, "no entity has"),
        ("/rank", {"queries": [CAPITAL], "entities": [{"name": ""}]}, "entities.0.name: "),
        ("/rank", {"queries": [CAPITAL], "entities": [{"name": " "}]}, "it must be one line"),
        ("/rank", {"queries": [CAPITAL], "entities": [{"name": "a\nb"}]}, "it must be one line"),
        ("/rank", {"queries": [CAPITAL], "entities": [{"name": "x", "label": "paris"}]}, "exists already"),
        ("/rank", {"queries": [CAPITAL], "entities": [{"name": "x"}, {"name": "x"}]}, "occurs twice"),
        ("/rank", [1], "send a JSON object as the body"),
        ("/explain", {"queries": [{"head": HOSTILE, "relation": "capital"}]}, "no entity has"),
        ("/classify", {"triples": [CAPITAL]}, "triples.0.tail: "),
        ("/classify", {"triples": [CAPITAL | {"tail": "nowhere"}]}, "no entity has"),
        ("/classify", {"triples": [CAPITAL | {"tail": "paris"}], "prior": 1}, "prior: "),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(client: TestClient, path: str, body: Any, sentence: str) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 422, answer.text
    assert sentence in told(answer)


def test_what_is_no_request_is_refused(client: TestClient) -> None:
    typed = {"content-type": "application/json"}
    for content in (b"{", b'{"queries": "\xff"}', b"[" * 100_000, b'{"k": ' + b"9" * 5000 + b"}", b""):
        answer = client.post("/rank", content=content, headers=typed)
        assert answer.status_code in (400, 422), content[:20]
        told(answer)
    surrogate = b'{"queries": [{"head": "\\ud800", "relation": "capital"}]}'
    assert client.post("/rank", content=surrogate, headers=typed).status_code == 422
    for content, headers, sentence in (
        (b"{}", {"content-type": "text/plain"}, "with Content-Type: application/json"),
        (b"", typed, "with Content-Type: application/json"),
        (b"{", typed, "the body is no JSON"),
    ):
        answer = client.post("/rank", content=content, headers=headers)
        assert answer.status_code == 422
        assert sentence in told(answer)
    assert [client.head(path).status_code for path in ("/", "/healthz")] == [200, 200]
    large = b'{"queries": "' + b"x" * schema.MAX_BYTES + b'"}'
    parts: tuple[Any, ...] = (large, iter([large[: 2**19], large[2**19 :]]))  # whose length is told, or not
    for content in parts:
        answer = client.post("/rank", content=content, headers=typed)
        assert answer.status_code == 413
        assert "bytes" in told(answer)
    assert (client.get("/nothing").status_code, client.get("/rank").status_code) == (404, 405)
    assert "/nothing" in told(client.get("/nothing"))
    asked: list[dict[str, Any]] = [{"side": "middle"}, {"relation": "none"}, {"q": "x" * 1001}, {"k": 0}]
    for params in asked:
        assert client.get("/entities", params=params).status_code == 422
    pages: list[dict[str, Any]] = [{"limit": 0}, {"limit": 1001}, {"offset": -1}, {"offset": "x"}]
    for page in pages:
        assert client.get("/entity/france", params=page).status_code == 422
    for path, sentence in {
        "/entities?q=fra&limt=3": "/entities has no parameter 'limt'; it has q, k, relation, side",
        "/entity/france?k=2": "/entity/{label:path} has no parameter 'k'; it has offset, limit",
        "/info?x%1bx": "/info has no parameter 'x\\x1bx'; it has none",
    }.items():
        answer = client.get(path)
        assert (answer.status_code, answer.json()["error"]) == (422, sentence)
    assert client.get("/?head=france&anything=1").status_code == 200


def test_a_request_brings_entities_of_its_own(client: TestClient, run: Run) -> None:
    new = [{"name": "Atlantis", "description": "a lost island"}, {"name": "Paris", "label": "paris2"}]
    body = {"queries": [{"head": "Atlantis", "relation": "located_in"}, CAPITAL], "k": 100, "entities": new}
    atlantis, france = client.post("/rank", json=body).json()["results"]
    wider = run.with_entities(
        EntityTable(["Atlantis", "paris2"], ["Atlantis", "Paris"], ["a lost island", ""])
    )
    expected = wider.rank(head="Atlantis", relation="located_in", k=100)
    assert [p["entity"] for p in atlantis["predictions"]] == expected["tail_label"].tolist()
    assert "paris2" in {p["entity"] for p in france["predictions"]}
    for again in ({"queries": [CAPITAL], "k": 100}, body | {"entities": new[1:], "queries": [CAPITAL]}):
        (after,) = client.post("/rank", json=again).json()["results"]
        assert "Atlantis" not in {p["entity"] for p in after["predictions"]}
    assert client.post("/rank", json=body | {"entities": []}).status_code == 422
    assert client.get("/entity/Atlantis").status_code == 404
    (message,) = client.post(
        "/classify",
        json={"triples": [{"head": "Atlantis", "relation": "located_in", "tail": "usa"}], "entities": new},
    ).json()["results"]
    assert 0 < message["probability_if_half_true"] < 1
    twice = client.post(
        "/rank",
        json={"queries": [{"head": "x", "relation": "capital"}],
              "entities": [{"name": "x", "label": "a"}, {"name": "X", "label": "b"}]},
    )  # fmt: skip
    assert "give a label" in told(twice)


ATLANTIS = {
    "label": "atl",
    "name": "Atlantis",
    "description": "a lost island",
    "triples": [
        {"relation": "is located in", "tail": "europe"},
        {"head": "Spain", "relation": "borders"},
        {"relation": "capital", "tail": "poseidonia"},
    ],
}
POSEIDONIA = {"label": "poseidonia", "name": "Poseidonia"}
TOLD = [("Atlantis", "located_in", "Europe"), ("spain", "borders", "atl"), ("atl", "capital", "Poseidonia")]
NEW = EntityTable(["atl", "poseidonia"], ["Atlantis", "Poseidonia"], ["a lost island", ""])


@pytest.fixture(scope="module")
def typed(calibrated: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with types and probabilities."""
    run = shutil.copytree(calibrated, tmp_path_factory.mktemp("typed") / "toy")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("kgmlm.prediction.drawing.MIN_TRIPLES", 2)
        kgmlm.tune(run, add="types", progress=False)
        kgmlm.calibrate(run, progress=False)
    return run


def test_triples_of_new_entities_count_alike_in_python_the_command_and_the_service(
    typed: Path, tmp_path: Path, cli: Cli
) -> None:
    run = kgmlm.open_run(typed, device="cpu")
    wider = run.with_entities(NEW, TOLD)
    asked = [("Atlantis", "located_in", None), ("atl", "capital", None), (None, "borders", "Atlantis")]
    expected = wider.rank(asked, k=33)
    entities, triples, queries = (tmp_path / f"{name}.tsv" for name in ("entities", "triples", "queries"))
    entities.write_text("label\tname\tdescription\natl\tAtlantis\ta lost island\nposeidonia\tPoseidonia\t\n")
    triples.write_text("head\trelation\ttail\n" + "".join("\t".join(t) + "\n" for t in TOLD))
    queries.write_text(
        "head\trelation\ttail\n" + "".join("\t".join(x or "" for x in q) + "\n" for q in asked)
    )
    done = cli("rank", typed, "--entities", entities, "--entity-triples", triples, "--queries", queries,
               "-k", "33", "--json", "-q")  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = pd.DataFrame(map(json.loads, done.stdout.splitlines()))
    keys = ("head", "relation", "tail")
    body: dict[str, Any] = {
        "queries": [{name: x for name, x in zip(keys, query, strict=True) if x} for query in asked],
        "k": 33,
        "entities": [ATLANTIS, POSEIDONIA],
    }
    claim = {"head": "Atlantis", "relation": "capital", "tail": "paris"}
    claims = [claim, claim | {"tail": "poseidonia"}]
    with client_of(service(run)) as client:
        results = client.post("/rank", json=body).json()["results"]
        one = body | {"queries": body["queries"][:1]}
        (with_them,) = client.post("/explain", json=one).json()["results"]
        (without,) = client.post("/explain", json=one | {"entities": [ATLANTIS | {"triples": []}]}).json()[
            "results"
        ]
        claimed = {"triples": claims, "entities": body["entities"]}
        classified = client.post("/classify", json=claimed).json()["results"]
        (after,) = client.post("/rank", json={"queries": [CAPITAL]}).json()["results"]
    answered = pd.DataFrame([
        {key: answer[key] for key in keys} | p for answer in results for p in answer["predictions"]
    ])  # fmt: skip
    for item in (printed, answered):
        item["probability"] = item["probability"].astype(float)  # none has one
        pd.testing.assert_frame_equal(
            item[list(expected.columns)], expected, check_dtype=False, rtol=1e-5, check_like=True
        )
    known = expected[expected["known"]]
    assert set(known["entity"]) == {"europe", "poseidonia", "spain"}
    values = {p["entity"]: p["parts"]["types"]["value"] for p in with_them["predictions"]}
    assert any(p["parts"]["types"]["value"] != values[p["entity"]] for p in without["predictions"])
    assert not any(p["known"] for p in without["predictions"])
    judged = kgmlm.classify(
        run,
        [(c["head"], c["relation"], c["tail"]) for c in claims],
        entities=NEW,
        entity_triples=TOLD,
        progress=False,
    )
    assert classified[0]["probability_if_half_true"] == pytest.approx(judged.if_half_true[0], rel=1e-4)
    assert [row["known"] for row in classified] == judged.known.tolist() == [False, True]
    assert "atl" not in {p["entity"] for p in after["predictions"]}, "nothing is kept"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"relation": "capital"}, "entities.0.triples.0: give the other entity, as head or as tail"),
        ({"head": "paris", "relation": "capital", "tail": "paris"}, "give the other entity"),
        ({"relation": "capitol", "tail": "paris"}, "entities.0.triples.0: no relation has"),
        ({"relation": "capital", "tail": "Pariss"}, "entities.0.triples.0: no entity has the label or name"),
        ({"relation": "capital", "tail": "paris", "more": 1}, "entities.0.triples.0.more: "),
    ],
)
@pytest.mark.parametrize("path", ["/rank", "/explore", "/entities"])
def test_a_triple_that_cannot_be_is_one_sentence(
    writable: TestClient, path: str, given: dict[str, Any], sentence: str
) -> None:
    asked: dict[str, dict[str, Any]] = {
        "/rank": {"queries": [CAPITAL]}, "/explore": CAPITAL, "/entities": {},
    }  # fmt: skip
    new = {"name": "Atlantis", "triples": [given]}
    answer = writable.post(path, json=asked[path] | {"entities": [new]})
    assert answer.status_code == 422, answer.text
    assert sentence in told(answer)
    assert writable.get("/info").json()["added"] == 0


@pytest.fixture(scope="module")
def writable(calibrated: Path) -> Iterator[TestClient]:
    with client_of(service(calibrated, writable=True)) as made:
        yield made


def test_triples_are_bounded(writable: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    many = ATLANTIS | {"triples": [{"relation": "capital", "tail": "paris"}] * (schema.MAX_GIVEN + 1)}
    answer = writable.post("/rank", json={"queries": [CAPITAL], "entities": [many]})
    assert answer.status_code == 422
    assert "entities.0.triples: " in told(answer)
    assert writable.get("/info").json()["limits"]["triples"] == schema.MAX_GIVEN
    monkeypatch.setattr("kgmlm.serving.session.MAX_KEPT_TRIPLES", 2)
    answer = writable.post("/entities", json={"entities": [ATLANTIS, POSEIDONIA]})
    assert "with 2 triples are kept" in told(answer)


def test_entities_that_are_kept_keep_their_triples(calibrated: Path) -> None:
    with client_of(service(calibrated, writable=True)) as client:
        before = client.get("/entity/europe", params={"limit": 100}).json()
        first = client.post("/entities", json={"entities": [ATLANTIS, POSEIDONIA]})
        assert first.status_code == 201, first.text
        more = {"name": "Lemuria", "triples": [{"relation": "borders", "tail": "Atlantis"}]}
        assert client.post("/entities", json={"entities": [more]}).status_code == 201
        (result,) = client.post(
            "/rank", json={"queries": [{"head": "atl", "relation": "capital"}], "k": 40}
        ).json()["results"]
        assert [p["entity"] for p in result["predictions"] if p["known"]] == ["poseidonia"]
        page = client.get("/entity/atl").json()
        rows = [tuple(t[key]["label"] for key in ("head", "relation", "tail")) for t in page["triples"]]
        assert rows == [
            ("atl", "located_in", "europe"), ("spain", "borders", "atl"), ("atl", "capital", "poseidonia"),
            ("Lemuria", "borders", "atl"),
        ]  # fmt: skip
        assert {t["split"] for t in page["triples"]} == {"added"}
        assert client.get("/entity/atl", params={"offset": 3}).json()["triples"] == page["triples"][3:]
        after = client.get("/entity/europe", params={"limit": 100}).json()
        assert after["triples"][:-1] == before["triples"]
        assert after["total"] == before["total"] + 1


def test_entities_are_kept_only_by_a_writable_service(client: TestClient, calibrated: Path) -> None:
    new = {"entities": [{"name": HOSTILE, "description": "a lost island", "label": "hostile"}]}
    answer = client.post("/entities", json=new)
    assert answer.status_code == 403
    assert "--writable" in told(answer)
    files = {p: p.read_bytes() for p in calibrated.rglob("*") if p.is_file()}
    with client_of(service(calibrated, writable=True)) as writable:
        answer = writable.post("/entities", json=new)
        assert (answer.status_code, answer.json()) == (201, {"labels": ["hostile"], "added": 1})
        assert "exists already" in told(writable.post("/entities", json=new))
        result = writable.post("/rank", json={"queries": [CAPITAL], "k": 100})
        assert "hostile" in {p["entity"] for p in result.json()["results"][0]["predictions"]}
        page = writable.get("/entity/hostile")
        searched = writable.get("/entities", params={"q": "<img"})
        for shown in (result, page, searched):  # the name as it is, as data
            assert json.dumps(HOSTILE)[1:-1] in json.dumps(shown.json())
            assert shown.headers["content-type"] == "application/json"
            assert shown.headers["x-content-type-options"] == "nosniff"
            assert "default-src 'none'" in shown.headers["content-security-policy"]
        assert page.json()["total"] == 0
        assert writable.get("/info").json()["added"] == 1
        body = {"triples": [{"head": "hostile", "relation": "capital", "tail": "paris"}]}
        assert writable.post("/classify", json=body).status_code == 200
        second = {"entities": [{"name": "Lemuria"}]}
        assert writable.post("/entities", json=second).json()["added"] == 2
        assert "hostile" in writable.get("/entities", params={"q": "hostile"}).text
    assert {p: p.read_bytes() for p in calibrated.rglob("*") if p.is_file()} == files


def test_a_process_keeps_so_many_entities(calibrated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgmlm.serving.session.MAX_KEPT", 1)
    with client_of(service(calibrated, writable=True)) as writable:
        assert writable.post("/entities", json={"entities": [{"name": "a1"}]}).status_code == 201
        assert "at most 1 " in told(writable.post("/entities", json={"entities": [{"name": "a2"}]}))


def test_a_token_is_asked_for(run: Run) -> None:
    with client_of(service(run, token="s3cret")) as client:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic s3cret"},
                        {"Authorization": "s3cret"}, {"Authorization": "Bearer s3cret2"}):  # fmt: skip
            for path in ("/info", "/metrics", "/entities?q=a", "/entity/france", "/nothing", "/docs/x"):
                answer = client.get(path, headers=headers)
                assert answer.status_code == 401, path
                assert answer.headers["www-authenticate"] == "Bearer"
            assert client.post("/rank", json={"queries": [CAPITAL]}, headers=headers).status_code == 401
        assert "Bearer" in told(client.get("/info"))
        mine = {"Authorization": "Bearer s3cret", "Host": "kgmlm.example.org"}
        assert client.get("/info", headers=mine).status_code == 200
        assert client.post("/rank", json={"queries": [CAPITAL]}, headers=mine).status_code == 200
        for path in ("/healthz", "/docs", "/openapi.json"):
            assert client.get(path).status_code == 200
        assert "HTTPBearer" in client.get("/openapi.json").text


def test_pages_of_other_sites_cannot_ask(client: TestClient) -> None:
    for host in ("evil.example.org", "127.0.0.1.example.org", "", "[::2]:80"):
        answer = client.get("/info", headers={"Host": host})
        assert answer.status_code == 400
        assert "--token" in told(answer)
    for host in ("localhost", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST:1"):
        assert client.get("/info", headers={"Host": host}).status_code == 200
    assert "access-control-allow-origin" not in client.get("/info", headers={"Origin": "null"}).headers


def together(app: FastAPI, bodies: Sequence[dict[str, Any]]) -> list[httpx2.Response]:
    """Answers to requests that are sent at once."""

    async def send() -> list[httpx2.Response]:
        transport = httpx2.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=transport, base_url=HOME) as client,
        ):
            return await asyncio.gather(*(client.post("/rank", json=body) for body in bodies))

    return asyncio.run(send())


def test_requests_at_the_same_time_share_a_batch_and_get_what_they_get_alone(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(run)
    worked: list[int] = []
    work = session.work

    def counted(tasks: Sequence[Any]) -> list[Any]:
        worked.append(len(tasks))
        return work(tasks)

    monkeypatch.setattr(session, "work", counted)
    labels = run.graph.entities.column("label")[:20]
    bodies: list[dict[str, Any]] = [
        {"queries": [{"head": label, "relation": "located_in"}], "k": 1 + i % 5, "novel": i % 2 == 0}
        for i, label in enumerate(labels)
    ]
    bodies[3]["queries"][0]["head"] = "nobody"
    answers = together(create_app(session, Options(window=0.5), {}), bodies)
    assert sum(worked) == 20
    assert len(worked) < 5
    assert answers[3].status_code == 422
    for body, answer in zip(bodies, answers, strict=True):
        if answer is answers[3]:
            continue
        expected = run.rank(**body["queries"][0], k=body["k"], novel=body["novel"])
        predictions = answer.json()["results"][0]["predictions"]
        assert [p["entity"] for p in predictions] == expected["tail_label"].tolist()
        assert [p["score"] for p in predictions] == pytest.approx(expected["score"].tolist(), abs=1e-5)


def test_past_the_bound_requests_are_told_when_to_come_again(run: Run) -> None:
    bodies = [{"queries": [CAPITAL], "k": 1}] * 6  # two texts each: its own, and that of its answer
    answers = together(create_app(Session(run), Options(window=0.2, bound=8), {}), bodies)
    assert sorted(a.status_code for a in answers) == [200] * 4 + [503] * 2
    full = next(a for a in answers if a.status_code == 503)
    assert int(full.headers["retry-after"]) >= 1
    assert "try again" in told(full)


def test_a_fault_of_ours_tells_nothing_of_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(run)

    def broken(tasks: Any) -> Any:
        raise RuntimeError("secret")

    monkeypatch.setattr(session, "work", broken)
    with client_of(create_app(session, Options(), {}), raise_server_exceptions=False) as client:
        answer = client.post("/rank", json={"queries": [CAPITAL]})
        assert answer.status_code == 500
        assert "secret" not in told(answer)


def test_a_client_that_leaves_is_dropped(run: Run) -> None:
    session = Session(run)
    app = create_app(session, Options(window=30), {})
    sent: list[Any] = []

    async def leave() -> None:
        body = json.dumps({"queries": [CAPITAL]}).encode()
        messages = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]

        async def receive() -> Any:
            await asyncio.sleep(0.01)
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "method": "POST", "path": "/rank", "raw_path": b"/rank", "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
            "http_version": "1.1", "scheme": "http", "root_path": "", "asgi": {"version": "3.0"},
        }  # fmt: skip
        async with app.router.lifespan_context(app):
            await app(scope, receive, send)
            async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=HOME) as client:
                text = (await client.get("/metrics")).text
        assert "kgmlm_dropped_total 1.0" in text
        assert "kgmlm_waiting_queries 0.0" in text
        assert "kgmlm_batch_queries_count 0.0" in text

    asyncio.run(leave())
    assert sent[0]["status"] == 499


def doubled(tasks: Sequence[int]) -> list[Any]:
    return [ValueError(str(x)) if x < 0 else 2 * x for x in tasks]


def test_a_batch_is_full_or_its_window_has_passed() -> None:
    sizes: list[int] = []

    async def ask() -> list[int | BaseException]:
        seen = Seen(batch=lambda size, seconds: sizes.append(size))
        batcher: Batcher[int, int] = Batcher(doubled, most=3, window=0.05, seen=seen)
        batcher.start()
        result = await asyncio.gather(*map(batcher.ask, (1, 2, -3, 4)), return_exceptions=True)
        alone = await batcher.ask(5, size=9)
        await batcher.close()
        with pytest.raises(ClosedError):
            await batcher.ask(6)
        return [*result, alone]

    result = asyncio.run(ask())
    assert sizes == [3, 1, 9]
    assert isinstance(result[2], ValueError)
    assert [x for x in result if isinstance(x, int)] == [2, 4, 8, 10]


def test_closing_finishes_what_waits_and_cancelled_tasks_leave_the_queue() -> None:
    worked: list[int] = []
    began, go = threading.Event(), threading.Event()

    def work(tasks: Sequence[int]) -> list[int]:
        began.set()
        go.wait(10)
        worked.extend(tasks)
        return list(tasks)

    async def ask() -> list[int]:
        batcher: Batcher[int, int] = Batcher(work, most=1, window=0, bound=2)
        batcher.start()
        first = asyncio.create_task(batcher.ask(1))
        while not began.is_set():
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(batcher.ask(x)) for x in (2, 3)]
        await asyncio.sleep(0)
        with pytest.raises(FullError):
            await batcher.ask(4)
        others[0].cancel()
        await asyncio.sleep(0)
        assert batcher.size == 1
        closing = asyncio.create_task(batcher.close())
        await asyncio.sleep(0)
        go.set()
        await closing
        return [await first, await others[1]]

    assert asyncio.run(ask()) == worked == [1, 3]


def test_others_come_between_the_parts_of_a_request_and_who_leaves_takes_the_rest_along() -> None:
    worked: list[str] = []
    begun, go = threading.Event(), threading.Event()

    def work(tasks: Sequence[str]) -> list[str]:
        worked.extend(tasks)
        begun.set()
        go.wait(60)
        return list(tasks)

    async def has_begun() -> None:
        while not begun.is_set():
            await asyncio.sleep(0.001)

    async def ask() -> list[str]:
        batcher: Batcher[str, str] = Batcher(work, most=1, window=0)
        batcher.start()
        large = asyncio.create_task(batcher.ask_in_parts([(f"large {n}", 1) for n in range(3)]))
        await has_begun()
        small = asyncio.create_task(batcher.ask("small"))
        await asyncio.sleep(0)
        go.set()
        assert await small == "small"
        result = await large
        begun.clear()
        go.clear()
        leaving = asyncio.create_task(batcher.ask_in_parts([(f"leaving {n}", 1) for n in range(9)]))
        await has_begun()
        leaving.cancel()
        await asyncio.sleep(0)
        go.set()
        await batcher.close()
        return result

    assert asyncio.run(ask()) == ["large 0", "large 1", "large 2"]
    assert worked == ["large 0", "small", "large 1", "large 2", "leaving 0"]


def test_what_is_not_answered_in_time_is_refused_when_the_service_ends() -> None:
    go, began = threading.Event(), threading.Event()

    def work(tasks: Sequence[int]) -> list[int]:
        began.set()
        go.wait(60)
        return list(tasks)

    async def ask() -> None:
        batcher: Batcher[int, int] = Batcher(work, most=1, window=0)
        batcher.start()
        asked = [asyncio.create_task(batcher.ask_in_parts([(x, 1), (x, 1)])) for x in (1, 2)]
        while not began.is_set():
            await asyncio.sleep(0.001)
        batcher.end(0.01)
        with pytest.raises(ClosedError):
            await batcher.ask(3)
        result = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(x) for x in result] == [ClosedError, ClosedError]
        assert batcher.size == 0
        go.set()
        await batcher.close()

    asyncio.run(ask())


def test_a_request_in_parts_is_answered_as_whole_and_too_much_work_is_refused(
    calibrated: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = run.graph.entities.column("label")[:9]
    own = [{"name": "Atlantis", "triples": [{"relation": "located_in", "tail": "europe"}]}]
    ranked: dict[str, Any] = {
        "queries": [{"head": x, "relation": "capital"} for x in labels],
        "k": 5,
        "entities": own,
    }
    triples = [{"head": x, "relation": "capital", "tail": "atlantis"} for x in labels]
    explored = {"head": "france", "relation": "capital", "k": 20, "also": ["berlin"]}
    bodies: dict[str, dict[str, Any]] = {
        "/rank": ranked,
        "/explain": ranked,
        "/classify": {"triples": triples, "entities": own},
        "/explore": explored,
    }
    answers = []
    for size in (64, 2):
        with client_of(service(calibrated, batch_size=size)) as client:
            outcomes = {path: client.post(path, json=body) for path, body in bodies.items()}
        assert {answer.status_code for answer in outcomes.values()} == {200}
        answers.append({path: answer.json() for path, answer in outcomes.items()})
    whole, parts = answers
    for path in bodies:
        close(parts[path], whole[path])
    monkeypatch.setattr("kgmlm.serving.session.MAX_WORK", 60)  # each of nine queries reads six texts
    with client_of(service(calibrated)) as client:
        assert client.post("/rank", json=ranked).status_code == 200
        more = client.post("/rank", json=ranked | {"queries": ranked["queries"] * 2})
        assert more.status_code == 422
        assert told(more) == (
            "this is 109 texts for the model to read, and one request may ask 60: ask 10 at a time, or fewer "
            "candidates"
        )


def close(one: Any, other: Any) -> None:
    """See that two answers are the same, but for rounding."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            close(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            close(a, b)
    elif isinstance(one, float):
        assert one == pytest.approx(other, abs=1e-4, rel=1e-3)
    else:
        assert one == other


def test_who_sends_half_a_request_does_not_wait_for_ever(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr("kgmlm.serving.serve.PATIENCE", 0.2)
    monkeypatch.setattr("kgmlm.serving.app.PATIENCE", 0.2)
    head = b"POST /rank HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    halves = [b"", b"POST /ra", head, head + b"Content-Length: 50\r\n\r\n{"]
    with served(service(run)) as url:
        for half in halves:
            with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=60) as made:
                made.sendall(half)
                got = b""
                while part := made.recv(1 << 16):
                    got += part
            assert got.startswith(b"HTTP/1.1 408" if half.endswith(b"{") else b""), half
            assert bool(got) == half.endswith(b"{")
        assert httpx2.get(f"{url}/healthz").status_code == 200


def test_a_way_to_ask_does_not_change_probabilities(calibrated: Path, run: Run) -> None:
    triple = schema.Triple(head="France", relation="capital", tail="berlin")
    task = ClassifyTask([triple])
    new = ClassifyTask([triple], own=Own([schema.NewEntity(name="Atlantis")]))
    odd = kgmlm.open_run(calibrated, device="cpu", allow_self=True, typed=True)
    (plain,), (other,), (wider,) = (
        Session(of).work([asked])[0] for of, asked in ((run, task), (odd, task), (odd, new))
    )
    assert other["probability"] == pytest.approx(plain["probability"], rel=1e-4)
    assert wider["probability"] == pytest.approx(plain["probability"], abs=0.2)


def test_vectors_of_new_entities_are_read(toy_vector_run: Path) -> None:
    run = kgmlm.open_run(toy_vector_run, device="cpu")
    new = schema.NewEntity(name="Atlantis", description="a lost island")
    task = RankTask([schema.RankQuery(head="Atlantis", relation="located_in")], 5, False, own=Own([new]))
    ((result,),) = Session(run).work([task])
    wider = run.with_entities(EntityTable(["Atlantis"], ["Atlantis"], ["a lost island"]))
    expected = wider.rank(head="Atlantis", relation="located_in", k=5)
    assert [p["entity"] for p in result["predictions"]] == expected["tail_label"].tolist()


NAMES = ["Influenza A virus", "influenza vaccine", "Virus", "retro_virus", "Straße", "日本", "aaaa", "aaaa"]


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("virus", "2"), ("VIR", "2"), ("vrius", "2"), ("influnza", "0"), ("infleunza vac", "1"),
        ("retro virus", "3"), ("retrovirus", "3"), ("strasse", "4"), ("日", "5"), ("aaaa", "6"), ("7", "7"),
    ],
)  # fmt: skip
def test_search_finds_what_was_meant(typed: str, first: str) -> None:
    table = EntityTable([str(i) for i in range(len(NAMES))], NAMES)
    hits = Search(table, 100).find(typed, 8)
    assert str(hits[0].entity - 100) == first
    assert len({hit.entity for hit in hits}) == len(hits)
    assert all(0 < hit.match <= 100 for hit in hits)


def test_search_finds_a_long_name_with_a_typing_error() -> None:
    letters = np.random.default_rng(0).integers(97, 123, 312)  # more different pairs than a byte counts
    name = "".join(map(chr, letters))
    assert Search(EntityTable([name, "other"])).find("?" + name[1:], 3)[0].entity == 0


def test_search_over_nothing_finds_nothing() -> None:
    assert Search(EntityTable([])).find("a", 3) == []
    assert Search(EntityTable(["a"], ["\x00\x00"])).find("zz", 3) == []
    assert Search(EntityTable(["a"])).find(" ", 3) == Search(EntityTable(["a"])).find("a", 3)


def test_search_has_all_texts_whatever_their_number() -> None:
    count = 100_003  # more than a block
    rng = np.random.default_rng(0)
    words = ["".join(map(chr, row)) for row in rng.integers(97, 123, (count, 9)).tolist()]
    search = Search(EntityTable([f"{word}{i}" for i, word in enumerate(words)]))
    for i in (0, 50_000, 99_999, 100_000, count - 1):
        typed = f"{words[i][:4]}{words[i][5:]}{i}"  # without a letter in the middle
        assert search.find(typed, 3)[0].entity == i


def test_where_others_can_ask_a_token_is_needed(run: Run) -> None:
    assert [is_loopback(x) for x in ("localhost", "127.0.0.2", "::1", "0.0.0.0", "::", "x.org")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="--no-token"):
        kgmlm.serve(run, host="0.0.0.0", port=0, progress=False)
    for token in ("", "a b", "é"):
        with pytest.raises(ConfigError, match="a token is"):
            service(run, token=token)
    with pytest.raises(ConfigError, match="no address"):
        bound("no.such.host.invalid", 0)
    with pytest.raises(ConfigError, match=r"no address a\.\.b: .*label empty"):
        bound("a..b", 0)
    with pytest.raises(ConfigError, match="a port is a number up to 65,535, not 70,000"):
        bound("127.0.0.1", 70_000)
    for window in (-1, 2000, float("nan"), "x"):
        with pytest.raises(ConfigError, match="--window is a number from 0 to 1,000, not"):
            service(run, window=window)  # type: ignore[arg-type]
    with bound("127.0.0.1", 0) as at:
        at.listen()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address(at))
        with pytest.raises(ConfigError, match="cannot serve at"):
            bound("127.0.0.1", at.getsockname()[1])


def test_what_is_not_installed_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgmlm.serving.serve.find_spec", lambda name: None)
    for call in (service, kgmlm.serve):
        with pytest.raises(ConfigError, match=r"pip install 'kgmlm\[serve\]'"):
            call(run)


def test_mistakes_of_the_command(cli: Cli, toy_run: Path, tmp_path: Path) -> None:
    refused(cli("serve", toy_run, "--host", "0.0.0.0", "--port", "0"), "--no-token")
    refused(cli("serve", tmp_path / "none"), "does not exist")


@pytest.fixture
def process(calibrated: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], str]]]:
    """Starts a serving process; gives it with its URL."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-m", "kgmlm", "serve", str(calibrated), "--port", "0", "-q", *options]
        made = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
        )
        started.append(made)
        assert made.stderr is not None
        assert select.select([made.stderr], [], [], 120)[0]
        line = made.stderr.readline()
        url = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert url, line + made.stderr.read()
        return made, url[0]

    yield start
    for made in started:
        made.kill()
        made.communicate()


@pytest.mark.slow
def test_a_process_ends_by_sigterm_after_what_is_in_flight(
    process: Callable[..., tuple[subprocess.Popen[str], str]],
) -> None:
    served, url = process("--window", "700")
    answers: list[httpx2.Response] = []

    def ask() -> None:
        answers.append(httpx2.post(f"{url}/rank", json={"queries": [CAPITAL]}, timeout=60))

    asking = threading.Thread(target=ask)
    asking.start()
    while "kgmlm_waiting_queries 0.0" in httpx2.get(f"{url}/metrics").text:
        assert asking.is_alive()
    served.send_signal(signal.SIGTERM)
    asking.join(60)
    out, err = served.communicate(timeout=60)
    assert answers[0].status_code == 200
    assert answers[0].json()["results"][0]["head"] == "france"
    assert (served.returncode, out, err) == (0, "", "")


@pytest.mark.slow
def test_500_answers_under_load_are_those_of_rank(
    process: Callable[..., tuple[subprocess.Popen[str], str]], run: Run
) -> None:
    triples = run.graph.labeled(run.graph.splits["train"])[:25]
    asked = [(h, r, None) for h, r, _ in triples] + [(None, r, t) for _, r, t in triples]
    expected = [run.rank([query], k=5)["score"].tolist() for query in asked]
    names = ("head", "relation", "tail")
    queries = [{k: v for k, v in zip(names, query, strict=True) if v is not None} for query in asked]
    _, url = process()
    with httpx2.Client(base_url=url, timeout=60) as client, ThreadPoolExecutor(8) as clients:
        bodies = [{"queries": [queries[i % len(queries)]], "k": 5} for i in range(500)]
        answers = list(clients.map(lambda body: client.post("/rank", json=body), bodies))
        batches = re.search(r"kgmlm_batch_queries_count (\d+)", client.get("/metrics").text)
    assert {answer.status_code for answer in answers} == {200}
    for i, answer in enumerate(answers):
        scores = [row["score"] for row in answer.json()["results"][0]["predictions"]]
        assert scores == pytest.approx(expected[i % len(queries)], abs=1e-4)
    assert batches
    assert int(batches[1]) < 500


def test_unknown_names_are_searched_for(run: Run) -> None:
    with pytest.raises(QueryError, match="did you mean 'France'"):
        Session(run).names.entity("Frnace")
