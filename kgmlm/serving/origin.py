"""The folder that a served run was opened from, as it is now.

Whoever trains a run further, moves it or removes it does not ask who serves it. What is open keeps answering
from memory; what needs the folder first asks here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from kgmlm.kg import RunError
from kgmlm.records import read_record
from kgmlm.run import Run

Standing = Literal["as opened", "changed", "gone"]
_LAID = (
    "dataset",
    "sources",
    "model",
    "seed",
    "span_length",
    "command",
)  # what training further leaves alone


class Origin:
    """Where a run was opened.

    Args:
        run: one whose model is open.
    """

    def __init__(self, run: Run) -> None:
        self.folder, self.made_by = run.folder, run.opened
        self._laid = _laid(run.folder.record)

    @property
    def is_the_run(self) -> bool:
        """Whether the folder is still there and still of this run, whatever was trained since."""
        try:
            return _laid(read_record(self.folder.path)) == self._laid
        except RunError:
            return False

    @property
    def standing(self) -> Standing:
        """What has become of the folder: "changed" where its model or weights are others now, or where it is
        another run's.
        """
        try:
            if not (self.folder.path / "run.json").is_file():
                return "gone"
            same = self.folder.made_by == self.made_by and self.is_the_run
        except OSError:
            return "gone"
        return "as opened" if same else "changed"


def _laid(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a run's record has of how it was begun, and on what."""
    digests = record.get("files") or {}
    begun = {name: digests[name] for name in digests if name == "config.toml" or name.startswith("graph/")}
    return {key: record.get(key) for key in _LAID} | begun
