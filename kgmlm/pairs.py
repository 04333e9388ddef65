"""Names as bags of (position, token) pairs, in the table that all candidates are scored by.

Shapes: N candidates, P distinct (position, token) pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np

from kgmlm.arrays import Array, Device, like, numpy
from kgmlm.arrays import at as on
from kgmlm.tokenization import Candidates

Normalization = Literal["mean", "sum"]


@dataclass(frozen=True)
class PairTable:
    """Candidates as bags of rows of a table of distinct (position, token) pairs, sorted by position.

    Attributes:
        tokens_P: token of each pair.
        starts: pairs of position i are ``starts[i]:starts[i + 1]``.
        pairs: pair of each token of each candidate, flat.
        offsets: candidate n owns ``pairs[offsets[n]:offsets[n + 1]]``.
    """

    tokens_P: Array
    starts: tuple[int, ...]
    pairs: Array
    offsets: Array

    @classmethod
    def of(cls, candidates: Candidates, device: Device = "cpu") -> PairTable:
        """Find the distinct pairs of a candidate table: by marking them, which is cheaper than sorting.

        Args:
            device: where the table is; None is NumPy.
        """
        token_ids = candidates.token_ids
        lengths = candidates.lengths_N
        span, base = (int(x.max(initial=-1)) + 1 for x in (lengths - 1, token_ids))
        keys = np.arange(len(token_ids), dtype=np.int32) - np.repeat(
            candidates.offsets[:-1].astype(np.int32), lengths
        )
        keys *= base
        keys += token_ids.astype(np.int32)
        used = np.zeros(span * base, np.bool_)
        used[keys] = True
        distinct = np.flatnonzero(used)
        row_of = np.cumsum(used, dtype=np.int32) - 1
        starts = np.searchsorted(distinct, np.arange(span + 1) * base)
        return cls(
            on(device, distinct % max(base, 1)),
            tuple(starts.tolist()),
            on(device, row_of[keys]),
            on(device, candidates.offsets.astype(np.int32)),
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def columns(self) -> tuple[list[tuple[Array, ...]], Array]:
        """The same by length: for names of 0, 1, 2, ... tokens the pairs at each position, and the place of
        each candidate among the names so grouped.
        """
        offsets, pairs = numpy(self.offsets), numpy(self.pairs)
        lengths = np.diff(offsets)
        order = np.argsort(lengths, kind="stable")
        places = np.empty(len(order), np.int32)
        places[order] = np.arange(len(order), dtype=np.int32)
        groups = []
        bounds = np.searchsorted(lengths[order], np.arange(lengths.max(initial=0) + 2))
        for length, (start, end) in enumerate(pairwise(bounds.tolist())):
            firsts = offsets[order[start:end]]
            groups.append(tuple(like(pairs[firsts + i], self.pairs) for i in range(length)))
        return groups, like(places, self.pairs)
