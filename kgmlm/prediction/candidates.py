"""The parts of completing a graph: which queries are asked, their best candidates, files of parts.

Parts may be done in any order, by any number of processes, and on several machines whose folders are put
together afterwards. Two sets of candidates come from the same scores. *Open* ones are in no known triple:
they may be listed. *Hidden* ones are in no training triple: validation triples are among them, so the true
ones can be counted.

Shapes: B queries, N entities, n candidates, K candidates of a query, F features of a side.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kgmlm.core import files
from kgmlm.core.arrays import BoolArray, Floats, IntArray, top
from kgmlm.core.errors import ConfigError, DataError, RunError
from kgmlm.graphs.queries import FilterIndex, Queries, both_sides
from kgmlm.ranking.constraints import MISSED
from kgmlm.ranking.likely import FEATURES, compared, temperature_of
from kgmlm.ranking.ranker import Ranker, Scorer
from kgmlm.ranking.trees import Trees


def seen_queries(train: IntArray, entities: int, relations: IntArray) -> Queries:
    """Each (entity, relation, side) that some training triple has, by relation, then side (heads first), then
    entity.

    Args:
        train: training triples ``(n, 3)``.
        entities: N.
        relations: ids of those that are asked about.

    >>> found = seen_queries(np.array([[0, 1, 2], [0, 1, 3]]), 4, np.array([0, 1]))
    >>> [(q.entity, q.target) for q in found]
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
    found = [seen[:0]]
    for relation in relations.tolist():
        for tails in (False, True):
            ids = np.flatnonzero(askable(relation, tails))
            if not everyone:
                start, stop = np.searchsorted(sides, (2 * relation + tails, 2 * relation + tails + 1))
                ids = np.intersect1d(ids, seen.entity_B[start:stop])
            found.append(Queries(ids, np.full(len(ids), relation), np.full(len(ids), tails)))
    return Queries(
        *(np.concatenate([getattr(q, x) for q in found]) for x in ("entity_B", "relation_B", "tail_B"))
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
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
        if not found or not 1 <= int(found[1]) <= int(found[2]):
            raise ConfigError(f"a shard is given as 3/16, the third of sixteen, not '{text}'")
        return cls(int(found[1]) - 1, int(found[2]))

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
        """Lay a folder, or open the one that is there for the same work.

        Args:
            about: JSON-ready settings that say which work it is.

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
            found = files.parse_json(path.read_bytes())
        except ValueError:
            raise RunError(f"{path} is damaged; remove {folder} to begin again") from None
        want = json.loads(json.dumps(about))
        if not isinstance(found, dict) or found != want:
            have = found if isinstance(found, dict) else {}
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

    def columns(self) -> list[str]:
        """The names of the columns, as the first part has them.

        Raises:
            DataError: when it is missing or damaged.
        """
        with self._reading(0):
            return list(pq.read_schema(self.path(0)).names)

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

    def rows(self) -> int:
        """Return how many rows all parts have together; those that cannot be read have none."""
        total = 0
        for number in range(self.count):
            try:
                total += int(pq.read_metadata(self.path(number)).num_rows)
            except (OSError, pa.ArrowException):
                continue
        return total


def _is_free(folder: Path) -> bool:
    """Return whether parts can be laid there: nothing is, but a manifest that another shard is writing, or
    was.
    """
    return folder.is_dir() and all(map(files.is_temporary, folder.iterdir()))


@dataclass(frozen=True, eq=False)
class Completer:
    """Finds the best candidates of queries.

    Attributes:
        scorer: a run's ranker, or another scorer; of second stages trees take part.
        train: what training triples give.
        known: what is never listed; training triples are among it.
        top: K, of each query.
        batch_size: queries per forward pass.
        given_back: what scores open candidates where held-out triples are given back to training; None is
            ``scorer``. Hidden ones are always scored without them.
    """

    scorer: Scorer
    train: FilterIndex
    known: FilterIndex
    top: int
    batch_size: int = 64
    given_back: Ranker | None = None

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals that a score is added up of, where that is known."""
        if not isinstance(self.scorer, Ranker):
            return ()
        return tuple(name for name in self.scorer.mixture.signals if name in self.scorer.signals)

    def schema(self) -> pa.Schema:
        """The schema of a part: ids, side, which of the two sets, features, what each signal adds."""
        return pa.schema(
            [(name, pa.int32()) for name in ("head", "relation", "tail")]
            + [(name, pa.bool_()) for name in ("of_tail", "hidden", "open")]
            + [(name, pa.float32()) for name in (*FEATURES, *self.signals)]
        )

    def part(self, queries: Queries, advance: Callable[[int], None] = lambda n: None) -> pa.Table:
        """The candidates of some queries, by query, then by score, then by id.

        Where held-out triples are given back, hidden candidates of a relation go before its open ones.
        """
        if self.given_back is not None:
            hidden = replace(self, given_back=None).part(queries)
            open = replace(self, scorer=self.given_back, given_back=None).part(queries, advance)
            both = pa.concat_tables([_only(hidden, "hidden", "open"), _only(open, "open", "hidden")])
            return both.take(pa.array(np.argsort(both.column("relation").to_numpy(), kind="stable")))
        found = [
            (rows, self._chosen(queries[rows], scores_bN, added))
            for rows, scores_bN, added in self._scored(queries, advance)
        ]
        schema = self.schema()
        if not found:
            return schema.empty_table()
        at = np.concatenate([rows[columns["row"]] for rows, columns in found])
        merged = {k: np.concatenate([columns[k] for _, columns in found]) for k in found[0][1]}
        order = np.lexsort([merged["id"], -merged["score"], at])
        at = at[order]
        merged = {name: values[order] for name, values in merged.items()}
        asked = queries[at]
        ends = (merged["id"], asked.entity_B)
        merged |= {
            "head": np.where(asked.tail_B, *ends[::-1]),
            "relation": asked.relation_B,
            "tail": np.where(asked.tail_B, *ends),
            "of_tail": asked.tail_B,
        }
        return pa.table([pa.array(merged[f.name], f.type, safe=False) for f in schema], schema=schema)

    def _scored(
        self, queries: Queries, advance: Callable[[int], None]
    ) -> Iterator[tuple[IntArray, Floats, Mapping[str, Floats]]]:
        """(rows, scores, what each signal adds to them), batch by batch."""
        if not isinstance(self.scorer, Ranker):
            for rows, scores_bN in self.scorer.rank(queries, batch_size=self.batch_size, advance=advance):
                yield rows, scores_bN, {}
            return
        ranker = self.scorer
        trees = ranker.stages.get(Trees.name)
        trees = trees.of_unseen() if isinstance(trees, Trees) else None
        for rows, first in ranker.first_stage(queries, None, self.batch_size, advance):
            added = {
                name: ranker.mixture.of(name, first.queries)[:, None] * scores_bN
                for name, scores_bN in first.signal_scores.items()
            }
            if trees is not None:
                first = trees.reranked(ranker, first, self.batch_size)
            yield rows, first.scores_BN, added

    def _chosen(
        self, queries: Queries, scores_BN: Floats, added: Mapping[str, Floats]
    ) -> dict[str, np.ndarray]:
        """The candidates of a batch as columns; ``row`` is the query of each."""
        others_BN = np.where(scores_BN <= MISSED, np.float32(-np.inf), scores_BN)  # that it is compared with
        others_BN[self.train.lookup(queries)] = -np.inf
        open_BN = others_BN.copy()
        open_BN[self.known.lookup(queries)] = -np.inf
        sets = [[_best(row_N, self.top) for row_N in values_BN] for values_BN in (others_BN, open_BN)]
        rows, ids = [], []
        for row, (hidden, open) in enumerate(zip(*sets, strict=True)):
            either = list(dict.fromkeys([*hidden, *open]))
            ids += either
            rows += [row] * len(either)
        members = [{(row, i) for row, of_row in enumerate(found) for i in of_row} for found in sets]
        pairs = list(zip(rows, ids, strict=True))
        row_n, id_n = np.array(rows, np.int64), np.array(ids, np.int64)
        columns = {
            "row": row_n,
            "id": id_n,
            "hidden": np.array([pair in members[0] for pair in pairs], np.bool_),
            "open": np.array([pair in members[1] for pair in pairs], np.bool_),
        }
        found = compared(scores_BN, others_BN, row_n, id_n, temperature_of(self.scorer))
        found["log_rank"] = np.log(found.pop("rank"))
        columns |= {name: found[name] for name in FEATURES}
        return columns | {name: added_BN[row_n, id_n] for name, added_BN in added.items()}


def _only(part: pa.Table, kept: str, left: str) -> pa.Table:
    """The rows of one of the two sets, which are none of the other."""
    rows = part.filter(part.column(kept))
    none = pa.array(np.zeros(len(rows), np.bool_))
    return rows.set_column(rows.column_names.index(left), left, none)


def _best(scores_N: Floats, k: int) -> list[int]:
    """The k best of those that may be chosen."""
    return [i for i in top(scores_N, k) if np.isfinite(scores_N[i])]
