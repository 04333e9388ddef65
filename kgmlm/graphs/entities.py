"""Entities and relations: their labels and texts, as tables whose rows are ids.

Shapes: N entities.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgmlm.core.arrays import IntArray
from kgmlm.core.errors import DataError

TextColumn = Literal["label", "name", "description", "surface"]
TEXT_COLUMNS: tuple[TextColumn, ...] = ("label", "name", "description", "surface")
TYPES, ALIASES = "types", "aliases"  # columns of entities, in tables that have any
LISTS = (TYPES, ALIASES)  # their cells have several, with a | between them
TOLD = 3  # aliases that the models read of an entity without a description
_ODD = 10_000  # labels that are Python strings at one time


def humanize(label: str) -> str:
    """A label as words: ``body_part`` to "body part".

    >>> humanize("co-occurs_with")
    'co-occurs with'
    """
    return " ".join(label.replace("_", " ").split()) or label


def humanized(labels: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of labels as words; see :func:`humanize`."""
    odd = pc.invert(pc.match_substring_regex(labels, "^[!-~]+$"))  # Python knows what else is a blank
    words = pc.utf8_trim(pc.replace_substring_regex(labels, "_+", " "), " ")
    words = pc.if_else(pc.equal(words, ""), labels, words)
    parts = [column.combine_chunks() for column in (words, labels, odd)]
    return pa.chunked_array([by_python(parts[0], parts[1], parts[2], humanize)])


def tidy(text: str) -> str:
    """A text in Unicode's composed form (NFC), with single blanks between its words.

    >>> tidy(" New\u00a0York  City ")
    'New York City'
    """
    return " ".join(unicodedata.normalize("NFC", text).split())


def folded(text: str) -> str:
    """The form in which names are looked up, regardless of case, Unicode form (NFKC), blanks and underscores.

    >>> folded(" Zu\u0308rich_West") == folded("z\u00fcrich west")
    True
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
        text = "".join(c for c in text if unicodedata.category(c) != "Cf")
    return " ".join(text.casefold().replace("_", " ").split())


def by_python(results: pa.Array, texts: pa.Array, odd: pa.Array, change: Callable[[str], str]) -> pa.Array:
    """``results``, with those of the odd texts replaced by what a Python function makes of the texts."""
    chosen = texts.filter(odd)
    if not len(chosen):
        return results
    parts = [chosen.slice(start, _ODD) for start in range(0, len(chosen), _ODD)]
    changed = [text_array([change(x) for x in part.to_pylist()]).cast(texts.type) for part in parts]
    return pc.replace_with_mask(results, odd, pa.concat_arrays(changed))


def split_cell(cell: str) -> tuple[str, ...]:
    """The types or aliases of one entity, as tables have them, each once.

    >>> split_cell("city | capital|city")
    ('city', 'capital')
    """
    return tuple(dict.fromkeys(part for x in cell.split("|") if (part := x.strip())))


def _with_columns(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """A table of entities with some columns of lists, empty where it had none."""
    empty = pa.array([""] * len(table), pa.large_string())
    for column in columns:
        if column not in table.column_names:
            table = table.append_column(column, empty)
    return table.select([*TEXT_COLUMNS, *columns])


@dataclass(frozen=True)
class Entity:
    """A view of one row of an :class:`EntityTable`.

    ``surface`` is the form that is read and predicted: the name, or a disambiguated name
    where the dataset has one (WN18RR: lemma, part of speech, sense number). ``aliases`` are further names, by
    which people find it.
    """

    label: str
    name: str
    description: str
    surface: str
    types: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    @property
    def model_description(self) -> str:
        """The description as the models read it; without one the first aliases."""
        return self.description or _alias_text(self.aliases)


def _alias_text(aliases: Sequence[str]) -> str:
    """Aliases as words of a description.

    Before descriptions they were no gain (eval/LOG.md).

    >>> _alias_text(("Big Apple", "NYC")), _alias_text(())
    ('also Big Apple, NYC', '')
    """
    return f"also {', '.join(aliases[:TOLD])}" if aliases else ""


@dataclass(frozen=True)
class Relation:
    """A relation's label (as in the files) and its name (as in the text)."""

    label: str
    name: str


