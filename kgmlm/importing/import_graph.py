"""Files, servers and folders of other projects imported as a dataset folder."""

from __future__ import annotations

import codecs
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kgmlm.core import files
from kgmlm.core.errors import ConfigError, DataError
from kgmlm.core.files import as_path
from kgmlm.core.options import takes_all
from kgmlm.core.processes import check_main_guard
from kgmlm.core.progress import Advance, Watcher, watcher_of
from kgmlm.core.results import Outcome
from kgmlm.graphs.cards import Card, Counts, address_of, downloaded, folder_card, write_card
from kgmlm.graphs.datasets import read_folder, tell_unread, write_folder, write_splits
from kgmlm.graphs.dates import Dates
from kgmlm.graphs.splits import describe_split, split_notes, split_random
from kgmlm.importing.edges import (
    EDGES,
    EdgeFiles,
    NodeFiles,
    ReadEdges,
    checked_columns,
    is_json,
    json_columns,
    read_edges,
)
from kgmlm.importing.endpoints import ALL, endpoint_of, fetch
from kgmlm.importing.importer import Importer
from kgmlm.importing.layouts import LAYOUTS, How, layout_of, read_layout
from kgmlm.importing.neo4j import OTHER, Server, read_server
from kgmlm.importing.options import ImportOptions
from kgmlm.importing.statements import READERS, format_of, read_statements
from kgmlm.importing.stix import STIX, is_stix, read_stix, stix_files
from kgmlm.importing.vocabulary import Wanted


@takes_all(ImportOptions)
def import_graph(options: ImportOptions) -> Outcome:
    """Make a dataset folder of RDF files, a Wikidata JSON dump, a table or a folder of another project.

    RDF is N-Triples, N-Quads, Turtle, TriG, N3, JSON-LD or RDF/XML. Labels are IRIs, or Wikidata's ids. Names
    are ``rdfs:label``, ``skos:prefLabel`` or ``schema:name``, descriptions ``schema:description`` or
    ``rdfs:comment``, or further predicates (:data:`~kgmlm.importing.vocabulary.TEXT_PREDICATES`), even if the
    text is on a node of its own; an entity without a name is called by the last part of its IRI. Numbers and
    dates are attributes, which descriptions include. Restrictions of OWL and lists are read as triples
    (:mod:`kgmlm.importing.expressions`). Other literals, entities that no triple has, statements about
    statements and the names of graphs are left out, and duplicate triples count once.
    Texts are kept in memory, triples on disk.

    Returns:
        What was read and what was left out: counts.

    Raises:
        DataError: when a file is cut off, damaged or of another format, or no triple is found.
        ConfigError: when there is no such format, or the columns are not three.

    Example:
        >>> kgmlm.import_graph("dump.nt.gz", "mygraph", split=True)  # doctest: +SKIP
    """
    check_main_guard()
    inputs, format, columns, separator = options.inputs, options.format, options.columns, options.separator
    several = list(inputs) if isinstance(inputs, Iterable) and not isinstance(inputs, str) else [inputs]
    url = next(filter(None, map(endpoint_of, several)), None)
    server = next(filter(None, map(Server.of, several)), None)
    if (url or server) and (len(several) > 1 or format is not None or columns is not None):
        raise ConfigError("a server is read alone, and has no format and no columns")
    context = _read_context(options.context)
    encoding = _checked_encoding(options.encoding)
    if server is None and options.key is not None:
        raise ConfigError("a key is a property of the nodes of Neo4j: bolt://HOST")
    with watcher_of(options.progress) as watch:
        several = [downloaded(at, watch) if (at := address_of(path)) else path for path in several]
    paths = [as_path(path, "an input") for path in several]
    if not paths:
        raise DataError("name at least one file to import")
    if format is not None and format not in (known := (*READERS, *LAYOUTS, *EDGES, STIX)):
        raise ConfigError(f"there is no format '{format}' (there are: {', '.join(known)})")
    if format is None and columns is None and separator is None and is_stix(paths[0]):
        format = STIX
    if format is None and columns is None and separator is None and is_json(paths[0]):
        columns = json_columns(paths[0])
    named, separator = checked_columns(None if columns is None else _listed(columns), separator)
    order = None
    if columns is not None and format == "dgl-ke" and separator is None and all(map(str.isdecimal, named)):
        order = (int(named[0]) - 1, int(named[1]) - 1, int(named[2]) - 1)
    elif columns is not None or separator is not None:
        if format not in (None, "table"):
            raise ConfigError(f"columns and separators are those of a table, not of {format}")
        format = "table"
    nodes = NodeFiles(_paths(options.nodes), tuple(x.strip() for x in _listed(options.node_columns)))
    if format not in EDGES and (nodes.paths or nodes.columns or encoding):
        raise ConfigError("--nodes, --node-columns and --encoding are for tables: --columns reads one")
    if nodes.columns and not nodes.paths:
        raise ConfigError("--node-columns are of a table of nodes: --nodes names it")
    drawn_seed = options.seed if options.split else None
    languages = [options.language] if isinstance(options.language, str) else list(options.language)
    if format in LAYOUTS or (format is None and all(path.is_dir() for path in paths)):
        with watcher_of(options.progress) as watch:
            target = as_path(options.output, "the output")
            return _folder(paths, format, How(languages, order), target, drawn_seed, watch)
    chosen = Wanted(
        tuple(options.name_predicates),
        tuple(options.description_predicates),
        frozenset(options.skip),
        frozenset(options.keep_only),
        options.skip_blank,
        options.skip_deprecated,
    )
    if format == STIX:
        return _stix(paths, as_path(options.output, "the output"), chosen, drawn_seed, options.progress)
    if url is None and options.query is not None:
        raise ConfigError("a query is asked of an endpoint: sparql+https://...")
    if server is not None:
        paths = []
    for path in [*paths, *nodes.paths] if url is None else []:
        if not path.exists() or path.is_dir():
            raise DataError(f"there is no file {path}")
        format or format_of(path)
    target = as_path(options.output, "the output")
    files.check_new_folder(target)
    total = sum(path.stat().st_size for path in paths) if url is None else 0  # 0 of a pipe, too
    if format is not None and format in EDGES:
        with watcher_of(options.progress) as watch:
            given = EdgeFiles(
                paths, named, separator, languages, partial(_bytes, watch, total), encoding, nodes
            )
            read = read_edges(format, given, target.resolve().name)
            source = f"{', '.join(path.name for path in [*paths, *nodes.paths])}, read as {format}"
            return _written(read, target, source, drawn_seed, watch)
    source, kept = ", ".join(path.name for path in paths), None
    with watcher_of(options.progress) as watch:
        if url is not None:
            source, kept = url, target.with_name(f".{target.name}.import-unfinished")
            paths = fetch(url, options.query or ALL, kept, partial(_solutions, watch))
            format, total = "ntriples", 0
        with files.new_folder(target) as folder:
            importer = Importer(folder, languages, chosen)
            if server is not None:
                source = server.url
                read_server(server, importer, chosen, options.key, watch)
            for path in paths:
                read_statements(path, importer, format, options.base, partial(_bytes, watch, total), context)
            report = importer.write((target.resolve().name, f"Imported by kgmlm from {source}."))
            for note in _notes(importer, report):
                watch.tell(note)
            if options.split:
                report["splits"] = _drawn(folder, options.seed, watch)
    if kept is not None:
        shutil.rmtree(kept, ignore_errors=True)
    return Outcome(report)


