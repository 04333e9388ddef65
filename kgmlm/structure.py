"""A structural model beside the text: ComplEx, trained by PyKEEN, as one more scorer.

It knows entities by their training triples alone and nothing of their texts. What it has never seen it is
neutral about: such a candidate gets the mean over the entities that it knows, such a query scores all alike.

PyKEEN takes seconds to import, so it is imported inside :func:`train_structure` only.

Shapes: B queries, N entities of a graph, S entities seen in training, R relations, D real numbers an entity.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kgmlm.config import StructureSettings
from kgmlm.kg import IntArray, KnowledgeGraph, Queries, RunError
from kgmlm.modeling import reduced_products

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
) -> Structure:
    """Train ComplEx with reciprocal relations on the training triples; all weights are 1.

    The loss is a softmax over all entities that training has seen, all true answers of a query as targets
    (Lacroix et al., 2018), so that no other entity is ever a negative. PyKEEN multiplies complex tensors,
    which CPUs do slowly; the interaction here is the same function of real ones.

    Args:
        advance: called with (1, all epochs) after each.
    """
    import warnings

    with _quiet_pykeen(), warnings.catch_warnings(), reduced_products(settings.precision == "bf16"):
        warnings.filterwarnings("ignore", category=UserWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        from pykeen.losses import CrossEntropyLoss
        from pykeen.models import ERModel
        from pykeen.nn.modules import Interaction
        from pykeen.regularizers import PowerSumRegularizer
        from pykeen.training import LCWATrainingLoop
        from pykeen.training.callbacks import TrainingCallback
        from pykeen.triples import CoreTriplesFactory

        class RealComplEx(Interaction[torch.Tensor, torch.Tensor, torch.Tensor]):
            """ComplEx (Trouillon et al., 2016) of real tensors."""

            def forward(self, h: torch.Tensor, r: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
                return torch.einsum("...d,...d->...", complex_product(h, r), t)

        class Progress(TrainingCallback):
            """Counts epochs."""

            def post_epoch(self, epoch: int, epoch_loss: float, **kwargs: Any) -> None:
                advance(1, settings.epochs)

        seen = np.flatnonzero(graph.seen_N)
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
            "regularizer": PowerSumRegularizer,
            "regularizer_kwargs": {"p": 3.0, "weight": settings.regularization},
        }
        model = ERModel(
            triples_factory=factory,
            interaction=RealComplEx,
            loss=CrossEntropyLoss(),
            entity_representations_kwargs=embedding,
            relation_representations_kwargs=embedding,
            random_seed=settings.seed,
        )
        model = model.to(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        loop = LCWATrainingLoop(
            model=model,
            triples_factory=factory,
            optimizer=torch.optim.Adagrad(model.parameters(), lr=settings.learning_rate),
        )
        loop.train(
            factory,
            num_epochs=settings.epochs,
            batch_size=settings.batch_size,
            use_tqdm=False,
            use_tqdm_batch=False,
            callbacks=Progress(),  # type: ignore[no-untyped-call]
            pin_memory=False,
        )
    with torch.no_grad():
        entities_SD, relations_RD = (
            r[0](None).detach().cpu().clone()
            for r in (model.entity_representations, model.relation_representations)
        )
    rows_N = np.full(len(graph.entities), -1)
    rows_N[seen] = np.arange(len(seen))
    return Structure(
        entities_SD,
        relations_RD,
        torch.ones(len(graph.relations), 2),
        torch.from_numpy(rows_N),
        np.arange(len(graph.relations)),
    )


def save_structure(structure: Structure, path: Path) -> None:
    """Write embeddings and weights as safetensors."""
    from safetensors.torch import save_file

    tensors = {
        "entities": structure.entities_SD,
        "relations": structure.relations_RD,
        "weights": structure.weights_R2,
        "rows": structure.rows_N,
    }
    temporary = path.with_name(f".{path.name}.new")
    try:
        save_file({k: v.cpu().contiguous() for k, v in tensors.items()}, temporary)
        temporary.replace(path)
    except Exception as error:
        raise OSError(f"{path}: the structural model cannot be written: {error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def load_structure(path: Path, graph: KnowledgeGraph) -> Structure:
    """What :func:`save_structure` saved for a graph.

    Raises:
        RunError: when the file is damaged or of another graph.
    """
    from safetensors.torch import load_file

    try:
        t = load_file(path)
        structure = Structure(
            t["entities"], t["relations"], t["weights"], t["rows"], np.arange(len(graph.relations))
        )
    except Exception as error:
        raise RunError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    expected = (len(graph.entities), len(graph.relations), 2 * len(graph.relations))
    found = (len(structure.rows_N), len(structure.weights_R2), len(structure.relations_RD))
    if found != expected:
        raise RunError(f"{path} is of another graph; `kgmlm fuse {path.parent}` makes one anew")
    return structure
