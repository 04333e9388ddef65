"""``kgmlm fuse``, ``weigh`` and ``rescore``: what is trained and chosen beside a run's model."""

from __future__ import annotations

import shlex
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kgmlm.cli.options import (
    MOST,
    BatchSize,
    Device,
    Json,
    MaxSteps,
    Precision,
    Quiet,
    RunArgument,
)
from kgmlm.cli.steps import (
    Way,
    read_entities,
    settings_of,
    tell_outdated,
    tell_rescoring_outdated,
    train_under_bar,
    writes_run,
)
from kgmlm.terminal import PhaseBars, handled, print_json, progress_bar, quiet_transformers, tell

if TYPE_CHECKING:
    from kgmlm.config import Settings, StructureSettings
    from kgmlm.ranker import Ranker
    from kgmlm.runs import Run
    from kgmlm.signals.structure import Structure


@handled
@writes_run("run")
def fuse(
    run: RunArgument,
    config: Annotated[
        Path | None, typer.Option(help="Settings as TOML; by default those of the run.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE over the settings, such as structure.epochs=30."),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Take the structural model of this run (it may be the same one), or its teacher, instead of "
            "training; choose its weights again.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an older structural model.")
    ] = False,
    max_triples: Annotated[
        int,
        typer.Option(
            min=0, max=MOST, help="Choose weights on a seeded sample of validation; 0 is all of it."
        ),
    ] = 0,
    batch_size: BatchSize = 64,
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a structural model (ComplEx, by PyKEEN) beside a run, and add it to the run's scores.

    How much it counts is chosen on validation, for each relation and side. `rank` and `evaluate` use it from
    then on; --scores text leaves it out. Entities that training has not seen have no structure and keep their
    text.
    """
    from kgmlm import files, runs
    from kgmlm.config import load_settings
    from kgmlm.kg import RunError

    if source is not None and (config or set_):
        raise RunError("--from trains nothing; --config and --set go without it")
    if foreign := settings_of("structure", set_, others=True):
        raise RunError(f"`kgmlm fuse` goes by the settings of structure alone, not by {foreign[0]}")
    opened = runs.open_run(run)
    files.check_writable(run / runs.STRUCTURE)
    again = source is not None and source.resolve() == run.resolve()
    if (run / runs.STRUCTURE).is_file() and not again and not overwrite:
        raise RunError(
            f"{run} has a structural model already; --from {run} chooses its weights again, --overwrite "
            "replaces it"
        )
    settings = load_settings(config or run / "config.toml", set_ or []).structure
    if "valid" not in opened.graph.splits:
        raise RunError(f"{run} has no validation triples to choose weights on")
    lent = None if source is None else runs.open_run(source).lend_structure(opened.graph)
    valid = _choose_structure(opened, settings, lent, max_triples, batch_size, device, quiet)
    if as_json:
        print_json(valid)
    else:
        print(
            f"validation MRR {valid['mrr']:.4f} (text {valid['mrr_text']:.4f}, structure "
            f"{valid['mrr_structure']:.4f}), Hits@1 {valid['hits_at_1']:.4f}, "
            f"Hits@10 {valid['hits_at_10']:.4f}"
        )


def _choose_structure(
    run: Run,
    settings: StructureSettings,
    lent: tuple[Structure, dict[str, Any]] | None,
    max_triples: int,
    batch_size: int,
    device: str | None,
    quiet: bool,
) -> dict[str, float]:
    """Train a structural model, if none is lent, choose its weights, and save both in the run."""
    from kgmlm.config import Protocol
    from kgmlm.provenance import command
    from kgmlm.starting import make_structure
    from kgmlm.tuning import weigh_signal

    quiet_transformers()
    ranker = run.ranker(device, rescorer=False, structure=False)
    with progress_bar(quiet=quiet) as progress:
        bars = PhaseBars(progress)
        on = ranker.reader.model.device
        bar = partial(bars, "training structure")
        structure, values = lent or make_structure(run.graph, settings, bar, on)
        ranker.signals["structure"] = structure = structure.to(on)
        read_entities(ranker, progress, batch_size)
        protocol = Protocol(split="valid", max_triples=max_triples)
        mixture, valid = weigh_signal(ranker, "structure", run.graph, protocol, bars, batch_size)
    values |= {"valid": valid, "chosen_by": command()}
    run.save_structure(structure, mixture.tables["structure"], **values)
    tell_rescoring_outdated(run)
    return valid


@handled
@writes_run("run")
def weigh(
    run: RunArgument,
    max_triples: Annotated[
        int, typer.Option(min=0, max=MOST, help="Choose on a seeded sample of validation; 0 is all of it.")
    ] = 0,
    precision: Precision = "fp32",
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Choose again how much a run's entity vectors count beside the likelihood, for each relation and side.

    Training chooses on the sample that it validates on (training.eval_triples); this takes all of validation.
    Do it before `kgmlm fuse` and `kgmlm rescore`, which go by the scores that they find.
    """
    from kgmlm import files, provenance, runs
    from kgmlm.config import Protocol
    from kgmlm.kg import RunError
    from kgmlm.tuning import validate

    opened = runs.open_run(run)
    files.check_writable(run / "run.json")
    if not opened.settings.vector.enabled:
        raise RunError(f"{run} has no entity vectors to weigh")
    if "valid" not in opened.graph.splits:
        raise RunError(f"{run} has no validation triples to choose weights on")
    quiet_transformers()
    ranker = Way(scores="text", rescore=0, precision=precision, device=device).ranker(opened, opened.graph)
    with progress_bar(quiet=quiet) as progress:
        protocol = Protocol(split="valid", max_triples=max_triples)
        ranker.mixture, valid = validate(ranker, opened.graph, protocol, PhaseBars(progress))
    opened.save_weights(ranker, valid=valid, precision=precision, command=provenance.command())
    if as_json:
        print_json(valid)
    else:
        print(
            f"validation MRR {valid['mrr']:.4f} ({valid['mrr_one_weight']:.4f} with one weight, likelihood "
            f"{valid['mrr_likelihood']:.4f}, vectors {valid['mrr_vector']:.4f}), "
            f"Hits@10 {valid['hits_at_10']:.4f}"
        )
    tell_outdated(opened)


