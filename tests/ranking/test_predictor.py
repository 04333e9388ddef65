from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import vectors_of
from doubles import FixedStage

import kgmlm
from kgmlm.core.config import KGESettings, RuleSettings, TextSettings, VectorSettings
from kgmlm.core.errors import DataError, ModelError, RunError
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries, Query
from kgmlm.ranking.predictor import Predictor
from kgmlm.ranking.ranker import Ranker, StageWeight
from kgmlm.ranking.retrieval import FOLDER, Retrieval
from kgmlm.runs.index import build_index
from kgmlm.runs.opened import open_folder
from kgmlm.signals.kge import KGE
from kgmlm.signals.rules import Rules
from kgmlm.text.torch_model import span_model


@pytest.fixture(scope="module")
def predictor(toy_run: Path) -> Predictor:
    return kgmlm.open_run(toy_run, device="cpu").predictor


def test_three_lines_of_python_give_a_table_with_pykeens_columns(toy_run: Path) -> None:
    predictor = kgmlm.open_run(toy_run).predictor
    table = predictor.rank(head="france", relation="capital", k=5)
    assert list(table.columns) == [
        *("tail_name", "probability", "known", "score", "rank", "tail_label", "tail_id"),
    ]
    assert len(table) == 5
    assert table["score"].is_monotonic_decreasing
    heads = predictor.rank(tail="paris", relation="capital", k=3)
    assert {"head_id", "score", "head_label"} <= set(heads.columns)


def test_the_ranking_is_that_of_the_scores(predictor: Predictor) -> None:
    query = Query(
        predictor.graph.entities.index["france"], predictor.graph.relations.index["capital"], "tail"
    )
    ((_, scores),) = predictor.ranker.rank(Queries.of([query]))
    ((_, best),) = predictor.predict([query], k=99)
    assert len(best) == len(predictor.graph.entities)
    assert [p.id for p in best] == np.argsort(-scores[0], kind="stable").tolist()
    assert [p.rank for p in best] == list(range(1, len(best) + 1))


def test_known_marks_all_splits_and_novel_hides_them(predictor: Predictor) -> None:
    graph = predictor.graph
    query = Query(graph.entities.index["austria"], graph.relations.index["capital"], "tail")
    ((_, best),) = predictor.predict([query], k=99)
    assert [p.label for p in best if p.known] == ["vienna"], "a test triple is known too"
    ((_, novel),) = predictor.predict([query], k=99, novel=True)
    assert [p.label for p in novel] == [p.label for p in best if not p.known]


def test_an_explanation_means_to_the_score(predictor: Predictor) -> None:
    query = Query(
        predictor.graph.entities.index["usa"], predictor.graph.relations.index["located_in"], "tail"
    )
    ((_, best),) = predictor.predict([query], k=31, explain=True)
    for p in best:
        assert p.tokens is not None
        assert p.parts is not None
        assert set(p.parts) == {"likelihood"}
        assert [t["position"] for t in p.tokens] == list(range(len(p.tokens)))
        mean = sum(t["log_likelihood"] for t in p.tokens) / len(p.tokens)
        assert mean == pytest.approx(p.score, abs=1e-5)
        assert p.parts["likelihood"].weight == 1
        assert p.parts["likelihood"].value == pytest.approx(mean)
        pieces = predictor.ranker.reader.tokenizer.tokens([t["id"] for t in p.tokens])
        assert pieces == [t["token"] for t in p.tokens]
        assert p.name.startswith("".join(t["text"] for t in p.tokens).strip()), "cut to the span"


