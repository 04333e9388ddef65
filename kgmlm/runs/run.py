"""A trained run in Python: it ranks, scores and explains; its model loads on first use.

Many queries are ranked by the open run, or by workers that open it themselves.
"""

from __future__ import annotations

import html
import platform
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial, wraps
from hashlib import sha256
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

import kgmlm
from kgmlm.core.arrays import IntArray
from kgmlm.core.config import Settings
from kgmlm.core.errors import QueryError, RunError, quoted
from kgmlm.core.files import as_path
from kgmlm.core.options import takes
from kgmlm.core.processes import join, main_process, shared_by
from kgmlm.core.progress import Advance, Watcher, watcher_of
from kgmlm.core.tables import ENDS
from kgmlm.core.workers import Make, Tick, Workers, piece_size
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.given import GivenTriples, labeled_entities, labeled_queries, labeled_triples
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.names import read_queries
from kgmlm.runs.folder import RunFolder, read_record
from kgmlm.runs.opened import open_folder, open_predictor
from kgmlm.runs.options import OpenOptions, RankingOptions, RankOptions
from kgmlm.runs.packs import SUFFIX, find_pack
from kgmlm.runs.writing import writing

if TYPE_CHECKING:
    import pandas as pd

    from kgmlm.graphs.given import Triples
    from kgmlm.graphs.queries import Query
    from kgmlm.ranking.predictor import Prediction, Predictor


Best = list[tuple[int, "list[Prediction]"]]  # by position of the query


@dataclass(frozen=True, eq=False)
class Predicting:
    """The ranking of many queries, cut into pieces for workers; each worker opens the run itself.

    Attributes:
        graph: the run's graph with added entities; None if there are none.
        scores_digest: the digest of the weights that all workers must have.
        piece: queries per piece.
        keywords: as of :meth:`kgmlm.ranking.predictor.Predictor.predict`.
        opened: the loaded model, where this process has it already.
    """

    path: Path
    options: RankingOptions
    graph: KnowledgeGraph | None
    scores_digest: str
    asked: Sequence[Query]
    piece: int
    batch_size: int
    keywords: Mapping[str, Any]
    opened: Predictor | None = None

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU is asked for by name."""
        return self.options.on_gpu

    def of(self, number: int) -> range:
        """Positions of the queries of a piece."""
        return range(len(self.asked))[number * self.piece : (number + 1) * self.piece]

    def size(self, number: int) -> int:
        """Return how many queries a piece has."""
        return len(self.of(number))

    def begin(self, watch: Watcher) -> Make[Best]:
        """Open the run, where it is not open here.

        Raises:
            RunError: when this worker sees other weights than the process that asks it.
        """
        predictor = self.opened
        if predictor is None:
            folder, predictor = open_predictor(
                open_folder(self.path), self.options, self.graph, watch, self.batch_size
            )
            if folder.scores_digest != self.scores_digest:
                raise RunError(
                    f"{self.path} has other weights on {platform.node()}; workers need the run at the same "
                    "path, and nobody may change it meanwhile"
                )

        def make(number: int, advance: Tick) -> Best:
            at = self.of(number)
            queries = [self.asked[i] for i in at]
            predictions = predictor.predict(
                queries, batch_size=self.batch_size, advance=advance, **self.keywords
            )
            return [(at[row], best) for row, best in predictions]

        return make

    def sent(self) -> Predicting:
        """A copy for workers; :meth:`kgmlm.core.workers.Work.sent`."""
        graph = None if self.graph is None else replace(self.graph)  # without what is computed of it
        options = self.options.sent()
        return replace(self, path=self.path.absolute(), options=options, graph=graph, opened=None)


def predicted(
    run: Run,
    asked: Sequence[Query],
    watch: Watcher,
    batch_size: int = 64,
    workers: Workers | None = None,
    **keywords: Any,
) -> list[list[Prediction]]:
    """The best candidates of many queries, in the order of the queries.

    Several processes (``torchrun``) share the queries; each must call this, and gets the answers to all.

    Args:
        workers: they open the run for themselves.
        keywords: as of :meth:`kgmlm.ranking.predictor.Predictor.predict`.

    Raises:
        RunError: when the processes were asked different queries, or see another run; or workers die
            repeatedly.
    """
    workers = workers or Workers()
    with shared_by(join(run.options.device)) as world:
        opened = run.open(watch, batch_size) if workers.here else None
        scores_digest = (run.folder if run.is_open else run.folder.now()).scores_digest
        digest = sha256(repr(list(asked)).encode()).hexdigest()
        world.agree((scores_digest, len(run.graph.entities), digest), "weights, entities or queries")
        piece = piece_size(len(asked), batch_size)
        work = Predicting(
            run.path,
            run.options,
            run.extended_graph,
            scores_digest,
            asked,
            piece,
            batch_size,
            keywords,
            opened,
        )
        sizes = np.array([work.size(n) for n in range(-(-len(asked) // piece))], np.int64)
        mine = world.share(sizes)
        bar = partial(watch, "ranking", total=int(sizes[mine].sum()))
        by_query = dict(pair for piece in workers.made(work, mine.tolist(), watch, bar) for pair in piece)
    return [by_query[i] for i in range(len(asked))]


Labeled = tuple[str, str, str]  # head, relation, tail
_OPENING = threading.RLock()  # one model is opened at a time, whichever threads ask for it
_COLUMNS = ("name", "probability", "known", "score", "rank", "entity")


class Verb:
    """A method of a run: the function ``kgmlm.NAME``, which is imported when it is asked for."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: Run | None, kind: type) -> Any:
        function = getattr(kgmlm, self.name)
        return function if run is None else MethodType(function, run)


