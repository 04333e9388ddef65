"""Choose weights on validation, and train what is beside a run's model: signals and a reranker."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kgmlm import files, runs
from kgmlm.chosen import REVERSE
from kgmlm.config import Protocol, Settings, load_settings
from kgmlm.jobs.adding import (
    Addition,
    add_signal,
    as_names,
    asks_back,
    check_parts,
    drop_part,
    shared_out,
    take_reranker,
)
from kgmlm.jobs.running import as_assignments, check_end, ends_by_decay, settings_of, train_watched
from kgmlm.jobs.writing import path_if, writes_run
from kgmlm.kg import RunError, check_numbers
from kgmlm.processes import ALONE, World, join, shared_by
from kgmlm.records import read_record
from kgmlm.run import Run, path_of
from kgmlm.upkeep import ENDED, RERANKER, TRAINED, has_reranker, is_blank
from kgmlm.watching import Advance, Watcher, quiet_transformers, watcher_of

if TYPE_CHECKING:
    from kgmlm.mixture import Mixture
    from kgmlm.ranker import Ranker

Figures = dict[str, dict[str, float]]  # on validation, by stage
Stage = Literal["", "signals", "reverse", "reranking"]


@writes_run
def tune(
    run: Run | str | Path,
    *,
    add: str | Sequence[str] | None = None,
    drop: str | Sequence[str] | None = None,
    source: Run | str | Path | None = None,
    config: str | Path | None = None,
    set_: Sequence[str] = (),
    overwrite: bool = False,
    candidates: int | None = None,
    max_triples: int | None = None,
    precision: Literal["fp32", "bf16"] = "fp32",
    batch_size: int = 64,
    device: str | None = None,
    progress: bool | Watcher | Advance = True,
    **settings: Any,
) -> Figures:
    """Choose on validation how much each signal of a run counts, for each relation and side.

    Then how many of the best are asked back, if that was added, and how many a reranker reads again, if the
    run has one, and how much these count. Several processes (``torchrun``) share the queries; the main one
    adds and drops signals, and writes.

    Args:
        add: first train a signal beside the model, such as "kge", or several; "reranker" takes one from
            ``source``; "reverse" asks the best candidates back, which takes no training: where it alone is
            added or dropped, the weights of the signals stay.
        drop: first remove a signal or several, the reranker, or "reverse".
        source: the run of the same graph to take what is added from, instead of training it.
        config, set_, settings: settings of what is added; as ``kge={"epochs": 30}``.
        overwrite: replace an older one.
        candidates: how many are asked back or reranked at most; None is reranking.candidates.
        max_triples: a seeded sample to choose on; 0 is all of validation, the default but for reranking.

    Returns:
        The figures of each stage on validation, as of :func:`kgmlm.tuning.tune`.

    Raises:
        RunError: when there is nothing to choose on, or options do not go together.
    """
    check_numbers(candidates=(candidates, 1), max_triples=(max_triples, 0), batch_size=(batch_size, 1))
    world = join(device)
    folder = runs.open_run(path_of(run))
    if world.main:
        files.check_writable(folder.path / runs.MIXTURE)
    assignments = [*set_, *as_assignments(settings)]
    adding, dropping = as_names(add), as_names(drop)
    reverse = asks_back(folder, adding, dropping)
    adding = [name for name in adding if name != REVERSE]  # it is not trained
    if not adding and (source or config or assignments or overwrite):
        raise RunError("--from, --config, --set and --overwrite say how to --add a signal")
    if not folder.graph.has("valid"):
        raise RunError(f"{folder.path} has no validation triples to choose weights on")
    additions = [
        Addition(name, source, path_if(config, "a settings file"), given, overwrite or name in dropping)
        for name, given in shared_out(adding, assignments).items()
    ]
    for added in additions:
        added.check(folder)
    quiet_transformers()
    watch = watcher_of(progress)
    if world.main:
        _change(folder, dropping, additions, device, watch)
    world.wait()
    folder = runs.open_run(folder.path)
    if candidates is not None and not reverse and not has_reranker(folder.path):
        raise RunError(f"--candidates is of reranking, and {folder.path} does not rerank")

    def chosen(only: Stage) -> Figures:
        run = runs.open_run(folder.path)
        return choose(
            run, max_triples, candidates, precision, batch_size, device, watch, only, world, reverse
        )

    if {*as_names(add), *dropping} != {REVERSE}:
        return chosen("")
    return chosen("reverse") | (chosen("reranking") if has_reranker(folder.path) else {})


def _change(
    run: runs.RunFolder,
    dropping: Sequence[str],
    additions: Sequence[Addition],
    device: str | None,
    watch: Watcher,
) -> None:
    """Drop what is beside a run's model, then add."""
    check_parts(run, dropping)
    for name in dropping:
        drop_part(run, name)
    for added in additions:
        if added.name == RERANKER and added.source is not None:
            take_reranker(run, added.source)
        else:
            add_signal(run, added, device, watch)


