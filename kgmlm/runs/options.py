"""The options of ranking by a run, and of opening one."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from kgmlm.core.options import Options, ProgressOptions, QuietOptions, about, option

if TYPE_CHECKING:
    import pandas as pd

    from kgmlm.graphs.entities import EntityTable
    from kgmlm.graphs.given import AskedQueries, Triples

BATCH_SIZE = 64  # queries per forward pass, where no option says it
Runtime = Literal["auto", "torch", "onnx"]
Precision = Literal["fp32", "bf16"]
Scores = str  # "all", "text", or the name of a signal


def score_names() -> list[str]:
    """The values of ``scores``."""
    from kgmlm.signals import SIGNALS

    return ["all", "text", *SIGNALS]


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(Options):
    """The device that computes."""

    device: str | None = option(None, "The device, such as cpu or cuda; by default a GPU if there is one.")


@dataclass(frozen=True, kw_only=True)
class BatchOptions(Options):
    """How many queries are computed at once."""

    batch_size: int = option(BATCH_SIZE, "Queries per forward pass.", at_least=1)


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(Options):
    """Workers that share a long job; results are the same, whoever does the work."""

    ray: str | None = option(
        None,
        "Score with Ray workers: `local` starts Ray here, HOST:PORT is a cluster that this machine is a node "
        "of. Each worker has one CPU (with --device cuda also one GPU) and the model in memory.",
    )
    workers: int | None = option(
        None,
        "With --ray: how many workers; by default as many as this machine has CPUs.",
        at_least=1,
        at_most=1024,
    )


@dataclass(frozen=True, kw_only=True)
class PrecisionOptions(Options):
    """The precision of products."""

    precision: Precision = option(
        "fp32", "fp32, or bf16: faster on GPUs and on CPUs with bf16 units, but slightly less precise."
    )


@dataclass(frozen=True, kw_only=True)
class RuntimeOptions(Options):
    """The library that reads texts."""

    runtime: Runtime = option(
        "auto",
        "What reads texts: torch, or ONNX Runtime for runs that `kgmlm onnx` has prepared; auto uses ONNX "
        "Runtime on a CPU if it supports everything requested.",
    )


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(DeviceOptions, PrecisionOptions):
    """What scores candidates, and which entities are candidates.

    Raises:
        ConfigError: when there are no such scores, or a value is out of range.
    """

    scores: Scores = option(
        "all",
        "all signals; text (likelihood and entity vectors alone); or one signal, such as kge.",
        choices=score_names,
    )
    typed: bool = option(
        False,
        "Leave out (`evaluate`: rank last) the entities whose types do not fit, judging by the relation's "
        "heads and tails in training and by given types.",
    )
    functional: bool = option(
        False,
        "Leave out (`evaluate`: rank last) second answers where a relation has one answer per entity in "
        "training.",
    )
    unlinked: bool = option(
        False,
        "Leave out (`evaluate`: rank last) the entities that training links to the query's entity by another "
        "triple, in either direction.",
    )
    candidates: str | Path | None = option(
        None,
        "A table of the entities that can answer: a column entity and, optionally, relation and side (head "
        "or tail). A relation without rows of its own uses the rows without a relation.",
        command=Path,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scores not in ("all", "text"):  # known without a heavy import
            from kgmlm.signals import check_scores

            check_scores(self.scores)


@dataclass(frozen=True, kw_only=True)
class SearchOptions(ScoreOptions):
    """How the best candidates are searched for and scored again."""

    allow_self: bool = option(
        False,
        "Let the query's entity be its own answer even where no training triple of the relation links an "
        "entity to itself.",
    )
    rerank: int | None = option(
        None,
        "How many of the best candidates are scored in reverse, if the run does so (`kgmlm tune --add "
        "reverse`); by default as many as validation chose. 0 turns off all second stages, also trees.",
        at_least=0,
    )
    retrieve: int | None = option(
        None,
        "Score only this many entities per query, proposed by the index (`kgmlm index`); 0 scores all. The "
        "default comes from the run's recipe.",
        at_least=0,
    )


@dataclass(frozen=True, kw_only=True)
class RankingOptions(SearchOptions, RuntimeOptions):
    """Options of ranking by a run; :attr:`kgmlm.Run.options` has those that it was opened with.

    Example:
        >>> RankingOptions(scores="text", rerank=0).words()
        ['text', 'rerank-0']
    """

    probabilities: bool = option(
        True,
        "Compute probabilities; each answer is also asked from its other side, so many queries take longer.",
    )

    @classmethod
    def of(cls, options: ScoreOptions) -> Self:
        """The options of a ranking among those of a job."""
        return cls(**{x.name: getattr(options, x.name) for x in _own(cls) if hasattr(options, x.name)})

    def updated(self, options: Options) -> Self:
        """A copy with the options that the caller of a job gave."""
        return replace(
            self, **{x.name: getattr(options, x.name) for x in _own(self) if x.name in options.given}
        )

    def plain(self) -> RankingOptions:
        """The options of probabilities: all signals in fp32, unconstrained, no second stage."""
        return RankingOptions(rerank=0, retrieve=0, device=self.device, runtime=self.runtime)

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU is asked for by name."""
        return (self.device or "").startswith("cuda")

    def sent(self) -> Self:
        """A copy for a machine that has GPUs of its own: one of them, or the CPU."""
        return replace(self, device="cuda" if self.on_gpu else self.device or "cpu")

    @property
    def reranks(self) -> bool:
        """Whether a second stage takes part, where the run has one."""
        return self.scores in ("all", "text") and self.rerank != 0

    def of_scores(self) -> dict[str, Any]:
        """The options that scores and candidates depend on, by name."""
        return {x.name: getattr(self, x.name) for x in _own(self) if x.name not in _OF_MACHINE}

    def words(self) -> list[str]:
        """Words for the options that differ from their defaults, for file names."""
        words = [] if self.scores == "all" else [self.scores]
        defaults = RankingOptions().of_scores()
        for name, value in self.of_scores().items():
            if value != defaults[name] and name not in ("scores", "candidates", "precision"):
                flag = name.replace("_", "-")
                words.append(flag if value is True else f"{flag}-{value}")
        words += [] if self.candidates is None else [f"of-{Path(self.candidates).stem}"]
        return words if self.precision == "fp32" else [*words, self.precision]


