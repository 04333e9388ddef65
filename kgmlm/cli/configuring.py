"""``kgmlm config``: every setting with its meaning and default, from the descriptions in ``kgmlm.config``."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from kgmlm.cli.options import Json
from kgmlm.terminal import handled, print_json

if TYPE_CHECKING:
    from pydantic import BaseModel

BOUNDS = {"minimum": "at least", "exclusiveMinimum": "more than", "maximum": "at most",
          "exclusiveMaximum": "less than"}  # fmt: skip
KINDS = {"integer": "an integer", "number": "a number", "boolean": "true or false", "string": "a string"}
HEADER = """\
# The settings of kgmlm, with their defaults. Keep the lines that you change in a file and pass it with
# --config FILE, or change one setting with --set, such as --set training.epochs=5."""
PAGE = """\
# Settings

<!-- written by: kgmlm config --markdown > docs/settings.md -->

To change a setting, keep it in a TOML file (`kgmlm train --config FILE`) or pass it by itself
(`--set training.epochs=5`). An unknown key is an error. `kgmlm config` prints these settings as TOML, with
the meanings as comments (`--protocol`: those of the last section); `--json` prints them for programs. The
[guide](guide.md#settings) says which settings to try first. A run keeps all of its settings in `config.toml`.
"""


class Setting(NamedTuple):
    """One setting.

    Attributes:
        default: as JSON has it; None where it is not set.
        schema: its JSON schema: description, type, bounds, choices.
    """

    name: str
    default: Any
    schema: dict[str, Any]

    @property
    def meaning(self) -> str:
        """The description."""
        return str(self.schema["description"])

    @property
    def value(self) -> str:
        """The default as TOML; nothing where it is not set. Strings, numbers and lists are those of JSON."""
        return "" if self.default is None else json.dumps(self.default)

    @property
    def values(self) -> str:
        """What it may be, such as "a number, at least 0, less than 1"."""
        kinds = self.schema.get("anyOf", [self.schema])
        return " or ".join(_values(kind) for kind in kinds if kind["type"] != "null")


def _values(schema: dict[str, Any]) -> str:
    """What a setting of one type may be."""
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return ", ".join(map(json.dumps, schema["enum"]))
    if schema["type"] == "array":
        return "a list of strings"
    bounds = (f"{word} {schema[key]:,}" for key, word in BOUNDS.items() if key in schema)
    return ", ".join([KINDS[schema["type"]], *bounds])


class Section(NamedTuple):
    """A table of settings; that of the protocol has no name."""

    name: str
    meaning: str
    settings: tuple[Setting, ...]

    @classmethod
    def of(cls, name: str, kind: type[BaseModel]) -> Section:
        """The settings of a model of ``kgmlm.config``, in its order."""
        defaults = kind().model_dump(mode="json")
        schemas = kind.model_json_schema()["properties"]
        settings = tuple(Setting(x, defaults[x], schemas[x]) for x in kind.model_fields)
        return cls(name, str(kind.__doc__).splitlines()[0], settings)

    def as_toml(self) -> str:
        """Defaults as values, with meanings as comments."""
        lines = [*_comment(self.meaning), *([f"[{self.name}]"] if self.name else [])]
        for setting in self.settings:
            line = f"{setting.name} = {setting.value}" if setting.value else f"# {setting.name} ="
            lines += ["", *_comment(f"{setting.meaning} ({setting.values})"), line]
        return "\n".join(lines)

    def as_markdown(self) -> str:
        """A table for the docs."""
        lines = [f"## {self.name or 'Evaluation protocol'}", "", self.meaning, ""]
        lines += ["| setting | default | values | meaning |", "|---|---|---|---|"]
        for setting in self.settings:
            default = f"`{setting.value}`" if setting.value else "not set"
            lines.append(f"| `{setting.name}` | {default} | {setting.values} | {setting.meaning} |")
        return "\n".join(lines)

    def as_json(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each setting by its dotted name, as JSON schema has it."""
        for setting in self.settings:
            schema = {key: value for key, value in setting.schema.items() if key != "title"}
            name = f"{self.name}.{setting.name}" if self.name else setting.name
            yield name, schema | {"default": setting.default}


def _comment(text: str) -> Iterable[str]:
    return textwrap.wrap(text, 100, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


@handled
def config(
    protocol: Annotated[bool, typer.Option("--protocol", help="The settings of an evaluation.")] = False,
    as_json: Json = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the page of the docs with all settings.")
    ] = False,
) -> None:
    """Print every setting with its meaning and default, as a TOML file for `--config`.

    With --protocol, the settings of an evaluation, as a file for `evaluate --protocol`.
    """
    from kgmlm.config import Protocol, Settings
    from kgmlm.kg import ConfigError

    if as_markdown and (as_json or protocol):
        raise ConfigError("--markdown prints the whole page; it goes without --json and --protocol")
    asking = Section.of("", Protocol)
    sections = [asking] if protocol else [Section.of(name, type(part)) for name, part in Settings()]
    if as_json:
        print_json(dict(pair for section in sections for pair in section.as_json()))
    elif as_markdown:
        print("\n\n".join([PAGE.rstrip(), *(section.as_markdown() for section in [*sections, asking])]))
    else:
        print("\n\n".join([*([] if protocol else [HEADER]), *(section.as_toml() for section in sections)]))
