"""The stages of a recipe: chosen for a graph and a time, done one after the other, each once."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kgmlm.core.config import Settings, Stage
from kgmlm.core.errors import NoRulesError, RunError, counted
from kgmlm.core.processes import in_several_processes
from kgmlm.core.progress import Watcher
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.runs.folder import RunFolder, open_folder
from kgmlm.runs.opened import shortlist_of
from kgmlm.runs.record import (
    ENDED,
    RERANKER,
    is_blank,
    leave_out,
)
from kgmlm.signals import beside
from kgmlm.signals.biencoder import profile_of, texts_of
from kgmlm.signals.rules import Rules
from kgmlm.signals.types import Types
from kgmlm.text.encoder import TextEncoder
from kgmlm.training.index import index
from kgmlm.training.loop import Interrupted
from kgmlm.training.recipes import (
    PLAIN,
    REVERSE_TRIPLES,
    STEPS,
    Given,
    Recipe,
    Shape,
    epochs_within,
    head_steps,
    recipe_of,
    share_of,
)
from kgmlm.training.tune import Addition, Figures, RerankerTraining, add_signal, choose, train_reranker

if TYPE_CHECKING:
    from kgmlm.ranking.ranker import Ranker

PROBED = 8  # steps by which a stage's time is told
SPENT = 0.9  # of a time; the rest chooses weights
SHARES = {"text": 0.55, "kge": 0.1, "rules": 0.05, "biencoder": 0.25, "reranker": 0.2}  # of that, in relation
ASKING = 0.08  # of a time, taken off first where it is to be chosen how to score in reverse
BACK = 2.5  # a query that is scored in reverse takes so many of the encoder's passes
READS = 1.5  # a step of the reranker takes so many of the text model's
VALIDATIONS = 3  # of the text model, where they take no more than this part of its time:
VALIDATING = 0.2
WEIGHING = 4e5  # scores of validation triples (one per entity) that weights are chosen on, per minute of all
LEAST = 300  # validation triples that weights are chosen on
SAMPLED_TEXTS = 256  # by which the encoder's speed is told
LEAST_HEAD_STEPS = 100  # of the bi-encoder; with fewer it is left out
FEW = 50  # validation triples where --max-steps alone bounds a run; fewer do not tell how to score in reverse


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
    if minutes is not None:
        if in_several_processes():
            raise RunError("--minutes times the steps of one process")
        recipe = _fitted(recipe, graph, model, 60 * minutes, given, watch)
    if "types" in recipe.stages:
        Types.check(graph, recipe.settings.types)
    if "rules" in recipe.stages:
        Rules.check(graph, recipe.settings.rules)
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
        return _median_gap(self.times[1:]) or 1.0


def _median_gap(times: Sequence[float]) -> float:
    """Seconds between two steps that were done one after the other; 0 where there are no two."""
    gaps = [b - a for a, b in pairwise(times)]
    return median(gaps) if gaps else 0.0


def _fitted(
    recipe: Recipe, graph: KnowledgeGraph, model: str, seconds: float, given: Given, watch: Watcher
) -> Recipe:
    """A recipe whose stages take so many seconds in all, by the time of a few steps of each."""
    watch.tell("timing a few steps")
    if "biencoder" in recipe.stages:
        own = recipe.settings.biencoder
        encoder = TextEncoder.load(own.encoder or model, own.max_length)
        per_text, per_token = _speed(encoder, graph)
        if "text" in recipe.stages and "epochs" not in given.values.get("training", {}):
            recipe = _without_text(recipe, seconds, per_token)
    asking = ASKING * seconds if "reverse" in recipe.stages else 0.0
    seconds -= asking
    left = SPENT * seconds
    if "biencoder" in recipe.stages:
        most = _shared(recipe, left)["biencoder"]
        recipe, spent = _fitted_biencoder(recipe, graph, most, per_text, encoder.width, given)
        left -= spent
    share = _shared(recipe, left, but="biencoder")
    if "kge" in share:
        recipe = _fitted_kge(recipe, graph, share["kge"], given)
    settings = recipe.settings
    if "rules" in share and "seconds" not in given.values.get("rules", {}):
        rules = settings.rules.model_copy(update={"seconds": max(0.1, round(share["rules"], 1))})
        recipe = replace(recipe, settings=settings.model_copy(update={"rules": rules}))
    weighed = max(LEAST, int(WEIGHING * seconds / 60 / len(graph.entities)))
    if weighed < len(graph.splits.get("valid", ())):
        why = f"on {weighed:,} validation triples, which the time allows"
        recipe = replace(recipe, weighed=weighed, reasons={**recipe.reasons, "weights": why})
    if "text" not in share:
        return recipe
    recipe, per_step, per_epoch = _fitted_text(recipe, graph, model, share["text"], seconds, given, watch)
    if asking:
        recipe = _fitted_asking(recipe, asking, per_step)
    if "reranker" in recipe.stages:
        reading = max(20.0, share["reranker"] / (READS * per_step))
        pairs = per_epoch * (1 + recipe.settings.reranking.negatives)
        recipe = replace(recipe, reranker_epochs=min(1.0, share_of(reading, pairs)))
    return recipe


def _shared(recipe: Recipe, seconds: float, but: str = "") -> dict[str, float]:
    """The seconds of each stage that is fitted, but for one."""
    share = {stage: SHARES[stage] for stage in recipe.stages if stage in SHARES and stage != but}
    return {stage: seconds * part / sum(share.values()) for stage, part in share.items()}


def _fitted_text(
    recipe: Recipe,
    graph: KnowledgeGraph,
    model: str,
    text: float,
    seconds: float,
    given: Given,
    watch: Watcher,
) -> tuple[Recipe, float, float]:
    """The recipe with as many epochs of the masked LM as fit into its part of so many seconds; the seconds of
    a step, and how many are an epoch.
    """
    from kgmlm.training.loop import train as train_run
    from kgmlm.training.start import start_run

    clock, settings = _Clock(), recipe.settings

    def enough(ranker: Ranker) -> Any:
        raise _Probed

    with tempfile.TemporaryDirectory() as folder:
        epochs = PROBED + 1.0  # an epoch of a tiny graph is a step
        training = settings.training.model_copy(update={"epochs": epochs, "eval_every": epochs})
        probed = settings.model_copy(update={"training": training})
        run, ranker = start_run(Path(folder) / "probe", graph, model, probed)
        with suppress(_Probed):
            outcome = train_run(run, ranker, enough, max_steps=PROBED, reporter=clock)
            if outcome.signal is not None:
                watch.tell("stopped while steps were timed; nothing was written")
                raise Interrupted(outcome.signal)
    per_step, per_epoch = clock.per_step, clock.total / epochs
    if "epochs" in given.values.get("training", {}):
        return recipe, per_step, per_epoch
    count = len(graph.entities)
    among = settings.training.validated(count)
    reading = _reading(settings, among or count, per_step)
    once = _reading(settings, count, per_step) if among else 0.0  # all at the end
    often = VALIDATIONS if VALIDATIONS * reading <= VALIDATING * text else 1
    epochs = epochs_within(text - often * reading - once, per_step, per_epoch)
    why = f"{per_step:.2f} s per step; the text model has {text / seconds:.0%} of the time"
    if reading >= 1:
        read = f"{among:,}" if among else "all"
        why += f", of which {counted(often, 'validation')} take {reading:.0f} s each to read {read} entities"
    if once >= 1:
        why += f", and reading all once takes {once:.0f} s"
    validations = 0 if "eval_every" in given.values.get("training", {}) else often
    return recipe.trained_for(epochs, validations, why), per_step, per_epoch


def _speed(encoder: TextEncoder, graph: KnowledgeGraph) -> tuple[float, float]:
    """Seconds in which the bi-encoder's encoder reads an entity's text, and a token of one."""
    some = np.unique(np.linspace(0, len(graph.entities) - 1, SAMPLED_TEXTS).astype(np.int64))
    texts = texts_of(graph.entities.take(some))
    for _ in encoder.read(texts[: SAMPLED_TEXTS // 4]):
        pass  # the first texts are slower
    began = time.monotonic()
    for _ in encoder.read(texts):
        pass
    taken = time.monotonic() - began
    return taken / len(texts), taken / encoder.tokens(texts)


def _without_text(recipe: Recipe, seconds: float, per_token: float) -> Recipe:
    """The recipe without its masked LM, where too few of its steps would fit; what needs it goes, too."""
    settings = recipe.settings
    tokens = settings.text.max_length + (settings.vector.max_length if settings.vector.enabled else 0)
    per_step = 3 * settings.training.batch_size * tokens * per_token  # forward, and backward twice as long
    needed = STEPS["quick"] * per_step / _shared(recipe, SPENT)["text"]
    if needed <= seconds:
        return recipe
    stages = tuple(x for x in recipe.stages if x not in ("text", "reverse", "reranker", "index"))
    training = settings.training.model_copy(update={"epochs": 0.0})
    vector = settings.vector.model_copy(update={"enabled": False})
    minutes = math.ceil(needed / 60)
    why = (
        f"about {per_step:.1f} s per step: the masked LM is trained from {minutes:,} minutes on, and until "
        "then the time goes to the other signals"
    )
    kept = ("kge.", "biencoder.", "rules.", "types.")
    reasons = {key: reason for key, reason in recipe.reasons.items() if key.startswith(kept)}
    return replace(
        recipe,
        stages=stages,
        settings=settings.model_copy(update={"training": training, "vector": vector}),
        reasons={"training.epochs": why, **reasons},
    )


def _fitted_biencoder(
    recipe: Recipe, graph: KnowledgeGraph, seconds: float, per_text: float, width: int, given: Given
) -> tuple[Recipe, float]:
    """The recipe with as many steps of the bi-encoder as fit into so many seconds, or without it; and the
    seconds that it takes.

    Args:
        per_text: seconds in which a text is read.
        width: of the vectors of texts.
    """
    from kgmlm.signals.biencoder_training import Training

    settings = recipe.settings.biencoder
    if "steps" in given.values.get("biencoder", {}):
        return recipe, seconds
    count = len(graph.entities)
    reading = count * per_text
    few = settings.model_copy(update={"steps": PROBED})
    rng, times = np.random.default_rng(0), list[float]()
    training = Training(graph, rng.standard_normal((len(graph.relations), width), np.float32), few)
    drawn_ND = rng.standard_normal((count, width), np.float32)
    profile = profile_of(graph.context.links, count, 2 * len(graph.relations))
    training.run(drawn_ND, drawn_ND, profile, lambda n: times.append(time.monotonic()))
    per_step = _median_gap(times) or 1e-3
    fitting = int((seconds - reading) / per_step)
    laid, _ = head_steps(Shape.of(graph))
    steps = min(fitting, laid)
    if steps < min(laid, LEAST_HEAD_STEPS):
        why = f"none: reading {counted(count, 'text')} takes {reading:.0f} s and a step {per_step:.2f} s"
        stages = tuple(stage for stage in recipe.stages if stage != "biencoder")
        reasons = {k: reason for k, reason in recipe.reasons.items() if not k.startswith("biencoder.")}
        return replace(recipe, stages=stages, reasons={**reasons, "biencoder": why}), 0.0
    why = f"{per_step:.2f} s per step, after {counted(count, 'text')} are read in {reading:.0f} s"
    fitted = recipe.settings.model_copy(update={"biencoder": settings.model_copy(update={"steps": steps})})
    recipe = replace(recipe, settings=fitted, reasons={**recipe.reasons, "biencoder.steps": why})
    return recipe, reading + steps * per_step


def _fitted_kge(recipe: Recipe, graph: KnowledgeGraph, seconds: float, given: Given) -> Recipe:
    """The recipe with as many steps of KGE as take so many seconds, by the time of a few."""
    from kgmlm.training.start import fit_signal

    settings, times = recipe.settings, list[float]()
    few = settings.model_copy(update={"kge": settings.kge.model_copy(update={"max_steps": PROBED})})
    fit_signal("kge", graph, few, lambda n, total: times.append(time.monotonic()))
    if "epochs" in given.values.get("kge", {}):
        return recipe
    per_step = _median_gap(times)
    asked = -(-len(graph.unique_queries("train")[0]) // settings.kge.batch_size)
    steps, reasons = max(1, int(seconds / max(per_step, 1e-6))), dict(recipe.reasons)
    fitted = {"epochs": min(100, -(-steps // asked))}
    if steps < fitted["epochs"] * asked and settings.kge.max_steps is None:
        fitted["max_steps"] = steps
        reasons["kge.max_steps"] = f"{per_step:.2f} s per step; an epoch has {asked:,}"
    kge = settings.kge.model_copy(update=fitted)
    settings = settings.model_copy(update={"kge": kge})
    return replace(recipe, settings=settings, reasons=reasons)


def _reading(settings: Settings, entities: int, per_step: float) -> float:
    """Seconds in which the vectors of so many entities are read once, by the time of a step.

    A step reads a batch of queries and as many entities, and its backward pass takes twice as long.
    """
    if not settings.vector.enabled:
        return 0.0
    vector = settings.vector.max_length
    return entities * vector * _per_token(settings, per_step)


def _per_token(settings: Settings, per_step: float) -> float:
    """Seconds in which a token is read, by the time of a step."""
    vector = settings.vector.max_length if settings.vector.enabled else 0
    return per_step / (3 * settings.training.batch_size * (settings.text.max_length + vector))


def _fitted_asking(recipe: Recipe, seconds: float, per_step: float) -> Recipe:
    """A recipe that chooses in so many seconds how to score in reverse, or does without."""
    settings = recipe.settings
    per_query = BACK * settings.text.max_length * _per_token(settings, per_step)
    asked = int(seconds / (2 * (1 + settings.reranking.candidates) * per_query))  # of both sides
    if asked >= FEW:
        return replace(recipe, asked=min(asked, recipe.asked))
    why = f"none: the time allows only {counted(asked, 'validation triple')} to choose by"
    stages = tuple(stage for stage in recipe.stages if stage != "reverse")
    return replace(recipe, stages=stages, reasons={**recipe.reasons, "reverse": why})


def stages_left(run: RunFolder) -> list[Stage]:
    """The stages of a run's recipe that are still to be done, after its text model."""
    recipe = run.record.get("recipe")
    if not recipe:
        return []
    now = {name: digest for name, digest in run.fingerprints.items() if name != RERANKER}
    chosen = run.tuned
    # Text that was trained further after a signal was added is weighed again.
    weighed = all(chosen.of.get(name) == digest for name, digest in now.items())
    whole = run.record["status"] in ENDED
    left: list[Stage] = [
        stage
        for stage in recipe["stages"]
        if stage in beside() and not (stage in now and weighed and not (whole and was_cut(run, stage)))
    ]
    reranked = run.reranker is not None and chosen.use is not None
    if reranked and whole and run.reranker:
        reranked = run.reranker["status"] in ENDED
    if "reverse" in recipe["stages"] and chosen.reverse is None:
        left.append("reverse")
    if "reranker" in recipe["stages"] and not reranked:
        left.append("reranker")
    if "index" in recipe["stages"] and shortlist_of(run) is None:
        left.append("index")
    return left


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


