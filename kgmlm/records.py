"""What a run folder says of itself: ``run.json``, ``config.toml`` and ``graph/``, written and strictly read.

All may have been edited by hand, cut short or damaged: what cannot be right is one sentence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from kgmlm import digests, files
from kgmlm.config import Settings, Stage, load_settings
from kgmlm.digests import RESTORE
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import TEXT_COLUMNS, TYPES, DataError, EntityTable, IntArray, RelationTable, RunError

FORMAT = 2
IDS = ("head", "relation", "tail")
NEGATIVES = "negatives.parquet"  # triples that are known to be false, where a graph has some
_ALWAYS = ("text", "scoring", "training")  # sections that every version has written


def _increasing(values: list[int]) -> list[int]:
    if any(a >= b for a, b in pairwise(values)):
        raise ValueError("they must increase")
    return values


class _Known(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class BeganFrom(_Known):
    """A run that another began from."""

    model: str
    dataset: str | None = None
    command: str | None = None
    began_from: BeganFrom | None = None


class RecipeRecord(_Known):
    """In which stages a run is trained."""

    preset: str
    stages: list[Stage]
    reranker_epochs: float = Field(gt=0)


class ShortlistRecord(_Known):
    """How many entities the index of a run finds per query, unless something else is asked for.

    Attributes:
        of: the SHA-256 of the model that was indexed; of another one all entities are scored.
    """

    entities: int = Field(ge=1)
    of: str


class Record(_Known):
    """What of ``run.json`` opening a run relies on; there may be more."""

    format: int = Field(ge=2)
    dataset: str
    sources: dict[str, str]
    model: str
    began_from: BeganFrom | None = None
    seed: int = 0
    span_length: int = Field(ge=1)
    softmax_tokens: (
        Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1), AfterValidator(_increasing)] | None
    )
    command: str = ""
    status: Literal["started", "finished", "stopped early", "max steps", "interrupted"]
    step: int = Field(0, ge=0)
    minutes: float = 0
    teacher: dict[str, Any] | None = None
    recipe: RecipeRecord | None = None
    signals: dict[str, dict[str, Any]] = {}
    shortlist: ShortlistRecord | None = None
    files: digests.Accepted | None = None


def read_record(path: Path) -> dict[str, Any]:
    """``run.json`` of a run folder.

    Raises:
        RunError: when it cannot be right, or is of a newer format.
    """
    file = path / "run.json"
    try:
        record = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{file} is damaged: {_line(error)}; {RESTORE}") from None
    if not isinstance(record, dict):
        raise RunError(f"{file} is damaged: it is no JSON object; {RESTORE}")
    version = record.get("format")
    if isinstance(version, int) and version > FORMAT:
        written = record.get("versions")
        by = written.get("kgmlm") if isinstance(written, dict) else None
        raise RunError(f"{path} was written by a newer kgmlm ({by}); upgrade")
    if version == 1:
        raise RunError(f"{path} was written by an older kgmlm; `kgmlm convert {path}` converts it")
    try:
        Record.model_validate(record)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"][:2]))
        given = "missing" if first["type"] == "missing" else f"{first['input']!r:.60}: {first['msg']}"
        raise RunError(f"{file} is damaged: '{key}' is {given}; {RESTORE}") from None
    return record


def accepted(record: Mapping[str, Any]) -> digests.Accepted | None:
    """The digests that a record has of files of the run; None of runs by versions that kept none."""
    return digests.of_json(record.get("files"))


def check_files(
    path: Path, record: Mapping[str, Any], *names: str, contents: bool = False, remedy: str = RESTORE
) -> None:
    """See that files of a run are as they were written, where the record knows.

    Args:
        names: of files; those in a folder by its name and "/".

    Raises:
        RunError: naming the first that is not.
    """
    known = accepted(record) or {}
    asked = {k: v for k, v in known.items() if k.startswith(tuple(names))}
    digests.check(path, asked, contents=contents, remedy=remedy)


def read_settings(path: Path) -> Settings:
    """``config.toml`` of a run.

    Raises:
        RunError: when settings are missing: a run has all of them.
        ConfigError: when they are no settings.
    """
    file = path / "config.toml"
    settings = load_settings(file)
    if not set(_ALWAYS) <= settings.model_fields_set:
        missing = next(name for name in _ALWAYS if name not in settings.model_fields_set)
        raise RunError(f"{file} is damaged: it has no [{missing}]; {RESTORE}")
    return settings


def write_graph(graph: KnowledgeGraph, folder: Path) -> None:
    """Texts and triples as Parquet, ids kept."""
    folder.mkdir(parents=True)
    files.write_parquet(folder / "entities.parquet", graph.entities.table)
    rows = {"label": [r.label for r in graph.relations], "name": [r.name for r in graph.relations]}
    files.write_parquet(folder / "relations.parquet", pa.table(rows))
    _write_triples(folder / "triples.parquet", graph.splits)
    if graph.negatives:
        _write_triples(folder / NEGATIVES, graph.negatives)


def _write_triples(path: Path, splits: Mapping[str, IntArray]) -> None:
    triples = np.concatenate(list(splits.values()))
    columns = {c: triples[:, i] for i, c in enumerate(IDS)}
    names = np.repeat(list(splits), [len(t) for t in splits.values()])
    files.write_parquet(path, pa.table({**columns, "split": names.tolist()}))


def read_graph(folder: Path, name: str, sources: Mapping[str, str]) -> KnowledgeGraph:
    """The graph that :func:`write_graph` wrote.

    Raises:
        RunError: when a file is missing or damaged, or names what is not there.
    """
    entities = _read(folder / "entities.parquet", dict.fromkeys(TEXT_COLUMNS, "text"), optional=(TYPES,))
    relations = _read(folder / "relations.parquet", {"label": "text", "name": "text"})
    try:
        entity_table = EntityTable.of(pa.table(entities))
    except DataError as error:
        raise _damaged(folder / "entities.parquet", str(error)) from None
    try:
        relation_table = RelationTable(relations["label"].to_pylist(), relations["name"].to_pylist())
    except DataError as error:
        raise _damaged(folder / "relations.parquet", str(error)) from None
    sizes = len(entity_table), len(relation_table)
    splits = _read_triples(folder / "triples.parquet", *sizes)
    if "train" not in splits:
        raise _damaged(folder / "triples.parquet", "it has no training triples")
    negatives = _read_triples(folder / NEGATIVES, *sizes) if (folder / NEGATIVES).exists() else {}
    return KnowledgeGraph(name, entity_table, relation_table, splits, sources, negatives=negatives)


def _read_triples(path: Path, entities: int, relations: int) -> dict[str, IntArray]:
    """The triples of each split of a file, among so many entities and relations."""
    triples = _read(path, {**dict.fromkeys(IDS, "number"), "split": "text"})
    for column, count in zip(IDS, (entities, relations, entities), strict=True):
        found = pc.min_max(triples[column]).as_py()
        if len(triples[column]) and not 0 <= found["min"] <= found["max"] < count:
            wrong = found["min"] if found["min"] < 0 else found["max"]
            raise _damaged(path, f"{column} {wrong} is not one of {count:,}")
    split = triples["split"].combine_chunks().dictionary_encode()
    number_T = np.from_dlpack(split.indices)  # to_numpy() would import pandas
    hrt = np.stack([np.from_dlpack(triples[c].combine_chunks()) for c in IDS], axis=1)
    return {str(name): hrt[number_T == number] for number, name in enumerate(split.dictionary.to_pylist())}


def _read(
    path: Path, columns: Mapping[str, str], optional: tuple[str, ...] = ()
) -> dict[str, pa.ChunkedArray]:
    """Columns of a Parquet file without gaps, as text or 64-bit numbers, and ``optional`` texts if there."""
    if not path.is_file():
        raise RunError(f"{path} is missing; {RESTORE}")
    try:
        table = pq.ParquetFile(path).read()
        table.validate(full=True)
    except Exception as error:  # whatever a damaged file makes the library raise
        raise _damaged(path, _line(error)) from None
    found = {}
    further = {name: "text" for name in optional if name in table.column_names}
    for name, kind in {**columns, **further}.items():
        if table.column_names.count(name) != 1:
            raise _damaged(path, f"it has {table.column_names.count(name)} columns '{name}' instead of one")
        column = table.column(name)
        of = column.type
        fits = pa.types.is_integer(of) if kind == "number" else _is_text(of)
        if not fits or column.null_count:
            what = f"of type {of}" if not fits else "without a value in some rows"
            raise _damaged(path, f"the column '{name}' is {what}")
        try:
            found[name] = column.cast(pa.int64() if kind == "number" else pa.large_string())
        except pa.ArrowException as error:
            raise _damaged(path, f"the column '{name}': {_line(error)}") from None
    return found


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _damaged(path: Path, why: str) -> RunError:
    return RunError(f"{path} is damaged: {why}; {RESTORE}")


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]
