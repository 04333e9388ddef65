"""The command ``kgmlm``: thin typer commands that parse, call the library and print.

Heavy imports live inside the commands. Results go to stdout, everything else to stderr. A mistake of the
user's is one sentence and exit code 2.
"""

from __future__ import annotations

from typing import Annotated

import typer

from kgmlm.cli.classifying import calibrate, classify
from kgmlm.cli.completing import complete, export
from kgmlm.cli.configuring import config
from kgmlm.cli.data import data_app
from kgmlm.cli.evaluating import compare, evaluate
from kgmlm.cli.feedback import feedback
from kgmlm.cli.importing import data_import
from kgmlm.cli.indexing import index
from kgmlm.cli.information import info
from kgmlm.cli.onnx import onnx
from kgmlm.cli.packing import pack, unpack
from kgmlm.cli.ranking import linearize, rank
from kgmlm.cli.reporting import report
from kgmlm.cli.rules import rules
from kgmlm.cli.serving import serve
from kgmlm.cli.training import train
from kgmlm.cli.tuning import rerank, tune

app = typer.Typer(
    help="Link prediction on knowledge graphs with masked language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app.command("import")(data_import)
app.add_typer(data_app, name="data")
for command in (
    train,
    evaluate,
    rank,
    classify,
    rerank,
    tune,
    calibrate,
    index,
    info,
    compare,
    report,
    linearize,
    rules,
    complete,
    export,
    serve,
    feedback,
    config,
    pack,
    unpack,
    onnx,
):
    app.command()(command)  # in the order of `kgmlm --help`


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Link prediction on knowledge graphs with masked language models."""
    if version:
        from kgmlm import __version__

        print(f"kgmlm {__version__}")
        raise typer.Exit


def run_app() -> None:
    """The entry point of the ``kgmlm`` command."""
    app()
