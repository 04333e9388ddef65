"""Linked pairs: which candidates are linked, and weights of either sign."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from signal_tests import SignalTests

import kgmlm
from kgmlm.core.arrays import IntArray
from kgmlm.graphs.checks import check_graph
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries, Query
from kgmlm.signals.base import Pool
from kgmlm.signals.linked import Linked
from kgmlm.text.reader import Reading
from kgmlm.training.weights import ValidationSample

TRAIN = [("a", "r", "b"), ("a", "s", "b"), ("c", "r", "a"), ("d", "r", "d"), ("a", "r", "a"), ("c", "r", "a")]


class TestLinked(SignalTests):
    kind = Linked


@pytest.fixture
def graph() -> KnowledgeGraph:
    return KnowledgeGraph.from_triples(TRAIN, valid=[("b", "r", "a"), ("b", "s", "c")])


def ids(graph: KnowledgeGraph, *labels: str) -> IntArray:
    return np.array([graph.entities.index[label] for label in labels])


def asked(graph: KnowledgeGraph, *queries: tuple[str, str, str]) -> Queries:
    """Of (entity, relation, target)."""
    return Queries.of(
        [Query(graph.entities.index[e], graph.relations.index[r], t) for e, r, t in queries]  # type: ignore[arg-type]
    )


def test_a_pair_is_linked_by_another_triple_in_either_direction(graph: KnowledgeGraph) -> None:
    queries = asked(graph, ("a", "r", "tail"), ("c", "s", "tail"), ("b", "r", "head"), ("d", "r", "tail"))
    scores_BN = Linked(graph.context).score(Reading(queries, None), Pool(4))
    linked = [{graph.entities[i].label for i in np.flatnonzero(row).tolist()} for row in scores_BN]
    # (a, r, b) is linked by s, too; (c, r, a) twice by itself, and (c, s, a) by r; no entity to itself.
    assert linked == [{"b", "c"}, {"a"}, {"a"}, set()]
    again = asked(graph, ("c", "r", "tail"))
    assert not Linked(graph.context).of_all(again).any(), "the asked triple does not count, however often"


def test_pools_have_the_same_scores(toy: KnowledgeGraph) -> None:
    linked, rng = Linked(toy.context), np.random.default_rng(0)
    triples = np.concatenate([toy.splits["train"], toy.splits["valid"]])
    queries = Queries(triples[:, 0], triples[:, 1], np.ones(len(triples), np.bool_))
    reading: Any = Reading(queries, None)
    whole, some = linked.of_all(queries), rng.permutation(len(toy.entities))[:9]
    assert whole.any()
    assert np.array_equal(linked.score(reading, Pool(len(toy.entities), some)), whole[:, some])
    own = rng.integers(-1, len(toy.entities), (len(queries), 12))
    scores = linked.score(reading, Pool(len(toy.entities), own))
    there = own >= 0
    assert np.array_equal(scores[there], np.take_along_axis(whole, np.maximum(own, 0), 1)[there])


@pytest.mark.parametrize("sign", [-1, 1])
def test_its_weight_has_the_sign_that_validation_shows(sign: int) -> None:
    rng = np.random.default_rng(0)
    count, width = 400, 6
    text = rng.normal(size=(count, width))
    linked = (rng.random((count, width)) < 0.5).astype(float)
    linked[:, 0] = rng.random(count) < (0.5 + 0.3 * sign)  # the answer's
    scores = np.stack([text, linked], 2).astype(np.float32)
    queries = Queries(np.zeros(count, np.int64), np.arange(count) % 2, np.arange(count) % 4 < 2)
    names, there = ("likelihood", "linked"), np.ones((count, width), np.bool_)
    sample = ValidationSample(
        names, queries, np.arange(count), scores, there, 2, np.zeros(count, np.bool_), 1.0
    )
    for by_relation in (True, False):
        values = sample.fitted(names, np.ones(count, np.bool_), by_relation=by_relation)
        assert np.sign(values.averages["linked"]) == sign
        assert (np.sign(values.tables["linked"]) == sign).all()
        assert (values.tables["likelihood"] > 0).all(), "of the others only positive ones are"


def test_a_run_learns_and_tells_it(toy_run: Path, tmp_path: Path) -> None:
    import shutil

    path = shutil.copytree(toy_run, tmp_path / "run")
    kgmlm.tune(path, add="linked", progress=False)
    run = kgmlm.open_run(path, device="cpu")
    folder = run.folder
    table = np.full_like(folder.tuned.mixture.tables["linked"], -2.0)
    ranker = run.predictor.ranker
    run.predictor.ranker.mixture = ranker.mixture.weighed("linked", table, -2.0)
    explained = run.explain(head="France", relation="capital", k=31)
    links = explained[explained["linked"] < 0]
    assert len(links)
    assert all("already linked, which counts against it: " in " ".join(x) for x in links["because"])
    free = kgmlm.open_run(path, device="cpu", unlinked=True).rank(head="France", relation="capital", k=99)
    shown = set(free["tail_label"])
    assert not shown & set(links[~links["known"]]["entity"])
    assert {"paris"} <= shown, "what training has as the answer stays"
    made = kgmlm.complete(path, tmp_path / "new.parquet", unlinked=True, min_probability=0.0, progress=False)
    pairs = {frozenset((h, t)) for h, _, t in run.graph.labeled(run.graph.splits["train"])}
    assert made["best"]
    assert all(frozenset((row["head"], row["tail"])) not in pairs for row in made["best"])


def test_the_check_of_a_graph_counts_linked_triples(graph: KnowledgeGraph) -> None:
    assert check_graph(graph)["linked"] == {"train": 2, "valid": 1}


def test_it_is_of_one_graph(graph: KnowledgeGraph, toy: KnowledgeGraph, tmp_path: Path) -> None:
    from kgmlm.core.errors import RunError

    Linked(graph.context).save(tmp_path / "linked.safetensors")
    assert Linked.open(tmp_path / "linked.safetensors", graph).pairs == 2
    with pytest.raises(RunError, match="of another graph"):
        Linked.open(tmp_path / "linked.safetensors", toy)
    (tmp_path / "linked.safetensors").write_bytes(b"x")
    with pytest.raises(RunError, match="cannot be read"):
        Linked.open(tmp_path / "linked.safetensors", graph)
