"""What validation chooses: how much each signal, asking back and a reranker count. Test triples have no say.

Shapes: B queries, all heads and then all tails; W ways of scoring; d distinct queries; N candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from kgmlm.best import Floats, best_of
from kgmlm.chosen import REVERSE
from kgmlm.config import Protocol
from kgmlm.contest import Contest
from kgmlm.evaluation import Asked
from kgmlm.first_stage import Said
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import BoolArray, ConfigError, FloatArray, IntArray, Queries
from kgmlm.metrics import Ranks
from kgmlm.mixture import Mixture, Use
from kgmlm.processes import sharing
from kgmlm.ranker import Ranker
from kgmlm.reading import read_together
from kgmlm.reverse import asked_back
from kgmlm.signals import SIGNALS
from kgmlm.watching import Advance, Watcher
from kgmlm.weighing import Sample

TEXT = ("likelihood", "vector")  # signals of the text model, which training weighs
RERANKED_TRIED = (5, 10, 20, 50, 100)  # how many of the best, as many as there are settings for
RERANKING_TRIED = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)  # weights of it, in units of the temperature
REVERSE_TRIED = (0.125, 0.25, 0.375, 0.5, 0.75, 1.0, 1.5, 2.0)  # 1: as much as the query itself

silent = Watcher()


class Folds(NamedTuple):
    """Weights fitted on all triples, and on every other one, by which those between are measured."""

    whole: Mixture
    odd: Mixture
    even: Mixture

    @classmethod
    def same(cls, mixture: Mixture) -> Folds:
        """Weights that no triple has chosen."""
        return cls(mixture, mixture, mixture)

    @classmethod
    def fitted(
        cls,
        sample: Sample,
        names: Sequence[str],
        tell: Callable[[], None] = lambda: None,
        *,
        by_relation: bool = True,
    ) -> Folds:
        """The weights of some signals; ``tell`` is called after each fit.

        Those of the text are fitted without the others, which are then fitted beside their sum: so a run's
        text ranks as well alone as it can, whatever is beside it.
        """
        count = len(sample.queries)
        odd_B, every_B = _odd(count), np.ones(count, np.bool_)
        text, beside = ([n for n in names if (n in TEXT) == own] for own in (True, False))

        def of(of_B: BoolArray) -> Mixture:
            if not (len(text) > 1 and beside):
                return sample.fitted(names, of_B, by_relation=by_relation)
            parts = sample.fitted(text, of_B, by_relation=by_relation)
            whole = sample.summed("text", parts).fitted(["text", *beside], of_B, by_relation=by_relation)
            return whole.opened("text", parts)

        found = []
        for of_B in (every_B, odd_B, ~odd_B) if count > 2 else 3 * (every_B,):
            found.append(of(of_B))
            tell()
        return cls(*found)


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


def weigh(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Advance = silent,
    batch_size: int = 64,
    *,
    among: int = 0,
) -> tuple[Mixture, dict[str, dict[str, float]]]:
    """Choose how much each signal counts, for each relation and side (:mod:`kgmlm.weighing`), and measure it.

    Args:
        advance: called with (what is being done, how many just were, how many there are).
        among: rank among the answers and so many other entities, and read no others; 0 is all.

    Raises:
        ConfigError: when the protocol asks or filters test triples.

    Returns:
        The mixture of all signals; and by stage, the text first and then each signal beside those before it,
        ``mrr``, ``hits_at_1`` and ``hits_at_10``, each half of the triples by weights that were fitted on the
        other; ``mrr_one_weight`` with the same weights for all relations; ``mrr_`` and its name by a signal
        alone; ``mrr_text`` without the stage's signal, of all but the text; ``weight_...`` of the text's.
    """
    contest, stages = _contest(graph, protocol, among), _stages(ranker)
    *_, (last, names) = stages.items()
    if ranker.vectors is not None:
        unread = ranker.vectors.unread_of(contest.ids)
        read_together(
            ranker.vectors, advance=lambda n: advance("reading entities", n, unread), ids=contest.ids
        )
    if len(names) > 1:
        sample = Sample.drawn(ranker, contest, names, advance, batch_size)
    ways: dict[str, Folds] = {f"{name} alone": Folds.same(ranker.mixture.only(name)) for name in names}
    fits = 6 * sum(len(of) > 1 for of in stages.values())
    tell = partial(advance, "fitting weights", 1, fits)
    for stage, of in stages.items():
        fitted = len(of) > 1
        ways[stage] = Folds.fitted(sample, of, tell) if fitted else ways[f"{of[0]} alone"]
        ways[f"{stage} one"] = Folds.fitted(sample, of, tell, by_relation=False) if fitted else ways[stage]
    measured = _measured(ranker, contest, ways, advance, batch_size)
    mrr = {name: float(found_B.mean()) for name, found_B in measured.items()}
    figures = {stage: _figures(measured[stage]) for stage in stages}
    for before, (stage, of) in zip([None, *stages], stages.items(), strict=False):
        new = of if before is None else [stage]
        if len(of) > 1:
            figures[stage]["mrr_one_weight"] = mrr[f"{stage} one"]
            figures[stage] |= {f"mrr_{name}": mrr[f"{name} alone"] for name in new}
        if before is not None:
            figures[stage]["mrr_text"] = mrr[before]
    if "text" in stages and len(stages["text"]) > 1:
        figures["text"] |= {f"weight_{n}": w for n, w in ways["text"].whole.averages.items()}
    if contest.ids is not None:
        figures[last]["candidates"] = float(contest.width)
    return ways[last].whole, figures


def _stages(ranker: Ranker) -> dict[str, list[str]]:
    """Which signals are weighed together: those of the text, then one more each time."""
    text = [name for name in TEXT if name in ranker.signals]
    beside = [name for name in SIGNALS if name in ranker.signals and name not in TEXT]
    stages = {"text": text} if text else {}
    return stages | {name: [*text, *beside[: i + 1]] for i, name in enumerate(beside)}


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
        world.filled(view.ranks_3B, asked.groups.take(share)[0])
    return asked, [view.result() for view in views]


def _measured(
    ranker: Ranker, contest: Contest, ways: Mapping[str, Folds], advance: Advance, batch_size: int
) -> dict[str, FloatArray]:
    """Reciprocal ranks ``(B,)`` by name, those of each half of the triples by what the other half chose.

    So no triple is measured by weights that were fitted on it.
    """
    tried = {id(mixture): mixture for way in ways.values() for mixture in (way.odd, way.even)}
    pool = ranker.pool(contest.ids)
    _, ranks = _ranked_by(
        ranker,
        contest,
        len(tried),
        lambda queries, rows, said: (ranker.combined(queries, said, pool, m) for m in tried.values()),
        partial(advance, "validating"),
        batch_size,
        tuple(dict.fromkeys(name for mixture in tried.values() for name in mixture.signals)),
    )
    by = {key: 1 / of.of_type("realistic") for key, of in zip(tried, ranks, strict=True)}
    return {name: _crossed(by[id(way.odd)], by[id(way.even)]) for name, way in ways.items()}


def _crossed(by_odd_B: FloatArray, by_even_B: FloatArray) -> FloatArray:
    """Of the odd triples what the even ones chose, and the other way round."""
    return np.where(_odd(len(by_odd_B)), by_even_B, by_odd_B)


def _chosen(reciprocal_WB: FloatArray) -> FloatArray:
    """Reciprocal ranks ``(B,)``, those of each half of the triples by the way that is best for the other."""
    count = reciprocal_WB.shape[1]
    odd_B = _odd(count)
    halves = (odd_B, ~odd_B) if count > 2 else (np.ones(count, np.bool_),) * 2
    return _crossed(*(reciprocal_WB[reciprocal_WB[:, of_B].mean(1).argmax()] for of_B in halves))


def _odd(count: int) -> BoolArray:
    """Which of so many queries, all heads and then all tails, are of every other triple."""
    return np.tile(np.arange(count // 2) % 2 == 1, 2)


def _figures(reciprocal_B: FloatArray) -> dict[str, float]:
    return {
        "mrr": float(reciprocal_B.mean()),
        "hits_at_1": float((reciprocal_B >= 1).mean()),
        "hits_at_10": float((reciprocal_B >= 0.1).mean()),
    }


def choose_reranking(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Advance = silent,
    candidates: int | None = None,
) -> tuple[Use, dict[str, float]]:
    """Choose how many of the best are read again and how much that counts, by MRR; not reranking is a choice.

    It is the choice, too, where what each half of the triples chose is no better for the other half.

    Args:
        ranker: where it asks back, that comes first.
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
    most = candidates or reranking.reranker.reranking.candidates
    confident = ranker.reader.settings.training.temperature  # both as in training
    weights = [confident * x for x in RERANKING_TRIED]
    told = partial(advance, "reranking")

    def read(queries: Queries, ids_dK: IntArray) -> Floats:
        return reranking.read(queries, ids_dK, ranker.mixture)

    return _choose_use(ranker, graph, protocol, told, most, weights, read)


