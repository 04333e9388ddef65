from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Cli, refused, vectors_of
from trainings import arguments

import kgmlm
from kgmlm.core.arrays import Floats
from kgmlm.core.config import VectorSettings
from kgmlm.core.errors import ConfigError, RunError
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.ranking.constraints import MISSED
from kgmlm.ranking.ranker import Ranker
from kgmlm.ranking.retrieval import FOLDER, Retrieval, Retriever, open_index, scores_of, shortlist
from kgmlm.runs.index import build_index
from kgmlm.runs.opened import open_folder, tuned_ranker
from kgmlm.text.torch_model import span_model

pytest.importorskip("faiss")


@pytest.fixture
def ranker(make_ranker: Callable[..., Ranker]) -> Ranker:
    return make_ranker(vector=VectorSettings(enabled=True))


def found(ranker: Ranker, graph: KnowledgeGraph, index: Retriever | None, k: int = 99) -> Floats:
    """Scores of all entities, by an index or exactly."""
    queries, _ = graph.queries("test")
    retrieval = None if index is None else Retrieval(index, k)
    scores_BN = np.zeros((len(queries), len(graph.entities)), np.float32)
    for rows, scores_bN in scores_of(ranker, queries, retrieval, 64):
        scores_BN[rows] = scores_bN
    return scores_BN


def test_a_wider_shortlist_holds_a_narrower_one(ranker: Ranker, toy: KnowledgeGraph) -> None:
    index = build_index(ranker, toy)
    few, many = (found(ranker, toy, index, k) for k in (4, 9))
    there = few > MISSED
    assert (there.sum(1) <= 4).all()
    assert (many > MISSED).sum() > there.sum()
    np.testing.assert_allclose(many[there], few[there], rtol=1e-5)


def test_saved_and_loaded_it_finds_the_same(ranker: Ranker, toy: KnowledgeGraph, tmp_path: Path) -> None:
    index = build_index(ranker, toy)
    index.save(tmp_path / FOLDER)
    loaded = Retriever.load(tmp_path / FOLDER)
    assert len(loaded) == len(toy.entities)
    assert np.array_equal(found(ranker, toy, loaded, 5), found(ranker, toy, index, 5))


def test_a_shortlist_of_all_is_the_exact_ranking(ranker: Ranker, toy: KnowledgeGraph) -> None:
    counted: list[int] = []
    index = build_index(ranker, toy, advance=lambda n, total: counted.append(n))
    assert sum(counted) == len(index) == len(toy.entities)
    assert index.record["recall_at_10"] == 1
    assert index.record["why"].startswith("all are searched, with recall@10 1.000; ")
    exact_BN = found(ranker, toy, None)
    np.testing.assert_allclose(found(ranker, toy, index), exact_BN, atol=1e-4, rtol=1e-4)
    for rows, reading in ranker.reader.readings(toy.queries("test")[0]):
        ids, scores = shortlist(ranker, reading, Retrieval(index, 5))
        assert (np.diff(scores, axis=1) <= 0).all()
        expected = np.take_along_axis(exact_BN[rows], ids, 1)
        np.testing.assert_allclose(scores, expected, atol=1e-4, rtol=1e-4)


def test_what_a_shortlist_lacks_is_missed(ranker: Ranker, toy: KnowledgeGraph) -> None:
    ranker = ranker.by("vector").unconstrained()
    index = build_index(ranker, toy)
    shortlisted, exact = found(ranker, toy, index, 4), found(ranker, toy, None)
    assert ((shortlisted > MISSED).sum(1) == 4).all()
    assert np.isfinite(shortlisted).all()
    assert (shortlisted.argmax(1) == exact.argmax(1)).all()


