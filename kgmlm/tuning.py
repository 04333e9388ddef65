"""What validation chooses: how much each signal and a reranker count. Test triples have no say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from kgmlm.config import Protocol
from kgmlm.contest import Contest
from kgmlm.evaluation import Asked
from kgmlm.first_stage import Said, unit
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import BoolArray, ConfigError, FloatArray, IntArray, Queries
from kgmlm.metrics import Ranks, check_finite
from kgmlm.mixture import LIMIT, Mixture, Use
from kgmlm.processes import sharing
from kgmlm.ranker import Ranker
from kgmlm.reading import read_together
from kgmlm.reranking import best_of
from kgmlm.signals import SIGNALS
from kgmlm.watching import Advance, Watcher

WEIGHTS_TRIED = tuple(2.0**i for i in range(-2, 6))  # of entity vectors, in units of kgmlm.ranker.unit
RERANKED_TRIED = (5, 10, 20, 50, 100)  # how many of the best, as many as there are settings for
RERANKING_TRIED = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)  # weights of it, in units of the temperature
SIGNAL_TRIED = tuple(2.0**i for i in range(-4, 6))  # of other signals, in units of the temperature
PRIOR = 50  # queries of the average that join those of a relation

silent = Watcher()


class Folds(NamedTuple):
    """Weights chosen on all triples, and on every other one, by which those between are measured."""

    whole: Mixture
    odd: Mixture
    even: Mixture

    @classmethod
    def same(cls, mixture: Mixture) -> Folds:
        """Weights that were chosen elsewhere."""
        return cls(mixture, mixture, mixture)

    @property
    def alike(self) -> bool:
        """Whether they are one."""
        return self.whole is self.odd is self.even


def _check_choice(protocol: Protocol) -> None:
    """Refuse to choose anything by what is kept for the test.

    Raises:
        ConfigError: when test triples are asked or filtered.
    """
    if "test" in (protocol.split, *protocol.filter):
        raise ConfigError("what is chosen on validation must not know the test triples: leave 'test' out")


def _contest(graph: KnowledgeGraph, protocol: Protocol, among: int = 0) -> Contest:
    """What is asked to choose by.

    Raises:
        ConfigError: when test triples are asked or filtered.
    """
    _check_choice(protocol)
    return Contest.of(graph, protocol, among)


def _ranked_by(
    ranker: Ranker,
    contest: Contest,
    count: int,
    score: Callable[[Queries, IntArray, Said], Iterable[torch.Tensor]],
    advance: Callable[[int, int], None],
    batch_size: int = 64,
    by: tuple[str, ...] | None = None,
) -> tuple[Asked, list[Ranks]]:
    """Both queries of each triple of the run's own graph, and their ranks by several ways of scoring.

    All from the same forward passes, each query in one of the processes that share the work.

    Args:
        count: how many ways there are.
        score: scores ``(d, N)`` by each, of some of the distinct queries, their rows, and what signals say.
        by: which signals are asked; None is those that count.
    """
    views = [contest.view() for _ in range(count)]
    asked, world = contest.asked, sharing()
    share = asked.share(world)
    distinct, pool = asked.distinct[share], ranker.pool(contest.ids)
    for own, _, said in ranker.said(distinct, pool, batch_size=batch_size, by=by):
        rows = share[own]
        groups = list(contest.groups(rows))
        for view, scores_dN in zip(views, score(distinct[own], rows, said), strict=True):
            for group in groups:
                group.rank(view, scores_dN)
        advance(len(rows), len(distinct))
    for view in views:
        world.filled(view.ranks_3B, asked.of_groups(share)[0])
    return asked, [view.result() for view in views]


def _by_mixtures(
    ranker: Ranker,
    contest: Contest,
    tried: Sequence[Mixture],
    advance: Advance,
    batch_size: int = 64,
) -> tuple[Queries, list[Ranks]]:
    """Queries, and their ranks under several mixtures."""
    pool = ranker.pool(contest.ids)
    asked, ranks = _ranked_by(
        ranker,
        contest,
        len(tried),
        lambda queries, rows, said: (ranker.combined(queries, said, pool, m) for m in tried),
        partial(advance, "validating"),
        batch_size,
        tuple(dict.fromkeys(name for mixture in tried for name in mixture.signals)),
    )
    return asked.queries, ranks


Ways = Callable[[BoolArray], IntArray]  # from the queries to choose on, the way of each query ``(B,)``


def _best_of_relations(reciprocal_WB: FloatArray, queries: Queries, relations: int) -> IntArray:
    """Which of W ways is best for each relation and side ``(R, 2)``.

    What is rarely asked leans on what is best for all: :data:`PRIOR` queries of the average join its own.
    """
    mean_W = reciprocal_WB.mean(1)
    chosen_R2 = np.full((relations, 2), int(mean_W.argmax()))
    side_B = queries.side_B
    for relation, side in np.unique(np.stack([queries.relation_B, side_B], 1), axis=0):
        own_WB = reciprocal_WB[:, (queries.relation_B == relation) & (side_B == side)]
        chosen_R2[relation, side] = (own_WB.sum(1) + PRIOR * mean_W).argmax()
    return chosen_R2


def _measured(
    reciprocal_WB: FloatArray, choose: Ways, even: tuple[FloatArray, Ways] | None = None
) -> FloatArray:
    """Reciprocal ranks ``(B,)``, those of each half of the triples by what is best for the other half.

    So no triple is measured by weights that were chosen on it. The B queries are all heads, then all tails.

    Args:
        reciprocal_WB, choose: by the weights of other signals that the odd triples have chosen.
        even: the same by those that the even ones have; None is the same.
    """
    count = reciprocal_WB.shape[1]
    odd_B, measured_B = _odd(count), np.empty(count)
    for own_B, (of_WB, best) in ((odd_B, even or (reciprocal_WB, choose)), (~odd_B, (reciprocal_WB, choose))):
        ways_B = best(~own_B if count > 2 else _every(count))
        measured_B[own_B] = of_WB[ways_B[own_B], np.flatnonzero(own_B)]
    return measured_B


def _odd(count: int) -> BoolArray:
    """Which of so many queries, all heads and then all tails, are of every other triple."""
    return np.tile(np.arange(count // 2) % 2 == 1, 2)


def _every(count: int) -> BoolArray:
    return np.ones(count, np.bool_)


def _halves(count: int) -> tuple[BoolArray, BoolArray, BoolArray]:
    """On which of so many queries the weights of each of :class:`Folds` are chosen."""
    odd_B, every_B = _odd(count), _every(count)
    return (every_B, odd_B, ~odd_B) if count > 2 else (every_B, every_B, every_B)


def _best_for_all(reciprocal_WB: FloatArray) -> Ways:
    """Choose one way for all queries."""
    count = reciprocal_WB.shape[1]
    return lambda of_B: np.full(count, int(reciprocal_WB[:, of_B].mean(1).argmax()))


def _figures(reciprocal_B: FloatArray) -> dict[str, float]:
    return {
        "mrr": float(reciprocal_B.mean()),
        "hits_at_1": float((reciprocal_B >= 1).mean()),
        "hits_at_10": float((reciprocal_B >= 0.1).mean()),
    }


def weigh_signal(
    ranker: Ranker,
    name: str,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Advance = silent,
    batch_size: int = 64,
) -> tuple[Mixture, dict[str, float]]:
    """Choose how much a signal counts beside the others: one weight per relation and side, by MRR.

    Raises:
        ConfigError: when the protocol asks or filters test triples, or there is no such signal.

    Returns:
        The chosen mixture, and ``mrr``, ``hits_at_1`` and ``hits_at_10`` with it (each half of the triples by
        weights that were chosen on the other), ``mrr_text`` without the signal, ``mrr_`` and its name by it
        alone, and ``mrr_one_weight`` with one weight for all relations.
    """
    before = Folds.same(ranker.mixture)
    folds, figures = _weigh_signal(ranker, before, name, graph, protocol, advance, batch_size)
    return folds.whole, figures


def _weigh_signal(
    ranker: Ranker,
    before: Folds,
    name: str,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Advance,
    batch_size: int,
) -> tuple[Folds, dict[str, float]]:
    """:func:`weigh_signal` beside weights of other signals, each fold's beside its own."""
    if name not in ranker.signals:
        raise ConfigError(f"there is no signal '{name}' to weigh")
    confident = ranker.reader.settings.training.temperature  # as much as the text, as in training
    others = [mixture.without(name) for mixture in ((before.whole,) if before.alike else before)]
    values = [0.0, *(confident * x for x in SIGNAL_TRIED)]
    alone = others[0].only(name)

    def score(queries: Queries, rows: IntArray, said: Said) -> Iterator[torch.Tensor]:
        rest = {n: said_dN for n, said_dN in said.items() if n != name}
        for mixture in others:
            beside_dN = mixture.combine(rest, queries) if rest else 0.0 * said[name]
            for value in values:
                mixed_dN = beside_dN + value * said[name] if value else beside_dN
                check_finite(mixed_dN, LIMIT)
                yield ranker.possible.applied(mixed_dN, queries)
        yield ranker.combined(queries, said, mixture=alone)

    asked, ranks = _ranked_by(
        ranker,
        _contest(graph, protocol),
        len(others) * len(values) + 1,
        score,
        partial(advance, "validating"),
        batch_size,
        tuple(dict.fromkeys([*(n for mixture in others for n in mixture.signals), name])),
    )
    *mixed_WB, alone_B = (1 / r.of_type("realistic") for r in ranks)
    found = np.split(np.stack(mixed_WB), len(others))
    whole_WB, odd_WB, even_WB = found if len(found) == len(before) else 3 * found
    queries = asked.queries

    def best(reciprocal_WB: FloatArray, of_B: BoolArray) -> IntArray:
        return _best_of_relations(reciprocal_WB[:, of_B], queries[of_B], len(graph.relations))

    def by_relation(reciprocal_WB: FloatArray) -> Ways:
        return lambda of_B: best(reciprocal_WB, of_B)[queries.relation_B, queries.side_B]

    def measured(ways: Callable[[FloatArray], Ways]) -> FloatArray:
        return _measured(odd_WB, ways(odd_WB), (even_WB, ways(even_WB)))

    def weighed(other: Mixture, reciprocal_WB: FloatArray, of_B: BoolArray) -> Mixture:
        table_R2 = np.array(values, np.float32)[best(reciprocal_WB, of_B)]
        return other.weighed(name, table_R2, values[int(reciprocal_WB[:, of_B].mean(1).argmax())])

    by_fold = zip(others if len(others) == len(before) else 3 * others, (whole_WB, odd_WB, even_WB),
                  _halves(len(queries)), strict=True)  # fmt: skip
    return Folds(*(weighed(*fold) for fold in by_fold)), {
        **_figures(measured(by_relation)),
        "mrr_text": float(measured(lambda _: lambda of_B: np.zeros(len(of_B), np.int64)).mean()),
        f"mrr_{name}": float(alone_B.mean()),
        "mrr_one_weight": float(measured(_best_for_all).mean()),
    }


