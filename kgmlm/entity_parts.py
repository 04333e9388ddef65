"""The entities of a run's model read in parts, for graphs so large that training reads few of them.

Each part is a file in the run's folder until all are there; after a kill, reading goes on with the next part.

Shapes: N entities, D width.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from kgmlm import digests, files
from kgmlm.arrays import numpy
from kgmlm.kg import RunError
from kgmlm.runs import RunFolder, unread
from kgmlm.signals.vector import Vector

FOLDER = "entities"  # in a run, while its entities are read
PART = 2**15  # entities


def read_entities(
    run: RunFolder,
    device: str | None = None,
    batch_size: int = 64,
    advance: Callable[[int, int], None] = lambda n, total: None,
    size: int = PART,
) -> None:
    """Read the entities of a run's model, and keep their vectors with it; nothing where that is done.

    Args:
        advance: called with (entities just read, all of them).
        size: of a part; another one reads all again.

    Raises:
        RunError: when the run has no model yet.
    """
    folder = run.path / FOLDER
    files.refuse_link(folder)
    if unread(run):
        parts = _parts(run, folder, size, device, batch_size, advance)
        file = run.path / Vector.file
        keep = partial(digests.write_manifest, run.model_folder)
        with digests.replacing(file, digests.read_manifest(run.model_folder), keep) as temporary:
            _join(parts, len(run.graph.entities), temporary)
    if folder.is_dir():
        shutil.rmtree(folder)


def _parts(
    run: RunFolder,
    folder: Path,
    size: int,
    device: str | None,
    batch_size: int,
    advance: Callable[[int, int], None],
) -> list[Path]:
    """All parts, in order; those that are missing are made."""
    about = folder / "about.json"
    known = digests.read_manifest(run.model_folder) or {}
    of = {"model": digests.sha(known, "model.safetensors", run.model_folder), "size": size}
    if folder.is_dir() and _read(about) != of:
        shutil.rmtree(folder)  # of another model
    folder.mkdir(exist_ok=True)
    files.write_json(about, of)
    vectors = run.text_ranker(device).vectors
    assert vectors is not None
    count, found = len(run.graph.entities), []
    for start in range(0, count, size):
        ids = np.arange(start, min(start + size, count))
        path = folder / f"part-{start // size:06}.npy"
        if not path.is_file():
            vectors.read(batch_size, lambda n: advance(n, count), ids)
            with files.atomic_file(path) as temporary, temporary.open("wb") as file:
                np.save(file, numpy(vectors.of(ids)))
            vectors.forget()
        else:
            advance(len(ids), count)
        found.append(path)
    return found


def _read(path: Path) -> object:
    try:
        return files.parse_json(path.read_bytes())
    except (OSError, ValueError):
        return None


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
