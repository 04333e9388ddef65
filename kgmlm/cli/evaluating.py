"""``kgmlm evaluate`` and ``kgmlm compare``."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kgmlm.cli.options import (
    MOST,
    AllowSelf,
    BatchSize,
    Device,
    Effort,
    IndexKind,
    Json,
    Precision,
    Quiet,
    Rerank,
    Retrieve,
    RunArgument,
    Scores,
    SkipHeader,
    Verify,
)
from kgmlm.cli.steps import Way, read_entities, tell_not_reranked
from kgmlm.terminal import (
    handled,
    print_comparison,
    print_json,
    print_metrics,
    progress_bar,
    quiet_transformers,
    tell,
)

if TYPE_CHECKING:
    from kgmlm.config import Protocol
    from kgmlm.evaluation import Evaluation
    from kgmlm.graph import KnowledgeGraph
    from kgmlm.ranker import Ranker
    from kgmlm.runs import Run
    from kgmlm.scope import Scope


@handled
def evaluate(
    run: RunArgument,
    split: Annotated[str | None, typer.Option(help="Whose triples to ask; test by default.")] = None,
    protocol: Annotated[Path | None, typer.Option(help="A protocol as TOML.")] = None,
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
    ranks: Annotated[
        Path | None, typer.Option(help="Per-query ranks, Parquet; by default in RUN/ranks.")
    ] = None,
    max_triples: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="A seeded sample of the split.")
    ] = None,
    scores: Scores = "all",
    allow_self: AllowSelf = False,
    rerank: Rerank = None,
    retrieve: Retrieve = None,
    index: IndexKind = None,
    effort: Effort = None,
    batch_size: BatchSize = 64,
    precision: Precision = "fp32",
    device: Device = None,
    verify: Verify = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Report filtered MRR and Hits@k on a split, head and tail and both, seen and unseen apart.

    With --graph, the run is asked about a graph that it was not trained on: that graph's training triples
    are context, all its splits the filter. Refused where training has an evaluated triple or an entity
    that would count as unseen.
    """
    from kgmlm import files
    from kgmlm.config import load_protocol
    from kgmlm.datasets import load_graph
    from kgmlm.runs import open_run

    allowed = {"allow_seen_entities": allow_seen_entities, "allow_new_relations": allow_new_relations}
    _check(run, graph, skip_header or any(allowed.values()), retrieve, output, ranks)
    settings = load_protocol(
        protocol,
        split=split,
        max_triples=max_triples,
        candidates=candidates or (None if graph is None or protocol else "graph"),
        allow_self=allow_self or None,
    )
    way = Way(scores, allow_self, rerank, retrieve, index, effort, precision, device)
    opened = open_run(run, verify=verify)
    other = None if graph is None else load_graph(graph, skip_header=skip_header)
    (other or opened.graph).triples(settings.split)  # is there, or this says so before the heavy imports
    scope, unchecked = _scope(opened, other, settings, way.reranks, allowed)
    ranker, result = _evaluate(opened, scope, settings, way, batch_size, quiet)
    report = whole_report(opened, ranker, result, precision, unchecked)
    if as_json:
        print_json(report)
    else:
        print_metrics(result)
    if output:
        files.write_json(output, report, follow=True)
    name = ranks_name(way, settings.split, other, protocol, candidates, max_triples)
    _keep_ranks(opened, result, ranks, name)
    _tell_caveats(report, chosen_on=other is not None or settings.split != "valid")


def _check(
    run: Path,
    graph: str | None,
    for_graph: bool,
    retrieve: int | None,
    output: Path | None,
    ranks: Path | None,
) -> None:
    """Refuse options that do not go together, and files that cannot be written."""
    from kgmlm import files
    from kgmlm.kg import ConfigError

    if graph is None and for_graph:
        raise ConfigError("--allow-seen-entities, --allow-new-relations and --skip-header go with --graph")
    if graph is not None and retrieve is not None:
        raise ConfigError("--retrieve asks an index of the run's own graph; it does not go with --graph")
    for path in (output, ranks):
        if path is not None:
            files.check_writable(path)
    if ranks is None:
        files.refuse_link(run / "ranks")


def _scope(
    run: Run, other: KnowledgeGraph | None, protocol: Protocol, reranked: bool, allowed: Mapping[str, bool]
) -> tuple[Scope, list[str]]:
    """What is asked, and the datasets of earlier runs that are gone, so nothing is checked against them."""
    from kgmlm.scope import Scope

    earlier, gone = run.past(reranked)
    if gone:
        tell(
            f"began with models of {', '.join(gone)} that are gone: what they were trained on is not checked"
        )
    if other is None:
        return Scope.of(run.graph, earlier), gone
    return Scope.inductive(run.graph, other, protocol, earlier=earlier, **allowed), gone


def _evaluate(
    run: Run, scope: Scope, protocol: Protocol, way: Way, batch_size: int, quiet: bool
) -> tuple[Ranker, Evaluation]:
    """Rank under a bar, and say of a reranker why it is left out."""
    from kgmlm.evaluation import evaluate

    quiet_transformers()
    ranker = way.ranker(run, scope.graph)
    tell_not_reranked(run, way)
    with progress_bar(quiet=quiet) as progress:
        read_entities(ranker, progress, batch_size)
        retrieval = way.retrieval(run, ranker)
        task = progress.add_task(f"evaluating {protocol.split}", total=None)
        result = evaluate(
            ranker,
            scope,
            protocol,
            retrieval=retrieval,
            batch_size=batch_size,
            advance=lambda n, total: progress.update(task, advance=n, total=total),
        )
    return ranker, result


