"""Files of edges, read as graphs: any table with columns of heads, relations and tails, and the tables that
Hetionet, PrimeKG and ConceptNet publish.

Text, Parquet, JSON lines and workbooks are read as columns of text; rows with an empty cell are left out and
counted.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from kgmlm.core import files
from kgmlm.core.errors import ConfigError, DataError, first_line
from kgmlm.core.tables import ENDS, header_columns, separator_of, triples_of
from kgmlm.graphs.graph import KnowledgeGraph, TextColumns, build_graph
from kgmlm.importing.statements import HEAD, Advance, Utf8, hint_of, unpacked
from kgmlm.importing.vocabulary import language_of

_BLOCK = 2**24  # bytes that are read at one time
_ROWS = 10_000  # rows of JSON that are Python objects at one time
JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")


class NodeFiles(NamedTuple):
    """Tables of nodes.

    Attributes:
        paths: files with a header.
        columns: of labels, names, types, descriptions and aliases, in this order; an empty name is a column
            that the table lacks, and if none are given, they are found by their names.
    """

    paths: Sequence[Path]
    columns: Sequence[str] = ()


class EdgeFiles(NamedTuple):
    """The files that a reader reads, and how.

    Attributes:
        columns: of head, relation and tail: names, or numbers from 1 where there is no header.
        separator: of text; None goes by the name of the file.
        encoding: of text; None is UTF-8, or what a byte order mark says.
    """

    paths: Sequence[Path]
    columns: Sequence[str]
    separator: str | None
    languages: Sequence[str]
    advance: Advance
    encoding: str | None = None
    nodes: NodeFiles = NodeFiles(())


class Edges(NamedTuple):
    """Triples as columns ``head``, ``relation`` and ``tail``, texts, counts of what is left out, and counts
    of what else is worth reporting.
    """

    triples: list[pa.Table]
    texts: TextColumns
    left_out: Counter[str]
    notes: Counter[str]

    @classmethod
    def none(cls) -> Edges:
        """No edges yet."""
        return cls([], TextColumns(), Counter(), Counter())

    def add(self, head: pa.ChunkedArray, relation: pa.ChunkedArray, tail: pa.ChunkedArray) -> None:
        """Add triples but for those with an empty cell; each label is stored once."""
        rows = pa.table(dict(zip(ENDS, (head, relation, tail), strict=True)))
        lengths = [pc.greater(pc.binary_length(column), 0) for column in rows.columns]
        full = rows.filter(pc.and_(pc.and_(*lengths[:2]), lengths[2]))
        self.left_out["rows with an empty cell"] += len(rows) - len(full)
        if len(full):
            columns = [column.dictionary_encode() for column in full.columns]
            self.triples.append(pa.table(dict(zip(ENDS, columns, strict=True))))

    def tidy(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """A column with single blanks within its cells and none around them; changed cells are counted."""
        tidied = pc.utf8_trim(pc.replace_substring_regex(column, r"[\s\pZ]+", " "), " ")
        self.notes["cells whose blanks were normalized"] += pc.sum(pc.not_equal(tidied, column)).as_py() or 0
        return tidied

    def name(self, labels: pa.ChunkedArray, texts: pa.ChunkedArray, into: dict[str, str]) -> None:
        """Add the texts of labels; if a label has several, the first one counts."""
        for label, text in zip(labels.to_pylist(), texts.to_pylist(), strict=True):
            if label and text:
                into.setdefault(label, text)


# --- rows of files ------------------------------------------------------------------------------------------


def _suffix(path: Path) -> str:
    """The suffix of a file, packed or not."""
    suffixes = [suffix.casefold() for suffix in path.suffixes]
    packed = suffixes[-1:] and suffixes[-1] in (".gz", ".bz2", ".xz", ".zst", ".zip")
    return (suffixes[-2:-1] if packed else suffixes[-1:] or [""])[0] if suffixes[bool(packed) :] else ""


def is_json(path: Path) -> bool:
    """Return whether the suffix of a file is one of JSON's."""
    return _suffix(path) in JSON_SUFFIXES