@pytest.mark.parametrize(
    ("case", "parts"),
    [
        ("plain", {"likelihood", "vector"}),
        ("vectors that count nothing", {"likelihood", "vector"}),
        ("vectors alone", {"likelihood", "vector"}),
        ("kge that counts nothing", {"likelihood", "vector", "kge"}),
        ("kge", {"likelihood", "vector", "kge"}),
        ("kge alone", {"likelihood", "kge"}),
        ("likelihood alone", {"likelihood"}),
        ("second stage", {"likelihood", "vector", "fixed"}),
    ],
)
def test_the_parts_of_an_explanation_add_up_to_the_score(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, case: str, parts: set[str]
) -> None:
    ranker = make_ranker(TextSettings(max_length=40), VectorSettings(enabled=True))
    if case.startswith("kge"):
        ranker.signals["kge"] = KGE.fit(toy, KGESettings(dimension=8, epochs=1))
        table_R2 = np.full((len(toy.relations), 2), 0.0 if "nothing" in case else 0.5)
        ranker.mixture = ranker.mixture.weighed("kge", table_R2, 0.5)
    if "vectors that" in case:
        ranker.mixture = ranker.mixture.weighed("vector", np.zeros((len(toy.relations), 2)), 5.0)
    if case == "second stage":
        ranker = ranker.with_stage(FixedStage(StageWeight(5, 2.0)))
    if case.endswith("alone"):
        ranker = ranker.by(case.split()[0].removesuffix("s"))
    query = Query(toy.entities.index["usa"], toy.relations.index["located_in"], "tail")
    ((_, best),) = Predictor(toy, ranker).predict([query], k=31, explain=True)
    for p in best:
        assert p.parts is not None
        assert set(p.parts) == parts
        assert sum(part.weight * part.value for part in p.parts.values()) == pytest.approx(p.score, abs=1e-5)
        (shown,) = [p.as_json()["parts"]]
        assert sum(part["adds"] for part in shown.values()) == pytest.approx(p.score, abs=1e-5)
        assert p.tokens is not None
        values = [t["log_likelihood"] for t in p.tokens]
        assert p.parts["likelihood"].value == pytest.approx(
            sum(values) / (1 if case == "sum" else len(values)), abs=1e-5
        )
    for name in parts - {"likelihood", "fixed"}:
        assert len({p.parts[name].value for p in best if p.parts}) > 10, "values are told where weights are 0"
    weights = {name: {p.parts[name].weight for p in best if p.parts} for name in parts}
    nothing = {"vectors that count nothing": "vector", "vectors alone": "likelihood",
               "kge alone": "likelihood", "kge that counts nothing": "kge"}  # fmt: skip
    for name in parts:
        assert (weights[name] == {0.0}) == (nothing.get(case) == name)


@pytest.mark.parametrize("damaged", ["model", "vector", "model by index", "vector by index"])
def test_scores_that_are_no_numbers_are_refused(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, damaged: str
) -> None:
    ranker = make_ranker(TextSettings(max_length=40), VectorSettings(enabled=True))
    retrieval = None
    if damaged.endswith("by index"):
        pytest.importorskip("faiss")
        retrieval = Retrieval(build_index(ranker, toy), 31)
    if damaged.startswith("vector"):
        vectors = vectors_of(ranker).copy()
        vectors[3] = float("nan")
        assert ranker.vectors is not None
        ranker.vectors.adopt(ranker.context.entities, vectors)
    if damaged.startswith("model"):
        for weights in span_model(ranker.reader.model).parameters():
            weights.data.fill_(float("nan"))
    query = Query(toy.entities.index["usa"], toy.relations.index["located_in"], "tail")
    with pytest.raises(ModelError, match="scores are not finite"):
        list(Predictor(toy, ranker, retrieval).predict([query]))


def test_many_queries_come_back_under_their_positions(predictor: Predictor) -> None:
    graph = predictor.graph
    queries = [Query(e, r, t) for e in range(5) for r in range(2) for t in ("head", "tail")]
    together = dict(predictor.predict(queries, k=3, batch_size=4))
    assert sorted(together) == list(range(len(queries)))
    for i, query in enumerate(queries):
        ((_, alone),) = predictor.predict([query], k=3)
        assert [p.score for p in together[i]] == pytest.approx([p.score for p in alone], abs=1e-5)
    assert len(graph.entities) == 31


