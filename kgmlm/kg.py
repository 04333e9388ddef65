"""Entities, relations, triples, queries and the filter index; the error tree.

The ground floor: knows nothing of files, text templates, tokens or models.

Errors that a user can cause and mend (each is one sentence; the CLI exits with code 2)::

    KgmlmError
    ├── DataError       a file, a card or a graph is not as it must be
    ├── ConfigError     a setting is unknown, or its value is not allowed
    ├── ModelError      a model or a tokenizer cannot be used
    ├── RunError        a run folder is missing, incomplete or in the way
    └── QueryError      an entity or a relation is unknown or ambiguous

Shapes: B queries, N entities, n triples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Target = Literal["head", "tail"]
TARGETS: tuple[Target, Target] = ("head", "tail")
SPLITS = ("train", "valid", "test")
TextColumn = Literal["label", "name", "description", "surface"]
TEXT_COLUMNS: tuple[TextColumn, ...] = ("label", "name", "description", "surface")
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
_WIDEST = 2**63  # what integers of 64 bits are below
_SCANNED = 16  # queries whose answers are looked for without sorting all triples
HUB = 32  # triples of an entity from which on their order is kept


LONGEST = 1000  # characters of a sentence


def readable(message: str) -> str:
    """One line of what can be read, whatever a file or an argument has put into it; its end is kept."""
    if not message.isprintable():
        message = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
    half = LONGEST // 2
    return message if len(message) <= LONGEST else f"{message[:half]}…{message[-half:]}"


class KgmlmError(Exception):
    """The root of every error that a user can cause and mend; its message is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(readable(message))


class DataError(KgmlmError):
    """A file, a dataset card or a graph is not as it must be."""


class ConfigError(KgmlmError):
    """A setting is unknown or has a value that is not allowed."""


class ModelError(KgmlmError):
    """A model or a tokenizer cannot be loaded or used."""


class RunError(KgmlmError):
    """A run folder is missing, incomplete, or in the way."""


class QueryError(KgmlmError):
    """A query names an entity or a relation that is unknown or ambiguous."""


def humanize(label: str) -> str:
    """A label as words: ``body_part`` to "body part".

    >>> humanize("co-occurs_with")
    'co-occurs with'
    """
    return " ".join(label.replace("_", " ").split()) or label


def counted(count: int, noun: str) -> str:
    """A number with its noun, for sentences.

    >>> counted(1, "name"), counted(2000, "entity")
    ('1 name', '2,000 entities')
    """
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun.removesuffix('y')}ies" if noun.endswith("y") else f"{count:,} {noun}s"


@dataclass(frozen=True)
class Entity:
    """A view of one row of an :class:`EntityTable`.

    ``surface`` is the form that is read and predicted: the name, or a disambiguated name
    where the dataset has one (WN18RR: lemma, part of speech, sense number).
    """

    label: str
    name: str
    description: str
    surface: str


@dataclass(frozen=True)
class Relation:
    """A relation's label (as in the files) and its name (as in the text)."""

    label: str
    name: str


