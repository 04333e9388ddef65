"""The commands that rank, and that look into what ranks: ``rank``, ``evaluate``, ``rules``, ``similar``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kgmlm.cli.common import (
    INPUT,
    OTHER_GRAPH,
    RANKING,
    WORKERS,
    BatchSize,
    Csv,
    Device,
    EntityTriples,
    Json,
    JsonLines,
    Options,
    Precision,
    Quiet,
    RelationsPrior,
    RunArgument,
    RuntimeOption,
    SkipHeader,
    Verify,
    command,
    flag,
    option,
)
from kgmlm.cli.printing import (
    print_classified,
    print_comparison,
    print_json,
    print_metrics,
    print_predictions,
    print_table,
    tell,
)

if TYPE_CHECKING:
    from kgmlm.core.workers import Workers
    from kgmlm.graphs.names import Resolver
    from kgmlm.graphs.queries import Query
    from kgmlm.runs.run import Run


RANK: Options = {
    "head": option(str | None, None, "Rank tails of this head (label or name)."),
    "relation": option(str | None, None, "Relation; without it, relations of --head and --tail are ranked."),
    "tail": option(str | None, None, "Rank heads of this tail (label or name)."),
    "queries": option(
        Path | None,
        None,
        "Many queries: TSV or CSV whose first line names the columns relation and head or tail.",
        read=True,
    ),
    "entities": option(
        Path | None,
        None,
        "New entities that join the candidates and may be asked about: a table with the columns label, name "
        "and, if you like, description, surface and types; or an RDF file.",
        read=True,
    ),
    "entity_triples": (EntityTriples, None),
}


SHOWN: Options = {
    "probabilities": option(
        bool,
        True,
        "Say how probable answers are; each is asked for from its other side, so many queries take longer.",
        "--probabilities/--no-probabilities",
    ),
}


@command(RANK, RANKING, SHOWN, {"device": (Device, None), "runtime": (RuntimeOption, "auto")}, WORKERS)
def rank(
    run: RunArgument,
    k: Annotated[int, typer.Option("-k", "--top", min=1, help="Candidates per query.")] = 10,
    prior: RelationsPrior = None,
    novel: Annotated[bool, typer.Option("--novel", help="Leave out triples that the graph has.")] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Show why: what each signal adds to a score, and the best rule."),
    ] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="Explain each token of the names, too.")] = False,
    batch_size: BatchSize = 64,
    verify: Verify = False,
    as_json: JsonLines = False,
    as_csv: Csv = False,
    quiet: Quiet = False,
    **given: Any,
) -> None:
    """Rank the entities that complete (head, relation, ?) or (?, relation, tail).

    With both --head and --tail, relations are ranked, by their probability (`kgmlm calibrate`).
    """
    from kgmlm.core.errors import QueryError
    from kgmlm.core.processes import main_process
    from kgmlm.core.progress import Bars, watcher_of
    from kgmlm.core.workers import Workers
    from kgmlm.runs.run import open_run, predicted

    explain = explain or tokens
    workers = Workers(**{name: given.pop(name) for name in WORKERS})
    head, relation, tail, queries, entities, entity_triples = (given.pop(name) for name in RANK)
    _check((relation, head, tail), queries is not None, explain, as_json, as_csv, workers)
    if queries is None and not main_process():
        return  # a single query is asked by one process
    opened = open_run(run, verify=verify, **given)
    if entities is None and entity_triples is not None:
        raise QueryError("--entity-triples goes with --entities")
    if entities is not None:
        opened = opened.with_entities(entities, entity_triples or (), progress=Bars(quiet))
    if relation is None and head is not None and tail is not None and queries is None:
        from kgmlm.prediction.classify import rank_relations

        _check_relations(opened)
        relations = rank_relations(
            opened, head, tail, k=k, novel=novel, prior=0.5 if prior is None else prior,
            batch_size=batch_size, device=given["device"], progress=Bars(quiet),
        )  # fmt: skip
        print_classified(relations, as_json=as_json, as_csv=as_csv, explain=explain)
        return
    if prior is not None:
        raise QueryError("--prior is for relations, which are ranked without --relation")
    find, many = opened.resolver, queries is not None
    asked = read_queries(queries, find) if many else [find.query(relation or "", head, tail)]
    options: dict[str, Any] = {"k": k, "novel": novel, "explain": explain}
    with watcher_of(Bars(quiet)) as watch:  # what needs no model has been said by now
        if many:
            found = predicted(opened, asked, watch, batch_size, workers, **options)
        else:
            one = opened.open(watch, batch_size).predict(asked, batch_size=batch_size, **options)
            found = [best for _, best in one]
    print_predictions(
        opened.graph, asked, found, as_json=as_json, as_csv=as_csv, many=many,
        sureness=opened.sureness, tokens=tokens,
    )  # fmt: skip


def _check_relations(run: Run) -> None:
    """Refuse options that ranking relations by their probability does not go by."""
    from kgmlm.core.errors import QueryError
    from kgmlm.runs.options import RankingOptions

    if run.options != RankingOptions(device=run.options.device, runtime=run.options.runtime):
        raise QueryError(
            "relations are ranked by probability: --scores, --allow-self, --typed, --functional, "
            "--unlinked, --rerank and --retrieve are for entities"
        )


def _check(
    one: tuple[str | None, ...], many: bool, explain: bool, as_json: bool, as_csv: bool, workers: Workers
) -> None:
    """Refuse options that do not go together; ``one`` is the relation, head and tail of a single query."""
    from kgmlm.core.errors import QueryError

    if as_json and as_csv:
        raise QueryError("--json and --csv exclude each other")
    if explain and as_csv:
        raise QueryError("--explain and --tokens go with a table or --json, not with --csv")
    if not many and not workers.here:
        raise QueryError("--ray goes with --queries; a single query is asked by one process")
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
    from kgmlm.core.errors import DataError, QueryError
    from kgmlm.core.tables import named_rows

    def check(header: Sequence[str]) -> None:
        if "relation" not in header or not {"head", "tail"} & set(header):
            raise DataError(
                f"{path}: the first line must name the columns relation and head or tail, "
                f"not: {', '.join(header)}"
            )

    asked = []
    for line, row in named_rows(path, "head, relation (or relation, tail)", check):
        try:
            asked.append(resolver.query(row["relation"], row.get("head") or None, row.get("tail") or None))
        except QueryError as error:
            raise QueryError(f"{line}: {error}") from None
    return asked


@command()
def linearize(
    source: Annotated[str, typer.Argument(help="A run folder, a built-in dataset, or a dataset folder.")],
    relation: Annotated[str, typer.Option(help="The relation (label or name).", show_default=False)],
    head: Annotated[str | None, typer.Option(help="Ask for tails of this head.")] = None,
    tail: Annotated[str | None, typer.Option(help="Ask for heads of this tail.")] = None,
    model: Annotated[
        str | None, typer.Option(help="For a dataset: whose tokenizer to use; by default scratch.")
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


EVALUATE: Options = {
    "split": option(str | None, None, "The split to evaluate; by default test."),
    "protocol": option(Path | None, None, "A protocol as TOML.", read=True),
    "graph": option(
        str | None, None, "Evaluate on another dataset or folder, whose entities the run has never seen."
    ),
    **OTHER_GRAPH,
    "output": option(Path | None, None, "Write the report there as JSON."),
    "ranks": option(Path | None, None, "Per-query ranks, Parquet; else in RUN/ranks."),
    "side": option(
        Literal["both", "tail", "head"] | None,
        None,
        "Ask for tails alone, for heads alone, or for both; by default as the run was trained.",
    ),
    "max_triples": option(int | None, None, "Evaluate only this many triples, a seeded sample.", min=1),
    "by_relation": flag("--by-relation", "Report each relation, too."),
    "pykeen": flag("--pykeen", "Rank once more as PyKEEN does, which takes as long again."),
    **RANKING,
    "candidates": option(
        str | None,
        None,
        "Whose entities compete: all, graph, split or train; by default all, with --graph graph. Or a table "
        "of the entities that can answer, as of `rank`: the others rank last.",
    ),
    "batch_size": (BatchSize, 64),
    "precision": (Precision, "fp32"),
    "device": (Device, None),
    "verify": (Verify, False),
    **WORKERS,
}


@command(EVALUATE)
def evaluate(run: RunArgument, as_json: Json = False, quiet: Quiet = False, **given: Any) -> None:
    """Report filtered MRR and Hits@k on a split, head and tail and both, seen and unseen apart.

    With --graph, the run is asked about a graph that it was not trained on: that graph's training triples
    are context, all its splits the filter. Refused where training has an evaluated triple or an entity
    that would count as unseen.
    """
    from kgmlm.core.progress import Bars
    from kgmlm.evaluation.evaluate import evaluate as job

    report = job(run, progress=Bars(quiet), **given)
    if as_json:
        print_json(report.values)
    else:
        print_metrics(report.evaluation)


@command()
def compare(
    a: Annotated[
        Path, typer.Argument(help="A run folder, or ranks that `evaluate` wrote.", show_default=False), INPUT
    ],
    b: Annotated[Path, typer.Argument(help="Another one.", show_default=False), INPUT],
    split: Annotated[str, typer.Option(help="The split whose ranks are compared, of run folders.")] = "test",
    draws: Annotated[int, typer.Option(min=100, help="Resamplings and random swaps.")] = 2000,
    seed: Annotated[int, typer.Option(min=0)] = 0,
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


@command()
def rules(
    run: RunArgument,
    relation: Annotated[
        str | None, typer.Option(help="Only rules that predict this relation; a label or a name.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many are shown, best first.")] = 20,
    output: Annotated[
        Path | None, typer.Option(help="Write all of them there, in AnyBURL's format (tab-separated).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the rules that a run has mined (`kgmlm tune RUN --add rules`), the most confident first."""
    from kgmlm.core.tables import write_tsv
    from kgmlm.runs.run import open_run
    from kgmlm.runs.writing import check_result
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
        shown = found.head(k).assign(confidence=found["confidence"].map("{:.3f}".format))
        print_table(title, shown[["predicted", "correct", "confidence", "words"]])


