"""Weights of signals chosen on validation, all at once.

Validation ranks among all entities, or among the answers and a sample. A sample is enough for choosing: it
improves the ranks of every way of scoring. Each half of the triples is measured by what the other
half chose (two-fold cross-fitting).

The weighted sum of S signal scores of a query's candidates goes through a softmax over those that no known
triple has; the weights maximize the likelihood of validation's answers. Weights are positive, so their
logarithms are fitted: one for each signal, and an addition per relation and side, shrunk to 0. Those of a
signal that may count against a candidate (`linked`) have either sign, and are fitted as they are. Reciprocal
ranks are step functions, and choices by them on a few hundred triples are mostly chance (eval/LOG.md);
likelihoods are smooth, and weights that maximize them rank better.

Shapes: B queries, all heads and then all tails; C candidates (the answer and those that some signal ranks
best); S signals, R relations; d distinct queries, b queries with an answer each; N candidates, K of them the
best.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from kgmlm.core.arrays import BoolArray, FloatArray, Floats, IntArray, highest, spreads
from kgmlm.core.config import Protocol
from kgmlm.core.errors import ConfigError, RunError
from kgmlm.core.processes import sharing
from kgmlm.core.progress import Advance, Watcher
from kgmlm.evaluation.metrics import Ranks, half_interval
from kgmlm.evaluation.task import Part, RankingTask
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries, parts_of_pairs
from kgmlm.ranking.ranker import BEST, Mixture, Ranker, SignalScores
from kgmlm.runs.folder import RunFolder
from kgmlm.signals import SIGNALS, is_signed
from kgmlm.signals.unseen import Unseen
from kgmlm.signals.vector import read_together
from kgmlm.training.states import (
    UNSEEN_ANSWER,
    UNSEEN_BOTH,
    UNSEEN_QUERY,
    best_way,
    measured_states,
    neutral_weights,
    states_of,
)

SHRINKAGE = 3.0  # of a relation's weights toward those of all relations, in nats per squared log ratio
REGULARIZATION = 1.0  # of all weights toward those that give signals equal variance; unit of SHRINKAGE
DAMPING = (0.25, 0.5, 0.75, 1.0)  # of the weights of unseen entities, fitted and neutral ones
CHECKED = 200  # validation triples by which weights are checked
FAR = 10.0  # largest log ratio of a weight to the one that gives equal variance
_CLOSELY = {"ftol": 1e-13, "gtol": 1e-7, "maxiter": 1000, "maxfun": 2000}


def check_choice(protocol: Protocol) -> None:
    """Refuse to choose anything by what is kept for the test.

    Raises:
        ConfigError: when test triples are asked or filtered.
    """
    if "test" in (protocol.split, *protocol.filter):
        raise ConfigError("what is chosen on validation must not know the test triples: leave 'test' out")


def validation_task(graph: KnowledgeGraph, protocol: Protocol, among: int = 0) -> RankingTask:
    """The task to choose by; arguments as of :meth:`~kgmlm.evaluation.task.RankingTask.of`.

    Raises:
        ConfigError: when test triples are asked or filtered.
    """
    check_choice(protocol)
    return RankingTask.of(graph, protocol, among)


def ranked_by(
    ranker: Ranker,
    task: RankingTask,
    count: int,
    score: Callable[[Queries, IntArray, SignalScores], Iterable[Floats]],
    advance: Callable[[int, int], None],
    batch_size: int = 64,
    by: tuple[str, ...] | None = None,
) -> list[Ranks]:
    """Rank a task's queries by several ways of scoring.

    All ways share the forward passes; each query is ranked by one of the processes that share the work.

    Args:
        count: how many ways there are.
        score: given some distinct queries, their rows and signal scores, yields scores ``(d, N)`` by each.
        by: which signals are asked; None is those that count.
    """
    views, world = [task.view() for _ in range(count)], sharing()
    share = task.share(world)
    distinct, pool = task.distinct[share], ranker.pool(task.ids)
    for own, _, signal_scores in ranker.signal_scores(distinct, pool, batch_size=batch_size, by=by):
        rows = share[own]
        parts = list(task.parts(rows))
        for view, scores_dN in zip(views, score(distinct[own], rows, signal_scores), strict=True):
            for part in parts:
                view.rank(scores_dN, part)
        advance(len(rows), len(distinct))
    for view in views:
        world.filled(view.ranks_3B, task.groups.take(share)[0])
    return [view.result() for view in views]


def odd_answers(queries: Queries, answers: IntArray) -> BoolArray:
    """Return which of B queries with an answer each are in the odd half of all pairs of entities."""
    odd_B: BoolArray = parts_of_pairs(queries.entity_B, answers) == 1
    return odd_B


def figures_of(reciprocal_B: FloatArray) -> dict[str, float]:
    """``mrr`` and half of its 95 % interval, ``hits_at_1`` and ``hits_at_10`` of reciprocal ranks."""
    return {
        "mrr": float(reciprocal_B.mean()),
        "half": half_interval(reciprocal_B),
        "hits_at_1": float((reciprocal_B >= 1).mean()),
        "hits_at_10": float((reciprocal_B >= 0.1).mean()),
    }


@dataclass(frozen=True, eq=False)
class ValidationSample:
    """Signal scores of the best candidates of some queries.

    Attributes:
        names: of the S signals.
        scores_BCS: the first candidate is the answer.
        answers: ``(B,)``.
        there_BC: where there is a candidate; a query whose answer is impossible has none.
        unseen_N: which entities training has no triple of.
        confident: the factor by which training divides scores, and by which weights are multiplied here.
    """

    names: tuple[str, ...]
    queries: Queries
    answers: IntArray
    scores_BCS: Floats
    there_BC: BoolArray
    relations: int
    unseen_N: BoolArray
    confident: float

    @classmethod
    def drawn(
        cls, ranker: Ranker, task: RankingTask, names: Sequence[str], advance: Advance, batch_size: int = 64
    ) -> ValidationSample:
        """Draw the sample of a task in one pass, which several processes share."""
        pool, world = ranker.pool(task.ids), sharing()
        share = task.share(world)
        distinct = task.distinct[share]
        tell = partial(advance, "choosing weights")
        best = []
        for own, _, signal_scores in ranker.signal_scores(
            distinct, pool, batch_size=batch_size, by=tuple(names)
        ):
            best += [(part.at, *_best(ranker, task, part, signal_scores)) for part in task.parts(share[own])]
            tell(len(own), len(distinct))
        parts = [part for of_one in world.gathered(best) for part in of_one]
        confident = ranker.reader.settings.training.temperature
        relations, unseen_N = len(ranker.context.relations), ranker.context.unseen_N
        return cls.joined(names, task.queries, task.answers, parts, relations, unseen_N, confident)

    @classmethod
    def joined(
        cls,
        names: Sequence[str],
        queries: Queries,
        answers: IntArray,
        parts: Iterable[tuple[IntArray, Floats, BoolArray]],
        relations: int,
        unseen_N: BoolArray,
        confident: float = 1.0,
    ) -> ValidationSample:
        """Join parts: which queries, signal scores of their candidates, and which of these are there."""
        parts = list(parts)
        width = max((columns.shape[1] for _, _, columns in parts), default=1)
        scores_BCS = np.zeros((len(queries), width, len(names)), np.float32)
        there_BC = np.zeros(scores_BCS.shape[:2], np.bool_)
        for at, scores_bCS, there_bC in parts:
            scores_BCS[at, : there_bC.shape[1]] = scores_bCS
            there_BC[at, : there_bC.shape[1]] = there_bC
        return cls(tuple(names), queries, answers, scores_BCS, there_BC, relations, unseen_N, confident)

    def summed(self, name: str, parts: Mixture) -> ValidationSample:
        """A copy with one signal more, the weighted sum of others."""
        columns = [self.names.index(part) for part in parts.signals]
        weight_BS = np.stack([parts.of(part, self.queries) for part in parts.signals], 1)
        sum_BC = np.einsum("bcs,bs->bc", self.scores_BCS[:, :, columns], weight_BS)
        scores_BCS = np.concatenate([self.scores_BCS, sum_BC[:, :, None]], 2)
        return replace(self, names=(*self.names, name), scores_BCS=scores_BCS)

    def fitted(self, names: Sequence[str], of_B: BoolArray, *, by_relation: bool = True) -> Mixture:
        """The weights of some signals that make the answers of some queries most likely.

        Args:
            by_relation: else one weight per signal.
        """
        rows = np.flatnonzero(of_B & self.there_BC[:, 0])
        queries = self.queries[rows]
        kinds_G, kind_B = np.unique(2 * queries.relation_B + queries.side_B, return_inverse=True)
        columns = [self.names.index(name) for name in names]
        scores_BCS, there_BC = self.scores_BCS[rows][:, :, columns], self.there_BC[rows]
        spread_S, signed_S = spreads(scores_BCS[there_BC]), np.array([is_signed(name) for name in names])
        all_S, own_GS = _most_likely(
            (scores_BCS / spread_S).astype(np.float32),
            there_BC,
            kind_B,
            len(kinds_G) if by_relation else 0,
            signed_S,
        )
        unit_S = self.confident / spread_S
        average_S = unit_S * _weights(all_S, signed_S)
        table_R2S = np.broadcast_to(average_S, (self.relations, 2, len(names))).copy()
        if by_relation:
            table_R2S[kinds_G // 2, kinds_G % 2] = unit_S * _weights(all_S + own_GS, signed_S)
        tables = {name: table_R2S[:, :, s].astype(np.float32) for s, name in enumerate(names)}
        return Mixture(tables, {name: float(average_S[s]) for s, name in enumerate(names)})


def _best(
    ranker: Ranker, task: RankingTask, part: Part, signal_scores: SignalScores
) -> tuple[Floats, BoolArray]:
    """Signal scores ``(b, C, S)`` of the answers and of the best others, and which are there ``(b, C)``."""
    queries, rows_b = task.queries[part.at], np.arange(len(part.at))
    scores_SbN = [scores_dN[part.group] for scores_dN in signal_scores.values()]
    # 1) what competes: what can answer, and no known triple has
    blocked_bN = ranker.possible.applied(np.zeros_like(scores_SbN[0]), queries, task.ids) < 0
    if task.ids is None:
        blocked_bN |= ~task.member_N
    impossible_b1 = blocked_bN[rows_b, part.answers][:, None]
    blocked_bN[part.known] = True
    blocked_bN[rows_b, part.answers] = True
    # 2) the best of them by each signal, each once
    most = min(BEST, blocked_bN.shape[1])
    ranking = [x for name, x in zip(signal_scores, scores_SbN, strict=True) if not is_signed(name)]
    best = [highest(np.where(blocked_bN, np.float32(-np.inf), x), most)[1] for x in ranking]
    best_bC = np.sort(np.concatenate(best, 1), 1)
    there_bC = ~np.take_along_axis(blocked_bN, best_bC, 1)
    there_bC[:, 1:] &= best_bC[:, 1:] != best_bC[:, :-1]
    # 3) the answer goes first
    there_bC = np.concatenate([np.ones_like(impossible_b1), there_bC], 1) & ~impossible_b1
    best_bC = np.concatenate([part.answers[:, None], best_bC], 1)
    scores_bCS = np.stack([np.take_along_axis(x, best_bC, 1) for x in scores_SbN], 2)
    return np.where(there_bC[..., None], scores_bCS, np.float32(0)), there_bC


def _weights(fitted_S: FloatArray, signed_S: BoolArray) -> FloatArray:
    """Weights ``(..., S)`` of what is fitted: logarithms, but for signed signals the weights themselves."""
    return np.where(signed_S, fitted_S, np.exp(np.where(signed_S, 0, fitted_S)))


def _most_likely(
    scores_BCS: Floats, there_BC: BoolArray, kind_B: IntArray, kinds: int, signed_S: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Logarithms of weights ``(S,)`` and what each of G kinds of queries adds ``(G, S)``, by L-BFGS; for
    signed signals the weights themselves.

    Args:
        kinds: how many there are; 0 is one weight for all.
    """
    from scipy.optimize import minimize

    signals = scores_BCS.shape[2]
    # By kind, so that one block of candidates has the same weights; without those that are not there.
    order_B = np.argsort(kind_B, kind="stable") if kinds else np.arange(len(kind_B))
    if not len(order_B):
        return np.zeros(signals), np.zeros((kinds, signals))
    there_BC = there_BC[order_B]
    scores_TS = scores_BCS[order_B][there_BC].astype(np.float64)
    count_B = there_BC.sum(1)
    first_B = np.cumsum(count_B) - count_B  # the answers
    starts = np.searchsorted(kind_B[order_B], np.arange(kinds)) if kinds else np.zeros(1, np.int64)
    bounds = [*first_B[starts].tolist(), len(scores_TS)]
    blocks = [slice(*bound) for bound in itertools.pairwise(bounds)]

    def cost(flat: FloatArray) -> tuple[float, FloatArray]:
        log_S, own_GS = flat[:signals], flat[signals:].reshape(kinds, signals)
        weight_GS = _weights(log_S + own_GS if kinds else log_S[None], signed_S)
        logits_T = np.concatenate([scores_TS[at] @ w_S for at, w_S in zip(blocks, weight_GS, strict=True)])
        top_B = np.maximum.reduceat(logits_T, first_B)
        share_T = np.exp(logits_T - np.repeat(top_B, count_B))
        sum_B = np.add.reduceat(share_T, first_B)
        value = SHRINKAGE * (own_GS**2).sum() + REGULARIZATION * (log_S**2).sum()
        value += float((np.log(sum_B) + top_B - logits_T[first_B]).sum())
        share_T /= np.repeat(sum_B, count_B)
        share_T[first_B] -= 1
        slope_GS = np.stack([share_T[at] @ scores_TS[at] for at in blocks])
        slope_GS *= np.where(signed_S, 1.0, weight_GS)
        own_slope_GS = 2 * SHRINKAGE * own_GS + (slope_GS if kinds else 0)
        return value, np.concatenate([slope_GS.sum(0) + 2 * REGULARIZATION * log_S, own_slope_GS.ravel()])

    count = signals * (1 + kinds)
    # Run to convergence, so that the weights hardly depend on how queries were batched.
    fit = minimize(
        cost, np.zeros(count), jac=True, method="L-BFGS-B", bounds=[(-FAR, FAR)] * count, options=_CLOSELY
    )
    return fit.x[:signals], fit.x[signals:].reshape(kinds, signals)


