"""Names token by token: who sees whom, probabilities by the chain rule, and the stage that ranks by them."""

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
from conftest import Cli, refused
from families import build
from trainings import arguments

import kgmlm
from kgmlm.core.config import VectorSettings
from kgmlm.core.errors import ModelError
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking import second_stage
from kgmlm.ranking.ranker import Ranker, StageWeight
from kgmlm.ranking.second_stage import Conditional
from kgmlm.runs.opened import open_folder, tuned_ranker
from kgmlm.runs.writing import save_tuned
from kgmlm.text.spelling import Spelled, spelled_log_probs, spelled_scores
from kgmlm.text.tokenization import MaskedBatch
from kgmlm.text.torch_model import FAMILIES, SpanModel, positions_of


def batch_of(tokenizer: Any, texts: int = 3, span: int = 3, vector: bool = True) -> MaskedBatch:
    """Texts of different lengths with a hole in each."""
    rng = np.random.default_rng(0)
    words = [i for i in range(tokenizer.vocab_size) if i not in tokenizer.all_special_ids]
    length = 14
    ids = np.full((texts, length), tokenizer.pad_token_id)
    attention, starts = np.zeros_like(ids), []
    for row in range(texts):
        used = length - 2 * row
        ids[row, :used] = rng.choice(words, used)
        ids[row, 0], ids[row, used - 1] = tokenizer.cls_token_id, tokenizer.sep_token_id
        starts.append(2 + row % 2)
        ids[row, starts[-1] : starts[-1] + span + vector] = tokenizer.mask_token_id
        attention[row, :used] = 1
    return MaskedBatch(ids, attention, np.array(starts), span, vector)


def names_of(tokenizer: Any, texts: int = 3, k: int = 2, span: int = 3, seed: int = 1) -> Spelled:
    rng = np.random.default_rng(seed)
    words = [i for i in range(tokenizer.vocab_size) if i not in tokenizer.all_special_ids]
    tokens = torch.from_numpy(rng.choice(words, (texts, k, span)))
    there = torch.ones(texts, k, span, dtype=torch.bool)
    there[0, 1, 2] = there[1, 0, 1:] = False
    return Spelled(tokens, there)


@pytest.fixture(scope="module", params=[family for family in FAMILIES if family != "camembert"])
def made(request: pytest.FixtureRequest) -> tuple[SpanModel, Any]:
    """A random model of a family, and its tokenizer."""
    mlm, tokenizer = build(request.param)
    return SpanModel(mlm).eval(), tokenizer


def test_the_text_is_read_as_without_names(made: tuple[SpanModel, Any]) -> None:
    model, tokenizer = made
    batch = batch_of(tokenizer)
    with torch.inference_mode():
        plain, spelled = model(batch), model(batch, names=names_of(tokenizer).behind(batch))
    assert torch.allclose(plain.hidden_BLD, spelled.hidden_BLD, atol=1e-5)
    assert plain.vector_BD is not None
    assert torch.allclose(plain.vector_BD, spelled.vector_BD, atol=1e-5)
    assert spelled.names_BMD.shape[:2] == (3, 2 * 3)
    with torch.inference_mode():
        beside = model(batch, (batch_of(tokenizer, 2, 0),), names_of(tokenizer).behind(batch))
        alone = model(batch_of(tokenizer, 2, 0))
    assert torch.allclose(beside.names_BMD, spelled.names_BMD, atol=1e-5), "entities are read beside it"
    assert torch.allclose(beside.entities_ED, alone.vector_BD, atol=1e-5)


def test_a_token_is_guessed_from_those_before_it_alone(made: tuple[SpanModel, Any]) -> None:
    model, tokenizer = made
    batch, names = batch_of(tokenizer), names_of(tokenizer)
    with torch.inference_mode():
        before = model(batch, names=names.behind(batch)).names_BMD
        for position in range(3):
            changed = names.tokens_BKL.clone()
            changed[2, 0, position] = names.tokens_BKL[2, 1, position]
            other = Spelled(changed, names.there_BKL).behind(batch)
            after = model(batch, names=other).names_BMD
            moved = ((after - before).abs().amax(-1) > 1e-5).view(3, 2, 3)
            expected = torch.zeros_like(moved)
            expected[2, 0, position + 1 :] = True
            assert torch.equal(moved, expected), "neither earlier ones, nor itself, nor other names or texts"


