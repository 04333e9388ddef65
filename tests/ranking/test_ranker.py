from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kgmlm.core.arrays import Floats
from kgmlm.core.config import RuleSettings, TextSettings, VectorSettings
from kgmlm.core.errors import ConfigError, ModelError
from kgmlm.graphs.entities import RelationTable
from kgmlm.graphs.graph import KnowledgeGraph, TextColumns, build_graph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.ranker import Ranker, StageWeight
from kgmlm.ranking.second_stage import ReverseScoring
from kgmlm.signals.rules import Rules


def scores_of(ranker: Ranker, queries: Queries, **options: int) -> Floats:
    scores = np.full((len(queries), len(ranker.context.entities)), np.nan, np.float32)
    for rows, part in ranker.rank(queries, **options):  # type: ignore[arg-type]
        scores[rows] = part
    assert np.isfinite(scores).all(), "every query must be scored"
    return scores


def test_batch_size_makes_no_difference(make_ranker: Callable[..., Ranker], toy: KnowledgeGraph) -> None:
    ranker, (queries, _) = make_ranker(), toy.queries("train")
    np.testing.assert_allclose(
        scores_of(ranker, queries, batch_size=64),
        scores_of(ranker, queries, batch_size=1),
        atol=1e-5,
        rtol=1e-5,
    )


