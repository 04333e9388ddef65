"""What validation chooses: how much vectors, structure and rescoring count. Test triples have no say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import torch

from kgmlm.config import Protocol
from kgmlm.evaluation import Asked, View, evaluate
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import ConfigError, FloatArray, IntArray, Queries
from kgmlm.metrics import Ranks, flat_metrics, headline
from kgmlm.mixture import Mixture
from kgmlm.ranker import HELD, Ranker, Said, unit
from kgmlm.reranking import best_of
from kgmlm.rescoring import Use
from kgmlm.scope import Scope, within

WEIGHTS_TRIED = tuple(2.0**i for i in range(-2, 6))  # of entity vectors, in units of kgmlm.ranker.unit
RESCORED_TRIED = (5, 10, 20, 50, 100)  # how many of the best, as many as there are settings for
RESCORING_TRIED = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)  # weights of it, in units of the temperature
SIGNAL_TRIED = tuple(2.0**i for i in range(-4, 6))  # of other signals, in units of the temperature
PRIOR = 50  # queries of the average that join those of a relation


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
            for at, group in asked.in_parts(rows, HELD // len(graph.entities))
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
    advance: Callable[[str, int, int], None],
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


def _of_relations(reciprocal_WB: FloatArray, queries: Queries, relations: int) -> tuple[IntArray, FloatArray]:
    """Which of W ways is best for each relation and side ``(R, 2)``, and the reciprocal ranks ``(B,)`` by it.

    What is rarely asked leans on what is best for all: :data:`PRIOR` queries of the average join its own.
    """
    mean_W = reciprocal_WB.mean(1)
    chosen_R2 = np.full((relations, 2), int(mean_W.argmax()))
    side_B = queries.side_B
    for relation, side in np.unique(np.stack([queries.relation_B, side_B], 1), axis=0):
        own_WB = reciprocal_WB[:, (queries.relation_B == relation) & (side_B == side)]
        chosen_R2[relation, side] = (own_WB.sum(1) + PRIOR * mean_W).argmax()
    return chosen_R2, reciprocal_WB[chosen_R2[queries.relation_B, side_B], np.arange(len(queries))]


def weigh_signal(
    ranker: Ranker,
    name: str,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Callable[[str, int, int], None] = lambda what, n, total: None,
    batch_size: int = 64,
) -> tuple[Mixture, dict[str, float]]:
    """Choose how much a signal counts beside the others: one weight a relation and side, by MRR.

    Raises:
        ConfigError: when the protocol asks or filters test triples, or there is no such signal.

    Returns:
        The chosen mixture, and ``mrr``, ``hits_at_1`` and ``hits_at_10`` under it, ``mrr_text`` without the
        signal, ``mrr_`` and its name by it alone, and ``mrr_one_weight`` with the best weight for all
        relations.
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
    mean_W = reciprocal_WB.mean(1)
    chosen_R2, final_B = _of_relations(reciprocal_WB, queries, len(graph.relations))
    table_R2 = torch.tensor(values, dtype=torch.float32)[torch.from_numpy(chosen_R2)]
    return others.weighed(name, table_R2, values[int(mean_W.argmax())]), {
        "mrr": float(final_B.mean()),
        "hits_at_1": float((final_B >= 1).mean()),
        "hits_at_10": float((final_B >= 0.1).mean()),
        "mrr_text": float(mean_W[0]),
        f"mrr_{name}": float(alone_B.mean()),
        "mrr_one_weight": float(mean_W.max()),
    }


