"""The signal of the KGE model: its scores, over other graphs, among other signals, saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from signal_tests import SignalTests

from kgmlm.core.arrays import Floats, IntArray
from kgmlm.core.config import KGESettings, VectorSettings
from kgmlm.core.errors import RunError
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.ranker import Mixture, Ranker
from kgmlm.ranking.retrieval import Retrieval
from kgmlm.ranking.retrieval import scores_of as scores_of_all
from kgmlm.runs.index import build_index
from kgmlm.signals.base import Pool
from kgmlm.signals.kge import KGE
from kgmlm.text.reader import Reading

SMALL = KGESettings(dimension=8, epochs=30, batch_size=16)


class TestKGE(SignalTests):
    kind = KGE

    def settings(self, encoder: str) -> KGESettings:
        return KGESettings(dimension=4, epochs=1)


@pytest.fixture(scope="module")
def kge(toy: KnowledgeGraph) -> KGE:
    """Random embeddings as large as trained ones."""
    made = KGE.fit(toy, SMALL.model_copy(update={"epochs": 1}))
    rng = np.random.default_rng(0)
    entities, relations = (
        rng.standard_normal(x.shape, np.float32) for x in (made.entities_SD, made.relations_RD)
    )
    return replace(made, entities_SD=entities, relations_RD=relations)


def scores_of(kge: KGE, queries: Queries, ids: IntArray | None = None) -> Floats:
    return kge.score(Reading(queries), Pool(len(kge.rows_N), ids))


def test_scores_are_those_of_pykeens_complex(toy: KnowledgeGraph, kge: KGE) -> None:
    from pykeen.nn.modules import ComplExInteraction

    queries, _ = toy.queries("train")
    scores_BN = scores_of(kge, queries)
    entities, relations = (
        torch.complex(*torch.from_numpy(x).chunk(2, 1)) for x in (kge.entities_SD, kge.relations_RD)
    )
    known = kge.rows_N >= 0
    expected = []
    for query in queries:
        relation = relations[2 * query.relation + (query.target == "head")]
        head = entities[kge.rows_N[query.entity]]
        expected.append(ComplExInteraction()(h=head, r=relation, t=entities))
    values = scores_BN[:, known][:, kge.rows_N[known].argsort()]
    np.testing.assert_allclose(values, torch.stack(expected).numpy(), atol=1e-4, rtol=1e-4)


def test_a_shortlist_is_reranked_by_kge_too(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, kge: KGE
) -> None:
    pytest.importorskip("faiss")
    ranker = make_ranker(vector=VectorSettings(enabled=True))
    ranker.signals["kge"] = kge
    ranker.mixture = ranker.mixture.evenly("kge", 1.0)
    index = build_index(ranker, toy)
    queries, _ = toy.queries("test")
    for (_, shortlisted), (_, exact) in zip(
        scores_of_all(ranker, queries, Retrieval(index, 99), 64), ranker.rank(queries), strict=True
    ):
        np.testing.assert_allclose(shortlisted, exact, atol=1e-4, rtol=1e-4)
    rows, _, scores = next(iter(ranker.signal_scores(queries)))
    text = ranker.by("text").mixture.combine(scores, queries[rows])
    match = ranker.mixture.combine(scores, queries[rows])
    np.testing.assert_allclose(match, text + scores_of(kge, queries[rows]), rtol=1e-5, atol=1e-5)


def test_kge_alone_reads_no_text(
    make_ranker: Callable[..., Ranker],
    toy: KnowledgeGraph,
    kge: KGE,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranker = make_ranker()
    ranker.signals["kge"] = kge
    ranker.mixture = ranker.mixture.evenly("kge", 3.0)
    ranker = ranker.by("kge")
    monkeypatch.setattr(ranker.reader, "encode", None)
    queries, _ = toy.queries("test")
    values = np.zeros((len(queries), len(toy.entities)), np.float32)
    for rows, scores_BN in ranker.rank(queries, batch_size=3):
        values[rows] = scores_BN
    # As they are, whatever they weigh.
    np.testing.assert_allclose(values, scores_of(kge, queries), rtol=1e-5, atol=1e-6)


def test_what_training_has_not_seen_is_neutral(toy: KnowledgeGraph, kge: KGE) -> None:
    unseen = np.flatnonzero(~toy.seen_N)
    assert len(unseen), "the toy graph has entities outside training"
    queries, _ = toy.queries("train")
    scores_BN = scores_of(kge, queries)
    mean_B = scores_BN[:, toy.seen_N].mean(1)
    for entity in unseen:
        np.testing.assert_allclose(scores_BN[:, entity], mean_B, atol=1e-5, rtol=1e-4)
    asked = type(queries)(np.full(2, unseen[0]), np.zeros(2, np.int64), np.array([True, False]))
    assert (scores_of(kge, asked) == 0).all()


def test_a_relation_that_training_has_not_seen_is_neutral(toy: KnowledgeGraph, tmp_path: Path) -> None:
    relation = int(toy.splits["train"][0, 1])
    fewer = toy.splits["train"][toy.splits["train"][:, 1] != relation]
    graph = replace(toy, splits={**toy.splits, "train": fewer})
    made = KGE.fit(graph, SMALL.model_copy(update={"epochs": 1}))
    made.save(tmp_path / "kge.safetensors")
    for item in (made, KGE.open(tmp_path / "kge.safetensors", graph)):
        scores = scores_of(item, Queries(np.array([0, 0]), np.array([relation] * 2), np.array([True, False])))
        assert not scores.any()
    assert scores_of(made, Queries(fewer[:1, 0], fewer[:1, 1], np.array([True]))).any()


def test_scores_of_some_are_those_of_all(toy: KnowledgeGraph, kge: KGE) -> None:
    queries, _ = toy.queries("test")
    weights_R2 = np.random.default_rng(0).random((len(toy.relations), 2), np.float32)
    mixture = Mixture({"kge": weights_R2}, {"kge": 1.0})

    def weighted(ids: IntArray | None = None) -> Floats:
        return mixture.combine({"kge": scores_of(kge, queries, ids)}, queries)

    scores_BN = weighted()
    ids = np.array([5, 0, 5, 17])
    np.testing.assert_allclose(weighted(ids), scores_BN[:, ids], rtol=1e-5, atol=1e-6)
    ids_BK = np.random.default_rng(0).integers(0, len(toy.entities), (len(queries), 6))
    found_BK = weighted(ids_BK)
    np.testing.assert_allclose(found_BK, np.take_along_axis(scores_BN, ids_BK, 1), atol=1e-6, rtol=1e-5)
    factor_B = np.array([weights_R2[q.relation, int(q.target == "head")] for q in queries])
    np.testing.assert_allclose(scores_BN, factor_B[:, None] * scores_of(kge, queries), rtol=1e-5)


def test_another_graph_has_the_scores_of_its_known_entities(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, kge: KGE
) -> None:
    ranker = make_ranker()
    ranker.signals["kge"] = kge
    wider = toy.extended(EntityTable(["q1"], ["Atlantis"], ["a lost city"]))
    twin = ranker.for_graph(wider.context)
    queries, _ = toy.queries("test")
    before = scores_of(kge, queries)
    after = twin.signals["kge"].score(Reading(queries), twin.pool())
    np.testing.assert_allclose(after[:, : len(toy.entities)], before, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after[:, -1], before[:, toy.seen_N].mean(1), atol=1e-5, rtol=1e-4)
    fewer = kge.for_graph(None, np.array([3, -1]), np.array([1, -1]))
    asked = type(queries)(np.array([0, 0, 1]), np.array([0, 1, 0]), np.array([True, True, True]))
    scores_BN = scores_of(fewer, asked)
    there = type(queries)(np.array([3]), np.array([1]), np.array([True]))
    assert scores_BN[0, 0] == pytest.approx(scores_of(kge, there)[0, 3], rel=1e-5)
    assert (scores_BN[1:] == 0).all()


def test_a_saved_model_is_loaded_and_a_damaged_one_refused(
    toy: KnowledgeGraph, kge: KGE, tmp_path: Path
) -> None:
    path = tmp_path / "kge.safetensors"
    kge.save(path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    queries, _ = toy.queries("test")
    loaded = KGE.open(path, toy)
    np.testing.assert_array_equal(scores_of(loaded, queries), scores_of(kge, queries))
    wider = toy.extended(EntityTable(["q1"], ["Atlantis"], [""]))
    with pytest.raises(RunError, match="another graph"):
        KGE.open(path, wider)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RunError, match="cannot be read"):
        KGE.open(path, toy)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("entities", lambda x: x.double()),
        ("entities", lambda x: x[:, :-1]),
        ("entities", lambda x: x[:3]),
        ("relations", lambda x: x[:, :2]),
        ("rows", lambda x: x + 1000),
        ("rows", lambda x: x.float()),
        ("rows", lambda x: x[None]),
    ],
)
def test_tensors_that_do_not_fit_are_refused_on_loading(
    toy: KnowledgeGraph, kge: KGE, tmp_path: Path, name: str, change: Callable[..., torch.Tensor]
) -> None:
    path = tmp_path / "kge.safetensors"
    kge.save(path)
    tensors = load_file(path)
    save_file({**tensors, name: change(tensors[name]).contiguous()}, path)
    with pytest.raises(RunError, match=r"cannot be read: its|cannot be read: it names|is of another graph"):
        KGE.open(path, toy)
