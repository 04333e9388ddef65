from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kgmlm.config import (
    Protocol,
    RescoringSettings,
    StructureSettings,
    TextSettings,
    VectorSettings,
)
from kgmlm.embedding import train_structure
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import ConfigError
from kgmlm.ranker import Ranker
from kgmlm.reranking import Reranking
from kgmlm.rescoring import Rescorer, Use
from kgmlm.tuning import choose_rescoring, validate, weigh_structure


def rivals(graph: KnowledgeGraph) -> KnowledgeGraph:
    """The graph with test triples that would filter every wrong answer of validation."""
    h, r, _ = graph.splits["valid"].T
    everything = np.arange(len(graph.entities))
    tails = [(a, b, c) for a, b in zip(h, r, strict=True) for c in everything]
    return replace(graph, splits={**graph.splits, "test": np.array(tails, np.int64)})


@pytest.mark.parametrize("what", ["validate", "vectors", "structure", "rescoring"])
def test_no_choice_depends_on_test_triples(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, what: str
) -> None:
    protocol = Protocol(split="valid")
    found: list[tuple[object, object]] = []
    for graph in (toy, rivals(toy)):
        ranker = make_ranker(vector=VectorSettings(enabled=what == "vectors"))
        if what == "structure":
            ranker.signals["structure"] = train_structure(toy, StructureSettings(dimension=8, epochs=1))
            mixture, figures = weigh_structure(ranker, graph, protocol)
            found.append((figures, mixture.tables["structure"].tolist()))
        elif what == "rescoring":
            small = {"rescoring": RescoringSettings(candidates=5, max_length=8)}
            settings = ranker.reader.settings.model_copy(update=small | {"text": TextSettings(max_length=40)})
            reader = ranker.reader
            rescorer = Rescorer(ranker.context, reader.tokenizer, reader.model, settings)
            ranker.reranking = Reranking(rescorer, Use(0, 0.0), 1.0)
            found.append(choose_rescoring(ranker, graph, protocol))
        else:
            mixture, figures = validate(ranker, graph, protocol)
            found.append((figures, {name: table.tolist() for name, table in mixture.tables.items()}))
    assert found[0] == found[1]
    choosers: dict[str, Any] = {"structure": weigh_structure, "rescoring": choose_rescoring}
    choose = choosers.get(what, validate)
    with pytest.raises(ConfigError, match="must not know the test triples"):
        choose(ranker, toy, Protocol(split="valid", filter=("train", "test")))
    with pytest.raises(ConfigError, match="must not know the test triples"):
        choose(ranker, toy, Protocol())
