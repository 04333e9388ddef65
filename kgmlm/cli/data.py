"""The ``kgmlm data`` commands: list, fetch, check, show, split and import datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kgmlm.cli.common import Json, Quiet, command, fail
from kgmlm.cli.printing import plain_table, print_json, print_lines, stdout, tell
from kgmlm.graphs.options import CheckOptions, ShowOptions, SplitOptions
from kgmlm.importing.options import ImportOptions

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
@command(CheckOptions)
def data_check(
    dataset: Annotated[str, typer.Argument(help="A built-in dataset or a folder.")],
    as_json: Json = False,
    **given: Any,
) -> None:
    """Report counts, duplicates, leakage, name collisions and their ceiling, unseen entities, long names.

    Lists examples of what looks odd: five, or up to a hundred with --json.
    Exits with code 2 when the counts of a built-in dataset differ from its card's.
    """
    from kgmlm.data import check as job
    from kgmlm.graphs.cards import card_names

    checked = job(dataset, **given)
    if as_json:
        print_json(checked.as_json())
    else:
        print(checked.values["dataset"])
        print_lines(checked.lines(), indent="  ")
    if checked.mismatches:
        wrong = ", ".join(f"{k} {v['found']} instead of {v['card']}" for k, v in checked.mismatches.items())
        if dataset in card_names():
            fail(f"{dataset} differs from its card: {wrong}")
        tell(f"{dataset} has changed since its card was written: {wrong}")


@data_app.command("show")
@command(ShowOptions)
def data_show(
    dataset: Annotated[str, typer.Argument(help="A built-in dataset or a folder.")],
    as_json: Json = False,
    **given: Any,
) -> None:
    """Show a dataset's card and a few triples, or one entity."""
    from kgmlm.data import show as job

    shown = job(dataset, **given)
    if as_json:
        print_json(shown.as_json())
    else:
        print_lines(shown.lines())


@data_app.command("split")
@command(SplitOptions)
def data_split(
    output: Annotated[Path, typer.Option(help="The dataset folder to write.", show_default=False)],
    as_json: Json = False,
    **given: Any,
) -> None:
    """Split a dataset and write it as a new folder, with its card.

    --random makes the missing splits. The other options split all triples again: --entities, so that
    validation and test are about entities that are not in training; --newest and --after, by date;
    --versions, by what a newer version of the graph adds.
    """
    from kgmlm.core.progress import Bars
    from kgmlm.data import split as job

    made = job(output=output, progress=Bars(), **given)
    if as_json:
        print_json(made.as_json())


LISTED = 5  # predicates of what is left out


@command(ImportOptions)
def data_import(
    as_json: Json = False,
    quiet: Quiet = False,
    **given: Any,
) -> None:
    """Make a dataset folder from RDF files, a Wikidata dump, tables of edges or a benchmark's folder.

    OWL restrictions and lists are read as triples. Literals other than texts, numbers and dates, and
    statements about statements, are counted and left out. RDF needs pyoxigraph (`pip install 'kgmlm[rdf]'`);
    Neo4j needs its driver (`kgmlm[neo4j]`) and reads NEO4J_USERNAME and NEO4J_PASSWORD.
    """
    from kgmlm.core.errors import counted, printable, quoted
    from kgmlm.core.files import read_bytes
    from kgmlm.core.progress import Bars
    from kgmlm.importing.import_graph import import_graph

    inputs = [Path("/dev/stdin") if str(path) == "-" else path for path in given["inputs"]]
    query = None if given["query"] is None else read_bytes(given["query"]).decode("utf-8", "replace")
    report = import_graph(progress=Bars(quiet), **given | {"inputs": inputs, "query": query})
    if as_json:
        print_json(report)
        return
    output = given["output"]
    triples, entities = counted(report["triples"], "triple"), counted(report["entities"], "entity")
    print(f"{output}: {triples} of {entities} and {counted(report['relations'], 'relation')}")
    shown = {
        "repeated": "repeated",
        "attributes": "attributes",
        "blank_nodes": "blank nodes",
        "deprecated": "deprecated",
        "unnamed_entities": "entities without a name",
        "undescribed_entities": "entities without a description",
    }
    for what, count in ({title: report[key] for key, title in shown.items()} | report["notes"]).items():
        if count:
            print(f"{what}: {count:,}")
    if report["unnamed_relations"]:
        print(f"relations without a name: {report['unnamed_relations']:,} (relations.tsv can name them)")
    for what, count in report["left_out"].items():
        by = list(report["left_out_by"].get(what, {}).items())
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
