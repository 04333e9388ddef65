from __future__ import annotations

import pytest

from kgmlm.kg import ConfigError, KnowledgeGraph, Query
from kgmlm.linearization import TEMPLATES, Linearization, Segment, get_template


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


@pytest.mark.parametrize("target", ["tail", "head"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_template_has_its_golden_text(toy: KnowledgeGraph, name: str, target: str) -> None:
    text = TEMPLATES[name](toy.context, query(toy, "france", "capital", target), True, ())
    assert text.text() == GOLDEN[name, target]


@pytest.mark.parametrize("target", ["tail", "head"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_template_keeps_the_contract(toy: KnowledgeGraph, name: str, target: str) -> None:
    asked = query(toy, "france", "capital", target)
    with_text, without = (TEMPLATES[name](toy.context, asked, flag, ()) for flag in (True, False))
    relation = toy.relations[asked.relation].name
    uncut = [s.text for s in (*with_text.before, *with_text.after) if s.cut == 0]
    assert any(relation in text for text in uncut), "the relation must never be cut"
    assert "country in western Europe" in with_text.text()
    assert "country in western Europe" not in without.text()
    assert "France" in without.text()
    other = TEMPLATES[name](
        toy.context, query(toy, "france", "capital", "head" if target == "tail" else "tail"), True, ()
    )
    assert other.text() != with_text.text(), "a head query needs a wording of its own"


def test_nothing_before_the_hole_is_refused() -> None:
    with pytest.raises(ValueError, match="before the hole"):
        Linearization((), (Segment("after"),))


def test_an_unknown_template_lists_those_there_are() -> None:
    with pytest.raises(ConfigError, match="plain, natural"):
        get_template("poem")
