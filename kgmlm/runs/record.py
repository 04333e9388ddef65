"""The record, settings and tuned weights of a run's folder; its origin; its one writer.

All files may have been edited by hand, cut short or damaged: what cannot be right is one sentence. The tuned
weights are one file, ``model/mixture.json``, with the digests of the signals that they were chosen for: with
others they are not used.

Shapes: R relations.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from kgmlm import __version__
from kgmlm.core import digests, files
from kgmlm.core.config import Settings, Stage, load_settings
from kgmlm.core.digests import RESTORE
from kgmlm.core.errors import KgmlmError, RunError, first_line, quoted
from kgmlm.core.files import locked
from kgmlm.core.processes import check_main_guard
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.storage import read_graph
from kgmlm.ranking.ranker import Mixture, Use, Weights
from kgmlm.signals import kinds_in


def versions() -> dict[str, str]:
    """Versions of what numbers depend on; of a checkout, the commit too ("+" where files differ from it)."""
    found = {"kgmlm": __version__, "python": platform.python_version()}
    for package in ("torch", "transformers", "tokenizers", "accelerate", "numpy", "pykeen"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found | _commit()


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
    """The model of a run for the record: of a folder its path from the root, which holds anywhere."""
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


def earlier(records: Iterable[Mapping[str, Any]], own: str | None) -> tuple[list[KnowledgeGraph], list[str]]:
    """The graphs of the runs that others began from, and datasets of those that are no longer there.

    Args:
        records: of the others.
        own: the command of the run whose records these are: itself, it is not missed.
    """
    graphs: dict[Path, KnowledgeGraph] = {}
    gone = []
    for record in records:
        for model, older in ancestors(record):
            folder = run_of(model)
            try:
                there = read_record(folder).get("command") == older.get("command")
                if there and folder not in graphs:
                    graphs[folder] = read_graph(folder / "graph", str(older.get("dataset")), {})
            except KgmlmError:
                there = False  # or damaged
            if not there and older.get("command") != own:
                gone.append(str(older.get("dataset")))
    return list(graphs.values()), list(dict.fromkeys(gone))


FORMAT = 2
_ALWAYS = ("text", "scoring", "training")  # sections that every version has written


def _increasing(values: list[int]) -> list[int]:
    if any(a >= b for a, b in pairwise(values)):
        raise ValueError("they must increase")
    return values


class _Known(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class BeganFrom(_Known):
    """A run that another began from."""

    model: str
    dataset: str | None = None
    command: str | None = None
    began_from: BeganFrom | None = None


class RecipeRecord(_Known):
    """In which stages a run is trained."""

    preset: str
    stages: list[Stage]
    seconds: float | None = Field(default=None, gt=0)
    timed: list[Stage] = []
    usual: dict[str, float] = {}
    text_from: int | None = Field(default=None, ge=1)


class ShortlistRecord(_Known):
    """The number of entities that a run's index finds per query, unless something else is asked for.

    Attributes:
        of: the SHA-256 of the model that was indexed; of another one all entities are scored.
    """

    entities: int = Field(ge=1)
    of: str


class UpdateRecord(_Known):
    """An update of a run to a graph that had grown."""

    at: AwareDatetime = Field(strict=False)
    entities: int = Field(ge=0)
    relations: int = Field(ge=0)
    added: int = Field(ge=0)
    removed: int = Field(ge=0)


class Record(_Known):
    """The keys of ``run.json`` that opening a run relies on; there may be more."""

    format: int = Field(ge=2)
    dataset: str
    sources: dict[str, str]
    model: str
    began_from: BeganFrom | None = None
    seed: int = 0
    span_length: int = Field(ge=1)
    softmax_tokens: (
        Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1), AfterValidator(_increasing)] | None
    )
    command: str = ""
    status: Literal["started", "finished", "stopped early", "max steps", "interrupted"]
    step: int = Field(0, ge=0)
    minutes: float = Field(0, ge=0, allow_inf_nan=False)
    best_valid_mrr: float | None = None
    recipe: RecipeRecord | None = None
    signals: dict[str, dict[str, Any]] = {}
    updates: list[UpdateRecord] = []
    spent: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = {}
    shortlist: ShortlistRecord | None = None
    files: digests.Accepted | None = None
    given_back: bool = False


def read_record(path: Path) -> dict[str, Any]:
    """``run.json`` of a run folder.

    Raises:
        RunError: when it cannot be right, or is of a newer format.
    """
    file = path / "run.json"
    try:
        record = files.parse_json(file.read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(f"{file} is damaged: {_line(error)}; {RESTORE}") from None
    if not isinstance(record, dict):
        raise RunError(f"{file} is damaged: it is no JSON object; {RESTORE}")
    version = record.get("format")
    if isinstance(version, int) and version > FORMAT:
        written = record.get("versions")
        by = written.get("kgmlm") if isinstance(written, dict) else None
        raise RunError(f"{path} was written by a newer kgmlm ({by}); upgrade")
    try:
        Record.model_validate(record)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"][:2]))
        given = "missing" if first["type"] == "missing" else f"{first['input']!r:.60}: {first['msg']}"
        raise RunError(f"{file} is damaged: '{key}' is {given}; {RESTORE}") from None
    return record


def accepted(record: Mapping[str, Any]) -> digests.Accepted | None:
    """The digests that a record has of files of the run, if any."""
    return digests.of_json(record.get("files"))


def check_files(
    path: Path, record: Mapping[str, Any], *names: str, contents: bool = False, remedy: str = RESTORE
) -> None:
    """See that files of a run are as they were written, where the record knows.

    Args:
        names: of files; those in a folder by its name and "/".

    Raises:
        RunError: naming the first that is not.
    """
    known = accepted(record) or {}
    asked = {k: v for k, v in known.items() if k.startswith(tuple(names))}
    digests.check(path, asked, contents=contents, remedy=remedy)


def read_settings(path: Path) -> Settings:
    """``config.toml`` of a run.

    Raises:
        RunError: when settings are missing: a run has all of them.
        ConfigError: when they are no settings.
    """
    file = path / "config.toml"
    settings = load_settings(file, of_run=True)
    if not set(_ALWAYS) <= settings.model_fields_set:
        missing = next(name for name in _ALWAYS if name not in settings.model_fields_set)
        raise RunError(f"{file} is damaged: it has no [{missing}]; {RESTORE}")
    return settings


def _line(error: Exception) -> str:
    return first_line(error)[:160]


ENDED = ("finished", "stopped early")
TRAINED = (*ENDED, "max steps")  # statuses of a run that is trained as far as was asked
MAX_READS = 40  # of a run that is being written, .05 s apart: 2 s in all
T = TypeVar("T")
_HELD: set[tuple[Path, int]] = set()  # runs that this process writes, by thread


def checkpoints(path: Path) -> list[Path]:
    """The checkpoints of a run, oldest first; what else is in the folder is not its own.

    Raises:
        RunError: when the folder is a link.
    """
    folder = path / "checkpoints"
    files.refuse_link(folder)
    own = (p for p in folder.glob("step-*") if re.fullmatch(r"step-\d+", p.name))
    return sorted((p for p in own if p.is_dir() and not p.is_symlink()), key=_step)


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def discard_checkpoints(path: Path, but: str = "") -> None:
    """Remove the resumable states of a run, all but one, and nothing else."""
    for folder in checkpoints(path):
        if folder.name != but:
            shutil.rmtree(folder, ignore_errors=True)
    if not but:
        with suppress(OSError):  # not there, or with something in it that is not a checkpoint
            (path / "checkpoints").rmdir()


_OWN = {
    "run.json", "config.toml", "metrics.jsonl", "feedback.jsonl", "graph", "model",
    "signals", "checkpoints", "index",
}  # fmt: skip


def check_result(path: Path) -> None:
    """See, before long work, that results can be written there, and that it is no file of a run's own.

    Raises:
        DataError: when it cannot be written.
        RunError: when a run has its own files there.
    """
    files.check_writable(path)
    whole = path.resolve()
    for folder in whole.parents:
        if (folder / "run.json").is_file() and whole.relative_to(folder).parts[0] in _OWN:
            raise RunError(f"{path} belongs to the run {folder}; choose another --output")


def is_blank(path: Path) -> bool:
    """Return whether a run was laid and has learned nothing, as when its training was refused."""
    laid = {"run.json", "config.toml", "graph", "checkpoints", "metrics.jsonl", "logs"}
    if not (path / "run.json").is_file() or not {p.name for p in path.iterdir()} <= laid:
        return False
    try:
        started = read_record(path)["status"] == "started"
    except RunError:
        return False
    there = set((path / "checkpoints").iterdir()) if (path / "checkpoints").is_dir() else set()
    return started and all(p in checkpoints(path) and not _step(p) for p in there)


@contextmanager
def writing(path: Path, what: str) -> Iterator[None]:
    """Be the only one that writes a run, and put in order what a kill has left of it.

    Args:
        path: where it is, or will be.
        what: what is being done, for the sentence that others get.

    Raises:
        RunError: when another process writes it, or this one is a worker that is still importing its parent's
            script.
    """
    check_main_guard()
    key = (path.resolve(), threading.get_ident())
    if key in _HELD:  # a job that another job of this thread does
        yield
        return
    with locked(key[0], what):
        _HELD.add(key)
        try:
            _put_in_order(path.resolve())
            yield
        finally:
            _HELD.discard(key)


def _put_in_order(path: Path) -> None:
    files.recover(path)
    try:
        ended = read_record(path)["status"] in ENDED
    except RunError:  # no run, or one that says nothing that could be relied on
        return
    for folder in (path, path / "model", path / "signals", path / "index", path / "checkpoints"):
        files.recover_in(folder)
    if ended and not (path / "checkpoints").is_symlink():
        discard_checkpoints(path)


def leave_out(path: Path, stage: str) -> None:
    """Take a stage out of a run's recipe, so that `kgmlm train --resume` does not do it again."""
    record = read_record(path)
    recipe = record.get("recipe") or {"stages": []}
    if stage in recipe["stages"]:
        left = [other for other in recipe["stages"] if other != stage]
        files.write_json(path / "run.json", {**record, "recipe": {**recipe, "stages": left}})


