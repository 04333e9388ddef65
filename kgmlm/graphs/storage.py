"""Graphs on disk: the files of a run, mapped into memory; how much memory work on a graph takes.

Mapped files are read where they are used; packs have Parquet files instead, which are read whole. Memory is
estimated by lines through the peaks that ``eval/benchmarks/scale.py`` measures at a million and at five
million entities; where there is less, work is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kgmlm.core import files
from kgmlm.core.arrays import IntArray
from kgmlm.core.digests import RESTORE
from kgmlm.core.errors import DataError, RunError, first_line
from kgmlm.core.machine import MEMORY, memory
from kgmlm.core.tables import find_table
from kgmlm.graphs.cards import find_card
from kgmlm.graphs.entities import LISTS, TEXT_COLUMNS, EntityTable, RelationTable
from kgmlm.graphs.graph import Dataset, KnowledgeGraph, Validation
from kgmlm.graphs.queries import SPLITS, Links

IDS = ("head", "relation", "tail")
NEGATIVES = "negatives"  # triples that are known to be false, where a graph has some
TRIPLE_COLUMN, SPLIT_COUNTS = (
    "triple",
    b"splits",
)  # the column of triples; where their file says how many each split has
LINKS, OFFSETS, LINK = "links", "link_offsets", "link"  # triples by entity, where there are many
LINKED = 1_000_000  # training triples from which on sorting them takes seconds
THOROUGH = 2**28  # files of up to so many bytes are validated in full when opened
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
    schema = pa.schema([(TRIPLE_COLUMN, _TRIPLE)], {SPLIT_COUNTS: json.dumps(counts).encode()})
    parts = [pa.array(np.ascontiguousarray(triples).ravel()) for triples in splits.values()]
    triples = pa.FixedSizeListArray.from_arrays(pa.concat_arrays(parts), type=_TRIPLE)
    files.write_arrow(path, pa.table([triples], schema))


def portable(graph: KnowledgeGraph) -> dict[str, pa.Table]:
    """The tables of a graph by name, as Parquet files have them: those of packs."""
    tables = {"entities": graph.entities.table, "relations": _relations(graph)}
    for name, splits in (("triples", graph.splits), (NEGATIVES, graph.negatives)):
        if splits:
            triples = np.concatenate(list(splits.values()))
            of = np.repeat(np.arange(len(splits), dtype=np.int8), [len(part) for part in splits.values()])
            names = pa.DictionaryArray.from_arrays(pa.array(of), pa.array(list(splits))).cast(pa.string())
            columns = {column: triples[:, i] for i, column in enumerate(IDS)}
            tables[name] = pa.table({**columns, "split": names})
    return tables


def read_graph(
    folder: Path, name: str, sources: Mapping[str, str], validation: Validation | None = None
) -> KnowledgeGraph:
    """The graph that :func:`write_graph` wrote.

    Args:
        validation: what its validation triples were drawn by, which the files do not say.

    Raises:
        RunError: when a file is missing or damaged, or names what is not there.
    """
    path, table, thorough = _table(folder, "entities")
    optional = ("surface", *LISTS) if path.suffix == ".arrow" else LISTS
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
    graph = KnowledgeGraph(name, entity_table, relation_table, splits, sources)
    graph = replace(graph, negatives=negatives, validation=validation)
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
    array: Any = np.from_dlpack(values)  # to_numpy() would import pandas
    return array.reshape(-1, 3)


def _table(folder: Path, stem: str) -> tuple[Path, pa.Table, bool]:
    """A table by its name: its path, the table, and whether it was validated in full."""
    path = folder / f"{stem}.arrow"
    packed = folder / f"{stem}.parquet"
    if not path.is_file() and not packed.is_file():
        raise RunError(f"{path} is missing; {RESTORE}")
    try:
        if path.is_file():
            table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        else:
            path = packed
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
    splits = _mapped(path, table) if TRIPLE_COLUMN in table.column_names else _numbers(path, table)
    for triples in splits.values() if thorough else ():
        for name, ids, count in zip(IDS, triples.T, (entities, relations, entities), strict=True):
            if len(ids) and not 0 <= ids.min() <= ids.max() < count:
                wrong = ids.min() if ids.min() < 0 else ids.max()
                raise _damaged(path, f"{name} {wrong} is not one of {count:,}")
    return splits


def _mapped(path: Path, table: pa.Table) -> dict[str, IntArray]:
    """Triples where they are in the file."""
    _check_once(path, table, TRIPLE_COLUMN)
    every: IntArray = _lists(path, table.column(TRIPLE_COLUMN), _TRIPLE)
    try:
        counts = files.parse_json(table.schema.metadata[SPLIT_COUNTS])
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


GIB = 2**30
TRIPLE_BYTES, ENTITY_BYTES = 33, 86  # bytes of a row in the text files of the measured graphs
UNPACKED = 4  # bytes of text per byte of gzip
SMALL = GIB // 4  # what a graph may take without a word


class Peak(NamedTuple):
    """The memory of a process: bytes in any case, and bytes per byte of text."""

    always: float
    each: float


TRAINING = Peak(1.5 * GIB, 2.9)  # without entity vectors; also reading a graph beside an open model
CHECKING = Peak(0.3 * GIB, 5.0)
ASKING = Peak(1.3 * GIB, 1.4)  # without pages of mapped files, which the system takes back


def check_dataset(dataset: Dataset, peak: Peak, tell: Callable[[str], None]) -> None:
    """Check, before a dataset is read, that there is memory for it and for the work on it.

    Nothing is said about a dataset that is in memory already.

    Raises:
        DataError: when the machine, or its control group, can never give as much.
    """
    if not isinstance(dataset, str | Path):
        return
    _check(str(dataset), peak.always, peak.each * _text_of(dataset), tell)


def check_run(path: Path, graph: KnowledgeGraph, tell: Callable[[str], None]) -> None:
    """Check the memory for a run before all its entities are scored; its signals are loaded whole.

    Raises:
        DataError: when the machine, or its control group, can never give as much.
    """
    text = TRIPLE_BYTES * sum(map(len, graph.splits.values())) + ENTITY_BYTES * len(graph.entities)
    loaded = sum(x.stat().st_size for x in path.glob("signals/*.safetensors"))
    _check(str(path), ASKING.always, ASKING.each * text + loaded, tell)


def _text_of(dataset: str | Path) -> int:
    """Bytes of a dataset's tables as text; 0 where nothing is known of them."""
    folder = Path(dataset)
    if folder.is_dir():
        paths = [
            x for stem in (*SPLITS, "triples", "entities") if (x := find_table(folder, stem)) is not None
        ]
        return sum(_text_in(path) for path in paths)
    card = find_card(dataset)
    if card is None:
        return 0
    counts = card.counts
    return TRIPLE_BYTES * (counts.train + counts.valid + counts.test) + ENTITY_BYTES * counts.entities


def _text_in(path: Path) -> int:
    """Bytes of one table as text."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        try:
            return int(pq.read_metadata(path).num_rows) * (
                ENTITY_BYTES if path.stem == "entities" else TRIPLE_BYTES
            )
        except Exception:  # reading it says what is wrong
            return 0
    return path.stat().st_size * (UNPACKED if path.suffix == ".gz" else 1)


def _check(what: str, always: float, own: float, tell: Callable[[str], None]) -> None:
    """Refuse what cannot fit, and warn about what may not; say nothing about what fits any machine."""
    available, needed = memory(), always + own
    if own < SMALL or available is None or needed <= available.free:
        return
    takes = f"{what} takes about {needed / GIB:.1f} GiB of memory"
    if needed > available.total:
        raise DataError(
            f"{takes} and there are {available.total / GIB:.1f}: use a larger machine, or a part of the "
            "graph; "
            f"{MEMORY}={needed / GIB + 0.1:.1f} tries it all the same"
        )
    tell(f"{takes} and {available.free / GIB:.1f} GiB are free: the system may slow down, or end it")
