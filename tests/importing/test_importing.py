from __future__ import annotations

import gzip
import json
import os
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow.csv
import pytest
from conftest import Cli, refused
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_statements import HOSTILE, RDF, claim, iri, wikidata, written

import kgmlm
from kgmlm.core.errors import DataError
from kgmlm.graphs.cards import folder_card
from kgmlm.graphs.checks import check_graph
from kgmlm.graphs.datasets import load_graph
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.importing import importer
from kgmlm.importing.importer import Importer, Texts

# Of Wikidata, whose data are in the public domain (CC0).
WIKIDATA = (
    '{"entities":{"Q14517013":{"pageid":16187848,"ns":0,"title":"Q14517013","lastrevid":1408823680,'
    '"modified":"2021-04-26T07:35:01Z","type":"item","id":"Q14517013",'
    '"labels":{"nl":{"language":"nl","value":"Vredesmolen"},"en":{"language":"en","value":"Peace Mill"}},'
    '"descriptions":{"nl":{"language":"nl","value":"molen in West-Vlaanderen"}},"aliases":{},"claims":{'
    '"P625":[{"mainsnak":{"snaktype":"value","property":"P625","hash":"d86538f14e8cca00bbf30fb029829aacbc6903a0",'
    '"datavalue":{"value":{"latitude":50.99444,"longitude":2.92528,"altitude":null,"precision":0.0001,'
    '"globe":"http://www.wikidata.org/entity/Q2"},"type":"globecoordinate"},"datatype":"globe-coordinate"},'
    '"type":"statement","id":"Q14517013$DBFBFD69-F54D-4C92-A7F4-A44F876E5776","rank":"normal",'
    '"references":[{"hash":"732ec1c90a6f0694c7db9a71bf09fe7f2b674172","snaks":{"P143":[{"snaktype":"value",'
    '"property":"P143","hash":"9123b0de1cc9c3954366ba797d598e4e1ea4146f","datavalue":{"value":{'
    '"entity-type":"item","numeric-id":10000,"id":"Q10000"},"type":"wikibase-entityid"},'
    '"datatype":"wikibase-item"}]},"snaks-order":["P143"]}]}],'
    '"P17":[{"mainsnak":{"snaktype":"value","property":"P17","hash":"c2859f311753176d6bdfa7da54ceeeac7acb52c8",'
    '"datavalue":{"value":{"entity-type":"item","numeric-id":31,"id":"Q31"},"type":"wikibase-entityid"},'
    '"datatype":"wikibase-item"},"type":"statement","id":"Q14517013$C12E4DA5-44E1-41ED-BF3D-C84381246429",'
    '"rank":"normal"}],'
    '"P18":[{"mainsnak":{"snaktype":"value","property":"P18","hash":"af765166ecaa7d01ea800812b5b356886b8849a0",'
    '"datavalue":{"value":"Klerken Vredesmolen R01.jpg","type":"string"},"datatype":"commonsMedia"},'
    '"type":"statement","id":"Q14517013$5291801E-11BE-4CE7-8F42-D0D6A120F390","rank":"normal"}],'
    '"P2867":[{"mainsnak":{"snaktype":"value","property":"P2867","hash":"b1c627972ba2cc71e3567d2fb56cb5f90dd64007",'
    '"datavalue":{"value":"893","type":"string"},"datatype":"external-id"},"type":"statement",'
    '"id":"Q14517013$2aff9dcd-4d24-cd92-b5af-f6268425695f","rank":"normal"}],'
    '"P31":[{"mainsnak":{"snaktype":"value","property":"P31","hash":"9b48263bb51c506553aac2281ae331353b5c9002",'
    '"datavalue":{"value":{"entity-type":"item","numeric-id":38720,"id":"Q38720"},"type":"wikibase-entityid"},'
    '"datatype":"wikibase-item"},"type":"statement","id":"Q14517013$46dd9d89-4999-eee6-20a4-c4f6650b1d9c",'
    '"rank":"normal"},{"mainsnak":{"snaktype":"value","property":"P31",'
    '"hash":"a1d6f3409c57de0361c68263c9397a99dabe19ea","datavalue":{"value":{"entity-type":"item",'
    '"numeric-id":3851468,"id":"Q3851468"},"type":"wikibase-entityid"},"datatype":"wikibase-item"},'
    '"type":"statement","id":"Q14517013$C83A8B1F-7798-493A-86C9-EC0EFEE356B3","rank":"normal"},'
    '{"mainsnak":{"snaktype":"value","property":"P31","hash":"ee5ba9185bdf9f0eb80b52e1cdc70c5883fac95a",'
    '"datavalue":{"value":{"entity-type":"item","numeric-id":623605,"id":"Q623605"},'
    '"type":"wikibase-entityid"},"datatype":"wikibase-item"},"type":"statement",'
    '"id":"Q14517013$CF74DC2E-6814-4755-9BAD-6EE9FEF637DD","rank":"normal"}]},'
    '"sitelinks":{"nlwiki":{"site":"nlwiki","title":"Vredesmolen","badges":[],'
    '"url":"https://nl.wikipedia.org/wiki/Vredesmolen"}}}}}'
)
WIKIDATA_2014 = """[
{"type":"item","aliases":{},"labels":{},"descriptions":{},"sitelinks":{},"id":"Q8","claims":{"P31":[\
{"rank":"normal","mainsnak":{"snaktype":"value","property":"P31","datavalue":{"type":"wikibase-entityid",\
"value":{"entity-type":"item","numeric-id":331769}},"datatype":"wikibase-item"},\
"id":"q8$E2EFA381-BA5D-4F52-AF74-660B9A044C1E","type":"statement"},{"rank":"normal","mainsnak":{\
"snaktype":"value","property":"P31","datavalue":{"type":"wikibase-entityid","value":{"entity-type":"item",\
"numeric-id":9415}},"datatype":"wikibase-item"},"id":"q8$5DB9C22E-4D86-4FB1-AC36-5C75CC806D6A",\
"type":"statement"}]}},
{"type":"item","aliases":{},"labels":{},"descriptions":{},"sitelinks":{},"id":"Q33","claims":{"P31":[\
{"rank":"normal","mainsnak":{"snaktype":"value","property":"P31","datavalue":{"type":"wikibase-entityid",\
"value":{"entity-type":"item","numeric-id":6256}},"datatype":"wikibase-item"},\
"id":"q33$1D955803-700D-4B70-997F-2ABB4C084EB2","type":"statement"}]}},
{"type":"property","aliases":{},"labels":{},"descriptions":{},"datatype":"wikibase-item","id":"P35","claims":{}}
]
"""
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\x00")
LABELS = st.integers(0, 8).map(lambda n: f"Q{n}")
TRIPLES = st.lists(st.tuples(LABELS, st.sampled_from(["P1", "P2"]), LABELS), min_size=1, max_size=30)
NAMES = st.dictionaries(LABELS, st.text(CHARACTERS, max_size=12), max_size=9)