def _batches(
    path: Path, given: EdgeFiles, columns: Sequence[str] | None, separator: str | None, edges: Edges
) -> Iterator[pa.Table]:
    """The rows of a file, some at a time; its columns as text.

    Args:
        columns: those that are wanted, by name, or by number where there is no header; others may come along.
            None for all.
        separator: of text; None goes by the name of the file.
        edges: where it is noted what is passed over.

    Raises:
        DataError: naming the file, when it cannot be read or lacks a column.
    """
    suffix = _suffix(path)
    if suffix == ".parquet":
        yield _parquet(path, columns)
    elif suffix in JSON_SUFFIXES:
        yield from _json(path, given, columns)
    elif suffix in (".xlsx", ".xls", ".ods"):
        yield _workbook(path, columns, edges)
    else:
        yield from _text(path, given, columns, separator, edges)


def _check_columns(path: Path, header: Sequence[str], columns: Sequence[str] | None, whole: str = "") -> None:
    """Refuse a file that lacks a column, or has it twice.

    Args:
        whole: the first line.

    Raises:
        DataError: naming the file.
    """
    for column in columns or ():
        if column not in header:
            numbered = columns is not None and all(x.isdecimal() for x in columns)
            has = f"{len(header)} columns" if numbered else f"the columns {', '.join(header)}"
            other = next((x for x in ";|\t," if len(header) == 1 and x in (whole or header[0])), "")
            hint = f"; --separator '{other}' divides them" if other else ""
            raise DataError(f"{path} has no column '{column}', but {has}{hint}")
        if header.count(column) > 1:
            raise DataError(f"{path}: the column '{column}' is there twice; keep one")


def _numbered(table: pa.Table, columns: Sequence[str] | None) -> pa.Table:
    """A table with its columns renamed to their numbers, if columns are asked for by number."""
    if columns is None or not all(column.isdecimal() for column in columns):
        return table
    return table.rename_columns([str(i) for i in range(1, len(table.column_names) + 1)])


def _parquet(path: Path, columns: Sequence[str] | None) -> pa.Table:
    """The rows of a Parquet file."""
    try:
        table = _numbered(files.read_parquet(path), columns)
        _check_columns(path, table.column_names, columns)
        wanted = [name for name in table.column_names if name in (columns or ()) or _is_text(table[name])]
        return pa.table({x: pc.fill_null(_as_text(table[x]), "") for x in dict.fromkeys(wanted)})
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read as Parquet: {first_line(error)}") from None


