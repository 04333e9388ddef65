"""Objectives, and their streams of micro-batches: functions of the seed and of the position.

Where training has too many entities to score all of them, the softmax of a step goes over a sample: answers
of its queries, the queries' own entities and recent answers are always scored; all others are represented by
a sample of them, drawn without replacement, each standing for as many as were not drawn. So a sum over the
candidates is an unbiased estimate of the sum over all entities (importance weights of sampled softmax; Bengio
and Senecal, 2003; here of a stratified sample, whose probabilities are exact).

Several processes gather what each has read, with gradients.

Shapes: B queries, S entities seen in training, M candidates of a step; E rows of all processes, of which
process r of W has those at r, r + W, r + 2 W, ...; D their width.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import distributed

from kgmlm.core.arrays import FloatArray, IntArray
from kgmlm.core.config import TrainingSettings
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Columns, GroupedAnswers, Queries
from kgmlm.ranking.ranker import Ranker
from kgmlm.text.torch_model import SpanOutput

BUCKET = 50  # batches that are sorted by length together
_Sample = TypeVar("_Sample")
_Batch = TypeVar("_Batch")


class Bucket(NamedTuple):
    """Samples whose micro-batches are made of like lengths.

    Attributes:
        rows: the samples.
        shuffled: the order of the micro-batches.
        key: seeds what is drawn of it.
    """

    rows: IntArray
    shuffled: IntArray
    key: list[int]


@dataclass(frozen=True)
class Task:
    """The data of a training, whatever its objective.

    Attributes:
        share: (rank, world size) of this process, which reads a share of each batch.
    """

    ranker: Ranker
    graph: KnowledgeGraph
    settings: TrainingSettings
    share: tuple[int, int] = (0, 1)


class BatchStream(ABC, Generic[_Sample, _Batch]):
    """Micro-batches by epoch and position; a subclass says how samples are encoded and how they are padded.

    Several processes read a micro-batch together, each a share of its samples: so what a step learns from
    depends on how many samples all have, not on how many processes there are.

    Args:
        samples: the rows that an epoch has, in any order.
    """

    def __init__(self, task: Task, samples: IntArray) -> None:
        self.ranker = task.ranker
        self.settings = task.settings
        self.share = task.share
        self.samples = samples

    def __len__(self) -> int:
        """Return how many samples an epoch has."""
        return len(self.samples)

    @property
    def size(self) -> int:
        """Samples of a micro-batch, of all processes together."""
        return self.settings.batch_size * self.share[1]

    @property
    def per_epoch(self) -> int:
        """Micro-batches in an epoch."""
        return max(1, math.ceil(len(self) / self.size))

    def check(self, queries: Queries) -> None:
        """See whether queries of all kinds fit into a text.

        Raises:
            ModelError: when one does not.
        """
        self.ranker.reader.encode(queries)

    @abstractmethod
    def _encode(self, rows: IntArray, rng: np.random.Generator) -> list[_Sample]:
        """The tokens of some rows; ``rng`` draws whatever differs from one time to the next."""

    @abstractmethod
    def _length(self, encoded: _Sample) -> int:
        """The length that samples are bucketed by."""

    @abstractmethod
    def _batch(self, rows: IntArray, encoded: list[_Sample], chances: FloatArray, mine: IntArray) -> _Batch:
        """Pad some samples.

        Args:
            rows, encoded: of all processes.
            chances: a number in [0, 1) for each, to draw by.
            mine: which of them this process reads, one at least.
        """

    def _mine(self, count: int) -> tuple[IntArray, float]:
        """The samples of a micro-batch that this process reads, and how much its mean loss counts: the
        mean over processes is to be the mean over samples.
        """
        rank, world = self.share
        mine = np.arange(rank, count, world)
        weight = len(mine) * world / count
        return (mine, weight) if len(mine) else (np.zeros(1, np.int64), 0.0)

    def _buckets(self, epoch: int) -> Iterator[Bucket]:
        """The samples of an epoch, shuffled, in buckets."""
        rng = np.random.default_rng([self.settings.seed, epoch])
        rows = self.samples[rng.permutation(len(self))]
        for start in range(0, len(rows), BUCKET * self.size):
            some = rows[start : start + BUCKET * self.size]
            shuffled = rng.permutation(math.ceil(len(some) / self.size))
            yield Bucket(some, shuffled, [self.settings.seed, epoch, start])

    def _epoch(self, epoch: int, skip: int) -> Iterator[tuple[_Batch, float]]:
        """The micro-batches of an epoch but for the first ones, as :meth:`weighed` yields them."""
        for bucket in self._buckets(epoch):
            if skip >= len(bucket.shuffled):
                skip -= len(bucket.shuffled)
                continue
            drawing = np.random.default_rng(bucket.key)
            encoded = self._encode(bucket.rows, drawing)
            by_length = np.argsort([self._length(e) for e in encoded], kind="stable")
            chances = drawing.random(len(bucket.rows))
            for i in bucket.shuffled[skip:]:
                at = by_length[i * self.size : (i + 1) * self.size]
                mine, weight = self._mine(len(at))
                yield self._batch(bucket.rows[at], [encoded[j] for j in at], chances[at], mine), weight
            skip = 0

    def weighed(self, position: int, epochs: int | None = None) -> Iterator[tuple[_Batch, float]]:
        """The stream from one micro-batch on; it ends after the last epoch, or after so many.

        Yields:
            This process's share of each, and how much its mean loss counts in the mean over all processes.
        """
        for epoch in range(position // self.per_epoch, epochs or math.ceil(self.settings.epochs)):
            yield from self._epoch(epoch, max(0, position - epoch * self.per_epoch))

    def from_position(self, position: int, epochs: int | None = None) -> Iterator[_Batch]:
        """As :meth:`weighed`, the batches alone."""
        return (batch for batch, _ in self.weighed(position, epochs))


class QueryStream(BatchStream[_Sample, _Batch]):
    """Micro-batches of the training queries: each once an epoch, or once for each of its answers.

    Attributes:
        queries: the distinct ones, with their answers; samples are rows of them.
    """

    def __init__(self, task: Task) -> None:
        self.queries: Queries
        self.answers: GroupedAnswers
        self.queries, self.answers = task.graph.unique_queries("train")
        samples: IntArray = np.arange(len(self.queries))
        if task.settings.samples == "triples":
            samples = np.repeat(samples, np.diff(self.answers.offsets))
        super().__init__(task, samples)

    def _drawn(self, rows: IntArray, chances: FloatArray) -> IntArray:
        """One answer of each query, by its number in [0, 1)."""
        first, end = self.answers.offsets[rows], self.answers.offsets[rows + 1]
        return self.answers.ids[first + (chances * (end - first)).astype(np.int64)]


_Stream = TypeVar("_Stream", bound=BatchStream[Any, Any])


class Losses(Protocol):
    """A loss as a function of a batch, and what it remembers between batches.

    Attributes:
        residuals: what is learned beside the model; in training by several processes, wrapped.
    """

    residuals: torch.nn.Module | None

    def __call__(self, model: Callable[..., SpanOutput], batch: Any) -> torch.Tensor:
        """The loss of one micro-batch, a scalar."""

    def state(self) -> dict[str, torch.Tensor]:
        """The tensors that a checkpoint keeps."""

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Go back to a checkpoint's state."""


