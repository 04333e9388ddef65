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
from conftest import vectors_of

from kgmlm.config import VectorSettings
from kgmlm.constraints import MISSED
from kgmlm.graph import KnowledgeGraph
from kgmlm.indexing import build_index, check_kind, default_kind, open_index, save_index
from kgmlm.kg import ConfigError, EntityTable, RunError
from kgmlm.ranker import Ranker
from kgmlm.retrieval import KINDS, Kind, Retriever, automatic_factory
from kgmlm.runs import open_run
from kgmlm.shortlisting import Retrieval, retrieve_and_rank, shortlist

pytest.importorskip("faiss")

REGISTRY = KINDS


@pytest.mark.parametrize("kind", REGISTRY)
class TestEveryKind:
    @pytest.fixture
    def ranker(self, make_ranker: Callable[..., Ranker]) -> Ranker:
        return make_ranker(vector=VectorSettings(enabled=True))

    def found(self, ranker: Ranker, graph: KnowledgeGraph, index: Retriever, k: int) -> torch.Tensor:
        queries, _ = graph.queries("test")
        ((_, shortlisted, _),) = retrieve_and_rank(ranker, queries, Retrieval(index, k), len(queries))
        return shortlisted

    def test_a_wider_shortlist_holds_a_narrower_one(
        self, ranker: Ranker, toy: KnowledgeGraph, kind: Kind
    ) -> None:
        index = build_index(ranker, toy, kind)
        few, many = (self.found(ranker, toy, index, k) for k in (4, 9))
        there = few > MISSED
        assert (there.sum(1) <= 4).all()
        assert (many > MISSED).sum() > there.sum()
        torch.testing.assert_close(many[there], few[there])

    def test_saved_and_loaded_it_finds_the_same(
        self, ranker: Ranker, toy: KnowledgeGraph, kind: Kind, tmp_path: Path
    ) -> None:
        index = build_index(ranker, toy, kind)
        index.save(tmp_path / "index" / kind)
        loaded = Retriever.load(tmp_path / "index" / kind)
        if loaded.reduction is None:  # the decoder itself is not written again
            loaded = replace(loaded, reduction=index.reduction)
        assert (loaded.kind, len(loaded)) == (kind, len(toy.entities))
        assert torch.equal(self.found(ranker, toy, loaded, 5), self.found(ranker, toy, index, 5))

    def test_what_is_removed_is_not_found(self, ranker: Ranker, toy: KnowledgeGraph, kind: Kind) -> None:
        gone = np.array([3, 7, 8])
        index = build_index(ranker, toy, kind).without(gone)
        assert len(index) == len(toy.entities) - 3
        found = self.found(ranker, toy, index, len(toy.entities))
        assert (found[:, gone] <= MISSED).all()
        assert ((found > MISSED).sum(1) >= len(toy.entities) - 4).all(), "all others, but for an own entity"

    def test_few_are_searched_exhaustively(self, kind: Kind) -> None:
        assert automatic_factory(kind, 10) == "Flat"
        assert automatic_factory(kind, 10_000_000) != "Flat"
        assert check_kind(kind) == kind


@pytest.mark.parametrize("kind", REGISTRY)
def test_a_shortlist_of_all_is_the_exact_ranking(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, kind: Kind
) -> None:
    ranker = make_ranker(vector=VectorSettings(enabled=True))
    counted: list[int] = []
    index = build_index(ranker, toy, kind, advance=lambda n, total: counted.append(n))
    assert sum(counted) == len(index) == len(toy.entities)
    assert index.record["recall_at_10"] == 1
    assert "exhaustively" in index.record["why"]
    queries, _ = toy.queries("test")
    for _, shortlisted, exact in retrieve_and_rank(ranker, queries, Retrieval(index, 99)):
        torch.testing.assert_close(shortlisted, exact, atol=1e-4, rtol=1e-4)
    for (_, reading), (_, _, exact) in zip(
        ranker.reader.readings(queries), retrieve_and_rank(ranker, queries, Retrieval(index, 5)), strict=True
    ):
        ids, scores = shortlist(ranker, reading, Retrieval(index, 5))
        assert (scores.diff(dim=1) <= 0).all()
        torch.testing.assert_close(scores, exact.gather(1, torch.from_numpy(ids)), atol=1e-4, rtol=1e-4)
        if kind == "likelihood":
            alone = ranker.by("likelihood").unconstrained()
            _, scores = shortlist(alone, reading, Retrieval(index, 5))
            with torch.inference_mode():
                best = ranker.likelihood.scores(reading.span, ranker.likelihood.table(None)).topk(5).values
            torch.testing.assert_close(scores, best, atol=1e-4, rtol=1e-4)


def test_what_a_shortlist_lacks_is_missed(make_ranker: Callable[..., Ranker], toy: KnowledgeGraph) -> None:
    ranker = make_ranker()
    index = build_index(ranker, toy, "likelihood")
    queries, _ = toy.queries("test")
    for _, shortlisted, exact in retrieve_and_rank(ranker, queries, Retrieval(index, 4)):
        assert ((shortlisted > MISSED).sum(1) == 4).all()
        assert shortlisted.isfinite().all()
        assert (shortlisted.argmax(1) == exact.argmax(1)).all()