def _drawn(folder: Path, seed: int, watch: Watcher) -> dict[str, int]:
    """Draw splits of a dataset folder that has training triples alone; returns their sizes."""
    graph = split_random(read_folder(folder), seed=seed)
    how = f"split at random with seed {seed}"
    card, counts = folder_card(folder), describe_split(graph, graph.name, how).counts
    assert card is not None
    for path in list(folder.glob("train.*")):
        path.unlink()
    write_splits(graph, folder)
    title = f"{card.title}, {how}"
    write_card(card.model_copy(update={"title": title, "counts": counts}), folder)
    for message in split_notes(graph, [s for s in graph.splits if s != "train"], {"valid": None}):
        watch.tell(message)
    return {name: len(triples) for name, triples in graph.splits.items()}


def _notes(importer: Importer, report: Mapping[str, Any]) -> Iterator[str]:
    """Notes on what other options of an import would do."""
    unnamed = report["unnamed_entities"]
    if importer.names_in and 2 * unnamed > report["entities"]:
        language, count = importer.names_in.most_common(1)[0]
        if 10 * count > unnamed:
            yield f"most entities have no name; {count:,} have one in {language} (--language {language})"
    if importer.types and 2 * unnamed > report["entities"] and (others := importer.by.get(OTHER)):
        yield f"most entities have no name; a property is {others.most_common(1)[0][0]} (--name-predicate)"
    if old := report["deprecated"]:
        yield f"{old:,} entities are deprecated; --skip-deprecated leaves them out"


def _folder(
    paths: Sequence[Path], layout: str | None, how: How, target: Path, seed: int | None, watch: Watcher
) -> Outcome:
    """Make a dataset folder of a folder of another project."""
    if len(paths) != 1 or not paths[0].is_dir():
        raise DataError(f"{paths[0]} is not a folder, or not the only one: name one folder of a benchmark")
    kind = layout or layout_of(paths[0])
    graph = read_layout(paths[0], kind, target.resolve().name, how)
    tell_unread(graph, watch.tell)
    return _written(ReadEdges(graph), target, f"a folder as {kind} lays it out", seed, watch)


