"""Several processes that do a job together: shares, what they gather, and what the commands do in them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TINY_SETTINGS, Cli, Launch, refused
from doubles import fake
from worlds import together

from kgmlm.core import processes
from kgmlm.core.arrays import IntArray
from kgmlm.core.config import Protocol, TypeSettings, VectorSettings
from kgmlm.core.errors import ConfigError, RunError
from kgmlm.core.processes import ALONE, ProcessGroup, join, sharing, speaks
from kgmlm.core.progress import Bars, Calls, Watcher, watcher_of
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.ranking.ranker import Ranker, StageWeight
from kgmlm.ranking.retrieval import FOLDER, Retriever
from kgmlm.ranking.second_stage import ReverseScoring
from kgmlm.runs.index import build_index
from kgmlm.runs.opened import open_folder
from kgmlm.signals.types import Types
from kgmlm.text.reader import Reader
from kgmlm.text.tokenization import Encoded
from kgmlm.training.second_stages import tune

KILLED = (
    "import os, signal; from kgmlm.core.processes import join; join(); os.kill(os.getpid(), signal.SIGKILL)"
)


def test_shares_are_all_of_the_work_and_about_equal() -> None:
    costs = np.random.default_rng(0).integers(1, 50, 101)
    for size in (1, 2, 3, 7):
        shares = together(size, lambda world: world.share(costs))
        assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(101))
        assert all((np.diff(share) > 0).all() for share in shares)
        of_each = [costs[share].sum() for share in shares]
        assert max(of_each) - min(of_each) <= costs.max()
    assert [len(share) for share in together(4, lambda world: world.share(np.ones(2, np.int64)))] == [
        1,
        1,
        0,
        0,
    ]


def test_all_processes_have_what_each_knows() -> None:
    def job(world: ProcessGroup) -> tuple[Any, ...]:
        mine = world.share(np.ones(5, np.int64))
        known = np.full((2, 5), -1)
        known[:, mine] = world.rank
        first = world.from_main(f"of {world.rank}")
        return world.gathered(world.rank), world.filled(known, mine).tolist(), first, world.main

    result = together(2, job)
    assert result == [([0, 1], [[0, 1, 0, 1, 0]] * 2, "of 0", main) for main in (True, False)]
    assert job(ALONE) == ([0], [[0] * 5] * 2, "of 0", True)


def test_processes_that_do_not_see_the_same_are_refused() -> None:
    together(2, lambda world: world.agree("same", "weights"))
    with pytest.raises(RunError, match="the processes have different weights"):
        together(2, lambda world: world.agree(world.rank, "weights"))


def test_one_process_is_alone_and_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    assert join() is join("cuda:1") is ALONE
    assert sharing() is ALONE
    assert speaks()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="--device cuda:1 does not go with several processes"):
        join("cuda:1")


def test_only_the_main_process_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = Bars()
    assert watcher_of(bars) is bars
    monkeypatch.setenv("RANK", "1")
    assert type(watcher_of(bars)) is type(watcher_of(print)) is Watcher


@pytest.mark.parametrize("size", [2, 4, 40])
@pytest.mark.parametrize("protocol", [Protocol(), Protocol(negatives=5), Protocol(split="train", filter=())])
def test_an_evaluation_is_the_same_by_any_number_of_processes(
    toy: KnowledgeGraph, protocol: Protocol, size: int
) -> None:
    def job(world: ProcessGroup) -> Any:
        done: list[tuple[int, int]] = []
        evaluation = evaluate(
            fake(toy), toy, protocol, batch_size=2, by_relation=True, advance=lambda *n: done.append(n)
        )
        assert sum(n for n, _ in done) == (done[0][1] if done else 0), "the bar is full in the end"
        return evaluation

    alone = job(ALONE)
    for evaluation in together(size, job):
        assert vars(evaluation.ranks).keys() == vars(alone.ranks).keys()
        for name, ranks_B in vars(alone.ranks).items():
            assert np.array_equal(getattr(evaluation.ranks, name), ranks_B)
        assert evaluation.scores_B.tolist() == alone.scores_B.tolist()
        changed = {key for key, value in alone.report.items() if evaluation.report[key] != value}
        assert changed <= {"seconds", "processes"}
        assert evaluation.report["processes"] == size


def test_processes_with_other_triples_are_refused(toy: KnowledgeGraph) -> None:
    other = replace(toy, splits={**toy.splits, "test": toy.splits["test"][:-1]})
    with pytest.raises(RunError, match="different triples"):
        together(2, lambda w: evaluate(fake(toy), other if w.rank else toy, Protocol()))


def test_a_model_ranks_the_same_by_two_processes(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]
) -> None:
    """Batches are those of one process, so scores are equal to the last bit."""
    ranker = make_ranker()

    def job(world: ProcessGroup) -> list[list[float]]:
        evaluation = evaluate(ranker, toy, Protocol(split="train"), batch_size=4)
        return [
            x.tolist()
            for x in (evaluation.scores_B, evaluation.ranks.optimistic_B, evaluation.ranks.pessimistic_B)
        ]

    alone = job(ALONE)
    assert together(2, job) == [alone, alone]


def everything(make_ranker: Callable[..., Ranker], toy: KnowledgeGraph) -> Ranker:
    """Likelihood, entity vectors, types and reverse scoring."""
    ranker = make_ranker(vector=VectorSettings(enabled=True))
    ranker = ranker.with_signal(Types.fit(toy, TypeSettings()))
    return ranker.with_stage(ReverseScoring(StageWeight(0, 0.0)))


def test_processes_choose_the_weights_of_one(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgmlm.signals.vector.ROUND", 4)
    read: list[tuple[int, int]] = []
    encode = Reader.encode_entities

    def counted(reader: Reader, ids: IntArray) -> list[Encoded]:
        read.extend((sharing().rank, i) for i in ids.tolist())
        return encode(reader, ids)

    monkeypatch.setattr(Reader, "encode_entities", counted)

    def job(world: ProcessGroup) -> Any:
        ranker = everything(make_ranker, toy)
        bars: dict[str, int] = {}

        def advance(what: str, n: int, total: int) -> None:
            bars[what] = bars.get(what, 0) + n
            assert bars[what] <= total or what != "reading entities"

        mixture, stage_weights, figures = tune(ranker, toy, Protocol(split="valid"), Calls(advance))
        assert bars["reading entities"] == len(toy.entities)
        assert ranker.vectors is not None
        return mixture.tables, stage_weights["reverse"], figures, ranker.vectors.all

    tables, stage_weight, figures, vectors_ND = job(ALONE)
    read.clear()
    for of_one, its_use, its_figures, of_one_ND in together(3, job):
        assert its_use == stage_weight
        assert its_figures.keys() == figures.keys()
        for stage in figures:
            assert its_figures[stage] == pytest.approx(figures[stage], rel=1e-4)
        for name, table_R2 in tables.items():
            np.testing.assert_allclose(of_one[name], table_R2, rtol=1e-4)
        np.testing.assert_allclose(of_one_ND, vectors_ND, atol=1e-5)
    assert sorted(i for _, i in read) == list(range(len(toy.entities))), "each entity is read once"
    assert {rank for rank, _ in read} == {0, 1, 2}


def same_but(found: dict[str, Any], expected: dict[str, Any], *keys: str) -> None:
    """Two reports are the same but for some keys."""
    for report in (found, expected):
        for key in keys:
            report.pop(key)
    assert found == expected


def test_two_processes_evaluate_and_one_writes_and_speaks(
    launch: Launch, toy_run: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(toy_run, tmp_path / "run", ignore=shutil.ignore_patterns("ranks"))
    small = ("--batch-size", "4", "--output", tmp_path / "report.json")  # so that there are several pieces
    arguments = ("evaluate", run, "--json", *small)
    (alone,), (main, other) = launch(arguments), launch(arguments, arguments)
    assert (main.returncode, other.returncode) == (0, 0), main.stderr + other.stderr
    assert (other.stdout, other.stderr.strip()) == ("", ""), "one process speaks"
    assert "evaluating test" in main.stderr
    report = json.loads(main.stdout)
    assert report == json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert report["processes"] == 2
    same_but(report, json.loads(alone.stdout), "seconds", "processes")
    assert [path.name for path in (run / "ranks").iterdir()] == ["test.parquet"]


def test_a_process_that_fails_ends_all_with_one_sentence(launch: Launch, toy_run: Path) -> None:
    wrong = ("evaluate", toy_run, "--split", "nowhere")
    for commands in ((("evaluate", toy_run), wrong), (wrong, wrong)):
        done = launch(*commands)
        out, err = ("".join(getattr(d, name) for d in done) for name in ("stdout", "stderr"))
        assert [d.returncode for d in done] == [2, 2]
        refused(subprocess.CompletedProcess([], 2, out, err), "no split 'nowhere'")


def test_a_process_that_is_lost_before_all_have_met_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: object) -> None:
        raise RuntimeError("Connection closed")

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("accelerate.PartialState", refuse)
    monkeypatch.setattr(processes, "_joined", processes._joined.__wrapped__)
    with pytest.raises(RunError, match="another of the 2 processes has ended"):
        join("cpu")


def test_a_process_that_is_killed_ends_all_with_one_sentence(launch: Launch, toy_run: Path) -> None:
    left, killed = launch(("evaluate", toy_run), ("-c", KILLED))
    assert killed.returncode == -9
    refused(left, "another of the 2 processes has ended")


def test_two_processes_tune_and_the_main_one_writes(launch: Launch, toy_run: Path, tmp_path: Path) -> None:
    figures, weights = [], []
    for count in (1, 2):
        run = shutil.copytree(toy_run, tmp_path / f"by-{count}")
        main, *others = launch(*count * [("tune", run, "--add", "types", "--json")])
        assert [d.returncode for d in (main, *others)] == count * [0], main.stderr
        assert [d.stdout for d in others] == (count - 1) * [""]
        figures.append(json.loads(main.stdout))
        chosen = open_folder(run).tuned
        weights.append(chosen.mixture.tables)
        assert chosen.by["valid"] == figures[-1]
    assert figures[0].keys() == {"text", "types"}
    for stage in figures[0]:
        assert figures[0][stage] == pytest.approx(figures[1][stage], rel=1e-4)
    for name in weights[0]:
        np.testing.assert_allclose(weights[0][name], weights[1][name], rtol=1e-4)


def test_two_processes_rank_many_queries_and_build_an_index(
    launch: Launch, toy_vector_run: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(toy_vector_run, tmp_path / "run")
    asked = tmp_path / "asked.tsv"
    asked.write_text(
        "head\trelation\ttail\n" + "france\tcapital\t\n\tcapital\tparis\n" * 3 + "rome\tlocated_in\t\n"
    )
    command = ("rank", run, "--queries", asked, "--json", "-k", "3", "--batch-size", "2")
    (alone,) = launch(command)
    main, other = launch(command, command)
    assert (main.returncode, other.returncode) == (0, 0), main.stderr
    assert other.stdout == ""
    assert len(main.stdout.splitlines()) == 3 * 7
    assert main.stdout == alone.stdout, "in the order of the queries"
    main, other = launch(*2 * [("index", run, "--json", "--quiet")])
    assert (main.returncode, other.returncode, other.stdout) == (0, 0, ""), main.stderr + other.stderr
    record = json.loads(main.stdout)
    assert record["entities"] == len(Retriever.load(run / FOLDER))
    assert record["recall_at_10"] == 1


def test_an_index_is_the_same_by_any_number_of_processes(
    toy: KnowledgeGraph, make_ranker: Callable[..., Ranker]
) -> None:
    pytest.importorskip("faiss")

    def job(world: ProcessGroup) -> Retriever:
        ranker = make_ranker(vector=VectorSettings(enabled=True))
        done: list[int] = []
        made = build_index(ranker, toy, advance=lambda n, total: done.append(n))
        assert not world.main or sum(done) == len(toy.entities)
        return made

    alone = job(ALONE)
    main, *others = together(3, job)
    # Vectors are read in other batches, so their last bits differ; runs have theirs saved.
    timed = {"seconds", "why", "ms_a_query", "exact_ms_a_query", "tried", "fingerprint"}
    assert {k: v for k, v in main.record.items() if k not in timed} == {
        k: v for k, v in alone.record.items() if k not in timed
    }
    assert all(other.record == main.record and not len(other) for other in others)
    assert (main.part.width, main.part.ids.tolist()) == (alone.part.width, alone.part.ids.tolist())
    one, other = (item.part.index.reconstruct_n(0, len(item)) for item in (main, alone))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


TRAINED = (
    "train",
    "--dataset",
    "toy",
    "--model",
    "scratch",
    *TINY_SETTINGS,
    "-q",
    "--set",
    "scratch.dropout=0",
)


def losses(run: Path) -> list[float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


def test_two_processes_train_as_one_with_as_many_samples(launch: Launch, cli: Cli, tmp_path: Path) -> None:
    """With sampled candidates, entity vectors, a memory that is too small for all, and residuals."""
    more = ("training.candidates=6", "vector.enabled=true", "vector.memory=12", "vector.residual_rate=0.01",
            "training.epochs=2", "training.eval_candidates=0", "training.precision=fp32")  # fmt: skip
    given = (*TRAINED, *(word for setting in more for word in ("--set", setting)))
    sizes = {1: 20, 2: 10}
    for count, size in sizes.items():
        command = (*given, "--set", f"training.batch_size={size}", "--output", tmp_path / str(count))
        for done in launch(*count * [command]):
            assert done.returncode == 0, done.stderr
    one, two = (losses(tmp_path / str(count)) for count in sizes)
    assert len(one) == 2 * 4
    assert two == pytest.approx(one, abs=1e-4)
    assert one[0] - one[-1] > 0.05, "it learns meanwhile"


def test_training_by_two_processes_is_not_resumed_by_one(launch: Launch, cli: Cli, tmp_path: Path) -> None:
    run, steps = tmp_path / "run", ("--set", "training.epochs=2", "--set", "training.eval_every=2")
    start = (*TRAINED, "--output", run, *steps)
    main, other = launch(*2 * [(*start, "--max-steps", "3")])
    assert (main.returncode, other.returncode) == (0, 0), main.stderr + other.stderr
    assert (other.stdout, other.stderr) == ("", "")
    refused(cli("train", "--output", run, "--resume", "-q"), "in another number of processes (1, before 2)")
    assert open_folder(run).record["status"] == "max steps", "nothing has changed"
    assert len(losses(run)) == 3


@pytest.mark.slow
def test_torchrun_ends_when_a_process_is_killed(toy_run: Path) -> None:
    """Whether its signal or the lost process comes first, there is one sentence."""
    of_one = f'[ "$RANK" = 1 ] && exec "{sys.executable}" -c "{KILLED}"'
    script = f'{of_one}; exec "{sys.executable}" -m kgmlm evaluate "{toy_run}"'
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone",
         "--no_python", "sh", "-c", script],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode
    rows = [line for line in done.stderr.splitlines() if line.startswith("kgmlm:")]
    assert len(rows) == 1, done.stderr
    assert "another of the 2 processes has ended" in rows[0] or rows == ["kgmlm: interrupted"]