class EntityTable:
    """The texts of N entities as Arrow columns; a row is its id.

    Args:
        labels: unique identifiers, byte for byte as in the files.
        names: what people call them; an empty name falls back on the label.
        descriptions: free text, empty where there is none.
        surfaces: the form to predict; ``None`` stands for the names.

    Raises:
        DataError: when labels repeat or the columns differ in length.
    """

    def __init__(
        self,
        labels: Sequence[str],
        names: Sequence[str] | None = None,
        descriptions: Sequence[str] | None = None,
        surfaces: Sequence[str] | None = None,
    ) -> None:
        names = labels if names is None else [n or x for n, x in zip(names, labels, strict=True)]
        surfaces = names if surfaces is None else [s or n for s, n in zip(surfaces, names, strict=True)]
        descriptions = [""] * len(labels) if descriptions is None else descriptions
        columns = {"label": labels, "name": names, "description": descriptions, "surface": surfaces}
        if len({len(column) for column in columns.values()}) != 1:
            raise DataError("the entity columns differ in length")
        self.table = pa.table({k: pa.array(v, pa.large_string()) for k, v in columns.items()})
        self._check()

    def _check(self) -> None:
        labels = self.table.column("label")
        if len(labels) > pc.count_distinct(labels).as_py():
            raise DataError("an entity label occurs twice in the entity table")

    @classmethod
    def of(cls, table: pa.Table) -> EntityTable:
        """A table of Arrow columns ``label``, ``name``, ``description``, ``surface``, taken as they are.

        Raises:
            DataError: when labels repeat.
        """
        made = cls.__new__(cls)
        made.table = table.select(list(TEXT_COLUMNS))
        made._check()
        return made

    @property
    def unnamed(self) -> int:
        """How many have no name but their label, as it is or as words."""
        pairs = zip(self.column("label"), self.column("name"), strict=True)
        return sum(name in (label, humanize(label)) for label, name in pairs)

    def extended(self, more: EntityTable) -> EntityTable:
        """This table with other entities below it; ids of this one are kept.

        Raises:
            DataError: when a label is in both.
        """
        labels = more.table.column("label")
        shared = pc.index(pc.is_in(labels, self.table.column("label").combine_chunks()), True).as_py()
        if shared >= 0:
            raise DataError(f"the entity label '{labels[shared]}' exists already")
        joined = EntityTable.__new__(EntityTable)
        joined.table = pa.concat_tables([self.table, more.table])
        return joined

    def rows_in(self, other: EntityTable) -> IntArray:
        """Where each entity is in another table, with the same label, surface and description; or -1."""
        found = pc.index_in(self.table.column("label"), other.table.column("label").combine_chunks())
        rows_N: IntArray = pc.fill_null(found, -1).to_numpy().astype(np.int64)
        there = np.flatnonzero(rows_N >= 0)
        for column in ("surface", "description"):
            mine = self.table.column(column).take(pa.array(there))
            theirs = other.table.column(column).take(pa.array(rows_N[there]))
            same = pc.equal(mine, theirs).to_numpy()
            rows_N[there[~same]] = -1
        return rows_N

    def take(self, ids: IntArray) -> EntityTable:
        """Some of the entities, renumbered in the order asked for."""
        return EntityTable.of(self.table.take(pa.array(ids)))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, entity: int) -> Entity:
        row = {k: self.table.column(k)[int(entity)].as_py() for k in self.table.column_names}
        return Entity(**row)

    def column(self, name: TextColumn) -> list[str]:
        """One column as a list of N strings."""
        values: list[str] = self.table.column(name).to_pylist()
        return values

    @cached_property
    def index(self) -> dict[str, int]:
        """Label to id."""
        return {label: i for i, label in enumerate(self.column("label"))}

    def find(self, label: str) -> int | None:
        """The id of a label, or None; without a dictionary of all."""
        found = int(pc.index(self.table.column("label"), pa.scalar(label, pa.large_string())).as_py())
        return found if found >= 0 else None


class RelationTable:
    """The labels and names of the relations; a row is its id."""

    def __init__(self, labels: Sequence[str], names: Sequence[str] | None = None) -> None:
        names = labels if names is None else names
        self._rows = [Relation(x, n or x) for x, n in zip(labels, names, strict=True)]
        self.index: dict[str, int] = {r.label: i for i, r in enumerate(self._rows)}
        if len(self.index) != len(self._rows):
            raise DataError("a relation label occurs twice in the relation table")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, relation: int) -> Relation:
        return self._rows[int(relation)]

    def __iter__(self) -> Iterator[Relation]:
        return iter(self._rows)


@dataclass(frozen=True)
class Query:
    """``(entity, relation, ?)`` for target "tail", ``(?, relation, entity)`` for "head".

    There is no answer here: what scores a query cannot see it.
    """

    entity: int
    relation: int
    target: Target


@dataclass(frozen=True)
class Queries:
    """B queries as parallel arrays: ``entity_B``, ``relation_B`` and ``tail_B`` (target is the tail)."""

    entity_B: IntArray
    relation_B: IntArray
    tail_B: BoolArray

    def __len__(self) -> int:
        return len(self.entity_B)

    def __iter__(self) -> Iterator[Query]:
        return (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, key: int | np.integer) -> Query: ...
    @overload
    def __getitem__(self, key: slice | IntArray | BoolArray) -> Queries: ...
    def __getitem__(self, key: int | np.integer | slice | IntArray | BoolArray) -> Query | Queries:
        if isinstance(key, (int, np.integer)):
            target: Target = "tail" if self.tail_B[key] else "head"
            return Query(int(self.entity_B[key]), int(self.relation_B[key]), target)
        return Queries(self.entity_B[key], self.relation_B[key], self.tail_B[key])

    @classmethod
    def of(cls, queries: Sequence[Query]) -> Queries:
        """Gather single queries into arrays."""
        return cls(
            np.array([q.entity for q in queries], np.int64),
            np.array([q.relation for q in queries], np.int64),
            np.array([q.target == "tail" for q in queries], np.bool_),
        )


