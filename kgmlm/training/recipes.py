"""Recipes: which stages a run is trained in, and settings that suit the graph's own shape, with reasons.

No rule here knows a benchmark's name. Settings that a user gives, in a file or one by one, are read here,
too.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np

from kgmlm.core.config import (
    ALL,
    SAMPLED,
    VALIDATED,
    Settings,
    Stage,
    as_settings,
    load_settings,
    override,
)
from kgmlm.core.errors import ConfigError, RunError, counted
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.signals.mentions import Mentions
from kgmlm.training.options import Preset

PRESETS: tuple[str, ...] = get_args(Preset)
PLAIN: Preset = "plain"
SPOKEN = {
    "text": "masked LM",
    "kge": "KGE",
    "similar_entities": "similar entities",
    "similar_answers": "similar answers",
    "reverse": "reverse scoring",
    "calibration": "probabilities",
}
COVERED = 0.01  # of the training triples, of which a description names the other entity, for mentions
LARGE = 200_000  # entities with vectors: above, an index finds those to score
SMALL = 50_000  # training triples: below, a few epochs take minutes
HEAD_STEPS = {"quick": 600, "balanced": 2000, "best": 6000, "zero-shot": 2000}  # of the bi-encoder at most
STEPS = {"quick": 150, "balanced": 300, "best": 1500, "zero-shot": 300}  # optimizer steps at least
PASSES = 15  # over the triples of a small graph; more learn them by heart
SCRATCH = 8  # times as many for a model that knows no language; its steps are short
WITH_REVERSE = ("best", "zero-shot")
WITH_TREES = ("quick", "balanced", "best")
# Validation triples that trees are fitted to; fewer teach nothing that weights do not say
MIN_TREE_TRIPLES = 300
REVERSE_TRIPLES = 300  # validation triples: some four minutes of a core
TEXTLESS_TRIPLES = 1_000  # where no masked LM reads: some ten seconds


@dataclass(frozen=True)
class Shape:
    """The properties of a graph that settings go by.

    Attributes:
        queries: distinct training queries, of both sides.
        answers: answers per distinct query.
        degree: of the median entity that training has seen, its triples.
        described: the share of entities with a description.
    """

    entities: int
    triples: int
    queries: int
    answers: float
    degree: float
    described: float

    @classmethod
    def of(cls, graph: KnowledgeGraph) -> Shape:
        """The shape of a graph's training triples and texts."""
        train = graph.splits["train"]
        queries = len(graph.unique_queries("train")[0])
        count = len(graph.entities)
        heads_N, tails_N = (np.bincount(train[:, end], minlength=count) for end in (0, 2))
        degrees = (heads_N + tails_N)[graph.seen_N]
        described = 1 - graph.entities.undescribed / max(1, count)
        return cls(
            entities=count,
            triples=len(train),
            queries=queries,
            answers=2 * len(train) / max(1, queries),
            degree=float(np.median(degrees)) if len(degrees) else 0.0,
            described=described,
        )


@dataclass(frozen=True)
class Recipe:
    """The stages and settings of a training.

    Attributes:
        settings: of the text model and of what is beside it.
        stages: in order.
        reasons: for settings, why they are as they are.
        seconds: what all stages may take together; None is as long as the settings say.
        timed: the stages that end by the clock.
        usual: the epochs or steps that these have where no time is given.
        text_from: if the time is too short for a masked LM, the least number of minutes that suffices.
    """

    preset: str
    settings: Settings
    stages: tuple[Stage, ...]
    reasons: Mapping[str, str]
    seconds: float | None = None
    timed: tuple[Stage, ...] = ()
    usual: Mapping[str, float] = field(default_factory=dict)
    text_from: int | None = None

    def as_record(self) -> dict[str, Any]:
        """For ``run.json``."""
        return {
            "preset": self.preset,
            "stages": list(self.stages),
            "seconds": self.seconds,
            "timed": list(self.timed),
            "usual": dict(self.usual),
            "text_from": self.text_from,
        }

    def lines(self) -> list[str]:
        """The stages for people, and why some are left out or cut."""
        stages = ", ".join(SPOKEN.get(stage, stage) for stage in self.stages)
        reasons = {key: why for key, why in self.reasons.items() if "." not in key}
        if not self.settings.trains_text and (why := self.reasons.get("training.epochs")):
            reasons["masked LM"] = f"none: {why}"
        return [f"preset {self.preset}: {stages}", *(f"  {stage}: {why}" for stage, why in reasons.items())]

    def notes(self) -> list[str]:
        """Comments for ``config.toml``."""
        return [
            f"preset {self.preset}: {', then '.join(self.stages)}",
            *(f"{key}: {why}" for key, why in self.reasons.items()),
        ]