def recover(path: Path) -> None:
    """Before reading: end what a kill cut short, where nobody writes and this process may."""
    path = path.resolve()
    inside = (path, path / "index", path / "checkpoints")
    if files.is_unsettled(path) or any(map(files.unsettled, inside)):
        with suppress(RunError, OSError), writing(path, "opening"):
            pass


def steady(path: Path, read: Callable[[], T]) -> T:
    """Read a run's files, all of them as they were at one time; again where a writer has replaced some.

    Readers take no lock. Only the outermost call of a read is wrapped.

    Raises:
        RunError: when the run changes as often as it is read.
    """
    for left in reversed(range(MAX_READS)):
        before = _state(path)
        try:
            found = read()
        except (KgmlmError, OSError):
            if not left or (_state(path) == before and not files.unsettled(path)):
                raise
        else:
            if _state(path) == before:
                return found
        time.sleep(0.05)
    raise RunError(f"{path} changes as often as it is read; try again when what writes it has ended")


def _state(path: Path) -> list[tuple[str, int, int]]:
    """Stat the files that a run scores by; one that is replaced is another."""
    parts = (path / "model", path / "signals")
    there = [file for part in parts for file in (part, *part.glob("*"))]
    found = []
    for file in sorted(there):
        with suppress(OSError):
            stat = file.stat()
            found.append((str(file), stat.st_ino, stat.st_mtime_ns))
    return found


