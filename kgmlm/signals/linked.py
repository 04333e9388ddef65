"""Pairs that training links: a candidate that has another triple with the query's entity already.

On FB15k-237 no validation or test triple links such a pair, on GraIL's graphs a third to a half do, and on
WN18RR it differs by relation: a property of how a graph was split. So the signal only says which pairs are
linked, and its weights, fitted on validation by relation and side, may be negative.

Half of the lead of graph networks on FB15k-237 is this pattern (arXiv 2412.05114).

Shapes: B queries, N candidates that they share, K candidates of each query's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from kgmlm.core.arrays import Floats, IntArray
from kgmlm.graphs.graph import ContextGraph, KnowledgeGraph
from kgmlm.graphs.queries import Queries, Query, distinct_triples
from kgmlm.signals.base import CountedSignal, OtherGraphError, Pool, spoken
from kgmlm.text.reader import Reader, Reading

SHOWN = 3  # triples that link a candidate, at most, in a sentence


class Linked(CountedSignal):
    """Pairs of entities that the training triples of a graph link, by any relation in either direction."""

    name: ClassVar[str] = "linked"
    title: ClassVar[str] = "linked pairs"
    about: ClassVar[str] = "whether training links the two entities already; weights may be negative"
    file: ClassVar[str] = "signals/linked.safetensors"
    signed: ClassVar[bool] = True
    transductive: ClassVar[bool] = True

    @cached_property
    def _links(self) -> sp.csr_array:
        """Numbers of training triples of pairs of entities ``(N, N)``, without self-loops."""
        count = len(self.context.entities)
        h, _, t = distinct_triples(self.context.train).T
        h, t = h[h != t], t[h != t]
        ones = np.ones(2 * len(h), np.float32)
        links = sp.coo_array((ones, (np.concatenate([h, t]), np.concatenate([t, h]))), (count, count))
        links_NN = sp.csr_array(links)
        links_NN.sum_duplicates()
        return links_NN

    @property
    def pairs(self) -> int:
        """The number of pairs that are linked."""
        return int(self._links.nnz) // 2

    def tensors(self) -> Mapping[str, npt.NDArray[Any]]:
        """The number of linked pairs; the graph says which these are."""
        return {"pairs": np.array([self.pairs], np.int64)}

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, npt.NDArray[Any]], graph: KnowledgeGraph, reader: Reader | None
    ) -> Linked:
        """See :class:`~kgmlm.signals.base.Signal`."""
        linked, (pairs,) = cls(graph.context), tensors["pairs"].tolist()
        if pairs != linked.pairs:
            raise OtherGraphError
        return linked

    def score(self, reading: Reading, pool: Pool) -> Floats:
        """1 for candidates that are linked to the query's entity, else 0, ``(B, N)`` or ``(B, K)``.

        The triple that is asked about does not count, where training has it.
        """
        if pool.own:
            return self._of_own(reading.queries, pool.filled)
        scores = self.of_all(reading.queries)
        return scores if pool.ids is None else scores[:, pool.filled]

    def of_all(self, queries: Queries) -> Floats:
        """The scores of all entities ``(B, N)``."""
        counts_BN = self._links[queries.entity_B].toarray()
        counts_BN[self.context.answers.lookup(queries)] -= 1
        linked_BN: Floats = (counts_BN > 0).astype(np.float32)
        return linked_BN

    def _of_own(self, queries: Queries, ids_BK: IntArray) -> Floats:
        """The scores of each query's own candidates, however many entities there are."""
        entity_BK = np.broadcast_to(queries.entity_B[:, None], ids_BK.shape)
        relation_BK = np.broadcast_to(queries.relation_B[:, None], ids_BK.shape)
        tail_BK = queries.tail_B[:, None]
        heads, tails = np.where(tail_BK, entity_BK, ids_BK), np.where(tail_BK, ids_BK, entity_BK)
        asked = np.stack([heads, relation_BK, tails], -1).reshape(-1, 3)
        counts = np.zeros(ids_BK.size, np.float32)
        for row, at in enumerate(np.split(np.arange(ids_BK.size), len(ids_BK)) if len(ids_BK) else ()):
            begin, end = self._links.indptr[queries.entity_B[row] : queries.entity_B[row] + 2]
            own, wanted = self._links.indices[begin:end], ids_BK.ravel()[at]
            place = np.minimum(np.searchsorted(own, wanted), max(0, len(own) - 1))
            if len(own):
                counts[at] = np.where(own[place] == wanted, self._links.data[begin:end][place], 0)
        counts -= self.context.answers.has(asked)
        return (counts > 0).astype(np.float32).reshape(ids_BK.shape)

    def because(self, context: ContextGraph, query: Query, candidate: int, weight: float) -> tuple[str, ...]:
        """The training triples that link a candidate to the query's entity, and how that counts."""
        triples = self.links(query, candidate)[:SHOWN].tolist()
        counts = "for" if weight > 0 else "against"
        if not triples or not weight:
            return ()
        return (f"already linked, which counts {counts} it: {spoken(context, triples)}",)

    def links(self, query: Query, candidate: int) -> IntArray:
        """The training triples ``(n, 3)`` that link a candidate to the query's entity, but the asked one."""
        train = self.context.train
        ends = (train[:, 0], train[:, 2])
        mask = ((ends[0] == query.entity) & (ends[1] == candidate)) | (
            (ends[0] == candidate) & (ends[1] == query.entity)
        )
        triples = distinct_triples(train[mask])
        head, tail = (query.entity, candidate) if query.target == "tail" else (candidate, query.entity)
        others: IntArray = triples[(triples != (head, query.relation, tail)).any(1)]
        return others
