"""Trees fitted on validation, by LightGBM's LambdaRank, to tell the answers among the best candidates.

The lists of :mod:`kgmlm.training.candidate_lists` have the features of :mod:`kgmlm.ranking.pair_features`.
The figures measure each half with the trees and the weights of signals that were fitted to the other half;
the trees that the run keeps are fitted to all.

Shapes: D distinct queries, K candidates of each, F features; B queries with an answer each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from kgmlm.core import machine
from kgmlm.core.arrays import BoolArray, Floats, IntArray
from kgmlm.core.config import Protocol
from kgmlm.core.errors import ConfigError, RunError, first_line
from kgmlm.core.progress import Advance, Watcher
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.pair_features import PairFeatures, blocks_of
from kgmlm.ranking.ranker import Ranker, StageWeight
from kgmlm.ranking.trees import FORESTS, Forest, Trees, odd_pairs
from kgmlm.training.candidate_lists import CandidateLists, ListQueries, read_lists
from kgmlm.training.recipes import LARGE, MIN_TREE_TRIPLES
from kgmlm.training.states import helpful_weight, measured_weight
from kgmlm.training.weights import silent, validation_task

CANDIDATES = 100  # best candidates of a query that trees score
ROUNDS = 300  # of boosting, a tree each
LIST_BATCH = 1024  # candidate lists whose features are computed together
LIGHTGBM_PARAMETERS: Mapping[str, Any] = {
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
    if (valid_triples := len(graph.splits["valid"])) < MIN_TREE_TRIPLES:
        raise RunError(
            f"trees are fitted to at least {MIN_TREE_TRIPLES} validation triples, and there are "
            f"{valid_triples}"
        )


def may_fit(graph: KnowledgeGraph, watch: Watcher) -> bool:
    """Return whether trees can be fitted; where not, say why."""
    try:
        check_possible(graph)
    except (ConfigError, RunError) as error:
        watch.tell(f"no trees: {error}")
        return False
    return True


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
        :func:`~kgmlm.training.second_stages.choose_reverse`, cross-fitted.

    Raises:
        ConfigError: when LightGBM is not installed, or the protocol asks or filters test triples.
        RunError: when there are too few validation triples.
    """
    check_possible(graph)
    ranker = ranker.without_stage(Trees.name)
    features = PairFeatures(ranker)
    task = validation_task(graph, protocol)

    def read(queries: Queries, rows: IntArray, ids_dK: IntArray) -> Floats:
        return features.known(queries, ids_dK)

    most, progress = candidates or CANDIDATES, partial(advance, "reading candidates")
    lists, asks = read_lists(ranker, task, most, read, len(features.known_names), progress, batch_size)
    halves = asks.halves()
    if halves is None:
        return None, asks.figures(asks.reciprocal_B, asks.reciprocal_B, StageWeight(0, 0.0))
    tell = partial(advance, "fitting trees", 1, len(FORESTS) * ROUNDS)
    # Trees that score a candidate, and weights of signals that score an answer, never saw its pair.
    odd_DK = odd_pairs(lists.queries, lists.candidates.ids_BK)
    forests, added_DK = {"whole": _fitted(lists, features, tell)}, np.zeros(lists.open_DK.shape, np.float32)
    by_weights: dict[str, CandidateLists] = {}
    for half, of_B, of_DK in (("odd", halves[0], odd_DK), ("even", halves[1], ~odd_DK)):
        by_half = by_weights[half] = lists.weighed(lists.weights_of(asks, of_B))
        forests[half] = _fitted(by_half.among(of_DK), features, tell)
        unseen_DKF = _features(by_half, features)
        flat_P = forests[half].scores(unseen_DKF.reshape(-1, unseen_DKF.shape[2]))
        added_DK[~of_DK] = flat_P.reshape(unseen_DKF.shape[:2])[~of_DK]
    stage_weight, figures = _chosen(lists, by_weights, asks, added_DK)
    return (Trees(stage_weight, features.names, forests) if stage_weight.k else None), figures