def _as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column as text; the items of lists with bars between."""
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return pc.binary_join(column.cast(pa.list_(pa.string())), "|")
    return column.cast(pa.string())


def _is_text(column: pa.ChunkedArray) -> bool:
    nested = pa.types.is_dictionary(column.type) or pa.types.is_list(column.type)
    kind = column.type.value_type if nested or pa.types.is_large_list(column.type) else column.type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _workbook(path: Path, columns: Sequence[str] | None, edges: Edges) -> pa.Table:
    """The rows of the first sheet of a workbook."""
    import pandas as pd

    numbered = columns is not None and all(column.isdecimal() for column in columns)
    try:
        with pd.ExcelFile(path) as book:
            edges.left_out["sheets of the workbook but the first"] += len(book.sheet_names) - 1
            frame = book.parse(0, header=None if numbered else 0, dtype=str, keep_default_na=False)
    except ImportError as error:
        raise DataError(
            f"{path}: {first_line(error).removesuffix('.')}: install that, or save the sheet as CSV"
        ) from None
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path} cannot be read as a workbook: {first_line(error)}") from None
    names = [str(i) if numbered else str(x).strip() for i, x in enumerate(frame.columns, 1)]
    _check_columns(path, names, columns)
    cells = {name: pa.array(frame.iloc[:, at].astype(str), pa.string()) for at, name in enumerate(names)}
    return pa.table(cells)


def _json(path: Path, given: EdgeFiles, columns: Sequence[str] | None) -> Iterator[pa.Table]:
    """The rows of JSON lines, or of one JSON array, of objects."""
    rows = _json_rows(path, given)
    while batch := list(islice(rows, _ROWS)):
        every = dict.fromkeys(key for _, row in batch for key in row)
        wanted = list(columns or (x for x in every if not any(_is_nested(row.get(x)) for _, row in batch)))
        for number, row in batch:
            for column in wanted:
                if columns is not None and column not in row:
                    raise DataError(f"{path}:{number} has no '{column}', but {', '.join(row) or 'nothing'}")
        keys = dict.fromkeys(
            [*wanted, *(key for _, row in batch for key, x in row.items() if type(x) is str)]
        )
        cells = {key: [_cell(path, n, row.get(key), columns is None) for n, row in batch] for key in keys}
        yield pa.table({key: pa.array(of_key, pa.string()) for key, of_key in cells.items()})


def _is_nested(value: Any) -> bool:
    """Return whether a value of JSON is an object, or a list with an object or a list in it."""
    return isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(item, dict | list) for item in value)
    )


def _cell(path: Path, number: int, value: Any, lists: bool) -> str:
    """A value of JSON as a cell of a table; where there may be lists, their items with bars between."""
    if lists and isinstance(value, list) and not any(isinstance(item, dict | list) for item in value):
        return "|".join(_cell(path, number, item, lists) for item in value)
    if isinstance(value, dict | list):
        raise DataError(f"{path}:{number}: {json.dumps(value)[:60]} is no text or number")
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _json_rows(path: Path, given: EdgeFiles) -> Iterator[tuple[int, dict[str, Any]]]:
    """Objects of a file, each with its line, or its number in an array."""
    with unpacked(path, given.advance) as file:
        text = io.BufferedReader(Utf8(cast("IO[bytes]", file), False, given.encoding or ""), 1 << 16)
        begin = text.peek(HEAD)[:HEAD]
        lines: Iterator[tuple[int, Any]] = enumerate(text, 1)
        if begin.lstrip()[:1] == b"[":
            try:
                lines = enumerate(files.parse_json(text.read()), 1)
            except ValueError as error:
                raise DataError(f"{path} is cut off or not JSON: {error}") from None
        for number, line in lines:
            row = line
            if isinstance(line, bytes):
                if not line.strip():
                    continue
                try:
                    row = files.parse_json(line)
                except ValueError as error:
                    raise DataError(
                        f"{path}:{number} is not a JSON object on one line: {error}{hint_of(begin, 'table')}"
                    ) from None
            if not isinstance(row, dict):
                raise DataError(f"{path}:{number} is not a JSON object: {json.dumps(row)[:60]}")
            yield number, row


def json_columns(path: Path) -> list[str] | None:
    """The keys of head, relation and tail in the first object of a file of JSON lines, if there are such."""
    try:
        row = next(_json_rows(path, EdgeFiles([path], (), None, (), lambda n: None)), (0, {}))[1]
    except DataError:
        return None
    for head, relation, tail in zip(*([list(row)[i:] for i in range(3)]), strict=False):
        if (order := header_columns([head, relation, tail])) is not None:
            keys = (head, relation, tail)
            return [keys[order.index(i)] for i in range(3)]
    return [*ENDS] if set(ENDS) <= set(row) else None


def _text(
    path: Path, given: EdgeFiles, columns: Sequence[str] | None, separator: str | None, edges: Edges
) -> Iterator[pa.Table]:
    """The rows of a text file.

    Lines before the header (or, where columns are numbers, before the first row) that begin with ``#`` are
    comments, and so is Excel's ``sep=;``. Cells may be quoted as in CSV; in a file with tabs, only if all
    its column names are quoted.
    """
    numbered = columns is not None and all(column.isdecimal() for column in columns)
    with unpacked(path, given.advance) as packed:
        file = io.BufferedReader(Utf8(cast("IO[bytes]", packed), False, given.encoding or ""), 1 << 16)
        line, first, separator = _first_line(path, file, columns, separator, edges)
        quoted = separator != "\t" or all(re.fullmatch('".*"', x.strip()) for x in first)
        if quoted and separator == "\t":
            first = next(csv.reader([line], delimiter="\t"), [])
        names = [str(i) for i in range(1, len(first) + 1)] if numbered else [name.strip() for name in first]
        _check_columns(path, names, columns, line)
        if numbered and columns is not None:
            named = header_columns([first[int(x) - 1] for x in columns])
            if named is not None:
                raise DataError(
                    f"{path}: the first line names its columns; --columns takes these names: "
                    f"{','.join(first[int(x) - 1].strip() for x in columns)}"
                )
        unique = [name if names.index(name) == i else f"{name} ({i + 1})" for i, name in enumerate(names)]
        parsing = arrow_csv.ParseOptions(
            delimiter=separator, quote_char='"' if quoted else False, newlines_in_values=quoted
        )
        converting = arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(unique, pa.string()), include_columns=unique, strings_can_be_null=False
        )
        for block in _named_errors(path, _blocks(file, quoted, f"{line}\n".encode() if numbered else b"")):
            # Arrow's own reader of streams has threads, which may outlive the program's end and abort it.
            reading = arrow_csv.ReadOptions(use_threads=False, column_names=unique, block_size=len(block) + 1)
            try:
                rows = arrow_csv.read_csv(pa.BufferReader(block), reading, parsing, converting)
            except pa.ArrowInvalid as error:  # it numbers rows within their block
                why = re.sub("Row #[0-9]+: ", "", first_line(error))
                if "UTF8" in why:
                    why = "it is not UTF-8; --encoding says what it is (of Windows often cp1252)"
                raise DataError(f"{path} cannot be read: {why}") from None
            if quoted and b'"' in block:
                _check_quotes(path, rows, separator, columns)
            yield rows


def _named_errors(path: Path, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Blocks of a file, whose errors name it."""
    try:
        yield from blocks
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _check_quotes(path: Path, rows: pa.Table, separator: str, columns: Sequence[str] | None) -> None:
    """Refuse cells that contain other rows because their opening quote is never closed."""
    for name in columns or rows.column_names:
        several = rows[name].filter(pc.match_substring(rows[name], "\n"))
        for cell in several.to_pylist():
            if any(line.count(separator) >= len(rows.column_names) - 1 > 0 for line in cell.split("\n")[1:]):
                raise DataError(
                    f"{path}: is a quote missing? A cell of '{name}' has rows in it: '{cell[:60]}'"
                )


