"""Class expressions, lists, and nodes that stand for texts and statements, read as what they mean."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import kgmlm
from kgmlm.core.progress import Watcher
from kgmlm.graphs.datasets import read_folder

PREFIXES = """
@prefix : <http://ex.org/p#> .
@prefix owl: <http://www.w3.org/2002/07/owl#> .
@prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
@prefix rdf: <http://www.w3.org/1999/02/22-rdf-syntax-ns#> .
@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix xl: <http://www.w3.org/2008/05/skos-xl#> .
@prefix xsd: <http://www.w3.org/2001/XMLSchema#> .
"""
SOME = "[ a owl:Restriction ; owl:onProperty :top ; owl:someValuesFrom :Tomato ]"


def imported(text: str, folder: Path, out: str = "out", **options: Any) -> tuple[set[str], dict[str, Any]]:
    """The triples that a file says, in short, and the report."""
    (folder / "a.ttl").write_text(PREFIXES + text)
    report = kgmlm.import_graph(folder / "a.ttl", folder / out, progress=False, **options)
    graph = read_folder(folder / out)
    short = [
        " ".join(part.rsplit("#", 1)[-1].rsplit("/", 1)[-1] for part in triple)
        for triple in graph.labeled(graph.triples("train"))
    ]
    return set(short), dict(report)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (f":A rdfs:subClassOf {SOME} .", {"A top Tomato"}),
        (
            ":A rdfs:subClassOf [ a owl:Restriction ; owl:onProperty :top ; owl:allValuesFrom :Tomato ] .",
            {"A top Tomato"},
        ),
        (
            ":a a :C ; a [ a owl:Restriction ; owl:onProperty :top ; owl:hasValue :b ] .",
            {"a type C", "a top b"},
        ),
        (
            f":A owl:equivalentClass [ owl:intersectionOf ( :Pizza {SOME} ) ] .",
            {"A subClassOf Pizza", "A top Tomato"},
        ),
        (f":A owl:intersectionOf ( :Pizza {SOME} ) .", {"A subClassOf Pizza", "A top Tomato"}),
        (":A owl:unionOf ( :B :C ) .", {"B subClassOf A", "C subClassOf A"}),
        (":A owl:oneOf ( :b :c ) .", {"b type A", "c type A"}),
        (":a :lists ( :b :c :b ) .", {"a lists b", "a lists c"}),
        (":a :b :c . :a rdfs:subClassOf [ owl:unionOf ( :B :C ) ] .", {"a b c"}),
        (":a :b :c . :a rdfs:subClassOf [ owl:complementOf :B ] .", {"a b c"}),
        (":A owl:equivalentClass [ owl:unionOf ( :B :C ) ] .", {"B subClassOf A", "C subClassOf A"}),
        (":a :b :c . :top rdfs:range [ a owl:Class ; owl:unionOf ( :B :C ) ] .", {"a b c"}),
        (
            ":a :b :c . :a rdfs:subClassOf [ a owl:Restriction ; owl:onProperty :r ; owl:onClass :B ; "
            "owl:maxQualifiedCardinality 0 ] .",
            {"a b c"},
        ),
        (
            ":a rdfs:subClassOf [ a owl:Restriction ; owl:onProperty :r ; owl:onClass :B ; "
            'owl:qualifiedCardinality "10"^^xsd:nonNegativeInteger ] .',
            {"a r B"},
        ),
        (":a :b :c . :a a owl:Class , :D ; rdfs:subClassOf owl:Thing .", {"a b c", "a type D"}),
        (
            ":a :b :c . : a owl:Ontology ; owl:imports <http://ex.org/o> ; "
            "owl:versionIRI <http://ex.org/o1> . :a rdfs:isDefinedBy : .",
            {"a b c"},
        ),
        (':a :b :c ; skos:editorialNote [ :by :me ; rdfs:comment "why" ] .', {"a b c"}),
        (
            ":a :b :c . :a rdfs:subClassOf [ a owl:Restriction ; owl:onProperty [ owl:inverseOf :r ] ; "
            "owl:someValuesFrom :B ] .",
            {"a b c"},
        ),
        (
            ":a :b :c . [] a owl:Axiom ; owl:annotatedSource :a ; owl:annotatedProperty :b ; "
            "owl:annotatedTarget :c ; :by :me .",
            {"a b c"},
        ),
        (
            ":a :b :c . [] a rdf:Statement ; rdf:subject :a ; rdf:predicate :b ; rdf:object :c ; :by :me .",
            {"a b c"},
        ),
    ],
)
def test_what_is_said_is_what_it_means(said: str, expected: set[str], tmp_path: Path) -> None:
    result, report = imported(said, tmp_path)
    assert {re.sub(r"_:b\d+", "b1", triple) for triple in result} == expected
    assert report["blank_nodes"] == ("inverseOf" in said)


def test_what_no_triple_says_is_counted(tmp_path: Path) -> None:
    message = f":a :b :c . :a rdfs:subClassOf [ owl:unionOf ( :B {SOME} ) ] ."
    _, report = imported(message, tmp_path)
    assert report["left_out"] == {"expressions that no triple says": 1}
    assert report["left_out_by"]["expressions that no triple says"] == {
        "http://www.w3.org/2000/01/rdf-schema#subClassOf": 1
    }


DEPRECATED = ":a :b :c . :c owl:deprecated true ; :b :a . :a :d :e . :f a owl:DeprecatedClass ; :b :a ."


def test_deprecated_entities_are_told_and_may_be_left_out(tmp_path: Path) -> None:
    result, report = imported(DEPRECATED, tmp_path)
    assert (result, report["deprecated"]) == ({"a b c", "c b a", "a d e", "f b a"}, 2)
    result, report = imported(DEPRECATED, tmp_path, "skipped", skip_deprecated=True)
    assert (result, report["deprecated"]) == ({"a d e"}, 0)
    assert report["left_out"]["of deprecated entities"] == 3


def test_labels_of_other_languages_are_no_entities(tmp_path: Path) -> None:
    message = ':a :b :c ; xl:prefLabel :l , :m . :l a xl:Label ; xl:literalForm "Ding"@de . '
    message += ':m xl:literalForm "Thing"@en .'
    result, report = imported(message, tmp_path)
    assert result == {"a b c"}
    assert report["left_out"]["texts in other languages"] == 1


def test_dates_of_records_are_no_attributes(tmp_path: Path) -> None:
    created = "<http://purl.org/dc/terms/created>"
    born = ":born '1900-01-02'^^xsd:date , '1900-01-02'^^xsd:date"
    message = f":a :b :c ; {created} '2018-09-13'^^xsd:date ; {born} ."
    report = imported(message, tmp_path)[1]
    assert report["attributes"] == 1
    assert report["left_out"] == {"dates of records": 1}


def test_a_language_that_names_are_in_is_told(tmp_path: Path) -> None:
    rows: list[str] = []

    class Telling(Watcher):
        def tell(self, message: str) -> None:
            rows.append(message)

    (tmp_path / "a.ttl").write_text(f'{PREFIXES} :a :b :c ; rdfs:label "Ding"@de .')
    kgmlm.import_graph(tmp_path / "a.ttl", tmp_path / "out", progress=Telling())
    assert rows == ["most entities have no name; 1 have one in de (--language de)"]


def test_a_definition_goes_before_a_comment(tmp_path: Path) -> None:
    obo = "<http://www.geneontology.org/formats/oboInOwl#hasDefinition>"
    imported(f':a :b :c ; rdfs:comment "a note" ; {obo} "what it is" .', tmp_path)
    assert "what it is" in read_folder(tmp_path / "out").entities.column("description")


def test_a_list_that_has_no_end_is_read_once(tmp_path: Path) -> None:
    message = ":a :lists _:x . _:x rdf:first :b ; rdf:rest _:y . _:y rdf:first :c ; rdf:rest _:x ."
    assert imported(message, tmp_path)[0] == {"a lists b", "a lists c"}


def test_texts_of_nodes_are_texts(tmp_path: Path) -> None:
    message = """
    :a :b :c ; skos:definition [ rdf:value "a thing"@en ] ; xl:prefLabel :l ; xl:altLabel :m .
    :l a xl:Label ; xl:literalForm "Thing"@en . :m a xl:Label ; xl:literalForm "Item"@en .
    :c skos:definition :d . :d rdfs:label "an entity"@en .
    """
    result, report = imported(message, tmp_path)
    assert result == {"a b c", "c definition d"}
    graph = read_folder(tmp_path / "out")
    entity = graph.entities[graph.entities.find("http://ex.org/p#a") or 0]
    assert (entity.name, entity.description) == ("Thing", "a thing")
    assert report["blank_nodes"] == 0


def test_names_of_entities_are_split_into_words(tmp_path: Path) -> None:
    imported(":FourSeasons :hasTopping :TomatoTopping .", tmp_path)
    names = read_folder(tmp_path / "out").entities.column("name")
    assert names == ["Four Seasons", "Tomato Topping"]


def test_predicates_are_chosen(tmp_path: Path) -> None:
    message = """
    :a :b :c ; :d :e ; :f [ :b :g ] ; :called "Anna" ; rdfs:label "a"@en ; :told "a person" .
    """
    own = "http://ex.org/p#"
    result, report = imported(
        message,
        tmp_path,
        name_predicates=[f"{own}called"],
        description_predicates=[f"{own}told"],
        skip=[f"{own}d"],
        skip_blank=True,
    )
    assert result == {"a b c"}
    assert report["left_out"] == {"of predicates that are skipped": 1, "triples of blank nodes": 2}
    graph = read_folder(tmp_path / "out")
    entity = graph.entities[graph.entities.find(f"{own}a") or 0]
    assert (entity.name, entity.description) == ("Anna", "a person")


def test_only_some_relations_are_kept(tmp_path: Path) -> None:
    message = f":a :b :c ; :d :e . :A rdfs:subClassOf {SOME} . :B owl:unionOf ( :C :D ) ."
    result, report = imported(message, tmp_path, keep_only=["http://ex.org/p#d", "http://ex.org/p#top"])
    assert result == {"a d e", "A top Tomato"}
    assert report["left_out"] == {"of predicates that are not kept": 3}


def test_statement_nodes_of_wikidata_are_left_out(tmp_path: Path) -> None:
    message = """
    @prefix wd: <http://www.wikidata.org/entity/> . @prefix s: <http://www.wikidata.org/entity/statement/> .
    @prefix wdt: <http://www.wikidata.org/prop/direct/> . @prefix p: <http://www.wikidata.org/prop/> .
    @prefix ps: <http://www.wikidata.org/prop/statement/> .
    wd:Q1 wdt:P31 wd:Q2 ; p:P31 s:Q1-x . s:Q1-x ps:P31 wd:Q2 .
    """
    result, report = imported(message, tmp_path)
    assert result == {"Q1 P31 Q2"}
    assert report["left_out"] == {"statements of Wikidata about statements": 2}
