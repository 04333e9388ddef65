"""Export a list of new triples: N-Triples, RDF-star, TriG, CSV, TSV, JSON Lines, Neo4j."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from kgmlm.core import files
from kgmlm.core.errors import ConfigError, DataError
from kgmlm.core.files import as_path
from kgmlm.core.options import takes
from kgmlm.core.processes import check_main_guard
from kgmlm.core.progress import watcher_of
from kgmlm.core.results import Outcome
from kgmlm.core.tables import CsvFile, for_spreadsheet
from kgmlm.importing.neo4j import Server, write_server
from kgmlm.prediction.listing import read_list
from kgmlm.prediction.options import ExportOptions
from kgmlm.runs.writing import check_result

BASE = "urn:kgmlm:"  # prefix that makes an IRI of a label that is not one
DOUBLE = "http://www.w3.org/2001/XMLSchema#double"
REIFIES = "http://www.w3.org/1999/02/22-rdf-syntax-ns#reifies"
LABEL, COMMENT = (f"http://www.w3.org/2000/01/rdf-schema#{name}" for name in ("label", "comment"))
SOURCE = "http://purl.org/dc/elements/1.1/source"
MEANS = "the probability of finding the triple in a further hidden set, as large as the validation set"

# Characters that an IRI must percent-encode (RFC 3987; private characters are left out as well).
_NOT = r"\x00-\x20<>\"{}|^`\\\[\]%#\x7f-\x9f\ud800-\uf8ff\ufdd0-\ufdef\ufff0-\uffff\U000e0000-\U0010ffff"
_PART, _NAME, _USER = (rf"(?:[^{_NOT}{more}]|%[0-9A-Fa-f]{{2}})*" for more in ("", "/?:@", "/?@"))
_HOST = rf"//(?:{_USER}@)?(?:\[[0-9A-Fa-f:.]+\]|{_NAME})(?::[0-9]*)?(?=[/?#]|\Z)"
_IRI = re.compile(rf"[A-Za-z][A-Za-z0-9+.-]*:(?=.)(?:{_HOST}|(?!//)){_PART}(?:#{_PART})?")
_BLANK = re.compile(r"_:[A-Za-z0-9]+")


def node(label: str, base: str = BASE) -> str:
    """A label as a node of RDF: an IRI or a blank node as it is, others behind a base.

    >>> node("http://ex.org/a"), node("_:b1"), node("body part")
    ('<http://ex.org/a>', '_:b1', '<urn:kgmlm:body%20part>')
    """
    return label if _BLANK.fullmatch(label) else _named(label, base)


def _named(label: str, base: str) -> str:
    """A label as an IRI, which a relation always is."""
    return f"<{label}>" if _IRI.fullmatch(label) else f"<{base}{quote(label, safe='')}>"


def _quoted(text: str) -> str:
    r"""A text as a literal of RDF.

    >>> print(_quoted('say "hi"\n'))
    "say \"hi\"\n"
    """
    escaped = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"' + "".join(escaped.get(c, c if c >= " " else f"\\u{ord(c):04X}") for c in text) + '"'


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Rows as dictionaries, some at a time."""
    for batch in table.to_batches(1 << 14):
        yield from batch.to_pylist()


def _statement(row: dict[str, Any], base: str) -> str:
    return f"{node(row['head'], base)} {_named(row['relation'], base)} {node(row['tail'], base)}"


def _literal(probability: float) -> str:
    return f'"{probability!r}"^^<{DOUBLE}>'


def _names(table: pa.Table, file: TextIO, base: str) -> None:
    """Names of entities and relations, where they are more than the label."""
    known = set[tuple[str, bool]]()
    for row in _rows(table):
        for column in ("head", "relation", "tail"):
            label, name = row[column], row[f"{column}_name"]
            if name and name != label and (key := (label, column == "relation")) not in known:
                known.add(key)
                of = _named(label, base) if column == "relation" else node(label, base)
                file.write(f"{of} <{LABEL}> {_quoted(name)} .\n")


