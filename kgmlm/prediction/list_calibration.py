"""Candidate lists: how often what a run ranks high is true, fitted on validation.

A run is asked as people ask it, one query at a time, and validation says what of its lists is true. Queries
are drawn from three kinds, and weighed by how many of each there are: those that validation answers; those
that training answers, and validation does not; and those that nobody answers, though the types of the entity
fit. Without the latter two every list would seem to have an answer.

Shapes: n candidates, B queries, N entities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kgmlm.core.arrays import BoolArray, FloatArray, Floats, IntArray, highest, some_of
from kgmlm.core.errors import RunError
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import FilterIndex, Queries, both_sides, parts_of_pairs, triple_keys
from kgmlm.prediction.merged import Examples, by_others, fit_likely, held_out, share_of
from kgmlm.ranking.constraints import MISSED
from kgmlm.ranking.likely import (
    ListCalibration,
    TrueTriples,
    columns_of,
    falling,
    list_features,
    temperature_of,
)
from kgmlm.ranking.ranker import Ranker

if TYPE_CHECKING:
    from kgmlm.ranking.retrieval import Retrieval

TOP = 20  # candidates of each query that are fitted to
QUERIES = 1000  # drawn that validation answers, as many that training answers, half as many others
STRENGTH = 2.0  # of the regularization: there are fewer candidates than of a completion
ALIKE = 20  # average candidates that are added to a relation's own, which shrinks its offset
MOST_ENTITIES = 100_000  # entities, at most, by which the queries that nobody answers are counted
Askable = Callable[[int, bool], BoolArray]  # of a relation, which entities can be asked for tails (or heads)


class Asked(NamedTuple):
    """Drawn queries, and how many each stands for, in those that validation answers.

    Attributes:
        weight_B: ``(B,)``, 1 for queries that validation answers.
        each: how many queries one of these stands for.
    """

    queries: Queries
    weight_B: FloatArray
    each: float


def drawn(graph: KnowledgeGraph, askable: Askable, most: int = QUERIES, seed: int = 0) -> Asked:
    """Draw queries of all kinds.

    Of what validation does not answer, half are drawn by how many a relation and side has, and half by how
    many of them validation answers.

    Args:
        askable: of a relation, the entities ``(N,)`` whose types fit a query for tails (or else heads).
        most: queries that validation answers, about as many that training answers, and half as many that
            nobody does; 0 is all.

    Raises:
        RunError: when training has all triples of validation.
    """
    rng = np.random.default_rng(seed)
    train, count = graph.splits["train"], len(graph.entities)
    index, sides = FilterIndex(train, count), np.arange(2 * len(graph.relations))
    valid = graph.splits["valid"]
    answered = np.unique(index.keys(both_sides(valid[~index.has(valid)])[0]))
    if not len(answered):
        raise RunError("probabilities need validation triples that training has not")
    seen = np.unique(index.keys(both_sides(train)[0]))
    unanswered = np.setdiff1d(seen, answered)

    def by_side(keys: IntArray) -> list[IntArray]:
        queries = index.queries(keys)
        side = 2 * queries.relation_B + queries.tail_B
        order = np.argsort(side, kind="stable")
        return np.split(keys[order], np.searchsorted(side[order], sides[1:]))

    entities = some_of(np.arange(count), MOST_ENTITIES, rng)
    asked_S = [index.queries(keys).entity_B for keys in by_side(np.union1d(seen, answered))]

    def fitting(side: int) -> IntArray:
        relation, tails = divmod(side, 2)
        ids = np.setdiff1d(entities[askable(relation, bool(tails))[entities]], asked_S[side])
        return index.keys(Queries(ids, np.full(len(ids), relation), np.full(len(ids), tails == 1)))

    hits_S = np.array([len(keys) for keys in by_side(answered)])
    unanswered_S = by_side(unanswered)
    first = some_of(answered, most, rng)
    keys, weights = [first], [np.full(len(first), len(answered) / len(first))]
    for wanted, counts_S, of_side, each in (
        (most, np.array([len(x) for x in unanswered_S]), unanswered_S.__getitem__, 1.0),
        (-(-most // 2), np.array([len(fitting(s)) for s in sides.tolist()]), fitting, count / len(entities)),
    ):
        for side, number in enumerate(_allotted(counts_S, hits_S, wanted).tolist()):
            if number:
                keys.append(some_of(of_side(side), number, rng))
                weights.append(np.full(number, each * counts_S[side] / number))
    weight_B = np.concatenate(weights)
    return Asked(index.queries(np.concatenate(keys)), weight_B / weight_B[0], float(weight_B[0]))


def _allotted(counts_S: IntArray, hits_S: IntArray, wanted: int) -> IntArray:
    """Numbers of queries to draw of each relation and side; all where so many are wanted, or 0 are."""
    if not wanted or wanted >= counts_S.sum():
        return counts_S
    shares_S = counts_S / counts_S.sum() + hits_S / hits_S.sum()
    found: IntArray = np.minimum(counts_S, np.ceil(0.5 * wanted * shares_S).astype(np.int64))
    return found


def fit_lists(
    ranker: Ranker,
    graph: KnowledgeGraph,
    asked: Asked,
    *,
    retrieval: Retrieval | None = None,
    lacking: float = 1.0,
    batch_size: int = 64,
    advance: Callable[[int, int], None] = lambda n, total: None,
) -> ListCalibration:
    """Fit the probabilities of candidate lists to validation.

    Args:
        ranker: of the run's own graph, with its second stages or without.
        retrieval: the index that finds the candidates; None scores all.
        lacking: how large the hidden set is of which a probability is the share, in times of validation.
    """
    from kgmlm.ranking.retrieval import lists_of

    hidden = hidden_keys(graph)
    truth = TrueTriples.hidden(len(hidden), lacking)
    count = len(asked.queries)
    lists = lists_of(ranker, asked.queries, retrieval, batch_size, lambda n: advance(n, count))
    examples, query_n = _examples(lists, graph, asked, hidden, temperature_of(ranker))
    relations = len(graph.relations) + 1  # the last is the average one
    in_all = replace(examples, weights=asked.each * examples.weights)
    examples = replace(examples, weights=np.ones(len(examples.labels)), offsets=_offsets(examples))
    others = falling(by_others(examples, relations, truth, STRENGTH), query_n)
    stages = {name: (use.k, use.weight) for name, use in ranker.uses.items() if use.k}
    valid: dict[str, Any] = {
        "queries": count,
        "candidates": round(float(in_all.weights.sum())),
        "true": int(examples.labels.sum()),
        "share": share_of(in_all),
        "held out": held_out(in_all, others, truth),
    }
    likely = fit_likely(examples, relations, truth.labeled, STRENGTH)
    return ListCalibration.of(
        likely, len(hidden), lacking, stages, valid, 0 if retrieval is None else retrieval.k
    )


def expected_answers(
    ranker: Ranker,
    graph: KnowledgeGraph,
    asked: Asked,
    lists: ListCalibration,
    retrieval: Retrieval | None = None,
    batch_size: int = 64,
    advance: Callable[[int, int], None] = lambda n, total: None,
) -> tuple[float, float, float]:
    """Count the validation answers among ranked candidates, and sum up their probabilities.

    Args:
        lists: probabilities, of the scores of the first stage.

    Returns:
        The number expected, the number found, and the variance of the latter, queries weighed as in
        :func:`fit_lists`.
    """
    from kgmlm.ranking.retrieval import lists_of

    count = len(asked.queries)
    ranked = lists_of(ranker, asked.queries, retrieval, batch_size, lambda n: advance(n, count))
    hidden = hidden_keys(graph)
    examples, _ = _examples(ranked, graph, asked, hidden, temperature_of(ranker))
    relations = np.minimum(examples.relations, len(lists.mean) - 1)
    true = lists.likely(examples.evidence, examples.features, relations)
    share, weight = true * lists.truth.labeled, examples.weights
    return (
        float((weight * share).sum()),
        float((weight * examples.labels).sum()),
        float((weight**2 * share * (1 - share)).sum()),
    )


def _offsets(examples: Examples) -> FloatArray:
    """Logarithms of the odds at which true candidates were drawn rather than false ones ``(n,)``.

    Weighed by how many it stands for, a single query would speak louder than all validation for its relation.
    So each candidate counts once, and log odds are moved by the mean weight of the false ones of its relation
    and evidence, as in a case-control study (Prentice and Pyke, 1979); it is shrunk to that of the evidence.
    """
    cell_n = 3 * examples.relations + examples.evidence
    false = ~examples.labels
    weight, count = (
        np.bincount(cell_n[false], of, cell_n.max() + 1) for of in (examples.weights[false], None)
    )
    of_evidence = np.array(
        [examples.weights[false & (examples.evidence == kind)].sum() for kind in range(3)]
    ) / np.maximum(1, np.bincount(examples.evidence[false], minlength=3))
    average = np.maximum(of_evidence, 1.0)[np.arange(len(weight)) % 3]
    found: FloatArray = np.log((weight + ALIKE * average) / (count + ALIKE))[cell_n]
    return found


def hidden_keys(graph: KnowledgeGraph) -> IntArray:
    """Keys of the validation triples that training has not."""
    keys, known = (
        triple_keys(graph.splits[split], len(graph.entities), len(graph.relations))
        for split in ("valid", "train")
    )
    return np.setdiff1d(keys, known)


def _examples(
    lists: Iterable[tuple[IntArray, Floats, IntArray | None]],
    graph: KnowledgeGraph,
    asked: Asked,
    hidden: IntArray,
    temperature: float,
) -> tuple[Examples, IntArray]:
    """The best candidates of queries, and whether validation has them; and of which query each is ``(n,)``.

    The candidates of a query stand together, the best first.

    Args:
        lists: of the queries, as of :func:`~kgmlm.ranking.retrieval.lists_of`.
        hidden: as of :func:`hidden_keys`.
    """
    entities, relations = len(graph.entities), len(graph.relations)
    parts, which = [], []
    for at, scores_bC, ids_bC in lists:
        some = asked.queries[at]
        taken = columns_of(ids_bC, *graph.context.answers.lookup(some))
        open_bC = scores_bC.copy()
        open_bC[taken] = MISSED
        values_bK, columns_bK = highest(open_bC, min(TOP, open_bC.shape[1]))
        rows, places = np.nonzero(values_bK > MISSED)
        columns = columns_bK[rows, places]
        features, evidence, _ = list_features(some, scores_bC, taken, rows, columns, temperature)
        ids = columns if ids_bC is None else ids_bC[rows, columns]
        asking, tail = some.entity_B[rows], some.tail_B[rows]
        triples = np.stack(
            [np.where(tail, asking, ids), some.relation_B[rows], np.where(tail, ids, asking)], axis=1
        )
        labels = np.isin(triple_keys(triples, entities, relations), hidden)
        of = at[rows]
        which.append(of)
        parts.append(
            Examples(
                evidence,
                features,
                some.relation_B[rows],
                labels,
                asked.weight_B[of],
                parts_of_pairs(asking, ids, 4),
                np.zeros(len(of)),
            )
        )
    return Examples.joined(parts), np.concatenate(which)
