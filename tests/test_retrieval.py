from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from kgmlm.faiss_parts import Part
from kgmlm.kg import ConfigError, RunError
from kgmlm.modeling import SpanModel
from kgmlm.pairs import PairTable
from kgmlm.retrieval import (
    Reduction,
    Retriever,
    _write,
    automatic_factory,
    entity_parts,
    entity_queries,
    likelihood_parts,
    likelihood_queries,
)
from kgmlm.scoring import score_candidates
from kgmlm.states import SpanOutput
from kgmlm.tokenization import Candidates, SpanTokenizer

faiss = pytest.importorskip("faiss")

SPAN = 6


def test_an_index_that_cannot_be_written_is_no_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot be written"):
        _write(faiss, faiss.IndexFlatL2(2), tmp_path / "nowhere" / "part-0.faiss")


def random_names(n: int, vocabulary: int, seed: int = 0) -> Candidates:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, SPAN + 1, n)
    lengths[:SPAN] = np.arange(1, SPAN + 1)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Candidates(rng.integers(0, vocabulary, offsets[-1]), offsets, np.zeros(n, np.bool_))


def random_span(model: SpanModel, queries: int = 5) -> SpanOutput:
    torch.manual_seed(0)
    return SpanOutput(torch.randn(queries, SPAN, model.decoder[0].shape[1]))


def retriever(kind: Literal["likelihood", "entity"], parts: list[Part], reduction: Any = None) -> Retriever:
    return Retriever(kind, parts, reduction, {"effort": 4096, "factory": "Flat"})


def entity_index(vectors: np.ndarray[Any, Any], factory: str = "Flat") -> Retriever:
    return retriever("entity", entity_parts(vectors, np.arange(len(vectors)), factory))


