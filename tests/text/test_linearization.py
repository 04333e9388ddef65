from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgmlm.core.config import TextSettings
from kgmlm.core.errors import ConfigError
from kgmlm.graphs.graph import Edge, KnowledgeGraph, TextColumns, build_graph
from kgmlm.graphs.queries import Query
from kgmlm.text.linearization import (
    TEMPLATES,
    Linearization,
    Segment,
    entity_text,
    get_template,
    linearize,
    neighborhood,
)

REGISTRY = TEMPLATES


def query(toy: KnowledgeGraph, entity: str, relation: str, target: str) -> Query:
    assert target in ("head", "tail")
    return Query(toy.entities.index[entity], toy.relations.index[relation], target)  # type: ignore[arg-type]


GOLDEN = {
    ("plain", "tail"): "France. country in western Europe | has the capital | ___",
    ("plain", "head"): "France. country in western Europe | inverse of has the capital | ___",
    ("natural", "tail"): "France means: country in western Europe France has the capital ___",
    (
        "natural",
        "head",
    ): "France means: country in western Europe something has the capital France, namely ___",
}


@pytest.mark.parametrize(("name", "target"), GOLDEN)
def test_a_template_has_its_golden_text(toy: KnowledgeGraph, name: str, target: str) -> None:
    text = TEMPLATES[name](toy.context, query(toy, "france", "capital", target), ())
    assert text.text() == GOLDEN[name, target]


@pytest.mark.parametrize("target", ["tail", "head"])
@pytest.mark.parametrize("name", REGISTRY)
def test_every_template_keeps_the_contract(toy: KnowledgeGraph, name: str, target: str) -> None:
    asked = query(toy, "france", "capital", target)
    with_text = TEMPLATES[name](toy.context, asked, ())
    relation = toy.relations[asked.relation].name
    uncut = [s.text for s in (*with_text.before, *with_text.after) if s.cut == 0]
    assert any(relation in text for text in uncut), "the relation must never be cut"
    assert "country in western Europe" in with_text.text()
    assert "France" in with_text.text()
    other = TEMPLATES[name](
        toy.context, query(toy, "france", "capital", "head" if target == "tail" else "tail"), ()
    )
    assert other.text() != with_text.text(), "a head query needs a wording of its own"


def edges(toy: KnowledgeGraph, asked: Query, limit: int = 99, **options: Any) -> list[tuple[str, str, str]]:
    return [
        (toy.relations[e.relation].label, e.target, toy.entities[e.other].label)
        for e in neighborhood(toy.context, asked, limit, **options)
    ]


def test_a_neighborhood_is_the_training_triples_but_for_those_that_answer(toy: KnowledgeGraph) -> None:
    for asked in toy.queries("train")[0]:
        result = edges(toy, asked)
        expected = set()
        for h, r, t in toy.splits["train"].tolist():
            relation = toy.relations[r].label
            if h == t and r == asked.relation:
                continue  # a self-loop stands on both sides
            if h == asked.entity and (r, "tail") != (asked.relation, asked.target):
                expected.add((relation, "tail", toy.entities[t].label))
            if t == asked.entity and (r, "head") != (asked.relation, asked.target):
                expected.add((relation, "head", toy.entities[h].label))
        assert len(result) == len(set(result))
        assert set(result) == expected


def test_the_text_of_a_query_never_tells_the_asked_for_triple(toy: KnowledgeGraph) -> None:
    queries, answers = toy.queries("train")
    for asked, answer in zip(queries, answers, strict=True):
        messages = neighborhood(toy.context, asked, 99)
        assert not any(
            (e.relation, e.target, e.other) == (asked.relation, asked.target, answer) for e in messages
        )


def test_a_self_loop_is_withheld_from_both_its_sides() -> None:
    graph = build_graph("g", {"train": [("a", "r", "a"), ("b", "r", "a"), ("a", "s", "a")]})
    a, r = graph.entities.index["a"], graph.relations.index["r"]
    others = {("s", "tail", "a"), ("s", "head", "a")}
    assert set(edges(graph, Query(a, r, "tail"))) == {("r", "head", "b"), *others}
    assert set(edges(graph, Query(a, r, "head"))) == others