def imported(data: bytes, folder: Path, name: str, **options: Any) -> tuple[KnowledgeGraph, dict[str, Any]]:
    """A graph by way of a file and a dataset folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    report = kgmlm.import_graph(folder / name, folder / "graph", progress=False, **options)
    assert sorted(p.name for p in folder.iterdir()) == sorted([name, "graph"])
    return load_graph(folder / "graph"), report


def known(graph: KnowledgeGraph) -> list[tuple[str, str, str]]:
    return graph.labeled(graph.all_triples)


@pytest.mark.parametrize("format", [*RDF, "wikidata"])
@given(triples=TRIPLES, names=NAMES)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_graph_is_what_was_written(
    format: str,
    triples: list[tuple[str, str, str]],
    names: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    triples = [(iri(format, h), iri(format, r), iri(format, t)) for h, r, t in triples]
    if format == "rdfxml":  # whose characters are fewer
        names = {x: "".join(c for c in name if c.isprintable()) for x, name in names.items()}
    texts = [(iri(format, x), "name", name, "en") for x, name in names.items()]
    data = written(format, triples, texts)
    graph, report = imported(data, tmp_path_factory.mktemp("g"), "file", format=format)
    assert sorted(known(graph)) == sorted(set(triples))
    assert report["triples"] == len(set(triples))
    clean = {iri(format, x): " ".join(name.split()) for x, name in names.items()}
    for label, name in zip(graph.entities.column("label"), graph.entities.column("name"), strict=True):
        assert name == (clean.get(label) or label.rsplit("/", 1)[-1])


def test_texts_are_chosen_by_language_then_predicate_then_order() -> None:
    texts = Texts(["de", "en"])
    offered = [
        ("fr", 0, "nom", False), ("", 2, "bare", True), ("mul", 0, "any", True), ("en-GB", 0, "lorry", True),
        ("en", 1, "truck", True), ("EN", 0, "Truck", True), ("en", 0, "later", True),
        ("de-at", 1, "Laster", True), ("de", 1, " \t", True), ("de", 1, "LKW", True),
        ("deu", 0, "von drei", True), ("pol", 0, "other", False),
    ]  # fmt: skip
    best = []
    for language, order, text, wanted in offered:
        assert texts.add(7, "name", text, language, order) == wanted
        best.append(texts.of(7, "name"))
    assert best == [
        "", "bare", "any", "lorry", "truck", "Truck", "Truck", "Laster", "Laster", "LKW",
        "von drei", "von drei",
    ]  # fmt: skip


TURTLE = """
@prefix : <http://ex.org/> . @prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
@prefix skos: <http://www.w3.org/2004/02/skos/core#> . @prefix schema: <http://schema.org/> .
:a rdfs:label "Ada"@en, "Ада"@ru ; schema:description "a\\tmathematician\\n"@en ;
   skos:altLabel "Countess"@en, "Ada" ;
   :birthPlace :London , :London ; :age 36 ; :knows [ :knows :a ] .