def choose_reranking(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Advance = silent,
    candidates: int | None = None,
) -> tuple[Use, dict[str, float]]:
    """Choose how many of the best are reranked and how much that counts, by MRR; not reranking is a choice.

    Args:
        candidates: how many are tried at most; None is as many as the reranker's settings say.

    Raises:
        ConfigError: when the protocol asks or filters test triples, or there is no reranker.

    Returns:
        The choice, and ``mrr``, ``hits_at_1`` and ``hits_at_10`` with it (each half of the triples by what
        was chosen on the other; the weights of the signals stay), ``k`` and ``weight``, ``mrr_first`` without
        reranking, and ``held``, the share of answers that the most candidates hold.
    """
    reranking = ranker.reranking
    if reranking is None:
        raise ConfigError("the ranker has no reranker to weigh")
    most = min(candidates or reranking.reranker.reranking.candidates, len(graph.entities))
    sizes = sorted({k for k in RERANKED_TRIED if k < most} | {most})
    confident = ranker.reader.settings.training.temperature  # both as in training
    tried = [Use(0, 0.0), *(Use(k, confident * x) for k in sizes for x in RERANKING_TRIED)]
    held: list[tuple[IntArray, IntArray]] = []

    def score(queries: Queries, rows: IntArray, said: Said) -> Iterator[torch.Tensor]:
        scores_dN = ranker.combined(queries, said)
        best, ids_dK = best_of(ranker.context, queries, scores_dN, most, ranker.pool())
        held.append((rows, ids_dK))
        read_dK = reranking.read(queries, best.to_read(ids_dK), ranker.mixture).to(scores_dN.device)
        yield scores_dN
        for use in tried[1:]:
            yield best.first(use.k).reranked(scores_dN, read_dK[:, : use.k], use.weight)

    contest = _contest(graph, protocol)
    asked, ranks = _ranked_by(ranker, contest, len(tried), score, partial(advance, "reranking"))
    held_B = np.zeros(len(asked.queries), np.bool_)
    for rows, ids_dK in (batch for of_one in sharing().gathered(held) for batch in of_one):
        at, group = asked.of_groups(rows)
        held_B[at] = (ids_dK[group] == asked.answers[at][:, None]).any(1)
    reciprocal_WB = np.stack([1 / r.of_type("realistic") for r in ranks])
    mean_W = reciprocal_WB.mean(1)
    use = tried[int(mean_W.argmax())]
    return use, {
        **_figures(_measured(reciprocal_WB, _best_for_all(reciprocal_WB))),
        "k": use.k,
        "weight": use.weight,
        "mrr_first": float(mean_W[0]),
        "held": float(held_B.mean()),
    }


