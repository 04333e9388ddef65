from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from doubles import FakeRanker

from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import FilterIndex, Queries, Query
from kgmlm.prediction.candidates import SCHEMA, Completer, seen_queries
from kgmlm.ranking.ranker import Ranker, Scorer


def completer(graph: KnowledgeGraph, scorer: Scorer, top: int = 3, **more: Any) -> Completer:
    n, train = len(graph.entities), graph.splits["train"]
    known = np.concatenate([train, graph.splits["valid"]])
    return Completer(scorer, FilterIndex(train, n), FilterIndex(known, n), top, **more)


def asked(graph: KnowledgeGraph) -> Queries:
    return seen_queries(graph.splits["train"], len(graph.entities), np.arange(len(graph.relations)))


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows, rounded as the brute force cannot do better."""
    return [
        tuple(round(x, 4) if isinstance(x, float) else x for x in row.values()) for row in table.to_pylist()
    ]


def brute_force(graph: KnowledgeGraph, scorer: FakeRanker, top: int) -> list[tuple[Any, ...]]:
    train, valid = ({tuple(t) for t in graph.splits[s].tolist()} for s in ("train", "valid"))
    rows = []
    for query in asked(graph):

        def triple(e: int, query: Query = query) -> tuple[int, int, int]:
            ends = (query.entity, e) if query.target == "tail" else (e, query.entity)
            return ends[0], query.relation, ends[1]

        (scores,) = scorer.score(Queries.of([query])).tolist()
        others = [e for e in range(len(scores)) if triple(e) not in train]
        best = sorted((e for e in others if triple(e) not in valid), key=lambda e: (-scores[e], e))
        for e in best[:top]:
            rest = [scores[x] for x in others if x != e]
            rank = 1 + sum(x > scores[e] for x in rest) + sum(x == scores[e] for x in rest) / 2
            softmax = scores[e] - math.log(sum(math.exp(scores[x]) for x in others))
            log_rank = math.log(rank)
            features = (scores[e], softmax, scores[e] - max(rest), log_rank, log_rank**2, 1 / rank)
            rows.append(
                (*triple(e), query.target == "tail", *(round(float(np.float32(x)), 4) for x in features))
            )
    return rows


@pytest.mark.parametrize("kind", ["tied", "constant"])
@pytest.mark.parametrize("top", [1, 3, 100])
def test_a_part_is_what_brute_force_finds(toy: KnowledgeGraph, kind: str, top: int) -> None:
    scorer = FakeRanker(len(toy.entities), kind)
    table = completer(toy, scorer, top).part(asked(toy))
    expected = brute_force(toy, scorer, top)
    assert len(expected) > 50
    got = rows_of(table)
    assert [row[:4] for row in got] == [row[:4] for row in expected]
    np.testing.assert_allclose([row[4:] for row in got], [row[4:] for row in expected], atol=3e-4)


def test_nothing_known_is_listed(toy: KnowledgeGraph) -> None:
    rows = completer(toy, FakeRanker(len(toy.entities), "tied"), 100).part(asked(toy)).to_pylist()
    listed = {(x["head"], x["relation"], x["tail"]) for x in rows}
    for split in ("train", "valid"):
        assert not listed & {tuple(t) for t in toy.splits[split].tolist()}
    assert listed & {tuple(t) for t in toy.splits["test"].tolist()}


def test_a_part_of_no_queries_is_empty(toy: KnowledgeGraph) -> None:
    made = completer(toy, FakeRanker(len(toy.entities), "tied"))
    empty = made.part(asked(toy)[:0])
    assert len(empty) == 0
    assert empty.schema == SCHEMA


def test_where_training_gives_all_answers_nobody_is_left(toy: KnowledgeGraph) -> None:
    n = len(toy.entities)
    every = np.array([(0, 0, t) for t in range(n)])
    scorer = FakeRanker(n, "tied")
    made = Completer(scorer, FilterIndex(every, n), FilterIndex(every, n), 5)
    assert len(made.part(Queries.of([Query(0, 0, "tail")]))) == 0
    made = Completer(scorer, FilterIndex(every[1:], n), FilterIndex(every[1:], n), 5)
    (row,) = made.part(Queries.of([Query(0, 0, "tail")])).to_pylist()
    assert (row["tail"], row["log_softmax"], row["log_rank"], row["margin"]) == (0, 0, 0, 0)


def test_what_cannot_answer_is_not_there(toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]) -> None:
    ranker = make_ranker()
    ranker = ranker.replace(possible=type(ranker.possible)(np.ones(len(toy.relations), np.bool_)))
    rows = completer(toy, ranker, 100).part(asked(toy)).to_pylist()
    assert all(row["head"] != row["tail"] for row in rows)


class Even:
    """Entities with even ids answer."""

    name: ClassVar[str] = "even"

    def __init__(self, count: int) -> None:
        self.count = count

    def allowed(self, queries: Queries) -> np.ndarray:
        return np.tile(np.arange(self.count) % 2 == 0, (len(queries), 1))

    def askable(self, relation: int, tails: bool) -> np.ndarray:
        return np.ones(self.count, np.bool_)

    def for_graph(self, context: Any, relation_rows: Any) -> Even:
        return self

    def with_vectors(self, vectors_ND: Any) -> Even:
        return self

    def learned(self) -> dict[str, Any]:
        return {}


def test_constraints_hold_and_others_are_not_compared_with(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]
) -> None:
    ranker = make_ranker().constrained(Even(len(toy.entities)))
    rows = completer(toy, ranker, 100).part(asked(toy)).to_pylist()
    assert len(rows) > 500
    for row in rows:
        assert (row["tail"] if row["of_tail"] else row["head"]) % 2 == 0
        assert row["log_rank"] <= math.log(len(toy.entities) // 2 + 1) + 1e-6
