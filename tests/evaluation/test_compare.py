from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from kgmlm.core.errors import DataError
from kgmlm.evaluation.compare import compare_ranks, differences_json, paired
from kgmlm.evaluation.metrics import COLUMNS, find_ranks, read_ranks


def ranks(optimistic: list[int] | np.ndarray, candidates: int = 1000) -> pd.DataFrame:
    """Both queries of as many triples as half the ranks."""
    n = len(optimistic) // 2
    keys = [(f"h{i}", "r", f"t{i}", target) for target in ("head", "tail") for i in range(n)]
    table = pd.DataFrame(keys, columns=COLUMNS[:4])
    return table.assign(optimistic=optimistic, pessimistic=optimistic, candidates=candidates)


def test_a_difference_is_that_of_the_means_and_its_sign_says_who_is_better() -> None:
    rng = np.random.default_rng(0)
    first = rng.integers(2, 40, 600)
    comparison = {d.metric: d for d in compare_ranks(ranks(first), ranks(first - 1), draws=500)}
    mrr = comparison["mrr"]
    assert mrr.a == pytest.approx(np.mean(1 / first))
    assert mrr.b == pytest.approx(np.mean(1 / (first - 1)))
    assert mrr.low < mrr.difference < mrr.high
    assert mrr.low > 0
    assert mrr.p == pytest.approx(1 / 501), "no random swap does as much"
    back = next(d for d in compare_ranks(ranks(first - 1), ranks(first), draws=500) if d.metric == "mrr")
    assert back.difference == pytest.approx(-mrr.difference)
    assert back.high < 0


def test_no_difference_is_no_finding() -> None:
    same = ranks(np.random.default_rng(0).integers(1, 40, 200))
    for d in compare_ranks(same, same.sample(frac=1, random_state=1), draws=200):
        assert (d.difference, d.low, d.high, d.p) == (0, 0, 0, 1)


def test_chance_is_found_to_be_chance() -> None:
    """Two rankings that differ by noise alone: p is below .05 about one time in twenty."""
    ps = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        a, b = rng.integers(1, 40, (2, 200))
        ps += [d.p for d in compare_ranks(ranks(a), ranks(b), draws=200, seed=seed) if d.metric == "mrr"]
    assert 0 <= np.mean(np.array(ps) < 0.05) <= 0.15
    assert 0.35 < np.mean(ps) < 0.65


def test_the_interval_holds_ninety_five_percent() -> None:
    """Of many triples the mean difference is normal: its ends are 1.96 standard errors away."""
    n = 400
    gains = np.random.default_rng(3).random(n) < 0.3
    first = np.full(2 * n, 2)
    second = np.where(np.tile(gains, 2), 1, 2)  # both queries of a triple move together
    comparison = {d.metric: d for d in compare_ranks(ranks(first), ranks(second), draws=20_000)}["hits_at_1"]
    mean, error = gains.mean(), gains.std() / np.sqrt(n)
    assert (comparison.low - mean) / error == pytest.approx(-1.96, abs=0.08)
    assert (comparison.high - mean) / error == pytest.approx(1.96, abs=0.08)


def test_sides_are_compared_apart() -> None:
    first, second = ranks([2, 4, 6, 8]), ranks([2, 4, 3, 4])
    results = {
        (d.side, d.metric): d.difference
        for d in compare_ranks(first, second, sides=("head", "tail"), draws=100)
    }
    assert results["head", "mrr"] == 0
    assert results["tail", "mrr"] == pytest.approx((1 / 3 + 1 / 4 - 1 / 6 - 1 / 8) / 2)
    with pytest.raises(DataError, match="a side is head, tail, both, not 'left'"):
        compare_ranks(first, second, sides=("left",))


def test_the_queries_of_a_triple_count_together() -> None:
    """Ten triples of which both queries move alike say less than twenty independent ones would."""
    a, b = ranks([9] * 20), ranks([3] * 6 + [40] * 4 + [3] * 6 + [40] * 4)
    together = next(d for d in compare_ranks(a, b, draws=2000) if d.metric == "hits_at_3")
    split = b.assign(head=[f"h{i}" for i in range(20)])
    alone = next(
        d for d in compare_ranks(a.assign(head=split["head"]), split, draws=2000) if d.metric == "hits_at_3"
    )
    assert together.high - together.low > 1.2 * (alone.high - alone.low)


def test_hits_count_ranks_up_to_their_number() -> None:
    comparison = {d.metric: d for d in compare_ranks(ranks([1, 2, 3, 4]), ranks([10, 11, 3, 10]), draws=10)}
    assert set(comparison) == {"mrr", "hits_at_1", "hits_at_3", "hits_at_10"}
    assert [(comparison[f"hits_at_{k}"].a, comparison[f"hits_at_{k}"].b) for k in (1, 3, 10)] == [
        (0.25, 0.0), (0.75, 0.25), (1.0, 0.75),
    ]  # fmt: skip


def test_ties_count_half() -> None:
    tied = ranks([1, 1]).assign(pessimistic=3)
    comparison = {d.metric: d for d in compare_ranks(ranks([1, 1]), tied, draws=10)}
    assert comparison["mrr"].b == 0.5
    assert comparison["hits_at_1"].b == 0