def _first_line(
    path: Path, file: IO[bytes], columns: Sequence[str] | None, separator: str | None, edges: Edges
) -> tuple[str, list[str], str]:
    """The first line that is no comment, its cells, and the separator."""
    numbered = columns is not None and all(column.isdecimal() for column in columns)
    given = separator
    separator = separator or separator_of(path)
    for raw in iter(file.readline, b""):
        try:
            line = raw.decode("utf-8-sig").rstrip("\r\n")
            if "\r" in line:
                raise DataError(f"{path}: its lines end in carriage returns alone; save it with line feeds")
        except UnicodeDecodeError:
            raise DataError(
                f"{path} cannot be read: it is not UTF-8; --encoding says what it is, such as cp1252"
            ) from None
        if excel := re.fullmatch(r'"?sep=(.)"?', line):
            separator = given or excel[1]
            continue
        cells = next(csv.reader([line], delimiter=separator), []) if separator != "\t" else line.split("\t")
        if line.startswith("#") and columns is not None:
            bare = [cells[0].lstrip("# "), *cells[1:]]
            if not numbered and set(columns) <= {cell.strip() for cell in bare}:
                return line, bare, separator
            if not numbered and set(columns) <= {cell.strip() for cell in cells}:
                return line, cells, separator
            if not numbered or len(cells) < max(map(int, columns)):
                edges.notes["lines of comments"] += 1
                continue
        if line:
            return line, cells, separator
    return "", [], separator


def _blocks(file: IO[bytes], quoted: bool, left: bytes = b"") -> Iterator[bytes]:
    """The bytes of a file, whole rows at a time; with quoted cells, a row may continue on the next line.

    Args:
        left: the line before them.
    """
    while data := file.read(_BLOCK):
        left += data
        end = left.rfind(b"\n") + 1
        while quoted and end and left.count(b'"', 0, end) % 2:
            end = left.rfind(b"\n", 0, end - 1) + 1
        if end:
            yield left[:end]
            left = left[end:]
    if quoted and left.count(b'"') % 2:
        begun = left[left.rfind(b'"') :][:60].decode("utf-8", "replace").splitlines()[0]
        raise DataError(f"a quote is not closed: {begun}")
    if left.strip():
        yield left


# --- tables of any kind -------------------------------------------------------------------------------------


def table(given: EdgeFiles) -> Edges:
    """Any table: the columns of heads, relations and tails are named; without a header, numbered.

    Columns of names beside those of ends, as query services write them (``item``, ``itemLabel``,
    ``itemDescription``, ``itemAltLabel``), are read, and so are KGTK's statements of names.
    """
    edges = Edges.none()
    for path in given.paths:
        for rows in _batches(path, given, given.columns, given.separator, edges):
            head, relation, tail = (edges.tidy(rows[column]) for column in given.columns)
            if tuple(given.columns) == ("node1", "label", "node2"):
                head, relation, tail = _without_literals(edges, given, head, relation, tail)
            else:
                _texts_beside(edges, rows, given.columns)
            edges.add(head, relation, tail)
    for path in given.nodes.paths:
        for rows in _batches(path, given, None, None, edges):
            _add_nodes(edges, path, rows, given.nodes.columns, given.languages)
    return edges