silent = Watcher()
TEXT = ("likelihood", "vector")  # signals of the text model, which training weighs


class Folds(NamedTuple):
    """Weights fitted on all triples, and on each half of them, by which the other half is measured."""

    whole: Mixture
    odd: Mixture
    even: Mixture

    @classmethod
    def same(cls, mixture: Mixture) -> Folds:
        """The same weights for all folds: no triple has chosen them."""
        return cls(mixture, mixture, mixture)

    def weighed_as(self, name: str, other: Mixture) -> Folds:
        """A copy with the weights of a signal that another mixture has."""
        return Folds(*(m.weighed(name, other.tables[name], other.averages[name]) for m in self))

    def damped(self, damping: Mapping[str, float]) -> Folds:
        """Multiply the weights of some signals by a factor each."""
        return Folds(*(mixture.damped(damping) for mixture in self))

    @classmethod
    def fitted(
        cls,
        sample: ValidationSample,
        names: Sequence[str],
        tell: Callable[[], None] = lambda: None,
        *,
        by_relation: bool = True,
    ) -> Folds:
        """The weights of some signals; ``tell`` is called after each fit.

        Those of the text are fitted first, and the others beside the weighted sum of the text: so a run's
        text alone ranks as well as it can, whatever is beside it.
        """
        return cls._of_halves(sample, partial(fitted_weights, sample, names, by_relation=by_relation), tell)

    @classmethod
    def refitted(cls, sample: ValidationSample, names: Sequence[str], before: Mixture) -> Folds:
        """The weights of some signals, as of :func:`refitted`."""
        return cls._of_halves(sample, lambda of_B: refitted(sample, names, of_B, before))

    @classmethod
    def _of_halves(
        cls,
        sample: ValidationSample,
        fit: Callable[[BoolArray], Mixture],
        tell: Callable[[], None] = lambda: None,
    ) -> Folds:
        odd_B = odd_answers(sample.queries, sample.answers)
        every_B, mixtures = np.ones(len(odd_B), np.bool_), []
        divided = odd_B.any() and not odd_B.all()
        for of_B in (every_B, odd_B, ~odd_B) if divided else 3 * (every_B,):
            mixtures.append(fit(of_B))
            tell()
        return cls(*mixtures)


