"""RDF files and Wikidata's JSON dumps as streams of statements, told one by one.

Knows no ids and no folders: who listens (a :class:`Listener`) is told labels and texts.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal, Protocol, cast

from kgmlm.kg import DataError

Kind = Literal["name", "description", "alias"]
Advance = Callable[[int], None]  # how many more bytes of the file are read

SUFFIXES = {
    ".nt": "ntriples",
    ".nq": "nquads",
    ".ttl": "turtle",
    ".trig": "trig",
    ".rdf": "rdfxml",
    ".owl": "rdfxml",
    ".xml": "rdfxml",
    ".json": "wikidata",
    ".jsonl": "wikidata",
    ".ndjson": "wikidata",
}
_PACKED = (".gz", ".bz2")

# The names first; which of several counts is in this order.
TEXT_PREDICATES: dict[str, tuple[Kind, int]] = {
    "http://www.w3.org/2000/01/rdf-schema#label": ("name", 0),
    "http://www.w3.org/2004/02/skos/core#prefLabel": ("name", 1),
    "http://schema.org/name": ("name", 2),
    "https://schema.org/name": ("name", 2),
    "http://schema.org/description": ("description", 0),
    "https://schema.org/description": ("description", 0),
    "http://www.w3.org/2000/01/rdf-schema#comment": ("description", 1),
    "http://www.w3.org/2004/02/skos/core#altLabel": ("alias", 0),
    "http://schema.org/alternateName": ("alias", 1),
    "https://schema.org/alternateName": ("alias", 1),
}


class Listener(Protocol):
    """Who is told what a file says."""

    def triple(self, head: str, relation: str, tail: str) -> None:
        """Two entities are linked."""

    def text(self, subject: str, kind: Kind, value: str, language: str, order: int) -> None:
        """A text of an entity or a relation; of several texts the one of the lowest order counts."""

    def left_out(self, why: str) -> None:
        """A statement that a graph of entities has no place for; ``why`` is what is counted."""

    def new_blank(self) -> str:
        """A label for a blank node that occurs first in its file."""


def format_of(path: Path) -> str:
    """The format that a file's name stands for.

    Raises:
        DataError: when it stands for none.
    """
    suffixes = [s.casefold() for s in path.suffixes]
    last = suffixes[-2:-1] if suffixes[-1:] and suffixes[-1] in _PACKED else suffixes[-1:]
    if not last or last[0] not in SUFFIXES:
        raise DataError(
            f"{path}: its name does not say its format ({', '.join(SUFFIXES)}, with .gz or .bz2 or without); "
            f"--format names one of {', '.join(READERS)}"
        )
    return SUFFIXES[last[0]]


class _Counted(io.RawIOBase):
    """A file that tells how many of its bytes are read."""

    def __init__(self, file: IO[bytes], advance: Advance) -> None:
        self.file, self.advance = file, advance

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.file.read(len(buffer))
        buffer[: len(data)] = data
        self.advance(len(data))
        return len(data)


def _unpacked(file: IO[bytes], path: Path) -> IO[bytes]:
    suffix = path.suffix.casefold()
    if suffix == ".gz":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=file))
    return cast("IO[bytes]", bz2.BZ2File(file)) if suffix == ".bz2" else file


def read_statements(
    path: Path,
    told: Listener,
    kind: str | None = None,
    base: str | None = None,
    advance: Advance = lambda n: None,
) -> None:
    """Tell a listener all that a file says.

    Args:
        kind: its format, a key of :data:`READERS`; by default by its name.
        base: what relative IRIs are relative to.

    Raises:
        DataError: naming the file, when it is cut off, damaged or of another format.
    """
    reader = READERS[kind or format_of(path)]
    try:
        with path.open("rb") as raw, io.BufferedReader(_Counted(raw, advance), 1 << 20) as counted:
            reader(_unpacked(counted, path), path, told, base)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is cut off or damaged: {error}") from None
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except OSError as error:
        if error.errno is not None:
            raise
        raise DataError(f"{path} cannot be read: {error}") from None


# --- RDF --------------------------------------------------------------------------------------------------


class _Whole(io.RawIOBase):
    """An XML file that notices its own missing end, which pyoxigraph does not."""

    def __init__(self, file: IO[bytes]) -> None:
        from xml.parsers.expat import ParserCreate

        self.file, self.parser = file, ParserCreate()
        self.ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.file.read(len(buffer))
        buffer[: len(data)] = data
        if not self.ended:
            self.parser.Parse(data, not data)
        self.ended = not data
        return len(data)


def _rdf_reader(name: str) -> Callable[[IO[bytes], Path, Listener, str | None], None]:
    """The reader of one of RDF's formats; ``name`` as pyoxigraph has it."""

    def read(file: IO[bytes], path: Path, told: Listener, base: str | None) -> None:
        from xml.parsers.expat import ExpatError

        try:
            import pyoxigraph
        except ImportError as error:
            raise DataError(f"reading RDF needs pyoxigraph ({error}): pip install 'kgmlm[rdf]'") from None
        source = io.BufferedReader(_Whole(file)) if name == "RDF_XML" else file
        try:
            _tell(pyoxigraph.parse(source, getattr(pyoxigraph.RdfFormat, name), base_iri=base), told)
        except (SyntaxError, ExpatError) as error:
            why = str(error.msg if isinstance(error, SyntaxError) else error)
            hint = "; --base says what relative IRIs are relative to" if "No scheme" in why else ""
            raise DataError(f"{path} is cut off, damaged or not {_WORDS[name]}: {why}{hint}") from None
        except ValueError as error:
            raise DataError(f"{path} cannot be read: {error}") from None

    return read


