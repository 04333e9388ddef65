"""The commands that rank, and that look into what ranks: ``rank``, ``evaluate``, ``rules``, ``similar``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kgmlm.cli.common import INPUT, Csv, Json, JsonLines, Quiet, RunArgument, command
from kgmlm.cli.printing import (
    print_classified,
    print_comparison,
    print_json,
    print_metrics,
    print_predictions,
    print_table,
    tell,
)
from kgmlm.core.options import described
from kgmlm.evaluation.options import CompareOptions, EvaluateOptions
from kgmlm.graphs.options import LinearizeOptions
from kgmlm.runs.options import EntityOptions, OpenOptions, RankOptions
from kgmlm.sharing.options import EmbeddingsOptions, SimilarOptions

if TYPE_CHECKING:
    from kgmlm.runs.run import Run


RELATIONS = ("head", "tail", "k", "novel", "device", "runtime")  # of ranking relations


@command(RankOptions, OpenOptions, EntityOptions)
def rank(
    run: RunArgument,
    prior: Annotated[
        float | None,
        typer.Option(
            help="When ranking relations: the share of true triples among those asked about, .5 by default.",
            show_default=False,
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Show why: what each signal adds to a score, and the best rule."),
    ] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="Explain each token of the names, too.")] = False,
    as_json: JsonLines = False,
    as_csv: Csv = False,
    quiet: Quiet = False,
    **given: Any,
) -> None:
    """Rank the entities that complete (head, relation, ?) or (?, relation, tail).

    With both --head and --tail, it ranks relations by probability (`kgmlm calibrate`).
    """
    from kgmlm.core.errors import QueryError
    from kgmlm.core.processes import main_process
    from kgmlm.core.progress import Bars, watcher_of
    from kgmlm.core.workers import Workers
    from kgmlm.runs.run import open_run, predicted

    explain = explain or tokens
    asking = RankOptions(**{x.name: given[x.name] for x in described(RankOptions) if x.name in given})
    workers = Workers(asking.ray, asking.workers)
    _check(asking, explain, as_json, as_csv)
    if asking.queries is None and not main_process():
        return  # a single query is asked by one process
    opened = open_run(run, **{x.name: given[x.name] for x in described(OpenOptions)})
    entities, entity_triples = given["entities"], given["entity_triples"]
    if entities is None and entity_triples != ():
        raise QueryError("--entity-triples goes with --entities")
    if entities is not None:
        opened = opened.with_entities(entities, entity_triples, progress=Bars(quiet))
    if asking.relation is None and asking.queries is None:
        from kgmlm.prediction.classify import rank_relations

        _check_relations(opened)
        names = {name: given[name] for name in RELATIONS}
        relations = rank_relations(
            opened, prior=0.5 if prior is None else prior, progress=Bars(quiet), **names
        )
        print_classified(relations, as_json=as_json, as_csv=as_csv, explain=explain)
        return
    if prior is not None:
        raise QueryError("--prior is for relations: leave out --relation to rank them")
    asked, is_single = opened.asked(asking)
    options: dict[str, Any] = {"k": asking.k, "novel": asking.novel, "explain": explain}
    with watcher_of(Bars(quiet)) as watch:  # a wrong name was refused before the model is opened
        if is_single:
            pairs = opened.open(watch, asking.batch_size).predict(
                asked, batch_size=asking.batch_size, **options
            )
            predictions = [best for _, best in pairs]
        else:
            predictions = predicted(opened, asked, watch, asking.batch_size, workers, **options)
    print_predictions(
        opened.graph, asked, predictions, as_json=as_json, as_csv=as_csv, many=not is_single,
        sureness=opened.sureness, tokens=tokens,
    )  # fmt: skip


def _check_relations(run: Run) -> None:
    """Refuse options that do not apply to ranking relations by probability."""
    from kgmlm.core.errors import QueryError
    from kgmlm.runs.options import RankingOptions

    if run.options != RankingOptions(device=run.options.device, runtime=run.options.runtime):
        raise QueryError(
            "relations are ranked by probability: --scores, --allow-self, --typed, --functional, "
            "--unlinked, --rerank and --retrieve are for entities"
        )


def _check(asking: RankOptions, explain: bool, as_json: bool, as_csv: bool) -> None:
    """Refuse options that do not go together."""
    from kgmlm.core.errors import QueryError

    if as_json and as_csv:
        raise QueryError("--json and --csv exclude each other")
    if explain and as_csv:
        raise QueryError("--explain and --tokens go with a table or --json, not with --csv")
    is_single = asking.queries is None
    if is_single and asking.ray is not None:
        raise QueryError("--ray goes with --queries; a single query is asked by one process")
    if not is_single and (asking.head, asking.relation, asking.tail) != (None, None, None):
        raise QueryError("give either --queries or one query, not both")
    if is_single and asking.relation is None and None in (asking.head, asking.tail):
        raise QueryError("--relation is missing")


@command(LinearizeOptions)
def linearize(
    source: Annotated[str, typer.Argument(help="A run folder, a built-in dataset, or a dataset folder.")],
    as_json: Json = False,
    **given: Any,
) -> None:
    """Print the exact text and tokens that the model sees for a query."""
    from kgmlm.core.errors import printable
    from kgmlm.data import linearize as job

    shown = job(source, **given)
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


@command(EvaluateOptions)
def evaluate(run: RunArgument, as_json: Json = False, quiet: Quiet = False, **given: Any) -> None:
    """Report filtered MRR and Hits@k on a split, by side (head, tail, both), seen and unseen separately.

    With --graph, the run is evaluated on a graph that it was not trained on: that graph's training triples
    are context, and all its splits are the filter. This is refused if training has an evaluated triple, or
    an entity that would count as unseen.
    """
    from kgmlm.core.progress import Bars
    from kgmlm.evaluation.evaluate import evaluate as job

    report = job(run, progress=Bars(quiet), **given)
    if as_json:
        print_json(report.values)
    else:
        print_metrics(report.evaluation)


@command(CompareOptions)
def compare(
    a: Annotated[
        Path, typer.Argument(help="A run folder, or ranks that `evaluate` wrote.", show_default=False), INPUT
    ],
    as_json: Json = False,
    **given: Any,
) -> None:
    """Test whether two runs rank the same triples differently by more than chance.

    Ranks are paired triple by triple. Resampling triples gives a 95 % interval of each difference; p is how
    often swapping the runs at random gives one as large. Training seeds are another source of chance.
    """
    from kgmlm.evaluation.compare import compare as job

    comparison = job(a, **given)
    if as_json:
        print_json(comparison.as_json())
    else:
        print_comparison(comparison.differences, comparison.a, comparison.b)


@command()
def rules(
    run: RunArgument,
    relation: Annotated[
        str | None, typer.Option(help="Only rules that predict this relation; a label or a name.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many are shown, best first.")] = 20,
    output: Annotated[
        Path | None, typer.Option(help="Write all rules to this file, in AnyBURL's format (TSV).")
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
    table = open_run(run).rules(relation)
    if output is not None:
        write_tsv(output, as_rows(table))
        tell(f"{len(table):,} rules written to {output}")
    elif as_json:
        print_json(table.head(k).to_dict("records"))
    else:
        title = f"the {min(k, len(table)):,} most confident of {len(table):,} rules"
        shown = table.head(k).assign(confidence=table["confidence"].map("{:.3f}".format))
        print_table(title, shown[["predicted", "correct", "confidence", "words"]])


@command(SimilarOptions)
def similar(run: RunArgument, as_json: Json = False, quiet: Quiet = False, **given: Any) -> None:
    """List the entities whose embeddings are most similar to an entity's."""
    from kgmlm.core.progress import Bars
    from kgmlm.sharing.embeddings import similar as job

    table = job(run, progress=Bars(quiet), **given)
    if as_json:
        print_json(table.to_dict("records"))
    else:
        shown = table.assign(cosine=table["cosine"].map("{:.3f}".format))
        print_table(f"most similar to {given['entity']}", shown[["name", "cosine", "entity"]])


@command(EmbeddingsOptions)
def embeddings(
    run: RunArgument,
    output: Annotated[
        Path,
        typer.Option(help="A file that ends in .parquet, .npz, or .txt (word2vec's).", show_default=False),
    ],
    quiet: Quiet = False,
    **given: Any,
) -> None:
    """Write the embeddings of a run's entities, for other programs."""
    from kgmlm.core.progress import Bars
    from kgmlm.sharing.embeddings import embeddings as job

    made = job(run, progress=Bars(quiet), **given)
    path = made.save(output)
    print(f"{path}: {len(made):,} embeddings by {made.of}, {made.vectors.shape[1]} numbers each")