def test_chance_is_drawn_by_the_seed_and_two_thousand_times() -> None:
    rng = np.random.default_rng(0)
    a, b = ranks(rng.integers(1, 40, 100)), ranks(rng.integers(1, 40, 100))
    assert compare_ranks(a, b) == compare_ranks(a, b) == compare_ranks(a, b, seed=0, draws=2000)
    assert compare_ranks(a, b) != compare_ranks(a, b, seed=1)
    (clear,) = (d for d in compare_ranks(ranks([30] * 100), ranks([2] * 100)) if d.metric == "mrr")
    assert clear.p == 1 / 2001


def test_in_however_many_parts_chance_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgmlm.evaluation.compare._DRAWN", 50 * 7)  # 7 resamplings of 50 triples at once
    same = ranks(np.random.default_rng(0).integers(1, 40, 100))
    assert {d.p for d in compare_ranks(same, same, draws=100)} == {1.0}
    better = ranks(np.full(100, 2)), ranks(np.full(100, 1))
    (comparison,) = (d for d in compare_ranks(*better, draws=100) if d.metric == "mrr")
    assert (comparison.low, comparison.high, comparison.p) == (0.5, 0.5, 1 / 101)


def test_a_side_that_nobody_asked_is_left_out() -> None:
    heads = ranks([1, 2, 3, 4])
    heads = heads[heads["target"] == "head"]
    tails = heads.assign(target="tail")
    for table, side in ((heads, "head"), (tails, "tail")):
        comparison = compare_ranks(table, table, sides=("head", "tail"), draws=10)
        assert {d.side for d in comparison} == {side}


def test_what_is_printed_as_json() -> None:
    comparison = compare_ranks(ranks([2, 2]), ranks([1, 2]), draws=10)
    printed = differences_json(comparison, 2)
    assert printed["queries"] == 2
    assert len(printed["differences"]) == 4
    first = printed["differences"][0]
    assert first == {
        "metric": "mrr", "side": "both", "a": 0.5, "b": 0.75, "difference": 0.25,
        "low": comparison[0].low, "high": comparison[0].high, "p": comparison[0].p,
    }  # fmt: skip


def test_a_triple_that_a_split_has_twice_counts_twice(tmp_path: Path) -> None:
    table = ranks([1, 2, 3, 4])
    twice = pd.concat([table, table.iloc[:1]], ignore_index=True)
    twice.to_parquet(tmp_path / "ranks.parquet")
    assert len(paired(read_ranks(tmp_path / "ranks.parquet"), twice)) == 5
    with pytest.raises(DataError, match="1 are in one only"):
        paired(twice, table)


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    table = ranks([1, 2, 3, 4])
    with pytest.raises(DataError, match=r"1 are in one only, such as \(h0, r, t0\) in the first"):
        paired(table, table.iloc[1:])
    with pytest.raises(DataError, match=r"1 are in one only, such as \(h0, r, t0\) in the second"):
        paired(table.iloc[1:], table)
    with pytest.raises(
        DataError,
        match=r"4 of 4 queries .* different numbers of candidates; evaluate both under one protocol$",
    ):
        paired(table, table.assign(candidates=50))
    path = tmp_path / "ranks.parquet"
    for content, message in (
        (table.drop(columns="target"), "no column 'target'"),
        (table.iloc[:0], "no ranks"),
        (pd.concat([table, table.assign(optimistic=7, pessimistic=7)]), "query twice, with different ranks"),
        (table.assign(pessimistic=0), "must satisfy 1 <= optimistic"),
        (table.assign(optimistic=-1), "must satisfy 1 <= optimistic"),
        (table.assign(optimistic=1.5), "column 'optimistic' is not whole numbers"),
        (table.assign(candidates="x"), "column 'candidates' is not whole numbers"),
        (
            table.assign(optimistic=table["optimistic"].where(table.index != 1)),
            "column 'optimistic' is not whole numbers",
        ),
        (table.assign(optimistic=[True] * 4), "column 'optimistic' is not whole numbers"),
        (table.assign(tail=7), "column 'tail' is not text"),
        (table.assign(relation=table["relation"].where(table.index != 1)), "column 'relation' is not text"),
        (table.assign(target="both"), "a target is head or tail"),
    ):
        content.to_parquet(path)
        with pytest.raises(DataError, match=message):
            read_ranks(path)
    table.assign(head=[b"\xff"] * 4).to_parquet(path)
    latin = pq.read_table(path)
    pq.write_table(latin.set_column(0, "head", latin["head"].combine_chunks().view("string")), path)
    with pytest.raises(DataError, match=r"cannot be read as Parquet: .*UTF8"):
        read_ranks(path)
    path.write_text("x")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read_ranks(path)
    with pytest.raises(DataError, match="does not exist"):
        find_ranks(tmp_path / "absent")
    (tmp_path / "run" / "ranks").mkdir(parents=True)
    with pytest.raises(DataError, match="it has: none"):
        find_ranks(tmp_path / "run")
