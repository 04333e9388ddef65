from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgmlm import kg
from kgmlm.kg import (
    LONGEST,
    TARGETS,
    DataError,
    EntityTable,
    FilterIndex,
    KnowledgeGraph,
    Queries,
    Query,
    both_sides,
    counted,
    distinct_triples,
)


def test_an_entity_without_a_name_is_named_by_its_label() -> None:
    table = EntityTable(["a", "b"], ["Anna", ""], ["first", ""])
    assert (table[0].name, table[1].name, table[1].surface) == ("Anna", "b", "b")


def test_labels_that_repeat_are_refused() -> None:
    with pytest.raises(DataError, match="occurs twice"):
        EntityTable(["a", "a"])


def test_rows_in_another_table_go_by_label_and_text() -> None:
    old = EntityTable(["a", "b", "c"], ["Anna", "Bea", "Cleo"], ["one", "", "three"])
    new = EntityTable(["c", "x", "b", "a"], ["Cleo", "Anna", "Bea", "Anna"], ["three", "one", "", "another"])
    assert new.rows_in(old).tolist() == [2, -1, 1, -1]
    assert old.rows_in(old).tolist() == [0, 1, 2]
    assert EntityTable([]).rows_in(old).tolist() == []


def test_queries_carry_no_answer(toy: KnowledgeGraph) -> None:
    queries, answers = toy.queries("test")
    n = len(toy.triples("test"))
    assert len(queries) == len(answers) == 2 * n
    h, r, t = toy.triples("test")[0]
    assert queries[0] == Query(int(t), int(r), "head")
    assert queries[n] == Query(int(h), int(r), "tail")
    assert (answers[0], answers[n]) == (h, t)


def test_context_has_training_triples_only(toy: KnowledgeGraph) -> None:
    assert {f.name for f in fields(toy.context)} == {"entities", "relations", "train"}
    assert toy.context.train is toy.splits["train"]


def test_unique_queries_hold_all_and_only_the_training_answers(toy: KnowledgeGraph) -> None:
    queries, answers = toy.unique_queries("train")
    expected: dict[Query, set[int]] = {}
    for query, answer in zip(*toy.queries("train"), strict=True):
        expected.setdefault(query, set()).add(int(answer))
    assert len(queries) == len(expected)
    positions, ids = answers.take(np.arange(len(queries)))
    found: dict[Query, set[int]] = {}
    for position, answer in zip(positions, ids, strict=True):
        found.setdefault(queries[position], set()).add(int(answer))
    assert found == expected


triple = st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 5))


@given(st.lists(triple, min_size=1, max_size=40), st.lists(triple, min_size=1, max_size=10))
def test_filter_index_finds_what_a_scan_finds(
    known: list[tuple[int, ...]], asked: list[tuple[int, ...]]
) -> None:
    index = FilterIndex(np.array(known), 6)
    queries, _ = both_sides(np.array(asked))
    rows, ids = index.lookup(queries)
    found = {(int(r), int(i)) for r, i in zip(rows, ids, strict=True)}
    scan = {
        (row, answer)
        for row, q in enumerate(queries)
        for h, r, t in known
        for entity, answer in [(h, t) if q.target == "tail" else (t, h)]
        if (r, entity) == (q.relation, q.entity)
    }
    assert found == scan
    assert len(rows) == len(found)


def test_a_filter_of_nothing_finds_nothing() -> None:
    rows, ids = FilterIndex(np.zeros((0, 3), np.int64), 5).lookup(Queries.of([Query(1, 0, "tail")]))
    assert len(rows) == len(ids) == 0


def test_a_missing_split_says_what_makes_it(toy: KnowledgeGraph) -> None:
    with pytest.raises(DataError, match="kgmlm data split"):
        toy.triples("dev")


def test_counts_agree_with_their_nouns() -> None:
    assert [counted(n, "name") for n in (0, 1, 2, 1234)] == ["0 names", "1 name", "2 names", "1,234 names"]
    assert [counted(n, "entity") for n in (1, 2)] == ["1 entity", "2 entities"]


TRIPLES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(0, 6)), max_size=40)


@pytest.mark.parametrize("widest", [2**63, 1])  # 1: as if no integer were wide enough
@given(rows=TRIPLES)
def test_integer_keys_sort_as_rows_do(widest: int, rows: list[tuple[int, int, int]]) -> None:
    triples = np.array(rows, np.int64).reshape(-1, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kg, "_WIDEST", widest)
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
            found = index.lookup(Queries.of(asked))
            assert list(zip(*(x.tolist() for x in found), strict=True)) == answers
        assert ("_sorted" in vars(index)) is True
        keys = index.keys(Queries.of(every))
        assert list(index.queries(keys)) == every


def test_labels_are_found_without_a_dictionary(toy: KnowledgeGraph) -> None:
    table = toy.entities
    assert [table.find(label) for label in table.column("label")] == list(range(len(table)))
    assert table.find("nobody") is None
    assert "index" not in vars(EntityTable(["a"]))


def test_an_error_is_one_readable_line_whatever_it_speaks_of() -> None:
    odd = "a\nb\u202ec\x1b[31m\x00\ud800"
    assert str(DataError(f"'{odd}' is no label")) == r"'a\nb\u202ec\x1b[31m\x00\ud800' is no label"
    assert str(DataError("'Österreich 😀' is no label")) == "'Österreich 😀' is no label"
    long = str(DataError("file.tsv:1: " + "\n" * 100_000 + " is no label; mend it"))
    assert len(long) <= LONGEST + 1
    assert long.startswith("file.tsv:1: ")
    assert long.endswith("; mend it")
