"""Pairs of a query and a candidate, read; the command that trains what reads them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TINY_SETTINGS, Cli, refused, without_digests

from kgmlm import rescoring
from kgmlm.config import RescoringSettings, Settings, TextSettings, VectorSettings
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import ModelError, Queries, Query
from kgmlm.ranker import Ranker
from kgmlm.rescoring import Best, Rescorer
from kgmlm.runs import open_run
from kgmlm.upkeep import RESCORER

TEXT = TextSettings(max_length=40, neighbors=3)
SMALL = RescoringSettings(candidates=10, negatives=3, max_length=24, neighbors=2)


@pytest.fixture
def ranker(make_ranker: Callable[..., Ranker]) -> Ranker:
    """A random first stage."""
    return make_ranker(TEXT, VectorSettings(enabled=True))


@pytest.fixture
def rescorer(ranker: Ranker) -> Rescorer:
    """The same model, read in another way."""
    reader = ranker.reader
    settings = reader.settings.model_copy(update={"rescoring": SMALL}).for_rescoring()
    return Rescorer(reader.context, reader.tokenizer, reader.model, settings)


def test_a_pair_is_the_query_with_the_candidate_in_its_hole(
    ranker: Ranker, rescorer: Rescorer, toy: KnowledgeGraph
) -> None:
    index = toy.entities.index
    query = Query(index["france"], toy.relations.index["capital"], "tail")
    ((encoded,),) = rescorer.encode(Queries.of([query]), [np.array([index["paris"]])])
    ids = encoded.input_ids
    text = ranker.reader.tokenizer.tokenizer.decode(ids)
    (told,) = ranker.reader.linearize(Queries.of([query]))
    asked = told.before[-1].text
    assert text.index(told.before[0].text) < text.index(asked) < text.index("answer: Paris.")
    assert ids[encoded.span_start] == ranker.reader.tokenizer.mask_id
    assert ids.count(ranker.reader.tokenizer.mask_id) == 1
    assert ids[encoded.span_start + 1 :] == ranker.reader.tokenizer.suffix
    assert len(ids) <= TEXT.max_length + SMALL.max_length


def test_the_asked_for_triple_is_told_by_neither_side(rescorer: Rescorer, toy: KnowledgeGraph) -> None:
    """The pair's text with the triple in training is the text without; mirrored, it is told."""
    h, r, t = toy.splits["train"][0].tolist()

    def text(query: Query, answer: int, *train: tuple[int, int, int]) -> list[int]:
        triples = np.array(train, np.int64).reshape(-1, 3)
        context = replace(toy, splits={"train": triples}).context
        over = rescorer.over(context)
        ((pair,),) = over.encode(Queries.of([query]), [np.array([answer])])
        return pair.input_ids

    for query, answer in ((Query(h, r, "tail"), t), (Query(t, r, "head"), h)):
        assert text(query, answer, (h, r, t)) == text(query, answer)
        assert len(text(query, answer, (t, r, h))) > len(text(query, answer))


def test_scores_are_the_log_odds_of_two_words(
    ranker: Ranker, rescorer: Rescorer, toy: KnowledgeGraph
) -> None:
    queries = toy.queries("test")[0][np.arange(4)]
    ids_BK = np.array([[0, 3], [5, -1], [7, 8], [-1, -1]])
    found = rescorer.score(queries, ids_BK, batch_size=2)
    assert (found[torch.from_numpy(ids_BK < 0)] == 0).all()
    yes, no = (x[-1] for x in ranker.reader.tokenizer.encode_words(["yes", "no"]))
    for b, k in ((0, 0), (0, 1), (1, 0), (2, 1)):
        query = queries[np.array([b])]
        ((pair,),) = rescorer.encode(query, [ids_BK[b, k : k + 1]])
        with torch.inference_mode():
            logits = ranker.reader.model.mlm(torch.tensor([pair.input_ids])).logits[0, pair.span_start]
        torch.testing.assert_close(found[b, k], logits[yes] - logits[no], atol=1e-5, rtol=1e-4)


