"""Per-query ranks on disk: one schema, written by evaluations and read by comparisons."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kgmlm import files
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import TARGETS, BoolArray, DataError, FloatArray, IntArray, first_line
from kgmlm.metrics import Ranks

if TYPE_CHECKING:
    import pandas as pd

KEY = ["head", "relation", "tail", "target"]
COLUMNS = [*KEY, "optimistic", "pessimistic", "candidates"]
MADE_BY = b"kgmlm.made_by"  # where a file notes which scores of its run it is of


def write_ranks(
    path: Path,
    graph: KnowledgeGraph,
    triples: IntArray,
    tail_B: BoolArray,
    ranks: Ranks,
    scores_B: FloatArray,
    made_by: str = "",
    *,
    follow: bool = False,
) -> None:
    """Ranks of both queries of each triple as Parquet, keyed by labels, whole or not at all.

    Args:
        triples: (n, 3) ids; row i of the 2n ranks belongs to triple ``i % n``.
        scores_B: the answers' scores.
        made_by: says of which scores of a run they are.
        follow: follow a link, and write into a pipe or a device.
    """
    labels = graph.labels(np.tile(triples, (2, 1)))
    table = pa.table(
        {
            **{name: labels.column(name).cast(pa.string()) for name in labels.column_names},
            "target": np.where(tail_B, "tail", "head").tolist(),
            "score": scores_B,
            "optimistic": ranks.optimistic_B,
            "pessimistic": ranks.pessimistic_B,
            "candidates": ranks.candidates_B,
        }
    )
    files.write_parquet(path, table.replace_schema_metadata({MADE_BY: made_by}), follow=follow)


def find_ranks(path: Path, split: str = "test") -> Path:
    """The ranks of a run folder, or the Parquet file itself.

    Raises:
        DataError: when the run has no ranks of the split, or there is nothing at the path.
    """
    if path.is_file():
        return path
    found = path / "ranks" / f"{files.safe_name(split)}.parquet"
    if found.is_file():
        return found
    if not path.exists():
        raise DataError(f"{path} does not exist")
    have = ", ".join(sorted(p.stem for p in (path / "ranks").glob("*.parquet"))) or "none"
    raise DataError(
        f"{path} has no ranks of '{split}' (it has: {have}); "
        f"`kgmlm evaluate {path} --split {split}` makes them; another file of ranks can be given itself"
    )


def read_ranks(path: Path) -> pd.DataFrame:
    """Per-query ranks, as an evaluation wrote them.

    Raises:
        DataError: when the file has not their columns, or has a query twice with different ranks.
    """
    import pandas as pd

    try:
        read = files.read_parquet(path, COLUMNS)
        read.validate(full=True)  # text that is no UTF-8
        table = read.to_pandas()
    except Exception as error:  # whatever a file that is no Parquet makes the library raise
        why = first_line(error)[:120]
        raise DataError(f"{path} cannot be read as Parquet: {why}") from None
    missing = [c for c in COLUMNS if c not in table]
    if missing:
        raise DataError(f"{path} has no column '{missing[0]}'; ranks are written by `kgmlm evaluate`")
    table = pd.DataFrame(table[COLUMNS])
    if not len(table):
        raise DataError(f"{path} has no ranks")
    wrong = next((c for c in COLUMNS if not _fits(table[c], number=c not in KEY)), None)
    if wrong is not None:
        what = "text" if wrong in KEY else "whole numbers"
        raise DataError(f"{path}: the column '{wrong}' is not {what} in all rows")
    if not table["target"].isin(TARGETS).all():
        raise DataError(f"{path}: a target is {' or '.join(TARGETS)}")
    try:
        Ranks(*(table[c].to_numpy(np.int64) for c in COLUMNS[len(KEY) :]))
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    twice = table.duplicated(KEY)
    if twice.sum() != table.duplicated().sum():
        raise DataError(f"{path} has a query twice, with different ranks")
    return table


def _fits(column: pd.Series[Any], *, number: bool) -> bool:
    """Whether a column is of whole numbers, or of text, in all rows."""
    from pandas.api.types import infer_dtype

    if column.isna().any():
        return False
    kind = infer_dtype(column)
    return kind == "integer" and column.dtype != np.uint64 if number else kind == "string"


def made_by(path: Path) -> str:
    """Which scores of its run a file of ranks is of, as the evaluation noted it; empty where it did not.

    Raises:
        DataError: when it is no Parquet file.
    """
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}") from None
    return str(metadata.get(MADE_BY, b""), "utf-8", "replace")
