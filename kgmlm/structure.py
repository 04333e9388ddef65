"""A structural model beside the text: ComplEx, trained by PyKEEN, as one more scorer.

It knows entities by their training triples alone and nothing of their texts. What it has never seen it is
neutral about: such a candidate gets the mean over the entities that it knows, such a query scores all alike.

PyKEEN takes seconds to import, so it is imported inside :func:`train_structure` only.

Shapes: B queries, N entities of a graph, S entities seen in training, R relations, D real numbers an entity.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kgmlm import files
from kgmlm.config import StructureSettings
from kgmlm.filters import GroupedAnswers
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import IntArray, Queries, RunError
from kgmlm.modeling import reduced_products

DIVERGED = 1e10  # the product of three such embeddings is near the end of float32
INITIAL = 1e-3  # standard deviation of fresh embeddings (Lacroix et al., 2018)


@dataclass(frozen=True, eq=False)
class Structure:
    """ComplEx embeddings over a graph, and how much they count for each relation.

    Attributes:
        entities_SD: real parts, then imaginary parts.
        relations_RD: rows 2r for (head, r, ?) and 2r + 1, the reciprocal relation, for (?, r, tail).
        weights_R2: of relation r for tails, then heads; a query's structural scores are multiplied by it.
        rows_N: where each entity of the graph is in ``entities_SD``; -1 where training has not seen it.
        relation_rows: which relation each relation of the graph is; -1 where training has not seen it.
    """

    entities_SD: torch.Tensor
    relations_RD: torch.Tensor
    weights_R2: torch.Tensor
    rows_N: torch.Tensor
    relation_rows: IntArray

    def over(self, rows_N: IntArray, relation_rows: IntArray) -> Structure:
        """The same over another graph.

        Args:
            rows_N: which entity of this graph each entity of the other is; -1 for none.
            relation_rows: the same for relations.
        """
        mine = np.append(self.rows_N.cpu().numpy(), -1)
        relations = np.append(self.relation_rows, -1)
        rows = torch.from_numpy(mine[rows_N]).to(self.rows_N.device)
        return replace(self, rows_N=rows, relation_rows=relations[relation_rows])

    def weighted(self, weights_R2: torch.Tensor) -> Structure:
        """The same with other weights."""
        return replace(self, weights_R2=weights_R2.to(self.weights_R2.device))

    def to(self, device: torch.device) -> Structure:
        """The same on a device."""
        names = ("entities_SD", "relations_RD", "weights_R2", "rows_N")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def score(self, queries: Queries, entity_ids: IntArray | None = None) -> torch.Tensor:
        """Weighted scores ``(B, N)``; those of a query whose entity or relation is unknown are 0.

        Args:
            entity_ids: candidates, ``(N,)`` or a row of each query's own, ``(B, N)``; None is all.
        """
        query_BD, weight_B = self._queries(queries)
        mean_B = query_BD @ self.entities_SD.mean(0)
        rows = self.rows_N if entity_ids is None else self.rows_N[self._tensor(entity_ids)]
        if rows.ndim == 1:
            known_BN = (query_BD @ self.entities_SD.T)[:, rows]
        else:
            known_BN = (self.entities_SD[rows] @ query_BD[:, :, None])[:, :, 0]
        return weight_B[:, None] * torch.where(rows < 0, mean_B[:, None], known_BN)

    def _tensor(self, values: IntArray) -> torch.Tensor:
        return torch.from_numpy(values).to(self.entities_SD.device)

    def _queries(self, queries: Queries) -> tuple[torch.Tensor, torch.Tensor]:
        """What an answer's embedding is multiplied by ``(B, D)``, and each query's weight."""
        entity_B = self.rows_N[self._tensor(queries.entity_B)]
        relation_B = self._tensor(self.relation_rows[queries.relation_B])
        side_B = self._tensor(1 - queries.tail_B.astype(np.int64))
        known_B = (entity_B >= 0) & (relation_B >= 0)
        product_BD = complex_product(self.entities_SD[entity_B], self.relations_RD[2 * relation_B + side_B])
        return product_BD, torch.where(known_B, self.weights_R2[relation_B, side_B], 0.0)


def complex_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Products of complex numbers ``(..., D)`` given as D / 2 real and then D / 2 imaginary parts."""
    (a_real, a_imaginary), (b_real, b_imaginary) = a.chunk(2, -1), b.chunk(2, -1)
    real = a_real * b_real - a_imaginary * b_imaginary
    return torch.cat([real, a_real * b_imaginary + a_imaginary * b_real], -1)


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
    """Train ComplEx with reciprocal relations on the training triples; all weights are 1.

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
        side_U = 1 - queries.tail_B.astype(np.int64)
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
        torch.ones(len(graph.relations), 2),
        torch.from_numpy(rows_N),
        _relation_rows(graph),
    )


def _relation_rows(graph: KnowledgeGraph) -> IntArray:
    """Of each relation its own number, -1 where training has no triple of it."""
    numbers = np.arange(len(graph.relations))
    return np.where(np.isin(numbers, graph.splits["train"][:, 1]), numbers, -1)


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


def save_structure(structure: Structure, path: Path) -> None:
    """Write embeddings and weights as safetensors."""
    tensors = {
        "entities": structure.entities_SD,
        "relations": structure.relations_RD,
        "weights": structure.weights_R2,
        "rows": structure.rows_N,
    }
    files.write_tensors(path, {k: v.cpu().contiguous() for k, v in tensors.items()})


def load_structure(path: Path, graph: KnowledgeGraph) -> Structure:
    """What :func:`save_structure` saved for a graph.

    Raises:
        RunError: when the file is damaged or of another graph.
    """
    from safetensors.torch import load_file

    try:
        t = load_file(path)
        structure = Structure(t["entities"], t["relations"], t["weights"], t["rows"], _relation_rows(graph))
        rows = structure.rows_N
        floats = (structure.entities_SD, structure.relations_RD, structure.weights_R2)
        if any(x.dtype != torch.float32 or x.ndim != 2 for x in floats):
            raise ValueError("its embeddings or weights are not rows of float32")
        if structure.entities_SD.shape[1] != structure.relations_RD.shape[1] or floats[0].shape[1] % 2:
            raise ValueError("its entities and relations are not of the same width")
        if rows.dtype != torch.int64 or rows.ndim != 1 or not ((rows >= -1) & (rows < len(floats[0]))).all():
            raise ValueError("it names entities that it does not have")
    except Exception as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise RunError(f"{path} cannot be read: {why}") from None
    expected = (len(graph.entities), (len(graph.relations), 2), 2 * len(graph.relations))
    found = (len(rows), tuple(structure.weights_R2.shape), len(structure.relations_RD))
    if found != expected:
        raise RunError(f"{path} is of another graph; `kgmlm fuse {path.parent}` makes one anew")
    return structure
