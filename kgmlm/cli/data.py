"""The ``kgmlm data`` commands: list, fetch, check, show, split and import datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kgmlm.cli.common import (
    Json,
    Options,
    Quiet,
    SkipHeader,
    command,
    fail,
    flag,
    option,
)
from kgmlm.cli.printing import plain_table, print_json, print_lines, stdout, tell

data_app = typer.Typer(help="List, prepare, check, show, split and import datasets.", no_args_is_help=True)


@data_app.command("list")
@command()
def data_list(as_json: Json = False) -> None:
    """List the built-in datasets."""
    from kgmlm.data import list as job

    rows = job().as_json()
    if as_json:
        print_json(rows)
        return
    counts = ("entities", "relations", "train", "valid", "test", "unseen")
    table = plain_table("name", *counts, right=counts)
    for row in rows:
        table.add_row(row["name"], *(f"{row[count]:,}" for count in counts))
    stdout().print(table)


@data_app.command("prepare")
@command()
def data_prepare(
    name: Annotated[str, typer.Argument(help="A built-in dataset, or `all` (except the large ones).")],
    quiet: Quiet = False,
) -> None:
    """Fetch and verify a dataset's files, from $KGMLM_MIRROR where it has them."""
    from kgmlm.core.progress import Bars
    from kgmlm.data import prepare as job

    job(name, progress=Bars(quiet))


@data_app.command("check")
@command()
def data_check(
    dataset: Annotated[str, typer.Argument(help="A built-in dataset or a folder.")],
    model: Annotated[str | None, typer.Option(help="Count name lengths in this model's tokens.")] = None,
    skip_header: SkipHeader = False,
    as_json: Json = False,
) -> None:
    """Report counts, duplicates, leakage, name collisions and their ceiling, unseen entities, long names.

    Examples are listed of what is odd: five, or up to a hundred with --json.
    Exit code 2 when the counts of a built-in dataset differ from its card's.
    """
    from kgmlm.data import check as job
    from kgmlm.graphs.cards import card_names

    found = job(dataset, model=model, skip_header=skip_header)
    if as_json:
        print_json(found.as_json())
    else:
        print(found.values["dataset"])
        print_lines(found.lines(), indent="  ")
    if found.mismatches:
        wrong = ", ".join(f"{k} {v['found']} instead of {v['card']}" for k, v in found.mismatches.items())
        if dataset in card_names():
            fail(f"{dataset} differs from its card: {wrong}")
        tell(f"{dataset} has changed since its card was written: {wrong}")


@data_app.command("show")
@command()
def data_show(
    dataset: Annotated[str, typer.Argument(help="A built-in dataset or a folder.")],
    entity: Annotated[str | None, typer.Option(help="Show one entity and its training triples.")] = None,
    skip_header: SkipHeader = False,
    as_json: Json = False,
) -> None:
    """Show a dataset's card and a few triples, or one entity."""
    from kgmlm.data import show as job

    shown = job(dataset, entity=entity, skip_header=skip_header)
    if as_json:
        print_json(shown.as_json())
    else:
        print_lines(shown.lines())


