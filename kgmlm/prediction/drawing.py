"""The triples that probabilities are fitted to, and how likely each was to be drawn.

The triples that could be true are those that questions list: each question that training or validation
answers, and each whose entity has a type that fits. Some of these are asked, and some of their candidates are
drawn, the better ones more often. Each drawn triple is then asked for from both sides.

Shapes: n triples, B queries, N entities, F features of a side, R relations, E states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from kgmlm.core.arrays import BoolArray, FloatArray, IntArray, highest, logsumexp, some_of, spreads
from kgmlm.core.errors import NoProbabilitiesError
from kgmlm.core.progress import Advance, Watcher
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
    ask,
    compare_answers,
    compared,
    competing,
    states_of,
    temperature_of,
)
from kgmlm.ranking.ranker import Scorer

TRIPLES = 1000  # validation triples that are enough, and questions of each state that it does not answer
MIN_TRIPLES = 20  # validation triples, or there is nothing to fit
DRAWN = 6  # false triples, about, per validation triple
TOP = 1000  # candidates of a question that are drawn by their rank, the others evenly
EVENLY = 0.2  # of the others, candidates per question
BY_RANK = 0.1  # what a rank adds to the rate of a candidate, divided by it
MAX_ENTITIES = 100_000  # the most entities used to count unanswered questions
HARD = 20  # the best candidates, of which half of a list's false triples are
TINY = 1e-12  # the least chance
Askable = Callable[[int, bool], BoolArray]  # of a relation, which entities can be asked for tails (or heads)
silent = Watcher()


# --- which queries are asked -------------------------------------------------------------------------------


class Drawing(NamedTuple):
    """Drawn queries, and how likely each query was to be drawn.

    Attributes:
        queries: those of the drawn validation triples, then others.
        share_SE: ``(2R, E)`` the share that was drawn of each side's and state's queries: of those that can
            be asked and validation does not answer.
        mean_SE: ``(2R, E)`` the same among all that can be asked.
        askable: which can.
        valid: keys of the queries that validation answers, sorted, and how often it does.
        drawn: the share of the validation triples that were drawn.
        counts_S: ``(2R,)`` how many entities can be asked for each side.
    """

    queries: Queries
    share_SE: FloatArray
    mean_SE: FloatArray
    askable: Askable
    valid: tuple[IntArray, IntArray]
    drawn: float
    counts_S: FloatArray

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
    counts_S = np.zeros(sides)
    for side in range(sides):
        ids = entities[askable(*_of_side(side))[entities]]
        counts_S[side] = len(ids) * count / len(entities)
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
    return Drawing(
        queries, share_SE, drawn_SE / np.maximum(all_SE, 1), askable, (keys, counts), share, counts_S
    )


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
    if not len(rows):
        raise NoProbabilitiesError("there are no false triples to tell apart from validation's")
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
    # 3. how likely each was to be drawn, were it false: by one of its two questions, if that was asked
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
        drawing.drawn, _density(graph.splits["train"], drawing.counts_S), false_ones,
    )  # fmt: skip


def _density(train: IntArray, counts_S: FloatArray) -> FloatArray:
    """As of :attr:`Sample.density`, from the numbers of entities that can be asked for each side."""
    triples_R1 = 1.0 + np.bincount(train[:, 1], minlength=len(counts_S) // 2)[:, None]
    columns = np.log(np.concatenate([triples_R1, triples_R1 / (1.0 + counts_S.reshape(-1, 2))], axis=1))
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
        with np.errstate(invalid="ignore", divide="ignore"):  # where training has all answers
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
            competes = np.isfinite(others_bN[row, ids])  # the others are at minus infinity
            row, ids = row[competes], ids[competes]
        # 3. but validation's triples
        new = ~np.isin(triple_keys(asked[row].triples(ids), count, relations), never)
        row, ids = row[new], ids[new]
        parts.append((at[row], ids, compared(scores_bN, others_bN, row, ids, temperature)))
        advance(len(at), len(queries))
    rows, ids, features = (np.concatenate(column) for column in zip(*parts, strict=True))
    return rows, ids, features
