"""Candidate lists: how often what a run ranks high is true, fitted on validation.

A run is asked as people ask it, one query at a time, and validation says what of its lists is true. Queries
are drawn from three kinds, and weighed by how many of each there are: those that validation answers; those
that training answers, and validation does not; and those that nobody answers, though the types of the entity
fit. Without the latter two every list would seem to have an answer.

Shapes: n candidates, B queries, N entities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kgmlm.core.arrays import BoolArray, FloatArray, IntArray, highest, numpy
from kgmlm.core.errors import RunError
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import FilterIndex, Queries, both_sides
from kgmlm.prediction.candidates import triple_keys
from kgmlm.prediction.merged import Examples, by_others, fit_likely, held_out, share_of
from kgmlm.ranking.constraints import MISSED
from kgmlm.ranking.likely import ListCalibration, Truth, list_features
from kgmlm.ranking.ranker import Ranker

TOP = 20  # candidates of each query that are fitted to
QUERIES = 1000  # of those that validation answers, and of those that training answers; of others half as many
STRENGTH = 3.0  # of the regularization: there are fewer candidates than of a completion
ASKED = 100_000  # entities of a larger graph, by which the queries that nobody answers are counted
Askable = Callable[[int, bool], BoolArray]  # of a relation, which entities can be asked for tails (or heads)


def fit_lists(
    ranker: Ranker,
    graph: KnowledgeGraph,
    askable: Askable,
    *,
    most: int = QUERIES,
    lacking: float = 1.0,
    seed: int = 0,
    batch_size: int = 64,
    advance: Callable[[int, int], None] = lambda n, total: None,
) -> ListCalibration:
    """Fit the probabilities of candidate lists to validation.

    Args:
        ranker: of the run's own graph, with its second stages or without.
        askable: of a relation, the entities ``(N,)`` whose types fit a query for tails (or else heads).
        most: queries that validation answers, about as many that training answers, and half as many that
            nobody does; 0 is all.
        lacking: how large the hidden set is of which a probability is the share, in times of validation.

    Raises:
        RunError: when training has all triples of validation.
    """
    train, count = graph.splits["train"], len(graph.entities)
    hidden = np.unique(triple_keys(graph.splits["valid"], count, len(graph.relations)))
    hidden = np.setdiff1d(hidden, triple_keys(train, count, len(graph.relations)))
    if not len(hidden):
        raise RunError("probabilities need validation triples that training has not")
    truth = Truth.hidden(len(hidden), lacking)
    asked, weight_B = drawn(graph, askable, most, seed)
    examples = _examples(
        ranker, graph, asked, weight_B, hidden, seed, batch_size, lambda n: advance(n, len(asked))
    )
    relations = len(graph.relations) + 1  # the last is the average one
    others = by_others(examples, relations, truth, STRENGTH)
    stages = {name: (use.k, use.weight) for name, use in ranker.uses.items() if use.k}
    valid: dict[str, Any] = {
        "queries": len(asked),
        "candidates": round(float(examples.weights.sum())),
        "true": int(examples.labels.sum()),
        "share": share_of(examples),
        "held out": held_out(examples, others, truth),
    }
    likely = fit_likely(examples, relations, truth.labeled, STRENGTH)
    return ListCalibration.of(likely, len(hidden), lacking, stages, valid)


def drawn(graph: KnowledgeGraph, askable: Askable, most: int, seed: int) -> tuple[Queries, FloatArray]:
    """Draw queries of all kinds, and say how many each stands for ``(B,)``.

    Of what validation does not answer, half are drawn by how many a relation and side has, and half by how
    many of them validation answers.

    Args:
        askable, most: as of :func:`fit_lists`.
    """
    rng = np.random.default_rng(seed)
    train, count = graph.splits["train"], len(graph.entities)
    index, sides = FilterIndex(train, count), 2 * len(graph.relations)
    valid = graph.splits["valid"]
    answered = np.unique(index.keys(both_sides(valid[~index.has(valid)])[0]))
    seen = np.unique(index.keys(both_sides(train)[0]))
    asked, unanswered = np.union1d(seen, answered), np.setdiff1d(seen, answered)
    some = np.arange(count) if count <= ASKED else np.sort(rng.choice(count, ASKED, replace=False))

    def fitting(side: int) -> IntArray:
        relation, tails = divmod(side, 2)
        ids = some[askable(relation, bool(tails))[some]]
        keys = index.keys(Queries(ids, np.full(len(ids), relation), np.full(len(ids), tails == 1)))
        return np.setdiff1d(keys, asked)

    def side_of(keys: IntArray) -> IntArray:
        queries = index.queries(keys)
        return 2 * queries.relation_B + queries.tail_B

    hits_S = np.bincount(side_of(answered), minlength=sides)
    seen_side = side_of(unanswered)
    first = _some(answered, most, rng)
    keys, weights = [first], [np.full(len(first), len(answered) / len(first))]
    for wanted, counts_S, of_side, each in (
        (most, np.bincount(seen_side, minlength=sides), lambda s: unanswered[seen_side == s], 1.0),
        (-(-most // 2), np.array([len(fitting(s)) for s in range(sides)]), fitting, count / len(some)),
    ):
        for side, number in enumerate(_allotted(counts_S, hits_S, wanted).tolist()):
            if number:
                keys.append(_some(of_side(side), number, rng))
                weights.append(np.full(number, each * counts_S[side] / number))
    return index.queries(np.concatenate(keys)), np.concatenate(weights)


def _allotted(counts_S: IntArray, hits_S: IntArray, wanted: int) -> IntArray:
    """How many queries of each relation and side are drawn; all where so many are wanted, or 0 are."""
    if not wanted or wanted >= counts_S.sum():
        return counts_S
    shares_S = counts_S / counts_S.sum() + hits_S / hits_S.sum()
    found: IntArray = np.minimum(counts_S, np.ceil(0.5 * wanted * shares_S).astype(np.int64))
    return found


def _some(values: IntArray, most: int, rng: np.random.Generator) -> IntArray:
    """Some values, each once, in their order; all of them where ``most`` is 0 or there are no more."""
    if not most or most >= len(values):
        return values
    return np.sort(rng.choice(values, most, replace=False))


def _examples(
    ranker: Ranker,
    graph: KnowledgeGraph,
    asked: Queries,
    weight_B: FloatArray,
    hidden: IntArray,
    seed: int,
    batch_size: int,
    advance: Callable[[int], None],
) -> Examples:
    """The best candidates of queries, and whether validation has them.

    Args:
        hidden: keys of validation triples that training has not.
    """
    entities, relations = len(graph.entities), len(graph.relations)
    fold_B = np.random.default_rng((seed, 1)).integers(0, 4, len(asked))
    temperature = ranker.reader.settings.training.temperature
    parts = []
    for at, scores_bN in ranker.rank(asked, batch_size=batch_size, advance=advance):
        some = asked[at]
        taken = graph.context.answers.lookup(some)
        open_bN = numpy(scores_bN).copy()
        open_bN[taken] = MISSED
        values_bK, ids_bK = (numpy(x) for x in highest(open_bN, min(TOP, entities)))
        rows, places = np.nonzero(values_bK > MISSED)
        ids = ids_bK[rows, places]
        features, evidence, _ = list_features(some, scores_bN, taken, rows, ids, temperature)
        asking, tail = some.entity_B[rows], some.tail_B[rows]
        triples = np.stack(
            [np.where(tail, asking, ids), some.relation_B[rows], np.where(tail, ids, asking)], axis=1
        )
        labels = np.isin(triple_keys(triples, entities, relations), hidden)
        of = at[rows]
        parts.append(Examples(evidence, features, some.relation_B[rows], labels, weight_B[of], fold_B[of]))
    return Examples.joined(parts)
