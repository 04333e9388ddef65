"""The objectives "entity" and "token": queries as ranking asks them, answered by the scores that rank.

Shapes: B queries, N entities, E of them read in a step, M candidates of the vectors' loss, D decoder width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from kgmlm.arrays import cosines
from kgmlm.kg import FloatArray, IntArray
from kgmlm.modeling import Residuals
from kgmlm.objectives.contract import Objective
from kgmlm.objectives.streams import QueryStream, Task
from kgmlm.pool import Reading
from kgmlm.scoring import distillation_loss, entity_loss, left_out, token_loss
from kgmlm.states import SpanOutput
from kgmlm.tokenization import Encoded, MaskedBatch

ENTITY_BATCHES = 4  # of like lengths, that a step's entity texts are read in: less padding
PACKED_BATCHES = 16  # where many cost no more than one


@dataclass(frozen=True)
class TrainingBatch:
    """A micro-batch: B queries and, where entity vectors are trained, the texts of some of their answers.

    Attributes:
        rows: of the distinct training queries.
        entity_ids: the entities whose texts are read; at least one answer of each query. Empty without
            entity vectors.
        entities: their texts, in batches of like lengths.
    """

    rows: IntArray
    queries: MaskedBatch
    entity_ids: IntArray
    entities: tuple[MaskedBatch, ...]

    def to(self, device: torch.device) -> TrainingBatch:
        """The same batch on a device."""
        entities = tuple(part.to(device) for part in self.entities)
        return TrainingBatch(self.rows, self.queries.to(device), self.entity_ids, entities)


class RankingStream(QueryStream[Encoded, TrainingBatch]):
    """Micro-batches of the training queries and, with entity vectors, of the texts of some answers."""

    def _encode(self, rows: IntArray, rng: np.random.Generator) -> list[Encoded]:
        return self.ranker.reader.encode(self.queries[rows], rng)

    def _length(self, encoded: Encoded) -> int:
        return len(encoded.input_ids)

    def _batch(self, rows: IntArray, encoded: list[Encoded], chances: FloatArray) -> TrainingBatch:
        """Pad queries and, for each, the text of one of its answers, drawn by a number in [0, 1)."""
        queries = self.ranker.reader.tokenizer.collate(encoded)
        if not self.ranker.reader.settings.vector.enabled:
            return TrainingBatch(rows, queries, rows[:0], ())
        ids = np.unique(self._drawn(rows, chances))
        texts = self.ranker.reader.encode_entities(ids)
        order = np.argsort([len(e.input_ids) for e in texts], kind="stable")
        # A GPU would wait for the launches of so many.
        packed = self.ranker.reader.model.packs and self.ranker.reader.model.device.type == "cpu"
        count = PACKED_BATCHES if packed else ENTITY_BATCHES
        parts = [part for part in np.array_split(order, count) if len(part)]
        entities = tuple(self.ranker.reader.tokenizer.collate([texts[i] for i in part]) for part in parts)
        return TrainingBatch(rows, queries, ids[order], entities)


class Joined(NamedTuple):
    """Candidates of the vectors' loss: M entities, their vectors, and the column of each entity (or -1)."""

    column_N: IntArray
    ids_M: IntArray
    vectors_MD: torch.Tensor


