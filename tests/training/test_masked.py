from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from families import FAMILIES, build
from trainings import TINY

import kgmlm
from kgmlm.core.config import MaskingSettings, TextSettings
from kgmlm.graphs.entities import TEXT_COLUMNS, EntityTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.ranking.ranker import Ranker
from kgmlm.text.tokenization import SpanTokenizer
from kgmlm.training.objectives.masked import POLICIES, MaskedTextSource, Text

REGISTRY = POLICIES
TEXT = Text(list(range(100, 112)), [(1, 2), (2, 5), (5, 6), (6, 8), (8, 9), (9, 11)], answer=(6, 11))


@pytest.fixture
def source(make_ranker: Callable[..., Ranker], toy: KnowledgeGraph) -> Callable[..., MaskedTextSource]:
    def make(policy: str = "whole-word", neighbors: int = 2, **settings: object) -> MaskedTextSource:
        ranker = make_ranker(text=TextSettings(neighbors=neighbors))
        masking = MaskingSettings.model_validate({"policy": policy, **settings})
        return MaskedTextSource(ranker, toy, masking, seed=0)

    return make


@pytest.mark.parametrize("policy", REGISTRY)
class TestEveryPolicy:
    @pytest.mark.parametrize("budget", [1, 3, 10, 99])
    @pytest.mark.parametrize("text", [TEXT, replace(TEXT, answer=None)])
    def test_it_hides_some_tokens_of_words_each_once(self, policy: str, text: Text, budget: int) -> None:
        for seed in range(20):
            hidden = REGISTRY[policy](text, min(budget, 10), np.random.default_rng(seed))
            assert hidden
            assert hidden == sorted(set(hidden))
            assert set(hidden) <= set(range(1, 11))
            assert len(hidden) >= min(budget, 10) or policy == "entity"

    def test_the_generator_alone_decides(self, policy: str) -> None:
        first, again = (REGISTRY[policy](TEXT, 3, np.random.default_rng(1)) for _ in range(2))
        assert first == again


@pytest.mark.parametrize("budget", [1, 3, 10])
def test_policies_hide_what_they_are_called_after(budget: int) -> None:
    words = [set(range(*word)) for word in TEXT.words]
    for seed in range(20):
        hidden = {
            name: POLICIES[name](TEXT, budget, np.random.default_rng(seed))
            for name in ("random", "entity", "whole-word", "ngram", "similar")
        }
        assert len(hidden["random"]) == budget
        assert hidden["entity"] == list(range(6, 11))
        for name in ("whole-word", "ngram", "similar"):
            assert all(word <= set(hidden[name]) or not word & set(hidden[name]) for word in words)


def test_ngrams_are_words_in_a_row() -> None:
    words = Text(list(range(40)), [(i, i + 1) for i in range(40)])
    runs = []
    for seed in range(300):
        hidden = POLICIES["ngram"](words, 1, np.random.default_rng(seed))
        assert hidden == list(range(hidden[0], hidden[-1] + 1))
        runs.append(len(hidden))
    shares = np.bincount(runs, minlength=5)[1:] / len(runs)
    np.testing.assert_allclose(shares, [0.4, 0.3, 0.2, 0.1], atol=0.08)


@pytest.mark.parametrize("family", FAMILIES)
def test_words_begin_where_they_do_in_every_family(family: str) -> None:
    tokenizer = SpanTokenizer(build(family)[1])
    ids = tokenizer.encode_words(["virus disease syndrome"])[0]
    assert tokenizer.begins_word_V[ids].sum() == 3


def test_texts_are_of_training_alone(source: Callable[..., MaskedTextSource], toy: KnowledgeGraph) -> None:
    made = source()
    rng = np.random.default_rng(0)
    texts = made.encode(np.arange(len(made)), rng)
    assert len(texts) == toy.seen_N.sum() + len(toy.splits["train"])
    assert [text.answer is None for text in texts] == [True] * int(toy.seen_N.sum()) + [False] * len(
        toy.splits["train"]
    )
    decode = made.ranker.reader.tokenizer.tokenizer.decode
    written = [str(decode(text.input_ids)) for text in texts]
    surfaces = toy.entities.column("surface")
    unseen = [surfaces[i] for i in np.flatnonzero(~toy.seen_N)]
    assert unseen
    assert not [x for x in unseen if any(x in text for text in written)]
    triples = {tuple(row) for row in toy.splits["train"].tolist()}
    for query, answer in zip(made.queries, made.answers.tolist(), strict=True):
        ends = (query.entity, answer) if query.target == "tail" else (answer, query.entity)
        assert (ends[0], query.relation, ends[1]) in triples
    first = toy.seen_N.sum()
    for text, answer in zip(texts[first:], made.answers, strict=True):
        assert text.answer is not None
        assert str(decode(text.input_ids[slice(*text.answer)])).strip() == surfaces[answer]
    plain = source(neighbors=0)  # which neighbors are told is drawn
    forth, back = (plain.encode(np.arange(len(plain))[::step].copy(), rng) for step in (1, -1))
    assert back[::-1] == forth


