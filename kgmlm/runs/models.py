"""The text model of a run, opened and saved; the tokens of its entities' names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kgmlm.core import digests, files
from kgmlm.core.errors import ModelError, RunError, quoted
from kgmlm.core.machine import compute_in_forks, installed
from kgmlm.core.progress import quiet_transformers
from kgmlm.ranking.ranker import Ranker
from kgmlm.runs.folder import RunFolder, interrupted
from kgmlm.text.onnx_model import OnnxModel
from kgmlm.text.reader import TextModel
from kgmlm.text.tokenization import Candidates, SpanTokenizer, load_tokenizer

if TYPE_CHECKING:
    from kgmlm.text.torch_model import SpanModel

ONNX = "onnx"  # instead of a device's name: read by ONNX Runtime, scored in NumPy


def device_of(name: str | None) -> str:
    """The device to use; None is a GPU where there is one.

    Raises:
        RunError: when nothing can be computed there.
    """
    import torch

    try:
        torch.zeros(1, device=name).item()  # "meta" is a device that holds nothing
    except (RuntimeError, AssertionError) as error:
        raise RunError(f"the device '{name}' cannot be used: {str(error).splitlines()[0]}") from None
    return name or ("cuda" if torch.cuda.is_available() else "cpu")


def loaded(folder: Path, device: str | None) -> SpanModel:
    """A torch model on a device, loaded without its library's messages."""
    if not installed("torch"):
        raise RunError(f"{folder} is opened by torch, which is not installed")
    from kgmlm.text.torch_model import load_model

    quiet_transformers()
    model = load_model(folder)
    return model.to(device_of(device))


def open_text(run: RunFolder, device: str | None, folder: Path | None = None) -> Ranker:
    """Open a ranker by the text alone, as a run's settings say, each signal as confident as in training.

    Args:
        device: torch's, or :data:`ONNX`.
        folder: another model of this run than its best, such as a checkpoint's.

    Raises:
        RunError: when there is no model, or something is damaged or does not fit.
    """
    compute_in_forks()
    path, folder = run.path, folder or run.model_folder
    vocabulary, settings = run.vocabulary, run.settings
    digests.check_folder(folder)
    if not (folder / "config.json").is_file():
        if files.is_unsettled(folder):
            raise interrupted(folder, path)
        raise RunError(
            f"{path} has no trained model yet; `kgmlm train --output {quoted(path)} --resume` continues"
        )
    if run.record.get("files") and not (folder / digests.MANIFEST).is_file():
        raise RunError(f"{folder / digests.MANIFEST} is missing; {digests.RESTORE}")
    model: TextModel
    if device == ONNX:  # a masked LM that was not trained is not read
        model = OnnxModel.open(folder, later=not settings.trains_text)
    else:
        model = loaded(folder, device)
    tokens = vocabulary.softmax_tokens
    if tokens is not None and tokens[-1] >= model.tokens:
        raise RunError(
            f"{path / 'run.json'} is damaged: 'softmax_tokens' has {tokens[-1]}, the model only "
            f"{model.tokens:,} tokens; {digests.RESTORE}"
        )
    tokenizer = load_tokenizer(folder)
    ranker = Ranker.initial(run.graph.context, tokenizer, model, settings, vocabulary)
    check_vocabulary(model, tokenizer, folder)
    count, span = len(run.graph.entities), vocabulary.span_length
    names = load_names(path / NAMES, count, span, len(tokenizer.tokenizer))
    if names is not None:
        ranker.reader.adopt_names(names)
    return ranker


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


NAMES = "graph/name_tokens.safetensors"


def save_names(names: Candidates, path: Path) -> None:
    """The tokens of all entities' names, cut to the run's span."""
    arrays = {
        "tokens": names.token_ids.astype(np.int32),
        "offsets": names.offsets,
        "truncated": names.truncated_N,
    }
    files.write_tensors(path, arrays)


def load_names(path: Path, entities: int, span: int, tokens: int) -> Candidates | None:
    """Load the names that :func:`save_names` saved; None where there is no such file.

    Args:
        entities, span, tokens: how many entities there are, and what names and token ids must be within.

    Raises:
        RunError: when the file is damaged or of another graph or model.
    """
    from safetensors.numpy import load_file

    if not path.is_file():
        return None
    try:
        tensors = load_file(path)
        ids, offsets = tensors["tokens"].astype(np.int64), tensors["offsets"].astype(np.int64)
        names = Candidates(ids, offsets, tensors["truncated"].astype(np.bool_))
    except Exception as error:
        raise RunError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    lengths = names.lengths_N
    whole = (
        (len(offsets), len(names.truncated_N)) == (entities + 1, entities)
        and (offsets[0], offsets[-1]) == (0, len(ids))
        and (entities == 0 or (lengths.min() >= 1 and lengths.max() <= span))
        and (not len(ids) or (ids.min() >= 0 and ids.max() < tokens))
    )
    if not whole:
        raise RunError(f"{path} is damaged, or of another graph or model; {digests.RESTORE}")
    return names


def save_model_files(model: TextModel, tokenizer: SpanTokenizer, folder: Path) -> None:
    """Save weights and tokenizer; a full disk is an ``OSError`` whichever library met it.

    The folder has no manifest yet.
    """
    from safetensors import SafetensorError

    from kgmlm.text.torch_model import span_model

    try:
        span_model(model).save(folder)
    except SafetensorError as error:
        raise files.disk_error(error, folder.parent) from None
    try:
        tokenizer.tokenizer.save_pretrained(folder)
    except Exception as error:  # the library raises no other
        raise files.disk_error(error, folder.parent) from None
    files.follow_umask(folder)
