"""Objectives: the samples that a training step reads, and the loss that it minimizes.

The stream of micro-batches is a function of the seed and of the position in it; a loss is a function of a
batch and of a memory that checkpoints keep. To add an objective: a file beside these with an
:class:`Objective`, a line in :data:`OBJECTIVES`, and its name in ``TrainingSettings.objective``.
"""

from __future__ import annotations

import math
from typing import Any

from kgmlm.core.config import TrainingSettings
from kgmlm.core.errors import ConfigError
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.ranking.ranker import Ranker
from kgmlm.training.objectives.entity import ENTITY, TOKEN
from kgmlm.training.objectives.streams import BatchStream, Losses, Objective, Task

__all__ = [
    "OBJECTIVES",
    "BatchStream",
    "Losses",
    "Objective",
    "Task",
    "objective",
    "stream_of",
]
OBJECTIVES: dict[str, Objective[Any]] = {
    "entity": ENTITY,
    "token": TOKEN,
}


def stream_of(task: Task) -> BatchStream[Any, Any]:
    """The stream of a task's objective.

    Raises:
        ConfigError: when an epoch has fewer samples than there are processes, or training fewer batches than
            are accumulated.
    """
    stream: BatchStream[Any, Any] = OBJECTIVES[task.settings.objective].stream(task)
    if task.share[1] > len(stream):
        raise ConfigError(
            f"an epoch has only {len(stream)} samples for {task.share[1]} processes; start fewer"
        )
    there_are = math.ceil(task.settings.epochs) * stream.per_epoch
    if task.settings.accumulation > there_are:
        raise ConfigError(
            f"training.accumulation {task.settings.accumulation}: training has only {there_are} batches; "
            "give more training.epochs or less of it"
        )
    return stream


def objective(
    ranker: Ranker,
    graph: KnowledgeGraph,
    settings: TrainingSettings,
    share: tuple[int, int],
) -> tuple[BatchStream[Any, Any], Losses]:
    """The stream and the loss of a run's objective.

    Args:
        share: (rank, world size) of this process.

    Raises:
        ConfigError: as :func:`stream_of` says.
    """
    task = Task(ranker, graph, settings, share)
    stream = stream_of(task)
    return stream, OBJECTIVES[settings.objective].losses(task, stream)
