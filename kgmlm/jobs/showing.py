"""Show what a model sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kgmlm import runs
from kgmlm.cards import card_names
from kgmlm.config import load_settings
from kgmlm.datasets import load_graph
from kgmlm.kg import ConfigError, Queries
from kgmlm.linearization import linearize as linearize_queries
from kgmlm.packs import find_pack, is_pack
from kgmlm.resolver import Resolver
from kgmlm.run import Run, path_of
from kgmlm.tokenization import SpanTokenizer
from kgmlm.tokenizer_sources import load_tokenizer, train_tokenizer
from kgmlm.vocabulary import Vocabulary, scratch_texts


@dataclass(frozen=True)
class Linearized:
    """A query as the model sees it.

    Attributes:
        text: for people.
        pieces: the text of each token.
        span_start, span_length: where the hole is, in tokens.
        vector: whether a mask for the query's vector follows the hole.
        tokens_cut: how many did not fit.
    """

    text: str
    input_ids: Sequence[int]
    tokens: Sequence[str]
    pieces: Sequence[str]
    span_start: int
    span_length: int
    vector: bool
    tokens_cut: int

    def as_json(self) -> dict[str, Any]:
        """The object that ``kgmlm linearize --json`` prints."""
        return asdict(self)


def linearize(
    source: Run | str | Path,
    relation: str,
    *,
    head: str | None = None,
    tail: str | None = None,
    model: str | None = None,
    template: str | None = None,
    skip_header: bool = False,
) -> Linearized:
    """The exact text and tokens that the model sees for a query.

    Args:
        source: a run or a pack, a built-in dataset, or a dataset folder.
        model, template: whose tokenizer ("scratch" by default), and which template, for a dataset.

    Raises:
        QueryError: for an unknown or ambiguous entity or relation.
        ConfigError: when a model or a template is given for a run, which has its own.
    """
    path = path_of(source)
    is_run = (path / "run.json").is_file() or is_pack(path)
    if is_run or (path.name not in card_names() and find_pack(path) is not None):
        run = runs.open_run(path_of(source))
        for option, value in (("--template", template), ("--model", model)):
            if value is not None:
                raise ConfigError(f"{option} is for datasets; a run has its own")
        graph, settings, vocabulary = run.graph, run.settings, run.vocabulary
        tokenizer = load_tokenizer(run.model_folder)
    else:
        graph = load_graph(str(source), skip_header=skip_header)
        settings = load_settings(None, [f"text.template={template}"] if template else [])
        if model in (None, "scratch"):
            texts = scratch_texts(graph, settings.text)
            tokenizer = SpanTokenizer(train_tokenizer(texts, settings.scratch.vocabulary))
        else:
            from kgmlm.watching import quiet_transformers

            quiet_transformers()
            tokenizer = load_tokenizer(model)
        surfaces = graph.entities.table.column("surface")
        names = tokenizer.candidates(surfaces, None, settings.scoring.end_of_name)
        vocabulary = Vocabulary.fit(names, graph.seen_N, settings)
    query = Resolver(graph).query(relation, head, tail)
    (text,) = linearize_queries(graph.context, Queries.of([query]), settings.text)
    (encoded,) = tokenizer.encode_queries(
        [text], vocabulary.span_length, settings.text.max_length, vector=settings.vector.enabled
    )
    return Linearized(
        tokenizer.render(text, encoded),
        encoded.input_ids,
        tokenizer.tokens(encoded.input_ids),
        tokenizer.texts(encoded.input_ids),
        encoded.span_start,
        encoded.span_length,
        encoded.vector,
        encoded.cut,
    )
