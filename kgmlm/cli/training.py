"""``kgmlm train``."""

from __future__ import annotations

import math
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kgmlm.cli.options import MaxSteps, Quiet, SkipHeader
from kgmlm.cli.steps import main_process, settings_of, train_under_bar, writes_run
from kgmlm.terminal import PhaseBars, handled, progress_bar, quiet_transformers, tell

if TYPE_CHECKING:
    from kgmlm.config import Settings
    from kgmlm.mixture import Mixture
    from kgmlm.ranker import Ranker
    from kgmlm.runs import Run


@handled
@writes_run("output")
def train(
    output: Annotated[Path, typer.Option(help="The run folder to write.", show_default=False)],
    dataset: Annotated[
        str | None, typer.Option(help="A built-in dataset, or a folder with train.tsv.", show_default=False)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A masked LM by path or hub name, or `scratch` for a small BERT trained on the graph."
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings as TOML.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE over the settings, such as training.epochs=5."),
    ] = None,
    teacher: Annotated[
        Path | None,
        typer.Option(
            help="With training.distillation: learn from the KGE model of this run, or from its teacher, "
            "instead of training one first.",
            show_default=False,
        ),
    ] = None,
    max_steps: MaxSteps = None,
    decay: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="With --resume: end the run so many epochs from here on, over which the learning rate falls "
            "to nothing (see training.schedule). Copy the run's folder first to train on from here later.",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an older run.")] = False,
    tracker: Annotated[str | None, typer.Option(help="An accelerate tracker, such as tensorboard.")] = None,
    skip_header: SkipHeader = False,
    quiet: Quiet = False,
) -> None:
    """Train a masked LM to rank the entities of a graph.

    Ctrl-C saves a checkpoint and stops (exit code 130, SIGTERM 143); --resume goes on to the same losses.
    """
    from kgmlm.config import load_settings

    quiet = quiet or not main_process()
    _check_end(decay, resume, overwrite)
    if not resume:
        _check_start(output, dataset, model, overwrite)
    given = load_settings(config, set_ or [])
    _check_settings(given, set_, teacher, resume)
    if tracker is not None:
        _check_tracker(tracker)
    if resume:
        begun_with = given if config or set_ else None
        run, ranker = _resume(output, dataset, model, begun_with, skip_header)
        if config or set_:  # what is given now goes before what the run was begun with
            max_steps = max_steps or given.training.max_steps
    else:
        assert dataset is not None
        assert model is not None
        run, ranker = _start(output, dataset, model, given, teacher, overwrite, skip_header, quiet)
    options = {"max_steps": max_steps, "decay": decay, "resume": resume, "tracker": tracker}
    _train(run, ranker, quiet, options)


def _check_end(decay: float | None, resume: bool, overwrite: bool) -> None:
    """Refuse what says in two ways, or in no way, where a run begins and ends."""
    from kgmlm.kg import RunError

    if resume and overwrite:
        raise RunError("--resume and --overwrite exclude each other")
    if decay is not None and not resume:
        raise RunError("--decay ends a run that is resumed; a new run ends after training.epochs")
    if decay is not None and not math.isfinite(decay):
        raise RunError(f"--decay takes a number of epochs, not {decay}")


def _check_start(output: Path, dataset: str | None, model: str | None, overwrite: bool) -> None:
    """Refuse a new run that has nothing to begin with, or no place."""
    from kgmlm import upkeep
    from kgmlm.kg import RunError

    if main_process():
        upkeep.check_output(output, overwrite)
    if dataset is None:
        raise RunError("--dataset is missing: a built-in dataset (`kgmlm data list`) or a folder")
    if model is None:
        raise RunError("--model is missing: `scratch`, a folder, or a Hugging Face name")


def _check_settings(settings: Settings, set_: list[str] | None, teacher: Path | None, resume: bool) -> None:
    """Refuse settings that another command trains with, and a teacher that they do not go with."""
    from kgmlm.kg import RunError

    if settings.training.objective == "rerank":
        raise RunError("the objective 'rerank' is trained beside a run, by `kgmlm rerank RUN`")
    if teacher is not None and (resume or not settings.training.distillation):
        raise RunError(
            "--teacher is for the start of a run"
            if resume
            else "--teacher teaches nothing without `--set training.distillation=1`"
        )
    if teacher is not None and (given := settings_of("kge", set_)):
        raise RunError(f"--teacher takes a KGE model as it is; {given[0]} goes without it")


def _check_tracker(name: str) -> None:
    """Refuse a tracker that is not installed before a run is laid."""
    from accelerate.tracking import get_available_trackers

    from kgmlm.kg import ConfigError

    there = sorted(str(tracker) for tracker in get_available_trackers())
    if name not in there:
        raise ConfigError(f"there is no tracker '{name}' (installed: {', '.join(there) or 'none'})")


