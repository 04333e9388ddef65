"""The time limit of a training (``--minutes``): how long each stage takes, and if a masked LM is trained.

Each stage gets its share of what is left when it begins, and stops in time; so the later stages gain the time
that one leaves, and lose what it overruns. Only the masked LM is left out beforehand, where the speed of the
encoder says that it could learn nothing in its share.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kgmlm.core.config import HEAD_CANDIDATES, Settings, Stage
from kgmlm.core.files import parse_json, write_json
from kgmlm.core.machine import fitting_threads
from kgmlm.core.progress import Watcher
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.runs.folder import RunFolder, read_record
from kgmlm.signals.biencoder import profile_of
from kgmlm.signals.biencoder_training import Training
from kgmlm.signals.kge_training import train_complex
from kgmlm.signals.text_vectors import EncoderSource, read_all, texts_of
from kgmlm.text.encoder import TextEncoder
from kgmlm.text.onnx_model import ONNX_FILE, WEIGHTS
from kgmlm.text.vector_cache import VectorCache
from kgmlm.training.recipes import (
    LARGE,
    SMALL,
    STEPS,
    GivenSettings,
    Recipe,
    Shape,
    head_steps,
    steps_per_epoch,
)

# Each stage's share of the time left, relative to the shares of the other stages left.
SHARES: dict[str, float] = {
    "rules": 0.05,
    "texts": 0.5,
    "biencoder": 0.25,
    "kge": 0.2,
    "text": 0.55,
    "weights": 0.04,
    "reverse": 0.08,
    "trees": 0.08,
    "calibration": 0.04,
}
TEXTS = "texts"  # the stage in which the texts are read that the bi-encoder learns from
CHOICES = ("weights", "reverse", "trees", "calibration")  # use as many validation triples as time allows
FLOOR = STEPS["balanced"]  # steps of the masked LM; fewer teach it nothing (eval/LOG.md)
PART = 0.25  # of an epoch of the masked LM at least; with less, a large graph gains more by other stages
LONGEST = 0.85  # share of the time left that a masked LM may take if its steps are slower than planned
FRAME = 12  # tokens of a query's text beside those of entities: the relation, the span
PASSES = 100  # of the masked LM, and of KGE on small graphs, at most, however much time there is
KGE_PASSES = 30  # of KGE on others; WN18RR has .468 after 20 and .471 after 59 (eval/LOG.md)
# A larger KGE model, better than the preset's where the time is enough for ten epochs (eval/LOG.md).
LARGE_KGE, LARGE_KGE_EPOCHS = {"dimension": 500, "batch_size": 512}, 10
LARGE_KGE_DENSE = {"regularization": 0.05, "relation_weight": 4.0}  # where entities have many triples
LONG_KGE = 300.0  # seconds of KGE from which on its steps are timed
SAMPLED_TEXTS = 512  # texts by which the encoder is timed, in two halves; fewer would be padded more
ENDING, SMALL_MODEL = 5.0, 91_000_000  # seconds that the ONNX export of a model of 91 MB takes
KEPT_EVERY = 30.0  # seconds between notes of what a stage has taken
FEW_STEPS = 8  # of the bi-encoder and of KGE, which tell how long they take


class Clock:
    """The time of a training: what its stages have taken, and what is left of what it was given.

    Args:
        run: the run's folder, whose record keeps the time from one process to the next.
        began: when this process began, by the monotonic clock.
    """

    def __init__(self, run: Path, began: float) -> None:
        self.run = run
        recipe = read_record(run).get("recipe") or {}
        self.seconds: float | None = recipe.get("seconds")
        self.timed = frozenset(recipe.get("timed", ()))
        self._since = began
        self._running = run / "clock.json"  # what the stage that is going on has taken
        if self._running.is_file():  # until its process was killed
            killed = parse_json(self._running.read_bytes())
            self._count(killed["stage"], killed["seconds"])

    @property
    def spent(self) -> Mapping[str, float]:
        """Seconds that each stage has taken, in this process and before."""
        spent: Mapping[str, float] = read_record(self.run).get("spent", {})
        return spent

    @property
    def left(self) -> float:
        """Seconds that are left; infinite where no time was given."""
        if self.seconds is None:
            return math.inf
        return self.seconds - self._ending() - sum(self.spent.values()) - (time.monotonic() - self._since)

    def _ending(self) -> float:
        """Seconds that are kept for the structure for ONNX Runtime, where it is still to be made."""
        model = self.run / "model"
        if not read_record(self.run).get("onnx", True) or (model / ONNX_FILE).is_file():
            return 0.0
        weights = model / WEIGHTS
        size = weights.stat().st_size if weights.is_file() else SMALL_MODEL
        return min(ENDING * max(1.0, size / SMALL_MODEL), 0.05 * (self.seconds or 0.0))

    def share(self, stage: str, among: Sequence[str]) -> float | None:
        """Seconds for a stage, of what is left for it and others; None where it does not end by the clock.

        The time of a masked LM counts from its beginning, so after an interruption, what it took before is
        added.
        """
        if self.seconds is None or stage not in {TEXTS, *self.timed, *CHOICES}:
            return None
        of_all = sum(SHARES.get(one, 0.0) for one in {*among, stage})
        before = self.spent.get(stage, 0.0) if stage == "text" else 0.0
        return max(1.0, self.left * SHARES[stage] / of_all) + before

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time inside, and since the previous stage, as this stage's. Under a time limit, use as
        many threads as fit the machine's load, and keep the time for the case that the process is killed.
        """
        try:
            if self.seconds is None:
                yield
            else:
                with self._kept(name), fitting_threads():
                    yield
        finally:
            now = time.monotonic()
            self._count(name, now - self._since)
            self._since = now

    def _count(self, stage: str, seconds: float) -> None:
        """Add to what a stage has taken."""
        record = read_record(self.run)
        spent = dict(record.get("spent", {}))
        spent[stage] = round(spent.get(stage, 0.0) + seconds, 1)
        write_json(self.run / "run.json", {**record, "spent": spent})
        self._running.unlink(missing_ok=True)

    @contextmanager
    def _kept(self, stage: str) -> Iterator[None]:
        """Write every half minute what the stage inside has taken."""
        ended = threading.Event()

        def keep() -> None:
            while not ended.wait(KEPT_EVERY):
                write_json(self._running, {"stage": stage, "seconds": time.monotonic() - self._since})

        keeping = threading.Thread(target=keep, daemon=True)
        keeping.start()
        try:
            yield
        finally:
            ended.set()
            keeping.join()


