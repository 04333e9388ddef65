"""What can answer at all: the query's own entity, where training has no self-loop."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from conftest import Cli, refused, vectors_of
from doubles import FixedStage, scored

import kgmlm
from kgmlm.core.arrays import Floats, IntArray, highest
from kgmlm.core.config import Protocol, TextSettings, VectorSettings
from kgmlm.core.errors import KgmlmError
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.evaluation.task import Scope
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph, build_graph
from kgmlm.graphs.queries import Queries, Query, Target
from kgmlm.ranking.constraints import IMPOSSIBLE, MIN_TRIPLES, MISSED, Listed, Possible
from kgmlm.ranking.predictor import Predictor
from kgmlm.ranking.ranker import Ranker, StageWeight
from kgmlm.ranking.retrieval import Retrieval, Retriever, entity_part, scores_of
from kgmlm.ranking.second_stage import best_of
from kgmlm.signals.base import Pool
from kgmlm.text.reader import Reader, Reading
from kgmlm.training.weights import weigh


def chain(relation: int, length: int) -> list[tuple[int, int, int]]:
    return [(i, relation, i + 1) for i in range(length)]


def test_a_relation_forbids_with_enough_triples_and_no_loop() -> None:
    train = np.array(
        [
            *chain(0, MIN_TRIPLES),
            *chain(1, MIN_TRIPLES),
            (3, 1, 3),
            *chain(2, MIN_TRIPLES - 1),
            *chain(3, MIN_TRIPLES - 1) * 2,
        ]
    )
    assert Possible.learn(train, 5).loop_free_R.tolist() == [True, False, False, False, False]


def test_forbidden_columns() -> None:
    possible = Possible(np.array([True, False]))
    queries = Queries.of([Query(2, 0, "tail"), Query(1, 1, "tail"), Query(0, 0, "head")])
    rows, columns = possible.forbidden(queries)
    assert (rows.tolist(), columns.tolist()) == ([0, 2], [2, 0])
    rows, columns = possible.forbidden(queries, np.array([5, 2, 7]))
    assert (rows.tolist(), columns.tolist()) == ([0], [1])
    rows, columns = possible.forbidden(queries, np.array([[2, -1], [1, 1], [4, 0]]))
    assert (rows.tolist(), columns.tolist()) == ([0, 2], [0, 1])


def test_other_graphs_go_by_the_relations_that_the_run_knows() -> None:
    other = Possible(np.array([False, True])).for_graph(np.array([1, -1, 0]))
    assert other.loop_free_R.tolist() == [True, False, False]


def listed(path: Path, text: str, graph: KnowledgeGraph) -> Listed:
    path.write_text(text)
    return Listed.read(path, graph)


def allowed(constraint: Listed, graph: KnowledgeGraph, relation: str, target: Target) -> set[str]:
    query = Query(0, graph.relations.index[relation], target)
    labels = graph.entities.column("label")
    return {labels[i] for i in np.flatnonzero(constraint.allowed(Queries.of([query]))[0])}


def test_a_list_says_who_answers_which_side_of_which_relation(toy: KnowledgeGraph, tmp_path: Path) -> None:
    rows = "paris\tcapital\ttail\nRome\thas the capital\ttail\nfrance\t\thead\nitaly\tborders\t\n"
    result = listed(tmp_path / "list.tsv", f"entity\trelation\tside\n{rows}", toy)
    assert allowed(result, toy, "capital", "tail") == {"paris", "rome"}
    assert allowed(result, toy, "capital", "head") == {"france"}
    assert allowed(result, toy, "borders", "tail") == allowed(result, toy, "borders", "head") == {"italy"}
    assert allowed(result, toy, "language", "tail") == set(toy.entities.column("label"))
    assert result.learned() == {"lists": 4, "listed": 4}


def test_a_list_holds_for_another_graph_by_label(toy: KnowledgeGraph, tmp_path: Path) -> None:
    result = listed(tmp_path / "list.csv", "entity\nparis\nrome\n", toy)
    more = toy.extended(EntityTable(["paris, texas"]))
    over = result.for_graph(more.context, np.arange(len(more.relations)))
    assert allowed(over, more, "borders", "tail") == {"paris", "rome"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty; its first line must name the columns: entity"),
        ("entity\n", "lists no entity below its first line"),
        ("label\nparis\n", "has no column entity"),
        ("entity\tkind\nparis\tx\n", "has a column 'kind'"),
        ("entity\tentity\nparis\tx\n", "the column 'entity' is there twice"),
        ("entity\nparis\natlantis\n", "list.tsv:3: no entity has the label or name 'atlantis'"),
        ("entity\tside\nparis\tleft\n", "list.tsv:2: a side is head or tail, not 'left'"),
        ("entity\trelation\nparis\tkills\n", "list.tsv:2: no relation has the label or name 'kills'"),
        ("entity\nGeorgia\n", "list.tsv:2: 'Georgia' names 2 entities"),
    ],
)
def test_wrong_lists_are_refused(toy: KnowledgeGraph, tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(KgmlmError, match=re.escape(why)):
        listed(tmp_path / "list.tsv", text, toy)


def test_candidates_of_a_list(toy_run: Path, tmp_path: Path, cli: Cli) -> None:
    path = tmp_path / "list.tsv"
    path.write_text("entity\nparis\nrome\nberlin\n")
    asked = ("rank", toy_run, "--head", "France", "--relation", "capital", "--json", "-q")
    rows = [json.loads(line) for line in cli(*asked, "--candidates", path).stdout.splitlines()]
    assert {row["entity"] for row in rows} == {"paris", "rome", "berlin"}
    report = kgmlm.evaluate(toy_run, candidates=path, progress=False).values
    assert report["constraints"]["candidates"]["listed"] == 3
    completion = kgmlm.complete(
        toy_run, tmp_path / "new.tsv", candidates=path, min_probability=0.0, progress=False
    )
    assert completion["best"]
    assert all({row["head"], row["tail"]} & {"paris", "rome", "berlin"} for row in completion["best"])
    refused(cli(*asked, "--candidates", tmp_path / "none.tsv"), "there is no file")
    refused(cli("evaluate", toy_run, "--candidates", "some"), "all, graph, split, train or a file")


def forbid(ranker: Ranker) -> Ranker:
    """As if the toy graph had enough triples of each relation."""
    ranker.possible = Possible(np.ones(len(ranker.context.relations), np.bool_))
    return ranker


@pytest.fixture
def queries(toy: KnowledgeGraph) -> Queries:
    return toy.unique_queries("train")[0]


def test_only_the_own_entity_changes_and_it_comes_last(
    make_ranker: Callable[..., Ranker], queries: Queries
) -> None:
    ranker = make_ranker()
    plain = _scores(ranker, queries)
    ruled = _scores(forbid(ranker), queries)
    own = (np.arange(len(queries)), queries.entity_B)
    assert (ruled[own] == IMPOSSIBLE).all()
    assert np.isfinite(ruled).all()
    assert (ruled.argmin(1) == queries.entity_B).all()
    ruled[own] = plain[own]
    assert np.array_equal(ruled, plain)


def _scores(ranker: Ranker, queries: Queries) -> Floats:
    scores = np.zeros((len(queries), len(ranker.context.entities)), np.float32)
    for rows, part in ranker.rank(queries):
        scores[rows] = part
    return scores


class Copycat:
    """Likes the entity that is asked about best, then the others by their ids."""

    name: ClassVar[str] = "likelihood"
    reads: ClassVar[bool] = False

    def score(self, reading: Reading, pool: Pool) -> Floats:
        queries = reading.queries
        scores = np.tile(-np.arange(pool.count, dtype=np.float32), (len(queries), 1))
        scores[np.arange(len(queries)), queries.entity_B] = 1
        return scores

    def for_graph(self, reader: Reader, entity_rows: IntArray, relation_rows: IntArray) -> Copycat:
        return self


@pytest.fixture
def looped() -> KnowledgeGraph:
    """A chain of 25 links, one of them tested; and a true loop in test."""
    labels = [f"e{i:02}" for i in range(26)]
    train = [[labels[i], "next", labels[i + 1]] for i in range(24)]
    return build_graph(
        "looped",
        {
            "train": train,
            "valid": [["e24", "next", "e25"]],
            "test": [["e24", "next", "e25"], ["e03", "next", "e03"]],
        },
    )


@pytest.fixture
def copycat(looped: KnowledgeGraph, make_ranker: Callable[..., Ranker]) -> Ranker:
    base = make_ranker().reader
    made = Ranker.initial(looped.context, base.tokenizer, base.model, base.settings, base.vocabulary)
    return made.replace(signals={"likelihood": Copycat()})


def test_evaluation_with_and_without(looped: KnowledgeGraph, copycat: Ranker) -> None:
    evaluation = evaluate(copycat, looped, Protocol(pykeen=True))
    assert evaluation.report["own_entity"] == {"excluded": True, "relations": 1, "ranks": 4, "true_loops": 2}
    free = evaluate(copycat, looped, Protocol(allow_self=True, pykeen=True))
    assert free.report["own_entity"] == {"excluded": False, "relations": 0, "ranks": 0, "true_loops": 0}
    # The chain's own triple is one place better on each side; the true loop is first of all or last of all.
    known = np.array([free.ranks.optimistic_B, evaluation.ranks.optimistic_B])
    links, loops = known[:, [0, 2]], known[:, [1, 3]]
    assert (links[0] - links[1]).tolist() == [1, 1]
    assert loops[0].tolist() == [1, 1]
    assert (loops[1] == evaluation.ranks.candidates_B[[1, 3]]).all()
    assert (evaluation.ranks.candidates_B == free.ranks.candidates_B).all()
    # What compares with PyKEEN is without the constraint either way.
    both = [r.report["pykeen_comparable"] for r in (evaluation, free)]
    assert both[0] == both[1]


def test_another_graph_goes_by_the_run(looped: KnowledgeGraph, copycat: Ranker) -> None:
    unseen = build_graph("unseen", {"train": [["x", "next", "y"]], "test": [["y", "next", "z"]]})
    scope = Scope.inductive(looped, unseen, Protocol(candidates="graph"))
    ranker = copycat.for_graph(scope.graph.context)
    assert ranker.possible.own_B(scope.graph.queries("test")[0]).all()
    # On its own the graph, with one triple of the relation, would forbid nothing.
    assert not Possible.learn(scope.graph.splits["train"], 1).loop_free_R.any()


def test_weights_are_chosen_under_the_constraint(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    ranker = make_ranker(vector=VectorSettings(enabled=True))
    protocol = Protocol(split="valid", max_triples=0)
    plain = weigh(ranker, toy, protocol)[1]["text"]
    mixture, figures = weigh(forbid(ranker), toy, protocol)
    ruled = figures["text"]
    assert ruled["mrr_vector"] > plain["mrr_vector"]  # an untrained model's vectors are nearest to their own
    alone = evaluate(ranker.replace(mixture=mixture.only("vector")), toy, protocol).report["metrics"]["mrr"]
    assert ruled["mrr_vector"] == pytest.approx(alone, abs=1e-6)


def test_ranking_leaves_it_out(make_ranker: Callable[..., Ranker], toy: KnowledgeGraph) -> None:
    query = toy.unique_queries("train")[0][0]
    count = len(toy.entities)
    for novel in (False, True):
        free = dict(Predictor(toy, make_ranker()).predict([query], count, novel=novel))[0]
        ruled = dict(Predictor(toy, forbid(make_ranker())).predict([query], count, novel=novel))[0]
        assert [p.id for p in ruled] == [p.id for p in free if p.id != query.entity]
        assert [p.rank for p in ruled] == list(range(1, len(ruled) + 1))


def test_a_shortlist_gives_it_no_place(make_ranker: Callable[..., Ranker], queries: Queries) -> None:
    ranker = forbid(make_ranker(vector=VectorSettings(enabled=True)).by("vector"))
    count = len(ranker.context.entities)
    part = entity_part(vectors_of(ranker), np.arange(count), 0)
    retrieval = Retrieval(Retriever(part, {"visited": 1, "cells": 0}), 5)
    whole = _scores(ranker, queries)
    for rows, scores in scores_of(ranker, queries, retrieval, 64):
        exact = whole[rows]
        own = (np.arange(len(rows)), queries.entity_B[rows])
        assert (scores[own] == IMPOSSIBLE).all()
        assert (exact[own] == IMPOSSIBLE).all()
        assert ((scores > MISSED).sum(1) == 5).all()
        np.testing.assert_allclose(highest(scores, 5)[0], highest(exact, 5)[0], rtol=1e-5)


def test_a_second_stage_never_reads_it(make_ranker: Callable[..., Ranker], queries: Queries) -> None:
    ranker = make_ranker(text=TextSettings(max_length=40))  # the model has 64 positions
    forbid(ranker)
    _, ids_BK = best_of(ranker.context, scored(queries, _scores(ranker, queries)), 5)
    assert not (ids_BK == queries.entity_B[:, None]).any()
    ruled = ranker.with_stage(FixedStage(StageWeight(5, 1.0)))
    assert not np.array_equal(_scores(ruled.unconstrained(), queries), _scores(ruled, queries))


def test_plain_scores_stay_plain(make_ranker: Callable[..., Ranker], toy: KnowledgeGraph) -> None:
    ranker = forbid(make_ranker())
    assert ranker.mixture.averages == {"likelihood": 1.0}
    assert (ranker.mixture.tables["likelihood"] == 1).all()
    query = toy.unique_queries("train")[0][0]
    for p in dict(Predictor(toy, ranker).predict([query], 5, explain=True))[0]:
        assert p.tokens is not None
        assert p.score == pytest.approx(np.mean([t["log_likelihood"] for t in p.tokens]), abs=1e-5)


def test_the_command_says_it(cli: Callable[..., object], toy_run: Path) -> None:
    shown = cli("evaluate", toy_run, "--allow-self", "--json", "-q")
    assert '"allow_self": true' in shown.stdout  # type: ignore[attr-defined]
    assert (toy_run / "ranks" / "test.allow-self.parquet").is_file()
