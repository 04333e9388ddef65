"""Rules found in small graphs whose rules are known."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from kgmlm.core.config import RuleSettings
from kgmlm.graphs.entities import EntityTable, RelationTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.signals import rule_mining
from kgmlm.signals.rule_mining import Adjacency, _paths, mine
from kgmlm.signals.rule_set import RuleFile, RuleSet

RELATIONS = ("in", "near", "next_to", "speaks")


def graph_of(lines: str, relations: tuple[str, ...] = RELATIONS) -> KnowledgeGraph:
    """A graph of training triples such as "a in b"."""
    triples = [line.split() for line in lines.strip().splitlines()]
    labels = sorted({x for h, _, t in triples for x in (h, t)})
    ids = {x: i for i, x in enumerate(labels)}
    train = np.array([[ids[h], relations.index(r), ids[t]] for h, r, t in triples], np.int64)
    return KnowledgeGraph("small", EntityTable(labels), RelationTable(relations), {"train": train}, {})


def mined(graph: KnowledgeGraph, **settings: object) -> dict[str, tuple[int, int]]:
    """Counts of predicted and correct by rule."""
    rules = mine(graph, RuleSettings.model_validate(settings))
    lines = RuleFile(graph.entities, graph.relations).lines(rules)
    rows = [line.rstrip("\n").split("\t") for line in lines]
    return {row[3]: (int(row[0]), int(row[1])) for row in rows}


TOWNS = "\n".join(
    f"{town}{n} in county{n}\ncounty{n} in land" + f"\n{town}{n} in land" * (n < 4)
    for town, n in product("ab", range(6))
)


def test_a_chain_is_found_and_counted() -> None:
    rules = mined(graph_of(TOWNS), constants=False)
    assert rules["in(X,Y) <= in(X,A), in(A,Y)"] == (12, 8)
    assert not any("<= in(X,Y)" in rule for rule in rules)


def test_a_symmetric_relation_predicts_the_mirrored_triple_and_never_itself() -> None:
    rules = mined(graph_of("a near b\nb near a\nc near d\nd near c\ne near f"), constants=False)
    assert rules["near(X,Y) <= near(Y,X)"] == (5, 4)


def test_what_repeats_another_relation_backwards() -> None:
    rules = mined(
        graph_of("a near b\nb next_to a\nc near d\nd next_to c\ne near f"), length=1, constants=False
    )
    assert rules["next_to(X,Y) <= near(Y,X)"] == (3, 2)
    assert rules["near(X,Y) <= next_to(Y,X)"] == (2, 2)


def test_a_hundred_thousand_relations_hide_no_rule() -> None:
    relations = 100_000
    ends = np.arange(40).reshape(20, 2)
    triples = [[h, r, t] for r in (relations - 2, relations - 1) for h, t in ends.tolist()]
    links = Adjacency(np.array(triples), 40, relations)
    result = _paths(links, relations - 1, 1, 0)
    assert (result.predicted.tolist(), result.correct.tolist()) == ([20], [20])


def test_three_steps_visit_nothing_twice() -> None:
    siblings = "\n".join(f"{x}{n} in p{n}" for n in range(3) for x in "ab") + "\n"
    speaks = "\n".join(f"{x}{n} speaks l{n}" for n in range(3) for x in "ab")
    rules = mined(graph_of(siblings + speaks), constants=False)
    assert rules["speaks(X,Y) <= in(X,A), in(B,A), speaks(B,Y)"] == (6, 6)
    assert "speaks(X,Y) <= speaks(X,A), in(A,B), in(B,Y)" not in rules
    # By way of its own answer back to it would be right, too.
    assert "in(X,Y) <= in(X,A), in(B,A), in(B,Y)" not in rules


def test_rules_with_constants() -> None:
    lines = "\n".join(f"p{n} in bonn\np{n} speaks german" for n in range(4)) + "\nq in bonn\nr speaks dutch"
    rules = mined(graph_of(lines), support=2)
    assert rules["speaks(X,german) <= in(X,bonn)"] == (5, 4)
    assert rules["in(X,bonn) <= speaks(X,german)"] == (4, 4)
    assert rules["in(X,bonn) <= speaks(X,A)"] == (5, 4)
    assert not any(rule.startswith("speaks(X,german) <= speaks") for rule in rules)
    assert "speaks(X,german) <= in(X,bonn)" not in mined(graph_of(lines), support=5)
    assert not any("bonn" in rule for rule in mined(graph_of(lines), constants=False))


def test_other_answers_of_the_same_relation_tell_of_one() -> None:
    lines = "\n".join(f"p{n} speaks german\np{n} speaks dutch" for n in range(3)) + "\nq speaks german"
    rules = mined(graph_of(lines), support=2)
    assert rules["speaks(X,dutch) <= speaks(X,german)"] == (4, 3)
    assert rules["speaks(X,german) <= speaks(X,dutch)"] == (3, 3)
    assert "speaks(X,german) <= speaks(X,A)" not in rules


def test_length_is_a_limit_and_dense_graphs_have_a_shorter_one(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = "\n".join(f"x{n} in y{n}\ny{n} near z{n}\nz{n} near w{n}\nx{n} speaks w{n}" for n in range(4))
    rule = "speaks(X,Y) <= in(X,A), near(A,B), near(B,Y)"
    assert mined(graph_of(chain), constants=False)[rule] == (4, 4)
    assert rule not in mined(graph_of(chain), constants=False, length=2)
    monkeypatch.setattr(rule_mining, "DENSE", 1)
    assert rule not in mined(graph_of(chain), constants=False)
    assert rule in mined(graph_of(chain), constants=False, length=3)


def test_without_time_long_paths_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = "\n".join(f"x{n} in y{n}\ny{n} near z{n}\nz{n} near w{n}\nx{n} speaks w{n}" for n in range(4))
    monkeypatch.setattr("time.process_time", iter(range(0, 10**6, 10)).__next__)
    assert not any(rule.count("(") == 4 for rule in mined(graph_of(chain), constants=False, seconds=5))


def test_of_large_graphs_samples_are_taken_the_same_for_a_seed(
    toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SAMPLED", "STARTS", "EDGES", "LONG_EDGES"):
        monkeypatch.setattr(rule_mining, name, 3)
    first, again, other = (mined(toy, constants=False, seed=s) for s in (1, 1, 2))
    assert first == again
    assert first != other
    assert max(predicted for predicted, _ in first.values()) < max(p for p, _ in mined(toy).values())


def test_products_in_blocks_find_the_same(toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    before = mined(toy)
    monkeypatch.setattr(rule_mining, "PRODUCT_BATCH", 1)
    assert mined(toy) == before
    monkeypatch.setattr(rule_mining, "PER_LINK", 1)
    monkeypatch.setattr(rule_mining, "PER_ANSWER", 1)
    assert len(mined(toy)) < len(before)


def test_only_training_triples_count_and_progress_ends(toy: KnowledgeGraph) -> None:
    done: list[tuple[int, int]] = []
    rules = mine(toy, RuleSettings(), lambda n, total: done.append((n, total)))
    assert sum(n for n, _ in done) == done[-1][1]
    bare = KnowledgeGraph("bare", toy.entities, toy.relations, {"train": toy.splits["train"]}, {})
    again = mine(bare, RuleSettings())
    for mine_, theirs in zip(rules, again, strict=True):
        for column, value in vars(mine_).items():
            assert np.array_equal(value, vars(theirs)[column])


def test_no_triples_no_rules() -> None:
    none = KnowledgeGraph(
        "none", EntityTable(["a", "b"]), RelationTable(["r"]), {"train": np.zeros((0, 3), np.int64)}, {}
    )
    rules = mine(none, RuleSettings())
    assert isinstance(rules, RuleSet)
    assert not rules
