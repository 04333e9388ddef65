"""Entities' vectors read by all processes that share the work: each entity by one of them, known to all."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from kgmlm.arrays import numpy
from kgmlm.kg import IntArray
from kgmlm.processes import sharing
from kgmlm.reader import EntityVectors

ROUND = 2**14  # entities that a process reads before all gather what they have read


def read_together(
    vectors: EntityVectors,
    batch_size: int = 64,
    advance: Callable[[int], None] = lambda n: None,
    ids: IntArray | None = None,
) -> None:
    """As :meth:`EntityVectors.read`; where the work is shared, each process reads its share.

    Args:
        advance: called with the number of entities done, by whichever process.
        ids: which entities, all different; None is all.
    """
    world = sharing()
    if world.size == 1:
        vectors.read(batch_size, advance, ids)
        return
    missing = vectors.missing(ids)
    world.agree(sha256(missing.data).hexdigest(), "entities")
    for start in range(0, len(missing), world.size * ROUND):
        part = missing[start : start + world.size * ROUND]
        mine = part[world.rank :: world.size]
        vectors.read(batch_size, advance, mine)
        known = numpy(vectors.of(mine))
        for rank, (others, read) in enumerate(world.gathered((mine, known))):
            if rank != world.rank:
                vectors.put(others, read)
        advance(len(part) - len(mine))
