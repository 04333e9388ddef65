"""Changes of a graph: what is added, what is removed, and what keeps its id."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kgmlm.core.errors import DataError, QueryError
from kgmlm.graphs.changes import Change, Place, changed
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.given import GivenTriples
from kgmlm.graphs.graph import KnowledgeGraph

Rows = list[tuple[str, str, str]]


def change(
    graph: KnowledgeGraph,
    rows: Rows,
    remove: Rows | None = None,
    false: Rows | None = None,
    entities: EntityTable | None = None,
) -> Change:
    return changed(graph, GivenTriples(rows), entities, GivenTriples(remove or []), GivenTriples(false or []))


def test_what_was_there_keeps_its_id(toy: KnowledgeGraph) -> None:
    result = change(toy, [("iceland", "located_in", "europe"), ("iceland", "has_neighbor", "france")])
    grown = result.graph
    assert (result.entities, result.relations, len(result.added)) == (1, 1, 2)
    assert grown.entities.column("label")[: len(toy.entities)] == toy.entities.column("label")
    assert [r.label for r in grown.relations][: len(toy.relations)] == [r.label for r in toy.relations]
    assert grown.relations[len(toy.relations)].name == "has neighbor"
    assert grown.labeled(result.added) == [
        ("iceland", "located_in", "europe"),
        ("iceland", "has_neighbor", "france"),
    ]
    train = toy.triples("train")
    assert np.array_equal(grown.triples("train")[: len(train)], train)


def test_ends_are_labels_or_names(toy: KnowledgeGraph) -> None:
    result = change(toy, [("Portugal", "has the capital", "paris"), ("Iceland", "located_in", "Europe")])
    assert (result.entities, result.alike) == (1, ())
    assert result.graph.labeled(result.added)[0] == ("portugal", "capital", "paris")
    assert result.graph.entities[len(toy.entities)].label == "Iceland"


ALIKE = ["PORTUGAL", " Portugal", "port_ugal", "Port ugal", "10²", "102", "①", "1", "n_1", "n 1"]


def test_labels_that_are_nearly_alike_stay_apart_and_are_listed(toy: KnowledgeGraph) -> None:
    rows = [(label, "located_in", "Europe") for label in ALIKE]
    result = change(toy, rows)
    assert result.entities == len(result.added) == len(ALIKE), "byte for byte, as training has them"
    assert result.graph.entities.column("label")[len(toy.entities) :] == ALIKE
    assert {(pair.new, pair.known) for pair in result.alike} == {
        ("PORTUGAL", "portugal"),
        (" Portugal", "portugal"),
        ("Port ugal", "port_ugal"),
        ("102", "10²"),
        ("1", "①"),
        ("n 1", "n_1"),
    }
    again = change(result.graph, [("n  1", "LOCATED_IN", "europe"), ("n 1", "located_in", "france")])
    assert (again.entities, again.relations) == (1, 1), "a name that was made of a label is no name"
    assert {(pair.what, pair.new) for pair in again.alike} == {("entity", "n  1"), ("relation", "LOCATED_IN")}


def test_names_that_are_nearly_alike_are_taken_on_request(toy: KnowledgeGraph) -> None:
    rows = [("PORTUGAL", "Located in", "europe"), ("n_1", "borders", "france"), ("N 1", "borders", "italy")]
    result = changed(toy, GivenTriples(rows), match_names=True)
    assert (result.entities, result.relations, result.alike) == (1, 0, ())
    labeled = result.graph.labeled(result.added)
    assert ("n_1", "borders", "italy") in labeled
    assert result.known + len(labeled) == 3


def test_an_alias_is_nearly_alike(toy: KnowledgeGraph) -> None:
    graph = toy.extended(EntityTable(["isl"], ["Iceland"], aliases=["Ísland|ice land"]))
    result = change(graph, [("Ice_land", "located_in", "europe")])
    assert [(pair.new, pair.known) for pair in result.alike] == [("Ice_land", "isl")]
    matched = changed(graph, GivenTriples([("Ice_land", "located_in", "europe")]), match_names=True)
    assert (matched.entities, matched.graph.labeled(matched.added)[0][0]) == (0, "isl")


def test_what_is_removed_or_false_is_named_exactly(toy: KnowledgeGraph) -> None:
    row = ("FRANCE", "capital", "paris")
    for options in ({"remove": [row]}, {"false": [row]}):
        with pytest.raises(QueryError, match="exactly the label or name 'FRANCE', and 'france' is nearly"):
            change(toy, [], **options)  # type: ignore[arg-type]
    result = changed(toy, GivenTriples(()), remove=GivenTriples([row]), match_names=True)
    assert len(result.removed) == 1


def test_a_triple_goes_back_to_where_it_was(toy: KnowledgeGraph) -> None:
    places: dict[Place, tuple[str, str, str]] = {
        "train": toy.labeled(toy.triples("train")[:1])[0],
        "valid": toy.labeled(toy.triples("valid")[:1])[0],
        "test": toy.labeled(toy.triples("test")[:1])[0],
        "none": ("france", "borders", "japan"),
    }
    rows = list(places.values())
    for judged in (change(toy, rows).graph, change(toy, [], false=rows).graph):
        restored = changed(
            judged, GivenTriples(()), restore={row: place for place, row in places.items()}
        ).graph
        for split, triples in toy.splits.items():
            assert sorted(restored.labeled(restored.triples(split))) == sorted(toy.labeled(triples))
        assert not restored.negatives
    false = change(toy, [], false=[places["none"]]).graph
    true = change(false, [places["none"]]).graph
    again = changed(true, GivenTriples(()), restore={places["none"]: "false"}).graph
    assert again.labeled(again.negatives["train"]) == [places["none"]]


def test_given_triples_may_say_what_is_false(toy: KnowledgeGraph) -> None:
    given = GivenTriples(
        [("iceland", "located_in", "europe"), ("iceland", "borders", "france")], true=np.array([True, False])
    )
    result = changed(toy, given)
    assert (len(result.added), result.false, result.entities) == (1, 1, 1)
    with pytest.raises(DataError, match="have no column 'label'"):
        changed(toy, GivenTriples(()), remove=given)


def test_new_entities_have_their_texts(toy: KnowledgeGraph) -> None:
    table = EntityTable(["isl"], ["Iceland"], ["island in the Atlantic"])
    result = change(toy, [("Iceland", "located_in", "europe")], entities=table)
    assert result.entities == 1
    assert result.graph.labeled(result.added) == [("isl", "located_in", "europe")]
    assert result.graph.entities[len(toy.entities)].description == "island in the Atlantic"


def test_what_training_has_is_not_added_again(toy: KnowledgeGraph) -> None:
    result = change(toy, [("france", "capital", "paris"), ("france", "capital", "paris")])
    assert (result.known, len(result.added)) == (1, 0)
    assert not result


def test_what_becomes_training_leaves_its_split(toy: KnowledgeGraph) -> None:
    rows = [*toy.labeled(toy.triples("valid")[:1]), *toy.labeled(toy.triples("test")[:2])]
    result = change(toy, rows)
    assert result.moved == {"valid": 1, "test": 2}
    assert len(result.graph.triples("valid")) == len(toy.triples("valid")) - 1
    assert not set(result.graph.labeled(result.graph.triples("test"))) & set(rows)
    assert len(result.added) == 3


def test_removed_triples_are_gone_and_their_entities_stay(toy: KnowledgeGraph) -> None:
    result = change(toy, [], [("france", "capital", "paris"), ("paris", "capital", "france")])
    assert (len(result.removed), result.missing) == (1, 1)
    assert len(result.graph.triples("train")) == len(toy.triples("train")) - 1
    assert len(result.graph.entities) == len(toy.entities)


def test_what_is_removed_and_added_stays(toy: KnowledgeGraph) -> None:
    row = ("france", "capital", "paris")
    result = change(toy, [row], [row])
    assert row in result.graph.labeled(result.graph.triples("train"))


def test_a_false_triple_that_is_added_is_not_false_any_more(toy: KnowledgeGraph) -> None:
    row = ("france", "capital", "berlin")
    with_negatives = KnowledgeGraph(
        toy.name, toy.entities, toy.relations, toy.splits, toy.sources,
        negatives={"valid": change(toy, [row]).added},
    )  # fmt: skip
    assert len(change(with_negatives, [row]).graph.negatives["valid"]) == 0


def test_wrong_changes_are_refused(toy: KnowledgeGraph) -> None:
    with pytest.raises(QueryError, match=r"triple 2: 'Georgia' names 2 entities"):
        change(toy, [("iceland", "located_in", "europe"), ("Georgia", "located_in", "europe")])
    with pytest.raises(QueryError, match="triple 1: no entity has the label or name 'nowhere'"):
        change(toy, [], [("nowhere", "capital", "paris")])
    with pytest.raises(QueryError, match=r"triple 1: .*empty"):
        change(toy, [(" ", "capital", "paris")])
    with pytest.raises(DataError, match="'france' exists already"):
        change(toy, [], entities=EntityTable(["france"]))
    with pytest.raises(DataError, match="no training triple of 'toy' would be left"):
        change(toy, [], toy.labeled(toy.triples("train")))


def test_what_is_false_leaves_training_and_is_a_negative_of_it(toy: KnowledgeGraph) -> None:
    rows = toy.labeled(toy.triples("train")[:1])
    other = ("france", "borders", "japan")
    result = change(toy, [], false=[*rows, other])
    assert (len(result.removed), result.false) == (1, 2)
    grown = result.graph
    assert sorted(grown.labeled(grown.negatives["train"])) == sorted([*rows, other])
    assert rows[0] not in grown.labeled(grown.triples("train"))
    assert not change(grown, [], false=[other]), "that is known"
    taken_back = change(grown, [other])
    assert other not in taken_back.graph.labeled(taken_back.graph.negatives["train"])


def test_a_triple_is_not_both(toy: KnowledgeGraph) -> None:
    with pytest.raises(DataError, match="is given as true and as false"):
        change(toy, [("france", "capital", "rome")], false=[("france", "capital", "rome")])


def test_many_new_entities_are_numbered_in_order(toy: KnowledgeGraph) -> None:
    rows = [(f"town {n}", "located_in", f"land {n // 2}") for n in range(6)]
    grown = change(toy, rows).graph
    new = grown.entities.column("label")[len(toy.entities) :]
    assert new == ["town 0", "land 0", "town 1", "town 2", "land 1", "town 3", "town 4", "land 2", "town 5"]


def test_what_is_false_leaves_validation_and_test(toy: KnowledgeGraph) -> None:
    row = toy.labeled(toy.triples("test")[:1])[0]
    result = change(toy, [], false=[row])
    assert result.moved == {"test": 1}
    assert row not in result.graph.labeled(result.graph.triples("test"))
    twice = replace(result.graph, negatives={"train": np.repeat(result.graph.negatives["train"], 2, 0)})
    assert not change(twice, [])
