"""RDF files and Wikidata's JSON dumps as streams of statements, passed on one by one.

This module knows no ids and no folders: a :class:`Listener` gets labels and texts.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol, cast
from urllib.parse import quote

from kgmlm.core import files
from kgmlm.core.errors import DataError, first_line
from kgmlm.importing.vocabulary import (
    ALIGNED,
    ALIGNMENT,
    ASSOCIATIONS,
    DENIED,
    LEFT_OUT,
    LEFT_OUT_BELOW,
    LINKS,
    MEASURES,
    NEGATED,
    NOTES,
    OWL,
    PAGES,
    RDF,
    RDFS,
    SIGNS,
    SKOS,
    TERMS,
    Kind,
    Part,
)

Reader = Callable[[IO[bytes], Path, "Listener", "str | None", Any], None]
Advance = Callable[[int], None]  # how many more bytes of the file are read
SUFFIXES = {
    ".nt": "ntriples",
    ".ntx": "ntriples",
    ".nq": "nquads",
    ".ttl": "turtle",
    ".turtle": "turtle",
    ".n3": "n3",
    ".tql": "nquads",
    ".jsonld": "jsonld",
    ".trig": "trig",
    ".rdf": "rdfxml",
    ".owl": "rdfxml",
    ".xml": "rdfxml",
    ".json": "wikidata",
    ".jsonl": "wikidata",
    ".ndjson": "wikidata",
}
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")

# A text may be a node, which has its literal by one of these predicates.
VALUES = ("http://www.w3.org/1999/02/22-rdf-syntax-ns#value", "http://www.w3.org/2008/05/skos-xl#literalForm")
_ISA = (f"{RDF}type", f"{RDFS}subClassOf")
_CARDINALITIES = tuple(
    f"{OWL}{limit}" for limit in ("cardinality", "minCardinality", "maxCardinality", "qualifiedCardinality",
                                   "minQualifiedCardinality", "maxQualifiedCardinality")
)  # fmt: skip
# A node that stands for a statement has its parts by these predicates.
_PARTS_OF_STATEMENTS = (
    *(f"{OWL}annotated{part}" for part in ("Source", "Property", "Target")),
    *(f"{RDF}{part}" for part in ("subject", "predicate", "object")),
)
_OF_WIKIDATA = re.compile(r"https?://www\.wikidata\.org/(entity/statement|value|reference)/")
_REIFIES = f"{RDF}reifies"


class Listener(Protocol):
    """Listener of the statements of a file.

    Attributes:
        texts_by: the predicates whose objects are texts, each with the kind and the order of its texts.
        kept: predicates that are never left out.
    """

    texts_by: Mapping[str, tuple[Kind, int]]
    kept: frozenset[str]

    def triple(self, head: str, relation: str, tail: str) -> None:
        """Two entities are linked."""

    def text(self, subject: str, kind: Kind, value: str, language: str, order: int, predicate: str) -> None:
        """A text of an entity or a relation; of several texts the one of the lowest order counts."""

    def value(self, node: str, value: str, language: str) -> None:
        """A node has a text, which counts for every entity that the node is a text of."""

    def text_node(self, subject: str, predicate: str, node: str) -> None:
        """A node is a text of an entity, if it turns out to have one."""

    def attribute(self, subject: str, predicate: str, value: str) -> None:
        """An entity has a number or a date."""

    def none(self, node: str) -> None:
        """A restriction's cardinality is zero, or at least zero, so that it links nothing."""

    def deprecated(self, label: str) -> None:
        """An entity is no longer to be used."""

    def left_out(self, why: str, predicate: str) -> None:
        """A statement that a graph of entities has no place for; ``why`` is what is counted."""

    def property(self, label: str) -> None:
        """A label is declared as a property."""

    def alignment(self, node: str) -> None:
        """A node is a cell of an alignment, whose ends are the same where it has no relation."""

    def association(self, node: str, part: Part, value: str) -> None:
        """A node stands for a triple, of which this is a part."""

    def reifier(self, label: str) -> None:
        """An entity stands for a statement about a triple: what is said about it is not part of the graph."""

    def new_blank(self) -> str:
        """A label for a blank node that occurs first in its file."""