:London skos:prefLabel "London" . :lonely rdfs:label "nobody knows me" .
:knows rdfs:label "is acquainted with"@en .
"""


def test_names_descriptions_aliases_and_counts(tmp_path: Path) -> None:
    graph, report = imported(TURTLE.encode(), tmp_path, "g.ttl")
    assert report == {
        "entities": 3, "relations": 2, "triples": 3, "repeated": 1, "unnamed_entities": 1,
        "unnamed_relations": 1, "undescribed_entities": 2, "blank_nodes": 1,
        "attributes": 1, "deprecated": 0, "notes": {},
        "left_out": {"texts in other languages": 1},
        "left_out_by": {
            "texts in other languages": {"http://www.w3.org/2000/01/rdf-schema#label (ru)": 1},
        },
    }  # fmt: skip
    ada = graph.entities[graph.entities.index["http://ex.org/a"]]
    assert (ada.name, ada.description) == ("Ada", "age 36. a mathematician")
    assert graph.entities.column("label") == ["_:b1", "http://ex.org/London", "http://ex.org/a"]
    assert [r.name for r in graph.relations] == ["birth place", "is acquainted with"]
    rows = pyarrow.csv.read_csv(
        tmp_path / "graph" / "entities.tsv",
        parse_options=pyarrow.csv.ParseOptions(delimiter="\t", quote_char=False),
    ).to_pylist()
    assert {row["label"]: row["aliases"] for row in rows}["http://ex.org/a"] == "Countess"
    card = folder_card(tmp_path / "graph")
    assert card is not None
    assert check_graph(graph, card.counts)["mismatches"] == {}
    russian, _ = imported(TURTLE.encode(), tmp_path / "ru", "g.ttl", language=["ru", "en"])
    assert russian.entities[2].name == "Ада"


def test_blank_nodes_of_two_files_are_two(tmp_path: Path) -> None:
    for name in ("a.nt", "b.nt"):
        (tmp_path / name).write_text("_:x <http://p> <http://b> .\n")
    report = kgmlm.import_graph([tmp_path / "a.nt", tmp_path / "b.nt"], tmp_path / "g", progress=False)
    assert (report["triples"], report["blank_nodes"]) == (2, 2)


def test_properties_of_wikidata_in_rdf_have_their_names(tmp_path: Path) -> None:
    wikidata = "http://www.wikidata.org"
    kinds = ("direct/", "statement/", "qualifier/value/", "")
    triples = [
        (f"{wikidata}/entity/Q1", f"{wikidata}/prop/{kind}P31", f"{wikidata}/entity/Q2") for kind in kinds
    ]
    texts = [("http://www.wikidata.org/entity/P31", "name", "instance of", "en")]
    graph, report = imported(written("ntriples", triples, texts), tmp_path, "g.nt")
    assert [relation.name for relation in graph.relations] == ["instance of"] * 4
    assert report["unnamed_relations"] == 0


def test_entities_of_wikidata_as_its_dumps_have_them(tmp_path: Path) -> None:
    """A windmill as Wikidata answers (2021; CC0), without some claims; then two lines of a dump of 2014."""
    graph, report = imported(WIKIDATA.encode(), tmp_path / "api", "mill.json", language=["en"])
    kinds = ("Q38720", "Q3851468", "Q623605")
    assert known(graph) == [("Q14517013", "P17", "Q31"), *(("Q14517013", "P31", kind) for kind in kinds)]
    mill = graph.entities[graph.entities.find("Q14517013") or 0]
    assert (mill.name, mill.description) == ("Peace Mill", "")
    assert report["left_out"] == {"literals": 3, "texts in other languages": 2}
    graph, _ = imported(WIKIDATA.encode(), tmp_path / "nl", "mill.json", language=["nl"])
    mill = graph.entities[graph.entities.find("Q14517013") or 0]
    assert (mill.name, mill.description) == ("Vredesmolen", "molen in West-Vlaanderen")
    graph, _ = imported(WIKIDATA_2014.encode(), tmp_path / "dump", "dump.json")
    assert known(graph) == [("Q8", "P31", "Q331769"), ("Q8", "P31", "Q9415"), ("Q33", "P31", "Q6256")]


def test_triples_that_look_like_a_header_and_odd_texts_survive(tmp_path: Path) -> None:
    graph, _ = imported(b"<head:> <relation:> <tail:> .\n<a:> <relation:> <tail:> .", tmp_path, "g.nt")
    assert sorted(known(graph)) == [("a:", "relation:", "tail:"), ("head:", "relation:", "tail:")]
    line = json.dumps(
        {"id": "Q1", "labels": {"en": {"value": "half \ud800 of one"}}, "claims": {"P1": [claim("Q2")]}}
    )
    graph, _ = imported(line.encode(), tmp_path / "wikidata", "g.json")
    assert graph.entities[0].name == "half ? of one"


def test_memory_and_parts_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    triples = [(f"http://e/{i * 7 % 50}", "http://p", f"http://e/{i * i % 50}") for i in range(400)]
    plain, _ = imported(written("ntriples", triples), tmp_path / "plain", "g.nt")
    for name, few in (("_HEADS", 3), ("_BUFFERED", 7), ("_ROWS", 2)):
        monkeypatch.setattr(importer, name, few)
    parts, report = imported(written("ntriples", triples), tmp_path / "parts", "g.nt")
    assert known(parts) == known(plain)
    assert report["triples"] == len(set(triples)) == len(known(parts))
    a, b = ((tmp_path / x / "graph" / "train.tsv").read_bytes() for x in ("plain", "parts"))
    assert a == b


def test_a_split_is_a_dataset_with_all_that_was_read(tmp_path: Path) -> None:
    triples = [(f"Q{i % 9}", "P1", f"Q{i % 11}") for i in range(99)]
    data = wikidata(triples, [("Q1", "name", HOSTILE, "en"), ("Q1", "alias", "one", "en")])
    whole, _ = imported(data, tmp_path / "whole", "g.json")
    split, report = imported(data, tmp_path / "split", "g.json", split=True, seed=3)
    assert sorted(known(split)) == sorted(known(whole))
    assert report["splits"] == {name: len(part) for name, part in split.splits.items()}
    assert len(split.splits["valid"]) == len(split.splits["test"]) == 10
    assert "one" in (tmp_path / "split" / "graph" / "entities.tsv").read_text("utf-8")
    card = folder_card(tmp_path / "split" / "graph")
    assert card is not None
    assert check_graph(split, card.counts)["mismatches"] == {}


def test_nothing_half_written_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "g.nt").write_text("<http://a> <http://p> <http://b> .\n" * 9)

    def full(self: Importer, card_of: tuple[str, str]) -> None:
        raise OSError(28, "No space left on device", "train.tsv")

    monkeypatch.setattr(Importer, "write", full)
    with pytest.raises(OSError, match="No space"):
        kgmlm.import_graph(tmp_path / "g.nt", tmp_path / "graph", progress=False)
    assert [p.name for p in tmp_path.iterdir()] == ["g.nt"]


def test_the_command(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.ttl").write_text(TURTLE, "utf-8")
    (tmp_path / "b.nt.gz").write_bytes(gzip.compress(b"<http://a> <http://p> <http://b> .\n"))
    done = cli("data", "import", "a.ttl", "b.nt.gz", "--output", "g", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4 triples of 5 entities and 3 relations" in done.stdout
    assert "too few can leave training" in done.stderr, "of four triples none can be held out"
    report = json.loads(cli("data", "check", tmp_path / "g", "--json").stdout)
    assert report["mismatches"] == {}
    done = cli("data", "import", "a.ttl", "--output", "h", "--language", "ru", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["left_out"] == {"texts in other languages": 3}


def test_bad_input_is_one_sentence_and_leaves_nothing(cli: Cli, tmp_path: Path) -> None:
    files = {
        "cut.ttl": TURTLE.encode()[:-40],
        "cut.nt.gz": gzip.compress(os.urandom(999))[:500],
        "wrong.nq": b"PK\x03\x04",
        "empty.nt": b"",
        "literals.nt": b'<http://a> <http://p> "x" .\n',
        "page.json": b"<html>\n",
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    before = sorted(p.name for p in tmp_path.iterdir())
    words = ("cut off", "cut off", "not a zip file", "no triple", "1 literals", "not a Wikidata dump")
    for name, word in zip(files, words, strict=True):
        refused(cli("data", "import", tmp_path / name, "--output", tmp_path / "new" / "g", "-q"), word)
    for arguments, word in (
        (("missing.nt",), "no file missing.nt"),
        (("wrong.nq", "--format", "n4"), "no format 'n4'"),
        ((tmp_path / "new",), "laid out as none"),
        (("empty.nt", "--output", tmp_path), "not empty"),
    ):
        refused(cli("data", "import", "--output", tmp_path / "g", *arguments, "-q", cwd=tmp_path), word)
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "new") == before
    assert not any(tmp_path.glob("new/*"))


def test_no_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least one"):
        kgmlm.import_graph([], tmp_path / "g")


NAMES_OF = """
@prefix : <http://ex.org/> . @prefix foaf: <http://xmlns.com/foaf/0.1/> .
@prefix dct: <http://purl.org/dc/terms/> .
@prefix dc: <http://purl.org/dc/elements/1.1/> . @prefix skos: <http://www.w3.org/2004/02/skos/core#> .
:a :p :b, :c . :a foaf:name "Ann" ; dct:title "Dr" ; skos:definition "a person"@eng . :b dct:title "Bob" ;
dc:title "no" ; dct:description "another"@en-GB . :c dc:title "Cy" ; dc:description "a third" .
"""


def test_names_and_descriptions_of_other_vocabularies(tmp_path: Path) -> None:
    graph, report = imported(NAMES_OF.encode(), tmp_path, "g.ttl")
    assert graph.entities.column("name") == ["Ann", "Bob", "Cy"]
    assert graph.entities.column("description") == ["a person", "another", "a third"]
    assert report["left_out"] == {}


def test_what_is_said_of_statements_leaves_no_remnant(tmp_path: Path) -> None:
    data = (
        "@prefix : <http://ex.org/> .\n:a :p :b {| :source :c ; :since 2001 |} .\n"
        "_:s :says _:r . _:r <http://www.w3.org/1999/02/22-rdf-syntax-ns#reifies> <<( :d :p :e )>> . "
        ":d :p :e ."
    )
    graph, report = imported(data.encode(), tmp_path, "g.ttl")
    assert sorted(known(graph)) == [(f"http://ex.org/{h}", "http://ex.org/p", f"http://ex.org/{t}")
                                    for h, t in ("ab", "de")]  # fmt: skip
    assert (report["repeated"], report["left_out"]["triples about statements"]) == (0, 2)


def test_nameless_blank_nodes_are_counted(tmp_path: Path) -> None:
    graph, _ = imported(b"<http://a> <http://p> [ <http://p> <http://b> ] .", tmp_path, "g.ttl")
    assert check_graph(graph, None)["nameless_blank_nodes"] == 1


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that prints nothing."""

    def log_message(self, *_: Any) -> None:
        pass


