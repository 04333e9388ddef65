"""The error tree, and the checks and sentences that errors are made of.

Errors that a user can cause and fix (each is one sentence; the CLI exits with code 2)::

    KgmlmError
    ├── DataError       a file, a card or a graph is not as it must be
    ├── ConfigError     a setting is unknown, or its value is not allowed
    ├── ModelError      a model or a tokenizer cannot be used
    ├── RunError        a run folder is missing, incomplete or in the way
    │   ├── NoRulesError          a graph, or a file, has no rules
    │   └── NoProbabilitiesError  none are fitted to the run as it is now, or none can be
    └── QueryError      an entity or a relation is unknown or ambiguous
"""

from __future__ import annotations

import shlex
from numbers import Integral
from typing import Any

LONGEST = 1000  # characters of a sentence


def printable(text: str) -> str:
    """Escape characters that are not printable, such as a line break or a terminal's colors.

    >>> print(printable("\\x1b[31mred"))
    \\x1b[31mred
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def readable(message: str) -> str:
    """One line of what can be read, whatever a file or an argument has put into it; its end is kept."""
    message = printable(message)
    half = LONGEST // 2
    return message if len(message) <= LONGEST else f"{message[:half]}…{message[-half:]}"


def first_line(error: BaseException) -> str:
    """The first line of what another library says of an error, or the error's name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class KgmlmError(Exception):
    """The root of every error that a user can cause and mend; its message is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(readable(message))


class DataError(KgmlmError):
    """A file, a dataset card or a graph is not as it must be."""


class ConfigError(KgmlmError):
    """A setting is unknown or has a value that is not allowed."""


class ModelError(KgmlmError):
    """A model or a tokenizer cannot be loaded or used."""


class RunError(KgmlmError):
    """A run folder is missing, incomplete, or in the way."""


class NoRulesError(RunError):
    """A graph, or a file, has no rules."""


class NoProbabilitiesError(RunError):
    """No probabilities are fitted to what a run is now, or validation has too few triples to fit any."""


class QueryError(KgmlmError):
    """A query names an entity or a relation that is unknown or ambiguous."""


def check_whole(what: str, value: Any, least: int) -> None:
    """Refuse anything but a whole number of at least ``least``.

    Raises:
        ConfigError: naming it.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ConfigError(f"{what} is a whole number from {least} on, not {value!r:.80}")


def check_numbers(**given: tuple[int | None, int]) -> None:
    """Refuse the numbers that the command line refuses.

    Args:
        given: each with the least that it may be, by its argument's name; None was not given.

    Raises:
        ConfigError: naming the first by its option.
    """
    for name, (value, least) in given.items():
        if value is not None:
            check_whole(f"--{name.replace('_', '-')}", value, least)


def quoted(path: object) -> str:
    """A path for a command in a message: quoted where a shell would split it.

    >>> quoted("runs/my graph"), quoted("runs/mine")
    ("'runs/my graph'", 'runs/mine')
    """
    return shlex.quote(str(path))


def counted(count: int, noun: str) -> str:
    """A number with its noun, for sentences.

    >>> counted(1, "name"), counted(2000, "entity")
    ('1 name', '2,000 entities')
    """
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun.removesuffix('y')}ies" if noun.endswith("y") else f"{count:,} {noun}s"