@data_app.command("split")
@command()
def data_split(
    output: Annotated[Path, typer.Option(help="The dataset folder to write.", show_default=False)],
    dataset: Annotated[
        str | None,
        typer.Argument(
            help="A built-in dataset or a folder; with dates, a file of triples, too.", show_default=False
        ),
    ] = None,
    random: Annotated[bool, typer.Option("--random", help="Draw triples at random.")] = False,
    entities: Annotated[
        float | None,
        typer.Option(
            help="Hold out this share of the entities for test, as many for validation, with their triples.",
            show_default=False,
        ),
    ] = None,
    newest: Annotated[
        float | None,
        typer.Option(help="Split by date: this share, the newest, is for test.", show_default=False),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(
            help="Split by date: what is later is for test. A year, a month (2023-05), a day, a time or a "
            "Unix time.",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(help="With --after: leave out what is later still.", show_default=False),
    ] = None,
    versions: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="OLD NEW",
            help="Two states of a graph, folders or files (RDF, too), instead of a dataset: what NEW adds is "
            "for test.",
            show_default=False,
        ),
    ] = None,
    date_column: Annotated[
        str | None,
        typer.Option(
            help="The column of dates, or its number from 1 where triples have no header; by default date, "
            "created or time.",
            show_default=False,
        ),
    ] = None,
    valid: Annotated[
        str | None,
        typer.Option(
            help="The share of the triples for validation, by default 0.1; or what validation is drawn by, "
            "newest, entities or random: by default the newest where there are dates, else entities.",
            show_default=False,
        ),
    ] = None,
    test: Annotated[
        float | None, typer.Option(help="With --random: share of the triples for test, by default 0.1.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    skip_header: SkipHeader = False,
    as_json: Json = False,
) -> None:
    """Split a dataset and write it as a new folder, with its card.

    --random makes the splits that are missing. The others split all triples again: --entities, so that
    validation and test are about entities that are not in training; --newest and --after, by date;
    --versions, by what a newer state of a graph adds.
    """
    from kgmlm.core.progress import Bars
    from kgmlm.data import split as job

    made = job(
        dataset,
        output,
        random=random,
        entities=entities,
        newest=newest,
        after=after,
        until=until,
        versions=versions,
        date_column=date_column,
        valid=_share_or_word(valid),
        test=test,
        seed=seed,
        skip_header=skip_header,
        progress=Bars(),
    )
    if as_json:
        print_json(made.as_json())


def _share_or_word(text: str | None) -> Any:
    """A share as a number; what is none as it is."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


LISTED = 5  # predicates of what is left out


def _formats() -> list[str]:
    from kgmlm.importing.edges import EDGES
    from kgmlm.importing.layouts import LAYOUTS
    from kgmlm.importing.statements import READERS
    from kgmlm.importing.stix import STIX

    return [*READERS, *LAYOUTS, *EDGES, STIX]


WANTED: Options = {
    "name_predicates": option(
        list[str] | None,
        None,
        "The IRI of a further predicate of names, or the property of Neo4j, which goes before others; may be "
        "given several times, as the following may.",
        "--name-predicate",
    ),
    "description_predicates": option(
        list[str] | None, None, "Likewise of descriptions.", "--description-predicate"
    ),
    "skip": option(
        list[str] | None, None, "A relation to leave out, by its IRI or type.", "--skip-predicate"
    ),
    "keep_only": option(list[str] | None, None, "A relation to keep; others are not."),
    "skip_blank": flag("--skip-blank", "Leave out the triples of blank nodes."),
    "skip_deprecated": flag("--skip-deprecated", "Leave out entities that are no longer to be used."),
    "key": option(str | None, None, "Of Neo4j: the property whose value becomes the label of an entity."),
    "nodes": option(
        list[Path] | None, None, "Of a table of edges: its table of nodes, for names, types and descriptions."
    ),
    "node_columns": option(
        str | None,
        None,
        "Of --nodes: its columns of label, name, types, description and aliases, such as "
        "id,name,category,description; known names (id, name, category, ...) need not be given.",
    ),
    "encoding": option(str | None, None, "Of tables, such as cp1252; by default UTF-8."),
    "context": option(
        Path | None, None, "Of JSON-LD: a file with the context that it names by an address; none is fetched."
    ),
}


@command(WANTED)
def data_import(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="N-Triples, N-Quads, Turtle, TriG, N3, JSON-LD, RDF/XML, a Wikidata JSON dump or STIX (also "
            "a folder of it); .gz, .bz2, .xz, .zst and .zip, too. Or tables of edges (--columns). Or the "
            "folder of a benchmark, as KG-BERT, OpenKE, SimKGC, CoDEx, DGL-KE or OpenBioLink have it. Or a "
            "SPARQL endpoint, sparql+https://HOST/QUERY, or Neo4j, bolt://HOST/DATABASE.",
            show_default=False,
        ),
    ],
    output: Annotated[Path, typer.Option(help="The dataset folder to write.", show_default=False)],
    language: Annotated[
        list[str] | None,
        typer.Option(
            help="Of names and descriptions, by default en. Give several in order of preference: an entity "
            "has its text in the first that there is.",
            show_default=False,
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            autocompletion=_formats,
            help="ntriples, nquads, turtle, trig, n3, jsonld, rdfxml, wikidata or stix; of tables table, "
            "hetionet, primekg or conceptnet; of folders kg-bert, openke, simkgc, codex, dgl-ke or "
            "openbiolink; by default by the names of the files.",
            show_default=False,
        ),
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="What relative IRIs are relative to.", show_default=False)
    ] = None,
    split: Annotated[
        bool,
        typer.Option("--split", help="Also draw a tenth of the triples each for validation and for test."),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of --split.")] = 0,
    columns: Annotated[
        str | None,
        typer.Option(
            help="The columns of a table that have heads, relations and tails: names in its first line, "
            "such as source,type,target, or numbers from 1 where it has no such line.",
            show_default=False,
        ),
    ] = None,
    separator: Annotated[
        str | None,
        typer.Option(
            help="Of a table's columns; by default a comma in .csv, else a tab.", show_default=False
        ),
    ] = None,
    query: Annotated[
        Path | None,
        typer.Option(
            help="A file with what an endpoint is asked: SPARQL that selects three variables, of heads, "
            "relations and tails; by default all triples.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    **wanted: Any,
) -> None:
    """Make a dataset folder of RDF files, a Wikidata dump, tables of edges or a benchmark's folder.

    Restrictions of OWL and lists are read as triples. Literals that are neither texts, numbers nor dates are
    counted and left out, and so is what is said of statements. RDF needs pyoxigraph:
    `pip install 'kgmlm[rdf]'`; Neo4j its driver, `kgmlm[neo4j]`, and asks NEO4J_USERNAME and NEO4J_PASSWORD.
    """
    from kgmlm.core.errors import counted, printable, quoted
    from kgmlm.core.files import read_bytes
    from kgmlm.core.progress import Bars
    from kgmlm.importing.import_graph import import_graph

    if wanted["node_columns"]:
        wanted["node_columns"] = wanted["node_columns"].split(",")
    report = import_graph(
        [Path("/dev/stdin") if str(path) == "-" else path for path in files],
        output,
        format=format,
        language=language or "en",
        base=base,
        **{name: value for name, value in wanted.items() if value},
        split=split,
        seed=seed,
        columns=None if columns is None else columns.split(","),
        separator=separator,
        query=None if query is None else read_bytes(query).decode("utf-8", "replace"),
        progress=Bars(quiet),
    )
    if as_json:
        print_json(report)
        return
    triples, entities = counted(report["triples"], "triple"), counted(report["entities"], "entity")
    print(f"{output}: {triples} of {entities} and {counted(report['relations'], 'relation')}")
    whats = (
        "repeated",
        "attributes",
        "blank nodes",
        "deprecated",
        "entities without a name",
        "entities without a description",
    )
    for what, count in ({what: report[what] for what in whats} | report["notes"]).items():
        if count:
            print(f"{what}: {count:,}")
    if report["relations without a name"]:
        print(
            f"relations without a name: {report['relations without a name']:,} (relations.tsv can name them)"
        )
    for what, count in report["left out"].items():
        by = list(report["left out by"].get(what, {}).items())
        more = f", and {len(by) - LISTED:,} more" if len(by) > LISTED else ""
        listed = ", ".join(f"{predicate} {n:,}" for predicate, n in by[:LISTED])
        print(printable(f"left out: {count:,} {what}" + (f": {listed}{more}" if listed else "")))
    if report.get("dated"):
        tell(f"`kgmlm data split {quoted(output)} --newest 0.1 --output FOLDER` splits by date")
    elif not {"valid", "test"} <= report.get("splits", {}).keys():
        if report["triples"] > TRIED or _splittable(output):
            tell(
                f"`kgmlm data split {quoted(output)} --random --output FOLDER` draws triples for validation "
                "and test"
            )
        else:
            tell("no triples can be drawn for validation and test: too few can leave training")


TRIED = 100_000  # triples up to which an import tries whether its graph can be split, before it says how


def _splittable(folder: Path) -> bool:
    from kgmlm.core.errors import DataError
    from kgmlm.graphs.datasets import read_folder
    from kgmlm.graphs.splits import split_random

    try:
        split_random(read_folder(folder))
    except DataError:
        return False
    return True