@dataclass(frozen=True)
class Objective(Generic[_Stream]):
    """An objective: the samples that a training reads, and the loss that it minimizes.

    Attributes:
        stream: makes its stream of micro-batches.
        losses: makes its loss, of the same task and its stream.
    """

    stream: Callable[[Task], _Stream]
    losses: Callable[[Task, _Stream], Losses]


ANSWERS = 64  # answers of a query that are always candidates; for hubs, this many are drawn
RECENT = 2  # one in this many candidates is a recent answer


class Recent:
    """The latest entities of some kind, newest first, each once.

    Args:
        size: how many are kept.
        entities: of the graph.
    """

    def __init__(self, size: int, entities: int) -> None:
        self.size, self.entities = size, entities
        self.ids_M: IntArray = np.zeros(0, np.int64)

    def others(self, entity_ids: IntArray) -> IntArray:
        """Places of the remembered entities that are not among those given."""
        return np.flatnonzero(Columns(entity_ids).of(self.ids_M) < 0)

    def joined(self, entity_ids: IntArray) -> IntArray:
        """Entities that all differ, then those remembered beside them; they are remembered from now on."""
        ids_M = np.concatenate([entity_ids, self.ids_M[self.others(entity_ids)]])
        self.ids_M = ids_M[: self.size]
        return ids_M

    def restored(self, ids_M: torch.Tensor) -> None:
        """Go back to what a checkpoint kept.

        Raises:
            ValueError: when these are not entities of the graph.
        """
        fits = (ids_M.ndim, ids_M.dtype) == (1, torch.int64)
        if not fits or ((ids_M < 0) | (ids_M >= self.entities)).any():
            raise ValueError("the remembered entities are not those of the graph")
        self.ids_M = ids_M.numpy()


