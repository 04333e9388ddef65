"""The options of saying which triples are true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

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
        "The share of true triples among those that are asked about, above 0 and below 1; the column "
        "probability_if_half_true goes by it.",
    )


@dataclass(frozen=True, kw_only=True)
class ClassifyOptions(
    EntityOptions, PriorOptions, HeaderOptions, DeviceOptions, RuntimeOptions, BatchOptions, ProgressOptions
):
    """Options of :func:`kgmlm.classify`."""

    triples: Triples | str | Path = field(
        kw_only=False,
        metadata=about(
            "Triples as TSV, CSV or Parquet: head, relation, tail (labels or names), and if you like a "
            "label: 1 for true, -1 or 0 for false, with which the answers are compared.",
            python="Or a list, an array or a DataFrame.",
            command=Path,
            is_argument=True,
            is_input=True,
        ),
    )
    graph: Dataset | None = option(
        None,
        "Another dataset or folder that the triples are of: its entities compete, its training triples are "
        "context, and count as known.",
        command=str,
    )
    allow_new_relations: bool = option(False, "Read relations that the run does not have by their names.")


@dataclass(frozen=True, kw_only=True)
class RankRelationsOptions(PriorOptions, DeviceOptions, RuntimeOptions, BatchOptions, ProgressOptions):
    """Options of :func:`kgmlm.rank_relations`."""

    head: str = field(kw_only=False, metadata=about("Label or name."))
    tail: str = field(kw_only=False, metadata=about("Label or name."))
    k: int = option(10, "Relations that are listed.", "-k", "--top", at_least=1)
    novel: bool = option(False, "Leave out triples that the graph has, in any split.")


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(DeviceOptions, BatchOptions, ProgressOptions):
    """Options of :func:`kgmlm.calibrate`."""

    lacking: float = option(
        1.0,
        "Assumed number of true triples that neither training nor validation has, per validation triple: the "
        "size of the hidden set that probabilities refer to.",
        above=0,
    )
    max_triples: int = option(
        1000,
        "Validation triples, and questions of each other kind, that are drawn; 0 is all.",
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
        (), "List these alone, by label or name; may be given again.", command=list[str]
    )
    top: int = option(10, "Answers kept per query.", at_least=1)
    typed: bool = option(
        True,
        "Ask whom the types of entities suggest, and list only answers whose types fit; --no-typed asks each "
        "(entity, relation, side) that training has.",
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
    explain: bool = option(
        False,
        "Add why to each triple: a rule that is often right, else what is known of the most similar entity, "
        "else whose description names whom.",
    )
    diverse: bool = option(
        False, "Order the first thousand so that no entity has more than five places in a hundred."
    )
    part_size: int = option(PART, "Queries of a part.", at_least=1)
    sample: int = option(
        0,
        "Ask only so many queries, a seeded sample by relation and side, to see speed and precision first; 0 "
        "is all.",
        at_least=0,
    )
    shard: str | None = option(
        None,
        "Make a share of the parts and no list, such as 3/16; without it all parts are joined.",
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
    k: int = option(10, "Facts that are listed of --entity.", "-k", at_least=1)


@dataclass(frozen=True, kw_only=True)
class ExportOptions(ProgressOptions):
    """Options of :func:`kgmlm.export`."""

    output: str | Path = field(
        kw_only=False,
        metadata=about(
            "The file to write, - for stdout; of neo4j a folder, or a server, bolt://HOST/DATABASE, which "
            "gets relationships with `probability` and `source` between nodes that it has.",
            command=Path,
        ),
    )
    format: str | None = option(
        None, "ntriples, rdf-star, trig, csv, tsv, jsonl or neo4j; by default by the name of the file."
    )
    min_probability: float = option(0.0, "Leave out triples below it.", at_least=0, at_most=1)
    base: str = option("urn:kgmlm:", "Prefix of labels that are no IRIs.")
    spreadsheet: bool = option(
        False, "CSV for a spreadsheet: an apostrophe before texts that it would take for formulas."
    )
    key: str | None = option(None, "For a server: the --key that its import used.")
