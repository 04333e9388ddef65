"""The vectors of all entities of a run, read where training read few of them.

Of a large graph they are read in parts. Each part is a file in the run's folder until all are there; after a
kill, reading continues with the next part.

Shapes: N entities, D width.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from kgmlm.core import digests, files
from kgmlm.core.errors import RunError
from kgmlm.core.progress import Watcher
from kgmlm.ranking.ranker import Ranker
from kgmlm.runs.folder import RunFolder
from kgmlm.runs.models import open_text
from kgmlm.runs.writing import replacing
from kgmlm.signals.vector import Vector, read_together

PARTS_FOLDER = "entities"  # in a run, while its entities are read
PART = 2**15  # entities


def read_entities(
    run: RunFolder,
    device: str | None = None,
    batch_size: int = 64,
    advance: Callable[[int, int], None] = lambda n, total: None,
    size: int = PART,
) -> RunFolder:
    """Read the entities of a run's model, and keep their vectors with it; nothing where that is done.

    Args:
        advance: called with (entities just read, all of them).
        size: of a part; another one reads all again.

    Returns:
        The run with the vectors.

    Raises:
        RunError: when the run has no model yet.
    """
    folder = run.path / PARTS_FOLDER
    files.refuse_link(folder)
    if run.vectors_unread:
        model = digests.sha(run.model_digests or {}, "model.safetensors", run.model_folder)
        of = {"model": model, "size": size}
        vectors = open_text(run, device).vectors
        assert vectors is not None
        parts = vectors.in_parts(folder, of, size, batch_size, advance)
        with replacing(run.path, Vector.file) as temporary:
            _join(parts, len(run.graph.entities), temporary)
        run = run.now()
    if folder.is_dir():
        shutil.rmtree(folder)
    return run


def _join(parts: Sequence[Path], count: int, path: Path) -> None:
    """Write parts as one tensor of safetensors, one part in memory at a time.

    Raises:
        RunError: when a part is damaged.
    """
    width, done = 0, 0
    with path.open("wb") as file:
        for part in parts:
            try:
                vectors_ND = np.load(part, allow_pickle=False)
                width = width or vectors_ND.shape[1]
                if vectors_ND.dtype != np.float32 or vectors_ND.shape != (len(vectors_ND), width):
                    raise ValueError("these are no vectors")
            except (OSError, ValueError, EOFError, IndexError):
                raise RunError(f"{part} is damaged; remove it, and the same command makes it again") from None
            if not done:
                file.write(files.tensors_header({"vectors": ("F32", (count, width))}))
            file.write(np.ascontiguousarray(vectors_ND).data)
            done += len(vectors_ND)
    if done != count:
        raise RunError(f"{parts[0].parent} has {done:,} of {count:,} entities; remove it to read them again")


def read_vectors(ranker: Ranker, watch: Watcher, batch_size: int = 64) -> None:
    """Read the vectors that are missing and count, each in one of the processes that share the work."""
    for vectors in ranker.counted_vectors:
        if unread := vectors.unread:
            bar = partial(watch, "reading entities", total=unread)
            read_together(vectors, batch_size, bar)
