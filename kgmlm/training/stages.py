"""The stages of a recipe: chosen for a graph and a time, done one after the other, each once."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from kgmlm.core.config import Stage
from kgmlm.core.errors import DataError, NoRulesError, RunError
from kgmlm.core.processes import in_several_processes
from kgmlm.core.progress import Watcher
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.prediction.calibration import fitted as fitted_calibration
from kgmlm.prediction.calibration import (
    save_calibration,
)
from kgmlm.prediction.drawing import TRIPLES
from kgmlm.runs.folder import ENDED, RunFolder
from kgmlm.runs.index import index
from kgmlm.runs.opened import open_folder
from kgmlm.runs.tuned import REVERSE, TREES
from kgmlm.runs.writing import leave_out, write_record
from kgmlm.signals import beside
from kgmlm.signals.biencoder import Biencoder
from kgmlm.signals.rules import Rules
from kgmlm.signals.types import Types
from kgmlm.text.vector_cache import VectorCache
from kgmlm.training.loop import TimeLimit
from kgmlm.training.planner import FLOOR, LONGEST, TEXTS, Clock, fitted, time_report
from kgmlm.training.recipes import (
    MIN_TREE_TRIPLES,
    PLAIN,
    REVERSE_TRIPLES,
    TEXTLESS_TRIPLES,
    GivenSettings,
    Recipe,
    recipe_of,
)
from kgmlm.training.summary import counted, following, stood_for, summary
from kgmlm.training.trees import may_fit
from kgmlm.training.tune import (
    Addition,
    Figures,
    add_signal,
    choose,
    read_texts,
)

WEIGHED = 300  # validation triples for a first choice of weights, timed to size the final one
REVERSED = 20  # validation triples for a first choice of reverse scoring, timed to size the final one
CALIBRATED = 100  # validation triples for a first fit of probabilities, timed to size the final one
# Validation triples where only --max-steps bounds a run; fewer cannot show how to score in reverse
SHORT_RUN_TRIPLES = 50


def choose_recipe(
    preset: str,
    graph: KnowledgeGraph,
    model: str,
    given: GivenSettings,
    minutes: float | None,
    watch: Watcher,
    calibrated: bool = False,
    cache: VectorCache | None = None,
) -> Recipe | None:
    """The recipe of a preset for a graph; None of the preset "plain".

    Args:
        given: settings that go before those of the recipe.
        minutes: what all stages may take together.
        calibrated: fit probabilities at the end.
        cache: for the texts that are read to see how long one takes.

    Raises:
        ConfigError: when there is no such preset.
        DataError: when the file of rules cannot be read.
        RunError: when several processes are to be timed, or the graph has no relation that tells types.
    """
    if preset == PLAIN:
        return None
    recipe = recipe_of(preset, graph, model == "scratch", given.values)
    if not graph.has("valid"):
        watch.tell("no validation triples: no weights are chosen, and the text model ranks alone")
        recipe = replace(recipe, stages=("text",))
    if "index" in recipe.stages and find_spec("faiss") is None:
        watch.tell("no index is built, since FAISS is not installed: pip install '.[cpu]'")
        recipe = replace(recipe, stages=tuple(stage for stage in recipe.stages if stage != "index"))
    if "trees" in recipe.stages and not may_fit(graph, watch):
        recipe = replace(recipe, stages=tuple(stage for stage in recipe.stages if stage != "trees"))
    if calibrated and graph.has("valid"):
        recipe = replace(recipe, stages=(*recipe.stages, "calibration"))
    if minutes is not None:
        if in_several_processes():
            raise RunError("--minutes works in a single process, whose steps it times")
        recipe = fitted(recipe, graph, model, 60 * minutes, given, watch, cache)
    if "types" in recipe.stages:
        Types.check(graph, recipe.settings.types)
    if "rules" in recipe.stages:
        Rules.check(graph, recipe.settings.rules)
    for line in recipe.lines():
        watch.note(line)
    return recipe


def stages_left(run: RunFolder) -> list[Stage]:
    """The stages of a run's recipe that are still to be done, after its text model."""
    recipe = run.record.get("recipe")
    if not recipe:
        return []
    now, chosen = run.fingerprints, run.tuned
    # Text that was trained further after a signal was added is weighed again.
    weighed = all(chosen.of.get(name) == digest for name, digest in now.items())
    whole = run.record["status"] in ENDED
    left: list[Stage] = [
        stage
        for stage in recipe["stages"]
        if stage in beside() and not (stage in now and weighed and not (whole and was_cut(run, stage)))
    ]
    if REVERSE in recipe["stages"] and REVERSE not in chosen.stage_weights:
        left.append("reverse")
    if TREES in recipe["stages"] and TREES not in chosen.stage_weights:
        left.append("trees")
    if "index" in recipe["stages"] and run.shortlist is None:
        left.append("index")
    if "calibration" in recipe["stages"] and not _is_calibrated(run):
        left.append("calibration")
    return left


