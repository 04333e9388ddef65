from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TINY_SETTINGS, Cli, vectors_of
from trainings import BASE, VECTORS, Validation, go, losses, settings

import kgmlm
from kgmlm.core.config import Protocol
from kgmlm.core.errors import ConfigError, RunError
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.ranking.ranker import Mixture, Ranker
from kgmlm.runs.opened import open_folder, tuned_ranker
from kgmlm.text.torch_model import Residuals, SpanModel, span_model
from kgmlm.training.loop import _optimizer, train
from kgmlm.training.start import latest_checkpoint, resume_run, start_run
from kgmlm.training.weights import weigh

PARTS = ("tokenizer", "model", "settings", "vocabulary")  # of a reader, beside its context


@pytest.mark.slow
def test_the_loss_falls_and_the_answers_rise(toy: KnowledgeGraph, tmp_path: Path) -> None:
    outcome = go(tmp_path / "run", toy, "training.epochs=30")
    result = losses(tmp_path / "run")
    assert outcome.status == "finished"
    assert np.mean(result[-5:]) < 0.7 * np.mean(result[:5])


@pytest.mark.slow
def test_shuffled_answers_teach_nothing(toy: KnowledgeGraph, tmp_path: Path) -> None:
    """A model trained on random answers ranks the true ones no better than chance would."""

    from kgmlm.core.config import Protocol
    from kgmlm.evaluation.evaluator import evaluate

    train_triples = toy.splits["train"].copy()
    train_triples[:, 2] = np.random.default_rng(0).integers(0, len(toy.entities), len(train_triples))
    shuffled = replace(toy, splits={"train": train_triples})
    mrr = {}
    for name, graph in (("true", toy), ("shuffled", shuffled)):
        run, ranker = start_run(tmp_path / name, graph, "scratch", settings("training.epochs=40"))
        train(run, ranker)
        mrr[name] = evaluate(ranker, toy, Protocol(split="train")).report["metrics"]["mrr"]
    assert mrr["shuffled"] < 0.6 * mrr["true"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "accumulation", "precision"),
    [
        ("entity", 1, "fp32"),
        ("entity", 2, "fp32"),
        ("sampled", 2, "fp32"),
        ("token", 1, "fp32"),
        ("token", 2, "fp32"),
        ("entity", 1, "bf16"),
    ],
)
def test_a_resumed_run_has_the_losses_of_an_unbroken_one(
    toy: KnowledgeGraph, tmp_path: Path, objective: str, accumulation: int, precision: str
) -> None:
    sampled = objective == "sampled"
    more = [
        f"training.objective={'entity' if sampled else objective}",
        f"training.candidates={6 if sampled else 0}",
        f"training.accumulation={accumulation}",
        f"training.precision={precision}",
    ]
    go(tmp_path / "whole", toy, *more)
    assert go(tmp_path / "parts", toy, *more, max_steps=7).status == "max steps"
    for stop in (11, None):
        run, ranker = resume_run(tmp_path / "parts")
        outcome = train(run, ranker, max_steps=stop, resume=True)
    assert outcome.status == "finished"
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    weights = [
        span_model(tuned_ranker(open_folder(tmp_path / n)).reader.model).state_dict()
        for n in ("whole", "parts")
    ]
    assert all(torch.equal(weights[0][k], weights[1][k]) for k in weights[0])
    assert latest_checkpoint(tmp_path / "parts") is None, "a finished run needs no checkpoint"


@pytest.mark.slow
def test_bf16_trains_as_fp32_does_and_leaves_no_trace(toy: KnowledgeGraph, tmp_path: Path) -> None:
    before = torch.get_float32_matmul_precision()
    for precision in ("fp32", "bf16"):
        go(tmp_path / precision, toy, f"training.precision={precision}")
    assert torch.get_float32_matmul_precision() == before
    one, other = (losses(tmp_path / p) for p in ("fp32", "bf16"))
    assert one != other
    assert other == pytest.approx(one, rel=0.05)
    weights = span_model(tuned_ranker(open_folder(tmp_path / "bf16")).reader.model).state_dict().values()
    assert {w.dtype for w in weights if w.is_floating_point()} == {torch.float32}


