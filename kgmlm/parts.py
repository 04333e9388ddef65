"""Long work in numbered parts: each a whole Parquet file, in a folder that knows of which work they are.

Knows neither what the parts hold nor who makes them: parts may be made in any order, by any number of
processes, and on several machines whose folders are put together afterwards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kgmlm import files
from kgmlm.kg import ConfigError, DataError, RunError

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Shard:
    """One of several shares of the parts: those whose number is ``at`` modulo ``of``."""

    at: int = 0
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From "3/16", the third of sixteen.

        Raises:
            ConfigError: for anything else.

        >>> Shard.parse("3/16")
        Shard(at=2, of=16)
        """
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
        if not found or not 1 <= int(found[1]) <= int(found[2]):
            raise ConfigError(f"a shard is given as 3/16, the third of sixteen, not '{text}'")
        return cls(int(found[1]) - 1, int(found[2]))

    def has(self, number: int) -> bool:
        """Whether a part is of this shard."""
        return number % self.of == self.at


@dataclass(frozen=True)
class Parts:
    """A folder of parts.

    Attributes:
        count: how many parts the whole work has.
    """

    folder: Path
    count: int

    @classmethod
    def open(cls, folder: Path, count: int, about: Mapping[str, Any]) -> Parts:
        """Lay a folder, or open the one that is there for the same work.

        Args:
            about: JSON-ready settings that say which work it is.

        Raises:
            RunError: when something else is there, or parts of other work.
        """
        path = folder / MANIFEST
        if not path.is_file() and folder.exists() and not _is_free(folder):
            raise RunError(f"{folder} is there and has no parts; choose another --output")
        if not path.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            files.write_json(path, dict(about))
        try:
            found = files.parse_json(path.read_bytes())
        except ValueError:
            raise RunError(f"{path} is damaged; remove {folder} to begin again") from None
        want = json.loads(json.dumps(about))
        if not isinstance(found, dict) or found != want:
            have = found if isinstance(found, dict) else {}
            other = sorted(key for key in {*have, *want} if have.get(key) != want.get(key))
            raise RunError(
                f"{folder} has parts of another run or of other settings ({', '.join(other)}); choose "
                "another --output, or remove it"
            )
        return cls(folder, count)

    def path(self, number: int) -> Path:
        """Where a part is, or will be."""
        return self.folder / f"part-{number:07}.parquet"

    def missing(self, shard: Shard = Shard()) -> list[int]:
        """The parts of a shard that are not there."""
        return [n for n in range(self.count) if shard.has(n) and not self.path(n).is_file()]

    def write(self, number: int, table: pa.Table) -> None:
        """Write a part; it is there whole or not at all."""
        files.write_parquet(self.path(number), table)

    def read(self) -> Iterator[pa.Table]:
        """All parts, in order.

        Raises:
            DataError: when one is missing or damaged.
        """
        for number in range(self.count):
            with self._reading(number):
                table = files.read_parquet(self.path(number))
            yield table

    def columns(self) -> list[str]:
        """The names of the columns, as the first part has them.

        Raises:
            DataError: when it is missing or damaged.
        """
        with self._reading(0):
            return list(pq.read_schema(self.path(0)).names)

    @contextmanager
    def _reading(self, number: int) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise DataError(f"{self.path(number)} is missing; the same command makes it") from None
        except (OSError, pa.ArrowException):
            raise DataError(
                f"{self.path(number)} is damaged; remove it, and the same command makes it again"
            ) from None

    def rows(self) -> int:
        """How many rows all parts have together; those that cannot be read have none."""
        total = 0
        for number in range(self.count):
            try:
                total += int(pq.read_metadata(self.path(number)).num_rows)
            except (OSError, pa.ArrowException):
                continue
        return total


def _is_free(folder: Path) -> bool:
    """Whether parts can be laid there: nothing is, but a manifest that another shard is writing, or was."""
    return folder.is_dir() and all(map(files.is_temporary, folder.iterdir()))