class Memory:
    """The latest entity vectors, newest first: further candidates that cost no forward pass.

    They are as old as a few batches and have no gradient; training moves slowly enough.

    Args:
        size: how many are kept.
        entities: of the graph.
    """

    def __init__(self, size: int, entities: int, width: int, device: torch.device) -> None:
        self.size = size
        self.ids_M: IntArray = np.zeros(0, np.int64)
        self.vectors_MD = torch.zeros(0, width, device=device)
        self._column_N = np.full(entities, -1)

    def joined(self, entity_ids: IntArray, vectors_ED: torch.Tensor) -> Joined:
        """A batch's own vectors, then those remembered of other entities."""
        self._column_N[:] = -1
        self._column_N[entity_ids] = np.arange(len(entity_ids))
        others = np.flatnonzero(self._column_N[self.ids_M] < 0)
        self._column_N[self.ids_M[others]] = len(entity_ids) + np.arange(len(others))
        kept = self.vectors_MD[torch.from_numpy(others).to(self.vectors_MD.device)]
        ids_M = np.concatenate([entity_ids, self.ids_M[others]])
        joined_MD = torch.cat([vectors_ED, kept])
        self.ids_M, self.vectors_MD = ids_M[: self.size], joined_MD[: self.size].detach()
        return Joined(self._column_N, ids_M, joined_MD)

    def state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint keeps."""
        return {"memory.ids": torch.from_numpy(self.ids_M), "memory.vectors": self.vectors_MD.cpu()}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Go back to a checkpoint's state.

        Raises:
            ValueError: when it is not that of the graph.
        """
        ids_M, vectors_MD = tensors["memory.ids"], tensors["memory.vectors"]
        fits = vectors_MD.shape == (*ids_M.shape, self.vectors_MD.shape[1])
        fits = fits and (ids_M.ndim, ids_M.dtype, vectors_MD.dtype) == (1, torch.int64, torch.float32)
        if not fits or ((ids_M < 0) | (ids_M >= len(self._column_N))).any():
            raise ValueError("the remembered vectors are not those of the graph's entities")
        self.ids_M = ids_M.numpy()
        self.vectors_MD = vectors_MD.to(self.vectors_MD.device, copy=True)