def choose_reverse(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Advance = silent,
    candidates: int | None = None,
) -> tuple[Use, dict[str, float]]:
    """The same of asking back.

    Args:
        candidates: None is as many as the settings of the run say.
    """
    most = candidates or ranker.reader.settings.reranking.candidates
    return _choose_use(
        ranker.unreranked(),
        graph,
        protocol,
        partial(advance, "asking back"),
        most,
        REVERSE_TRIED,
        partial(asked_back, ranker),
    )


def _choose_use(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Callable[[int, int], None],
    most: int,
    weights: Sequence[float],
    read: Callable[[Queries, IntArray], Floats],
) -> tuple[Use, dict[str, float]]:
    """Choose how a second stage is used.

    Args:
        most: candidates that are tried at most.
        read: what it says of candidates ``(d, K)`` of some queries.
    """
    most = min(most, len(graph.entities))
    sizes = sorted({k for k in RERANKED_TRIED if k < most} | {most})
    tried = [Use(0, 0.0), *(Use(k, weight) for k in sizes for weight in weights)]
    held: list[tuple[IntArray, IntArray]] = []

    def score(queries: Queries, rows: IntArray, said: Said) -> Iterator[torch.Tensor]:
        scores_dN = ranker.but(reranking=None).reranked(queries, ranker.combined(queries, said))
        best, ids_dK = best_of(ranker.context, queries, scores_dN, most, ranker.pool())
        held.append((rows, ids_dK))
        read_dK = read(queries, best.to_read(ids_dK))
        yield scores_dN
        for use in tried[1:]:
            yield best.first(use.k).reranked(scores_dN, read_dK[:, : use.k], use.weight)

    contest = _contest(graph, protocol)
    asked, ranks = _ranked_by(ranker, contest, len(tried), score, advance)
    held_B = np.zeros(len(asked.queries), np.bool_)
    for rows, ids_dK in (batch for of_one in sharing().gathered(held) for batch in of_one):
        at, group = asked.groups.take(rows)
        held_B[at] = (ids_dK[group] == asked.answers[at][:, None]).any(1)
    reciprocal_WB = np.stack([1 / r.of_type("realistic") for r in ranks])
    mean_W, crossed_B = reciprocal_WB.mean(1), _chosen(reciprocal_WB)
    use = tried[int(mean_W.argmax())]
    if crossed_B.mean() <= mean_W[0]:
        use, crossed_B = tried[0], reciprocal_WB[0]
    return use, {
        **_figures(crossed_B),
        "k": use.k,
        "weight": use.weight,
        "mrr_first": float(mean_W[0]),
        "held": float(held_B.mean()),
    }


