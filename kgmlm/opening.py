"""A run's model opened: a ranker by its text, and its reranker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kgmlm import digests
from kgmlm.arrays import Device
from kgmlm.graph import ContextGraph, KnowledgeGraph
from kgmlm.kg import ModelError, RunError
from kgmlm.machine import compute_in_forks, installed
from kgmlm.onnx_model import OnnxModel
from kgmlm.ranker import Ranker
from kgmlm.records import check_files, read_record, read_settings
from kgmlm.saving import NAMES, load_names
from kgmlm.states import TextModel
from kgmlm.tokenization import SpanTokenizer
from kgmlm.tokenizer_sources import load_tokenizer
from kgmlm.vocabulary import Vocabulary
from kgmlm.watching import quiet_transformers

if TYPE_CHECKING:
    import torch

    from kgmlm.modeling import SpanModel
    from kgmlm.reranker import Reranker


ONNX = "onnx"  # instead of a device's name: read by ONNX Runtime, scored in NumPy


def device_of(name: str | None) -> torch.device:
    """The device to use; None is a GPU where there is one.

    Raises:
        RunError: when nothing can be computed there.
    """
    import torch

    try:
        torch.zeros(1, device=name).item()  # "meta" is a device that holds nothing
        return torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except (RuntimeError, AssertionError) as error:
        raise RunError(f"the device '{name}' cannot be used: {str(error).splitlines()[0]}") from None


def _loaded(folder: Path, device: Device) -> SpanModel:
    """A model of torch's on a device, without what its library says while loading."""
    if not installed("torch"):
        raise RunError(f"{folder} is opened by torch, which is not installed")
    from kgmlm.modeling import load_model

    quiet_transformers()
    model = load_model(folder)
    return model.to(device_of(device) if device is None or isinstance(device, str) else device)


def open_text(
    run: Path, folder: Path, graph: KnowledgeGraph, vocabulary: Vocabulary, device: str | None
) -> Ranker:
    """What ranks by the text alone, as its settings say, each signal as confident as in training.

    Args:
        run: the run's folder.
        folder: the model's: the run's best, or a checkpoint's.
        device: torch's, or :data:`ONNX`.

    Raises:
        RunError: when there is no model, or something is damaged or does not fit.
    """
    compute_in_forks()
    digests.check_folder(folder)
    if not (folder / "config.json").is_file():
        raise RunError(f"{run} has no trained model yet; `kgmlm train --output {run} --resume` continues")
    record = read_record(run)
    if record.get("files") and not (folder / digests.MANIFEST).is_file():
        raise RunError(f"{folder / digests.MANIFEST} is missing; {digests.RESTORE}")
    model: TextModel = OnnxModel.open(folder) if device == ONNX else _loaded(folder, device)
    tokens = vocabulary.softmax_tokens
    if tokens is not None and tokens[-1] >= len(model.decoder[0]):
        raise RunError(
            f"{run / 'run.json'} is damaged: 'softmax_tokens' has {tokens[-1]}, the model only "
            f"{len(model.decoder[0]):,} tokens; {digests.RESTORE}"
        )
    tokenizer = load_tokenizer(folder)
    ranker = Ranker.fresh(graph.context, tokenizer, model, read_settings(run), vocabulary)
    check_vocabulary(model, tokenizer, folder)
    count, span = len(graph.entities), vocabulary.span_length
    names = load_names(run / NAMES, count, span, len(tokenizer.tokenizer))
    if names is not None:
        ranker.reader.adopt_names(names)
    return ranker


def open_reranker(folder: Path, context: ContextGraph, device: Device) -> Reranker:
    """The reranker that was trained in a run folder of its own.

    Raises:
        RunError: when something of it is missing or damaged.
    """
    from kgmlm.reranker import Reranker

    check_files(folder, read_record(folder), "config.toml")
    model, tokenizer = _loaded(folder / "model", device), load_tokenizer(folder / "model")
    check_vocabulary(model, tokenizer, folder / "model")
    return Reranker(context, tokenizer, model, read_settings(folder))


def check_vocabulary(model: TextModel, tokenizer: SpanTokenizer, path: str | Path) -> None:
    """See that a model has all tokens of its tokenizer.

    Raises:
        ModelError: when it has not: reading such a token would fail midway.
    """
    largest = max(tokenizer.tokenizer.get_vocab().values())
    if largest >= model.tokens:
        raise ModelError(
            f"'{path}' does not fit together: its tokenizer has a token {largest}, its model {model.tokens}"
        )
