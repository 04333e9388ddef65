from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from doubles import fake, run

from kgmlm.core.config import Protocol
from kgmlm.core.errors import DataError
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.evaluation.task import Scope
from kgmlm.graphs.graph import KnowledgeGraph, build_graph


def test_an_absent_split_is_named(toy: KnowledgeGraph) -> None:
    with pytest.raises(DataError, match="no split 'dev'"):
        run(toy, split="dev")


def test_the_unseen_slice_alone(toy: KnowledgeGraph) -> None:
    unseen, seen = run(toy, triples="unseen"), run(toy, triples="seen")
    assert unseen.report["triples"] == seen.report["triples"] == 4
    whole = run(toy).report["breakdown"]["unseen_position"]
    assert unseen.report["metrics"]["mrr"] == pytest.approx(whole["any"]["mrr"])
    assert seen.report["metrics"]["mrr"] == pytest.approx(whole["neither"]["mrr"])


def test_candidates_of_the_split_are_its_entities(toy: KnowledgeGraph) -> None:
    report = run(toy, candidates="split").report
    assert report["candidates"]["count"] == len(set(toy.splits["test"][:, [0, 2]].ravel().tolist()))
    assert report["triples_left_out"] == 0


def elsewhere(toy: KnowledgeGraph, prefix: str = "new ") -> KnowledgeGraph:
    """The toy graph over again, as a graph of entities that nobody has seen."""
    splits = {
        split: [(prefix + h, r, prefix + t) for h, r, t in toy.labeled(rows)]
        for split, rows in toy.splits.items()
    }
    return build_graph("elsewhere", splits)


def test_another_graph_is_all_unseen(toy: KnowledgeGraph) -> None:
    other = elsewhere(toy)
    scope = Scope.inductive(toy, other, Protocol(candidates="graph"))
    report = evaluate(fake(scope.graph), scope, Protocol(candidates="graph", pykeen=True)).report
    assert report["dataset"] == "elsewhere"
    assert report["candidates"]["count"] == len(other.entities)
    assert report["breakdown"]["unseen_position"]["both"]["count"] == 16
    assert report["breakdown"]["unseen_role"]["both"]["count"] == 16
    assert "pykeen_comparable" not in report


def test_all_candidates_are_both_graphs(toy: KnowledgeGraph) -> None:
    other = elsewhere(toy)
    scope = Scope.inductive(toy, other, Protocol(candidates="all"))
    report = evaluate(fake(scope.graph), scope, Protocol(candidates="all")).report
    assert report["candidates"]["count"] == len(other.entities) + len(toy.entities)
    graph_only = evaluate(fake(scope.graph), scope, Protocol(candidates="graph")).report
    assert graph_only["candidates"]["count"] == len(other.entities)


def test_a_run_that_knows_the_answers_is_refused(toy: KnowledgeGraph) -> None:
    leaky = build_graph("leaky", {"train": [("x", "borders", "y")], "test": [("france", "capital", "paris")]})
    with pytest.raises(
        DataError, match=r"1 of the 1 test triples of 'leaky', such as \(france, capital, paris"
    ):
        Scope.inductive(toy, leaky, Protocol(), allow_seen_entities=True)
    with pytest.raises(DataError, match="train triples"):
        Scope.inductive(toy, toy, Protocol(split="train"))


def test_a_run_that_knows_an_entity_is_refused_unless_allowed(toy: KnowledgeGraph) -> None:
    partly = build_graph(
        "partly",
        {"train": [("x", "borders", "y")], "test": [("france", "borders", "x"), ("x", "borders", "z")]},
    )
    with pytest.raises(DataError, match=r"1 of the 4 entities of 'partly'.*'france'.*--allow-seen-entities"):
        Scope.inductive(toy, partly, Protocol())
    scope = Scope.inductive(toy, partly, Protocol(candidates="graph"), allow_seen_entities=True)
    report = evaluate(fake(scope.graph), scope, Protocol(candidates="graph", pykeen=True)).report
    parts = report["breakdown"]["unseen_position"]
    assert (parts["tail"]["count"], parts["both"]["count"]) == (2, 2)
    assert "pykeen_comparable" not in report, "there is nothing to compare on another graph"


def test_what_earlier_graphs_have_was_seen_and_trained(toy: KnowledgeGraph) -> None:
    rows = [("france", "borders", "x"), *toy.labeled(toy.splits["test"][:3])]
    before = build_graph("before", {"train": rows})
    report = evaluate(fake(toy), Scope.of(toy, [before]), Protocol()).report
    assert report["triples_trained"] == 3
    fewer = replace(toy, splits={**toy.splits, "train": toy.splits["train"][:1]})
    plain, later = (evaluate(fake(toy), Scope.of(fewer, e), Protocol()).report for e in ((), [toy]))
    assert plain["triples_trained"] == later["triples_trained"] == 0
    counts = [r["breakdown"]["unseen_position"]["any"]["count"] for r in (plain, later)]
    assert counts[0] > counts[1]


def test_what_a_run_was_chosen_on_is_counted(toy: KnowledgeGraph) -> None:
    chosen_on = toy.labeled(toy.splits["valid"])
    other = build_graph(
        "other", {"train": [("x", "borders", "y")], "test": [*chosen_on, ("x", "borders", "z")]}
    )
    scope = Scope.inductive(toy, other, Protocol(candidates="graph"), allow_seen_entities=True)
    evaluation = [
        evaluate(fake(s.graph), s, Protocol(candidates="graph")).report for s in (scope, Scope.of(toy))
    ]
    assert [r["triples_validated"] for r in evaluation] == [len(chosen_on), 0]
    assert [r["triples_trained"] for r in evaluation] == [0, 0]


def test_a_new_relation_is_refused_unless_allowed(toy: KnowledgeGraph) -> None:
    other = build_graph("other", {"train": [("x", "r1", "y")], "test": [("y", "r2", "x"), ("x", "r3", "x")]})
    with pytest.raises(DataError, match=r"'r2' of 'other' nor on 1 other;.*--allow-new-relations"):
        Scope.inductive(toy, other, Protocol())
    Scope.inductive(toy, other, Protocol(), allow_new_relations=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wn18rr", "fb15k237"])
def test_grails_unseen_graphs_are_unseen_by_their_own_training_graph_only(
    real: Callable[[str], KnowledgeGraph], name: str
) -> None:
    version = {"wn18rr": "wn18rr-v1", "fb15k237": "fb237-v1"}[name]
    protocol = Protocol(candidates="graph")
    scope = Scope.inductive(real(version), real(f"{version}-ind"), protocol)
    assert not scope.seen_N.any()
    with pytest.raises(DataError, match="test triples"):
        Scope.inductive(real(name), real(f"{version}-ind"), protocol)
