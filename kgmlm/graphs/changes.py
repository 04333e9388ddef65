"""Changes of a graph: triples that are added or removed, and new entities; ids of what was there stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kgmlm.core.arrays import BoolArray, IntArray
from kgmlm.core.errors import DataError, QueryError
from kgmlm.graphs.entities import EntityTable, completed, folded, text_array, tidy
from kgmlm.graphs.given import GivenTriples
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.names import Resolver
from kgmlm.graphs.queries import FilterIndex, distinct_triples, triple_keys


@dataclass(frozen=True)
class Change:
    """A graph after a change, and what has changed.

    Attributes:
        graph: afterwards; what was there before has the ids that it had.
        entities, relations: how many are new.
        added, removed: training triples ``(n, 3)``, each once.
        known: how many of the triples that were given training had already.
        missing: how many of the triples to remove training did not have.
        moved: by split, how many of its triples it has no more, since training has them or they are false.
        false: how many negatives training has more.
        sure: how many training triples are no longer doubtful.
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
    sure: int = 0

    def __bool__(self) -> bool:
        counts = (self.entities, self.relations, len(self.added), len(self.removed), self.moved)
        return any((*counts, self.false, self.sure))

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
        }


def changed(
    graph: KnowledgeGraph,
    triples: GivenTriples,
    entities: EntityTable | None = None,
    remove: GivenTriples | None = None,
    false: GivenTriples | None = None,
) -> Change:
    """Add triples and entities to a graph, and remove triples.

    An end of a triple is the label of an entity, else the name of one. What is neither is a new entity, or a
    new relation, that is called by its label, as words. A triple of validation or test that is added to
    training leaves its split, since an answer in training is none that has to be found. A triple that is
    false leaves its split, and is a negative of training from then on. A doubtful one that is added is sure.

    Args:
        triples, remove, false: by labels or names.
        entities: new ones, with their texts.

    Raises:
        DataError: for a label that the graph has already, a triple that is given as true and as false, or
            when no training triple would be left.
        QueryError: for a name that several entities have.
    """
    before = len(graph.entities), len(graph.relations)
    gone, missing = _removed(graph, remove or GivenTriples(()))
    wrong = _known(graph, false or GivenTriples(()))
    gone = distinct_triples(np.concatenate([gone, wrong[_in_training(graph, wrong)]]))
    grown = graph if entities is None else graph.extended(entities)
    grown, given = _resolved(grown, triples)
    if (both := FilterIndex(wrong, len(grown.entities)).has(given)).any():
        triple = " ".join(grown.labeled(given[both][:1])[0])
        raise DataError(f"'{triple}' is given as true and as false")
    train, _ = _without(grown, {"train": grown.splits["train"]}, gone)
    added = distinct_triples(given)
    known_n = FilterIndex(train["train"], len(grown.entities)).has(added)
    others = {split: rows for split, rows in grown.splits.items() if split != "train"}
    others, moved = _without(grown, others, np.concatenate([added, wrong]))
    told, added = added, added[~known_n]
    whole_train = np.concatenate([train["train"], added])
    if not len(whole_train):
        raise DataError(f"no training triple of '{graph.name}' would be left")
    negatives, _ = _without(grown, grown.negatives, told)
    before_false = distinct_triples(negatives.get("train", added[:0]))
    all_false = distinct_triples(np.concatenate([before_false, wrong]))
    if len(all_false):
        negatives = {**negatives, "train": all_false}
    doubts = grown.doubts
    if doubts is not None and (len(told) or len(gone)):
        doubts = doubts.without(FilterIndex([told, gone], len(grown.entities)))
    sure = 0 if grown.doubts is None else len(grown.doubts.triples) - (len(doubts.triples) if doubts else 0)
    splits = {"train": whole_train, **others}
    whole = replace(grown, splits=splits, negatives=negatives, doubts=doubts, links=None)
    new = len(grown.entities) - before[0], len(grown.relations) - before[1]
    further = len(all_false) - len(before_false)
    return Change(whole, *new, added, gone, int(known_n.sum()), missing, moved, further, sure)


def _removed(graph: KnowledgeGraph, remove: GivenTriples) -> tuple[IntArray, int]:
    """The training triples that are to be removed, and how many training does not have."""
    gone = _known(graph, remove)
    there_n = _in_training(graph, gone)
    return gone[there_n], int((~there_n).sum())


def _known(graph: KnowledgeGraph, triples: GivenTriples) -> IntArray:
    """The ids of triples of entities and relations that a graph has, each once."""
    resolver, rows = Resolver(graph), []
    for where, (head, relation, tail) in triples.numbered():
        try:
            rows.append((resolver.entity(head), resolver.relation(relation), resolver.entity(tail)))
        except QueryError as error:
            raise QueryError(f"{where}: {error}") from None
    return distinct_triples(np.array(rows, np.int64).reshape(-1, 3))


def _in_training(graph: KnowledgeGraph, triples: IntArray) -> BoolArray:
    """Return which triples training has."""
    return FilterIndex(graph.splits["train"], len(graph.entities)).has(triples)


def _resolved(graph: KnowledgeGraph, triples: GivenTriples) -> tuple[KnowledgeGraph, IntArray]:
    """A graph with the entities and relations that triples name, and the ids of the triples."""
    resolver = Resolver(graph)
    entities = _Numbered(resolver.entity_if, len(graph.entities))
    relations = _Numbered(resolver.relation_if, len(graph.relations))
    ids = []
    for where, (head, relation, tail) in triples.numbered():
        try:
            ids.append((entities[head], relations[relation], entities[tail]))
        except QueryError as error:
            raise QueryError(f"{where}: {error}") from None
    if entities.new:
        graph = graph.extended(named_by_labels(entities.labels))
    if relations.new:
        graph = graph.with_relations(relations.labels)
    return graph, np.array(ids, np.int64).reshape(-1, 3)


class _Numbered(dict[str, int]):
    """Labels and names to ids; what nobody knows is new, and gets the next one.

    Args:
        find: the id of what is known; None of what is not.
        count: how many are known.
    """

    def __init__(self, find: Callable[[str], int | None], count: int) -> None:
        self.find, self.count = find, count
        self.new: dict[str, tuple[int, str]] = {}  # ids and labels, by how names are looked up

    def __missing__(self, text: str) -> int:
        found = self.find(text)
        if found is None:
            label = tidy(text)
            if not label:
                raise QueryError("a label is empty")
            found, _ = self.new.setdefault(folded(label), (self.count + len(self.new), label))
        self[text] = found
        return found

    @property
    def labels(self) -> list[str]:
        """Return the labels of what is new, in order."""
        return [label for _, label in self.new.values()]


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
