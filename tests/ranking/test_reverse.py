"""Asking the best candidates back for the entity of their query."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli, refused
from doubles import FixedStage

import kgmlm
from kgmlm.core.config import KGESettings, Protocol, TextSettings, VectorSettings
from kgmlm.core.errors import ConfigError, RunError
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries, Query
from kgmlm.ranking import ranker as ranker_module
from kgmlm.ranking import second_stage
from kgmlm.ranking.constraints import MISSED, Possible
from kgmlm.ranking.predictor import Predictor
from kgmlm.ranking.ranker import BEST, Ranker, StageWeight
from kgmlm.ranking.second_stage import FLOOR, ReverseScoring
from kgmlm.runs.opened import open_folder
from kgmlm.runs.tuned import TunedWeights
from kgmlm.runs.writing import save_tuned
from kgmlm.signals.kge import KGE
from kgmlm.training.second_stages import choose_reverse, tune


@pytest.fixture
def ranker(make_ranker: Callable[..., Ranker], toy: KnowledgeGraph) -> Ranker:
    """A random text model beside a KGE model that knows something."""
    made = make_ranker(TextSettings(max_length=40, neighbors=3), VectorSettings(enabled=True))
    made.signals["kge"] = KGE.fit(toy, KGESettings(dimension=16, epochs=20))
    return made.replace(mixture=made.mixture.evenly("kge", 1.0))


def turned(query: Query, candidate: int) -> Query:
    """What a candidate is asked."""
    return Query(candidate, query.relation, "head" if query.target == "tail" else "tail")


@pytest.mark.parametrize("among", [5, BEST])
def test_a_candidate_says_how_probable_the_entity_of_its_query_is(
    ranker: Ranker, toy: KnowledgeGraph, among: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second_stage, "BEST", among)
    queries, _ = toy.queries("test")
    ids_BK = np.random.default_rng(0).integers(0, len(toy.entities), (len(queries), 4))
    ids_BK[0, 2] = -1
    ids_BK[1, 1] = queries.entity_B[1]
    rows: list[tuple[int, int]] = []
    found_BK = ReverseScoring(StageWeight(9, 1.0)).score(
        ranker, queries, ids_BK, 5, lambda n, total: rows.append((n, total))
    )
    assert found_BK.shape == ids_BK.shape
    distinct = set()
    for b, query in enumerate(queries):
        for k, candidate in enumerate(ids_BK[b].tolist()):
            if candidate < 0:
                assert found_BK[b, k] == 0
                continue
            back = turned(query, candidate)
            distinct.add(back)
            ((_, scores_1N),) = ranker.rank(Queries.of([back]))
            (scores_N,) = scores_1N
            total = np.logaddexp.reduce(-np.sort(-scores_N)[:among])
            expected = max(float(scores_N[query.entity] - total), FLOOR)
            assert found_BK[b, k] == pytest.approx(expected, abs=1e-3, rel=1e-4)
    assert sum(n for n, _ in rows) == len(distinct)
    assert {total for _, total in rows} == {len(distinct)}


def test_what_cannot_answer_does_not_hide_the_others(ranker: Ranker, toy: KnowledgeGraph) -> None:
    relation = int(np.bincount(toy.splits["train"][:, 1]).argmax())
    constrained = ranker.possible.own_B(Queries.of([Query(0, relation, "tail")]))
    own = Query(int(toy.splits["train"][0, 0]), int(toy.splits["train"][0, 1]), "tail")
    scores = ReverseScoring(StageWeight(9, 1.0)).score(ranker, Queries.of([own]), np.array([[own.entity]]))
    assert FLOOR <= scores.item() <= 0
    if constrained.all():
        assert scores.item() == pytest.approx(FLOOR)


def test_one_signal_alone_has_the_temperature_of_training(ranker: Ranker, toy: KnowledgeGraph) -> None:
    alone = ranker.by("likelihood")
    query = Query(3, 0, "tail")
    ((_, scores_1N),) = alone.rank(Queries.of([turned(query, 5)]))
    temperature = alone.reader.settings.training.temperature
    scaled_N = scores_1N[0] / temperature
    expected = temperature * (scaled_N[3] - np.logaddexp.reduce(scaled_N))
    scores = ReverseScoring(StageWeight(9, 1.0)).score(alone, Queries.of([query]), np.array([[5]]))[0, 0]
    assert scores == pytest.approx(float(expected), abs=1e-4, rel=1e-4)


@pytest.mark.parametrize("at_once", [1, 7, 10**6])
def test_the_best_gain_and_stay_ahead(
    ranker: Ranker, toy: KnowledgeGraph, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranker_module, "MAX_SCORES", 8 * at_once * len(toy.entities))
    queries, _ = toy.queries("test")
    asking, messages = ranker.with_stage(ReverseScoring(StageWeight(4, 0.5))), list[int]()
    after_BN = np.zeros((len(queries), len(toy.entities)), np.float32)
    for rows, scores_bN in asking.rank(queries, advance=messages.append):
        after_BN[rows] = scores_bN
    assert sum(messages) == len(queries)
    known = toy.context.answers
    for b, query in enumerate(queries):
        asked = Queries.of([query])
        ((_, before),) = ranker.rank(asked)
        (before_N,) = before
        passed = np.zeros(len(toy.entities), np.bool_)
        passed[known.lookup(asked)[1]] = True
        best = np.argsort(np.where(passed | (before_N <= MISSED), np.inf, -before_N))[:4]
        back = ReverseScoring(StageWeight(9, 1.0)).score(ranker, asked, best[None])[0]
        gain = 0.5 * (back - back.min())
        np.testing.assert_allclose(after_BN[b, best], before_N[best] + gain, atol=1e-3, rtol=1e-3)
        rest = np.ones(len(toy.entities), np.bool_)
        rest[best] = False
        rest &= ~passed
        np.testing.assert_allclose(after_BN[b, rest], before_N[rest], rtol=1e-5)
        assert after_BN[b, best].min() > after_BN[b, rest].max()
    assert asking.unconstrained().stage_weights == asking.stage_weights


def test_validation_chooses_how_many_are_asked_back(ranker: Ranker, toy: KnowledgeGraph) -> None:
    graph, protocol = toy, Protocol(split="valid")
    alone = ranker.replace(mixture=ranker.mixture.only("kge"))  # so that halves have the same weights
    stage_weight, figures = choose_reverse(alone, graph, protocol, candidates=8)
    assert figures["mrr_first"] == pytest.approx(evaluate(alone, graph, protocol).report["metrics"]["mrr"])
    asking = ranker.with_stage(ReverseScoring(stage_weight))
    assert stage_weight.k <= 8
    with pytest.raises(ConfigError, match="test triples"):
        choose_reverse(ranker, graph, Protocol(split="test"))
    tuned = tune(asking, graph, protocol, candidates=8)
    assert list(tuned.figures) == ["text", "kge", "reverse"]
    assert "reverse" in tuned.stage_weights
    assert (tuned.stage_weights["reverse"].k, tuned.stage_weights["reverse"].weight) == tuple(
        tuned.figures["reverse"][x] for x in ("k", "weight")
    )


def test_one_triple_does_not_choose_how_it_is_asked_back(
    ranker: Ranker, toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = list[int]()

    score = ReverseScoring.score

    def asking(*given: Any, **more: Any) -> Any:
        sizes.append(given[4])
        return score(*given, **more)

    monkeypatch.setattr(ReverseScoring, "score", asking)
    one = replace(toy, splits={**toy.splits, "valid": toy.splits["valid"][:1]})
    stage_weight, figures = choose_reverse(ranker, one, Protocol(split="valid"), candidates=8, batch_size=3)
    assert (stage_weight, figures["mrr"]) == (StageWeight(0, 0.0), figures["mrr_first"])
    assert sizes == [3]


def test_what_cannot_answer_is_not_asked_back_either(ranker: Ranker, toy: KnowledgeGraph) -> None:
    forbidding = Possible(np.ones(len(toy.relations), np.bool_))
    asking = ranker.with_stage(ReverseScoring(StageWeight(5, 0.5))).replace(possible=forbidding)
    query = Query(toy.entities.index["usa"], toy.relations.index["located_in"], "tail")
    (own,) = Predictor(toy, asking).placed(query, np.array([query.entity]))
    assert set(own.parts or ()) == {"likelihood", "vector", "kge"}


def test_the_parts_of_a_score_that_was_asked_back(ranker: Ranker, toy: KnowledgeGraph) -> None:
    asking = ranker.with_stage(ReverseScoring(StageWeight(5, 0.5)))
    query = Query(toy.entities.index["usa"], toy.relations.index["located_in"], "tail")
    ((_, best),) = Predictor(toy, asking).predict([query], k=10, explain=True)
    parts = [p.parts for p in best if p.parts]
    assert len(parts) == 10
    for p, of in zip(best, parts, strict=True):
        assert set(of) == {"likelihood", "vector", "kge", "reverse"}
        assert sum(part.weight * part.value for part in of.values()) == pytest.approx(p.score, abs=1e-4)
    assert max(of["reverse"].value for of in parts) > 0.01
    assert sum(abs(of["reverse"].value) < 1e-3 for of in parts) >= 5, (
        "what is not scored in reverse gains nothing"
    )


def test_the_parts_of_a_score_that_was_asked_back_and_read_again(ranker: Ranker, toy: KnowledgeGraph) -> None:
    asking = ranker.with_stage(ReverseScoring(StageWeight(5, 0.5)))
    both = asking.with_stage(FixedStage(StageWeight(5, 2.0)))
    query = Query(toy.entities.index["usa"], toy.relations.index["located_in"], "tail")
    rows = []
    for found_by in (asking, both):
        ((_, best),) = Predictor(toy, found_by).predict([query], k=31, explain=True)
        assert all(sum(x.weight * x.value for x in p.parts.values()) == pytest.approx(p.score, abs=1e-4)
                   for p in best if p.parts)  # fmt: skip
        rows.append({p.id: p.parts for p in best if p.parts})
    assert rows[1].keys() == rows[0].keys()
    for i, parts in rows[1].items():
        assert parts["reverse"].value == pytest.approx(rows[0][i]["reverse"].value, abs=1e-4)
    assert max(parts["fixed"].value for parts in rows[1].values()) > 0.001


def test_what_was_chosen_of_it_is_kept(ranker: Ranker, toy: KnowledgeGraph, tmp_path: Path) -> None:
    path = tmp_path / "mixture.json"
    TunedWeights(ranker.mixture, {"reverse": StageWeight(7, 0.75)}).save(path)
    assert TunedWeights.parse(path.read_bytes(), path, len(toy.relations)).stage_weights == {
        "reverse": StageWeight(7, 0.75)
    }
    values = json.loads(path.read_text("utf-8"))
    del values["reverse"]  # as older versions wrote it
    path.write_text(json.dumps(values), "utf-8")
    assert "reverse" not in TunedWeights.parse(path.read_bytes(), path, len(toy.relations)).stage_weights
    path.write_text(json.dumps({**values, "reverse": {"k": -1, "weight": 1.0}}), "utf-8")
    with pytest.raises(RunError, match=r"reverse\.k"):
        TunedWeights.parse(path.read_bytes(), path, len(toy.relations))


def test_a_run_wants_reverse(cli: Cli, toy_vector_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(toy_vector_run, tmp_path / "run")
    refused(cli("tune", run, "--drop", "reverse"), "does not score in reverse", "reverse")
    refused(cli("tune", run, "--candidates", 3), "--candidates is of second stages")
    refused(cli("tune", run, "--add", "reverse", "--set", "kge.epochs=1"), "say how to --add a signal")
    refused(cli("evaluate", run, "--rerank", 4), "has no second stage", "--add reverse")
    done = cli("tune", run, "--add", "reverse", "--candidates", 6)
    assert "without reverse" in done.stdout, done.stderr
    opened = open_folder(run)
    assert "reverse" in opened.tuned.stage_weights
    assert opened.tuned.by["valid"]["reverse"]["k"] == opened.tuned.stage_weights["reverse"].k
    opened = save_tuned(opened, replace(opened.tuned, stage_weights={"reverse": StageWeight(5, 1.0)}))
    assert "the 5 best, weight 1" in cli("info", run).stdout
    base = ("evaluate", run, "--split", "valid", "--json", "-q")
    reports = {k: json.loads(cli(*base, *k).stdout) for k in ((), ("--rerank", 0), ("--rerank", 4))}
    assert reports[()]["reverse"] == {"k": 5, "weight": 1.0}
    assert reports["--rerank", 0]["reverse"] is None
    assert reports["--rerank", 4]["reverse"] == {"k": 4, "weight": 1.0}
    asked = ("rank", run, "--relation", "capital", "--head", "france", "--explain")
    assert " reverse" in cli(*asked).stdout
    assert " reverse" not in cli(*asked, "--rerank", 0).stdout
    # Ranks may stay as they are, scores do not: the best gain what asking them back says.
    scored = {
        k: {row["entity"]: row for row in map(json.loads, cli(*asked, *k, "--json").stdout.splitlines())}
        for k in ((), ("--rerank", 0))
    }
    gained = []
    for entity in scored[()].keys() & scored["--rerank", 0].keys():
        part = scored[()][entity]["parts"]["reverse"]
        gained.append(scored[()][entity]["score"] - scored["--rerank", 0][entity]["score"])
        assert gained[-1] == pytest.approx(part["weight"] * part["value"], abs=1e-4)
    assert max(gained) > 0
    refused(cli("evaluate", run, "--rerank", 4, "--scores", "vector"), "--rerank goes with")
    figures = kgmlm.tune(run, progress=False)
    assert list(figures) == ["text", "reverse"], "it is chosen again with the weights"
    save_tuned(
        open_folder(run), replace(open_folder(run).tuned, stage_weights={"reverse": StageWeight(0, 0.0)})
    )
    refused(cli("evaluate", run, "--rerank", 4), "chose not to rerank")
    assert cli("tune", run, "--drop", "reverse", "-q").returncode == 0
    assert "reverse" not in open_folder(run).tuned.stage_weights
