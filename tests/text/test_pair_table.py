"""Names as pairs of position and token: distinct and shared."""

from __future__ import annotations

import numpy as np

from kgmlm.text.reader import PairTable
from kgmlm.text.tokenization import Candidates

NAMES = Candidates(np.array([7, 8, 7, 9, 7]), np.array([0, 2, 4, 4, 5]), np.zeros(4, np.bool_))


def test_pairs_are_distinct_and_make_up_the_names() -> None:
    table = PairTable.of(NAMES)
    assert table.tokens_P.tolist() == [7, 8, 9]
    assert table.starts == (0, 1, 3)
    bags = [table.tokens_P[bag].tolist() for bag in np.split(table.pairs, table.offsets[1:-1])]
    assert bags == [[7, 8], [7, 9], [], [7]]


def test_columns_are_the_names_by_length() -> None:
    groups, places = PairTable.of(NAMES).columns
    assert [[c.tolist() for c in group] for group in groups] == [[], [[0]], [[0, 0], [1, 2]]]
    assert places.tolist() == [2, 3, 0, 1]