@writes_run
def rerank(
    run: Run | str | Path,
    *,
    config: str | Path | None = None,
    set_: Sequence[str] = (),
    model: str | Path | None = None,
    max_steps: int | None = None,
    decay: float | None = None,
    resume: bool = False,
    overwrite: bool = False,
    candidates: int | None = None,
    max_triples: int | None = None,
    device: str | None = None,
    progress: bool | Watcher | Advance = True,
    **settings: Any,
) -> dict[str, float]:
    """Train a second model that reads the best candidates of a run again, and choose how it is used.

    Args:
        config, set_, settings: as of :func:`~kgmlm.jobs.training.train`; by default those of the run, for
            one epoch.
        model: begin with another masked LM than the run's own.
        max_steps, decay, resume, overwrite: as of :func:`~kgmlm.jobs.training.train`.
        candidates, max_triples: as of :func:`tune`.

    Returns:
        ``mrr``, ``hits_at_1`` and ``hits_at_10`` on validation, ``k`` and ``weight`` that were chosen, and
        ``mrr_first`` without reranking.

    Raises:
        RunError: when there is nothing to choose on, or a reranker already.
        Interrupted: when a signal stopped it; ``resume=True`` continues.
    """
    check_numbers(max_steps=(max_steps, 1), candidates=(candidates, 1), max_triples=(max_triples, 0))
    check_end(decay, resume, overwrite)
    if resume and model is not None:
        raise RunError("--model begins a reranker; --resume continues the one that is there")
    return train_reranker(
        path_of(run),
        [*set_, *as_assignments(settings)],
        f"kgmlm rerank {shlex.quote(str(path_of(run)))} --resume",
        config=path_if(config, "a settings file"),
        model=model,
        max_steps=max_steps,
        decay=decay,
        resume=resume,
        overwrite=overwrite,
        candidates=candidates,
        max_triples=max_triples,
        device=device,
        watch=watcher_of(progress),
    )


def train_reranker(
    path: Path,
    assignments: Sequence[str],
    further: str,
    *,
    config: Path | None = None,
    model: str | Path | None = None,
    max_steps: int | None = None,
    decay: float | None = None,
    resume: bool = False,
    overwrite: bool = False,
    candidates: int | None = None,
    max_triples: int | None = None,
    device: str | None = None,
    watch: Watcher,
) -> dict[str, float]:
    """:func:`rerank` as a part of any job that writes the run; ``further`` is the command that continues."""
    folder = runs.open_run(path)
    _check_reranker(folder, resume, overwrite)
    trained_by = _reranker_settings(folder, config, assignments, resume)
    quiet_transformers()
    if config or assignments:  # what is given now goes before what it was begun with
        max_steps = max_steps or trained_by.training.max_steps
    if decay is not None and _is_trained(folder):
        raise RunError(f"the reranker of {path} has finished; --decay would end its training")
    # What was killed between training and choosing continues with choosing.
    if not (resume and _is_trained(folder) and folder.chosen.use is None):
        options = {"max_steps": max_steps, "decay": decay, "resume": resume, "device": device}
        _train_reranker(folder, trained_by, model, overwrite, further, watch, options)
    precision = runs.open_run(folder.path / RERANKER).settings.training.precision
    reduced = "bf16" if precision == "bf16" else "fp32"
    found = choose(folder, max_triples, candidates, reduced, 64, device, watch, only="reranking")
    return found["reranking"]