@pytest.mark.parametrize("policy", REGISTRY)
def test_what_is_hidden_is_what_has_to_be_guessed(
    source: Callable[..., MaskedTextSource], policy: str
) -> None:
    made = source(policy, neighbors=0, share=0.3)
    texts = made.encode(np.arange(len(made)), np.random.default_rng(0))
    mask_id = made.ranker.reader.tokenizer.mask_id
    replaced = masked = same = total = 0
    for seed in range(15):
        batch = made.mask(texts, np.random.default_rng(seed))
        plain = (
            made.ranker.reader.tokenizer.collate(
                [
                    type(e)(t.input_ids, 0, 0, 0)
                    for t in texts
                    for e in made.ranker.reader.encode(made.queries[:1])
                ]
            )
            .to("cpu")
            .input_ids_BT
        )
        assert torch.equal(plain[batch.rows_M, batch.columns_M], batch.labels_M)
        untouched = torch.ones_like(plain, dtype=torch.bool)
        untouched[batch.rows_M, batch.columns_M] = False
        assert torch.equal(batch.input_ids_BT[untouched], plain[untouched])
        now = batch.input_ids_BT[batch.rows_M, batch.columns_M]
        of_entities = batch.rows_M < len(made.entities)
        if policy == "entity":
            assert (now[~of_entities] == mask_id).all()
        masked += int((now == mask_id)[of_entities].sum())
        same += int((now == batch.labels_M)[of_entities].sum())
        replaced += int(((now != mask_id) & (now != batch.labels_M))[of_entities].sum())
        total += int(of_entities.sum())
    if policy == "similar":
        assert masked == 0
        assert replaced / total == pytest.approx(0.9, abs=0.04)
    else:
        assert masked / total == pytest.approx(0.8, abs=0.04)
    assert same / total == pytest.approx(0.1, abs=0.03)


def test_similar_words_are_other_words_of_names(source: Callable[..., MaskedTextSource]) -> None:
    made = source("similar")
    similar_V = made.similar_V
    tokens = torch.from_numpy(made.words_W)
    assert (similar_V[tokens] != tokens).all()
    assert set(similar_V.tolist()) <= set(made.words_W.tolist())
    begins_V = torch.from_numpy(made.ranker.reader.tokenizer.begins_word_V)
    assert (begins_V[similar_V] == begins_V).float().mean() > 0.9
    weight_VD = torch.nn.functional.normalize(made.ranker.reader.model.decoder[0].detach(), dim=-1)
    token = int(tokens[3])
    alike = [int(t) for t in tokens if t != token and begins_V[t] == begins_V[token]]
    best = max(alike, key=lambda t: float(weight_VD[t] @ weight_VD[token]))
    assert int(similar_V[token]) == best
    wider = source("similar")  # as of models whose embeddings are padded to a round number
    weight, bias = wider.ranker.reader.model.decoder
    padded = torch.nn.functional.pad(weight, (0, 0, 0, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(wider.ranker.reader.model), "decoder", property(lambda self: (padded, bias)))
        assert torch.equal(wider.similar_V, similar_V)


def test_a_long_name_is_cut_to_the_span(make_ranker: Callable[..., Ranker], toy: KnowledgeGraph) -> None:
    columns = {kind: toy.entities.column(kind) for kind in TEXT_COLUMNS}
    for kind in ("name", "surface"):
        columns[kind][int(np.flatnonzero(toy.seen_N)[0])] = "very " * 90 + "long name"
    long = replace(toy, entities=EntityTable(*columns.values()))
    ranker = make_ranker()
    made = MaskedTextSource(ranker.over(long.context), long, MaskingSettings(), 0)
    texts = made.encode(np.arange(len(made)), np.random.default_rng(0))
    assert max(len(text.input_ids) for text in texts) <= ranker.reader.settings.text.max_length


@pytest.mark.slow
def test_a_model_is_adapted_resumed_and_trained_further(tmp_path: Path) -> None:
    adapting = {**TINY, "objective": "masked", "epochs": 6, "eval_every": 6, "progress": False}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    kgmlm.train("toy", "scratch", whole, **adapting)
    kgmlm.train("toy", "scratch", parts, max_steps=7, **adapting)
    kgmlm.train(output=parts, resume=True, progress=False)
    logs = [
        [json.loads(x) for x in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
        for run in (whole, parts)
    ]
    losses = [[row["loss"] for row in log if "loss" in row] for log in logs]
    assert losses[0] == losses[1]
    assert np.mean(losses[0][-5:]) < np.mean(losses[0][:5])
    further = tmp_path / "further"
    kgmlm.train("toy", whole / "model", further, max_steps=2, progress=False, **TINY)
    record = json.loads((further / "run.json").read_text("utf-8"))
    before = json.loads((whole / "run.json").read_text("utf-8"))
    assert record["began_from"]["command"] == before["command"]
    assert record["began_from"]["model"] == "scratch"
    assert before["began_from"] is None
