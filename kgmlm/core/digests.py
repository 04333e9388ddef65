"""Digests of files: sizes and SHA-256, kept when files are written and checked when they are read.

A folder that is written whole has a manifest in it. Of a file that is being replaced, several digests are
accepted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from kgmlm.core import files
from kgmlm.core.errors import RunError

MANIFEST = "kgmlm.json"
RESTORE = "restore it from a copy, or train the run again"


RETIRED = ("reranking", "reranker", "conditional")  # keys that JSON files of packs still have


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class StrictModel(BaseModel):
    """The contents of a file of ours: all keys known, all values of their types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def without_retired(value: Any) -> Any:
    """A value of JSON without retired keys, at any depth."""
    if isinstance(value, dict):
        return {key: without_retired(of) for key, of in value.items() if key not in RETIRED}
    return [without_retired(of) for of in value] if isinstance(value, list) else value


def fault(error: ValidationError) -> str:
    """The first fault that validation has found: the key, and why its value cannot be."""
    first = error.errors()[0]
    return f"'{'.'.join(map(str, first['loc']))[:60]}': {first['msg']}"


class Digest(StrictModel):
    """Size and SHA-256 of a file when it was written."""

    size: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")

    @classmethod
    def of_bytes(cls, data: bytes) -> Digest:
        """Return the digest of a file of these bytes."""
        return cls(size=len(data), sha256=hashlib.sha256(data).hexdigest())

    @classmethod
    def of(cls, path: Path) -> Digest:
        """Return the digest of a file."""
        return cls(size=path.stat().st_size, sha256=sha256(path))


Accepted = dict[str, list[Digest | None]]  # by name below a folder; None: it need not be there
_ACCEPTED = TypeAdapter(Accepted)


def of_folder(folder: Path) -> Accepted:
    """The digests of all files of a folder, but for its manifest."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p != folder / MANIFEST)
    return {p.relative_to(folder).as_posix(): [Digest.of(p)] for p in paths}


def as_json(accepted: Mapping[str, list[Digest | None]]) -> dict[str, list[dict[str, object] | None]]:
    """For a file of JSON."""
    return {k: [None if d is None else d.model_dump() for d in v] for k, v in accepted.items()}


def of_json(values: object) -> Accepted | None:
    """Read the output of :func:`as_json`; None of None."""
    return None if values is None else _ACCEPTED.validate_python(values)


def write_manifest(folder: Path, accepted: Accepted | None = None) -> None:
    """Keep digests in a folder, by default those of all its files."""
    kept = of_folder(folder) if accepted is None else accepted
    files.write_json(folder / MANIFEST, {"files": as_json(kept)})


def read_manifest(folder: Path, remedy: str = RESTORE) -> Accepted | None:
    """Read the digests that :func:`write_manifest` wrote; None where there are none.

    Raises:
        RunError: when it is damaged.
    """
    path = folder / MANIFEST
    return parse_manifest(path.read_bytes() if path.is_file() else None, path, remedy)


def parse_manifest(data: bytes | None, path: Path, remedy: str = RESTORE) -> Accepted | None:
    """The digests in the contents of a manifest; None where there is none.

    Raises:
        RunError: naming ``path``, when they are damaged.
    """
    if data is None:
        return None
    try:
        return of_json(files.parse_json(data)["files"])
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{path} is damaged; {remedy}") from None


def check(
    folder: Path,
    accepted: Mapping[str, list[Digest | None]],
    *,
    contents: bool = False,
    remedy: str = RESTORE,
) -> None:
    """See that files of a folder are as they were written.

    Args:
        contents: read the files; else only their sizes are compared.
        remedy: what to do, for the sentence.

    Raises:
        RunError: naming the first that is not.
    """
    for name, digests in accepted.items():
        path = folder / name
        if not path.is_file():
            if None in digests:
                continue
            raise RunError(f"{path} is missing; {remedy}")
        size = path.stat().st_size
        alike = {d.sha256 for d in digests if d is not None and d.size == size}
        if not alike:
            sizes = " or ".join(f"{d.size:,}" for d in digests if d is not None) or "0"
            count = f"{size:,} byte{'' if size == 1 else 's'}"
            raise RunError(f"{path} has {count} instead of the {sizes} that were written; {remedy}")
        if contents and sha256(path) not in alike:
            raise RunError(f"{path} has other contents than were written; {remedy}")


def check_folder(folder: Path, *, contents: bool = False, remedy: str = RESTORE) -> bool:
    """:func:`check` a folder by its manifest; False where it has none."""
    accepted = read_manifest(folder, remedy)
    check(folder, accepted or {}, contents=contents, remedy=remedy)
    return accepted is not None


def sha(accepted: Mapping[str, list[Digest | None]], name: str, folder: Path) -> str:
    """SHA-256 of a file of a folder: as it is kept, or of its contents where none or several are."""
    kept = accepted.get(name) or []
    if len(kept) == 1 and kept[0] is not None:
        return kept[0].sha256
    return sha256(folder / name)