def fitted(
    recipe: Recipe,
    graph: KnowledgeGraph,
    model: str,
    seconds: float,
    given: GivenSettings,
    watch: Watcher,
    cache: VectorCache | None = None,
) -> Recipe:
    """The recipe for a time limit: its stages end by the clock, with the masked LM if it fits.

    Args:
        cache: for the texts that are read to see how long one takes.
    """
    recipe = replace(recipe, seconds=seconds)
    measured = "epochs" not in given.values.get("training", {}) and graph.has("valid")
    if model != "scratch" and "text" in recipe.stages and measured:
        with fitting_threads():
            encoder = TextEncoder.load(model, recipe.settings.biencoder.max_length)
            own = recipe.settings.biencoder.precision
            encoder_speed = speed(EncoderSource(graph.entities, encoder, own, cache=cache))
            watch.tell(f"reading a text of {graph.name} takes {1000 * encoder_speed.per_text:.1f} ms")
            recipe = _without_text(recipe, graph, seconds, encoder_speed)
    return _by_the_clock(_with_large_kge(recipe, graph, given), graph, given)


class Speed(NamedTuple):
    """The speed of an encoder on a graph's entities.

    Attributes:
        per_text: seconds in which an entity's text is read.
        per_token: seconds in which a token of a long text is read.
        tokens: of an entity's text, in the mean.
        width: of its vector.
    """

    per_text: float
    per_token: float
    tokens: float
    width: int


