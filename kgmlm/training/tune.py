"""Tune a run: choose weights on validation; add, take over or drop signals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from kgmlm.core import files
from kgmlm.core.config import Protocol, Settings, load_settings
from kgmlm.core.errors import RunError
from kgmlm.core.options import takes
from kgmlm.core.processes import ALONE, ProcessGroup, join, shared_by, sharing
from kgmlm.core.progress import Watcher, quiet_transformers, watcher_of
from kgmlm.core.results import Outcome
from kgmlm.runs.folder import TRAINED, RunFolder
from kgmlm.runs.opened import lend, open_folder, tuned_ranker, untuned_ranker
from kgmlm.runs.provenance import command_line
from kgmlm.runs.run import Run, path_if, path_of, writes_run
from kgmlm.runs.tuned import MIXTURE, REVERSE, SECOND, TREES, TunedWeights
from kgmlm.runs.writing import drop_signal, leave_out, save_signal, save_tuned, write_record
from kgmlm.signals import text_vectors
from kgmlm.signals.biencoder import Biencoder
from kgmlm.signals.vector import Vector
from kgmlm.text.vector_cache import VectorCache
from kgmlm.training.options import TuneOptions
from kgmlm.training.recipes import as_assignments, settings_of
from kgmlm.training.start import keeping

if TYPE_CHECKING:
    from kgmlm.signals.base import Signal


Chosen = Literal["reverse", "trees"]
FITTED: Sequence[Chosen] = get_args(Chosen)  # second stages that are fitted together with the weights
LACKS: Mapping[Chosen, str] = {
    "reverse": "does not score in reverse",
    "trees": "has no trees",
}


@dataclass(frozen=True)
class Addition:
    """A signal that is added to a run.

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

        if self.name not in beside():
            raise RunError(
                f"there is no signal '{self.name}' to add; there are {', '.join([*beside(), *FITTED])}"
            )
        if self.source is not None and (self.config or self.given):
            raise RunError("--from trains nothing; --config and --set go without it")
        if self.source is not None:
            giver = open_folder(path_of(self.source))
            if giver.path.resolve() == run.path.resolve() and self.overwrite:
                raise RunError(f"{run.path} cannot lend {self.name} to itself; --from names another run")
            lend(giver, self.name, run.graph)
        if foreign := settings_of(self.name, self.given, others=True):
            raise RunError(f"--add {self.name} takes only settings of {self.name}, not {foreign[0]}")
        file = run.path / beside()[self.name].file
        if file.exists() and not self.overwrite:
            raise RunError(f"{run.path} has a signal '{self.name}' already; --overwrite replaces it")
        files.check_writable(file)
        self.settings(run)

    def settings(self, run: RunFolder) -> Settings:
        """The settings to train it with.

        Raises:
            RunError: when a bi-encoder is added to a run that began without a text encoder.
        """
        settings = load_settings(self.config or run.path / "config.toml", self.given, of_run=not self.config)
        if self.source is not None or self.name != "biencoder" or settings.biencoder.encoder:
            return settings
        if (model := str(run.record["model"])) == "scratch":
            raise RunError(
                f"the model of {run.path} was trained from scratch, so it has no text encoder for the "
                "bi-encoder; --set biencoder.encoder=NAME takes another"
            )
        return settings.model_copy(
            update={"biencoder": settings.biencoder.model_copy(update={"encoder": model})}
        )


def as_names(given: str | Sequence[str] | None) -> list[str]:
    """One name, several, or none; each once."""
    return list(dict.fromkeys([given] if isinstance(given, str) else given or ()))


def shared_out(names: Sequence[str], given: Sequence[str]) -> dict[str, list[str]]:
    """The KEY=VALUE settings for each signal to add; settings of other sections go to all of them."""
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
    chosen = run.tuned.stage_weights if run.has_weights else {}
    for name in FITTED:
        if name in dropping and name not in chosen:
            raise RunError(f"{run.path} {LACKS[name]}; there is no '{name}' to drop")
    return {name: name in adding or (name in chosen and name not in dropping) for name in FITTED}


def check_parts(run: RunFolder, names: Sequence[str]) -> None:
    """Refuse to drop signals that a run does not have, before anything is dropped."""
    from kgmlm.signals import beside, is_beside

    for name in names:
        if name in FITTED:
            continue
        if not is_beside(name):
            listed = ", ".join([*beside(), *FITTED])
            raise RunError(f"{run.path} has no '{name}' beside its model to drop (there may be {listed})")
        if not run.has_signal(name):
            raise RunError(f"{run.path} has no signal '{name}'")


def check_needs(run: RunFolder, adding: Sequence[str], dropping: Sequence[str]) -> None:
    """Refuse a change after which a run has a signal without another that it needs."""
    from kgmlm.signals import SIGNALS

    left = {name for name in SIGNALS if run.has_signal(name) and name not in dropping} | {*adding}
    for needed in {kind.needs for kind in SIGNALS.values()} - {"", *left}:
        lacking = [name for name in SIGNALS if name in left and SIGNALS[name].needs == needed]
        if lacking:
            titles = " and ".join(SIGNALS[name].title for name in lacking)
            way = [f"--drop {name}" for name in lacking] if needed in dropping else [f"--add {needed}"]
            raise RunError(f"{titles} need the {SIGNALS[needed].title}; {' '.join(way)}, too")


