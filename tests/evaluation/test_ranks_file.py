from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kgmlm.core.errors import DataError
from kgmlm.evaluation.metrics import COLUMNS, Ranks, find_ranks, read_ranks, scores_digest, write_ranks
from kgmlm.graphs.graph import KnowledgeGraph


def written(toy: KnowledgeGraph, path: Path) -> Ranks:
    """Made-up ranks of the test triples, in a file."""
    triples = toy.splits["test"]
    count = 2 * len(triples)
    best = np.arange(count) % 5 + 1
    ranks = Ranks(best, best + 1, np.full(count, 31))
    write_ranks(
        path, toy, triples, np.arange(count) >= len(triples), ranks, np.zeros(count, np.float32), "scores 7"
    )
    return ranks


def test_what_is_written_is_read(toy: KnowledgeGraph, tmp_path: Path) -> None:
    path = tmp_path / "ranks" / "test.parquet"
    path.parent.mkdir()
    ranks = written(toy, path)
    table = read_ranks(find_ranks(tmp_path))
    assert list(table.columns) == COLUMNS
    assert table["optimistic"].tolist() == ranks.optimistic_B.tolist()
    assert table["target"].tolist() == ["head"] * (len(table) // 2) + ["tail"] * (len(table) // 2)
    (h, r, t), *_ = toy.labeled(toy.splits["test"])
    assert table.iloc[0][["head", "relation", "tail"]].tolist() == [h, r, t]
    assert scores_digest(path) == "scores 7"


def test_what_is_no_file_of_ranks_is_refused(toy: KnowledgeGraph, tmp_path: Path) -> None:
    path = tmp_path / "test.parquet"
    written(toy, path)
    table = read_ranks(path)
    table.assign(target="both").to_parquet(path)
    with pytest.raises(DataError, match="a target is head or tail"):
        read_ranks(path)
    table.drop(columns="candidates").to_parquet(path)
    with pytest.raises(DataError, match="no column 'candidates'"):
        read_ranks(path)
    with pytest.raises(DataError, match="does not exist"):
        find_ranks(tmp_path / "absent")
