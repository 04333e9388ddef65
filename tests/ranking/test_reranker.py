"""Pairs of a query and a candidate, read; the command that trains what reads them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TINY_SETTINGS, Cli, refused, without_digests

import kgmlm
from kgmlm.core import digests
from kgmlm.core.config import RerankingSettings, Settings, TextSettings, VectorSettings
from kgmlm.core.errors import ModelError, RunError
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries, Query
from kgmlm.ranking import second_stage
from kgmlm.ranking.ranker import Ranker, Use
from kgmlm.ranking.second_stage import Reranker
from kgmlm.runs.folder import MIXTURE, open_folder
from kgmlm.runs.record import RERANKER

TEXT = TextSettings(max_length=40, neighbors=3)
SMALL = RerankingSettings(candidates=10, negatives=3, max_length=24, neighbors=2)


@pytest.fixture
def ranker(make_ranker: Callable[..., Ranker]) -> Ranker:
    """A random first stage."""
    return make_ranker(TEXT, VectorSettings(enabled=True))


@pytest.fixture
def reranker(ranker: Ranker) -> Reranker:
    """The same model, read in another way."""
    reader = ranker.reader
    settings = reader.settings.model_copy(update={"reranking": SMALL}).for_reranking()
    return Reranker(reader.context, reader.tokenizer, reader.model, settings)


def test_a_pair_is_the_query_with_the_candidate_in_its_hole(
    ranker: Ranker, reranker: Reranker, toy: KnowledgeGraph
) -> None:
    index = toy.entities.index
    query = Query(index["france"], toy.relations.index["capital"], "tail")
    ((encoded,),) = reranker.encode(Queries.of([query]), [np.array([index["paris"]])])
    ids = encoded.input_ids
    text = ranker.reader.tokenizer.tokenizer.decode(ids)
    (told,) = ranker.reader.linearize(Queries.of([query]))
    asked = told.before[-1].text
    assert text.index(told.before[0].text) < text.index(asked) < text.index("answer: Paris.")
    assert ids[encoded.span_start] == ranker.reader.tokenizer.mask_id
    assert ids.count(ranker.reader.tokenizer.mask_id) == 1
    assert ids[encoded.span_start + 1 :] == ranker.reader.tokenizer.suffix
    assert len(ids) <= TEXT.max_length + SMALL.max_length


def test_the_asked_for_triple_is_told_by_neither_side(reranker: Reranker, toy: KnowledgeGraph) -> None:
    """The pair's text with the triple in training is the text without; mirrored, it is told."""
    h, r, t = toy.splits["train"][0].tolist()

    def text(query: Query, answer: int, *train: tuple[int, int, int]) -> list[int]:
        triples = np.array(train, np.int64).reshape(-1, 3)
        context = replace(toy, splits={"train": triples}).context
        over = reranker.over(context)
        ((pair,),) = over.encode(Queries.of([query]), [np.array([answer])])
        return pair.input_ids

    for query, answer in ((Query(h, r, "tail"), t), (Query(t, r, "head"), h)):
        assert text(query, answer, (h, r, t)) == text(query, answer)
        assert len(text(query, answer, (t, r, h))) > len(text(query, answer))


def test_scores_are_the_log_odds_of_two_words(
    ranker: Ranker, reranker: Reranker, toy: KnowledgeGraph
) -> None:
    queries = toy.queries("test")[0][np.arange(4)]
    ids_BK = np.array([[0, 3], [5, -1], [7, 8], [-1, -1]])
    found = reranker.score(queries, ids_BK, batch_size=2)
    assert (found[torch.from_numpy(ids_BK < 0)] == 0).all()
    yes, no = (x[-1] for x in ranker.reader.tokenizer.encode_words(["yes", "no"]))
    for b, k in ((0, 0), (0, 1), (1, 0), (2, 1)):
        query = queries[np.array([b])]
        ((pair,),) = reranker.encode(query, [ids_BK[b, k : k + 1]])
        with torch.inference_mode():
            logits = ranker.reader.model.mlm(torch.tensor([pair.input_ids])).logits[0, pair.span_start]
        torch.testing.assert_close(found[b, k], logits[yes] - logits[no], atol=1e-5, rtol=1e-4)


