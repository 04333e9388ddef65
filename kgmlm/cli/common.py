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
from dataclasses import MISSING
from functools import wraps
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

import typer

from kgmlm.core.options import Declared, Options, described


def say(message: str) -> None:
    """Print on stderr why the command ends; if several processes end, only one of them does so."""
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
        if name in inputs and isinstance(path, Path)
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
        copies = {name: _spooled(path, Path(folder)) for name, path in streams.items()}
        try:
            yield given | copies
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


LAST = ("as_json", "as_csv", "quiet")  # in the help of a command


def command(*kinds: type[Options]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command, with its own options and those of dataclasses.

    The function gets the values of the dataclasses' options as keywords. The command exits with code 2 and
    one sentence after an error that users can mend, with 130 after Ctrl-C and 143 after SIGTERM.
    """

    def made(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        keywords = Parameter.VAR_KEYWORD
        own = {
            name: parameter.replace(annotation=hints[name])
            for name, parameter in inspect.signature(function).parameters.items()
            if parameter.kind != keywords
        }
        declared = {x.name: x for kind in kinds for x in described(kind) if x.about.command is not None}
        shared = {name: _parameter(x) for name, x in declared.items() if name not in own}
        parameters = sorted((own | shared).values(), key=lambda parameter: parameter.name in LAST)
        parameters = [x.replace(kind=Parameter.KEYWORD_ONLY) for x in parameters]
        inputs = {x.name for x in parameters if INPUT in getattr(x.annotation, "__metadata__", ())}
        defaults = {name: x.default for name, x in declared.items() if x.default is not MISSING}

        @wraps(function)
        def wrapper(**given: Any) -> None:
            unset = {name: defaults[name] for name in defaults if given[name] in (None, [])}
            _run(function, given | unset, inputs)

        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {x.name: x.annotation for x in parameters}
        wrapper.options = kinds  # type: ignore[attr-defined]
        return wrapper

    return made


def _parameter(option: Declared) -> Parameter:
    """The parameter of a command that an option makes."""
    about, required = option.about, option.default is MISSING
    default = Parameter.empty if required else option.default
    if not required and (
        get_origin(option.kind) is list or not isinstance(default, bool | int | float | str)
    ):
        default = None
    kind = option.kind if required or default is not None else option.kind | None
    more: dict[str, Any] = {"help": about.help, "show_default": default not in (None, Parameter.empty, "")}
    if about.is_argument:
        made = typer.Argument(metavar=about.metavar, **more)
    else:
        made = typer.Option(
            *_names(option), min=about.at_least, max=about.at_most, metavar=about.metavar,
            envvar=about.environment, show_envvar=False, autocompletion=about.choices, **more,
        )  # fmt: skip
    annotation = Annotated[kind, made, INPUT] if about.is_input else Annotated[kind, made]
    return Parameter(option.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _names(option: Declared) -> tuple[str, ...]:
    """The names of an option; one that is on by default can be turned off."""
    if option.about.names:
        return option.about.names
    name = option.name.replace("_", "-")
    if option.kind is bool:
        return (f"--{name}/--no-{name}",) if option.default is True else (f"--{name}",)
    return (f"--{name}",)


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
            print(f"kgmlm: `kgmlm {name}` runs in one process only (in several: {several})", file=sys.stderr)
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
    typer.Argument(help="A run folder (from `kgmlm train`), a pack, or hf://USER/NAME.", show_default=False),
]
FolderArgument = Annotated[  # of commands that write the run
    Path,
    typer.Argument(help="A run folder, made by `kgmlm train`.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars, no notes.")]
