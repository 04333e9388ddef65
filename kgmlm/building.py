"""Labeled triples and texts to a :class:`KnowledgeGraph`: labels sorted, coded as numbers, joined with texts.

Knows nothing of files. Nothing here is done row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgmlm.columns import CODED, triples_of
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import TYPES, DataError, EntityTable, IntArray, RelationTable, humanize, humanized

LabeledSplits = Mapping[str, Iterable[Sequence[str]] | pa.Table]
MOST = 2**31 - 1  # entities, or bytes of all labels: Arrow's dictionaries and files of neighbors have 32 bits
_TEXTS = (("name", "names"), ("description", "descriptions"), ("surface", "surfaces"), (TYPES, "types"))


@dataclass
class TextColumns:
    """Texts by label, as a reader found them; ``notes`` are counts worth reporting.

    Those of entities may be ``columns`` instead: label, name, description, surface and, if any, types.
    """

    names: dict[str, str] = field(default_factory=dict)
    descriptions: dict[str, str] = field(default_factory=dict)
    surfaces: dict[str, str] = field(default_factory=dict)
    relations: dict[str, str] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    columns: pa.Table | None = None

    def table(self) -> pa.Table:
        """The texts of entities as Arrow columns."""
        if self.columns is not None:
            return self.columns
        of = {column: getattr(self, attribute) for column, attribute in _TEXTS}
        labels = list(dict.fromkeys(chain.from_iterable(of.values())))
        columns = {column: [texts.get(x, "") for x in labels] for column, texts in of.items()}
        schema = pa.schema([(column, pa.large_string()) for column in ("label", *of)])
        return pa.table({"label": labels, **columns}, schema)


def build_graph(
    name: str,
    splits: LabeledSplits,
    texts: TextColumns | None = None,
    *,
    extra_entities: Iterable[str] | pa.ChunkedArray = (),
    humanize_labels: bool = False,
    sources: Mapping[str, str] | None = None,
    negatives: LabeledSplits | None = None,
) -> KnowledgeGraph:
    """A graph from labeled triples; ids follow the sorted labels, every label is kept.

    Args:
        splits: split name to (head, relation, tail) labels, as rows or as Arrow columns; duplicates stay.
        texts: by label.
        extra_entities: labels that are candidates though no triple has them.
        humanize_labels: names that are missing are labels as words, instead of the labels.
        negatives: likewise triples that are known to be false.

    Raises:
        DataError: when there is no training split, or there are more than :data:`MOST` entities.
    """
    if "train" not in splits:
        raise DataError(f"'{name}' has no training triples")
    texts = texts or TextColumns()
    found = [
        (of, split, _coded(rows))
        for of, each in enumerate((splits, negatives or {}))
        for split, rows in each.items()
    ]
    parts = [part for _, _, part in found]
    if not isinstance(extra_entities, pa.ChunkedArray):
        extra_entities = pa.chunked_array([pa.array(extra_entities, pa.string())])
    ends = [column for part in parts for column in (part.column("head"), part.column("tail"))]
    labels, ids = _numbered([*ends, extra_entities.cast(pa.string()).dictionary_encode()])
    relation_labels, relation_ids = _numbered([part.column("relation") for part in parts])
    triples = [np.stack(x, axis=1) for x in zip(ids[:-1:2], relation_ids, ids[1:-1:2], strict=True)]
    by_split = [
        {s: x for (of, s, _), x in zip(found, triples, strict=True) if of == which} for which in (0, 1)
    ]
    table = _named(labels, texts.table(), humanize_labels)
    relations = relation_labels.to_pylist()
    given = {x: name for x, name in texts.relations.items() if name.strip()}
    names = [given.get(x) or (humanize(x) if humanize_labels else x) for x in relations]
    graph_relations = RelationTable(relations, names)
    return KnowledgeGraph(
        name,
        EntityTable.of(table, check=False),  # labels are distinct by now
        graph_relations,
        by_split[0],
        dict(sources or {}),
        texts.notes,
        by_split[1],
    )


def _coded(rows: Iterable[Sequence[str]] | pa.Table) -> pa.Table:
    return rows if isinstance(rows, pa.Table) else triples_of(rows)


def _numbered(columns: Sequence[pa.ChunkedArray]) -> tuple[pa.Array, list[IntArray]]:
    """The distinct labels of coded columns, sorted, and each column as numbers of them."""
    coded = pa.chunked_array(list(chain.from_iterable(c.chunks for c in columns)), CODED)
    if not coded.num_chunks:
        return pa.array([], pa.large_string()), [np.zeros(0, np.int64) for _ in columns]
    try:
        coded = coded.unify_dictionaries()
    except pa.ArrowCapacityError:
        raise _too_large() from None
    every = coded.chunk(0).dictionary
    if max(len(every), pc.sum(pc.binary_length(every)).as_py() or 0) > MOST:
        raise _too_large()
    used = np.zeros(len(every), np.bool_)  # what was sliced away has left its labels
    for chunk in coded.chunks:
        used[chunk.indices.to_numpy()] = True
    kept = np.flatnonzero(used)
    order = kept[pc.sort_indices(every.take(pa.array(kept))).to_numpy()]
    number = np.empty(len(every), np.int64)
    number[order] = np.arange(len(order))
    ids, at = [], 0
    for column in columns:
        chunks = coded.chunks[at : at + column.num_chunks]
        at += column.num_chunks
        ids.append(np.concatenate([np.zeros(0, np.int64), *(number[x.indices.to_numpy()] for x in chunks)]))
    return every.take(pa.array(order)).cast(pa.large_string()), ids


def _too_large() -> DataError:
    return DataError(
        f"the graph has more than {MOST:,} entities, or labels of as many bytes together: shorten the labels "
        "(numbers do), or train on a part of the graph"
    )


def _named(labels: pa.Array, texts: pa.Table, humanize_labels: bool) -> pa.Table:
    """The texts of entities with these labels; what has none has its label for a name, and nothing else."""
    rows = pc.index_in(labels, texts.column("label").combine_chunks())
    found = {"label": pa.chunked_array([labels])}
    for column in ("name", "description", "surface", TYPES):
        if column in texts.column_names:
            found[column] = pc.fill_null(texts.column(column).take(rows), "")
    return completed(pa.table(found), humanize_labels)


def completed(table: pa.Table, humanize_labels: bool = True) -> pa.Table:
    """A table of entities with a name and a surface for each: an empty name is the label, as words if asked
    for, and an empty surface the name."""
    label, name, surface = (table.column(c) for c in ("label", "name", "surface"))
    unnamed = pc.equal(pc.utf8_trim_whitespace(name) if humanize_labels else name, "")
    if pc.any(unnamed).as_py():
        name = pc.if_else(unnamed, humanized(label) if humanize_labels else label, name)
    # Mostly there are no surfaces, and the column of names serves as both.
    empty = pc.equal(pc.utf8_trim_whitespace(surface), "")
    surface = name if pc.all(empty).as_py() else pc.if_else(empty, name, surface)
    for column, values in (("name", name), ("surface", surface)):
        table = table.set_column(table.column_names.index(column), column, values)
    return table
