"""Names to ids: as people type them, and in the triples, queries and new entities that Python users pass."""

from __future__ import annotations

import difflib
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgmlm.core.arrays import IntArray
from kgmlm.core.errors import DataError, QueryError
from kgmlm.core.tables import named_rows
from kgmlm.graphs.entities import (
    by_python,
    folded,
    humanize,
    text_array,
    text_scalar,
    tidy,
)
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Query

LARGE = 200_000  # entities from which on names are compared as columns, instead of in a dictionary of all
FEW_NAMES = 20  # names of any graph that are looked up as columns: making the dictionary takes longer
_LIKE = 20_000  # names of a large graph among which the nearest to an unknown one are looked for


class Resolver:
    """Labels and names, as people type them, to ids of a graph."""

    def __init__(self, graph: KnowledgeGraph) -> None:
        self.graph = graph
        self._asked = 0  # names

    @cached_property
    def _by_name(self) -> dict[str, list[int]]:
        ids: dict[str, list[int]] = defaultdict(list)
        columns = zip(*(self.graph.entities.column(c) for c in ("name", "surface")), strict=True)
        for i, (name, surface) in enumerate(columns):
            for text in dict.fromkeys((folded(name), folded(surface))):
                ids[text].append(i)
        return ids

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
        return [_folded_column(column) for column in columns]

    def _named(self, text: str) -> list[int]:
        """The entities with a name: exact matches, else those regardless of case and form, else those that
        have it as an alias.
        """
        self._asked += 1
        if len(self.graph.entities) < LARGE and self._asked > FEW_NAMES:
            matches = self._by_name.get(folded(text), [])
        else:
            asked = text_scalar(folded(text))
            parts = [pc.indices_nonzero(pc.equal(column, asked)).to_pylist() for column in self._folded]
            matches = sorted({i for part in parts for i in part})
        if not matches and text.strip():
            aliases, entity_A = self._by_alias
            same = pc.equal(aliases, text_scalar(folded(text)).cast(aliases.type)).to_numpy(
                zero_copy_only=False
            )
            return sorted({*entity_A[same].tolist()})
        entities = self.graph.entities
        return _closest(text, {i: (entities[i].name, entities[i].surface) for i in matches})

    def entity(self, text: str) -> int:
        """Id of an entity by label, else by surface or name, else by alias, whatever the case.

        Raises:
            QueryError: when the name is ambiguous (listing labels to choose from) or unknown (suggesting
                the nearest).
        """
        _check_text(text)
        entities = self.graph.entities
        for form in dict.fromkeys((text, text.strip(), unicodedata.normalize("NFC", text.strip()))):
            if (labeled := entities.find(form)) is not None:
                return labeled
        named = self._named(text)
        if not named:
            raise QueryError(f"no entity has the label or name '{text}'{_meant(self.near(text))}")
        return the_one_entity(self.graph, text, named)

    def relation(self, text: str) -> int:
        """Id of a relation by label or name.

        Raises:
            QueryError: when it is unknown or ambiguous.
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
        if not alike:
            raise QueryError(f"no relation has {_meant_relation(self.graph, text)}")
        return the_one_relation(self.graph, text, _closest(text, alike))

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


class ExactResolver:
    """Labels and names to ids by exact match, for changes to a graph.

    A text is known if it is the label of an entity or else a name or surface that one was given. Names made
    from labels do not count: a graph may have both ``n_1`` and ``n 1``. An unknown text may be *nearly
    alike*: it equals the label, name or alias of an entity except for case, Unicode form, blanks and
    underscores.

    Args:
        entities, relations: all texts that are looked up.
        match_names: take what is nearly alike for the same.
    """

    def __init__(
        self,
        graph: KnowledgeGraph,
        entities: Iterable[str],
        relations: Iterable[str],
        match_names: bool = False,
    ) -> None:
        self.graph, self.match_names = graph, match_names
        distinct = list(dict.fromkeys(entities))
        for text in (*distinct, *(relations := list(dict.fromkeys(relations)))):
            _check_text(text)
        self.labeled = self._labeled(distinct)
        others = [text for text in distinct if text not in self.labeled]
        self.named = self._named(others)
        self.alike_entities = self._alike([text for text in others if text not in self.named])
        self.alike_relations = {text: self._alike_relations(text) for text in relations}

    def _labeled(self, texts: Sequence[str]) -> dict[str, int]:
        """Entities by label."""
        entities = self.graph.entities
        if len(texts) <= FEW_NAMES:
            rows: Sequence[int | None] = [entities.find(text) for text in texts]
        else:
            labels = entities.table.column("label").combine_chunks()
            rows = pc.index_in(text_array(texts), labels).to_pylist()
        return {text: row for text, row in zip(texts, rows, strict=True) if row is not None}

    def _named(self, texts: Sequence[str]) -> dict[str, list[int]]:
        """Entities by a name or surface that they were given."""
        named: dict[str, list[int]] = defaultdict(list)
        if not texts:
            return named
        table, sought = self.graph.entities.table, text_array(texts)
        for column in (table.column("name"), table.column("surface")):
            for i in pc.indices_nonzero(pc.is_in(column, value_set=sought)).to_pylist():
                name = column[i].as_py()
                if name != humanize(table.column("label")[i].as_py()) and i not in named[name]:
                    named[name].append(i)
        return {name: ids for name, ids in named.items() if ids}

    def _alike(self, texts: Sequence[str]) -> dict[str, list[int]]:
        """Entities that are nearly alike to texts; labels and names go before aliases."""
        if not texts:
            return {}
        table, resolver = self.graph.entities.table, Resolver(self.graph)
        by_form: dict[str, list[int]] = defaultdict(list)
        sought = text_array(list({folded(text) for text in texts}))
        for column in (_folded_column(table.column("label")), *resolver._folded):
            for i in pc.indices_nonzero(pc.is_in(column, value_set=sought)).to_pylist():
                by_form[column[i].as_py()].append(i)
        aliases, entity_A = resolver._by_alias
        of_alias: dict[str, list[int]] = defaultdict(list)
        for place in pc.indices_nonzero(pc.is_in(aliases, value_set=sought.cast(aliases.type))).to_pylist():
            of_alias[aliases[place].as_py()].append(int(entity_A[place]))
        alike = {}
        for text in texts:
            form = folded(text)
            ids = sorted({*by_form.get(form, ())}) or sorted({*of_alias.get(form, ())})
            forms = {i: tuple(table.column(c)[i].as_py() for c in ("label", "name", "surface")) for i in ids}
            if ids:
                alike[text] = _closest(text, forms)
        return alike

    def _alike_relations(self, text: str) -> list[int]:
        """Relations that are nearly alike to a text."""
        asked = folded(text)
        alike = {
            i: (relation.label, relation.name)
            for i, relation in enumerate(self.graph.relations)
            if asked in (folded(relation.label), folded(relation.name))
        }
        return _closest(text, alike)

    def entity(self, text: str) -> int | None:
        """The id of an entity; None where it is not known.

        Raises:
            QueryError: when several have the name.
        """
        if text in self.labeled:
            return self.labeled[text]
        ids = self.named.get(text) or (self.alike_entities.get(text) if self.match_names else None)
        return None if not ids else the_one_entity(self.graph, text, ids)

    def relation(self, text: str) -> int | None:
        """The id of a relation; None where it is not known.

        Raises:
            QueryError: when several have the name.
        """
        relations = self.graph.relations
        if text in relations.index:
            return relations.index[text]
        ids = [i for i, r in enumerate(relations) if r.name == text and r.name != humanize(r.label)]
        ids = ids or (self.alike_relations[text] if self.match_names else [])
        return None if not ids else the_one_relation(self.graph, text, ids)

    def known_entity(self, text: str) -> int:
        """The id of an entity that has to be known.

        Raises:
            QueryError: where it is not, naming what is nearly alike; when several have the name.
        """
        if (entity := self.entity(text)) is not None:
            return entity
        labels = [self.graph.entities[i].label for i in self.alike_entities.get(text, ())]
        raise QueryError(f"no entity has {_not_exactly(text, labels) or _meant_entity(self.graph, text)}")

    def known_relation(self, text: str) -> int:
        """The id of a relation that has to be known.

        Raises:
            QueryError: as of :meth:`known_entity`.
        """
        if (relation := self.relation(text)) is not None:
            return relation
        labels = [self.graph.relations[i].label for i in self.alike_relations[text]]
        raise QueryError(f"no relation has {_not_exactly(text, labels) or _meant_relation(self.graph, text)}")


def _not_exactly(text: str, alike: Sequence[str]) -> str:
    """The end of a sentence on a text that is only nearly alike to labels; empty where none is."""
    if not alike:
        return ""
    names = " or ".join(map(repr, alike[:3]))
    return f"exactly the label or name '{text}', and {names} is nearly alike (--match-names takes it)"


def _meant_entity(graph: KnowledgeGraph, text: str) -> str:
    """The end of a sentence on an unknown entity."""
    return f"the label or name '{text}'{_meant(Resolver(graph).near(text))}"


def _meant_relation(graph: KnowledgeGraph, text: str) -> str:
    """The end of a sentence on an unknown relation."""
    known = [*map(folded, (r.name for r in graph.relations)), *graph.relations.index]
    return f"the label or name '{text}'{_meant(_nearest(text, known))}"


def the_one_entity(graph: KnowledgeGraph, text: str, ids: Sequence[int]) -> int:
    """The only entity of a name.

    Raises:
        QueryError: where there are several, listing labels to choose from.
    """
    if len(ids) > 1:
        listed = "; ".join(
            f"{e.label} ({e.surface}{': ' + e.description[:50] if e.description else ''})"
            for e in map(graph.entities.__getitem__, ids[:10])
        )
        more = f"; and {len(ids) - 10} more" if len(ids) > 10 else ""
        raise QueryError(f"'{text}' names {len(ids)} entities; give a label: {listed}{more}")
    return ids[0]


def the_one_relation(graph: KnowledgeGraph, text: str, ids: Sequence[int]) -> int:
    """The only relation of a name.

    Raises:
        QueryError: where there are several, listing labels to choose from.
    """
    if len(ids) > 1:
        labels = "; ".join(graph.relations[i].label for i in ids)
        raise QueryError(f"'{text}' names {len(ids)} relations; give a label: {labels}")
    return ids[0]


def _closest(text: str, names: Mapping[int, Sequence[str]]) -> list[int]:
    """Return the entities or relations whose names are most like a text."""
    same: list[Callable[[str], str]] = [lambda x: x, tidy, lambda x: tidy(x).casefold()]
    for form in same:
        asked = form(text)
        if by_form := [i for i, of in names.items() if asked in map(form, of)]:
            return by_form
    return list(names)


def _folded_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Fold a column of names."""
    return pa.chunked_array([_folded(part) for part in column.chunks], pa.large_string())


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


def read_queries(path: Path, resolver: Resolver) -> list[Query]:
    """Queries of a file: columns relation and head or tail, or both with one of them empty.

    Raises:
        DataError: when the file is no such table.
        QueryError: when a line cannot be resolved to a query.
    """

    def check(header: Sequence[str]) -> None:
        if "relation" not in header or not {"head", "tail"} & set(header):
            raise DataError(
                f"{path}: the first line must name the columns relation and head or tail, "
                f"not: {', '.join(header)}"
            )

    asked = []
    for line, row in named_rows(path, "head, relation (or relation, tail)", check):
        try:
            asked.append(resolver.query(row["relation"], row.get("head") or None, row.get("tail") or None))
        except QueryError as error:
            raise QueryError(f"{line}: {error}") from None
    return asked