def test_states_are_those_of_the_family_s_own_model(made: tuple[SpanModel, Any]) -> None:
    """By the library's forward pass over the same tokens, positions and mask."""
    model, tokenizer = made
    reading = names_of(tokenizer).behind(batch_of(tokenizer))
    assert reading.positions_BT is not None
    assert reading.allowed_BTT is not None
    base = model.mlm.base_model
    limit = model.positions
    assert limit is not None
    first = base.config.max_position_embeddings - limit
    base.config._attn_implementation = "eager"
    with torch.inference_mode():
        mask_B1TT = torch.zeros(reading.allowed_BTT.shape).masked_fill(~reading.allowed_BTT, -1e9)[:, None]
        states = base(
            input_ids=reading.input_ids_BT,
            attention_mask=mask_B1TT,
            position_ids=reading.positions_BT + first,
        )[0]
        expected = model.through_head(states[reading.rows, reading.columns])
        names = names_of(tokenizer)
        span = model(batch_of(tokenizer), names=reading)
    read = positions_of(batch_of(tokenizer), model.device).columns.shape[1]
    found = torch.cat([span.hidden_BLD, span.names_BMD], 1)
    rows = torch.cat([expected[:, : read - 1], expected[:, read:]], 1)  # the vector's is normalized
    there = torch.cat([torch.ones(3, read - 1, dtype=torch.bool), names.there_BKL.flatten(1)], 1)
    assert torch.allclose(found[there], rows[there], atol=1e-4)


def test_probabilities_of_the_next_token_sum_up_to_one(made: tuple[SpanModel, Any]) -> None:
    model, tokenizer = made
    batch = batch_of(tokenizer, 1, 2)
    count = len(model.decoder[0])
    tokens = torch.stack([torch.full((count,), 9), torch.arange(count)], 1)[None]
    names = Spelled(tokens, torch.ones_like(tokens, dtype=torch.bool))
    with torch.inference_mode():
        span = model(batch, names=names.behind(batch))
        log_probs = spelled_log_probs(model, span, names, None)
        few = spelled_log_probs(model, span, names, torch.tensor([3, 9, 11]))
    assert log_probs[0, :, 1].exp().sum() == pytest.approx(1, abs=1e-3)
    assert torch.allclose(log_probs[0, :, 0], log_probs[0, 0, 0].expand(count), atol=1e-4)
    assert few[0, [3, 9, 11], 1].exp().sum() == pytest.approx(1, abs=1e-3)


def test_scores_are_means_of_what_is_there() -> None:
    there = torch.tensor([[[True, True], [True, False], [False, False]]])
    log_probs = torch.tensor([[[-1.0, -3.0], [-2.0, 0.0], [0.0, 0.0]]])
    names = Spelled(torch.zeros(1, 3, 2, dtype=torch.long), there)
    assert spelled_scores(log_probs, names).tolist() == [[-2, -2, 0]]


def test_other_families_say_that_they_cannot() -> None:
    mlm, tokenizer = build("distilbert")
    model = SpanModel(mlm)
    with pytest.raises(ModelError, match="token by token"):
        model(batch_of(tokenizer), names=names_of(tokenizer).behind(batch_of(tokenizer)))


