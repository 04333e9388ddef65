from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgmlm.core.errors import ModelError
from kgmlm.evaluation.metrics import Ranks, expected_hits, flat_metrics, headline, rank_answers, summarize

REGISTRY = tuple(summarize(Ranks(*(np.array([1, 2]) for _ in range(3)))))  # metrics


def ranked(ranks: list[int], candidates: int = 20) -> Ranks:
    return Ranks(np.array(ranks), np.array(ranks), np.full(len(ranks), candidates))


@pytest.mark.parametrize("name", REGISTRY)
class TestEveryMetric:
    @given(st.lists(st.integers(1, 20), min_size=1, max_size=9), st.data())
    def test_a_better_rank_never_makes_it_worse(
        self, name: str, ranks: list[int], data: st.DataObject
    ) -> None:
        best, worst = (summarize(ranked([rank] * len(ranks)))[name] for rank in (1, 20))
        at = data.draw(st.integers(0, len(ranks) - 1))
        better = [data.draw(st.integers(1, r)) if i == at else r for i, r in enumerate(ranks)]
        before, after = (summarize(ranked(x))[name] for x in (ranks, better))
        assert (after - before) * np.sign(best - worst) >= -1e-9
        assert min(best, worst) - 1e-9 <= before <= max(best, worst) + 1e-9

    @given(st.permutations(range(1, 9)))
    def test_the_order_of_queries_does_not_matter(self, name: str, order: list[int]) -> None:
        assert summarize(ranked(order))[name] == pytest.approx(summarize(ranked(sorted(order)))[name])

    @given(st.lists(st.integers(1, 20), min_size=1, max_size=9))
    def test_queries_asked_twice_change_nothing_but_the_count(self, name: str, ranks: list[int]) -> None:
        once, twice = (summarize(ranked(ranks * times))[name] for times in (1, 2))
        assert twice == pytest.approx((2 if name == "count" else 1) * once)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
    st.data(),
)
def test_ranks_agree_with_counting_by_hand(scores: list[int], data: st.DataObject) -> None:
    answer = data.draw(st.integers(0, len(scores) - 1))
    known = data.draw(st.sets(st.integers(0, len(scores) - 1)))
    columns = np.array(sorted(known), np.int64)
    ranks = rank_answers(
        np.array([scores], np.float32),
        np.array([answer]),
        (np.zeros(len(columns), np.int64), columns),
    )
    rivals = [s for i, s in enumerate(scores) if i != answer and i not in known]
    higher, equal = sum(s > scores[answer] for s in rivals), sum(s == scores[answer] for s in rivals)
    assert ranks.optimistic_B[0] == higher + 1
    assert ranks.pessimistic_B[0] == higher + equal + 1
    assert ranks.of_type("realistic")[0] == higher + 1 + equal / 2
    assert ranks.candidates_B[0] == len(rivals) + 1


SCORES = st.lists(st.lists(st.integers(-2, 2), min_size=6, max_size=6), min_size=1, max_size=4)


@given(SCORES, st.permutations(range(6)), st.data())
def test_ranks_go_with_their_entities(scores: list[list[int]], order: list[int], data: st.DataObject) -> None:
    """Entities in another order have the same ranks."""
    answers = np.array(data.draw(st.lists(st.integers(0, 5), min_size=len(scores), max_size=len(scores))))
    known = data.draw(st.lists(st.tuples(st.integers(0, len(scores) - 1), st.integers(0, 5)), unique=True))
    rows, columns = np.array(known, np.int64).reshape(-1, 2).T
    scores_BN = np.array(scores, np.float32)
    place = np.array(order)
    moved_BN = np.zeros_like(scores_BN)
    moved_BN[:, place] = scores_BN
    before = rank_answers(scores_BN, answers, (rows, columns))
    after = rank_answers(moved_BN, place[answers], (rows, place[columns]))
    for name in ("optimistic_B", "pessimistic_B", "candidates_B"):
        assert (getattr(before, name) == getattr(after, name)).all()


@given(st.lists(st.integers(-2, 2), min_size=1, max_size=8), st.data())
def test_a_realistic_rank_is_the_mean_over_all_ways_to_break_ties(
    scores: list[int], data: st.DataObject
) -> None:
    answer = data.draw(st.integers(0, len(scores) - 1))
    ranks = rank_answers(np.array([scores], np.float32), np.array([answer]))
    others = [s for i, s in enumerate(scores) if i != answer]
    above, level = sum(s > scores[answer] for s in others), sum(s == scores[answer] for s in others)
    broken = [above + 1 + before for before in range(level + 1)]  # each as likely as any other
    assert ranks.of_type("realistic")[0] == pytest.approx(np.mean(broken))
    assert (ranks.of_type("optimistic")[0], ranks.of_type("pessimistic")[0]) == (broken[0], broken[-1])