def _texts_beside(edges: Edges, rows: pa.Table, columns: Sequence[str]) -> None:
    """Take names from the columns of a query service's answer."""
    head, relation, tail = columns
    texts = edges.texts
    into = (("Label", texts.names), ("Description", texts.descriptions), ("AltLabel", texts.aliases))
    for column in (head, tail):
        for end, kept in into:
            if (beside := f"{column}{end}") in rows.column_names and beside not in columns:
                words = edges.tidy(rows[beside])
                cells = pc.replace_substring(words, ", ", "|") if end == "AltLabel" else words
                edges.name(edges.tidy(rows[column]), cells, kept)
    if (beside := f"{relation}Label") in rows.column_names and beside not in columns:
        edges.name(edges.tidy(rows[relation]), edges.tidy(rows[beside]), texts.relations)


# How KGTK writes texts, dates, places, numbers (with units), truths.
_LITERAL = r"""^(["'!^@]|[+-]?[0-9.]+([^0-9a-zA-Z]*|Q[0-9]+|[a-z]+)$|(True|False)$)"""


def _without_literals(
    edges: Edges,
    given: EdgeFiles,
    head: pa.ChunkedArray,
    relation: pa.ChunkedArray,
    tail: pa.ChunkedArray,
) -> list[pa.ChunkedArray]:
    """KGTK's edges between entities; names and descriptions become texts, other literals are left out."""
    literal = pc.match_substring_regex(tail, _LITERAL)
    texts = edges.texts
    kinds = {"label": texts.names, "alias": texts.aliases, "description": texts.descriptions}
    rows = pa.table({"head": head, "relation": relation, "tail": tail})
    for row in rows.filter(literal).to_pylist():
        text = unquoted(row["tail"], given.languages)
        into = kinds.get(row["relation"])
        if into is None or text is None:
            edges.left_out["literals" if into is None else "texts in other languages"] += 1
        elif row["relation"] == "alias" and row["head"] in into:
            into[row["head"]] += f"|{text}"
        else:
            into.setdefault(row["head"], text)
    kept = rows.filter(pc.invert(literal))
    return [kept.column(end) for end in ENDS]


def unquoted(cell: str, languages: Sequence[str]) -> str | None:
    r"""A text that KGTK may have quoted; None of one in a language that is not wanted.

    >>> unquoted("'A Film'@en", ["en"]), unquoted('"A \\"Film\\""', ["en"]), unquoted("A Film", ["en"])
    ('A Film', 'A "Film"', 'A Film')
    >>> unquoted("'Ein Film'@de", ["en"]) is None
    True
    """
    if text := re.fullmatch(r"'(.*)'@([A-Za-z-]+)", cell):
        tag = language_of(text[2])
        wanted = {language_of(language) for language in languages} | {"mul", ""}
        if not any(tag == x or tag.startswith(f"{x}-") for x in wanted):
            return None
        return text[1].replace("\\'", "'")
    if text := re.fullmatch(r'"(.*)"', cell):
        return text[1].replace('\\"', '"').replace('""', '"')
    return cell


# Names of columns in tables of nodes, by what they have: KGX, Neo4j and APOC, Gephi, ESCO, Hetionet.
_KINDS = ("label", "name", "types", "description", "aliases")
_NODE_COLUMNS: Mapping[str, Sequence[str]] = {
    "label": (
        "id",
        ":id",
        "_id",
        "nodeid",
        "node_id",
        "identifier",
        "concepturi",
        "uri",
        "iri",
        "item",
        "node1",
        "label",
    ),
    "name": ("name", "preferredlabel", "preflabel", "title", "itemlabel", "label"),
    "types": ("category", "categories", ":label", "_labels", "types", "type", "kind", "class"),
    "description": ("description", "itemdescription", "definition", "desc"),
    "aliases": ("synonym", "synonyms", "altlabels", "altlabel", "aliases", "alias", "itemaltlabel"),
}