def _resume(
    output: Path, dataset: str | None, model: str | None, settings: Settings | None, skip_header: bool
) -> tuple[Run, Ranker]:
    """Open an interrupted run where it stopped; what is given must be what it was begun with."""
    from kgmlm import provenance, runs
    from kgmlm.kg import RunError

    run = runs.open_run(output)
    if model is not None and run.record["model"] not in (model, provenance.model_address(model)):
        raise RunError(f"{output} was begun with the model '{run.record['model']}', not '{model}'")
    if settings is not None and settings.without_max_steps() != run.settings.without_max_steps():
        raise RunError(
            f"{output} was begun with other settings; see {output}/config.toml, or start a new run"
        )
    from kgmlm.checkpoints import latest_checkpoint
    from kgmlm.datasets import load_graph
    from kgmlm.starting import resume_run

    quiet_transformers()
    if dataset is not None and not load_graph(dataset, skip_header=skip_header).same(run.graph):
        raise RunError(f"{output} was begun with another graph than '{dataset}'")
    run, ranker = resume_run(output)
    checkpoint = latest_checkpoint(output)
    tell(f"resuming {output} from {checkpoint.name if checkpoint else 'its start'}")
    return run, ranker


def _start(
    output: Path,
    dataset: str,
    model: str,
    settings: Settings,
    teacher: Path | None,
    overwrite: bool,
    skip_header: bool,
    quiet: bool,
) -> tuple[Run, Ranker]:
    """Lay a new run, with its teacher where it learns from one, and say what it is about."""
    from kgmlm.config import KGESettings
    from kgmlm.datasets import load_graph
    from kgmlm.runs import open_run
    from kgmlm.starting import fit_signal, start_run

    quiet_transformers()
    graph = load_graph(dataset, skip_header=skip_header)
    lent = None if teacher is None else open_run(teacher).lend("kge", graph)
    if lent and lent[1]["settings"]:
        settings = settings.model_copy(update={"kge": KGESettings.model_validate(lent[1]["settings"])})

    def teach() -> tuple[Any, dict[str, Any]]:
        if lent:
            return lent
        with progress_bar(quiet=quiet) as progress:
            bar = partial(PhaseBars(progress), "training kge")
            return fit_signal("kge", graph, settings, bar)

    run, ranker = start_run(output, graph, model, settings, overwrite=overwrite, teach=teach)
    if main_process():
        _tell_start(run, ranker)
    return run, ranker


def _tell_start(run: Run, ranker: Ranker) -> None:
    """Say what a new run is about, and what is odd about its names and triples."""
    from kgmlm.datasets import repeated
    from kgmlm.kg import counted

    graph = run.graph
    tell(
        f"{graph.name}: {counted(len(graph.entities), 'entity')}, "
        f"{counted(len(graph.relations), 'relation')}, "
        f"{counted(len(graph.splits['train']), 'training triple')}; "
        f"span of {counted(ranker.reader.vocabulary.span_length, 'token')}"
    )
    if twice := repeated(graph.splits["train"]):
        tell(f"{counted(twice, 'duplicate training triple')} count{'s' * (twice == 1)} once")
    unknown = ranker.reader.tokenizer.unknown(ranker.reader.names)
    if len(unknown):
        example = graph.entities[int(unknown[0])].surface
        tell(
            f"{len(unknown):,} of {len(ranker.reader.names):,} names have something that the model has "
            f"no token for, such as '{example}'; names that differ in it alone are alike to the model"
        )
    if taught := run.record["teacher"]:
        tell(f"taught by a KGE model: {taught['command']}")


def _train(run: Run, ranker: Ranker, quiet: bool, options: dict[str, Any]) -> None:
    """Train a run with validation, if its graph has a split for it, and say how it ended."""
    from kgmlm.config import Protocol
    from kgmlm.tuning import weigh_text

    training = run.settings.training
    protocol = Protocol(split="valid", max_triples=training.eval_triples, seed=training.seed)

    def validation(current: Ranker, advance: PhaseBars) -> tuple[Mixture, dict[str, float]]:
        return weigh_text(current, run.graph, protocol, advance)

    outcome = train_under_bar(
        run,
        ranker,
        validation if "valid" in run.graph.splits else None,
        f"kgmlm train --output {shlex.quote(str(run.path))} --resume",
        quiet,
        **options | {"max_steps": options["max_steps"] or training.max_steps},
    )
    if not main_process():
        return
    if outcome.signal is not None:
        raise typer.Exit(128 + outcome.signal)