@given(SCORES, st.integers(-3, 3), st.integers(1, 3))
def test_only_the_order_of_scores_counts(scores: list[list[int]], shift: int, scale: int) -> None:
    scores_BN = np.array(scores, np.float32)
    answers = np.zeros(len(scores), np.int64)
    before, after = (rank_answers(x, answers) for x in (scores_BN, scores_BN * scale + shift))
    assert (before.optimistic_B == after.optimistic_B).all()
    assert (before.pessimistic_B == after.pessimistic_B).all()


def test_a_constant_scorer_gets_chance() -> None:
    n = 101
    ranks = rank_answers(np.zeros((50, n), np.float32), np.arange(50))
    assert summarize(ranks)["inverse_harmonic_mean_rank"] == pytest.approx(1 / 51)
    assert summarize(ranks)["adjusted_arithmetic_mean_rank_index"] == pytest.approx(0)
    assert summarize(ranks)["hits_at_10"] == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_scores_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(ModelError, match=r"^the model's scores are not finite; lower"):
        rank_answers(np.array([[0.0, bad]], np.float32), np.array([0]))


def test_scores_are_left_as_they_were() -> None:
    scores = np.random.default_rng(0).standard_normal((3, 7), np.float32)
    before = scores.copy()
    rank_answers(scores, np.array([0, 1, 2]), (np.array([0, 1]), np.array([3, 4])))
    assert np.array_equal(scores, before)


def test_impossible_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^ranks must satisfy 1 <="):
        Ranks(np.array([0]), np.array([1]), np.array([2]))


def test_an_empty_side_has_a_count_and_no_metric() -> None:
    ones = np.array([1, 1])
    flat = flat_metrics(Ranks(ones, ones, ones), np.array([True, True]))
    assert flat["head.realistic.count"] == 0
    assert "head.realistic.inverse_harmonic_mean_rank" not in flat
    assert headline(flat) == 1


def test_expected_hits_are_those_of_all_ways_to_draw_negatives() -> None:
    """Of 5 rivals, two of which are as good or better, so many are drawn again and again."""
    ranks = Ranks(np.array([1, 2]), np.array([3, 6]), np.array([6, 6]))
    for negatives in (1, 2, 3):
        for k in (1, 2, 5):
            chances = []
            for pessimistic in (3, 6):
                ahead = np.arange(5) < pessimistic - 1
                drawn = product(range(5), repeat=negatives)
                chances.append(np.mean([ahead[list(rivals)].sum() < k for rivals in drawn]))
            assert expected_hits(ranks, negatives, k) == pytest.approx(np.mean(chances))


def test_without_rivals_every_expected_hit_is_one() -> None:
    alone = Ranks(np.array([1]), np.array([1]), np.array([1]))
    assert expected_hits(alone, 10, 1) == 1
    lost = Ranks(np.array([1]), np.array([2]), np.array([2]))  # its only rival is as good
    assert [expected_hits(lost, 1, k) for k in (1, 2)] == [0, 1]


def test_ranks_are_joined_in_order() -> None:
    first, second = (Ranks(np.array([1]), np.array([2]), np.array([9 + i])) for i in range(2))
    third = Ranks(np.array([3, 4]), np.array([5, 6]), np.array([7, 8]))
    joined = Ranks.concatenate([first, third, second])
    assert joined.optimistic_B.tolist() == [1, 3, 4, 1]
    assert joined.pessimistic_B.tolist() == [2, 5, 6, 2]
    assert joined.candidates_B.tolist() == [9, 7, 8, 10]
    nothing = Ranks.concatenate([])
    assert len(nothing) == 0
    assert nothing.optimistic_B.dtype == joined.optimistic_B.dtype
    assert summarize(nothing) == {"count": 0}
    assert len(Ranks.concatenate([nothing, first])) == 1


@pytest.mark.parametrize("candidates", [1, 2, 3])
def test_few_candidates_have_an_index_where_chance_is_worse_than_the_best(candidates: int) -> None:
    best, worst = (summarize(ranked([rank, rank], candidates)) for rank in (1, candidates))
    name = "adjusted_arithmetic_mean_rank_index"
    if candidates == 1:
        assert best[name] == 0, "as PyKEEN has it"
    else:
        assert best[name] == pytest.approx(1)
        assert worst[name] == pytest.approx(-1)
