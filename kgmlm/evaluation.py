"""Protocol to ranks to report: filtered, both sides, seen and unseen apart.

Every triple of the split is kept. Scores come from the ranker, which knows no answers; answers meet scores
only here, in the filter and in the ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from kgmlm.config import Protocol
from kgmlm.kg import (
    SPLITS,
    BoolArray,
    ConfigError,
    DataError,
    FilterIndex,
    IntArray,
    KnowledgeGraph,
    both_sides,
)
from kgmlm.metrics import Ranks, flat_metrics, headline, rank_answers, sides, summarize
from kgmlm.ranker import Ranker


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Ranks of both queries of each evaluated triple (all heads, then all tails), and the report.

    Attributes:
        triples: (n, 3) ids; row i of the 2n ranks belongs to triple ``i % n``.
        ranks: among the protocol's candidates.
        scores_B: the answers' scores.
        report: a JSON-ready object.
    """

    graph: KnowledgeGraph
    triples: IntArray
    tail_B: BoolArray
    ranks: Ranks
    scores_B: torch.Tensor
    report: Mapping[str, Any]

    def write_ranks(self, path: Path) -> None:
        """Per-query ranks as Parquet, keyed by labels."""
        labels = np.array(self.graph.entities.column("label"), dtype=object)
        relations = np.array([r.label for r in self.graph.relations], dtype=object)
        h, r, t = np.tile(self.triples, (2, 1)).T
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pa.table(
            {
                "head": labels[h].tolist(),
                "relation": relations[r].tolist(),
                "tail": labels[t].tolist(),
                "target": np.where(self.tail_B, "tail", "head").tolist(),
                "score": self.scores_B.numpy(),
                "optimistic": self.ranks.optimistic_B,
                "pessimistic": self.ranks.pessimistic_B,
                "candidates": self.ranks.candidates_B,
            }
        )
        pq.write_table(table, path)


def _brief(ranks: Ranks) -> dict[str, float]:
    """The few figures of a slice, realistic."""
    full = summarize(ranks)
    wanted = ("count", "inverse_harmonic_mean_rank", "hits_at_1", "hits_at_3", "hits_at_5", "hits_at_10",
              "arithmetic_mean_rank")  # fmt: skip
    brief = {k: full[k] for k in wanted if k in full}
    return brief | ({"mrr": full["inverse_harmonic_mean_rank"]} if len(ranks) else {})


def _with_mrr(ranks: Ranks, tail_B: BoolArray) -> dict[str, float]:
    metrics = flat_metrics(ranks, tail_B)
    return ({"mrr": headline(metrics)} if len(ranks) else {}) | metrics


def breakdown(ranks: Ranks, triples: IntArray, tail_B: BoolArray, seen_N: BoolArray) -> dict[str, Any]:
    """Metrics by which position of the triple is unseen, and by which role in the query is."""
    h, t = np.tile(triples[:, [0, 2]], (2, 1)).T
    new_h, new_t = ~seen_N[h], ~seen_N[t]
    new_answer, new_known = np.where(tail_B, new_t, new_h), np.where(tail_B, new_h, new_t)
    slices = {
        "position": {
            "neither": ~new_h & ~new_t,
            "head": new_h & ~new_t,
            "tail": ~new_h & new_t,
            "both": new_h & new_t,
            "any": new_h | new_t,
        },
        "role": {"answer": new_answer & ~new_known, "known": new_known & ~new_answer},
    }
    return {
        f"unseen_{kind}": {name: _brief(ranks[mask]) for name, mask in masks.items()}
        for kind, masks in slices.items()
    }


def _sample(triples: IntArray, protocol: Protocol) -> IntArray:
    if not protocol.max_triples or protocol.max_triples >= len(triples):
        return triples
    rng = np.random.default_rng(protocol.seed)
    return triples[np.sort(rng.choice(len(triples), protocol.max_triples, replace=False))]


@dataclass(frozen=True, eq=False)
class _View:
    """A set of candidates, the queries that can be asked of it, and their ranks as they come in.

    Attributes:
        ids: the candidates.
        column_N: column of each entity among them, -1 for the others.
        asked_B: queries whose whole triple lies in the set.
        ranks_3B: optimistic, pessimistic, candidates.
    """

    ids: IntArray
    column_N: IntArray
    asked_B: BoolArray
    ranks_3B: IntArray

    @classmethod
    def of(cls, member_N: BoolArray, triples: IntArray) -> _View:
        ids = np.flatnonzero(member_N)
        column_N = np.full(len(member_N), -1)
        column_N[ids] = np.arange(len(ids))
        asked_B = np.tile(member_N[triples[:, [0, 2]]].all(1), 2)
        return cls(ids, column_N, asked_B, np.zeros((3, len(asked_B)), np.int64))

    def rank(
        self, scores_bN: torch.Tensor, at: IntArray, answers: IntArray, known: tuple[IntArray, IntArray]
    ) -> None:
        """Rank the queries ``at``, whose scores of all entities and known answers these are."""
        asked = self.asked_B[at]
        if not asked.any():
            return
        device = scores_bN.device
        if not asked.all():
            scores_bN = scores_bN[torch.from_numpy(np.flatnonzero(asked)).to(device)]
        if len(self.ids) < len(self.column_N):
            scores_bN = scores_bN[:, torch.from_numpy(self.ids).to(device)]
        rows, ids = known
        use = asked[rows] & (self.column_N[ids] >= 0)
        row_of = np.cumsum(asked) - 1
        columns = (row_of[rows[use]], self.column_N[ids[use]])
        ranks = rank_answers(
            scores_bN,
            torch.from_numpy(self.column_N[answers[asked]]).to(device),
            (torch.from_numpy(columns[0]).to(device), torch.from_numpy(columns[1]).to(device)),
        )
        self.ranks_3B[:, at[asked]] = ranks.optimistic_B, ranks.pessimistic_B, ranks.candidates_B

    def result(self) -> Ranks:
        """Ranks of the queries that were asked."""
        return Ranks(*self.ranks_3B[:, self.asked_B])