def fitted_weights(
    sample: ValidationSample, names: Sequence[str], of_B: BoolArray, *, by_relation: bool = True
) -> Mixture:
    """The weights of some signals by some queries, those of the text fitted without the others.

    The weights of unseen candidates are fitted to queries about entities that training has, together with the
    other weights for these queries. Queries about unseen entities keep the weights fitted to all queries,
    with none for unseen candidates: they are too few to fit one (:func:`_damped_of_new`).
    """
    if Unseen.name in names:
        others = [name for name in names if name != Unseen.name]
        all_queries = fitted_weights(sample, others, of_B, by_relation=by_relation) if others else None
        known_B = of_B & ~sample.unseen_N[sample.queries.entity_B]
        known = _fitted(sample, names, known_B, by_relation=by_relation)
        return replace(known, of_unseen=all_queries, unseen_N=sample.unseen_N) if all_queries else known
    return _fitted(sample, names, of_B, by_relation=by_relation)


def refitted(sample: ValidationSample, names: Sequence[str], of_B: BoolArray, before: Mixture) -> Mixture:
    """The weights of some signals by some queries, fitted as those of ``before`` were: damped as
    much, and with its neutral weights of unseen entities.
    """
    if Unseen.name in names and _is_neutral(before):
        others = [name for name in names if name != Unseen.name]
        return _neutral(fitted_weights(sample, others, of_B), before, sample.unseen_N)
    fitted = fitted_weights(sample, names, of_B).damped(before.damping)
    if fitted.of_unseen is None or before.of_unseen is None or Unseen.name not in before.of_unseen.tables:
        return fitted
    return replace(fitted, of_unseen=_weighed_as(fitted.of_unseen, before.of_unseen))


