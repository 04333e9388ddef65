"""What a user would train instead of kgmlm, by the clock: PyKEEN's models, and SimKGC's objective.

Each trains in one thread, and its time is that of the processor: so many minutes of two cores are twice as
many of one thread, which loses nothing by sharing. Snapshots are measured in between, off the clock.

- ComplEx: PyKEEN's, by a softmax over all entities on both sides (LCWA, inverse triples, Adagrad).
- TransE: PyKEEN's, by self-adversarial negative sampling (Sun et al., 2019).
- SimKGC: two encoders that begin as the same pretrained one, and InfoNCE with negatives of the batch and the
  query's own entity (Wang et al., 2022).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

sys.path.insert(0, str(Path(__file__).parents[1]))
import pykeen_complex

from kgmlm.core.arrays import Floats, IntArray
from kgmlm.evaluation.pykeen import to_factory
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.ranker import PlainScorer

Snapshot = Callable[[float, PlainScorer], None]  # minutes of two cores, and the model as it is
CORES = 2


class _Stop(Exception):
    """The time is over."""


class Clock:
    """Tells when a snapshot is due and when the time is over, by the time of the processor.

    Args:
        minutes: of two cores, rising; a snapshot comes after each.
    """

    def __init__(self, minutes: Sequence[float], snapshot: Snapshot) -> None:
        self.minutes, self.snapshot = list(minutes), snapshot
        self.last, self.off, self.began = minutes[-1], 0.0, time.process_time()

    @property
    def passed(self) -> float:
        """Minutes of two cores since the beginning, without snapshots."""
        return (time.process_time() - self.began - self.off) / 60 / CORES

    def tick(self, scorer: PlainScorer) -> None:
        """A step is done.

        Raises:
            _Stop: when the time is over.
        """
        if self.passed < self.minutes[0]:
            return
        before = time.process_time()
        self.snapshot(self.minutes.pop(0), scorer)
        self.off += time.process_time() - before
        if not self.minutes:
            raise _Stop


def train_pykeen(
    name: str, graph: KnowledgeGraph, minutes: Sequence[float], snapshot: Snapshot
) -> dict[str, Any]:
    """Train PyKEEN's ComplEx or TransE; returns what it was trained by."""
    from pykeen.losses import NSSALoss
    from pykeen.models import TransE
    from pykeen.training import SLCWATrainingLoop, TrainingCallback

    if name == "complex":
        factory, loop = pykeen_complex.complex_loop(graph, 200)
        how: dict[str, Any] = {"batch_size": pykeen_complex.BATCH}
        optimizer: Any = f"Adagrad, {pykeen_complex.LEARNING_RATE}"
        about = {"dimension": 200, "loop": "LCWA, inverse triples", "optimizer": optimizer, **how}
    else:
        loss = NSSALoss(margin=9.0, adversarial_temperature=1.0)
        factory = to_factory(graph, "train")
        model = TransE(triples_factory=factory, embedding_dim=200, loss=loss, random_seed=0)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        negatives = {"num_negs_per_pos": 64}
        loop = SLCWATrainingLoop(
            model=model, triples_factory=factory, optimizer=optimizer, negative_sampler_kwargs=negatives
        )
        how = {"batch_size": 512}
        about = {"dimension": 200, "loop": "sLCWA, 64 negatives", "optimizer": "Adam, 0.001", **how}
    scorer = pykeen_complex.PyKEENScorer(graph, loop.model)
    clock = Clock(minutes, snapshot)

    class Ticks(TrainingCallback):
        steps = 0

        def on_batch(self, *args: Any, **kwargs: Any) -> None:
            Ticks.steps += 1
            clock.tick(scorer)

    with suppress(_Stop):
        loop.train(factory, num_epochs=10**6, use_tqdm=False, callbacks=[Ticks()], **how)
    return {**about, "steps": Ticks.steps}


LENGTH = 50  # tokens of a text
BATCH = 128
MARGIN, TEMPERATURE, RATE, WARMUP = 0.02, 0.05, 5e-5, 0.1


