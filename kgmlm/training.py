"""The training loop: schedule, checkpoints, exact resume, early stopping.

Validation comes in as a callback; this room knows nothing of evaluation.

The stream of micro-batches is a function of the seed and of the position in it, so a checkpoint is a step
number, weights, optimizer moments and random states, and a resumed run has the losses of an unbroken one.
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from pydantic import TypeAdapter, ValidationError

from kgmlm import digests, files
from kgmlm.config import Settings, StructureSettings, TrainingSettings
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import ConfigError, RunError
from kgmlm.machine import fast_bf16, keep_memory
from kgmlm.modeling import (
    Offsets,
    SpanModel,
    check_vocabulary,
    create_model,
    load_model,
    reduced_products,
)
from kgmlm.objectives import AnyLosses, objective, stream_of
from kgmlm.ranker import Ranker
from kgmlm.runs import (
    ENDED,
    Run,
    check_output,
    checkpoints,
    command,
    create_run,
    discard_checkpoints,
    hardware,
    model_address,
    open_run,
    save_model,
    versions,
)
from kgmlm.structure import Structure, train_structure
from kgmlm.tokenization import SpanTokenizer
from kgmlm.tokenizer_sources import load_tokenizer, train_tokenizer
from kgmlm.vocabulary import Vocabulary, of_each_relation, scratch_texts

Status = Literal["finished", "stopped early", "max steps", "interrupted"]
PROVISIONAL = "provisional"  # marks a validation in the log that an unbroken run would not have had


class Reporter(Protocol):
    """Who watches: a progress bar, or nobody."""

    def start(self, total: int, done: int) -> None:
        """Training begins at step ``done`` of ``total``."""

    def step(self, step: int, loss: float) -> None:
        """An optimizer step is done."""

    def validated(self, mrr: float, best: float) -> None:
        """A validation is done."""


class Silent:
    """A reporter that says nothing."""

    def start(self, total: int, done: int) -> None:
        """Nothing."""

    def step(self, step: int, loss: float) -> None:
        """Nothing."""

    def validated(self, mrr: float, best: float) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Outcome:
    """How training ended. ``signal`` is the number of the signal that interrupted it, if one did: one that
    came when all was done but the last validation has interrupted nothing.
    """

    status: Status
    step: int
    minutes: float
    best_mrr: float | None
    signal: int | None = None


def _on_cpu() -> bool:
    """Accelerate joins several CPU processes only when told that there is nothing else."""
    return not torch.accelerator.is_available()


def make_structure(
    graph: KnowledgeGraph,
    settings: StructureSettings,
    advance: Callable[[int, int], None] = lambda n, total: None,
    device: torch.device | None = None,
) -> tuple[Structure, dict[str, Any]]:
    """Train a structural model, and say how for the record; arguments as of ``train_structure``."""
    started = time.monotonic()
    structure = train_structure(graph, settings, advance, device)
    return structure, {
        "settings": settings.model_dump(mode="json"),
        "minutes": round((time.monotonic() - started) / 60, 2),
        "versions": versions(),
        "hardware": hardware(),
        "command": command(),
    }


def start_run(
    path: Path,
    graph: KnowledgeGraph,
    model_name: str,
    settings: Settings,
    *,
    overwrite: bool = False,
    teach: Callable[[], tuple[Structure, Mapping[str, Any]]] | None = None,
) -> tuple[Run, Ranker]:
    """Load or create the model, fix the vocabulary on the training entities, lay the run folder.

    Args:
        model_name: "scratch", a Hugging Face name, or a folder.
        teach: makes the teacher of a run whose settings have ``training.teaching``; by default
            :func:`make_structure`. It is called when all else is ready, before anything is written.

    Of several processes (``accelerate launch``) the main one lays the folder and the others open it.

    Raises:
        ConfigError: when an objective is to be taught that cannot be, or there are too few batches.
        ModelError: when the model cannot be used.
        ModelError: when a query does not fit ``text.max_length``, too.
        RunError: when the folder is in the way.
    """
    from accelerate import PartialState

    teaching, objective_name = settings.training.teaching, settings.training.objective
    if teaching and objective_name != "entity":
        raise ConfigError(f"training.teaching goes with the objective 'entity', not '{objective_name}'")

    # All wait while one of several processes trains the teacher.
    processes = PartialState(cpu=_on_cpu(), timeout=timedelta(days=1))
    if processes.is_main_process:
        check_output(path, overwrite)
    seed = settings.training.seed
    model_name = model_address(model_name)
    if model_name == "scratch":
        texts = scratch_texts(graph, settings.text)
        tokenizer = SpanTokenizer(train_tokenizer(texts, settings.scratch.vocabulary))
        model = create_model(
            len(tokenizer.tokenizer),
            tokenizer.pad_id,
            settings.scratch,
            settings.text.max_length,
            seed,
            spare=settings.rescoring.max_length,
        )
    else:
        model, tokenizer = load_model(model_name, seed), load_tokenizer(model_name)
        check_vocabulary(model, tokenizer, model_name)
    surfaces = graph.entities.column("surface")
    vocabulary = Vocabulary.fit(tokenizer, surfaces, graph.seen_N, settings)
    ranker = Ranker(graph.context, tokenizer, model, settings, vocabulary)
    stream_of(ranker, graph, settings.training, (processes.process_index, processes.num_processes))
    if objective_name != "rescore":
        ranker.encode(of_each_relation(graph))  # what cannot fit is said before anything is written
    if processes.is_main_process:
        teacher = (teach or partial(make_structure, graph, settings.structure))() if teaching else None
        run = create_run(
            path,
            graph,
            settings,
            model_name,
            vocabulary,
            names=ranker.candidates,
            overwrite=overwrite,
            teacher=teacher,
        )
    processes.wait_for_everyone()
    return run if processes.is_main_process else open_run(path), ranker


def resume_run(path: Path, device: str | None = None) -> tuple[Run, Ranker]:
    """Open an interrupted run at its newest checkpoint.

    Args:
        device: as :func:`train` has it.

    Raises:
        RunError: when it is no run, has ended, or has no checkpoint.
    """
    run = open_run(path)
    if run.record["status"] in ENDED:
        raise RunError(f"{path} has {run.record['status']} already; there is nothing to resume")
    checkpoint = latest_checkpoint(path)
    if checkpoint is None:
        raise RunError(f"{path} has no checkpoint to resume from; start again without --resume")
    digests.check_folder(checkpoint, contents=True)
    return run, run.ranker(device, folder=checkpoint / "model")


def peak_learning_rate(run: Run) -> float:
    """The run's peak learning rate; "auto" is higher for models from scratch."""
    rate = run.settings.training.learning_rate
    if rate == "auto":
        return 2e-3 if run.record["model"] == "scratch" else 3e-4
    return rate


