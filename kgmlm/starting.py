"""How training begins: a new run is laid, or an interrupted one is opened."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from kgmlm import digests
from kgmlm.checkpoints import latest_checkpoint
from kgmlm.config import Settings
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import ConfigError, RunError
from kgmlm.machine import only_cpu
from kgmlm.modeling import create_model, load_model
from kgmlm.objectives import stream_of
from kgmlm.opening import check_vocabulary
from kgmlm.packs import find_pack
from kgmlm.provenance import command, hardware, model_address, versions
from kgmlm.ranker import Ranker
from kgmlm.recipes import Recipe
from kgmlm.runs import RunFolder, create_run, open_run
from kgmlm.signals import beside
from kgmlm.tokenization import SpanTokenizer
from kgmlm.tokenizer_sources import load_tokenizer, train_tokenizer
from kgmlm.upkeep import ENDED, check_output
from kgmlm.vocabulary import Vocabulary, of_each_relation, scratch_texts


def fit_signal(
    name: str,
    graph: KnowledgeGraph,
    settings: Settings,
    advance: Callable[[int, int], None] = lambda n, total: None,
    device: torch.device | None = None,
    kept: Path | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Train a signal that is beside the text model, and say how for the record.

    Args:
        name: of the signal; its settings are the section of that name.
        advance: called with (steps that were just done, all steps).
        kept: a file for the state of training that is interrupted, and continued by the next call.
    """
    started = time.monotonic()
    own = getattr(settings, name, None)
    signal = beside()[name].fit(graph, own, advance, device, kept)
    return signal, {
        "settings": None if own is None else own.model_dump(mode="json"),
        "minutes": round((time.monotonic() - started) / 60, 2),
        "versions": versions(),
        "hardware": hardware(),
        "command": command(),
    }


def start_run(
    path: Path,
    graph: KnowledgeGraph,
    model_name: str,
    settings: Settings,
    *,
    overwrite: bool = False,
    recipe: Recipe | None = None,
) -> tuple[RunFolder, Ranker]:
    """Load or create the model, fix the vocabulary on the training entities, lay the run folder.

    Args:
        model_name: "scratch", a Hugging Face name, or a folder.
        recipe: what ``settings`` are from, for the record.

    Of several processes (``accelerate launch``) the main one lays the folder and the others open it.

    Raises:
        ConfigError: when there are too few batches.
        ModelError: when the model cannot be used.
        ModelError: when a query does not fit ``text.max_length``, too.
        RunError: when the folder is in the way.
    """
    from accelerate import PartialState

    _check_residuals(graph, settings)

    processes = PartialState(cpu=only_cpu(), timeout=timedelta(days=1))
    if processes.is_main_process:
        check_output(path, overwrite)
    model_name = model_address(model_name)
    ranker = _untrained(graph, model_name, settings)
    reader = ranker.reader
    share = (processes.process_index, processes.num_processes)
    # What cannot fit is said before anything is written.
    stream_of(ranker, graph, settings.training, share).check(of_each_relation(graph))
    if processes.is_main_process:
        create_run(
            path,
            graph,
            settings,
            model_name,
            reader.vocabulary,
            names=reader.names,
            overwrite=overwrite,
            recipe=recipe.as_record() if recipe else None,
            notes=recipe.notes() if recipe else (),
        )
    processes.wait_for_everyone()
    # Trained is on the files that were just written: the graph as it was read need not stay in memory.
    run = open_run(path)
    ranker = Ranker.fresh(run.graph.context, reader.tokenizer, reader.model, settings, reader.vocabulary)
    ranker.reader.adopt_names(reader.names)
    return run, ranker


def _untrained(graph: KnowledgeGraph, model_name: str, settings: Settings) -> Ranker:
    """The text model before its first step.

    Raises:
        ModelError: when it cannot be used.
    """
    seed = settings.training.seed
    if model_name == "scratch":
        texts = scratch_texts(graph, settings.text)
        tokenizer = SpanTokenizer(train_tokenizer(texts, settings.scratch.vocabulary))
        model = create_model(
            len(tokenizer.tokenizer),
            tokenizer.pad_id,
            settings.scratch,
            settings.text.max_length,
            seed,
            spare=settings.reranking.max_length,
        )
    else:
        model, tokenizer = load_model(model_name, seed), load_tokenizer(model_name)
        check_vocabulary(model, tokenizer, model_name)
    names = tokenizer.candidates(graph.entities.table.column("surface"), None, settings.scoring.end_of_name)
    vocabulary = Vocabulary.fit(names, graph.seen_N, settings)
    ranker = Ranker.fresh(graph.context, tokenizer, model, settings, vocabulary)
    ranker.reader.adopt_names(names.cut(vocabulary.span_length))
    return ranker


def _check_residuals(graph: KnowledgeGraph, settings: Settings) -> None:
    """Refuse residuals where training does not read all entities: a model is saved without their vectors.

    Raises:
        ConfigError: saying what to set.
    """
    few = settings.training.validated(len(graph.entities))
    if few and settings.vector.enabled and settings.vector.residual_rate:
        raise ConfigError(
            f"vector.residual_rate needs validation to read all {len(graph.entities):,} entities, but it "
            f"reads {few:,}; set it to 0, or training.eval_candidates to 0"
        )


def resume_run(path: Path, device: str | None = None) -> tuple[RunFolder, Ranker]:
    """Open an interrupted run at its newest checkpoint; one that was killed before the first begins again.

    Args:
        device: as :func:`kgmlm.training.train` has it.

    Raises:
        RunError: when it is no run, has ended, or is damaged.
        ModelError: when the model that it began with is gone.
    """
    run = open_run(path)
    if find_pack(path) is not None:
        raise RunError(
            f"{path} is a pack, which is not trained; `kgmlm unpack {path} --output RUN` makes a run"
        )
    if run.record["status"] in ENDED:
        raise RunError(f"{path} has {run.record['status']} already; there is nothing to resume")
    checkpoint = latest_checkpoint(path)
    if checkpoint is None:
        return run, _untrained(run.graph, str(run.record["model"]), run.settings)
    if not (checkpoint / "model" / "config.json").is_file():
        raise RunError(f"{checkpoint} is damaged; start the run again with --overwrite")
    digests.check_folder(checkpoint, contents=True)
    return run, run.text_ranker(device, checkpoint / "model")