@dataclass(frozen=True)
class Drawn:
    """The entities that are drawn for a batch.

    Attributes:
        answers: of its queries, at most :data:`ANSWERS` of each.
        others: of all seen entities, each at most once.
    """

    answers: IntArray
    others: IntArray


class Drawing:
    """Draws candidates of batches.

    Args:
        seen: the entities that training triples have; no other is ever a negative.
        candidates: how many a step scores beside answers and entities of its own queries.
    """

    def __init__(self, seen: IntArray, candidates: int) -> None:
        self.seen = seen
        self.recent = candidates // RECENT
        self.count = min(candidates - self.recent, len(seen))

    def draw(self, known: GroupedAnswers, rows: IntArray, rng: np.random.Generator) -> Drawn:
        """Candidates for some queries."""
        first, end = known.offsets[rows], known.offsets[rows + 1]
        few = end - first <= ANSWERS
        _, answers = known.take(rows[few])
        of_hubs = [
            known.ids[a + rng.choice(b - a, ANSWERS, replace=False)]
            for a, b in zip(first[~few], end[~few], strict=True)
        ]
        others = self.seen[rng.choice(len(self.seen), self.count, replace=False)]
        return Drawn(np.unique(np.concatenate([answers, *of_hubs])), others)


@dataclass(frozen=True)
class Sampled:
    """The candidates of a step.

    Attributes:
        columns: those that are always scored, then the others that were drawn.
        log_weight_M: the logarithm of how many entities each stands for.
    """

    columns: Columns
    log_weight_M: FloatArray

    @classmethod
    def of(cls, always: IntArray, drawn: IntArray, seen: int) -> Sampled:
        """The candidates of a step: those that are always scored, and a sample of all seen entities.

        >>> sample = Sampled.of(np.array([4, 5]), np.array([5, 6, 9]), 10)
        >>> sample.columns.ids_M.tolist(), np.exp(sample.log_weight_M).tolist()
        ([4, 5, 6, 9], [1.0, 1.0, 4.0, 4.0])
        """
        others = drawn[Columns(always).of(drawn) < 0]
        each = np.log((seen - len(always)) / len(others)) if len(others) else 0.0
        log_weight_M = np.repeat([0.0, each], [len(always), len(others)])
        return cls(Columns(np.concatenate([always, others])), log_weight_M)


def interleaved(mine_SD: torch.Tensor, share: tuple[int, int], count: int) -> torch.Tensor:
    """The rows ``(E, D)`` of all processes, of which this one has read some; all must call it.

    A row's gradient is the sum of those that it has in all processes, and goes to the one that has read it.

    Args:
        mine_SD: rows of this process; those beyond its own, which it has read for nothing, are left out.
        share: (rank, world size) of this process.
        count: E.
    """
    if share[1] == 1:
        return mine_SD
    whole: torch.Tensor = _Interleaved.apply(mine_SD, *share, count)  # type: ignore[no-untyped-call]
    return whole


class _Interleaved(torch.autograd.Function):
    """The exchange; in float32, which every backend knows how to add."""

    @staticmethod
    def forward(ctx: Any, mine_SD: torch.Tensor, rank: int, world: int, count: int) -> torch.Tensor:
        sizes = [len(range(r, count, world)) for r in range(world)]
        padded = mine_SD.new_zeros(max(sizes), mine_SD.shape[1], dtype=torch.float32)
        padded[: sizes[rank]] = mine_SD[: sizes[rank]]
        parts = [torch.empty_like(padded) for _ in sizes]
        distributed.all_gather(parts, padded)
        found_ED = padded.new_empty(count, padded.shape[1])
        for r, (part, size) in enumerate(zip(parts, sizes, strict=True)):
            found_ED[r::world] = part[:size]
        ctx.rank, ctx.world, ctx.size = rank, world, sizes[rank]
        ctx.kind, ctx.shape = mine_SD.dtype, mine_SD.shape
        return found_ED.to(mine_SD.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        whole_ED = gradients[0].float().contiguous().clone()
        distributed.all_reduce(whole_ED)
        mine_SD = whole_ED.new_zeros(ctx.shape)
        mine_SD[: ctx.size] = whole_ED[ctx.rank :: ctx.world]
        return mine_SD.to(ctx.kind), None, None, None
