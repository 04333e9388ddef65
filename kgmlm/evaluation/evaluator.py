"""From a protocol to filtered ranks and their report.

Every triple of the split is kept. Scores come from the ranker, which knows only training's answers; other
answers meet scores only here, in the filter and in the ranks.

Shapes: N entities, B queries, d distinct queries, b of them in a piece.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kgmlm.core.arrays import BoolArray, Floats, IntArray
from kgmlm.core.config import Protocol
from kgmlm.core.errors import ConfigError
from kgmlm.core.processes import sharing
from kgmlm.core.progress import Watcher
from kgmlm.core.workers import Make, Opened, Tick, Work, Workers, piece_size
from kgmlm.evaluation.metrics import Ranks, write_ranks
from kgmlm.evaluation.results import (
    about_candidates,
    about_constraints,
    about_own_entity,
    about_relations,
    about_retrieval,
    breakdown,
    brief,
    metrics_of,
)
from kgmlm.evaluation.task import RankingTask, Scope, View, comparable_view, main_view
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.ranking.constraints import MISSED
from kgmlm.ranking.ranker import Scorer
from kgmlm.ranking.retrieval import Retrieval, scores_of


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
    scores_B: Floats
    report: Mapping[str, Any]

    def write_ranks(self, path: Path, scores_digest: str = "", *, follow: bool = False) -> None:
        """Per-query ranks as Parquet, keyed by labels, whole or not at all.

        Args:
            path: if ``follow`` is set, a link is followed, and a pipe or a device is written into.
            scores_digest: identifies the scores of the run that the ranks are of.
        """
        write_ranks(
            path,
            self.graph,
            self.triples,
            self.tail_B,
            self.ranks,
            self.scores_B,
            scores_digest,
            follow=follow,
        )


class Found(NamedTuple):
    """The result of a task: optimistic ranks, pessimistic ranks and candidates, ``(3, b)``
    in the main view and, where there is one, in the other; and the answers' scores.
    """

    number: int
    ranks_3b: IntArray
    other_3b: IntArray | None
    scores_b: Floats


@dataclass(frozen=True, eq=False)
class Ranking:
    """An evaluation under way: what is asked, among whom, and the ranks as they come in, piece by piece.

    A piece is some of the distinct queries. The same scope and protocol have the same pieces wherever they
    are made.

    Attributes:
        main: where the protocol ranks.
        comparable: where PyKEEN would rank, if that can be said.
        other: where the same queries are ranked once more: by exact scores beside those by an index, or, for
            ``comparable``, without constraints on what can answer.
        scores_B: the answers' scores.
        piece: distinct queries of a piece.
    """

    scope: Scope
    protocol: Protocol
    task: RankingTask
    main: View
    comparable: View | None
    other: View | None
    scores_B: Floats
    batch_size: int
    piece: int

    @classmethod
    def of(
        cls, graph: KnowledgeGraph | Scope, protocol: Protocol, by_index: bool, batch_size: int
    ) -> Ranking:
        """The ranking of a graph by a protocol.

        Raises:
            DataError: when the split is absent or has no triple to evaluate.
            ConfigError: when the filter names an unknown split, or more negatives are to be drawn than there
                are.
        """
        scope = graph if isinstance(graph, Scope) else Scope.of(graph)
        task = RankingTask.of(scope, protocol)
        if by_index and protocol.negatives:
            raise ConfigError("an index is evaluated among all candidates, not among negatives")
        comparable = None if by_index else comparable_view(scope, task.triples, protocol)
        other = task.view() if by_index else comparable
        scores_B = np.zeros(len(task.queries), np.float32)
        piece = piece_size(len(task.groups), batch_size)
        main = main_view(task, protocol)
        return cls(scope, protocol, task, main, comparable, other, scores_B, batch_size, piece)

    @property
    def sizes(self) -> IntArray:
        """How many ranks each piece has."""
        starts = np.arange(0, len(self.task.groups), self.piece)
        return np.add.reduceat(self.task.groups.sizes, starts)

    def _groups(self, number: int) -> IntArray:
        """The distinct queries of a piece."""
        return np.arange(number * self.piece, min((number + 1) * self.piece, len(self.task.groups)))

    def maker(self, ranker: Scorer, retrieval: Retrieval | None) -> Make[Found]:
        """Return the function that ranks tasks by a ranker's scores."""
        ranker = ranker.allowing_self() if self.protocol.allow_self else ranker
        return lambda number, advance: self._made(number, ranker, retrieval, advance)

    def _made(self, number: int, ranker: Scorer, retrieval: Retrieval | None, advance: Tick) -> Found:
        task, groups = self.task, self._groups(number)
        distinct = task.distinct[groups]
        # 1) ranks by the scores that the run has
        for rows, scores_dN in scores_of(ranker, distinct, retrieval, self.batch_size):
            for part in task.parts(groups[rows]):
                self.scores_B[part.at] = scores_dN[part.group, part.answers]
                self.main.rank(scores_dN, part)
                advance(len(part.at))
        # 2) and once more by others
        if self.other is not None:
            other = ranker.unconstrained() if retrieval is None else ranker
            for rows, scores_dN in other.rank(distinct, batch_size=self.batch_size):
                for part in task.parts(groups[rows]):
                    self.other.rank(scores_dN, part)
        at, _ = task.groups.take(groups)
        other_3b = None if self.other is None else self.other.ranks_3B[:, at]
        return Found(number, self.main.ranks_3B[:, at], other_3b, self.scores_B[at])

    def fill(self, ranks: Found) -> None:
        """Add the ranks of a piece, wherever they were made."""
        at, _ = self.task.groups.take(self._groups(ranks.number))
        self.main.ranks_3B[:, at], self.scores_B[at] = ranks.ranks_3b, ranks.scores_b
        if self.other is not None and ranks.other_3b is not None:
            self.other.ranks_3B[:, at] = ranks.other_3b