def test_a_saved_index_is_opened_and_joined_by_new_entities(toy_vector_run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(toy_vector_run, copy)
    run = open_folder(copy)
    with pytest.raises(RunError, match="no index"):
        open_index(run.path, tuned_ranker(run, "cpu"), len(run.graph.entities))
    ranker = tuned_ranker(run, "cpu")
    build_index(ranker, run.graph).save(run.path / FOLDER)
    wider = run.graph.extended(EntityTable(["q1", "q2"], ["Atlantis", "Thule"], ["a lost city", ""]))
    extended = tuned_ranker(run, "cpu").for_graph(wider.context)
    index = open_index(run.path, extended, len(run.graph.entities))
    assert len(index) == len(wider.entities)
    exact = found(extended, wider, None)
    np.testing.assert_allclose(found(extended, wider, index), exact, atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        span_model(ranker.reader.model).decoder[0].mul_(2)
    assert ranker.vectors is not None
    ranker.vectors.forget()
    with pytest.raises(RunError, match="another model or other entities"):
        open_index(run.path, ranker, len(run.graph.entities))


def test_entities_that_share_a_text_do_not_make_an_index_stale(toy_vector_run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(toy_vector_run, copy)
    trained = open_folder(copy)
    graph = trained.graph.extended(EntityTable(["p1", "p2"], ["Paris", "Paris"]))
    ranker = tuned_ranker(trained, "cpu").for_graph(graph.context)
    run = replace(trained, graph=graph)
    vectors = vectors_of(ranker).copy()
    vectors[-1, 0] += 1e-6  # as another batch may round it
    assert ranker.vectors is not None
    ranker.vectors.adopt(graph.entities, vectors)
    build_index(ranker, graph).save(run.path / FOLDER)
    wider = ranker.for_graph(graph.extended(EntityTable(["q1"], ["Atlantis"])).context)
    assert len(open_index(run.path, wider, len(run.graph.entities))) == len(graph.entities) + 1


@pytest.mark.slow
def test_a_bi_encoder_is_indexed_where_there_are_no_entity_vectors(
    tiny_encoder: str, tmp_path: Path, cli: Cli
) -> None:
    path = tmp_path / "run"
    small: dict[str, Any] = {"batch_size": 16, "biencoder": {"dimension": 16, "steps": 8}}
    run = kgmlm.train("toy", tiny_encoder, path, preset="quick", progress=False, **arguments(**small))
    made = kgmlm.index(path, progress=False)
    count = len(run.graph.entities)
    assert (made["signal"], made["entities"], made["recall_at_10"]) == ("biencoder", count, 1.0)
    ask: dict[str, Any] = {"head": "france", "relation": "capital", "k": count}
    whole, few = (kgmlm.open_run(path, retrieve=k).rank(**ask) for k in (count, 5))
    assert list(whole["tail_label"]) == list(kgmlm.open_run(path).rank(**ask)["tail_label"])
    assert len(few) == 5
    new = tmp_path / "new.tsv"
    new.write_text("label\tname\tdescription\nq1\tAtlantis\ta lost city\n")
    wider = kgmlm.open_run(path, retrieve=count + 1).with_entities(new)
    more = wider.rank(head="q1", relation="capital", k=3)
    assert len(more) == 3
    report = kgmlm.evaluate(kgmlm.open_run(path, retrieve=count), progress=False)
    assert report.values["retrieval"]
    kgmlm.tune(
        path,
        add="biencoder",
        overwrite=True,
        progress=False,
        settings={"biencoder": {"dimension": 8, "steps": 3}},
    )
    refused(cli("rank", path, "--head", "france", "--relation", "capital", "--retrieve", "5"), "kgmlm index")


def test_what_cannot_be_indexed_is_refused(
    make_ranker: Callable[..., Ranker],
    ranker: Ranker,
    toy: KnowledgeGraph,
    toy_run: Path,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match="no entity vectors"):
        build_index(make_ranker(), toy)
    refused(cli("index", toy_run), "no entity vectors to index, and no bi-encoder; train with --set")
    asked = ("rank", toy_run, "--head", "france", "--relation", "capital", "--retrieve", "5")
    refused(cli(*asked), "no entity vectors to index")
    with monkeypatch.context() as patched:
        patched.setattr("kgmlm.ranking.retrieval._installed", lambda name: name in ("faiss-cpu", "faiss-gpu"))
        with pytest.raises(ConfigError, match="faiss-cpu and faiss-gpu are both installed"):
            build_index(ranker, toy)
    monkeypatch.setitem(sys.modules, "faiss", None)
    install = r"pip install '\.\[cpu\]'"
    assert re.search(install, (Path(__file__).parent.parent.parent / "docs" / "scale.md").read_text("utf-8"))
    with pytest.raises(ConfigError, match=install):
        build_index(ranker, toy)


@pytest.mark.parametrize("digested", [True, False])
def test_a_damaged_index_is_one_sentence(toy_vector_run: Path, tmp_path: Path, digested: bool) -> None:
    pytest.importorskip("faiss")
    shutil.copytree(toy_vector_run, tmp_path / "run")
    run = open_folder(tmp_path / "run")
    ranker = tuned_ranker(run, "cpu")
    build_index(ranker, run.graph, cells=0).save(run.path / FOLDER)
    folder = run.path / FOLDER
    open_index(run.path, ranker, len(run.graph.entities))
    if not digested:
        (folder / "kgmlm.json").unlink()
    whole = tmp_path / "whole"
    shutil.copytree(folder, whole)
    record = json.loads((folder / "index.json").read_text())

    def ids(change: Callable[[Any], Any]) -> Callable[[], None]:
        return lambda: np.save(folder / "ids-0.npy", change(np.load(folder / "ids-0.npy")))

    damages: list[Callable[[], object]] = [
        lambda: (folder / "index.json").write_text("[]"),
        lambda: (folder / "index.json").write_text("[" * 10**5),
        lambda: (folder / "index.json").write_text(json.dumps({**record, "visited": None})),
        lambda: (folder / "index.json").write_text(json.dumps({**record, "entities": 30})),
        lambda: (folder / "index.json").write_text(json.dumps({**record, "looked_at": 0.5})),
        lambda: (folder / "ids-0.npy").write_bytes(b""),
        lambda: (folder / "ids-0.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00{'descr"),
        lambda: (folder / "part-0.faiss").write_bytes(b"IxF2"),
        lambda: (folder / "part-0.faiss").unlink(),
        ids(lambda a: a + 31),
        ids(lambda a: -a - 1),
        ids(lambda a: a.astype(float)),
        ids(lambda a: a[:, None]),
    ]
    for damage in damages:
        damage()
        with pytest.raises(RunError, match="kgmlm index") as caught:
            open_index(run.path, ranker, len(run.graph.entities))
        assert "\n" not in str(caught.value)
        shutil.rmtree(folder)
        shutil.copytree(whole, folder)
    open_index(run.path, ranker, len(run.graph.entities))
