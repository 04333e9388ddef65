"""What the service has for its page: files, the walk through a graph, explored queries, judgments."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import numpy as np
import pytest
from starlette.testclient import TestClient
from trainings import TINY, arguments

import kgmlm
from kgmlm.graphs.entities import EntityTable, RelationTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.names import Resolver
from kgmlm.graphs.queries import Query
from kgmlm.prediction.new_facts import FILE
from kgmlm.runs import feedback
from kgmlm.serving.app import FOLDER
from kgmlm.serving.explore import Explorer
from kgmlm.serving.serve import service
from kgmlm.signals import SIGNALS

HOME = "http://127.0.0.1"
ASKED = {"head": "france", "relation": "capital"}
JUDGED = {"head": "france", "relation": "capital", "tail": "paris", "label": 1}


@pytest.fixture(scope="module")
def folder(toy_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = shutil.copytree(toy_run, tmp_path_factory.mktemp("paged") / "toy")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("kgmlm.prediction.drawing.MIN_TRIPLES", 2)  # the toy graph has few
        kgmlm.calibrate(run, progress=False)
    return run


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[TestClient]:
    with TestClient(service(folder), HOME) as made:
        yield made


def test_the_page_is_small_whole_and_loads_nothing_else(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    asked, size = ["/"], 0
    for path in asked:
        answer = client.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["content-security-policy"] == policy
        size += len(answer.content)
        match = re.findall(r"""(?:src|href|from|import)[= ]"([^"#]+)\"""", answer.text)
        for link in (urljoin(path, x) for x in match):
            if link not in (*asked, "/docs"):
                asked.append(link)
    assert {path.removeprefix("/page/") for path in asked[1:]} == {
        path.name for path in FOLDER.iterdir() if path.name != "index.html"
    }
    assert size < 200_000
    for file in FOLDER.iterdir():
        text = file.read_text("utf-8")
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), file
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text), file
    assert client.get("/page/none.js").status_code == 404
    assert client.get("/page/..%2Fapp.py").status_code == 404


def test_the_page_needs_no_token_and_tells_nothing(folder: Path) -> None:
    with TestClient(service(folder, token="secret"), HOME) as client:
        assert client.get("/").status_code == 200
        assert client.get("/page/main.js").status_code == 200
        for path in ("/info", "/relations", "/feedback?entity=france", "/pages", "/page"):
            assert client.get(path).status_code == 401, path
        assert client.post("/explore", json=ASKED).status_code == 401
        assert client.post("/feedback", json=JUDGED).status_code == 401
        assert client.get("/info", headers={"Authorization": "Bearer secret"}).status_code == 200


def test_an_explored_query_is_what_explain_says(client: TestClient, folder: Path) -> None:
    body = ASKED | {"k": 5, "also": ["berlin", "France"]}
    parsed = client.post("/explore", json=body).json()
    explained = client.post("/explain", json={"queries": [ASKED], "k": 5}).json()["results"][0]["predictions"]
    for row, same in zip(parsed["predictions"], explained, strict=True):
        assert {key: row[key] for key in same if key != "score"} == {
            k: v for k, v in same.items() if k != "score"
        }
    shown = [row["probability"] for row in parsed["predictions"]]
    numbers = [p for p in shown if p is not None]
    assert numbers
    assert all(0 <= p <= 1 for p in numbers)
    berlin, france = parsed["also"]
    assert berlin["probability"] is not None
    ranks = kgmlm.open_run(folder, device="cpu").rank(head="france", relation="capital", k=31)
    berlin, france = parsed["also"]
    assert berlin["rank"] == ranks.set_index("tail_label").loc["berlin", "rank"]
    assert berlin["possible"]
    new = client.post("/explore", json=body | {"novel": True}).json()["also"][0]["rank"]
    assert new == berlin["rank"] - ranks["known"][: berlin["rank"] - 1].sum()
    assert france["rank"] == ranks.set_index("tail_label").loc["france", "rank"]
    assert parsed["reading"]["before"] == "France. country in western Europe | has the capital |"
    assert parsed["reading"]["hole"] == kgmlm.info(folder).model["span_length"]
    assert set(parsed["usual"]) == set(parsed["predictions"][0]["parts"])
    everybody = client.post("/explore", json=ASKED | {"k": 1000}).json()["predictions"]
    mean = np.mean([row["parts"]["likelihood"]["adds"] for row in everybody])
    assert parsed["usual"]["likelihood"] == pytest.approx(mean, rel=1e-3)
    assert parsed["entity"]["of_graph"]


