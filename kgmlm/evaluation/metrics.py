"""Tie-aware ranks and PyKEEN's metrics of them; metrics of probabilities; files of per-query ranks.

Ranks follow PyKEEN: optimistic counts the candidates that score strictly higher, pessimistic those that score
at least as high, realistic is their mean. Metrics of probabilities take labels, probabilities and weights of
n triples. Weights say how often each triple stands for others like it, so that a few negatives can stand for
the 99 per positive. This module knows neither models nor text.

Shapes: n triples, K bins.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from kgmlm.core import files
from kgmlm.core.arrays import BoolArray, FloatArray, Floats, IntArray, check_finite
from kgmlm.core.errors import DataError, first_line, quoted
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import TARGETS

if TYPE_CHECKING:
    import pandas as pd

RankType = Literal["optimistic", "realistic", "pessimistic"]
RANK_TYPES: tuple[RankType, ...] = ("optimistic", "realistic", "pessimistic")
HITS_AT = (1, 3, 5, 10)
Side = Literal["head", "tail", "both"]
SIDES: tuple[Side, ...] = ("head", "tail", "both")


@dataclass(frozen=True)
class Ranks:
    """Ranks of B answers, one-based, with the number of candidates that each was ranked among."""

    optimistic_B: IntArray
    pessimistic_B: IntArray
    candidates_B: IntArray

    def __post_init__(self) -> None:
        o, p, n = self.optimistic_B, self.pessimistic_B, self.candidates_B
        if (o < 1).any() or (p < o).any() or (n < p).any():
            raise ValueError("ranks must satisfy 1 <= optimistic <= pessimistic <= candidates")

    def __len__(self) -> int:
        return len(self.optimistic_B)

    def __getitem__(self, key: BoolArray | IntArray | slice) -> Ranks:
        return Ranks(self.optimistic_B[key], self.pessimistic_B[key], self.candidates_B[key])

    def of_type(self, rank_type: RankType) -> npt.NDArray[np.float64]:
        """The ranks as float64; realistic is the mean of the other two.

        >>> Ranks(np.array([2]), np.array([4]), np.array([5])).of_type("realistic").item()
        3.0
        """
        if rank_type == "optimistic":
            return self.optimistic_B.astype(np.float64)
        if rank_type == "pessimistic":
            return self.pessimistic_B.astype(np.float64)
        return (self.optimistic_B + self.pessimistic_B) / 2.0

    @classmethod
    def concatenate(cls, parts: list[Ranks]) -> Ranks:
        """Join ranks in order."""
        empty = [Ranks(*(np.zeros(0, np.int64) for _ in range(3)))]
        parts = parts or empty
        return cls(
            np.concatenate([p.optimistic_B for p in parts]),
            np.concatenate([p.pessimistic_B for p in parts]),
            np.concatenate([p.candidates_B for p in parts]),
        )


def rank_answers(
    scores_BN: Floats, answers_B: IntArray, known: tuple[IntArray, IntArray] | None = None
) -> Ranks:
    """Rank each answer among N candidates, the other known answers filtered out.

    Args:
        scores_BN: finite float32 scores, higher is better; not modified.
        answers_B: column of the true answer of each row.
        known: (rows, columns) of known answers; the row's own answer stays a candidate.

    Raises:
        ModelError: when a score is not finite.

    >>> r = rank_answers(np.array([[0.9, 0.5, 0.5, 0.5, 0.1]], np.float32), np.array([1]))
    >>> r.optimistic_B.item(), r.pessimistic_B.item(), r.candidates_B.item()
    (2, 4, 5)
    """
    check_finite(scores_BN)
    b, n = scores_BN.shape
    # 1) among all candidates
    true_B1 = np.take_along_axis(scores_BN, answers_B[:, None], 1)
    higher_B = (scores_BN > true_B1).sum(1)
    at_least_B = (scores_BN >= true_B1).sum(1)
    candidates_B = np.full(b, n)
    # 2) less the other known answers
    if known is not None:
        rows, columns = known
        others = columns != answers_B[rows]
        rows, columns = rows[others], columns[others]
        known_scores, true = scores_BN[rows, columns], true_B1[rows, 0]
        higher_B -= np.bincount(rows[known_scores > true], minlength=b)
        at_least_B -= np.bincount(rows[known_scores >= true], minlength=b)
        candidates_B -= np.bincount(rows, minlength=b)
    return Ranks(higher_B + 1, at_least_B, candidates_B)


def half_interval(reciprocal_B: FloatArray) -> float:
    """Half of the 95 % interval of a mean reciprocal rank: 1.96 standard errors over triples.

    Args:
        reciprocal_B: of both queries of each triple, all heads and then all tails. If each triple has only
            one query, the means of pairs have the same standard error.
    """
    per_triple = reciprocal_B.reshape(2, -1).mean(0) if len(reciprocal_B) % 2 == 0 else reciprocal_B
    return float(1.96 * per_triple.std() / np.sqrt(len(per_triple)))


def summarize(ranks: Ranks, rank_type: RankType = "realistic") -> dict[str, float]:
    """Metrics of one set of ranks under PyKEEN's names; an empty set has only its count.

    MR is ``arithmetic_mean_rank``, MRR ``inverse_harmonic_mean_rank``. The adjusted metrics
    (Berrendorf et al., 2020) compare with uniformly random ranks and are given for realistic ranks only.

    >>> m = summarize(Ranks(np.array([1, 2]), np.array([1, 2]), np.array([3, 3])))
    >>> m["inverse_harmonic_mean_rank"], m["hits_at_1"], m["count"]
    (0.75, 0.5, 2.0)
    """
    result = {"count": float(len(ranks))}
    if not len(ranks):
        return result
    r = ranks.of_type(rank_type)
    result["inverse_harmonic_mean_rank"] = float((1 / r).mean())
    result["arithmetic_mean_rank"] = float(r.mean())
    result["median_rank"] = float(np.median(r))
    for k in HITS_AT:
        result[f"hits_at_{k}"] = float((r <= k).mean())
    if rank_type == "realistic":
        expected = float((ranks.candidates_B + 1).mean() / 2)
        result["adjusted_arithmetic_mean_rank"] = float(r.mean() / expected)
        index = float(1 - (r.mean() - 1) / (expected - 1)) if expected > 1 else 0.0  # as PyKEEN has it
        result["adjusted_arithmetic_mean_rank_index"] = index
    return result


def expected_hits(ranks: Ranks, negatives: int, k: int) -> float:
    """Mean chance that the answer is among the best k of itself and ``negatives`` random negatives.

    The closed form of NBFNet (Zhu et al., 2021): with f the share of all negatives that score at least as
    high (pessimistic), ``sum over i < k of C(negatives, i) f^i (1 - f)^(negatives - i)``.

    >>> round(expected_hits(Ranks(np.array([1]), np.array([2]), np.array([3])), negatives=2, k=1), 4)
    0.25
    """
    others = np.maximum(ranks.candidates_B - 1, 1)
    f_B = (ranks.pessimistic_B - 1) / others
    terms = [
        float(math.comb(negatives, i)) * f_B**i * (1 - f_B) ** (negatives - i)
        for i in range(min(k, negatives + 1))
    ]
    return float(np.sum(terms, axis=0).mean())


def sides(ranks: Ranks, tail_B: BoolArray) -> Iterator[tuple[str, Ranks]]:
    """Head, tail and both (all queries together, as PyKEEN and the papers average)."""
    yield "head", ranks[~tail_B]
    yield "tail", ranks[tail_B]
    yield "both", ranks


def flat_metrics(ranks: Ranks, tail_B: BoolArray) -> dict[str, float]:
    """All metrics as ``side.rank_type.metric``, sorted by key.

    >>> m = flat_metrics(Ranks(*(np.array([1, 2]) for _ in range(3))), np.array([False, True]))
    >>> m["tail.realistic.inverse_harmonic_mean_rank"]
    0.5
    """
    flat = {
        f"{side}.{rank_type}.{metric}": value
        for side, part in sides(ranks, tail_B)
        for rank_type in RANK_TYPES
        for metric, value in summarize(part, rank_type).items()
    }
    return dict(sorted(flat.items()))


def headline(metrics: Mapping[str, float]) -> float:
    """Filtered both-side realistic MRR out of :func:`flat_metrics`."""
    return metrics["both.realistic.inverse_harmonic_mean_rank"]


BINS = 15  # of equal mass
DRAWS = 1000  # of the bootstrap
_SMALLEST = 1e-12  # what a probability is at least in a logarithm


@dataclass(frozen=True)
class Bins:
    """A reliability diagram: probabilities in order, cut into bins of equal mass.

    Attributes:
        predicted_K: mean probability of each bin.
        observed_K: share of positives in each bin.
        mass_K: weight of each bin; all together 1.
    """

    predicted_K: FloatArray
    observed_K: FloatArray
    mass_K: FloatArray

    @property
    def error(self) -> float:
        """The expected calibration error: the mean distance of the two (Naeini et al., 2015)."""
        return float((self.mass_K * np.abs(self.predicted_K - self.observed_K)).sum())


def binned(labels: BoolArray, probabilities: FloatArray, weights: FloatArray, bins: int = BINS) -> Bins:
    """Bins of equal mass. Equal probabilities share a bin, so there may be fewer; a heavy one is a bin alone.

    >>> bins = binned(np.array([False, True]), np.array([0.25, 0.75]), np.ones(2), bins=2)
    >>> bins.predicted_K.tolist(), bins.observed_K.tolist(), bins.error
    ([0.25, 0.75], [0.0, 1.0], 0.25)
    """
    return _binned(np.unique(probabilities, return_inverse=True)[1], labels, probabilities, weights, bins)


def _binned(
    which: IntArray, labels: BoolArray, probabilities: FloatArray, weights: FloatArray, bins: int = BINS
) -> Bins:
    """:func:`binned` of probabilities whose order is known: ``which`` is the number of each value."""
    mass = np.bincount(which, weights)
    middle = (np.cumsum(mass) - mass / 2) / mass.sum()
    at = np.minimum((middle * bins).astype(np.int64), bins - 1)[which]
    mass_K, predicted_K, observed_K = (
        np.bincount(at, weights * x, bins) for x in (np.ones_like(weights), probabilities, labels)
    )
    filled_K = mass_K > 0
    mass_K = mass_K[filled_K]
    return Bins(predicted_K[filled_K] / mass_K, observed_K[filled_K] / mass_K, mass_K / mass_K.sum())


def brier(labels: BoolArray, probabilities: FloatArray, weights: FloatArray) -> float:
    """The mean squared distance of probability and truth (Brier, 1950)."""
    return float(np.average((probabilities - labels) ** 2, weights=weights))


def log_loss(labels: BoolArray, probabilities: FloatArray, weights: FloatArray) -> float:
    """The mean negative log-likelihood of the truth, in nats."""
    right = np.where(labels, probabilities, 1 - probabilities)
    return float(np.average(-np.log(np.maximum(right, _SMALLEST)), weights=weights))


def measured(
    labels: BoolArray,
    probabilities: FloatArray,
    weights: FloatArray,
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[str, Any]:
    """All figures of probabilities: how well they decide, rank, and come true.

    Args:
        draws: of the bootstrap; 0 is none.

    Returns:
        ``accuracy`` (of deciding at .5), ``auc``, ``average_precision``, ``brier``, ``log_loss``, ``ece`` and
        its ``ece_95`` (a percentile interval; it is wide and lies too high where triples are few, since
        chance only adds to a distance), and the counts.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    figures: dict[str, Any] = {
        "positives": int(labels.sum()),
        "negatives": int((~labels).sum()),
        "accuracy": float(np.average((probabilities >= 0.5) == labels, weights=weights)),
        "brier": brier(labels, probabilities, weights),
        "log_loss": log_loss(labels, probabilities, weights),
        "ece": binned(labels, probabilities, weights).error,
    }
    if labels.any() and not labels.all():
        figures["auc"] = float(roc_auc_score(labels, probabilities, sample_weight=weights))
        precision = average_precision_score(labels, probabilities, sample_weight=weights)
        figures["average_precision"] = float(precision)
    if draws:
        drawn = _bootstrap(labels, probabilities, weights, draws, seed)
        figures["ece_95"] = [float(x) for x in np.percentile(drawn, [2.5, 97.5])]
    return figures


