from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kgmlm.core.errors import DataError
from kgmlm.graphs.cards import folder_card, read_card
from kgmlm.graphs.checks import check_graph
from kgmlm.graphs.datasets import load_graph, write_folder
from kgmlm.graphs.graph import KnowledgeGraph, build_graph
from kgmlm.graphs.splits import describe_split, lacking, split_entities, split_random, with_validation


def grid(n: int) -> KnowledgeGraph:
    rows = [[f"e{i}", f"r{(i + j) % 3}", f"e{j}"] for i in range(n) for j in range(n) if i != j]
    return build_graph("grid", {"train": rows})


def test_a_random_split_is_a_partition_that_leaves_nothing_unseen() -> None:
    graph = grid(12)
    split = split_random(graph, 0.1, 0.2, seed=3)
    assert [len(split.splits[s]) for s in ("train", "valid", "test")] == [132 - 13 - 26, 13, 26]
    assert sorted(map(tuple, split.all_triples.tolist())) == sorted(map(tuple, graph.all_triples.tolist()))
    assert split.seen_N.all()
    assert set(split.splits["train"][:, 1]) == {0, 1, 2}


def test_a_random_split_depends_on_its_seed_alone() -> None:
    first, same, other = (split_random(grid(9), 0.1, 0.1, seed=s) for s in (1, 1, 2))
    assert np.array_equal(first.splits["test"], same.splits["test"])
    assert not np.array_equal(first.splits["test"], other.splits["test"])


def test_a_random_split_makes_only_what_is_missing(toy: KnowledgeGraph) -> None:
    with pytest.raises(DataError, match="has all of"):
        split_random(toy, 0.1, 0.1)
    graph = build_graph(
        "x", {"train": grid(9).labeled(grid(9).splits["train"]), "test": [["e0", "r0", "e1"]]}
    )
    with pytest.raises(DataError, match=r"'x' has a test split already; leave out --test"):
        split_random(graph, 0.2, 0.9)
    split = split_random(graph, 0.2)
    assert len(split.splits["test"]) == 1
    assert list(split.splits) == ["train", "valid", "test"]


@pytest.mark.parametrize(
    "shares", [(0.0, 0.1), (0.5, 0.5), (-0.1, 0.2), (float("nan"), 0.1), (float("inf"), 0.1)]
)
def test_impossible_shares_are_refused(shares: tuple[float, float]) -> None:
    with pytest.raises(DataError, match="shares"):
        split_random(grid(6), *shares)


def test_validation_is_held_out_of_training_and_test_stays(toy: KnowledgeGraph) -> None:
    whole = replace(toy, splits={"train": toy.splits["train"]})
    for graph in (whole, replace(toy, splits={k: toy.splits[k] for k in ("train", "test")})):
        made = with_validation(graph, seed=3)
        assert made.splits.keys() == {*graph.splits, "valid"}
        parts = np.concatenate([made.splits["train"], made.splits["valid"]])
        assert len(parts) == len(np.unique(graph.splits["train"], axis=0))
        assert set(map(tuple, parts.tolist())) == set(map(tuple, graph.splits["train"].tolist()))
        assert (made.seen_N == graph.seen_N).all(), "no entity becomes unseen"
        if "test" in graph.splits:
            assert (made.splits["test"] == graph.splits["test"]).all()


def test_a_small_graph_is_split_into_at_least_one_each() -> None:
    made = split_random(grid(3), 0.001, 0.001)
    assert [len(made.splits[s]) for s in ("valid", "test")] == [1, 1]
    rows = [("a", "r", "b"), ("a", "r", "d"), ("b", "r", "a"), ("c", "r", "b")]
    for seed in range(20):  # two of the four can be spared, whatever the order
        made = split_random(build_graph("four", {"train": rows}), 0.25, 0.25, seed)
        assert [len(made.splits[s]) for s in ("valid", "test")] == [1, 1]


def test_a_graph_too_sparse_to_split_says_so() -> None:
    with pytest.raises(DataError, match="too sparse"):
        split_random(build_graph("x", {"train": [["a", "r", "b"], ["c", "r", "d"]]}), 0.4, 0.4)


