"""The commands that make a run: ``train``, ``tune``, ``index``, and ``update``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kgmlm.cli.common import FolderArgument, Json, Quiet, command
from kgmlm.cli.printing import print_json, tell
from kgmlm.core.errors import ConfigError, counted
from kgmlm.runs.options import IndexOptions
from kgmlm.training.options import TrainOptions, TuneOptions, UpdateOptions


@command(TrainOptions)
def train(
    output: Annotated[Path, typer.Option(help="The run folder to write.", show_default=False)],
    quiet: Quiet = False,
    **given: Any,
) -> None:
    """Train a run: text models and other signals that rank the entities of a graph.

    Ctrl-C saves a checkpoint and stops (exit code 130, SIGTERM 143); --resume continues with the same losses.
    """
    from kgmlm.core.progress import Bars
    from kgmlm.training.train import train as job

    job(output=output, progress=Bars(quiet), **given)


@command(TuneOptions)
def tune(run: FolderArgument, as_json: Json = False, quiet: Quiet = False, **given: Any) -> None:
    """Choose on validation how much each signal of a run counts, for each relation and side.

    Signals are the likelihood, entity vectors, and those trained by --add. With --add reverse, the best
    candidates of (h, r, ?) are scored in reverse: a candidate t gains by how probable h is as the answer to
    (?, r, t). Validation chooses how many candidates are scored this way, and how much it counts. With --add
    trees, trees rank the best 100 again, using the scores of all signals and what the graph says about
    candidate and query. `rank` and `evaluate` use all of this from then on; reverse scoring costs them a
    query per candidate, and --rerank 0 turns off all second stages.
    """
    from kgmlm.core.progress import Bars
    from kgmlm.training.tune import tune as job

    figures = job(run, progress=Bars(quiet), **given)
    if as_json:
        print_json(figures)
    else:
        print_figures(figures)


def print_figures(figures: dict[str, dict[str, float]]) -> None:
    """Print the validation figures of each stage, and of its parts."""
    for stage, of_stage in figures.items():
        parts = {
            "one weight for all": of_stage.get("mrr_one_weight"),
            **{k: of_stage.get(f"mrr_{k}") for k in ("likelihood", "vector", stage)},
            f"without {stage}": of_stage.get("mrr_first", of_stage.get("mrr_text")),
        }
        listed = ", ".join(f"{name} {mrr:.4f}" for name, mrr in parts.items() if mrr is not None)
        more = f" ({listed})" if listed else ""
        how = f": the {of_stage['k']} best, weight {of_stage['weight']:g}" if "k" in of_stage else ""
        print(
            f"{stage}: validation MRR {of_stage['mrr']:.4f}{more}, Hits@1 {of_stage['hits_at_1']:.4f}, "
            f"Hits@10 {of_stage['hits_at_10']:.4f}{how}"
        )
    for stage, what in (
        ("reverse", "scored in reverse"),
        ("trees", "ranked by trees"),
    ):
        if figures.get(stage, {}).get("k", 1) == 0:
            tell(f"no weight improves validation: nothing will be {what}")


@command(IndexOptions)
def index(run: FolderArgument, as_json: Json = False, quiet: Quiet = False, **given: Any) -> None:
    """Index a run's entity vectors with FAISS; `rank` and `evaluate` with --retrieve then score only a few.

    Training queries decide how much of the index a query visits, and show whether that is faster than exact
    scoring.
    """
    from kgmlm.core.progress import Bars
    from kgmlm.runs.index import index as job

    record = job(run, progress=Bars(quiet), **given)
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


@command(UpdateOptions)
def update(run: FolderArgument, as_json: Json = False, quiet: Quiet = False, **given: Any) -> None:
    """Update a run to a graph that has grown: new entities and triples, in seconds.

    New entities are read, counts are made again, and graph embeddings get rows for what is new. Validation
    shows whether weights and probabilities still fit; those that do not are chosen again. Nothing is
    trained. The old run can be used until the updated one is complete.
    """
    from kgmlm.core.progress import Bars
    from kgmlm.training.update import update as job

    if given["entities"] is None and not any(given[name] for name in ("triples", "remove", "false")):
        raise ConfigError(
            "nothing to do: give --triples or --entities to add, or triples for --remove or --false"
        )
    print_update(job(run, progress=Bars(quiet), **given), as_json)


def print_update(update: dict[str, Any], as_json: bool) -> None:
    """Print what an update has done."""
    if as_json:
        print_json(update)
        return
    new = [(update["entities"], "entity"), (update["relations"], "relation"), (update["added"], "triple")]
    print(
        f"new: {', '.join(counted(*part) for part in new)}; removed: {counted(update['removed'], 'triple')}"
    )
    for count, what in (
        (update["known"], "in training already"),
        (update["missing"], "to remove, which training did not have"),
        (update["false"], "known to be false"),
        *((n, f"taken out of {split}") for split, n in update["moved"].items()),
    ):
        if count:
            print(f"{counted(count, 'triple')} {what}")
    if "mrr" in update:
        print(f"validation MRR of a sample: {update['mrr']:.4f} ± {update['half']:.4f}")
    if "output" in update:
        again = " and ".join(update["chosen"]) or "nothing"
        print(f"{update['output']}: {update['seconds']:.1f} s; chosen again: {again}")
