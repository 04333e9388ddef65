"""What a training step reads and what it minimizes: streams of micro-batches and losses, by objective.

The stream of micro-batches is a function of the seed and of the position in it; a loss is a function of a
batch and, with entity vectors, of a memory that checkpoints keep. To add an objective: a stream if it reads
other texts, a loss, a case in :func:`objective`, a name in ``TrainingSettings.objective``.

Shapes: B queries, N entities, E of them read in a step, M candidates of the vectors' loss, D decoder width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from kgmlm.config import TrainingSettings
from kgmlm.filters import GroupedAnswers
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import ConfigError, FloatArray, IntArray, Queries
from kgmlm.masking import MaskedTextSource
from kgmlm.modeling import Offsets, SpanOutput
from kgmlm.ranker import Ranker
from kgmlm.rescoring import PairBatch, Rescorer, pair_loss
from kgmlm.scoring import entity_loss, left_out, score_vectors, teaching_loss, token_loss
from kgmlm.structure import Structure
from kgmlm.tokenization import Encoded, MaskedBatch, MaskedTexts

BUCKET = 50  # batches that are sorted by length together
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


class BatchStream:
    """Micro-batches of the training queries, bucketed by length, by epoch and position.

    Args:
        share: (rank, world size) of this process; every process gets equally many batches.

    Attributes:
        queries: the distinct ones, with their answers.
        samples: what an epoch has, rows of the queries: each once, or once for each of its answers.
    """

    def __init__(
        self, ranker: Ranker, graph: KnowledgeGraph, settings: TrainingSettings, share: tuple[int, int]
    ) -> None:
        self.ranker = ranker
        self.settings = settings
        self.share = share
        self.queries: Queries
        self.answers: GroupedAnswers
        self.queries, self.answers = graph.unique_queries("train")
        self.samples: IntArray = np.arange(len(self.queries))
        if settings.samples == "triples":
            self.samples = np.repeat(self.samples, np.diff(self.answers.offsets))

    def __len__(self) -> int:
        """How many samples an epoch has."""
        return len(self.samples)

    @property
    def per_epoch(self) -> int:
        """Micro-batches of this process in an epoch."""
        return max(1, math.ceil(len(self) / self.settings.batch_size) // self.share[1])

    def _encode(self, rows: IntArray, rng: np.random.Generator) -> list[Any]:
        return self.ranker.encode(self.queries[rows], rng)

    def _length(self, encoded: Any) -> int:
        return len(encoded.input_ids)

    def _batch(self, rows: IntArray, encoded: list[Any], chances: FloatArray) -> Any:
        """Pad queries and, for each, the text of one of its answers, drawn by a number in [0, 1)."""
        queries = self.ranker.tokenizer.collate(encoded)
        if not self.ranker.settings.vector.enabled:
            return TrainingBatch(rows, queries, rows[:0], ())
        first, end = self.answers.offsets[rows], self.answers.offsets[rows + 1]
        ids = np.unique(self.answers.ids[first + (chances * (end - first)).astype(np.int64)])
        texts = self.ranker.encode_entities(ids)
        order = np.argsort([len(e.input_ids) for e in texts], kind="stable")
        # A GPU would wait for the launches of so many.
        packed = self.ranker.model.packs and self.ranker.model.device.type == "cpu"
        count = PACKED_BATCHES if packed else ENTITY_BATCHES
        parts = [part for part in np.array_split(order, count) if len(part)]
        entities = tuple(self.ranker.tokenizer.collate([texts[i] for i in part]) for part in parts)
        return TrainingBatch(rows, queries, ids[order], entities)

    def _epoch(self, epoch: int, skip: int) -> Iterator[Any]:
        rng = np.random.default_rng([self.settings.seed, epoch])
        order = rng.permutation(len(self))
        size = self.settings.batch_size
        rank, world = self.share
        number = -1
        for start in range(0, len(order), BUCKET * size):
            rows = self.samples[order[start : start + BUCKET * size]]
            count = math.ceil(len(rows) / size)
            shuffled = rng.permutation(count)
            mine = [i for i in range(count) if (start // size + i) % world == rank]
            if number + len(mine) < skip:
                number += len(mine)
                continue
            drawing = np.random.default_rng([self.settings.seed, epoch, start])
            encoded = self._encode(rows, drawing)
            chances = drawing.random(len(rows))
            by_length = np.argsort([self._length(e) for e in encoded], kind="stable")
            for i in mine:
                number += 1
                if number >= self.per_epoch:
                    return
                if number < skip:
                    continue
                at = by_length[shuffled[i] * size : (shuffled[i] + 1) * size]
                yield self._batch(rows[at], [encoded[j] for j in at], chances[at])

    def from_position(self, position: int, epochs: int | None = None) -> Iterator[Any]:
        """The stream from one micro-batch on; it ends after the last epoch, or after so many."""
        for epoch in range(position // self.per_epoch, epochs or math.ceil(self.settings.epochs)):
            yield from self._epoch(epoch, position - epoch * self.per_epoch if position else 0)
            position = 0


class TextStream(BatchStream):
    """Micro-batches of masked texts, by epoch and position: of the objective "masked"."""

    def __init__(
        self, ranker: Ranker, graph: KnowledgeGraph, settings: TrainingSettings, share: tuple[int, int]
    ) -> None:
        super().__init__(ranker, graph, settings, share)
        self.source = MaskedTextSource(ranker, graph, ranker.settings.masking, settings.seed)
        self.samples = np.arange(len(self.source))  # training entities and training triples

    def _encode(self, rows: IntArray, rng: np.random.Generator) -> list[Any]:
        return self.source.encode(rows, rng)

    def _batch(self, rows: IntArray, encoded: list[Any], chances: FloatArray) -> MaskedTexts:
        """Hide tokens, drawn by the batch's own numbers in [0, 1)."""
        return self.source.mask(encoded, np.random.default_rng((chances * 2**32).astype(np.int64)))


