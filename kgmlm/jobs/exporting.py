"""Write a list of new triples for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kgmlm.exporting import BASE, FOLDER, format_for, write_export
from kgmlm.files import as_path
from kgmlm.kg import ConfigError, DataError
from kgmlm.listing import read_list
from kgmlm.processes import check_main_guard
from kgmlm.upkeep import check_result


def export(
    triples: str | Path,
    output: str | Path,
    *,
    format: str | None = None,
    min_probability: float = 0.0,
    base: str = BASE,
    spreadsheet: bool = False,
) -> dict[str, Any]:
    """Write a list that ``complete`` made as N-Triples, RDF-star, TriG, CSV, JSON Lines, or files for Neo4j.

    Args:
        triples: the Parquet file.
        output: the file to write; of neo4j a folder.
        format: ntriples, rdf-star, trig, csv, jsonl or neo4j; None goes by the file's name.
        min_probability: leave out triples below it.
        base: prefix of labels that are no IRIs.
        spreadsheet: CSV for a spreadsheet, which would take texts that begin with =, +, - or @ for formulas:
            these begin with an apostrophe.

    Returns:
        What was written: ``output``, ``format``, ``triples``.

    Raises:
        DataError: when there is no such list.
        ConfigError: when there is no such format, or no such probability.
    """
    import pyarrow.compute as pc

    check_main_guard()
    if not 0 <= min_probability <= 1:
        raise ConfigError(f"a probability is from 0 to 1, not {min_probability}")
    target, source = as_path(output, "the output"), as_path(triples, "the list that `complete` wrote")
    if target.resolve() == source.resolve():
        raise DataError(f"{target} is the list itself; choose another --output")
    chosen = format_for(target, format)
    if chosen != FOLDER:
        check_result(target)
    table, _ = read_list(source)
    table = table.filter(pc.greater_equal(table.column("probability"), min_probability))
    write_export(table, target, chosen, base, spreadsheet=spreadsheet)
    return {"output": str(target), "format": chosen, "triples": len(table)}