def test_a_file_of_the_web_is_fetched_once(tmp_path: Path, command: Cli) -> None:
    cli = partial(command, KGMLM_CACHE=str(tmp_path / "cache"))
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "my graph.nt").write_text("<http://a> <http://p> <http://b> .\n")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "web"))
    Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}"
    first = cli("data", "import", f"{base}/my%20graph.nt?download=1", "--output", tmp_path / "one")
    assert first.returncode == 0, first.stderr
    assert "1 triple of 2 entities" in first.stdout
    refused(
        cli("data", "import", f"{base}/none.nt", "--output", tmp_path / "two"), "could not be fetched: 404"
    )
    server.shutdown()
    server.server_close()
    again = cli("data", "import", f"{base}/my%20graph.nt?download=1", "--output", tmp_path / "three")
    assert again.returncode == 0, again.stderr
    assert "delete it to fetch the file again" in again.stderr
    refused(cli("data", "import", f"{base}/other.nt", "--output", tmp_path / "four"), "could not be fetched")


def test_relations_of_obo_have_names_and_bookkeeping_is_left_out(tmp_path: Path) -> None:
    obo, own = "http://purl.obolibrary.org/obo", "http://www.geneontology.org/formats/oboInOwl"
    data = f"""
    <{obo}/PATO_1> <{obo}/RO_0002604> <{obo}/PATO_2> . <{obo}/PATO_1> <{obo}/BFO_0000051> <{obo}/PATO_3> .
    <{obo}/PATO_1> <{own}#inSubset> <{obo}/pato#slim> .
    <{obo}/PATO_1> <{obo}/IAO_0000233> <http://ex.org/issues/1> .
    <{obo}/PATO_3> <{obo}/RO_0002503> <{obo}/PATO_2> .
    <{obo}/RO_0002503> <http://www.w3.org/2000/01/rdf-schema#label> "toward" .
    """
    graph, report = imported(data.encode(), tmp_path, "a.ttl")
    assert {r.name for r in graph.relations} == {"is opposite of", "has part", "toward"}
    assert report["unnamed_relations"] == 0
    assert report["left_out"] == {"about records": 2}


