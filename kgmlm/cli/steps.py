"""Steps that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal

from kgmlm.cli.options import Kind
from kgmlm.terminal import PhaseBars, TrainingBar, progress_bar, tell

if TYPE_CHECKING:
    from rich.progress import Progress

    from kgmlm.graph import KnowledgeGraph
    from kgmlm.mixture import Mixture
    from kgmlm.ranker import Ranker
    from kgmlm.runs import Run
    from kgmlm.shortlisting import Retrieval
    from kgmlm.training import Outcome


def main_process() -> bool:
    """Whether this is the one process that speaks: `accelerate launch` starts several."""
    return int(os.environ.get("RANK", "0")) == 0


def writes_run(argument: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """For commands that write the run that an argument names: nobody else writes it meanwhile.

    Of several processes the main one holds the lock for all.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def wrapper(**arguments: Any) -> None:
            from kgmlm.upkeep import writing

            with writing(arguments[argument], function.__name__) if main_process() else nullcontext():
                function(**arguments)

        return wrapper

    return decorate


def settings_of(section: str, given: list[str] | None, others: bool = False) -> list[str]:
    """Those of the KEY=VALUE settings that are of a section; or of others."""
    keys = [setting.partition("=")[0].strip() for setting in given or []]
    return [key for key in keys if key.startswith(f"{section}.") != others]


@dataclass(frozen=True)
class Way:
    """How a run is asked: by which parts of its score, through which index, how precisely.

    What is None goes by the run; ``allow_self`` lets an entity be its own answer.
    """

    scores: str = "all"
    allow_self: bool = False
    rerank: int | None = None
    retrieve: int | None = None
    index: Kind | None = None
    effort: int | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    device: str | None = None

    def __post_init__(self) -> None:
        """Refuse unknown scores before anything is opened; what is known needs no heavy import for it."""
        if self.scores not in ("all", "text", "likelihood", "vector", "kge"):
            from kgmlm.ranker import check_scores

            check_scores(self.scores)

    @property
    def reranks(self) -> bool:
        """Whether a reranker takes part, where the run has one."""
        return self.scores in ("all", "text") and self.rerank != 0

    def ranker(self, run: Run, graph: KnowledgeGraph) -> Ranker:
        """A run's ranker over a graph, by the parts of the score that were asked for.

        Raises:
            ConfigError: when the run has no such part, or nothing to rerank with.
        """
        from kgmlm.kg import ConfigError
        from kgmlm.upkeep import has_reranker

        ranker = run.ranker(self.device, graph, self.scores, self.reranks)
        if self.rerank:
            if not self.reranks:
                raise ConfigError(f"--rerank goes with --scores all or text, not {self.scores}")
            if not has_reranker(run.path):
                raise ConfigError(f"{run.path} has no reranker; `kgmlm rerank {run.path}` trains one")
            if ranker.reranking is None:
                raise ConfigError(
                    f"{run.path}: validation chose not to rerank, so there is no weight to rerank with; "
                    f"`kgmlm tune {run.path}` chooses again"
                )
            use = replace(ranker.reranking.use, k=self.rerank)
            ranker = ranker.but(reranking=replace(ranker.reranking, use=use))
        ranker.reduce(self.precision == "bf16")
        return ranker

    def retrieval(self, run: Run, ranker: Ranker) -> Retrieval | None:
        """The index that finds candidates, where only some are to be scored."""
        from kgmlm.indexing import open_retrieval

        return open_retrieval(run, ranker, self.retrieve, self.index, self.effort)

    def words(self) -> list[str]:
        """What is not as by default, for names of files."""
        return [
            *([] if self.scores == "all" else [self.scores]),
            *(["allow-self"] if self.allow_self else []),
            *([] if self.rerank is None else [f"rerank-{self.rerank}"]),
            *([] if self.retrieve is None else [f"retrieve-{self.retrieve}"]),
            *([] if self.index is None else [self.index]),
            *([] if self.effort is None else [f"effort-{self.effort}"]),
        ]


def read_entities(ranker: Ranker, progress: Progress, batch_size: int) -> None:
    """Read the vectors that are missing and count, with a bar."""
    if unread := ranker.unread:
        assert ranker.vectors is not None
        task = progress.add_task("reading entities", total=unread)
        ranker.vectors.read(batch_size, lambda n: progress.advance(task, n))


def train_under_bar(
    run: Run,
    ranker: Ranker,
    validation: Callable[[Ranker, PhaseBars], tuple[Mixture, dict[str, float]]] | None,
    further: str,
    quiet: bool,
    **options: Any,
) -> Outcome:
    """Train with a progress bar, and say how it ended; ``further`` is the command that goes on."""
    from kgmlm.training import train

    bar = ("loss {task.fields[loss]}", "MRR {task.fields[mrr]} (best {task.fields[best]})")
    with progress_bar(*bar, quiet=quiet) as progress:
        phases = PhaseBars(progress)
        outcome = train(
            run,
            ranker,
            None if validation is None else lambda current: validation(current, phases),
            reporter=TrainingBar(progress),
            **options,
        )
    if main_process():
        best = "" if outcome.best_mrr is None else f", best validation MRR {outcome.best_mrr:.4f}"
        tell(
            f"{outcome.status} at step {outcome.step} after {outcome.minutes:.1f} minutes{best}; "
            f"the run is in {run.path}"
        )
        if outcome.status == "max steps":
            tell(f"go further with: {further} --max-steps N")
        if outcome.signal is not None:
            tell(f"go on with: {further}")
    return outcome


def tell_not_reranked(run: Run, way: Way) -> None:
    """Say so where a run's reranker is not trained to its end."""
    from kgmlm.upkeep import RERANKER, has_reranker

    untrained = (run.path / RERANKER / "run.json").is_file() and not has_reranker(run.path)
    if way.reranks and way.rerank is None and untrained:
        tell(f"not reranked, its reranker is not trained: kgmlm rerank {run.path} --resume")