class Tuned(NamedTuple):
    """All that validation chose for a ranker.

    Attributes:
        use: of the reranker, where there is one.
        reverse: of asking back, where it was to be chosen.
        figures: of each stage on validation, by its name.
    """

    mixture: Mixture
    use: Use | None
    reverse: Use | None
    figures: dict[str, dict[str, float]]


def tune(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Advance = silent,
    *,
    reranking: Protocol | None = None,
    candidates: int | None = None,
    batch_size: int = 64,
) -> Tuned:
    """Choose all weights of a ranker: those of its signals at once, then how it asks back, then its
    reranker's, if it has them.

    Args:
        protocol: on which triples of the run's own graph.
        reranking: on which triples it is chosen how candidates are asked back and reranked, at a forward pass
            per candidate; None is all of the same.
        candidates: as of :func:`choose_reranking`.

    Raises:
        ConfigError: when a protocol asks or filters test triples.
    """
    mixture, figures = weigh(ranker, graph, protocol, advance, batch_size)
    first, few = ranker.but(mixture=mixture), reranking or protocol
    use = reverse = None
    if ranker.reverse is not None:
        reverse, figures[REVERSE] = choose_reverse(first, graph, few, advance, candidates)
        first = first.but(reverse=reverse)
    if ranker.reranking is not None:
        use, figures["reranking"] = choose_reranking(first, graph, few, advance, candidates)
    return Tuned(mixture, use, reverse, figures)
