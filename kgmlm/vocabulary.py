"""What is fixed by the training entities before a model is trained, and frozen with its run.

The span, the tokens of the softmax, and the text that a scratch tokenizer is trained on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kgmlm.config import Settings, TextSettings
from kgmlm.graph import KnowledgeGraph
from kgmlm.kg import BoolArray, IntArray, ModelError, Queries, both_sides
from kgmlm.linearization import get_template
from kgmlm.tokenization import Candidates, auto_span_length

_BATCH = 10_000  # texts that are Python strings at one time


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
    """What a scratch tokenizer reads: training entities and relations only, and the template's words."""
    columns = graph.entities.table.select(["surface", "description"])
    for batch in columns.take(pa.array(np.flatnonzero(graph.seen_N))).to_batches(_BATCH):
        for surface, description in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield surface
            if text.descriptions and description:
                yield description
    template = get_template(text.template)
    for query in of_each_relation(graph):
        yield template(graph.context, query, text.descriptions, ()).text("")


def of_each_relation(graph: KnowledgeGraph) -> Queries:
    """One query of training for each relation and side."""
    train = graph.splits["train"]
    return both_sides(train[np.unique(train[:, 1], return_index=True)[1]])[0]
