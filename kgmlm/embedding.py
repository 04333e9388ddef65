"""Training of the KGE model: ComplEx by PyKEEN's loop, with a loss of our own.

PyKEEN takes seconds to import, so it is imported inside functions only.

Shapes: B queries, S entities seen in training, R relations, D real numbers per entity, T answers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import cross_entropy

from kgmlm.arrays import complex_product
from kgmlm.config import KGESettings
from kgmlm.filters import GroupedAnswers
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import IntArray, RunError
from kgmlm.modeling import reduced_products

DIVERGED = 1e10  # the product of three such embeddings is near the end of float32
INITIAL = 1e-3  # standard deviation of fresh embeddings (Lacroix et al., 2018)


@contextmanager
def _quiet_pykeen() -> Iterator[None]:
    """PyKEEN logs much that is no news here."""
    logger = logging.getLogger("pykeen")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class Embeddings(NamedTuple):
    """ComplEx embeddings: real parts, then imaginary parts.

    Attributes:
        entities_SD: of the entities that training has seen.
        relations_RD: rows 2r for (head, r, ?) and 2r + 1, the reciprocal relation, for (?, r, tail).
        rows_N: where each entity of the graph is in ``entities_SD``; -1 where training has not seen it.
    """

    entities_SD: torch.Tensor
    relations_RD: torch.Tensor
    rows_N: torch.Tensor


def train_complex(
    graph: KnowledgeGraph,
    settings: KGESettings,
    advance: Callable[[int, int], None] = lambda n, total: None,
    device: torch.device | None = None,
) -> Embeddings:
    """Train ComplEx with reciprocal relations on the training triples.

    Of each triple and side, the cross-entropy of a softmax over all entities that training has seen, so that
    no other entity is ever a negative, and the third powers of the moduli of its three embeddings (N3; both
    of Lacroix et al., 2018), unless ``settings.samples`` and ``settings.penalty`` say differently. PyKEEN's
    training loop runs, but neither its loss, which knows queries alone, nor its dense labels, nor its
    products of complex tensors, which are slow on CPUs.

    Args:
        advance: called with (1, all steps) after each.

    Raises:
        RunError: when the loss is no longer a number.
    """
    import warnings

    seen = np.flatnonzero(graph.seen_N)
    asked = _Asked.of(graph, seen, settings)
    with _quiet_pykeen(), warnings.catch_warnings(), reduced_products(settings.precision == "bf16"):
        warnings.filterwarnings("ignore", category=UserWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        model = _train(graph, seen, asked, settings, advance, device)
    with torch.no_grad():
        entities_SD, relations_RD = (x.cpu().clone() for x in _tables(model))
    if not all(x.abs().max() < DIVERGED for x in (entities_SD, relations_RD)):  # NaN is not less either
        raise RunError("the KGE model has diverged; lower kge.learning_rate")
    rows_N = np.full(len(graph.entities), -1)
    rows_N[seen] = np.arange(len(seen))
    return Embeddings(entities_SD, relations_RD, torch.from_numpy(rows_N))


class _Enough(Exception):
    """As many steps are done as were asked for."""


class _Asked(NamedTuple):
    """The distinct queries of the training triples: entity and reciprocal relation, answers, weights."""

    queries_U2: IntArray
    answers: GroupedAnswers
    weight_U: npt.NDArray[np.float32]

    @classmethod
    def of(cls, graph: KnowledgeGraph, seen: IntArray, settings: KGESettings) -> _Asked:
        """Of a graph; entities are counted among those that are seen."""
        queries, answers = graph.unique_queries("train")
        columns = (np.searchsorted(seen, queries.entity_B), 2 * queries.relation_B + queries.side_B)
        counts_U = np.diff(answers.offsets)
        # By the average number of answers, not by a batch's own, so that all triples count alike.
        alike_U = counts_U if settings.samples == "queries" else np.full(len(counts_U), counts_U.mean())
        answers = GroupedAnswers(answers.offsets, np.searchsorted(seen, answers.ids))
        return cls(np.stack(columns, 1), answers, (1 / alike_U).astype(np.float32))

    def batch(self, of: list[int]) -> list[torch.Tensor]:
        """Some queries, their answers, which query each answer is of, and how much it counts."""
        chosen = np.array(of)
        rows_T, answers_T = self.answers.take(chosen)
        parts = (self.queries_U2[chosen], answers_T, rows_T, self.weight_U[chosen][rows_T])
        return [torch.from_numpy(x) for x in parts]


def _train(
    graph: KnowledgeGraph,
    seen: IntArray,
    asked: _Asked,
    settings: KGESettings,
    advance: Callable[[int, int], None],
    device: torch.device | None,
) -> Any:
    """The model that PyKEEN's loop has trained."""
    from pykeen.models import ERModel
    from pykeen.nn.modules import ComplExInteraction
    from pykeen.training import NonFiniteLossError
    from pykeen.triples import CoreTriplesFactory

    triples = graph.triples("train").copy()
    triples[:, [0, 2]] = np.searchsorted(seen, triples[:, [0, 2]])
    factory = CoreTriplesFactory(
        torch.from_numpy(triples),
        num_entities=len(seen),
        num_relations=len(graph.relations),
        create_inverse_triples=True,
    )
    embedding: dict[str, Any] = {
        "shape": 2 * settings.dimension,
        "initializer": torch.nn.init.normal_,
        "initializer_kwargs": {"std": INITIAL},
    }
    model = ERModel(
        triples_factory=factory,
        interaction=ComplExInteraction,
        entity_representations_kwargs=embedding,
        relation_representations_kwargs=embedding,
        random_seed=settings.seed,
    )
    model = model.to(device or torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    loop, progress = _loop(asked, settings, advance)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=settings.learning_rate)
    trained = loop(
        model=model, triples_factory=factory, optimizer=optimizer, automatic_memory_optimization=False
    )
    try:
        trained.train(
            factory,
            num_epochs=settings.epochs,
            batch_size=settings.batch_size,
            use_tqdm=False,
            use_tqdm_batch=False,
            callbacks=progress(),
            pin_memory=False,
        )
    except _Enough:
        pass
    except NonFiniteLossError:
        raise RunError("the KGE model's loss is no longer a number; lower kge.learning_rate") from None
    return model


