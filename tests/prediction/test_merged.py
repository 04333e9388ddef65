from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kgmlm.prediction.merged import (
    EVIDENCE,
    LEAST,
    Examples,
    Merged,
    by_others,
    by_relation,
    fit_likely,
    held_out,
    merged,
    share_of,
)
from kgmlm.ranking.likely import FEATURES, Likely, TrueTriples

COLUMNS = (*FEATURES, "likelihood")


def rows(count: int, seed: int = 0, relations: int = 4) -> pa.Table:
    """Candidates as parts have them, by relation, each triple at most once per side."""
    rng = np.random.default_rng(seed)
    found = {
        (int(r), bool(side), int(h), int(t))
        for r, side, h, t in zip(*(rng.integers(0, k, count) for k in (relations, 2, 6, 6)), strict=True)
    }
    table: dict[str, list[Any]] = {
        name: [] for name in ("head", "relation", "tail", "of_tail", "hidden", "open")
    }
    for r, side, h, t in sorted(found):
        for name, value in zip(table, (h, r, t, side, rng.random() < 0.7, rng.random() < 0.7), strict=True):
            table[name].append(value)
    values = {name: rng.normal(size=len(found)).astype(np.float32) for name in COLUMNS}
    return pa.table({**table, **values})


@pytest.mark.parametrize("member", ["hidden", "open"])
def test_both_sides_of_a_triple_are_one(member: str) -> None:
    table = rows(300, relations=1)
    found = merged(table, member, COLUMNS)
    expected: dict[tuple[int, ...], dict[int, list[float]]] = {}
    for row in table.to_pylist():
        if row[member]:
            triple = (row["head"], row["relation"], row["tail"])
            expected.setdefault(triple, {})[0 if row["of_tail"] else 1] = [row[name] for name in COLUMNS]
    assert [tuple(t) for t in found.triples.tolist()] == sorted(expected)
    kinds = set()
    for triple, values, kind in zip(found.triples.tolist(), found.values, found.evidence, strict=True):
        sides = expected[tuple(triple)]
        kinds.add(EVIDENCE[kind])
        assert EVIDENCE[kind] == ("both" if len(sides) == 2 else ("tail", "head")[next(iter(sides))])
        for side in (0, 1):
            if side in sides:
                assert values[side].tolist() == sides[side]
            else:
                assert np.isnan(values[side]).all()
    assert kinds == set(EVIDENCE)


@pytest.mark.parametrize("size", [1, 7, 50, 1000])
def test_relations_are_whole_wherever_parts_end(size: int) -> None:
    table = rows(200)
    parts = [table.slice(start, size) for start in range(0, len(table), size)]
    parts.insert(1, table.slice(0, 0))
    found = list(by_relation(parts))
    assert [set(x.column("relation").to_pylist()) for x in found] == [{0}, {1}, {2}, {3}]
    assert pa.concat_tables(found).to_pylist() == table.to_pylist()
    assert list(by_relation([])) == []


def examples(count: int, seed: int, true: float = -3.0) -> tuple[Examples, np.ndarray]:
    """Triples whose log odds of being true are a line of their features, and these probabilities."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, 2, len(FEATURES)))
    evidence, relations = rng.integers(0, 3, count), rng.integers(0, 5, count)
    features[evidence == 1, 1] = np.nan
    features[evidence == 2, 0] = np.nan
    odds = true + relations * 0.5 + 1.5 * np.nan_to_num(features[:, 0, 1]) + np.nan_to_num(features[:, 1, 1])
    probability = 1 / (1 + np.exp(-odds))
    labels = rng.random(count) < probability
    folds, offsets = rng.integers(0, 4, count), np.zeros(count)
    whole = Examples(evidence, features, relations, labels, np.ones(count), folds, offsets)
    return whole, probability


def of(likely: Likely, some: Examples) -> np.ndarray:
    return likely(some.evidence, some.features, some.relations)


def with_labels(some: Examples, labels: np.ndarray) -> Examples:
    return replace(some, labels=labels)


def test_probabilities_are_those_that_labels_were_drawn_by() -> None:
    fitted, _ = examples(30_000, 1)
    new, probability = examples(30_000, 2)
    found = of(fit_likely(fitted, 5, 0.999), new)
    assert abs(np.log(found / (1 - found)) - np.log(probability / (1 - probability))).mean() < 0.2
    for least in (0.1, 0.5, 0.9):
        some = found >= least
        assert some.sum() > 100
        assert found[some].mean() == pytest.approx(new.labels[some].mean(), abs=0.04)


def test_scores_of_relations_have_their_own_units_and_some_say_nothing() -> None:
    """Relation 0 is told apart by its scores, 1 by scores ten times as large, 2 by nothing."""

    def drawn(seed: int) -> tuple[Examples, np.ndarray]:
        some, _ = examples(30_000, seed)
        some = replace(some, relations=some.relations % 3)
        said = np.nanmean(some.features[:, :, 1], axis=1)
        probability = 1 / (1 + np.exp(-np.where(some.relations == 2, -4.5, 4 * said - 4)))
        units = np.where(some.relations > 0, 10.0, 1.0)[:, None, None]
        labels = np.random.default_rng(seed + 10).random(len(said)) < probability
        return replace(some, features=some.features * units, labels=labels), probability

    fitted, _ = drawn(1)
    new, probability = drawn(2)
    found = of(fit_likely(fitted, 3, 0.999), new)
    for relation in range(3):
        own = new.relations == relation
        assert abs(found[own] - probability[own]).mean() < 0.02
    for relation in (0, 1):
        some = (new.relations == relation) & (found >= 0.5)
        assert some.sum() > 500
        assert found[some].mean() == pytest.approx(new.labels[some].mean(), abs=0.04)
    assert found[new.relations == 2].max() < 0.2


def test_a_relation_that_was_not_fitted_to_is_an_average_one() -> None:
    fitted, _ = examples(30_000, 1)
    new, _ = examples(3000, 2)
    likely = fit_likely(fitted[fitted.relations != 4], 5, 0.999)
    found = of(likely, replace(new, relations=np.full(len(new.relations), 4)))
    others = [of(likely, replace(new, relations=np.full(len(new.relations), r))).mean() for r in range(4)]
    assert min(others) < found.mean() < max(others)


@pytest.mark.parametrize("known", [0.0, 0.3, 0.6])
def test_true_triples_that_nobody_has_labeled_are_no_false_ones(known: float) -> None:
    """Of the true triples 30 % are validation's, and some share is known and never listed."""
    fitted, _ = examples(60_000, 1)
    true = int(fitted.labels.sum())
    drawn = np.random.default_rng(7).random(len(fitted.labels))
    truth = TrueTriples(round(0.3 * true), round(known * true), true)
    assert truth.labeled == pytest.approx(0.3, abs=0.01)
    likely = fit_likely(with_labels(fitted, fitted.labels & (drawn < 0.3)), 5, truth.labeled)
    listed = ~fitted.labels | (drawn >= known)
    probability = truth.left(of(likely, fitted))[listed]
    labels = fitted.labels[listed]
    for least in (0.1, 0.3, 0.5, 0.7):
        some = probability >= least
        assert some.sum() > 100
        assert probability[some].mean() == pytest.approx(labels[some].mean(), abs=0.06)