def evaluate(
    ranker: Ranker,
    graph: KnowledgeGraph,
    protocol: Protocol,
    *,
    batch_size: int = 64,
    advance: Callable[[int, int], None] = lambda n, total: None,
) -> Evaluation:
    """Rank the answers of a split's triples on both sides.

    A query that several triples share is encoded once. Beside the protocol's candidates, ranks among
    training entities alone are taken from the same scores: what PyKEEN, which drops triples with unseen
    entities, would report.

    Args:
        advance: called with (queries just done, distinct queries in all).

    Raises:
        DataError: when the split is absent or has no triple to evaluate.
        ConfigError: when the filter names an unknown split.
    """
    unknown = set(protocol.filter) - set(SPLITS)
    if unknown:
        raise ConfigError(
            f"the filter names an unknown split '{unknown.pop()}' (there are: {', '.join(SPLITS)})"
        )
    sampled = _sample(graph.triples(protocol.split), protocol)
    seen_N = graph.seen_N
    inside = seen_N[sampled[:, [0, 2]]].all(1) | (protocol.candidates == "all")
    triples = sampled[inside]
    if not len(triples):
        raise DataError(f"the split '{protocol.split}' has no triple to evaluate under this protocol")
    queries, answers = both_sides(triples)
    known_splits = [s for s in graph.splits if s in protocol.filter or s == protocol.split]
    index = FilterIndex(np.concatenate([graph.splits[s] for s in known_splits]), len(graph.entities))
    _, first, inverse = np.unique(index.keys(queries), return_index=True, return_inverse=True)
    members = np.argsort(inverse, kind="stable")  # queries, grouped by distinct query
    bounds = np.searchsorted(inverse[members], np.arange(len(first) + 1))

    views = {"all": _View.of(np.ones_like(seen_N), triples), "train": _View.of(seen_N, triples)}
    if seen_N.all():
        views["train"] = views["all"]
    answer_scores_B = torch.zeros(len(queries))
    started = time.monotonic()
    for rows, scores_dN in ranker.rank(
        queries[first], batch_size=batch_size, advance=lambda n: advance(n, len(first))
    ):
        counts = bounds[rows + 1] - bounds[rows]
        at = np.concatenate([members[bounds[r] : bounds[r + 1]] for r in rows])
        source = torch.from_numpy(np.repeat(np.arange(len(rows)), counts)).to(scores_dN.device)
        scores_bN = scores_dN[source]
        true = torch.from_numpy(answers[at]).to(scores_dN.device)
        answer_scores_B[at] = scores_bN.gather(1, true[:, None])[:, 0].cpu()
        known = index.lookup(queries[at])
        for view in {id(v): v for v in views.values()}.values():
            view.rank(scores_bN, at, answers[at], known)
    seconds = time.monotonic() - started

    main, comparable = views[protocol.candidates], views["train"]
    ranks, tail_B, relation_B = main.result(), queries.tail_B, queries.relation_B
    report = {
        "dataset": graph.name,
        "split": protocol.split,
        "triples": len(triples),
        "triples_left_out": len(sampled) - len(triples),
        "queries": len(first),
        "seconds": round(seconds, 2),
        "candidates": {
            "set": protocol.candidates,
            "count": len(main.ids),
            "names_truncated": int(ranker.candidates.truncated_N[main.ids].sum()),
        },
        "protocol": protocol.model_dump(mode="json"),
        "metrics": _with_mrr(ranks, tail_B),
        "breakdown": breakdown(ranks, triples, tail_B, seen_N),
        "pykeen_comparable": {
            "candidates": len(comparable.ids),
            "metrics": _with_mrr(comparable.result(), tail_B[comparable.asked_B]),
        },
        "relations": {
            graph.relations[r].label: {
                side: _brief(part) for side, part in sides(ranks[relation_B == r], tail_B[relation_B == r])
            }
            for r in np.unique(relation_B)
        },
    }
    return Evaluation(graph, triples, tail_B, ranks, answer_scores_B, report)