def _weighed_as(mixture: Mixture, other: Mixture) -> Mixture:
    """A mixture with the weights of unseen candidates that another one has."""
    return mixture.weighed(Unseen.name, other.tables[Unseen.name], other.averages[Unseen.name])


def _neutral(bare: Mixture, neutral: Mixture, unseen_N: BoolArray) -> Mixture:
    """A mixture with neutral weights of unseen candidates, but for queries about unseen entities."""
    return replace(_weighed_as(bare, neutral), of_unseen=bare.evenly(Unseen.name, 0.0), unseen_N=unseen_N)


def _is_neutral(mixture: Mixture) -> bool:
    """Return whether all queries have the same weights but for those of unseen candidates."""
    return set(mixture.differing) <= {Unseen.name}


def _fitted(sample: ValidationSample, names: Sequence[str], of_B: BoolArray, *, by_relation: bool) -> Mixture:
    text, beside = ([n for n in names if (n in TEXT) == own] for own in (True, False))
    if not (len(text) > 1 and beside):
        return sample.fitted(names, of_B, by_relation=by_relation)
    parts = sample.fitted(text, of_B, by_relation=by_relation)
    whole = sample.summed("text", parts).fitted(["text", *beside], of_B, by_relation=by_relation)
    return whole.opened("text", parts)


