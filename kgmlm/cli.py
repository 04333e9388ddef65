"""Thin typer commands: parse, call the library, print. Heavy imports live inside the commands.

Results go to stdout, everything else to stderr. A mistake of the user's is one sentence and exit code 2.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from kgmlm.evaluation import Evaluation
    from kgmlm.prediction import Prediction, Predictor

app = typer.Typer(
    help="Link prediction on knowledge graphs with masked language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(help="List, fetch, check, show and split datasets.", no_args_is_help=True)
app.add_typer(data_app, name="data")

RunArgument = Annotated[Path, typer.Argument(help="A run folder, made by `kgmlm train`.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Device = Annotated[str | None, typer.Option(help="Such as cpu or cuda; by default a GPU where there is one.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Queries a forward pass.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]


def _fail(message: str) -> None:
    print(f"kgmlm: {message}", file=sys.stderr)
    raise typer.Exit(2)


def _handled(function: Callable[..., None]) -> Callable[..., None]:
    """Turn what users can cause into one sentence and exit code 2."""

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        from kgmlm.kg import KgmlmError

        # transformers reports its loading in bars and warnings of its own; ours say what matters.
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        try:
            function(*args, **kwargs)
        except KgmlmError as error:
            _fail(str(error))
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone
            raise typer.Exit(0) from None
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                _fail(
                    f"there is no room left to write {error.filename or 'the file'}; free some and try again"
                )
            _fail(str(error))
        except KeyboardInterrupt:
            print("kgmlm: interrupted", file=sys.stderr)
            raise typer.Exit(130) from None

    return wrapper


def _quiet_transformers() -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _tell(message: str) -> None:
    print(message, file=sys.stderr)


def _stdout() -> Console:
    """Where tables go; wide enough for names where no terminal sets the width."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120)


