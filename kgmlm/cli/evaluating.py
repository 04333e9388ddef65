"""``kgmlm evaluate`` and ``kgmlm compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from kgmlm.cli.options import (
    MOST,
    Address,
    AllowSelf,
    BatchSize,
    Device,
    Effort,
    Engines,
    Functional,
    Json,
    Precision,
    Quiet,
    Rerank,
    Retrieve,
    RunArgument,
    Scores,
    SkipHeader,
    Typed,
    Verify,
    Workers,
)
from kgmlm.terminal import INPUT, handled, print_comparison, print_json, print_metrics


@handled
def evaluate(
    run: RunArgument,
    split: Annotated[str | None, typer.Option(help="The split to evaluate; by default test.")] = None,
    protocol: Annotated[Path | None, typer.Option(help="A protocol as TOML."), INPUT] = None,
    graph: Annotated[
        str | None,
        typer.Option(help="Evaluate on another dataset or folder, whose entities the run has never seen."),
    ] = None,
    candidates: Annotated[
        Literal["all", "graph", "split", "train"] | None,
        typer.Option(help="Whose entities compete: by default all; with --graph, graph."),
    ] = None,
    allow_seen_entities: Annotated[
        bool, typer.Option("--allow-seen-entities", help="--graph may share entities with training.")
    ] = False,
    allow_new_relations: Annotated[
        bool, typer.Option("--allow-new-relations", help="--graph may have relations that training has not.")
    ] = False,
    skip_header: SkipHeader = False,
    output: Annotated[Path | None, typer.Option(help="Write the report there as JSON.")] = None,
    ranks: Annotated[Path | None, typer.Option(help="Per-query ranks, Parquet; else in RUN/ranks.")] = None,
    max_triples: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Evaluate only this many triples, a seeded sample.")
    ] = None,
    by_relation: Annotated[bool, typer.Option("--by-relation", help="Report each relation, too.")] = False,
    scores: Scores = "all",
    allow_self: AllowSelf = False,
    typed: Typed = False,
    functional: Functional = False,
    rerank: Rerank = None,
    retrieve: Retrieve = None,
    effort: Effort = None,
    batch_size: BatchSize = 64,
    precision: Precision = "fp32",
    device: Device = None,
    verify: Verify = False,
    workers: Workers = 1,
    engine: Engines = "local",
    address: Address = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Report filtered MRR and Hits@k on a split, head and tail and both, seen and unseen apart.

    With --graph, the run is asked about a graph that it was not trained on: that graph's training triples
    are context, all its splits the filter. Refused where training has an evaluated triple or an entity
    that would count as unseen.
    """
    from kgmlm.jobs.evaluating import evaluate as job
    from kgmlm.watching import Bars

    report = job(
        run, graph=graph, split=split, protocol=protocol, candidates=candidates,
        allow_seen_entities=allow_seen_entities, allow_new_relations=allow_new_relations,
        skip_header=skip_header, output=output, ranks=ranks, max_triples=max_triples,
        by_relation=by_relation, scores=scores, allow_self=allow_self, typed=typed, functional=functional,
        rerank=rerank, retrieve=retrieve, effort=effort, batch_size=batch_size,
        precision=precision, device=device, verify=verify, workers=workers, engine=engine, address=address,
        progress=Bars(quiet),
    )  # fmt: skip
    if as_json:
        print_json(report.values)
    else:
        print_metrics(report.evaluation)


@handled
def compare(
    a: Annotated[
        Path, typer.Argument(help="A run folder, or ranks that `evaluate` wrote.", show_default=False), INPUT
    ],
    b: Annotated[Path, typer.Argument(help="Another one.", show_default=False), INPUT],
    split: Annotated[str, typer.Option(help="Whose ranks of the run folders.")] = "test",
    draws: Annotated[int, typer.Option(min=100, max=MOST, help="Resamplings and random swaps.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, max=MOST)] = 0,
    as_json: Json = False,
) -> None:
    """Say whether two runs rank the same triples differently by more than chance.

    Pairs their ranks triple by triple: a 95 % interval of each difference by resampling triples, and p, how
    often swapping the two at random gives as large a one. Seeds of training are another source of chance.
    """
    from kgmlm.jobs.evaluating import compare as job

    found = job(a, b, split=split, draws=draws, seed=seed)
    if as_json:
        print_json(found.as_json())
    else:
        print_comparison(found.differences, found.a, found.b)