def _columns_of_nodes(path: Path, header: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
    """The column of each kind of text of a table of nodes.

    Raises:
        DataError: when there is no column of labels, or not one that was named.
    """
    if columns:
        named = {kind: column for kind, column in zip(_KINDS, columns, strict=False) if column}
        _check_columns(path, header, list(named.values()))
        return named
    folded = {re.sub(r"^(\w*)(:ID).*", r"\2", name).casefold(): name for name in header}
    by_kind: dict[str, str] = {}
    for kind, names in _NODE_COLUMNS.items():
        column = next(
            (folded[name] for name in names if name in folded and folded[name] not in by_kind.values()), None
        )
        if column is not None:
            by_kind[kind] = column
    if "label" not in by_kind:
        raise DataError(
            f"{path} has no column of labels such as id, but {', '.join(header)}; --node-columns names the "
            "columns of label, name, types, description and aliases: id,name,category,description"
        )
    return by_kind


def _add_nodes(
    edges: Edges, path: Path, rows: pa.Table, columns: Sequence[str], languages: Sequence[str]
) -> None:
    """Take the texts of a table of nodes."""
    by_kind = _columns_of_nodes(path, rows.column_names, columns)
    rows = rows.filter(pc.not_equal(pc.utf8_trim_whitespace(rows[by_kind["label"]]), ""))  # APOC: also edges
    labels, texts = edges.tidy(rows[by_kind["label"]]), edges.texts
    edges.notes["nodes"] += len(rows)
    into = {
        "name": texts.names,
        "types": texts.types,
        "description": texts.descriptions,
        "aliases": texts.aliases,
    }
    for label in labels.to_pylist():
        if label:
            texts.names.setdefault(label, "")
    for kind, kept in into.items():
        if kind not in by_kind:
            continue
        cells = rows[by_kind[kind]]
        if kind == "aliases":  # ESCO has one on each line
            cells = pc.replace_substring(pc.utf8_trim(cells, "\r\n"), "\n", "|")
        cells = edges.tidy(cells)
        if kind == "types" and by_kind[kind].casefold() in (":label", "_labels"):  # Neo4j's, and APOC's
            cells = pc.replace_substring_regex(pc.utf8_trim(cells, ":;"), "[:;]", "|")
        plain = pa.array([unquoted(cell, languages) or "" for cell in cells.to_pylist()], pa.string())
        for label, text in zip(labels.to_pylist(), plain.to_pylist(), strict=True):
            if label and text and not kept.get(label):
                kept[label] = text
            elif label and text and kind == "name" and kept[label] != text:
                edges.notes["nodes whose label has another name already"] += 1


def hetionet(given: EdgeFiles) -> Edges:
    """Hetionet's: ``nodes.tsv`` (id, name, kind), ``edges.sif.gz`` (source, metaedge, target) and, for the
    names of relations, ``metaedges.tsv`` (metaedge, abbreviation)."""
    edges = Edges.none()
    for path in given.paths:
        for rows in _batches(path, given, None, "\t", edges):
            columns = set(rows.column_names)
            if {"metaedge", "abbreviation", "inverted"} <= columns:
                continue  # how Hetionet draws and writes metaedges
            if {"source", "metaedge", "target"} <= columns:
                edges.add(rows["source"], rows["metaedge"], rows["target"])
            elif {"id", "name", "kind"} <= columns:
                labels = rows["id"].to_pylist()
                edges.texts.names.update(zip(labels, rows["name"].to_pylist(), strict=True))
                edges.texts.types.update(zip(labels, rows["kind"].to_pylist(), strict=True))
            elif {"metaedge", "abbreviation"} <= columns:
                # "Gene - interacts - Gene", or "Gene > regulates > Gene" where the direction counts
                names = ("".join(re.split(" [->] ", x)[1:2]) for x in rows["metaedge"].to_pylist())
                edges.texts.relations.update(zip(rows["abbreviation"].to_pylist(), names, strict=True))
            else:
                listed = ", ".join(rows.column_names)
                raise DataError(f"{path} is not Hetionet's: it has the columns {listed}")
    return edges


def primekg(given: EdgeFiles) -> Edges:
    """PrimeKG's ``kg.csv``. It has each edge in both directions; the one that comes first is kept.

    Labels are source and id, such as ``NCBI:9796``. A relation has its display name, if it has
    only one and shares it with no other relation.
    """
    edges, seen = Edges.none(), set[tuple[str, str, str]]()
    sources = dict[str, set[str]]()
    wanted = (
        "relation",
        "display_relation",
        *(f"{end}_{of}" for end in "xy" for of in ("source", "id", "name", "type")),
    )
    for path in given.paths:
        for rows in _batches(path, given, wanted, ",", edges):
            of = {column: rows[column].to_pylist() for column in wanted}
            ends = list[list[str]]()
            for end in "xy":
                both = zip(of[f"{end}_source"], of[f"{end}_id"], strict=True)
                ends.append([f"{source}:{number}" for source, number in both])
                edges.texts.names.update(zip(ends[-1], of[f"{end}_name"], strict=True))
                edges.texts.types.update(zip(ends[-1], of[f"{end}_type"], strict=True))
            kept = list[tuple[str, str, str]]()
            for head, relation, tail in zip(ends[0], of["relation"], ends[1], strict=True):
                if head == tail or (tail, relation, head) not in seen:
                    seen.add((head, relation, tail))
                    kept.append((head, relation, tail))
            edges.left_out["edges in the other direction"] += len(rows) - len(kept)
            edges.triples.append(triples_of(kept))
            for pair in zip(of["relation"], of["display_relation"], strict=True):
                sources.setdefault(pair[0], set()).add(pair[1])
    used = Counter(name for names in sources.values() for name in names)
    for relation, names in sources.items():
        name = min(names)
        one = len(names) == 1 and used[name] == 1 and name != ""
        edges.texts.relations[relation] = name if one else relation.replace("_", " ")
    return edges


def conceptnet(given: EdgeFiles) -> Edges:
    """ConceptNet's assertions, those between concepts of the wanted languages.

    Labels are URIs such as ``/c/en/land_reform``, without part of speech and sense; names are their terms.
    """
    edges = Edges.none()
    pattern = f"^/c/({'|'.join(map(re.escape, given.languages))})/[^/]"
    other = f"rows that are not of two concepts of {', '.join(given.languages)}"
    for path in given.paths:
        for rows in _batches(path, given, ("2", "3", "4"), "\t", edges):
            kept = rows.filter(pc.and_(*(pc.match_substring_regex(rows[x], pattern) for x in ("3", "4"))))
            edges.left_out[other] += len(rows) - len(kept)
            head, tail = (
                pc.replace_substring_regex(kept[x], r"^(/c/[^/]+/[^/]+).*$", r"\1") for x in ("3", "4")
            )
            edges.add(head, kept["2"], tail)
            for label in kept["2"].unique().to_pylist():  # /r/AtLocation
                words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", label.removeprefix("/r/"))
                edges.texts.relations[label] = words.replace("_", " ").replace("/", " ").lower()
            for ends in (head, tail):
                for label in ends.unique().to_pylist():
                    edges.texts.names[label] = label.rpartition("/")[2].replace("_", " ")
    return edges


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


class ReadEdges(NamedTuple):
    """A graph of files of edges, and counts of what was read.

    Attributes:
        repeated: triples that were there again.
        left_out: rows that were left out, by reason.
        notes: what else is worth a line.
    """

    graph: KnowledgeGraph
    repeated: int = 0
    left_out: Mapping[str, int] = {}
    notes: Mapping[str, int] = {}


def read_edges(kind: str, given: EdgeFiles, name: str) -> ReadEdges:
    """The graph of files of edges.

    Args:
        kind: a key of :data:`EDGES`.

    Raises:
        DataError: naming the file, when it cannot be read; when no triple is found.
    """
    edges = EDGES[kind](given)
    if not any(map(len, edges.triples)):
        left = ", ".join(f"{count:,} {what}" for what, count in edges.left_out.items() if count)
        raise DataError(
            f"{', '.join(map(str, given.paths))}: there is no triple"
            + (f" (left out: {left})" if left else "")
        )
    triples = pa.concat_tables(edges.triples)
    once = triples.unify_dictionaries().group_by(list(ENDS), use_threads=False).aggregate([])
    nodes = list(edges.texts.names) if given.nodes.paths else []
    graph = build_graph(name, {"train": once}, edges.texts, extra_entities=nodes)
    notes = Counter(edges.notes)
    if given.nodes.paths:
        notes["entities without a row in the table of nodes"] = len(graph.entities) - len({*nodes})
    left_out, notes = +edges.left_out, +notes
    return ReadEdges(graph, len(triples) - len(once), left_out, notes)
