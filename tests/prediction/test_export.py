from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyoxigraph as ox
import pytest

from kgmlm.core.errors import ConfigError, DataError
from kgmlm.prediction import export
from kgmlm.prediction.export import (
    BASE,
    COMMENT,
    DOUBLE,
    FORMATS,
    LABEL,
    REIFIES,
    SOURCE,
    SUFFIXES,
    format_for,
    node,
    write_export,
)

REGISTRY = FORMATS
ROWS: list[dict[str, Any]] = [
    {
        "head": head, "relation": relation, "tail": tail, "head_name": f'"{head}"\n', "relation_name": "r, r",
        "tail_name": "مرحبا 😀", "probability": probability, "tail_score": score,
    }
    for head, relation, tail, probability, score in [
        ("http://ex.org/a", "http://ex.org/p", "_:b1", 0.1 + 0.2, -1.5),
        ("00001740", "_has part", 'quote " \\ <x>', 1e-7, None),
        ("مرحبا", "http://ex.org/p q", "a\tb\nc", 1.0, 2.0),
        ("http://ex.org/100%", "_:b1", "a\rb", 0.5, None),
        ("http://ex.org/[a]", "ratio:50%", "a:b#c#d", 0.5, 1.0),
        ("http://ex.org:port/a", "http://ex.org/\x7f", "http://ex.org/\ue000", 0.5, 1.0),
        ("http://me@[::1]:80/a?b=%20#c", "mailto:a@b.org", "http://ex.org:80", 0.5, 1.0),
    ]
]  # fmt: skip
TABLE = pa.Table.from_pylist(ROWS)
RDF = {"ntriples": ox.RdfFormat.N_TRIPLES, "rdf-star": ox.RdfFormat.N_TRIPLES, "trig": ox.RdfFormat.TRIG}


def plain(term: Any) -> str:
    """A label back from a node."""
    from urllib.parse import unquote

    if isinstance(term, ox.BlankNode):
        return f"_:{term.value}"
    value: str = term.value
    return unquote(value.removeprefix(BASE)) if value.startswith(BASE) else value


def parsed(format: str, data: str) -> list[tuple[str, str, str, float | None]]:
    """Triples with their probabilities, where a format has them."""
    if format in ("csv", "tsv"):
        read = csv.DictReader(io.StringIO(data, newline=""), delimiter="," if format == "csv" else "\t")
        return [(x["head"], x["relation"], x["tail"], float(x["probability"])) for x in read]
    if format == "jsonl":
        objects = [json.loads(line) for line in data.split("\n")[:-1]]
        return [(x["head"], x["relation"], x["tail"], x["probability"]) for x in objects]
    quads = list(ox.parse(data.encode(), RDF[format]))
    probabilities = {
        q.subject.value: float(q.object.value)
        for q in quads
        if isinstance(q.object, ox.Literal) and q.object.datatype.value == DOUBLE
    }
    rows = []
    stated = []
    for q in quads:
        if isinstance(q.object, ox.Literal):
            continue
        graph = q.graph_name.value if isinstance(q.graph_name, ox.NamedNode) else ""
        if q.predicate.value == REIFIES:
            triple, name = q.object, q.subject.value
            rows.append((triple, probabilities[name]))
        elif format == "trig":
            rows.append((q.triple, probabilities[graph]))
        else:
            stated.append(q.triple)
    if format == "rdf-star":
        assert stated == [triple for triple, _ in rows]
    else:
        rows += [(triple, None) for triple in stated]  # type: ignore[misc]
    return [(plain(t.subject), plain(t.predicate), plain(t.object), p) for t, p in rows]


