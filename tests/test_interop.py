from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kgmlm
from kgmlm.graph import KnowledgeGraph
from kgmlm.interop import from_pykeen, to_factory, to_pykeen_model
from kgmlm.kg import ConfigError, DataError, RunError
from kgmlm.prediction import open_predictor

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_pykeen_dataset_becomes_the_same_graph(real: object) -> None:
    from pykeen.datasets import UMLS

    from kgmlm.datasets import load_graph

    theirs, ours = from_pykeen(UMLS(), "umls"), load_graph("umls")
    for split in ("train", "valid", "test"):
        assert sorted(theirs.labeled(theirs.splits[split])) == sorted(ours.labeled(ours.splits[split]))
    assert theirs.entities.column("name") == ours.entities.column("name")


def test_a_factory_becomes_a_training_split() -> None:
    from pykeen.triples import TriplesFactory

    rows = np.array([["NA", "r", "00001740"], ['"x', "r", "NA"]])
    factory = TriplesFactory.from_labeled_triples(rows, filter_out_candidate_inverse_relations=False)
    graph = from_pykeen(factory, names={"NA": "sodium"})
    assert list(graph.splits) == ["train"]
    assert graph.entities.column("label") == ['"x', "00001740", "NA"]
    assert graph.entities.column("name") == ['"x', "00001740", "sodium"]


def test_a_factory_without_labels_is_refused() -> None:
    import torch
    from pykeen.triples import CoreTriplesFactory

    with pytest.raises(DataError, match="needs text"):
        from_pykeen(CoreTriplesFactory.create(torch.tensor([[0, 0, 1]])))


def test_a_factory_keeps_every_triple_and_id(toy: KnowledgeGraph) -> None:
    factory = to_factory(toy, "test")
    assert factory.num_entities == len(toy.entities)
    assert sorted(map(tuple, factory.mapped_triples.tolist())) == sorted(
        map(tuple, toy.splits["test"].tolist())
    )


@pytest.mark.parametrize(("known", "side"), [({"head": "france"}, "tail"), ({"tail": "paris"}, "head")])
def test_pykeens_predict_target_uses_a_run(toy_run: Path, known: dict[str, str], side: str) -> None:
    from pykeen.predict import predict_target

    predictor = open_predictor(toy_run, "cpu")
    table = predict_target(
        model=to_pykeen_model(predictor),
        relation="capital",
        triples_factory=to_factory(predictor.graph, "train"),
        head=known.get("head"),
        tail=known.get("tail"),
    ).df
    ours = predictor.rank(relation="capital", k=31, head=known.get("head"), tail=known.get("tail"))
    columns = [f"{side}_id", "score", f"{side}_label"]
    assert list(table.columns) == columns
    np.testing.assert_allclose(table["score"], ours["score"], atol=1e-5)
    assert set(table[f"{side}_label"][:3]) == set(ours[f"{side}_label"][:3])


@pytest.mark.slow
def test_a_graph_of_pykeen_is_trained_on_and_resumed(toy: KnowledgeGraph, tmp_path: Path) -> None:
    factory = to_factory(toy, "train")
    graph = from_pykeen(factory, name="mine")
    small: dict[str, Any] = {"preset": "plain", "epochs": 3, "scratch": {"hidden_size": 16, "heads": 2}}
    run = kgmlm.train(graph, "scratch", tmp_path / "run", max_steps=1, progress=False, **small)
    assert run.folder.record["dataset"] == "mine"
    assert run.graph.same(graph)
    again = kgmlm.train(graph, output=tmp_path / "run", resume=True, progress=False)
    assert again.folder.record["status"] == "finished"
    with pytest.raises(RunError, match="begun with another graph"):
        kgmlm.train(toy, output=tmp_path / "run", resume=True, progress=False)
    with pytest.raises(ConfigError, match="--max-steps is a whole number from 1 on, not 0"):
        kgmlm.train(graph, "scratch", tmp_path / "other", max_steps=0, progress=False)
    with pytest.raises(RunError, match="--minutes takes a time above 0, not x"):
        kgmlm.train(graph, "scratch", tmp_path / "other", minutes="x", progress=False)  # type: ignore[arg-type]
