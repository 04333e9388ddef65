"""A knowledge graph of several splits, and what a template may see of it.

Shapes: N entities, n triples, E training triples of an entity.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kgmlm.filters import FilterIndex, GroupedAnswers, Links, answered
from kgmlm.kg import (
    SPLITS,
    BoolArray,
    DataError,
    EntityTable,
    IntArray,
    Queries,
    RelationTable,
    Target,
    both_sides,
    humanize,
)

HUB = 32  # triples of an entity from which on their order is kept
HUBS = 1 << 16  # of which the order is kept


@dataclass(frozen=True, eq=False)
class KnowledgeGraph:
    """A knowledge graph: texts, relations and the triples of every split, all labels kept.

    Attributes:
        name: what the graph is called in reports.
        splits: split name to (n, 3) ids in head, relation, tail order; "train" is always there.
        sources: file name to sha256, for the record.
        notes: counts that a reader of texts wants reported.
        negatives: split name to (n, 3) ids of triples that its file says are false; most graphs have none.
        links: training triples by entity, where a run keeps them so.
    """

    name: str
    entities: EntityTable
    relations: RelationTable
    splits: Mapping[str, IntArray]
    sources: Mapping[str, str]
    notes: Mapping[str, int] = field(default_factory=dict)
    negatives: Mapping[str, IntArray] = field(default_factory=dict)
    links: Links | None = None

    def triples(self, split: str) -> IntArray:
        """The triples of one split.

        Raises:
            DataError: when the graph has no such split.
        """
        if split not in self.splits:
            have = ", ".join(self.splits)
            raise DataError(
                f"the graph '{self.name}' has no split '{split}' (it has: {have})"
                + ("; `kgmlm data split --random` makes the missing ones" if split in SPLITS else "")
            )
        return self.splits[split]

    def has(self, split: str) -> bool:
        """Whether a split has triples that are true; a file may have false ones alone."""
        return len(self.splits.get(split, ())) > 0

    @cached_property
    def all_triples(self) -> IntArray:
        """The triples of all splits, one below the other."""
        return np.concatenate(list(self.splits.values()))

    @cached_property
    def seen_N(self) -> BoolArray:
        """Which entities occur in a training triple."""
        seen = np.zeros(len(self.entities), np.bool_)
        for ids in (self.splits["train"][:, 0], self.splits["train"][:, 2]):
            seen[ids] = True
        return seen

    @cached_property
    def filter_index(self) -> FilterIndex:
        """Known answers over all splits: what filtered evaluation takes out."""
        return self.known(self.splits)

    def known(self, splits: Collection[str]) -> FilterIndex:
        """Known answers over some splits."""
        parts = [triples for split, triples in self.splits.items() if split in splits]
        return FilterIndex(parts, len(self.entities), self._links if "train" in splits else None)

    @property
    def _links(self) -> Links | None:
        """The links of today's training triples."""
        return self.links if self.links and self.links.of is self.splits["train"] else None

    @cached_property
    def context(self) -> ContextGraph:
        """What a template may see."""
        return ContextGraph(self.entities, self.relations, self.splits["train"], self._links)

    def extended(self, more: EntityTable) -> KnowledgeGraph:
        """The same triples with further entities, which no triple has; ids are kept.

        Raises:
            DataError: when an entity exists already.
        """
        return replace(self, entities=self.entities.extended(more))

    def with_context(self, triples: IntArray) -> KnowledgeGraph:
        """The same with further training triples: context of templates, rules and types, and known answers.

        Args:
            triples: (n, 3) ids.
        """
        train = np.concatenate([self.splits["train"], triples.reshape(-1, 3)])
        return replace(self, splits={**self.splits, "train": train})

    def with_relations(self, labels: Sequence[str]) -> KnowledgeGraph:
        """The same triples with further relations, which no triple has, named by their labels; ids are kept.

        Raises:
            DataError: when a relation exists already.
        """
        rows = [(r.label, r.name) for r in self.relations] + [(x, humanize(x)) for x in labels]
        return replace(self, relations=RelationTable(*map(list, zip(*rows, strict=True))))

    def queries(self, split: str) -> tuple[Queries, IntArray]:
        """Both queries of each triple of a split (heads first) and, apart, their answers."""
        return both_sides(self.triples(split))

    def labeled(self, triples: IntArray) -> list[tuple[str, str, str]]:
        """Ids back to (head, relation, tail) labels."""
        columns = (column.to_pylist() for column in self.labels(triples).columns)
        return list(zip(*columns, strict=True))

    def labels(self, triples: IntArray) -> pa.Table:
        """The same as Arrow columns ``head``, ``relation``, ``tail``."""
        h, r, t = (pa.array(np.ascontiguousarray(ids)) for ids in np.reshape(triples, (-1, 3)).T)
        entities = self.entities.table.column("label")
        relations = pa.array([x.label for x in self.relations], pa.large_string())
        return pa.table({"head": entities.take(h), "relation": relations.take(r), "tail": entities.take(t)})

    def same(self, other: KnowledgeGraph) -> bool:
        """Whether another graph has the same entities, relations and training triples, by label and id."""
        return (
            self.entities.table.column("label").equals(other.entities.table.column("label"))
            and [r.label for r in self.relations] == [r.label for r in other.relations]
            and np.array_equal(self.triples("train"), other.triples("train"))
        )

    def unique_queries(self, split: str) -> tuple[Queries, GroupedAnswers]:
        """Each distinct query of a split once, with all its true answers *in that split*."""
        keys, answers = answered([self.triples(split)], len(self.entities))
        return self.filter_index.queries(keys), answers