def test_each_signal_has_a_name_and_a_color() -> None:
    page = Path(kgmlm.__file__).parent / "serving" / "page"
    words, style = ((page / name).read_text("utf-8") for name in ("words.js", "style.css"))
    for name in (*SIGNALS, "reverse", "trees"):
        assert f'  {name}: "' in words
        assert f".s-{name} {{ background: var(--s-{name}); }}" in style
        assert style.count(f"--s-{name}: ") == 2, "a light one and a dark one"


def test_a_new_entity_is_read_by_its_words(client: TestClient) -> None:
    new = [{"label": "new: France", "name": "France", "description": "another one"}]
    asked = {"head": "new: France", "relation": "capital", "entities": new, "k": 2}
    parsed = client.post("/explore", json=asked).json()
    assert parsed["reading"]["before"] == "France. another one | has the capital |"
    assert not parsed["entity"]["of_graph"]
    assert parsed["entities"] == 32
    assert client.post("/explore", json=ASKED | {"also": ["nobody"]}).status_code == 422
    assert client.post("/explore", json=ASKED | {"tail": "paris"}).status_code == 422
    typed = {"name": "Atlantis", "types": ["country", "island"]}
    asked = {"head": "Atlantis", "relation": "capital", "entities": [typed], "k": 2}
    assert client.post("/explore", json=asked).json()["entity"]["types"] == ["country", "island"]
    typed["types"] = ["a|b"]
    assert "'|'" in client.post("/explore", json=asked).json()["error"]


def test_what_is_given_of_a_new_entity_is_told_back(client: TestClient) -> None:
    triples = [{"relation": "capital", "tail": "Paris"}, {"head": "spain", "relation": "borders"}]
    new = [{"name": "Atlantis", "triples": triples}]
    asked = {"head": "Atlantis", "relation": "capital", "entities": new, "k": 40}
    parsed = client.post("/explore", json=asked).json()
    given = [(t["relation"]["label"], t["target"], t["entity"]["label"]) for t in parsed["entity"]["given"]]
    assert given == [("capital", "tail", "paris"), ("borders", "head", "spain")]
    assert [p["entity"] for p in parsed["predictions"] if p["known"]] == ["paris"]
    (paris,) = (p for p in parsed["predictions"] if p["entity"] == "paris")
    assert paris["probability"] is None, "it is known, so nobody asks how probable it is"
    assert client.post("/explore", json=ASKED).json()["entity"]["given"] == []


