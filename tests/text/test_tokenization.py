from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import FAMILIES, build, byte_level, sentencepiece, wordpiece
from hypothesis import given
from hypothesis import strategies as st

from kgmlm.core.errors import ModelError
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.text.linearization import Linearization, Segment
from kgmlm.text.tokenization import (
    SavedTokenizer,
    SpanTokenizer,
    auto_span_length,
    model_named,
    train_tokenizer,
)

KINDS = {"wordpiece": wordpiece, "byte-level": byte_level, "sentencepiece": sentencepiece}
NAMES = [
    "Georgia",
    "New York",
    "disease or syndrome",
    "run verb 7",
    "naïve café",
    "東京",
    "(e.g. Paris)",
    "x",
]


def hf(tokenizer: SpanTokenizer) -> Any:
    """The tokenizer of transformers behind it."""
    return tokenizer.tokenizer


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> SpanTokenizer:
    return SpanTokenizer(KINDS[request.param]())


@pytest.mark.parametrize("name", NAMES)
def test_a_span_has_the_tokens_that_the_name_has_in_the_text(tokenizer: SpanTokenizer, name: str) -> None:
    """The right tokens are those of the whole sentence, tokenized in one piece."""
    before = "virus | causes |"
    whole = hf(tokenizer)(f"{before} {name}")["input_ids"]
    (encoded,) = tokenizer.encode_queries([Linearization((Segment(before),))], 3, 64)
    candidates = tokenizer.candidates([name], None, end_of_name=False)
    start = encoded.span_start
    filled = encoded.input_ids[:start] + candidates.tokens(0).tolist() + encoded.input_ids[start + 3 :]
    assert filled == whole


def test_byte_level_names_carry_their_blank() -> None:
    tokenizer = SpanTokenizer(byte_level())
    row = tokenizer.candidates(["Georgia"], None, end_of_name=False).tokens(0).tolist()
    assert tokenizer.tokens(row)[0].startswith("Ġ")


def test_segments_are_tokenized_as_the_text_is(tokenizer: SpanTokenizer) -> None:
    segments = (Segment("New York."), Segment("a city in the United States"), Segment("| located in |"))
    linearization = Linearization(segments, (Segment("the end"),))
    (encoded,) = tokenizer.encode_queries([linearization], 2, 64)
    mask = hf(tokenizer).mask_token_id
    assert [i for i, t in enumerate(encoded.input_ids) if t == mask] == [
        encoded.span_start,
        encoded.span_start + 1,
    ]
    text = "New York. a city in the United States | located in |"
    before = hf(tokenizer)(text)["input_ids"]
    assert encoded.input_ids[: encoded.span_start] == before[:-1]
    assert encoded.cut == 0


@pytest.mark.parametrize("marker", ["[MASK]", "<mask>", "[SEP]", "</s>"])
def test_special_tokens_inside_a_text_stay_text(tokenizer: SpanTokenizer, marker: str) -> None:
    text = Linearization((Segment(f"a {marker} b"), Segment("| r |")))
    (encoded,) = tokenizer.encode_queries([text], 2, 64)
    assert encoded.input_ids.count(tokenizer.mask_id) == 2
    assert encoded.input_ids[1:-1].count(tokenizer.end_id) == 0
    assert tokenizer.mask_id not in tokenizer.candidates([f"a {marker}"], None, end_of_name=False).token_ids


def test_only_descriptions_are_cut_then_names_never_the_relation(tokenizer: SpanTokenizer) -> None:
    segments = (Segment("Georgia.", cut=1), Segment("city " * 50, cut=2), Segment("| located in |"))
    relation = tokenizer.encode_words(["| located in |"])[0]
    for room in (40, 24):
        (encoded,) = tokenizer.encode_queries([Linearization(segments)], 4, room)
        assert len(encoded.input_ids) == room
        assert encoded.input_ids[: encoded.span_start][-len(relation) :] == relation
        assert encoded.cut > 0
    name = hf(tokenizer)("Georgia.", add_special_tokens=False)["input_ids"]
    assert encoded.input_ids[1 : 1 + len(name)] == name
    with pytest.raises(ModelError, match=r"raise text\.max_length"):
        tokenizer.encode_queries([Linearization(segments)], 4, len(relation) + 5)


def test_a_cut_text_is_shown_as_cut(tokenizer: SpanTokenizer) -> None:
    text = Linearization((Segment("Georgia."), Segment("city " * 50, cut=2), Segment("| located in |")))
    (encoded,) = tokenizer.encode_queries([text], 2, 40)
    shown = tokenizer.render(text, encoded)
    assert shown.count("city") < 50
    assert shown.endswith(" ".join([hf(tokenizer).mask_token] * 2))


def test_padding_changes_nothing_but_length(tokenizer: SpanTokenizer) -> None:
    texts = [Linearization((Segment(t),)) for t in ("virus | causes |", "New York. a city | located in |")]
    batch = tokenizer.collate(tokenizer.encode_queries(texts, 3, 64))
    lengths = batch.attention_mask_BT.sum(1)
    assert lengths.max() == batch.input_ids_BT.shape[1]
    for row, start, length in zip(batch.input_ids_BT, batch.span_start_B, lengths, strict=True):
        assert (row[start : start + 3] == tokenizer.mask_id).all()
        assert (row[length:] == tokenizer.pad_id).all()


