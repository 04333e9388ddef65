"""What training shows of entities' types: counted by hand, and against a walk through all triples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph, TextColumns, build_graph
from kgmlm.graphs.queries import Queries, Query
from kgmlm.signals.types import SMOOTHING, Affinity, EntityTypes, fills

PEOPLE = build_graph(
    "people",
    {
        "train": [
            ["ann", "works_in", "oslo"], ["bob", "works_in", "oslo"], ["cid", "works_in", "rome"],
            ["ann", "likes", "bob"], ["bob", "likes", "cid"], ["oslo", "lies_in", "norway"],
            ["rome", "lies_in", "italy"], ["bern", "lies_in", "swiss"],
        ],
        "valid": [["dan", "works_in", "bern"]],
        "test": [["eve", "likes", "dan"]],
    },
    TextColumns(types={"dan": "person", "ann": "person | boss", "bob": "person", "oslo": "city"}),
)  # fmt: skip


def side_of(relation: str, end: str, graph: KnowledgeGraph = PEOPLE) -> int:
    return 2 * graph.relations.index[relation] + (end == "head")


def types_of(graph: KnowledgeGraph, type_relation: int = -1) -> EntityTypes:
    return EntityTypes.of(Affinity.learn(graph.context, type_relation), graph.context, 2)


def scores(types: EntityTypes, sides: np.ndarray) -> np.ndarray:
    return np.stack([types.row(side) for side in sides.tolist()])


def by_label(row: np.ndarray) -> dict[str, float]:
    return dict(zip(PEOPLE.entities.column("label"), row.tolist(), strict=True))


def test_features_are_the_sides_that_training_fills_and_given_types() -> None:
    types = types_of(PEOPLE)
    affinity = types.affinity
    assert affinity.labels == ("boss", "city", "person")
    assert types.sources() == {"seen": 9, "given": 1, "nearest": 0, "none": 1}
    person = affinity.sides + affinity.labels.index("person")
    assert affinity.together_SF[[side_of("works_in", "head")]].toarray()[0][person] == 2
    assert affinity.having_F[person] == 2  # ann and bob; training has no dan
    assert affinity.triples_S[side_of("works_in", "tail")] == 3


def test_what_lacks_a_city_gets_one_and_what_has_one_does_not() -> None:
    """Everybody works in one place: who has none is expected to get one, as far as it is a person."""
    (row,) = scores(types_of(PEOPLE), np.array([side_of("works_in", "head")]))
    result = by_label(row)
    assert result["dan"] > result["ann"]  # who has a place to work
    assert result["dan"] > result["norway"]
    assert result["dan"] > result["eve"]  # of whom nothing is known
    assert result["eve"] > result["norway"]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 5)), min_size=1, max_size=30))
def test_fit_against_a_walk_through_all_entities(triples: list[tuple[int, int, int]]) -> None:
    labeled = [[f"e{h}", f"r{r}", f"e{t}"] for h, r, t in triples]
    graph = build_graph("drawn", {"train": labeled})
    affinity = Affinity.learn(graph.context)
    has: list[set[int]] = [set() for _ in range(len(graph.entities))]
    for h, r, t in graph.splits["train"].tolist():
        has[h].add(2 * r + 1)
        has[t].add(2 * r)
    features = affinity.features(
        graph.context,
        np.arange(len(graph.relations)),
        fills(graph.splits["train"], len(graph.entities), len(graph.relations)),
    )
    for asked in range(affinity.sides):
        fit, known = affinity.fit(features, asked)
        before = sum(asked in x for x in has) / len(has)
        for entity, own in enumerate(has):
            others = own - {asked}
            assert known[entity] == bool(others)
            lifts = [
                np.log((sum({asked, f} <= x for x in has) / sum(f in x for x in has) + SMOOTHING)
                       / (before + SMOOTHING))
                for f in others
            ]  # fmt: skip
            assert fit[entity] == pytest.approx(sum(lifts) / (len(lifts) + 1), abs=1e-4)


def test_only_training_counts() -> None:
    bare = replace(PEOPLE, splits={"train": PEOPLE.splits["train"]})
    every = np.arange(2 * len(PEOPLE.relations))
    np.testing.assert_array_equal(scores(types_of(PEOPLE), every), scores(types_of(bare), every))


def test_a_further_entity_changes_nobody_and_goes_by_its_given_types() -> None:
    types = types_of(PEOPLE)
    new = EntityTable(["fay", "gus"], types=["person", ""])
    wider = types.for_graph(PEOPLE.extended(new).context, np.arange(len(PEOPLE.relations)))
    every = np.arange(types.affinity.sides)
    np.testing.assert_array_equal(scores(wider, every)[:, : len(PEOPLE.entities)], scores(types, every))
    assert wider.sources()["given"] == 2
    fay, gus = scores(wider, np.array([side_of("works_in", "head")]))[0, -2:]
    assert fay > gus


def test_an_unseen_entity_is_not_expected_to_have_more_than_those_who_fill_the_side() -> None:
    """Nothing that training has could be another gender, so all that is expected would fall to one unseen."""
    train = [[f"p{i}", "gender", "male" if i else "female"] for i in range(50)]
    types = TextColumns(types={"male": "gender", "female": "gender", "other": "gender"})
    graph = build_graph("people", {"train": train}, types, extra_entities=["other"])
    row = types_of(graph).row(side_of("gender", "tail", graph))
    male, other, person = (row[graph.entities.find(label)] for label in ("male", "other", "p1"))
    assert male > other > person
    assert other <= np.log(25) + 1e-6


def test_where_all_fill_a_side_an_unknown_entity_is_as_any_of_them() -> None:
    ring = [[f"e{i}", "next", f"e{(i + 1) % 20}"] for i in range(20)]
    graph = build_graph("ring", {"train": ring}, extra_entities=["new"])
    for end in ("head", "tail"):
        row = types_of(graph).row(side_of("next", end, graph))
        np.testing.assert_allclose(row, row[0], rtol=1e-5)


def test_without_given_types_the_nearest_seen_entities_lend_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = PEOPLE.entities.column("label")
    vectors = np.eye(len(labels), dtype=np.float32)
    near = [labels.index(x) for x in ("eve", "ann", "bob")]
    vectors[near] = vectors[near[0]]  # eve is described as ann and bob are
    plain = types_of(PEOPLE)
    types = plain.with_vectors(lambda: vectors)
    assert types.sources() == {"seen": 9, "given": 1, "nearest": 1, "none": 0}
    eve = labels.index("eve")
    np.testing.assert_allclose(
        types.known.has_NF[[eve]].toarray(), plain.known.has_NF[near[1:]].toarray().mean(0, keepdims=True)
    )
    asked = np.array([side_of("works_in", "head"), side_of("lies_in", "tail")])
    worker, country = scores(types, asked)[:, eve] - scores(plain, asked)[:, eve]
    assert worker > 0 > country
    few = plain.with_vectors(lambda: vectors)
    monkeypatch.setattr("kgmlm.signals.types.PAIRS", 1)
    assert few.sources()["nearest"] == 1, "of the two seen ones that are drawn"
    others = np.arange(len(labels)) != eve
    np.testing.assert_array_equal(scores(types, asked)[:, others], scores(plain, asked)[:, others])


def test_a_relation_may_give_types_and_then_says_nothing_of_itself() -> None:
    train = [["ann", "is_a", "person"], ["bob", "is_a", "person"], ["oslo", "is_a", "city"],
             ["ann", "lives_in", "oslo"], ["bob", "lives_in", "rome"]]  # fmt: skip
    graph = build_graph("typed", {"train": train})
    relation = graph.relations.index["is_a"]
    types = types_of(graph, type_relation=relation)
    assert types.affinity.labels == ("city", "person")
    given = types.affinity.together(side_of("lives_in", "head", graph))[types.affinity.sides :]
    assert given.tolist() == [0, 2]
    for end in ("head", "tail"):
        assert not types.affinity.together(side_of("is_a", end, graph))[types.affinity.sides :].any()


def test_relations_that_training_has_not_score_all_alike() -> None:
    types = types_of(PEOPLE)
    rows = np.array([-1, 0])
    context = build_graph("other", {"train": [["x", "a", "y"], ["y", "b", "x"]]}).context
    over = types.for_graph(context, rows)
    assert over.sides_of(Queries.of([Query(0, 0, "tail"), Query(0, 1, "head")])).tolist() == [-1, 1]
    assert not over.row(-1).any()
