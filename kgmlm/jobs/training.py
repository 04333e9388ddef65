"""Train a run, or continue one that was interrupted."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgmlm import runs, upkeep
from kgmlm.config import Settings, load_settings
from kgmlm.jobs.writing import as_path, main_process
from kgmlm.kg import ConfigError, RunError, counted
from kgmlm.run import Run, path_of
from kgmlm.upkeep import writing
from kgmlm.watching import Advance, Watcher, quiet_transformers, watcher_of

if TYPE_CHECKING:
    from kgmlm.mixture import Mixture
    from kgmlm.ranker import Ranker
    from kgmlm.training import Outcome


class Interrupted(KeyboardInterrupt):
    """A signal has interrupted training; a checkpoint is saved.

    Attributes:
        signal: its number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by signal {number}")
        self.signal = number


def train(
    dataset: str | Path | None = None,
    model: str | Path | None = None,
    output: str | Path | None = None,
    *,
    config: str | Path | None = None,
    set_: Sequence[str] = (),
    teacher: Run | str | Path | None = None,
    max_steps: int | None = None,
    decay: float | None = None,
    resume: bool = False,
    overwrite: bool = False,
    tracker: str | None = None,
    skip_header: bool = False,
    progress: bool | Watcher | Advance = True,
    **settings: Any,
) -> Run:
    """Train a masked LM to rank the entities of a graph.

    Args:
        dataset: a built-in dataset, or a folder with train.tsv.
        model: a masked LM by path or hub name, or "scratch" for a small BERT trained on the graph.
        output: the run folder to write.
        config: settings as TOML.
        set_: settings as "KEY=VALUE", such as "training.epochs=5".
        teacher: with distillation: learn from the KGE model of this run, or from its teacher.
        max_steps: stop there; the schedule stays laid for all epochs.
        decay: with ``resume``: end the run so many epochs from here, while the learning rate falls to 0.
        resume: continue an interrupted run, to the same losses.
        overwrite: replace an older run.
        tracker: an accelerate tracker, such as "tensorboard".
        settings: settings of [training] by name, such as ``epochs=5``; other sections as mappings, such as
            ``vector={"enabled": True}``.

    Raises:
        RunError: when the folder is taken, or options do not go together.
        ConfigError: for an unknown setting or one out of range.
        Interrupted: when a signal stopped it; ``resume=True`` continues.

    Example:
        >>> kgmlm.train("mygraph/", model="bert-base-uncased", output="runs/mine", epochs=5)  # doctest: +SKIP
    """
    if output is None:
        raise RunError("--output is missing: the run folder to write")
    path = Path(output)
    with writing(path, "train") if main_process() else nullcontext():
        _check_end(decay, resume, overwrite)
        if not resume:
            _check_start(path, dataset, model, overwrite)
        assignments = [*set_, *as_assignments(settings)]
        given = load_settings(as_path(config), assignments)
        _check_settings(given, assignments, teacher, resume)
        if tracker is not None:
            _check_tracker(tracker)
        quiet_transformers()
        watch = watcher_of(progress) if main_process() else Watcher()
        if resume:
            begun_with = given if config or assignments else None
            run, ranker = _resume(path, dataset, model, begun_with, skip_header, watch)
            if config or assignments:  # what is given now goes before what the run was begun with
                max_steps = max_steps or given.training.max_steps
        else:
            run, ranker = _start(
                path, str(dataset), str(model), given, teacher, overwrite, skip_header, watch
            )
        options = {"max_steps": max_steps, "decay": decay, "resume": resume, "tracker": tracker}
        return _train(run, ranker, watch, options)


def as_assignments(settings: Mapping[str, Any]) -> list[str]:
    """Settings given by name as "KEY=VALUE".

    >>> as_assignments({"epochs": 5, "vector": {"enabled": True}})
    ['training.epochs=5', 'vector.enabled=true']
    """
    sections = {k: v for k, v in settings.items() if isinstance(v, Mapping)}
    plain = {k: v for k, v in settings.items() if k not in sections}
    return [
        f"{section}.{key}={json.dumps(value)}"
        for section, values in ({"training": plain} | sections).items()
        for key, value in values.items()
    ]