def _features(lists: CandidateLists, of: PairFeatures) -> Floats:
    """The features ``(D, K, F)``; those that do not depend on the weights of signals were read."""
    parts = []
    for rows in blocks_of(len(lists.queries), LIST_BATCH):
        some = lists.take(rows)
        of_scores = of.of_scores(some.queries, some.candidates, some.mixture)
        parts.append(np.concatenate([of_scores, some.read_DKF], 2))
    return np.concatenate(parts)


def _fitted(lists: CandidateLists, features: PairFeatures, tell: Callable[[], None]) -> Forest:
    """Trees fitted to lists, by those that have an answer and a wrong candidate."""
    import lightgbm

    lists = lists.take(np.flatnonzero(lists.teaches_D))
    data = lightgbm.Dataset(
        _features(lists, features)[lists.open_DK],
        lists.asked_DK[lists.open_DK].astype(np.float32),
        group=lists.open_DK.sum(1),
        params=dict(LIGHTGBM_PARAMETERS),
    )
    parameters = {**LIGHTGBM_PARAMETERS, "num_threads": torch.get_num_threads()}
    booster = lightgbm.train(parameters, data, ROUNDS, callbacks=[lambda _: tell()])
    return forest_of(booster.dump_model())


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
    tree = _Tree([], [])

    def add(node: Mapping[str, Any]) -> tuple[int, int]:
        first = len(tree.leaves)
        if "split_feature" in node:
            _, middle = add(node["left_child"])
            _, last = add(node["right_child"])
            tree.splits.append((node["split_feature"], node["threshold"], first, middle, last))
        else:
            tree.leaves.append((node["leaf_value"], node.get("leaf_count", 1)))
        return first, len(tree.leaves)

    add(root)
    return tree


def _chosen(
    lists: CandidateLists,
    by_weights: Mapping[str, CandidateLists],
    asks: ListQueries,
    added_DK: Floats,
) -> tuple[StageWeight, dict[str, float]]:
    """Choose how much trees count, and measure each half by the choice of the other.

    Args:
        by_weights: the lists scored with the weights fitted to each half.
        added_DK: the scores of candidates by the trees of the half that does not have their pair.
    """
    odd_B, states_B = asks.odd_B, lists.states_of(asks)
    most, there_DK = lists.open_DK.shape[1], lists.candidates.there_BK
    first_B, crossed_B = asks.reciprocal_B.copy(), asks.reciprocal_B.copy()
    for half, of_B in (("odd", odd_B), ("even", ~odd_B)):
        by_half = by_weights[half]
        # The other half's weights never saw this half's answers, just as in the measurement below.
        weight = by_weights["even" if half == "odd" else "odd"].ratio(asks, added_DK, of_B)
        first_B[~of_B] = by_half.reciprocal(asks, by_half.scores_DK)[~of_B]
        with_trees_DK = by_half.with_weight(
            measured_weight(StageWeight(most, weight), states_B), added_DK, there_DK
        )
        crossed_B[~of_B] = by_half.reciprocal(asks, with_trees_DK)[~of_B]
    stage_weight = helpful_weight(
        measured_weight(StageWeight(most, 1.0), states_B), crossed_B - first_B, states_B
    )
    if not stage_weight.k:
        return stage_weight, asks.figures(first_B, first_B, stage_weight)
    # The final weight is fitted to scores that never saw their answers, so to those of both halves.
    by_even, by_odd = by_weights["even"].scores_DK, by_weights["odd"].scores_DK
    scores_DK = np.where(_odd_lists(asks, len(lists.queries))[:, None], by_even, by_odd)
    whole = lists.scored(scores_DK).ratio(asks, added_DK, np.ones(len(odd_B), np.bool_))
    stage_weight = replace(stage_weight, weight=whole)
    return stage_weight, asks.figures(
        first_B, asks.helped(first_B, crossed_B, states_B, stage_weight), stage_weight
    )


def _odd_lists(asks: ListQueries, lists: int) -> BoolArray:
    """Return which lists have an answer of the odd half."""
    odd_D = np.zeros(lists, np.bool_)
    odd_D[asks.list_B[asks.odd_B]] = True
    return odd_D