def test_what_no_known_split_has_is_less_probable_and_never_above_one() -> None:
    q = np.linspace(0, 1, 11)
    left = TrueTriples(50, 100, 200.0).left(q)
    assert (left[0], left[-1]) == (0, 1)
    assert (left[1:-1] < q[1:-1]).all()
    assert TrueTriples(50, 0, 200.0).left(q).tolist() == q.tolist()
    assert TrueTriples(50, 50, 100.0).labeled == 0.5


def test_a_prior_of_one_in_thousands_is_met() -> None:
    fitted, _ = examples(200_000, 3, true=-9.0)
    likely = fit_likely(fitted, 5, 0.999)
    assert fitted.labels.mean() == pytest.approx(share_of(fitted), rel=0.01)
    assert fitted.labels.mean() < 0.005
    assert of(likely, fitted).sum() == pytest.approx(fitted.labels.sum(), rel=0.1)


def test_the_share_of_others_does_not_matter_much() -> None:
    whole, _ = examples(40_000, 4)
    ids = np.arange(40_000)
    found = Merged(np.stack([ids, whole.relations, ids], axis=1), whole.features)
    thinned = Examples.of(found, whole.labels, ids, 0.3)
    assert thinned.labels.sum() == whole.labels.sum()
    assert len(thinned.labels) < 20_000
    assert thinned.weights.sum() == pytest.approx(40_000, rel=0.02)
    a, b = (of(fit_likely(x, 5, 0.5), whole) for x in (Examples.of(found, whole.labels, ids, 1.0), thinned))
    assert abs(a - b).mean() < 0.02
    assert (np.bincount(thinned.folds, minlength=4) > 0.2 * len(thinned.folds)).all()


@pytest.mark.parametrize("true", [0, 1, LEAST - 1, 30])
def test_with_few_true_triples_the_expected_number_holds_and_better_scores_come_first(true: int) -> None:
    whole, _ = examples(2000, 5)
    labels = np.zeros(2000, np.bool_)
    labels[np.random.default_rng(1).choice(2000, true, replace=False)] = True
    few = with_labels(whole, labels)
    found = of(fit_likely(few, 5, 0.5), few)
    assert 0.5 * found.sum() == pytest.approx(true + 0.5, abs=1 + 0.1 * true)
    if true < LEAST:
        softmax = np.fmax(few.features[:, 0, 1], few.features[:, 1, 1])
        np.testing.assert_allclose(found[np.argsort(softmax)], np.sort(found))
    truth = TrueTriples(30, 0, 60.0)
    assert len(held_out(few, by_others(few, 5, truth), truth)) > 3


def test_what_is_held_out_is_about_as_expected() -> None:
    whole, _ = examples(40_000, 6)
    drawn = np.random.default_rng(8).random(len(whole.labels)) < 0.4
    true = int(whole.labels.sum())
    half = with_labels(whole, whole.labels & drawn)
    truth = TrueTriples(round(0.4 * true), round(0.4 * true), true)
    for row in held_out(half, by_others(half, 5, truth), truth):
        assert row["candidates"] >= row["validation"]
        assert row["validation"] == pytest.approx(row["expected"], rel=0.25, abs=5)


def test_false_triples_of_which_few_were_drawn_count_as_the_many_that_they_stand_for() -> None:
    whole, probability = examples(60_000, 9, true=-3.0)
    rng = np.random.default_rng(3)
    drawn = whole.labels | (rng.random(len(whole.labels)) < 0.05)
    some = replace(whole[drawn], offsets=np.full(int(drawn.sum()), np.log(20.0)))
    found = of(fit_likely(some, 5, 0.999), whole)
    assert found.sum() == pytest.approx(whole.labels.sum(), rel=0.1)
    assert abs(found - probability).mean() < 0.02
