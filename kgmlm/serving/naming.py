"""Names in requests to ids, and what requests say of entities that the graph has not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import EntityTable, IntArray, Query, QueryError, folded
from kgmlm.resolver import Resolver
from kgmlm.serving.models import NewEntity, OneSide, Triple
from kgmlm.serving.search import Hit


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
            self.names[folded(name)].append(i)

    def entity(self, text: str) -> int:
        """Id of an entity.

        Raises:
            QueryError: when it is unknown or ambiguous.
        """
        if text in self.labels:
            return self.labels[text]
        found = self.names.get(folded(text), [])
        if len(found) > 1:
            raise QueryError(f"'{text}' names {len(found)} of the new entities; give a label")
        return found[0] if found else self.base.entity(text)

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
    )


def triples_of(entities: Sequence[NewEntity], names: OwnNames, first: int) -> IntArray:
    """The triples that new entities are given, ``(n, 3)``.

    Args:
        first: the id of the first entity; the others follow.

    Raises:
        QueryError: for an unknown or ambiguous entity or relation.
    """
    found = []
    for i, entity in enumerate(entities):
        for n, given in enumerate(entity.triples):
            try:
                query = query_of(names, given)
            except QueryError as error:
                raise QueryError(f"entities.{i}.triples.{n}: {error}") from None
            ends = (query.entity, first + i)
            head, tail = ends if query.target == "tail" else ends[::-1]
            found.append((head, query.relation, tail))
    return np.array(found, np.int64).reshape(-1, 3)


def query_of(names: Finding, asked: OneSide) -> Query:
    """What is asked, by ids.

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
