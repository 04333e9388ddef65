from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from doubles import FakeRanker, fake, run

from kgmlm.core.arrays import Floats, IntArray
from kgmlm.core.config import Protocol, VectorSettings, load_protocol
from kgmlm.core.errors import ConfigError, DataError
from kgmlm.evaluation import task as task_module
from kgmlm.evaluation.evaluator import evaluate
from kgmlm.evaluation.metrics import SCORES_DIGEST, read_ranks
from kgmlm.evaluation.pykeen import to_factory, to_pykeen
from kgmlm.evaluation.task import Part, RankingTask, Scope, View, _Drawn
from kgmlm.graphs.graph import KnowledgeGraph, build_graph
from kgmlm.graphs.queries import Queries, Target
from kgmlm.ranking.constraints import MISSED, Possible
from kgmlm.ranking.ranker import Ranker
from kgmlm.ranking.retrieval import Retrieval
from kgmlm.runs.index import build_index

PROTOCOLS = Path(__file__).parent.parent.parent / "eval" / "protocols"


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
            scores = torch.from_numpy(ranker.score(queries))
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
@pytest.mark.parametrize("name", ["toy", pytest.param("umls", marks=pytest.mark.slow)])
def test_metrics_are_those_of_pykeen(
    real: Callable[[str], KnowledgeGraph], name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = real(name)
    monkeypatch.setattr(
        "kgmlm.evaluation.task.MAX_SCORES", 5 * len(graph.entities)
    )  # a hub's triples in parts
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


def odd(graph: KnowledgeGraph) -> KnowledgeGraph:
    """The graph with a test triple twice, and one of a relation that training has not."""
    test = graph.labeled(graph.splits["test"])
    splits = {s: graph.labeled(t) for s, t in graph.splits.items()}
    return build_graph("odd", {**splits, "test": [*test, test[0], test[0], ("france", "adores", "paris")]})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", [lambda graph: graph, odd])
def test_the_comparable_column_is_what_pykeen_gets_from_its_own_loading(
    toy: KnowledgeGraph, change: Callable[[KnowledgeGraph], KnowledgeGraph]
) -> None:
    """PyKEEN drops triples with unseen entities or relations and duplicates; training entities compete."""
    from pykeen.evaluation import RankBasedEvaluator
    from pykeen.triples import TriplesFactory

    from kgmlm.evaluation.pykeen import to_pykeen_model

    changed = change(toy)

    class Double:
        graph = changed
        ranker = FakeRanker(len(changed.entities), "tied")

    double: Any = Double()
    double.ranker.rank_original = double.ranker.rank
    double.ranker.rank = lambda queries: double.ranker.rank_original(queries, advance=lambda n: None)
    model = to_pykeen_model(double)
    train = TriplesFactory.from_labeled_triples(np.array(changed.labeled(changed.splits["train"])))
    loaded = TriplesFactory.from_labeled_triples(
        np.array(changed.labeled(changed.splits["test"])),
        entity_to_id=train.entity_to_id,
        relation_to_id=train.relation_to_id,
    )
    e, r = changed.entities.index, changed.relations.index
    asked = [[e[h], r[x], e[t]] for h, x, t in loaded.label_triples(loaded.mapped_triples)]
    results = RankBasedEvaluator().evaluate(
        model,
        torch.tensor(asked),
        batch_size=8,
        use_tqdm=False,
        additional_filter_triples=[to_factory(changed, s).mapped_triples for s in ("train", "valid")],
        restrict_entities_to=np.flatnonzero(changed.seen_N).tolist(),
        pre_filtered_triples=False,
    )
    ours = run(changed, pykeen=True).report["pykeen_comparable"]["metrics"]
    assert ours["both.realistic.count"] == 2 * len(asked) < 2 * len(toy.splits["test"])
    for key in ("both.realistic.inverse_harmonic_mean_rank", "head.pessimistic.arithmetic_mean_rank"):
        assert ours[key] == pytest.approx(results.to_flat_dict()[key], rel=1e-5)


def test_candidates_of_the_training_set_are_the_comparable_column(toy: KnowledgeGraph) -> None:
    everything, train = run(toy, pykeen=True), run(toy, candidates="train")
    assert train.report["metrics"] == everything.report["pykeen_comparable"]["metrics"]
    assert train.report["triples_left_out"] == 4
    assert train.report["candidates"]["count"] == 28


def test_a_constant_scorer_gets_chance(real: Callable[[str], KnowledgeGraph]) -> None:
    evaluation = run(real("umls"), "constant")
    chance = (2 / (evaluation.ranks.candidates_B + 1)).mean()
    assert evaluation.report["metrics"]["mrr"] == pytest.approx(chance)
    assert evaluation.report["metrics"]["mrr"] < 0.03


@pytest.mark.slow
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


@pytest.mark.parametrize("protocol", [{}, {"candidates": "train"}, {"negatives": 10}, {"filter": ("train",)}])
def test_renaming_entities_changes_no_rank(toy: KnowledgeGraph, protocol: dict[str, Any]) -> None:
    """Other labels give other ids, so scores come in other columns; each answer keeps its rank."""
    new = {label: f"{i:03}" for i, label in enumerate(reversed(toy.entities.column("label")))}
    renamed = build_graph(
        "renamed",
        {s: [(new[h], r, new[t]) for h, r, t in toy.labeled(ids)] for s, ids in toy.splits.items()},
        extra_entities=new.values(),
    )
    column = np.array([renamed.entities.index[new[x]] for x in toy.entities.column("label")])

    class Renamed(FakeRanker):
        """The same scores of the same entities."""

        def score(self, queries: Queries) -> Floats:
            back = np.argsort(column)
            asked = Queries(back[queries.entity_B], queries.relation_B, queries.tail_B)
            return super().score(asked)[:, back]

    assert (column != np.arange(len(column))).any()
    asked = Protocol.model_validate(protocol)
    before = evaluate(fake(toy), toy, asked)
    after = evaluate(Renamed(len(column), "tied"), renamed, asked)
    assert (before.triples[:, 1] == after.triples[:, 1]).all()
    assert (column[before.triples[:, [0, 2]]] == after.triples[:, [0, 2]]).all()
    assert np.array_equal(before.scores_B, after.scores_B)
    assert (before.ranks.candidates_B == after.ranks.candidates_B).all()
    if "negatives" not in protocol:  # which are drawn by id
        assert (before.ranks.optimistic_B == after.ranks.optimistic_B).all()
        assert (before.ranks.pessimistic_B == after.ranks.pessimistic_B).all()


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


def test_the_filter_can_be_chosen(toy: KnowledgeGraph) -> None:
    unfiltered = run(toy, filter=()).ranks.candidates_B
    assert (unfiltered == len(toy.entities)).all()
    assert run(toy, filter=("train",)).ranks.candidates_B.sum() >= run(toy).ranks.candidates_B.sum()
    with pytest.raises(ConfigError, match=r"unknown split 'dev' \(there are: train, valid, test\)"):
        run(toy, filter=("dev",))


def test_a_random_model_is_near_chance(make_ranker: Callable[..., Ranker], toy: KnowledgeGraph) -> None:
    report = evaluate(make_ranker(), toy, Protocol()).report
    assert 0 < report["metrics"]["mrr"] < 0.5
    assert report["queries"] <= 16


@pytest.mark.parametrize("kind", ["tied", "constant"])
@pytest.mark.parametrize("name", ["toy", pytest.param("umls", marks=pytest.mark.slow)])
def test_drawn_negatives_are_no_answers_and_depend_on_the_seed_alone(
    real: Callable[[str], KnowledgeGraph], name: str, kind: str
) -> None:
    graph = real(name)
    one = run(graph, kind, negatives=20)
    whole = run(graph, kind)
    # A query that nearly everything answers has fewer.
    assert (one.ranks.candidates_B == np.minimum(21, whole.ranks.candidates_B)).all()
    assert (run(graph, kind, negatives=20).ranks.pessimistic_B == one.ranks.pessimistic_B).all()
    least = int(one.ranks.candidates_B.min()) - 1
    assert one.report["candidates"]["negatives"] == {"count": 20, "by": "drawing", "least": least}
    if kind == "constant":
        assert one.report["metrics"]["mrr"] == pytest.approx((2 / (one.ranks.candidates_B + 1)).mean())
    else:
        other = run(graph, kind, negatives=20, seed=1)
        assert (other.ranks.pessimistic_B != one.ranks.pessimistic_B).any()
        # As many as there are: the same as ranking among all.
        everyone = run(graph, kind, negatives=len(graph.entities) - 1)
        assert (everyone.ranks.candidates_B == whole.ranks.candidates_B).all()
        assert (everyone.ranks.optimistic_B == whole.ranks.optimistic_B).all()
        assert (everyone.ranks.pessimistic_B == whole.ranks.pessimistic_B).all()


def test_more_negatives_than_there_are_cannot_be_drawn(toy: KnowledgeGraph) -> None:
    with pytest.raises(
        ConfigError,
        match=r"31 negatives .* 31 candidates, one of which is the answer; ask for fewer, or for 0 .* all$",
    ):
        run(toy, negatives=31)
    assert run(toy, negatives=30).report["candidates"]["negatives"]["least"] < 30, "some answer is known"


def test_negatives_are_drawn_as_grail_draws_them(toy: KnowledgeGraph) -> None:
    """With replacement, never the query's own entity, never an answer in training; others may be."""

    class Telling(FakeRanker):
        """Scores are ids: a rank then tells how many of the drawn are above the answer."""

        def score(self, queries: Queries) -> Floats:
            return np.tile(np.arange(self.n, dtype=np.float32), (len(queries), 1))

    protocol = load_protocol(PROTOCOLS / "inductive-grail.toml")
    assert (protocol.negatives, protocol.filter, protocol.candidates) == (49, ("train",), "graph")
    evaluation = evaluate(Telling(len(toy.entities), ""), toy, protocol)
    assert (evaluation.ranks.candidates_B == 50).all(), "49 of 31 entities, with replacement"
    assert evaluation.report["candidates"]["negatives"] == {"count": 49, "by": "grail", "least": 49}
    assert "both.realistic.hits_at_10" in evaluation.report["metrics"]
    queries, answers = toy.queries("test")
    everyone = np.arange(len(toy.entities))
    many = protocol.model_copy(update={"negatives": 2000})
    ranks = evaluate(Telling(len(toy.entities), ""), toy, many).ranks
    for b, (query, answer) in enumerate(zip(queries, answers, strict=True)):
        _, ids = toy.context.answers.lookup(queries[np.array([b])])
        allowed = np.setdiff1d(everyone, [*ids, query.entity])
        above, ties = (allowed > answer).mean(), (allowed == answer).mean()
        assert ranks.optimistic_B[b] - 1 == pytest.approx(2000 * above, abs=120)
        assert ranks.pessimistic_B[b] - ranks.optimistic_B[b] == pytest.approx(2000 * ties, abs=50)
    again = evaluate(Telling(len(toy.entities), ""), toy, protocol)
    assert (again.ranks.optimistic_B == evaluation.ranks.optimistic_B).all()


def test_every_protocol_file_is_valid() -> None:
    files = sorted(PROTOCOLS.glob("*.toml"))
    assert {
        "test",
        "unseen",
        "inductive",
        "inductive-50-drawn",
        "inductive-grail",
        "inductive-50-expected",
    } <= {f.stem for f in files}
    for file in files:
        load_protocol(file)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("wn18rr", 210), ("fb15k237", 28)])