@dataclass
class State:
    """What a checkpoint holds beside weights, moments and random states."""

    step: int = 0
    best_mrr: float | None = None
    bad_validations: int = 0
    minutes: float = 0.0
    validated: int = -1  # the step of the latest validation
    decay_from: int = -1  # the step from which on the learning rate falls to nothing, if it was asked to
    decay_steps: int = 0


def rate_factor(settings: TrainingSettings, total: int, state: State) -> Callable[[int], float]:
    """What the peak learning rate is multiplied by at each step of a run.

    Args:
        total: steps that the schedule is laid for.
        state: whether and from where on the rate falls to nothing ahead of time.
    """
    warmup = round(settings.warmup * total)

    def laid(step: int) -> float:
        if step < warmup:
            return step / warmup
        if settings.schedule == "constant":
            return 1.0
        return max(0.0, (total - step) / max(1, total - warmup))

    def factor(step: int) -> float:
        if state.decay_from < 0 or step < state.decay_from:
            return laid(step)
        left = state.decay_from + state.decay_steps - step
        return laid(state.decay_from) * max(0.0, left / state.decay_steps)

    return factor


def _optimizer(
    model: SpanModel, offsets: Offsets | None, settings: Settings, learning_rate: float
) -> torch.optim.AdamW:
    """Fused AdamW; no weight decay on biases and norms, offsets at a rate of their own."""
    decay = settings.training.weight_decay
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if offsets is not None:
        rate = settings.vector.offset_rate
        groups.append({"params": list(offsets.parameters()), "weight_decay": decay, "lr": rate})
    return torch.optim.AdamW(groups, lr=learning_rate, fused=True)


