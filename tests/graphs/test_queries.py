from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgmlm.graphs import queries as queries_module
from kgmlm.graphs.queries import TARGETS, FilterIndex, Links, Queries, Query, both_sides, distinct_triples

triple = st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 5))


@given(st.lists(triple, min_size=1, max_size=40), st.lists(triple, min_size=1, max_size=10))
def test_filter_index_finds_what_a_scan_finds(
    known: list[tuple[int, ...]], asked: list[tuple[int, ...]]
) -> None:
    index = FilterIndex(np.array(known), 6)
    queries, _ = both_sides(np.array(asked))
    rows, ids = index.lookup(queries)
    results = {(int(r), int(i)) for r, i in zip(rows, ids, strict=True)}
    scan = {
        (row, answer)
        for row, q in enumerate(queries)
        for h, r, t in known
        for entity, answer in [(h, t) if q.target == "tail" else (t, h)]
        if (r, entity) == (q.relation, q.entity)
    }
    assert results == scan
    assert len(rows) == len(results)


def test_a_filter_of_nothing_finds_nothing() -> None:
    rows, ids = FilterIndex(np.zeros((0, 3), np.int64), 5).lookup(Queries.of([Query(1, 0, "tail")]))
    assert len(rows) == len(ids) == 0


TRIPLES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(0, 6)), max_size=40)


@pytest.mark.parametrize("widest", [2**63, 1])  # 1: as if no integer were wide enough
@given(rows=TRIPLES)
def test_integer_keys_sort_as_rows_do(widest: int, rows: list[tuple[int, int, int]]) -> None:
    triples = np.array(rows, np.int64).reshape(-1, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queries_module, "_WIDEST", widest)
        assert distinct_triples(triples).tolist() == sorted(map(list, set(rows)))
        index = FilterIndex(triples, 7)
        every = [Query(e, r, target) for e in range(7) for r in range(4) for target in TARGETS]
        expected = [
            (i, answer)
            for i, q in enumerate(every)
            for answer in sorted(
                {t if q.target == "tail" else h for h, r, t in rows
                 if r == q.relation and (h if q.target == "tail" else t) == q.entity}
            )
        ]  # fmt: skip
        few = [(i, a) for i, a in expected if i < 5]
        for asked, answers in ((every[:5], few), (every, expected), (every[:5], few)):  # scanned, then sorted
            result = index.lookup(Queries.of(asked))
            assert list(zip(*(x.tolist() for x in result), strict=True)) == answers
        assert ("_sorted" in vars(index)) is True
        keys = index.keys(Queries.of(every))
        assert list(index.queries(keys)) == every


@given(rows=TRIPLES)
def test_links_are_the_triples_of_each_entity(rows: list[tuple[int, int, int]]) -> None:
    """First those that it is the tail of, then those that it is the head of, each once and in order."""
    links = Links.made(np.array(rows, np.int64).reshape(-1, 3), 9)
    for entity in range(9):
        heads = [[r, 0, h] for h, r, t in sorted(set(rows)) if t == entity]
        tails = [[r, 1, t] for h, r, t in sorted(set(rows)) if h == entity]
        assert links.at(entity).tolist() == heads + tails