def speed(source: EncoderSource, most: int = SAMPLED_TEXTS) -> Speed:
    """Measure the speed of an encoder on some of a graph's texts, and on longer ones made of them."""
    encoder, count = source.encoder, len(source.entities)
    drawn = np.unique(np.linspace(0, count - 1, most).astype(np.int64))
    texts = texts_of(source.entities.take(drawn))
    joined = [
        " ".join(texts[at:] + texts[:at])[: 8 * encoder.max_length] for at in range(min(64, len(texts)))
    ]

    def seconds(*parts: Sequence[str], kept: bool = False) -> float:
        """Of a text; of several parts the least, as the first is slower, and another process may be busy."""
        means = []
        for part in filter(None, parts):
            began = time.monotonic()
            vectors_ND = read_all(encoder, part, source.device, source.precision)
            means.append((time.monotonic() - began) / len(part))
            if kept:
                source.keep(part, vectors_ND)
        return min(means)

    per_text = seconds(texts[::2], texts[1::2], kept=True)
    per_token = seconds(joined, joined) * len(joined) / encoder.tokens(joined)
    return Speed(per_text, per_token, encoder.tokens(texts) / len(texts), encoder.width)


def _without_text(recipe: Recipe, graph: KnowledgeGraph, seconds: float, encoder_speed: Speed) -> Recipe:
    """The recipe without its masked LM and index, where too few of its steps would fit."""
    settings = recipe.settings
    training, shape = settings.training, Shape.of(graph)
    epoch = steps_per_epoch(shape, training.samples, training.batch_size)
    per_step, whole = _least_text(settings, graph, encoder_speed, max(FLOOR, PART * epoch))
    asked, useful = list[str](recipe.stages), dict[str, float]()
    if "biencoder" in asked:
        asked.append(TEXTS)
        useful[TEXTS] = len(graph.entities) * encoder_speed.per_text
    if _planned("text", seconds, asked, useful) >= whole:
        return recipe
    if seconds > whole:  # else no measurement of other stages would make room for it
        useful |= _useful(recipe, graph, encoder_speed.width)
    minutes = max(1, round(seconds / 60))
    if _planned("text", seconds, asked, useful) >= whole:
        return recipe
    while _planned("text", 60 * minutes, asked, useful) < whole:
        minutes += 1
    stages = tuple(x for x in recipe.stages if x not in ("text", "index"))
    training = training.model_copy(update={"epochs": 0.0})
    vectors = settings.vector.model_copy(update={"enabled": False})
    why = f"about {per_step:.1f} s per step: the masked LM is trained from {minutes:,} minutes on"
    kept = ("kge.", "biencoder.", "rules.", "types.")
    reasons = {key: reason for key, reason in recipe.reasons.items() if key.startswith(kept)}
    return replace(
        recipe,
        stages=stages,
        settings=settings.model_copy(update={"training": training, "vector": vectors}),
        reasons={"training.epochs": why, **reasons},
        text_from=minutes,
    )


def _least_text(
    settings: Settings, graph: KnowledgeGraph, encoder_speed: Speed, steps: float = FLOOR
) -> tuple[float, float]:
    """Seconds of a step of the masked LM, and of ``steps`` of them with the reading of all entity vectors."""
    asked = min(settings.text.max_length, FRAME + (1 + settings.text.neighbors) * encoder_speed.tokens)
    entity = min(settings.vector.max_length, encoder_speed.tokens) if settings.vector.enabled else 0
    # Forward, and backward twice as long.
    per_step = 3 * settings.training.batch_size * (asked + entity) * encoder_speed.per_token
    return per_step, steps * per_step + len(graph.entities) * entity * encoder_speed.per_token