def test_the_stage_scores_candidates_whatever_the_batch(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranker = make_ranker(vector=VectorSettings(enabled=True), end_of_name=True)
    queries, _ = toy.queries("test")
    ids_BK = np.random.default_rng(0).integers(0, len(toy.entities), (len(queries), 5))
    ids_BK[0, 3] = -1
    stage = Conditional(StageWeight(5, 1.0))
    found_BK = stage.score(ranker, queries, ids_BK)
    assert found_BK[0, 3] == 0
    assert (found_BK[ids_BK >= 0] < 0).all()
    monkeypatch.setattr(second_stage, "SPELLED", 1)
    assert stage.score(ranker, queries, ids_BK) == pytest.approx(found_BK, abs=1e-4)


def crossing() -> KnowledgeGraph:
    """Names of two words: who likes a place likes both "a b" and "c d", and neither "a d" nor "c b"."""
    words = ["red", "blue", "green", "gold", "pink", "gray", "black", "white"]
    rng = np.random.default_rng(0)
    triples = []
    for i in range(60):
        a, b, c, d = rng.choice(words, 4, replace=False).tolist()
        triples += [(f"p{i}", "likes", f"{a} {b}"), (f"p{i}", "likes", f"{c} {d}")]
    others = [(f"q{x}{y}", "has", f"{x} {y}") for x in words for y in words if x != y]
    return KnowledgeGraph.from_triples(triples + others, valid=triples[:40])


@pytest.mark.slow
def test_a_name_is_more_than_its_tokens(tmp_path: Path) -> None:
    """The chain rule tells names apart whose tokens are equally likely one by one."""
    graph = crossing()
    tiny: dict[str, Any] = {"hidden_size": 64, "layers": 2, "heads": 4, "dropout": 0.0}
    how: dict[str, Any] = {"epochs": 100, "batch_size": 32, "learning_rate": 2e-3, "eval_every": 100}
    run = kgmlm.train(
        graph, "scratch", tmp_path / "run", preset="plain", progress=False,
        **arguments(scratch=tiny, autoregressive=1.0, objective="token", **how),
    )  # fmt: skip
    ranker = tuned_ranker(run.folder, "cpu")
    index, right, wrong = graph.entities.index, [], []
    for i in range(60):
        likes = [t for h, _, t in graph.labeled(graph.splits["train"]) if h == f"p{i}"]
        (a, b), (c, d) = (x.split() for x in likes)
        right.append([index[f"{a} {b}"], index[f"{c} {d}"]])
        wrong.append([index[f"{a} {d}"], index[f"{c} {b}"]])
    asked = Queries(
        np.array([index[f"p{i}"] for i in range(60)]),
        np.full(60, graph.relations.index["likes"]),
        np.ones(60, np.bool_),
    )
    ids_BK = np.concatenate([right, wrong], 1)
    spelled_BK = Conditional(StageWeight(4, 1.0)).score(ranker, asked, ids_BK)
    at_once_BK = np.concatenate([x for _, x in ranker.rank(asked)])
    order = np.concatenate([rows for rows, _ in ranker.rank(asked)])
    at_once_BK = at_once_BK[np.argsort(order)][np.arange(60)[:, None], ids_BK]
    better = [(x[:, :2].min(1) > x[:, 2:].max(1)).mean() for x in (at_once_BK, spelled_BK)]
    assert better[1] > better[0] + 0.3, better


def test_a_run_reads_names_token_by_token(cli: Cli, toy_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(toy_run, tmp_path / "run")
    refused(cli("tune", run, "--drop", "conditional"), "reads no names token by token")
    done = cli("tune", run, "--add", "conditional", "--candidates", 5, "--json")
    assert list(json.loads(done.stdout)) == ["conditional"], done.stderr
    opened = open_folder(run)
    assert "conditional" in opened.tuned.stage_weights
    opened = save_tuned(opened, replace(opened.tuned, stage_weights={"conditional": StageWeight(4, 0.5)}))
    assert "the 4 best, weight 0.5" in cli("info", run).stdout
    report = json.loads(cli("evaluate", run, "--split", "valid", "--json", "-q").stdout)
    assert report["conditional"] == {"k": 4, "weight": 0.5}
    question = ("rank", run, "--head", "france", "--relation", "capital")
    rows = cli(*question, "--explain", "--json").stdout.splitlines()
    assert all("conditional" in json.loads(row)["parts"] for row in rows)
    assert cli("onnx", run).returncode == 0
    assert "reads no names token by token" in cli(*question, "--runtime", "onnx").stderr
    assert cli("tune", run, "--drop", "conditional", "-q").returncode == 0
    assert "conditional" not in open_folder(run).tuned.stage_weights
