"""A run's folder as it is at one time, read once.

::

    RUN/
    ├── run.json          format, versions, seed, dataset and its checksums, frozen vocabulary, progress
    ├── config.toml       the expanded settings
    ├── graph/            texts and triples of all splits (Arrow): the candidates and the filter; and the
    │                     tokens of the entities' names
    ├── model/            an ordinary Hugging Face folder: weights, tokenizer and, where the run has them,
    │                     entity_vectors.safetensors; mixture.json: the tuned weights of all signals
    ├── signals/          signals trained beside the model, such as kge.safetensors (`kgmlm tune --add kge`)
    ├── checkpoints/      the last resumable state, until training ends
    └── metrics.jsonl     losses and validations

Readers take no lock and repair nothing: what an interrupted command left is put in order by the next one that
writes the run (:mod:`kgmlm.runs.writing`). All files may have been edited by hand, cut short or damaged: what
cannot be right is reported in one sentence.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from kgmlm.core import digests, files
from kgmlm.core.config import Settings, Stage, load_settings
from kgmlm.core.digests import RESTORE
from kgmlm.core.errors import KgmlmError, NoProbabilitiesError, RunError, first_line, quoted
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.storage import read_graph
from kgmlm.ranking.probability import Calibration
from kgmlm.runs.tuned import MIXTURE, REVERSE, TREES, TREES_FILE, WEIGHTS, TunedWeights
from kgmlm.signals import SIGNALS, kinds_in
from kgmlm.signals.vector import Vector
from kgmlm.text.tokenization import Vocabulary

PROBABILITIES = "model/probabilities.json"
ENDED = ("finished", "stopped early")
TRAINED = (*ENDED, "max steps")  # statuses of a run that is trained as far as was asked
_READ_AT_ONCE = (MIXTURE, f"model/{digests.MANIFEST}", PROBABILITIES)  # kilobytes


@dataclass(frozen=True, eq=False)
class RunFolder:
    """A run's folder as it was when it was read; what writes a run returns another one.

    Attributes:
        record: the contents of ``run.json``.
        contents: those of further small files, by name; others are read when a model is opened.
        state: of the files that scores go by; see :meth:`is_current`.
    """

    path: Path
    graph: KnowledgeGraph
    settings: Settings
    record: Mapping[str, Any]
    contents: Mapping[str, bytes] = field(default_factory=dict)
    state: tuple[tuple[str, int, int], ...] = ()

    def is_current(self) -> bool:
        """Return whether the files that scores go by are still those that were there when this was read."""
        return _state(self.path) == self.state

    def now(self) -> RunFolder:
        """The run as it is now. Its settings never change, its graph by :func:`kgmlm.update` alone.

        Raises:
            RunError: when ``run.json`` is gone or damaged.
        """
        return read_folder(self.path, known=self)

    @property
    def model_folder(self) -> Path:
        """The folder of the best model so far."""
        return self.path / "model"

    @property
    def vocabulary(self) -> Vocabulary:
        """Span length and softmax tokens, frozen when the run began."""
        tokens = self.record["softmax_tokens"]
        softmax = None if tokens is None else np.array(tokens, np.int64)
        return Vocabulary(int(self.record["span_length"]), softmax)

    @property
    def is_unpacked(self) -> bool:
        """Whether this is a pack in the cache, which nobody writes."""
        return bool(self.record.get("unpacked"))

    @property
    def has_weights(self) -> bool:
        """Whether training has saved a model, with its weights."""
        return MIXTURE in self.contents

    @cached_property
    def tuned(self) -> TunedWeights:
        """The weights of the run's signals, chosen on validation.

        Raises:
            RunError: when they are missing or damaged.
        """
        return TunedWeights.parse(self.contents.get(MIXTURE), self.path / MIXTURE, len(self.graph.relations))

    @cached_property
    def model_digests(self) -> digests.Accepted | None:
        """The digests of the files in ``model/``; None where none were kept.

        Raises:
            RunError: when they are damaged.
        """
        name = f"model/{digests.MANIFEST}"
        return digests.parse_manifest(self.contents.get(name), self.path / name)

    @cached_property
    def fingerprints(self) -> Mapping[str, str]:
        """SHA-256 of what each signal knows, and of the trees, by name."""
        return fingerprints(self.path, self.model_digests, kept_digests(self.record))

    @property
    def text_fingerprint(self) -> str:
        """SHA-256 of the model that an index is made of."""
        return self.fingerprints.get("vector") or self.fingerprints.get("likelihood", "")

    @property
    def shortlist(self) -> int | None:
        """The number of entities that are scored by default; None is all.

        A recipe indexes a large graph; once the model has changed, that index no longer counts.
        """
        kept = self.record.get("shortlist")
        return kept["entities"] if kept and kept["of"] == self.text_fingerprint else None

    @cached_property
    def scores_digest(self) -> str:
        """A digest of the weights and, through them, of all that the run's scores go by."""
        if not self.has_weights:
            return ""
        graph = json.dumps(graph_digests(self.record), sort_keys=True).encode()
        return hashlib.sha256(self.contents[MIXTURE] + graph).hexdigest()[:16]

    @property
    def scored_by(self) -> dict[str, str]:
        """Digests of the run's signals, trees and weights, by which its probabilities are fitted."""
        values = files.parse_json(self.contents[MIXTURE])
        # None stands for a stage that is deleted: with it, the probabilities of the packs still hold.
        stages = [values.get(REVERSE), None, values.get(TREES)]
        used = json.dumps([values["signals"], *stages], sort_keys=True)
        return {**self.fingerprints, WEIGHTS: hashlib.sha256(used.encode()).hexdigest()}

    @cached_property
    def calibration(self) -> Calibration | None:
        """The run's probabilities; None where none were fitted.

        Raises:
            RunError: when they are damaged.
            NoProbabilitiesError: when the run has changed since.
        """
        if PROBABILITIES not in self.contents:
            return None
        path, again = self.path / PROBABILITIES, f"`kgmlm calibrate {quoted(self.path)}`"
        try:
            calibration = Calibration.model_validate(
                files.parse_json(self.contents[PROBABILITIES]), strict=False
            )
        except ValueError as error:
            why = digests.fault(error) if isinstance(error, ValidationError) else first_line(error)
            raise RunError(f"{path} is damaged: {why}; {again} makes it again") from None
        if len(calibration.mean) != len(self.graph.relations) + 1:
            raise RunError(f"{path} is damaged: it has other relations than the run; {again} makes it again")
        now, then = self.scored_by, calibration.chosen_for
        if stale := sorted(name for name in {*now, *then} if now.get(name) != then.get(name)):
            raise NoProbabilitiesError(
                f"{self.path}: its probabilities were not fitted for the {' and '.join(stale)} that it has "
                f"now; {again} fits them again"
            )
        return calibration

    @property
    def vectors_unread(self) -> bool:
        """Whether the model's entities are still to be read, since training does not read all."""
        known = self.model_digests
        left = known is not None and Path(Vector.file).name not in known
        return left and self.settings.vector.enabled and not (self.path / Vector.file).is_file()

    def has_signal(self, name: str) -> bool:
        """Return whether there is such a signal beside the model, or there was and its file is gone."""
        file = SIGNALS[name].file
        return (self.path / file).is_file() or file in (self.record.get("files") or {})

    def check(self, *names: str) -> None:
        """See that single files are as they were written.

        Raises:
            RunError: naming the first that is not.
        """
        for name in names:
            again = f"`kgmlm tune {quoted(self.path)} --add {Path(name).stem} --overwrite`"
            remedy = f"restore it from a copy, or make it again: {again}"
            _check_files(self.path, self.record, name, remedy=remedy)

    def verify(self) -> None:
        """Read all files of the run and see that they are as they were written.

        Raises:
            RunError: naming the first that is not; or when no digests were kept.
        """
        if not self.record.get("files"):
            raise RunError(f"{self.path} cannot be verified: its run.json has no digests")
        _check_files(self.path, self.record, *self.record["files"], contents=True)
        if self.model_folder.is_dir():
            digests.check_folder(self.model_folder, contents=True)
        for index in (self.path / "index").glob("*"):
            digests.check_folder(index, contents=True, remedy="build it again with `kgmlm index`")


