"""What training asks of an objective, and what it is told of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch

from kgmlm.objectives.streams import BatchStream, Task
from kgmlm.states import SpanOutput

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
        """What a checkpoint keeps."""

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Go back to a checkpoint's state."""


class Stateless:
    """The state of losses that keep nothing beside the model."""

    residuals: torch.nn.Module | None = None

    def state(self) -> dict[str, torch.Tensor]:
        """Nothing."""
        return {}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Objective(Generic[_Stream]):
    """What a training reads and minimizes.

    Attributes:
        stream: makes its stream of micro-batches.
        losses: makes its loss, of the same task and its stream.
        keeps_last: it learns something else than ranking, so the last model is kept, not the one that ranks
            best.
    """

    stream: Callable[[Task], _Stream]
    losses: Callable[[Task, _Stream], Losses]
    keeps_last: bool = False
