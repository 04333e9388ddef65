"""Index a run's entities, so that only a few are scored per query."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kgmlm import runs
from kgmlm.jobs.writing import writes_run
from kgmlm.kg import RunError
from kgmlm.processes import join, shared_by
from kgmlm.run import Run, path_of
from kgmlm.watching import Advance, Watcher, quiet_transformers, watcher_of


@writes_run
def index(
    run: Run | str | Path,
    *,
    factory: str = "auto",
    recall: float = 0.99,
    device: str | None = None,
    progress: bool | Watcher | Advance = True,
) -> dict[str, Any]:
    """Index a run's entity vectors; ``open_run(..., retrieve=100)`` then scores only what the index finds.

    Several processes (``torchrun``) share the reading of entities.

    Args:
        factory: a FAISS factory string such as "IVF4096,PQ64".
        recall: search as hard as this recall@10 of exact scoring takes.

    Returns:
        The record of the index: entities, bytes, seconds, recall, latency, and why it is as it is.

    Raises:
        RunError: when the run has no entity vectors.
    """
    from kgmlm.indexing import NO_VECTORS, build_index, save_index

    world = join(device)
    folder = runs.open_run(path_of(run))
    if not folder.settings.vector.enabled:
        raise RunError(f"{folder.path}: {NO_VECTORS}")
    quiet_transformers()
    ranker = folder.ranker(device, rerank=False)
    with watcher_of(progress) as watch, shared_by(world):
        world.agree(folder.made_by, "weights")
        made = build_index(
            ranker,
            folder.graph,
            factory=factory,
            target=recall,
            advance=lambda n, total: watch("indexing", n, total),
        )
    return dict(world.from_main(save_index(folder, made).record if world.main else None))
