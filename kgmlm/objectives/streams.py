"""Streams of micro-batches: functions of the seed and of the position in them, bucketed by length."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from kgmlm.config import TrainingSettings
from kgmlm.filters import GroupedAnswers
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import FloatArray, IntArray, Queries
from kgmlm.ranker import Ranker

BUCKET = 50  # batches that are sorted by length together

_Sample = TypeVar("_Sample")
_Batch = TypeVar("_Batch")


class Stretch(NamedTuple):
    """Micro-batches of one size that were read one after the other."""

    size: int
    batches: int


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
    """What a run trains on, whatever its objective.

    Attributes:
        share: (rank, world size) of this process, which reads a share of each batch.
        first: what a reranker reranks.
    """

    ranker: Ranker
    graph: KnowledgeGraph
    settings: TrainingSettings
    share: tuple[int, int] = (0, 1)
    first: Ranker | None = None


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
        self._resumed: tuple[int, list[Stretch]] = (-1, [])  # an epoch, and how it began
        self._begins = 0  # the position at which it goes on

    def __len__(self) -> int:
        """How many samples an epoch has."""
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
        """The tokens of some rows; ``rng`` draws what each time is another."""

    @abstractmethod
    def _length(self, encoded: _Sample) -> int:
        """What samples are bucketed by."""

    @abstractmethod
    def _batch(self, rows: IntArray, encoded: list[_Sample], chances: FloatArray, mine: IntArray) -> _Batch:
        """Pad some samples.

        Args:
            rows, encoded: of all processes.
            chances: a number in [0, 1) for each, to draw by.
            mine: which of them this process reads, one at least.
        """

    def _mine(self, count: int) -> tuple[IntArray, float]:
        """Which of the samples of a micro-batch this process reads, and how much its mean loss counts: the
        mean over processes is to be the mean over samples.
        """
        rank, world = self.share
        mine = np.arange(rank, count, world)
        weight = len(mine) * world / count
        return (mine, weight) if len(mine) else (np.zeros(1, np.int64), 0.0)

    def _buckets(self, epoch: int, stretches: Sequence[Stretch]) -> Iterator[Bucket]:
        """What an epoch has left after some stretches of it, in buckets."""
        rng = np.random.default_rng([self.settings.seed, epoch])
        rows, key = self.samples[rng.permutation(len(self))], [self.settings.seed, epoch]
        for number, (size, batches) in enumerate(stretches, 1):
            left, buckets = [], self._cut(rows, size, rng, key)
            for bucket in buckets:
                taken = min(batches, len(bucket.shuffled))
                batches -= taken
                if not taken:
                    left.append(bucket.rows)
                elif taken < len(bucket.shuffled):
                    *_, places = self._opened(bucket, size)
                    left.append(bucket.rows[np.concatenate([places(i) for i in bucket.shuffled[taken:]])])
            rows = np.concatenate([rows[:0], *left])
            key = [self.settings.seed, epoch, number, 0]
            rng = np.random.default_rng(key)
        yield from self._cut(rows, self.size, rng, key)

    def _cut(self, rows: IntArray, size: int, rng: np.random.Generator, key: list[int]) -> Iterator[Bucket]:
        """Rows in buckets of batches of a size, each with the order of its batches."""
        for start in range(0, len(rows), BUCKET * size):
            some = rows[start : start + BUCKET * size]
            yield Bucket(some, rng.permutation(math.ceil(len(some) / size)), [*key, start])

    def _opened(
        self, bucket: Bucket, size: int
    ) -> tuple[list[_Sample], FloatArray, Callable[[int], IntArray]]:
        """The tokens of a bucket, a number in [0, 1) for each sample, and where those of a batch are."""
        drawing = np.random.default_rng(bucket.key)
        encoded = self._encode(bucket.rows, drawing)
        by_length = np.argsort([self._length(e) for e in encoded], kind="stable")
        return encoded, drawing.random(len(bucket.rows)), lambda i: by_length[i * size : (i + 1) * size]

    def _epoch(self, epoch: int, skip: int) -> Iterator[tuple[_Batch, float]]:
        stretches = self._resumed[1] if epoch == self._resumed[0] else []
        for bucket in self._buckets(epoch, stretches):
            if skip >= len(bucket.shuffled):
                skip -= len(bucket.shuffled)
                continue
            encoded, chances, places = self._opened(bucket, self.size)
            for i in bucket.shuffled[skip:]:
                at = places(i)
                mine, weight = self._mine(len(at))
                batch = self._batch(bucket.rows[at], [encoded[j] for j in at], chances[at], mine)
                yield batch, weight
            skip = 0

    def weighed(self, position: int, epochs: int | None = None) -> Iterator[tuple[_Batch, float]]:
        """The stream from one micro-batch on; it ends after the last epoch, or after so many.

        Yields:
            This process's share of each, and how much its mean loss counts in the mean over all processes.
        """
        for epoch in range(position // self.per_epoch, epochs or math.ceil(self.settings.epochs)):
            begins = self._begins if epoch == self._resumed[0] else epoch * self.per_epoch
            yield from self._epoch(epoch, max(0, position - begins))

    def from_position(self, position: int, epochs: int | None = None) -> Iterator[_Batch]:
        """As :meth:`weighed`, the batches alone."""
        return (batch for batch, _ in self.weighed(position, epochs))

    def resumed(self, stretches: Sequence[Stretch]) -> int:
        """Go on where micro-batches of other sizes have ended: no sample of the epoch is read again.

        Args:
            stretches: of the stream, from its beginning.

        Returns:
            The position there, in micro-batches of today's size: within one of them of what was read.
        """
        epoch, left, begun = 0, len(self), list[Stretch]()
        for size, batches in stretches:
            while batches:
                there = math.ceil(left / size)
                taken = min(batches, there)
                batches -= taken
                if taken == there:
                    epoch, left, begun = epoch + 1, len(self), []
                else:
                    begun.append(Stretch(size, taken))
                    self._resumed = (epoch, begun)
                    left = sum(len(bucket.rows) for bucket in self._buckets(epoch, begun))
        self._resumed = (epoch, begun)
        self._begins = (epoch + 1) * self.per_epoch - math.ceil(left / self.size)
        return self._begins


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
