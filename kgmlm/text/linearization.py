"""A query as text around one hole: pure strings, no tokenizer.

A template turns ``(ContextGraph, Query)`` into a :class:`Linearization`: segments, separated by blanks, of
which exactly one is the hole. To add a template: write a function and name it in :data:`TEMPLATES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kgmlm.core.arrays import IntArray
from kgmlm.core.config import TextSettings
from kgmlm.core.errors import ConfigError
from kgmlm.graphs.graph import ContextGraph, Edge
from kgmlm.graphs.queries import Queries, Query, Target

NEVER = 0
# In training, the chance that one neighbor is left out, and that all are: the model must also answer queries
# about entities without neighbors.
NEIGHBOR_DROPOUT = 0.3


@dataclass(frozen=True)
class Segment:
    """A piece of text; where space is short, the highest ``cut`` loses tokens first, and 0 none."""

    text: str
    cut: int = NEVER


@dataclass(frozen=True)
class Linearization:
    """The segments before and behind the hole.

    The hole never comes first: a blank stands before it in every template, so that the first token of
    a name is the same in all of them (byte-level BPE writes the blank into that token).
    """

    before: tuple[Segment, ...]
    after: tuple[Segment, ...] = ()

    def __post_init__(self) -> None:
        if not any(s.text for s in self.before):
            raise ValueError("a template must have text before the hole")

    def text(self, hole: str = "___") -> str:
        """The whole text, uncut.

        >>> Linearization((Segment("virus |"), Segment("causes |"))).text()
        'virus | causes | ___'
        """
        words = (*(s.text for s in self.before), hole, *(s.text for s in self.after))
        return " ".join(w for w in words if w)


Template = Callable[[ContextGraph, Query, Sequence[Edge]], Linearization]


def neighborhood(
    context: ContextGraph, query: Query, limit: int, drop: float = 0.0, rng: np.random.Generator | None = None
) -> list[Edge]:
    """The training triples of the query's entity that its text may name, those of rare entities first.

    Whatever answers the query itself in training is withheld, so the text of a training query never holds
    its answers by the asked-for triple; the mirrored triple (answer, relation, entity) may stay. First come
    the other edges of the query's relation, then one of each relation in turn, neighbors of few triples
    before hubs; among equals the texts decide, never the ids.

    Args:
        limit: how many at most.
        drop: in training, the chance that an edge is left out, and that all are.
    """
    relation_E, tail_E, other_E, place_E = context.ordered_edges(query.entity)
    # A self-loop stands on both sides of its entity.
    kept_E = (relation_E != query.relation) | (
        (tail_E != (query.target == "tail")) & (other_E != query.entity)
    )
    if rng is not None and drop:
        if rng.random() < drop:
            return []
        # Drawn in the graph's own order: a corrected text does not change all draws.
        chances_E, kept_in_place_E = np.zeros(len(kept_E)), np.zeros(len(kept_E), np.bool_)
        kept_in_place_E[place_E] = kept_E
        chances_E[kept_in_place_E] = rng.random(int(kept_E.sum()))
        kept_E &= chances_E[place_E] >= drop
    kept = np.flatnonzero(kept_E)
    groups = 2 * relation_E[kept] + tail_E[kept]
    first = np.lexsort((_turns(groups), relation_E[kept] != query.relation))[:limit]
    return [
        Edge(r, "tail" if is_tail else "head", other)
        for r, is_tail, other in zip(
            *(values[kept[first]].tolist() for values in (relation_E, tail_E, other_E)), strict=True
        )
    ]


def _turns(groups: IntArray) -> IntArray:
    """Return how many of the same group come before each."""
    order = np.argsort(groups, kind="stable")
    begins = np.flatnonzero(np.diff(groups[order], prepend=-1))
    turns = np.zeros(len(groups), np.int64)
    turns[order] = np.arange(len(groups)) - np.repeat(begins, np.diff(np.append(begins, len(groups))))
    return turns


def neighbor_segments(context: ContextGraph, neighbors: Sequence[Edge]) -> tuple[Segment, ...]:
    """Neighbors as text: ``; is a: organism``. Beyond the third they are cut before the description."""
    return tuple(
        Segment(
            f"; {_wording(context, e.relation, e.target)}: {context.surfaces[e.other]}",
            cut=2 if i < 3 else 4,
        )
        for i, e in enumerate(neighbors)
    )


def _wording(context: ContextGraph, relation: int, target: Target) -> str:
    name = context.relation_names[relation]
    return name if target == "tail" else f"inverse of {name}"


def plain(context: ContextGraph, query: Query, neighbors: Sequence[Edge] = ()) -> Linearization:
    """``virus. a tiny agent | causes | ___`` and ``disease. … | inverse of causes | ___``."""
    entity = context.entities[query.entity]
    description = entity.model_description
    return Linearization(
        (
            Segment(f"{entity.surface}." if description else entity.surface, cut=1),
            Segment(description, cut=3),
            *neighbor_segments(context, neighbors),
            Segment(f"| {_wording(context, query.relation, query.target)} |"),
        )
    )


def natural(context: ContextGraph, query: Query, neighbors: Sequence[Edge] = ()) -> Linearization:
    """``virus means: a tiny agent virus causes ___`` and ``… something causes disease, namely ___``."""
    entity = context.entities[query.entity]
    relation = context.relations[query.relation].name
    description = entity.model_description
    intro = (Segment(f"{entity.surface} means:", cut=1), Segment(description, cut=3)) if description else ()
    neighbor_text = neighbor_segments(context, neighbors)
    if query.target == "tail":
        return Linearization((*intro, *neighbor_text, Segment(entity.surface, cut=1), Segment(relation)))
    return Linearization(
        (
            *intro,
            *neighbor_text,
            Segment(f"something {relation}"),
            Segment(f"{entity.surface}, namely", cut=1),
        ),
    )


def entity_text(context: ContextGraph, entity: int) -> Linearization:
    """The text of an entity's vector: ``virus. a tiny agent ___``, without its triples in the graph."""
    read = context.entities[entity]
    description = read.model_description
    return Linearization((Segment(f"{read.surface}.", cut=1), Segment(description, cut=2)))


TEMPLATES: dict[str, Template] = {"plain": plain, "natural": natural}


def get_template(name: str) -> Template:
    """A template by name.

    Raises:
        ConfigError: when there is none of that name.
    """
    if name not in TEMPLATES:
        raise ConfigError(f"there is no template '{name}' (there are: {', '.join(TEMPLATES)})")
    return TEMPLATES[name]


def linearize(
    context: ContextGraph, queries: Queries, settings: TextSettings, rng: np.random.Generator | None = None
) -> list[Linearization]:
    """The text of B queries.

    Args:
        rng: in training, draws which neighbors are left out.
    """
    template = get_template(settings.template)
    written = []
    for q in queries:
        edges: list[Edge] = []
        if settings.neighbors:
            edges = neighborhood(context, q, settings.neighbors, NEIGHBOR_DROPOUT, rng)
        written.append(template(context, q, edges))
    return written
