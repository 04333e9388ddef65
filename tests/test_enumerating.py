from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kgmlm.enumerating import Slots, seen_queries, triple_keys
from kgmlm.kg import Query

N, R = 6, 3
TRIPLES = st.lists(
    st.tuples(st.integers(0, N - 1), st.integers(0, R - 1), st.integers(0, N - 1)), max_size=25
).map(lambda rows: np.array(rows, np.int64).reshape(-1, 3))


@given(TRIPLES, st.sets(st.integers(0, R - 1)))
def test_each_query_that_training_has_is_asked_once(train: np.ndarray, relations: set[int]) -> None:
    asked = list(seen_queries(train, N, np.array(sorted(relations), np.int64)))
    of_tails = {Query(h, r, "tail") for h, r, _ in train.tolist() if r in relations}
    of_heads = {Query(t, r, "head") for _, r, t in train.tolist() if r in relations}
    assert len(asked) == len(set(asked))
    assert set(asked) == of_tails | of_heads
    assert asked == sorted(asked, key=lambda q: (q.relation, q.target == "tail", q.entity))


@given(TRIPLES)
def test_slots_have_what_training_has_there(train: np.ndarray) -> None:
    queries = seen_queries(np.array([(h, r, h) for h in range(N) for r in range(R)]), N, np.arange(R))
    fits_BN = Slots(train, N, R).fits(queries)
    for query, fits_N in zip(queries, fits_BN, strict=True):
        column = 2 if query.target == "tail" else 0
        expected = {row[column] for row in train.tolist() if row[1] == query.relation}
        assert set(np.flatnonzero(fits_N).tolist()) == expected


@given(TRIPLES)
def test_keys_tell_triples_apart(triples: np.ndarray) -> None:
    keys = triple_keys(triples, N, R)
    assert len(set(keys.tolist())) == len({tuple(row) for row in triples.tolist()})
    order = np.argsort(keys, kind="stable")
    rows = [(r, h, t) for h, r, t in triples[order].tolist()]
    assert rows == sorted(rows)
