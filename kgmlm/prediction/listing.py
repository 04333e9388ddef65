"""All parts to one list of new triples, best first; and what a hidden split says of it.

Shapes: n listed triples, N entities, R relations.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kgmlm.core import files
from kgmlm.core.arrays import BoolArray, FloatArray, IntArray
from kgmlm.core.errors import DataError, first_line
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Target, triple_keys
from kgmlm.prediction.candidates import Parts
from kgmlm.prediction.merged import (
    EVIDENCE,
    LEAST,
    MOST,
    REPORTED,
    Examples,
    Merged,
    by_others,
    by_relation,
    fit_likely,
    held_out,
    merged,
    share_of,
)
from kgmlm.ranking.likely import FEATURES, SIDES, Likely, TrueTriples

_KEY = b"kgmlm"  # of the metadata of a list
_ROWS = 1 << 16  # rows that are strings at one time
BEST = (100, 1000)  # how many of the best are reported
Because = Callable[[IntArray, Target], str]


@dataclass(frozen=True, eq=False)
class Listed:
    """New triples, the most probable first.

    Attributes:
        found: the triples with their values, in this order.
        probability: ``(n,)``; not a number where none could be estimated.
        highest: the probability of the best triple, listed or not; 0 where there is none.
    """

    found: Merged
    probability: FloatArray
    highest: float = 0.0

    @property
    def has_probabilities(self) -> bool:
        """Return whether probabilities could be estimated."""
        return not np.isnan(self.probability).any()

    def __len__(self) -> int:
        return len(self.probability)


def new_keys(graph: KnowledgeGraph, relations: IntArray, *splits: str) -> IntArray:
    """The triples of some splits and relations that training has not, each once, as keys."""
    n, r = len(graph.entities), len(graph.relations)
    triples = np.concatenate([np.zeros((0, 3), np.int64), *(graph.triples(split) for split in splits)])
    keys = triple_keys(triples[np.isin(triples[:, 1], relations)], n, r)
    return np.setdiff1d(keys, triple_keys(graph.splits["train"], n, r))


def check_validation(graph: KnowledgeGraph) -> None:
    """See, before long work, that there is something to estimate probabilities with.

    Raises:
        DataError: when there is nothing.
    """
    if not len(new_keys(graph, np.arange(len(graph.relations)), "valid")):
        raise DataError("validation has no triple that training has not, so no probability can be estimated")


def estimate(
    parts: Parts,
    graph: KnowledgeGraph,
    signals: Sequence[str],
    known: Sequence[str],
    lacking: float,
) -> tuple[Likely | None, TrueTriples, dict[str, Any]]:
    """Estimate how probable candidates are, by those that validation has; and the figures behind it.

    Of splits but training and validation only their sizes have a say.

    Args:
        known: the splits that are never listed.
        lacking: how many true triples no known split has, in times those of validation.

    Returns:
        The regression; None where fewer than :data:`~kgmlm.prediction.merged.LEAST` of validation's triples
        are candidates.
    """
    n, r = len(graph.entities), len(graph.relations)
    relations = np.arange(r)
    hidden = new_keys(graph, relations, "valid")
    either = new_keys(graph, relations, "valid", *known)
    truth = TrueTriples(
        len(hidden), len(new_keys(graph, relations, *known)), len(either) + lacking * len(hidden)
    )
    share = min(1.0, MOST / max(1, parts.rows()))
    several = []
    for rows in by_relation(parts.read()):
        of_relation = merged(rows, "hidden", (*FEATURES, *signals))
        keys = triple_keys(of_relation.triples, n, r)
        several.append(Examples.of(of_relation, np.isin(keys, hidden), keys, share))
    if not several:
        raise DataError("no query was asked: no entity can be asked for anything")
    examples = Examples.joined(several)
    true = int(examples.labels.sum())
    enough = min(true, len(examples.labels) - true) >= LEAST
    likely = fit_likely(examples, r, truth.labeled) if enough else None
    figures: dict[str, Any] = {
        "validation": len(hidden),
        "candidates": round(float(examples.weights.sum())),
        "true": true,
        "recall": true / len(hidden),
        "prior": share_of(examples),
        "labeled": truth.labeled,
        "fitted": likely is not None,
        "known": truth.known,
        "lacking": lacking,
    }
    if likely is not None:
        held = held_out(examples, by_others(examples, r, truth), truth)
        figures |= {**likely.as_json(), "held out": held}
    return likely, truth, figures


def listed(
    parts: Parts,
    signals: Sequence[str],
    likely: Likely | None,
    truth: TrueTriples,
    least: float,
    relations: IntArray,
    always: int = 0,
) -> Listed:
    """The open triples of all parts with at least a probability; equal ones by relation, head and tail.

    Without probabilities, the best answer of each question is listed, by its margin above the second best,
    then by score. What is the best answer of both its questions goes first, by the smaller margin: where a
    relation has few tails, their margins are large whatever the head (measured: eval/LOG.md).

    Args:
        relations: ids of those that are listed.
        always: so many of the most probable are listed, whatever their probability.
    """
    highest, found = (
        0.0,
        [
            Listed(
                Merged(np.zeros((0, 3), np.int64), np.zeros((0, len(SIDES), len(FEATURES) + len(signals)))),
                np.zeros(0),
            )
        ],
    )
    for rows in by_relation(parts.read()):
        of_relation = merged(rows, "open", (*FEATURES, *signals))
        features = of_relation.values[:, :, : len(FEATURES)]
        if not len(of_relation) or of_relation.triples[0, 1] not in relations:
            continue
        if likely is None:
            kept = np.nanmax(features[:, :, FEATURES.index("margin")], axis=1) > 0
            found.append(Listed(of_relation[kept], np.full(int(kept.sum()), np.nan)))
            continue
        probability = truth.left(likely(of_relation.evidence, features, of_relation.triples[:, 1]))
        highest = max(highest, float(probability.max(initial=0.0)))
        kept = probability >= least
        kept[np.argsort(-probability, kind="stable")[:always]] = True
        found.append(Listed(of_relation[kept], probability[kept]))
    triples = np.concatenate([x.found.triples for x in found])
    values = np.concatenate([x.found.values for x in found])
    probability = np.concatenate([x.probability for x in found])
    h, r, t = triples.T
    order = np.lexsort([t, h, r, -probability])
    if likely is None and len(triples):
        margin_n2 = np.nan_to_num(values[:, :, FEATURES.index("margin")], nan=-np.inf)
        score_n = np.nanmax(values[:, :, FEATURES.index("score")], axis=1)
        both_n = margin_n2.min(1) > 0  # the best answer of both its questions
        order = np.lexsort(
            [t, h, r, -score_n, -np.where(both_n, margin_n2.min(1), margin_n2.max(1)), ~both_n]
        )
    order = order[: max(always, int((probability >= least).sum()))] if likely is not None else order
    return Listed(Merged(triples[order], values[order]), probability[order], highest)


def by_signals(best: Listed, signals: Sequence[str]) -> Because | None:
    """A function that says by which signals a triple is listed: those that add most, above the least that
    they add to a listed triple of its relation.
    """
    from kgmlm.signals import SIGNALS

    if not signals:
        return None
    added = np.nan_to_num(np.nanmax(best.found.values[:, :, len(FEATURES) :], axis=1)) if len(best) else None
    place = {tuple(row): n for n, row in enumerate(best.found.triples.tolist())}

    def because(triple: IntArray, side: Target) -> str:
        assert added is not None
        own = best.found.triples[:, 1] == triple[1]
        more = added[place[tuple(triple.tolist())]] - added[own].min(0)
        first, *others = np.argsort(-more, kind="stable").tolist()
        strong = [first, *(i for i in others[:1] if more[i] > 0.5 * more[first])]
        return f"mostly by {' and '.join(SIGNALS[signals[i]].title for i in strong)}"

    return because


def schema_of(signals: Sequence[str], explained: bool) -> pa.Schema:
    """The columns of a list."""
    texts = ("head", "relation", "tail", "head_name", "relation_name", "tail_name")
    numbers = [f"{side}_{name}" for side in SIDES for name in ("score", "rank", *signals)]
    return pa.schema(
        [(name, pa.large_string()) for name in texts]
        + [("probability", pa.float64())]
        + [(name, pa.float32()) for name in numbers]
        + ([("because", pa.large_string())] if explained else [])
    )


def write_list(
    path: Path,
    graph: KnowledgeGraph,
    best: Listed,
    signals: Sequence[str],
    manifest: Mapping[str, Any],
    because: Because | None = None,
    advance: Callable[[int], None] = lambda n: None,
) -> None:
    """Write a list as Parquet, whole or not at all, with its manifest in the file's metadata.

    Args:
        because: why a triple is listed, asked from one side.
    """
    schema = schema_of(signals, because is not None)
    about = json.dumps(dict(manifest), ensure_ascii=False).encode()
    labels, names = (graph.entities.table.column(c).combine_chunks() for c in ("label", "surface"))
    relations = [
        pa.array([getattr(r, c) for r in graph.relations], pa.large_string()) for c in ("label", "name")
    ]
    with (
        files.atomic_file(path, follow=True) as temporary,
        pq.ParquetWriter(temporary, schema.with_metadata({_KEY: about})) as writer,
    ):
        for start in range(0, len(best), _ROWS):
            rows = np.arange(start, min(start + _ROWS, len(best)))
            some = best.found[rows]
            h, r, t = (pa.array(ids) for ids in some.triples.T)
            columns = [labels.take(h), relations[0].take(r), labels.take(t)]
            columns += [names.take(h), relations[1].take(r), names.take(t)]
            columns.append(pa.array(best.probability[rows], from_pandas=True))  # NaN is null
            for side in range(len(SIDES)):
                score, log_rank = (some.values[:, side, FEATURES.index(x)] for x in ("score", "log_rank"))
                added = some.values[:, side, len(FEATURES) :].T
                columns += [
                    pa.array(column.astype(np.float32), from_pandas=True)
                    for column in (score, np.round(np.exp(log_rank), 1), *added)
                ]
            if because is not None:
                sides = [side_of(kind) for kind in some.evidence]
                columns.append(
                    pa.array([because(*x) for x in zip(some.triples, sides, strict=True)], pa.large_string())
                )
            writer.write_table(pa.table(columns, schema=schema))
            advance(len(rows))


def side_of(evidence: int) -> Target:
    """The side that is asked for to say why a triple is listed."""
    return "head" if EVIDENCE[evidence] == "head" else "tail"


def check_table(path: Path) -> None:
    """See that a file is a list that was written as CSV or TSV.

    Raises:
        DataError: when its first line says otherwise.
    """
    with path.open("rb") as file:
        first = file.readline(1 << 16).decode("utf-8", "replace").rstrip("\r\n")
    names = schema_of((), False).names[:7]  # up to the probability
    if not any(first.split(separator)[: len(names)] == names for separator in ",\t"):
        raise DataError(f"{path} is no list of new triples")


def read_list(path: Path) -> tuple[pa.Table, dict[str, Any]]:
    """Read the list that :func:`write_list` wrote, and its manifest.

    Raises:
        DataError: when it is missing, damaged, or no list.
    """
    if is_table(path):
        return _read_table(path), {}
    try:
        table = files.read_parquet(path)
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except (OSError, ValueError, pa.ArrowException):
        raise DataError(f"{path} cannot be read as Parquet; `kgmlm complete` writes such a file") from None
    try:
        manifest = _manifest(table)
        return _checked(table, bool(manifest.get("probabilities", {}).get("fitted", True))), manifest
    except (ValueError, pa.ArrowException) as error:
        raise DataError(
            f"{path} is no list of new triples: {first_line(error)}; `kgmlm complete` writes one"
        ) from None


def _manifest(table: pa.Table) -> dict[str, Any]:
    """The manifest in a list's metadata."""
    about = (table.schema.metadata or {}).get(_KEY)
    if about is None:
        raise ValueError("its metadata has no manifest")
    manifest = files.parse_json(about)
    if not isinstance(manifest, dict):
        raise ValueError("its manifest is no JSON object")
    return manifest


