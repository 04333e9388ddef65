"""What the processes of a training have each read, together in all of them, with gradients.

Shapes: E rows of all processes, of which process r of W has those at r, r + W, r + 2 W, ...; D their width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed


def interleaved(mine_SD: torch.Tensor, share: tuple[int, int], count: int) -> torch.Tensor:
    """The rows ``(E, D)`` of all processes, of which this one has read some; all must call it.

    A row's gradient is the sum of those that it has in all processes, and goes to the one that has read it.

    Args:
        mine_SD: rows of this process; those beyond its own, which it has read for nothing, are left out.
        share: (rank, world size) of this process.
        count: E.
    """
    if share[1] == 1:
        return mine_SD
    found: torch.Tensor = _Interleaved.apply(mine_SD, *share, count)  # type: ignore[no-untyped-call]
    return found


class _Interleaved(torch.autograd.Function):
    """The exchange; in float32, which every backend knows how to add."""

    @staticmethod
    def forward(ctx: Any, mine_SD: torch.Tensor, rank: int, world: int, count: int) -> torch.Tensor:
        sizes = [len(range(r, count, world)) for r in range(world)]
        padded = mine_SD.new_zeros(max(sizes), mine_SD.shape[1], dtype=torch.float32)
        padded[: sizes[rank]] = mine_SD[: sizes[rank]]
        parts = [torch.empty_like(padded) for _ in sizes]
        distributed.all_gather(parts, padded)
        found_ED = padded.new_empty(count, padded.shape[1])
        for r, (part, size) in enumerate(zip(parts, sizes, strict=True)):
            found_ED[r::world] = part[:size]
        ctx.rank, ctx.world, ctx.size = rank, world, sizes[rank]
        ctx.kind, ctx.shape = mine_SD.dtype, mine_SD.shape
        return found_ED.to(mine_SD.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        whole_ED = gradients[0].float().contiguous().clone()
        distributed.all_reduce(whole_ED)
        mine_SD = whole_ED.new_zeros(ctx.shape)
        mine_SD[: ctx.size] = whole_ED[ctx.rank :: ctx.world]
        return mine_SD.to(ctx.kind), None, None, None
