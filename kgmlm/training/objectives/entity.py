"""The objectives "entity" and "token": queries as ranking asks them, answered by the scores that rank.

Shapes: B queries, N candidates, E entities read in a step, M of them or sampled, D decoder width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from kgmlm.core.arrays import FloatArray, IntArray
from kgmlm.graphs.queries import Columns
from kgmlm.signals.likelihood_training import (
    TensorTable,
    entity_loss,
    left_out,
    score_candidates,
    token_loss,
)
from kgmlm.signals.vector import ReaderSource
from kgmlm.text.reader import PairTable
from kgmlm.text.tokenization import Encoded, MaskedBatch
from kgmlm.text.torch_model import Residuals, SpanModel, SpanOutput, span_model
from kgmlm.training.objectives.streams import (
    Drawing,
    Drawn,
    Objective,
    QueryStream,
    Recent,
    Sampled,
    Task,
    interleaved,
)

ENTITY_BATCHES = 4  # batches of similar lengths for a step's entity texts: less padding
PACKED_BATCHES = 16  # where many cost no more than one


@dataclass(frozen=True)
class TrainingBatch:
    """A micro-batch: B queries and, where entity vectors are trained, the texts of some of their answers.

    Attributes:
        rows: of the distinct training queries.
        all_rows: those of all processes.
        entity_ids: the entities whose texts are read by all processes; at least one answer of each query.
            Empty without entity vectors.
        entities: the texts of this process's share, in batches of like lengths.
        drawn: which entities are scored; None is all that training has.
    """

    rows: IntArray
    all_rows: IntArray
    queries: MaskedBatch
    entity_ids: IntArray
    entities: tuple[MaskedBatch, ...]
    drawn: Drawn | None = None


class RankingStream(QueryStream[Encoded, TrainingBatch]):
    """Micro-batches of the training queries and, with entity vectors, of the texts of some answers.

    Attributes:
        drawing: draws the candidates of each, where not all entities are scored.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        seen = np.flatnonzero(task.graph.seen_N)
        candidates = task.settings.sampled(len(seen)) if task.settings.objective == "entity" else 0
        self.drawing = Drawing(seen, candidates) if candidates else None

    def _encode(self, rows: IntArray, rng: np.random.Generator) -> list[Encoded]:
        return self.ranker.reader.encode(self.queries[rows], rng)

    def _length(self, encoded: Encoded) -> int:
        return len(encoded.input_ids)

    def _batch(
        self, rows: IntArray, encoded: list[Encoded], chances: FloatArray, mine: IntArray
    ) -> TrainingBatch:
        """Pad queries and, for each, the text of one of its answers, drawn by a number in [0, 1).

        What is drawn is drawn for the queries of all processes: each has the same candidates.
        """
        queries = self.ranker.reader.tokenizer.collate([encoded[i] for i in mine])
        drawn = None
        if self.drawing is not None:
            rng = np.random.default_rng((chances * 2**32).astype(np.int64))
            drawn = self.drawing.draw(self.answers, rows, rng)
        answers = self._drawn(rows, chances)
        if not self.ranker.reader.settings.vector.enabled:
            return TrainingBatch(rows[mine], rows, queries, rows[:0], (), drawn)
        ids = np.unique(answers)
        texts = self.ranker.reader.encode_entities(ids)
        order = np.argsort([len(e.input_ids) for e in texts], kind="stable")
        # With fewer texts than processes, some read one just to take part: its gradients are zero.
        share = order[self.share[0] :: self.share[1]] if self.share[0] < len(order) else order[:1]
        # With more batches, a GPU would wait for kernel launches.
        model = self.ranker.reader.model
        packed = isinstance(model, SpanModel) and model.packs and model.gpu is None
        count = PACKED_BATCHES if packed else ENTITY_BATCHES
        parts = [part for part in np.array_split(share, count) if len(part)]
        entities = tuple(self.ranker.reader.tokenizer.collate([texts[i] for i in part]) for part in parts)
        return TrainingBatch(rows[mine], rows, queries, ids[order], entities, drawn)


class Joined(NamedTuple):
    """Candidates of the vectors' loss, and their vectors."""

    columns: Columns
    vectors_MD: torch.Tensor


