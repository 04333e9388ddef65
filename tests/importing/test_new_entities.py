from __future__ import annotations

from pathlib import Path

import pytest

from kgmlm.core.errors import DataError
from kgmlm.core.progress import Watcher
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.importing.new_entities import read_new_entities

pytest.importorskip("pyoxigraph")

THESAURUS = """
@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix x: <http://example.org/> .
<http://example.org/9> a x:Drink ; skos:prefLabel "mead"@en, "Met"@de ;
    skos:definition "fermented honey"@en ; skos:broader x:8 .
x:8 skos:prefLabel "drink"@en .
x:7 skos:broader x:8 .
x:Property a <http://www.w3.org/2002/07/owl#ObjectProperty> ; skos:prefLabel "has part"@en .
"""


class Listening(Watcher):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def tell(self, message: str) -> None:
        self.messages.append(message)


def test_entities_of_a_thesaurus_are_what_has_texts_there(toy: KnowledgeGraph, tmp_path: Path) -> None:
    path, watch = tmp_path / "new.ttl", Listening()
    path.write_text(THESAURUS, "utf-8")
    table = read_new_entities(path, toy, watch)
    assert table.column("label") == ["http://example.org/9", "http://example.org/8"]
    mead = table[0]
    assert (mead.name, mead.description) == ("mead", "fermented honey")
    assert mead.aliases == ("Met",)
    assert any("triples of new.ttl" in message and "data import" in message for message in watch.messages)
    wider = toy.extended(table)
    watch = Listening()
    path.write_text(THESAURUS + 'x:1 skos:prefLabel "tea"@en .', "utf-8")
    assert read_new_entities(path, wider, watch).column("label") == ["http://example.org/1"]
    assert "not read: 2 entities of new.ttl that the graph has" in watch.messages
    path.write_text(THESAURUS, "utf-8")
    with pytest.raises(DataError, match="that the graph lacks"):
        read_new_entities(path, wider, Watcher())


def test_names_are_read_in_the_language_that_the_file_has(toy: KnowledgeGraph, tmp_path: Path) -> None:
    path, watch = tmp_path / "neu.nt", Listening()
    path.write_text(
        '<http://x.org/1> <http://www.w3.org/2004/02/skos/core#prefLabel> "Honig"@de .\n'
        '<http://x.org/2> <http://www.w3.org/2000/01/rdf-schema#label> "Wachs"@de .\n',
        "utf-8",
    )
    table = read_new_entities(path, toy, watch)
    assert table.column("name") == ["Honig", "Wachs"]
    assert watch.messages == ["no name in neu.nt is in en; names are read in de"]


@pytest.mark.parametrize(("text", "match"), [("bad", "cut off, damaged"), ("", "that the graph lacks")])
def test_a_file_without_entities_is_refused(
    toy: KnowledgeGraph, tmp_path: Path, text: str, match: str
) -> None:
    path = tmp_path / "new.ttl"
    path.write_text(text, "utf-8")
    with pytest.raises(DataError, match=match):
        read_new_entities(path, toy, Watcher())


def test_a_table_is_read_whatever_its_name_has_in_the_middle(toy: KnowledgeGraph, tmp_path: Path) -> None:
    path, watch = tmp_path / "new.xml.tsv", Listening()
    path.write_text("label\tname\tnote\nq1\tAtlantis\tlost\n", "utf-8")
    assert read_new_entities(path, toy, watch).column("name") == ["Atlantis"]
    assert watch.messages == ["not read: the column 'note' of new.xml.tsv"]