def is_table(path: Path) -> bool:
    """Return whether a file is a list of new triples as CSV or TSV."""
    try:
        check_table(path)
    except (OSError, DataError):
        return False
    return True


def _read_table(path: Path) -> pa.Table:
    """The list that ``complete`` or ``export`` wrote as CSV or TSV.

    Raises:
        DataError: when it is damaged.
    """
    import csv

    try:
        with path.open(encoding="utf-8", newline="") as file:
            separator = "\t" if "\t" in file.readline() else ","
            file.seek(0)
            header, *rows = csv.reader(file, delimiter=separator)
        signals = [n.removeprefix("tail_") for n in header if n.startswith("tail_")]
        schema = schema_of([s for s in signals if s not in ("name", "score", "rank")], "because" in header)
        if header != schema.names or any(len(row) != len(header) for row in rows):
            raise ValueError("its columns are not those of a list")
        columns = [
            pa.array(cells, field.type)
            if field.type == pa.large_string()
            else pa.array([float(cell) if cell else None for cell in cells], field.type)
            for field, cells in zip(
                schema, zip(*rows, strict=True) if rows else [[]] * len(header), strict=True
            )
        ]
        table = pa.table(columns, schema=schema)
        return _checked(table, not rows or table.column("probability").null_count == 0)
    except (OSError, ValueError, UnicodeDecodeError, csv.Error, pa.ArrowException) as error:
        raise DataError(f"{path} is no list of new triples: {first_line(error)}") from None