def own_state(losses: AnyLosses, device: torch.device) -> dict[str, torch.Tensor]:
    """What each process has of its own: random states, and what its objective remembers."""
    tensors = {"rng.cpu": torch.get_rng_state(), **losses.state()}
    if device.type == "cuda":
        tensors["rng.cuda"] = torch.cuda.get_rng_state(device)
    return tensors


def save_checkpoint(
    run: Path,
    ranker: Ranker,
    optimizer: torch.optim.Optimizer,
    own: Sequence[Mapping[str, torch.Tensor]],
    state: State,
) -> None:
    """Write a resumable state atomically, in safetensors, then drop the older ones.

    Args:
        own: what :func:`own_state` is in each process.
    """
    tensors = {f"{rank}.{k}": v for rank, mine in enumerate(own) for k, v in mine.items()}
    for index, values in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{k}": v.contiguous() for k, v in values.items()}
    folder = run / "checkpoints"
    files.refuse_link(folder)
    name = f"step-{state.step:08d}"
    with files.atomic_folder(folder / name) as temporary:
        save_model(ranker.model, ranker.tokenizer, temporary / "model")
        files.write_tensors(temporary / "state.safetensors", tensors)
        digests.write_manifest(temporary)
        save_state(temporary, state)
    discard_checkpoints(run, but=name)


def save_state(folder: Path, state: State) -> None:
    """Write what a checkpoint knows of training beside its tensors."""
    files.write_json(folder / "state.json", state.__dict__)


def read_state(folder: Path) -> State:
    """What :func:`save_state` wrote.

    Raises:
        ValueError: when it cannot be right.
    """
    try:
        state = TypeAdapter(State).validate_json((folder / "state.json").read_bytes(), strict=True)
    except ValidationError as error:
        raise ValueError(f"state.json: {error.errors()[0]['msg']}") from None
    numbers = (state.minutes, 0.0 if state.best_mrr is None else state.best_mrr)
    decaying = state.decay_from >= 0
    if (
        folder.name != f"step-{state.step:08d}"
        or not all(map(math.isfinite, numbers))
        or (decaying and state.decay_steps < 1)
    ):
        raise ValueError("state.json is not that of the checkpoint")
    return state


def latest_checkpoint(run: Path) -> Path | None:
    """The newest complete checkpoint of a run folder."""
    return next(reversed(checkpoints(run)), None)


def load_checkpoint(
    folder: Path, model: SpanModel, optimizer: torch.optim.Optimizer, losses: AnyLosses, rank: int = 0
) -> State:
    """Restore weights, moments and the own state of a process; returns the rest.

    A process beyond those that there were begins with the state of the first.
    """
    from safetensors.torch import load_file, load_model

    try:
        state = read_state(folder)
        tensors = load_file(folder / "state.safetensors")
        load_model(model.mlm, folder / "model" / "model.safetensors")
        prefix = f"{rank}." if f"{rank}.rng.cpu" in tensors else "0."
        # Without numbers where an older version wrote the state of one process.
        named = [k for k in tensors if k.startswith(prefix)] or [k for k in tensors if "optimizer." not in k]
        own = {k.removeprefix(prefix): tensors[k] for k in named}
        losses.restore(own)
        moments = _moments(tensors, optimizer)
        optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
        torch.set_rng_state(own["rng.cpu"])
        if model.device.type == "cuda" and "rng.cuda" in own:
            torch.cuda.set_rng_state(own["rng.cuda"], model.device)
    except Exception as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise RunError(f"{folder} cannot be read: {why}; {digests.RESTORE}") from None
    return state


