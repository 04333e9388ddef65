"""What a process serves: a run with its model open, the entities that were added, and the work on requests.

All methods but :meth:`Session.find`, :meth:`Session.page` and the figures are for one thread at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from kgmlm.asking import Way, read_entities
from kgmlm.calibration import Calibration
from kgmlm.graph import KnowledgeGraph
from kgmlm.judging import judged
from kgmlm.kg import EntityTable, IntArray, KgmlmError, Query, QueryError, RunError
from kgmlm.prediction import Prediction, Predictor
from kgmlm.ranker import Ranker
from kgmlm.resolver import Resolver
from kgmlm.run import Run
from kgmlm.serving.exploring import Explorer
from kgmlm.serving.models import MOST_KEPT, Asked, ExploreRequest, NewEntity, Triple
from kgmlm.serving.origin import Origin
from kgmlm.serving.search import Hit, Search
from kgmlm.serving.showing import shown
from kgmlm.watching import Watcher

_Task = TypeVar("_Task")


@dataclass(frozen=True)
class RankTask:
    """Queries of one request."""

    queries: Sequence[Asked]
    k: int
    novel: bool
    explain: bool = False
    entities: Sequence[NewEntity] = ()


@dataclass(frozen=True)
class ClassifyTask:
    """Triples of one request."""

    triples: Sequence[Triple]
    prior: float
    relation_thresholds: bool
    explain: bool
    entities: Sequence[NewEntity] = ()


@dataclass(frozen=True)
class ExploreTask:
    """What the page asks of one query."""

    asked: ExploreRequest

    @property
    def size(self) -> int:
        """How many queries it is worth."""
        return 2 if self.asked.also else 1


@dataclass(frozen=True)
class AddTask:
    """Entities to keep until the process ends."""

    entities: Sequence[NewEntity]


Task = RankTask | ClassifyTask | AddTask | ExploreTask
Row = dict[str, Any]


class Names(Resolver):
    """As :class:`~kgmlm.resolver.Resolver`, but names like an unknown one are searched for."""

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
            self.names[name.casefold()].append(i)

    def entity(self, text: str) -> int:
        """Id of an entity.

        Raises:
            QueryError: when it is unknown or ambiguous.
        """
        if text in self.labels:
            return self.labels[text]
        found = self.names.get(text.casefold(), [])
        if len(found) > 1:
            raise QueryError(f"'{text}' names {len(found)} of the new entities; give a label")
        return found[0] if found else self.base.entity(text)

    def relation(self, text: str) -> int:
        """Id of a relation, of the graph."""
        return self.base.relation(text)


Finding = Names | OwnNames


class Session:
    """A run that is being served: all that answers is in memory, so its folder may change or vanish.

    Args:
        run: as it is to be asked.
        calibration: what probabilities go by; None where they were not fitted.

    Attributes:
        origin: the folder that the run was opened from.
    """

    def __init__(self, run: Run, calibration: Calibration | None = None) -> None:
        self.run, self.calibration = run, calibration
        self.graph = run.graph
        self.searched = Search(run.graph.entities)
        self.searched_added: Search | None = None
        self.added: list[NewEntity] = []
        self.predictor = run.open(Watcher())
        self.origin = Origin(run)
        self._plain = None if calibration is None else _plain(run)
        self.names = Names(run.graph, self.find)

    def work(self, tasks: Sequence[Task]) -> list[Any]:
        """A result per task, or the error of one; tasks of the same kind share forward passes."""
        results: list[Any] = [None] * len(tasks)
        for at, task in enumerate(tasks):
            if isinstance(task, AddTask):
                results[at] = self._tried(self._add, task)
            elif isinstance(task, ExploreTask):
                results[at] = self._tried(self._explored, task)
        ranked = {at: task for at, task in enumerate(tasks) if isinstance(task, RankTask)}
        alike: dict[Any, dict[int, RankTask]] = defaultdict(dict)
        for at, task in ranked.items():
            alike[(task.novel, task.explain, at if task.entities else None)][at] = task
        for group in alike.values():
            for at, result in self._ranked(group).items():
                results[at] = result
        claimed = {at: task for at, task in enumerate(tasks) if isinstance(task, ClassifyTask)}
        joined = {at: task for at, task in claimed.items() if not task.entities}
        for group_c in (joined, *({at: task} for at, task in claimed.items() if task.entities)):
            for at, result in self._classified(group_c).items():
                results[at] = result
        return results

    def _tried(self, do: Callable[[_Task], Any], task: _Task) -> Any:
        try:
            return do(task)
        except KgmlmError as error:
            return error

    def _knowing(self, entities: Sequence[NewEntity]) -> tuple[Predictor, Finding]:
        """The predictor and the names for a request, with its own entities."""
        if not entities:
            return self.predictor, self.names
        more = table_of(entities)
        predictor = self.predictor.with_entities(more)
        read_entities(predictor.ranker, Watcher())
        return predictor, OwnNames(self.names, more, len(self.graph.entities))

    def _ranked(self, tasks: dict[int, RankTask]) -> dict[int, Any]:
        """The answers of requests that have the same options; those of one request where it has entities."""
        first = next(iter(tasks.values()))
        try:
            predictor, names = self._knowing(first.entities)
        except KgmlmError as error:
            return dict.fromkeys(tasks, error)
        results: dict[int, Any] = {
            at: self._tried(lambda t: [_query(names, q) for q in t.queries], task)
            for at, task in tasks.items()
        }
        asked = {at: found for at, found in results.items() if isinstance(found, list)}
        queries = [query for found in asked.values() for query in found]
        if not queries:
            return results
        k = max(tasks[at].k for at in asked)
        predicted = dict(predictor.predict(queries, k, novel=first.novel, explain=first.explain))
        rows = iter(range(len(queries)))
        for at, found in asked.items():
            results[at] = [_row(predictor.graph, q, predicted[next(rows)][: tasks[at].k]) for q in found]
        return results

    def _classified(self, tasks: dict[int, ClassifyTask]) -> dict[int, Any]:
        if not tasks:
            return {}
        try:
            if self.calibration is None:
                raise RunError(
                    "this run has no probabilities; `kgmlm calibrate` fits them, before it is served"
                )
            predictor, names = self._knowing(next(iter(tasks.values())).entities)
        except KgmlmError as error:
            return dict.fromkeys(tasks, error)
        results = {
            at: self._tried(lambda t: np.array([_ids(names, x) for x in t.triples], np.int64), task)
            for at, task in tasks.items()
        }
        asked = {at: found for at, found in results.items() if not isinstance(found, KgmlmError)}
        if not asked:
            return results
        claims = [(ids, tasks[at].prior, tasks[at].relation_thresholds) for at, ids in asked.items()]
        judgments = judged(self.calibration, self._first_stage(predictor), predictor.graph, claims)
        for at, found in zip(asked, judgments, strict=True):
            results[at] = found.as_json(tasks[at].explain)
        return results

    def _explored(self, task: ExploreTask) -> Row:
        asked = task.asked
        predictor, names = self._knowing(asked.entities)
        query = _query(names, asked)
        also = np.array([names.entity(text) for text in asked.also], np.int64)
        found = shown(predictor, query, asked.k, asked.novel, also)
        rows = [*found["predictions"], *found["also"]]
        if self.calibration is not None and rows:
            triples = [
                (query.entity, query.relation, row["id"])
                if query.target == "tail"
                else (row["id"], query.relation, query.entity)
                for row in rows
            ]
            claims = [(np.array(triples, np.int64), 0.5, False)]
            (told,) = judged(self.calibration, self._first_stage(predictor), predictor.graph, claims)
            for row, said in zip(rows, told.as_json(), strict=True):
                row["probability"] = said["probability"]
        for row in (found["entity"], *rows):
            row["types"] = self.explorer.types(row["id"], row["types"])
        found["entity"]["of_graph"] = query.entity < len(self.graph.entities)
        return found

    @cached_property
    def explorer(self) -> Explorer:
        """The graph of the run, to walk through."""
        return Explorer(self.run.graph, self.run.settings.types.relation)

    def near(self, asked: Asked, answer: str) -> dict[str, list[Row]]:
        """Training triples like an answer of a query.

        Raises:
            QueryError: for an unknown or ambiguous entity or relation.
        """
        names = self.names
        return self.explorer.near(_query(names, asked), names.entity(answer))

    def _first_stage(self, predictor: Predictor) -> Ranker:
        if self._plain is None:
            return predictor.ranker.but(reranking=None)
        if predictor.graph is self.run.graph:
            return self._plain
        return self._plain.over(predictor.graph.context)

    def _add(self, task: AddTask) -> list[str]:
        """Keep entities.

        Raises:
            DataError: when a label is there already.
            QueryError: when too many are kept.
        """
        if len(self.added) + len(task.entities) > MOST_KEPT:
            raise QueryError(f"at most {MOST_KEPT:,} entities are kept per process")
        more = table_of(task.entities)
        predictor = self.predictor.with_entities(more)
        read_entities(predictor.ranker, Watcher())
        added = [*self.added, *task.entities]
        self.searched_added = Search(table_of(added), len(self.run.graph.entities))
        self.names = Names(predictor.graph, self.find)
        self.predictor, self.graph, self.added = predictor, predictor.graph, added
        return more.column("label")

    def find(self, typed: str, k: int) -> list[Hit]:
        """The k entities whose label or name is most like what was typed."""
        graph, more = self.graph, self.searched_added
        hits = (more.find(typed, k) if more is not None else []) + self.searched.find(typed, k)
        hits = [hit for hit in hits if hit.entity < len(graph.entities)]  # one may be about to be added
        return sorted(hits, key=lambda hit: -hit.match)[:k]

    @cached_property
    def counts_R(self) -> IntArray:
        """Triples of each relation, in all splits."""
        return np.bincount(self.run.graph.all_triples[:, 1], minlength=len(self.run.graph.relations))

    @cached_property
    def _places(self) -> tuple[IntArray, IntArray]:
        """Where each entity's triples are among all: offsets, and rows in order."""
        triples = self.run.graph.all_triples
        loops = triples[:, 0] == triples[:, 2]
        owners = np.concatenate([triples[:, 0], triples[~loops, 2]])
        rows = np.concatenate([np.arange(len(triples)), np.flatnonzero(~loops)])
        order = np.lexsort((rows, owners))
        counts = np.bincount(owners, minlength=len(self.run.graph.entities))
        return np.concatenate([[0], np.cumsum(counts)]), rows[order]

    def page(self, label: str, offset: int, limit: int) -> Row | None:
        """An entity and some of its triples, those of training first; None where there is no such label."""
        graph = self.graph
        entity = graph.entities.find(label)
        if entity is None:
            return None
        kept, offsets, rows = len(self.run.graph.entities), *self._places
        places = rows[offsets[entity] : offsets[entity + 1]] if entity < kept else rows[:0]
        ends = np.cumsum([len(triples) for triples in graph.splits.values()])
        splits, found = list(graph.splits), graph.entities[entity]
        shown = []
        for place in places[offset : offset + limit].tolist():
            h, r, t = graph.all_triples[place].tolist()
            shown.append(
                {
                    "head": _named(graph, h),
                    "relation": {"label": graph.relations[r].label, "name": graph.relations[r].name},
                    "tail": _named(graph, t),
                    "split": splits[int(np.searchsorted(ends, place, "right"))],
                }
            )
        return {
            "label": found.label,
            "name": found.surface,
            "description": found.description,
            "types": list(found.types),
            "total": len(places),
            "offset": offset,
            "triples": shown,
        }


