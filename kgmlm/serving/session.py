"""A served run: its model, added entities, names to ids, the work on requests, and its folder.

A run may be trained further, moved or removed while it is served. An open run keeps answering from memory;
whatever needs the folder first asks :class:`Origin`. All methods but :meth:`Session.find`,
:meth:`Session.page` and the figures are for one thread at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np

from kgmlm.core.arrays import IntArray
from kgmlm.core.errors import ConfigError, KgmlmError, QueryError, RunError
from kgmlm.core.progress import Watcher
from kgmlm.graphs.entities import EntityTable, folded
from kgmlm.graphs.graph import Edge, KnowledgeGraph
from kgmlm.graphs.names import ExactResolver, Resolver
from kgmlm.graphs.queries import Query
from kgmlm.prediction.classify import judged
from kgmlm.prediction.missing import missing_of
from kgmlm.ranking.predictor import Prediction, Predictor
from kgmlm.runs.entity_vectors import read_vectors
from kgmlm.runs.folder import PROBABILITIES, read_record
from kgmlm.runs.run import Run
from kgmlm.serving.explore import Explorer, Hit, Pages, Search, edge_rows, shown
from kgmlm.serving.schema import (
    MAX_KEPT,
    MAX_KEPT_TRIPLES,
    MAX_WORK,
    ExploreRequest,
    NewEntity,
    OneSide,
    RankQuery,
    Triple,
)
from kgmlm.sharing.embeddings import nearest

Standing = Literal["as opened", "changed", "gone"]
_LAID = (
    "dataset",
    "sources",
    "model",
    "seed",
    "span_length",
    "command",
)  # what training further leaves alone


class Origin:
    """The folder that a run was opened from.

    Args:
        run: one whose model is open.
    """

    def __init__(self, run: Run) -> None:
        self.folder = run.folder

    @property
    def is_the_run(self) -> bool:
        """Whether the folder is still there and still of this run, whatever was trained since."""
        try:
            return _laid(read_record(self.folder.path)) == _laid(self.folder.record)
        except RunError:
            return False

    @property
    def is_stale(self) -> bool:
        """Whether the folder has another state of the run than is served, or other probabilities."""
        if self.standing != "as opened":
            return self.standing == "changed"
        return self.folder.now().contents.get(PROBABILITIES) != self.folder.contents.get(PROBABILITIES)

    @property
    def standing(self) -> Standing:
        """The state of the folder: "changed" where its model or weights are others now, or where it is
        another run's.
        """
        try:
            if not (self.folder.path / "run.json").is_file():
                return "gone"
            same = self.folder.now().scores_digest == self.folder.scores_digest and self.is_the_run
        except (OSError, RunError):
            return "gone"
        return "as opened" if same else "changed"


def _laid(record: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a run's record about how it was begun; its graph may grow."""
    settings = (record.get("files") or {}).get("config.toml")
    return {key: record.get(key) for key in _LAID} | {"config.toml": settings}


class Names(Resolver):
    """As :class:`~kgmlm.graphs.names.Resolver`, but names like an unknown one are searched for."""

    def __init__(self, graph: KnowledgeGraph, find: Callable[[str, int], list[Hit]]) -> None:
        super().__init__(graph)
        self.find = find
        with suppress(QueryError):
            self.entity("")  # the list of names is made now, not for the first request

    def near(self, text: str) -> list[str]:
        """Names of the three entities that are most like a text."""
        return [self.graph.entities[hit.entity].surface for hit in self.find(text, 3)]


class OwnNames:
    """Names of a request's own entities, which go before those of the graph."""

    def __init__(self, base: Resolver, more: EntityTable, first: int) -> None:
        self.base = base
        self.labels = {label: first + i for i, label in enumerate(more.column("label"))}
        self.names: dict[str, list[int]] = defaultdict(list)
        for i, name in enumerate(more.column("name"), first):
            self.names[folded(name)].append(i)

    def entity(self, text: str) -> int:
        """Id of an entity.

        Raises:
            QueryError: when it is unknown or ambiguous.
        """
        if text in self.labels:
            return self.labels[text]
        ids = self.names.get(folded(text), [])
        if len(ids) > 1:
            raise QueryError(f"'{text}' names {len(ids)} of the new entities; give a label")
        return ids[0] if ids else self.base.entity(text)

    def relation(self, text: str) -> int:
        """Id of a relation, of the graph."""
        return self.base.relation(text)