def test_a_tokenizer_that_cannot_say_no_is_refused(ranker: Ranker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescoring, "WORDS", ("yes", "yes"))
    with pytest.raises(ModelError, match="cannot tell 'yes' from 'no'"):
        Rescorer(ranker.context, ranker.reader.tokenizer, ranker.reader.model, ranker.reader.settings)


def test_ties_at_the_edge_are_left_alone() -> None:
    scores_BN = torch.tensor(
        [[4.0, 3.0, 3.0, 3.0, 1.0], [1.0, 1.0, 1.0, 1.0, 1.0], [5.0, 4.0, 3.0, 2.0, 1.0]]
    )
    none = torch.zeros_like(scores_BN, dtype=torch.bool)
    for best in (Best.of(scores_BN, k, none).first(2) for k in (2, 4, 9)):
        assert best.chosen_BK.tolist() == [[True, False], [False, False], [True, True]]
        assert best.columns_BK[2].tolist() == [0, 1]
    whole = Best.of(scores_BN, 9, none)
    assert whole.chosen_BK.all()
    assert whole.first(5).chosen_BK.all()
    read = torch.tensor([[2.0, 9.0], [1.0, 2.0], [3.0, 1.0]])
    gain = best.rescored(scores_BN, read, 0.5) - scores_BN
    assert gain.tolist() == [[0.0] * 5, [0.0] * 5, [1.0, 0, 0, 0, 0]]


def test_settings_of_a_rescorer_have_no_vectors() -> None:
    settings = Settings(vector=VectorSettings(enabled=True)).for_rescoring()
    assert settings.training.objective == "rescore"
    assert not settings.vector.enabled