@contextmanager
def _progress(*columns: str, quiet: bool = False) -> Iterator[Progress]:
    """A rich progress bar on stderr, with time left; plain logs get no bar."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *(TextColumn(c) for c in columns),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=quiet,
    )
    with progress:
        yield progress


class _TrainingBar:
    """Loss, validation MRR and time left; on a log file instead of a terminal, a line a validation."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.task = progress.add_task("training", total=None, loss="-", mrr="-", best="-")
        self.average: float | None = None
        self.loss = 0.0

    def start(self, total: int, done: int) -> None:
        """Lay the bar."""
        self.progress.reset(self.task, total=total, completed=done)

    def step(self, step: int, loss: float) -> None:
        """Move on; the loss shown is a running average."""
        self.average = loss if self.average is None else 0.95 * self.average + 0.05 * loss
        self.progress.update(self.task, completed=step, loss=f"{self.average:.3f}")

    def validated(self, mrr: float, best: float) -> None:
        """Show the newest and the best validation MRR."""
        self.progress.update(self.task, mrr=f"{mrr:.3f}", best=f"{best:.3f}")
        if not self.progress.console.is_terminal:
            task = self.progress.tasks[self.task]
            _tell(
                f"step {task.completed:.0f}/{task.total:.0f}  loss {self.average:.3f}  "
                f"valid MRR {mrr:.4f}  best {best:.4f}"
            )


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
@_handled
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
    max_steps: Annotated[
        int | None, typer.Option(min=1, help="Stop there; the schedule stays laid for all epochs.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an older run.")] = False,
    tracker: Annotated[str | None, typer.Option(help="An accelerate tracker, such as tensorboard.")] = None,
    quiet: Quiet = False,
) -> None:
    """Train a masked LM to rank the entities of a graph.

    Ctrl-C saves a checkpoint and stops (exit code 130, SIGTERM 143); --resume goes on to the same losses.
    """
    from kgmlm import runs
    from kgmlm.config import Protocol, load_settings
    from kgmlm.kg import RunError

    if resume and overwrite:
        raise RunError("--resume and --overwrite exclude each other")
    if not resume:
        runs.check_output(output, overwrite)
        if dataset is None:
            raise RunError("--dataset is missing: a built-in dataset (`kgmlm data list`) or a folder")
        if model is None:
            raise RunError("--model is missing: `scratch`, a folder, or a Hugging Face name")
    settings = load_settings(config, set_ or [])
    if resume:
        run = runs.open_run(output)
        if (config or set_) and settings.without_max_steps() != run.settings.without_max_steps():
            raise RunError(
                f"{output} was begun with other settings; see {output}/config.toml, or start a new run"
            )
    from kgmlm.datasets import load_graph
    from kgmlm.evaluation import evaluate as run_evaluation
    from kgmlm.training import latest_checkpoint, resume_run, start_run
    from kgmlm.training import train as run_training

    _quiet_transformers()
    if resume:
        run, ranker = resume_run(output)
        checkpoint = latest_checkpoint(output)
        _tell(f"resuming {output} from {checkpoint.name if checkpoint else 'its start'}")
    else:
        assert dataset is not None
        assert model is not None
        graph = load_graph(dataset)
        run, ranker = start_run(output, graph, model, settings, overwrite=overwrite)
        _tell(
            f"{graph.name}: {len(graph.entities):,} entities, {len(graph.relations)} relations, "
            f"{len(graph.splits['train']):,} training triples; span of {ranker.vocabulary.span_length} tokens"
        )
    training = run.settings.training
    protocol = Protocol(split="valid", max_triples=training.eval_triples, seed=training.seed)

    def validate(current: Any) -> dict[str, float]:
        metrics = run_evaluation(current, run.graph, protocol).report["metrics"]
        return {"mrr": metrics["mrr"], "hits_at_10": metrics["both.realistic.hits_at_10"]}

    bar = ("loss {task.fields[loss]}", "valid MRR {task.fields[mrr]} (best {task.fields[best]})")
    with _progress(*bar, quiet=quiet) as progress:
        outcome = run_training(
            run,
            ranker,
            validate if "valid" in run.graph.splits else None,
            max_steps=max_steps or training.max_steps,
            resume=resume,
            tracker=tracker,
            reporter=_TrainingBar(progress),
        )
    best = "" if outcome.best_mrr is None else f", best validation MRR {outcome.best_mrr:.4f}"
    _tell(
        f"{outcome.status} at step {outcome.step} after {outcome.minutes:.1f} minutes{best}; "
        f"the run is in {output}"
    )
    if outcome.signal is not None:
        _tell(f"go on with: kgmlm train --output {output} --resume")
        raise typer.Exit(128 + outcome.signal)


def _table(evaluation: Evaluation) -> None:
    """The metrics of an evaluation as a table for people."""
    from rich.table import Table

    report = evaluation.report
    wanted = {
        "MRR": "inverse_harmonic_mean_rank", "Hits@1": "hits_at_1", "Hits@3": "hits_at_3",
        "Hits@10": "hits_at_10", "MR": "arithmetic_mean_rank", "ranks": "count",
    }  # fmt: skip

    def cells(metrics: dict[str, float], prefix: str) -> list[str]:
        values = [metrics.get(prefix + key) for key in wanted.values()]
        return [
            "-"
            if v is None
            else f"{v:.0f}"
            if name == "ranks"
            else f"{v:.1f}"
            if name == "MR"
            else f"{v:.4f}"
            for name, v in zip(wanted, values, strict=True)
        ]

    what = "all entities" if report["candidates"]["set"] == "all" else "training entities"
    table = Table(title=f"{report['dataset']} {report['split']}: filtered, realistic, {what}")
    table.add_column("queries")
    for name in wanted:
        table.add_column(name, justify="right")
    for side in ("tail", "head", "both"):
        table.add_row(side, *cells(report["metrics"], f"{side}.realistic."))
    position = report["breakdown"]["unseen_position"]
    if position["any"]["count"]:
        table.add_row("both, seen only", *cells(position["neither"], ""))
        table.add_row("both, unseen", *cells(position["any"], ""))
        table.add_row("as PyKEEN", *cells(report["pykeen_comparable"]["metrics"], "both.realistic."))
    _stdout().print(table)


