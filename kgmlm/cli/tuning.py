"""``kgmlm tune``: how much each signal counts, and what is trained beside a run's model."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kgmlm.cli.options import MOST, BatchSize, Device, Json, Precision, Quiet, RunArgument
from kgmlm.cli.steps import settings_of, writes_run
from kgmlm.terminal import PhaseBars, handled, print_json, progress_bar, quiet_transformers, tell

if TYPE_CHECKING:
    from kgmlm.ranker import Ranker
    from kgmlm.runs import Run
    from kgmlm.signals import Signal

RERANKER = "reranker"


@handled
@writes_run("run")
def tune(
    run: RunArgument,
    add: Annotated[
        str | None,
        typer.Option(
            help="First train a signal beside the model: kge (ComplEx, by PyKEEN).", show_default=False
        ),
    ] = None,
    drop: Annotated[
        str | None,
        typer.Option(help="First remove a signal, such as kge, or the reranker.", show_default=False),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="With --add: take it from this run of the same graph (for kge, its teacher will do) instead "
            "of training it; --add reranker takes a reranker.",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="With --add: settings as TOML; by default those of the run.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="With --add: KEY=VALUE over the settings, such as kge.epochs=30."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="With --add: replace an older one.")] = False,
    candidates: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST,
            help="Rerank so many at most; by default reranking.candidates.",
            show_default=False,
        ),
    ] = None,
    max_triples: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MOST,
            help="Choose on a seeded sample of validation; 0 is all of it. By default all, and for the "
            "reranker its training.eval_triples.",
            show_default=False,
        ),
    ] = None,
    precision: Precision = "fp32",
    batch_size: BatchSize = 64,
    device: Device = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Choose on validation how much each signal of a run counts, for each relation and side.

    Signals are the likelihood, entity vectors, and what --add has trained beside the model; then, if the run
    has a reranker, how many of the best it reads again and how much that counts. `rank` and `evaluate` go by
    it from then on.
    """
    from kgmlm import files, runs
    from kgmlm.kg import RunError

    opened = runs.open_run(run)
    files.check_writable(run / runs.MIXTURE)
    if add is None and (source or config or set_ or overwrite):
        raise RunError("--from, --config, --set and --overwrite say how to --add a signal")
    if "valid" not in opened.graph.splits:
        raise RunError(f"{run} has no validation triples to choose weights on")
    quiet_transformers()
    if drop is not None:
        _drop(opened, drop)
    if add == RERANKER:
        _take_reranker(opened, source, bool(config or set_), overwrite)
    elif add is not None:
        _add(opened, add, source, config, set_, overwrite, device, quiet)
    figures = choose(runs.open_run(run), max_triples, candidates, precision, batch_size, device, quiet)
    if as_json:
        print_json(figures)
    else:
        print_figures(figures)


def _drop(run: Run, name: str) -> None:
    """Remove a signal that is beside the model, or the reranker."""
    from kgmlm import files
    from kgmlm.kg import RunError
    from kgmlm.signals import beside

    if name == RERANKER and (run.path / name).is_dir():
        files.refuse_link(run.path / name)
        shutil.rmtree(run.path / name)
        return
    if name not in beside():
        there = ", ".join([*beside(), RERANKER])
        raise RunError(f"{run.path} has no '{name}' beside its model to drop (there may be {there})")
    run.drop_signal(name)


def _take_reranker(run: Run, source: Path | None, trains: bool, overwrite: bool) -> None:
    """Copy the reranker of another run."""
    from kgmlm import files
    from kgmlm.kg import RunError
    from kgmlm.runs import open_run
    from kgmlm.upkeep import has_reranker

    if source is None:
        raise RunError(
            f"`kgmlm rerank {run.path}` trains a reranker; --add reranker takes one --from another run"
        )
    if trains:
        raise RunError("--from trains nothing; --config and --set go without it")
    giver = open_run(source)
    if not has_reranker(giver.path):
        raise RunError(f"{giver.path} has no trained reranker; `kgmlm rerank {giver.path}` trains one")
    if not giver.graph.same(run.graph):
        raise RunError(f"{giver.path} is a run of another graph than {run.path}")
    if (run.path / RERANKER).exists() and not overwrite:
        raise RunError(f"{run.path} has a reranker already; --overwrite replaces it")
    files.refuse_link(run.path / RERANKER)
    with files.atomic_folder(run.path / RERANKER) as folder:
        shutil.copytree(giver.path / RERANKER, folder, dirs_exist_ok=True)


