"""``kgmlm rules``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kgmlm.cli.options import MOST, Json, RunArgument
from kgmlm.terminal import handled, print_json, print_table, tell


@handled
def rules(
    run: RunArgument,
    relation: Annotated[
        str | None, typer.Option(help="Only rules that predict this relation; a label or a name.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, max=MOST, help="How many are shown, best first.")] = 20,
    output: Annotated[
        Path | None, typer.Option(help="Write all of them there, in AnyBURL's format (tab-separated).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the rules that a run has mined (`kgmlm tune RUN --add rules`), the most confident first."""
    from kgmlm.rules import as_rows
    from kgmlm.run import open_run
    from kgmlm.tables import write_tsv
    from kgmlm.upkeep import check_result

    if output is not None:
        check_result(output)
    found = open_run(run).rules(relation)
    if output is not None:
        write_tsv(output, as_rows(found))
        tell(f"{len(found):,} rules written to {output}")
    elif as_json:
        print_json(found.head(k).to_dict("records"))
    else:
        title = f"the {min(k, len(found)):,} most confident of {len(found):,} rules"
        print_table(title, found.head(k).assign(confidence=found["confidence"].map("{:.3f}".format)))