@pytest.mark.parametrize("format", REGISTRY)
class TestEveryFormat:
    def test_hostile_labels_come_back(self, format: str, tmp_path: Path) -> None:
        write_export(TABLE, tmp_path / "out", format)
        result = parsed(format, (tmp_path / "out").read_bytes().decode())
        expected = [(x["head"], x["relation"], x["tail"], x["probability"]) for x in ROWS]
        if format == "ntriples":
            expected = [(*x[:3], None) for x in expected]
        assert result == expected

    def test_an_empty_list_is_a_file(self, format: str, tmp_path: Path) -> None:
        write_export(TABLE.slice(0, 0), tmp_path / "out", format)
        assert parsed(format, (tmp_path / "out").read_text()) == []

    def test_a_failure_leaves_what_was_there(
        self, format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(table: pa.Table) -> Iterator[dict[str, Any]]:
            yield from ROWS[:2]
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(export, "_rows", broken)
        (tmp_path / "out").write_text("before")
        with pytest.raises(OSError, match="No space left"):
            write_export(TABLE, tmp_path / "out", format)
        assert (tmp_path / "out").read_text() == "before"
        assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("format", RDF)
def test_names_and_what_a_probability_means_come_along(format: str, tmp_path: Path) -> None:
    write_export(TABLE, tmp_path / "out", format)
    quads = list(ox.parse((tmp_path / "out").read_bytes(), RDF[format]))
    texts = {
        (str(q.subject), q.predicate.value): q.object.value for q in quads if isinstance(q.object, ox.Literal)
    }
    for row in ROWS:
        for column in ("head", "tail"):
            assert texts[node(row[column]), LABEL] == row[f"{column}_name"]
        assert texts[export._named(row["relation"], BASE), LABEL] == row["relation_name"]
    assert ((f"<{BASE}probability>", COMMENT) in texts) == (format != "ntriples")
    assert sum(q.predicate.value == SOURCE for q in quads) == (0 if format == "ntriples" else len(ROWS))


def test_what_reifies_a_triple_is_no_entity(tmp_path: Path) -> None:
    table = TABLE.slice(0, 3).set_column(0, "head", [["_:new1", "_:b2", "_:newx3"]])
    write_export(table, tmp_path / "new.nt", "rdf-star", BASE)
    quads = list(ox.parse((tmp_path / "new.nt").read_bytes(), RDF["rdf-star"]))
    reifying = {q.subject.value for q in quads if q.predicate.value == REIFIES}
    assert len(reifying) == 3
    assert not reifying & {"new1", "b2", "newx3"}


def test_neo4j_has_each_node_once(tmp_path: Path) -> None:
    table = pa.concat_tables([TABLE, TABLE.slice(0, 1)])
    write_export(table, tmp_path / "neo", "neo4j")
    nodes, edges = (
        list(csv.DictReader(io.StringIO((tmp_path / "neo" / name).read_bytes().decode(), newline="")))
        for name in ("nodes.csv", "edges.csv")
    )
    labels = [x["label:ID"] for x in nodes]
    assert len(labels) == len(set(labels)) == 14
    assert {x[":LABEL"] for x in nodes} == {"Entity"}
    assert nodes[0]["name"] == ROWS[0]["head_name"]
    assert [(x[":START_ID"], x[":TYPE"], x[":END_ID"]) for x in edges] == [
        (x["head"], x["relation"], x["tail"]) for x in table.to_pylist()
    ]
    assert [float(x["probability:double"]) for x in edges] == table.column("probability").to_pylist()
    with pytest.raises(DataError, match="not empty"):
        write_export(TABLE, tmp_path / "neo", "neo4j")


def test_nothing_in_a_csv_for_spreadsheets_is_a_formula(tmp_path: Path) -> None:
    texts = ["=1+1", "+a", "-a", "@SUM(A1)", "\tx", "\r=x", "\uff1d1", "-5", "+1.5e3", "a=b", " =x", "'=x"]
    rows = [{**ROWS[0], "head": text, "tail_score": -1.5} for text in texts]
    write_export(pa.Table.from_pylist(rows), tmp_path / "a.csv", "csv", spreadsheet=True)
    read = list(csv.DictReader(io.StringIO((tmp_path / "a.csv").read_bytes().decode(), newline="")))
    harmful = [f"'{text}" for text in texts[:7]]
    assert [row["head"] for row in read] == [*harmful, *texts[7:]]
    assert {row["tail_score"] for row in read} == {"-1.5"}
    write_export(pa.Table.from_pylist(rows), tmp_path / "a.csv", "csv")
    read = list(csv.DictReader(io.StringIO((tmp_path / "a.csv").read_bytes().decode(), newline="")))
    assert [row["head"] for row in read] == texts
    with pytest.raises(ConfigError, match="is for csv, not for jsonl"):
        write_export(TABLE, tmp_path / "a.jsonl", "jsonl", spreadsheet=True)


def test_names_say_formats_and_others_are_refused(tmp_path: Path) -> None:
    for suffix, format in SUFFIXES.items():
        assert format_for(Path(f"x{suffix.upper()}"), None) == format
    assert format_for(Path("x.nt"), "csv") == "csv"
    for path, given in ((Path("x.parquet"), None), (Path("x.csv"), "rdf")):
        with pytest.raises(ConfigError, match="neo4j"):
            format_for(path, given)
    with pytest.raises(ConfigError, match="no IRI"):
        write_export(TABLE, tmp_path / "x", "ntriples", "not an iri")
    assert node("a b", "http://me.org/") == "<http://me.org/a%20b>"
