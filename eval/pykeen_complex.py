"""PyKEEN's models as scorers of kgmlm, and its ComplEx as PyKEEN trains it, for comparisons."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from pykeen.models import ComplEx
from pykeen.training import LCWATrainingLoop
from pykeen.triples import TriplesFactory

from kgmlm.core.arrays import Floats, IntArray
from kgmlm.core.config import Protocol
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.evaluation.pykeen import to_factory
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.ranker import PlainScorer

# Fresh embeddings of PyKEEN's default size (standard deviation 1) have .26 on UMLS where these have .66.
INITIAL = 1e-3
LEARNING_RATE = 0.1
BATCH = 256


class PyKEENScorer(PlainScorer):
    """Scores of a PyKEEN model."""

    def __init__(self, graph: KnowledgeGraph, model: Any) -> None:
        super().__init__(len(graph.entities), len(graph.relations))
        self.model = model

    @torch.no_grad()
    def score(self, queries: Queries) -> Floats:
        """By PyKEEN's own functions."""
        training = self.model.training
        scores_BN = torch.empty(len(queries), self.entities)
        tails, heads = np.flatnonzero(queries.tail_B), np.flatnonzero(~queries.tail_B)
        if len(tails):
            scores_BN[tails] = self.model.predict_t(_rows(tails, queries.entity_B, queries.relation_B))
        if len(heads):
            scores_BN[heads] = self.model.predict_h(_rows(heads, queries.relation_B, queries.entity_B))
        self.model.train(training)
        return scores_BN.numpy()


def _rows(chosen: IntArray, *columns: IntArray) -> torch.Tensor:
    """Some rows of columns ``(B, 2)``."""
    return torch.from_numpy(np.stack(columns, 1)[chosen])


def complex_loop(graph: KnowledgeGraph, dimension: int) -> tuple[TriplesFactory, LCWATrainingLoop]:
    """Triples and a training loop of ComplEx: a softmax over all entities, on both sides of training triples.

    Args:
        dimension: complex numbers per entity.
    """
    of = to_factory(graph, "train")
    factory = TriplesFactory(
        mapped_triples=of.mapped_triples,
        entity_to_id=of.entity_to_id,
        relation_to_id=of.relation_to_id,
        create_inverse_triples=True,
    )
    fresh = partial(torch.nn.init.normal_, std=INITIAL)
    model = ComplEx(
        triples_factory=factory,
        embedding_dim=dimension,
        loss="crossentropy",
        entity_initializer=fresh,
        relation_initializer=fresh,
        regularizer=None,
        random_seed=0,
    )
    optimizer = torch.optim.Adagrad(model.parameters(), lr=LEARNING_RATE)
    return factory, LCWATrainingLoop(model=model, triples_factory=factory, optimizer=optimizer)


class PyKEENComplEx(PyKEENScorer):
    """ComplEx, trained until validation is worse after an epoch; the best embeddings are kept.

    Args:
        epochs: at most, over the distinct queries of both sides.
        validated: on how many validation triples epochs are compared.
        dimension: complex numbers per entity.
    """

    def __init__(self, graph: KnowledgeGraph, epochs: int, validated: int, dimension: int) -> None:
        factory, loop = complex_loop(graph, dimension)
        super().__init__(graph, loop.model)
        best: dict[str, torch.Tensor] = {}
        self.mrr: list[float] = []  # after each epoch
        for epoch in range(epochs):
            loop.train(factory, epoch + 1, batch_size=BATCH, continue_training=epoch > 0, use_tqdm=False)
            report = evaluate(self, graph, Protocol(split="valid", max_triples=validated)).report
            self.mrr.append(report["metrics"]["both.realistic.inverse_harmonic_mean_rank"])
            print(f"PyKEEN's ComplEx, epoch {epoch + 1}: validation MRR {self.mrr[-1]:.4f}", flush=True)
            if self.mrr[-1] < max(self.mrr):
                break
            best = {name: values.clone() for name, values in self.model.state_dict().items()}
        self.model.load_state_dict(best)
        self.about = {
            "dimension": dimension,
            "training_loop": "LCWA, inverse triples",
            "loss": "crossentropy",
            "optimizer": f"Adagrad, {LEARNING_RATE}",
            "initial_std": INITIAL,
            "batch_size": BATCH,
            "valid_mrr": [round(mrr, 5) for mrr in self.mrr],
        }