def _planned(of: str, seconds: float, stages: Sequence[str], useful: Mapping[str, float]) -> float:
    """A stage's seconds of a time limit, where some others take no more than is useful."""
    shares = {stage: SHARES[stage] for stage in (*stages, "weights") if stage in SHARES}
    while True:
        of_all = sum(shares.values())
        short = [x for x in shares if useful.get(x, math.inf) < seconds * shares[x] / of_all]
        if not short:
            return seconds * shares[of] / of_all
        for stage in short:
            seconds -= useful[stage]
            del shares[stage]


def _useful(recipe: Recipe, graph: KnowledgeGraph, width: int) -> dict[str, float]:
    """Seconds that the bi-encoder and KGE need for all useful steps, estimated from a few steps.

    Args:
        width: of the vectors of texts; the bi-encoder's steps are timed on random ones.
    """
    seconds, times = dict[str, float](), list[float]()
    if "kge" in recipe.stages:
        seconds["kge"] = _kge_passes(graph) * _kge_epoch(graph, recipe)
    if "biencoder" in recipe.stages:
        own = recipe.settings.biencoder.model_copy(update={"steps": FEW_STEPS})
        rng, kinds = np.random.default_rng(0), 2 * len(graph.relations)
        texts_ND, texts_RD = (
            rng.standard_normal((count, width), np.float32)
            for count in (len(graph.entities), len(graph.relations))
        )
        profile = profile_of(graph.context.links, len(texts_ND), kinds)
        training = Training(graph, texts_RD, own)
        training.run(texts_ND, texts_ND, profile, lambda n: times.append(time.monotonic()))
        seconds["biencoder"] = _most_steps(recipe, graph) * float(np.median(np.diff(times)))
    return seconds


def _kge_passes(graph: KnowledgeGraph) -> int:
    """The epochs of KGE at most."""
    return PASSES if len(graph.splits["train"]) < SMALL else KGE_PASSES


def _kge_epoch(graph: KnowledgeGraph, recipe: Recipe) -> float:
    """Seconds of an epoch of KGE, estimated from a few steps."""
    times = list[float]()
    few = {"epochs": FEW_STEPS, "max_steps": FEW_STEPS, "seconds": None}
    kge = recipe.settings.kge.model_copy(update={**few, **_sampled(graph, recipe)})
    train_complex(graph, kge, lambda n, total: times.append(time.monotonic()))
    steps = math.ceil(len(graph.unique_queries("train")[0]) / kge.batch_size)
    return steps * float(np.median(np.diff(times)))


def _with_large_kge(recipe: Recipe, graph: KnowledgeGraph, given: GivenSettings) -> Recipe:
    """The recipe with a larger KGE model, where its share of the time is enough for one."""
    small, many = len(graph.splits["train"]) < SMALL, len(graph.entities) > LARGE
    if "kge" not in recipe.stages or "kge" in given.values or small or many:
        return recipe
    assert recipe.seconds is not None
    seconds = _planned("kge", recipe.seconds, recipe.stages, {})
    if seconds < LONG_KGE:
        return recipe
    kge = recipe.settings.kge
    own = LARGE_KGE | (LARGE_KGE_DENSE if kge.penalty == "triples" else {})
    larger = recipe.settings.model_copy(update={"kge": kge.model_copy(update=own)})
    changed = replace(recipe, settings=larger)
    with fitting_threads():
        epoch = _kge_epoch(graph, changed)
    if seconds < LARGE_KGE_EPOCHS * epoch:
        return recipe
    why = f"an epoch of this takes {epoch:.0f} s, and KGE has about {seconds / 60:.0f} minutes"
    return replace(changed, reasons={**recipe.reasons, "kge.dimension": why})


