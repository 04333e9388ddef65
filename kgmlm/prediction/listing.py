"""Merge all parts into one list of new triples, best first, and measure it on a hidden split.

Shapes: n listed triples, N entities, R relations, 2 sides (tail, head), F features of a side.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from kgmlm.core.tables import ENDS
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import triple_keys
from kgmlm.prediction.candidates import SCHEMA, Parts
from kgmlm.ranking.probability import FEATURES, SIDES, AskedTriples, TripleClassifier

_KEY = b"kgmlm"  # of the metadata of a list
_ROWS = 1 << 16  # rows that are strings at one time
REPORTED = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)  # probabilities
BEST = (10, 100, 1000)  # how many of the best are reported
LOOKED_AT = 1000  # triples, at least, that are asked for from both sides
HOPEFUL = 0.5  # times the least probability: what a triple must have if it is as good from its other side
DIVERSE = 1000  # places of a diverse list, of which an entity has at most SHARE in each HUNDRED
HUNDRED, SHARE = 100, 5
FREQUENT = 0.1  # share of the best hundred from which on an entity is called a frequent flyer


@dataclass(frozen=True, eq=False)
class Listed:
    """New triples, the best first.

    Attributes:
        triples: ``(n, 3)``.
        features: ``(n, 2, F)``; not a number at sides that were not asked for.
        probability: ``(n,)``; not a number where none could be fitted.
        highest: the probability of the best triple, listed or not; 0 where there is none.
    """

    triples: IntArray
    features: FloatArray
    probability: FloatArray
    highest: float = 0.0

    @property
    def has_probabilities(self) -> bool:
        """Whether each triple has a probability."""
        return not np.isnan(self.probability).any()

    def __len__(self) -> int:
        return len(self.triples)

    def __getitem__(self, rows: BoolArray | IntArray) -> Listed:
        return Listed(self.triples[rows], self.features[rows], self.probability[rows], self.highest)


Candidates = tuple[IntArray, FloatArray]  # triples and their features, as :func:`features_of` has them


def candidates_of(parts: Parts) -> Iterator[Candidates]:
    """The candidates of all parts, a relation at a time."""
    return map(features_of, _by_relation(parts.read()))


def features_of(rows: pa.Table) -> Candidates:
    """The triples ``(n, 3)`` of a part, each once, by relation, head and tail; and their features
    ``(n, 2, F)``, not a number at sides that do not list them.
    """
    own = np.stack([rows.column(name).to_numpy() for name in ("head", "relation", "tail")], 1)
    own = own.astype(np.int64)
    order = np.lexsort([own[:, 2], own[:, 0], own[:, 1]])
    new = np.ones(len(order), np.bool_)
    new[1:] = (np.diff(own[order], axis=0) != 0).any(1)
    place = np.empty(len(order), np.int64)
    place[order] = np.cumsum(new) - 1
    features = np.full((int(new.sum()), len(SIDES), len(FEATURES)), np.nan)
    side = np.where(rows.column("of_tail").to_numpy(), 0, 1)
    for i, name in enumerate(FEATURES):
        features[place, side, i] = rows.column(name).to_numpy()
    return own[order[new]], features


def _by_relation(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The rows of all parts, a relation at a time; parts are ordered by relation.

    Raises:
        DataError: when a part has other columns.
    """
    waiting: list[pa.Table] = []
    for part in parts:
        if part.schema.names != SCHEMA.names:
            raise DataError("a part has the columns of another version; remove the folder of parts")
        relations = part.column("relation").to_numpy()
        starts = np.flatnonzero(np.diff(relations)) + 1
        for start, end in zip([0, *starts], [*starts, len(relations)], strict=True):
            if start == end:
                continue
            piece = part.slice(start, end - start)
            if waiting and waiting[0].column("relation")[0] != piece.column("relation")[0]:
                yield pa.concat_tables(waiting)
                waiting = []
            waiting.append(piece)
    if waiting:
        yield pa.concat_tables(waiting)


