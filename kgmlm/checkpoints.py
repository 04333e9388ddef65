"""What a run resumes from: checkpoints, and the log of metrics up to there.

The stream of micro-batches is a function of the seed and of the position in it, so a checkpoint is a step
number, weights, optimizer moments and random states, and a resumed run has the losses of an unbroken one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from pydantic import TypeAdapter, ValidationError

from kgmlm import digests, files
from kgmlm.kg import RunError, first_line
from kgmlm.modeling import SpanModel
from kgmlm.objectives import Losses
from kgmlm.ranker import Ranker
from kgmlm.saving import save_model
from kgmlm.upkeep import checkpoints, discard_checkpoints

PROVISIONAL = "provisional"  # marks a validation in the log that an unbroken run would not have had


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
    decay_factor: float | None = None  # of the peak learning rate, where that began; older ones have none
    moments: int | None = None  # parameters that have some; what never gets a gradient has none
    # (samples of a micro-batch, steps), one after the other; checkpoints by older versions have none
    read: list[tuple[int, int]] = field(default_factory=list)


def own_state(losses: Losses, device: torch.device) -> dict[str, torch.Tensor]:
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
    trained = optimizer.state_dict()["state"]
    state.moments = len(trained)
    for index, values in trained.items():
        tensors |= {f"optimizer.{index}.{k}": v.contiguous() for k, v in values.items()}
    folder = run / "checkpoints"
    files.refuse_link(folder)
    name = f"step-{state.step:08d}"
    with files.atomic_folder(folder / name) as temporary:
        save_model(ranker.reader.model, ranker.reader.tokenizer, temporary / "model")
        digests.write_manifest(temporary / "model")
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
    numbers = (state.minutes, state.best_mrr or 0.0, state.decay_factor or 0.0)
    decaying = state.decay_from >= 0
    read = not state.read or (
        sum(steps for _, steps in state.read) == state.step
        and all(size > 0 and steps >= 0 for size, steps in state.read)
    )
    if (
        folder.name != f"step-{state.step:08d}"
        or not all(map(math.isfinite, numbers))
        or (decaying and state.decay_steps < 1)
        or not read
    ):
        raise ValueError("state.json is not that of the checkpoint")
    return state


def latest_checkpoint(run: Path) -> Path | None:
    """The newest complete checkpoint of a run folder."""
    return next(reversed(checkpoints(run)), None)


def load_checkpoint(
    folder: Path, model: SpanModel, optimizer: torch.optim.Optimizer, losses: Losses, rank: int = 0
) -> State:
    """Restore weights, moments and the own state of a process; returns the rest.

    A process beyond those that there were remembers what the first does, and keeps random states of its own.
    """
    from safetensors.torch import load_file, load_model

    try:
        state = read_state(folder)
        tensors = load_file(folder / "state.safetensors")
        load_model(model.mlm, folder / "model" / "model.safetensors")
        prefix = f"{rank}." if f"{rank}.rng.cpu" in tensors else "0."
        own = {k.removeprefix(prefix): tensors[k] for k in tensors if k.startswith(prefix)}
        losses.restore(own)
        moments = _moments(tensors, optimizer, state.moments)
        optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
        if prefix != f"{rank}.":
            return state
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

    What lies behind a resumed step is cut, and so are validations that only ``max_steps`` asked for, and one
    that was cut short after it was logged: it is done again.

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
