"""The options of saying which triples are true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kgmlm.core.errors import ConfigError
from kgmlm.core.options import Options, ProgressOptions, QuietOptions, about, option
from kgmlm.graphs.options import HeaderOptions
from kgmlm.runs.options import (
    BatchOptions,
    DeviceOptions,
    EntityOptions,
    RuntimeOptions,
    ScoreOptions,
    WorkerOptions,
)

if TYPE_CHECKING:
    from kgmlm.graphs.given import Triples
    from kgmlm.graphs.graph import Dataset

PART = 1024  # queries of a part of a long list


@dataclass(frozen=True, kw_only=True)
class PriorOptions(Options):
    """The share of true triples in a list."""

    prior: float = option(
        0.5,
        "The share of true triples among those asked about, above 0 and below 1, on which the column "
        "probability_if_half_true is based.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.prior, int | float) or not 0 < self.prior < 1:
            raise ConfigError(f"--prior is a share above 0 and below 1, not {self.prior}")


@dataclass(frozen=True, kw_only=True)
class ClassifyOptions(
    EntityOptions, PriorOptions, HeaderOptions, DeviceOptions, RuntimeOptions, ProgressOptions
):
    """Options of :func:`kgmlm.classify`."""

    triples: Triples | str | Path = field(
        kw_only=False,
        metadata=about(
            "Triples as TSV, CSV or Parquet: head, relation, tail (labels or names) and, optionally, a label "
            "to compare the answers with: 1 for true, -1 or 0 for false.",
            python="Or a list, an array or a DataFrame.",
            command=Path,
            is_argument=True,
            is_input=True,
        ),
    )
    graph: Dataset | None = option(
        None,
        "Another dataset or folder that the triples belong to: its entities compete, and its training "
        "triples are context and count as known.",
        command=str,
    )
    allow_new_relations: bool = option(False, "Read relations that the run does not have by their names.")


@dataclass(frozen=True, kw_only=True)
class RankRelationsOptions(PriorOptions, DeviceOptions, RuntimeOptions, ProgressOptions):
    """Options of :func:`kgmlm.rank_relations`."""

    head: str = field(kw_only=False, metadata=about("Label or name."))
    tail: str = field(kw_only=False, metadata=about("Label or name."))
    k: int = option(10, "How many relations to list.", "-k", "--top", at_least=1)
    novel: bool = option(False, "Leave out triples that the graph has, in any split.")


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(DeviceOptions, ProgressOptions):
    """Options of :func:`kgmlm.calibrate`."""

    lacking: float = option(
        1.0,
        "Assumed number of true triples that neither training nor validation has, per validation triple: the "
        "size of the hidden set that probabilities refer to.",
        above=0,
    )
    max_triples: int = option(
        1000,
        "How many validation triples, and questions of each other kind, to draw; 0 is all.",
        at_least=0,
    )
    seed: int = option(0, "Seed of the sample.", at_least=0)


@dataclass(frozen=True, kw_only=True)
class CompleteOptions(ScoreOptions, BatchOptions, WorkerOptions, ProgressOptions):
    """Options of :func:`kgmlm.complete`."""

    output: str | Path = field(
        kw_only=False, metadata=about("The file to write: .parquet, .csv or .tsv.", command=Path)
    )
    min_probability: float | None = option(
        None,
        "Leave out triples below it; by default 0.1, but the ten most probable are always listed.",
        at_least=0,
        at_most=1,
    )
    relations: Sequence[str] | str = option(
        (), "List only these, by label or name; may be given several times.", command=list[str]
    )
    top: int = option(10, "Answers kept per query.", at_least=1)
    typed: bool = option(
        True,
        "Ask only what the types of entities suggest, and list only answers whose types fit; --no-typed asks "
        "each (entity, relation, side) that training has.",
    )
    functional: bool = option(
        True, "List no second answer where a relation has one answer per entity in training."
    )
    known: Sequence[str] | str | None = option(
        None, "The splits that are never listed, such as train,valid; by default all.", command=str
    )
    report: str | None = option(
        None,
        "Count how many triples of this split, not a known one, are listed: precision and recall at each "
        "probability, among the best and per relation, and how diverse the best hundred are.",
    )
    since: Sequence[str | Path] | str | Path = option(
        (),
        "A list that `complete` wrote before, or a folder of such lists: list only triples that none of them "
        "has with --min-probability or more, and say what became of theirs; may be given again. The exit "
        "code is 1 if there is nothing new.",
        command=list[Path],
    )
    explain: bool = option(
        False,
        "Add a reason to each triple: a rule that is often right, else what is known about the most similar "
        "entity, else which entity's description names the other.",
    )
    diverse: bool = option(
        False, "Order the first thousand so that no entity has more than five places in a hundred."
    )
    part_size: int = option(PART, "Queries of a part.", at_least=1)
    sample: int = option(
        0,
        "Ask only this many queries, a seeded sample by relation and side, to see speed and precision first; "
        "0 is all.",
        at_least=0,
    )
    shard: str | None = option(
        None,
        "Compute a share of the parts, such as 3/16, and no list; without --shard, all parts are joined.",
    )


@dataclass(frozen=True, kw_only=True)
class MissingOptions(QuietOptions):
    """Options of :func:`kgmlm.missing`."""

    entity: Sequence[str] | str = field(
        kw_only=False,
        metadata=about(
            "List what this entity lacks, over all relations, and write no file; may be given again.",
            command=list[str],
        ),
    )
    k: int = option(10, "How many facts to list for --entity.", "-k", at_least=1)


@dataclass(frozen=True, kw_only=True)
class ExportOptions(ProgressOptions):
    """Options of :func:`kgmlm.export`."""

    output: str | Path = field(
        kw_only=False,
        metadata=about(
            "The file to write, or - for stdout; for neo4j, a folder, or a server, bolt://HOST/DATABASE, "
            "which gets relationships with `probability` and `source` between its existing nodes.",
            command=Path,
        ),
    )
    format: str | None = option(
        None, "ntriples, rdf-star, trig, csv, tsv, jsonl or neo4j; by default by the name of the file."
    )
    min_probability: float = option(0.0, "Leave out triples below it.", at_least=0, at_most=1)
    base: str = option("urn:kgmlm:", "Prefix for labels that are not IRIs.")
    spreadsheet: bool = option(
        False, "CSV for a spreadsheet: an apostrophe before texts that it would take for formulas."
    )
    key: str | None = option(None, "For a server: the --key that its import used.")
