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
from kgmlm.ranker import HELD, Parts, Ranker, Weights
from kgmlm.rescoring import Use
from kgmlm.scope import Scope, within

WEIGHTS_TRIED = tuple(2.0**i for i in range(-2, 6))  # of entity vectors, in units of Ranker.default_weights
RESCORED_TRIED = (5, 10, 20, 50, 100)  # how many of the best, as many as there are settings for
RESCORING_TRIED = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)  # weights of it, in units of the temperature
STRUCTURE_TRIED = tuple(2.0**i for i in range(-4, 6))  # of structure, in units of the temperature
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
    score: Callable[[Queries, IntArray, Parts], Iterable[torch.Tensor]],
    advance: Callable[[int, int], None],
    batch_size: int = 64,
) -> tuple[Asked, list[Ranks]]:
    """Both queries of each triple of the run's own graph, and their ranks by several ways of scoring.

    All from the same forward passes; the ranker's own weights say which parts are made.

    Args:
        count: how many ways there are.
        score: scores ``(d, N)`` by each, of some of the distinct queries, their rows, and the parts.

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
    for rows, parts in ranker.parts(distinct, batch_size=batch_size):
        split = [
            (at, group, asked.known.lookup(asked.queries[at]))
            for at, group in asked.in_parts(rows, HELD // len(graph.entities))
        ]
        for view, scores_dN in zip(views, score(distinct[rows], rows, parts), strict=True):
            for at, group, known in split:
                source = torch.from_numpy(group).to(scores_dN.device)
                view.rank(scores_dN[source], at, asked.answers[at], known)
        advance(len(rows), len(distinct))
    return asked, [view.result() for view in views]


def _by_weights(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    tried: Sequence[Weights],
    advance: Callable[[str, int, int], None],
    batch_size: int = 64,
) -> tuple[Queries, list[Ranks]]:
    """Queries, and their ranks under several weights."""
    asked, ranks = _ranked_by(
        ranker,
        graph,
        protocol,
        len(tried),
        lambda queries, rows, parts: (ranker.combined(queries, parts, weights=w) for w in tried),
        partial(advance, "validating"),
        batch_size,
    )
    return asked.queries, ranks


def _of_relations(reciprocal_WB: FloatArray, queries: Queries, relations: int) -> tuple[IntArray, FloatArray]:
    """Which of W ways is best for each relation and side ``(R, 2)``, and the reciprocal ranks ``(B,)`` by it.

    What is rarely asked leans on what is best for all: :data:`PRIOR` queries of the average join its own.
    """
    mean_W = reciprocal_WB.mean(1)
    chosen_R2 = np.full((relations, 2), int(mean_W.argmax()))
    side_B = 1 - queries.tail_B.astype(np.int64)
    for relation, side in np.unique(np.stack([queries.relation_B, side_B], 1), axis=0):
        own_WB = reciprocal_WB[:, (queries.relation_B == relation) & (side_B == side)]
        chosen_R2[relation, side] = (own_WB.sum(1) + PRIOR * mean_W).argmax()
    return chosen_R2, reciprocal_WB[chosen_R2[queries.relation_B, side_B], np.arange(len(queries))]


def choose_structure(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Callable[[str, int, int], None] = lambda what, n, total: None,
    batch_size: int = 64,
) -> dict[str, float]:
    """Choose how much the structural model counts beside the text: one weight a relation and side, by MRR.

    The weights are left in ``ranker.structure``.

    Raises:
        ConfigError: when the protocol asks or filters test triples, or there is no structural model.

    Returns:
        ``mrr``, ``hits_at_1`` and ``hits_at_10`` under the chosen weights, ``mrr_text`` and
        ``mrr_structure`` of each alone, and ``mrr_one_weight`` with the best weight for all relations.
    """
    structure = ranker.structure
    if structure is None:
        raise ConfigError("the ranker has no structural model to weigh")
    unit = ranker.settings.training.temperature  # both as confident as in training
    text = ranker.weights._replace(structure=0.0)
    values = [0.0, *(unit * x for x in STRUCTURE_TRIED)]
    ranker.structure = structure.weighted(torch.ones_like(structure.weights_R2))
    ranker.weights = text._replace(structure=1.0)
    tried = [*(text._replace(structure=v) for v in values), Weights(0.0, 0.0, 1.0)]
    queries, ranks = _by_weights(ranker, graph, protocol, tried, advance, batch_size)
    *mixed_WB, alone_B = (1 / r.of_type("realistic") for r in ranks)
    reciprocal_WB = np.stack(mixed_WB)
    mean_W = reciprocal_WB.mean(1)
    chosen_R2, final_B = _of_relations(reciprocal_WB, queries, len(structure.weights_R2))
    weights_R2 = torch.tensor(values, dtype=torch.float32)[torch.from_numpy(chosen_R2)]
    ranker.structure = structure.weighted(weights_R2)
    ranker.weights = text._replace(structure=1.0)
    return {
        "mrr": float(final_B.mean()),
        "hits_at_1": float((final_B >= 1).mean()),
        "hits_at_10": float((final_B >= 0.1).mean()),
        "mrr_text": float(mean_W[0]),
        "mrr_structure": float(alone_B.mean()),
        "mrr_one_weight": float(mean_W.max()),
    }


def choose_rescoring(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Callable[[str, int, int], None] = lambda what, n, total: None,
    candidates: int | None = None,
) -> dict[str, float]:
    """Choose how many of the best are rescored and how much that counts, by MRR; not rescoring is a choice.

    The choice is left in ``ranker.rescorer``.

    Args:
        candidates: how many are tried at most; None is as many as the rescorer's settings say.

    Raises:
        ConfigError: when the protocol asks or filters test triples, or there is no rescorer.

    Returns:
        ``mrr``, ``hits_at_1`` and ``hits_at_10`` under the choice, ``k`` and ``weight``, ``mrr_first``
        without rescoring, and ``held``, the share of answers that the most candidates tried hold.
    """
    rescorer = ranker.rescorer
    if rescorer is None:
        raise ConfigError("the ranker has no rescorer to weigh")
    most = min(candidates or rescorer.rescoring.candidates, len(graph.entities))
    sizes = sorted({k for k in RESCORED_TRIED if k < most} | {most})
    unit = ranker.settings.training.temperature  # both as confident as in training
    tried = [Use(0, 0.0), *(Use(k, unit * x) for k in sizes for x in RESCORING_TRIED)]
    held: list[tuple[IntArray, IntArray]] = []

    def score(queries: Queries, rows: IntArray, parts: Parts) -> Iterator[torch.Tensor]:
        scores_dN = ranker.combined(queries, parts)
        best, ids_dK = ranker.best(queries, scores_dN, most)
        held.append((rows, ids_dK))
        read_dK = ranker.read(queries, best.to_read(ids_dK)).to(scores_dN.device)
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
    rescorer.use = tried[chosen]
    return {
        "mrr": mrrs[chosen],
        "hits_at_1": found[chosen]["both.realistic.hits_at_1"],
        "hits_at_10": found[chosen]["both.realistic.hits_at_10"],
        "k": rescorer.use.k,
        "weight": rescorer.use.weight,
        "mrr_first": mrrs[0],
        "held": float(held_B.mean()),
    }


def validate(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Callable[[str, int, int], None] = lambda what, n, total: None,
) -> dict[str, float]:
    """MRR and Hits@10 of the run's own graph; with entity vectors, choose their weights by the MRR.

    Weights are tried from likelihood alone to vectors alone, all from the same forward passes: one for all,
    then for each relation and side. They are left in ``ranker.weights`` and ``ranker.factors_R2``.

    Args:
        advance: called with (what is being done, how many just were, how many there are).

    Raises:
        ConfigError: when the protocol asks or filters test triples.

    Returns:
        ``mrr`` and ``hits_at_10`` under the best weights; with vectors also ``weight_...`` and ``mrr_...`` of
        ``likelihood`` and ``vector``: the weights before factors, and the MRR of each alone; and
        ``mrr_one_weight``, without factors.
    """
    _check_choice(protocol)
    if not ranker.settings.vector.enabled:
        bar = partial(advance, "validating")
        metrics = evaluate(ranker, graph, protocol, advance=bar).report["metrics"]
        return {"mrr": metrics["mrr"], "hits_at_10": metrics["both.realistic.hits_at_10"]}
    unit = Ranker.default_weights(ranker.settings).vector
    tried = [Weights(), *(Weights(1.0, unit * x) for x in WEIGHTS_TRIED), Weights(0.0, 1.0)]
    ranker.weights, ranker.factors_R2 = Weights(1.0, unit), None  # both parts are made
    unread = ranker.unread()
    ranker.read_entities(advance=lambda n: advance("reading entities", n, unread))
    queries, ranks = _by_weights(ranker, graph, protocol, tried, advance)
    reciprocal_WB = np.stack([1 / r.of_type("realistic") for r in ranks])
    mean_W = reciprocal_WB.mean(1)
    chosen_R2, final_B = _of_relations(reciprocal_WB[:-1], queries, len(graph.relations))
    if mean_W[-1] > final_B.mean():
        ranker.weights, final_B = tried[-1], reciprocal_WB[-1]
    else:
        vector_W = torch.tensor([weights.vector for weights in tried], dtype=torch.float32)
        ranker.weights = Weights(1.0, float(vector_W[mean_W[:-1].argmax()]) or unit)  # factors may be 0
        ranker.factors_R2 = vector_W[torch.from_numpy(chosen_R2)] / ranker.weights.vector
    return {
        "mrr": float(final_B.mean()),
        "hits_at_10": float((final_B >= 0.1).mean()),
        "weight_likelihood": ranker.weights.likelihood,
        "weight_vector": ranker.weights.vector,
        "mrr_one_weight": float(mean_W.max()),
        "mrr_likelihood": float(mean_W[0]),
        "mrr_vector": float(mean_W[-1]),
    }
