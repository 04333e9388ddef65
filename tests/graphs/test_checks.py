from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgmlm.data import check_tokens
from kgmlm.graphs.cards import read_card
from kgmlm.graphs.checks import OVERLAP, ceiling, check_graph, lines_of, name_groups
from kgmlm.graphs.entities import EntityTable
from kgmlm.graphs.graph import KnowledgeGraph, TextColumns, build_graph
from kgmlm.graphs.queries import both_sides
from kgmlm.text.tokenization import SpanTokenizer

Real = Callable[[str], KnowledgeGraph]


def test_the_toy_graph_is_what_it_was_made_to_be(toy: KnowledgeGraph) -> None:
    report = check_graph(toy, read_card("toy").counts)
    assert report["unseen"] == 3
    assert report["collisions"] == {"bare": 2, "surface": 2}
    assert report["unseen_triples"] == {"valid": 0, "test": 4}
    assert report["mismatches"] == {}


def test_false_triples_are_counted_and_are_not_asked(toy: KnowledgeGraph) -> None:
    false = np.array([[0, 0, 0], toy.splits["train"][0]])
    graph = replace(toy, splits={**toy.splits, "test": false[:0]}, negatives={"test": false})
    report = check_graph(graph)
    assert (report["false"], report["false_and_true"]) == ({"test": 2}, {"test": 1})
    assert report["ceiling"]["split"] == "valid"
    assert lines_of(report)["of these, true in some split"] == ["test 1"]


def test_the_ceiling_is_the_one_of_counting_by_hand(toy: KnowledgeGraph) -> None:
    groups = name_groups(toy.entities.table.column("name"))
    known = set(map(tuple, toy.all_triples.tolist()))
    total = 0.0
    queries, answers = both_sides(toy.splits["test"])
    for query, answer in zip(queries, answers, strict=True):
        ties = 0
        for other in range(len(toy.entities)):
            triple = (
                (query.entity, query.relation, other)
                if query.target == "tail"
                else (other, query.relation, query.entity)
            )
            ties += other != answer and groups[other] == groups[answer] and triple not in known
        total += 1 / (1 + ties / 2)
    assert ceiling(toy, groups, "test")["mrr"] == pytest.approx(total / len(queries))


@pytest.mark.slow
def test_wn18rr_facts(real: Real) -> None:
    report = check_graph(real("wn18rr"))
    assert report["unseen"] == 384
    assert report["unseen_triples"] == {"valid": 210, "test": 210}
    assert report["collisions"] == {"bare": 12873, "surface": 0}
    assert round(report["ceiling"]["bare"]["mrr"], 3) == 0.800
    assert round(report["ceiling"]["bare"]["hits_at_1"], 3) == 0.616
    assert report["leakage"]["test"]["mirrored"] == 1086


@pytest.mark.slow
def test_fb15k237_facts(real: Real) -> None:
    report = check_graph(real("fb15k237"))
    assert report["collisions"]["bare"] == 499
    assert report["leakage"]["test"]["mirrored"] == 0
    assert report["unseen_triples"] == {"valid": 9, "test": 28}


def test_what_is_odd_is_found() -> None:
    rows = [
        ["a", "likes", "b"],
        ["a", "likes", "b"],
        ["c", "likes", "d"],
        ["b", "liked_by", "a"],
        ["d", "liked_by", "c"],
    ]
    graph = build_graph(
        "odd",
        {"train": rows, "test": [["a", "likes", "b"], ["d", "likes", "c"], ["x", "likes", "a"]]},
        TextColumns(names={"a": "Ann", "b": "Ann"}),
    )
    report = check_graph(graph)
    assert report["duplicates"] == {"train": 1, "test": 0}
    assert report["shared"] == {"train+test": 1}
    assert report["leakage"]["test"] == {"mirrored": 1, "inverse": 1, "parallel": 1}
    assert report["overlapping_relations"]["inverse"] == [
        {"relations": ["liked_by", "likes"], "pairs": 2, "share": 1.0}
    ]
    assert report["unseen"] == 1
    assert report["without_name"] == 3
    assert EntityTable(["old_oak", "b", "c"], ["old oak", "Ann", "c"]).unnamed == 2
    assert "mismatches" not in report


def test_relations_that_training_lacks_are_named() -> None:
    splits = {"train": [["a", "r", "b"]], "test": [["a", "q", "b"], ["b", "p", "a"]]}
    graph = build_graph("new", splits, TextColumns())
    report = check_graph(graph)
    assert report["unseen_relations"] == ["p", "q"]
    assert lines_of(report)["relations"] == ["3, of which 2 occur in no training triple", "such as p, q"]


def test_what_is_counted_is_listed() -> None:
    rows = [
        ["caf\u00e9", "likes", "b"],
        ["cafe\u0301", "likes", "Bob"],
        ["bob", "Likes", "bob"],
        [" a ", "likes", "bob"],
        *(["b", "knows", f"e{i}"] for i in range(9)),
    ]
    graph = build_graph(
        "odd",
        {"train": rows, "test": [["new", "likes", "b"], ["b", "knows", "b"]]},
        TextColumns(names={"b": "Bee", "e1": "Bee", "e2": "bee", "e3": "Z"}),
    )
    checked = check_graph(graph)["listed"]
    assert checked["unseen"] == {"count": 1, "examples": ["new"]}
    assert checked["shared_names"] == {"count": 2, "examples": [{"name": "Bee", "entities": ["b", "e1"]}]}
    assert checked["unicode_twins"] == {"count": 2, "examples": [["cafe\u0301", "caf\u00e9"]]}
    assert checked["case_twins"]["examples"] == [["Bob", "bob"], ["Bee", "bee"], ["Likes", "likes"]]
    assert checked["case_twins"]["count"] == 6
    assert checked["blanks"] == {"count": 1, "examples": [" a "]}
    assert checked["self_loops"]["count"] == 2
    assert checked["self_loops"]["examples"] == [
        {"relation": "Likes", "count": 1, "example": ["bob", "Likes", "bob"]},
        {"relation": "knows", "count": 1, "example": ["b", "knows", "b"]},
    ]
    printed = str(lines_of(check_graph(graph)))
    for text in ("such as new", "'Bee' (b, e1)", "' a '", "'Bob' and 'bob'", "Likes 1 (bob)"):
        assert text in printed


