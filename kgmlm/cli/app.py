"""The command ``kgmlm``: thin typer commands that parse, call the library and print.

Heavy imports live inside the commands. Results go to stdout, everything else to stderr. A mistake of the
user's is one sentence and exit code 2.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from kgmlm.cli.data import data_app, data_import
from kgmlm.cli.manage import config, feedback, info, onnx, pack, push, report, serve, unpack
from kgmlm.cli.predict import calibrate, classify, complete, export
from kgmlm.cli.rank import compare, embeddings, evaluate, linearize, rank, rules, similar
from kgmlm.cli.train import index, train, tune, update

GROUPS: dict[str, dict[Callable[..., None], str]] = {
    "Make": {
        train: "Train a run on a graph",
        tune: "Fit the weights of signals; add or drop a signal",
        update: "Update a run with new triples and entities",
        calibrate: "Fit probabilities on validation",
        index: "Index entity vectors, to score only a shortlist",
    },
    "Ask": {
        rank: "Rank the entities that complete a triple",
        complete: "List the triples that the graph lacks",
        classify: "Give the probabilities of your own triples",
    },
    "Look": {
        info: "Show a run on one screen",
        evaluate: "Report MRR and Hits@k on a split",
        compare: "Compare two runs: is the difference more than chance?",
        report: "Write a report of a run as one HTML file",
        rules: "Show the rules that a run has mined",
        similar: "List the entities most similar to one",
        linearize: "Print the text that the model reads for a query",
    },
    "Share": {
        serve: "Serve a run as an API and as pages in a browser",
        feedback: "Write or apply the answers that people accepted and rejected",
        export: "Write a list of new triples as RDF, CSV or for Neo4j",
        embeddings: "Write entities as vectors",
        pack: "Pack a run into one file",
        unpack: "Make a run folder from a pack",
        push: "Push a run to a Hugging Face Hub",
        onnx: "Prepare a run for ONNX Runtime",
    },
}
DATA = "List, prepare, check, show, split and import datasets"


class Grouped(TyperGroup):
    """Lists the commands in groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the groups of `kgmlm --help`."""
        width = max(map(len, self.commands))
        groups = {name: {c.__name__: text for c, text in of.items()} for name, of in GROUPS.items()}
        for name, of in (groups | {"Data": {"data": DATA, "config": "Print all settings"}}).items():
            with formatter.section(name):
                formatter.write_dl([(f"{command:<{width}}", text) for command, text in of.items()])

    def invoke(self, ctx: Any) -> Any:
        """Run a command; what it refuses, it refuses in plain words."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = _plain(error.message)
            raise


def _plain(message: str) -> str:
    """A message about a refused value, without Pydantic's prefix, and with the closest choice.

    >>> _plain("Value error, 'quik' is not one of 'quick', 'best'.")
    "'quik' is not one of 'quick', 'best'; did you mean 'quick'?"
    """
    message = message.removeprefix("Value error, ")
    if refused := re.fullmatch(r"'(.*)' is not one of (.*)\.", message):
        value, choices = refused.groups()
        alike = get_close_matches(value, re.findall("'(.*?)'", choices), 1, 0.6)
        message = message.removesuffix(".") + (f"; did you mean '{alike[0]}'?" if alike else "")
    return message


app = typer.Typer(
    cls=Grouped,
    help="Link prediction on knowledge graphs with masked language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app.command("import")(data_import)
for group in GROUPS.values():
    for command in group:
        app.command()(command)
app.command()(config)
app.add_typer(data_app, name="data")


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Link prediction on knowledge graphs with masked language models."""
    if version:
        from kgmlm import __version__

        print(f"kgmlm {__version__}")
        raise typer.Exit