HEADER = """<?xml version="1.0"?>
<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:owl="http://www.w3.org/2002/07/owl#"
  xmlns:rdfs="http://www.w3.org/2000/01/rdf-schema#" xmlns:skos="http://www.w3.org/2004/02/skos/core#"
  xmlns:dcterms="http://purl.org/dc/terms/" xmlns:oboInOwl="http://www.geneontology.org/formats/oboInOwl#"
  xmlns="http://edamontology.org/" xml:base="https://raw.githubusercontent.com/owlcs/pizza-ontology/pizza.owl">
"""
# From the Unified Astronomy Thesaurus and EDAM (CC BY-SA 4.0), pizza.owl (CC BY 3.0) and TaDiRAH (CC0).
REAL = {
    "uat.rdf": (
        """
        <rdf:Description rdf:about="http://astrothesaurus.org/uat/227">
          <dcterms:modified rdf:datatype="http://www.w3.org/2001/XMLSchema#dateTime"
          >2016-09-06T03:28:18.000Z</dcterms:modified>
          <rdf:type rdf:resource="http://www.w3.org/2004/02/skos/core#Concept"/>
          <skos:broader rdf:resource="http://astrothesaurus.org/uat/684"/>
          <skos:prefLabel xml:lang="en">Chlorofluorocarbons</skos:prefLabel>
        </rdf:Description>
        """,
        {("Chlorofluorocarbons", "broader", "684")},
        {"dates of records": 1, "types that only RDF, OWL and SKOS have": 1},
    ),
    "edam.owl": (
        """
        <owl:Class rdf:about="http://edamontology.org/operation_0310">
          <rdfs:subClassOf rdf:resource="http://edamontology.org/operation_2478"/>
          <rdfs:subClassOf>
            <owl:Restriction>
              <owl:onProperty rdf:resource="http://edamontology.org/has_output"/>
              <owl:someValuesFrom rdf:resource="http://edamontology.org/data_0925"/>
            </owl:Restriction>
          </rdfs:subClassOf>
          <created_in>beta12orEarlier</created_in>
          <oboInOwl:hasDefinition>Combine (align and merge) overlapping fragments of a DNA sequence to
            reconstruct the original sequence.</oboInOwl:hasDefinition>
          <oboInOwl:hasNarrowSynonym>Metagenomic assembly</oboInOwl:hasNarrowSynonym>
          <oboInOwl:inSubset rdf:resource="http://purl.obolibrary.org/obo/edam#operations"/>
          <rdfs:label>Sequence assembly</rdfs:label>
        </owl:Class>
        """,
        {
            ("Sequence assembly", "sub class of", "operation 2478"),
            ("Sequence assembly", "has output", "data 0925"),
        },
        {"types that only RDF, OWL and SKOS have": 1, "literals": 1, "about records": 1},
    ),
    "pizza.owl": (
        """
        <owl:Class rdf:about="#Rosa">
          <rdfs:label xml:lang="pt">Rosa</rdfs:label>
          <rdfs:subClassOf>
            <owl:Restriction>
              <owl:onProperty rdf:resource="#hasTopping"/>
              <owl:someValuesFrom rdf:resource="#GorgonzolaTopping"/>
            </owl:Restriction>
          </rdfs:subClassOf>
        </owl:Class>
        """,
        {("Rosa", "has topping", "Gorgonzola Topping")},
        {"types that only RDF, OWL and SKOS have": 1, "texts in other languages": 1},
    ),
    "tadirah.ttl": (
        """
        @prefix skos: <http://www.w3.org/2004/02/skos/core#> .
        <http://tadirah.dariah.eu/vocab/index.php?tema=18&/translation> skos:closeMatch
          <https://vocabs.dariah.eu/tadirah/translating> .
        """,
        {("translation", "close match", "translating")},
        {},
    ),
}