def read_folder(path: Path, *, verify: bool = False, known: RunFolder | None = None) -> RunFolder:
    """Read a run's folder; it may have been moved here from another machine.

    Args:
        verify: read all its files and see that they are as they were written; else only sizes are checked.
        known: the run as it was read before: what cannot have changed since is not read again.

    Raises:
        RunError: when it is damaged, or of a newer format.
    """
    state = _state(path)  # before anything is read, so that what is replaced meanwhile is noticed
    record = read_record(path)
    if known is not None and graph_digests(record) == graph_digests(known.record):
        graph, settings = known.graph, known.settings
    else:
        _check_files(path, record, "config.toml", "graph/", contents=verify)
        settings = _read_settings(path)
        if record["span_length"] >= settings.text.max_length:
            raise RunError(
                f"{path / 'run.json'} is damaged: 'span_length' is {record['span_length']}, a text has "
                f"{settings.text.max_length} tokens; {RESTORE}"
            )
        graph = read_graph(path / "graph", record["dataset"], record["sources"], record.get("validation"))
    contents = {name: (path / name).read_bytes() for name in _READ_AT_ONCE if (path / name).is_file()}
    run = RunFolder(path, graph, settings, record, contents, state)
    if verify:
        run.verify()
    return run


def interrupted(folder: Path, run: Path) -> RunError:
    """The error of a run, or a folder of it, whose replacement was cut short."""
    return RunError(
        f"{folder} was being replaced when a command was interrupted; `kgmlm train --output {quoted(run)} "
        "--resume` puts it in order"
    )


