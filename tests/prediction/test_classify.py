"""Probabilities of triples by a ranker that is open."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.prediction import drawing
from kgmlm.prediction.calibration import fit
from kgmlm.prediction.classify import judged
from kgmlm.prediction.drawing import draw_sample
from kgmlm.ranking.probability import TripleClassifier
from kgmlm.ranking.ranker import Ranker


@pytest.fixture
def classifier(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> TripleClassifier:
    monkeypatch.setattr(drawing, "MIN_TRIPLES", 2)  # the toy graph has few validation triples
    ranker, everyone = make_ranker(), np.ones(len(toy.entities), np.bool_)
    sample = draw_sample(ranker, toy, lambda relation, tails: everyone, most=0)
    fitted, _ = fit(sample, len(toy.relations), 4, 1.0)
    return TripleClassifier.of(ranker, fitted, None, toy.seen_N, toy.splits["valid"])


def test_lists_asked_together_get_what_they_get_alone(
    classifier: TripleClassifier, toy: KnowledgeGraph
) -> None:
    train = toy.splits["train"][:1]
    lists = [
        (np.array([(1, 0, 9), (1, 1, 8)]), 0.5),
        (np.concatenate([train, [(1, 0, 9)]]), 0.01),
        (np.zeros((0, 3), np.int64), 0.5),
    ]
    together = judged(classifier, toy, lists)
    for item, asked in zip(together, lists, strict=True):
        (alone,) = judged(classifier, toy, [asked])
        np.testing.assert_allclose(item.probabilities, alone.probabilities, rtol=1e-4)
        np.testing.assert_allclose(item.if_half_true, alone.if_half_true, rtol=1e-4)
        assert item.decided.tolist() == alone.decided.tolist()
        assert len(item) == len(asked[0])
    assert together[1].known.tolist() == [True, False]
    assert together[1].if_half_true[1] < together[0].if_half_true[0], "at a prior that is less"
    assert together[1].probabilities[1] == pytest.approx(together[0].probabilities[0])
    assert judged(classifier, toy, []) == []


def test_rows_are_taken_from_all_columns(classifier: TripleClassifier, toy: KnowledgeGraph) -> None:
    triples = np.array([(1, 0, 9), (1, 1, 8), (2, 2, 7)])
    (classified,) = judged(classifier, toy, [(triples, 0.5)])
    best = classified[np.array([2, 0])]
    assert best.as_json(explain=True) == [classified.as_json(explain=True)[i] for i in (2, 0)]


def test_what_is_added_explains_the_probability(classifier: TripleClassifier, toy: KnowledgeGraph) -> None:
    (classified,) = judged(classifier, toy, [(np.array([(1, 0, 9)]), 0.5)])
    (parts,) = classified.explained()
    assert parts is not None
    log_odds = sum(parts[name]["adds"] for name in ("tail", "head", "relation", "calibration"))
    assert parts["log_odds"] == pytest.approx(log_odds)
    true = 1 / (1 + np.exp(-log_odds))
    assert classified.probabilities[0] == pytest.approx(0.5 * true / (1 - 0.5 * true))
