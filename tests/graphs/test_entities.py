from __future__ import annotations

import pytest

from kgmlm.core.errors import LONGEST, DataError, counted
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph


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


def test_counts_agree_with_their_nouns() -> None:
    assert [counted(n, "name") for n in (0, 1, 2, 1234)] == ["0 names", "1 name", "2 names", "1,234 names"]
    assert [counted(n, "entity") for n in (1, 2)] == ["1 entity", "2 entities"]


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


def test_an_entity_is_in_another_table_only_with_the_same_texts() -> None:
    ours = EntityTable(["a", "b", "c", "d"], ["A", "B", "C", "D"], ["1", "2", "3", "4"])
    theirs = EntityTable(["d", "c", "b", "x"], ["D", "C", "other", "X"], ["4", "other", "2", ""])
    assert ours.rows_in(theirs).tolist() == [-1, -1, -1, 0]
