"""Runs that are chosen and measured by one side's questions alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import TINY_SETTINGS, Cli

import kgmlm
from kgmlm.core.config import Protocol
from kgmlm.core.errors import ConfigError
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.evaluation.task import RankingTask
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import both_sides
from kgmlm.runs.opened import open_folder, untuned_ranker
from kgmlm.training.second_stages import tune as tune_all
from kgmlm.training.weights import odd_answers


@pytest.mark.parametrize("side", ["tail", "head"])
def test_a_side_has_the_ranks_that_it_has_among_both(toy_run: Path, side: str) -> None:
    both = kgmlm.evaluate(toy_run, progress=False)
    one = kgmlm.evaluate(toy_run, side=side, progress=False)  # type: ignore[arg-type]
    for name, value in one.metrics.items():
        if name.startswith(f"{side}."):
            assert value == pytest.approx(both.metrics[name])
            assert one.metrics[name.replace(side, "both", 1)] == pytest.approx(value)
    assert one.metrics["mrr"] == one.metrics[f"{side}.realistic.inverse_harmonic_mean_rank"]
    ranks = [pd.read_parquet(toy_run / "ranks" / name) for name in ("test.parquet", f"test.{side}.parquet")]
    keys = ["head", "relation", "tail", "target"]
    asked, of_one = (table.sort_values(keys).reset_index(drop=True) for table in ranks)
    of_both = asked[asked["target"] == side].reset_index(drop=True)
    pd.testing.assert_frame_equal(of_both, of_one)
    position = one.values["breakdown"]["unseen_position"]
    assert sum(part.get("count", 0) for name, part in position.items() if name != "any") == len(of_one)


def test_halves_share_no_pair(toy: KnowledgeGraph) -> None:
    triples = np.concatenate([toy.all_triples, toy.all_triples[:, [2, 1, 0]]])  # turned, too
    queries, answers = both_sides(triples)
    odd_B = odd_answers(queries, answers)
    pairs = np.sort(np.stack([queries.entity_B, answers], 1), 1)
    for half in (odd_B, ~odd_B):
        assert 0.3 < half.mean() < 0.7
    assert not {*map(tuple, pairs[odd_B].tolist())} & {*map(tuple, pairs[~odd_B].tolist())}
    assert np.array_equal(odd_B[: len(triples)], odd_B[len(triples) :]), "both questions of a triple"


@pytest.mark.parametrize("side", ["tail", "head"])
def test_weights_are_chosen_by_a_side(toy_run: Path, tmp_path: Path, side: str) -> None:
    run = shutil.copytree(toy_run, tmp_path / "run")
    kgmlm.tune(run, add=["types", "rules"], progress=False)
    folder = open_folder(run)
    ranker, protocol = untuned_ranker(folder), Protocol.model_validate({"split": "valid", "side": side})
    result = tune_all(ranker, folder.graph, protocol)
    task = RankingTask.of(folder.graph, protocol)
    assert set(task.queries.tail_B) == {side == "tail"}
    assert task.sides == 1
    ranks = evaluate(ranker.replace(mixture=result.mixture), folder.graph, protocol).ranks
    assert len(ranks) == len(task.queries) == len(folder.graph.triples("valid"))
    both = tune_all(ranker, folder.graph, Protocol(split="valid"))
    assert result.figures["rules"] != both.figures["rules"]


def test_a_run_remembers_its_side(toy: KnowledgeGraph, cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    given = (
        "--model",
        "scratch",
        "--output",
        run,
        "--max-steps",
        "2",
        "--side",
        "tail",
        "-q",
        *TINY_SETTINGS,
    )
    done = cli("train", "--dataset", "toy", *given)
    assert done.returncode == 0, done.stderr
    assert open_folder(run).settings.training.side == "tail"
    done = cli("evaluate", run, "-q")
    assert "tail" in done.stdout
    assert "head" not in done.stdout
    assert "both" in cli("evaluate", run, "-q", "--side", "both").stdout
    kgmlm.tune(run, add=["rules", "types", "reverse"], max_triples=3, progress=False)
    kgmlm.update(run, [("iceland", "located_in", "europe")], progress=False)
    kgmlm.calibrate(run, progress=False) if len(toy.triples("valid")) >= 20 else None
    assert len(kgmlm.open_run(run).rank("iceland", "located_in", k=3)) == 3
    page = kgmlm.report(run, tmp_path / "report.html", max_triples=2, progress=False).read_text("utf-8")
    assert "of tails alone" in page
    kgmlm.evaluate(run, progress=False)
    compared = kgmlm.compare(run, run, progress=False)
    assert {d.side for d in compared.differences} == {"tail", "both"}
    assert compared.queries == len(open_folder(run).graph.triples("test"))
    with pytest.raises(ConfigError, match="side"):
        kgmlm.evaluate(run, side="left", progress=False)  # type: ignore[arg-type]


def test_half_the_interval_is_that_of_independent_questions() -> None:
    from kgmlm.evaluation.metrics import half_interval

    values = np.random.default_rng(0).random(4000)
    expected = 1.96 * values.std() / np.sqrt(len(values))
    assert half_interval(values) == pytest.approx(expected, rel=0.05)