def test_neighbors_by_the_asked_relation_come_first_then_each_relation_in_turn() -> None:
    train = [("a", "likes", "b"), ("c", "likes", "a"), ("d", "likes", "a")]
    train += [("a", "owns", f"x{i}") for i in range(4)] + [("a", "is", "y"), ("y", "is", "z")]
    graph = build_graph("g", {"train": train})
    result = edges(graph, Query(graph.entities.index["a"], graph.relations.index["likes"], "tail"))
    assert result[:2] == [("likes", "head", "c"), ("likes", "head", "d")]
    assert [relation for relation, _, _ in result[2:]] == ["is", "owns", "owns", "owns", "owns"] or [
        relation for relation, _, _ in result[2:]
    ] == ["owns", "is", "owns", "owns", "owns"]
    limited = edges(graph, Query(graph.entities.index["a"], graph.relations.index["likes"], "tail"), 3)
    assert limited == result[:3]


def test_dropout_leaves_out_some_or_all_and_only_in_training(toy: KnowledgeGraph) -> None:
    asked = query(toy, "france", "borders", "tail")
    whole = edges(toy, asked)
    assert len(whole) > 1
    assert edges(toy, asked, drop=0.9) == whole, "no generator, no dropout"
    drawn = [edges(toy, asked, drop=0.5, rng=np.random.default_rng(i)) for i in range(40)]
    assert all(set(d) <= set(whole) for d in drawn)
    assert any(not d for d in drawn)
    assert any(d for d in drawn)


@given(
    st.lists(st.tuples(*(st.integers(0, n) for n in (7, 3, 7))), min_size=1, max_size=90),
    st.integers(0, 12),
    st.sampled_from([0.0, 0.3]),
    st.integers(0, 9),
)
def test_the_order_of_a_neighborhood_is_as_described(
    triples: list[tuple[int, int, int]], limit: int, drop: float, seed: int
) -> None:
    rows = [(f"e{h}", f"r{r}", f"e{t}") for h, r, t in triples]
    graph = build_graph("g", {"train": rows})
    for asked in graph.queries("train")[0]:
        rng = np.random.default_rng(seed)
        own = [
            e
            for e in graph.context.edges(asked.entity)
            if e.relation != asked.relation or (asked.entity != e.other and e.target != asked.target)
        ]
        if drop and rng.random() < drop:
            own = []
        elif drop:
            own = [e for e, chance in zip(own, rng.random(len(own)), strict=True) if chance >= drop]
        by_telling = sorted(
            own,
            key=lambda e: (
                len(graph.context.edges(e.other)),
                graph.entities[e.other].surface,
                graph.relations[e.relation].name,
                e.target,
            ),
        )
        turns = [
            sum((x.relation, x.target) == (e.relation, e.target) for x in by_telling[:i])
            for i, e in enumerate(by_telling)
        ]
        order = sorted(range(len(own)), key=lambda i: (by_telling[i].relation != asked.relation, turns[i], i))
        values = neighborhood(graph.context, asked, limit, drop, np.random.default_rng(seed))
        assert values == [by_telling[i] for i in order[:limit]]


@pytest.mark.parametrize("target", ["tail", "head"])
@pytest.mark.parametrize("name", REGISTRY)
def test_every_template_tells_neighbors(toy: KnowledgeGraph, name: str, target: str) -> None:
    asked = query(toy, "france", "capital", target)
    messages = neighborhood(toy.context, asked, 5)
    text = TEMPLATES[name](toy.context, asked, messages)
    for edge in messages:
        assert f": {toy.entities[edge.other].surface}" in text.text()
    cuts = {s.text: s.cut for s in text.before}
    assert all(cut > 0 for t, cut in cuts.items() if t.startswith(";"))


def segments(text: Linearization) -> list[tuple[str, int]]:
    return [(s.text, s.cut) for s in (*text.before, *text.after)]


@pytest.fixture
def told() -> KnowledgeGraph:
    """France with one triple of each of five relations, one of them by its tail."""
    train = [("fr", "has", "paris"), ("eu", "lists", "fr"), ("fr", "is", "state"), ("fr", "near", "de")]
    train += [("fr", "speaks", "french"), ("fr", "asks", "x")]
    texts = TextColumns(
        names={"fr": "France", "eu": "Union"},
        descriptions={"fr": "a country"},
        relations={"lists": "counts", "has": "has"},
    )
    return build_graph("told", {"train": train}, texts)


