from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from kgmlm.config import (
    Protocol,
    RescoringSettings,
    StructureSettings,
    TextSettings,
    VectorSettings,
)
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import ConfigError
from kgmlm.ranker import Ranker
from kgmlm.rescoring import Rescorer
from kgmlm.structure import train_structure
from kgmlm.tuning import choose_rescoring, choose_structure, validate


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
    protocol, found = Protocol(split="valid"), []
    for graph in (toy, rivals(toy)):
        ranker = make_ranker(vector=VectorSettings(enabled=what == "vectors"))
        if what == "structure":
            ranker.structure = train_structure(toy, StructureSettings(dimension=8, epochs=1))
            found.append(choose_structure(ranker, graph, protocol))
        elif what == "rescoring":
            small = {"rescoring": RescoringSettings(candidates=5, max_length=8)}
            settings = ranker.settings.model_copy(update=small | {"text": TextSettings(max_length=40)})
            ranker.rescorer = Rescorer(ranker.context, ranker.tokenizer, ranker.model, settings)
            found.append(choose_rescoring(ranker, graph, protocol))
        else:
            found.append(validate(ranker, graph, protocol))
    assert found[0] == found[1]
    choose = {"structure": choose_structure, "rescoring": choose_rescoring}.get(what, validate)
    with pytest.raises(ConfigError, match="must not know the test triples"):
        choose(ranker, toy, Protocol(split="valid", filter=("train", "test")))
    with pytest.raises(ConfigError, match="must not know the test triples"):
        choose(ranker, toy, Protocol())