def _stix(
    paths: Sequence[Path],
    target: Path,
    wanted: Wanted,
    seed: int | None,
    progress: bool | Watcher | Advance,
) -> Outcome:
    """Make a dataset folder of STIX, with the dates of its triples where no splits are drawn."""
    for path in paths:
        if not path.exists():
            raise DataError(f"there is no file {path}")
    files.check_new_folder(target)
    several = [file for path in paths for file in stix_files(path)]
    with watcher_of(progress) as watch:
        total = sum(file.stat().st_size for file in several)
        read = read_stix(several, target.resolve().name, wanted, partial(_bytes, watch, total))
        source = f"{', '.join(path.name for path in paths)}, read as STIX"
        return _written(read.edges, target, source, seed, watch, read.dates)


def _listed(names: Sequence[str] | str | None) -> list[str]:
    """Names, one by one or between commas."""
    return names.split(",") if isinstance(names, str) else list(names or ())


def _paths(given: Sequence[str | Path] | str | Path) -> list[Path]:
    """Files, one or several."""
    several = [given] if isinstance(given, str | Path) else given
    return [as_path(path, "a table of nodes") for path in several]


def _read_context(path: str | Path | None) -> Any:
    """The context of JSON-LD that a file has; None without a file.

    Raises:
        DataError: when it has none.
    """
    if path is None:
        return None
    try:
        document = files.parse_json(files.read_bytes(as_path(path, "the context")))
    except ValueError as error:
        raise DataError(f"{path} is cut off or not JSON: {error}") from None
    if not isinstance(document, dict):
        raise DataError(f"{path} is no context of JSON-LD: it is no object")
    return document.get("@context", document)


def _checked_encoding(encoding: str | None) -> str | None:
    """An encoding of texts that is known.

    Raises:
        ConfigError: when it is not.
    """
    if encoding is None:
        return None
    try:
        "".encode(codecs.lookup(encoding).name)
    except LookupError:
        raise ConfigError(f"there is no encoding '{encoding}' (such as utf-8, cp1252, utf-16)") from None
    return encoding


def _written(
    read: ReadEdges,
    target: Path,
    source: str,
    seed: int | None,
    watch: Watcher,
    dates: Dates | None = None,
) -> Outcome:
    """Write a graph as a dataset folder; returns what was read, as :func:`import_graph` does.

    Args:
        source: what it was imported from.
        seed: of the splits to draw that it has not; None draws none.
        dates: of the training triples, for a graph that is not split here.
    """
    name, how, graph = target.resolve().name, "", read.graph
    if seed is not None and (missing := [split for split in ("valid", "test") if split not in graph.splits]):
        graph, how = split_random(graph, seed=seed), f", split at random with seed {seed}"
        for message in split_notes(graph, missing, {"valid": None}):
            watch.tell(message)
    triple_counts = {split: len(of) for split, of in graph.splits.items()}
    counts = Counts(
        entities=len(graph.entities), relations=len(graph.relations), unseen=int((~graph.seen_N).sum()),
        train=triple_counts["train"], valid=triple_counts.get("valid", 0), test=triple_counts.get("test", 0),
    )  # fmt: skip
    origin, license = f"Imported by kgmlm from {source}{how}.", "that of the original data"
    write_folder(
        graph,
        target,
        Card(name=name, title=name + how, description=origin, license=license, citation="", counts=counts),
        {"train": dates} if dates is not None and not how else None,
    )
    return Outcome(
        {
            "entities": len(graph.entities),
            "relations": len(graph.relations),
            "triples": sum(triple_counts.values()),
            "repeated": read.repeated,
            "unnamed_entities": graph.entities.unnamed,
            "unnamed_relations": sum(r.name == r.label for r in graph.relations),
            "undescribed_entities": graph.entities.undescribed,
            "deprecated": 0,
            "attributes": 0,
            "left_out": dict(read.left_out),
            "left_out_by": {},
            "blank_nodes": 0,
            "notes": dict(read.notes),
            "splits": triple_counts,
            **({"dated": len(dates)} if dates is not None and not how else {}),
        }
    )


def _solutions(watch: Watcher, n: int, total: int) -> None:
    """Tell that n more triples are fetched, of a number that is known."""
    if total:
        watch("fetching triples", n, total)


def _bytes(watch: Watcher, total: int, n: int) -> None:
    """Tell that n more bytes are read, of a number that is known."""
    if total:
        watch("reading bytes", n, total)
