"""Trees fitted on validation, by LightGBM's LambdaRank, to tell the answers among the best candidates.

Each query that validation asks is a list of the best candidates of the stages before, with the features of
:mod:`kgmlm.ranking.pair_features`; known answers that are not asked for are left out. The queries are in
two halves, by entity, relation and side. The figures are of each half by the trees, and by the weights of
signals, that were fitted to the other half; the trees that the run keeps are fitted to all.

Shapes: D distinct queries, K candidates of each, F features; B queries with an answer each; S signals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from kgmlm.core import machine
from kgmlm.core.arrays import BoolArray, FloatArray, IntArray
from kgmlm.core.config import Protocol
from kgmlm.core.errors import ConfigError, RunError, first_line
from kgmlm.core.progress import Advance, Watcher
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import FilterIndex, Queries
from kgmlm.ranking.pair_features import CandidateScores, Floats, PairFeatures, blocks_of
from kgmlm.ranking.ranker import Mixture, Ranker, Use
from kgmlm.ranking.second_stage import best_of
from kgmlm.ranking.trees import FORESTS, Forest, Trees, odd_half
from kgmlm.signals.base import REJECTED
from kgmlm.training.recipes import LARGE, LEAST
from kgmlm.training.second_stages import STAGES
from kgmlm.training.weights import ValidationSample, figures_of, fitted_weights, silent, validation_task

CANDIDATES = 100
ROUNDS = 300
AT_ONCE = 1024  # lists whose features are made at once
HOW: Mapping[str, Any] = {
    "objective": "lambdarank",
    "num_leaves": 15,
    "learning_rate": 0.05,
    "min_data_in_leaf": 50,
    "feature_fraction": 0.5,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "lambda_l2": 5.0,
    "lambdarank_truncation_level": 20,
    "seed": 0,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
}


def check_possible(graph: KnowledgeGraph) -> None:
    """See that trees can be fitted to a graph's validation triples.

    Raises:
        ConfigError: when LightGBM is not installed, or cannot be loaded.
        RunError: when there are too few validation triples.
    """
    if not machine.installed("lightgbm"):
        raise ConfigError("trees are fitted by LightGBM, which is not installed: pip install '.[trees]'")
    try:
        import lightgbm  # noqa: F401
    except OSError as error:  # it needs the OpenMP library of the system
        raise ConfigError(f"LightGBM, which fits trees, cannot be loaded: {first_line(error)}") from None
    if len(graph.entities) > LARGE:
        count = f"{len(graph.entities):,} entities"
        raise RunError(f"trees count the links of at most {LARGE:,} entities, and there are {count}")
    if (there := len(graph.splits["valid"])) < LEAST:
        raise RunError(f"trees are fitted to at least {LEAST} validation triples, and there are {there}")


def may_fit(graph: KnowledgeGraph, watch: Watcher) -> bool:
    """Return whether trees can be fitted; where not, say why."""
    try:
        check_possible(graph)
    except (ConfigError, RunError) as error:
        watch.tell(f"no trees: {error}")
        return False
    return True


@dataclass(frozen=True, eq=False)
class Lists:
    """The best candidates of D queries.

    Attributes:
        candidates: which, and their scores by the stages before and by each signal.
        open_DK: which compete: answers that are asked for, and what answers no known triple.
        asked_DK: which are answers that are asked for.
        stands_DK: for how many entities each stands: 1, more if it is known to be wrong.
        known_DKF: the features that do not depend on the weights of signals.
        mixture: the weights that the scores are by.
    """

    queries: Queries
    candidates: CandidateScores
    open_DK: BoolArray
    asked_DK: BoolArray
    stands_DK: Floats
    known_DKF: Floats
    mixture: Mixture

    @property
    def wrong_DK(self) -> BoolArray:
        """Return which compete and are no answers."""
        return self.open_DK & ~self.asked_DK

    @property
    def teaches_D(self) -> BoolArray:
        """Return which have an answer and a wrong candidate."""
        return np.logical_and(self.asked_DK.any(1), self.wrong_DK.any(1))

    def take(self, rows: IntArray) -> Lists:
        """Some of them."""
        return Lists(
            self.queries[rows],
            self.candidates.take(rows),
            self.open_DK[rows],
            self.asked_DK[rows],
            self.stands_DK[rows],
            self.known_DKF[rows],
            self.mixture,
        )

    def weighed(self, mixture: Mixture) -> Lists:
        """A copy by other weights; what second stages have added to scores stays."""
        now_DK, then_DK = (self.candidates.combined(by, self.queries) for by in (mixture, self.mixture))
        weighed = self.candidates._replace(scores_BK=self.candidates.scores_BK + (now_DK - then_DK))
        return replace(self, candidates=weighed, mixture=mixture)

    def features(self, of: PairFeatures) -> Floats:
        """The features ``(D, K, F)``."""
        parts = []
        for start in range(0, len(self.queries), AT_ONCE):
            some = self.take(np.arange(start, min(start + AT_ONCE, len(self.queries))))
            said = of.said(some.queries, some.candidates, some.mixture)
            parts.append(np.concatenate([said, some.known_DKF], 2))
        return np.concatenate(parts)


class Asks(NamedTuple):
    """B queries with an answer each.

    Attributes:
        list_B: of which list each is.
        column_B: the answer's place in it; -1 where it is not there.
        reciprocal_B: reciprocal ranks of the answers by the stages before.
    """

    queries: Queries
    list_B: IntArray
    column_B: IntArray
    reciprocal_B: FloatArray


def choose_trees(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Advance = silent,
    candidates: int | None = None,
    batch_size: int = 64,
) -> tuple[Trees | None, dict[str, float]]:
    """Fit trees to the best candidates of a ranker, and choose how much they count.

    Args:
        ranker: with the weights of its signals, and the second stages that come before.
        candidates: how many of the best are ranked again.

    Returns:
        The trees, None where those of one half do not help the other; and figures as of
        :func:`~kgmlm.training.second_stages.choose_reranking`, cross-fitted.

    Raises:
        ConfigError: when LightGBM is not installed, or the protocol asks or filters test triples.
        RunError: when there are too few validation triples.
    """
    check_possible(graph)
    ranker = ranker.without_stage(Trees.name)
    features = PairFeatures(ranker)
    lists, asks = _read(ranker, features, graph, protocol, advance, candidates or CANDIDATES, batch_size)
    odd_D = odd_half(lists.queries)
    if not all((lists.teaches_D & of_D).any() for of_D in (odd_D, ~odd_D)):
        return None, _figures(asks, asks.reciprocal_B, asks.reciprocal_B, Use(0, 0.0))
    tell = partial(advance, "fitting trees", 1, len(FORESTS) * ROUNDS)
    forests = {"whole": _fitted(lists, features, tell)}
    said_DKS = np.stack([lists.candidates.said[name] for name in features.signals], 2)
    # The weights of halves are on the scale of the run's.
    confident = ranker.reader.settings.training.temperature
    sample = _sample(lists, asks, features.signals, said_DKS, confident)
    scores_DK, added_DK = np.zeros((2, *lists.open_DK.shape), np.float32)
    for half, of_D in (("even", ~odd_D), ("odd", odd_D)):
        by_half = lists.weighed(fitted_weights(sample, features.signals, of_D[asks.list_B]))
        forests[half] = _fitted(by_half.take(np.flatnonzero(of_D)), features, tell)
        others = by_half.take(np.flatnonzero(~of_D))
        unseen_DKF = others.features(features)
        flat_P = forests[half].scores(unseen_DKF.reshape(-1, unseen_DKF.shape[2]))
        scores_DK[~of_D] = others.candidates.scores_BK
        added_DK[~of_D] = flat_P.reshape(unseen_DKF.shape[:2])
    use, figures = _chosen(lists, asks, scores_DK, added_DK)
    return (Trees(use, features.names, forests) if use.k else None), figures


def _read(
    ranker: Ranker,
    features: PairFeatures,
    graph: KnowledgeGraph,
    protocol: Protocol,
    advance: Advance,
    most: int,
    batch_size: int,
) -> tuple[Lists, Asks]:
    """The lists of all queries that a protocol asks of validation."""
    task = validation_task(graph, protocol)
    distinct, count = task.distinct, len(graph.entities)
    most = min(most, count)
    known = FilterIndex([graph.splits[split] for split in protocol.filter], count)
    rejected = FilterIndex(
        [graph.negatives[split] for split in ("train",) if split in graph.negatives], count
    )
    found = CandidateScores.blank(features.signals, (len(distinct), most))
    open_DK, asked_DK, rejected_DK = np.zeros((3, len(distinct), most), np.bool_)
    known_DKF = np.zeros((len(distinct), most, len(features.known_names)), np.float32)
    list_B, column_B = np.zeros((2, len(task.queries)), np.int64)
    view, tell = task.view(), partial(advance, "reading candidates")
    for rows, scores_dN, reading in ranker.scored(
        distinct, None, batch_size, lambda n: tell(n, len(distinct))
    ):
        best, ids_dK = best_of(ranker.context, distinct[rows], scores_dN, most, ranker.pool())
        ids_dK = best.to_read(ids_dK)
        for at in blocks_of(len(rows), batch_size):
            some = CandidateScores.of(ranker, reading.take(at), ids_dK[at], best.scores_BK[at])
            found.put(rows[at], some)
            known_DKF[rows[at]] = features.known(distinct[rows[at]], ids_dK[at])
        open_DK[rows] = (ids_dK >= 0) & ~_answers(known, distinct[rows], ids_dK)
        rejected_DK[rows] = _answers(rejected, distinct[rows], ids_dK)
        for part in task.parts(rows):
            view.rank(scores_dN, part)
            own_bK = ids_dK[part.group] == part.answers[:, None]
            list_B[part.at] = rows[part.group]
            column_B[part.at] = np.where(own_bK.any(1), own_bK.argmax(1), -1)
    inside = column_B >= 0
    asked_DK[list_B[inside], column_B[inside]] = True
    reciprocal_B = 1 / view.result().of_type("realistic")
    stands_DK = np.where(rejected_DK & ~asked_DK, np.float32(REJECTED), np.float32(1))
    lists = Lists(distinct, found, open_DK | asked_DK, asked_DK, stands_DK, known_DKF, ranker.mixture)
    return lists, Asks(task.queries, list_B, column_B, reciprocal_B)


def _answers(known: FilterIndex, queries: Queries, ids_dK: IntArray) -> BoolArray:
    """Return which candidates answer their query by known triples."""
    rows, answers = known.lookup(queries)
    keys_dK = np.arange(len(queries))[:, None] * known.num_entities + ids_dK
    return np.isin(keys_dK, rows * known.num_entities + answers)


def _fitted(lists: Lists, features: PairFeatures, tell: Callable[[], None]) -> Forest:
    """Trees fitted to lists, by those that have an answer and a wrong candidate."""
    import lightgbm

    lists = lists.take(np.flatnonzero(lists.teaches_D))
    data = lightgbm.Dataset(
        lists.features(features)[lists.open_DK],
        lists.asked_DK[lists.open_DK].astype(np.float32),
        group=lists.open_DK.sum(1),
        weight=lists.stands_DK[lists.open_DK],
        params=dict(HOW),
    )
    how = {**HOW, "num_threads": torch.get_num_threads()}
    found = lightgbm.train(how, data, ROUNDS, callbacks=[lambda _: tell()])
    return forest_of(found.dump_model())


def forest_of(dumped: Mapping[str, Any]) -> Forest:
    """The arrays of a model as LightGBM dumps it."""
    trees = [_tree(tree["tree_structure"]) for tree in dumped["tree_info"]]
    splits = max(1, *(len(tree.splits) for tree in trees))
    ints = np.zeros((4, len(trees), splits), np.int64)
    threshold_TM = np.full((len(trees), splits), np.inf)
    value_TL, weight_TL = np.zeros((2, len(trees), splits + 1), np.float32)
    for t, tree in enumerate(trees):
        for s, (feature, threshold, *leaves) in enumerate(tree.splits):
            ints[:, t, s], threshold_TM[t, s] = (feature, *leaves), threshold
        for leaf, (value, weight) in enumerate(tree.leaves):
            value_TL[t, leaf], weight_TL[t, leaf] = value, weight
    feature_TM, first_TM, middle_TM, last_TM = ints
    return Forest(feature_TM, threshold_TM, first_TM, middle_TM, last_TM, value_TL, weight_TL)


class _Tree(NamedTuple):
    """The splits of a tree as (feature, threshold, first, middle, last), its leaves as (value, weight)."""

    splits: list[tuple[int, float, int, int, int]]
    leaves: list[tuple[float, float]]


def _tree(root: Mapping[str, Any]) -> _Tree:
    """A tree of nested nodes, its leaves numbered from left to right."""
    found = _Tree([], [])

    def add(node: Mapping[str, Any]) -> tuple[int, int]:
        first = len(found.leaves)
        if "split_feature" in node:
            _, middle = add(node["left_child"])
            _, last = add(node["right_child"])
            found.splits.append((node["split_feature"], node["threshold"], first, middle, last))
        else:
            found.leaves.append((node["leaf_value"], node.get("leaf_count", 1)))
        return first, len(found.leaves)

    add(root)
    return found


def _sample(
    lists: Lists, asks: Asks, names: tuple[str, ...], scores_DKS: Floats, confident: float = 1.0
) -> ValidationSample:
    """The lists as weights are fitted to them: the answer of a query first, then wrong candidates."""
    inside_B = asks.column_B >= 0
    scores_BKS = scores_DKS[asks.list_B]
    answer_B1S = np.take_along_axis(scores_BKS, np.maximum(asks.column_B, 0)[:, None, None], 1)
    wrong_BK = lists.wrong_DK[asks.list_B] & inside_B[:, None]
    stands_BC = np.concatenate([inside_B[:, None], wrong_BK * lists.stands_DK[asks.list_B]], 1)
    scores_BCS = np.concatenate([answer_B1S, scores_BKS], 1)
    scores_BCS = np.where(stands_BC[..., None] > 0, scores_BCS, np.float32(0))
    relations = lists.mixture.relations
    stands_BC = stands_BC.astype(np.float32)
    return ValidationSample(names, asks.queries, scores_BCS, stands_BC, relations, confident)


def _chosen(lists: Lists, asks: Asks, scores_DK: Floats, added_DK: Floats) -> tuple[Use, dict[str, float]]:
    """Choose how much trees count, and measure each half by the choice of the other.

    Args:
        scores_DK, added_DK: of the stages before and of the trees, each by what was fitted to the other half.
    """
    odd_D = odd_half(lists.queries)
    sample = _sample(lists, asks, STAGES, np.stack([scores_DK, added_DK], 2))

    def weight(of_D: BoolArray) -> float:
        averages = sample.fitted(STAGES, of_D[asks.list_B], by_relation=False).averages
        return averages["second"] / averages["first"]

    weight_D1 = np.where(odd_D, weight(~odd_D), weight(odd_D))[:, None]
    crossed_DK = (scores_DK + weight_D1 * added_DK).astype(np.float32)
    first_B, crossed_B = (_reciprocal(lists, asks, x) for x in (scores_DK, crossed_DK))
    helps = crossed_B.mean() > first_B.mean()
    use = Use(lists.open_DK.shape[1], weight(np.ones(len(odd_D), np.bool_))) if helps else Use(0, 0.0)
    return use, _figures(asks, first_B, crossed_B if helps else first_B, use)


def _figures(asks: Asks, first_B: FloatArray, reciprocal_B: FloatArray, use: Use) -> dict[str, float]:
    """The figures of a choice, by reciprocal ranks without trees and with it."""
    return {
        **figures_of(reciprocal_B),
        "k": use.k,
        "weight": use.weight,
        "mrr_first": float(first_B.mean()),
        "held": float((asks.column_B >= 0).mean()),
    }


def _reciprocal(lists: Lists, asks: Asks, scores_DK: Floats) -> FloatArray:
    """Reciprocal ranks ``(B,)``: of answers in their list by some scores, of others as they were."""
    inside_B = asks.column_B >= 0
    list_b, column_b = asks.list_B[inside_B], asks.column_B[inside_B]
    wrong_bK, own_b1 = lists.wrong_DK[list_b], scores_DK[list_b, column_b][:, None]
    better_b = (wrong_bK & (scores_DK[list_b] > own_b1)).sum(1)
    equal_b = (wrong_bK & (scores_DK[list_b] == own_b1)).sum(1)
    found_B = asks.reciprocal_B.copy()
    found_B[inside_B] = 1 / (1 + better_b + equal_b / 2)
    return found_B