@pytest.mark.parametrize("name", REAL)
def test_real_vocabularies(name: str, tmp_path: Path) -> None:
    data, triples, left = REAL[name]
    whole = data if name.endswith(".ttl") else f"{HEADER}{data}</rdf:RDF>"
    graph, report = imported(whole.encode(), tmp_path, name)
    result = graph.triples("train")
    assert set(graph.named(result)) == triples
    assert report["left_out"] == left
    if name == "edam.owl":
        assembly = next(e for e in map(graph.entities.__getitem__, range(3)) if e.name == "Sequence assembly")
        assert assembly.description.startswith("Combine (align and merge) overlapping fragments")
        assert "Metagenomic assembly" in str(graph.entities.table.column("aliases").to_pylist())


def names_of(graph: KnowledgeGraph) -> dict[str, str]:
    return {e.label: e.name for e in map(graph.entities.__getitem__, range(len(graph.entities)))}


def nt(*triples: tuple[str, str, str]) -> bytes:
    return "".join(f"<{h}> <{r}> <{t}> .\n" for h, r, t in triples).encode()


def test_names_are_what_follows_the_common_part_of_iris(tmp_path: Path) -> None:
    base, p = "https://e.org/things/", "https://e.org/p"
    pairs = [
        (f"{base}AC/DC", f"{base}Rock"),
        (f"{base}Rome", f"{base}Oslo"),
        ("https://e.org/people/Ada", f"{base}Rome"),
    ]
    graph, _ = imported(nt(*((h, p, t) for h, t in pairs)), tmp_path, "a.nt")
    assert [names_of(graph)[f"{base}{x}"] for x in ("AC/DC", "Rome")] == ["AC/DC", "Rome"]
    assert names_of(graph)["https://e.org/people/Ada"] == "Ada"
    dbpedia = [("http://dbpedia.org/resource/OS/2", p, "http://dbpedia.org/resource/IBM")]
    graph, _ = imported(nt(*dbpedia), tmp_path / "d", "a.nt")
    assert sorted(names_of(graph).values()) == ["IBM", "OS/2"]
    cards = [
        ("https://ada.example/card#me", p, "http://e.org/onto#AC/DC"),
        ("https://b.example/bob#this", p, "http://e.org/x"),
    ]
    graph, _ = imported(nt(*cards), tmp_path / "c", "a.nt")
    assert sorted(names_of(graph).values()) == ["AC/DC", "bob", "card", "x"]
    report = kgmlm.data.check(tmp_path / "c" / "graph").values
    assert report["named_by_iri"] == 4


def test_blanks_around_an_iri_are_no_part_of_it(tmp_path: Path) -> None:
    data = b"<https://e.org/1> <https://e.org/p> < https://e.org/2> .\n<https://e.org/3> <https://e.org/p> <https://e.org/2 > .\n"
    graph, _ = imported(data, tmp_path, "a.nt")
    assert graph.entities.column("label") == ["https://e.org/1", "https://e.org/2", "https://e.org/3"]


