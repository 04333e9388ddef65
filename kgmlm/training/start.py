"""Start of a training: a new run is created, or an interrupted one resumed from its checkpoint.

The stream of micro-batches is a function of the seed and of the position in it, so a checkpoint is a step
number, weights, optimizer moments and random states, and a resumed run has the losses of an unbroken one.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from kgmlm.core import digests, files
from kgmlm.core.config import Settings
from kgmlm.core.digests import RESTORE
from kgmlm.core.errors import ConfigError, RunError, first_line, quoted
from kgmlm.core.machine import only_cpu
from kgmlm.core.progress import Watcher
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.ranking.ranker import Ranker
from kgmlm.runs.folder import ENDED, RunFolder
from kgmlm.runs.models import check_vocabulary, open_text, save_model_files
from kgmlm.runs.opened import open_folder
from kgmlm.runs.provenance import command_line, hardware, model_address, versions
from kgmlm.runs.writing import check_output, checkpoints, create_run, discard_checkpoints
from kgmlm.signals import beside
from kgmlm.text.tokenization import (
    SpanTokenizer,
    Vocabulary,
    load_tokenizer,
    of_each_relation,
    scratch_texts,
    train_tokenizer,
)
from kgmlm.text.torch_model import SpanModel, create_model, load_model
from kgmlm.training.objectives import Task, stream_of
from kgmlm.training.objectives.streams import Losses
from kgmlm.training.recipes import Recipe

PROVISIONAL = "provisional"  # marks a validation in the log that an unbroken run would not have had


@dataclass
class State:
    """The state of a checkpoint beside weights, moments and random states."""

    step: int = 0
    best_mrr: float | None = None
    bad_validations: int = 0
    minutes: float = 0.0
    validated: int = -1  # the step of the latest validation
    decay_from: int = -1  # the step from which on the learning rate falls to nothing, if it was asked to
    decay_steps: int = 0
    decay_factor: float = 1.0  # of the peak learning rate, at that step
    moments: int | None = None  # parameters that have some; what never gets a gradient has none
    size: int = 0  # samples of a micro-batch, of all processes together


def own_state(losses: Losses, device: torch.device) -> dict[str, torch.Tensor]:
    """The state that each process has of its own: random states, and what its objective remembers."""
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
    trained = optimizer.state_dict()["state"]
    state.moments = len(trained)
    for index, values in trained.items():
        tensors |= {f"optimizer.{index}.{k}": v.contiguous() for k, v in values.items()}
    folder = run / "checkpoints"
    files.refuse_link(folder)
    name = f"step-{state.step:08d}"
    with files.atomic_folder(folder / name) as temporary:
        save_model_files(ranker.reader.model, ranker.reader.tokenizer, temporary / "model")
        digests.write_manifest(temporary / "model")
        files.write_tensors(temporary / "state.safetensors", tensors)
        digests.write_manifest(temporary)
        save_state(temporary, state)
    discard_checkpoints(run, but=name)


def save_state(folder: Path, state: State) -> None:
    """Write what a checkpoint knows of training beside its tensors."""
    files.write_json(folder / "state.json", state.__dict__)


def read_state(folder: Path) -> State:
    """Read the state that :func:`save_state` wrote.

    Raises:
        ValueError: when it cannot be right.
    """
    try:
        state = TypeAdapter(State).validate_json((folder / "state.json").read_bytes(), strict=True)
    except ValidationError as error:
        raise ValueError(f"state.json: {error.errors()[0]['msg']}") from None
    numbers = (state.minutes, state.best_mrr or 0.0, state.decay_factor)
    decaying = state.decay_from >= 0
    if (
        folder.name != f"step-{state.step:08d}"
        or not all(map(math.isfinite, numbers))
        or (decaying and state.decay_steps < 1)
        or state.size < 1
    ):
        raise ValueError("state.json is not that of the checkpoint")
    return state


def latest_checkpoint(run: Path) -> Path | None:
    """The newest complete checkpoint of a run folder."""
    return next(reversed(checkpoints(run)), None)


def load_checkpoint(
    folder: Path, model: SpanModel, optimizer: torch.optim.Optimizer, losses: Losses, rank: int = 0
) -> State:
    """Restore weights, moments and the own state of a process; returns the rest."""
    from safetensors.torch import load_file, load_model

    try:
        state = read_state(folder)
        tensors = load_file(folder / "state.safetensors")
        load_model(model.mlm, folder / "model" / "model.safetensors")
        prefix = f"{rank}."
        own = {k.removeprefix(prefix): tensors[k] for k in tensors if k.startswith(prefix)}
        losses.restore(own)
        moments = _moments(tensors, optimizer, state.moments)
        optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
        torch.set_rng_state(own["rng.cpu"])
        if model.device.type == "cuda" and "rng.cuda" in own:
            torch.cuda.set_rng_state(own["rng.cuda"], model.device)
    except Exception as error:
        why = first_line(error)
        raise RunError(f"{folder} cannot be read: {why}; {digests.RESTORE}") from None
    return state


def _moments(
    tensors: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer, count: int | None
) -> dict[int, dict[str, torch.Tensor]]:
    """The optimizer's moments in a checkpoint's tensors; fused kernels do not look whether these fit.

    Args:
        count: parameters that have some; None is all or none, as in older checkpoints.

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
    wanted = (0, len(parameters)) if count is None else (count,)
    whole = all(of.keys() == {"step", "exp_avg", "exp_avg_sq"} for of in moments.values())
    if not whole or len(moments) not in wanted:
        raise ValueError("moments are missing")
    return moments