def weigh_text(
    ranker: Ranker, graph: KnowledgeGraph, protocol: Protocol, advance: Advance = silent, among: int = 0
) -> tuple[Mixture, dict[str, float]]:
    """Choose how much likelihood and entity vectors count, and measure the run's own graph so.

    Weights are tried from likelihood alone to vectors alone, all from the same forward passes: one for all,
    then for each relation and side. A ranker without vectors is only measured.

    Args:
        advance: called with (what is being done, how many just were, how many there are).
        among: rank among the answers and so many other entities, and read no others; 0 is all.

    Raises:
        ConfigError: when the protocol asks or filters test triples.

    Returns:
        The mixture of the two to rank by, and ``mrr``, ``hits_at_1`` and ``hits_at_10`` with it (each half
        of the triples by weights that were chosen on the other); with vectors also ``weight_...`` and
        ``mrr_...`` of ``likelihood`` and ``vector``: the average weights, and the MRR of each alone; and
        ``mrr_one_weight``, with one weight for all relations.
    """
    folds, figures = _weigh_text(ranker, graph, protocol, advance, among)
    return folds.whole, figures


def _weigh_text(
    ranker: Ranker, graph: KnowledgeGraph, protocol: Protocol, advance: Advance, among: int = 0
) -> tuple[Folds, dict[str, float]]:
    """:func:`weigh_text`, and what each half of the triples chooses."""
    contest = _contest(graph, protocol, among)
    sampled = {} if contest.ids is None else {"candidates": float(contest.width)}
    if ranker.vectors is None:
        text = ranker.mixture.only("likelihood")
        ranks = _by_mixtures(ranker, contest, [text], advance)[1][0]
        return Folds.same(text), {**_figures(1 / ranks.of_type("realistic")), **sampled}
    one = unit("vector", ranker.reader.settings)
    relations = len(graph.relations)
    values = [0.0, *(one * x for x in WEIGHTS_TRIED)]
    tried = [Mixture.even({"likelihood": 1.0, "vector": value}, relations) for value in values]
    alone = Mixture.even({"likelihood": 0.0, "vector": 1.0}, relations)
    unread = ranker.vectors.unread_of(contest.ids)
    read_together(ranker.vectors, advance=lambda n: advance("reading entities", n, unread), ids=contest.ids)
    queries, found = _by_mixtures(ranker, contest, [*tried, alone], advance)
    reciprocal_WB = np.stack([1 / r.of_type("realistic") for r in found])

    def best(of_B: BoolArray) -> IntArray | None:
        """For each relation and side; None where vectors alone are better."""
        of_WB, of = reciprocal_WB[:, of_B], queries[of_B]
        best_R2 = _best_of_relations(of_WB[:-1], of, relations)
        mixed_B = of_WB[best_R2[of.relation_B, of.side_B], np.arange(len(of))]
        return None if of_WB[-1].mean() > mixed_B.mean() else best_R2

    def choose(of_B: BoolArray) -> IntArray:
        found = best(of_B)
        return (
            np.full(len(queries), len(tried)) if found is None else found[queries.relation_B, queries.side_B]
        )

    def mixed(of_B: BoolArray) -> Mixture:
        chosen_R2 = best(of_B)
        if chosen_R2 is None:
            return alone
        means_W = reciprocal_WB[:-1, of_B].mean(1)
        average = values[int(means_W.argmax())] or one  # a weight of 0 would leave nothing to lean on
        return tried[0].weighed("vector", np.array(values, np.float32)[chosen_R2], average)

    folds, mean_W = Folds(*map(mixed, _halves(len(queries)))), reciprocal_WB.mean(1)
    return folds, {
        **_figures(_measured(reciprocal_WB, choose)),
        **sampled,
        "weight_likelihood": folds.whole.averages["likelihood"],
        "weight_vector": folds.whole.averages["vector"],
        "mrr_one_weight": float(_measured(reciprocal_WB, _best_for_all(reciprocal_WB)).mean()),
        "mrr_likelihood": float(mean_W[0]),
        "mrr_vector": float(mean_W[-1]),
    }


