"""Files of edges, read as graphs: any table with columns of heads, relations and tails, and the tables that
Hetionet, PrimeKG and ConceptNet publish.

Arrow reads them, a column as text each; rows with an empty cell are left out and counted.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from kgmlm.core.errors import ConfigError, DataError, first_line
from kgmlm.core.tables import ENDS, separator_of, triples_of
from kgmlm.graphs.graph import KnowledgeGraph, TextColumns, build_graph
from kgmlm.importing.statements import Advance, unpacked

_BLOCK = 2**24  # bytes that are read at one time


class EdgeFiles(NamedTuple):
    """The files that a reader reads, and how."""

    paths: Sequence[Path]
    columns: Sequence[str]  # of head, relation and tail: names, or numbers from 1 where there is no header
    separator: str | None
    languages: Sequence[str]
    advance: Advance


class Edges(NamedTuple):
    """Triples as columns ``head``, ``relation`` and ``tail``, texts, and counts of rows that are left out."""

    triples: list[pa.Table]
    texts: TextColumns
    left_out: dict[str, int]

    def leave_out(self, why: str, count: int) -> None:
        """Count rows that are left out."""
        self.left_out[why] = self.left_out.get(why, 0) + count

    def add(self, head: pa.ChunkedArray, relation: pa.ChunkedArray, tail: pa.ChunkedArray) -> None:
        """Add triples but for those with an empty cell; each label is stored once."""
        rows = pa.table(dict(zip(ENDS, (head, relation, tail), strict=True)))
        lengths = [pc.greater(pc.binary_length(column), 0) for column in rows.columns]
        full = rows.filter(pc.and_(pc.and_(*lengths[:2]), lengths[2]))
        self.leave_out("rows with an empty cell", len(rows) - len(full))
        if len(full):
            columns = [column.dictionary_encode() for column in full.columns]
            self.triples.append(pa.table(dict(zip(ENDS, columns, strict=True))))


def _batches(
    path: Path, given: EdgeFiles, columns: Sequence[str] | None, separator: str
) -> Iterator[pa.Table]:
    """The rows of a file, some at a time; its columns as text.

    Args:
        columns: those that are wanted, by name, or by number where there is no header; None for all.

    Raises:
        DataError: naming the file, when it cannot be read or lacks a column.
    """
    numbered = columns is not None and all(column.isdecimal() for column in columns)
    with unpacked(path, given.advance) as file:
        line = file.peek(_BLOCK).partition(b"\n")[0].decode("utf-8-sig", "replace").rstrip("\r")
        first = next(csv.reader([line]), []) if separator == "," else line.split(separator)
        names = [str(i) for i in range(1, len(first) + 1)] if numbered else first
        for column in columns or ():
            if column not in names:
                there = f"{len(first)} columns" if numbered else f"the columns {', '.join(names)}"
                raise DataError(f"{path} has no column '{column}', but {there}")
        if not numbered:
            file.readline()
        quoted = separator == ","
        parsing = arrow_csv.ParseOptions(
            delimiter=separator, quote_char='"' if quoted else False, newlines_in_values=quoted
        )
        converting = arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            include_columns=list(dict.fromkeys(columns)) if columns else names,
            strings_can_be_null=False,
        )
        for block in _blocks(file, quoted):
            # Arrow's own reader of streams has threads, which may outlive the program's end and abort it.
            reading = arrow_csv.ReadOptions(use_threads=False, column_names=names, block_size=len(block) + 1)
            try:
                yield arrow_csv.read_csv(pa.BufferReader(block), reading, parsing, converting)
            except pa.ArrowInvalid as error:  # whose number of a row is that in its block
                raise DataError(
                    f"{path} cannot be read: {re.sub('Row #[0-9]+: ', '', first_line(error))}"
                ) from None


def _blocks(file: IO[bytes], quoted: bool) -> Iterator[bytes]:
    """The bytes of a file, whole rows at a time; of quoted cells a row may go on in the next line."""
    left = b""
    while data := file.read(_BLOCK):
        left += data
        end = left.rfind(b"\n") + 1
        while quoted and end and left.count(b'"', 0, end) % 2:
            end = left.rfind(b"\n", 0, end - 1) + 1
        if end:
            yield left[:end]
            left = left[end:]
    if left.strip():
        yield left


def table(given: EdgeFiles) -> Edges:
    """Any table: the columns of heads, relations and tails are named; without a header, numbered."""
    found = Edges([], TextColumns(), {})
    for path in given.paths:
        for rows in _batches(path, given, given.columns, given.separator or separator_of(path)):
            found.add(*(rows[column] for column in given.columns))
    return found


def hetionet(given: EdgeFiles) -> Edges:
    """Hetionet's: ``nodes.tsv`` (id, name, kind), ``edges.sif.gz`` (source, metaedge, target) and, for the
    names of relations, ``metaedges.tsv`` (metaedge, abbreviation)."""
    found = Edges([], TextColumns(), {})
    for path in given.paths:
        for rows in _batches(path, given, None, "\t"):
            columns = set(rows.column_names)
            if {"metaedge", "abbreviation", "inverted"} <= columns:
                continue  # how Hetionet draws and writes metaedges
            if {"source", "metaedge", "target"} <= columns:
                found.add(rows["source"], rows["metaedge"], rows["target"])
            elif {"id", "name", "kind"} <= columns:
                labels = rows["id"].to_pylist()
                found.texts.names.update(zip(labels, rows["name"].to_pylist(), strict=True))
                found.texts.types.update(zip(labels, rows["kind"].to_pylist(), strict=True))
            elif {"metaedge", "abbreviation"} <= columns:
                # "Gene - interacts - Gene", or "Gene > regulates > Gene" where the direction counts
                names = ("".join(re.split(" [->] ", x)[1:2]) for x in rows["metaedge"].to_pylist())
                found.texts.relations.update(zip(rows["abbreviation"].to_pylist(), names, strict=True))
            else:
                there = ", ".join(rows.column_names)
                raise DataError(f"{path} is not Hetionet's: it has the columns {there}")
    return found


def primekg(given: EdgeFiles) -> Edges:
    """PrimeKG's ``kg.csv``. It has each edge in both directions; the one that comes first is kept.

    Labels are source and id, such as ``NCBI:9796``. A relation has the name that it is
    displayed by, where that is one and no other relation's.
    """
    found, seen = Edges([], TextColumns(), {}), set[tuple[str, str, str]]()
    said = dict[str, set[str]]()
    wanted = (
        "relation",
        "display_relation",
        *(f"{end}_{of}" for end in "xy" for of in ("source", "id", "name", "type")),
    )
    for path in given.paths:
        for rows in _batches(path, given, wanted, ","):
            of = {column: rows[column].to_pylist() for column in wanted}
            ends = list[list[str]]()
            for end in "xy":
                both = zip(of[f"{end}_source"], of[f"{end}_id"], strict=True)
                ends.append([f"{source}:{number}" for source, number in both])
                found.texts.names.update(zip(ends[-1], of[f"{end}_name"], strict=True))
                found.texts.types.update(zip(ends[-1], of[f"{end}_type"], strict=True))
            kept = list[tuple[str, str, str]]()
            for head, relation, tail in zip(ends[0], of["relation"], ends[1], strict=True):
                if head == tail or (tail, relation, head) not in seen:
                    seen.add((head, relation, tail))
                    kept.append((head, relation, tail))
            found.leave_out("edges in the other direction", len(rows) - len(kept))
            found.triples.append(triples_of(kept))
            for pair in zip(of["relation"], of["display_relation"], strict=True):
                said.setdefault(pair[0], set()).add(pair[1])
    used = Counter(name for names in said.values() for name in names)
    for relation, names in said.items():
        name = min(names)
        one = len(names) == 1 and used[name] == 1 and name != ""
        found.texts.relations[relation] = name if one else relation.replace("_", " ")
    return found


def conceptnet(given: EdgeFiles) -> Edges:
    """ConceptNet's assertions, those between concepts of the wanted languages.

    Labels are URIs such as ``/c/en/land_reform``, without part of speech and sense; names are their terms.
    """
    found = Edges([], TextColumns(), {})
    pattern = f"^/c/({'|'.join(map(re.escape, given.languages))})/[^/]"
    other = f"rows that are not of two concepts of {', '.join(given.languages)}"
    for path in given.paths:
        for rows in _batches(path, given, ("2", "3", "4"), "\t"):
            kept = rows.filter(pc.and_(*(pc.match_substring_regex(rows[x], pattern) for x in ("3", "4"))))
            found.leave_out(other, len(rows) - len(kept))
            head, tail = (
                pc.replace_substring_regex(kept[x], r"^(/c/[^/]+/[^/]+).*$", r"\1") for x in ("3", "4")
            )
            found.add(head, kept["2"], tail)
            for label in kept["2"].unique().to_pylist():  # /r/AtLocation
                words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", label.removeprefix("/r/"))
                found.texts.relations[label] = words.replace("_", " ").replace("/", " ").lower()
            for ends in (head, tail):
                for label in ends.unique().to_pylist():
                    found.texts.names[label] = label.rpartition("/")[2].replace("_", " ")
    return found


EDGES: Mapping[str, Callable[[EdgeFiles], Edges]] = {
    "table": table,
    "hetionet": hetionet,
    "primekg": primekg,
    "conceptnet": conceptnet,
}


def checked_columns(columns: Sequence[str] | None, separator: str | None) -> tuple[list[str], str | None]:
    r"""The columns of head, relation and tail, and the separator; ``\t`` is a tab.

    Raises:
        ConfigError: when they are not three columns, or the separator is not one character.
    """
    named = [column.strip() for column in columns or ("1", "2", "3")]
    if len(named) != 3 or not all(named):
        raise ConfigError("columns are three, of heads, relations and tails: head,relation,tail or 1,2,3")
    if sum(column.isdecimal() for column in named) not in (0, 3):
        raise ConfigError("columns are three names of a header, or three numbers where there is none")
    if (tab := "\t" if separator in (r"\t", "tab") else separator) is not None and (
        len(tab) != 1 or tab in '\r\n"'
    ):
        raise ConfigError(f"the separator is one character, not {separator!r}")
    return named, tab


def read_edges(kind: str, given: EdgeFiles, name: str) -> tuple[KnowledgeGraph, int, dict[str, int]]:
    """The graph of files of edges, the number of repeated triples, and that of rows left out, by reason.

    Args:
        kind: a key of :data:`EDGES`.

    Raises:
        DataError: naming the file, when it cannot be read; when no triple is found.
    """
    found = EDGES[kind](given)
    if not any(map(len, found.triples)):
        raise DataError(f"{', '.join(map(str, given.paths))}: there is no triple")
    triples = pa.concat_tables(found.triples)
    once = triples.unify_dictionaries().group_by(list(ENDS), use_threads=False).aggregate([])
    graph = build_graph(name, {"train": once}, found.texts)
    return graph, len(triples) - len(once), {why: n for why, n in found.left_out.items() if n}
