"""Compare two runs by their ranks of the same triples: is the difference more than chance?

Reads the per-query ranks that evaluations wrote; opens no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from kgmlm.core.errors import DataError
from kgmlm.core.options import takes
from kgmlm.core.progress import watcher_of
from kgmlm.core.results import Result
from kgmlm.evaluation.metrics import KEY, SIDES, Ranks
from kgmlm.evaluation.options import CompareOptions
from kgmlm.runs.opened import open_folder
from kgmlm.runs.packs import find_pack, unpack
from kgmlm.runs.run import Run, path_of

_DRAWN = 2**24  # signs drawn at once
Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """A metric of two rankings, B minus A, over pairs of the same query.

    Attributes:
        low, high: a 95 % interval of the difference, by resampling triples.
        p: how often swapping A and B at random, triple by triple, gives as large a difference.
    """

    metric: str
    side: str
    a: float
    b: float
    low: float
    high: float
    p: float

    @property
    def difference(self) -> float:
        """B minus A."""
        return self.b - self.a


def paired(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """The queries of both side by side, columns of the first ending in ``_a``.

    Raises:
        DataError: when they are not the same queries, or were not ranked among equally many candidates.
    """
    a, b = (table.assign(repeat=table.groupby(KEY).cumcount()) for table in (a, b))  # of a triple kept twice
    joined = a.merge(b, on=[*KEY, "repeat"], how="outer", suffixes=("_a", "_b"), indicator=True)
    only = joined[joined["_merge"] != "both"]
    if len(only):
        row = only.iloc[0]
        where = "the first" if row["_merge"] == "left_only" else "the second"
        raise DataError(
            f"these are not ranks of the same queries: {len(only):,} are in one only, such as "
            f"({row['head']}, {row['relation']}, {row['tail']}) in {where}"
        )
    differ = int((joined["candidates_a"] != joined["candidates_b"]).sum())
    if differ:
        raise DataError(
            f"{differ:,} of {len(joined):,} queries were ranked among different numbers of candidates; "
            "evaluate both under one protocol"
        )
    return joined.drop(columns="_merge")


def _measures(table: pd.DataFrame, which: str) -> dict[str, Values]:
    """Reciprocal realistic rank and hits of each query."""
    columns = (table[f"{c}_{which}"].to_numpy() for c in ("optimistic", "pessimistic", "candidates"))
    realistic = Ranks(*columns).of_type("realistic")
    return {"mrr": 1 / realistic} | {f"hits_at_{k}": (realistic <= k).astype(float) for k in (1, 3, 10)}


def _by_triple(values: Values, triple_B: npt.NDArray[np.integer[Any]]) -> Values:
    """Sums over the queries of each triple: both are about the same facts, so they are not independent."""
    return np.bincount(triple_B, weights=values).astype(np.float64)


def _chance(differences_n: Values, queries: int, draws: int, seed: int) -> tuple[float, float, float]:
    """A bootstrap interval over triples of the mean difference per query, and p of a sign-flip test.

    Triples without a difference count in the interval and do not change p.
    """
    rng = np.random.default_rng(seed)
    n = len(differences_n)
    observed = abs(differences_n.sum())
    changed = differences_n[differences_n != 0]
    as_large = 0
    means: list[Values] = []
    step = max(1, _DRAWN // n)
    for start in range(0, draws, step):
        size = min(step, draws - start)
        signs = rng.integers(0, 2, (size, len(changed)), dtype=np.int8) * 2.0 - 1
        as_large += int((np.abs(signs @ changed) >= observed - 1e-9).sum())
        means.append(differences_n[rng.integers(0, n, (size, n))].sum(1) / queries)
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return float(low), float(high), (as_large + 1) / (draws + 1)


def compare_ranks(
    a: pd.DataFrame,
    b: pd.DataFrame,
    *,
    sides: Sequence[str] = ("both",),
    draws: int = 2000,
    seed: int = 0,
) -> list[Difference]:
    """MRR and Hits@1, 3, 10 of two rankings of the same queries, with interval and p of each difference.

    Args:
        a, b: as :func:`read_ranks` returns them.
        draws: resamplings, and random swaps.

    Raises:
        DataError: as :func:`paired` says.
    """
    joined = paired(a, b)
    differences = []
    for side in sides:
        if side not in SIDES:
            raise DataError(f"a side is {', '.join(SIDES)}, not '{side}'")
        table = joined if side == "both" else joined[joined["target"] == side]
        if not len(table):
            continue
        triple_B = table.groupby(KEY[:3], sort=False).ngroup().to_numpy()
        of_a, of_b = _measures(table, "a"), _measures(table, "b")
        for metric, values in of_a.items():
            low, high, p = _chance(_by_triple(of_b[metric] - values, triple_B), len(table), draws, seed)
            means = float(values.mean()), float(of_b[metric].mean())
            differences.append(Difference(metric, side, *means, low, high, p))
    return differences


def differences_json(differences: Sequence[Difference], queries: int) -> dict[str, Any]:
    """The object that ``kgmlm compare --json`` prints."""
    rows = [{**vars(d), "difference": d.difference} for d in differences]
    return {"queries": queries, "differences": rows}


@takes(CompareOptions)
def compare(a: Run | str | Path, options: CompareOptions) -> Comparison:
    """Say whether two runs rank the same triples differently by more than chance.

    Their ranks are paired triple by triple: a 95 % interval of each difference by resampling triples, and p,
    how often swapping the two at random gives as large a difference.

    Args:
        a: a run that was evaluated, or a file of ranks.

    Raises:
        DataError: when they did not rank the same queries.
    """
    from kgmlm.evaluation.metrics import find_ranks, read_ranks, scores_digest

    paths = [unpack(pack) if (pack := find_pack(path_of(run))) else path_of(run) for run in (a, options.b)]
    files = [find_ranks(path, options.split) for path in paths]
    one, other = (read_ranks(path) for path in files)
    watch = watcher_of(options.progress)
    for path, file in zip(paths, files, strict=True):
        digest = scores_digest(file)
        if path.is_dir() and digest and digest != open_folder(path).scores_digest:
            watch.tell(f"{file} has ranks of {path} as it was before; `kgmlm evaluate` makes them again")
    differences = compare_ranks(
        one, other, sides=("tail", "head", "both"), draws=options.draws, seed=options.seed
    )
    return Comparison(str(paths[0]), str(paths[1]), len(one), tuple(differences))


@dataclass(frozen=True)
class Comparison(Result):
    """Two runs side by side.

    Attributes:
        a, b: the paths of the runs or of the files of ranks.
        queries: how many both have ranked.
        differences: one per side and metric.
    """

    a: str
    b: str
    queries: int
    differences: tuple[Difference, ...]

    def __repr__(self) -> str:
        mrr = next(x for x in self.differences if (x.side, x.metric) == ("both", "mrr"))
        interval = f"{mrr.low:+.4f} to {mrr.high:+.4f}"
        return f"<{self.b} minus {self.a}: MRR {mrr.difference:+.4f} ({interval})>"

    def as_json(self) -> dict[str, Any]:
        """The object that ``kgmlm compare --json`` prints."""

        return differences_json(self.differences, self.queries)

    def to_frame(self) -> pd.DataFrame:
        """A row per side and metric: both values, their difference, its interval and p."""
        import pandas as pd

        return pd.DataFrame(self.as_json()["differences"])