def _checked(table: pa.Table, fitted: bool) -> pa.Table:
    """A list whose columns, types and values are such as :func:`write_list` writes.

    Args:
        fitted: whether its triples have probabilities.

    Raises:
        ValueError: naming the first column that is not.
    """
    names = table.column_names
    own = ("tail_name", "tail_score", "tail_rank")
    signals = [n.removeprefix("tail_") for n in names if n.startswith("tail_") and n not in own]
    schema = schema_of(signals, "because" in names)
    if wrong := [n for n in schema.names if names.count(n) != 1]:
        raise ValueError(f"it has {names.count(wrong[0])} columns '{wrong[0]}'")
    if further := [n for n in names if n not in schema.names]:
        raise ValueError(f"it has a column '{further[0]}'")
    for field in schema:
        there = table.schema.field(field.name).type
        text = pa.types.is_large_string(field.type) and pa.types.is_string(there)  # as other programs write
        if there != field.type and not text:
            raise ValueError(f"its column '{field.name}' has {there}, not {field.type}")
    table = table.select(schema.names).cast(schema.with_metadata(table.schema.metadata))
    table.validate(full=True)
    texts = [name for name in schema.names if schema.field(name).type == pa.large_string()]
    for name in [*texts, *(["probability"] if fitted else [])]:
        if table.column(name).null_count:
            raise ValueError(f"its column '{name}' has an empty cell")
    for name in ("head", "relation", "tail"):
        if pc.any(pc.equal(table.column(name), "")).as_py():
            raise ValueError(f"its column '{name}' has an empty label")
    probability = table.column("probability").drop_null().to_numpy()
    if not ((probability >= 0) & (probability <= 1)).all():
        raise ValueError("a probability is not from 0 to 1")
    for field in schema:
        if pa.types.is_float32(field.type):
            values = table.column(field.name).drop_null().to_numpy()
            if not np.isfinite(values).all():
                raise ValueError(f"its column '{field.name}' has a number that is not finite")
    return table


