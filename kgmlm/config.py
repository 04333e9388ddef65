"""Strict settings: TOML in, validated objects out; an unknown key is an error.

The expanded settings are saved with every run. Knows nothing of what the settings do.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar

import tomli_w
from pydantic import BaseModel, Field, ValidationError

from kgmlm.kg import ConfigError
from kgmlm.sections import (
    KGESettings,
    MaskingSettings,
    RerankingSettings,
    RuleSettings,
    ScoringSettings,
    ScratchSettings,
    Seed,
    Strict,
    TextSettings,
    TrainingSettings,
    TypeSettings,
    VectorSettings,
)

__all__ = [
    "KGESettings",
    "MaskingSettings",
    "RerankingSettings",
    "RuleSettings",
    "ScoringSettings",
    "ScratchSettings",
    "TextSettings",
    "TrainingSettings",
    "TypeSettings",
    "VectorSettings",
]

_T = TypeVar("_T", bound=BaseModel)
CandidateSet = Literal["all", "graph", "split", "train"]
Stage = Literal["text", "kge", "rules", "types", "reverse", "reranker", "index"]  # of a training by a preset


class Settings(Strict):
    """Everything that decides what a run is, but for the dataset and the model's address."""

    scratch: ScratchSettings = ScratchSettings()
    text: TextSettings = TextSettings()
    scoring: ScoringSettings = ScoringSettings()
    vector: VectorSettings = VectorSettings()
    kge: KGESettings = KGESettings()
    rules: RuleSettings = RuleSettings()
    types: TypeSettings = TypeSettings()
    masking: MaskingSettings = MaskingSettings()
    reranking: RerankingSettings = RerankingSettings()
    training: TrainingSettings = TrainingSettings()

    def for_reranking(self) -> Settings:
        """The settings of a run's reranker: another objective, and no entity vectors."""
        training = self.training.model_copy(update={"objective": "rerank"})
        vector = self.vector.model_copy(update={"enabled": False})
        return self.model_copy(update={"training": training, "vector": vector})

    def without_max_steps(self) -> Settings:
        """The settings that a resumed run must share with its beginning."""
        return self.model_copy(update={"training": self.training.model_copy(update={"max_steps": None})})


def _known_splits(asked: str | None) -> tuple[str, ...]:
    """The splits that filter where nothing else is said; test knows nothing of what is asked before it."""
    return ("train", "valid", "test") if asked == "test" else ("train", "valid")


class Protocol(Strict):
    """How `kgmlm evaluate --protocol FILE` asks: by default all test triples, among all entities."""

    split: str = Field("test", description="The split whose triples are asked.")
    triples: Literal["all", "unseen", "seen"] = Field(
        "all",
        description="`all` triples of the split, only those with an entity that training does not have "
        "(`unseen`), or only the others (`seen`).",
    )
    candidates: CandidateSet = Field(
        "all",
        description="Who competes: `all` entities (with --graph, those of the run and of the graph), the "
        "entities of the evaluated `graph`, of the evaluated `split`, or of the run's `train` triples, as "
        "in PyKEEN. Triples with an entity outside the set are left out and counted.",
    )
    filter: tuple[str, ...] = Field(
        default_factory=lambda asked: _known_splits(asked.get("split")),
        description="Splits whose triples are known answers. By default `train` and `valid`, and `test` "
        "only where test is asked: what is chosen on validation must not depend on test triples.",
    )
    negatives: int = Field(
        0, ge=0, le=1_000_000, description="0: rank among the whole set; k: rank among k candidates of it."
    )
    negatives_by: Literal["drawing", "grail", "expectation"] = Field(
        "drawing",
        description="How the k negatives are chosen: `drawing` k different non-answers; `grail`, with "
        "replacement, never the query's own entity, as GraIL does (k = 49, filter train; the answer may be "
        "drawn and ties); or `expectation`, Hits@k in closed form over all draws, ties pessimistic, as "
        "NBFNet does. No two of these compare with each other.",
    )
    max_triples: int = Field(0, ge=0, description="Ask a seeded sample of this many triples; 0: all.")
    seed: Seed = Field(0, description="Seed of the sample and of the negatives.")
    allow_self: bool = Field(
        False,
        description="Let a query's own entity be its answer in every relation. By default it ranks last "
        "where the run's training has 20 triples or more of the relation and none links an entity to itself.",
    )