def _add(
    run: Run,
    name: str,
    source: Path | None,
    config: Path | None,
    set_: list[str] | None,
    overwrite: bool,
    device: str | None,
    quiet: bool,
) -> None:
    """Train a signal beside a run's model, or take it from another run, and keep it."""
    from kgmlm import files
    from kgmlm.config import load_settings
    from kgmlm.kg import RunError
    from kgmlm.opening import device_of
    from kgmlm.runs import open_run
    from kgmlm.signals import beside
    from kgmlm.starting import fit_signal

    if name not in beside():
        raise RunError(f"there is no signal '{name}' to add; there are {', '.join([*beside(), RERANKER])}")
    if source is not None and (config or set_):
        raise RunError("--from trains nothing; --config and --set go without it")
    if foreign := settings_of(name, set_, others=True):
        raise RunError(f"--add {name} goes by the settings of {name} alone, not by {foreign[0]}")
    file = run.path / beside()[name].file
    files.check_writable(file)
    if file.is_file() and not overwrite:
        raise RunError(f"{run.path} has a signal '{name}' already; --overwrite replaces it")
    settings = load_settings(config or run.path / "config.toml", set_ or [])
    made: tuple[Signal, dict[str, Any]]
    if source is not None:
        made = open_run(source).lend(name, run.graph)
    else:
        with progress_bar(quiet=quiet) as progress:
            bar = partial(PhaseBars(progress), f"training {name}")
            made = fit_signal(name, run.graph, settings, bar, device_of(device))
    run.save_signal(made[0], **made[1])


def choose(
    run: Run,
    max_triples: int | None,
    candidates: int | None,
    precision: str,
    batch_size: int,
    device: str | None,
    quiet: bool,
    only_reranking: bool = False,
) -> dict[str, dict[str, float]]:
    """Choose all weights of a run on validation, keep them, and return the figures of each stage.

    Args:
        only_reranking: the weights of signals stay as they are.
    """
    from kgmlm.chosen import Chosen
    from kgmlm.config import Protocol
    from kgmlm.provenance import command
    from kgmlm.reranker import Use
    from kgmlm.runs import open_run
    from kgmlm.tuning import choose_reranking, tune
    from kgmlm.upkeep import has_reranker

    ranker: Ranker = run.ranker(device, rerank=False) if only_reranking else run.untuned(device)
    protocol = again = Protocol(split="valid", max_triples=max_triples or 0)
    if has_reranker(run.path):
        training = open_run(run.path / RERANKER).settings.training
        few = training.eval_triples if max_triples is None else max_triples
        again = Protocol(split="valid", max_triples=few, seed=training.seed)
        ranker = ranker.but(reranking=run.reranking(Use(0, 0.0), ranker.reader.model.device))
    ranker.reduce(precision == "bf16")
    with progress_bar(quiet=quiet) as progress:
        bars = PhaseBars(progress)
        use: Use | None
        if only_reranking:
            use, found = choose_reranking(ranker, run.graph, again, bars, candidates)
            mixture, figures = ranker.mixture, {"reranking": found}
        else:
            mixture, use, figures = tune(
                ranker,
                run.graph,
                protocol,
                bars,
                reranking=again,
                candidates=candidates,
                batch_size=batch_size,
            )
    before = dict(run.chosen.by) if only_reranking else {}
    by = {"command": command(), "precision": precision, "valid": {**before.get("valid", {}), **figures}}
    run.save_chosen(Chosen(mixture, use, by=by))
    return figures


def print_figures(figures: dict[str, dict[str, float]]) -> None:
    """Print what validation says of each stage, and of what it is made of."""
    for stage, found in figures.items():
        parts = {
            "one weight for all": found.get("mrr_one_weight"),
            **{k: found.get(f"mrr_{k}") for k in ("likelihood", "vector", stage)},
            f"without {stage}": found.get("mrr_text"),
            "without reranking": found.get("mrr_first"),
        }
        told = ", ".join(f"{name} {mrr:.4f}" for name, mrr in parts.items() if mrr is not None)
        more = f" ({told})" if told else ""
        how = f": the {found['k']} best, weight {found['weight']:g}" if "k" in found else ""
        print(
            f"{stage}: validation MRR {found['mrr']:.4f}{more}, Hits@1 {found['hits_at_1']:.4f}, "
            f"Hits@10 {found['hits_at_10']:.4f}{how}"
        )
    if figures.get("reranking", {}).get("k", 1) == 0:
        tell("no weight improves validation: nothing will be reranked")