def measured(best: Listed, graph: KnowledgeGraph, split: str, relations: IntArray) -> dict[str, Any]:
    """Count the listed triples that a hidden split has: a lower bound of the true ones.

    Args:
        split: none of those that count as known.
        relations: ids of those that were asked about.

    Raises:
        DataError: when the graph has no such split.
    """
    n, r = len(graph.entities), len(graph.relations)
    triples = graph.triples(split)
    hidden = np.unique(triple_keys(triples[np.isin(triples[:, 1], relations)], n, r))
    true = np.isin(triple_keys(best.found.triples, n, r), hidden)

    def row(rows: slice | BoolArray) -> dict[str, Any]:
        count, found = len(true[rows]), int(true[rows].sum())
        return {
            "listed": count,
            "true": found,
            "precision": found / count if count else None,
            "expected": float(best.probability[rows].mean()) if count and best.has_probabilities else None,
        }

    probabilities, listed = -best.probability, best.found.triples[:, 1]  # the first ascending
    return {
        "split": split,
        "triples": len(hidden),
        "found": int(true.sum()),
        "by probability": [
            {"probability": p, **row(slice(int(np.searchsorted(probabilities, -p, "right"))))}
            for p in (REPORTED if best.has_probabilities else ())
        ],
        "best": [row(slice(min(count, len(best)))) for count in BEST],
        "by relation": [
            {"relation": of.label, "relation_name": of.name, **row(listed == r)}
            for r in np.unique(listed).tolist()
            for of in (graph.relations[r],)
        ],
    }
