"""Train a run in the stages of its recipe, or continue one that was interrupted."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgmlm.core.config import Settings
from kgmlm.core.errors import ConfigError, DataError, RunError, counted
from kgmlm.core.files import as_path
from kgmlm.core.machine import release_memory
from kgmlm.core.options import takes_all
from kgmlm.core.processes import in_several_processes, join, main_process, shared_by
from kgmlm.core.progress import Watcher, quiet_transformers, watcher_of
from kgmlm.graphs.checks import odd_columns
from kgmlm.graphs.datasets import FURTHER, load_graph, tell_unread
from kgmlm.graphs.graph import Dataset, KnowledgeGraph
from kgmlm.graphs.splits import held_out_share, with_validation
from kgmlm.graphs.storage import TRAINING, check_dataset
from kgmlm.runs.folder import ENDED, RunFolder
from kgmlm.runs.onnx import made_ready
from kgmlm.runs.opened import open_folder
from kgmlm.runs.provenance import model_address
from kgmlm.runs.run import Run, path_if
from kgmlm.runs.writing import check_output, save_model, write_record, writing
from kgmlm.text.vector_cache import VectorCache
from kgmlm.training.loop import Interrupted, TimeLimit, train_watched
from kgmlm.training.options import TrainOptions
from kgmlm.training.planner import Clock
from kgmlm.training.recipes import PLAIN, GivenSettings, Recipe, as_assignments, check_end
from kgmlm.training.stages import choose_recipe, last_stages, signal_stages, stages_left, text_limit
from kgmlm.training.start import ends_by_decay
from kgmlm.training.tune import complete_text, unfinished

if TYPE_CHECKING:
    from kgmlm.ranking.ranker import Mixture, Ranker


@takes_all(TrainOptions)
def train(options: TrainOptions) -> Run:
    """Train a run: text models and other signals that rank the entities of a graph.

    Raises:
        RunError: when the folder is taken, or options do not go together.
        ConfigError: for an unknown setting or one out of range.
        Interrupted: when a signal stopped it; ``resume=True`` continues.

    Example:
        >>> kgmlm.train("mygraph/", model="bert-base-uncased", output="runs/mine", epochs=5)  # doctest: +SKIP
    """
    began = time.monotonic()
    if options.output is None:
        raise RunError("--output is missing: the run folder to write")
    path = as_path(options.output, "the output")
    with writing(path, "train") if main_process() else nullcontext():
        check_end(options.decay, options.resume, options.overwrite)
        if not options.resume:
            _check_start(path, options.dataset, options.model, options.overwrite)
        side = [] if options.side is None else [f"training.side={options.side}"]
        given = GivenSettings.of(
            path_if(options.config, "a settings file"), [*as_assignments(options.settings), *side]
        )
        _check_settings(given, options.resume, options.preset, options.minutes)
        if options.tracker is not None:
            _check_tracker(options.tracker)
        quiet_transformers()
        watch = watcher_of(options.progress) if main_process() else Watcher()
        cache = VectorCache.shared() if options.cache else None
        max_steps = options.max_steps or given.max_steps  # what is given now goes before the settings
        if options.resume:
            run, ranker = _resume(path, given, options, watch)
            if ranker is None and not (unfinished(run) or stages_left(run)):
                watch.tell(f"{path} has {run.record['status']} already; there is nothing to resume")
                return Run(run)
        else:
            assert options.dataset is not None
            check_dataset(options.dataset, TRAINING, watch.tell)
            graph = load_graph(options.dataset, skip_header=options.skip_header)
            _tell_graph(graph, watch)
            chosen = options.preset or (PLAIN if given.plain else "balanced")
            given_back = False
            if options.holdout and chosen != PLAIN and not graph.has("valid"):
                whole, graph = graph, _held_out(graph, given.settings.training.seed, watch)
                small = held_out_share(len(whole.splits["train"])) is not None
                given_back = small and graph.has("valid")
                del whole
            model = str(options.model)
            recipe = choose_recipe(
                chosen, graph, model, given, options.minutes, watch, options.calibrate, cache
            )
            marks = {} if options.onnx else {"onnx": False}
            marks |= {"given_back": True} if given_back else {}
            run, ranker = _start(path, graph, model, recipe, given.settings, options.overwrite, watch, marks)
            del graph
            release_memory()  # of the graph as it was read: the run has files of it
        if ranker is not None and not run.settings.trains_text:
            _keep(run, ranker)
        clock = Clock(path, began)
        if clock.seconds is not None and in_several_processes():
            raise RunError("--minutes works in a single process, whose steps it times")
        with _continued(path, watch):
            if not in_several_processes():
                with clock.stage("planning"):
                    pass  # done since this process began
                signal_stages(path, max_steps, clock, cache, watch)
            if ranker is not None and run.settings.trains_text:
                ends = replace(options, max_steps=max_steps)
                with clock.stage("text") if main_process() else nullcontext():
                    train_text(run, ranker, watch, _continuing(path), ends, text_limit(path, clock))
            del run, ranker
            release_memory()
            if main_process():
                complete_text(path, watch)
                with clock.stage("onnx"):
                    made_ready(path, watch)
                last_stages(path, max_steps, _continuing(path), clock, watch)
        return Run(open_folder(path))


def _same(graph: KnowledgeGraph, run: RunFolder) -> bool:
    """Return whether a graph is that of a run, which may have held out some of it for validation."""
    if run.graph.has("valid") and not graph.has("valid"):
        with suppress(DataError):
            graph = with_validation(graph, run.settings.training.seed)
    return graph.same(run.graph)


def _held_out(graph: KnowledgeGraph, seed: int, watch: Watcher) -> KnowledgeGraph:
    """The graph with validation triples, if any can leave training."""
    try:
        made = with_validation(graph, seed)
    except DataError as error:
        watch.tell(f"no validation triples: {error}")
        return graph
    watch.tell(
        f"no validation triples: {len(made.splits['valid']):,} of {len(graph.splits['train']):,} training "
        "triples are held out for that (--no-holdout trains on all)"
        + (
            ": more than a tenth, since weights and probabilities need some; answers see them again"
            if held_out_share(len(graph.splits["train"])) is not None
            else ""
        )
    )
    return made


def _continuing(path: Path) -> str:
    """The command that continues a run."""
    return f"kgmlm train --output {shlex.quote(str(path))} --resume"


@contextmanager
def _continued(path: Path, watch: Watcher) -> Iterator[None]:
    """Where a stage is interrupted, say how to continue."""
    try:
        yield
    except Interrupted:
        raise  # the training loop has told how to continue
    except KeyboardInterrupt:
        watch.tell(f"continue with: {_continuing(path)}")
        raise


def _check_start(output: Path, dataset: Dataset | None, model: str | Path | None, overwrite: bool) -> None:
    """Refuse a new run that has nothing to begin with, or no place."""
    if main_process():
        check_output(output, overwrite)
    if dataset is None:
        raise RunError("--dataset is missing: a built-in dataset (`kgmlm data list`) or a folder")
    if model is None:
        raise RunError("--model is missing: `minilm`, `scratch`, a folder, or a Hugging Face name")


def _check_settings(
    given: GivenSettings,
    resume: bool,
    preset: str | None,
    minutes: float | None,
) -> None:
    """Refuse settings that another command trains with, and options that they do not go with."""
    if resume and minutes:
        raise RunError("--minutes is set when a run begins; --resume keeps it")
    if minutes is not None and (preset == PLAIN or (preset is None and given.plain)):
        raise RunError("--minutes goes with a preset other than plain")


def _check_tracker(name: str) -> None:
    """Refuse a tracker that is not installed before a run is laid."""
    from accelerate.tracking import get_available_trackers

    installed = sorted(str(tracker) for tracker in get_available_trackers())
    if name not in installed:
        raise ConfigError(f"there is no tracker '{name}' (installed: {', '.join(installed) or 'none'})")


def _resume(
    output: Path, given: GivenSettings, options: TrainOptions, watch: Watcher
) -> tuple[RunFolder, Ranker | None]:
    """Open an interrupted run where it stopped; what is given must be what it was begun with.

    There is no ranker where the text model is trained.
    """
    dataset, model, preset, decay = options.dataset, options.model, options.preset, options.decay
    run = open_folder(output)
    if model is not None and run.record["model"] not in (str(model), model_address(str(model))):
        raise RunError(f"{output} was begun with the model '{run.record['model']}', not '{model}'")
    begun = (run.record.get("recipe") or {"preset": PLAIN})["preset"]
    if preset not in (None, begun):
        raise RunError(f"{output} was begun with the preset '{begun}', not '{preset}'")
    if not given.fits(run.settings):
        raise RunError(
            f"{output} was begun with other settings; see {output}/config.toml, or start a new run"
        )
    from kgmlm.training.start import latest_checkpoint, resume_run

    if dataset is not None and not _same(load_graph(dataset, skip_header=options.skip_header), run):
        other = f"'{dataset}'" if isinstance(dataset, str | Path) else "the one that is given"
        raise RunError(f"{output} was begun with another graph than {other}")
    if run.record["status"] in ENDED and not run.is_unpacked:
        if decay is not None:
            raise RunError(f"the text model of {output} has finished; --decay would end its training")
        return run, None
    run, ranker = resume_run(output)
    checkpoint = latest_checkpoint(output)
    watch.tell(f"resuming {output} from {checkpoint.name if checkpoint else 'its start'}")
    return run, ranker


def _start(
    output: Path,
    graph: KnowledgeGraph,
    model: str,
    recipe: Recipe | None,
    settings: Settings,
    overwrite: bool,
    watch: Watcher,
    marks: Mapping[str, Any],
) -> tuple[RunFolder, Ranker]:
    """Create a new run, with the settings of its recipe if it has one; tell which names are unreadable.

    Args:
        marks: more for its record.
    """
    from kgmlm.training.start import start_run

    settings = settings if recipe is None else recipe.settings
    run, ranker = start_run(output, graph, model, settings, overwrite=overwrite, recipe=recipe, marks=marks)
    _tell_unknown(run, ranker, watch)
    return run, ranker


def _tell_graph(graph: KnowledgeGraph, watch: Watcher) -> None:
    """Say what a graph has, and what is odd about its tables and triples."""
    from kgmlm.graphs.queries import repeated

    tell_unread(graph, watch.tell)
    for what, count in graph.notes.items():
        if what.startswith(FURTHER):
            watch.tell(f"{what}: {count:,}")
    if odd := odd_columns(graph):
        watch.tell(odd)
    described = len(graph.entities) - graph.entities.undescribed
    watch.note(
        f"{graph.name}: {counted(len(graph.entities), 'entity')}, {described:,} with a description, "
        f"{counted(len(graph.relations), 'relation')}, "
        f"{counted(len(graph.splits['train']), 'training triple')}"
    )
    if twice := repeated(graph.splits["train"]):
        watch.tell(f"{counted(twice, 'duplicate training triple')} count{'s' * (twice == 1)} once")


def _tell_unknown(run: RunFolder, ranker: Ranker, watch: Watcher) -> None:
    """Say which names have characters that the model cannot read."""
    unknown = ranker.reader.tokenizer.unknown(ranker.reader.names)
    if run.settings.trains_text and len(unknown):
        example = run.graph.entities[int(unknown[0])].surface
        watch.tell(
            f"{len(unknown):,} of {len(ranker.reader.names):,} names have characters that the model has "
            f"no token for, such as '{example}'; names that differ only in these look the same to the model"
        )


def _keep(run: RunFolder, ranker: Ranker) -> None:
    """Save the model unchanged, for a run that does not train its masked LM."""
    if main_process():
        save_model(run, ranker)
        write_record(run, status="finished")


def train_text(
    run: RunFolder,
    ranker: Ranker,
    watch: Watcher,
    resume_command: str,
    options: TrainOptions,
    limit: TimeLimit | None,
) -> None:
    """Train the masked LM of a run, with validation if its graph has a split for it.

    Args:
        resume_command: the command that continues.
        options: where to stop, and how.
        limit: as of :func:`.loop.train`.
    """
    from kgmlm.core.config import Protocol
    from kgmlm.training.weights import weigh

    training = run.settings.training
    protocol = Protocol(
        split="valid", max_triples=training.eval_triples, seed=training.seed, side=training.side
    )
    among = training.validated(len(run.graph.entities)) if run.graph.has("valid") else 0
    world = join()

    def validation(current: Ranker) -> tuple[Mixture, dict[str, float]]:
        with shared_by(world):
            mixture, figures = weigh(current, run.graph, protocol, watch, among=among)
            return mixture, figures["text"]

    if among:
        watch.tell(
            f"validation ranks among the answers and {among:,} of {len(run.graph.entities):,} entities, "
            "drawn once; at the end, the run is measured among all"
        )
    by_decay = ends_by_decay(run, options.decay)
    bound = options.max_steps or (None if by_decay else training.max_steps)
    train_watched(
        run,
        ranker,
        validation if run.graph.has("valid") else None,
        resume_command,
        watch,
        max_steps=bound,
        decay=options.decay,
        resume=options.resume,
        tracker=options.tracker,
        limit=None if by_decay else limit,
    )