def by_margin(candidates: Iterable[Candidates]) -> Listed:
    """The best answer of each question, by its margin above the second best, then by score: an order without
    probabilities.

    Triples that are the best answer to both their questions go first, by the smaller margin: if a relation
    has few tails, their margins are large whatever the head (measured: eval/LOG.md).
    """
    kept = [features_of(SCHEMA.empty_table())]
    for triples, features in candidates:
        margin_n2 = np.nan_to_num(features[:, :, FEATURES.index("margin")], nan=-np.inf)
        best = margin_n2.max(1, initial=-np.inf) > 0
        kept.append((triples[best], features[best]))
    triples, features = (np.concatenate(columns) for columns in zip(*kept, strict=True))
    margin_n2, score_n2 = (
        np.nan_to_num(features[:, :, FEATURES.index(name)], nan=-np.inf) for name in ("margin", "score")
    )
    both_n = margin_n2.min(1, initial=np.inf) > 0
    margin_n = np.where(both_n, margin_n2.min(1, initial=np.inf), margin_n2.max(1, initial=-np.inf))
    h, r, t = triples.T
    order = np.lexsort([t, h, r, -score_n2.max(1, initial=-np.inf), -margin_n, ~both_n])
    return Listed(triples[order], features[order], np.full(len(order), np.nan))


def by_probability(
    candidates: Iterable[Candidates],
    classifier: TripleClassifier,
    least: float,
    always: int = 0,
    batch_size: int = 64,
    advance: Callable[[int, int], None] = lambda n, total: None,
    looked_at: int = LOOKED_AT,
) -> Listed:
    """The triples with at least a probability; equal ones by relation, head and tail.

    Triples are asked for from both sides only if they would be listed were they as good from the side that
    does not list them. Triples of new entities without a probability are left out.

    Args:
        always: so many of the most probable are listed, whatever their probability.
        looked_at: triples, at least, that are asked for from both sides.
    """

    def hopeful(hopes: FloatArray) -> IntArray:
        """The rows of triples that may be listed, and of the best others."""
        wanted = hopes >= HOPEFUL * least
        wanted[np.argsort(-hopes, kind="stable")[: max(always, looked_at)]] = True
        return np.flatnonzero(wanted & (hopes >= 0))

    # 1. what may be probable enough
    kept = [(np.zeros((0, 3), np.int64), np.zeros(0))]
    for triples, features in candidates:
        hopes = np.nan_to_num(classifier.probabilities(_hoped(triples, features, classifier)), nan=-1.0)
        rows = hopeful(hopes)
        kept.append((triples[rows], hopes[rows]))
    triples, hopes = (np.concatenate(columns) for columns in zip(*kept, strict=True))
    triples = triples[hopeful(hopes)]
    # 2. what is
    asked = classifier.ask(triples, batch_size, advance)
    probability = classifier.probabilities(asked)
    h, r, t = triples.T
    order = np.lexsort([t, h, r, -probability])
    order = order[: max(always, int((probability >= least).sum()))]
    highest = float(probability.max(initial=0.0))
    return Listed(triples[order], asked.features[order], probability[order], highest)


def _hoped(triples: IntArray, features: FloatArray, classifier: TripleClassifier) -> AskedTriples:
    """Triples as they would be if they were as good from the side that does not list them."""
    missing = np.isnan(features[:, :, 0])
    filled = np.where(missing[:, :, None], features[:, ::-1], features)
    return AskedTriples(filled, classifier.states(triples), classifier.rows[triples[:, 1]])


def diverse(best: Listed) -> Listed:
    """A list in which no entity has more than :data:`SHARE` of each :data:`HUNDRED` places, up to place
    :data:`DIVERSE`; triples that have to wait come in the next hundred. The rest keep their order.
    """
    left: list[int] = list(range(len(best)))
    order: list[int] = []
    while left and len(order) < DIVERSE:
        places: Counter[int] = Counter()
        waiting, taken = [], 0
        for n in left:
            ends = best.triples[n, [0, 2]].tolist()
            if taken < HUNDRED and all(places[e] < SHARE for e in ends):
                places.update(set(ends))
                order.append(n)
                taken += 1
            else:
                waiting.append(n)
        left = waiting
    return best[np.array([*order, *left], np.int64)]


