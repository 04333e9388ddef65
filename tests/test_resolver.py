from __future__ import annotations

import pytest

from kgmlm import resolver
from kgmlm.building import build_graph
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import QueryError
from kgmlm.resolver import Resolver


@pytest.fixture(params=["a dictionary", "columns"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How names are found: by a dictionary of all, or as columns, as in a large graph."""
    if request.param == "columns":
        monkeypatch.setattr(resolver, "LARGE", 0)


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


@pytest.mark.parametrize("sides", [{}, {"head": "france", "tail": "paris"}])
def test_a_query_has_one_known_entity(toy: KnowledgeGraph, sides: dict[str, str]) -> None:
    with pytest.raises(QueryError, match="either a head"):
        Resolver(toy).query("capital", **sides)
