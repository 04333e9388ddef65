"""One query as the page shows it: its text, its best answers with their parts, and others beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kgmlm.constraints import MISSED
from kgmlm.graph import Edge, KnowledgeGraph
from kgmlm.kg import IntArray, Queries, Query
from kgmlm.linearization import linearize, neighborhood
from kgmlm.prediction import Prediction, Predictor

Row = dict[str, Any]


def shown(predictor: Predictor, query: Query, k: int, novel: bool, also: IntArray) -> Row:
    """All that the page shows of a query but the probabilities.

    Args:
        novel: leave out answers that the graph has.
        also: ids of entities to explain wherever they rank.

    Returns:
        As :class:`~kgmlm.serving.models.ExploreResponse`; entities and answers have their ``id``, too.
    """
    ((_, predictions),) = predictor.predict([query], k, novel=novel, explain=True)
    graph = predictor.graph
    return {
        "entity": _described(graph, query.entity),
        "relation": named_relation(graph, query.relation),
        "target": query.target,
        "reading": _reading(predictor, query),
        "usual": predictor.usual(query),
        "entities": len(graph.entities),
        "predictions": _rows(graph, predictions),
        "also": _rows(graph, predictor.placed(query, also, novel=novel)),
    }


def _rows(graph: KnowledgeGraph, predictions: Sequence[Prediction]) -> list[Row]:
    return [
        p.as_json() | _described(graph, p.id) | {"possible": p.score > MISSED, "probability": None}
        for p in predictions
    ]


def _described(graph: KnowledgeGraph, entity: int) -> Row:
    found = graph.entities[entity]
    return {
        "id": entity,
        "label": found.label,
        "name": found.surface,
        "description": found.description,
        "types": found.types,
    }


def named(graph: KnowledgeGraph, entity: int) -> Row:
    """An entity's label and name."""
    found = graph.entities[entity]
    return {"label": found.label, "name": found.surface}


def named_relation(graph: KnowledgeGraph, relation: int) -> Row:
    """A relation's label and name."""
    found = graph.relations[relation]
    return {"label": found.label, "name": found.name}


def told(graph: KnowledgeGraph, edges: Sequence[Edge]) -> list[Row]:
    """Triples as one of their entities has them."""
    return [
        {
            "relation": named_relation(graph, edge.relation),
            "target": edge.target,
            "entity": named(graph, edge.other),
        }
        for edge in edges
    ]


def _reading(predictor: Predictor, query: Query) -> Row:
    """The text around the hole, cut as the model reads it, and the neighbors that it tells."""
    reader, graph = predictor.ranker.reader, predictor.graph
    text, settings = reader.settings.text, reader.settings
    (whole,) = linearize(reader.context, Queries.of([query]), text)
    span = reader.vocabulary.span_length
    (encoded,) = reader.tokenizer.encode_queries(
        [whole], span, text.max_length, vector=settings.vector.enabled
    )
    mask = str(reader.tokenizer.tokenizer.mask_token)
    said = reader.tokenizer.render(whole, encoded)
    hole = " ".join([mask] * (span + encoded.vector))
    before, _, after = said.rpartition(hole) if not whole.after else said.partition(hole)
    edges = neighborhood(reader.context, query, text.neighbors) if text.neighbors else []
    return {
        "before": before.strip(),
        "after": after.strip(),
        "hole": span,
        "cut": encoded.cut,
        "neighbors": told(graph, edges),
    }
