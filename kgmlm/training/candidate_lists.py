"""The best candidates of validation's queries, on which second stages and trees are chosen.

Each distinct query has a list of the best candidates of the earlier stages; known answers that are not asked
for are left out. Answers are split into two halves by the pair of the query's entity and the answer, so both
questions of a triple are in the same half. Whatever is fitted to one half, including the weights of signals,
is measured on the other.

Shapes: D distinct queries, d of them, K candidates of each, F numbers that are read of a candidate; B queries
with an answer each; S signals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kgmlm.core.arrays import BoolArray, FloatArray, Floats, IntArray
from kgmlm.core.processes import ALONE, ProcessGroup
from kgmlm.evaluation.task import RankingTask
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.pair_features import CandidateScores, blocks_of
from kgmlm.ranking.ranker import Mixture, Ranker, StageWeight
from kgmlm.ranking.second_stage import best_of, in_place
from kgmlm.training.states import states_of
from kgmlm.training.weights import ValidationSample, figures_of, odd_answers, refitted

STAGES = ("first", "second")
# Given some queries, their rows among all queries and their candidates (-1 for none), returns (d, K, F).
ReadCandidates = Callable[[Queries, IntArray, IntArray], Floats]


@dataclass(frozen=True, eq=False)
class CandidateLists:
    """The best candidates of D queries, best first.

    Attributes:
        candidates: their ids, and their scores by the earlier stages and by each signal; -1 for those that
            the next stage would not read.
        open_DK: which compete: answers that are asked for, and entities that complete no known triple.
        asked_DK: which are answers that are asked for.
        read_DKF: what was read of each.
        mixture: the weights that the scores were computed with.
        unseen_N: which entities have no training triple.
        confident: the factor by which training divides scores, and by which weights are multiplied.
    """

    queries: Queries
    candidates: CandidateScores
    open_DK: BoolArray
    asked_DK: BoolArray
    read_DKF: Floats
    mixture: Mixture
    unseen_N: BoolArray
    confident: float

    @property
    def scores_DK(self) -> Floats:
        """Scores by the stages before."""
        return self.candidates.scores_BK

    @property
    def wrong_DK(self) -> BoolArray:
        """Which compete and are no answers."""
        return self.open_DK & ~self.asked_DK

    @property
    def teaches_D(self) -> BoolArray:
        """Which have an answer and a wrong candidate."""
        return np.logical_and(self.asked_DK.any(1), self.wrong_DK.any(1))

    def take(self, rows: IntArray) -> CandidateLists:
        """Some of them."""
        return CandidateLists(
            self.queries[rows],
            self.candidates.take(rows),
            self.open_DK[rows],
            self.asked_DK[rows],
            self.read_DKF[rows],
            self.mixture,
            self.unseen_N,
            self.confident,
        )

    def among(self, of_DK: BoolArray) -> CandidateLists:
        """A copy in which only the candidates ``of_DK`` compete; other answers are left out, too."""
        return replace(self, open_DK=self.open_DK & of_DK, asked_DK=self.asked_DK & of_DK)

    def first(self, k: int) -> BoolArray:
        """Return which ``(D, K)`` a stage with this k would read: the k best that beat the next one."""
        there_DK, scores_DK = self.candidates.there_BK, self.scores_DK
        if k >= scores_DK.shape[1]:
            return there_DK
        return there_DK & ((scores_DK > scores_DK[:, k : k + 1]) | ~there_DK[:, k : k + 1])

    def weighed(self, mixture: Mixture) -> CandidateLists:
        """A copy by other weights; what second stages have added to scores stays."""
        now_DK, then_DK = (self.candidates.combined(by, self.queries) for by in (mixture, self.mixture))
        return replace(self.scored(self.scores_DK + (now_DK - then_DK)), mixture=mixture)

    def scored(self, scores_DK: Floats) -> CandidateLists:
        """A copy with other scores by the stages before."""
        return replace(self, candidates=self.candidates._replace(scores_BK=scores_DK))

    def weights_of(self, asks: ListQueries, of_B: BoolArray) -> Mixture:
        """The weights of signals fitted to some of the queries; a single signal keeps those of the lists."""
        names = tuple(self.candidates.signal_scores)
        if len(names) < 2:
            return self.mixture
        scores_DKS = np.stack([self.candidates.signal_scores[name] for name in names], 2)
        return refitted(self.sample(asks, names, scores_DKS), names, of_B, self.mixture)

    def sample(self, asks: ListQueries, names: Sequence[str], scores_DKS: Floats) -> ValidationSample:
        """The lists in the form that weights are fitted to: a query's answer first, then wrong candidates."""
        inside_B = asks.column_B >= 0
        scores_BKS = scores_DKS[asks.list_B]
        answer_B1S = np.take_along_axis(scores_BKS, np.maximum(asks.column_B, 0)[:, None, None], 1)
        wrong_BK = self.wrong_DK[asks.list_B] & inside_B[:, None]
        there_BC = np.concatenate([inside_B[:, None], wrong_BK], 1)
        scores_BCS = np.concatenate([answer_B1S, scores_BKS], 1)
        scores_BCS = np.where(there_BC[..., None], scores_BCS, np.float32(0))
        return ValidationSample(
            tuple(names), asks.queries, asks.answers, scores_BCS, there_BC, self.mixture.relations,
            self.unseen_N, self.confident,
        )  # fmt: skip

    def states_of(self, asks: ListQueries) -> IntArray:
        """The states of the asks ``(B,)``, as of :func:`~kgmlm.training.states.states_of`."""
        return states_of(asks.queries, asks.answers, self.unseen_N)

    def with_weight(self, stage_weight: StageWeight, read_DK: Floats, of_DK: BoolArray) -> Floats:
        """Scores after a second stage that moves some candidates ``of_DK``."""
        stays_DK = stage_weight.stays(self.queries, self.candidates.ids_BK, self.unseen_N) & of_DK
        after_DK = (self.scores_DK + np.where(of_DK, stage_weight.weight * read_DK, 0)).astype(np.float32)
        if not stays_DK.any():
            return after_DK
        nobody = np.float32(-np.inf)
        placed_DK = in_place(
            np.where(of_DK, self.scores_DK, nobody), np.where(of_DK, after_DK, nobody), stays_DK
        )
        return np.where(of_DK, placed_DK, after_DK)

    def ratio(self, asks: ListQueries, added_DK: Floats, of_B: BoolArray) -> float:
        """Compute the weight of a second stage relative to the earlier stages that makes the answers of some
        queries most likely.
        """
        both = self.sample(asks, STAGES, np.stack([self.scores_DK, added_DK], 2))
        averages = both.fitted(STAGES, of_B, by_relation=False).averages
        return averages["second"] / averages["first"]

    def reciprocal(
        self, asks: ListQueries, scores_DK: Floats, ahead_DK: BoolArray | None = None
    ) -> FloatArray:
        """Reciprocal ranks ``(B,)``: by the given scores for answers in their list, unchanged for the others.

        Args:
            ahead_DK: which stay ahead of the others.
        """
        inside_B = asks.column_B >= 0
        list_b, column_b = asks.list_B[inside_B], asks.column_B[inside_B]
        wrong_bK, own_b1 = self.wrong_DK[list_b], scores_DK[list_b, column_b][:, None]
        better_bK, equal_bK = scores_DK[list_b] > own_b1, scores_DK[list_b] == own_b1
        if ahead_DK is not None:
            ahead_bK, own_ahead_b1 = ahead_DK[list_b], ahead_DK[list_b, column_b][:, None]
            same_bK = ahead_bK == own_ahead_b1
            better_bK, equal_bK = (ahead_bK & ~own_ahead_b1) | (same_bK & better_bK), same_bK & equal_bK
        found_B = asks.reciprocal_B.copy()
        found_B[inside_B] = 1 / (1 + (wrong_bK & better_bK).sum(1) + (wrong_bK & equal_bK).sum(1) / 2)
        return found_B


