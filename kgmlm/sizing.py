"""How much memory work on a graph will take, by what was measured; refused where there is less.

The figures are lines through the peaks that ``eval/benchmarks/scale.py`` measures at a million and at five
million entities.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kgmlm.cards import find_card
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import SPLITS, DataError
from kgmlm.machine import MEMORY, memory
from kgmlm.tables import find_table

GIB = 2**30
TRIPLE, ENTITY = 33, 86  # bytes of a row in the text files of the measured graphs
UNPACKED = 4  # bytes of text per byte of gzip
SMALL = GIB // 4  # what a graph may take without a word


class Peak(NamedTuple):
    """The memory of a process: bytes in any case, and bytes per byte of text."""

    always: float
    each: float


TRAINING = Peak(1.5 * GIB, 2.9)  # without entity vectors; also reading a graph beside an open model
CHECKING = Peak(0.3 * GIB, 5.0)
ASKING = Peak(1.3 * GIB, 1.4)  # without pages of mapped files, which the system takes back


def check_dataset(dataset: KnowledgeGraph | str | Path, peak: Peak, tell: Callable[[str], None]) -> None:
    """See, before a dataset is read, that there is memory for it and for what is done with it.

    Of what is in memory nothing is said.

    Raises:
        DataError: when the machine, or its control group, can never give as much.
    """
    if not isinstance(dataset, str | Path):
        return
    _check(str(dataset), peak.always, peak.each * _text_of(dataset), tell)


def check_run(path: Path, graph: KnowledgeGraph, tell: Callable[[str], None]) -> None:
    """The same of a run, before all its entities are scored; signals beside its model are loaded whole.

    Raises:
        DataError: when the machine, or its control group, can never give as much.
    """
    text = TRIPLE * sum(map(len, graph.splits.values())) + ENTITY * len(graph.entities)
    loaded = sum(x.stat().st_size for x in path.glob("signals/*.safetensors"))
    _check(str(path), ASKING.always, ASKING.each * text + loaded, tell)


def _text_of(dataset: str | Path) -> int:
    """Bytes of a dataset's tables as text; 0 where nothing is known of them."""
    folder = Path(dataset)
    if folder.is_dir():
        paths = [x for stem in (*SPLITS, "entities") if (x := find_table(folder, stem)) is not None]
        return sum(_text_in(path) for path in paths)
    card = find_card(dataset)
    if card is None:
        return 0
    counts = card.counts
    return TRIPLE * (counts.train + counts.valid + counts.test) + ENTITY * counts.entities


def _text_in(path: Path) -> int:
    """Bytes of one table as text."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        try:
            return int(pq.read_metadata(path).num_rows) * (ENTITY if path.stem == "entities" else TRIPLE)
        except Exception:  # reading it says what is wrong
            return 0
    return path.stat().st_size * (UNPACKED if path.suffix == ".gz" else 1)


def _check(what: str, always: float, own: float, tell: Callable[[str], None]) -> None:
    """Refuse what cannot fit, and say what may not; of what is small for any machine nothing is said."""
    there, needed = memory(), always + own
    if own < SMALL or there is None or needed <= there.free:
        return
    takes = f"{what} takes about {needed / GIB:.1f} GiB of memory"
    if needed > there.total:
        raise DataError(
            f"{takes} and there are {there.total / GIB:.1f}: use a larger machine, or a part of the graph; "
            f"{MEMORY}={needed / GIB + 0.1:.1f} tries it all the same"
        )
    tell(f"{takes} and {there.free / GIB:.1f} GiB are free: the system may slow down, or end it")
