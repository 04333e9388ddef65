"""Rules as data, as lines of AnyBURL's files, and over other graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kgmlm.core.errors import DataError
from kgmlm.graphs.entities import EntityTable, RelationTable
from kgmlm.signals.rule_set import NONE, ConstantRules, PathRules, RuleFile, RuleSet, confidence

ENTITIES = EntityTable(["lyon", "rhone", "france", "a,b", "X1", "odd (one), two"])
RELATIONS = RelationTable(["in", "near", "part(of)"])

LINES = [
    "9\t8\t0.888889\tin(X,Y) <= in(X,A), in(A,Y)\n",
    "40\t20\t0.5\tin(X,Y) <= near(X,A), part(of)(B,A), in(B,Y)\n",
    "7\t3\t0.428571\tin(X,france) <= near(X,lyon)\n",
    "8\t3\t0.375\tin(lyon,Y) <= near(Y,A)\n",
    "10\t3\t0.3\tin(a,b,Y) <= near(odd (one), two,Y)\n",
    "20\t2\t0.1\tpart(of)(X,X1) <= in(X1,X)\n",
]


@pytest.fixture
def file() -> RuleFile:
    return RuleFile(ENTITIES, RELATIONS)


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(lines), "utf-8")
    return path


def test_a_file_is_read_and_written_the_same(file: RuleFile, tmp_path: Path) -> None:
    rules, skipped = file.read(write(tmp_path / "rules.txt", *LINES))
    assert skipped == 0
    assert list(file.lines(rules)) == LINES
    assert rules.paths.relation.tolist() == [0, 0]
    assert rules.paths.body.tolist() == [[0, 0, NONE], [2, 5, 0]]
    c = rules.constants
    assert list(
        zip(c.asked.tolist(), c.answer.tolist(), c.relation.tolist(), c.value.tolist(), strict=True)
    ) == [
        (0, 2, 2, 0),
        (1, 0, 2, NONE),
        (1, 3, 3, 5),
        (4, 4, 1, 4),
    ]


def test_entities_that_are_called_like_variables_stand_in_quotes(tmp_path: Path) -> None:
    file = RuleFile(EntityTable(["A", "X", "lyon"]), RELATIONS)
    lines = [
        '9\t8\t0.888889\tin(X,"X") <= near(X,"A")\n',
        '9\t7\t0.777778\tin("A",Y) <= near(Y,A)\n',
        '9\t6\t0.666667\tnear(X,lyon) <= near("X",X)\n',
    ]
    rules, skipped = file.read(write(tmp_path / "rules.txt", *lines))
    assert skipped == 0
    assert rules.constants.value.tolist() == [0, NONE, 1]
    assert list(file.lines(rules)) == lines


@pytest.mark.parametrize(
    "rule",
    [
        "in(X,Y) <= in(X,Y)",  # itself
        "in(X,lyon) <= in(X,lyon)",
        "in(X,lyon) <= ",
        "in(X,lyon) <= in(X,A)",  # any other answer of the same
        "in(X,Y) <= in(X,A)",  # leads nowhere
        "in(X,Y) <= in(X,A), in(A,X)",
        "in(X,Y) <= in(X,A), in(A,B), in(B,C), in(C,Y)",  # too long
        "in(X,Y) <= in(X,lyon), near(lyon,Y)",
        "in(X,lyon) <= near(X,A), near(A,B)",
        "in(X,paris) <= near(X,lyon)",  # nothing of the graph
        "at(X,Y) <= near(X,Y)",
        "in(X,Y)",
        "in(lyon,france) <= near(lyon,A)",
        "in(X,X) <= near(X,A)",
        "in(X,lyon) <= near(A,B)",
        "in(X,lyon) <= near(X,X)",
        "nonsense",
    ],
)
def test_other_rules_are_counted_and_left_out(file: RuleFile, tmp_path: Path, rule: str) -> None:
    rules, skipped = file.read(write(tmp_path / "rules.txt", LINES[0], f"5\t4\t0.8\t{rule}\n"))
    assert (len(rules.paths), len(rules.constants), skipped) == (1, 0, 1)


@pytest.mark.parametrize(
    "line", ["5\t4\t.8\n", "five\t4\t.8\tin(X,Y) <= near(X,Y)\n", "4\t5\t1\tin(X,Y) <= near(X,Y)\n", "\xff\n"]
)
def test_what_is_no_rule_is_refused_with_its_line(file: RuleFile, tmp_path: Path, line: str) -> None:
    path = tmp_path / "rules.txt"
    path.write_bytes((LINES[0] + line).encode("latin-1"))
    with pytest.raises(DataError, match=r"line 2|cannot be read as rules"):
        file.read(path)


def test_of_a_rule_that_comes_twice_the_last_line_counts(file: RuleFile, tmp_path: Path) -> None:
    again = [line.replace("\t", "0\t", 1) for line in (LINES[0], LINES[2])]
    rules, skipped = file.read(write(tmp_path / "rules.txt", *LINES, "\n", *again))
    assert (len(rules.paths), len(rules.constants), skipped) == (2, 4, 0)
    assert rules.paths.predicted.tolist() == [90, 40]
    assert rules.constants.predicted.tolist()[0] == 70


def test_a_missing_file_is_refused(file: RuleFile, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        file.read(tmp_path / "none.txt")


def test_a_body_from_the_other_end(file: RuleFile, tmp_path: Path) -> None:
    rules, _ = file.read(write(tmp_path / "rules.txt", *LINES))
    assert rules.paths.backward.tolist() == [[1, 1, NONE], [1, 4, 3]]


def test_over_another_graph_rules_keep_their_labels(file: RuleFile, tmp_path: Path) -> None:
    rules, _ = file.read(write(tmp_path / "rules.txt", *LINES))
    entities = EntityTable(["france", "new", "lyon"])
    relations = RelationTable(["near", "in", "other"])
    over = rules.for_graph(entities.rows_in(ENTITIES), np.array([1, 0, -1]))
    assert list(RuleFile(entities, relations).lines(over)) == [LINES[0], LINES[2], LINES[3]]
    nothing = rules.for_graph(np.full(2, -1), np.full(1, -1))
    assert not nothing


def test_rules_about_what_is_not_there_are_refused(file: RuleFile, tmp_path: Path) -> None:
    rules, _ = file.read(write(tmp_path / "rules.txt", *LINES))
    rules.check(len(ENTITIES), len(RELATIONS))
    for sizes in ((5, 3), (6, 2)):
        with pytest.raises(ValueError, match="does not have"):
            rules.check(*sizes)
    short = RuleSet(rules.paths, rules.constants)
    one = np.zeros(1, np.int64)
    for bad in (
        short._replace(paths=PathRules(one, one, one, np.zeros((1, 2), np.int64))),
        short._replace(constants=ConstantRules(one, one, one, one, one, np.zeros(2, np.int64))),
    ):
        with pytest.raises(ValueError, match="has"):
            bad.check(len(ENTITIES), len(RELATIONS))


def test_a_rule_that_was_right_once_is_not_sure() -> None:
    values = confidence(np.array([1, 100, 3]), np.array([1, 100, -1]))
    np.testing.assert_allclose(values, [1 / 3, 100 / 102, 0])


@pytest.mark.parametrize("hostile", ["in(X, ), ", "(,), ", "in(", ",", "in(X,Y), near(X,"])
def test_a_line_of_brackets_is_read_once(
    file: RuleFile, hostile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = list[int]()
    term = RuleFile._term

    def counted(self: RuleFile, text: str) -> object:
        looked_up.append(len(text))
        return term(self, text)

    monkeypatch.setattr(RuleFile, "_term", counted)
    assert file.parsed(f"in(X,Y) <= {hostile * 20_000}") is None
    assert sum(looked_up) < 20_000, "characters that are looked up do not grow with the line"
