from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Cli, refused
from safetensors.torch import load_file, save_file

from kgmlm.config import Protocol, StructureSettings, VectorSettings
from kgmlm.evaluation import evaluate
from kgmlm.graph import KnowledgeGraph
from kgmlm.indexing import build_index
from kgmlm.kg import ConfigError, EntityTable, Queries, RunError
from kgmlm.ranker import Ranker, Retrieval
from kgmlm.runs import STRUCTURE, open_run
from kgmlm.structure import (
    Structure,
    load_structure,
    save_structure,
    structure_loss,
    train_structure,
)
from kgmlm.tuning import choose_structure, validate

SMALL = StructureSettings(dimension=8, epochs=30, batch_size=16)


@pytest.fixture(scope="module")
def structure(toy: KnowledgeGraph) -> Structure:
    return train_structure(toy, SMALL)


def test_scores_are_those_of_pykeens_complex(toy: KnowledgeGraph, structure: Structure) -> None:
    from pykeen.nn.modules import ComplExInteraction

    queries, _ = toy.queries("train")
    scores_BN = structure.score(queries)
    entities, relations = (
        torch.complex(*x.chunk(2, 1)) for x in (structure.entities_SD, structure.relations_RD)
    )
    known = structure.rows_N >= 0
    expected = []
    for query in queries:
        relation = relations[2 * query.relation + (query.target == "head")]
        head = entities[structure.rows_N[query.entity]]
        expected.append(ComplExInteraction()(h=head, r=relation, t=entities))
    found = scores_BN[:, known][:, structure.rows_N[known].argsort()]
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-4, rtol=1e-4)


def test_training_learns_the_triples_and_is_repeatable(toy: KnowledgeGraph, structure: Structure) -> None:
    counted: list[int] = []
    again = train_structure(toy, SMALL, lambda n, total: counted.append(total))
    steps = 30 * math.ceil(len(toy.unique_queries("train")[0]) / SMALL.batch_size)
    assert counted == [steps] * steps
    assert torch.equal(again.entities_SD, structure.entities_SD)
    queries, answers = toy.queries("train")
    scores_BN = structure.score(queries)
    mean_rank = (scores_BN > scores_BN.gather(1, torch.from_numpy(answers)[:, None])).sum(1).float().mean()
    assert mean_rank < 3 < len(toy.entities) / 5


@pytest.mark.parametrize("penalty", ["triples", "entities"])
def test_the_loss_is_that_of_each_triple_alone(penalty: str) -> None:
    from pykeen.nn.modules import ComplExInteraction

    torch.manual_seed(0)
    entities, relations = torch.randn(5, 6), torch.randn(2, 6)
    triples = [(0, 1, 3), (0, 1, 4), (2, 0, 2)]
    e, r = (torch.complex(*x.chunk(2, 1)) for x in (entities, relations))
    expected = 0.0
    for head, relation, tail in triples:
        scores_S = ComplExInteraction()(h=e[head], r=r[relation], t=e)
        cubes = sum(float(x.abs().pow(3).sum()) for x in (e[head], r[relation], e[tail]))
        if penalty == "entities":
            cubes = sum(float(x.abs().pow(3).sum()) for x in (entities[head], relations[relation]))
        expected += 0.5 * (float(-scores_S.log_softmax(0)[tail]) + 0.3 * cubes) / 2
    if penalty == "entities":
        expected += 0.3 * float(entities.abs().pow(3).sum(1).mean())
    found = structure_loss(
        entities,
        relations,
        torch.tensor([[0, 1], [2, 0]]),
        torch.tensor([3, 4, 2]),
        torch.tensor([0, 0, 1]),
        torch.full((3,), 0.5),
        StructureSettings.model_validate({"regularization": 0.3, "penalty": penalty}),
    )
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_queries_may_count_alike(toy: KnowledgeGraph, structure: Structure) -> None:
    by_queries = train_structure(toy, SMALL.model_copy(update={"samples": "queries", "penalty": "entities"}))
    assert not torch.equal(by_queries.entities_SD, structure.entities_SD)
    queries, answers = toy.queries("train")
    scores_BN = by_queries.score(queries)
    assert (scores_BN > scores_BN.gather(1, torch.from_numpy(answers)[:, None])).sum(1).float().mean() < 3


def test_a_loss_that_is_no_number_is_an_error(toy: KnowledgeGraph) -> None:
    with pytest.raises(RunError, match="learning_rate"):
        train_structure(toy, SMALL.model_copy(update={"learning_rate": 1e30}))
    once = {"learning_rate": 1e30, "epochs": 1, "batch_size": 1000}  # before any loss tells
    with pytest.raises(RunError, match=r"has diverged; lower structure\.learning_rate"):
        train_structure(toy, SMALL.model_copy(update=once))


