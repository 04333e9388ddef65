"""``kgmlm data import``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kgmlm.cli.options import MOST, Json, Quiet
from kgmlm.terminal import handled, print_json, tell

LISTED = 5  # predicates of what is left out


def _formats() -> list[str]:
    from kgmlm.statements import READERS

    return list(READERS)


@handled
def data_import(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="N-Triples, N-Quads, Turtle, TriG, RDF/XML or a Wikidata JSON dump; .gz and .bz2, too.",
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
            help="ntriples, nquads, turtle, trig, rdfxml or wikidata; by default by the names of the files.",
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
    seed: Annotated[int, typer.Option(min=0, max=MOST, help="Of --split.")] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a dataset folder of RDF files or of a Wikidata dump.

    Literals that are neither names nor descriptions are counted and left out. RDF needs pyoxigraph:
    `pip install 'kgmlm[rdf]'`.
    """
    from kgmlm.jobs.importing import import_graph
    from kgmlm.kg import counted, printable
    from kgmlm.watching import Bars

    report = import_graph(
        [Path("/dev/stdin") if str(path) == "-" else path for path in files],
        output,
        format=format,
        language=language or "en",
        base=base,
        split=split,
        seed=seed,
        progress=Bars(quiet),
    )
    if as_json:
        print_json(report)
        return
    triples, entities = counted(report["triples"], "triple"), counted(report["entities"], "entity")
    print(f"{output}: {triples} of {entities} and {counted(report['relations'], 'relation')}")
    for what in ("repeated", "blank nodes", "entities without a name", "entities without a description"):
        if report[what]:
            print(f"{what}: {report[what]:,}")
    if report["relations without a name"]:
        print(
            f"relations without a name: {report['relations without a name']:,} (relations.tsv can name them)"
        )
    for what, count in report["left out"].items():
        by = list(report["left out by"].get(what, {}).items())
        more = f", and {len(by) - LISTED:,} more" if len(by) > LISTED else ""
        listed = ", ".join(f"{predicate} {n:,}" for predicate, n in by[:LISTED])
        print(printable(f"left out: {count:,} {what}" + (f": {listed}{more}" if listed else "")))
    if not split:
        tell(f"`kgmlm data split {output} --random --output FOLDER` draws triples for validation and test")
