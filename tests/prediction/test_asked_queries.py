from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Query, Target, triple_keys
from kgmlm.prediction.candidates import asked_queries, sampled, seen_queries

N, R = 6, 3
TRIPLES = st.lists(
    st.tuples(st.integers(0, N - 1), st.integers(0, R - 1), st.integers(0, N - 1)), max_size=25
).map(lambda rows: np.array(rows, np.int64).reshape(-1, 3))


@given(TRIPLES, st.sets(st.integers(0, R - 1)))
def test_each_query_that_training_has_is_asked_once(train: np.ndarray, relations: set[int]) -> None:
    asked = list(seen_queries(train, N, np.array(sorted(relations), np.int64)))
    of_tails = {Query(h, r, "tail") for h, r, _ in train.tolist() if r in relations}
    of_heads = {Query(t, r, "head") for _, r, t in train.tolist() if r in relations}
    assert len(asked) == len(set(asked))
    assert set(asked) == of_tails | of_heads
    assert asked == sorted(asked, key=lambda q: (q.relation, q.target == "tail", q.entity))


@given(TRIPLES, st.sets(st.integers(0, R - 1)), st.booleans())
def test_those_who_can_be_asked_are(train: np.ndarray, relations: set[int], everyone: bool) -> None:
    def askable(relation: int, tails: bool) -> np.ndarray:
        return (np.arange(N) + relation + tails) % 3 > 0

    some = np.array(sorted(relations), np.int64)
    asked = list(asked_queries(train, N, some, askable, everyone))
    sides: tuple[Target, Target] = ("head", "tail")
    every = [Query(e, r, target) for r in sorted(relations) for target in sides for e in range(N)]
    of = every if everyone else list(seen_queries(train, N, some))
    assert asked == [q for q in of if askable(q.relation, q.target == "tail")[q.entity]]


@given(TRIPLES)
def test_keys_tell_triples_apart(triples: np.ndarray) -> None:
    keys = triple_keys(triples, N, R)
    assert len(set(keys.tolist())) == len({tuple(row) for row in triples.tolist()})
    order = np.argsort(keys, kind="stable")
    rows = [(r, h, t) for h, r, t in triples[order].tolist()]
    assert rows == sorted(rows)


def test_a_sample_has_of_each_relation_and_side_its_share(toy: KnowledgeGraph) -> None:
    train, count = toy.splits["train"], len(toy.entities)
    every = seen_queries(train, count, np.arange(len(toy.relations)))
    some = every[sampled(every, 20)]
    assert [(q.entity, q.relation, q.target) for q in some] == [
        (q.entity, q.relation, q.target) for q in every[sampled(every, 20)]
    ]
    there = [(q.entity, q.relation, q.target) for q in every]
    places = [there.index((q.entity, q.relation, q.target)) for q in some]
    assert places == sorted(set(places)), "in the same order, none twice"
    kinds = Counter((q.relation, q.target) for q in every)
    drawn = Counter((q.relation, q.target) for q in some)
    assert drawn == {kind: max(1, round(20 * n / len(every))) for kind, n in kinds.items()}
    assert places != [
        there.index((q.entity, q.relation, q.target)) for q in every[sampled(every, 20, seed=1)]
    ]
    assert sampled(every, len(every)).tolist() == list(range(len(every)))