def test_shuffled_triples_teach_nothing(toy: KnowledgeGraph, structure: Structure) -> None:
    shuffled = toy.splits["train"].copy()
    shuffled[:, 2] = np.random.default_rng(0).integers(0, len(toy.entities), len(shuffled))
    queries, answers = toy.queries("train")
    tail = queries.tail_B
    found = []
    for model in (structure, train_structure(replace(toy, splits={"train": shuffled}), SMALL)):
        scores_BN = model.score(queries[tail])
        own_B1 = scores_BN.gather(1, torch.from_numpy(answers[tail])[:, None])
        found.append(float((1 / (1 + (scores_BN > own_B1).sum(1))).mean()))
    assert found[1] < 0.6 * found[0]


def test_a_shortlist_is_rescored_by_structure_too(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, structure: Structure
) -> None:
    pytest.importorskip("faiss")
    ranker = make_ranker()
    ranker.structure = structure
    ranker.weights = ranker.weights._replace(structure=1.0)
    index = build_index(ranker, toy, "likelihood")
    queries, _ = toy.queries("test")
    for _, shortlisted, exact in ranker.retrieve_and_rank(queries, Retrieval(index, 99)):
        torch.testing.assert_close(shortlisted, exact, atol=1e-4, rtol=1e-4)
    rows, parts = next(iter(ranker.parts(queries)))
    assert parts.likelihood_BN is not None
    torch.testing.assert_close(
        parts.score(ranker.weights), parts.likelihood_BN + structure.score(queries[rows])
    )