NEIGHBORS = [("; has: paris", 2), ("; inverse of counts: Union", 2), ("; is: state", 2), ("; near: de", 4),
             ("; speaks: french", 4)]  # fmt: skip
WHOLE = {
    ("plain", "tail"): [("France.", 1), ("a country", 3), *NEIGHBORS, ("| asks |", 0)],
    ("plain", "head"): [("France.", 1), ("a country", 3), *NEIGHBORS, ("| inverse of asks |", 0)],
    ("natural", "tail"): [("France means:", 1), ("a country", 3), *NEIGHBORS, ("France", 1), ("asks", 0)],
    ("natural", "head"): [
        ("France means:", 1), ("a country", 3), *NEIGHBORS, ("something asks", 0), ("France, namely", 1),
    ],
}  # fmt: skip
BARE = {
    ("plain", "tail"): [("Union", 1), ("", 3), ("| asks |", 0)],
    ("plain", "head"): [("Union", 1), ("", 3), ("| inverse of asks |", 0)],
    ("natural", "tail"): [("Union", 1), ("asks", 0)],
    ("natural", "head"): [("something asks", 0), ("Union, namely", 1)],
}


def in_order(graph: KnowledgeGraph) -> list[Edge]:
    """The neighbors of France in the order above."""
    r, e = graph.relations.index, graph.entities.index
    tails = [("has", "paris"), ("is", "state"), ("near", "de"), ("speaks", "french")]
    edges = [Edge(r[relation], "tail", e[other]) for relation, other in tails]
    return [edges[0], Edge(r["lists"], "head", e["eu"]), *edges[1:]]


@pytest.mark.parametrize(("name", "target"), WHOLE)
def test_where_space_is_short_far_neighbors_go_first_then_descriptions_and_relations_never(
    told: KnowledgeGraph, name: str, target: str
) -> None:
    asked = query(told, "fr", "asks", target)
    neighbors = in_order(told)
    text = TEMPLATES[name](told.context, asked, neighbors)
    assert segments(text) == WHOLE[name, target]
    bare = TEMPLATES[name](told.context, query(told, "eu", "asks", target), ())
    assert segments(bare) == BARE[name, target], "an entity without a description"


def test_what_vectors_read_is_cut_like_queries(told: KnowledgeGraph) -> None:
    france = told.entities.index["fr"]
    assert segments(entity_text(told.context, france)) == [("France.", 1), ("a country", 2)]


@pytest.mark.parametrize("name", TEMPLATES)
def test_queries_are_written_as_the_settings_say(toy: KnowledgeGraph, name: str) -> None:
    queries, _ = toy.queries("test")

    def written(rng: np.random.Generator | None = None, **chosen: Any) -> list[str]:
        settings = TextSettings.model_validate({"template": name, **chosen})
        return [text.text() for text in linearize(toy.context, queries, settings, rng)]

    def by_hand(limit: int) -> list[str]:
        rows = [neighborhood(toy.context, q, limit) if limit else [] for q in queries]
        write = TEMPLATES[name]
        return [write(toy.context, q, t).text() for q, t in zip(queries, rows, strict=True)]

    assert written() == by_hand(0)
    assert written(neighbors=2) == by_hand(2) != by_hand(1), "nothing is left out but in training"
    rng = np.random.default_rng
    dropped = written(rng(0), neighbors=2)
    assert dropped != by_hand(2)
    assert dropped == written(rng(0), neighbors=2) != written(rng(1), neighbors=2)


def test_nothing_is_left_out_unless_it_is_asked_for(toy: KnowledgeGraph) -> None:
    asked = query(toy, "france", "borders", "tail")
    assert edges(toy, asked, rng=np.random.default_rng(0)) == edges(toy, asked) != []


def test_nothing_before_the_hole_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^a template must have text before the hole$"):
        Linearization((), (Segment("after"),))


def test_an_unknown_template_lists_those_there_are() -> None:
    with pytest.raises(ConfigError, match="plain, natural"):
        get_template("poem")


def test_an_entity_is_read_from_its_own_text_alone(toy: KnowledgeGraph) -> None:
    france = toy.entities.index["france"]
    assert entity_text(toy.context, france).text() == "France. country in western Europe ___"
