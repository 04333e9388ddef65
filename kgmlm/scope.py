"""What is evaluated, beside what was trained on: who is unseen, who competes, which triples are asked.

What counts as unseen is what the *run* was not trained on. A leak is refused before anything is scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kgmlm.config import Protocol
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import BoolArray, DataError, IntArray, counted


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
        seen_N = graph.seen_N
        if known := _seen(earlier):
            seen_N = seen_N | np.array([x in known for x in graph.entities.column("label")], np.bool_)
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
        learned = {x for before in (trained, *earlier) for x in before.labeled(before.splits["train"])}
        evaluated = dict.fromkeys(graph.labeled(asked))
        shared = [triple for triple in evaluated if triple in learned]
        if shared:
            raise DataError(
                f"the run was trained on {len(shared):,} of the {len(evaluated):,} {protocol.split} triples "
                f"of '{graph.name}', such as ({', '.join(shared[0])}); evaluate a run of another graph"
            )
        labels = trained.entities.column("label")
        seen = _seen([trained, *earlier])
        own = graph.entities.column("label")
        overlap = [x for x in own if x in seen]
        if overlap and not allow_seen_entities:
            raise DataError(
                f"the run was trained on {len(overlap):,} of the {len(own):,} entities of '{graph.name}', "
                f"which would count as unseen, such as '{overlap[0]}'; "
                "--allow-seen-entities tells them apart instead"
            )
        if protocol.candidates in ("all", "train"):
            further = [i for i, x in enumerate(labels) if x not in graph.entities.index]
            graph = graph.extended(trained.entities.take(np.array(further, np.int64)))
        everyone = graph.entities.column("label")
        seen_N = np.array([x in seen for x in everyone], np.bool_)
        own_N = np.arange(len(everyone)) < len(own)
        return cls(graph, seen_N, own_N, other=True, earlier=(trained, *earlier))

    def known(self, triples: IntArray, split: str) -> int:
        """How many of some triples of the graph a split of the graphs has that the model was trained on."""
        known_T = np.zeros(len(triples), np.bool_)
        if not self.other and split in self.graph.splits:
            count, every = len(self.graph.entities), self.graph.splits[split]
            near = np.zeros(count, np.bool_)  # most triples have other heads
            near[triples[:, 0]] = True
            asked, there = (
                (t[:, 1] * count + t[:, 0]) * count + t[:, 2] for t in (triples, every[near[every[:, 0]]])
            )
            known_T = np.isin(asked, there)
        for before in self.earlier:
            if split in before.splits:
                learned = set(before.labeled(before.splits[split]))
                known_T |= [triple in learned for triple in self.graph.labeled(triples)]
        return int(known_T.sum())

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


def _seen(graphs: Sequence[KnowledgeGraph]) -> set[str]:
    """Labels of the entities that training triples of some graphs have."""
    columns = [(graph.entities.column("label"), graph.seen_N) for graph in graphs]
    return {label for labels, seen_N in columns for label, seen in zip(labels, seen_N, strict=True) if seen}


def within(triples: IntArray, member_N: BoolArray, protocol: Protocol) -> IntArray:
    """The triples whose entities are candidates.

    Raises:
        DataError: when there is none.
    """
    triples = triples[member_N[triples[:, [0, 2]]].all(1)]
    if not len(triples):
        raise DataError(f"the split '{protocol.split}' has no triple to evaluate under this protocol")
    return triples
