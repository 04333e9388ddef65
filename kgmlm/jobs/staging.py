"""The stages of a recipe: chosen for a graph and a time, done one after the other, each once."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from kgmlm import runs, upkeep
from kgmlm.chosen import fingerprints
from kgmlm.graph import KnowledgeGraph
from kgmlm.jobs.running import Given, Interrupted
from kgmlm.jobs.tuning import train_reranker, tune
from kgmlm.jobs.writing import in_several_processes
from kgmlm.kg import RunError
from kgmlm.recipes import PLAIN, Recipe, Stage, epochs_within, recipe_of
from kgmlm.records import read_record
from kgmlm.signals.kge import KGE
from kgmlm.watching import Watcher

if TYPE_CHECKING:
    from kgmlm.ranker import Ranker

PROBED = 8  # steps by which a stage's time is told
SHARES = {"text": 0.55, "kge": 0.1, "reranker": 0.2}  # of a time budget; the rest is for validation
READS = 1.5  # a step of the reranker takes so many of the text model's
FEW = 50  # validation triples of a run that only --max-steps bounds


def choose_recipe(
    preset: str,
    graph: KnowledgeGraph,
    model: str,
    given: Given,
    minutes: float | None,
    watch: Watcher,
) -> Recipe | None:
    """The recipe of a preset for a graph; None of the preset "plain".

    Args:
        given: settings that go before those of the recipe.
        minutes: what all stages may take together.

    Raises:
        ConfigError: when there is no such preset.
        RunError: when several processes are to be timed.
    """
    if preset == PLAIN:
        return None
    if minutes is not None and minutes <= 0:
        raise RunError("--minutes takes a time above 0")
    recipe = recipe_of(preset, graph, model == "scratch", given.values)
    if "valid" not in graph.splits:
        watch.tell("no validation triples: no weights are chosen, and the text model ranks alone")
        recipe = replace(recipe, stages=("text",))
    if minutes is not None:
        if in_several_processes():
            raise RunError("--minutes times the steps of one process")
        recipe = _fitted(recipe, graph, model, 60 * minutes, given, watch)
    watch.tell(f"preset {preset}: {', then '.join(recipe.stages)}")
    for key, why in recipe.reasons.items():
        section, _, name = key.partition(".")
        value = getattr(getattr(recipe.settings, section, None), name, None)
        watch.tell(f"  {key}{'' if value is None else f' = {value}'}: {why}")
    return recipe


class _Probed(Exception):
    """Enough steps are timed."""


class _Clock(Watcher):
    """When steps are done."""

    def __init__(self) -> None:
        self.total = 0
        self.times: list[float] = []

    def start(self, total: int, done: int) -> None:
        self.total = total

    def step(self, step: int, loss: float) -> None:
        self.times.append(time.monotonic())

    @property
    def per_step(self) -> float:
        """Seconds of the median step; the first ones are slower."""
        gaps = [b - a for a, b in zip(self.times[1:], self.times[2:], strict=False)]
        return median(gaps) if gaps else 1.0


def _fitted(
    recipe: Recipe, graph: KnowledgeGraph, model: str, seconds: float, given: Given, watch: Watcher
) -> Recipe:
    """A recipe whose epochs take so many seconds in all, by the time of a few steps of each."""
    from kgmlm.starting import fit_signal, start_run
    from kgmlm.training import train as train_run

    watch.tell("timing a few steps")
    share = {stage: SHARES[stage] for stage in recipe.stages}
    if recipe.settings.training.distillation:
        share["kge"] = SHARES["kge"]
    scale = (sum(SHARES.values())) / sum(share.values())
    share = {stage: scale * part for stage, part in share.items()}
    training = recipe.settings.training.model_copy(update={"distillation": 0.0, "epochs": 1.0})
    clock = _Clock()

    def enough(ranker: Ranker) -> Any:
        raise _Probed

    with tempfile.TemporaryDirectory() as folder:
        probed = recipe.settings.model_copy(update={"training": training})
        run, ranker = start_run(Path(folder) / "probe", graph, model, probed)
        with suppress(_Probed):
            outcome = train_run(run, ranker, enough, max_steps=PROBED, reporter=clock)
            raise Interrupted(outcome.signal or signal.SIGINT)  # nothing else ends it
    if "kge" in share and "epochs" not in given.values.get("kge", {}):
        few = recipe.settings.kge.model_copy(update={"max_steps": PROBED})
        times: list[float] = []
        settings = recipe.settings.model_copy(update={"kge": few})
        fit_signal("kge", graph, settings, lambda n, total: times.append(time.monotonic()))
        per_step = (times[-1] - times[0]) / max(1, len(times) - 1)
        asked = -(-len(graph.unique_queries("train")[0]) // recipe.settings.kge.batch_size)
        passes = max(1, min(100, int(share["kge"] * seconds / per_step / asked)))
        kge = recipe.settings.kge.model_copy(update={"epochs": passes})
        recipe = replace(recipe, settings=recipe.settings.model_copy(update={"kge": kge}))
    if "epochs" not in given.values.get("training", {}):
        epochs = epochs_within(share["text"] * seconds, clock.per_step, clock.total)
        why = f"{clock.per_step:.2f} s per step; the text model has {share['text']:.0%} of the time"
        recipe = recipe.trained_for(epochs, "eval_every" not in given.values.get("training", {}), why)
    if "reranker" in recipe.stages:
        steps = max(20.0, share["reranker"] * seconds / (READS * clock.per_step))
        pairs = clock.total * (1 + recipe.settings.reranking.negatives)
        recipe = replace(recipe, reranker_epochs=round(min(1.0, steps / pairs), 4))
    return recipe


def stages_left(run: runs.RunFolder) -> list[Stage]:
    """The stages of a run's recipe that are still to be done, after its text model."""
    recipe = run.record.get("recipe")
    if not recipe:
        return []
    left: list[Stage] = []
    now = {name: digest for name, digest in fingerprints(run.path).items() if name != upkeep.RERANKER}
    chosen = run.chosen
    # Text that was trained further after graph embeddings were added is weighed again.
    weighed = all(chosen.of.get(name) == digest for name, digest in now.items())
    whole = run.record["status"] in upkeep.ENDED
    kge = run.record.get("signals", {}).get(KGE.name, {})
    if "kge" in recipe["stages"] and not (KGE.name in now and weighed and not (whole and was_cut(kge))):
        left.append("kge")
    reranked = upkeep.has_reranker(run.path) and chosen.use is not None
    if reranked and whole:
        reranked = read_record(run.path / upkeep.RERANKER)["status"] in upkeep.ENDED
    if "reranker" in recipe["stages"] and not reranked:
        left.append("reranker")
    return left