def further_stages(path: Path, max_steps: int | None, further: str, watch: Watcher) -> None:
    """Do what is left of a run's recipe after its text model.

    Args:
        further: the command that continues.

    Raises:
        Interrupted: when a signal stopped it; ``kgmlm train --resume`` continues.
    """
    run = open_folder(path)
    recipe = run.record.get("recipe")
    left = stages_left(run)
    if not recipe or (run.record["status"] == "max steps" and not max_steps):
        return
    if left and in_several_processes():
        watch.tell(f"{' and '.join(left)}: in one process, by `{further}`")
        return
    few, before = None if max_steps is None else FEW, run.tuned

    def chosen(only: Literal["signals", "reverse", "reranking"], count: int | None) -> Figures:
        back = True if only == "reverse" else None
        return choose(open_folder(path), count, None, "fp32", 64, None, watch, only, reverse=back)

    if signals := [stage for stage in left if stage in beside()]:
        for name in signals:
            _add_stage(open_folder(path), name, max_steps, watch)
        figures = chosen("signals", recipe.get("weighed", 0) if few is None else few)
        ladder = [f"{stage} {of['mrr']:.4f}" for stage, of in figures.items()]
        watch.tell(f"validation MRR: {', with '.join(ladder)}")
    # What was chosen beside other weights is chosen again.
    if "reverse" in left or (signals and before.reverse is not None):
        figures = chosen("reverse", few or recipe.get("asked", REVERSE_TRIPLES))
        _tell_of("reverse scoring", figures["reverse"], watch)
    if signals and "reranker" not in recipe["stages"] and run.reranker:
        _tell_of("reranker", chosen("reranking", few)["reranking"], watch)
    if "reranker" in recipe["stages"] and ("reranker" in left or signals):
        folder = path / RERANKER
        begun = (folder / "run.json").is_file() and not is_blank(folder)
        epochs = recipe["reranker_epochs"]
        settings = [f"training.epochs={epochs}", f"training.eval_every={epochs}", "training.eval_triples=300"]
        found = train_reranker(
            path,
            [] if begun else settings,
            further,
            RerankerTraining(max_steps=max_steps, resume=begun),
            max_triples=few,
            watch=watch,
        )
        _tell_of("reranker", found, watch)
    if "index" in left:
        _index(path, watch)