class ListQueries(NamedTuple):
    """B queries with an answer each.

    Attributes:
        answers: ``(B,)``.
        list_B: of which list each is.
        column_B: the answer's place in it; -1 where it is not there.
        reciprocal_B: reciprocal ranks of the answers by the stages before.
    """

    queries: Queries
    answers: IntArray
    list_B: IntArray
    column_B: IntArray
    reciprocal_B: FloatArray

    @property
    def odd_B(self) -> BoolArray:
        """The asks ``(B,)`` of the odd half; pairs of the query's entity and the answer are dealt."""
        return odd_answers(self.queries, self.answers)

    def halves(self) -> tuple[BoolArray, BoolArray] | None:
        """The two halves, the odd one first; None where one has no answer in its list."""
        odd_B, inside_B = self.odd_B, self.column_B >= 0
        return (odd_B, ~odd_B) if all((inside_B & of_B).any() for of_B in (odd_B, ~odd_B)) else None

    def helped(
        self, first_B: FloatArray, reciprocal_B: FloatArray, states_B: IntArray, stage_weight: StageWeight
    ) -> FloatArray:
        """Reciprocal ranks with a stage for the queries that it is used for, without it for the others."""
        moves = [
            stage_weight.k > 0 and any(stage_weight.states[2 * unseen : 2 * unseen + 2]) for unseen in (0, 1)
        ]
        return np.where(np.array(moves)[states_B // 2], reciprocal_B, first_B)

    def figures(
        self, first_B: FloatArray, reciprocal_B: FloatArray, stage_weight: StageWeight
    ) -> dict[str, float]:
        """The figures of a choice, by reciprocal ranks without the stage and with it."""
        return {
            **figures_of(reciprocal_B),
            "k": stage_weight.k,
            "weight": stage_weight.weight,
            "mrr_first": float(first_B.mean()),
            "held": float((self.column_B >= 0).mean()),
        }


def read_lists(
    ranker: Ranker,
    task: RankingTask,
    most: int,
    read: ReadCandidates,
    width: int,
    advance: Callable[[int, int], None],
    batch_size: int = 64,
    world: ProcessGroup = ALONE,
) -> tuple[CandidateLists, ListQueries]:
    """The lists of all queries of a task.

    Args:
        ranker: with the stages before.
        most: K.
        read: reads candidates.
        width: F.
        world: the processes that share the queries.
    """
    distinct, most, share = task.distinct, min(most, len(task.member_N)), task.share(world)
    names = tuple(name for name in ranker.mixture.signals if name in ranker.signals)
    candidate_scores = CandidateScores.blank(names, (len(distinct), most))
    open_DK, asked_DK = np.zeros((2, len(distinct), most), np.bool_)
    list_B, column_B = np.zeros((2, len(task.queries)), np.int64)
    read_DKF, view = np.zeros((len(distinct), most, width), np.float32), task.view()
    for own, first in ranker.ranked(distinct[share], None, batch_size, lambda n: advance(n, len(distinct))):
        rows, queries = share[own], first.queries
        best, ids_dK = best_of(ranker.context, first, most)
        ids_dK = best.to_read(ids_dK)
        candidate_scores.put(rows, CandidateScores.of(first, best, ids_dK))
        for at in blocks_of(len(rows), batch_size):
            read_DKF[rows[at]] = read(queries[at], rows[at], ids_dK[at])
        open_DK[rows] = (ids_dK >= 0) & task.member_N[ids_dK] & ~_among(ids_dK, *task.known.lookup(queries))
        for part in task.parts(rows):
            view.rank(first.scores_BN, part)
            own_bK = ids_dK[part.group] == part.answers[:, None]
            list_B[part.at] = rows[part.group]
            column_B[part.at] = np.where(own_bK.any(1), own_bK.argmax(1), -1)
    scores = [candidate_scores.scores_BK, *candidate_scores.signal_scores.values(), read_DKF]
    arrays: list[npt.NDArray[Any]] = [candidate_scores.ids_BK, open_DK, *scores]
    for array in arrays:
        for at, values in world.gathered((share, array[share])):
            array[at] = values
    asking = task.groups.take(share)[0]
    list_B, column_B = world.filled(np.stack([list_B, column_B]), asking)
    world.filled(view.ranks_3B, asking)
    inside = column_B >= 0
    asked_DK[list_B[inside], column_B[inside]] = True
    confident = ranker.reader.settings.training.temperature
    lists = CandidateLists(
        distinct, candidate_scores, open_DK | asked_DK, asked_DK, read_DKF, ranker.mixture,
        ranker.context.unseen_N, confident,
    )  # fmt: skip
    return lists, ListQueries(
        task.queries, task.answers, list_B, column_B, 1 / view.result().of_type("realistic")
    )


def _among(ids_dK: IntArray, rows: IntArray, ids: IntArray) -> BoolArray:
    """Return which candidates are among entities given as (row, id) pairs."""
    count = max(int(ids_dK.max(initial=0)), int(ids.max(initial=0))) + 1
    key_dK = np.arange(len(ids_dK))[:, None] * count + ids_dK
    return np.isin(np.where(ids_dK >= 0, key_dK, -1), rows * count + ids)
