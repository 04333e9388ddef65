"""Relationships from ArcadeDB, which speaks Bolt, by Neo4j's driver, and completions written into it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Cli, refused
from neo4j import Driver, GraphDatabase

import kgmlm
from kgmlm.core.errors import ConfigError, DataError
from kgmlm.graphs.datasets import read_folder
from kgmlm.graphs.entities import Entity
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.importing import neo4j
from kgmlm.prediction import listing

WORD = "a-word-for-tests"
SERVER = """
import sys, arcadedb_embedded
path, http, bolt, word = sys.argv[1:]
plugin = "Bolt:com.arcadedb.bolt.BoltProtocolPlugin"
config = {"http_port": int(http), "server_plugins": plugin, "bolt_port": int(bolt)}
server = arcadedb_embedded.ArcadeDBServer(path, word, config, jvm_kwargs={"heap_size": "512m"})
server.start()
server.create_database("films")
print("ready", flush=True)
sys.stdin.read()
server.stop()
"""
FILMS = """
CREATE (k:Person:Director {uid: 'p1', name: 'Akira Kurosawa', born: 1910, alive: false}),
  (m:Person:Actor {uid: 'p2', name: 'Toshiro Mifune', born: date('1920-04-01'),
    aliases: ['Mifune', 'The Wolf']}),
  (r:Film {uid: 'f1', title: 'Rashomon', summary: 'Four accounts of a crime.', embedding: [0.5, 0.25]}),
  (y:Film {uid: 'f2', title: 'Yojimbo', tagline: 'Seven men'}), (j:Country {uid: 'c1', code: 'JP'}),
  (a:Person {uid: 'p3', name: 'nobody is linked to me'}),
  (k)-[:DIRECTED {year: 1950}]->(r), (k)-[:DIRECTED]->(y), (m)-[:`ACTED IN`]->(r), (m)-[:`ACTED IN`]->(y),
  (k)-[:bornIn]->(j), (m)-[:bornIn]->(j), (m)-[:bornIn]->(j)
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server without data."""
    with contextlib.ExitStack() as stack:
        free = [stack.enter_context(socket.socket()) for _ in range(2)]
        for one in free:
            one.bind(("127.0.0.1", 0))
        ports = [f"{one.getsockname()[1]}" for one in free]
    folder = str(tmp_path_factory.mktemp("arcadedb"))
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, folder, *ports, WORD],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert any(line.startswith("ready") for line in server.stdout)
        yield f"bolt://localhost:{ports[1]}/films"
        server.stdin.close()


@pytest.fixture
def films(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """A driver of the server, which has :data:`FILMS`; the environment lets kgmlm in."""
    monkeypatch.setenv(neo4j.USER, "root")
    monkeypatch.setenv(neo4j.PASSWORD, WORD)
    with GraphDatabase.driver(address.removesuffix("/films"), auth=("root", WORD)) as driver:
        driver.execute_query("MATCH (n) DETACH DELETE n", database_="films")
        driver.execute_query(FILMS, database_="films")
        yield driver


def imported(address: str, folder: Path, **options: Any) -> tuple[KnowledgeGraph, dict[str, Any]]:
    report = kgmlm.import_graph(address, folder / "graph", progress=False, **options)
    return read_folder(folder / "graph"), report


def entities(graph: KnowledgeGraph) -> list[Entity]:
    return [graph.entities[i] for i in range(len(graph.entities))]


def named(graph: KnowledgeGraph) -> set[tuple[str, str, str]]:
    """The triples by names."""
    return {
        (graph.entities[h].name, graph.relations[r].name, graph.entities[t].name)
        for h, r, t in graph.triples("train").tolist()
    }


def test_a_graph(films: Driver, address: str, tmp_path: Path) -> None:
    graph, report = imported(address, tmp_path)
    assert {triple for triple in named(graph) if triple[1] != "born in"} == {
        ("Akira Kurosawa", "directed", "Rashomon"),
        ("Akira Kurosawa", "directed", "Yojimbo"),
        ("Toshiro Mifune", "acted in", "Rashomon"),
        ("Toshiro Mifune", "acted in", "Yojimbo"),
    }
    assert {r.label for r in graph.relations} == {"DIRECTED", "ACTED IN", "bornIn"}
    assert (report["triples"], report["repeated"], report["unnamed_entities"]) == (6, 1, 1)
    others = {"uid": 5, "alive": 1, "embedding": 1, "tagline": 1, "code": 1}
    assert report["left_out_by"][neo4j.OTHER] == others
    results = {e.name: e.description for e in entities(graph)}
    assert results["Akira Kurosawa"] == "born 1910"
    assert results["Toshiro Mifune"] == "born 1920-04-01"
    assert results["Rashomon"] == "Four accounts of a crime."


def test_labels_by_a_key(films: Driver, address: str, tmp_path: Path) -> None:
    graph, _ = imported(address, tmp_path, key="uid")
    assert {e.label for e in entities(graph)} == {"p1", "p2", "f1", "f2", "c1"}
    of = {e.label: i for i, e in enumerate(entities(graph))}
    types = graph.entities.types or []
    assert set(types[of["p1"]]) == {"Person", "Director"}
    assert types[of["c1"]] == ("Country",)
    assert graph.entities.table.column("aliases").to_pylist()[of["p2"]] in (
        "Mifune|The Wolf",
        ["Mifune", "The Wolf"],
    )


def test_types_of_relationships_and_properties_are_chosen(
    films: Driver, address: str, tmp_path: Path
) -> None:
    some = {"keep_only": ["DIRECTED"], "name_predicates": ["uid"], "description_predicates": ["tagline"]}
    graph, report = imported(address, tmp_path, **some)
    assert named(graph) == {("p1", "directed", "f1"), ("p1", "directed", "f2")}
    assert report["left_out_by"]["of predicates that are not kept"] == {"ACTED IN": 2, "bornIn": 3}
    assert {e.name: e.description for e in entities(graph)}["f2"] == "Seven men"
    graph, report = imported(address, tmp_path / "b", skip=["bornIn", "born"], key="uid")
    assert len(graph.triples("train")) == 4
    assert all("born" not in e.description for e in entities(graph))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keep_only": ["LIKES"]}, "no relationships of type LIKES .there are: ACTED IN, DIRECTED, bornIn"),
        ({"key": "nothing"}, "no triple links two entities"),
        ({"key": "born"}, "no triple links two entities"),
    ],
)
def test_what_is_not_there(
    options: dict[str, Any], said: str, films: Driver, address: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=said):
        imported(address, tmp_path, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_key_is_of_one_node(films: Driver, address: str, tmp_path: Path) -> None:
    films.execute_query("MATCH (n {uid: 'f2'}) SET n.uid = 'f1'", database_="films")
    with pytest.raises(DataError, match="several nodes whose uid is 'f1'"):
        imported(address, tmp_path, key="uid")
    films.execute_query("MATCH (n {code: 'JP'}) SET n.uid = 'a\\tb'", database_="films")
    with pytest.raises(DataError, match="cannot be a label"):
        imported(address, tmp_path, key="uid")


def test_a_user_who_is_not_let_in(
    films: Driver, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(neo4j.PASSWORD, "another-word")
    with pytest.raises(DataError, match="does not let user 'root' in") as error:
        imported(address, tmp_path)
    assert "another-word" not in str(error.value)
    monkeypatch.delenv(neo4j.PASSWORD)
    with pytest.raises(DataError, match="does not let user 'root' in; set NEO4J_USERNAME"):
        imported(address, tmp_path)


def test_a_server_that_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="bolt://localhost:1 has not answered"):
        imported("bolt://localhost:1", tmp_path)


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        ("bolt://me:word@localhost", {}, "are not part of an address"),
        ("bolt://localhost", {"format": "turtle"}, "read alone"),
        ("bolt://localhost", {"query": "MATCH"}, "asked of an endpoint"),
        ("graph.nt", {"key": "uid"}, "a key is a property"),
    ],
)
def test_what_does_not_go_together(given: str, options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        kgmlm.import_graph(given, tmp_path / "graph", progress=False, **options)
    assert "word@" not in str(error.value)


def listed(folder: Path, *rows: tuple[str, str, str, float]) -> Path:
    """A list of new triples as ``complete`` writes it."""
    ends = ("head", "relation", "tail")
    cells = [
        {**dict(zip((*ends, "probability"), row, strict=True)), **{f"{x}_name": "some name" for x in ends}}
        for row in rows
    ]
    schema = listing.schema_of(explained=False).with_metadata({listing._KEY: b"{}"})
    pq.write_table(pa.Table.from_pylist(cells, schema), path := folder / "new.parquet")
    return path


def relationships(films: Driver) -> set[tuple[str, str, str, float | None]]:
    asked = "MATCH (h)-[r]->(t) RETURN h.uid, type(r), t.uid, r.probability"
    return {tuple(row.values()) for row in films.execute_query(asked, database_="films").records}


def test_completions_are_written_once(films: Driver, address: str, tmp_path: Path) -> None:
    before = relationships(films)
    new = listed(
        tmp_path,
        ("p1", "ACTED IN", "f1", 0.25),
        ("p1", "DIRECTED", "f1", 0.75),
        ("p9", "DIRECTED", "f1", 0.5),
        ("p2", "odd `type`", "f2", 0.5),
        ("p2", "bornIn", "f2", 0.125),
    )
    made = kgmlm.export(new, address, key="uid", min_probability=0.2, progress=False)
    assert {x: made[x] for x in ("triples", "known", "without_node")} == {
        "triples": 2, "known": 1, "without_node": 1,
    }  # fmt: skip
    written = {("p1", "ACTED IN", "f1", 0.25), ("p2", "odd `type`", "f2", 0.5)}
    assert relationships(films) == before | written
    kgmlm.export(listed(tmp_path, ("p1", "ACTED IN", "f1", 0.5)), address, key="uid", progress=False)
    assert relationships(films) == before | {("p1", "ACTED IN", "f1", 0.5), ("p2", "odd `type`", "f2", 0.5)}


def test_by_the_command_line(films: Driver, address: str, tmp_path: Path, cli: Cli) -> None:
    done = cli("data", "import", address, "--output", tmp_path / "films", "--keep-only", "DIRECTED")
    assert done.returncode == 0, done.stderr
    assert "2 triples of 3 entities and 1 relation" in done.stdout
    head, relation, tail = read_folder(tmp_path / "films").labeled(
        read_folder(tmp_path / "films").triples("train")
    )[0]
    new = listed(tmp_path, (tail, relation, head, 0.5))
    made = cli("export", new, "--output", address)
    assert made.returncode == 0, made.stderr
    assert "1 triple as neo4j" in made.stdout
    assert any(row[3] == 0.5 for row in relationships(films))
    nobody = listed(tmp_path, ("a", "b", "c", 0.5))
    refused(cli("export", nobody, "--output", address), "has none of the nodes")
    refused(cli("export", new, "--output", address, "--format", "csv"), "takes relationships, not csv")
    refused(cli("export", new, "--output", tmp_path / "x.csv", "--key", "uid"), "a key is a property")