_OF_MACHINE = ("device", "runtime", "probabilities")  # what scores do not depend on


def _own(options: Any) -> list[Any]:
    return [x for x in fields(options) if x.init]


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(Options):
    """How carefully a run is opened."""

    verify: bool = option(False, "Read all files of the run first, and check them against their SHA-256.")


@dataclass(frozen=True, kw_only=True)
class OpenOptions(RankingOptions, VerifyOptions):
    """Options of :func:`kgmlm.open_run`."""


@dataclass(frozen=True, kw_only=True)
class EntityOptions(Options):
    """New entities that a run is asked about."""

    entities: EntityTable | pd.DataFrame | str | Path | None = option(
        None,
        "New entities, known by their texts, that can be answers and be asked about: a table with the "
        "columns label, name and, optionally, description, surface and types; or an RDF file.",
        command=Path,
        is_input=True,
    )
    entity_triples: Triples | str | Path = option(
        (),
        "What is known about the new entities: triples (head, relation, tail) that each contain one of "
        "them. They count as training triples and as known answers.",
        command=Path,
        is_input=True,
    )


@dataclass(frozen=True, kw_only=True)
class RankOptions(BatchOptions, WorkerOptions, QuietOptions):
    """Options of :meth:`kgmlm.Run.rank`."""

    queries: AskedQueries | str | Path | None = option(
        None,
        "Many queries: TSV or CSV whose first line names the columns relation and head or tail.",
        command=Path,
        is_input=True,
        python="Or a DataFrame with these columns, or (head, relation, tail) with None for what is asked; "
        "these can also be the first argument, in place of the head. Several processes (torchrun) share "
        "the work.",
    )
    head: str | AskedQueries | None = field(
        default=None, kw_only=False, metadata=about("Rank tails of this head (label or name).", command=str)
    )
    relation: str | None = field(
        default=None, kw_only=False,
        metadata=about("Relation (label or name); without one, `kgmlm rank` ranks relations."),
    )  # fmt: skip
    tail: str | None = field(
        default=None, kw_only=False, metadata=about("Rank heads of this tail (label or name).")
    )
    k: int = field(
        default=10, kw_only=False, metadata=about("Answers per query.", names=("-k", "--top"), at_least=1)
    )
    novel: bool = option(False, "Leave out triples that the graph has.")


@dataclass(frozen=True, kw_only=True)
class IndexOptions(DeviceOptions, ProgressOptions):
    """Options of :func:`kgmlm.index`."""
