"""Changes of a graph: triples that are added or removed, and new entities; ids of what was there stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from kgmlm.core.arrays import BoolArray, IntArray
from kgmlm.core.errors import DataError, QueryError
from kgmlm.graphs.entities import EntityTable, completed, folded, text_array
from kgmlm.graphs.given import GivenTriples
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.names import ExactResolver
from kgmlm.graphs.queries import FilterIndex, distinct_triples, triple_keys

Place = Literal["train", "valid", "test", "false", "none"]
_PLACES: tuple[Place, ...] = get_args(Place)


class Alike(NamedTuple):
    """A new label that differs from a known one by case, Unicode form, blanks or underscores alone, or is an
    alias: ``what`` is "entity" or "relation"."""

    what: str
    new: str
    known: str


@dataclass(frozen=True)
class Change:
    """A graph after a change, and what has changed.

    Attributes:
        graph: the graph afterwards; what was there before keeps its ids.
        entities, relations: how many are new.
        added, removed: training triples ``(n, 3)``, each once.
        known: how many of the given triples were in training already.
        missing: how many of the triples to remove were not in training.
        moved: by split, how many triples it lost because training now has them or they are false.
        false: how many negatives training gained.
        alike: new labels that are nearly alike to others, each with the known (or earlier new) one.
        restored: how many triples are back where they were before a judgment.
    """

    graph: KnowledgeGraph
    entities: int
    relations: int
    added: IntArray
    removed: IntArray
    known: int
    missing: int
    moved: Mapping[str, int]
    false: int = 0
    alike: tuple[Alike, ...] = ()
    restored: int = 0

    def __bool__(self) -> bool:
        counts = (self.entities, self.relations, len(self.added), len(self.removed), self.moved)
        return any((*counts, self.false, self.restored))

    def counts(self) -> dict[str, Any]:
        """The change, in numbers."""
        return {
            "entities": self.entities,
            "relations": self.relations,
            "added": len(self.added),
            "removed": len(self.removed),
            "known": self.known,
            "missing": self.missing,
            "moved": dict(self.moved),
            "false": self.false,
            "alike": [pair._asdict() for pair in self.alike],
        }


def changed(
    graph: KnowledgeGraph,
    triples: GivenTriples,
    entities: EntityTable | None = None,
    remove: GivenTriples | None = None,
    false: GivenTriples | None = None,
    *,
    match_names: bool = False,
    restore: Mapping[tuple[str, str, str], Place] | None = None,
) -> Change:
    """Add triples and entities to a graph, and remove triples.

    An end of a triple is the label of an entity or, failing that, exactly the name that one was given.
    Anything else becomes a new entity, or a new relation, named by its label, as words. A triple of
    validation or test that is added to training leaves its split, since an answer in training need not be
    found. A triple that is false leaves its split, and is a negative of training from then on.

    Args:
        triples, remove, false: by labels or names; ``triples`` may say which of them are false.
        entities: new ones, with their texts.
        match_names: treat names that are nearly alike as the same.
        restore: where triples, by label, were before they were judged: they go back there.

    Raises:
        DataError: for a label that the graph has already, a triple that is given as true and as false, or
            when no training triple would be left.
        QueryError: for a name that several entities have; for one that no entity has, of what is removed or
            false.
    """
    before = len(graph.entities), len(graph.relations)
    for given, what in ((remove, "to remove"), (false, "that are false")):
        if given is not None and given.true is not None:
            raise DataError(f"triples {what} have no column 'label'; leave it out")
    # 1) What is added: entities, relations and triples that are new get ids.
    true_given, false_given = triples.divided()
    grown = graph if entities is None else graph.extended(entities)
    of_table = () if entities is None else _alike_labels(graph, entities)
    grown, added, alike = _resolved(grown, true_given, match_names)
    # 2) What leaves training, or is false.
    gone, missing = _removed(graph, remove or GivenTriples(()), match_names)
    wrong = _known(grown, false or GivenTriples(()), match_names)
    labeled_false = _known(grown, false_given, match_names)
    wrong = distinct_triples(np.concatenate([wrong, labeled_false]))
    # 3) What goes back to where it was.
    back = _restored(grown, restore or {})
    added = np.concatenate([added, back["train"]])
    wrong = distinct_triples(np.concatenate([wrong, back["false"]]))
    elsewhere = np.concatenate([back[place] for place in _PLACES if place != "train"])
    gone = distinct_triples(
        np.concatenate([gone, *(rows[_in_training(grown, rows)] for rows in (wrong, elsewhere))])
    )
    if (both := FilterIndex(wrong, len(grown.entities)).has(added)).any():
        triple = " ".join(grown.labeled(added[both][:1])[0])
        raise DataError(f"'{triple}' is given as true and as false")
    train, _ = _without(grown, {"train": grown.splits["train"]}, gone)
    added = distinct_triples(added)
    known_n = FilterIndex(train["train"], len(grown.entities)).has(added)
    others = {split: rows for split, rows in grown.splits.items() if split != "train"}
    others, moved = _without(grown, others, np.concatenate([added, wrong]))
    for split in ("valid", "test"):
        rows = back[split]
        rows = rows[~FilterIndex(others.get(split, rows[:0]), len(grown.entities)).has(rows)]
        if len(rows):
            others[split] = np.concatenate([others.get(split, rows[:0]), rows])
    true, added = added, added[~known_n]
    whole_train = np.concatenate([train["train"], added])
    if not len(whole_train):
        raise DataError(f"no training triple of '{graph.name}' would be left")
    unjudged = np.concatenate([back[place] for place in _PLACES if place != "false"])
    negatives, _ = _without(grown, grown.negatives, np.concatenate([true, unjudged]))
    before_false = distinct_triples(negatives.get("train", added[:0]))
    all_false = distinct_triples(np.concatenate([before_false, wrong]))
    if len(all_false) or "train" in negatives:
        negatives = {**negatives, "train": all_false}
    negatives = {split: rows for split, rows in negatives.items() if len(rows) or split != "train"}
    splits = {"train": whole_train, **others}
    whole = replace(grown, splits=splits, negatives=negatives, links=None)
    new = len(grown.entities) - before[0], len(grown.relations) - before[1]
    further = len(all_false) - len(before_false)
    restored = sum(map(len, back.values()))
    return Change(
        whole,
        *new,
        added,
        gone,
        int(known_n.sum()),
        missing,
        moved,
        further,
        (*of_table, *alike),
        restored,
    )


def _alike_labels(graph: KnowledgeGraph, entities: EntityTable) -> Iterator[Alike]:
    """Yield the labels of a table of new entities that are nearly alike to known ones."""
    labels = entities.column("label")
    resolver = ExactResolver(graph, labels, ())
    for label in labels:
        for i in resolver.alike_entities.get(label, ()):
            yield Alike("entity", label, graph.entities[i].label)


def place_of(graph: KnowledgeGraph, triple: tuple[int, int, int]) -> Place:
    """Where a graph has a triple: in a split, among the false ones of training, or nowhere."""
    row = np.array([triple], np.int64)
    for place in _PLACES:
        if place in graph.splits and FilterIndex(graph.splits[place], len(graph.entities)).has(row)[0]:
            return place
    known = graph.negatives.get("train", row[:0])
    return "false" if FilterIndex(known, len(graph.entities)).has(row)[0] else "none"


def _restored(graph: KnowledgeGraph, restore: Mapping[tuple[str, str, str], Place]) -> dict[Place, IntArray]:
    """The ids of triples by the place to which they go back."""
    rows: dict[Place, list[tuple[int, int, int]]] = {place: [] for place in _PLACES}
    for (head, relation, tail), place in restore.items():
        h, t = graph.entities.find(head), graph.entities.find(tail)
        assert h is not None
        assert t is not None
        rows[place].append((h, graph.relations.index[relation], t))
    return {place: np.array(some, np.int64).reshape(-1, 3) for place, some in rows.items()}


def _removed(graph: KnowledgeGraph, remove: GivenTriples, match_names: bool) -> tuple[IntArray, int]:
    """The training triples that are to be removed, and how many training does not have."""
    gone = _known(graph, remove, match_names)
    there_n = _in_training(graph, gone)
    return gone[there_n], int((~there_n).sum())


def _exact(graph: KnowledgeGraph, triples: GivenTriples, match_names: bool) -> ExactResolver:
    """A resolver of the entities and relations of triples."""
    heads, relations, tails = zip(*triples.rows, strict=True) if triples.rows else ((), (), ())
    return ExactResolver(graph, (*heads, *tails), relations, match_names)


def _known(graph: KnowledgeGraph, triples: GivenTriples, match_names: bool) -> IntArray:
    """The ids of triples of entities and relations that a graph has, each once."""
    resolver, rows = _exact(graph, triples, match_names), []
    find, find_relation = resolver.known_entity, resolver.known_relation
    for where, (head, relation, tail) in triples.numbered():
        try:
            rows.append((find(head), find_relation(relation), find(tail)))
        except QueryError as error:
            raise QueryError(f"{where}: {error}") from None
    return distinct_triples(np.array(rows, np.int64).reshape(-1, 3))


def _in_training(graph: KnowledgeGraph, triples: IntArray) -> BoolArray:
    """Return which triples training has."""
    return FilterIndex(graph.splits["train"], len(graph.entities)).has(triples)


def _resolved(
    graph: KnowledgeGraph, triples: GivenTriples, match_names: bool
) -> tuple[KnowledgeGraph, IntArray, tuple[Alike, ...]]:
    """A graph with the entities and relations that triples name, the ids of the triples, and which new labels
    are nearly alike to others."""
    resolver = _exact(graph, triples, match_names)
    entities = _Numbered(resolver.entity, len(graph.entities), match_names)
    relations = _Numbered(resolver.relation, len(graph.relations), match_names)
    ids = []
    for where, (head, relation, tail) in triples.numbered():
        try:
            ids.append((entities[head], relations[relation], entities[tail]))
        except QueryError as error:
            raise QueryError(f"{where}: {error}") from None
    of_entities = {x: [graph.entities[i].label for i in ids] for x, ids in resolver.alike_entities.items()}
    of_relations = {x: [graph.relations[i].label for i in ids] for x, ids in resolver.alike_relations.items()}
    alike = (*entities.alike("entity", of_entities), *relations.alike("relation", of_relations))
    if entities.new:
        graph = graph.extended(named_by_labels(list(entities.new)))
    if relations.new:
        graph = graph.with_relations(list(relations.new))
    return graph, np.array(ids, np.int64).reshape(-1, 3), alike


class _Numbered(dict[str, int]):
    """Labels and names to ids; an unknown one is new, and gets the next id.

    Args:
        find: returns the id of a known label or name, else None.
        count: how many are known.
        match_names: treat new labels that are nearly alike as one.

    Attributes:
        new: the labels of what is new, in order, each with its id.
    """

    def __init__(self, find: Callable[[str], int | None], count: int, match_names: bool) -> None:
        self.find, self.count, self.match_names = find, count, match_names
        self.new: dict[str, int] = {}
        self._first: dict[str, str] = {}  # the first new label of each form by which names are looked up

    def __missing__(self, text: str) -> int:
        number = self.find(text)
        if number is None:
            if not text.strip():
                raise QueryError("a label is empty")
            first = self._first.setdefault(folded(text), text)
            label = first if self.match_names else text
            number = self.new.setdefault(label, self.count + len(self.new))
        self[text] = number
        return number

    def alike(self, what: str, known: Mapping[str, Sequence[str]]) -> Iterator[Alike]:
        """Yield the new labels that are nearly alike to known ones, or else to an earlier new one."""
        for label in self.new:
            first = self._first[folded(label)]
            for other in known.get(label) or ([first] if first != label else []):
                yield Alike(what, label, other)


def named_by_labels(labels: Sequence[str]) -> EntityTable:
    """Entities that have no texts: each is called by its label, as words."""
    import pyarrow as pa

    none = text_array([""] * len(labels))
    columns = {"label": text_array(labels), "name": none, "description": none, "surface": none}
    return EntityTable.of(completed(pa.table(columns)))


def _without(
    graph: KnowledgeGraph, splits: Mapping[str, IntArray], triples: IntArray
) -> tuple[dict[str, IntArray], dict[str, int]]:
    """Splits without some triples, and how many each has lost, if any."""
    sizes = len(graph.entities), len(graph.relations)
    keys = triple_keys(triples, *sizes)
    left, lost = dict[str, IntArray](), dict[str, int]()
    for split, rows in splits.items():
        on = ~np.isin(triple_keys(rows, *sizes), keys)
        left[split] = rows if on.all() else rows[on]
        if count := int((~on).sum()):
            lost[split] = count
    return left, lost
