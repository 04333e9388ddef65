from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from kgmlm.config import Protocol
from kgmlm.evaluation import Evaluation, evaluate
from kgmlm.interop import to_factory, to_pykeen
from kgmlm.kg import ConfigError, DataError, KnowledgeGraph, Queries, Target
from kgmlm.ranker import Ranker
from kgmlm.tokenization import Candidates


class FakeRanker:
    """A double: scores are a function of the query and the entity alone, with ties on purpose."""

    def __init__(self, n: int, kind: str) -> None:
        self.n, self.kind = n, kind
        offsets = np.arange(n + 1)
        self.candidates = Candidates(np.zeros(n, np.int64), offsets, np.zeros(n, np.bool_))

    def score(self, queries: Queries) -> torch.Tensor:
        if self.kind == "constant":
            return torch.zeros(len(queries), self.n)
        seed = queries.entity_B * 7919 + queries.relation_B * 104729 + queries.tail_B
        ids = np.arange(self.n)
        return torch.from_numpy(((seed[:, None] * 31 + ids * ids * 17) % 11).astype(np.float32))

    def rank(self, queries: Queries, batch_size: int = 64, advance: Any = None) -> Iterator[Any]:
        order = np.random.default_rng(0).permutation(len(queries))
        for start in range(0, len(order), 13):
            rows = order[start : start + 13]
            yield rows, self.score(queries[rows])
            advance(len(rows))


def run(graph: KnowledgeGraph, kind: str = "tied", **protocol: Any) -> Evaluation:
    ranker: Any = FakeRanker(len(graph.entities), kind)
    return evaluate(ranker, graph, Protocol.model_validate(protocol))


def pykeen_metrics(graph: KnowledgeGraph, kind: str) -> dict[str, float]:
    """PyKEEN's own evaluator on the same scores."""
    from pykeen.evaluation import RankBasedEvaluator

    ranker = FakeRanker(len(graph.entities), kind)
    evaluator = RankBasedEvaluator()
    triples = torch.from_numpy(graph.splits["test"])
    known = set(map(tuple, graph.all_triples.tolist()))
    for batch in triples.split(16):
        at = torch.arange(len(batch))
        sides: tuple[tuple[Target, int], ...] = (("head", 0), ("tail", 2))
        for side, column in sides:
            other = 2 - column
            queries = Queries(
                batch[:, other].numpy(), batch[:, 1].numpy(), np.full(len(batch), side == "tail", np.bool_)
            )
            scores = ranker.score(queries)
            true = scores[at, batch[:, column], None].clone()
            for row, triple in enumerate(batch.tolist()):
                for entity in range(len(graph.entities)):
                    rival = list(triple)
                    rival[column] = entity
                    if tuple(rival) in known and entity != triple[column]:
                        scores[row, entity] = float("nan")
            evaluator.process_scores_(hrt_batch=batch, target=side, scores=scores, true_scores=true)
    return dict(evaluator.finalize().to_flat_dict())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["tied", "constant"])
@pytest.mark.parametrize("name", ["toy", "umls"])
def test_metrics_are_those_of_pykeen(real: Callable[[str], KnowledgeGraph], name: str, kind: str) -> None:
    graph = real(name)
    ours = run(graph, kind).report["metrics"]
    theirs = pykeen_metrics(graph, kind)
    shared = [k for k in ours if k != "mrr"]
    assert len(shared) > 70
    for key in shared:
        assert key in theirs, f"PyKEEN has no key {key}"
        assert ours[key] == pytest.approx(theirs[key], rel=1e-5, abs=1e-6), key


@pytest.mark.filterwarnings("ignore")
def test_to_pykeen_gives_the_same_numbers(toy: KnowledgeGraph) -> None:
    evaluation = run(toy)
    results = to_pykeen(evaluation.ranks, evaluation.tail_B)
    metrics = evaluation.report["metrics"]
    assert results.get_metric("mrr") == pytest.approx(metrics["mrr"])
    flat = results.to_flat_dict()
    for key, value in flat.items():
        if key in metrics:
            assert value == pytest.approx(metrics[key], rel=1e-6), key
    assert type(results)(dict(flat)).data == results.data  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore")
def test_the_comparable_column_is_what_pykeen_gets_from_its_own_loading(
    toy: KnowledgeGraph, tmp_path: Path
) -> None:
    """PyKEEN drops triples with unseen entities and ranks among training entities."""
    from pykeen.evaluation import RankBasedEvaluator

    import kgmlm.interop as interop

    class Double:
        graph = toy
        ranker = FakeRanker(len(toy.entities), "tied")

    double: Any = Double()
    double.ranker.rank_original = double.ranker.rank
    double.ranker.rank = lambda queries: double.ranker.rank_original(queries, advance=lambda n: None)
    model = interop.to_pykeen_model(double)
    seen = np.flatnonzero(toy.seen_N)
    keep = toy.seen_N[toy.splits["test"][:, [0, 2]]].all(1)
    results = RankBasedEvaluator().evaluate(
        model,
        torch.from_numpy(toy.splits["test"][keep]),
        batch_size=8,
        use_tqdm=False,
        additional_filter_triples=[to_factory(toy, s).mapped_triples for s in ("train", "valid")],
        restrict_entities_to=seen.tolist(),
        pre_filtered_triples=False,
    )
    ours = run(toy).report["pykeen_comparable"]["metrics"]
    assert ours["both.realistic.count"] == 2 * keep.sum() < 2 * len(toy.splits["test"])
    for key in ("both.realistic.inverse_harmonic_mean_rank", "head.pessimistic.arithmetic_mean_rank"):
        assert ours[key] == pytest.approx(results.to_flat_dict()[key], rel=1e-5)


