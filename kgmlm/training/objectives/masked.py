"""The objective "masked": training entities and training triples written out, some of the tokens hidden.

It adapts a masked LM to the texts of a graph before another run begins with it.

What is hidden is a policy: a function of a text's words that is named in :data:`POLICIES`. Entities and
triples outside training are never read.

Shapes: B texts, T tokens, M hidden tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from kgmlm.core.arrays import BoolArray, FloatArray, IntArray
from kgmlm.core.config import MaskingSettings
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.ranker import Ranker
from kgmlm.text.linearization import entity_text
from kgmlm.text.reader import SpanOutput
from kgmlm.text.tokenization import Candidates, Encoded, MaskedTexts
from kgmlm.training.objectives.streams import BatchStream, Objective, Stateless, Task

NGRAMS = (0.4, 0.3, 0.2, 0.1)  # chances of one to four words (Cui et al., 2020, MacBERT)
REPLACED, RANDOM = 0.8, 0.1  # of the hidden tokens; the rest stay as they are (Devlin et al., 2019)
_ROWS = 2048  # tokens compared with all others at once


@dataclass(frozen=True)
class Text:
    """One text as ids.

    Attributes:
        words: (start, end) of each; special tokens are in none.
        answer: (start, end) of a triple's last name.
    """

    input_ids: list[int]
    words: list[tuple[int, int]]
    answer: tuple[int, int] | None = None


Policy = Callable[[Text, int, np.random.Generator], list[int]]


def random_tokens(text: Text, budget: int, rng: np.random.Generator) -> list[int]:
    """Single tokens anywhere."""
    tokens = [i for start, end in text.words for i in range(start, end)]
    return sorted(rng.choice(tokens, min(budget, len(tokens)), replace=False).tolist())


def whole_words(text: Text, budget: int, rng: np.random.Generator) -> list[int]:
    """All tokens of some words."""
    chosen: set[int] = set()
    for word in rng.permutation(len(text.words)):
        if len(chosen) >= budget:
            break
        chosen.update(range(*text.words[word]))
    return sorted(chosen)


def word_ngrams(text: Text, budget: int, rng: np.random.Generator) -> list[int]:
    """One to four words in a row, as often as it takes."""
    chosen: set[int] = set()
    while len(chosen) < budget:
        count = 1 + int(rng.choice(len(NGRAMS), p=NGRAMS))
        first = int(rng.integers(len(text.words)))
        for word in text.words[first : first + count]:
            chosen.update(range(*word))
    return sorted(chosen)


def entity_span(text: Text, budget: int, rng: np.random.Generator) -> list[int]:
    """The answer of a triple, as training asks for it; words of a text without one."""
    return list(range(*text.answer)) if text.answer else whole_words(text, budget, rng)


POLICIES: dict[str, Policy] = {
    "random": random_tokens,
    "whole-word": whole_words,
    "ngram": word_ngrams,
    "similar": word_ngrams,
    "entity": entity_span,
}


class MaskedTextSource:
    """All texts of a training graph, by number: its entities, then its triples, asked for by either side.

    Args:
        graph: of which training triples and the entities in them are read, and nothing else.
    """

    def __init__(self, ranker: Ranker, graph: KnowledgeGraph, settings: MaskingSettings, seed: int) -> None:
        self.ranker = ranker
        self.settings = settings
        self.entities = np.flatnonzero(graph.seen_N)
        h, r, t = graph.splits["train"].T
        tail_S = np.random.default_rng(seed).random(len(h)) < 0.5
        self.queries = Queries(np.where(tail_S, h, t), r, tail_S)
        self.answers = np.where(tail_S, t, h)
        self.surfaces = graph.entities.table.column("surface")

    def __len__(self) -> int:
        return len(self.entities) + len(self.queries)

    @cached_property
    def names(self) -> Candidates:
        """Tokens of the names."""
        return self.ranker.reader.tokenizer.candidates(
            self.surfaces, self.ranker.reader.vocabulary.span_length, False
        )

    @cached_property
    def _begins_V(self) -> BoolArray:
        return self.ranker.reader.tokenizer.begins_word_V

    def encode(self, numbers: IntArray, rng: np.random.Generator) -> list[Text]:
        """Encode some texts, in the order asked for; ``rng`` draws which neighbors a triple's text leaves
        out.
        """
        texts: list[Text | None] = [None] * len(numbers)
        count = len(self.entities)
        tokenizer, settings = self.ranker.reader.tokenizer, self.ranker.reader.settings.text
        of_entities = np.flatnonzero(numbers < count)
        written = [
            entity_text(self.ranker.context, i, settings.descriptions)
            for i in self.entities[numbers[of_entities]].tolist()
        ]
        for at, encoded in zip(
            of_entities, tokenizer.encode_queries(written, 0, settings.max_length), strict=True
        ):
            texts[at] = self._text(encoded, [])
        of_triples = np.flatnonzero(numbers >= count)
        rows = numbers[of_triples] - count
        written = self.ranker.reader.linearize(self.queries[rows], rng)
        lengths = self.names.lengths_N[self.answers[rows]]
        for length in np.unique(lengths):
            alike = np.flatnonzero(lengths == length)
            some = tokenizer.encode_queries([written[i] for i in alike], int(length), settings.max_length)
            for i, encoded in zip(alike, some, strict=True):
                texts[of_triples[i]] = self._text(encoded, self.names.tokens(self.answers[rows[i]]).tolist())
        return [text for text in texts if text is not None]

    def _text(self, encoded: Encoded, answer: list[int]) -> Text:
        """A text with its hole filled, and where its words are."""
        tokenizer = self.ranker.reader.tokenizer
        ids, start = list(encoded.input_ids), encoded.span_start
        ids[start : start + len(answer)] = answer
        first, end = len(tokenizer.prefix), len(ids) - len(tokenizer.suffix)
        starts = [i for i in range(first, end) if i in (first, start) or self._begins_V[ids[i]]]
        words = list(zip(starts, [*starts[1:], end], strict=True))
        return Text(ids, words, (start, start + len(answer)) if answer else None)

    def mask(self, texts: Sequence[Text], rng: np.random.Generator) -> MaskedTexts:
        """Hide tokens of B texts by the policy, and pad them."""
        tokenizer, policy = self.ranker.reader.tokenizer, self.settings.policy
        batch = tokenizer.collate([Encoded(t.input_ids, 0, 0, 0) for t in texts]).to("cpu")
        input_ids_BT = batch.input_ids_BT
        rows, columns, whole = [], [], []
        for row, text in enumerate(texts):
            tokens = sum(end - start for start, end in text.words)
            hidden = (
                POLICIES[policy](text, max(1, round(self.settings.share * tokens)), rng) if tokens else []
            )
            rows += [row] * len(hidden)
            columns += hidden
            whole += [policy == "entity" and text.answer is not None] * len(hidden)
        rows_M, columns_M = torch.tensor(rows), torch.tensor(columns)
        labels_M = input_ids_BT[rows_M, columns_M]
        chance_M = torch.from_numpy(rng.random(len(rows)))
        chance_M[torch.tensor(whole, dtype=torch.bool)] = 0.0  # an answer is hidden as training hides it
        replacement_M = torch.full_like(labels_M, tokenizer.mask_id)
        if policy == "similar":
            replacement_M = self.similar_V[labels_M]
        drawn = torch.from_numpy(rng.choice(self.words_W, len(rows)))
        replacement_M = torch.where(chance_M < REPLACED, replacement_M, drawn)
        kept_M = chance_M >= REPLACED + RANDOM
        input_ids_BT[rows_M, columns_M] = torch.where(kept_M, labels_M, replacement_M)
        return MaskedTexts(input_ids_BT, batch.attention_mask_BT, rows_M, columns_M, labels_M)

    @cached_property
    def words_W(self) -> IntArray:
        """Tokens that names of training entities have: what a random replacement is drawn from."""
        return np.unique(self.names.take(self.entities).token_ids)

    @cached_property
    def similar_V(self) -> torch.Tensor:
        """For each token of the vocabulary the one of :attr:`words_W` that is most like it, but not itself.

        As MacBERT replaces words by similar ones, told here by the cosine of the model's own embeddings as
        they were before the adaptation. A word's beginning stays one.
        """
        weight_VD = self.ranker.reader.model.decoder[0].detach().float().cpu()
        weight_VD = torch.nn.functional.normalize(weight_VD, dim=-1)
        words_W = torch.from_numpy(self.words_W)
        begins_V = torch.from_numpy(self._begins_V)
        found = []
        for ids in torch.arange(len(begins_V)).split(_ROWS):  # a model may have more rows than tokens
            cosines = weight_VD[ids] @ weight_VD[words_W].T
            cosines[ids[:, None] == words_W[None]] = -2.0
            cosines[begins_V[ids][:, None] != begins_V[words_W][None]] -= 2.0
            found.append(words_W[cosines.argmax(1)])
        return torch.cat(found)


class TextStream(BatchStream[Text, MaskedTexts]):
    """Micro-batches of masked texts: training entities and training triples."""

    def __init__(self, task: Task) -> None:
        masking = task.ranker.reader.settings.masking
        self.source = MaskedTextSource(task.ranker, task.graph, masking, task.settings.seed)
        super().__init__(task, np.arange(len(self.source)))

    def _encode(self, rows: IntArray, rng: np.random.Generator) -> list[Text]:
        return self.source.encode(rows, rng)

    def _length(self, encoded: Text) -> int:
        return len(encoded.input_ids)

    def _batch(self, rows: IntArray, encoded: list[Text], chances: FloatArray, mine: IntArray) -> MaskedTexts:
        """Hide tokens, drawn by the share's own numbers in [0, 1)."""
        rng = np.random.default_rng((chances[mine] * 2**32).astype(np.int64))
        return self.source.mask([encoded[i] for i in mine], rng)


class MaskedLosses(Stateless):
    """Cross-entropy of the hidden tokens, each alike."""

    def __init__(self, task: Task, stream: TextStream) -> None:
        self.ranker = task.ranker

    def __call__(self, model: Callable[..., SpanOutput], batch: MaskedTexts) -> torch.Tensor:
        """The loss of one micro-batch, a scalar."""
        batch = batch.to(self.ranker.reader.model.device)
        weight_VD, bias_V = self.ranker.reader.model.decoder
        hidden_MD = model(batch).hidden_BLD[0]
        logits_MV = torch.nn.functional.linear(hidden_MD, weight_VD.float(), bias_V.float())
        return torch.nn.functional.cross_entropy(logits_MV, batch.labels_M)


MASKED = Objective(TextStream, MaskedLosses, keeps_last=True)