def test_structure_alone_reads_no_text(
    make_ranker: Callable[..., Ranker],
    toy: KnowledgeGraph,
    structure: Structure,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranker = make_ranker()
    ranker.structure = structure
    ranker.use("structure")
    monkeypatch.setattr(ranker, "states", None)
    queries, _ = toy.queries("test")
    found = torch.zeros(len(queries), len(toy.entities))
    for rows, scores_BN in ranker.rank(queries, batch_size=3):
        found[torch.from_numpy(rows)] = scores_BN
    torch.testing.assert_close(found, structure.score(queries))


def test_what_training_has_not_seen_is_neutral(toy: KnowledgeGraph, structure: Structure) -> None:
    unseen = np.flatnonzero(~toy.seen_N)
    assert len(unseen), "the toy graph has entities outside training"
    queries, _ = toy.queries("train")
    scores_BN = structure.score(queries)
    mean_B = scores_BN[:, torch.from_numpy(toy.seen_N)].mean(1)
    for entity in unseen:
        torch.testing.assert_close(scores_BN[:, entity], mean_B, atol=1e-5, rtol=1e-4)
    asked = type(queries)(np.full(2, unseen[0]), np.zeros(2, np.int64), np.array([True, False]))
    assert (structure.score(asked) == 0).all()


def test_a_relation_that_training_has_not_seen_is_neutral(toy: KnowledgeGraph, tmp_path: Path) -> None:
    relation = int(toy.splits["train"][0, 1])
    fewer = toy.splits["train"][toy.splits["train"][:, 1] != relation]
    graph = replace(toy, splits={**toy.splits, "train": fewer})
    made = train_structure(graph, SMALL.model_copy(update={"epochs": 1}))
    save_structure(made, tmp_path / "structure.safetensors")
    for found in (made, load_structure(tmp_path / "structure.safetensors", graph)):
        scores = found.score(Queries(np.array([0, 0]), np.array([relation] * 2), np.array([True, False])))
        assert not scores.any()
    assert made.score(Queries(fewer[:1, 0], fewer[:1, 1], np.array([True]))).any()


def test_scores_of_some_are_those_of_all(toy: KnowledgeGraph, structure: Structure) -> None:
    queries, _ = toy.queries("test")
    weighted = structure.weighted(torch.rand(len(toy.relations), 2))
    scores_BN = weighted.score(queries)
    ids = np.array([5, 0, 5, 17])
    torch.testing.assert_close(weighted.score(queries, ids), scores_BN[:, ids])
    ids_BK = np.random.default_rng(0).integers(0, len(toy.entities), (len(queries), 6))
    found_BK = weighted.score(queries, ids_BK)
    torch.testing.assert_close(found_BK, scores_BN.gather(1, torch.from_numpy(ids_BK)), atol=1e-6, rtol=1e-5)
    factor_B = torch.tensor([weighted.weights_R2[q.relation, int(q.target == "head")] for q in queries])
    torch.testing.assert_close(scores_BN, factor_B[:, None] * structure.score(queries))


def test_another_graph_has_the_scores_of_its_known_entities(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, structure: Structure
) -> None:
    ranker = make_ranker()
    ranker.structure = structure
    ranker.weights = ranker.weights._replace(structure=1.0)
    wider = toy.extended(EntityTable(["q1"], ["Atlantis"], ["a lost city"]))
    twin = ranker.over(wider.context)
    assert twin.structure is not None
    queries, _ = toy.queries("test")
    before, after = structure.score(queries), twin.structure.score(queries)
    torch.testing.assert_close(after[:, : len(toy.entities)], before)
    seen = torch.from_numpy(toy.seen_N)
    torch.testing.assert_close(after[:, -1], before[:, seen].mean(1), atol=1e-5, rtol=1e-4)
    fewer = structure.over(np.array([3, -1]), np.array([1, -1]))
    asked = type(queries)(np.array([0, 0, 1]), np.array([0, 1, 0]), np.array([True, True, True]))
    scores_BN = fewer.score(asked)
    there = type(queries)(np.array([3]), np.array([1]), np.array([True]))
    torch.testing.assert_close(scores_BN[0, 0], structure.score(there)[0, 3])
    assert (scores_BN[1:] == 0).all()


def test_a_saved_model_is_loaded_and_a_damaged_one_refused(
    toy: KnowledgeGraph, structure: Structure, tmp_path: Path
) -> None:
    path = tmp_path / STRUCTURE
    chosen = structure.weighted(torch.rand(len(toy.relations), 2))
    save_structure(chosen, path)
    assert [p.name for p in tmp_path.iterdir()] == [STRUCTURE]
    queries, _ = toy.queries("test")
    assert torch.equal(load_structure(path, toy).score(queries), chosen.score(queries))
    wider = toy.extended(EntityTable(["q1"], ["Atlantis"], [""]))
    with pytest.raises(RunError, match="another graph"):
        load_structure(path, wider)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RunError, match="cannot be read"):
        load_structure(path, toy)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("entities", lambda x: x.double()),
        ("entities", lambda x: x[:, :-1]),
        ("entities", lambda x: x[:3]),
        ("relations", lambda x: x[:, :2]),
        ("weights", lambda x: x[:, :1]),
        ("weights", lambda x: x[0]),
        ("rows", lambda x: x + 1000),
        ("rows", lambda x: x.float()),
        ("rows", lambda x: x[None]),
    ],
)
def test_tensors_that_do_not_fit_are_refused_on_loading(
    toy: KnowledgeGraph, structure: Structure, tmp_path: Path, name: str, change: Callable[..., torch.Tensor]
) -> None:
    path = tmp_path / STRUCTURE
    save_structure(structure, path)
    tensors = load_file(path)
    save_file({**tensors, name: change(tensors[name]).contiguous()}, path)
    with pytest.raises(RunError, match=r"cannot be read: its|cannot be read: it names|is of another graph"):
        load_structure(path, toy)


def oracle(graph: KnowledgeGraph, split: str, relations: list[int]) -> Structure:
    """A structural model that knows the answers of some relations and is wrong about the others."""
    count = len(graph.entities)

    class Oracle(Structure):
        def score(self, queries, entity_ids=None):  # type: ignore[no-untyped-def]
            found = torch.zeros(len(queries), count)
            for b, query in enumerate(queries):
                h, r, t = graph.splits[split].T
                known, answers = (h, t) if query.target == "tail" else (t, h)
                sign = 1.0 if query.relation in relations else -1.0
                mine = answers[(known == query.entity) & (r == query.relation)]
                found[b, mine] = sign * float(self.weights_R2[query.relation, int(query.target == "head")])
            return found

    return Oracle(
        torch.zeros(0, 2), torch.zeros(0, 2), torch.ones(len(graph.relations), 2), torch.zeros(0),
        np.zeros(0, np.int64),
    )  # fmt: skip


