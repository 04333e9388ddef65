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
        "The IRI of a further predicate of names, or the property of Neo4j, which goes before others; may be "
        "given several times, as the following may.",
        "--name-predicate",
        command=list[str],
    )
    description_predicates: Sequence[str] = option(
        (), "Likewise of descriptions.", "--description-predicate", command=list[str]
    )
    skip: Sequence[str] = option(
        (), "A relation to leave out, by its IRI or type.", "--skip-predicate", command=list[str]
    )
    keep_only: Sequence[str] = option((), "A relation to keep; others are not.", command=list[str])
    skip_blank: bool = option(False, "Leave out the triples of blank nodes.")
    skip_deprecated: bool = option(False, "Leave out entities that are no longer to be used.")
    key: str | None = option(
        None,
        "Of Neo4j: the property whose value becomes the label of an entity, instead of Neo4j's element id.",
    )
    encoding: str | None = option(None, "Of tables, such as cp1252; by default UTF-8.")
    nodes: Sequence[str | Path] | str | Path = option(
        (),
        "Of a table of edges: its table of nodes, or several, for names, types and descriptions.",
        command=list[Path],
    )
    node_columns: Sequence[str] | str = option(
        (),
        "Of --nodes: its columns of label, name, types, description and aliases, such as "
        "id,name,category,description; known names (id, name, category, ...) need not be given.",
        command=str,
    )
    context: str | Path | None = option(
        None,
        "Of JSON-LD: a file with the context that it names by an address; none is fetched.",
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
        "ntriples, nquads, turtle, trig, n3, jsonld, rdfxml, wikidata or stix; of tables table, hetionet, "
        "primekg or conceptnet; of folders kg-bert, openke, simkgc, codex, dgl-ke or openbiolink; by default "
        "by the names of the files.",
        choices=format_names,
    )
    language: str | Sequence[str] = option(
        "en",
        "Of names and descriptions, by default en. Give several in order of preference: an entity has its "
        "text in the first that there is.",
        command=list[str],
    )
    base: str | None = option(None, "What relative IRIs are relative to.")
    split: bool = option(False, "Also draw a tenth of the triples each for validation and for test.")
    seed: int = option(0, "Of --split.", at_least=0)
    columns: Sequence[str] | str | None = option(
        None,
        "The columns of a table that have heads, relations and tails: names in its first line, such as "
        "source,type,target, or numbers from 1 where it has no such line.",
        command=str,
    )
    separator: str | None = option(
        None, "Of a table's columns; by default a comma in .csv, else a tab. With any but a tab, cells may "
        "be in quotes.",
    )  # fmt: skip
    query: str | None = option(
        None,
        "A file with what an endpoint is asked: SPARQL that selects three variables, of heads, relations and "
        "tails; by default all triples of its default graph.",
        command=Path,
        python="In Python the query itself.",
    )