class RescoringStream(BatchStream):
    """Micro-batches of pairs, of the objective "rescore": each query with one answer and some wrong ones.

    Wrong answers are drawn from what a first stage ranks best, when a bucket is made; entities that training
    has not seen are never among them.

    Args:
        first: the run that is to be rescored.
    """

    def __init__(
        self,
        ranker: Ranker,
        graph: KnowledgeGraph,
        settings: TrainingSettings,
        share: tuple[int, int],
        first: Ranker,
    ) -> None:
        rescoring = ranker.settings.rescoring
        queries = max(1, settings.batch_size // (1 + rescoring.negatives))
        super().__init__(ranker, graph, settings.model_copy(update={"batch_size": queries}), share)
        self.rescorer = Rescorer(ranker.context, ranker.tokenizer, ranker.model, ranker.settings)
        self.first = first
        self.entities = np.flatnonzero(graph.seen_N)

    def _encode(self, rows: IntArray, rng: np.random.Generator) -> list[list[Encoded]]:
        first, end = self.answers.offsets[rows], self.answers.offsets[rows + 1]
        true = self.answers.ids[first + (rng.random(len(rows)) * (end - first)).astype(np.int64)]
        ids = [np.append(answer, wrong) for answer, wrong in zip(true, self._wrong(rows, rng), strict=True)]
        return self.rescorer.encode(self.queries[rows], ids, rng)

    def _wrong(self, rows: IntArray, rng: np.random.Generator) -> list[IntArray]:
        """Wrong answers of some queries, drawn from the first stage's best."""
        settings = self.ranker.settings.rescoring
        size = min(settings.candidates, len(self.entities))
        best_BK = np.full((len(rows), size), -1)
        for at, scores_bS in self.first.rank(self.queries[rows], self.entities):
            best_BK[at] = self.first.best(self.queries[rows[at]], scores_bS, size, self.entities)[1]
        pools = [best_K[best_K >= 0] for best_K in best_BK]
        return [rng.choice(pool, min(settings.negatives, len(pool)), replace=False) for pool in pools]

    def _length(self, encoded: list[Encoded]) -> int:
        return max(len(pair.input_ids) for pair in encoded)

    def _batch(self, rows: IntArray, encoded: list[list[Encoded]], chances: FloatArray) -> PairBatch:
        pairs = [pair for row in encoded for pair in row]
        counts_B = np.array([len(row) for row in encoded])
        return PairBatch(self.ranker.tokenizer.collate(pairs), counts_B)


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


class Losses:
    """The objective of a run, as a function of a batch.

    With entity vectors it remembers the latest, and gives the ranker offsets to learn if the run has them.

    Args:
        teacher: a structural model of the graph, of which the entity objective learns as well.

    Attributes:
        offsets: the ranker's; in training by several processes, wrapped.
    """

    def __init__(
        self,
        ranker: Ranker,
        graph: KnowledgeGraph,
        settings: TrainingSettings,
        stream: BatchStream,
        teacher: Structure | None = None,
    ) -> None:
        self.ranker = ranker
        self.settings = settings
        self.queries, self.answers = stream.queries, stream.answers
        self.teacher = teacher
        # Entities that training triples do not have are never negatives.
        self.entities = np.flatnonzero(graph.seen_N)
        self._column_N = np.full(len(graph.entities), -1)
        self._column_N[self.entities] = np.arange(len(self.entities))
        self.table = ranker.table(self.entities) if settings.objective == "entity" else None
        self.vector = ranker.settings.vector
        self.memory: Memory | None = None
        self.offsets: torch.nn.Module | None = None
        if self.vector.enabled:
            count, width = len(graph.entities), ranker.model.decoder[0].shape[1]
            self.memory = Memory(self.vector.memory, count, width, ranker.model.device)
            if self.vector.offset_rate:
                self.offsets = ranker.offsets = Offsets(count, width).to(ranker.model.device)

    def __call__(self, model: Callable[..., SpanOutput], batch: TrainingBatch) -> torch.Tensor:
        """The loss of one micro-batch, a scalar."""
        batch = batch.to(self.ranker.model.device)
        if not batch.entities:
            return self._likelihood(model(batch.queries), batch.rows)
        span = model(batch.queries, batch.entities)
        return self._likelihood(span, batch.rows) + self.vector.loss_weight * self._vectors(span, batch)

    def _vectors(self, span: SpanOutput, batch: TrainingBatch) -> torch.Tensor:
        """Softmax of cosines over the entities just read and those remembered, true answers as targets.

        Offsets have a loss of their own beside it, without gradient to the texts: what is read from a text
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
        device = vectors_MD.device
        targets = (
            torch.from_numpy(positions[there]).to(device),
            torch.from_numpy(columns[there]).to(device),
        )
        own = self._left_out(batch.rows, joined.column_N)
        taught_BM = self._taught(batch.rows, joined.ids_M)
        temperature = self.vector.temperature
        loss = self._loss(score_vectors(span.vector_BD, vectors_MD), taught_BM, targets, temperature, own)
        if self.offsets is None:
            return loss
        moved_MD = self.offsets(torch.from_numpy(joined.ids_M).to(device), vectors_MD.detach())
        moved_BM = score_vectors(span.vector_BD, moved_MD)
        return loss + self._loss(moved_BM, taught_BM, targets, temperature, own)

    def _taught(self, rows: IntArray, ids: IntArray) -> torch.Tensor | None:
        """The teacher's logits of some candidates, if there is one."""
        return None if self.teacher is None else self.teacher.score(self.queries[rows], ids)

    def _left_out(self, rows: IntArray, column_N: IntArray) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Where queries' own entities, which cannot answer, are to have no share of a softmax.

        Args:
            column_N: column of each entity among the candidates, -1 for the others.
        """
        if self.settings.own_entity == "negative":
            return None
        at, own = self.ranker.possible.forbidden(self.queries[rows])
        there = column_N[own] >= 0
        device = self.ranker.model.device
        return torch.from_numpy(at[there]).to(device), torch.from_numpy(column_N[own[there]]).to(device)

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
        return loss + self.settings.teaching * teaching_loss(scores_BN, taught_BN, answers, temperature)

    def _likelihood(self, span: SpanOutput, rows: IntArray) -> torch.Tensor:
        """The run's objective on mean log-likelihoods."""
        device = self.ranker.model.device
        positions, ids = self.answers.take(rows)
        if self.table is not None:
            columns = self._column_N[ids]
            scores_BN = self.ranker.scores(span, self.table)
        else:
            distinct, columns = np.unique(ids, return_inverse=True)
            table = self.ranker.table(distinct)
            scores_BN = self.ranker.scores(span, table, "mean")
        answers = (torch.from_numpy(positions).to(device), torch.from_numpy(columns).to(device))
        if self.settings.objective == "entity":
            taught_BN = self._taught(rows, self.entities)
            own = self._left_out(rows, self._column_N)
            return self._loss(scores_BN, taught_BN, answers, self.settings.temperature, own)
        return token_loss(scores_BN, answers)

    def state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint keeps."""
        tensors = self.memory.state() if self.memory else {}
        if self.ranker.offsets is not None:
            tensors["offsets"] = self.ranker.offsets.offset_ND.detach().cpu()
        return tensors

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Go back to a checkpoint's state."""
        if self.memory:
            self.memory.restore(tensors)
        if self.ranker.offsets is not None:
            self.ranker.offsets.offset_ND.data.copy_(tensors["offsets"])


class Stateless:
    """What checkpoints ask of an objective that keeps nothing beside the model."""

    offsets: torch.nn.Module | None = None

    def state(self) -> dict[str, torch.Tensor]:
        """Nothing."""
        return {}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Nothing."""


class MaskedLosses(Stateless):
    """The objective "masked": cross-entropy of the hidden tokens, each alike."""

    def __init__(self, ranker: Ranker) -> None:
        self.ranker = ranker

    def __call__(self, model: Callable[..., SpanOutput], batch: MaskedTexts) -> torch.Tensor:
        """The loss of one micro-batch, a scalar."""
        batch = batch.to(self.ranker.model.device)
        weight_VD, bias_V = self.ranker.model.decoder
        hidden_MD = model(batch).hidden_BLD[0]
        logits_MV = torch.nn.functional.linear(hidden_MD, weight_VD.float(), bias_V.float())
        return torch.nn.functional.cross_entropy(logits_MV, batch.labels_M)


class PairLosses(Stateless):
    """The objective "rescore": a softmax over each query's candidates."""

    def __init__(self, rescorer: Rescorer) -> None:
        self.rescorer = rescorer

    def __call__(self, model: Callable[..., SpanOutput], batch: PairBatch) -> torch.Tensor:
        """The loss of one micro-batch, a scalar."""
        span = model(batch.pairs.to(self.rescorer.model.device))
        return pair_loss(self.rescorer.read(span), batch.counts_B)


AnyLosses = Losses | MaskedLosses | PairLosses


def stream_of(
    ranker: Ranker,
    graph: KnowledgeGraph,
    settings: TrainingSettings,
    share: tuple[int, int],
    first: Ranker | None = None,
) -> BatchStream:
    """The stream of a run's objective; arguments as of :func:`objective`.

    Raises:
        ConfigError: when training has fewer batches than processes, or than are accumulated.
    """
    stream: BatchStream
    if settings.objective == "masked":
        stream = TextStream(ranker, graph, settings, share)
    elif settings.objective == "rescore":
        stream = RescoringStream(ranker, graph, settings, share, first or ranker)
    else:
        stream = BatchStream(ranker, graph, settings, share)
    batches, processes = math.ceil(len(stream) / stream.settings.batch_size), share[1]
    if processes > batches:
        raise ConfigError(
            f"an epoch has only {batches} batches for {processes} processes; start fewer, or lower "
            "training.batch_size"
        )
    there_are = math.ceil(settings.epochs) * stream.per_epoch
    if settings.accumulation > there_are:
        raise ConfigError(
            f"training.accumulation {settings.accumulation}: training has only {there_are} batches; "
            "give more training.epochs or less of it"
        )
    return stream


def objective(
    ranker: Ranker,
    graph: KnowledgeGraph,
    settings: TrainingSettings,
    share: tuple[int, int],
    first: Ranker | None = None,
    teacher: Structure | None = None,
) -> tuple[BatchStream, AnyLosses]:
    """The stream and the loss of a run's objective.

    Args:
        share: (rank, world size) of this process.
        first: what the objective "rescore" rescores.
        teacher: what the objective "entity" learns of as well.

    Raises:
        ConfigError: as :func:`stream_of` says, or when the objective "rescore" has nothing to rescore.
    """
    if settings.objective == "rescore" and first is None:
        raise ConfigError("the objective 'rescore' is trained by `kgmlm rescore RUN`")
    stream = stream_of(ranker, graph, settings, share, first)
    if settings.objective == "masked":
        return stream, MaskedLosses(ranker)
    if isinstance(stream, RescoringStream):
        return stream, PairLosses(stream.rescorer)
    return stream, Losses(ranker, graph, settings, stream, teacher)
