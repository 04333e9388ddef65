"""A run's model opened: a ranker by its text, and its reranker."""

from __future__ import annotations

from pathlib import Path

import torch

from kgmlm import digests
from kgmlm.graph import ContextGraph, KnowledgeGraph
from kgmlm.kg import RunError
from kgmlm.modeling import check_vocabulary, load_model
from kgmlm.ranker import Ranker
from kgmlm.records import check_files, read_record, read_settings
from kgmlm.reranker import Reranker
from kgmlm.saving import NAMES, load_names
from kgmlm.tokenizer_sources import load_tokenizer
from kgmlm.vocabulary import Vocabulary


def device_of(name: str | None) -> torch.device:
    """The device to use; None is a GPU where there is one.

    Raises:
        RunError: when nothing can be computed there.
    """
    try:
        torch.zeros(1, device=name).item()  # "meta" is a device that holds nothing
        return torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except (RuntimeError, AssertionError) as error:
        raise RunError(f"the device '{name}' cannot be used: {str(error).splitlines()[0]}") from None


def open_text(
    run: Path, folder: Path, graph: KnowledgeGraph, vocabulary: Vocabulary, device: str | None
) -> Ranker:
    """What ranks by the text alone, as its settings say, each signal as confident as in training.

    Args:
        run: the run's folder.
        folder: the model's: the run's best, or a checkpoint's.

    Raises:
        RunError: when there is no model, or something is damaged or does not fit.
    """
    digests.check_folder(folder)
    if not (folder / "config.json").is_file():
        raise RunError(f"{run} has no trained model yet; `kgmlm train --output {run} --resume` continues")
    record = read_record(run)
    if record.get("files") and not (folder / digests.MANIFEST).is_file():
        raise RunError(f"{folder / digests.MANIFEST} is missing; {digests.RESTORE}")
    model = load_model(folder)
    tokens = vocabulary.softmax_tokens
    if tokens is not None and tokens[-1] >= len(model.decoder[0]):
        raise RunError(
            f"{run / 'run.json'} is damaged: 'softmax_tokens' has {tokens[-1]}, the model only "
            f"{len(model.decoder[0]):,} tokens; {digests.RESTORE}"
        )
    model.to(device_of(device))
    tokenizer = load_tokenizer(folder)
    ranker = Ranker.fresh(graph.context, tokenizer, model, read_settings(run), vocabulary)
    check_vocabulary(model, tokenizer, folder)
    count, span = len(graph.entities), vocabulary.span_length
    names = load_names(run / NAMES, count, span, len(tokenizer.tokenizer))
    if names is not None:
        ranker.reader.adopt_names(names)
    return ranker


def open_reranker(folder: Path, context: ContextGraph, device: torch.device) -> Reranker:
    """The reranker that was trained in a run folder of its own.

    Raises:
        RunError: when something of it is missing or damaged.
    """
    check_files(folder, read_record(folder), "config.toml")
    model, tokenizer = load_model(folder / "model"), load_tokenizer(folder / "model")
    check_vocabulary(model, tokenizer, folder / "model")
    return Reranker(context, tokenizer, model.to(device), read_settings(folder))
