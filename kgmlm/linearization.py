"""A query as text around one hole: pure strings, no tokenizer.

A template turns ``(ContextGraph, Query)`` into a :class:`Linearization`: segments, separated by blanks, of
which exactly one is the hole. To add a template: write a function and name it in :data:`TEMPLATES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kgmlm.kg import ConfigError, ContextGraph, Query

NEVER = 0


@dataclass(frozen=True)
class Segment:
    """A piece of text; where space is short, the highest ``cut`` loses tokens first, and 0 none."""

    text: str
    cut: int = NEVER


HOLE = Segment("")


@dataclass(frozen=True)
class Linearization:
    """What stands before and behind the hole.

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


Template = Callable[[ContextGraph, Query, bool], Linearization]


def plain(context: ContextGraph, query: Query, descriptions: bool) -> Linearization:
    """``virus. a tiny agent | causes | ___`` and ``disease. … | inverse of causes | ___``."""
    entity = context.entities[query.entity]
    relation = context.relations[query.relation].name
    wording = relation if query.target == "tail" else f"inverse of {relation}"
    description = entity.description if descriptions else ""
    return Linearization(
        (
            Segment(f"{entity.surface}." if description else entity.surface, cut=1),
            Segment(description, cut=2),
            Segment(f"| {wording} |"),
        )
    )


def natural(context: ContextGraph, query: Query, descriptions: bool) -> Linearization:
    """``virus means: a tiny agent virus causes ___`` and ``… something causes disease, namely ___``."""
    entity = context.entities[query.entity]
    relation = context.relations[query.relation].name
    description = entity.description if descriptions else ""
    intro = (Segment(f"{entity.surface} means:", cut=1), Segment(description, cut=2)) if description else ()
    if query.target == "tail":
        return Linearization((*intro, Segment(entity.surface, cut=1), Segment(relation)))
    return Linearization(
        (*intro, Segment(f"something {relation}"), Segment(f"{entity.surface}, namely", cut=1)),
    )


TEMPLATES: dict[str, Template] = {"plain": plain, "natural": natural}


def get_template(name: str) -> Template:
    """A template by name.

    Raises:
        ConfigError: when there is none of that name.
    """
    if name not in TEMPLATES:
        raise ConfigError(f"there is no template '{name}' (there are: {', '.join(TEMPLATES)})")
    return TEMPLATES[name]