@pytest.mark.slow
def test_a_run_broken_off_before_its_first_validation_has_a_checkpoint_but_no_model(
    toy: KnowledgeGraph, tmp_path: Path
) -> None:
    def broken(ranker: Ranker) -> tuple[Mixture, Mapping[str, float]]:
        raise RuntimeError("power cut")

    run, ranker = start_run(tmp_path / "run", toy, "scratch", settings())
    with pytest.raises(RuntimeError, match="power cut"):
        train(run, ranker, validate=broken)
    with pytest.raises(RunError, match="no trained model yet"):
        tuned_ranker(open_folder(tmp_path / "run"))
    go(tmp_path / "whole", toy, validate=Validation(0.1))
    train(*resume_run(tmp_path / "run"), validate=Validation(0.1), resume=True)
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


@pytest.mark.slow
def test_the_best_model_is_kept(toy: KnowledgeGraph, tmp_path: Path) -> None:
    outcome = go(tmp_path / "run", toy, validate=Validation(0.3, 0.9, 0.5))
    assert outcome.best_mrr == 0.9
    run = open_folder(tmp_path / "run")
    assert run.record["best_valid_mrr"] == 0.9
    go(tmp_path / "other", toy, validate=Validation(0.3, 0.9, 0.95))
    best, last = (
        span_model(tuned_ranker(open_folder(tmp_path / n)).reader.model).state_dict()
        for n in ("run", "other")
    )
    assert any(not torch.equal(best[k], last[k]) for k in best)


def test_a_crash_forgets_no_validation(toy: KnowledgeGraph, tmp_path: Path) -> None:
    class Crash:
        """A second validation that never ends, after a first that was the best."""

        def __call__(self, ranker: Ranker) -> tuple[Mixture, Mapping[str, float]]:
            if first:
                return ranker.mixture, {"mrr": first.pop()}
            raise RuntimeError("power cut")

    first = [0.9]
    run, ranker = start_run(tmp_path / "run", toy, "scratch", settings())
    with pytest.raises(RuntimeError, match="power cut"):
        train(run, ranker, validate=Crash())
    best = span_model(tuned_ranker(open_folder(tmp_path / "run")).reader.model).state_dict()
    asked = Validation(0.5, 0.6, 0.7)
    outcome = train(*resume_run(tmp_path / "run"), validate=asked, resume=True)
    assert outcome.best_mrr == 0.9
    assert asked.values == [0.7], "the validation that was broken off is done again, the first is not"
    kept = span_model(tuned_ranker(open_folder(tmp_path / "run")).reader.model).state_dict()
    assert all(torch.equal(best[k], kept[k]) for k in best)


def test_a_signal_in_the_last_validation_interrupts_nothing(toy: KnowledgeGraph, tmp_path: Path) -> None:
    def signaled(ranker: Ranker) -> tuple[Mixture, Mapping[str, float]]:
        os.kill(os.getpid(), signal.SIGTERM)
        return ranker.mixture, {"mrr": 0.5}

    outcome = go(tmp_path / "run", toy, "training.epochs=1", validate=signaled)
    assert (outcome.status, outcome.signal) == ("finished", None)


