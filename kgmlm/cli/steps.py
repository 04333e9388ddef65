"""Steps that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal

from kgmlm.cli.options import Kind, Part
from kgmlm.terminal import PhaseBars, TrainingBar, progress_bar, tell

if TYPE_CHECKING:
    from rich.progress import Progress

    from kgmlm.graph import KnowledgeGraph
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

    scores: Part = "all"
    allow_self: bool = False
    rescore: int | None = None
    retrieve: int | None = None
    index: Kind | None = None
    effort: int | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    device: str | None = None

    @property
    def rescores(self) -> bool:
        """Whether a rescorer takes part, where the run has one."""
        return self.scores in ("all", "text") and self.rescore != 0

    def ranker(self, run: Run, graph: KnowledgeGraph) -> Ranker:
        """A run's ranker over a graph, by the parts of the score that were asked for.

        Raises:
            ConfigError: when the run has no such part, or nothing to rescore with.
        """
        from kgmlm.kg import ConfigError

        ranker = run.ranker(self.device, graph=graph, rescorer=self.rescores)
        ranker = ranker.by(self.scores)
        if self.rescore:
            if ranker.reranking is None:
                raise ConfigError(
                    f"{run.path} has no rescorer; `kgmlm rescore {run.path}` trains one"
                    if self.rescores
                    else f"--rescore goes with --scores all or text, not {self.scores}"
                )
            if not ranker.reranking.use.k:
                raise ConfigError(
                    f"{run.path}: validation chose not to rescore, so there is no weight to rescore with; "
                    f"`kgmlm rescore {run.path} --from {run.path}` chooses again"
                )
            use = replace(ranker.reranking.use, k=self.rescore)
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
            *([] if self.rescore is None else [f"rescore-{self.rescore}"]),
            *([] if self.retrieve is None else [f"retrieve-{self.retrieve}"]),
            *([] if self.index is None else [self.index]),
            *([] if self.effort is None else [f"effort-{self.effort}"]),
        ]


def read_entities(ranker: Ranker, progress: Progress, batch_size: int) -> None:
    """Read the vectors that are missing, with a bar."""
    if unread := ranker.unread():
        task = progress.add_task("reading entities", total=unread)
        ranker.read_entities(batch_size, lambda n: progress.advance(task, n))


def train_under_bar(
    run: Run,
    ranker: Ranker,
    validation: Callable[[Ranker, PhaseBars], dict[str, float]] | None,
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


def tell_rescoring_outdated(run: Run) -> None:
    """Say it where rescoring was chosen for the scores that a run had before."""
    if run.record.get("rescoring"):
        tell(f"rescoring is left out until it is chosen again: kgmlm rescore {run.path} --from {run.path}")


def tell_outdated(run: Run) -> None:
    """Say what was chosen on validation for the scores that a run had before."""
    from kgmlm.runs import STRUCTURE

    tell_rescoring_outdated(run)
    if (run.path / STRUCTURE).is_file():
        tell(
            f"weights of structure were chosen for the scores before: kgmlm fuse {run.path} --from {run.path}"
        )


def tell_not_rescored(run: Run, way: Way) -> None:
    """Say why a run is not rescored, where it has something of a rescorer."""
    from kgmlm.upkeep import RESCORER

    if not way.rescores or way.rescore is not None or run.record.get("rescoring"):
        return
    if (run.path / RESCORER / "model" / "config.json").is_file():
        tell(f"not rescored until it is chosen how: kgmlm rescore {run.path} --from {run.path}")
    elif (run.path / RESCORER / "run.json").is_file():
        tell(f"not rescored, its rescorer is not trained: kgmlm rescore {run.path} --resume")