def _bootstrap(
    labels: BoolArray, probabilities: FloatArray, weights: FloatArray, draws: int, seed: int
) -> FloatArray:
    """ECE of samples of triples with replacement, each as often as it was drawn."""
    count, rng = len(labels), np.random.default_rng(seed)
    which = np.unique(probabilities, return_inverse=True)[1]
    errors = np.empty(draws)
    for draw in range(draws):
        times = np.bincount(rng.integers(0, count, count), minlength=count)
        errors[draw] = _binned(which, labels, probabilities, weights * times).error
    return errors


KEY = ["head", "relation", "tail", "target"]
COLUMNS = [*KEY, "optimistic", "pessimistic", "candidates"]
SCORES_DIGEST = b"kgmlm.made_by"  # metadata key: which scores of its run a file is of


def write_ranks(
    path: Path,
    graph: KnowledgeGraph,
    triples: IntArray,
    tail_B: BoolArray,
    ranks: Ranks,
    scores_B: Floats,
    scores_digest: str = "",
    *,
    follow: bool = False,
) -> None:
    """Ranks of the queries of each triple as Parquet, keyed by labels, whole or not at all.

    Args:
        triples: (n, 3) ids; row i of the ranks belongs to triple ``i % n``.
        scores_B: the answers' scores.
        scores_digest: identifies the scores of the run that the ranks are of.
        follow: follow a link, and write into a pipe or a device.
    """
    labels = graph.labels(np.tile(triples, (len(tail_B) // len(triples), 1)))
    table = pa.table(
        {
            **{name: labels.column(name).cast(pa.string()) for name in labels.column_names},
            "target": np.where(tail_B, "tail", "head").tolist(),
            "score": scores_B,
            "optimistic": ranks.optimistic_B,
            "pessimistic": ranks.pessimistic_B,
            "candidates": ranks.candidates_B,
        }
    )
    files.write_parquet(path, table.replace_schema_metadata({SCORES_DIGEST: scores_digest}), follow=follow)


def find_ranks(path: Path, split: str = "test") -> Path:
    """The ranks of a run folder, or the Parquet file itself; of one side where both were not asked.

    Raises:
        DataError: when the run has no ranks of the split, or there is nothing at the path.
    """
    if path.is_file():
        return path
    file = path / "ranks" / f"{files.safe_name(split)}.parquet"
    if file.is_file():
        return file
    of_side = [one for side in ("tail", "head") if (one := file.with_suffix(f".{side}.parquet")).is_file()]
    if len(of_side) == 1:
        return of_side[0]
    if not path.exists():
        raise DataError(f"{path} does not exist")
    have = ", ".join(sorted(p.stem for p in (path / "ranks").glob("*.parquet"))) or "none"
    raise DataError(
        f"{path} has no ranks of '{split}' (it has: {have}); "
        f"`kgmlm evaluate {quoted(path)} --split {split}` makes them; another file of ranks can be given "
        "itself"
    )


def read_ranks(path: Path) -> pd.DataFrame:
    """Per-query ranks, as an evaluation wrote them.

    Raises:
        DataError: when the file has not their columns, or has a query twice with different ranks.
    """
    import pandas as pd

    try:
        read = files.read_parquet(path, COLUMNS)
        read.validate(full=True)  # text that is no UTF-8
        table = read.to_pandas()
    except Exception as error:  # whatever a file that is no Parquet makes the library raise
        why = first_line(error)[:120]
        raise DataError(f"{path} cannot be read as Parquet: {why}") from None
    missing = [c for c in COLUMNS if c not in table]
    if missing:
        raise DataError(f"{path} has no column '{missing[0]}'; ranks are written by `kgmlm evaluate`")
    table = pd.DataFrame(table[COLUMNS])
    if not len(table):
        raise DataError(f"{path} has no ranks")
    wrong = next((c for c in COLUMNS if not _fits(table[c], number=c not in KEY)), None)
    if wrong is not None:
        what = "text" if wrong in KEY else "whole numbers"
        raise DataError(f"{path}: the column '{wrong}' is not {what} in all rows")
    if not table["target"].isin(TARGETS).all():
        raise DataError(f"{path}: a target is {' or '.join(TARGETS)}")
    try:
        Ranks(*(table[c].to_numpy(np.int64) for c in COLUMNS[len(KEY) :]))
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    twice = table.duplicated(KEY)
    if twice.sum() != table.duplicated().sum():
        raise DataError(f"{path} has a query twice, with different ranks")
    return table


def _fits(column: pd.Series[Any], *, number: bool) -> bool:
    """Return whether a column is of whole numbers, or of text, in all rows."""
    from pandas.api.types import infer_dtype

    if column.isna().any():
        return False
    kind = infer_dtype(column)
    return kind == "integer" and column.dtype != np.uint64 if number else kind == "string"


def scores_digest(path: Path) -> str:
    """The digest of the weights that a file of ranks was made with; empty if it does not say.

    Raises:
        DataError: when it is no Parquet file.
    """
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}") from None
    return str(metadata.get(SCORES_DIGEST, b""), "utf-8", "replace")