def choose_rescoring(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Callable[[str, int, int], None] = lambda what, n, total: None,
    candidates: int | None = None,
) -> tuple[Use, dict[str, float]]:
    """Choose how many of the best are rescored and how much that counts, by MRR; not rescoring is a choice.

    Args:
        candidates: how many are tried at most; None is as many as the rescorer's settings say.

    Raises:
        ConfigError: when the protocol asks or filters test triples, or there is no rescorer.

    Returns:
        The choice, and ``mrr``, ``hits_at_1`` and ``hits_at_10`` under it, ``k`` and ``weight``,
        ``mrr_first`` without rescoring, and ``held``, the share of answers that the most candidates hold.
    """
    reranking = ranker.reranking
    if reranking is None:
        raise ConfigError("the ranker has no rescorer to weigh")
    most = min(candidates or reranking.rescorer.rescoring.candidates, len(graph.entities))
    sizes = sorted({k for k in RESCORED_TRIED if k < most} | {most})
    confident = ranker.reader.settings.training.temperature  # both as in training
    tried = [Use(0, 0.0), *(Use(k, confident * x) for k in sizes for x in RESCORING_TRIED)]
    held: list[tuple[IntArray, IntArray]] = []

    def score(queries: Queries, rows: IntArray, said: Said) -> Iterator[torch.Tensor]:
        scores_dN = ranker.combined(queries, said)
        best, ids_dK = best_of(ranker.context, queries, scores_dN, most, ranker.pool())
        held.append((rows, ids_dK))
        read_dK = reranking.read(queries, best.to_read(ids_dK), ranker.mixture).to(scores_dN.device)
        yield scores_dN
        for use in tried[1:]:
            yield best.first(use.k).rescored(scores_dN, read_dK[:, : use.k], use.weight)

    asked, ranks = _ranked_by(ranker, graph, protocol, len(tried), score, partial(advance, "rescoring"))
    held_B = np.zeros(len(asked.queries), np.bool_)
    for rows, ids_dK in held:
        at, group = asked.of_groups(rows)
        held_B[at] = (ids_dK[group] == asked.answers[at][:, None]).any(1)
    found = [flat_metrics(r, asked.queries.tail_B) for r in ranks]
    mrrs = [headline(metrics) for metrics in found]
    chosen = int(np.argmax(mrrs))
    return tried[chosen], {
        "mrr": mrrs[chosen],
        "hits_at_1": found[chosen]["both.realistic.hits_at_1"],
        "hits_at_10": found[chosen]["both.realistic.hits_at_10"],
        "k": tried[chosen].k,
        "weight": tried[chosen].weight,
        "mrr_first": mrrs[0],
        "held": float(held_B.mean()),
    }


def validate(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Callable[[str, int, int], None] = lambda what, n, total: None,
) -> tuple[Mixture, dict[str, float]]:
    """MRR and Hits@10 of the run's own graph; with entity vectors, by the weights that are best for it.

    Weights are tried from likelihood alone to vectors alone, all from the same forward passes: one for all,
    then for each relation and side.

    Args:
        advance: called with (what is being done, how many just were, how many there are).

    Raises:
        ConfigError: when the protocol asks or filters test triples.

    Returns:
        The mixture of text signals to rank by, and ``mrr`` and ``hits_at_10`` under it; with vectors also
        ``weight_...`` and ``mrr_...`` of ``likelihood`` and ``vector``: the best single weights, and the MRR
        of each alone; and ``mrr_one_weight``, with these for all relations.
    """
    _check_choice(protocol)
    if ranker.vectors is None:
        bar = partial(advance, "validating")
        metrics = evaluate(ranker, graph, protocol, advance=bar).report["metrics"]
        return ranker.mixture, {"mrr": metrics["mrr"], "hits_at_10": metrics["both.realistic.hits_at_10"]}
    one = unit("vector", ranker.reader.settings)
    relations = len(graph.relations)
    values = [0.0, *(one * x for x in WEIGHTS_TRIED)]
    tried = [Mixture.even({"likelihood": 1.0, "vector": value}, relations) for value in values]
    alone = Mixture.even({"likelihood": 0.0, "vector": 1.0}, relations)
    unread = ranker.vectors.unread
    ranker.vectors.read(advance=lambda n: advance("reading entities", n, unread))
    queries, ranks = _by_mixtures(ranker, graph, protocol, [*tried, alone], advance)
    reciprocal_WB = np.stack([1 / r.of_type("realistic") for r in ranks])
    mean_W = reciprocal_WB.mean(1)
    chosen_R2, final_B = _of_relations(reciprocal_WB[:-1], queries, relations)
    if mean_W[-1] > final_B.mean():
        mixture, final_B = alone, reciprocal_WB[-1]
    else:
        average = values[int(mean_W[:-1].argmax())] or one  # a weight of 0 would leave nothing to lean on
        table_R2 = torch.tensor(values, dtype=torch.float32)[torch.from_numpy(chosen_R2)]
        mixture = tried[0].weighed("vector", table_R2, average)
    return mixture, {
        "mrr": float(final_B.mean()),
        "hits_at_10": float((final_B >= 0.1).mean()),
        "weight_likelihood": mixture.averages["likelihood"],
        "weight_vector": mixture.averages["vector"],
        "mrr_one_weight": float(mean_W.max()),
        "mrr_likelihood": float(mean_W[0]),
        "mrr_vector": float(mean_W[-1]),
    }


def validating(
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Callable[[str, int, int], None] = lambda what, n, total: None,
) -> Callable[[Ranker], dict[str, float]]:
    """What training calls to validate: :func:`validate`, whose mixture the ranker has from then on."""

    def validation(ranker: Ranker) -> dict[str, float]:
        ranker.mixture, metrics = validate(ranker, graph, protocol, advance)
        return metrics

    return validation