class Run:
    """A run, ready to rank. ``kgmlm.train`` and ``kgmlm.open_run`` make one.

    Attributes:
        folder: the run on disk, as it was when it or its model was opened: settings, record, weights.
        options: the signals, candidates and device that it ranks with.
        graph: its graph, with the entities that :meth:`with_entities` added.

    Example:
        >>> run = kgmlm.open_run("runs/demo")  # doctest: +SKIP
        >>> run.rank("Astrid Lindgren", "worked in", k=3)  # doctest: +SKIP
    """

    def __init__(
        self, folder: RunFolder, options: RankingOptions | None = None, graph: KnowledgeGraph | None = None
    ) -> None:
        self.folder = folder
        self.options = options or RankingOptions()
        self.graph = graph or folder.graph

    @property
    def path(self) -> Path:
        """The path of the run's folder."""
        return self.folder.path

    @property
    def extended_graph(self) -> KnowledgeGraph | None:
        """The graph, where it has further entities; else None."""
        return None if self.graph is self.folder.graph else self.graph

    @property
    def settings(self) -> Settings:
        """The settings that it was trained with."""
        return self.folder.settings

    @property
    def sureness(self) -> str:
        """What a probability stands for, as a sentence; empty where the run has none."""
        try:
            calibration = self.folder.calibration
        except RunError:  # damaged, or of an earlier state: it ranks without them
            return ""
        return calibration.stands_for(self.folder.graph.validation) if calibration else ""

    @cached_property
    def predictor(self) -> Predictor:
        """The loaded model, which answers queries; it loads on first use."""
        return self.open(Watcher())

    def open(self, watch: Watcher, batch_size: int = 64) -> Predictor:
        """Load the model, and read the entities whose vectors the run has not saved yet.

        Raises:
            RunError: when training has left no model yet, or weights do not fit the signals.
        """
        with _OPENING:
            if not self.is_open:
                further = self.extended_graph
                self.folder, made = open_predictor(self.folder, self.options, further, watch, batch_size)
                if self.graph is not (further or self.folder.graph):  # the run was updated since
                    self.graph = self.folder.graph
                    vars(self).pop("resolver", None)
                vars(self)["predictor"] = made
            return self.predictor

    @property
    def is_open(self) -> bool:
        """Whether the model is loaded."""
        return "predictor" in vars(self)

    def reopen(self) -> None:
        """Reread the folder after it has changed; the model loads again on the next use."""
        own = self.extended_graph is None
        self.folder = self.folder.now()
        self.graph = self.folder.graph if own else self.graph
        for part in ("predictor", "resolver"):
            vars(self).pop(part, None)

    def with_entities(
        self,
        more: EntityTable | pd.DataFrame | str | Path,
        triples: Triples | str | Path = (),
        *,
        progress: bool | Watcher | Advance = False,
    ) -> Run:
        """A copy of the run that knows new entities, by their texts and triples; nothing is
        trained.

        Args:
            more: a table, a DataFrame or a file with columns label, name and, if you like, description,
                surface and types; or an RDF file.
            triples: (head, relation, tail), each with a new entity, by labels or names; or a file. They
                count like the training triples of other entities: as neighbors in texts, for rules and types,
                and as known answers.

        Raises:
            DataError: when an entity exists already, or a file is no such table.
            QueryError: for a triple of no new entity, or with an unknown or ambiguous entity or relation.
        """
        from kgmlm.importing.new_entities import read_new_entities

        if isinstance(more, str | Path):
            with watcher_of(progress) as watch:
                table = read_new_entities(as_path(more, "the file of entities"), self.graph, watch)
        else:
            table = more if isinstance(more, EntityTable) else labeled_entities(more)
        graph = self.graph.extended(table)
        given = _given(graph, triples, first=len(self.graph.entities))
        return Run(self.folder, self.options, graph.with_context(given) if len(given) else graph)

    @takes(RankOptions)
    def rank(self, options: RankOptions) -> pd.DataFrame:
        """The k best tails of (head, relation, ?), or heads of (?, relation, tail).

        Returns:
            A table, best first: the ``name``, the ``probability`` of finding the triple in a further hidden
            set as large as validation (:func:`kgmlm.calibrate`; NaN where none was fitted, and where training
            has the triple), whether it is ``known``, ``score`` and ``rank``. Of one query, the name is
            ``tail_name`` (or ``head_name``), and PyKEEN's ``tail_label`` and ``tail_id`` come last; of many,
            the query's ``head``, ``relation`` and ``tail`` come first, and the label, ``entity``, last.

        Example:
            >>> run.rank("France", "has the capital", k=3)  # doctest: +SKIP

        Raises:
            QueryError: for an unknown or ambiguous entity or relation.
        """
        import pandas as pd

        with watcher_of(options.progress) as watch:
            asked, is_single = self.asked(options)  # a wrong name is refused before the model is opened
            if is_single:
                predictor = self.open(watch, options.batch_size)
                return predictor.rank(
                    cast("str | None", options.head), options.relation or "", options.tail, options.k,
                    novel=options.novel,
                )  # fmt: skip
            rows = [
                _columns(self.graph, query) | _row(p)
                for query, predictions in self._predicted(asked, options, watch)
                for p in predictions
            ]
        return pd.DataFrame(rows, columns=[*ENDS, *_COLUMNS])

    @takes(RankOptions)
    def explain(self, options: RankOptions) -> pd.DataFrame:
        """Rank as :meth:`rank` does for many queries, and split each score into its parts.

        Returns:
            The columns of :meth:`rank`; then a column per signal and second stage with what it adds to the
            score; and ``tokens``: (token, log-likelihood) of each token of the name, as a list. Where
            rules count, ``because``: the triples that the best of them rest on, and how often each rule is
            right in training.
        """
        import pandas as pd

        rows = []
        with watcher_of(options.progress) as watch:
            asked, _ = self.asked(options)
            for query, predictions in self._predicted(asked, options, watch, explain=True):
                for p in predictions:
                    parts = {name: part.weight * part.value for name, part in (p.parts or {}).items()}
                    tokens = [(t["text"], t["log_likelihood"]) for t in p.tokens or ()]
                    why = {"because": list(p.because)} if {"rules", "linked"} & set(parts) else {}
                    rows.append(_columns(self.graph, query) | _row(p) | parts | {"tokens": tokens} | why)
        return pd.DataFrame(rows)

    def asked(self, options: RankOptions) -> tuple[list[Query], bool]:
        """The queries that are asked, and whether it is a single one by head, relation and tail."""
        head, queries = _one_or_many(options.head, options.queries)
        if queries is None:
            return [self.resolver.query(options.relation or "", head, options.tail)], True
        if (head, options.relation, options.tail) != (None, None, None):
            raise QueryError("give either queries or one query, not both")
        if isinstance(queries, str | Path):
            return read_queries(as_path(queries, "the file of queries"), self.resolver), False
        find = self.resolver.query
        return [find(r, h, t) for h, r, t in labeled_queries(queries)], False

    def score(self, triples: Triples, progress: bool | Watcher | Advance = False) -> pd.DataFrame:
        """Score given triples from both sides: each tail and each head as the answer of its query.

        Args:
            triples: (head, relation, tail) by labels or names; a list, an array, or a DataFrame with these
                columns.

        Returns:
            The triples by label, with ``tail_score`` and ``head_score``, as :meth:`rank` has them.

        Raises:
            QueryError: for an unknown or ambiguous entity or relation.
        """
        import numpy as np
        import pandas as pd

        from kgmlm.graphs.queries import both_sides

        find = self.resolver
        named = labeled_triples(triples)
        ids = np.array([(find.entity(h), find.relation(r), find.entity(t)) for h, r, t in named], np.int64)
        queries, answers = both_sides(ids.reshape(-1, 3))
        scores_B = np.zeros(len(queries), np.float64)
        with watcher_of(progress) as watch:
            ranker = self.open(watch).ranker
            for rows, scores_bN in ranker.rank(queries, advance=lambda n: watch("scoring", n, len(queries))):
                scores_B[rows] = scores_bN[np.arange(len(rows)), answers[rows]]
        table = pd.DataFrame(self.graph.labeled(ids.reshape(-1, 3)), columns=list(ENDS))
        heads, tails = np.split(scores_B, 2)
        return table.assign(tail_score=tails, head_score=heads)

    def rules(self, relation: str | None = None) -> pd.DataFrame:
        """The rules of the run, the most confident first.

        Args:
            relation: only those that predict this one; a label or a name.

        Returns:
            AnyBURL's columns: ``predicted`` and ``correct`` (how often on training triples), ``confidence``
            (``correct / predicted``) and ``rule``; then the rule in ``words``.

        Raises:
            RunError: when the run has no rules.
            QueryError: for an unknown or ambiguous relation.
        """
        from kgmlm.signals.rule_set import RuleFile
        from kgmlm.signals.rules import Rules

        file = self.path / Rules.file
        self.folder.check(Rules.file)
        if not file.is_file():
            raise RunError(
                f"{self.path} has no rules; `kgmlm tune {quoted(self.path)} --add rules` mines some"
            )
        rules = Rules.open(file, self.folder.graph).applied.rules
        only = None if relation is None else self.resolver.relation(relation)
        return RuleFile(self.folder.graph.entities, self.folder.graph.relations).table(rules, only)

    # Functions of the package whose first argument is a run, with their own signatures and docstrings.
    classify = Verb("classify")
    complete = Verb("complete")
    embeddings = Verb("embeddings")
    evaluate = Verb("evaluate")
    info = Verb("info")
    missing = Verb("missing")
    report = Verb("report")
    serve = Verb("serve")
    similar = Verb("similar")
    update = Verb("update")

    def __dir__(self) -> list[str]:
        return [*SHOWN]

    def __reduce__(self) -> tuple[Any, ...]:
        if self.extended_graph is not None:
            raise TypeError("a run with further entities is not pickled; open it and add them there")
        return _reopened, (self.path.absolute(), self.options)

    def __copy__(self) -> Run:
        return Run(self.folder, self.options, self.graph)

    def __deepcopy__(self, memo: object) -> Run:
        return copy(self)

    @cached_property
    def resolver(self) -> Any:
        """Names, as people type them, to ids."""
        from kgmlm.graphs.names import Resolver

        return Resolver(self.graph)

    def _predicted(
        self, asked: Sequence[Query], options: RankOptions, watch: Watcher, explain: bool = False
    ) -> list[tuple[Query, list[Prediction]]]:
        best = predicted(
            self, asked, watch, options.batch_size, Workers(options.ray, options.workers),
            k=options.k, novel=options.novel, explain=explain,
        )  # fmt: skip
        return list(zip(asked, best, strict=True))

    def __repr__(self) -> str:
        record, signals = self.folder.record, ", ".join(self.folder.tuned.mixture.signals)
        return f"<kgmlm run {self.path}: {record['status']}; {self.graph.summary()}; signals: {signals}>"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"


