"""The commands that rank: ``rank``, ``linearize``, ``evaluate``, ``compare``, ``rules``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kgmlm.cli.common import (
    INPUT,
    MOST,
    Address,
    AllowSelf,
    BatchSize,
    Device,
    Effort,
    Engines,
    EntityTriples,
    Functional,
    Json,
    Precision,
    Quiet,
    RelationsPrior,
    Rerank,
    Retrieve,
    RunArgument,
    RuntimeOption,
    Scores,
    SkipHeader,
    Typed,
    Verify,
    Workers,
    handled,
    print_comparison,
    print_json,
    print_metrics,
    print_predictions,
    print_table,
    tell,
)

if TYPE_CHECKING:
    from kgmlm.core.workers import Crew
    from kgmlm.graphs.names import Resolver
    from kgmlm.graphs.queries import Query
    from kgmlm.runs.run import Run


@handled
def rank(
    run: RunArgument,
    head: Annotated[str | None, typer.Option(help="Rank tails of this head (label or name).")] = None,
    relation: Annotated[
        str | None, typer.Option(help="The relation; without it, those of --head and --tail are ranked.")
    ] = None,
    tail: Annotated[str | None, typer.Option(help="Rank heads of this tail (label or name).")] = None,
    queries: Annotated[
        Path | None,
        typer.Option(
            help="Many queries: TSV or CSV whose first line names the columns relation and head or tail."
        ),
        INPUT,
    ] = None,
    entities: Annotated[
        Path | None,
        typer.Option(
            help="New entities that join the candidates and may be asked about: a table with the columns "
            "label, name and, if you like, description, surface and types."
        ),
        INPUT,
    ] = None,
    entity_triples: EntityTriples = None,
    k: Annotated[int, typer.Option("-k", "--top", min=1, max=MOST, help="Candidates per query.")] = 10,
    prior: RelationsPrior = None,
    novel: Annotated[bool, typer.Option("--novel", help="Leave out triples that the graph has.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what each score is made of, token by token.")
    ] = False,
    scores: Scores = "all",
    allow_self: AllowSelf = False,
    typed: Typed = False,
    functional: Functional = False,
    rerank: Rerank = None,
    retrieve: Retrieve = None,
    effort: Effort = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    batch_size: BatchSize = 64,
    device: Device = None,
    runtime: RuntimeOption = "auto",
    verify: Verify = False,
    workers: Workers = 1,
    engine: Engines = "local",
    address: Address = None,
    quiet: Quiet = False,
) -> None:
    """Rank the entities that complete (head, relation, ?) or (?, relation, tail).

    With both --head and --tail, relations are ranked, by their probability (`kgmlm calibrate`).
    """
    from kgmlm.core.errors import QueryError
    from kgmlm.core.processes import main_process
    from kgmlm.core.workers import Crew
    from kgmlm.runs.run import open_run

    crew = Crew(workers, engine, address)
    _check((relation, head, tail), queries is not None, explain, as_json, as_csv, crew)
    if queries is None and not main_process():
        return  # a single query is asked by one process
    opened = open_run(
        run, scores=scores, allow_self=allow_self, typed=typed, functional=functional, rerank=rerank,
        retrieve=retrieve, effort=effort, device=device, runtime=runtime, verify=verify,
    )  # fmt: skip
    if entities is None and entity_triples is not None:
        raise QueryError("--entity-triples goes with --entities")
    if entities is not None:
        opened = opened.with_entities(entities, entity_triples or ())
    shown = {"as_json": as_json, "as_csv": as_csv, "explain": explain}
    if relation is None and head is not None and tail is not None and queries is None:
        share = {} if prior is None else {"prior": prior}
        options = {"k": k, "novel": novel, **share, "batch_size": batch_size, "device": device}
        _rank_relations(opened, head, tail, options, shown, quiet)
        return
    if prior is not None:
        raise QueryError("--prior is for relations, which --head and --tail without --relation rank")
    find = opened.resolver
    asked = [find.query(relation or "", head, tail)] if queries is None else read_queries(queries, find)
    _rank_entities(opened, asked, queries is not None, k, novel, shown, batch_size, crew, quiet)


def _rank_entities(
    run: Run,
    asked: list[Query],
    many: bool,
    k: int,
    novel: bool,
    shown: dict[str, bool],
    batch_size: int,
    crew: Crew,
    quiet: bool,
) -> None:
    """Rank the entities that answer queries; what needs no model has been said by now."""
    from kgmlm.core.progress import Bars, watcher_of
    from kgmlm.runs.run import predicted

    options: dict[str, Any] = {"k": k, "novel": novel, "explain": shown["explain"]}
    with watcher_of(Bars(quiet)) as watch:
        if many:
            found = predicted(run, asked, watch, batch_size, crew, **options)
        else:
            one = run.open(watch, batch_size).predict(asked, batch_size=batch_size, **options)
            found = [best for _, best in one]
    printed = {key: shown[key] for key in ("as_json", "as_csv")}
    print_predictions(run.graph, asked, dict(enumerate(found)), **printed, many=many)


def _rank_relations(
    run: Run,
    head: str,
    tail: str,
    options: dict[str, Any],
    shown: dict[str, bool],
    quiet: bool,
) -> None:
    """Rank the relations of a head and a tail by probability."""
    from kgmlm.cli.common import print_classified
    from kgmlm.core.errors import QueryError
    from kgmlm.core.progress import Bars
    from kgmlm.prediction.classify import rank_relations
    from kgmlm.runs.options import RankingOptions

    if run.way != RankingOptions(device=run.way.device, runtime=run.way.runtime):
        raise QueryError(
            "relations are ranked by probability: --scores, --allow-self, --typed, --functional, --rerank "
            "and --retrieve are for entities"
        )
    print_classified(rank_relations(run, head, tail, progress=Bars(quiet), **options), **shown)


def _check(
    one: tuple[str | None, ...], many: bool, explain: bool, as_json: bool, as_csv: bool, crew: Crew
) -> None:
    """Refuse options that do not go together; ``one`` is the relation, head and tail of a single query."""
    from kgmlm.core.errors import QueryError

    if as_json and as_csv:
        raise QueryError("--json and --csv exclude each other")
    if explain and as_csv:
        raise QueryError("--explain goes with a table or --json, not with --csv")
    if not many and not crew.here:
        raise QueryError("--workers and --engine go with --queries; a single query is asked by one process")
    if many and one != (None, None, None):
        raise QueryError("give either --queries or one query, not both")
    if not many and one[0] is None and None in one[1:]:
        raise QueryError("--relation is missing")


def read_queries(path: Path, resolver: Resolver) -> list[Query]:
    """Queries of a file: columns relation and head or tail, or both with one of them empty.

    Raises:
        DataError: when the file is no such table.
        QueryError: when a line asks for nothing that there is.
    """
    from kgmlm.core.errors import QueryError

    asked = []
    for line, row in _rows(path):
        try:
            asked.append(resolver.query(row["relation"], row.get("head") or None, row.get("tail") or None))
        except QueryError as error:
            raise QueryError(f"{line}: {error}") from None
    return asked


def _rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Where a line of a file is, and its fields by the columns that the first line names."""
    from kgmlm.core import files, tables
    from kgmlm.core.errors import DataError

    data = files.read_bytes(path)
    separator = "\t" if b"\t" in data.partition(b"\n")[0] else ","  # the names of columns have neither
    lines = list(tables.parse_lines(data, str(path), separator))
    if not lines:
        raise DataError(
            f"{path} is empty; its first line must name the columns: head, relation (or relation, tail)"
        )
    header = lines[0][1]
    if twice := [name for name in header if header.count(name) > 1]:
        raise DataError(f"{path}: the column '{twice[0]}' is there twice; keep one")
    if "relation" not in header or not {"head", "tail"} & set(header):
        raise DataError(
            f"{path}: the first line must name the columns relation and head or tail, "
            f"not: {', '.join(header)}"
        )
    for number, fields in lines[1:]:
        if len(fields) != len(header):
            raise DataError(f"{path}:{number}: expected {len(header)} columns, found {len(fields)}")
        yield f"{path}:{number}", dict(zip(header, fields, strict=True))


