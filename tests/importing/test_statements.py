from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyoxigraph as ox
import pytest

from kgmlm.core.errors import DataError
from kgmlm.importing.statements import (
    READERS,
    SUFFIXES,
    format_of,
    read_statements,
)
from kgmlm.importing.vocabulary import TEXT_PREDICATES, Kind

REGISTRY = READERS
RDF = {
    "ntriples": ox.RdfFormat.N_TRIPLES,
    "nquads": ox.RdfFormat.N_QUADS,
    "turtle": ox.RdfFormat.TURTLE,
    "trig": ox.RdfFormat.TRIG,
    "rdfxml": ox.RdfFormat.RDF_XML,
    "n3": ox.RdfFormat.N3,
    "jsonld": ox.RdfFormat.JSON_LD,
}


def zipped(data: bytes) -> bytes:
    with zipfile.ZipFile(made := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("graph", data)
    return made.getvalue()


PACKED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: pa.compress(data, "zstd", asbytes=True),
    ".zip": zipped,
}
LABEL, COMMENT, ALIAS = (
    next(iri for iri, (kind, order) in TEXT_PREDICATES.items() if kind == wanted)
    for wanted in ("name", "description", "alias")
)
HOSTILE = "He said \"𝄞 \\ مرحبا\u200f\",\n\tthen 😀 <tag> & 'x' \u2028 end"


class Told:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.triples: list[tuple[str, str, str]] = []
        self.texts: list[tuple[str, str, str, str]] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.left: Counter[str] = Counter()
        self.blank = 0
        self.reifiers: list[str] = []
        self.texts_by: Mapping[str, tuple[Kind, int]] = TEXT_PREDICATES
        self.kept: frozenset[str] = frozenset()

    def triple(self, head: str, relation: str, tail: str) -> None:
        self.triples.append((head, relation, tail))

    def none(self, node: str) -> None: ...

    def deprecated(self, label: str) -> None: ...

    def text(self, subject: str, kind: str, value: str, language: str, order: int, predicate: str) -> None:
        self.texts.append((subject, kind, value, language))

    def value(self, node: str, value: str, language: str) -> None:
        self.texts.append((node, "value", value, language))

    def text_node(self, subject: str, predicate: str, node: str) -> None:
        self.triples.append((subject, predicate, node))

    def attribute(self, subject: str, predicate: str, value: str) -> None:
        self.attributes.append((subject, predicate, value))

    def left_out(self, why: str, predicate: str) -> None:
        self.left[why] += 1

    def property(self, label: str) -> None: ...

    def alignment(self, node: str) -> None: ...

    def association(self, node: str, part: str, value: str) -> None: ...

    def reifier(self, label: str) -> None:
        self.reifiers.append(label)

    def new_blank(self) -> str:
        self.blank += 1
        return f"_:{self.blank}"


def iri(format: str, label: str) -> str:
    """A label of a format's own kind."""
    return label if format == "wikidata" else f"http://ex.org/{label}"


def wikidata(triples: Iterable[tuple[str, str, str]], texts: Iterable[tuple[str, str, str, str]]) -> bytes:
    """A dump as Wikidata writes it."""
    columns = {"name": "labels", "description": "descriptions"}
    entities: dict[str, dict[str, Any]] = {}

    def of(label: str) -> dict[str, Any]:
        return entities.setdefault(label, {"type": "item", "id": label, "labels": {}, "claims": {}})

    for subject, kind, value, language in texts:
        text = {"language": language, "value": value}
        if kind == "alias":
            of(subject).setdefault("aliases", {}).setdefault(language, []).append(text)
        else:
            of(subject).setdefault(columns[kind], {})[language] = text
    for head, relation, tail in triples:
        of(head)["claims"].setdefault(relation, []).append(claim(tail))
    lines = [json.dumps(entity, ensure_ascii=False) for entity in entities.values()]
    return ("[\n" + ",\n".join(lines) + "\n]\n").encode()