def test_a_relation_gets_the_weight_that_validation_asks_for(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PRIOR is taken away: the toy graph has few queries a relation."""
    monkeypatch.setattr("kgmlm.tuning.PRIOR", 0.01)
    ranker = make_ranker(vector=VectorSettings(enabled=True))
    before = evaluate(ranker, toy, Protocol(split="valid")).report["metrics"]["mrr"]
    asked = np.unique(toy.splits["valid"][:, 1]).tolist()
    good, bad = asked[: len(asked) // 2], asked[len(asked) // 2 :]
    assert good
    assert bad
    ranker.structure = oracle(toy, "valid", good)
    with pytest.raises(ConfigError, match="no structural model"):
        choose_structure(make_ranker(), toy, Protocol(split="valid"))
    found = choose_structure(ranker, toy, Protocol(split="valid"))
    weights = ranker.structure.weights_R2
    assert (weights[good] > 0).all()
    assert (weights[bad] == 0).all()
    assert found["mrr_text"] == pytest.approx(before)
    assert found["mrr"] > found["mrr_one_weight"] >= before
    after = evaluate(ranker, toy, Protocol(split="valid")).report["metrics"]
    assert after["mrr"] == pytest.approx(found["mrr"])
    assert after["both.realistic.hits_at_10"] == pytest.approx(found["hits_at_10"])
    ranker.use("text")
    assert evaluate(ranker, toy, Protocol(split="valid")).report["metrics"]["mrr"] == pytest.approx(before)


def test_a_rarely_asked_relation_leans_on_the_others(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    ranker = make_ranker()
    relations = np.unique(toy.splits["valid"][:, 1]).tolist()
    ranker.structure = oracle(toy, "valid", relations[:-1])
    choose_structure(ranker, toy, Protocol(split="valid"))
    assert len(set(ranker.structure.weights_R2[relations].ravel().tolist())) == 1


def test_vectors_get_the_weights_that_validation_asks_for(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranker, found = make_ranker(vector=VectorSettings(enabled=True)), []
    for prior in (1e6, 0.01):
        monkeypatch.setattr("kgmlm.tuning.PRIOR", prior)
        found.append(validate(ranker, toy, Protocol(split="valid")))
        assert ranker.factors_R2 is not None
        assert (len(set(ranker.factors_R2.ravel().tolist())) > 1) == (prior < 1), (
            "much of the average or little"
        )
        after = evaluate(ranker, toy, Protocol(split="valid")).report["metrics"]
        assert after["mrr"] == pytest.approx(found[-1]["mrr"])
    assert found[0]["mrr"] == pytest.approx(found[0]["mrr_one_weight"])
    assert found[1]["mrr"] > found[1]["mrr_one_weight"] == found[0]["mrr_one_weight"]


def test_a_run_is_fused_by_the_command(cli: Cli, toy_vector_run: Path, toy_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_vector_run, run)
    refused(cli("evaluate", run, "--scores", "structure"), "no structural model", "kgmlm fuse")
    refused(cli("fuse", run, "--from", run), "no structural model")
    settings = ("--set", "structure.dimension=8", "--set", "structure.batch_size=16")
    done = cli("fuse", run, *settings, "--json", "-q")
    assert done.returncode == 0, done.stderr
    valid = json.loads(done.stdout)
    refused(cli("fuse", run, *settings), "has a structural model already", f"--from {run}", "--overwrite")
    refused(cli("fuse", run, "--overwrite", "--set", "vector.enabled=true"), "not by vector.enabled")
    record = json.loads((run / "run.json").read_text("utf-8"))
    assert record["structure"]["valid"] == valid
    assert record["structure"]["settings"]["dimension"] == 8
    assert "kgmlm fuse" in record["structure"]["command"]
    reports = {}
    for scores in ("all", "text", "structure"):
        done = cli("evaluate", run, "--split", "valid", "--scores", scores, "--json", "-q")
        assert done.returncode == 0, done.stderr
        reports[scores] = json.loads(done.stdout)
    assert reports["all"]["metrics"]["mrr"] == pytest.approx(valid["mrr"])
    assert reports["text"]["metrics"]["mrr"] == pytest.approx(valid["mrr_text"])
    assert reports["structure"]["metrics"]["mrr"] != pytest.approx(valid["mrr_text"])
    assert reports["text"]["structure"] is None
    assert reports["all"]["structure"]["settings"]["dimension"] == 8
    base = ("rank", run, "--relation", "capital", "--head", "france", "--json", "-k", "3")
    (row, *_) = [json.loads(x) for x in cli(*base, "--explain").stdout.splitlines()]
    assert {"vector", "structure"} <= row["parts"].keys()
    assert "; structure " in cli(*base[:-3], "--explain").stdout
    other = tmp_path / "other"
    shutil.copytree(toy_run, other)
    (other / STRUCTURE).write_bytes(b"")
    refused(cli("fuse", other, "--from", run), "already", "--overwrite")
    done = cli("fuse", other, "--from", run, "--overwrite")
    assert "validation MRR" in done.stdout, done.stderr
    assert open_run(other).record["structure"]["settings"] == record["structure"]["settings"]
    (other / STRUCTURE).write_bytes(b"")
    refused(cli("rank", other, *base[2:]), STRUCTURE, "has 0 bytes instead of", "kgmlm fuse")
