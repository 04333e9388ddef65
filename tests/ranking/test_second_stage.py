"""What reading the best candidates again does to the scores of a first stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from doubles import FixedStage, arbitrary, scored
from hypothesis import given, settings
from hypothesis import strategies as st

from kgmlm.core.arrays import Floats
from kgmlm.core.config import TextSettings
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries, Query
from kgmlm.ranking.constraints import MISSED
from kgmlm.ranking.ranker import Mixture, Ranker, StageWeight
from kgmlm.ranking.retrieval import Retrieval, scores_of
from kgmlm.ranking.second_stage import ReverseScoring, best_of, in_place
from kgmlm.runs.index import build_index
from kgmlm.text.tokenization import Encoded, MaskedBatch


@pytest.fixture
def ranker(staged_ranker: Ranker) -> Ranker:
    return staged_ranker


def test_only_the_best_gain_and_stay_ahead(ranker: Ranker, toy: KnowledgeGraph) -> None:
    queries, _ = toy.queries("test")
    known = 0
    for rows, first in ranker.first_stage(queries):
        before, after = first.scores_BN, ranker.reranked(first).scores_BN
        for b, query in enumerate(queries[rows]):
            answered = np.isin(np.arange(len(toy.entities)), list(answers(toy, query)))
            leading = np.argsort(np.where(answered, np.inf, -before[b]))[:5]
            gained = (after[b] != before[b]) & ~answered
            assert set(np.flatnonzero(gained).tolist()) <= set(leading.tolist())
            assert int(gained.sum()) >= 4, "the worst read gains nothing"
            ahead = before[b] >= before[b, leading].min()
            assert after[b, ahead].min() > after[b, ~ahead].max()
            read = arbitrary(queries[rows][np.array([b])], leading[None])[0]
            gain = 2 * (read - read.min())
            close = partial(np.testing.assert_allclose, atol=1e-4, rtol=1e-4)
            close(after[b, leading], before[b, leading] + gain)
            ahead &= answered
            close(after[b, ahead], before[b, ahead] + gain.max())
            known += int(ahead.sum())
    assert known > 0, "training answers were among the best"


@settings(max_examples=30)
@given(st.integers(0, 999), st.integers(1, 31), st.sampled_from([0.1, 1.0, 50.0]), st.booleans())
def test_whatever_is_read_the_best_k_stay_ahead_of_the_rest_that_keeps_its_order(
    toy: KnowledgeGraph, seed: int, k: int, weight: float, tied: bool
) -> None:
    rng = np.random.default_rng(seed)
    made = FixedStage(
        StageWeight(k, weight), lambda queries, ids_BK: rng.normal(0, 9, ids_BK.shape).astype(np.float32)
    )
    queries = toy.queries("train")[0][np.arange(12)]
    before = np.random.default_rng(seed).standard_normal((12, len(toy.entities)), np.float32)
    if tied:
        before = before.round()
    ranker: Any = SimpleNamespace(
        context=toy.context, mixture=Mixture.even({"likelihood": 1.0}, len(toy.relations))
    )
    after = made.reranked(ranker, scored(queries, before)).scores_BN
    for b, query in enumerate(queries):
        fresh = np.setdiff1d(np.arange(len(toy.entities)), list(answers(toy, query)))
        last = -np.sort(-before[b, fresh])[:k][-1]
        ahead = before[b] >= last
        assert after[b, ahead].min() >= before[b, ahead].min()
        if (~ahead).any():
            assert after[b, ahead].min() > after[b, ~ahead].max()
        assert np.array_equal(after[b, ~ahead], before[b, ~ahead])


def test_no_more_is_read_at_once_than_asked(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranker = make_ranker(TextSettings(max_length=40)).with_stage(ReverseScoring(StageWeight(5, 2.0)))
    queries = toy.queries("test")[0][np.arange(8)]
    whole = dict(_rows(ranker, queries))
    sizes: list[int] = []
    collate = ranker.reader.tokenizer.collate

    def counted(encoded: list[Encoded]) -> MaskedBatch:
        sizes.append(len(encoded))
        return collate(encoded)

    monkeypatch.setattr(ranker.reader.tokenizer, "collate", counted)
    for row, scores_N in _rows(ranker, queries, batch_size=3):
        np.testing.assert_allclose(scores_N, whole[row], atol=1e-4, rtol=1e-4)
    assert max(sizes) == 3


def _rows(ranker: Ranker, queries: Queries, **options: int) -> Iterator[tuple[int, Floats]]:
    for rows, scores_BN in ranker.rank(queries, **options):  # type: ignore[arg-type]
        yield from zip(rows.tolist(), scores_BN, strict=True)


def answers(toy: KnowledgeGraph, query: Query) -> set[int]:
    """What training triples answer, by a plain walk."""
    known, asked = (2, 0) if query.target == "head" else (0, 2)
    return {
        int(triple[asked])
        for triple in toy.splits["train"]
        if (triple[known], triple[1]) == (query.entity, query.relation)
    }


def test_what_training_answers_already_is_passed_over(ranker: Ranker, toy: KnowledgeGraph) -> None:
    queries, _ = toy.queries("train")
    ((rows, scores),) = ranker.rank(queries[np.arange(40)])
    everyone = np.arange(len(toy.entities))
    some = np.random.default_rng(0).permutation(everyone)[: len(everyone) // 2]
    own = np.stack([np.random.default_rng(b).permutation(everyone)[:9] for b in range(len(rows))])
    own[:, -1] = -1
    passed = 0
    for among, of_query in (
        (None, scores),
        (some, scores[:, some]),
        (own, np.take_along_axis(scores, np.maximum(own, 0), 1)),
    ):
        if among is own:
            of_query[:, -1] = MISSED
        best, ids_BK = best_of(ranker.context, scored(queries[rows], of_query, ranker.pool(among)), 5)
        for b, query in enumerate(queries[rows]):
            candidates = everyone if among is None else among if among.ndim == 1 else among[b]
            fresh = [
                (-score, int(i))
                for i, score in zip(candidates, of_query[b].tolist(), strict=True)
                if i >= 0 and i not in answers(toy, query)
            ]
            passed += len(candidates) - len(fresh)
            expected = [i for _, i in sorted(fresh)][:5]
            assert ids_BK[b].tolist() == expected + [-1] * (5 - len(expected))
            assert best.scores_BK[b, : len(expected)].tolist() == [-s for s, _ in sorted(fresh)][:5]
    assert passed > len(own), "some are passed over, not only what the shortlist lacks"


def test_a_constant_scorer_stays_at_chance(ranker: Ranker, toy: KnowledgeGraph) -> None:
    queries, _ = toy.queries("test")
    flat = np.full((len(queries), len(toy.entities)), -3.0, np.float32)
    assert np.array_equal(ranker.reranked(scored(queries, flat)).scores_BN, flat)


def test_what_a_shortlist_lacks_is_never_reranked(ranker: Ranker, toy: KnowledgeGraph) -> None:
    queries = toy.queries("test")[0][np.arange(2)]
    scores = np.full((2, 6), MISSED, np.float32)
    scores[:, :3] = 3, 2, 1
    ids = np.array([[4, 5, 6, -1, -1, -1]] * 2)
    after = ranker.reranked(scored(queries, scores, ranker.pool(ids))).scores_BN
    assert (after[:, 3:] == MISSED).all()
    assert (after[:, :3] > MISSED).all()
    assert (after[:, :3] != scores[:, :3]).any()


def test_a_shortlist_of_all_is_exact(ranker: Ranker, toy: KnowledgeGraph) -> None:
    pytest.importorskip("faiss")
    index = build_index(ranker, toy)
    queries, _ = toy.queries("test")
    exact = dict(_rows(ranker, queries))
    for rows, shortlisted in scores_of(ranker, queries, Retrieval(index, 99), 64):
        for row, scores_N in zip(rows.tolist(), shortlisted, strict=True):
            np.testing.assert_allclose(scores_N, exact[row], atol=1e-3, rtol=1e-4)


def test_candidates_that_stay_keep_their_places() -> None:
    rng = np.random.default_rng(0)
    before = -np.sort(rng.normal(size=(50, 12)), 1).astype(np.float32)
    before[:, 10:] = -np.inf  # no candidates
    mixed = np.argsort(rng.random(before.shape), 1)  # in any order
    before = np.take_along_axis(before, mixed, 1)
    after = np.where(np.isfinite(before), rng.normal(size=before.shape), before).astype(np.float32)
    stays = (rng.random(before.shape) < 0.4) & np.isfinite(before)
    placed = in_place(before, after, stays)
    for b, a, s, p in zip(before, after, stays, placed, strict=True):
        order, was = np.argsort(-p)[:10], np.argsort(-b)[:10]
        assert s[order].tolist() == s[was].tolist(), "those that stay stand where they stood"
        assert order[s[order]].tolist() == was[s[was]].tolist()
        movers = [i for i in np.argsort(-a) if np.isfinite(a[i]) and not s[i]]
        assert order[~s[order]].tolist() == movers, "the others are in their new order"
    assert np.array_equal(in_place(before, after, np.zeros_like(stays)), after)


def test_a_stage_leaves_alone_what_validation_did_not_ask_about() -> None:
    queries = Queries(np.array([0, 3]), np.zeros(2, np.int64), np.ones(2, np.bool_))
    unseen, ids = np.array([False, False, True, True]), np.array([[1, 2, -1], [1, 2, -1]])
    stage_weight = StageWeight(3, 1.0, (True, False, False, False))
    assert stage_weight.stays(queries, ids, unseen).tolist() == [[False, True, False], [True, True, False]]
    assert not StageWeight(3, 1.0).stays(queries, ids, unseen).any()