def _tell_of(stage: str, found: dict[str, float], watch: Watcher) -> None:
    """Say what validation chose of a second stage."""
    used = f"used, the {found['k']} best" if found["k"] else "not used"
    watch.tell(f"{stage} {used}: validation MRR {found['mrr']:.4f}, {found['mrr_first']:.4f} without it")


def _index(path: Path, watch: Watcher) -> None:
    """Index a run's entities, through which it is asked from now on."""
    found = index(path, progress=watch)
    run = open_folder(path)
    run.update(shortlist={"entities": found["shortlist"], "of": run.text_fingerprint})
    watch.tell(
        f"index of {found['entities']:,} entities: of the 10 best by exact scoring, "
        f"{found['recall_at_10']:.1%} are among the {found['shortlist']} that are scored per query"
    )


def _add_stage(run: RunFolder, name: str, max_steps: int | None, watch: Watcher) -> None:
    """Train a signal of a recipe beside the text, if it is not there."""
    cut = max_steps is None and was_cut(run, name)
    file = beside()[name].file
    if (run.path / file).is_file() and not cut:
        return
    bounds = {} if max_steps is None else _bounds(name, max_steps)
    given = [f"{name}.{key}={json.dumps(value)}" for key, value in bounds.items()]
    marks = {"cut": True} if bounds else {}
    try:
        add_signal(run, Addition(name, given=given, marks=marks), None, watch)
    except NoRulesError as error:  # of a small or odd graph: nothing is wrong
        watch.tell(str(error))
        if max_steps is None:
            leave_out(run.path, name)
