"""Trees as a second stage: gradient-boosted trees rank the best candidates again by their features.

The trees are fitted on validation (`kgmlm tune RUN --add trees`, :mod:`kgmlm.training.trees`) by LightGBM's
LambdaRank (Burges, 2010; Ke et al., 2017), kept as arrays and evaluated here by NumPy, so that a run ranks
where LightGBM is not installed. Leaves are found as in QuickScorer (Lucchese et al., 2015): those of a tree
are numbered from left to right, each split that sends a pair to the right rules out the leaves on its left,
and the first that remains is the pair's.

Shapes: B queries, K candidates of each, P pairs, F features, T trees of a forest, M splits and L = M + 1
leaves of a tree at most.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from kgmlm.core import files
from kgmlm.core.arrays import BoolArray, FloatArray, Floats, IntArray
from kgmlm.core.errors import RunError, first_line
from kgmlm.graphs.queries import Queries, parts_of_pairs
from kgmlm.ranking.pair_features import CandidateScores, PairFeatures, blocks_of, group_of
from kgmlm.ranking.ranker import FirstStage, Ranker, StageWeight
from kgmlm.ranking.second_stage import Best, Used, best_of

MAX_LEAVES = 16  # of a tree: they are the bits of a number
SPLIT_BATCH = 2**24  # splits evaluated together, over all pairs
FORESTS = ("whole", "even", "odd")  # fitted to all queries of validation, and to each half of them


class Forest(NamedTuple):
    """Trees: their splits and leaves.

    A split sends pairs whose feature is above its threshold to the right. It stands over the leaves from
    ``first`` to before ``last``, of which those before ``middle`` are on its left. Where a tree has fewer
    splits than M, the threshold of the others is infinite.

    Attributes:
        feature_TM, threshold_TM: of each split.
        first_TM, middle_TM, last_TM: leaves, as said.
        value_TL: what each leaf adds to the score.
        weight_TL: how many pairs of the fit ended in each leaf.
    """

    feature_TM: IntArray
    threshold_TM: FloatArray
    first_TM: IntArray
    middle_TM: IntArray
    last_TM: IntArray
    value_TL: Floats
    weight_TL: Floats

    def check(self, features: int) -> None:
        """See that these can be trees.

        Raises:
            ValueError: where they cannot.
        """
        kinds = (np.int64, np.float64, np.int64, np.int64, np.int64, np.float32, np.float32)
        trees, splits = self.feature_TM.shape
        shapes = 5 * ((trees, splits),) + 2 * ((trees, splits + 1),)
        arrays: tuple[npt.NDArray[Any], ...] = tuple(self)
        for array, kind, shape in zip(arrays, kinds, shapes, strict=True):
            if array.dtype != kind or array.shape != shape:
                raise ValueError("its arrays do not have the types and shapes of trees")
        if not 1 <= splits < MAX_LEAVES:
            raise ValueError(f"a tree has 2 to {MAX_LEAVES} leaves")
        inside = self.threshold_TM < np.inf
        first, middle, last = (x[inside] for x in (self.first_TM, self.middle_TM, self.last_TM))
        ordered = (first >= 0) & (first < middle) & (middle < last) & (last <= splits + 1)
        known = (self.feature_TM >= 0) & (self.feature_TM < features)
        finite = np.isfinite(self.value_TL).all() and np.isfinite(self.weight_TL).all()
        numbers = finite and (self.weight_TL >= 0).all() and not np.isnan(self.threshold_TM).any()
        if not (ordered.all() and known.all() and numbers):
            raise ValueError("its splits or leaves cannot be those of trees")

    def scores(self, features_PF: Floats) -> Floats:
        """The sums of the leaves that pairs end in, ``(P,)``."""
        scores_P = np.zeros(len(features_PF), np.float32)
        size = max(1, SPLIT_BATCH // max(1, self.feature_TM.size))
        for start in range(0, len(scores_P), size):
            leaf_TP = self._leaves(features_PF[start : start + size])
            scores_P[start : start + size] = np.take_along_axis(self.value_TL, leaf_TP, 1).sum(0)
        return scores_P

    def _leaves(self, features_PF: Floats) -> IntArray:
        """The leaf of each tree that each pair ends in ``(T, P)``."""
        trees, splits = self.feature_TM.shape
        right = features_PF.T[self.feature_TM.ravel()] > self.threshold_TM.ravel()[:, None]
        on_left = ((1 << self.middle_TM) - (1 << self.first_TM)).astype(np.uint16).ravel()
        ruled_out = np.where(right, on_left[:, None], np.uint16(0)).reshape(trees, splits, -1)
        left_TP = ~np.bitwise_or.reduce(ruled_out, 1)
        lowest_TP = left_TP & (~left_TP + np.uint16(1))
        exponent_TP = np.frexp(lowest_TP.astype(np.float32))[1]
        leaves_TP: IntArray = exponent_TP.astype(np.int64) - 1
        return leaves_TP

    def contributions(self, features_PF: Floats) -> Floats:
        """Compute how much each feature adds to the score of each pair ``(P, F)``.

        On the way to its leaf each split moves the mean of the leaves that are still possible; that is the
        contribution of its feature (Saabas, 2014). They sum up to the score less the mean score of the fit.
        """
        leaf_TP, trees = self._leaves(features_PF), len(self.feature_TM)
        sums_TL1, weights_TL1 = (
            np.concatenate([np.zeros((trees, 1)), np.cumsum(x, 1, dtype=np.float64)], 1)
            for x in (self.value_TL * self.weight_TL, self.weight_TL)
        )

        def mean(begin_TM: IntArray, end_TM: IntArray) -> FloatArray:
            total, weight = (
                np.take_along_axis(x, end_TM, 1) - np.take_along_axis(x, begin_TM, 1)
                for x in (sums_TL1, weights_TL1)
            )
            means: FloatArray = total / np.maximum(weight, 1e-12)
            return means

        mean_TM = mean(self.first_TM, self.last_TM)
        to_left_TM = mean(self.first_TM, self.middle_TM) - mean_TM
        to_right_TM = mean(self.middle_TM, self.last_TM) - mean_TM
        parts_PF = np.zeros(features_PF.shape, np.float32)
        for pair, leaf_T in enumerate(leaf_TP.T):
            leaf_T1 = leaf_T[:, None]
            passed_TM = (self.first_TM <= leaf_T1) & (leaf_T1 < self.last_TM) & (self.threshold_TM < np.inf)
            moved_TM = np.where(leaf_T1 < self.middle_TM, to_left_TM, to_right_TM)
            np.add.at(parts_PF[pair], self.feature_TM[passed_TM], moved_TM[passed_TM])
        return parts_PF


@dataclass(frozen=True, eq=False)
class Trees(Used):
    """Trees over the features of the best candidates (``kgmlm tune --add trees``).

    Attributes:
        names: of the features.
        forests: one fitted to all queries that validation asks, and one to each half of them.
        unseen: score each query by the forest of the other half.
    """

    name: ClassVar[str] = "trees"
    names: tuple[str, ...]
    forests: Mapping[str, Forest]
    unseen: bool = False

    def of_unseen(self) -> Self:
        """A copy that scores queries of validation as it will score new ones."""
        return replace(self, unseen=True)

    def reranked(
        self,
        ranker: Ranker,
        first: FirstStage,
        batch_size: int = 64,
        advance: Callable[[int, int], None] = lambda n, total: None,
    ) -> FirstStage:
        """See :class:`~kgmlm.ranking.ranker.SecondStage`."""
        if not self.stage_weight.k or not len(first.queries):
            return first
        best, ids_BK = best_of(ranker.context, first, self.stage_weight.k)
        ids_BK = best.to_read(ids_BK)
        features_BKF = self.features(ranker, first, best, ids_BK, batch_size)
        trees_BK = self.scores(first.queries, ids_BK, features_BKF)
        stays_BK = self.stage_weight.stays(first.queries, ids_BK, ranker.context.unseen_N)
        trees_BK = best.with_places(trees_BK, self.stage_weight.weight, stays_BK)
        return first.with_scores(best.reranked(first.scores_BN, trees_BK, self.stage_weight.weight))

    def features(
        self, ranker: Ranker, first: FirstStage, best: Best, ids_BK: IntArray, batch_size: int = 64
    ) -> Floats:
        """The features of the best candidates ``(B, K, F)``.

        Args:
            first: after the stages before.
            ids_BK: of these; -1 where there is none.

        Raises:
            RunError: where the ranker has other features than the trees were fitted to.
        """
        kept: PairFeatures | None = vars(self).get("_kept")
        if kept is None or not kept.fits(ranker):
            kept = vars(self)["_kept"] = PairFeatures(ranker, kept)
        if kept.names != self.names:
            again = "`kgmlm tune RUN --add trees` fits them again"
            raise RunError(f"the trees were fitted to other signals; {again}")
        candidates = CandidateScores.of(first, best, ids_BK)
        features_BKF = np.zeros((*ids_BK.shape, len(self.names)), np.float32)
        for rows in blocks_of(len(first.queries), batch_size):
            features_BKF[rows] = kept.of(first.queries[rows], candidates.take(rows), ranker.mixture)
        return features_BKF

    def scores(self, queries: Queries, ids_BK: IntArray, features_BKF: Floats) -> Floats:
        """The trees' scores ``(B, K)`` of candidates; those of validation by the trees of the other half."""

        def of(forest: str) -> Floats:
            flat_P = self.forests[forest].scores(features_BKF.reshape(-1, features_BKF.shape[2]))
            return flat_P.reshape(features_BKF.shape[:2])

        if not self.unseen:
            return of("whole")
        return np.where(odd_pairs(queries, ids_BK), of("even"), of("odd"))

    def parts(self, ranker: Ranker, queries: Queries) -> dict[int, dict[str, float]]:
        """Compute how much each group of features adds to the scores of the best candidates of one query.

        Groups are as of :func:`~kgmlm.ranking.pair_features.group_of`; the sum is the score of the trees
        times their weight, less its mean over all candidates of the fit. Candidates that keep their places
        are left out.
        """
        ((_, first),) = ranker.without_stage(self.name).ranked(queries)
        best, ids_1K = best_of(ranker.context, first, self.stage_weight.k)
        ids_1K = best.to_read(ids_1K)
        features_1KF = self.features(ranker, first, best, ids_1K)
        (columns,) = np.nonzero(ids_1K[0] >= 0)
        added_PF = self.stage_weight.weight * self.forests["whole"].contributions(features_1KF[0, columns])
        moved = ~self.stage_weight.stays(queries, ids_1K, ranker.context.unseen_N)[0, columns]
        columns, added_PF = columns[moved], added_PF[moved]
        groups = [group_of(name) for name in self.names]
        sums = [dict.fromkeys(groups, 0.0) for _ in columns]
        for of, added_F in zip(sums, added_PF.tolist(), strict=True):
            for group, added in zip(groups, added_F, strict=True):
                of[group] += added
        return dict(zip(ids_1K[0, columns].tolist(), sums, strict=True))

    def save(self, path: Path) -> None:
        """Write the arrays as safetensors."""
        tensors = {
            f"{forest}.{name}": np.ascontiguousarray(array)
            for forest, of in self.forests.items()
            for name, array in zip(Forest._fields, of, strict=True)
        }
        names = np.frombuffer(json.dumps(self.names).encode(), np.uint8)
        files.write_tensors(path, {"features": names, **tensors})

    @classmethod
    def open(cls, path: Path, stage_weight: StageWeight) -> Trees:
        """Open what :meth:`save` wrote.

        Raises:
            RunError: when the file is damaged.
        """
        from safetensors.numpy import load_file

        try:
            tensors = load_file(path)
            names = json.loads(tensors["features"].tobytes())
            if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
                raise ValueError("it does not name its features")
            arrays = {of: [tensors[f"{of}.{name}"] for name in Forest._fields] for of in FORESTS}
            forests = {of: Forest(*parts) for of, parts in arrays.items()}
            for forest in forests.values():
                forest.check(len(names))
        except Exception as error:
            raise RunError(f"{path} cannot be read: {first_line(error)}") from None
        return cls(stage_weight, tuple(names), forests)


def odd_pairs(queries: Queries, ids_BK: IntArray) -> BoolArray:
    """Return which candidates ``(B, K)`` are in the odd half of all pairs, each with its query's entity."""
    odd_BK: BoolArray = parts_of_pairs(queries.entity_B[:, None], ids_BK) == 1
    return odd_BK