def drop_part(run: RunFolder, name: str) -> None:
    """Remove a signal that is beside the model."""
    if name not in FITTED:  # which goes with the weights
        drop_signal(run, name)
    leave_out(run.path, name)


def add_signal(
    run: RunFolder,
    added: Addition,
    device: str | None,
    watch: Watcher,
    cache: VectorCache | None = None,
) -> None:
    """Train a signal beside a run's model, or take it from another run, and keep it.

    It has no weight until :func:`kgmlm.training.tune.choose` has chosen one.

    Args:
        cache: as of :func:`read_texts`.
    """
    from kgmlm.runs.models import device_of
    from kgmlm.training.start import fit_signal

    made: tuple[Signal, dict[str, Any]]
    if added.source is not None:
        made = lend(open_folder(path_of(added.source)), added.name, run.graph)
        if isinstance(made[0], Biencoder):
            made[0].shares = False  # its encoder is the other run's model
    else:
        settings = added.settings(run)
        if added.name == Biencoder.name:
            read_texts(run, settings, watch, device=device, cache=cache)
        with watch, keeping(run.path, added.name, watch) as kept:
            bar = partial(watch, f"training {added.name}")
            made = fit_signal(added.name, run.graph, settings, bar, device_of(device), kept)
        if isinstance(made[0], Biencoder):
            # The run's model stays the encoder that it came as.
            own = settings.biencoder.encoder == str(run.record["model"])
            made[0].shares = own and not run.settings.trains_text
    save_signal(run, made[0], **made[1], **added.marks)


Figures = dict[str, dict[str, float]]  # on validation, by stage
Stage = Literal["", "signals", "reverse", "trees"]


@writes_run
@takes(TuneOptions)
def tune(run: Run | str | Path, options: TuneOptions) -> Outcome:
    """Choose on validation how much each signal of a run counts, for each relation and side.

    Then how many of the best are scored in reverse, if that was added, and how much that counts; and last, if
    they were added, trees are fitted to the best candidates. Several processes (``torchrun``) share the
    queries; the main one adds and drops signals, and writes.

    Returns:
        The figures of each stage on validation, as of :func:`kgmlm.training.second_stages.tune`.

    Raises:
        RunError: when there is nothing to choose on, or options do not go together.
    """
    from kgmlm.training.trees import check_possible, may_fit

    world = join(options.device)
    folder = open_folder(path_of(run))
    if world.main:
        files.check_writable(folder.path / MIXTURE)
    assignments = as_assignments(options.settings)
    adding, dropping = as_names(options.add), as_names(options.drop)
    wants = wanted(folder, adding, dropping)
    if TREES in adding:
        check_possible(folder.graph)
    adding = [name for name in adding if name not in FITTED]  # these come with the choice
    if not adding and (options.source or options.config or assignments or options.overwrite):
        raise RunError("--from, --config, --set and --overwrite say how to --add a signal")
    if not folder.graph.has("valid"):
        raise RunError(f"{folder.path} has no validation triples to choose weights on")
    file = path_if(options.config, "a settings file")
    additions = [
        Addition(name, options.source, file, given, options.overwrite or name in dropping)
        for name, given in shared_out(adding, assignments).items()
    ]
    for added in additions:
        added.check(folder)
    check_needs(folder, adding, dropping)
    quiet_transformers()
    watch = watcher_of(options.progress)
    wants[TREES] = wants[TREES] and may_fit(folder.graph, watch)
    cache = VectorCache.shared() if options.cache and additions else None
    for added in additions:
        if added.name == Biencoder.name and added.source is None and world.size > 1:
            with shared_by(world):
                read_texts(folder, added.settings(folder), watch, device=options.device, cache=cache)
    world.wait()  # until all have checked the run as it was
    if world.main:
        _change(folder, dropping, additions, options.device, watch, cache)
    world.wait()
    folder = open_folder(folder.path)
    if options.candidates is not None and not any(wants.values()):
        raise RunError(f"--candidates is of second stages, and {folder.path} has none")

    changed = {*as_names(options.add), *dropping}
    begin: Stage = ""
    if changed and not changed - {*FITTED}:
        begin = next(name for name in FITTED if name in changed)
    folder = open_folder(folder.path)
    figures = choose(
        folder, options.max_triples, options.candidates, options.precision, options.batch_size,
        options.device, watch, begin, world, wants,
    )  # fmt: skip
    return Outcome(figures)