class Memory:
    """The latest entity vectors, newest first: further candidates that cost no forward pass.

    They are as old as a few batches and have no gradient; training moves slowly enough.

    Args:
        size: how many are kept.
        entities: of the graph.
    """

    def __init__(self, size: int, entities: int, width: int, device: torch.device) -> None:
        self.recent = Recent(size, entities)
        self.vectors_MD = torch.zeros(0, width, device=device)

    def joined(self, entity_ids: IntArray, vectors_ED: torch.Tensor) -> Joined:
        """A batch's own vectors, then those remembered of other entities."""
        others = torch.from_numpy(self.recent.others(entity_ids)).to(self.vectors_MD.device)
        joined_MD = torch.cat([vectors_ED, self.vectors_MD[others]])
        columns = Columns(self.recent.joined(entity_ids))
        self.vectors_MD = joined_MD[: self.recent.size].detach()
        return Joined(columns, joined_MD)

    def state(self) -> dict[str, torch.Tensor]:
        """The tensors that a checkpoint keeps."""
        return {"memory.ids": torch.from_numpy(self.recent.ids_M), "memory.vectors": self.vectors_MD.cpu()}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Go back to a checkpoint's state.

        Raises:
            ValueError: when it is not that of the graph.
        """
        ids_M, vectors_MD = tensors["memory.ids"], tensors["memory.vectors"]
        fits = vectors_MD.shape == (*ids_M.shape, self.vectors_MD.shape[1])
        if not fits or vectors_MD.dtype != torch.float32:
            raise ValueError("the remembered vectors are not those of the graph's entities")
        self.recent.restored(ids_M)
        self.vectors_MD = vectors_MD.to(self.vectors_MD.device, copy=True)


class RankingLosses(ABC):
    """The loss of true answers among the scores that rank; a subclass has the likelihood's.

    With entity vectors it remembers the latest, and gives the ranker residuals to learn if the run has them.

    Attributes:
        residuals: the ranker's; in training by several processes, wrapped.
    """

    def __init__(self, task: Task, stream: RankingStream) -> None:
        self.ranker = ranker = task.ranker
        model, tokens = ranker.reader.model, ranker.reader.vocabulary.softmax_tokens
        self.model = model = span_model(model)
        self.softmax_tokens = None if tokens is None else torch.from_numpy(tokens).to(model.device)
        self.settings = task.settings
        self.queries, self.answers = stream.queries, stream.answers
        self.share = task.share
        self.vector = ranker.reader.settings.vector
        self.memory: Memory | None = None
        self._residuals: Residuals | None = None
        if ranker.vectors is not None:
            count, width = len(task.graph.entities), model.width
            self.memory = Memory(self.vector.memory, count, width, model.device)
            if self.vector.residual_rate:
                self._residuals = Residuals(count, width).to(model.device)
                source = ranker.vectors.source
                assert isinstance(source, ReaderSource)
                source.residuals = self._residuals.added
        self.residuals: torch.nn.Module | None = self._residuals

    def __call__(self, model: Callable[..., SpanOutput], batch: TrainingBatch) -> torch.Tensor:
        """The loss of one micro-batch, a scalar."""
        span = model(batch.queries, batch.entities)
        loss = self._likelihood(span, batch)
        return loss + self._vectors(span, batch) if batch.entities else loss

    def _vectors(self, span: SpanOutput, batch: TrainingBatch) -> torch.Tensor:
        """Softmax of cosines over the entities just read and those remembered, true answers as targets.

        Residuals have a loss of their own, without gradients to the texts: for entities never seen, vectors
        read from texts alone must suffice.
        """
        assert self.memory is not None
        assert span.entities_ED is not None
        assert span.vector_BD is not None
        vectors_ED = interleaved(span.entities_ED, self.share, len(batch.entity_ids))
        columns, vectors_MD = self.memory.joined(batch.entity_ids, vectors_ED)
        targets = self._places(*columns.answers(self.answers, batch.rows))
        own, temperature = self._left_out(batch.rows, columns), self.vector.temperature
        loss = self._loss(span.vector_BD @ vectors_MD.T, targets, temperature, own)
        if self.residuals is None:
            return loss
        ids_M = torch.from_numpy(columns.ids_M).to(vectors_MD.device)
        moved_BM = span.vector_BD @ self.residuals(ids_M, vectors_MD.detach()).T
        return loss + self._loss(moved_BM, targets, temperature, own)

    def _places(self, rows: IntArray, columns: IntArray) -> tuple[torch.Tensor, torch.Tensor]:
        """Places in a matrix of scores."""
        device = self.model.device
        return torch.from_numpy(rows).to(device), torch.from_numpy(columns).to(device)

    def _table(self, entity_ids: IntArray) -> TensorTable:
        """The names of some entities, to be scored by :meth:`_scores`."""
        names = self.ranker.reader.names.take(entity_ids)
        return TensorTable.of(PairTable.of(names), self.model.device)

    def _scores(self, span: SpanOutput, table: TensorTable) -> torch.Tensor:
        """Scores ``(B, N)``, differentiable."""
        return score_candidates(self.model, span, self.softmax_tokens, table)

    def _left_out(self, rows: IntArray, columns: Columns) -> tuple[torch.Tensor, torch.Tensor]:
        """The places of queries' own entities that cannot answer and have no share of a softmax."""
        at, own = self.ranker.possible.forbidden(self.queries[rows])
        at_own = columns.of(own)
        return self._places(at[at_own >= 0], at_own[at_own >= 0])

    def _loss(
        self,
        scores_BN: torch.Tensor,
        answers: tuple[torch.Tensor, torch.Tensor],
        temperature: float,
        own: tuple[torch.Tensor, torch.Tensor] | None,
        log_weight_BN: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """A softmax over entities, true answers as targets, without the (row, column) pairs ``own``; for the
        rest see :func:`~kgmlm.signals.likelihood_training.entity_loss`.
        """
        if own is not None:
            scores_BN = left_out(scores_BN, own)
        return entity_loss(scores_BN, answers, temperature, log_weight_BN)

    @abstractmethod
    def _likelihood(self, span: SpanOutput, batch: TrainingBatch) -> torch.Tensor:
        """The loss on mean log-likelihoods."""

    def state(self) -> dict[str, torch.Tensor]:
        """The tensors that a checkpoint keeps."""
        tensors = self.memory.state() if self.memory else {}
        if self._residuals is not None:
            tensors["residuals"] = self._residuals.residual_ND.detach().cpu()
        return tensors

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Go back to a checkpoint's state."""
        if self.memory:
            self.memory.restore(tensors)
        if self._residuals is not None:
            self._residuals.residual_ND.data.copy_(tensors["residuals"])


class EntityLosses(RankingLosses):
    """The objective "entity": a softmax over all entities that training has, or over a sample of them.

    Attributes:
        columns: those entities; others are never negatives.
        recent: answers of earlier steps, where a step has a sample.
    """

    def __init__(self, task: Task, stream: RankingStream) -> None:
        super().__init__(task, stream)
        self.recent: Recent | None = None
        if stream.drawing is not None:
            self.recent = Recent(stream.drawing.recent, len(task.graph.entities))
            self.seen = len(stream.drawing.seen)
            return
        self.columns = Columns(np.flatnonzero(task.graph.seen_N))
        self.table = self._table(self.columns.ids_M)

    def _likelihood(self, span: SpanOutput, batch: TrainingBatch) -> torch.Tensor:
        if batch.drawn is not None:
            return self._of_sample(span, batch.rows, batch.all_rows, batch.drawn)
        scores_BN = self._scores(span, self.table)
        rows, columns = batch.rows, self.columns
        answers, own = self._places(*columns.answers(self.answers, rows)), self._left_out(rows, columns)
        return self._loss(scores_BN, answers, self.settings.temperature, own)

    def _of_sample(self, span: SpanOutput, rows: IntArray, all_rows: IntArray, drawn: Drawn) -> torch.Tensor:
        """The loss over answers, own entities, recent answers, and others that were drawn.

        Args:
            all_rows: of all processes: each has the candidates of the whole batch.
        """
        assert self.recent is not None
        always = np.union1d(self.recent.joined(drawn.answers), self.queries.entity_B[all_rows])
        sampled = Sampled.of(always, drawn.others, self.seen)
        columns = sampled.columns
        at, column = columns.answers(self.answers, rows)
        log_weight_BM = np.tile(sampled.log_weight_M, (len(rows), 1))
        # The sampled answers of a hub stand for all of its answers.
        there_B = np.bincount(at, minlength=len(rows))
        all_B = self.answers.offsets[rows + 1] - self.answers.offsets[rows]
        log_weight_BM[at, column] = np.log(all_B / there_B)[at]
        scores_BM = self._scores(span, self._table(columns.ids_M))
        targets, own = self._places(at, column), self._left_out(rows, columns)
        log_weights = torch.from_numpy(log_weight_BM.astype(np.float32)).to(scores_BM.device)
        return self._loss(scores_BM, targets, self.settings.temperature, own, log_weights)

    def state(self) -> dict[str, torch.Tensor]:
        """The tensors that a checkpoint keeps."""
        recent = {} if self.recent is None else {"recent": torch.from_numpy(self.recent.ids_M)}
        return super().state() | recent

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Go back to a checkpoint's state."""
        super().restore(tensors)
        if self.recent is not None:
            self.recent.restored(tensors["recent"])


class TokenLosses(RankingLosses):
    """The objective "token": cross-entropy of the tokens of true answers."""

    def _likelihood(self, span: SpanOutput, batch: TrainingBatch) -> torch.Tensor:
        positions, ids = self.answers.take(batch.rows)
        distinct, columns = np.unique(ids, return_inverse=True)
        scores_BN = self._scores(span, self._table(distinct))
        return token_loss(scores_BN, self._places(positions, columns))


ENTITY = Objective(RankingStream, EntityLosses)
TOKEN = Objective(RankingStream, TokenLosses)