def weigh(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Advance = silent,
    batch_size: int = 64,
    *,
    among: int = 0,
) -> tuple[Mixture, dict[str, dict[str, float]]]:
    """Choose how much each signal counts, for each relation and side, and measure it.

    Args:
        advance: called with (what is being done, how many just were, how many there are).
        among: rank among the answers and so many other entities, and read no others; 0 is all.

    Raises:
        ConfigError: when the protocol asks or filters test triples.
        RunError: when no signal is trained.

    Returns:
        The mixture of all signals; and by stage, the text first and then each signal beside those before it,
        ``mrr``, ``hits_at_1`` and ``hits_at_10``, each half of the triples by weights that were fitted on the
        other; ``mrr_one_weight`` with the same weights for all relations; ``mrr_`` and its name by a signal
        alone, and ``half_`` half of its 95 % interval; ``mrr_text`` without the signal of the stage; and
        ``weight_...`` of the parts of the text.
    """
    task, stages = validation_task(graph, protocol, among), _stages(ranker)
    if not stages:
        raise RunError("the masked LM is not trained, and there is no other signal to weigh")
    *_, (last, names) = stages.items()
    if ranker.vectors is not None:
        unread = ranker.vectors.unread_of(task.ids)
        read_together(ranker.vectors, advance=lambda n: advance("reading entities", n, unread), ids=task.ids)
    if len(names) > 1:
        sample = ValidationSample.drawn(ranker, task, names, advance, batch_size)
    ways: dict[str, Folds] = {f"{name} alone": Folds.same(ranker.mixture.only(name)) for name in names}
    fits = 6 * sum(len(of) > 1 for of in stages.values())
    tell = partial(advance, "fitting weights", 1, fits)
    for stage, of in stages.items():
        fitted = len(of) > 1
        ways[stage] = Folds.fitted(sample, of, tell) if fitted else ways[f"{of[0]} alone"]
        ways[f"{stage} one"] = Folds.fitted(sample, of, tell, by_relation=False) if fitted else ways[stage]
    states_B = states_of(task.queries, task.answers, ranker.context.unseen_N)
    damped = _damped(ways[last]) if ways[last].whole.of_unseen else {}
    of_new: dict[str, Folds] = {}
    if damped and not measured_states(states_B)[UNSEEN_ANSWER]:
        neutral = neutral_weights(ranker, graph, task.distinct, damped["bare"].whole, batch_size)
        unseen_N = ranker.context.unseen_N
        ways[last] = Folds(*(_neutral(bare, neutral, unseen_N) for bare in damped["bare"]))
        damped = {}
    elif damped and measured_states(states_B)[UNSEEN_BOTH]:
        of_new = _damped_of_new(damped["bare"], ranker, graph, task.distinct, batch_size)
    reciprocal_B = measured(ranker, task, ways | damped | of_new, advance, batch_size)
    chosen = ways[last].whole
    if damped:
        odd_B, is_new_B = odd_answers(task.queries, task.answers), states_B >= UNSEEN_QUERY
        way, reciprocal_B[last] = best_way(
            {name: reciprocal_B[name] for name in damped}, states_B, odd_B, harmless=True
        )
        chosen = damped[way].whole
    if of_new and chosen.of_unseen is not None:
        by_new = {name: reciprocal_B[name][is_new_B] for name in ("bare", *of_new)}
        # whatever helps unseen candidates costs known ones a little
        way, by_choice_b = best_way(by_new, states_B[is_new_B], odd_B[is_new_B], harmless=False)
        reciprocal_B[last][is_new_B] = by_choice_b
        if way != "bare":
            chosen = replace(chosen, of_unseen=_weighed_as(chosen.of_unseen, of_new[way].whole))
    mrr = {name: float(found_B.mean()) for name, found_B in reciprocal_B.items()}
    figures = {stage: figures_of(reciprocal_B[stage]) for stage in stages}
    for before, (stage, of) in zip([None, *stages], stages.items(), strict=False):
        new = of if before is None else [stage]
        if len(of) > 1:
            figures[stage]["mrr_one_weight"] = mrr[f"{stage} one"]
            figures[stage] |= {f"mrr_{name}": mrr[f"{name} alone"] for name in new}
            alone = {name: reciprocal_B[f"{name} alone"] for name in new}
            figures[stage] |= {f"half_{name}": half_interval(of_B) for name, of_B in alone.items()}
        if before is not None:
            figures[stage]["mrr_text"] = mrr[before]
    if "text" in stages and len(stages["text"]) > 1:
        figures["text"] |= {f"weight_{n}": w for n, w in ways["text"].whole.averages.items()}
    if task.ids is not None:
        figures[last]["candidates"] = float(task.width)
    return chosen, figures


