"""``kgmlm rerank``: a second model that reads the best candidates of a run again."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kgmlm.cli.options import MOST, Device, Json, MaxSteps, Quiet, RunArgument
from kgmlm.cli.steps import settings_of, train_under_bar, writes_run
from kgmlm.cli.tuning import RERANKER, choose, print_figures
from kgmlm.terminal import PhaseBars, handled, print_json, quiet_transformers

if TYPE_CHECKING:
    from kgmlm.config import Settings
    from kgmlm.mixture import Mixture
    from kgmlm.ranker import Ranker
    from kgmlm.runs import Run


@handled
@writes_run("run")
def rerank(
    run: RunArgument,
    config: Annotated[
        Path | None, typer.Option(help="Settings as TOML; by default those of the run, for one epoch.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE over the settings, such as training.epochs=0.5."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Begin with another masked LM than the run's own.", show_default=False)
    ] = None,
    max_steps: MaxSteps = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with interrupted training.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an older reranker.")] = False,
    candidates: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST, help="Try so many at most; by default reranking.candidates.", show_default=False
        ),
    ] = None,
    max_triples: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MOST,
            help="Choose on a seeded sample of validation; 0 is all of it, by default training.eval_triples.",
        ),
    ] = None,
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a second model that reads the best candidates of a run again, each together with its query.

    It begins with the run's own model and learns to tell true answers from wrong ones that the run ranks
    high. How many candidates are reranked, and how much that counts, is chosen on validation. `rank` and
    `evaluate` use it from then on, at a forward pass a candidate; --rerank 0 leaves it out.
    """
    from kgmlm import runs
    from kgmlm.kg import RunError

    if resume and overwrite:
        raise RunError("--resume and --overwrite exclude each other")
    opened = runs.open_run(run)
    _check(opened, replaced=resume or overwrite)
    settings = _settings(opened, config, set_, resume)
    quiet_transformers()
    if config or set_:  # what is given now goes before what it was begun with
        max_steps = max_steps or settings.training.max_steps
    # What was killed between training and choosing goes on with choosing.
    if not (resume and _is_trained(opened) and opened.chosen.use is None):
        _train(opened, settings, model, max_steps, resume, overwrite, device, quiet)
    precision = runs.open_run(run / RERANKER).settings.training.precision
    reduced = "bf16" if precision == "bf16" else "fp32"
    figures = choose(opened, max_triples, candidates, reduced, 64, device, quiet, only_reranking=True)
    if as_json:
        print_json(figures["reranking"])
    else:
        print_figures(figures)


def _check(run: Run, replaced: bool) -> None:
    """Refuse to rerank what cannot be, and to replace unasked a reranker that is there."""
    from kgmlm import files, upkeep
    from kgmlm.kg import RunError

    files.check_writable(run.path / "run.json")
    if "valid" not in run.graph.splits:
        raise RunError(f"{run.path} has no validation triples to choose candidates and weight on")
    folder = run.path / RERANKER
    files.refuse_link(folder)
    if not replaced and (folder / "run.json").is_file() and not upkeep.is_blank(folder):
        raise RunError(
            f"{run.path} has a reranker already; --resume goes on training it, --overwrite replaces it, and "
            f"`kgmlm tune {run.path}` chooses again how it is used"
        )


def _is_trained(run: Run) -> bool:
    """Whether there is nothing more to train."""
    from kgmlm.records import read_record
    from kgmlm.upkeep import ENDED, has_reranker

    return has_reranker(run.path) and read_record(run.path / RERANKER)["status"] in ENDED


def _settings(run: Run, config: Path | None, set_: list[str] | None, resume: bool) -> Settings:
    """What a reranker is trained by: given settings over those of its run, for one epoch.

    Raises:
        RunError: when one that goes on was begun with others.
    """
    from kgmlm.config import load_settings
    from kgmlm.kg import RunError
    from kgmlm.runs import open_run

    short = [] if config else ["training.epochs=1", "training.eval_every=1"]
    settings = load_settings(config or run.path / "config.toml", [*short, *(set_ or [])]).for_reranking()
    if not config and "training.max_steps" not in settings_of("training", set_):
        settings = settings.without_max_steps()  # that of the run was for the run
    if resume and (config or set_):
        folder = run.path / RERANKER
        begun = open_run(folder).settings
        if settings.without_max_steps() != begun.without_max_steps():
            raise RunError(f"{folder} was begun with other settings; see {folder}/config.toml")
    return settings


def _train(
    opened: Run,
    settings: Settings,
    model: str | None,
    max_steps: int | None,
    resume: bool,
    overwrite: bool,
    device: str | None,
    quiet: bool,
) -> None:
    """Train the reranker of a run, in a run folder of its own."""
    from kgmlm.config import Protocol
    from kgmlm.first_stage import unit
    from kgmlm.reranker import Reranker, Use
    from kgmlm.reranking import Reranking
    from kgmlm.starting import resume_run, start_run
    from kgmlm.tuning import choose_reranking

    folder = opened.path / RERANKER
    first = opened.ranker(device, rerank=False)
    if resume:
        trained, ranker = resume_run(folder, device)
    else:
        if overwrite and folder.is_dir() and not (folder / "run.json").is_file():
            shutil.rmtree(folder)  # what is left of an older one
        trained, ranker = start_run(
            folder, opened.graph, model or str(opened.model_folder), settings, overwrite=overwrite
        )
    opened.save_chosen(replace(opened.chosen, use=None))  # until it is chosen how the new one is used
    training = trained.settings.training
    first.reduce(training.precision == "bf16")
    protocol = Protocol(split="valid", max_triples=training.eval_triples, seed=training.seed)

    def validation(current: Ranker, advance: PhaseBars) -> tuple[Mixture, dict[str, float]]:
        reranker = Reranker.of(current.reader)
        reranking = Reranking(reranker, Use(0, 0.0), unit("vector", opened.settings))
        reranker.model.reduce(training.precision == "bf16")
        _, found = choose_reranking(first.but(reranking=reranking), opened.graph, protocol, advance)
        return current.mixture, found

    outcome = train_under_bar(
        trained,
        ranker,
        validation,
        f"kgmlm rerank {shlex.quote(str(opened.path))} --resume",
        quiet,
        first=first,
        device=device,
        max_steps=max_steps or training.max_steps,
        resume=resume,
    )
    if outcome.signal is not None:
        raise typer.Exit(128 + outcome.signal)
