"""What people say of answers: one line of JSON per judgment in ``RUN/feedback.jsonl``; lines are only added.

A later line about the same triple counts instead of an earlier one. A line that was cut off, by a kill or a
full disk, spoils no other: whoever writes next begins a new line, and readers pass over it.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

from filelock import FileLock
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kgmlm.kg import RunError

FILE = "feedback.jsonl"

Labels = tuple[str, str, str]  # of head, relation and tail


class Judgment(BaseModel):
    """What somebody says of a triple.

    Attributes:
        label: 1 when it is true, 0 when it is false, None to take back what was said before.
        time: when, in UTC.
        fingerprint: of what the run's scores went by when it was asked.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    head: str = Field(min_length=1)
    relation: str = Field(min_length=1)
    tail: str = Field(min_length=1)
    label: Literal[0, 1] | None
    time: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    fingerprint: str = ""

    @property
    def triple(self) -> Labels:
        """What is judged."""
        return self.head, self.relation, self.tail


class Feedback(NamedTuple):
    """All judgments of a file in their order, and how many of its lines are none."""

    judgments: list[Judgment]
    damaged: int

    def latest(self) -> dict[Labels, Judgment]:
        """The judgment that counts for each triple, but for those that were taken back."""
        last: dict[Labels, Judgment] = {}
        for judgment in self.judgments:
            last.pop(judgment.triple, None)  # in the order of the last word
            last[judgment.triple] = judgment
        return {triple: said for triple, said in last.items() if said.label is not None}


def read(path: Path) -> Feedback:
    """The judgments of a file; none where there is no file.

    Raises:
        RunError: when it cannot be read.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return Feedback([], 0)
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None
    judgments, damaged = [], 0
    for line in filter(None, lines):
        try:
            judgments.append(Judgment.model_validate_json(line))
        except ValidationError:
            damaged += 1
    return Feedback(judgments, damaged)


def add(path: Path, judgment: Judgment) -> None:
    """Write a judgment behind the others; it is on the disk when this returns.

    Raises:
        RunError: when it cannot be written.
    """
    line = json.dumps(judgment.model_dump(), ensure_ascii=False).encode() + b"\n"
    try:
        with FileLock(path.with_name(f".{path.name}.lock"), timeout=10), open(path, "a+b") as file:
            end = file.seek(0, os.SEEK_END)
            if end:
                file.seek(end - 1)
                line = line if file.read(1) == b"\n" else b"\n" + line
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:  # a lock that is not given in time is one, too
        raise RunError(f"{path} cannot be written: {error.strerror or 'it is locked'}") from None