def _damped(folds: Folds) -> dict[str, Folds]:
    """All signals without unseen entities, and with their weights damped, by name."""
    bare = Folds(*(m.of_unseen.evenly(Unseen.name, 0.0) for m in folds if m.of_unseen))
    return {"bare": bare, **{f"{Unseen.name} * {f:g}": folds.damped({Unseen.name: f}) for f in DAMPING}}


def _damped_of_new(
    bare: Folds, ranker: Ranker, graph: KnowledgeGraph, queries: Queries, batch_size: int
) -> dict[str, Folds]:
    """Weights, by name, that move unseen candidates of queries about unseen entities more and more toward
    the ranks of their texts.
    """
    neutral = Folds(
        *(neutral_weights(ranker, graph, queries, m, batch_size, about_unseen=True) for m in bare)
    )
    return {f"neutral * {f:g}": neutral.damped({Unseen.name: f}) for f in DAMPING}


def _stages(ranker: Ranker) -> dict[str, list[str]]:
    """Return which signals are weighed together: those of the text, then one more each time."""
    text = [name for name in TEXT if name in ranker.signals and ranker.reader.settings.trains_text]
    known = [name for name in SIGNALS if name in ranker.signals]
    beside = [name for name in dict.fromkeys([*known, *ranker.signals]) if name not in TEXT]
    stages = {"text": text} if text else {}
    return stages | {name: [*text, *beside[: i + 1]] for i, name in enumerate(beside)}


