"""Probabilities of triples by a ranker that is open."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.prediction.calibration import FITTED_AT, Calibration, Examples, fit
from kgmlm.prediction.classify import features_of, judged
from kgmlm.ranking.ranker import Ranker


@pytest.fixture
def ranker(make_ranker: Callable[..., Ranker]) -> Ranker:
    return make_ranker()


@pytest.fixture
def calibration(ranker: Ranker, toy: KnowledgeGraph) -> Calibration:
    """Fitted to triples of which every second one is called true."""
    triples = np.array([(h, r, t) for h in range(20) for r, t in ((0, 25), (1, 26), (2, 27))])
    known, found = features_of(ranker, toy, triples)
    new = np.flatnonzero(~known)
    labels, halves = new % 2 == 0, new % 4 < 2
    examples = Examples(found[new], triples[new, 1], labels, np.ones(len(new)), halves)
    return fit(examples, len(toy.relations), of={}, by={})[0]


def test_lists_asked_together_get_what_they_get_alone(
    ranker: Ranker, toy: KnowledgeGraph, calibration: Calibration
) -> None:
    train = toy.splits["train"][:1]
    lists = [
        (np.array([(0, 0, 9), (1, 1, 8)]), FITTED_AT, False),
        (np.concatenate([train, [(0, 0, 9)]]), 0.01, True),
        (np.zeros((0, 3), np.int64), 0.5, False),
    ]
    together = judged(calibration, ranker, toy, lists)
    for found, asked in zip(together, lists, strict=True):
        (alone,) = judged(calibration, ranker, toy, [asked])
        np.testing.assert_allclose(found.probabilities, alone.probabilities, rtol=1e-4)
        assert found.decided.tolist() == alone.decided.tolist()
        assert len(found) == len(asked[0])
    assert together[1].known.tolist() == [True, False]
    assert together[1].probabilities[1] < together[0].probabilities[0], "at a prior that is less"
    assert judged(calibration, ranker, toy, []) == []


def test_rows_are_taken_from_all_columns(
    ranker: Ranker, toy: KnowledgeGraph, calibration: Calibration
) -> None:
    triples = np.array([(0, 0, 9), (1, 1, 8), (2, 2, 7)])
    (found,) = judged(calibration, ranker, toy, [(triples, 0.5, False)])
    best = found[np.array([2, 0])]
    assert best.as_json(explain=True) == [found.as_json(explain=True)[i] for i in (2, 0)]