def test_pairs_are_encoded_some_at_a_time(
    reranker: Reranker, toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = toy.queries("test")[0][np.arange(3)]
    ids_BK = np.array([[0, 3, 9, 4], [5, -1, -1, -1], [7, 8, 2, -1]])
    whole = reranker.score(queries, ids_BK)
    monkeypatch.setattr(second_stage, "_ENCODED", 3)
    torch.testing.assert_close(reranker.score(queries, ids_BK), whole, atol=1e-5, rtol=1e-4)


def test_a_tokenizer_that_cannot_say_no_is_refused(ranker: Ranker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgmlm.ranking.second_stage.WORDS", ("yes", "yes"))
    with pytest.raises(ModelError, match="cannot tell 'yes' from 'no'"):
        Reranker(ranker.context, ranker.reader.tokenizer, ranker.reader.model, ranker.reader.settings)


def test_settings_of_a_reranker_have_no_vectors() -> None:
    settings = Settings(vector=VectorSettings(enabled=True)).for_reranking()
    assert settings.training.objective == "rerank"
    assert not settings.vector.enabled


def test_a_run_is_reranked_by_the_command(
    cli: Cli, toy_vector_run: Path, toy_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_vector_run, run)
    without_digests(run)
    lines = (run / "config.toml").read_text("utf-8")  # a run that was trained for a step
    (run / "config.toml").write_text(lines.replace("[training]", "[training]\nmax_steps = 1"), "utf-8")
    refused(cli("evaluate", run, "--rerank", 5), "no reranker", "kgmlm rerank")
    refused(cli("tune", toy_run, "--add", "reranker", "--from", run), "no trained reranker")
    refused(cli("tune", run, "--add", "reranker"), "`kgmlm rerank", "--from another run")
    before = (run / "run.json").read_text("utf-8")
    long = cli("rerank", run, "--set", "text.max_length=100")
    refused(long, "reranking.max_length together", "positions")
    assert not (run / RERANKER).exists()
    assert (run / "run.json").read_text("utf-8") == before
    settings = (
        "--set", "training.batch_size=24", "--set", "training.epochs=2",
        "--set", "reranking.candidates=8", "--set", "training.eval_every=1",
    )  # fmt: skip
    done = cli("rerank", run, *settings, "--json", "-q")
    assert done.returncode == 0, done.stderr
    valid = json.loads(done.stdout)
    chosen = open_folder(run).tuned
    assert chosen.uses["reranking"] == Use(valid["k"], valid["weight"])
    assert chosen.by["valid"]["reranking"] == valid
    record = open_folder(run / RERANKER).record
    assert (record["status"], record["began_from"]["dataset"]) == ("finished", "toy")
    refused(cli("rerank", toy_run, "--resume"), "has no reranker to resume", "kgmlm rerank")
    refused(cli("rerank", run), "has a reranker already", "--overwrite", "kgmlm tune")
    open_folder(run).save_tuned(replace(chosen, uses={"reranking": Use(5, 1.0)}))
    base = ("evaluate", run, "--split", "valid", "--json", "-q")
    reports = {k: json.loads(cli(*base, *k).stdout) for k in ((), ("--rerank", 0), ("--rerank", 4))}
    assert reports[()]["reranking"]["k"] == 5
    assert reports[()]["reranking"]["settings"]["training"]["objective"] == "rerank"
    of_both_halves = pytest.approx(valid["mrr_first"], abs=0.1)  # each by the weights of the other
    assert reports["--rerank", 0]["metrics"]["mrr"] == of_both_halves
    assert reports["--rerank", 0]["reranking"] is None
    assert reports["--rerank", 4]["reranking"]["k"] == 4
    refused(cli("evaluate", run, "--rerank", 4, "--scores", "vector"), "--rerank goes with")
    asked = ("rank", run, "--relation", "capital", "--head", "france", "--rerank", 4)
    (row, *_) = [json.loads(x) for x in cli(*asked, "--json", "--explain").stdout.splitlines()]
    assert "reranking" in row["parts"]
    assert " reranking" in cli(*asked, "--explain").stdout
    assert " reranking" not in cli(*asked[:-1], 0, "--explain").stdout
    other = tmp_path / "other"
    shutil.copytree(toy_run, other)
    take = ("tune", other, "--add", "reranker", "--from", run)
    refused(cli(*take, "--set", "training.epochs=3"), "--from trains nothing")
    done = cli(*take, "--candidates", 3)
    assert "without reranking" in done.stdout, done.stderr
    refused(cli(*take), "has a reranker already", "--overwrite")
    assert open_folder(other / RERANKER).record["command"] == record["command"]
    use = open_folder(other).tuned.uses["reranking"]
    assert use is not None
    assert use.k in (0, 3)
    done = cli(
        "tune", other, "--add", "kge", "--set", "kge.dimension=4", "--set", "kge.epochs=2", "--json", "-q"
    )
    assert list(json.loads(done.stdout)) == ["text", "kge", "reranking"], "all is chosen again"
    opened = open_folder(other)
    opened.save_tuned(replace(opened.tuned, uses={"reranking": Use(0, 0.0)}))
    refused(cli("evaluate", other, "--rerank", 4), "chose not to rerank", f"kgmlm tune {other}")
    shutil.rmtree(other / RERANKER / "model")
    refused(cli("evaluate", other), "not chosen for the reranker", f"kgmlm tune {other}")
    assert cli("evaluate", other, "--rerank", 0, "-q").returncode == 0
    assert cli("tune", other, "-q").returncode == 0
    left_out = cli("evaluate", other, "-q")
    assert f"kgmlm rerank {other} --resume" in left_out.stderr.replace("\n", " ")
    mended = cli("rerank", other, *settings, "--overwrite", "-q")
    assert mended.returncode == 0, mended.stderr
    assert "reranking" in open_folder(other).tuned.uses
    assert cli("tune", other, "--drop", "reranker", "-q").returncode == 0
    refused(cli("evaluate", other, "--rerank", 4), "no reranker", "kgmlm rerank")


def test_what_was_killed_before_it_was_chosen_goes_on_with_choosing(toy_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    kgmlm.rerank(run, batch_size=24, epochs=1, progress=False)
    opened = open_folder(run)
    chosen, trained = opened.tuned, (run / RERANKER / "metrics.jsonl").read_bytes()
    opened.save_tuned(replace(chosen, uses={}))
    path = run / MIXTURE
    path.write_text(path.read_text().replace('"reranker"', '"another"'))
    digests.write_manifest(run / "model")
    with pytest.raises(RunError, match=r"not chosen for the another and reranker.*kgmlm tune"):
        kgmlm.evaluate(run, progress=False)
    opened.save_tuned(replace(chosen, uses={}))
    kgmlm.rerank(run, resume=True, progress=False)
    assert open_folder(run).tuned.uses == chosen.uses
    assert (run / RERANKER / "metrics.jsonl").read_bytes() == trained
    with pytest.raises(RunError, match="nothing to resume"):
        kgmlm.rerank(run, resume=True, progress=False)


def test_interrupted_training_goes_on_to_the_same_losses(toy_run: Path, tmp_path: Path) -> None:
    runs = [tmp_path / "whole", tmp_path / "parted"]
    settings: dict[str, Any] = {"batch_size": 24, "epochs": 2, "progress": False}
    for run in runs:
        shutil.copytree(toy_run, run)
    kgmlm.rerank(runs[0], **settings)
    kgmlm.rerank(runs[1], max_steps=5, **settings)
    kgmlm.rerank(runs[1], resume=True, **settings)

    def losses(run: Path) -> dict[int, float]:
        lines = (run / RERANKER / "metrics.jsonl").read_text("utf-8").splitlines()
        return {row["step"]: row["loss"] for row in map(json.loads, lines) if "loss" in row}

    assert losses(runs[1]) == losses(runs[0])
    assert len(losses(runs[0])) > 5
    wrong: dict[str, dict[str, Any]] = {
        "nothing to resume": {},
        "begun with other settings": {"batch_size": 30},
        "exclude each other": {"overwrite": True},
    }
    for message, options in wrong.items():
        with pytest.raises(RunError, match=message):
            kgmlm.rerank(runs[0], resume=True, progress=False, **options)


def test_training_ends_by_a_decay(toy_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(toy_run, tmp_path / "run")
    settings: dict[str, Any] = {"batch_size": 24, "epochs": 50, "schedule": "constant", "progress": False}
    kgmlm.rerank(run, max_steps=2, **settings)
    with pytest.raises(RunError, match="--decay ends a training that is resumed"):
        kgmlm.rerank(run, decay=1.0, overwrite=True, progress=False)
    found = kgmlm.rerank(run, resume=True, decay=1.0, progress=False)
    record = json.loads((run / RERANKER / "run.json").read_text("utf-8"))
    assert record["status"] == "finished"
    assert 2 < record["step"] < 100
    assert {"k", "weight", "mrr"} <= found.keys()
    with pytest.raises(RunError, match="has finished; --decay would end"):
        kgmlm.rerank(run, resume=True, decay=1.0, progress=False)


def test_the_objective_belongs_to_a_run(cli: Cli, tmp_path: Path) -> None:
    refused(
        cli(
            "train", "--dataset", "toy", "--model", "scratch", "--output", tmp_path / "run", *TINY_SETTINGS,
            "--set", "training.objective=rerank",
        ),
        "kgmlm rerank RUN",
    )  # fmt: skip
    assert not (tmp_path / "run").exists()
