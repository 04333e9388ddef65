"""Tune a run: choose weights on validation; add, take over or drop signals and rerankers."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from kgmlm.core import files
from kgmlm.core.config import Protocol, Settings, load_settings
from kgmlm.core.errors import RunError, check_numbers, quoted
from kgmlm.core.processes import ALONE, ProcessGroup, join, shared_by
from kgmlm.core.progress import Advance, Watcher, quiet_transformers, watcher_of
from kgmlm.core.results import Outcome
from kgmlm.runs.folder import MIXTURE, RunFolder, open_folder, unfinished
from kgmlm.runs.record import (
    CONDITIONAL,
    ENDED,
    RERANKER,
    RERANKING,
    REVERSE,
    SECOND,
    TRAINED,
    TREES,
    command_line,
    is_blank,
    leave_out,
)
from kgmlm.runs.run import Run, path_if, path_of, writes_run
from kgmlm.signals.biencoder import Biencoder
from kgmlm.training.loop import TimeLimit, train_watched
from kgmlm.training.recipes import as_assignments, check_end, settings_of
from kgmlm.training.start import ends_by_decay, keeping

if TYPE_CHECKING:
    from kgmlm.ranking.ranker import Mixture, Ranker
    from kgmlm.signals.base import Signal


Chosen = Literal["reverse", "conditional", "trees"]
FITTED: Sequence[Chosen] = get_args(Chosen)  # second stages that are fitted together with the weights
LACKS: Mapping[Chosen, str] = {
    "reverse": "does not score in reverse",
    "conditional": "reads no names token by token",
    "trees": "has no trees",
}


@dataclass(frozen=True)
class Addition:
    """An addition to a run: a signal, or the reranker of another run.

    Attributes:
        source: a run to take it from, instead of training it.
        config, given: settings by which it is trained; by default those of the run.
        overwrite: whether it replaces an older one.
        marks: further values for its entry in ``run.json``.
    """

    name: str
    source: Run | str | Path | None = None
    config: Path | None = None
    given: Sequence[str] = ()
    overwrite: bool = False
    marks: Mapping[str, Any] = field(default_factory=dict)

    def check(self, run: RunFolder) -> None:
        """Refuse what cannot be added to a run, before anything of it is changed."""
        from kgmlm.signals import beside

        if self.name not in (*beside(), RERANKER):
            raise RunError(
                f"there is no signal '{self.name}' to add; there are "
                f"{', '.join([*beside(), RERANKER, *FITTED])}"
            )
        if self.source is None and self.name == RERANKER:
            raise RunError(
                f"`kgmlm rerank {quoted(run.path)}` trains a reranker; --add reranker takes one --from "
                "another run"
            )
        if self.source is not None and (self.config or self.given):
            raise RunError("--from trains nothing; --config and --set go without it")
        if self.source is not None:
            giver = open_folder(path_of(self.source))
            if giver.path.resolve() == run.path.resolve() and self.overwrite:
                raise RunError(f"{run.path} cannot lend {self.name} to itself; --from names another run")
            if self.name != RERANKER:
                giver.lend(self.name, run.graph)
            elif giver.reranker is None:
                raise RunError(
                    f"{giver.path} has no trained reranker; `kgmlm rerank {quoted(giver.path)}` trains one"
                )
            elif not giver.graph.same(run.graph):
                raise RunError(f"{giver.path} is a run of another graph than {run.path}")
        if foreign := settings_of(self.name, self.given, others=True):
            raise RunError(
                f"--add {self.name} goes by the settings of {self.name} alone, not by {foreign[0]}"
            )
        file = run.path / (RERANKER if self.name == RERANKER else beside()[self.name].file)
        if file.exists() and not self.overwrite:
            kind = "reranker" if self.name == RERANKER else f"signal '{self.name}'"
            raise RunError(f"{run.path} has a {kind} already; --overwrite replaces it")
        if self.name != RERANKER:
            files.check_writable(file)
        self.settings(run)

    def settings(self, run: RunFolder) -> Settings:
        """By which it is trained.

        Raises:
            RunError: when a bi-encoder is added to a run that began without a text encoder.
        """
        found = load_settings(self.config or run.path / "config.toml", self.given, of_run=not self.config)
        if self.source is not None or self.name != "biencoder" or found.biencoder.encoder:
            return found
        if (model := str(run.record["model"])) == "scratch":
            raise RunError(
                f"the model of {run.path} was trained from scratch, so it has no text encoder for the "
                "bi-encoder; --set biencoder.encoder=NAME takes another"
            )
        return found.model_copy(update={"biencoder": found.biencoder.model_copy(update={"encoder": model})})


def as_names(given: str | Sequence[str] | None) -> list[str]:
    """One name, several, or none; each once."""
    return list(dict.fromkeys([given] if isinstance(given, str) else given or ()))


def shared_out(names: Sequence[str], given: Sequence[str]) -> dict[str, list[str]]:
    """The KEY=VALUE settings of each signal that is to be added; what is of none of them is left to all."""
    sections = [setting.partition(".")[0].strip() for setting in given]
    return {
        name: [
            s for s, section in zip(given, sections, strict=True) if section == name or section not in names
        ]
        for name in names
    }


def wanted(run: RunFolder, adding: Sequence[str], dropping: Sequence[str]) -> dict[str, bool]:
    """Return for each second stage of :data:`FITTED` whether the run is to have it: if it was
    added, or is there and is not dropped.

    Raises:
        RunError: when one is to be dropped and is not there.
    """
    there = run.tuned.uses if run.has_weights else {}
    for name in FITTED:
        if name in dropping and name not in there:
            raise RunError(f"{run.path} {LACKS[name]}; there is no '{name}' to drop")
    return {name: name in adding or (name in there and name not in dropping) for name in FITTED}


def check_parts(run: RunFolder, names: Sequence[str]) -> None:
    """Refuse to drop signals or a reranker that a run does not have, before anything is dropped."""
    from kgmlm.signals import beside, is_beside

    for name in names:
        if name in FITTED:
            continue
        if name == RERANKER and (run.path / name).is_dir():
            files.refuse_link(run.path / name)
        elif not is_beside(name):
            there = ", ".join([*beside(), RERANKER, *FITTED])
            raise RunError(f"{run.path} has no '{name}' beside its model to drop (there may be {there})")
        elif not run.has_signal(name):
            raise RunError(f"{run.path} has no signal '{name}'")


def drop_part(run: RunFolder, name: str) -> None:
    """Remove a signal that is beside the model, or the reranker, where there is one."""
    if name == RERANKER:
        shutil.rmtree(run.path / name)
    elif name not in FITTED:  # which goes with the weights
        run.drop_signal(name)
    leave_out(run.path, name)


def take_reranker(run: RunFolder, source: Run | str | Path) -> None:
    """Copy the reranker of another run."""
    files.refuse_link(run.path / RERANKER)
    with files.atomic_folder(run.path / RERANKER) as folder:
        shutil.copytree(open_folder(path_of(source)).path / RERANKER, folder, dirs_exist_ok=True)


def add_signal(run: RunFolder, added: Addition, device: str | None, watch: Watcher) -> None:
    """Train a signal beside a run's model, or take it from another run, and keep it.

    It counts nothing until :func:`kgmlm.training.tune.choose` has chosen how much.
    """
    from kgmlm.runs.models import device_of
    from kgmlm.training.start import fit_signal

    made: tuple[Signal, dict[str, Any]]
    if added.source is not None:
        made = open_folder(path_of(added.source)).lend(added.name, run.graph)
        if isinstance(made[0], Biencoder):
            made[0].shares = False  # its encoder is the other run's model
    else:
        with watch:
            bar = partial(watch, f"training {added.name}")
            with keeping(run.path, added.name, watch) as kept:
                if added.name == Biencoder.name and kept is not None:
                    Biencoder.keep_texts(run.path / Biencoder.file, run.graph, kept)
                made = fit_signal(added.name, run.graph, added.settings(run), bar, device_of(device), kept)
        if isinstance(made[0], Biencoder):
            # The run's model stays the encoder that it came as.
            own = added.settings(run).biencoder.encoder == str(run.record["model"])
            made[0].shares = own and not run.settings.trains_text
    run.save_signal(made[0], **made[1], **added.marks)


Figures = dict[str, dict[str, float]]  # on validation, by stage
Stage = Literal["", "signals", "reverse", "conditional", "reranking", "trees"]


@writes_run
def tune(
    run: Run | str | Path,
    *,
    add: str | Sequence[str] | None = None,
    drop: str | Sequence[str] | None = None,
    source: Run | str | Path | None = None,
    config: str | Path | None = None,
    overwrite: bool = False,
    candidates: int | None = None,
    max_triples: int | None = None,
    precision: Literal["fp32", "bf16"] = "fp32",
    batch_size: int = 64,
    device: str | None = None,
    progress: bool | Watcher | Advance = True,
    **settings: Any,
) -> Outcome:
    """Choose on validation how much each signal of a run counts, for each relation and side.

    Then how many of the best are scored in reverse, if that was added, and how many a reranker reads again,
    if the run has one, and how much these count; and last, if they were added, trees are fitted to the best
    candidates. Several processes (``torchrun``) share the queries; the main
    one adds and drops signals, and writes.

    Args:
        add: first train a signal beside the model, such as "kge", or several; "reranker" takes one from
            ``source``; "reverse" asks the best candidates back, "conditional" reads their names token by
            token, and "trees" ranks them by trees that LightGBM fits to validation: where these alone are
            added or dropped, the weights of signals stay.
        drop: first remove a signal or several, the reranker, or one of these three.
        source: a run of the same graph to copy the signal from, instead of training it.
        config, settings: settings of the added signal, such as ``kge={"epochs": 30}``; or ``set_``: a list of
            "KEY=VALUE".
        overwrite: replace a signal or reranker that the run has already.
        candidates: how many are scored in reverse or reranked at most; None is reranking.candidates.
        max_triples: a seeded sample to choose on; 0 is all of validation, the default but for reranking.

    Returns:
        The figures of each stage on validation, as of :func:`kgmlm.training.second_stages.tune`.

    Raises:
        RunError: when there is nothing to choose on, or options do not go together.
    """
    from kgmlm.training.trees import check_possible, may_fit

    check_numbers(candidates=(candidates, 1), max_triples=(max_triples, 0), batch_size=(batch_size, 1))
    world = join(device)
    folder = open_folder(path_of(run))
    if world.main:
        files.check_writable(folder.path / MIXTURE)
    assignments = as_assignments(settings)
    adding, dropping = as_names(add), as_names(drop)
    wants = wanted(folder, adding, dropping)
    if TREES in adding:
        check_possible(folder.graph)
    adding = [name for name in adding if name not in FITTED]  # these come with the choice
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
    wants[TREES] = wants[TREES] and may_fit(folder.graph, watch)
    for added in additions:
        if added.name == Biencoder.name and added.source is None and world.size > 1:
            _read_texts(folder, added, device, watch, world)
    world.wait()  # until all have checked the run as it was
    if world.main:
        _change(folder, dropping, additions, device, watch)
    world.wait()
    folder = open_folder(folder.path)
    if candidates is not None and not any(wants.values()) and folder.reranker is None:
        raise RunError(f"--candidates is of reranking, and {folder.path} does not rerank")

    changed = {*as_names(add), *dropping}
    begin: Stage = ""
    if changed and not changed - {*FITTED}:
        begin = next(name for name in FITTED if name in changed)
    folder = open_folder(folder.path)
    return Outcome(
        choose(folder, max_triples, candidates, precision, batch_size, device, watch, begin, world, wants)
    )


def _read_texts(
    run: RunFolder, added: Addition, device: str | None, watch: Watcher, world: ProcessGroup
) -> None:
    """Read the texts of a bi-encoder that is to be added, each in one of several processes."""
    from kgmlm.runs.models import device_of

    with keeping(run.path, added.name, watch) as kept, watch, shared_by(world):
        if kept is not None:
            settings, bar = added.settings(run).biencoder, partial(watch, "reading texts")
            Biencoder.read_texts(run.graph, settings, kept, bar, device_of(device))


def _change(
    run: RunFolder,
    dropping: Sequence[str],
    additions: Sequence[Addition],
    device: str | None,
    watch: Watcher,
) -> None:
    """Drop some signals or the reranker of a run, then add others."""
    check_parts(run, dropping)
    for name in dropping:
        drop_part(run, name)
    for added in additions:
        if added.name == RERANKER and isinstance(added.source, Run | str | Path):
            take_reranker(run, added.source)
        else:
            add_signal(run, added, device, watch)


@writes_run
def rerank(
    run: Run | str | Path,
    *,
    config: str | Path | None = None,
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
        config, settings: as of :func:`~kgmlm.training.train.train`; by default those of the run, for one
            epoch.
        model: begin with another masked LM than the run's own.
        max_steps, decay, resume, overwrite: as of :func:`~kgmlm.training.train.train`.
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
    path = path_of(run)
    return train_reranker(
        path,
        as_assignments(settings),
        f"kgmlm rerank {shlex.quote(str(path))} --resume",
        RerankerTraining(None if model is None else str(model), max_steps, decay, resume, overwrite, device),
        config=path_if(config, "a settings file"),
        candidates=candidates,
        max_triples=max_triples,
        watch=watcher_of(progress),
    )


@dataclass(frozen=True)
class RerankerTraining:
    """Options of training a reranker: those of :func:`rerank`, and ``seconds``, a limit of time."""

    model: str | None = None
    max_steps: int | None = None
    decay: float | None = None
    resume: bool = False
    overwrite: bool = False
    device: str | None = None
    seconds: float | None = None


def train_reranker(
    path: Path,
    assignments: Sequence[str],
    resume_command: str,
    how: RerankerTraining,
    *,
    config: Path | None = None,
    candidates: int | None = None,
    max_triples: int | None = None,
    watch: Watcher,
) -> dict[str, float]:
    """:func:`rerank` as a part of any job that writes the run; ``resume_command`` continues it."""
    folder = open_folder(path)
    _check_reranker(folder, how.resume, how.overwrite)
    trained_by = _reranker_settings(folder, config, assignments, how.resume)
    quiet_transformers()
    if config or assignments:  # what is given now goes before what it was begun with
        how = replace(how, max_steps=how.max_steps or trained_by.training.max_steps)
    if how.decay is not None and _is_trained(folder):
        raise RunError(f"the reranker of {path} has finished; --decay would end its training")
    # What was killed between training and choosing continues with choosing.
    if not (how.resume and _is_trained(folder) and RERANKING not in folder.tuned.uses):
        _train_reranker(folder, trained_by, how, resume_command, watch)
    folder = folder.now()
    precision = open_folder(folder.path / RERANKER).settings.training.precision
    reduced = "bf16" if precision == "bf16" else "fp32"
    found = choose(folder, max_triples, candidates, reduced, 64, how.device, watch, only="reranking")
    return found["reranking"]


def choose(
    run: RunFolder,
    max_triples: int | None,
    candidates: int | None,
    precision: str,
    batch_size: int,
    device: str | None,
    watch: Watcher,
    only: Stage = "",
    world: ProcessGroup = ALONE,
    wanted: Mapping[str, bool] | None = None,
) -> Figures:
    """Choose all weights of a run on validation, keep them, and return the figures of each stage.

    Args:
        only: "signals" leaves the run without second stages; a second stage is chosen with those that come
            after it, and the weights of the signals stay.
        world: the processes that share the queries; trees are fitted by the main one.
        wanted: which second stages the run is to have, if they help; others as it does now.
    """
    from kgmlm.ranking.ranker import Use
    from kgmlm.ranking.second_stage import Conditional, ReverseScoring
    from kgmlm.runs.opened import read_entities
    from kgmlm.runs.record import TunedWeights
    from kgmlm.training.second_stages import tune as tune_all
    from kgmlm.training.trees import choose_trees, may_fit

    weighs = only in ("", "signals")
    if weighs:
        if world.main:
            with watch:
                read_entities(run, device, batch_size, partial(watch, "reading entities"))
        world.wait()
    ranker: Ranker = run.untuned(device) if weighs else run.ranker(device, rerank=False)
    before = run.tuned if run.has_weights else None
    uses = dict(before.uses) if before else {}
    before_it = only in SECOND and SECOND.index(only) > SECOND.index(RERANKING)
    reads = run.reranker is not None and (RERANKING in uses or not before_it)
    has = {name: name in uses for name in FITTED} | {RERANKING: reads}
    has |= dict(wanted or {})
    if only == "signals":
        has = dict.fromkeys(has, False)
    if has[TREES] and not (wanted or {}).get(TREES):
        has[TREES] = may_fit(run.graph, watch)
    never = Use(0, 0.0)
    if has[REVERSE]:
        ranker = ranker.with_stage(ReverseScoring(uses.get(REVERSE, never)))
    if has[CONDITIONAL]:
        ranker = ranker.with_stage(Conditional(uses.get(CONDITIONAL, never)))
    if has[RERANKING]:
        ranker = ranker.with_stage(run.cross_encoding(uses.get(RERANKING, never), ranker.reader.model.device))
    training = (open_folder(run.path / RERANKER) if has[RERANKING] else run).settings.training
    few = training.eval_triples if max_triples is None else max_triples
    side = run.settings.training.side
    protocol = Protocol(split="valid", max_triples=max_triples or 0, side=side)
    again = Protocol(split="valid", max_triples=few, seed=training.seed, side=side)
    ranker.reduce(precision == "bf16")
    found_trees = None
    with watch, shared_by(world):
        world.agree(dict(run.fingerprints), "weights")
        mixture, chosen, figures = tune_all(
            ranker,
            run.graph,
            protocol,
            watch,
            begin="" if weighs else only,
            reranking=again,
            candidates=candidates,
            batch_size=batch_size,
        )
        if has[TREES] and world.main:
            stages = {name: ranker.stages[name].used(use) for name, use in chosen.items() if use.k}
            staged = ranker.replace(mixture=mixture, stages=stages)
            asked, most = (again, None) if staged.reranks else (protocol, candidates)
            found_trees, figures[TREES] = choose_trees(staged, run.graph, asked, watch, most, batch_size)
            chosen[TREES] = found_trees.use if found_trees else never
    known = before.by.get("valid", {}) if before and not weighs else {}
    known = {stage: of for stage, of in known.items() if stage not in SECOND or stage in chosen}
    there = len(run.graph.splits["valid"])
    triples = min(max_triples or there, there) if weighs else (before.by if before else {}).get("triples")
    valid = {**known, **figures}
    by = {"command": command_line(), "precision": precision, "triples": triples, "valid": valid}
    if world.main:
        run.save_tuned(TunedWeights(mixture, chosen, by=by), found_trees)
    world.wait()
    return figures or known


def complete_text(path: Path, watch: Watcher) -> None:
    """Read all entities after validation among a sample of them; choose and measure among all.

    Args:
        path: of a run that has been trained, or interrupted.
    """
    from kgmlm.runs.opened import read_entities

    run = open_folder(path)
    training = run.settings.training
    trained = run.record["status"] in TRAINED and run.has_weights and run.settings.trains_text
    if not trained or not training.validated(len(run.graph.entities)):
        return
    if not run.graph.has("valid"):
        with watch:
            read_entities(run, advance=partial(watch, "reading entities"))
        run.save_tuned(run.tuned)
        return
    if unfinished(run):
        found = choose(run, training.eval_triples, None, "fp32", 64, None, watch, only="signals")
        watch.tell(f"validation MRR among all entities: {found['text']['mrr']:.4f}")
    run.update(best_valid_mrr=run.tuned.by["valid"]["text"]["mrr"])


def _check_reranker(run: RunFolder, resumed: bool, overwrite: bool) -> None:
    """Refuse to rerank what cannot be, and to replace unasked a reranker that is there."""
    files.check_writable(run.path / "run.json")
    if not run.graph.has("valid"):
        raise RunError(f"{run.path} has no validation triples to choose candidates and weight on")
    folder = run.path / RERANKER
    files.refuse_link(folder)
    if resumed and not (folder / "run.json").is_file():
        raise RunError(f"{run.path} has no reranker to resume; `kgmlm rerank {quoted(run.path)}` trains one")
    if not (resumed or overwrite) and (folder / "run.json").is_file() and not is_blank(folder):
        raise RunError(
            f"{run.path} has a reranker already; --resume trains it further, --overwrite replaces it, and "
            f"`kgmlm tune {quoted(run.path)}` chooses again how it is used"
        )


def _is_trained(run: RunFolder) -> bool:
    """Return whether there is nothing more to train."""
    return run.reranker is not None and run.reranker["status"] in ENDED


def _reranker_settings(run: RunFolder, config: Path | None, given: Sequence[str], resume: bool) -> Settings:
    """The settings of a reranker: given ones over those of its run, for one epoch.

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
        begun = open_folder(folder).settings
        if settings.without_max_steps() != begun.without_max_steps():
            raise RunError(f"{folder} was begun with other settings; see {folder}/config.toml")
    return settings


