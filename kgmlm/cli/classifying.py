"""``kgmlm classify`` and ``kgmlm calibrate``: is this triple true?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kgmlm.cli.options import (
    MOST,
    BatchSize,
    Device,
    EntityTriples,
    Json,
    Precision,
    Prior,
    Quiet,
    RunArgument,
    RuntimeOption,
    SkipHeader,
)
from kgmlm.terminal import INPUT, handled, print_json, tell

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
    from kgmlm.jobs.classifying import classify as job
    from kgmlm.kg import QueryError
    from kgmlm.terminal import print_classified
    from kgmlm.watching import Bars

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
    from kgmlm.jobs.classifying import MISSING, measure_probabilities
    from kgmlm.jobs.classifying import calibrate as job
    from kgmlm.kg import ConfigError
    from kgmlm.watching import Bars

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
