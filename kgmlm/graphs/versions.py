"""Two versions of a graph: what the newer one adds, removes and renames.

Labels are the same entity or relation exactly where they are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from kgmlm.core.arrays import IntArray
from kgmlm.core.errors import DataError
from kgmlm.graphs.entities import EntityTable, RelationTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import distinct_triples, triple_keys


class Renamed(NamedTuple):
    """A name that had one label in the old version and has another one in the new version."""

    name: str
    old: str
    new: str


class Versions(NamedTuple):
    """The newer version of a graph beside the older one.

    Attributes:
        graph: entities and relations of both, with the texts of the older one where it has them; its
            training triples are those of the older version, its test triples those that the newer one adds.
        removed: distinct triples ``(n, 3)`` that the newer version lacks; they stay in training.
        renamed: names with one label in each version, each of which the other version lacks.
    """

    graph: KnowledgeGraph
    removed: IntArray
    renamed: Sequence[Renamed]


def compare_versions(old: KnowledgeGraph, new: KnowledgeGraph) -> Versions:
    """What a newer version of a graph adds to an older one, removes and renames.

    Raises:
        DataError: when it adds nothing.
    """
    entities, ids_N = _joined(old.entities, new.entities)
    added = [r for r in new.relations if r.label not in old.relations.index]
    every = [*old.relations, *added]
    relations = RelationTable([r.label for r in every], [r.name for r in every])
    ids_R = np.array([relations.index[r.label] for r in new.relations], np.int64)
    before = distinct_triples(old.all_triples)
    h, r, t = distinct_triples(new.all_triples).T
    after = np.stack([ids_N[h], ids_R[r], ids_N[t]], axis=1)
    before_n, after_n = (triple_keys(x, len(entities), len(relations)) for x in (before, after))
    test, removed = after[~np.isin(after_n, before_n)], before[~np.isin(before_n, after_n)]
    if not len(test):
        raise DataError("the new version adds no triple to the old one")
    graph = KnowledgeGraph(
        f"{new.name}-versions", entities, relations, {"train": before, "test": test}, {**old.sources}
    )
    return Versions(graph, removed, _renamed(old.entities, new.entities))


def _joined(old: EntityTable, new: EntityTable) -> tuple[EntityTable, IntArray]:
    """The entities of both tables, and the place among them of each of the new table."""
    at_N = pc.index_in(new.table.column("label"), old.table.column("label").combine_chunks())
    ids_N: IntArray = pc.fill_null(at_N, -1).to_numpy().astype(np.int64)
    added = np.flatnonzero(ids_N < 0)
    ids_N[added] = len(old) + np.arange(len(added))
    return old.extended(new.take(added)), ids_N


def _renamed(old: EntityTable, new: EntityTable) -> list[Renamed]:
    """Names that went from a label that only the old version has to one that only the new version has."""
    pairs = []
    for mine, other in ((old, new), (new, old)):
        known = pc.is_in(mine.table.column("label"), other.table.column("label").combine_chunks())
        own = mine.table.filter(pc.invert(known))
        labels = dict[str, list[str]]()
        for label, name in zip(own.column("label").to_pylist(), own.column("name").to_pylist(), strict=True):
            labels.setdefault(name, []).append(label)
        pairs.append({name: of[0] for name, of in labels.items() if len(of) == 1})
    before, after = pairs
    return [Renamed(name, label, after[name]) for name, label in sorted(before.items()) if name in after]