W = "http://www.wikidata.org"
ARTICLE, SCHEMA = "https://en.wikipedia.org/wiki/Ada", "http://schema.org/"
TRUTHY = nt(
    (f"{W}/entity/Q1", "http://www.w3.org/1999/02/22-rdf-syntax-ns#type", "http://wikiba.se/ontology#Item"),
    ("https://www.wikidata.org/wiki/Special:EntityData/Q1", f"{SCHEMA}about", f"{W}/entity/Q1"),
    (ARTICLE, f"{SCHEMA}about", f"{W}/entity/Q1"),
    (ARTICLE, f"{SCHEMA}isPartOf", "https://en.wikipedia.org/"),
    (ARTICLE, "http://www.w3.org/1999/02/22-rdf-syntax-ns#type", f"{SCHEMA}Article"),
    (f"{W}/entity/Q1", f"{W}/prop/direct/P31", f"{W}/entity/Q5"),
    (f"{W}/entity/Q1", f"{W}/prop/direct/P18", "http://commons.wikimedia.org/wiki/Special:FilePath/A.jpg"),
    (f"{W}/entity/Q1", f"{W}/prop/direct/P856", "https://ada.example/"),
    (f"{W}/entity/Q1", f"{W}/prop/direct-normalized/P214", "http://viaf.org/viaf/1"),
    (f"{W}/entity/Q1", f"{W}/prop/direct/P40", f"{W}/.well-known/genid/0a1b"),
    (f"{W}/entity/P31", "http://wikiba.se/ontology#directClaim", f"{W}/prop/direct/P31"),
) + (
    f'<{W}/entity/Q1> <http://wikiba.se/ontology#sitelinks> "3"^^<http://www.w3.org/2001/XMLSchema#integer> .\n'
    f'<{W}/entity/P31> <http://www.w3.org/2000/01/rdf-schema#label> "instance of"@en .\n'
).encode()  # fmt: skip
DBPEDIA = nt(
    (
        "http://dbpedia.org/resource/Rome",
        "http://dbpedia.org/ontology/country",
        "http://dbpedia.org/resource/Italy",
    ),
    *(
        ("http://dbpedia.org/resource/Rome", predicate, f"http://dbpedia.org/resource/X{n}")
        for n, predicate in enumerate(
            (
                "http://dbpedia.org/ontology/wikiPageWikiLink",
                "http://dbpedia.org/ontology/thumbnail",
                "http://xmlns.com/foaf/0.1/depiction",
                "http://www.w3.org/ns/prov#wasDerivedFrom",
                "http://www.w3.org/2002/07/owl#sameAs",
            )
        )
    ),
)


@pytest.mark.parametrize(("data", "triples", "left"), [(TRUTHY, 1, 11), (DBPEDIA, 1, 5)])
def test_pages_records_and_identifiers_are_left_out_and_counted(
    data: bytes, triples: int, left: int, tmp_path: Path
) -> None:
    graph, report = imported(data, tmp_path, "a.nt")
    assert (len(graph.triples("train")), sum(report["left_out"].values())) == (triples, left)
    assert report["attributes"] == 0
    kept, _ = imported(DBPEDIA, tmp_path / "k", "a.nt", keep_only=["http://xmlns.com/foaf/0.1/depiction"])
    assert len(kept.triples("train")) == 1, "what is asked for is kept"


def test_what_is_said_of_properties_is_left_out_and_counted(tmp_path: Path) -> None:
    data = b"""@prefix : <http://e.org/> . @prefix owl: <http://www.w3.org/2002/07/owl#> .
@prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
:partOf a owl:ObjectProperty ; rdfs:label "part of" ; rdfs:subPropertyOf :overlaps ; owl:inverseOf :hasPart ;
  rdfs:domain :Thing ; owl:propertyChainAxiom ( :partOf :partOf ) ; :seeAlso :Heart .
:overlaps a owl:ObjectProperty . :Heart :partOf :Body ; :about :overlaps ."""
    graph, report = imported(data, tmp_path, "o.ttl")
    assert graph.named(graph.triples("train")) == [("Heart", "part of", "Body")]
    assert report["left_out"]["axioms about properties"] == 4
    assert report["left_out"]["triples of properties"] == 2


def test_reified_associations_are_triples(tmp_path: Path) -> None:
    oban, relation = "http://purl.org/oban/association_has_", "http://purl.obolibrary.org/obo/RO_0002200"
    align = "http://knowledgeweb.semanticweb.org/heterogeneity/alignment#"
    rows = []
    for i in range(2):
        node = f"http://e.org/assoc{i}"
        rows += [
            (node, f"{oban}subject", f"http://e.org/d{i}"),
            (node, f"{oban}predicate", relation),
            (node, f"{oban}object", f"http://e.org/p{i}"),
            (node, "http://e.org/source", "http://e.org/paper"),
            (f"http://e.org/cell{i}", f"{align}entity1", f"http://e.org/d{i}"),
            (f"http://e.org/cell{i}", f"{align}entity2", f"http://f.org/d{i}"),
        ]
    rows.append(("http://e.org/half", f"{oban}subject", "http://e.org/d0"))
    graph, report = imported(nt(*rows), tmp_path, "a.nt")
    assert set(graph.named(graph.triples("train"))) == {
        ("d0", "has phenotype", "p0"),
        ("d1", "has phenotype", "p1"),
        ("d0", "exact match", "d0"),
        ("d1", "exact match", "d1"),
    }
    assert report["left_out"]["triples about statements"] == 2
    assert report["left_out"]["associations without a head, a relation or a tail"] == 1


JSON_LD = '{"@context": "%s", "@type": "Organization", "@id": "https://acme.example/", "name": "Acme", "founder": {"@type": "Person", "@id": "https://acme.example/ada", "name": "Ada"}}'


