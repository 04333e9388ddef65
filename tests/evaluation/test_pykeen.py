from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from trainings import TINY, arguments

import kgmlm
from kgmlm.core.arrays import IntArray
from kgmlm.core.config import Protocol, RuleSettings, TextSettings, VectorSettings
from kgmlm.core.errors import ConfigError, DataError, RunError
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.evaluation.pykeen import to_factory, to_pykeen_model
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.constraints import Functional, Possible
from kgmlm.ranking.predictor import Predictor
from kgmlm.ranking.ranker import Ranker, StageWeight
from kgmlm.ranking.retrieval import Retrieval, scores_of
from kgmlm.ranking.second_stage import ReverseScoring
from kgmlm.runs.index import build_index
from kgmlm.signals.rules import Rules

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_pykeen_dataset_becomes_the_same_graph(real: object) -> None:
    from pykeen.datasets import UMLS

    from kgmlm.graphs.datasets import load_graph

    theirs, ours = KnowledgeGraph.from_pykeen(UMLS(), "umls"), load_graph("umls")
    for split in ("train", "valid", "test"):
        assert sorted(theirs.labeled(theirs.splits[split])) == sorted(ours.labeled(ours.splits[split]))
    assert theirs.entities.column("name") == ours.entities.column("name")


def test_a_factory_becomes_a_training_split() -> None:
    from pykeen.triples import TriplesFactory

    rows = np.array([["NA", "r", "00001740"], ['"x', "r", "NA"]])
    factory = TriplesFactory.from_labeled_triples(rows, filter_out_candidate_inverse_relations=False)
    graph = KnowledgeGraph.from_pykeen(factory, names={"NA": "sodium"})
    assert list(graph.splits) == ["train"]
    assert graph.entities.column("label") == ['"x', "00001740", "NA"]
    assert graph.entities.column("name") == ['"x', "00001740", "sodium"]


def test_a_factory_without_labels_is_refused() -> None:
    import torch
    from pykeen.triples import CoreTriplesFactory

    with pytest.raises(DataError, match="needs text"):
        KnowledgeGraph.from_pykeen(CoreTriplesFactory.create(torch.tensor([[0, 0, 1]])))


@pytest.mark.parametrize("kind", ["dict", "series"])
def test_names_may_be_missing(kind: str) -> None:
    from pykeen.triples import TriplesFactory

    given = {"a": float("nan"), "b": None, "c": "Gamma", "elsewhere": "E"}
    factory = TriplesFactory.from_labeled_triples(np.array([["a", "r", "b"], ["b", "r", "c"]]))
    graph = KnowledgeGraph.from_pykeen(factory, names=pd.Series(given) if kind == "series" else given)  # type: ignore[arg-type]
    assert graph.entities.column("name") == ["a", "b", "Gamma"]


def test_what_is_no_factory_and_no_name_is_one_sentence() -> None:
    from pykeen.triples import TriplesFactory

    factory = TriplesFactory.from_labeled_triples(np.array([["a", "r", "b"]]))
    for source in ([("a", "r", "b")], pd.DataFrame([["a", "r", "b"]]), "x.tsv", None):
        with pytest.raises(DataError, match=r"takes a TriplesFactory or a Dataset of PyKEEN, not \w+"):
            KnowledgeGraph.from_pykeen(source)
    with pytest.raises(DataError, match=r"names: 'a' has 3, which is no text"):
        KnowledgeGraph.from_pykeen(factory, names={"a": 3})  # type: ignore[dict-item]
    with pytest.raises(DataError, match="names are a mapping from label to text, not list"):
        KnowledgeGraph.from_pykeen(factory, names=["a"])  # type: ignore[arg-type]


def test_a_factory_is_a_dataset(tmp_path: Path) -> None:
    from pykeen.datasets import Nations
    from pykeen.triples import TriplesFactory

    rows = np.array([[f"e{i}", f"r{i % 2}", f"e{(i * 5 + 1) % 12}"] for i in range(12)])
    factory = TriplesFactory.from_labeled_triples(rows)
    run = kgmlm.train(factory, "scratch", tmp_path / "run", **arguments(epochs=1, **TINY))
    assert run.graph.name == "pykeen"
    assert sorted(run.graph.labeled(run.graph.splits["train"])) == sorted(map(tuple, rows.tolist()))
    assert kgmlm.data.check(Nations()).values["entities"] == 14


def test_a_factory_keeps_every_triple_and_id(toy: KnowledgeGraph) -> None:
    factory = to_factory(toy, "test")
    assert factory.num_entities == len(toy.entities)
    assert sorted(map(tuple, factory.mapped_triples.tolist())) == sorted(
        map(tuple, toy.splits["test"].tolist())
    )


