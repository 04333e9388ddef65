"""Options, each written once: a field of a dataclass, with its type, its default and its help.

The keywords of a Python function (:func:`takes`, :func:`takes_all`), a command (`kgmlm.cli.common.command`)
and the page of the docs (`docs/reference.py`) are all made from these fields::

    @dataclass(frozen=True, kw_only=True)
    class CompareOptions(Options):
        split: str = option("test", "The split whose ranks are compared.")
        draws: int = option(2000, "Resamplings and random swaps.", at_least=100)

    @takes(CompareOptions)
    def compare(run: Run, options: CompareOptions) -> Comparison: ...

    compare(run, draws=500)
"""

from __future__ import annotations

import inspect
import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from functools import wraps
from numbers import Real
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from kgmlm.core.errors import ConfigError, check_whole

if TYPE_CHECKING:
    from kgmlm.core.progress import Advance, Watcher

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
R = TypeVar("R")
SAME = "as in Python"  # the type on the command line


@dataclass(frozen=True)
class About:
    """What an option is beside its type and default.

    Attributes:
        names: on the command line, such as ("-k", "--top"); none are those of the field.
        at_least, at_most: bounds of a number.
        above: a bound that a number must exceed.
        command: the type on the command line, if it is another one than in Python; None is no option there.
        is_input: whether it names a file to read, which may be -, a pipe or a device.
        is_argument: whether it has no name on the command line.
        choices: called for the values that a shell completes.
        metavar: what stands for the value in the help.
        environment: the variable that sets it, too.
        python: what the help adds in Python.
    """

    help: str
    names: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    command: Any = SAME
    is_input: bool = False
    is_argument: bool = False
    choices: Callable[[], Sequence[str]] | None = None
    metavar: str | None = None
    environment: str | None = None
    python: str = ""


def option(default: T, help: str, *names: str, **more: Any) -> T:
    """A field of :class:`Options` that has a default; ``more`` as of :class:`About`."""
    made: T = field(default=default, metadata={"about": About(help, names, **more)})
    return made


def about(help: str, **more: Any) -> dict[str, Any]:
    """The metadata of a field without a default: ``field(kw_only=False, metadata=about("..."))``."""
    return {"about": About(help, **more)}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Values of options, checked; a base for dataclasses of options.

    Attributes:
        given: the names of those that the caller passed, whatever their values.

    Raises:
        ConfigError: for a number out of bounds, or what is none of a few choices.
    """

    given: frozenset[str] = field(default=frozenset(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for declared in described(type(self)):
            declared.check(getattr(self, declared.name))


@dataclass(frozen=True)
class Declared:
    """An option as it is declared: its field, with its type and what it is about.

    Attributes:
        kind: the evaluated type, without None; None where the command line has a type of its own.
    """

    name: str
    default: Any
    about: About
    kind: Any
    positional: bool

    @property
    def flag(self) -> str:
        """The option's name on the command line, for messages."""
        names = self.about.names
        return (names[0].partition("/")[0] if names else f"--{self.name}").replace("_", "-")

    def check(self, value: Any) -> None:
        """Refuse a value out of bounds, or none of the choices.

        Raises:
            ConfigError: naming the option.
        """
        if value is None or value is self.default:
            return
        if get_origin(self.kind) is Literal and value not in get_args(self.kind):
            raise ConfigError(f"{self.flag} is {' or '.join(get_args(self.kind))}, not {value!r:.80}")
        if self.kind is int:
            check_whole(self.flag, value, int(self.about.at_least or 0))
        if self.kind in (int, float) and not self._is_allowed(value):
            raise ConfigError(f"{self.flag} is a number{self._range()}, not {value!r:.80}")

    def _is_allowed(self, value: Any) -> bool:
        """Return whether a value is a finite number within the bounds."""
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            return False
        number = float(value)
        least, most, above = self.about.at_least, self.about.at_most, self.about.above
        within = (least is None or number >= least) and (most is None or number <= most)
        return within and (above is None or number > above)

    def _range(self) -> str:
        """The bounds of a number, for a message."""
        least, most, above = self.about.at_least, self.about.at_most, self.about.above
        if above is not None:
            return f" above {above:g}" + ("" if most is None else f", {most:,g} at most")
        if least is None:
            return ""
        return f" from {least:g} on" if most is None else f" from {least:g} to {most:,g}"


def described(kind: type[Options]) -> tuple[Declared, ...]:
    """The options of a dataclass: its positional ones, its other ones, and those that it inherits."""
    if kind not in _DESCRIBED:
        homes = list(kind.__mro__)
        declared = [_declared(kind, x) for x in fields(kind) if "about" in x.metadata]
        _DESCRIBED[kind] = tuple(
            sorted(
                declared, key=lambda option: (not option.positional, homes.index(_home(kind, option.name)))
            )
        )
    return _DESCRIBED[kind]


_DESCRIBED: dict[type[Options], tuple[Declared, ...]] = {}


def _declared(kind: type[Options], of: Field[Any]) -> Declared:
    text: About = of.metadata["about"]
    evaluated = _evaluated(kind, of) if text.command is SAME else text.command
    return Declared(of.name, of.default, text, _without_none(evaluated), not of.kw_only)


