"""The best candidates of many queries, by a run that is open here or by workers that open it themselves."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kgmlm import runs
from kgmlm.asking import Way
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import RunError
from kgmlm.opened import open_ranker, read_vectors, retrieval_of, shortlist_of
from kgmlm.processes import join, shared_by
from kgmlm.upkeep import steady
from kgmlm.watching import Watcher
from kgmlm.workers import Advance, Crew, Make, piece_size

if TYPE_CHECKING:
    from kgmlm.kg import Query
    from kgmlm.prediction import Prediction, Predictor
    from kgmlm.run import Run


def opened_by(
    way: Way, folder: runs.RunFolder, graph: KnowledgeGraph, watch: Watcher, batch_size: int = 64
) -> tuple[str, Predictor]:
    """A run's model, opened, and of which weights it is; reads what vectors are missing.

    Raises:
        RunError: when training has left no model yet, or weights do not fit the signals.
    """
    from kgmlm.prediction import Predictor

    made_by, ranker = steady(
        folder.path, lambda: (folder.made_by, open_ranker(folder, way, graph, watch.tell))
    )
    ranker = ranker.allowing_self() if way.allow_self else ranker
    read_vectors(ranker, watch, batch_size)
    return made_by, Predictor(graph, ranker, retrieval_of(folder, way, ranker, shortlist_of(folder)))


Best = list[tuple[int, "list[Prediction]"]]  # by position of the query


@dataclass(frozen=True, eq=False)
class Predicting:
    """The best candidates of many queries as pieces of work; workers open the run for themselves.

    Attributes:
        graph: the run's with further entities, where there are any.
        made_by: of the weights that all workers must have.
        piece: queries of a piece.
        options: as of :meth:`kgmlm.prediction.Predictor.predict`.
        opened: it is open here already.
    """

    path: Path
    way: Way
    graph: KnowledgeGraph | None
    made_by: str
    asked: Sequence[Query]
    piece: int
    batch_size: int
    options: Mapping[str, Any]
    opened: Predictor | None = None

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU is asked for by name."""
        return self.way.on_gpu

    def of(self, number: int) -> range:
        """Positions of the queries of a piece."""
        return range(len(self.asked))[number * self.piece : (number + 1) * self.piece]

    def size(self, number: int) -> int:
        """How many queries a piece has."""
        return len(self.of(number))

    def begin(self, watch: Watcher) -> Make[Best]:
        """Open the run, where it is not open here.

        Raises:
            RunError: when this worker sees other weights than who asks it.
        """
        if self.opened is not None:
            made_by, predictor = self.made_by, self.opened
        else:
            folder = runs.open_run(self.path)
            made_by, predictor = opened_by(
                self.way, folder, self.graph or folder.graph, watch, self.batch_size
            )
        if made_by != self.made_by:
            raise RunError(
                f"{self.path} has other weights on {platform.node()}; workers need the run at the same path, "
                "and nobody may change it meanwhile"
            )

        def make(number: int, advance: Advance) -> Best:
            at = self.of(number)
            queries = [self.asked[i] for i in at]
            found = predictor.predict(queries, batch_size=self.batch_size, advance=advance, **self.options)
            return [(at[row], best) for row, best in found]

        return make

    def sent(self, far: bool) -> Predicting:
        """The same for workers; :meth:`kgmlm.workers.Work.sent`."""
        graph = None if self.graph is None else replace(self.graph)  # without what is computed of it
        way = self.way.sent() if far else self.way
        return replace(self, path=self.path.absolute(), way=way, graph=graph, opened=None)


def predicted(
    run: Run,
    asked: Sequence[Query],
    watch: Watcher,
    batch_size: int = 64,
    crew: Crew | None = None,
    **options: Any,
) -> list[list[Prediction]]:
    """The best candidates of many queries, in the order of the queries.

    Several processes (``torchrun``) share the queries; each must call this, and gets the answers to all.

    Args:
        crew: who ranks; workers open the run for themselves.
        options: as of :meth:`kgmlm.prediction.Predictor.predict`.

    Raises:
        RunError: when the processes were asked different queries, or see another run; or workers end again
            and again.
    """
    crew = crew or Crew()
    with shared_by(join(run.way.device)) as world:
        opened = run.open(watch, batch_size) if crew.here else None
        made_by = run.opened or run.folder.made_by
        digest = sha256(repr(list(asked)).encode()).hexdigest()
        world.agree((made_by, len(run.graph.entities), digest), "weights, entities or queries")
        piece = piece_size(len(asked), batch_size)
        work = Predicting(run.path, run.way, run.further, made_by, asked, piece, batch_size, options, opened)
        sizes = np.array([work.size(n) for n in range(-(-len(asked) // piece))], np.int64)
        mine = world.share(sizes)
        bar = partial(watch, "ranking", total=int(sizes[mine].sum()))
        by_query = dict(pair for found in crew.made(work, mine.tolist(), watch, bar) for pair in found)
    return [by_query[i] for i in range(len(asked))]