def choose(
    run: runs.RunFolder,
    max_triples: int | None,
    candidates: int | None,
    precision: str,
    batch_size: int,
    device: str | None,
    watch: Watcher,
    only: Stage = "",
    world: World = ALONE,
    reverse: bool | None = None,
) -> Figures:
    """Choose all weights of a run on validation, keep them, and return the figures of each stage.

    Args:
        only: choose nothing else. Beside "signals", their weights stay as they are; with it, the run has no
            second stage until that is chosen again.
        world: the processes that share the queries.
        reverse: whether the best are asked back, if that helps; None is as the run does now.
    """
    from kgmlm.choosing import choose_reranking, choose_reverse
    from kgmlm.chosen import Chosen, fingerprints
    from kgmlm.entity_parts import read_entities
    from kgmlm.mixture import Use
    from kgmlm.provenance import command
    from kgmlm.tuning import Tuned
    from kgmlm.tuning import tune as tune_all

    weighs = only in ("", "signals")
    if weighs:
        if world.main:
            with watch:
                read_entities(run, device, batch_size, partial(watch, "reading entities"))
        world.wait()
    ranker: Ranker = run.untuned(device) if weighs else run.ranker(device, rerank=False)
    before = run.chosen if (run.path / runs.MIXTURE).is_file() else None
    back = before.reverse if before else None
    if reverse is not None:
        back = (back or Use(0, 0.0)) if reverse else None
    if back is not None and only != "signals":
        ranker = ranker.but(reverse=back)
    read_again = has_reranker(run.path) and only in ("", "reranking")
    if read_again:
        ranker = ranker.but(reranking=run.reranking(Use(0, 0.0), ranker.reader.model.device))
    training = (runs.open_run(run.path / RERANKER) if read_again else run).settings.training
    few = training.eval_triples if max_triples is None else max_triples
    protocol = Protocol(split="valid", max_triples=max_triples or 0)
    again = Protocol(split="valid", max_triples=few, seed=training.seed)
    ranker.reduce(precision == "bf16")
    with watch, shared_by(world):
        world.agree(fingerprints(run.path), "weights")
        if only == "reranking":
            use, found = choose_reranking(ranker, run.graph, again, watch, candidates, batch_size)
            tuned = Tuned(ranker.mixture, use, back, {only: found})
        elif only == "reverse":
            figures: Figures = {}
            if back is not None:
                back, figures[only] = choose_reverse(ranker, run.graph, again, watch, candidates, batch_size)
            tuned = Tuned(ranker.mixture, before.use if before else None, back, figures)
        else:
            tuned = tune_all(
                ranker,
                run.graph,
                protocol,
                watch,
                reranking=again,
                candidates=candidates,
                batch_size=batch_size,
            )
    known = before.by.get("valid", {}) if before and not weighs else {}
    known = {stage: of for stage, of in known.items() if stage != only}
    by = {"command": command(), "precision": precision, "valid": {**known, **tuned.figures}}
    if world.main:
        run.save_chosen(Chosen(tuned.mixture, tuned.use, by=by, reverse=tuned.reverse))
    world.wait()
    return tuned.figures or known


def complete_text(path: Path, watch: Watcher) -> None:
    """Read all entities of a model that was validated among few, and choose and measure among all.

    Args:
        path: of a run that has been trained, or interrupted.
    """
    from kgmlm.entity_parts import read_entities

    run = runs.open_run(path)
    training = run.settings.training
    trained = run.record["status"] in TRAINED and (run.path / runs.MIXTURE).is_file()
    if not trained or not training.validated(len(run.graph.entities)):
        return
    if not run.graph.has("valid"):
        with watch:
            read_entities(run, advance=partial(watch, "reading entities"))
        run.save_chosen(run.chosen)
        return
    if runs.unfinished(run):
        found = choose(run, training.eval_triples, None, "fp32", 64, None, watch, only="signals")
        watch.tell(f"validation MRR among all entities: {found['text']['mrr']:.4f}")
    run.update(best_valid_mrr=run.chosen.by["valid"]["text"]["mrr"])


