"""The objective "rerank": a query and its candidates read together, the true answer against wrong ones.

Shapes: B queries, K candidates of each in a first stage, S of its entities, P pairs, C candidates of a query.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from kgmlm.core.arrays import FloatArray, IntArray
from kgmlm.core.errors import ConfigError
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.second_stage import Reranker, best_of
from kgmlm.text.reader import SpanOutput
from kgmlm.text.tokenization import Encoded, MaskedBatch
from kgmlm.training.objectives.streams import Objective, QueryStream, Stateless, Task


@dataclass(frozen=True)
class PairBatch:
    """A micro-batch of the objective "rerank": of each of B queries a true answer and some wrong ones.

    Attributes:
        pairs: P texts, query by query, the true answer first.
        counts_B: candidates of each query.
    """

    pairs: MaskedBatch
    counts_B: IntArray


class RerankingStream(QueryStream[list[Encoded], PairBatch]):
    """Micro-batches of pairs, of the objective "rerank": each query with one answer and some wrong ones.

    Wrong answers are those that are known to be, and others drawn from what a first stage ranks best, when a
    bucket is made; entities that training has not seen are never among them.
    """

    def __init__(self, task: Task) -> None:
        ranker, settings = task.ranker, task.settings
        queries = max(1, settings.batch_size // (1 + ranker.reader.settings.reranking.negatives))
        super().__init__(replace(task, settings=settings.model_copy(update={"batch_size": queries})))
        self.reranker = Reranker(
            ranker.context, ranker.reader.tokenizer, ranker.reader.model, ranker.reader.settings
        )
        self.first = task.first or ranker  # without one it is only asked how long it is
        self.entities = np.flatnonzero(task.graph.seen_N)

    def check(self, queries: Queries) -> None:
        """See that pairs fit; as in any stream."""
        self.reranker.encode(queries, [self.entities[:1]] * len(queries))

    def _encode(self, rows: IntArray, rng: np.random.Generator) -> list[list[Encoded]]:
        true = self._drawn(rows, rng.random(len(rows)))
        ids = [np.append(answer, wrong) for answer, wrong in zip(true, self._wrong(rows, rng), strict=True)]
        return self.reranker.encode(self.queries[rows], ids, rng)

    def _wrong(self, rows: IntArray, rng: np.random.Generator) -> list[IntArray]:
        """Wrong answers of some queries: some of the first stage's best."""
        settings = self.ranker.reader.settings.reranking
        size = min(settings.candidates, len(self.entities))
        best_BK = np.full((len(rows), size), -1)
        pool = self.first.pool(self.entities)
        for at, scores_bS in self.first.rank(self.queries[rows], self.entities):
            best_BK[at] = best_of(self.first.context, self.queries[rows[at]], scores_bS, size, pool)[1]
        found = []
        for best_K in best_BK:
            others = best_K[best_K >= 0]
            found.append(rng.choice(others, min(settings.negatives, len(others)), replace=False))
        return found

    def _length(self, encoded: list[Encoded]) -> int:
        return max(len(pair.input_ids) for pair in encoded)

    def _batch(
        self, rows: IntArray, encoded: list[list[Encoded]], chances: FloatArray, mine: IntArray
    ) -> PairBatch:
        share = [encoded[i] for i in mine]
        pairs = [pair for row in share for pair in row]
        counts_B = np.array([len(row) for row in share])
        return PairBatch(self.ranker.reader.tokenizer.collate(pairs), counts_B)


def pair_loss(scores_P: torch.Tensor, counts_B: IntArray) -> torch.Tensor:
    """Cross-entropy of a softmax over each query's candidates, the first of which is true."""
    columns = np.concatenate([np.arange(n) for n in counts_B])
    rows = np.repeat(np.arange(len(counts_B)), counts_B)
    scores_BC = scores_P.new_full((len(counts_B), int(counts_B.max())), -torch.inf)
    scores_BC[torch.from_numpy(rows), torch.from_numpy(columns)] = scores_P
    return -scores_BC.log_softmax(1)[:, 0].mean()


class PairLosses(Stateless):
    """A softmax over each query's candidates.

    Raises:
        ConfigError: when there is nothing to rerank.
    """

    def __init__(self, task: Task, stream: RerankingStream) -> None:
        if task.first is None:
            raise ConfigError("the objective 'rerank' is trained by `kgmlm rerank RUN`")
        self.reranker = stream.reranker

    def __call__(self, model: Callable[..., SpanOutput], batch: PairBatch) -> torch.Tensor:
        """The loss of one micro-batch, a scalar."""
        span = model(batch.pairs.to(self.reranker.model.device))
        return pair_loss(self.reranker.read(span), batch.counts_B)


RERANK = Objective(RerankingStream, PairLosses)
