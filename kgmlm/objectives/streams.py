"""Streams of micro-batches: functions of the seed and of the position in them, bucketed by length."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from kgmlm.config import TrainingSettings
from kgmlm.filters import GroupedAnswers
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import FloatArray, IntArray, Queries
from kgmlm.ranker import Ranker
from kgmlm.signals.kge import KGE

BUCKET = 50  # batches that are sorted by length together

_Sample = TypeVar("_Sample")
_Batch = TypeVar("_Batch")


@dataclass(frozen=True)
class Task:
    """What a run trains on, whatever its objective.

    Attributes:
        share: (rank, world size) of this process; every process gets equally many batches.
        first: what a reranker reranks.
        teacher: a KGE model of the graph that is learned of as well.
    """

    ranker: Ranker
    graph: KnowledgeGraph
    settings: TrainingSettings
    share: tuple[int, int] = (0, 1)
    first: Ranker | None = None
    teacher: KGE | None = None


class BatchStream(ABC, Generic[_Sample, _Batch]):
    """Micro-batches by epoch and position; a subclass says how samples are encoded and how they are padded.

    Args:
        samples: the rows that an epoch has, in any order.
    """

    def __init__(self, task: Task, samples: IntArray) -> None:
        self.ranker = task.ranker
        self.settings = task.settings
        self.share = task.share
        self.samples = samples

    def __len__(self) -> int:
        """How many samples an epoch has."""
        return len(self.samples)

    @property
    def per_epoch(self) -> int:
        """Micro-batches of this process in an epoch."""
        return max(1, math.ceil(len(self) / self.settings.batch_size) // self.share[1])

    @abstractmethod
    def _encode(self, rows: IntArray, rng: np.random.Generator) -> list[_Sample]:
        """The tokens of some rows; ``rng`` draws what each time is another."""

    @abstractmethod
    def _length(self, encoded: _Sample) -> int:
        """What samples are bucketed by."""

    @abstractmethod
    def _batch(self, rows: IntArray, encoded: list[_Sample], chances: FloatArray) -> _Batch:
        """Pad some samples; ``chances`` are a number in [0, 1) for each, to draw by."""

    def _epoch(self, epoch: int, skip: int) -> Iterator[_Batch]:
        rng = np.random.default_rng([self.settings.seed, epoch])
        order = rng.permutation(len(self))
        size = self.settings.batch_size
        rank, world = self.share
        number = -1
        for start in range(0, len(order), BUCKET * size):
            rows = self.samples[order[start : start + BUCKET * size]]
            count = math.ceil(len(rows) / size)
            shuffled = rng.permutation(count)
            mine = [i for i in range(count) if (start // size + i) % world == rank]
            if number + len(mine) < skip:
                number += len(mine)
                continue
            drawing = np.random.default_rng([self.settings.seed, epoch, start])
            encoded = self._encode(rows, drawing)
            chances = drawing.random(len(rows))
            by_length = np.argsort([self._length(e) for e in encoded], kind="stable")
            for i in mine:
                number += 1
                if number >= self.per_epoch:
                    return
                if number < skip:
                    continue
                at = by_length[shuffled[i] * size : (shuffled[i] + 1) * size]
                yield self._batch(rows[at], [encoded[j] for j in at], chances[at])

    def from_position(self, position: int, epochs: int | None = None) -> Iterator[_Batch]:
        """The stream from one micro-batch on; it ends after the last epoch, or after so many."""
        for epoch in range(position // self.per_epoch, epochs or math.ceil(self.settings.epochs)):
            yield from self._epoch(epoch, position - epoch * self.per_epoch if position else 0)
            position = 0


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
