"""A knowledge graph: entities, relations, triples of splits, what a template may see; made of labels.

Labels are sorted and coded as numbers, and texts joined to them, by columns; nothing is done row by row.

Shapes: N entities, n triples, E training triples of an entity.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgmlm.core.arrays import BoolArray, IntArray
from kgmlm.core.errors import DataError, counted, printable
from kgmlm.core.tables import CODED, triples_of
from kgmlm.graphs.attributes import described
from kgmlm.graphs.entities import (
    ALIASES,
    LISTS,
    TYPES,
    EntityTable,
    RelationTable,
    completed,
    humanize,
)
from kgmlm.graphs.given import (
    GivenTriples,
    Triples,
    is_pykeens,
    labeled_entities,
    labeled_triples,
    texts_by_label,
)
from kgmlm.graphs.queries import (
    SPLITS,
    FilterIndex,
    GroupedAnswers,
    Links,
    Queries,
    Target,
    answered,
    both_sides,
)

if TYPE_CHECKING:
    import pandas as pd
    from pykeen.datasets import Dataset as PykeenDataset
    from pykeen.triples import TriplesFactory

# What makes a graph: a name, a folder, or triples in memory.
Dataset: TypeAlias = "str | Path | KnowledgeGraph | Triples | TriplesFactory | PykeenDataset"

Validation: TypeAlias = Literal["newest", "entities", "random"]  # what validation triples were drawn by


HUB = 32  # triples of an entity from which on their sorted order is cached
_FIRST = 5  # triples that a notebook shows of a graph
HUBS = 1 << 16  # entities in that cache, at most


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
        validation: what the validation triples were drawn by, where that is known.
        unread: files and columns beside those that were read, each with a remedy (or nothing).
    """

    name: str
    entities: EntityTable
    relations: RelationTable
    splits: Mapping[str, IntArray]
    sources: Mapping[str, str]
    notes: Mapping[str, int] = field(default_factory=dict)
    negatives: Mapping[str, IntArray] = field(default_factory=dict)
    links: Links | None = None
    validation: Validation | None = None
    unread: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_triples(
        cls,
        train: Triples,
        *,
        valid: Triples = (),
        test: Triples = (),
        names: Mapping[str, str] | pd.Series | None = None,
        descriptions: Mapping[str, str] | pd.Series | None = None,
        entities: pd.DataFrame | None = None,
        relation_names: Mapping[str, str] | pd.Series | None = None,
        attributes: Iterable[tuple[str, str, str]] = (),
        name: str = "graph",
    ) -> KnowledgeGraph:
        """A graph of triples in memory.

        Args:
            train, valid, test: (head, relation, tail) by label: a list, an array, a tensor or a DataFrame,
                whose column ``label`` may say which triples are true (1) and which are false (-1 or 0).
            names, descriptions: of entities, by label; what has no name is called by its label, as words.
            entities: instead, a table with the column label and, if you like, name, description, surface and
                types; entities that no triple has are candidates, too.
            relation_names: by label.
            attributes: (entity, attribute, value) by label, such as ("paris", "inhabitants", "2100000"), for
                descriptions.

        Raises:
            DataError: without training triples, or when a text is not a string.
            QueryError: naming the first that is not a triple.

        Example:
            >>> triples = [("france", "capital", "paris"), ("spain", "capital", "madrid")]
            >>> graph = KnowledgeGraph.from_triples(triples, descriptions={"paris": "a city on the Seine"})
            >>> graph.entities[2].name, graph.entities[2].description
            ('paris', 'a city on the Seine')
        """
        splits, negatives, unread = {}, {}, dict[str, str]()
        for split, of in (("train", train), ("valid", valid), ("test", test)):
            given = (
                GivenTriples.of(of) if not isinstance(of, str | Path) else GivenTriples(labeled_triples(of))
            )
            if empty := next((n for n, row in enumerate(given.rows, 1) if not all(row)), 0):
                raise DataError(f"triple {empty} of {split} has an empty label")
            true, false = given.divided()
            if given.rows:
                splits[split] = true.rows
            if false.rows:
                negatives[split] = false.rows
            unread |= dict.fromkeys((f"the column '{column}' of {split}" for column in given.unread), "")
        if entities is not None and (names is not None or descriptions is not None):
            raise DataError("give either a table of entities, or names and descriptions")
        texts = TextColumns(relations=texts_by_label(relation_names, "relation_names"))
        extra: pa.ChunkedArray | tuple[()] = ()
        if entities is not None:
            texts.columns = labeled_entities(entities).table
            extra = texts.columns.column("label")
        else:
            texts.names = texts_by_label(names, "names")
            texts.descriptions = texts_by_label(descriptions, "descriptions")
        graph = build_graph(name, splits, texts, extra_entities=extra, negatives=negatives)
        graph = replace(graph, unread=unread)
        by_entity = dict[str, list[tuple[str, str]]]()
        for entity, attribute, value in attributes:
            by_entity.setdefault(entity, []).append((attribute, value))
        if by_entity:
            graph = replace(graph, entities=described(graph.entities, by_entity))
        return graph

    @classmethod
    def from_pykeen(
        cls, source: Any, name: str = "pykeen", names: Mapping[str, str] | pd.Series | None = None
    ) -> KnowledgeGraph:
        """A graph from a PyKEEN ``TriplesFactory`` (training only) or ``Dataset`` (all splits).

        Args:
            names: entity label to name, a mapping or a Series; others are named by their labels, as words.

        Raises:
            DataError: when triples have no labels, or names are none.
        """
        if not is_pykeens(source):
            raise DataError(
                f"from_pykeen takes a TriplesFactory or a Dataset of PyKEEN, not {type(source).__name__}"
            )
        parts = {
            split: getattr(source, attribute)
            for split, attribute in (("train", "training"), ("valid", "validation"), ("test", "testing"))
            if getattr(source, attribute, None) is not None
        } or {"train": source}
        splits = {}
        for split, factory in parts.items():
            if not hasattr(factory, "label_triples"):
                raise DataError("the triples factory has no labels; kgmlm needs text")
            splits[split] = factory.label_triples(factory.mapped_triples).tolist()
        return build_graph(name, splits, TextColumns(texts_by_label(names, "names")))

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
        """Return whether a split has triples that are true; a file may have false ones alone."""
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
        """The texts and training triples that a template may see."""
        return ContextGraph(self.entities, self.relations, self.splits["train"], self._links)

    def extended(self, more: EntityTable) -> KnowledgeGraph:
        """Extend the graph by entities that no triple has; ids are kept.

        Raises:
            DataError: when an entity exists already.
        """
        return replace(self, entities=self.entities.extended(more))

    def with_context(self, triples: IntArray) -> KnowledgeGraph:
        """Add training triples: context of templates, rules and types, and known answers.

        Args:
            triples: (n, 3) ids.
        """
        train = np.concatenate([self.splits["train"], triples.reshape(-1, 3)])
        return replace(self, splits={**self.splits, "train": train})

    def with_relations(self, labels: Sequence[str]) -> KnowledgeGraph:
        """Extend the graph by relations that no triple has, named by their labels; ids are kept.

        Raises:
            DataError: when a relation exists already.
        """
        rows = [(r.label, r.name) for r in self.relations] + [(x, humanize(x)) for x in labels]
        return replace(self, relations=RelationTable(*map(list, zip(*rows, strict=True))))

    def queries(self, split: str) -> tuple[Queries, IntArray]:
        """Both queries of each triple of a split (heads first) and, apart, their answers."""
        return both_sides(self.triples(split))

    def summary(self) -> str:
        """The graph's name and sizes, in a line."""
        sizes = ", ".join(f"{split} {len(triples):,}" for split, triples in self.splits.items())
        entities, relations = counted(len(self.entities), "entity"), counted(len(self.relations), "relation")
        return printable(f"{self.name}: {entities}, {relations}; {sizes}")

    def __repr__(self) -> str:
        return f"<graph {self.summary()}>"

    def _repr_html_(self) -> str:
        """The sizes, and the first training triples by their names."""
        rows = self.named(self.splits["train"][:_FIRST])
        cells = ("".join(f"<td>{html.escape(printable(name))}</td>" for name in row) for row in rows)
        head = "<tr><th>head</th><th>relation</th><th>tail</th></tr>"
        body = "".join(f"<tr>{row}</tr>" for row in cells)
        return f"<p>{html.escape(repr(self))}</p><table>{head}{body}</table>"

    def labeled(self, triples: IntArray) -> list[tuple[str, str, str]]:
        """Ids back to (head, relation, tail) labels."""
        columns = (column.to_pylist() for column in self.labels(triples).columns)
        return list(zip(*columns, strict=True))

    def named(self, triples: IntArray) -> list[tuple[str, str, str]]:
        """Ids to (head, relation, tail) names, as people read them."""
        entities, relations = self.entities, self.relations
        rows = np.reshape(triples, (-1, 3)).tolist()
        return [(entities[h].surface, relations[r].name, entities[t].surface) for h, r, t in rows]

    def labels(self, triples: IntArray) -> pa.Table:
        """Triples by label, as Arrow columns ``head``, ``relation``, ``tail``."""
        h, r, t = (pa.array(np.ascontiguousarray(ids)) for ids in np.reshape(triples, (-1, 3)).T)
        entities = self.entities.table.column("label")
        relations = pa.array([x.label for x in self.relations], pa.large_string())
        return pa.table({"head": entities.take(h), "relation": relations.take(r), "tail": entities.take(t)})

    def same(self, other: KnowledgeGraph) -> bool:
        """Return whether another graph has the same entities, relations and training triples, by label and
        id.
        """
        return (
            self.entities.table.column("label").equals(other.entities.table.column("label"))
            and [r.label for r in self.relations] == [r.label for r in other.relations]
            and np.array_equal(self.triples("train"), other.triples("train"))
        )

    def has_labels(self, head: str, relation: str, tail: str) -> bool:
        """Return whether the graph has the entities and the relation of a triple."""
        find = self.entities.find
        return find(head) is not None and find(tail) is not None and relation in self.relations.index

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


