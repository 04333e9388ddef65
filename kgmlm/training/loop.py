"""The training loop: steps, learning rate, validations, checkpoints, exact resume, early stopping.

Validation comes in as a callback; this module knows nothing of evaluation.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from kgmlm.core.config import Settings, TrainingSettings
from kgmlm.core.errors import ConfigError
from kgmlm.core.machine import bound_memory, keep_memory, only_cpu, reduced
from kgmlm.core.processes import count_processes
from kgmlm.core.progress import Watcher
from kgmlm.ranking.ranker import Mixture, Ranker
from kgmlm.runs.folder import ENDED, RunFolder
from kgmlm.runs.writing import discard_checkpoints, save_model, write_record
from kgmlm.text.torch_model import SpanModel, bf16_fault, reduced_products, span_model
from kgmlm.training.objectives import objective
from kgmlm.training.start import (
    PROVISIONAL,
    MetricsLog,
    State,
    check_size,
    latest_checkpoint,
    load_checkpoint,
    own_state,
    save_checkpoint,
    save_state,
)

if TYPE_CHECKING:
    from accelerate import Accelerator


GRADIENT_NORM = 1.0  # to which gradients are scaled down
LATEST = 50  # latest steps, whose median is the time of a step
FIRST = 8  # steps before the total of a timed training is first estimated
VALIDATING = 0.2  # share of the time that three validations may take; otherwise only the last one runs


@dataclass(frozen=True)
class Plan:
    """For how many steps a run is trained.

    Attributes:
        laid: steps that the schedule is laid for.
        total: steps after which the run has ended.
        last: the step to stop at.
        every: steps from one validation to the next.
        epochs: how often the stream is gone through at most.
    """

    laid: int
    total: int
    last: int
    every: int
    epochs: int

    @classmethod
    def of(cls, settings: TrainingSettings, per_epoch: int, state: State, max_steps: int | None) -> Plan:
        """The plan of a run whose epochs have ``per_epoch`` micro-batches; its state says if it is ending."""
        accumulation = settings.accumulation
        laid = _steps(settings, settings.epochs, per_epoch)
        total = laid if state.decay_from < 0 else state.decay_from + state.decay_steps
        between = min(settings.eval_every * per_epoch, accumulation * (total + 1.0))  # or inf
        every = max(1, math.ceil(between / accumulation * (1 - 1e-9)))  # so the last comes with the end
        epochs = math.ceil(total * accumulation / per_epoch)
        return cls(laid, total, min(total, max_steps or total), every, epochs)

    def validates(self, step: int) -> bool:
        """Return whether a validation is due after a step."""
        return step % self.every == 0


class TimeLimit(NamedTuple):
    """The time that a training is to take.

    Attributes:
        seconds: the time that it normally takes.
        longest: the time at most, where fewer than ``least`` steps fit into ``seconds``.
    """

    seconds: float
    longest: float = 0.0
    least: int = 0


class Timed:
    """The time of a training that ends by the clock, and how far it has gone.

    The time of a validation is measured; until then, it is estimated from the time of a step.

    Args:
        limit: the time for everything, the validation at the end included.
        began: when the training would have begun in one go, by the monotonic clock.
        validation: the estimated time of a validation, in steps.
        after: the estimated time of the work after the last validation, in steps.
    """

    def __init__(self, limit: TimeLimit, began: float, validation: float = 0.0, after: float = 0.0) -> None:
        self.limit, self.seconds, self.began = limit, limit.seconds, began
        self.steps: deque[float] = deque(maxlen=LATEST)  # seconds of the latest ones
        self.validation: float | None = None  # seconds of the latest one
        self._validation, self._after = validation, after
        self._third = int(3 * self.progress)

    @property
    def _per_step(self) -> float:
        return median(self.steps) if self.steps else 0.0

    @property
    def _validating(self) -> float:
        return self._validation * self._per_step if self.validation is None else self.validation

    @property
    def _training(self) -> float:
        """Seconds until the last validation."""
        return max(1e-3, self.seconds - self._validating - self._after * self._per_step)

    @property
    def progress(self) -> float:
        """The share of the training that has passed; at 1 the last validation is due."""
        return min(1.0, (time.monotonic() - self.began) / self._training)

    @property
    def steps_left(self) -> int:
        """Steps that fit into the time left, by the median of the latest ones."""
        return max(0, round((1 - self.progress) * self._training / max(1e-6, self._per_step)))

    def extended(self, step: int) -> str:
        """Take more time where too few steps fit; says so, or returns nothing.

        Args:
            step: the number of steps that are done.
        """
        fit, least = step + self.steps_left, self.limit.least
        if fit >= least or self.seconds >= self.limit.longest:
            return ""
        more = (least - fit) * self._per_step
        self.seconds = min(self.limit.longest, self.seconds + more)
        return (
            f"steps take {self._per_step:.1f} s, longer than planned: the masked LM has "
            f"{self.seconds / 60:.1f} minutes instead of {self.limit.seconds / 60:.1f}"
        )

    def validates(self) -> bool:
        """Return whether a validation is due: after one and two thirds, if validations are short."""
        third = int(3 * self.progress)
        if third <= self._third or third > 2 or 3 * self._validating > VALIDATING * self.seconds:
            return False
        self._third = third
        return True


def validation_steps(run: RunFolder) -> tuple[float, float]:
    """The time of a validation, and of reading all entities that it leaves out, in training steps.

    A step reads a batch of queries and as many entities, and its backward pass takes twice as long.
    """
    settings, count = run.settings, len(run.graph.entities)
    vector = settings.vector.max_length if settings.vector.enabled else 0
    among = settings.training.validated(count)
    of_step = 3 * settings.training.batch_size * (settings.text.max_length + vector)
    asked = len(run.graph.splits["valid"])
    queries = 2 * min(asked, settings.training.eval_triples or asked)
    return (
        (queries * settings.text.max_length + (among or count) * vector) / of_step,
        count * vector / of_step if among else 0.0,
    )


def peak_learning_rate(run: RunFolder) -> float:
    """The run's peak learning rate; "auto" is higher for models from scratch."""
    rate = run.settings.training.learning_rate
    if rate == "auto":
        return 2e-3 if run.record["model"] == "scratch" else 3e-4
    return rate