def _plain(run: Run) -> Ranker | None:
    """The ranker that probabilities were fitted to, where the one that ranks is another."""
    way = run.way
    if way == Way(rerank=way.rerank, retrieve=way.retrieve, index=way.index, effort=way.effort,
                  device=way.device, runtime=way.runtime):  # fmt: skip
        return None
    plain = Way(rerank=0, retrieve=0, device=way.device, runtime=way.runtime)
    ranker = plain.ranker(run.folder, run.graph)
    read_entities(ranker, Watcher())
    return ranker


def table_of(entities: Sequence[NewEntity]) -> EntityTable:
    """New entities as a table.

    Raises:
        DataError: when two have the same label.
    """
    return EntityTable(
        [e.label or e.name for e in entities],
        [e.name for e in entities],
        [e.description for e in entities],
    )


def _query(names: Finding, asked: Asked) -> Query:
    known = asked.head if asked.head is not None else asked.tail
    assert known is not None
    return Query(
        names.entity(known), names.relation(asked.relation), "tail" if asked.head is not None else "head"
    )


def _ids(names: Finding, triple: Triple) -> tuple[int, int, int]:
    return names.entity(triple.head), names.relation(triple.relation), names.entity(triple.tail)


def _row(graph: KnowledgeGraph, query: Query, predictions: Sequence[Prediction]) -> Row:
    label = graph.entities[query.entity].label
    return {
        "head": label if query.target == "tail" else None,
        "relation": graph.relations[query.relation].label,
        "tail": label if query.target == "head" else None,
        "predictions": [p.as_json() for p in predictions],
    }


def _named(graph: KnowledgeGraph, entity: int) -> Row:
    found = graph.entities[entity]
    return {"label": found.label, "name": found.surface}
