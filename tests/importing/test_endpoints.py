"""SPARQL endpoints, by a real Oxigraph server."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
from conftest import Cli, refused

import kgmlm
from kgmlm.core.errors import ConfigError, DataError
from kgmlm.graphs.datasets import read_folder
from kgmlm.importing import endpoints

GRAPH = """
@prefix : <http://ex.org/> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
@prefix xsd: <http://www.w3.org/2001/XMLSchema#> .
:paris :capitalOf :france ; rdfs:label "Paris"@en , "Париж"@ru ; :born "0250-01-01"^^xsd:date .
:france :near :spain , :italy ; rdfs:comment "a \\"country\\"\\nin Europe"@en . :spain :near :france .
[] :near :spain ; :of [ :near :italy ; :of [ :near :france ] ] ; :by [ :near :paris ] .
[] :near :spain .
"""


def triples_of(folder: Path) -> list[tuple[str, ...]]:
    """The training triples; numbers of blank nodes are left out, since they go by the order of a file."""
    graph = read_folder(folder)
    rows = graph.labeled(graph.triples("train"))
    return sorted(tuple("_:" if label.startswith("_:") else label for label in row) for row in rows)


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that has :data:`GRAPH`."""
    folder = tmp_path_factory.mktemp("oxigraph")
    (folder / "graph.ttl").write_text(GRAPH)
    program = Path(sys.executable).with_name("oxigraph")
    store = ["--location", str(folder / "store")]
    loading = [str(program), "load", *store, "--file", str(folder / "graph.ttl")]
    subprocess.run(loading, check=True, capture_output=True, timeout=60)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with subprocess.Popen(
        [program, "serve-read-only", *store, "--bind", address],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            for _ in range(600):
                with contextlib.suppress(URLError):
                    urlopen(f"http://{address}/query?query=ASK%7B%7D", timeout=10).close()
                    break
                time.sleep(0.1)
            yield f"sparql+http://{address}/query"
        finally:
            server.terminate()


class Proxy:
    """A server between, which fails as it is told, and counts what it is asked.

    Args:
        answers: what it answers instead of the endpoint: by the number of the request, from 1, status and
            headers.
    """

    def __init__(self, endpoint: str, answers: dict[int, tuple[int, dict[str, str]]]) -> None:
        target = endpoint.removeprefix("sparql+")
        self.asked: list[str] = []
        own = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                own.asked.append(body.decode())
                status, headers = answers.get(len(own.asked), (200, {}))
                data = b"no"
                if status == 200:
                    names = ("Accept", "Content-Type", "User-Agent")
                    request = Request(target, body, {name: self.headers[name] for name in names})
                    with urlopen(request, timeout=60) as response:
                        data = response.read()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"sparql+http://127.0.0.1:{self.server.server_port}/query"

    def __enter__(self) -> Proxy:
        Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting between tries."""
    monkeypatch.setattr(endpoints, "WAIT", 0.0)


@pytest.mark.parametrize("page", [2, 5, 10_000])
def test_an_endpoint_is_read_as_its_file(
    endpoint: str, page: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "PAGE", page)
    (tmp_path / "graph.ttl").write_text(GRAPH)
    report = kgmlm.import_graph(endpoint, tmp_path / "out", progress=False)
    assert report == kgmlm.import_graph(tmp_path / "graph.ttl", tmp_path / "other", progress=False)
    assert triples_of(tmp_path / "out") == triples_of(tmp_path / "other")
    for column in ("name", "description"):
        texts = (read_folder(tmp_path / out).entities.column(column) for out in ("out", "other"))
        assert sorted(next(texts)) == sorted(next(texts))
    assert sorted(x.name for x in tmp_path.iterdir()) == ["graph.ttl", "other", "out"]


def test_a_query_says_what_is_read(endpoint: str, tmp_path: Path, cli: Cli) -> None:
    query = """# near and back
    PREFIX : <http://ex.org/>
    SELECT DISTINCT ?b (:nearTo AS ?r) ?a WHERE { ?a :near ?b . FILTER(isIRI(?a)) }"""
    (tmp_path / "near.rq").write_text(query)
    asked = (
        "data",
        "import",
        endpoint,
        "--query",
        str(tmp_path / "near.rq"),
        "--output",
        str(tmp_path / "out"),
    )
    done = cli(*asked)
    assert "3 triples of 3 entities and 1 relation" in done.stdout, done.stderr
    ex = "http://ex.org/"
    assert triples_of(tmp_path / "out") == [
        (f"{ex}{a}", f"{ex}nearTo", f"{ex}{b}")
        for a, b in (("france", "spain"), ("italy", "france"), ("spain", "france"))
    ]


def test_pages_that_fail_are_asked_again(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "PAGE", 4)
    monkeypatch.setattr(endpoints, "MIN_PAGE", 1)
    failures: dict[int, tuple[int, dict[str, str]]] = {
        2: (503, {}),
        4: (429, {"Retry-After": "0"}),
        5: (500, {}),
    }
    with Proxy(endpoint, failures) as proxy:
        kgmlm.import_graph(proxy.address, tmp_path / "out", progress=False)
    kgmlm.import_graph(endpoint, tmp_path / "other", progress=False)
    assert triples_of(tmp_path / "out") == triples_of(tmp_path / "other")
    assert "LIMIT+4+OFFSET+0" in proxy.asked[1]
    assert "LIMIT+2+OFFSET+0" in proxy.asked[2]


def test_blank_nodes_of_an_endpoint_that_renames_them_are_kept_apart(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "PAGE", 3)
    monkeypatch.setattr(endpoints, "_keeps_blanks", lambda url, asked: False)
    whole = kgmlm.import_graph(endpoint, tmp_path / "whole", progress=False)
    assert whole["blank_nodes"] > 5


def test_an_interrupted_import_goes_on(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "PAGE", 3)
    broken = {n: (404, dict[str, str]()) for n in range(4, 99)}
    with Proxy(endpoint, broken) as proxy:
        message = r"404.*; the same command resumes after 6 fetched triples"
        with pytest.raises(DataError, match=message):
            kgmlm.import_graph(proxy.address, tmp_path / "out", progress=False)
        assert not (tmp_path / "out").exists()
        first = len(proxy.asked)
        broken.clear()
        kgmlm.import_graph(proxy.address, tmp_path / "out", progress=False)
        assert "OFFSET+6" in proxy.asked[first + 1]
    kgmlm.import_graph(endpoint, tmp_path / "other", progress=False)
    assert triples_of(tmp_path / "out") == triples_of(tmp_path / "other")
    assert sorted(x.name for x in tmp_path.iterdir()) == ["other", "out"]


@pytest.mark.parametrize(
    ("query", "options", "error", "said"),
    [
        ("SELECT ?a ?b WHERE { ?a ?b ?c }", {}, ConfigError, "three variables"),
        ("CONSTRUCT { ?a ?b ?c } WHERE { ?a ?b ?c }", {}, ConfigError, "three variables"),
        ("SELECT ?a ?b ?c WHERE { ?a ?b ?c ", {}, DataError, "has not answered: 400"),
        ("SELECT ?a ?b ?c WHERE { ?a <http://ex.org/no> ?c, ?b }", {}, DataError, "no triple"),
        (None, {"format": "turtle"}, ConfigError, "read alone"),
    ],
)
def test_what_an_endpoint_cannot_be_asked(
    query: str | None,
    options: dict[str, Any],
    error: type[Exception],
    said: str,
    endpoint: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(error, match=said):
        kgmlm.import_graph(endpoint, tmp_path / "out", query=query, progress=False, **options)
    assert not (tmp_path / "out").exists()


def test_what_is_no_endpoint(tmp_path: Path, cli: Cli) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(DataError, match="has not answered"):
        kgmlm.import_graph(f"sparql+http://127.0.0.1:{port}/query", tmp_path / "out", progress=False)
    (tmp_path / "a.nt").write_text("<http://a> <http://b> <http://c> .\n")
    (tmp_path / "a.rq").write_text(endpoints.ALL)
    given = [str(tmp_path / name) for name in ("a.nt", "a.rq", "out")]
    done = cli("data", "import", given[0], "--query", given[1], "--output", given[2])
    refused(done, "a query is asked of an endpoint")