@dataclass(frozen=True)
class GroupedAnswers:
    """The true answers of B queries: those of query i are ``ids[offsets[i]:offsets[i + 1]]``."""

    offsets: IntArray
    ids: IntArray

    def take(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """The answers of some queries as (position in ``rows``, answer id) pairs."""
        counts = self.offsets[rows + 1] - self.offsets[rows]
        positions = np.repeat(np.arange(len(rows)), counts)
        within = np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)
        return positions, self.ids[np.repeat(self.offsets[rows], counts) + within]


def both_sides(triples: IntArray) -> tuple[Queries, IntArray]:
    """Every triple asked twice: first all head queries, then all tail queries, with their answers.

    Args:
        triples: (n, 3) ids in head, relation, tail order.

    Returns:
        2n queries and their 2n answers.
    """
    h, r, t = triples.T
    queries = Queries(
        np.concatenate([t, h]), np.concatenate([r, r]), np.repeat(np.array([False, True]), len(triples))
    )
    return queries, np.concatenate([h, t])


def distinct_triples(triples: IntArray) -> IntArray:
    """Triples ``(n, 3)`` sorted by head, relation and tail, each once.

    >>> distinct_triples(np.array([[1, 0, 2], [0, 5, 1], [1, 0, 2]])).tolist()
    [[0, 5, 1], [1, 0, 2]]
    """
    triples = triples.reshape(-1, 3)
    h, r, t = triples.T
    relations, entities = (int(x.max(initial=0)) + 1 for x in (r, t))
    if int(h.max(initial=0) + 1) * relations * entities >= _WIDEST or (triples < 0).any():
        return np.unique(triples, axis=0)
    keys = _distinct((h * relations + r) * entities + t)
    pairs, tails = np.divmod(keys, entities)
    return np.stack([*np.divmod(pairs, relations), tails], axis=1)


def _distinct(keys: IntArray) -> IntArray:
    """Sorted integers, each once; several times as fast as sorting rows."""
    keys = np.sort(keys)
    return keys[np.diff(keys, prepend=-1) != 0] if len(keys) else keys


def _grouped(keys: IntArray, answers: IntArray, count: int) -> tuple[IntArray, IntArray, IntArray]:
    """Distinct keys, where the answers of each begin, and all answers, sorted, each once per key.

    Args:
        count: answers are below it.
    """
    if int(keys.max(initial=0) + 1) * count < _WIDEST:
        keys, answers = np.divmod(_distinct(keys * count + answers), max(1, count))
    else:
        keys, answers = np.unique(np.stack([keys, answers], axis=1), axis=0).T
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[starts], np.append(starts, len(keys)).astype(np.int64), answers


