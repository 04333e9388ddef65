"""The commands that say which triples are true: ``classify``, ``calibrate``, ``complete``, ``export``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from kgmlm.cli.common import INPUT, Csv, Json, JsonLines, Quiet, RunArgument, command
from kgmlm.cli.printing import (
    cell,
    percent,
    plain_table,
    print_classified,
    print_json,
    print_reasoned,
    print_titled,
    tell,
)
from kgmlm.core.errors import counted
from kgmlm.core.options import described
from kgmlm.prediction.options import (
    CalibrateOptions,
    ClassifyOptions,
    CompleteOptions,
    ExportOptions,
    MissingOptions,
)
from kgmlm.runs.options import EntityOptions


@command(ClassifyOptions)
def classify(
    run: RunArgument,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what each probability is made of.")
    ] = False,
    as_json: JsonLines = False,
    as_csv: Csv = False,
    quiet: Quiet = False,
    **given: Any,
) -> None:
    """Give the probability of each triple.

    It is the probability of `rank` and `complete`: the share of such triples in a further hidden set.
    `kgmlm calibrate` fits it, and runs first if needed. Next to it is the probability in a list of which
    half, or the share --prior, is true. Triples in training are marked as known and get none.
    """
    from kgmlm.core.errors import QueryError
    from kgmlm.core.progress import Bars
    from kgmlm.prediction.classify import classify as job

    if as_csv and (as_json or explain):
        raise QueryError("--csv goes without --json and --explain")
    classified = job(run, progress=Bars(quiet), **given)
    print_classified(classified, as_json=as_json, as_csv=as_csv, explain=explain)
    if (measured := classified.measured) is not None:
        tell(
            f"against the labels: {figures_line(measured)}"
            + (f"; without the {measured['known']:,} that training has" if measured["known"] else "")
        )


@command(CalibrateOptions)
def calibrate(run: RunArgument, as_json: Json = False, quiet: Quiet = False, **given: Any) -> None:
    """Fit the probabilities of triples on validation.

    A probability is a share: how many such triples a further hidden set, as large as validation, would
    have. After `kgmlm tune` or further training, probabilities are out of date; this fits them again.
    """
    from kgmlm.core.progress import Bars
    from kgmlm.prediction.classify import calibrate as job

    figures = job(run, progress=Bars(quiet), **given)
    if as_json:
        print_json(figures)
        return
    table = plain_table("probability", "triples", "expected", "in validation", right=_COUNTS)
    for row in figures["held_out"]:
        cells = [f"{row[key]:,.0f}" for key in ("candidates", "expected", "validation")]
        table.add_row(cell(f"{row['probability']:.0%} or more"), *cells)
    print_titled(f"{counted(figures['triples'], 'validation triple')}, each quarter by the others", table)
    print(f"where half of the triples are true: {figures_line(figures['half'])}")


_COUNTS = ("triples", "expected", "in validation")


def figures_line(figures: dict[str, object]) -> str:
    """The figures of probabilities on a line."""
    names = {"accuracy": "accuracy", "auc": "AUC", "brier": "Brier", "log_loss": "log-loss", "ece": "ECE"}
    interval = figures["ece_95"]
    assert isinstance(interval, list)
    shown = ", ".join(f"{name} {figures[key]:.4f}" for key, name in names.items() if key in figures)
    return f"{shown} ({interval[0]:.4f} to {interval[1]:.4f})"


@command(MissingOptions, EntityOptions, CompleteOptions)
def complete(
    run: RunArgument,
    output: Annotated[
        Path | None, typer.Option(help="The file to write: .parquet, .csv or .tsv.", show_default=False)
    ] = None,
    entity: Annotated[
        list[str] | None,
        typer.Option(
            help="List what this entity lacks, over all relations, and write no file; may be given again.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    **given: Any,
) -> None:
    """List the triples that a run's graph lacks, the most probable first.

    Asks each (entity, relation, side) that the types of entities suggest. Parts are kept in OUTPUT.parts: the
    same command continues where it stopped, and the command without --shard joins the shards. Probabilities
    are those of `kgmlm calibrate`, which runs first if needed. Reverse scoring is not used.

    With --entity it prints the facts (x, ?, ?) and (?, ?, x) that an entity probably lacks.
    """
    from kgmlm.core.errors import QueryError
    from kgmlm.core.progress import Bars
    from kgmlm.prediction.complete import complete as job

    lists = {x.name: given[x.name] for x in described(CompleteOptions) if x.name in given}
    about = {name: value for name, value in given.items() if name not in lists}
    if entity:
        defaults = {x.name: x.default for x in described(CompleteOptions)}
        if output is not None or lists != {name: defaults[name] for name in lists}:
            raise QueryError("--entity goes with -k, --entities, --entity-triples and --json alone")
        _print_missing(run, entity, about, as_json, quiet)
        return
    if output is None:
        raise QueryError(
            "--output names the file to write; --entity lists what an entity lacks, without a file"
        )
    if about["entities"] is not None or about["entity_triples"] != ():
        raise QueryError("--entities and --entity-triples go with --entity")
    made = job(run, output, progress=Bars(quiet), **lists)
    if as_json:
        print_json(made)
    else:
        _print(made)
    if "since" in made and not made["listed"]:
        raise typer.Exit(1)


def _print_missing(
    run: Path, entity: Sequence[str], about: dict[str, Any], as_json: bool, quiet: bool
) -> None:
    """The facts that entities lack, for people or as JSON."""
    from kgmlm.core.errors import QueryError
    from kgmlm.core.progress import Bars
    from kgmlm.prediction.missing import missing
    from kgmlm.runs.run import open_run

    opened = open_run(run)
    if about["entities"] is not None:
        opened = opened.with_entities(about["entities"], about["entity_triples"], progress=Bars(quiet))
    elif about["entity_triples"] != ():
        raise QueryError("--entity-triples goes with --entities")
    facts = missing(opened, entity, k=about["k"], progress=Bars(quiet))
    if as_json:
        print_json(facts.as_json())
        return
    _print_best(facts.as_json())
    if facts.stands_for:
        tell(f"probability: {facts.stands_for}")


def _print(made: dict[str, Any]) -> None:
    if made["queries_scored"]:
        speed = made["queries_scored"] / max(made["seconds"], 1e-9)
        tell(f"{made['queries_scored']:,} queries in {made['seconds']:,.0f} s, {speed:,.1f} per second")
    if "shard" in made:
        print(f"shard {made['shard']} is done; {made['missing']:,} of {made['parts']:,} parts are missing")
        return
    figures = made["probabilities"]
    least = made["min_probability"]
    _print_best(made["best"])
    if "since" in made:
        _print_since(made)
        return
    if not figures["fitted"]:
        print(
            f"{made['output']}: the best answers of {counted(made['listed'], 'question')}, the clearest first"
        )
        if "report" in made:
            _print_report(made["report"])
        return
    listed = counted(made["listed"], "triple")
    if made["listed"] and made["best"][-1]["probability"] < least:
        print(f"{made['output']}: the {listed} with the highest probability; fewer have {least:g} or more")
    else:
        print(f"{made['output']}: {listed} with a probability of {least:g} or more")
    if not made["listed"] and made["highest"] > 0:
        tell(
            f"the highest probability is {made['highest']:.2g}; the same command with --min-probability "
            f"{_below(made['highest']):g} lists the best without scoring again"
        )
    tell(f"probability: {figures['stands_for']}")
    if "report" in made:
        _print_report(made["report"])


def _print_since(made: dict[str, Any]) -> None:
    """What is new since earlier lists, and what became of their triples."""
    since, figures = made["since"], made["probabilities"]
    sure = f" with a probability of {made['min_probability']:g} or more" if figures["fitted"] else ""
    print(f"{made['output']}: {counted(made['listed'], 'new triple')}{sure}")
    print(
        f"of {counted(since['listed'], 'triple')} listed before, {since['known']:,} are known now, "
        f"{since['less_probable']:,} are less probable, and {since['removed']:,} lost an entity or a relation"
    )
    if figures["fitted"]:
        tell(f"probability: {figures['stands_for']}")
    if "report" in made:
        _print_report(made["report"])


def _below(probability: float) -> float:
    """Round down to two digits.

    >>> _below(0.0147), _below(0.02), _below(1.0)
    (0.014, 0.02, 1.0)
    """
    digit = 10.0 ** (math.floor(math.log10(probability)) - 1)
    return float(f"{math.floor(probability / digit + 1e-9) * digit:.2g}")


def _print_best(rows: list[dict[str, Any]]) -> None:
    """The most probable triples by their names, with reasons below them where there are any."""
    if not rows:
        return
    probable = rows[0]["probability"] is not None
    title = f"the {len(rows):,} {'most probable' if probable else 'clearest'}"
    if any(row.get("because") for row in rows):
        print_titled(title)
        print_reasoned(rows)
        return
    sure = ["probability"] if probable else []
    table = plain_table("head", "relation", "tail", *sure, right=sure)
    for row in rows:
        cells = [row["head_name"], row["relation_name"], row["tail_name"]]
        cells += [percent(row["probability"])] if probable else []
        table.add_row(*map(cell, cells))
    print_titled(title, table)


def _print_report(report: dict[str, Any]) -> None:
    title = f"in {report['split']} ({report['found']:,} of {report['triples']:,}): a lower bound"
    figures = ("triples", "true", "precision", "expected", "recall")
    table = plain_table("listed", *figures, right=figures)
    rows = [(f"p ≥ {row['probability']}", row) for row in report["by_probability"] if row["listed"]]
    rows += {f"best {row['listed']:,}": row for row in report["best"]}.items()
    most = sorted(report["by_relation"], key=lambda row: -row["listed"])[:10]
    rows += [(row["relation_name"], row) for row in most]
    for name, row in rows:
        shares = ["-" if row[x] is None else f"{row[x]:.3f}" for x in ("precision", "expected", "recall")]
        table.add_row(cell(name), f"{row['listed']:,}", f"{row['true']:,}", *shares)
    print_titled(title, table)
    of = report["diversity"]
    print(f"the best {of['listed']:,} have {of['heads']:,} heads and {of['tails']:,} tails")
    if of["frequent"]:
        names = ", ".join(f"{row['name']} ({row['listed']:,})" for row in of["frequent"][:5])
        print(f"in more than a tenth of them: {names}; `--diverse` spreads these out")


@command(ExportOptions)
def export(
    triples: Annotated[
        Path, typer.Argument(help="A list that `kgmlm complete` wrote.", show_default=False), INPUT
    ],
    as_json: Json = False,
    **given: Any,
) -> None:
    """Write a list of new triples for other programs: RDF, CSV, JSON Lines, Neo4j.

    neo4j writes a folder with nodes.csv and edges.csv for `neo4j-admin database import`; or, to a server,
    relationships with `probability` and `source` between its existing nodes.
    """
    from kgmlm.core.errors import counted
    from kgmlm.core.progress import Bars
    from kgmlm.prediction.export import export as job

    if str(given["output"]) == "-":
        _export_to_stdout(triples, given)
        return
    made = job(triples, progress=Bars(), **given)
    if as_json:
        print_json(made)
        return
    print(f"{made['output']}: {counted(made['triples'], 'triple')} as {made['format']}")
    for key, what in (("known", "known"), ("without_node", "without a node")):
        if made.get(key):
            print(f"{what}: {made[key]:,}")


def _export_to_stdout(triples: Path, given: dict[str, Any]) -> None:
    import shutil
    import sys
    from tempfile import TemporaryDirectory

    from kgmlm.core.errors import ConfigError
    from kgmlm.prediction.export import FOLDER, FORMATS
    from kgmlm.prediction.export import export as job

    if given["format"] in (None, FOLDER):
        raise ConfigError(f"--output - needs a --format of one file: {', '.join(FORMATS)}")
    with TemporaryDirectory() as folder:
        made = Path(folder) / "list"
        job(triples, **given | {"output": made})
        sys.stdout.flush()
        with made.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
