"""``kgmlm complete`` and ``kgmlm export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kgmlm.cli.options import (
    MOST,
    Address,
    BatchSize,
    Device,
    Engines,
    Functional,
    Json,
    Precision,
    Quiet,
    RunArgument,
    Scores,
    Typed,
    Workers,
)
from kgmlm.terminal import INPUT, handled, print_json, tell

Output = Annotated[Path, typer.Option(help="The Parquet file to write.", show_default=False)]
Least = Annotated[float, typer.Option(min=0.0, max=1.0, help="Leave out triples below it.")]
Lacking = Annotated[
    float,
    typer.Option(
        min=0.0,
        help="How many true triples are in no known split, as a multiple of validation's; above 0. The more, "
        "the higher are all probabilities.",
    ),
]
Relations = Annotated[
    list[str] | None,
    typer.Option(help="Ask about these alone, by label or name; may be given again.", show_default=False),
]
Known = Annotated[
    str | None,
    typer.Option(
        help="The splits that are never listed, such as train,valid; by default all.", show_default=False
    ),
]
Reported = Annotated[
    str | None,
    typer.Option(
        "--report",
        help="Count how many triples of this split, not a known one, are listed, at each probability and "
        "among the best.",
        show_default=False,
    ),
]
Sample = Annotated[
    int,
    typer.Option(
        min=0,
        max=MOST,
        help="Ask only so many queries, a seeded sample by relation and side, to see speed and precision "
        "first; 0 is all.",
    ),
]
Sharded = Annotated[
    str | None,
    typer.Option(
        "--shard",
        help="Make a share of the parts and no list, such as 3/16; without it all parts are joined.",
        show_default=False,
    ),
]


@handled
def complete(
    run: RunArgument,
    output: Output,
    min_probability: Least = 0.5,
    lacking: Lacking = 1.0,
    relations: Relations = None,
    top: Annotated[int, typer.Option(min=1, max=MOST, help="Answers kept per query.")] = 10,
    typed: Typed = False,
    functional: Functional = False,
    known: Known = None,
    report: Reported = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Add why: the rules that predict a triple, in runs with rules.")
    ] = False,
    scores: Scores = "all",
    precision: Precision = "fp32",
    device: Device = None,
    batch_size: BatchSize = 64,
    part_size: Annotated[int, typer.Option(min=1, max=MOST, help="Queries of a part.")] = 1024,
    sample: Sample = 0,
    workers: Workers = 1,
    engine: Engines = "local",
    address: Address = None,
    shard: Sharded = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List the triples that a run's graph lacks, the most probable first.

    Asks each (entity, relation, side) that training has; with --typed, each that types allow. Parts are kept
    in OUTPUT.parts: the same command continues where it was, and shards are joined by the command without
    --shard. Probabilities are fitted on validation, hidden from the same queries. Rerankers take no part.
    """
    from kgmlm.jobs.completing import complete as job
    from kgmlm.watching import Bars

    made = job(
        run,
        output,
        min_probability=min_probability,
        lacking=lacking,
        relations=relations or None,
        top=top,
        typed=typed,
        functional=functional,
        known=None if known is None else [name.strip() for name in known.split(",")],
        report=report,
        explain=explain,
        scores=scores,
        precision=precision,
        device=device,
        batch_size=batch_size,
        part_size=part_size,
        sample=sample,
        workers=workers,
        engine=engine,
        address=address,
        shard=shard,
        progress=Bars(quiet),
    )
    if as_json:
        print_json(made)
        return
    _print(made)


def _print(made: dict[str, Any]) -> None:
    if made["queries scored"]:
        speed = made["queries scored"] / max(made["seconds"], 1e-9)
        tell(f"{made['queries scored']:,} queries in {made['seconds']:,.0f} s, {speed:,.1f} per second")
    if "shard" in made:
        print(f"shard {made['shard']} is done; {made['missing']:,} of {made['parts']:,} parts are missing")
        return
    figures = made["probabilities"]
    least = made["min_probability"]
    print(f"{made['output']}: {made['listed']:,} triples with a probability of {least:g} or more")
    share = figures["true"] / max(1, figures["candidates"])
    print(
        f"of {figures['candidates']:,} candidates {figures['true']:,} are in validation "
        f"({share:.2%}), which are {figures['recall']:.1%} of its triples"
    )
    if "report" in made:
        _print_report(made["report"])


def _print_report(report: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from kgmlm.kg import printable
    from kgmlm.terminal import stdout

    table = Table(title=f"in {report['split']} ({report['found']:,} of {report['triples']:,}): a lower bound")
    for column in ("listed", "triples", "true", "precision", "expected"):
        table.add_column(column, justify="right", overflow="fold")
    rows = [(f"p ≥ {row['probability']}", row) for row in report["by probability"]]
    rows += [(f"best {row['listed']:,}", row) for row in report["best"]]
    most = sorted(report["by relation"], key=lambda row: -row["listed"])[:10]
    rows += [(row["relation"], row) for row in most]
    for name, row in rows:
        shares = ["-" if row[x] is None else f"{row[x]:.3f}" for x in ("precision", "expected")]
        table.add_row(escape(printable(name)), f"{row['listed']:,}", f"{row['true']:,}", *shares)
    stdout().print(table)


@handled
def export(
    triples: Annotated[
        Path, typer.Argument(help="A list that `kgmlm complete` wrote.", show_default=False), INPUT
    ],
    output: Annotated[
        Path, typer.Option(help="The file to write, - for stdout; of neo4j a folder.", show_default=False)
    ],
    format: Annotated[
        str | None,
        typer.Option(
            help="ntriples, rdf-star, trig, csv, jsonl or neo4j; by default by the name of the file.",
            show_default=False,
        ),
    ] = None,
    min_probability: Least = 0.0,
    base: Annotated[str, typer.Option(help="Prefix of labels that are no IRIs.")] = "urn:kgmlm:",
    spreadsheet: Annotated[
        bool,
        typer.Option(
            "--spreadsheet",
            help="CSV for a spreadsheet: an apostrophe before texts that it would take for formulas.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a list of new triples for other programs: RDF, CSV, JSON Lines, Neo4j.

    neo4j is a folder with nodes.csv and edges.csv, as `neo4j-admin database import` takes them.
    """
    from kgmlm.jobs.exporting import export as job

    options: dict[str, Any] = {"min_probability": min_probability, "base": base, "spreadsheet": spreadsheet}
    if str(output) == "-":
        _export_to_stdout(triples, format, options)
        return
    made = job(triples, output, format=format, **options)
    if as_json:
        print_json(made)
        return
    print(f"{made['output']}: {made['triples']:,} triples as {made['format']}")


def _export_to_stdout(triples: Path, format: str | None, options: dict[str, Any]) -> None:
    import shutil
    import sys
    from tempfile import TemporaryDirectory

    from kgmlm.exporting import FOLDER
    from kgmlm.jobs.exporting import export as job
    from kgmlm.kg import ConfigError

    if format is None or format == FOLDER:
        raise ConfigError("--output - needs a --format of one file: ntriples, rdf-star, trig, csv or jsonl")
    with TemporaryDirectory() as folder:
        made = Path(folder) / "list"
        job(triples, made, format=format, **options)
        sys.stdout.flush()
        with made.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
