"""Judgments of answers: lines of JSON in ``RUN/feedback.jsonl``, only ever added.

A later line about the same triple counts instead of an earlier one. A line that was cut off, by a kill or a
full disk, spoils no other: whoever writes next begins a new line, and readers pass over it.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa
from filelock import FileLock
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kgmlm.core import files
from kgmlm.core.errors import DataError, RunError, quoted
from kgmlm.core.files import as_path
from kgmlm.core.results import Outcome
from kgmlm.core.tables import ENDS, LABEL, write_tsv
from kgmlm.runs.run import Run, path_of
from kgmlm.runs.writing import check_result

FEEDBACK_FILE = "feedback.jsonl"
Labels = tuple[str, str, str]  # of head, relation and tail


class Judgment(BaseModel):
    """A judgment of a triple.

    Attributes:
        label: 1 when it is true, 0 when it is false, None to take back what was said before.
        time: when, in UTC.
        fingerprint: the digest of the weights of the run that was judged (``RunFolder.scores_digest``).
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
        """The triple."""
        return self.head, self.relation, self.tail


class Feedback(NamedTuple):
    """All judgments of a file in their order, and how many of its lines are unreadable."""

    judgments: list[Judgment]
    damaged: int

    def latest(self) -> dict[Labels, Judgment]:
        """The last judgment of each triple, also where it takes back those before it."""
        last: dict[Labels, Judgment] = {}
        for judgment in self.judgments:
            last.pop(judgment.triple, None)  # in the order of the last word
            last[judgment.triple] = judgment
        return last

    def counting(self) -> list[Judgment]:
        """The judgment that counts for each triple, but for those that were taken back."""
        return [judgment for judgment in self.latest().values() if judgment.label is not None]


def read_judgments(path: Path) -> Feedback:
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


def add_judgments(path: Path, judgment: Judgment) -> None:
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


def feedback(run: Run | str | Path, output: str | Path) -> Outcome:
    """Write the judgments that the service's page took as a file of triples with labels.

    Args:
        output: a TSV file, or ``.parquet``, which can hold labels with tabs: head, relation, tail, and 1
            for accepted or 0 for rejected. It can be classified, or be a dataset's ``valid`` or ``test``.

    Returns:
        What was written: ``output``, ``accepted``, ``rejected``, and ``damaged``: unreadable lines.

    Raises:
        RunError: when there is no such run.
        DataError: when there are no judgments, or TSV cannot hold them.
    """
    path, target = path_of(run), as_path(output, "the output")
    if not (path / "run.json").is_file():
        raise RunError(f"{path} is not a run folder; only run folders keep judgments")
    check_result(target)
    judgments = read_judgments(path / FEEDBACK_FILE)
    counting = judgments.counting()
    if not counting:
        raise DataError(f"{path} has no judgments; the page of `kgmlm serve {quoted(path)}` takes them")
    rows = [(*judgment.triple, str(judgment.label)) for judgment in counting]
    if target.suffix == ".parquet":
        columns = zip((*ENDS, LABEL), zip(*rows, strict=True), strict=True)
        files.write_parquet(target, pa.table({name: pa.array(of) for name, of in columns}), follow=True)
    else:
        write_tsv(target, rows)
    accepted = sum(judgment.label == 1 for judgment in counting)
    rejected = len(counting) - accepted
    return Outcome(
        {"output": str(target), "accepted": accepted, "rejected": rejected, "damaged": judgments.damaged}
    )
