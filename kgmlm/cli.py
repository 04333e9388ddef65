"""Thin typer commands: parse, call the library, print. Heavy imports live inside the commands.

Results go to stdout, everything else to stderr. A mistake of the user's is one sentence and exit code 2.
"""

from __future__ import annotations

import errno
import math
import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kgmlm.cli_data import MOST, Json, Quiet, SkipHeader, data_app
from kgmlm.terminal import (
    PhaseBars,
    TrainingBar,
    handled,
    print_comparison,
    print_json,
    print_metrics,
    print_predictions,
    progress_bar,
    quiet_transformers,
    tell,
)

if TYPE_CHECKING:
    from rich.progress import Progress

    from kgmlm.config import Settings
    from kgmlm.graph import KnowledgeGraph
    from kgmlm.ranker import Ranker
    from kgmlm.runs import Run
    from kgmlm.structure import Structure
    from kgmlm.training import Outcome

app = typer.Typer(
    help="Link prediction on knowledge graphs with masked language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(data_app, name="data")

RunArgument = Annotated[Path, typer.Argument(help="A run folder, made by `kgmlm train`.", show_default=False)]
Device = Annotated[str | None, typer.Option(help="Such as cpu or cuda; by default a GPU where there is one.")]
Part = Literal["all", "text", "likelihood", "vector", "structure"]
Kind = Literal["likelihood", "entity"]
Scores = Annotated[
    Part,
    typer.Option(
        help="all that a run has; its text, without the structural model; or likelihood, vector or "
        "structure alone."
    ),
]
Retrieve = Annotated[
    int | None,
    typer.Option(
        min=1, max=MOST, help="Score only so many entities a query, found by an index (`kgmlm index`)."
    ),
]
IndexKind = Annotated[
    Kind | None, typer.Option("--index", help="Which index, where a run has both: likelihood or entity.")
]
Effort = Annotated[
    int | None,
    typer.Option(min=1, max=MOST, help="How hard the index tries; by default as hard as when it was built."),
]
Rescore = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=MOST,
        help="Rescore so many of the best, in runs with a rescorer (`kgmlm rescore`); by default as many as "
        "validation chose. 0 is none.",
    ),
]
Precision = Annotated[
    Literal["fp32", "bf16"],
    typer.Option(help="fp32, or bf16: faster on GPUs and on CPUs with units for it, slightly rounded."),
]
BatchSize = Annotated[
    int, typer.Option(min=1, max=MOST, help="Queries, or candidates read again, a forward pass.")
]
AllowSelf = Annotated[
    bool,
    typer.Option(
        "--allow-self",
        help="Let the entity that is asked about be its own answer also where no training triple of the "
        "relation links an entity to itself.",
    ),
]
Verify = Annotated[
    bool, typer.Option("--verify", help="Read all files of the run first and see that none has changed.")
]