def test_each_split_of_entities_keeps_the_false_triples_of_its_own() -> None:
    graph = grid(30)
    false = np.array([[h, r, t] for h in range(30) for t in range(30) for r in range(3) if h != t])
    false = false[(false[:, 0] + false[:, 2]) % 3 != false[:, 1]]
    graph = replace(graph, negatives={"valid": false[::2], "test": false[1::2]})
    split = split_entities(graph, 0.1)
    seen = set(split.splits["train"][:, [0, 2]].ravel().tolist())
    new = {s: set(split.splits[s][:, [0, 2]].ravel().tolist()) - seen for s in ("valid", "test")}
    new["test"] -= new["valid"]  # those of test may be linked to those of validation
    for own, others, name in ((new["valid"], new["test"], "valid"), (new["test"], new["valid"], "test")):
        results = {tuple(row) for row in split.negatives[name].tolist()}
        ends = {(h, r, t): {h, t} for h, r, t in false.tolist()}
        assert results == {row for row, of in ends.items() if of & own and not of & others}


def test_an_entity_split_holds_out_entities_as_blp_does(real: Callable[[str], KnowledgeGraph]) -> None:
    graph = real("wn18rr-v1")
    split = split_entities(graph, 0.1, seed=3)
    assert sorted(map(tuple, split.all_triples.tolist())) == sorted(
        set(map(tuple, graph.all_triples.tolist()))
    ), "the same triples, each in one split"
    train = set(split.splits["train"][:, [0, 2]].ravel().tolist())
    occurring = set(graph.all_triples[:, [0, 2]].ravel().tolist())
    new = {s: set(split.splits[s][:, [0, 2]].ravel().tolist()) - train for s in ("valid", "test")}
    wanted = int(0.1 * len(occurring))
    for rows in (split.splits["valid"], split.splits["test"]):
        assert (~split.seen_N[rows[:, [0, 2]]]).any(1).all(), "each held-out triple has an unseen entity"
    # Test triples may touch validation's entities; validation triples never touch test's.
    assert len(new["valid"]) == wanted
    assert len(new["test"] - new["valid"]) == wanted
    assert occurring == train | new["valid"] | new["test"], "nobody is left alone"
    before, after = (np.bincount(g.all_triples[:, 1] if g is graph else g.splits["train"][:, 1],
                                 minlength=len(graph.relations)) for g in (graph, split))  # fmt: skip
    assert (after >= np.minimum(100, -(-before // 2))).all(), "no relation is used up"


def test_an_entity_split_depends_on_its_seed_alone(toy: KnowledgeGraph) -> None:
    one, same, other = (split_entities(toy, 0.1, seed) for seed in (1, 1, 2))
    assert all((one.splits[s] == same.splits[s]).all() for s in one.splits)
    assert one.labeled(one.splits["test"]) != other.labeled(other.splits["test"])


@pytest.mark.parametrize("share", [0.0, -0.1, 0.5, 2.0, float("nan")])
def test_an_impossible_share_of_entities_is_refused(toy: KnowledgeGraph, share: float) -> None:
    with pytest.raises(DataError, match="share"):
        split_entities(toy, share)


def test_a_chain_has_no_entity_to_hold_out() -> None:
    graph = build_graph("chain", {"train": [(f"e{i}", "r", f"e{i + 1}") for i in range(20)]})
    with pytest.raises(DataError, match="sparse"):
        split_entities(graph, 0.1)


def test_a_split_folder_has_a_card_that_counts_it(toy: KnowledgeGraph, tmp_path: Path) -> None:
    split = split_entities(toy, 0.1)
    write_folder(split, tmp_path / "new", describe_split(split, "toy", "split for a test"))
    back = load_graph(tmp_path / "new")
    card = folder_card(tmp_path / "new")
    assert card is not None
    assert back.name == "toy-unseen" == card.name
    assert card.license == read_card("toy").license
    assert check_graph(back, card.counts)["mismatches"] == {}


def test_what_may_move_is_dealt_in_the_ratio_of_the_shares() -> None:
    leaves = [(f"leaf{i}", "part of", f"hub{i}") for i in range(250)]
    among = [(f"hub{i}", "near", f"hub{i + 1}") for i in range(50)]
    graph = build_graph("sparse", {"train": leaves + among})
    for valid, test in ((0.1, 0.1), (0.1, 0.3)):
        split = split_random(graph, valid, test)
        counts = [len(split.splits[name]) for name in ("valid", "test")]
        assert 0 < sum(counts) < (valid + test) * 300, "fewer can leave training"
        assert abs(counts[0] * test - counts[1] * valid) <= max(valid, test), (
            "in the ratio that was asked for"
        )
        assert lacking(split, "valid") == lacking(split, "test") == ["part of"]


def test_too_few_triples_to_deal_are_refused() -> None:
    graph = build_graph("leaves", {"train": [(f"e{i}", "r", f"f{i}") for i in range(50)]})
    with pytest.raises(DataError, match="too sparse to split: 0 of 50 triples can leave training"):
        split_random(graph)
