"""The commands that make a run: ``train``, ``tune``, ``index``, and ``update``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from kgmlm.cli.common import (
    BatchSize,
    Candidates,
    ChosenOn,
    Dataset,
    Decay,
    Device,
    FolderArgument,
    Json,
    MaxSteps,
    Options,
    Precision,
    Quiet,
    SkipHeader,
    command,
    flag,
    option,
)
from kgmlm.cli.printing import print_json, tell
from kgmlm.core.errors import ConfigError, counted

TRAIN: Options = {
    "dataset": (Dataset, None),
    "model": option(
        str | None,
        None,
        "A masked LM by path or hub name; `minilm` for all-MiniLM-L6-v2, which an extra installs; `scratch` "
        "for a small BERT trained on the graph. A new run needs it, and --dataset.",
    ),
    "preset": option(
        Literal["quick", "balanced", "best", "zero-shot", "plain"] | None,
        None,
        "Stages and settings that suit the graph: quick (bi-encoder, rules, types, linked pairs; reverse "
        "scoring of small graphs), balanced (also the masked LM, KGE and trees), best (trains longer; adds "
        "reverse scoring), zero-shot (for unseen entities: no KGE and no trees; reverse scoring); plain: "
        "text by the settings as they are. By default balanced, or plain with --config or an objective.",
    ),
    "minutes": option(
        float | None,
        None,
        "Time for all stages; a few steps are timed first, and epochs chosen to fit.",
        min=0.1,
    ),
    "config": option(Path | None, None, "Settings as TOML.", read=True),
    "set_": option(
        list[str] | None, None, "KEY=VALUE: change one setting, such as training.epochs=5.", "--set"
    ),
    "max_steps": (MaxSteps, None),
    "decay": (Decay, None),
    "resume": flag("--resume", "Continue an interrupted run."),
    "overwrite": flag("--overwrite", "Replace an older run."),
    "holdout": option(
        bool,
        True,
        "Hold out a tenth of the training triples of a graph without valid.tsv, which presets choose weights "
        "on.",
        "--holdout/--no-holdout",
    ),
    "calibrate": option(
        bool, True, "End by fitting the probabilities of answers on validation.", "--calibrate/--no-calibrate"
    ),
    "onnx": option(
        bool, True, "Make the run ready for ONNX Runtime, which starts faster on a CPU.", "--onnx/--no-onnx"
    ),
    "side": option(
        Literal["both", "tail", "head"] | None,
        None,
        "Choose weights, second stages and the end of training by tail queries or head queries alone: "
        "training.side.",
    ),
    "tracker": option(str | None, None, "An accelerate tracker, such as tensorboard."),
    "skip_header": (SkipHeader, False),
}


@command(TRAIN)
def train(
    output: Annotated[Path, typer.Option(help="The run folder to write.", show_default=False)],
    quiet: Quiet = False,
    **given: Any,
) -> None:
    """Train a run: text models and other signals that rank the entities of a graph.

    Ctrl-C saves a checkpoint and stops (exit code 130, SIGTERM 143); --resume continues, to the same losses.
    """
    from kgmlm.core.progress import Bars
    from kgmlm.training.train import train as job

    given["set_"] = given["set_"] or []
    if (side := given.pop("side")) is not None:
        given["side"] = side  # a setting
    job(output=output, progress=Bars(quiet), **given)


TUNE: Options = {
    "add": option(
        list[str] | None,
        None,
        "First train a signal (kge, rules, types, biencoder, linked, mentions, similar_entities, "
        "similar_answers, unseen); reverse asks the best candidates back, which needs no training, "
        "conditional reads their names token by token, and trees ranks them by trees that LightGBM fits to "
        "validation. May be given several times.",
    ),
    "drop": option(
        list[str] | None,
        None,
        "First remove a signal, such as kge, or reverse, conditional or trees. May be given several times.",
    ),
    "source": option(
        Path | None,
        None,
        "With --add: copy it from this run of the same graph instead of training it.",
        "--from",
    ),
    "config": option(
        Path | None, None, "With --add: settings as TOML; by default those of the run.", read=True
    ),
    "set_": option(
        list[str] | None, None, "With --add: KEY=VALUE: change one setting, such as kge.epochs=30.", "--set"
    ),
    "overwrite": flag("--overwrite", "With --add: replace an older one."),
    "precision": (Precision, "fp32"),
    "batch_size": (BatchSize, 64),
}
SECOND_STAGE: Options = {
    "candidates": (Candidates, None),
    "max_triples": (ChosenOn, None),
    "device": (Device, None),
}


@command(TUNE, SECOND_STAGE)
def tune(run: FolderArgument, as_json: Json = False, quiet: Quiet = False, **given: Any) -> None:
    """Choose on validation how much each signal of a run counts, for each relation and side.

    Signals are the likelihood, entity vectors, and those that --add has trained. With --add reverse, the best
    candidates of (h, r, ?) are scored in reverse: a candidate t gains by how probable h is as the answer of
    (?, r, t). Validation chooses how many candidates are scored so, and how much that counts. With --add
    trees, trees rank the best 100 again, by the scores of all signals and by what the graph says of candidate
    and query. `rank` and `evaluate` use all of this from then on; reverse scoring costs them a query per
    candidate, and --rerank 0 leaves all second stages out.
    """
    from kgmlm.core.progress import Bars
    from kgmlm.training.tune import tune as job

    given |= {name: given[name] or [] for name in ("add", "drop", "set_")}
    figures = job(run, progress=Bars(quiet), **given)
    if as_json:
        print_json(figures)
    else:
        print_figures(figures)


def print_figures(figures: dict[str, dict[str, float]]) -> None:
    """Print the validation figures of each stage, and of its parts."""
    for stage, found in figures.items():
        parts = {
            "one weight for all": found.get("mrr_one_weight"),
            **{k: found.get(f"mrr_{k}") for k in ("likelihood", "vector", stage)},
            f"without {stage}": found.get("mrr_first", found.get("mrr_text")),
        }
        told = ", ".join(f"{name} {mrr:.4f}" for name, mrr in parts.items() if mrr is not None)
        more = f" ({told})" if told else ""
        how = f": the {found['k']} best, weight {found['weight']:g}" if "k" in found else ""
        print(
            f"{stage}: validation MRR {found['mrr']:.4f}{more}, Hits@1 {found['hits_at_1']:.4f}, "
            f"Hits@10 {found['hits_at_10']:.4f}{how}"
        )
    for stage, what in (
        ("reverse", "scored in reverse"),
        ("conditional", "read token by token"),
        ("trees", "ranked by trees"),
    ):
        if figures.get(stage, {}).get("k", 1) == 0:
            tell(f"no weight improves validation: nothing will be {what}")


@command()
def index(
    run: FolderArgument,
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Index a run's entity vectors with FAISS; `rank` and `evaluate` with --retrieve then score only a few.

    How much of the index a query visits is measured on training queries, and so is whether it is quicker than
    exact scoring.
    """
    from kgmlm.core.progress import Bars
    from kgmlm.runs.index import index as job

    record = job(run, device=device, progress=Bars(quiet))
    if as_json:
        print_json(record)
        return
    print(
        f"index of {record['entities']:,} entities: {record['bytes'] / 2**20:.1f} MiB, "
        f"{record['seconds']:.1f} s, recall@10 {record['recall_at_10']:.3f}"
    )
    tell(record["why"])
    if record["ms_a_query"] > record["exact_ms_a_query"]:
        tell("exact scoring is quicker on a graph of this size: leave --retrieve out")