def _writing(argument: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """For commands that write the run that an argument names: nobody else writes it meanwhile.

    Of several processes the main one holds the lock for all.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def wrapper(**arguments: Any) -> None:
            from kgmlm.runs import writing

            with writing(arguments[argument], function.__name__) if _main_process() else nullcontext():
                function(**arguments)

        return wrapper

    return decorate


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Link prediction on knowledge graphs with masked language models."""
    if version:
        from kgmlm import __version__

        print(f"kgmlm {__version__}")
        raise typer.Exit


@app.command()
@handled
@_writing("output")
def train(
    output: Annotated[Path, typer.Option(help="The run folder to write.", show_default=False)],
    dataset: Annotated[
        str | None, typer.Option(help="A built-in dataset, or a folder with train.tsv.", show_default=False)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A masked LM by path or hub name, or `scratch` for a small BERT trained on the graph."
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings as TOML.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE over the settings, such as training.epochs=5."),
    ] = None,
    teacher: Annotated[
        Path | None,
        typer.Option(
            help="With training.teaching: learn from the structural model of this run, or from its teacher, "
            "instead of training one first.",
            show_default=False,
        ),
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Stop there; the schedule stays laid for all epochs.")
    ] = None,
    decay: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="With --resume: end the run so many epochs from here on, over which the learning rate falls "
            "to nothing (see training.schedule). Copy the run's folder first to train on from here later.",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an older run.")] = False,
    tracker: Annotated[str | None, typer.Option(help="An accelerate tracker, such as tensorboard.")] = None,
    skip_header: SkipHeader = False,
    quiet: Quiet = False,
) -> None:
    """Train a masked LM to rank the entities of a graph.

    Ctrl-C saves a checkpoint and stops (exit code 130, SIGTERM 143); --resume goes on to the same losses.
    """
    from kgmlm import runs
    from kgmlm.config import Protocol, StructureSettings, load_settings
    from kgmlm.kg import RunError, counted

    if resume and overwrite:
        raise RunError("--resume and --overwrite exclude each other")
    if decay is not None and not resume:
        raise RunError("--decay ends a run that is resumed; a new run ends after training.epochs")
    if decay is not None and not math.isfinite(decay):
        raise RunError(f"--decay takes a number of epochs, not {decay}")
    main_process = _main_process()
    quiet = quiet or not main_process
    if not resume:
        if main_process:
            runs.check_output(output, overwrite)
        if dataset is None:
            raise RunError("--dataset is missing: a built-in dataset (`kgmlm data list`) or a folder")
        if model is None:
            raise RunError("--model is missing: `scratch`, a folder, or a Hugging Face name")
    settings = load_settings(config, set_ or [])
    if settings.training.objective == "rescore":
        raise RunError("the objective 'rescore' is trained beside a run, by `kgmlm rescore RUN`")
    if teacher is not None and (resume or not settings.training.teaching):
        raise RunError(
            "--teacher is for the start of a run"
            if resume
            else "--teacher teaches nothing without `--set training.teaching=1`"
        )
    if teacher is not None and (given := _settings_of("structure", set_)):
        raise RunError(f"--teacher takes a structural model as it is; {given[0]} goes without it")
    if tracker is not None:
        _check_tracker(tracker)
    if resume:
        run = runs.open_run(output)
        if model is not None and run.record["model"] not in (model, runs.model_address(model)):
            raise RunError(f"{output} was begun with the model '{run.record['model']}', not '{model}'")
        if (config or set_) and settings.without_max_steps() != run.settings.without_max_steps():
            raise RunError(
                f"{output} was begun with other settings; see {output}/config.toml, or start a new run"
            )
    from kgmlm.datasets import load_graph, repeated
    from kgmlm.evaluation import validate
    from kgmlm.training import latest_checkpoint, make_structure, resume_run, start_run

    quiet_transformers()
    if resume:
        if dataset is not None and not load_graph(dataset, skip_header=skip_header).same(run.graph):
            raise RunError(f"{output} was begun with another graph than '{dataset}'")
        run, ranker = resume_run(output)
        checkpoint = latest_checkpoint(output)
        tell(f"resuming {output} from {checkpoint.name if checkpoint else 'its start'}")
    else:
        assert dataset is not None
        assert model is not None
        graph = load_graph(dataset, skip_header=skip_header)
        lent = None if teacher is None else runs.open_run(teacher).lend_structure(graph)
        if lent and lent[1]["settings"]:
            settings = settings.model_copy(
                update={"structure": StructureSettings.model_validate(lent[1]["settings"])}
            )

        def teach() -> tuple[Structure, dict[str, Any]]:
            if lent:
                return lent
            with progress_bar(quiet=quiet) as progress:
                bar = partial(PhaseBars(progress), "training structure")
                return make_structure(graph, settings.structure, bar)

        run, ranker = start_run(output, graph, model, settings, overwrite=overwrite, teach=teach)
        if main_process:
            tell(
                f"{graph.name}: {counted(len(graph.entities), 'entity')}, "
                f"{counted(len(graph.relations), 'relation')}, "
                f"{counted(len(graph.splits['train']), 'training triple')}; "
                f"span of {counted(ranker.vocabulary.span_length, 'token')}"
            )
            if twice := repeated(graph.splits["train"]):
                tell(f"{counted(twice, 'duplicate training triple')} count{'s' * (twice == 1)} once")
            unknown = ranker.tokenizer.unknown(ranker.candidates)
            if len(unknown):
                example = graph.entities[int(unknown[0])].surface
                tell(
                    f"{len(unknown):,} of {len(ranker.candidates):,} names have something that the model has "
                    f"no token for, such as '{example}'; names that differ in it alone are alike to the model"
                )
            if taught := run.record["teacher"]:
                tell(f"taught by a structural model: {taught['command']}")
    training = run.settings.training
    if config or set_:  # what is given now goes before what the run was begun with
        max_steps = max_steps or settings.training.max_steps
    protocol = Protocol(split="valid", max_triples=training.eval_triples, seed=training.seed)

    stamp = _stamp(run)

    def validation(current: Ranker, advance: PhaseBars) -> dict[str, float]:
        return validate(current, run.graph, protocol, advance)

    outcome = _train_under_bar(
        run,
        ranker,
        validation if "valid" in run.graph.splits else None,
        f"kgmlm train --output {shlex.quote(str(output))} --resume",
        quiet,
        max_steps=max_steps or training.max_steps,
        decay=decay,
        resume=resume,
        tracker=tracker,
    )
    if not main_process:
        return
    if resume and stamp != _stamp(run):
        _outdated(run)
    if outcome.signal is not None:
        raise typer.Exit(128 + outcome.signal)


def _settings_of(section: str, given: list[str] | None, others: bool = False) -> list[str]:
    """Those of the KEY=VALUE settings that are of a section; or of others."""
    keys = [setting.partition("=")[0].strip() for setting in given or []]
    return [key for key in keys if key.startswith(f"{section}.") != others]


def _check_tracker(name: str) -> None:
    """Refuse a tracker that is not installed before a run is laid."""
    from accelerate.tracking import get_available_trackers

    from kgmlm.kg import ConfigError

    there = sorted(str(tracker) for tracker in get_available_trackers())
    if name not in there:
        raise ConfigError(f"there is no tracker '{name}' (installed: {', '.join(there) or 'none'})")


def _train_under_bar(
    run: Run,
    ranker: Ranker,
    validation: Callable[[Ranker, PhaseBars], dict[str, float]] | None,
    further: str,
    quiet: bool,
    **options: Any,
) -> Outcome:
    """Train with a progress bar, and say how it ended; ``further`` is the command that goes on."""
    from kgmlm.training import train as run_training

    bar = ("loss {task.fields[loss]}", "MRR {task.fields[mrr]} (best {task.fields[best]})")
    with progress_bar(*bar, quiet=quiet) as progress:
        phases = PhaseBars(progress)
        outcome = run_training(
            run,
            ranker,
            None if validation is None else lambda current: validation(current, phases),
            reporter=TrainingBar(progress),
            **options,
        )
    if _main_process():
        best = "" if outcome.best_mrr is None else f", best validation MRR {outcome.best_mrr:.4f}"
        tell(
            f"{outcome.status} at step {outcome.step} after {outcome.minutes:.1f} minutes{best}; "
            f"the run is in {run.path}"
        )
        if outcome.status == "max steps":
            tell(f"go further with: {further} --max-steps N")
        if outcome.signal is not None:
            tell(f"go on with: {further}")
    return outcome


def _main_process() -> bool:
    """Whether this is the one process that speaks: `accelerate launch` starts several."""
    return int(os.environ.get("RANK", "0")) == 0


def _stamp(run: Run) -> int:
    """When a run's model was written; 0 where there is none yet."""
    return run.model_folder.stat().st_mtime_ns if run.model_folder.is_dir() else 0


def _outdated(run: Run) -> None:
    """Say what was chosen on validation for the scores that a run had before."""
    from kgmlm.runs import STRUCTURE

    path = run.path
    if run.record.get("rescoring"):
        tell(f"rescoring is left out until it is chosen anew: kgmlm rescore {path} --from {path}")
    if (path / STRUCTURE).is_file():
        tell(f"weights of structure were chosen for the scores before: kgmlm fuse {path} --from {path}")


@app.command()
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
    rescore: Rescore = None,
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
    from kgmlm import files, runs
    from kgmlm.config import load_protocol
    from kgmlm.kg import ConfigError, counted

    if graph is None and (allow_seen_entities or allow_new_relations or skip_header):
        raise ConfigError("--allow-seen-entities, --allow-new-relations and --skip-header go with --graph")
    if graph is not None and retrieve is not None:
        raise ConfigError("--retrieve asks an index of the run's own graph; it does not go with --graph")
    for path in (output, ranks):
        if path is not None:
            files.check_writable(path)
    if ranks is None:
        files.refuse_link(run / "ranks")
    asked = candidates
    if graph is not None and candidates is None and protocol is None:
        candidates = "graph"
    settings = load_protocol(
        protocol,
        split=split,
        max_triples=max_triples,
        candidates=candidates,
        allow_self=allow_self or None,
    )
    opened = runs.open_run(run, verify=verify)
    other = None
    if graph is not None:
        from kgmlm.datasets import load_graph

        other = load_graph(graph, skip_header=skip_header)
    (other or opened.graph).triples(settings.split)
    from kgmlm.evaluation import Scope
    from kgmlm.evaluation import evaluate as run_evaluation
    from kgmlm.indexing import open_retrieval

    earlier, gone = opened.past(rescored=rescore != 0 and scores in ("all", "text"))
    if gone:
        tell(
            f"began with models of {', '.join(gone)} that are gone: what they were trained on is not checked"
        )
    scope = Scope.of(opened.graph, earlier)
    if other is not None:
        scope = Scope.inductive(
            opened.graph,
            other,
            settings,
            earlier=earlier,
            allow_seen_entities=allow_seen_entities,
            allow_new_relations=allow_new_relations,
        )
    quiet_transformers()
    ranker = _ranker(opened, scope.graph, device, scores, rescore, precision)
    if ranker.weights.structure and (opened.record.get("structure") or {}).get("outdated"):
        tell(f"weights of structure were chosen for other scores: kgmlm fuse {run} --from {run}")
    if rescore is None and scores in ("all", "text") and not opened.record.get("rescoring"):
        if (run / runs.RESCORER / "model" / "config.json").is_file():
            tell(f"not rescored until it is chosen how: kgmlm rescore {run} --from {run}")
        elif (run / runs.RESCORER / "run.json").is_file():
            tell(f"not rescored, its rescorer is not trained: kgmlm rescore {run} --resume")
    with progress_bar(quiet=quiet) as progress:
        _read_entities(ranker, progress, batch_size)
        retrieval = open_retrieval(opened, ranker, retrieve, index, effort)
        task = progress.add_task(f"evaluating {settings.split}", total=None)
        result = run_evaluation(
            ranker,
            scope,
            settings,
            retrieval=retrieval,
            batch_size=batch_size,
            advance=lambda n, total: progress.update(task, advance=n, total=total),
        )
    keys = ("model", "began_from", "teacher", "seed", "step", "status", "minutes", "sources", "versions",
            "hardware", "command")  # fmt: skip
    report = {
        **result.report,
        "trained_on": opened.graph.name,
        "unchecked": gone,
        "scores": ranker.weights._asdict(),
        "structure": opened.record.get("structure") if ranker.weights.structure else None,
        "weighing": opened.record.get("weighing") if ranker.weights.vector else None,
        "rescoring": _rescoring(opened, ranker),
        "precision": precision,
        "run": {k: opened.record.get(k) for k in keys}
        | {"settings": opened.settings.model_dump(mode="json")},
        "versions": runs.versions(),
        "hardware": runs.hardware(),
        "command": runs.command(),
    }
    # A name of its own for each way to ask, so that `compare` by default compares the same.
    ways = [
        *([] if other is None else [other.name]),
        settings.split,
        *([] if protocol is None else [protocol.stem]),
        *([] if asked in (None, "all" if other is None else "graph") else [str(asked)]),
        *([] if not max_triples else [f"{max_triples}-triples"]),
        *([] if scores == "all" else [scores]),
        *(["allow-self"] if allow_self else []),
        *([] if rescore is None else [f"rescore-{rescore}"]),
        *([] if retrieve is None else [f"retrieve-{retrieve}"]),
        *([] if index is None else [index]),
        *([] if effort is None else [f"effort-{effort}"]),
    ]
    if as_json:
        print_json(report)
    else:
        print_metrics(result)
    if output:
        files.write_json(output, report, follow=True)
    try:
        made_by = runs.scores_of(opened.record)
        kept = run / "ranks" / f"{files.safe_name('.'.join(ways))}.parquet"
        result.write_ranks(ranks or kept, made_by, follow=ranks is not None)
    except OSError as error:
        if ranks is not None or error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise
        tell(f"ranks are not kept, {run} is read-only: --ranks FILE keeps them elsewhere")
    known = {"training triples, too": report["triples_trained"]}
    if other is not None or settings.split != "valid":
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


def _ranker(
    run: Run,
    graph: KnowledgeGraph,
    device: str | None,
    scores: Part,
    rescore: int | None,
    precision: Literal["fp32", "bf16"] = "fp32",
) -> Ranker:
    """A run's ranker over a graph, by the parts of the score that were asked for."""
    from dataclasses import replace

    from kgmlm.kg import ConfigError

    whole = scores in ("all", "text")
    ranker = run.ranker(device, graph=graph, rescorer=whole and rescore != 0)
    ranker.use(scores)
    if rescore:
        if ranker.rescorer is None:
            raise ConfigError(
                f"{run.path} has no rescorer; `kgmlm rescore {run.path}` trains one"
                if whole
                else f"--rescore goes with --scores all or text, not {scores}"
            )
        if not ranker.rescorer.use.k:
            raise ConfigError(
                f"{run.path}: validation chose not to rescore, so there is no weight to rescore with; "
                f"`kgmlm rescore {run.path} --from {run.path}` chooses anew"
            )
        ranker.rescorer.use = replace(ranker.rescorer.use, k=rescore)
    ranker.reduce(precision == "bf16")
    return ranker


def _rescoring(run: Run, ranker: Ranker) -> dict[str, Any] | None:
    """What a report says of rescoring."""
    if ranker.rescorer is None or not ranker.rescorer.use.k:
        return None
    record = run.record["rescoring"]
    return {**record, **asdict(ranker.rescorer.use)}


def _read_entities(ranker: Ranker, progress: Progress, batch_size: int) -> None:
    """Read the vectors that are missing, with a bar."""
    if unread := ranker.unread():
        task = progress.add_task("reading entities", total=unread)
        ranker.read_entities(batch_size, lambda n: progress.advance(task, n))


def _rank_rows(path: Path) -> Iterator[dict[str, str]]:
    """Queries of a file: columns relation and head or tail, or both with one of them empty."""
    from kgmlm import files, tables
    from kgmlm.kg import DataError

    lines = list(tables.parse_lines(files.read_bytes(path), str(path), tables.separator_of(path)))
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
        yield {"line": f"{path}:{number}", **dict(zip(header, fields, strict=True))}


@app.command()
@handled
def rank(
    run: RunArgument,
    head: Annotated[str | None, typer.Option(help="Rank tails of this head (label or name).")] = None,
    relation: Annotated[str | None, typer.Option(help="The relation (label or name).")] = None,
    tail: Annotated[str | None, typer.Option(help="Rank heads of this tail (label or name).")] = None,
    queries: Annotated[
        Path | None,
        typer.Option(
            help="Many queries: TSV or CSV whose first line names the columns relation and head or tail."
        ),
    ] = None,
    entities: Annotated[
        Path | None,
        typer.Option(
            help="New entities that join the candidates and may be asked about: a table with the columns "
            "label, name and, if you like, description and surface."
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", "--top", min=1, max=MOST, help="Candidates a query.")] = 10,
    novel: Annotated[bool, typer.Option("--novel", help="Leave out triples that the graph has.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what each score is made of, token by token.")
    ] = False,
    scores: Scores = "all",
    allow_self: AllowSelf = False,
    rescore: Rescore = None,
    retrieve: Retrieve = None,
    index: IndexKind = None,
    effort: Effort = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    batch_size: BatchSize = 64,
    device: Device = None,
    verify: Verify = False,
    quiet: Quiet = False,
) -> None:
    """Rank the entities that complete (head, relation, ?) or (?, relation, tail).

    New entities (--entities) are known by their text alone: nothing is trained.
    """
    from kgmlm.kg import QueryError
    from kgmlm.runs import open_run

    if as_json and as_csv:
        raise QueryError("--json and --csv exclude each other")
    if explain and as_csv:
        raise QueryError("--explain goes with a table or --json, not with --csv")
    if queries is not None and (head is not None or tail is not None or relation is not None):
        raise QueryError("give either --queries or one query, not both")
    if queries is None and relation is None:
        raise QueryError("--relation is missing")
    from kgmlm.resolver import Resolver

    opened = open_run(run, verify=verify)
    graph = opened.graph
    if entities is not None:
        from kgmlm.datasets import read_entities

        graph = graph.extended(read_entities(entities, graph))
    resolver = Resolver(graph)
    asked = []
    if queries is None:
        asked.append(resolver.query(relation or "", head, tail))
    else:
        for row in _rank_rows(queries):
            try:
                asked.append(
                    resolver.query(row["relation"], row.get("head") or None, row.get("tail") or None)
                )
            except QueryError as error:
                raise QueryError(f"{row['line']}: {error}") from None
    # What needs no model has been said by now, without the seconds that these imports take.
    from kgmlm.indexing import open_retrieval
    from kgmlm.prediction import Predictor

    quiet_transformers()
    ranker = _ranker(opened, graph, device, scores, rescore)
    predictor = Predictor(graph, ranker.unconstrained() if allow_self else ranker)
    unread = predictor.ranker.unread()
    with progress_bar(quiet=quiet or (queries is None and unread < 500)) as progress:
        _read_entities(predictor.ranker, progress, batch_size)
        predictor.retrieval = open_retrieval(opened, predictor.ranker, retrieve, index, effort)
        task = progress.add_task("ranking", total=len(asked))
        results = dict(
            predictor.predict(
                asked,
                k,
                novel=novel,
                explain=explain,
                batch_size=batch_size,
                advance=lambda n: progress.advance(task, n),
            )
        )
    print_predictions(predictor, asked, results, as_json=as_json, as_csv=as_csv, many=queries is not None)


@app.command()
@handled
@_writing("run")
def index(
    run: RunArgument,
    kind: Annotated[
        Kind | None,
        typer.Option(
            help="entity (vectors; by default of runs that have them) or likelihood (what the names say)."
        ),
    ] = None,
    factory: Annotated[str, typer.Option(help='A FAISS factory string such as "IVF4096,PQ64".')] = "auto",
    dimensions: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MOST,
            help="Of a token in a likelihood index; 0 is all. By default few where entities are many.",
        ),
    ] = None,
    recall: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Search as hard as this recall@10 of exact scoring takes.")
    ] = 0.99,
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Index a run's entities with FAISS, so that `rank` and `evaluate` with --retrieve score only a few.

    How hard it searches is measured on training queries, and so is whether it is quicker than exact scoring:
    an index of entity vectors is among a million, one of names is not on a CPU.
    """
    from kgmlm import runs
    from kgmlm.indexing import build_index, check_kind, save_index

    opened = runs.open_run(run)
    default = "entity" if opened.settings.vector.enabled else "likelihood"
    chosen = check_kind(default if kind is None else kind)
    quiet_transformers()
    ranker = opened.ranker(device, rescorer=False)
    with progress_bar(quiet=quiet) as progress:
        task = progress.add_task("indexing", total=None)
        made = build_index(
            ranker,
            opened.graph,
            chosen,
            factory=factory,
            dimensions=dimensions,
            target=recall,
            advance=lambda n, total: progress.update(task, advance=n, total=total),
        )
    made = save_index(opened, made)
    if as_json:
        print_json(made.record)
        return
    record = made.record
    print(
        f"{chosen} index of {record['entities']:,} entities: {record['bytes'] / 2**20:.1f} MiB, "
        f"{record['seconds']:.1f} s, recall@10 {record['recall_at_10']:.3f} (effort {record['effort']})"
    )
    tell(record["why"])
    if record["ms_a_query"] > record["exact_ms_a_query"]:
        tell("exact scoring is quicker among so many entities: leave --retrieve out")
    if record["recall_at_10"] < recall:
        tell(f"recall@10 stays under {recall}; more --dimensions or a finer --factory finds more")


@app.command()
@handled
@_writing("run")
def fuse(
    run: RunArgument,
    config: Annotated[
        Path | None, typer.Option(help="Settings as TOML; by default those of the run.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE over the settings, such as structure.epochs=30."),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Take the structural model of this run (it may be the same one), or its teacher, instead of "
            "training; choose its weights anew.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an older structural model.")
    ] = False,
    max_triples: Annotated[
        int,
        typer.Option(
            min=0, max=MOST, help="Choose weights on a seeded sample of validation; 0 is all of it."
        ),
    ] = 0,
    batch_size: BatchSize = 64,
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a structural model (ComplEx, by PyKEEN) beside a run, and add it to the run's scores.

    How much it counts is chosen on validation, for each relation and side. `rank` and `evaluate` use it from
    then on; --scores text leaves it out. Entities that training has not seen have no structure and keep their
    text.
    """
    from kgmlm import files, runs
    from kgmlm.config import Protocol, load_settings
    from kgmlm.kg import RunError

    if source is not None and (config or set_):
        raise RunError("--from trains nothing; --config and --set go without it")
    if foreign := _settings_of("structure", set_, others=True):
        raise RunError(f"`kgmlm fuse` goes by the settings of structure alone, not by {foreign[0]}")
    opened = runs.open_run(run)
    files.check_writable(run / runs.STRUCTURE)
    again = source is not None and source.resolve() == run.resolve()
    if (run / runs.STRUCTURE).is_file() and not again and not overwrite:
        raise RunError(
            f"{run} has a structural model already; --from {run} chooses its weights anew, --overwrite "
            "replaces it"
        )
    settings = load_settings(config or run / "config.toml", set_ or []).structure
    if "valid" not in opened.graph.splits:
        raise RunError(f"{run} has no validation triples to choose weights on")
    lent = None if source is None else runs.open_run(source).lend_structure(opened.graph)
    from kgmlm.evaluation import choose_structure
    from kgmlm.training import make_structure

    quiet_transformers()
    ranker = opened.ranker(device, rescorer=False, structure=False)
    with progress_bar(quiet=quiet) as progress:
        bars = PhaseBars(progress)
        on = ranker.model.device
        bar = partial(bars, "training structure")
        structure, values = lent or make_structure(opened.graph, settings, bar, on)
        ranker.structure = structure.to(on)
        _read_entities(ranker, progress, batch_size)
        protocol = Protocol(split="valid", max_triples=max_triples)
        valid = choose_structure(ranker, opened.graph, protocol, bars, batch_size)
    assert ranker.structure is not None
    opened.save_structure(ranker.structure, **values | {"valid": valid, "chosen_by": runs.command()})
    if opened.record.get("rescoring"):
        tell(f"rescoring is left out until it is chosen anew: kgmlm rescore {run} --from {run}")
    if as_json:
        print_json(valid)
    else:
        print(
            f"validation MRR {valid['mrr']:.4f} (text {valid['mrr_text']:.4f}, structure "
            f"{valid['mrr_structure']:.4f}), Hits@1 {valid['hits_at_1']:.4f}, "
            f"Hits@10 {valid['hits_at_10']:.4f}"
        )


@app.command()
@handled
@_writing("run")
def weigh(
    run: RunArgument,
    max_triples: Annotated[
        int, typer.Option(min=0, max=MOST, help="Choose on a seeded sample of validation; 0 is all of it.")
    ] = 0,
    precision: Precision = "fp32",
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Choose anew how much a run's entity vectors count beside the likelihood, for each relation and side.

    Training chooses on the sample that it validates on (training.eval_triples); this takes all of validation.
    Do it before `kgmlm fuse` and `kgmlm rescore`, which go by the scores that they find.
    """
    from kgmlm import files, runs
    from kgmlm.config import Protocol
    from kgmlm.evaluation import validate
    from kgmlm.kg import RunError

    opened = runs.open_run(run)
    files.check_writable(run / "run.json")
    if not opened.settings.vector.enabled:
        raise RunError(f"{run} has no entity vectors to weigh")
    if "valid" not in opened.graph.splits:
        raise RunError(f"{run} has no validation triples to choose weights on")
    quiet_transformers()
    ranker = _ranker(opened, opened.graph, device, "text", 0, precision)
    with progress_bar(quiet=quiet) as progress:
        protocol = Protocol(split="valid", max_triples=max_triples)
        valid = validate(ranker, opened.graph, protocol, PhaseBars(progress))
    opened.save_weights(ranker, valid=valid, precision=precision, command=runs.command())
    if as_json:
        print_json(valid)
    else:
        print(
            f"validation MRR {valid['mrr']:.4f} ({valid['mrr_one_weight']:.4f} with one weight, likelihood "
            f"{valid['mrr_likelihood']:.4f}, vectors {valid['mrr_vector']:.4f}), "
            f"Hits@10 {valid['hits_at_10']:.4f}"
        )
    _outdated(opened)


@app.command()
@handled
@_writing("run")
def rescore(
    run: RunArgument,
    config: Annotated[
        Path | None, typer.Option(help="Settings as TOML; by default those of the run, for one epoch.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE over the settings, such as training.epochs=0.5."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Begin with another masked LM than the run's own.", show_default=False)
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Take the rescorer of this run (it may be the same one) instead of training; choose anew "
            "how it is used.",
        ),
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Stop there; the schedule stays laid for all epochs.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with interrupted training.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an older rescorer.")] = False,
    candidates: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST, help="Try so many at most; by default rescoring.candidates.", show_default=False
        ),
    ] = None,
    max_triples: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MOST,
            help="Choose on a seeded sample of validation; 0 is all of it, by default training.eval_triples.",
        ),
    ] = None,
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a second model that reads the best candidates of a run again, each together with its query.

    It begins with the run's own model and learns to tell true answers from wrong ones that the run ranks
    high. How many candidates are rescored, and how much that counts, is chosen on validation. `rank` and
    `evaluate` use it from then on, at a forward pass a candidate; --rescore 0 leaves it out.
    """
    from kgmlm import files, runs
    from kgmlm.config import Protocol, load_settings
    from kgmlm.kg import RunError

    if resume and (overwrite or source is not None):
        raise RunError("--resume, --overwrite and --from exclude each other")
    if source is not None and (config or set_ or model or max_steps):
        raise RunError("--from trains nothing; --config, --set, --model and --max-steps go without it")
    opened = runs.open_run(run)
    files.check_writable(run / "run.json")
    if "valid" not in opened.graph.splits:
        raise RunError(f"{run} has no validation triples to choose candidates and weight on")
    folder = run / runs.RESCORER
    giver = None if source is None else runs.open_run(source)
    if giver is not None and giver.rescorer_folder and not giver.graph.same(opened.graph):
        raise RunError(f"{source} is a run of another graph than {run}")
    again = giver is not None and giver.path.resolve() == run.resolve()
    files.refuse_link(folder)
    there = (folder / "run.json").is_file() and not runs.is_blank(folder)
    if not (again or resume or overwrite) and there:
        raise RunError(
            f"{run} has a rescorer already; --resume goes on training it, --from {run} chooses anew how it "
            "is used, --overwrite replaces it"
        )
    from kgmlm.evaluation import choose_rescoring

    quiet_transformers()
    short = [] if config else ["training.epochs=1", "training.eval_every=1"]
    settings = load_settings(config or run / "config.toml", [*short, *(set_ or [])]).for_rescoring()
    if not config and "training.max_steps" not in _settings_of("training", set_):
        settings = settings.without_max_steps()  # that of the run was for the run
    if resume and (config or set_):
        begun = runs.open_run(folder).settings
        if settings.without_max_steps() != begun.without_max_steps():
            raise RunError(f"{folder} was begun with other settings; see {folder}/config.toml")
    if giver is None:
        if config or set_:  # what is given now goes before what it was begun with
            max_steps = max_steps or settings.training.max_steps
        _train_rescorer(opened, settings, model, max_steps, resume, overwrite, device, quiet)
    elif not again:
        giver.copy_rescorer(opened)
    trained = runs.open_run(folder)
    training = trained.settings.training
    ranker = opened.ranker(device, rescorer=False)
    ranker.rescorer = opened.rescorer(ranker.model.device)
    ranker.reduce(training.precision == "bf16")
    most = training.eval_triples if max_triples is None else max_triples
    with progress_bar(quiet=quiet) as progress:
        _read_entities(ranker, progress, 64)
        protocol = Protocol(split="valid", max_triples=most, seed=training.seed)
        valid = choose_rescoring(ranker, opened.graph, protocol, PhaseBars(progress), candidates)
    keys = ("model", "began_from", "seed", "step", "status", "minutes", "versions", "hardware", "command")
    opened.update(
        rescoring={
            "k": valid["k"],
            "weight": valid["weight"],
            "settings": trained.settings.model_dump(mode="json"),
            **{key: trained.record[key] for key in keys},
            "valid": valid,
            "chosen_by": runs.command(),
        }
    )
    if as_json:
        print_json(valid)
        return
    print(
        f"validation MRR {valid['mrr']:.4f} ({valid['mrr_first']:.4f} before rescoring), "
        f"Hits@1 {valid['hits_at_1']:.4f}, Hits@10 {valid['hits_at_10']:.4f}: the {valid['k']} best, "
        f"weight {valid['weight']:g}"
    )
    if not valid["k"]:
        tell("no weight improves validation: nothing will be rescored")


def _train_rescorer(
    opened: Run,
    settings: Settings,
    model: str | None,
    max_steps: int | None,
    resume: bool,
    overwrite: bool,
    device: str | None,
    quiet: bool,
) -> None:
    """Train the rescorer of a run, in a run folder of its own."""
    from kgmlm.config import Protocol
    from kgmlm.evaluation import choose_rescoring
    from kgmlm.rescoring import Rescorer
    from kgmlm.runs import RESCORER
    from kgmlm.training import resume_run, start_run

    folder = opened.path / RESCORER
    first = opened.ranker(device, rescorer=False)
    if resume:
        trained, ranker = resume_run(folder, device)
    else:
        if overwrite and folder.is_dir() and not (folder / "run.json").is_file():
            shutil.rmtree(folder)  # what is left of an older one
        trained, ranker = start_run(
            folder, opened.graph, model or str(opened.model_folder), settings, overwrite=overwrite
        )
    opened.update(rescoring=None)
    training = trained.settings.training
    first.reduce(training.precision == "bf16")
    protocol = Protocol(split="valid", max_triples=training.eval_triples, seed=training.seed)

    def validation(current: Ranker, advance: PhaseBars) -> dict[str, float]:
        first.rescorer = Rescorer(current.context, current.tokenizer, current.model, current.settings)
        first.reduce(training.precision == "bf16")
        found = choose_rescoring(first, opened.graph, protocol, advance)
        first.rescorer = None
        return found

    outcome = _train_under_bar(
        trained,
        ranker,
        validation,
        f"kgmlm rescore {shlex.quote(str(opened.path))} --resume",
        quiet,
        first=first,
        device=device,
        max_steps=max_steps or training.max_steps,
        resume=resume,
    )
    if outcome.signal is not None:
        raise typer.Exit(128 + outcome.signal)


@app.command()
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
    from kgmlm import comparison, runs

    found_at = [comparison.ranks_file(path, split) for path in (a, b)]
    one, other = (comparison.read_ranks(path) for path in found_at)
    for path, ranks in zip((a, b), found_at, strict=True):
        made_by = comparison.made_by(ranks)
        if path.is_dir() and made_by and made_by != runs.scores_of(runs.open_run(path).record):
            tell(f"{ranks} is of {path} as it was before; `kgmlm evaluate` makes it anew")
    found = comparison.compare(one, other, sides=("tail", "head", "both"), draws=draws, seed=seed)
    if as_json:
        print_json(comparison.as_json(found, len(one)))
    else:
        print_comparison(found, str(a), str(b))


@app.command()
@handled
def linearize(
    source: Annotated[str, typer.Argument(help="A run folder, a built-in dataset, or a dataset folder.")],
    relation: Annotated[str, typer.Option(help="The relation (label or name).", show_default=False)],
    head: Annotated[str | None, typer.Option(help="Ask for tails of this head.")] = None,
    tail: Annotated[str | None, typer.Option(help="Ask for heads of this tail.")] = None,
    model: Annotated[str, typer.Option(help="Whose tokenizer, for a dataset.")] = "scratch",
    template: Annotated[str | None, typer.Option(help="Another template, for a dataset.")] = None,
    skip_header: SkipHeader = False,
    as_json: Json = False,
) -> None:
    """Print the exact text and tokens that the model sees for a query."""
    from kgmlm import linearization
    from kgmlm.config import load_settings
    from kgmlm.datasets import load_graph
    from kgmlm.kg import ConfigError, Queries
    from kgmlm.resolver import Resolver
    from kgmlm.runs import open_run
    from kgmlm.tokenization import SpanTokenizer
    from kgmlm.tokenizer_sources import load_tokenizer, train_tokenizer
    from kgmlm.vocabulary import Vocabulary, scratch_texts

    if (Path(source) / "run.json").is_file():
        run = open_run(source)
        if template is not None:
            raise ConfigError("--template is for datasets; a run has its own")
        graph, settings, vocabulary = run.graph, run.settings, run.vocabulary
        tokenizer = load_tokenizer(run.model_folder)
    else:
        graph = load_graph(source, skip_header=skip_header)
        settings = load_settings(None, [f"text.template={template}"] if template else [])
        if model == "scratch":
            texts = scratch_texts(graph, settings.text)
            tokenizer = SpanTokenizer(train_tokenizer(texts, settings.scratch.vocabulary))
        else:
            quiet_transformers()
            tokenizer = load_tokenizer(model)
        vocabulary = Vocabulary.fit(tokenizer, graph.entities.column("surface"), graph.seen_N, settings)
    query = Resolver(graph).query(relation, head, tail)
    (text,) = linearization.linearize(graph.context, Queries.of([query]), settings.text)
    (encoded,) = tokenizer.encode_queries(
        [text], vocabulary.span_length, settings.text.max_length, vector=settings.vector.enabled
    )
    tokens = tokenizer.tokens(encoded.input_ids)
    rendered = tokenizer.render(text, encoded)
    if as_json:
        print_json(
            {
                "text": rendered,
                "input_ids": encoded.input_ids,
                "tokens": tokens,
                "span_start": encoded.span_start,
                "span_length": encoded.span_length,
                "vector": encoded.vector,
                "tokens_cut": encoded.cut,
            }
        )
    else:
        print(rendered)
        print(" ".join(tokens))
        tell(
            f"{len(tokens)} tokens, a span of {encoded.span_length} from token {encoded.span_start} on"
            + (" and a mask for the query's vector" if encoded.vector else "")
            + (f", {encoded.cut} tokens cut" if encoded.cut else "")
        )


def run_app() -> None:
    """The entry point of the ``kgmlm`` command."""
    app()


if __name__ == "__main__":
    run_app()