class SimKGC(nn.Module):
    """Two encoders that begin as the same."""

    def __init__(self, graph: KnowledgeGraph, address: str) -> None:
        super().__init__()
        from transformers import AutoModel, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(address)
        self.asking, self.answering = (AutoModel.from_pretrained(address) for _ in range(2))
        self.sharpness = nn.Parameter(torch.tensor(1 / TEMPERATURE).log())
        columns = (graph.entities.column("surface"), graph.entities.column("description"))
        self.texts = [f"{name}: {text}" if text else name for name, text in zip(*columns, strict=True)]
        names = [relation.name for relation in graph.relations]
        self.relations = [(f"inverse {name}", name) for name in names]

    def read(self, encoder: nn.Module, *texts: list[str]) -> torch.Tensor:
        """Unit vectors of texts, or of pairs of them."""
        given = self.tokenizer(
            *texts, truncation="longest_first", max_length=LENGTH, padding=True, return_tensors="pt"
        )
        states_BTD = encoder(**given).last_hidden_state
        mask_BT1 = given["attention_mask"][:, :, None].float()
        return normalize((states_BTD * mask_BT1).sum(1) / mask_BT1.sum(1), dim=1)

    def ask(self, queries: Queries) -> torch.Tensor:
        """Vectors of queries."""
        entities = [self.texts[i] for i in queries.entity_B.tolist()]
        columns = zip(queries.relation_B.tolist(), queries.tail_B.tolist(), strict=True)
        return self.read(self.asking, entities, [self.relations[r][int(tail)] for r, tail in columns])


class SimKGCScorer(PlainScorer):
    """Cosines of a query and all entities, which are read when first asked for after a step."""

    def __init__(self, graph: KnowledgeGraph, model: SimKGC) -> None:
        super().__init__(len(graph.entities), len(graph.relations))
        self.model = model
        self.known_NW: torch.Tensor | None = None

    @torch.inference_mode()
    def score(self, queries: Queries) -> Floats:
        """Read the queries, in parts of equal lengths."""
        self.model.eval()
        if self.known_NW is None:
            texts = self.model.texts
            order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
            known_NW = torch.empty(len(texts), self.model.answering.config.hidden_size)
            for start in range(0, len(order), 128):
                some = order[start : start + 128]
                known_NW[some] = self.model.read(self.model.answering, [texts[i] for i in some])
            self.known_NW = known_NW
        scores_BN: Floats = (self.model.ask(queries) @ self.known_NW.T).numpy()
        return scores_BN


def train_simkgc(
    graph: KnowledgeGraph, address: str, minutes: Sequence[float], snapshot: Snapshot, batch: int = BATCH
) -> dict[str, Any]:
    """Train by SimKGC's objective; the learning rate falls to 0 at the end."""
    torch.manual_seed(0)
    model = SimKGC(graph, address)
    scorer = SimKGCScorer(graph, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=1e-4)
    queries, answers = graph.queries("train")
    known = graph.context.answers
    clock, steps = Clock(minutes, snapshot), 0
    with suppress(_Stop):
        for rows in _batches(len(queries), batch):
            done = min(1.0, clock.passed / clock.last)
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(done / WARMUP, (1 - done) / (1 - WARMUP))
            model.train()
            some, own = queries[rows], answers[rows]
            query_BW = model.ask(some)
            tail_BW = model.read(model.answering, [model.texts[i] for i in own.tolist()])
            self_BW = model.read(model.answering, [model.texts[i] for i in some.entity_B.tolist()])
            scores_BB = query_BW @ tail_BW.T - MARGIN * torch.eye(len(rows))
            false_BB = torch.zeros(len(rows), len(rows), dtype=torch.bool)
            for row, column in zip(*known.lookup(some), strict=True):
                false_BB[row] |= torch.from_numpy((own == column) & (np.arange(len(own)) != row))
            scores_BB = scores_BB.masked_fill(false_BB, -1e4)
            self_B1 = (query_BW * self_BW).sum(1, keepdim=True)
            logits = torch.cat([scores_BB, self_B1], 1) * model.sharpness.exp()
            loss = cross_entropy(logits, torch.arange(len(rows)))
            loss = loss + cross_entropy(logits[:, :-1].T, torch.arange(len(rows)))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            steps, scorer.known_NW = steps + 1, None
            clock.tick(scorer)
    about = {"batch_size": batch, "negatives": "batch, own entity", "optimizer": f"AdamW, {RATE}"}
    return {**about, "steps": steps}


def _batches(count: int, size: int) -> Iterator[IntArray]:
    rng = np.random.default_rng(0)
    while True:
        order = rng.permutation(count)
        for start in range(0, max(1, count - size + 1), size):
            yield order[start : start + size]


def trainings(name: str, model: str) -> Callable[..., dict[str, Any]]:
    """The training of a rival, by its name."""
    found: dict[str, Callable[..., dict[str, Any]]] = {
        "PyKEEN ComplEx": partial(train_pykeen, "complex"),
        "PyKEEN TransE": partial(train_pykeen, "transe"),
        "SimKGC": lambda graph, minutes, snapshot: train_simkgc(graph, model, minutes, snapshot),
    }
    return found[name]


RIVALS = ("PyKEEN ComplEx", "PyKEEN TransE", "SimKGC")