class Shortlisted:
    """What `--retrieve` scores."""

    def __init__(self, ranker: Ranker, retrieval: Retrieval) -> None:
        self.ranker, self.retrieval = ranker, retrieval

    def rank(self, queries: Queries) -> Iterator[tuple[IntArray, Any]]:
        yield from scores_of(self.ranker, queries, self.retrieval, 64)


def by_pykeen(graph: KnowledgeGraph, ranker: Any, *, as_pykeen_loads: bool) -> dict[str, float]:
    """PyKEEN's evaluator on the scores of a ranker: of the test triples as they are, or as PyKEEN loads them,
    that is, among training entities.
    """
    import torch
    from pykeen.evaluation import RankBasedEvaluator

    model = to_pykeen_model(
        cast(Predictor, SimpleNamespace(graph=graph, ranker=ranker)), allow_self=as_pykeen_loads
    )
    triples = graph.splits["test"]
    if as_pykeen_loads:
        triples = np.unique(triples[graph.seen_N[triples[:, [0, 2]]].all(1)], axis=0)
    results = RankBasedEvaluator().evaluate(
        model,
        torch.tensor(triples),
        batch_size=len(triples),
        use_tqdm=False,
        additional_filter_triples=[torch.tensor(graph.splits[s]) for s in ("train", "valid", "test")],
        restrict_entities_to=np.flatnonzero(graph.seen_N).tolist() if as_pykeen_loads else None,
        pre_filtered_triples=False,
    )
    return dict(results.to_flat_dict())


@pytest.mark.parametrize("kind", ["plain", "ties", "reverse", "staged", "retrieve", "retrieve and reverse"])
def test_ranks_are_those_of_pykeens_evaluator(
    kind: str, toy: KnowledgeGraph, make_ranker: Callable[..., Ranker], staged_ranker: Ranker
) -> None:
    """Of every kind of run: with ties, unseen entities, constraints, a second stage, and by an index."""
    retrieval = None
    ranker = make_ranker(TextSettings(max_length=40, neighbors=3), VectorSettings(enabled=True))
    if kind == "ties":
        ranker.signals["rules"] = Rules.fit(toy, RuleSettings())
        ranker = ranker.replace(mixture=ranker.mixture.evenly("rules", 1.0)).by("rules")
    if kind == "staged":
        ranker = staged_ranker
    if "reverse" in kind or kind == "staged":
        ranker = ranker.with_stage(ReverseScoring(StageWeight(20, 3.0)))
    loop_free_R = np.ones(len(toy.relations), np.bool_)
    ranker.possible = Possible(loop_free_R, (Functional.learn(toy.context),))
    if "retrieve" in kind:
        pytest.importorskip("faiss")
        retrieval = Retrieval(build_index(ranker, toy), 9)
    ours = evaluate(ranker, toy, Protocol(pykeen=True), retrieval=retrieval).report
    scored = ranker if retrieval is None else Shortlisted(ranker, retrieval)
    compared = [(ours["metrics"], by_pykeen(toy, scored, as_pykeen_loads=False))]
    if retrieval is None:  # which PyKEEN knows nothing of
        compared.append((ours["pykeen_comparable"]["metrics"], by_pykeen(toy, scored, as_pykeen_loads=True)))
    assert not toy.seen_N.all()
    for comparison, theirs in compared:
        shared = comparison.keys() & theirs.keys()
        assert len(shared) > 70
        for key in shared:
            assert comparison[key] == pytest.approx(theirs[key], rel=1e-6, abs=1e-6), key


@pytest.mark.parametrize(("known", "side"), [({"head": "france"}, "tail"), ({"tail": "paris"}, "head")])
def test_pykeens_predict_target_uses_a_run(toy_run: Path, known: dict[str, str], side: str) -> None:
    from pykeen.predict import predict_target

    predictor = kgmlm.open_run(toy_run, device="cpu").predictor
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
    graph = KnowledgeGraph.from_pykeen(factory, name="mine")
    small: dict[str, Any] = {"preset": "plain", "epochs": 3, "scratch": {"hidden_size": 16, "heads": 2}}
    run = kgmlm.train(graph, "scratch", tmp_path / "run", max_steps=1, progress=False, **arguments(**small))
    assert run.folder.record["dataset"] == "mine"
    assert run.graph.same(graph)
    again = kgmlm.train(graph, output=tmp_path / "run", resume=True, progress=False)
    assert again.folder.record["status"] == "finished"
    with pytest.raises(RunError, match="begun with another graph"):
        kgmlm.train(toy, output=tmp_path / "run", resume=True, progress=False)
    with pytest.raises(ConfigError, match="--max-steps is a whole number from 1 on, not 0"):
        kgmlm.train(graph, "scratch", tmp_path / "other", max_steps=0, progress=False)
    with pytest.raises(ConfigError, match="--minutes is a number above 0"):
        kgmlm.train(graph, "scratch", tmp_path / "other", minutes="x", progress=False)  # type: ignore[arg-type]
