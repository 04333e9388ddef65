"""The commands that say which triples are true: ``classify``, ``calibrate``, ``complete``, ``export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kgmlm.cli.common import (
    INPUT,
    MOST,
    Address,
    BatchSize,
    Device,
    Engines,
    EntityTriples,
    Functional,
    Json,
    Precision,
    Prior,
    Quiet,
    RunArgument,
    RuntimeOption,
    Scores,
    SkipHeader,
    Typed,
    Workers,
    handled,
    print_json,
    tell,
)

NewRelations = Annotated[
    bool,
    typer.Option("--allow-new-relations", help="Read relations that the run does not have by their names."),
]
Thresholds = Annotated[
    bool,
    typer.Option(
        "--relation-thresholds",
        help="Decide by a threshold of each relation, chosen on validation, instead of by .5.",
    ),
]
SkipTriples = Annotated[
    bool,
    typer.Option(
        "--skip-header", help="Leave out the first line of the triples; with --graph, also of that folder's."
    ),
]


@handled
def classify(
    run: RunArgument,
    triples: Annotated[
        Path,
        typer.Argument(
            help="Triples as TSV, CSV or Parquet: head, relation, tail (labels or names), and if you like a "
            "label: 1 for true, -1 or 0 for false, with which the answers are compared.",
            show_default=False,
        ),
        INPUT,
    ],
    graph: Annotated[
        str | None,
        typer.Option(
            help="Another dataset or folder that the triples are of: its entities compete, its training "
            "triples are context.",
            show_default=False,
        ),
    ] = None,
    entities: Annotated[
        Path | None,
        typer.Option(
            help="New entities that triples may have, read by their text: a table with the columns label, "
            "name and, if you like, description, surface and types."
        ),
        INPUT,
    ] = None,
    entity_triples: EntityTriples = None,
    allow_new_relations: NewRelations = False,
    prior: Prior = 0.5,
    relation_thresholds: Thresholds = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what each probability is made of.")
    ] = False,
    skip_header: SkipTriples = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    precision: Precision = "fp32",
    batch_size: BatchSize = 64,
    device: Device = None,
    runtime: RuntimeOption = "auto",
    quiet: Quiet = False,
) -> None:
    """Say of each triple how probable it is that it is true.

    Probabilities are those of `kgmlm calibrate`, which runs first where it has not yet. Triples that training
    has are marked as known and get none.
    """
    from kgmlm.cli.common import print_classified
    from kgmlm.core.errors import QueryError
    from kgmlm.core.progress import Bars
    from kgmlm.prediction.classify import classify as job

    if as_csv and (as_json or explain):
        raise QueryError("--csv goes without --json and --explain")
    found = job(
        run,
        triples,
        graph=graph,
        entities=entities,
        entity_triples=entity_triples or (),
        allow_new_relations=allow_new_relations,
        prior=prior,
        relation_thresholds=relation_thresholds,
        skip_header=skip_header,
        precision=precision,
        batch_size=batch_size,
        device=device,
        runtime=runtime,
        progress=Bars(quiet),
    )
    print_classified(found, as_json=as_json, as_csv=as_csv, explain=explain)
    if (measured := found.measured) is not None:
        tell(
            f"against the labels: {told(measured)}"
            + (f"; without the {measured['known']:,} that training has" if measured["known"] else "")
        )


@handled
def calibrate(
    run: RunArgument,
    max_triples: Annotated[
        int,
        typer.Option(
            min=0, max=MOST, help="A seeded sample of validation triples, or of --report; 0 is all."
        ),
    ] = 1000,
    missing: Annotated[
        float,
        typer.Option(
            help="How many true triples neither training nor validation has, per validation triple; 0 calls "
            "every corrupted triple false."
        ),
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=MOST, help="Of the sample and the negatives.")] = 0,
    report: Annotated[
        str | None,
        typer.Option(
            help="Measure the probabilities on this split, such as test, by fresh negatives. Those that are "
            "there are not fitted again.",
            show_default=False,
        ),
    ] = None,
    graph: Annotated[
        str | None,
        typer.Option(
            help="With --report: of another dataset or folder, whose entities the run has never seen.",
            show_default=False,
        ),
    ] = None,
    allow_seen_entities: Annotated[
        bool, typer.Option("--allow-seen-entities", help="--graph may share entities with training.")
    ] = False,
    allow_new_relations: Annotated[
        bool, typer.Option("--allow-new-relations", help="--graph may have relations that training has not.")
    ] = False,
    skip_header: SkipHeader = False,
    precision: Precision = "fp32",
    batch_size: BatchSize = 64,
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit the probabilities that `classify` reports, on validation triples.

    They tell validation triples from negatives: those that the dataset's valid file has, or else corrupted
    triples. `kgmlm tune` or further training makes them out of date, and this fits them again.
    """
    from kgmlm.core.errors import ConfigError
    from kgmlm.core.progress import Bars
    from kgmlm.prediction.classify import MISSING, measure_probabilities
    from kgmlm.prediction.classify import calibrate as job

    watch = Bars(quiet)
    if report is None:
        if graph is not None or allow_seen_entities or allow_new_relations or skip_header:
            raise ConfigError("--graph and what goes with it need --report, the name of a split of it")
        figures = job(
            run, max_triples=max_triples, missing=missing, seed=seed, precision=precision,
            batch_size=batch_size, device=device, progress=watch,
        )  # fmt: skip
        what = "validation triples"
    else:
        if missing != MISSING:
            raise ConfigError("--missing is for fitting; --report measures the probabilities that there are")
        figures = measure_probabilities(
            run, split=report, graph=graph, allow_seen_entities=allow_seen_entities,
            allow_new_relations=allow_new_relations, skip_header=skip_header, max_triples=max_triples,
            seed=seed, precision=precision, batch_size=batch_size, device=device, progress=watch,
        )  # fmt: skip
        what = f"{report} triples of {figures['graph']}"
    if as_json:
        print_json(figures)
        return
    print(
        f"{figures['positives']:,} {what} and {figures['negatives']:,} negatives, "
        f"at equal shares: {told(figures)}"
    )


def told(figures: dict[str, object]) -> str:
    """The figures of probabilities as a sentence."""
    names = {"accuracy": "accuracy", "auc": "AUC", "brier": "Brier", "log_loss": "log-loss", "ece": "ECE"}
    interval = figures["ece_95"]
    assert isinstance(interval, list)
    shown = ", ".join(f"{name} {figures[key]:.4f}" for key, name in names.items() if key in figures)
    return f"{shown} ({interval[0]:.4f} to {interval[1]:.4f})"


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
    from kgmlm.core.progress import Bars
    from kgmlm.prediction.complete import complete as job

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

    from kgmlm.cli.common import stdout
    from kgmlm.core.errors import printable

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
    from kgmlm.prediction.export import export as job

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

    from kgmlm.core.errors import ConfigError
    from kgmlm.prediction.export import FOLDER
    from kgmlm.prediction.export import export as job

    if format is None or format == FOLDER:
        raise ConfigError("--output - needs a --format of one file: ntriples, rdf-star, trig, csv or jsonl")
    with TemporaryDirectory() as folder:
        made = Path(folder) / "list"
        job(triples, made, format=format, **options)
        sys.stdout.flush()
        with made.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
