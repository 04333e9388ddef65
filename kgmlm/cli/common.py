"""Shared parts of the commands: options, progress bars, tables, and one sentence per error.

Results go to stdout, everything else to stderr. Heavy imports live inside the functions.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from functools import wraps
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from kgmlm.evaluation.compare import Difference
    from kgmlm.evaluation.evaluator import Evaluation
    from kgmlm.graphs.graph import KnowledgeGraph
    from kgmlm.prediction.classify import Classified
    from kgmlm.ranking.predictor import Prediction


def say(message: str) -> None:
    """Why the command ends, as a line on stderr; of several processes that end, one says it."""
    from kgmlm.core.processes import speaks

    if speaks():
        print(f"kgmlm: {message}", file=sys.stderr)


def fail(message: str) -> None:
    """Say it on stderr and exit with code 2."""
    from kgmlm.core.errors import readable

    say(readable(message))
    raise typer.Exit(2)


IN_SEVERAL_PROCESSES = (
    "train",
    "evaluate",
    "tune",
    "rank",
    "index",
)  # the commands that `torchrun` may start
HEAVY = ("torch", "transformers", "accelerate", "pykeen")  # what an installation for ranking may lack


class _Terminated(KeyboardInterrupt):
    """SIGTERM has come; what is half-written goes, as after Ctrl-C."""

    signal = signal.SIGTERM


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM interrupt like Ctrl-C; a second one ends the process at once."""

    def interrupt(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


INPUT = "a file that is read"  # marks options that may be -, a pipe or a device


@contextmanager
def _files_of(inputs: Set[str], given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The options of a command, with each input that is a stream copied to a temporary file.

    A file can be read twice, and from its end, as Parquet is.
    """
    streams = {
        name: path
        for name, path in given.items()
        if name in inputs and path is not None
        if str(path) == "-" or (path.exists() and not path.is_file() and not path.is_dir())
    }
    if not streams:
        yield given
        return
    from tempfile import TemporaryDirectory

    from kgmlm.core.errors import ConfigError, KgmlmError

    if sum(str(path) in ("-", "/dev/stdin") for path in streams.values()) > 1:
        raise ConfigError("only one input can be read from stdin")

    with TemporaryDirectory() as folder:
        found = {name: _spooled(path, Path(folder)) for name, path in streams.items()}
        try:
            yield given | found
        except KgmlmError as error:
            raise type(error)(str(error).replace(f"{folder}/", "")) from None


def _spooled(stream: Path, folder: Path) -> Path:
    """A copy of a stream, named by its content: stdin.tsv, for example."""
    import gzip
    import shutil
    import zlib

    name = "stdin" if str(stream) in ("-", "/dev/stdin") else stream.name
    whole = folder / name
    with whole.open("wb") as file:
        if str(stream) == "-":
            shutil.copyfileobj(getattr(sys.stdin, "buffer", io.BytesIO()), file)
        else:
            with stream.open("rb") as source:
                shutil.copyfileobj(source, file)
    with whole.open("rb") as file:
        head = file.read(1 << 16)
    packed = head.startswith(b"\x1f\x8b")
    if packed:
        with suppress(OSError, EOFError, zlib.error), gzip.open(whole) as unpacked:
            head = unpacked.read(1 << 16)
    first = head.partition(b"\n")[0]
    text = ".csv" if b"," in first and b"\t" not in first else ".tsv"
    kind = ".parquet" if head.startswith(b"PAR1") else text
    return whole.rename(folder / f"{name}{kind}{'.gz' * packed}")


Options = dict[str, tuple[Any, Any]]  # options that commands share: by name, the annotation and the default
LAST = ("as_json", "as_csv", "quiet")  # in the help of a command


def option(
    kind: Any, default: Any, help: str, *names: str, read: bool = False, **more: Any
) -> tuple[Any, Any]:
    """An option for :data:`Options`; ``read``: of a file that may be -, a pipe or a device."""
    more = {"show_default": False, **more} if default is None else more
    declared = typer.Option(*names, help=help, **more)
    return (Annotated[kind, declared, INPUT] if read else Annotated[kind, declared]), default


def flag(name: str, help: str) -> tuple[Any, Any]:
    """An option without a value for :data:`Options`."""
    return Annotated[bool, typer.Option(name, help=help)], False


def command(*groups: Options) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command: with groups of shared options, and one sentence for what users can mend.

    The function gets the options of the groups as keywords. It exits with code 2 after an error, 130 after
    Ctrl-C and 143 after SIGTERM.
    """

    def made(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        keywords = Parameter.VAR_KEYWORD
        own = {
            name: parameter.replace(annotation=hints[name])
            for name, parameter in inspect.signature(function).parameters.items()
            if parameter.kind != keywords
        }
        shared = {
            name: Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for group in groups
            for name, (annotation, default) in group.items()
        }
        parameters = sorted((own | shared).values(), key=lambda parameter: parameter.name in LAST)
        parameters = [x.replace(kind=Parameter.KEYWORD_ONLY) for x in parameters]
        inputs = {x.name for x in parameters if INPUT in getattr(x.annotation, "__metadata__", ())}

        @wraps(function)
        def wrapper(**given: Any) -> None:
            _run(function, given, inputs)

        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {x.name: x.annotation for x in parameters}
        return wrapper

    return made


def _run(function: Callable[..., None], given: dict[str, Any], inputs: Set[str]) -> None:
    """Run a command; see :func:`command`."""
    from kgmlm.core.errors import KgmlmError
    from kgmlm.core.processes import in_several_processes, main_process
    from kgmlm.core.progress import quiet_environment

    quiet_environment()
    for name in ("stdin", "stdout", "stderr"):  # a closed one (`>&-`) would be the next file's number
        if getattr(sys, name) is None:
            nothing = open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, nothing)
    for stream in (sys.stdout, sys.stderr):  # what a terminal cannot show is escaped there
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    name = function.__name__.replace("_", " ")
    if in_several_processes() and name not in IN_SEVERAL_PROCESSES:
        if main_process():  # the others leave without a word
            several = ", ".join(IN_SEVERAL_PROCESSES)
            print(f"kgmlm: `kgmlm {name}` runs in one process (in several: {several})", file=sys.stderr)
            raise typer.Exit(2)
        return
    try:
        silent = nullcontext() if main_process() else redirect_stdout(io.StringIO())
        with _terminable(), silent, _files_of(inputs, given) as options:
            function(**options)
        sys.stdout.flush()  # here, where it is no mistake that the reader has gone
    except KgmlmError as error:
        fail(str(error))
    except ModuleNotFoundError as error:
        if error.name not in HEAVY:
            raise
        fail(f"`kgmlm {name}` needs {error.name} here, which is not installed")
    except UnicodeEncodeError as error:
        fail(f"{error.object!r} is not in UTF-8, so it cannot be written; rename it")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone
        raise typer.Exit(0) from None
    except OSError as error:
        from kgmlm.core.files import NO_ROOM

        if error.errno in NO_ROOM:
            fail(f"there is no room left to write {error.filename or 'the file'}; free some and try again")
        where = ", ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
        what = str(error.strerror or error)
        fail(f"{where}: {what[:1].lower()}{what[1:]}" if where else what)
    except KeyboardInterrupt as error:
        number = getattr(error, "signal", signal.SIGINT)
        if not hasattr(error, "signal") or isinstance(error, _Terminated):
            say("interrupted")  # training says so itself, and how to continue
        raise typer.Exit(128 + number) from None


def print_json(value: Any, indent: int | None = 2) -> None:
    """JSON on stdout; where that is not UTF-8, letters beyond ASCII are escaped."""
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(value, indent=indent, ensure_ascii=not utf8))


def tell(message: str) -> None:
    """A line on stderr."""
    print(message, file=sys.stderr)


def stdout() -> Console:
    """Return the console for tables; wide enough for names where no terminal sets the width."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120
    return Console(width=width, emoji=False, highlight=False)


def print_metrics(evaluation: Evaluation) -> None:
    """The metrics of an evaluation as a table for people."""
    from rich.markup import escape
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

    texts = report["candidates"]
    what = {"all": "all entities", "graph": "the graph's entities", "split": "the split's entities",
            "train": "training entities"}[texts["set"]]  # fmt: skip
    kind = "realistic"
    if "negatives" in texts:
        how = texts["negatives"]["by"]
        drawn = {"drawing": "drawn ", "grail": "", "expectation": "expected "}[how]
        what = f"{texts['negatives']['count']} {drawn}negatives of {what}"
        what += ", drawn as GraIL does" if how == "grail" else ""
        kind = "expected" if how == "expectation" else "realistic"
    own = ", own entity excluded" if report["own_entity"]["excluded"] else ""
    own += "".join(f", {name}" for name in report.get("constraints", {}))
    table = Table(title=escape(f"{report['dataset']} {report['split']}: filtered, {kind}, {what}{own}"))
    table.add_column("queries")
    for name in wanted:
        table.add_column(name, justify="right", overflow="fold")
    for side in ("tail", "head", "both"):
        table.add_row(side, *cells(report["metrics"], f"{side}.{kind}."))
    position = report["breakdown"]["unseen_position"]
    if position["any"]["count"]:
        table.add_row("both, seen only", *cells(position["neither"], ""))
        table.add_row("both, unseen", *cells(position["any"], ""))
    comparable = report.get("pykeen_comparable", {"metrics": {}})["metrics"]
    plain = report["own_entity"]["excluded"]
    if (plain or position["any"]["count"]) and comparable.get("both.realistic.count"):
        table.add_row("as PyKEEN", *cells(comparable, "both.realistic."))
    stdout().print(table)
    for name, of in report.get("constraints", {}).items():
        lost = f"forbids {of['answers_forbidden']:,} of {of['ranks']:,} answers, which rank last"
        print(f"{name}: keeps {of['candidates_kept']:.1%} of the candidates; {lost}")
    if "retrieval" in report:
        found = report["retrieval"]
        print(
            f"shortlists of {found['k']:,} by the index hold {found['recall']['both']:.2%} "
            f"of the answers; MRR {found['exact']['mrr']:.4f} by exact ranking, {found['mrr_lost']:.4f} lost"
        )


def print_comparison(differences: Sequence[Difference], a: str, b: str) -> None:
    """Two runs side by side, a line per metric."""
    from rich.markup import escape
    from rich.table import Table

    names = {"mrr": "MRR", "hits_at_1": "Hits@1", "hits_at_3": "Hits@3", "hits_at_10": "Hits@10"}
    table = Table(title=escape(f"A: {a}, B: {b}"))
    for column in ("queries", "metric", "A", "B", "B - A", "95 % interval", "p"):
        table.add_column(
            column, justify="left" if column in ("queries", "metric") else "right", overflow="fold"
        )
    for d in differences:
        interval = f"{d.low:+.4f} to {d.high:+.4f}"
        figures = (f"{d.a:.4f}", f"{d.b:.4f}", f"{d.difference:+.4f}", interval, f"{d.p:.4f}")
        table.add_row(d.side, names[d.metric], *figures)
    stdout().print(table)


def print_predictions(
    graph: KnowledgeGraph,
    asked: Sequence[Any],
    results: dict[int, list[Prediction]],
    *,
    as_json: bool,
    as_csv: bool,
    many: bool,
    hidden: str,
) -> None:
    """Ranked candidates as tables, JSON lines or CSV.

    Args:
        many: add the query to each line.
        hidden: how large the hidden set is that probabilities are of.
    """

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
                print_json((query_of(position) if many else {}) | p.as_json(), indent=None)
        return
    if as_csv:
        import csv

        from kgmlm.core.tables import CsvFile

        writer = csv.writer(CsvFile(sys.stdout))
        writer.writerow(
            [
                *(("head", "relation", "tail") if many else ()),
                *("rank", "entity", "name", "probability", "score", "known"),
            ]
        )
        for position in range(len(asked)):
            q = query_of(position)
            lead = [q.get("head", ""), q["relation"], q.get("tail", "")] if many else []
            for p in results[position]:
                probability = "" if p.probability is None else f"{p.probability:.6f}"
                values = (p.rank, p.label, p.name, probability, f"{p.score:.6f}", str(p.known).lower())
                writer.writerow([*lead, *values])
        return
    from rich.markup import escape
    from rich.table import Table

    from kgmlm.core.errors import printable

    probable = any(p.probability is not None for found in results.values() for p in found)
    for position in range(len(asked)):
        query = asked[position]
        name = graph.entities[query.entity].surface
        relation = graph.relations[query.relation].name
        title = f"({name}, {relation}, ?)" if query.target == "tail" else f"(?, {relation}, {name})"
        table = Table(title=escape(title))
        columns = ["rank", "entity", "name", *(["probability"] if probable else []), "score", "known"]
        explained = any(p.tokens is not None for p in results[position])
        for column in columns + (["parts of the score"] if explained else []):
            table.add_column(
                column,
                justify="right" if column in ("rank", "probability", "score") else "left",
                overflow="fold",
            )
        for p in results[position]:
            parts = []
            for part, (weight, value) in (p.parts or {}).items():
                pieces = ", ".join(f"{t['text'].strip()} {t['log_likelihood']:.2f}" for t in p.tokens or ())
                of = f": {pieces}" if part == "likelihood" else ""
                parts.append(f"{part} {weight * value:+.3f} ({weight:.3g} × {value:.3f}{of})")
            parts += [f"because {reason}" for reason in p.because]
            shown = [percent(p.probability, p.checked)] if probable else []
            cells = [str(p.rank), p.label, p.name, *shown, f"{p.score:.3f}", "yes" if p.known else "new"]
            table.add_row(*(escape(printable(c)) for c in cells + (["; ".join(parts)] if explained else [])))
        stdout().print(table)
    if probable:
        tell(f"probability: the share of such answers in a further hidden set {hidden}")
    if any(p.probability is not None and not p.checked for found in results.values() for p in found):
        tell("?: not checked, since training has nothing of one of the entities")


def percent(probability: float | None, checked: bool = True) -> str:
    """A probability; with a question mark where it could not be checked."""
    if probability is None:
        return ""
    whole, mark = 100 * probability, "" if checked else "?"
    return "< 0.1 %" + mark if whole < 0.1 else f"{whole:.{0 if whole >= 9.95 else 1}f} %{mark}"


def print_table(title: str, rows: pd.DataFrame) -> None:
    """A table with a title; numbers stand to the right."""
    from rich.markup import escape
    from rich.table import Table

    from kgmlm.core.errors import printable

    table = Table(title=escape(title))
    for column in rows.columns:
        justify: Literal["left", "right"] = "right" if rows[column].dtype.kind in "if" else "left"
        table.add_column(column, justify=justify, overflow="fold")
    for row in rows.itertuples(index=False):
        table.add_row(*(escape(f"{x:,}" if isinstance(x, int) else printable(str(x))) for x in row))
    stdout().print(table)


def print_classified(found: Classified, *, as_json: bool, as_csv: bool, explain: bool) -> None:
    """Triples with their probabilities as a table, JSON lines or CSV."""
    rows = found.as_json(explain)
    if as_json:
        for row in rows:
            print_json(row, indent=None)
        return
    if as_csv:
        import csv

        from kgmlm.core.tables import CsvFile

        columns = ["head", "relation", "tail", "probability", "true", "known"]
        columns += ["label"] if found.labels is not None else []
        writer = csv.DictWriter(CsvFile(sys.stdout), columns, extrasaction="ignore")
        writer.writeheader()
        for row in rows:
            probability = "" if row["known"] else f"{row['probability']:.6f}"
            writer.writerow(row | {"probability": probability})
        return
    from rich.markup import escape
    from rich.table import Table

    from kgmlm.core.errors import printable

    table = Table(title=f"where {found.prior:.4g} of the triples that are asked about are true")
    labeled = found.labels is not None
    columns = ["head", "relation", "tail", "probability", "true", *(["label"] if labeled else [])]
    for column in columns + (["parts of the log odds"] if explain else []):
        table.add_column(column, justify="right" if column == "probability" else "left", overflow="fold")
    for row in rows:
        probability = "known" if row["known"] else f"{row['probability']:.4f}"
        cells = [row["head"], row["relation"], row["tail"], probability, "yes" if row["true"] else "no"]
        cells += ["yes" if row["label"] else "no"] if labeled else []
        if explain:
            parts = row.get("parts") or {}
            told = [
                f"{side} {of['adds']:+.2f} (rank {of['rank']:g}, softmax {of['softmax']:.3f}, "
                f"margin {of['margin']:+.2f})"
                for side, of in parts.items()
                if side in ("tail", "head")
            ]
            cells.append("; ".join([*told, f"relation {parts['relation']['adds']:+.2f}"]) if parts else "")
        table.add_row(*(escape(printable(cell)) for cell in cells))
    stdout().print(table)


def print_lines(lines: Mapping[str, Sequence[str]], indent: str = "") -> None:
    """Lines for people, beside their headings."""
    from kgmlm.core.errors import printable

    width = max(map(len, lines))
    for heading, values in lines.items():
        for number, line in enumerate(values):
            print(f"{indent}{'' if number else heading:<{width}}  {printable(line)}")


MOST = 2**32 - 1  # of any number of a command
RunArgument = Annotated[
    Path, typer.Argument(help="A run folder, made by `kgmlm train`, or a pack.", show_default=False)
]
FolderArgument = Annotated[  # of commands that write the run
    Path,
    typer.Argument(help="A run folder, made by `kgmlm train`.", show_default=False),
]
Device = Annotated[str | None, typer.Option(help="Such as cpu or cuda; by default a GPU where there is one.")]


def _scores() -> list[str]:
    from kgmlm.signals import SIGNALS

    return ["all", "text", *SIGNALS]


def _datasets() -> list[str]:
    from kgmlm.graphs.cards import card_names

    return card_names()


Scores = Annotated[
    str,
    typer.Option(
        autocompletion=_scores,
        help="all that a run has; its text, without what is trained beside it; or one signal alone, "
        "such as likelihood or kge.",
    ),
]
Retrieve = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=MOST,
        help="Score only this many entities per query, found by the index (`kgmlm index`); 0 scores all.",
    ),
]
Effort = Annotated[
    int | None,
    typer.Option(min=1, max=MOST, help="How hard the index searches; by default as hard as its build chose."),
]
Rerank = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=MOST,
        help="How many of the best candidates are scored in reverse (`kgmlm tune --add reverse`) and "
        "reranked (`kgmlm rerank`), in runs that do so; by default as many as validation chose, 0 for none.",
    ),
]
Candidates = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST,
        help="Score in reverse or rerank at most this many candidates; by default reranking.candidates.",
        show_default=False,
    ),
]
ChosenOn = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=MOST,
        help="How many validation triples to choose on, a seeded sample; 0 is all. By default all, but "
        "training.eval_triples for reverse scoring and reranking.",
        show_default=False,
    ),
]
Precision = Annotated[
    Literal["fp32", "bf16"],
    typer.Option(help="fp32, or bf16: faster on GPUs and on CPUs with units for it, slightly rounded."),
]
RuntimeOption = Annotated[
    Literal["auto", "torch", "onnx"],
    typer.Option(
        "--runtime",
        help="What reads texts: torch, or ONNX Runtime in runs that `kgmlm onnx` has made ready for it; auto "
        "takes the latter on a CPU where it can do all that is asked.",
    ),
]
EntityTriples = Annotated[
    Path | None,
    typer.Option(
        help="What is known of the new entities: a file of triples (head, relation, tail), each with one of "
        "them. They count like training triples, and are known answers.",
    ),
    INPUT,
]
BatchSize = Annotated[
    int, typer.Option(min=1, max=MOST, help="Queries, or candidates to rerank, per forward pass.")
]
Prior = Annotated[
    float,
    typer.Option(help="The share of true triples among those that are asked about; above 0 and below 1."),
]
RelationsPrior = Annotated[
    float | None,
    typer.Option(
        "--prior",
        help="Where relations are ranked: the share of true triples among those that are asked about, .5 by "
        "default.",
        show_default=False,
    ),
]
AllowSelf = Annotated[
    bool,
    typer.Option(
        "--allow-self",
        help="Let the query's entity be its own answer even where no training triple of the relation links "
        "an entity to itself.",
    ),
]
Typed = Annotated[
    bool,
    typer.Option(
        "--typed",
        help="Leave out (`evaluate`: rank last) the entities whose types do not fit: what training has of a "
        "relation's heads and tails, and given types.",
    ),
]
Functional = Annotated[
    bool,
    typer.Option(
        "--functional",
        help="Where training has one answer per entity, leave out (`evaluate`: rank last) what would be a "
        "second one.",
    ),
]
Verify = Annotated[
    bool, typer.Option("--verify", help="Read all files of the run first and see that none has changed.")
]
Dataset = Annotated[
    str | None,
    typer.Option(
        help="A built-in dataset, or a folder with train.tsv.",
        show_default=False,
        autocompletion=_datasets,
    ),
]
Decay = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        help="With --resume: end the training after this many more epochs, in which the learning rate falls "
        "to 0 (see training.schedule). Copy the run's folder first if you may train on from here.",
    ),
]
MaxSteps = Annotated[
    int | None,
    typer.Option(min=1, max=MOST, help="Stop each stage after this many steps, as for a smoke test."),
]
WorkerCount = Annotated[
    int, typer.Option(min=1, max=1024, help="Processes that score, each with the model in memory.")
]
Engines = Annotated[
    Literal["local", "ray"],
    typer.Option(
        "--engine",
        help="Who scores: processes of this machine, or actors of a Ray cluster, each with one CPU (with "
        "--device cuda also one GPU).",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="HOST:PORT of the Ray cluster, of which this machine is a node; by default Ray is started here.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]
SkipHeader = Annotated[
    bool,
    typer.Option("--skip-header", help="Leave out the first line of each of the folder's files of triples."),
]
RANKING: Options = {
    "scores": (Scores, "all"),
    "allow_self": (AllowSelf, False),
    "typed": (Typed, False),
    "functional": (Functional, False),
    "rerank": (Rerank, None),
    "retrieve": (Retrieve, None),
    "effort": (Effort, None),
}
WORKERS: Options = {"workers": (WorkerCount, 1), "engine": (Engines, "local"), "address": (Address, None)}
OTHER_GRAPH: Options = {
    "allow_seen_entities": flag("--allow-seen-entities", "--graph may share entities with training."),
    "allow_new_relations": flag("--allow-new-relations", "--graph may have relations that training has not."),
    "skip_header": (SkipHeader, False),
}