def tune(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Advance = silent,
    *,
    reranking: Protocol | None = None,
    candidates: int | None = None,
    batch_size: int = 64,
) -> tuple[Mixture, Use | None, dict[str, dict[str, float]]]:
    """Choose all weights of a ranker: its text, then each signal beside it, then its reranker, if it has one.

    Args:
        protocol: on which triples of the run's own graph.
        reranking: on which triples the reranker's use is chosen, at a forward pass per candidate; None is all
            of the same.
        candidates: as of :func:`choose_reranking`.

    Raises:
        ConfigError: when a protocol asks or filters test triples.

    Returns:
        The mixture, the reranker's use, and of each stage, by its name, the figures on validation.
    """
    folds, found = _weigh_text(ranker, graph, protocol, advance)
    figures = {"text": found}
    for name in (name for name in SIGNALS if name in ranker.signals and name not in folds.whole.tables):
        beside = ranker.but(mixture=folds.whole, reranking=None)
        folds, figures[name] = _weigh_signal(beside, folds, name, graph, protocol, advance, batch_size)
    if ranker.reranking is None:
        return folds.whole, None, figures
    first = ranker.but(mixture=folds.whole)
    use, figures["reranking"] = choose_reranking(first, graph, reranking or protocol, advance, candidates)
    return folds.whole, use, figures