def test_few_dimensions_still_find_the_best(make_ranker: Callable[..., Ranker], toy: KnowledgeGraph) -> None:
    ranker = make_ranker()
    index = build_index(ranker, toy, "likelihood", dimensions=12, target=1.0)
    assert index.reduction is not None
    assert index.reduction.tokens_Vd.shape[1] == 12
    assert 0 < index.reduction.kept < 1
    assert "12 dimensions" in index.record["why"]


def test_a_saved_index_is_opened_and_joined_by_new_entities(toy_vector_run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(toy_vector_run, copy)
    run = open_run(copy)
    with pytest.raises(RunError, match="no index"):
        default_kind(run)
    ranker = run.ranker("cpu")
    for kind in ("likelihood", "entity"):
        save_index(run, build_index(ranker, run.graph, check_kind(kind)))
        assert default_kind(run) == kind
    wider = run.graph.extended(EntityTable(["q1", "q2"], ["Atlantis", "Thule"], ["a lost city", ""]))
    extended = run.ranker("cpu", graph=wider)
    queries, _ = wider.queries("test")
    for kind in ("likelihood", "entity"):
        index = open_index(run, extended, check_kind(kind))
        assert len(index) == len(wider.entities)
        for _, shortlisted, exact in retrieve_and_rank(extended, queries, Retrieval(index, 99)):
            torch.testing.assert_close(shortlisted, exact, atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        ranker.reader.model.decoder[0].mul_(2)
    with pytest.raises(RunError, match="another model or other entities"):
        open_index(run, ranker, "likelihood")
    assert ranker.vectors is not None
    ranker.vectors.forget()
    with pytest.raises(RunError, match="another model or other entities"):
        open_index(run, ranker, "entity")


def test_entities_that_share_a_text_do_not_make_an_index_stale(toy_vector_run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(toy_vector_run, copy)
    trained = open_run(copy)
    graph = trained.graph.extended(EntityTable(["p1", "p2"], ["Paris", "Paris"]))
    ranker = trained.ranker("cpu", graph=graph)
    run = replace(trained, graph=graph)
    vectors = vectors_of(ranker).clone()
    vectors[-1, 0] += 1e-6  # as another batch may round it
    assert ranker.vectors is not None
    ranker.vectors.adopt(graph.entities, vectors)
    save_index(run, build_index(ranker, graph, "entity"))
    wider = ranker.over(graph.extended(EntityTable(["q1"], ["Atlantis"])).context)
    assert len(open_index(run, wider, "entity")) == len(graph.entities) + 1


def test_what_cannot_be_indexed_is_refused(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="likelihood or entity, not 'names'"):
        check_kind("names")
    with pytest.raises(ConfigError, match="no entity vectors"):
        build_index(make_ranker(), toy, "entity")
    with monkeypatch.context() as patched:
        patched.setattr("kgmlm.faiss_parts._installed", lambda name: name in ("faiss-cpu", "faiss-gpu"))
        with pytest.raises(ConfigError, match="faiss-cpu and faiss-gpu are both installed"):
            build_index(make_ranker(), toy, "likelihood")
    monkeypatch.setitem(sys.modules, "faiss", None)
    install = r"pip install '\.\[cpu\]'"
    assert re.search(install, (Path(__file__).parent.parent / "docs" / "retrieval.md").read_text("utf-8"))
    with pytest.raises(ConfigError, match=install):
        build_index(make_ranker(), toy, "likelihood")


@pytest.mark.parametrize("digested", [True, False])
@pytest.mark.parametrize("kind", ["entity", "likelihood"])
def test_a_damaged_index_is_one_sentence(
    toy_vector_run: Path, tmp_path: Path, kind: Kind, digested: bool
) -> None:
    pytest.importorskip("faiss")
    shutil.copytree(toy_vector_run, tmp_path / "run")
    run = open_run(tmp_path / "run")
    ranker = run.ranker("cpu")
    save_index(run, build_index(ranker, run.graph, kind, factory="Flat", dimensions=5))
    folder = run.path / "index" / kind
    open_index(run, ranker, kind)
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
        lambda: (folder / "index.json").write_text(json.dumps({**record, "effort": None})),
        lambda: (folder / "index.json").write_text(json.dumps({**record, "kind": "names"})),
        lambda: (folder / "index.json").write_text(json.dumps({**record, "widths": []})),
        lambda: (folder / "ids-0.npy").write_bytes(b""),
        lambda: (folder / "ids-0.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00{'descr"),
        lambda: (folder / "part-0.faiss").write_bytes(b"IxF2"),
        lambda: (folder / "part-0.faiss").unlink(),
        ids(lambda a: a + 31),
        ids(lambda a: -a - 1),
        ids(lambda a: a.astype(float)),
        ids(lambda a: a[:, None]),
    ]
    if kind == "likelihood":
        damages += [
            lambda: (folder / "reduction.npz").write_bytes(b"PK\x03\x04"),
            lambda: (folder / "reduction.npz").unlink(),
            lambda: np.savez(
                folder / "reduction.npz", tokens=np.ones((2, 5)), state=np.ones((3, 5)), kept=1.0
            ),
            lambda: np.savez(folder / "reduction.npz", tokens=np.ones(2), state=np.ones(3), kept=1.0),
        ]
    for damage in damages:
        damage()
        with pytest.raises(RunError, match="kgmlm index") as caught:
            open_index(run, ranker, kind)
        assert "\n" not in str(caught.value)
        shutil.rmtree(folder)
        shutil.copytree(whole, folder)
    open_index(run, ranker, kind)
