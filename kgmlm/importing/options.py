"""The options of importing a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kgmlm.core.options import Options, ProgressOptions, about, option


def format_names() -> Sequence[str]:
    """The formats that can be imported."""
    from kgmlm.importing.edges import EDGES
    from kgmlm.importing.layouts import LAYOUTS
    from kgmlm.importing.statements import READERS
    from kgmlm.importing.stix import STIX

    return [*READERS, *LAYOUTS, *EDGES, STIX]


@dataclass(frozen=True, kw_only=True)
class StatementOptions(Options):
    """What of a graph's statements becomes names, descriptions and triples."""

    name_predicates: Sequence[str] = option(
        (),
        "The IRI of another predicate that holds names (for Neo4j, a property), which takes precedence over "
        "the usual ones; may be given several times.",
        "--name-predicate",
        command=list[str],
    )
    description_predicates: Sequence[str] = option(
        (), "The same, for predicates of descriptions.", "--description-predicate", command=list[str]
    )
    skip: Sequence[str] = option(
        (),
        "A relation to leave out, by its IRI or type; may be given several times.",
        "--skip-predicate",
        command=list[str],
    )
    keep_only: Sequence[str] = option(
        (), "Keep only this relation; may be given several times.", command=list[str]
    )
    skip_blank: bool = option(False, "Leave out the triples of blank nodes.")
    skip_deprecated: bool = option(False, "Leave out deprecated entities.")
    key: str | None = option(
        None,
        "For Neo4j: the property whose value becomes an entity's label, instead of Neo4j's element id.",
    )
    encoding: str | None = option(None, "The encoding of tables, such as cp1252; by default UTF-8.")
    nodes: Sequence[str | Path] | str | Path = option(
        (),
        "For a table of edges: one or more tables of nodes, with names, types and descriptions.",
        command=list[Path],
    )
    node_columns: Sequence[str] | str = option(
        (),
        "For --nodes: the columns with label, name, types, description and aliases, such as "
        "id,name,category,description; common names (id, name, category, ...) are recognized.",
        command=str,
    )
    context: str | Path | None = option(
        None,
        "For JSON-LD: a file with the context that the input refers to by URL; no context is downloaded.",
        command=Path,
    )


@dataclass(frozen=True, kw_only=True)
class ImportOptions(StatementOptions, ProgressOptions):
    """Options of :func:`kgmlm.import_graph`."""

    inputs: Sequence[str | Path] | str | Path = field(
        kw_only=False,
        metadata=about(
            "N-Triples, N-Quads, Turtle, TriG, N3, JSON-LD, RDF/XML, a Wikidata JSON dump or STIX (also a "
            "folder of it), read as one graph; .gz, .bz2, .xz, .zst and .zip, and https addresses, too. Or "
            "tables of edges (--columns). Or the folder of a benchmark, as KG-BERT, OpenKE, SimKGC, CoDEx, "
            "DGL-KE or OpenBioLink have it. Or a SPARQL endpoint, sparql+https://HOST/QUERY, or Neo4j, "
            "bolt://HOST/DATABASE.",
            command=list[Path],
            is_argument=True,
            metavar="FILES",
        ),
    )
    output: str | Path = field(
        kw_only=False, metadata=about("The dataset folder to write, whole or not at all.", command=Path)
    )
    format: str | None = option(
        None,
        "ntriples, nquads, turtle, trig, n3, jsonld, rdfxml, wikidata or stix; for tables: table, hetionet, "
        "primekg or conceptnet; for folders: kg-bert, openke, simkgc, codex, dgl-ke or openbiolink. By "
        "default, it follows from the file names.",
        choices=format_names,
    )
    language: str | Sequence[str] = option(
        "en",
        "Language of names and descriptions, by default en. Give several in order of preference: each text "
        "is taken in the first one available.",
        command=list[str],
    )
    base: str | None = option(None, "Base IRI against which relative IRIs are resolved.")
    split: bool = option(False, "Also draw a tenth of the triples for validation and a tenth for test.")
    seed: int = option(0, "Seed for --split.", at_least=0)
    columns: Sequence[str] | str | None = option(
        None,
        "The table's columns of heads, relations and tails: names from its first line, such as "
        "source,type,target, or numbers starting at 1 if it has no header.",
        command=str,
    )
    separator: str | None = option(
        None, "Column separator of a table; by default a comma in .csv, else a tab. Cells may be quoted, "
        "except with tabs.",
    )  # fmt: skip
    query: str | None = option(
        None,
        "A file with the query for an endpoint: SPARQL that selects three variables (head, relation and "
        "tail). By default, all triples of its default graph are read.",
        command=Path,
        python="In Python the query itself.",
    )