class MetricsLog:
    """``metrics.jsonl``: one object per step and one per validation.

    Lines after a resumed step are dropped, and so are validations that only ``max_steps`` asked for, and one
    that was interrupted after it was logged, since it is done again.

    Args:
        step: the resumed one.
        validated: the latest step whose validation counted.
    """

    def __init__(self, path: Path | None, step: int, validated: int | None = None) -> None:
        self._file = None
        if path is None:
            return
        kept = []
        if path.exists():
            for line in path.read_bytes().splitlines():
                try:
                    row = files.parse_json(line)
                    most = step if validated is None or "valid_mrr" not in row else validated
                    if row["step"] <= most and not row.get(PROVISIONAL):
                        kept.append(f"{line.decode()}\n")
                except (ValueError, KeyError, TypeError, AttributeError):
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


def ends_by_decay(run: RunFolder, decay: float | None) -> bool:
    """Return whether a run is to end by a decay, which now or an earlier resumption has asked for."""

    checkpoint = latest_checkpoint(run.path)
    if decay is not None or checkpoint is None:
        return decay is not None
    return _state_of(checkpoint).decay_from >= 0


def check_size(checkpoint: Path, size: int, batch_size: int) -> None:
    """Refuse to go on with micro-batches of another size: which samples each has is a function of it.

    Args:
        size: samples of a micro-batch, of all processes together.
        batch_size: of each process.

    Raises:
        RunError: naming the number of processes that the training needs.
    """
    if (before := _state_of(checkpoint).size) != size:
        raise RunError(
            f"{checkpoint.parent.parent} is resumed in another number of processes ({size // batch_size}, "
            f"before {before // batch_size}); resume it in as many as before"
        )


def _state_of(checkpoint: Path) -> State:
    """The state of a checkpoint.

    Raises:
        RunError: when it is damaged.
    """
    try:
        return read_state(checkpoint)
    except (OSError, ValueError) as error:
        raise RunError(f"{checkpoint} cannot be read: {first_line(error)}; {RESTORE}") from None


@contextmanager
def keeping(run: Path, name: str, watch: Watcher) -> Iterator[Path | None]:
    """Keep the state of a signal's unfinished training beside its run, which may not be there yet.

    Where nothing can be written, nothing is kept. If training is interrupted, the user is told.
    """
    target = run.resolve()
    kept = target.parent / f".{target.name}.{name}-unfinished"
    if not os.access(kept.parent, os.W_OK):
        yield None
        return
    files.recover(kept)
    try:
        yield kept
    except KeyboardInterrupt:
        if kept.exists():
            watch.tell(f"the training of {name} is kept in {kept}, and the next one continues from there")
        raise


