"""The files of a run's model: weights, tokenizer, tokens of names, vectors of entities."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kgmlm import digests, files
from kgmlm.kg import RunError

if TYPE_CHECKING:
    from kgmlm.modeling import SpanModel
    from kgmlm.ranker import Ranker
    from kgmlm.tokenization import Candidates, SpanTokenizer


def save_names(names: Candidates, path: Path) -> None:
    """The tokens of all entities' names, cut to the run's span."""
    import torch

    arrays = {
        "tokens": names.token_ids.astype(np.int32),
        "offsets": names.offsets,
        "truncated": names.truncated_N,
    }
    files.write_tensors(path, {name: torch.from_numpy(values) for name, values in arrays.items()})


def load_names(path: Path, entities: int, span: int, tokens: int) -> Candidates | None:
    """What :func:`save_names` saved; None where a run of an older version has none.

    Args:
        entities, span, tokens: how many entities there are, and what names and token ids must be within.

    Raises:
        RunError: when the file is damaged or of another graph or model.
    """
    from safetensors.numpy import load_file

    from kgmlm.tokenization import Candidates

    if not path.is_file():
        return None
    try:
        found = load_file(path)
        ids, offsets = found["tokens"].astype(np.int64), found["offsets"].astype(np.int64)
        names = Candidates(ids, offsets, found["truncated"].astype(np.bool_))
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


def save_vectors(ranker: Ranker, path: Path) -> None:
    """Vectors of the run's own entities, in order, and the weights of likelihood and vectors."""
    mixture, vectors = ranker.mixture, ranker.vectors
    assert vectors is not None
    averages = {name: mixture.averages.get(name, 0.0) for name in ("likelihood", "vector", "structure")}
    tensors = {"vectors": vectors.all.cpu().contiguous()}
    if averages["vector"] and averages["likelihood"]:
        tensors["factors"] = mixture.tables["vector"] / averages["vector"]
    files.write_tensors(path, tensors, {name: repr(weight) for name, weight in averages.items()})


def load_vectors(ranker: Ranker, path: Path) -> None:
    """Give a ranker of the run's own graph what :func:`save_vectors` saved.

    Raises:
        RunError: when the file is damaged or of another graph or model.
    """
    import torch
    from safetensors import safe_open

    from kgmlm.mixture import Mixture

    assert ranker.vectors is not None
    names = ("likelihood", "vector")
    try:
        with safe_open(path, "pt") as opened:
            vectors = opened.get_tensor("vectors")
            factors = opened.get_tensor("factors") if "factors" in opened.keys() else None  # noqa: SIM118
            weights = {k: float(v) for k, v in opened.metadata().items() if k in names}
        if any(t is not None and t.dtype != torch.float32 for t in (vectors, factors)):
            raise ValueError("its vectors or weights are not float32")
    except Exception as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise RunError(f"{path} cannot be read: {why}") from None
    expected = (len(ranker.context.entities), ranker.reader.model.decoder[0].shape[1])
    if tuple(vectors.shape) != expected:
        raise RunError(f"{path} has vectors of shape {tuple(vectors.shape)}; the run needs {expected}")
    expected = (len(ranker.context.relations), 2)
    if factors is not None and tuple(factors.shape) != expected:
        raise RunError(f"{path} has weights of shape {tuple(factors.shape)}; the run needs {expected}")
    ranker.mixture = Mixture.even({**dict.fromkeys(names, 0.0), **weights}, len(ranker.context.relations))
    if factors is not None:
        average = ranker.mixture.averages["vector"]
        ranker.mixture = ranker.mixture.weighed("vector", average * factors, average)
    ranker.vectors.adopt(ranker.context.entities, vectors)


def save_model(model: SpanModel, tokenizer: SpanTokenizer, folder: Path) -> None:
    """Save weights and tokenizer; a full disk is an ``OSError`` whichever library met it."""
    from safetensors import SafetensorError

    try:
        model.save(folder)
    except SafetensorError as error:
        raise OSError(f"{folder.parent}: the weights cannot be written: {error}") from None
    try:
        tokenizer.tokenizer.save_pretrained(folder)
    except Exception as error:  # the library raises no other
        raise OSError(f"{folder.parent}: the tokenizer cannot be written: {error}") from None
    files.follow_umask(folder)
    digests.write_manifest(folder)