# The attributes of a run that ``dir`` and completion list; the package uses the others.
SHOWN = (
    "classify", "complete", "embeddings", "evaluate", "explain", "folder", "graph", "info", "options", "path",
    "rank", "report", "rules", "score", "serve", "settings", "similar", "update", "with_entities",
)  # fmt: skip


def _one_or_many(head: Any, queries: Any) -> tuple[str | None, Any]:
    """The head of one query, and many queries, which may be in the head's place."""
    if head is None or isinstance(head, str):
        return head, queries
    if queries is not None:
        raise QueryError("queries are given twice")
    return None, head


def _columns(graph: KnowledgeGraph, query: Query) -> dict[str, str | None]:
    known: dict[str, str | None] = dict.fromkeys(ENDS)
    known["head" if query.target == "tail" else "tail"] = graph.entities[query.entity].label
    known["relation"] = graph.relations[query.relation].label
    return known


def _row(p: Prediction) -> dict[str, Any]:
    probability = float("nan") if p.probability is None else p.probability
    return dict(zip(_COLUMNS, (p.name, probability, p.known, p.score, p.rank, p.label), strict=True))


def _given(graph: KnowledgeGraph, triples: Triples | str | Path, first: int) -> IntArray:
    """Ids of triples that each have an entity from ``first`` on."""
    import numpy as np

    from kgmlm.graphs.names import Resolver

    find, ids = Resolver(graph), []
    for where, row in GivenTriples.of(triples).numbered():
        try:
            head, relation, tail = find.entity(row[0]), find.relation(row[1]), find.entity(row[2])
            if max(head, tail) < first:
                raise QueryError("neither entity is new; only triples of new entities can be given")
        except QueryError as error:
            raise QueryError(f"{where}: {error}") from None
        ids.append((head, relation, tail))
    return np.array(ids, np.int64).reshape(-1, 3)