Finding = Names | OwnNames


def table_of(entities: Sequence[NewEntity]) -> EntityTable:
    """New entities as a table.

    Raises:
        DataError: when two have the same label.
    """
    return EntityTable(
        [e.label or e.name for e in entities],
        [e.name for e in entities],
        [e.description for e in entities],
        types=["|".join(e.types) for e in entities],
    )


def triples_of(entities: Sequence[NewEntity], names: OwnNames, first: int) -> IntArray:
    """The triples that new entities are given, ``(n, 3)``.

    Args:
        first: the id of the first entity; the others follow.

    Raises:
        QueryError: for an unknown or ambiguous entity or relation.
    """
    triples = []
    for i, entity in enumerate(entities):
        for n, given in enumerate(entity.triples):
            try:
                query = query_of(names, given)
            except QueryError as error:
                raise QueryError(f"entities.{i}.triples.{n}: {error}") from None
            ends = (query.entity, first + i)
            head, tail = ends if query.target == "tail" else ends[::-1]
            triples.append((head, query.relation, tail))
    return np.array(triples, np.int64).reshape(-1, 3)


def check_written(
    graph: KnowledgeGraph, entities: Sequence[NewEntity], match_names: bool
) -> list[dict[str, str]]:
    """Refuse new entities whose triples have relations or entities that neither a graph nor the request has.

    Returns:
        The new labels that are nearly alike to known ones: ``new`` and ``known``.

    Raises:
        QueryError: naming the first that is not known by its label or exactly by its name.
    """
    table = table_of(entities)
    labels = table.column("label")
    new = [i for i, label in enumerate(labels) if graph.entities.find(label) is None]
    asked = ExactResolver(graph, labels, (), match_names=False)
    given = [triple for entity in entities for triple in entity.triples]
    others = [x for triple in given for x in (triple.head, triple.tail) if x is not None]
    extended = graph.extended(table.take(np.array(new, np.int64)))
    resolver = ExactResolver(extended, others, (triple.relation for triple in given), match_names)
    for i, entity in enumerate(entities):
        for n, triple in enumerate(entity.triples):
            try:
                resolver.known_relation(triple.relation)
                resolver.known_entity(triple.head if triple.head is not None else triple.tail or "")
            except QueryError as error:
                raise QueryError(f"entities.{i}.triples.{n}: {error}") from None
    return [
        {"new": labels[i], "known": graph.entities[other].label}
        for i in new
        for other in asked.alike_entities.get(labels[i], ())
    ]


def query_of(names: Finding, asked: OneSide) -> Query:
    """A query by ids.

    Raises:
        QueryError: for an unknown or ambiguous entity or relation.
    """
    known = asked.head if asked.head is not None else asked.tail
    assert known is not None
    return Query(
        names.entity(known), names.relation(asked.relation), "tail" if asked.head is not None else "head"
    )


def ids_of(names: Finding, triple: Triple) -> tuple[int, int, int]:
    """A triple by ids.

    Raises:
        QueryError: for an unknown or ambiguous entity or relation.
    """
    return names.entity(triple.head), names.relation(triple.relation), names.entity(triple.tail)


_Task = TypeVar("_Task")
EXPLAINED, TOLD = 10, 500  # answers that take about as long as reading a text


@dataclass
class Own:
    """New entities of one request, and what answers with them after its first part was asked.

    Attributes:
        known: the predictor and the names that know them.
    """

    entities: Sequence[NewEntity] = ()
    known: tuple[Predictor, Finding] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class RankTask:
    """Queries of one request."""

    queries: Sequence[RankQuery]
    k: int
    novel: bool
    explain: bool = False
    own: Own = field(default_factory=Own)


@dataclass(frozen=True)
class ClassifyTask:
    """Triples of one request."""

    triples: Sequence[Triple]
    prior: float = 0.5
    explain: bool = False
    own: Own = field(default_factory=Own)


@dataclass(frozen=True)
class ExploreTask:
    """One query of the explorer's page."""

    asked: ExploreRequest
    own: Own


@dataclass(frozen=True)
class AddTask:
    """Entities to keep until the process ends."""

    entities: Sequence[NewEntity]