@pytest.mark.slow
def test_a_run_goes_on_where_it_was_told_to_stop(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    base = ("train", "--output", run)
    new = ("--dataset", "toy", "--model", "scratch", *TINY_SETTINGS, "--set", "training.epochs=2")
    done = cli(*base, *new, "--set", "training.max_steps=3")
    assert done.returncode == 0, done.stderr
    assert "--resume --max-steps N" in done.stderr
    again = kgmlm.train(output=run, resume=True, progress=False).folder.record
    assert (again["status"], again["step"]) == ("max steps", 3)
    with pytest.raises(RunError, match="'scratch', not 'another'"):
        kgmlm.train(output=run, resume=True, model="another", progress=False)
    with pytest.raises(RunError, match="another graph than 'umls'"):
        kgmlm.train("umls", output=run, resume=True, progress=False)
    further = cli(*base, *new, "--resume", "--set", "training.max_steps=5")
    assert "max steps at step 5" in further.stderr, further.stderr
    ended = kgmlm.train(output=run, resume=True, max_steps=999, progress=False)
    assert ended.folder.record["status"] == "finished"


def test_training_stops_early(toy: KnowledgeGraph, tmp_path: Path) -> None:
    outcome = go(
        tmp_path / "run",
        toy,
        "training.patience=2",
        "training.eval_every=1",
        validate=Validation(0.5, 0.4, 0.3, 0.9),
    )
    assert outcome.status == "stopped early"
    assert outcome.best_mrr == 0.5


def test_a_loss_that_explodes_says_what_to_do(toy: KnowledgeGraph, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lower training\.learning_rate"):
        go(tmp_path / "run", toy, "training.learning_rate=1e30", "training.warmup=0")


def test_the_run_is_a_hugging_face_folder(toy_run: Path) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    mlm, info = AutoModelForMaskedLM.from_pretrained(toy_run / "model", output_loading_info=True)
    assert not info["missing_keys"]
    tokenizer = AutoTokenizer.from_pretrained(toy_run / "model")
    inputs = tokenizer(f"France {tokenizer.mask_token}", return_tensors="pt")
    assert mlm(**inputs).logits.shape[-1] == len(tokenizer)
    names = {p.suffix for p in toy_run.rglob("*") if p.is_file()}
    assert not names & {".pt", ".bin", ".pkl"}, "safetensors only"


def test_tensorboard_gets_the_curves(toy: KnowledgeGraph, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    go(tmp_path / "run", toy, "training.epochs=1", tracker="tensorboard")
    assert list((tmp_path / "run" / "logs").rglob("events.*"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_a_resume_goes_on_to_the_same_losses(
    cli: Cli, tmp_path: Path, number: signal.Signals
) -> None:
    base = [
        "train",
        "--dataset",
        "toy",
        "--model",
        "scratch",
        "-q",
        *TINY_SETTINGS,
        "--set",
        "training.epochs=60",
        "--set",
        "training.eval_every=20",
    ]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert cli(*base, "--output", whole).returncode == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "kgmlm", *base, "--output", str(broken)],
        stderr=subprocess.PIPE, text=True, env=dict(os.environ),
    )  # fmt: skip
    log = broken / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (log.exists() and log.read_text().count('"loss"') >= 20) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert "Traceback" not in errors
    assert "--resume" in errors
    assert latest_checkpoint(broken) is not None
    assert 20 <= len(losses(broken)) < len(losses(whole))
    resumed = cli("train", "--output", broken, "--resume", "-q")
    assert resumed.returncode == 0, resumed.stderr
    assert losses(broken) == losses(whole)


@pytest.mark.slow
def test_a_validation_that_only_max_steps_asked_for_stops_nothing(
    toy: KnowledgeGraph, tmp_path: Path
) -> None:
    path, patience = tmp_path / "run", "training.patience=1"
    per_epoch = math.ceil(len(toy.unique_queries("train")[0]) / 8)
    validation = Validation(0.5, 0.4, 0.6, 0.7)
    options = {"validate": validation, "max_steps": 2 * per_epoch + 1}
    assert go(path, toy, patience, **options).status == "max steps"
    assert len(validation.values) == 2, "validated at the end of an epoch, and a step later"
    run, ranker = resume_run(path)
    outcome = train(run, ranker, validation, resume=True)
    assert (outcome.status, outcome.best_mrr) == ("finished", 0.7)


@pytest.mark.slow
def test_a_validation_that_only_max_steps_asked_for_chooses_nothing(
    toy: KnowledgeGraph, tmp_path: Path
) -> None:
    """It is better than any other, and yet a run stopped and resumed ends as one that never stopped."""
    per_epoch = math.ceil(len(toy.unique_queries("train")[0]) / 8)
    at = {1: 0.5, 2: 0.4, 3: 0.45}  # by epochs of the model that is validated
    once = settings("training.epochs=3", "training.eval_every=1")

    def validate(run: Path) -> Any:
        def metrics(ranker: Ranker) -> tuple[Mixture, Mapping[str, float]]:
            checkpoint = latest_checkpoint(run)
            assert checkpoint is not None
            step = int(checkpoint.name.removeprefix("step-"))
            mrr = at.get(step // per_epoch, 0.9) if step % per_epoch == 0 else 0.9
            return ranker.mixture, {"mrr": mrr}

        return metrics

    def ended(name: str, stops: list[int | None]) -> tuple[Any, ...]:
        path = tmp_path / name
        run, ranker = start_run(path, toy, "scratch", once)
        for number, stop in enumerate(stops):
            if number:
                run, ranker = resume_run(path)
            outcome = train(run, ranker, validate(path), max_steps=stop, resume=bool(number))
            assert (path / "model" / "model.safetensors").is_file(), "what has stopped can be used"
        rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        logged = [{k: v for k, v in row.items() if k != "minutes"} for row in rows]
        weights = (path / "model" / "model.safetensors").read_bytes()
        return outcome.best_mrr, open_folder(path).record["best_valid_mrr"], weights, logged

    whole = ended("whole", [None])
    assert whole[:2] == (0.5, 0.5)
    assert ended("before the first", [2, None]) == whole
    assert ended("between", [per_epoch + 1, 2 * per_epoch + 2, None]) == whole
    assert ended("at a validation", [per_epoch, None]) == whole


@pytest.mark.long
def test_two_processes_train_one_run(tmp_path: Path) -> None:
    """``torchrun`` on two CPU processes, entity vectors too: one folder, one log, half as many steps."""
    arguments = [
        "--nproc_per_node", "2", "--standalone", "-m", "kgmlm", "train", "--dataset", "toy",
        "--model", "scratch", "--output", str(tmp_path / "run"), *TINY_SETTINGS, "--set", "training.epochs=2",
        "--set", "vector.enabled=true", "--set", "vector.residual_rate=0.01",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *arguments],
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = open_folder(tmp_path / "run")
    assert run.record["status"] == "finished"
    steps = [row["step"] for row in map(json.loads, (run.path / "metrics.jsonl").read_text().splitlines())]
    assert done.stderr.count("training triples") == 1, "one process speaks"
    assert steps == sorted(steps)
    assert steps[-1] == run.record["step"] > 1
    assert len(set(steps)) == run.record["step"]
    tuned_ranker(run)


@pytest.mark.long
def test_two_processes_resume_with_the_losses_of_an_unbroken_run(tmp_path: Path) -> None:
    """Each process has a memory and random numbers of its own."""
    more = (*VECTORS, "training.epochs=4", "training.eval_every=4")
    sets = [part for value in (*BASE, *more) for part in ("--set", value)]

    def launch(*arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone",
             "-m", "kgmlm", "train", *arguments, "-q"],
            capture_output=True, text=True, timeout=300, check=False,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    start = ("--dataset", "toy", "--model", "scratch", "--preset", "plain", *sets)
    launch(*start, "--output", str(tmp_path / "unbroken"))
    launch(*start, "--output", str(tmp_path / "resumed"), "--max-steps", "7")
    launch("--output", str(tmp_path / "resumed"), "--resume")
    result, expected = losses(tmp_path / "resumed"), losses(tmp_path / "unbroken")
    assert result == expected
    assert len(result) > 12


@pytest.mark.slow
def test_training_with_entity_vectors_learns_and_chooses_their_weight(
    toy: KnowledgeGraph, tmp_path: Path
) -> None:
    of = ("training.epochs=60", "training.eval_every=60", "training.precision=fp32")
    more = (*of, "vector.temperature=0.1", *VECTORS)
    run, ranker = start_run(tmp_path / "run", toy, "scratch", settings(*more))
    protocol = Protocol(split="train", candidates="train", filter=("train",))
    validated = []

    def validation(current: Ranker) -> tuple[Mixture, Mapping[str, float]]:
        mixture, figures = weigh(current, toy, protocol)
        validated.append((mixture, figures["text"]))
        return validated[-1]

    outcome = train(run, ranker, validation)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if "valid_mrr" in row][-1]
    assert outcome.best_mrr is not None
    alone = max(last["valid_mrr_likelihood"], last["valid_mrr_vector"])
    assert last["valid_mrr"] > alone - 0.02
    assert last["valid_mrr_vector"] > 0.5, "chance is about .2"
    loaded = tuned_ranker(open_folder(tmp_path / "run"), "cpu")
    mixture = validated[-1][0]
    assert ranker.mixture.averages != mixture.averages, "measuring it has changed nothing"
    assert loaded.mixture.averages == mixture.averages
    for name, table_R2 in mixture.tables.items():
        assert np.array_equal(loaded.mixture.tables[name], table_R2)
    assert loaded.vectors is not None
    assert not loaded.vectors.unread, "the vectors are saved with the run"
    queries, _ = toy.queries("test")
    for (_, a), (_, b) in zip(
        loaded.rank(queries), ranker.replace(mixture=mixture).rank(queries), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("residual_rate", [0.0, 0.01])
def test_a_resumed_run_with_entity_vectors_has_the_losses_of_an_unbroken_one(
    toy: KnowledgeGraph, tmp_path: Path, residual_rate: float
) -> None:
    more = (*VECTORS, f"vector.residual_rate={residual_rate}")
    for name in ("unbroken", "resumed"):
        run, ranker = start_run(tmp_path / name, toy, "scratch", settings(*more))
        train(run, ranker, max_steps=10 if name == "resumed" else None)
    run, ranker = resume_run(tmp_path / "resumed")
    train(run, ranker, resume=True)
    assert losses(tmp_path / "unbroken") == losses(tmp_path / "resumed")
    vectors = [vectors_of(tuned_ranker(open_folder(tmp_path / n), "cpu")) for n in ("unbroken", "resumed")]
    assert np.array_equal(vectors[0], vectors[1])


@pytest.mark.slow
def test_residuals_are_learned_for_entities_seen_and_for_no_others(
    toy: KnowledgeGraph, tmp_path: Path
) -> None:
    more = ("training.precision=fp32", *VECTORS, "vector.residual_rate=0.02", "vector.memory=64")
    run, ranker = start_run(tmp_path / "run", toy, "scratch", settings(*more))
    train(run, ranker)
    loaded = tuned_ranker(open_folder(tmp_path / "run"), "cpu")
    text_only = Ranker.initial(toy.context, *(getattr(ranker.reader, x) for x in PARTS))
    moved_N = np.linalg.norm(vectors_of(loaded) - vectors_of(text_only), axis=1) > 0.01
    assert not toy.seen_N.all()
    np.testing.assert_array_equal(moved_N, toy.seen_N)
    np.testing.assert_allclose(np.linalg.norm(vectors_of(loaded), axis=1), 1, rtol=1e-5)

    seen = int(np.flatnonzero(toy.seen_N)[0])
    known = toy.entities[seen]
    twin = EntityTable(["a twin"], [known.surface], [known.description])
    wider = loaded.for_graph(toy.extended(twin).context)
    np.testing.assert_allclose(vectors_of(wider)[seen], vectors_of(loaded)[seen], rtol=1e-5)
    np.testing.assert_allclose(vectors_of(wider)[-1], vectors_of(text_only)[seen], atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["entity", "token"])
def test_a_step_is_the_same_from_one_batch_and_from_parts_of_it(
    toy: KnowledgeGraph, tmp_path: Path, objective: str
) -> None:
    """An epoch of one batch, and of as many queries in micro-batches: the same losses, the same model."""
    count = len(toy.unique_queries("train")[0])
    parts = next(n for n in range(2, count) if count % n == 0)
    results = {}
    for name, size, accumulation in (("whole", count, 1), ("parts", count // parts, parts)):
        go(
            tmp_path / name, toy, f"training.objective={objective}", f"training.batch_size={size}",
            f"training.accumulation={accumulation}", "training.epochs=4", "scratch.dropout=0",
            "training.precision=fp32", "training.schedule=constant", "training.warmup=0",
        )  # fmt: skip
        results[name] = losses(tmp_path / name)
    assert len(results["whole"]) == len(results["parts"]) == 4
    assert results["parts"] == pytest.approx(results["whole"], rel=1e-3)
    assert results["whole"][-1] < results["whole"][0] - 0.01


@torch.no_grad()
def test_weights_decay_and_biases_and_norms_do_not(tiny_model: SpanModel) -> None:
    """With no gradient, a step of AdamW multiplies what decays by 1 - rate x decay and leaves the rest."""
    residuals = Residuals(5, 32)
    for parameter in (*tiny_model.parameters(), *residuals.parameters()):
        torch.nn.init.normal_(parameter)
        parameter.grad = torch.zeros_like(parameter)
    chosen = settings("training.weight_decay=0.5", "vector.residual_rate=0.2")
    before = {name: p.clone() for name, p in tiny_model.named_parameters()}
    moved = residuals.residual_ND.clone()
    _optimizer(tiny_model, residuals, chosen, 0.1).step()
    kept = set()
    for name, parameter in tiny_model.named_parameters():
        if name.endswith("bias") or "norm" in name.lower():
            kept.add(name)
            assert torch.equal(parameter, before[name]), name
        else:
            torch.testing.assert_close(parameter, 0.95 * before[name], msg=name)
    assert 0 < len(kept) < len(before)
    torch.testing.assert_close(residuals.residual_ND, 0.9 * moved)


def test_dropout_can_be_set(toy: KnowledgeGraph, tmp_path: Path) -> None:
    run, ranker = start_run(
        tmp_path / "run", toy, "scratch", settings("training.dropout=0", "training.epochs=1")
    )
    train(run, ranker)
    values = {m.p for m in span_model(ranker.reader.model).modules() if isinstance(m, torch.nn.Dropout)}
    assert values == {0.0}