class FilterIndex:
    """Known answers of any query, looked up by ``(target, relation, entity)``.

    It is sorted when it is first asked about more than a few queries.

    Args:
        triples: (n, 3) known triples, duplicates allowed.
        num_entities: N; ids are below it.
    """

    def __init__(self, triples: IntArray, num_entities: int) -> None:
        self.num_entities = num_entities
        self._triples = triples.reshape(-1, 3)

    @cached_property
    def _sorted(self) -> tuple[IntArray, GroupedAnswers]:
        queries, answers = both_sides(self._triples)
        keys, offsets, ids = _grouped(self.keys(queries), answers, self.num_entities)
        return keys, GroupedAnswers(offsets, ids)

    def keys(self, queries: Queries) -> IntArray:
        """One integer per query; equal queries have equal keys."""
        return (queries.relation_B * 2 + queries.tail_B) * self.num_entities + queries.entity_B

    def queries(self, keys: IntArray) -> Queries:
        """The queries that have these keys."""
        sides, entity_B = np.divmod(keys, self.num_entities)
        return Queries(entity_B, sides // 2, (sides % 2).astype(np.bool_))

    def lookup(self, queries: Queries) -> tuple[IntArray, IntArray]:
        """All known answers of B queries as (row in the batch, entity id) pairs."""
        if len(queries) <= _SCANNED and "_sorted" not in vars(self):
            return self._scan(queries)
        known, answers = self._sorted
        keys = self.keys(queries)
        at = np.minimum(np.searchsorted(known, keys), max(len(known) - 1, 0))
        found = np.flatnonzero(known[at] == keys) if len(known) else np.zeros(0, np.int64)
        rows, ids = answers.take(at[found])
        return found[rows], ids

    def _scan(self, queries: Queries) -> tuple[IntArray, IntArray]:
        """The same for a few queries, without sorting anything."""
        h, r, t = self._triples.T
        found = []
        for query in queries:
            asked, answers = (h, t) if query.target == "tail" else (t, h)
            found.append(np.unique(answers[(asked == query.entity) & (r == query.relation)]))
        rows = np.repeat(np.arange(len(found)), [len(ids) for ids in found])
        return rows, np.concatenate([np.zeros(0, np.int64), *found])


@dataclass(frozen=True, eq=False)
class KnowledgeGraph:
    """A knowledge graph: texts, relations and the triples of every split, all labels kept.

    Attributes:
        name: what the graph is called in reports.
        splits: split name to (n, 3) ids in head, relation, tail order; "train" is always there.
        sources: file name to sha256, for the record.
        notes: counts that a reader of texts wants reported.
    """

    name: str
    entities: EntityTable
    relations: RelationTable
    splits: Mapping[str, IntArray]
    sources: Mapping[str, str]
    notes: Mapping[str, int] = field(default_factory=dict)

    def triples(self, split: str) -> IntArray:
        """The triples of one split.

        Raises:
            DataError: when the graph has no such split.
        """
        if split not in self.splits:
            have = ", ".join(self.splits)
            raise DataError(
                f"the graph '{self.name}' has no split '{split}' (it has: {have}); "
                "`kgmlm data split --random` makes the missing ones"
            )
        return self.splits[split]

    @cached_property
    def all_triples(self) -> IntArray:
        """The triples of all splits, one below the other."""
        return np.concatenate(list(self.splits.values()))

    @cached_property
    def seen_N(self) -> BoolArray:
        """Which entities occur in a training triple."""
        seen = np.zeros(len(self.entities), np.bool_)
        seen[self.splits["train"][:, [0, 2]].ravel()] = True
        return seen

    @cached_property
    def filter_index(self) -> FilterIndex:
        """Known answers over all splits: what filtered evaluation takes out."""
        return FilterIndex(self.all_triples, len(self.entities))

    @cached_property
    def context(self) -> ContextGraph:
        """What a template may see."""
        return ContextGraph(self.entities, self.relations, self.splits["train"])

    def extended(self, more: EntityTable) -> KnowledgeGraph:
        """The same triples with further entities, which no triple has; ids are kept.

        Raises:
            DataError: when an entity exists already.
        """
        return replace(self, entities=self.entities.extended(more))

    def queries(self, split: str) -> tuple[Queries, IntArray]:
        """Both queries of each triple of a split (heads first) and, apart, their answers."""
        return both_sides(self.triples(split))

    def labeled(self, triples: IntArray) -> list[tuple[str, str, str]]:
        """Ids back to (head, relation, tail) labels."""
        e, relations = self.entities.column("label"), [r.label for r in self.relations]
        return [(e[h], relations[r], e[t]) for h, r, t in triples.tolist()]

    def same(self, other: KnowledgeGraph) -> bool:
        """Whether another graph has the same entities, relations and training triples, by label and id."""
        return (
            self.entities.table.column("label").equals(other.entities.table.column("label"))
            and [r.label for r in self.relations] == [r.label for r in other.relations]
            and np.array_equal(self.triples("train"), other.triples("train"))
        )

    def unique_queries(self, split: str) -> tuple[Queries, GroupedAnswers]:
        """Each distinct query of a split once, with all its true answers *in that split*."""
        queries, answers = self.queries(split)
        index = self.filter_index
        keys, offsets, ids = _grouped(index.keys(queries), answers, len(self.entities))
        return index.queries(keys), GroupedAnswers(offsets, ids)


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

    @cached_property
    def _edges(self) -> tuple[IntArray, IntArray]:
        """Offsets by entity, and rows (relation, is tail, other)."""
        queries, others = both_sides(distinct_triples(self.train))
        order = np.argsort(queries.entity_B, kind="stable")
        counts = np.bincount(queries.entity_B, minlength=len(self.entities))
        rows = np.stack([queries.relation_B, queries.tail_B, others], axis=1)[order]
        return np.concatenate([[0], np.cumsum(counts)]), rows

    @cached_property
    def degree_N(self) -> IntArray:
        """Training triples of each entity."""
        return np.diff(self._edges[0])

    @cached_property
    def answers(self) -> FilterIndex:
        """What training triples answer."""
        return FilterIndex(self.train, len(self.entities))

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
            Edge(r, "tail" if is_tail else "head", other) for r, is_tail, other in self._rows(entity).tolist()
        ]

    def _rows(self, entity: int) -> IntArray:
        offsets, rows = self._edges
        return rows[offsets[entity] : offsets[entity + 1]]

    def telling(self, entity: int) -> Telling:
        """The same in order: neighbors of few triples before hubs; among equals texts decide, never ids."""
        known = self._hubs.get(entity)
        if known is not None:
            return known
        rows_E3 = self._rows(entity)
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
            self._hubs[entity] = found
        return found

    @cached_property
    def _hubs(self) -> dict[int, Telling]:
        """What is kept of entities whose triples take long to sort."""
        return {}