def _is_calibrated(run: RunFolder) -> bool:
    """Return whether a run's probabilities are fitted to its current state."""
    try:
        return run.calibration is not None
    except RunError:
        return False


def _bounds(name: str, steps: int) -> dict[str, Any]:
    """Settings of a signal under ``--max-steps``."""
    bounds: dict[str, dict[str, Any]] = {
        "kge": {"max_steps": steps},
        "biencoder": {"steps": steps},
        "rules": {"length": 1, "constants": False},
    }
    return bounds.get(name, {})


def was_cut(run: RunFolder, name: str) -> bool:
    """Return whether ``--max-steps`` bounded the training of a signal beside a run's model."""
    return bool(run.record.get("signals", {}).get(name, {}).get("cut"))


def signal_stages(
    path: Path, max_steps: int | None, clock: Clock, cache: VectorCache | None, watch: Watcher
) -> None:
    """Train the signals of a run's recipe, which come before its masked LM; those that are there stay.

    Args:
        cache: of texts that other runs have read.
    """
    recipe = open_folder(path).record.get("recipe") or {"stages": []}
    names = [stage for stage in recipe["stages"] if stage in beside()]
    if Biencoder.name in names:
        names.insert(names.index(Biencoder.name), TEXTS)
    cut = 0
    for at, name in enumerate(names):
        run = open_folder(path)
        with clock.stage(name):
            seconds = clock.share(name, [*names[at:], *_after(recipe["stages"])])
            if name != TEXTS:
                marks = {"texts_cut": cut} if cut and name == Biencoder.name else {}
                _add_stage(run, name, max_steps, seconds, watch, cache, marks)
            elif _is_to_be_trained(run, Biencoder.name, max_steps):
                cut = _read_texts(run, seconds, watch, cache)


def text_limit(path: Path, clock: Clock) -> TimeLimit | None:
    """The time of the masked LM of a run; None where it does not end by the clock.

    Where steps take longer than planned, it takes time from later stages to get enough of them.
    """
    recipe = open_folder(path).record.get("recipe") or {"stages": []}
    seconds = clock.share("text", _after(recipe["stages"])) if "text" in recipe["stages"] else None
    if seconds is None:
        return None
    return TimeLimit(seconds, LONGEST * (clock.left + clock.spent.get("text", 0.0)), FLOOR)


def _after(stages: Sequence[str]) -> list[str]:
    """The stages after the signals of a recipe."""
    return [*(stage for stage in stages if stage not in beside()), "weights"]