def format_of(path: Path) -> str:
    """The format that a file's name stands for.

    Raises:
        DataError: when it stands for none.
    """
    suffixes = [s.casefold() for s in path.suffixes]
    last = suffixes[-2:-1] if suffixes[-1:] and suffixes[-1] in PACKED else suffixes[-1:]
    if not last or last[0] not in SUFFIXES:
        raise DataError(
            f"{path}: its name does not say its format ({', '.join(SUFFIXES)}; with {', '.join(PACKED)}, "
            f"too); --format names one of {', '.join(READERS)}; --columns reads a table"
        )
    return SUFFIXES[last[0]]


class _Filter(io.RawIOBase):
    """A file whose bytes go through :meth:`passed`; a subclass says what becomes of them."""

    file: IO[bytes]
    left = b""  # passed, and not read yet
    ended = False

    def passed(self, data: bytes) -> bytes:
        """Bytes of the file as they are to be read; called with none once, at its end."""
        raise NotImplementedError

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.left and not self.ended:
            data = self.file.read(len(buffer))
            self.ended = not data
            self.left = self.passed(data)
        n = min(len(buffer), len(self.left))
        buffer[:n], self.left = self.left[:n], self.left[n:]
        return n


class _Counted(_Filter):
    """A file that tells how many of its bytes are read."""

    def __init__(self, file: IO[bytes], advance: Advance) -> None:
        self.file, self.advance, self.size = file, advance, 0

    def passed(self, data: bytes) -> bytes:
        self.size += len(data)
        self.advance(len(data))
        return data


class _Unpacked(_Filter):
    """An unpacked file, whose packing is known by its suffix or its first bytes.

    Raises:
        ValueError: when it is more than :data:`~kgmlm.core.files.RATIO` times as large as what was read.
    """

    def __init__(self, counted: _Counted, path: Path) -> None:
        self.packed, self.size = counted, 0
        packed, suffix = io.BufferedReader(counted, 1 << 20), path.suffix.casefold()
        head = packed.peek(8)
        openers: tuple[tuple[str, bytes, Any], ...] = (
            (".gz", b"\x1f\x8b", gzip.open),
            (".xz", b"\xfd7zXZ\0", lzma.open),
            (".bz2", b"BZh", bz2.open),
            (".zst", b"\x28\xb5\x2f\xfd", _Zstd),
            (".zip", b"PK\x03\x04", _zip),
        )
        opener = next((o for end, begin, o in openers if suffix == end or head.startswith(begin)), None)
        self.file = cast("IO[bytes]", packed) if opener is None else opener(packed)

    def passed(self, data: bytes) -> bytes:
        self.size += len(data)
        if self.size > files.UNPACKED and self.size > files.RATIO * self.packed.size:
            raise ValueError(f"it unpacks to more than {files.RATIO} times its size")
        return data