def unit_vectors(n: int, width: int = 32, seed: int = 0) -> np.ndarray[Any, Any]:
    vectors = np.random.default_rng(seed).standard_normal((n, width), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def asked(vectors: np.ndarray[Any, Any]) -> tuple[list[Any], Any]:
    return entity_queries(torch.from_numpy(vectors))


@pytest.mark.parametrize("normalization", ["mean", "sum"])
def test_a_flat_likelihood_index_gives_the_exact_ranking(
    tiny_model: SpanModel, toy_tokenizer: SpanTokenizer, normalization: Literal["mean", "sum"]
) -> None:
    names = random_names(500, len(toy_tokenizer.tokenizer))
    span = random_span(tiny_model)
    with torch.no_grad():
        tiny_model.decoder[1].normal_()
        log_z = tiny_model.log_normalizer(span)
        exact = score_candidates(tiny_model, span, None, PairTable.of(names), normalization)
        reduction = Reduction.none(*tiny_model.decoder)
        parts = likelihood_parts(names, np.arange(500), reduction, SPAN, normalization, "Flat")
        queries = likelihood_queries(span.hidden_BLD, log_z, reduction, normalization)
    found = retriever("likelihood", parts, reduction).search(*queries, 500)
    assert sorted(found.ids_BK[0].tolist()) == list(range(500))
    scores = exact.gather(1, torch.from_numpy(found.ids_BK)).numpy()
    np.testing.assert_allclose(found.scores_BK, scores, atol=1e-4)
    assert (np.diff(scores, axis=1) <= 1e-4).all(), "best first"


def test_a_reduction_is_exact_where_states_span_no_more_dimensions(
    tiny_model: SpanModel, toy_tokenizer: SpanTokenizer
) -> None:
    weight, bias = (x.detach() for x in tiny_model.decoder)
    torch.manual_seed(1)
    states = torch.randn(300, 6) @ torch.randn(6, weight.shape[1])
    counts = np.ones(len(weight), np.int64)
    reduction = Reduction.of(weight, bias, states, counts, 8)
    assert reduction.tokens_Vd.shape == (len(weight), 8)
    assert reduction.kept == pytest.approx(1, abs=1e-5)
    reduced = torch.cat([states, torch.ones(300, 1)], 1).numpy() @ reduction.state_Dd
    np.testing.assert_allclose(reduced @ reduction.tokens_Vd.T, (states @ weight.T + bias).numpy(), atol=1e-3)
    rough = Reduction.of(weight, bias, states, counts, 2)
    assert rough.kept < reduction.kept


def test_a_reduction_loses_less_than_the_plain_singular_vectors(tiny_model: SpanModel) -> None:
    weight, bias = (x.detach() for x in tiny_model.decoder)
    torch.manual_seed(2)
    states = torch.randn(400, weight.shape[1]) * torch.logspace(0, -2, weight.shape[1])
    logits = (states @ weight.T + bias).numpy()
    reduction = Reduction.of(weight, bias, states, np.ones(len(weight), np.int64), 6)
    reduced = torch.cat([states, torch.ones(400, 1)], 1).numpy() @ reduction.state_Dd @ reduction.tokens_Vd.T
    axes = torch.linalg.svd(weight, full_matrices=False).Vh[:6]
    plain = ((states @ axes.T) @ (weight @ axes.T).T + bias).numpy()
    assert np.square(reduced - logits).mean() < 0.7 * np.square(plain - logits).mean()


def test_more_is_asked_than_there_is() -> None:
    vectors = unit_vectors(3)
    found = entity_index(vectors).search(*asked(vectors[:2]), 10)
    assert found.ids_BK.shape == found.scores_BK.shape == (2, 10)
    assert sorted(found.ids_BK[0, :3].tolist()) == [0, 1, 2]
    assert (found.ids_BK[:, 3:] == -1).all(), "FAISS's own -1 is not the last entity"
    assert np.isneginf(found.scores_BK[:, 3:]).all()


def test_an_empty_index_finds_nothing() -> None:
    found = entity_index(np.zeros((0, 32), np.float32)).search(*asked(unit_vectors(2)), 4)
    assert (found.ids_BK == -1).all()
    assert len(entity_index(np.zeros((0, 32), np.float32))) == 0


def test_what_is_not_finite_is_refused() -> None:
    vectors = unit_vectors(300)
    vectors[7, 3] = np.nan
    with pytest.raises(ConfigError, match="entity's vector is not finite"):
        entity_index(vectors)
    index = entity_index(unit_vectors(300))
    with pytest.raises(ConfigError, match="query's vector is not finite"):
        index.search(*asked(vectors[7:8]), 3)
    with pytest.raises(ConfigError, match="not 0"):
        index.search(*asked(vectors[:1]), 0)


def test_equal_vectors_are_all_found() -> None:
    vectors = np.repeat(unit_vectors(100), 3, axis=0)
    found = entity_index(vectors).search(*asked(vectors[30:31]), 3)
    assert sorted(found.ids_BK[0].tolist()) == [30, 31, 32]
    assert np.ptp(found.scores_BK[0]) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    "factory", ["Flat", "IVF32,Flat", "IVF32,SQ8", "IVF32,RaBitQ", "PCA16,IVF32,PQ8", "HNSW16"]
)
def test_effort_holds_for_one_search_only(factory: str) -> None:
    vectors, queries = unit_vectors(20_000), unit_vectors(50, seed=1)
    index = entity_index(vectors, factory)
    exact = np.argsort(-(queries @ vectors.T), axis=1)[:, :10]
    few_bits = any(code in factory for code in ("PQ", "RaBitQ"))
    k = 300 if few_bits else 10

    def recall(effort: int) -> float:
        ids = index.search(*asked(queries), k, effort).ids_BK
        return float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(ids, exact, strict=True)]))

    first, much, again = recall(1), recall(4096), recall(1)
    assert first == again
    assert much > first or factory == "Flat"
    if not few_bits:
        assert much > 0.9


