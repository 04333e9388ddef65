"""Texts and triples of a run on disk: Arrow files, mapped into memory, so that opening reads what is used.

Runs by older versions, and packs, have Parquet files instead, which are read whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kgmlm import files
from kgmlm.digests import RESTORE
from kgmlm.filters import Links
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import (
    TEXT_COLUMNS,
    TYPES,
    DataError,
    EntityTable,
    IntArray,
    RelationTable,
    RunError,
    first_line,
)

IDS = ("head", "relation", "tail")
NEGATIVES = "negatives"  # triples that are known to be false, where a graph has some
TRIPLE, SPLITS = "triple", b"splits"  # the column of triples; where their file says how many each split has
LINKS, OFFSETS, LINK = "links", "link_offsets", "link"  # triples by entity, where there are many
LINKED = 1_000_000  # training triples from which on sorting them takes seconds
THOROUGH = 2**28  # bytes of a file up to which it is looked through when it is opened
_TRIPLE, _LINK = pa.list_(pa.int64(), 3), pa.list_(pa.int32(), 3)


def write_graph(graph: KnowledgeGraph, folder: Path) -> None:
    """Texts and triples as Arrow files, ids kept."""
    folder.mkdir(parents=True)
    entities = graph.entities.table
    if entities.column("surface").equals(entities.column("name")):
        entities = entities.drop_columns("surface")
    files.write_arrow(folder / "entities.arrow", entities)
    files.write_arrow(folder / "relations.arrow", _relations(graph))
    _write_triples(folder / "triples.arrow", graph.splits)
    if graph.negatives:
        _write_triples(folder / f"{NEGATIVES}.arrow", graph.negatives)
    if len(graph.splits["train"]) >= LINKED:
        _write_links(graph.context.links, folder)


def _write_links(links: Links, folder: Path) -> None:
    rows = pa.array(np.ascontiguousarray(links.rows, np.int32).ravel())
    table = pa.table([pa.FixedSizeListArray.from_arrays(rows, type=_LINK)], pa.schema([(LINK, _LINK)]))
    files.write_arrow(folder / f"{LINKS}.arrow", table)
    files.write_arrow(folder / f"{OFFSETS}.arrow", pa.table({LINK: links.offsets}))


def _relations(graph: KnowledgeGraph) -> pa.Table:
    columns = {"label": [r.label for r in graph.relations], "name": [r.name for r in graph.relations]}
    return pa.table(columns, pa.schema([(name, pa.large_string()) for name in columns]))


def _write_triples(path: Path, splits: Mapping[str, IntArray]) -> None:
    counts = {split: len(triples) for split, triples in splits.items()}
    schema = pa.schema([(TRIPLE, _TRIPLE)], {SPLITS: json.dumps(counts).encode()})
    parts = [pa.array(np.ascontiguousarray(triples).ravel()) for triples in splits.values()]
    triples = pa.FixedSizeListArray.from_arrays(pa.concat_arrays(parts), type=_TRIPLE)
    files.write_arrow(path, pa.table([triples], schema))


def portable(graph: KnowledgeGraph) -> dict[str, pa.Table]:
    """The tables of a graph by name, as Parquet files have them: those of packs and of older runs."""
    tables = {"entities": graph.entities.table, "relations": _relations(graph)}
    for name, splits in (("triples", graph.splits), (NEGATIVES, graph.negatives)):
        if splits:
            triples = np.concatenate(list(splits.values()))
            of = np.repeat(np.arange(len(splits), dtype=np.int8), [len(part) for part in splits.values()])
            names = pa.DictionaryArray.from_arrays(pa.array(of), pa.array(list(splits))).cast(pa.string())
            columns = {column: triples[:, i] for i, column in enumerate(IDS)}
            tables[name] = pa.table({**columns, "split": names})
    return tables


def read_graph(folder: Path, name: str, sources: Mapping[str, str]) -> KnowledgeGraph:
    """The graph that :func:`write_graph` wrote, or that an older version did.

    Raises:
        RunError: when a file is missing or damaged, or names what is not there.
    """
    path, table, thorough = _table(folder, "entities")
    optional = ("surface", TYPES) if path.suffix == ".arrow" else (TYPES,)
    entities = _texts(path, table, TEXT_COLUMNS, optional)
    entities.setdefault("surface", entities["name"])
    try:
        entity_table = EntityTable.of(pa.table(entities), check=thorough)
    except DataError as error:
        raise _damaged(path, str(error)) from None
    path, table, _ = _table(folder, "relations")
    relations = _texts(path, table, ("label", "name"))
    try:
        relation_table = RelationTable(relations["label"].to_pylist(), relations["name"].to_pylist())
    except DataError as error:
        raise _damaged(path, str(error)) from None
    sizes = len(entity_table), len(relation_table)
    path, table, thorough = _table(folder, "triples")
    splits = _triples(path, table, thorough, *sizes)
    if "train" not in splits:
        raise _damaged(path, "it has no training triples")
    negatives = {}
    if any(folder.glob(f"{NEGATIVES}.*")):
        negatives = _triples(*_table(folder, NEGATIVES), *sizes)
    graph = KnowledgeGraph(name, entity_table, relation_table, splits, sources, negatives=negatives)
    return replace(graph, links=_links(folder, graph)) if (folder / f"{LINKS}.arrow").is_file() else graph


def _links(folder: Path, graph: KnowledgeGraph) -> Links:
    """Training triples by entity, where they are in the files."""
    path, rows, thorough = _table(folder, LINKS)
    offsets_path, offsets, _ = _table(folder, OFFSETS)
    ends: Any = np.from_dlpack(_column(offsets_path, offsets, LINK, text=False).combine_chunks())
    _check_once(path, rows, LINK)
    links: IntArray = _lists(path, rows.column(LINK), _LINK)
    count = len(graph.entities)
    whole = len(ends) == count + 1 and (ends[0], ends[-1]) == (0, len(links)) and (np.diff(ends) >= 0).all()
    if whole and thorough and len(links):
        whole = links.min() >= 0 and (links.max(0) < (len(graph.relations), 2, count)).all()
    if not whole:
        raise _damaged(path, "it is not of the training triples")
    return Links(ends, links, graph.splits["train"])


def _lists(path: Path, column: pa.ChunkedArray, kind: pa.DataType) -> Any:
    """A column of lists of three numbers ``(n, 3)``, where it is in the file."""
    if column.type != kind or column.null_count or column.num_chunks > 1:
        raise _damaged(path, f"a column is of type {column.type}, or has gaps")
    values = column.chunk(0).flatten() if column.num_chunks else pa.array([], kind.value_type)
    if values.null_count:
        raise _damaged(path, "a column has gaps")
    found: Any = np.from_dlpack(values)  # to_numpy() would import pandas
    return found.reshape(-1, 3)


def _table(folder: Path, stem: str) -> tuple[Path, pa.Table, bool]:
    """A table by its name, where it is, and whether it was looked through."""
    path = folder / f"{stem}.arrow"
    old = folder / f"{stem}.parquet"
    if not path.is_file() and not old.is_file():
        raise RunError(f"{path} is missing; {RESTORE}")
    try:
        if path.is_file():
            table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        else:
            path = old
            table = files.read_parquet(path)
        thorough = path.stat().st_size <= THOROUGH
        table.validate(full=thorough)
    except Exception as error:  # whatever a damaged file makes the library raise
        raise _damaged(path, _line(error)) from None
    return path, table, thorough


def _triples(
    path: Path, table: pa.Table, thorough: bool, entities: int, relations: int
) -> dict[str, IntArray]:
    """The triples of each split of a file, among so many entities and relations."""
    splits = _mapped(path, table) if TRIPLE in table.column_names else _numbers(path, table)
    for triples in splits.values() if thorough else ():
        for name, ids, count in zip(IDS, triples.T, (entities, relations, entities), strict=True):
            if len(ids) and not 0 <= ids.min() <= ids.max() < count:
                wrong = ids.min() if ids.min() < 0 else ids.max()
                raise _damaged(path, f"{name} {wrong} is not one of {count:,}")
    return splits


def _mapped(path: Path, table: pa.Table) -> dict[str, IntArray]:
    """Triples where they are in the file."""
    _check_once(path, table, TRIPLE)
    every: IntArray = _lists(path, table.column(TRIPLE), _TRIPLE)
    try:
        counts = files.parse_json(table.schema.metadata[SPLITS])
        ends = np.cumsum([0, *(int(count) for count in counts.values())])
        if ends[-1] != len(table) or (np.diff(ends) < 0).any():
            raise ValueError(f"the splits have {ends[-1]:,} triples of {len(table):,}")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _damaged(path, f"its counts of splits: {_line(error)}") from None
    return {str(name): every[a:b] for name, a, b in zip(counts, ends, ends[1:], strict=False)}


def _numbers(path: Path, table: pa.Table) -> dict[str, IntArray]:
    """Triples of a Parquet file."""
    columns = [_column(path, table, name, text=False) for name in IDS]
    split = _column(path, table, "split").combine_chunks().dictionary_encode()
    number_T = np.from_dlpack(split.indices)
    hrt = np.stack([np.from_dlpack(column.combine_chunks()) for column in columns], axis=1)
    return {str(name): hrt[number_T == number] for number, name in enumerate(split.dictionary.to_pylist())}


def _texts(
    path: Path, table: pa.Table, names: tuple[str, ...], optional: tuple[str, ...] = ()
) -> dict[str, pa.ChunkedArray]:
    """Columns of texts, and ``optional`` ones if there."""
    wanted = dict.fromkeys((*names, *optional))
    return {x: _column(path, table, x) for x in wanted if x in table.column_names or x not in optional}


def _column(path: Path, table: pa.Table, name: str, *, text: bool = True) -> pa.ChunkedArray:
    """A column without gaps, as text or 64-bit numbers."""
    _check_once(path, table, name)
    column = table.column(name)
    of = column.type
    fits = pa.types.is_string(of) or pa.types.is_large_string(of) if text else pa.types.is_integer(of)
    if not fits or column.null_count:
        what = f"of type {of}" if not fits else "without a value in some rows"
        raise _damaged(path, f"the column '{name}' is {what}")
    try:
        return column.cast(pa.large_string() if text else pa.int64())
    except pa.ArrowException as error:
        raise _damaged(path, f"the column '{name}': {_line(error)}") from None


def _check_once(path: Path, table: pa.Table, name: str) -> None:
    if (count := table.column_names.count(name)) != 1:
        raise _damaged(path, f"it has {count} columns '{name}' instead of one")


def _damaged(path: Path, why: str) -> RunError:
    return RunError(f"{path} is damaged: {why}; {RESTORE}")


def _line(error: Exception) -> str:
    return first_line(error)[:160]