def test_a_run_is_rescored_by_the_command(
    cli: Cli, toy_vector_run: Path, toy_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_vector_run, run)
    without_digests(run)
    lines = (run / "config.toml").read_text("utf-8")  # a run that was trained for a step
    (run / "config.toml").write_text(lines.replace("[training]", "[training]\nmax_steps = 1"), "utf-8")
    refused(cli("evaluate", run, "--rescore", 5), "no rescorer", "kgmlm rescore")
    refused(cli("rescore", run, "--from", run), "no trained rescorer")
    before = (run / "run.json").read_text("utf-8")
    long = cli("rescore", run, "--set", "text.max_length=100")
    refused(long, "rescoring.max_length together", "positions")
    assert not (run / RESCORER).exists()
    assert (run / "run.json").read_text("utf-8") == before
    settings = (
        "--set", "training.batch_size=24", "--set", "training.epochs=2",
        "--set", "rescoring.candidates=8", "--set", "training.eval_every=1",
    )  # fmt: skip
    done = cli("rescore", run, *settings, "--json", "-q")
    assert done.returncode == 0, done.stderr
    valid = json.loads(done.stdout)
    record = json.loads((run / "run.json").read_text("utf-8"))["rescoring"]
    assert record["valid"] == valid
    assert (record["status"], record["began_from"]["dataset"]) == ("finished", "toy")
    refused(cli("rescore", run), "has a rescorer already", "--overwrite")
    base = ("evaluate", run, "--split", "valid", "--json", "-q")
    reports = {k: json.loads(cli(*base, *k).stdout) for k in ((), ("--rescore", 0), ("--rescore", 4))}
    assert reports[()]["metrics"]["mrr"] == pytest.approx(valid["mrr"])
    assert reports["--rescore", 0]["metrics"]["mrr"] == pytest.approx(valid["mrr_first"])
    assert reports["--rescore", 0]["rescoring"] is None
    assert reports["--rescore", 4]["rescoring"]["k"] == 4
    refused(cli("evaluate", run, "--rescore", 4, "--scores", "vector"), "--rescore goes with")
    asked = ("rank", run, "--relation", "capital", "--head", "france", "--rescore", 4)
    (row, *_) = [json.loads(x) for x in cli(*asked, "--json", "--explain").stdout.splitlines()]
    assert "rescoring" in row["parts"]
    assert "; rescoring " in cli(*asked, "--explain").stdout
    assert "; rescoring " not in cli(*asked[:-1], 0, "--explain").stdout
    other = tmp_path / "other"
    shutil.copytree(toy_run, other)
    refused(cli("rescore", other, "--from", run, "--max-steps", 3), "--from trains nothing")
    done = cli("rescore", other, "--from", run, "--candidates", 3)
    assert "before rescoring" in done.stdout, done.stderr
    refused(cli("rescore", other, "--from", run), "has a rescorer already", "--overwrite")
    taken = open_run(other).record["rescoring"]
    assert taken["settings"] == record["settings"]
    assert taken["k"] in (0, 3)
    fused = cli("fuse", other, "--set", "structure.dimension=4", "--set", "structure.epochs=2")
    assert f"kgmlm rescore {other} --from {other}" in fused.stderr.replace("\n", " "), fused.stderr
    assert open_run(other).record["rescoring"] is None
    assert cli("rescore", other, "--from", other, "--candidates", 3, "-q").returncode == 0
    assert open_run(other).record["rescoring"]["settings"] == record["settings"]
    shutil.rmtree(other / RESCORER / "model")
    refused(cli("evaluate", other), "no trained rescorer", "kgmlm rescore")
    assert cli("evaluate", other, "--rescore", 0, "-q").returncode == 0
    refused(cli("rescore", other, "--from", other), "no trained rescorer", "--resume")
    open_run(other).update(rescoring=None)
    left_out = cli("evaluate", other, "-q")
    assert f"kgmlm rescore {other} --resume" in left_out.stderr.replace("\n", " ")
    mended = cli("rescore", other, *settings, "--overwrite", "-q")
    assert mended.returncode == 0, mended.stderr
    open_run(other).update(rescoring={"k": 0, "weight": 0.0})
    refused(cli("evaluate", other, "--rescore", 4), "chose not to rescore", f"--from {other}")


def test_interrupted_training_goes_on_to_the_same_losses(cli: Cli, toy_run: Path, tmp_path: Path) -> None:
    runs = [tmp_path / "whole", tmp_path / "parted"]
    settings = ("--set", "training.batch_size=24", "--set", "training.epochs=2", "-q")
    for run in runs:
        shutil.copytree(toy_run, run)
    assert cli("rescore", runs[0], *settings).returncode == 0
    assert cli("rescore", runs[1], *settings, "--max-steps", 5).returncode == 0
    done = cli("rescore", runs[1], "--resume", *settings)
    assert done.returncode == 0, done.stderr

    def losses(run: Path) -> dict[int, float]:
        lines = (run / RESCORER / "metrics.jsonl").read_text("utf-8").splitlines()
        return {row["step"]: row["loss"] for row in map(json.loads, lines) if "loss" in row}

    assert losses(runs[1]) == losses(runs[0])
    assert len(losses(runs[0])) > 5
    refused(cli("rescore", runs[0], "--resume"), "nothing to resume")
    other = ("--set", "training.batch_size=30")
    refused(cli("rescore", runs[0], "--resume", *other), "begun with other settings")
    refused(cli("rescore", runs[0], "--resume", "--overwrite"), "exclude each other")


def test_the_objective_belongs_to_a_run(cli: Cli, tmp_path: Path) -> None:
    refused(
        cli(
            "train", "--dataset", "toy", "--model", "scratch", "--output", tmp_path / "run", *TINY_SETTINGS,
            "--set", "training.objective=rescore",
        ),
        "kgmlm rescore RUN",
    )  # fmt: skip
    assert not (tmp_path / "run").exists()