def _vocabulary(file: TextIO, base: str) -> None:
    """Write what the predicate of probabilities means."""
    for predicate, text in ((LABEL, "probability"), (COMMENT, MEANS)):
        file.write(f"<{base}probability> <{predicate}> {_quoted(text)} .\n")


def _about(of: str, row: dict[str, Any], base: str) -> str:
    """The probability of a triple, if it has one, and what says so."""
    source = f'{of} <{SOURCE}> "kgmlm" .\n'
    if row["probability"] is None:
        return source
    return f"{of} <{base}probability> {_literal(row['probability'])} .\n{source}"


def _ntriples(table: pa.Table, file: TextIO, base: str) -> None:
    """The triples without their probabilities, and names."""
    file.writelines(f"{_statement(row, base)} .\n" for row in _rows(table))
    _names(table, file, base)


def _rdf_star(table: pa.Table, file: TextIO, base: str) -> None:
    """N-Triples of RDF 1.2: each triple, a node that reifies it, that node's probability, and names."""
    _vocabulary(file, base)
    new = "_:new"
    while any(pc.any(pc.starts_with(table.column(end), new)).as_py() for end in ("head", "tail")):
        new += "x"  # until it is no entity's
    for number, row in enumerate(_rows(table), 1):
        statement = _statement(row, base)
        file.write(f"{statement} .\n{new}{number} <{REIFIES}> <<( {statement} )>> .\n")
        file.write(_about(f"{new}{number}", row, base))
    _names(table, file, base)


def _trig(table: pa.Table, file: TextIO, base: str) -> None:
    """Each triple in a graph of its own, which has the probability; names in the default graph."""
    _vocabulary(file, base)
    for number, row in enumerate(_rows(table), 1):
        graph = f"<{base}new/{number}>"
        file.write(f"{graph} {{ {_statement(row, base)} . }}\n")
        file.write(_about(graph, row, base))
    _names(table, file, base)


def _csv(
    table: pa.Table,
    file: TextIO,
    base: str,
    delimiter: str = ",",
    cell: Callable[[Any], Any] = lambda value: value,
) -> None:
    """All columns, with a header."""
    writer = csv.DictWriter(CsvFile(file), table.column_names, delimiter=delimiter)
    writer.writeheader()
    writer.writerows({name: cell(value) for name, value in row.items()} for row in _rows(table))


_tsv = partial(_csv, delimiter="\t")
_spreadsheet = partial(_csv, cell=for_spreadsheet)  # no text is a formula


def _jsonl(table: pa.Table, file: TextIO, base: str) -> None:
    """All columns, an object on each line."""
    for row in _rows(table):
        filled = {name: value for name, value in row.items() if value is not None}
        file.write(json.dumps(filled, ensure_ascii=False) + "\n")


