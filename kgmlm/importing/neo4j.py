"""Neo4j, and other servers that speak Bolt: relationships as triples, and completions written back.

The official driver asks in Cypher. User and password come from the environment, as Neo4j's tools take them.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kgmlm.core.errors import ConfigError, DataError, first_line
from kgmlm.importing.statements import Listener
from kgmlm.importing.vocabulary import Kind, Wanted

if TYPE_CHECKING:
    from neo4j import ManagedTransaction, Session


# Properties that are read as texts, in lower case, the first that a node has.
NAMES = ("name", "title", "label", "displayname", "rdfs__label", "skos__preflabel")
DESCRIPTIONS = ("description", "summary", "definition", "comment", "abstract", "rdfs__comment")
ALIASES = ("aliases", "alias", "synonyms", "synonym", "altlabel")
OTHER = "texts and lists of other properties"
SOURCE = "kgmlm"  # of relationships that are written
BATCH = 1_000  # relationships that are written in a transaction
USER, PASSWORD, DATABASE = "NEO4J_USERNAME", "NEO4J_PASSWORD", "NEO4J_DATABASE"
_ADDRESS = re.compile(
    r"((?:bolt|neo4j)(?:\+s|\+ssc)?):/+([^/?#]+)(?:/([^/?#]+))?/?"
)  # a path has lost a slash


class ServerListener(Listener, Protocol):
    """Listener that is told types of entities, too, and how often something is left out."""

    def kind(self, label: str, name: str) -> None:
        """An entity is of a type."""

    def left_out(self, why: str, predicate: str, count: int = 1) -> None:
        """Relationships or properties that are not read."""


class Server(NamedTuple):
    """The address of a server, and the database there; None for its default one."""

    url: str
    database: str | None

    @classmethod
    def of(cls, given: object) -> Server | None:
        """A server that is given as ``bolt://HOST:PORT/DATABASE``; None for anything else.

        Raises:
            ConfigError: when the address has a password.

        >>> Server.of("bolt://localhost:7687/movies"), Server.of("graph.nt")
        (Server(url='bolt://localhost:7687', database='movies'), None)
        """
        match = _ADDRESS.fullmatch(str(given))
        if match is None:
            return None
        scheme, host, database = match.groups()
        if "@" in host:
            raise ConfigError(f"user and password are not part of an address; set {USER} and {PASSWORD}")
        return cls(f"{scheme}://{host}", database or os.environ.get(DATABASE))

    @contextmanager
    def session(self, reading: bool) -> Iterator[Session]:
        """A session that is open.

        Raises:
            DataError: when the server does not answer, or refuses what it is asked.
        """
        try:
            import neo4j
        except ImportError as error:
            raise DataError(f"this needs Neo4j's driver ({error}): pip install 'kgmlm[neo4j]'") from None
        logging.getLogger("neo4j").addHandler(logging.NullHandler())  # a server's hints are not the user's
        user, password = os.environ.get(USER, "neo4j"), os.environ.get(PASSWORD)
        access = neo4j.READ_ACCESS if reading else neo4j.WRITE_ACCESS
        errors = (neo4j.exceptions.Neo4jError, neo4j.exceptions.DriverError, OSError, ValueError)
        try:
            with neo4j.GraphDatabase.driver(self.url, auth=(user, password) if password else None) as driver:
                driver.verify_connectivity()
                with driver.session(database=self.database, default_access_mode=access) as session:
                    yield session
        except neo4j.exceptions.AuthError:
            hint = f"{USER} and {PASSWORD} are set" if password else f"set {USER} and {PASSWORD}"
            raise DataError(f"{self.url} does not let user '{user}' in; {hint}") from None
        except errors as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{self.url} has not answered: {first_line(error)}") from None


def quoted(name: str) -> str:
    """A name as Cypher writes it.

    >>> quoted("acted in"), quoted("a`b")
    ('`acted in`', '`a``b`')
    """
    return f"`{name.replace('`', '``')}`"


def _key(variable: str, key: str | None) -> str:
    """The expression for the label of a node."""
    return f"elementId({variable})" if key is None else f"{variable}.{quoted(key)}"


def read_server(
    server: Server,
    listener: ServerListener,
    wanted: Wanted,
    key: str | None = None,
    advance: Callable[[str, int, int], None] = lambda what, n, total: None,
) -> None:
    """Pass on all relationships of a database and the texts, numbers and labels of its nodes.

    A relationship is a triple, its type the relation. A node's labels are its types.

    Args:
        listener: receives what is read.
        wanted: which types of relationships are kept, and which further properties are texts.
        key: the property that is an entity's label; None takes the ids that Neo4j gives.
        advance: called with (what is read, how many more, all).

    Raises:
        DataError: when the server does not answer, has no such relationships, or a node lacks the key or
            shares its value with another one.
    """
    linked = set[str]()
    with server.session(reading=True) as session:
        counts = dict(session.run("MATCH ()-[r]->() RETURN type(r), count(*)").values())
        if missing := sorted(wanted.keep - set(counts)):
            known = ", ".join(sorted(counts)) or "none"
            raise DataError(f"{server.url} has no relationships of type {missing[0]} (there are: {known})")
        types = sorted((wanted.keep or set(counts)) - wanted.skip)
        for name in sorted(set(counts) - set(types)):
            listener.left_out(wanted.refuses(name), name, counts[name])
        total = sum(counts[name] for name in types)
        asked = (
            f"MATCH (h)-[r]->(t) WHERE type(r) IN $types RETURN {_key('h', key)}, type(r), {_key('t', key)}"
        )
        for head, relation, tail in _parts(
            session, asked, "reading relationships", total, advance, types=types
        ):
            if head is None or tail is None:
                listener.left_out(f"relationships of nodes without the property {key}", relation)
                continue
            head, tail = _label(head), _label(tail)
            linked |= {head, tail}
            listener.triple(head, _label(relation), tail)
        for name in types:
            listener.text(_label(name), "name", _words(name), "", 0, name)
        count = session.run("MATCH (n) RETURN count(n)").single(strict=True)[0]
        asked = f"MATCH (n) RETURN {_key('n', key)}, labels(n), properties(n)"
        seen = set[str]()
        for label, labels, properties in _parts(session, asked, "reading nodes", count, advance):
            if label is None or (label := _label(label)) not in linked:
                continue
            if label in seen:
                raise DataError(
                    f"{server.url} has several nodes whose {key} is '{label}'; choose another --key"
                )
            seen.add(label)
            _node(listener, wanted, label, labels, properties, key)


def _parts(
    session: Session,
    asked: str,
    what: str,
    total: int,
    advance: Callable[[str, int, int], None],
    **parameters: Any,
) -> Iterator[list[Any]]:
    """The records of an answer, which the server sends as they are read."""
    answer = session.run(asked, parameters)
    while part := list(islice(answer, BATCH)):
        for record in part:
            yield record.values()
        advance(what, len(part), total)


def _label(value: Any) -> str:
    """A label of an entity or a relation, which stands in a table's cell.

    Raises:
        DataError: when it cannot.
    """
    label = str(value)
    if not label.strip() or not label.isprintable():
        raise DataError(f"{label!r} cannot be a label: it is empty or has control characters")
    return label


def _words(kind: str) -> str:
    """The type of a relationship in words.

    >>> _words("ACTED_IN"), _words("basedOn")
    ('acted in', 'based on')
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind).replace("_", " ").lower()


