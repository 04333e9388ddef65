"""New entities for a graph, of a table or of an RDF file."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

from kgmlm.core.errors import DataError, counted, quoted
from kgmlm.core.progress import Watcher
from kgmlm.core.tables import columns_of, read_texts
from kgmlm.graphs.datasets import ENTITY_COLUMNS, read_entities
from kgmlm.graphs.entities import EntityTable, completed
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.importing.importer import Importer
from kgmlm.importing.statements import format_of, read_statements


def read_new_entities(path: Path, graph: KnowledgeGraph, watch: Watcher) -> EntityTable:
    """Read new entities: the rows of a table, or what has a name, a description or a type in an RDF file.

    Labels of an RDF file are IRIs, as :func:`~kgmlm.importing.import_graph.import_graph` has them. Entities
    that the graph has keep their texts; they, triples and columns that are not read are counted.

    Args:
        watch: hears what is not read.

    Raises:
        DataError: when the file cannot be read, or has no new entity.
    """
    if not _is_rdf(path):
        known = sum(ENTITY_COLUMNS, ())
        for column in (name for name in columns_of(path) if name not in known):
            watch.tell(f"not read: the column '{column}' of {path.name}")
        return read_entities(path, graph)
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    entities, triples = _read_rdf(path, ["en"], watch)
    new_N = np.array([label not in graph.entities.index for label in entities.column("label")], np.bool_)
    if triples:
        advice = f"`kgmlm data import {quoted(path)} --output FOLDER` makes a table of them"
        watch.tell(f"not read: {counted(triples, 'triple')} of {path.name} ({advice})")
    if repeated := int((~new_N).sum()):
        watch.tell(f"not read: {counted(repeated, 'entity')} of {path.name} that the graph has")
    if not new_N.any():
        raise DataError(f"{path} has no name, description or type of an entity that the graph lacks")
    return entities.take(np.flatnonzero(new_N))


def _is_rdf(path: Path) -> bool:
    """Return whether a file has a suffix of RDF."""
    try:
        return format_of(path) != "wikidata"
    except DataError:
        return False


def _read_rdf(path: Path, languages: list[str], watch: Watcher) -> tuple[EntityTable, int]:
    """The entities of an RDF file with texts, and how many triples it has.

    If no name is in any of the languages, names are read in the most frequent language.
    """
    with tempfile.TemporaryDirectory() as folder:
        importer = Importer(Path(folder), languages)
        read_statements(path, importer)
        if not importer.texts.best["name"] and importer.names_in:
            language = importer.names_in.most_common(1)[0][0]
            if language not in languages:
                watch.tell(f"no name in {path.name} is in {languages[0]}; names are read in {language}")
                return _read_rdf(path, [language], watch)
        triples = importer.write_described()
        columns: pa.Table = read_texts(Path(folder) / "entities.tsv", *ENTITY_COLUMNS)
        return EntityTable.of(completed(columns)), triples
