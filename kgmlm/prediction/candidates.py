"""The parts of completing a graph: which queries are asked, their best candidates, files of parts.

Parts may be done in any order, by any number of processes, and on several machines whose folders are put
together afterwards.

Shapes: B queries, N entities, n candidates, K candidates of a query, F features of a side.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kgmlm.core import files
from kgmlm.core.arrays import BoolArray, FloatArray, Floats, IntArray, top
from kgmlm.core.errors import ConfigError, DataError, RunError
from kgmlm.graphs.queries import FilterIndex, Queries, both_sides
from kgmlm.ranking.probability import FEATURES, compared, competing, temperature_of
from kgmlm.ranking.ranker import Scorer


def seen_queries(train: IntArray, entities: int, relations: IntArray) -> Queries:
    """Each (entity, relation, side) that some training triple has, by relation, then side (heads first), then
    entity.

    Args:
        train: training triples ``(n, 3)``.
        entities: N.
        relations: ids of those that are asked about.

    >>> queries = seen_queries(np.array([[0, 1, 2], [0, 1, 3]]), 4, np.array([0, 1]))
    >>> [(q.entity, q.target) for q in queries]
    [(2, 'head'), (3, 'head'), (0, 'tail')]
    """
    index = FilterIndex(train, entities)
    queries, _ = both_sides(train[np.isin(train[:, 1], relations)])
    return index.queries(np.unique(index.keys(queries)))


def asked_queries(
    train: IntArray,
    entities: int,
    relations: IntArray,
    askable: Callable[[int, bool], BoolArray],
    everyone: bool = False,
) -> Queries:
    """Return the queries of :func:`seen_queries` that can be asked, in the same order.

    Args:
        askable: of a relation, which entities ``(N,)`` can be asked for tails (or else heads).
        everyone: ask all entities that can be, whether training has the query or not.
    """
    seen = seen_queries(train, entities, relations)
    sides = 2 * seen.relation_B + seen.tail_B
    parts = [seen[:0]]
    for relation in relations.tolist():
        for tails in (False, True):
            ids = np.flatnonzero(askable(relation, tails))
            if not everyone:
                start, stop = np.searchsorted(sides, (2 * relation + tails, 2 * relation + tails + 1))
                ids = np.intersect1d(ids, seen.entity_B[start:stop])
            parts.append(Queries(ids, np.full(len(ids), relation), np.full(len(ids), tails)))
    return Queries(
        *(np.concatenate([getattr(q, x) for q in parts]) for x in ("entity_B", "relation_B", "tail_B"))
    )


def sampled(queries: Queries, count: int, seed: int = 0) -> IntArray:
    """The rows of a seeded sample of queries in their order: of each relation and side its share, and at
    least one.

    Args:
        count: how many, about; all of them where there are no more.
    """
    if count >= len(queries):
        return np.arange(len(queries))
    rng = np.random.default_rng(seed)
    kinds = 2 * queries.relation_B + queries.tail_B
    rows = []
    for kind in np.unique(kinds):
        own = np.flatnonzero(kinds == kind)
        rows.append(rng.choice(own, max(1, round(count * len(own) / len(queries))), replace=False))
    return np.sort(np.concatenate(rows))


MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Shard:
    """One of several shares of the parts: those whose number is ``at`` modulo ``of``."""

    at: int = 0
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From "3/16", the third of sixteen.

        Raises:
            ConfigError: for anything else.

        >>> Shard.parse("3/16")
        Shard(at=2, of=16)
        """
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise ConfigError(f"a shard is given as 3/16, the third of sixteen, not '{text}'")
        return cls(int(match[1]) - 1, int(match[2]))

    def has(self, number: int) -> bool:
        """Return whether a part is of this shard."""
        return number % self.of == self.at


