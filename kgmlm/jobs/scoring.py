"""An evaluation of a run as pieces of work: what is asked of it, and what each worker opens for itself."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kgmlm import runs
from kgmlm.asking import Way
from kgmlm.config import Protocol
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import RunError
from kgmlm.opened import open_ranker, read_vectors, retrieval_of
from kgmlm.run import Run
from kgmlm.scope import Scope
from kgmlm.upkeep import steady
from kgmlm.watching import Watcher, quiet_transformers
from kgmlm.workers import Make

if TYPE_CHECKING:
    from kgmlm.chosen import Chosen
    from kgmlm.evaluation import Found, Ranking
    from kgmlm.ranker import Ranker
    from kgmlm.shortlisting import Retrieval


def scope_of(
    run: runs.RunFolder,
    own: KnowledgeGraph,
    other: KnowledgeGraph | None,
    protocol: Protocol,
    reranked: bool,
    allowed: Mapping[str, bool],
    watch: Watcher,
) -> tuple[Scope, list[str]]:
    """What is asked, and the datasets of earlier runs that are gone, so nothing is checked against them.

    Args:
        own: the run's graph, with further entities where there are any.
        other: another graph, which is asked about instead.
        allowed: as of :meth:`~kgmlm.scope.Scope.inductive`.
    """
    earlier, gone = run.past(reranked)
    if gone:
        watch.tell(
            f"began with models of {', '.join(gone)} that are gone: what they were trained on is not checked"
        )
    if other is None:
        return Scope.of(own, earlier), gone
    return Scope.inductive(run.graph, other, protocol, earlier=earlier, **allowed), gone


@dataclass(frozen=True, eq=False)
class OpenedRun:
    """A run's ranker, and which weights it has: the run may be trained further while it is evaluated.

    Attributes:
        retrieval: the index, where only what it finds is scored.
        made_by: of the weights.
        chosen: what validation chose.
    """

    ranker: Ranker
    retrieval: Retrieval | None
    made_by: str
    chosen: Chosen


def open_scorer(
    run: Run | None, folder: runs.RunFolder, scope: Scope, way: Way, watch: Watcher, batch_size: int
) -> OpenedRun:
    """Open a run's model; that of a :class:`Run` is loaded once, as long as it is the run's."""
    graph = scope.graph
    if run is not None and run.opened not in ("", folder.made_by):
        run.reopen()
    if run is not None and (run.opened or graph is run.graph):
        predictor = run.open(watch, batch_size)
        ranker = predictor.ranker if graph is run.graph else predictor.ranker.over(graph.context)
        retrieval = predictor.retrieval if way.retrieve else None  # all are scored, unless that is asked for
        return OpenedRun(ranker, retrieval, run.opened, folder.chosen)
    ranker = open_ranker(folder, way, graph)
    return OpenedRun(ranker, retrieval_of(folder, way, ranker), folder.made_by, folder.chosen)


@dataclass(frozen=True, eq=False)
class EvaluationWork:
    """The pieces of an evaluation for workers, each of which opens the run.

    Attributes:
        run: the run's folder, or its pack.
        graph: what is not in the run's folder: its graph with further entities, or another one.
        other: whether it is another one.
        made_by: of the weights that all workers must have.
        digest: of what is asked.
        sizes: of the pieces.
    """

    run: Path
    way: Way
    protocol: Protocol
    batch_size: int
    graph: KnowledgeGraph | None
    other: bool
    allowed: Mapping[str, bool]
    made_by: str = ""
    digest: str = ""
    sizes: tuple[int, ...] = ()

    def of(self, ranking: Ranking, made_by: str) -> EvaluationWork:
        """The same when it is known what is asked, and by which weights."""
        sizes = tuple(ranking.sizes.tolist())
        return replace(self, made_by=made_by, digest=ranking.asked.digest, sizes=sizes)

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU is asked for by name."""
        return self.way.on_gpu

    def size(self, number: int) -> int:
        """How many ranks a piece has."""
        return self.sizes[number]

    def begin(self, watch: Watcher) -> Make[Found]:
        """Open the run, and read what vectors are missing.

        Raises:
            RunError: when this worker sees other weights or triples than who asks it.
        """
        from kgmlm.evaluation import Ranking

        quiet_transformers()
        folder = runs.open_run(self.run)
        own = folder.graph if self.graph is None or self.other else self.graph
        other = self.graph if self.other else None
        scope, _ = scope_of(folder, own, other, self.protocol, self.way.reranks, self.allowed, watch)
        opened = steady(
            folder.path, lambda: open_scorer(None, folder, scope, self.way, watch, self.batch_size)
        )
        ranking = Ranking.of(scope, self.protocol, opened.retrieval is not None, self.batch_size)
        if (opened.made_by, ranking.asked.digest) != (self.made_by, self.digest):
            raise RunError(
                f"{self.run} has other weights or triples on {platform.node()}; workers need the run at the "
                "same path, and nobody may change it meanwhile"
            )
        read_vectors(opened.ranker, watch, self.batch_size)
        return ranking.maker(opened.ranker, opened.retrieval)

    def sent(self, far: bool) -> EvaluationWork:
        """The same for workers; :meth:`kgmlm.workers.Work.sent`."""
        graph = None if self.graph is None else replace(self.graph)  # without what is computed of it
        return replace(self, graph=graph, run=self.run.absolute(), way=self.way.sent() if far else self.way)