def last_stages(
    path: Path,
    max_steps: int | None,
    resume_command: str,
    clock: Clock,
    watch: Watcher,
) -> None:
    """Do what is left of a run's recipe after its signals and its masked LM.

    Args:
        resume_command: the command that continues.

    Raises:
        Interrupted: when a signal stopped it; ``kgmlm train --resume`` continues.
    """
    run = open_folder(path)
    recipe = run.record.get("recipe")
    left = stages_left(run)
    if not recipe or (run.record["status"] == "max steps" and not max_steps):
        return
    if left and in_several_processes():
        watch.tell(
            f"not done by several processes: {' and '.join(left)}; `{resume_command}` does them in one"
        )
        return
    few, before = None if max_steps is None else SHORT_RUN_TRIPLES, run.tuned.stage_weights
    later = ("reverse", "trees", "calibration")
    after = [stage for stage in later if stage in recipe["stages"]]

    def share(stage: str) -> float | None:
        return clock.share(stage, [other for other in after if later.index(other) >= later.index(stage)])

    if signals := [stage for stage in left if stage in beside()]:
        with clock.stage("weights"):
            figures = _chosen(path, "signals", few or 0, watch, WEIGHED, clock.share("weights", after))
    # Stages chosen under other weights are chosen again.
    if "reverse" in left or (signals and REVERSE in before):
        with clock.stage("reverse"):
            most = REVERSE_TRIPLES if run.settings.trains_text else TEXTLESS_TRIPLES
            figures = _chosen(path, "reverse", few or most, watch, REVERSED, share("reverse"))
        if "reverse" in figures:  # else the time was too short
            _tell_gain("reverse scoring", figures["reverse"], watch)
    now = open_folder(path).tuned.stage_weights
    if "trees" in left or (TREES in before and TREES not in now):
        with clock.stage("trees"):
            trial = recipe["preset"] == "quick"
            of_trees = _chosen(path, "trees", few, watch, MIN_TREE_TRIPLES, share("trees"), trial)["trees"]
        _tell_gain("trees", of_trees, watch)
    if "index" in left:
        with clock.stage("index"):
            _index(path, watch)
    if "calibration" in recipe["stages"] and not _is_calibrated(open_folder(path)):
        with clock.stage("calibration"):
            _calibrate(path, max_steps, clock.share("calibration", ()), watch)
    run = open_folder(path)
    lines = [] if clock.seconds is None else time_report(run)
    if left and run.graph.has("valid"):
        chosen = run.tuned.by
        triples = chosen.get("triples", len(run.graph.splits["valid"]))
        counting = counted(run.graph, triples, side=run.settings.training.side)
        lines = [*summary(chosen["valid"], triples, counting), stood_for(run.graph), *lines, *following(run)]
    for line in lines:
        watch.note(line)


def _calibrate(path: Path, max_steps: int | None, seconds: float | None, watch: Watcher) -> None:
    """Fit a run's probabilities on validation, on as many triples as the time allows."""

    def fit(count: int) -> None:
        run = open_folder(path)
        save_calibration(run, fitted_calibration(run, most=count, watch=watch))

    valid_triples = len(open_folder(path).graph.splits["valid"])
    most = min(TRIPLES if max_steps is None else SHORT_RUN_TRIPLES, valid_triples)
    began, first = time.monotonic(), most if seconds is None else min(most, CALIBRATED)
    try:
        fit(first)
    except (RunError, DataError) as error:  # too little validation: the run ranks without probabilities
        watch.tell(f"no probabilities: {error}")
        if max_steps is None:
            leave_out(path, "calibration")
        return
    taken = time.monotonic() - began
    if seconds is not None and (more := min(most, int(first * (seconds - taken) / taken))) > first:
        fit(more)


