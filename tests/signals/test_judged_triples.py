"""Training knows of wrong answers, which count for many, and of triples that are not quite sure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kgmlm
from kgmlm.core.arrays import numpy
from kgmlm.core.config import BiencoderSettings, KGESettings
from kgmlm.graphs.graph import Doubts, KnowledgeGraph
from kgmlm.graphs.queries import Queries, Query
from kgmlm.signals.base import Pool
from kgmlm.signals.biencoder import Biencoder
from kgmlm.signals.kge import KGE
from kgmlm.text.reader import Reading

WRONG = ("france", "borders", "japan")
Fit = Callable[[KnowledgeGraph], Any]


@pytest.fixture(params=["kge", "kge of a sample", "biencoder", "biencoder of a sample"])
def fit(request: pytest.FixtureRequest, tiny_encoder: str) -> Fit:
    few = 5 if "sample" in request.param else 0
    if "kge" in request.param:
        kge = KGESettings(dimension=8, epochs=30, batch_size=16, candidates=few, regularization=0)
        return lambda graph: KGE.fit(graph, kge)
    own = BiencoderSettings(encoder=tiny_encoder, steps=60, dimension=16, batch_size=16, candidates=few)
    return lambda graph: Biencoder.fit(graph, own.model_copy(update={"dropout": 0.0}))


def chance(signal: Any, graph: KnowledgeGraph, triple: tuple[str, str, str]) -> float:
    """The share of a softmax that the tail of a triple has."""
    head, tail = (graph.entities.find(label) for label in (triple[0], triple[2]))
    assert head is not None
    assert tail is not None
    queries = Queries.of([Query(head, graph.relations.index[triple[1]], "tail")])
    scores_N = numpy(signal.score(Reading(queries), Pool(len(graph.entities))))[0]
    scale = 20.0 if isinstance(signal, Biencoder) else 1.0
    return float(torch.from_numpy(scale * scores_N).softmax(0)[tail])


def ids(graph: KnowledgeGraph, triple: tuple[str, str, str]) -> Any:
    return np.array(
        [[graph.entities.find(triple[0]), graph.relations.index[triple[1]], graph.entities.find(triple[2])]]
    )


def test_a_wrong_answer_is_less_likely(toy: KnowledgeGraph, fit: Fit) -> None:
    told = replace(toy, negatives={"train": ids(toy, WRONG)})
    assert chance(fit(told), told, WRONG) < chance(fit(toy), toy, WRONG)


def test_an_answer_that_is_hardly_sure_is_less_likely(toy: KnowledgeGraph, fit: Fit) -> None:
    known = toy.labeled(toy.triples("train")[:1])[0]
    doubted = replace(toy, doubts=Doubts(ids(toy, known), np.array([1e-3], np.float32)))
    assert chance(fit(doubted), doubted, known) < chance(fit(toy), toy, known)


def test_another_training_is_not_continued(toy: KnowledgeGraph) -> None:
    from kgmlm.signals.kge_training import _fingerprint

    settings = KGESettings(dimension=4, epochs=1)
    told = replace(toy, negatives={"train": ids(toy, WRONG)})
    doubted = replace(toy, doubts=Doubts(ids(toy, WRONG), np.array([0.5], np.float32)))
    assert len({_fingerprint(graph, settings) for graph in (toy, told, doubted)}) == 3


def test_a_run_of_triples_that_are_not_sure_is_opened_and_packed(tiny_encoder: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    toy = kgmlm.load_graph("toy")
    rows = [(*row, rng.choice([0.1, 0.5, 1])) for row in toy.labeled(toy.triples("train"))]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.tsv").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    settings: dict[str, Any] = {"biencoder": {"encoder": tiny_encoder, "steps": 5, "dimension": 8}}
    run = kgmlm.train(
        tmp_path / "data", "scratch", tmp_path / "run", weighted=True, progress=False, onnx=False,
        preset="quick", max_steps=2, kge={"epochs": 1, "dimension": 4},
        scratch={"layers": 1, "hidden_size": 16},
    )  # fmt: skip
    kgmlm.tune(run.path, add=["kge", "biencoder"], progress=False, **settings)
    doubts = run.graph.doubts
    assert doubts is not None
    packed = kgmlm.open_run(kgmlm.pack(run.path, tmp_path / "packed.kgmlm", progress=False))
    assert packed.graph.doubts is not None
    assert packed.graph.doubts.triples.tolist() == doubts.triples.tolist()
    assert len(packed.rank("france", "capital", k=2)) == 2
    kgmlm.update(run.path, [("iceland", "located_in", "europe")], minutes=0.05, progress=False)
    assert kgmlm.open_run(run.path).graph.doubts is not None