@app.command()
@_handled
def evaluate(
    run: RunArgument,
    split: Annotated[str | None, typer.Option(help="Whose triples to ask; test by default.")] = None,
    protocol: Annotated[Path | None, typer.Option(help="A protocol as TOML.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the report there as JSON.")] = None,
    ranks: Annotated[
        Path | None, typer.Option(help="Per-query ranks, Parquet; by default RUN/ranks/SPLIT.parquet.")
    ] = None,
    max_triples: Annotated[int | None, typer.Option(min=1, help="A seeded sample of the split.")] = None,
    batch_size: BatchSize = 64,
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Report filtered MRR and Hits@k on a split, head and tail and both, seen and unseen apart."""
    from kgmlm import files, runs
    from kgmlm.config import load_protocol

    settings = load_protocol(protocol, split=split, max_triples=max_triples)
    opened = runs.open_run(run)
    opened.graph.triples(settings.split)
    from kgmlm.evaluation import evaluate as run_evaluation

    _quiet_transformers()
    ranker = opened.ranker(device)
    with _progress("queries", quiet=quiet) as progress:
        task = progress.add_task(f"evaluating {settings.split}", total=None)
        result = run_evaluation(
            ranker,
            opened.graph,
            settings,
            batch_size=batch_size,
            advance=lambda n, total: progress.update(task, advance=n, total=total),
        )
    keys = ("model", "seed", "step", "status", "minutes", "sources", "versions", "hardware", "command")
    report = {
        **result.report,
        "run": {k: opened.record.get(k) for k in keys}
        | {"settings": opened.settings.model_dump(mode="json")},
        "hardware": runs.hardware(),
        "command": runs.command(),
    }
    result.write_ranks(ranks or run / "ranks" / f"{settings.split}.parquet")
    if output:
        files.write_json(output, report)
    if as_json:
        _print_json(report)
    else:
        _table(result)
    truncated = report["candidates"]["names_truncated"]
    if truncated:
        _tell(f"{truncated} names are longer than the span and were cut to it")


def _rank_rows(path: Path) -> Iterator[dict[str, str]]:
    """Queries of a file: columns relation and head or tail, or both with one of them empty."""
    from kgmlm import files
    from kgmlm.kg import DataError

    separator = "," if ".csv" in path.suffixes[-2:] else "\t"
    lines = list(files.parse_lines(files.read_bytes(path), str(path), separator))
    if not lines:
        raise DataError(
            f"{path} is empty; its first line must name the columns: head, relation (or relation, tail)"
        )
    header = lines[0][1]
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
@_handled
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
    k: Annotated[int, typer.Option("-k", "--top", min=1, help="Candidates a query.")] = 10,
    novel: Annotated[bool, typer.Option("--novel", help="Leave out triples that the graph has.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show each token's log-likelihood.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    batch_size: BatchSize = 64,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Rank the entities that complete (head, relation, ?) or (?, relation, tail)."""
    from kgmlm.kg import QueryError
    from kgmlm.runs import open_run

    if as_json and as_csv:
        raise QueryError("--json and --csv exclude each other")
    if queries is not None and (head is not None or tail is not None or relation is not None):
        raise QueryError("give either --queries or one query, not both")
    if queries is None and relation is None:
        raise QueryError("--relation is missing")
    opened = open_run(run)
    from kgmlm.prediction import Predictor, Resolver

    resolver = Resolver(opened.graph)
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
    _quiet_transformers()
    predictor = Predictor(opened.graph, opened.ranker(device))
    with _progress("queries", quiet=quiet or queries is None) as progress:
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
    _print_predictions(predictor, asked, results, as_json=as_json, as_csv=as_csv, many=queries is not None)


def _print_predictions(
    predictor: Predictor,
    asked: Sequence[Any],
    results: dict[int, list[Prediction]],
    *,
    as_json: bool,
    as_csv: bool,
    many: bool,
) -> None:
    graph = predictor.graph

    def query_of(position: int) -> dict[str, str]:
        query = asked[position]
        known = "head" if query.target == "tail" else "tail"
        return {
            known: graph.entities[query.entity].label,
            "relation": graph.relations[query.relation].label,
        }

    if as_json:
        for position in range(len(asked)):
            for p in results[position]:
                print(json.dumps((query_of(position) if many else {}) | p.as_json(), ensure_ascii=False))
        return
    if as_csv:
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(
            [*(("head", "relation", "tail") if many else ()), "rank", "entity", "name", "score", "known"]
        )
        for position in range(len(asked)):
            q = query_of(position)
            lead = [q.get("head", ""), q["relation"], q.get("tail", "")] if many else []
            for p in results[position]:
                writer.writerow([*lead, p.rank, p.label, p.name, f"{p.score:.6f}", str(p.known).lower()])
        return
    from rich.markup import escape
    from rich.table import Table

    for position in range(len(asked)):
        query = asked[position]
        name = graph.entities[query.entity].surface
        relation = graph.relations[query.relation].name
        title = f"({name}, {relation}, ?)" if query.target == "tail" else f"(?, {relation}, {name})"
        table = Table(title=escape(title))
        columns = ["rank", "entity", "name", "score", "known"]
        explained = any(p.tokens is not None for p in results[position])
        for column in columns + (["log-likelihood of each token"] if explained else []):
            table.add_column(column, justify="right" if column in ("rank", "score") else "left")
        for p in results[position]:
            tokens = " ".join(f"{t['token']} {t['log_likelihood']:.2f}" for t in p.tokens or ())
            cells = [str(p.rank), p.label, p.name, f"{p.score:.3f}", "yes" if p.known else "new"]
            table.add_row(*(escape(c) for c in cells + ([tokens] if explained else [])))
        _stdout().print(table)


@app.command()
@_handled
def linearize(
    source: Annotated[str, typer.Argument(help="A run folder, a built-in dataset, or a dataset folder.")],
    relation: Annotated[str, typer.Option(help="The relation (label or name).", show_default=False)],
    head: Annotated[str | None, typer.Option(help="Ask for tails of this head.")] = None,
    tail: Annotated[str | None, typer.Option(help="Ask for heads of this tail.")] = None,
    model: Annotated[str, typer.Option(help="Whose tokenizer, for a dataset.")] = "scratch",
    template: Annotated[str | None, typer.Option(help="Another template, for a dataset.")] = None,
    as_json: Json = False,
) -> None:
    """Print the exact text and tokens that the model sees for a query."""
    from kgmlm.config import load_settings
    from kgmlm.datasets import load_graph
    from kgmlm.kg import ConfigError
    from kgmlm.linearization import get_template
    from kgmlm.prediction import Resolver
    from kgmlm.ranker import Vocabulary
    from kgmlm.runs import open_run
    from kgmlm.tokenization import SpanTokenizer, load_tokenizer, train_tokenizer
    from kgmlm.training import scratch_texts

    _quiet_transformers()
    if (Path(source) / "run.json").is_file():
        run = open_run(source)
        if template is not None:
            raise ConfigError("--template is for datasets; a run has its own")
        graph, settings, vocabulary = run.graph, run.settings, run.vocabulary
        tokenizer = load_tokenizer(run.model_folder)
    else:
        graph = load_graph(source)
        settings = load_settings(None, [f"text.template={template}"] if template else [])
        if model == "scratch":
            texts = scratch_texts(graph, settings.text)
            tokenizer = SpanTokenizer(train_tokenizer(texts, settings.scratch.vocabulary))
        else:
            tokenizer = load_tokenizer(model)
        vocabulary = Vocabulary.fit(
            tokenizer, graph.entities.column("surface"), graph.seen_N, settings.scoring
        )
    query = Resolver(graph).query(relation, head, tail)
    text = get_template(settings.text.template)(graph.context, query, settings.text.descriptions)
    (encoded,) = tokenizer.encode_queries([text], vocabulary.span_length, settings.text.max_length)
    tokens = tokenizer.tokens(encoded.input_ids)
    rendered = tokenizer.render(text, encoded)
    if as_json:
        _print_json(
            {
                "text": rendered,
                "input_ids": encoded.input_ids,
                "tokens": tokens,
                "span_start": encoded.span_start,
                "span_length": encoded.span_length,
                "tokens_cut": encoded.cut,
            }
        )
    else:
        print(rendered)
        print(" ".join(tokens))
        _tell(
            f"{len(tokens)} tokens, a span of {encoded.span_length} from token {encoded.span_start} on"
            + (f", {encoded.cut} tokens cut" if encoded.cut else "")
        )


# --- data -------------------------------------------------------------------------------------------------


@data_app.command("list")
@_handled
def data_list(as_json: Json = False) -> None:
    """List the built-in datasets."""
    from kgmlm.cards import card_names, read_card

    cards = [read_card(name) for name in card_names()]
    if as_json:
        _print_json([{"name": c.name, "title": c.title, **c.counts.model_dump()} for c in cards])
        return
    from rich.table import Table

    table = Table()
    for column in ("name", "entities", "relations", "train", "valid", "test", "unseen"):
        table.add_column(column, justify="left" if column == "name" else "right")
    for card in cards:
        counts = card.counts.model_dump()
        table.add_row(card.name, *(f"{counts[c.header]:,}" for c in table.columns[1:]))  # type: ignore[index]
    _stdout().print(table)


@data_app.command("prepare")
@_handled
def data_prepare(
    name: Annotated[str, typer.Argument(help="A built-in dataset, or `all`.")], quiet: Quiet = False
) -> None:
    """Fetch and verify a dataset's files, from $KGMLM_MIRROR where it has them."""
    from kgmlm.cards import card_names, fetch, read_card

    for each in card_names() if name == "all" else [name]:
        card = read_card(each)
        for source in card.source:
            path = fetch(source, progress=not quiet)
            _tell(f"{each}: {source.path} is at {path}")
        _tell(f"{each}: ready")


@data_app.command("check")
@_handled
def data_check(
    dataset: Annotated[str, typer.Argument(help="A built-in dataset or a folder.")],
    model: Annotated[str | None, typer.Option(help="Count name lengths in this model's tokens.")] = None,
    as_json: Json = False,
) -> None:
    """Report counts, duplicates, leakage, name collisions and their ceiling, unseen entities, long names.

    Exit code 2 when the counts differ from the card's.
    """
    from kgmlm.cards import card_names, read_card
    from kgmlm.checks import check_graph
    from kgmlm.datasets import load_graph

    graph = load_graph(dataset)
    expected = (
        read_card(graph.name).counts if graph.name in card_names() and dataset in card_names() else None
    )
    report = check_graph(graph, expected)
    if model is not None:
        from kgmlm.tokenization import load_tokenizer

        _quiet_transformers()
        names = graph.entities.column("surface")
        lengths = load_tokenizer(model).candidates(names, None, end_of_name=False).lengths_N
        longest = lengths.argsort(kind="stable")[::-1][:5]
        report["name_tokens"] = {
            "mean": round(float(lengths.mean()), 3),
            "max": int(lengths.max()),
            "longest": [{"name": names[i], "tokens": int(lengths[i])} for i in longest],
        }
    if as_json:
        _print_json(report)
    else:
        _print_check(report)
    if report.get("mismatches"):
        wrong = ", ".join(f"{k} {v['found']} instead of {v['card']}" for k, v in report["mismatches"].items())
        _fail(f"{dataset} differs from its card: {wrong}")


def _print_check(report: dict[str, Any]) -> None:
    """The report of ``data check`` in lines for people."""

    def pairs(values: dict[str, Any]) -> str:
        return ", ".join(f"{k} {v:,}" for k, v in values.items()) or "none"

    def listed(items: list[str], most: int = 5) -> list[str]:
        more = [f"and {len(items) - most:,} more"] if len(items) > most else []
        return [*items[:most], *more] or ["none"]

    top = report["ceiling"]
    lines: dict[str, str | list[str]] = {
        "entities": f"{report['entities']:,}, of which {report['unseen']:,} occur in no training triple",
        "relations": f"{report['relations']:,}",
        "triples": pairs(report["triples"]),
        "with an unseen entity": pairs(report["unseen_triples"]),
        "duplicate triples": pairs(report["duplicates"]),
        "shared between splits": pairs(report["shared"]),
        "entities named by their label": f"{report['without_name']:,}",
        "entities without a description": f"{report['without_description']:,}",
        **{
            f"{kind} names shared": f"{report['collisions'][kind]:,} entities; ceiling on {top['split']} "
            f"MRR {top[kind]['mrr']:.4f}, Hits@1 {top[kind]['hits_at_1']:.4f}"
            for kind in ("bare", "surface")
        },
        **{f"{split} triples in training": pairs(counts) for split, counts in report["leakage"].items()},
        **{
            f"{kind} relations": listed(
                [f"{' / '.join(o['relations'])} ({o['share']:.0%} of {o['pairs']:,})" for o in found]
            )
            for kind, found in report["overlapping_relations"].items()
        },
        "longest names": listed(report["longest_names"][:3]),
    }
    if "name_tokens" in report:
        tokens = report["name_tokens"]
        lines["tokens a name"] = (
            f"mean {tokens['mean']:.2f}, at most {tokens['max']} ({tokens['longest'][0]['name']})"
        )
    if report["notes"]:
        lines["notes"] = pairs(report["notes"])
    if "mismatches" in report:
        lines["against the card"] = "as expected" if not report["mismatches"] else "DIFFERENT"
    width = max(map(len, lines))
    print(f"{report['dataset']}")
    for key, value in lines.items():
        for number, line in enumerate([value] if isinstance(value, str) else value):
            print(f"  {'' if number else key:<{width}}  {line}")


@data_app.command("show")
@_handled
def data_show(
    dataset: Annotated[str, typer.Argument(help="A built-in dataset or a folder.")],
    entity: Annotated[str | None, typer.Option(help="Show one entity and its training triples.")] = None,
    as_json: Json = False,
) -> None:
    """Show a dataset's card and a few triples, or one entity."""
    from kgmlm.cards import card_names, read_card
    from kgmlm.datasets import labeled, load_graph

    graph = load_graph(dataset)
    if entity is not None:
        from dataclasses import asdict

        from kgmlm.prediction import Resolver

        at = Resolver(graph).entity(entity)
        train_triples = graph.splits["train"]
        touching = train_triples[(train_triples[:, [0, 2]] == at).any(1)]
        shown: dict[str, Any] = {**asdict(graph.entities[at]), "train": labeled(graph, touching)}
    else:
        card = (
            read_card(dataset).model_dump(exclude={"source", "splits", "texts"})
            if dataset in card_names()
            else {}
        )
        shown = {**card, "name": graph.name, "relations": [r.label for r in graph.relations]}
        shown["examples"] = labeled(graph, graph.splits["train"][:5])
    if as_json:
        _print_json(shown)
        return
    for key, value in shown.items():
        if isinstance(value, list):
            print(f"{key}:")
            for row in value[:20]:
                print("  " + (row if isinstance(row, str) else " | ".join(row)))
            if len(value) > 20:
                print(f"  and {len(value) - 20:,} more")
        else:
            print(f"{key}: {value}")


@data_app.command("split")
@_handled
def data_split(
    dataset: Annotated[str, typer.Argument(help="A dataset folder.")],
    output: Annotated[Path, typer.Option(help="The dataset folder to write.", show_default=False)],
    random: Annotated[bool, typer.Option("--random", help="Draw triples at random.")] = False,
    valid: Annotated[float, typer.Option(help="Share of the triples for validation.")] = 0.1,
    test: Annotated[float, typer.Option(help="Share of the triples for test.")] = 0.1,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Make the missing splits of a dataset and write it as a new folder."""
    from kgmlm.datasets import load_graph, split_random, write_folder
    from kgmlm.kg import ConfigError

    if not random:
        raise ConfigError("say how to split: --random")
    graph = split_random(load_graph(dataset), valid, test, seed)
    write_folder(graph, output)
    _tell(", ".join(f"{s} {len(t):,}" for s, t in graph.splits.items()) + f" triples written to {output}")


def run_app() -> None:
    """The entry point of the ``kgmlm`` command."""
    app()


if __name__ == "__main__":
    run_app()