def test_contexts_of_json_ld(tmp_path: Path) -> None:
    for address in ("https://schema.org", "http://schema.org/", "https://schema.org/docs/jsonldcontext.json"):
        folder = tmp_path / address.replace("/", "_")
        graph, _ = imported(
            (JSON_LD % address).encode(),
            folder,
            "a.jsonld",
            skip=["http://www.w3.org/1999/02/22-rdf-syntax-ns#type"],
        )
        assert graph.named(graph.triples("train")) == [("Acme", "founder", "Ada")]
    other = (JSON_LD % "https://acme.example/context.jsonld").encode()
    with pytest.raises(DataError, match=r"context is at https://acme\.example.*--context"):
        imported(other, tmp_path / "o", "a.jsonld")
    (tmp_path / "context.json").write_text('{"@context": {"@vocab": "http://schema.org/"}}')
    graph, _ = imported(other, tmp_path / "c", "a.jsonld", context=tmp_path / "context.json")
    assert len(graph.triples("train")) == 3


@pytest.mark.parametrize("name", ["a.nt", "a.ntx", "a.ttl", "a.nq"])
def test_statements_about_triples_are_counted(name: str, tmp_path: Path) -> None:
    data = nt(
        ("http://e.org/a", "http://e.org/capital", "http://e.org/b"),
        ("http://e.org/c", "http://e.org/spouse", "http://e.org/d"),
    )
    star = b"<< <http://e.org/c> <http://e.org/spouse> <http://e.org/d> >> <http://e.org/since> <http://e.org/y> .\n"
    graph, report = imported(star + data if name != "a.ttl" else data + star, tmp_path, name)
    assert len(graph.triples("train")) == 2
    assert report["left_out"]["statements about triples"] == 1


def test_thesauri_leave_out_schemes_and_keep_foreign_labels_as_aliases(tmp_path: Path) -> None:
    data = b"""@prefix : <http://e.org/> . @prefix skos: <http://www.w3.org/2004/02/skos/core#> .
:honey skos:prefLabel "honey"@en , "Honig"@de ; skos:altLabel "miel"@fr ; skos:broader :food ; skos:inScheme :s .
:food skos:prefLabel "food"@en ; skos:topConceptOf :s . :s skos:hasTopConcept :food ."""
    graph, report = imported(data, tmp_path, "a.ttl")
    assert graph.named(graph.triples("train")) == [("honey", "broader", "food")]
    assert report["left_out"] == {"about schemes": 3}
    assert set(graph.entities[graph.entities.index["http://e.org/honey"]].aliases) == {"Honig", "miel"}


def test_associations_that_say_less_or_more_than_a_triple(tmp_path: Path) -> None:
    prefix, biolink = "http://e.org/", "https://w3id.org/biolink/vocab/"
    align = "http://knowledgeweb.semanticweb.org/heterogeneity/alignment#"
    data = f"""@prefix : <{prefix}> . @prefix b: <{biolink}> . @prefix al: <{align}> .
:no b:subject :g1 ; b:object :d1 .
:not b:subject :g2 ; b:predicate :treats ; b:object :d2 ; b:negated true .
:many b:subject :g3 , :g4 ; b:predicate :treats ; b:object :d3 .
:old b:subject :g5 ; b:relation :causes ; b:object :d5 .
:c1 al:entity1 :g1 ; al:entity2 :d1 ; al:relation "%" . :c2 al:entity1 :g2 ; al:entity2 :d2 ; al:measure 0.0 .
:c3 al:entity1 :g3 ; al:entity2 :d3 ; al:relation "=" ; al:measure 1.0 .""".encode()
    graph, report = imported(data, tmp_path, "a.ttl")
    assert set(graph.named(graph.triples("train"))) == {
        ("g3", "treats", "d3"),
        ("g4", "treats", "d3"),
        ("g5", "causes", "d5"),
        ("g3", "exact match", "d3"),
    }
    assert report["left_out"]["associations that are negated"] == 3
    assert report["left_out"]["associations without a head, a relation or a tail"] == 1


def test_links_between_pages_are_triples(tmp_path: Path) -> None:
    rome, italy = ("https://en.wikipedia.org/wiki/Rome", "https://en.wikipedia.org/wiki/Italy")
    graph, _ = imported(nt((rome, "http://e.org/linksTo", italy)), tmp_path, "a.nt")
    assert graph.named(graph.triples("train")) == [("Rome", "links to", "Italy")]


def test_names_of_nested_folders_are_their_last_part(tmp_path: Path) -> None:
    base, p = "http://data.e.org/resource/", "http://data.e.org/resource/movie/actor"
    rows = [
        (f"{base}film/{n}", p, f"{base}actor/{name}") for n, name in enumerate(("Tom_Hanks", "Ann", "Bob"))
    ]
    graph, _ = imported(nt(*rows), tmp_path, "a.nt")
    assert {triple[1:] for triple in graph.named(graph.triples("train"))} == {
        ("actor", "Tom Hanks"),
        ("actor", "Ann"),
        ("actor", "Bob"),
    }


def test_a_foreign_thesaurus_says_which_language_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = b"""@prefix : <http://e.org/> . @prefix skos: <http://www.w3.org/2004/02/skos/core#> .
:a skos:prefLabel "Apfel"@de ; skos:broader :f . :f skos:prefLabel "Frucht"@de ."""
    (tmp_path / "a.ttl").write_bytes(data)
    kgmlm.import_graph(tmp_path / "a.ttl", tmp_path / "g")
    assert "--language de" in capsys.readouterr().err