class RankingLosses(ABC):
    """What the scores that rank lose to the true answers; a subclass says it of the likelihood.

    With entity vectors it remembers the latest, and gives the ranker residuals to learn if the run has them.

    Attributes:
        residuals: the ranker's; in training by several processes, wrapped.
    """

    def __init__(self, task: Task, stream: RankingStream) -> None:
        self.ranker = ranker = task.ranker
        self.settings = task.settings
        self.queries, self.answers = stream.queries, stream.answers
        self.teacher = task.teacher
        self.vector = ranker.reader.settings.vector
        self.memory: Memory | None = None
        self._residuals: Residuals | None = None
        if ranker.vectors is not None:
            count, width = len(task.graph.entities), ranker.reader.model.decoder[0].shape[1]
            self.memory = Memory(self.vector.memory, count, width, ranker.reader.model.device)
            if self.vector.residual_rate:
                self._residuals = Residuals(count, width).to(ranker.reader.model.device)
                ranker.vectors.residuals = self._residuals
        self.residuals: torch.nn.Module | None = self._residuals

    def __call__(self, model: Callable[..., SpanOutput], batch: TrainingBatch) -> torch.Tensor:
        """The loss of one micro-batch, a scalar."""
        batch = batch.to(self.ranker.reader.model.device)
        if not batch.entities:
            return self._likelihood(model(batch.queries), batch.rows)
        span = model(batch.queries, batch.entities)
        return self._likelihood(span, batch.rows) + self.vector.loss_weight * self._vectors(span, batch)

    def _vectors(self, span: SpanOutput, batch: TrainingBatch) -> torch.Tensor:
        """Softmax of cosines over the entities just read and those remembered, true answers as targets.

        Residuals have a loss of their own beside it, without gradient to the texts: what is read from a text
        alone has to do for entities never seen.
        """
        assert self.memory is not None
        assert span.entities_ED is not None
        assert span.vector_BD is not None
        joined = self.memory.joined(batch.entity_ids, span.entities_ED)
        vectors_MD = joined.vectors_MD
        positions, ids = self.answers.take(batch.rows)
        columns = joined.column_N[ids]
        there = columns >= 0
        targets = self._places(positions[there], columns[there])
        own = self._left_out(batch.rows, joined.column_N)
        taught_BM = self._taught(batch.rows, joined.ids_M)
        temperature = self.vector.temperature
        loss = self._loss(cosines(span.vector_BD, vectors_MD), taught_BM, targets, temperature, own)
        if self.residuals is None:
            return loss
        moved_MD = self.residuals(torch.from_numpy(joined.ids_M).to(vectors_MD.device), vectors_MD.detach())
        moved_BM = cosines(span.vector_BD, moved_MD)
        return loss + self._loss(moved_BM, taught_BM, targets, temperature, own)

    def _places(self, rows: IntArray, columns: IntArray) -> tuple[torch.Tensor, torch.Tensor]:
        """Places in a matrix of scores."""
        device = self.ranker.reader.model.device
        return torch.from_numpy(rows).to(device), torch.from_numpy(columns).to(device)

    def _taught(self, rows: IntArray, ids: IntArray) -> torch.Tensor | None:
        """The teacher's logits of some candidates, if there is one."""
        if self.teacher is None:
            return None
        taught: torch.Tensor = self.teacher.score(Reading(self.queries[rows]), self.ranker.pool(ids))
        return taught

    def _left_out(self, rows: IntArray, column_N: IntArray) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Where queries' own entities, which cannot answer, are to have no share of a softmax.

        Args:
            column_N: column of each entity among the candidates, -1 for the others.
        """
        if self.settings.own_entity == "negative":
            return None
        at, own = self.ranker.possible.forbidden(self.queries[rows])
        there = column_N[own] >= 0
        return self._places(at[there], column_N[own[there]])

    def _loss(
        self,
        scores_BN: torch.Tensor,
        taught_BN: torch.Tensor | None,
        answers: tuple[torch.Tensor, torch.Tensor],
        temperature: float,
        own: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> torch.Tensor:
        """A softmax over entities, true answers as targets, and what the teacher says of the others; without
        the (row, column) pairs ``own``.
        """
        if own is not None:
            scores_BN = left_out(scores_BN, own)
            taught_BN = None if taught_BN is None else left_out(taught_BN, own)
        loss = entity_loss(scores_BN, answers, temperature)
        if taught_BN is None:
            return loss
        return loss + self.settings.distillation * distillation_loss(
            scores_BN, taught_BN, answers, temperature
        )

    @abstractmethod
    def _likelihood(self, span: SpanOutput, rows: IntArray) -> torch.Tensor:
        """The loss on mean log-likelihoods."""

    def state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint keeps."""
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
    """The objective "entity": a softmax over all entities that training has.

    Attributes:
        entities: those; entities that training triples do not have are never negatives.
    """

    def __init__(self, task: Task, stream: RankingStream) -> None:
        super().__init__(task, stream)
        self.entities = np.flatnonzero(task.graph.seen_N)
        self._column_N = np.full(len(task.graph.entities), -1)
        self._column_N[self.entities] = np.arange(len(self.entities))
        self.table = self.ranker.likelihood.table(self.entities)

    def _likelihood(self, span: SpanOutput, rows: IntArray) -> torch.Tensor:
        scores_BN = self.ranker.likelihood.scores(span, self.table)
        positions, ids = self.answers.take(rows)
        answers = self._places(positions, self._column_N[ids])
        taught_BN = self._taught(rows, self.entities)
        own = self._left_out(rows, self._column_N)
        return self._loss(scores_BN, taught_BN, answers, self.settings.temperature, own)


class TokenLosses(RankingLosses):
    """The objective "token": cross-entropy of the tokens of true answers."""

    def _likelihood(self, span: SpanOutput, rows: IntArray) -> torch.Tensor:
        positions, ids = self.answers.take(rows)
        distinct, columns = np.unique(ids, return_inverse=True)
        scores_BN = self.ranker.likelihood.scores(span, self.ranker.likelihood.table(distinct), "mean")
        return token_loss(scores_BN, self._places(positions, columns))


ENTITY = Objective(RankingStream, EntityLosses, distillable=True)
TOKEN = Objective(RankingStream, TokenLosses)