def test_new_entities_join_by_their_text_alone(toy_run: Path) -> None:
    predictor = kgmlm.open_run(toy_run).predictor
    wider = predictor.with_entities(EntityTable(["q1"], ["Paris"], ["a new town of an old name"]))
    table = wider.rank(head="france", relation="capital", k=99).set_index("tail_label")
    before = predictor.rank(head="france", relation="capital", k=99).set_index("tail_label")
    assert len(table) == len(before) + 1
    assert table.score["q1"] == pytest.approx(before.score["paris"], abs=1e-5)
    assert not table.known["q1"]
    assert table.tail_id["q1"] == len(predictor.graph.entities)
    assert len(wider.rank(head="q1", relation="capital")) == 10
    with pytest.raises(DataError, match="'paris' exists already"):
        predictor.with_entities(EntityTable(["paris"]))


def test_triples_of_new_entities_are_told_known_and_what_rules_go_by(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    rules = Rules.fit(toy, RuleSettings())
    predictor = Predictor(toy, make_ranker(TextSettings(neighbors=3)).with_signal(rules))
    new, atlantis = EntityTable(["atl"], ["Atlantis"]), len(toy.entities)
    capital, borders = (toy.relations.index[label] for label in ("capital", "borders"))
    paris, spain = (toy.entities.index[label] for label in ("paris", "spain"))
    wider = predictor.with_entities(new, np.array([(atlantis, capital, paris), (spain, borders, atlantis)]))

    def text(of: Predictor, entity: int, relation: int) -> str:
        return of.ranker.reader.linearize(Queries.of([Query(entity, relation, "tail")]))[0].text()

    assert text(wider, atlantis, capital) == "Atlantis ; inverse of borders: Spain | has the capital | ___"
    assert "; has the capital: Paris" in text(wider, atlantis, borders)
    assert "borders: Atlantis" in text(wider, spain, capital)
    assert "Atlantis" not in text(predictor, spain, capital)
    table = wider.rank(head="Atlantis", relation="capital", k=99).set_index("tail_label")
    assert table.index[table.known].tolist() == ["paris"]
    over = wider.ranker.signals["rules"]
    assert isinstance(over, Rules)
    (best, *_) = over.reasons(Query(atlantis, borders, "tail"), spain)
    assert best.triples == ((spain, borders, atlantis),)
    bare = predictor.with_entities(new).ranker.signals["rules"]
    assert isinstance(bare, Rules)
    assert bare.reasons(Query(atlantis, borders, "tail"), spain) == []


def test_a_predictor_ranks_what_an_index_finds_new_entities_too(toy_vector_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    path = tmp_path / "run"
    shutil.copytree(toy_vector_run, path)
    run = open_folder(path)
    exact = kgmlm.open_run(path, device="cpu").predictor
    build_index(exact.ranker, run.graph).save(run.path / FOLDER)
    predictor = kgmlm.open_run(path, device="cpu", retrieve=31).predictor
    asked = {"head": "france", "relation": "capital", "k": 8}
    short, whole = (p.rank(**asked) for p in (predictor, exact))  # type: ignore[arg-type]
    assert short.score.tolist() == pytest.approx(whole.score.tolist(), abs=1e-4)
    new = EntityTable(["q1"], ["Paris"], ["a new town of an old name"])
    table = predictor.with_entities(new).rank(head="france", relation="capital", k=99)
    assert len(table) == 31, "as many as are retrieved"
    assert "q1" in set(predictor.with_entities(new).rank(head="france", relation="capital", k=31).tail_label)
    assert (
        len(kgmlm.open_run(path, device="cpu", retrieve=4).predictor.rank(head="france", relation="capital"))
        == 4
    )
    shutil.rmtree(path / "index")
    with pytest.raises(RunError, match="has no index"):
        kgmlm.open_run(path, device="cpu", retrieve=4).rank(head="france", relation="capital")