def test_a_ranker_ranks_by_all_that_it_has_by_text_or_by_one_signal(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    bare = make_ranker()
    ranker = bare.with_signal(Rules.fit(toy, RuleSettings()))
    ranker.mixture = ranker.mixture.evenly("rules", 2.0)
    ranker = ranker.replace(stages={"reverse": ReverseScoring(StageWeight(3, 1.0))})
    assert ranker.by("all") is ranker
    assert (ranker.by("text").mixture.signals, list(ranker.by("text").stages)) == (
        ("likelihood",),
        ["reverse"],
    )
    assert (ranker.by("rules").mixture.signals, ranker.by("rules").stages) == (("rules",), {})
    with pytest.raises(ConfigError, match=r"has no rules; `kgmlm tune RUN --add rules` trains one"):
        bare.by("rules")
    with pytest.raises(ConfigError, match=r"has no entity vectors; train with --set vector\.enabled=true"):
        bare.by("vector")
    with pytest.raises(ConfigError, match=r"scores are all, text, likelihood, .* or unseen, not 'name'"):
        bare.by("name")


def test_a_restricted_softmax_is_frozen_on_training_tokens(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    ranker = make_ranker(softmax="entities")
    tokens = ranker.reader.vocabulary.softmax_tokens
    assert tokens is not None
    seen = np.flatnonzero(toy.seen_N)
    assert set(tokens) == set(ranker.reader.names.take(seen).token_ids)
    unseen = ranker.reader.names.take(np.flatnonzero(~toy.seen_N))
    assert set(unseen.token_ids) - set(tokens), "the unseen names have tokens of their own"
    scores_of(ranker, toy.queries("test")[0])


def test_the_span_is_fixed_by_training_entities(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    ranker = make_ranker()
    seen = np.flatnonzero(toy.seen_N)
    assert ranker.reader.vocabulary.span_length == ranker.reader.names.take(seen).lengths_N.max()
    assert make_ranker(span_length=2).reader.vocabulary.span_length == 2
    assert make_ranker(span_length=2).reader.names.truncated_N.any()


@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize("neighbors", [0, 99])
def test_scores_depend_on_text_alone(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, neighbors: int, vectors: bool
) -> None:
    """Renaming labels and so reordering ids, and emptying the test split, changes no score."""
    ranker = make_ranker(TextSettings(neighbors=neighbors), VectorSettings(enabled=vectors))
    rename = {label: f"x{(i * 7) % 31:02}" for i, label in enumerate(toy.entities.column("label"))}
    texts = TextColumns(
        names={rename[e.label]: e.name for e in map(toy.entities.__getitem__, range(len(toy.entities)))},
        descriptions={
            rename[e.label]: e.description for e in map(toy.entities.__getitem__, range(len(toy.entities)))
        },
        relations={r.label: r.name for r in toy.relations},
    )
    train = [(rename[h], r, rename[t]) for h, r, t in toy.labeled(toy.splits["train"])]
    other = build_graph("renamed", {"train": train}, texts, extra_entities=rename.values())
    twin = ranker.for_graph(other.context)
    queries, _ = toy.queries("train")
    there = np.array([other.entities.index[rename[label]] for label in toy.entities.column("label")])
    moved = Queries(there[queries.entity_B], queries.relation_B, queries.tail_B)
    np.testing.assert_allclose(
        scores_of(twin, moved)[:, there], scores_of(ranker, queries), atol=1e-5, rtol=1e-5
    )


def test_a_length_that_the_model_has_no_positions_for_is_refused(make_ranker: Callable[..., Ranker]) -> None:
    with pytest.raises(ModelError, match="64 positions"):
        make_ranker(TextSettings(max_length=65))


def test_progress_counts_every_query_once(make_ranker: Callable[..., Ranker], toy: KnowledgeGraph) -> None:
    counts: list[int] = []
    queries, _ = toy.queries("train")
    list(make_ranker().rank(queries, batch_size=7, advance=counts.append))
    assert sum(counts) == len(queries)


def test_relations_weigh_vectors_by_themselves(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    ranker = make_ranker(vector=VectorSettings(enabled=True))
    queries, _ = toy.queries("test")
    alone = {name: scores_of(ranker.by(name), queries) for name in ("likelihood", "vector")}
    table_R2 = np.arange(2.0 * len(toy.relations)).reshape(-1, 2)
    weighed = ranker.replace(mixture=ranker.mixture.weighed("vector", table_R2, 0.5))
    weight_B = np.array([table_R2[q.relation, int(q.target == "head")] for q in queries])
    expected = alone["likelihood"] + weight_B[:, None] * alone["vector"]
    np.testing.assert_allclose(scores_of(weighed, queries), expected, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(
        scores_of(weighed.by("vector"), queries), alone["vector"], atol=1e-5, rtol=1e-5
    )


def test_weights_of_relations_go_along_to_another_graph(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    ranker = make_ranker(vector=VectorSettings(enabled=True))
    table_R2 = np.arange(2.0 * len(toy.relations)).reshape(-1, 2)
    ranker.mixture = ranker.mixture.weighed("vector", table_R2, 1.0)
    names = [toy.relations[2].label, "unheard of", toy.relations[0].label]
    triples = np.array([[0, 0, 1], [1, 1, 2], [2, 2, 3]])
    other = KnowledgeGraph("other", toy.entities, RelationTable(names, names), {"train": triples}, {})
    assert ranker.for_graph(other.context).mixture.tables["vector"].tolist() == [[4, 5], [1, 1], [0, 1]]


def test_a_score_is_the_weighted_sum_of_what_signals_say(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    ranker = make_ranker(vector=VectorSettings(enabled=True))
    queries, _ = toy.queries("test")
    ids = np.array([4, 1, 7])
    ranker.mixture = ranker.mixture.evenly("vector", 3.0)
    both = scores_of(ranker, queries)
    ((rows, _, signal_scores),) = ranker.signal_scores(queries, ranker.pool(ids))
    expected = signal_scores["likelihood"] + 3 * signal_scores["vector"]
    np.testing.assert_allclose(both[rows][:, ids], expected, atol=1e-5, rtol=1e-5)
    for name, part in signal_scores.items():
        np.testing.assert_allclose(
            scores_of(ranker.by(name), queries)[rows][:, ids], part, atol=1e-5, rtol=1e-5
        )
    np.testing.assert_array_equal(scores_of(ranker, queries), both)  # asking by one signal changes nobody
    with pytest.raises(ConfigError, match="no entity vectors"):
        make_ranker().by("vector")
    with pytest.raises(ConfigError, match="not 'names'"):
        ranker.by("names")
