"""Where tokenizers come from: the folder of a model, the hub, or training on texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from kgmlm import digests
from kgmlm.kg import ModelError
from kgmlm.saved_tokenizer import SavedTokenizer
from kgmlm.tokenization import SpanTokenizer


def train_tokenizer(texts: Iterator[str] | Sequence[str], vocabulary: int) -> SavedTokenizer:
    """A cased byte-level BPE tokenizer trained on texts, with at most so many tokens.

    Byte-level, so that no unseen name is unknown; and BPE, whose training is the same on every machine
    (WordPiece numbers its continuation pieces in an order that changes from process to process).
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=max(vocabulary, len(special) + len(alphabet)),
            special_tokens=special,
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", core.token_to_id("[CLS]")), ("[SEP]", core.token_to_id("[SEP]"))],
    )
    kinds = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return SavedTokenizer(core, dict(zip(kinds, special, strict=True)))


def check_model_folder(path: str | Path) -> None:
    """Tell a run from the model in it, and see that the files of a run's model are as long as they were.

    Raises:
        ModelError: when the folder is a run.
        RunError: when a file of a run's model is missing or of another length.
    """
    if (Path(path) / "run.json").is_file():
        raise ModelError(f"'{path}' is a run; its model is '{Path(path) / 'model'}'")
    digests.check_folder(Path(path))


def reason(error: Exception) -> str:
    """Why a library cannot load a model or a tokenizer, in a line."""
    if "trust_remote_code" in str(error):
        return "it comes with code of its own, which kgmlm does not run"
    return str(error).split("\n", 1)[0][:200]


def load_tokenizer(path: str | Path) -> SpanTokenizer:
    """The tokenizer of a model folder or hub name.

    Raises:
        ModelError: when there is none, or it cannot be used.
    """
    check_model_folder(path)
    try:
        if (Path(path) / digests.MANIFEST).is_file() and (saved := SavedTokenizer.load(Path(path))):
            return SpanTokenizer(saved)  # by a run, in whose folder nothing is left to other files
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False)
        files = {"tokenizer.json", *tokenizer.vocab_files_names.values()}
        if Path(path).is_dir() and not any((Path(path) / name).is_file() for name in files):
            # The library would go on with an empty one, to which every name is unknown.
            raise ModelError(f"'{path}' has no tokenizer; save it beside the model (save_pretrained)")
        return SpanTokenizer(tokenizer)
    except ModelError:
        raise
    except Exception as error:  # whatever a broken folder makes the libraries raise
        raise ModelError(f"no tokenizer can be loaded from '{path}': {reason(error)}") from None
