"""Write `docs/reference.md`: every option and every setting, from where each is declared.

python docs/reference.py > docs/reference.md
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

import typer

from kgmlm.cli.app import GROUPS
from kgmlm.cli.data import data_check, data_import, data_list, data_prepare, data_show, data_split
from kgmlm.cli.manage import Section, config
from kgmlm.core.config import Protocol, Settings
from kgmlm.core.options import Declared, Options, described

HEAD = """\
# Reference

<!-- written by: python docs/reference.py > docs/reference.md -->

Every [option](#commands) of every command and every [setting](#settings). An option is a keyword of the
Python function of the same name, with `_` for `-`, unless the table says otherwise; the command's `--help`
and `help(kgmlm.evaluate)` show them, too. [Words, environment variables, extras, files](words.md) have a page
of their own.
"""
SETTINGS = """\
## Settings

A setting decides what a run becomes. Keep those that you change in a TOML file (`kgmlm train --config FILE`)
or pass one by itself (`--set training.epochs=5`; in Python `settings={"training.epochs": 5}`). An unknown key
is an error. `kgmlm config` prints all of them as TOML, `--json` for programs. A run keeps its settings in
`config.toml`, with reasons for those that a preset chose.
"""
DATASETS: tuple[Callable[..., None], ...] = (
    data_list, data_prepare, data_check, data_show, data_split, data_import,
)  # fmt: skip


def kinds_of(command: Callable[..., None]) -> tuple[type[Options], ...]:
    """The dataclasses of a command's options."""
    kinds: tuple[type[Options], ...] = getattr(command, "options", ())
    return kinds


def shared() -> list[type[Options]]:
    """The dataclasses whose options several commands have, in the order of their first use."""
    users: dict[type[Options], set[str]] = {}
    for command in commands():
        for kind in kinds_of(command):
            for part in parts_of(kind):
                users.setdefault(part, set()).add(command.__name__)
    return [part for part, names in users.items() if len(names) > 1]


def commands() -> Iterator[Callable[..., None]]:
    """All commands, in the order of `kgmlm --help`."""
    for group in GROUPS.values():
        yield from group
    yield from DATASETS
    yield config


def parts_of(kind: type[Options]) -> list[type[Options]]:
    """A dataclass of options and those that it inherits, each with options of its own."""
    return [part for part in kind.__mro__ if issubclass(part, Options) and own(part)]


def own(kind: type[Options]) -> list[Declared]:
    """The options for the command line that a dataclass declares itself."""
    names = vars(kind).get("__annotations__", {})
    return [x for x in described(kind) if x.name in names and x.about.command is not None]


def named(option: Declared) -> str:
    """An option as it is given, with its keyword where that has another name."""
    if option.about.is_argument:
        return f"`{option.about.metavar or option.name.upper()}`"
    flag = option.flag
    names = ", ".join(f"`{name}`" for name in option.about.names) or f"`{flag}`"
    if option.default is True:
        names = f"{names}, `--no-{flag.removeprefix('--')}`"
    keyword = flag.removeprefix("--").replace("-", "_")
    renamed = option.about.names and option.about.names[0] != "-k" and keyword != option.name
    return f"{names} (`{option.name}`)" if renamed else names


def default(option: Declared) -> str:
    """A default that says something."""
    value = option.default
    if isinstance(value, bool):
        return "on" if value else ""
    return f"`{value}`" if value != "" and isinstance(value, int | float | str) else ""


def table(options: list[Declared]) -> str:
    """A table of options."""
    rows = [f"| {named(x)} | {default(x)} | {x.about.help} |".replace("|  |", "| |") for x in options]
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *rows])


def printing(command: Callable[..., None]) -> str:
    """The options of a command that are about what it prints, and others that Python has not."""
    declared = {x.name for kind in kinds_of(command) for x in described(kind)}
    rows = []
    for parameter in inspect.signature(command).parameters.values():
        made = parameter.annotation.__metadata__[0]
        if parameter.name == "quiet" or parameter.name in declared:
            continue
        names = [name for name in (made.default, *(made.param_decls or ())) if str(name).startswith("-")]
        is_argument = isinstance(made, typer.models.ArgumentInfo)
        name = (
            parameter.name.upper() if is_argument else (names or [f"--{parameter.name.replace('_', '-')}"])[0]
        )
        rows.append(f"`{name}`: {made.help}")
    return " ".join(rows)


def section(command: Callable[..., None], groups: list[type[Options]]) -> str:
    """The section of a command."""
    name = command.__name__.replace("_", " ")
    parts = [part for kind in kinds_of(command) for part in parts_of(kind)]
    alone = [option for part in parts if part not in groups for option in own(part)]
    seen = {option.name: option for option in alone}
    lines = [f"### kgmlm {name}", "", inspect.getdoc(command) or ""]
    if seen:
        lines += ["", table(list(seen.values()))]
    if further := printing(command):
        lines += ["", further]
    if also := list(dict.fromkeys(part for part in parts if part in groups)):
        lines += ["", "Also: " + ", ".join(f"[{title(part)}](#{anchor(part)})" for part in also) + "."]
    return "\n".join(lines)


def title(kind: type[Options]) -> str:
    """The title of shared options, such as "Batch options"."""
    return f"{kind.__name__.removesuffix('Options')} options"


def anchor(kind: type[Options]) -> str:
    """Where that title is."""
    return title(kind).lower().replace(" ", "-")


def page() -> Iterator[str]:
    """The page, in parts."""
    groups = shared()
    yield HEAD + "\n## Commands"
    for of in (*GROUPS.values(), DATASETS):
        yield from (section(command, groups) for command in of)
    yield section(config, groups)
    yield "## Options of several commands"
    for kind in groups:
        yield f"### {title(kind)}\n\n{inspect.getdoc(kind)}\n\n{table(own(kind))}"
    yield SETTINGS.rstrip()
    for name, part in Settings():
        yield Section.of(name, type(part)).as_markdown()
    yield Section.of("", Protocol).as_markdown()


if __name__ == "__main__":
    print("\n\n".join(page()).rstrip().replace("\n\n\n", "\n\n"))