def claim(tail: str, rank: str = "normal") -> dict[str, Any]:
    value = {"entity-type": "item", "id": tail, "numeric-id": int(tail[1:])}
    datavalue = {"type": "wikibase-entityid", "value": value}
    return {"rank": rank, "mainsnak": {"snaktype": "value", "datavalue": datavalue}}


def written(
    format: str, triples: Iterable[tuple[str, str, str]], texts: Iterable[tuple[str, str, str, str]] = ()
) -> bytes:
    """A file of a format that says so."""
    if format == "wikidata":
        return wikidata(triples, texts)
    predicates = {"name": LABEL, "description": COMMENT, "alias": ALIAS}

    def node(label: str) -> ox.NamedNode | ox.BlankNode:
        return ox.BlankNode(label[2:]) if label.startswith("_:") else ox.NamedNode(label)

    rows = [ox.Quad(node(h), ox.NamedNode(r), node(t)) for h, r, t in triples]
    for subject, kind, value, language in texts:
        literal = ox.Literal(value, language=language or None)
        rows.append(ox.Quad(node(subject), ox.NamedNode(predicates[kind]), literal))
    if format in ("nquads", "trig"):
        graph = ox.NamedNode("http://ex.org/graph")
        data = ox.serialize(
            (ox.Quad(q.subject, q.predicate, q.object, graph) for q in rows), format=RDF[format]
        )
    else:
        data = ox.serialize((quad.triple for quad in rows), format=RDF[format])
    assert data is not None
    return data