def measured(
    ranker: Ranker, task: RankingTask, ways: Mapping[str, Folds], advance: Advance, batch_size: int
) -> dict[str, FloatArray]:
    """Reciprocal ranks ``(B,)`` by name, those of each half of the triples by what the other half chose.

    So no triple is measured by weights that were fitted on it.
    """
    tried = {id(mixture): mixture for way in ways.values() for mixture in (way.odd, way.even)}
    pool = ranker.pool(task.ids)
    ranks = ranked_by(
        ranker,
        task,
        len(tried),
        lambda queries, rows, signal_scores: (
            ranker.combined(queries, signal_scores, pool, m) for m in tried.values()
        ),
        partial(advance, "validating"),
        batch_size,
        tuple(dict.fromkeys(name for mixture in tried.values() for name in mixture.signals)),
    )
    by = {key: 1 / of.of_type("realistic") for key, of in zip(tried, ranks, strict=True)}
    odd_B = odd_answers(task.queries, task.answers)
    return {name: np.where(odd_B, by[id(way.even)], by[id(way.odd)]) for name, way in ways.items()}


class Refit(NamedTuple):
    """The current weights compared with newly fitted ones on a sample of validation.

    Attributes:
        mrr, half: MRR by the old weights, and half of its 95 % interval.
        gain: how much higher the MRR is by new weights, cross-fitted on the sample.
        least: half of the 95 % interval of the gain; a smaller gain may be chance.
    """

    mrr: float
    half: float
    gain: float
    least: float


def refit(ranker: Ranker, run: RunFolder, batch_size: int, watch: Watcher) -> Refit:
    """See whether the weights of a ranker still suit the graph of its run."""
    protocol = Protocol(split="valid", max_triples=CHECKED, side=run.settings.training.side)
    task = validation_task(run.graph, protocol)
    names = [name for name in ranker.mixture.signals if name in ranker.signals]
    with watch:
        ways = {"now": Folds.same(ranker.mixture)}
        if len(names) > 1:
            sample = ValidationSample.drawn(ranker, task, names, watch, batch_size)
            ways["again"] = Folds.refitted(sample, names, ranker.mixture)
        reciprocal_B = measured(ranker, task, ways, watch, batch_size)
    now_B = reciprocal_B["now"]
    gain_B = reciprocal_B.get("again", now_B) - now_B
    figures = (now_B.mean(), half_interval(now_B), gain_B.mean(), half_interval(gain_B))
    return Refit(*(round(float(x), 6) for x in figures))