def settings_of(section: str, given: Sequence[str], others: bool = False) -> list[str]:
    """Those of the KEY=VALUE settings that are of a section; or of others."""
    keys = [setting.partition("=")[0].strip() for setting in given]
    return [key for key in keys if key.startswith(f"{section}.") != others]


def train_watched(
    run: runs.Run, ranker: Ranker, validation: Any, further: str, watch: Watcher, **options: Any
) -> Outcome:
    """Train while somebody watches, and say how it ended; ``further`` is the command that continues.

    Raises:
        Interrupted: when a signal stopped it.
    """
    from kgmlm.training import train as train_run

    with watch:
        outcome = train_run(run, ranker, validation, reporter=watch, **options)
    best = "" if outcome.best_mrr is None else f", best validation MRR {outcome.best_mrr:.4f}"
    watch.tell(
        f"{outcome.status} at step {outcome.step} after {outcome.minutes:.1f} minutes{best}; "
        f"the run is in {run.path}"
    )
    if outcome.status == "max steps":
        watch.tell(f"train further with: {further} --max-steps N")
    if outcome.signal is not None:
        watch.tell(f"continue with: {further}")
        raise Interrupted(outcome.signal)
    return outcome


def _check_end(decay: float | None, resume: bool, overwrite: bool) -> None:
    """Refuse what says in two ways, or in no way, where a run begins and ends."""
    if resume and overwrite:
        raise RunError("--resume and --overwrite exclude each other")
    if decay is not None and not resume:
        raise RunError("--decay ends a run that is resumed; a new run ends after training.epochs")
    if decay is not None and not math.isfinite(decay):
        raise RunError(f"--decay takes a number of epochs, not {decay}")


def _check_start(output: Path, dataset: str | Path | None, model: str | Path | None, overwrite: bool) -> None:
    """Refuse a new run that has nothing to begin with, or no place."""
    if main_process():
        upkeep.check_output(output, overwrite)
    if dataset is None:
        raise RunError("--dataset is missing: a built-in dataset (`kgmlm data list`) or a folder")
    if model is None:
        raise RunError("--model is missing: `scratch`, a folder, or a Hugging Face name")


def _check_settings(
    settings: Settings, given: Sequence[str], teacher: Run | str | Path | None, resume: bool
) -> None:
    """Refuse settings that another command trains with, and a teacher that they do not go with."""
    if settings.training.objective == "rerank":
        raise RunError("the objective 'rerank' is trained beside a run, by `kgmlm rerank RUN`")
    if teacher is not None and (resume or not settings.training.distillation):
        raise RunError(
            "--teacher is for the start of a run"
            if resume
            else "--teacher teaches nothing without `--set training.distillation=1`"
        )
    if teacher is not None and (kge := settings_of("kge", given)):
        raise RunError(f"--teacher takes a KGE model as it is; {kge[0]} goes without it")


def _check_tracker(name: str) -> None:
    """Refuse a tracker that is not installed before a run is laid."""
    from accelerate.tracking import get_available_trackers

    there = sorted(str(tracker) for tracker in get_available_trackers())
    if name not in there:
        raise ConfigError(f"there is no tracker '{name}' (installed: {', '.join(there) or 'none'})")