class OrderedEdges(NamedTuple):
    """The training triples of an entity, those of entities with few triples first.

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

    @property
    def unseen_N(self) -> BoolArray:
        """The mask ``(N,)`` of entities without a training triple."""
        unseen_N: BoolArray = self.degree_N == 0
        return unseen_N

    @cached_property
    def answers(self) -> FilterIndex:
        """The answers of queries in training."""
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

    def ordered_edges(self, entity: int) -> OrderedEdges:
        """An entity's triples in the order of texts: neighbors with few triples before hubs, ties by text."""
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
        ordered_edges = OrderedEdges(
            ordered_E3[:, 0], ordered_E3[:, 1].astype(np.bool_), ordered_E3[:, 2], place_E
        )
        if len(keys) >= HUB:
            if len(self._hubs) >= HUBS:
                self._hubs.clear()
            self._hubs[entity] = ordered_edges
        return ordered_edges

    @cached_property
    def _hubs(self) -> dict[int, OrderedEdges]:
        """The sorted triples of entities that have many of them."""
        return {}


# --- made of labels -----------------------------------------------------------------------------------------

LabeledSplits = Mapping[str, Iterable[Sequence[str]] | pa.Table]
# Entities, or bytes of all labels: Arrow's dictionaries and files of neighbors have 32 bits
MAX_ENTITIES = 2**31 - 1
_TEXTS = {
    "name": "names",
    "description": "descriptions",
    "surface": "surfaces",
    TYPES: TYPES,
    ALIASES: ALIASES,
}


