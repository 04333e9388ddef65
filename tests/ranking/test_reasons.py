"""Reasons: which evidence for a triple is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from kgmlm.graphs.entities import EntityTable, RelationTable
from kgmlm.graphs.graph import ContextGraph
from kgmlm.graphs.queries import Query
from kgmlm.ranking.reasons import Reasons
from kgmlm.signals.base import Reason, Signal, sentences
from kgmlm.signals.mentions import Mentions

# 0 and 1 share a fact, and 1 has r0 to 9: so may 0.
TRIPLES = [(0, 1, 5), (1, 1, 5), (1, 0, 9), (7, 2, 8)]


class Saying:
    """A signal that gives reasons."""

    def __init__(self, *reasons: Reason) -> None:
        self.given = reasons

    def reasons(self, query: Query, candidate: int) -> Sequence[Reason]:
        return self.given


def context_of(
    triples: Sequence[tuple[int, int, int]] = TRIPLES, descriptions: dict[int, str] | None = None
) -> ContextGraph:
    names = [f"e{i}" if i != 3 else "Zebra" for i in range(10)]
    rows = [(descriptions or {}).get(i, "") for i in range(10)]
    return ContextGraph(EntityTable(names, names, rows), RelationTable(["r0", "r1", "r2"]), np.array(triples))


def reasons_of(context: ContextGraph, *signals: Any) -> Reasons:
    return Reasons(context, {str(n): cast(Signal, signal) for n, signal in enumerate(signals)})


def test_the_known_case_that_shares_most_facts_is_named() -> None:
    why = reasons_of(context_of())
    assert why((0, 0, 9)) == "e1 r0 e9, and e1 shares most facts with e0"
    assert why((7, 0, 9)) == "", "nothing is shared"
    assert why((7, 2, 3)) == ""


def rule(correct: int, predicted: int) -> Reason:
    return Reason(0, -1, predicted, correct, ((0, 1, 5),))


@pytest.mark.parametrize(("correct", "is_named"), [(4, True), (3, False), (34, True)])
def test_a_rule_is_named_that_is_right_a_third_of_the_time(correct: int, is_named: bool) -> None:
    why = reasons_of(context_of(), Saying(rule(correct, 10 if correct < 10 else 100)))
    assert why((0, 0, 9)).startswith("e0 r1 e5 (") == is_named


def test_a_rule_says_more_than_the_relation_gives_anyway() -> None:
    """Six of seven have e9: a rule that is right half of the time says less than that."""
    often = [*((i, 0, 9) for i in range(1, 7)), (7, 0, 8), (0, 1, 5), (1, 1, 5)]
    assert not reasons_of(context_of(often), Saying(rule(5, 10)))((0, 0, 9)).startswith("e0 r1 e5")
    assert reasons_of(context_of(often), Saying(rule(8, 10)))((0, 0, 9)).startswith("e0 r1 e5 (8 of 10)")


def test_the_best_rule_is_named() -> None:
    other = Reason(1, -1, 10, 9, ((1, 1, 5),))
    assert reasons_of(context_of(), Saying(rule(4, 10), other))((0, 0, 9)) == "e1 r1 e5 (9 of 10)"


def test_where_nothing_is_alike_a_description_may_name_an_entity() -> None:
    context = context_of(descriptions={7: "It is like a Zebra."})
    why = reasons_of(context, Mentions.of(context.entities))
    assert why((7, 2, 3)) == "the description of e7 names Zebra"
    assert why((3, 2, 7)) == "the description of e7 names Zebra"


def test_rules_on_the_same_triples_are_said_once() -> None:
    both = (rule(4, 10), rule(3, 10), Reason(1, -1, 1000, 700, ((0, 1, 5), (1, 1, 5))))
    assert sentences(context_of(), both) == ("e0 r1 e5 (4 of 10)", "e0 r1 e5 and e1 r1 e5 (700 of 1,000)")