def _chosen(
    path: Path,
    only: Literal["signals", "reverse", "trees"],
    most: int | None,
    watch: Watcher,
    first: int = 0,
    seconds: float | None = None,
    trial: bool = False,
) -> Figures:
    """Choose on validation, on as many triples as the time allows.

    Args:
        most: triples at most; 0 is all of validation.
        first: triples to begin with, which show how long one takes.
        seconds: None is as long as it takes.
        trial: stop after the first triples if validation has no use for a second stage fitted to them.
    """
    wanted: dict[str, bool] = {} if only == "signals" else {only: True}
    if only == REVERSE:  # what comes after it has stages of its own
        wanted[TREES] = False

    def by(count: int | None) -> Figures:
        return choose(open_folder(path), count, None, "fp32", 64, None, watch, only, wanted=wanted)

    if seconds is None and not trial:
        return by(most)
    valid_triples = len(open_folder(path).graph.splits["valid"])
    whole, began = min(most or valid_triples, valid_triples), time.monotonic()
    figures = by(min(first, whole))
    if whole <= first or (trial and not figures[only]["k"]):
        return figures
    if seconds is None:
        return by(most)
    taken = time.monotonic() - began
    fitting = min(whole, int(first * (seconds - taken) / taken))
    if only == "reverse" and fitting < min(SHORT_RUN_TRIPLES, whole):
        watch.tell(f"no reverse scoring: there is time for only {fitting} validation triples to fit it")
        leave_out(path, "reverse")
        wanted[only] = False
        return by(1)
    if fitting <= first:
        return figures
    watch.tell(f"{only} chosen on {fitting:,} of {valid_triples:,} validation triples")
    return by(fitting)


def _tell_gain(stage: str, figures: dict[str, float], watch: Watcher) -> None:
    """Say what validation chose of a second stage."""
    used = f"on the {figures['k']} best candidates" if figures["k"] else "not used"
    watch.tell(f"{stage} {used}: validation MRR {figures['mrr']:.4f}, {figures['mrr_first']:.4f} without it")


def _index(path: Path, watch: Watcher) -> None:
    """Index a run's entities, through which it is asked from now on."""
    record = index(path, progress=watch)
    run = open_folder(path)
    write_record(run, shortlist={"entities": record["shortlist"], "of": run.text_fingerprint})
    watch.tell(
        f"index of {record['entities']:,} entities: of the 10 best by exact scoring, "
        f"{record['recall_at_10']:.1%} are among the {record['shortlist']} that are scored per query"
    )


def _is_to_be_trained(run: RunFolder, name: str, max_steps: int | None) -> bool:
    """Return whether a signal of a recipe is missing, or was cut by ``--max-steps``, which is gone now."""
    is_trained = (run.path / beside()[name].file).is_file()
    return not is_trained or (max_steps is None and was_cut(run, name))


def _read_texts(run: RunFolder, seconds: float | None, watch: Watcher, cache: VectorCache | None) -> int:
    """Read the texts for the bi-encoder; return how many were not read as a whole."""
    cut = read_texts(run, Addition(Biencoder.name).settings(run), watch, seconds, cache=cache)
    if cut:
        watch.tell(
            f"the time was too short for the texts of {cut:,} of {len(run.graph.entities):,} entities: the "
            "bi-encoder knows these by their names, or not at all"
        )
    return cut


def _add_stage(
    run: RunFolder,
    name: str,
    max_steps: int | None,
    seconds: float | None,
    watch: Watcher,
    cache: VectorCache | None,
    marks: Mapping[str, Any],
) -> None:
    """Train a signal of a recipe beside the text if it is missing, within the time if one is given.

    Args:
        marks: further values of its record.
    """
    if not _is_to_be_trained(run, name, max_steps):
        return
    bounds = {} if max_steps is None else _bounds(name, max_steps)
    if seconds is not None:
        bounds = {**bounds, "seconds": round(seconds, 1)}
    given = [f"{name}.{key}={json.dumps(value)}" for key, value in bounds.items()]
    if max_steps is not None and _bounds(name, max_steps):
        marks = {**marks, "cut": True}
    try:
        add_signal(run, Addition(name, given=given, marks=marks), None, watch, cache)
    except NoRulesError as error:  # of an odd graph: nothing is wrong
        watch.tell(str(error))
        if max_steps is None:
            leave_out(run.path, name)
