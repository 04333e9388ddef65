"""Conversions for PyKEEN: factories, metric results, a model for its predict functions.

PyKEEN takes seconds to import, so it is imported inside these functions only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kgmlm.core.arrays import BoolArray
from kgmlm.core.errors import QueryError
from kgmlm.evaluation.metrics import HITS_AT, RANK_TYPES, SIDES, Ranks
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries

if TYPE_CHECKING:
    from pykeen.evaluation import RankBasedMetricResults
    from pykeen.models import Model
    from pykeen.triples import TriplesFactory

    from kgmlm.ranking.predictor import Predictor


def to_factory(graph: KnowledgeGraph, split: str) -> TriplesFactory:
    """A split as a PyKEEN factory over *all* entities, ids kept, nothing dropped."""
    from pykeen.triples import TriplesFactory

    return TriplesFactory(
        mapped_triples=torch.tensor(graph.triples(split)),  # a copy: those of a run are a file
        entity_to_id=graph.entities.index,
        relation_to_id=graph.relations.index,
    )


def to_pykeen(ranks: Ranks, tail_B: BoolArray) -> RankBasedMetricResults:
    """Ranks as PyKEEN's own result object, computed by PyKEEN's own metrics.

    Args:
        ranks: such as ``Evaluation.ranks``.
        tail_B: which of them are of tail queries.
    """
    from pykeen.evaluation import RankBasedMetricResults
    from pykeen.evaluation.rank_based_evaluator import RankPack
    from pykeen.metrics.ranking import rank_based_metric_resolver as resolver

    names = ("mrr", "mr", "amr", "amri", "adjusted_mrr", "gmr", "median_rank", "count")
    metrics = [resolver.make(m) for m in names] + [resolver.make("hits_at_k", k=k) for k in HITS_AT]
    masks = {"head": ~tail_B, "tail": tail_B, "both": np.ones_like(tail_B)}
    packs = [
        RankPack(side, kind, ranks[masks[side]].of_type(kind), ranks[masks[side]].candidates_B, None)
        for kind in RANK_TYPES
        for side in SIDES
        if masks[side].any()
    ]
    data: dict[Any, float] = {}
    for metric in metrics:
        supported = [p for p in packs if p.rank_type in metric.supported_rank_types]
        data |= RankBasedMetricResults.from_ranks([metric], supported).data
    return RankBasedMetricResults(data)


def to_pykeen_model(predictor: Predictor, *, allow_self: bool = True) -> Model:
    """A PyKEEN model that scores with a run, for ``pykeen.predict.predict_target``.

    Args:
        allow_self: True gives the plain scores, so that PyKEEN's evaluator reports what reports of kgmlm
            call "as PyKEEN". False ranks entities that cannot answer last, as kgmlm does: a query's own
            entity, if no training triple of the relation links an entity to itself.

    Use it with ``to_factory(predictor.graph, "train")`` as the triples factory, whose ids are the run's.
    """
    from pykeen.models import EvaluationOnlyModel

    ranker = predictor.ranker.unconstrained() if allow_self else predictor.ranker

    class LikelihoodModel(EvaluationOnlyModel):
        """Mean token log-likelihoods behind PyKEEN's scoring interface."""

        def __init__(self) -> None:
            super().__init__(triples_factory=to_factory(predictor.graph, "train"))
            # PyKEEN looks for a model's device among its parameters and buffers.
            self.register_buffer("device_marker", torch.empty(0), persistent=False)

        def _scores(self, entities: Any, relations: Any, *, tail: bool, ids: Any) -> torch.Tensor:
            queries = Queries(
                entities.cpu().numpy(), relations.cpu().numpy(), np.full(len(entities), tail, np.bool_)
            )
            scores = torch.empty(len(queries), len(predictor.graph.entities))
            for rows, part in ranker.rank(queries):
                scores[rows] = torch.from_numpy(part)
            return scores if ids is None else scores[:, ids]

        def score_t(
            self, hr_batch: Any, *, slice_size: Any = None, mode: Any = None, tails: Any = None
        ) -> torch.Tensor:
            """Scores of tails, ``(B, N)``, a fresh tensor (PyKEEN writes into it)."""
            return self._scores(hr_batch[:, 0], hr_batch[:, 1], tail=True, ids=tails)

        def score_h(
            self, rt_batch: Any, *, slice_size: Any = None, mode: Any = None, heads: Any = None
        ) -> torch.Tensor:
            """Scores of heads, ``(B, N)``."""
            return self._scores(rt_batch[:, 1], rt_batch[:, 0], tail=False, ids=heads)

        def score_r(self, ht_batch: Any, **kwargs: Any) -> torch.Tensor:
            """Refuse to score relations: a run ranks them by probability, not by score."""
            raise QueryError("this model scores heads and tails; `kgmlm.rank_relations` ranks relations")

        def score_hrt(self, hrt_batch: Any, **kwargs: Any) -> torch.Tensor:
            """Scores of triples as tail predictions, ``(B, 1)``."""
            return self.score_t(hrt_batch[:, :2]).gather(1, hrt_batch[:, 2:3])

    return LikelihoodModel()