@handled
def linearize(
    source: Annotated[str, typer.Argument(help="A run folder, a built-in dataset, or a dataset folder.")],
    relation: Annotated[str, typer.Option(help="The relation (label or name).", show_default=False)],
    head: Annotated[str | None, typer.Option(help="Ask for tails of this head.")] = None,
    tail: Annotated[str | None, typer.Option(help="Ask for heads of this tail.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Whose tokenizer, for a dataset; by default that of scratch models.")
    ] = None,
    template: Annotated[str | None, typer.Option(help="Another template, for a dataset.")] = None,
    skip_header: SkipHeader = False,
    as_json: Json = False,
) -> None:
    """Print the exact text and tokens that the model sees for a query."""
    from kgmlm.core.errors import printable
    from kgmlm.data import linearize as job

    shown = job(
        source, relation, head=head, tail=tail, model=model, template=template, skip_header=skip_header
    )
    if as_json:
        print_json(shown.as_json())
        return
    print(printable(shown.text))
    print(printable(" ".join(piece.strip() for piece in shown.pieces)))
    tell(
        f"{len(shown.tokens)} tokens, a span of {shown.span_length} from token {shown.span_start} on"
        + (" and a mask for the query's vector" if shown.vector else "")
        + (f", {shown.tokens_cut} tokens cut" if shown.tokens_cut else "")
    )


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
    from kgmlm.core.progress import Bars
    from kgmlm.evaluation.evaluate import evaluate as job

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
    from kgmlm.evaluation.compare import compare as job

    found = job(a, b, split=split, draws=draws, seed=seed)
    if as_json:
        print_json(found.as_json())
    else:
        print_comparison(found.differences, found.a, found.b)


@handled
def rules(
    run: RunArgument,
    relation: Annotated[
        str | None, typer.Option(help="Only rules that predict this relation; a label or a name.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, max=MOST, help="How many are shown, best first.")] = 20,
    output: Annotated[
        Path | None, typer.Option(help="Write all of them there, in AnyBURL's format (tab-separated).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the rules that a run has mined (`kgmlm tune RUN --add rules`), the most confident first."""
    from kgmlm.core.tables import write_tsv
    from kgmlm.runs.record import check_result
    from kgmlm.runs.run import open_run
    from kgmlm.signals.rule_set import as_rows

    if output is not None:
        check_result(output)
    found = open_run(run).rules(relation)
    if output is not None:
        write_tsv(output, as_rows(found))
        tell(f"{len(found):,} rules written to {output}")
    elif as_json:
        print_json(found.head(k).to_dict("records"))
    else:
        title = f"the {min(k, len(found)):,} most confident of {len(found):,} rules"
        print_table(title, found.head(k).assign(confidence=found["confidence"].map("{:.3f}".format)))