def check_output(path: Path, overwrite: bool) -> None:
    """Refuse to write over what is not a run, or, unless asked to, over a run that has learned something.

    Raises:
        RunError: saying which option to use.
    """
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not (path / "run.json").is_file():
        raise RunError(f"{path} exists and is not a run; choose another --output")
    if not overwrite and not is_blank(path):
        raise RunError(f"{path} is a run already; use --resume to continue, --overwrite to start again")


# Second stages, in their order.
REVERSE, CONDITIONAL, TREES = SECOND = ("reverse", "conditional", "trees")
TREES_FILE = "model/trees.safetensors"
WEIGHTS = "weights"  # beside the names of signals, where something goes by the weights, too
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Sha = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Signal(digests.StrictModel):
    average: _Finite
    weights: list[Annotated[list[_Finite], Field(min_length=2, max_length=2)]] | None


class _Use(digests.StrictModel):
    k: int = Field(ge=0)
    weight: _Finite


class _File(digests.StrictModel):
    signals: dict[str, _Signal] = Field(min_length=1)
    reverse: _Use | None = None
    conditional: _Use | None = None
    trees: _Use | None = None
    chosen_for: dict[str, _Sha]
    chosen_by: dict[str, Any]


@dataclass(frozen=True, eq=False)
class TunedWeights:
    """Weights of a run's signals, and for which signals they were chosen.

    Attributes:
        mixture: how much each signal counts.
        uses: of each second stage that was chosen or asked for, how many candidates it scores (0 where that
            was no better) and how much that counts.
        of: what :func:`fingerprints` were then.
        by: the command that chose, and its figures on validation.
    """

    mixture: Mixture
    uses: Mapping[str, Use] = field(default_factory=dict)
    of: Mapping[str, str] = field(default_factory=dict)
    by: Mapping[str, Any] = field(default_factory=dict)

    @property
    def active(self) -> dict[str, Use]:
        """The second stages that score any candidates, in their order."""
        return {name: self.uses[name] for name in SECOND if name in self.uses and self.uses[name].k}

    def save(self, path: Path) -> None:
        """Write them as JSON: for each signal one weight where all are alike, else ``(R, 2)``."""
        signals = {}
        for name, table_R2 in self.mixture.tables.items():
            average = float(self.mixture.averages[name])
            alike = bool((table_R2 == np.float32(average)).all())
            signals[name] = {"average": average, "weights": None if alike else table_R2.tolist()}
        uses = {name: asdict(self.uses[name]) if name in self.uses else None for name in SECOND}
        values = {"signals": signals, **uses, "chosen_for": dict(self.of)}
        files.write_json(path, values | {"chosen_by": dict(self.by)})

    @classmethod
    def open(cls, path: Path, relations: int) -> TunedWeights:
        """Open the weights that :meth:`save` wrote.

        Args:
            relations: how many the run has.

        Raises:
            RunError: when the file is missing, damaged or of another graph.
        """
        try:
            values = digests.without_retired(files.parse_json(path.read_bytes()))
            found = _File.model_validate_json(json.dumps(values))
        except OSError:
            raise RunError(f"{path} is missing; {RESTORE}") from None
        except ValueError as error:
            why = digests.fault(error) if isinstance(error, ValidationError) else first_line(error)
            raise RunError(f"{path} is damaged: {why}; {RESTORE}") from None
        tables = {
            name: np.repeat(_float32([[signal.average] * 2]), relations, 0)
            if signal.weights is None
            else _float32(signal.weights).reshape(-1, 2)
            for name, signal in found.signals.items()
        }
        averages = {name: signal.average for name, signal in found.signals.items()}
        if any(len(table_R2) != relations for table_R2 in tables.values()):
            raise RunError(f"{path} is of another graph: the run has {relations:,} relations; {RESTORE}")
        if not all(np.isfinite(table_R2).all() for table_R2 in tables.values()):
            raise RunError(f"{path} is damaged: a weight is too large; {RESTORE}")
        there = {name: of for name in SECOND if (of := getattr(found, name)) is not None}
        uses = {name: Use(of.k, of.weight) for name, of in there.items()}
        return cls(Mixture(tables, averages), uses, found.chosen_for, found.chosen_by)

    def check(self, now: Mapping[str, str], run: Path, but: Iterable[str] = ()) -> None:
        """See that these were chosen for the signals that a run has now, but for those that are not asked.

        Raises:
            RunError: naming the others.
        """
        names = sorted({*now, *self.of} - set(but))
        if stale := [name for name in names if now.get(name) != self.of.get(name)]:
            raise RunError(
                f"{run}: its weights were not chosen for the {' and '.join(stale)} that it has now; "
                f"`kgmlm tune {quoted(run)}` chooses them"
            )


def _float32(values: list[list[float]]) -> Weights:
    """Numbers as float32; those that are too large are infinite."""
    with np.errstate(over="ignore"):
        return np.array(values, np.float32)


def of_weights(run: Path) -> str:
    """SHA-256 of the weights of a run's signals, whichever command chose them."""
    signals = files.parse_json((run / "model" / "mixture.json").read_bytes())["signals"]
    return hashlib.sha256(json.dumps(signals, sort_keys=True).encode()).hexdigest()


def fingerprints(run: Path) -> dict[str, str]:
    """SHA-256 of what each signal of a run knows, and its trees, by name."""
    model = digests.read_manifest(run / "model") or {}
    known = {f"model/{k}": v for k, v in model.items()} | (accepted(read_record(run)) or {})
    there = {name: kind.file for name, kind in kinds_in(run).items()}
    found = {name: digests.sha(known, file, run) for name, file in there.items()}
    if (run / TREES_FILE).is_file():
        found[TREES] = digests.sha(known, TREES_FILE, run)
    return found
