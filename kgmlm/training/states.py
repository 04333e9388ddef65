"""States: what training knows of a query's entity and of its answer, and choices that harm none of them.

Validation asks about known and new entities as it was drawn, and people may ask otherwise. So a choice is
used for the states in which validation says that it helps, and for none if it harms one beyond chance. Where
validation asks about no unseen answer, unseen candidates get a neutral weight instead of a fitted one.

Shapes: B queries with an answer each; N candidates, K of them; S states; R relations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from kgmlm.core.arrays import BoolArray, FloatArray, IntArray, highest
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.constraints import MISSED
from kgmlm.ranking.ranker import MAX_SCORES, STATES, Mixture, Ranker, StageWeight
from kgmlm.signals import SIGNALS
from kgmlm.signals.biencoder import Biencoder
from kgmlm.signals.unseen import Unseen

MEASURED = 20  # answers of a state by which validation says whether a choice helps it
NEUTRAL = 10  # best candidates by text, whose mean structural score a neutral unseen candidate gets
NEUTRAL_QUERIES = 200  # validation queries from which neutral weights are averaged
PRIOR_QUERIES = 5  # of the average relation that join a relation's own
UNSEEN_ANSWER, UNSEEN_QUERY, UNSEEN_BOTH = 1, 2, 3  # states: what training has no triple of
TEXTS = ("likelihood", "vector", "biencoder")  # signals that score entities by their texts


def states_of(queries: Queries, answers: IntArray, unseen_N: BoolArray) -> IntArray:
    """The state of queries and their answers ``(B,)``: 2 where training has no triple of the query's entity,
    and 1 more where it has none of the answer.
    """
    states_B: IntArray = 2 * unseen_N[queries.entity_B] + unseen_N[answers]
    return states_B


def measured_states(states_B: IntArray) -> BoolArray:
    """The mask ``(S,)`` of states with enough answers to say whether a choice helps them; the state with most
    answers always has enough.
    """
    counts_S = np.bincount(states_B, minlength=STATES)
    measured_S: BoolArray = counts_S >= max(1, min(MEASURED, int(counts_S.max(initial=0))))
    return measured_S


def harms(gain_B: FloatArray, states_B: IntArray) -> bool:
    """Return whether gains in reciprocal rank are below 0 in some state, by more than half of the 95 %
    interval of their mean.
    """
    gains = [gain_B[states_B == state] for state in np.unique(states_B)]
    return any(gain.mean() < -1.96 * gain.std() / np.sqrt(len(gain)) for gain in gains)


def measured_weight(stage_weight: StageWeight, states_B: IntArray) -> StageWeight:
    """A weight that moves only the candidates of states with enough answers."""
    return replace(stage_weight, states=tuple(measured_states(states_B).tolist()))


def helpful_weight(stage_weight: StageWeight, gain_B: FloatArray, states_B: IntArray) -> StageWeight:
    """A weight that moves candidates in queries about known entities, or about unseen ones, where that gains
    and harms no state; if it does so for neither, a weight that moves no candidates.

    Args:
        stage_weight: as of :func:`measured_weight`.
        gain_B: in reciprocal rank, cross-fitted, by that weight.
    """
    helped = [False, False]
    for unseen in (0, 1):
        of_B = states_B // 2 == unseen
        gain = gain_B[of_B]
        helped[unseen] = bool(of_B.any() and gain.mean() > 0 and not harms(gain, states_B[of_B]))
    states = tuple(
        is_measured and helped[state // 2] for state, is_measured in enumerate(stage_weight.states)
    )
    return replace(stage_weight, states=states) if any(states) else StageWeight(0, 0.0)


def best_way(
    ways: Mapping[str, FloatArray], states_B: IntArray, odd_B: BoolArray, *, harmless: bool
) -> tuple[str, FloatArray]:
    """Choose the way of scoring with the best MRR.

    The MRR is averaged over the states with enough answers, since how often validation asks about a state
    says little about how often people will.

    Args:
        ways: cross-fitted reciprocal ranks ``(B,)`` by name.
        odd_B: which are in the odd half.
        harmless: choose among those that harm no state beside the first way.

    Returns:
        The choice by all triples; and reciprocal ranks, those of each half by what the other half chose.
    """
    first_B, *_ = ways.values()

    def choose(of_B: BoolArray) -> str:
        states_b = states_B[of_B]
        of_states = [states_b == state for state in np.flatnonzero(measured_states(states_b))]
        allowed = [
            name for name, by_B in ways.items() if not harmless or not harms((by_B - first_B)[of_B], states_b)
        ]
        return max(allowed, key=lambda name: sum(float(ways[name][of_B][mask].mean()) for mask in of_states))

    crossed_B = np.where(odd_B, ways[choose(~odd_B)], ways[choose(odd_B)])
    return choose(np.ones_like(odd_B)), crossed_B


def neutral_weights(
    ranker: Ranker,
    graph: KnowledgeGraph,
    queries: Queries,
    mixture: Mixture,
    batch_size: int = 64,
    *,
    about_unseen: bool = False,
) -> Mixture:
    """Weights that rank an unseen candidate where its text would.

    Signals that know only training (rules, types, KGE, linked pairs, similar entities) raise the candidates
    that they know. An unseen one instead gets what they give, on average, to the best of the others
    by text.

    Args:
        queries: distinct ones of validation; a seeded sample is asked.
        mixture: the weights of the other signals.
        about_unseen: ask those about unseen entities instead of those about the others.

    Returns:
        A copy with those of unseen entities, 0 where no signal reads texts.
    """
    structural = [n for n in mixture.signals if n in SIGNALS and SIGNALS[n].transductive]
    others = [n for n in mixture.signals if n not in (*structural, Unseen.name)]
    queries = queries[np.flatnonzero(ranker.context.unseen_N[queries.entity_B] == about_unseen)]
    if not (set(others) & set(TEXTS)) or not structural or not len(queries):
        return mixture.evenly(Unseen.name, 0.0)
    most = max(1, min(NEUTRAL_QUERIES, MAX_SCORES // len(ranker.context.entities)))
    queries = queries[np.sort(np.random.default_rng(0).permutation(len(queries))[:most])]
    # 1) An entity that nobody has seen, as the structural signals score it beside the others
    known = graph.entities.index
    label = next(f"unseen {n}" for n in range(len(known) + 1) if f"unseen {n}" not in known)
    bare = ranker.replace(signals={name: ranker.signals[name] for name in structural}, stages={})
    probed = bare.for_graph(graph.extended(EntityTable([label], [label])).context)
    if isinstance(biencoder := ranker.signals.get(Biencoder.name), Biencoder):  # it has no text to be read
        texts_ND = np.pad(biencoder.texts_ND, ((0, 1), (0, 0)))
        signals = {name: signal.with_texts(lambda: texts_ND) for name, signal in probed.signals.items()}
        probed = probed.replace(signals=signals)
    by_structure_BN = np.zeros((len(queries), len(known) + 1), np.float32)
    for rows, _, scores in probed.signal_scores(queries, batch_size=batch_size, by=tuple(structural)):
        by_structure_BN[rows] = mixture.combine(scores, queries[rows])
    offset_B = np.zeros(len(queries))
    for rows, _, scores in ranker.signal_scores(queries, batch_size=batch_size, by=tuple(others)):
        some = queries[rows]
        # 2) The best of the others by text, which compete: no answers of training, and what can answer
        by_text_bN = ranker.possible.applied(mixture.combine(scores, some), some)
        by_text_bN[ranker.context.answers.lookup(some)] = -np.inf
        by_text_bN[:, ranker.context.unseen_N] = -np.inf
        values_bK, best_bK = highest(by_text_bN, min(NEUTRAL, by_text_bN.shape[1]))
        there_bK = values_bK > MISSED
        # 3) What they have by structure beyond the unseen one
        best_by_bK = np.take_along_axis(by_structure_BN[rows], best_bK, 1)
        more_bK = np.where(there_bK, best_by_bK - by_structure_BN[rows, -1:], 0)
        offset_B[rows] = more_bK.sum(1) / np.maximum(1, there_bK.sum(1))
    average, kinds = float(offset_B.mean()), 2 * mixture.relations
    sums = np.bincount(queries.kind_B, offset_B, kinds) + PRIOR_QUERIES * average
    table = sums / (np.bincount(queries.kind_B, minlength=kinds) + PRIOR_QUERIES)
    return mixture.weighed(Unseen.name, table.reshape(-1, 2), average)