@dataclass
class TextColumns:
    """Texts by label, as a reader found them; ``notes`` are counts worth reporting.

    Those of entities may be ``columns`` instead: label, name, description, surface and, if any, types and
    aliases.
    """

    names: dict[str, str] = field(default_factory=dict)
    descriptions: dict[str, str] = field(default_factory=dict)
    surfaces: dict[str, str] = field(default_factory=dict)
    relations: dict[str, str] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    columns: pa.Table | None = None

    def table(self) -> pa.Table:
        """The texts of entities as Arrow columns."""
        if self.columns is not None:
            return self.columns
        of = {column: getattr(self, attribute) for column, attribute in _TEXTS.items()}
        labels = list(dict.fromkeys(chain.from_iterable(of.values())))
        columns = {column: [texts.get(x, "") for x in labels] for column, texts in of.items()}
        schema = pa.schema([(column, pa.large_string()) for column in ("label", *of)])
        return pa.table({"label": labels, **columns}, schema)


def build_graph(
    name: str,
    splits: LabeledSplits,
    texts: TextColumns | None = None,
    *,
    extra_entities: Iterable[str] | pa.ChunkedArray = (),
    sources: Mapping[str, str] | None = None,
    negatives: LabeledSplits | None = None,
) -> KnowledgeGraph:
    """A graph from labeled triples; ids follow the sorted labels, every label is kept.

    Args:
        splits: split name to (head, relation, tail) labels, as rows or as Arrow columns; duplicates stay.
        texts: by label; a name that is missing is the label as words.
        extra_entities: labels that are candidates though no triple has them.
        negatives: likewise triples that are known to be false.

    Raises:
        DataError: when there is no training split, or there are more than :data:`MAX_ENTITIES` entities.
    """
    if "train" not in splits:
        raise DataError(f"'{name}' has no training triples")
    texts = texts or TextColumns()
    labeled = [
        (of, split, _coded(rows))
        for of, each in enumerate((splits, negatives or {}))
        for split, rows in each.items()
    ]
    parts = [part for _, _, part in labeled]
    if not isinstance(extra_entities, pa.ChunkedArray):
        extra_entities = pa.chunked_array([pa.array(extra_entities, pa.string())])
    ends = [column for part in parts for column in (part.column("head"), part.column("tail"))]
    labels, ids = _numbered([*ends, extra_entities.cast(pa.string()).dictionary_encode()])
    relation_labels, relation_ids = _numbered([part.column("relation") for part in parts])
    triples = [np.stack(x, axis=1) for x in zip(ids[:-1:2], relation_ids, ids[1:-1:2], strict=True)]
    by_split = [
        {s: x for (of, s, _), x in zip(labeled, triples, strict=True) if of == which} for which in (0, 1)
    ]
    table = _named(labels, texts.table())
    relations = relation_labels.to_pylist()
    given = {x: name for x, name in texts.relations.items() if name.strip()}
    names = [given.get(x) or humanize(x) for x in relations]
    graph_relations = RelationTable(relations, names)
    return KnowledgeGraph(
        name,
        EntityTable.of(table, check=False),  # labels are distinct by now
        graph_relations,
        by_split[0],
        dict(sources or {}),
        texts.notes,
        by_split[1],
    )


