"""An entity with its triples, page by page."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import IntArray
from kgmlm.serving.showing import named, named_relation

ADDED = "added"  # instead of a split: what came with entities that were added

Row = dict[str, Any]


class Pages:
    """The triples of a graph by their entities.

    Args:
        graph: the run's; what is added later is given with each question.
    """

    def __init__(self, graph: KnowledgeGraph) -> None:
        self.graph = graph

    @cached_property
    def counts_R(self) -> IntArray:
        """Triples of each relation, in all splits."""
        return np.bincount(self.graph.all_triples[:, 1], minlength=len(self.graph.relations))

    @cached_property
    def _places(self) -> tuple[IntArray, IntArray]:
        """Where each entity's triples are among all: offsets, and rows in order."""
        triples = self.graph.all_triples
        loops = triples[:, 0] == triples[:, 2]
        owners = np.concatenate([triples[:, 0], triples[~loops, 2]])
        rows = np.concatenate([np.arange(len(triples)), np.flatnonzero(~loops)])
        order = np.lexsort((rows, owners))
        counts = np.bincount(owners, minlength=len(self.graph.entities))
        return np.concatenate([[0], np.cumsum(counts)]), rows[order]

    def page(self, graph: KnowledgeGraph, label: str, offset: int, limit: int) -> Row | None:
        """An entity and some of its triples, those of training first, those that were added last; None where
        there is no such label.

        Args:
            graph: this one, or one with further entities and training triples.
        """
        entity = graph.entities.find(label)
        if entity is None:
            return None
        offsets, rows = self._places
        places = (
            rows[offsets[entity] : offsets[entity + 1]] if entity < len(self.graph.entities) else rows[:0]
        )
        added = graph.splits["train"][len(self.graph.splits["train"]) :]
        added = added[(added[:, [0, 2]] == entity).any(1)]
        ends = np.cumsum([len(triples) for triples in self.graph.splits.values()])
        splits = [*self.graph.splits, ADDED]
        of = np.append(np.searchsorted(ends, places, "right"), np.full(len(added), len(ends)))
        triples = np.concatenate([self.graph.all_triples[places], added])
        shown = slice(offset, offset + limit)
        found = graph.entities[entity]
        return {
            "label": found.label,
            "name": found.surface,
            "description": found.description,
            "types": list(found.types),
            "total": len(triples),
            "offset": offset,
            "triples": [
                {
                    "head": named(graph, h),
                    "relation": named_relation(graph, r),
                    "tail": named(graph, t),
                    "split": splits[split],
                }
                for (h, r, t), split in zip(triples[shown].tolist(), of[shown].tolist(), strict=True)
            ],
        }