UPDATE: Options = {
    "triples": option(
        Path | None,
        None,
        "New training triples: a file of head, relation and tail. A label that is neither known nor exactly "
        "a known name becomes a new entity.",
        read=True,
    ),
    "entities": option(
        Path | None,
        None,
        "New entities with their texts: a file with the columns label and name and, if you like, description "
        "and types; or an RDF file, whose triples are not read.",
        read=True,
    ),
    "remove": option(Path | None, None, "A file of training triples to remove.", read=True),
    "false": option(
        Path | None,
        None,
        "A file of triples that are known to be false: training leaves them out.",
        read=True,
    ),
    "match_names": flag(
        "--match-names",
        "Take a label that differs from a known label, name or alias by case, Unicode form, blanks or "
        "underscores alone for the same, instead of for a new one.",
    ),
    "output": option(Path | None, None, "Write the updated run here, and leave the old one as it is."),
    "batch_size": (BatchSize, 64),
    "device": (Device, None),
}


@command(UPDATE)
def update(run: FolderArgument, as_json: Json = False, quiet: Quiet = False, **given: Any) -> None:
    """Update a run to a graph that has grown: new entities and triples, in seconds.

    New entities are read, counts are made again, and graph embeddings get rows for what is new. Validation
    says whether weights and probabilities still suit, and those that do not are chosen again. Nothing is
    trained. The old run can be used until the updated one is whole.
    """
    from kgmlm.core.progress import Bars
    from kgmlm.training.update import update as job

    files: dict[str, Any] = {name: given.pop(name) or () for name in ("triples", "remove", "false")}
    if not any(files.values()) and given["entities"] is None:
        raise ConfigError(
            "nothing to do: give new --triples or --entities, or triples to --remove or that are --false"
        )
    print_update(job(run, progress=Bars(quiet), **files, **given), as_json)


def print_update(found: dict[str, Any], as_json: bool) -> None:
    """Print what an update has done."""
    if as_json:
        print_json(found)
        return
    new = [(found["entities"], "entity"), (found["relations"], "relation"), (found["added"], "triple")]
    print(f"new: {', '.join(counted(*part) for part in new)}; removed: {counted(found['removed'], 'triple')}")
    for count, what in (
        (found["known"], "in training already"),
        (found["missing"], "to remove, which training did not have"),
        (found["false"], "known to be false"),
        *((n, f"taken out of {split}") for split, n in found["moved"].items()),
    ):
        if count:
            print(f"{counted(count, 'triple')} {what}")
    if "mrr" in found:
        print(f"validation MRR of a sample: {found['mrr']:.4f} ± {found['half']:.4f}")
    if "output" in found:
        again = " and ".join(found["chosen"]) or "nothing"
        print(f"{found['output']}: {found['seconds']:.1f} s; chosen again: {again}")