@dataclass(frozen=True)
class SimilarTask:
    """The k entities that are most like one of the run's, which is asked for by its label."""

    entity: str
    k: int


@dataclass(frozen=True)
class MissingTask:
    """The k facts that one of the run's entities most probably lacks; it is asked for by its label."""

    entity: str
    k: int


Task = RankTask | ClassifyTask | AddTask | ExploreTask | SimilarTask | MissingTask
Row = dict[str, Any]


class Session:
    """A run that is being served: all that answers is in memory, so its folder may change or vanish.

    Args:
        run: as it is to be asked.
        batch_size: queries per forward pass.

    Attributes:
        origin: the folder that the run was opened from.
    """

    def __init__(self, run: Run, batch_size: int = 64) -> None:
        self.run, self.batch_size = run, batch_size
        self.graph = run.graph
        self.pages = Pages(run.graph)
        self.searched = Search(run.graph.entities)
        self.searched_added: Search | None = None
        self.added: list[NewEntity] = []
        self.predictor = run.open(Watcher())
        self.origin = Origin(run)
        self.names = Names(run.graph, self.find)

    @property
    def stands_for(self) -> str | None:
        """What a probability stands for, as a sentence; None where there are none."""
        classifier = self.predictor.classifier
        return None if classifier is None else classifier.calibration.stands_for(self.run.graph.validation)

    def parts(self, task: Task) -> list[tuple[Task, int]]:
        """A task in parts of a batch or less, each with its size: about how many texts the model reads.

        Raises:
            QueryError: when it is more work than one request may ask.
        """
        if isinstance(task, AddTask):
            return [(task, max(1, len(task.entities)))]
        if isinstance(task, SimilarTask):
            return [(task, 1)]
        if isinstance(task, MissingTask):
            return [(task, self.batch_size)]
        if isinstance(task, ClassifyTask):
            size, count = 2, len(task.triples)
        else:
            size = 1 + sum(stage_weight.k for stage_weight in self.predictor.ranker.stage_weights.values())
            if self.predictor.classifier is not None:  # each answer is asked for from its other side
                size += task.asked.k + len(task.asked.also) if isinstance(task, ExploreTask) else task.k
            if isinstance(task, ExploreTask):
                size, count = size + (task.asked.k + len(task.asked.also)) // EXPLAINED, 1
            else:
                size, count = size + task.k // (EXPLAINED if task.explain else TOLD), len(task.queries)
        if (work := size * count + len(task.own.entities)) > MAX_WORK:
            raise QueryError(
                f"this is {work:,} texts for the model to read, and one request may ask {MAX_WORK:,}: ask "
                f"{max(1, MAX_WORK // size)} at a time, or fewer candidates"
            )
        step = max(1, self.batch_size // size)
        if isinstance(task, ExploreTask) or count <= step:
            return [(task, size * count)]
        slices = [slice(start, start + step) for start in range(0, count, step)]
        if isinstance(task, ClassifyTask):
            return [(replace(task, triples=x), size * len(x)) for x in (task.triples[at] for at in slices)]
        return [(replace(task, queries=x), size * len(x)) for x in (task.queries[at] for at in slices)]

    def work(self, tasks: Sequence[Task]) -> list[Any]:
        """A result per task, or the error of one; tasks of the same kind share forward passes."""
        results: list[Any] = [None] * len(tasks)
        for at, task in enumerate(tasks):
            if isinstance(task, AddTask):
                results[at] = self._tried(self._add, task)
            elif isinstance(task, ExploreTask):
                results[at] = self._tried(self._explored, task)
            elif isinstance(task, SimilarTask):
                results[at] = self._tried(self._similar, task)
            elif isinstance(task, MissingTask):
                results[at] = self._tried(self._missing, task)
        ranked = {at: task for at, task in enumerate(tasks) if isinstance(task, RankTask)}
        alike: dict[Any, dict[int, RankTask]] = defaultdict(dict)
        for at, task in ranked.items():
            alike[(task.novel, task.explain, id(task.own) if task.own.entities else None)][at] = task
        for group in alike.values():
            for at, result in self._ranked(group).items():
                results[at] = result
        claimed = {at: task for at, task in enumerate(tasks) if isinstance(task, ClassifyTask)}
        joined = {at: task for at, task in claimed.items() if not task.own.entities}
        for group_c in (joined, *({at: task} for at, task in claimed.items() if task.own.entities)):
            for at, result in self._classified(group_c).items():
                results[at] = result
        return results

    def _tried(self, do: Callable[[_Task], Any], task: _Task) -> Any:
        try:
            return do(task)
        except KgmlmError as error:
            return error

    def _knowing(self, own: Own) -> tuple[Predictor, Finding]:
        """The predictor and the names for a request, with its own entities."""
        if not own.entities:
            return self.predictor, self.names
        if own.known is None:
            own.known = self._with(own.entities)
        return own.known

    def _with(self, entities: Sequence[NewEntity]) -> tuple[Predictor, Finding]:
        more, first = table_of(entities), len(self.graph.entities)
        names = OwnNames(self.names, more, first)
        predictor = self.predictor.with_entities(more, triples_of(entities, names, first))
        read_vectors(predictor.ranker, Watcher())
        return predictor, names

    def _ranked(self, tasks: dict[int, RankTask]) -> dict[int, Any]:
        """The answers to requests with the same options; a request with its own entities comes alone."""
        first = next(iter(tasks.values()))
        try:
            predictor, names = self._knowing(first.own)
        except KgmlmError as error:
            return dict.fromkeys(tasks, error)
        results: dict[int, Any] = {
            at: self._tried(lambda t: [query_of(names, q) for q in t.queries], task)
            for at, task in tasks.items()
        }
        asked = {at: queries_of for at, queries_of in results.items() if isinstance(queries_of, list)}
        queries = [query for queries_of in asked.values() for query in queries_of]
        if not queries:
            return results
        k = max(tasks[at].k for at in asked)
        novel, explain = first.novel, first.explain
        predicted = dict(
            predictor.predict(queries, k, novel=novel, explain=explain, batch_size=self.batch_size)
        )
        rows = iter(range(len(queries)))
        for at, queries_of in asked.items():
            results[at] = [_row(predictor.graph, q, predicted[next(rows)][: tasks[at].k]) for q in queries_of]
        return results

    def _classified(self, tasks: dict[int, ClassifyTask]) -> dict[int, Any]:
        if not tasks:
            return {}
        try:
            predictor, names = self._knowing(next(iter(tasks.values())).own)
            if predictor.classifier is None:
                raise RunError(
                    "this run has no probabilities; `kgmlm calibrate` fits them, before it is served"
                )
        except KgmlmError as error:
            return dict.fromkeys(tasks, error)
        results = {at: self._tried(lambda t: _ids(names, t.triples), task) for at, task in tasks.items()}
        asked = {at: ids for at, ids in results.items() if not isinstance(ids, KgmlmError)}
        if not asked:
            return results
        claims = [(ids, tasks[at].prior) for at, ids in asked.items()]
        judgments = judged(predictor.classifier, predictor.graph, claims, batch_size=self.batch_size)
        for at, judgment in zip(asked, judgments, strict=True):
            results[at] = judgment.as_json(tasks[at].explain)
        return results

    def _explored(self, task: ExploreTask) -> Row:
        asked = task.asked
        predictor, names = self._knowing(task.own)
        query = query_of(names, asked)
        also = np.array([names.entity(text) for text in asked.also], np.int64)
        page = shown(predictor, query, asked.k, asked.novel, also)
        rows = [*page["predictions"], *page["also"]]
        for row in (page["entity"], *rows):
            row["types"] = self.explorer.types(row["id"], row["types"])
        for row in rows:
            ends = (query.entity, row["id"]) if query.target == "tail" else (row["id"], query.entity)
            row["in_test"] = (ends[0], query.relation, ends[1]) in self._test
        page["entity"]["of_graph"] = query.entity < len(self.graph.entities)
        page["entity"]["given"] = self._given(predictor.graph, query.entity)
        return page

    def _similar(self, task: SimilarTask) -> list[Row]:
        entity, ranker = self.run.graph.entities.find(task.entity), self.predictor.ranker
        if entity is None:
            raise QueryError(f"no entity has the label '{task.entity}'")
        try:
            ids, cosines = nearest(ranker, None, entity, task.k)
        except (ConfigError, QueryError):  # it has no embedding
            return []
        named = [ranker.reader.context.entities[i] for i in ids.tolist()]
        return [
            {"label": e.label, "name": e.surface, "cosine": cosine}
            for e, cosine in zip(named, cosines.tolist(), strict=True)
        ]

    def _missing(self, task: MissingTask) -> list[Row]:
        entity = self.graph.entities.find(task.entity)
        if entity is None:
            raise QueryError(f"no entity has the label '{task.entity}'")
        facts = missing_of(self.run, self.predictor, np.array([entity]), task.k)
        return [self.reasoned(fact) for fact in facts.as_json()]

    def _given(self, graph: KnowledgeGraph, entity: int) -> list[Row]:
        """The triples that an entity has from a request."""
        given = graph.splits["train"][len(self.graph.splits["train"]) :].tolist()
        return edge_rows(
            graph,
            [
                Edge(r, "tail", t) if h == entity else Edge(r, "head", h)
                for h, r, t in given
                if entity in (h, t)
            ],
        )

    @cached_property
    def explorer(self) -> Explorer:
        """The graph of the run, to walk through."""
        return Explorer(self.run.graph, self.run.settings.types.relation)

    def near(self, asked: RankQuery, answer: str) -> dict[str, list[Row]]:
        """Training triples like an answer of a query.

        Raises:
            QueryError: for an unknown or ambiguous entity or relation.
        """
        names = self.names
        return self.explorer.near(query_of(names, asked), names.entity(answer))

    def examples(self, relation: str, side: str, k: int) -> list[Hit]:
        """Entities to begin with, of one relation by its label, or of any."""
        asked = self.names.relation(relation) if relation else None
        ids = self.explorer.beginnings(asked, side, k if asked is not None else len(self.graph.relations))
        return [Hit(entity, 100.0) for entity in list(dict.fromkeys(e for e, _ in ids))[:k]]

    def reasoned(self, fact: Row) -> Row:
        """A new fact with its reason, and whether test has it."""
        graph = self.run.graph
        head, tail = (graph.entities.find(fact[end]) for end in ("head", "tail"))
        relation = graph.relations.index.get(fact["relation"])
        if head is None or tail is None or relation is None:  # a list that somebody else has written
            return fact | {"because": "", "in_test": False}
        return fact | {"because": fact.get("because", ""), "in_test": (head, relation, tail) in self._test}

    @cached_property
    def _test(self) -> set[tuple[int, ...]]:
        return set(map(tuple, self.run.graph.splits.get("test", np.zeros((0, 3), np.int64)).tolist()))

    def _add(self, task: AddTask) -> list[str]:
        """Keep entities.

        Raises:
            DataError: when a label is there already.
            QueryError: when too many are kept, or a triple has an unknown entity or relation.
        """
        added = [*self.added, *task.entities]
        if len(added) > MAX_KEPT or sum(len(e.triples) for e in added) > MAX_KEPT_TRIPLES:
            raise QueryError(
                f"at most {MAX_KEPT:,} entities with {MAX_KEPT_TRIPLES:,} triples are kept per process"
            )
        predictor, _ = self._with(task.entities)
        self.searched_added = Search(table_of(added), len(self.run.graph.entities))
        self.names = Names(predictor.graph, self.find)
        self.predictor, self.graph, self.added = predictor, predictor.graph, added
        return table_of(task.entities).column("label")

    def find(self, typed: str, k: int) -> list[Hit]:
        """The k entities whose label or name is most like what was typed."""
        graph, more = self.graph, self.searched_added
        hits = (more.find(typed, k) if more is not None else []) + self.searched.find(typed, k)
        hits = [hit for hit in hits if hit.entity < len(graph.entities)]  # one may be about to be added
        return sorted(hits, key=lambda hit: -hit.match)[:k]


def _ids(names: Finding, triples: Sequence[Triple]) -> IntArray:
    return np.array([ids_of(names, x) for x in triples], np.int64)


def _row(graph: KnowledgeGraph, query: Query, predictions: Sequence[Prediction]) -> Row:
    label = graph.entities[query.entity].label
    return {
        "head": label if query.target == "tail" else None,
        "relation": graph.relations[query.relation].label,
        "tail": label if query.target == "head" else None,
        "predictions": [p.as_json() for p in predictions],
    }
