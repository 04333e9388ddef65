"""Calibration: probabilities of triples, fitted to validation and kept with the run.

The triples that could be true are those that queries list: each query that training or validation answers,
and each whose entity has a type that fits. Some of these queries are asked, and some of their candidates are
drawn, the better ones more often. A logistic regression (:mod:`kgmlm.ranking.probability`) tells validation's
triples from them. It knows how rarely each was drawn, as in a case-control study (Prentice and Pyke, 1979),
and that validation is a part of what is true: a triple is in validation with probability ``labeled * q``,
where q is that of being true and ``labeled`` is the share of validation (Elkan and Noto, 2008).

Shapes: n triples, B queries, N entities, 2 sides (tail, head), F features of a side, R relations, E states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from kgmlm.core import files
from kgmlm.core.arrays import BoolArray, FloatArray, IntArray, highest, logsumexp, some_of, spreads
from kgmlm.core.errors import NoProbabilitiesError
from kgmlm.core.progress import Advance, Watcher, quiet_transformers
from kgmlm.evaluation.metrics import measured
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import (
    FilterIndex,
    Queries,
    both_sides,
    distinct_triples,
    parts_of_pairs,
    triple_keys,
)
from kgmlm.ranking.probability import (
    FEATURES,
    STATES,
    AskedTriples,
    Calibration,
    Regression,
    ask,
    compare_answers,
    compared,
    competing,
    expit,
    left,
    plain,
    states_of,
    temperature_of,
)
from kgmlm.ranking.ranker import Scorer
from kgmlm.runs.entity_vectors import read_vectors
from kgmlm.runs.folder import PROBABILITIES, RunFolder
from kgmlm.runs.opened import constraints_of, tuned_ranker
from kgmlm.runs.options import RankingOptions
from kgmlm.runs.provenance import command_line
from kgmlm.runs.writing import remove_file, replacing

TRIPLES = 1000  # validation triples that are enough, and queries of each state that it does not answer
LACKING = 1.0  # true triples outside training and validation, per validation triple, as if test was hidden
MIN_TRIPLES = 20  # validation triples, or there is nothing to fit
DRAWN = 6  # false triples, about, per validation triple
TOP = 1000  # candidates of a query that are drawn by their rank, the others evenly
EVENLY = 0.2  # of the others, candidates per query
BY_RANK = 0.1  # what a rank adds to the rate of a candidate, divided by it
MAX_ENTITIES = 100_000  # entities by which the queries that nobody answers are counted
HARD = 20  # the best candidates, of which half of a list's false triples are
PRIOR_COUNT = 100  # triples of the average relation that join a relation's own where scales are fitted
PRIOR_BALANCE = 20  # the same where a relation's balance is fitted
STRENGTH = 2.0  # of the regularization
# L2 penalty of each part of the log odds: 1 / v for a prior variance v. A relation or pair of states of which
# validation has little stays close to the average one.
PENALTIES = {
    "intercept": 0.0,
    "of_pair": 1.0,
    "of_relation": 1.0,
    "of_both": 1.0,
    "weights": 1.0,
    "weights_of_pair": 1.0,
    "weights_of_relation": 3.0,
    "density": 1.0,
}
TINY = 1e-12  # what a probability is at least in a logarithm
REPORTED = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
Askable = Callable[[int, bool], BoolArray]  # of a relation, which entities can be asked for tails (or heads)
silent = Watcher()


# --- which queries are asked -------------------------------------------------------------------------------


class Drawing(NamedTuple):
    """Drawn queries, and how likely it was to draw each of all.

    Attributes:
        queries: those of the drawn validation triples, then others.
        share_SE: ``(2R, E)`` the share that was drawn of each side's and state's queries: of those that can
            be asked and validation does not answer.
        mean_SE: ``(2R, E)`` the same among all that can be asked.
        askable: which can.
        valid: keys of the queries that validation answers, sorted, and how often it does.
        drawn: the share of the validation triples that were drawn.
    """

    queries: Queries
    share_SE: FloatArray
    mean_SE: FloatArray
    askable: Askable
    valid: tuple[IntArray, IntArray]
    drawn: float

    def chances(
        self, queries: Queries, states: IntArray, index: FilterIndex, own: BoolArray
    ) -> tuple[FloatArray, FloatArray]:
        """How likely each query was to be asked ``(B,)``, and how likely such a query is on average.

        Args:
            states: ``(B,)``.
            own: ``(B,)`` whether the query is of a validation triple, which does not count as an answer.
        """
        keys, counts = self.valid
        query_keys = index.keys(queries)
        at = np.minimum(np.searchsorted(keys, query_keys), len(keys) - 1)
        answers = np.where(keys[at] == query_keys, counts[at], 0) - own
        side = 2 * queries.relation_B + queries.tail_B
        can_B = states == STATES.index("answered")
        for each in np.unique(side[~can_B]).tolist():
            rows = np.flatnonzero(~can_B & (side == each))
            can_B[rows] = self.askable(*_of_side(each))[queries.entity_B[rows]]
        others = self.share_SE[side, states] * can_B
        exact = np.where(answers > 0, 1 - (1 - self.drawn) ** answers, others)
        return exact, self.mean_SE[side, states] * can_B


def _of_side(side: int) -> tuple[int, bool]:
    """The relation of a side, and whether its tails are asked for."""
    return side // 2, side % 2 == 1


def draw_queries(
    graph: KnowledgeGraph, triples: IntArray, valid: IntArray, askable: Askable, most: int, seed: int = 0
) -> Drawing:
    """Draw queries of all states beside those of validation triples.

    Half are drawn by how many a relation and side has, half by how many of them validation answers.

    Args:
        triples: validation triples ``(n, 3)`` that were drawn of ``valid``, all that training has not.
        most: queries of each state; 0 is all.
    """
    rng = np.random.default_rng(seed)
    count, sides = len(graph.entities), 2 * len(graph.relations)
    index = FilterIndex(graph.splits["train"], count)
    keys, counts = np.unique(index.keys(both_sides(valid)[0]), return_counts=True)
    hits_S = np.bincount(keys // count, minlength=sides)
    answered = np.setdiff1d(np.unique(index.keys(both_sides(graph.splits["train"])[0])), keys)
    known = np.union1d(answered, keys)
    entities = some_of(np.arange(count), MAX_ENTITIES, rng)
    by_side = np.split(answered, np.searchsorted(answered, count * np.arange(1, sides)))
    pools: list[list[IntArray]] = [by_side, [], []]
    for side in range(sides):
        ids = entities[askable(*_of_side(side))[entities]]
        asked = np.setdiff1d(side * count + ids, known)
        is_seen = graph.seen_N[asked % count]
        pools[1].append(asked[is_seen])
        pools[2].append(asked[~is_seen])
    drawn = [np.unique(index.keys(both_sides(triples)[0]))]
    sizes_SE = np.array([[len(of_side) for of_side in pool] for pool in pools]).T
    share_SE = np.zeros(sizes_SE.shape)
    for state, pool in enumerate(pools):
        wanted_S = _allotted(sizes_SE[:, state], hits_S, most)
        drawn += [some_of(of_side, n, rng) for of_side, n in zip(pool, wanted_S.tolist(), strict=True) if n]
        share_SE[:, state] = wanted_S / np.maximum(sizes_SE[:, state], 1)
    of_entities = np.array([1.0, *(len(entities) / count,) * 2])
    share_SE, all_SE = share_SE * of_entities, sizes_SE / of_entities
    # with those that validation answers
    first = index.queries(keys)
    states = states_of(first, graph.context.answers, graph.seen_N)
    drawn_SE = share_SE * all_SE
    share = len(triples) / len(valid)
    np.add.at(drawn_SE, (keys // count, states), 1 - (1 - share) ** counts)
    np.add.at(all_SE, (keys // count, states), 1.0)
    queries = index.queries(np.concatenate(drawn))
    return Drawing(queries, share_SE, drawn_SE / np.maximum(all_SE, 1), askable, (keys, counts), share)


def _allotted(counts_S: IntArray, hits_S: IntArray, wanted: int) -> IntArray:
    """Numbers of queries to draw of each side; all where so many are wanted, or 0 are."""
    if not wanted or wanted >= counts_S.sum():
        return counts_S
    shares_S = counts_S / counts_S.sum() + hits_S / hits_S.sum()
    numbers: IntArray = np.minimum(counts_S, np.ceil(0.5 * wanted * shares_S).astype(np.int64))
    return numbers


# --- which of their candidates are told apart ---------------------------------------------------------------


def rates(softmax: FloatArray, rank: FloatArray, count: int, factor: float) -> FloatArray:
    """How likely candidates of a query are to be drawn: the better, the more.

    Args:
        softmax, rank: of any shape.
        count: N.
        factor: by which all are raised, up to 1.
    """
    by_rank = np.where(rank <= TOP, softmax + BY_RANK / rank, EVENLY / max(1, count - TOP))
    return np.minimum(1.0, factor * by_rank)


@dataclass(frozen=True, eq=False)
class Sample:
    """Triples of validation, and others that are drawn.

    Attributes:
        triples: ``(n, 3)``.
        asked: what the run says of them.
        labels: ``(n,)`` which of them validation has.
        chances: ``(n,)`` how likely each was to be drawn, were it false.
        mean_chances: ``(n,)`` how likely a triple with such ranks and states is to be drawn, if it is false.
        typed: ``(n,)`` which of them can be asked from both sides, by the types of their entities.
        drawn: the share of the validation triples that were drawn.
        density: ``(R, 3)`` how many training triples a relation has, and how many for each entity that can be
            asked from a side; logarithms, brought to mean 0 and deviation 1.
        false: triples that the graph's files say are false, and what the run says of them; None without any.
    """

    triples: IntArray
    asked: AskedTriples
    labels: BoolArray
    chances: FloatArray
    mean_chances: FloatArray
    typed: BoolArray
    drawn: float
    density: FloatArray
    false: tuple[IntArray, AskedTriples] | None = None

    def __getitem__(self, rows: BoolArray) -> Sample:
        arrays = ("triples", "asked", "labels", "chances", "mean_chances", "typed")
        return replace(self, **{name: getattr(self, name)[rows] for name in arrays})

    @property
    def offsets(self) -> FloatArray:
        """What drawing adds to the log odds of being in validation ``(n,)``."""
        offsets: FloatArray = np.log(self.drawn / self.mean_chances)
        return offsets

    @property
    def weights(self) -> FloatArray:
        """How many triples each stands for ``(n,)``."""
        return 1 / np.where(self.labels, self.drawn, self.chances)

    @property
    def folds(self) -> IntArray:
        """In which of four parts each is, by its pair of entities ``(n,)``."""
        return parts_of_pairs(self.triples[:, 0], self.triples[:, 2], 4)

    @property
    def false_weights(self) -> FloatArray:
        """Weights ``(n,)`` of the false triples of a list: half are any whose types fit, half are among the
        :data:`HARD` best of a question. Both sum up to a half.
        """
        rank = self.asked.features[:, :, FEATURES.index("log_rank")].min(1)
        false = np.where(self.labels, 0.0, self.weights)
        parts = [false * self.typed, false * (rank <= np.log(HARD))]
        return sum((0.25 * part / max(part.sum(), TINY) for part in parts), np.zeros(len(false)))


def draw_sample(
    scorer: Scorer,
    graph: KnowledgeGraph,
    askable: Askable,
    *,
    most: int = TRIPLES,
    seed: int = 0,
    batch_size: int = 64,
    advance: Advance = silent,
) -> Sample:
    """Draw a sample of the triples that could be true, and ask for each from both sides.

    Raises:
        NoProbabilitiesError: when validation has too few triples that training has not.
    """
    count, relations = len(graph.entities), len(graph.relations)
    known = graph.context.answers
    valid = distinct_triples(graph.splits["valid"])
    valid = valid[~known.has(valid)]
    if len(valid) < MIN_TRIPLES:
        raise NoProbabilitiesError(
            f"probabilities need at least {MIN_TRIPLES} validation triples that training has not, not "
            f"{len(valid)}"
        )
    true = some_of(valid, most, np.random.default_rng(seed))
    drawing = draw_queries(graph, true, valid, askable, most, seed)
    # 1. drawn queries are asked: candidates are drawn of each
    factor = max(1.0, DRAWN * (most or len(valid)) / (2 * len(drawing.queries)))
    never = triple_keys(valid, count, relations)
    rows, ids, features = _draw_candidates(
        scorer, drawing.queries, known, never, relations, factor, seed, batch_size,
        partial(advance, "asking validation"),
    )  # fmt: skip
    false = drawing.queries[rows].triples(ids)
    _, first = np.unique(triple_keys(false, count, relations), return_index=True)  # drawn from both sides
    rows, ids, features, false = rows[first], ids[first], features[first], false[first]
    # 2. these, and validation's triples, are asked for from the other side, too
    own = drawing.queries[rows]
    back = Queries(ids, own.relation_B, ~own.tail_B)
    others = compare_answers(
        scorer, back, own.entity_B, known, batch_size, partial(advance, "asking from the other side")
    )
    is_tail = own.tail_B[:, None]
    of_tails, of_heads = np.where(is_tail, features, others), np.where(is_tail, others, features)
    states = [states_of(queries, known, graph.seen_N) for queries in _sides(false)]
    asked = AskedTriples.joined(
        ask(scorer, true, known, graph.seen_N, batch_size, partial(advance, "asking for validation triples")),
        AskedTriples(np.stack([of_tails, of_heads], 1), np.stack(states, 1), false[:, 1]),
    )
    # 3. how likely each was to be drawn, were it false
    triples = np.concatenate([true, false])
    labels = np.arange(len(triples)) < len(true)
    missed, mean_missed = np.ones(len(triples)), np.ones(len(triples))
    typed = np.ones(len(triples), np.bool_)
    for side, queries in enumerate(_sides(triples)):
        chances, mean_chances = drawing.chances(queries, asked.states[:, side], known, labels)
        of_side = asked.features[:, side]
        softmax, rank = (np.exp(of_side[:, FEATURES.index(x)]) for x in ("log_softmax", "log_rank"))
        rate = rates(softmax, rank, count, factor)
        missed *= 1 - chances * rate
        mean_missed *= 1 - mean_chances * rate
        typed &= chances > 0
    false_ones = None
    if len(given := graph.negatives.get("valid", triples[:0])):
        given = some_of(given, most, np.random.default_rng(seed))
        false_ones = (given, ask(scorer, given, known, graph.seen_N, batch_size))
    return Sample(
        triples, asked, labels, np.maximum(1 - missed, TINY), np.maximum(1 - mean_missed, TINY), typed,
        drawing.drawn, _density(graph, askable), false_ones,
    )  # fmt: skip


def _density(graph: KnowledgeGraph, askable: Askable) -> FloatArray:
    """As of :attr:`Sample.density`."""
    relations = range(len(graph.relations))
    counts = 1.0 + np.bincount(graph.splits["train"][:, 1], minlength=len(graph.relations))
    can = np.array([[1.0 + askable(r, tails).sum() for tails in (True, False)] for r in relations])
    columns = np.log(np.stack([counts, counts / can[:, 0], counts / can[:, 1]], axis=1))
    density: FloatArray = (columns - columns.mean(0)) / spreads(columns)
    return density


def _sides(triples: IntArray) -> tuple[Queries, Queries]:
    """The queries for the tail and for the head of each triple."""
    queries, _ = both_sides(triples)
    n = len(triples)
    return queries[n:], queries[:n]


def _draw_candidates(
    scorer: Scorer,
    queries: Queries,
    known: FilterIndex,
    never: IntArray,
    relations: int,
    factor: float,
    seed: int,
    batch_size: int,
    advance: Callable[[int, int], None],
) -> tuple[IntArray, IntArray, FloatArray]:
    """Draw candidates of queries: of which query each is ``(n,)``, its id, and its features there ``(n, F)``.

    Args:
        never: keys of triples that are not drawn.
    """
    parts = []
    for at, scores_bN in scorer.rank(queries, batch_size=batch_size):
        asked, count = queries[at], scores_bN.shape[1]
        rng = np.random.default_rng([seed, *asked.entity_B[:1], *asked.kind_B[:1]])
        scores_bN, others_bN = competing(scores_bN, known.lookup(asked))
        # 1. of the best, some by their softmax and rank
        best_bK, ids_bK = highest(others_bN, min(TOP, count))
        order_bK = np.argsort(-best_bK, axis=1, kind="stable")
        best_bK = np.take_along_axis(best_bK, order_bK, 1)
        ids_bK = np.take_along_axis(ids_bK, order_bK, 1)
        temperature = temperature_of(scorer)
        total_b1 = logsumexp(others_bN.astype(np.float64) / temperature)[:, None]
        softmax_bK = np.exp(best_bK / temperature - total_b1)
        rates_bK = rates(softmax_bK, np.arange(1.0, 1 + best_bK.shape[1]), count, factor)
        row, column = np.nonzero((rng.random(best_bK.shape) < rates_bK) & np.isfinite(best_bK))
        ids = ids_bK[row, column]
        # 2. of the others, a few
        if count > TOP:
            rate = min(1.0, factor * EVENLY / (count - TOP))
            numbers = rng.binomial(count, rate, len(at))
            more_row = np.repeat(np.arange(len(at)), numbers)
            more_ids = np.concatenate([ids[:0], *(rng.choice(count, n, replace=False) for n in numbers)])
            last = others_bN[more_row, more_ids] < best_bK[more_row, -1]
            row, ids = np.append(row, more_row[last]), np.append(ids, more_ids[last])
            # what does not compete is below any other
            there = np.isfinite(others_bN[row, ids])
            row, ids = row[there], ids[there]
        # 3. but validation's triples
        new = ~np.isin(triple_keys(asked[row].triples(ids), count, relations), never)
        row, ids = row[new], ids[new]
        parts.append((at[row], ids, compared(scores_bN, others_bN, row, ids, temperature)))
        advance(len(at), len(queries))
    rows, ids, features = (np.concatenate(column) for column in zip(*parts, strict=True))
    return rows, ids, features


# --- how likely they are true -------------------------------------------------------------------------------


def fit_regression(sample: Sample, relations: int, labeled: float) -> Regression:
    """Fit log odds of being true to a sample, of whose true triples validation has the share ``labeled``."""
    from scipy.optimize import minimize

    asked, labels, offsets = sample.asked, sample.labels, sample.offsets
    mean, deviation = _scales(asked, relations)
    pairs, columns = len(STATES) ** 2, mean.shape[1]
    unfitted = Regression(
        mean, deviation, np.zeros((relations + 1, pairs)), np.zeros((pairs, columns)), np.zeros_like(mean)
    )
    density = sample.density[asked.relations]
    design, penalties = _design(unfitted.scaled(asked), asked.pairs, asked.relations, relations, density)

    def loss(at: FloatArray) -> tuple[float, FloatArray]:
        true = expit(design @ at)
        in_valid = labeled * true
        drawn = np.log(np.maximum(in_valid, TINY) / (1 - in_valid)) + offsets  # as triples were drawn
        likelihood = np.where(labels, -np.logaddexp(0, -drawn), -np.logaddexp(0, drawn))
        slope = (labels - expit(drawn)) * (1 - true) / (1 - in_valid)
        value = 0.5 * float(penalties @ at**2) - float(likelihood.sum())
        return value, penalties * at - design.T @ slope

    begin = np.zeros(design.shape[1])
    share = min(0.9, float(sample.weights[labels].sum() / sample.weights.sum()) / labeled)
    begin[0] = np.log(share / (1 - share))
    at = minimize(loss, begin, jac=True, method="L-BFGS-B", options={"maxiter": 1000}).x
    sizes = (1, pairs, relations, relations * pairs, columns, pairs * columns, relations * columns)
    parts = np.split(at, np.cumsum(sizes))
    intercept, of_pair, of_relation, of_both, weights, weights_of_pair, weights_of_relation, by_density = (
        parts
    )
    of_relation = of_relation + sample.density @ by_density
    intercepts = intercept + of_pair + np.append(of_relation, 0.0)[:, None]
    intercepts[:-1] += of_both.reshape(relations, pairs)
    return Regression(
        mean,
        deviation,
        intercepts,
        weights + weights_of_pair.reshape(pairs, columns),
        np.concatenate([weights_of_relation.reshape(relations, columns), np.zeros((1, columns))]),
    )


def _design(
    scaled: FloatArray, pair: IntArray, relation: IntArray, relations: int, density: FloatArray
) -> tuple[Any, FloatArray]:
    """The design matrix, a sparse one, and the penalty of each of its columns."""
    from scipy import sparse

    n, pairs, columns = len(scaled), len(STATES) ** 2, scaled.shape[1]
    ones = np.ones((n, 1))
    blocks = (  # values, where they begin, how many columns there are
        (ones, np.zeros(n, np.int64), 1),
        (ones, pair, pairs),
        (ones, relation, relations),
        (ones, relation * pairs + pair, relations * pairs),
        (scaled, np.zeros(n, np.int64), columns),
        (scaled, pair * columns, pairs * columns),
        (scaled, relation * columns, relations * columns),
        (density, np.zeros(n, np.int64), density.shape[1]),
    )
    parts = []
    for values, first, width in blocks:
        wide = values.shape[1]
        where = (np.repeat(np.arange(n), wide), (first[:, None] + np.arange(wide)).ravel())
        parts.append(sparse.csr_matrix((values.ravel(), where), (n, width)))
    penalties = np.repeat(list(PENALTIES.values()), [width for *_, width in blocks])
    return sparse.hstack(parts, format="csr"), STRENGTH * penalties


def _scales(asked: AskedTriples, relations: int) -> tuple[FloatArray, FloatArray]:
    """The mean and deviation of each feature in each relation ``(R + 1, 2F)``, shrunk toward those of all."""
    flat, which = asked.features.reshape(len(asked), -1), asked.relations
    average, variance = flat.mean(0), flat.var(0)
    count = np.bincount(which, minlength=relations + 1)[:, None] + PRIOR_COUNT

    def sums(columns: FloatArray) -> FloatArray:
        return np.stack([np.bincount(which, column, relations + 1) for column in columns.T], axis=1)

    mean = (sums(flat) + PRIOR_COUNT * average) / count
    own = (sums((flat - mean[which]) ** 2) + PRIOR_COUNT * variance) / count
    return mean, np.where(own > 1e-12, np.sqrt(own), 1.0)


@dataclass(frozen=True, eq=False)
class LabeledList:
    """A list of triples of which half are true.

    Attributes:
        log_odds: ``(n,)`` of being in the hidden set.
        relations, labels: ``(n,)``.
        weights: ``(n,)``; those of true triples add up to a half, and so do those of false ones.
        folds: ``(n,)`` in which of four parts each is, by its pair of entities.
    """

    log_odds: FloatArray
    relations: IntArray
    labels: BoolArray
    weights: FloatArray
    folds: IntArray

    def __getitem__(self, rows: BoolArray) -> LabeledList:
        return LabeledList(**{name: values[rows] for name, values in vars(self).items()})

    @classmethod
    def of(cls, sample: Sample, log_odds: FloatArray, of_false: FloatArray | None) -> LabeledList:
        """From a sample: its false triples, or those of the graph's files.

        Args:
            log_odds: ``(n,)`` of the sample's triples, each by what others gave.
            of_false: of those of the files.
        """
        labels, relations = sample.labels, sample.asked.relations
        true_weights = labels * (0.5 / labels.sum())
        if sample.false is None or of_false is None:
            rows = labels | (sample.false_weights > 0)
            weights = true_weights + sample.false_weights
            return cls(log_odds, relations, labels, weights, sample.folds)[rows]
        triples, asked = sample.false
        count = len(triples)
        true = cls(log_odds, relations, labels, true_weights, sample.folds)[labels]
        folds = parts_of_pairs(triples[:, 0], triples[:, 2], 4)
        false = cls(of_false, asked.relations, np.zeros(count, np.bool_), np.full(count, 0.5 / count), folds)
        return cls(*(np.concatenate([vars(x)[name] for x in (true, false)]) for name in vars(true)))


def fit_balance(triples: LabeledList, relations: int) -> FloatArray:
    """What moves the log odds of each relation ``(R + 1,)`` to those of a list of which half is true.

    By these, true and false triples have a probability of .5 on average. That of a relation is shrunk to that
    of all.
    """
    from scipy.optimize import brentq

    def balance(some: LabeledList, low: float, high: float) -> float | None:
        false = some.weights * ~some.labels
        if not some.labels.any() or not false.any():
            return None

        def excess(move: float) -> float:
            half = expit(some.log_odds + move)
            return float(half[some.labels].mean() + np.average(half, weights=false)) - 1

        return low if excess(low) > 0 else high if excess(high) < 0 else float(brentq(excess, low, high))

    of_all = balance(triples, -50.0, 50.0) or 0.0
    balances = np.full(relations + 1, of_all)
    for relation in np.unique(triples.relations[triples.labels]).tolist():
        some = triples[triples.relations == relation]
        if (own := balance(some, of_all - 5, of_all + 5)) is not None:
            count = int(some.labels.sum())
            balances[relation] = (count * own + PRIOR_BALANCE * of_all) / (count + PRIOR_BALANCE)
    return balances


def fit_scale(log_odds: FloatArray, sample: Sample, labeled: float) -> tuple[float, float]:
    """Platt's sigmoid: the intercept and slope that make log odds of others come true (Platt, 1999).

    Args:
        log_odds: ``(n,)`` of triples that had no say in them.
    """
    from scipy.optimize import minimize

    labels, weights = sample.labels, sample.weights / sample.weights[sample.labels].sum()

    def loss(at: FloatArray) -> tuple[float, FloatArray]:
        true = expit(at[0] + at[1] * log_odds)
        in_valid = np.maximum(labeled * true, TINY)
        likelihood = weights * np.where(labels, np.log(in_valid), np.log1p(-in_valid))
        slope = weights * (labels - in_valid) * (1 - true) / (1 - in_valid)
        return -float(likelihood.sum()), -np.array([slope.sum(), (slope * log_odds).sum()])

    intercept, slope = minimize(loss, np.array([0.0, 1.0]), jac=True, method="L-BFGS-B").x.tolist()
    return (intercept, slope) if slope > 0 else (0.0, 1.0)


def fit(
    sample: Sample, relations: int, validation: int, lacking: float
) -> tuple[Calibration, dict[str, Any]]:
    """Fit probabilities to a sample, and measure them on each quarter of it by what the others gave.

    Args:
        validation: how many triples it has that training has not.
    """
    labeled, count = 1 / (1 + lacking), len(sample.labels)
    # 1. log odds of each quarter by the others, and what makes them come true
    log_odds = np.empty(count)
    for fold in range(4):
        own = sample.folds == fold
        log_odds[own] = fit_regression(sample[~own], relations, labeled).log_odds(sample.asked[own])
    scale = fit_scale(log_odds, sample, labeled)
    regression = fit_regression(sample, relations, labeled).moved(*scale)
    # 2. how many triples that gives
    true = np.empty(count)
    for fold in range(4):
        own = sample.folds == fold
        intercept, slope = fit_scale(log_odds[~own], sample[~own], labeled)
        true[own] = expit(intercept + slope * log_odds[own])
    # 3. and how well it decides in a list of which half is true
    odds = _logit(left(expit(scale[0] + scale[1] * log_odds), lacking))
    of_false = None
    if sample.false is not None:
        of_false = _logit(left(expit(regression.log_odds(sample.false[1])), lacking))
    triples = LabeledList.of(sample, odds, of_false)
    half = np.empty(len(triples.labels))
    for fold in range(4):
        own = triples.folds == fold
        balance = fit_balance(triples[~own], relations)
        half[own] = expit(triples.log_odds[own] + balance[triples.relations[own]])
    figures = {
        "triples": int(sample.labels.sum()),
        "held out": held_out(sample, left(true, lacking), labeled * true),
        "half": measured(triples.labels, half, triples.weights),
    }

    def table(values: FloatArray) -> Any:
        return tuple(tuple(row) for row in np.round(values, 6).tolist())

    tables = {name: table(values) for name, values in vars(regression).items()}
    made = Calibration(
        lacking=float(lacking),
        validation=validation,
        new=round(float(sample.weights[sample.labels & sample.asked.has_new].sum())),
        **tables,
        balance=tuple(np.round(fit_balance(triples, relations), 4).tolist()),
        chosen_for={},
        chosen_by={},
    )
    return made, figures


def _logit(probabilities: FloatArray) -> FloatArray:
    tiny = np.clip(probabilities, 1e-15, 1 - 1e-15)
    log_odds: FloatArray = np.log(tiny / (1 - tiny))
    return log_odds


def held_out(sample: Sample, probabilities: FloatArray, labeled: FloatArray) -> list[dict[str, float]]:
    """For each probability, how many triples have it or more, how many of them validation should have, and
    how many it has.

    Args:
        labeled: the probability ``(n,)`` of each triple to be in validation.
    """
    rows = []
    for least in REPORTED:
        some = probabilities >= least
        weights = sample.weights[some]
        rows.append(
            {
                "probability": least,
                "candidates": round(float(weights.sum())),
                "expected": round(float((weights * labeled[some]).sum()), 1),
                "validation": round(float(weights[sample.labels[some]].sum())),
            }
        )
    return rows


def fitted(
    run: RunFolder,
    *,
    most: int = TRIPLES,
    lacking: float = LACKING,
    seed: int = 0,
    precision: str = "fp32",
    batch_size: int = 64,
    device: str | None = None,
    watch: Watcher = silent,
) -> Calibration:
    """Fit probabilities to a run's validation triples; ``chosen_by["valid"]`` has their figures there.

    Args:
        most: so many validation triples, and queries of each state; 0 is all.
        lacking: how many true triples neither training nor validation has, per validation triple.
        precision: "fp32" or "bf16".

    Raises:
        NoProbabilitiesError: when there are no validation triples, or too few.
    """
    graph = run.graph
    if not graph.has("valid"):
        raise NoProbabilitiesError(
            f"{run.path} has no validation triples to fit probabilities to; `kgmlm data split --random` "
            "makes some before training"
        )
    quiet_transformers()
    ranker = plain(tuned_ranker(run, device))
    ranker.reduce(precision == "bf16")
    (typed,) = constraints_of(run, RankingOptions(typed=True), graph)
    with watch:
        read_vectors(ranker, watch, batch_size)
        sample = draw_sample(
            ranker, graph, typed.askable, most=most, seed=seed, batch_size=batch_size, advance=watch
        )
        validation = round(float(sample.labels.sum()) / sample.drawn)
        made, figures = fit(sample, len(graph.relations), validation, lacking)
    by = {
        "command": command_line(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "precision": precision,
        "seed": seed,
        "valid": figures,
    }
    return made.model_copy(update={"chosen_for": run.scored_by, "chosen_by": by})


def save_calibration(run: RunFolder, calibration: Calibration) -> None:
    """Keep with a run what was fitted to it."""
    with replacing(run.path, PROBABILITIES) as temporary:
        files.write_json(temporary, calibration.model_dump(mode="json"))


def drop_calibration(run: RunFolder) -> None:
    """Remove the probabilities of a run, if it has any."""
    remove_file(run.path, PROBABILITIES)
