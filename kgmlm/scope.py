"""What is evaluated, beside what was trained on: who is unseen, who competes, which triples are asked.

What counts as unseen is what the *run* was not trained on. A leak is refused before anything is scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgmlm.config import Protocol
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import BoolArray, DataError, EntityTable, IntArray, counted

WHOLE = (0, 1, 2)  # head, relation and tail of a triple


@dataclass(frozen=True, eq=False)
class Scope:
    """A graph to evaluate on, and what a model was trained on.

    Attributes:
        graph: texts of the candidates, triples to ask, known answers.
        seen_N: which entities the model's training triples have.
        own_N: which entities belong to the evaluated graph; others are further candidates.
        other: whether it is not the graph that the model was trained on.
        earlier: other graphs than this that the model was trained on.
    """

    graph: KnowledgeGraph
    seen_N: BoolArray
    own_N: BoolArray
    other: bool = False
    earlier: Sequence[KnowledgeGraph] = ()

    @classmethod
    def of(cls, graph: KnowledgeGraph, earlier: Sequence[KnowledgeGraph] = ()) -> Scope:
        """The graph that the model was trained on; what ``earlier`` graphs have was seen, too."""
        seen_N = graph.seen_N | _seen(graph.entities, earlier) if earlier else graph.seen_N
        return cls(graph, seen_N, np.ones(len(graph.entities), np.bool_), earlier=earlier)

    @classmethod
    def inductive(
        cls,
        trained: KnowledgeGraph,
        graph: KnowledgeGraph,
        protocol: Protocol,
        *,
        earlier: Sequence[KnowledgeGraph] = (),
        allow_seen_entities: bool = False,
        allow_new_relations: bool = False,
    ) -> Scope:
        """Another graph than the one that the model was trained on; entities and relations meet by label.

        Args:
            earlier: further graphs that the model was trained on before.
            allow_seen_entities: evaluate though training triples have some of the graph's entities; the
                breakdown tells them apart.
            allow_new_relations: read relations that training has not from their names.

        Raises:
            DataError: when the model was trained on an evaluated triple, on an entity that would count as
                unseen, or not on a relation.
        """
        train = trained.splits["train"]
        known_relations = {trained.relations[r].label for r in np.unique(train[:, 1])}
        asked = graph.triples(protocol.split)
        new = sorted({graph.relations[r].label for r in np.unique(asked[:, 1])} - known_relations)
        if new and not allow_new_relations:
            others = f" nor on {counted(len(new) - 1, 'other')}" if len(new) > 1 else ""
            raise DataError(
                f"the run was not trained on the relation '{new[0]}' of '{graph.name}'{others}; "
                "--allow-new-relations reads them from their names"
            )
        _, first = np.unique(asked, axis=0, return_index=True)
        evaluated = asked[np.sort(first)]
        shared = evaluated[held(graph.labels(evaluated), (trained, *earlier), "train")]
        if len(shared):
            raise DataError(
                f"the run was trained on {len(shared):,} of the {len(evaluated):,} {protocol.split} triples "
                f"of '{graph.name}', such as ({', '.join(graph.labeled(shared[:1])[0])}); "
                "evaluate a run of another graph"
            )
        own = len(graph.entities)
        overlap = np.flatnonzero(_seen(graph.entities, [trained, *earlier]))
        if len(overlap) and not allow_seen_entities:
            raise DataError(
                f"the run was trained on {len(overlap):,} of the {own:,} entities of '{graph.name}', "
                f"which would count as unseen, such as '{graph.entities[int(overlap[0])].label}'; "
                "--allow-seen-entities tells them apart instead"
            )
        if protocol.candidates in ("all", "train"):
            further_N = ~_among(trained.entities.table.column("label"), graph.entities.table.column("label"))
            graph = graph.extended(trained.entities.take(np.flatnonzero(further_N)))
        seen_N = _seen(graph.entities, [trained, *earlier])
        own_N = np.arange(len(graph.entities)) < own
        return cls(graph, seen_N, own_N, other=True, earlier=(trained, *earlier))

    def known(self, triples: IntArray, split: str) -> int:
        """How many of some triples of the graph a split of the graphs has that the model was trained on."""
        return int(self._held(triples, split, WHOLE).sum())

    def half_links(self, triples: IntArray) -> BoolArray:
        """Whether training has (head, relation) and (relation, tail) of some triples ``(T, 2)``."""
        return np.stack([self._held(triples, "train", half) for half in ((0, 1), (1, 2))], 1)

    def _held(self, triples: IntArray, split: str, columns: tuple[int, ...]) -> BoolArray:
        held_T = held(self.graph.labels(triples), self.earlier, split, columns)
        if not self.other and split in self.graph.splits:
            held_T |= _has(self.graph, split, triples, columns)
        return held_T

    def members(self, protocol: Protocol) -> BoolArray:
        """Which entities are candidates under a protocol."""
        if protocol.candidates == "train":
            return self.seen_N
        if protocol.candidates == "graph":
            return self.own_N
        member_N = np.ones_like(self.seen_N)
        if protocol.candidates == "split":
            member_N[:] = False
            member_N[self.graph.triples(protocol.split)[:, [0, 2]].ravel()] = True
        return member_N

    def sampled(self, protocol: Protocol) -> IntArray:
        """The triples that a protocol asks, before those outside its candidates are left out."""
        triples = self.graph.triples(protocol.split)
        if protocol.triples != "all":
            new = ~self.seen_N[triples[:, [0, 2]]].all(1)
            triples = triples[new if protocol.triples == "unseen" else ~new]
        if not protocol.max_triples or protocol.max_triples >= len(triples):
            return triples
        rng = np.random.default_rng(protocol.seed)
        return triples[np.sort(rng.choice(len(triples), protocol.max_triples, replace=False))]


def _among(labels: pa.ChunkedArray, others: pa.ChunkedArray) -> BoolArray:
    """Which labels are among others."""
    found: BoolArray = np.asarray(pc.is_in(labels, others.combine_chunks()), np.bool_)
    return found


def _seen(entities: EntityTable, graphs: Sequence[KnowledgeGraph]) -> BoolArray:
    """Which entities training triples of some graphs have, by label."""
    seen_N = np.zeros(len(entities), np.bool_)
    for graph in graphs:
        trained = graph.entities.table.column("label").filter(pa.array(graph.seen_N))
        seen_N |= _among(entities.table.column("label"), trained)
    return seen_N


def held(
    triples: pa.Table, graphs: Sequence[KnowledgeGraph], split: str, columns: tuple[int, ...] = WHOLE
) -> BoolArray:
    """Which of some triples, given by labels, a split of one of the graphs has, by some of their columns."""
    held_T = np.zeros(len(triples), np.bool_)
    for graph in (g for g in graphs if split in g.splits):
        relations = pa.chunked_array([pa.array([r.label for r in graph.relations], pa.large_string())])
        ids = [
            pc.fill_null(pc.index_in(triples.column(name), labels.combine_chunks()), -1).to_numpy()
            for name, labels in (
                ("head", graph.entities.table.column("label")),
                ("relation", relations),
                ("tail", graph.entities.table.column("label")),
            )
        ]
        asked = np.stack(ids, axis=1).astype(np.int64)
        there = np.flatnonzero((asked[:, list(columns)] >= 0).all(1))
        held_T[there] |= _has(graph, split, asked[there], columns)
    return held_T


def _has(graph: KnowledgeGraph, split: str, triples: IntArray, columns: tuple[int, ...] = WHOLE) -> BoolArray:
    """Which of some triples a split of a graph has, by some of their columns, the relation among these."""
    count, every = len(graph.entities), graph.splits[split]
    ends = [column for column in columns if column != 1]
    near_N = np.zeros(count, np.bool_)  # most triples have other entities
    near_N[triples[:, ends[0]]] = True
    keys = []
    for some in (triples, every[near_N[every[:, ends[0]]]]):
        key = some[:, 1]
        for end in ends:
            key = key * count + some[:, end]
        keys.append(key)
    found: BoolArray = np.isin(keys[0], keys[1])
    return found


def within(triples: IntArray, member_N: BoolArray, protocol: Protocol) -> IntArray:
    """The triples whose entities are candidates.

    Raises:
        DataError: when there is none.
    """
    triples = triples[member_N[triples[:, [0, 2]]].all(1)]
    if not len(triples):
        raise DataError(f"the split '{protocol.split}' has no triple to evaluate under this protocol")
    return triples
