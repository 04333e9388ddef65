"""Rules: what a rule is, and AnyBURL's files of rules (Meilicke et al., 2019).

A directed relation is a relation read from its head (2r) or from its tail (2r + 1).

Shapes: M rules of a kind.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgmlm.core.arrays import BoolArray, Floats, IntArray
from kgmlm.core.errors import DataError
from kgmlm.graphs.entities import EntityTable, RelationTable

if TYPE_CHECKING:
    import pandas as pd

LONGEST = 3  # atoms of a body
UNSEEN = 2  # wrong predictions added to those counted
NONE = -1  # no relation, no entity, or any
_VARIABLE, _QUOTED = re.compile("[A-Z]"), re.compile('"[A-Z]"')


@dataclass(frozen=True, eq=False)
class Counted:
    """Rules of a kind, each with how many pairs of entities it predicts, and how many of them rightly.

    Attributes:
        predicted, correct: of each rule ``(M,)``.
    """

    predicted: IntArray
    correct: IntArray

    def __len__(self) -> int:
        return len(self.predicted)

    def take(self, chosen: IntArray | BoolArray) -> Self:
        """Take some of the rules."""
        return type(self)(**{f.name: getattr(self, f.name)[chosen] for f in fields(self)})

    def joined(self, other: Self) -> Self:
        """These rules, then others."""
        pairs = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        return type(self)(**{name: np.concatenate(pair) for name, pair in pairs.items()})


@dataclass(frozen=True, eq=False)
class PathRules(Counted):
    """``r(X,Y) <= s(X,A), t(A,Y)``: whatever a path leads to.

    Attributes:
        relation: r.
        body: ``(M, LONGEST)`` directed relations from X to Y, :data:`NONE` behind the last.
    """

    relation: IntArray
    body: IntArray

    @property
    def backward(self) -> IntArray:
        """The bodies from Y to X."""
        steps = (self.body != NONE).sum(1, keepdims=True)
        place = steps - 1 - np.arange(LONGEST)
        turned = np.take_along_axis(self.body, np.maximum(place, 0), 1) ^ 1
        return np.where(place >= 0, turned, NONE)


@dataclass(frozen=True, eq=False)
class ConstantRules(Counted):
    """``r(X,c) <= s(X,d)``: all entities with a link have the same answer.

    Attributes:
        asked: the directed relation that c answers, of X.
        answer: c.
        relation: the directed relation from X to d.
        value: d; :data:`NONE` where any will do, ``r(X,c) <= s(X,A)``.
    """

    asked: IntArray
    answer: IntArray
    relation: IntArray
    value: IntArray


def confidence(predicted: IntArray, correct: IntArray) -> Floats:
    """The share of right predictions, after adding :data:`UNSEEN` wrong ones.

    >>> confidence(np.array([6]), np.array([4])).tolist()
    [0.5]
    """
    return (np.maximum(correct, 0) / (predicted + UNSEEN)).astype(np.float32)


class RuleSet(NamedTuple):
    """All rules over a graph."""

    paths: PathRules
    constants: ConstantRules

    def __bool__(self) -> bool:
        return bool(len(self.paths) or len(self.constants))

    @classmethod
    def empty(cls) -> RuleSet:
        """No rules."""
        none = np.zeros(0, np.int64)
        body = np.zeros((0, LONGEST), np.int64)
        return cls(PathRules(none, none, none, body), ConstantRules(none, none, none, none, none, none))

    def check(self, entities: int, relations: int) -> None:
        """See that rules are about what a graph of so many entities and relations has.

        Raises:
            ValueError: when they are not.
        """
        p, c = self.paths, self.constants
        limits = [
            (p.relation, 0, relations),
            (p.body, NONE, 2 * relations),
            (p.body[:, :1], 0, 2 * relations),
        ]
        limits += [(c.asked, 0, 2 * relations), (c.relation, 0, 2 * relations)]
        limits += [(c.answer, 0, entities), (c.value, NONE, entities)]
        if not all(len(x) == len(rules) for rules in self for x in vars(rules).values()):
            raise ValueError("it has columns of different lengths")
        if p.body.shape[1:] != (LONGEST,) or not all(
            ((x >= low) & (x < high)).all() for x, low, high in limits
        ):
            raise ValueError("it has rules about what the graph does not have")

    def for_graph(self, entity_rows: IntArray, relation_rows: IntArray) -> RuleSet:
        """A copy for another graph; rules about what it does not have are left out.

        Args:
            entity_rows, relation_rows: which entity or relation of this graph each of the other's is, or -1.
        """
        entities, relations = _inverse(entity_rows), _inverse(relation_rows)
        p, c = self.paths, self.constants
        body, of_body = _directed(relations, p.body)
        relation, of_relation = _found(relations, p.relation)
        paths = PathRules(p.predicted, p.correct, relation, body).take(of_body.all(1) & of_relation)
        asked, of_asked = _directed(relations, c.asked)
        linked, of_linked = _directed(relations, c.relation)
        answer, of_answer = _found(entities, c.answer)
        value, of_value = _found(entities, c.value)
        constants = ConstantRules(c.predicted, c.correct, asked, answer, linked, value)
        return RuleSet(paths, constants.take(of_asked & of_linked & of_answer & of_value))


def _inverse(rows: IntArray) -> dict[str, IntArray]:
    """Old ids and new ids, by old id."""
    new = np.flatnonzero(rows >= 0)
    order = np.argsort(rows[new], kind="stable")
    return {"old": rows[new][order], "new": new[order]}


def _found(known: dict[str, IntArray], ids: IntArray) -> tuple[IntArray, BoolArray]:
    """New ids of old ones, and which there are; :data:`NONE` stays."""
    if not len(known["old"]):
        return np.full_like(ids, NONE), ids < 0
    at = np.minimum(np.searchsorted(known["old"], ids), len(known["old"]) - 1)
    mask = known["old"][at] == ids
    return np.where(mask, known["new"][at], NONE), mask | (ids < 0)


def _directed(known: dict[str, IntArray], ids: IntArray) -> tuple[IntArray, BoolArray]:
    """As :func:`_found`, of directed relations."""
    new, mask = _found(known, np.where(ids < 0, NONE, ids // 2))
    return np.where(new < 0, NONE, 2 * new + ids % 2), mask


class _Atom(NamedTuple):
    relation: int
    left: str | int
    right: str | int


class _Path(NamedTuple):
    relation: int
    body: tuple[int, ...]


class _Constant(NamedTuple):
    asked: int
    answer: int
    relation: int
    value: int


class RuleFile:
    """Rules as lines of text, by the labels of a graph.

    ::

        predicted <tab> correct <tab> confidence <tab> r(X,Y) <= s(X,A), t(A,Y)

    Single capital letters are variables; an entity with such a label stands in quotes, as ``r(X,"A")``.

    Raises:
        DataError: of every method, for what is no such line.
    """

    follows = " <= "  # between what a rule predicts and its body

    def __init__(self, entities: EntityTable, relations: RelationTable) -> None:
        self.entities = entities
        self.relations = relations

    def read(self, path: Path) -> tuple[RuleSet, int]:
        """The rules of a file, and how many others it has: of other kinds, or about what the graph does not
        have. Those without a body are among the others: how often an entity answers is known anyway.

        The confidence is computed again from the counts. If a rule occurs twice, the last line counts.
        """
        paths: dict[_Path, tuple[int, int]] = {}
        constants: dict[_Constant, tuple[int, int]] = {}
        skipped = 0
        try:
            with path.open(encoding="utf-8", newline="") as file:
                for number, row in enumerate(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE), 1):
                    if not row:
                        continue
                    counts, read_rule = self._row(row, f"{path}, line {number}")
                    if isinstance(read_rule, _Path):
                        paths[read_rule] = counts
                    elif read_rule is not None:
                        constants[read_rule] = counts
                    else:
                        skipped += 1
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{path} cannot be read as rules: {error}") from None
        rows = [(*counts, rule.relation, *rule.body) for rule, counts in paths.items()]
        p = np.array(rows, np.int64).reshape(-1, 3 + LONGEST)
        c = np.array([(*counts, *rule) for rule, counts in constants.items()], np.int64).reshape(-1, 6)
        return RuleSet(PathRules(p[:, 0], p[:, 1], p[:, 2], p[:, 3:]), ConstantRules(*c.T.copy())), skipped

    def _row(self, row: list[str], where: str) -> tuple[tuple[int, int], _Path | _Constant | None]:
        """The counts and the rule of a line."""
        try:
            predicted, correct, rule = int(row[0]), int(row[1]), row[3]
        except (IndexError, ValueError):
            raise DataError(f"{where}: not 'predicted, correct, confidence, rule', tab-separated") from None
        if not 0 <= correct <= predicted < 2**31:
            raise DataError(f"{where}: {correct} correct of {predicted} predicted")
        return (predicted, correct), self.parsed(rule)

    def parsed(self, rule: str) -> _Path | _Constant | None:
        """A rule; None of other kinds."""
        head_text, arrow, body_text = rule.partition(" <= ") if " <= " in rule else rule.partition(" <=")
        head = self._atom(head_text.strip())
        atoms = self._atoms(body_text.strip())
        if not arrow or head is None or atoms is None or len(atoms) > LONGEST:
            return None
        if head.left == "X" and head.right == "Y":
            walked = _walked(atoms)
            trivial = walked == [2 * head.relation]
            return None if walked is None or trivial else _Path(head.relation, _padded(walked))
        variable = head.left if isinstance(head.left, str) else head.right
        answer = head.right if isinstance(head.left, str) else head.left
        if not isinstance(answer, int) or not isinstance(variable, str) or len(atoms) != 1:
            return None
        asked = 2 * head.relation + (head.right == variable)
        (atom,) = atoms
        backward = atom.right == variable
        other = atom.left if backward else atom.right
        if other == variable or variable not in (atom.left, atom.right):
            return None
        linked, value = 2 * atom.relation + backward, other if isinstance(other, int) else NONE
        if linked == asked and value in (answer, NONE):  # itself, or the same with any other answer
            return None
        return _Constant(asked, answer, linked, value)

    def _atoms(self, text: str) -> list[_Atom] | None:
        """Several atoms in a row; None if any of them is not an atom."""
        atoms, left = list[_Atom](), ""
        for part in text.split("), "):
            left += part
            if len(left) > self._longest or len(atoms) > LONGEST:
                return None
            atom = self._atom(left if left.endswith(")") else left + ")")
            if atom is not None:
                atoms.append(atom)
            left = "" if atom is not None else left + "), "
        return atoms if not left.strip("), ") else None

    def _atom(self, text: str) -> _Atom | None:
        """``relation(X,entity)``; labels may hold brackets and commas."""
        if not text.endswith(")") or len(text) > self._longest:
            return None
        relation_lengths, term_lengths = self._lengths
        for at in relation_lengths:
            if text[at : at + 1] != "(" or (relation := self.relations.index.get(text[:at])) is None:
                continue
            inside = text[at + 1 : -1]
            for comma in term_lengths:
                if inside[comma : comma + 1] == "," and len(inside) - comma - 1 in term_lengths:
                    left, right = self._term(inside[:comma]), self._term(inside[comma + 1 :])
                    if left is not None and right is not None:
                        return _Atom(relation, left, right)
        return None

    @cached_property
    def _lengths(self) -> tuple[dict[int, None], dict[int, None]]:
        """The lengths that labels of relations have, and those of terms, in ascending order.

        A label can end only at these lengths, so a line of brackets and commas is read in linear time.
        """
        of_relations = sorted({len(relation.label) for relation in self.relations})
        labels = pa.array(self.entities.column("label"), pa.large_string())
        variable, quoted = 1, 3  # X, and a label that is one capital letter
        of_terms = sorted({variable, quoted, *pc.unique(pc.utf8_length(labels)).to_pylist()})
        return dict.fromkeys(of_relations), dict.fromkeys(of_terms)

    @property
    def _longest(self) -> int:
        """Characters that an atom has at most, with what stands behind it."""
        of_relations, of_terms = self._lengths
        return max(of_relations, default=0) + 2 * max(of_terms) + len("(,)") + len("), ")

    def _term(self, text: str) -> str | int | None:
        if _VARIABLE.fullmatch(text):
            return text
        known = self.entities.index
        return known.get(text, known.get(text[1:-1]) if _QUOTED.fullmatch(text) else None)

    def text(self, relation: int, body: Iterable[int]) -> str:
        """A path rule."""
        steps = [s for s in body if s != NONE]
        names = ["X", *"ABCDEF"[: len(steps) - 1], "Y"]
        atoms = [self._written(s, names[i], names[i + 1]) for i, s in enumerate(steps)]
        return f"{self._written(2 * relation, 'X', 'Y')}{self.follows}{', '.join(atoms)}"

    def constant_text(self, asked: int, answer: int, relation: int, value: int) -> str:
        """A rule with a constant."""
        variable = "Y" if asked % 2 else "X"
        head = self._written(asked, variable, self._labels[answer])
        other = "A" if value == NONE else self._labels[value]
        return f"{head}{self.follows}{self._written(relation, variable, other)}"

    @cached_property
    def _labels(self) -> list[str]:
        labels = self.entities.column("label")
        return [f'"{label}"' if _VARIABLE.fullmatch(label) else label for label in labels]

    def _written(self, directed: int, start: str, end: str) -> str:
        left, right = (end, start) if directed % 2 else (start, end)
        return f"{self.relations[directed // 2].label}({left},{right})"

    def lines(self, rules: RuleSet) -> Iterator[str]:
        """All rules as lines of a file, the most confident first."""
        yield from ("\t".join(row) + "\n" for row in as_rows(self.table(rules)))

    def table(self, rules: RuleSet, relation: int | None = None) -> pd.DataFrame:
        """Rules with what they predicted, how much of it was right, the share, and the rule as a line of a
        file and in words; the most confident first.

        Args:
            relation: only those that predict this one.
        """
        import pandas as pd

        p, c = rules
        if relation is not None:
            p, c = p.take(p.relation == relation), c.take(c.asked // 2 == relation)
        paths = [*zip(p.relation.tolist(), p.body.tolist(), strict=True)]
        columns = (c.asked, c.answer, c.relation, c.value)
        constants = [*zip(*(x.tolist() for x in columns), strict=True)]
        texts, words = (
            [writer.text(*row) for row in paths] + [writer.constant_text(*row) for row in constants]
            for writer in (self, _Words(self.entities, self.relations))
        )
        predicted = np.concatenate([p.predicted, c.predicted])
        correct = np.concatenate([p.correct, c.correct])
        order = np.argsort(-confidence(predicted, correct), kind="stable")
        share = correct / np.maximum(1, predicted)
        columns_of = {"predicted": predicted, "correct": correct, "confidence": share, "rule": texts}
        return pd.DataFrame(columns_of | {"words": words}).iloc[order].reset_index(drop=True)


class _Words(RuleFile):
    """Writes rules by names, for people: X member of Y if X reports to A, A member of Y."""

    follows = " if "

    @cached_property
    def _labels(self) -> list[str]:
        return self.entities.column("surface")

    def _written(self, directed: int, start: str, end: str) -> str:
        left, right = (end, start) if directed % 2 else (start, end)
        return f"{left} {self.relations[directed // 2].name} {right}"


def as_rows(table: pd.DataFrame) -> list[list[str]]:
    """The rows of a file, in AnyBURL's format, of a table of rules."""
    rows = table.itertuples(index=False)
    return [[str(row.predicted), str(row.correct), f"{row.confidence:.6g}", str(row.rule)] for row in rows]


def _padded(walked: list[int]) -> tuple[int, ...]:
    return (*walked, *[NONE] * (LONGEST - len(walked)))


def _walked(atoms: list[_Atom]) -> list[int] | None:
    """The directed relations of a path from X to Y; None where the atoms are no such path."""
    left, at, steps, been = list(atoms), "X", [], {"X"}
    while left:
        following = [a for a in left if at in (a.left, a.right)]
        if len(following) != 1:
            return None
        atom = following[0]
        left.remove(atom)
        to = atom.right if atom.left == at else atom.left
        if not isinstance(to, str) or to in been:
            return None
        steps.append(2 * atom.relation + (atom.left != at))
        been.add(to)
        at = to
    return steps if at == "Y" else None