def recipe_of(
    preset: str, graph: KnowledgeGraph, scratch: bool, given: Mapping[str, Any] | None = None
) -> Recipe:
    """The recipe of a preset for a graph.

    Args:
        scratch: whether the model is trained from scratch.
        given: settings, by section, that go before those of the recipe.

    Raises:
        ConfigError: when there is no such preset, or a setting is wrong.
    """
    if preset not in PRESETS:
        raise ConfigError(f"presets are {', '.join(PRESETS[:-1])} or {PRESETS[-1]}, not '{preset}'")
    shape = Shape.of(graph)
    values, reasons = _settings(preset, shape, scratch) if preset != PLAIN else ({}, {})
    asked = given or {}
    wanted = "epochs" in asked.get("training", {}) or asked.get("vector", {}).get("enabled")
    few = shape.entities <= LARGE
    if preset == "quick" and not scratch and few and graph.has("valid") and not wanted:
        why = "the bi-encoder and the signals beside it are good in minutes, a masked LM is not"
        values["training"] = {"epochs": 0.0}
        values["vector"] = {"enabled": False}
        reasons = {"training.epochs": why}
    if preset != PLAIN and not scratch and few:
        values["biencoder"], more_reasons = _biencoder(preset, shape)
        reasons |= more_reasons
    for section, more in (given or {}).items():
        values[section] = {**values.get(section, {}), **more}
        for key in more:
            reasons.pop(f"{section}.{key}", None)
    training = values.get("training", {})
    epochs = as_settings(values).training.epochs
    if preset != PLAIN and epochs and "eval_every" not in (given or {}).get("training", {}):
        training["eval_every"] = epochs / 3
    settings = as_settings(values)
    stages: list[Stage] = []  # those that take least time come first
    if preset != PLAIN:
        stages += ["types", "rules", "linked"]
        covered = Mentions.of(graph.entities).coverage(graph.splits["train"]) if few else 0.0
        if covered >= COVERED:
            stages.append("mentions")
        elif few:
            reasons["mentions"] = f"none: descriptions name the other entity of {covered:.1%} of the triples"
        if few and graph.has("valid"):
            stages.append("unseen")
    if preset != PLAIN and shape.entities > LARGE:
        reasons["biencoder"] = f"none: {shape.entities:,} texts to read; `kgmlm tune --add biencoder` does"
    elif preset != PLAIN and (not scratch or settings.biencoder.encoder):
        stages.append("biencoder")
        if few and graph.has("valid"):
            stages += ["similar_entities", "similar_answers"]
    elif preset != PLAIN:
        reasons["biencoder"] = "none: a model from scratch is no text encoder; biencoder.encoder names one"
    if preset in ("balanced", "best"):
        stages.append("kge")
    else:
        reasons.pop("kge.penalty", None)  # no KGE model is trained
    if settings.trains_text:
        stages.append("text")
    quickly = preset == "quick" and not settings.trains_text and shape.triples <= SMALL  # no text to read
    if quickly or (preset in WITH_REVERSE and shape.entities <= LARGE):
        stages.append("reverse")
    elif preset in WITH_REVERSE:
        reasons["reverse"] = (
            f"none: each candidate scored in reverse is a query among {shape.entities:,} entities"
        )
    valid_triples = len(graph.splits["valid"]) if graph.has("valid") else 0
    if preset in WITH_TREES and valid_triples >= MIN_TREE_TRIPLES and shape.entities <= LARGE:
        stages.append("trees")
    elif preset in WITH_TREES:
        reasons["trees"] = (
            f"none: {counted(valid_triples, 'validation triple')}, and trees need {MIN_TREE_TRIPLES}"
            if valid_triples < MIN_TREE_TRIPLES
            else f"none: {shape.entities:,} entities are too many to count their links"
        )
    if preset != PLAIN and shape.entities > LARGE and settings.vector.enabled:  # names alone: exact is faster
        stages.append("index")
        reasons["index"] = f"vectors of {shape.entities:,} entities: FAISS finds those that are scored"
    return Recipe(preset, settings, tuple(stages), reasons)