def evaluate(
    ranker: Scorer,
    graph: KnowledgeGraph | Scope,
    protocol: Protocol,
    *,
    retrieval: Retrieval | None = None,
    batch_size: int = 64,
    by_relation: bool = False,
    advance: Callable[[int, int], None] = lambda n, total: None,
    crew: Workers | None = None,
    sent: Callable[[Ranking], Work[Found]] | None = None,
    watch: Watcher | None = None,
) -> Evaluation:
    """Rank the answers of a split's triples on both sides.

    A query that several triples share is encoded once. An entity that cannot answer (``ranker.possible``)
    stays a candidate and ranks last, even if a triple says that it does; such triples are counted. If the
    protocol
    asks for it, the run's own graph is ranked once more as PyKEEN ranks. Where the work is shared
    (:mod:`kgmlm.core.processes`), each process asks some of the distinct queries, and all get the same
    evaluation.

    Args:
        ranker: a run's, or any other scorer of the graph's entities.
        graph: the run's own graph, or a :class:`Scope` of another.
        retrieval: rank what an index finds before anything is filtered; an answer that it misses ranks
            behind all that it finds, level with the rest. The report compares with exact ranking.
        by_relation: report the metrics of each relation, too.
        advance: called with (ranks just done, ranks in all); of several processes, with this one's share.
        crew, sent: workers that rank, and what they are sent; the ranker then scores nothing here.
        watch: told when workers are lost.

    Raises:
        DataError: when the split is absent or has no triple to evaluate.
        ConfigError: when the filter names an unknown split, or more negatives are to be drawn than there are.
    """
    ranking = Ranking.of(graph, protocol, retrieval is not None, batch_size)
    started = time.monotonic()
    crew, world, sizes = crew or Workers(), sharing(), ranking.sizes
    world.agree(ranking.task.digest, "triples")
    mine = world.share(sizes)
    total = int(sizes[mine].sum())
    work = Opened(sizes, ranking.maker(ranker, retrieval)) if sent is None else sent(ranking)
    for piece in crew.made(work, mine.tolist(), watch or Watcher(), lambda n: advance(n, total)):
        ranking.fill(piece)
    seconds = round(time.monotonic() - started, 2)
    report = report_of(ranking, ranker, retrieval, by_relation, seconds, world.size * crew.count)
    scope, task = ranking.scope, ranking.task
    ranks, tail_B = ranking.main.result(), task.queries.tail_B
    return Evaluation(scope.graph, task.triples, tail_B, ranks, ranking.scores_B, report)


def report_of(
    ranking: Ranking,
    ranker: Scorer,
    retrieval: Retrieval | None,
    by_relation: bool,
    seconds: float,
    processes: int,
) -> dict[str, Any]:
    """The report of an evaluation.

    Args:
        ranker, retrieval, by_relation: those of the evaluation.
        seconds, processes: how long the ranking took, and how many processes did it.
    """
    ranker = ranker.allowing_self() if ranking.protocol.allow_self else ranker
    scope, protocol, task = ranking.scope, ranking.protocol, ranking.task
    triples = task.triples
    graph, main, comparable = scope.graph, ranking.main, ranking.comparable
    ranks, tail_B, figures = main.result(), task.queries.tail_B, brief(protocol)
    texts, truncated_N = graph.entities.among(main.ids), ranker.truncated_N[main.ids]
    report = {
        "dataset": graph.name,
        "split": protocol.split,
        "triples": len(triples),
        "triples_left_out": len(task.sampled) - len(triples),
        "triples_trained": scope.known(triples, "train"),
        "triples_validated": scope.known(triples, "valid"),
        "queries": len(task.groups),
        "seconds": seconds,
        "processes": processes,
        "candidates": about_candidates(texts, truncated_N, ranks, protocol),
        "own_entity": about_own_entity(ranker.possible, task.queries, task.answers),
        "protocol": protocol.model_dump(mode="json"),
        "metrics": metrics_of(ranks, tail_B, protocol),
        "breakdown": breakdown(ranks, triples, tail_B, scope.seen_N, scope.half_links(triples), figures),
    }
    if ranker.possible.further:
        report["constraints"] = about_constraints(
            ranker.possible, task.queries, task.answers, main.column_N >= 0
        )
    if comparable is not None:
        report["pykeen_comparable"] = {
            "candidates": len(comparable.ids),
            "metrics": metrics_of(comparable.result(), tail_B[comparable.asked_B], protocol),
        }
    if retrieval is not None:
        assert ranking.other is not None
        found_B = ranking.scores_B > MISSED
        report["retrieval"] = about_retrieval(retrieval, ranks, ranking.other.result(), found_B, tail_B)
    if by_relation:
        report["relations"] = about_relations(ranks, task.queries, graph.relations, figures)
    return report