def test_long_names_are_cut_and_counted(tokenizer: SpanTokenizer) -> None:
    names = ["Georgia", "the run of a verb 7 and a noun 12"]
    candidates = tokenizer.candidates(names, 4, end_of_name=False)
    assert candidates.truncated_N.tolist() == [len(tokenizer.encode_words(names[:1])[0]) > 4, True]
    assert candidates.lengths_N.max() == 4


def test_the_end_of_a_name_is_the_separator(tokenizer: SpanTokenizer) -> None:
    without = tokenizer.candidates(["Georgia"], None, end_of_name=False).tokens(0).tolist()
    with_end = tokenizer.candidates(["Georgia"], None, end_of_name=True).tokens(0).tolist()
    assert with_end == [*without, hf(tokenizer).sep_token_id]


def test_every_name_has_a_token(tokenizer: SpanTokenizer) -> None:
    candidates = tokenizer.candidates(["", "\u200b"], 4, end_of_name=False)
    assert candidates.lengths_N.min() >= 1
    if tokenizer.encode_words([""])[0] == []:  # SentencePiece and byte-level BPE have a token for the blank
        assert candidates.tokens(0).tolist() == [hf(tokenizer).unk_token_id]


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=8), st.data())
def test_taking_candidates_keeps_their_tokens(bags: list[list[int]], data: st.DataObject) -> None:
    from kgmlm.text.tokenization import Candidates

    offsets = np.concatenate([[0], np.cumsum([len(b) for b in bags])])
    table = Candidates(np.array([t for bag in bags for t in bag]), offsets, np.zeros(len(bags), bool))
    rows = data.draw(st.lists(st.integers(0, len(bags) - 1)))
    taken = table.take(np.array(rows, np.int64))
    assert [taken.tokens(i).tolist() for i in range(len(taken))] == [bags[r] for r in rows]


def test_chunks_make_no_difference(tokenizer: SpanTokenizer) -> None:
    whole, chunked = (tokenizer.candidates(NAMES, 5, end_of_name=True, chunk=c) for c in (99, 3))
    assert np.array_equal(whole.token_ids, chunked.token_ids)
    assert np.array_equal(whole.offsets, chunked.offsets)
    assert np.array_equal(whole.truncated_N, chunked.truncated_N)


def test_the_automatic_span_fits_its_share() -> None:
    lengths = np.array([2] * 990 + [3] * 5 + [20] * 5)
    assert auto_span_length(lengths, 32) == 3
    assert auto_span_length(lengths, 32, 1.0) == 20
    assert auto_span_length(lengths, 9, 1.0) == 9, "what would leave no room for the query"


def test_a_tokenizer_without_a_mask_is_refused() -> None:
    trained = train_tokenizer(["a b"], 200)
    broken = SavedTokenizer(trained.core, {k: v for k, v in trained.names.items() if k != "mask_token"})
    with pytest.raises(ModelError, match="no mask token"):
        SpanTokenizer(broken)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_a_usable_tokenizer(family: str) -> None:
    _, tokenizer = build(family)
    assert len(SpanTokenizer(tokenizer).prefix) == 1


def test_a_mask_for_a_vector_follows_the_span(toy_tokenizer: SpanTokenizer) -> None:
    texts = [
        Linearization((Segment("virus"),), (Segment("."),)),
        Linearization((Segment("cell | causes |"),)),
    ]
    encoded = toy_tokenizer.encode_queries(texts, 2, 40, vector=True)
    for text, result in zip(texts, encoded, strict=True):
        masks = np.flatnonzero(np.array(result.input_ids) == toy_tokenizer.mask_id)
        assert masks.tolist() == [result.span_start + i for i in range(3)]
        assert toy_tokenizer.render(text, result).count("[MASK]") == 3
    assert toy_tokenizer.collate(encoded).vector
    (short,) = toy_tokenizer.encode_queries(
        [Linearization((Segment("a long text " * 9, cut=1),))], 0, 12, vector=True
    )
    assert len(short.input_ids) == 12
    assert short.input_ids.count(toy_tokenizer.mask_id) == 1


def test_pieces_of_a_name_are_readable_and_join_to_it(toy_tokenizer: SpanTokenizer) -> None:
    for name in ("\u6771\u4eac", "S\u00e3o Paulo", "New York", "\U0001f600 x"):
        (ids,) = toy_tokenizer.encode_words([name])
        texts = toy_tokenizer.texts(ids)
        assert len(texts) == len(ids)
        assert "".join(texts).strip() == name
        assert not any("\ufffd" in text or "\u0120" in text for text in texts)


@pytest.mark.parametrize("end_of_name", [False, True])
@pytest.mark.parametrize("span", [1, 2, 9])
def test_names_cut_to_a_span_are_those_tokenized_for_it(
    toy: KnowledgeGraph, toy_tokenizer: SpanTokenizer, span: int, end_of_name: bool
) -> None:
    surfaces = toy.entities.column("surface")
    cut = toy_tokenizer.candidates(surfaces, None, end_of_name).cut(span)
    expected = toy_tokenizer.candidates(surfaces, span, end_of_name)
    for one, other in zip(vars(cut).values(), vars(expected).values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_small_model_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (Path(model_named("minilm")) / "config.json").is_file(), "the extra of development installs it"
    monkeypatch.setattr("kgmlm.text.tokenization.find_spec", lambda name: None)
    assert model_named("minilm") == "sentence-transformers/all-MiniLM-L6-v2"
    (tmp_path / "minilm").mkdir()
    assert model_named("minilm") == "minilm", "a folder of that name goes before"