def _settings(preset: str, shape: Shape, scratch: bool) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Settings by section, and why."""
    reasons: dict[str, str] = {}

    def because(key: str, value: Any, why: str) -> Any:
        reasons[key] = why
        return value

    hubs = shape.answers > 2.5
    samples = because(
        "training.samples",
        "triples" if hubs else "queries",
        f"{shape.answers:.1f} answers per distinct query: "
        + ("hubs are asked once per answer" if hubs else "asking each query once covers the most per hour"),
    )
    sparse = shape.degree <= 5
    penalty = because(
        "kge.penalty",
        "entities" if sparse else "triples",
        f"the median entity has {shape.degree:.0f} training triples"
        + (": embeddings of those with few are kept small" if sparse else ""),
    )
    batch = because(
        "training.batch_size", 64 if shape.triples > 2000 else 16, f"{shape.triples:,} training triples"
    )
    per_epoch = steps_per_epoch(shape, samples, batch)
    least = STEPS[preset] * (SCRATCH if scratch else 1) if preset in STEPS else 0
    whole = {"quick": 1.0, "balanced": 3.0, "best": 6.0, "zero-shot": 3.0}.get(preset, 10.0)
    whole = whole if shape.triples < SMALL else whole / 3
    epochs = because(
        "training.epochs",
        round(max(whole, least / per_epoch), 2),
        f"{counted(per_epoch, 'step')} per epoch; at least {least:,} steps and {whole:g} epochs",
    )
    long = because(
        "text.max_length",
        64 if shape.described > 0.1 else 48,
        f"{shape.described:.0%} of the entities have a description",
    )
    many: dict[str, int] = {}
    if shape.entities > ALL:
        count = f"{shape.entities:,} entities"
        many["candidates"] = because(
            "training.candidates", SAMPLED, f"{count}: the softmax of a step goes over a sample of them"
        )
        many["eval_candidates"] = because(
            "training.eval_candidates",
            VALIDATED,
            f"{count}: validation in training ranks among a sample, and all are read once at the end",
        )
    return {
        "text": {"neighbors": 4, "max_length": long},
        "scoring": {"end_of_name": True},
        "vector": {"enabled": not scratch, "max_length": 32, "memory": min(16384, shape.entities)},
        "kge": {
            "penalty": penalty,
            "epochs": 30 if shape.triples < SMALL else 10,
        },
        "training": {
            "samples": samples,
            "batch_size": batch,
            "epochs": epochs,
            "eval_triples": 1000,
            **many,
            **({} if scratch else {"dropout": 0.0}),
        },
    }, reasons


def steps_per_epoch(shape: Shape, samples: str, batch: int) -> int:
    """Steps of the masked LM in which each query of a graph, or each triple, asks once."""
    return max(1, math.ceil((2 * shape.triples if samples == "triples" else shape.queries) / batch))


def head_steps(shape: Shape) -> tuple[int, int]:
    """Steps of the bi-encoder that suit a graph, however long they take, and queries per step."""
    batch = 64 if shape.triples <= 2000 else 512
    return max(60, round(PASSES * 2 * shape.triples / batch)), batch


def _biencoder(preset: str, shape: Shape) -> tuple[dict[str, Any], dict[str, str]]:
    """Settings of the bi-encoder, and why."""
    laid, batch = head_steps(shape)
    steps = min(HEAD_STEPS[preset], laid)
    values: dict[str, Any] = {"batch_size": batch, "steps": steps}
    why = f"{PASSES} passes over {shape.triples:,} training triples from both sides"
    reasons = {"biencoder.steps": why if steps == laid else f"the preset's maximum; {why} would be {laid:,}"}
    if shape.triples >= SMALL:
        values["dropout"] = 0.2
        reasons["biencoder.dropout"] = f"{shape.triples:,} training triples are too many to memorize"
    return values, reasons


def share_of(steps: float, per_epoch: float) -> float:
    """Convert steps to epochs, to four significant digits however large an epoch is."""
    return float(f"{steps / max(1, per_epoch):.4g}")


def given_settings(path: Path | None, assignments: Sequence[str]) -> dict[str, Any]:
    """The settings of a TOML file and of ``KEY=VALUE``, by section, without the defaults.

    Raises:
        ConfigError: for an unknown key, a value out of range, or a file that is no TOML.
    """
    load_settings(path, assignments)
    values = tomllib.loads(path.read_text("utf-8")) if path else {}
    for assignment in assignments:
        override(values, assignment)
    return values


@dataclass(frozen=True)
class GivenSettings:
    """Settings that were given, in a file or one by one.

    Attributes:
        settings: with the defaults of all others.
        values: only what was given, by section.
        assignments: those given one by one, as "KEY=VALUE".
    """

    settings: Settings
    values: Mapping[str, Any]
    assignments: tuple[str, ...]
    file: Path | None

    @classmethod
    def of(cls, file: Path | None, assignments: Sequence[str]) -> GivenSettings:
        """Read them.

        Raises:
            ConfigError: for an unknown key, a value out of range, or a file that is no TOML.
        """
        settings = load_settings(file, assignments)
        return cls(settings, given_settings(file, assignments), tuple(assignments), file)

    @property
    def plain(self) -> bool:
        """Whether they say what a recipe would choose: all settings, or the objective."""
        return self.file is not None or "objective" in self.values.get("training", {})

    @property
    def max_steps(self) -> int | None:
        """The step to stop at, where that is given."""
        return self.settings.training.max_steps

    def fits(self, settings: Settings) -> bool:
        """Return whether settings agree with the given ones; the step to stop at may differ."""
        have = settings.model_dump()
        mine = self.settings.model_dump()
        return all(
            mine[section][key] == have[section][key]
            for section, values in self.values.items()
            for key in values
            if (section, key) != ("training", "max_steps")
        )


def as_assignments(settings: Mapping[str, Any] | Sequence[str]) -> list[str]:
    """Settings as "KEY=VALUE": strings stay as they are, and values of a dict that are None are left out.

    >>> as_assignments({"training.epochs": 5, "vector": {"enabled": True}})
    ['training.epochs=5', 'vector.enabled=true']
    """
    if isinstance(settings, str):
        return [settings]
    if not isinstance(settings, Mapping):
        return list(settings)
    named: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            named |= {f"{name}.{key}": part for key, part in value.items()}
        else:
            named[name] = value
    return [
        f"{name}={json.dumps(value, default=_plain, ensure_ascii=False)}"
        for name, value in named.items()
        if value is not None
    ]


def _plain(value: Any) -> Any:
    """A number of NumPy's, or a path, as JSON has it."""
    return value.item() if hasattr(value, "item") else str(value)


def settings_of(section: str, given: Sequence[str], others: bool = False) -> list[str]:
    """Return the KEY=VALUE settings that are of a section; or of others."""
    keys = [setting.partition("=")[0].strip() for setting in given]
    return [key for key in keys if key.startswith(f"{section}.") != others]


def check_end(decay: float | None, resume: bool, overwrite: bool) -> None:
    """Refuse options that do not agree on where a training begins and ends."""
    if resume and overwrite:
        raise RunError("--resume and --overwrite exclude each other")
    if decay is not None and not resume:
        raise RunError("--decay ends a training that is resumed; a new one ends after training.epochs")