def _moments(
    tensors: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer
) -> dict[int, dict[str, torch.Tensor]]:
    """The optimizer's moments in a checkpoint's tensors; fused kernels do not look whether these fit.

    Raises:
        ValueError: when they are not those of the parameters.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if not name.startswith("optimizer."):
            continue
        _, index, key = name.split(".")
        shape = () if key == "step" else parameters[int(index)].shape
        if tensor.shape != shape or tensor.dtype != torch.float32:
            raise ValueError(f"'{name}' is not that of the model")
        moments.setdefault(int(index), {})[key] = tensor.clone()  # aligned again, as in load_model
    keys = [moments.get(i, {}).keys() for i in range(len(parameters))]
    if any(keys) and keys != [{"step", "exp_avg", "exp_avg_sq"}] * len(parameters):
        raise ValueError("moments are missing")
    return moments


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


class MetricsLog:
    """``metrics.jsonl``: one object a step and one a validation.

    What lies behind a resumed step is cut, and so are validations that only ``max_steps`` asked for.
    """

    def __init__(self, path: Path | None, step: int) -> None:
        self._file = None
        if path is None:
            return
        kept = []
        if path.exists():
            for line in path.read_bytes().splitlines():
                try:
                    row = json.loads(line)
                    if row["step"] <= step and not row.get(PROVISIONAL):
                        kept.append(f"{line.decode()}\n")
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                    break  # a line that a crash cut short
        files.write_atomic(path, "".join(kept) if step else "")
        self._file = path.open("a", encoding="utf-8")

    def write(self, **values: float) -> None:
        """Append one object."""
        if self._file is not None:
            self._file.write(json.dumps(values) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _precision(settings: TrainingSettings, on_cpu: bool) -> str:
    if settings.precision == "auto":
        on_gpu = not on_cpu and torch.cuda.is_available()
        return "bf16" if (torch.cuda.is_bf16_supported() if on_gpu else fast_bf16()) else "no"
    return "bf16" if settings.precision == "bf16" else "no"


def train(
    run: Run,
    ranker: Ranker,
    validate: Callable[[Ranker], Mapping[str, float]] | None = None,
    *,
    max_steps: int | None = None,
    decay: float | None = None,
    resume: bool = False,
    tracker: str | None = None,
    reporter: Reporter | None = None,
    first: Ranker | None = None,
    device: str | None = None,
) -> Outcome:
    """Train a run's model.

    The best model by validation MRR is kept in ``RUN/model``, and the last one where there is no validation
    or the objective is "masked", which learns something else than ranking.
    SIGINT and SIGTERM save a checkpoint and return with status "interrupted".

    Args:
        validate: returns metrics with an ``mrr``; None for graphs without a validation split.
        max_steps: stop there, the schedule still laid for all epochs, so that a resumed run goes on as
            if it had never stopped. The validation there chooses nothing; its model is kept only where there
            is none yet.
        decay: end the run so many epochs from here on, over which the learning rate falls to nothing; a run
            that is ending already goes on ending as it began to.
        resume: go on from the newest checkpoint; ``ranker`` comes from :func:`resume_run`.
        tracker: an accelerate tracker, such as "tensorboard"; its files go to ``RUN/logs``.
        first: what the objective "rescore" rescores.
        device: "cpu" keeps off a GPU that there is, "cuda:1" takes that one; None leaves it to accelerate.

    Raises:
        ConfigError: when the loss is no longer finite, or the objective "rescore" has nothing to rescore.
        OSError: when the disk is full; the last checkpoint is then intact.
    """
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import gather_object

    settings = run.settings.training
    reporter = reporter or Silent()
    keep_memory()
    on_cpu = _on_cpu() or device == "cpu"
    precision = _precision(settings, on_cpu)
    # An earlier training of this process may have had another precision or device.
    AcceleratorState._reset_state(reset_partial_state=int(os.environ.get("WORLD_SIZE", "1")) == 1)
    if device is not None and device.startswith("cuda:"):
        torch.cuda.set_device(device)
    accelerator = Accelerator(
        cpu=on_cpu,
        mixed_precision=precision,
        gradient_accumulation_steps=settings.accumulation,
        log_with=tracker,
        project_dir=run.path / "logs" if tracker else None,
    )
    if tracker:
        accelerator.init_trackers("kgmlm")
    torch.manual_seed(settings.seed)
    model = ranker.model.to(accelerator.device)
    if settings.dropout is not None:
        model.set_dropout(settings.dropout)
    if precision == "bf16" and model.device.type == "cpu":
        model.attend("eager")  # as plain matrix products, which bf16 units do fast
    share = (accelerator.process_index, accelerator.num_processes)
    teacher = run.teacher(accelerator.device)
    stream, losses = objective(ranker, run.graph, settings, share, first, teacher)
    total = max(1, int(settings.epochs * stream.per_epoch) // settings.accumulation)
    checkpoint = latest_checkpoint(run.path) if resume else None
    optimizer = _optimizer(model, ranker.offsets, run.settings, peak_learning_rate(run))
    peaks = [group["lr"] for group in optimizer.param_groups]
    rank = accelerator.process_index
    state = load_checkpoint(checkpoint, model, optimizer, losses, rank) if checkpoint else State()
    if decay is not None and state.decay_from < 0:
        steps = max(1, int(decay * stream.per_epoch) // settings.accumulation)
        state.decay_from, state.decay_steps = state.step, steps
    factor = rate_factor(settings, total, state)
    total = total if state.decay_from < 0 else state.decay_from + state.decay_steps
    last = min(total, max_steps or total)
    for group, peak in zip(optimizer.param_groups, peaks, strict=True):
        group["initial_lr"] = group["lr"] = peak  # what a schedule that starts midway asks for
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor, last_epoch=state.step - 1)
    prepared = accelerator.prepare(model)
    if losses.offsets is not None:
        losses.offsets = accelerator.prepare(losses.offsets)
    trained = [prepared, *([losses.offsets] if losses.offsets is not None else [])]
    wrapped_optimizer = accelerator.prepare(optimizer)
    # Of several processes one writes; the others' losses are of their own batches.
    log = MetricsLog(run.path / "metrics.jsonl" if accelerator.is_main_process else None, state.step)
    started = time.monotonic() - 60 * state.minutes
    saved, saved_step = time.monotonic(), state.step if checkpoint else -1
    status: Status = "finished"

    def minutes() -> float:
        return (time.monotonic() - started) / 60

    def save() -> None:
        nonlocal saved, saved_step
        state.minutes = minutes()
        if state.step == saved_step:  # nothing was trained since, and writing again would risk what is there
            if accelerator.is_main_process:
                save_state(run.path / "checkpoints" / f"step-{state.step:08d}", state)
            return
        own = gather_object([own_state(losses, model.device)])
        if accelerator.is_main_process:
            save_checkpoint(run.path, ranker, optimizer, own, state)
        saved, saved_step = time.monotonic(), state.step

    def together(*flags: bool) -> list[bool]:
        """Flags that hold in any process, in all of them: they leave and save at the same step."""
        if accelerator.num_processes == 1:
            return list(flags)
        counts = accelerator.reduce(torch.tensor(flags, device=accelerator.device).float())
        return [bool(count) for count in counts]

    def validation() -> None:
        if validate is None:
            return
        save()  # a model that is better than the checkpoint's must not outlive a crash without it
        ranker.forget_vectors()
        metrics = validate(ranker)
        mrr = metrics["mrr"]
        # What only --max-steps asked for chooses nothing, or a run that stops and resumes would be another.
        chooses = state.step % every == 0 or state.step == total
        log.write(
            step=state.step,
            minutes=round(minutes(), 3),
            **({} if chooses else {PROVISIONAL: True}),
            **{f"valid_{k}": v for k, v in metrics.items()},
        )
        accelerator.log({f"valid_{k}": v for k, v in metrics.items()}, step=state.step)
        better = state.best_mrr is None or mrr > state.best_mrr or settings.objective == "masked"
        keep = better if chooses else state.best_mrr is None or settings.objective == "masked"
        if keep and accelerator.is_main_process:
            run.save_model(ranker)
        if chooses:
            state.bad_validations = 0 if better else state.bad_validations + 1
            state.best_mrr = mrr if better else state.best_mrr
            state.validated = state.step
            if accelerator.is_main_process:  # a crash must not forget which model was the best
                save_state(run.path / "checkpoints" / f"step-{state.step:08d}", state)
        reporter.validated(mrr, mrr if state.best_mrr is None else state.best_mrr)
        model.train()

    between = min(settings.eval_every * stream.per_epoch, settings.accumulation * (total + 1.0))  # or inf
    every = max(1, int(between) // settings.accumulation)
    reporter.start(total, state.step)
    with reduced_products(precision == "bf16"), _catch_signals() as caught:
        try:
            if not state.step:
                save()
            model.train()
            accumulated = 0.0
            epochs = math.ceil(total * settings.accumulation / stream.per_epoch)
            batches = stream.from_position(state.step * settings.accumulation, epochs)
            while state.step < last:
                if state.step and state.step % every == 0 and state.validated != state.step:
                    validation()
                if settings.patience and state.bad_validations >= settings.patience:
                    status = "stopped early"
                    break
                batch = next(batches)
                with accelerator.accumulate(*trained):
                    loss = losses(prepared, batch)
                    accelerator.backward(loss)
                    accumulated += loss.item() / settings.accumulation
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), settings.clip)
                    wrapped_optimizer.step()
                    wrapped_optimizer.zero_grad()
                if not accelerator.sync_gradients:
                    continue
                if not math.isfinite(accumulated):
                    raise ConfigError(
                        f"the loss is {accumulated} at step {state.step + 1}; lower training.learning_rate"
                    )
                state.step += 1
                rate = float(schedule.get_last_lr()[0])
                schedule.step()
                log.write(step=state.step, loss=accumulated, learning_rate=rate)
                accelerator.log({"loss": accumulated, "learning_rate": rate}, step=state.step)
                reporter.step(state.step, accumulated)
                accumulated = 0.0
                stop, due = together(
                    bool(caught), time.monotonic() - saved > 60 * settings.checkpoint_minutes
                )
                if stop:
                    status = "interrupted"
                    break
                if due:
                    save()
            if status == "finished" and state.step < total:
                status = "max steps"
            if status != "interrupted" and state.validated != state.step:
                validation()
            if status in ("interrupted", "max steps"):
                save()
            if validate is None and status != "interrupted" and accelerator.is_main_process:
                ranker.forget_vectors()
                run.save_model(ranker)
        finally:
            log.close()
            accelerator.end_training()
            accelerator.unwrap_model(prepared, keep_fp32_wrapper=False)  # float32 again
            model.attend("sdpa")
    if accelerator.is_main_process:
        run.update(status=status, step=state.step, minutes=round(minutes(), 2), best_valid_mrr=state.best_mrr)
        if status in ENDED:
            discard_checkpoints(run.path)
    signaled = caught[0] if caught and status == "interrupted" else None
    return Outcome(status, state.step, minutes(), state.best_mrr, signaled)
