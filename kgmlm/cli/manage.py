"""The other commands: ``config``, ``info``, ``serve``, ``report``, ``feedback``, ``pack``, ``push``."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from kgmlm.cli.common import FolderArgument, Json, Quiet, RunArgument, command
from kgmlm.cli.printing import print_json, print_lines, tell
from kgmlm.cli.train import print_update
from kgmlm.core.options import described
from kgmlm.reporting.options import ReportOptions
from kgmlm.runs.options import RankingOptions
from kgmlm.serving.options import ServeOptions
from kgmlm.sharing.options import PackOptions, PushOptions
from kgmlm.training.options import FeedbackOptions

if TYPE_CHECKING:
    from pydantic import BaseModel

BOUNDS = {"minimum": "at least", "exclusiveMinimum": "more than", "maximum": "at most",
          "exclusiveMaximum": "less than"}  # fmt: skip
KINDS = {"integer": "an integer", "number": "a number", "boolean": "true or false", "string": "a string"}
HEADER = """\
# The settings of kgmlm, with their defaults. Keep the lines that you change in a file and pass it with
# --config FILE, or change one setting with --set, such as --set training.epochs=5."""


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
        """The allowed values, such as "a number, at least 0, less than 1"."""
        kinds = self.schema.get("anyOf", [self.schema])
        return " or ".join(_values(kind) for kind in kinds if kind["type"] != "null")


def _values(schema: dict[str, Any]) -> str:
    """The allowed values of a setting of one type."""
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
        """The settings of a model of the settings, in its order."""
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
        lines = [f"### {self.name or 'Evaluation protocol'}", "", self.meaning, ""]
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


@command()
def config(
    protocol: Annotated[bool, typer.Option("--protocol", help="The settings of an evaluation.")] = False,
    as_json: Json = False,
) -> None:
    """Print every setting with its meaning and default, as a TOML file for `--config`.

    With --protocol, the settings of an evaluation, as a file for `evaluate --protocol`.
    """
    from kgmlm.core.config import Protocol, Settings

    sections = (
        [Section.of("", Protocol)]
        if protocol
        else [Section.of(name, type(part)) for name, part in Settings()]
    )
    if as_json:
        print_json(dict(pair for section in sections for pair in section.as_json()))
    else:
        print("\n\n".join([*([] if protocol else [HEADER]), *(section.as_toml() for section in sections)]))


@command(ServeOptions, RankingOptions)
def serve(run: RunArgument, quiet: Quiet = False, **given: Any) -> None:
    """Serve a run as a JSON API until Ctrl-C or SIGTERM: /rank, /explain, /classify, /entities and more.

    /docs describes the API. Queries that arrive at the same time share forward passes.
    """
    if not quiet:
        tell(f"opening {run} ...")  # before what takes a second is imported
    from kgmlm.core.progress import Bars
    from kgmlm.runs.run import open_run
    from kgmlm.serving.serve import serve as job

    ranking = {x.name: given[x.name] for x in described(RankingOptions)}
    job(
        open_run(run, **ranking),
        progress=Bars(quiet),
        ready=lambda url: tell(f"{run} is served at {url}; {url}/docs describes the API; Ctrl-C stops it"),
        **{name: value for name, value in given.items() if name not in ranking},
    )


@command(PackOptions)
def pack(run: RunArgument, quiet: Quiet = False, **given: Any) -> None:
    """Pack a run into one file, with int8 weights, that every command opens like the run.

    A run's own probabilities are left out, since rounded weights score a little differently.
    """
    from kgmlm.core.progress import Bars
    from kgmlm.sharing.pack import pack as job

    made = job(run, progress=Bars(quiet), **given)
    print(f"{made}: {made.stat().st_size / 2**20:.1f} MiB")


@command()
def unpack(
    pack: Annotated[Path, typer.Argument(help="A file that `kgmlm pack` wrote.", show_default=False)],
    output: Annotated[Path, typer.Option(help="The run folder to write.", show_default=False)],
) -> None:
    """Make a run folder from a pack, so that it can be tuned or trained further."""
    from kgmlm.sharing.pack import unpack as job

    print(job(pack, output).path)


@command(PushOptions)
def push(run: RunArgument, as_json: Json = False, quiet: Quiet = False, **given: Any) -> None:
    """Push a run to a Hugging Face Hub: its pack, its masked LM for transformers, and a model card.

    Every command that reads a run then takes hf://USER/NAME, or hf://USER/NAME@REVISION. The access token is
    read from HF_TOKEN, or from where `hf auth login` keeps it; HF_ENDPOINT names another Hub.
    """
    from kgmlm.core.progress import Bars
    from kgmlm.sharing.push import push as job

    done = job(run, progress=Bars(quiet), **given)
    if as_json:
        print_json(done)
    else:
        print(f"{done['url']}: {done['bytes'] / 2**20:.1f} MiB; {done['name']} opens this version")


@command(ReportOptions)
def report(run: RunArgument, quiet: Quiet = False, **given: Any) -> None:
    """Write a report of a run as one HTML file: curves, metrics, calibration, weights, questions, audit."""
    from kgmlm.core.progress import Bars
    from kgmlm.reporting.report import report as job

    made = job(run, progress=Bars(quiet), **given)
    print(f"the report is in {made} ({made.stat().st_size / 1000:,.0f} kB); open it in a browser")


@command(FeedbackOptions)
def feedback(
    run: FolderArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            help="The TSV or Parquet file to write; with --apply, the folder of the updated run.",
            show_default=False,
        ),
    ] = None,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply",
            help="Update the run: accepted triples become training triples, rejected ones known negatives.",
        ),
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    **given: Any,
) -> None:
    """Write or apply the answers that were accepted (1) and rejected (0) in the page of `kgmlm serve`.

    The file has head, relation, tail and that label; `kgmlm classify` and datasets can read it.
    """
    from kgmlm.core.errors import ConfigError, counted
    from kgmlm.runs.feedback import feedback as job

    if apply:
        from kgmlm.core.progress import Bars
        from kgmlm.training.update import apply_feedback

        update = apply_feedback(run, output=output, progress=Bars(quiet), **given)
        if not as_json:
            back = f", {update['taken_back']:,} taken back" if update["taken_back"] else ""
            print(f"judgments: {update['accepted']:,} accepted, {update['rejected']:,} rejected{back}")
            if update["passed"]:
                tell(
                    f"{counted(update['passed'], 'judgment')} skipped: the graph lacks an entity or relation"
                )
        print_update(update, as_json)
        return
    if output is None:
        raise ConfigError("--output names the file to write; or --apply updates the run")
    done = job(run, output)
    if done["damaged"]:
        tell(f"{counted(done['damaged'], 'line')} of {run / 'feedback.jsonl'} cannot be read")
    if as_json:
        print_json(done)
    else:
        print(f"{output}: {done['accepted']:,} accepted, {done['rejected']:,} rejected")


@command()
def info(run: RunArgument, as_json: Json = False) -> None:
    """Describe a run: graph, model, signals and their weights, training, last metrics, size."""
    from kgmlm.sharing.info import info as job

    described = job(run)
    if as_json:
        print_json(described.as_json())
    else:
        print_lines(described.lines())


@command()
def onnx(run: FolderArgument) -> None:
    """Prepare a run for ONNX Runtime, so that it ranks and is served without torch, and starts faster.

    This writes the model's structure, not its weights, if torch and ONNX Runtime give the same scores.
    """
    from kgmlm.runs.onnx import onnx as job

    made = job(run)
    print(f"{made}: {made.stat().st_size / 2**10:.0f} KiB")