class _Zstd(_Filter):
    """A Zstandard file, unpacked.

    Raises:
        EOFError: when it is cut off or damaged.
    """

    def __init__(self, file: IO[bytes]) -> None:
        import pyarrow as pa

        self.file = cast("IO[bytes]", pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd"))

    def passed(self, data: bytes) -> bytes:
        return data

    def readinto(self, buffer: Any) -> int:
        try:
            return super().readinto(buffer)
        except OSError as error:
            if error.errno is not None:
                raise
            raise EOFError(first_line(error)) from None


def _zip(file: IO[bytes]) -> IO[bytes]:
    """The file that a ZIP archive has.

    Raises:
        ValueError: when it has none, or several, or is encrypted.
    """
    archive = zipfile.ZipFile(io.BytesIO(file.read()))
    names = [of.filename for of in archive.infolist() if not of.is_dir()]
    names = [name for name in names if not name.startswith("__MACOSX/")]
    if len(names) != 1:
        raise ValueError(f"the archive has {len(names):,} files; unpack it, and name those to import")
    try:
        return archive.open(names[0])
    except RuntimeError as error:  # of an encrypted file, or of a compression that is not known
        raise ValueError(first_line(error)) from None


_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_SHAPES = ((b"<\0?\0", "utf-16-le"), (b"\0<\0?", "utf-16-be"))  # of XML without a byte order mark
_DECLARED = re.compile(r"""\A\s*(<\?xml\b[^>]*?)(\s+encoding\s*=\s*(["'])([A-Za-z][A-Za-z0-9._-]*)\3)""")
_TAG = re.compile(rb'("@[A-Za-z]{2,3})_([A-Za-z]{2}|[A-Za-z]{4}|[0-9]{3})(?=[\s.,;\])}])')
_TAG_BYTES = 16  # more than the longest
HEAD = 512  # bytes in which an XML file says its encoding


class Utf8(_Filter):
    """A text file as UTF-8 without a byte order mark, whatever encoding that mark or XML's first line says.

    Args:
        xml: whether it is XML.
        encoding: of a file without a byte order mark; empty is UTF-8.

    Raises:
        ValueError: for an encoding that is not known, or a file that is not in it.
    """

    def __init__(self, file: IO[bytes], xml: bool, encoding: str = "") -> None:
        head = b""
        while len(head) < HEAD and (more := file.read(HEAD - len(head))):
            head += more
        name, skip = next(((name, len(bom)) for bom, name in _BOMS if head.startswith(bom)), (encoding, 0))
        if xml and not name:
            declared = _DECLARED.search(head.decode("latin-1"))
            name = next(
                (n for shape, n in _SHAPES if head.startswith(shape)), declared[4] if declared else ""
            )
        try:
            codec = codecs.lookup(name or "utf-8")
            "".encode(codec.name)  # some codecs are not of texts
        except LookupError:
            raise ValueError(f"it declares the encoding '{name}', which is not known") from None
        self.encoding, self.file = name, file
        self.decoder = None if codec.name == "utf-8" else codec.incrementaldecoder()
        self.left = self.passed(head[skip:])
        if xml:  # the declaration is no longer true, and blanks before it are no XML
            text = self.left.decode("utf-8", "surrogateescape")
            text = _DECLARED.sub(lambda declared: declared[1], re.sub(r"\A\s+(?=<\?xml\b)", "", text), 1)
            self.left = text.encode("utf-8", "surrogateescape")

    def passed(self, data: bytes) -> bytes:
        """Bytes of the file as UTF-8."""
        if self.decoder is None:
            return data
        try:
            return self.decoder.decode(data, not data).encode()
        except UnicodeDecodeError:
            raise ValueError(f"it is not in {self.encoding}, although it says so") from None


class _Tags(_Filter):
    """RDF with a hyphen in language tags: no parser takes the underscore of ``@en_US``."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.held = file, b""

    def passed(self, data: bytes) -> bytes:
        whole = _TAG.sub(rb"\1-\2", self.held + data)
        end = max(0, len(whole) - _TAG_BYTES) if data else len(whole)  # a tag may go on in the next bytes
        self.held = whole[end:]
        return whole[:end]


# What a file that the parser did not understand seems to be, by its beginning; the text follows a "; ".
_BEGINNINGS = (
    (r"\A\s*(@prefix|@base|PREFIX\b|BASE\b)", "it looks like Turtle: --format turtle reads it"),
    (r"\A\s*(<[a-z]+:[^>\s]*>|_:\S+)\s+<", "it looks like N-Triples: --format turtle reads it"),
    (r"\A\s*(Prefix|Ontology)\(", "it is in OWL's functional syntax, which is not read: save it as Turtle"),
    (r"\A\s*(Prefix|Ontology):", "it is in OWL's Manchester syntax, which is not read: save it as Turtle"),
    (r"\A\s*(<\?xml[^>]*>\s*)?<Ontology\b", "it is OWL/XML, which is not read: save it as RDF/XML or Turtle"),
    (r"\Aformat-version:", "it is OBO, which is not read: save it as Turtle"),
    (r"(?i)\A\s*(<!DOCTYPE html|<html)", "it is a web page"),
    (r"\A\s*(<\?xml|<rdf:RDF)", "it looks like RDF/XML: --format rdfxml reads it"),
    (r'\A\s*[\[{]\s*[\[{]?\s*"@(context|id|graph)"', "it is JSON-LD: --format jsonld reads it"),
    (r'\A\s*\{\s*"head"\s*:\s*\{\s*"(vars|link)"', "it is a SPARQL result in JSON: ask for CSV instead"),
    (
        r'"type"\s*:\s*"bundle"|"spec_version"\s*:\s*"2\.',
        "it is a STIX bundle: --format stix reads it",
    ),
    (
        r'\A\s*\{\s*"(graphs|meta)"\s*:',
        "it looks like OBO Graphs' JSON, which is not read: ROBOT converts it to OWL (robot convert -i IN -o "
        "OUT.owl)",
    ),
    (
        r'"(directed|multigraph)"\s*:|\A\s*\{\s*"(nodes|links|edges)"\s*:',
        "it looks like a node-link graph, which is not read: write its edges as a table "
        "(pandas.DataFrame(...).to_csv), and read that by --columns, the nodes by --nodes",
    ),
    (
        r'"type"\s*:\s*"(node|relationship)"',
        "it looks like an export of Neo4j: bolt://HOST reads the server, and --columns the CSV of "
        "apoc.export.csv (_start,_type,_end) with the same file as --nodes",
    ),
    (
        r'\A\s*\[?\s*\{\s*"(?!(type|id|pageid|entities|labels)")[^"]*"\s*:\s*["0-9n]',
        "it looks like a table: --columns names the keys of head, relation and tail",
    ),
    (r"\A\s*\[\s*\[", "it is an array of arrays: save it as CSV, and name its --columns"),
)


def hint_of(head: bytes, asked: str) -> str:
    """Guess the format of a file that could not be read, by its first bytes; empty where none fits."""
    text = head.decode("latin-1").removeprefix("\u00ef\u00bb\u00bf")
    hint = next((why for pattern, why in _BEGINNINGS if re.search(pattern, text)), "")
    own = {"ntriples": "turtle", "nquads": "turtle", "trig": "turtle"}.get(asked, asked)
    return "" if not hint or f"--format {own} " in hint else f"; {hint}"


def read_statements(
    path: Path,
    listener: Listener,
    kind: str | None = None,
    base: str | None = None,
    advance: Advance = lambda n: None,
    context: Any = None,
) -> None:
    """Tell a listener all that a file says.

    Args:
        kind: its format, a key of :data:`READERS`; by default by its name.
        base: what relative IRIs are relative to.
        context: for JSON-LD: replaces contexts at addresses, which are not fetched.

    Raises:
        DataError: naming the file, when it is cut off, damaged or of another format.
    """
    asked = kind or format_of(path)
    with unpacked(path, advance) as file:
        head = file.peek(HEAD)[:HEAD]
        try:
            text = io.BufferedReader(Utf8(cast("IO[bytes]", file), asked == "rdfxml"), 1 << 16)
            READERS[asked](cast("IO[bytes]", text), path, listener, base, context)
        except DataError as error:
            raise DataError(f"{error}{hint_of(head, asked)}") from None


@contextmanager
def unpacked(path: Path, advance: Advance = lambda n: None) -> Iterator[io.BufferedReader]:
    """Open a file that may be packed, for reading.

    Args:
        advance: told how many bytes of the file were read.

    Raises:
        DataError: naming the file, when it or its packing cannot be read.
    """
    try:
        with path.open("rb") as raw:
            yield io.BufferedReader(_Unpacked(_Counted(raw, advance), path), 1 << 16)
    except DataError:
        raise
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is cut off or damaged: {error}") from None
    except ValueError as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except OSError as error:
        if error.errno is not None:
            raise
        raise DataError(f"{path} cannot be read: {error}") from None


# --- RDF --------------------------------------------------------------------------------------------------


class _Whole(_Filter):
    """An XML file that notices its own missing end, which pyoxigraph does not."""

    def __init__(self, file: IO[bytes]) -> None:
        from xml.parsers.expat import ParserCreate

        self.file, self.parser = file, ParserCreate("UTF-8")

    def passed(self, data: bytes) -> bytes:
        self.parser.Parse(data, not data)
        return data


def _rdf_reader(name: str) -> Reader:
    """The reader of one of RDF's formats; ``name`` as pyoxigraph has it."""

    def read(file: IO[bytes], path: Path, listener: Listener, base: str | None, context: Any = None) -> None:
        from xml.parsers.expat import ExpatError

        try:
            import pyoxigraph
        except ImportError as error:
            raise DataError(f"reading RDF needs pyoxigraph ({error}): pip install 'kgmlm[rdf]'") from None
        source: Any = io.BufferedReader(_Whole(file) if name == "RDF_XML" else _Tags(file))
        if name in ("N_TRIPLES", "N_QUADS"):
            source = io.BufferedReader(_WithoutStars(source, listener))
        try:
            if name == "JSON_LD":  # the parser does not see where a stream is cut off
                source = _whole_json(source, context)
            format = getattr(pyoxigraph.RdfFormat, name)
            _tell(pyoxigraph.parse(source, format, base_iri=base, lenient=True), listener)
        except (SyntaxError, ExpatError) as error:
            why = str(error.msg if isinstance(error, SyntaxError) else error)
            hint = "; --base says what relative IRIs are relative to" if "No scheme" in why else ""
            raise DataError(f"{path} is cut off, damaged or not {_WORDS[name]}: {why}{hint}") from None
        except ValueError as error:
            raise DataError(f"{path} cannot be read: {error}") from None

    return read


class _WithoutStars(_Filter):
    """N-Triples without the lines of RDF-star, statements about triples, which are counted."""

    def __init__(self, file: IO[bytes], listener: Listener) -> None:
        self.file, self.listener, self.held = file, listener, b""

    def passed(self, data: bytes) -> bytes:
        *lines, self.held = (self.held + data).split(b"\n") if data else [self.held, b""]
        kept = []
        for line in lines:
            if b"<<" in line and _STARRED.match(line):
                predicate = re.search(rb">>\s*<([^>]*)>|^\s*[^<\s]*(?:<[^>]*>)?\s+<([^>]*)>\s+<<", line)
                named = (predicate[1] or predicate[2]) if predicate else b""
                self.listener.left_out(STARS, named.decode("utf-8", "replace"))
            else:
                kept.append(line)
        return b"".join(line + b"\n" for line in kept)


STARS = "statements about triples"
_STARRED = re.compile(rb"\s*(<<|(<[^>]*>|_:\S+)\s+<[^>]*>\s+<<(?!\())")
_SCHEMA_ORG = re.compile(r"https?://(www\.)?schema\.org(/(docs/jsonldcontext\.jsonl?d?)?)?")
# The context of schema.org, as far as a graph of entities needs it: its words, and whose values are entities.
_SCHEMA_CONTEXT = {
    "@vocab": "http://schema.org/",
    "type": "@type",
    "id": "@id",
    **{
        name: {"@id": f"http://schema.org/{name}", "@type": "@id"}
        for name in ("sameAs", "url", "image", "logo", "mainEntityOfPage", "additionalType", "license")
    },
}


def _whole_json(file: IO[bytes], context: Any) -> Any:
    """A JSON document that is whole, with its contexts in it.

    Args:
        context: stands for contexts at addresses, but for that of schema.org, which is known.

    Raises:
        SyntaxError: when it is not whole.
        ValueError: when it has a context at an address that nothing stands for.
    """
    text = file.read()
    try:
        document = files.parse_json(text)
    except ValueError as error:
        raise SyntaxError(first_line(error)) from None
    if b'"@' not in text:
        raise SyntaxError("it has no keyword such as @context")
    return io.BytesIO(
        json.dumps(_with_contexts(document, context)).encode() if b'"@context"' in text else text
    )


def _with_contexts(value: Any, context: Any) -> Any:
    """A value of JSON-LD whose contexts at addresses are written out."""
    if isinstance(value, list):
        return [_with_contexts(item, context) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _context(own, context) if key == "@context" else _with_contexts(own, context)
        for key, own in value.items()
    }


def _context(own: Any, context: Any) -> Any:
    """A context without addresses.

    Raises:
        ValueError: when nothing stands for an address.
    """
    if isinstance(own, list):
        return [_context(part, context) for part in own]
    if isinstance(own, dict):
        imported = own.get("@import")
        terms = {key: _with_contexts(value, context) for key, value in own.items() if key != "@import"}
        return [_context(imported, context), terms] if imported else terms
    if not isinstance(own, str):
        return own
    if _SCHEMA_ORG.fullmatch(own):
        return _SCHEMA_CONTEXT
    if context is None:
        raise ValueError(
            f"its context is at {own}, which is not fetched: save it as a file, and name that by --context"
        )
    return context


_WORDS = {
    "JSON_LD": "JSON-LD",
    "N3": "N3",
    "N_TRIPLES": "N-Triples",
    "N_QUADS": "N-Quads",
    "TURTLE": "Turtle",
    "TRIG": "TriG",
    "RDF_XML": "RDF/XML",
}


XSD = "http://www.w3.org/2001/XMLSchema#"
TOLD = re.compile(
    "decimal|integer|float|double|int|long|short|byte|(nonNegative|positive|negative|nonPositive)Integer"
    "|unsigned(Int|Long|Short|Byte)|date|dateTime|dateTimeStamp|gYear|gYearMonth"
)  # types of literals that are attributes: numbers and dates


def _tell(quads: Any, listener: Listener) -> None:
    """Tell what statements say; names of blank nodes hold within their file alone."""
    from pyoxigraph import BlankNode, Literal, NamedNode

    blank: dict[str, str] = {}

    def label(node: Any) -> str:
        value: str = node.value
        if type(node) is NamedNode:
            return _absolute(value)
        if value not in blank:
            blank[value] = listener.new_blank()
        return blank[value]

    for quad in quads:
        subject, predicate, value = quad.subject, _absolute(quad.predicate.value), quad.object
        node = type(value)
        text = listener.texts_by.get(predicate)
        why = (
            "" if predicate in listener.kept or text is not None else _why_left_out(subject, predicate, value)
        )
        if why:
            listener.left_out(why, predicate)
            if why == NOTES and node is BlankNode:
                listener.reifier(label(value))
        elif predicate in ASSOCIATIONS and node is not Literal:
            if predicate.startswith(ALIGNMENT):
                listener.alignment(label(subject))
            listener.association(label(subject), ASSOCIATIONS[predicate], label(value))
        elif predicate in ALIGNED and node is Literal:
            sign = SIGNS.get(value.value.strip())
            listener.association(label(subject), "relation", sign or DENIED)
        elif node is Literal and (
            (predicate == NEGATED and value.value in ("true", "1"))
            or (predicate in MEASURES and value.value.strip("+0.") == "")
        ):
            listener.association(label(subject), "relation", DENIED)
        elif node is Literal:
            if predicate in VALUES and text is None:
                listener.value(label(subject), value.value, value.language or "")
            elif predicate == f"{OWL}deprecated" and value.value in ("true", "1"):
                listener.deprecated(label(subject))
            elif predicate in _CARDINALITIES:
                if value.value.strip("+-0") == "":
                    listener.none(label(subject))
            elif text is None and TOLD.fullmatch(value.datatype.value.removeprefix(XSD)):
                listener.attribute(label(subject), predicate, value.value)
            elif text is None:
                listener.left_out("literals", predicate)
            else:
                listener.text(label(subject), text[0], value.value, value.language or "", text[1], predicate)
        elif node is NamedNode or node is BlankNode:
            if text is not None:
                listener.text_node(label(subject), predicate, label(value))
            elif _OF_WIKIDATA.match(subject.value) or _OF_WIKIDATA.match(value.value):
                listener.left_out("statements of Wikidata about statements", predicate)
            elif predicate in _PARTS_OF_STATEMENTS:
                listener.reifier(label(subject))
            elif (
                predicate in _ISA
                and predicate not in listener.kept
                and value.value.startswith((OWL, SKOS, RDF, RDFS))
            ):
                if type(subject) is not BlankNode:  # else it is an expression, and counted as such
                    listener.left_out(TERMS, value.value)
                if value.value in _PROPERTIES and type(subject) is NamedNode:
                    listener.property(label(subject))
                if value.value in (f"{OWL}DeprecatedClass", f"{OWL}DeprecatedProperty"):
                    listener.deprecated(label(subject))
            else:
                listener.triple(label(subject), predicate, label(value))
        else:
            listener.left_out(STARS, predicate)
            if predicate == _REIFIES:
                listener.reifier(label(subject))


_PROPERTIES = {f"{RDF}Property"} | {
    f"{OWL}{kind}Property"
    for kind in (
        "Object", "Datatype", "Annotation", "Ontology", "Transitive", "Symmetric", "Asymmetric", "Reflexive",
        "Irreflexive", "Functional", "InverseFunctional", "Deprecated",
    )
}  # fmt: skip
_PAGE = re.compile(
    r"https?://([a-z-]+\.)?(m\.)?(wikipedia|wiktionary|wikibooks|wikiquote|wikisource|wikivoyage|wikinews|"
    r"wikiversity|wikimedia)\.org/|https?://(www\.)?wikidata\.org/wiki/Special:"
)
_OF_WIKIBASE = "http://wikiba.se/ontology#"
_DIRECT = "http://www.wikidata.org/prop/direct/"
_ITEM = re.compile(r"https?://www\.wikidata\.org/entity/[QPL][0-9]+")


def _why_left_out(subject: Any, predicate: str, value: Any) -> str:
    """Why a statement is about files, records or pages and not about the world; empty if it is not."""
    if why := LEFT_OUT.get(predicate) or next((w for x, w in LEFT_OUT_BELOW if predicate.startswith(x)), ""):
        return why
    about, named = getattr(subject, "value", ""), getattr(value, "value", "")
    about_pages = predicate == f"{RDF}type" or re.match(r"https?://schema\.org/", predicate)
    if about_pages and _PAGE.match(about):
        return PAGES
    if predicate == f"{RDF}type" and named.startswith(_OF_WIKIBASE):
        return TERMS
    is_iri = hasattr(value, "value") and not hasattr(value, "language")
    if is_iri and about_pages and _PAGE.match(named):
        return PAGES
    if is_iri and predicate.startswith(_DIRECT) and not _ITEM.fullmatch(named):
        return "values that are not known" if "/.well-known/genid/" in named else LINKS
    if predicate == f"{OWL}sameAs" and re.match(r"https?://([a-z]+\.)?(dbpedia|yago-knowledge)\.org/", about):
        return LINKS
    return ""


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def _absolute(value: str) -> str:
    """An IRI as it is written, but for characters that are not printed.

    People write blanks, brackets and bars into IRIs, which their own tools forgive.

    Raises:
        SyntaxError: for a relative one.
    """
    value = value.strip()
    if not _SCHEME.match(value):
        raise SyntaxError(f"No scheme found in the IRI '{value}'")
    if value.isprintable():
        return value
    return "".join(c if c.isprintable() else quote(c) for c in value)


# --- Wikidata ---------------------------------------------------------------------------------------------


_LONGEST = 2**26  # bytes of a line


def _documents(file: IO[bytes], path: Path) -> Iterator[Mapping[str, Any]]:
    """The entities of a dump: an array with one on each line, or a JSON object on each line.

    An object of several entities, as Wikidata's API answers, is taken, too.
    """
    begun = ended = False
    for number, line in enumerate(iter(lambda: file.readline(_LONGEST + 1), b""), 1):
        if len(line) > _LONGEST:
            raise DataError(f"{path}:{number} is longer than {_LONGEST:,} bytes: no entity of Wikidata is")
        text = line.strip().removesuffix(b",")
        if number == 1 and text == b"[":
            begun = True
        elif text == b"]" and begun:
            ended = True
        elif text:
            try:
                document = files.parse_json(text)
            except ValueError as error:  # of JSON and of UTF-8
                raise DataError(
                    f"{path}:{number} is cut off or not a Wikidata dump with an entity on each line ({error})"
                ) from None
            several = document.get("entities") if isinstance(document, dict) else None
            for entity in several.values() if isinstance(several, dict) else [document]:
                if not isinstance(entity, dict) or not _is_id(entity.get("id")):
                    raise DataError(f"{path}:{number} is not an entity of Wikidata: it has no id such as Q42")
                yield entity
    if begun and not ended:
        raise DataError(f"{path} is cut off: the ']' at its end is missing")


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Z][0-9]+(-[A-Z][0-9]+)?", value) is not None


