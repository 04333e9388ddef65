from __future__ import annotations

from pathlib import Path

import pytest

from kgmlm.core.errors import ModelError
from kgmlm.text.tokenization import SpanTokenizer, check_model_folder, load_tokenizer, reason, train_tokenizer


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no tokenizer"):
        load_tokenizer(str(tmp_path))


def test_a_run_is_told_from_the_model_in_it(tmp_path: Path) -> None:
    check_model_folder(tmp_path)
    (tmp_path / "run.json").touch()
    with pytest.raises(ModelError, match=r"is a run; its model is '.*model'"):
        check_model_folder(tmp_path)


def test_why_a_library_refuses_is_one_line() -> None:
    assert reason(ValueError("no such file\nTraceback")) == "no such file"
    assert "code of its own" in reason(ValueError("pass trust_remote_code=True"))


def test_training_on_the_same_texts_makes_the_same_tokenizer_and_leaves_nothing_unknown() -> None:
    texts = ["New York", "new roads", "the York road"]
    one, same = (train_tokenizer(texts, 300) for _ in range(2))
    assert one.get_vocab() == same.get_vocab()
    assert len(one) <= 300
    tokenizer = SpanTokenizer(one)
    names = tokenizer.candidates(["\u6771\u4eac", "Zürich"], None, end_of_name=False)
    assert tokenizer.unknown(names).tolist() == []