@dataclass(frozen=True)
class Parts:
    """A folder of parts.

    Attributes:
        count: how many parts the whole work has.
    """

    folder: Path
    count: int

    @classmethod
    def open(cls, folder: Path, count: int, about: Mapping[str, Any]) -> Parts:
        """Create a folder, or open an existing one for the same work.

        Args:
            about: JSON-ready settings that identify the work.

        Raises:
            RunError: when something else is there, or parts of other work.
        """
        path = folder / MANIFEST
        if not path.is_file() and folder.exists() and not _is_free(folder):
            raise RunError(f"{folder} is there and has no parts; choose another --output")
        if not path.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            files.write_json(path, dict(about))
        try:
            manifest = files.parse_json(path.read_bytes())
        except ValueError:
            raise RunError(f"{path} is damaged; remove {folder} to begin again") from None
        want = json.loads(json.dumps(about))
        if not isinstance(manifest, dict) or manifest != want:
            have = manifest if isinstance(manifest, dict) else {}
            other = sorted(key for key in {*have, *want} if have.get(key) != want.get(key))
            raise RunError(
                f"{folder} has parts of another run or of other settings ({', '.join(other)}); choose "
                "another --output, or remove it"
            )
        return cls(folder, count)

    def path(self, number: int) -> Path:
        """The file of a part."""
        return self.folder / f"part-{number:07}.parquet"

    def missing(self, shard: Shard = Shard()) -> list[int]:
        """The parts of a shard that are not there."""
        return [n for n in range(self.count) if shard.has(n) and not self.path(n).is_file()]

    def write(self, number: int, table: pa.Table) -> None:
        """Write a part; it is there whole or not at all."""
        files.write_parquet(self.path(number), table)

    def read(self) -> Iterator[pa.Table]:
        """All parts, in order.

        Raises:
            DataError: when one is missing or damaged.
        """
        for number in range(self.count):
            with self._reading(number):
                table = files.read_parquet(self.path(number))
            yield table

    def sweep(self) -> None:
        """Remove what killed processes left half-written."""
        files.sweep_in(self.folder)

    @contextmanager
    def _reading(self, number: int) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise DataError(f"{self.path(number)} is missing; the same command makes it") from None
        except (OSError, pa.ArrowException):
            raise DataError(
                f"{self.path(number)} is damaged; remove it, and the same command makes it again"
            ) from None


def _is_free(folder: Path) -> bool:
    """Return whether parts can go there: it is empty, except for a manifest that another shard is, or was,
    writing.
    """
    return folder.is_dir() and all(map(files.is_temporary, folder.iterdir()))


@dataclass(frozen=True, eq=False)
class Completer:
    """Finds the best candidates of queries.

    Attributes:
        scorer: a run's ranker, or another scorer.
        train: the answers that training triples give.
        known: triples that are never listed, including training triples.
        top: K, of each query.
        batch_size: queries per forward pass.
    """

    scorer: Scorer
    train: FilterIndex
    known: FilterIndex
    top: int
    batch_size: int = 64

    def part(self, queries: Queries, advance: Callable[[int], None] = lambda n: None) -> pa.Table:
        """The candidates of some queries, by query, then by score, then by id."""
        columns = [
            self._chosen(rows, queries[rows], scores_bN)
            for rows, scores_bN in self.scorer.rank(queries, batch_size=self.batch_size, advance=advance)
        ]
        if not columns:
            return SCHEMA.empty_table()
        row, ids, features = (np.concatenate(parts) for parts in zip(*columns, strict=True))
        order = np.lexsort([ids, -features[:, FEATURES.index("score")], row])
        asked, features = queries[row[order]], features[order]
        head, relation, tail = asked.triples(ids[order]).T
        values = [head, relation, tail, asked.tail_B, *features.T]
        return pa.table(
            [pa.array(x, f.type, safe=False) for x, f in zip(values, SCHEMA, strict=True)], schema=SCHEMA
        )

    def _chosen(
        self, rows: IntArray, queries: Queries, scores_bN: Floats
    ) -> tuple[IntArray, IntArray, FloatArray]:
        """The candidates of a batch: of which query each is, its id and features."""
        scores_bN, others_bN = competing(scores_bN, self.train.lookup(queries))
        open_bN = others_bN.copy()
        open_bN[self.known.lookup(queries)] = -np.inf
        best = [[i for i in top(row_N, self.top) if np.isfinite(row_N[i])] for row_N in open_bN]
        row = np.repeat(np.arange(len(best)), [len(of_query) for of_query in best])
        ids = np.array([i for of_query in best for i in of_query], np.int64)
        return rows[row], ids, compared(scores_bN, others_bN, row, ids, temperature_of(self.scorer))


# The columns of a part: ids, the side that is asked for, and the features of the candidate there.
SCHEMA = pa.schema(
    [(name, pa.int32()) for name in ("head", "relation", "tail")]
    + [("of_tail", pa.bool_())]
    + [(name, pa.float32()) for name in FEATURES]
)