def _loop(asked: _Asked, settings: KGESettings, advance: Callable[[int, int], None]) -> tuple[Any, Any]:
    """PyKEEN's training loop over distinct queries, each with all of its answers; and what counts steps."""
    from pykeen.training import TrainingLoop
    from pykeen.training.callbacks import TrainingCallback
    from torch.utils.data import DataLoader

    count = len(asked.queries_U2)

    steps = settings.epochs * math.ceil(count / settings.batch_size)
    last = min(steps, settings.max_steps or steps)

    class Progress(TrainingCallback):
        done = 0

        def on_batch(self, epoch: int, batch: Any, batch_loss: float, **kwargs: Any) -> None:
            advance(1, last)
            self.done += 1
            if self.done == last < steps:
                raise _Enough

    class Loop(TrainingLoop[Any]):
        def _create_training_data_loader(
            self, triples_factory: Any, sampler: str | None, **kwargs: Any
        ) -> DataLoader[Any]:
            return DataLoader(range(count), collate_fn=asked.batch, **kwargs)  # type: ignore[arg-type]

        @staticmethod
        def _get_batch_size(batch: Any) -> int:
            return len(batch[0])

        def _process_batch(self, batch: Any, start: int, stop: int, *args: Any, **kwargs: Any) -> Any:
            queries_B2, answers_T, rows_T, weight_T = (x.to(self.model.device) for x in batch)
            return kge_loss(*_tables(self.model), queries_B2, answers_T, rows_T, weight_T, settings)

        def _slice_size_search(self, **kwargs: Any) -> int:
            raise NotImplementedError("asked for by automatic memory optimization alone")

    return Loop, Progress


def _tables(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """All entities' and all relations' embeddings of a PyKEEN model."""
    return model.entity_representations[0](None), model.relation_representations[0](None)


def kge_loss(
    entities_SD: torch.Tensor,
    relations_RD: torch.Tensor,
    queries_B2: torch.Tensor,
    answers_T: torch.Tensor,
    rows_T: torch.Tensor,
    weight_T: torch.Tensor,
    settings: KGESettings,
) -> torch.Tensor:
    """Cross-entropy and penalty of the T answers of B queries, divided by B.

    With ``settings.relation_weight`` also the cross-entropy of the relation, given entity and answer (Chen et
    al., Relation Prediction as an Auxiliary Training Objective, 2021).

    Args:
        queries_B2: entity and relation of each query.
        rows_T: which query each answer is of.
        weight_T: how much each answer counts.
    """
    entity_BD, relation_BD = entities_SD[queries_B2[:, 0]], relations_RD[queries_B2[:, 1]]
    scores_BS = complex_product(entity_BD, relation_BD) @ entities_SD.T
    loss_T = scores_BS.logsumexp(1)[rows_T] - scores_BS[rows_T, answers_T]
    penalty = loss_T.new_zeros(())
    if settings.regularization and settings.penalty == "triples":
        query_B = _cubes(entity_BD) + _cubes(relation_BD)
        loss_T = loss_T + settings.regularization * (query_B[rows_T] + _cubes(entities_SD[answers_T]))
    elif settings.regularization:
        query_B = (entity_BD.abs() ** 3).sum(1) + (relation_BD.abs() ** 3).sum(1)
        loss_T = loss_T + settings.regularization * query_B[rows_T]
        penalty = settings.regularization * (entities_SD.abs() ** 3).sum(1).mean()
    if settings.relation_weight:
        scores_TR = complex_product(_conjugate(entity_BD)[rows_T], entities_SD[answers_T]) @ relations_RD.T
        asked_T = queries_B2[rows_T, 1]
        loss_T = loss_T + settings.relation_weight * cross_entropy(scores_TR, asked_T, reduction="none")
    loss: torch.Tensor = (weight_T * loss_T).sum() / len(queries_B2) + penalty
    return loss


def _cubes(embeddings: torch.Tensor) -> torch.Tensor:
    """Sum of the third powers of the moduli of complex embeddings ``(..., D)``: ``(...)``."""
    real, imaginary = embeddings.chunk(2, -1)
    # The square root has no slope at 0, where an embedding may begin.
    return (real.square() + imaginary.square() + 1e-20).pow(1.5).sum(-1)


def _conjugate(embeddings: torch.Tensor) -> torch.Tensor:
    """Complex conjugates ``(..., D)``."""
    real, imaginary = embeddings.chunk(2, -1)
    return torch.cat([real, -imaginary], -1)