def _parse(text: str) -> dict[str, Any]:
    """TOML.

    Raises:
        ValueError: for what is none, or is nested too deeply to read.
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        return _parse(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no settings file {path}") from None
    except (OSError, ValueError) as error:  # what is no UTF-8 or no TOML is a ValueError, too
        raise ConfigError(f"{path} cannot be read as TOML: {error}") from None


def _shown(value: Any) -> str:
    """A value for a sentence."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or an integer of thousands of digits
        return "a value that cannot be shown"
    return text if len(text) <= 80 else f"{text[:80]}…"


def _validate(kind: type[_T], values: dict[str, Any], origin: str) -> _T:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        members = re.compile("int|float|literal.*|constrained-.*")  # of a union; no part of the name
        key = ".".join(str(x) for x in first["loc"] if not members.fullmatch(str(x)))
        if first["type"] == "extra_forbidden":
            raise ConfigError(f"{origin}: unknown key '{key}'{_meant(kind, key)}") from None
        reason = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{origin}: '{key}' is {_shown(first['input'])}: {reason}") from None


def _meant(kind: type[BaseModel], key: str) -> str:
    """The known key that is most like an unknown one, as a question behind it; empty where none is."""
    section, _, name = key.rpartition(".")
    known = _keys(kind)
    same = [k.rpartition(".")[2] for k in known if k.rpartition(".")[0] == section]
    alike = get_close_matches(name, same, 1, 0.6) or [k for k in same if k in name.split("_")]
    if alike:
        return f"; did you mean '{section}.{alike[0]}'?" if section else f"; did you mean '{alike[0]}'?"
    elsewhere = sorted((k for k in known if k.rpartition(".")[2] == name), key=lambda k: "training" not in k)
    return f"; did you mean '{elsewhere[0]}'?" if elsewhere else ""


def _keys(kind: type[BaseModel], of: str = "") -> list[str]:
    """All keys of settings, with their sections."""
    found = []
    for name, field in kind.model_fields.items():
        found.append(f"{of}{name}")
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            found += _keys(section, f"{of}{name}.")
    return found


def override(values: dict[str, Any], assignment: str) -> None:
    """Put a ``KEY=VALUE`` setting into values by section."""
    key, equals, text = assignment.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set takes KEY=VALUE, such as training.epochs=5; got '{assignment}'")
    try:
        value = _parse(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text
    except ValueError as error:
        raise ConfigError(f"--set {assignment[:40]}…: {error}") from None
    *path, last = key.strip().split(".")
    for part in path:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {assignment}: '{part}' is not a table of settings")
    values[last] = value


RETIRED = ("training.distillation",)  # settings that runs still have in their config.toml


def load_settings(
    path: Path | None = None, overrides: Sequence[str] = (), *, of_run: bool = False
) -> Settings:
    """Settings from a TOML file (or the defaults), then ``KEY=VALUE`` overrides on top.

    Args:
        of_run: the file is a run's own, of which retired settings are dropped.

    Raises:
        ConfigError: for an unknown key, a value out of range, or a file that is no TOML; it names the file or
            ``--set``, whichever has it.
    """
    values = _read(path) if path else {}
    for section, _, key in (name.partition(".") for name in RETIRED if of_run):
        if isinstance(values.get(section), dict):
            values[section].pop(key, None)
    settings = _validate(Settings, values, str(path or "settings"))
    for assignment in overrides:
        override(values, assignment)
    return _validate(Settings, values, "--set") if overrides else settings


def as_settings(values: dict[str, Any], origin: str = "settings") -> Settings:
    """Settings from plain values, by section; raises as :func:`load_settings`."""
    return _validate(Settings, values, origin)


def load_protocol(path: Path | None = None, **overrides: Any) -> Protocol:
    """A protocol from a TOML file (or the default); overrides that are None are ignored.

    Raises:
        ConfigError: as :func:`load_settings`.
    """
    values = _read(path) if path else {}
    _validate(Protocol, values, str(path or "protocol"))
    given = {k: v for k, v in overrides.items() if v is not None}
    return _validate(Protocol, values | given, "the protocol asked for" if given else str(path or "protocol"))


def dump_settings(settings: Settings, notes: Sequence[str] = ()) -> str:
    """The expanded settings as TOML (keys that are None are left out), below notes as comments."""
    said = "".join(f"# {line}\n" for note in notes for line in note.splitlines())
    return said + tomli_w.dumps(settings.model_dump(exclude_none=True))
