"""Shared parts of the commands: how one runs, the options that several have, one sentence per error.

Heavy imports live inside the functions.
"""

from __future__ import annotations

import inspect
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from functools import wraps
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer


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


MAX_NUMBER = 2**32 - 1  # of any number of a command
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
    for option, value in given.items():
        if isinstance(value, int | float) and abs(value) > MAX_NUMBER:
            fail(f"{option.replace('_', '-')}: {value} is not a number up to {MAX_NUMBER:,}")
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


RunArgument = Annotated[
    Path,
    typer.Argument(
        help="A run folder, made by `kgmlm train`, a pack, or hf://USER/NAME.", show_default=False
    ),
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
        help="all signals; text (likelihood and entity vectors alone); or one signal, such as kge.",
    ),
]
Retrieve = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Score only this many entities per query, found by the index (`kgmlm index`); 0 scores all.",
    ),
]
Rerank = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="How many of the best candidates are scored in reverse (`kgmlm tune --add reverse`), in runs "
        "that do so; by default as many as validation chose. 0 leaves out all second stages, trees, too.",
    ),
]
Candidates = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Score in reverse at most this many candidates; by default reverse.candidates, and 100 by "
        "trees.",
        show_default=False,
    ),
]
ChosenOn = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="How many validation triples to choose on, a seeded sample; 0 is all. By default all, but "
        "training.eval_triples for reverse scoring.",
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
BatchSize = Annotated[int, typer.Option(min=1, help="Queries per forward pass.")]
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
        help="Leave out (`evaluate`: rank last) second answers where a relation has one answer per entity in "
        "training.",
    ),
]
Unlinked = Annotated[
    bool,
    typer.Option(
        "--unlinked",
        help="Leave out (`evaluate`: rank last) the entities that training links to the query's entity by "
        "another triple, in either direction.",
    ),
]
CandidateList = Annotated[
    Path | None,
    typer.Option(
        "--candidates",
        help="A table of the entities that can answer: a column entity and, if you like, relation and side "
        "(head or tail).",
        show_default=False,
        exists=False,
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
    typer.Option(min=1, help="Stop each stage after this many steps, as for a smoke test."),
]
RayCluster = Annotated[
    str | None,
    typer.Option(
        "--ray",
        help="Have workers of Ray score: `local` starts Ray here, HOST:PORT is a cluster that this machine "
        "is a node of. Each worker has one CPU (with --device cuda also one GPU) and the model in memory.",
        show_default=False,
    ),
]
WorkerCount = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1024,
        help="With --ray: how many; by default as many as this machine has CPUs.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars, no notes.")]
SkipHeader = Annotated[
    bool,
    typer.Option("--skip-header", help="Leave out the first line of each of the folder's files of triples."),
]
RANKING: Options = {
    "scores": (Scores, "all"),
    "allow_self": (AllowSelf, False),
    "typed": (Typed, False),
    "functional": (Functional, False),
    "unlinked": (Unlinked, False),
    "candidates": (CandidateList, None),
    "rerank": (Rerank, None),
    "retrieve": (Retrieve, None),
}
WORKERS: Options = {"ray": (RayCluster, None), "workers": (WorkerCount, None)}
OTHER_GRAPH: Options = {
    "allow_seen_entities": flag("--allow-seen-entities", "--graph may share entities with training."),
    "allow_new_relations": flag("--allow-new-relations", "--graph may have relations that training has not."),
    "skip_header": (SkipHeader, False),
}
