from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import without_digests
from safetensors.torch import load_file, save_file
from trainings import VECTORS, Validation, go, settings

from kgmlm.core.errors import RunError
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.ranking.ranker import Ranker
from kgmlm.training import loop
from kgmlm.training.loop import train
from kgmlm.training.start import (
    MetricsLog,
    State,
    _moments,
    latest_checkpoint,
    read_state,
    resume_run,
    save_checkpoint,
    save_state,
    start_run,
)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("optimizer.0.exp_avg", lambda x: x[:-1]),
        ("optimizer.0.exp_avg", None),
        ("optimizer.1.exp_avg_sq", lambda x: x.double()),
        ("optimizer.0.step", lambda x: x[None]),
        ("0.rng.cpu", lambda x: x[:-1]),
        ("0.memory.ids", lambda x: x + 1000),
        ("0.memory.ids", lambda x: x[0]),
        ("0.memory.vectors", lambda x: x[:, :-1]),
    ],
)
def test_tensors_of_a_checkpoint_that_do_not_fit_are_refused(
    toy: KnowledgeGraph, tmp_path: Path, name: str, change: Callable[..., torch.Tensor] | None
) -> None:
    """A fused optimizer reads what it is given, to the process's death."""
    go(tmp_path / "run", toy, *VECTORS, "vector.memory=8", max_steps=2)
    checkpoint = latest_checkpoint(tmp_path / "run")
    assert checkpoint is not None
    without_digests(tmp_path / "run")
    tensors = load_file(checkpoint / "state.safetensors")
    kept = {k: v for k, v in tensors.items() if k != name}
    changed = {} if change is None else {name: change(tensors[name]).contiguous()}
    save_file({**kept, **changed}, checkpoint / "state.safetensors")
    run, ranker = resume_run(tmp_path / "run")
    with pytest.raises(RunError, match=r"step-00000002 cannot be read: .*; restore it"):
        train(run, ranker, resume=True)


@pytest.mark.parametrize(
    "state",
    [
        "", "[]", '{"step": "2"}', '{"step": 3}', '{"step": 2, "minutes": NaN}',
        '{"step": 2, "best_mrr": "x"}', '{"step": 2, "decay_from": 1}', '{"step": 2}',
    ],
)  # fmt: skip
def test_a_state_that_is_not_that_of_its_checkpoint_is_refused(tmp_path: Path, state: str) -> None:
    folder = tmp_path / "step-00000002"
    folder.mkdir()
    whole = State(2, 0.5, minutes=1.5, size=16)
    save_state(folder, whole)
    assert read_state(folder) == whole
    (folder / "state.json").write_text(state)
    with pytest.raises(ValueError, match=r"state\.json"):
        read_state(folder)


@pytest.mark.parametrize("line", [b"[]", b'"x"', b'{"step": "1"}', b"\xff", b"[" * 100_000])
def test_a_damaged_line_of_metrics_ends_what_is_kept(
    toy: KnowledgeGraph, tmp_path: Path, line: bytes
) -> None:
    go(tmp_path / "run", toy, max_steps=2)
    path = tmp_path / "run" / "metrics.jsonl"
    rows = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(rows[0] + line + b"\n" + rows[1])
    train(*resume_run(tmp_path / "run"), resume=True, max_steps=3)
    assert [json.loads(row)["step"] for row in path.read_text().splitlines()] == [1, 3]


def test_a_validation_that_was_cut_short_is_not_in_the_log_twice(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = [
        {"step": 1, "loss": 1.0},
        {"step": 1, "valid_mrr": 0.1},
        {"step": 2, "loss": 1.0},
        {"step": 2, "valid_mrr": 0.2},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    MetricsLog(path, 2, 1).close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == rows[:3]


def test_what_never_gets_a_gradient_has_no_moments() -> None:
    used, unused = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    optimizer = torch.optim.AdamW([used, unused])
    (used**2).sum().backward()
    optimizer.step()
    state = {
        f"optimizer.{i}.{k}": v for i, of in optimizer.state_dict()["state"].items() for k, v in of.items()
    }
    assert _moments(state, optimizer, 1).keys() == {0}
    cut = {name: tensor for name, tensor in state.items() if name != "optimizer.0.exp_avg"}
    for tensors, count in ((state, None), (state, 2), (cut, 1), ({}, 1)):
        with pytest.raises(ValueError, match="moments are missing"):
            _moments(tensors, optimizer, count)


def test_a_checkpoint_removes_older_ones_and_nothing_else(toy: KnowledgeGraph, tmp_path: Path) -> None:
    run, ranker = start_run(tmp_path / "run", toy, "scratch", settings())
    folder = run.path / "checkpoints"
    for name in ("notes", "step-kept", "step-00000001-copy"):
        (folder / name).mkdir(parents=True)
    precious = tmp_path / "precious"
    precious.mkdir()
    (folder / "step-00000002").symlink_to(precious)
    (folder / "step-00000003").write_text("a file")
    train(run, ranker, max_steps=7)
    ours = folder / "step-00000007"
    assert latest_checkpoint(run.path) == ours
    others = {"notes", "step-kept", "step-00000001-copy", "step-00000002", "step-00000003"}
    assert {p.name for p in folder.iterdir()} == {ours.name, *others}
    train(*resume_run(run.path), resume=True)
    assert {p.name for p in folder.iterdir()} == others
    assert precious.is_dir()


def test_checkpoints_behind_a_link_are_left_alone(toy: KnowledgeGraph, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (shared / "step-00000001").mkdir(parents=True)
    (shared / "thesis").mkdir()
    run, ranker = start_run(tmp_path / "run", toy, "scratch", settings())
    (run.path / "checkpoints").symlink_to(shared)
    for act in (lambda: train(run, ranker), lambda: resume_run(run.path)):
        with pytest.raises(RunError, match="checkpoints is a link"):
            act()
    assert {p.name for p in shared.iterdir()} == {"step-00000001", "thesis"}


def test_checkpoints_are_ordered_by_step(tmp_path: Path) -> None:
    for name in ("step-99999999", "step-100000000", "step-00000003"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    latest = latest_checkpoint(tmp_path)
    assert latest is not None
    assert latest.name == "step-100000000"


def test_a_step_is_saved_once(toy: KnowledgeGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = []

    def counting(run: Path, ranker: Ranker, optimizer: Any, own: Any, state: State) -> None:
        saved.append(state.step)
        save_checkpoint(run, ranker, optimizer, own, state)

    monkeypatch.setattr(loop, "save_checkpoint", counting)
    run, ranker = start_run(tmp_path / "run", toy, "scratch", settings())
    train(run, ranker, Validation(0.1, 0.2), max_steps=7)
    train(*resume_run(run.path), Validation(0.1, 0.2, 0.3), resume=True, max_steps=9)
    assert saved == sorted(set(saved))
    assert saved[-1] == 9
    latest = latest_checkpoint(run.path)
    assert latest is not None
    state = json.loads((latest / "state.json").read_text())
    assert state["validated"] < 9, "only --max-steps asked for that validation"
    assert state["minutes"] > 0
