"""What a run folder says of itself: ``run.json`` and ``config.toml``, strictly read.

All may have been edited by hand, cut short or damaged: what cannot be right is one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from kgmlm import digests, files
from kgmlm.config import Settings, Stage, load_settings
from kgmlm.digests import RESTORE
from kgmlm.kg import RunError, first_line

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
    reranker_epochs: float = Field(gt=0)
    weighed: int = Field(default=0, ge=0)
    asked: int = Field(default=1, ge=1)  # older runs lack it


class ShortlistRecord(_Known):
    """How many entities the index of a run finds per query, unless something else is asked for.

    Attributes:
        of: the SHA-256 of the model that was indexed; of another one all entities are scored.
    """

    entities: int = Field(ge=1)
    of: str


class Record(_Known):
    """What of ``run.json`` opening a run relies on; there may be more."""

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
    shortlist: ShortlistRecord | None = None
    files: digests.Accepted | None = None


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
    """The digests that a record has of files of the run; None of runs by versions that kept none."""
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
