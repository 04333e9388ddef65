from __future__ import annotations

from itertools import pairwise

import pytest

from kgmlm.core.errors import QueryError
from kgmlm.graphs import names
from kgmlm.graphs.graph import KnowledgeGraph, TextColumns, build_graph
from kgmlm.graphs.names import Resolver
from kgmlm.graphs.queries import Query
from kgmlm.signals.text_vectors import texts_of
from kgmlm.text.linearization import plain


@pytest.fixture(params=["a dictionary", "columns"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How names are found: by a dictionary of all, or as columns, as in a large graph."""
    if request.param == "columns":
        monkeypatch.setattr(names, "LARGE", 0)
    else:
        monkeypatch.setattr(names, "FEW_NAMES", 0)


def test_labels_win_over_names_and_case_is_forgiven(toy: KnowledgeGraph) -> None:
    find = Resolver(toy)
    assert toy.entities[find.entity("NA")].name == "Namibia"
    assert toy.entities[find.entity("namibia")].label == "NA"
    assert toy.entities[find.entity("東京")].label == "tokyo"
    assert toy.relations[find.relation("has the capital")].label == "capital"


def test_an_ambiguous_name_lists_its_candidates(toy: KnowledgeGraph) -> None:
    with pytest.raises(QueryError, match=r"2 entities.*georgia_country.*Caucasus.*georgia_state"):
        Resolver(toy).entity("Georgia")


def test_what_is_no_text_is_refused(toy: KnowledgeGraph) -> None:
    for find in (Resolver(toy).entity, Resolver(toy).relation):
        with pytest.raises(QueryError, match="3 is no label or name"):
            find(3)  # type: ignore[arg-type]


def test_an_unknown_name_suggests_the_nearest(toy: KnowledgeGraph) -> None:
    with pytest.raises(QueryError, match="did you mean 'portugal'"):
        Resolver(toy).entity("Portugl")
    with pytest.raises(QueryError, match=r"no relation.*did you mean"):
        Resolver(toy).relation("located")


def test_a_suggestion_is_made_once() -> None:
    graph = build_graph("x", {"train": [("a", "knows", "b"), ("a", "Lives_In", "b")]})
    with pytest.raises(QueryError, match=r"did you mean 'knows'\?"):
        Resolver(graph).relation("know")


def test_the_models_read_three_aliases_where_there_is_no_description() -> None:
    texts = TextColumns(descriptions={"a": "a city"}, aliases={"a": "u", "b": "w| x|y|z"})
    graph = build_graph("x", {"train": [("a", "r", "b"), ("b", "r", "c")]}, texts)
    assert [graph.entities[i].model_description for i in range(3)] == ["a city", "also w, x, y", ""]
    assert graph.entities.model_descriptions.to_pylist() == ["a city", "also w, x, y", ""]
    assert plain(graph.context, Query(1, 0, "tail")).text("?").startswith("b. also w, x, y")
    assert texts_of(graph.entities) == ["a. a city", "b. also w, x, y", "c"]
    other = build_graph("x", {"train": [("a", "r", "b")]}, TextColumns(aliases={"b": "w|x|y"}))
    assert other.entities.rows_in(graph.entities).tolist() == [-1, 1]


def test_an_alias_finds_what_no_name_does() -> None:
    aliases = {"ny": "Big Apple|New Amsterdam", "la": "City of Angels|Ny", "sf": "big apple", "b": ""}
    texts = TextColumns(names={"ny": "New York"}, aliases=aliases)
    find = Resolver(build_graph("x", {"train": [("ny", "r", "la"), ("sf", "r", "b")]}, texts))
    label = find.graph.entities.column("label")
    assert label[find.entity("new  amsterdam")] == "ny"
    assert label[find.entity("ny")] == "ny"
    assert label[find.entity("NY")] == "la"
    with pytest.raises(QueryError, match="'Big Apple' names 2 entities"):
        find.entity("Big Apple")
    with pytest.raises(QueryError, match="no entity"):
        find.entity("")
    assert find.graph.entities[find.entity("City of Angels")].aliases == ("City of Angels", "Ny")


@pytest.mark.parametrize("sides", [{}, {"head": "france", "tail": "paris"}])
def test_a_query_has_one_known_entity(toy: KnowledgeGraph, sides: dict[str, str]) -> None:
    with pytest.raises(QueryError, match="either a head"):
        Resolver(toy).query("capital", **sides)


NAMED = [
    ("e1", "Zu\u0308rich"), ("e2", "M\u00e1laga"), ("e3", "New York City"), ("e4", "  Spaced  "),
    ("e5", "Bank"), ("e6", "bank"), ("e7", "Stra\u00dfe"),
    ("e8", "\u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2"),
    ("e9", "\ufb01ne \u2163"), ("e10", "snake_case"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "label"),
    [
        ("Z\u00fcrich", "e1"), ("Zu\u0308rich", "e1"), ("z\u00dcRICH", "e1"), ("Ma\u0301laga", "e2"),
        ("New\u00a0York  city ", "e3"), ("new_york_city", "e3"), ("Spaced", "e4"), ("Bank", "e5"),
        ("bank", "e6"), ("STRASSE", "e7"),
        ("\u03a3\u038a\u03a3\u03a5\u03a6\u039f\u03a3", "e8"), ("fine IV", "e9"),
        ("Snake Case", "e10"), (" e1 ", "e1"), ("zero\u200bwidth", None),
    ],
)  # fmt: skip
def test_an_exact_name_wins_and_forms_are_forgiven(typed: str, label: str | None) -> None:
    triples = [(a, "r", b) for (a, _), (b, _) in pairwise(NAMED)]
    graph = build_graph("names", {"train": triples}, texts=TextColumns(names=dict(NAMED)))
    find = Resolver(graph)
    if label is None:
        with pytest.raises(QueryError, match="no entity has"):
            find.entity(typed)
    else:
        assert graph.entities[find.entity(typed)].label == label
    with pytest.raises(QueryError, match="names 2 entities"):
        find.entity("BANK")