TRIES, PAUSE = 40, 0.05  # how often a run that is being written is read, and seconds between: 2 s in all
T = TypeVar("T")


def read_as_one(run: RunFolder, read: Callable[[RunFolder], T]) -> T:
    """Read files of a run, all of them as they were at one time; again where a writer has replaced some.

    Args:
        read: called with the run as it is now.

    Raises:
        RunError: when the run changes as often as it is read.
    """
    for left in reversed(range(TRIES)):
        try:
            run = run if run.is_current() else run.now()
            result = read(run)
        except (KgmlmError, OSError):
            if not left or (run.is_current() and not files.is_unsettled(run.model_folder)):
                raise
        else:
            if run.is_current():
                return result
        time.sleep(PAUSE)
    raise RunError(f"{run.path} changes as often as it is read; try again when what writes it has ended")


def _state(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Stat the files that a run's scores depend on; a replaced file counts as another."""
    parts = (path / "model", path / "signals")
    states = []
    for file in sorted(file for part in parts for file in (part, *part.glob("*"))):
        with suppress(OSError):
            stat = file.stat()
            states.append((str(file), stat.st_ino, stat.st_mtime_ns))
    return tuple(states)


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
        of: the SHA-256 of the model that was indexed; with another model, all entities are scored.
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
    validation: Literal["newest", "entities", "random"] | None = None
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
        raise RunError(f"{file} is damaged: it is not a JSON object; {RESTORE}")
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


def kept_digests(record: Mapping[str, Any]) -> digests.Accepted | None:
    """The digests that a record has of files of the run, if any."""
    return digests.of_json(record.get("files"))


def _check_files(
    path: Path, record: Mapping[str, Any], *names: str, contents: bool = False, remedy: str = RESTORE
) -> None:
    """See that files of a run are as they were written, where the record knows.

    Args:
        names: of files; those in a folder by its name and "/".

    Raises:
        RunError: naming the first that is not.
    """
    known = kept_digests(record) or {}
    asked = {k: v for k, v in known.items() if k.startswith(tuple(names))}
    digests.check(path, asked, contents=contents, remedy=remedy)


def _read_settings(path: Path) -> Settings:
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


def fingerprints(
    run: Path, model: digests.Accepted | None, others: digests.Accepted | None
) -> dict[str, str]:
    """SHA-256 of the file of each signal of a run, and of its trees, by name.

    Args:
        model, others: the digests of the files in ``model/``, and of others; files without a digest are read.
    """
    known = {f"model/{name}": of for name, of in (model or {}).items()} | (others or {})
    names = {name: kind.file for name, kind in kinds_in(run).items()}
    if (run / TREES_FILE).is_file():
        names[TREES] = TREES_FILE
    return {name: digests.sha(known, file, run) for name, file in names.items()}


def graph_digests(record: Mapping[str, Any]) -> dict[str, Any]:
    """The digests that a record has of the files of its graph."""
    return {name: of for name, of in (record.get("files") or {}).items() if name.startswith("graph/")}


def structure_beside(file: str) -> str:
    """Where the structure for ONNX Runtime of a signal's text model is, if it has one."""
    return str(PurePosixPath(file).with_suffix(".onnx"))