def _coded(rows: Iterable[Sequence[str]] | pa.Table) -> pa.Table:
    try:
        return rows if isinstance(rows, pa.Table) else triples_of(rows)
    except UnicodeEncodeError as error:
        raise DataError(f"{str(error.object)!r:.80} is no label: it cannot be written in UTF-8") from None


def _numbered(columns: Sequence[pa.ChunkedArray]) -> tuple[pa.Array, list[IntArray]]:
    """The distinct labels of coded columns, sorted, and each column as numbers of them."""
    coded = pa.chunked_array(list(chain.from_iterable(c.chunks for c in columns)), CODED)
    if not coded.num_chunks:
        return pa.array([], pa.large_string()), [np.zeros(0, np.int64) for _ in columns]
    try:
        coded = coded.unify_dictionaries()
    except pa.ArrowCapacityError:
        raise _too_large() from None
    every = coded.chunk(0).dictionary
    if max(len(every), pc.sum(pc.binary_length(every)).as_py() or 0) > MAX_ENTITIES:
        raise _too_large()
    used = np.zeros(len(every), np.bool_)  # rows that were sliced away leave their labels behind
    for chunk in coded.chunks:
        used[chunk.indices.to_numpy()] = True
    kept = np.flatnonzero(used)
    order = kept[pc.sort_indices(every.take(pa.array(kept))).to_numpy()]
    number = np.empty(len(every), np.int64)
    number[order] = np.arange(len(order))
    ids, at = [], 0
    for column in columns:
        chunks = coded.chunks[at : at + column.num_chunks]
        at += column.num_chunks
        ids.append(np.concatenate([np.zeros(0, np.int64), *(number[x.indices.to_numpy()] for x in chunks)]))
    return every.take(pa.array(order)).cast(pa.large_string()), ids


def _too_large() -> DataError:
    return DataError(
        f"the graph has more than {MAX_ENTITIES:,} entities, or labels of as many bytes together: shorten "
        "the labels (numbers do), or train on a part of the graph"
    )


def _named(labels: pa.Array, texts: pa.Table) -> pa.Table:
    """The texts of entities with these labels; where there are none, the name is the label as words."""
    rows = pc.index_in(labels, texts.column("label").combine_chunks())
    columns = {"label": pa.chunked_array([labels])}
    for column in ("name", "description", "surface", *LISTS):
        if column in texts.column_names:
            columns[column] = pc.fill_null(texts.column(column).take(rows), "")
    return completed(pa.table(columns))