def test_candidates_of_the_training_set_are_the_comparable_column(toy: KnowledgeGraph) -> None:
    everything, train = run(toy), run(toy, candidates="train")
    assert train.report["metrics"] == everything.report["pykeen_comparable"]["metrics"]
    assert train.report["triples_left_out"] == 4
    assert train.report["candidates"]["count"] == 28


def test_a_constant_scorer_gets_chance(real: Callable[[str], KnowledgeGraph]) -> None:
    evaluation = run(real("umls"), "constant")
    chance = (2 / (evaluation.ranks.candidates_B + 1)).mean()
    assert evaluation.report["metrics"]["mrr"] == pytest.approx(chance)
    assert evaluation.report["metrics"]["mrr"] < 0.03


@pytest.mark.parametrize(("name", "ranks"), [("wn18rr", 6268), ("fb15k237", 40932)])
def test_no_triple_is_dropped(real: Callable[[str], KnowledgeGraph], name: str, ranks: int) -> None:
    graph = real(name)
    evaluation = run(graph, "constant", max_triples=50)
    assert evaluation.report["metrics"]["both.realistic.count"] == 100
    assert 2 * len(graph.triples("test")) == ranks


def test_every_rank_is_the_one_of_its_own_triple(toy: KnowledgeGraph) -> None:
    evaluation = run(toy)
    ranker = FakeRanker(len(toy.entities), "tied")
    queries, answers = toy.queries("test")
    scores = ranker.score(queries)
    known = set(map(tuple, toy.all_triples.tolist()))
    for i, (query, answer) in enumerate(zip(queries, answers, strict=True)):
        true = scores[i, answer]
        assert evaluation.scores_B[i] == true
        better = 0
        for e in range(len(toy.entities)):
            triple = (
                (query.entity, query.relation, e)
                if query.target == "tail"
                else (e, query.relation, query.entity)
            )
            better += bool(e != answer and triple not in known and scores[i, e] > true)
        assert evaluation.ranks.optimistic_B[i] == better + 1


def test_the_breakdown_counts_every_rank_once(toy: KnowledgeGraph) -> None:
    parts = run(toy).report["breakdown"]["unseen_position"]
    total = sum(parts[k]["count"] for k in ("neither", "head", "tail", "both"))
    assert total == 2 * len(toy.splits["test"])
    assert [parts[k]["count"] for k in ("neither", "head", "tail", "both", "any")] == [8, 4, 0, 4, 8]
    roles = run(toy).report["breakdown"]["unseen_role"]
    assert roles["known"]["count"] == roles["answer"]["count"] == 2


def test_relations_are_reported_apart(toy: KnowledgeGraph) -> None:
    relations = run(toy).report["relations"]
    assert relations["capital"]["both"]["count"] == 4
    assert sum(r["tail"]["count"] for r in relations.values()) == len(toy.splits["test"])


def test_ranks_are_written_by_label(toy: KnowledgeGraph, tmp_path: Path) -> None:
    evaluation = run(toy)
    evaluation.write_ranks(tmp_path / "ranks" / "test.parquet")
    rows = pq.read_table(tmp_path / "ranks" / "test.parquet").to_pylist()
    assert len(rows) == 16
    assert {"head": "NA", "relation": "language", "tail": "english", "target": "head"}.items() <= rows[
        7
    ].items()
    mean = np.mean([2 / (r["optimistic"] + r["pessimistic"]) for r in rows])
    assert mean == pytest.approx(evaluation.report["metrics"]["mrr"])


def test_the_filter_can_be_chosen_but_always_has_the_split(toy: KnowledgeGraph) -> None:
    assert run(toy, filter=("train",)).ranks.candidates_B.sum() >= run(toy).ranks.candidates_B.sum()
    with pytest.raises(ConfigError, match="unknown split 'dev'"):
        run(toy, filter=("dev",))


def test_an_absent_split_is_named(toy: KnowledgeGraph) -> None:
    with pytest.raises(DataError, match="no split 'dev'"):
        run(toy, split="dev")


def test_a_random_model_is_near_chance(make_ranker: Callable[..., Ranker], toy: KnowledgeGraph) -> None:
    report = evaluate(make_ranker(), toy, Protocol()).report
    assert 0 < report["metrics"]["mrr"] < 0.5
    assert report["queries"] <= 16