@pytest.mark.parametrize("factory", ["Flat", "IVF16,SQ8", "IVF16,RaBitQ", "HNSW16"])
def test_entities_come_and_go_without_a_rebuild(factory: str) -> None:
    vectors, new = unit_vectors(2000), unit_vectors(3, seed=9)
    index = entity_index(vectors, factory)
    ids = np.array([5000, 5001, 5002])

    def part(rows: list[int]) -> list[Part]:
        (made,) = entity_parts(new[rows], np.arange(len(rows)), "Flat")
        return [Part(made.width, ids[rows], made.index)]

    def best(current: Retriever) -> list[int]:
        ids_BK: list[int] = current.search(*asked(new), 1).ids_BK[:, 0].tolist()
        return ids_BK

    wider = index.with_parts(part([0, 1])).with_parts(part([2]))
    assert len(wider) == 2003
    assert best(wider) == [5000, 5001, 5002]
    without = wider.without(np.array([5001]))
    assert len(without) == 2002
    assert best(without)[0] == 5000
    assert best(without)[1] < 2000
    top = int(index.search(*asked(vectors[:1]), 1).ids_BK[0, 0])
    again = index.without(np.array([top])).search(*asked(vectors[:1]), 1999)
    assert top not in again.ids_BK
    assert len(index) == 2000, "what was built has not changed"
    with pytest.raises(ConfigError, match="entity 5002 is in the index already"):
        wider.with_parts(part([2]))
    assert best(without.with_parts(part([1]))) == [5000, 5001, 5002]
    moved = Part(32, np.array([top]), part([0])[0].index)
    with pytest.raises(ConfigError, match=f"entity {top} is in"):
        index.with_parts([moved])
    rejoined = index.without(np.array([top])).with_parts([moved])
    assert len(rejoined) == 2000
    assert best(rejoined)[0] == top, "removed and added again with another vector"
    assert rejoined.search(*asked(vectors[:1]), 1999).ids_BK.tolist()[0].count(top) <= 1


@pytest.mark.parametrize("factory", ["Flat", "IVF16,SQ8", "IVF16,RaBitQ", "HNSW16"])
def test_saved_and_loaded_finds_the_same(tmp_path: Path, factory: str) -> None:
    index = entity_index(unit_vectors(2000), factory)
    index.save(tmp_path / "index" / "entity")
    loaded = Retriever.load(tmp_path / "index" / "entity")
    queries = asked(unit_vectors(20, seed=3))
    before, after = index.search(*queries, 7), loaded.search(*queries, 7)
    assert np.array_equal(before.ids_BK, after.ids_BK)
    np.testing.assert_allclose(before.scores_BK, after.scores_BK)
    with pytest.raises(RunError, match="build it again"):
        index.without(np.array([1])).save(tmp_path / "index" / "entity")


@pytest.mark.parametrize("damaged", ["index.json", "part-0.faiss", "ids-0.npy"])
def test_a_damaged_index_is_one_sentence(tmp_path: Path, damaged: str) -> None:
    entity_index(unit_vectors(300)).save(tmp_path / "index" / "entity")
    path = tmp_path / "index" / "entity" / damaged
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(RunError, match="damaged") as caught:
        Retriever.load(tmp_path / "index" / "entity")
    assert "\n" not in str(caught.value)
    with pytest.raises(RunError, match="no likelihood index"):
        Retriever.load(tmp_path / "index" / "likelihood")


def test_few_vectors_are_searched_exhaustively_and_many_are_not() -> None:
    assert automatic_factory("entity", 1000) == automatic_factory("likelihood", 1000) == "Flat"
    assert automatic_factory("entity", 1_000_000) == "IVF2048,RaBitQ"
    assert automatic_factory("entity", 5_000_000) == "IVF4096,RaBitQ"
    assert automatic_factory("likelihood", 1_000_000) == "SQ8"


def test_what_has_no_gpu_version_stays_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(index: object) -> object:
        raise RuntimeError("This index type is not implemented on GPU.")

    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1, raising=False)
    monkeypatch.setattr(faiss, "index_cpu_to_all_gpus", refused, raising=False)
    index = entity_index(unit_vectors(2000), "IVF16,RaBitQ")
    assert index.on_gpu().parts[0].index is index.parts[0].index

    def full(index: object) -> object:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(faiss, "index_cpu_to_all_gpus", full, raising=False)
    with pytest.raises(ConfigError, match=r"on a GPU: .*out of memory"):
        index.on_gpu()


@pytest.mark.parametrize("factory", ["Flat", "IVF16,SQ8", "IVF16,RaBitQ"])
def test_an_index_can_move_to_a_gpu(factory: str) -> None:
    if not getattr(faiss, "get_num_gpus", int)():
        pytest.skip("this FAISS has no GPU")
    index, queries = entity_index(unit_vectors(2000), factory), asked(unit_vectors(20, seed=3))
    moved = index.on_gpu()
    assert np.array_equal(moved.search(*queries, 7).ids_BK, index.search(*queries, 7).ids_BK)