FORMATS: dict[str, Callable[[pa.Table, TextIO, str], None]] = {
    "ntriples": _ntriples,
    "rdf-star": _rdf_star,
    "trig": _trig,
    "csv": _csv,
    "tsv": _tsv,
    "jsonl": _jsonl,
}
SUFFIXES = {
    ".nt": "ntriples",
    ".ttl": "ntriples",  # which is Turtle, too
    ".trig": "trig",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
FOLDER = "neo4j"  # the one format that is a folder


def format_for(output: Path, format: str | None) -> str:
    """Return the format to write.

    Raises:
        ConfigError: when the name does not say it, or there is no such format.
    """
    known = (*FORMATS, FOLDER)
    if format is None:
        format = SUFFIXES.get(output.suffix.casefold())
        if format is None:
            raise ConfigError(
                f"{output}: its name does not say the format ({', '.join(SUFFIXES)}); --format names one of "
                f"{', '.join(known)}"
            )
    if format not in known:
        raise ConfigError(f"there is no format '{format}' (there are: {', '.join(known)})")
    return format


def write_export(
    table: pa.Table, output: Path, format: str, base: str = BASE, *, spreadsheet: bool = False
) -> None:
    """Write a list, whole or not at all.

    Args:
        table: labels, names and probabilities, as ``kgmlm complete`` lists them.
        format: a key of :data:`FORMATS`, or "neo4j": a folder with nodes.csv and edges.csv.
        base: prefix that makes IRIs of labels that are not IRIs.
        spreadsheet: CSV in which no text is a formula, as of :func:`~kgmlm.core.tables.for_spreadsheet`.

    Raises:
        DataError: when the folder is there and has something in it.
        ConfigError: when the base is no IRI, or a spreadsheet is asked for in another format than CSV.
    """
    if spreadsheet and format != "csv":
        raise ConfigError(f"--spreadsheet is for csv, not for {format}")
    if not _IRI.fullmatch(base):
        raise ConfigError(f"'{base}' is no IRI prefix, such as {BASE}")
    if format != FOLDER:
        with (
            files.atomic_file(output, follow=True) as path,
            path.open("w", encoding="utf-8", newline="") as file,
        ):
            (_spreadsheet if spreadsheet else FORMATS[format])(table, file, base)
        return
    with files.new_folder(output) as folder:
        _neo4j(table, folder)


def _neo4j(table: pa.Table, folder: Path) -> None:
    """``nodes.csv`` and ``edges.csv`` with the headers of `neo4j-admin database import`."""
    nodes: dict[str, str] = {}
    with (folder / "edges.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(CsvFile(file))
        writer.writerow([":START_ID", ":END_ID", ":TYPE", "name", "probability:double"])
        for row in _rows(table):
            nodes.setdefault(row["head"], row["head_name"])
            nodes.setdefault(row["tail"], row["tail_name"])
            ends = (row["head"], row["tail"], row["relation"], row["relation_name"])
            writer.writerow([*ends, "" if row["probability"] is None else repr(row["probability"])])
    with (folder / "nodes.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(CsvFile(file))
        writer.writerow(["label:ID", "name", ":LABEL"])
        writer.writerows([label, name, "Entity"] for label, name in nodes.items())


@takes(ExportOptions)
def export(triples: str | Path, options: ExportOptions) -> Outcome:
    """Write a list that ``complete`` made as N-Triples, RDF-star, TriG, CSV, TSV, JSON Lines, or for Neo4j.

    Args:
        triples: the file, Parquet, CSV or TSV.

    Returns:
        What was written: ``output``, ``format``, ``triples``; of a server also how many relationships are
        ``known`` there and how many triples are ``without_node``.

    Raises:
        DataError: when there is no such list.
        ConfigError: when there is no such format, or no such probability.
    """
    check_main_guard()
    server = Server.of(options.output)
    if options.key is not None and server is None:
        raise ConfigError("a key is a property of the nodes of a server: --key needs --output bolt://HOST")
    target, source = as_path(options.output, "the output"), as_path(triples, "the list that `complete` wrote")
    if target.resolve() == source.resolve():
        raise DataError(f"{target} is the list itself; choose another --output")
    chosen = format_for(target, options.format or (FOLDER if server else None))
    if server is not None and (chosen != FOLDER or options.spreadsheet):
        raise ConfigError(
            f"a server takes relationships, not {chosen if chosen != FOLDER else 'spreadsheets'}"
        )
    if chosen != FOLDER:
        check_result(target)
    table, _ = read_list(source)
    if options.min_probability > 0:
        table = table.filter(pc.greater_equal(table.column("probability"), options.min_probability))
    if server is not None:
        with watcher_of(options.progress) as watch:
            counts = write_server(
                server, _rows(table), options.key, partial(watch, "writing triples", total=len(table))
            )
        if len(table) and counts["without_node"] == len(table):
            raise DataError(f"{server.url} has none of the nodes; labels are those of its import (--key)")
        return Outcome({"output": server.url, "format": chosen, "triples": counts.pop("written"), **counts})
    write_export(table, target, chosen, options.base, spreadsheet=options.spreadsheet)
    return Outcome({"output": str(target), "format": chosen, "triples": len(table)})