class EntityTable:
    """The texts of N entities as Arrow columns; a row is its id.

    Args:
        labels: unique identifiers, byte for byte as in the files.
        names: what people call them; an empty name falls back on the label.
        descriptions: free text, empty where there is none.
        surfaces: the form to predict; ``None`` stands for the names.
        types: what each is, several types with ``|`` between them, empty where unknown; a table in which
            none is known has no such column.
        aliases: further names, likewise.

    Raises:
        DataError: when labels repeat or the columns differ in length.
    """

    def __init__(
        self,
        labels: Sequence[str],
        names: Sequence[str] | None = None,
        descriptions: Sequence[str] | None = None,
        surfaces: Sequence[str] | None = None,
        types: Sequence[str] | None = None,
        aliases: Sequence[str] | None = None,
    ) -> None:
        given = (names, descriptions, surfaces, types, aliases)
        if any(len(column) != len(labels) for column in given if column is not None):
            raise DataError("the entity columns differ in length")
        names = labels if names is None else [n or x for n, x in zip(names, labels, strict=True)]
        surfaces = names if surfaces is None else [s or n for s, n in zip(surfaces, names, strict=True)]
        descriptions = [""] * len(labels) if descriptions is None else descriptions
        columns = {"label": labels, "name": names, "description": descriptions, "surface": surfaces}
        lists = {TYPES: types, ALIASES: aliases}
        columns |= {column: values for column, values in lists.items() if values is not None and any(values)}
        self.table = pa.table({k: pa.array(v, pa.large_string()) for k, v in columns.items()})
        self._check()

    def _check(self) -> None:
        labels = self.table.column("label")
        if len(labels) > pc.count_distinct(labels).as_py():
            raise DataError("an entity label occurs twice in the entity table")

    @classmethod
    def of(cls, table: pa.Table, *, check: bool = True) -> EntityTable:
        """A table of Arrow columns ``label``, ``name``, ``description``, ``surface``, taken as they are, and
        ``types`` and ``aliases``, if there are any.

        Args:
            check: check that labels do not repeat; False if they are known to be distinct.

        Raises:
            DataError: when labels repeat.
        """
        made = cls.__new__(cls)
        lists = [
            x for x in LISTS if x in table.column_names and pc.any(pc.not_equal(table.column(x), "")).as_py()
        ]
        made.table = table.select([*TEXT_COLUMNS, *lists])
        if check:
            made._check()
        return made

    @property
    def unnamed(self) -> int:
        """How many have no name but their label, as it is or as words."""
        label, name = self.table.column("label"), self.table.column("name")
        return int(pc.sum(pc.or_(pc.equal(name, label), pc.equal(name, humanized(label)))).as_py() or 0)

    @property
    def undescribed(self) -> int:
        """How many have no description."""
        return int(pc.sum(pc.equal(self.table.column("description"), "")).as_py() or 0)

    def extended(self, more: EntityTable) -> EntityTable:
        """This table with other entities below it; ids of this one are kept.

        Raises:
            DataError: when a label is in both.
        """
        labels = more.table.column("label")
        shared = pc.index(pc.is_in(labels, self.table.column("label").combine_chunks()), True).as_py()
        if shared >= 0:
            raise DataError(f"the entity label '{labels[shared]}' exists already")
        parts = [self.table, more.table]
        lists = [x for x in LISTS if any(x in part.column_names for part in parts)]
        parts = [_with_columns(part, lists) for part in parts]
        joined = EntityTable.__new__(EntityTable)
        joined.table = pa.concat_tables(parts)
        return joined

    def rows_in(self, other: EntityTable) -> IntArray:
        """Find each entity in another table, by label and by what models read; -1 where it is not there."""
        rows = pc.index_in(self.table.column("label"), other.table.column("label").combine_chunks())
        rows_N: IntArray = pc.fill_null(rows, -1).to_numpy().astype(np.int64)
        columns = [(x.table.column("surface"), x.model_descriptions) for x in (self, other)]
        for mine, theirs in zip(*columns, strict=True):
            known_rows = np.flatnonzero(rows_N >= 0)
            mine, theirs = mine.take(pa.array(known_rows)), theirs.take(pa.array(rows_N[known_rows]))
            same = pc.equal(mine, theirs).to_numpy()
            rows_N[known_rows[~same]] = -1
        return rows_N

    def take(self, ids: IntArray) -> EntityTable:
        """Take some of the entities, renumbered in the order asked for."""
        return EntityTable.of(self.table.take(pa.array(ids)))

    def among(self, ids: IntArray) -> EntityTable:
        """Take some of the entities, all different and in order; a copy only where some are left out."""
        return self if len(ids) == len(self) else self.take(ids)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, entity: int) -> Entity:
        row = {k: self.table.column(k)[int(entity)].as_py() for k in self.table.column_names}
        return Entity(**row | {x: split_cell(row[x]) for x in LISTS if x in row})

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the table has, in order."""
        return tuple(self.table.column_names)

    @cached_property
    def types(self) -> list[tuple[str, ...]] | None:
        """The types of each entity; None where none is known."""
        if TYPES not in self.table.column_names:
            return None
        return [split_cell(cell) for cell in self.table.column(TYPES).to_pylist()]

    @property
    def aliases(self) -> pa.ListArray | None:
        """The aliases of each entity, as they are in the table; None where none is known."""
        if ALIASES not in self.table.column_names:
            return None
        return pc.split_pattern(self.table.column(ALIASES).combine_chunks(), "|")

    @cached_property
    def model_descriptions(self) -> pa.ChunkedArray:
        """Descriptions as the models read them; without one the first aliases."""
        description = self.table.column("description")
        if ALIASES not in self.table.column_names:
            return description
        cells = self.table.column(ALIASES).combine_chunks()
        having = pc.and_(pc.not_equal(cells, ""), pc.equal(description.combine_chunks(), ""))
        texts = text_array([_alias_text(split_cell(cell)) for cell in cells.filter(having).to_pylist()])
        texts = texts.cast(description.type)
        return pa.chunked_array([pc.replace_with_mask(description.combine_chunks(), having, texts)])

    def column(self, name: TextColumn) -> list[str]:
        """One column as a list of N strings."""
        values: list[str] = self.table.column(name).to_pylist()
        return values

    @cached_property
    def index(self) -> dict[str, int]:
        """Label to id."""
        return {label: i for i, label in enumerate(self.column("label"))}

    def find(self, label: str) -> int | None:
        """The id of a label, or None; without a dictionary of all."""
        labels = self.table.column("label")
        sought = label.encode(errors="surrogatepass")
        place = bisect_left(range(len(labels)), sought, key=lambda i: _utf8(labels[i]))
        if place < len(labels) and _utf8(labels[place]) == sought:  # datasets have their labels in order
            return place
        row = int(pc.index(labels, text_scalar(label)).as_py())
        return row if row >= 0 else None


def _utf8(text: pa.Scalar) -> bytes:
    data: bytes = text.as_buffer().to_pybytes()
    return data


def text_array(texts: Sequence[str]) -> pa.LargeStringArray:
    """An Arrow array of texts; Arrow itself would import pandas to make one from Python objects."""
    encoded = [text.encode(errors="surrogatepass") for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return pa.LargeStringArray.from_buffers(len(texts), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


def text_scalar(text: str) -> pa.Scalar:
    """A text for Arrow, as :func:`text_array`."""
    return text_array([text])[0]


class RelationTable:
    """The labels and names of the relations; a row is its id."""

    def __init__(self, labels: Sequence[str], names: Sequence[str] | None = None) -> None:
        names = labels if names is None else names
        self._rows = [Relation(x, n or x) for x, n in zip(labels, names, strict=True)]
        self.index: dict[str, int] = {r.label: i for i, r in enumerate(self._rows)}
        if len(self.index) != len(self._rows):
            raise DataError("a relation label occurs twice in the relation table")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, relation: int) -> Relation:
        return self._rows[int(relation)]

    def __iter__(self) -> Iterator[Relation]:
        return iter(self._rows)


def completed(table: pa.Table) -> pa.Table:
    """A table of entities with a name and a surface for each: an empty name is the label as words, and an
    empty surface the name.
    """
    label, name, surface = (table.column(c) for c in ("label", "name", "surface"))
    unnamed = pc.equal(pc.utf8_trim_whitespace(name), "")
    if pc.any(unnamed).as_py():
        name = pc.if_else(unnamed, humanized(label), name)
    # Mostly there are no surfaces, and the column of names serves as both.
    empty = pc.equal(pc.utf8_trim_whitespace(surface), "")
    surface = name if pc.all(empty).as_py() else pc.if_else(empty, name, surface)
    for column, values in (("name", name), ("surface", surface)):
        table = table.set_column(table.column_names.index(column), column, values)
    return table
