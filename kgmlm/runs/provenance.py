"""What made a run: versions, hardware, command; the runs that it began from."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kgmlm import __version__
from kgmlm.core.errors import KgmlmError, RunError
from kgmlm.graphs.cards import card_names
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.storage import read_graph
from kgmlm.runs.folder import RunFolder, read_record


def versions() -> dict[str, str]:
    """Versions of what results depend on; for a checkout, also the commit ("+" if files differ from it)."""
    versions = {"kgmlm": __version__, "python": platform.python_version()}
    for package in ("torch", "transformers", "tokenizers", "accelerate", "numpy", "pykeen"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions | _commit()


def _commit() -> dict[str, str]:
    """The commit that this package is a checkout of, if it is one."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return {}
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"git": done.stdout.strip()}


def hardware() -> dict[str, Any]:
    """The hardware of this machine, for records and reports."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"machine": platform.machine(), "threads": torch.get_num_threads(), "gpu": gpu}


def command_line() -> str:
    """The command line of this process, for the record."""
    script = Path(sys.argv[0])
    script = script.parent if script.name == "__main__.py" else script  # `python -m kgmlm`
    program = ["kgmlm"] if script.stem == "kgmlm" else [script.stem]
    if script.suffix == ".py":
        program = ["python", script.name if script.is_absolute() else script.as_posix()]
    return shlex.join([*program, *sys.argv[1:]])


def model_address(model_name: str) -> str:
    """The model of a run for the record: for a folder, its absolute path, which holds anywhere."""
    path = Path(model_name)
    return str(path.resolve()) if model_name != "scratch" and path.is_dir() else model_name


def began_from(model_name: str) -> dict[str, Any] | None:
    """The origin of a model: the record of its run, and of the runs before it."""
    if not (Path(model_name) / "config.json").is_file():  # "scratch", or a name on the hub
        return None
    try:
        record = read_record(run_of(model_name))
        keys = ("model", "dataset", "command", "minutes", "began_from")
        return {key: record.get(key) for key in keys}
    except RunError:
        return None


def ancestors(record: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The runs that a run began from, latest first: each as (the model taken, what is known of its run)."""
    while older := record.get("began_from"):
        yield str(record["model"]), older
        record = older


def run_of(model_name: str) -> Path:
    """The folder of the run that a model belongs to, as its best one or as a checkpoint's."""
    above = Path(model_name).absolute().parent
    return above.parent.parent if above.parent.name == "checkpoints" else above


def past_graphs(run: RunFolder) -> tuple[list[KnowledgeGraph], list[str]]:
    """The graphs of the runs that a run began from, and the datasets of those that are no longer there.

    A run made by the same command is the run itself, and a built-in dataset of the run's own can be fetched:
    neither counts as missing.
    """
    graphs: dict[Path, KnowledgeGraph] = {}
    gone = []
    for model, older in ancestors(run.record):
        folder = run_of(model)
        try:
            is_there = read_record(folder).get("command") == older.get("command")
            if is_there and folder not in graphs:
                graphs[folder] = read_graph(folder / "graph", str(older.get("dataset")), {})
        except KgmlmError:
            is_there = False  # or damaged
        if not is_there and older.get("command") != run.record.get("command"):
            gone.append(str(older.get("dataset")))
    own = run.record["dataset"]
    missed = [name for name in dict.fromkeys(gone) if name != own or name not in card_names()]
    return list(graphs.values()), missed