def _resume(
    output: Path,
    dataset: str | Path | None,
    model: str | Path | None,
    settings: Settings | None,
    skip_header: bool,
    watch: Watcher,
) -> tuple[runs.Run, Ranker]:
    """Open an interrupted run where it stopped; what is given must be what it was begun with."""
    from kgmlm import provenance

    run = runs.open_run(output)
    if model is not None and run.record["model"] not in (str(model), provenance.model_address(str(model))):
        raise RunError(f"{output} was begun with the model '{run.record['model']}', not '{model}'")
    if settings is not None and settings.without_max_steps() != run.settings.without_max_steps():
        raise RunError(
            f"{output} was begun with other settings; see {output}/config.toml, or start a new run"
        )
    from kgmlm.checkpoints import latest_checkpoint
    from kgmlm.datasets import load_graph
    from kgmlm.starting import resume_run

    if dataset is not None and not load_graph(str(dataset), skip_header=skip_header).same(run.graph):
        raise RunError(f"{output} was begun with another graph than '{dataset}'")
    run, ranker = resume_run(output)
    checkpoint = latest_checkpoint(output)
    watch.tell(f"resuming {output} from {checkpoint.name if checkpoint else 'its start'}")
    return run, ranker


def _start(
    output: Path,
    dataset: str,
    model: str,
    settings: Settings,
    teacher: Run | str | Path | None,
    overwrite: bool,
    skip_header: bool,
    watch: Watcher,
) -> tuple[runs.Run, Ranker]:
    """Lay a new run, with its teacher where it learns from one, and say what it is about."""
    from kgmlm.config import KGESettings
    from kgmlm.datasets import load_graph
    from kgmlm.starting import fit_signal, start_run

    graph = load_graph(dataset, skip_header=skip_header)
    lent = None if teacher is None else runs.open_run(path_of(teacher)).lend("kge", graph)
    if lent and lent[1]["settings"]:
        settings = settings.model_copy(update={"kge": KGESettings.model_validate(lent[1]["settings"])})

    def teach() -> tuple[Any, dict[str, Any]]:
        if lent:
            return lent
        with watch:
            return fit_signal("kge", graph, settings, partial(watch, "training kge"))

    run, ranker = start_run(output, graph, model, settings, overwrite=overwrite, teach=teach)
    _tell_start(run, ranker, watch)
    return run, ranker


def _tell_start(run: runs.Run, ranker: Ranker, watch: Watcher) -> None:
    """Say what a new run is about, and what is odd about its names and triples."""
    from kgmlm.datasets import repeated

    graph = run.graph
    watch.tell(
        f"{graph.name}: {counted(len(graph.entities), 'entity')}, "
        f"{counted(len(graph.relations), 'relation')}, "
        f"{counted(len(graph.splits['train']), 'training triple')}; "
        f"span of {counted(ranker.reader.vocabulary.span_length, 'token')}"
    )
    if twice := repeated(graph.splits["train"]):
        watch.tell(f"{counted(twice, 'duplicate training triple')} count{'s' * (twice == 1)} once")
    unknown = ranker.reader.tokenizer.unknown(ranker.reader.names)
    if len(unknown):
        example = graph.entities[int(unknown[0])].surface
        watch.tell(
            f"{len(unknown):,} of {len(ranker.reader.names):,} names have something that the model has "
            f"no token for, such as '{example}'; names that differ in it alone are alike to the model"
        )
    if taught := run.record["teacher"]:
        watch.tell(f"taught by a KGE model: {taught['command']}")


def _train(run: runs.Run, ranker: Ranker, watch: Watcher, options: dict[str, Any]) -> Run:
    """Train a run with validation, if its graph has a split for it."""
    from kgmlm.config import Protocol
    from kgmlm.tuning import weigh_text

    training = run.settings.training
    protocol = Protocol(split="valid", max_triples=training.eval_triples, seed=training.seed)

    def validation(current: Ranker) -> tuple[Mixture, dict[str, float]]:
        return weigh_text(current, run.graph, protocol, watch)

    train_watched(
        run,
        ranker,
        validation if "valid" in run.graph.splits else None,
        f"kgmlm train --output {shlex.quote(str(run.path))} --resume",
        watch,
        **options | {"max_steps": options["max_steps"] or training.max_steps},
    )
    return Run(runs.open_run(run.path))