def fit_signal(
    name: str,
    graph: KnowledgeGraph,
    settings: Settings,
    advance: Callable[[int, int], None] = lambda n, total: None,
    device: str | None = None,
    kept: Path | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Train a signal that is beside the text model, and say how for the record.

    Args:
        name: of the signal; its settings are the section of that name.
        advance: called with (steps that were just done, all steps).
        kept: a file for the state of training that is interrupted, and continued by the next call.
    """
    started, done = time.monotonic(), 0
    own = getattr(settings, name, None)

    def counting(n: int, total: int) -> None:
        nonlocal done
        done += n
        advance(n, total)

    signal = beside()[name].fit(graph, own, counting, device, kept)
    return signal, {
        "done": done,
        "settings": None if own is None else own.model_dump(mode="json"),
        "minutes": round((time.monotonic() - started) / 60, 2),
        "versions": versions(),
        "hardware": hardware(),
        "command": command_line(),
    }


def start_run(
    path: Path,
    graph: KnowledgeGraph,
    model_name: str,
    settings: Settings,
    *,
    overwrite: bool = False,
    recipe: Recipe | None = None,
    marks: Mapping[str, Any] | None = None,
) -> tuple[RunFolder, Ranker]:
    """Load or create the model, fix the vocabulary on the training entities, lay the run folder.

    Args:
        model_name: "scratch", a Hugging Face name, or a folder.
        recipe: what ``settings`` are from, for the record.
        marks: more for the record, so that a kill loses none of it.

    Of several processes (``accelerate launch``) the main one lays the folder and the others open it.

    Raises:
        ConfigError: when there are too few batches.
        ModelError: when the model cannot be used, or a query does not fit ``text.max_length``.
        RunError: when the folder is in the way.
    """
    from accelerate import PartialState

    _check_residuals(graph, settings)
    if settings.vector.enabled and not settings.trains_text:
        raise ConfigError("vector.enabled trains entity vectors with the masked LM, but training.epochs is 0")

    processes = PartialState(cpu=only_cpu(), timeout=timedelta(days=1))
    if processes.is_main_process:
        check_output(path, overwrite)
    model_name = model_address(model_name)
    ranker = _untrained(graph, model_name, settings)
    reader = ranker.reader
    share = (processes.process_index, processes.num_processes)
    if settings.trains_text:  # what cannot fit is said before anything is written
        stream_of(Task(ranker, graph, settings.training, share)).check(of_each_relation(graph))
    if processes.is_main_process:
        create_run(
            path,
            graph,
            settings,
            model_name,
            reader.vocabulary,
            names=reader.names,
            overwrite=overwrite,
            recipe=recipe.as_record() if recipe else None,
            notes=recipe.notes() if recipe else (),
            marks=marks,
        )
    processes.wait_for_everyone()
    # Training uses the files just written, so the graph as it was read need not stay in memory.
    run = open_folder(path)
    ranker = Ranker.initial(run.graph.context, reader.tokenizer, reader.model, settings, reader.vocabulary)
    ranker.reader.adopt_names(reader.names)
    return run, ranker


def _untrained(graph: KnowledgeGraph, model_name: str, settings: Settings) -> Ranker:
    """The text model before its first step.

    Raises:
        ModelError: when it cannot be used.
    """
    seed = settings.training.seed
    if model_name == "scratch":
        texts = scratch_texts(graph, settings.text)
        tokenizer = SpanTokenizer(train_tokenizer(texts, settings.scratch.vocabulary))
        model = create_model(
            len(tokenizer.tokenizer),
            tokenizer.pad_id,
            settings.scratch,
            settings.text.max_length,
            seed,
        )
    else:
        model, tokenizer = load_model(model_name, seed), load_tokenizer(model_name)
        check_vocabulary(model, tokenizer, model_name)
    names = tokenizer.candidates(graph.entities.table.column("surface"), None, settings.scoring.end_of_name)
    vocabulary = Vocabulary.fit(names, graph.seen_N, settings)
    ranker = Ranker.initial(graph.context, tokenizer, model, settings, vocabulary)
    ranker.reader.adopt_names(names.cut(vocabulary.span_length))
    return ranker


def _check_residuals(graph: KnowledgeGraph, settings: Settings) -> None:
    """Refuse residuals where training does not read all entities: a model is saved without their vectors.

    Raises:
        ConfigError: saying what to set.
    """
    few = settings.training.validated(len(graph.entities))
    if few and settings.vector.enabled and settings.vector.residual_rate:
        raise ConfigError(
            f"vector.residual_rate needs validation to read all {len(graph.entities):,} entities, but it "
            f"reads {few:,}; set it to 0, or training.eval_candidates to 0"
        )


def resume_run(path: Path, device: str | None = None) -> tuple[RunFolder, Ranker]:
    """Open an interrupted run at its newest checkpoint; one that was killed before the first begins again.

    Args:
        device: as :func:`kgmlm.training.loop.train` has it.

    Raises:
        RunError: when it is no run, has ended, or is damaged.
        ModelError: when the model that it began with is gone.
    """
    run = open_folder(path)
    if run.is_unpacked:
        raise RunError(
            f"{path} is a pack, which is not trained; `kgmlm unpack {quoted(path)} --output RUN` makes a run"
        )
    if run.record["status"] in ENDED:
        raise RunError(f"{path} has {run.record['status']} already; there is nothing to resume")
    checkpoint = latest_checkpoint(path)
    if checkpoint is None:
        return run, _untrained(run.graph, str(run.record["model"]), run.settings)
    if not (checkpoint / "model" / "config.json").is_file():
        raise RunError(f"{checkpoint} is damaged; start the run again with --overwrite")
    digests.check_folder(checkpoint, contents=True)
    return run, open_text(run, device, checkpoint / "model")