def _check_reranker(run: runs.RunFolder, resumed: bool, overwrite: bool) -> None:
    """Refuse to rerank what cannot be, and to replace unasked a reranker that is there."""
    files.check_writable(run.path / "run.json")
    if not run.graph.has("valid"):
        raise RunError(f"{run.path} has no validation triples to choose candidates and weight on")
    folder = run.path / RERANKER
    files.refuse_link(folder)
    if resumed and not (folder / "run.json").is_file():
        raise RunError(f"{run.path} has no reranker to resume; `kgmlm rerank {run.path}` trains one")
    if not (resumed or overwrite) and (folder / "run.json").is_file() and not is_blank(folder):
        raise RunError(
            f"{run.path} has a reranker already; --resume trains it further, --overwrite replaces it, and "
            f"`kgmlm tune {run.path}` chooses again how it is used"
        )


def _is_trained(run: runs.RunFolder) -> bool:
    """Whether there is nothing more to train."""
    return has_reranker(run.path) and read_record(run.path / RERANKER)["status"] in ENDED


def _reranker_settings(
    run: runs.RunFolder, config: Path | None, given: Sequence[str], resume: bool
) -> Settings:
    """What a reranker is trained by: given settings over those of its run, for one epoch.

    Raises:
        RunError: when one that is continued was begun with others.
    """
    short = [] if config else ["training.epochs=1", "training.eval_every=1"]
    settings = load_settings(config or run.path / "config.toml", [*short, *given], of_run=not config)
    settings = settings.for_reranking()
    if not config and "training.max_steps" not in settings_of("training", given):
        settings = settings.without_max_steps()  # that of the run was for the run
    if resume and (config or given):
        folder = run.path / RERANKER
        begun = runs.open_run(folder).settings
        if settings.without_max_steps() != begun.without_max_steps():
            raise RunError(f"{folder} was begun with other settings; see {folder}/config.toml")
    return settings


def _train_reranker(
    opened: runs.RunFolder,
    settings: Settings,
    model: str | Path | None,
    overwrite: bool,
    further: str,
    watch: Watcher,
    options: dict[str, Any],
) -> None:
    """Train the reranker of a run, in a run folder of its own.

    Args:
        further: the command that continues.
        options: of :func:`kgmlm.training.train`.
    """
    from kgmlm.choosing import choose_reranking
    from kgmlm.first_stage import unit
    from kgmlm.mixture import Use
    from kgmlm.reranker import Reranker
    from kgmlm.reranking import Reranking
    from kgmlm.starting import resume_run, start_run

    folder = opened.path / RERANKER
    first = opened.ranker(options["device"], rerank=False)
    if options["resume"]:
        trained, ranker = resume_run(folder, options["device"])
    else:
        if overwrite and folder.is_dir() and not (folder / "run.json").is_file():
            shutil.rmtree(folder)  # what is left of an older one
        trained, ranker = start_run(
            folder, opened.graph, str(model or opened.model_folder), settings, overwrite=overwrite
        )
    opened.save_chosen(replace(opened.chosen, use=None))  # until it is chosen how the new one is used
    training = trained.settings.training
    first.reduce(training.precision == "bf16")
    protocol = Protocol(split="valid", max_triples=training.eval_triples, seed=training.seed)

    def validation(current: Ranker) -> tuple[Mixture, dict[str, float]]:
        reranker = Reranker.of(current.reader)
        reranking = Reranking(reranker, Use(0, 0.0), unit("vector", opened.settings))
        reranker.model.reduce(training.precision == "bf16")
        _, found = choose_reranking(first.but(reranking=reranking), opened.graph, protocol, watch)
        return current.mixture, found

    bound = options["max_steps"] or (None if ends_by_decay(trained, options["decay"]) else training.max_steps)
    train_watched(trained, ranker, validation, further, watch, first=first, **options | {"max_steps": bound})