def _node(
    listener: ServerListener,
    wanted: Wanted,
    label: str,
    labels: list[str],
    properties: dict[str, Any],
    key: str | None,
) -> None:
    """Tell the texts, numbers, dates and labels of a node."""
    for name in sorted(labels):
        listener.kind(label, name)
    texts: dict[str, tuple[Kind, int]] = {
        **{name: ("name", at) for at, name in enumerate(NAMES)},
        **{name: ("description", at) for at, name in enumerate(DESCRIPTIONS)},
        **dict.fromkeys(ALIASES, ("alias", 0)),
    }
    for name, value in properties.items():
        text = wanted.own.get(name) or texts.get(name.casefold())
        values = value if isinstance(value, list) else [value]
        if text is not None and all(isinstance(x, str) for x in values):
            for x in values:
                listener.text(label, text[0], x, "", text[1], name)
        elif name == key:
            continue
        elif isinstance(value, int | float) and not isinstance(value, bool):
            listener.attribute(label, name, f"{value}")
        elif hasattr(value, "iso_format"):  # a date or a time, as the driver has them
            listener.attribute(label, name, value.iso_format())
        else:
            listener.left_out(OTHER, name)


def write_server(
    server: Server,
    rows: Iterable[dict[str, Any]],
    key: str | None = None,
    advance: Callable[[int], None] = lambda n: None,
) -> dict[str, int]:
    """Write new triples into a database as relationships with ``probability`` and ``source: "kgmlm"``.

    Nothing else changes: no node is made, and existing relationships stay as they are, except that those
    written by an earlier call get their new probabilities.

    Args:
        rows: of ``head``, ``relation``, ``tail`` (labels) and ``probability``.
        key: as of :func:`read_server`, when the graph was imported.
        advance: told how many more rows are done.

    Returns:
        How many were ``written``, were ``known`` (from another source), or are ``without a node`` there.

    Raises:
        DataError: when the server does not answer, or refuses; what was written by then stays.
    """
    counts = {"written": 0, "known": 0, "without_node": 0}
    of = dict[str, list[dict[str, Any]]]()
    for row in rows:
        of.setdefault(row["relation"], []).append({x: row[x] for x in ("head", "tail", "probability")})
    with server.session(reading=False) as session:
        nodes = None if key is None else _nodes(session, key)
        for relation, pairs in of.items():
            asked = (
                "UNWIND $rows AS row MATCH (h) WHERE elementId(h) = row.head "
                "MATCH (t) WHERE elementId(t) = row.tail "
                f"MERGE (h)-[r:{quoted(relation)}]->(t) ON CREATE SET r.source = $source "
                "WITH row, r SET r.probability = CASE WHEN r.source = $source THEN row.probability "
                "ELSE r.probability END RETURN row.number, r.source"
            )
            for start in range(0, len(pairs), BATCH):
                part = pairs[start : start + BATCH]
                if nodes is not None:
                    part = [
                        {**row, "head": nodes.get(row["head"]), "tail": nodes.get(row["tail"])}
                        for row in part
                    ]
                numbered = [{**row, "number": at} for at, row in enumerate(part)]
                merged = session.execute_write(_merged, asked, numbered)
                ours = {number for number, source in merged if source == SOURCE}
                counts["written"] += len(ours)
                counts["known"] += len({number for number, _ in merged} - ours)
                counts["without_node"] += len(part) - len({number for number, _ in merged})
                advance(len(part))
    return counts


def _merged(transaction: ManagedTransaction, asked: str, rows: list[dict[str, Any]]) -> list[list[Any]]:
    """The number and the source of each relationship that is there afterwards."""
    return transaction.run(asked, rows=rows, source=SOURCE).values()


def _nodes(session: Session, key: str) -> dict[str, str]:
    """The ids of nodes by the value of a property."""
    asked = f"MATCH (n) WHERE {_key('n', key)} IS NOT NULL RETURN {_key('n', key)}, elementId(n)"
    return {str(value): node for value, node in session.run(asked).values()}
