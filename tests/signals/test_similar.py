"""Similar entities and similar answers: what the entities with the most similar texts have."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Cli, refused
from signal_tests import SignalTests

import kgmlm
from kgmlm.core.arrays import Floats
from kgmlm.core.config import BiencoderSettings, VectorSettings
from kgmlm.core.errors import RunError
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries, Query
from kgmlm.ranking.ranker import Ranker
from kgmlm.runs.opened import open_folder, tuned_ranker
from kgmlm.signals import similar
from kgmlm.signals.base import Pool
from kgmlm.signals.biencoder import Biencoder
from kgmlm.signals.similar import Similar, SimilarAnswers, SimilarEntities
from kgmlm.text.reader import Reading
from kgmlm.training.states import neutral_weights
from kgmlm.training.tune import check_needs

#: what a text is about, as an angle: three places around 0 degrees, three people around 90
ANGLES = {
    "oslo": 0,
    "bergen": 5,
    "turku": 20,
    "ada": 90,
    "bob": 95,
    "cid": 110,
    "norway": 200,
    "finland": 230,
}
TRAIN = [
    ("oslo", "in", "norway"),
    ("turku", "in", "finland"),
    ("ada", "from", "norway"),
    ("bob", "from", "finland"),
]


class OfTexts(SignalTests):
    @pytest.fixture
    def ranker(self, make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, tiny_encoder: str) -> Ranker:
        head = BiencoderSettings(dimension=8, steps=3, precision="fp32", encoder=tiny_encoder)
        ranker = make_ranker(vector=VectorSettings(enabled=True))
        for signal in (Biencoder.fit(toy, head), self.fitted(toy, tiny_encoder)):
            ranker = ranker.with_signal(signal)
        return ranker.replace(mixture=ranker.mixture.evenly(self.kind.name, 0.5))


class TestSimilarEntities(OfTexts):
    kind = SimilarEntities


class TestSimilarAnswers(OfTexts):
    kind = SimilarAnswers


@pytest.fixture
def graph() -> KnowledgeGraph:
    return KnowledgeGraph.from_triples(TRAIN, valid=[("bergen", "in", "norway"), ("cid", "from", "finland")])


def texts_of(graph: KnowledgeGraph) -> Floats:
    angles = np.radians([ANGLES[label] for label in graph.entities.column("label")])
    return np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)


def scores(
    signal: Similar, graph: KnowledgeGraph, entity: str, relation: str, tail: bool
) -> dict[str, float]:
    """The scores of all entities by label."""
    at = graph.entities.index[entity], graph.relations.index[relation]
    queries = Queries(np.array([at[0]]), np.array([at[1]]), np.array([tail]))
    (scores_N,) = signal.with_texts(lambda: texts_of(graph)).score(
        Reading(queries), Pool(len(graph.entities))
    )
    return dict(zip(graph.entities.column("label"), scores_N.tolist(), strict=True))


def test_what_the_most_similar_entities_have_scores_best(graph: KnowledgeGraph) -> None:
    by_label = scores(SimilarEntities(graph.context), graph, "bergen", "in", True)
    assert by_label["norway"] > by_label["finland"] > 0, "Oslo's text is nearer than Turku's"
    assert {label for label, score in by_label.items() if score} == {"norway", "finland"}
    assert by_label["norway"] <= np.log1p(1 / similar.SMALLEST)


def test_an_entity_is_no_neighbor_of_itself(graph: KnowledgeGraph) -> None:
    by_label = scores(SimilarEntities(graph.context), graph, "oslo", "in", True)
    assert by_label["norway"] == 0, "only Oslo itself has it"
    assert by_label["finland"] > 0


def test_entities_without_triples_are_no_neighbors(graph: KnowledgeGraph) -> None:
    ids, unseen_N = np.arange(len(graph.entities)), graph.context.unseen_N
    signal = SimilarEntities(graph.context).with_texts(lambda: texts_of(graph))
    _, near_BK = signal.neighbors(ids)
    assert not unseen_N[near_BK].any()
    assert (near_BK != ids[:, None]).all()


def test_answers_like_known_ones_score_by_the_likeness_of_their_texts(graph: KnowledgeGraph) -> None:
    by_label = scores(SimilarAnswers(graph.context), graph, "norway", "in", False)
    assert by_label["bergen"] == pytest.approx(np.cos(np.radians(5)), abs=1e-6)
    assert by_label["ada"] == pytest.approx(0, abs=1e-6)
    assert by_label["oslo"] == 0, "it is the only answer, and is not compared with itself"
    nothing = scores(SimilarAnswers(graph.context), graph, "oslo", "from", True)
    assert set(nothing.values()) == {0}, "training answers it with nothing"


def test_the_nearest_of_many_answers_count() -> None:
    count = 250
    graph = KnowledgeGraph.from_triples([(f"e{i}", "r", "hub") for i in range(count)])
    rng = np.random.default_rng(0)
    texts_ND = rng.normal(size=(count + 1, 8)).astype(np.float32)
    texts_ND /= np.linalg.norm(texts_ND, axis=1, keepdims=True)
    hub = graph.entities.index["hub"]
    queries = Queries(np.array([hub]), np.array([0]), np.array([False]))
    signal = SimilarAnswers(graph.context, lambda: texts_ND)
    ((_, answers),) = signal._known(queries)
    assert len(answers) == similar.ANSWERS
    (scores_N,) = signal.score(Reading(queries), Pool(count + 1))
    for i in (0, 7, count):
        others = answers[answers != i]
        best = np.sort(texts_ND[others] @ texts_ND[i])[-similar.NEAREST :]
        assert scores_N[i] == pytest.approx(best.mean(), abs=1e-5)


def test_they_say_why(graph: KnowledgeGraph) -> None:
    at, of = graph.entities.index, graph.relations.index
    entities, answers = (
        kind(graph.context, lambda: texts_of(graph)) for kind in (SimilarEntities, SimilarAnswers)
    )
    (sentence,) = entities.because(graph.context, Query(at["bergen"], of["in"], "tail"), at["norway"], 1.0)
    assert sentence == "oslo in norway (the texts of oslo and bergen have a cosine of 1.00)"
    (sentence,) = answers.because(graph.context, Query(at["norway"], of["in"], "head"), at["turku"], 1.0)
    assert sentence == "oslo in norway (the texts of oslo and turku have a cosine of 0.94)"
    nobody = Query(at["bergen"], of["in"], "tail")
    assert entities.because(graph.context, nobody, at["ada"], 1.0) == ()
    assert answers.because(graph.context, nobody, at["norway"], 1.0) == ()


def test_without_texts_it_says_what_is_missing(graph: KnowledgeGraph) -> None:
    with pytest.raises(RunError, match="known by the texts of a bi-encoder"):
        SimilarEntities(graph.context).score(Reading(Queries.of([Query(0, 0, "tail")])), Pool(3))


def test_an_unseen_candidate_is_neutral_beside_them(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, tiny_encoder: str
) -> None:
    """The neutral weight compares with an entity that the graph does not have, and that has no text."""
    head = BiencoderSettings(dimension=8, steps=3, encoder=tiny_encoder)
    ranker = make_ranker()
    for signal in (Biencoder.fit(toy, head), SimilarEntities.fit(toy)):
        ranker = ranker.with_signal(signal)
    mixture = ranker.mixture.evenly("biencoder", 1.0).evenly("similar_entities", 1.0)
    weights = neutral_weights(ranker, toy, toy.queries("valid")[0], mixture)
    assert weights.averages["unseen"] >= 0


@pytest.mark.slow
def test_a_run_needs_the_bi_encoder_beside_them(
    cli: Cli, toy_run: Path, tiny_encoder: str, tmp_path: Path
) -> None:
    path = shutil.copytree(toy_run, tmp_path / "run")
    refused(cli("tune", path, "--add", "similar_entities"), "similar entities need the bi-encoder")
    head = (f"biencoder.encoder={tiny_encoder}", "biencoder.steps=3", "biencoder.precision=fp32")
    kgmlm.tune(path, add=["biencoder", "similar_entities", "similar_answers"], settings=head, progress=False)
    run = open_folder(path)
    assert {"similar_entities", "similar_answers"} <= set(run.tuned.mixture.averages)
    alone = tuned_ranker(run, "cpu", "similar_entities")
    assert cli("evaluate", path, "--scores", "similar_answers", "-q").returncode == 0
    assert alone.mixture.signals == ("similar_entities",)
    refused(
        cli("tune", path, "--drop", "biencoder"),
        "similar entities and similar answers need the bi-encoder",
        "--drop",
    )
    check_needs(run, [], ["biencoder", "similar_entities", "similar_answers"])
    kgmlm.tune(path, drop=["biencoder", "similar_entities", "similar_answers"], progress=False)
    assert not open_folder(path).has_signal("similar_answers")
