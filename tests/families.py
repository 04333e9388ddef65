"""Every masked-LM family, tiny and random and in memory, each with a tokenizer of its own kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    AlbertConfig,
    AutoModelForMaskedLM,
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    ModernBertConfig,
    MPNetConfig,
    PreTrainedTokenizerFast,
    RobertaConfig,
    XLMRobertaConfig,
)

TEXTS = [
    "New York is a city in the United States | located in |",
    "virus causes disease or syndrome; the run of a verb 7 and a noun 12",
    "Georgia France Germany Italy. country in western Europe 東京 café naïve",
    "Barack Obama's wife. inverse of has the capital (e.g. Paris)",
]


def _mask(text: str) -> AddedToken:
    """The families with blanks inside tokens let the mask swallow the blank before it."""
    return AddedToken(text, lstrip=True, special=True)


def _wrap(core: Any, cls: str, sep: str, **names: Any) -> Any:
    core.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        special_tokens=[(cls, core.token_to_id(cls)), (sep, core.token_to_id(sep))],
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, cls_token=cls, sep_token=sep, **names)


def wordpiece() -> Any:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    core = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    core.train_from_iterator(
        TEXTS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    )
    return _wrap(core, "[CLS]", "[SEP]", pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]")


def byte_level() -> Any:
    special = ["<s>", "<pad>", "</s>", "<unk>", _mask("<mask>")]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    core.train_from_iterator(TEXTS, trainer)
    return _wrap(core, "<s>", "</s>", pad_token="<pad>", unk_token="<unk>", mask_token=_mask("<mask>"))


def sentencepiece() -> Any:
    special = ["<pad>", "<unk>", "[CLS]", "[SEP]", _mask("[MASK]")]
    core = Tokenizer(models.Unigram())
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    core.train_from_iterator(TEXTS, trainer)
    return _wrap(core, "[CLS]", "[SEP]", pad_token="<pad>", unk_token="<unk>", mask_token=_mask("[MASK]"))


_SHAPE: dict[str, Any] = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
    "max_position_embeddings": 80,
}  # fmt: skip

FAMILIES: dict[str, tuple[Callable[[], Any], Callable[..., Any]]] = {
    "bert": (wordpiece, lambda **k: BertConfig(**_SHAPE, **k)),
    "macbert": (wordpiece, lambda **k: BertConfig(**_SHAPE, **k)),  # MacBERT is a BERT with other weights
    "roberta": (byte_level, lambda **k: RobertaConfig(**_SHAPE, **k)),
    "albert": (sentencepiece, lambda **k: AlbertConfig(**_SHAPE, embedding_size=16, **k)),
    "distilbert": (
        wordpiece,
        lambda **k: DistilBertConfig(
            dim=24, n_layers=2, n_heads=2, hidden_dim=48, max_position_embeddings=80, **k
        ),
    ),
    "modernbert": (
        byte_level,
        lambda **k: ModernBertConfig(**_SHAPE, local_attention=32, **k),
    ),
    "deberta-v2": (sentencepiece, lambda **k: DebertaV2Config(**_SHAPE, relative_attention=True, **k)),
    "mpnet": (wordpiece, lambda **k: MPNetConfig(**_SHAPE, **k)),
    "electra": (wordpiece, lambda **k: ElectraConfig(**_SHAPE, embedding_size=16, **k)),
    "xlm-roberta": (sentencepiece, lambda **k: XLMRobertaConfig(**_SHAPE, **k)),
}


def build(family: str) -> tuple[Any, Any]:
    """(model, tokenizer) of a family, random but seeded."""
    import torch

    make_tokenizer, make_config = FAMILIES[family]
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    config = make_config(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id)
    model = AutoModelForMaskedLM.from_config(config)
    for name, parameter in model.named_parameters():  # zero biases would hide a bias that is left out
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    return model.eval(), tokenizer