def whole_report(
    run: Run, ranker: Ranker, evaluation: Evaluation, precision: str, unchecked: Sequence[str] = ()
) -> dict[str, Any]:
    """The report of an evaluation, with all that its figures go by: run, parts of the score, versions.

    Args:
        unchecked: datasets of earlier runs that could not be checked for leaks.
    """
    from kgmlm import provenance
    from kgmlm.signals import SIGNALS

    counting = ranker.mixture.signals
    keys = ("model", "began_from", "teacher", "seed", "step", "status", "minutes", "sources", "versions",
            "hardware", "command")  # fmt: skip
    return {
        **evaluation.report,
        "trained_on": run.graph.name,
        "unchecked": list(unchecked),
        "scores": {name: ranker.mixture.averages.get(name, 0.0) for name in SIGNALS},
        "signals": {k: v for k, v in run.record.get("signals", {}).items() if k in counting},
        "chosen_by": dict(run.chosen.by) if len(counting) > 1 or ranker.reranking else None,
        "reranking": _reranking(run, ranker),
        "precision": precision,
        "run": {k: run.record.get(k) for k in keys} | {"settings": run.settings.model_dump(mode="json")},
        "versions": provenance.versions(),
        "hardware": provenance.hardware(),
        "command": provenance.command(),
    }


def _reranking(run: Run, ranker: Ranker) -> dict[str, Any] | None:
    """What a report says of reranking."""
    from kgmlm.runs import open_run
    from kgmlm.upkeep import RERANKER

    if ranker.reranking is None:
        return None
    trained = open_run(run.path / RERANKER)
    keys = ("model", "began_from", "seed", "step", "status", "minutes", "versions", "hardware", "command")
    how = {key: trained.record.get(key) for key in keys}
    return {**how, "settings": trained.settings.model_dump(mode="json"), **asdict(ranker.reranking.use)}


def ranks_name(
    way: Way,
    split: str,
    other: KnowledgeGraph | None = None,
    protocol: Path | None = None,
    candidates: str | None = None,
    max_triples: int | None = None,
) -> str:
    """A file name of its own for each way to ask, so that `compare` by default compares the same."""
    from kgmlm import files

    words = [
        *([] if other is None else [other.name]),
        split,
        *([] if protocol is None else [protocol.stem]),
        *([] if candidates in (None, "all" if other is None else "graph") else [str(candidates)]),
        *([] if not max_triples else [f"{max_triples}-triples"]),
        *way.words(),
    ]
    return f"{files.safe_name('.'.join(words))}.parquet"


def _keep_ranks(run: Run, evaluation: Evaluation, path: Path | None, name: str) -> None:
    """Write ranks where they are asked for, or into the run under a name, if it can be written."""
    try:
        evaluation.write_ranks(path or run.path / "ranks" / name, run.made_by, follow=path is not None)
    except OSError as error:
        if path is not None or error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise
        tell(f"ranks are not kept, {run.path} is read-only: --ranks FILE keeps them elsewhere")


def _tell_caveats(report: Mapping[str, Any], chosen_on: bool) -> None:
    """Say what of an evaluation the run knew, and which names were cut.

    Args:
        chosen_on: whether that the run was chosen on a triple is worth saying.
    """
    from kgmlm.kg import counted

    known = {"training triples, too": report["triples_trained"]}
    if chosen_on:
        known["triples that the run was chosen on"] = report["triples_validated"]
    for what, count in known.items():
        if count:
            tell(
                f"{count:,} of {counted(report['triples'], 'triple')} {'is' if count == 1 else 'are'} {what}"
            )
    truncated = report["candidates"]["names_truncated"]
    if truncated:
        were = "was" if truncated == 1 else "were"
        tell(f"{counted(truncated, 'name')} longer than the span {were} cut to it")


@handled
def compare(
    a: Annotated[
        Path, typer.Argument(help="A run folder, or ranks that `evaluate` wrote.", show_default=False)
    ],
    b: Annotated[Path, typer.Argument(help="Another one.", show_default=False)],
    split: Annotated[str, typer.Option(help="Whose ranks of the run folders.")] = "test",
    draws: Annotated[int, typer.Option(min=100, max=MOST, help="Resamplings and random swaps.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, max=MOST)] = 0,
    as_json: Json = False,
) -> None:
    """Say whether two runs rank the same triples differently by more than chance.

    Pairs their ranks triple by triple: a 95 % interval of each difference by resampling triples, and p, how
    often swapping the two at random gives as large a one. Seeds of training are another source of chance.
    """
    from kgmlm import comparison, ranks_file, runs

    found_at = [ranks_file.find_ranks(path, split) for path in (a, b)]
    one, other = (ranks_file.read_ranks(path) for path in found_at)
    for path, ranks in zip((a, b), found_at, strict=True):
        made_by = ranks_file.made_by(ranks)
        if path.is_dir() and made_by and made_by != runs.open_run(path).made_by:
            tell(f"{ranks} is of {path} as it was before; `kgmlm evaluate` makes it again")
    found = comparison.compare(one, other, sides=("tail", "head", "both"), draws=draws, seed=seed)
    if as_json:
        print_json(comparison.as_json(found, len(one)))
    else:
        print_comparison(found, str(a), str(b))
