"""The ranks of an evaluation as a report slices them, and which questions it shows.

Shapes: n triples, 2n questions (all heads, then all tails), R relations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from kgmlm.config import Protocol, load_protocol
from kgmlm.filters import FilterIndex
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import SPLITS, DataError, FloatArray, IntArray, Queries, both_sides
from kgmlm.metrics import Ranks, rank_answers, sides, summarize
from kgmlm.ranker import Ranker
from kgmlm.ranks_file import read_ranks
from kgmlm.scope import Scope
from kgmlm.slices import about_relations, breakdown, brief

# Training triples that answer a question already, from and to.
ANSWERS = {"none": (0, 0), "1": (1, 1), "2–9": (2, 9), "10–99": (10, 99), "100+": (100, None)}
UNSEEN = {
    "neither": "neither",
    "answer": "the answer alone",
    "known": "the entity that is asked about alone",
    "both": "both",
}
_ENDS = [1, 2, 3, 5, 10, 30, 100, 300, *(m * 10**e for e in range(3, 9) for m in (1, 3))]
_SHOWN = 3  # candidates that are shown of a question
_AT_ONCE = 8  # questions whose scores are kept at once


@dataclass(frozen=True, eq=False)
class Ranked:
    """Where the answers of both questions of each triple rank.

    Attributes:
        split: that the triples are of.
        triples: ``(n, 3)`` ids, sorted.
        ranks: of the 2n questions.
    """

    graph: KnowledgeGraph
    split: str
    triples: IntArray
    ranks: Ranks

    @classmethod
    def read(cls, path: Path, graph: KnowledgeGraph) -> Ranked:
        """What an evaluation of a graph wrote.

        Raises:
            DataError: when it is of another graph, or lacks one of the two questions of a triple.
        """
        table = read_ranks(path)
        indexes = (graph.entities.index, graph.relations.index, graph.entities.index)
        columns = [
            table[name].map(index) for name, index in zip(("head", "relation", "tail"), indexes, strict=True)
        ]
        unknown = next((c for c in columns if c.isna().any()), None)
        if unknown is not None:
            label = table[unknown.name][unknown.isna()].iloc[0]
            raise DataError(f"{path} has ranks of another graph than '{graph.name}', which has no '{label}'")
        h, r, t = (c.to_numpy(np.int64) for c in columns)
        tail_B = (table["target"] == "tail").to_numpy()
        order = np.lexsort((t, r, h, tail_B))
        asked: IntArray = np.stack([h, r, t], axis=1)[order].astype(np.int64)
        heads, tails = asked[~tail_B[order]], asked[tail_B[order]]
        if not np.array_equal(heads, tails):
            raise DataError(f"{path} has not both questions of each triple, for its head and for its tail")
        o, p, n = (table[c].to_numpy(np.int64)[order] for c in ("optimistic", "pessimistic", "candidates"))
        return cls(graph, _split_of(path, graph, heads), heads, Ranks(o, p, n))

    @cached_property
    def asked(self) -> tuple[Queries, IntArray]:
        """The 2n questions, and their answers."""
        return both_sides(self.triples)

    @cached_property
    def realistic(self) -> FloatArray:
        """The rank of each answer; ties share the mean of theirs."""
        return self.ranks.of_type("realistic")

    def by_side(self) -> dict[str, dict[str, float]]:
        """All metrics of head questions, tail questions and both."""
        return {side: summarize(part) for side, part in sides(self.ranks, self.asked[0].tail_B)}

    def by_relation(self) -> dict[str, Any]:
        """Few metrics of each relation that is asked, by side."""
        return about_relations(self.ranks, self.asked[0], self.graph.relations, brief(Protocol()))

    def by_unseen(self, scope: Scope) -> dict[str, Any]:
        """Few metrics by which entities of a question training has not, as :data:`UNSEEN` has them."""
        tail_B = self.asked[0].tail_B
        parts = breakdown(
            self.ranks, self.triples, tail_B, scope.seen_N, scope.half_links(self.triples), brief(Protocol())
        )
        return {UNSEEN[role]: parts["unseen_role"][role] for role in UNSEEN}

    def by_answers(self) -> dict[str, Any]:
        """Few metrics by how many answers of a question training has, as :data:`ANSWERS` has it."""
        rows, _ = self.graph.context.answers.lookup(self.asked[0])
        counts_B = np.bincount(rows, minlength=len(self.ranks))
        figures = brief(Protocol())
        return {
            name: figures(
                self.ranks[(counts_B >= low) & (counts_B <= (counts_B.max() if high is None else high))]
            )
            for name, (low, high) in ANSWERS.items()
        }

    def distribution(self) -> list[tuple[str, float, float]]:
        """How the answers' ranks spread: ranges, and the shares of head and of tail questions in each."""
        last = next((i for i, end in enumerate(_ENDS) if end >= self.realistic.max()), len(_ENDS) - 1)
        which_B = np.minimum(np.searchsorted(_ENDS, self.realistic), last)
        tail_B = self.asked[0].tail_B
        shares = [np.bincount(which_B[of_B], minlength=last + 1) / of_B.sum() for of_B in (~tail_B, tail_B)]
        starts = [1, *(end + 1 for end in _ENDS)]
        names = [f"{a:,}" if a == b else f"{a:,}–{b:,}" for a, b in zip(starts, _ENDS, strict=False)]
        return [(names[i], float(shares[0][i]), float(shares[1][i])) for i in range(last + 1)]

    def worst(self, count: int) -> IntArray:
        """Questions whose answers rank furthest behind, each once; none whose answer is first."""
        order = np.argsort(-self.realistic, kind="stable")
        return self._distinct(order[self.realistic[order] > 1], count)

    def typical(self, count: int) -> IntArray:
        """Questions whose answers rank nearest to the median, each once; drawn among those that are level."""
        drawn = np.random.default_rng(0).permutation(len(self.ranks))
        away_B = np.abs(self.realistic - np.median(self.realistic))
        found = self._distinct(drawn[np.argsort(away_B[drawn], kind="stable")], count)
        return found[np.argsort(self.realistic[found], kind="stable")]

    def _distinct(self, order: IntArray, count: int) -> IntArray:
        """The first of each distinct question in an order, so many."""
        keys = self.graph.context.answers.keys(self.asked[0][order])
        first = np.sort(np.unique(keys, return_index=True)[1])
        return order[first[:count]]