def _by_the_clock(recipe: Recipe, graph: KnowledgeGraph, given: GivenSettings) -> Recipe:
    """The recipe with stages that end by the clock, except those whose length was set explicitly."""
    settings, reasons, usual = recipe.settings, dict(recipe.reasons), dict[str, float]()
    most: dict[Stage, tuple[str, str, float]] = {
        "biencoder": ("biencoder", "steps", _most_steps(recipe, graph)),
        "kge": ("kge", "epochs", _kge_passes(graph)),
        "text": ("training", "epochs", float(PASSES)),
    }
    timed: list[Stage] = [stage for stage in recipe.stages if stage == "rules"]
    if "rules" in timed and "seconds" in given.values.get("rules", {}):
        timed.remove("rules")
    for stage, (section, key, bound) in most.items():
        lengths = {"epochs", "steps", "max_steps", "seconds"} & given.values.get(section, {}).keys()
        if stage not in recipe.stages or lengths:
            continue
        timed.append(stage)
        own = getattr(settings, section)
        usual[stage] = float(getattr(own, key))
        longest = own.model_copy(update={key: max(bound, usual[stage])})
        settings = settings.model_copy(update={section: longest})
        reasons[f"{section}.{key}"] = f"at most, as the time limit ends it; the preset has {usual[stage]:g}"
    sampled = _sampled(graph, recipe)
    if "kge" in timed and sampled and "candidates" not in given.values.get("kge", {}):
        settings = settings.model_copy(update={"kge": settings.kge.model_copy(update=sampled)})
        reasons["kge.candidates"] = f"{len(graph.entities):,} entities: a step scores a sample of them"
    return replace(recipe, settings=settings, reasons=reasons, timed=tuple(timed), usual=usual)


def _sampled(graph: KnowledgeGraph, recipe: Recipe) -> dict[str, int]:
    """The setting by which KGE scores a sample of the entities of a large graph."""
    few = recipe.settings.kge.candidates or len(graph.entities) <= 2 * HEAD_CANDIDATES
    return {} if few else {"candidates": HEAD_CANDIDATES}


def _most_steps(recipe: Recipe, graph: KnowledgeGraph) -> int:
    """The steps of the bi-encoder that suit a graph, at least those of the preset."""
    return max(head_steps(Shape.of(graph))[0], recipe.settings.biencoder.steps)


def time_report(run: RunFolder) -> list[str]:
    """Say in two lines what a time was spent on, and what more of it would buy."""
    recipe, spent = run.record["recipe"], run.record.get("spent", {})
    of = ", ".join(f"{stage} {seconds / 60:.1f}" for stage, seconds in spent.items())
    lines = [f"{sum(spent.values()) / 60:.1f} of {recipe['seconds'] / 60:g} minutes: {of}"]
    more, whole = list[str](), sum(spent.values())
    if cut := run.record.get("signals", {}).get("biencoder", {}).get("texts_cut", 0):
        more.append(f"the texts of {cut:,} of {len(run.graph.entities):,} entities were not read as a whole")
    for stage, usual in recipe["usual"].items():
        had = _had(run, stage)
        if had is not None and had < 0.95 * usual:
            unit = "steps" if stage == "biencoder" else "epochs"
            more.append(f"{stage} had {had:.3g} of the preset's {usual:g} {unit}")
            whole += spent.get(stage, 0.0) * (usual / max(had, 1e-3) - 1)
    if recipe["text_from"]:
        more.append(f"from {recipe['text_from']} minutes on the masked LM is trained, too")
    elif more:
        more.append(f"all of it takes about {whole / 60:.0f} minutes")
    lines.append(f"more time: {'; '.join(more)}" if more else "more time: no stage was cut short")
    return lines


def _had(run: RunFolder, stage: str) -> float | None:
    """Epochs that a stage was trained for, or steps of the bi-encoder; None where it was not."""
    if stage == "text":
        return float(run.settings.training.epochs * run.record.get("done", 0.0))
    how = run.record.get("signals", {}).get(stage)
    if how is None:
        return None
    if stage == "biencoder":
        return float(how["done"])
    per_epoch = math.ceil(len(run.graph.unique_queries("train")[0]) / run.settings.kge.batch_size)
    return float(how["done"] / per_epoch)
