"""Trees as a second stage: their arrays, the features that they ask for, and what they teach a run."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import Cli, refused
from safetensors.numpy import load_file, save_file
from trainings import arguments

import kgmlm
from kgmlm.core.config import KGESettings, RuleSettings, VectorSettings
from kgmlm.core.errors import RunError
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries, both_sides, distinct_triples
from kgmlm.ranking.pair_features import GRAPH, CandidateScores, PairFeatures, group_of
from kgmlm.ranking.ranker import Ranker, StageWeight
from kgmlm.ranking.second_stage import best_of
from kgmlm.ranking.trees import FORESTS, Forest, Trees, odd_pairs
from kgmlm.runs.opened import open_folder, tuned_ranker
from kgmlm.signals.kge import KGE
from kgmlm.signals.rules import Rules
from kgmlm.training import trees as fitting
from kgmlm.training.candidate_lists import CandidateLists
from kgmlm.training.recipes import recipe_of

lightgbm = pytest.importorskip("lightgbm")


def two_steps(people: int = 150, seed: int = 0) -> KnowledgeGraph:
    """A graph in which a friend's friends are known, of whom training has a third."""
    rng = np.random.default_rng(seed)
    friends = {(a, b) for a in range(people) for b in rng.choice(people, 3, replace=False).tolist() if a != b}
    known = {(a, c) for (a, b), (d, c) in itertools.product(friends, friends) if b == d and a != c}
    triples = [(f"p{a}", "knows", f"p{c}") for a, c in sorted(known - friends)]
    order = rng.permutation(len(triples))
    valid, test, train = np.split(order, [400, 500])
    likes = [(f"p{a}", "likes", f"p{b}") for a, b in sorted(friends)]
    known_ones, asked, hidden = (
        [triples[i] for i in some.tolist()] for some in (train[: len(triples) // 3], valid, test)
    )
    return KnowledgeGraph.from_triples(likes + known_ones, valid=asked, test=hidden)


def alike(one: Forest, other: Forest) -> bool:
    """Return whether two forests are the same."""
    pairs: Any = zip(one, other, strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.fixture(scope="module")
def booster() -> tuple[Any, np.ndarray[Any, np.dtype[np.float32]]]:
    """A model of LightGBM, and pairs to score."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((600, 5)).astype(np.float32)
    x[:, 4] = np.round(x[:, 4])
    y = (x[:, 0] * x[:, 1] + x[:, 4] > 0.3).astype(np.float32)
    data = lightgbm.Dataset(x, y, group=np.full(20, 30), params=dict(fitting.LIGHTGBM_PARAMETERS))
    return lightgbm.train(dict(fitting.LIGHTGBM_PARAMETERS), data, 40), x


def test_trees_score_as_lightgbm_does(booster: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = booster
    forest = fitting.forest_of(model.dump_model())
    forest.check(5)
    scores = forest.scores(x)
    assert scores == pytest.approx(model.predict(x, raw_score=True), abs=1e-5)
    assert np.ptp(scores) > 1
    monkeypatch.setattr("kgmlm.ranking.trees.SPLIT_BATCH", 7 * forest.feature_TM.size)
    assert np.array_equal(forest.scores(x), scores)


def test_contributions_sum_up_to_the_score_less_the_mean(booster: tuple[Any, Any]) -> None:
    model, x = booster
    forest = fitting.forest_of(model.dump_model())
    mean = (forest.value_TL * forest.weight_TL).sum(1) / forest.weight_TL.sum(1)
    parts = forest.contributions(x[:50])
    assert parts.sum(1) + mean.sum() == pytest.approx(forest.scores(x[:50]), abs=1e-4)
    unused = [f for f in range(5) if f not in forest.feature_TM[forest.threshold_TM < np.inf]]
    assert not parts[:, unused].any()


def test_a_single_split_by_hand() -> None:
    forest = Forest(
        np.array([[1]]), np.array([[0.5]]), np.array([[0]]), np.array([[1]]), np.array([[2]]),
        np.array([[-1.0, 3.0]], np.float32), np.array([[3.0, 1.0]], np.float32),
    )  # fmt: skip
    forest.check(2)
    x = np.array([[9, 0.5], [9, 0.6]], np.float32)
    assert forest.scores(x).tolist() == [-1, 3]
    assert forest.contributions(x).tolist() == [[0, -1], [0, 3]]


DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a feature that is not there": lambda t: t["whole.feature_TM"].__setitem__((0, 0), 99),
    "a leaf of infinite value": lambda t: t["odd.value_TL"].__setitem__((0, 0), np.inf),
    "a threshold that is no number": lambda t: t["whole.threshold_TM"].__setitem__((0, 0), np.nan),
    "leaves in no order": lambda t: t["even.last_TM"].__setitem__((0, 0), 0),
    "a forest less": lambda t: t.pop("odd.first_TM"),
    "another type": lambda t: t.update({"whole.value_TL": t["whole.value_TL"].astype(np.float64)}),
    "other shapes": lambda t: t.update({"whole.first_TM": t["whole.first_TM"][:-1]}),
    "no names": lambda t: t.update(features=np.frombuffer(b'{"a": 1}', np.uint8).copy()),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_trees_are_one_sentence(booster: tuple[Any, Any], tmp_path: Path, what: str) -> None:
    forest = fitting.forest_of(booster[0].dump_model())
    trees = Trees(StageWeight(9, 1.0), tuple("abcde"), dict.fromkeys(FORESTS, forest))
    path = tmp_path / "trees.safetensors"
    trees.save(path)
    opened = Trees.open(path, StageWeight(9, 1.0))
    assert opened.names == trees.names
    assert alike(opened.forests["odd"], forest)
    tensors = {name: array.copy() for name, array in load_file(path).items()}
    DAMAGE[what](tensors)
    save_file(tensors, path)
    with pytest.raises(RunError, match="cannot be read") as caught:
        Trees.open(path, StageWeight(9, 1.0))
    assert "\n" not in str(caught.value)


@pytest.fixture
def knowing(make_ranker: Callable[..., Ranker], toy: KnowledgeGraph) -> Ranker:
    """A random text model with a KGE model and rules."""
    made = make_ranker(vector=VectorSettings(enabled=True))
    made = made.with_signal(KGE.fit(toy, KGESettings(dimension=8, epochs=5)))
    made = made.with_signal(Rules.fit(toy, RuleSettings()))
    mixture = made.mixture.evenly("kge", 1.0).evenly("rules", 0.5)
    return made.replace(mixture=mixture)


def asked(toy: KnowledgeGraph) -> tuple[Queries, Any]:
    """Queries of both sides, and candidates of each."""
    queries, _ = both_sides(np.concatenate([toy.splits["valid"], toy.splits["train"][:20]]))
    ids_BK = np.random.default_rng(0).integers(0, len(toy.entities), (len(queries), 6))
    return queries, ids_BK


def test_features_of_the_graph_by_hand(knowing: Ranker, toy: KnowledgeGraph) -> None:
    queries, ids_BK = asked(toy)
    features = PairFeatures(knowing)
    values = dict(zip(features.known_names, np.moveaxis(features.known(queries, ids_BK), 2, 0), strict=True))
    train = distinct_triples(toy.splits["train"]).tolist()
    around: dict[int, set[int]] = {i: set() for i in range(len(toy.entities))}
    answers: dict[tuple[int, int, bool], set[int]] = {}
    for h, r, t in train:
        if h != t:
            around[h].add(t)
            around[t].add(h)
        answers.setdefault((h, r, True), set()).add(t)
        answers.setdefault((t, r, False), set()).add(h)
    degree = [sum((h == i) + (t == i) for h, _, t in train) for i in around]
    step = {i: {j: 1 / len(near) for j in near} for i, near in around.items()}

    def walks(start: int, steps: int) -> dict[int, float]:
        at = {start: 1.0}
        for _ in range(steps):
            further: dict[int, float] = {}
            for i, chance in at.items():
                for j, share in step[i].items():
                    further[j] = further.get(j, 0.0) + chance * share
            at = further
        return at

    for row, q in enumerate(queries):
        two, three = walks(q.entity, 2), walks(q.entity, 3)
        for column, c in enumerate(ids_BK[row].tolist()):
            both = around[q.entity] & around[c]
            tail = q.target == "tail"
            often = sum(c in of for (_, r, side), of in answers.items() if (r, side) == (q.relation, tail))
            expected = {
                "degree of the candidate": np.log1p(degree[c]),
                "degree of the query's entity": np.log1p(degree[q.entity]),
                "known answers of the query": np.log1p(len(answers.get((q.entity, q.relation, tail), ()))),
                "answers the relation": np.log1p(often),
                "share of its triples": often / max(1, degree[c]),
                "common neighbors": np.log1p(len(both)),
                "Adamic-Adar": np.log1p(sum(1 / np.log(1 + len(around[z])) for z in both)),
                "walks of two steps": np.log(1e-6 + two.get(c, 0)),
                "walks of three steps": np.log(1e-6 + three.get(c, 0)),
            }
            for name, value in expected.items():
                assert values[name][row, column] == pytest.approx(value, abs=1e-3), (name, q, c)
    assert (values["most similar entity with it"] <= 1 + 1e-5).all()
    assert values["answers of similar entities"].any()


def test_features_of_complex_and_rules_by_hand(knowing: Ranker, toy: KnowledgeGraph) -> None:
    queries, ids_BK = asked(toy)
    features = PairFeatures(knowing)
    values = dict(zip(features.known_names, np.moveaxis(features.known(queries, ids_BK), 2, 0), strict=True))
    kge = knowing.signals["kge"]
    assert isinstance(kge, KGE)

    def scores(entity: int, relation: int, tail: bool) -> Any:
        one = Queries(np.array([entity]), np.array([relation]), np.array([tail]))
        pool = knowing.pool()
        return kge.score(knowing.reader.reading(one, text=False), pool)[0]

    known = np.asarray(kge.rows_N) >= 0
    for row, q in enumerate(queries):
        tail = q.target == "tail"
        for column, c in enumerate(ids_BK[row].tolist()):
            if not (known[q.entity] and known[c]):
                continue
            back = scores(c, q.relation, not tail)
            expected = back[q.entity] - np.logaddexp.reduce(back[known])
            # All entities stand for themselves here, and the query's own once more.
            assert values["kge: reversed"][row, column] <= 0
            assert values["kge: reversed"][row, column] == pytest.approx(expected, abs=0.75)
            of_all = np.array([scores(q.entity, r, tail)[c] for r in range(len(toy.relations))])
            expected = of_all[q.relation] - np.logaddexp.reduce(of_all)
            assert values["kge: relation of the pair"][row, column] == pytest.approx(expected, abs=1e-3)
    best, second, number = (values[f"rules: {what}"] for what in ("best", "second", "number"))
    assert (best >= second).all()
    assert np.array_equal(best > 0, number >= 1)
    assert np.array_equal(second > 0, number >= 2)
    assert number.any()


def test_hubs_are_thinned_evenly(
    toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch, knowing: Ranker
) -> None:
    queries, ids_BK = asked(toy)
    monkeypatch.setattr("kgmlm.ranking.pair_features.MAX_LINKS", 2)
    monkeypatch.setattr("kgmlm.ranking.pair_features._thinned.__defaults__", (2,))
    few = PairFeatures(knowing).known(queries, ids_BK)
    column = GRAPH.index("common neighbors")
    assert few[..., column].max() <= np.log1p(2) + 1e-6
    assert np.isfinite(few).all()


def test_features_are_named_and_finite(knowing: Ranker, toy: KnowledgeGraph) -> None:
    queries, _ = asked(toy)
    ((_, first),) = knowing.first_stage(queries, batch_size=len(queries))
    best, ids_BK = best_of(knowing.context, first, 6)
    ids_BK[0, 1:] = -1
    ids_BK[1] = -1
    features = PairFeatures(knowing)
    candidates = CandidateScores.of(first, best, ids_BK)
    for name, scores_BN in first.signal_scores.items():
        expected_BK = np.take_along_axis(scores_BN, np.maximum(ids_BK, 0), 1)
        there_BK = candidates.there_BK
        np.testing.assert_array_equal(candidates.signal_scores[name][there_BK], expected_BK[there_BK])
    assert np.array_equal(first.scores_BN, knowing.combined(first.queries, first.signal_scores))
    result = features.of(first.queries, candidates, knowing.mixture)
    assert not result[..., features.names.index("score: second stages")][2:].any(), "there is none before"
    assert result.shape == (*ids_BK.shape, len(features.names))
    assert result.dtype == np.float32
    assert np.isfinite(result[2:]).all()
    assert np.isfinite(result[0, 0]).all()
    groups = {group_of(name) for name in features.names}
    assert groups == {"scores before", "graph", "likelihood", "vector", "kge", "rules"}
    assert features.fits(knowing)
    assert not features.fits(knowing.with_signal(Rules.fit(toy, RuleSettings(length=1))))


def mrr(run: Path) -> float:
    """Of test."""
    return kgmlm.evaluate(run, progress=False).metrics["both.realistic.inverse_harmonic_mean_rank"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that knows little of a graph whose answers are two steps away."""
    path = tmp_path_factory.mktemp("trees") / "run"
    tiny: dict[str, Any] = {"hidden_size": 16, "layers": 1, "heads": 2}
    how: dict[str, Any] = {"preset": "plain", "epochs": 0.2, "batch_size": 64}
    kgmlm.train(two_steps(), "scratch", path, progress=False, **arguments(scratch=tiny, **how))
    kgmlm.tune(path, add="kge", settings={"kge": {"dimension": 8, "epochs": 3}}, progress=False)
    return path


@pytest.fixture(scope="module")
def with_trees(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = shutil.copytree(trained, tmp_path_factory.mktemp("trees") / "run")
    kgmlm.tune(path, add="trees", progress=False)
    return path


@pytest.mark.slow
def test_trees_learn_what_no_signal_says(trained: Path, with_trees: Path) -> None:
    before, after = kgmlm.open_run(trained), kgmlm.open_run(with_trees)
    result = after.folder.tuned.by["valid"]["trees"]
    assert result["mrr"] > 1.5 * result["mrr_first"], "of each half by the trees of the other"
    test = [mrr(run.path) for run in (before, after)]
    assert test[1] > 1.5 * test[0]
    assert test[1] == pytest.approx(result["mrr"], abs=0.1), "and what validation says holds on test"
    assert after.folder.tuned.mixture.averages == before.folder.tuned.mixture.averages, "weights stay"
    assert "trees" in str(kgmlm.info(with_trees).lines())


@pytest.mark.slow
def test_trees_of_a_half_score_the_other_half(with_trees: Path) -> None:
    """By pairs of the query's entity and the candidate, so that both questions of a triple are in a half."""
    run = open_folder(with_trees)
    trees = tuned_ranker(run, "cpu").stages["trees"]
    assert isinstance(trees, Trees)
    queries, answers = run.graph.queries("valid")
    count = len(queries) // 2
    ids_BK = np.concatenate([answers[:, None], np.random.default_rng(0).integers(0, 100, (2 * count, 9))], 1)
    odd_BK = odd_pairs(queries, ids_BK)
    assert 0.3 < odd_BK.mean() < 0.7
    assert np.array_equal(odd_BK[:count, 0], odd_BK[count:, 0])
    features = np.random.default_rng(1).normal(size=(*ids_BK.shape, len(trees.names))).astype(np.float32)

    def by(forest: str) -> Any:
        return replace(trees, forests={"whole": trees.forests[forest]}).scores(queries, ids_BK, features)

    unseen_BK = trees.of_unseen().scores(queries, ids_BK, features)
    assert np.array_equal(unseen_BK, np.where(odd_BK, by("even"), by("odd")))
    assert np.array_equal(trees.scores(queries, ids_BK, features), by("whole"))
    assert not np.array_equal(by("even"), by("odd"))


@pytest.mark.slow
def test_a_run_with_trees_is_asked_in_every_way(cli: Cli, with_trees: Path, tmp_path: Path) -> None:
    run = shutil.copytree(with_trees, tmp_path / "run")
    base = ("evaluate", run, "--json", "-q")
    reports = {k: json.loads(cli(*base, *k).stdout) for k in ((), ("--rerank", 0), ("--rerank", 3))}
    weight = open_folder(run).tuned.stage_weights["trees"].weight
    assert reports[()]["trees"] == {"k": 100, "weight": pytest.approx(weight)}
    assert open_folder(run).tuned.stage_weights["trees"].states == (True, False, False, False), (
        "no other was asked"
    )
    assert reports["--rerank", 0]["trees"] is None
    assert reports["--rerank", 3]["trees"]["k"] == 100, "they were fitted to so many"
    assert reports["--rerank", 3]["metrics"]["mrr"] == pytest.approx(reports[()]["metrics"]["mrr"], abs=2e-3)
    assert reports[()]["metrics"]["mrr"] > 1.5 * reports["--rerank", 0]["metrics"]["mrr"]
    assert json.loads(cli(*base, "--scores", "text").stdout)["trees"] is None
    question = ("rank", run, "--head", "p1", "--relation", "knows", "--explain")
    assert "trees: " in cli(*question).stdout
    rows = [json.loads(line) for line in cli(*question, "--json").stdout.splitlines()]
    assert all({"kge", "trees"} <= row["parts"].keys() for row in rows)
    whole = [sum(p["weight"] * p["value"] for p in row["parts"].values()) for row in rows]
    assert whole == pytest.approx([row["score"] for row in rows], abs=1e-3)


@pytest.mark.slow
def test_parts_of_trees_sum_up(with_trees: Path) -> None:
    run = open_folder(with_trees)
    ranker = tuned_ranker(run, "cpu")
    trees = ranker.stages["trees"]
    assert isinstance(trees, Trees)
    queries, _ = run.graph.queries("test")
    one = queries[np.array([0])]
    parts = trees.parts(ranker, one)
    ((_, with_1N),), ((_, without_1N),) = (list(r.rank(one)) for r in (ranker, ranker.without_stage("trees")))
    gained = (with_1N - without_1N)[0]
    sums = {i: sum(of.values()) for i, of in parts.items()}
    some = [*sums]
    assert len(some) >= 50
    assert gained[some] - gained[some[0]] == pytest.approx([sums[i] - sums[some[0]] for i in some], abs=1e-2)


@pytest.mark.slow
def test_trees_come_along_in_a_pack(cli: Cli, with_trees: Path, tmp_path: Path) -> None:
    pack, without = tmp_path / "whole.kgmlm", tmp_path / "without.kgmlm"
    assert cli("pack", with_trees, "--output", pack, "-q").returncode == 0
    assert cli("pack", with_trees, "--output", without, "--no-kge", "-q").returncode == 0
    mine, packed = (tuned_ranker(open_folder(x), "cpu").stages["trees"] for x in (with_trees, pack))
    assert isinstance(mine, Trees)
    assert isinstance(packed, Trees)
    assert packed.stage_weight == mine.stage_weight
    for half in FORESTS:
        assert alike(mine.forests[half], packed.forests[half])
    assert "trees" not in tuned_ranker(open_folder(without), "cpu").stages, (
        "they were fitted with the embeddings"
    )
    assert mrr(pack) == pytest.approx(mrr(with_trees), abs=0.02)


PLAIN = """
import sys
for name in ("lightgbm", "torch", "transformers", "accelerate", "pykeen", "pandas", "sklearn"):
    sys.modules[name] = None  # importing it fails
import pyarrow
try:
    pyarrow.array(["a"])  # looks for pandas once, and fails because it finds None there
except AttributeError:
    pass
from kgmlm.cli.app import app
app(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_pack_with_trees_ranks_in_a_plain_install(cli: Cli, with_trees: Path, tmp_path: Path) -> None:
    run = shutil.copytree(with_trees, tmp_path / "run")
    assert cli("onnx", run).returncode == 0
    kgmlm.pack(run, tmp_path / "plain.kgmlm", progress=False)
    question = [str(tmp_path / "plain.kgmlm"), "--head", "p1", "--relation", "knows", "-k", "100", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, "rank", *question], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    plain, whole = (
        {row["entity"]: row for row in map(json.loads, text.splitlines())}
        for text in (done.stdout, cli("rank", *question).stdout)
    )
    assert plain.keys() == whole.keys()
    for entity, row in plain.items():
        assert row["score"] == pytest.approx(whole[entity]["score"], abs=0.02)
    without = cli("rank", *question, "--rerank", "0").stdout
    first = {row["entity"]: row["score"] for row in map(json.loads, without.splitlines())}
    assert any(abs(first[x] - plain[x]["score"]) > 0.1 for x in first.keys() & plain.keys()), "trees counted"


@pytest.mark.slow
def test_trees_take_part_wherever_a_run_answers(with_trees: Path, tmp_path: Path) -> None:
    from fastapi.testclient import TestClient
    from pykeen.predict import predict_target

    from kgmlm.evaluation.pykeen import to_factory, to_pykeen_model
    from kgmlm.serving.serve import service

    run = shutil.copytree(with_trees, tmp_path / "run")
    opened = kgmlm.open_run(run)
    asked = opened.rank([("p1", "knows", None)], k=200)
    scores = asked.set_index("entity")["score"]
    plain = kgmlm.open_run(run, rerank=0).rank([("p1", "knows", None)], k=200).set_index("entity")["score"]
    assert not np.allclose(scores, plain[scores.index], atol=0.1)
    with TestClient(service(opened), base_url="http://127.0.0.1") as client:
        body = {"queries": [{"head": "p1", "relation": "knows"}], "k": 20}
        parsed = client.post("/rank", json=body).json()["results"][0]["predictions"]
    assert [row["entity"] for row in parsed] == asked["entity"].tolist()[:20]
    assert [row["score"] for row in parsed] == pytest.approx(scores.tolist()[:20], abs=1e-3)
    model = to_pykeen_model(opened.predictor)
    messages = predict_target(
        model, head="p1", relation="knows", triples_factory=to_factory(opened.graph, "train")
    )
    by_label = messages.df.set_index("tail_label")["score"]
    assert by_label[scores.index].to_numpy() == pytest.approx(scores.to_numpy(), abs=1e-3)
    kgmlm.complete(
        run, tmp_path / "new.parquet", relations=["knows"], min_probability=0, typed=False, progress=False
    )
    listed = pq.read_table(tmp_path / "new.parquet").to_pandas()
    own = listed[listed["head"] == "p1"].set_index("tail")["tail_score"]
    assert len(own)
    assert not np.allclose(own, plain[own.index], atol=0.1)


@pytest.mark.slow
def test_trees_are_fitted_again_with_the_weights_and_dropped(
    cli: Cli, with_trees: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(with_trees, tmp_path / "run")
    again = kgmlm.tune(run, progress=False)
    assert list(again) == ["text", "kge", "trees"], "as reverse scoring is"
    kgmlm.tune(run, add="reverse", candidates=5, max_triples=30, progress=False)
    assert list(open_folder(run).tuned.stage_weights) == ["reverse", "trees"]
    kgmlm.tune(run, drop=("trees", "reverse"), progress=False)
    opened = open_folder(run)
    assert not opened.tuned.stage_weights
    assert "trees" not in opened.fingerprints
    assert not (run / "model" / "trees.safetensors").exists()
    open_folder(run, verify=True)
    refused(cli("tune", run, "--drop", "trees"), "has no trees")
    kgmlm.tune(run, add="trees", progress=False)
    (run / "model" / "trees.safetensors").unlink()
    refused(cli("evaluate", run), "trees")


@pytest.mark.slow
def test_probabilities_are_those_of_new_queries(with_trees: Path, tmp_path: Path) -> None:
    run = shutil.copytree(with_trees, tmp_path / "run")
    kgmlm.calibrate(run, progress=False)
    assert open_folder(run).calibration is not None
    top = kgmlm.open_run(run).rank("p1", "knows", k=20)
    assert top.loc[~top["known"], "probability"].between(0, 1).all()
    kgmlm.tune(run, add="trees", candidates=30, progress=False)
    with pytest.raises(kgmlm.KgmlmError, match="not fitted for the trees"):
        assert open_folder(run).calibration


def test_few_validation_triples_teach_trees_nothing(cli: Cli, toy_run: Path) -> None:
    refused(cli("tune", toy_run, "--add", "trees"), "at least 300 validation triples")


@pytest.mark.slow
def test_without_lightgbm_a_sentence_says_so(
    with_trees: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgmlm.core.machine.installed", lambda package: package != "lightgbm")
    run = shutil.copytree(with_trees, tmp_path / "run")
    with pytest.raises(kgmlm.KgmlmError, match="pip install"):
        kgmlm.tune(run, add="trees", progress=False)
    assert mrr(run) > 0.05
    kgmlm.tune(run, progress=False)
    assert "trees" not in open_folder(run).tuned.stage_weights


@pytest.mark.slow
def test_the_best_preset_ends_with_trees(tmp_path: Path) -> None:
    path = tmp_path / "run"
    small: dict[str, Any] = {"scratch": {"hidden_size": 16, "layers": 1, "heads": 2}, "precision": "fp32"}
    run = kgmlm.train(
        two_steps(), "scratch", path, preset="best", max_steps=2, progress=False, **arguments(**small)
    )
    recipe, tuned = run.folder.record["recipe"], run.folder.tuned
    assert recipe["stages"][-3:] == ["reverse", "trees", "calibration"]
    assert set(tuned.stage_weights) == {"reverse", "trees"}
    assert tuned.by["valid"]["trees"]["mrr"] >= tuned.by["valid"]["trees"]["mrr_first"]
    assert run.folder.calibration is not None


def test_a_recipe_has_trees_where_validation_can_teach_them(toy: KnowledgeGraph) -> None:
    graph = two_steps()
    assert all("trees" in recipe_of(preset, graph, True).stages for preset in ("quick", "balanced", "best"))
    assert "trees" not in recipe_of("zero-shot", graph, True).stages
    few = recipe_of("best", toy, True)
    assert "trees" not in few.stages
    assert "validation triples, and trees need 300" in few.reasons["trees"]


@pytest.mark.slow
def test_what_is_used_is_on_the_scale_of_what_was_measured(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The halves have weights of their own, as confident as those of the run: multiplied by what training
    divides scores by. A tree's threshold would mean something else by other scores.
    """
    seen: list[Any] = []
    choose = fitting._chosen

    def chosen(lists: CandidateLists, by_weights: dict[str, CandidateLists], asks: Any, *more: Any) -> Any:
        seen.append((lists, by_weights, asks))
        return choose(lists, by_weights, asks, *more)

    monkeypatch.setattr(fitting, "_chosen", chosen)
    path = shutil.copytree(trained, tmp_path / "run")
    kgmlm.tune(path, add="trees", progress=False)
    ((lists, by_weights, asks),) = seen
    temperature = open_folder(path).settings.training.temperature
    assert temperature != 1
    for half, of_B in zip(by_weights.values(), asks.halves(), strict=True):
        undivided = replace(lists, confident=1.0).weights_of(asks, of_B).averages
        used = half.mixture.averages
        assert used == {name: pytest.approx(temperature * undivided[name]) for name in used}
        assert max(used.values()) > 0


@pytest.mark.slow
def test_one_triple_teaches_nothing(trained: Path, tmp_path: Path) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    figures = kgmlm.tune(run, add="trees", max_triples=1, progress=False)["trees"]
    assert (figures["k"], figures["mrr"]) == (0, figures["mrr_first"])
    assert not open_folder(run).tuned.active
