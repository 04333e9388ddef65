from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from kgmlm.config import (
    Protocol,
    RescoringSettings,
    StructureSettings,
    TextSettings,
    VectorSettings,
    load_protocol,
)
from kgmlm.constraints import Possible
from kgmlm.datasets import build_graph
from kgmlm.evaluation import Evaluation, Scope, choose_rescoring, choose_structure, evaluate, validate
from kgmlm.graph import KnowledgeGraph
from kgmlm.indexing import build_index
from kgmlm.interop import to_factory, to_pykeen
from kgmlm.kg import ConfigError, DataError, Queries, Target
from kgmlm.ranker import MISSED, Ranker, Retrieval
from kgmlm.rescoring import Rescorer
from kgmlm.structure import train_structure
from kgmlm.tokenization import Candidates

PROTOCOLS = Path(__file__).parent.parent / "eval" / "protocols"


class FakeRanker:
    """A double: scores are a function of the query and the entity alone, with ties on purpose."""

    def __init__(self, n: int, kind: str) -> None:
        self.n, self.kind = n, kind
        self.possible = Possible.anything(300)
        offsets = np.arange(n + 1)
        self.candidates = Candidates(np.zeros(n, np.int64), offsets, np.zeros(n, np.bool_))

    def unconstrained(self) -> FakeRanker:
        return self

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
def test_metrics_are_those_of_pykeen(
    real: Callable[[str], KnowledgeGraph], name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = real(name)
    monkeypatch.setattr("kgmlm.evaluation.HELD", 5 * len(graph.entities))  # a hub's triples in parts
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

    import kgmlm.interop as interop

    changed = change(toy)

    class Double:
        graph = changed
        ranker = FakeRanker(len(changed.entities), "tied")

    double: Any = Double()
    double.ranker.rank_original = double.ranker.rank
    double.ranker.rank = lambda queries: double.ranker.rank_original(queries, advance=lambda n: None)
    model = interop.to_pykeen_model(double)
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
    ours = run(changed).report["pykeen_comparable"]["metrics"]
    assert ours["both.realistic.count"] == 2 * len(asked) < 2 * len(toy.splits["test"])
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


def test_the_filter_can_be_chosen(toy: KnowledgeGraph) -> None:
    unfiltered = run(toy, filter=()).ranks.candidates_B
    assert (unfiltered == len(toy.entities)).all()
    assert run(toy, filter=("train",)).ranks.candidates_B.sum() >= run(toy).ranks.candidates_B.sum()
    with pytest.raises(ConfigError, match="unknown split 'dev'"):
        run(toy, filter=("dev",))


def rivals(graph: KnowledgeGraph) -> KnowledgeGraph:
    """The graph with test triples that would filter every wrong answer of validation."""
    h, r, _ = graph.splits["valid"].T
    everything = np.arange(len(graph.entities))
    tails = [(a, b, c) for a, b in zip(h, r, strict=True) for c in everything]
    return replace(graph, splits={**graph.splits, "test": np.array(tails, np.int64)})


@pytest.mark.parametrize("what", ["validate", "vectors", "structure", "rescoring"])
def test_no_choice_depends_on_test_triples(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph, what: str
) -> None:
    protocol, found = Protocol(split="valid"), []
    for graph in (toy, rivals(toy)):
        ranker = make_ranker(vector=VectorSettings(enabled=what == "vectors"))
        if what == "structure":
            ranker.structure = train_structure(toy, StructureSettings(dimension=8, epochs=1))
            found.append(choose_structure(ranker, graph, protocol))
        elif what == "rescoring":
            small = {"rescoring": RescoringSettings(candidates=5, max_length=8)}
            settings = ranker.settings.model_copy(update=small | {"text": TextSettings(max_length=40)})
            ranker.rescorer = Rescorer(ranker.context, ranker.tokenizer, ranker.model, settings)
            found.append(choose_rescoring(ranker, graph, protocol))
        else:
            found.append(validate(ranker, graph, protocol))
    assert found[0] == found[1]
    choose = {"structure": choose_structure, "rescoring": choose_rescoring}.get(what, validate)
    with pytest.raises(ConfigError, match="must not know the test triples"):
        choose(ranker, toy, Protocol(split="valid", filter=("train", "test")))
    with pytest.raises(ConfigError, match="must not know the test triples"):
        choose(ranker, toy, Protocol())


def test_an_absent_split_is_named(toy: KnowledgeGraph) -> None:
    with pytest.raises(DataError, match="no split 'dev'"):
        run(toy, split="dev")


def test_a_random_model_is_near_chance(make_ranker: Callable[..., Ranker], toy: KnowledgeGraph) -> None:
    report = evaluate(make_ranker(), toy, Protocol()).report
    assert 0 < report["metrics"]["mrr"] < 0.5
    assert report["queries"] <= 16


def test_the_unseen_slice_alone(toy: KnowledgeGraph) -> None:
    unseen, seen = run(toy, triples="unseen"), run(toy, triples="seen")
    assert unseen.report["triples"] == seen.report["triples"] == 4
    whole = run(toy).report["breakdown"]["unseen_position"]
    assert unseen.report["metrics"]["mrr"] == pytest.approx(whole["any"]["mrr"])
    assert seen.report["metrics"]["mrr"] == pytest.approx(whole["neither"]["mrr"])


def test_candidates_of_the_split_are_its_entities(toy: KnowledgeGraph) -> None:
    report = run(toy, candidates="split").report
    assert report["candidates"]["count"] == len(set(toy.splits["test"][:, [0, 2]].ravel().tolist()))
    assert report["triples_left_out"] == 0


@pytest.mark.parametrize("kind", ["tied", "constant"])
def test_drawn_negatives_are_no_answers_and_depend_on_the_seed_alone(
    real: Callable[[str], KnowledgeGraph], kind: str
) -> None:
    graph = real("umls")
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
    with pytest.raises(ConfigError, match=r"31 negatives cannot be drawn from 31 candidates"):
        run(toy, negatives=31)
    assert run(toy, negatives=30).report["candidates"]["negatives"]["least"] < 30, "some answer is known"


def test_negatives_are_drawn_as_grail_draws_them(toy: KnowledgeGraph) -> None:
    """With replacement, never the query's own entity, never an answer in training; others may be."""

    class Telling(FakeRanker):
        """Scores are ids: a rank then tells how many of the drawn are above the answer."""

        def score(self, queries: Queries) -> torch.Tensor:
            return torch.arange(self.n).float().expand(len(queries), -1).clone()

    protocol = load_protocol(PROTOCOLS / "inductive-grail.toml")
    assert (protocol.negatives, protocol.filter, protocol.candidates) == (49, ("train",), "graph")
    found = evaluate(Telling(len(toy.entities), ""), toy, protocol)  # type: ignore[arg-type]
    assert (found.ranks.candidates_B == 50).all(), "49 of 31 entities, with replacement"
    assert found.report["candidates"]["negatives"] == {"count": 49, "by": "grail", "least": 49}
    assert "both.realistic.hits_at_10" in found.report["metrics"]
    queries, answers = toy.queries("test")
    everyone = np.arange(len(toy.entities))
    many = protocol.model_copy(update={"negatives": 2000})
    ranks = evaluate(Telling(len(toy.entities), ""), toy, many).ranks  # type: ignore[arg-type]
    for b, (query, answer) in enumerate(zip(queries, answers, strict=True)):
        _, ids = toy.context.answers.lookup(queries[np.array([b])])
        allowed = np.setdiff1d(everyone, [*ids, query.entity])
        above, ties = (allowed > answer).mean(), (allowed == answer).mean()
        assert ranks.optimistic_B[b] - 1 == pytest.approx(2000 * above, abs=120)
        assert ranks.pessimistic_B[b] - ranks.optimistic_B[b] == pytest.approx(2000 * ties, abs=50)
    again = evaluate(Telling(len(toy.entities), ""), toy, protocol)  # type: ignore[arg-type]
    assert (again.ranks.optimistic_B == found.ranks.optimistic_B).all()


def test_expected_hits_are_the_mean_over_many_draws(real: Callable[[str], KnowledgeGraph]) -> None:
    """The closed form draws with replacement; on ranks far from the ends the two agree."""
    graph = real("umls")
    expected = run(graph, negatives=9, negatives_by="expectation", filter=("train",)).report["metrics"]
    figures = ("count", "hits_at_1", "hits_at_3", "hits_at_5", "hits_at_10")
    assert set(expected) == {f"{side}.expected.{m}" for side in ("head", "tail", "both") for m in figures}
    ranks = run(graph, filter=("train",)).ranks
    rng = np.random.default_rng(0)
    share = (ranks.pessimistic_B - 1) / (ranks.candidates_B - 1)
    for k in (1, 3, 5):
        above = rng.binomial(9, share[:, None], size=(len(share), 400))
        assert expected[f"both.expected.hits_at_{k}"] == pytest.approx((above < k).mean(), abs=0.01)
    assert expected["both.expected.hits_at_10"] == 1.0


def elsewhere(toy: KnowledgeGraph, prefix: str = "new ") -> KnowledgeGraph:
    """The toy graph over again, as a graph of entities that nobody has seen."""
    splits = {
        split: [(prefix + h, r, prefix + t) for h, r, t in toy.labeled(rows)]
        for split, rows in toy.splits.items()
    }
    return build_graph("elsewhere", splits)


def test_another_graph_is_all_unseen(toy: KnowledgeGraph) -> None:
    other = elsewhere(toy)
    scope = Scope.inductive(toy, other, Protocol(candidates="graph"))
    report = evaluate(fake(scope.graph), scope, Protocol(candidates="graph")).report
    assert report["dataset"] == "elsewhere"
    assert report["candidates"]["count"] == len(other.entities)
    assert report["breakdown"]["unseen_position"]["both"]["count"] == 16
    assert report["breakdown"]["unseen_role"]["both"]["count"] == 16
    assert "pykeen_comparable" not in report


def test_all_candidates_are_both_graphs(toy: KnowledgeGraph) -> None:
    other = elsewhere(toy)
    scope = Scope.inductive(toy, other, Protocol(candidates="all"))
    report = evaluate(fake(scope.graph), scope, Protocol(candidates="all")).report
    assert report["candidates"]["count"] == len(other.entities) + len(toy.entities)
    graph_only = evaluate(fake(scope.graph), scope, Protocol(candidates="graph")).report
    assert graph_only["candidates"]["count"] == len(other.entities)


def fake(graph: KnowledgeGraph) -> Any:
    return FakeRanker(len(graph.entities), "tied")


def test_a_run_that_knows_the_answers_is_refused(toy: KnowledgeGraph) -> None:
    leaky = build_graph("leaky", {"train": [("x", "borders", "y")], "test": [("france", "capital", "paris")]})
    with pytest.raises(
        DataError, match=r"1 of the 1 test triples of 'leaky', such as \(france, capital, paris"
    ):
        Scope.inductive(toy, leaky, Protocol(), allow_seen_entities=True)
    with pytest.raises(DataError, match="train triples"):
        Scope.inductive(toy, toy, Protocol(split="train"))


def test_a_run_that_knows_an_entity_is_refused_unless_allowed(toy: KnowledgeGraph) -> None:
    partly = build_graph(
        "partly",
        {"train": [("x", "borders", "y")], "test": [("france", "borders", "x"), ("x", "borders", "z")]},
    )
    with pytest.raises(DataError, match=r"1 of the 4 entities of 'partly'.*'france'.*--allow-seen-entities"):
        Scope.inductive(toy, partly, Protocol())
    scope = Scope.inductive(toy, partly, Protocol(candidates="graph"), allow_seen_entities=True)
    report = evaluate(fake(scope.graph), scope, Protocol(candidates="graph")).report
    parts = report["breakdown"]["unseen_position"]
    assert (parts["tail"]["count"], parts["both"]["count"]) == (2, 2)
    assert "pykeen_comparable" not in report, "there is nothing to compare on another graph"


def test_what_earlier_graphs_have_was_seen_and_trained(toy: KnowledgeGraph) -> None:
    rows = [("france", "borders", "x"), *toy.labeled(toy.splits["test"][:3])]
    before = build_graph("before", {"train": rows})
    report = evaluate(fake(toy), Scope.of(toy, [before]), Protocol()).report
    assert report["triples_trained"] == 3
    fewer = replace(toy, splits={**toy.splits, "train": toy.splits["train"][:1]})
    plain, later = (evaluate(fake(toy), Scope.of(fewer, e), Protocol()).report for e in ((), [toy]))
    assert plain["triples_trained"] == later["triples_trained"] == 0
    counts = [r["breakdown"]["unseen_position"]["any"]["count"] for r in (plain, later)]
    assert counts[0] > counts[1]


def test_what_a_run_was_chosen_on_is_counted(toy: KnowledgeGraph) -> None:
    chosen_on = toy.labeled(toy.splits["valid"])
    other = build_graph(
        "other", {"train": [("x", "borders", "y")], "test": [*chosen_on, ("x", "borders", "z")]}
    )
    scope = Scope.inductive(toy, other, Protocol(candidates="graph"), allow_seen_entities=True)
    found = [evaluate(fake(s.graph), s, Protocol(candidates="graph")).report for s in (scope, Scope.of(toy))]
    assert [r["triples_validated"] for r in found] == [len(chosen_on), 0]
    assert [r["triples_trained"] for r in found] == [0, 0]


def test_a_new_relation_is_refused_unless_allowed(toy: KnowledgeGraph) -> None:
    other = build_graph("other", {"train": [("x", "r1", "y")], "test": [("y", "r2", "x"), ("x", "r3", "x")]})
    with pytest.raises(DataError, match=r"'r2' of 'other' nor on 1 other;.*--allow-new-relations"):
        Scope.inductive(toy, other, Protocol())
    Scope.inductive(toy, other, Protocol(), allow_new_relations=True)


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


@pytest.mark.parametrize(("name", "count"), [("wn18rr", 210), ("fb15k237", 28)])
def test_the_unseen_protocol_asks_the_triples_that_pykeen_drops(
    real: Callable[[str], KnowledgeGraph], name: str, count: int
) -> None:
    protocol = load_protocol(PROTOCOLS / "unseen.toml")
    report = evaluate(fake(real(name)), real(name), protocol).report
    assert report["triples"] == count
    assert report["breakdown"]["unseen_position"]["any"]["count"] == 2 * count


@pytest.mark.parametrize("name", ["wn18rr", "fb15k237"])
def test_grails_unseen_graphs_are_unseen_by_their_own_training_graph_only(
    real: Callable[[str], KnowledgeGraph], name: str
) -> None:
    version = {"wn18rr": "wn18rr-v1", "fb15k237": "fb237-v1"}[name]
    protocol = Protocol(candidates="graph")
    scope = Scope.inductive(real(version), real(f"{version}-ind"), protocol)
    assert not scope.seen_N.any()
    with pytest.raises(DataError, match="test triples"):
        Scope.inductive(real(name), real(f"{version}-ind"), protocol)


def test_a_missed_answer_ranks_behind_all_that_is_found(
    make_ranker: Callable[..., Ranker], toy: KnowledgeGraph
) -> None:
    pytest.importorskip("faiss")
    ranker = make_ranker()
    index = build_index(ranker, toy, "likelihood")
    n = len(toy.entities)
    exact = evaluate(ranker, toy, Protocol())
    whole = evaluate(ranker, toy, Protocol(), retrieval=Retrieval(index, n))
    assert whole.report["metrics"] == pytest.approx(exact.report["metrics"])
    assert whole.report["retrieval"]["recall"] == {"tail": 1, "head": 1, "both": 1}
    assert whole.report["retrieval"]["mrr_lost"] == pytest.approx(0)
    few = evaluate(ranker, toy, Protocol(), retrieval=Retrieval(index, 6))
    found = few.report["retrieval"]
    assert found["exact"]["mrr"] == pytest.approx(exact.report["metrics"]["mrr"])
    assert 0 < found["recall"]["both"] < 1
    missed = few.scores_B.numpy() <= MISSED
    assert missed.mean() == pytest.approx(1 - found["recall"]["both"])
    # Those that were found keep their ranks; the others are level with all that were not.
    assert np.array_equal(few.ranks.optimistic_B[~missed], exact.ranks.optimistic_B[~missed])
    assert np.array_equal(few.ranks.pessimistic_B[missed], few.ranks.candidates_B[missed])
    assert (few.ranks.optimistic_B[missed] <= 7).all()
    assert (few.ranks.optimistic_B[missed] < few.ranks.pessimistic_B[missed]).all()
    with pytest.raises(ConfigError, match="not among negatives"):
        evaluate(ranker, toy, Protocol(negatives=5), retrieval=Retrieval(index, 6))