def _truthy(claims: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Return an entity's statements as ``wdt:`` has them: the preferred claims, or else the normal ones."""
    for relation, statements in (claims or {}).items():  # what is empty is written as []
        ranks = [statement.get("rank", "normal") for statement in statements]
        best = "preferred" if "preferred" in ranks else "normal"
        for statement, rank in zip(statements, ranks, strict=True):
            if rank == best:
                yield relation, statement["mainsnak"]


def _read_wikidata(
    file: IO[bytes], path: Path, listener: Listener, base: str | None, context: Any = None
) -> None:
    """Labels, descriptions, aliases, and truthy claims between items."""
    for document in _documents(file, path):
        label = document["id"]
        try:
            kinds: tuple[tuple[Kind, str], ...] = (("name", "labels"), ("description", "descriptions"))
            for kind, column in kinds:
                for language, text in (document.get(column) or {}).items():
                    listener.text(label, kind, text["value"], language, 0, column)
            for language, texts in (document.get("aliases") or {}).items():
                for text in texts:
                    listener.text(label, "alias", text["value"], language, 0, "aliases")
            for relation, snak in _truthy(document.get("claims")):
                value = snak.get("datavalue", {}) if snak["snaktype"] == "value" else {}
                item = value["value"] if value.get("type") == "wikibase-entityid" else {}
                if item.get("entity-type") == "item":
                    tail = item.get("id") or f"Q{item['numeric-id']}"
                    if not (_is_id(relation) and _is_id(tail)):
                        raise KeyError(f"{relation} {tail}")
                    listener.triple(label, relation, tail)
                elif value.get("type") == "quantity":
                    listener.attribute(label, relation, value["value"]["amount"])
                elif value.get("type") == "time":
                    listener.attribute(label, relation, value["value"]["time"])
                else:
                    listener.left_out(
                        "literals" if value and not item else "claims without an item", relation
                    )
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path}: '{label}' is not as Wikidata's dumps have entities ({error!r})"
            ) from None


READERS: dict[str, Reader] = {
    "ntriples": _rdf_reader("N_TRIPLES"),
    "nquads": _rdf_reader("N_QUADS"),
    "turtle": _rdf_reader("TURTLE"),
    "trig": _rdf_reader("TRIG"),
    "rdfxml": _rdf_reader("RDF_XML"),
    "n3": _rdf_reader("N3"),
    "jsonld": _rdf_reader("JSON_LD"),
    "wikidata": _read_wikidata,
}