@dataclass(frozen=True)
class Question:
    """One question, its true answer, and what the run ranks first.

    Attributes:
        entity, relation, answer: ids.
        rank: of the answer as it was evaluated, among ``candidates``.
        before: the best of what ranks before or level with the answer and is no known answer.
        behind: where nothing does, the next behind it; else None.
        moved: whether the answer ranks elsewhere now than it was evaluated.
    """

    entity: int
    relation: int
    answer: int
    target: str
    rank: float
    candidates: int
    before: tuple[int, ...]
    behind: int | None
    moved: bool


def questions(ranked: Ranked, ranker: Ranker, at: IntArray) -> list[Question]:
    """Ask some questions once more, to see what comes first.

    Args:
        ranker: of the run that the ranks are of, over its graph.
        at: which of the 2n.
    """
    import torch

    every, every_answer = ranked.asked
    queries, answers = every[at], every_answer[at]
    found: dict[int, Question] = {}
    known = ranked.graph.filter_index
    filtered = [
        ranked.graph.splits[s]
        for s in load_protocol(None, split=ranked.split).filter
        if s in ranked.graph.splits
    ]
    counted = FilterIndex(np.concatenate(filtered), len(ranked.graph.entities))
    for rows, scores_bN in ranker.rank(queries, batch_size=_AT_ONCE):
        scores_bN = scores_bN.cpu()
        own = torch.from_numpy(answers[rows])
        b, ids = (torch.from_numpy(x) for x in counted.lookup(queries[rows]))
        now = rank_answers(scores_bN, own, (b, ids))
        b, ids = (torch.from_numpy(x) for x in known.lookup(queries[rows]))
        left_bN = scores_bN.clone()
        left_bN[b, ids] = float("-inf")
        left_bN[torch.arange(len(rows)), own] = float("-inf")
        best_bk = left_bN.topk(min(_SHOWN, left_bN.shape[1]))
        for i, row in enumerate(rows.tolist()):
            query, place = queries[row], int(at[row])
            pairs = zip(best_bk.indices[i].tolist(), best_bk.values[i].tolist(), strict=True)
            others = [(e, score) for e, score in pairs if score > float("-inf")]
            before = tuple(e for e, score in others if score >= float(scores_bN[i, own[i]]))
            rank, of = float(ranked.realistic[place]), int(ranked.ranks.candidates_B[place])
            found[row] = Question(
                query.entity,
                query.relation,
                int(answers[row]),
                query.target,
                rank,
                of,
                before,
                None if before or not others else others[0][0],
                moved=abs(float(now.of_type("realistic")[i]) - rank) > max(1.0, 0.02 * rank),
            )
    return [found[i] for i in range(len(at))]


def _split_of(path: Path, graph: KnowledgeGraph, triples: IntArray) -> str:
    """The split that has all of some triples.

    Raises:
        DataError: when there is none.
    """
    asked = set(map(tuple, triples.tolist()))
    for split in reversed(SPLITS):
        if split in graph.splits and asked <= set(map(tuple, graph.splits[split].tolist())):
            return split
    raise DataError(f"{path} has ranks of other triples than those of a split of '{graph.name}'")


def filled(parts: Mapping[str, Mapping[str, float]]) -> Sequence[tuple[str, Mapping[str, float]]]:
    """Those parts of the questions that there are any of."""
    return [(name, figures) for name, figures in parts.items() if figures["count"]]
