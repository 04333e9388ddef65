"""The options of making a run and of changing one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kgmlm.core.options import Options, ProgressOptions, about, option
from kgmlm.graphs.options import HeaderOptions, dataset_names
from kgmlm.runs.options import BatchOptions, DeviceOptions, PrecisionOptions

if TYPE_CHECKING:
    import pandas as pd

    from kgmlm.graphs.entities import EntityTable
    from kgmlm.graphs.given import Triples
    from kgmlm.graphs.graph import Dataset
    from kgmlm.runs.run import Run

Preset = Literal["quick", "balanced", "best", "zero-shot", "plain"]
Side = Literal["both", "tail", "head"]


@dataclass(frozen=True, kw_only=True)
class SettingsOptions(Options):
    """Settings, in a file or one by one."""

    config: str | Path | None = option(None, "Settings as TOML.", command=Path, is_input=True)
    settings: Mapping[str, Any] | Sequence[str] = option(
        (),
        "KEY=VALUE: change one setting, such as training.epochs=5; may be given again.",
        "--set",
        command=list[str],
        python='Or a dict, by section, {"training": {"epochs": 5}}, or by name, {"training.epochs": 5}.',
    )


@dataclass(frozen=True, kw_only=True)
class CacheOptions(Options):
    """The cache of vectors of texts."""

    cache: bool = option(
        True,
        "Take vectors of texts that another run has read from the cache, and keep there those that are read.",
    )


@dataclass(frozen=True, kw_only=True)
class TrainOptions(SettingsOptions, HeaderOptions, CacheOptions, ProgressOptions):
    """Options of :func:`kgmlm.train`."""

    dataset: Dataset | None = field(
        default=None,
        kw_only=False,
        metadata=about(
            "A built-in dataset, or a folder with train.tsv.",
            python="Or triples in memory (kgmlm.load_graph).",
            command=str,
            choices=dataset_names,
        ),
    )
    model: str | Path | None = field(
        default=None,
        kw_only=False,
        metadata=about(
            "A masked LM by path or hub name; `minilm` for all-MiniLM-L6-v2, which an extra installs; "
            "`scratch` for a small BERT trained on the graph. A new run needs --model and --dataset.",
            command=str,
        ),
    )
    output: str | Path | None = field(
        default=None, kw_only=False, metadata=about("The run folder to write.", command=Path)
    )
    preset: Preset | None = option(
        None,
        "Stages and settings that suit the graph: quick (bi-encoder, rules, types, linked pairs; reverse "
        "scoring on small graphs), balanced (also the masked LM, KGE and trees), best (trains longer; adds "
        "reverse scoring), zero-shot (for unseen entities: no KGE and no trees; reverse scoring); plain: "
        "text only, with settings as given. By default balanced, or plain with --config or an objective.",
    )
    minutes: float | None = option(
        None,
        "Time for all stages together; a few steps are timed first, and epochs chosen to fit. Stages that "
        "would not fit are left out.",
        above=0,
        at_most=1e6,
    )
    max_steps: int | None = option(
        None,
        "Stop each stage after this many steps, as for a smoke test; the learning rate still follows all "
        "epochs.",
        at_least=1,
    )
    decay: float | None = option(
        None,
        "With --resume: end the training after this many more epochs, in which the learning rate falls to 0 "
        "(see training.schedule). Copy the run's folder first if you may train on from here.",
        at_least=0,
        at_most=1e6,
    )
    resume: bool = option(False, "Continue an interrupted run, with the losses of an unbroken one.")
    overwrite: bool = option(False, "Replace an older run.")
    holdout: bool = option(
        True,
        "If there is no valid.tsv, hold out a tenth of the training triples, on which presets choose "
        "weights.",
    )
    calibrate: bool = option(True, "End by fitting the probabilities of answers on validation.")
    onnx: bool = option(True, "Make the run ready for ONNX Runtime, which starts faster on a CPU.")
    side: Side | None = option(
        None,
        "Choose weights, second stages and the end of training by tail queries or head queries alone (sets "
        "training.side).",
    )
    tracker: str | None = option(None, "An accelerate tracker, such as tensorboard.")


@dataclass(frozen=True, kw_only=True)
class TuneOptions(
    SettingsOptions, PrecisionOptions, BatchOptions, DeviceOptions, CacheOptions, ProgressOptions
):
    """Options of :func:`kgmlm.tune`."""

    add: str | Sequence[str] = option(
        (),
        "First train a signal (kge, rules, types, biencoder, linked, mentions, similar_entities, "
        "similar_answers, unseen). Or add a second stage: reverse scores the best candidates in reverse, "
        "which needs no training, and trees ranks them with trees that LightGBM fits to validation. May be "
        "given several times.",
        command=list[str],
    )
    drop: str | Sequence[str] = option(
        (),
        "First remove a signal, such as kge, or reverse or trees. May be given several times.",
        command=list[str],
    )
    source: Run | str | Path | None = option(
        None,
        "With --add: copy the signal from this run of the same graph instead of training it.",
        "--from",
        command=Path,
    )
    overwrite: bool = option(False, "With --add: replace the signal if the run has it already.")
    candidates: int | None = option(
        None,
        "How many candidates second stages score at most; by default reverse.candidates, or 100 for trees.",
        at_least=1,
    )
    max_triples: int | None = option(
        None,
        "How many validation triples to use, a seeded sample; 0 is all. By default all, but "
        "training.eval_triples for reverse scoring.",
        at_least=0,
    )


@dataclass(frozen=True, kw_only=True)
class FeedbackOptions(DeviceOptions, ProgressOptions):
    """Options of :func:`kgmlm.apply_feedback`."""

    output: str | Path | None = option(
        None, "Write the updated run here, and leave the old one as it is.", command=Path
    )


@dataclass(frozen=True, kw_only=True)
class UpdateOptions(FeedbackOptions):
    """Options of :func:`kgmlm.update`."""

    triples: Triples | str | Path = field(
        default=(),
        kw_only=False,
        metadata=about(
            "New training triples: head, relation and tail. A label that is neither "
            "known nor exactly a known name becomes a new entity or relation. A column named label can mark "
            "triples as true (1) or false (-1 or 0).",
            command=Path,
            is_input=True,
        ),
    )
    entities: EntityTable | pd.DataFrame | str | Path | None = option(
        None,
        "New entities with their texts: a table with the columns label and name and, if you like, "
        "description and types; or an RDF file, whose triples are not read.",
        command=Path,
        is_input=True,
    )
    remove: Triples | str | Path = option(
        (), "Training triples to remove; their entities stay candidates.", command=Path, is_input=True
    )
    false: Triples | str | Path = option(
        (),
        "Triples that are known to be false: they leave training, and are never ranked or listed.",
        command=Path,
        is_input=True,
    )
    match_names: bool = option(
        False,
        "Treat a label that differs from a known label, name or alias only by case, Unicode form, spaces or "
        "underscores as that one, not as a new one.",
    )
