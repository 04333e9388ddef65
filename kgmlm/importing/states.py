"""A graph as it was at some time: a folder, a file of triples, or files to import; and its dates."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from kgmlm.core.errors import DataError
from kgmlm.core.progress import Watcher
from kgmlm.core.tables import ENDS, SUFFIXES, columns_of, is_date_column, triple_header
from kgmlm.graphs.datasets import load_graph, read_dated, read_labeled, training_table
from kgmlm.graphs.dates import Dates, dates_of
from kgmlm.graphs.given import GivenTriples, is_missing
from kgmlm.graphs.graph import Dataset, KnowledgeGraph, build_graph
from kgmlm.importing.import_graph import import_graph
from kgmlm.importing.statements import PACKED

State = tuple[KnowledgeGraph, dict[str, Dates]]  # and when the triples of each split were made, if known


def read_state(
    dataset: Dataset, watch: Watcher, *, column: str | None = None, skip_header: bool = False
) -> State:
    """A graph, and when its triples were made.

    Args:
        dataset: as of :func:`kgmlm.load_graph`; or a file of triples; or a file that
            :func:`kgmlm.import_graph` reads by its name, whose blank nodes are left out, since nothing
            identifies them in another file.
        column: of dates; None takes the first that is called ``date``, ``created`` or ``time``.

    Raises:
        DataError: when it cannot be read, or has no such column.
    """
    if hasattr(dataset, "itertuples") and hasattr(dataset, "columns"):
        return _of_frame(dataset, column)
    path = Path(dataset) if isinstance(dataset, str | Path) else None
    if path is not None and path.is_file():
        if path.name.endswith(SUFFIXES):
            return _of_table(path, column, skip_header)
        with TemporaryDirectory() as folder:
            imported = Path(folder) / _stem(path)
            import_graph(path, imported, skip_blank=True, progress=watch.__call__)
            return _of_folder(imported, column, False)
    if path is not None and path.is_dir() and training_table(path) is not None:
        return _of_folder(path, column, skip_header)
    graph = load_graph(dataset, skip_header=skip_header)
    if column is not None:
        raise DataError(f"'{graph.name}' has no column '{column}': its triples have no dates")
    return graph, {}


def _stem(path: Path) -> str:
    """A file's name without what says its format.

    >>> _stem(Path("uat-4.2.0.rdf.gz"))
    'uat-4.2.0'
    """
    packed = path.with_suffix("") if path.suffix in PACKED else path
    return packed.stem


def _of_folder(folder: Path, column: str | None, skip_header: bool) -> State:
    """The state that a dataset folder has."""
    train = training_table(folder)
    assert train is not None
    column = _column(train, column)
    return read_dated(folder, skip_header=skip_header, dates=column)


def _of_table(path: Path, column: str | None, skip_header: bool) -> State:
    """The state that a file of triples has."""
    column = _column(path, column)
    table, true = read_labeled(path, skip_header=skip_header, dates=column)
    columns = table.columns
    dates = {} if column is None else {"train": dates_of(columns.column(column), f"{path}:", table.first)}
    columns = columns.select(ENDS)
    if true is not None:
        columns = columns.filter(pa.array(true))
        dates = {split: of[true] for split, of in dates.items()}
    return build_graph(_stem(path), {"train": columns}), dates


def _column(path: Path, column: str | None) -> str | None:
    """The column of dates of a file of triples; None where it has none.

    Raises:
        DataError: when the one that is asked for is not there.
    """
    first = columns_of(path)
    names = first if path.suffix == ".parquet" else triple_header(first)
    if column is None:
        return next(filter(is_date_column, names or ()), None)
    if names is not None and column not in names:
        raise DataError(f"{path} has no column '{column}' (it has: {', '.join(names)})")
    if names is None and not (column.isdecimal() and len(ENDS) < int(column) <= len(first)):
        numbers = ", ".join(map(str, range(len(ENDS) + 1, len(first) + 1))) or "none"
        raise DataError(
            f"{path} has no column '{column}': its first line names no columns, and those beside head, "
            f"relation and tail are by number: {numbers}"
        )
    return column


def _of_frame(frame: Any, column: str | None) -> State:
    """The state that a DataFrame has."""
    names = [str(name) for name in frame.columns]
    if column is not None and column not in names:
        raise DataError(f"the triples have no column '{column}' (they have: {', '.join(names)})")
    column = next(filter(is_date_column, names), None) if column is None else column
    graph = KnowledgeGraph.from_triples(frame)
    if column is None:
        return graph, {}
    texts = ["" if is_missing(value) else str(value) for value in frame[column]]
    dates = dates_of(pa.chunked_array([pa.array(texts, pa.string())]), "triple ")
    true = GivenTriples.of(frame).true
    return graph, {"train": dates if true is None else dates[true]}
