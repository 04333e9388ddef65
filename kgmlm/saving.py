"""The files of a run's model: weights, tokenizer, tokens of names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kgmlm import digests, files
from kgmlm.kg import RunError

if TYPE_CHECKING:
    from kgmlm.modeling import SpanModel
    from kgmlm.tokenization import Candidates, SpanTokenizer

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
    """What :func:`save_names` saved; None where there is no such file.

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


def save_model(model: SpanModel, tokenizer: SpanTokenizer, folder: Path) -> None:
    """Save weights and tokenizer; a full disk is an ``OSError`` whichever library met it.

    The folder has no manifest yet.
    """
    from safetensors import SafetensorError

    try:
        model.save(folder)
    except SafetensorError as error:
        raise files.disk_error(error, folder.parent) from None
    try:
        tokenizer.tokenizer.save_pretrained(folder)
    except Exception as error:  # the library raises no other
        raise files.disk_error(error, folder.parent) from None
    files.follow_umask(folder)
