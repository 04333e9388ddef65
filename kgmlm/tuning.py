"""What validation chooses: how much each signal, asking back and a reranker count. Test triples have no say.

Shapes: B queries, all heads and then all tails; W ways of scoring; d distinct queries; N candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from kgmlm.choosing import choose_reranking, choose_reverse, silent
from kgmlm.chosen import REVERSE
from kgmlm.config import Protocol
from kgmlm.contest import Contest
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import BoolArray, FloatArray
from kgmlm.mixture import Mixture, Use
from kgmlm.ranker import Ranker
from kgmlm.reading import read_together
from kgmlm.signals import SIGNALS
from kgmlm.validating import contest_of, crossed, figures_of, odd, ranked_by
from kgmlm.watching import Advance
from kgmlm.weighing import Sample

TEXT = ("likelihood", "vector")  # signals of the text model, which training weighs


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
        odd_B, every_B = odd(count), np.ones(count, np.bool_)
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
    contest, stages = contest_of(graph, protocol, among), _stages(ranker)
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
    figures = {stage: figures_of(measured[stage]) for stage in stages}
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


def _measured(
    ranker: Ranker, contest: Contest, ways: Mapping[str, Folds], advance: Advance, batch_size: int
) -> dict[str, FloatArray]:
    """Reciprocal ranks ``(B,)`` by name, those of each half of the triples by what the other half chose.

    So no triple is measured by weights that were fitted on it.
    """
    tried = {id(mixture): mixture for way in ways.values() for mixture in (way.odd, way.even)}
    pool = ranker.pool(contest.ids)
    _, ranks = ranked_by(
        ranker,
        contest,
        len(tried),
        lambda queries, rows, said: (ranker.combined(queries, said, pool, m) for m in tried.values()),
        partial(advance, "validating"),
        batch_size,
        tuple(dict.fromkeys(name for mixture in tried.values() for name in mixture.signals)),
    )
    by = {key: 1 / of.of_type("realistic") for key, of in zip(tried, ranks, strict=True)}
    return {name: crossed(by[id(way.odd)], by[id(way.even)]) for name, way in ways.items()}


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
        reverse, figures[REVERSE] = choose_reverse(first, graph, few, advance, candidates, batch_size)
        first = first.but(reverse=reverse)
    if ranker.reranking is not None:
        use, figures["reranking"] = choose_reranking(first, graph, few, advance, candidates, batch_size)
    return Tuned(mixture, use, reverse, figures)