def schema_of(explained: bool) -> pa.Schema:
    """The columns of a list."""
    texts = ("head", "relation", "tail", "head_name", "relation_name", "tail_name")
    numbers = [f"{side}_{name}" for side in SIDES for name in ("score", "rank")]
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
    manifest: Mapping[str, Any],
    because: Callable[[tuple[int, int, int]], str] | None = None,
    advance: Callable[[int], None] = lambda n: None,
) -> None:
    """Write a list as Parquet, whole or not at all, with its manifest in the file's metadata.

    Args:
        because: why a triple is listed.
    """
    schema = schema_of(because is not None)
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
            some = best[rows]
            head, relation, tail = (pa.array(ids) for ids in some.triples.T)
            columns = [labels.take(head), relations[0].take(relation), labels.take(tail)]
            columns += [names.take(head), relations[1].take(relation), names.take(tail)]
            columns.append(pa.array(some.probability, from_pandas=True))  # NaN is null
            for side in range(len(SIDES)):
                score, log_rank = (some.features[:, side, FEATURES.index(x)] for x in ("score", "log_rank"))
                columns += [
                    pa.array(column.astype(np.float32), from_pandas=True)
                    for column in (score, np.round(np.exp(log_rank), 1))
                ]
            if because is not None:
                reasons = [because((h, r, t)) for h, r, t in some.triples.tolist()]
                columns.append(pa.array(reasons, pa.large_string()))
            writer.write_table(pa.table(columns, schema=schema))
            advance(len(rows))


def check_table(path: Path) -> None:
    """See that a file is a list that was written as CSV or TSV.

    Raises:
        DataError: when its first line says otherwise.
    """
    with path.open("rb") as file:
        first = file.readline(1 << 16).decode("utf-8", "replace").rstrip("\r\n")
    names = schema_of(False).names[:7]  # up to the probability
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
        schema = schema_of("because" in header)
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
    schema = schema_of("because" in names)
    if wrong := [n for n in schema.names if names.count(n) != 1]:
        raise ValueError(f"it has {names.count(wrong[0])} columns '{wrong[0]}'")
    if further := [n for n in names if n not in schema.names]:
        raise ValueError(f"it has a column '{further[0]}'")
    for field in schema:
        kind = table.schema.field(field.name).type
        text = pa.types.is_large_string(field.type) and pa.types.is_string(kind)  # as other programs write
        if kind != field.type and not text:
            raise ValueError(f"its column '{field.name}' has {kind}, not {field.type}")
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