def rate_factor(settings: TrainingSettings, total: int, state: State) -> Callable[[float], float]:
    """The factor of the peak learning rate at each step of a run.

    Args:
        total: steps that the schedule is laid for.
        state: whether and from where on the rate falls to nothing ahead of time.
    """
    warmup = round(settings.warmup * total)

    def laid(step: float) -> float:
        if step < warmup:
            return step / warmup
        if settings.schedule == "constant":
            return 1.0
        return max(0.0, (total - step) / max(1, total - warmup))

    def factor(step: float) -> float:
        if state.decay_from < 0 or step < state.decay_from:
            return laid(step)
        left = state.decay_from + state.decay_steps - step
        return state.decay_factor * max(0.0, left / state.decay_steps)

    return factor


def end_within(epochs: float, settings: TrainingSettings, per_epoch: int, state: State) -> None:
    """Make the learning rate of a run fall to zero, from its current step on and within ``epochs``."""
    laid = _steps(settings, settings.epochs, per_epoch)
    state.decay_factor = rate_factor(settings, laid, state)(state.step)
    state.decay_from, state.decay_steps = state.step, _steps(settings, epochs, per_epoch)


def _steps(settings: TrainingSettings, epochs: float, per_epoch: int) -> int:
    """Steps in so many epochs, one at least."""
    return max(1, int(epochs * per_epoch) // settings.accumulation)


class Interrupted(KeyboardInterrupt):
    """A signal has interrupted training; a checkpoint is saved.

    Attributes:
        signal: its number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by signal {number}")
        self.signal = number


def train_watched(
    run: RunFolder, ranker: Ranker, validation: Any, resume_command: str, watch: Watcher, **options: Any
) -> Outcome:
    """Train while somebody watches, and say how it ended; ``resume_command`` is the command that continues.

    Raises:
        Interrupted: when a signal stopped it.
    """

    if (count := count_processes()) > 1:
        size = run.settings.training.batch_size
        watch.tell(
            f"{count} processes read {size} samples each per batch, {count * size:,} together; neither "
            "training.batch_size nor training.learning_rate is scaled with their number"
        )
    with watch:
        outcome = train(run, ranker, validation, reporter=watch, **options)
    best = "" if outcome.best_mrr is None else f", best validation MRR {outcome.best_mrr:.4f}"
    watch.tell(
        f"{outcome.status} at step {outcome.step} after {outcome.minutes:.1f} minutes{best}; "
        f"the run is in {run.path}"
    )
    if outcome.status == "max steps":
        watch.tell(f"train further with: {resume_command} --max-steps N")
    if outcome.signal is not None:
        watch.tell(f"continue with: {resume_command}")
        raise Interrupted(outcome.signal)
    return outcome


Status = Literal["finished", "stopped early", "max steps", "interrupted"]
Validate = Callable[[Ranker], tuple[Mixture, Mapping[str, float]]]


@dataclass(frozen=True)
class Outcome:
    """The end of a training. ``signal`` is the number of the signal that interrupted it, if any: one
    that arrives when only the last validation is left interrupts nothing.
    """

    status: Status
    step: int
    minutes: float
    best_mrr: float | None
    signal: int | None = None


def train(
    run: RunFolder,
    ranker: Ranker,
    validate: Validate | None = None,
    *,
    max_steps: int | None = None,
    decay: float | None = None,
    resume: bool = False,
    tracker: str | None = None,
    reporter: Watcher | None = None,
    device: str | None = None,
    limit: TimeLimit | None = None,
) -> Outcome:
    """Train a run's model.

    The best model by validation MRR is kept in ``RUN/model``, and the last one where there is no validation
    or the objective learns something else than ranking.
    SIGINT and SIGTERM save a checkpoint and return with status "interrupted".

    Args:
        validate: returns the mixture to keep with the model, and metrics with an ``mrr``; None for graphs
            without a validation split.
        max_steps: stop there, the schedule still laid for all epochs, so that a resumed run goes on as
            if it had never stopped. The validation there chooses nothing; its model is kept only where there
            is none yet.
        decay: end the run so many epochs from here on, over which the learning rate falls to nothing; a run
            that is ending already goes on ending as it began to.
        resume: go on from the newest checkpoint; ``ranker`` comes from :func:`.start.resume_run`.
        tracker: an accelerate tracker, such as "tensorboard"; its files go to ``RUN/logs``.
        device: "cpu" ignores any GPU, "cuda:1" takes that one; None leaves the choice to accelerate.
        limit: end the run after this time, which includes validations and earlier processes. The
            learning rate follows the time, and validations come after each third of it, or at the end alone
            where they take long. The epochs of the settings bound it, too.

    Raises:
        ConfigError: when the loss is no longer finite.
        OSError: when the disk is full; the last checkpoint is then intact.
    """
    accelerator = _accelerator(run, tracker, device, span_model(ranker.reader.model), reporter or Watcher())
    checkpoint = latest_checkpoint(run.path) if resume else None
    training = _Training(
        run,
        ranker,
        accelerator,
        validate,
        reporter or Watcher(),
        checkpoint=checkpoint,
        max_steps=max_steps,
        decay=decay,
        limit=limit,
    )
    if accelerator.is_main_process:
        write_record(run, status="started")
    with reduced_products(accelerator.mixed_precision == "bf16"), _catch_signals() as caught:
        try:
            status = training.go(caught)
        finally:
            training.close()
    state, minutes = training.state, training.minutes
    if accelerator.is_main_process:
        write_record(
            run,
            status=status,
            step=state.step,
            done=round(state.step / training.plan.total, 6),
            minutes=round(minutes, 2),
            best_valid_mrr=state.best_mrr,
        )
        if status in ENDED:
            discard_checkpoints(run.path)
    signaled = caught[0] if caught and status == "interrupted" else None
    return Outcome(status, state.step, minutes, state.best_mrr, signaled)


class _Training:
    """A training under way: what is trained, and how; how far it has come, and what of that is saved."""

    def __init__(
        self,
        run: RunFolder,
        ranker: Ranker,
        accelerator: Accelerator,
        validate: Validate | None,
        reporter: Watcher,
        *,
        checkpoint: Path | None,
        max_steps: int | None,
        decay: float | None,
        limit: TimeLimit | None,
    ) -> None:
        self.run, self.ranker, self.settings = run, ranker, run.settings.training
        self.accelerator, self.validate, self.reporter = accelerator, validate, reporter
        # Else whoever called reads them at the end.
        self.reads_all = not self.settings.validated(len(run.graph.entities))
        self.model = _placed(span_model(ranker.reader.model), self.settings, accelerator)
        process = (accelerator.process_index, accelerator.num_processes)
        self.stream, self.losses = objective(ranker, run.graph, self.settings, process)
        self.optimizer = _optimizer(self.model, self.losses.residuals, run.settings, peak_learning_rate(run))
        self.state = State()
        if checkpoint is not None:
            check_size(checkpoint, self.stream.size, self.settings.batch_size)
            self.state = load_checkpoint(checkpoint, self.model, self.optimizer, self.losses, process[0])
        self.state.size = self.stream.size
        self.ends_now = decay is not None and self.state.decay_from < 0
        if decay is not None and self.ends_now:
            end_within(decay, self.settings, self.stream.per_epoch, self.state)
        self.plan = Plan.of(self.settings, self.stream.per_epoch, self.state, max_steps)
        factor = rate_factor(self.settings, self.plan.laid, self.state)
        self.started = time.monotonic() - 60 * self.state.minutes
        self.timed: Timed | None = None
        if limit is not None:
            validation = (0.0, 0.0) if validate is None else validation_steps(run)
            self.timed = Timed(limit, self.started, *validation)
        for group in self.optimizer.param_groups:
            group["initial_lr"] = group["lr"]  # what a schedule that starts midway asks for
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: factor(self._position(step)), self.state.step - 1
        )
        self.prepared = accelerator.prepare(self.model)
        self.trained = [self.prepared]
        if self.losses.residuals is not None:
            self.losses.residuals = accelerator.prepare(self.losses.residuals)
            self.trained.append(self.losses.residuals)
        self.prepared_optimizer = accelerator.prepare(self.optimizer)
        # Of several processes one writes.
        log = run.path / "metrics.jsonl" if accelerator.is_main_process else None
        self.log = MetricsLog(log, self.state.step, None if checkpoint is None else self.state.validated)
        self.saved, self.saved_step = time.monotonic(), -1 if checkpoint is None else self.state.step

    def _position(self, step: int) -> float:
        """The position in the schedule: the step, or the one that the elapsed time implies if it is later."""
        return step if self.timed is None else max(step, self.timed.progress * self.plan.laid)

    @property
    def minutes(self) -> float:
        """The minutes that the run has been trained, in this process and before."""
        return (time.monotonic() - self.started) / 60

    def _forget(self) -> None:
        """Forget what was read of entities: the model has changed."""
        if self.ranker.vectors is not None:
            self.ranker.vectors.forget()

    def go(self, caught: list[int]) -> Status:
        """Train to the end of the plan, or until a signal is caught; says how it ended."""
        state = self.state
        self.reporter.start(self.plan.total, state.step)
        self.began_step = state.step
        if not state.step:
            self.save()
        elif self.ends_now:
            self._save_state()  # a kill must not forget that the run was asked to end
        self.model.train()
        status = self._steps(caught)
        if status != "interrupted" and state.validated != state.step:
            self._validation()
        if status in ("interrupted", "max steps"):
            self.save()
        if self.validate is None and status != "interrupted" and self.accelerator.is_main_process:
            self._forget()
            save_model(self.run, self.ranker, self.reads_all)
        return status

    def _steps(self, caught: list[int]) -> Status:
        """The steps, with what comes between them: validations, and a checkpoint now and then."""
        state, plan, settings = self.state, self.plan, self.settings
        batches = self.stream.weighed(state.step * settings.accumulation, plan.epochs)
        while state.step < plan.last:
            due = plan.validates(state.step) if self.timed is None else self.timed.validates()
            if state.step and due and state.validated != state.step:
                self._validation()
            if self.timed is not None and self.timed.progress >= 1 and state.step:
                return "finished"
            if settings.patience and state.bad_validations >= settings.patience:
                return "stopped early"
            self._step(batches)
            old = time.monotonic() - self.saved > 60 * settings.checkpoint_minutes
            stop, due = self._together(bool(caught), old)
            if stop:
                return "interrupted"
            if due:
                self.save()
        return "max steps" if state.step < plan.total else "finished"

    def _step(self, batches: Iterator[tuple[Any, float]]) -> None:
        """One optimizer step, from the gradients of some micro-batches."""
        accelerator, state = self.accelerator, self.state
        began, mean_loss = time.monotonic(), 0.0
        for _ in range(self.settings.accumulation):
            batch, weight = next(batches)
            with accelerator.accumulate(*self.trained):
                loss = self.losses(self.prepared, batch)
                loss = loss if weight == 1 else loss * weight
                accelerator.backward(loss)
                mean_loss += loss.item() / self.settings.accumulation
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(self.model.parameters(), GRADIENT_NORM)
                self.prepared_optimizer.step()
                self.prepared_optimizer.zero_grad()
        bound_memory()
        mean_loss = self._mean(mean_loss)
        if not math.isfinite(mean_loss):
            raise ConfigError(
                f"the loss is {mean_loss} at step {state.step + 1}; lower training.learning_rate"
            )
        state.step += 1
        rate = float(self.schedule.get_last_lr()[0])
        self.schedule.step()
        self.log.write(step=state.step, loss=mean_loss, learning_rate=rate)
        accelerator.log({"loss": mean_loss, "learning_rate": rate}, step=state.step)
        self.reporter.step(state.step, mean_loss)
        if self.timed is not None:
            self.timed.steps.append(time.monotonic() - began)
            if state.step - self.began_step == FIRST:
                self._expect()

    def _expect(self) -> None:
        """Tell the reporter the total of steps that fit into the time."""
        assert self.timed is not None
        if total := self.timed.extended(self.state.step):
            self.reporter.tell(total)
        self.reporter.expect(min(self.plan.total, self.state.step + self.timed.steps_left))

    def _mean(self, loss: float) -> float:
        """The mean over all processes, each of which has the loss of its share of the batch."""
        if self.accelerator.num_processes == 1:
            return loss
        return float(self.accelerator.reduce(torch.tensor(loss, device=self.accelerator.device), "mean"))

    def _together(self, *flags: bool) -> list[bool]:
        """Set flags in all processes if any has set them, so that all stop and save at the same step."""
        if self.accelerator.num_processes == 1:
            return list(flags)
        counts = self.accelerator.reduce(torch.tensor(flags, device=self.accelerator.device).float())
        return [bool(count) for count in counts]

    def _validation(self) -> None:
        """Validate, keep the model where it is the best, and remember so."""
        if self.validate is None:
            return
        state = self.state
        self.save()  # a model that is better than the checkpoint's must not outlive a crash without it
        self._forget()
        began = time.monotonic()
        mixture, metrics = self.validate(self.ranker)
        mrr = metrics["mrr"]
        # A validation that only --max-steps asked for chooses nothing; else a resumed run would differ.
        chooses = self.plan.validates(state.step) or state.step == self.plan.total
        if self.timed is not None:
            self.timed.validation = time.monotonic() - began
            chooses = state.step < self.plan.last or self.plan.last == self.plan.total
            self._expect()
        self.log.write(
            step=state.step,
            minutes=round(self.minutes, 3),
            **({} if chooses else {PROVISIONAL: True}),
            **{f"valid_{k}": v for k, v in metrics.items()},
        )
        self.accelerator.log({f"valid_{k}": v for k, v in metrics.items()}, step=state.step)
        better = state.best_mrr is None or mrr > state.best_mrr
        keep = better if chooses else state.best_mrr is None
        if keep and self.accelerator.is_main_process:
            save_model(self.run, self.ranker.replace(mixture=mixture), self.reads_all)
        if chooses:
            state.bad_validations = 0 if better else state.bad_validations + 1
            state.best_mrr = mrr if better else state.best_mrr
            state.validated = state.step
            self._save_state()  # a crash must not forget which model was the best
        self.reporter.validated(mrr, mrr if state.best_mrr is None else state.best_mrr)
        self.model.train()

    def save(self) -> None:
        """Write a checkpoint, from the states of all processes."""
        from accelerate.utils import gather_object

        self.state.minutes = self.minutes
        if self.state.step == self.saved_step:
            self._save_state()  # nothing was trained since, and writing all again would risk what is there
            return
        own = gather_object([own_state(self.losses, self.model.device)])
        if self.accelerator.is_main_process:
            save_checkpoint(self.run.path, self.ranker, self.optimizer, own, self.state)
        self.saved, self.saved_step = time.monotonic(), self.state.step

    def _save_state(self) -> None:
        """Write into the checkpoint of this step what has changed beside its tensors."""
        if self.accelerator.is_main_process:
            save_state(self.run.path / "checkpoints" / f"step-{self.state.step:08d}", self.state)

    def close(self) -> None:
        """Close the logs, and give the model back as it came: in float32."""
        self.log.close()
        self.accelerator.end_training()
        self.accelerator.unwrap_model(self.prepared, keep_fp32_wrapper=False)
        self.model.attend("sdpa")


def _accelerator(
    run: RunFolder, tracker: str | None, device: str | None, model: SpanModel, reporter: Watcher
) -> Accelerator:
    """The accelerator: where and how precisely a run is trained; arguments as of :func:`train`."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    settings = run.settings.training
    keep_memory()
    on_cpu = only_cpu() or device == "cpu"
    # An earlier training of this process may have had another precision or device.
    AcceleratorState._reset_state(reset_partial_state=int(os.environ.get("WORLD_SIZE", "1")) == 1)
    if device is not None and device.startswith("cuda:"):
        torch.cuda.set_device(device)
    precision = _precision(settings, on_cpu)
    if precision == "bf16" and (why := bf16_fault(model.mlm)):
        reporter.tell(f"the model is trained in fp32, since it fails in bf16: {why}")
        precision = "no"
    accelerator = Accelerator(
        cpu=on_cpu,
        mixed_precision=precision,
        gradient_accumulation_steps=settings.accumulation,
        log_with=tracker,
        project_dir=run.path / "logs" if tracker else None,
    )
    if tracker:
        sections = run.settings.model_dump(exclude_none=True).items()
        flat = {f"{name}.{key}": value for name, of in sections for key, value in of.items()}
        accelerator.init_trackers("kgmlm", config={"run": str(run.path), "dataset": run.graph.name, **flat})
    return accelerator


def _placed(model: SpanModel, settings: TrainingSettings, accelerator: Accelerator) -> SpanModel:
    """The model on its device, seeded and set up as the settings say."""
    torch.manual_seed(settings.seed + accelerator.process_index)  # so that each draws its own dropout
    model = model.to(accelerator.device)
    if settings.dropout is not None:
        model.set_dropout(settings.dropout)
    if accelerator.mixed_precision == "bf16" and model.device.type == "cpu":
        model.attend("eager")  # as plain matrix products, which bf16 units do fast
    return model


def _optimizer(
    model: SpanModel, residuals: torch.nn.Module | None, settings: Settings, learning_rate: float
) -> torch.optim.AdamW:
    """Fused AdamW; no weight decay on biases and norms, residuals at a rate of their own."""
    decay = settings.training.weight_decay
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if residuals is not None:
        rate = settings.vector.residual_rate
        groups.append({"params": list(residuals.parameters()), "weight_decay": decay, "lr": rate})
    return torch.optim.AdamW(groups, lr=learning_rate, fused=True)


@contextmanager
def _catch_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of dying of them; a second SIGINT interrupts at once."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def note(number: int, frame: Any) -> None:
        if caught and number == signal.SIGINT:
            raise KeyboardInterrupt
        caught.append(number)

    old = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _precision(settings: TrainingSettings, on_cpu: bool) -> str:
    """The precision in accelerate's words."""
    on_gpu = not on_cpu and torch.cuda.is_available()
    return "bf16" if reduced(settings.precision, on_gpu) else "no"