@dataclass(frozen=True)
class Edge:
    """A training triple as one of its entities sees it: ``other`` answers ``(relation, target)``."""

    relation: int
    target: Target
    other: int


class Telling(NamedTuple):
    """The training triples of an entity, the most telling first.

    Attributes:
        relation_E: of each.
        tail_E: whether the other entity is the tail.
        other_E: the other entity.
        place_E: where each stands in :meth:`ContextGraph.edges`.
    """

    relation_E: IntArray
    tail_E: BoolArray
    other_E: IntArray
    place_E: IntArray


@dataclass(frozen=True, eq=False)
class ContextGraph:
    """All that a template may see: texts and *training* triples, nothing of the other splits."""

    entities: EntityTable
    relations: RelationTable
    train: IntArray
    kept: Links | None = None

    @cached_property
    def links(self) -> Links:
        """Training triples by entity."""
        return Links.made(self.train, len(self.entities)) if self.kept is None else self.kept

    @cached_property
    def degree_N(self) -> IntArray:
        """Training triples of each entity."""
        degree_N = np.zeros(len(self.entities), np.int64)
        counts = np.diff(self.links.offsets)
        degree_N[: len(counts)] = counts
        return degree_N

    @cached_property
    def answers(self) -> FilterIndex:
        """What training triples answer."""
        return FilterIndex(self.train, len(self.entities), self.kept)

    @cached_property
    def surfaces(self) -> list[str]:
        """Surface of each entity."""
        return self.entities.column("surface")

    @cached_property
    def relation_names(self) -> list[str]:
        """Name of each relation."""
        return [r.name for r in self.relations]

    def edges(self, entity: int) -> list[Edge]:
        """The training triples of an entity."""
        return [
            Edge(r, "tail" if is_tail else "head", other)
            for r, is_tail, other in self.links.at(entity).tolist()
        ]

    def telling(self, entity: int) -> Telling:
        """The same in order: neighbors of few triples before hubs; among equals texts decide, never ids."""
        known = self._hubs.get(entity)
        if known is not None:
            return known
        rows_E3 = self.links.at(entity)
        relations, tails, others = rows_E3.T.tolist()
        degrees = self.degree_N[rows_E3[:, 2]].tolist()
        surfaces, names = self.surfaces, self.relation_names
        keys = [
            (degree, surfaces[other], names[relation], tail)
            for degree, other, relation, tail in zip(degrees, others, relations, tails, strict=True)
        ]
        place_E = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
        ordered_E3 = rows_E3[place_E]
        found = Telling(ordered_E3[:, 0], ordered_E3[:, 1].astype(np.bool_), ordered_E3[:, 2], place_E)
        if len(keys) >= HUB:
            if len(self._hubs) >= HUBS:
                self._hubs.clear()
            self._hubs[entity] = found
        return found

    @cached_property
    def _hubs(self) -> dict[int, Telling]:
        """What is kept of entities whose triples take long to sort."""
        return {}