@handled
@writes_run("run")
def rescore(
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
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Take the rescorer of this run (it may be the same one) instead of training; choose again "
            "how it is used.",
        ),
    ] = None,
    max_steps: MaxSteps = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with interrupted training.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an older rescorer.")] = False,
    candidates: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST, help="Try so many at most; by default rescoring.candidates.", show_default=False
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
    high. How many candidates are rescored, and how much that counts, is chosen on validation. `rank` and
    `evaluate` use it from then on, at a forward pass a candidate; --rescore 0 leaves it out.
    """
    from kgmlm import runs
    from kgmlm.kg import RunError

    if resume and (overwrite or source is not None):
        raise RunError("--resume, --overwrite and --from exclude each other")
    if source is not None and (config or set_ or model or max_steps):
        raise RunError("--from trains nothing; --config, --set, --model and --max-steps go without it")
    opened = runs.open_run(run)
    giver = None if source is None else runs.open_run(source)
    again = giver is not None and giver.path.resolve() == run.resolve()
    _check_rescorer(opened, giver, replaced=again or resume or overwrite)
    settings = _rescorer_settings(opened, config, set_, resume)
    quiet_transformers()
    if giver is None:
        if config or set_:  # what is given now goes before what it was begun with
            max_steps = max_steps or settings.training.max_steps
        _train_rescorer(opened, settings, model, max_steps, resume, overwrite, device, quiet)
    elif not again:
        giver.copy_rescorer(opened)
    valid = _choose_rescoring(opened, candidates, max_triples, device, quiet)
    if as_json:
        print_json(valid)
        return
    print(
        f"validation MRR {valid['mrr']:.4f} ({valid['mrr_first']:.4f} before rescoring), "
        f"Hits@1 {valid['hits_at_1']:.4f}, Hits@10 {valid['hits_at_10']:.4f}: the {valid['k']} best, "
        f"weight {valid['weight']:g}"
    )
    if not valid["k"]:
        tell("no weight improves validation: nothing will be rescored")


def _check_rescorer(run: Run, giver: Run | None, replaced: bool) -> None:
    """Refuse to rescore what cannot be, and to replace unasked a rescorer that is there."""
    from kgmlm import files, upkeep
    from kgmlm.kg import RunError

    files.check_writable(run.path / "run.json")
    if "valid" not in run.graph.splits:
        raise RunError(f"{run.path} has no validation triples to choose candidates and weight on")
    if giver is not None and giver.rescorer_folder and not giver.graph.same(run.graph):
        raise RunError(f"{giver.path} is a run of another graph than {run.path}")
    folder = run.path / upkeep.RESCORER
    files.refuse_link(folder)
    if not replaced and (folder / "run.json").is_file() and not upkeep.is_blank(folder):
        raise RunError(
            f"{run.path} has a rescorer already; --resume goes on training it, --from {run.path} chooses "
            "again how it is used, --overwrite replaces it"
        )


def _rescorer_settings(run: Run, config: Path | None, set_: list[str] | None, resume: bool) -> Settings:
    """What a rescorer is trained by: given settings over those of its run, for one epoch.

    Raises:
        RunError: when one that goes on was begun with others.
    """
    from kgmlm.config import load_settings
    from kgmlm.kg import RunError
    from kgmlm.runs import open_run
    from kgmlm.upkeep import RESCORER

    short = [] if config else ["training.epochs=1", "training.eval_every=1"]
    settings = load_settings(config or run.path / "config.toml", [*short, *(set_ or [])]).for_rescoring()
    if not config and "training.max_steps" not in settings_of("training", set_):
        settings = settings.without_max_steps()  # that of the run was for the run
    if resume and (config or set_):
        folder = run.path / RESCORER
        begun = open_run(folder).settings
        if settings.without_max_steps() != begun.without_max_steps():
            raise RunError(f"{folder} was begun with other settings; see {folder}/config.toml")
    return settings


def _train_rescorer(
    opened: Run,
    settings: Settings,
    model: str | None,
    max_steps: int | None,
    resume: bool,
    overwrite: bool,
    device: str | None,
    quiet: bool,
) -> None:
    """Train the rescorer of a run, in a run folder of its own."""
    from kgmlm.config import Protocol
    from kgmlm.ranker import unit
    from kgmlm.reranking import Reranking
    from kgmlm.rescoring import Rescorer, Use
    from kgmlm.starting import resume_run, start_run
    from kgmlm.tuning import choose_rescoring
    from kgmlm.upkeep import RESCORER

    folder = opened.path / RESCORER
    first = opened.ranker(device, rescorer=False)
    if resume:
        trained, ranker = resume_run(folder, device)
    else:
        if overwrite and folder.is_dir() and not (folder / "run.json").is_file():
            shutil.rmtree(folder)  # what is left of an older one
        trained, ranker = start_run(
            folder, opened.graph, model or str(opened.model_folder), settings, overwrite=overwrite
        )
    opened.update(rescoring=None)
    training = trained.settings.training
    first.reduce(training.precision == "bf16")
    protocol = Protocol(split="valid", max_triples=training.eval_triples, seed=training.seed)

    def validation(current: Ranker, advance: PhaseBars) -> dict[str, float]:
        rescorer = Rescorer.of(current.reader)
        reranking = Reranking(rescorer, Use(0, 0.0), unit("vector", opened.settings))
        rescorer.model.reduce(training.precision == "bf16")
        _, found = choose_rescoring(first.but(reranking=reranking), opened.graph, protocol, advance)
        return found

    outcome = train_under_bar(
        trained,
        ranker,
        validation,
        f"kgmlm rescore {shlex.quote(str(opened.path))} --resume",
        quiet,
        first=first,
        device=device,
        max_steps=max_steps or training.max_steps,
        resume=resume,
    )
    if outcome.signal is not None:
        raise typer.Exit(128 + outcome.signal)


def _choose_rescoring(
    run: Run, candidates: int | None, max_triples: int | None, device: str | None, quiet: bool
) -> dict[str, float]:
    """Choose how a run's rescorer is used, and keep it in the run's record."""
    from kgmlm.config import Protocol
    from kgmlm.provenance import command
    from kgmlm.runs import open_run
    from kgmlm.tuning import choose_rescoring
    from kgmlm.upkeep import RESCORER

    trained = open_run(run.path / RESCORER)
    training = trained.settings.training
    ranker = run.ranker(device, rescorer=False)
    ranker.reranking = run.reranking(ranker.reader.model.device)
    ranker.reduce(training.precision == "bf16")
    most = training.eval_triples if max_triples is None else max_triples
    with progress_bar(quiet=quiet) as progress:
        read_entities(ranker, progress, 64)
        protocol = Protocol(split="valid", max_triples=most, seed=training.seed)
        _, valid = choose_rescoring(ranker, run.graph, protocol, PhaseBars(progress), candidates)
    keys = ("model", "began_from", "seed", "step", "status", "minutes", "versions", "hardware", "command")
    run.update(
        rescoring={
            "k": valid["k"],
            "weight": valid["weight"],
            "settings": trained.settings.model_dump(mode="json"),
            **{key: trained.record[key] for key in keys},
            "valid": valid,
            "chosen_by": command(),
        }
    )
    return valid
