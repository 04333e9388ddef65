"""For how many steps a run is trained, and at what learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from kgmlm.checkpoints import State
from kgmlm.config import TrainingSettings
from kgmlm.runs import RunFolder


@dataclass(frozen=True)
class Plan:
    """For how many steps a run is trained.

    Attributes:
        laid: steps that the schedule is laid for, as if all had been of today's size.
        total: steps after which the run has ended.
        last: the step to stop at.
        every: steps from one validation to the next.
        epochs: how often the stream is gone through at most.
        ahead: how many more steps of today's size it would have taken to come where the run is; below 0 where
            it would have been fewer.
    """

    laid: int
    total: int
    last: int
    every: int
    epochs: int
    ahead: int = 0

    @classmethod
    def of(
        cls,
        settings: TrainingSettings,
        per_epoch: int,
        state: State,
        max_steps: int | None,
        ahead: int = 0,
    ) -> Plan:
        """The plan of a run whose epochs have ``per_epoch`` micro-batches; its state says if it is ending."""
        accumulation = settings.accumulation
        laid = _steps(settings, settings.epochs, per_epoch)
        total = laid - ahead if state.decay_from < 0 else state.decay_from + state.decay_steps
        between = min(settings.eval_every * per_epoch, accumulation * (total + 1.0))  # or inf
        every = max(1, math.ceil(between / accumulation * (1 - 1e-9)))  # so the last comes with the end
        epochs = math.ceil((total + ahead) * accumulation / per_epoch)
        return cls(laid, total, min(total, max_steps or total), every, epochs, ahead)

    def validates(self, step: int) -> bool:
        """Whether a validation is due after a step."""
        return (step + self.ahead) % self.every == 0


def peak_learning_rate(run: RunFolder) -> float:
    """The run's peak learning rate; "auto" is higher for models from scratch."""
    rate = run.settings.training.learning_rate
    if rate == "auto":
        return 2e-3 if run.record["model"] == "scratch" else 3e-4
    return rate


def rate_factor(
    settings: TrainingSettings, total: int, state: State, ahead: int = 0
) -> Callable[[int], float]:
    """What the peak learning rate is multiplied by at each step of a run.

    Args:
        total: steps that the schedule is laid for.
        state: whether and from where on the rate falls to nothing ahead of time.
        ahead: as of :class:`Plan`.
    """
    warmup = round(settings.warmup * total)

    def laid(step: int) -> float:
        step = max(0, step + ahead)
        if step < warmup:
            return step / warmup
        if settings.schedule == "constant":
            return 1.0
        return max(0.0, (total - step) / max(1, total - warmup))

    def factor(step: int) -> float:
        if state.decay_from < 0 or step < state.decay_from:
            return laid(step)
        left = state.decay_from + state.decay_steps - step
        began = laid(state.decay_from) if state.decay_factor is None else state.decay_factor
        return began * max(0.0, left / state.decay_steps)

    return factor


def end_within(
    epochs: float, settings: TrainingSettings, per_epoch: int, state: State, ahead: int = 0
) -> None:
    """Have the rate of a run fall to nothing, from where its state is and within so many epochs."""
    laid = _steps(settings, settings.epochs, per_epoch)
    state.decay_factor = rate_factor(settings, laid, state, ahead)(state.step)
    state.decay_from, state.decay_steps = state.step, _steps(settings, epochs, per_epoch)


def _steps(settings: TrainingSettings, epochs: float, per_epoch: int) -> int:
    """Steps in so many epochs, one at least."""
    return max(1, int(epochs * per_epoch) // settings.accumulation)