def _home(kind: type, name: str) -> type:
    """The class that declares a field."""
    return next(cls for cls in kind.__mro__ if name in vars(cls).get("__annotations__", {}))


def _evaluated(kind: type, of: Field[Any]) -> Any:
    """The type of a field, by the names of the module whose class declares it."""
    return eval(str(of.type), vars(sys.modules[_home(kind, of.name).__module__]))


def _without_none(kind: Any) -> Any:
    """The type of a value that is there.

    >>> _without_none(int | None), _without_none(Literal["a"])
    (<class 'int'>, typing.Literal['a'])
    """
    if get_origin(kind) in (Union, UnionType):
        kinds = [part for part in get_args(kind) if part is not NoneType]
        return kinds[0] if len(kinds) == 1 else kind
    return kind


def takes(kind: Callable[P, T]) -> Callable[[Callable[[S, T], R]], Callable[Concatenate[S, P], R]]:
    """Make a function of (something, options) one that takes the options as keywords.

    Signature and docstring get the options' names, defaults and help.
    """

    def decorate(function: Callable[[S, T], R]) -> Callable[Concatenate[S, P], R]:
        made: Callable[Concatenate[S, P], R] = _with_keywords(function, kind)
        return made

    return decorate


def takes_all(kind: Callable[P, T]) -> Callable[[Callable[[T], R]], Callable[P, R]]:
    """Make a function of options one that takes them as arguments; as :func:`takes`."""

    def decorate(function: Callable[[T], R]) -> Callable[P, R]:
        made: Callable[P, R] = _with_keywords(function, kind)
        return made

    return decorate


def _with_keywords(function: Callable[..., Any], kind: Any) -> Any:
    """The function that makes the options from its keywords."""
    first = list(inspect.signature(function).parameters.values())[:-1]
    parameters = inspect.signature(kind).parameters
    declared = {option.name: parameters[option.name] for option in described(kind)}
    signature = inspect.Signature(
        [*first, *declared.values()], return_annotation=inspect.signature(function).return_annotation
    )

    @wraps(function)
    def wrapper(*args: Any, **keywords: Any) -> Any:
        _check_names(function.__name__, keywords, signature)
        bound = signature.bind(*args, **keywords).arguments
        options = kind(**{name: value for name, value in bound.items() if name in declared})
        object.__setattr__(options, "given", frozenset(bound) & frozenset(declared))
        return function(*(bound[x.name] for x in first), options)

    del wrapper.__wrapped__  # so that tools show the keywords, not the function of options
    wrapper.__signature__ = signature  # type: ignore[attr-defined]
    wrapper.__doc__ = with_arguments(inspect.getdoc(function) or "", kind)
    return wrapper


def _check_names(function: str, keywords: dict[str, Any], signature: inspect.Signature) -> None:
    """Refuse an unknown keyword as Python does, naming the option that may have been meant."""
    for name in keywords:
        if name not in signature.parameters:
            alike = get_close_matches(name, signature.parameters, 1, 0.6)
            meant = f"; did you mean '{alike[0]}'?" if alike else ""
            raise TypeError(f"{function}() got an unexpected keyword argument '{name}'{meant}")


def with_arguments(docstring: str, kind: type[Options]) -> str:
    """A docstring with the help of options among its arguments."""
    lines = docstring.splitlines()
    sections = ("Args:", "Returns:", "Raises:", "Example:")
    heads = {line: n for n, line in enumerate(lines) if line in sections}
    rows = list(_argument_lines(kind))
    if "Args:" in heads:
        later = [n for n in heads.values() if n > heads["Args:"]]
        at = min(later) - 1 if later else len(lines)
        return "\n".join([*lines[:at], *rows, *lines[at:]])
    at = min(heads.values(), default=len(lines))
    before = [] if at < len(lines) else [""]
    after = [""] if at < len(lines) else []
    return "\n".join([*lines[:at], *before, "Args:", *rows, *after, *lines[at:]])


def _argument_lines(kind: type[Options]) -> Iterator[str]:
    for option in described(kind):
        text = " ".join(filter(None, (option.about.help, option.about.python)))
        yield from textwrap.wrap(
            f"{option.name}: {_in_python(text)}", 100, initial_indent=" " * 4, subsequent_indent=" " * 8
        )


def _in_python(text: str) -> str:
    """Help with options by their Python names, but not within commands.

    >>> _in_python("With --max-triples; see `kgmlm tune --add kge`.")
    'With `max_triples`; see `kgmlm tune --add kge`.'
    """
    parts = text.split("`")
    parts[::2] = [
        re.sub(r"(?<![\w-])--([a-z][a-z-]*)", lambda named: f"`{named[1].replace('-', '_')}`", part)
        for part in parts[::2]
    ]
    return "`".join(parts)


_PROGRESS = "Show progress bars on stderr; or a function to call with (task, number just done, total)."


@dataclass(frozen=True, kw_only=True)
class ProgressOptions(Options):
    """How progress is shown."""

    progress: bool | Watcher | Advance = option(True, _PROGRESS, command=None)


@dataclass(frozen=True, kw_only=True)
class QuietOptions(ProgressOptions):
    """Options of what takes seconds, which shows no bars unless it is asked to."""

    progress: bool | Watcher | Advance = option(False, _PROGRESS, command=None)