def was_cut(how: Mapping[str, Any]) -> bool:
    """Whether ``--max-steps`` stopped the training of a KGE model."""
    return bool((how.get("settings") or {}).get("max_steps"))


def further_stages(path: Path, max_steps: int | None, further: str, watch: Watcher) -> None:
    """Do what is left of a run's recipe after its text model.

    Args:
        further: the command that continues.

    Raises:
        Interrupted: when a signal stopped it; ``kgmlm train --resume`` continues.
    """
    run = runs.open_run(path)
    recipe = run.record.get("recipe")
    left = stages_left(run)
    if not recipe or (run.record["status"] == "max steps" and not max_steps):
        return
    if left and in_several_processes():
        watch.tell(f"{' and '.join(left)}: in one process, by `{further}`")
        return
    few = None if max_steps is None else FEW
    if "kge" in left:
        cut = max_steps is None and was_cut(run.record.get("signals", {}).get(KGE.name, {}))
        there = (path / KGE.file).is_file() and not cut
        taught = (path / runs.TEACHER).is_file() and not was_cut(run.record.get("teacher") or {})
        lent = not there and (taught or (max_steps is not None and (path / runs.TEACHER).is_file()))
        bound = [] if there or lent or max_steps is None else [f"kge.max_steps={max_steps}"]
        figures = tune(
            path,
            add=None if there else KGE.name,
            source=path if lent else None,
            set_=bound,
            overwrite=cut,
            max_triples=few,
            progress=watch,
        )
        watch.tell(
            f"text and kge: validation MRR {figures['kge']['mrr']:.4f} (text {figures['text']['mrr']:.4f})"
        )
    if "reranker" in left:
        folder = path / upkeep.RERANKER
        begun = (folder / "run.json").is_file() and not upkeep.is_blank(folder)
        epochs = recipe["reranker_epochs"]
        settings = [f"training.epochs={epochs}", f"training.eval_every={epochs}", "training.eval_triples=300"]
        found = train_reranker(
            path,
            [] if begun else settings,
            further,
            resume=begun,
            max_steps=max_steps,
            max_triples=few,
            watch=watch,
        )
        used = f"used, the {found['k']} best" if found["k"] else "not used"
        watch.tell(f"reranker {used}: validation MRR {found['mrr']:.4f}, {found['mrr_first']:.4f} without it")
