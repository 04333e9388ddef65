"""The options of evaluating a run and of comparing two."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kgmlm.core.options import ProgressOptions, about, option
from kgmlm.graphs.options import HeaderOptions
from kgmlm.runs.options import BatchOptions, SearchOptions, VerifyOptions, WorkerOptions

if TYPE_CHECKING:
    from kgmlm.graphs.graph import Dataset
    from kgmlm.runs.run import Run

Side = Literal["both", "tail", "head"]


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(
    SearchOptions, BatchOptions, WorkerOptions, VerifyOptions, HeaderOptions, ProgressOptions
):
    """Options of :func:`kgmlm.evaluate`."""

    split: str | None = option(None, "The split to evaluate; by default test.")
    protocol: str | Path | None = option(None, "A protocol as TOML.", command=Path, is_input=True)
    graph: Dataset | None = option(
        None,
        "Evaluate on another dataset or folder, whose entities the run has never seen: its training triples "
        "are context, its splits the filter.",
        command=str,
    )
    allow_seen_entities: bool = option(False, "--graph may share entities with training.")
    allow_new_relations: bool = option(False, "--graph may have relations that training lacks.")
    output: str | Path | None = option(None, "Write the report to this file as JSON.", command=Path)
    ranks: str | Path | None = option(
        None, "Parquet file for per-query ranks; by default in RUN/ranks.", command=Path
    )
    side: Side | None = option(
        None,
        "Ask for tails alone, for heads alone, or for both; by default as the run was trained.",
    )
    max_triples: int | None = option(None, "Evaluate only this many triples, a seeded sample.", at_least=1)
    by_relation: bool = option(False, "Report each relation, too.")
    pykeen: bool = option(False, "Rank a second time the way PyKEEN does, which doubles the time.")
    candidates: str | Path | None = option(
        None,
        "Which entities compete: all, graph, split or train; by default all, or graph with --graph. Or a "
        "table of the entities that can answer, as for `rank`: all others rank last.",
        command=str,
    )


@dataclass(frozen=True, kw_only=True)
class CompareOptions(ProgressOptions):
    """Options of :func:`kgmlm.compare`."""

    b: Run | str | Path = field(
        kw_only=False,
        metadata=about("Another run, or other ranks.", command=Path, is_argument=True, is_input=True),
    )
    split: str = option("test", "For run folders: the split whose ranks are compared.")
    draws: int = option(2000, "Number of resamplings and random swaps.", at_least=100)
    seed: int = option(0, "Seed of the draws.", at_least=0)