def test_lists_end_with_examples_for_people_and_are_longer_in_json() -> None:
    rows = [["a", "r", "b"]]
    graph = build_graph("new", {"train": rows, "test": [[f"e{i:03}", "r", "b"] for i in range(120)]})
    report = check_graph(graph)
    assert report["listed"]["unseen"]["count"] == 120
    assert len(report["listed"]["unseen"]["examples"]) == 100
    assert "such as e000, e001, e002, e003, e004, and 115 more" in lines_of(report)["entities"]


def test_long_lists_for_people_end_in_a_count(toy: KnowledgeGraph) -> None:
    report = check_graph(toy)
    report["overlapping_relations"]["inverse"] = [
        {"relations": ["a", f"b{i}"], "pairs": 10, "share": 0.9} for i in range(9)
    ]
    lines = lines_of(report)["inverse relations"]
    assert lines[4:] == ["a / b4 (10 pairs, 90%)", "and 4 more"]


def test_what_the_model_lacks_and_what_sets_the_span_are_said(toy_tokenizer: SpanTokenizer) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "|", "paris", "new"]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    special = dict(
        zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), words, strict=False)
    )
    tokenizer = SpanTokenizer(PreTrainedTokenizerFast(tokenizer_object=core, **special))
    names = ["paris", "new paris", "\u6771 paris", "new new paris"]
    graph = build_graph("x", {"train": [(a, "r", b) for a, b in pairwise(names)]})
    report = check_graph(graph) | {"name_tokens": check_tokens(graph, tokenizer)}
    tokens = report["name_tokens"]
    assert tokens["unknown"] == {"count": 1, "examples": ["\u6771 paris"]}
    assert tokens["span"] == {"tokens": 3, "name": "new new paris"}
    assert tokens["max"] == 3
    lines = lines_of(report)
    assert lines["names with unknown tokens"] == ["1", "such as '\u6771 paris'"]
    assert lines["tokens of the span"] == ["3, for 'new new paris'"]
    own = check_tokens(graph, toy_tokenizer)
    assert own["unknown"]["count"] == 0, "byte-level tokenizers lack nothing"


node, edge = st.sampled_from("abcd"), st.sampled_from("rs")
drawn = st.lists(st.tuples(node, edge, node), min_size=1, max_size=12)


@given(drawn, drawn)
def test_pairs_are_counted_as_one_by_one(
    train: list[tuple[str, str, str]], test: list[tuple[str, str, str]]
) -> None:
    report = check_graph(build_graph("drawn", {"train": train, "test": test}))
    have = set(train)
    relations = sorted({r for _, r, _ in have})
    pairs = {r: {(h, t) for h, r2, t in have if r2 == r} for r in relations}
    expected: dict[str, dict[tuple[str, str], int]] = {"inverse": {}, "duplicate": {}}
    for one, other in [(r, s) for r in relations for s in relations if r <= s]:
        expected["inverse"][one, other] = len(pairs[one] & {(t, h) for h, t in pairs[other]})
        expected["duplicate"][one, other] = len(pairs[one] & pairs[other]) if one != other else 0
    for kind, counts in expected.items():
        assert {
            tuple(item["relations"]): item["pairs"] for item in report["overlapping_relations"][kind]
        } == {
            (one, other): count
            for (one, other), count in counts.items()
            if count > 1 and count / min(len(pairs[one]), len(pairs[other])) >= OVERLAP
        }
    assert report["leakage"]["test"] == {
        "mirrored": sum((t, r, h) in have and h != t for h, r, t in test),
        "inverse": sum(any((t, s, h) in have for s in "rs" if s != r) for h, r, t in test),
        "parallel": sum(any((h, s, t) in have for s in "rs" if s != r) for h, r, t in test),
    }
    assert report["shared"]["train+test"] == len(have & set(test))


@given(
    st.lists(st.text(st.sampled_from("aAßé\u0301\u212a k"), min_size=1, max_size=3), unique=True, min_size=1)
)
def test_twins_are_those_that_python_finds(labels: list[str]) -> None:
    graph = build_graph("drawn", {"train": [(labels[0], "r", labels[0])]}, extra_entities=labels)
    checked = check_graph(graph)["listed"]
    both = [set(graph.entities.column(column)) for column in ("label", "name")]

    def twins(each: list[set[str]], key: Callable[[str], str]) -> list[list[str]]:
        groups = {tuple(sorted(x for x in texts if key(x) == key(text))) for texts in each for text in texts}
        return sorted(list(x) for x in groups if len(x) > 1)

    def nfc(text: str) -> str:
        return unicodedata.normalize("NFC", text)

    assert sorted(checked["unicode_twins"]["examples"]) == twins(both, nfc)
    assert sorted(checked["case_twins"]["examples"]) == twins([set(map(nfc, x)) for x in both], str.casefold)
    assert sorted(checked["blanks"]["examples"]) == sorted(x for x in labels if x != x.strip())
