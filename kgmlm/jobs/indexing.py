"""Index a run's entities, so that only a few are scored per query."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from kgmlm import runs
from kgmlm.jobs.writing import writes_run
from kgmlm.processes import join, shared_by
from kgmlm.run import Run, path_of
from kgmlm.watching import Advance, Watcher, quiet_transformers, watcher_of


@writes_run
def index(
    run: Run | str | Path,
    *,
    kind: Literal["likelihood", "entity"] | None = None,
    factory: str = "auto",
    dimensions: int | None = None,
    recall: float = 0.99,
    device: str | None = None,
    progress: bool | Watcher | Advance = True,
) -> dict[str, Any]:
    """Index a run's entities with FAISS; ``open_run(..., retrieve=100)`` then scores only what it finds.

    Several processes (``torchrun``) share the reading of entities and the parts of a likelihood index.

    Args:
        kind: "entity" (vectors; by default of runs that have them) or "likelihood".
        factory: a FAISS factory string such as "IVF4096,PQ64".
        dimensions: of a token in a likelihood index; 0 is all.
        recall: search as hard as this recall@10 of exact scoring takes.

    Returns:
        The record of the index: entities, bytes, seconds, recall, latency, and why it is as it is.

    Raises:
        RunError: when the run has nothing of the kind to index.
    """
    from kgmlm.indexing import build_index, check_kind, save_index

    world = join(device)
    folder = runs.open_run(path_of(run))
    default = "entity" if folder.settings.vector.enabled else "likelihood"
    chosen = check_kind(default if kind is None else kind)
    quiet_transformers()
    ranker = folder.ranker(device, rerank=False)
    with watcher_of(progress) as watch, shared_by(world):
        world.agree(folder.made_by, "weights")
        made = build_index(
            ranker,
            folder.graph,
            chosen,
            factory=factory,
            dimensions=dimensions,
            target=recall,
            advance=lambda n, total: watch("indexing", n, total),
        )
    return {"kind": chosen} | dict(world.from_main(save_index(folder, made).record if world.main else None))
