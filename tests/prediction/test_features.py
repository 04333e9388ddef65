"""Triples to features, whatever their label; and triples that are taken to be false."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import FakeRanker
from hypothesis import given
from hypothesis import strategies as st

from kgmlm.core.arrays import FloatArray, IntArray
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import FilterIndex, Queries, both_sides
from kgmlm.prediction.features import FEATURES, HARD, KINDS_OF_NEGATIVES, Negatives, features, side_features
from kgmlm.ranking.constraints import IMPOSSIBLE

NAMES = ("score", "margin", "log_softmax", "log_rank", "log_rank_squared", "reciprocal_rank")


def by_hand(scores_N: list[float], asked: int, answers: set[int], temperature: float) -> FloatArray:
    """The features as their definitions say."""
    others = [s for i, s in enumerate(scores_N) if i not in answers and i != asked]
    own = scores_N[asked]
    rank = 1 + sum(s > own for s in others) + sum(s == own for s in others) / 2
    total = sum(np.exp(s / temperature) for s in [*others, own])
    values = {
        "score": own / temperature,
        "margin": (own - max(others)) / temperature,
        "log_softmax": own / temperature - np.log(total),
        "log_rank": np.log(rank),
        "log_rank_squared": np.log(rank) ** 2,
        "reciprocal_rank": 1 / rank,
    }
    return np.array([values[name] for name in FEATURES])


@given(
    st.lists(st.integers(-4, 4), min_size=3, max_size=9),
    st.sets(st.integers(0, 8), max_size=4),
    st.integers(0, 8),
    st.sampled_from([0.25, 1.0]),
)
def test_features_are_as_their_definitions_say(
    scores: list[int], answers: set[int], asked: int, temperature: float
) -> None:
    asked %= len(scores)
    answers = {a for a in answers if a < len(scores)}
    if len(answers | {asked}) == len(scores):
        return
    known = (np.zeros(len(answers), np.int64), np.array(sorted(answers), np.int64))
    rows, ids = np.zeros(1, np.int64), np.array([asked])
    found = side_features(np.array([scores], np.float32), rows, ids, known, temperature)
    assert found[0] == pytest.approx(by_hand(list(map(float, scores)), asked, answers, temperature))


def test_an_answer_far_above_all_others_leaves_probabilities_finite() -> None:
    scores_BN, rows = np.array([[0, -200, -201, -202]], np.float32), np.zeros(3, np.int64)
    known = (np.zeros(1, np.int64), np.zeros(1, np.int64))
    found = side_features(scores_BN, rows, np.array([0, 1, 2]), known, temperature=0.25)
    log_softmax = found[:, FEATURES.index("log_softmax")]
    assert log_softmax == pytest.approx([0.0, -np.log1p(np.exp(-4) + np.exp(-8)), -4.01848], abs=1e-4)


@given(st.integers(0, 1000))
def test_a_triples_own_label_changes_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 5, (1, 12)).astype(np.float32)
    others = rng.choice(11, 3, replace=False)
    rows, ids = np.zeros(1, np.int64), np.array([11])
    without, within = (
        side_features(scores, rows, ids, (np.zeros(len(known), np.int64), known))
        for known in (others, np.append(others, 11))
    )
    assert without == pytest.approx(within), "as if the triple itself were not known"


def test_what_cannot_answer_is_as_good_as_the_worst_that_can() -> None:
    scores = np.array([[1.0, IMPOSSIBLE, 3.0, 0.5], [IMPOSSIBLE] * 4], np.float32)
    known = (np.zeros(0, np.int64), np.zeros(0, np.int64))
    rows, ids = np.array([0, 0, 1]), np.array([1, 3, 0])
    found = side_features(scores, rows, ids, known)
    assert found[0] == pytest.approx(found[1])
    assert np.isfinite(found).all()


def test_a_candidate_alone_is_first() -> None:
    known = (np.zeros(2, np.int64), np.array([0, 2]))
    found = side_features(np.array([[1, 0, 3]], np.float32), np.zeros(1, np.int64), np.array([1]), known)[0]
    assert found[FEATURES.index("reciprocal_rank")] == 1
    assert found[FEATURES.index("log_softmax")] == pytest.approx(0)
    assert np.isfinite(found).all()


def test_both_sides_of_each_triple_are_asked_whatever_the_batches(toy: KnowledgeGraph) -> None:
    scorer, count = FakeRanker(len(toy.entities), "tied"), len(toy.entities)
    triples = np.concatenate([toy.triples("valid"), toy.triples("train")[:9], toy.triples("valid")[:2]])
    seen = [0]
    found = features(scorer, triples, toy.context.answers, advance=lambda n, total: seen.append(seen[-1] + n))
    queries, _ = both_sides(triples)
    distinct = len(set(zip(queries.entity_B, queries.relation_B, queries.tail_B, strict=True)))
    assert seen[-1] == distinct, "each once"
    for n, (h, r, t) in enumerate(triples.tolist()):
        for side, (entity, asked, is_tail) in enumerate(((h, t, True), (t, h, False))):
            query = Queries(np.array([entity]), np.array([r]), np.array([is_tail]))
            known = set(toy.context.answers.lookup(query)[1].tolist())
            expected = by_hand(scorer.score(query)[0].tolist(), asked, known, 1.0)
            assert found[n, side] == pytest.approx(expected)
    order = np.random.default_rng(0).permutation(len(triples))
    again = features(scorer, triples[order], FilterIndex(toy.triples("train"), count))
    assert again == pytest.approx(found[order])


def negatives(graph: KnowledgeGraph, triples: IntArray, seed: int = 0) -> tuple[IntArray, IntArray, IntArray]:
    draws = Negatives(graph.all_triples, graph.splits["train"], len(graph.entities), seed)
    return draws.draw(triples, FakeRanker(len(graph.entities), "tied"))


def test_negatives_differ_on_one_side_and_are_in_no_split(toy: KnowledgeGraph) -> None:
    triples = np.concatenate([toy.triples(s) for s in ("valid", "test")] + [toy.triples("train")[:20]])
    found, of, kind = negatives(toy, triples)
    true = set(map(tuple, toy.all_triples.tolist()))
    assert not true & set(map(tuple, found.tolist()))
    changed = found != triples[of]
    assert (changed.sum(1) == 1).all()
    assert not changed[:, 1].any()
    assert set(kind.tolist()) == set(range(len(KINDS_OF_NEGATIVES)))
    train = toy.triples("train")
    for negative, side in zip(found[kind == 1], np.argmax(changed, 1)[kind == 1], strict=True):
        assert negative[side] in train[train[:, 1] == negative[1]][:, side], "of the observed type"
    again = negatives(toy, triples)
    assert all((a == b).all() for a, b in zip((found, of, kind), again, strict=True))
    assert not np.array_equal(negatives(toy, triples, seed=1)[0], found)


def test_hard_negatives_rank_high(toy: KnowledgeGraph) -> None:
    triples = toy.triples("valid")
    found, of, kind = negatives(toy, triples)
    known = FilterIndex(toy.all_triples, len(toy.entities))
    scorer = FakeRanker(len(toy.entities), "tied")
    for negative, true in zip(found[kind == 2], triples[of][kind == 2], strict=True):
        is_tail = negative[2] != true[2]
        entity, new = (negative[0], negative[2]) if is_tail else (negative[2], negative[0])
        query = Queries(np.array([entity]), np.array([negative[1]]), np.array([is_tail]))
        scores = scorer.score(query)[0]
        wrong = np.delete(scores, known.lookup(query)[1])
        assert (wrong > scores[new]).sum() < HARD


def test_no_negative_where_everything_is_true() -> None:
    train = np.array([[h, 0, t] for h in range(3) for t in range(3)])
    found, _, _ = Negatives(train, train, 3).draw(train[:4], FakeRanker(3, "tied"))
    assert len(found) == 0
