"""What validation chooses: how much each signal and a reranker count. Test triples have no say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import torch

from kgmlm.config import Protocol
from kgmlm.evaluation import Asked, View, evaluate
from kgmlm.first_stage import MAX_SCORES, Said, unit
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import BoolArray, ConfigError, FloatArray, IntArray, Queries
from kgmlm.metrics import Ranks
from kgmlm.mixture import Mixture, Use
from kgmlm.ranker import Ranker
from kgmlm.reranking import best_of
from kgmlm.scope import Scope, within
from kgmlm.signals import SIGNALS
from kgmlm.watching import Advance, Watcher

WEIGHTS_TRIED = tuple(2.0**i for i in range(-2, 6))  # of entity vectors, in units of kgmlm.ranker.unit
RERANKED_TRIED = (5, 10, 20, 50, 100)  # how many of the best, as many as there are settings for
RERANKING_TRIED = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)  # weights of it, in units of the temperature
SIGNAL_TRIED = tuple(2.0**i for i in range(-4, 6))  # of other signals, in units of the temperature
PRIOR = 50  # queries of the average that join those of a relation

silent = Watcher()


def _check_choice(protocol: Protocol) -> None:
    """Refuse to choose anything by what is kept for the test.

    Raises:
        ConfigError: when test triples are asked or filtered.
    """
    if "test" in (protocol.split, *protocol.filter):
        raise ConfigError("what is chosen on validation must not know the test triples: leave 'test' out")


def _ranked_by(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    count: int,
    score: Callable[[Queries, IntArray, Said], Iterable[torch.Tensor]],
    advance: Callable[[int, int], None],
    batch_size: int = 64,
    by: tuple[str, ...] | None = None,
) -> tuple[Asked, list[Ranks]]:
    """Both queries of each triple of the run's own graph, and their ranks by several ways of scoring.

    All from the same forward passes.

    Args:
        count: how many ways there are.
        score: scores ``(d, N)`` by each, of some of the distinct queries, their rows, and what signals say.
        by: which signals are asked; None is those that count.

    Raises:
        ConfigError: when test triples are asked or filtered.
    """
    _check_choice(protocol)
    scope = Scope.of(graph)
    member_N = scope.members(protocol)
    triples = within(scope.sampled(protocol), member_N, protocol)
    asked = Asked.of(triples, graph, protocol)
    views = [View.of(member_N, triples) for _ in range(count)]
    distinct = asked.distinct
    for rows, _, said in ranker.said(distinct, batch_size=batch_size, by=by):
        split = [
            (at, group, asked.known.lookup(asked.queries[at]))
            for at, group in asked.in_parts(rows, MAX_SCORES // len(graph.entities))
        ]
        for view, scores_dN in zip(views, score(distinct[rows], rows, said), strict=True):
            for at, group, known in split:
                source = torch.from_numpy(group).to(scores_dN.device)
                view.rank(scores_dN[source], at, asked.answers[at], known)
        advance(len(rows), len(distinct))
    return asked, [view.result() for view in views]


def _by_mixtures(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    tried: Sequence[Mixture],
    advance: Advance,
    batch_size: int = 64,
) -> tuple[Queries, list[Ranks]]:
    """Queries, and their ranks under several mixtures."""
    asked, ranks = _ranked_by(
        ranker,
        graph,
        protocol,
        len(tried),
        lambda queries, rows, said: (ranker.combined(queries, said, mixture=m) for m in tried),
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


def _measured(reciprocal_WB: FloatArray, choose: Ways) -> FloatArray:
    """Reciprocal ranks ``(B,)``, those of each half of the triples by what is best for the other half.

    So no triple is measured by weights that were chosen on it. The B queries are all heads, then all tails.
    """
    triples = reciprocal_WB.shape[1] // 2
    odd_B = np.tile(np.arange(triples) % 2 == 1, 2)
    measured_B = np.empty(2 * triples)
    for own_B in (odd_B, ~odd_B):
        ways_B = choose(~own_B if triples > 1 else ~np.zeros_like(own_B))
        measured_B[own_B] = reciprocal_WB[ways_B[own_B], np.flatnonzero(own_B)]
    return measured_B


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
    if name not in ranker.signals:
        raise ConfigError(f"there is no signal '{name}' to weigh")
    confident = ranker.reader.settings.training.temperature  # as much as the text, as in training
    others = ranker.mixture.without(name)
    values = [0.0, *(confident * x for x in SIGNAL_TRIED)]
    tried = [*(others.evenly(name, value) for value in values), others.only(name)]
    queries, ranks = _by_mixtures(ranker, graph, protocol, tried, advance, batch_size)
    *mixed_WB, alone_B = (1 / r.of_type("realistic") for r in ranks)
    reciprocal_WB = np.stack(mixed_WB)

    def best(of_B: BoolArray) -> IntArray:
        return _best_of_relations(reciprocal_WB[:, of_B], queries[of_B], len(graph.relations))

    def choose(of_B: BoolArray) -> IntArray:
        return best(of_B)[queries.relation_B, queries.side_B]

    mean_W = reciprocal_WB.mean(1)
    table_R2 = np.array(values, np.float32)[best(_all(queries))]
    return others.weighed(name, table_R2, values[int(mean_W.argmax())]), {
        **_figures(_measured(reciprocal_WB, choose)),
        "mrr_text": float(mean_W[0]),
        f"mrr_{name}": float(alone_B.mean()),
        "mrr_one_weight": float(_measured(reciprocal_WB, _best_for_all(reciprocal_WB)).mean()),
    }


def _all(queries: Queries) -> BoolArray:
    return np.ones(len(queries), np.bool_)


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
        was chosen on the other), ``k`` and ``weight``, ``mrr_first`` without reranking, and ``held``, the
        share of answers that the most candidates hold.
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

    asked, ranks = _ranked_by(ranker, graph, protocol, len(tried), score, partial(advance, "reranking"))
    held_B = np.zeros(len(asked.queries), np.bool_)
    for rows, ids_dK in held:
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
    ranker: Ranker, graph: KnowledgeGraph, protocol: Protocol, advance: Advance = silent
) -> tuple[Mixture, dict[str, float]]:
    """Choose how much likelihood and entity vectors count, and measure the run's own graph so.

    Weights are tried from likelihood alone to vectors alone, all from the same forward passes: one for all,
    then for each relation and side. A ranker without vectors is only measured.

    Args:
        advance: called with (what is being done, how many just were, how many there are).

    Raises:
        ConfigError: when the protocol asks or filters test triples.

    Returns:
        The mixture of the two to rank by, and ``mrr``, ``hits_at_1`` and ``hits_at_10`` with it (each half
        of the triples by weights that were chosen on the other); with vectors also ``weight_...`` and
        ``mrr_...`` of ``likelihood`` and ``vector``: the average weights, and the MRR of each alone; and
        ``mrr_one_weight``, with one weight for all relations.
    """
    _check_choice(protocol)
    if ranker.vectors is None:
        text = ranker.but(mixture=ranker.mixture.only("likelihood"))
        found = evaluate(text, graph, protocol, advance=partial(advance, "validating")).report["metrics"]
        hits = {f"hits_at_{k}": found[f"both.realistic.hits_at_{k}"] for k in (1, 10)}
        return text.mixture, {"mrr": found["mrr"], **hits}
    one = unit("vector", ranker.reader.settings)
    relations = len(graph.relations)
    values = [0.0, *(one * x for x in WEIGHTS_TRIED)]
    tried = [Mixture.even({"likelihood": 1.0, "vector": value}, relations) for value in values]
    alone = Mixture.even({"likelihood": 0.0, "vector": 1.0}, relations)
    unread = ranker.vectors.unread
    ranker.vectors.read(advance=lambda n: advance("reading entities", n, unread))
    queries, ranks = _by_mixtures(ranker, graph, protocol, [*tried, alone], advance)
    reciprocal_WB = np.stack([1 / r.of_type("realistic") for r in ranks])

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

    chosen_R2, mean_W = best(_all(queries)), reciprocal_WB.mean(1)
    if chosen_R2 is None:
        mixture = alone
    else:
        average = values[int(mean_W[:-1].argmax())] or one  # a weight of 0 would leave nothing to lean on
        table_R2 = np.array(values, np.float32)[chosen_R2]
        mixture = tried[0].weighed("vector", table_R2, average)
    return mixture, {
        **_figures(_measured(reciprocal_WB, choose)),
        "weight_likelihood": mixture.averages["likelihood"],
        "weight_vector": mixture.averages["vector"],
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
    mixture, found = weigh_text(ranker, graph, protocol, advance)
    figures = {"text": found}
    for name in (name for name in SIGNALS if name in ranker.signals and name not in mixture.tables):
        beside = ranker.but(mixture=mixture, reranking=None)
        mixture, figures[name] = weigh_signal(beside, name, graph, protocol, advance, batch_size)
    if ranker.reranking is None:
        return mixture, None, figures
    first = ranker.but(mixture=mixture)
    use, figures["reranking"] = choose_reranking(first, graph, reranking or protocol, advance, candidates)
    return mixture, use, figures
