"""What signals say of candidates, over this graph and over wider ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from conftest import vectors_of

from kgmlm.core.arrays import Floats
from kgmlm.core.config import Settings, TextSettings, TrainingSettings, VectorSettings
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.ranker import Ranker
from kgmlm.text.tokenization import SpanTokenizer, Vocabulary
from kgmlm.text.torch_model import SpanModel


def scores_of(ranker: Ranker, queries: Queries, **options: int) -> Floats:
    scores = np.full((len(queries), len(ranker.context.entities)), np.nan, np.float32)
    for rows, part in ranker.rank(queries, **options):  # type: ignore[arg-type]
        scores[rows] = part
    assert np.isfinite(scores).all(), "every query must be scored"
    return scores


def test_a_new_entity_changes_nobodys_score_and_is_scored_by_its_text(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    ranker = make_ranker(TextSettings(neighbors=3))
    twins = EntityTable(["q1", "q2", "q3"], ["Paris", "Atlantis", "Atlantis"])
    graph = toy.extended(twins)
    wider = ranker.for_graph(graph.context)
    queries, _ = toy.queries("test")
    before, after = scores_of(ranker, queries), scores_of(wider, queries)
    np.testing.assert_allclose(after[:, : len(toy.entities)], before, atol=1e-5, rtol=1e-5)
    n = len(toy.entities)
    np.testing.assert_allclose(after[:, n], before[:, toy.entities.index["paris"]], atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(after[:, n + 1], after[:, n + 2], atol=1e-6, rtol=1e-6)


def test_an_entity_vector_is_a_function_of_its_text(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    ranker = make_ranker(vector=VectorSettings(enabled=True, max_length=32))
    graph = toy.extended(EntityTable(["q1", "q2"], ["Atlantis", "Atlantis"], ["a lost city", "a lost city"]))
    fresh, wider = ranker.for_graph(graph.context), ranker.for_graph(graph.context)
    assert wider.vectors is not None
    wider.vectors.adopt(toy.entities, vectors_of(ranker))
    assert wider.vectors.unread == 2
    assert fresh.vectors is not None
    assert fresh.vectors.unread == len(graph.entities)
    np.testing.assert_allclose(vectors_of(wider), vectors_of(fresh), atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(vectors_of(wider)[-1], vectors_of(wider)[-2], atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(vectors_of(wider), axis=1), 1, rtol=1e-5)


def test_over_other_entities_known_names_are_not_tokenized_again(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranker = make_ranker()
    more = EntityTable(["x1", "x2"], ["Atlantis", "New Georgia"], ["a lost island", ""])
    context = toy.extended(more).context
    expected = make_ranker().for_graph(context).reader.names
    assert len(ranker.reader.names) == len(toy.entities)
    read: list[str] = []
    plain = SpanTokenizer.encode_words

    def encode_words(self: SpanTokenizer, texts: list[str]) -> list[list[int]]:
        read.extend(texts)
        return plain(self, texts)

    monkeypatch.setattr(SpanTokenizer, "encode_words", encode_words)
    result = ranker.for_graph(context).reader.names
    assert read == ["Atlantis", "New Georgia"]
    for name in ("token_ids", "offsets", "truncated_N"):
        assert np.array_equal(getattr(result, name), getattr(expected, name))


def test_a_fresh_ranker_adds_signals_as_confident_as_in_training(
    toy: KnowledgeGraph, toy_tokenizer: SpanTokenizer, tiny_model: SpanModel
) -> None:
    """Training divides each signal by its temperature; so does a fresh ranker, up to a common factor."""
    settings = Settings(
        vector=VectorSettings(enabled=True, temperature=0.1), training=TrainingSettings(temperature=0.5)
    )
    names = toy_tokenizer.candidates(toy.entities.column("surface"), None, end_of_name=False)
    vocabulary = Vocabulary.fit(names, toy.seen_N, settings)
    ranker = Ranker.initial(toy.context, toy_tokenizer, tiny_model, settings, vocabulary).unconstrained()
    queries, _ = toy.queries("test")
    for rows, _, signal_scores in ranker.signal_scores(queries):
        trained = signal_scores["likelihood"] / 0.5 + signal_scores["vector"] / 0.1
        np.testing.assert_allclose(ranker.combined(queries[rows], signal_scores) / 0.5, trained, rtol=1e-5)
        assert not np.allclose(signal_scores["vector"], 0, atol=1e-3)