def test_neighbors_that_are_told_are_listed_and_what_cannot_answer_is_marked(
    make_ranker: Any, toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kgmlm.core.config import TextSettings
    from kgmlm.ranking.predictor import Predictor
    from kgmlm.serving.explore import shown

    monkeypatch.setattr("kgmlm.ranking.constraints.MIN_TRIPLES", 1)
    predictor = Predictor(toy, make_ranker(TextSettings(neighbors=2, template="natural")))
    query = Resolver(toy).query("capital", "France", None)
    values = shown(predictor, query, 1, False, np.array([query.entity]))
    assert values["predictions"][0]["possible"]
    assert not values["also"][0]["possible"]
    rows = [edge["entity"]["name"] for edge in values["reading"]["neighbors"]]
    assert len(rows) == 2
    assert all(name in values["reading"]["before"] for name in rows)
    assert "[MASK]" not in values["reading"]["before"] + values["reading"]["after"]


def test_relations_come_in_the_order_of_what_an_entity_has(client: TestClient, toy: KnowledgeGraph) -> None:
    def labels(**asked: str) -> list[str]:
        return [r["label"] for r in client.get("/relations", params=asked).json()["results"]]

    everything = labels()
    assert sorted(labels(entity="france", side="head")) == sorted(everything)
    has = {r for h, r, _ in toy.labeled(toy.splits["train"]) if h == "france"}
    assert set(labels(entity="france", side="head")[: len(has)]) == has
    is_in = {r for _, r, t in toy.labeled(toy.splits["train"]) if t == "paris"}
    assert set(labels(entity="paris", side="tail")[: len(is_in)]) == is_in
    assert labels(entity="nobody", side="head") == labels(entity="", side="head")
    assert client.get("/relations", params={"entity": "x", "side": "middle"}).status_code == 422


def graph_of(triples: list[tuple[int, int, int]], types: list[str] | None = None) -> KnowledgeGraph:
    names = [f"e{i}" for i in range(1 + max(x for h, _, t in triples for x in (h, t)))]
    relations = RelationTable([f"r{i}" for i in range(1 + max(r for _, r, _ in triples))])
    splits = {"train": np.array(triples, np.int64)}
    return KnowledgeGraph("made", EntityTable(names, types=types), relations, splits, {})


def test_near_triples_share_most_facts() -> None:
    # 0 and 1 have two facts alike, 0 and 2 one; all have r0 to 9.
    triples = [
        (0, 0, 9),
        (1, 0, 9),
        (2, 0, 9),
        (0, 1, 5),
        (1, 1, 5),
        (2, 1, 6),
        (0, 0, 8),
        (4, 2, 8),
        (4, 2, 9),
    ]
    near = Explorer(graph_of(triples)).near(Query(0, 0, "tail"), 9)
    assert near["same_answer"] == [
        {"label": "e1", "name": "e1", "shared": 2, "of": 3},
        {"label": "e2", "name": "e2", "shared": 1, "of": 3},
    ]
    assert near["same_question"] == [{"label": "e8", "name": "e8", "shared": 2, "of": 4}]
    heads = Explorer(graph_of(triples)).near(Query(9, 0, "head"), 1)
    assert [row["label"] for row in heads["same_question"]] == ["e0", "e2"]
    assert Explorer(graph_of(triples)).near(Query(99, 0, "tail"), 9)["same_answer"][0]["of"] == 0


def test_usual_relations_are_those_of_like_entities() -> None:
    # 0 and 1 have r0; 1 has r1, too; r2 is frequent elsewhere.
    triples = [(0, 0, 5), (1, 0, 6), (1, 1, 7), *((2, 2, t) for t in range(8, 12))]
    explorer = Explorer(graph_of(triples))
    assert [r for r, _, _ in explorer.usual(0, "head")] == [0, 1, 2]
    assert [r for r, _, _ in explorer.usual(None, "head")] == [2, 0, 1]
    assert explorer.usual(2, "head")[0] == (2, 1.0, 4)


def test_types_are_given_or_follow_from_a_relation() -> None:
    graph = graph_of([(0, 0, 1), (0, 0, 2), (3, 1, 1)], ["city", "", "", ""])
    assert Explorer(graph, "r0").types(0, ("city",)) == ["city", "e1", "e2"]
    assert Explorer(graph).types(0, ("city",)) == ["city"]


@pytest.mark.parametrize("name", ["toy", "europe", "umls"])
def test_an_example_is_that_of_the_card(name: str) -> None:
    graph = kgmlm.load_graph(name)
    example = Explorer(graph).example
    assert example is not None
    query = Resolver(graph).query(example.relation, example.head, None)
    assert query.entity in graph.splits["train"][:, 0]
    assert name != "umls" or example == ("virus", "causes")


def test_an_example_of_another_graph_is_a_frequent_relation_with_a_few_answers() -> None:
    triples = [(0, 0, 3), (1, 0, 3), (1, 0, 4), (2, 0, 5), *((6, 0, t) for t in range(10, 30)), (0, 1, 1)]
    assert Explorer(graph_of(triples)).example == ("e1", "r0")


def test_examples_are_those_of_a_relation(client: TestClient, toy: KnowledgeGraph) -> None:
    def labels(**asked: Any) -> list[str]:
        return [row["label"] for row in client.get("/entities", params=asked).json()["results"]]

    capitals = {(h, t) for h, r, t in toy.labeled(toy.splits["train"]) if r == "capital"}
    for side, of in (("head", {h for h, _ in capitals}), ("tail", {t for _, t in capitals})):
        assert set(labels(relation="capital", side=side, k=100)) == of
    any_relation = labels(k=100)
    assert len(any_relation) == len(set(any_relation)) > 1
    assert client.get("/entities", params={"relation": "nothing"}).status_code == 422
    rows = client.get("/relations").json()["results"]
    heads = {(r, h) for h, r, _ in toy.labeled(toy.splits["train"])}
    assert all((row["label"], row["example"]) in heads for row in rows)


def test_what_ifs_are_those_of_the_card_or_twins(client: TestClient) -> None:
    world = Explorer(kgmlm.load_graph("world"))
    labels = {r.label for r in world.graph.relations}
    names = set(world.graph.entities.column("name"))
    for proposed in world.what_ifs:
        assert proposed["relation"] in labels
        assert proposed["name"] not in names
        assert set(proposed["types"]) <= set(world.frequent_types)
    twins = client.get("/info").json()["what_if"]
    assert len(twins) == 3
    for twin in twins:
        asked = {"head": twin["name"], "relation": twin.pop("relation"), "entities": [twin], "k": 2}
        assert client.post("/explore", json=asked).status_code == 200
    bare = Explorer(graph_of([(0, 0, 1), (0, 1, 2), (3, 0, 1)])).what_ifs
    assert bare[0]["triples"] == [{"relation": "r1", "tail": "e2"}]


def test_what_an_entity_lacks_is_what_python_says(client: TestClient, folder: Path) -> None:
    parsed = client.get("/missing", params={"entity": "france", "k": 4}).json()["results"]
    expected = kgmlm.open_run(folder, device="cpu").missing("france", k=4).as_json()
    assert [(row["head"], row["relation"], row["tail"]) for row in parsed] == [
        (row["head"], row["relation"], row["tail"]) for row in expected
    ]
    assert [row["probability"] for row in parsed] == pytest.approx([row["probability"] for row in expected])
    assert client.get("/missing", params={"entity": "atlantis"}).status_code == 422
    assert client.get("/missing", params={"entity": "france", "k": 1000}).status_code == 422


def awaited(client: TestClient) -> dict[str, Any]:
    """The new facts, once they are there or will not be."""
    until = time.monotonic() + 300
    while (parsed := client.get("/new-facts").json())["status"] == "looking":
        assert time.monotonic() < until
        time.sleep(0.1)
    return dict(parsed)


def toy_triples() -> list[tuple[str, str, str]]:
    """The training triples of the toy graph."""
    toy = kgmlm.load_graph("toy")
    return list(toy.labeled(toy.splits["train"]))


def test_new_facts_are_those_of_complete_and_are_kept(folder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(folder, tmp_path / "toy")

    with TestClient(service(run), HOME) as client:
        result = awaited(client)
        assert result["status"] == "ready", result["why"]
        relation = result["relations"][0]["label"]
        some = client.get("/new-facts", params={"relation": relation, "limit": 100}).json()
    asked: dict[str, Any] = {"min_probability": 0.01, "functional": True, "known": ["train", "valid"]}
    made = kgmlm.complete(run, tmp_path / "facts.parquet", progress=False, **asked)
    assert [row["head"] for row in made["best"]] == [row["head"] for row in result["facts"]]
    assert result["total"] == made["listed"] == sum(of["facts"] for of in result["relations"])
    assert {fact["relation"] for fact in some["facts"]} == {relation}
    assert len(some["facts"]) == some["total"] == result["relations"][0]["facts"]
    kept = (run / FILE).stat().st_mtime_ns
    assert not [path for path in run.iterdir() if path.name.startswith(f"{FILE}.")], "no parts are left"
    with TestClient(service(run), HOME) as again:
        assert again.get("/new-facts").json() == result
    assert (run / FILE).stat().st_mtime_ns == kept
    kgmlm.tune(run, add="types", progress=False)
    with TestClient(service(run), HOME) as other:
        assert other.get("/new-facts").json()["status"] == "looking"
        assert awaited(other)["status"] == "ready"
    assert (run / FILE).stat().st_mtime_ns != kept


def test_facts_of_a_first_sample_are_shown_while_it_looks_further(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(folder, tmp_path / "toy")
    monkeypatch.setattr("kgmlm.serving.background.SMALL", 10)
    monkeypatch.setattr("kgmlm.serving.background.FIRST", 20)
    monkeypatch.setattr("kgmlm.prediction.new_facts.MIN_PROBABILITY", 0.0)
    seen = []
    with TestClient(service(run), HOME) as client:
        until = time.monotonic() + 300
        while (parsed := client.get("/new-facts").json())["status"] == "looking":
            seen.append((parsed["total"], parsed["asked"], parsed["progress"]))
            assert time.monotonic() < until
            time.sleep(0.05)
    assert parsed["status"] == "ready", parsed["why"]
    assert parsed["progress"] == 1
    assert seen[0] == (0, 0, 0)
    assert all(0 <= progress <= 1 for _, _, progress in seen)
    assert {asked for total, asked, _ in seen if total} == {20}, "facts of the first sample come first"
    assert parsed["asked"] > 20
    assert not [path for path in run.iterdir() if path.name.startswith(f"{FILE}.")], "no parts are left"


def test_it_is_said_why_there_are_no_new_facts(folder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(folder, tmp_path / "toy")
    with TestClient(service(run), HOME) as client:
        run.rename(tmp_path / "moved")
        parsed = client.get("/new-facts").json()
    assert parsed["status"] == "none"
    assert "has changed" in parsed["why"]
    small: dict[str, Any] = {"max_steps": 1, "holdout": False, **TINY}
    alone = kgmlm.train(toy_triples(), "scratch", tmp_path / "alone", progress=False, **arguments(**small))
    with TestClient(service(alone), HOME) as client:
        parsed = awaited(client)
    assert parsed["status"] == "none"
    assert parsed["why"].startswith("the graph ")
    assert "no split 'valid'" in parsed["why"]


def test_judgments_are_kept_with_the_run(client: TestClient, folder: Path) -> None:
    assert client.get("/info").json()["judging"]
    answer = client.post("/feedback", json=JUDGED)
    assert answer.status_code == 201, answer.text
    client.post("/feedback", json=JUDGED | {"tail": "rome", "label": 0})
    client.post("/feedback", json=JUDGED | {"tail": "rome", "label": None})
    (one, two, three) = map(json.loads, (folder / feedback.FEEDBACK_FILE).read_text().splitlines())
    assert (one["label"], two["label"], three["label"]) == (1, 0, None)
    assert one["fingerprint"] == kgmlm.open_run(folder).folder.scores_digest != ""
    (kept,) = client.get("/feedback", params={"entity": "france"}).json()["results"]
    assert (kept["tail"], kept["label"]) == ("paris", 1)
    assert client.get("/feedback", params={"entity": "rome"}).json()["results"] == []
    assert client.get("/feedback").json()["results"] == [kept]
    with TestClient(service(folder), HOME) as again:
        assert again.get("/feedback", params={"entity": "paris"}).json()["results"] == [kept]
    for wrong in ({"head": "France"}, {"relation": "nothing"}, {"label": 2}, {"label": "yes"}, {"more": 1}):
        assert client.post("/feedback", json=JUDGED | wrong).status_code == 422, wrong
    plain = {"content-type": "text/plain"}  # what a form of another site could send
    assert client.post("/feedback", content=json.dumps(JUDGED), headers=plain).status_code == 422
    assert len((folder / feedback.FEEDBACK_FILE).read_text().splitlines()) == 3


def test_entities_that_were_added_are_judged(folder: Path) -> None:
    with TestClient(service(folder, writable=True), HOME) as client:
        assert client.post("/feedback", json=JUDGED | {"tail": "atl"}).status_code == 422
        new = {"entities": [{"label": "atl", "name": "Atlantis"}]}
        assert client.post("/entities", json=new).status_code == 201
        assert client.post("/feedback", json=JUDGED | {"tail": "atl"}).status_code == 201


def test_judgments_are_refused_where_they_cannot_be_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KGMLM_CACHE", str(tmp_path))
    pack = tmp_path / "toy.kgmlm"
    kgmlm.pack(folder, pack)

    def refuses(**options: Any) -> bool:
        with TestClient(service(options.pop("run", folder), **options), HOME) as client:
            answer = client.post("/feedback", json=JUDGED)
            allowed = client.get("/info").json()["judging"]
            assert (answer.status_code, allowed) in ((403, False), (201, True))
            return answer.status_code == 403 and "folder" in answer.json()["error"]

    assert refuses(run=pack)
    assert refuses(any_host=True)
    assert not refuses(any_host=True, writable=True)
    monkeypatch.setattr("kgmlm.serving.serve.os.access", lambda path, mode: False)
    assert refuses()
