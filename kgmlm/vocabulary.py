"""What is fixed by the training entities before a model is trained, and frozen with its run.

The span, the tokens of the softmax, and the text that a scratch tokenizer is trained on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kgmlm.config import Settings, TextSettings
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import BoolArray, IntArray, ModelError, Queries
from kgmlm.linearization import get_template
from kgmlm.tokenization import SpanTokenizer, auto_span_length


@dataclass(frozen=True)
class Vocabulary:
    """What is fixed by the training entities and frozen with a run.

    Attributes:
        span_length: masks in the hole.
        softmax_tokens: sorted token ids that the softmax runs over; None is the whole vocabulary.
    """

    span_length: int
    softmax_tokens: IntArray | None

    @classmethod
    def fit(
        cls, tokenizer: SpanTokenizer, surfaces: Sequence[str], seen_N: BoolArray, settings: Settings
    ) -> Vocabulary:
        """Fix the span length and the softmax's tokens from the entities seen in training.

        A span that fits the names takes half of a query's tokens at most; longer names are cut to it.
        """
        scoring = settings.scoring
        seen = [s for s, is_seen in zip(surfaces, seen_N, strict=True) if is_seen]
        names = tokenizer.candidates(seen, None, scoring.end_of_name)
        length = scoring.span_length
        span = (
            auto_span_length(names.lengths_N, settings.text.max_length // 2)
            if length == "auto"
            else int(length)
        )
        if span < 1:
            raise ModelError(f"scoring.span_length must be 1 or more, not {span}")
        if scoring.softmax == "vocabulary":
            return cls(span, None)
        fitting = tokenizer.candidates(seen, span, scoring.end_of_name)
        return cls(span, np.unique(fitting.token_ids))


def scratch_texts(graph: KnowledgeGraph, text: TextSettings) -> Iterator[str]:
    """What a scratch tokenizer reads: training entities and relations only, and the template's words."""
    surfaces, descriptions = (graph.entities.column(c) for c in ("surface", "description"))
    for entity in np.flatnonzero(graph.seen_N):
        yield surfaces[entity]
        if text.descriptions and descriptions[entity]:
            yield descriptions[entity]
    template = get_template(text.template)
    for query in of_each_relation(graph):
        yield template(graph.context, query, text.descriptions, ()).text("")


def of_each_relation(graph: KnowledgeGraph) -> Queries:
    """One query of training for each relation and side."""
    _, first = np.unique(graph.splits["train"][:, 1], return_index=True)
    return graph.queries("train")[0][np.concatenate([first, first + len(graph.splits["train"])])]