@dataclass(frozen=True, eq=False)
class Earlier:
    """What earlier lists have.

    Attributes:
        keys: of their triples whose labels the graph has, rising; as of :func:`triple_keys`.
        unknown: how many of their triples have a label that the graph has not.
    """

    keys: IntArray
    unknown: int

    @classmethod
    def of(cls, tables: Iterable[pa.Table], graph: KnowledgeGraph, least: float) -> Earlier:
        """Gather the triples of lists.

        Args:
            tables: as of :func:`read_list`.
            least: the probability from which on a triple counts as listed; those without one always do.
        """
        parts, unknown = [np.zeros((0, 3), np.int64)], 0
        entities = graph.entities.table.column("label").combine_chunks().cast(pa.large_string())
        relations = pa.array([relation.label for relation in graph.relations], pa.large_string())
        for table in tables:
            listed = table.filter(pc.fill_null(pc.greater_equal(table.column("probability"), least), True))
            columns = zip(ENDS, (entities, relations, entities), strict=True)
            ids = [pc.index_in(listed.column(end).combine_chunks(), labels) for end, labels in columns]
            triples = np.stack([pc.fill_null(x, -1).to_numpy().astype(np.int64) for x in ids], 1)
            known = (triples >= 0).all(1)
            unknown += int((~known).sum())
            parts.append(triples[known])
        return cls(np.unique(triple_keys(np.concatenate(parts), len(entities), len(relations))), unknown)

    def new(self, best: Listed, graph: KnowledgeGraph) -> BoolArray:
        """The mask of listed triples that no earlier list has."""
        keys = triple_keys(best.triples, len(graph.entities), len(graph.relations))
        return ~np.isin(keys, self.keys)

    def became(self, best: Listed, graph: KnowledgeGraph, known: IntArray) -> dict[str, int]:
        """What became of the earlier triples.

        Args:
            best: all that is listed now.
            known: triples that are never listed.

        Returns:
            How many were ``listed``, and how many of these are ``known`` now, are ``less_probable``, or lost
            an entity or a relation (``removed``).
        """
        size = len(graph.entities), len(graph.relations)
        is_known = np.isin(self.keys, triple_keys(known, *size))
        stays = np.isin(self.keys, triple_keys(best.triples, *size))
        return {
            "listed": len(self.keys) + self.unknown,
            "known": int(is_known.sum()),
            "less_probable": int((~is_known & ~stays).sum()),
            "removed": self.unknown,
        }


def measured(best: Listed, graph: KnowledgeGraph, split: str, relations: IntArray) -> dict[str, Any]:
    """Count the listed triples that a hidden split has: a lower bound of the true ones.

    Args:
        split: none of those that count as known.
        relations: ids of those that were asked about.

    Returns:
        For the list at or above each probability, for its best, and for each relation: how many triples are
        ``listed`` and ``true``, ``precision``, ``recall``, and ``expected``, the mean probability. For the
        best hundred, the number of distinct heads and tails, and those that occur in more than a tenth of it.

    Raises:
        DataError: when the graph has no such split.
    """
    n, r = len(graph.entities), len(graph.relations)
    triples = graph.triples(split)
    hidden = np.unique(triple_keys(triples[np.isin(triples[:, 1], relations)], n, r))
    true = np.isin(triple_keys(best.triples, n, r), hidden)

    def row(rows: slice | BoolArray, of: int = len(hidden)) -> dict[str, Any]:
        count, hits = len(true[rows]), int(true[rows].sum())
        return {
            "listed": count,
            "true": hits,
            "precision": hits / count if count else None,
            "recall": hits / of if of else None,
            "expected": float(best.probability[rows].mean()) if count and best.has_probabilities else None,
        }

    listed, of_relation = best.triples[:, 1], np.bincount(hidden // (n * n), minlength=r)
    return {
        "split": split,
        "triples": len(hidden),
        "found": int(true.sum()),
        "by_probability": [
            {"probability": p, **row(best.probability >= p)}
            for p in (REPORTED if best.has_probabilities else ())
        ],
        "best": [row(slice(min(count, len(best)))) for count in BEST],
        "by_relation": [
            {"relation": of.label, "relation_name": of.name, **row(listed == i, int(of_relation[i]))}
            for i in np.unique(listed).tolist()
            for of in (graph.relations[i],)
        ],
        "diversity": _diversity(best.triples[:HUNDRED], graph),
    }


def _diversity(triples: IntArray, graph: KnowledgeGraph) -> dict[str, Any]:
    """How many different heads and tails triples have, and which entities stand in many of them."""
    frequent: dict[int, int] = Counter(e for ends in triples[:, [0, 2]].tolist() for e in {*ends})
    least = FREQUENT * len(triples)
    flyers = sorted(((e, n) for e, n in frequent.items() if n > max(1, least)), key=lambda item: -item[1])
    return {
        "listed": len(triples),
        "heads": len(np.unique(triples[:, 0])),
        "tails": len(np.unique(triples[:, 2])),
        "frequent": [
            {"entity": graph.entities[e].label, "name": graph.entities[e].surface, "listed": n}
            for e, n in flyers
        ],
    }
