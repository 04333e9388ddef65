"""A tokenizer out of its ``tokenizer.json``, without the library that trains and wraps it.

Loading through transformers takes seconds of imports. What a run saved is complete in two files, which the
tokenizers library reads in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kgmlm import files

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
FILES = (
    *("tokenizer.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "vocab.txt", "vocab.json", "merges.txt"),
)


class SavedTokenizer:
    """The part of a Hugging Face fast tokenizer that is used here.

    Args:
        core: of the tokenizers library; it is set up to pad and cut nothing, and to read special tokens in
            texts as text.
        names: the special tokens, as ``mask_token`` and the like.
        further: special tokens without such a name.
        files: what :meth:`save_pretrained` writes, by file name; None lets transformers write it.
    """

    is_fast = True

    def __init__(
        self,
        core: Any,
        names: Mapping[str, str],
        further: Sequence[str] = (),
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        core.no_padding()
        core.no_truncation()
        core.encode_special_tokens = True
        self.core = core
        self.names = dict(names)
        self._files = files
        self.mask_token = names.get("mask_token")
        self.mask_token_id = self._id("mask_token")
        self.pad_token_id = self._id("pad_token")
        self.unk_token_id = self._id("unk_token")
        self.sep_token_id = self._id("sep_token")
        self.eos_token_id = self._id("eos_token")
        texts = dict.fromkeys([*self.names.values(), *further])
        self.all_special_tokens = [text for text in texts if core.token_to_id(text) is not None]
        self.all_special_ids = [core.token_to_id(text) for text in self.all_special_tokens]

    @classmethod
    def load(cls, folder: Path) -> SavedTokenizer | None:
        """The tokenizer of a folder; None where its two files are not there.

        Raises:
            ValueError: or another error of the libraries, when they are damaged.
        """
        from tokenizers import Tokenizer

        found = {name: path.read_bytes() for name in FILES if (path := folder / name).is_file()}
        if not {"tokenizer.json", "tokenizer_config.json"} <= set(found):
            return None
        config = files.parse_json(found["tokenizer_config.json"])
        if not isinstance(config, dict):
            raise ValueError("tokenizer_config.json is no JSON object")
        names = {name: _text(config[name]) for name in NAMES if config.get(name) is not None}
        more = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
        further = [_text(token) for token in (more.values() if isinstance(more, dict) else more)]
        return cls(Tokenizer.from_str(found["tokenizer.json"].decode()), names, further, found)

    def _id(self, name: str) -> int | None:
        text = self.names.get(name)
        return None if text is None else self.core.token_to_id(text)

    def __len__(self) -> int:
        return int(self.core.get_vocab_size())

    def get_vocab(self) -> dict[str, int]:
        """Pieces to ids."""
        found: dict[str, int] = self.core.get_vocab()
        return found

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Ids as pieces."""
        return [self.core.id_to_token(i) for i in ids]

    def decode(self, ids: Sequence[int], **ignored: Any) -> str:
        """Ids as text, special tokens included."""
        return str(self.core.decode(list(ids), skip_special_tokens=False))

    def as_transformers(self) -> Any:
        """The same as a tokenizer of transformers."""
        from tokenizers import Tokenizer
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(self.core.to_str()), **self.names)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the files of an ordinary Hugging Face folder."""
        if self._files is None:
            self.as_transformers().save_pretrained(folder)
            return
        for name, content in self._files.items():
            (Path(folder) / name).write_bytes(content)


def _text(token: Any) -> str:
    """A special token as configurations write it: its text, or an object that has it."""
    text = token["content"] if isinstance(token, dict) else token
    if not isinstance(text, str):
        raise ValueError(f"{token!r} is no special token")
    return text
