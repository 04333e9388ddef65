"""A tokenizer from its files against the one of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
from families import FAMILIES, build
from test_tokenization import NAMES

from kgmlm.core import digests
from kgmlm.core.errors import ModelError
from kgmlm.text.linearization import Linearization, Segment
from kgmlm.text.tokenization import SavedTokenizer, SpanTokenizer, load_tokenizer

ODD = [
    *NAMES,
    "",
    " ",
    "a [MASK] b",
    "<mask>",
    "[CLS]",
    "e\u0301",
    "\u0301x",
    "\u200bzero",
    "١٢٣",
    "a\tb",
    "🙂 smile",
]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tokenizer_from_its_files_is_that_of_transformers(family: str, tmp_path: Path) -> None:
    _, wrapped = build(family)
    wrapped.save_pretrained(tmp_path)
    ours = SpanTokenizer(wrapped)
    digests.write_manifest(tmp_path)  # as in a run
    saved = load_tokenizer(tmp_path)
    assert isinstance(saved.tokenizer, SavedTokenizer)
    for one, other in zip(ours.encode_words(ODD), saved.encode_words(ODD), strict=True):
        assert one == other
    expected = [
        wrapped(f"| {text}", add_special_tokens=False, split_special_tokens=True)["input_ids"]
        for text in NAMES
    ]
    anchor = wrapped("|", add_special_tokens=False)["input_ids"]
    assert [anchor + ids for ids in saved.encode_words(NAMES)] == expected
    for name in ("prefix", "suffix", "mask_id", "pad_id", "end_id"):
        assert getattr(saved, name) == getattr(ours, name)
    ids = [*wrapped("Georgia 東京")["input_ids"], ours.mask_id]
    assert saved.tokens(ids) == ours.tokens(ids)
    assert saved.texts(ids) == ours.texts(ids)
    assert len(saved.tokenizer) == len(wrapped)
    assert sorted(saved.tokenizer.all_special_ids) == sorted(wrapped.all_special_ids)
    text = Linearization((Segment("Georgia. a long description", cut=1), Segment("| borders |")))
    for length in (64, 20):
        cut, again = (t.encode_queries([text], 2, length)[0] for t in (ours, saved))
        assert cut == again
        assert saved.render(text, again) == ours.render(text, cut)
    (tmp_path / "again").mkdir()
    saved.tokenizer.save_pretrained(tmp_path / "again")
    for path in (tmp_path / "again").iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()


def test_a_trained_tokenizer_survives_saving(toy_tokenizer: SpanTokenizer, tmp_path: Path) -> None:
    toy_tokenizer.tokenizer.save_pretrained(tmp_path)
    for manifest in (False, True):  # by transformers, and from its files
        if manifest:
            digests.write_manifest(tmp_path)
        loaded = load_tokenizer(tmp_path)
        assert isinstance(loaded.tokenizer, SavedTokenizer) == manifest
        assert loaded.encode_words(ODD) == toy_tokenizer.encode_words(ODD)
        assert sorted(loaded.tokenizer.all_special_ids) == sorted(toy_tokenizer.tokenizer.all_special_ids)


@pytest.mark.parametrize("config", ["[]", "{", '{"mask_token": 7}', '{"mask_token": {"text": "x"}}'])
def test_damaged_files_of_a_tokenizer_are_a_sentence(
    toy_tokenizer: SpanTokenizer, tmp_path: Path, config: str
) -> None:
    toy_tokenizer.tokenizer.save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(config)
    digests.write_manifest(tmp_path)
    with pytest.raises(ModelError, match="no tokenizer can be loaded"):
        load_tokenizer(tmp_path)