Embedded = Annotated[
    Literal["biencoder", "vector", "kge"] | None,
    typer.Option(
        "--of",
        help="Embeddings of this signal: texts and triples by the bi-encoder, texts by the masked LM, or "
        "ComplEx; by default the first of these that the run has.",
        show_default=False,
    ),
]


@command()
def similar(
    run: RunArgument,
    entity: Annotated[str, typer.Argument(help="Its label or name.", show_default=False)],
    k: Annotated[int, typer.Option("-k", "--top", min=1, help="How many.")] = 10,
    of: Embedded = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List the entities whose embeddings are most like an entity's."""
    from kgmlm.core.progress import Bars
    from kgmlm.sharing.embeddings import similar as job

    found = job(run, entity, k, of=of, progress=Bars(quiet))
    if as_json:
        print_json(found.to_dict("records"))
    else:
        title = f"most similar to {entity}"
        print_table(
            title, found.assign(cosine=found["cosine"].map("{:.3f}".format))[["name", "cosine", "entity"]]
        )


@command()
def embeddings(
    run: RunArgument,
    output: Annotated[
        Path,
        typer.Option(help="A file that ends in .parquet, .npz, or .txt (word2vec's).", show_default=False),
    ],
    of: Embedded = None,
    relations: Annotated[
        bool, typer.Option("--relations", help="Write relations instead, with --of kge; inverses come last.")
    ] = False,
    batch_size: BatchSize = 64,
    quiet: Quiet = False,
) -> None:
    """Write the embeddings of a run's entities, for other programs."""
    from kgmlm.core.progress import Bars
    from kgmlm.sharing.embeddings import embeddings as job

    found = job(run, of, relations=relations, batch_size=batch_size, progress=Bars(quiet))
    path = found.save(output)
    print(f"{path}: {len(found):,} embeddings by {found.of}, {found.vectors.shape[1]} numbers each")
