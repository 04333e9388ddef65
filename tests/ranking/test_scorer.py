from __future__ import annotations

import numpy as np

from kgmlm.core.arrays import Floats
from kgmlm.core.config import Protocol
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.graphs.graph import KnowledgeGraph
from kgmlm.graphs.queries import Queries
from kgmlm.ranking.ranker import PlainScorer


class Latest(PlainScorer):
    """The last entity first."""

    def score(self, queries: Queries) -> Floats:
        return np.tile(np.arange(self.entities, dtype=np.float32), (len(queries), 1))


def test_a_plain_scorer_is_evaluated_as_a_run_is(toy: KnowledgeGraph) -> None:
    scorer = Latest(len(toy.entities), len(toy.relations))
    evaluation = evaluate(scorer, toy, Protocol(split="train", filter=()), batch_size=4)
    triples = toy.splits["train"]
    expected = len(toy.entities) - np.concatenate([triples[:, 0], triples[:, 2]])
    assert evaluation.ranks.of_type("realistic").tolist() == expected.tolist()


def test_some_candidates_have_columns_of_their_own(toy: KnowledgeGraph) -> None:
    scorer, (queries, _) = Latest(len(toy.entities), len(toy.relations)), toy.queries("test")
    scores = np.concatenate([part for _, part in scorer.rank(queries, np.array([7, 2]), batch_size=3)])
    assert scores.tolist() == [[7.0, 2.0]] * len(queries)
