"""Make a dataset folder of RDF files or of a Wikidata dump."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kgmlm import files
from kgmlm.cards import folder_card, write_card
from kgmlm.datasets import read_folder, write_splits
from kgmlm.files import as_path
from kgmlm.importing import Importer
from kgmlm.kg import ConfigError, DataError, check_numbers
from kgmlm.processes import check_main_guard
from kgmlm.splits import describe_split, split_notes, split_random
from kgmlm.statements import READERS, format_of, read_statements
from kgmlm.watching import Advance, Watcher, watcher_of


def import_graph(
    inputs: Sequence[str | Path] | str | Path,
    output: str | Path,
    *,
    format: str | None = None,
    language: str | Sequence[str] = "en",
    base: str | None = None,
    split: bool = False,
    seed: int = 0,
    progress: bool | Watcher | Advance = True,
) -> dict[str, Any]:
    """Make a dataset folder of RDF files or of a Wikidata JSON dump.

    RDF is N-Triples, N-Quads, Turtle, TriG or RDF/XML. Labels are IRIs, or Wikidata's ids. Names are
    ``rdfs:label``, ``skos:prefLabel`` or ``schema:name``, descriptions ``schema:description`` or
    ``rdfs:comment``; an entity without a name is called by the last part of its IRI. Other literals, entities
    that no triple has and the names of graphs are left out, and triples that are there again count once.
    Texts are kept in memory, triples on disk.

    Args:
        inputs: files, read as one graph; ``.gz`` and ``.bz2`` are unpacked.
        output: the folder to write; it is there whole or not at all.
        format: of all files: ntriples, nquads, turtle, trig, rdfxml or wikidata; None goes by their names.
        language: of names and descriptions, such as "en"; of several the first that an entity has.
        base: what relative IRIs are relative to.
        split: also draw a tenth of the triples each for validation and test, with all triples in memory.

    Returns:
        What was read and what was left out: counts.

    Raises:
        DataError: when a file is cut off, damaged or of another format, or no triple is found.
        ConfigError: when there is no such format.

    Example:
        >>> kgmlm.import_graph("dump.nt.gz", "mygraph", split=True)  # doctest: +SKIP
    """
    check_main_guard()
    check_numbers(seed=(seed, 0))
    several = list(inputs) if isinstance(inputs, Iterable) and not isinstance(inputs, str) else [inputs]
    paths = [as_path(path, "an input") for path in several]
    if not paths:
        raise DataError("name at least one file to import")
    if format is not None and format not in READERS:
        raise ConfigError(f"there is no format '{format}' (there are: {', '.join(READERS)})")
    for path in paths:
        if not path.exists() or path.is_dir():
            raise DataError(f"there is no file {path}")
        format or format_of(path)
    target = as_path(output, "the output")
    files.check_new_folder(target)
    total = sum(path.stat().st_size for path in paths)  # 0 of a pipe
    with watcher_of(progress) as watch, files.new_folder(target) as folder:
        importer = Importer(folder, [language] if isinstance(language, str) else language)
        tell = partial(_bytes, watch, total)
        for path in paths:
            read_statements(path, importer, format, base, tell)
        names = ", ".join(path.name for path in paths)
        report = importer.write((target.resolve().name, f"Imported by kgmlm from {names}."))
        if split:
            graph = split_random(read_folder(folder), seed=seed)
            how = f"split at random with seed {seed}"
            card, counts = folder_card(folder), describe_split(graph, graph.name, how).counts
            assert card is not None
            for path in list(folder.glob("train.*")):
                path.unlink()
            write_splits(graph, folder)
            title = f"{card.title}, {how}"
            write_card(card.model_copy(update={"title": title, "counts": counts}), folder)
            for message in split_notes(graph, [s for s in graph.splits if s != "train"], {"valid": None}):
                watch.tell(message)
            report["splits"] = {name: len(triples) for name, triples in graph.splits.items()}
    return report


def _bytes(watch: Watcher, total: int, n: int) -> None:
    """Tell that n more bytes are read, of a number that is known."""
    if total:
        watch("reading bytes", n, total)