_WORDS = {
    "N_TRIPLES": "N-Triples",
    "N_QUADS": "N-Quads",
    "TURTLE": "Turtle",
    "TRIG": "TriG",
    "RDF_XML": "RDF/XML",
}


def _tell(quads: Any, told: Listener) -> None:
    """Tell what statements say; names of blank nodes hold within their file alone."""
    from pyoxigraph import BlankNode, Literal, NamedNode

    blank: dict[str, str] = {}

    def label(node: Any) -> str:
        value: str = node.value
        if type(node) is NamedNode:
            return value
        if value not in blank:
            blank[value] = told.new_blank()
        return blank[value]

    for quad in quads:
        subject, predicate, value = quad.subject, quad.predicate.value, quad.object
        node = type(value)
        text = TEXT_PREDICATES.get(predicate)
        if node is Literal:
            if text is None:
                told.left_out("literals")
            else:
                told.text(label(subject), text[0], value.value, value.language or "", text[1])
        elif node is NamedNode or node is BlankNode:
            told.triple(label(subject), predicate, label(value))
        else:
            told.left_out("statements about triples")


# --- Wikidata ---------------------------------------------------------------------------------------------


def _documents(file: IO[bytes], path: Path) -> Iterator[Mapping[str, Any]]:
    """The entities of a dump: an array with one on each line, or a JSON object on each line.

    An object of several entities, as Wikidata's API answers, is taken, too.
    """
    begun = ended = False
    for number, line in enumerate(file, 1):
        text = line.strip().removesuffix(b",")
        if number == 1 and text == b"[":
            begun = True
        elif text == b"]" and begun:
            ended = True
        elif text:
            try:
                document = json.loads(text)
            except (ValueError, RecursionError) as error:  # of JSON and of UTF-8
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
    """What is said of an entity, as ``wdt:`` has it: the preferred claims, or the normal ones without any."""
    for relation, statements in (claims or {}).items():  # what is empty is written as []
        ranks = [statement.get("rank", "normal") for statement in statements]
        best = "preferred" if "preferred" in ranks else "normal"
        for statement, rank in zip(statements, ranks, strict=True):
            if rank == best:
                yield relation, statement["mainsnak"]


def _read_wikidata(file: IO[bytes], path: Path, told: Listener, base: str | None) -> None:
    """Labels, descriptions, aliases, and truthy claims between items."""
    for document in _documents(file, path):
        label = document["id"]
        try:
            kinds: tuple[tuple[Kind, str], ...] = (("name", "labels"), ("description", "descriptions"))
            for kind, column in kinds:
                for language, text in (document.get(column) or {}).items():
                    told.text(label, kind, text["value"], language, 0)
            for language, texts in (document.get("aliases") or {}).items():
                for text in texts:
                    told.text(label, "alias", text["value"], language, 0)
            for relation, snak in _truthy(document.get("claims")):
                value = snak.get("datavalue", {}) if snak["snaktype"] == "value" else {}
                item = value["value"] if value.get("type") == "wikibase-entityid" else {}
                if item.get("entity-type") == "item":
                    tail = item.get("id") or f"Q{item['numeric-id']}"
                    if not (_is_id(relation) and _is_id(tail)):
                        raise KeyError(f"{relation} {tail}")
                    told.triple(label, relation, tail)
                else:
                    told.left_out("literals" if value and not item else "claims without an item")
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path}: '{label}' is not as Wikidata's dumps have entities ({error!r})"
            ) from None


READERS: dict[str, Callable[[IO[bytes], Path, Listener, str | None], None]] = {
    "ntriples": _rdf_reader("N_TRIPLES"),
    "nquads": _rdf_reader("N_QUADS"),
    "turtle": _rdf_reader("TURTLE"),
    "trig": _rdf_reader("TRIG"),
    "rdfxml": _rdf_reader("RDF_XML"),
    "wikidata": _read_wikidata,
}