def _reopened(path: Path, options: RankingOptions) -> Run:
    return Run(open_folder(path), options)


def path_of(run: Run | str | Path) -> Path:
    """The path of a run."""
    return run.path if isinstance(run, Run) else as_path(run, "the run", RunError)


@takes(OpenOptions)
def open_run(path: str | Path, options: OpenOptions) -> Run:
    """Open a trained run or a pack; its model loads on first use.

    Raises:
        RunError: when the folder is no run, or is damaged.
        ConfigError: when there are no such scores.
    """
    return Run(open_folder(path, verify=options.verify), RankingOptions.of(options))


Job = TypeVar("Job", bound=Callable[..., Any])


def writes_run(job: Job) -> Job:
    """Decorate a job that writes the run given as its first argument: lock the run meanwhile.

    With several processes the main one holds the lock. A :class:`Run` rereads its folder after the job.
    """

    @wraps(job)
    def wrapper(run: Any, *args: Any, **kwargs: Any) -> Any:
        path = path_of(run)
        if _is_pack(path):
            how = f"`kgmlm unpack {quoted(path)} --output RUN` makes a run of it"
            if job.__name__ == "calibrate":
                how = (
                    f"`kgmlm pack {quoted(path)} --calibrate --output NEW{SUFFIX}` writes a pack with "
                    "probabilities"
                )
            raise RunError(f"{path} is a pack, which is not written to; {how}")
        with writing(path, job.__name__) if main_process() else nullcontext():
            done = job(run, *args, **kwargs)
        if isinstance(run, Run):
            run.reopen()
        return done

    return wrapper  # type: ignore[return-value]


def _is_pack(path: Path) -> bool:
    """Return whether a path is that of a pack, or of one in the cache."""
    with suppress(RunError):
        return find_pack(path) is not None or bool(read_record(path).get("unpacked"))
    return False  # it is no run, which the job says


def path_if(given: str | Path | None, what: str) -> Path | None:
    """A path, where one is given; ``what`` as of :func:`~kgmlm.core.files.as_path`."""
    return None if given is None else as_path(given, what)