@pytest.mark.parametrize("format", REGISTRY)
class TestEveryFormat:
    def test_what_is_read_is_what_was_written(self, format: str, tmp_path: Path) -> None:
        a, b, p = (iri(format, x) for x in ("Q1", "Q2", "P3"))
        triples = [(a, p, b), (a, p, b), (b, p, a), (a, p, a)]
        texts = [(a, "name", HOSTILE, "en"), (a, "name", "שלום", "he"), (b, "description", HOSTILE, "de-AT")]
        texts += [(p, "name", "knows", "en"), (a, "alias", "A|B", "en"), (a, "alias", HOSTILE, "en")]
        path = tmp_path / "graph"
        path.write_bytes(written(format, triples, texts))
        messages, read = Told(), 0

        def advance(n: int) -> None:
            nonlocal read
            read += n

        read_statements(path, messages, format, advance=advance)
        assert read == path.stat().st_size
        assert Counter(messages.triples) in (Counter(triples), Counter(set(triples)))
        assert {(*text[:3], text[3].casefold()) for text in messages.texts} == {
            (*text[:3], text[3].casefold()) for text in texts
        }

    @pytest.mark.parametrize("suffix", ["", *PACKED])
    def test_a_file_cut_anywhere_within_a_statement_is_refused(
        self, format: str, suffix: str, tmp_path: Path
    ) -> None:
        labels = [iri(format, f"Q{i}") for i in range(40)]
        data = written(format, [(x, iri(format, "P1"), labels[0]) for x in labels]).rstrip()
        whole, path = data, tmp_path / f"graph{suffix}"
        if suffix:
            whole = PACKED[suffix](data)
        path.write_bytes(whole)
        read_statements(path, Told(), format)
        ends = list(range(len(whole) // 2, len(whole), max(1, len(whole) // 40)))
        if not suffix and format in ("ntriples", "nquads", "turtle", "trig", "n3"):
            ends = [end for end in ends if data[:end].rstrip()[-1:] not in (b".", b"}")]
        for end in ends:
            path.write_bytes(whole[:end])
            with pytest.raises(DataError, match=r"graph.* is cut off"):
                read_statements(path, Told(), format)

    def test_another_format_is_refused(self, format: str, tmp_path: Path) -> None:
        deep = b'{"a":' * 100_000
        for n, data in enumerate(
            (b"\x89PNG\r\n\x1a\n", b"head,relation,tail\na,b,c\n", b'{"a": [1]}\n', deep)
        ):
            path = tmp_path / f"{n}"
            path.write_bytes(data)
            with pytest.raises(DataError, match=r"cut off|no id"):
                read_statements(path, Told(), format)

    def test_its_name_says_its_format(self, format: str, tmp_path: Path) -> None:
        suffixes = [suffix for suffix, name in SUFFIXES.items() if name == format]
        assert suffixes
        for suffix in suffixes:
            for name in (f"a.b{suffix}", f"A{suffix.upper()}", *(f"x{suffix}{x}" for x in PACKED)):
                assert format_of(tmp_path / name) == format


@pytest.mark.parametrize("name", ["graph", "graph.txt", "graph.gz", ".gz", "graph.zip"])
def test_a_name_that_says_no_format_is_refused(name: str) -> None:
    with pytest.raises(DataError, match="--format names one of ntriples"):
        format_of(Path(name))


def read(data: bytes, format: str, folder: Path, **options: Any) -> Told:
    path, messages = folder / "graph", Told()
    path.write_bytes(data)
    read_statements(path, messages, format, **options)
    return messages


def test_blank_nodes_are_labeled_once_each(tmp_path: Path) -> None:
    messages = read(b"@prefix : <http://e/> . :a :p [ :q _:x ] . _:x :p :a .", "turtle", tmp_path)
    assert messages.blank == 2
    assert len({label for h, _, t in messages.triples for label in (h, t) if label.startswith("_:")}) == 2
    assert ("_:1", "http://e/p", "http://e/a") in messages.triples or (
        "_:2",
        "http://e/p",
        "http://e/a",
    ) in messages.triples


def test_relative_iris_need_a_base(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--base"):
        read(b"<#a> <#p> <#b> .", "turtle", tmp_path)
    messages = read(b"<#a> <#p> <#b> .", "turtle", tmp_path, base="http://e/x")
    assert messages.triples == [("http://e/x#a", "http://e/x#p", "http://e/x#b")]


def test_literals_and_statements_about_triples_are_counted(tmp_path: Path) -> None:
    data = b'@prefix : <http://e/> . :a :p "1", 7, <<( :a :p :b )>> .'
    messages = read(data, "turtle", tmp_path)
    assert messages.left == {"literals": 1, "statements about triples": 1}
    assert messages.attributes == [("http://e/a", "http://e/p", "7")]
    assert not messages.triples


def test_numbers_and_dates_are_attributes(tmp_path: Path) -> None:
    data = (
        b"@prefix : <http://e/> . @prefix xsd: <http://www.w3.org/2001/XMLSchema#> . "
        b':a :born "1815-12-10"^^xsd:date ; :height 1.6 ; :year "1815"^^xsd:gYear ; :famous true ; :id "x7"; '
        b':shape "POINT(1 2)"^^:wkt .'
    )
    messages = read(data, "turtle", tmp_path)
    values = {predicate.rsplit("/", 1)[-1]: value for _, predicate, value in messages.attributes}
    assert values == {"born": "1815-12-10", "height": "1.6", "year": "1815"}
    assert messages.left == {"literals": 3}
    amount = {"amount": "+250", "unit": "1", "upperBound": "+251"}
    time = {"time": "+1998-04-01T00:00:00Z", "precision": 11}
    claims = {
        "P1": [
            {
                "rank": "normal",
                "mainsnak": {"snaktype": "value", "datavalue": {"type": "quantity", "value": amount}},
            }
        ],
        "P2": [
            {
                "rank": "normal",
                "mainsnak": {"snaktype": "value", "datavalue": {"type": "time", "value": time}},
            }
        ],
    }
    messages = read(json.dumps({"id": "Q1", "claims": claims}).encode(), "wikidata", tmp_path)
    assert messages.attributes == [("Q1", "P1", "+250"), ("Q1", "P2", "+1998-04-01T00:00:00Z")]


def test_of_wikidata_the_truthy_claims_count(tmp_path: Path) -> None:
    string = {
        "rank": "normal",
        "mainsnak": {"snaktype": "value", "datavalue": {"type": "string", "value": "x"}},
    }
    unknown = {"rank": "normal", "mainsnak": {"snaktype": "somevalue"}}
    old = claim("Q9")
    del old["mainsnak"]["datavalue"]["value"]["id"]  # as dumps were written before 2016
    claims = {
        "P1": [claim("Q2"), claim("Q3", "preferred"), claim("Q4", "preferred"), claim("Q5", "deprecated")],
        "P2": [claim("Q2"), claim("Q5", "deprecated"), string, unknown],
        "P3": [claim("Q5", "deprecated")],
        "P4": [old],
    }
    messages = read(json.dumps({"id": "Q1", "claims": claims}).encode(), "wikidata", tmp_path)
    assert messages.triples == [
        ("Q1", "P1", "Q3"),
        ("Q1", "P1", "Q4"),
        ("Q1", "P2", "Q2"),
        ("Q1", "P4", "Q9"),
    ]
    assert messages.left == {"literals": 1, "claims without an item": 1}
    empty = b'[\n{"id": "Q1", "labels": [], "claims": []},\n{"id": "Q2", "labels": {}}\n]'
    assert not read(empty, "wikidata", tmp_path).triples
    api = json.dumps({"entities": {"Q1": {"id": "Q1", "claims": {"P4": [claim("Q2")]}}}}).encode()
    assert read(api, "wikidata", tmp_path).triples == [("Q1", "P4", "Q2")]


@pytest.mark.parametrize(
    "entity",
    [
        {"id": "Q1\t2"},
        {"id": 7},
        {"id": "Q1", "labels": {"en": "plain"}},
        {"id": "Q1", "claims": {"P1": [{"rank": "normal"}]}},
        {"id": "Q1", "claims": {"P\n1": [claim("Q2")]}},
        {"id": "Q1", "claims": 7},
    ],
)
def test_what_is_not_as_wikidata_has_it_is_refused(entity: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Wikidata"):
        read(json.dumps(entity).encode(), "wikidata", tmp_path)


XML = """<?xml version="1.0"{declared}?>
<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:e="http://ex.org/"
 xmlns:rdfs="http://www.w3.org/2000/01/rdf-schema#">
<rdf:Description rdf:about="http://ex.org/a"><e:p rdf:resource="http://ex.org/b"/>
<rdfs:label>Café {filler}</rdfs:label></rdf:Description></rdf:RDF>"""


@pytest.mark.parametrize(
    "encoding",
    ["utf-8", "utf8", "UTF8", "utf-8-sig", "iso-8859-1", "latin1", "iso-8859-15", "windows-1252", "utf-16",
     "utf-16-le", "utf-32"],
)  # fmt: skip
@pytest.mark.parametrize("filler", ["", "x" * 200_000])
def test_xml_is_read_in_its_encoding(encoding: str, filler: str, tmp_path: Path) -> None:
    declared = "" if encoding == "utf-8-sig" else f' encoding="{encoding.removesuffix("-le")}"'
    path, messages = tmp_path / "g.rdf", Told()
    path.write_bytes(XML.format(declared=declared, filler=filler).encode(encoding))
    read_statements(path, messages)
    assert [value for _, _, value, _ in messages.texts] == [f"Café {filler}"]
    assert messages.triples == [("http://ex.org/a", "http://ex.org/p", "http://ex.org/b")]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("name", ["g.nt", "g.ttl", "g.nt.xz", "g.nt.gz"])
def test_a_byte_order_mark_is_no_text(encoding: str, name: str, tmp_path: Path) -> None:
    data = "<http://a> <http://p> <http://b> .\n".encode(encoding)
    packed = {".xz": lzma.compress(data), ".gz": gzip.compress(data)}
    (tmp_path / name).write_bytes(packed.get(Path(name).suffix, data))
    messages = Told()
    read_statements(tmp_path / name, messages)
    assert messages.triples == [("http://a", "http://p", "http://b")]


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress)])
def test_a_small_file_that_fills_the_memory_is_refused(
    suffix: str, compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / f"g.json{suffix}"
    path.write_bytes(compress(b" " * 2**26) * 5)
    with pytest.raises(DataError, match=r"longer than|unpacks to more than 200 times its size"):
        read_statements(path, Told(), "wikidata")
    path.write_bytes(compress(b" " * 2**20 + b"\n") * 300)
    with pytest.raises(DataError, match="unpacks to more than 200 times its size"):
        read_statements(path, Told(), "wikidata")


@pytest.mark.parametrize("filler", [0, 1, 65_500, 65_530, 65_536, 200_000])
def test_language_tags_with_an_underscore_are_read(filler: int, tmp_path: Path) -> None:
    """Wherever the parts of a file end in which it is read; what only looks like a tag stays."""
    label = "<http://www.w3.org/2000/01/rdf-schema#label>"
    texts = {"colour": "en_GB", "color": "en_US", "@foo_bar_baz, and snake_case": "en"}
    lines = [f'<http://e/{n}> {label} "{text}"@{tag} .\n' for n, (text, tag) in enumerate(texts.items())]
    (tmp_path / "g.nt").write_text("#" + "x" * filler + "\n" + "".join(lines) * 50)
    messages = Told()
    read_statements(tmp_path / "g.nt", messages)
    results = {(value, language.lower()) for _, _, value, language in messages.texts}
    assert results == {(text, tag.replace("_", "-").lower()) for text, tag in texts.items()}
    assert len(messages.texts) == 150


@pytest.mark.parametrize("declared", ["no-such", "rot13", "hex"])
def test_an_unknown_encoding_is_named(declared: str, tmp_path: Path) -> None:
    (tmp_path / "g.rdf").write_bytes(XML.format(declared=f' encoding="{declared}"', filler="").encode())
    with pytest.raises(DataError, match=f"'{declared}', which is not known"):
        read_statements(tmp_path / "g.rdf", Told())


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("g.owl", "@prefix : <http://e/> .\n:a :b :c .", "--format turtle"),
        ("g.owl", "Prefix(:=<http://e/>)\nOntology(<http://e>)", "functional syntax"),
        ("g.owl", "Prefix: : <http://e/>\nOntology: <http://e>", "Manchester syntax"),
        ("g.ttl", "<?xml version='1.0'?><rdf:RDF/>", "--format rdfxml"),
        ("g.ttl", "<!DOCTYPE html><html></html>", "a web page"),
        ("g.json", '{"@context": {}, "@id": "a"}', "JSON-LD"),
        ("g.json", '{\n "type": "bundle",\n "objects": []}', "a STIX bundle"),
        ("g.json", '{"graphs": [{"nodes": []}]}', "OBO Graphs"),
        ("g.json", '{"directed": true, "nodes": []}', "a node-link graph"),
        ("g.json", '{"type":"node","id":"0","labels":["A"]}\n', "an export of Neo4j"),
    ],
)
def test_what_a_file_looks_like_is_said(name: str, text: str, hint: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=hint):
        read_statements(tmp_path / name, Told())


def test_iris_as_people_write_them_are_read(tmp_path: Path) -> None:
    iris = ["http://e/a b", "http://e/x?y[]=z", "http://e/a|b", "http://e/100%", "http://e/#a#b"]
    (tmp_path / "g.nt").write_text("".join(f"<{x}> <http://p> <http://b> .\n" for x in iris))
    messages = Told()
    read_statements(tmp_path / "g.nt", messages)
    assert [head for head, _, _ in messages.triples] == iris
