"""The parts of a report: metrics, their breakdown by slices, candidates, shortlists. All is JSON-ready."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kgmlm.core.arrays import BoolArray, IntArray
from kgmlm.core.config import Protocol, is_expected
from kgmlm.evaluation.metrics import HITS_AT, Ranks, expected_hits, flat_metrics, headline, sides, summarize
from kgmlm.graphs.entities import EntityTable, RelationTable
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.constraints import Possible
from kgmlm.ranking.ranker import MAX_SCORES
from kgmlm.ranking.retrieval import Retrieval

Figures = Callable[[Ranks], dict[str, float]]


def brief(protocol: Protocol) -> Figures:
    """The few figures of a slice under a protocol: realistic, or expected where negatives are not drawn."""
    wanted = ("count", "inverse_harmonic_mean_rank", "hits_at_1", "hits_at_3", "hits_at_5", "hits_at_10",
              "arithmetic_mean_rank")  # fmt: skip

    def expected(ranks: Ranks) -> dict[str, float]:
        hits = {f"hits_at_{k}": expected_hits(ranks, protocol.negatives, k) for k in HITS_AT if len(ranks)}
        return {"count": float(len(ranks)), **hits}

    def realistic(ranks: Ranks) -> dict[str, float]:
        full = summarize(ranks)
        few = {k: full[k] for k in wanted if k in full}
        return few | ({"mrr": full["inverse_harmonic_mean_rank"]} if len(ranks) else {})

    return expected if is_expected(protocol) else realistic


def metrics_of(ranks: Ranks, tail_B: BoolArray, protocol: Protocol) -> dict[str, float]:
    """All metrics of a set of ranks; ``side.expected.…`` alone where negatives are not drawn."""
    if is_expected(protocol):
        figures = brief(protocol)
        parts = {side: figures(part) for side, part in sides(ranks, tail_B)}
        return {f"{side}.expected.{k}": v for side, part in sorted(parts.items()) for k, v in part.items()}
    metrics = flat_metrics(ranks, tail_B)
    return ({"mrr": headline(metrics)} if len(ranks) else {}) | metrics


def breakdown(
    ranks: Ranks,
    triples: IntArray,
    tail_B: BoolArray,
    seen_N: BoolArray,
    half_links_T2: BoolArray,
    figures: Figures,
) -> dict[str, Any]:
    """Metrics by which position of the triple is unseen, which role in the query, and which half-link.

    A half-link is the query's entity or the answer, together with the relation and its side of it.

    Args:
        half_links_T2: whether training has (head, relation) and (relation, tail).
    """
    sides = len(tail_B) // len(triples)
    h, t = np.tile(triples[:, [0, 2]], (sides, 1)).T
    new_h, new_t = ~seen_N[h], ~seen_N[t]
    new_answer, new_known = np.where(tail_B, new_t, new_h), np.where(tail_B, new_h, new_t)
    new_hr, new_rt = np.tile(~half_links_T2, (sides, 1)).T
    new_half_answer, new_half_query = np.where(tail_B, new_rt, new_hr), np.where(tail_B, new_hr, new_rt)
    slices = {
        "position": {
            "neither": ~new_h & ~new_t,
            "head": new_h & ~new_t,
            "tail": ~new_h & new_t,
            "both": new_h & new_t,
            "any": new_h | new_t,
        },
        "role": {
            "answer": new_answer & ~new_known,
            "known": new_known & ~new_answer,
            "both": new_answer & new_known,
            "neither": ~new_answer & ~new_known,
        },
        "half_link": {
            "answer": new_half_answer & ~new_half_query,
            "query": new_half_query & ~new_half_answer,
            "both": new_half_answer & new_half_query,
            "neither": ~new_half_answer & ~new_half_query,
        },
    }
    return {
        f"unseen_{kind}": {name: figures(ranks[mask]) for name, mask in masks.items()}
        for kind, masks in slices.items()
    }


def about_relations(
    ranks: Ranks, queries: Queries, relations: RelationTable, figures: Figures
) -> dict[str, Any]:
    """Metrics of each relation that is asked, by side."""
    tail_B, relation_B = queries.tail_B, queries.relation_B
    return {
        relations[r].label: {
            side: figures(part) for side, part in sides(ranks[relation_B == r], tail_B[relation_B == r])
        }
        for r in np.unique(relation_B)
    }


def about_candidates(
    texts: EntityTable, truncated_N: BoolArray, ranks: Ranks, protocol: Protocol
) -> dict[str, Any]:
    """The candidates: their number, what their texts lack, and how many negatives are drawn from them.

    Args:
        texts: of the candidates.
        truncated_N: whose names were cut.
    """
    candidates: dict[str, Any] = {
        "set": protocol.candidates,
        "count": len(texts),
        "names_truncated": int(truncated_N.sum()),
        "without_name": texts.unnamed,
        "without_description": texts.undescribed,
    }
    if protocol.negatives:
        candidates["negatives"] = {"count": protocol.negatives, "by": protocol.negatives_by}
        if not is_expected(protocol):  # a query that nearly everything answers has fewer
            candidates["negatives"]["least"] = int(ranks.candidates_B.min()) - 1
    return candidates


def about_own_entity(possible: Possible, queries: Queries, answers: IntArray) -> dict[str, Any]:
    """Queries that their own entity cannot answer, and triples that say it does."""
    own_B = possible.own_B(queries)
    loops_B = answers == queries.entity_B
    return {
        "excluded": bool(possible.loop_free_R.any()),
        "relations": int(possible.loop_free_R.sum()),
        "ranks": int(own_B.sum()),
        "true_loops": int((own_B & loops_B).sum()),
    }


def about_constraints(
    possible: Possible, queries: Queries, answers: IntArray, member_N: BoolArray
) -> dict[str, Any]:
    """The candidates that further constraints leave, and the true answers that they forbid: those rank
    last.

    Args:
        member_N: which entities are candidates.
    """
    about: dict[str, Any] = {}
    step = max(1, MAX_SCORES // len(member_N))
    for constraint in possible.further:
        kept, forbidden = 0.0, 0
        for start in range(0, len(queries), step):
            part = slice(start, start + step)
            allowed_bN = constraint.allowed(queries[part])
            kept += float((allowed_bN & member_N).sum()) / member_N.sum()
            forbidden += int((~allowed_bN[np.arange(len(allowed_bN)), answers[part]]).sum())
        about[constraint.name] = {
            "candidates_kept": kept / len(queries),
            "answers_forbidden": forbidden,
            "ranks": len(queries),
            **constraint.learned(),
        }
    return about


def about_retrieval(
    retrieval: Retrieval, ranks: Ranks, exact: Ranks, found_B: BoolArray, tail_B: BoolArray
) -> dict[str, Any]:
    """The recall of an index, and the cost of ranking its shortlist alone."""
    metrics, exactly = flat_metrics(ranks, tail_B), flat_metrics(exact, tail_B)
    record = retrieval.retriever.record
    return {
        "cells": record["cells"],
        "visited": record["visited"] if retrieval.visited is None else retrieval.visited,
        "k": retrieval.k,
        "recall": {
            "tail": float(found_B[tail_B].mean()),
            "head": float(found_B[~tail_B].mean()),
            "both": float(found_B.mean()),
        },
        "exact": {"mrr": headline(exactly), "hits_at_10": exactly["both.realistic.hits_at_10"]},
        "mrr_lost": headline(exactly) - headline(metrics),
    }