def read_texts(
    run: RunFolder,
    settings: Settings,
    watch: Watcher,
    seconds: float | None = None,
    device: str | None = None,
    cache: VectorCache | None = None,
) -> int:
    """Read the texts of a bi-encoder that is to be trained beside a run's model, and keep them for that.

    Several processes share the reading inside :func:`~kgmlm.core.processes.shared_by`.

    Args:
        seconds: read names first, and descriptions as far as this time goes; None reads all texts.
        cache: of texts that other runs have read.

    Returns:
        How many texts were not read as a whole.
    """
    from kgmlm.runs.models import device_of

    with keeping(run.path, Biencoder.name, watch) as kept, watch:
        if kept is None:
            return 0  # nothing can be kept: the texts are read where the head is trained
        if sharing().main:
            Biencoder.keep_texts(run.path / Biencoder.file, run.graph, kept)
        source = Biencoder.source(run.graph, settings.biencoder, device_of(device), cache)
        bar = partial(watch, "reading texts")
        return len(text_vectors.read_texts(run.graph, source, kept, bar, seconds).cut)


def _change(
    run: RunFolder,
    dropping: Sequence[str],
    additions: Sequence[Addition],
    device: str | None,
    watch: Watcher,
    cache: VectorCache | None,
) -> None:
    """Drop some signals of a run, then add others."""
    check_parts(run, dropping)
    for name in dropping:
        drop_part(run, name)
    for added in additions:
        add_signal(run, added, device, watch, cache)


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
    from kgmlm.ranking.ranker import StageWeight
    from kgmlm.ranking.second_stage import ReverseScoring
    from kgmlm.runs.entity_vectors import read_entities
    from kgmlm.training.second_stages import tune as tune_all
    from kgmlm.training.trees import choose_trees, may_fit

    weighs = only in ("", "signals")
    if weighs:
        if world.main:
            with watch:
                read_entities(run, device, batch_size, partial(watch, "reading entities"))
        world.wait()
        run = run.now()
    ranker = untuned_ranker(run, device) if weighs else tuned_ranker(run, device, rerank=False)
    before = run.tuned if run.has_weights else None
    stage_weights = dict(before.stage_weights) if before else {}
    has = {name: name in stage_weights for name in FITTED} | dict(wanted or {})
    if only == "signals":
        has = dict.fromkeys(has, False)
    if has[TREES] and not (wanted or {}).get(TREES):
        has[TREES] = may_fit(run.graph, watch)
    never = StageWeight(0, 0.0)
    if has[REVERSE]:
        ranker = ranker.with_stage(ReverseScoring(stage_weights.get(REVERSE, never)))
    training = run.settings.training
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
            second=again,
            candidates=candidates,
            batch_size=batch_size,
        )
        if has[TREES] and world.main:
            stages = {
                name: ranker.stages[name].with_weight(stage_weight)
                for name, stage_weight in chosen.items()
                if stage_weight.k
            }
            staged = ranker.replace(mixture=mixture, stages=stages)
            asked, most = (again, None) if staged.reranks else (protocol, candidates)
            found_trees, figures[TREES] = choose_trees(staged, run.graph, asked, watch, most, batch_size)
            chosen[TREES] = found_trees.stage_weight if found_trees else never
    known = before.by.get("valid", {}) if before and not weighs else {}
    known = {stage: of for stage, of in known.items() if stage not in SECOND or stage in chosen}
    valid_triples = len(run.graph.splits["valid"])
    triples = (
        min(max_triples or valid_triples, valid_triples)
        if weighs
        else (before.by if before else {}).get("triples")
    )
    valid = {**known, **figures}
    by = {"command": command_line(), "precision": precision, "triples": triples, "valid": valid}
    if world.main:
        save_tuned(run, TunedWeights(mixture, chosen, by=by), found_trees)
    world.wait()
    return figures or known


def unfinished(run: RunFolder) -> bool:
    """Return whether a model that was validated among few entities is still to be measured among all."""
    few = run.settings.training.validated(len(run.graph.entities))
    if not few or not run.has_weights:
        return False
    stale = run.tuned.of.get(Vector.name) != run.fingerprints.get(Vector.name)
    return run.vectors_unread or stale or (run.graph.has("valid") and not run.tuned.by)


def complete_text(path: Path, watch: Watcher) -> None:
    """Read all entities after validation among a sample of them; choose and measure among all.

    Args:
        path: of a run that has been trained, or interrupted.
    """
    from kgmlm.runs.entity_vectors import read_entities

    run = open_folder(path)
    training = run.settings.training
    trained = run.record["status"] in TRAINED and run.has_weights and run.settings.trains_text
    if not trained or not training.validated(len(run.graph.entities)):
        return
    if not run.graph.has("valid"):
        with watch:
            run = read_entities(run, advance=partial(watch, "reading entities"))
        save_tuned(run, run.tuned)
        return
    if unfinished(run):
        figures = choose(run, training.eval_triples, None, "fp32", 64, None, watch, only="signals")
        watch.tell(f"validation MRR among all entities: {figures['text']['mrr']:.4f}")
        run = run.now()
    write_record(run, best_valid_mrr=run.tuned.by["valid"]["text"]["mrr"])
