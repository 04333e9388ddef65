"""The command ``kgmlm``: thin typer commands that parse, call the library and print.

Heavy imports live inside the commands. Results go to stdout, everything else to stderr. A mistake of the
user's is one sentence and exit code 2.
"""

from __future__ import annotations

from typing import Annotated

import typer

from kgmlm.cli.data import data_app, data_import
from kgmlm.cli.manage import config, feedback, info, onnx, pack, report, serve, unpack
from kgmlm.cli.predict import calibrate, classify, complete, export
from kgmlm.cli.rank import compare, evaluate, linearize, rank, rules
from kgmlm.cli.train import index, rerank, train, tune

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
