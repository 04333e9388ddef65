"""Training of the structural model: ComplEx by PyKEEN's loop, with a loss of our own.

PyKEEN takes seconds to import, so it is imported inside :func:`train_structure` only.

Shapes: B queries, S entities seen in training, R relations, D real numbers an entity, T answers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from kgmlm.config import StructureSettings
from kgmlm.filters import GroupedAnswers
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import RunError
from kgmlm.modeling import reduced_products
from kgmlm.signals.structure import Structure, complex_product, relation_rows

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


def train_structure(
    graph: KnowledgeGraph,
    settings: StructureSettings,
    advance: Callable[[int, int], None] = lambda n, total: None,
    device: torch.device | None = None,
) -> Structure:
    """Train ComplEx with reciprocal relations on the training triples.

    Of each triple and side, the cross-entropy of a softmax over all entities that training has seen, so that
    no other entity is ever a negative, and the third powers of the moduli of its three embeddings (N3; both
    of Lacroix et al., 2018), unless ``settings.samples`` and ``settings.penalty`` say otherwise. PyKEEN's
    training loop runs, but neither its loss, which knows queries alone, nor its dense labels, nor its
    products of complex tensors, which are slow on CPUs.

    Args:
        advance: called with (1, all steps) after each.

    Raises:
        RunError: when the loss is no longer a number.
    """
    import warnings

    with _quiet_pykeen(), warnings.catch_warnings(), reduced_products(settings.precision == "bf16"):
        warnings.filterwarnings("ignore", category=UserWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        from pykeen.models import ERModel
        from pykeen.nn.modules import ComplExInteraction
        from pykeen.training import NonFiniteLossError, TrainingLoop
        from pykeen.training.callbacks import TrainingCallback
        from pykeen.triples import CoreTriplesFactory
        from torch.utils.data import DataLoader

        class Progress(TrainingCallback):
            """Counts steps."""

            def on_batch(self, epoch: int, batch: Any, batch_loss: float, **kwargs: Any) -> None:
                advance(1, settings.epochs * math.ceil(len(queries_U2) / settings.batch_size))

        seen = np.flatnonzero(graph.seen_N)
        triples = graph.triples("train").copy()
        triples[:, [0, 2]] = np.searchsorted(seen, triples[:, [0, 2]])
        queries, answers = graph.unique_queries("train")
        side_U = queries.side_B
        queries_U2 = np.stack([np.searchsorted(seen, queries.entity_B), 2 * queries.relation_B + side_U], 1)
        answers = GroupedAnswers(answers.offsets, np.searchsorted(seen, answers.ids))

        counts_U = np.diff(answers.offsets)
        # By the average number of answers, not by a batch's own, so that all triples count alike.
        alike_U = counts_U if settings.samples == "queries" else np.full(len(counts_U), counts_U.mean())
        weight_U = (1 / alike_U).astype(np.float32)

        def batch(of: list[int]) -> list[torch.Tensor]:
            """Some queries, their answers, which query each answer is of, and how much it counts."""
            chosen = np.array(of)
            rows_T, answers_T = answers.take(chosen)
            parts = (queries_U2[chosen], answers_T, rows_T, weight_U[chosen][rows_T])
            return [torch.from_numpy(x) for x in parts]

        class Loop(TrainingLoop[Any]):
            """PyKEEN's loop over distinct queries, each with all of its answers."""

            def _create_training_data_loader(
                self, triples_factory: Any, sampler: str | None, **kwargs: Any
            ) -> DataLoader[Any]:
                return DataLoader(range(len(queries_U2)), collate_fn=batch, **kwargs)  # type: ignore[arg-type]

            @staticmethod
            def _get_batch_size(batch: Any) -> int:
                return len(batch[0])

            def _process_batch(self, batch: Any, start: int, stop: int, *args: Any, **kwargs: Any) -> Any:
                entities_SD, relations_RD = _tables(self.model)
                queries_B2, answers_T, rows_T, weight_T = (x.to(self.model.device) for x in batch)
                return structure_loss(
                    entities_SD, relations_RD, queries_B2, answers_T, rows_T, weight_T, settings
                )

            def _slice_size_search(self, **kwargs: Any) -> int:
                raise NotImplementedError("asked for by automatic memory optimization alone")

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
        loop = Loop(
            model=model,
            triples_factory=factory,
            optimizer=torch.optim.Adagrad(model.parameters(), lr=settings.learning_rate),
            automatic_memory_optimization=False,
        )
        try:
            loop.train(
                factory,
                num_epochs=settings.epochs,
                batch_size=settings.batch_size,
                use_tqdm=False,
                use_tqdm_batch=False,
                callbacks=Progress(),  # type: ignore[no-untyped-call]
                pin_memory=False,
            )
        except NonFiniteLossError:
            raise RunError(
                "the structural model's loss is no longer a number; lower structure.learning_rate"
            ) from None
    with torch.no_grad():
        entities_SD, relations_RD = (x.cpu().clone() for x in _tables(model))
    if not all(x.abs().max() < DIVERGED for x in (entities_SD, relations_RD)):  # NaN is not less either
        raise RunError("the structural model has diverged; lower structure.learning_rate")
    rows_N = np.full(len(graph.entities), -1)
    rows_N[seen] = np.arange(len(seen))
    return Structure(
        entities_SD,
        relations_RD,
        torch.from_numpy(rows_N),
        relation_rows(graph),
    )


def _tables(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """All entities' and all relations' embeddings of a PyKEEN model."""
    return model.entity_representations[0](None), model.relation_representations[0](None)


def structure_loss(
    entities_SD: torch.Tensor,
    relations_RD: torch.Tensor,
    queries_B2: torch.Tensor,
    answers_T: torch.Tensor,
    rows_T: torch.Tensor,
    weight_T: torch.Tensor,
    settings: StructureSettings,
) -> torch.Tensor:
    """Cross-entropy and penalty of the T answers of B queries, divided by B.

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
    return (weight_T * loss_T).sum() / len(queries_B2) + penalty


def _cubes(embeddings: torch.Tensor) -> torch.Tensor:
    """Sum of the third powers of the moduli of complex embeddings ``(..., D)``: ``(...)``."""
    real, imaginary = embeddings.chunk(2, -1)
    # The square root has no slope at 0, where an embedding may begin.
    return (real.square() + imaginary.square() + 1e-20).pow(1.5).sum(-1)