def test_the_unseen_protocol_asks_the_triples_that_pykeen_drops(
    real: Callable[[str], KnowledgeGraph], name: str, count: int
) -> None:
    protocol = load_protocol(PROTOCOLS / "unseen.toml")
    report = evaluate(fake(real(name)), real(name), protocol).report
    assert report["triples"] == count
    assert report["breakdown"]["unseen_position"]["any"]["count"] == 2 * count


def test_a_missed_answer_ranks_behind_all_that_is_found(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    pytest.importorskip("faiss")
    ranker = make_ranker(vector=VectorSettings(enabled=True))
    index = build_index(ranker, toy)
    n = len(toy.entities)
    exact = evaluate(ranker, toy, Protocol())
    done: list[int] = []
    whole = evaluate(
        ranker, toy, Protocol(), retrieval=Retrieval(index, n), advance=lambda n, total: done.append(n)
    )
    assert sum(done) == 2 * whole.report["triples"]
    assert whole.report["metrics"] == pytest.approx(exact.report["metrics"])
    assert whole.report["retrieval"]["recall"] == {"tail": 1, "head": 1, "both": 1}
    assert whole.report["retrieval"]["mrr_lost"] == pytest.approx(0)
    few = evaluate(ranker, toy, Protocol(), retrieval=Retrieval(index, 6))
    result = few.report["retrieval"]
    assert result["exact"]["mrr"] == pytest.approx(exact.report["metrics"]["mrr"])
    assert 0 < result["recall"]["both"] < 1
    missed = few.scores_B <= MISSED
    assert missed.mean() == pytest.approx(1 - result["recall"]["both"])
    # Those that were found keep their ranks; the others are level with all that were not.
    assert np.array_equal(few.ranks.optimistic_B[~missed], exact.ranks.optimistic_B[~missed])
    assert np.array_equal(few.ranks.pessimistic_B[missed], few.ranks.candidates_B[missed])
    assert (few.ranks.optimistic_B[missed] <= 7).all()
    assert (few.ranks.optimistic_B[missed] < few.ranks.pessimistic_B[missed]).all()
    with pytest.raises(
        ConfigError, match=r"^an index is evaluated among all candidates, not among negatives$"
    ):
        evaluate(ranker, toy, Protocol(negatives=5), retrieval=Retrieval(index, 6))


@pytest.mark.parametrize("by", ["drawing", "grail"])
def test_a_triple_that_is_there_twice_is_ranked_among_the_same_negatives(
    toy: KnowledgeGraph, by: Any, tmp_path: Path
) -> None:
    test = toy.splits["test"]
    graph = replace(toy, splits={**toy.splits, "test": np.concatenate([test, test[:3]])})
    result = run(graph, negatives=5, negatives_by=by)
    once = run(toy, negatives=5, negatives_by=by)
    count = len(test)
    for ranks_B, single_B in zip(vars(result.ranks).values(), vars(once.ranks).values(), strict=True):
        heads, tails = np.split(ranks_B, 2)
        assert heads[count:].tolist() == heads[:3].tolist()
        assert tails[count:].tolist() == tails[:3].tolist()
        assert heads[:count].tolist() == np.split(single_B, 2)[0].tolist(), "drawn as ever"
    result.write_ranks(tmp_path / "ranks.parquet")
    assert len(read_ranks(tmp_path / "ranks.parquet")) == 2 * (count + 3)


def drawing(**protocol: Any) -> _Drawn:
    """Of twelve entities, for one query of entity 5."""
    view = View.of(np.ones(12, np.bool_), np.array([[5, 0, 7]]))
    own_B, first_B = np.array([5, 5]), np.arange(2)
    return _Drawn(**vars(view), own_B=own_B, first_B=first_B, protocol=Protocol.model_validate(protocol))


def negatives(view: _Drawn, known: list[int], answer: int = 7) -> list[list[int]]:
    """What is drawn by many seeds."""
    return [
        view._negatives(
            np.random.default_rng(i), np.array(known, np.int64), np.int64(answer), np.int64(5)
        ).tolist()
        for i in range(200)
    ]


def test_negatives_by_drawing_are_distinct_and_no_answers() -> None:
    drawn = negatives(drawing(negatives=6), [2, 3, 7])
    assert {len(row) for row in drawn} == {6}
    assert all(len(set(row)) == 6 for row in drawn)
    assert {x for row in drawn for x in row} == set(range(12)) - {2, 3, 7}
    assert {len(row) for row in negatives(drawing(negatives=11), [2, 3, 7])} == {9}, "all that there are"
    unknown = negatives(drawing(negatives=6), [])
    assert {x for row in unknown for x in row} == set(range(12)) - {7}, "an answer that no filter knows"


def test_negatives_as_grail_draws_them_are_neither_the_query_nor_its_training_answers() -> None:
    drawn = negatives(drawing(negatives=30, negatives_by="grail"), [2, 3])
    assert {len(row) for row in drawn} == {30}
    assert {x for row in drawn for x in row} == set(range(12)) - {2, 3, 5}
    everything = [x for x in range(12) if x != 5]
    assert negatives(drawing(negatives=30, negatives_by="grail"), everything) == [[]] * 200


@pytest.mark.parametrize("drawn", [False, True])
def test_ranks_of_a_few_scores_by_hand(drawn: bool) -> None:
    view = drawing(negatives=11) if drawn else View.of(np.ones(12, np.bool_), np.array([[5, 0, 7]]))
    scores_bN, nothing = np.tile(np.arange(12, dtype=np.float32), (2, 1)), np.zeros(0, np.int64)
    view.rank(scores_bN, Part(np.array([0, 1]), np.arange(2), np.array([5, 7]), (nothing, nothing)))
    assert view.result().optimistic_B.tolist() == view.result().pessimistic_B.tolist() == [7, 5]
    assert view.result().candidates_B.tolist() == [12, 12]


@pytest.mark.parametrize("candidates", ["all", "train"])
def test_ranks_do_not_depend_on_how_many_scores_are_compared_at_once(
    toy: KnowledgeGraph, candidates: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run(toy, candidates=candidates, pykeen=True)
    for scores in (1, 3 * len(toy.entities)):
        monkeypatch.setattr(task_module, "_COMPARED", scores)
        again = run(toy, candidates=candidates, pykeen=True)
        assert again.scores_B.tolist() == before.scores_B.tolist()
        for name, ranks_B in vars(before.ranks).items():
            assert vars(again.ranks)[name].tolist() == ranks_B.tolist()
        assert again.report["metrics"] == before.report["metrics"]
        assert again.report["pykeen_comparable"] == before.report["pykeen_comparable"]


def test_each_query_is_ranked_among_negatives_of_its_own() -> None:
    """The only rivals that score higher are the query's entity and a known answer, which are not drawn."""
    view = drawing(negatives=40, negatives_by="grail")
    scores_bN = np.zeros((2, 12), np.float32)
    scores_bN[:, [7, 5, 3]] = 1, 2, 3
    known = np.array([0]), np.array([3])
    part = Part(np.array([1]), np.array([1]), np.array([7]), known)
    view.rank(scores_bN, part)
    assert view.ranks_3B[:, 1].tolist()[0] == 1
    assert view.ranks_3B[2, 1] == 41
    assert view.ranks_3B[:, 0].tolist() == [0, 0, 0], "the other query has not been asked"


def test_the_filter_knows_nothing_but_the_splits() -> None:
    graph = build_graph("g", {"train": [("b", "r", "c")], "test": [("a", "r", "b"), ("c", "r", "a")]})
    assert graph.entities.index["a"] == graph.relations.index["r"] == 0
    assert (run(graph, filter=()).ranks.candidates_B == 3).all()
    assert run(graph).ranks.candidates_B.tolist() == [3, 3, 3, 3]


def test_a_file_of_ranks_says_what_made_it_and_replaces_a_link_unless_told_to_follow(
    toy: KnowledgeGraph, tmp_path: Path
) -> None:
    evaluation = run(toy)
    evaluation.write_ranks(tmp_path / "plain.parquet")
    assert pq.read_schema(tmp_path / "plain.parquet").metadata[SCORES_DIGEST] == b""
    target = tmp_path / "target.parquet"
    for follow in (False, True):
        link = tmp_path / f"link-{follow}"
        link.symlink_to(target)
        evaluation.write_ranks(link, "text", follow=follow)
        assert link.is_symlink() == target.exists() == follow
        assert pq.read_schema(link).metadata[SCORES_DIGEST] == b"text"
    other = tmp_path / "other"
    other.symlink_to(tmp_path / "nowhere")
    evaluation.write_ranks(other)
    assert not other.is_symlink()


class Constrained(FakeRanker):
    """The query's own entity cannot answer some relations, though its score is the best."""

    def __init__(self, n: int, possible: Possible) -> None:
        super().__init__(n, "tied")
        self.possible = possible

    def unconstrained(self) -> Constrained:
        return Constrained(self.n, Possible.anything(len(self.possible.loop_free_R)))

    def score(self, queries: Queries) -> Floats:
        scores_BN = super().score(queries)
        scores_BN[np.arange(len(queries)), queries.entity_B] = 99
        return self.possible.applied(scores_BN, queries)


def test_an_own_entity_that_cannot_answer_ranks_last_but_not_as_pykeen_ranks(toy: KnowledgeGraph) -> None:
    n, relations = len(toy.entities), len(toy.relations)
    ranker = Constrained(n, Possible(np.ones(relations, np.bool_)))
    free = evaluate(ranker.unconstrained(), toy, Protocol(pykeen=True))
    bound = evaluate(ranker, toy, Protocol(pykeen=True))
    known = set(map(tuple, toy.all_triples.tolist()))
    queries, _ = toy.queries("test")
    for b, query in enumerate(queries):
        own = (query.entity, query.relation, query.entity) not in known  # a rival unless it is filtered
        assert free.ranks.optimistic_B[b] - bound.ranks.optimistic_B[b] == own
        assert free.ranks.candidates_B[b] == bound.ranks.candidates_B[b]
    allowed = evaluate(ranker, toy, Protocol(allow_self=True))
    assert allowed.report["metrics"] == free.report["metrics"]
    assert bound.report["metrics"]["mrr"] > free.report["metrics"]["mrr"]
    assert bound.report["pykeen_comparable"] == free.report["pykeen_comparable"]
    assert bound.report["own_entity"] == {
        "excluded": True, "relations": relations, "ranks": len(queries), "true_loops": 0,
    }  # fmt: skip
    assert free.report["own_entity"] == {"excluded": False, "relations": 0, "ranks": 0, "true_loops": 0}


def test_a_triple_that_a_constraint_denies_is_counted_and_ranks_last() -> None:
    graph = build_graph(
        "g", {"train": [("a", "r", "b"), ("c", "s", "b")], "test": [("a", "r", "a"), ("b", "r", "c")]}
    )
    evaluation = evaluate(Constrained(3, Possible(np.array([True, False]))), graph, Protocol())
    assert evaluation.report["own_entity"] == {"excluded": True, "relations": 1, "ranks": 4, "true_loops": 2}
    loops = (evaluation.triples[:, 0] == evaluation.triples[:, 2]).nonzero()[0]
    for b in (*loops, *(loops + 2)):
        assert evaluation.ranks.optimistic_B[b] == evaluation.ranks.candidates_B[b]
    assert (evaluation.scores_B[np.append(loops, loops + 2)] < MISSED).all()


class Watched(Constrained):
    """Notes how it is asked."""

    def __init__(self, n: int, possible: Possible) -> None:
        super().__init__(n, possible)
        self.asked: list[tuple[Watched, int]] = []

    def rank(
        self,
        queries: Queries,
        entity_ids: IntArray | None = None,
        batch_size: int = 64,
        advance: Callable[[int], None] = lambda n: None,
    ) -> Iterator[tuple[IntArray, Floats]]:
        self.asked.append((self, batch_size))
        yield from super().rank(queries, entity_ids, batch_size, advance)


@pytest.mark.parametrize(
    ("protocol", "twice"), [({}, False), ({"pykeen": True}, True), ({"pykeen": True, "negatives": 5}, False)]
)
def test_scores_without_constraints_are_asked_for_only_where_they_are_compared(
    toy: KnowledgeGraph, protocol: dict[str, Any], twice: bool
) -> None:
    ranker = Watched(len(toy.entities), Possible(np.ones(len(toy.relations), np.bool_)))
    free = Watched(ranker.n, Possible.anything(len(toy.relations)))
    free.asked = ranker.asked
    ranker.unconstrained = lambda: free  # type: ignore[method-assign]
    done: list[tuple[int, int]] = []
    evaluation = evaluate(
        ranker, toy, Protocol.model_validate(protocol), batch_size=7,
        advance=lambda n, total: done.append((n, total)),
    )  # fmt: skip
    assert {id(of) for of, _ in ranker.asked} == {id(ranker), *([id(free)] if twice else [])}
    assert {size for _, size in ranker.asked} == {7}
    assert sum(n for n, _ in done) == 2 * evaluation.report["triples"]
    assert {total for _, total in done} == {2 * evaluation.report["triples"]}


def test_where_a_constraint_touches_no_query_it_changes_nothing(toy: KnowledgeGraph) -> None:
    unasked = np.ones(len(toy.relations), np.bool_)
    unasked[toy.splits["test"][:, 1]] = False
    ranker = Constrained(len(toy.entities), Possible(unasked))
    evaluation = [evaluate(r, toy, Protocol()).report["metrics"] for r in (ranker, ranker.unconstrained())]
    assert evaluation[0] == evaluation[1]


def test_a_report_says_what_was_done(toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.3456, 0.0, 0.0])
    monkeypatch.setattr("kgmlm.evaluation.evaluator.time", SimpleNamespace(monotonic=lambda: next(clock)))
    done: list[tuple[int, int]] = []
    ranker = fake(toy)
    ranker.truncated_N[[3, 4]] = True
    protocol = Protocol(max_triples=5, seed=3, pykeen=True)
    evaluation = evaluate(
        ranker, toy, protocol, by_relation=True, advance=lambda n, total: done.append((n, total))
    )
    report = evaluation.report
    asked = Scope.of(toy).sampled(protocol)
    assert evaluation.graph is toy
    assert (evaluation.triples == asked).all()
    distinct = {(int(x), int(r), tail) for h, r, t in asked for x, tail in ((h, True), (t, False))}
    assert sum(n for n, _ in done) == 2 * report["triples"]
    assert report["queries"] == len(distinct)
    assert {total for _, total in done} == {2 * len(asked)}
    expected = {
        "dataset": "toy", "split": "test", "triples": 5, "triples_left_out": 0, "triples_trained": 0,
        "triples_validated": 0, "protocol": protocol.model_dump(mode="json"),
    }  # fmt: skip
    assert {key: report[key] for key in expected} == expected
    assert report["seconds"] == 2.35
    assert json.loads(json.dumps(report)) == report
    assert report["protocol"]["filter"] == ["train", "valid", "test"]
    unseen_T = ~toy.seen_N[asked]
    heads, tails = unseen_T[:, 0], unseen_T[:, 2]  # of a triple's two queries each is once asked about
    roles = report["breakdown"]["unseen_role"]
    assert heads.sum() != tails.sum()
    tail_B = evaluation.tail_B
    answer, known = (
        np.where(tail_B, *np.tile([tails, heads], 2)),
        np.where(tail_B, *np.tile([heads, tails], 2)),
    )
    for name, mask in (("answer", answer & ~known), ("known", known & ~answer), ("both", answer & known)):
        assert roles[name]["count"] == mask.sum()
        if mask.any():
            ranks = evaluation.ranks[mask].of_type("realistic")
            assert roles[name]["mrr"] == pytest.approx((1 / ranks).mean())
    assert report["candidates"]["names_truncated"] == 2
    assert report["candidates"]["without_description"] == toy.entities.column("description").count("")
    assert set(report) == {
        *expected, "queries", "seconds", "processes", "candidates", "own_entity", "metrics", "breakdown",
        "pykeen_comparable", "relations",
    }  # fmt: skip
    assert "relations" not in evaluate(fake(toy), toy, protocol).report
    assert set(report["relations"]) == {toy.relations[r].label for r in asked[:, 1]}
    assert sum(part["both"]["count"] for part in report["relations"].values()) == 10
    assert report["pykeen_comparable"]["candidates"] == int(toy.seen_N.sum())
    assert report["breakdown"]["unseen_position"]["any"]["count"] == 2 * int(
        (~toy.seen_N[asked[:, [0, 2]]]).any(1).sum()
    )


def test_a_scope_is_evaluated_as_it_is(toy: KnowledgeGraph) -> None:
    """Its candidates, its unseen entities, and what earlier graphs had."""
    train = replace(toy, splits={"train": toy.splits["test"]})
    report = evaluate(fake(toy), Scope.of(toy, [train]), Protocol()).report
    assert report["triples_trained"] == len(toy.splits["test"])
    assert report["breakdown"]["unseen_position"]["any"]["count"] == 0
    valid = replace(toy, splits={"train": toy.splits["train"], "valid": toy.splits["test"]})
    assert evaluate(fake(toy), Scope.of(toy, [valid]), Protocol()).report["triples_validated"] == 8


@pytest.mark.parametrize("protocol", [{"negatives": 5}, {"negatives": 5, "negatives_by": "expectation"}])
def test_nothing_is_compared_with_pykeen_among_negatives(
    toy: KnowledgeGraph, protocol: dict[str, Any]
) -> None:
    result = run(toy, **protocol)
    assert "pykeen_comparable" not in result.report
    if protocol.get("negatives_by") == "expectation":  # nothing is drawn: ranks are among all
        assert (result.ranks.candidates_B == run(toy).ranks.candidates_B).all()
        assert all(".expected." in key for key in result.report["metrics"])
    else:
        assert (result.ranks.candidates_B == 6).all()


def test_a_graph_without_training_has_nothing_to_compare() -> None:
    graph = build_graph("g", {"train": [], "test": [("a", "r", "b")]})
    report = run(graph).report
    assert "pykeen_comparable" not in report
    assert report["breakdown"]["unseen_position"]["both"]["count"] == 2


def test_a_hub_in_parts_of_one_query_is_ranked_alike(
    toy: KnowledgeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run(toy)
    monkeypatch.setattr("kgmlm.evaluation.task.MAX_SCORES", 1)
    after = run(toy)
    assert (before.ranks.optimistic_B == after.ranks.optimistic_B).all()
    assert np.array_equal(before.scores_B, after.scores_B)
    rows = np.arange(3)
    task = RankingTask.of(toy, Protocol())
    whole, group = task.groups.take(rows)
    for most in (0, 1, 2, 99):
        monkeypatch.setattr(task_module, "MAX_SCORES", most * task.width)
        parts = list(task.parts(rows))
        assert max(len(part.at) for part in parts) <= max(1, most)
        assert np.concatenate([part.at for part in parts]).tolist() == whole.tolist()
        assert np.concatenate([part.group for part in parts]).tolist() == group.tolist()


def test_nothing_to_evaluate_names_the_split(toy: KnowledgeGraph) -> None:
    with pytest.raises(DataError, match=r"^the split 'test' has no triple to evaluate under this protocol$"):
        run(toy, triples="unseen", candidates="train")
