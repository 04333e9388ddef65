"""Training of the bi-encoder: a small head on the vectors of a frozen text encoder.

A step costs matrix products of a few hundred columns and no pass of the encoder, so minutes of a CPU do.

Shapes: B queries, T answers, E edges, C candidates, N entities, S entities seen in training, K kinds of edges
(two per relation), D width of the text vectors, M of the relation embeddings, W of what is compared.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import nn
from torch.nn.functional import embedding_bag, normalize, softplus

from kgmlm.core.arrays import Floats, IntArray
from kgmlm.core.config import BiencoderSettings
from kgmlm.core.errors import RunError
from kgmlm.core.machine import bound_memory, keep_memory, reduced
from kgmlm.graphs.graph import KnowledgeGraph

RISE = 0.15  # of the steps, in which the learning rate rises
LEFT_OUT = -1e4  # score of a candidate that is no negative
RELATION_DIMENSION = 64  # of the relations' embeddings
WEIGHT_DECAY = 0.01
NEIGHBOR_DROPOUT = 0.3  # the chance that an edge of a query's entity is left out of a step
# The chance that a candidate is known by its text alone in a step: entities without triples are answers, too
STRUCTURE_DROPOUT = 0.5
EDGES = 64  # read of a query's entity in a step, a random sample; bounds what hubs cost


class Head(nn.Module):
    """The trained part of the bi-encoder; :class:`~kgmlm.signals.biencoder.Biencoder` says what it computes.

    Args:
        kinds: of edges, two per relation.
        width: of the text vectors.
    """

    def __init__(self, kinds: int, width: int, settings: BiencoderSettings) -> None:
        super().__init__()
        inner, rank = settings.dimension, RELATION_DIMENSION
        self.relation_text = nn.Linear(width, 2 * rank, bias=False)
        self.relation = nn.Parameter(torch.zeros(kinds, rank))
        self.query = nn.Linear(width, inner)
        self.neighbor = nn.Linear(width, inner, bias=False)
        self.edge = nn.Linear(rank, inner, bias=False)
        self.asked = nn.Linear(rank, rank, bias=False)
        self.scale = nn.Linear(rank, inner)
        self.shift = nn.Linear(rank, inner)
        self.inner = nn.Linear(inner, 2 * inner)
        self.outer = nn.Linear(2 * inner, inner)
        self.candidate = nn.Linear(width, inner)
        self.candidate_neighbor = nn.Linear(width, inner, bias=False)
        self.candidate_edge = nn.Linear(rank, inner, bias=False)
        self.sharpness = nn.Parameter(torch.tensor(math.log(20.0)))
        for linear in (self.outer, self.scale, self.shift):
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)

    def kinds(self, texts_RD: torch.Tensor) -> torch.Tensor:
        """Embeddings of all kinds of edges ``(K, M)``."""
        by_text_KM: torch.Tensor = self.relation_text(texts_RD).view(len(self.relation), -1)
        return by_text_KM + self.relation


class Batch(NamedTuple):
    """Some queries, their answers, and edges of their entities.

    Attributes:
        entity_B, kind_B: what is asked.
        row_T, answer_T: which query each answer is of.
        row_E, edge_kind_E, other_E: edges of the entities, none of which answers the query.
    """

    entity_B: torch.Tensor
    kind_B: torch.Tensor
    row_T: torch.Tensor
    answer_T: torch.Tensor
    row_E: torch.Tensor
    edge_kind_E: torch.Tensor
    other_E: torch.Tensor


class Training:
    """The state of a training."""

    def __init__(
        self,
        graph: KnowledgeGraph,
        relation_texts_RD: Floats,
        settings: BiencoderSettings,
        device: str | None = None,
    ) -> None:
        self.settings, self.links = settings, graph.context.links
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.queries, self.answers = graph.unique_queries("train")
        self.kind_U = self.queries.kind_B
        self.relation_texts_RD = self._on(relation_texts_RD)
        self.seen_S = np.flatnonzero(graph.seen_N)
        self.degree_N = self._on(graph.context.degree_N.astype(np.float32))
        torch.manual_seed(settings.seed)
        width = relation_texts_RD.shape[1]
        self.head = Head(2 * len(graph.relations), width, settings).to(self.device)
        self.rng = np.random.default_rng(settings.seed)
        groups: list[dict[str, Any]] = [
            {"params": [p for p in self.head.parameters() if p.ndim == 2]},
            {"params": [p for p in self.head.parameters() if p.ndim != 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups, lr=settings.learning_rate, weight_decay=WEIGHT_DECAY, fused=True
        )
        self.ends: tuple[float, float] | None = None  # when the time begins and ends, where one is given
        self.rate = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self._rate)

    def hold(self, texts_ND: Floats, sums_ND: Floats, profile: sp.csr_array) -> None:
        """Take what entities are known by; arguments as of :meth:`run`."""
        self.texts_ND, self.sums_ND, self.profile = self._on(texts_ND), self._on(sums_ND), profile

    def _on(self, array: Floats) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, np.float32)).to(self.device)

    def _tensor(self, rows: IntArray) -> torch.Tensor:
        return torch.from_numpy(rows).to(self.device)

    def _rate(self, step: int) -> float:
        """The learning rate's share of its peak: it rises, then falls along half a cosine."""
        rise, at = max(1, round(RISE * self.settings.steps)), self._position(step)
        if at < rise:
            return min(1.0, (at + 1) / rise)
        return 0.5 * (1 + math.cos(math.pi * (at - rise) / max(1, self.settings.steps - rise)))

    def _position(self, step: int) -> float:
        """The position in the schedule, in steps: those done, or the share of the time that has passed."""
        if self.ends is None:
            return step
        began, end = self.ends
        passed = (time.monotonic() - began) / (end - began)
        return min(self.settings.steps, max(step, self.settings.steps * passed))

    def batches(self) -> Iterator[IntArray]:
        """Rows of distinct queries, epoch after epoch without end."""
        for epoch in count():
            order_U = np.random.default_rng((self.settings.seed, epoch)).permutation(len(self.queries))
            size = self.settings.batch_size
            for start in range(0, max(1, len(order_U) - size // 2), size):
                yield order_U[start : start + size]

    def batch(self, chosen: IntArray) -> Batch:
        """The queries of a step with their answers, and the edges that it reads."""
        row_T, answer_T = self.answers.take(chosen)
        kind_B = self.kind_U[chosen]
        row_E, kind_E, other_E = self.links.edges(self.queries.entity_B[chosen])
        keep_E = kind_E != kind_B[row_E]
        chance_E = self.rng.random(len(row_E))
        keep_E &= chance_E >= NEIGHBOR_DROPOUT
        count_B = np.bincount(row_E[keep_E], minlength=len(chosen))
        keep_E &= self.rng.random(len(row_E)) * count_B[row_E] < EDGES  # in the mean: hubs have many

        def sent(x: IntArray) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(x, np.int64)).to(self.device)

        asked = (self.queries.entity_B[chosen], kind_B, row_T, answer_T)
        return Batch._make(map(sent, (*asked, row_E[keep_E], kind_E[keep_E], other_E[keep_E])))

    def drop(self, x: torch.Tensor) -> torch.Tensor:
        """Dropout by random bytes: torch's takes half of a step on a CPU."""
        cut = round(256 * self.settings.dropout)
        if not (self.head.training and cut):
            return x
        kept = np.frombuffer(self.rng.bytes(x.numel()), np.uint8).reshape(tuple(x.shape)) >= cut
        return x * torch.from_numpy(kept).to(x.device, x.dtype).mul_(256 / (256 - cut))

    def query(self, batch: Batch, kinds_KM: torch.Tensor) -> torch.Tensor:
        """Unit vectors of queries ``(B, W)``."""
        head = self.head
        asked_BM = head.asked(kinds_KM[batch.kind_B])
        edge_EM = kinds_KM[batch.edge_kind_E]
        weight_E = (asked_BM[batch.row_E] * edge_EM).sum(1).clamp(-10, 10).exp()
        zeros = asked_BM.new_zeros
        total_B = zeros(len(asked_BM)).index_add(0, batch.row_E, weight_E) + 1
        share_E1 = (weight_E / total_B[batch.row_E])[:, None]
        others_ED = self.drop(self.texts_ND[batch.other_E])
        around_BD = zeros(len(asked_BM), others_ED.shape[1]).index_add(0, batch.row_E, share_E1 * others_ED)
        edges_BM = zeros(asked_BM.shape).index_add(0, batch.row_E, share_E1 * edge_EM)
        z_BW = head.query(self.drop(self.texts_ND[batch.entity_B]))
        z_BW = z_BW + head.neighbor(around_BD) + head.edge(edges_BM)
        kind_BM = kinds_KM[batch.kind_B]
        z_BW = z_BW * (1 + head.scale(kind_BM)) + head.shift(kind_BM)
        z_BW = z_BW + head.outer(self.drop(nn.functional.silu(head.inner(z_BW))))
        return normalize(z_BW, dim=1)

    def candidates(
        self,
        ids_C: IntArray,
        text_CW: torch.Tensor,
        sums_CD: torch.Tensor,
        degree_C: torch.Tensor,
        kinds_KM: torch.Tensor,
        left_CM: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Unit vectors of candidates ``(C, W)``, from their texts and, mostly, their neighborhoods.

        Args:
            text_CW: what their texts add to them.
            sums_CD: of the texts of their neighbors.
            degree_C: their numbers of edges.
            left_CM: embeddings of kinds of edges of which each candidate has one less.
        """
        head = self.head
        # Only half of the candidates have their neighborhoods in a step, so only these are computed.
        rows = np.flatnonzero(self.rng.random(len(ids_C)) >= STRUCTURE_DROPOUT)
        rows_S = self._tensor(rows)
        kinds_SM = _product(self.profile[ids_C[rows]], kinds_KM)
        if left_CM is not None:
            kinds_SM = kinds_SM - left_CM[rows_S]
        count_S1 = degree_C[rows_S].clamp(min=1)[:, None]
        with _products(self.settings.precision, self.device):
            around_SW = head.candidate_neighbor(self.drop(sums_CD[rows_S] / count_S1))
            around_SW = around_SW + head.candidate_edge(kinds_SM / count_S1)
        return normalize(text_CW.index_add(0, rows_S, around_SW.float()), dim=1)

    def loss(self, batch: Batch) -> torch.Tensor:
        """Cross-entropy of each answer against all candidates that are no answers, the mean of T answers."""
        sampled = self.settings.sampled(len(self.seen_S))
        kinds_KM = self.head.kinds(self.relation_texts_RD)
        query_BW = self.query(batch, kinds_KM)
        seen, weight = self.seen_S, 0.0
        if 0 < sampled < len(seen):
            weight = math.log(len(seen) / sampled)
            seen = np.sort(self.rng.choice(seen, sampled, replace=False))
        answers_T, asking_T = batch.answer_T, batch.entity_B[batch.row_T]
        answers = answers_T.cpu().numpy()
        # Texts of all that are scored, each once; without a sample, the answers are among the candidates.
        ids = np.union1d(seen, answers) if weight else seen
        with _products(self.settings.precision, self.device):
            text_IW = self.head.candidate(self.drop(self.texts_ND[self._tensor(ids)])).float()
        text_CW = text_IW[self._tensor(np.searchsorted(ids, seen))] if weight else text_IW
        text_TW = text_IW[self._tensor(np.searchsorted(ids, answers))]
        ids_C = self._tensor(seen)
        others_CW = self.candidates(seen, text_CW, self.sums_ND[ids_C], self.degree_N[ids_C], kinds_KM)
        back_T = batch.kind_B[batch.row_T] ^ 1  # as the answer has the edge that is asked for
        left_TD, left_T = self.sums_ND[answers_T] - self.texts_ND[asking_T], self.degree_N[answers_T] - 1
        answers_TW = self.candidates(answers, text_TW, left_TD, left_T, kinds_KM, kinds_KM[back_T])
        sharp = self.head.sharpness.exp().clamp(max=100)
        with _products(self.settings.precision, self.device):
            scores_BC = (sharp * query_BW) @ others_CW.T
        scores_BC = scores_BC.float()
        rows, columns = self._no_negatives(batch, seen)
        scores_BC.index_put_((rows, columns), scores_BC.new_tensor(LEFT_OUT))
        scores_T = sharp * (query_BW[batch.row_T] * answers_TW).sum(1)
        loss_T = softplus(scores_BC.logsumexp(1)[batch.row_T] + weight - scores_T)
        return loss_T.mean()

    def _no_negatives(self, batch: Batch, seen: IntArray) -> tuple[torch.Tensor, torch.Tensor]:
        """Where candidates answer the query, or are its own entity."""
        rows = np.concatenate([batch.row_T.cpu().numpy(), np.arange(len(batch.entity_B))])
        ids = np.concatenate([batch.answer_T.cpu().numpy(), batch.entity_B.cpu().numpy()])
        at = np.minimum(np.searchsorted(seen, ids), len(seen) - 1)
        mask = seen[at] == ids
        return (torch.from_numpy(x[mask]).to(self.device) for x in (rows, at))  # type: ignore[return-value]

    def run(
        self,
        texts_ND: Floats,
        sums_ND: Floats,
        profile: sp.csr_array,
        advance: Callable[[int], None],
        seconds: float | None = None,
    ) -> dict[str, Floats]:
        """Train, and return the parameters by name.

        Args:
            texts_ND: vectors of the texts of all entities.
            sums_ND: of each entity's neighbors.
            profile: counts of the edges of each kind for each entity ``(N, K)``.
            advance: called with the number of steps just done.
            seconds: stop after this time, to which the learning rate falls.

        Raises:
            RunError: when the loss is no longer a number.
        """
        keep_memory()
        if seconds is not None:
            self.ends = (time.monotonic(), time.monotonic() + seconds)
        self.hold(texts_ND, sums_ND, profile)
        self.head.train()
        for step, chosen in enumerate(islice(self.batches(), self.settings.steps)):
            if step and self._position(step) >= self.settings.steps:
                break
            loss = self.loss(self.batch(chosen))
            if not loss.isfinite():
                raise RunError("the bi-encoder's loss is no longer a number; lower biencoder.learning_rate")
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.rate.step()
            bound_memory()
            advance(1)
        return {k: v.detach().float().cpu().numpy() for k, v in self.head.state_dict().items()}


def _product(profile: Any, kinds_KM: torch.Tensor) -> torch.Tensor:
    """Counts of edges by kind ``(C, K)``, most of them 0, times the embeddings of the kinds: ``(C, M)``."""
    parts = (profile.indices.astype(np.int64), profile.indptr[:-1].astype(np.int64), profile.data)
    kinds_E, first_C, count_E = (torch.from_numpy(x).to(kinds_KM.device) for x in parts)
    return embedding_bag(kinds_E, kinds_KM, first_C, mode="sum", per_sample_weights=count_E)


def _products(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """A context in which matrices are multiplied in the precision of the settings."""
    if not reduced(precision, device.type == "cuda"):
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)
