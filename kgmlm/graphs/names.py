"""Names to ids: as people type them, and in the triples, queries and new entities that Python users pass."""

from __future__ import annotations

import difflib
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgmlm.core.arrays import IntArray
from kgmlm.core.errors import QueryError
from kgmlm.graphs.entities import (
    by_python,
    folded,
    text_scalar,
    tidy,
)
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Query

LARGE = 200_000  # entities from which on names are compared as columns, instead of in a dictionary of all
FEW = 20  # names of any graph that are looked up as columns: making the dictionary takes longer
_LIKE = 20_000  # names of a large graph among which the nearest to an unknown one are looked for


class Resolver:
    """Labels and names, as people type them, to ids of a graph."""

    def __init__(self, graph: KnowledgeGraph) -> None:
        self.graph = graph
        self._asked = 0  # names

    @cached_property
    def _by_name(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        columns = zip(*(self.graph.entities.column(c) for c in ("name", "surface")), strict=True)
        for i, (name, surface) in enumerate(columns):
            for text in dict.fromkeys((folded(name), folded(surface))):
                found[text].append(i)
        return found

    @cached_property
    def _by_alias(self) -> tuple[pa.Array, IntArray]:
        """Aliases, folded, and the entity of each."""
        aliases = self.graph.entities.aliases
        if aliases is None:
            return pa.array([], pa.large_string()), np.zeros(0, np.int64)
        return _folded(pc.list_flatten(aliases)), pc.list_parent_indices(aliases).to_numpy().astype(np.int64)

    @cached_property
    def _folded(self) -> list[pa.ChunkedArray]:
        """Names and surfaces, folded."""
        table = self.graph.entities.table
        same = table.column("surface").equals(table.column("name"))
        columns = [table.column("name")] if same else [table.column("name"), table.column("surface")]
        return [pa.chunked_array([_folded(part) for part in column.chunks]) for column in columns]

    def _named(self, text: str) -> list[int]:
        """The entities of a name: those that have it letter by letter, else whatever the case and form, else
        those that have it as an alias.
        """
        self._asked += 1
        if len(self.graph.entities) < LARGE and self._asked > FEW:
            found = self._by_name.get(folded(text), [])
        else:
            asked = text_scalar(folded(text))
            parts = [pc.indices_nonzero(pc.equal(column, asked)).to_pylist() for column in self._folded]
            found = sorted({i for part in parts for i in part})
        if not found and text.strip():
            aliases, entity_A = self._by_alias
            same = pc.equal(aliases, text_scalar(folded(text)).cast(aliases.type)).to_numpy(
                zero_copy_only=False
            )
            return sorted({*entity_A[same].tolist()})
        entities = self.graph.entities
        return _closest(text, {i: (entities[i].name, entities[i].surface) for i in found})

    def entity(self, text: str) -> int:
        """Id of an entity by label, else by surface or name, else by alias, whatever the case.

        Raises:
            QueryError: when the name is ambiguous (listing labels to choose from) or unknown (suggesting
                the nearest).
        """
        found = self.entity_if(text)
        if found is None:
            raise QueryError(f"no entity has the label or name '{text}'{_meant(self.near(text))}")
        return found

    def entity_if(self, text: str) -> int | None:
        """As :meth:`entity`; None where it is unknown.

        Raises:
            QueryError: when the name is ambiguous.
        """
        _check_text(text)
        entities = self.graph.entities
        for form in dict.fromkeys((text, text.strip(), unicodedata.normalize("NFC", text.strip()))):
            if (labeled := entities.find(form)) is not None:
                return labeled
        found = self._named(text)
        if len(found) > 1:
            listed = "; ".join(
                f"{e.label} ({e.surface}{': ' + e.description[:50] if e.description else ''})"
                for e in map(entities.__getitem__, found[:10])
            )
            more = f"; and {len(found) - 10} more" if len(found) > 10 else ""
            raise QueryError(f"'{text}' names {len(found)} entities; give a label: {listed}{more}")
        return found[0] if found else None

    def relation(self, text: str) -> int:
        """Id of a relation by label or name.

        Raises:
            QueryError: when it is unknown or ambiguous.
        """
        found = self.relation_if(text)
        if found is None:
            known = [*map(folded, (r.name for r in self.graph.relations)), *self.graph.relations.index]
            raise QueryError(f"no relation has the label or name '{text}'{_meant(_nearest(text, known))}")
        return found

    def relation_if(self, text: str) -> int | None:
        """As :meth:`relation`; None where it is unknown.

        Raises:
            QueryError: when the name is ambiguous.
        """
        _check_text(text)
        relations = self.graph.relations
        for form in (text, text.strip(), unicodedata.normalize("NFC", text.strip())):
            if form in relations.index:
                return relations.index[form]
        asked = folded(text)
        alike = {
            i: (relation.name,) for i, relation in enumerate(relations) if folded(relation.name) == asked
        }
        found = _closest(text, alike)
        if len(found) > 1:
            labels = "; ".join(relations[i].label for i in found)
            raise QueryError(f"'{text}' names {len(found)} relations; give a label: {labels}")
        return found[0] if found else None

    def near(self, text: str) -> list[str]:
        """Names of entities that are like an unknown one; of a large graph, those that begin as it does."""
        if len(self.graph.entities) < LARGE:
            return _nearest(text, [*self._by_name, *self._by_alias[0].to_pylist()])
        begin = folded(text)[:2]
        like = (column.filter(pc.starts_with(column, begin)).slice(0, _LIKE) for column in self._folded)
        return _nearest(text, [name for column in like for name in column.to_pylist()])

    def query(self, relation: str, head: str | None = None, tail: str | None = None) -> Query:
        """A query from a relation and exactly one of head and tail.

        Raises:
            QueryError: when neither or both are given, or one cannot be resolved.
        """
        if (head is None) == (tail is None):
            raise QueryError("give either a head (to rank tails) or a tail (to rank heads)")
        known = head if head is not None else tail
        assert known is not None
        return Query(self.entity(known), self.relation(relation), "head" if head is None else "tail")


def _closest(text: str, names: Mapping[int, Sequence[str]]) -> list[int]:
    """Return the entities or relations whose names are most like a text."""
    same: list[Callable[[str], str]] = [lambda x: x, tidy, lambda x: tidy(x).casefold()]
    for form in same:
        asked = form(text)
        if found := [i for i, of in names.items() if asked in map(form, of)]:
            return found
    return list(names)


def _folded(names: pa.Array) -> pa.Array:
    """Fold names as :func:`~kgmlm.graphs.graph.folded` does, only the odd ones one by one in Python."""
    lowered = pc.ascii_lower(pc.if_else(pc.string_is_ascii(names), names, text_scalar("")))
    blank = pc.replace_substring_regex(lowered, r"[\s_]+", " ")
    return by_python(pc.ascii_trim_whitespace(blank), names, pc.invert(pc.string_is_ascii(names)), folded)


def _check_text(text: object) -> None:
    """Refuse what is no text, such as an id."""
    if not isinstance(text, str):
        raise QueryError(f"{text!r:.80} is no label or name")


def _nearest(text: str, among: Iterable[str]) -> list[str]:
    distinct = list({name.casefold(): name for name in among}.values())
    return difflib.get_close_matches(text.casefold(), distinct, n=3, cutoff=0.5)


def _meant(near: Sequence[str]) -> str:
    return f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