def _train_reranker(
    opened: RunFolder, settings: Settings, how: RerankerTraining, resume_command: str, watch: Watcher
) -> None:
    """Train the reranker of a run, in a run folder of its own; ``resume_command`` continues it."""
    from kgmlm.ranking.ranker import Use, unit
    from kgmlm.ranking.second_stage import CrossEncoding, Reranker
    from kgmlm.training.second_stages import choose_reranking
    from kgmlm.training.start import resume_run, start_run

    folder = opened.path / RERANKER
    first = opened.ranker(how.device, rerank=False)
    if how.resume:
        trained, ranker = resume_run(folder, how.device)
    else:
        if how.overwrite and folder.is_dir() and not (folder / "run.json").is_file():
            shutil.rmtree(folder)  # what is left of an older one
        trained, ranker = start_run(
            folder, opened.graph, how.model or str(opened.model_folder), settings, overwrite=how.overwrite
        )
    left = {name: use for name, use in opened.tuned.uses.items() if name != RERANKING}
    if TREES in left:
        left[TREES] = Use(0, 0.0)  # fitted again with it
    opened.save_tuned(replace(opened.tuned, uses=left))  # until it is chosen how the new one is used
    training = trained.settings.training
    first.reduce(training.precision == "bf16")
    side = opened.settings.training.side
    protocol = Protocol(split="valid", max_triples=training.eval_triples, seed=training.seed, side=side)

    def validation(current: Ranker) -> tuple[Mixture, dict[str, float]]:
        reranker = Reranker.of(current.reader)
        stage = CrossEncoding(Use(0, 0.0), reranker, unit("vector", opened.settings))
        reranker.model.reduce(training.precision == "bf16")
        _, found = choose_reranking(first.with_stage(stage), opened.graph, protocol, watch)
        return current.mixture, found

    bound = how.max_steps or (None if ends_by_decay(trained, how.decay) else training.max_steps)
    train_watched(
        trained,
        ranker,
        validation,
        resume_command,
        watch,
        first=first,
        max_steps=bound,
        decay=how.decay,
        resume=how.resume,
        device=how.device,
        limit=None if how.seconds is None else TimeLimit(how.seconds),
    )
